"""process.py — the Python and the processes that the suites against PyTorch run in."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODULES = {"pillow": "PIL"}  # packages whose module has another name


def in_peers_python(*packages):
    """Runs this file with the Python that has PyTorch and these packages, unless this is that one. Where PyPI cannot be
    reached, the suite is skipped."""
    wanted = ("torch", *packages)
    missing = [name for name in wanted if importlib.util.find_spec(MODULES.get(name, name)) is None]
    if not missing:
        return
    if not os.environ.get("TRUNNION_IN_PEERS"):
        python = subprocess.run([str(ROOT / "tools/peers/python.sh"), *packages], stdout=subprocess.PIPE, text=True)
        if python.returncode == 0:
            os.environ["TRUNNION_IN_PEERS"] = "1"
            path = python.stdout.split()[-1]
            os.execv(path, [path, *sys.argv])
    print(f"skipped: no {', no '.join(missing)}: PyPI cannot be reached\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)


def in_a_process(work):
    """work() → JSON, in a forked process. Returns (what it gave or None, how the process ended)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            with os.fdopen(writing, "w") as out:
                json.dump(work(), out)
            code = 0
        except BaseException as e:  # the parent must learn of it
            print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
            if "--verbose" in sys.argv:
                import traceback
                traceback.print_exc()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as given:
        text = given.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return (json.loads(text) if code == 0 else None), code
