"""doubles.py BUILD [--all] [NAME…] — drivers of devices that are not here, on doubles of the vendors' libraries.

A double (tests/double) plays a vendor's driver and compiler, runs the rendered kernels on the processor, and ends the
process that misuses it. On each: kernels made by hand and random ones against the interpreter, templates against the
processor's kernels, the driver's promises and a sample of all operations (certify --strict), and trainings, whose loss is
the processor's to the last bit. With --all: every operation, more kernels, and a language model's logits.

What this proves is that driver and kernels do what the vendors document. It says nothing of a real device.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools" / "checks")]
import device_work  # noqa: E402

# The file in BUILD/doubles, and the variables that name it as the vendor's library.
DOUBLES = {
    "cuda": ("cuda.so", ["TRUNNION_CUDA_LIB", "TRUNNION_NVRTC_LIB"]),
    "rocm": ("rocm.so", ["TRUNNION_ROCM_LIB", "TRUNNION_HIPRTC_LIB"]),
    "metal": ("metal.so", ["TRUNNION_METAL_LIB", "TRUNNION_OBJC_LIB"]),
}
# What a device may say of a case that it skips: Metal has no f64, and so no kernels that compute in it inside.
LACKS = {"metal": ("has no f64", "has no kernel for it")}
KERNELS = [("--plain", 4), ("--long", 2), ("--group", 4), ("--rows", 2)]  # random programs of each kind
SAMPLE = 60  # one operation's case of so many
TRAININGS = [("digits", 20), ("chars", 2)]
MORE = 10  # times as much with --all
WORDS = "Steam engines move pumps and wheels with"  # 8 tokens


def run(*arguments):
    ended = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


def tail(*texts):
    return "\n".join(line for text in texts for line in text.splitlines()[-25:])


def check_program(report, what, *arguments):
    begun = time.monotonic()
    code, out, err = run(*arguments)
    report.add(code == 0, f"{what} ({time.monotonic() - begun:.1f} s)" if code == 0 else
               f"{what}: ended with {code}\n{tail(out, err)}")


def check_kernels(report, name, build, more):
    check_program(report, f"{name}: kernels made by hand", build / "test_render", "--cases", 0, 1000)
    for kind, count in KERNELS:
        check_program(report, f"{name}: {count * more} random kernels, {kind[2:]}", build / "test_render", kind, 0,
                      count * more)
    check_program(report, f"{name}: templates", build / "test_templates", *([] if more > 1 else ["--small"]))


def check_operations(report, name, build, more):
    begun = time.monotonic()
    options = ["--sample", SAMPLE] if more == 1 else []
    options += [] if name in LACKS else ["--strict"]
    code, out, err = run(build / "trunnion", "certify", "--device", name, "--json", "--seed", 5, *options)
    try:
        result = json.loads(out)
    except json.JSONDecodeError:
        result = {"ops": {}, "passed": 0, "failed": 1, "skipped": 0}
    lacks = LACKS.get(name, ())
    reasons = {op: row["why"] for op, row in result["ops"].items() if row["skipped"]}
    other = [f"{op}: {why}" for op, why in reasons.items() if not any(text in why for text in lacks)]
    good = code == 0 and result["passed"] > 100 and not result["failed"] and not other
    skipped = f", {result['skipped']} skipped: {' or '.join(lacks)}" if lacks else ""
    report.add(good, f"{name}: certified strictly, {result['passed']} passed, {result['failed']} failed{skipped} "
                     f"({time.monotonic() - begun:.1f} s)" + ("" if good else "\n" + tail(err, "\n".join(other), out)))


def check_double(name, build, more):
    """In a process whose environment names the double as the vendor's library."""
    report = device_work.Report()
    program = str(build / "trunnion")
    check_kernels(report, name, build, more)
    check_operations(report, name, build, more)
    for task, steps in TRAININGS:
        device_work.check_training(program, report, name, task, steps, bound=0)
    if more > 1:
        device_work.check_model(program, report, name, WORDS, 8)
    if not report.failed:
        print(f"ran on: {name} double (tests/double: no hardware): kernels, operations, training")
    print(f"{report.passed} {report.failed} {report.skipped}")


def environment(name, build, folder):
    file, variables = DOUBLES[name]
    path = str(build / "doubles" / file)
    return os.environ | dict.fromkeys(variables, path) | {
        "TRUNNION_TEST_DEVICE": name, "TRUNNION_CACHE": f"{folder}/{name}", "DOUBLE_ABORT": "1"}


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    build, names = (ROOT / arguments[0]).resolve(), arguments[1:] or list(DOUBLES)
    more = MORE if "--all" in sys.argv else 1
    if "--here" in sys.argv:
        check_double(names[0], build, more)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        children = [subprocess.Popen([sys.executable, __file__, str(build), name, "--here", *sys.argv[1:][len(arguments):]],
                                     env=environment(name, build, folder), stdout=subprocess.PIPE, text=True)
                    for name in names]
        sums = [0, 0, 0]
        for child, name in zip(children, names):
            lines = child.communicate()[0].splitlines()
            counts = [int(n) for n in lines.pop().split()] if child.returncode == 0 else [0, 1, 0]
            print("\n".join(lines))
            sums = [a + b for a, b in zip(sums, counts)]
    print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return sums[1] != 0


if __name__ == "__main__":
    sys.exit(main())
