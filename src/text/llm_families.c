/* llm_families.c — the families of language models: a table row says what a family is called in files, which tensors a
 * layer has, and how its computation differs from Llama's. Names that differ from those of layer_slots.def are in front
 * of the table, and functions for what a row cannot say of config.json. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

#define PLAIN_SLOTS (BIT(SLOT_Q_BIAS) - 1)
#define BIASES (BIT(SLOT_Q_BIAS) | BIT(SLOT_K_BIAS) | BIT(SLOT_V_BIAS))
#define ATTENTION_BIASES (BIASES | BIT(SLOT_O_BIAS))
#define LINEAR_BIASES (ATTENTION_BIASES | GATED_BIASES)
#define NORMS (BIT(SLOT_Q_NORM) | BIT(SLOT_K_NORM))
#define POST_NORMS (BIT(SLOT_ATTENTION_POST_NORM) | BIT(SLOT_FFN_POST_NORM))
#define SHARED (BIT(SLOT_SHARED_ROUTER) | BIT(SLOT_SHARED_GATE) | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN))
#define GPT2_SLOTS                                                                                                     \
    (BIT(SLOT_QKV) | BIT(SLOT_QKV_BIAS) | BIT(SLOT_O) | BIT(SLOT_O_BIAS) | BIT(SLOT_ATTENTION_NORM) |                  \
     BIT(SLOT_ATTENTION_NORM_BIAS) | BIT(SLOT_FFN_NORM) | BIT(SLOT_FFN_NORM_BIAS) | BIT(SLOT_UP) | BIT(SLOT_UP_BIAS) | \
     BIT(SLOT_DOWN) | BIT(SLOT_DOWN_BIAS))
#define FUSED_SLOTS \
    (BIT(SLOT_ATTENTION_NORM) | BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_FFN_NORM) | BIT(SLOT_UP) | BIT(SLOT_DOWN))
#define PLAIN_HEAD (BIT(SLOT_EMBEDDING) | BIT(SLOT_OUTPUT_NORM))
#define BIASED_HEAD (PLAIN_HEAD | BIT(SLOT_OUTPUT_NORM_BIAS))
#define PRE_NORMS (BIT(SLOT_ATTENTION_NORM) | BIT(SLOT_FFN_NORM))
#define PRE_NORM_BIASES (BIT(SLOT_ATTENTION_NORM_BIAS) | BIT(SLOT_FFN_NORM_BIAS))
#define UNGATED_BIASES (BIT(SLOT_UP_BIAS) | BIT(SLOT_DOWN_BIAS))
#define UNGATED_SLOTS (PLAIN_SLOTS & ~BIT(SLOT_GATE))

/* ---- names ------------------------------------------------------------------------------------------------------- */
/* Where they differ from those of layer_slots.def and head_slots.def. */

#define GGUF .prefix = "", .layer = "blk.", .gguf = true
#define LATE_NORM [SLOT_FFN_NORM] = "post_attention_norm.weight", [SLOT_ATTENTION_POST_NORM] = ""
const llm_naming tn_llm_gguf_names = {GGUF};
static const llm_naming gguf_late_norm = {GGUF, .layer_slots = {LATE_NORM}};
static const llm_naming gguf_deltanet = {
    GGUF,
    .layer_slots = {
        LATE_NORM, [SLOT_QKV] = "", [SLOT_MIX_IN] = "attn_qkv.weight", [SLOT_MIX_GATE] = "attn_gate.weight",
        [SLOT_RATES] = "ssm_ba.weight", [SLOT_WRITE_RATE] = "ssm_beta.weight", [SLOT_DECAY_RATE] = "ssm_alpha.weight"}};
/* As conversions write Falcon-H1's: the last norm of a layer has no ending. */
static const llm_naming gguf_falcon_h1 = {GGUF, .layer_slots = {[SLOT_FFN_NORM] = "ffn_norm"}};
static const llm_naming gguf_hy_v3 = {GGUF, .layer_slots = {[SLOT_CHOICE_BIAS] = "exp_probs_b"}};
static const llm_naming gguf_lfm2 = {GGUF, .head_slots = {[SLOT_OUTPUT_NORM] = "token_embd_norm.weight"},
                                     .layer_slots = {[SLOT_MIX_IN] = "shortconv.in_proj.weight",
                                                     [SLOT_CONV] = "shortconv.conv.weight",
                                                     [SLOT_MIX_OUT] = "shortconv.out_proj.weight"}};
const llm_naming tn_llm_gguf_falcon_two = {
    GGUF, .layer_slots = {[SLOT_ATTENTION_NORM] = "attn_norm_2.weight", [SLOT_FFN_NORM] = "attn_norm.weight"}};
/* Files of the first Mixtral, from before tensors had three dimensions. */
const llm_naming tn_llm_gguf_apart = {GGUF, .layer_slots = {[SLOT_EXPERT_GATE] = "ffn_gate.*.weight",
                                                            [SLOT_EXPERT_UP] = "ffn_up.*.weight",
                                                            [SLOT_EXPERT_DOWN] = "ffn_down.*.weight"}};

#define HEAD(embedding, norm, output) \
    .head_slots = {[SLOT_EMBEDDING] = embedding, [SLOT_OUTPUT_NORM] = norm, [SLOT_OUTPUT] = output}
#define MODEL .prefix = "model.", .layer = "layers."
#define NAMES MODEL, .beside = {".rotary_emb.inv_freq"}
static const llm_naming llama_names = {NAMES};

#define SHARED_NAMES(part)                                                                    \
    [SLOT_SHARED_GATE] = part ".gate_proj.weight", [SLOT_SHARED_UP] = part ".up_proj.weight", \
    [SLOT_SHARED_DOWN] = part ".down_proj.weight"
#define DEEPSEEK_SHARED SHARED_NAMES("mlp.shared_experts")
static const llm_naming flint_names = {NAMES, .layer_slots = {[SLOT_SINKS] = "self_attn.softmax_offset"}};
static const llm_naming deepseek_names = {
    NAMES, .layer_slots = {DEEPSEEK_SHARED, [SLOT_FFN_POST_NORM] = "post_mlp_layernorm.weight"}};
static const llm_naming glm4_moe_names = {NAMES, .layer_slots = {DEEPSEEK_SHARED}};
static const llm_naming gpt_oss_names = {
    NAMES,
    .layer_slots = {[SLOT_ROUTER] = "mlp.router.weight",
                    [SLOT_EXPERT_UP] = "mlp.experts.gate_up_proj",
                    [SLOT_EXPERT_UP_BIAS] = "mlp.experts.gate_up_proj_bias",
                    [SLOT_EXPERT_DOWN] = "mlp.experts.down_proj",
                    [SLOT_EXPERT_DOWN_BIAS] = "mlp.experts.down_proj_bias"},
    .transposed = BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN),
};
/* All experts of a layer in two tensors: [out, in] each, or [in, out]. */
#define JOINT_EXPERTS [SLOT_EXPERT_UP] = "mlp.experts.gate_up_proj", [SLOT_EXPERT_DOWN] = "mlp.experts.down_proj"
static const llm_naming mistral4_names = {NAMES, .layer_slots = {DEEPSEEK_SHARED, JOINT_EXPERTS}};
static const llm_naming qwen3_vl_moe_names = {NAMES, .layer_slots = {JOINT_EXPERTS}};
static const llm_naming qwen3_vl_moe_turned = {NAMES, .layer_slots = {JOINT_EXPERTS},
                                               .transposed = BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN)};
static const llm_naming aria_names = {
    NAMES,
    .layer_slots = {DEEPSEEK_SHARED, [SLOT_ROUTER] = "mlp.router.weight", [SLOT_EXPERT_UP] = "mlp.experts.fc1.weight",
                    [SLOT_EXPERT_DOWN] = "mlp.experts.fc2.weight"},
    .transposed = BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN),
};
static const llm_naming mixtral_names = {
    NAMES,
    .layer_slots = {[SLOT_ROUTER] = "block_sparse_moe.gate.weight",
                    [SLOT_CHOICE_BIAS] = "block_sparse_moe.e_score_correction_bias",
                    [SLOT_EXPERT_GATE] = "block_sparse_moe.experts.*.w1.weight",
                    [SLOT_EXPERT_UP] = "block_sparse_moe.experts.*.w3.weight",
                    [SLOT_EXPERT_DOWN] = "block_sparse_moe.experts.*.w2.weight"},
};

/* Granite's fused gates. */
#define GRANITE_SHARED \
    [SLOT_SHARED_UP] = "shared_mlp.input_linear.weight", [SLOT_SHARED_DOWN] = "shared_mlp.output_linear.weight"
#define MAMBA2_STEP [SLOT_STEP_BIAS] = "mamba.dt_bias"
static const llm_naming granite_moe_names = {
    NAMES, .layer_slots = {GRANITE_SHARED, MAMBA2_STEP, [SLOT_ROUTER] = "block_sparse_moe.router.layer.weight",
                           [SLOT_EXPERT_UP] = "block_sparse_moe.input_linear.weight",
                           [SLOT_EXPERT_DOWN] = "block_sparse_moe.output_linear.weight"}};
static const llm_naming granite_moe_swa_names = {
    NAMES, .layer_slots = {GRANITE_SHARED, [SLOT_ROUTER] = "block_sparse_moe.router.weight",
                           [SLOT_EXPERT_UP] = "block_sparse_moe.experts.gate_up_proj",
                           [SLOT_EXPERT_DOWN] = "block_sparse_moe.experts.down_proj"}};
/* Of models without experts. */
static const llm_naming granite_dense_names = {
    NAMES,
    .layer_slots = {
        MAMBA2_STEP, [SLOT_UP] = "shared_mlp.input_linear.weight", [SLOT_DOWN] = "shared_mlp.output_linear.weight"}};

#define FEED_FORWARD                                                                          \
    [SLOT_GATE] = "feed_forward.gate_proj.weight", [SLOT_UP] = "feed_forward.up_proj.weight", \
    [SLOT_DOWN] = "feed_forward.down_proj.weight", [SLOT_ROUTER] = "feed_forward.router.weight"
#define JAMBA_LAYER                                                               \
    FEED_FORWARD, [SLOT_FFN_NORM] = "pre_ff_layernorm.weight",                    \
                  [SLOT_EXPERT_GATE] = "feed_forward.experts.*.gate_proj.weight", \
                  [SLOT_EXPERT_UP] = "feed_forward.experts.*.up_proj.weight",     \
                  [SLOT_EXPERT_DOWN] = "feed_forward.experts.*.down_proj.weight"
static const llm_naming jamba_names = {MODEL, .layer_slots = {JAMBA_LAYER},
                                       HEAD("embed_tokens.weight", "final_layernorm.weight", "lm_head.weight")};
static const llm_naming bamba_names = {MODEL, .layer_slots = {JAMBA_LAYER, MAMBA2_STEP},
                                       HEAD("embed_tokens.weight", "final_layernorm.weight", "lm_head.weight")};

/* Each layer has one norm. */
#define MIXER                                                                                            \
    [SLOT_ATTENTION_NORM] = "norm.weight", [SLOT_FFN_NORM] = "", [SLOT_MIX_IN] = "mixer.in_proj.weight", \
    [SLOT_CONV] = "mixer.conv1d.weight", [SLOT_DECAY] = "mixer.A_log", [SLOT_SKIP] = "mixer.D",          \
    [SLOT_MIX_OUT] = "mixer.out_proj.weight"
#define MIXER2 MIXER, [SLOT_STEP_BIAS] = "mixer.dt_bias", [SLOT_MIX_NORM] = "mixer.norm.weight"
#define BACKBONE .prefix = "backbone.", .layer = "layers.", HEAD("embeddings.weight", "norm_f.weight", "lm_head.weight")
static const llm_naming nemotron_h_names = {
    BACKBONE,
    .layer_slots =
        {MIXER2, SHARED_NAMES("mixer.shared_experts"), [SLOT_Q] = "mixer.q_proj.weight",
         [SLOT_K] = "mixer.k_proj.weight", [SLOT_V] = "mixer.v_proj.weight", [SLOT_O] = "mixer.o_proj.weight",
         [SLOT_UP] = "mixer.up_proj.weight", [SLOT_DOWN] = "mixer.down_proj.weight",
         [SLOT_ROUTER] = "mixer.gate.weight", [SLOT_CHOICE_BIAS] = "mixer.gate.e_score_correction_bias",
         [SLOT_EXPERT_UP] = "mixer.experts.*.up_proj.weight", [SLOT_EXPERT_DOWN] = "mixer.experts.*.down_proj.weight"},
};
static const llm_naming mamba_names = {
    BACKBONE, .layer_slots = {MIXER, [SLOT_MIX_X] = "mixer.x_proj.weight", [SLOT_STEP] = "mixer.dt_proj.weight"}};
static const llm_naming mamba2_names = {BACKBONE, .layer_slots = {MIXER2}};

static const llm_naming llama4_names = {
    NAMES,
    .layer_slots = {FEED_FORWARD,
                    SHARED_NAMES("feed_forward.shared_expert"), [SLOT_EXPERT_UP] = "feed_forward.experts.gate_up_proj",
                    [SLOT_EXPERT_DOWN] = "feed_forward.experts.down_proj"},
    .transposed = BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN),
};
static const llm_naming ernie_moe_names = {
    NAMES, .layer_slots = {DEEPSEEK_SHARED, [SLOT_CHOICE_BIAS] = "mlp.moe_statics.e_score_correction_bias"}};
static const llm_naming exaone_moe_names = {
    NAMES, .layer_slots = {DEEPSEEK_SHARED, [SLOT_CHOICE_BIAS] = "mlp.e_score_correction_bias"}};
static const llm_naming hy_v3_names = {
    NAMES, .layer_slots = {SHARED_NAMES("mlp.shared_mlp"), [SLOT_ROUTER] = "mlp.router.gate.weight",
                           [SLOT_CHOICE_BIAS] = "mlp.expert_bias"}};
static const llm_naming apertus_names = {
    MODEL,
    .beside = {".rotary_emb.inv_freq", ".mlp.act_fn.beta", ".mlp.act_fn.eps"},
    .layer_slots =
        {[SLOT_ATTENTION_NORM] = "attention_layernorm.weight", [SLOT_FFN_NORM] = "feedforward_layernorm.weight"},
};
static const llm_naming hyperclovax_names = {
    NAMES,
    .layer_slots = {[SLOT_ATTENTION_POST_NORM] = "post_norm1.weight", [SLOT_FFN_POST_NORM] = "post_norm2.weight"}};

