# What scripts/gpu/* share; sourced, not run. Works in the bundle (bin/ beside scripts/) and in a
# checkout whose preset cuda is built.
# shellcheck shell=bash disable=SC2034

EXIT_USAGE=2
EXIT_NO_GPU=77 # what test runners call a skip

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -x "$root/bin/gcmoe" ]]; then
    gcmoe="$root/bin/gcmoe"
    test_cuda="$root/bin/test_cuda"
    torch_probe="$root/bin/libgcmoe_torch_probe.so"
    torch_capture="$root/scripts/torch_capture.py"
else
    gcmoe="$root/build/cuda/bin/gcmoe"
    test_cuda="$root/build/cuda/tests/test_cuda"
    torch_probe="$root/build/cuda/tests/libgcmoe_torch_probe.so"
    torch_capture="$root/tests/cuda/torch_probe/torch_capture.py"
fi

# Eight virtual ranks are sixteen concurrent kernels: with fewer queues some would wait for others
# that wait for them. Read by CUDA when it starts.
export CUDA_DEVICE_MAX_CONNECTIONS=32

bench_table="$root/scripts/bench_table.py"

say() { printf '== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit "$EXIT_USAGE"
}

need_programs() {
    local program
    for program in "$@"; do
        [[ -x "$program" ]] || die "$program is not here: ./dev bundle, or ./dev build cuda"
    done
}

# Ends the script with EXIT_NO_GPU where the driver counts no device.
need_gpu() {
    local devices
    devices=$("$gcmoe" info | grep '^device' || true)
    if ! grep -q '^device  ' <<<"$devices"; then
        printf '%s: no GPU here: %s\n' "$(basename "$0")" "${devices:-gcmoe info names none}"
        exit "$EXIT_NO_GPU"
    fi
    if "$gcmoe" info | grep -q '^ *cuda  *no'; then
        "$gcmoe" info | grep '^ *cuda  *no'
        exit "$EXIT_NO_GPU"
    fi
    printf '%s\n' "$devices"
}

# Rows of a table: add_row CELL...; print_table prints them in columns.
table_rows=()
add_row() {
    local IFS=$'\t'
    table_rows+=("$*")
}
print_table() {
    printf '%s\n' "${table_rows[@]}" | awk -F '\t' '
        {
            for (i = 1; i <= NF; ++i) {
                cell[NR, i] = $i
                if (length($i) > width[i]) width[i] = length($i)
            }
            if (NF > columns) columns = NF
        }
        END {
            for (row = 1; row <= NR; ++row) {
                line = ""
                for (i = 1; i <= columns; ++i) {
                    line = line sprintf("%-" (width[i] + 2) "s", cell[row, i])
                }
                sub(/ +$/, "", line)
                print line
            }
        }'
}
