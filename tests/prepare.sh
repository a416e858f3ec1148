#!/usr/bin/env bash
# Puts in place what `make` needs beside a Rust toolchain: nothing outside the user's cache,
# save Debian packages where root runs this. What is missing and cannot be installed is named.
#
# usage: prepare.sh [--compile] [TOOL=VERSION]...
#
# With --compile, compiles the tests meanwhile: installing waits for the network and for linkers, which leave cores unused.
# Checks the machine, installs Dynamo, uvicorn, the openai and anthropic clients, Kubernetes, helm, actionlint and an OpenTelemetry Collector
# for the tests, and each TOOL from crates.io under ${XDG_CACHE_HOME:-~/.cache}/crossfade/tools.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/tools

compile=false
if [[ ${1:-} == --compile ]]; then
  compile=true
  shift
fi
wanted=$*
missing=()  # for people to read
packages=() # what Debian calls it
need() {    # need WHAT DEBIAN_PACKAGES COMMAND...
  local what=$1 debian=$2
  shift 2
  if ! "$@" >/dev/null 2>&1; then
    missing+=("$what")
    read -ra debian <<<"$debian"
    packages+=("${debian[@]}")
  fi
}

compiles() { # compiles COMPILER LANGUAGE HEADER
  printf '#include <%s>\nint main() { return 0; }\n' "$3" | "$1" -x "$2" -o /dev/null -
}
check() {
  missing=() packages=()
  need "a C compiler (for the ring crate)" "gcc libc6-dev" compiles "${CC:-cc}" c stdio.h
  if [[ $wanted == *cargo-fuzz=* ]]; then
    need "a C++ compiler (for libFuzzer)" "g++" compiles "${CXX:-c++}" c++ vector
  fi
  need "Python 3.10 or later (for Dynamo)" "python3" \
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'
  need "Python's venv with pip" "python3-venv" python3 -c 'import ensurepip, venv'
  need "Prometheus with promtool (for alerts and the dashboard)" "prometheus" \
    sh -c 'prometheus --version && promtool --version'
}

rust() {
  if ! command -v cargo >/dev/null; then
    echo "error: Rust is missing: see https://rustup.rs" >&2
    exit 1
  fi
  local component
  for component in rustfmt clippy; do
    cargo "${component/rust/}" --version >/dev/null 2>&1 && continue
    if ! command -v rustup >/dev/null || ! rustup component add "$component"; then
      echo "error: $component is missing: rustup component add $component" >&2
      exit 1
    fi
  done
}

machine() {
  check
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Debian packages: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -qq -y --no-install-recommends "${packages[@]}" || true
    check
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    printf 'error: missing: %s\n' "${missing[@]}" >&2
    echo "on Debian or Ubuntu: sudo apt-get install ${packages[*]}" >&2
    exit 1
  fi
}

browser() { # the tests of the live page are skipped without it
  local name
  for name in chromium-headless-shell chromium chromium-browser google-chrome-stable google-chrome; do
    ! command -v "$name" >/dev/null || return 0
  done
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; then
    return 0
  fi
  echo "going on without Chromium: the tests of the live page will be skipped" >&2
}

tool() { # tool NAME VERSION
  local program=$tools/bin/$1
  if "$program" --version 2>/dev/null | grep -qwF "$2"; then
    return
  fi
  echo "installing $1 $2 in $tools"
  local features=()
  if [ "$1" = cargo-about ]; then
    features=(--features cli)
    # It compares every file with every license, which takes minutes without the optimizer.
    local -x CARGO_PROFILE_DEV_OPT_LEVEL=2
  fi
  # A debug build takes a minute where a release build takes many, and is quick enough.
  CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --force "${features[@]}" \
    --root "$tools" --version "$2" "$1"
}

rust
machine
if $compile; then
  log=$(mktemp)
  cargo test --locked --no-run >"$log" 2>&1 &
  compiler=$!
  # `set -e` holds in a trap too, and there is nothing to kill once the compiler has finished.
  trap 'kill "$compiler" 2>/dev/null || true; rm -f "$log"' EXIT
fi
browser
"$here/dynamo/install.sh"
if ! "$here/kubernetes/install.sh"; then
  echo "going on without a cluster: its scenarios will be skipped, and the tests that need an API server will fail at once" >&2
fi
if ! "$here/tracing/install.sh"; then
  echo "going on without an OpenTelemetry Collector: the tests of traces that need one will be skipped" >&2
fi
if ! "$here/tools/install.sh"; then
  echo "going on without helm and actionlint: the tests of the charts will fail at once, and make workflows too" >&2
fi
for pair in "$@"; do
  tool "${pair%%=*}" "${pair#*=}"
done
if $compile; then
  status=0
  wait "$compiler" || status=$?
  cat "$log"
  exit "$status"
fi