#define GEMMA_NORMS                                                                                                \
    [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight", [SLOT_FFN_NORM] = "pre_feedforward_layernorm." \
                                                                                      "weight"
static const llm_naming gemma_names = {NAMES, .layer_slots = {GEMMA_NORMS}};
static const llm_naming gemma3n_names = {MODEL, .layer_slots = {GEMMA_NORMS}};
static const llm_naming gemma4_names = {
    MODEL, .layer_slots = {GEMMA_NORMS, [SLOT_ROUTER] = "router.proj.weight", [SLOT_EXPERT_UP] = "experts.gate_up_proj",
                           [SLOT_EXPERT_DOWN] = "experts.down_proj"}};
/* Norms of what attention and feed-forward yield, and none before. */
static const llm_naming olmo2_names = {
    NAMES, .layer_slots = {[SLOT_FFN_NORM] = "", [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight"}};

#define GEMMA_MIXER(part) "temporal_block." part ".weight"
static const llm_naming recurrent_gemma_names = {MODEL,
                                                 .layer_slots = {[SLOT_ATTENTION_NORM] = "temporal_pre_norm.weight",
                                                                 [SLOT_FFN_NORM] = "channel_pre_norm.weight",
                                                                 [SLOT_Q] = GEMMA_MIXER("q_proj"),
                                                                 [SLOT_K] = GEMMA_MIXER("k_proj"),
                                                                 [SLOT_V] = GEMMA_MIXER("v_proj"),
                                                                 [SLOT_O] = GEMMA_MIXER("o_proj"),
                                                                 [SLOT_GATE] = "mlp_block.gate_proj.weight",
                                                                 [SLOT_UP] = "mlp_block.up_proj.weight",
                                                                 [SLOT_DOWN] = "mlp_block.down_proj.weight",
                                                                 [SLOT_MIX_IN] = GEMMA_MIXER("linear_x"),
                                                                 [SLOT_MIX_GATE] = GEMMA_MIXER("linear_y"),
                                                                 [SLOT_CONV] = GEMMA_MIXER("conv_1d"),
                                                                 [SLOT_DECAY] = "temporal_block.rg_lru.recurrent_param",
                                                                 [SLOT_MIX_OUT] = GEMMA_MIXER("linear_out")},
                                                 HEAD("embed_tokens.weight", "final_norm.weight", "lm_head.weight")};

#define DELTANET_LAYER                                                                   \
    [SLOT_CONV] = "linear_attn.conv1d.weight", [SLOT_STEP_BIAS] = "linear_attn.dt_bias", \
    [SLOT_DECAY] = "linear_attn.A_log", [SLOT_MIX_NORM] = "linear_attn.norm.weight",     \
    [SLOT_MIX_OUT] = "linear_attn.out_proj.weight"
static const llm_naming qwen3_next_names = {
    NAMES, .layer_slots = {DELTANET_LAYER, [SLOT_MIX_IN] = "linear_attn.in_proj_qkvz.weight"}};
static const llm_naming qwen3_5_names = {
    NAMES, .layer_slots = {DELTANET_LAYER, [SLOT_MIX_IN] = "linear_attn.in_proj_qkv.weight"}};
#define LFM2_LAYER                                                                                                     \
    [SLOT_FFN_NORM] = "ffn_norm.weight", [SLOT_GATE] = "feed_forward.w1.weight", [SLOT_UP] = "feed_forward.w3.weight", \
    [SLOT_DOWN] = "feed_forward.w2.weight", [SLOT_MIX_IN] = "conv.in_proj.weight", [SLOT_CONV] = "conv.conv.weight",   \
    [SLOT_MIX_OUT] = "conv.out_proj.weight"
static const llm_naming lfm2_names = {
    MODEL,
    .layer_slots =
        {LFM2_LAYER, [SLOT_ATTENTION_NORM] = "operator_norm.weight", [SLOT_O] = "self_attn.out_proj.weight",
         [SLOT_Q_NORM] = "self_attn.q_layernorm.weight", [SLOT_K_NORM] = "self_attn.k_layernorm.weight",
         [SLOT_ROUTER] = "feed_forward.gate.weight", [SLOT_CHOICE_BIAS] = "feed_forward.expert_bias",
         [SLOT_EXPERT_GATE] = "feed_forward.experts.*.w1.weight", [SLOT_EXPERT_UP] = "feed_forward.experts.*.w3.weight",
         [SLOT_EXPERT_DOWN] = "feed_forward.experts.*.w2.weight"},
    HEAD("embed_tokens.weight", "embedding_norm.weight", "lm_head.weight"),
};

static const llm_naming lfm3_names = {
    MODEL,
    .layer_slots = {[SLOT_ATTENTION_NORM] = "operator_norm.weight",
                    [SLOT_ATTENTION_POST_NORM] = "post_operator_norm.weight",
                    [SLOT_FFN_POST_NORM] = "post_ffn_norm.weight",
                    LFM2_LAYER},
    HEAD("embed_tokens.weight", "embedding_norm.weight", "lm_head.weight"),
};

static const llm_naming rwkv_names = {
    .prefix = "rwkv.",
    .layer = "blocks.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "ln1.weight",
                    [SLOT_FFN_NORM] = "ln2.weight",
                    [SLOT_Q] = "attention.receptance.weight",
                    [SLOT_K] = "attention.key.weight",
                    [SLOT_V] = "attention.value.weight",
                    [SLOT_MIX_OUT] = "attention.output.weight",
                    [SLOT_DECAY] = "attention.time_decay",
                    [SLOT_SKIP] = "attention.time_first",
                    [SLOT_UP] = "feed_forward.key.weight",
                    [SLOT_DOWN] = "feed_forward.value.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embeddings.weight",
                   [SLOT_OUTPUT_NORM] = "ln_out.weight",
                   [SLOT_OUTPUT] = "head.weight",
                   [SLOT_EMBEDDING_NORM] = "blocks.0.pre_ln.weight"},
};

#define GATE_UP [SLOT_UP] = "mlp.gate_up_proj.weight"
static const llm_naming phi3_names = {NAMES, .layer_slots = {GATE_UP}};
static const llm_naming glm_names = {
    NAMES, .layer_slots = {GATE_UP, [SLOT_ATTENTION_POST_NORM] = "post_self_attn_layernorm.weight",
                           [SLOT_FFN_POST_NORM] = "post_mlp_layernorm.weight"}};
static const llm_naming hunyuan_names = {
    NAMES, .layer_slots = {SHARED_NAMES("mlp.shared_mlp"), [SLOT_Q_NORM] = "self_attn.query_layernorm.weight",
                           [SLOT_K_NORM] = "self_attn.key_layernorm.weight", [SLOT_ROUTER] = "mlp.gate.wg.weight"}};
static const llm_naming modernbert_names = {
    MODEL,
    .layer_slots = {[SLOT_ATTENTION_NORM] = "attn_norm.weight",
                    [SLOT_QKV] = "attn.Wqkv.weight",
                    [SLOT_O] = "attn.Wo.weight",
                    [SLOT_FFN_NORM] = "mlp_norm.weight",
                    [SLOT_UP] = "mlp.Wi.weight",
                    [SLOT_DOWN] = "mlp.Wo.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embeddings.tok_embeddings.weight",
                   [SLOT_EMBEDDING_NORM] = "embeddings.norm.weight",
                   [SLOT_OUTPUT_NORM] = "final_norm.weight",
                   [SLOT_OUTPUT] = "decoder.weight",
                   [SLOT_OUTPUT_BIAS] = ""},
    .beside = {"head.dense.weight", "head.norm.weight", "decoder.bias"},
};

static const llm_naming modernbert_decoder_names = {
    MODEL,
    .layer_slots = {[SLOT_ATTENTION_NORM] = "attn_norm.weight",
                    [SLOT_Q] = "attn.q_proj.weight",
                    [SLOT_K] = "attn.k_proj.weight",
                    [SLOT_V] = "attn.v_proj.weight",
                    [SLOT_O] = "attn.Wo.weight",
                    [SLOT_FFN_NORM] = "mlp_norm.weight",
                    [SLOT_UP] = "mlp.Wi.weight",
                    [SLOT_DOWN] = "mlp.Wo.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embeddings.tok_embeddings.weight",
                   [SLOT_EMBEDDING_NORM] = "embeddings.norm.weight",
                   [SLOT_OUTPUT_NORM] = "final_norm.weight",
                   [SLOT_LAST_DENSE] = "lm_head.dense.weight",
                   [SLOT_LAST_DENSE_NORM] = "lm_head.norm.weight",
                   [SLOT_OUTPUT] = "decoder.weight"},
};

static const llm_naming phi_names = {
    NAMES,
    .layer_slots = {[SLOT_O] = "self_attn.dense.weight", [SLOT_UP] = "mlp.fc1.weight", [SLOT_DOWN] = "mlp.fc2.weight"},
    HEAD("embed_tokens.weight", "final_layernorm.weight", "lm_head.weight"),
};

/* Feed-forward of GPT-NeoX, Falcon and BLOOM. */
#define TO_4H [SLOT_UP] = "mlp.dense_h_to_4h.weight", [SLOT_DOWN] = "mlp.dense_4h_to_h.weight"
static const llm_naming neox_names = {
    .prefix = "gpt_neox.",
    .layer = "layers.",
    .layer_slots = {TO_4H, [SLOT_QKV] = "attention.query_key_value.weight", [SLOT_O] = "attention.dense.weight"},
    HEAD("embed_in.weight", "final_layer_norm.weight", "embed_out.weight"),
    .beside = {".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"},
};
/* Its last layer has a bias after attention. */
static const llm_naming neox_japanese_names = {
    .prefix = "gpt_neox_japanese.",
    .layer = "layers.",
    .layer_slots = {TO_4H, [SLOT_QKV] = "attention.query_key_value.weight", [SLOT_O] = "attention.dense.weight",
                    [SLOT_O_BIAS] = "attention.dense_bias"},
    HEAD("embed_in.weight", "final_layer_norm.weight", "embed_out.weight"),
};
static const llm_naming persimmon_names = {
    NAMES,
    .layer_slots = {TO_4H, [SLOT_QKV] = "self_attn.query_key_value.weight", [SLOT_O] = "self_attn.dense.weight",
                    [SLOT_Q_NORM] = "self_attn.q_layernorm.weight", [SLOT_K_NORM] = "self_attn.k_layernorm.weight"},
    HEAD("embed_tokens.weight", "final_layernorm.weight", "lm_head.weight"),
};
#define FALCON_LAYER \
    TO_4H, [SLOT_QKV] = "self_attention.query_key_value.weight", [SLOT_O] = "self_attention.dense.weight"
#define FALCON_NAMES                                                                          \
    .prefix = "transformer.", .layer = "h.", .beside = {".rotary_emb.inv_freq", ".inv_freq"}, \
    HEAD("word_embeddings.weight", "ln_f.weight", "lm_head.weight")
static const llm_naming falcon_names = {FALCON_NAMES, .layer_slots = {FALCON_LAYER}};
/* Of models with a norm each for attention and feed-forward. */
static const llm_naming falcon_two_names = {
    FALCON_NAMES,
    .layer_slots = {FALCON_LAYER, [SLOT_ATTENTION_NORM] = "ln_attn.weight", [SLOT_FFN_NORM] = "ln_mlp.weight"}};
static const llm_naming bloom_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {FALCON_LAYER},
    .head_slots = {[SLOT_EMBEDDING] = "word_embeddings.weight",
                   [SLOT_EMBEDDING_NORM] = "word_embeddings_layernorm.weight",
                   [SLOT_OUTPUT_NORM] = "ln_f.weight"},
};

#define OPT_LAYER                                                                                  \
    [SLOT_O] = "self_attn.out_proj.weight", [SLOT_ATTENTION_NORM] = "self_attn_layer_norm.weight", \
    [SLOT_FFN_NORM] = "final_layer_norm.weight", [SLOT_UP] = "fc1.weight", [SLOT_DOWN] = "fc2.weight"
static const llm_naming opt_names = {
    .prefix = "model.decoder.",
    .layer = "layers.",
    .layer_slots = {OPT_LAYER},
    .head_slots = {[SLOT_POSITIONS] = "embed_positions.weight", [SLOT_OUTPUT_NORM] = "final_layer_norm.weight"},
};
static const llm_naming xglm_names = {MODEL, .layer_slots = {OPT_LAYER},
                                      HEAD("embed_tokens.weight", "layer_norm.weight", "lm_head.weight")};
static const llm_naming biogpt_names = {
    .prefix = "biogpt.",
    .layer = "layers.",
    .layer_slots = {OPT_LAYER},
    .head_slots = {[SLOT_POSITIONS] = "embed_positions.weight",
                   [SLOT_OUTPUT_NORM] = "layer_norm.weight",
                   [SLOT_OUTPUT] = "output_projection.weight"},
};

#define GPT_NORMS [SLOT_ATTENTION_NORM] = "ln_1.weight", [SLOT_FFN_NORM] = "ln_2.weight"
#define GPT_MATRICES GPT_NORMS, [SLOT_UP] = "mlp.c_fc.weight", [SLOT_DOWN] = "mlp.c_proj.weight"
#define GPT_LAYER GPT_MATRICES, [SLOT_QKV] = "attn.c_attn.weight", [SLOT_O] = "attn.c_proj.weight"
#define GPT_TRANSPOSED .transposed = BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_UP) | BIT(SLOT_DOWN)
#define GPT_HEAD                                                                                            \
    .prefix = "transformer.", .layer = "h.",                                                                \
    .beside = {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"} /* masks */, \
    .head_slots = {                                                                                         \
        [SLOT_EMBEDDING] = "wte.weight", [SLOT_POSITIONS] = "wpe.weight", [SLOT_OUTPUT_NORM] = "ln_f.weight"}
static const llm_naming gpt2_names = {GPT_HEAD, .layer_slots = {GPT_LAYER}, GPT_TRANSPOSED};
static const llm_naming bigcode_names = {GPT_HEAD, .layer_slots = {GPT_LAYER}};
static const llm_naming gpt_neo_names = {
    GPT_HEAD,
    .layer_slots = {GPT_MATRICES, [SLOT_Q] = "attn.attention.q_proj.weight", [SLOT_K] = "attn.attention.k_proj.weight",
                    [SLOT_V] = "attn.attention.v_proj.weight", [SLOT_O] = "attn.attention.out_proj.weight"}};
#define GPTJ_LAYER \
    GPT_NORMS, [SLOT_O] = "attn.out_proj.weight", [SLOT_UP] = "mlp.fc_in.weight", [SLOT_DOWN] = "mlp.fc_out.weight"
static const llm_naming gptj_names = {
    GPT_HEAD,
    .layer_slots = {
        GPTJ_LAYER, [SLOT_Q] = "attn.q_proj.weight", [SLOT_K] = "attn.k_proj.weight", [SLOT_V] = "attn.v_proj.weight"}};
static const llm_naming codegen_names = {GPT_HEAD, .layer_slots = {GPTJ_LAYER, [SLOT_QKV] = "attn.qkv_proj.weight"}};
static const llm_naming openai_gpt_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {GPT_LAYER},
    .head_slots = {[SLOT_EMBEDDING] = "tokens_embed.weight", [SLOT_POSITIONS] = "positions_embed.weight"},
    GPT_TRANSPOSED,
    .beside = {".attn.bias"},
};
static const llm_naming ctrl_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "layernorm1.weight",
                    [SLOT_Q] = "multi_head_attention.Wq.weight",
                    [SLOT_K] = "multi_head_attention.Wk.weight",
                    [SLOT_V] = "multi_head_attention.Wv.weight",
                    [SLOT_O] = "multi_head_attention.dense.weight",
                    [SLOT_FFN_NORM] = "layernorm2.weight",
                    [SLOT_UP] = "ffn.0.weight",
                    [SLOT_DOWN] = "ffn.2.weight"},
    HEAD("w.weight", "layernorm.weight", "lm_head.weight"),
};
/* EXAONE 3. */
static const llm_naming exaone_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "ln_1.weight",
                    [SLOT_Q] = "attn.attention.q_proj.weight",
                    [SLOT_K] = "attn.attention.k_proj.weight",
                    [SLOT_V] = "attn.attention.v_proj.weight",
                    [SLOT_O] = "attn.attention.out_proj.weight",
                    [SLOT_FFN_NORM] = "ln_2.weight",
                    [SLOT_GATE] = "mlp.c_fc_0.weight",
                    [SLOT_UP] = "mlp.c_fc_1.weight",
                    [SLOT_DOWN] = "mlp.c_proj.weight"},
    HEAD("wte.weight", "ln_f.weight", "lm_head.weight"),
    .beside = {".rotary.inv_freq"},
};
static const llm_naming mpt_names = {
    .prefix = "transformer.",
    .layer = "blocks.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "norm_1.weight",
                    [SLOT_FFN_NORM] = "norm_2.weight",
                    [SLOT_QKV] = "attn.Wqkv.weight",
                    [SLOT_O] = "attn.out_proj.weight",
                    [SLOT_UP] = "ffn.up_proj.weight",
                    [SLOT_DOWN] = "ffn.down_proj.weight"},
    HEAD("wte.weight", "norm_f.weight", "lm_head.weight"),
};
static const llm_naming nanochat_names = {
    NAMES, .layer_slots = {[SLOT_UP] = "mlp.fc1.weight", [SLOT_DOWN] = "mlp.fc2.weight"}};
