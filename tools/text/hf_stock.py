"""hf_stock.py PROGRAM [--fields|--missing] [TYPE…] — which kinds of text models of transformers the command opens.

Makes a small folder with random weights of each model_type that transformers has a text model of, and tries `logits`,
`generate` (encoder-decoders) or `embed` (encoders) on it. A decoder's logits are compared. Prints a line a type: name,
kind, YES with the error or NO with the message. What transformers does not make of these sizes is left out. With
--fields, each field of the configuration of each decoder that opens is changed alone: refused, equal or WRONG. With
--missing, each key of its config.json is left out alone. Needs Python with torch and transformers.
"""

import copy
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
SIZES = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 263, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "head_dim": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "state_size": 8, "n_groups": 1, "num_heads": 6, "d_model": 48, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "n_layer": 2, "n_head": 4, "n_embd": 48, "n_positions": 256,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 263, "type_vocab_size": 2, "n_layers": 2, "dim": 48,
    "hidden_dim": 80, "embedding_size": 24, "d_ff": 64, "d_kv": 12, "num_layers": 2, "layer_types": None}
OWN = {"mamba2": {"num_heads": 12, "head_dim": 8}, "lfm2": {"layer_types": ["conv", "full_attention"]},
       "gpt_neox": {"hidden_size": 64}, "stablelm": {"hidden_size": 64}, "helium": {"head_dim": 12},
       "gptj": {"rotary_dim": 8}, "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
       "zamba": {"n_mamba_heads": 2, "mamba_dt_rank": 4, "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
       "zamba2": {"n_mamba_heads": 4, "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
       "zaya": {"num_experts_per_tok": 1},
       "longcat_flash": {"num_key_value_heads": 4, "head_dim": 8, "ffn_hidden_size": 80, "expert_ffn_hidden_size": 32, "zero_expert_num": 2,
                         "moe_topk": 2, "num_layers": 2},
       "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2}, "deepseek_v2": {"num_key_value_heads": 4}, "deepseek_v3": {"num_key_value_heads": 4},
       "axk1": {"num_key_value_heads": 4}, "sarvam_mla": {"num_key_value_heads": 4}, "glm4_moe_lite": {"num_key_value_heads": 4}}
ACTIVATIONS = ["relu", "gelu", "silu"]
BOUND = 2e-5  # of the largest logit, with --fields
OTHER = {"sliding_window": [7], "final_logit_softcapping": [2.0], "attn_logit_softcapping": [2.0],
         "layer_types": [["sliding_attention", "full_attention"]], "mlp_layer_types": [["dense", "sparse"]],
         "rope_parameters": [{"rope_type": kind, "rope_theta": 500.0, "factor": 3.0, "original_max_position_embeddings": 8,
                              "low_freq_factor": 1.0, "high_freq_factor": 4.0} for kind in ("linear", "yarn", "llama3", "dynamic")]
         + [{"rope_type": kind, "rope_theta": 500.0, "partial_rotary_factor": 0.5} for kind in ("default", "proportional")]}
FIXED = ["vocab_size", "hidden_size", "num_hidden_layers", "n_layer", "n_embd", "d_model", "num_layers"]
MOST_WEIGHTS, TOKENS, SECONDS = 60e6, 20, 60
COMMANDS = {"decoder": ["logits", "--cache", "f32"], "encoder-decoder": ["generate", "-n", "3", "--greedy"],
            "encoder": ["embed"]}


def kinds():
    """(model_type, kind, configuration's class, the mapping that has the model's) of each."""
    from transformers import CONFIG_MAPPING
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING as causal, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING as pairs
    from transformers import MODEL_MAPPING as models

    found = {}
    for kind, mapping in (("encoder", models), ("encoder-decoder", pairs), ("decoder", causal)):  # the last one counts
        for config in mapping.keys():
            if config.model_type in CONFIG_MAPPING:
                found[config.model_type] = (kind, config, mapping)
    return sorted((name, *rest) for name, rest in found.items())


def make(torch, name, config, models, change=None):
    """A model with random weights; None if transformers makes none, or a large one, of these sizes."""
    fields = set(inspect.signature(config.__init__).parameters) | set(getattr(config, "__dataclass_fields__", {}))
    if "vocab_size" not in fields:
        return None
    sizes = {k: v for k, v in SIZES.items() if k in fields and v is not None} | OWN.get(name, {}) | (change or {})
    try:
        made, model = config(**sizes), models[config]
        with torch.device("meta"):
            if sum(p.numel() for p in model(made).parameters()) > MOST_WEIGHTS:
                return None
        made = model(made).eval()
        with torch.no_grad():
            for p in made.parameters():
                p.normal_(0, 0.2)
        return made
    except Exception:  # whatever a class says about sizes that do not suit it
        return None


def without(transformers, folder, key):
    """The model of the folder whose config.json lacks the key; None if that has other weights."""
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))
    load = transformers.AutoModelForCausalLM.from_pretrained  # some classes by themselves have another's configuration
    model, told = load(folder, output_loading_info=True, ignore_mismatched_sizes=True)
    return None if any(told.values()) else model.eval()


