"""hf_folders.py PROGRAM [NAME…] — language models and encoders out of Hugging Face folders, beside transformers.

Makes a tiny folder with random weights for every family, and for what configurations vary (shards, tied embeddings,
half precision, kinds of rope, windows, biases), lets transformers compute it, and compares the command's logits, greedy
tokens and embeddings with that. A language model then becomes a GGUF file, which has to compute the same here and in
llama.cpp, where TRUNNION_PEERS has it; and a folder again, in which transformers has to find the same model. Of the
kinds that `convert` does not write, llama.cpp's own conversion makes the GGUF file. Runs in the
peers' Python (tools/peers/python.sh) with torch and transformers; without them all is skipped. With names, these rows
alone.
"""

import copy
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from opinfo.process import in_peers_python  # noqa: E402
from text import minilm  # noqa: E402

LOGITS_BOUND = 1e-5  # relative to the largest number; transformers computes in f32 with the same weights
COSINE_BOUND = 0.9999
GGUF_BOUND = 1e-5    # the same numbers, computed alike
PEER_BOUND = 2e-2    # llama.cpp keeps keys and values in half precision,
PEER_BF16 = 4e-2     # and beside weights in bf16 rounds activations to 8 bits, where they have 11 beside those in f16
TOKENS, GREEDY, VOCABULARY = 70, 12, 263  # more than a page of the cache

COMMON = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
          "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 256,
          "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 5.0, 9.0],
        "original_max_position_embeddings": 16, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
PHI3 = COMMON | {"pad_token_id": 0}
MOE = COMMON | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "decoder_sparse_step": 1}
OSS = COMMON | {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9, "swiglu_limit": 2.0,
                "hidden_size": 64, "intermediate_size": 96, "rope_parameters": YARN | {"truncate": False}}
DEEPSEEK_EXPERTS = COMMON | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                             "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7}
DEEPSEEK = DEEPSEEK_EXPERTS | {"num_key_value_heads": 6, "q_lora_rank": 20, "kv_lora_rank": 18, "qk_rope_head_dim": 8,
                               "qk_nope_head_dim": 10, "v_head_dim": 14}
GEMMA = PHI3 | {"head_dim": 16, "tie_word_embeddings": True, "num_hidden_layers": 4}
GEMMA2 = GEMMA | {"query_pre_attn_scalar": 16, "sliding_window": 9, "attn_logit_softcapping": 3.0,
                  "final_logit_softcapping": 4.0}
GEMMA3 = GEMMA | {"query_pre_attn_scalar": 16, "sliding_window": 9, "num_hidden_layers": 7}
BLOOM = {"hidden_size": 48, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2,
         "seq_length": 160}
MPT = {"d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 160, "vocab_size": VOCABULARY, "bos_token_id": 1,
       "eos_token_id": 2}
GEMMA4 = GEMMA | {"num_hidden_layers": 6, "sliding_window": 9, "global_head_dim": 24, "hidden_size_per_layer_input": 8,
                  "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
                  "final_logit_softcapping": 3.0, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}
GEMMA3N = GEMMA | {"num_hidden_layers": 6, "sliding_window": 9, "hidden_size_per_layer_input": 8, "laurel_rank": 10,
                   "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 3, "final_logit_softcapping": 3.0,
                   "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
                   "activation_sparsity_pattern": [0.6, 0.6, 0.0, 0.0, 0.0, 0.0]}
GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": VOCABULARY, "bos_token_id": 1,
        "eos_token_id": 2}
