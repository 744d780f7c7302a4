/* llm_folder.c — a language model's sizes from a folder's config.json, checked; llm_gguf.c reads GGUF files. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

/* A model with pictures or speech has its language model's configuration in an object of its own. */
static void enter_text_config(hf_folder *f) {
    const tn_json *text = tn_json_get(tn_json_root(f->doc), "text_config");
    if (!text) text = tn_json_get(tn_json_get(tn_json_root(f->doc), "thinker_config"), "text_config"); /* Qwen Omni */
    f->config = tn_json_kind_of(text) == TN_JSON_OBJECT ? text : tn_json_root(f->doc);
}

static bool has_text_config(const hf_folder *f) { return f->config != tn_json_root(f->doc); }

/* Models that other functions open. */
static const struct {
    const char *type, *by;
} others[] = {{"whisper", "tn_speech_open (trunnion transcribe)"}, {"t5", "tn_seq2seq_open (trunnion generate)"},
              {"mt5", "tn_seq2seq_open (trunnion generate)"},      {"umt5", "tn_seq2seq_open (trunnion generate)"},
              {"bart", "tn_seq2seq_open (trunnion generate)"},     {"mbart", "tn_seq2seq_open (trunnion generate)"},
              {"marian", "tn_seq2seq_open (trunnion generate)"},   {"pegasus", "tn_seq2seq_open (trunnion generate)"},
              {"m2m_100", "tn_seq2seq_open (trunnion generate)"}};

static tn_status find_family(const hf_folder *f, llm_config *c) {
    const char *type = tn_hf_text(f, "model_type", "");
    c->family = tn_llm_find_family(type, strlen(type), false);
    if (c->family) return TN_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].type, type) == 0)
            return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "a model of type '%s' is not a decoder; use %s", type,
                              others[i].by);
    char known[LLM_LIST_SIZE];
    tn_llm_list_families(false, known, sizeof known);
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                      "the model_type '%s' is not a supported language model; supported are %s",
                      tn_txt_shown(type, strlen(type)).text, known);
}

tn_status tn_llm_refuse(const hf_folder *f, const char *key, const char *value) {
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'%s' is %s, which is not supported", key, value);
}

/* Features that would change the results. */
static tn_status refuse_features(const hf_folder *f) {
    static const char *const keys[] = {"scale_attn_by_inverse_layer_idx", "add_cross_attention", "clip_qkv", "alibi"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        TRY(tn_hf_refuse(f, keys[i]));
    const tn_json *scaled = tn_json_get(f->config, "scale_attn_weights");
    if (tn_json_bool(scaled, true)) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'scale_attn_weights' is false, which is not supported");
}

/* ---- rope -------------------------------------------------------------------------------------------------------- */

/* Older files have rope_theta and rope_scaling, newer ones both in rope_parameters, perhaps by kinds of layers. */
const tn_json *tn_llm_rope_of(const hf_folder *f, const char *layers) {
    const tn_json *o = tn_json_get(f->config, "rope_parameters"), *own = tn_json_get(o, layers);
    if (tn_json_kind_of(own) == TN_JSON_OBJECT) return own;
    return tn_json_kind_of(o) == TN_JSON_OBJECT ? o : tn_json_get(f->config, "rope_scaling");
}

static tn_status read_llama3(const hf_folder *f, const tn_json *o, llm_rope *r) {
    r->kind = ROPE_LLAMA3;
    TRY(tn_hf_real(f, o, "factor", NAN, 1, 1e6, &r->factor));
    TRY(tn_hf_real(f, o, "low_freq_factor", NAN, 1e-6, 1e6, &r->low));
    TRY(tn_hf_real(f, o, "high_freq_factor", NAN, 1e-6, 1e6, &r->high));
    TRY(tn_hf_real(f, o, "original_max_position_embeddings", NAN, 1, LLM_MOST_CONTEXT, &r->trained));
    if (r->high > r->low) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT, "'high_freq_factor' must be greater than 'low_freq_factor'");
}

static tn_status read_yarn(const hf_folder *f, const tn_json *o, llm_config *c) {
    llm_rope *r = &c->positions.rope;
    double all, part;
    r->kind = ROPE_YARN;
    TRY(tn_hf_real(f, o, "factor", NAN, 1, 1e6, &r->factor));
    TRY(tn_hf_real(f, o, "original_max_position_embeddings", (double)c->trained_context, 1, LLM_MOST_CONTEXT,
                   &r->trained));
    TRY(tn_hf_real(f, o, "beta_fast", 32, 1e-6, 1e6, &r->high));
    TRY(tn_hf_real(f, o, "beta_slow", 1, 1e-6, 1e6, &r->low));
    TRY(tn_hf_real(f, o, "mscale", 0, 0, 1e6, &part));
    TRY(tn_hf_real(f, o, "mscale_all_dim", 0, 0, 1e6, &all));
    bool both = part > 0 && all > 0;
    double usual = both ? tn_llm_yarn_amplitude(r->factor, part) / tn_llm_yarn_amplitude(r->factor, all)
                        : tn_llm_yarn_amplitude(r->factor, 1);
    TRY(tn_hf_real(f, o, "attention_factor", usual, 1e-6, 1e6, &r->amplitude));
    r->whole = tn_json_bool(tn_json_get(o, "truncate"), true);
    TRY(tn_hf_real(f, o, "llama_4_scaling_beta", 0, 0, 1e6, &c->attention.late_scale));
    tn_llm_lengthen(c);
    return TN_OK;
}

