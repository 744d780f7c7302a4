"""check_generated.py — generated files are committed; this sees that each is what its generator would write today.

Every tools/gen/gen_*.py takes --check: it compares instead of writing, says which file differs, and fails if one does.
"""

import pathlib
import subprocess
import sys

TOOLS = pathlib.Path(__file__).resolve().parent


def main():
    passed, failed = 0, 0
    for generator in sorted((TOOLS / "gen").glob("gen_*.py")):
        print(generator.name, flush=True)
        result = subprocess.run([sys.executable, str(generator), "--check"], cwd=TOOLS.parent)
        if result.returncode == 0:
            passed += 1
        else:
            failed += 1
            print(f"{generator.name} --check failed: run python3 tools/gen/{generator.name}, and look at the difference")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
