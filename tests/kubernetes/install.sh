#!/usr/bin/env bash
# Makes the programs of a real Kubernetes for the tests, once for each version of what they are made from. The first time
# takes about five minutes on two cores and leaves some gigabytes in Go's build cache; then it takes no time.
#
# They go to ${XDG_CACHE_HOME:-~/.cache}/crossfade/kubernetes. Debian packages are installed where root runs this.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/kubernetes
version=$(sed -n 's/^\tk8s.io\/kubernetes v//p' "$here/programs/go.mod")
needed="containerd runc containernetworking-plugins nftables iproute2 procps util-linux openssl curl gcc libc6-dev busybox-static prometheus"

packages() {
  local package missing=()
  for package in $needed; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q ^ii || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ]; then
    echo "installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; then
      return
    fi
  fi
  echo "error: missing: ${missing[*]}" >&2
  return 1
}

go_version() {
  local found
  found=$(go env GOVERSION 2>/dev/null) || found=nothing
  if ! printf 'go1.25\n%s\n' "$found" | sort --check=quiet --version-sort; then
    echo "error: missing: Go 1.25 or later (found $found): see https://go.dev/dl" >&2
    return 1
  fi
}

if ! command -v dpkg-query >/dev/null; then
  echo "error: the cluster of the tests is made for Debian or Ubuntu" >&2
  exit 1
fi
packages
mkdir -p "$home"
exec 9>"$home/lock"
flock 9

stamp() { cat "$here/programs/main.go" "$here/programs/go.mod" "$here/pause.c" "$here/image.py"; }
if stamp | cmp -s - "$home/stamp" && [ -x "$home/programs" ]; then
  exit 0
fi
go_version
echo "making Kubernetes $version in $home; the first time takes about five minutes"
rm -f "$home/stamp"
about=k8s.io/component-base/version
(
  cd "$here/programs"
  CGO_ENABLED=0 go build -trimpath -o "$home/programs" -ldflags="-s -w -X $about.gitVersion=v$version \
    -X $about.gitMajor=${version%%.*} -X $about.gitMinor=$(cut -d. -f2 <<<"$version")" .
)
gcc -static -Os -o "$home/pause" "$here/pause.c"
"$here/image.py" "$home/pause.tar" test.local/pause:1 "$home/pause"
"$here/image.py" "$home/shell.tar" test.local/shell:1 /bin/busybox
stamp >"$home/stamp"