/* A list of config.json by which frequencies are divided. */
tn_status tn_llm_rope_list(const hf_folder *f, const char *key, int64_t count, float *out) {
    const tn_json *list = tn_json_get(tn_llm_rope_of(f, "full_attention"), key);
    bool fits = tn_json_kind_of(list) == TN_JSON_ARRAY && tn_json_length(list) == (size_t)count;
    for (int64_t i = 0; i < count && fits; i++) {
        double v = tn_json_number(tn_json_at(list, (size_t)i), 0);
        fits = v >= 1e-6 && v <= 1e6;
        if (out) out[i] = (float)v;
    }
    if (fits) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "'%s' must be a list of %" PRId64 " numbers greater than 0, one for each pair of rope", key,
                      count);
}

/* Source: Ding et al. 2024, "LongRoPE", as transformers computes it. */
static tn_status read_longrope(const hf_folder *f, const tn_json *o, llm_config *c) {
    llm_rope *r = &c->positions.rope;
    double context = (double)c->trained_context;
    r->kind = ROPE_LONG;
    TRY(tn_hf_real(f, f->config, "original_max_position_embeddings", context, 1, LLM_MOST_CONTEXT, &r->trained));
    TRY(tn_hf_real(f, o, "original_max_position_embeddings", r->trained, 1, LLM_MOST_CONTEXT, &r->trained));
    TRY(tn_hf_real(f, o, "factor", context / r->trained, 1e-6, 1e6, &r->factor));
    double usual = r->factor <= 1 || r->trained <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->trained));
    TRY(tn_hf_real(f, o, "attention_factor", usual, 1e-6, 1e6, &r->amplitude));
    TRY(tn_hf_real(f, o, "short_mscale", r->amplitude, 1e-6, 1e6, &r->amplitude)); /* Phi-3.5-MoE */
    if (tn_json_number(tn_json_get(o, "long_mscale"), r->amplitude) != r->amplitude)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "'long_mscale' and 'short_mscale' differ, which is not supported");
    TRY(tn_llm_rope_list(f, "short_factor", c->size[SIZE_HALF], NULL));
    return tn_llm_rope_list(f, "long_factor", c->size[SIZE_HALF], NULL);
}

/* rope_type proportional (Gemma 4): only the first pairs of a head are rotated, but frequencies are computed as if all
 * were. */
static tn_status read_proportional(const hf_folder *f, const tn_json *o, const llm_config *c, llm_rope *r) {
    double part, usual = tn_json_kind_of(o) == TN_JSON_OBJECT ? 1 : c->family->positions.wide_part;
    r->kind = ROPE_PROPORTIONAL;
    TRY(tn_hf_real(f, o, "factor", 1, 1e-3, 1e6, &r->factor));
    TRY(tn_hf_real(f, o, "partial_rotary_factor", usual, 0, 1, &part));
    int64_t wide = c->attention.wide_head;
    r->high = floor(part * (double)(wide > 0 ? wide / 2 : c->size[SIZE_HALF]));
    return TN_OK;
}

static tn_status read_linear(const hf_folder *f, const tn_json *o, llm_rope *r) {
    TRY(tn_hf_real(f, o, "factor", NAN, 1e-3, 1e6, &r->factor));
    r->scale = 1 / r->factor;
    return TN_OK;
}

/* How many pairs of a head rope rotates: of all of it, or of a part in front. */
static tn_status read_part(const hf_folder *f, llm_config *c) {
    int64_t head = c->size[SIZE_HEAD], width = head;
    double part = c->family->positions.part;
    if (part > 0) { /* transformers reads these keys in no other family */
        TRY(tn_hf_real(f, f->config, "rotary_pct", part, 0, 1, &part));
        TRY(tn_hf_real(f, f->config, "partial_rotary_factor", part, 0, 1, &part));
        TRY(tn_hf_real(f, tn_llm_rope_of(f, "full_attention"), "partial_rotary_factor", part, 0, 1, &part));
    }
    if (c->family->positions.part > 0 && part < 1) width = (int64_t)((double)head * part);
    TRY(tn_hf_size(f, "rotary_dim", width, head, &width)); /* GPT-J */
    c->size[SIZE_HALF] = width / 2;
    if (width >= 2 && width % 2 == 0) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "rope applies to %" PRId64 " of the %" PRId64
                      " elements of a head; the number must be even and at least 2, because rope rotates pairs",
                      width, head);
}

/* Layers without rope: a list, or one in every n (SmolLM 3); or those without a window. */
static void read_unrotated(const hf_folder *f, llm_config *c) {
    const tn_json *list = tn_json_get(f->config, "no_rope_layers");
    int64_t step = tn_json_int(tn_json_get(f->config, "no_rope_layer_interval"), 4);
    bool smollm3 = strcmp(c->family->architecture, "smollm3") == 0 || c->attention.late_step > 0,
         listed = tn_json_kind_of(list) == TN_JSON_ARRAY;
    for (int64_t i = 0; i < c->layers; i++) {
        if (c->family->positions.in_windows && c->attention.window > 0) tn_llm_set_rope(c, i, tn_llm_slides(c, i));
        if (!smollm3) continue;
        bool rotates = step < 1 || (i + 1) % step != 0;
        tn_llm_set_rope(c, i, listed ? tn_json_int(tn_json_at(list, (size_t)i), 1) != 0 : rotates);
    }
}

static tn_status read_alpha(const hf_folder *f, const tn_json *o, llm_config *c) {
    double alpha, width = 2 * (double)c->size[SIZE_HALF];
    TRY(tn_hf_real(f, o, "alpha", 0, 0, 1e9, &alpha));
    if (alpha > 0 && width > 2) c->positions.rope.base *= pow(alpha, width / (width - 2));
    return TN_OK;
}

