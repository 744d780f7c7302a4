"""device_work.py BUILD [DEVICE…] — whole works on other devices beside the processor: nothing may run elsewhere (--strict).

DEVICE is one of tools/checks/certify_all.py's; without any it is OpenCL, Vulkan and WebGPU. On each a network of products, one
of convolutions, a policy and a transformer train for a few steps, and a language model's logits behind each of 36 tokens
are those of the processor: within a bound, with the same greatest one wherever the processor's lead is more than twice
that bound. (tools/checks/doubles.py asks for less, and for exactly.)
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "checks")]
import certify_all  # noqa: E402
from text import smollm2  # noqa: E402
from llm import read_npy  # noqa: E402

TEXT = ("The history of the steam engine begins long before the nineteenth century, when engineers in several countries "
        "tried to use the pressure of hot water to move pumps and wheels, and it ends with")
DEVICES = ["opencl", "vulkan", "webgpu"]
TRAININGS = [("digits", 60, []), ("digits", 6, ["--model", "cnn"]), ("cartpole", 1024, []), ("chars", 3, [])]

# Of a loss after that many steps, relative: a step rounds a few thousand times by 2^-24 of what it adds up, and errors
# grow by a few percent a step. Devices that promise exactness differ by nothing at all.
LOSS_BOUND = 1e-3
# Of a logit: hidden states are sums of 576 products in 30 layers, rounded to 2^-24 each, relative to logits up to 30.
LOGIT_BOUND = 2e-2


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(text if good else f"failed: {text}", flush=True)


def call(program, *arguments, environment=None):
    """The command's JSON object, or None after its words."""
    ended = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, env=environment)
    if ended.returncode == 0:
        return json.loads(ended.stdout)
    print(f"trunnion {' '.join(arguments)} ended with {ended.returncode}: {ended.stderr[-600:]}")
    return None


def check_training(program, report, device, task, steps, bound=LOSS_BOUND, more=(), environment=None):
    options = ["train", task, "--steps", str(steps), "--seed", "7", *more]
    task = " ".join([task, *more[1:2]])
    begun = time.monotonic()
    there = call(program, *options, "--device", device, "--strict", environment=environment)
    seconds = time.monotonic() - begun
    here = call(program, *options, "--device", "cpu")
    if not there or not here:
        report.add(False, f"{device}: {task} trains")
        return
    off = abs(there["final_loss"] - here["final_loss"]) / max(1e-3, abs(here["final_loss"]))
    good = math.isfinite(off) and off <= bound and not there["fallback"]
    report.add(good, f"{device}: {task}, {steps} steps: loss {there['final_loss']:.7g}, off by {off:.1e} relative, "
                     f"{len(there['fallback'])} host nodes ({seconds:.0f} s)")


def logits(program, model, device, folder, text, environment=None):
    """One row of logits a token, and what ran on the host."""
    path = pathlib.Path(folder) / f"{device.replace(':', '_')}.npy"
    result = call(program, "logits", "-m", str(model), "-p", text, "-o", str(path), "--device", device, "--strict",
                  environment=environment)
    if not result:
        return [], []
    (tokens, width), values = read_npy(path)
    return [values[t * width:(t + 1) * width] for t in range(tokens)], result["fallback"]


def check_model(program, report, device, text=TEXT, least=32, environment=None, model=None):
    model = model or smollm2.path()
    if not model.exists():
        report.skipped += 1
        print("skipped: no model")
        return
    with tempfile.TemporaryDirectory() as folder:
        here, _ = logits(program, model, "cpu", folder, text)
        begun = time.monotonic()
        there, fallback = logits(program, model, device, folder, text, environment)
        seconds = time.monotonic() - begun
    if not here or len(here) != len(there):
        report.add(False, f"{device}: a language model answers")
        return
    off = max(max(map(abs, map(float.__sub__, a, b))) for a, b in zip(here, there))
    clear = same = 0
    for a, b in zip(here, there):
        best = max(range(len(a)), key=a.__getitem__)
        if a[best] - max(v for i, v in enumerate(a) if i != best) <= 2 * LOGIT_BOUND:
            continue
        clear += 1
        same += max(range(len(b)), key=b.__getitem__) == best
    good = off <= LOGIT_BOUND and same == clear and not fallback and len(here) >= least
    report.add(good, f"{device}: logits behind {len(here)} tokens: off by {off:.1e} at most, {same} of {clear} clear "
                     f"answers the same, {len(fallback)} host nodes ({seconds:.0f} s)")


def check_device(program, build, report, name):
    environment, missing = certify_all.environment(name, build)
    device = certify_all.DEVICES[name][1]
    listing = environment and call(program, "devices", environment=environment)
    if not listing or not any(b["available"] and b["name"] == device for b in listing["backends"]):
        report.skipped += 1
        print(f"skipped: {name}: {missing or 'there is no such device'}")
        return
    before = report.failed
    for task, steps, more in TRAININGS:
        check_training(program, report, device, task, steps, more=more, environment=environment)
    check_model(program, report, device, environment=environment)
    if report.failed == before:
        print(f"ran on: {device} ({name}: trainings and a language model, strictly)")


def main():
    build = (ROOT / sys.argv[1]).resolve()
    report = Report()
    for name in sys.argv[2:] or DEVICES:
        check_device(str(build / "trunnion"), build, report, name)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return report.failed != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
