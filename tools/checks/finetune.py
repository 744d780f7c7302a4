"""finetune.py BUILD [all] — `trunnion finetune` on a small random model: what it learns, saves, resumes and refuses.

The model is a folder made here: two layers, the small tokenizer of the tests, a chat template. Looked at: the validation
loss falls; the adapter has PEFT's names; a run stopped by SIGINT and resumed has the bits of one that was not; `generate
--lora` says what the merged model says; a quantized GGUF file and all weights train, too; the report is one page whose
text is escaped; several processes (Open MPI) have the bits of one. With `all`, also SmolLM2-135M
(tools/text/smollm2.py): LoRA beside its quantized weights.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from text import smollm2  # noqa: E402
from checks import event_files, processes  # noqa: E402
from checks.command import Report  # noqa: E402

LIMIT = 300
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 32, 48, 2, 4, 2
TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant] {% endif %}")
END = "<|end|>"
COLOURS = ["red", "green", "blue", "white"]


def save_tensors(path, tensors):
    """tensors: name → (shape, floats)."""
    header, at, blobs = {}, 0, []
    for name, (shape, values) in tensors.items():
        blob = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def byte_tokenizer():
    """GPT-2's letters for the 256 bytes, a token that ends texts, and one merge."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in plain)}
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": 256, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {letters[b]: b for b in range(256)} | {END: 256, "QZ": 257}, "merges": ["Q Z"]}}


