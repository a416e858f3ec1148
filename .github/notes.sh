#!/usr/bin/env bash
# The section of CHANGELOG.md about a version, for its release; fails where there is none.
#
# usage: notes.sh VERSION [CHANGELOG]
set -euo pipefail
version=$1
notes=$(awk -v version="$version" '
  /^## / { name = $2; gsub(/[][]/, "", name); inside = name == version; next }
  inside' "${2:-CHANGELOG.md}")
if [ -z "${notes//[[:space:]]/}" ]; then
  echo "error: CHANGELOG.md has no section '## $version'" >&2
  exit 1
fi
printf '%s\n' "$notes"
