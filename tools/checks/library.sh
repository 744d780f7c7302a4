#!/usr/bin/env bash
# library.sh BUILD — what the built library promises its users: it needs only the C library, it is small, its names
# cannot clash with theirs, and nothing in it can end their process.
set -u
cd "$(dirname "$0")/../.."
build=$1
shared=$build/libtrunnion.so
static=$build/libtrunnion.a
size_limit=1000000
passed=0 failed=0

# verdict NAME FAULTS — one promise is kept when no fault was found.
verdict() {
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        echo "ok: $1"
    else
        failed=$((failed + 1))
        printf 'not ok: %s\n%s\n' "$1" "$2"
    fi
}

for file in "$shared" "$static"; do
    if [ ! -e "$file" ]; then
        echo "$file is not there"
        exit 1
    fi
done

# The loader itself is named where thread-local storage is used; it is part of the C library.
needed=$(readelf -dW "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
verdict "needs libc, libm, libdl and libpthread at most" \
    "$(grep -vE '^(lib(c|m|dl|pthread)\.so|ld-linux|ld-musl|libc\.musl)' <<<"$needed" | sed '/^$/d; s/^/  needs /')"

soname=$(readelf -dW "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
verdict "is called libtrunnion.so.0 by its users" "$([ "$soname" = libtrunnion.so.0 ] || echo "  SONAME is $soname")"

stripped=$build/check/libtrunnion.stripped
mkdir -p "$build/check"
strip -o "$stripped" "$shared"
size=$(stat -c %s "$stripped")
verdict "is smaller than $size_limit bytes, stripped ($size)" "$([ "$size" -lt $size_limit ] || echo "  $size bytes")"

exported=$(nm -D --defined-only --format=posix "$shared" | cut -d' ' -f1)
verdict "exports names that begin with tn_ alone ($(wc -w <<<"$exported"))" \
    "$(grep -v '^tn_' <<<"$exported" | sed '/^$/d; s/^/  exports /')"

# A static library shares one space of names with the program that links it, hidden visibility or not.
global=$(nm -g --defined-only --format=posix "$static" 2>/dev/null | awk 'NF > 1 { print $1 }' | sort -u)
verdict "has no global name without tn_ or kir_ in the static library ($(wc -w <<<"$global"))" \
    "$(grep -v '^\(tn\|kir\)_' <<<"$global" | sed '/^$/d; s/^/  defines /')"

# Looked for in the static library, which holds also what the linker left out of the shared one.
undefined=$(nm -u --format=posix "$static" 2>/dev/null | awk '{ print $1 }' | sort -u)
verdict "calls nothing that ends the process" \
    "$(grep -xE 'abort|exit|quick_exit|__assert_fail' <<<"$undefined" | sed 's/^/  calls /')"

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
