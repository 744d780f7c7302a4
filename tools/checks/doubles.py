"""doubles.py BUILD [--all] [NAME…] — drivers of devices that are not here, on doubles of the vendors' libraries.

A double (tests/double) plays a vendor's driver and compiler, runs the rendered kernels on the processor, and ends the
process that misuses it. On each: the driver's promises, kernels made by hand and random ones against the interpreter,
templates against the processor's kernels, one operation in twelve (certify --strict), and a training, whose loss is the
processor's to the last bit. With --all: every operation, more kernels, all trainings and matrix units, also of older
devices, a transformer, and a language model's logits.

What this proves is that driver and kernels do what the vendors document. It says nothing of a real device.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "checks")]
import certify_all  # noqa: E402
import device_work  # noqa: E402
from text import smollm2  # noqa: E402

# The file in BUILD/doubles, and the variables that name it as the vendor's library.
DOUBLES = {
    "cuda": ("cuda.so", ["TRUNNION_CUDA_LIB", "TRUNNION_NVRTC_LIB"]),
    "rocm": ("rocm.so", ["TRUNNION_ROCM_LIB", "TRUNNION_HIPRTC_LIB"]),
    "metal": ("metal.so", ["TRUNNION_METAL_LIB", "TRUNNION_OBJC_LIB"]),
}
CHAINS = [["cuda", "rocm"], ["metal"]]  # run side by side; CUDA and ROCm have the same texts, compiled once
KERNELS = [("--plain", 2), ("--long", 1), ("--group", 2), ("--rows", 1)]  # random programs of each kind
TRAININGS = [("digits", 8, []), ("cartpole", 64, []), ("digits", 4, ["--model", "cnn"])]  # the digits are made up
# Of the order of items, and of the time at which work is done that nobody waits for; 0: in order, and never.
SEEDS = [0, 1, 2, 3, 4]
# And what names devices that have them; CUDA's before Hopper's wide ones too.
MATRIX_UNITS = {"cuda": [{}, {"DOUBLE_ARCH": "sm_80"}], "rocm": [{}], "metal": [{"DOUBLE_NAME": "Apple M0"}]}
MORE = 20  # times as much with --all
WORDS = "Steam engines move pumps and wheels with"  # 8 tokens


def run(*arguments, **environment):
    ended = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, env=os.environ | environment)
    return ended.returncode, ended.stdout, ended.stderr


def tail(*texts):
    return "\n".join("  | " + line[:300] for text in texts for line in text.splitlines()[-25:])


def check_program(report, what, *arguments, seed=1):
    begun = time.monotonic()
    code, out, err = run(*arguments, DOUBLE_SEED=str(seed))
    report.add(code == 0, f"{what} ({time.monotonic() - begun:.1f} s)" if code == 0 else
               f"{what}: ended with {code}\n{tail(out, err)}")


def check_kernels(report, name, build, more):
    check_program(report, f"{name}: kernels made by hand", build / "test_render", "--cases", 0, 1000)
    for kind, count in KERNELS:
        check_program(report, f"{name}: {count * more} random kernels, {kind[2:]}", build / "test_render", kind, 0,
                      count * more)
    check_program(report, f"{name}: queues and events", build / "test_queue")
    check_program(report, f"{name}: the kernels of kernels.h", build / "test_device_kernels")
    if more > 1:
        check_program(report, f"{name}: work recorded on queues", build / "test_async")
        check_program(report, f"{name}: all templates", "env", "TRUNNION_TEST_FULL=1", build / "test_workgroup_kernels")


F64_ONLY = {"exact"}  # operations whose cases are all of f64, which Metal lacks


def certify(build, device, *options):
    """With kernels that are not optimised: most of them run once."""
    code, out, err = run(build / "trunnion", "certify", "--device", device, "--strict", "--json", "--seed", 5, *options,
                         DOUBLE_LEVEL="0")
    try:
        return json.loads(out)["ops"], err
    except json.JSONDecodeError:
        return {}, tail(out, err)


def check_operations(report, name, build):
    """A sample of the cases of one operation in twelve."""
    begun = time.monotonic()
    names = sorted(certify(build, "cpu", "--sample", 1000)[0])[[name in c for c in CHAINS].index(True)::12]
    ops, words = certify(build, name, "--only", ",".join(names), "--sample", 60)
    passed = sum(o["forward_passed"] + o["backward_passed"] for o in ops.values())
    failed = [f"{n}: {o['why']}" for n, o in ops.items() if o["forward_failed"] + o["backward_failed"]]
    failed += [f"{n}: {o['why']}" for n, o in ops.items() if o["skipped"] and not certify_all.may_lack(name, n, o["why"])]
    absent = set(names) - set(ops) - (F64_ONLY if name == "metal" else set())
    failed += [f"{n}: no case" for n in sorted(absent)]
    good = len(names) > 12 and not failed
    report.add(good, f"{name}: {len(ops)} operations, {passed} cases passed strictly ({time.monotonic() - begun:.1f} s)"
               + ("" if good else "\n" + tail("\n".join(failed), words)))


def check_all_operations(report, name, build):
    """All cases; what was found before of this build counts."""
    begun = time.monotonic()
    passed, failed, _ = certify_all.certify_device(certify_all.Device(build, name, certify_all.parse([str(build), name])))
    report.add(not failed, f"{name}: all operations, {passed} cases passed strictly ({time.monotonic() - begun:.1f} s)")


def check_double(name, build, more):
    """In a process whose environment names the double as the vendor's library."""
    report = device_work.Report()
    program = str(build / "trunnion")
    for seed in SEEDS[:len(SEEDS) if more > 1 else 2]:
        check_program(report, f"{name}: the driver's promises, seed {seed}", build / "test_conform", seed=seed)
        if seed:
            check_program(report, f"{name}: templates, seed {seed}", build / "test_workgroup_kernels", "--small", seed=seed)
            units = [] if seed > 1 else MATRIX_UNITS[name] if more > 1 else MATRIX_UNITS[name][:name != "rocm"]
            for named in units:
                check_program(report, " ".join([f"{name}: matrix units", *named.values()]), "env",
                              *[f"{key}={value}" for key, value in named.items()], build / "test_matrix", seed=seed)
    if name == "cuda" or (name == "rocm" and more > 1):
        # the record of what was listed says one device: another folder for two
        check_program(report, f"{name}: two devices share batches", "env", "DOUBLE_DEVICES=2",
                      f"TRUNNION_CACHE={os.environ['TRUNNION_CACHE']}-two",
                      f"TRUNNION_TEST_DEVICES={name}:0,{name}:1", build / "test_data_parallel", seed=1)
    check_kernels(report, name, build, more)
    (check_all_operations if more > 1 else check_operations)(report, name, build)
    table = pathlib.Path(os.environ["TRUNNION_CACHE"] + ".csv")
    rows = [[(r * r + 7 * r * c) % 17 for c in range(64)] + [r % 10] for r in range(320)]
    table.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    for task, steps, options in TRAININGS if more > 1 else TRAININGS[:1]:
        options += ["--data", str(table)] if task == "digits" else []
        device_work.check_training(program, report, name, task, steps, bound=0, more=options)
    if more > 1:
        device_work.check_training(program, report, name, "chars", 2)  # its gradient of attention is composed there
        device_work.check_model(program, report, name, WORDS, 8, model=pathlib.Path(os.environ["DOUBLE_MODEL"]))
    if not report.failed:
        print(f"ran on: {name} double (tests/double: no hardware): kernels, operations, training")
    print(f"{report.passed} {report.failed} {report.skipped}")