static const llm_naming starcoder2_names = {
    NAMES, .layer_slots = {[SLOT_UP] = "mlp.c_fc.weight", [SLOT_DOWN] = "mlp.c_proj.weight"}};
static const llm_naming afmoe_names = {
    NAMES,
    .layer_slots = {DEEPSEEK_SHARED, [SLOT_ROUTER] = "mlp.router.gate.weight", [SLOT_CHOICE_BIAS] = "mlp.expert_bias",
                    [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight",
                    [SLOT_FFN_NORM] = "pre_mlp_layernorm.weight", [SLOT_FFN_POST_NORM] = "post_mlp_layernorm.weight"},
};
static const llm_naming sarvam_moe_names = {
    MODEL,
    .layer_slots =
        {DEEPSEEK_SHARED, [SLOT_CHOICE_BIAS] = "mlp.gate.expert_bias", [SLOT_QKV] = "attention.query_key_value.weight",
         [SLOT_O] = "attention.dense.weight", [SLOT_Q_NORM] = "attention.query_layernorm.weight",
         [SLOT_K_NORM] = "attention.key_layernorm.weight"},
    HEAD("word_embeddings.weight", "norm.weight", "lm_head.weight"),
};
static const llm_naming kolibri1_names = {
    NAMES, .layer_slots = {
               DEEPSEEK_SHARED, [SLOT_CHOICE_BIAS] = "moe.router.expert_bias",
               [SLOT_ATTENTION_POST_NORM] = "post_attn_norm.weight", [SLOT_FFN_POST_NORM] = "post_ffn_norm.weight"}};

/* ---- config.json's keys ------------------------------------------------------------------------------------------ */

/* In the order of llm_key. */
#define ROW(...) \
    { __VA_ARGS__ }
#define KEYS_BUT(eps, activation)                                                                                   \
    {                                                                                                               \
        [KEY_LAYERS] = "num_hidden_layers", [KEY_HIDDEN] = "hidden_size", [KEY_INTERMEDIATE] = "intermediate_size", \
        [KEY_HEADS] = "num_attention_heads", [KEY_CONTEXT] = "max_position_embeddings", [KEY_EPS] = eps,            \
        [KEY_ACTIVATION] = activation, [KEY_KV_HEADS] = "num_key_value_heads", [KEY_HEAD_DIM] = "head_dim"          \
    }
static const char *const llama_keys[LLM_KEYS] = KEYS_BUT("rms_norm_eps", "hidden_act");
static const char *const apertus_keys[LLM_KEYS] = KEYS_BUT("rms_norm_eps", ""); /* read_apertus */
static const char *const gemma_keys[LLM_KEYS] = KEYS_BUT("rms_norm_eps", "hidden_activation");
static const char *const layer_norm_keys[LLM_KEYS] = KEYS_BUT("layer_norm_eps", "hidden_act");
static const char *const nemotron_h_keys[LLM_KEYS] = KEYS_BUT("layer_norm_epsilon", "mlp_hidden_act");
static const char *const starcoder2_keys[LLM_KEYS] = KEYS_BUT("norm_epsilon", "hidden_act");
static const char *const nemotron_keys[LLM_KEYS] = KEYS_BUT("norm_eps", "hidden_act");
static const char *const modernbert_keys[LLM_KEYS] = KEYS_BUT("norm_eps", "hidden_activation");
/* The norms' epsilon is not in config.json: transformers has a constant. */
static const char *const constant_keys[LLM_KEYS] = KEYS_BUT("", "hidden_act");
static const char *const falcon_keys[LLM_KEYS] =
    ROW("num_hidden_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "max_position_embeddings",
        "layer_norm_epsilon", "activation", "", ""); /* read_falcon */
static const char *const bloom_keys[LLM_KEYS] =
    ROW("n_layer", "hidden_size", "", "n_head", "seq_length", "layer_norm_epsilon", "", "", "");
static const char *const mpt_keys[LLM_KEYS] =
    ROW("n_layers", "d_model", "", "n_heads", "max_seq_len", "layer_norm_epsilon", "", "", "");
static const char *const openai_gpt_keys[LLM_KEYS] =
    ROW("n_layer", "n_embd", "", "n_head", "n_positions", "layer_norm_epsilon", "", "", ""); /* read_openai_gpt */
static const char *const mamba_keys[LLM_KEYS] =
    ROW("num_hidden_layers", "hidden_size", "", "", "", "layer_norm_epsilon", "hidden_act", "", "");
static const char *const rwkv_keys[LLM_KEYS] =
    ROW("num_hidden_layers", "hidden_size", "intermediate_size", "", "", "layer_norm_epsilon", "", "", "");
static const char *const gpt_neo_keys[LLM_KEYS] =
    ROW("num_layers", "hidden_size", "intermediate_size", "num_heads", "max_position_embeddings", "layer_norm_epsilon",
        "activation_function", "", "");
static const char *const opt_keys[LLM_KEYS] = ROW("num_hidden_layers", "hidden_size", "ffn_dim", "num_attention_heads",
                                                  "max_position_embeddings", "", "activation_function", "", "");
static const char *const xglm_keys[LLM_KEYS] = ROW("num_layers", "d_model", "ffn_dim", "attention_heads",
                                                   "max_position_embeddings", "", "activation_function", "", "");
static const char *const ctrl_keys[LLM_KEYS] =
    ROW("n_layer", "n_embd", "dff", "n_head", "n_positions", "layer_norm_epsilon", "", "", "");
static const char *const gpt2_keys[LLM_KEYS] =
    ROW("n_layer", "n_embd", "n_inner", "n_head", "n_positions", "layer_norm_epsilon", "activation_function",
        "num_key_value_heads", "head_dim");

/* Sizes that transformers' classes have by themselves: the text_config of a model with pictures may leave them out. */
static const int64_t llama_usual[LLM_KEYS] = {
    [KEY_LAYERS] = 32, [KEY_HIDDEN] = 4096, [KEY_INTERMEDIATE] = 11008, [KEY_HEADS] = 32, [KEY_CONTEXT] = 2048};
static const int64_t mistral_usual[LLM_KEYS] = {[KEY_LAYERS] = 32, [KEY_HIDDEN] = 4096,    [KEY_INTERMEDIATE] = 14336,
                                                [KEY_HEADS] = 32,  [KEY_CONTEXT] = 131072, [KEY_KV_HEADS] = 8};
static const int64_t mllama_usual[LLM_KEYS] = {[KEY_LAYERS] = 40, [KEY_HIDDEN] = 4096,    [KEY_INTERMEDIATE] = 14336,
                                               [KEY_HEADS] = 32,  [KEY_CONTEXT] = 131072, [KEY_KV_HEADS] = 8};
static const int64_t gemma3_usual[LLM_KEYS] = {
    [KEY_LAYERS] = 26,      [KEY_HIDDEN] = 2304, [KEY_INTERMEDIATE] = 9216, [KEY_HEADS] = 8,
    [KEY_CONTEXT] = 131072, [KEY_KV_HEADS] = 4,  [KEY_HEAD_DIM] = 256};
static const int64_t gemma3n_usual[LLM_KEYS] = {
    [KEY_LAYERS] = 35,     [KEY_HIDDEN] = 2048, [KEY_INTERMEDIATE] = 16384, [KEY_HEADS] = 8,
    [KEY_CONTEXT] = 32768, [KEY_KV_HEADS] = 2,  [KEY_HEAD_DIM] = 256};
static const int64_t granite_swa_usual[LLM_KEYS] = {[KEY_LAYERS] = 24, [KEY_HIDDEN] = 2560,  [KEY_INTERMEDIATE] = 8192,
                                                    [KEY_HEADS] = 20,  [KEY_CONTEXT] = 8192, [KEY_KV_HEADS] = 4};
static const int64_t gemma4_usual[LLM_KEYS] = {
    [KEY_LAYERS] = 30,      [KEY_HIDDEN] = 2304, [KEY_INTERMEDIATE] = 9216, [KEY_HEADS] = 8,
    [KEY_CONTEXT] = 131072, [KEY_KV_HEADS] = 4,  [KEY_HEAD_DIM] = 256};
static const int64_t mamba_usual[LLM_KEYS] = {[KEY_INTERMEDIATE] = 1, [KEY_CONTEXT] = 1 << 20}; /* neither is there */
static const int64_t recurrent_gemma_usual[LLM_KEYS] = {[KEY_CONTEXT] = 1 << 20};               /* it has a window */
static const int64_t rwkv_usual[LLM_KEYS] = {[KEY_CONTEXT] = 1 << 20};                          /* a state has no end */
static const int64_t falcon_usual[LLM_KEYS] = {[KEY_CONTEXT] = 2048};                           /* rope has no end */
static const int64_t bloom_usual[LLM_KEYS] = {[KEY_CONTEXT] = 2048}; /* config.json has none: ALiBi has no limit */

/* ---- what single families have in config.json -------------------------------------------------------------------- */

static tn_status read_modernbert(const hf_folder *f, llm_config *c) {
    int64_t pattern;
    TRY(tn_hf_size(f, "local_attention", 128, LLM_MOST_CONTEXT, &c->attention.window));
    TRY(tn_hf_size(f, "global_attn_every_n_layers", 3, LLM_MOST_LAYERS, &pattern));
    for (int64_t i = 0; i < c->layers; i++)
        tn_llm_set_window(c, i, i % pattern != 0);
    const tn_json *types = tn_json_get(f->config, "layer_types");
    return tn_json_kind_of(types) == TN_JSON_ARRAY ? tn_llm_read_layer_types(f, types, c) : TN_OK;
}

static tn_status read_modernbert_decoder(const hf_folder *f, llm_config *c) {
    TRY(read_modernbert(f, c));
    c->attention.window /= 2; /* of the tokens before, as many as the encoder has on each side */
    return tn_hf_activation(f, "classifier_activation", "gelu", &c->last_activation);
}

static tn_status read_ctrl(const hf_folder *f, llm_config *c) {
    static const double EPS = 1e-6; /* of norms of layers, whatever config.json says of the last one */
    if (tn_json_number(tn_json_get(f->config, "layer_norm_epsilon"), EPS) != EPS)
        return tn_llm_refuse(f, "layer_norm_epsilon", "not 1e-6");
    c->scales.embedding = sqrt((double)c->size[SIZE_HIDDEN]);
    return TN_OK;
}

static tn_status read_neox_japanese(const hf_folder *f, llm_config *c) {
    int64_t times, *width = &c->size[SIZE_INTERMEDIATE];
    TRY(tn_hf_size(f, "intermediate_multiple_size", 4, 1024, &times));
    *width = c->size[SIZE_UP] = times * c->size[SIZE_HIDDEN];
    return TN_OK;
}

static tn_status read_persimmon(const hf_folder *f, llm_config *c) {
    if (tn_llm_flag(f, "qk_layernorm", true)) c->needs |= NORMS | BIT(SLOT_Q_NORM_BIAS) | BIT(SLOT_K_NORM_BIAS);
    return TN_OK;
}

/* The first models have one head of keys and values, or one for each query; later ones say how many. */
static tn_status read_falcon(const hf_folder *f, llm_config *c) {
    bool later = tn_llm_flag(f, "new_decoder_architecture", false);
    int64_t norms = tn_json_int(tn_json_get(f->config, "num_ln_in_parallel_attn"), 2);
    c->attention.parallel = later || tn_llm_flag(f, "parallel_attn", true);
    TRY(tn_hf_size(f, "num_attention_heads", -1, LLM_MOST_HEADS, &c->attention.kv_heads));
    if (later)
        TRY(tn_hf_size(f, "num_kv_heads", -1, LLM_MOST_HEADS, &c->attention.kv_heads));
    else if (tn_llm_flag(f, "multi_query", true))
        c->attention.kv_heads = 1;
    if (!later || norms != 2) return TN_OK;
    c->file.naming = &falcon_two_names;
    c->needs |= BIT(SLOT_FFN_NORM);
    return TN_OK;
}

static tn_status read_bigcode(const hf_folder *f, llm_config *c) {
    if (tn_llm_flag(f, "multi_query", true)) c->attention.kv_heads = 1;
    return TN_OK;
}

/* Scores are not divided, and every other layer has a window: "attention_types" is a list of ([kinds], how often). */
static tn_status read_gpt_neo(const hf_folder *f, llm_config *c) {
    const tn_json *types = tn_json_get(f->config, "attention_types");
    int64_t layer = 0;
    TRY(tn_hf_size(f, "window_size", 256, LLM_MOST_CONTEXT, &c->attention.window));
    for (size_t t = 0; t < tn_json_length(types); t++) {
        const tn_json *kinds = tn_json_at(tn_json_at(types, t), 0);
        int64_t times = tn_json_int(tn_json_at(tn_json_at(types, t), 1), 0), count = (int64_t)tn_json_length(kinds);
        bool fits = count <= c->layers && times >= 0 && times <= c->layers;
        for (int64_t i = 0; fits && i < count * times && layer < c->layers; i++)
            tn_llm_set_window(c, layer++,
                              strcmp(tn_json_string(tn_json_at(kinds, (size_t)(i % count)), ""), "local") == 0);
    }
    c->attention.scale = 1;
    return layer == c->layers ? TN_OK : tn_llm_refuse(f, "attention_types", "not a list of kinds for all layers");
}

static tn_status read_opt(const hf_folder *f, llm_config *c) {
    if (!tn_llm_flag(f, "do_layer_norm_before", true)) return tn_llm_refuse(f, "do_layer_norm_before", "false");
    TRY(tn_hf_refuse(f, "_remove_final_layer_norm"));
    if (tn_json_int(tn_json_get(f->config, "word_embed_proj_dim"), c->size[SIZE_HIDDEN]) != c->size[SIZE_HIDDEN])
        return tn_llm_refuse(f, "word_embed_proj_dim", "not the hidden size");
    return TN_OK;
}

static tn_status read_openai_gpt(const hf_folder *f, TN_UNUSED llm_config *c) {
    const char *name = tn_hf_text(f, "afn", "gelu"); /* "gelu" here means the approximation by tanh */
    return strcmp(name, "gelu") == 0 ? TN_OK : tn_llm_refuse(f, "afn", "not gelu");
}

static tn_status read_biogpt(const hf_folder *f, llm_config *c) {
    if (tn_llm_flag(f, "scale_embedding", true)) c->scales.embedding = sqrt((double)c->size[SIZE_HIDDEN]);
    return TN_OK;
}

static tn_status read_bloom(const hf_folder *f, llm_config *c) {
    c->attention.alibi = 8;
    return tn_hf_refuse(f, "apply_residual_connection_post_layernorm");
}

/* Accepts only ALiBi without biases. Its settings are in the object attn_config. */
static tn_status read_mpt(const hf_folder *f, llm_config *c) {
    hf_folder own = *f;
    double most;
    own.config = tn_json_get(f->config, "attn_config");
    if (!tn_llm_flag(&own, "alibi", true)) return tn_llm_refuse(f, "alibi", "false");
    if (!tn_llm_flag(f, "no_bias", true)) return tn_llm_refuse(f, "no_bias", "false");
    TRY(tn_hf_refuse(&own, "clip_qkv"));
    TRY(tn_hf_refuse(&own, "qk_ln"));
    TRY(tn_hf_refuse(&own, "prefix_lm"));
    TRY(tn_hf_refuse(&own, "attn_uses_sequence_id"));
    TRY(tn_hf_real(f, own.config, "alibi_bias_max", 8, 1e-3, 64, &c->attention.alibi));
    if (c->attention.alibi != 8) /* MPT's code uses the value, transformers does not */
        return tn_llm_refuse(f, "alibi_bias_max", "not 8");
    if (tn_hf_has(&own, "softmax_scale"))
        TRY(tn_hf_real(f, own.config, "softmax_scale", 1, 1e-6, 1e6, &c->attention.scale));
    TRY(tn_hf_real(f, f->config, "expansion_ratio", 4, 1e-3, 1e3, &most));
    c->size[SIZE_INTERMEDIATE] = c->size[SIZE_UP] = (int64_t)(most * (double)c->size[SIZE_HIDDEN]);
    return TN_OK;
}

static tn_status read_nanochat(const hf_folder *f, llm_config *c) {
    c->attention.unit_heads = true;
    return tn_llm_read_cap(f, "final_logit_softcapping", 15, &c->scales.final_cap);
}

/* A number that null makes another one than its absence. */
static tn_status read_or_null(const hf_folder *f, const char *key, double usual, double null, double *out) {
    const tn_json *v = tn_json_get(f->config, key);
    *out = null;
    return v && tn_json_kind_of(v) == TN_JSON_NULL ? TN_OK : tn_hf_real(f, f->config, key, usual, 1e-6, 1e9, out);
}

static tn_status read_minicpm3(const hf_folder *f, llm_config *c) {
    double depth, base, hidden = (double)c->size[SIZE_HIDDEN];
    TRY(tn_hf_real(f, f->config, "scale_emb", 12, 1e-6, 1e6, &c->scales.embedding));
    TRY(read_or_null(f, "scale_depth", 1.4, sqrt((double)c->layers), &depth));
    TRY(read_or_null(f, "dim_model_base", 256, hidden, &base));
    c->scales.residual = depth / sqrt((double)c->layers);
    c->scales.logits = base / hidden;
    return TN_OK;
}

/* The first layers have no experts. */
static void leave_unmixed(llm_config *c, int64_t first) {
    for (int64_t i = 0; i < c->layers && i < first; i++)
        tn_llm_set_unmixed(c, i);
}

static tn_status read_afmoe(const hf_folder *f, llm_config *c) {
    int64_t dense = tn_json_int(tn_json_get(f->config, "num_dense_layers"), 1);
    leave_unmixed(c, dense);
    c->experts.whole_choice = true;
    if (tn_llm_flag(f, "mup_enabled", false)) c->scales.embedding = sqrt((double)c->size[SIZE_HIDDEN]);
    return tn_hf_real(f, f->config, "route_scale", 1, 1e-6, 1e6, &c->experts.scale);
}

/* Head size and key/value heads of layers without a window, from either form of config.json. All such layers must have
 * the same sizes. */
static tn_status read_wide(const hf_folder *f, llm_config *c) {
    const tn_json *each = tn_json_get(f->config, "per_layer_config");
    llm_attention *a = &c->attention;
    hf_folder own = *f;
    int64_t head = 512, keys = 0, usual;
    TRY(tn_hf_size(f, "head_dim", 256, LLM_MOST_WIDTH, &usual));
    a->wide_keys_only = tn_llm_flag(f, "attention_k_eq_v", false);
    if (!each) TRY(tn_hf_size(f, "global_head_dim", head, LLM_MOST_WIDTH, &head));
    if (!each && a->wide_keys_only && tn_hf_has(f, "num_global_key_value_heads"))
        TRY(tn_hf_size(f, "num_global_key_value_heads", -1, LLM_MOST_HEADS, &keys));
    for (int64_t i = 0, found = 0; each && i < c->layers; i++) {
        char name[24];
        snprintf(name, sizeof name, "%" PRId64, i);
        own.config = tn_json_get(each, name);
        if (tn_llm_slides(c, i) && own.config)
            return tn_llm_refuse(f, "per_layer_config", "given for a layer with a window");
        if (tn_llm_slides(c, i)) continue;
        int64_t width = usual, number = 0;
        if (own.config && tn_hf_has(&own, "head_dim")) TRY(tn_hf_size(&own, "head_dim", -1, LLM_MOST_WIDTH, &width));
        if (own.config && tn_hf_has(&own, "num_key_value_heads"))
            TRY(tn_hf_size(&own, "num_key_value_heads", -1, LLM_MOST_HEADS, &number));
        if (found && (width != head || number != keys))
            return tn_llm_refuse(f, "per_layer_config", "another one for each layer");
        head = width, keys = number, found = 1;
    }
    a->wide_head = head;
    a->wide_kv_heads = keys;
    return TN_OK;
}

static tn_status read_shared(const hf_folder *f, llm_config *c, int64_t usual) {
    int64_t shared = tn_json_int(tn_json_get(f->config, "num_kv_shared_layers"), usual);
    return tn_llm_share_layers(c, shared)
               ? TN_OK
               : tn_llm_refuse(f, "num_kv_shared_layers", "below 0, or so many that a kind of layers has no keys");
}

/* Width of per-layer embeddings; 0: there are none. */
static tn_status read_inputs(const hf_folder *f, llm_config *c) {
    int64_t *inputs = &c->size[SIZE_INPUTS];
    bool unified = strcmp(tn_hf_text(f, "model_type", ""), "gemma4_unified_text") == 0;
    *inputs = tn_json_int(tn_json_get(f->config, "hidden_size_per_layer_input"), unified ? 0 : 256);
    if (*inputs == 0) return TN_OK;
    TRY(tn_hf_size(f, "hidden_size_per_layer_input", 256, LLM_MOST_WIDTH, inputs));
    c->size[SIZE_ALL_INPUTS] = c->layers * *inputs;
    c->needs |= BIT(SLOT_INPUT_GATE) | BIT(SLOT_INPUT_OUT) | BIT(SLOT_INPUT_NORM);
    return TN_OK;
}

/* x with P(a normal number is less than x) = part. */
static double normal_quantile(double part) {
    double low = -40, high = 40;
    for (int i = 0; i < 200; i++) {
        double middle = (low + high) / 2;
        *(erfc(-middle / sqrt(2)) / 2 < part ? &low : &high) = middle;
    }
    return low;
}

/* Which part of a layer's gates counts as 0: none, or one part in all layers that have it. */
static tn_status read_sparsity(const hf_folder *f, llm_config *c) {
    enum { FIRST = 10 };
    static const double USUAL = 0.95;
    const tn_json *list = tn_json_get(f->config, "activation_sparsity_pattern");
    bool listed = tn_json_kind_of(list) == TN_JSON_ARRAY;
    double part = 0;
    if (listed ? (int64_t)tn_json_length(list) != c->layers : tn_hf_has(f, "activation_sparsity_pattern"))
        return tn_llm_refuse(f, "activation_sparsity_pattern", "not a list of one number for each layer");
    for (int64_t i = 0; i < c->layers; i++) {
        double own = listed                           ? tn_json_number(tn_json_at(list, (size_t)i), -1)
                     : i < FIRST && c->layers > FIRST ? USUAL
                                                      : 0;
        if (!(own >= 0 && own < 1) || (own > 0 && part > 0 && own != part))
            return tn_llm_refuse(f, "activation_sparsity_pattern", "not 0 or one number below 1");
        if (own == 0) continue;
        part = own;
        tn_llm_set_sparse(c, i);
    }
    if (part > 0) c->streams.cutoff = normal_quantile(part);
    return TN_OK;
}

static tn_status read_gemma3n(const hf_folder *f, llm_config *c) {
    int64_t count;
    TRY(tn_llm_read_window(f, c));
    TRY(read_shared(f, c, 15));
    TRY(read_inputs(f, c));
    if (c->size[SIZE_INPUTS] == 0) return tn_llm_refuse(f, "hidden_size_per_layer_input", "0");
    TRY(read_sparsity(f, c));
    TRY(tn_hf_size(f, "altup_num_inputs", 4, LLM_MOST_STREAMS, &count));
    if (count < 2) return tn_llm_refuse(f, "altup_num_inputs", "1");
    tn_llm_set_streams(c, count);
    TRY(tn_hf_size(f, "laurel_rank", 64, LLM_MOST_WIDTH, &c->size[SIZE_LAUREL]));
    c->streams.active = tn_json_int(tn_json_get(f->config, "altup_active_idx"), 0);
    if (c->streams.active < 0 || c->streams.active >= count)
        return tn_llm_refuse(f, "altup_active_idx", "out of range");
    c->streams.scales = tn_llm_flag(f, "altup_correct_scale", true);
    c->attention.scale = 1;
    return tn_llm_read_cap(f, "final_logit_softcapping", 30, &c->scales.final_cap);
}

static tn_status read_gemma4(const hf_folder *f, llm_config *c) {
    if (tn_llm_flag(f, "enable_moe_block", false) && c->experts.choices == 0)
        return tn_llm_refuse(f, "num_experts", "less than 2 of a mixture");
    c->experts.whole_choice = true;
    if (strcmp(tn_hf_text(f, "use_bidirectional_attention", ""), "all") == 0)
        return tn_llm_refuse(f, "use_bidirectional_attention", "all");
    TRY(tn_llm_read_window(f, c));
    tn_llm_set_window(c, c->layers - 1, false); /* whatever the list says */
    TRY(read_wide(f, c));
    c->attention.scale = 1;
    TRY(tn_llm_read_cap(f, "final_logit_softcapping", 0, &c->scales.final_cap));
    TRY(read_shared(f, c, 0));
    if (c->attention.first_shared > 0 && tn_llm_flag(f, "use_double_wide_mlp", false))
        c->attention.shared_width = 2 * c->size[SIZE_INTERMEDIATE];
    return read_inputs(f, c);
}

/* The width of feed-forward is given before it is made two thirds and rounded up. */
static tn_status read_lfm2(const hf_folder *f, llm_config *c) {
    int64_t *width = &c->size[SIZE_INTERMEDIATE], unit;
    double by;
    TRY(tn_hf_size(f, "block_ff_dim", *width, LLM_MOST_WIDTH, width));
    TRY(tn_hf_size(f, "block_multiple_of", 256, LLM_MOST_WIDTH, &unit));
    TRY(tn_hf_real(f, f->config, "block_ffn_dim_multiplier", 1, 1e-6, 1e6, &by));
    if (!tn_llm_flag(f, "block_auto_adjust_ff_dim", true)) return TN_OK;
    *width = (int64_t)(by * (double)(2 * *width / 3));
    *width = (*width + unit - 1) / unit * unit;
    c->size[SIZE_UP] = *width;
    if (*width >= 1 && *width <= LLM_MOST_WIDTH) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "'block_ffn_dim_multiplier' %g makes the width of feed-forward %" PRId64
                      "; it must be from 1 to %d",
                      by, *width, (int)LLM_MOST_WIDTH);
}

