#!/usr/bin/env bash
# build.sh FOLDER TARGET [CMAKE OPTION…] — configures FOLDER if that is needed, and builds TARGET there (several: one word
# with spaces between them).
#
# CMake runs again if FOLDER is new, if the options differ from those of the last call, or if the compiler or the
# packages that pkg-config knows have changed since: what tools/setup.sh installs later must reach a folder that was
# configured without it.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.deps/venv/bin:$PATH"
folder=$1 target=$2
shift 2

if ! command -v cmake >/dev/null; then
    echo "build.sh: CMake is missing. Run tools/setup.sh, or install it: apt-get (or pip) install cmake" >&2
    exit 1
fi

# configured_from OPTION… — prints everything that a configured folder depends on.
configured_from() {
    echo "options: $*"
    "${CC:-cc}" --version 2>/dev/null | head -n 1
    cmake --version | head -n 1
    pkg-config --list-package-names 2>/dev/null || pkg-config --list-all 2>/dev/null | cut -d ' ' -f 1 | sort
    return 0
}

# One build at a time in a folder: suites of check.sh run beside each other.
mkdir -p "$folder"
if command -v flock >/dev/null; then
    exec 9>"$folder/build.lock"
    flock 9
fi

# A folder keeps the generator that it was made with.
generator=()
if [ ! -e "$folder/CMakeCache.txt" ] && [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then
    generator=(-G Ninja)
fi

# CMake caches what pkg-config answered: -U drops these answers and nothing that a user has set.
record="$folder/configured-from.txt"
now=$(configured_from "$@")
if [ ! -e "$folder/CMakeCache.txt" ] || [ "$(cat "$record" 2>/dev/null)" != "$now" ]; then
    cmake -S . -B "$folder" "${generator[@]}" -U '__pkg_config_*' -U 'pkgcfg_lib_*' -U 'TN_*_ARCHIVE' "$@"
    echo "$now" >"$record"
fi
cmake --build "$folder" --target $target -j "${JOBS:-2}"
