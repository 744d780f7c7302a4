"""mutate_gguf.py BUILD — damaged GGUF files through the command: exit code 0 or 1, and a message that says where.

Makes three small language models with tensors of every type that can be computed with, damages copies of them (bits, bytes,
numbers, pieces left out, doubled or moved, files cut short) and lets `trunnion generate` work on each. A run must end by
itself with 0 or 1, within seconds and a bound of memory; one that ends with 1 must name the file, and the byte, key,
tensor or line of the template that it stumbled over. The damage follows from --seed and the number of the file alone, so
any file can be made again: --only N writes it to damaged-N.gguf and runs it.

  --count N    files (default 100000)     --jobs N   at a time (default 2)     --seed N (default 1)
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
MEMORY = 400 << 20  # bytes resident; models here are below one megabyte
ADDRESSES = 4 << 30
SECONDS = 20
TEMPLATE = "{% for m in messages %}<|s|>{{ m['role'] }}: {{ m['content'] | trim }}\n{% endfor %}"
WHERE = re.compile(r"byte \d+|'[^']*' has no (key|tensor|chat template)|token \d+ is not a number|context")

# type: (number in the file, elements of a block, its bytes)
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
         "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
         "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2),
         "IQ2_XXS": (16, 256, 66), "IQ3_S": (21, 256, 110), "IQ4_XS": (23, 256, 136), "IQ4_NL": (20, 32, 18),
         "IQ1_S": (19, 256, 50), "MXFP4": (39, 32, 17)}


# ---- the models ------------------------------------------------------------------------------------------------------


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def letters():
    """GPT-2's spelling of the 256 bytes as printable letters."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b if b in plain else next(spare)) for b in range(256)]


def metadata(width, heads, layers, middle):
    u32 = lambda v: (U32, struct.pack("<I", v))  # noqa: E731
    tokens = letters() + ["ab", "abc", "<|s|>", "<|e|>"]
    keys = {"general.architecture": (STRING, text("llama")), "general.name": (STRING, text("damaged")),
            "llama.block_count": u32(layers), "llama.embedding_length": u32(width),
            "llama.feed_forward_length": u32(middle), "llama.context_length": u32(128),
            "llama.attention.head_count": u32(heads), "llama.attention.head_count_kv": u32(heads // 2),
            "llama.rope.freq_base": (F32, struct.pack("<f", 1e4)),
            "llama.attention.layer_norm_rms_epsilon": (F32, struct.pack("<f", 1e-5)),
            "llama.rope.dimension_count": u32(width // heads), "general.alignment": u32(32),
            "tokenizer.ggml.model": (STRING, text("gpt2")), "tokenizer.ggml.pre": (STRING, text("smollm")),
            "tokenizer.ggml.tokens": (ARRAY, array(STRING, [text(t) for t in tokens])),
            "tokenizer.ggml.token_type": (ARRAY, array(I32, [struct.pack("<i", 3 if t[0:2] == "<|" else 1)
                                                            for t in tokens])),
            "tokenizer.ggml.merges": (ARRAY, array(STRING, [text("a b"), text("ab c")])),
            "tokenizer.ggml.bos_token_id": u32(258), "tokenizer.ggml.eos_token_id": u32(259),
            "tokenizer.ggml.add_bos_token": (BOOL, b"\x01"), "tokenizer.chat_template": (STRING, text(TEMPLATE))}
    return b"".join(text(key) + struct.pack("<I", kind) + value for key, (kind, value) in keys.items()), len(keys)


def tensors(width, heads, layers, middle, types):
    """(name, shape in PyTorch's order, type) of each; matrices take their types in turn."""
    turn = 0
    rows = [("token_embd.weight", (260, width), types[-1]), ("output_norm.weight", (width,), "F32")]
    for i in range(layers):
        rows += [(f"blk.{i}.attn_norm.weight", (width,), "F32"), (f"blk.{i}.ffn_norm.weight", (width,), "F32")]
        for name, shape in [("attn_q", (width, width)), ("attn_k", (width // 2, width)), ("attn_v", (width // 2, width)),
                            ("attn_output", (width, width)), ("ffn_gate", (middle, width)),
                            ("ffn_up", (middle, width)), ("ffn_down", (width, middle))]:
            rows.append((f"blk.{i}.{name}.weight", shape, types[turn % len(types)]))
            turn += 1
    return rows


def values(source, shape, kind):
    """Bytes of a tensor: small numbers; in blocks, scales that are small and the rest at random."""
    count = 1
    for extent in shape:
        count *= extent
    _, block, size = TYPES[kind]
    if kind == "F32":
        return struct.pack(f"<{count}f", *(source.uniform(-0.2, 0.2) for _ in range(count)))
    data = bytearray(source.randbytes(count // block * size))
    for at in range(0, len(data), size):
        if block == 1:
            data[at + 1] = 0x20 | data[at + 1] & 0x87 if kind == "F16" else 0x3c
        elif kind == "MXFP4":
            data[at] = 0x78  # a power of two
        elif kind in ("Q2_K", "Q3_K", "Q6_K"):
            data[at + size - 1] = 0x10  # their scales stand at the end
            data[at + size - 3] = 0x10 if kind == "Q2_K" else data[at + size - 3]
        else:
            data[at + 1] = 0x10
            data[at + 3] = 0x10
    return bytes(data)


def make_model(width, heads, layers, middle, types):
    source = random.Random(width)
    pairs, count = metadata(width, heads, layers, middle)
    rows = tensors(width, heads, layers, middle, types)
    head, data = b"", b""
    for name, shape, kind in rows:
        dims = b"".join(struct.pack("<Q", extent) for extent in reversed(shape))
        head += text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", TYPES[kind][0], len(data))
        data += values(source, shape, kind)
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), count) + pairs + head
    return head + bytes(-len(head) % 32) + data, len(head)


def models():
    return [make_model(64, 4, 2, 96, ["Q4_0", "Q4_1", "Q5_0", "F16", "Q5_1", "BF16", "F32", "Q8_0"]),
            make_model(256, 4, 1, 256, ["Q4_K", "Q5_K", "Q2_K", "Q3_K", "Q6_K"]),
            make_model(512, 4, 1, 256, ["IQ2_XXS", "IQ3_S", "IQ4_XS", "IQ1_S", "MXFP4", "IQ4_NL"])]


# ---- the damage ------------------------------------------------------------------------------------------------------

TELLING = [0, 1, 2, 3, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 32, 1 << 40, (1 << 63) - 1,
           1 << 63, (1 << 64) - 1]


def damage(source, data, head):
    data = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 3, 8])):
        # Most of it where sizes and names are.
        end = head if source.random() < 0.85 else len(data)
        at = source.randrange(max(min(end, len(data)), 1))
        way = source.randrange(8)
        piece = data[at:at + source.choice([1, 4, 8, 13, 64, 500])]
        if way == 0:
            data[at:at + 1] = bytes([data[at] ^ 1 << source.randrange(8)]) if data else b""
        elif way == 1:
            data[at:at + 1] = bytes([source.randrange(256)])
        elif way in (2, 3):
            width = source.choice([4, 8])
            data[at:at + width] = (source.choice(TELLING) & (1 << 8 * width) - 1).to_bytes(width, "little")
        elif way == 4:
            del data[at:at + len(piece)]
        elif way == 5:
            data[at:at] = piece
        elif way == 6:
            to = source.randrange(max(len(data), 1))
            data[to:to + len(piece)] = piece
        elif source.random() < 0.3:
            del data[at:]
    return bytes(data)


# ---- the runs --------------------------------------------------------------------------------------------------------


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def fault_of(program, path, chat):
    """What is wrong with a run, or None; and its exit code."""
    command = [program, "generate", "-m", path, "-p", "abc ab", "-n", "2", "--greedy", "--json", "--threads", "1"]
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command + ["--chat"] * chat, stdout=subprocess.DEVNULL, stderr=err, preexec_fn=limit,
                                   env=os.environ | {"TRUNNION_LOG": "0"})
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"did not end within {SECONDS} s", None
        err.seek(0)
        said = err.read().decode(errors="replace")
    said = " ".join(said.split())
    if process.returncode not in (0, 1):
        return f"ended with {process.returncode}: {said[:300]}", process.returncode
    if process.returncode == 1 and not WHERE.search(said):
        return f"does not say where: {said[:300]}", 1
    return None, process.returncode


