"""command.py BUILD devices | train | bench | embed | help | left-out PART… — the command on this machine.

devices    lists the devices; the processor has to be among the usable ones.
train      trains a small network on every backend that the listing calls available, with --strict, so that none of it
           can run elsewhere unseen; says "ran on: NAME" for each. A backend that is listed and then fails is a failure.
embed      embeddings as JSON, as an .npy file, and the texts that are most similar; wrong options.
bench      what a work starts from and yields, as files; rows with their keys; wrong options.
help       runs the examples of each command's help; a training for a few steps only. With N, of one command in N,
           from SEED on.
left-out   in a build without PARTs the listing names each with the reason not_built.
"""

import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from checks import event_files  # noqa: E402
from text import minilm  # noqa: E402
import onnx_decoders  # noqa: E402
from text import smollm2  # noqa: E402

STEPS = 20
EXAMPLE_SECONDS = 120
ENGINES = {"torch"}  # no driver yet


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(text if good else f"failed: {text}", flush=True)

    def skip(self, text):
        self.skipped += 1
        print(f"skipped: {text}", flush=True)


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
    check_memory_limit(program, report)
    check_fit(program, report)
    check_events(program, report)


def check_events(program, report):
    """Two runs in one folder for TensorBoard: the second resumes at step 4 of 6, and each step is there once."""
    with tempfile.TemporaryDirectory() as folder:
        events, kept = f"{folder}/events", f"{folder}/kept.safetensors"
        words = ["train", "digits", "--device", "cpu", "--tensorboard", events]
        first = call(program, *words, "--steps", "4", "--save", kept)
        seen = event_files.read(events)
        call(program, *words, "--steps", "6")
        last = call(program, *words, "--steps", "8", "--resume", kept)
        got = event_files.read(events)
        losses = got.get("loss/training", [])
        report.add(first and last and [step for step, _ in losses] == list(range(1, 9)) and
                   losses[:4] == seen["loss/training"] and math.isclose(losses[-1][1], last["final_loss"], rel_tol=1e-6) and
                   all(rate == struct.unpack("f", struct.pack("f", 0.002))[0] for _, rate in got["learning_rate"]),
                   "--tensorboard: a resumed run continues its charts")
        ended = subprocess.run([program, *words[:-1], kept], capture_output=True, text=True)
        report.add(ended.returncode == 1 and kept in ended.stderr, "--tensorboard: a folder that is a file is told")


def check_fit(program, report):
    """What `fit` says of a training is what it then takes."""
    words = ["train", "digits", "--model", "cnn", "--device", "cpu"]
    said, took = call(program, "fit", *words), call(program, "fit", "--measure", *words)
    report.add(said and took and not said["measured"] and took["measured"] and
               abs(said["total_bytes"] - took["total_bytes"]) <= max(0.02 * took["total_bytes"], 3 << 19),
               f"fit train digits --model cnn: {said and said['total_bytes']} predicted, "
               f"{took and took['total_bytes']} taken")
    for writing in ("--save=x", "--repo=x"):  # an option may be cut short
        ended = subprocess.run([program, "fit", *words, writing], capture_output=True, text=True)
        report.add(ended.returncode == 2 and "no effect" in ended.stderr, f"fit refuses {writing}: it writes a file")
    ended = subprocess.run([program, "fit", "train", "-h"], capture_output=True, text=True)
    report.add(ended.returncode == 0 and ended.stdout.startswith("usage: trunnion fit"), "fit train -h gives help")
    network = call(program, "fit", str(ROOT / "tests" / "corpus" / "onnx" / "limits.onnx"))
    report.add(network and network["fits"], "fit of a network that needs no input")


def check_memory_limit(program, report):
    """A transformer within a limit: the loss of the free run, to the last bit if the batch stays whole."""
    words = ["train", "chars", "--steps", "2", "--device", "cpu"]
    wide = call(program, *words, "--memory", "4G")
    for percent in (75, 50, 35) if wide else ():
        limit = wide["memory_peak"] * percent // 100
        got = call(program, *words, "--memory", str(limit))
        good = got is not None and got["memory_peak"] <= limit and (got["recomputes"] or got["parts"] > 1) and (
            got["final_loss"] == wide["final_loss"] if got["parts"] == 1 else
            abs(got["final_loss"] - wide["final_loss"]) < 1e-4)
        report.add(good, f"--memory: {percent} % of {wide['memory_peak'] >> 20} MiB: {got and got['memory_peak'] >> 20} MiB, "
                         f"recomputes: {got and got['recomputes']}, parts: {got and got['parts']}")
    ended = subprocess.run([program, *words, "--memory", "4M"], capture_output=True, text=True)
    report.add(wide and ended.returncode == 1 and "are missing" in ended.stderr and "nothing was loaded" in ended.stderr and
               f"without a limit it takes {wide['memory_peak'] / 2**20:.1f} MiB" in ended.stderr, "--memory: what is missing is told")
    ended = subprocess.run([program, *words, "--memory", "1G", "--devices", "cpu,cpu"], capture_output=True, text=True)
    report.add(ended.returncode == 2, "wrong usage: --memory with --devices")


