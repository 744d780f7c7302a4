#!/usr/bin/env bash
# demo.sh [BUILD FOLDER] — what Trunnion does, in a minute: the devices here, then two models trained from nothing.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.deps/venv/bin:$PATH"
trunnion=${1:-build}/trunnion

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

if [ ! -x "$trunnion" ]; then
    echo "demo: $trunnion is not there; run make first, and see whether it built the command" >&2
    exit 1
fi
python3 tools/digits.py
show "$trunnion" devices
show "$trunnion" train digits
show "$trunnion" train cartpole
