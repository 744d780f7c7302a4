/* llm_gguf.c — from a GGUF file's metadata to a model's sizes, every one of them checked. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

/* "ARCHITECTURE.what", as most keys are called. */
typedef struct key_name {
    char text[96];
} key_name;

static key_name gguf_key_of(const llm_config *c, const char *what) {
    key_name k;
    snprintf(k.text, sizeof k.text, "%s.%s", c->family->architecture, what);
    return k;
}

static bool has(const tn_gguf *f, const llm_config *c, const char *what) {
    return tn_gguf_get(f, gguf_key_of(c, what).text) != NULL;
}

static tn_status out_of_range(const tn_gguf *f, const char *key, double value, double least, double most) {
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': byte %" PRId64 ": key '%s' is %g; it must lie between %g and %g",
                           tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key)), key, value, least, most);
}

static tn_status get_size(const tn_gguf *f, const llm_config *c, const char *what, int64_t most, int64_t *out) {
    key_name key = gguf_key_of(c, what);
    TRY(tn_gguf_get_int(f, key.text, out));
    return *out >= 1 && *out <= most ? TN_OK : out_of_range(f, key.text, (double)*out, 1, (double)most);
}

static tn_status get_real(const tn_gguf *f, const llm_config *c, const char *what, double least, double most,
                          double *out) {
    key_name key = gguf_key_of(c, what);
    TRY(tn_gguf_get_float(f, key.text, out));
    return *out >= least && *out <= most ? TN_OK : out_of_range(f, key.text, *out, least, most);
}

static bool text_is(const char *text, int64_t length, const char *word) {
    return (size_t)length == strlen(word) && memcmp(text, word, (size_t)length) == 0;
}

static tn_status find_family(const tn_gguf *f, llm_config *c) {
    const char *text;
    int64_t length;
    TRY(tn_gguf_get_string(f, "general.architecture", &text, &length));
    c->family = tn_llm_find_family(text, (size_t)length, true);
    if (c->family) return TN_OK;
    char known[400];
    tn_llm_list_families(true, known, sizeof known);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s': byte %" PRId64 ": the architecture '%s' is not known here; known are %s",
                           tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, "general.architecture")),
                           tn_txt_shown(text, (size_t)length).text, known);
}

/* Features that would change the results, and that no family here has. */
static tn_status refuse_features(const tn_gguf *f, const llm_config *c) {
    enum { BY_SOFTMAX = 1 };
    int64_t gate = BY_SOFTMAX;
    double scale = 1;
    if (has(f, c, "expert_gating_func")) TRY(tn_gguf_get_int(f, gguf_key_of(c, "expert_gating_func").text, &gate));
    if (has(f, c, "expert_weights_scale"))
        TRY(tn_gguf_get_float(f, gguf_key_of(c, "expert_weights_scale").text, &scale));
    if (gate == BY_SOFTMAX && (scale == 1 || scale == 0)) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s': experts are weighted by function %" PRId64 " and factor %g; only by a softmax, "
                           "without a factor, is computed here",
                           tn_gguf_path(f), gate, scale);
}

static tn_status read_experts(const tn_gguf *f, llm_config *c) {
    int64_t experts = 0, choices = 0, inner = c->size[SIZE_INTERMEDIATE];
    if (has(f, c, "expert_count")) TRY(tn_gguf_get_int(f, gguf_key_of(c, "expert_count").text, &experts));
    if (has(f, c, "expert_used_count")) TRY(tn_gguf_get_int(f, gguf_key_of(c, "expert_used_count").text, &choices));
    TRY(tn_llm_set_experts(c, tn_gguf_path(f), experts, choices));
    if (c->choices == 0) return TN_OK;
    c->size[SIZE_SHARED] = inner;
    c->size[SIZE_EXPERT] = c->family->own_width ? inner / choices : inner;
    if (has(f, c, "expert_feed_forward_length"))
        TRY(get_size(f, c, "expert_feed_forward_length", LLM_MOST_WIDTH, &c->size[SIZE_EXPERT]));
    if (has(f, c, "expert_shared_feed_forward_length"))
        TRY(get_size(f, c, "expert_shared_feed_forward_length", LLM_MOST_WIDTH, &c->size[SIZE_SHARED]));
    return TN_OK;
}

