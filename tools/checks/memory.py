"""memory.py BUILD — the memory that `trunnion fit` predicts is what a generation then takes.

SmolLM2-135M (tools/text/smollm2.py) in seven types of weights, and as a folder, with a short and a long context: the
peak resident memory of `generate` with a prompt of more than a chunk is within 2 % of the prediction.
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


def main():
    program = pathlib.Path(sys.argv[1]).resolve() / "trunnion"
    if not smollm2.is_there():
        print(f"skipped: the language model is not there and could not be fetched: {smollm2.path()}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    report, model = Report(), smollm2.path()
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
