#!/usr/bin/env bash
# blas.sh BUILD — multiplies and factorizes with a real OpenBLAS, the one that tools/setup.sh fetched: it must be found and must run.
set -eu
cd "$(dirname "$0")/../.."
venv=.deps/venv
if [ ! -d $venv ]; then
    echo "blas.sh: $venv is missing; run tools/setup.sh check" >&2
    exit 1
fi
unset TRUNNION_OPENBLAS_LIB
VIRTUAL_ENV=$PWD/$venv TRUNNION_TEST_LIBRARY=openblas "$1/test_library"
VIRTUAL_ENV=$PWD/$venv "$1/test_device_settings"
