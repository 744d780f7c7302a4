"""command_faults.py BUILD — regressions of the command: one check per class of fault that users reported.

Failures with --json are an object; options without effect are refused; messages end with the cause and name no file
that an installation lacks; weights of subgraphs are converted; names in a model choose no folder; values are shown.
"""

import json
import os
import pathlib
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools/checks"))
import command  # noqa: E402
import finetune  # noqa: E402
import signals  # noqa: E402
from text import smollm2  # noqa: E402

message = command.message


def run(program, line, folder, **more):
    try:
        return subprocess.run([program, *shlex.split(line)], capture_output=True, text=True, cwd=folder, timeout=60,
                              stdin=subprocess.DEVNULL, **more)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(line, 124, "", "it did not end within 60 s")


# ---- networks --------------------------------------------------------------------------------------------------------

def tensor(name, numbers):
    return message((1, len(numbers)), (2, 1), (8, name), (9, struct.pack(f"<{len(numbers)}f", *numbers)))


def port(name, *extents):
    dims = [(1, message((1, n) if isinstance(n, int) else (2, n))) for n in extents]
    return message((1, name), (2, message((1, message((1, 1), (2, message(*dims)))))))


def write_model(path, graph):
    path.write_bytes(message((1, 8), (8, message((2, 13))), (7, graph)))


def branch(name, numbers, inner=None):
    """A graph without inputs that yields a weight, which both branches call w; inner: a subgraph in it."""
    fields = [(1, message((1, "w"), (2, f"{name}_out"), (4, "Identity")))]
    if inner:
        fields.append((1, message((2, f"{name}_deep"), (1, "c"), (3, "deep"), (4, "If"), (5, attribute("then_branch", inner)),
                                  (5, attribute("else_branch", inner)))))
    return message(*fields, (2, name), (5, tensor("w", numbers)), (5, tensor(f"only_{name}", numbers)),
                   (12, port(f"{name}_out", 2)))


def attribute(name, graph):
    return message((1, name), (6, graph), (20, 5))


def write_branches(path):
    """An If in the branch of an If; weights: outer, w in four graphs, only_… in three."""
    deep = branch("deep", [5.0, 6.0])
    choice = message((1, "c"), (2, "y"), (3, "choice"), (4, "If"),
                     (5, attribute("then_branch", branch("then", [1.0, 2.0], deep))),
                     (5, attribute("else_branch", branch("else", [3.0, 4.0]))))
    condition = message((1, "c"), (2, message((1, message((1, 9), (2, message()))))))
    write_model(path, message((1, choice), (2, "g"), (5, tensor("outer", [7.0, 8.0])), (11, condition),
                              (12, port("y", 2))))


def write_evil(path):
    """Outputs whose names lead out of the folder, hide a file, or are equal as file names."""
    names = ["../../evil/y", ".hidden", "a/b", "a_b"]
    nodes = [(1, message((1, "x"), (1, "x"), (2, name), (4, "Add"))) for name in names]
    write_model(path, message(*nodes, (2, "g"), (11, port("x", 3)), *((12, port(name, 3)) for name in names)))


def write_npy(path, numbers):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(numbers)},), }}".ljust(117).encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header +
                     struct.pack(f"<{len(numbers)}f", *numbers))


def prepare(folder):
    command.write_network(folder)
    write_branches(folder / "branches.onnx")
    write_evil(folder / "evil.onnx")
    write_npy(folder / "x.npy", [1.0, 2.0, 4.0])
    write_model(folder / "open.onnx", message((1, message((1, "x"), (2, "y"), (4, "Relu"))), (2, "g"),
                                              (11, port("x", 1, 3, "h", "w")), (12, port("y", 1, 3, "h", "w"))))
    write_model(folder / "large.onnx", message((1, message((1, "x"), (2, "y"), (4, "Relu"))), (2, "g"),
                                               (11, port("x", 10, 20)), (12, port("y", 10, 20))))
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.write(folder / "x.npy", "x.npy")
    whole = (folder / "x.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[:len(whole) // 2])
    (folder / "tail.npz").write_bytes(whole[:-9])
    (folder / "labels.txt").write_text("".join(f"class {i}\n" for i in range(20)))
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 40)
    signals.write_safetensors(folder / "plain.safetensors", {"w": ([2, 2], bytes(16))}, {})
    signals.write_safetensors(folder / "q.safetensors", {"blk.0.weight": ([4, 256], bytes(4096))},
                              {"general.architecture": "none"})


# ---- tables ----------------------------------------------------------------------------------------------------------

