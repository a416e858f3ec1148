#!/usr/bin/env bash
# Runs every test, and reruns failed tests alone: on a busy machine, a test with real servers can miss its deadline. A test that fails
# twice fails the run, and so do more than four failures. The last lines name the tests that passed only the second time, so that they
# get fixed. The scenarios in a cluster are one test; only those that failed run again.
#
# usage: all.sh [COMMAND...]
#
# The cluster scenarios leave almost half of the processor time unused, so COMMAND and the other tiers run at the same time. If COMMAND
# fails, the run fails.
set -uo pipefail
readonly most=4
readonly scenarios="${CARGO_TARGET_DIR:-target}/tmp/scenarios.log"
output=$(mktemp) beside=$(mktemp) && trap 'rm -f "$output" "$beside"' EXIT

# Returns 1 if a test fails, and 2 if the command fails.
every_test() {
  local status=0
  # The tests of the API server wait most of the time, so four times as many of them run at once as there are cores.
  RUST_TEST_THREADS=$((4 * $(nproc))) cargo test --locked --no-fail-fast --test api_server || status=1
  # Cargo locks the build directory until the scenarios run, so the rest starts later.
  (sleep 10 && meanwhile) >"$beside" 2>&1 &
  cargo test --locked --no-fail-fast --test cluster || status=1
  wait $! || status=$(($? > status ? $? : status))
  cat "$beside"
  return $status
}

meanwhile() {
  # The scenarios use the processor, too.
  export CHAOS_PATIENCE=2
  local status=0 main tier tiers=()
  for main in tests/*/main.rs; do
    tier=$(basename "${main%/main.rs}")
    [[ $tier == @(api_server|cluster) ]] || tiers+=(--test "$tier")
  done
  cargo test --locked --no-fail-fast --lib --bins --examples "${tiers[@]}" || status=1
  cargo test --locked --doc || status=1
  "${command[@]}" && return $status
  echo "error: failed: ${command[*]}"
  return 2
}
readonly command=("${@:-true}")
every_test 2>&1 | tee "$output"
case ${PIPESTATUS[0]} in
0) exit ;;
2) exit 1 ;;
esac

# One line for each failed test: the cargo flags of its binary, a tab, and its name. A test binary lists its failures at the end,
# and cargo then prints the flags. A binary that crashed lists none.
failed=$(awk '
  /^failures:$/          { listed = 1; count = 0; next }
  listed && /^    [^ ]+/ { name[++count] = substr($0, 5) }
  /^test result: /       { listed = 0 }
  /^error: (doc)?test failed, to rerun pass `/ {
    split($0, part, "`")
    if (!count) exit 1
    for (i = 1; i <= count; i++) print part[2] "\t" name[i]
    count = 0
  }
' "$output") || { echo "a test binary failed without naming a test" >&2; exit 1; }
count=$(grep -c . <<<"$failed")
if ((count == 0 || count > most)); then
  echo "$count tests failed" >&2
  exit 1
fi

status=0
summary=()
while IFS=$'\t' read -r target name; do
  unset CROSSFADE_TEST_SCENARIO
  if [[ $target == *cluster && -f $scenarios ]]; then
    CROSSFADE_TEST_SCENARIO=$(sed -n 's/^failed //p' "$scenarios" | xargs)
    export CROSSFADE_TEST_SCENARIO
  fi
  echo "once more, alone: $name ${CROSSFADE_TEST_SCENARIO:-}"
  # shellcheck disable=SC2086 # a target is two words
  if cargo test --locked $target -- --exact "$name" </dev/null 2>&1 | tee "$output" &&
    grep -q '^test result: ok. 1 passed' "$output"; then
    summary+=("passed only the second time: $name ${CROSSFADE_TEST_SCENARIO:-}")
  else
    summary+=("failed twice: $name ${CROSSFADE_TEST_SCENARIO:-}")
    status=1
  fi
done <<<"$failed"
printf '%s\n' "${summary[@]}"
exit "$status"
