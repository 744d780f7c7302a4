#!/usr/bin/env bash
# headers.sh — every public header stands on its own: alone, in strict C17 and in C++11 and C++17, without a warning.
set -u
cd "$(dirname "$0")/../.."
strict=(-Wall -Wextra -Wpedantic -Werror)
passed=0 failed=0 skipped=0

# compiles LANGUAGE HEADER COMPILER FLAG…
compiles() {
    local language=$1 header=$2
    shift 2
    if echo "#include \"$header\"" | "$@" -x "$language" "${strict[@]}" -fsyntax-only -Iinclude -; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "^ $header does not compile with: $*"
    fi
}

for path in include/trunnion/*.h; do
    header=${path#include/}
    compiles c "$header" "${CC:-cc}" -std=c17 -Wstrict-prototypes
    if command -v "${CXX:-c++}" >/dev/null; then
        compiles c++ "$header" "${CXX:-c++}" -std=c++11
        compiles c++ "$header" "${CXX:-c++}" -std=c++17
    else
        skipped=$((skipped + 2))
        echo "skipped: $header in C++: there is no C++ compiler (install g++)"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
