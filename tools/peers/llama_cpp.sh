#!/usr/bin/env bash
# llama_cpp.sh — builds llama.cpp, the peer of the language model's checks and benches, and prints its folder.
#
# The source comes from PyPI: the distribution of llama-cpp-python carries llama.cpp and a Python description of its C
# interface, so a version is fixed by one number and one hash. It is run beside us and read by nobody: nothing of it is
# compiled into Trunnion. Made once (six minutes on two processors) in .deps/peers, which git ignores; TRUNNION_PEERS
# names another folder. There, llama.cpp-VERSION holds bin/ (llama-bench, llama-completion, llama-perplexity,
# llama-tokenize, llama-server, the shared libraries) and python/ with llama_cpp, and conversion and gguf, which make GGUF
# files of folders.
set -eu
cd "$(dirname "$0")/../.."

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
peers=${TRUNNION_PEERS:-$PWD/.deps/peers}
folder=$peers/llama.cpp-$version
targets="llama llama-bench llama-completion llama-perplexity llama-tokenize llama-server"

say() { echo "llama_cpp.sh: $*" >&2; }

if [ -e "$folder/complete" ]; then
    echo "$folder"
    exit 0
fi

python=$PWD/.deps/venv/bin/python
[ -x "$python" ] || python=python3
work=$peers/work-llama.cpp-$version
archive=$peers/llama_cpp_python-$version.tar.gz
mkdir -p "$peers"

if [ ! -e "$archive" ]; then
    say "fetching llama-cpp-python $version from PyPI"
    "$python" -m pip download -q --no-deps --no-binary :all: -d "$peers" "llama-cpp-python==$version" >&2
fi
if ! echo "$sha256  $archive" | sha256sum --check --status; then
    say "$archive is not the file that the checks were made with: expected SHA-256 $sha256. Remove it and try again."
    exit 1
fi

rm -rf "$work" "$folder"
mkdir -p "$work" "$folder"
tar -xzf "$archive" -C "$work" --strip-components 1

# Everything that needs a network, a graphics stack or a web page stays out; the processor's own instructions are in.
say "building in $work: log in $work/build.log"
options="-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON
         -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF
         -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
         -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
if ! { cmake -S "$work/vendor/llama.cpp" -B "$work/build" $options &&
    nice -n 10 cmake --build "$work/build" -j "${JOBS:-2}" --target $targets; } >"$work/build.log" 2>&1; then
    tail -n 30 "$work/build.log" >&2
    say "the build failed; the whole log: $work/build.log"
    exit 1
fi

cp -a "$work/build/bin" "$folder/bin"
mkdir "$folder/python"
cp -a "$work/llama_cpp" "$work/vendor/llama.cpp/conversion" "$work/vendor/llama.cpp/gguf-py/gguf" "$folder/python/"
cp "$work/vendor/llama.cpp/LICENSE" "$folder/"
rm -rf "$work"
touch "$folder/complete"
echo "$folder"
