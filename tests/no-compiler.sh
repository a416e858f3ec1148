#!/bin/sh
# A fake C compiler and archiver for another system, for `make macos`: writes an empty file to the path after -o.
# `cargo check` runs the build scripts of crates with C code, but never links what they build.
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then : >"$2"; fi
  shift
done
