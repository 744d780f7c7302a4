/* llm_config.c — the families of language models: proof that a file's tensors are one of them, rotary frequencies.
 *
 * A family of models is a table row: what it is called in files and which tensors a layer has. Every tensor of the file
 * must be one that the row knows, in the shape that the metadata gives it: a model that has something more would be
 * computed wrongly without it, so it is refused by name. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/llm_model.h"

#define BIT(slot) (1u << (slot))

#define FFN_MATRICES (BIT(SLOT_GATE) | BIT(SLOT_UP) | BIT(SLOT_DOWN))
#define PLAIN_SLOTS (BIT(SLOT_Q_BIAS) - 1)
#define BIASES (BIT(SLOT_Q_BIAS) | BIT(SLOT_K_BIAS) | BIT(SLOT_V_BIAS))
#define NORMS (BIT(SLOT_Q_NORM) | BIT(SLOT_K_NORM))
#define POST_NORMS (BIT(SLOT_ATTENTION_POST_NORM) | BIT(SLOT_FFN_POST_NORM))
#define GATED_BIASES (BIT(SLOT_GATE_BIAS) | BIT(SLOT_UP_BIAS) | BIT(SLOT_DOWN_BIAS))
#define EXPERTS (BIT(SLOT_ROUTER) | BIT(SLOT_EXPERT_GATE) | BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN))
#define SHARED (BIT(SLOT_SHARED_ROUTER) | BIT(SLOT_SHARED_GATE) | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN))
#define ROPE_TABLES (BIT(SLOT_ROPE_SHORT) | BIT(SLOT_ROPE_LONG))
#define GPT2_SLOTS                                                                                                     \
    (BIT(SLOT_QKV) | BIT(SLOT_QKV_BIAS) | BIT(SLOT_O) | BIT(SLOT_O_BIAS) | BIT(SLOT_ATTENTION_NORM) |                  \
     BIT(SLOT_ATTENTION_NORM_BIAS) | BIT(SLOT_FFN_NORM) | BIT(SLOT_FFN_NORM_BIAS) | BIT(SLOT_UP) | BIT(SLOT_UP_BIAS) | \
     BIT(SLOT_DOWN) | BIT(SLOT_DOWN_BIAS))
#define FUSED_SLOTS \
    (BIT(SLOT_ATTENTION_NORM) | BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_FFN_NORM) | BIT(SLOT_UP) | BIT(SLOT_DOWN))
#define PLAIN_HEAD (BIT(SLOT_EMBEDDING) | BIT(SLOT_OUTPUT_NORM))

/* ---- names ------------------------------------------------------------------------------------------------------- */

#define GGUF_LAYER                                                                                                    \
    [SLOT_ATTENTION_NORM] = "attn_norm.weight", [SLOT_Q] = "attn_q.weight", [SLOT_K] = "attn_k.weight",               \
    [SLOT_V] = "attn_v.weight", [SLOT_O] = "attn_output.weight", [SLOT_FFN_NORM] = "ffn_norm.weight",                 \
    [SLOT_GATE] = "ffn_gate.weight", [SLOT_UP] = "ffn_up.weight", [SLOT_DOWN] = "ffn_down.weight",                    \
    [SLOT_Q_BIAS] = "attn_q.bias", [SLOT_K_BIAS] = "attn_k.bias", [SLOT_V_BIAS] = "attn_v.bias",                      \
    [SLOT_O_BIAS] = "attn_output.bias", [SLOT_Q_NORM] = "attn_q_norm.weight", [SLOT_K_NORM] = "attn_k_norm.weight",   \
    [SLOT_QKV] = "attn_qkv.weight", [SLOT_QKV_BIAS] = "attn_qkv.bias", [SLOT_ATTENTION_NORM_BIAS] = "attn_norm.bias", \
    [SLOT_FFN_NORM_BIAS] = "ffn_norm.bias", [SLOT_GATE_BIAS] = "ffn_gate.bias", [SLOT_UP_BIAS] = "ffn_up.bias",       \
    [SLOT_DOWN_BIAS] = "ffn_down.bias", [SLOT_ATTENTION_POST_NORM] = "post_attention_norm.weight",                    \
    [SLOT_FFN_POST_NORM] = "post_ffw_norm.weight", [SLOT_ROUTER] = "ffn_gate_inp.weight",                             \
    [SLOT_SHARED_ROUTER] = "ffn_gate_inp_shexp.weight", [SLOT_SHARED_GATE] = "ffn_gate_shexp.weight",                 \
    [SLOT_SHARED_UP] = "ffn_up_shexp.weight", [SLOT_SHARED_DOWN] = "ffn_down_shexp.weight"
#define GGUF_HEAD                                                                            \
    [SLOT_EMBEDDING] = "token_embd.weight", [SLOT_POSITIONS] = "position_embd.weight",       \
    [SLOT_OUTPUT_NORM] = "output_norm.weight", [SLOT_OUTPUT_NORM_BIAS] = "output_norm.bias", \
    [SLOT_OUTPUT] = "output.weight", [SLOT_ROPE_FACTORS] = "rope_freqs.weight",              \
    [SLOT_ROPE_SHORT] = "rope_factors_short.weight", [SLOT_ROPE_LONG] = "rope_factors_long.weight"