def make_model(folder, seed=3, experts=0):
    """experts: 0, or the number of experts of a mixture, each with tensors of its own."""
    vocabulary, chance = 258, random.Random(seed)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", "chat_template": TEMPLATE, "eos_token": END, "bos_token": END}))
    (folder / "config.json").write_text(json.dumps({
        **({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": experts,
            "num_experts_per_tok": 1} if experts else {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
        "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "vocab_size": vocabulary, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": 256, "bos_token_id": 256}))
    keys = HIDDEN * KV_HEADS // HEADS
    shapes = {"model.embed_tokens.weight": [vocabulary, HIDDEN], "model.norm.weight": [HIDDEN]}
    for i in range(LAYERS):
        inner = {"mlp.gate_proj": [INNER, HIDDEN], "mlp.up_proj": [INNER, HIDDEN], "mlp.down_proj": [HIDDEN, INNER]}
        if experts:
            inner = {"block_sparse_moe.gate": [experts, HIDDEN]}
        for k in range(experts):
            inner |= {f"block_sparse_moe.experts.{k}.{w}": [HIDDEN, INNER] if w == "w2" else [INNER, HIDDEN]
                      for w in ("w1", "w2", "w3")}
        for name, shape in {"self_attn.q_proj": [HIDDEN, HIDDEN], "self_attn.k_proj": [keys, HIDDEN],
                            "self_attn.v_proj": [keys, HIDDEN], "self_attn.o_proj": [HIDDEN, HIDDEN],
                            **inner, "input_layernorm": [HIDDEN],
                            "post_attention_layernorm": [HIDDEN]}.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    save_tensors(folder / "model.safetensors", {
        name: (shape, [1.0] * shape[0] if len(shape) == 1 else [chance.gauss(0, 0.2) for _ in range(shape[0] * shape[1])])
        for name, shape in shapes.items()})


def make_data(path, count):
    lines = []
    for i in range(count):
        colour, thing = COLOURS[i % 4], ["sky", "tree", "snow"][i % 3]
        if i % 3 == 0:
            lines.append({"messages": [{"role": "user", "content": f"The {thing}?"},
                                       {"role": "assistant", "content": f"It is {colour} <b>&"}]})
        elif i % 3 == 1:
            lines.append({"prompt": f"What about the {thing}? ", "completion": f"It is {colour}"})
        else:
            lines.append({"text": f"The {thing} is {colour}."})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")


class Suite(Report):
    def __init__(self, build, folder):
        super().__init__()
        self.program, self.folder = build / "trunnion", folder
        self.model, self.data = folder / "model", folder / "data.jsonl"
        make_model(self.model)
        make_data(self.data, 40)

    def expect(self, good, text, detail=""):
        self.add(good, text if good else f"{text}: {detail}")

    def run(self, *words):
        return subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, timeout=LIMIT)

    def tune(self, out, *words, model=None, data=None):
        done = self.run("finetune", "-m", model or self.model, "--data", data or self.data, "--out", self.folder / out,
                        "--context", 96, "--batch", 4, "--seed", 2, "--json", *words)
        try:
            return json.loads(done.stdout), done
        except ValueError:
            return {}, done

    def ids(self, model, *words):
        done = self.run("generate", "-m", model, "--ids", "5,6,7,8,9", "-n", 12, "--greedy", "--json", "--cache", "f32",
                        *words)
        return json.loads(done.stdout).get("ids", done.stderr) if done.stdout else done.stderr


LORA = ("--lora", 4, "--lr", 0.02, "--validation", 0.2, "--steps", 16)


def learns(suite):
    report, log = suite.folder / "run.html", suite.folder / "log.jsonl"
    events = suite.folder / "events"
    got, done = suite.tune("lora", *LORA, "--report", report, "--log", log, "--tensorboard", events)
    before, after = got.get("validation_loss_before"), got.get("validation_loss")
    suite.expect(done.returncode == 0 and after and after < 0.8 * before, "LoRA learns", (before, after, done.stderr))
    names = header_of(suite.folder / "lora" / "adapter_model.safetensors")
    suite.expect(names["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"]["shape"] == [4, HIDDEN]
                 and len(names) == 1 + 2 * 7 * LAYERS, "the adapter has PEFT's names", list(names)[:3])
    settings = json.loads((suite.folder / "lora" / "adapter_config.json").read_text())
    suite.expect(settings["r"] == 4 and settings["lora_alpha"] == 8 and sorted(settings["target_modules"]) ==
                 ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"], "and its settings",
                 settings)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    suite.expect([line["step"] for line in steps] == list(range(1, 17)) and all(line["gradient_norm"] > 0 for line in
                 steps) and any("validation_loss" in line for line in lines), "the log has a line a step", lines[:2])
    charts = event_files.read(events)
    suite.expect(len(charts["loss/training"]) == 16 and [f"{v:.4g}" for _, v in charts["gradient_norm"]] ==
                 [f"{line['gradient_norm']:.4g}" for line in steps] and len(charts["loss/validation"]) >= 2 and
                 all(isinstance(text, str) and text for _, text in charts["sample"]), "and so has TensorBoard",
                 list(charts))
    page = report.read_text()
    suite.expect("finished" in page and page.count("[16,") >= 1 and "<b>" not in page and "http" not in
                 page.replace("http-equiv", ""), "the report is a page of its own, with escaped text")


def resumes(suite):
    whole, _ = suite.tune("straight", *LORA[:-1], 60)
    log = suite.folder / "stopped.jsonl"
    child = subprocess.Popen([suite.program, "finetune", "-m", suite.model, "--data", suite.data, "--out", suite.folder /
                              "stopped", "--context", "96", "--batch", "4", "--seed", "2", "--json", "--log", log,
                              *map(str, LORA[:-1]), "60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    end = time.monotonic() + LIMIT
    while child.poll() is None and time.monotonic() < end and not (log.exists() and log.read_text().count("\n") > 4):
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    text, _ = child.communicate(timeout=LIMIT)
    stopped = json.loads(text or "{}")
    suite.expect(child.returncode == 130 and stopped.get("interrupted") and 0 < stopped["steps"] < 60,
                 f"SIGINT saves after step {stopped.get('steps')} and ends", (child.returncode, text))
    _, done = suite.tune("stopped", *LORA[:-1], 60)
    suite.expect(done.returncode == 1 and "--resume" in done.stderr, "a checkpoint is not overwritten", done.stderr)
    _, done = suite.tune("stopped", *LORA[:-1], 61, "--resume")
    suite.expect(done.returncode == 1 and "another run" in done.stderr, "nor resumed with other options", done.stderr)
    again, done = suite.tune("stopped", *LORA[:-1], 60, "--resume")
    same = all((suite.folder / "straight" / name).read_bytes() == (suite.folder / "stopped" / name).read_bytes()
               for name in ("adapter_model.safetensors", "adapter_config.json")) if again else False
    suite.expect(same and again["loss"] == whole["loss"], "a resumed run has the same bits", done.stderr)
    suite.expect(not (suite.folder / "stopped" / "checkpoint.safetensors").exists(), "and leaves no checkpoint")


def stops_late(suite):
    """SIGINT during the last validation, when nothing is left to train: the run ends with its result."""
    many, log, out = suite.folder / "many.jsonl", suite.folder / "late.jsonl", suite.folder / "late"
    make_data(many, 600)
    child = subprocess.Popen([suite.program, "finetune", "-m", suite.model, "--data", many, "--out", out, "--steps", "1",
                              "--validation", "0.9", "--log", log, "--json"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
    end = time.monotonic() + LIMIT
    while child.poll() is None and time.monotonic() < end and not (log.exists() and '"loss"' in log.read_text()):
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    text, _ = child.communicate(timeout=LIMIT)
    suite.expect(child.returncode in (0, 130) and json.loads(text or "{}").get("interrupted") is False
                 and (out / "adapter_model.safetensors").exists() and not (out / "checkpoint.safetensors").exists(),
                 "SIGINT after the last step leaves the result", (child.returncode, text))


def keeps(suite):
    """A result that cannot be saved: a checkpoint keeps it, and --resume of the same model saves it."""
    out, report = suite.folder / "kept", suite.folder / "kept.html"
    words = ("--lora", 4, "--lr", 0.02, "--steps", 3)
    (out / "adapter_model.safetensors").mkdir(parents=True)
    _, done = suite.tune("kept", *words, "--report", report)
    suite.expect(done.returncode == 1 and "--resume" in done.stderr and (out / "checkpoint.safetensors").exists(),
                 "a result that cannot be saved is kept", done.stderr)
    suite.expect("<small>failed</small>" in report.read_text(), "and the report says that the run failed")
    (out / "adapter_model.safetensors").rmdir()
    other = suite.folder / "other"
    make_model(other, seed=4)
    _, done = suite.tune("kept", *words, "--resume", model=other)
    suite.expect(done.returncode == 1 and "another run" in done.stderr, "another model is refused", done.stderr)
    got, done = suite.tune("kept", *words, "--resume")
    _, _ = suite.tune("unkept", *words, "--report", report)
    same = [(suite.folder / name / "adapter_model.safetensors").read_bytes() for name in ("kept", "unkept")
            if (suite.folder / name / "adapter_model.safetensors").is_file()]
    suite.expect(done.returncode == 0 and got["steps"] == 3 and len(same) == 2 and same[0] == same[1],
                 "--resume after the last step saves the result", done.stderr)
    log = suite.folder / "full.jsonl"
    log.symlink_to("/dev/full")
    _, done = suite.tune("logged", *words, "--log", log)
    suite.expect(done.returncode == 1 and "No space left" in done.stderr and "--resume" in done.stderr,
                 "a log that cannot be written ends the run and loses no step", done.stderr)
    got, done = suite.tune("logged", *words, "--resume")
    bits = [suite.folder / name / "adapter_model.safetensors" for name in ("logged", "unkept")]
    suite.expect(done.returncode == 0 and bits[0].read_bytes() == bits[1].read_bytes(), "which is continued", done.stderr)
    for value in ("1.5", "-1", "nan"):
        _, done = suite.tune("shares", *words, f"--validation={value}")
        suite.expect("a file or a number from 0 to 1" in done.stderr, f"--validation {value}", done.stderr)
    suite.expect("nan" not in report.read_text().split("<script>")[0], "a report without validation has no nan")


def foresees(suite):
    """What could not be saved is refused before a step is made."""
    log, place, mixture = suite.folder / "none.jsonl", suite.folder / "place", suite.folder / "mixture"
    place.mkdir()
    done = suite.run("convert", suite.model, place / "model.gguf", "--quantize", "Q8_0")
    before = (place / "model.gguf").read_bytes()
    make_model(mixture, experts=2)
    for model, out, words in ((place / "model.gguf", "place", "is the model itself"),
                              (suite.model, "model", "is the model itself"),
                              (mixture, "experts", "saving trained experts is not supported")):
        _, done = suite.tune(out, "--full", "--steps", 2, "--log", log, model=model)
        suite.expect(done.returncode == 1 and words in done.stderr and not log.exists(),
                     f"refused before training: {out}", done.stderr)
    suite.expect((place / "model.gguf").read_bytes() == before, "the model is as it was")


def fits(suite):
    """Within a limit of memory, or refused with what is missing."""
    words = ("--lora", 4, "--steps", 2)
    wide, _ = suite.tune("wide", *words, "--memory", "1G")
    limit = wide["memory_peak"] * 8 // 10
    got, done = suite.tune("narrow", *words, "--memory", limit)
    suite.expect(done.returncode == 0 and got["memory_peak"] <= limit and got["recomputes"] and not wide["recomputes"] and
                 abs(got["loss"] - wide["loss"]) < 1e-5, "--memory: 80 % of the peak", (got, done.stderr))
    _, done = suite.tune("none", *words, "--memory", "300K")
    suite.expect(done.returncode == 1 and "are missing" in done.stderr and "nothing was loaded" in done.stderr,
                 "--memory: what is missing is told", done.stderr)


def joins(suite):
    """A prompt and its completion are one text: "xQ" + "Z" has the tokens x, QZ, end; "" + "Z" leaves the text before
    it alone. The last token of a text is not computed."""
    data = suite.folder / "joined.jsonl"
    lines = [{"prompt": "xQ", "completion": "Z"}] * 2 + [{"prompt": "", "completion": "ZZ"}]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    got, done = suite.tune("joined", "--steps", 1, data=data)
    suite.expect(got.get("tokens") == 2 + 2 + 2, "tokens may span a prompt and its completion", (got, done.stderr))


def merges(suite):
    adapter, merged = suite.folder / "lora", suite.folder / "merged.gguf"
    done = suite.run("convert", suite.model, merged, "--lora", adapter, "--quantize", "F32")
    beside = suite.ids(suite.model, "--lora", adapter)
    suite.expect(done.returncode == 0 and beside == suite.ids(merged) and beside != suite.ids(suite.model),
                 "the merged model says what the adapter says", (done.stderr, beside))
    suite.expect(not list(suite.folder.glob("*.merged*")), "nothing is left of merging")


def other_weights(suite):
    quantized = suite.folder / "small.gguf"
    done = suite.run("convert", suite.model, quantized, "--quantize", "Q8_0")
    got, tuned = suite.tune("quantized", *LORA, model=quantized)
    suite.expect(done.returncode == 0 and "validation_loss" in got and got["validation_loss"] < 0.8 * got["validation_loss_before"],
                 "LoRA learns beside quantized weights", (done.stderr, tuned.stderr, got))
    beside = suite.ids(quantized, "--lora", suite.folder / "quantized")
    suite.expect(beside != suite.ids(quantized) and isinstance(beside, list), "and its adapter counts", beside)
    for model, out, made in ((suite.model, "full", "full"), (quantized, "whole", "whole/model.gguf")):
        got, tuned = suite.tune(out, "--full", "--lr", 0.01, "--validation", 0.2, "--steps", 16, model=model)
        good = "validation_loss" in got and got["validation_loss"] < 0.8 * got["validation_loss_before"]
        suite.expect(good, f"all weights of {model.name} learn", (tuned.stderr, got))
        suite.expect(isinstance(suite.ids(suite.folder / made), list), "and the saved model generates",
                     suite.ids(suite.folder / made))


def refuses(suite):
    bad = suite.folder / "bad.jsonl"
    for text, words in (('{"text": "a b c"}\n{"texts": 1}\n', "line 2: the object needs"), ("{\n", "line 1"),
                        ('{"messages": [{"role": "user", "content": "a"}]}\n', "no text to learn from")):
        bad.write_text(text)
        _, done = suite.tune("bad", data=bad)
        suite.expect(done.returncode == 1 and words in done.stderr, f"refused: {words}", done.stderr)
    for words, said in ((("--targets", "x"), '"x" is not a matrix'), (("--validation", "1"), "leaves none"),
                        (("--full", "--lora", "4"), "exclude")):
        _, done = suite.tune("bad", *words)
        suite.expect(done.returncode in (1, 2) and said in done.stderr, f"refused: {words[0]}", done.stderr)
    done = suite.run("generate", "-m", suite.model, "-p", "a", "--lora", suite.folder / "none")
    suite.expect(done.returncode == 1 and "adapter_config.json" in done.stderr, "a missing adapter is named", done.stderr)


def shares(suite):
    """Several processes: the bits of one with as many parts; one that is killed, one that is told to stop, a resumed run
    on another number of processes, and one that trains something else."""
    if not shutil.which(processes.LAUNCHERS["Open MPI"][0]):
        suite.skip("no Open MPI")
        return
    words = [*LORA[:-1], 40, "--parts", 4, "--save-every", 1, "--threads", 1]
    result = "adapter_model.safetensors"

    def begin(count, out, *more):
        common = ["finetune", "-m", suite.model, "--data", suite.data, "--context", 96, "--batch", 4, "--seed", 2, "--json"]
        line = [*processes.LAUNCHERS["Open MPI"], count, suite.program, *common, "--out", suite.folder / out,
                "--log", suite.folder / f"{out}.jsonl", *words, *more]
        return subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=processes.environment())

    def same(out):
        return (suite.folder / out / result).is_file() and \
            (suite.folder / out / result).read_bytes() == (suite.folder / "alone" / result).read_bytes()

    alone, done = suite.tune("alone", *words)
    out, err = (three := begin(3, "three")).communicate(timeout=LIMIT)
    several = json.loads(out) if three.returncode == 0 else {}
    equal = [several.get(k) == alone.get(k) for k in ("loss", "validation_loss", "validation_loss_before")]
    suite.expect(alone and all(equal) and same("three") and several["processes"] == 3,
                 "three processes: losses and adapter as one with the same parts", (equal, done.stderr, err))
    for name, kill, resumed_by in (("killed", signal.SIGKILL, 4), ("told", signal.SIGTERM, 1)):
        run, log, end = begin(2, name), suite.folder / f"{name}.jsonl", time.monotonic() + LIMIT
        while run.poll() is None and time.monotonic() < end and not (log.exists() and log.read_text().count("\n") > 6):
            time.sleep(0.002)
        ranks = processes.ranks_of(run)
        if ranks:
            os.kill(ranks[-1], kill)
        _, err = run.communicate(timeout=LIMIT)
        told = "signal 9" in err and "rank 1" in err if kill == signal.SIGKILL else "stopped by" in err
        suite.expect(ranks and run.returncode != 0 and told, f"a rank that is {name} ends the job, with a message",
                     (ranks, run.returncode, err))
        _, err = (again := begin(resumed_by, name, "--resume")).communicate(timeout=LIMIT)
        suite.expect(again.returncode == 0 and same(name), f"{resumed_by} processes resume it to the same bits", err)
    other = [":", "-n", 1, suite.program, "finetune", "-m", suite.model, "--data", suite.data, "--context", 96, "--batch",
             4, "--seed", 3, "--out", suite.folder / "unlike", *words]
    _, err = (run := begin(1, "mixed", *other)).communicate(timeout=LIMIT)
    suite.expect(run.returncode != 0 and "trains another run than rank 0" in err and not
                 any((suite.folder / name).exists() for name in ("mixed", "unlike")),
                 "another seed is refused, and no folder is left", err)


def smollm(suite):
    if not smollm2.is_there():
        suite.skip("SmolLM2 is not there (tools/text/smollm2.py)")
        return
    got, done = suite.tune("smollm", "--steps", 12, "--lr", 1e-3, "--validation", 0.2, model=smollm2.path())
    suite.expect(got and got["validation_loss"] < 0.7 * got["validation_loss_before"], "SmolLM2 learns", (got, done.stderr))


def main():
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(folder))
        for check in (learns, resumes, stops_late, keeps, foresees, fits, joins, merges, other_weights, refuses, shares,
                      *([smollm] if "all" in sys.argv else [])):
            check(suite)
        print(f"{suite.passed} passed, {suite.failed} failed, {suite.skipped} skipped")
        return suite.failed > 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
