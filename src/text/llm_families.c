/* llm_families.c — the families of language models: a table row says what a family is called in files, which tensors a
 * layer has, and how its computation differs from Llama's. */
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

#define PLAIN_SLOTS (BIT(SLOT_Q_BIAS) - 1)
#define BIASES (BIT(SLOT_Q_BIAS) | BIT(SLOT_K_BIAS) | BIT(SLOT_V_BIAS))
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

#define HEAD(embedding, norm, output) [SLOT_EMBEDDING] = embedding, [SLOT_OUTPUT_NORM] = norm, [SLOT_OUTPUT] = output

/* ---- names ------------------------------------------------------------------------------------------------------- */

#define GGUF_LAYER                                                                                                     \
    [SLOT_ATTENTION_NORM] = "attn_norm.weight", [SLOT_Q] = "attn_q.weight", [SLOT_K] = "attn_k.weight",                \
    [SLOT_V] = "attn_v.weight", [SLOT_O] = "attn_output.weight", [SLOT_FFN_NORM] = "ffn_norm.weight",                  \
    [SLOT_GATE] = "ffn_gate.weight", [SLOT_UP] = "ffn_up.weight", [SLOT_DOWN] = "ffn_down.weight",                     \
    [SLOT_Q_BIAS] = "attn_q.bias", [SLOT_K_BIAS] = "attn_k.bias", [SLOT_V_BIAS] = "attn_v.bias",                       \
    [SLOT_O_BIAS] = "attn_output.bias", [SLOT_Q_NORM] = "attn_q_norm.weight", [SLOT_K_NORM] = "attn_k_norm.weight",    \
    [SLOT_QKV] = "attn_qkv.weight", [SLOT_QKV_BIAS] = "attn_qkv.bias", [SLOT_ATTENTION_NORM_BIAS] = "attn_norm.bias",  \
    [SLOT_FFN_NORM_BIAS] = "ffn_norm.bias", [SLOT_GATE_BIAS] = "ffn_gate.bias", [SLOT_UP_BIAS] = "ffn_up.bias",        \
    [SLOT_DOWN_BIAS] = "ffn_down.bias", [SLOT_ATTENTION_POST_NORM] = "post_attention_norm.weight",                     \
    [SLOT_FFN_POST_NORM] = "post_ffw_norm.weight", [SLOT_ROUTER] = "ffn_gate_inp.weight",                              \
    [SLOT_SHARED_ROUTER] = "ffn_gate_inp_shexp.weight", [SLOT_SHARED_GATE] = "ffn_gate_shexp.weight",                  \
    [SLOT_SHARED_UP] = "ffn_up_shexp.weight", [SLOT_SHARED_DOWN] = "ffn_down_shexp.weight",                            \
    [SLOT_CHOICE_BIAS] = "exp_probs_b.bias", [SLOT_MIX_IN] = "ssm_in.weight", [SLOT_CONV] = "ssm_conv1d.weight",       \
    [SLOT_CONV_BIAS] = "ssm_conv1d.bias", [SLOT_MIX_X] = "ssm_x.weight", [SLOT_STEP] = "ssm_dt.weight",                \
    [SLOT_STEP_BIAS] = "ssm_dt.bias", [SLOT_DECAY] = "ssm_a", [SLOT_SKIP] = "ssm_d",                                   \
    [SLOT_MIX_NORM] = "ssm_norm.weight", [SLOT_STEP_NORM] = "ssm_dt_norm.weight",                                      \
    [SLOT_WRITTEN_NORM] = "ssm_b_norm.weight", [SLOT_READ_NORM] = "ssm_c_norm.weight",                                 \
    [SLOT_MIX_OUT] = "ssm_out.weight", [SLOT_Q_DOWN] = "attn_q_a.weight", [SLOT_Q_DOWN_NORM] = "attn_q_a_norm.weight", \
    [SLOT_Q_UP] = "attn_q_b.weight", [SLOT_KV_DOWN] = "attn_kv_a_mqa.weight",                                          \
    [SLOT_KV_DOWN_NORM] = "attn_kv_a_norm.weight", [SLOT_KV_UP] = "attn_kv_b.weight", [SLOT_K_UP] = "attn_k_b.weight", \
    [SLOT_V_UP] = "attn_v_b.weight", [SLOT_INPUT_GATE] = "inp_gate.weight", [SLOT_INPUT_OUT] = "proj.weight",          \
    [SLOT_INPUT_NORM] = "post_norm.weight", [SLOT_STREAM_ROUTER] = "altup_router.weight",                              \
    [SLOT_STREAM_ROUTER_NORM] = "altup_router_norm.weight", [SLOT_STREAM_PREDICT] = "altup_predict_coef.weight",       \
    [SLOT_STREAM_CORRECT] = "altup_correct_coef.weight", [SLOT_STREAM_SCALE] = "altup_correct_scale.weight",           \
    [SLOT_LAUREL_DOWN] = "laurel_l.weight", [SLOT_LAUREL_UP] = "laurel_r.weight",                                      \
    [SLOT_LAUREL_NORM] = "laurel_post_norm.weight"
#define GGUF_EXPERTS                                                                             \
    [SLOT_EXPERT_GATE] = "ffn_gate_exps.weight", [SLOT_EXPERT_UP] = "ffn_up_exps.weight",        \
    [SLOT_EXPERT_DOWN] = "ffn_down_exps.weight", [SLOT_EXPERT_GATE_BIAS] = "ffn_gate_exps.bias", \
    [SLOT_EXPERT_UP_BIAS] = "ffn_up_exps.bias", [SLOT_EXPERT_DOWN_BIAS] = "ffn_down_exps.bias",  \
    [SLOT_ROUTER_BIAS] = "ffn_gate_inp.bias", [SLOT_SINKS] = "attn_sinks.weight"
#define GGUF_HEAD                                                                                                   \
    [SLOT_EMBEDDING] = "token_embd.weight", [SLOT_POSITIONS] = "position_embd.weight",                              \
    [SLOT_OUTPUT_NORM] = "output_norm.weight", [SLOT_OUTPUT_NORM_BIAS] = "output_norm.bias",                        \
    [SLOT_OUTPUT] = "output.weight", [SLOT_OUTPUT_BIAS] = "output.bias", [SLOT_ROPE_FACTORS] = "rope_freqs.weight", \
    [SLOT_ROPE_SHORT] = "rope_factors_short.weight", [SLOT_ROPE_LONG] = "rope_factors_long.weight",                 \
    [SLOT_LAYER_TABLE] = "per_layer_token_embd.weight", [SLOT_LAYER_PROJECTION] = "per_layer_model_proj.weight",    \
    [SLOT_LAYER_NORM] = "per_layer_proj_norm.weight", [SLOT_STREAMS_IN] = "altup_proj.weight",                      \
    [SLOT_STREAMS_OUT] = "altup_unembd_proj.weight"

#define GGUF_NAMES .prefix = "", .layer = "blk.", .head_slots = {GGUF_HEAD}
const llm_naming tn_llm_gguf_names = {GGUF_NAMES, .layer_slots = {GGUF_LAYER, GGUF_EXPERTS}};

/* Differences of single architectures; the last one of a slot counts. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const llm_naming gguf_late_norm = {
    GGUF_NAMES,
    .layer_slots = {GGUF_LAYER,
                    GGUF_EXPERTS, [SLOT_FFN_NORM] = "post_attention_norm.weight", [SLOT_ATTENTION_POST_NORM] = NULL}};
static const llm_naming gguf_deltanet = {
    GGUF_NAMES,
    .layer_slots = {
        GGUF_LAYER, GGUF_EXPERTS, [SLOT_FFN_NORM] = "post_attention_norm.weight", [SLOT_ATTENTION_POST_NORM] = NULL,
        [SLOT_QKV] = NULL, [SLOT_MIX_IN] = "attn_qkv.weight", [SLOT_MIX_GATE] = "attn_gate.weight",
        [SLOT_RATES] = "ssm_ba.weight", [SLOT_WRITE_RATE] = "ssm_beta.weight", [SLOT_DECAY_RATE] = "ssm_alpha.weight"}};
/* As conversions write Falcon-H1's: the last norm of a layer has no ending. */
static const llm_naming gguf_falcon_h1 = {GGUF_NAMES, .layer_slots = {GGUF_LAYER, [SLOT_FFN_NORM] = "ffn_norm"}};
static const llm_naming gguf_hy_v3 = {GGUF_NAMES,
                                      .layer_slots = {GGUF_LAYER, GGUF_EXPERTS, [SLOT_CHOICE_BIAS] = "exp_probs_b"}};
static const llm_naming gguf_lfm2 = {
    .prefix = "",
    .layer = "blk.",
    .head_slots = {GGUF_HEAD, [SLOT_OUTPUT_NORM] = "token_embd_norm.weight"},
    .layer_slots = {GGUF_LAYER, GGUF_EXPERTS, [SLOT_MIX_IN] = "shortconv.in_proj.weight",
                    [SLOT_CONV] = "shortconv.conv.weight", [SLOT_MIX_OUT] = "shortconv.out_proj.weight"}};
const llm_naming tn_llm_gguf_falcon_two = {
    GGUF_NAMES,
    .layer_slots = {
        GGUF_LAYER, [SLOT_ATTENTION_NORM] = "attn_norm_2.weight", [SLOT_ATTENTION_NORM_BIAS] = "attn_norm_2.bias",
        [SLOT_FFN_NORM] = "attn_norm.weight", [SLOT_FFN_NORM_BIAS] = "attn_norm.bias"}};
#pragma GCC diagnostic pop

/* Files of the first Mixtral, from before tensors had three dimensions. */
const llm_naming tn_llm_gguf_apart = {
    .prefix = "",
    .layer = "blk.",
    .layer_slots = {GGUF_LAYER, [SLOT_EXPERT_GATE] = "ffn_gate.*.weight", [SLOT_EXPERT_UP] = "ffn_up.*.weight",
                    [SLOT_EXPERT_DOWN] = "ffn_down.*.weight"},
    .head_slots = {GGUF_HEAD},
};

#define PROJECTIONS                                                                                                   \
    [SLOT_Q] = "self_attn.q_proj.weight", [SLOT_K] = "self_attn.k_proj.weight", [SLOT_V] = "self_attn.v_proj.weight", \
    [SLOT_Q_BIAS] = "self_attn.q_proj.bias", [SLOT_K_BIAS] = "self_attn.k_proj.bias",                                 \
    [SLOT_V_BIAS] = "self_attn.v_proj.bias"
#define ATTENTION                                                                               \
    PROJECTIONS, [SLOT_O] = "self_attn.o_proj.weight", [SLOT_O_BIAS] = "self_attn.o_proj.bias", \
                 [SLOT_SINKS] = "self_attn.sinks"
#define HEAD_NORMS [SLOT_Q_NORM] = "self_attn.q_norm.weight", [SLOT_K_NORM] = "self_attn.k_norm.weight"
#define TWO_NORMS                                                                                          \
    [SLOT_ATTENTION_NORM] = "input_layernorm.weight", [SLOT_FFN_NORM] = "post_attention_layernorm.weight", \
    [SLOT_ATTENTION_NORM_BIAS] = "input_layernorm.bias", [SLOT_FFN_NORM_BIAS] = "post_attention_layernorm.bias"
