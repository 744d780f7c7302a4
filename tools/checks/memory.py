"""memory.py BUILD — the memory that `trunnion fit` predicts is what a run then takes.

SmolLM2-135M (tools/text/smollm2.py) in seven types of weights, and as a folder, with a short and a long context: the
peak resident memory of `generate` with a prompt of more than a chunk is within 2 % of the prediction. Then trainings,
a fine-tuning, and ONNX networks of the cache folder: on the CPU within 2 % or 1.5 MiB of the measured resident memory,
on OpenCL exactly the peak of the pool.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from checks.command import Report  # noqa: E402
from text import smollm2  # noqa: E402

BOUND = 0.02
TYPES = ["Q8_0", "Q6_K", "Q5_0", "Q4_K", "Q3_K_M", "F16"]
CONTEXTS = [512, 4096]


def run(*command):
    """Runs a command. Returns its standard output and its peak of resident bytes."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, command))[:200]} ended with {process.returncode}")
        return out.read().decode(), usage.ru_maxrss * 1024


def check_model(report, program, model, name):
    for context in CONTEXTS:
        words = ["--context", str(context), "--json"]
        fit = json.loads(run(program, "fit", model, *words)[0])
        _, peak = run(program, "generate", "-m", model, "-p", " ".join(["word"] * 400), "-n", "8", "--greedy", *words)
        error = fit["total_bytes"] / peak - 1
        report.add(abs(error) <= BOUND, f"{name}, context {context}: predicted {fit['total_bytes'] / 1e6:.1f} MB, "
                   f"measured {peak / 1e6:.1f} MB, {error:+.2%}")


TRAININGS = [["train", "digits"], ["train", "digits", "--model", "cnn"], ["train", "chars"]]
NETWORKS = ["squeezenet1_1", "mobilenet_v2", "densenet121", "inception_v3", "efficientnet_b0", "convnext_tiny", "resnet50"]
LITTLE = 3 << 19  # bytes


def check_command(report, program, words):
    said = json.loads(run(program, "fit", "--json", *words)[0])
    took = json.loads(run(program, "fit", "--measure", "--json", *words)[0])
    error = said["total_bytes"] / took["total_bytes"] - 1
    bound = 0 if took["device"] != "cpu" else BOUND
    near = took["device"] == "cpu" and abs(said["total_bytes"] - took["total_bytes"]) <= LITTLE
    report.add(abs(error) <= bound or near, f"{pathlib.Path(words[0]).stem} {' '.join(map(str, words[1:]))[:60]}: "
               f"predicted {said['total_bytes'] / 1e6:.1f} MB, measured {took['total_bytes'] / 1e6:.1f} MB, {error:+.2%}")


def check_refusal(report, program, network):
    if not network.exists():
        return
    words = [program, "run", network, "--random", "--device", "cpu"]
    whole, wide, narrow = (subprocess.run([*words, *more], capture_output=True, text=True)
                           for more in ([], ["--memory", "24M"], ["--memory", "15M"]))
    report.add(wide.returncode == 0 and wide.stdout.splitlines()[:-1] == whole.stdout.splitlines()[:-1],
               "run within --memory: the same outputs")
    report.add(narrow.returncode == 1 and "may take 15.0 MiB" in narrow.stderr, "run beyond --memory is refused")
    tiny = subprocess.run([program, "train", "digits", "--steps", "2", "--device", "cpu", "--memory", "1500"],
                          capture_output=True, text=True)
    report.add(tiny.returncode == 1 and "fit into the 1.5 KiB of --memory on cpu" in tiny.stderr,
               "train names a limit of 1500 bytes")


def check_refused_training(report, program, model, text):
    """A fine-tuning that will not fit is refused while the model's weights are still on disk."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([program, "finetune", "-m", model, "--data", text, "--device", "cpu", "--memory", "100M",
                                    "--out", out], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said, peak, size = errors.read(), usage.ru_maxrss * 1024, pathlib.Path(model).stat().st_size
    report.add(process.returncode == 1 and "are missing" in said and peak < size,
               f"finetune beyond --memory is refused with {peak / 1e6:.1f} MB resident of a model of {size / 1e6:.1f} MB")


def check_commands(report, program, model):
    zoo = pathlib.Path(model).parent / "zoo"
    for words in TRAININGS:
        check_command(report, program, [*words, "--device", "cpu"])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write("A text that is long enough for some passes. " * 200)
        text.flush()
        check_command(report, program, ["finetune", "-m", str(model), "--data", text.name, "--device", "cpu"])
        check_refused_training(report, program, model, text.name)
    check_refusal(report, program, zoo / "squeezenet1_1.onnx")
    for network in [*(zoo / f"{name}.onnx" for name in NETWORKS), zoo.parent / "onnx" / "magika" / "model.onnx"]:
        if network.exists():
            check_command(report, program, [str(network), "--device", "cpu"])
    listed = json.loads(run(program, "devices", "--json")[0])
    if any(b["name"] == "opencl" and b["devices"] for b in listed["backends"]):
        for words in [*TRAININGS[:2], [str(zoo / "squeezenet1_1.onnx")]]:
            if words[0] == "train" or pathlib.Path(words[0]).exists():
                check_command(report, program, [*words, "--device", "opencl"])


def main():
    program = pathlib.Path(sys.argv[1]).resolve() / "trunnion"
    if not smollm2.is_there():
        print(f"skipped: the language model is not there and could not be fetched: {smollm2.path()}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    report, model = Report(), smollm2.path()
    check_commands(report, program, model)
    check_model(report, program, model, model.stem)
    with tempfile.TemporaryDirectory() as folder:
        for kind in [*TYPES, "BF16"]:
            made = pathlib.Path(folder) / ("folder/" if kind == "BF16" else f"{kind}.gguf")
            to = f"{made}/" if kind == "BF16" else str(made)
            run(program, "convert", model, to, "--quantize", kind)
            check_model(report, program, made, "folder in BF16" if kind == "BF16" else kind)
    if not report.failed:
        print("ran on: cpu (predicted and measured memory)")
    print(f"{report.passed} passed, {report.failed} failed, 0 skipped")
    return report.failed > 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