const llm_naming tn_llm_gguf_names = {
    .prefix = "",
    .layer = "blk.",
    .layer_slots = {GGUF_LAYER, [SLOT_EXPERT_GATE] = "ffn_gate_exps.weight", [SLOT_EXPERT_UP] = "ffn_up_exps.weight",
                    [SLOT_EXPERT_DOWN] = "ffn_down_exps.weight"},
    .head_slots = {GGUF_HEAD},
};

/* Files of the first Mixtral, from before tensors had three dimensions. */
const llm_naming tn_llm_gguf_apart = {
    .prefix = "",
    .layer = "blk.",
    .layer_slots = {GGUF_LAYER, [SLOT_EXPERT_GATE] = "ffn_gate.*.weight", [SLOT_EXPERT_UP] = "ffn_up.*.weight",
                    [SLOT_EXPERT_DOWN] = "ffn_down.*.weight"},
    .head_slots = {GGUF_HEAD},
};

static const llm_naming llama_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "input_layernorm.weight",
                    [SLOT_Q] = "self_attn.q_proj.weight",
                    [SLOT_K] = "self_attn.k_proj.weight",
                    [SLOT_V] = "self_attn.v_proj.weight",
                    [SLOT_O] = "self_attn.o_proj.weight",
                    [SLOT_FFN_NORM] = "post_attention_layernorm.weight",
                    [SLOT_GATE] = "mlp.gate_proj.weight",
                    [SLOT_UP] = "mlp.up_proj.weight",
                    [SLOT_DOWN] = "mlp.down_proj.weight",
                    [SLOT_Q_BIAS] = "self_attn.q_proj.bias",
                    [SLOT_K_BIAS] = "self_attn.k_proj.bias",
                    [SLOT_V_BIAS] = "self_attn.v_proj.bias",
                    [SLOT_O_BIAS] = "self_attn.o_proj.bias",
                    [SLOT_Q_NORM] = "self_attn.q_norm.weight",
                    [SLOT_K_NORM] = "self_attn.k_norm.weight",
                    [SLOT_GATE_BIAS] = "mlp.gate_proj.bias",
                    [SLOT_UP_BIAS] = "mlp.up_proj.bias",
                    [SLOT_DOWN_BIAS] = "mlp.down_proj.bias",
                    [SLOT_ROUTER] = "mlp.gate.weight",
                    [SLOT_EXPERT_GATE] = "mlp.experts.*.gate_proj.weight",
                    [SLOT_EXPERT_UP] = "mlp.experts.*.up_proj.weight",
                    [SLOT_EXPERT_DOWN] = "mlp.experts.*.down_proj.weight",
                    [SLOT_SHARED_ROUTER] = "mlp.shared_expert_gate.weight",
                    [SLOT_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
                    [SLOT_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
                    [SLOT_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_OUTPUT_NORM] = "norm.weight",
                   [SLOT_OUTPUT] = "lm_head.weight"},
    .beside = {".rotary_emb.inv_freq"},
};

static const llm_naming mixtral_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "input_layernorm.weight",
                    [SLOT_Q] = "self_attn.q_proj.weight",
                    [SLOT_K] = "self_attn.k_proj.weight",
                    [SLOT_V] = "self_attn.v_proj.weight",
                    [SLOT_O] = "self_attn.o_proj.weight",
                    [SLOT_FFN_NORM] = "post_attention_layernorm.weight",
                    [SLOT_ROUTER] = "block_sparse_moe.gate.weight",
                    [SLOT_EXPERT_GATE] = "block_sparse_moe.experts.*.w1.weight",
                    [SLOT_EXPERT_UP] = "block_sparse_moe.experts.*.w3.weight",
                    [SLOT_EXPERT_DOWN] = "block_sparse_moe.experts.*.w2.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_OUTPUT_NORM] = "norm.weight",
                   [SLOT_OUTPUT] = "lm_head.weight"},
};

static const llm_naming gemma_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "input_layernorm.weight",
                    [SLOT_Q] = "self_attn.q_proj.weight",
                    [SLOT_K] = "self_attn.k_proj.weight",
                    [SLOT_V] = "self_attn.v_proj.weight",
                    [SLOT_O] = "self_attn.o_proj.weight",
                    [SLOT_Q_NORM] = "self_attn.q_norm.weight",
                    [SLOT_K_NORM] = "self_attn.k_norm.weight",
                    [SLOT_ATTENTION_POST_NORM] = "post_attention_layernorm.weight",
                    [SLOT_FFN_NORM] = "pre_feedforward_layernorm.weight",
                    [SLOT_GATE] = "mlp.gate_proj.weight",
                    [SLOT_UP] = "mlp.up_proj.weight",
                    [SLOT_DOWN] = "mlp.down_proj.weight",
                    [SLOT_FFN_POST_NORM] = "post_feedforward_layernorm.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_OUTPUT_NORM] = "norm.weight",
                   [SLOT_OUTPUT] = "lm_head.weight"},
};

