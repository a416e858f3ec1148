#!/usr/bin/env bash
# Makes the OpenTelemetry Collector of the tests, once for each version of what it is made from. The first time takes about
# two minutes on two cores; then it takes no time.
#
# It goes to ${XDG_CACHE_HOME:-~/.cache}/crossfade/tracing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/tracing
version=$(sed -n 's/^\tgo.opentelemetry.io\/collector\/otelcol v//p' "$here/receiver/go.mod")

mkdir -p "$home"
if command -v flock >/dev/null; then
  exec 9>"$home/lock"
  flock 9
fi

# The stamp is the input itself; tests/support/collector.rs compares it too.
wanted() { cat "$here/receiver/go.mod" "$here/receiver/main.go"; }
if wanted | cmp -s - "$home/stamp" && [ -x "$home/receiver" ]; then
  exit 0
fi

# There, since Go fetches the version that a module asks for, if it may.
found=$(cd "$here/receiver" && go env GOVERSION 2>/dev/null) || found=nothing
if ! printf 'go1.26\n%s\n' "$found" | sort --check=quiet --version-sort; then
  echo "error: missing: Go 1.26 or later (found $found): see https://go.dev/dl" >&2
  exit 1
fi
echo "making the OpenTelemetry Collector $version in $home; the first time takes about two minutes"
rm -f "$home/stamp"
(cd "$here/receiver" && CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o "$home/receiver" .)
wanted >"$home/stamp"
