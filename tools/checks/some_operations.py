"""some_operations.py PROGRAM N [SEED] — the names of one operation in N that `PROGRAM certify` knows, for its option --only.

They are those from SEED modulo N on, in alphabetical order, so N seeds name all operations.
"""

import json
import subprocess
import sys


def names(program, n, seed):
    listed = subprocess.run([program, "certify", "--device", "cpu", "--sample", "1000000", "--json"], check=True,
                            capture_output=True, text=True)
    return sorted(json.loads(listed.stdout)["ops"])[seed % n::n]


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]) or len(sys.argv) < 3:
        sys.exit(__doc__)
    print(",".join(names(sys.argv[1], int(sys.argv[2]), int((sys.argv + ["1"])[3]))))