static const llm_naming phi3_names = {
    .prefix = "model.",
    .layer = "layers.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "input_layernorm.weight",
                    [SLOT_QKV] = "self_attn.qkv_proj.weight",
                    [SLOT_O] = "self_attn.o_proj.weight",
                    [SLOT_FFN_NORM] = "post_attention_layernorm.weight",
                    [SLOT_UP] = "mlp.gate_up_proj.weight",
                    [SLOT_DOWN] = "mlp.down_proj.weight"},
    .head_slots = {[SLOT_EMBEDDING] = "embed_tokens.weight",
                   [SLOT_OUTPUT_NORM] = "norm.weight",
                   [SLOT_OUTPUT] = "lm_head.weight"},
};

static const llm_naming gpt2_names = {
    .prefix = "transformer.",
    .layer = "h.",
    .layer_slots = {[SLOT_ATTENTION_NORM] = "ln_1.weight",
                    [SLOT_ATTENTION_NORM_BIAS] = "ln_1.bias",
                    [SLOT_QKV] = "attn.c_attn.weight",
                    [SLOT_QKV_BIAS] = "attn.c_attn.bias",
                    [SLOT_O] = "attn.c_proj.weight",
                    [SLOT_O_BIAS] = "attn.c_proj.bias",
                    [SLOT_FFN_NORM] = "ln_2.weight",
                    [SLOT_FFN_NORM_BIAS] = "ln_2.bias",
                    [SLOT_UP] = "mlp.c_fc.weight",
                    [SLOT_UP_BIAS] = "mlp.c_fc.bias",
                    [SLOT_DOWN] = "mlp.c_proj.weight",
                    [SLOT_DOWN_BIAS] = "mlp.c_proj.bias"},
    .head_slots = {[SLOT_EMBEDDING] = "wte.weight",
                   [SLOT_POSITIONS] = "wpe.weight",
                   [SLOT_OUTPUT_NORM] = "ln_f.weight",
                   [SLOT_OUTPUT_NORM_BIAS] = "ln_f.bias",
                   [SLOT_OUTPUT] = "lm_head.weight"},
    .transposed = BIT(SLOT_QKV) | BIT(SLOT_O) | BIT(SLOT_UP) | BIT(SLOT_DOWN),
    .beside = {".attn.bias", ".attn.masked_bias"}, /* masks */
};

static const char *const llama_keys[LLM_KEYS] = {
    [KEY_LAYERS] = "num_hidden_layers",        [KEY_HIDDEN] = "hidden_size",
    [KEY_INTERMEDIATE] = "intermediate_size",  [KEY_HEADS] = "num_attention_heads",
    [KEY_CONTEXT] = "max_position_embeddings", [KEY_EPS] = "rms_norm_eps",
    [KEY_ACTIVATION] = "hidden_act",
};
static const char *const gemma_keys[LLM_KEYS] = {
    [KEY_LAYERS] = "num_hidden_layers",        [KEY_HIDDEN] = "hidden_size",
    [KEY_INTERMEDIATE] = "intermediate_size",  [KEY_HEADS] = "num_attention_heads",
    [KEY_CONTEXT] = "max_position_embeddings", [KEY_EPS] = "rms_norm_eps",
    [KEY_ACTIVATION] = "hidden_activation",
};
static const char *const gpt2_keys[LLM_KEYS] = {
    [KEY_LAYERS] = "n_layer",
    [KEY_HIDDEN] = "n_embd",
    [KEY_INTERMEDIATE] = "n_inner",
    [KEY_HEADS] = "n_head",
    [KEY_CONTEXT] = "n_positions",
    [KEY_EPS] = "layer_norm_epsilon",
    [KEY_ACTIVATION] = "activation_function",
};

/* GGUF files of the llama architecture store the rows of q and k so that rope turns neighbours; all others leave them
 * as they were trained. */
#define LLAMA_LIKE .head_needs = PLAIN_HEAD, .naming = &llama_names, .keys = llama_keys, .activation = "silu"
#define GEMMA_LIKE                                                                              \
    .in_gguf = true, .head_needs = PLAIN_HEAD, .activation = "gelu_pytorch_tanh", .tied = true, \
    .scaled_embedding = true, .norms_from_one = true