#define MATRICES                                                                                                  \
    [SLOT_GATE] = "mlp.gate_proj.weight", [SLOT_UP] = "mlp.up_proj.weight", [SLOT_DOWN] = "mlp.down_proj.weight", \
    [SLOT_GATE_BIAS] = "mlp.gate_proj.bias", [SLOT_UP_BIAS] = "mlp.up_proj.bias",                                 \
    [SLOT_DOWN_BIAS] = "mlp.down_proj.bias"
#define LLAMA_HEAD                                           \
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight", \
                   [SLOT_OUTPUT_NORM] = "norm.weight",       \
                   [SLOT_OUTPUT_NORM_BIAS] = "norm.bias",    \
                   [SLOT_OUTPUT] = "lm_head.weight",         \
                   [SLOT_OUTPUT_BIAS] = "lm_head.bias"}
#define NAMES .prefix = "model.", .layer = "layers.", LLAMA_HEAD, .beside = {".rotary_emb.inv_freq"}

#define EACH_EXPERT                                                                                           \
    [SLOT_EXPERT_GATE] = "mlp.experts.*.gate_proj.weight", [SLOT_EXPERT_UP] = "mlp.experts.*.up_proj.weight", \
    [SLOT_EXPERT_DOWN] = "mlp.experts.*.down_proj.weight"
#define EXPERT_NAMES [SLOT_ROUTER] = "mlp.gate.weight", EACH_EXPERT
#define DEEPSEEK_SHARED                                         \
    [SLOT_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight", \
    [SLOT_SHARED_UP] = "mlp.shared_experts.up_proj.weight", [SLOT_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight"
#define DEEPSEEK_EXPERTS_BUT(router, bias) \
    EACH_EXPERT, DEEPSEEK_SHARED, [SLOT_ROUTER] = router, [SLOT_CHOICE_BIAS] = bias
#define DEEPSEEK_EXPERTS DEEPSEEK_EXPERTS_BUT("mlp.gate.weight", "mlp.gate.e_score_correction_bias")

static const llm_naming llama_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, ATTENTION, HEAD_NORMS, MATRICES,
                    EXPERT_NAMES, [SLOT_SHARED_ROUTER] = "mlp.shared_expert_gate.weight",
                    [SLOT_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
                    [SLOT_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
                    [SLOT_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight"},
};

static const llm_naming flint_names = {
    NAMES,
    .layer_slots =
        {TWO_NORMS, PROJECTIONS, HEAD_NORMS, MATRICES,
         EXPERT_NAMES, [SLOT_O] = "self_attn.o_proj.weight", [SLOT_O_BIAS] = "self_attn.o_proj.bias",
         [SLOT_SINKS] = "self_attn.softmax_offset", [SLOT_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
         [SLOT_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
         [SLOT_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight"},
};

static const llm_naming deepseek_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, MATRICES,
                    DEEPSEEK_EXPERTS, [SLOT_Q] = "self_attn.q_proj.weight", [SLOT_O] = "self_attn.o_proj.weight",
                    [SLOT_Q_DOWN] = "self_attn.q_a_proj.weight", [SLOT_Q_DOWN_NORM] = "self_attn.q_a_layernorm.weight",
                    [SLOT_Q_UP] = "self_attn.q_b_proj.weight", [SLOT_KV_DOWN] = "self_attn.kv_a_proj_with_mqa.weight",
                    [SLOT_KV_DOWN_NORM] = "self_attn.kv_a_layernorm.weight",
                    [SLOT_KV_UP] = "self_attn.kv_b_proj.weight", [SLOT_FFN_POST_NORM] = "post_mlp_layernorm.weight"},
};

static const llm_naming glm4_moe_names = {
    NAMES, .layer_slots = {TWO_NORMS, ATTENTION, HEAD_NORMS, MATRICES, DEEPSEEK_EXPERTS}};

static const llm_naming gpt_oss_names = {
    NAMES,
    .layer_slots =
        {TWO_NORMS, ATTENTION, [SLOT_ROUTER] = "mlp.router.weight", [SLOT_ROUTER_BIAS] = "mlp.router.bias",
         [SLOT_EXPERT_UP] = "mlp.experts.gate_up_proj", [SLOT_EXPERT_UP_BIAS] = "mlp.experts.gate_up_proj_bias",
         [SLOT_EXPERT_DOWN] = "mlp.experts.down_proj", [SLOT_EXPERT_DOWN_BIAS] = "mlp.experts.down_proj_bias"},
    .transposed = BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN),
};

static const llm_naming mixtral_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, ATTENTION, HEAD_NORMS, [SLOT_ROUTER] = "block_sparse_moe.gate.weight",
                    [SLOT_CHOICE_BIAS] = "block_sparse_moe.e_score_correction_bias",
                    [SLOT_EXPERT_GATE] = "block_sparse_moe.experts.*.w1.weight",
                    [SLOT_EXPERT_UP] = "block_sparse_moe.experts.*.w3.weight",
                    [SLOT_EXPERT_DOWN] = "block_sparse_moe.experts.*.w2.weight"},
};

/* Granite's fused gates; Mamba's layers among others. */
#define GRANITE_EXPERTS                                                                                                \
    [SLOT_ROUTER] = "block_sparse_moe.router.layer.weight", [SLOT_EXPERT_UP] = "block_sparse_moe.input_linear.weight", \
    [SLOT_EXPERT_DOWN] = "block_sparse_moe.output_linear.weight", [SLOT_SHARED_UP] = "shared_mlp.input_linear.weight", \
    [SLOT_SHARED_DOWN] = "shared_mlp.output_linear.weight"
#define MAMBA_PART(of)                                                                                             \
    [SLOT_MIX_IN] = of "in_proj.weight", [SLOT_MIX_IN_BIAS] = of "in_proj.bias", [SLOT_CONV] = of "conv1d.weight", \
    [SLOT_CONV_BIAS] = of "conv1d.bias", [SLOT_DECAY] = of "A_log", [SLOT_SKIP] = of "D",                          \
    [SLOT_MIX_OUT] = of "out_proj.weight", [SLOT_MIX_OUT_BIAS] = of "out_proj.bias"
#define MAMBA1_LAYER(of)                                                                  \
    MAMBA_PART(of), [SLOT_MIX_X] = of "x_proj.weight", [SLOT_STEP] = of "dt_proj.weight", \
                    [SLOT_STEP_BIAS] = of "dt_proj.bias"
#define MAMBA2_LAYER(of) MAMBA_PART(of), [SLOT_STEP_BIAS] = of "dt_bias", [SLOT_MIX_NORM] = of "norm.weight"
static const llm_naming granite_moe_names = {
    NAMES, .layer_slots = {TWO_NORMS, ATTENTION, GRANITE_EXPERTS, MAMBA2_LAYER("mamba.")}};
static const llm_naming granite_moe_swa_names = {
    NAMES,
    .layer_slots = {
        TWO_NORMS, ATTENTION, [SLOT_ROUTER] = "block_sparse_moe.router.weight",
        [SLOT_EXPERT_UP] = "block_sparse_moe.experts.gate_up_proj",
        [SLOT_EXPERT_DOWN] = "block_sparse_moe.experts.down_proj", [SLOT_SHARED_UP] = "shared_mlp.input_linear.weight",
        [SLOT_SHARED_DOWN] = "shared_mlp.output_linear.weight"}};
/* Of models without experts. */
const llm_naming tn_llm_granite_dense = {
    NAMES, .layer_slots = {TWO_NORMS, ATTENTION, MAMBA2_LAYER("mamba."), [SLOT_UP] = "shared_mlp.input_linear.weight",
                           [SLOT_DOWN] = "shared_mlp.output_linear.weight"}};

#define JAMBA_LIKE_NAMES(mamba)                                                     \
    .prefix = "model.", .layer = "layers.",                                         \
    .layer_slots = {ATTENTION,                                                      \
                    mamba,                                                          \
                    [SLOT_ATTENTION_NORM] = "input_layernorm.weight",               \
                    [SLOT_FFN_NORM] = "pre_ff_layernorm.weight",                    \
                    [SLOT_GATE] = "feed_forward.gate_proj.weight",                  \
                    [SLOT_UP] = "feed_forward.up_proj.weight",                      \
                    [SLOT_DOWN] = "feed_forward.down_proj.weight",                  \
                    [SLOT_ROUTER] = "feed_forward.router.weight",                   \
                    [SLOT_EXPERT_GATE] = "feed_forward.experts.*.gate_proj.weight", \
                    [SLOT_EXPERT_UP] = "feed_forward.experts.*.up_proj.weight",     \
                    [SLOT_EXPERT_DOWN] = "feed_forward.experts.*.down_proj.weight", \
                    [SLOT_STEP_NORM] = "mamba.dt_layernorm.weight",                 \
                    [SLOT_WRITTEN_NORM] = "mamba.b_layernorm.weight",               \
                    [SLOT_READ_NORM] = "mamba.c_layernorm.weight"},                 \
    .head_slots = {HEAD("embed_tokens.weight", "final_layernorm.weight", "lm_head.weight")}
#define INNER_MAMBA1 MAMBA1_LAYER("mamba.")
#define INNER_MAMBA2 MAMBA2_LAYER("mamba.")
static const llm_naming jamba_names = {JAMBA_LIKE_NAMES(INNER_MAMBA1)};
static const llm_naming bamba_names = {JAMBA_LIKE_NAMES(INNER_MAMBA2)};

static const llm_naming nemotron_h_names = {
    .prefix = "backbone.",
    .layer = "layers.",
    .layer_slots =
        {MAMBA2_LAYER("mixer."), [SLOT_ATTENTION_NORM] = "norm.weight", [SLOT_Q] = "mixer.q_proj.weight",
         [SLOT_K] = "mixer.k_proj.weight", [SLOT_V] = "mixer.v_proj.weight", [SLOT_O] = "mixer.o_proj.weight",
         [SLOT_UP] = "mixer.up_proj.weight", [SLOT_DOWN] = "mixer.down_proj.weight",
         [SLOT_ROUTER] = "mixer.gate.weight", [SLOT_CHOICE_BIAS] = "mixer.gate.e_score_correction_bias",
         [SLOT_EXPERT_UP] = "mixer.experts.*.up_proj.weight", [SLOT_EXPERT_DOWN] = "mixer.experts.*.down_proj.weight",
         [SLOT_SHARED_UP] = "mixer.shared_experts.up_proj.weight",
         [SLOT_SHARED_DOWN] = "mixer.shared_experts.down_proj.weight"},
    .head_slots = {HEAD("embeddings.weight", "norm_f.weight", "lm_head.weight")},
};

static const llm_naming llama4_names = {
    NAMES,
    .layer_slots =
        {TWO_NORMS, ATTENTION, [SLOT_GATE] = "feed_forward.gate_proj.weight", [SLOT_UP] = "feed_forward.up_proj.weight",
         [SLOT_DOWN] = "feed_forward.down_proj.weight", [SLOT_ROUTER] = "feed_forward.router.weight",
         [SLOT_EXPERT_UP] = "feed_forward.experts.gate_up_proj", [SLOT_EXPERT_DOWN] = "feed_forward.experts.down_proj",
         [SLOT_SHARED_GATE] = "feed_forward.shared_expert.gate_proj.weight",
         [SLOT_SHARED_UP] = "feed_forward.shared_expert.up_proj.weight",
         [SLOT_SHARED_DOWN] = "feed_forward.shared_expert.down_proj.weight"},
    .transposed = BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN),
};

static const llm_naming ernie_moe_names = {
    NAMES, .layer_slots = {TWO_NORMS, ATTENTION, MATRICES, EXPERT_NAMES,
                           DEEPSEEK_SHARED, [SLOT_CHOICE_BIAS] = "mlp.moe_statics.e_score_correction_bias"}};

static const llm_naming exaone_moe_names = {
    NAMES, .layer_slots = {TWO_NORMS, ATTENTION, HEAD_NORMS, MATRICES, EXPERT_NAMES,
                           DEEPSEEK_SHARED, [SLOT_CHOICE_BIAS] = "mlp.e_score_correction_bias"}};
static const llm_naming hy_v3_names = {
    NAMES,
    .layer_slots = {
        TWO_NORMS, ATTENTION, HEAD_NORMS,
        MATRICES, [SLOT_ROUTER] = "mlp.router.gate.weight", [SLOT_CHOICE_BIAS] = "mlp.expert_bias",
        [SLOT_EXPERT_GATE] = "mlp.experts.*.gate_proj.weight", [SLOT_EXPERT_UP] = "mlp.experts.*.up_proj.weight",
        [SLOT_EXPERT_DOWN] = "mlp.experts.*.down_proj.weight", [SLOT_SHARED_GATE] = "mlp.shared_mlp.gate_proj.weight",
        [SLOT_SHARED_UP] = "mlp.shared_mlp.up_proj.weight", [SLOT_SHARED_DOWN] = "mlp.shared_mlp.down_proj.weight"}};

static const llm_naming apertus_names = {
    .prefix = "model.",
    .layer = "layers.",
    LLAMA_HEAD,
    .beside = {".rotary_emb.inv_freq", ".mlp.act_fn.beta", ".mlp.act_fn.eps"},
    .layer_slots = {ATTENTION, HEAD_NORMS, MATRICES, [SLOT_ATTENTION_NORM] = "attention_layernorm.weight",
                    [SLOT_FFN_NORM] = "feedforward_layernorm.weight", [SLOT_ALPHA_P] = "mlp.act_fn.alpha_p",
                    [SLOT_ALPHA_N] = "mlp.act_fn.alpha_n"},
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
    .head_slots =
        {[SLOT_EMBEDDING] = "wte.weight", [SLOT_OUTPUT_NORM] = "ln_f.weight", [SLOT_OUTPUT] = "lm_head.weight"},
    .beside = {".rotary.inv_freq"},
};

static const llm_naming hyperclovax_names = {
    NAMES, .layer_slots = {
               TWO_NORMS, ATTENTION,
               MATRICES, [SLOT_ATTENTION_POST_NORM] = "post_norm1.weight", [SLOT_FFN_POST_NORM] = "post_norm2.weight"}};

#define GEMMA_LAYER                                                                                  \
    ATTENTION, HEAD_NORMS, MATRICES, [SLOT_ATTENTION_NORM] = "input_layernorm.weight",               \
                                     [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight", \
                                     [SLOT_FFN_NORM] = "pre_feedforward_layernorm.weight",           \
                                     [SLOT_FFN_POST_NORM] = "post_feedforward_layernorm.weight"
static const llm_naming gemma_names = {NAMES, .layer_slots = {GEMMA_LAYER}};

#define INPUT_LAYER                                                                                      \
    [SLOT_INPUT_GATE] = "per_layer_input_gate.weight", [SLOT_INPUT_OUT] = "per_layer_projection.weight", \
    [SLOT_INPUT_NORM] = "post_per_layer_input_norm.weight"
#define INPUT_HEAD                                                     \
    HEAD("embed_tokens.weight", "norm.weight", "lm_head.weight"),      \
        [SLOT_LAYER_TABLE] = "embed_tokens_per_layer.weight",          \
        [SLOT_LAYER_PROJECTION] = "per_layer_model_projection.weight", \
        [SLOT_LAYER_NORM] = "per_layer_projection_norm.weight"
static const llm_naming gemma3n_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots =
        {GEMMA_LAYER, INPUT_LAYER, [SLOT_STREAM_ROUTER] = "altup.modality_router.weight",
         [SLOT_STREAM_ROUTER_NORM] = "altup.router_norm.weight",
         [SLOT_STREAM_PREDICT] = "altup.prediction_coefs.weight",
         [SLOT_STREAM_CORRECT] = "altup.correction_coefs.weight", [SLOT_STREAM_SCALE] = "altup.correct_output_scale",
         [SLOT_LAUREL_DOWN] = "laurel.linear_left.weight", [SLOT_LAUREL_UP] = "laurel.linear_right.weight",
         [SLOT_LAUREL_NORM] = "laurel.post_laurel_norm.weight"},
    .head_slots = {INPUT_HEAD, [SLOT_STREAMS_IN] = "altup_projections.*.weight",
                   [SLOT_STREAMS_OUT] = "altup_unembed_projections.*.weight"},
};

static const llm_naming gemma4_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {GEMMA_LAYER, INPUT_LAYER, [SLOT_LAYER_SCALE] = "layer_scalar", [SLOT_ROUTER] = "router.proj.weight",
                    [SLOT_ROUTER_SCALE] = "router.scale", [SLOT_EXPERT_SCALE] = "router.per_expert_scale",
                    [SLOT_EXPERT_UP] = "experts.gate_up_proj", [SLOT_EXPERT_DOWN] = "experts.down_proj",
                    [SLOT_DENSE_POST_NORM] = "post_feedforward_layernorm_1.weight",
                    [SLOT_EXPERTS_NORM] = "pre_feedforward_layernorm_2.weight",
                    [SLOT_EXPERTS_POST_NORM] = "post_feedforward_layernorm_2.weight"},
    .head_slots = {INPUT_HEAD},
};