def read_floats(path):
    """{name: numbers} of the f32 tensors in a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    ends = {name: [8 + length + offset for offset in t["data_offsets"]] for name, t in header.items()
            if t.get("dtype") == "F32"}
    return {name: struct.unpack(f"<{(end - at) // 4}f", data[at:end]) for name, (at, end) in ends.items()}


def check_bench(program, report, _):
    with tempfile.TemporaryDirectory() as folder:
        good = call(program, "bench", "add-16", "policy-train-1", "--save", folder) is not None
        start, result, before, after = (
            read_floats(pathlib.Path(folder) / f"{name}.safetensors") if good else {}
            for name in ("add-16.start", "add-16.result", "policy-train-1.start", "policy-train-1.result"))
    sums = [struct.unpack("<f", struct.pack("<f", a + b))[0] for a, b in zip(start["input.0"], start["input.1"])]
    report.add(list(result["result.0"]) == sums, "--save: a work's inputs, and its results beside them")
    weights = [name for name in before if name.startswith("model.")]
    moved = [name for name in weights if before[name] != after[name]]
    report.add(len(weights) == 8 and moved == weights, "--save: weights before and after a training step")
    rows = (call(program, "bench", "quiet", "record-15", "gemm-f32-256", "--seconds", "0.01") or {}).get("rows", [])
    keys = {"work", "unit", "value", "limit_fraction", "best", "samples"}
    report.add([r["work"] for r in rows] == ["quiet", "record-15", "gemm-f32-256"] and all(keys == set(r) for r in rows),
               "rows come in order, with their keys")
    report.add(all(r["value"] > 0 for r in rows) and rows[2]["limit_fraction"] > 0, "all are measured, one by its limit")
    profiled = (call(program, "bench", "gemm-f32-256", "--profile", "--seconds", "0.01") or {"rows": [{}]})["rows"][0]
    parts = {"command", "seconds", "times", "limit_fraction", "bytes_per_second"}
    commands = profiled.get("profile", [])
    report.add([set(c) for c in commands] == [parts] and all(c[key] > 0 for c in commands for key in parts - {"command"}),
               "--profile: the product is its one command")
    for words in (["no-such-work"], ["add-16", "--seconds", "-1"], ["add-16", "--seconds", "x"],
                  ["add-16", "--seconds", ""], ["add-16", "--save", ""]):
        ended = subprocess.run([program, "bench", *words], capture_output=True).returncode
        report.add(ended == 2, f"wrong usage: bench {' '.join(words)}")
    works = (call(program, "bench", "--list") or {}).get("works", [])
    lines = subprocess.run([program, "bench", "--list"], capture_output=True, text=True).stdout.split()
    report.add({"add-16", "gemm-f32-256", "start", "quiet"} <= set(works) and works == lines, "--list: all works")
    missing = subprocess.run([program, "bench", "llm-prompt-512", "--model", "no.gguf"], capture_output=True).returncode
    report.add(missing != 0, "a model that is not there is a failure")


def write_encoder(folder):
    """A BERT of one layer with random weights."""
    random.seed(5)
    both, layer = (8, 8), "encoder.layer.0."
    shapes = {"embeddings.word_embeddings.weight": (20, 8), "embeddings.position_embeddings.weight": (10, 8),
              "embeddings.token_type_embeddings.weight": (2, 8)}
    for name, shape in (("attention.self.query", both), ("attention.self.key", both), ("attention.self.value", both),
                        ("attention.output.dense", both), ("attention.output.LayerNorm", (8,)),
                        ("intermediate.dense", (12, 8)), ("output.dense", (8, 12)), ("output.LayerNorm", (8,))):
        shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[:1]}
    shapes |= {"embeddings.LayerNorm.weight": (8,), "embeddings.LayerNorm.bias": (8,)}
    header, data = {}, b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *(random.gauss(0, 1) for _ in range(count)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "bert", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
         "num_attention_heads": 2, "max_position_embeddings": 10}))


def check_embed(program, report, _):
    texts = ["1 2 3", "4", "5 6 7 8", "1 2 4"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_encoder(folder)
        vectors = (call(program, "embed", "-m", name, "--ids", *texts) or {}).get("embeddings", [])
        call(program, "embed", "-m", name, "--ids", *texts, "-o", name + "/v.npy")
        data = (folder / "v.npy").read_bytes()
        numbers = struct.unpack("<32f", data[-128:])
        near = max(abs(a - b) for a, b in zip(numbers, sum(vectors, [])))
        report.add(data.startswith(b"\x93NUMPY") and b"(4, 8" in data[:128] and near < 1e-6, "-o: the embeddings as .npy")
        similar = (call(program, "embed", "-m", name, "--ids", "--similar", texts[0], *texts[1:], "--top", "2") or {})["similar"]
        norm = lambda v: math.sqrt(sum(x * x for x in v))
        cosines = sorted(((sum(a * b for a, b in zip(vectors[0], v)) / norm(vectors[0]) / norm(v), i)
                          for i, v in enumerate(vectors[1:])), reverse=True)[:2]
        good = [s["index"] for s in similar] == [i for _, i in cosines] and all(
            abs(s["cosine"] - c) < 1e-5 and s["text"] == texts[1 + i] for s, (c, i) in zip(similar, cosines))
        report.add(good, f"--similar: the two nearest, {similar}")
        for words in (["--top", "1", "1"], ["--similar", "1"], ["--similar", "1", "2", "-o", name + "/x.npy"],
                      ["1", "--pooling", "sum"]):
            ended = subprocess.run([program, "embed", "-m", name, "--ids", *words], capture_output=True).returncode
            report.add(ended == 2, f"wrong usage: embed {' '.join(words)}")


def examples_of(text):
    """The lines below "examples:", without the remarks that stand behind many blanks."""
    below = re.search(r"^examples:\n((?:  .*\n)+)", text, re.MULTILINE)
    return [re.split(r" {3,}", line.strip())[0] for line in below.group(1).splitlines()] if below else []


# ---- a network of one node, by the field numbers of onnx.proto -------------------------------------------------------

def varint(v):
    return bytes([v]) if v < 128 else bytes([v & 127 | 128]) + varint(v >> 7)


def message(*fields):
    """Protobuf: pairs of a field's number and its value, an integer, a text or a message."""
    out = b""
    for number, value in fields:
        data = value.encode() if isinstance(value, str) else value
        out += varint(number << 3) + varint(data) if isinstance(data, int) else \
            varint(number << 3 | 2) + varint(len(data)) + data
    return out


