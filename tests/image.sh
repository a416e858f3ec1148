#!/usr/bin/env bash
# Builds the last stage of the Dockerfile without a registry, and runs it like a pod: as user 65532, with a read-only root file
# system. The output of the first stage is an argument, and the libraries of this machine replace the base image.
#
# usage: image.sh PROGRAM THIRD-PARTY.txt [ARCHIVE.tar]
#
# PROGRAM keeps its debug information; the image must not have it. Needs buildah, umoci, runc, objcopy.
set -euo pipefail
program=$(realpath "$1") notices=$(realpath "$2") archive=${3:+$(realpath -m "$3")}
self=$(realpath "${BASH_SOURCE[0]}")
cd "$(dirname "$self")/.."
for tool in buildah umoci runc objcopy jq; do
  if ! command -v "$tool" >/dev/null; then
    echo "error: $tool is missing; on Debian or Ubuntu: sudo apt-get install buildah umoci runc binutils jq" >&2
    exit 1
  fi
done
# Without root, in a new user namespace, in which files may belong to any user.
[ "$(id -u)" = 0 ] || exec buildah unshare "$self" "$program" "$notices" ${archive:+"$archive"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
store=(--root "$work/store" --runroot "$work/run" --storage-driver vfs)

# The output of the first stage, created with the same commands.
mkdir -p "$work/built" "$work/base/etc/ssl/certs"
cp "$notices" "$work/built/THIRD-PARTY.txt"
objcopy --only-keep-debug "$program" "$work/built/crossfade.debug"
objcopy --strip-debug --add-gnu-debuglink="$work/built/crossfade.debug" "$program" "$work/built/crossfade"
# The files of distroless/cc that the program needs.
for library in $(ldd "$program" | grep -o '/[^ ]*'); do
  install -D "$library" "$work/base$library"
done
cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
for image in built base; do
  printf 'FROM scratch\nCOPY . /\n' >"$work/$image.dockerfile"
  buildah "${store[@]}" bud --quiet --isolation chroot --tag "localhost/$image" --file "$work/$image.dockerfile" "$work/$image" >/dev/null
done

# All stages except the first, unchanged.
{
  echo "FROM localhost/built AS build"
  sed -n '/^FROM scratch AS debug$/,$p' Dockerfile
} >"$work/dockerfile"
base=$(sed -n 's/^FROM \(gcr[^ ]*\)$/\1/p' Dockerfile)
buildah "${store[@]}" bud --quiet --isolation chroot --pull-never --build-context "$base=container-image://localhost/base" \
  --tag crossfade --file "$work/dockerfile" . >/dev/null
buildah "${store[@]}" push --quiet localhost/crossfade "oci:$work/oci:crossfade"
umoci unpack --image "$work/oci:crossfade" "$work/bundle" 2>/dev/null
root=$work/bundle/rootfs
[ -z "$archive" ] || buildah "${store[@]}" push --quiet localhost/crossfade "oci-archive:$archive"

fail() {
  echo "error: $*" >&2
  exit 1
}
cmp LICENSE "$root/LICENSE" || fail "the image lacks LICENSE"
cmp "$notices" "$root/THIRD-PARTY.txt" || fail "the image lacks the notices of third parties"
[ "$(jq -c '[.process.user.uid, .process.user.gid, .process.args]' "$work/bundle/config.json")" = '[65532,65532,["/crossfade"]]' ] ||
  fail "it runs as another user, or another program"
! find "$root" -perm /6000 -type f | grep . || fail "files change the user"
! find "$root" \( -name sh -o -name bash -o -name busybox \) | grep . || fail "there is a shell"
size=$(stat -c %s "$root/crossfade")
[ "$size" -lt "$(stat -c %s "$program")" ] || fail "the program has its debug information"

run() { # run ARG...: in the image
  # Without a new network namespace and without /sys, which needs one, so that no privileges are necessary.
  jq '.root.readonly = true | .process.terminal = false | .process.noNewPrivileges = true
    | .process.capabilities = {} | .process.args += ($line | split(" "))
    | .mounts |= map(select(.destination | startswith("/sys") | not))
    | .linux.namespaces |= map(select(.type != "network" and .type != "cgroup"))' \
    --arg line "$*" <"$work/bundle/config.json" >"$work/bundle/config.new"
  cp "$work/bundle/config.json" "$work/config.kept"
  mv "$work/bundle/config.new" "$work/bundle/config.json"
  local status=0
  runc --root "$work/runc" run --bundle "$work/bundle" "crossfade-$$" || status=$?
  mv "$work/config.kept" "$work/bundle/config.json"
  return "$status"
}
run --version
printf 'apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nmetadata: {name: a}\nspec: {newFrontendService: "new:8000", trafficSplitPercent: 5}\n' |
  run check -
echo "the image runs: $((size / 1000000)) MB of program, $(find "$root" -type f | wc -l) files"
