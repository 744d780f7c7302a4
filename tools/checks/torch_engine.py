"""torch_engine.py BUILD — LibTorch as an engine (engine:torch), with a real PyTorch.

Four things: the generated table of signatures is that of the installed release (tools/gen/gen_torch.py --check); every operation
that LibTorch computes agrees with its definition in f64 (`trunnion certify`, where nothing may run on the cpu instead); the
node cases of ONNX pass that pass on the cpu; and networks are trained to the cpu's losses (`trunnion train`, and
BUILD/test_engine_torch). PyTorch is that of TRUNNION_TORCH_LIB's virtual environment, else of tools/peers/python.sh.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEVICE = "engine:torch"
# Cases that pass and that are left to the cpu (of 2026-11): what certification may not fall behind.
LEAST_PASSED, MOST_SKIPPED = 4960, 83
# Losses after so many steps, relative: sums are added in another order, and a network carries that on.
TRAININGS = [("digits", ["--model", "mlp", "--steps", "200"], 1e-4), ("digits", ["--model", "cnn", "--steps", "200"], 5e-3),
             ("chars", ["--steps", "40"], 1e-4)]


def find_torch():
    """(Python that has torch, path of libtorch_cpu.so), or None."""
    given = os.environ.get("TRUNNION_TORCH_LIB")
    if given:
        beside = [p / "bin" / "python" for p in pathlib.Path(given).parents if (p / "bin" / "python").exists()]
        return (str(beside[0]) if beside else sys.executable), given
    made = subprocess.run([str(ROOT / "tools/peers/python.sh"), "torch"], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        return None
    python = made.stdout.split()[-1]
    where = "import torch, pathlib; print(pathlib.Path(torch.__file__).parent / 'lib' / 'libtorch_cpu.so')"
    found = subprocess.run([python, "-c", where], stdout=subprocess.PIPE, text=True)
    return (python, found.stdout.strip()) if found.returncode == 0 else None


def command(build, *arguments):
    done = subprocess.run([f"{build}/trunnion", *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"trunnion {' '.join(arguments)}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def signatures(python):
    done = subprocess.run([python, "tools/gen/gen_torch.py", "--check"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout.strip())
    return done.returncode == 0 and "skipped" not in done.stdout


def certified(build):
    report = command(build, "certify", "--device", DEVICE)
    passed, failed, skipped = report["passed"], report["failed"], report["skipped"]
    print(f"certify: {passed} cases passed, {failed} failed, {skipped} left to the cpu")
    for name, op in report["ops"].items():
        if op["forward_failed"] or op["backward_failed"]:
            print(f"  {name}: {op['why']}")
    return failed == 0 and passed >= LEAST_PASSED and skipped <= MOST_SKIPPED


def node_cases(build):
    """Skipped where the package onnx is not there."""
    done = subprocess.run([sys.executable, "tools/checks/onnx_nodes.py", str(build), "--device", DEVICE], cwd=ROOT,
                          stdout=subprocess.PIPE, text=True)
    print("ONNX's node cases: " + done.stdout.strip().splitlines()[-1])
    return done.returncode == 0


def trained(build, task, options, within):
    losses = []
    for device in ("cpu", DEVICE):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
            command(build, "train", task, *options, "--device", device, "--strict", "--log", log.name)
            losses.append(json.loads(pathlib.Path(log.name).read_text().splitlines()[-1])["loss"])
    apart = abs(losses[1] - losses[0]) / abs(losses[0])
    print(f"train {task} {' '.join(options)}: loss {losses[0]:.6f} on the cpu, {losses[1]:.6f} there: {apart:.1e} apart")
    return apart <= within


def tested(build):
    done = subprocess.run([f"{build}/test_engine_torch"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("\n".join(line for line in done.stdout.splitlines() if "differs by" in line or "FAILED" in line or "skipped" in line))
    return done.returncode == 0 and "skipped" not in done.stdout


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    found = find_torch()
    if not found:
        print("skipped: no PyTorch: PyPI cannot be reached\n0 passed, 0 failed, 1 skipped")
        return 0
    python, library = found
    os.environ["TRUNNION_TORCH_LIB"] = library
    checks = [lambda: signatures(python), lambda: certified(build), lambda: tested(build), lambda: node_cases(build)]
    checks += [lambda t=t: trained(build, *t) for t in TRAININGS]
    good = sum(bool(check()) for check in checks)
    print(f"ran on: {DEVICE}\n{good} passed, {len(checks) - good} failed, 0 skipped")
    return good != len(checks)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