# Exit code, arguments, text that standard output or error has.
ROWS = [
    # options without effect
    (2, "fit --config mistral-7b --train --weights bf16", "--weights has no effect with --train"),
    (2, "fit --config mistral-7b --train --cache f32", "--cache has no effect with --train"),
    (2, "convert x.gguf y.gguf --context 64", "--context has no effect without --text"),
    (2, "generate -m m -p x --greedy --temperature 2", "--temperature has no effect"),
    (2, "generate -m m -p x --greedy --min-p 0.5", "--min-p has no effect"),
    (2, "generate -m m -p x --greedy --seed 5", "--seed has no effect"),
    (2, "generate -m m -p x --system y", "--system requires --chat"),
    (2, "bench add-16 --save s --seconds 1", "--seconds has no effect"),
    (2, "bench add-16 --save s --profile", "--profile has no effect"),
    (2, "bench add-16 --seed 3", "--seed"),
    (2, "tokenize -m m --decode 1 --no-ends", "--no-ends has no effect"),
    (2, "logits -m m --ids 1 --no-special -o x.npy", "--no-special has no effect"),
    (2, "run model.onnx --labels labels.txt", "--labels requires --top"),
    (2, "run model.onnx --random --steps 2 --memory 1G", "--memory has no effect with --steps"),
    (2, "fit run open.onnx -oresults", "--output has no effect"),
    (1, "fit finetune -m absent.gguf --data text.txt --epochs 2", "absent.gguf"),
    (1, "run evil.onnx -i x=x.npy --random", "every input is given"),
    (2, "tune 8x8x8 --device opencl --threads 2", "--threads applies only to the CPU"),
    (2, "generate -m m -p x -p y", "--prompt was given twice"),
    # messages
    (1, "bench add-16 --mem 600000G", "cpu: "),
    (2, "train chars --threads 513", "1 to 512"),
    (1, "run evil.onnx -i cut.npz", "damaged or truncated"),
    (1, "info tail.npz", "damaged"),
    (1, "run evil.onnx -i x=missing.npy", "missing.npy"),
    (1, "run evil.onnx -i x=missing.npy --trace absent/t.json", "cannot write 'absent/t.json'"),
    (1, "run evil.onnx -i x=missing.npy -o absent/out", "cannot write 'absent/out'"),
    (2, "run evil.onnx -i =x.npy", "invalid value"),
    (1, "info ''", "the name of the model is empty"),
    (2, "convert q.safetensors q.gguf --quantize Q9_K", "q4_k"),
    (1, "convert plain.safetensors plain.gguf", "architecture"),
    (1, "convert missing.safetensors x.gguf", "missing.safetensors"),
    (1, "onnx-test missing", "the folder does not exist"),
    (1, "embed -m missing x", "missing"),
    (1, "generate -m SmolLM3.gguf -p x", "neither here nor in the cache folder"),
    (1, "run open.onnx -i x=photo.jpg --size 8x9 --top 900 --labels labels.txt", "20 lines, but the output has 9"),
    (1, "run large.onnx -i x=photo.jpg", "does not accept an image"),
]


def check_rows(program, folder, report):
    for code, line, part in ROWS:
        ended = run(program, line, folder)
        good = ended.returncode == code and part in ended.stdout + ended.stderr
        report.add(good, line if good else f"{line}: {ended.returncode}, not {code} with '{part}': {ended.stderr[-400:]}")
        if "--json" in line or line.startswith("tune"):
            continue
        told = run(program, line + " --json", folder)
        try:
            error = json.loads(told.stdout)["error"]
            good = set(error) == {"code", "message", "fix"} and error["message"] and told.returncode == code
        except (json.JSONDecodeError, KeyError) as wrong:
            good = False
            report.add(good, f"{line} --json: {wrong!r}: {told.stdout[:300]}")
            continue
        report.add(good, f"{line} --json: an error object")


def check_guess(program, folder, report):
    ended = run(program, "explain missing.onnx", folder)
    report.add("open dim" not in ended.stderr, "no hint at open dimensions after another failure")
    ended = run(program, "help fit extra", folder)
    report.add(ended.returncode == 2 and "extra" in ended.stderr, "help refuses what it would ignore")


def check_help(program, folder, report):
    names = re.findall(r"^  ([a-z-]+) ", run(program, "help", folder).stdout.split("common options")[0], re.MULTILINE)
    for name in names:
        page = run(program, "help" if name == "help" else f"help {name}", folder, env=os.environ | {"LC_ALL": "C.UTF-8"}).stdout
        report.add(name == "help" or f"examples:\n  trunnion {name}" in page, f"help {name}: examples of the command")
        wide = [line for line in page.splitlines() if len(line) > 80]
        report.add(len(names) > 14 and not wide, f"help {name}: at most 80 columns" + "".join(f"\n    {w}" for w in wide))
        foreign = re.findall(r"\b(?:tools|docs)/\S+", page)
        report.add(not foreign, f"help {name}: names no file of the source tree {foreign}")


