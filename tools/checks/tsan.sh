#!/usr/bin/env bash
# tsan.sh BUILD 'CMAKE OPTIONS' TEST… — the tests that run threads against each other, under the thread sanitizer.
set -eu
cd "$(dirname "$0")/../.."
build=$1 options=$2
shift 2
tools/build.sh "$build" "$*" $options

# The sanitizer needs the address space laid out as it expects; some kernels scatter it too widely.
fixed=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed=(setarch "$(uname -m)" -R)
fi
if [ $# = 0 ]; then
    echo "skipped: there is no test of threads"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
TSAN_OPTIONS=halt_on_error=1 "${fixed[@]}" python3 tools/checks/programs.py "$build" tests --each 300 "$@"
