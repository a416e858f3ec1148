#!/usr/bin/env bash
# Installs real Dynamo and the openai client, and the programs of peers.txt, into Python
# environments of their own, and makes the tiny model: once for each version of these files.
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

# Each stamp is the input itself; tests/dynamo and tests/support compare them too.
is_installed() { # is_installed STAMP ENVIRONMENT INPUT...
  cat "${@:3}" | cmp -s - "$home/$1" && "$home/$2/bin/python" -c '' 2>/dev/null
}
environment() { # environment NAME REQUIREMENTS
  rm -rf "${home:?}/$1"
  python3 -m venv "$home/$1"
  if ! "$home/$1/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --requirement "$here/$2"; then
    echo "error: the packages of tests/dynamo/$2 did not install;" \
      "they need PyPI, and Linux with glibc 2.28 or later on x86_64 or aarch64" >&2
    exit 1
  fi
}

dynamo=("$here/requirements.txt" "$here/tiny_model.py")
if ! is_installed stamp venv "${dynamo[@]}"; then
  echo "installing Dynamo and the openai client in $home"
  rm -rf "$home/stamp" "$home/model"
  environment venv requirements.txt
  "$home/venv/bin/python" "$here/tiny_model.py" "$home/model"
  cat "${dynamo[@]}" >"$home/stamp"
fi

if ! is_installed peers.stamp peers "$here/peers.txt"; then
  echo "installing uvicorn and the anthropic client in $home"
  rm -f "$home/peers.stamp"
  environment peers peers.txt
  cp "$here/peers.txt" "$home/peers.stamp"
fi