static tn_status read_lfm3(const hf_folder *f, llm_config *c) {
    if (tn_llm_flag(f, "use_sandwich_norm", true)) c->needs |= POST_NORMS;
    if (tn_llm_flag(f, "use_attention_gate", true)) c->needs |= BIT(SLOT_ATTENTION_GATE);
    return tn_hf_size(f, "num_attention_heads", -1, LLM_MOST_HEADS, &c->size[SIZE_GATES]); /* one for each head */
}

static tn_status read_aria(const hf_folder *f, llm_config *c) {
    int64_t shared;
    TRY(tn_hf_size(f, "moe_num_shared_experts", 2, LLM_MOST_EXPERTS, &shared));
    c->size[SIZE_SHARED] = shared * c->size[SIZE_EXPERT];
    return TN_OK;
}

/* As transformers does: experts are [in, out] where they do not have the other shape. */
static tn_status read_qwen3_vl_moe(const hf_folder *f, llm_config *c) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    char name[LLM_NAME_SIZE];
    for (int64_t i = 0; i < c->layers; i++) {
        tn_llm_name(c->file.naming, name, i, SLOT_EXPERT_UP);
        if (!tn_hf_find(f, name, &info) || info.rank != 3) continue;
        bool as_rows = info.shape[1] == c->size[SIZE_EXPERT_UP] && info.shape[2] == c->size[SIZE_HIDDEN];
        if (!as_rows) c->file.naming = &qwen3_vl_moe_turned;
        break;
    }
    return TN_OK;
}

/* Layers that read pictures are not used: by default every fifth one, from the fourth on. */
static tn_status read_mllama(const hf_folder *f, llm_config *c) {
    enum { FIRST = 3, STEP = 5, END = 40 };
    const tn_json *list = tn_json_get(f->config, "cross_attention_layers");
    bool listed = tn_json_kind_of(list) == TN_JSON_ARRAY;
    for (size_t i = 0; i < tn_json_length(list); i++) {
        int64_t layer = tn_json_int(tn_json_at(list, i), -1);
        if (layer >= 0 && layer < c->layers) tn_llm_set_skipped(c, layer);
    }
    for (int64_t i = FIRST; !listed && i < c->layers && i < END; i += STEP)
        tn_llm_set_skipped(c, i);
    return tn_llm_is_skipped(c, c->layers - 1) ? tn_llm_refuse(f, "cross_attention_layers", "with the last one")
                                               : TN_OK;
}

/* xIELU has weights, so it is not in the table of activations. */
static tn_status read_apertus(const hf_folder *f, TN_UNUSED llm_config *c) {
    const char *activation = tn_hf_text(f, "hidden_act", "xielu");
    return strcmp(activation, "xielu") == 0 ? TN_OK : tn_llm_refuse(f, "hidden_act", "not xielu");
}