static tn_status read_rope(const hf_folder *f, llm_config *c) {
    const tn_json *o = tn_llm_rope_of(f, "full_attention");
    bool unsaid = tn_json_kind_of(o) != TN_JSON_OBJECT && c->family->positions.wide_part > 0;
    const char *type = tn_json_string(tn_json_get(o, "type"), unsaid ? "proportional" : "default");
    type = tn_json_string(tn_json_get(o, "rope_type"), type);
    double base = c->family->positions.base > 0 ? c->family->positions.base : 10000;
    c->positions.rope = (llm_rope){.scale = c->family->positions.backwards ? -1 : 1, .amplitude = 1};
    TRY(tn_hf_real(f, f->config, "rotary_emb_base", base, 1.0001, 1e12,
                   &base)); /* older words of GPT-NeoX, ModernBERT */
    TRY(tn_hf_real(f, f->config, "global_rope_theta", base, 1.0001, 1e12, &base));
    TRY(tn_hf_real(f, f->config, "rope_theta", base, 1.0001, 1e12, &c->positions.rope.base));
    TRY(tn_hf_real(f, o, "rope_theta", c->positions.rope.base, 1.0001, 1e12, &c->positions.rope.base));
    if (c->family->positions.explicit_rope && tn_json_kind_of(o) != TN_JSON_OBJECT)
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "there is no 'rope_parameters', which %s models must have",
                          c->family->architecture);
    if (strcmp(type, "default") == 0) return TN_OK;
    if (c->family->positions.backwards)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "rope type '%s' is not supported in %s models",
                          tn_txt_shown(type, strlen(type)).text, c->family->architecture);
    if (strcmp(type, "mrope") == 0) return TN_OK; /* in texts, all three positions of a token are the same */
    /* Another base past the trained context, where no text may reach; with Hunyuan's alpha another one everywhere. */
    if (strcmp(type, "dynamic") == 0 || strcmp(type, "ntk_alpha") == 0 || strcmp(type, "xdrope") == 0)
        return read_alpha(f, o, c);
    if (strcmp(type, "linear") == 0) return read_linear(f, o, &c->positions.rope);
    if (strcmp(type, "proportional") == 0 && c->family->positions.part == 0)
        return read_proportional(f, o, c, &c->positions.rope);
    if (strcmp(type, "llama3") == 0) return read_llama3(f, o, &c->positions.rope);
    if (strcmp(type, "yarn") == 0) return read_yarn(f, o, c);
    if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) return read_longrope(f, o, c); /* su: its old name */
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                      "rope type '%s' is not supported; default, dynamic, linear, llama3, yarn and longrope are",
                      tn_txt_shown(type, strlen(type)).text);
}

/* That of layers with a window, where it is another one. */
static tn_status read_local_rope(const hf_folder *f, llm_config *c) {
    const tn_json *both = tn_json_get(f->config, "rope_parameters"), *o = tn_json_get(both, "sliding_attention");
    bool told = tn_json_kind_of(o) == TN_JSON_OBJECT || c->family->positions.plain_local;
    double base = c->family->positions.local_base > 0 ? c->family->positions.local_base : c->positions.rope.base;
    const char *type = tn_json_string(tn_json_get(o, "rope_type"), "default");
    if (!told && c->family->positions.local_base == 0) return TN_OK;
    if (strcmp(type, "default") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "rope type '%s' is not supported in sliding-window layers",
                          tn_txt_shown(type, strlen(type)).text);
    c->positions.two_ropes = true;
    c->positions.local_rope = (llm_rope){.scale = 1, .amplitude = 1};
    TRY(tn_hf_real(f, f->config, "rope_local_base_freq", base, 1.0001, 1e12, &base));
    TRY(tn_hf_real(f, f->config, "local_rope_theta", base, 1.0001, 1e12, &base));
    return tn_hf_real(f, o, "rope_theta", base, 1.0001, 1e12, &c->positions.local_rope.base);
}

/* ---- sliding windows --------------------------------------------------------------------------------------------- */

tn_status tn_llm_read_layer_types(const hf_folder *f, const tn_json *types, llm_config *c) {
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = tn_json_string(tn_json_at(types, (size_t)i), "");
        bool slides = strcmp(type, "sliding_attention") == 0;
        if (tn_llm_is_recurrent(c, i)) continue;
        if (!slides && strcmp(type, "full_attention") != 0)
            return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                              "layer %" PRId64 " has the type '%s', which is not supported", i,
                              tn_txt_shown(type, strlen(type)).text);
        tn_llm_set_window(c, i, slides);
    }
    return TN_OK;
}

tn_status tn_llm_read_window(const hf_folder *f, llm_config *c) {
    const tn_json *given = tn_json_get(f->config, "sliding_window"), *types = tn_json_get(f->config, "layer_types");
    bool used = tn_json_bool(tn_json_get(f->config, "use_sliding_window"), c->family->attention.window > 0);
    if (!used || (given && tn_json_kind_of(given) == TN_JSON_NULL)) return TN_OK;
    const char *key = tn_hf_has(f, "attention_window_size") ? "attention_window_size" : "sliding_window";
    TRY(tn_hf_size(f, key, c->family->attention.window > 0 ? c->family->attention.window : -1, LLM_MOST_CONTEXT,
                   &c->attention.window));
    if (tn_json_kind_of(types) == TN_JSON_ARRAY) return tn_llm_read_layer_types(f, types, c);
    int64_t pattern = c->family->attention.pattern;
    if (pattern > 0) TRY(tn_hf_size(f, "sliding_window_pattern", pattern, LLM_MOST_LAYERS, &pattern));
    tn_llm_set_pattern(c, pattern);
    int64_t from = c->family->attention.window > 0 ? 0 : tn_json_int(tn_json_get(f->config, "max_window_layers"), 0);
    for (int64_t i = 0; i < c->layers && i < from; i++)
        tn_llm_set_window(c, i, false);
    return TN_OK;
}

