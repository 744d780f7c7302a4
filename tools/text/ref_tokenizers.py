"""ref_tokenizers.py — small tokenizers that together have every part of tokenizer.json, and what they make of hostile texts.

Writes tests/golden/tokenizers.json: tokenizers (the text of their files) trained or put together with Hugging Face's
tokenizers package, with the ids, types and decoded texts that the package gives. tools/text/compare_tokenizers.py compares
all of them over many more texts. Run it with a Python that has tokenizers and sentencepiece.

Normalizers and pre-tokenizers are shown by a model that spells out bytes and marks each word's end, so that ids tell
the words exactly.
"""

import io
import json
import pathlib
import sys
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_model
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, processors, trainers
from tokenizers import normalizers as nz
from tokenizers import pre_tokenizers as pt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import hostile_strings  # noqa: E402
from text.ref_tokenizer import CORPUS, EXTRA, RULES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tokenizers.json"
LONGEST = 40  # bytes of a text in the golden file
EVERY = 7     # of the texts there
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def corpus():
    return (CORPUS.read_text() + EXTRA * 20).splitlines()


# What SentencePiece's own map is made of, in small: one letter to several, several to one, to nothing, spaces.
CHARS = [("ﬁ", "fi"), ("½", "1⁄2"), ("\uff76\uff9e", "\u30ac"), ("か\u3099", "が"), ("e\u0301", "é"), ("\u212b", "\xc5"), ("㎏", "kg"), ("\t", " "),
         ("\n", " "), ("\u3000", " "), ("\xa0", " "), ("\u200b", ""), ("\xad", ""), ("\x01", ""), ("！", "!"), ("Ａ", "A"),
         ("𝟘", "0"), ("…", "..."), ("👍", "+1"), ("\u200d", " "), ("\u0301", "'")]


def charsmap():
    """A map of characters as SentencePiece compiles it."""
    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for before, after in CHARS:
            rules.write(" ".join(f"{ord(c):X}" for c in before) + "\t" + " ".join(f"{ord(c):X}" for c in after) + "\n")
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=written,
                                                 model_type="unigram", vocab_size=200, minloglevel=2,
                                                 normalization_rule_tsv=rules.name)
    proto = sentencepiece_model.ModelProto()
    proto.ParseFromString(written.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def probe(normalizer=None, pre_tokenizer=None):
    """Spells out every word's bytes, with a ¶ at its end."""
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, end_of_word_suffix="¶"))
    if normalizer:
        t.normalizer = normalizer
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return t


def probes():
    """Each normalizer and pre-tokenizer, alone and in sequences."""
    yield "nz_bert", probe(nz.BertNormalizer(), pt.BertPreTokenizer())
    yield "nz_bert_cased", probe(nz.BertNormalizer(lowercase=False, handle_chinese_chars=False), pt.Whitespace())
    yield "nz_bert_accents", probe(nz.BertNormalizer(clean_text=False, strip_accents=True, lowercase=False))
    yield "nz_bert_lower", probe(nz.BertNormalizer(strip_accents=False))
    for form in (nz.NFC, nz.NFD, nz.NFKC, nz.NFKD, nz.Lowercase, nz.Nmt, nz.StripAccents, nz.ByteLevel):
        yield f"nz_{form.__name__.lower()}", probe(form())
    yield "nz_strip", probe(nz.Strip(), pt.Metaspace(prepend_scheme="first"))
    yield "nz_strip_left", probe(nz.Strip(right=False))
    yield "nz_strip_right", probe(nz.Strip(left=False))
    yield "nz_prepend", probe(nz.Prepend("▁x"), pt.Metaspace(prepend_scheme="first", split=False))
    yield "nz_replace", probe(nz.Replace("a", "<b>"))
    yield "nz_replace_regex", probe(nz.Sequence([nz.Replace(Regex(r"\s{2,}"), " "), nz.Replace(Regex(r"[\d\p{P}]"), "")]),
                                    pt.Metaspace(prepend_scheme="first"))
    yield "nz_replace_empty", probe(nz.Replace(Regex("x*"), "-"))
    yield "nz_precompiled", probe(nz.Precompiled(charsmap()))
    yield "nz_sequence", probe(nz.Sequence([nz.NFKD(), nz.StripAccents(), nz.Lowercase(), nz.Strip(),
                                            nz.Sequence([nz.Replace("``", '"'), nz.Prepend(" ")])]))
    yield "pt_byte_level", probe(None, pt.ByteLevel())
    yield "pt_byte_level_plain", probe(None, pt.ByteLevel(add_prefix_space=False, use_regex=False))
    yield "pt_bert", probe(None, pt.BertPreTokenizer())
    yield "pt_whitespace", probe(None, pt.Whitespace())
    yield "pt_whitespace_split", probe(None, pt.WhitespaceSplit())
    yield "pt_delimiter", probe(None, pt.CharDelimiterSplit("ä"))
    yield "pt_fixed", probe(None, pt.FixedLength(3))
    yield "pt_unicode_scripts", probe(None, pt.UnicodeScripts())
    yield "pt_digits", probe(None, pt.Digits(individual_digits=True))
    yield "pt_digits_run", probe(None, pt.Digits(individual_digits=False))
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"pt_metaspace_{scheme}_{split}".lower(), probe(None, pt.Metaspace("▁", scheme, split))
    for behavior in BEHAVIORS:
        yield f"pt_punctuation_{behavior}", probe(None, pt.Punctuation(behavior))
        yield f"pt_split_{behavior}", probe(None, pt.Split(Regex(r"\s+|\w'"), behavior))
        yield f"pt_split_text_{behavior}", probe(None, pt.Split("a", behavior))
        yield f"pt_split_invert_{behavior}", probe(None, pt.Split(Regex(r"\w+|[^\w\s]+"), behavior, invert=True))
    yield "pt_sequence", probe(nz.NFC(), pt.Sequence([pt.WhitespaceSplit(), pt.Digits(True),
                                                      pt.Sequence([pt.Punctuation("merged_with_next"),
                                                                   pt.ByteLevel(use_regex=False)])]))
    yield "pt_metaspace_middle", probe(None, pt.Sequence([pt.Split(Regex(r"\n+"), "isolated"), pt.Metaspace(),
                                                          pt.Digits()]))
    yield "pt_scripts_of_regex", probe(None, pt.Split(Regex(r"[\p{Han}\p{Hiragana}]+|^\S|\b\d$|(?i:hello)|[^\S\n]+"
                                                            r"|\p{N}{1,2}+|(?m:b.)|[[a-c]\h]z|\u00e9"), "isolated"))
    for name, expressions in RULES.items():
        if expressions:
            yield f"pt_rule_{name}", probe(None, pt.Sequence([pt.Split(Regex(e), "isolated") for e in expressions]))


