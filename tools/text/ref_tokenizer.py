"""ref_tokenizer.py — small vocabularies and what other tokenizers make of hostile texts with them.

Writes tests/golden/tokenizer_small.json. Byte-level BPE is trained and run by Hugging Face's tokenizers package, once
for each rule that cuts words, with the regular expression as the models' tokenizer.json files publish it;
SentencePiece's BPE is trained and run by Google's sentencepiece. So the merging and the rules are checked without a
model's file. The texts are those of tools/text/hostile_strings.py that both packages can take: UTF-8, and short. Run it
with a Python that has both packages.
"""

import io
import json
import pathlib
import sys

import sentencepiece
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import hostile_strings  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tokenizer_small.json"
CORPUS = ROOT / "tests" / "golden" / "text_alice.txt"
LONGEST = 70  # bytes of a text
EXTRA = "Ünïcödé naïve 東京 привет ١٢٣ 😀 don't I'LL 12345 foo_bar() != 0;\n\n\t\tx  "

CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|")
SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# GGUF's name: the expressions, each applied inside the pieces of those before it.
RULES = {
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "smollm": None,  # by the package's own parts
    "llama-bpe": [SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BLANKS],
    "qwen2": [SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BLANKS],
    "gpt-4o": [CASED % ((SUFFIXES + "?",) * 2) + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + BLANKS],
    "tekken": [CASED % ("", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + BLANKS],
    "deepseek-v3": [
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
        + BLANKS],
}
RULES["qwen35"] = [
    SUFFIXES + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + BLANKS
]
RULES["bailingmoe"] = [
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
]
RULES["seed-coder"] = [SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + BLANKS]
RULES["bloom"] = [r" ?[^(\s|[.,!?…。，、।۔،])]+"]
WHOLE_WORDS = {"llama-bpe", "tekken"}


def texts():
    rows = []
    for data, special in hostile_strings.rows():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if not special and "\0" not in text and len(data) <= LONGEST and text not in rows:
            rows.append(text)
    return rows


def pre_tokenizer(expressions):
    if expressions is None:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), behavior="isolated") for e in expressions] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_bpe(corpus):
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizer(RULES["gpt-2"])
    trained.train_from_iterator([corpus], trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    model = json.loads(trained.to_str())["model"]
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


def run_bpe(tokens, merges, rule, rows):
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(m.split(" ")) for m in merges]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule in WHOLE_WORDS))
    tokenizer.pre_tokenizer = pre_tokenizer(RULES[rule])
    return [tokenizer.encode(text).ids for text in rows]


def train_sentence(corpus):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus.splitlines()), model_writer=written, model_type="bpe", vocab_size=700,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def type_of(sp, i):
    kinds = [(sp.is_unknown, 2), (sp.is_control, 3), (sp.is_unused, 5), (sp.is_byte, 6)]
    return next((number for test, number in kinds if test(i)), 1)


def main():
    corpus = CORPUS.read_text() + EXTRA * 20
    rows = texts()
    tokens, merges = train_bpe(corpus)
    sp = train_sentence(corpus)
    n = range(sp.get_piece_size())
    result = {
        "provenance": {"written_by": "tools/text/ref_tokenizer.py",
                       "with": [f"tokenizers {tokenizers.__version__}", f"sentencepiece {sentencepiece.__version__}"]},
        "texts": rows,
        "bpe": {"tokens": tokens, "merges": merges, "rules": {r: run_bpe(tokens, merges, r, rows) for r in RULES}},
        "sentence": {"tokens": [sp.id_to_piece(i) for i in n], "scores": [round(sp.get_score(i), 6) for i in n],
                     "types": [type_of(sp, i) for i in n], "ids": [sp.encode(t) for t in rows],
                     "unknown": sp.unk_id(), "bos": sp.bos_id(), "eos": sp.eos_id()},
    }
    text = json.dumps(result, ensure_ascii=True, separators=(",", ":"))
    marks = ["texts", "bpe", "sentence", "rules", "merges", "ids", *RULES]
    for mark in (f'"{name}":' for name in marks):
        text = text.replace(mark, "\n" + mark)
    GOLDEN.write_text(text + "\n")
    print(f"wrote {GOLDEN.relative_to(ROOT)}: {len(rows)} texts, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