/* Experts in one of every `interval` layers between two of them. */
static tn_status read_ernie_moe(const hf_folder *f, llm_config *c) {
    int64_t first = tn_json_int(tn_json_get(f->config, "moe_layer_start_index"), 1);
    int64_t last = tn_json_int(tn_json_get(f->config, "moe_layer_end_index"), -1);
    int64_t interval, shared = tn_json_int(tn_json_get(f->config, "moe_num_shared_experts"), 0);
    TRY(tn_hf_size(f, "moe_layer_interval", 1, LLM_MOST_LAYERS, &interval));
    if (tn_json_number(tn_json_get(f->config, "moe_norm_min"), 0) > 1e-6) /* smaller sums do not occur */
        return tn_llm_refuse(f, "moe_norm_min", "more than 1e-6");
    for (int64_t i = 0; i < c->layers; i++)
        if ((i + 1) % interval != 0 || i < first || (last >= 0 && i > last)) tn_llm_set_unmixed(c, i);
    c->experts.whole_choice = true;
    c->size[SIZE_SHARED] = 0;
    if (shared > 0) TRY(tn_hf_size(f, "moe_num_shared_experts", 0, LLM_MOST_EXPERTS, &shared));
    c->size[SIZE_SHARED] = shared * c->size[SIZE_EXPERT];
    if (shared <= 0) c->needs &= ~(BIT(SLOT_SHARED_GATE) | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN));
    return TN_OK;
}

/* Granite's expert that all tokens have; Granite 4 without experts has nothing else. */
static tn_status read_granite_shared(const hf_folder *f, llm_config *c) {
    bool hybrid = c->family->recurrent.kind != RECURRENCE_NONE;
    int64_t width = tn_json_int(tn_json_get(f->config, "shared_intermediate_size"), 0);
    if (width != 0 || hybrid) TRY(tn_hf_size(f, "shared_intermediate_size", 1024, LLM_MOST_WIDTH, &width));
    bool unrotated = hybrid && strcmp(tn_hf_text(f, "position_embedding_type", ""), "rope") != 0;
    for (int64_t i = 0; unrotated && i < c->layers; i++)
        tn_llm_set_rope(c, i, false);
    if (c->experts.choices > 0) {
        c->size[SIZE_SHARED] = width;
        if (width == 0) c->needs &= ~(BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN));
        return TN_OK;
    }
    c->file.naming = &granite_dense_names;
    c->size[SIZE_INTERMEDIATE] = width;
    c->size[SIZE_UP] = 2 * width;
    return TN_OK;
}

/* Each layer has a base of rope, or 0 if it has none; all others must have the same one. */
static tn_status read_granite_swa(const hf_folder *f, llm_config *c) {
    const tn_json *list = tn_json_get(f->config, "layer_rope_theta");
    double base;
    TRY(tn_hf_real(f, tn_llm_rope_of(f, "full_attention"), "rope_theta", 10000, 1.0001, 1e12, &base));
    if (tn_json_kind_of(list) != TN_JSON_ARRAY) return TN_OK;
    for (int64_t i = 0; i < c->layers; i++) {
        double own = tn_json_number(tn_json_at(list, (size_t)i), -1);
        if (own != 0 && own != base)
            return tn_llm_refuse(f, "layer_rope_theta", "not 0 or 'rope_theta' for each layer");
        tn_llm_set_rope(c, i, own != 0);
    }
    return TN_OK;
}

static tn_status read_granitemoe_swa(const hf_folder *f, llm_config *c) {
    TRY(read_granite_shared(f, c));
    return read_granite_swa(f, c);
}

static tn_status read_flint(const hf_folder *f, llm_config *c) {
    if (tn_json_kind_of(tn_json_get(f->config, "layer_types")) != TN_JSON_ARRAY)
        return tn_llm_refuse(f, "layer_types", "not a list");
    if (!tn_hf_has(f, "mlp_only_layers")) leave_unmixed(c, 2);
    return TN_OK;
}

static tn_status read_lfm2_moe(const hf_folder *f, llm_config *c) {
    int64_t dense = tn_json_int(tn_json_get(f->config, "num_dense_layers"), 2);
    leave_unmixed(c, dense);
    if (!tn_llm_flag(f, "use_expert_bias", true)) c->needs &= ~BIT(SLOT_CHOICE_BIAS);
    return tn_hf_real(f, f->config, "routed_scaling_factor", 1, 1e-6, 1e6, &c->experts.scale);
}

/* No positions; experts in one of every `period` layers. */
static tn_status read_jamba(const hf_folder *f, llm_config *c) {
    int64_t period, offset = tn_json_int(tn_json_get(f->config, "expert_layer_offset"), 1);
    TRY(tn_hf_size(f, "expert_layer_period", 2, LLM_MOST_LAYERS, &period));
    for (int64_t i = 0; i < c->layers; i++) {
        tn_llm_set_rope(c, i, false);
        if (i % period != offset) tn_llm_set_unmixed(c, i);
    }
    return tn_hf_real(f, f->config, "rms_norm_eps", 1e-6, 1e-20, 1, &c->recurrent.inner_eps);
}

static tn_status read_falcon_mamba(const hf_folder *f, llm_config *c) {
    return tn_hf_real(f, f->config, "mixer_rms_eps", 1e-6, 1e-20, 1, &c->recurrent.inner_eps);
}

static tn_status read_rwkv(const hf_folder *f, llm_config *c) {
    static const double FINAL_EPS = 1e-5; /* of the last norm, whatever config.json says */
    if (tn_json_number(tn_json_get(f->config, "layer_norm_epsilon"), FINAL_EPS) != FINAL_EPS)
        return tn_llm_refuse(f, "layer_norm_epsilon", "not 1e-5");
    c->recurrent.halved_every = tn_json_int(tn_json_get(f->config, "rescale_every"), 6);
    return TN_OK;
}

/* The embedding's scale is rounded to bf16, in which the models were trained. */
static tn_status read_recurrent_gemma(const hf_folder *f, llm_config *c) {
    enum { BF16_BITS = 8 };
    int power;
    double part = frexp(sqrt((double)c->size[SIZE_HIDDEN]), &power);
    c->scales.embedding = ldexp(rint(ldexp(part, BF16_BITS)), power - BF16_BITS);
    c->size[SIZE_INTERMEDIATE] /= 2;
    c->size[SIZE_UP] = c->size[SIZE_INTERMEDIATE];
    return tn_llm_read_cap(f, "logits_soft_cap", 30, &c->scales.final_cap);
}

static tn_status read_phimoe(const hf_folder *f, llm_config *c) {
    if (c->experts.choices != 2) return tn_llm_refuse(f, "num_experts_per_tok", "not 2");
    return tn_hf_real(f, f->config, "router_jitter_noise", 0.01, 0, 1, &c->experts.jitter);
}

/* Layers see chunks of the text: only texts within the first one are supported. Experts are as wide as the shared one,
 * dense layers are not. */
static tn_status read_llama4(const hf_folder *f, llm_config *c) {
    const tn_json *mixed = tn_json_get(f->config, "moe_layers");
    int64_t chunk = c->trained_context, step, *width = &c->size[SIZE_INTERMEDIATE];
    if (tn_hf_has(f, "attention_chunk_size"))
        TRY(tn_hf_size(f, "attention_chunk_size", chunk, LLM_MOST_CONTEXT, &chunk));
    if (chunk < c->trained_context) c->trained_context = chunk;
    c->size[SIZE_SHARED] = *width;
    TRY(tn_hf_size(f, "intermediate_size_mlp", *width, LLM_MOST_WIDTH, width));
    c->size[SIZE_UP] = *width;
    TRY(tn_hf_size(f, "interleave_moe_layer_step", 1, LLM_MOST_LAYERS, &step));
    for (int64_t i = 0; i < c->layers; i++) {
        bool chosen = (i + 1) % step == 0;
        if (tn_json_kind_of(mixed) == TN_JSON_ARRAY) chosen = false;
        for (size_t k = 0; k < tn_json_length(mixed); k++)
            chosen = chosen || tn_json_int(tn_json_at(mixed, k), -1) == i;
        if (!chosen) tn_llm_set_unmixed(c, i);
    }
    c->attention.unit_heads = tn_llm_flag(f, "use_qk_norm", true);
    TRY(tn_hf_real(f, f->config, "floor_scale", 8192, 1, 1e9, &c->attention.late_step));
    if (!tn_llm_flag(f, "attn_temperature_tuning", true)) return TN_OK;
    return tn_hf_real(f, f->config, "attn_scale", 0.1, 0, 1e6, &c->attention.late_scale);
}

/* Attention has no positions. */
static tn_status read_nemotron_h(const hf_folder *f, llm_config *c) {
    for (int64_t i = 0; i < c->layers; i++)
        tn_llm_set_rope(c, i, false);
    if (tn_hf_has(f, "moe_latent_size")) return tn_llm_refuse(f, "moe_latent_size", "given");
    TRY(tn_hf_activation(f, "mamba_hidden_act", "silu", &c->recurrent.activation));
    double least = tn_json_number(tn_json_get(f->config, "time_step_min"), 0);
    if (tn_json_number(tn_json_get(f->config, "mamba_dt_min"), least) >
        0.001)                                                       /* transformers' prompts have such steps, */
        return tn_llm_refuse(f, "time_step_min", "more than 0.001"); /* but its single tokens have not */
    if (c->experts.choices == 0) return TN_OK;
    return tn_hf_size(f, "moe_shared_expert_intermediate_size", c->size[SIZE_SHARED], LLM_MOST_WIDTH,
                      &c->size[SIZE_SHARED]);
}

/* A list of `count` factors, where there is one. */
static tn_status read_factors(const hf_folder *f, const char *key, size_t count, double *out) {
    const tn_json *list = tn_json_get(f->config, key);
    bool good = tn_json_kind_of(list) == TN_JSON_ARRAY && tn_json_length(list) == count;
    for (size_t i = 0; i < count; i++) {
        out[i] = tn_hf_has(f, key) ? tn_json_number(tn_json_at(list, i), NAN) : 1;
        good = good && fabs(out[i]) <= 1e6;
    }
    if (good || !tn_hf_has(f, key)) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT, "'%s' must be a list of %zu numbers from -1e6 to 1e6", key, count);
}

/* The multipliers of config.json scale activations; the weights stay as they are in the file. */
static tn_status read_falcon_h1(const hf_folder *f, llm_config *c) {
    double in, forward[2];
    if (tn_llm_flag(f, "mamba_rms_norm", false)) {
        if (tn_llm_flag(f, "mamba_norm_before_gate", true)) return tn_llm_refuse(f, "mamba_norm_before_gate", "true");
        c->needs |= BIT(SLOT_MIX_NORM);
    }
    TRY(tn_llm_read_factor(f, "embedding_multiplier", &c->scales.embedding));
    TRY(tn_llm_read_factor(f, "lm_head_multiplier", &c->scales.logits));
    TRY(tn_llm_read_factor(f, "attention_in_multiplier", &c->scales.attention_in));
    TRY(tn_llm_read_factor(f, "attention_out_multiplier", &c->scales.attention_out));
    TRY(tn_llm_read_factor(f, "ssm_in_multiplier", &in));
    TRY(tn_llm_read_factor(f, "ssm_out_multiplier", &c->scales.mix_out));
    TRY(read_factors(f, "ssm_multipliers", MIX_PARTS, c->scales.mix));
    for (size_t i = 0; i < MIX_PARTS; i++)
        c->scales.mix[i] *= in;
    TRY(read_factors(f, "mlp_multipliers", 2, forward));
    c->scales.gate = forward[0];
    c->scales.down = forward[1];
    return TN_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* GGUF files of the llama architecture and some others store the rows of q and k so that rope rotates neighbours; most
 * leave them as they were trained. */
#define OSS_EXPERTS                                                                              \
    (BIT(SLOT_ROUTER) | BIT(SLOT_ROUTER_BIAS) | BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_UP_BIAS) | \
     BIT(SLOT_EXPERT_DOWN) | BIT(SLOT_EXPERT_DOWN_BIAS))
#define DEEPSEEK_SLOTS \
    (EXPERTS | BIT(SLOT_CHOICE_BIAS) | BIT(SLOT_SHARED_GATE) | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN))
#define PLAIN_SHARED (BIT(SLOT_SHARED_GATE) | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN))
#define FUSED_EXPERTS (EXPERTS & ~BIT(SLOT_EXPERT_GATE))
#define LATENT_SLOTS ((PLAIN_SLOTS & ~(BIT(SLOT_Q) | BIT(SLOT_K) | BIT(SLOT_V))) | QUERY_RANKS | KEY_RANKS)
#define DEEPSEEK_LIKE                                                                                           \
    .slots.needs = LATENT_SLOTS, .slots.head_needs = PLAIN_HEAD, .naming = &deepseek_names, .keys = llama_keys, \
    .forward.activation = "silu", .experts.always = true, .experts.own_width = true, .attention.latent = true
#define DEEPSEEK3_LIKE(slots_of_experts, scale)                                             \
    .positions.folder_interleaved = true, DEEPSEEK_LIKE, .experts.slots = slots_of_experts, \
    .experts.by_sigmoid = true, .experts.usual_scale = scale
#define STREAM_SLOTS                                                                                                \
    (BIT(SLOT_STREAM_ROUTER) | BIT(SLOT_STREAM_ROUTER_NORM) | BIT(SLOT_STREAM_PREDICT) | BIT(SLOT_STREAM_CORRECT) | \
     BIT(SLOT_STREAM_SCALE) | BIT(SLOT_LAUREL_DOWN) | BIT(SLOT_LAUREL_UP) | BIT(SLOT_LAUREL_NORM) |                 \
     BIT(SLOT_INPUT_GATE) | BIT(SLOT_INPUT_OUT) | BIT(SLOT_INPUT_NORM))
#define MIXER_SLOTS (BIT(SLOT_MIX_IN) | BIT(SLOT_CONV) | BIT(SLOT_MIX_OUT))
#define MIXER_BIASES (BIT(SLOT_MIX_IN_BIAS) | BIT(SLOT_CONV_BIAS) | BIT(SLOT_MIX_OUT_BIAS))
#define DECAY_SLOTS (BIT(SLOT_STEP_BIAS) | BIT(SLOT_DECAY))
#define DELTANET_SLOTS (MIXER_SLOTS | DECAY_SLOTS | BIT(SLOT_MIX_NORM))
#define DELTANET_APART (BIT(SLOT_MIX_GATE) | BIT(SLOT_WRITE_RATE) | BIT(SLOT_DECAY_RATE))
#define DELTANET_LIKE                                                                                              \
    .slots.needs = PLAIN_SLOTS | NORMS, .slots.head_needs = PLAIN_HEAD, .keys = llama_keys,                        \
    .forward.activation = "silu", .norms.from_one = true, .positions.part = 0.25, .attention.gated_queries = true, \
    .recurrent.kind = RECURRENCE_DELTANET, .recurrent.interval = 4
#define GGUF_DELTANET .in_gguf = true, .gguf_naming = &gguf_deltanet, DELTANET_LIKE
#define NEMOTRON_H_LIKE(slots_of_experts)                                                                   \
    .slots.lone = true, .slots.needs = UNGATED_SLOTS & ~BIT(SLOT_FFN_NORM), .slots.head_needs = PLAIN_HEAD, \
    .in_gguf = true, .forward.activation = "relu2", .experts.own_width = true, .experts.by_sigmoid = true,  \
    .experts.slots = slots_of_experts & ~(BIT(SLOT_EXPERT_GATE) | BIT(SLOT_SHARED_GATE)), MAMBA2_RULES