/* keys and values of a head have one length, and rope turns all of it. */
static tn_status read_head_dim(const tn_gguf *f, llm_config *c) {
    int64_t hidden = c->size[SIZE_HIDDEN], *head = &c->size[SIZE_HEAD];
    if (has(f, c, "attention.key_length")) {
        TRY(get_size(f, c, "attention.key_length", LLM_MOST_WIDTH, head));
    } else if (hidden % c->heads == 0) {
        *head = hidden / c->heads;
    } else {
        key_name key = gguf_key_of(c, "attention.head_count");
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': byte %" PRId64 ": %" PRId64 " heads do not divide a width of %" PRId64,
                               tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key.text)), c->heads, hidden);
    }
    const char *const equal[] = {"attention.value_length", "rope.dimension_count"};
    for (int i = 0; i < 2; i++) {
        int64_t other = *head;
        if (has(f, c, equal[i])) TRY(get_size(f, c, equal[i], LLM_MOST_WIDTH, &other));
        if (other != *head)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': byte %" PRId64 ": key '%s' is %" PRId64 " where the heads are %" PRId64
                                   " wide; only equal lengths are computed here",
                                   tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, gguf_key_of(c, equal[i]).text)),
                                   gguf_key_of(c, equal[i]).text, other, *head);
    }
    if (*head % 2 == 0) return TN_OK;
    key_name key = gguf_key_of(c, has(f, c, "attention.key_length") ? "attention.key_length" : "attention.head_count");
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': byte %" PRId64 ": key '%s' makes heads %" PRId64
                           " wide; rope turns pairs, so it must be an even number",
                           tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key.text)), key.text, *head);
}

static tn_status read_heads(const tn_gguf *f, llm_config *c) {
    TRY(get_size(f, c, "attention.head_count", LLM_MOST_HEADS, &c->heads));
    c->kv_heads = c->heads;
    if (has(f, c, "attention.head_count_kv"))
        TRY(get_size(f, c, "attention.head_count_kv", LLM_MOST_HEADS, &c->kv_heads));
    if (c->heads % c->kv_heads != 0)
        return tn_backend_fail(
            TN_ERR_FORMAT,
            "'%s': byte %" PRId64 ": %" PRId64 " heads cannot share %" PRId64 " heads of keys and values",
            tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, gguf_key_of(c, "attention.head_count_kv").text)), c->heads,
            c->kv_heads);
    TRY(read_head_dim(f, c));
    c->size[SIZE_HALF] = c->size[SIZE_HEAD] / 2;
    c->size[SIZE_QUERIES] = c->heads * c->size[SIZE_HEAD];
    c->size[SIZE_KEYS] = c->kv_heads * c->size[SIZE_HEAD];
    c->size[SIZE_QKV] = c->size[SIZE_QUERIES] + 2 * c->size[SIZE_KEYS];
    return TN_OK;
}

static tn_status read_real(const tn_gguf *f, const llm_config *c, const char *what, double usual, double most,
                           double *out) {
    *out = usual;
    return has(f, c, what) ? get_real(f, c, what, 1e-6, most, out) : TN_OK;
}

/* What llama.cpp's keys say; the trained length is the model's own where they do not. */
static tn_status read_yarn(const tn_gguf *f, llm_config *c) {
    llm_rope *r = &c->rope;
    r->kind = ROPE_YARN;
    r->whole = true;
    TRY(get_real(f, c, "rope.scaling.factor", 1, 1e6, &r->factor));
    TRY(read_real(f, c, "rope.scaling.yarn_beta_fast", 32, 1e6, &r->high));
    TRY(read_real(f, c, "rope.scaling.yarn_beta_slow", 1, 1e6, &r->low));
    r->amplitude *= tn_llm_yarn_amplitude(r->factor, 1);
    tn_llm_lengthen(c);
    return TN_OK;
}

static tn_status read_linear(const tn_gguf *f, llm_config *c) {
    double factor = 1;
    TRY(get_real(f, c, "rope.scaling.factor", 1e-3, 1e6, &factor));
    c->rope.scale = 1 / factor;
    return TN_OK;
}

/* Phi-3's files have the tables of longrope, and do not always name it. */
static bool has_tables(const tn_gguf *f) {
    tn_gguf_info info = {.struct_size = sizeof info};
    return tn_gguf_find(f, tn_llm_gguf_names.head_slots[SLOT_ROPE_LONG], &info) == TN_OK;
}

static tn_status read_rope_scaling(const tn_gguf *f, llm_config *c) {
    static const char *const other[] = {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
                                        "rope.scaling.yarn_log_multiplier", "rope.scaling.alpha"};
    const char *type = has(f, c, "rope.scaling.factor") ? "linear" : "none"; /* of files from before there were types */
    int64_t length = (int64_t)strlen(type);
    key_name key = gguf_key_of(c, "rope.scaling.type");
    TRY(read_real(f, c, "rope.scaling.attn_factor", 1, 1e6, &c->rope.amplitude));
    TRY(read_real(f, c, "rope.scaling.original_context_length", (double)c->trained_context, LLM_MOST_CONTEXT,
                  &c->rope.trained));
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (has(f, c, other[i]))
            return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': byte %" PRId64 ": '%s' is not computed here",
                                   tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, gguf_key_of(c, other[i]).text)),
                                   gguf_key_of(c, other[i]).text);
    if (tn_gguf_get(f, key.text)) TRY(tn_gguf_get_string(f, key.text, &type, &length));
    if (text_is(type, length, "longrope") || has_tables(f)) {
        c->rope.kind = ROPE_LONG;
        return TN_OK;
    }
    if (text_is(type, length, "none")) return TN_OK;
    if (text_is(type, length, "linear")) return read_linear(f, c);
    if (text_is(type, length, "yarn")) return read_yarn(f, c);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s': byte %" PRId64 ": rope scaling of type '%s' is not computed here; linear, yarn and "
                           "longrope are",
                           tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key.text)),
                           tn_txt_shown(type, (size_t)length).text);
}