/* ---- caps -------------------------------------------------------------------------------------------------------- */

/* null: no such value. */
tn_status tn_llm_read_cap(const hf_folder *f, const char *key, double usual, double *out) {
    const tn_json *v = tn_json_get(f->config, key);
    if (v && tn_json_kind_of(v) == TN_JSON_NULL) return TN_OK;
    return tn_hf_real(f, f->config, key, usual, 1e-6, 1e6, out);
}

static tn_status read_gemma(const hf_folder *f, llm_config *c) {
    double scale;
    if (c->family->attention.query_scale == 0) return TN_OK;
    if (c->family->attention.cap > 0)
        TRY(tn_llm_read_cap(f, "attn_logit_softcapping", c->family->attention.cap, &c->attention.cap));
    TRY(tn_llm_read_cap(f, "final_logit_softcapping", c->family->final_cap, &c->scales.final_cap));
    TRY(tn_hf_real(f, f->config, "query_pre_attn_scalar", c->family->attention.query_scale, 1e-6, 1e6, &scale));
    c->attention.scale = 1 / sqrt(scale);
    return TN_OK;
}

/* ---- multipliers ------------------------------------------------------------------------------------------------- */

/* Granite's, HyperCLOVA X's and Cohere's. */
static tn_status read_scales(const hf_folder *f, llm_config *c) {
    double divisor;
    bool granite = strncmp(c->family->architecture, "granite", 7) == 0;
    bool hyperclovax = strcmp(c->family->architecture, "hyperclovax") == 0;
    if (c->family->scaled_embedding) c->scales.embedding = sqrt((double)c->size[SIZE_HIDDEN]);
    if (strncmp(c->family->architecture, "cohere", 6) == 0)
        return tn_hf_real(f, f->config, "logit_scale", 0.0625, 1e-6, 1e6, &c->scales.logits);
    if (!granite && !hyperclovax) return TN_OK;
    TRY(tn_hf_real(f, f->config, "embedding_multiplier", 1, 1e-6, 1e6, &c->scales.embedding));
    TRY(tn_hf_real(f, f->config, "residual_multiplier", 1, 1e-6, 1e6, &c->scales.residual));
    if (granite || tn_hf_has(f, "attention_multiplier"))
        TRY(tn_hf_real(f, f->config, "attention_multiplier", 1, 1e-6, 1e6, &c->attention.scale));
    TRY(tn_hf_real(f, f->config, "logits_scaling", 1, 1e-6, 1e6, &divisor));
    c->scales.logits = hyperclovax ? divisor : 1 / divisor;
    return TN_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* null is false, as in Python. */
bool tn_llm_flag(const hf_folder *f, const char *key, bool usual) {
    const tn_json *v = tn_json_get(f->config, key);
    return tn_json_bool(v, usual && !(v && tn_json_kind_of(v) == TN_JSON_NULL));
}

/* The family's word, or the one of older files (EXAONE 3, Nemotron-H) where these have that. */
static const char *word_of(const hf_folder *f, const llm_config *c, llm_key key) {
    static const char *const older[LLM_KEYS] = {[KEY_LAYERS] = "num_layers",
                                                [KEY_EPS] = "layer_norm_epsilon",
                                                [KEY_ACTIVATION] = "activation_function",
                                                [KEY_HEAD_DIM] = "attention_head_dim"};
    const char *word = c->family->keys[key];
    bool is_old = *word && older[key] && !tn_hf_has(f, word) && tn_hf_has(f, older[key]);
    return is_old ? older[key] : word;
}

/* A size from config.json; its default is the family's, else `usual`; `usual` < 0: it is required. */
static tn_status read_size(const hf_folder *f, const llm_config *c, llm_key key, int64_t usual, int64_t most,
                           int64_t *out) {
    const int64_t *known = c->family->usual;
    bool given = known && known[key] > 0;
    const tn_json *list = tn_json_get(f->config, word_of(f, c, key));
    if (tn_json_kind_of(list) != TN_JSON_ARRAY)
        return tn_hf_size(f, word_of(f, c, key), given ? known[key] : usual, most, out);
    *out = tn_json_int(tn_json_at(list, 0), 0);
    bool fits = *out >= 1 && *out <= most;
    for (size_t i = 0; i < tn_json_length(list); i++)
        fits = fits && tn_json_int(tn_json_at(list, i), 0) == *out;
    return fits ? TN_OK : tn_llm_refuse(f, word_of(f, c, key), "not one number from 1 on for all layers");
}

void tn_llm_set_head_sizes(llm_config *c) {
    int64_t head = c->size[SIZE_HEAD];
    bool all = c->family->norms.heads == HEAD_NORM_ALL, each = c->family->norms.heads == HEAD_NORM_EACH;
    c->size[SIZE_QUERIES] = c->attention.heads * head;
    c->size[SIZE_KEYS] = c->attention.kv_heads * head;
    c->size[SIZE_QKV] = c->size[SIZE_QUERIES] + 2 * c->size[SIZE_KEYS];
    c->size[SIZE_Q_NORM] = all ? c->size[SIZE_QUERIES] : each ? c->attention.heads : head;
    c->size[SIZE_K_NORM] = all ? c->size[SIZE_KEYS] : each ? c->attention.kv_heads : head;
    c->size[SIZE_NORM_WIDTH] = each ? head : 0;
    c->size[SIZE_MIXED] = c->size[SIZE_QUERIES];
    c->size[SIZE_HEADS] = c->attention.heads;
    c->size[SIZE_ASK] = c->size[SIZE_QUERIES] * (c->family->attention.gated_queries ? 2 : 1);
    if (c->size[SIZE_GATES] == 0) c->size[SIZE_GATES] = c->size[SIZE_QUERIES];
}

/* Stretched by yarn, scores are larger by the square of its factor. all: "mscale_all_dim". */
void tn_llm_set_latent_scale(llm_config *c, double all) {
    double by = all > 0 ? tn_llm_yarn_amplitude(c->positions.rope.factor, all) : 1;
    c->attention.scale = by * by / sqrt((double)c->size[SIZE_HEAD]);
}

int64_t tn_llm_latent_rows(int64_t plain, int64_t values) {
    return values == 0 ? plain : tn_llm_latent_rows(values, plain % values);
}

/* A token's latent vector is repeated for each part of the values' matrix. */
tn_status tn_llm_check_latent_sizes(const char *path, const llm_config *c) {
    enum { MOST_PARTS = 16 };
    int64_t plain = c->size[SIZE_PLAIN], values = c->size[SIZE_VALUE];
    if (values <= MOST_PARTS * tn_llm_latent_rows(plain, values)) return TN_OK;
    return tn_hf_fail(path, TN_ERR_UNSUPPORTED,
                      "keys of %" PRId64 " elements without rope and values of %" PRId64
                      " must have a common divisor of at least 1/%d of the values",
                      plain, values, MOST_PARTS);
}

void tn_llm_set_latent_sizes(llm_config *c, int64_t rope, int64_t plain, int64_t values) {
    c->attention.kv_heads = c->attention.heads;
    c->size[SIZE_HEAD] = rope + plain;
    c->size[SIZE_HALF] = rope / 2;
    tn_llm_set_head_sizes(c);
    c->size[SIZE_PLAIN] = plain;
    c->size[SIZE_VALUE] = values;
    c->size[SIZE_MIXED] = c->attention.heads * values;
    c->size[SIZE_KV_DOWN] = c->size[SIZE_KV_RANK] + rope;
    c->size[SIZE_KV_UP] = c->attention.heads * (plain + values);
    tn_llm_set_latent_scale(c, 0);
}

/* Latent attention: a head has a part that rope rotates and one that it does not; each head has keys of its own. */
static tn_status read_latent(const hf_folder *f, llm_config *c) {
    int64_t rope, plain, values;
    TRY(read_size(f, c, KEY_HEADS, -1, LLM_MOST_HEADS, &c->attention.heads));
    TRY(tn_hf_size(f, "qk_rope_head_dim", -1, LLM_MOST_WIDTH, &rope));
    TRY(tn_hf_size(f, "qk_nope_head_dim", -1, LLM_MOST_WIDTH, &plain));
    TRY(tn_hf_size(f, "v_head_dim", -1, LLM_MOST_WIDTH, &values));
    TRY(tn_hf_size(f, "kv_lora_rank", -1, LLM_MOST_WIDTH, &c->size[SIZE_KV_RANK]));
    tn_llm_set_latent_sizes(c, rope, plain, values);
    int64_t width = tn_json_int(tn_json_get(f->config, "head_dim"), rope); /* of rope, in transformers */
    bool other = strcmp(c->family->architecture, "sarvam_mla") == 0 || strcmp(c->family->architecture, "mistral4") == 0;
    if (width != rope && !other) return tn_llm_refuse(f, "head_dim", "not 'qk_rope_head_dim'");
    c->positions.interleaved = tn_llm_flag(f, "rope_interleave", c->positions.interleaved);
    if (rope % 2 != 0 || values > rope + plain)
        return tn_hf_fail(
            f->path, TN_ERR_UNSUPPORTED,
            "a 'qk_rope_head_dim' of %" PRId64 " and a 'v_head_dim' of %" PRId64
            " are not supported: the first must be even, the second at most 'qk_rope_head_dim' + 'qk_nope_head_dim'",
            rope, values);
    TRY(tn_llm_check_latent_sizes(f->path, c));
    if (!tn_hf_has(f, "q_lora_rank")) { /* queries are not made of a short vector */
        c->needs = (c->needs & ~QUERY_RANKS) | BIT(SLOT_Q);
        return TN_OK;
    }
    return tn_hf_size(f, "q_lora_rank", -1, LLM_MOST_WIDTH, &c->size[SIZE_Q_RANK]);
}

static tn_status read_latent_scale(const hf_folder *f, llm_config *c) {
    double all;
    if (!c->family->attention.latent || c->positions.rope.kind != ROPE_YARN) return TN_OK;
    TRY(tn_hf_real(f, tn_llm_rope_of(f, "full_attention"), "mscale_all_dim", 0, 0, 1e6, &all));
    tn_llm_set_latent_scale(c, all);
    return TN_OK;
}

static tn_status read_heads(const hf_folder *f, llm_config *c) {
    int64_t *head = &c->size[SIZE_HEAD], hidden = c->size[SIZE_HIDDEN];
    if (c->family->attention.latent) return read_latent(f, c);
    if (tn_llm_attention_layers(c) == 0) {
        c->attention.heads = c->attention.kv_heads = *head = 1;
        return TN_OK;
    }
    TRY(read_size(f, c, KEY_HEADS, -1, LLM_MOST_HEADS, &c->attention.heads));
    TRY(read_size(f, c, KEY_KV_HEADS, c->attention.kv_heads > 0 ? c->attention.kv_heads : c->attention.heads,
                  LLM_MOST_HEADS, &c->attention.kv_heads));
    TRY(read_size(f, c, KEY_HEAD_DIM, hidden % c->attention.heads == 0 ? hidden / c->attention.heads : -1,
                  LLM_MOST_WIDTH, head));
    if (c->attention.heads % c->attention.kv_heads != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "%" PRId64 " heads is not a multiple of %" PRId64 " key/value heads",
                          c->attention.heads, c->attention.kv_heads);
    tn_llm_set_head_sizes(c);
    if (c->attention.wide_kv_heads == 0) c->attention.wide_kv_heads = c->attention.kv_heads;
    if (c->attention.wide_head % 2 != 0 || c->attention.heads % c->attention.wide_kv_heads != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT,
                          "%" PRId64 " heads of %" PRId64 " elements do not fit %" PRId64 " key/value heads",
                          c->attention.heads, c->attention.wide_head, c->attention.wide_kv_heads);
    if (c->attention.alibi > 0) {
        if (c->attention.scale == TN_AUTO) c->attention.scale = 1 / sqrt((double)*head);
        return TN_OK;
    }
    if (c->family->attention.qkv_blocks && c->attention.heads % QKV_BLOCKS != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "%" PRId64 " heads is not a multiple of %d", c->attention.heads,
                          QKV_BLOCKS);
    bool rotates = c->family->positions.waves == WAVES_NONE && !(c->family->slots.head_needs & BIT(SLOT_POSITIONS));
    return rotates ? read_part(f, c) : TN_OK;
}

/* ---- mixtures of experts ----------------------------------------------------------------------------------------- */

/* Layers without a mixture among others: the first ones (DeepSeek), all but every n-th, or a list (Qwen). */
static tn_status read_unmixed(const hf_folder *f, llm_config *c) {
    const tn_json *list = tn_json_get(f->config, "mlp_only_layers");
    const tn_json *kinds = tn_json_get(f->config, "mlp_layer_types");
    bool listed = tn_json_kind_of(kinds) == TN_JSON_ARRAY; /* says it in place of the number of first layers */
    int64_t first = tn_json_int(tn_json_get(f->config, "first_k_dense_replace"), c->family->experts.usual_dense);
    int64_t step = tn_json_int(tn_json_get(f->config, "decoder_sparse_step"), 1);
    if (tn_json_int(tn_json_get(f->config, "moe_layer_freq"), 1) != 1 || step < 1)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "'moe_layer_freq' other than 1 and 'decoder_sparse_step' below 1 are not supported");
    for (int64_t i = 0; i < c->layers; i++)
        if ((i < first && !listed) || (i + 1) % step != 0) tn_llm_set_unmixed(c, i);
    for (int64_t i = 0; i < c->layers; i++)
        if (strcmp(tn_json_string(tn_json_at(kinds, (size_t)i), ""), "dense") == 0) tn_llm_set_unmixed(c, i);
    for (size_t i = 0; i < tn_json_length(list); i++) {
        int64_t layer = tn_json_int(tn_json_at(list, i), -1);
        if (layer >= 0 && layer < c->layers) tn_llm_set_unmixed(c, layer);
    }
    return TN_OK;
}

