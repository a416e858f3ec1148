#!/usr/bin/env bash
# Installs real Dynamo and the openai client into a Python environment of their own, and
# makes the tiny model: once for each version of requirements.txt and tiny_model.py.
#
#   CROSSFADE_DYNAMO  where (default: ${XDG_CACHE_HOME:-~/.cache}/crossfade/dynamo)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${CROSSFADE_DYNAMO:-${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/dynamo}

mkdir -p "$home"
if command -v flock >/dev/null; then
  exec 9>"$home/lock"
  flock 9
fi

# The stamp is the input itself; tests/support/dynamo.rs compares it too.
wanted() { cat "$here/requirements.txt" "$here/tiny_model.py"; }
if wanted | cmp -s - "$home/stamp" && "$home/venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

echo "installing Dynamo and the openai client in $home"
rm -rf "$home/stamp" "$home/venv" "$home/model"
python3 -m venv "$home/venv"
if ! "$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --requirement "$here/requirements.txt"; then
  echo "error: the packages of tests/dynamo/requirements.txt did not install;" \
    "they need PyPI, and Linux with glibc 2.28 or later on x86_64 or aarch64" >&2
  exit 1
fi
"$home/venv/bin/python" "$here/tiny_model.py" "$home/model"
wanted >"$home/stamp"
