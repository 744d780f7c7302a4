#!/usr/bin/env bash
# install.sh BUILD — an installed Trunnion is enough: a program finds it through CMake and through pkg-config, with the
# shared library and with the static one, and after the installed tree was moved.
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
LD_LIBRARY_PATH=$library "$work/cmake/with_shared"
"$work/cmake/with_static"

export PKG_CONFIG_PATH=$library/pkgconfig
${CC:-cc} tests/consumer/main.c -o "$work/shared" $(pkg-config --cflags --libs trunnion)
LD_LIBRARY_PATH=$library "$work/shared"
${CC:-cc} tests/consumer/main.c -o "$work/static" $(pkg-config --cflags trunnion) "$library/libtrunnion.a" \
    $(pkg-config --libs --static trunnion | sed 's/-ltrunnion//')
"$work/static"
echo "4 passed, 0 failed, 0 skipped"