static const llm_family families[] = {
    {"llama", "Llama, Mistral, SmolLM", .in_gguf = true, .interleaved_rope = true, .needs = PLAIN_SLOTS,
     .allows = BIASES | BIT(SLOT_O_BIAS) | GATED_BIASES, LLAMA_LIKE, .experts = EXPERTS, .whole_choice = true},
    {"mistral", "Mistral", .needs = PLAIN_SLOTS, .window = 4096, LLAMA_LIKE},
    {"qwen2", "Qwen 2, Qwen 2.5", .in_gguf = true, .needs = PLAIN_SLOTS | BIASES, LLAMA_LIKE},
    {"qwen3", "Qwen 3", .in_gguf = true, .needs = PLAIN_SLOTS | NORMS, .allows = BIASES | BIT(SLOT_O_BIAS), LLAMA_LIKE},
    {"mixtral", "Mixtral", .needs = PLAIN_SLOTS, .head_needs = PLAIN_HEAD, .naming = &mixtral_names, .keys = llama_keys,
     .activation = "silu", .experts = EXPERTS, .always_mixed = true, .whole_choice = true, .base = 1e6},
    {"qwen2moe", "Qwen 2 MoE", .type = "qwen2_moe", .in_gguf = true, .needs = PLAIN_SLOTS | BIASES, LLAMA_LIKE,
     .experts = EXPERTS | SHARED, .always_mixed = true, .own_width = true},
    {"qwen3moe", "Qwen 3 MoE", .type = "qwen3_moe", .in_gguf = true, .needs = PLAIN_SLOTS | NORMS, LLAMA_LIKE,
     .experts = EXPERTS, .always_mixed = true, .own_width = true, .whole_choice = true},
    {"phi3", "Phi-3", .in_gguf = true, .needs = FUSED_SLOTS, .head_needs = PLAIN_HEAD, .naming = &phi3_names,
     .keys = llama_keys, .activation = "silu", .fused_gate = true, .window = LLM_MOST_CONTEXT},
    {"gpt2", "GPT-2", .in_gguf = true, .needs = GPT2_SLOTS,
     .head_needs = PLAIN_HEAD | BIT(SLOT_OUTPUT_NORM_BIAS) | BIT(SLOT_POSITIONS), .naming = &gpt2_names,
     .keys = gpt2_keys, .tied = true, .layer_norm = true, .activation = "gelu_new"},
    {"gemma", "Gemma", .needs = PLAIN_SLOTS, GEMMA_LIKE, .naming = &llama_names, .keys = llama_keys,
     .gelu_by_tanh = true},
    {"gemma2", "Gemma 2", .needs = PLAIN_SLOTS | POST_NORMS, GEMMA_LIKE, .naming = &gemma_names, .keys = gemma_keys,
     .window = 4096, .gguf_window = 4096, .pattern = 2, .attention_cap = 50, .final_cap = 30, .query_scale = 256,
     .wide_layers = 46},
    {"gemma3", "Gemma 3", .type = "gemma3_text", .needs = PLAIN_SLOTS | NORMS | POST_NORMS, GEMMA_LIKE,
     .naming = &gemma_names, .keys = gemma_keys, .window = 4096, .pattern = 6, .base = 1e6, .local_base = 1e4,
     .query_scale = 256, .wide_layers = 62},
};
enum { FAMILIES = sizeof families / sizeof *families };

const llm_family *tn_llm_find_family(const char *name, size_t length, bool gguf) {
    for (size_t i = 0; i < FAMILIES; i++) {
        const char *known = !gguf && families[i].type ? families[i].type : families[i].architecture;
        bool here = !gguf || families[i].in_gguf;
        if (here && strlen(known) == length && memcmp(known, name, length) == 0) return &families[i];
    }
    return NULL;
}

