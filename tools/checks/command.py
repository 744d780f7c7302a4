"""command.py BUILD devices | train | left-out PART… — the command on this machine.

devices    lists the devices; the processor has to be among the usable ones.
train      trains a small network on every backend that the listing calls available, with --strict, so that none of it
           can run elsewhere unseen; says "ran on: NAME" for each. A backend that is listed and then fails is a failure.
left-out   in a build without PARTs the listing names each with the reason not_built.
"""

import json
import math
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS = 20
ENGINES = {"torch", "onnxruntime"}  # they run networks, they do not train ours


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def add(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(text if good else f"failed: {text}", flush=True)


def call(program, *arguments):
    """Runs the command with --json. Returns its object, or None after saying what went wrong."""
    result = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    words = f"trunnion {' '.join(arguments)} --json"
    if result.returncode != 0:
        print(f"{words}: ended with {result.returncode}\n{result.stderr}")
        return None
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError as error:
        print(f"{words}: standard output is not one JSON object ({error}):\n{result.stdout}")
        return None


def backends(program):
    listing = call(program, "devices")
    return {b["name"]: b for b in listing["backends"]} if listing else {}


def check_devices(program, report, _):
    text = subprocess.run([program, "devices"], capture_output=True, text=True).stdout
    print("\n".join("listing: " + line for line in text.splitlines()))
    found = backends(program)
    report.add(found.get("cpu", {}).get("available"), "the processor is available")


def check_train(program, report, _):
    for name, backend in backends(program).items():
        if not backend["available"] or name.removeprefix("engine:") in ENGINES:
            continue
        result = call(program, "train", "digits", "--steps", str(STEPS), "--device", name, "--strict")
        good = result is not None and math.isfinite(result["final_loss"])
        report.add(good, f"ran on: {name} (train digits, {STEPS} steps)")
    if report.passed + report.failed == 0:
        report.add(False, "no backend is available, not even the processor")


def check_left_out(program, report, parts):
    found = backends(program)
    report.add(found.get("cpu", {}).get("available"), "the processor is available")
    for part in map(str.lower, parts):
        backend = found.get(part) or found.get(f"engine:{part}") or {}
        report.add(backend.get("reason_code", backend.get("reason")) == "not_built", f"{part} is listed as not built")


CHECKS = {"devices": check_devices, "train": check_train, "left-out": check_left_out}


def main():
    build, what, *parts = sys.argv[1:]
    program = (ROOT / build / "trunnion").resolve()
    report = Report()
    if not program.exists() and not any((ROOT / "cli").glob("*.c")):
        print("skipped: the command has no sources\n0 passed, 0 failed, 1 skipped")
        return 0
    if program.exists():
        CHECKS[what](program, report, parts)
    else:
        report.add(False, f"{build}/trunnion was not built")
    print(f"{report.passed} passed, {report.failed} failed, 0 skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
