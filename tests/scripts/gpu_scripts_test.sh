#!/usr/bin/env bash
# gpu_scripts_test.sh SCRIPTS COMMAND: scripts/gpu/* in a bundle of the real command and in one of
# stand-ins that see a GPU.
set -euo pipefail

scripts=$1
command=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# expect TITLE STATUS PATTERN COMMAND...: the exit status, and a pattern that a line must match.
expect() {
    local title=$1 wanted=$2 pattern=$3 status=0 output
    shift 3
    output=$("$@" 2>&1) || status=$?
    if [[ "$status" -ne "$wanted" ]] || ! grep -qE -- "$pattern" <<<"$output"; then
        printf 'FAILED: %s: status %s, wanted %s and a line like /%s/ in:\n%s\n' \
            "$title" "$status" "$wanted" "$pattern" "$output"
        failures=$((failures + 1))
    fi
}

# expect_last TITLE PATTERN COMMAND...: the same for the last line, whatever the status.
expect_last() {
    local title=$1 pattern=$2 output
    shift 2
    output=$("$@" 2>&1) || true
    if ! grep -qE -- "$pattern" <<<"${output##*$'\n'}"; then
        printf 'FAILED: %s: the last line is not like /%s/ in:\n%s\n' "$title" "$pattern" "$output"
        failures=$((failures + 1))
    fi
}

# stand_in FILE LINES...: a program that runs these lines of bash.
stand_in() {
    local file=$1
    shift
    printf '%s\n' '#!/usr/bin/env bash' "$@" >"$file"
    chmod +x "$file"
}

make_bundle() {
    mkdir -p "$1/bin" "$1/scripts"
    cp -r "$scripts" "$1/scripts/gpu"
}

# ---- the real command, no GPU to be seen
export CUDA_VISIBLE_DEVICES=
bare="$folder/bare"
make_bundle "$bare"
ln -s "$command" "$bare/bin/gcmoe"
stand_in "$bare/bin/test_cuda" 'exit 1'
stand_in "$bare/bin/libgcmoe_torch_probe.so" 'exit 1'
for name in suite bench profile sanitize; do
    expect "$name --help" 0 "^usage: scripts/gpu/$name" "$bare/scripts/gpu/$name" --help
    expect "$name --wrong" 2 'no option is called --wrong' "$bare/scripts/gpu/$name" --wrong
    expect "$name without a GPU" 77 "^$name: no GPU here: devices" "$bare/scripts/gpu/$name"
done
expect "a number is wanted" 2 'must be a number of tokens' "$bare/scripts/gpu/profile" --tokens x

# ---- stand-ins that see a GPU
seen="$folder/seen"
make_bundle "$seen"
# shellcheck disable=SC2016 # the stand-ins expand it
info='if [[ $1 == info ]]; then echo "gcmoe 0"; echo "device     H200, 132 SMs"; exit; fi'
# shellcheck disable=SC2016
stand_in "$seen/bin/gcmoe" "$info" 'echo "$* connections $CUDA_DEVICE_MAX_CONNECTIONS"' \
    'echo "376 passed"' 'exit "${CHECK_STATUS:-0}"'
# shellcheck disable=SC2016
stand_in "$seen/bin/test_cuda" \
    'echo "V4.1-Flash, 48 experts, 8 tokens: 12.5 us, floor 10.0 us (30 experts), 1.25"' \
    'echo "[  PASSED  ] ${PASSED:-3} tests."' 'exit "${TEST_STATUS:-0}"'
