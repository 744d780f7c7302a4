"""example_models.py — folders of Whisper and ViT with small random weights, and a sound, for examples of the help."""

import json
import math
import random
import wave

from checks.finetune import save_tensors

HIDDEN, INNER, MELS, WINDOW, CONTEXT = 8, 16, 80, 1500, 32
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
           "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
LETTERS, TIMES = 16, 1501  # of the vocabulary; special tokens stand between them
WORDS = LETTERS + len(SPECIAL) + TIMES


def whisper_shapes():
    square, row = [HIDDEN, HIDDEN], [HIDDEN]
    found = {"encoder.conv1.weight": [HIDDEN, MELS, 3], "encoder.conv1.bias": row,
             "encoder.conv2.weight": [HIDDEN, HIDDEN, 3], "encoder.conv2.bias": row,
             "encoder.embed_positions.weight": [WINDOW, HIDDEN], "decoder.embed_positions.weight": [CONTEXT, HIDDEN],
             "decoder.embed_tokens.weight": [WORDS, HIDDEN]}
    for side in ("encoder", "decoder"):
        found |= {f"{side}.layer_norm.{part}": row for part in ("weight", "bias")}
        layer = f"{side}.layers.0"
        for attention in ["self_attn"] + ["encoder_attn"] * (side == "decoder"):
            found |= {f"{layer}.{attention}.{p}_proj.weight": square for p in ("q", "k", "v", "out")}
            found |= {f"{layer}.{attention}.{p}_proj.bias": row for p in ("q", "v", "out")}
            found |= {f"{layer}.{attention}_layer_norm.{part}": row for part in ("weight", "bias")}
        found |= {f"{layer}.fc1.weight": [INNER, HIDDEN], f"{layer}.fc1.bias": [INNER],
                  f"{layer}.fc2.weight": [HIDDEN, INNER], f"{layer}.fc2.bias": row,
                  f"{layer}.final_layer_norm.weight": row, f"{layer}.final_layer_norm.bias": row}
    return found


def make_whisper(folder, seed=5):
    chance = random.Random(seed)
    folder.mkdir()
    save_tensors(folder / "model.safetensors", {
        f"model.{name}": (shape, [chance.gauss(0, 0.3) for _ in range(math.prod(shape))])
        for name, shape in whisper_shapes().items()})
    (folder / "config.json").write_text(json.dumps({
        "model_type": "whisper", "d_model": HIDDEN, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER,
        "num_mel_bins": MELS, "vocab_size": WORDS, "max_source_positions": WINDOW, "max_target_positions": CONTEXT,
        "activation_function": "gelu"}))
    (folder / "generation_config.json").write_text(json.dumps({
        "is_multilingual": True, "decoder_start_token_id": LETTERS + 1, "eos_token_id": LETTERS,
        "no_timestamps_token_id": LETTERS + len(SPECIAL) - 1, "suppress_tokens": [], "begin_suppress_tokens": [LETTERS],
        "max_initial_timestamp_index": 50}))
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": LETTERS + i, "content": text, "special": True} for i, text in enumerate(SPECIAL)],
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "merges": [], "vocab": {chr(ord("a") + i): i for i in range(LETTERS)}}}))


def vit_shapes(side, patch):
    square, row, layer = [HIDDEN, HIDDEN], [HIDDEN], "encoder.layer.0"
    found = {"embeddings.cls_token": [1, 1, HIDDEN],
             "embeddings.position_embeddings": [1, 1 + (side // patch) ** 2, HIDDEN],
             "embeddings.patch_embeddings.projection.weight": [HIDDEN, 3, patch, patch],
             "embeddings.patch_embeddings.projection.bias": row,
             f"{layer}.intermediate.dense.weight": [INNER, HIDDEN], f"{layer}.intermediate.dense.bias": [INNER],
             f"{layer}.output.dense.weight": [HIDDEN, INNER], f"{layer}.output.dense.bias": row}
    for part in ("attention.query", "attention.key", "attention.value", "output.dense"):
        found |= {f"{layer}.attention.{part}.weight": square, f"{layer}.attention.{part}.bias": row}
    for norm in (f"{layer}.layernorm_before", f"{layer}.layernorm_after", "layernorm"):
        found |= {f"{norm}.weight": row, f"{norm}.bias": row}
    return found


def make_vit(folder, side=32, patch=16, classes=("cat", "dog", "owl"), seed=6):
    chance = random.Random(seed)
    folder.mkdir()
    shapes = {f"vit.{name}": shape for name, shape in vit_shapes(side, patch).items()}
    shapes |= {"classifier.weight": [len(classes), HIDDEN], "classifier.bias": [len(classes)]}
    save_tensors(folder / "model.safetensors", {
        name: (shape, [chance.gauss(0, 0.3) for _ in range(math.prod(shape))]) for name, shape in shapes.items()})
    (folder / "config.json").write_text(json.dumps({
        "model_type": "vit", "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": INNER, "image_size": side, "patch_size": patch,
        "id2label": {str(i): name for i, name in enumerate(classes)}}))
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "image_processor_type": "ViTImageProcessor", "size": side}))


def make_sound(path, seconds=1, rate=16000):
    """A tone of 440 Hz."""
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(b"".join(int(9000 * math.sin(2 * math.pi * 440 * i / rate)).to_bytes(2, "little", signed=True)
                                   for i in range(seconds * rate)))