def environment(name, build, folder):
    file, variables = DOUBLES[name]
    path = str(build / "doubles" / file)
    return os.environ | dict.fromkeys(variables, path) | {
        "TRUNNION_TEST_DEVICE": name, "TRUNNION_CACHE": f"{folder}/{name}", "DOUBLE_ABORT": "1",
        "DOUBLE_MODEL": str(smollm2.path())}  # where it is without the cache of this run


def chain(names, build, folder, options):
    """The lines of one double after the other, and the sums of their counts."""
    lines, sums = [], [0, 0, 0]
    for name in names:
        # Without --all most kernels run a few times, and optimising them would take longer.
        level = {} if "--all" in options else {"DOUBLE_LEVEL": "0"}
        child = subprocess.run([sys.executable, __file__, str(build), name, "--here", *options], text=True,
                               env=environment(name, build, folder) | level, stdout=subprocess.PIPE)
        said = child.stdout.splitlines()
        counts = [int(n) for n in said.pop().split()] if child.returncode == 0 else [0, 1, 0]
        lines += said
        sums = [a + b for a, b in zip(sums, counts)]
    return lines, sums


def main():
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    build, *names = [a for a in sys.argv[1:] if a not in options]
    build = (ROOT / build).resolve()
    if "--here" in options:
        check_double(names[0], build, MORE if "--all" in options else 1)
        return 0
    chains = [[n for n in c if not names or n in names] for c in CHAINS]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda c: chain(c, build, folder, options), chains))
    for lines, _ in ended:
        print("\n".join(lines))
    sums = [sum(counts) for counts in zip(*(s for _, s in ended))]
    print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return sums[1] != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