mkdir "$folder/bin"
# shellcheck disable=SC2016
stand_in "$folder/bin/python3" 'echo "probe $*"' 'exit "${TORCH_STATUS:-0}"'
stand_in "$seen/bin/libgcmoe_torch_probe.so" 'exit 1'
PATH="$folder/bin:$PATH"
suite="$seen/scripts/gpu/suite"
expect "suite passes" 0 '^check shared +pass +[0-9]+ +376 passed$' "$suite"
expect_last "the table is last" '^check many tokens +pass' "$suite"
expect "PyTorch" 0 '^torch capture +pass +[0-9]+ +probe .*torch_capture.py .*_probe.so$' "$suite"
expect "no PyTorch" 0 '^torch capture +skip' env TORCH_STATUS=77 "$suite"
expect "PyTorch's capture fails" 1 '^torch capture +FAIL' env TORCH_STATUS=1 "$suite"
expect "many tokens" 0 '^check .*--suite routed --case v4.1-flash-t256 --tokens 8192 ' "$suite"
expect "many tokens fail" 1 '^check many tokens +FAIL' env CHECK_STATUS=1 "$suite"
expect "a check that ends with 77 failed" 1 '^check routed +FAIL' env CHECK_STATUS=77 "$suite"
expect "eight virtual ranks" 0 'check --backend cuda --virtual-ranks 8 --suite routed' "$suite"
expect "queues" 0 'connections 32' "$suite"
expect "a check fails" 1 '^check routed +FAIL' env CHECK_STATUS=1 "$suite"
expect "a test fails, the others run" 1 '^check routed +pass' env TEST_STATUS=1 "$suite"
expect "a failed test is seen" 1 '^test_cuda +FAIL' env TEST_STATUS=1 "$suite"
expect "tests that skipped are no pass" 0 '^test_cuda +skip' env PASSED=0 "$suite"
expect_last "quick" '^test_cuda +pass' "$suite" --quick
bench="$seen/scripts/gpu/bench"
points='[^ ]*/points.jsonl'
expect "figures" 0 "^bench --out $points --tokens 8 connections 32\$" "$bench" -- --tokens 8
expect_last "the joined table" "^probe -B .*/scripts/bench_table.py $points\$" "$bench"
expect_last "JSON stays the last line" '^376 passed$' "$bench" -- --json
expect "the loop has no points to join" 0 '^bench --loop connections 32$' "$bench" -- --loop
expect "an own file" 0 '^bench --out mine.jsonl connections 32$' "$bench" -- --out mine.jsonl
expect "bench fails" 1 '^bench ' env CHECK_STATUS=1 "$bench"
# shellcheck disable=SC2016
stand_in "$folder/ncu" 'echo "ncu $*"'
profile="$seen/scripts/gpu/profile"
serial='--clock-control none .*gcmoe bench --launch serial .* --tokens 8 --json$'
expect "profile" 0 "$serial" env NCU="$folder/ncu" "$profile" --tokens 8 -- --json
expect "no ncu" 2 'no ncu' env NCU="$folder/gone" "$profile"

# shellcheck disable=SC2016
stand_in "$folder/sanitizer" 'echo "sanitizer $*"' \
    'echo "========= ERROR SUMMARY: ${ERRORS:-0} errors"' 'exit "${SANITIZER_STATUS:-0}"'
sanitize="$seen/scripts/gpu/sanitize"
export SANITIZER="$folder/sanitizer"
serial='gcmoe run .*--launch serial .*--row-block 16 --launches 2$'
expect "sanitize" 0 "^sanitizer --tool racecheck --error-exitcode 99 .*$serial" "$sanitize"
expect "a trace in a folder that goes" 0 'row-block 16 --trace /.*/trace.json$' "$sanitize"
found='ERROR SUMMARY: 0 errors$'
expect_last "all tools" "^synccheck +chunk factors +pass +[0-9]+ +$found" "$sanitize"
unknown='^racecheck +32 rows, shared +skip +0 +see --help$'
expect "what racecheck cannot know" 0 "$unknown" "$sanitize"
expect_last "one tool" '^memcheck +chunk factors +pass' "$sanitize" memcheck
expect "something found" 1 '^initcheck +16 rows +FAIL +[0-9]+ +ERROR SUMMARY: 3 errors$' \
    env SANITIZER_STATUS=99 ERRORS=3 "$sanitize"
expect "no such tool" 2 'no tool is called leakcheck' "$sanitize" leakcheck
expect "no sanitizer" 2 'no compute-sanitizer' env SANITIZER="$folder/gone" "$sanitize"

printf '%s failures\n' "$failures"
[[ "$failures" -eq 0 ]]