def attempt(program, torch, numpy, kind, model, missing=None):
    """(whether it opens, the error or the message)."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="trunnion-stock-") as folder:
        ids = torch.randint(3, SIZES["vocab_size"], (1, TOKENS))
        words, out = " ".join(map(str, ids[0].tolist())), pathlib.Path(folder) / "logits.npy"
        try:
            model.save_pretrained(folder)
            model = without(transformers, folder, missing) if missing else model
        except Exception as fault:
            return None, str(fault)
        if model is None:
            return None, ""
        command = [program, *COMMANDS[kind], "-m", folder, "--ids", words] + ["-o", out] * (kind == "decoder")
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if result.returncode:
            return False, " ".join(result.stderr.split()).replace(folder, "").removeprefix("trunnion: error: ")
        if kind != "decoder":
            return True, ""
        try:
            with torch.no_grad():
                wanted = model(ids).logits[0].numpy()
        except Exception as fault:  # its own sizes do not suit it
            return None, str(fault)
        return True, f"{numpy.abs(numpy.load(out) - wanted).max() / numpy.abs(wanted).max():.1e}"


def changes(name, value):
    """Other values of a field of a configuration."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1] if value < 2 else [value * 2, value // 2]
    if isinstance(value, float):
        return [value * 2 + 0.25 if value < 1 else value * 1.5]
    return [a for a in ACTIVATIONS if a != value] if isinstance(value, str) and "act" in name else []


def usual_of(name, config):
    known = {k: v for k, v in SIZES.items() if v is not None} | OWN.get(name, {})
    fields = set(inspect.signature(config.__init__).parameters) | set(getattr(config, "__dataclass_fields__", {}))
    return fields, config(**{k: v for k, v in known.items() if k in fields})


def sweep(program, torch, numpy, name, config, models, missing):
    """Prints a line for each change: the type, the field, its value, how it went, the error or the message."""
    from text import hf_folders

    fields, usual = usual_of(name, config)
    keys = usual.to_dict() if missing else fields - set(FIXED)
    for field in sorted(keys):
        for value in ["left out"] if missing else changes(field, getattr(usual, field, None)):
            model = make(torch, name, config, models, None if missing else {field: copy.deepcopy(value)})
            if model is None:
                continue
            hf_folders.randomize(torch, model)
            opens, said = attempt(program, torch, numpy, "decoder", model, field if missing else None)
            if opens is not None:
                how = "refused" if not opens else "equal" if float(said) <= BOUND else "WRONG"
                print(f"{name}\t{field}\t{value}\t{how}\t{said}", flush=True)


def main():
    import numpy
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = [a for a in sys.argv[2:] if not a.startswith("-")]
    for name, kind, config, models in kinds():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        model = make(torch, name, config, models)
        if model is None:
            continue
        sweeps, missing = {"--fields", "--missing"} & set(sys.argv), "--missing" in sys.argv
        if sweeps and kind != "decoder":
            continue
        opens, said = attempt(sys.argv[1], torch, numpy, kind, model)
        if opens and sweeps:
            sweep(sys.argv[1], torch, numpy, name, config, models, missing)
        elif opens is not None:
            print(f"{name}\t{kind}\t{'YES' if opens else 'NO'}\t{said}", flush=True)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
