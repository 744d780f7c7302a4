#!/usr/bin/env bash
# libfuzzer.sh BUILD 'CMAKE OPTIONS' SECONDS RUNS — the fuzzers for longer, each RUNS inputs in at most SECONDS, times
# PATIENCE of the environment, with clang's coverage-guided search where there is a clang that brings it.
set -eu
cd "$(dirname "$0")/../.."
build=$1 options=$2 seconds=$(($3 * ${PATIENCE:-1})) runs=$4
if command -v clang >/dev/null; then
    export CC=clang
else
    echo "skipped: libFuzzer, there is no clang; mutations without coverage run instead"
fi
tools/build.sh "$build" fuzzers $options
python3 tools/checks/programs.py "$build" fuzzers --fuzz "$seconds" --runs "$runs"