/* Norms of what attention and feed-forward yield, and none before. */
static const llm_naming olmo2_names = {
    NAMES,
    .layer_slots = {ATTENTION, HEAD_NORMS, MATRICES,
                    EXPERT_NAMES, [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight",
                    [SLOT_FFN_POST_NORM] = "post_feedforward_layernorm.weight"},
};

#define DELTANET_LAYER                                                                                                 \
    [SLOT_CONV] = "linear_attn.conv1d.weight", [SLOT_STEP_BIAS] = "linear_attn.dt_bias",                               \
    [SLOT_DECAY] = "linear_attn.A_log", [SLOT_MIX_NORM] = "linear_attn.norm.weight",                                   \
    [SLOT_MIX_OUT] = "linear_attn.out_proj.weight", EXPERT_NAMES,                                                      \
    [SLOT_SHARED_ROUTER] = "mlp.shared_expert_gate.weight", [SLOT_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight", \
    [SLOT_SHARED_UP] = "mlp.shared_expert.up_proj.weight", [SLOT_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight"
static const llm_naming qwen3_next_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, ATTENTION, HEAD_NORMS, MATRICES, DELTANET_LAYER,
                    [SLOT_MIX_IN] = "linear_attn.in_proj_qkvz.weight", [SLOT_RATES] = "linear_attn.in_proj_ba.weight"},
};
static const llm_naming qwen3_5_names = {
    NAMES,
    .layer_slots =
        {TWO_NORMS, ATTENTION, HEAD_NORMS, MATRICES, DELTANET_LAYER, [SLOT_MIX_IN] = "linear_attn.in_proj_qkv.weight",
         [SLOT_MIX_GATE] = "linear_attn.in_proj_z.weight", [SLOT_WRITE_RATE] = "linear_attn.in_proj_b.weight",
         [SLOT_DECAY_RATE] = "linear_attn.in_proj_a.weight"},
};

static const llm_naming lfm2_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "operator_norm.weight",
                    [SLOT_FFN_NORM] = "ffn_norm.weight",
                    [SLOT_Q] = "self_attn.q_proj.weight",
                    [SLOT_K] = "self_attn.k_proj.weight",
                    [SLOT_V] = "self_attn.v_proj.weight",
                    [SLOT_O] = "self_attn.out_proj.weight",
                    [SLOT_Q_NORM] = "self_attn.q_layernorm.weight",
                    [SLOT_K_NORM] = "self_attn.k_layernorm.weight",
                    [SLOT_GATE] = "feed_forward.w1.weight",
                    [SLOT_UP] = "feed_forward.w3.weight",
                    [SLOT_DOWN] = "feed_forward.w2.weight",
                    [SLOT_ROUTER] = "feed_forward.gate.weight",
                    [SLOT_CHOICE_BIAS] = "feed_forward.expert_bias",
                    [SLOT_EXPERT_GATE] = "feed_forward.experts.*.w1.weight",
                    [SLOT_EXPERT_UP] = "feed_forward.experts.*.w3.weight",
                    [SLOT_EXPERT_DOWN] = "feed_forward.experts.*.w2.weight",
                    [SLOT_MIX_IN] = "conv.in_proj.weight",
                    [SLOT_MIX_IN_BIAS] = "conv.in_proj.bias",
                    [SLOT_CONV] = "conv.conv.weight",
                    [SLOT_CONV_BIAS] = "conv.conv.bias",
                    [SLOT_MIX_OUT] = "conv.out_proj.weight",
                    [SLOT_MIX_OUT_BIAS] = "conv.out_proj.bias"},
    .head_slots = {HEAD("embed_tokens.weight", "embedding_norm.weight", "lm_head.weight")},
};

#define MAMBA_NAMES(mamba)                                                                                    \
    .prefix = "backbone.", .layer = "layers.", .layer_slots = {mamba, [SLOT_ATTENTION_NORM] = "norm.weight"}, \
    .head_slots = {HEAD("embeddings.weight", "norm_f.weight", "lm_head.weight")}
#define PURE_MAMBA1 MAMBA1_LAYER("mixer.")
#define PURE_MAMBA2 MAMBA2_LAYER("mixer.")
static const llm_naming mamba_names = {MAMBA_NAMES(PURE_MAMBA1)}, mamba2_names = {MAMBA_NAMES(PURE_MAMBA2)};

