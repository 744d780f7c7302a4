"""backend.py BUILD [--all] — a backend outside of the library: begun by tools/new_backend.py, built alone, tried by the command.

It computes what is asked of it with nothing on the processor (--strict), its mistakes are found, and what is no driver is
listed with its reason. Of the cases of its operations one in SAMPLE is certified, with --all each.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OPERATIONS = "add,silu,softmax,matmul,layer_norm,embedding,cross_entropy"
SAMPLE = 12


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def add(self, good, text, words=""):
        self.passed += bool(good)
        self.failed += not good
        print(text if good else f"failed: {text}\n{words}", flush=True)


def run(*arguments, **environment):
    return subprocess.run(arguments, capture_output=True, text=True, env=os.environ | environment)


def begin(report, folder):
    """The folder of a new backend, its driver built; None when that fails."""
    made = run(sys.executable, str(ROOT / "tools" / "new_backend.py"), "mychip", str(folder / "mychip"))
    report.add(made.returncode == 0, "new_backend.py begins a backend", made.stderr)
    again = run(sys.executable, str(ROOT / "tools" / "new_backend.py"), "mychip", str(folder / "mychip"))
    report.add(again.returncode == 1 and "there already" in again.stderr, "it does not write over one", again.stderr)
    bad = run(sys.executable, str(ROOT / "tools" / "new_backend.py"), "My-Chip", str(folder / "other"))
    report.add(bad.returncode == 1 and "no name" in bad.stderr, "it refuses names that are none", bad.stderr)
    built = run("make", "-C", str(folder / "mychip"), "libmychip.so", "CFLAGS=-std=c17 -O2 -Wall -Wextra -Werror")
    report.add(built.returncode == 0, "the driver compiles alone", built.stderr)
    return folder / "mychip" / "libmychip.so" if built.returncode == 0 else None


def check_device(report, program, driver, cache, sample):
    here = {"TRUNNION_DRIVERS": str(driver), "TRUNNION_CACHE": str(cache)}
    listing = json.loads(run(program, "devices", "--json", **here).stdout)
    mine = [b for b in listing["backends"] if b["name"] == "mychip"]
    report.add(mine and mine[0]["available"], "it is listed")
    report.add(listing["recommended"] != "mychip:0", "it is not recommended: it is software")
    certified = run(program, "certify", "--device", "mychip", "--only", OPERATIONS, "--sample", str(sample), "--json", **here)
    counts = json.loads(certified.stdout) if certified.returncode == 0 else {}
    report.add(counts.get("passed", 0) >= len(OPERATIONS.split(",")) and counts.get("failed") == 0 and counts.get("skipped") == 0,
               "it passes its certification", certified.stdout[-800:] + certified.stderr[-800:])
    broken = run(program, "certify", "--device", "mychip", "--only", "neg", "--strict", CC="/bin/false", **here)
    report.add(broken.returncode == 1 and "rejected the kernel" in broken.stdout,
               "strictly, a compiler that takes nothing is a failure, and the reason is told", broken.stdout)
    trained = run(program, "train", "chars", "--steps", "3", "--device", "mychip", "--strict", "--json", **here)
    plain = run(program, "train", "chars", "--steps", "3", "--device", "cpu", "--json", **here)
    both = [json.loads(t.stdout) if t.returncode == 0 else {} for t in (trained, plain)]
    report.add(both[0].get("device") == "mychip:0", "ran on: mychip:0 (a driver outside of the library, train chars)",
               trained.stderr)
    same = both[0] and both[1] and abs(both[0]["final_loss"] - both[1]["final_loss"]) < 1e-4
    report.add(same, "a transformer learns there as on the processor", str(both))


def check_refusals(report, program, folder):
    empty = folder / "empty.c"
    empty.write_text("int nothing;\n")
    run("cc", "-shared", "-fPIC", "-o", str(folder / "empty.so"), str(empty))
    here = {"TRUNNION_DRIVERS": f"{folder}/empty.so:{folder}/missing.so"}
    listed = run(program, "devices", "--json", **here)
    rows = {b["name"]: b for b in json.loads(listed.stdout)["backends"]}
    report.add("trunnion_driver" in rows.get("plugin:empty", {}).get("reason", ""), "a library that is no driver is listed")
    report.add(rows.get("plugin:missing", {}).get("reason_code", "library_not_found") == "library_not_found"
               and "plugin:missing" in rows, "a file that is missing is listed")
    report.add(run(program, "bench", "add-16", **here).returncode == 0, "everything else works beside them")


def main():
    program = str((ROOT / sys.argv[1] / "trunnion").resolve())
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        driver = begin(report, folder)
        if driver:
            check_device(report, program, driver, folder / "cache", 1 if "--all" in sys.argv else SAMPLE)
        check_refusals(report, program, folder)
    print(f"{report.passed} passed, {report.failed} failed, 0 skipped")
    return report.failed != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
