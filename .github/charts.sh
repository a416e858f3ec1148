#!/usr/bin/env bash
# The charts of a release, which name its image and link to its files at the URL SOURCE. Needs helm: tests/tools/install.sh.
#
# usage: charts.sh VERSION IMAGE OUT SOURCE
set -euo pipefail
version=$1 image=$2 out=$3 source=$4
cd "$(dirname "${BASH_SOURCE[0]}")/.."
helm=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/tools/go/helm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -rL deploy/helm/. "$work"
sed -i "s#^  repository: \"\"\$#  repository: $image#" "$work/crossfade/values.yaml"
grep -qx "  repository: $image" "$work/crossfade/values.yaml"
mkdir -p "$out"
for chart in crossfade-crds crossfade; do
  sed -i "s#](\.\./\.\./\.\./#]($source/#g; s#](\.\./\.\./#]($source/deploy/#g; s#](\.\./#]($source/deploy/helm/#g" "$work/$chart/README.md"
  "$helm" lint --strict --quiet "$work/$chart"
  "$helm" package "$work/$chart" --version "$version" --app-version "$version" --destination "$out"
done