def damaged(seeds, seed, number):
    source = random.Random(f"{seed}:{number}")
    data, head = seeds[source.randrange(len(seeds))]
    return damage(source, data, head), source.random() < 0.5


def run_one(job):
    program, seeds, seed, number, folder = job
    data, chat = damaged(seeds, seed, number)
    path = os.path.join(folder, f"damaged-{number}.gguf")
    pathlib.Path(path).write_bytes(data)
    fault, code = fault_of(program, path, chat)
    os.unlink(path)
    return number, fault, code


def check_whole(program, seeds, folder):
    """Undamaged, both must work: else all the rest would prove nothing."""
    for i, (data, _) in enumerate(seeds):
        path = os.path.join(folder, f"whole-{i}.gguf")
        pathlib.Path(path).write_bytes(data)
        fault, code = fault_of(program, path, True)
        if fault or code != 0:
            sys.exit(f"the undamaged model {i} is not computed: {fault or code}\n0 passed, 1 failed, 0 skipped")


def main():
    parser = argparse.ArgumentParser(description="damaged GGUF files through the command")
    parser.add_argument("build")
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    program, seeds = str((ROOT / options.build / "trunnion").resolve()), models()

    if options.only is not None:
        data, chat = damaged(seeds, options.seed, options.only)
        path = f"damaged-{options.only}.gguf"
        pathlib.Path(path).write_bytes(data)
        print(path, "--chat" if chat else "", *fault_of(program, path, chat))
        return 0

    codes, faults = {0: 0, 1: 0}, []
    with tempfile.TemporaryDirectory() as folder:
        check_whole(program, seeds, folder)
        jobs = ((program, seeds, options.seed, number, folder) for number in range(options.count))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for number, fault, code in pool.map(run_one, jobs):
                if fault:
                    faults.append(number)
                    print(f"file {number}: {fault}", flush=True)
                else:
                    codes[code] += 1
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if peak > MEMORY:
        faults.append(-1)
        print(f"a run took {peak >> 20} MiB; {MEMORY >> 20} are allowed")
    print(f"{options.count} damaged files (seed {options.seed}): {codes[0]} computed, {codes[1]} refused, {len(faults)} "
          f"faults; at most {peak >> 20} MiB")
    print(f"{int(not faults)} passed, {int(bool(faults))} failed, 0 skipped")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