/* Groups of experts, and the factor of what they yield: DeepSeek's. */
static tn_status read_choice(const hf_folder *f, llm_config *c) {
    int64_t experts = c->size[SIZE_EXPERTS], least = tn_llm_group_best(c);
    const char *method = tn_hf_text(f, "topk_method", least > 1 ? "noaux_tc" : "greedy");
    double usual = c->family->experts.usual_scale > 0 ? c->family->experts.usual_scale : 1;
    TRY(tn_hf_real(f, f->config, "routed_scaling_factor", usual, 1e-6, 1e6, &c->experts.scale));
    TRY(tn_hf_real(f, f->config, "router_scaling_factor", c->experts.scale, 1e-6, 1e6, &c->experts.scale));
    if (strcmp(method, "greedy") == 0) return TN_OK;
    if (strcmp(method, "noaux_tc") != 0 && strcmp(method, "group_limited_greedy") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "'topk_method' is '%s'; supported are greedy, group_limited_greedy and noaux_tc",
                          tn_txt_shown(method, strlen(method)).text);
    int64_t groups = c->family->experts.usual_groups, chosen = c->family->experts.usual_chosen;
    TRY(tn_hf_size(f, "n_group", groups > 0 ? groups : 1, experts, &c->experts.groups));
    TRY(tn_hf_size(f, "topk_group", chosen > 0 ? chosen : c->experts.groups, c->experts.groups,
                   &c->experts.chosen_groups));
    bool fits = experts % c->experts.groups == 0 && experts / c->experts.groups >= least &&
                c->experts.chosen_groups * (experts / c->experts.groups) >= c->experts.choices;
    if (!fits && c->experts.groups > 1)
        return tn_hf_fail(f->path, TN_ERR_FORMAT,
                          "%" PRId64 " experts in %" PRId64 " groups; a token uses %" PRId64 " groups and %" PRId64
                          " experts: 'n_group', 'topk_group' and the numbers of experts must fit",
                          experts, c->experts.groups, c->experts.chosen_groups, c->experts.choices);
    if (c->experts.chosen_groups == c->experts.groups) c->experts.groups = 0; /* no limit */
    return TN_OK;
}

