"""torch_lora.py — writes tests/golden/lora.h: losses and gradient norms of five training steps by transformers and peft:
LoRA, and all weights.

Small models of several families whose weights follow from a formula that the test computes too, so no weights are stored.
Batches have texts of different lengths, padded here and not padded there, with a loss on a part of each. Run it again
when a row is added: python3 tools/pytorch/torch_lora.py > tests/golden/lora.h (needs torch, transformers and peft; made with
2.15.0, 5.24.0 and 0.21.2).
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

RANK, ALPHA, STEPS, RATE = 4, 8, 5, 1e-2
COMMON = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "bos_token_id": 1,
          "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
ROWS = [  # name, stem of the class, configuration, targets
    ("llama", "Llama", COMMON, "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"),
    ("qwen2", "Qwen2", COMMON | {"tie_word_embeddings": True}, "q_proj,v_proj"),
    ("gemma2", "Gemma2", COMMON | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 5,
                                   "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
                                   "tie_word_embeddings": True}, "q_proj,k_proj,v_proj,o_proj,down_proj"),
    ("phi3", "Phi3", COMMON, "qkv_proj,gate_up_proj"),
    ("gpt2", "GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 64, "bos_token_id": 1,
                      "eos_token_id": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
     "c_attn,c_proj,c_fc"),
    ("qwen2moe", "Qwen2Moe", COMMON | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                                       "shared_expert_intermediate_size": 40, "decoder_sparse_step": 1},
     "q_proj,k_proj,v_proj,o_proj"),
    ("whole", "Llama", COMMON | {"tie_word_embeddings": True}, ""),  # all weights
]
LENGTHS, ANSWER_FROM = (20, 13, 7), (9, 4, 1)


def numbers(seed, shape, middle, width):
    """Element i is middle + width · u, with u in [-1, 1) from a product modulo 2^32: all exact in f32."""
    count = int(torch.tensor(shape).prod())
    i = torch.arange(count, dtype=torch.int64)
    h = ((i * 2654435761 + seed * 40503 + 977) % 2**32 * 2246822519 % 2**32) >> 16
    return (middle + width * (h.double() / 32768 - 1)).float().reshape(shape)


def weight(index, name, shape):
    if len(shape) > 1:
        return numbers(index, shape, 0, 0.25)
    return numbers(index, shape, 0.0 if name.endswith("bias") else 1.0, 0.125)


def batch(step):
    rows = []
    for k, length in enumerate(LENGTHS):
        rows.append([3 + (i * i * 7 + i * 5 + k * 11 + step * 3) % 61 for i in range(length)])
    width = max(LENGTHS)
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in LENGTHS])
    answer = torch.tensor([[int(f <= i < n) for i in range(width)] for n, f in zip(LENGTHS, ANSWER_FROM)])
    return ids, mask, ids.masked_fill(answer == 0, -100)


def folder_of(stem, configuration, folder):
    """Writes the model with the formula's weights. Returns the names and shapes in the order of the formula."""
    config = getattr(transformers, stem + "Config")(**configuration)
    head = "LMHeadModel" if stem == "GPT2" else "ForCausalLM"
    getattr(transformers, stem + head)(config).save_pretrained(folder)
    path = pathlib.Path(folder) / "model.safetensors"
    tensors = load_file(path)
    listed = [(name, list(tensors[name].shape)) for name in sorted(tensors)]
    save_file({name: weight(i, name, shape) for i, (name, shape) in enumerate(listed)}, path, {"format": "pt"})
    return listed, json.loads((pathlib.Path(folder) / "config.json").read_text())


def train(folder, targets):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if targets:
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0, task_type="CAUSAL_LM",
                                                 target_modules=targets.split(","), fan_in_fan_out="c_attn" in targets))
    named = sorted((n.replace(".default", ""), p) for n, p in model.named_parameters() if p.requires_grad)
    with torch.no_grad():
        for i, (name, p) in enumerate(named if targets else []):
            p.copy_(numbers(1000 + i, list(p.shape), 0, 0.125))
    optimizer = torch.optim.AdamW([p for _, p in named], lr=RATE, weight_decay=0)
    losses, norms = [], []
    model.train()
    for step in range(STEPS):
        ids, mask, labels = batch(step)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_([p for _, p in named], 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    sums = [float(p.detach().double().abs().sum()) for _, p in named]
    return losses, norms, [(n, list(p.shape)) for n, p in named], sums


def list_of(values):
    return ", ".join(f"{v:.9g}" for v in values)


def main():
    print("/* lora.h — five steps of LoRA by transformers and peft; written by tools/pytorch/torch_lora.py. */\n")
    print(f"enum {{ LORA_RANK = {RANK}, LORA_ALPHA = {ALPHA}, LORA_STEPS = {STEPS}, LORA_TEXTS = {len(LENGTHS)} }};")
    print(f"static const double LORA_RATE = {RATE};")
    print(f"static const int64_t lora_lengths[] = {{{list_of(LENGTHS)}}}, lora_answers[] = {{{list_of(ANSWER_FROM)}}};\n")
    print("typedef struct lora_tensor {\n    const char *name;\n    int rank;\n    int64_t shape[3];\n"
          "    double sum; /* of an adapter: of absolute values after the steps */\n} lora_tensor;\n")
    print("typedef struct lora_row {\n    const char *name, *config, *targets;\n    double losses[5], norms[5];\n"
          "    int weight_count, adapter_count;\n    const lora_tensor *weights, *adapter;\n} lora_row;\n")
    rows = []
    for name, stem, configuration, targets in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            listed, config = folder_of(stem, configuration, folder)
            losses, norms, named, sums = train(folder, targets)
        for what, tensors, totals in (("weights", listed, [0] * len(listed)), ("adapter", named, sums)):
            print(f"static const lora_tensor {name}_{what}[] = {{")
            for (tensor, shape), total in zip(tensors, totals):
                print(f'    {{"{tensor}", {len(shape)}, {{{list_of(shape)}}}, {total:.9g}}},')
            print("};")
        text = json.dumps(config)
        quoted = [text[i:i + 80].replace("\\", "\\\\").replace('"', '\\"') for i in range(0, len(text), 80)]
        pieces = "\n".join(f'     "{piece}"' for piece in quoted)
        rows.append(f'    {{"{name}",\n{pieces},\n     "{targets}",\n     {{{list_of(losses)}}},\n     {{{list_of(norms)}}},'
                    f"\n     {len(listed)}, {len(named)}, {name}_weights, {name}_adapter}},")
        print(name, losses, norms, file=sys.stderr)
    print("\nstatic const lora_row lora_rows[] = {\n" + "\n".join(rows) + "\n};")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
