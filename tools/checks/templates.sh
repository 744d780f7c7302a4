#!/usr/bin/env bash
# templates.sh BUILD — the chat templates of real models, as a published package carries them, rendered by jinja2 and by
# libtrunnion-text over the same conversations: every text has to be the same, and what one refuses the other has to refuse.
# The package is read for its *.jinja files alone; nothing of it is installed or run.
set -eu
cd "$(dirname "$0")/../.."
build=$1
package="axolotl==0.19.0"
venv=.deps/templates
wheels=$build/check/templates

if ! { [ -x $venv/bin/python ] || python3 -m venv $venv; } || ! $venv/bin/python -m pip install -q jinja2==3.1.6 ||
    ! $venv/bin/python -m pip download -q --no-deps --dest "$wheels" "$package"; then
    echo "skipped: templates of real models, pip could not fetch jinja2 and $package"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
$venv/bin/python tools/text/ref_template.py --compare "$build/libtrunnion-text.so" "$wheels"/*.whl
