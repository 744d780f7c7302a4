#!/usr/bin/env bash
# headers.sh — every public header stands on its own: alone, in strict C17 and in C++11 and C++17, without a warning.
# Declarations that end with their block (TN_SCOPE) work in C++ without the attribute cleanup; C refuses them there.
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
# ---- a compiler without the attribute cleanup --------------------------------------------------------------------------

without=(-DTN_HAS_CLEANUP=0 "${strict[@]}" -Iinclude)
# promise DESCRIPTION COMMAND… — reads the program from standard input.
promise() {
    local what=$1
    shift
    if said=$("$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$what: $said"
    fi
}
refuses() { "$@" 2>&1 | grep -q "unknown type name .this.\|attribute cleanup"; }
runs() {
    local program
    program=$(mktemp) && "$@" -o "$program" - && "$program"
    local status=$?
    rm -f "$program"
    return $status
}
includes='#include "trunnion/amp.h"
#include "trunnion/autograd.h"'
used='int main(void) { TN_SCOPE; TN_NO_GRAD; TN_AUTOCAST(TN_F16); return 0; }'
by_hand='void f(void); void f(void) { tn_scope s = tn_scope_begin(); tn_scope_end(&s); }'
nested='static int depth, most;
tn_scope tn_scope_begin(void) { depth++; most = depth > most ? depth : most; return tn_scope(); }
void tn_scope_end(tn_scope *) { depth--; }
static int leave(int i) {
    TN_SCOPE;
    if (i == 1) return depth;
    TN_SCOPE;
    return depth;
}
int main() {
    for (int i = 0; i < 4; i++) { TN_SCOPE; if (i == 1) continue; if (i == 3) break; if (leave(i) != 3 || depth != 1) return 1; }
    return depth != 0 || most != 3;
}'
promise "TN_SCOPE in C without the attribute is an error that says so" \
    refuses "${CC:-cc}" -x c "${without[@]}" -fsyntax-only - <<<"$includes
$used"
promise "scopes by hand in C" "${CC:-cc}" -x c "${without[@]}" -fsyntax-only - <<<"#include \"trunnion/amp.h\"
$by_hand"
if command -v "${CXX:-c++}" >/dev/null; then
    promise "all declarations in C++" "${CXX:-c++}" -std=c++11 -x c++ "${without[@]}" -Wno-unused-variable -fsyntax-only - \
        <<<"$includes
$used"
    promise "nested scopes end in C++" runs "${CXX:-c++}" -std=c++11 -x c++ "${without[@]}" <<<"#include \"trunnion/tensor.h\"
$nested"
else
    skipped=$((skipped + 2))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
