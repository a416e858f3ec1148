#!/usr/bin/env bash
# Makes helm and actionlint for the tests, once for each version in go.mod. The first time takes about three minutes on two
# cores; then it takes no time.
#
# They go to ${XDG_CACHE_HOME:-~/.cache}/crossfade/tools/go.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/tools/go

mkdir -p "$home"
if command -v flock >/dev/null; then
  exec 9>"$home/lock"
  flock 9
fi

# The stamp is the input itself; tests/support/helm.rs compares it too.
wanted() { cat "$here/go.mod" "$here/install.sh"; }
if wanted | cmp -s - "$home/stamp" && [ -x "$home/helm" ] && [ -x "$home/actionlint" ]; then
  exit 0
fi

# There, since Go fetches the version that a module asks for, if it may.
found=$(cd "$here" && go env GOVERSION 2>/dev/null) || found=nothing
if ! printf 'go1.26\n%s\n' "$found" | sort --check=quiet --version-sort; then
  echo "error: missing: Go 1.26 or later (found $found): see https://go.dev/dl" >&2
  exit 1
fi
version=$(sed -n 's/^\thelm.sh\/helm\/v3 v\([0-9.]*\).*/\1/p' "$here/go.mod")
echo "making helm $version and actionlint in $home; the first time takes about three minutes"
rm -f "$home/stamp"
# As helm's own Makefile sets them: without, it takes every cluster that it does not ask for a Kubernetes 1.20.
minor=$(sed -n 's/^\tk8s.io\/client-go v0\.\([0-9]*\).*/\1/p' "$here/go.mod")
flags="-s -w -X helm.sh/helm/v3/internal/version.version=v$version"
for package in lint/rules chartutil; do
  flags+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=$minor"
done
(
  cd "$here"
  export CGO_ENABLED=0
  go build -trimpath -ldflags="$flags" -o "$home/helm" helm.sh/helm/v3/cmd/helm
  go build -trimpath -ldflags="-s -w" -o "$home/actionlint" github.com/rhysd/actionlint/cmd/actionlint
)
wanted >"$home/stamp"
