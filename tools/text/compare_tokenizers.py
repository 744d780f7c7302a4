"""compare_tokenizers.py LIBRARY TOKENIZER.json… — the same ids, types and texts as Hugging Face's tokenizers package.

LIBRARY is the built libtrunnion-text.so. Each file is opened by both; the texts of tools/text/hostile_strings.py (those that
are UTF-8), their pairs and some long mixtures are encoded with and without special tokens and ends, with the file's
truncation and padding, and decoded again. Without files, small tokenizers are trained that together have every model,
normalizer, pre-tokenizer, post-processor and decoder (tools/text/ref_tokenizers.py). Prints each difference, fails if there
is one. Run it with a Python that has the package.
"""

import ctypes
import pathlib
import random
import sys
import tempfile
import unicodedata

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import hostile_strings  # noqa: E402

SPECIAL, ENDS, TRUNCATE, PAD = 1, 2, 4, 8


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Ids(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]

    def list(self):
        return self.data[:self.count]


class Slice(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class Encoding(ctypes.Structure):
    _fields_ = [("ids", Ids), ("types", Ids), ("mask", Ids)]


def started(struct, last):
    """struct_size as TN_OPTIONS_SIZE has it: the mark, and the bytes up to the end of the last field."""
    field = getattr(struct, last)
    return 0x544E0000 | (field.offset + field.size)


class PairOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("flags", ctypes.c_uint), ("max_tokens", ctypes.c_int64)]


class Ours:
    """A tokenizer of the built library."""

    def __init__(self, library, path):
        self.lib = library
        self.handle = ctypes.c_void_p()
        if library.tn_tokenizer_open(str(path).encode(), ctypes.byref(self.handle)) != 0:
            raise ValueError(library.error())

    def close(self):
        self.lib.tn_tokenizer_free(self.handle)

    def encode(self, text, flags):
        data, ids = text.encode(), Ids()
        status = self.lib.tn_tokenizer_encode(self.handle, data, ctypes.c_size_t(len(data)), flags, ctypes.byref(ids))
        result = ids.list() if status == 0 else self.lib.error()
        self.lib.tn_ids_free(ctypes.byref(ids))
        return result

    def encode_pair(self, first, second, flags):
        a, b = first.encode(), None if second is None else second.encode()
        out, options = Encoding(), PairOptions(started(PairOptions, "max_tokens"), flags, 0)
        status = self.lib.tn_tokenizer_encode_pair(self.handle, Slice(a, len(a)), Slice(b, len(b or b"")),
                                                   ctypes.byref(options), ctypes.byref(out))
        result = (out.ids.list(), out.types.list(), out.mask.list()) if status == 0 else self.lib.error()
        self.lib.tn_encoding_free(ctypes.byref(out))
        return result

    def decode(self, ids, flags):
        out, array = Bytes(), (ctypes.c_int32 * len(ids))(*ids)
        status = self.lib.tn_tokenizer_decode(self.handle, array, ctypes.c_size_t(len(ids)), flags, ctypes.byref(out))
        result = ctypes.string_at(out.data, out.size).decode(errors="replace") if status == 0 else self.lib.error()
        self.lib.tn_bytes_free(ctypes.byref(out))
        return result


def load(path):
    core = pathlib.Path(path).with_name("libtrunnion.so")
    ctypes.CDLL(str(core), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path))
    error = ctypes.CDLL(str(core)).tn_error
    error.restype = ctypes.c_char_p
    library.error = lambda: "error: " + error().decode(errors="replace")
    return library


def texts(longer):
    rows = []
    for data, _ in hostile_strings.rows():
        try:
            rows.append(data.decode())
        except UnicodeDecodeError:
            continue
    dice = random.Random(hostile_strings.SEED + 1)
    for _ in range(longer):
        rows.append("".join(dice.choice(rows) for _ in range(dice.randint(2, 12))))
    return rows


def theirs_or_none(call):
    """What the package gives; None where it fails (it panics on some files that ours reads)."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # pylint: disable=broad-except
        return None


class Comparison:
    def __init__(self, library, path):
        self.name = pathlib.Path(path)
        self.reference = tokenizers.Tokenizer.from_file(str(path))
        self.declared = tokenizers.Tokenizer.from_file(str(path))
        self.reference.no_truncation()
        self.reference.no_padding()
        self.ours = Ours(library, path)
        self.count = self.wrong = 0

    def check(self, what, given, wanted, got):
        if wanted is None:
            return
        self.count += 1
        if wanted == got:
            return
        self.wrong += 1
        if self.wrong <= 5:
            print(f"{self.name}: {what} {given!r}\n  tokenizers: {wanted}\n  ours:       {got}")

    def check_text(self, text):
        for special in (SPECIAL, 0):
            self.reference.encode_special_tokens = special == 0
            for ends in (ENDS, 0):
                wanted = theirs_or_none(lambda: self.reference.encode(text, add_special_tokens=ends > 0).ids)
                self.check(f"encode({special | ends})", text, wanted, self.ours.encode(text, special | ends))
            for keep in (0, 1):
                if wanted is not None:
                    back = theirs_or_none(lambda: self.reference.decode(wanted, skip_special_tokens=not keep))
                    self.check(f"decode({keep})", text, back, self.ours.decode(wanted, keep))

    def check_pair(self, first, second):
        for reference, flags in ((self.reference, 0), (self.declared, TRUNCATE | PAD)):
            reference.encode_special_tokens = False
            for ends in (ENDS, 0):
                e = theirs_or_none(lambda: reference.encode(first, second, add_special_tokens=ends > 0))
                wanted = None if e is None else (e.ids, e.type_ids, e.attention_mask)
                self.check(f"pair({flags | ends})", (first, second), wanted,
                           self.ours.encode_pair(first, second, SPECIAL | ends | flags))

    def check_random_ids(self, dice):
        count = self.reference.get_vocab_size()
        for _ in range(60):
            ids = [dice.randrange(count) for _ in range(dice.randint(0, 12))]
            for keep in (0, 1):
                back = theirs_or_none(lambda: self.reference.decode(ids, skip_special_tokens=not keep))
                self.check(f"decode({keep})", ids, back, self.ours.decode(ids, keep))

    def check_characters(self):
        """Every character of Unicode, a few at a time, as far as both sides' tables know it."""
        for begin in range(0, 0x30000, 16):
            codes = [c for c in range(begin, begin + 16) if unicodedata.category(chr(c)) not in ("Cs", "Cn")]
            text = "x".join(chr(c) for c in codes)
            wanted = theirs_or_none(lambda: self.reference.encode(text, add_special_tokens=False).ids)
            self.check("characters", text, wanted, self.ours.encode(text, SPECIAL))

    def run(self, rows):
        dice = random.Random(3)
        for text in rows:
            self.check_text(text)
        for _ in range(60):
            self.check_pair(dice.choice(rows), dice.choice(rows + [None]))
        self.check_random_ids(dice)
        self.check_characters()
        self.ours.close()
        print(f"{self.name}: {self.count} comparisons, {self.wrong} differ", flush=True)
        return self.wrong


def main():
    library, files = load(sys.argv[1]), sys.argv[2:]
    rows, wrong = texts(40), 0
    with tempfile.TemporaryDirectory() as folder:
        if not files:
            from text import ref_tokenizers  # pylint: disable=import-outside-toplevel
            files = ref_tokenizers.write_all(pathlib.Path(folder))
        for path in files:
            wrong += Comparison(library, path).run(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