def write_network(folder):
    """model.onnx: output = input + input, [1, 3, 1, 2] of f32; image.npy and a picture for it (PNM, which needs no
    library, whatever its name); and two cases of it with what is expected."""
    extents = (1, 3, 1, 2)
    shape = message(*((1, message((1, n))) for n in extents))
    ports = {n: message((1, n), (2, message((1, message((1, 1), (2, shape)))))) for n in ("input", "output")}
    node = message((1, "input"), (1, "input"), (2, "output"), (4, "Add"))
    graph = message((1, node), (2, "twice"), (11, ports["input"]), (12, ports["output"]))
    network = message((1, 8), (8, message((2, 13))), (7, graph))
    numbers = [struct.pack("<6f", *(k * i for i in range(6))) for k in (1, 2)]
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 1, 2), }".ljust(117) + b"\n"
    (folder / "model.onnx").write_bytes(network)
    (folder / "photo.jpg").symlink_to(ROOT / "tests/corpus/npy/picture.ppm")
    (folder / "image.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + numbers[0])
    for name in ("test_add", "test_conv"):
        data = folder / "cases" / name / "test_data_set_0"
        data.mkdir(parents=True)
        (data.parent / "model.onnx").write_bytes(network)
        for what, raw in zip(("input", "output"), numbers):
            (data / f"{what}_0.pb").write_bytes(message(*((1, n) for n in extents), (2, 1), (9, raw)))


def write_decoders(folder):
    """decoder.onnx and recurrent.onnx with their first inputs. Returns the absent ones: they need onnx and numpy."""
    try:
        import numpy
        import onnx  # noqa: F401
    except ImportError:
        return ["decoder.onnx", "recurrent.onnx", "prompt.npy"]
    onnx_decoders.written_out(folder / "decoder.onnx")
    onnx_decoders.recurrent(folder / "recurrent.onnx")
    numpy.save(folder / "prompt.npy", numpy.array([[3, 1, 4, 1, 5]], "i8"))
    numpy.save(folder / "frame.npy", numpy.zeros((3, 1, 7), "f4"))
    return []


def furnish(folder):
    """Puts there what the examples name: models, networks and cases, weights, texts. Returns absent models."""
    models = [("model.gguf", smollm2.path(), smollm2.path().exists()),
              (minilm.path().name, minilm.path(), minilm.is_there())]
    for name, path, there in models:
        if there:
            os.symlink(path, folder / name)
    write_network(folder)
    os.symlink(ROOT / "tests/corpus/pickle/older.pt", folder / "weights.pt")
    (folder / "lines.txt").write_text("A quick fox.\nA lazy dog.\n")
    for text in ("text.txt", "other.txt"):
        (folder / text).write_text("The quick brown fox jumps over the lazy dog. " * 40)
    from checks import example_models, finetune  # they import this file
    finetune.make_model(folder / "folder")
    for name in ("whisper-tiny", "whisper-small"):
        example_models.make_whisper(folder / name)
    example_models.make_vit(folder / "vit-base-patch16-224")
    example_models.make_sound(folder / "talk.wav")
    (folder / "notes.txt").write_text("A quick fox.\n\nA lazy dog.\n")
    chat = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning!"}]}
    (folder / "qa.jsonl").write_text((json.dumps(chat) + "\n") * 4)
    return [name for name, _, there in models if not there] + write_decoders(folder)


def check_help(program, report, parts):
    """Each command in a folder of its own that holds what its examples name: one may write a file that another reads."""
    overview = subprocess.run([program, "help"], capture_output=True, text=True).stdout
    commands = re.search(r"^commands:\n((?:  .*\n)+)", overview, re.MULTILINE).group(1)
    names = [line.split()[0] for line in commands.splitlines() if line.split()[0] != "help"]
    found = backends(program)
    # Open MPI refuses root and more processes than processors unless told otherwise.
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    furnished = tempfile.TemporaryDirectory()
    absent = furnish(pathlib.Path(furnished.name))
    every = int([*parts, "1"][0])
    for name in names[int(os.environ.get("SEED", 1)) % every::every]:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(furnished.name, folder, symlinks=True, dirs_exist_ok=True)
            if name == "convert":  # its examples write a model each: a small one
                pathlib.Path(folder, "model.gguf").unlink(missing_ok=True)
                subprocess.run([program, "convert", "folder", "model.gguf"], cwd=folder, check=True, capture_output=True)
            for example in examples_of(subprocess.run([program, "help", name], capture_output=True, text=True).stdout):
                made = ["model.gguf"] if name == "convert" else []
                if any(file in example for file in absent if file not in made):
                    report.skip(f"no model for: {example}")
                    continue
                device = re.search(r"trunnion tune .*--device (\w+)", example)  # never another one in its place
                if device and not found[device[1]]["available"]:
                    report.skip(f"no device for: {example}")
                    continue
                if example.startswith("mpirun") and not shutil.which("mpirun"):
                    report.skip(f"no mpirun for: {example}")
                    continue
                line = re.sub(r"trunnion train (\w+)", rf"trunnion train \1 --steps {STEPS}", example)
                if line.startswith("trunnion pull"):  # suite `pull` has a server of its own
                    report.skip(f"no network for: {example}")
                    continue
                if line.startswith("trunnion serve"):  # it would not end; 8080 may be in use
                    line = f"timeout --preserve-status -s INT 5 {line} --port 0 || test $? = 130"
                ended = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=folder, env=environment, text=True,
                                       stdin=subprocess.DEVNULL, capture_output=True, timeout=EXAMPLE_SECONDS)
                report.add(ended.returncode == 0, f"{line}" + (f": {ended.stderr[-600:]}" if ended.returncode else ""))


def check_left_out(program, report, parts):
    found = backends(program)
    report.add(found.get("cpu", {}).get("available"), "the processor is available")
    for part in map(str.lower, parts):
        backend = found.get(part) or found.get(f"engine:{part}") or {}
        report.add(backend.get("reason_code", backend.get("reason")) == "not_built", f"{part} is listed as not built")


CHECKS = {"devices": check_devices, "train": check_train, "bench": check_bench, "embed": check_embed, "help": check_help,
          "left-out": check_left_out}


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
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
