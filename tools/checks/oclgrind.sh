#!/usr/bin/env bash
# oclgrind.sh BUILD [--all] — kernels on oclgrind, which interprets OpenCL and sees data races, accesses out of bounds and values
# that nobody wrote.
#
# First three kernels that are wrong on purpose have to be found out, or the rest would prove nothing. Then programs run
# that have to leave its log empty: oclgrind itself never fails. It interprets, so shapes are small, and the templates
# take a minute: with --all only.
set -u
cd "$(dirname "$0")/../.."
build=$1 programs=4 firsts=0
[ "${2:-}" != --all ] || programs=12 firsts="0 12"
library=${OCLGRIND_LIBRARY:-/usr/lib/oclgrind/liboclgrind-rt.so}
passed=0 failed=0

if [ ! -e "$library" ]; then
    echo "skipped: oclgrind is not here ($library); install the package oclgrind"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

logs=$build/check/oclgrind
rm -rf "$logs"
mkdir -p "$logs/cache"
# Without optimisation: its interpreter does not know all that clang makes of simple code, and what is dropped as unused
# would not be seen.
export TRUNNION_OPENCL_LIB=$library TRUNNION_CACHE=$PWD/$logs/cache
export OCLGRIND_DATA_RACES=1 OCLGRIND_BUILD_OPTIONS=-O0

# run NAME COMMAND… — runs it; what oclgrind finds is in $logs/NAME.found, all words in $logs/NAME.log.
run() {
    local name=$1
    shift
    : >"$logs/$name.found"
    OCLGRIND_LOG=$logs/$name.found timeout 300 "$@" >"$logs/$name.log" 2>&1
}

verdict() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $2"
        tail -n 20 "$logs/$3.log" "$logs/$3.found" | sed 's/^/  | /'
    fi
}

# wrong NAME WORDS — the seeded fault has to be found.
wrong() {
    run "$1" "$build/test_opencl" "--$1" && grep -q "$2" "$logs/$1.found"
    verdict $? "the fault \"$1\" in a kernel was not found" "$1"
}

# clean NAME COMMAND… — nothing may be found, and the program must succeed.
clean() {
    local name=$1 code
    run "$@"
    code=$?
    [ $code = 0 ] && [ ! -s "$logs/$name.found" ]
    verdict $? "$name: ended with $code, $(grep -c '^[A-Z]' "$logs/$name.found") findings" "$name"
}

export OCLGRIND_UNINITIALIZED=1
wrong race 'data race'
wrong bounds 'Invalid write'
wrong uninitialised 'Uninitialized value'
# It loses track of what the host writes at an offset into a buffer, which the pool does once a process has used much
# memory. So few programs run in a process here, and below it does not look for unwritten values.
for first in $firsts; do
    clean "plain-$first" "$build/test_render" --plain "$first" "$programs"
    clean "group-$first" "$build/test_render" --group "$first" "$programs"
    clean "rows-$first" "$build/test_render" --rows $((first / 2)) $((programs / 2))
done

unset OCLGRIND_UNINITIALIZED
[ $programs -lt 12 ] || clean templates env TRUNNION_TEST_DEVICE=opencl "$build/test_workgroup_kernels" --small
clean driver "$build/test_opencl"

[ $failed = 0 ] && echo "ran on: oclgrind (data races, bounds, unwritten values in kernels)"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