void tn_llm_list_families(bool gguf, char *out, size_t size) {
    out[0] = 0;
    for (size_t i = 0; i < FAMILIES; i++) {
        size_t used = strlen(out);
        if (gguf && !families[i].in_gguf) continue;
        const char *word = !gguf && families[i].type ? families[i].type : families[i].architecture;
        snprintf(out + used, size - used, "%s%s (%s)", i ? ", " : "", word, families[i].models);
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static const llm_size layer_shapes[LAYER_SLOTS][3] = {
    [SLOT_ATTENTION_NORM] = {SIZE_HIDDEN},
    [SLOT_Q] = {SIZE_QUERIES, SIZE_HIDDEN},
    [SLOT_K] = {SIZE_KEYS, SIZE_HIDDEN},
    [SLOT_V] = {SIZE_KEYS, SIZE_HIDDEN},
    [SLOT_O] = {SIZE_HIDDEN, SIZE_QUERIES},
    [SLOT_FFN_NORM] = {SIZE_HIDDEN},
    [SLOT_GATE] = {SIZE_INTERMEDIATE, SIZE_HIDDEN},
    [SLOT_UP] = {SIZE_UP, SIZE_HIDDEN},
    [SLOT_DOWN] = {SIZE_HIDDEN, SIZE_INTERMEDIATE},
    [SLOT_Q_BIAS] = {SIZE_QUERIES},
    [SLOT_K_BIAS] = {SIZE_KEYS},
    [SLOT_V_BIAS] = {SIZE_KEYS},
    [SLOT_O_BIAS] = {SIZE_HIDDEN},
    [SLOT_Q_NORM] = {SIZE_HEAD},
    [SLOT_K_NORM] = {SIZE_HEAD},
    [SLOT_QKV] = {SIZE_QKV, SIZE_HIDDEN},
    [SLOT_QKV_BIAS] = {SIZE_QKV},
    [SLOT_ATTENTION_NORM_BIAS] = {SIZE_HIDDEN},
    [SLOT_FFN_NORM_BIAS] = {SIZE_HIDDEN},
    [SLOT_GATE_BIAS] = {SIZE_INTERMEDIATE},
    [SLOT_UP_BIAS] = {SIZE_INTERMEDIATE},
    [SLOT_DOWN_BIAS] = {SIZE_HIDDEN},
    [SLOT_ATTENTION_POST_NORM] = {SIZE_HIDDEN},
    [SLOT_FFN_POST_NORM] = {SIZE_HIDDEN},
    [SLOT_ROUTER] = {SIZE_EXPERTS, SIZE_HIDDEN},
    [SLOT_EXPERT_GATE] = {SIZE_EXPERTS, SIZE_EXPERT, SIZE_HIDDEN},
    [SLOT_EXPERT_UP] = {SIZE_EXPERTS, SIZE_EXPERT, SIZE_HIDDEN},
    [SLOT_EXPERT_DOWN] = {SIZE_EXPERTS, SIZE_HIDDEN, SIZE_EXPERT},
    [SLOT_SHARED_ROUTER] = {SIZE_HIDDEN},
    [SLOT_SHARED_GATE] = {SIZE_SHARED, SIZE_HIDDEN},
    [SLOT_SHARED_UP] = {SIZE_SHARED, SIZE_HIDDEN},
    [SLOT_SHARED_DOWN] = {SIZE_HIDDEN, SIZE_SHARED},
};

static const llm_size head_shapes[HEAD_SLOTS][3] = {
    [SLOT_EMBEDDING] = {SIZE_VOCABULARY, SIZE_HIDDEN},
    [SLOT_OUTPUT_NORM] = {SIZE_HIDDEN},
    [SLOT_OUTPUT] = {SIZE_VOCABULARY, SIZE_HIDDEN},
    [SLOT_ROPE_FACTORS] = {SIZE_HALF},
    [SLOT_OUTPUT_NORM_BIAS] = {SIZE_HIDDEN},
    [SLOT_POSITIONS] = {SIZE_POSITIONS, SIZE_HIDDEN},
    [SLOT_ROPE_SHORT] = {SIZE_HALF},
    [SLOT_ROPE_LONG] = {SIZE_HALF},
};

bool tn_llm_name(const llm_naming *n, char name[LLM_NAME_SIZE], int64_t layer, int slot) {
    const char *what = layer < 0 ? n->head_slots[slot] : n->layer_slots[slot];
    if (layer < 0)
        snprintf(name, LLM_NAME_SIZE, "%s", what ? what : "");
    else
        snprintf(name, LLM_NAME_SIZE, "%s%" PRId64 ".%s", n->layer, layer, what ? what : "");
    return what != NULL;
}

bool tn_llm_expert_name(const char name[LLM_NAME_SIZE], int64_t expert, char out[LLM_NAME_SIZE]) {
    const char *star = strchr(name, '*');
    if (star) snprintf(out, LLM_NAME_SIZE, "%.*s%" PRId64 "%s", (int)(star - name), name, expert, star + 1);
    return star != NULL;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* "[3, 4]" */
typedef struct shape_text {
    char text[80];
} shape_text;

static shape_text spell(const int64_t *shape, int rank) {
    shape_text t = {"["};
    for (int d = 0; d < rank && d < 3; d++) {
        size_t used = strlen(t.text);
        snprintf(t.text + used, sizeof t.text - used, "%s%" PRId64, d ? ", " : "", shape[d]);
    }
    strcat(t.text, "]");
    return t;
}

/* alone: of an expert that has a tensor of its own; row: a vector that may be stored as one. */
static tn_status check_shape(const llm_source *s, const llm_config *c, const llm_tensor *t, const llm_size *shape,
                             bool transposed, bool alone, bool row) {
    int64_t wanted[3];
    int rank = 0;
    for (const llm_size *size = shape + alone; rank < 3 - alone && size[rank] != SIZE_ONE; rank++)
        wanted[rank] = c->size[size[transposed ? 1 - rank : rank]];
    row = row && t->rank == 2 && t->shape[0] == 1;
    bool fits = row || t->rank == rank;
    for (int d = 0; d < rank && fits; d++)
        fits = t->shape[d + row] == wanted[d];
    if (fits) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "%s: tensor '%.100s' has %d dimensions, %s; according to the metadata it must have %d, %s",
                           tn_llm_source_place(s, t).text, t->name, t->rank, spell(t->shape, t->rank).text, rank,
                           spell(wanted, rank).text);
}

/* What the model's operations take beside activations in f32. */
static bool is_weight_dtype(tn_dtype t) {
    return t < TN_DTYPE_COUNT && (t == TN_F32 || t == TN_F16 || t == TN_BF16 || tn_dtype_block(t) > 1);
}

static tn_status check_named(const llm_source *s, llm_config *c, const char *name, int64_t layer, int slot, bool needed,
                             bool alone) {
    const llm_size *shape = layer < 0 ? head_shapes[slot] : layer_shapes[slot];
    llm_tensor t = {.struct_size = sizeof t};
    tn_status status = tn_llm_source_find(s, name, &t);
    if (status != TN_OK) return needed ? status : TN_OK;
    if (!is_weight_dtype(t.dtype))
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "%s: tensor '%s' has type %s, which is not supported; use another quantization of the model",
            tn_llm_source_place(s, &t).text, name, t.dtype_name);
    bool chosen = layer >= 0 && BIT(slot) & EXPERTS & ~BIT(SLOT_ROUTER);
    c->weights_bytes += t.bytes;
    c->expert_bytes += chosen ? t.bytes : 0;
    return check_shape(s, c, &t, shape, layer >= 0 && (c->naming->transposed & BIT(slot)), alone,
                       layer >= 0 && slot == SLOT_SHARED_ROUTER);
}

static tn_status check_tensor(const llm_source *s, llm_config *c, int64_t layer, int slot, bool needed) {
    char name[LLM_NAME_SIZE], own[LLM_NAME_SIZE];
    if (!tn_llm_name(c->naming, name, layer, slot)) return TN_OK;
    if (!strchr(name, '*')) return check_named(s, c, name, layer, slot, needed, false);
    for (int64_t e = 0; e < c->size[SIZE_EXPERTS] && tn_llm_expert_name(name, e, own); e++)
        TRY(check_named(s, c, own, layer, slot, needed, true));
    return TN_OK;
}

/* Is it this name, with the number of one of the experts in place of a *? */
static bool is_spelt(const char *name, const char *spelt, int64_t experts) {
    const char *star = strchr(spelt, '*');
    char *rest, own[LLM_NAME_SIZE];
    if (!star) return strcmp(name, spelt) == 0;
    if (strncmp(name, spelt, (size_t)(star - spelt)) != 0) return false;
    int64_t expert = strtoll(name + (star - spelt), &rest, 10);
    return expert >= 0 && expert < experts && tn_llm_expert_name(spelt, expert, own) && strcmp(name, own) == 0;
}

/* The slot whose name this is; false when there is none. */
static bool find_slot(const llm_naming *n, const char *name, int64_t experts, int64_t *layer, int *slot) {
    size_t length = strlen(n->layer);
    *layer = strncmp(name, n->layer, length) == 0 ? strtoll(name + length, NULL, 10) : -1;
    int count = *layer >= 0 ? (int)LAYER_SLOTS : (int)HEAD_SLOTS;
    for (*slot = 0; *slot < count; ++*slot) {
        char spelt[LLM_NAME_SIZE];
        if (tn_llm_name(n, spelt, *layer, *slot) && is_spelt(name, spelt, experts)) return true;
    }
    return false;
}

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static bool is_beside(const llm_naming *n, const char *name) {
    for (size_t i = 0; i < sizeof n->beside / sizeof *n->beside; i++)
        if (n->beside[i] && ends_with(name, n->beside[i])) return true;
    return false;
}

/* A tied model's file may hold the embedding twice: the second one is not read. */
static bool is_spare_output(const llm_config *c, int64_t layer, int slot) {
    return c->tied && layer < 0 && slot == SLOT_OUTPUT;
}

static tn_status check_known(const llm_source *s, const llm_config *c, const llm_tensor *t, bool *counts) {
    uint32_t known = c->needs | c->allows;
    uint32_t head = c->family->head_needs | BIT(SLOT_OUTPUT);
    head |= c->rope.kind == ROPE_LONG ? (uint32_t)ROPE_TABLES : BIT(SLOT_ROPE_FACTORS);
    const char *name = s->gguf ? t->name : tn_hf_strip(&s->folder, t->name);
    int64_t layer;
    int slot;
    bool fits = find_slot(c->naming, name, c->size[SIZE_EXPERTS], &layer, &slot) && layer < c->layers;
    *counts = fits && !is_spare_output(c, layer, slot);
    if (fits && (layer < 0 ? head : known) & BIT(slot)) return TN_OK;
    if (is_beside(c->naming, name)) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "%s: tensor '%.64s' is not known in a %s model of %" PRId64
                           " layers; ignoring it could give wrong results",
                           tn_llm_source_place(s, t).text, t->name, c->family->architecture, c->layers);
}