/* A number under one of these keys, or a list with the same one for all layers (Hunyuan). Where none is required, one
 * expert is none. */
static tn_status read_count(const hf_folder *f, const char *const *keys, bool required, int64_t *out) {
    while (keys[1] && !tn_hf_has(f, *keys))
        keys++;
    const tn_json *v = tn_json_get(f->config, *keys);
    if (tn_json_kind_of(v) != TN_JSON_ARRAY) {
        if (required) return tn_hf_size(f, *keys, -1, INT32_MAX, out);
        *out = tn_json_int(v, 0);
        if (*out <= 1) *out = 0;
        return TN_OK;
    }
    *out = tn_json_int(tn_json_at(v, 0), 0);
    for (size_t i = 0; i < tn_json_length(v); i++)
        if (tn_json_int(tn_json_at(v, i), -1) != *out)
            return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'%s' differs between layers, which is not supported",
                              *keys);
    return TN_OK;
}

static tn_status read_experts(const hf_folder *f, llm_config *c) {
    static const char *const counts[] = {"num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts",
                                         NULL};
    static const char *const chosen[] = {"top_k_experts", "moe_topk", "moe_k", "num_experts_per_tok", NULL};
    int64_t experts = 0, choices = 0, shared = 0;
    bool always = c->family->experts.always;
    int64_t *inner = &c->size[SIZE_EXPERT], usual = c->family->experts.own_width ? -1 : c->size[SIZE_INTERMEDIATE];
    bool none = c->family->experts.beside && !tn_llm_flag(f, "enable_moe_block", false);
    if (c->family->experts.slots && !none) TRY(read_count(f, counts, always, &experts));
    if (experts > 0) TRY(read_count(f, chosen, true, &choices));
    TRY(tn_llm_set_experts(c, f->path, experts, choices));
    c->file.predicting_layers = tn_json_int(tn_json_get(f->config, "num_nextn_predict_layers"), 0);
    if (c->experts.choices == 0) return TN_OK;
    TRY(read_unmixed(f, c));
    TRY(tn_hf_real(f, f->config, "swiglu_limit", c->experts.gate_limit, 1e-6, 1e6, &c->experts.gate_limit));
    TRY(tn_hf_real(f, f->config, "swiglu_alpha", c->experts.gate_slope, 1e-6, 1e6, &c->experts.gate_slope));
    bool own = c->family->experts.own_width, other = c->family->experts.by_sigmoid || c->family->recurrent.kind;
    if (own || (!c->experts.whole_choice && !other)) /* of Mixtral, Jamba and Llama 4 the key says nothing */
        c->experts.whole_choice = tn_llm_flag(f, "norm_topk_prob", c->family->experts.usual_choice + other > 0);
    if (c->family->attention.latent && tn_llm_group_best(c) == 1 && c->experts.whole_choice)
        return tn_llm_refuse(f, "norm_topk_prob", "true"); /* DeepSeek's code and transformers differ in it */
    TRY(tn_hf_size(f, own ? "moe_intermediate_size" : "intermediate_size", usual, LLM_MOST_WIDTH, inner));
    bool fused = c->family->forward.fused_gate || c->family->experts.fused_gate;
    c->size[SIZE_EXPERT_UP] = *inner * (fused ? 2 : 1);
    bool counted = tn_hf_has(f, "num_shared_experts");
    if (counted || tn_hf_has(f, "n_routed_experts")) {
        TRY(tn_hf_size(f, counted ? "num_shared_experts" : "n_shared_experts", 1, LLM_MOST_EXPERTS, &shared));
        c->size[SIZE_SHARED] = shared * *inner;
        return read_choice(f, c);
    }
    return tn_hf_size(f, "shared_expert_intermediate_size", c->size[SIZE_INTERMEDIATE], LLM_MOST_WIDTH,
                      &c->size[SIZE_SHARED]);
}