/* ---- windows, caps ----------------------------------------------------------------------------------------------- */

/* Which layers have a window: a number, or a word a layer. */
static tn_status read_pattern(const tn_gguf *f, llm_config *c) {
    int64_t pattern = c->family->pattern;
    key_name key = gguf_key_of(c, "attention.sliding_window_pattern");
    const tn_gguf_value *list = tn_gguf_get(f, key.text);
    if (!list || pattern == 0 || tn_gguf_type_of(list) != TN_GGUF_ARRAY) {
        if (list && pattern > 0) TRY(get_size(f, c, "attention.sliding_window_pattern", LLM_MOST_LAYERS, &pattern));
        tn_llm_set_pattern(c, pattern);
        return TN_OK;
    }
    if (tn_gguf_length(list) < c->layers)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': byte %" PRId64 ": key '%s' has %" PRId64 " elements for %" PRId64 " layers",
                               tn_gguf_path(f), tn_gguf_offset(list), key.text, tn_gguf_length(list), c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides;
        TRY(tn_gguf_bool(list, i, &slides));
        tn_llm_set_window(c, i, slides);
    }
    return TN_OK;
}

static tn_status read_window(const tn_gguf *f, llm_config *c) {
    const char *key = "attention.sliding_window";
    c->window = c->family->gguf_window;
    if (has(f, c, key)) TRY(get_size(f, c, key, LLM_MOST_CONTEXT, &c->window));
    return read_pattern(f, c);
}

/* Caps, the scale of scores, and a rope of layers with a window. */
static tn_status read_gemma(const tn_gguf *f, llm_config *c) {
    const llm_family *of = c->family;
    if (of->query_scale == 0) return TN_OK;
    TRY(read_real(f, c, "attn_logit_softcapping", of->attention_cap, 1e6, &c->attention_cap));
    TRY(read_real(f, c, "final_logit_softcapping", of->final_cap, 1e6, &c->final_cap));
    if (c->layers == of->wide_layers) c->scale = sqrt((double)c->heads / (double)c->size[SIZE_HIDDEN]);
    c->local_rope = of->local_base > 0 ? (llm_rope){.base = of->local_base, .scale = 1, .amplitude = 1} : c->rope;
    c->two_ropes = of->local_base > 0 || has(f, c, "rope.freq_base_swa");
    return read_real(f, c, "rope.freq_base_swa", c->local_rope.base, 1e12, &c->local_rope.base);
}

static tn_status read_sizes_gguf(const tn_gguf *f, llm_config *c) {
    TRY(get_size(f, c, "block_count", LLM_MOST_LAYERS, &c->layers));
    TRY(get_size(f, c, "embedding_length", LLM_MOST_WIDTH, &c->size[SIZE_HIDDEN]));
    TRY(get_size(f, c, "feed_forward_length", LLM_MOST_WIDTH, &c->size[SIZE_INTERMEDIATE]));
    c->size[SIZE_UP] = c->size[SIZE_INTERMEDIATE] * (c->family->fused_gate ? 2 : 1);
    TRY(read_experts(f, c));
    TRY(get_size(f, c, "context_length", LLM_MOST_CONTEXT, &c->trained_context));
    TRY(read_heads(f, c));
    c->size[SIZE_POSITIONS] = c->trained_context;
    const char *eps = c->family->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    TRY(get_real(f, c, eps, 1e-12, 1, &c->eps));
    c->rope = (llm_rope){.base = 10000, .scale = 1, .amplitude = 1};
    if (has(f, c, "rope.freq_base")) TRY(get_real(f, c, "rope.freq_base", 1, 1e12, &c->rope.base));
    TRY(read_rope_scaling(f, c));
    TRY(read_window(f, c));
    return read_gemma(f, c);
}

static bool has_experts_apart(const tn_gguf *f) {
    tn_gguf_info info = {.struct_size = sizeof info};
    return tn_gguf_find(f, "blk.0.ffn_gate.0.weight", &info) == TN_OK;
}

tn_status tn_llm_read_gguf(const tn_gguf *f, llm_config *c) {
    TRY(find_family(f, c));
    TRY(refuse_features(f, c));
    c->naming = has_experts_apart(f) ? &tn_llm_gguf_apart : &tn_llm_gguf_names;
    c->interleaved_rope = c->family->interleaved_rope;
    c->activation = tn_txt_activation(c->family->activation);
    return read_sizes_gguf(f, c);
}