def check_subgraphs(program, folder, report):
    ended = run(program, "convert branches.onnx branches.safetensors --verify --json", folder)
    found = command.read_floats(folder / "branches.safetensors") if ended.returncode == 0 else {}
    want = {"outer": (7.0, 8.0), "only_then": (1.0, 2.0), "only_else": (3.0, 4.0),
            "choice.then_branch.w": (1.0, 2.0), "choice.else_branch.w": (3.0, 4.0)}
    deep = {f"choice.then_branch.deep.{b}_branch.{n}": (5.0, 6.0) for b in ("then", "else") for n in ("w", "only_deep")}
    report.add(found == want | deep, f"weights inside If, and If in If, are converted: {sorted(found)} {ended.stderr}")
    report.add(ended.returncode == 0 and json.loads(ended.stdout)["verified"] == 9, "and verified against all of them")


def check_outputs(program, folder, report):
    ended = run(program, "run evil.onnx -i x=x.npy -o deep/er/out --json", folder)
    report.add(ended.returncode == 1 and "deep/er/out" in ended.stdout, "a folder that cannot be made is an error")
    ended = run(program, "run evil.onnx -i x=x.npy -o out --json", folder)
    told = json.loads(ended.stdout)["outputs"] if ended.returncode == 0 else {}
    files = sorted(p.name for p in (folder / "out").iterdir())
    report.add(files == sorted(o["file"] for o in told.values()) and len(set(files)) == 4, f"one file for each output: {files}")
    report.add(not any(f.startswith(".") or "/" in f for f in files) and not (folder.parent / "evil").exists(),
               "no output's name leads out of the folder or hides a file")
    report.add(all(o["values"] == [2, 4, 8] and o["shape"] == [3] for o in told.values()), "small outputs with their values")
    text = run(program, "run evil.onnx -i x=x.npy", folder).stdout
    report.add(" 2 4 8\n" in text, "and as text")
    report.add("median" not in text and "first run" in text, "one run has no median")
    timed = json.loads(run(program, "run evil.onnx -i x=x.npy --json", folder).stdout)
    report.add(timed["median_seconds"] is None and timed["first_run_seconds"] > 0, "median_seconds is null without --repeat")
    large = json.loads(run(program, "run large.onnx --random --json --top 3 --labels labels.txt", folder).stdout)["outputs"]["y"]
    report.add("values" not in large and large["min"] == 0 and large["max"] > large["mean"] > 0, "large outputs: a summary")
    ranks = [[c["value"] for c in row] for row in large["top"]]
    report.add(len(ranks) == 10 and all(len(r) == 3 and r == sorted(r, reverse=True) for r in ranks) and
               all(c["label"] == f"class {c['index']}" for row in large["top"] for c in row), "--top K --labels FILE")
    sized = json.loads(run(program, "run open.onnx -i x=photo.jpg --size 8x9 --json", folder).stdout)
    report.add(sized["outputs"]["y"]["shape"] == [1, 3, 8, 9], "--size sets what is open")
    saved = run(program, "bench add-16 --save new-folder --json", folder)
    report.add(saved.returncode == 0 and (folder / "new-folder/add-16.start.safetensors").exists(), "bench --save makes its folder")


def check_convert(program, folder, report):
    first = run(program, "convert q.safetensors q.gguf --quantize Q8_0 --json", folder)
    again = run(program, "convert q.gguf q4.gguf --quantize Q4_0 --json", folder)
    report.add(first.returncode == 0 and "already quantized" not in first.stderr and "already quantized" in again.stderr and
               json.loads(again.stdout)["requantized"] == 1, "quantising what is quantised is told")


def check_fit(program, folder, report):
    """Free memory changes from call to call: an advice is tried with nine tenths of its context."""
    text = run(program, "fit --config mistral-7b --context 1000000", folder).stdout
    told = json.loads(run(program, "fit --config mistral-7b --context 1000000 --json", folder).stdout)
    for device, advice in told["would_fit"].items():
        weights = f"--weights {advice['weights']}" if advice["weights"] else ""
        context = advice["context"] * 9 // 10
        again = json.loads(run(program, f"fit --config mistral-7b {weights} --context {context} --json", folder).stdout)
        report.add(again["fits"][device], f"fit: {device} takes {weights} --context {context}, as advised")
        report.add(f"would fit with {weights}".strip() in text, "and the text says so")
    report.add(told["fits"].get("cpu") or "cpu" in told["would_fit"] or "no smaller weights" in text, "fit searches weights and context")