static const llm_naming rwkv_names = {
    .prefix = "rwkv.",
    .layer = "blocks.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "ln1.weight",
                    [SLOT_ATTENTION_NORM_BIAS] = "ln1.bias",
                    [SLOT_FFN_NORM] = "ln2.weight",
                    [SLOT_FFN_NORM_BIAS] = "ln2.bias",
                    [SLOT_Q] = "attention.receptance.weight",
                    [SLOT_K] = "attention.key.weight",
                    [SLOT_V] = "attention.value.weight",
                    [SLOT_MIX_OUT] = "attention.output.weight",
                    [SLOT_SHIFT_Q] = "attention.time_mix_receptance",
                    [SLOT_SHIFT_K] = "attention.time_mix_key",
                    [SLOT_SHIFT_V] = "attention.time_mix_value",
                    [SLOT_DECAY] = "attention.time_decay",
                    [SLOT_SKIP] = "attention.time_first",
                    [SLOT_UP] = "feed_forward.key.weight",
                    [SLOT_DOWN] = "feed_forward.value.weight",
                    [SLOT_YIELD] = "feed_forward.receptance.weight",
                    [SLOT_SHIFT_UP] = "feed_forward.time_mix_key",
                    [SLOT_SHIFT_YIELD] = "feed_forward.time_mix_receptance"},
    .head_slots =
        {HEAD("embeddings.weight", "ln_out.weight", "head.weight"), [SLOT_OUTPUT_NORM_BIAS] = "ln_out.bias",
         [SLOT_EMBEDDING_NORM] = "blocks.0.pre_ln.weight", [SLOT_EMBEDDING_NORM_BIAS] = "blocks.0.pre_ln.bias"},
};

static const llm_naming phi3_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, [SLOT_QKV] = "self_attn.qkv_proj.weight", [SLOT_O] = "self_attn.o_proj.weight",
                    [SLOT_UP] = "mlp.gate_up_proj.weight", [SLOT_DOWN] = "mlp.down_proj.weight"},
};

static const llm_naming glm_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, ATTENTION, [SLOT_ATTENTION_POST_NORM] = "post_self_attn_layernorm.weight",
                    [SLOT_FFN_POST_NORM] = "post_mlp_layernorm.weight", [SLOT_UP] = "mlp.gate_up_proj.weight",
                    [SLOT_DOWN] = "mlp.down_proj.weight"},
};

static const llm_naming starcoder2_names = {
    NAMES,
    .layer_slots = {TWO_NORMS, ATTENTION, [SLOT_UP] = "mlp.c_fc.weight", [SLOT_DOWN] = "mlp.c_proj.weight",
                    [SLOT_UP_BIAS] = "mlp.c_fc.bias", [SLOT_DOWN_BIAS] = "mlp.c_proj.bias"},
};

static const llm_naming hunyuan_names = {
    NAMES,
    .layer_slots =
        {TWO_NORMS, ATTENTION, MATRICES, [SLOT_Q_NORM] = "self_attn.query_layernorm.weight",
         [SLOT_K_NORM] = "self_attn.key_layernorm.weight", [SLOT_ROUTER] = "mlp.gate.wg.weight",
         [SLOT_EXPERT_GATE] = "mlp.experts.*.gate_proj.weight", [SLOT_EXPERT_UP] = "mlp.experts.*.up_proj.weight",
         [SLOT_EXPERT_DOWN] = "mlp.experts.*.down_proj.weight", [SLOT_SHARED_GATE] = "mlp.shared_mlp.gate_proj.weight",
         [SLOT_SHARED_UP] = "mlp.shared_mlp.up_proj.weight", [SLOT_SHARED_DOWN] = "mlp.shared_mlp.down_proj.weight"},
};

static const llm_naming modernbert_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "attn_norm.weight",
                    [SLOT_QKV] = "attn.Wqkv.weight",
                    [SLOT_O] = "attn.Wo.weight",
                    [SLOT_FFN_NORM] = "mlp_norm.weight",
                    [SLOT_UP] = "mlp.Wi.weight",
                    [SLOT_DOWN] = "mlp.Wo.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embeddings.tok_embeddings.weight",
                   [SLOT_EMBEDDING_NORM] = "embeddings.norm.weight",
                   [SLOT_OUTPUT_NORM] = "final_norm.weight",
                   [SLOT_OUTPUT] = "decoder.weight"},
    .beside = {"head.dense.weight", "head.norm.weight", "decoder.bias"},
};

static const llm_naming phi_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {PROJECTIONS, [SLOT_ATTENTION_NORM] = "input_layernorm.weight",
                    [SLOT_ATTENTION_NORM_BIAS] = "input_layernorm.bias", [SLOT_O] = "self_attn.dense.weight",
                    [SLOT_O_BIAS] = "self_attn.dense.bias", [SLOT_UP] = "mlp.fc1.weight",
                    [SLOT_UP_BIAS] = "mlp.fc1.bias", [SLOT_DOWN] = "mlp.fc2.weight", [SLOT_DOWN_BIAS] = "mlp.fc2.bias"},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_OUTPUT_NORM] = "final_layernorm.weight",
                   [SLOT_OUTPUT_NORM_BIAS] = "final_layernorm.bias",
                   [SLOT_OUTPUT] = "lm_head.weight",
                   [SLOT_OUTPUT_BIAS] = "lm_head.bias"},
    .beside = {".rotary_emb.inv_freq"},
};

static const llm_naming neox_names = {
    .prefix = "gpt_neox.",
    .layer = "layers.",
    .layer_slots =
        {TWO_NORMS, [SLOT_QKV] = "attention.query_key_value.weight", [SLOT_QKV_BIAS] = "attention.query_key_value.bias",
         [SLOT_O] = "attention.dense.weight", [SLOT_O_BIAS] = "attention.dense.bias",
         [SLOT_UP] = "mlp.dense_h_to_4h.weight", [SLOT_UP_BIAS] = "mlp.dense_h_to_4h.bias",
         [SLOT_DOWN] = "mlp.dense_4h_to_h.weight", [SLOT_DOWN_BIAS] = "mlp.dense_4h_to_h.bias"},
    .head_slots = {[SLOT_EMBEDDING] = "embed_in.weight",
                   [SLOT_OUTPUT_NORM] = "final_layer_norm.weight",
                   [SLOT_OUTPUT_NORM_BIAS] = "final_layer_norm.bias",
                   [SLOT_OUTPUT] = "embed_out.weight"},
    .beside = {".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"},
};

#define FALCON_LAYER                                                                                               \
    [SLOT_QKV] = "self_attention.query_key_value.weight", [SLOT_QKV_BIAS] = "self_attention.query_key_value.bias", \
    [SLOT_O] = "self_attention.dense.weight", [SLOT_O_BIAS] = "self_attention.dense.bias",                         \
    [SLOT_UP] = "mlp.dense_h_to_4h.weight", [SLOT_UP_BIAS] = "mlp.dense_h_to_4h.bias",                             \
    [SLOT_DOWN] = "mlp.dense_4h_to_h.weight", [SLOT_DOWN_BIAS] = "mlp.dense_4h_to_h.bias"
#define FALCON_NAMES                                                                          \
    .prefix = "transformer.", .layer = "h.", .beside = {".rotary_emb.inv_freq", ".inv_freq"}, \
    .head_slots = {[SLOT_EMBEDDING] = "word_embeddings.weight",                               \
                   [SLOT_OUTPUT_NORM] = "ln_f.weight",                                        \
                   [SLOT_OUTPUT_NORM_BIAS] = "ln_f.bias",                                     \
                   [SLOT_OUTPUT] = "lm_head.weight"}
static const llm_naming falcon_names = {FALCON_NAMES, .layer_slots = {TWO_NORMS, FALCON_LAYER}};
/* Of models with a norm each for attention and feed-forward. */
const llm_naming tn_llm_falcon_two = {
    FALCON_NAMES,
    .layer_slots = {FALCON_LAYER, [SLOT_ATTENTION_NORM] = "ln_attn.weight", [SLOT_ATTENTION_NORM_BIAS] = "ln_attn.bias",
                    [SLOT_FFN_NORM] = "ln_mlp.weight", [SLOT_FFN_NORM_BIAS] = "ln_mlp.bias"},
};

#define OPT_LAYER                                                                                             \
    PROJECTIONS, [SLOT_O] = "self_attn.out_proj.weight", [SLOT_O_BIAS] = "self_attn.out_proj.bias",           \
                 [SLOT_ATTENTION_NORM] = "self_attn_layer_norm.weight",                                       \
                 [SLOT_ATTENTION_NORM_BIAS] = "self_attn_layer_norm.bias",                                    \
                 [SLOT_FFN_NORM] = "final_layer_norm.weight", [SLOT_FFN_NORM_BIAS] = "final_layer_norm.bias", \
                 [SLOT_UP] = "fc1.weight", [SLOT_UP_BIAS] = "fc1.bias", [SLOT_DOWN] = "fc2.weight",           \
                 [SLOT_DOWN_BIAS] = "fc2.bias"
static const llm_naming opt_names = {
    .prefix = "model.decoder.",
    .layer = "layers.",
    .layer_slots = {OPT_LAYER},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_POSITIONS] = "embed_positions.weight",
                   [SLOT_OUTPUT_NORM] = "final_layer_norm.weight",
                   [SLOT_OUTPUT_NORM_BIAS] = "final_layer_norm.bias",
                   [SLOT_OUTPUT] = "lm_head.weight"},
};

static const llm_naming biogpt_names = {
    .prefix = "biogpt.",
    .layer = "layers.",
    .layer_slots = {OPT_LAYER},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_POSITIONS] = "embed_positions.weight",
                   [SLOT_OUTPUT_NORM] = "layer_norm.weight",
                   [SLOT_OUTPUT_NORM_BIAS] = "layer_norm.bias",
                   [SLOT_OUTPUT] = "output_projection.weight"},
};

#define GPT_NORMS                                                                                                     \
    [SLOT_ATTENTION_NORM] = "ln_1.weight", [SLOT_ATTENTION_NORM_BIAS] = "ln_1.bias", [SLOT_FFN_NORM] = "ln_2.weight", \
    [SLOT_FFN_NORM_BIAS] = "ln_2.bias"
#define GPT_MATRICES                                                                                    \
    [SLOT_UP] = "mlp.c_fc.weight", [SLOT_UP_BIAS] = "mlp.c_fc.bias", [SLOT_DOWN] = "mlp.c_proj.weight", \
    [SLOT_DOWN_BIAS] = "mlp.c_proj.bias"