def trained(model, trainer, normalizer, pre_tokenizer, **parts):
    t = Tokenizer(model)
    if normalizer:
        t.normalizer = normalizer
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    t.train_from_iterator(corpus(), trainer)
    for name, value in parts.items():
        setattr(t, name, value)
    return t


def changed(t, **options):
    """The same with other options of the model."""
    text = json.loads(t.to_str())
    text["model"].update(options)
    return Tokenizer.from_str(json.dumps(text))


def bert_like():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = trained(models.WordPiece(unk_token="[UNK]"),
                trainers.WordPieceTrainer(vocab_size=420, special_tokens=special, show_progress=False),
                nz.BertNormalizer(), pt.BertPreTokenizer(), decoder=decoders.WordPiece())
    t.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     [("[CLS]", 2), ("[SEP]", 3)])
    t.enable_truncation(16)
    t.enable_padding(pad_id=0, length=20, pad_to_multiple_of=8)
    yield "wordpiece", t
    t = changed(t, max_input_chars_per_word=5)
    t.normalizer = nz.Sequence([nz.NFD(), nz.Lowercase(), nz.StripAccents()])
    t.pre_tokenizer = pt.Whitespace()
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    t.decoder = decoders.WordPiece(cleanup=False)
    t.enable_truncation(9, strategy="only_second", direction="left")
    t.enable_padding(direction="left", pad_id=1, pad_type_id=1)
    t.add_tokens([AddedToken("hello", single_word=True), AddedToken("İx", normalized=True), "12", "##ab"])
    t.add_special_tokens([AddedToken("<t>", lstrip=True), AddedToken("</s>", rstrip=True, normalized=True)])
    yield "wordpiece_added", t


def byte_level():
    t = trained(models.BPE(), trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                                                  initial_alphabet=sorted(pt.ByteLevel.alphabet()), show_progress=False),
                None, pt.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel(),
                post_processor=processors.ByteLevel())
    yield "bpe_bytes", t
    t = changed(t, ignore_merges=True)
    t.pre_tokenizer = pt.Sequence([pt.Split(Regex(RULES["llama-bpe"][0]), "isolated"), pt.ByteLevel(False, True, False)])
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        "<|im_start|>:1 $A:2", "$B:3 <|im_end|>:1 $A:2 $A:0", [("<|im_start|>", 1), ("<|im_end|>", 2)])])
    t.add_tokens([AddedToken(" x", normalized=False), AddedToken("é", normalized=False, single_word=True)])
    t.normalizer = nz.NFC()
    yield "bpe_bytes_whole", t
    t = changed(t, ignore_merges=False)
    t.normalizer = None
    t.pre_tokenizer = pt.ByteLevel()
    t.post_processor = processors.RobertaProcessing(("<|im_end|>", 2), ("<|im_start|>", 1))
    t.enable_truncation(11, strategy="longest_first")
    yield "bpe_bytes_roberta", t


def bpe_of_characters():
    t = trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<pad>"], limit_alphabet=60, end_of_word_suffix="</w>",
        show_progress=False), nz.Lowercase(), pt.Whitespace(), decoder=decoders.BPEDecoder())
    t = changed(t, end_of_word_suffix="</w>")
    yield "bpe_suffix", t
    yield "bpe_suffix_fused", changed(t, fuse_unk=True)
    yield "bpe_suffix_dropped", changed(t, unk_token=None)
    t = trained(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"), trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], limit_alphabet=50, continuing_subword_prefix="##",
        show_progress=False), None, pt.BertPreTokenizer(), decoder=decoders.CTC("th", "e"))
    yield "bpe_prefix", t


