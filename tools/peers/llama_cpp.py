"""llama_cpp.py — llama.cpp in this process, for reference values: token ids, greedy continuations, logits.

Uses the shared library and the description of its C interface that tools/peers/llama_cpp.sh leaves behind. Settings are
llama.cpp's defaults but for the number of threads: f16 cache, no sampling at all, just the largest logit.
Needs numpy and typing_extensions.
"""

import ctypes
import importlib
import os
import sys
import types

import numpy

from peers import built

BATCH = 512
NO_FLASH, FLASH = 0, 1


def interface():
    """The package's module of declarations alone: its __init__ would want packages that nothing here needs."""
    where = built.llama_cpp()
    os.environ["LLAMA_CPP_LIB_PATH"] = str(where / "bin")
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(where / "python" / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


class Peer:
    def __init__(self, model, threads=2, context=4096, flash=True):
        """flash: attention in one pass, llama.cpp's default; without it the same sums are made in another order."""
        self.c = interface()
        self.silence = self.c.llama_log_callback(lambda level, text, data: None)
        self.c.llama_log_set(self.silence, None)
        self.c.llama_backend_init()
        self.model = self.c.llama_model_load_from_file(os.fsencode(model), self.c.llama_model_default_params())
        options = self.c.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = context, BATCH, BATCH
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = FLASH if flash else NO_FLASH
        self.context = self.model and self.c.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit(f"llama.cpp could not open {model}")
        self.vocabulary = self.c.llama_model_get_vocab(self.model)
        self.width = self.c.llama_vocab_n_tokens(self.vocabulary)

    def tokenize(self, text, add_special=True, parse_special=False):
        """The ids of a text in bytes. add_special: what the file wants before and behind every text; parse_special:
        names of control tokens in the text stand for these tokens."""
        room = len(text) + 8
        ids = (ctypes.c_int32 * room)()
        count = self.c.llama_tokenize(self.vocabulary, text, len(text), ids, room, add_special, parse_special)
        if count < 0:
            raise ValueError(f"llama_tokenize: {count} for {text!r}")
        return list(ids[:count])

    def text(self, ids):
        """The bytes that ids stand for, control tokens written out."""
        piece = ctypes.create_string_buffer(512)
        parts = []
        for token in ids:
            length = self.c.llama_token_to_piece(self.vocabulary, token, piece, len(piece), 0, True)
            parts.append(piece.raw[:length])
        return b"".join(parts)

    def forget(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)
        self.position = 0

    def feed(self, ids, all_logits=False):
        """Appends ids to the cache. Returns logits: [len(ids), vocabulary], or of the last token alone."""
        rows = []
        for start in range(0, len(ids), BATCH):
            part = ids[start:start + BATCH]
            batch = self.c.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i] = token, self.position + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = all_logits or start + i == len(ids) - 1
            status = self.c.llama_decode(self.context, batch)
            self.c.llama_batch_free(batch)
            if status != 0:
                raise RuntimeError(f"llama_decode: {status}")
            self.position += len(part)
            if all_logits or start + len(part) == len(ids):
                rows += [self.row(i) for i in (range(len(part)) if all_logits else [len(part) - 1])]
        return numpy.stack(rows) if all_logits else rows[0]

    def row(self, i):
        return numpy.ctypeslib.as_array(self.c.llama_get_logits_ith(self.context, i), (self.width,)).copy()

    def logits(self, ids):
        """[len(ids), vocabulary], from an empty cache."""
        self.forget()
        return self.feed(ids, all_logits=True)

    def greedy(self, ids, count):
        """`count` tokens, each the likeliest (the first among equals), whatever they are."""
        self.forget()
        out, logits = [], self.feed(ids)
        while True:
            out.append(int(logits.argmax()))
            if len(out) == count:
                return out
            logits = self.feed(out[-1:])