/* Nothing in the file may go unused: it would have changed the results. Adds up bytes by type on the way. */
static tn_status refuse_unknown(const llm_source *s, llm_config *c) {
    int64_t bytes[TN_DTYPE_COUNT] = {0}, most = -1;
    for (int64_t i = 0; i < tn_llm_source_count(s); i++) {
        llm_tensor t = {.struct_size = sizeof t};
        bool counts;
        TRY(tn_llm_source_at(s, i, &t));
        TRY(check_known(s, c, &t, &counts));
        if (!counts) continue;
        int64_t elements = 1;
        for (int d = 0; d < t.rank; d++)
            elements *= t.shape[d];
        c->parameters += elements;
        bytes[t.dtype] += t.bytes;
        if (bytes[t.dtype] <= most) continue;
        most = bytes[t.dtype];
        snprintf(c->quantisation, sizeof c->quantisation, "%s", t.dtype_name);
    }
    return TN_OK;
}

static tn_status read_vocabulary(const llm_source *s, llm_config *c) {
    char name[LLM_NAME_SIZE];
    llm_tensor embedding = {.struct_size = sizeof embedding}, output = {.struct_size = sizeof output};
    tn_llm_name(c->naming, name, -1, SLOT_EMBEDDING);
    TRY(tn_llm_source_find(s, name, &embedding));
    c->size[SIZE_VOCABULARY] = embedding.rank > 0 ? embedding.shape[0] : 0;
    if (c->size[SIZE_VOCABULARY] < 1 || c->size[SIZE_VOCABULARY] > INT32_MAX)
        return tn_backend_fail(TN_ERR_FORMAT, "%s: tensor '%s' has %" PRId64 " rows; it must have one per token",
                               tn_llm_source_place(s, &embedding).text, embedding.name, c->size[SIZE_VOCABULARY]);
    tn_llm_name(c->naming, name, -1, SLOT_OUTPUT);
    if (s->gguf) c->tied = tn_llm_source_find(s, name, &output) != TN_OK;
    return TN_OK;
}

