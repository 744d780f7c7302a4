#!/usr/bin/env bash
# install.sh BUILD — an installed Trunnion is enough: a program finds it through CMake and through pkg-config, with the
# shared libraries and with the static ones, and after the installed tree was moved.
set -eu
cd "$(dirname "$0")/../.."
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tools/build.sh "$build" all "-DTRUNNION_WERROR=${WERROR:-ON}"
cmake --install "$build" --prefix "$work/installed" >"$work/install.log"
mv "$work/installed" "$work/moved"
library=$(dirname "$(find "$work/moved" -name 'libtrunnion.so')")

cmake -S tests/consumer -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/cmake"
for program in with_shared with_static text_with_shared text_with_static; do
    LD_LIBRARY_PATH=$library "$work/cmake/$program"
done

# with_pkg_config PACKAGE SOURCE ARCHIVE… — the same through pkg-config; for a static program the archives are named.
export PKG_CONFIG_PATH=$library/pkgconfig
with_pkg_config() {
    local package=$1 source=$2
    shift 2
    ${CC:-cc} "$source" -o "$work/shared" $(pkg-config --cflags --libs "$package")
    LD_LIBRARY_PATH=$library "$work/shared"
    ${CC:-cc} "$source" -o "$work/static" $(pkg-config --cflags "$package") "$@" \
        $(pkg-config --libs --static "$package" | sed 's/-ltrunnion\(-text\)\?//g')
    "$work/static"
}
with_pkg_config trunnion tests/consumer/main.c "$library/libtrunnion.a"
with_pkg_config trunnion-text tests/consumer/text.c "$library/libtrunnion-text.a" "$library/libtrunnion.a"
echo "8 passed, 0 failed, 0 skipped"