#define GPT_HEAD                                                                                                     \
    .prefix = "transformer.", .layer = "h.",                                                                         \
    .beside = {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"} /* masks */,          \
    .head_slots = {                                                                                                  \
        [SLOT_EMBEDDING] = "wte.weight",       [SLOT_POSITIONS] = "wpe.weight",  [SLOT_OUTPUT_NORM] = "ln_f.weight", \
        [SLOT_OUTPUT_NORM_BIAS] = "ln_f.bias", [SLOT_OUTPUT] = "lm_head.weight", [SLOT_OUTPUT_BIAS] = "lm_head.bias"}
#define GPT_ATTENTION                                                                                         \
    [SLOT_QKV] = "attn.c_attn.weight", [SLOT_QKV_BIAS] = "attn.c_attn.bias", [SLOT_O] = "attn.c_proj.weight", \
    [SLOT_O_BIAS] = "attn.c_proj.bias"
static const llm_naming gpt2_names = {
    GPT_HEAD,
    .layer_slots = {GPT_NORMS, GPT_ATTENTION, GPT_MATRICES},
    .transposed = BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_UP) | BIT(SLOT_DOWN),
};
static const llm_naming bigcode_names = {GPT_HEAD, .layer_slots = {GPT_NORMS, GPT_ATTENTION, GPT_MATRICES}};
static const llm_naming gpt_neo_names = {
    GPT_HEAD,
    .layer_slots = {GPT_NORMS, GPT_MATRICES, [SLOT_Q] = "attn.attention.q_proj.weight",
                    [SLOT_K] = "attn.attention.k_proj.weight", [SLOT_V] = "attn.attention.v_proj.weight",
                    [SLOT_O] = "attn.attention.out_proj.weight", [SLOT_O_BIAS] = "attn.attention.out_proj.bias"},
};
static const llm_naming gptj_names = {
    GPT_HEAD,
    .layer_slots =
        {GPT_NORMS, [SLOT_Q] = "attn.q_proj.weight", [SLOT_K] = "attn.k_proj.weight", [SLOT_V] = "attn.v_proj.weight",
         [SLOT_O] = "attn.out_proj.weight", [SLOT_UP] = "mlp.fc_in.weight", [SLOT_UP_BIAS] = "mlp.fc_in.bias",
         [SLOT_DOWN] = "mlp.fc_out.weight", [SLOT_DOWN_BIAS] = "mlp.fc_out.bias"},
};

static const llm_naming codegen_names = {
    GPT_HEAD,
    .layer_slots = {GPT_NORMS, [SLOT_QKV] = "attn.qkv_proj.weight", [SLOT_O] = "attn.out_proj.weight",
                    [SLOT_UP] = "mlp.fc_in.weight", [SLOT_UP_BIAS] = "mlp.fc_in.bias",
                    [SLOT_DOWN] = "mlp.fc_out.weight", [SLOT_DOWN_BIAS] = "mlp.fc_out.bias"},
};
static const llm_naming openai_gpt_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {GPT_NORMS, GPT_ATTENTION, GPT_MATRICES},
    .head_slots = {[SLOT_EMBEDDING] = "tokens_embed.weight",
                   [SLOT_POSITIONS] = "positions_embed.weight",
                   [SLOT_OUTPUT] = "lm_head.weight"},
    .transposed = BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_UP) | BIT(SLOT_DOWN),
    .beside = {".attn.bias"},
};
static const llm_naming bloom_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {TWO_NORMS, FALCON_LAYER},
    .head_slots = {[SLOT_EMBEDDING] = "word_embeddings.weight",
                   [SLOT_EMBEDDING_NORM] = "word_embeddings_layernorm.weight",
                   [SLOT_EMBEDDING_NORM_BIAS] = "word_embeddings_layernorm.bias",
                   [SLOT_OUTPUT_NORM] = "ln_f.weight",
                   [SLOT_OUTPUT_NORM_BIAS] = "ln_f.bias",
                   [SLOT_OUTPUT] = "lm_head.weight"},
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
    .head_slots =
        {[SLOT_EMBEDDING] = "wte.weight", [SLOT_OUTPUT_NORM] = "norm_f.weight", [SLOT_OUTPUT] = "lm_head.weight"},
};
static const llm_naming nanochat_names = {
    NAMES, .layer_slots = {ATTENTION, [SLOT_UP] = "mlp.fc1.weight", [SLOT_DOWN] = "mlp.fc2.weight"}};
static const llm_naming bitnet_names = {
    NAMES,
    .layer_slots = {
        TWO_NORMS, ATTENTION,
        MATRICES, [SLOT_O_NORM] = "self_attn.attn_sub_norm.weight", [SLOT_DOWN_NORM] = "mlp.ffn_sub_norm.weight"}};
static const llm_naming afmoe_names = {
    NAMES,
    .layer_slots =
        {ATTENTION, HEAD_NORMS, MATRICES, DEEPSEEK_EXPERTS_BUT("mlp.router.gate.weight", "mlp.expert_bias"),
         [SLOT_ATTENTION_NORM] = "input_layernorm.weight",
         [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight", [SLOT_FFN_NORM] = "pre_mlp_layernorm.weight",
         [SLOT_FFN_POST_NORM] = "post_mlp_layernorm.weight", [SLOT_ATTENTION_GATE] = "self_attn.gate_proj.weight"},
};
static const llm_naming sarvam_moe_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots =
        {TWO_NORMS, MATRICES, DEEPSEEK_EXPERTS_BUT("mlp.gate.weight", "mlp.gate.expert_bias"),
         [SLOT_QKV] = "attention.query_key_value.weight", [SLOT_O] = "attention.dense.weight",
         [SLOT_Q_NORM] = "attention.query_layernorm.weight", [SLOT_K_NORM] = "attention.key_layernorm.weight"},
    .head_slots = {HEAD("word_embeddings.weight", "norm.weight", "lm_head.weight")},
};
static const llm_naming kolibri1_names = {
    NAMES,
    .layer_slots =
        {TWO_NORMS, ATTENTION, HEAD_NORMS, DEEPSEEK_EXPERTS_BUT("mlp.gate.weight", "moe.router.expert_bias"),
         [SLOT_ATTENTION_POST_NORM] = "post_attn_norm.weight", [SLOT_FFN_POST_NORM] = "post_ffn_norm.weight"},
};

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
static const char *const apertus_keys[LLM_KEYS] = KEYS_BUT("rms_norm_eps", ""); /* tn_llm_read_apertus */
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
        "layer_norm_epsilon", "activation", "", ""); /* tn_llm_read_falcon */
static const char *const bloom_keys[LLM_KEYS] =
    ROW("n_layer", "hidden_size", "", "n_head", "seq_length", "layer_norm_epsilon", "", "", "");
static const char *const mpt_keys[LLM_KEYS] =
    ROW("n_layers", "d_model", "", "n_heads", "max_seq_len", "layer_norm_epsilon", "", "", "");
static const char *const openai_gpt_keys[LLM_KEYS] = ROW("n_layer", "n_embd", "", "n_head", "n_positions",
                                                         "layer_norm_epsilon", "", "", ""); /* tn_llm_read_openai_gpt */
static const char *const mamba_keys[LLM_KEYS] =
    ROW("num_hidden_layers", "hidden_size", "", "", "", "layer_norm_epsilon", "hidden_act", "", "");
static const char *const rwkv_keys[LLM_KEYS] =
    ROW("num_hidden_layers", "hidden_size", "intermediate_size", "", "", "layer_norm_epsilon", "", "", "");
static const char *const gpt_neo_keys[LLM_KEYS] =
    ROW("num_layers", "hidden_size", "intermediate_size", "num_heads", "max_position_embeddings", "layer_norm_epsilon",
        "activation_function", "", "");
static const char *const opt_keys[LLM_KEYS] = ROW("num_hidden_layers", "hidden_size", "ffn_dim", "num_attention_heads",
                                                  "max_position_embeddings", "", "activation_function", "", "");
static const char *const gpt2_keys[LLM_KEYS] =
    ROW("n_layer", "n_embd", "n_inner", "n_head", "n_positions", "layer_norm_epsilon", "activation_function",
        "num_key_value_heads", "head_dim");

/* Sizes that transformers' classes have by themselves: the text_config of a model with pictures may leave them out. */
static const int64_t llama_usual[LLM_KEYS] = {
    [KEY_LAYERS] = 32, [KEY_HIDDEN] = 4096, [KEY_INTERMEDIATE] = 11008, [KEY_HEADS] = 32, [KEY_CONTEXT] = 2048};