tn_status tn_llm_read_factor(const hf_folder *f, const char *key, double *out) {
    return tn_hf_real(f, f->config, key, 1, -1e6, 1e6, out);
}

/* Keys times a number: the same as scores times that. */
static tn_status read_key_scale(const hf_folder *f, llm_config *c) {
    double keys;
    if (!c->family->recurrent.beside) return TN_OK;
    TRY(tn_llm_read_factor(f, "key_multiplier", &keys));
    if (keys != 1) c->attention.scale = keys / sqrt((double)c->size[SIZE_HEAD]);
    return TN_OK;
}

static tn_status read_sizes(const hf_folder *f, llm_config *c) {
    const char *activation = word_of(f, c, KEY_ACTIVATION);
    int64_t *hidden = &c->size[SIZE_HIDDEN];
    int64_t listed = (int64_t)tn_json_length(tn_json_get(f->config, "layers_block_type"));
    TRY(read_size(f, c, KEY_LAYERS, c->family->slots.lone && listed > 0 ? listed : -1, LLM_MOST_LAYERS, &c->layers));
    TRY(read_size(f, c, KEY_HIDDEN, -1, LLM_MOST_WIDTH, hidden));
    int64_t usual = c->family->norms.layer_norm ? 4 * *hidden : -1;                 /* GPT-2's n_inner may be null */
    if (c->family->experts.always && c->family->experts.own_width) usual = *hidden; /* it may be missing */
    TRY(read_size(f, c, KEY_INTERMEDIATE, usual, LLM_MOST_WIDTH, &c->size[SIZE_INTERMEDIATE]));
    c->size[SIZE_UP] = c->size[SIZE_INTERMEDIATE] * (c->family->forward.fused_gate ? 2 : 1);
    TRY(read_experts(f, c));
    TRY(read_size(f, c, KEY_CONTEXT, -1, LLM_MOST_CONTEXT, &c->trained_context));
    c->size[SIZE_POSITIONS] = c->trained_context + c->family->positions.first;
    c->attention.parallel = c->family->attention.parallel;
    if (c->family->attention.chooses_parallel)
        c->attention.parallel = tn_json_bool(tn_json_get(f->config, "use_parallel_residual"), c->attention.parallel);
    if (c->family->read) TRY(c->family->read(f, c));
    if (!c->attention.parallel && c->family->slots.needs & BIT(SLOT_ATTENTION_NORM)) c->needs |= BIT(SLOT_FFN_NORM);
    double eps = c->family->norms.eps > 0 ? c->family->norms.eps : c->family->norms.layer_norm ? 1e-5 : 1e-6;
    TRY(tn_hf_real(f, f->config, word_of(f, c, KEY_EPS), eps, 1e-20, 1, &c->eps));
    bool usual_one = c->family->forward.gelu_by_tanh && strcmp(tn_hf_text(f, activation, "gelu"), "gelu") == 0;
    TRY(tn_hf_activation(f, usual_one ? "" : activation, c->family->forward.activation, &c->activation));
    TRY(tn_llm_read_recurrent(f, c));
    TRY(read_heads(f, c));
    TRY(read_rope(f, c));
    TRY(read_latent_scale(f, c));
    TRY(read_key_scale(f, c));
    TRY(read_gemma(f, c));
    TRY(read_scales(f, c));
    TRY(read_local_rope(f, c));
    TRY(tn_llm_read_window(f, c));
    read_unrotated(f, c);
    c->attention.bidirectional =
        c->family->attention.bidirectional || tn_llm_flag(f, "use_bidirectional_attention", false);
    if (c->attention.bidirectional && c->attention.window > 0)
        c->attention.window = c->attention.window / 2 + 1; /* the file counts both sides together */
    return TN_OK;
}

