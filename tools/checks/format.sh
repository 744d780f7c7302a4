#!/usr/bin/env bash
# format.sh — every C file that is not generated is as `make format` leaves it. Other versions of clang-format than 14
# break lines elsewhere.
set -eu
cd "$(dirname "$0")/../.."
tool=
for name in clang-format-14 clang-format; do
    if [ -z "$tool" ] && "$name" --version 2>/dev/null | grep -q 'version 14\.'; then tool=$name; fi
done
if [ -z "$tool" ]; then
    echo "skipped: clang-format 14 is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
git ls-files -z '*.c' '*.h' ':!src/gen' ':!tests/golden' | xargs -0 -n 100 -P "${JOBS:-2}" "$tool" --dry-run -Werror
