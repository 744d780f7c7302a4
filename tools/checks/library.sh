#!/usr/bin/env bash
# library.sh BUILD — what the built libraries promise their users: libtrunnion needs only the C library, libtrunnion-text
# beside it PCRE2 and utf8proc; their names cannot clash with the users', and nothing in them can end the process. Sizes are
# reported; what is larger than its soft limit is said, and does not fail.
set -u
cd "$(dirname "$0")/../.."
build=$1
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

# report_size NAME FILE LIMIT — prints the stripped size of FILE beside its soft limit.
report_size() {
    local stripped=$build/check/$1.stripped size
    mkdir -p "$build/check"
    strip -o "$stripped" "$2"
    size=$(stat -c %s "$stripped")
    echo "size: $1 $size bytes stripped, soft limit $3$([ "$size" -lt "$3" ] || echo ": LARGER")"
}

# check_library NAME BYTES NEEDED GLOBAL — its promises: needs at most the libraries that NEEDED (a pattern) names; global
# names of the static library match GLOBAL. Its size is reported beside the soft limit BYTES.
check_library() {
    local name=$1 size_limit=$2 may_need=$3 may_define=$4
    local shared=$build/$name.so static=$build/$name.a file
    for file in "$shared" "$static"; do
        if [ ! -e "$file" ]; then
            verdict "$name is built" "  $file is not there"
            return
        fi
    done

    # The loader itself is named where thread-local storage is used; it is part of the C library.
    local needed
    needed=$(readelf -dW "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    verdict "$name needs $may_need at most" \
        "$(grep -vE "^(lib($may_need)\.so|ld-linux|ld-musl|libc\.musl)" <<<"$needed" | sed '/^$/d; s/^/  needs /')"

    local soname
    soname=$(readelf -dW "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
    verdict "$name is called $name.so.0 by its users" "$([ "$soname" = "$name.so.0" ] || echo "  SONAME is $soname")"

    report_size "$name" "$shared" "$size_limit"

    local exported
    exported=$(nm -D --defined-only --format=posix "$shared" | cut -d' ' -f1)
    verdict "$name exports names that begin with tn_ alone ($(wc -w <<<"$exported"))" \
        "$(grep -v '^tn_' <<<"$exported" | sed '/^$/d; s/^/  exports /')"

    # A static library shares one space of names with the program that links it, hidden visibility or not.
    local global
    global=$(nm -g --defined-only --format=posix "$static" 2>/dev/null | awk 'NF > 1 { print $1 }' | sort -u)
    verdict "$name has global names of the form $may_define alone in the static library ($(wc -w <<<"$global"))" \
        "$(grep -v "^$may_define" <<<"$global" | sed '/^$/d; s/^/  defines /')"

    # Looked for in the static library, which holds also what the linker left out of the shared one.
    local undefined
    undefined=$(nm -u --format=posix "$static" 2>/dev/null | awk '{ print $1 }' | sort -u)
    verdict "$name calls nothing that ends the process" \
        "$(grep -xE 'abort|exit|quick_exit|__assert_fail' <<<"$undefined" | sed 's/^/  calls /')"
}

check_library libtrunnion 2500000 'c|m|dl|pthread' '\(tn\|kir\|onnx\)_'
check_library libtrunnion-text 300000 'c|m|dl|pthread|trunnion|pcre2-8|utf8proc' 'tn_'

report_size trunnion "$build/trunnion" 4500000 # the command, with the libraries in it

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