#define MAMBA1_SLOTS (MIXER_SLOTS | DECAY_SLOTS | BIT(SLOT_SKIP) | BIT(SLOT_MIX_X) | BIT(SLOT_STEP))
#define MAMBA2_RULES                                                                    \
    .recurrent.kind = RECURRENCE_MAMBA2,                                                \
    .recurrent.needs = MIXER_SLOTS | DECAY_SLOTS | BIT(SLOT_SKIP) | BIT(SLOT_MIX_NORM), \
    .recurrent.allows = MIXER_BIASES
#define NAMED(names) .slots.head_needs = PLAIN_HEAD, .naming = &names, .keys = llama_keys, .forward.activation = "silu"
#define GEMMA_LIKE                                                                                                     \
    .slots.head_needs = PLAIN_HEAD, .forward.activation = "gelu_pytorch_tanh", .tied = true, .scaled_embedding = true, \
    .norms.from_one = true
#define GEMMA3N_LIKE                                                                                             \
    .slots.head_needs = PLAIN_HEAD, .keys = gemma_keys, .forward.activation = "gelu_pytorch_tanh", .tied = true, \
    .scaled_embedding = true, .norms.values = true, .attention.window = 512, .positions.base = 1e6,              \
    .positions.local_base = 1e4
#define LFM2_LIKE                                                                                                     \
    .norms.eps = 1e-5, .gguf_naming = &gguf_lfm2, .slots.needs = PLAIN_SLOTS | NORMS, .slots.head_needs = PLAIN_HEAD, \
    .naming = &lfm2_names, .keys = nemotron_keys, .forward.activation = "silu", .tied = true, .positions.base = 1e6,  \
    .recurrent.kind = RECURRENCE_CONV, .recurrent.needs = MIXER_SLOTS, .recurrent.allows = MIXER_BIASES
