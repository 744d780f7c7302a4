"""new_backend.py NAME [FOLDER] — begins a backend: a folder with a driver that works, to be turned into yours.

The driver is a copy of examples/backend/driver.c under the new name: it compiles kernels with the system's C compiler and
runs them on this machine. `make` builds it, `make check` runs Trunnion's suites on it; replace one function after the other
by calls of your machine and keep them green. docs/new-backend.md is the guide.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "examples" / "backend" / "driver.c"

MAKEFILE = """\
# Builds the backend {name} and runs Trunnion's suites on it. TRUNNION: the folder of Trunnion's sources, built with `make`.
TRUNNION ?= {root}
CFLAGS ?= -std=c17 -O2 -Wall -Wextra

lib{name}.so: {name}.c
\t$(CC) $(CFLAGS) -shared -fPIC -fvisibility=hidden -I $(TRUNNION)/include -o $@ $<

# The driver's suite, and a sample of every operation, forward and backward, against its definition. --strict: what the
# device cannot compute counts as failed; leave it out for one that lacks a type.
check: $(TRUNNION)/build/trunnion lib{name}.so
\tTRUNNION_DRIVERS=$(CURDIR)/lib{name}.so $(TRUNNION)/build/trunnion certify --device {name} --sample 20 --strict

$(TRUNNION)/build/trunnion:
\t@echo "$@ is not there: build Trunnion first (make -C $(TRUNNION)), or name another folder with TRUNNION="; exit 1

clean:
\trm -f lib{name}.so

.PHONY: check clean
"""


def fail(text):
    print(f"new_backend: {text}", file=sys.stderr)
    return 1


def renamed(source, name):
    """The driver under its new name; its head speaks of the example and is replaced."""
    head, body = source.split("*/\n", 1)
    body = body.replace('"cc:0: ', f'"{name}:0: ').replace('"cc:%d does not exist, there is cc:0"',
                                                          f'"{name}:%d does not exist, there is {name}:0"')
    body = body.replace('"cc: built', f'"{name}: built').replace("trunnion-cc-", f"trunnion-{name}-")
    body = body.replace('.name = "cc"', f'.name = "{name}"').replace('.title = "C compiler"', f'.title = "{name}"')
    words = (f"/* {name}.c — the backend {name} for Trunnion.\n *\n"
             " * It works as it is: kernels are compiled with the system's C compiler. Replace one function after the\n"
             " * other by calls of your machine, and run `make check` after each. */\n")
    return words + body


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    name = sys.argv[1]
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else name)
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,19}", name):
        return fail(f"'{name}' is no name for a backend: small letters, digits and _, at most 20, a letter first")
    if folder.exists():
        return fail(f"'{folder}' is there already; name another folder")
    folder.mkdir(parents=True)
    (folder / f"{name}.c").write_text(renamed(SOURCE.read_text(), name))
    (folder / "Makefile").write_text(MAKEFILE.format(name=name, root=ROOT))
    print(f"{folder}/{name}.c and {folder}/Makefile are there; try: make -C {folder} check")
    return 0


if __name__ == "__main__":
    sys.exit(main())
