#!/usr/bin/env bash
# The archive of a release for the machine that runs this: the program without its debug information, manual, completions, documents
# and what they refer to, manifests, charts, and the licenses of everything in the program. Beside it the debug information and a list of everything in the
# program (SBOM, CycloneDX). Needs cargo-auditable, cargo-about and cargo-cyclonedx.
#
# usage: package.sh TAG OUT
set -euo pipefail
tag=$1 out=$(mkdir -p "$2" && cd "$2" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name=crossfade-$tag-linux-$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/$name

# The list of dependencies in the program is for `cargo audit bin`.
make install BUILD="auditable build" DESTDIR="$root" PREFIX=
objcopy --only-keep-debug "$root/bin/crossfade" "$out/$name.debug"
objcopy --strip-debug --add-gnu-debuglink="$out/$name.debug" "$root/bin/crossfade"
cargo about generate --locked about.hbs --output-file "$root/THIRD-PARTY.txt"
cp -r --parents LICENSE README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md docs deploy examples proto benches/README.md benches/figures "$root/"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -cf - "$name" |
  gzip -n >"$out/$name.tar.gz"
gzip -nf "$out/$name.debug"
cargo cyclonedx --format json --target "$(uname -m)-unknown-linux-gnu" --override-filename "$name.cdx"
mv "$name.cdx.json" "$out/"
cd "$out"
sha256sum "$name.tar.gz" >"$name.tar.gz.sha256"
