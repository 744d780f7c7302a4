"""signals.py BUILD [MOMENTS [SEED]] — every subcommand is stopped by SIGINT and SIGTERM at random moments (default: 3 each).

A stopped command ends with 130 or 143. It leaves nothing in its output folder that a complete run would not leave, and
every file that is there has the bytes of a complete run, or those of before. With --json standard output is one JSON
object or, if the text was cut off while it was written, nothing. A training that had begun saves the steps it made.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools/checks"))
import command  # noqa: E402
from text import minilm  # noqa: E402
from text import smollm2  # noqa: E402

LONGEST = 60   # seconds that a command may take to end after the signal
LATEST = 3.0   # seconds: later moments of a long command are not tried
MEBI = 1 << 20


def write_safetensors(path, tensors, metadata):
    """tensors: {name: (shape, bytes)}, all F32."""
    header, at = {"__metadata__": metadata}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def write_network(path, side):
    """y = x + x, [1, 1, side, side] of f32."""
    message = command.message
    shape = message(*((1, message((1, n))) for n in (1, 1, side, side)))
    ports = {n: message((1, n), (2, message((1, message((1, 1), (2, shape)))))) for n in ("x", "y")}
    node = message((1, "x"), (1, "x"), (2, "y"), (4, "Add"))
    graph = message((1, node), (2, "twice"), (11, ports["x"]), (12, ports["y"]))
    path.write_bytes(message((1, 8), (8, message((2, 13))), (7, graph)))


def prepare(folder):
    """What the commands read."""
    noise = random.Random(1).randbytes(4096) * 4
    weights = b"".join(struct.pack("<f", (b - 127.5) / 256) for b in noise[:4096]) * 64  # 1 MiB
    write_safetensors(folder / "big.safetensors", {f"blk.{i}.weight": ([1024, 256], weights) for i in range(24)},
                      {"general.architecture": "none"})
    write_network(folder / "big.onnx", 1024)
    command.write_network(folder)
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 300)


def cases():
    """(name, arguments; {in} is the folder that is read, {out} the one that is written)."""
    model = str(smollm2.path())
    table = [
        ("devices", "devices --fresh --json"),
        ("bench", "bench add-16 --seconds 0.3 --json"),
        ("bench --save", "bench add-16 policy-train-1 gemm-f32-256 --save {out} --json"),
        ("certify", "certify --device cpu --sample 60 --json"),
        ("convert --quantize", "convert {in}/big.safetensors {out}/big.gguf --quantize Q4_K --json"),
        ("convert", "convert {in}/big.safetensors {out}/copy.safetensors --quantize BF16 --verify --json"),
        ("explain", "explain {in}/big.onnx --json"),
        ("fit", "fit --config mistral-7b --json"),
        ("onnx-test", "onnx-test {in}/cases --json"),
        ("run", "run {in}/big.onnx --random --repeat 20 -o {out} --trace {out}/trace.json --json"),
        ("train", "train chars --steps 40 --data {in}/text.txt --save {out}/chars.safetensors --json"),
        ("train --resume", "train chars --steps 80 --data {in}/text.txt --resume {in}/chars.safetensors "
                           "--save {out}/chars.safetensors --save-every 10 --json"),
        ("tune", "tune 96x96x96 --threads 1 --json"),
    ]
    if smollm2.path().exists():
        table += [
            ("generate", f"generate -m {model} -p The -n 24 --seed 1 --json"),
            ("tokenize", f"tokenize -m {model} The --json"),
            ("logits", f"logits -m {model} -p The_quick_brown_fox_jumps_over_the_lazy_dog -o {{out}}/logits.npy --json"),
            ("perplexity", f"perplexity -m {model} -f {{in}}/text.txt --context 64 --json"),
        ]
    if minilm.is_there():
        table += [("embed", f"embed -m {minilm.path()} hello world --json")]
    return table


def words(line, read, written):
    return [word.replace("{in}", str(read)).replace("{out}", str(written)) for word in line.split()]


def content(folder):
    """{name: bytes} of the files there; times, which differ from run to run, are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".json":
            data = re.sub(rb'"(ts|dur)": [0-9.e-]+', b"", data)
        found[str(path.relative_to(folder))] = data
    return found