def check_devices(program, folder, report):
    found = command.backends(program)
    report.add(all(b["available"] or b["fix"] for name, b in found.items() if name.startswith("engine:")),
               "an engine that is missing says what to install")
    listing = run(program, "devices", folder).stdout
    libraries = re.search(r"libraries for --library:(.*)", listing)[1]
    absent = [name for name, b in found.items() if not b["available"]]
    report.add(not any(f" on {name}" in libraries for name in absent), f"no libraries for absent devices:{libraries}")
    rows = json.loads(run(program, "explain model.onnx --json", folder).stdout)["fallback"]
    report.add(not any("operation" not in row for row in rows), f"plain auto has no fallback: {rows}")


def check_train(program, folder, report):
    line = "train chars --steps 4 --data text.txt --save t.safetensors --json"
    first = run(program, line, folder)
    again = run(program, line + " --resume t.safetensors", folder)
    report.add(first.returncode == 0 and again.returncode == 1 and "nothing is left to do" in again.stdout,
               "--resume past the last step is an error")
    more = line.replace("--steps 4", "--steps 9").replace("t.safetensors", "u.safetensors")
    full = run(program, more + " --log /dev/full", folder)
    report.add(full.returncode == 1 and "No space left" in full.stdout, f"a log on a full disk: {full.stdout[-200:]}")
    again = run(program, more + " --resume u.safetensors", folder)
    whole = run(program, more.replace("u.safe", "v.safe"), folder)
    same = whole.returncode == 0 and (folder / "u.safetensors").read_bytes() == (folder / "v.safetensors").read_bytes()
    report.add(again.returncode == 0 and same, f"and loses no step: {again.stdout[-200:]}")


def check_serve(program, folder, report):
    finetune.make_model(folder / "small")
    with open("/dev/full", "w") as full:
        ended = subprocess.run([program, "serve", "-m", folder / "small", "--port", "0", "--context", "64", "--json"],
                               stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    report.add(ended.returncode == 1 and "No space left" in ended.stderr, f"serve on a full disk: {ended.stderr[-200:]}")


def check_end_of_file(program, folder, report, model):
    """One Ctrl-D behind a line ends standard input at a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execv(program, [str(program), "tokenize", "-m", model, "-"])
    os.write(terminal, b"Hello\n")
    time.sleep(1)
    os.write(terminal, b"\x04")
    for _ in range(100):
        time.sleep(0.1)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            report.add(status == 0, "one end of file ends standard input")
            return
    os.kill(child, 9)
    os.waitpid(child, 0)
    report.add(False, "one end of file does not end standard input")


def check_generate(program, folder, report, model):
    one, two = (json.loads(run(program, f"generate -m {model} -p The -n 12 --temperature 2 --json", folder).stdout) for _ in "ab")
    report.add(one["seed"] != two["seed"], "a random seed at each call")
    same = json.loads(run(program, f"generate -m {model} -p The -n 12 --temperature 2 --seed {one['seed']} --json", folder).stdout)
    report.add(same["ids"] == one["ids"] and one["stopped"] in ("length", "end"), "--seed brings the same text again")
    cut = run(program, f"generate -m {model} -p The --greedy --json", folder)
    report.add("stopped after 128 tokens" in cut.stderr and json.loads(cut.stdout)["stopped"] == "length", "a text that is cut says so")
    gap = run(program, f"tokenize -m {model} --decode 1,,2", folder)
    report.add(gap.returncode == 1 and "is not a token id" in gap.stderr, "a list of ids has no gaps")
    named = run(program, f"generate -m {pathlib.Path(model).name} -p The -n 1 --greedy", folder)
    report.add(named.returncode == 0, f"a model in the cache folder is found by its name {named.stderr[-300:]}")


def attempt(check, *arguments):
    """A check that meets an unexpected answer has failed; the others go on."""
    try:
        check(*arguments)
    except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError) as error:
        arguments[2].add(False, f"{check.__name__}: {error!r}")


def main():
    program = (ROOT / sys.argv[1] / "trunnion").resolve()
    report = command.Report()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder, "work")
        folder.mkdir()
        prepare(folder)
        for check in (check_rows, check_guess, check_help, check_subgraphs, check_outputs, check_convert, check_fit,
                      check_devices, check_train, check_serve):
            attempt(check, program, folder, report)
        model = smollm2.path()
        if model.exists():
            attempt(check_end_of_file, program, folder, report, str(model))
            attempt(check_generate, program, folder, report, str(model))
        else:
            report.skip(f"generate, tokenize: no model at {model}")
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