static const int64_t mistral_usual[LLM_KEYS] = {[KEY_LAYERS] = 32, [KEY_HIDDEN] = 4096,    [KEY_INTERMEDIATE] = 14336,
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
static const int64_t rwkv_usual[LLM_KEYS] = {[KEY_CONTEXT] = 1 << 20};                          /* a state has no end */
static const int64_t falcon_usual[LLM_KEYS] = {[KEY_CONTEXT] = 2048};                           /* rope has no end */
static const int64_t bloom_usual[LLM_KEYS] = {[KEY_CONTEXT] = 2048}; /* config.json has none: ALiBi has no limit */

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
#define GEMMA_LIKE                                                                                            \
    .in_gguf = true, .slots.head_needs = PLAIN_HEAD, .forward.activation = "gelu_pytorch_tanh", .tied = true, \
    .scaled_embedding = true, .norms.from_one = true
static const llm_family families[] = {
    {"llama", "Llama, Mistral, SmolLM", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(llama_names), .usual = llama_usual,
     .experts.slots = EXPERTS, .experts.whole_choice = true},
    {"mistral", "Mistral", .slots.needs = PLAIN_SLOTS, .attention.window = 4096, NAMED(llama_names),
     .usual = mistral_usual},
    {"cwm", "Code World Model", .norms.eps = 1e-5, .positions.explicit_rope = true, .slots.needs = PLAIN_SLOTS,
     .attention.window = 8192, NAMED(llama_names), .usual = mistral_usual},
    {"ministral3", "Ministral 3", .norms.eps = 1e-5, .positions.explicit_rope = true, .slots.needs = PLAIN_SLOTS,
     .attention.window = LLM_MOST_CONTEXT, NAMED(llama_names), .usual = mistral_usual},
    {"qwen2", "Qwen 2, Qwen 2.5", .in_gguf = true, .slots.needs = PLAIN_SLOTS | BIASES, NAMED(llama_names)},
    {"qwen3", "Qwen 3", .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS, .slots.allows = BIASES | BIT(SLOT_O_BIAS),
     NAMED(llama_names)},
    {"mixtral", "Mixtral", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS, NAMED(mixtral_names),
     .experts.slots = EXPERTS, .experts.always = true, .experts.whole_choice = true, .positions.base = 1e6,
     .attention.window = LLM_MOST_CONTEXT},
    {"qwen2moe", "Qwen 2 MoE", .type = "qwen2_moe", .in_gguf = true, .slots.needs = PLAIN_SLOTS | BIASES,
     NAMED(llama_names), .experts.slots = EXPERTS | SHARED, .experts.always = true, .experts.own_width = true},
    {"qwen3moe", "Qwen 3 MoE", .type = "qwen3_moe", .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS,
     NAMED(llama_names), .experts.slots = EXPERTS, .experts.always = true, .experts.own_width = true,
     .experts.whole_choice = true},
    {"phi3", "Phi-3, Phi-4", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = FUSED_SLOTS, NAMED(phi3_names),
     .forward.fused_gate = true, .positions.part = 1, .attention.window = LLM_MOST_CONTEXT},
    {"gpt2", "GPT-2", .in_gguf = true, .slots.needs = GPT2_SLOTS, .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS),
     .naming = &gpt2_names, .keys = gpt2_keys, .tied = true, .norms.layer_norm = true,
     .forward.activation = "gelu_new"},
    {"gemma", "Gemma", .slots.needs = PLAIN_SLOTS, GEMMA_LIKE, .naming = &llama_names, .keys = llama_keys,
     .forward.gelu_by_tanh = true},
    {"gemma2", "Gemma 2", .slots.needs = PLAIN_SLOTS | POST_NORMS, GEMMA_LIKE, .naming = &gemma_names,
     .keys = gemma_keys, .attention.window = 4096, .attention.gguf_window = 4096, .attention.pattern = 2,
     .attention.cap = 50, .final_cap = 30, .attention.query_scale = 256, .attention.wide_layers = 46},
    {"gemma3", "Gemma 3", .type = "gemma3_text", .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS, GEMMA_LIKE,
     .naming = &gemma_names, .keys = gemma_keys, .usual = gemma3_usual, .attention.window = 4096,
     .attention.pattern = 6, .positions.base = 1e6, .positions.local_base = 1e4, .attention.query_scale = 256,
     .attention.wide_layers = 62},
    {"gemma3n",
     "Gemma 3n",
     .type = "gemma3n_text",
     .in_gguf = true,
     .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS | STREAM_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS),
     .slots.head_needs = PLAIN_HEAD,
     .slots.head_allows = LAYER_INPUTS | STREAM_ENDS,
     .naming = &gemma3n_names,
     .keys = gemma_keys,
     .usual = gemma3n_usual,
     .read = tn_llm_read_gemma3n,
     .forward.activation = "gelu_pytorch_tanh",
     .tied = true,
     .scaled_embedding = true,
     .norms.values = true,
     .attention.window = 512,
     .attention.pattern = 5,
     .positions.base = 1e6,
     .positions.local_base = 1e4},
    {"gemma4",
     "Gemma 4",
     .type = "gemma4_text",
     .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS | BIT(SLOT_LAYER_SCALE),
     .slots.head_needs = PLAIN_HEAD,
     .slots.head_allows = LAYER_INPUTS,
     .naming = &gemma4_names,
     .keys = gemma_keys,
     .usual = gemma4_usual,
     .read = tn_llm_read_gemma4,
     .forward.activation = "gelu_pytorch_tanh",
     .tied = true,
     .scaled_embedding = true,
     .norms.values = true,
     .attention.window = 512,
     .attention.pattern = 6,
     .positions.base = 1e6,
     .positions.local_base = 1e4,
     .positions.wide_part = 0.25,
     .experts.beside = true,
     .experts.own_width = true,
     .experts.fused_gate = true,
     .experts.slots = FUSED_EXPERTS | BIT(SLOT_ROUTER_SCALE) | BIT(SLOT_EXPERT_SCALE) | BIT(SLOT_DENSE_POST_NORM) |
                      BIT(SLOT_EXPERTS_NORM) | BIT(SLOT_EXPERTS_POST_NORM)},
    {"smollm3", "SmolLM 3", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(llama_names), .positions.base = 2e6, .tied = true},
    {"arcee", "AFM", .norms.eps = 1e-5, .in_gguf = true, .positions.interleaved = true, .slots.needs = UNGATED_SLOTS,
     .slots.head_needs = PLAIN_HEAD, .naming = &llama_names, .keys = llama_keys, .forward.activation = "relu2"},
    {"helium", "Helium", .positions.base = 1e5, .norms.eps = 1e-8, .positions.folder_interleaved = true,
     .slots.needs = PLAIN_SLOTS, NAMED(llama_names)},
    {"ernie4_5", "ERNIE 4.5", .norms.eps = 1e-5, .in_gguf = true, .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(llama_names), .positions.base = 5e5},
    {"seed_oss", "Seed-OSS", .in_gguf = true, .gguf_naming = &gguf_late_norm, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(llama_names)},
    {"hunyuan_v1_dense", "Hunyuan", .norms.eps = 1e-5, .gguf = "hunyuan-dense", .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(hunyuan_names), .norms.after_rope = true},
    {"hunyuan_v1_moe", "Hunyuan MoE", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(hunyuan_names), .norms.after_rope = true,
     .experts.slots = EXPERTS | PLAIN_SHARED, .experts.always = true, .experts.whole_choice = true},
    {"ernie4_5_moe", "ERNIE 4.5 MoE", .norms.eps = 1e-5, .gguf = "ernie4_5-moe", .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS, NAMED(ernie_moe_names),
     .read = tn_llm_read_ernie_moe, .tied = true, .positions.base = 5e5, .experts.slots = DEEPSEEK_SLOTS,
     .experts.always = true, .experts.own_width = true, .experts.whole_choice = true},
    {"exaone_moe", "K-EXAONE", .norms.eps = 1e-5, .experts.usual_scale = 2.5, .experts.usual_dense = 1,
     .gguf = "exaone-moe", .slots.needs = PLAIN_SLOTS | NORMS, NAMED(exaone_moe_names), .experts.slots = DEEPSEEK_SLOTS,
     .experts.always = true, .experts.own_width = true, .experts.by_sigmoid = true, .attention.window = 4096,
     .attention.pattern = 4, .positions.in_windows = true},
    {"hy_v3", "Hunyuan 3", .norms.eps = 1e-5, .experts.usual_scale = 2.826, .experts.usual_dense = 1,
     .positions.base = 11158840, .in_gguf = true, .gguf_naming = &gguf_hy_v3, .slots.needs = PLAIN_SLOTS | NORMS,
     NAMED(hy_v3_names), .experts.slots = DEEPSEEK_SLOTS, .experts.always = true, .experts.own_width = true,
     .experts.by_sigmoid = true},
    {"apertus", "Apertus", .positions.explicit_rope = true, .norms.eps = 1e-5,
     .slots.needs = UNGATED_SLOTS | NORMS | BIT(SLOT_ALPHA_P) | BIT(SLOT_ALPHA_N),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = PLAIN_HEAD, .naming = &apertus_names,
     .keys = apertus_keys, .read = tn_llm_read_apertus, .forward.activation = "silu"},
    {"exaone", "EXAONE 3", .slots.needs = PLAIN_SLOTS, NAMED(exaone_names)},
    {"jais2", "Jais 2", .in_gguf = true, .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD,
     .naming = &llama_names, .keys = layer_norm_keys, .forward.activation = "relu2", .norms.layer_norm = true},
    {"vaultgemma", "VaultGemma", .slots.needs = PLAIN_SLOTS, .slots.head_needs = PLAIN_HEAD,
     .forward.activation = "gelu_pytorch_tanh", .tied = true, .scaled_embedding = true, .norms.from_one = true,
     .naming = &gemma_names, .keys = gemma_keys, .attention.window = 4096, .attention.pattern = 2, .attention.cap = 50,
     .final_cap = 30, .attention.query_scale = 256},
    {"minimax_m2", "MiniMax M2", .slots.needs = PLAIN_SLOTS | NORMS, NAMED(mixtral_names), .norms.heads = HEAD_NORM_ALL,
     .experts.slots = EXPERTS | BIT(SLOT_CHOICE_BIAS), .experts.always = true, .experts.whole_choice = true,
     .experts.by_sigmoid = true, .positions.base = 5e6, .positions.part = 1},
    {"phimoe", "Phi-3.5-MoE", .slots.needs = PLAIN_SLOTS | PRE_NORM_BIASES, .slots.allows = BIASES | BIT(SLOT_O_BIAS),
     .slots.head_needs = BIASED_HEAD, .slots.head_allows = BIT(SLOT_OUTPUT_BIAS), .naming = &mixtral_names,
     .keys = llama_keys, .read = tn_llm_read_phimoe, .forward.activation = "silu", .norms.layer_norm = true,
     .experts.slots = EXPERTS, .experts.always = true, .experts.sparse_mixer = true, .positions.base = 1e6,
     .attention.window = LLM_MOST_CONTEXT},
    {"flex_olmo", "FlexOlmo", .slots.needs = (PLAIN_SLOTS & ~PRE_NORMS) | NORMS | POST_NORMS, NAMED(olmo2_names),
     .norms.heads = HEAD_NORM_ALL, .experts.slots = EXPERTS, .experts.always = true, .positions.base = 5e5},
    {"mellum", "Mellum", .experts.usual_choice = 1, .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS,
     NAMED(llama_names), .experts.slots = EXPERTS, .experts.always = true, .experts.own_width = true,
     .experts.whole_choice = true, .attention.window = 1024, .attention.pattern = 1, .positions.base = 5e5,
     .positions.part = 1},
    {"solar_open", "Solar Open", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS, .slots.allows = BIASES,
     NAMED(glm4_moe_names), .experts.slots = DEEPSEEK_SLOTS, .experts.always = true, .experts.own_width = true,
     .experts.by_sigmoid = true, .positions.base = 1e6, .positions.part = 1},
    {"youtu", "Youtu-LLM", .gguf = "deepseek2", .positions.interleaved = true, .positions.folder_interleaved = true,
     .slots.needs = LATENT_SLOTS, NAMED(deepseek_names), .attention.latent = true, .tied = true},
    {"granite", "Granite 3", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(llama_names)},
    {"granitemoe", "Granite 3 MoE", .slots.needs = PLAIN_SLOTS, NAMED(granite_moe_names), .forward.fused_gate = true,
     .experts.slots = FUSED_EXPERTS, .experts.always = true, .experts.whole_choice = true},
    {"granitemoe", "Granite 3 MoE", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.head_needs = PLAIN_HEAD, .forward.activation = "silu", .experts.slots = EXPERTS | PLAIN_SHARED,
     .experts.always = true, .experts.whole_choice = true},
    {"granitemoeshared", "Granite 3 MoE with a shared expert", .slots.needs = PLAIN_SLOTS, NAMED(granite_moe_names),
     .read = tn_llm_read_granite_shared, .forward.fused_gate = true,
     .experts.slots = FUSED_EXPERTS | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN), .experts.always = true,
     .experts.whole_choice = true},
    {"granite_swa", "Granite with windows", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(llama_names), .usual = granite_swa_usual,
     .read = tn_llm_read_granite_swa, .tied = true, .attention.window = 128, .attention.pattern = 4,
     .attention.whole_first = true},
    {"granitemoe_swa", "Granite MoE with windows", .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(granite_moe_swa_names), .read = tn_llm_read_granitemoe_swa,
     .forward.fused_gate = true, .experts.slots = FUSED_EXPERTS | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN),
     .experts.always = true, .experts.whole_choice = true, .attention.window = 128, .attention.pattern = 4,
     .attention.whole_first = true},
    {"flint", "Flint", .slots.needs = PLAIN_SLOTS | NORMS | BIT(SLOT_SINKS), .slots.allows = BIASES | BIT(SLOT_O_BIAS),
     NAMED(flint_names), .read = tn_llm_read_flint, .experts.slots = EXPERTS | PLAIN_SHARED, .experts.always = true,
     .experts.own_width = true, .experts.by_sigmoid = true, .attention.window = 513, .positions.in_windows = true},
    {"granitemoehybrid", "Granite 4", .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_GATE),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(granite_moe_names), .read = tn_llm_read_granite_shared,
     .forward.fused_gate = true, .experts.slots = FUSED_EXPERTS | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN),
     .experts.whole_choice = true, MAMBA2_RULES},
    {"granitehybrid", "Granite 4", .in_gguf = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, .slots.head_needs = PLAIN_HEAD,
     .forward.activation = "silu", .experts.slots = EXPERTS | PLAIN_SHARED, .experts.whole_choice = true, MAMBA2_RULES},
    {"bamba", "Bamba", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(bamba_names), .positions.part = 0.5, MAMBA2_RULES},
    {"falcon_h1", "Falcon-H1", .gguf = "falcon-h1", .gguf_naming = &gguf_falcon_h1, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, NAMED(bamba_names), .read = tn_llm_read_falcon_h1,
     .recurrent.kind = RECURRENCE_MAMBA2, .recurrent.beside = true,
     .recurrent.needs = MIXER_SLOTS | DECAY_SLOTS | BIT(SLOT_SKIP), .recurrent.allows = MIXER_BIASES},
    {"nemotron_h", "Nemotron-H, Nemotron 3 Nano", .norms.eps = 1e-5, NEMOTRON_H_LIKE(DEEPSEEK_SLOTS),
     .naming = &nemotron_h_names, .keys = nemotron_h_keys, .read = tn_llm_read_nemotron_h},
    {"nemotron_h_moe", "Nemotron 3 Nano", NEMOTRON_H_LIKE(DEEPSEEK_SLOTS)},
    {"llama4", "Llama 4", .norms.eps = 1e-5, .type = "llama4_text", .positions.folder_interleaved = true,
     .slots.needs = PLAIN_SLOTS, .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(llama4_names),
     .read = tn_llm_read_llama4, .positions.base = 5e5, .experts.slots = FUSED_EXPERTS | PLAIN_SHARED,
     .experts.always = true, .experts.by_sigmoid = true, .experts.fused_gate = true, .experts.scales_input = true},
    {"llama4", "Llama 4", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = PLAIN_HEAD, .forward.activation = "silu",
     .experts.slots = EXPERTS | PLAIN_SHARED, .experts.always = true, .experts.by_sigmoid = true,
     .experts.scales_input = true},
    {"jamba", "Jamba", .in_gguf = true, .slots.needs = PLAIN_SLOTS, NAMED(jamba_names), .read = tn_llm_read_jamba,
     .experts.slots = EXPERTS, .recurrent.kind = RECURRENCE_MAMBA,
     .recurrent.needs = MAMBA1_SLOTS | BIT(SLOT_STEP_NORM) | BIT(SLOT_WRITTEN_NORM) | BIT(SLOT_READ_NORM),
     .recurrent.allows = MIXER_BIASES},
    {"hyperclovax", "HyperCLOVA X", .slots.needs = PLAIN_SLOTS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES | POST_NORMS, NAMED(hyperclovax_names)},
    {"olmo", "OLMo", .in_gguf = true, .positions.interleaved = true, .slots.needs = PLAIN_SLOTS & ~PRE_NORMS,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = BIT(SLOT_EMBEDDING), .naming = &llama_names,
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
     .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS), .slots.allows = BIASES | BIT(SLOT_O_BIAS),
     .slots.head_needs = PLAIN_HEAD, .forward.activation = "silu", .forward.clamped_gate = true,
     .experts.slots = EXPERTS | OSS_EXPERTS | BIT(SLOT_EXPERT_GATE_BIAS), .experts.always = true,
     .experts.whole_choice = true, .attention.window = 128, .attention.pattern = 2, .positions.base = 150000,
     .positions.parts_of_frequencies = true},
    {"gpt_oss", "GPT-OSS", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | BIT(SLOT_SINKS),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(gpt_oss_names), .forward.fused_gate = true,
     .forward.clamped_gate = true, .experts.slots = OSS_EXPERTS, .experts.always = true, .experts.whole_choice = true,
     .attention.window = 128, .attention.pattern = 2, .positions.base = 150000},
    {"deepseek_v2", "DeepSeek V2", .gguf = "deepseek2", .positions.interleaved = true,
     .positions.folder_interleaved = true, DEEPSEEK_LIKE, .experts.slots = DEEPSEEK_SLOTS & ~BIT(SLOT_CHOICE_BIAS)},
    {"deepseek_v3", "DeepSeek V3, R1", .gguf = "deepseek2", .positions.interleaved = true,
     DEEPSEEK3_LIKE(DEEPSEEK_SLOTS, 2.5), .experts.usual_groups = 8, .experts.usual_chosen = 4,
     .experts.usual_dense = 3},
    {"sarvam_mla", "Sarvam MLA", DEEPSEEK3_LIKE(DEEPSEEK_SLOTS, 2.5), .experts.usual_dense = 1},
    {"glm4_moe_lite", "GLM-4.7 Flash", DEEPSEEK3_LIKE(DEEPSEEK_SLOTS, 1.8), .norms.eps = 1e-5,
     .experts.usual_dense = 1},
    {"glm4_moe", "GLM-4.5, GLM-4.6", .norms.eps = 1e-5, .experts.usual_dense = 1, .gguf = "glm4moe",
     .gguf_naming = &gguf_late_norm, .slots.needs = PLAIN_SLOTS, .slots.allows = BIASES | NORMS, NAMED(glm4_moe_names),
     .experts.slots = DEEPSEEK_SLOTS, .experts.always = true, .experts.own_width = true, .experts.by_sigmoid = true,
     .positions.part = 0.5},
    {"dots1", "dots.llm1", .experts.usual_choice = -1, .in_gguf = true, .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.allows = BIASES, NAMED(glm4_moe_names), .experts.slots = DEEPSEEK_SLOTS, .experts.always = true,
     .experts.own_width = true, .experts.by_sigmoid = true},
    {"glm", "GLM-4", .norms.eps = 1.5625e-07, .gguf = "chatglm", .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_GATE), .slots.allows = BIASES,
     NAMED(glm_names), .forward.fused_gate = true, .positions.part = 0.5},
    {"glm4", "GLM-4-0414", .norms.eps = 1.5625e-07, .in_gguf = true, .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = (PLAIN_SLOTS & ~BIT(SLOT_GATE)) | POST_NORMS,
     .slots.allows = BIASES, NAMED(glm_names), .forward.fused_gate = true, .positions.part = 0.5},
    {"stablelm", "StableLM", .in_gguf = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.allows = PRE_NORM_BIASES | BIASES | BIT(SLOT_FFN_NORM), .slots.head_needs = BIASED_HEAD,
     .naming = &llama_names, .keys = layer_norm_keys, .forward.activation = "silu", .norms.layer_norm = true,
     .positions.part = 0.25, .attention.chooses_parallel = true},
    {"cohere", "Command R", .positions.base = 5e5, .gguf = "command-r", .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.allows = NORMS | BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = PLAIN_HEAD, .naming = &llama_names,
     .keys = layer_norm_keys, .forward.activation = "silu", .tied = true, .norms.layer_norm = true,
     .attention.parallel = true, .norms.heads = HEAD_NORM_EACH},
    {"cohere2", "Command R7B, Command A", .in_gguf = true, .positions.interleaved = true,
     .positions.folder_interleaved = true, .slots.needs = PLAIN_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = PLAIN_HEAD, .naming = &llama_names,
     .keys = layer_norm_keys, .forward.activation = "silu", .tied = true, .norms.layer_norm = true,
     .attention.parallel = true, .attention.window = 4096, .attention.pattern = 4, .positions.in_windows = true},
    {"nemotron", "Nemotron", .in_gguf = true, .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD,
     .naming = &llama_names, .keys = nemotron_keys, .forward.activation = "relu2", .norms.layer_norm = true,
     .norms.from_one = true, .positions.part = 0.5},
    {"starcoder2", "StarCoder 2", .in_gguf = true, .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD,
     .naming = &starcoder2_names, .keys = starcoder2_keys, .forward.activation = "gelu_pytorch_tanh", .tied = true,
     .norms.layer_norm = true, .attention.window = LLM_MOST_CONTEXT},
    {"phi", "Phi-1, Phi-2", .gguf = "phi2",
     .slots.needs = (UNGATED_SLOTS & ~BIT(SLOT_FFN_NORM)) | BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES |
                    BIT(SLOT_ATTENTION_NORM_BIAS),
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_OUTPUT_BIAS), .naming = &phi_names, .keys = layer_norm_keys,
     .forward.activation = "gelu_new", .norms.layer_norm = true, .attention.parallel = true, .positions.part = 0.5},
    {"gpt_neox", "GPT-NeoX, Pythia", .gguf = "gptneox",
     .slots.needs = GPT2_SLOTS & ~(BIT(SLOT_QKV_BIAS) | BIT(SLOT_O_BIAS)),
     .slots.allows = BIT(SLOT_QKV_BIAS) | BIT(SLOT_O_BIAS), .slots.head_needs = BIASED_HEAD, .naming = &neox_names,
     .keys = layer_norm_keys, .read = tn_llm_read_neox, .forward.activation = "gelu", .norms.layer_norm = true,
     .attention.parallel = true, .attention.chooses_parallel = true, .positions.part = 0.25},
    {"falcon", "Falcon", .in_gguf = true, .slots.needs = FUSED_SLOTS & ~BIT(SLOT_FFN_NORM),
     .slots.head_needs = BIASED_HEAD,
     .slots.allows = BIT(SLOT_FFN_NORM) | PRE_NORM_BIASES | BIT(SLOT_QKV_BIAS) | BIT(SLOT_O_BIAS) | UNGATED_BIASES,
     .naming = &falcon_names, .keys = falcon_keys, .usual = falcon_usual, .read = tn_llm_read_falcon,
     .forward.activation = "gelu", .tied = true, .norms.layer_norm = true, .attention.parallel = true},
    {"gptj", "GPT-J", .positions.folder_interleaved = true,
     .slots.needs = (UNGATED_SLOTS & ~BIT(SLOT_FFN_NORM)) | UNGATED_BIASES | BIT(SLOT_ATTENTION_NORM_BIAS),
     .slots.head_needs = BIASED_HEAD, .slots.head_allows = BIT(SLOT_OUTPUT_BIAS), .naming = &gptj_names,
     .keys = gpt2_keys, .forward.activation = "gelu_new", .norms.layer_norm = true, .attention.parallel = true},
    {"gpt_bigcode", "StarCoder, SantaCoder", .gguf = "starcoder", .slots.needs = GPT2_SLOTS,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &bigcode_names, .keys = gpt2_keys,
     .read = tn_llm_read_bigcode, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu_pytorch_tanh"},
    {"openai-gpt", "GPT", .slots.needs = GPT2_SLOTS, .slots.head_needs = BIT(SLOT_EMBEDDING) | BIT(SLOT_POSITIONS),
     .naming = &openai_gpt_names, .keys = openai_gpt_keys, .read = tn_llm_read_openai_gpt, .tied = true,
     .norms.layer_norm = true, .norms.of_sums = true, .forward.activation = "gelu_new"},
    {"codegen", "CodeGen", .positions.folder_interleaved = true,
     .slots.needs = BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_UP) | BIT(SLOT_DOWN) | UNGATED_BIASES |
                    BIT(SLOT_ATTENTION_NORM) | BIT(SLOT_ATTENTION_NORM_BIAS),
     .slots.head_needs = BIASED_HEAD, .slots.head_allows = BIT(SLOT_OUTPUT_BIAS), .naming = &codegen_names,
     .keys = gpt2_keys, .read = tn_llm_read_codegen, .forward.activation = "gelu_new", .norms.layer_norm = true,
     .attention.parallel = true},
    {"biogpt", "BioGPT", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES | BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &biogpt_names, .keys = constant_keys,
     .read = tn_llm_read_biogpt, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu",
     .positions.first = 2},
    {"bloom", "BLOOM", .slots.needs = GPT2_SLOTS,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_EMBEDDING_NORM) | BIT(SLOT_EMBEDDING_NORM_BIAS), .naming = &bloom_names,
     .keys = bloom_keys, .usual = bloom_usual, .read = tn_llm_read_bloom, .tied = true, .norms.layer_norm = true,
     .forward.activation = "gelu_pytorch_tanh"},
    {"mpt", "MPT", .slots.needs = FUSED_SLOTS, .slots.head_needs = PLAIN_HEAD, .naming = &mpt_names, .keys = mpt_keys,
     .read = tn_llm_read_mpt, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu"},
    {"nanochat", "nanochat", .slots.needs = UNGATED_SLOTS & ~PRE_NORMS, .slots.head_needs = BIT(SLOT_EMBEDDING),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .naming = &nanochat_names, .keys = llama_keys,
     .read = tn_llm_read_nanochat, .forward.activation = "relu2", .norms.bare = true, .norms.of_embedding = true,
     .positions.backwards = true},
    {"bitnet", "BitNet b1.58", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | BIT(SLOT_O_NORM) | BIT(SLOT_DOWN_NORM),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), .slots.head_needs = PLAIN_HEAD, .naming = &bitnet_names,
     .keys = llama_keys, .forward.activation = "relu2", .positions.base = 5e5},
    {"minicpm3", "MiniCPM 3", .norms.eps = 1e-5, .slots.needs = LATENT_SLOTS, NAMED(deepseek_names),
     .read = tn_llm_read_minicpm3, .attention.latent = true, .tied = true},
    {"axk1", "A.X K1", DEEPSEEK3_LIKE(DEEPSEEK_SLOTS | BIT(SLOT_FFN_POST_NORM), 2.5), .experts.usual_groups = 8,
     .experts.usual_chosen = 4, .experts.usual_dense = 1},
    {"sarvam_moe", "Sarvam MoE", .experts.usual_scale = 2.5, .experts.usual_dense = 1,
     .slots.needs = FUSED_SLOTS | BIT(SLOT_GATE) | NORMS, NAMED(sarvam_moe_names), .experts.slots = DEEPSEEK_SLOTS,
     .experts.always = true, .experts.own_width = true, .experts.by_sigmoid = true, .positions.base = 8e6,
     .positions.part = 1},
    {"afmoe", "Trinity", .norms.eps = 1e-5, .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS | BIT(SLOT_ATTENTION_GATE),
     .slots.allows = BIASES | BIT(SLOT_O_BIAS), NAMED(afmoe_names), .read = tn_llm_read_afmoe,
     .experts.slots = DEEPSEEK_SLOTS, .experts.always = true, .experts.own_width = true, .experts.by_sigmoid = true,
     .attention.window = 1024, .attention.pattern = 4, .positions.in_windows = true},
    {"kolibri1", "Kolibri 1", .slots.needs = PLAIN_SLOTS | NORMS | POST_NORMS, NAMED(kolibri1_names),
     .experts.slots = DEEPSEEK_SLOTS, .experts.always = true, .experts.own_width = true, .experts.by_sigmoid = true,
     .experts.usual_choice = -1, .experts.by_logits = true, .attention.window = 513, .attention.pattern = 5,
     .positions.in_windows = true},
    {"gpt_neo", "GPT-Neo", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES,
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS), .naming = &gpt_neo_names, .keys = gpt_neo_keys,
     .read = tn_llm_read_gpt_neo, .tied = true, .norms.layer_norm = true, .forward.activation = "gelu_new"},
    {"modernbert", "ModernBERT", .slots.needs = FUSED_SLOTS & ~BIT(SLOT_ATTENTION_NORM),
     .slots.allows = BIT(SLOT_ATTENTION_NORM), .slots.needs_later = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD | BIT(SLOT_EMBEDDING_NORM), .naming = &modernbert_names, .keys = modernbert_keys,
     .read = tn_llm_read_modernbert, .forward.activation = "gelu", .tied = true, .norms.layer_norm = true,
     .forward.fused_gate = true, .attention.bidirectional = true, .positions.base = 160000,
     .positions.local_base = 10000},
    {"eurobert", "EuroBERT", .slots.needs = PLAIN_SLOTS, NAMED(llama_names), .attention.bidirectional = true},
    {"lfm2", "LFM2", .norms.eps = 1e-5, .in_gguf = true, .gguf_naming = &gguf_lfm2, .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.head_needs = PLAIN_HEAD, .naming = &lfm2_names, .keys = nemotron_keys, .read = tn_llm_read_lfm2,
     .forward.activation = "silu", .tied = true, .positions.base = 1e6, .recurrent.kind = RECURRENCE_CONV,
     .recurrent.needs = MIXER_SLOTS, .recurrent.allows = MIXER_BIASES},
    {"lfm2_moe",
     "LFM2 MoE",
     .norms.eps = 1e-5,
     .gguf = "lfm2moe",
     .gguf_naming = &gguf_lfm2,
     .slots.needs = PLAIN_SLOTS | NORMS,
     .slots.head_needs = PLAIN_HEAD,
     .naming = &lfm2_names,
     .keys = nemotron_keys,
     .read = tn_llm_read_lfm2_moe,
     .forward.activation = "silu",
     .tied = true,
     .positions.base = 1e6,
     .experts.slots = EXPERTS | BIT(SLOT_CHOICE_BIAS),
     .experts.always = true,
     .experts.own_width = true,
     .experts.by_sigmoid = true,
     .recurrent.kind = RECURRENCE_CONV,
     .recurrent.needs = MIXER_SLOTS,
     .recurrent.allows = MIXER_BIASES},
    {"mamba", "Mamba", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD, .naming = &mamba_names, .keys = mamba_keys, .usual = mamba_usual,
     .forward.activation = "silu", .tied = true, .recurrent.kind = RECURRENCE_MAMBA, .recurrent.needs = MAMBA1_SLOTS,
     .recurrent.allows = MIXER_BIASES},
    {"falcon_mamba", "Falcon Mamba", .norms.eps = 1e-5, .slots.needs = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD, .naming = &mamba_names, .keys = mamba_keys, .usual = mamba_usual,
     .read = tn_llm_read_falcon_mamba, .forward.activation = "silu", .tied = true, .recurrent.kind = RECURRENCE_MAMBA,
     .recurrent.needs = MAMBA1_SLOTS, .recurrent.allows = MIXER_BIASES},
    {"rwkv", "RWKV-4",
     .slots.needs = PRE_NORMS | PRE_NORM_BIASES | BIT(SLOT_UP) | BIT(SLOT_DOWN) | BIT(SLOT_YIELD) | BIT(SLOT_SHIFT_UP) |
                    BIT(SLOT_SHIFT_YIELD),
     .slots.head_needs = BIASED_HEAD | BIT(SLOT_EMBEDDING_NORM) | BIT(SLOT_EMBEDDING_NORM_BIAS), .naming = &rwkv_names,
     .keys = rwkv_keys, .usual = rwkv_usual, .read = tn_llm_read_rwkv, .forward.activation = "relu2",
     .norms.layer_norm = true, .recurrent.kind = RECURRENCE_RWKV,
     .recurrent.needs = BIT(SLOT_Q) | BIT(SLOT_K) | BIT(SLOT_V) | BIT(SLOT_MIX_OUT) | BIT(SLOT_SHIFT_Q) |
                        BIT(SLOT_SHIFT_K) | BIT(SLOT_SHIFT_V) | BIT(SLOT_DECAY) | BIT(SLOT_SKIP)},
    {"mamba2", "Mamba 2", .norms.eps = 1e-5, .in_gguf = true, .slots.needs = BIT(SLOT_ATTENTION_NORM),
     .slots.head_needs = PLAIN_HEAD, .naming = &mamba2_names, .keys = mamba_keys, .usual = mamba_usual,
     .forward.activation = "silu", MAMBA2_RULES},
    {"qwen3_next", "Qwen3-Next", DELTANET_LIKE, .naming = &qwen3_next_names,
     .recurrent.needs = DELTANET_SLOTS | BIT(SLOT_RATES), .experts.slots = EXPERTS | SHARED, .experts.always = true,
     .experts.own_width = true, .experts.whole_choice = true},
    {"qwen3_5_text", "Qwen3.5", DELTANET_LIKE, .naming = &qwen3_5_names,
     .recurrent.needs = DELTANET_SLOTS | DELTANET_APART},
    {"qwen3_5_moe_text", "Qwen3.5 MoE", DELTANET_LIKE, .naming = &qwen3_5_names,
     .recurrent.needs = DELTANET_SLOTS | DELTANET_APART, .experts.slots = EXPERTS | SHARED, .experts.always = true,
     .experts.own_width = true, .experts.whole_choice = true},
    {"qwen3next", "Qwen3-Next", GGUF_DELTANET, .recurrent.needs = DELTANET_SLOTS | BIT(SLOT_MIX_GATE) | BIT(SLOT_RATES),
     .experts.slots = EXPERTS | SHARED, .experts.always = true, .experts.own_width = true,
     .experts.whole_choice = true},
    {"qwen35", "Qwen3.5", GGUF_DELTANET, .recurrent.needs = DELTANET_SLOTS | DELTANET_APART, .recurrent.tiled = true},
    {"qwen35moe", "Qwen3.5 MoE", GGUF_DELTANET, .recurrent.needs = DELTANET_SLOTS | DELTANET_APART,
     .recurrent.tiled = true, .experts.slots = EXPERTS | SHARED, .experts.always = true, .experts.own_width = true,
     .experts.whole_choice = true},
    {"opt", "OPT", .slots.needs = UNGATED_SLOTS | PRE_NORM_BIASES,
     .slots.allows = BIASES | BIT(SLOT_O_BIAS) | UNGATED_BIASES, .slots.head_needs = BIASED_HEAD | BIT(SLOT_POSITIONS),
     .naming = &opt_names, .keys = opt_keys, .read = tn_llm_read_opt, .tied = true, .norms.layer_norm = true,
     .forward.activation = "relu", .positions.first = 2},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* Models that compute as one of the families; those with pictures are read for their text. */
static const struct {
    const char *type, *as;
} aliases[] = {
    {"ministral", "mistral"},     {"qwen2_vl", "qwen2"},      {"qwen2_vl_text", "qwen2"}, {"qwen2_5_vl", "qwen2"},
    {"qwen2_5_vl_text", "qwen2"}, {"qwen3_vl_text", "qwen3"}, {"internlm3", "llama"},     {"iquestcoder", "llama"},
};

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