def partly(part):
    """Rope that rotates a part of each head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}}


NEOX = {k: v for k, v in COMMON.items() if k != "num_key_value_heads"} | {"num_attention_heads": 3}
GRANITE = PHI3 | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.4,
                  "logits_scaling": 8.0}
COHERE = PHI3 | {"tie_word_embeddings": True, "logit_scale": 0.25}
FALCON = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": VOCABULARY, "alibi": False,
          "bias": False, "bos_token_id": 1, "eos_token_id": 2}
LATE = YARN | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
               "mscale_all_dim": 1.0}
PIXTRAL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
           "image_size": 28, "patch_size": 14}
QWEN_EYES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 48}
GLM_EYES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 48, "image_size": 28,
            "patch_size": 14}
SOUND = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "output_dim": 48}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}}
NEW = {"gguf": False}
MADE = NEW | {"made": True}  # llama.cpp's conversion makes a GGUF file of it
STATE = {"gguf": False, "network": False}  # recurrent layers
MAMBA = {"hidden_size": 48, "num_hidden_layers": 3, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0}
RWKV = {k: v for k, v in MAMBA.items() if k != "pad_token_id"} | {"num_hidden_layers": 4, "rescale_every": 2}
DELTANET = COMMON | {"head_dim": 16, "num_hidden_layers": 4,
                     "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                     "linear_key_head_dim": 8, "linear_value_head_dim": 12}
FEW = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}  # more, and transformers' f32
# is 2e-5 from its f64
HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 6}
NEMOTRON_H = {"head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 6,
              "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_group": 2, "topk_group": 1,
              "moe_shared_expert_intermediate_size": 56, "routed_scaling_factor": 1.7}
LLAMA4 = {"head_dim": 16, "num_hidden_layers": 4, "num_local_experts": 5, "num_experts_per_tok": 1,
          "intermediate_size_mlp": 112, "interleave_moe_layer_step": 2, "floor_scale": 7, "attn_scale": 0.4}
GRANITE4 = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_experts_per_tok": 2,
            "shared_intermediate_size": 56}
MODERN = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4,
          "num_attention_heads": 4, "max_position_embeddings": 64, "local_attention": 8, "pad_token_id": 0,
          "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
BERT = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 1}

DECODERS = [  # name, classes' stem, configuration, how it is saved
    ("llama", "Llama", COMMON, {}),
    ("llama-tied-shards", "Llama", COMMON | {"tie_word_embeddings": True}, {"max_shard_size": "40KB"}),
    ("llama-bf16", "Llama", COMMON, {"dtype": "bfloat16"}),
    ("llama-f16", "Llama", COMMON, {"dtype": "float16"}),
    ("llama3-rope", "Llama", COMMON | {"rope_parameters": LLAMA3}, {}),
    ("llama-linear", "Llama", COMMON | {"rope_parameters": {"rope_type": "linear", "factor": 4.0,
                                                           "rope_theta": 10000.0}}, {}),
    ("llama-dynamic", "Llama", COMMON | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0,
                                                            "rope_theta": 10000.0}}, {}),
    ("llama-yarn", "Llama", COMMON | {"rope_parameters": YARN}, {}),
    ("llama-longrope", "Llama", COMMON | {"rope_parameters": LONG}, {}),
    ("llama-longrope-within", "Llama", COMMON | {"rope_parameters": LONG | {"original_max_position_embeddings": 256}},
     {}),
    ("qwen2-yarn", "Qwen2", COMMON | {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 16.0}}, {}),
    ("llama-biases", "Llama", COMMON | {"attention_bias": True, "mlp_bias": True}, {}),
    ("smollm", "Llama", COMMON | {"num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True}, {}),
    ("mistral", "Mistral", COMMON | {"sliding_window": 9, "head_dim": 16}, {"peer": False}),
    ("mistral-whole", "Mistral", COMMON | {"sliding_window": None, "head_dim": 16}, {}),
    ("qwen2", "Qwen2", COMMON, {}),
    ("qwen2-window", "Qwen2", COMMON | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
     {"gguf": False}),
    ("qwen3-window", "Qwen3", COMMON | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
     {"peer": False}),
    ("qwen3", "Qwen3", COMMON | {"head_dim": 16, "tie_word_embeddings": True}, {}),
    ("phi3", "Phi3", PHI3, {}),
    ("phi3-longrope", "Phi3", PHI3 | {"rope_parameters": LONG | {"short_factor": [1.0] * 4},
                                      "original_max_position_embeddings": 16}, {}),
    ("phi3-window", "Phi3", PHI3 | {"sliding_window": 9}, {"peer": False}),
    ("gemma", "Gemma", GEMMA, {}),
    ("gemma-act", "Gemma", GEMMA | {"hidden_act": "relu"}, {"gguf": False}),
    ("gemma2", "Gemma2", GEMMA2, {}),
    ("gemma2-base", "Gemma2", GEMMA2 | {"rope_local_base_freq": 500.0}, {}),  # Gemma 3's word: says nothing here
    ("gemma2-scale", "Gemma2", GEMMA2 | {"query_pre_attn_scalar": 40, "attn_logit_softcapping": None}, {"gguf": False}),
    ("gemma3", "Gemma3", GEMMA3, {}),
    ("gemma3-linear", "Gemma3", GEMMA3 | {"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}}, {}),
    ("gemma3-layers", "Gemma3", GEMMA3 | {"layer_types": ["full_attention", "sliding_attention", "full_attention"],
                                          "num_hidden_layers": 3}, {"gguf": False}),
    ("mixtral", "Mixtral", COMMON | {"num_local_experts": 5, "num_experts_per_tok": 2}, {}),
    ("mixtral-f16", "Mixtral", COMMON | {"num_local_experts": 5, "num_experts_per_tok": 3},
     {"dtype": "float16"}),
    ("mixtral-bf16", "Mixtral", COMMON | {"num_local_experts": 5, "num_experts_per_tok": 2},
     {"dtype": "bfloat16", "peer": False}),  # its rounding may turn a choice
    ("mixtral-told", "Mixtral", COMMON | {"num_local_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": False},
     {}),  # Qwen's word: says nothing here
    ("qwen2-moe", "Qwen2Moe", MOE | {"shared_expert_intermediate_size": 56}, {}),
    ("qwen3-moe", "Qwen3Moe", MOE | {"head_dim": 16, "norm_topk_prob": True}, {}),
    ("qwen3-moe-one", "Qwen3Moe", MOE | {"head_dim": 16, "num_experts_per_tok": 1}, {"gguf": False}),
    ("gemma3-wide", "Gemma3", GEMMA3 | {"sliding_window": 200, "max_position_embeddings": 128}, {"gguf": False}),
    ("phi4-mini", "Phi3", PHI3 | partly(0.75), {}),
    ("smollm3", "SmolLM3", PHI3 | {"num_hidden_layers": 5, "no_rope_layer_interval": 4}, {}),
    ("smollm3-other", "SmolLM3", PHI3 | {"num_hidden_layers": 5, "no_rope_layer_interval": 2}, NEW),
    ("granite", "Granite", GRANITE, {}),
    ("granite-moe", "GraniteMoe", GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2}, MADE),
    ("olmo", "Olmo", PHI3, MADE),
    ("olmo2", "Olmo2", PHI3, {}),
    ("olmo3", "Olmo3", PHI3 | {"sliding_window": 9, "num_hidden_layers": 5, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, MADE),
    ("gpt-oss", "GptOss", OSS, NEW),
    ("gpt-oss-made", "GptOss", OSS | {"swiglu_limit": 7.0}, MADE),
    ("deepseek2", "DeepseekV2", DEEPSEEK | {"num_experts": 6, "topk_method": "group_limited_greedy", "n_group": 3,
                                            "topk_group": 2}, MADE),
    ("deepseek2-lite", "DeepseekV2", DEEPSEEK | {"q_lora_rank": None, "routed_scaling_factor": 1.0, "rope_parameters": YARN | {
        "mscale": 0.7, "mscale_all_dim": 0.7}}, MADE),
    ("deepseek3", "DeepseekV3", DEEPSEEK | {"n_group": 2, "topk_group": 1}, MADE | {"edit": {"scoring_func": "sigmoid"}}),
    ("deepseek3-usual", "DeepseekV3", DEEPSEEK | {
        "n_routed_experts": 16, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "num_hidden_layers": 4,
        "routed_scaling_factor": 2.5}, NEW | {"edit": dict.fromkeys((
            "n_group", "topk_group", "first_k_dense_replace", "routed_scaling_factor"))}),
    ("deepseek3-yarn", "DeepseekV3", DEEPSEEK | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False,
                                                 "rope_interleave": False, "rope_parameters": YARN | {
                                                     "mscale": 0.7, "mscale_all_dim": 1.3}}, NEW),
    ("glm4-moe", "Glm4Moe", DEEPSEEK_EXPERTS | {"head_dim": 16, "use_qk_norm": True, "n_group": 1, "topk_group": 1}, MADE),
    ("dots1", "Dots1", DEEPSEEK_EXPERTS | {"head_dim": 16, "n_group": 1, "topk_group": 1}, MADE),
    ("cwm", "Cwm", COMMON | {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 5, "rope_parameters": LLAMA3}, NEW),
    ("qwen3-moe-steps", "Qwen3Moe", MOE | {"head_dim": 16, "num_hidden_layers": 4, "decoder_sparse_step": 2,
                                           "mlp_only_layers": [3]}, NEW),
    ("olmoe", "Olmoe", PHI3 | {"num_experts": 6, "num_experts_per_tok": 2}, MADE),
    ("olmoe-whole", "Olmoe", PHI3 | {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}, NEW),
    ("exaone4", "Exaone4", COMMON | {"sliding_window": 9, "sliding_window_pattern": 4, "num_hidden_layers": 5}, MADE),
    ("ministral", "Ministral", COMMON | {"head_dim": 16, "sliding_window": 9}, NEW),
    ("ministral3", "Ministral3", COMMON | {"head_dim": 16, "rope_parameters": LATE}, NEW),
    ("glm", "Glm", PHI3 | {"head_dim": 16, "attention_bias": True} | partly(0.5), NEW),
    ("glm4", "Glm4", PHI3 | {"head_dim": 16, "attention_bias": True} | partly(0.5), MADE),
    ("stablelm", "StableLm", COMMON | partly(0.25), MADE),
    ("stablelm-parallel", "StableLm", COMMON | {"use_parallel_residual": True, "use_qkv_bias": True} | partly(0.5),
     MADE),
    ("cohere", "Cohere", COHERE, MADE),
    ("cohere-norms", "Cohere", COHERE | {"use_qk_norm": True}, MADE),
    ("cohere2", "Cohere2", COHERE | {"sliding_window": 9, "num_hidden_layers": 5, "head_dim": 8}, NEW),
    ("nemotron", "Nemotron", COMMON | partly(0.5), MADE),
    ("starcoder2", "Starcoder2", COMMON | {"sliding_window": 9}, NEW),
    ("starcoder2-bare", "Starcoder2", COMMON | {"sliding_window": None, "use_bias": False}, MADE),
    ("phi", "Phi", COMMON | {"num_key_value_heads": 6} | partly(0.5), NEW),
    ("neox", "GPTNeoX", NEOX | {"rotary_pct": 0.25}, NEW),
    ("neox-serial", "GPTNeoX", NEOX | {"use_parallel_residual": False, "attention_bias": False}, NEW),
    ("falcon-7b", "Falcon", FALCON | {"multi_query": True, "new_decoder_architecture": False}, NEW),
    ("falcon-1b", "Falcon", FALCON | {"multi_query": False, "parallel_attn": False, "bias": True}, NEW),
    ("falcon-40b", "Falcon", FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True}, MADE),
    ("falcon-11b", "Falcon", FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 96,
                                       "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}, NEW),
    ("gptj", "GPTJ", GPT2 | {"n_head": 3, "rotary_dim": 8, "tie_word_embeddings": False}, NEW),
    ("bigcode", "GPTBigCode", GPT2, MADE),
    ("bigcode-heads", "GPTBigCode", GPT2 | {"multi_query": False}, NEW),
    ("gpt-neo", "GPTNeo", {"hidden_size": 48, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 128,
                           "attention_types": [[["global", "local"], 2]], "window_size": 9, "vocab_size": VOCABULARY,
                           "bos_token_id": 1, "eos_token_id": 2}, NEW),
    ("lfm2", "Lfm2", PHI3 | {"num_hidden_layers": 4, "block_multiple_of": 16, "full_attn_idxs": [1, 3]}, STATE | MADE),
    ("lfm2-bias", "Lfm2", PHI3 | {"num_hidden_layers": 3, "conv_bias": True, "conv_L_cache": 4, "layer_types": [
        "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}, STATE),
    ("mamba", "Mamba", MAMBA | {"state_size": 6}, STATE | MADE),
    ("mamba-biases", "Mamba", MAMBA | {"state_size": 4, "use_bias": True, "use_conv_bias": False, "expand": 3,
                                       "time_step_rank": 5, "conv_kernel": 3}, STATE),
    ("rwkv", "Rwkv", RWKV, STATE),
    ("rwkv-whole", "Rwkv", RWKV | {"intermediate_size": 60, "rescale_every": 0}, STATE),
    ("recurrent-gemma", "RecurrentGemma", PHI3 | {"num_hidden_layers": 5, "attention_window_size": 9, "tie_word_embeddings": True},
     STATE),
    ("recurrent-gemma-other", "RecurrentGemma", PHI3 | {
        "num_hidden_layers": 2, "block_types": ["attention", "recurrent"], "conv1d_width": 3, "attention_bias": True,
        "logits_soft_cap": 10.0},
     STATE),
    ("mamba2", "Mamba2", MAMBA | {"state_size": 6, "num_heads": 8, "head_dim": 12, "n_groups": 2}, STATE | MADE),
    ("qwen3-next", "Qwen3Next", DELTANET | FEW | {"decoder_sparse_step": 1, "num_experts": 6, "num_experts_per_tok": 2,
                                            "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24}, STATE | MADE),
    ("qwen3.5", "Qwen3_5", DELTANET | {"head_dim": 32}, STATE | MADE),
    ("qwen3.5-moe", "Qwen3_5Moe", DELTANET | FEW | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                                              "shared_expert_intermediate_size": 24},
     STATE | MADE | {"edit": {"intermediate_size": None}, "double": True}),
    ("lfm2-moe", "Lfm2Moe", PHI3 | {"num_hidden_layers": 4, "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2,
                                    "moe_intermediate_size": 40, "routed_scaling_factor": 1.7,
                                    "layer_types": ["conv", "full_attention"] * 2}, STATE),
    ("k-exaone", "ExaoneMoe", PHI3 | {"num_hidden_layers": 5, "sliding_window": 9, "num_experts": 6, "num_shared_experts": 2,
                                      "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_group": 3, "topk_group": 2}, MADE),
    ("hunyuan3", "HYV3", PHI3 | {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}, MADE),
    ("falcon-mamba", "FalconMamba", MAMBA | {"state_size": 6}, STATE | MADE),
    ("jamba", "Jamba", PHI3 | {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4,
                               "expert_layer_offset": 0, "mamba_d_state": 6, "mamba_dt_rank": 5}, STATE | MADE),
    ("jamba-dense", "Jamba", PHI3 | {"attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 1}, STATE | MADE),
    ("falcon-h1", "FalconH1", PHI3 | HYBRID | {
        "mamba_d_ssm": 96, "key_multiplier": 0.7, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5,
        "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.9, 1.3, 0.7, 1.1, 0.8], "mlp_multipliers": [0.8, 1.4]},
     STATE | MADE | {"edit": {"head_dim": 8}}),
    ("falcon-h1-norm", "FalconH1", PHI3 | HYBRID | {"mamba_d_ssm": 96, "mamba_rms_norm": True,
                                                    "mamba_norm_before_gate": False},
     STATE | MADE | {"edit": {"head_dim": 8}}),
    ("nemotron-h", "NemotronH", {k: v for k, v in PHI3.items() if k != "num_hidden_layers"} | NEMOTRON_H | {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"]}, STATE),
    ("nemotron-h-pattern", "NemotronH", {k: v for k, v in PHI3.items() if k != "num_hidden_layers"} | NEMOTRON_H | {
        "hybrid_override_pattern": "M-*-"}, STATE | {"edit": {
            "layers_block_type": None, "layer_types": None, "hybrid_override_pattern": "M-*-", "num_hidden_layers": 4,
            "n_routed_experts": None, "num_experts_per_tok": None, "head_dim": None, "attention_head_dim": 16, "d_head": 12}} | MADE),
    ("nemotron-h-made", "NemotronH", {k: v for k, v in PHI3.items() if k != "num_hidden_layers"} | NEMOTRON_H | {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"]}, STATE | MADE | {"edit": {"d_head": 12}}),
    ("llama4", "Llama4", COMMON | LLAMA4, NEW),
    ("llama4-made", "Llama4", COMMON | LLAMA4 | {"floor_scale": 8192, "attn_scale": 0.1}, MADE),
    ("llama4-plain", "Llama4", COMMON | LLAMA4 | {"moe_layers": [0], "use_qk_norm": False, "no_rope_layers": [1, 0, 1, 1],
                                                  "attn_temperature_tuning": False, "num_experts_per_tok": 2}, NEW),
    ("bamba", "Bamba", PHI3 | HYBRID | {"attn_layer_indices": [1]}, STATE | MADE | {"edit": {"attn_rotary_emb": 4}}),
    ("granite4", "GraniteMoeHybrid", GRANITE | HYBRID | GRANITE4 | {"num_local_experts": 4}, STATE),
    ("granite4-made", "GraniteMoeHybrid", GRANITE | HYBRID | GRANITE4 | {"num_local_experts": 4},
     STATE | MADE | {"edit": {"layer_types": ["mamba", "attention", "mamba"]}}),
    ("granite4-dense", "GraniteMoeHybrid", GRANITE | HYBRID | GRANITE4 | {
        "num_local_experts": 0, "position_embedding_type": "rope"}, STATE),
    ("granite-shared", "GraniteMoeShared", GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2,
                                                      "shared_intermediate_size": 56}, MADE),
    ("granite-swa", "GraniteSWA", GRANITE | {"num_hidden_layers": 5, "sliding_window": 9}, NEW),
    ("granite-swa-bare", "GraniteSWA", GRANITE | {"num_hidden_layers": 3, "layer_rope_theta": [10000.0, 0, 10000.0]},
     NEW | {"edit": {"layer_types": None}}),
    ("granite-moe-swa", "GraniteMoeSWA", GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9,
                                                    "shared_intermediate_size": 56}, NEW),
    ("flint", "Flint", MOE | {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 9, "mlp_only_layers": [0],
                              "shared_expert_intermediate_size": 24}, NEW),
    ("phi-moe", "Phimoe", PHI3 | {"num_local_experts": 5, "attention_bias": True, "lm_head_bias": True}, NEW),
    ("minimax-m2", "MiniMaxM2", PHI3 | {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16} | partly(0.5), NEW),
    ("ernie4.5-moe", "Ernie4_5_Moe", PHI3 | {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40,
                                            "moe_num_shared_experts": 2, "moe_layer_start_index": 1}, NEW),
    ("hunyuan-moe", "HunYuanMoEV1", COMMON | {"head_dim": 16, "num_experts": 5, "moe_topk": [2, 2, 2]}, NEW),
    ("hunyuan-alpha", "HunYuanDenseV1", COMMON | {"head_dim": 16, "rope_parameters": {
        "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 500.0}}, NEW),
    ("apertus", "Apertus", PHI3 | {"rope_parameters": LLAMA3}, NEW),
    ("exaone", "Exaone", COMMON, NEW),
    ("jais2", "Jais2", COMMON, MADE),
    ("internlm3", "InternLM3", COMMON | {"head_dim": 16, "bias": True, "qkv_bias": True}, NEW),
    ("hyperclovax", "HyperCLOVAX", GRANITE, NEW),
    ("gemma4", "Gemma4", GEMMA4, NEW | {"network": False}),
    ("gemma4-large", "Gemma4", GEMMA4 | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True,
                                         "num_global_key_value_heads": 1}, NEW),
    ("gemma4-older", "Gemma4", GEMMA4, NEW | {"network": False, "edit": {"per_layer_config": None, "global_head_dim": 24}}),
    ("gemma4-rope", "Gemma4", GEMMA4 | {"global_head_dim": 16, "layer_types": ["sliding_attention"] * 2 + [
        "full_attention"] + ["sliding_attention"] * 3}, NEW | {"network": False, "edit": {
            "rope_parameters": None, "per_layer_config": None, "global_head_dim": 16}}),
    ("gemma4-moe", "Gemma4", GEMMA4 | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": True,
                                       "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 40}, NEW),
    ("gemma3n", "Gemma3n", GEMMA3N, STATE | MADE),
    ("gemma3n-other", "Gemma3n", GEMMA3N | {
        "altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False, "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 100, "attention_bias": True, "final_logit_softcapping": 1.5}, STATE),
    ("vaultgemma", "VaultGemma", GEMMA2, NEW),
    ("flex-olmo", "FlexOlmo", PHI3 | {"num_experts": 6, "num_experts_per_tok": 2}, NEW),
    ("mellum", "Mellum", MOE | {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 4, "layer_types": [
        "sliding_attention", "full_attention"] * 2}, MADE),
    ("solar-open", "SolarOpen", {k: v for k, v in DEEPSEEK_EXPERTS.items() if k not in ("intermediate_size", "first_k_dense_replace")}
     | {"head_dim": 16, "n_group": 1, "topk_group": 1}, NEW),
    ("glm4-moe-lite", "Glm4MoeLite", DEEPSEEK | {"n_group": 1, "topk_group": 1}, MADE),
    ("glm4-moe-lite-usual", "Glm4MoeLite", DEEPSEEK | {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8},
     NEW | {"edit": dict.fromkeys(("n_group", "topk_group", "routed_scaling_factor", "rms_norm_eps", "mlp_layer_types",
                                   "first_k_dense_replace"))}),
    ("youtu", "Youtu", {k: v for k, v in DEEPSEEK.items() if "expert" not in k}, MADE | {"edit": {"scoring_func": "sigmoid"}}),
    ("opt", "OPT", {"hidden_size": 48, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
                    "vocab_size": VOCABULARY, "max_position_embeddings": 128, "word_embed_proj_dim": 48,
                    "bos_token_id": 1, "eos_token_id": 2}, NEW),
    ("openai-gpt", "OpenAIGPT", GPT2, NEW),
    ("persimmon", "Persimmon", NEOX, NEW),
    ("persimmon-bare", "Persimmon", NEOX | {"qk_layernorm": False} | partly(0.25), NEW),
    ("neox-japanese", "GPTNeoXJapanese", {k: v for k, v in NEOX.items() if k != "intermediate_size"}
     | {"intermediate_multiple_size": 2, "rotary_pct": 0.5}, NEW),
    ("xglm", "XGLM", {"d_model": 48, "ffn_dim": 80, "num_layers": 3, "attention_heads": 4, "vocab_size": VOCABULARY,
                      "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2}, NEW),
    ("ctrl", "CTRL", GPT2 | {"dff": 80}, NEW),
    ("ettin", "ModernBertDecoder", MODERN | {"local_attention": 18, "max_position_embeddings": 128}, NEW),
    ("ettin-biases", "ModernBertDecoder", MODERN | {
        "local_attention": 18, "max_position_embeddings": 128, "norm_bias": True, "attention_bias": True,
        "classifier_bias": True, "decoder_bias": False, "classifier_activation": "silu", "tie_word_embeddings": False},
     NEW),
    ("codegen", "CodeGen", GPT2 | {"rotary_dim": 8}, NEW),
    ("biogpt", "BioGpt", {k: v for k, v in PHI3.items() if k != "num_key_value_heads"} | {"max_position_embeddings": 128}, NEW),
    ("bloom", "Bloom", BLOOM, NEW),
    ("bloom-6", "Bloom", BLOOM | {"n_head": 6, "tie_word_embeddings": False}, NEW),
    ("mpt", "Mpt", MPT, NEW),
    ("nanochat", "NanoChat", PHI3 | {"final_logit_softcapping": 3.0}, NEW),
    ("bitnet", "BitNet", PHI3, NEW),
    ("bitnet-eps", "BitNet", PHI3, NEW | {"edit": {"rms_norm_eps": None}}),
    ("minicpm3", "MiniCPM3", DEEPSEEK | {"dim_model_base": 20}, NEW),
    ("minicpm3-null", "MiniCPM3", DEEPSEEK | {"dim_model_base": None, "scale_depth": None},
     NEW | {"edit": {"dim_model_base": None}, "null": ["dim_model_base", "scale_depth"]}),
    ("sarvam-mla", "SarvamMLA", DEEPSEEK, NEW),
    ("sarvam-moe", "SarvamMoE", DEEPSEEK_EXPERTS | {"head_dim": 16}, NEW),
    ("sarvam-moe-scale", "SarvamMoE", DEEPSEEK_EXPERTS | {"head_dim": 16, "routed_scaling_factor": 2.5},
     NEW | {"edit": {"routed_scaling_factor": None}}),
    ("ax-k1", "AXK1", {k: v for k, v in DEEPSEEK.items() if k not in ("first_k_dense_replace", "n_shared_experts")}
     | {"n_group": 2, "topk_group": 1, "mlp_layer_types": ["dense", "sparse", "sparse"]}, NEW),
    ("afmoe", "Afmoe", MOE | {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 9, "num_dense_layers": 1, "mup_enabled": True,
                              "num_shared_experts": 2, "route_scale": 1.7}, NEW),
    ("kolibri1", "Kolibri1", {k: v for k, v in MOE.items() if k not in ("intermediate_size", "decoder_sparse_step")}
     | {"head_dim": 16, "sliding_window": 9, "shared_expert_intermediate_size": 56, "norm_topk_prob": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, NEW),
    ("kolibri1-choice", "Kolibri1", {k: v for k, v in MOE.items() if k not in ("intermediate_size", "decoder_sparse_step")}
     | {"head_dim": 16, "shared_expert_intermediate_size": 56}, NEW | {"edit": {"norm_topk_prob": None}}),
    ("arcee", "Arcee", COMMON, {}),
    ("helium", "Helium", COMMON | {"head_dim": 8}, NEW),
    ("hunyuan", "HunYuanDenseV1", COMMON | {"head_dim": 16}, MADE),
    ("ernie4.5", "Ernie4_5", COMMON | {"head_dim": 16}, MADE),
    ("seed-oss", "SeedOss", COMMON | {"head_dim": 16}, MADE),
    ("llama-proportional", "Llama", COMMON | {"rope_parameters": {
        "rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0, "rope_theta": 10000.0}}, NEW),
    ("llama-whole", "Llama", COMMON | partly(0.5), {}),  # the key says nothing in Llama
    ("mixtral-window", "Mixtral", COMMON | {"num_local_experts": 4, "sliding_window": 9}, {"peer": False}),
    ("gemma3-cap", "Gemma3", GEMMA3 | {"attn_logit_softcapping": 2.0}, NEW),  # neither does this one in Gemma 3
    ("gemma3-eyes", "Gemma3", GEMMA3, NEW | {"whole": ("Gemma3", "SiglipVision", PIXTRAL)}),
    ("qwen2.5-vl", "Qwen2_5_VL", COMMON | MROPE, NEW | {"whole": (
        "Qwen2_5_VL", "", QWEN_EYES | {"fullatt_block_indexes": [0]})}),
    ("qwen3-vl", "Qwen3VL", COMMON | MROPE | {"head_dim": 8}, NEW | {"whole": (
        "Qwen3VL", "", QWEN_EYES | {"deepstack_visual_indexes": [0]})}),
    ("qwen3-vl-moe", "Qwen3VLMoe", MOE | MROPE | {"head_dim": 8}, NEW | {"whole": (
        "Qwen3VLMoe", "", QWEN_EYES | {"deepstack_visual_indexes": [0]})}),
    ("qwen3-vl-moe-turned", "Qwen3VLMoe", MOE | MROPE | {"head_dim": 8}, NEW | {"turned": True, "whole": (
        "Qwen3VLMoe", "", QWEN_EYES | {"deepstack_visual_indexes": [0]})}),
    ("qwen2.5-omni", "Qwen2_5Omni", COMMON | MROPE, NEW | {"whole": (
        "Qwen2_5OmniThinker", "", QWEN_EYES | {"fullatt_block_indexes": [0]}, {"audio_config": SOUND, "vision_start_token_id": 260})}),
    ("qwen3-omni-moe", "Qwen3OmniMoe", MOE | MROPE | {"head_dim": 8, "norm_topk_prob": True}, NEW | {"whole": (
        "Qwen3OmniMoeThinker", "", QWEN_EYES | {"deepstack_visual_indexes": [0]}, {"audio_config": SOUND, "vision_start_token_id": 260})}),
    ("glm4v", "Glm4v", PHI3 | MROPE, NEW | {"whole": ("Glm4v", "", GLM_EYES)}),
    ("glm-ocr", "GlmOcr", PHI3 | {"head_dim": 16, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
     NEW | {"whole": ("GlmOcr", "", GLM_EYES)}),
    ("glm4v-moe", "Glm4vMoe", DEEPSEEK_EXPERTS | {"head_dim": 16, "n_group": 1, "topk_group": 1, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
     NEW | {"whole": ("Glm4vMoe", "", GLM_EYES)}),
    ("hunyuan-vl", "HunYuanVL", COMMON | {"head_dim": 16, "rope_parameters": {
        "rope_type": "xdrope", "factor": 1.0, "alpha": 50.0, "rope_theta": 500.0, "xdrope_section": [2, 2, 2, 2]}}, NEW | {"whole": (
            "HunYuanVL", "", {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                              "image_size": 28, "patch_size": 14, "out_hidden_size": 48})}),
    ("paddleocr-vl", "PaddleOCR", COMMON | MROPE | {"head_dim": 8}, NEW | {"whole": ("PaddleOCRVL", "", PIXTRAL)}),
    ("granite-docling", "GraniteDocling", GRANITE, NEW | {"whole": ("GraniteDocling", "", {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14, "out_hidden_size": 48})}),
    ("gemma4-unified", "Gemma4Unified", {k: v for k, v in GEMMA4.items() if "per_layer_input" not in k} | {
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False}, NEW),
    ("apertus-1.5", "Apertus1p5Text", PHI3 | {"rope_parameters": LLAMA3, "vocab_size": VOCABULARY + 9,
                                             "output_vocab_size": VOCABULARY}, NEW),
    ("aria", "AriaText", COMMON | {"moe_num_experts": 5, "moe_topk": 2}, NEW),
    ("mllama", "Mllama", PHI3 | {"num_hidden_layers": 4, "cross_attention_layers": [1, 2]},
     NEW | {"network": False, "unused": True}),
    ("mistral4", "Mistral4", DEEPSEEK | {"rope_parameters": LATE, "n_group": 3, "topk_group": 2}, NEW),
    ("deepseek-ocr2", "DeepseekOcr2", {k: v for k, v in DEEPSEEK_EXPERTS.items() if k != "first_k_dense_replace"} | {
        "mlp_layer_types": ["dense", "sparse", "sparse"]}, NEW | {"whole": ("DeepseekOcr2", "", {
            "sam_config": {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                           "image_size": 64, "patch_size": 16, "global_attn_indexes": [0], "mlp_dim": 32,
                           "downsample_channels": [16, 32]},
            "encoder_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                               "num_attention_heads": 2, "num_key_value_heads": 2}})}),
    ("lfm3", "Lfm3", PHI3 | {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 9, "layer_types": [
        "conv", "full_attention", "sliding_attention", "conv", "full_attention"]}, STATE),
    ("lfm3-bare", "Lfm3", PHI3 | {"num_hidden_layers": 3, "use_sandwich_norm": False, "use_attention_gate": False,
                                  "conv_bias": True, "layer_types": ["conv", "sliding_attention", "conv"]}, STATE),
    ("mistral3-eyes", "Ministral3", COMMON | {"rope_parameters": LATE},
     NEW | {"whole": ("Mistral3", "PixtralVision", PIXTRAL)}),
    ("llava", "Llama", COMMON, NEW | {"whole": ("Llava", "CLIPVision", PIXTRAL)}),
    ("gpt2", "GPT2", GPT2, {}),
    ("gpt2-inner", "GPT2", GPT2 | {"n_inner": 100}, {}),
    ("gpt2-gelu", "GPT2", GPT2 | {"activation_function": "gelu"}, {"gguf": False}),
]
ESM = BERT | {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 262}
CLIP_TEXT = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY,
             "max_position_embeddings": 64}
VECTORS = {  # class, and the texts' vectors of it, of rows without a pooling
    "clip-projection": ("CLIPTextModelWithProjection", lambda m, ids: m(ids).text_embeds),
    "clip": ("CLIPModel", lambda m, ids: m.get_text_features(ids).pooler_output),
    "dpr-question": ("DPRQuestionEncoder", lambda m, ids: m(ids).pooler_output),
    "dpr-context": ("DPRContextEncoder", lambda m, ids: m(ids).pooler_output)}
DEBERTA = BERT | {"relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
                  "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0, "pad_token_id": 0}
ENCODERS = [  # name, stem, configuration, pooling, vectors of length 1
    ("bert", "Bert", BERT, "mean", True),
    ("bert-cls", "Bert", BERT, "cls", False),
    ("bert-max", "Bert", BERT | {"hidden_act": "relu"}, "max", True),
    ("roberta", "Roberta", BERT | {"type_vocab_size": 1}, "mean", False),
    ("xlm-roberta", "XLMRoberta", BERT | {"type_vocab_size": 1}, "cls", True),
    ("camembert", "Camembert", BERT | {"type_vocab_size": 1}, "mean", True),
    ("data2vec-text", "Data2VecText", BERT | {"type_vocab_size": 1}, "cls", True),
    ("xlm-roberta-xl", "XLMRobertaXL", BERT | {"type_vocab_size": 1}, "mean", True),
    ("roberta-prelayernorm", "RobertaPreLayerNorm", BERT, "mean", False),
    ("megatron-bert", "MegatronBert", BERT, "cls", True),
    ("electra", "Electra", BERT | {"embedding_size": 24}, "mean", True),
    ("electra-base", "Electra", BERT | {"embedding_size": 48}, "cls", False),
    ("ernie", "Ernie", BERT | {"use_task_id": True}, "mean", True),
    ("ernie-tasks-only", "Ernie", BERT | {"use_task_id": True, "type_vocab_size": 0}, "mean", True),
    ("ernie-words", "Ernie", BERT | {"use_task_id": False}, "cls", True),
    ("rembert", "RemBert", BERT | {"input_embedding_size": 20}, "mean", False),
    ("albert", "Albert", BERT | {"embedding_size": 24, "num_hidden_layers": 3}, "mean", True),
    ("roformer", "RoFormer", BERT | {"embedding_size": 24}, "mean", True),
    ("distilbert", "DistilBert", {"dim": 48, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY,
                                  "max_position_embeddings": 64}, "mean", True),
    ("mpnet", "MPNet", BERT | {"pad_token_id": 0}, "mean", True),  # whose positions count from 2 on in any case
    ("nomic-bert", "NomicBert", BERT, "mean", True),
    ("gte", "Gte", BERT, "cls", True),
    ("gte-without-types", "Gte", BERT | {"type_vocab_size": 0}, "mean", False),
    ("deberta-v3", "DebertaV2", DEBERTA, "mean", False),
    ("deberta-v3-words", "DebertaV2", DEBERTA | {"pos_att_type": "p2c|c2p"}, "cls", True),
    ("deberta-v3-faint", "DebertaV2", DEBERTA, "mean", False),
    ("jina-v3", "JinaEmbeddingsV3", BERT | {"task_names": ["a"]}, "mean", True),
    ("esm", "Esm", ESM, "mean", True),
    ("esm-masks", "Esm", ESM | {"mask_token_id": 5}, "cls", False),
    ("clip-text", "CLIPText", CLIP_TEXT, "last", False),
    ("clip-projection", "CLIPText", CLIP_TEXT | {"projection_dim": 24, "eos_token_id": VOCABULARY - 1}, None, False),
    ("clip", "CLIP", {"text_config": CLIP_TEXT | {"eos_token_id": VOCABULARY - 1}, "projection_dim": 24, "vision_config": PIXTRAL},
     None, True),
    ("dpr-question", "DPR", BERT, None, False),
    ("dpr-context", "DPR", BERT, None, True),
    ("splinter", "Splinter", BERT, "mean", True),
    ("big-bird", "BigBird", BERT, "mean", False),
    ("bert-last", "Bert", BERT, "last", True),
    ("modernbert", "ModernBert", MODERN, "cls", True),
    ("modernbert-types", "ModernBert", MODERN | {"layer_types": ["sliding_attention", "full_attention"] * 2}, "mean", False),
    ("modernbert-mean", "ModernBert", MODERN | {"global_attn_every_n_layers": 2}, "mean", False),
    ("eurobert", "EuroBert", COMMON | {"pad_token_id": 0, "mask_token_id": 3}, "mean", True),
    ("qwen3-embedding", "Qwen3", COMMON | {"head_dim": 16}, "last", True),
    ("embedding-gemma", "Gemma3", GEMMA3 | {"use_bidirectional_attention": True}, "mean", True),
]
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2,
      "num_heads": 3, "decoder_start_token_id": 0}
BART = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "max_position_embeddings": 160,
        "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": None}
LANGUAGES = {"eng_Latn": 200, "fra_Latn": 201}
ENCODER_DECODERS = [  # name, stem, configuration
    ("t5", "T5", {}),
    ("t5-v1.1", "T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5-silu", "T5", {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 16,
                       "relative_attention_max_distance": 40}),
    ("mt5", "MT5", {"feed_forward_proj": "gated-gelu"}),
    ("umt5", "UMT5", {"feed_forward_proj": "gated-gelu"}),
    ("bart", "Bart", BART | {"forced_bos_token_id": 5}),
    ("mbart", "MBart", BART | {"scale_embedding": True, "activation_function": "relu"}),
    ("marian", "Marian", BART | {"scale_embedding": True, "activation_function": "swish", "max_position_embeddings": 200,
                                 "decoder_vocab_size": VOCABULARY}),
    ("pegasus", "Pegasus", BART),
    ("m2m-100", "M2M100", BART | {"scale_embedding": True, "activation_function": "relu", "forced_bos_token_id": 7}),
]
CTC = {"vocab_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
       "conv_dim": [16, 16, 24], "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 8,
       "num_conv_pos_embedding_groups": 4, "pad_token_id": 0}
SPEECH = [  # name, stem, configuration, normalizes the sound
    ("wav2vec2", "Wav2Vec2", {}, True),
    ("wav2vec2-large", "Wav2Vec2", {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True,
                                    "num_conv_pos_embeddings": 7}, False),
    ("hubert", "Hubert", {"feat_proj_layer_norm": False}, True),
    ("unispeech", "UniSpeech", {}, True),
    ("unispeech-sat", "UniSpeechSat", {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}, True),
    ("wavlm", "WavLM", {"num_buckets": 12, "max_bucket_distance": 20}, True),
    ("wavlm-large", "WavLM", {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "num_buckets": 32}, False),
    ("data2vec-audio", "Data2VecAudio", {"num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 5}, True),
]
MOONSHINE = [  # name, configuration
    ("moonshine", {}),
    ("moonshine-untied", {"tie_word_embeddings": False, "pad_head_dim_to_multiple_of": 8, "encoder_num_attention_heads": 3,
                          "decoder_num_attention_heads": 3, "decoder_hidden_act": "gelu"}),
]
QUANTIZED = [  # name, quantization_config; how weights are stored follows from it
    ("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}),
    ("gptq-act-order", {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}),
    ("gptq-8-bits", {"quant_method": "gptq", "bits": 8, "group_size": 16}),
    ("gptq-one-group", {"quant_method": "gptq", "bits": 2, "group_size": -1}),
    ("gptq-v2", {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"}),
    ("awq", {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}),
    ("fp8", {"quant_method": "fp8", "weight_block_size": [32, 24]}),
    ("mxfp4", {"quant_method": "mxfp4"}),
    ("fp8-channel", {"quant_method": "compressed-tensors", "format": "float-quantized"}),
]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which output each place of a word has
READERS = ("deberta-v3", "deberta-v3-faint", "deberta-v3-words", "modernbert", "modernbert-mean", "modernbert-types", "eurobert", "qwen3-embedding",
           "embedding-gemma")  # no ONNX models
TEXTS = ["How is the weather?", "Is it raining?", "", "a", "Ünïcödé — naïve café, 東京 🙂", "word " * 400,
         "def f(x):\n    return x ** 2", "The quick brown fox jumps over the lazy dog. " * 5]
TWO_PARTS = ("Llama4", "Qwen3_5", "Qwen3_5Moe", "Gemma3", "Gemma3n", "Gemma4", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe", "Qwen2_5Omni",
             "Qwen3OmniMoe", "Glm4v", "GlmOcr", "Glm4vMoe", "HunYuanVL", "PaddleOCR", "GraniteDocling", "Gemma4Unified", "Mllama",
             "DeepseekOcr2")  # stems of families that have pictures as well
ANSWER_KEYS = {"text", "prompt_ids", "ids", "prompt_tokens_per_second", "prompt_tokens_computed", "tokens_per_second",
               "device", "fallback", "load_seconds", "weights_bytes", "context", "seed", "stopped", "stop"}
HUGGING = ("max_shard_size",)  # what of a row's last column save_pretrained takes
POOLING = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "last": "lasttoken"}


def randomize(torch, model):
    """Weights so large that every part of the network counts; norms and biases too."""
    less_one = "Qwen3Next" in type(model).__name__ or "Qwen3_5" in type(model).__name__  # norms' weights are stored so
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad and "RoFormer" in type(model).__name__:  # sines of positions, that are a constant
                continue
            p.normal_(0, 0.2 if p.dim() > 1 else 0.3)
            if p.dim() == 1 and name.endswith("weight") and not (less_one and "linear_attn" not in name):
                p.add_(1)
            if ("Gemma4" in type(model).__name__ or "Gemma3n" in type(model).__name__) and name.endswith(("q_norm.weight", "k_norm.weight")):
                p.mul_(0.4)  # scores are not divided: larger ones, and transformers' f32 is 2e-5 from its f64
        for name, b in model.named_buffers():
            if name.endswith("layer_scalar"):
                b.normal_(1, 0.3)
            if name.endswith("correction_bias"):
                b.normal_(0, 0.3)


def turn_experts(folder):
    """Experts' matrices as [in, out], as the first models of the family have them."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({k: t.transpose(1, 2).contiguous() if ".experts." in k else t for k, t in weights.items()},
              folder / "model.safetensors", {"format": "pt"})