def step_of(checkpoint):
    data = checkpoint.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    ends = max((t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"), default=0)
    assert len(data) == 8 + length + ends, f"{checkpoint} is cut short"
    return int(header["__metadata__"]["step"])


def environment(cache):
    return os.environ | {"TRUNNION_CACHE": str(cache), "TRUNNION_TUNE_CACHE": str(cache / "tune.json")}


def restore_signals():
    """A shell's background jobs ignore SIGINT, and that would be handed on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def start(program, arguments, cache):
    return subprocess.Popen([program, *arguments], env=environment(cache), stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=restore_signals)


def wait_for_handler(process):
    """Until main has begun, a signal ends any process in the system's way."""
    for _ in range(2000):
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
        if process.poll() is not None or (caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1):
            return
        time.sleep(0.001)


def faults_of(process, number, out, err, left, whole, name, written):
    """What is wrong after a run that was stopped."""
    expected = 128 + number
    if process.returncode not in (0, expected):
        yield f"ended with {process.returncode}, not {expected}: {err[-300:]}"
    if process.returncode == expected and out:
        try:
            json.loads(out)
        except json.JSONDecodeError as error:
            yield f"standard output is not one JSON object ({error}): {out[:200]}"
    for file, data in left.items():
        if file not in whole:
            yield f"left '{file}'"
        elif not name.startswith("train") and data != whole[file]:
            yield f"left '{file}' with {len(data)} bytes that differ from the {len(whole[file])} of a complete run"
    made = re.search(r"after (\d+) steps; saving", err)
    if made and process.returncode == expected:
        checkpoint = written / "chars.safetensors"
        step = step_of(checkpoint) if checkpoint.exists() else None
        if step != int(made[1]):
            yield f"made {made[1]} steps and saved {step}"


def stop_once(program, line, name, read, whole, seconds, moment, number):
    """One run that is stopped. Returns how it ended, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        written, cache = pathlib.Path(folder, "out"), pathlib.Path(folder, "cache")
        written.mkdir()
        process = start(program, words(line, read, written), cache)
        wait_for_handler(process)
        time.sleep(moment * min(seconds, LATEST))
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "hung", [f"did not end within {LONGEST} s"]
        left = content(written)
        return process.returncode, list(faults_of(process, number, out, err, left, whole, name, written))


def check_case(program, name, line, read, moments, seed):
    """Returns (stopped, finished, faults)."""
    with tempfile.TemporaryDirectory() as folder:
        written, cache = pathlib.Path(folder, "out"), pathlib.Path(folder, "cache")
        written.mkdir()
        begun = time.monotonic()
        process = start(program, words(line, read, written), cache)
        out, err = process.communicate(timeout=600)
        seconds = time.monotonic() - begun
        if process.returncode != 0:
            return 0, 0, [f"a complete run ended with {process.returncode}: {err[-300:]}"]
        whole = content(written)
        if name == "train":
            (read / "chars.safetensors").write_bytes((written / "chars.safetensors").read_bytes())
    stopped, finished, faults = 0, 0, []
    dice = random.Random(f"{seed} {name}")
    for i in range(moments):
        for number in (signal.SIGINT, signal.SIGTERM):
            moment = dice.random()
            code, wrong = stop_once(program, line, name, read, whole, seconds, moment, number)
            stopped += code != 0
            finished += code == 0
            faults += [f"{number.name} at {moment:.3f} of {seconds:.2f} s: {text}" for text in wrong]
    return stopped, finished, faults


def check_file_limit(program, read):
    """A file beyond the shell's limit is an error with a message, and leaves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        line = f"ulimit -f 1024; exec {program} run {read}/big.onnx --random -o {folder}/out"
        ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        left = list(content(pathlib.Path(folder, "out")))
        good = ended.returncode == 1 and "File too large" in ended.stderr and not left
        return [] if good else [f"beyond the file size limit: {ended.returncode}, {ended.stderr[-200:]}, left {left}"]


def main():
    build, moments, seed = (sys.argv[1:] + ["3", "1"][len(sys.argv) - 2:])[:3]
    program = (ROOT / build / "trunnion").resolve()
    report = command.Report()
    with tempfile.TemporaryDirectory() as folder:
        read = pathlib.Path(folder)
        prepare(read)
        report.add(not (wrong := check_file_limit(program, read)), "a file size limit is an error" + "".join(wrong))
        table = cases()
        for name, what in (("generate, tokenize, logits, perplexity", smollm2.path()), ("embed", minilm.path())):
            if not what.exists():
                report.skip(f"{name}: no model at {what}")
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", 2))) as pool:
            def run(case):
                return check_case(program, *case, read, int(moments), seed)
            first = [case for case in table if case[0] == "train"]  # writes what `train --resume` reads
            rest = [case for case in table if case[0] != "train"]
            results = dict(zip((c[0] for c in first), map(run, first)))
            results |= dict(zip((c[0] for c in rest), pool.map(run, rest)))
    for name, (stopped, finished, faults) in results.items():
        report.add(not faults, f"{name}: stopped {stopped} times, ended before {finished} times" +
                   "".join(f"\n    {fault}" for fault in faults))
    report.add(sum(stopped for stopped, _, _ in results.values()) >= len(results),
               "most runs were stopped before their end")
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
