"""signals.py BUILD [MOMENTS [SEED]] — every subcommand is stopped by SIGINT and SIGTERM at random moments.

MOMENTS of each signal, default 1. A stopped command ends with 130 or 143. It leaves nothing in its output folder that a
complete run would not leave, and every file that is there has the bytes of a complete run, or those of before. With --json standard output is one JSON
object or, if the text was cut off while it was written, nothing. A training that had begun saves the steps it made; a
fine-tuning and a download are continued by the same command to the bytes of a run that was not stopped. Each subcommand
of `trunnion help` must be in the table.
"""

import concurrent.futures
import http.server
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import wave

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools/checks"))
import command  # noqa: E402
import finetune  # noqa: E402
import pull  # noqa: E402
from text import minilm  # noqa: E402
from text import smollm2  # noqa: E402

LONGEST = 60   # seconds that a command may take to end after the signal
LATEST = 3.0   # seconds: later moments of a long command are not tried
MEBI = 1 << 20
ENDLESS = ("serve",)
# What the same command, with these options, continues after it was stopped, and the files that it keeps for that.
CONTINUED = {"finetune": (["--resume"], ["checkpoint.safetensors"]),
             "pull": ([], ["models/whole.gguf.part", "models/whole.gguf.part.url"])}


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


def write_whisper(folder):
    """A Whisper folder of random weights, two layers of 16 numbers, and 60 s of noise."""
    width, words, frames, context, chance = 16, 1527, 3000, 70, random.Random(2)
    shapes = {"encoder.conv1.weight": [width, 80, 3], "encoder.conv1.bias": [width],
              "encoder.conv2.weight": [width, width, 3], "encoder.conv2.bias": [width],
              "encoder.embed_positions.weight": [frames // 2, width], "decoder.embed_positions.weight": [context, width],
              "decoder.embed_tokens.weight": [words, width]}
    for side in ("encoder", "decoder"):
        layer = f"{side}.layers.0"
        norms = [f"{side}.layer_norm", f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"]
        attentions = [f"{layer}.self_attn"]
        if side == "decoder":
            norms.append(f"{layer}.encoder_attn_layer_norm")
            attentions.append(f"{layer}.encoder_attn")
        for name in norms:
            shapes |= {f"{name}.weight": [width], f"{name}.bias": [width]}
        for name in attentions:
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                shapes[f"{name}.{part}.weight"] = [width, width]
                if part != "k_proj":
                    shapes[f"{name}.{part}.bias"] = [width]
        shapes |= {f"{layer}.fc1.weight": [32, width], f"{layer}.fc1.bias": [32],
                   f"{layer}.fc2.weight": [width, 32], f"{layer}.fc2.bias": [width]}
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
               "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    ids = {text: 16 + i for i, text in enumerate(special)}
    folder.mkdir()
    finetune.save_tensors(folder / "model.safetensors", {
        "model." + name: (shape, [chance.gauss(0, 0.3) for _ in range(math.prod(shape))]) for name, shape in shapes.items()})
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": i, "content": text, "special": True} for text, i in ids.items()],
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "merges": [], "vocab": {chr(97 + i): i for i in range(16)}}}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "whisper", "d_model": width, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "num_mel_bins": 80, "vocab_size": words, "max_source_positions": frames // 2, "max_target_positions": context,
        "decoder_start_token_id": ids["<|startoftranscript|>"], "eos_token_id": ids["<|endoftext|>"]}))
    (folder / "generation_config.json").write_text(json.dumps({
        "is_multilingual": True, "decoder_start_token_id": ids["<|startoftranscript|>"],
        "eos_token_id": ids["<|endoftext|>"], "no_timestamps_token_id": ids["<|notimestamps|>"]}))
    with wave.open(str(folder / "noise.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(chance.randbytes(2 * 16000 * 60))


class SlowSite(pull.Site):
    """Sends a file in about a second, from where it is asked to."""

    def send(self, data, cut=None, can_continue=True):
        self.wfile = SlowFile(self.wfile)
        super().send(data, cut, can_continue)


class SlowFile:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        for at in range(0, len(data), 10_000):
            self.file.write(data[at:at + 10_000])
            self.file.flush()
            time.sleep(0.03)


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Clients that were stopped close their connections."""


def serve_files():
    """The address of a site with slow files; it lives as long as this process."""
    site = QuietServer(("127.0.0.1", 0), SlowSite)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{site.server_address[1]}"


def prepare(folder):
    """What the commands read."""
    noise = random.Random(1).randbytes(4096) * 4
    weights = b"".join(struct.pack("<f", (b - 127.5) / 256) for b in noise[:4096]) * 64  # 1 MiB
    write_safetensors(folder / "big.safetensors", {f"blk.{i}.weight": ([1024, 256], weights) for i in range(24)},
                      {"general.architecture": "none"})
    write_network(folder / "big.onnx", 1024)
    write_whisper(folder / "whisper")
    finetune.make_model(folder / "small")
    finetune.make_data(folder / "data.jsonl", 40)
    command.write_network(folder)
    (folder / "lines.txt").write_text("Hello\nWhat is it?\nAnd then?\n")
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
        ("chat", "chat -m {in}/small --seed 1 -n 40 --quiet"),
        ("finetune", "finetune -m {in}/small --data {in}/data.jsonl --out {out} --context 96 --batch 4 --seed 2 "
                     "--lora 4 --lr 0.02 --steps 40 --json"),
        ("info", "info {in}/small --tensors --json"),
        ("list", "list --json"),
        ("pull", f"pull {serve_files()}/whole.gguf --json"),
        ("serve", "serve -m {in}/small --port 0 --context 64 --json"),
        ("transcribe", "transcribe -m {in}/whisper {in}/whisper/noise.wav --json"),
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


def where_written(name, folder):
    """Downloads go to the cache folder, all else to the folder that is named."""
    return pathlib.Path(folder, "cache" if name == "pull" else "out")


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


def start(program, arguments, cache, read):
    with open(read / "lines.txt" if arguments[0] == "chat" else os.devnull, "rb") as lines:
        return subprocess.Popen([program, *arguments], env=environment(cache), stdin=lines, text=True,
                                errors="surrogateescape", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=restore_signals)


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
    expected, (_, kept) = 128 + number, CONTINUED.get(name, ([], []))
    if process.returncode not in (0, expected):
        yield f"ended with {process.returncode}, not {expected}: {err[-300:]}"
    if process.returncode == expected and out and name not in ("chat", *ENDLESS):
        try:
            json.loads(out.encode(errors="surrogateescape"))
        except ValueError as error:
            yield f"standard output is not one JSON object ({error}): {out[:200]}"
    for file, data in left.items():
        if file not in whole:
            if file not in kept:
                yield f"left '{file}'"
        elif not name.startswith("train") and data != whole[file]:
            yield f"left '{file}' with {len(data)} bytes that differ from the {len(whole[file])} of a complete run"
    made = re.search(r"after (\d+) steps; saving", err)
    if made and process.returncode == expected:
        checkpoint = written / "chars.safetensors"
        step = step_of(checkpoint) if checkpoint.exists() else None
        if step != int(made[1]):
            yield f"made {made[1]} steps and saved {step}"


def continue_run(program, arguments, name, cache, read, written, whole):
    """What is wrong with the files after the command was given again."""
    more, kept = CONTINUED[name]
    process = start(program, arguments + (more if any((written / file).exists() for file in kept) else []), cache, read)
    _, err = process.communicate(timeout=LONGEST)
    left = content(where_written(name, written.parent))
    if process.returncode:
        return [f"was not continued: {process.returncode}, {err[-300:]}"]
    wrong = sorted(file for file in set(left) | set(whole) if left.get(file) != whole.get(file))
    return [f"continued, {wrong} are not those of a run that was not stopped"] if wrong else []


def stop_once(program, line, name, read, whole, seconds, moment, number):
    """One run that is stopped. Returns how it ended, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        written, cache = pathlib.Path(folder, "out"), pathlib.Path(folder, "cache")
        written.mkdir()
        arguments = words(line, read, written)
        process = start(program, arguments, cache, read)
        wait_for_handler(process)
        time.sleep(moment * min(seconds, LATEST))
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "hung", [f"did not end within {LONGEST} s"]
        left = content(where_written(name, folder))
        faults = list(faults_of(process, number, out, err, left, whole, name, written))
        if name in CONTINUED and process.returncode:
            faults += continue_run(program, arguments, name, cache, read, written, whole)
        return process.returncode, faults


def check_case(program, name, line, read, moments, seed):
    """Returns (stopped, finished, faults)."""
    with tempfile.TemporaryDirectory() as folder:
        written, cache = pathlib.Path(folder, "out"), pathlib.Path(folder, "cache")
        written.mkdir()
        begun = time.monotonic()
        seconds, whole = LATEST, {}
        if name not in ENDLESS:
            process = start(program, words(line, read, written), cache, read)
            out, err = process.communicate(timeout=600)
            seconds = time.monotonic() - begun
            if process.returncode != 0:
                return 0, 0, [f"a complete run ended with {process.returncode}: {err[-300:]}"]
            whole = content(where_written(name, folder))
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
    build, moments, seed = (sys.argv[1:] + ["1", "1"][len(sys.argv) - 2:])[:3]
    program = (ROOT / build / "trunnion").resolve()
    report = command.Report()
    with tempfile.TemporaryDirectory() as folder:
        read = pathlib.Path(folder)
        prepare(read)
        report.add(not (wrong := check_file_limit(program, read)), "a file size limit is an error" + "".join(wrong))
        table = cases()
        commands = re.findall(r"^  ([a-z-]+) {2,}\S", subprocess.run([program, "help"], capture_output=True, text=True)
                              .stdout.split("common options")[0], re.MULTILINE)
        missing = set(commands) - {name.split()[0] for name, _ in table} - {"help"}
        needs = set() if smollm2.path().exists() else {"generate", "tokenize", "logits", "perplexity"}
        missing -= needs | (set() if minilm.is_there() else {"embed"})
        report.add(len(commands) > 20 and not missing, f"every subcommand is in the table; missing: {sorted(missing)}")
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
