#!/usr/bin/env bash
# python.sh [PACKAGE…] — makes a Python that has the peers of bench/compare.py, and prints its path.
#
# Each PACKAGE is installed too if it is missing: the suite opinfo needs expecttest beside PyTorch.
#
# PyTorch, OpenBLAS and oneDNN come from PyPI by name, into a virtual environment in .deps/peers, which git ignores
# (TRUNNION_PEERS names another folder): once, half a gigabyte to fetch and two on disk. Peers to run, nothing of them is
# read or compiled in. A package that cannot be had is told, and its rows say so: the others are measured.
set -eu
cd "$(dirname "$0")/../.."

peers=${TRUNNION_PEERS:-$PWD/.deps/peers}
venv=$peers/venv
packages="numpy torch scipy-openblas32 onednn-cpu-gomp"

say() { echo "python.sh: $*" >&2; }

if [ ! -x "$venv/bin/python" ]; then
    say "making $venv: $packages from PyPI"
    mkdir -p "$peers"
    python3 -m venv "$venv" >&2
    for package in $packages; do
        "$venv/bin/python" -m pip install -q "$package" >&2 || say "$package could not be fetched; its rows will say so"
    done
fi
for package in "$@"; do
    "$venv/bin/python" -m pip show -q "$package" >/dev/null 2>&1 && continue
    "$venv/bin/python" -m pip install -q "$package" >&2 || say "$package could not be fetched"
done
echo "$venv/bin/python"