/* ---- for single families (llm_families.c) and GGUF files -------------------------------------------------------- */

/* The last layers have keys and values of earlier ones. Returns whether these have what they need. */
bool tn_llm_share_layers(llm_config *c, int64_t shared) {
    bool fits = shared >= 0 && shared < c->layers;
    c->attention.first_shared = fits && shared > 0 ? c->layers - shared : 0;
    for (int64_t i = c->attention.first_shared; fits && shared > 0 && i < c->layers; i++)
        fits = tn_llm_key_layer(c, i) != i;
    return fits;
}

void tn_llm_set_streams(llm_config *c, int64_t count) {
    c->size[SIZE_STREAMS] = count;
    c->size[SIZE_OTHER_STREAMS] = count - 1;
    c->size[SIZE_STREAM_PAIRS] = count * count;
}

/* ---- ends of a text ---------------------------------------------------------------------------------------------- */

static void add_end(llm_config *c, const tn_json *id) {
    int64_t v = tn_json_int(id, -1);
    if (v >= 0 && v <= INT32_MAX && c->ends.count < LLM_MOST_ENDS) c->ends.ids[c->ends.count++] = (int32_t)v;
}

/* One number or several. */
static void take_ends(llm_config *c, const tn_json *v) {
    if (tn_json_kind_of(v) != TN_JSON_ARRAY) add_end(c, v);
    for (size_t i = 0; tn_json_kind_of(v) == TN_JSON_ARRAY && i < tn_json_length(v); i++)
        add_end(c, tn_json_at(v, i));
}

/* generation_config.json says which tokens end an answer; without it config.json does. */
static tn_status read_ends(const hf_folder *f, llm_config *c) {
    tn_json_doc *doc;
    TRY(tn_hf_json(f, "generation_config.json", &doc));
    take_ends(c, tn_json_get(tn_json_root(doc), "eos_token_id"));
    tn_json_free(doc);
    if (c->ends.count == 0) take_ends(c, tn_json_get(f->config, "eos_token_id"));
    if (c->ends.count == 0) take_ends(c, tn_json_get(tn_json_root(f->doc), "eos_token_id"));
    return TN_OK;
}

/* Before the names of a language model's weights among those of other parts. */
static void find_wrapped_prefix(hf_folder *f, const char *probe) {
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "language_model.",
                                           "model.text_model.", "thinker.model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !f->prefix[0]; i++)
        tn_hf_find_prefix(f, prefixes[i], probe);
}

/* The whole model's word counts; old files say nothing, and have an output matrix or none. */
static bool tied_as_a_part(const hf_folder *f, const llm_config *c) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    char name[LLM_NAME_SIZE];
    bool tied = tn_json_bool(tn_json_get(tn_json_root(f->doc), "tie_word_embeddings"), c->tied);
    return tied || !tn_llm_name(c->file.naming, name, -1, SLOT_OUTPUT) || !tn_hf_find(f, name, &info);
}

tn_status tn_llm_read_folder(hf_folder *f, llm_config *c) {
    char probe[LLM_NAME_SIZE];
    enter_text_config(f);
    TRY(find_family(f, c));
    TRY(refuse_features(f));
    c->file.naming = c->family->naming;
    c->file.norms_from_one = c->family->norms.from_one;
    tn_llm_name(c->file.naming, probe, -1, SLOT_EMBEDDING);
    tn_hf_find_prefix(f, c->file.naming->prefix, probe);
    if (!f->prefix[0]) find_wrapped_prefix(f, probe);
    c->positions.interleaved = c->family->positions.folder_interleaved;
    c->tied = tn_json_bool(tn_json_get(f->config, "tie_word_embeddings"), c->family->tied);
    if (has_text_config(f)) c->tied = tied_as_a_part(f, c);
    TRY(read_sizes(f, c));
    return read_ends(f, c);
}