def llama_like():
    special = ["<unk>", "<s>", "</s>"]
    t = trained(models.BPE(unk_token="<unk>", fuse_unk=True), trainers.BpeTrainer(
        vocab_size=700, special_tokens=special + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=70,
        show_progress=False), None, pt.Metaspace())
    text = json.loads(t.to_str())
    text["added_tokens"] = text["added_tokens"][:3]
    text["model"]["byte_fallback"] = True
    t = Tokenizer.from_str(json.dumps(text))
    t.pre_tokenizer = None
    t.normalizer = nz.Sequence([nz.Prepend("▁"), nz.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    yield "sentencepiece_bpe", t
    t = Tokenizer.from_str(t.to_str())
    t.normalizer = nz.Sequence([nz.Replace(Regex(" {2,}"), "▁")])
    t.pre_tokenizer = pt.Metaspace(prepend_scheme="first", split=False)
    t.add_special_tokens([AddedToken("<|im_start|>", normalized=True)])
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    yield "sentencepiece_bpe_first", t


def unigram():
    t = trained(models.Unigram(), trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<unk>", "<pad>", "<mask>"], unk_token="<unk>", show_progress=False),
                nz.Sequence([nz.Precompiled(charsmap()), nz.Replace(Regex(" {2,}"), " ")]),
                pt.Sequence([pt.WhitespaceSplit(), pt.Metaspace()]), decoder=decoders.Metaspace())
    t.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 1)])
    yield "unigram", t
    text = json.loads(t.to_str())
    text["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    text["model"]["byte_fallback"] = True
    text["normalizer"] = None
    text["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
    text["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}]}
    text["added_tokens"] = text["added_tokens"][:3]
    yield "unigram_bytes", Tokenizer.from_str(json.dumps(text))


def word_level():
    t = trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>"], show_progress=False), nz.Lowercase(),
                pt.Sequence([pt.Whitespace(), pt.Digits(True)]))
    yield "wordlevel", t


def trained_tokenizers():
    for family in (bert_like, byte_level, bpe_of_characters, llama_like, unigram, word_level):
        yield from family()


def write_all(folder):
    paths = []
    for name, t in [*trained_tokenizers(), *probes()]:
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(t.to_str())
    return paths


def golden_texts():
    rows = [r.decode() for r, _ in hostile_strings.rows() if len(r) <= LONGEST and is_text(r)]
    chosen = [r for i, r in enumerate(rows) if i % EVERY == 0 and "\0" not in r]
    return chosen + ["ﬁｶﾞ e\u0301\u200b か\u3099\n…👍🏽",
                     "<s>  hello </s> İx <t>helloa", "ab  cd\n\n12 345", "don't  stop <|im_start|>x é éé", "ｶﾞ ﬁ ½ 𝟘 か゛"]


def is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def row_of(t, texts):
    """What a tokenizer makes of the texts; ends and special tokens as in a prompt."""
    plain = Tokenizer.from_str(t.to_str())
    plain.no_truncation()
    plain.no_padding()
    encoded = [plain.encode(x) for x in texts]
    pairs = [pair_of(t, a, b) for a, b in zip(texts[:12], texts[12:24])]
    return {"file": t.to_str(), "ids": [e.ids for e in encoded],
            "texts": [decoded(plain, e.ids) for e in encoded],
            "pairs": pairs}


def pair_of(t, first, second):
    """Ids, types and mask as the file's truncation and padding want them; None where the package refuses."""
    try:
        e = t.encode(first, second)
    except Exception:  # pylint: disable=broad-except
        return None
    return [e.ids, e.type_ids, e.attention_mask]


def decoded(t, ids):
    try:
        return t.decode(ids)
    except BaseException:  # pylint: disable=broad-except
        return None        # the package panics on an empty list with BPEDecoder


def probe_row(t, texts):
    """Of a probe the two parts that it shows, and the words, each with its mark."""
    text = json.loads(t.to_str())
    return {"normalizer": text["normalizer"], "pre_tokenizer": text["pre_tokenizer"],
            "words": [t.decode(t.encode(x).ids) for x in texts]}


def main():
    texts = golden_texts()
    of_probes = json.loads(probe().to_str())
    result = {"provenance": {"written_by": "tools/text/ref_tokenizers.py", "with": [f"tokenizers {tokenizers.__version__}"]},
              "texts": texts, "tokenizers": {name: row_of(t, texts) for name, t in trained_tokenizers()},
              "probe": {"model": of_probes["model"], "decoder": of_probes["decoder"]},
              "probes": {name: probe_row(t, texts) for name, t in probes()}}
    text = json.dumps(result, ensure_ascii=True, separators=(",", ":"))
    GOLDEN.write_text(text.replace('},"', '},\n"') + "\n")
    print(f"wrote {GOLDEN.relative_to(ROOT)}: {len(result['tokenizers'])} tokenizers, {len(result['probes'])} probes, "
          f"{len(texts)} texts, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