static tn_status check_tensors(const llm_source *s, llm_config *c) {
    TRY(read_vocabulary(s, c));
    uint32_t head = c->family->head_needs | (c->tied ? 0 : BIT(SLOT_OUTPUT));
    if (s->gguf && c->rope.kind == ROPE_LONG) head |= ROPE_TABLES;
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        if (!is_spare_output(c, -1, slot)) TRY(check_tensor(s, c, -1, slot, head & BIT(slot)));
    for (int64_t layer = 0; layer < c->layers; layer++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            if ((c->needs | c->allows) & BIT(slot)) TRY(check_tensor(s, c, layer, slot, c->needs & BIT(slot)));
    return refuse_unknown(s, c);
}

/* ---- mixtures of experts ----------------------------------------------------------------------------------------- */

tn_status tn_llm_set_experts(llm_config *c, const char *place, int64_t experts, int64_t choices) {
    const llm_family *f = c->family;
    c->needs = f->needs;
    c->allows = f->allows;
    if (experts == 0 && !f->always_mixed) return TN_OK;
    if (!f->experts)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s' has %" PRId64 " experts; mixture-of-experts %s models are not supported", place,
                               experts, f->architecture);
    if (experts < 1 || experts > LLM_MOST_EXPERTS || choices < 1 || choices > experts)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s' has %" PRId64 " experts and uses %" PRId64
                               " per token; it must have 1 to %d experts, and use at least one and at most all of them",
                               place, experts, choices, LLM_MOST_EXPERTS);
    c->needs = (f->needs & ~FFN_MATRICES) | f->experts;
    c->allows = f->allows & ~GATED_BIASES;
    c->size[SIZE_EXPERTS] = experts;
    c->choices = choices;
    c->whole_choice = f->whole_choice;
    return TN_OK;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

void tn_llm_set_window(llm_config *c, int64_t layer, bool slides) {
    uint8_t bit = (uint8_t)(1u << layer % 8);
    c->slides[layer / 8] = (uint8_t)(slides ? c->slides[layer / 8] | bit : c->slides[layer / 8] & ~bit);
}

void tn_llm_set_pattern(llm_config *c, int64_t pattern) {
    for (int64_t i = 0; i < c->layers; i++)
        tn_llm_set_window(c, i, pattern == 0 || i % pattern < pattern - 1);
}

int64_t tn_llm_window(const llm_config *c, int64_t layer) {
    return c->slides[layer / 8] >> layer % 8 & 1 ? c->window : 0;
}

/* ---- the configuration ------------------------------------------------------------------------------------------- */

static tn_status take_options(const llm_source *s, const tn_llm_options *options, llm_config *c) {
    static const tn_dtype caches[] = {
        [TN_LLM_CACHE_F16] = TN_F16, [TN_LLM_CACHE_BF16] = TN_BF16, [TN_LLM_CACHE_F32] = TN_F32};
    tn_llm_options o = TN_LLM_DEFAULTS;
    TRY(tn_options_read(&o, options, "language model", "tn_llm_options o = TN_LLM_DEFAULTS"));
    if (o.context < 0 || o.context > c->trained_context)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "a context of %" PRId64 " tokens is not supported; '%s' supports 1 to %" PRId64,
                               o.context, tn_llm_source_path(s), c->trained_context);
    if ((unsigned)o.cache > TN_LLM_CACHE_F32)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "language model: cache is %d; it must be one of TN_LLM_CACHE_F16, TN_LLM_CACHE_BF16, "
                               "TN_LLM_CACHE_F32",
                               (int)o.cache);
    int64_t usual = c->trained_context < LLM_DEFAULT_CONTEXT ? c->trained_context : LLM_DEFAULT_CONTEXT;
    c->context = o.context ? o.context : usual;
    c->cache = caches[o.cache];
    c->pages = (c->context + LLM_PAGE - 1) / LLM_PAGE;
    return TN_OK;
}

tn_status tn_llm_configure(llm_source *s, const tn_llm_options *options, llm_config *out) {
    *out = (llm_config){.size = {[SIZE_ONE] = 1}, .scale = TN_AUTO};
    TRY(s->gguf ? tn_llm_read_gguf(s->gguf, out) : tn_llm_read_folder(&s->folder, out));
    TRY(check_tensors(s, out));
    TRY(take_options(s, options, out));
    if (out->window >= out->context) out->window = 0; /* nothing is ever that far back */
    return TN_OK;
}

static tn_status estimate(const llm_config *c, tn_memory_estimate *out) {
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    sizes.hidden = c->size[SIZE_HIDDEN];
    sizes.intermediate = c->size[SIZE_INTERMEDIATE];
    sizes.layers = c->layers;
    sizes.vocabulary = c->size[SIZE_VOCABULARY];
    sizes.heads = c->heads;
    sizes.kv_heads = c->kv_heads;
    sizes.head_dim = c->size[SIZE_HEAD];
    sizes.sequence = c->context;
    sizes.bytes_per_cache = (double)tn_dtype_size(c->cache);
    sizes.weights_bytes = c->weights_bytes;
    sizes.tied_embeddings = c->tied;
    *out = (tn_memory_estimate){.struct_size = sizeof *out};
    return tn_estimate_inference_memory(&sizes, out);
}

