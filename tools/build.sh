#!/usr/bin/env bash
# build.sh FOLDER TARGET [CMAKE OPTION…] — configures FOLDER when that is needed, and builds TARGET there.
#
# Quick when nothing changed: CMake runs again only when FOLDER is new or the options are not those of the
# last call.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.deps/venv/bin:$PATH"
folder=$1 target=$2
shift 2

if ! command -v cmake >/dev/null; then
    echo "build.sh: CMake is missing. Run tools/setup.sh, or install it: apt-get (or pip) install cmake" >&2
    exit 1
fi

# A folder keeps the generator that it was made with.
generator=()
if [ ! -e "$folder/CMakeCache.txt" ] && [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then
    generator=(-G Ninja)
fi

asked="$folder/options-asked"
if [ ! -e "$folder/CMakeCache.txt" ] || [ "$(cat "$asked" 2>/dev/null)" != "$*" ]; then
    cmake -S . -B "$folder" "${generator[@]}" "$@"
    echo "$*" >"$asked"
fi
cmake --build "$folder" --target "$target" -j "${JOBS:-2}"