def write_tokenizer(folder):
    """Byte-level BPE of all bytes, a few merges, and the two tokens that begin and end a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("an", "d")]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in letters[:VOCABULARY - 3 - len(merges)] + ["".join(m) for m in merges]:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_translator(folder):
    """The same with two tokens of languages, of which the first stands before every text."""
    write_tokenizer(folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"] = {k: v for k, v in data["model"]["vocab"].items() if v not in LANGUAGES.values()} | LANGUAGES
    data["added_tokens"] += [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True} for name, i in LANGUAGES.items()]
    special = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in (LANGUAGES | {"</s>": 2}).items()}
    data["post_processor"] = {"type": "TemplateProcessing", "pair": [], "special_tokens": special, "single": [
        {"SpecialToken": {"id": "eng_Latn", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}}]}
    (folder / "tokenizer.json").write_text(json.dumps(data))


def find_peer():
    """llama.cpp, if somebody built it; this does not."""
    peers = os.environ.get("TRUNNION_PEERS")
    if not peers or not list(pathlib.Path(peers).glob("llama.cpp-*/complete")):
        return None
    from peers import llama_cpp

    return llama_cpp.Peer


def find_conversion():
    """The folder of llama.cpp's packages that make GGUF files; None where it is not there."""
    peers = os.environ.get("TRUNNION_PEERS")
    found = pathlib.Path(peers).glob("llama.cpp-*/python/conversion") if peers else []
    return next((f.parent for f in found), None)


