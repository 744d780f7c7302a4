"""torch_finetune.py MODEL DATA.jsonl ADAPTER [options] — what `trunnion finetune` does, by transformers and peft.

MODEL is a folder, ADAPTER the initial adapter (from `trunnion finetune --steps 1 --lr 1e-12` with the same seed). The
same texts, marks, held-out share, order, schedule and clipping in f32; texts of a batch are padded. Prints a JSON object:
losses, validation before and after, tokens a second, peak memory. Needs torch, transformers and peft.
"""

import argparse
import json
import math
import resource
import time

import torch
import transformers
from peft import PeftModel

MASK = 2**64 - 1


def mixed(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def order(count, seed, epoch):
    """tn_batches: a Feistel network of six rounds with cycle walking."""
    half = 1
    while half < 31 and 1 << 2 * half < count:
        half += 1
    mask, key, out = (1 << half) - 1, mixed((seed + 0x9E3779B97F4A7C15 * (epoch + 1)) & MASK), []
    for x in range(count):
        while True:
            left, right = x >> half, x & mask
            for r in range(1, 7):
                left, right = right, left ^ (mixed((key + r * 0xD1342543DE82EF95 + right) & MASK) & mask)
            x = left << half | right
            if x < count:
                break
        out.append(x)
    return out


def read(path, tokenizer):
    texts = []
    for line in open(path, encoding="utf-8"):
        messages = json.loads(line)["messages"]

        def ids(part, prompt=False):
            text = tokenizer.apply_chat_template(part, tokenize=False, add_generation_prompt=prompt)
            return tokenizer(text, add_special_tokens=False)["input_ids"]

        whole, marks = ids(messages), None
        marks = [0] * len(whole)
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                for k in range(len(ids(messages[:i], True)), len(ids(messages[:i + 1]))):
                    marks[k] = 1
        texts.append((whole, marks))
    return texts


def batch_of(texts):
    width = max(len(ids) for ids, _ in texts)
    x = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in texts])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in texts])
    answer = torch.tensor([m + [0] * (width - len(m)) for _, m in texts])
    answer[:, 0] = 0
    return {"input_ids": x, "attention_mask": mask, "labels": x.masked_fill(answer == 0, -100)}, int(answer.sum())


@torch.no_grad()
def validate(model, texts):
    total = count = 0
    for at in range(0, len(texts), 8):
        batch, predicted = batch_of(texts[at:at + 8])
        total += float(model(**batch).loss) * predicted
        count += predicted
    return total / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model"), p.add_argument("data"), p.add_argument("adapter")
    p.add_argument("--seed", type=int, default=0), p.add_argument("--batch", type=int, default=8)
    p.add_argument("--steps", type=int), p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--validation", type=float, default=0.2), p.add_argument("--threads", type=int, default=2)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    texts = read(o.data, transformers.AutoTokenizer.from_pretrained(o.model))
    held = math.ceil(o.validation * len(texts))
    places = order(len(texts), o.seed + 0x5EED, 0) if held else range(len(texts))
    held, texts = [texts[i] for i in places[:held]], [texts[i] for i in places[held:]]
    model = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, o.adapter, is_trainable=True)
    trained = [q for q in model.parameters() if q.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=o.lr, weight_decay=0)
    before, losses, rates, tokens, busy = validate(model, held) if held else None, [], [], 0, 0.0
    seconds = 0.0
    each = math.ceil(len(texts) / o.batch)
    warmup = math.ceil(o.steps * 3 / 100)
    for step in range(o.steps):
        if step % each == 0:
            places = order(len(texts), o.seed, step // each)
        part = [texts[i] for i in places[step % each * o.batch:(step % each + 1) * o.batch]]
        rate = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (o.steps - warmup)))
        optimizer.param_groups[0]["lr"] = o.lr * rate
        begun, worked = time.monotonic(), time.process_time()
        batch, _ = batch_of(part)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        took, count = time.monotonic() - begun, sum(len(ids) - 1 for ids, _ in part)
        seconds += took
        busy += time.process_time() - worked
        tokens += count
        rates.append(count / took)
        losses.append(float(loss.detach()))
    print(json.dumps({"losses": losses, "validation_loss_before": before, "validation_loss": validate(model, held) if held else None,
                      "tokens": tokens, "tokens_per_second": tokens / seconds, "rates": rates, "cpu_seconds": busy,
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