/* What a folder is called, a file's general.name. */
static tn_status find_name(const llm_source *s, const char **name, int64_t *length) {
    *name = "";
    *length = 0;
    if (s->gguf && tn_gguf_get(s->gguf, "general.name"))
        return tn_gguf_get_string(s->gguf, "general.name", name, length);
    if (s->gguf) return TN_OK;
    const char *slash = strrchr(s->folder.path, '/');
    *name = slash ? slash + 1 : s->folder.path;
    *length = (int64_t)strlen(*name);
    return TN_OK;
}

tn_status tn_llm_describe(const llm_config *c, const llm_source *s, tn_llm_facts *facts) {
    const char *name;
    int64_t length;
    tn_memory_estimate memory;
    TRY(estimate(c, &memory));
    TRY(find_name(s, &name, &length));
    int64_t experts = c->choices > 0 ? c->size[SIZE_EXPERTS] : 1;
    *facts = (tn_llm_facts){
        .struct_size = sizeof *facts,
        .architecture = c->family->architecture,
        .parameters = c->parameters,
        .layers = c->layers,
        .hidden = c->size[SIZE_HIDDEN],
        .intermediate = c->size[SIZE_INTERMEDIATE],
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->size[SIZE_HEAD],
        .vocabulary = c->size[SIZE_VOCABULARY],
        .trained_context = c->trained_context,
        .context = c->context,
        .weights_bytes = memory.weights_bytes,
        .cache_bytes = memory.cache_bytes,
        .activation_bytes = memory.activation_bytes,
        .runtime_bytes = memory.runtime_bytes,
        .total_bytes = memory.total_bytes,
        .tied_embeddings = c->tied,
        .token_bytes = memory.weights_bytes - c->expert_bytes / experts * (experts - c->choices),
    };
    snprintf(facts->name, sizeof facts->name, "%.*s", (int)(length < 120 ? length : 120), name);
    snprintf(facts->quantisation, sizeof facts->quantisation, "%s", c->quantisation);
    return TN_OK;
}

tn_status tn_llm_inspect(const tn_gguf *file, const tn_llm_options *options, tn_llm_facts *facts) {
    if (!file || !facts || facts->struct_size < sizeof *facts)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_inspect: an argument is NULL or facts->struct_size is not set");
    llm_config c;
    llm_source s = {.gguf = (tn_gguf *)(uintptr_t)file}; /* which is read alone */
    TRY(tn_llm_configure(&s, options, &c));
    return tn_llm_describe(&c, &s, facts);
}

tn_status tn_llm_inspect_path(const char *path, const tn_llm_options *options, tn_llm_facts *facts) {
    if (!path || !facts || facts->struct_size < sizeof *facts)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_llm_inspect_path: an argument is NULL or facts->struct_size is not set");
    llm_config c;
    llm_source s;
    tn_status status = tn_llm_source_open(path, &s);
    if (status == TN_OK) status = tn_llm_configure(&s, options, &c);
    if (status == TN_OK) status = tn_llm_describe(&c, &s, facts);
    tn_llm_source_close(&s);
    return status;
}

/* ==== rotary frequencies ========================================================================================== */

static const double PI = 3.14159265358979323846;

static double clamp(double v, double least, double most) { return v < least ? least : v > most ? most : v; }

/* Frequencies that turn rarely within the trained context are divided, fast ones stay, those between are mixed by how
 * often they turn. Source: Llama 3.1's configuration, as transformers computes it. */
static double llama3(const llm_rope *r, double frequency) {
    double turns = r->trained * frequency / (2 * PI);
    double mix = clamp((turns - r->low) / (r->high - r->low), 0, 1);
    return (1 - mix) * frequency / r->factor + mix * frequency;
}

double tn_llm_yarn_amplitude(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }

void tn_llm_lengthen(llm_config *c) {
    double longer = c->rope.trained * c->rope.factor;
    if (longer > (double)c->trained_context && longer <= LLM_MOST_CONTEXT) c->trained_context = (int64_t)longer;
}

/* The pair, counted in halves of a head, that turns so many times within the trained context. */
static double pair_of_turns(const llm_rope *r, int64_t half, double turns) {
    return (double)half * log(r->trained / (turns * 2 * PI)) / log(r->base);
}

/* The same mixing, by the number of the frequency. Source: Peng et al. 2023, "YaRN", section 3.2. */
static double yarn(const llm_rope *r, int64_t half, int64_t i, double frequency) {
    double first = pair_of_turns(r, half, r->high), last = pair_of_turns(r, half, r->low);
    if (r->whole) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, (double)(2 * half - 1));
    if (first == last) last += 0.001;
    double slow = clamp(((double)i - first) / (last - first), 0, 1);
    return slow * frequency / r->factor + (1 - slow) * frequency;
}

void tn_llm_rope_fill(const llm_rope *r, int64_t half, const float *factors, float *out) {
    for (int64_t i = 0; i < half; i++) {
        double frequency = r->scale * pow(r->base, -(double)i / (double)half);
        if (r->kind == ROPE_LLAMA3) frequency = llama3(r, frequency);
        if (r->kind == ROPE_YARN) frequency = yarn(r, half, i, frequency);
        out[i] = (float)(factors ? frequency / (double)factors[i] : frequency);
    }
}