def in_double(model):
    """A copy that computes in f64; grouped products have no such kind."""
    model = copy.deepcopy(model).double()
    model.config._experts_implementation = "eager"
    return model


class Suite:
    def __init__(self, program, torch, transformers, numpy, folder):
        self.peer, self.conversion = find_peer(), find_conversion()
        self.program, self.torch, self.transformers, self.numpy, self.folder = program, torch, transformers, numpy, folder
        self.passed = self.failed = self.skipped = 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"failed: {text}", flush=True)

    def command(self, *words):
        result = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"trunnion {' '.join(map(str, words[:3]))}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    def make(self, name, stem, kind, config, whole=None):
        """whole: of a model with pictures, its own stem, that of its vision's configuration, that, and of other parts."""
        self.torch.manual_seed(sum(map(ord, name)))
        text = "Text" if stem in TWO_PARTS else ""
        made = getattr(self.transformers, stem + text + "Config")(**config)
        if whole:
            eyes = getattr(self.transformers, whole[1] + "Config")(**whole[2]).to_dict() if whole[1] else copy.deepcopy(whole[2])
            made = getattr(self.transformers, whole[0] + "Config")(text_config=made.to_dict(), vision_config=eyes, **dict(*whole[3:]))
        made._attn_implementation = "eager"  # the others have no caps of scores
        kind = text + kind if kind == "Model" else kind
        known = getattr(self.transformers, (whole[0] if whole else stem) + kind, None)
        model = known(made) if known else self.transformers.AutoModelForCausalLM.from_config(made)
        randomize(self.torch, model)
        return model.eval()

    def decoder(self, name, stem, config, how):
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        whole = how.get("whole")
        kind = "ForConditionalGeneration" if whole else "LMHeadModel" if stem == "GPT2" else "ForCausalLM"
        model = self.make(name, stem, kind, config, whole)
        kind = getattr(torch, how.get("dtype", "float32"))
        model.to(kind).save_pretrained(folder, **{k: v for k, v in how.items() if k in HUGGING})
        if how.get("edit"):  # what older files say; None: not there
            said = json.loads((folder / "config.json").read_text()) | how["edit"]
            said = {k: v for k, v in said.items() if v is not None} | dict.fromkeys(how.get("null", ()))
            (folder / "config.json").write_text(json.dumps(said))
        if how.get("turned"):
            turn_experts(folder)
        if kind != torch.float32:  # opened anew: to() has rounded the frequencies of rope as well
            model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.randint(3, VOCABULARY, (1, TOKENS))
        with torch.no_grad():
            wanted = (in_double(model) if how.get("double") else model)(ids).logits[0].numpy()
            greedy = model.generate(ids[:, :20], max_new_tokens=GREEDY, do_sample=False, pad_token_id=0)[0, 20:].tolist()
        words = " ".join(map(str, ids[0].tolist()))
        out = self.folder / "logits.npy"
        self.command("logits", "-m", folder, "--ids", words, "-o", out, "--cache", "f32", "--json")
        error = numpy.abs(numpy.load(out) - wanted).max() / numpy.abs(wanted).max()
        self.expect(error <= LOGITS_BOUND, f"{name}: logits differ by {error:.2g} of the largest")
        got = self.command("generate", "-m", folder, "--ids", " ".join(words.split()[:20]), "-n", GREEDY, "--greedy",
                           "--cache", "f32", "--json")["ids"]
        greedy = greedy[:-1] if greedy and greedy[-1] == 2 else greedy
        self.expect(got == greedy, f"{name}: greedy tokens {got}, by transformers {greedy}")
        sizes = self.command("fit", folder, "--json")
        count = sum(p.numel() for p in model.parameters())
        held = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
        whole = whole or how.get("unused")
        self.expect(whole or sizes["weights_bytes"] <= held <= sizes["weights_bytes"] + 65536,
                    f"{name}: fit says {sizes['weights_bytes']} bytes of weights, the files have {held}")
        counts = [sizes["parameters"], self.command("fit", folder, "--train", "--json")["parameters"]]
        self.expect(whole or all(abs(n - count) <= 1e-3 * count for n in counts),
                    f"{name}: fit says {counts} weights, transformers {count}")
        told = f"{name}: {count} weights, logits {error:.1e}, {len(got)} greedy tokens"
        if how.get("network", True):
            told += f", as ONNX {self.network(name):.1e}"
        if how.get("gguf", True):
            self.command("logits", "-m", folder, "--ids", words, "-o", out, "--cache", "f32", "--json")
            told += ", " + self.through_gguf(name, words, wanted, greedy, kind, how.get("peer", True))
        if how.get("made") and self.conversion:
            told += f", llama.cpp's file {self.made(name, words, wanted):.1e}"
        print(told, flush=True)

    def made(self, name, words, wanted):
        """The error of the folder's GGUF file by llama.cpp's conversion."""
        folder, file, out = self.folder / name, self.folder / f"{name}-made.gguf", self.folder / "logits.npy"
        write_tokenizer(folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
        script = pathlib.Path(__file__).resolve().parents[1] / "peers" / "gguf_file.py"
        result = subprocess.run([sys.executable, script, self.conversion, folder, file], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{name}: llama.cpp's conversion: {result.stderr.strip().splitlines()[-1]}")
        self.command("logits", "-m", file, "--ids", words, "-o", out, "--cache", "f32", "--json")
        error = float(self.numpy.abs(self.numpy.load(out) - wanted).max() / self.numpy.abs(wanted).max())
        self.expect(error <= LOGITS_BOUND, f"{name}: logits of llama.cpp's file differ by {error:.2g} of the largest")
        return error

    def through_gguf(self, name, words, wanted, greedy, kind, peers):
        """The folder as a GGUF file, and that as a folder; what each of them computes. peers: llama.cpp has windows."""
        exact = kind == self.torch.float32
        torch, numpy, folder, file = self.torch, self.numpy, self.folder / name, self.folder / f"{name}.gguf"
        out, back = self.folder / "logits.npy", self.folder / f"{name}-back"
        ids = list(map(int, words.split()))
        worst = lambda got: float(numpy.abs(got - wanted).max() / numpy.abs(wanted).max())
        write_tokenizer(folder)
        self.command("convert", folder, file, "--verify", "--json")
        ours = numpy.load(out)
        self.command("logits", "-m", file, "--ids", words, "-o", out, "--cache", "f32", "--json")
        error = numpy.abs(numpy.load(out) - ours).max() / numpy.abs(ours).max()
        self.expect(error <= GGUF_BOUND, f"{name}: logits of the GGUF file differ by {error:.2g}")
        told = f"GGUF {error:.1e}"
        if self.peer and peers:
            peer = self.peer(file, context=256, flash=False)
            theirs, tokens = worst(peer.logits(ids)), peer.greedy(ids[:20], GREEDY)
            tokens = tokens[:tokens.index(2)] if 2 in tokens else tokens
            bound = PEER_BF16 if kind == torch.bfloat16 else PEER_BOUND
            self.expect(theirs <= bound, f"{name}: llama.cpp's logits differ by {theirs:.2g} of the largest")
            self.expect(tokens == greedy or not exact, f"{name}: tokens by llama.cpp {tokens}, by transformers {greedy}")
            told += f", llama.cpp {theirs:.1e}"
        self.command("convert", file, f"{back}/", "--verify", "--json")
        again = self.transformers.AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).eval()
        with torch.no_grad():
            error = worst(again(torch.tensor([ids])).logits[0].numpy())
        self.expect(error <= GGUF_BOUND, f"{name}: the folder of the GGUF file differs by {error:.2g}")
        return f"{told}, a folder again {error:.1e}"

    def packed(self, weight, config):
        """The parts in which a matrix is stored, by their names' ends, and the matrix that they stand for."""
        torch, bits, awq = self.torch, config["bits"], config["quant_method"] == "awq"
        rows, columns = weight.shape
        size = columns if config["group_size"] < 0 else config["group_size"]
        groups = torch.arange(columns) // size
        if config.get("desc_act"):
            groups = groups[torch.randperm(columns)]
        parts = [weight[:, groups == g] for g in range(-(-columns // size))]
        low = torch.stack([p.min(1).values.clamp(max=0) for p in parts])
        high = torch.stack([p.max(1).values.clamp(min=0) for p in parts])
        scales = ((high - low) / (2 ** bits - 1)).clamp(min=1e-4).half()
        zeros = (-low / scales.float()).round().clamp(1, 2 ** bits - 1).long()
        numbers = (weight.T / scales.float()[groups] + zeros[groups]).round().clamp(0, 2 ** bits - 1).long()

        def words(x):
            x = x.reshape(*x.shape[:-1], -1, 32 // bits)
            x = x[..., AWQ_ORDER] if awq else x
            return ((x << torch.arange(32 // bits) * bits).sum(-1)).to(torch.uint32).view(torch.int32).contiguous()

        less = 0 if awq or config.get("checkpoint_format") == "gptq_v2" else 1
        stored = {"scales": scales, "qzeros": words(zeros - less),
                  "qweight": words(numbers) if awq else words(numbers.T.contiguous()).T.contiguous()}
        if not awq:
            stored |= {"g_idx": groups.to(torch.int32), "bias": torch.zeros(rows).half()}
        return stored, (scales.float()[groups] * (numbers - zeros[groups])).half().T

    def eight_bits(self, weight, config):
        torch, block = self.torch, config.get("weight_block_size")
        scales = weight.abs().amax(1, keepdim=True) / 448
        whole, name = scales, "weight_scale"
        if block:
            rows, columns = ([x * size for x in range(-(-n // size))] for n, size in zip(weight.shape, block))
            scales = torch.tensor([[weight[r:r + block[0], c:c + block[1]].abs().max() / 448 for c in columns]
                                   for r in rows])
            whole = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            whole, name = whole[:weight.shape[0], :weight.shape[1]], "weight_scale_inv"
        stored = (weight / whole).to(torch.float8_e4m3fn)
        return {"weight": stored, name: scales}, (stored.float() * whole).bfloat16()

    def quantized(self, name, config):
        from safetensors.torch import save_file

        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        mxfp4 = name == "mxfp4"
        model = self.make(name, "GptOss" if mxfp4 else "Llama", "ForCausalLM", OSS if mxfp4 else COMMON)
        stored = {}
        folder.mkdir()
        with torch.no_grad():
            for key, p in model.state_dict().items():
                if mxfp4 and key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

                    blocks = torch.randint(0, 256, (p.shape[0], p.shape[2], p.shape[1] // 32, 16), dtype=torch.uint8)
                    scales = torch.randint(121, 125, blocks.shape[:3], dtype=torch.uint8)
                    stored |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
                    p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
                    continue
                if mxfp4 or "proj" not in key:
                    stored[key] = p.clone()
                    continue
                parts, stands_for = (self.packed if "bits" in config else self.eight_bits)(p.clone(), config)
                stored |= {key.removesuffix("weight") + end: t for end, t in parts.items()}
                p.copy_(stands_for.float())
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(model.config.to_dict() | {"quantization_config": config}))
        ids = torch.randint(3, VOCABULARY, (1, TOKENS))
        with torch.no_grad():
            wanted = model(ids).logits[0].numpy()
        out = self.folder / "logits.npy"
        self.command("logits", "-m", folder, "--ids", " ".join(map(str, ids[0].tolist())), "-o", out, "--cache", "f32",
                     "--json")
        error = numpy.abs(numpy.load(out) - wanted).max() / numpy.abs(wanted).max()
        self.expect(error <= LOGITS_BOUND, f"{name}: logits differ by {error:.2g} of the largest")
        print(f"{name}: logits {error:.1e}", flush=True)

    def encoder_decoder(self, name, stem, config):
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        bart = "encoder_layers" in config
        kind = "MTModel" if stem == "Marian" else "ForConditionalGeneration"
        model = self.make(name, stem, kind, config if bart else T5 | config)
        model.generation_config.forced_eos_token_id = None  # of an answer that is cut
        with torch.no_grad():
            for key, p in model.named_parameters():  # scores are not scaled: they must not grow too large
                p.mul_(3 if "bias" in key else 0.5 if p.dim() > 1 else 1)
            for part in model.modules():
                if hasattr(part, "create_weight"):  # sine waves of positions
                    part.weight.copy_(part.create_weight())
        model.save_pretrained(folder)
        worst = same = 0
        for length in (70, 5, 150):
            ids = torch.randint(2, VOCABULARY, (1, length))
            words = " ".join(map(str, ids[0].tolist()))
            answer = torch.cat([torch.full((1, 1), model.config.decoder_start_token_id), torch.randint(2, VOCABULARY, (1, TOKENS))], 1)
            with torch.no_grad():
                wanted = model(input_ids=ids, decoder_input_ids=answer).logits[0].numpy()
                greedy = model.generate(ids, max_new_tokens=GREEDY, do_sample=False, num_beams=1)[0, 1:].tolist()
            got = self.answer_logits(folder, ids[0].tolist(), answer[0].tolist())
            worst = max(worst, numpy.abs(got - wanted).max() / numpy.abs(wanted).max())
            told = self.command("generate", "-m", folder, "--ids", words, "-n", GREEDY, "--greedy", "--json")
            got = told["ids"]
            self.expect(ANSWER_KEYS <= set(told), f"{name}: generate --json lacks {ANSWER_KEYS - set(told)}")
            end = model.config.eos_token_id
            greedy = greedy[:greedy.index(end)] if end in greedy else greedy
            self.expect(got == greedy, f"{name}: greedy tokens {got}, by transformers {greedy}")
            same += got == greedy
        self.expect(worst <= LOGITS_BOUND, f"{name}: logits differ by {worst:.2g} of the largest")
        print(f"{name}: logits {worst:.1e}, greedy tokens of {same} texts", flush=True)
        if name == "m2m-100":
            self.languages(folder)

    def languages(self, folder):
        write_translator(folder)
        one, two = LANGUAGES.values()
        for words, source, target in [(["--to", "fra_Latn"], one, two), (["--from", "fra_Latn", "--to", "eng_Latn"], two, one)]:
            got = self.command("generate", "-m", folder, "-p", "the", "-n", 2, "--greedy", "--json", *words)
            self.expect(got["prompt_ids"][0] == source and got["ids"][0] == target and got["prompt_ids"][-1] == 2,
                        f"languages {words}: {got['prompt_ids']}, {got['ids']}")
        for word in ("nowhere", "the"):
            try:
                self.command("generate", "-m", folder, "-p", "the", "--to", word)
                self.expect(False, f"--to {word} is accepted")
            except RuntimeError as error:
                self.expect(f"no token '{word}' of a language" in str(error), f"--to {word}: {error}")

    def speech(self, name, stem, config, normalizes):
        """Models of CTC: logits, and the command's text of a WAV file."""
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        model = self.make(name, stem, "ForCTC", CTC | config)
        model.save_pretrained(folder)
        letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFG"]
        (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
        (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": normalizes}))
        sound = (numpy.random.default_rng(3).normal(size=4000) * 2000).astype("<i2")
        with wave.open(str(folder / "sound.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(sound.tobytes())
        samples = sound.astype(numpy.float32) / 32768
        given = (samples - samples.mean()) / numpy.sqrt(samples.var() + 1e-7) if normalizes else samples
        with torch.no_grad():
            wanted = model(torch.tensor(given)[None]).logits[0].numpy()
        got = self.letters(folder, samples)
        error = numpy.abs(got - wanted).max() / numpy.abs(wanted).max()
        self.expect(got.shape == wanted.shape and error <= LOGITS_BOUND, f"{name}: logits differ by {error:.2g}")
        best = wanted.argmax(1).tolist()
        best = [b for i, b in enumerate(best) if b != 0 and (i == 0 or b != best[i - 1])]
        text = "".join("" if b < 4 else " " if b == 4 else letters[b] for b in best)
        told = self.command("transcribe", "-m", folder, folder / "sound.wav", "--json")
        self.expect(told["text"] == text and told["segments"][0]["ids"] == best, f"{name}: {told} for {text!r}")
        print(f"{name}: logits {error:.1e}, {len(text)} letters", flush=True)

    def moonshine(self, name, config):
        """The command's tokens of a WAV file; 6.5 of them a second at most."""
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        model = self.make(name, "Moonshine", "ForConditionalGeneration", {
            "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 3, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4} | config)
        with torch.no_grad():
            model.model.decoder.embed_tokens.weight.mul_(0.2)  # otherwise a token is followed by itself
        model.save_pretrained(folder)
        write_tokenizer(folder)
        for seconds in (4, 1):
            sound = (numpy.random.default_rng(seconds).normal(size=16000 * seconds + 77) * 4000).astype("<i2")
            with wave.open(str(folder / "sound.wav"), "wb") as file:
                file.setparams((1, 2, 16000, 0, "NONE", ""))
                file.writeframes(sound.tobytes())
            given = torch.tensor(sound.astype(numpy.float32) / 32768)[None]
            with torch.no_grad():
                wanted = model.generate(given, max_length=int(len(sound) * 6.5 / 16000), do_sample=False, num_beams=1)[0, 1:].tolist()
            wanted = wanted[:wanted.index(2)] if 2 in wanted else wanted
            told = self.command("transcribe", "-m", folder, folder / "sound.wav", "--json")
            self.expect(told["segments"][0]["ids"] == wanted, f"{name}: {told['segments']} for {wanted}")
            print(f"{name}: {len(wanted)} tokens, {len(set(wanted))} kinds", flush=True)

    def letters(self, folder, samples):
        """Logits of a model of CTC, by the library."""
        library, numpy = ctypes.CDLL(str(self.program.resolve().parent / "libtrunnion-text.so")), self.numpy
        library.tn_error.restype, library.tn_ctc_frames.restype = ctypes.c_char_p, ctypes.c_int64
        model, size = ctypes.c_void_p(), ctypes.c_int64(len(samples))
        at = lambda a: a.ctypes.data_as(ctypes.POINTER(ctypes.c_float))  # noqa: E731
        if library.tn_ctc_open(str(folder).encode(), None, ctypes.byref(model)):
            raise RuntimeError(library.tn_error().decode())
        out = numpy.zeros((library.tn_ctc_frames(model, size), CTC["vocab_size"]), numpy.float32)
        if library.tn_ctc_logits(model, at(samples), size, at(out)):
            raise RuntimeError(library.tn_error().decode())
        library.tn_ctc_close(model)
        return out

    def answer_logits(self, folder, text, answer):
        """By the library, of each token of the answer."""
        library, numpy = ctypes.CDLL(str(self.program.resolve().parent / "libtrunnion-text.so")), self.numpy
        library.tn_error.restype = ctypes.c_char_p
        model, at, rows = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_float)(), []

        def call(function, *arguments):
            if function(*arguments):
                raise RuntimeError(library.tn_error().decode())

        call(library.tn_seq2seq_open, str(folder).encode(), None, ctypes.byref(model))
        call(library.tn_seq2seq_encode, model, (ctypes.c_int32 * len(text))(*text), ctypes.c_int64(len(text)))
        for i in answer:
            call(library.tn_seq2seq_step, model, ctypes.c_int32(i), ctypes.byref(at))
            rows.append(numpy.ctypeslib.as_array(at, (VOCABULARY,)).copy())
        library.tn_seq2seq_close(model)
        return numpy.stack(rows)

    def encoder(self, name, stem, config, pooling, unit):
        torch, numpy, folder = self.torch, self.numpy, self.folder / name
        if name in VECTORS:
            torch.manual_seed(sum(map(ord, name)))
            model = getattr(self.transformers, VECTORS[name][0])(getattr(self.transformers, stem + "Config")(
                **copy.deepcopy(config))).eval()
            randomize(torch, model)
        else:
            model = self.make(name, stem, "Model", config)
        if name.endswith("-faint"):  # so small that the norm's epsilon counts
            model.embeddings.word_embeddings.weight.data.mul_(2e-3)
        if name.endswith("-only"):  # transformers looks for a row in an empty table
            model.embeddings.token_type_embeddings.forward = lambda ids: torch.zeros(1)
        model.save_pretrained(folder)
        own = VECTORS.get(name, (None, lambda m, ids: self.pool(m(ids, attention_mask=torch.ones_like(ids)).last_hidden_state,
                                                                 pooling)))[1]
        if pooling:
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(
                {"word_embedding_dimension": 48} | {f"pooling_mode_{v}": k == pooling for k, v in POOLING.items()}))
        modules = [("Transformer", "")] + [("Pooling", "1_Pooling")] * bool(pooling) + [("Normalize", "2_Normalize")] * unit
        (folder / "modules.json").write_text(json.dumps(
            [{"type": f"sentence_transformers.models.{m}", "path": path} for m, path in modules]))
        lengths = [17, 1, 40, 17, 16, 3, 40, 12]
        texts = [torch.randint(3, VOCABULARY - 1, (1, n)) for n in lengths]
        if name.startswith("clip"):
            texts = [torch.cat([t[:, 1:], torch.full((1, 1), VOCABULARY - 1)], 1) for t in texts]  # their end
        with torch.no_grad():
            wanted = [torch.nn.functional.normalize(v) if unit else v for v in (own(model, t) for t in texts)]
        words = [" ".join(map(str, t[0].tolist())) for t in texts]
        got = numpy.array(self.command("embed", "-m", folder, "--ids", *words, "--json")["embeddings"])
        wanted = torch.cat(wanted).numpy()
        error = numpy.abs(got - wanted).max() / numpy.abs(wanted).max()
        cosine = ((got * wanted).sum(1) / numpy.linalg.norm(got, axis=1) / numpy.linalg.norm(wanted, axis=1)).min()
        self.expect(error <= LOGITS_BOUND, f"{name}: embeddings differ by {error:.2g} of the largest number")
        self.expect(cosine >= COSINE_BOUND, f"{name}: a cosine of {cosine:.6f}")
        network = "" if name in READERS else f", as ONNX {self.network(name):.1e}"
        print(f"{name}: embeddings {error:.1e}, cosine {cosine:.7f}{network}", flush=True)

    def network(self, name):
        """The folder as an ONNX model computes the same: convert compares the weights and the outputs itself."""
        got = self.command("convert", self.folder / name, self.folder / "network.onnx", "--verify", "--json")
        named = got["verified"] > 0 or name.startswith(("clip", "dpr"))  # whose names have a prefix
        self.expect(named and got["output_error"] <= LOGITS_BOUND, f"{name}: as ONNX {got}")
        return got["output_error"]

    def pool(self, x, pooling):
        return {"mean": lambda: x.mean(1), "cls": lambda: x[:, 0], "max": lambda: x.amax(1), "last": lambda: x[:, -1]}[pooling]()

    def sentences(self):
        """Texts through all-MiniLM-L6-v2, with its own tokenizer, pooling and norm."""
        if not minilm.is_there():
            print("skipped: all-MiniLM-L6-v2 is not there; tools/text/minilm.py fetches it")
            self.skipped += 1
            return
        torch, numpy, auto = self.torch, self.numpy, self.transformers
        tokenizer = auto.AutoTokenizer.from_pretrained(minilm.path())
        model = auto.AutoModel.from_pretrained(minilm.path()).eval()
        wanted = []
        for text in TEXTS:
            given = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
            with torch.no_grad():
                wanted.append(torch.nn.functional.normalize(self.pool(model(**given).last_hidden_state, "mean")))
        wanted = torch.cat(wanted).numpy()
        got = numpy.array(self.command("embed", "-m", minilm.path(), "--json", *TEXTS)["embeddings"])
        cosine = (got * wanted).sum(1).min()
        self.expect(cosine >= COSINE_BOUND, f"all-MiniLM-L6-v2: a cosine of {cosine:.6f}")
        print(f"all-MiniLM-L6-v2: {len(TEXTS)} texts, cosine {cosine:.7f}", flush=True)

    def refused(self, name, change, word, of="llama"):
        """A folder whose config.json was changed is refused with this word."""
        folder = self.folder / of
        config = json.loads((folder / "config.json").read_text())
        other = self.folder / f"refused-{name}"
        other.mkdir()
        (other / "model.safetensors").symlink_to(folder / "model.safetensors")
        (other / "config.json").write_text(json.dumps(config | change))
        result = subprocess.run([self.program, "logits", "-m", other, "--ids", "1 2", "-o", self.folder / "x.npy"],
                                capture_output=True, text=True)
        said = " ".join(result.stderr.split())
        self.expect(result.returncode == 1 and word in said, f"refused {name}: exit {result.returncode}, {said}")


REFUSED = [
    ("type", {"model_type": "xlnet"}, "model_type"),
    ("rope", {"rope_parameters": {"rope_type": "axial"}}, "axial"),
    ("longrope", {"rope_parameters": {"rope_type": "longrope", "long_factor": [1, 2]}}, "short_factor"),
    ("part", {"rotary_dim": 5}, "rotates pairs"),
    ("layers", {"num_hidden_layers": 2}, "could give wrong results"),
    ("more", {"num_hidden_layers": 4}, "no tensor"),
    ("hidden", {"hidden_size": 54}, "according to the metadata"),
    ("heads", {"num_attention_heads": 0}, "num_attention_heads"),
    ("huge", {"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
    ("act", {"hidden_act": "mish"}, "mish"),
    ("quantised", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("words", {"hidden_size": "wide"}, "hidden_size"),
    ("lfm2-width", {"block_ffn_dim_multiplier": 1e-6}, "block_ffn_dim_multiplier", "lfm2"),
    ("choice", {"topk_method": "best"}, "topk_method", "deepseek3"),
    ("rope-width", {"head_dim": 1}, "head_dim", "ax-k1"),
    ("no-rope", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.0}}, "at least 2", "sarvam-moe"),
    ("slopes", {"attn_config": {"alibi": True, "alibi_bias_max": 4}}, "alibi_bias_max", "mpt"),
]


def main():
    in_peers_python("transformers")
    import numpy
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="trunnion-folders-") as folder:
        suite = Suite(pathlib.Path(sys.argv[1]), torch, transformers, numpy, pathlib.Path(folder))
        for one, rows in ((suite.decoder, DECODERS), (suite.encoder, ENCODERS), (suite.encoder_decoder, ENCODER_DECODERS),
                          (suite.speech, SPEECH), (suite.moonshine, MOONSHINE),
                          (suite.quantized, QUANTIZED)):
            for row in rows:
                if sys.argv[2:] and row[0] not in sys.argv[2:]:
                    continue
                try:
                    one(*row)
                except RuntimeError as fault:  # of the command
                    suite.expect(False, f"{row[0]}: {fault}")
        for row in REFUSED if not sys.argv[2:] else []:
            suite.refused(*row)
        if not sys.argv[2:] or minilm.NAME in sys.argv[2:]:
            suite.sentences()
    print(f"{suite.passed} passed, {suite.failed} failed, {suite.skipped} skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
