"""finetune.py BUILD [--python PYTHON] [--count 60] [--rounds 1] [--prepare] — `trunnion finetune` beside transformers + peft.

SmolLM2-135M, LoRA of rank 8, f32: the same chats, order, schedule, initial adapter and number of threads on both sides
(tools/pytorch/torch_finetune.py). Sides take turns, each run is a new process. The losses are compared first: without
equal losses (1 %) nothing is printed about time. Then a table: losses, tokens a second of all steps and of the steps
after the first, peak memory. With --merge DIR the last adapter becomes DIR/merged.gguf, and llama.cpp
(tools/peers/llama_cpp.sh) has to continue the prompts of held-out chats with the command's tokens.

  --python PYTHON   an interpreter with torch, transformers and peft (this one)
  --prepare         only convert the model and write data and initial adapter (in the cache folder), then end
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from digits import cache_folder  # noqa: E402
from text import smollm2  # noqa: E402

SHARE, RATE, RANK = 0.2, 1e-3, 8
LOSSES_AGREE = 0.01
ANSWER_TOKENS = 24
TIE = 0.02  # llama.cpp's f16 cache moves logits by as much


def call(*words):
    words = [str(w) for w in words]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def steps_of(count):
    train = count - -(-count * SHARE // 1)
    return int(-(-train // 8))


def prepare(program, count):
    """The f32 folder, the chats and an adapter that both sides begin with. Made once."""
    folder = cache_folder() / "bench-finetune"
    model, data, adapter = folder / "model", folder / f"{count}.jsonl", folder / f"adapter-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    if not smollm2.is_there():
        sys.exit(f"{smollm2.path()} is missing: run tools/text/smollm2.py")
    if not (model / "tokenizer_config.json").exists():
        call(program, "convert", smollm2.path(), f"{model}/", "--quantize", "F32")
    call(sys.executable, ROOT / "tools" / "text" / "finetune_data.py", data, count)
    if not (adapter / "adapter_config.json").exists():
        call(program, "finetune", "-m", model, "--data", data, "--out", adapter, "--steps", 1, "--lr", 1e-12,
             "--lora", RANK, "--validation", SHARE)
    return model, data, adapter


def ours(program, model, data, count, threads, out):
    log = out.with_suffix(".log")
    found = json.loads(call(program, "finetune", "-m", model, "--data", data, "--out", out, "--steps", steps_of(count),
                            "--lr", RATE, "--lora", RANK, "--validation", SHARE, "--threads", threads, "--log", log,
                            "--json"))
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    found["rates"] = [r["tokens_per_second"] for r in rows if "loss" in r]
    return found


def theirs(python, model, data, count, threads, adapter):
    text = call(python, ROOT / "tools" / "pytorch" / "torch_finetune.py", model, data, adapter, "--steps",
                steps_of(count), "--lr", RATE, "--validation", SHARE, "--threads", threads)
    found = json.loads(text.splitlines()[-1])
    found["loss"] = found["losses"][-1]
    return found


def compare_losses(a, b):
    for name in ("validation_loss_before", "validation_loss", "loss"):
        if abs(a[name] - b[name]) > LOSSES_AGREE * abs(b[name]):
            sys.exit(f"{name}: {a[name]:.6f} here, {b[name]:.6f} there; nothing was timed")


def table(a, b):
    def rate(side):
        return statistics.median(r["tokens_per_second"] for r in side)

    def later(side):
        return statistics.median(statistics.median(r["rates"][1:]) for r in side)

    rows = [("validation loss before", *(f"{s[0]['validation_loss_before']:.6f}" for s in (a, b)), ""),
            ("validation loss after", *(f"{s[0]['validation_loss']:.6f}" for s in (a, b)),
             f"{a[0]['validation_loss'] / b[0]['validation_loss'] - 1:+.3%}"),
            ("loss of the last step", *(f"{s[0]['loss']:.6f}" for s in (a, b)), "")]
    for name, of in (("tokens a second, all steps", rate), ("tokens a second, median of later steps", later)):
        rows.append((name, f"{of(a):.0f}", f"{of(b):.0f}", f"{of(a) / of(b):.2f}"))
    peaks = [max(r["peak_bytes"] for r in s) for s in (a, b)]
    rows.append(("peak memory", *(f"{p / 1e9:.2f} GB" for p in peaks), f"{peaks[0] / peaks[1]:.2f}"))
    print("| | `trunnion finetune` | transformers + peft | ratio |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def prompts(data):
    for line in data.read_text().splitlines()[:6]:
        yield "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in json.loads(line)["messages"]
                      if m["role"] != "assistant") + "<|im_start|>assistant\n"


def check_merged(program, model, data, adapter, folder):
    """llama.cpp and the command continue prompts from the merged file, greedily."""
    from peers import llama_cpp  # needs numpy
    folder.mkdir(parents=True, exist_ok=True)
    f32, merged, equal, ties, total = folder / "f32.gguf", folder / "merged.gguf", 0, 0, 0
    call(program, "convert", model, f32)
    call(program, "convert", f32, merged, "--lora", adapter, "--quantize", "F16")
    peer = llama_cpp.Peer(merged, context=512)
    for prompt in prompts(data):
        ids = peer.tokenize(prompt.encode(), parse_special=True)
        here = [int(i) for i in call(program, "generate", "-m", merged, "--ids", ",".join(map(str, ids)), "-n",
                                     ANSWER_TOKENS, "--temperature", 0).split()]
        there = peer.greedy(ids, len(here))
        total, equal = total + 1, equal + (here == there)
        if here != there:
            at = next(i for i, (a, b) in enumerate(zip(here, there)) if a != b)
            row = peer.logits(ids + here[:at])[-1]
            gap = float(row[there[at]] - row[here[at]])
            ties += abs(gap) < TIE
            print(f"differs at token {at}: {here[at]} here, {there[at]} in llama.cpp, whose logit is {gap:+.4f} greater")
    print(f"merged file: {equal} of {total} prompts continue with the same tokens in llama.cpp, {ties} part at a tie")
    if equal + ties < total:
        sys.exit(1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build"), p.add_argument("--python", default=sys.executable)
    p.add_argument("--count", type=int, default=60), p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--threads", type=int, default=2), p.add_argument("--prepare", action="store_true")
    p.add_argument("--merge", type=pathlib.Path)
    o = p.parse_args()
    program = pathlib.Path(o.build) / "trunnion"
    model, data, adapter = prepare(program, o.count)
    if o.prepare:
        return
    a, b = [], []
    with tempfile.TemporaryDirectory() as work:
        for i in range(o.rounds):
            out = pathlib.Path(work) / f"out-{i}"
            a.append(ours(program, model, data, o.count, o.threads, out))
            if o.merge:
                continue
            b.append(theirs(o.python, model, data, o.count, o.threads, adapter))
            compare_losses(a[-1], b[-1])
        if o.merge:
            check_merged(program, model, data, out, o.merge)
            return
    table(a, b)


if __name__ == "__main__":
    main()