#define OWN_EXPERTS(of_layer) .experts.slots = of_layer, .experts.always = true, .experts.own_width = true
#define SIGMOID_EXPERTS OWN_EXPERTS(DEEPSEEK_SLOTS), .experts.by_sigmoid = true
static const llm_family families[] = {
    {"llama", "Llama, Mistral, SmolLM", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = LINEAR_BIASES, NAMED(llama_names), .usual = llama_usual, .experts.slots = EXPERTS,
     .experts.whole_choice = true},
    {"mistral", "Mistral", .slots.needs = PLAIN_SLOTS, .attention.window = 4096, NAMED(llama_names),
     .usual = mistral_usual},
    {"cwm", "Code World Model", .norms.eps = 1e-5, .positions.explicit_rope = true, .slots.needs = PLAIN_SLOTS,
     .attention.window = 8192, NAMED(llama_names), .usual = mistral_usual},
    {"ministral3", "Ministral 3", .norms.eps = 1e-5, .positions.explicit_rope = true, .slots.needs = PLAIN_SLOTS,
     .attention.window = LLM_MOST_CONTEXT, NAMED(llama_names), .usual = mistral_usual},
    {"qwen2", "Qwen 2, Qwen 2.5", .in_gguf = true, .slots.needs = PLAIN_SLOTS | BIASES, NAMED(llama_names)},
    {"qwen3", "Qwen 3", .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS, .slots.allows = ATTENTION_BIASES,
     NAMED(llama_names)},
    {"qwen3_vl_moe", "Qwen 3 VL MoE", .type = "qwen3_vl_moe_text", .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = ATTENTION_BIASES, NAMED(qwen3_vl_moe_names), OWN_EXPERTS(FUSED_EXPERTS), .tied = true,
     .read = read_qwen3_vl_moe, .experts.fused_gate = true, .experts.whole_choice = true, .experts.usual_choice = 1,
     .positions.base = 5e5},
    {"aria", "Aria", .type = "aria_text", .slots.needs = PLAIN_SLOTS, .slots.allows = LINEAR_BIASES, NAMED(aria_names),
     .read = read_aria, .experts.slots = FUSED_EXPERTS | PLAIN_SHARED, .experts.always = true,
     .experts.fused_gate = true, .experts.whole_choice = true},
    {"mllama", "Llama 3.2 Vision", .type = "mllama_text_model", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS,
     NAMED(llama_names), .usual = mllama_usual, .read = read_mllama, .positions.base = 5e5},
    {"mixtral", "Mixtral", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS, NAMED(mixtral_names),
     .experts.slots = EXPERTS, .experts.always = true, .experts.whole_choice = true, .positions.base = 1e6,
     .attention.window = LLM_MOST_CONTEXT},
    {"qwen2moe", "Qwen 2 MoE", .type = "qwen2_moe", .in_gguf = true, .slots.needs = PLAIN_SLOTS | BIASES,
     NAMED(llama_names), OWN_EXPERTS(EXPERTS | SHARED)},
    {"qwen3moe", "Qwen 3 MoE", .type = "qwen3_moe", .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS,
     NAMED(llama_names), OWN_EXPERTS(EXPERTS), .experts.whole_choice = true},
    {"phi3", "Phi-3, Phi-4", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = FUSED_SLOTS, NAMED(phi3_names),
     .forward.fused_gate = true, .positions.part = 1, .attention.window = LLM_MOST_CONTEXT},
    {"gpt2", "GPT-2", .in_gguf = true, .slots.needs = GPT2_SLOTS, .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS),
     .naming = &gpt2_names, .keys = gpt2_keys, .tied = true, .norms.layer_norm = true,
     .forward.activation = "gelu_new"},
    {"gemma", "Gemma", .slots.needs = PLAIN_SLOTS, .in_gguf = true, GEMMA_LIKE, .naming = &llama_names,
     .keys = llama_keys, .forward.gelu_by_tanh = true},
    {"gemma2", "Gemma 2", .slots.needs = PLAIN_SLOTS | POST_NORMS, .in_gguf = true, GEMMA_LIKE, .naming = &gemma_names,
     .keys = gemma_keys, .attention.window = 4096, .attention.gguf_window = 4096, .attention.pattern = 2,
     .attention.cap = 50, .final_cap = 30, .attention.query_scale = 256, .attention.wide_layers = 46},
    {"gemma3", "Gemma 3", .type = "gemma3_text", .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS, .in_gguf = true,
     GEMMA_LIKE, .naming = &gemma_names, .keys = gemma_keys, .usual = gemma3_usual, .attention.window = 4096,
     .attention.pattern = 6, .positions.base = 1e6, .positions.local_base = 1e4, .attention.query_scale = 256,
     .attention.wide_layers = 62},
    {"gemma3n", "Gemma 3n", .type = "gemma3n_text", .in_gguf = true,
     .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS | STREAM_SLOTS, .slots.allows = ATTENTION_BIASES,
     .slots.head_allows = LAYER_INPUTS | STREAM_ENDS, .naming = &gemma3n_names, .usual = gemma3n_usual,
     .read = read_gemma3n, .attention.pattern = 5, GEMMA3N_LIKE},
    {"gemma4", "Gemma 4", .type = "gemma4_text",
     .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS | BIT(SLOT_LAYER_SCALE), .slots.head_allows = LAYER_INPUTS,
     .naming = &gemma4_names, .usual = gemma4_usual, .read = read_gemma4, .attention.pattern = 6,
     .positions.wide_part = 0.25, .experts.beside = true, .experts.own_width = true, .experts.fused_gate = true,
     .experts.slots = FUSED_EXPERTS | BIT(SLOT_ROUTER_SCALE) | BIT(SLOT_EXPERT_SCALE) | BIT(SLOT_DENSE_POST_NORM) |
                      BIT(SLOT_EXPERTS_NORM) | BIT(SLOT_EXPERTS_POST_NORM),
     GEMMA3N_LIKE},
    {"smollm3", "SmolLM 3", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = LINEAR_BIASES, NAMED(llama_names), .positions.base = 2e6, .tied = true},
    {"arcee", "AFM", .norms.eps = 1e-5, .in_gguf = true, .positions.interleaved = true, .slots.needs = UNGATED_SLOTS,
     .slots.head_needs = PLAIN_HEAD, .naming = &llama_names, .keys = llama_keys, .forward.activation = "relu2"},
    {"helium", "Helium", .positions.base = 1e5, .norms.eps = 1e-8, .positions.folder_interleaved = true,
     .slots.needs = PLAIN_SLOTS, NAMED(llama_names)},
    {"ernie4_5", "ERNIE 4.5", .norms.eps = 1e-5, .in_gguf = true, .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS, .slots.allows = LINEAR_BIASES,
     NAMED(llama_names), .positions.base = 5e5},
    {"paddleocr_vl", "PaddleOCR-VL", .type = "paddleocr_vl_text", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS,
     .slots.allows = LINEAR_BIASES, NAMED(llama_names), .positions.base = 5e5},
    {"seed_oss", "Seed-OSS", .in_gguf = true, .gguf_naming = &gguf_late_norm, .slots.needs = PLAIN_SLOTS,
     .slots.allows = LINEAR_BIASES, NAMED(llama_names)},
    {"hunyuan_v1_dense", "Hunyuan", .norms.eps = 1e-5, .gguf = "hunyuan-dense", .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = ATTENTION_BIASES, NAMED(hunyuan_names), .norms.after_rope = true},
    {"hunyuan_v1_moe", "Hunyuan MoE", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = ATTENTION_BIASES, NAMED(hunyuan_names), .norms.after_rope = true,
     .experts.slots = EXPERTS | PLAIN_SHARED, .experts.always = true, .experts.whole_choice = true},
    {"ernie4_5_moe", "ERNIE 4.5 MoE", .norms.eps = 1e-5, .gguf = "ernie4_5-moe", .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS, NAMED(ernie_moe_names), .read = read_ernie_moe,
     .tied = true, .positions.base = 5e5, OWN_EXPERTS(DEEPSEEK_SLOTS), .experts.whole_choice = true},
    {"exaone_moe", "K-EXAONE", .norms.eps = 1e-5, .experts.usual_scale = 2.5, .experts.usual_dense = 1,
     .gguf = "exaone-moe", .slots.needs = PLAIN_SLOTS | NORMS, NAMED(exaone_moe_names), SIGMOID_EXPERTS,
     .attention.window = 4096, .attention.pattern = 4, .positions.in_windows = true},
    {"hy_v3", "Hunyuan 3", .norms.eps = 1e-5, .experts.usual_scale = 2.826, .experts.usual_dense = 1,
     .positions.base = 11158840, .in_gguf = true, .gguf_naming = &gguf_hy_v3, .slots.needs = PLAIN_SLOTS | NORMS,
     NAMED(hy_v3_names), SIGMOID_EXPERTS},
    {"apertus", "Apertus", .positions.explicit_rope = true, .norms.eps = 1e-5,
     .slots.needs = UNGATED_SLOTS | NORMS | BIT(SLOT_ALPHA_P) | BIT(SLOT_ALPHA_N), .slots.allows = ATTENTION_BIASES,
     .slots.head_needs = PLAIN_HEAD, .naming = &apertus_names, .keys = apertus_keys, .read = read_apertus,
     .forward.activation = "silu"},
    {"exaone", "EXAONE 3", .slots.needs = PLAIN_SLOTS, NAMED(exaone_names)},
    {"jais2", "Jais 2", .in_gguf = true, .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = ATTENTION_BIASES | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD, .naming = &llama_names,
     .keys = layer_norm_keys, .forward.activation = "relu2", .norms.layer_norm = true},
    {"vaultgemma", "VaultGemma", .slots.needs = PLAIN_SLOTS, GEMMA_LIKE, .naming = &gemma_names, .keys = gemma_keys,
     .attention.window = 4096, .attention.pattern = 2, .attention.cap = 50, .final_cap = 30,
     .attention.query_scale = 256},
    {"minimax_m2", "MiniMax M2", .slots.needs = PLAIN_SLOTS | NORMS, NAMED(mixtral_names), .norms.heads = HEAD_NORM_ALL,
     .experts.slots = EXPERTS | BIT(SLOT_CHOICE_BIAS), .experts.always = true, .experts.whole_choice = true,
     .experts.by_sigmoid = true, .positions.base = 5e6, .positions.part = 1},
    {"phimoe", "Phi-3.5-MoE", .slots.needs = PLAIN_SLOTS | PRE_NORM_BIASES, .slots.allows = ATTENTION_BIASES,
     .slots.head_needs = BIASED_HEAD, .slots.head_allows = BIT(SLOT_OUTPUT_BIAS), .naming = &mixtral_names,
     .keys = llama_keys, .read = read_phimoe, .forward.activation = "silu", .norms.layer_norm = true,
     .experts.slots = EXPERTS, .experts.always = true, .experts.sparse_mixer = true, .positions.base = 1e6,
     .attention.window = LLM_MOST_CONTEXT},
    {"flex_olmo", "FlexOlmo", .slots.needs = (PLAIN_SLOTS & ~PRE_NORMS) | NORMS | POST_NORMS, NAMED(olmo2_names),
     .norms.heads = HEAD_NORM_ALL, .experts.slots = EXPERTS, .experts.always = true, .positions.base = 5e5},
    {"mellum", "Mellum", .experts.usual_choice = 1, .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS,
     NAMED(llama_names), OWN_EXPERTS(EXPERTS), .experts.whole_choice = true, .attention.window = 1024,
     .attention.pattern = 1, .positions.base = 5e5, .positions.part = 1},
    {"solar_open", "Solar Open", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS, .slots.allows = BIASES,
     NAMED(glm4_moe_names), SIGMOID_EXPERTS, .positions.base = 1e6, .positions.part = 1},
    {"youtu", "Youtu-LLM", .gguf = "deepseek2", .positions.interleaved = true, .positions.folder_interleaved = true,
     .slots.needs = LATENT_SLOTS, NAMED(deepseek_names), .attention.latent = true, .tied = true},
    {"granite", "Granite 3", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = LINEAR_BIASES, NAMED(llama_names)},
    {"granitemoe", "Granite 3 MoE", .slots.needs = PLAIN_SLOTS, NAMED(granite_moe_names), .forward.fused_gate = true,
     .experts.slots = FUSED_EXPERTS, .experts.always = true, .experts.whole_choice = true},
    {"granitemoe", "Granite 3 MoE", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.head_needs = PLAIN_HEAD, .forward.activation = "silu", .experts.slots = EXPERTS | PLAIN_SHARED,
     .experts.always = true, .experts.whole_choice = true},
    {"granitemoeshared", "Granite 3 MoE with a shared expert", .slots.needs = PLAIN_SLOTS, NAMED(granite_moe_names),
     .read = read_granite_shared, .forward.fused_gate = true,
     .experts.slots = FUSED_EXPERTS | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN), .experts.always = true,
     .experts.whole_choice = true},
    {"granite_swa", "Granite with windows", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS),
     .slots.allows = LINEAR_BIASES, NAMED(llama_names), .usual = granite_swa_usual, .read = read_granite_swa,
     .tied = true, .attention.window = 128, .attention.pattern = 4, .attention.whole_first = true},
    {"granitemoe_swa", "Granite MoE with windows", .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS),
     .slots.allows = ATTENTION_BIASES, NAMED(granite_moe_swa_names), .read = read_granitemoe_swa,
     .forward.fused_gate = true, .experts.slots = FUSED_EXPERTS | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN),
     .experts.always = true, .experts.whole_choice = true, .attention.window = 128, .attention.pattern = 4,
     .attention.whole_first = true},
    {"flint", "Flint", .slots.needs = PLAIN_SLOTS | NORMS | BIT(SLOT_SINKS), .slots.allows = ATTENTION_BIASES,
     NAMED(flint_names), .read = read_flint, OWN_EXPERTS(EXPERTS | PLAIN_SHARED), .experts.by_sigmoid = true,
     .attention.window = 513, .positions.in_windows = true},
    {"granitemoehybrid", "Granite 4", .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_GATE), .slots.allows = ATTENTION_BIASES,
     NAMED(granite_moe_names), .read = read_granite_shared, .forward.fused_gate = true,
     .experts.slots = FUSED_EXPERTS | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN), .experts.whole_choice = true,
     MAMBA2_RULES},
    {"granitehybrid", "Granite 4", .in_gguf = true, .slots.needs = PLAIN_SLOTS, .slots.allows = LINEAR_BIASES,
     .slots.head_needs = PLAIN_HEAD, .forward.activation = "silu", .experts.slots = EXPERTS | PLAIN_SHARED,
     .experts.whole_choice = true, MAMBA2_RULES},
    {"bamba", "Bamba", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS, .slots.allows = LINEAR_BIASES, NAMED(bamba_names),
     .positions.part = 0.5, MAMBA2_RULES},
    {"falcon_h1", "Falcon-H1", .gguf = "falcon-h1", .gguf_naming = &gguf_falcon_h1, .slots.needs = PLAIN_SLOTS,
     .slots.allows = LINEAR_BIASES, NAMED(bamba_names), .read = read_falcon_h1, .recurrent.kind = RECURRENCE_MAMBA2,
     .recurrent.beside = true, .recurrent.needs = MIXER_SLOTS | DECAY_SLOTS | BIT(SLOT_SKIP),
     .recurrent.allows = MIXER_BIASES},
    {"nemotron_h", "Nemotron-H, Nemotron 3 Nano", .norms.eps = 1e-5, NEMOTRON_H_LIKE(DEEPSEEK_SLOTS),
     .naming = &nemotron_h_names, .keys = nemotron_h_keys, .read = read_nemotron_h},
    {"nemotron_h_moe", "Nemotron 3 Nano", NEMOTRON_H_LIKE(DEEPSEEK_SLOTS)},
    {"llama4", "Llama 4", .norms.eps = 1e-5, .type = "llama4_text", .positions.folder_interleaved = true,
     .slots.needs = PLAIN_SLOTS, .slots.allows = ATTENTION_BIASES, NAMED(llama4_names), .read = read_llama4,
     .positions.base = 5e5, .experts.slots = FUSED_EXPERTS | PLAIN_SHARED, .experts.always = true,
     .experts.by_sigmoid = true, .experts.fused_gate = true, .experts.scales_input = true},
    {"llama4", "Llama 4", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = ATTENTION_BIASES, .slots.head_needs = PLAIN_HEAD, .forward.activation = "silu",
     .experts.slots = EXPERTS | PLAIN_SHARED, .experts.always = true, .experts.by_sigmoid = true,
     .experts.scales_input = true},
    {"jamba", "Jamba", .in_gguf = true, .slots.needs = PLAIN_SLOTS, NAMED(jamba_names), .read = read_jamba,
     .experts.slots = EXPERTS, .recurrent.kind = RECURRENCE_MAMBA,
     .recurrent.needs = MAMBA1_SLOTS | BIT(SLOT_STEP_NORM) | BIT(SLOT_WRITTEN_NORM) | BIT(SLOT_READ_NORM),
     .recurrent.allows = MIXER_BIASES},
    {"hyperclovax", "HyperCLOVA X", .slots.needs = PLAIN_SLOTS, .slots.allows = LINEAR_BIASES | POST_NORMS,
     NAMED(hyperclovax_names)},
    {"olmo", "OLMo", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS & ~PRE_NORMS,
     .slots.allows = ATTENTION_BIASES, .slots.head_needs = BIT(SLOT_EMBEDDING), .naming = &llama_names,
     .keys = constant_keys, .forward.activation = "silu", .norms.layer_norm = true, .norms.bare = true},
    {"olmo2", "OLMo 2, in GGUF files OLMo 3", .norms.eps = 1e-5, .in_gguf = true,
     .slots.needs = (PLAIN_SLOTS & ~PRE_NORMS) | NORMS | POST_NORMS, NAMED(olmo2_names), .norms.heads = HEAD_NORM_ALL,
     .attention.pattern = 4, .positions.plain_local = true},
    {"olmo3", "OLMo 3", .positions.base = 5e5, .norms.eps = 1e-5,
     .slots.needs = (PLAIN_SLOTS & ~PRE_NORMS) | NORMS | POST_NORMS, NAMED(olmo2_names), .norms.heads = HEAD_NORM_ALL,
     .attention.window = 4096, .attention.pattern = 4, .positions.plain_local = true},
    {"olmoe", "OLMoE", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS, NAMED(llama_names),
     .norms.heads = HEAD_NORM_ALL, .experts.slots = EXPERTS, .experts.always = true},
    {"exaone4", "EXAONE 4", .norms.eps = 1e-5, .in_gguf = true,
     .slots.needs = (PLAIN_SLOTS & ~PRE_NORMS) | NORMS | POST_NORMS, NAMED(olmo2_names), .attention.window = 4096,
     .attention.pattern = 4, .positions.in_windows = true},
    {"gpt-oss", "GPT-OSS", .in_gguf = true, .gguf_naming = &gguf_late_norm,
     .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS), .slots.allows = ATTENTION_BIASES, .slots.head_needs = PLAIN_HEAD,
     .forward.activation = "silu", .forward.clamped_gate = true,
     .experts.slots = EXPERTS | OSS_EXPERTS | BIT(SLOT_EXPERT_GATE_BIAS), .experts.always = true,
     .experts.whole_choice = true, .attention.window = 128, .attention.pattern = 2, .positions.base = 150000,
     .positions.parts_of_frequencies = true},
    {"gpt_oss", "GPT-OSS", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS),
     .slots.allows = ATTENTION_BIASES, NAMED(gpt_oss_names), .forward.fused_gate = true, .forward.clamped_gate = true,
     .experts.slots = OSS_EXPERTS, .experts.always = true, .experts.whole_choice = true, .attention.window = 128,
     .attention.pattern = 2, .positions.base = 150000},
    {"deepseek_v2", "DeepSeek V2", .gguf = "deepseek2", .positions.interleaved = true,
     .positions.folder_interleaved = true, DEEPSEEK_LIKE, .experts.slots = DEEPSEEK_SLOTS & ~BIT(SLOT_CHOICE_BIAS)},
    {"deepseek_v3", "DeepSeek V3, R1", .gguf = "deepseek2", .positions.interleaved = true,
     DEEPSEEK3_LIKE(DEEPSEEK_SLOTS, 2.5), .experts.usual_groups = 8, .experts.usual_chosen = 4,
     .experts.usual_dense = 3},
    {"mistral4", "Mistral 4", .positions.folder_interleaved = true, .positions.explicit_rope = true,
     .slots.needs = LATENT_SLOTS, NAMED(mistral4_names), .attention.latent = true,
     OWN_EXPERTS(FUSED_EXPERTS | PLAIN_SHARED), .experts.fused_gate = true, .experts.pairs_count = true,
     .experts.usual_choice = 1},
    {"deepseek_ocr2", "DeepSeek-OCR 2", .type = "deepseek_ocr2_text", .slots.needs = PLAIN_SLOTS, NAMED(deepseek_names),
     OWN_EXPERTS(DEEPSEEK_SLOTS & ~BIT(SLOT_CHOICE_BIAS))},
    {"sarvam_mla", "Sarvam MLA", DEEPSEEK3_LIKE(DEEPSEEK_SLOTS, 2.5), .experts.usual_dense = 1},
    {"glm4_moe_lite", "GLM-4.7 Flash", DEEPSEEK3_LIKE(DEEPSEEK_SLOTS, 1.8), .norms.eps = 1e-5,
     .experts.usual_dense = 1},
    {"glm4_moe", "GLM-4.5, GLM-4.6", .norms.eps = 1e-5, .experts.usual_dense = 1, .gguf = "glm4moe",
     .gguf_naming = &gguf_late_norm, .slots.needs = PLAIN_SLOTS, .slots.allows = BIASES | NORMS, NAMED(glm4_moe_names),
     SIGMOID_EXPERTS, .positions.part = 0.5},
    {"dots1", "dots.llm1", .experts.usual_choice = -1, .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = BIASES, NAMED(glm4_moe_names), SIGMOID_EXPERTS},
    {"glm", "GLM-4", .norms.eps = 1.5625e-07, .gguf = "chatglm", .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_GATE), .slots.allows = BIASES,
     NAMED(glm_names), .forward.fused_gate = true, .positions.part = 0.5},
    {"glm4v", "GLM-4.1V, GLM-OCR", .type = "glm4v_text", .norms.eps = 1e-5, .positions.folder_interleaved = true,
     .slots.needs = (PLAIN_SLOTS & ~BIT(SLOT_GATE)) | POST_NORMS, .slots.allows = BIASES, NAMED(glm_names),
     .forward.fused_gate = true, .positions.part = 1},
    {"glm4", "GLM-4-0414", .norms.eps = 1.5625e-07, .in_gguf = true, .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = (PLAIN_SLOTS & ~BIT(SLOT_GATE)) | POST_NORMS,
     .slots.allows = BIASES, NAMED(glm_names), .forward.fused_gate = true, .positions.part = 0.5},
    {"stablelm", "StableLM", .in_gguf = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.allows = PRE_NORM_BIASES | BIASES | BIT(SLOT_FFN_NORM), .slots.head_needs = BIASED_HEAD,
     .naming = &llama_names, .keys = layer_norm_keys, .forward.activation = "silu", .norms.layer_norm = true,
     .positions.part = 0.25, .attention.chooses_parallel = true},
    {"cohere", "Command R", .positions.base = 5e5, .gguf = "command-r", .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.allows = NORMS | ATTENTION_BIASES, .slots.head_needs = PLAIN_HEAD, .naming = &llama_names,
     .keys = layer_norm_keys, .forward.activation = "silu", .tied = true, .norms.layer_norm = true,
     .attention.parallel = true, .norms.heads = HEAD_NORM_EACH},
    {"cohere2", "Command R7B, Command A", .in_gguf = true, .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.allows = ATTENTION_BIASES, .slots.head_needs = PLAIN_HEAD, .naming = &llama_names, .keys = layer_norm_keys,
     .forward.activation = "silu", .tied = true, .norms.layer_norm = true, .attention.parallel = true,
     .attention.window = 4096, .attention.pattern = 4, .positions.in_windows = true},
    {"nemotron", "Nemotron", .in_gguf = true, .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = ATTENTION_BIASES | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD, .naming = &llama_names,
     .keys = nemotron_keys, .forward.activation = "relu2", .norms.layer_norm = true, .norms.from_one = true,
     .positions.part = 0.5},
    {"starcoder2", "StarCoder 2", .in_gguf = true, .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = ATTENTION_BIASES | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD, .naming = &starcoder2_names,
     .keys = starcoder2_keys, .forward.activation = "gelu_pytorch_tanh", .tied = true, .norms.layer_norm = true,
     .attention.window = LLM_MOST_CONTEXT},
    {"phi", "Phi-1, Phi-2", .gguf = "phi2",
     .slots.needs =
         (UNGATED_SLOTS & ~BIT(SLOT_FFN_NORM)) | ATTENTION_BIASES | UNGATED_BIASES | BIT(SLOT_ATTENTION_NORM_BIAS),
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_OUTPUT_BIAS), .naming = &phi_names, .keys = layer_norm_keys,
     .forward.activation = "gelu_new", .norms.layer_norm = true, .attention.parallel = true, .positions.part = 0.5},
    {"gpt_neox", "GPT-NeoX, Pythia", .gguf = "gptneox",
     .slots.needs = GPT2_SLOTS & ~(BIT(SLOT_QKV_BIAS) | BIT(SLOT_O_BIAS)),
     .slots.allows = BIT(SLOT_QKV_BIAS) | BIT(SLOT_O_BIAS), .slots.head_needs = BIASED_HEAD, .naming = &neox_names,
     .keys = layer_norm_keys, .attention.grouped_qkv = true, .forward.activation = "gelu", .norms.layer_norm = true,
     .attention.parallel = true, .attention.chooses_parallel = true, .positions.part = 0.25},
    {"falcon", "Falcon", .in_gguf = true, .slots.needs = FUSED_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.head_needs = BIASED_HEAD,
     .slots.allows = BIT(SLOT_FFN_NORM) | PRE_NORM_BIASES | BIT(SLOT_QKV_BIAS) | BIT(SLOT_O_BIAS) | UNGATED_BIASES,
     .naming = &falcon_names, .keys = falcon_keys, .usual = falcon_usual, .read = read_falcon,
     .attention.grouped_qkv = true, .forward.activation = "gelu", .tied = true, .norms.layer_norm = true,
     .attention.parallel = true},
    {"gptj", "GPT-J", .positions.folder_interleaved = true,
     .slots.needs = (UNGATED_SLOTS & ~BIT(SLOT_FFN_NORM)) | UNGATED_BIASES | BIT(SLOT_ATTENTION_NORM_BIAS),
     .slots.head_needs = BIASED_HEAD, .slots.head_allows = BIT(SLOT_OUTPUT_BIAS), .naming = &gptj_names,
     .keys = gpt2_keys, .forward.activation = "gelu_new", .norms.layer_norm = true, .attention.parallel = true},
    {"gpt_bigcode", "StarCoder, SantaCoder", .gguf = "starcoder", .slots.needs = GPT2_SLOTS,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &bigcode_names, .keys = gpt2_keys,
     .read = read_bigcode, .attention.grouped_qkv = true, .tied = true, .norms.layer_norm = true,
     .forward.activation = "gelu_pytorch_tanh"},
    {"openai-gpt", "GPT", .slots.needs = GPT2_SLOTS, .slots.head_needs = BIT(SLOT_EMBEDDING) | BIT(SLOT_POSITIONS),
     .naming = &openai_gpt_names, .keys = openai_gpt_keys, .read = read_openai_gpt, .tied = true,
     .norms.layer_norm = true, .norms.of_sums = true, .forward.activation = "gelu_new"},
    {"codegen", "CodeGen", .positions.folder_interleaved = true,
     .slots.needs = BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_UP) | BIT(SLOT_DOWN) | UNGATED_BIASES |
                    BIT(SLOT_ATTENTION_NORM) | BIT(SLOT_ATTENTION_NORM_BIAS),
     .slots.head_needs = BIASED_HEAD, .slots.head_allows = BIT(SLOT_OUTPUT_BIAS), .naming = &codegen_names,
     .keys = gpt2_keys, .attention.qkv_blocks = true, .forward.activation = "gelu_new", .norms.layer_norm = true,
     .attention.parallel = true},
    {"biogpt", "BioGPT", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES | ATTENTION_BIASES | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &biogpt_names, .keys = constant_keys,
     .read = read_biogpt, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu", .positions.first = 2},
    {"bloom", "BLOOM", .slots.needs = GPT2_SLOTS,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_EMBEDDING_NORM) | BIT(SLOT_EMBEDDING_NORM_BIAS), .naming = &bloom_names,
     .keys = bloom_keys, .usual = bloom_usual, .read = read_bloom, .attention.grouped_qkv = true, .tied = true,
     .norms.layer_norm = true, .forward.activation = "gelu_pytorch_tanh"},
    {"mpt", "MPT", .slots.needs = FUSED_SLOTS, .slots.head_needs = PLAIN_HEAD, .naming = &mpt_names, .keys = mpt_keys,
     .read = read_mpt, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu"},
    {"nanochat", "nanochat", .slots.needs = UNGATED_SLOTS & ~PRE_NORMS, .slots.head_needs = BIT(SLOT_EMBEDDING),
     .slots.allows = ATTENTION_BIASES, .naming = &nanochat_names, .keys = llama_keys, .read = read_nanochat,
     .forward.activation = "relu2", .norms.bare = true, .norms.of_embedding = true, .positions.backwards = true},
    {"bitnet", "BitNet b1.58", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | BIT(SLOT_O_NORM) | BIT(SLOT_DOWN_NORM),
     .slots.allows = ATTENTION_BIASES, .slots.head_needs = PLAIN_HEAD, .naming = &llama_names, .keys = llama_keys,
     .forward.activation = "relu2", .positions.base = 5e5},
    {"minicpm3", "MiniCPM 3", .norms.eps = 1e-5, .slots.needs = LATENT_SLOTS, NAMED(deepseek_names),
     .read = read_minicpm3, .attention.latent = true, .tied = true},
    {"axk1", "A.X K1", DEEPSEEK3_LIKE(DEEPSEEK_SLOTS | BIT(SLOT_FFN_POST_NORM), 2.5), .experts.usual_groups = 8,
     .experts.usual_chosen = 4, .experts.usual_dense = 1},
    {"sarvam_moe", "Sarvam MoE", .experts.usual_scale = 2.5, .experts.usual_dense = 1,
     .slots.needs = FUSED_SLOTS | BIT(SLOT_GATE) | NORMS, NAMED(sarvam_moe_names), SIGMOID_EXPERTS,
     .positions.base = 8e6, .positions.part = 1},
    {"afmoe", "Trinity", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS | BIT(SLOT_ATTENTION_GATE),
     .slots.allows = ATTENTION_BIASES, NAMED(afmoe_names), .read = read_afmoe, SIGMOID_EXPERTS,
     .attention.window = 1024, .attention.pattern = 4, .positions.in_windows = true},
    {"kolibri1", "Kolibri 1", .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS, NAMED(kolibri1_names), SIGMOID_EXPERTS,
     .experts.usual_choice = -1, .experts.by_logits = true, .attention.window = 513, .attention.pattern = 5,
     .positions.in_windows = true},
    {"gpt_neo", "GPT-Neo", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &gpt_neo_names, .keys = gpt_neo_keys,
     .read = read_gpt_neo, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu_new"},
    {"modernbert", "ModernBERT", .slots.needs = FUSED_SLOTS & ~BIT(SLOT_ATTENTION_NORM),
     .slots.allows = BIT(SLOT_ATTENTION_NORM), .slots.needs_later = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD | BIT(SLOT_EMBEDDING_NORM), .naming = &modernbert_names, .keys = modernbert_keys,
     .read = read_modernbert, .forward.activation = "gelu", .tied = true, .norms.layer_norm = true,
     .forward.fused_gate = true, .attention.bidirectional = true, .positions.base = 160000,
     .positions.local_base = 10000},
    {"modernbert-decoder", "Ettin (ModernBERT decoders)",
     .slots.needs = (PLAIN_SLOTS & ~(BIT(SLOT_GATE) | BIT(SLOT_ATTENTION_NORM))),
     .slots.allows = BIT(SLOT_ATTENTION_NORM) | PRE_NORM_BIASES | ATTENTION_BIASES,
     .slots.needs_later = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD | BIT(SLOT_EMBEDDING_NORM) | BIT(SLOT_LAST_DENSE) | BIT(SLOT_LAST_DENSE_NORM),
     .slots.head_allows = BIT(SLOT_OUTPUT_NORM_BIAS) | BIT(SLOT_EMBEDDING_NORM_BIAS) | BIT(SLOT_LAST_DENSE_BIAS) |
                          BIT(SLOT_LAST_DENSE_NORM_BIAS) | BIT(SLOT_OUTPUT_BIAS),
     .naming = &modernbert_decoder_names, .keys = modernbert_keys, .read = read_modernbert_decoder,
     .forward.activation = "gelu", .tied = true, .norms.layer_norm = true, .forward.fused_gate = true,
     .positions.base = 160000, .positions.local_base = 10000},
    {"eurobert", "EuroBERT", .slots.needs = PLAIN_SLOTS, NAMED(llama_names), .attention.bidirectional = true},
    {"lfm2", "LFM2", .in_gguf = true, .read = read_lfm2, LFM2_LIKE},
    {"lfm3", "LFM3", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | NORMS, .slots.allows = ATTENTION_BIASES,
     .slots.head_needs = PLAIN_HEAD, .naming = &lfm3_names, .keys = nemotron_keys, .read = read_lfm3,
     .forward.activation = "silu", .tied = true, .attention.window = 256, .positions.base = 1e6,
     .positions.local_base = 1e4, .positions.wide_part = 0.5, .recurrent.kind = RECURRENCE_CONV,
     .recurrent.needs = MIXER_SLOTS, .recurrent.allows = MIXER_BIASES},
    {"lfm2_moe", "LFM2 MoE", .gguf = "lfm2moe", .read = read_lfm2_moe, .experts.slots = EXPERTS | BIT(SLOT_CHOICE_BIAS),
     .experts.always = true, .experts.own_width = true, .experts.by_sigmoid = true, LFM2_LIKE},
    {"mamba", "Mamba", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD, .naming = &mamba_names, .keys = mamba_keys, .usual = mamba_usual,
     .forward.activation = "silu", .tied = true, .recurrent.kind = RECURRENCE_MAMBA, .recurrent.needs = MAMBA1_SLOTS,
     .recurrent.allows = MIXER_BIASES},
    {"falcon_mamba", "Falcon Mamba", .norms.eps = 1e-5, .slots.needs = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD, .naming = &mamba_names, .keys = mamba_keys, .usual = mamba_usual,
     .read = read_falcon_mamba, .forward.activation = "silu", .tied = true, .recurrent.kind = RECURRENCE_MAMBA,
     .recurrent.needs = MAMBA1_SLOTS, .recurrent.allows = MIXER_BIASES},
    {"rwkv", "RWKV-4",
     .slots.needs = PRE_NORMS | PRE_NORM_BIASES | BIT(SLOT_UP) | BIT(SLOT_DOWN) | BIT(SLOT_YIELD) | BIT(SLOT_SHIFT_UP) |
                    BIT(SLOT_SHIFT_YIELD),
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_EMBEDDING_NORM) | BIT(SLOT_EMBEDDING_NORM_BIAS), .naming = &rwkv_names,
     .keys = rwkv_keys, .usual = rwkv_usual, .read = read_rwkv, .forward.activation = "relu2", .norms.layer_norm = true,
     .recurrent.kind = RECURRENCE_RWKV,
     .recurrent.needs = BIT(SLOT_Q) | BIT(SLOT_K) | BIT(SLOT_V) | BIT(SLOT_MIX_OUT) | BIT(SLOT_SHIFT_Q) |
                        BIT(SLOT_SHIFT_K) | BIT(SLOT_SHIFT_V) | BIT(SLOT_DECAY) | BIT(SLOT_SKIP)},
    {"recurrent_gemma", "RecurrentGemma", .slots.needs = PLAIN_SLOTS | GATED_BIASES,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = PLAIN_HEAD, .naming = &recurrent_gemma_names,
     .keys = gemma_keys, .usual = recurrent_gemma_usual, .read = read_recurrent_gemma,
     .forward.activation = "gelu_pytorch_tanh", .tied = true, .norms.from_one = true, .attention.window = 2048,
     .positions.part = 0.5, .recurrent.kind = RECURRENCE_GRIFFIN, .recurrent.interval = 3,
     .recurrent.needs = MIXER_SLOTS | MIXER_BIASES | BIT(SLOT_MIX_GATE) | BIT(SLOT_MIX_GATE_BIAS) | BIT(SLOT_DECAY) |
                        BIT(SLOT_TAKEN) | BIT(SLOT_TAKEN_SHIFT) | BIT(SLOT_FADING) | BIT(SLOT_FADING_SHIFT)},
    {"mamba2", "Mamba 2", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD, .naming = &mamba2_names, .keys = mamba_keys, .usual = mamba_usual,
     .forward.activation = "silu", MAMBA2_RULES},
    {"qwen3_next", "Qwen3-Next", DELTANET_LIKE, .naming = &qwen3_next_names,
     .recurrent.needs = DELTANET_SLOTS | BIT(SLOT_RATES), OWN_EXPERTS(EXPERTS | SHARED), .experts.whole_choice = true},
    {"qwen3_5_text", "Qwen3.5", DELTANET_LIKE, .naming = &qwen3_5_names,
     .recurrent.needs = DELTANET_SLOTS | DELTANET_APART},
    {"qwen3_5_moe_text", "Qwen3.5 MoE", DELTANET_LIKE, .naming = &qwen3_5_names,
     .recurrent.needs = DELTANET_SLOTS | DELTANET_APART, OWN_EXPERTS(EXPERTS | SHARED), .experts.whole_choice = true},
    {"qwen3next", "Qwen3-Next", GGUF_DELTANET, .recurrent.needs = DELTANET_SLOTS | BIT(SLOT_MIX_GATE) | BIT(SLOT_RATES),
     OWN_EXPERTS(EXPERTS | SHARED), .experts.whole_choice = true},
    {"qwen35", "Qwen3.5", GGUF_DELTANET, .recurrent.needs = DELTANET_SLOTS | DELTANET_APART, .recurrent.tiled = true},
    {"qwen35moe", "Qwen3.5 MoE", GGUF_DELTANET, .recurrent.needs = DELTANET_SLOTS | DELTANET_APART,
     .recurrent.tiled = true, OWN_EXPERTS(EXPERTS | SHARED), .experts.whole_choice = true},
    {"persimmon", "Persimmon", .slots.needs = GPT2_SLOTS, .slots.head_needs = BIASED_HEAD, .naming = &persimmon_names,
     .keys = layer_norm_keys, .read = read_persimmon, .attention.grouped_qkv = true, .norms.layer_norm = true,
     .forward.activation = "relu2", .positions.part = 0.5},
    {"gpt_neox_japanese", "GPT-NeoX Japanese", .slots.needs = FUSED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = BIT(SLOT_O_BIAS), .slots.head_needs = BIASED_HEAD, .naming = &neox_japanese_names,
     .keys = layer_norm_keys, .read = read_neox_japanese, .attention.grouped_qkv = true, .tied = true,
     .norms.layer_norm = true, .forward.activation = "gelu", .positions.part = 1},
    {"xglm", "XGLM", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES | ATTENTION_BIASES | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD, .naming = &xglm_names, .keys = xglm_keys, .read = read_biogpt, .tied = true,
     .norms.layer_norm = true, .forward.activation = "gelu", .positions.waves = WAVES_CLOSED, .positions.first = 2},
    {"ctrl", "CTRL", .norms.eps = 1e-6,
     .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES | ATTENTION_BIASES | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_OUTPUT_BIAS), .naming = &ctrl_names, .keys = ctrl_keys,
     .read = read_ctrl, .tied = true, .norms.layer_norm = true, .forward.activation = "relu",
     .positions.waves = WAVES_OPEN},
    {"opt", "OPT", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES, .slots.allows = ATTENTION_BIASES | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &opt_names, .keys = opt_keys, .read = read_opt,
     .tied = true, .norms.layer_norm = true, .forward.activation = "relu", .positions.first = 2},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* Models that compute as one of the families; those with pictures are read for their text. */
