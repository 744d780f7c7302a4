#!/usr/bin/env bash
# minimal.sh BUILD WHOLE — every driver and engine can be left out, and the second library too: the build with none of them
# works, the listing names each with "not built" as its reason, and the subcommands of the second library say what is
# missing. The processor stays. Objects whose sources do not look at what is built in come from WHOLE, a build with
# everything and the same flags. Last, the ways for systems without processes compile.
set -eu
cd "$(dirname "$0")/../.."
build=$1 whole=$2
parts=$(sed -n 's/^set(TN_PARTS \(.*\))$/\1/p' CMakeLists.txt)
options=(-DTRUNNION_SHARED=OFF -DTRUNNION_TEXT=OFF "-DTRUNNION_WERROR=${WERROR:-ON}"
         "-DTRUNNION_OBJECTS_FROM=$(realpath "$whole")")
for part in $parts; do
    options+=("-DTRUNNION_$part=OFF")
done
tools/build.sh "$build" all "${options[@]}"
echo "built without $parts"
python3 tools/checks/command.py "$build" left-out $parts

# The second library's subcommands are listed; each fails and says what is missing.
words=$("$build/trunnion" tokenize -m model.gguf text 2>&1) && exit 1
grep -q 'requires the library trunnion-text' <<<"$words"

# Systems without processes and signals (WebAssembly) have their own ways in a few files; these compile here, too.
grep -rlE --include='*.c' '(TN|CLI)_HAS_PROCESSES' src cli | while read -r file; do
    "${CC:-cc}" -std=c17 -D_GNU_SOURCE -I. -Iinclude -Isrc -Wall -Wextra -Werror -DTN_HAS_PROCESSES=0 -DCLI_HAS_PROCESSES=0 \
        -fsyntax-only "$file"
done