static const struct {
    const char *type, *as;
} aliases[] = {{"ministral", "mistral"},
               {"qwen2_vl", "qwen2"},
               {"qwen2_vl_text", "qwen2"},
               {"qwen2_5_vl", "qwen2"},
               {"qwen2_5_vl_text", "qwen2"},
               {"qwen3_vl_text", "qwen3"},
               {"internlm3", "llama"},
               {"iquestcoder", "llama"},
               {"qwen2_5_omni_text", "qwen2"},
               {"qwen3_omni_moe_text", "qwen3_moe"},
               {"granite_docling_text", "granite"},
               {"granite4_vision_text", "granite"},
               {"apertus1p5_text", "apertus"},
               {"paddleocr_vl", "paddleocr_vl_text"},
               {"hunyuan_vl", "hunyuan_v1_dense"},
               {"hunyuan_vl_text", "hunyuan_v1_dense"},
               {"emu3_text_model", "llama"},
               {"glm_ocr_text", "glm4v_text"},
               {"glm4v_moe_text", "glm4_moe"},
               {"gemma4_unified_text", "gemma4_text"}};

static bool is_word(const char *known, const char *name, size_t length) {
    return strlen(known) == length && memcmp(known, name, length) == 0;
}

const char *tn_llm_gguf_word(const llm_family *f) { return f->gguf ? f->gguf : f->in_gguf ? f->architecture : NULL; }

/* What the family is called in files of this kind; NULL: it is not in such files. */
static const char *word_in(const llm_family *f, bool gguf) {
    if (gguf) return tn_llm_gguf_word(f);
    return !f->naming ? NULL : f->type ? f->type : f->architecture;
}

const llm_family *tn_llm_next_family(const llm_family *f) {
    const char *word = tn_llm_gguf_word(f);
    for (f++; word && f < families + FAMILIES; f++)
        if (tn_llm_gguf_word(f) && strcmp(tn_llm_gguf_word(f), word) == 0) return f;
    return NULL;
}

const llm_family *tn_llm_find_family(const char *name, size_t length, bool gguf) {
    for (size_t i = 0; !gguf && i < sizeof aliases / sizeof *aliases; i++)
        if (is_word(aliases[i].type, name, length))
            return tn_llm_find_family(aliases[i].as, strlen(aliases[i].as), false);
    for (size_t i = 0; i < FAMILIES; i++) {
        const char *known = word_in(&families[i], gguf);
        if (known && is_word(known, name, length)) return &families[i];
    }
    return NULL;
}

void tn_llm_list_families(bool gguf, char *out, size_t size) {
    out[0] = 0;
    for (size_t i = 0; i < FAMILIES; i++) {
        size_t used = strlen(out);
        const char *word = word_in(&families[i], gguf);
        bool listed = false;
        for (size_t k = 0; word && k < i; k++)
            listed = listed || (word_in(&families[k], gguf) && strcmp(word_in(&families[k], gguf), word) == 0);
        if (word && !listed) snprintf(out + used, size - used, "%s%s", used ? ", " : "", word);
    }
}
