/* llm_gguf.c — a language model's sizes from a GGUF file's metadata, checked; llm_folder.c reads those of folders. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

/* "ARCHITECTURE.what", as most keys are called. */
typedef struct key_name {
    char text[96];
} key_name;

static key_name key_of(const llm_config *c, const char *what) {
    key_name k;
    snprintf(k.text, sizeof k.text, "%s.%s", tn_llm_gguf_word(c->family), what);
    return k;
}

static bool has(const tn_gguf *f, const llm_config *c, const char *what) {
    return tn_gguf_get(f, key_of(c, what).text) != NULL;
}

/* Fails with "'FILE': byte N: ", where the key stands, in front of the text. */
static __attribute__((format(printf, 4, 5))) tn_status fail_at(const tn_gguf *f, const char *key, tn_status code,
                                                               const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tn_backend_fail(code, "'%s': byte %" PRId64 ": %s", tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key)),
                           text);
}

static tn_status out_of_range(const tn_gguf *f, const char *key, double value, double least, double most) {
    return fail_at(f, key, TN_ERR_FORMAT, "key '%s' is %g; it must lie between %g and %g", key, value, least, most);
}

static tn_status get_size(const tn_gguf *f, const llm_config *c, const char *what, int64_t most, int64_t *out) {
    key_name key = key_of(c, what);
    TRY(tn_gguf_get_int(f, key.text, out));
    return *out >= 1 && *out <= most ? TN_OK : out_of_range(f, key.text, (double)*out, 1, (double)most);
}

static tn_status get_real(const tn_gguf *f, const llm_config *c, const char *what, double least, double most,
                          double *out) {
    key_name key = key_of(c, what);
    TRY(tn_gguf_get_float(f, key.text, out));
    return *out >= least && *out <= most ? TN_OK : out_of_range(f, key.text, *out, least, most);
}

static bool text_is(const char *text, int64_t length, const char *word) {
    return (size_t)length == strlen(word) && memcmp(text, word, (size_t)length) == 0;
}

static bool has_tensor(const tn_gguf *f, const char *name) {
    tn_gguf_info info = {.struct_size = sizeof info};
    return tn_gguf_find(f, name, &info) == TN_OK;
}

static tn_status get_int(const tn_gguf *f, const llm_config *c, const char *what, int64_t usual, int64_t *out) {
    *out = usual;
    return has(f, c, what) ? tn_gguf_get_int(f, key_of(c, what).text, out) : TN_OK;
}

/* Whether tensors of this slot are in any layer. */
static bool has_slot(const tn_gguf *f, const llm_config *c, int slot) {
    int64_t layers;
    if (get_int(f, c, "block_count", 0, &layers) != TN_OK) return false;
    for (int64_t i = 0; i < layers && i < LLM_MOST_LAYERS; i++) {
        char name[LLM_NAME_SIZE];
        tn_llm_name(&tn_llm_gguf_names, name, i, slot);
        if (has_tensor(f, name)) return true;
    }
    return false;
}

enum { BY_SOFTMAX = 1, BY_SIGMOID = 2 }; /* expert_gating_func */

/* Whether the file is of this family, where several have the same architecture in GGUF files (DeepSeek V2 and V3,
 * Youtu-LLM). */
static bool suits(const tn_gguf *f, const llm_config *c) {
    int64_t gate, experts;
    if (get_int(f, c, "expert_gating_func", 0, &gate) != TN_OK || get_int(f, c, "expert_count", 0, &experts) != TN_OK)
        return true; /* the error is found again */
    bool mixed = experts > 0 || has_slot(f, c, SLOT_ROUTER);
    bool sigmoid = gate == BY_SIGMOID || (gate == 0 && has_slot(f, c, SLOT_CHOICE_BIAS));
    return mixed ? c->family->experts.slots && c->family->experts.by_sigmoid == sigmoid : !c->family->experts.always;
}

static tn_status find_family(const tn_gguf *f, llm_config *c) {
    const char *text;
    int64_t length;
    TRY(tn_gguf_get_string(f, "general.architecture", &text, &length));
    const llm_family *first = c->family = tn_llm_find_family(text, (size_t)length, true);
    while (c->family && tn_llm_next_family(first) && !suits(f, c))
        c->family = tn_llm_next_family(c->family);
    if (!c->family) c->family = first;
    if (c->family) return TN_OK;
    char known[LLM_LIST_SIZE];
    tn_llm_list_families(true, known, sizeof known);
    return fail_at(f, "general.architecture", TN_ERR_UNSUPPORTED,
                   "the architecture '%s' is not supported; supported are %s", tn_txt_shown(text, (size_t)length).text,
                   known);
}

static tn_status get_bool(const tn_gguf *f, const llm_config *c, const char *what, bool usual, bool *out) {
    const tn_gguf_value *v = tn_gguf_get(f, key_of(c, what).text);
    *out = usual;
    return v ? tn_gguf_bool(v, 0, out) : TN_OK;
}

/* Features that would change the results, and that no family here has. */
static tn_status refuse_features(const tn_gguf *f, const llm_config *c) {
    int64_t known = c->family->experts.by_sigmoid ? BY_SIGMOID : BY_SOFTMAX, gate;
    bool causal;
    TRY(get_int(f, c, "expert_gating_func", known, &gate));
    TRY(get_bool(f, c, "attention.causal", true, &causal)); /* false: LFM2's for embeddings */
    const char *other = causal ? "attention.clamp_kqv" : "attention.causal";
    if (has(f, c, other))
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': '%s'%s is not supported", tn_gguf_path(f),
                               key_of(c, other).text, causal ? "" : " = false");
    if (gate == known || gate == 0 || !c->family->experts.slots) return TN_OK; /* Youtu has no experts */
    key_name key = key_of(c, "expert_gating_func");
    if (gate != BY_SOFTMAX && gate != BY_SIGMOID)
        return fail_at(f, key.text, TN_ERR_UNSUPPORTED,
                       "experts use gating function %" PRId64 "; known are 1 (softmax) and 2 (sigmoid)", gate);
    return fail_at(f, key.text, TN_ERR_UNSUPPORTED,
                   "experts use gating function %" PRId64 "; only %" PRId64
                   " is supported in %s models (1: softmax, 2: sigmoid)",
                   gate, known, tn_llm_gguf_word(c->family));
}

/* Reads which layers have no experts, the shared expert, groups of experts, and how chosen experts are weighted. */
static tn_status read_choice(const tn_gguf *f, llm_config *c) {
    const slot_set shared_slots = BIT(SLOT_SHARED_GATE) | BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN);
    int64_t shared, groups, experts = c->size[SIZE_EXPERTS];
    double scale = 0;
    TRY(get_int(f, c, "expert_shared_count", 0, &shared));
    TRY(get_int(f, c, "expert_group_count", 0, &groups));
    bool usual = c->family->experts.own_width && !c->family->attention.latent &&
                 (c->family->experts.by_sigmoid || c->family->recurrent.kind);
    bool whole = c->experts.whole_choice || usual;
    TRY(get_bool(f, c, "expert_weights_norm", whole, &c->experts.whole_choice));
    if (has(f, c, "expert_weights_scale")) TRY(get_real(f, c, "expert_weights_scale", 0, 1e6, &scale));
    if (scale > 0) c->experts.scale = scale;
    for (int64_t i = 0; i < c->layers; i++) {
        char name[LLM_NAME_SIZE];
        tn_llm_name(&tn_llm_gguf_names, name, i, SLOT_ROUTER);
        bool mixed = has_tensor(f, name);
        tn_llm_name(&tn_llm_gguf_names, name, i, SLOT_UP);
        if (!mixed && has_tensor(f, name)) tn_llm_set_unmixed(c, i);
    }
    if (shared == 0 && has_slot(f, c, SLOT_SHARED_UP)) shared = 1; /* Llama 4's files do not tell it */
    if (shared > 0 && shared <= LLM_MOST_EXPERTS) c->size[SIZE_SHARED] = shared * c->size[SIZE_EXPERT];
    if (has(f, c, "expert_shared_feed_forward_length"))
        TRY(get_size(f, c, "expert_shared_feed_forward_length", LLM_MOST_WIDTH, &c->size[SIZE_SHARED]));
    else if (shared == 0 && !(c->family->experts.slots & BIT(SLOT_SHARED_ROUTER)))
        c->needs &= ~shared_slots;
    if (groups <= 1) return TN_OK;
    TRY(get_size(f, c, "expert_group_used_count", groups, &c->experts.chosen_groups));
    int64_t least = c->family->experts.by_sigmoid ? 2 : 1;
    if (groups > experts || experts % groups != 0 || experts / groups < least ||
        c->experts.chosen_groups * (experts / groups) < c->experts.choices)
        return out_of_range(f, key_of(c, "expert_group_count").text, (double)groups, 0, (double)experts);
    if (c->experts.chosen_groups < groups) c->experts.groups = groups;
    return TN_OK;
}

static tn_status read_experts(const tn_gguf *f, llm_config *c) {
    int64_t experts = 0, choices = 0, inner = c->size[SIZE_INTERMEDIATE];
    TRY(get_int(f, c, "expert_count", 0, &experts));
    TRY(get_int(f, c, "expert_used_count", 0, &choices));
    if (experts == 1 && !c->family->experts.always) experts = 0; /* a layer with one expert is dense (Jamba) */
    TRY(tn_llm_set_experts(c, tn_gguf_path(f), experts, choices));
    if (experts == 0 && has(f, c, "expert_shared_feed_forward_length")) /* Granite 4 without others */
        TRY(get_size(f, c, "expert_shared_feed_forward_length", LLM_MOST_WIDTH, &c->size[SIZE_INTERMEDIATE]));
    c->size[SIZE_UP] = c->size[SIZE_INTERMEDIATE] * (c->family->forward.fused_gate ? 2 : 1);
    if (c->experts.choices == 0) return TN_OK;
    c->size[SIZE_SHARED] = inner;
    c->size[SIZE_EXPERT] = c->family->experts.own_width ? inner / choices : inner;
    if (has(f, c, "expert_feed_forward_length"))
        TRY(get_size(f, c, "expert_feed_forward_length", LLM_MOST_WIDTH, &c->size[SIZE_EXPERT]));
    if (c->size[SIZE_EXPERT] < 1)
        return out_of_range(f, key_of(c, "feed_forward_length").text, (double)inner, (double)choices, LLM_MOST_WIDTH);
    c->size[SIZE_EXPERT_UP] = c->size[SIZE_EXPERT];
    return read_choice(f, c);
}

/* keys and values of a head have one length, and rope turns all of it. */
static tn_status read_head_dim(const tn_gguf *f, llm_config *c) {
    int64_t hidden = c->size[SIZE_HIDDEN], *head = &c->size[SIZE_HEAD];
    if (has(f, c, "attention.key_length")) {
        TRY(get_size(f, c, "attention.key_length", LLM_MOST_WIDTH, head));
    } else if (hidden % c->attention.heads == 0) {
        *head = hidden / c->attention.heads;
    } else {
        key_name key = key_of(c, "attention.head_count");
        return fail_at(f, key.text, TN_ERR_FORMAT, "%" PRId64 " heads do not divide the embedding length %" PRId64,
                       c->attention.heads, hidden);
    }
    const char *value_length = "attention.value_length";
    int64_t other = *head;
    if (has(f, c, value_length)) TRY(get_size(f, c, value_length, LLM_MOST_WIDTH, &other));
    if (other != *head) {
        key_name key = key_of(c, value_length);
        return fail_at(f, key.text, TN_ERR_UNSUPPORTED,
                       "key '%s' is %" PRId64 ", but the head size is %" PRId64 "; only equal sizes are supported",
                       key.text, other, *head);
    }
    if (*head % 2 == 0) return TN_OK;
    key_name key = key_of(c, has(f, c, "attention.key_length") ? "attention.key_length" : "attention.head_count");
    return fail_at(f, key.text, TN_ERR_FORMAT,
                   "key '%s' gives a head size of %" PRId64 "; it must be even, because rope rotates pairs", key.text,
                   *head);
}

/* Whether a layer consists of feed-forward only (Nemotron-H): then its feed-forward width is not 0. */
static bool feeds(const tn_gguf *f, const llm_config *c, int64_t layer) {
    int64_t width = 0;
    const tn_gguf_value *list = tn_gguf_get(f, key_of(c, "feed_forward_length").text);
    return c->family->slots.lone && list && tn_gguf_int(list, layer, &width) == TN_OK && width > 0;
}

/* One number, or one per layer: 0 if the layer has no attention. */
static tn_status read_kv_heads(const tn_gguf *f, llm_config *c) {
    key_name key = key_of(c, "attention.head_count_kv");
    const tn_gguf_value *list = tn_gguf_get(f, key.text);
    int64_t *heads = &c->attention.kv_heads, own;
    bool each = list && tn_gguf_type_of(list) == TN_GGUF_ARRAY;
    *heads = list && !each ? 0 : c->attention.heads;
    if (list && !each) return get_size(f, c, "attention.head_count_kv", LLM_MOST_HEADS, heads);
    if (each && tn_gguf_length(list) != c->layers)
        return out_of_range(f, key.text, (double)tn_gguf_length(list), (double)c->layers, (double)c->layers);
    for (int64_t i = 0, found = 0; each && i < c->layers; i++) {
        TRY(tn_gguf_int(list, i, &own));
        if (own == 0 && c->family->recurrent.kind) {
            if (feeds(f, c, i))
                tn_llm_set_attention(c, i, false);
            else
                tn_llm_set_recurrent(c, i);
            continue;
        }
        if (own < 1 || own > LLM_MOST_HEADS || (found && own != *heads))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': byte %" PRId64 ": '%s' says %" PRId64 " for layer %" PRId64
                                   "; all layers with attention must have the same number",
                                   tn_gguf_path(f), tn_gguf_offset(list), key.text, own, i);
        *heads = own;
        found = 1;
    }
    return TN_OK;
}

/* A list, or all but one in every interval. */
static tn_status read_delta_layers(const tn_gguf *f, llm_config *c) {
    int64_t interval = c->family->recurrent.interval;
    key_name key = key_of(c, "attention.recurrent_layers");
    const tn_gguf_value *list = tn_gguf_get(f, key.text);
    if (has(f, c, "full_attention_interval"))
        TRY(get_size(f, c, "full_attention_interval", LLM_MOST_LAYERS, &interval));
    if (list && tn_gguf_length(list) < c->layers)
        return out_of_range(f, key.text, (double)tn_gguf_length(list), (double)c->layers, LLM_MOST_LAYERS);
    for (int64_t i = 0; i < c->layers; i++) {
        bool recurs = (i + 1) % interval != 0;
        if (list) TRY(tn_gguf_bool(list, i, &recurs));
        if (recurs) tn_llm_set_recurrent(c, i);
    }
    return tn_llm_size_deltanet(c, tn_gguf_path(f));
}

/* Layers with a state; which ones follows from the numbers of key heads, unless all are. */
static tn_status read_recurrent(const tn_gguf *f, llm_config *c) {
    int64_t hidden = c->size[SIZE_HIDDEN], *inner = &c->size[SIZE_INNER];
    bool rms, rotates;
    llm_recurrence kind = c->family->recurrent.kind;
    if (kind == RECURRENCE_NONE) return TN_OK;
    for (int64_t i = 0; tn_llm_is_pure(c) && i < c->layers; i++)
        tn_llm_set_recurrent(c, i);
    if (kind == RECURRENCE_CONV) {
        c->size[SIZE_CHANNELS] = *inner = hidden;
        c->size[SIZE_MIX_IN] = 3 * hidden;
        return get_size(f, c, "shortconv.l_cache", LLM_MOST_WIDTH, &c->size[SIZE_KERNEL]);
    }
    c->recurrent.decays_made = true;
    for (int64_t i = 0; c->family->recurrent.beside && i < c->layers; i++)
        tn_llm_set_recurrent(c, i);
    if (c->family->recurrent.beside && has_slot(f, c, SLOT_MIX_NORM)) c->needs |= BIT(SLOT_MIX_NORM);
    if (c->family->slots.lone) c->recurrent.activation = tn_txt_activation("silu");
    TRY(get_size(f, c, "ssm.conv_kernel", LLM_MOST_WIDTH, &c->size[SIZE_KERNEL]));
    if (c->size[SIZE_KERNEL] < 2) return out_of_range(f, key_of(c, "ssm.conv_kernel").text, 1, 2, LLM_MOST_WIDTH);
    TRY(get_size(f, c, "ssm.inner_size", LLM_MOST_WIDTH, inner));
    TRY(get_size(f, c, "ssm.state_size", LLM_MOST_WIDTH, &c->size[SIZE_STATE]));
    TRY(get_size(f, c, "ssm.time_step_rank", LLM_MOST_HEADS,
                 kind == RECURRENCE_MAMBA ? &c->size[SIZE_STEP_RANK] : &c->recurrent.value_heads));
    if (kind != RECURRENCE_MAMBA) TRY(get_size(f, c, "ssm.group_count", LLM_MOST_HEADS, &c->recurrent.key_heads));
    if (kind == RECURRENCE_DELTANET) return read_delta_layers(f, c);
    TRY(get_bool(f, c, "ssm.dt_b_c_rms", !tn_llm_is_pure(c), &rms)); /* Jamba has these norms, Falcon Mamba says so */
    /* Falcon Mamba's files do not tell theirs; Jamba's is that of all its norms. */
    if (rms && kind == RECURRENCE_MAMBA) c->recurrent.inner_eps = tn_llm_is_pure(c) ? 1e-6 : c->eps;
    TRY(get_bool(f, c, "rope.scaling.finetuned", false, &rotates));
    c->positions.halves_mixed = rotates; /* Bamba */
    for (int64_t i = 0; i < c->layers && !c->family->recurrent.beside && !rotates; i++)
        tn_llm_set_rope(c, i, false);
    return tn_llm_size_mamba(c, tn_gguf_path(f));
}

/* Newer files, made for a cache of latent vectors, have the matrices of keys and values as two tensors; the names of
 * their widths end in _mla. */
static tn_status read_latent(const tn_gguf *f, llm_config *c) {
    bool apart = has(f, c, "attention.key_length_mla");
    const char *key = apart ? "attention.key_length_mla" : "attention.key_length";
    int64_t head, values, rope;
    TRY(get_size(f, c, "attention.head_count", LLM_MOST_HEADS, &c->attention.heads));
    TRY(get_size(f, c, "attention.kv_lora_rank", LLM_MOST_WIDTH, &c->size[SIZE_KV_RANK]));
    TRY(get_size(f, c, key, LLM_MOST_WIDTH, &head));
    TRY(get_size(f, c, apart ? "attention.value_length_mla" : "attention.value_length", head, &values));
    TRY(get_size(f, c, "rope.dimension_count", head - 1, &rope));
    if (rope % 2 != 0) return out_of_range(f, key_of(c, "rope.dimension_count").text, (double)rope, 2, 2);
    tn_llm_set_latent_sizes(c, rope, head - rope, values);
    TRY(tn_llm_check_latent_sizes(tn_gguf_path(f), c));
    if (has(f, c, "attention.q_lora_rank"))
        TRY(get_size(f, c, "attention.q_lora_rank", LLM_MOST_WIDTH, &c->size[SIZE_Q_RANK]));
    else
        c->needs = (c->needs & ~QUERY_RANKS) | BIT(SLOT_Q);
    if (apart) c->needs = (c->needs & ~BIT(SLOT_KV_UP)) | BIT(SLOT_K_UP) | BIT(SLOT_V_UP);
    return TN_OK;
}

static tn_status read_heads(const tn_gguf *f, llm_config *c) {
    if (c->family->attention.latent) return read_latent(f, c);
    if (tn_llm_attention_layers(c) == 0) {
        c->attention.heads = c->attention.kv_heads = c->size[SIZE_HEAD] = 1;
        return TN_OK;
    }
    TRY(get_size(f, c, "attention.head_count", LLM_MOST_HEADS, &c->attention.heads));
    TRY(read_kv_heads(f, c));
    if (c->attention.heads % c->attention.kv_heads != 0)
        return fail_at(f, key_of(c, "attention.head_count_kv").text, TN_ERR_FORMAT,
                       "%" PRId64 " heads is not a multiple of %" PRId64 " key/value heads", c->attention.heads,
                       c->attention.kv_heads);
    TRY(read_head_dim(f, c));
    tn_llm_set_head_sizes(c);
    int64_t width = c->size[SIZE_HEAD];
    if (has(f, c, "rope.dimension_count")) TRY(get_size(f, c, "rope.dimension_count", c->size[SIZE_HEAD], &width));
    c->size[SIZE_HALF] = width / 2;
    if (width % 2 == 0) return TN_OK;
    key_name key = key_of(c, "rope.dimension_count");
    return fail_at(f, key.text, TN_ERR_FORMAT, "key '%s' is %" PRId64 "; it must be even, because rope rotates pairs",
                   key.text, width);
}

static tn_status read_real(const tn_gguf *f, const llm_config *c, const char *what, double usual, double most,
                           double *out) {
    *out = usual;
    return has(f, c, what) ? get_real(f, c, what, 1e-6, most, out) : TN_OK;
}

/* What llama.cpp's keys say; the trained length is the model's own where they do not. */
static tn_status read_yarn(const tn_gguf *f, llm_config *c) {
    llm_rope *r = &c->positions.rope;
    r->kind = ROPE_YARN;
    r->whole = !c->family->positions.parts_of_frequencies;
    TRY(get_real(f, c, "rope.scaling.factor", 1, 1e6, &r->factor));
    TRY(read_real(f, c, "rope.scaling.yarn_beta_fast", 32, 1e6, &r->high));
    TRY(read_real(f, c, "rope.scaling.yarn_beta_slow", 1, 1e6, &r->low));
    const char *all = "rope.scaling.yarn_log_multiplier"; /* 0.1 · mscale_all_dim, which is mscale in all such models */
    double log_multiplier = 0;
    if (c->family->attention.latent && has(f, c, all)) {
        TRY(get_real(f, c, all, 0, 1e6, &log_multiplier));
        tn_llm_set_latent_scale(c, 10 * log_multiplier);
    } else {
        r->amplitude *= tn_llm_yarn_amplitude(r->factor, 1);
    }
    tn_llm_lengthen(c);
    return TN_OK;
}

static tn_status read_linear(const tn_gguf *f, llm_config *c) {
    double factor = 1;
    TRY(get_real(f, c, "rope.scaling.factor", 1e-3, 1e6, &factor));
    c->positions.rope.scale = 1 / factor;
    return TN_OK;
}

static tn_status read_rope_scaling(const tn_gguf *f, llm_config *c) {
    static const char *const other[] = {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
                                        "rope.scaling.yarn_log_multiplier", "rope.scaling.alpha"};
    enum { YARN_LOG = 2 };                                                   /* read_yarn */
    const char *type = has(f, c, "rope.scaling.factor") ? "linear" : "none"; /* of files from before there were types */
    int64_t length = (int64_t)strlen(type);
    key_name key = key_of(c, "rope.scaling.type");
    TRY(read_real(f, c, "rope.scaling.attn_factor", 1, 1e6, &c->positions.rope.amplitude));
    TRY(read_real(f, c, "rope.scaling.original_context_length", (double)c->trained_context, LLM_MOST_CONTEXT,
                  &c->positions.rope.trained));
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        key_name refused = key_of(c, other[i]);
        if (has(f, c, other[i]) && !(c->family->attention.latent && i == YARN_LOG))
            return fail_at(f, refused.text, TN_ERR_UNSUPPORTED, "'%s' is not supported", refused.text);
    }
    if (tn_gguf_get(f, key.text)) TRY(tn_gguf_get_string(f, key.text, &type, &length));
    /* Phi-3's files have the tables of longrope, and do not always name it. */
    if (text_is(type, length, "longrope") || has_tensor(f, "rope_factors_long.weight")) {
        c->positions.rope.kind = ROPE_LONG;
        return TN_OK;
    }
    if (text_is(type, length, "none")) return TN_OK;
    if (text_is(type, length, "linear")) return read_linear(f, c);
    if (text_is(type, length, "yarn")) return read_yarn(f, c);
    return fail_at(f, key.text, TN_ERR_UNSUPPORTED, "rope scaling '%s' is not supported; linear, yarn and longrope are",
                   tn_txt_shown(type, (size_t)length).text);
}

/* ---- windows, caps ----------------------------------------------------------------------------------------------- */

/* Which layers have a window: a number, or a word a layer. */
static tn_status read_pattern(const tn_gguf *f, llm_config *c) {
    int64_t pattern = c->family->attention.pattern;
    key_name key = key_of(c, "attention.sliding_window_pattern");
    const tn_gguf_value *list = tn_gguf_get(f, key.text);
    if (!list || pattern == 0 || tn_gguf_type_of(list) != TN_GGUF_ARRAY) {
        if (list && pattern > 0) TRY(get_size(f, c, "attention.sliding_window_pattern", LLM_MOST_LAYERS, &pattern));
        tn_llm_set_pattern(c, pattern);
        return TN_OK;
    }
    if (tn_gguf_length(list) < c->layers)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': byte %" PRId64 ": key '%s' has %" PRId64 " elements, but the model has %" PRId64
                               " layers",
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
    c->attention.window = c->family->attention.gguf_window;
    TRY(get_int(f, c, key, c->attention.window, &c->attention.window));
    if (c->attention.window < 0 || c->attention.window > LLM_MOST_CONTEXT)
        return out_of_range(f, key_of(c, key).text, (double)c->attention.window, 0, LLM_MOST_CONTEXT);
    return read_pattern(f, c); /* 0: none */
}

/* That of layers with a window. */
static tn_status read_local_rope(const tn_gguf *f, llm_config *c) {
    const llm_position_rules *of = &c->family->positions;
    double base = of->local_base > 0 ? of->local_base : c->positions.rope.base;
    bool plain = of->local_base > 0 || of->plain_local;
    c->positions.local_rope = plain ? (llm_rope){.base = base, .scale = 1, .amplitude = 1} : c->positions.rope;
    c->positions.two_ropes = c->attention.window > 0 && (plain || has(f, c, "rope.freq_base_swa"));
    return read_real(f, c, "rope.freq_base_swa", base, 1e12, &c->positions.local_rope.base);
}

/* Caps, the scale of scores, and a rope of layers with a window. */
static tn_status read_gemma(const tn_gguf *f, llm_config *c) {
    const llm_family *of = c->family;
    if (of->scaled_embedding) c->scales.embedding = sqrt((double)c->size[SIZE_HIDDEN]);
    if (of->attention.query_scale == 0) return read_local_rope(f, c);
    TRY(read_real(f, c, "attn_logit_softcapping", of->attention.cap, 1e6, &c->attention.cap));
    TRY(read_real(f, c, "final_logit_softcapping", of->final_cap, 1e6, &c->scales.final_cap));
    if (c->layers == of->attention.wide_layers)
        c->attention.scale = sqrt((double)c->attention.heads / (double)c->size[SIZE_HIDDEN]);
    return read_local_rope(f, c);
}

/* Gemma 3n's residual streams, per-layer embeddings and sparse layers. */
static tn_status read_streams(const tn_gguf *f, llm_config *c) {
    int64_t count, shared;
    key_name key = key_of(c, "activation_sparsity_scale");
    const tn_gguf_value *cutoffs = tn_gguf_get(f, key.text);
    if (!(c->family->slots.needs & BIT(SLOT_STREAM_ROUTER))) return TN_OK;
    TRY(get_size(f, c, "altup.num_inputs", LLM_MOST_STREAMS, &count));
    if (count < 2) return out_of_range(f, key_of(c, "altup.num_inputs").text, 1, 2, LLM_MOST_STREAMS);
    tn_llm_set_streams(c, count);
    TRY(get_int(f, c, "altup.active_idx", 0, &c->streams.active));
    if (c->streams.active < 0 || c->streams.active >= count)
        return out_of_range(f, key_of(c, "altup.active_idx").text, (double)c->streams.active, 0, (double)count - 1);
    c->streams.scales = true;
    TRY(get_size(f, c, "embedding_length_per_layer_input", LLM_MOST_WIDTH, &c->size[SIZE_INPUTS]));
    c->size[SIZE_ALL_INPUTS] = c->layers * c->size[SIZE_INPUTS];
    tn_gguf_info laurel = {.struct_size = sizeof laurel};
    TRY(tn_gguf_find(f, "blk.0.laurel_l.weight", &laurel)); /* no key has its width */
    if (laurel.rank != 2 || laurel.shape[0] > LLM_MOST_WIDTH)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': byte %" PRId64 ": tensor '%s' is not a matrix", tn_gguf_path(f),
                               laurel.offset, laurel.name);
    c->size[SIZE_LAUREL] = laurel.shape[0];
    TRY(get_int(f, c, "attention.shared_kv_layers", 0, &shared));
    if (!tn_llm_share_layers(c, shared))
        return fail_at(f, key_of(c, "attention.shared_kv_layers").text, TN_ERR_FORMAT,
                       "key 'attention.shared_kv_layers' is %" PRId64 " of %" PRId64
                       " layers; layers with a window, and without, must remain that have keys of their own",
                       shared, c->layers);
    c->attention.scale = 1;
    TRY(read_real(f, c, "final_logit_softcapping", 30, 1e6, &c->scales.final_cap));
    if (cutoffs && tn_gguf_length(cutoffs) < c->layers)
        return out_of_range(f, key.text, (double)tn_gguf_length(cutoffs), (double)c->layers, LLM_MOST_LAYERS);
    for (int64_t i = 0, found = 0; cutoffs && i < c->layers; i++) {
        double own;
        TRY(tn_gguf_float(cutoffs, i, &own));
        if (own == -INFINITY) continue; /* the layer is not sparse */
        if (!isfinite(own) || (found && own != c->streams.cutoff))
            return fail_at(f, key.text, TN_ERR_UNSUPPORTED,
                           "key '%s' is %g for layer %" PRId64 "; it must be one number, or -infinity", key.text, own,
                           i);
        c->streams.cutoff = own, found = 1;
        tn_llm_set_sparse(c, i);
    }
    return TN_OK;
}

/* Cohere's and Granite's multipliers. */
static tn_status read_scales(const tn_gguf *f, llm_config *c) {
    double divisor;
    if (strncmp(c->family->architecture, "cohere", 6) == 0)
        return read_real(f, c, "logit_scale", 0.0625, 1e6, &c->scales.logits);
    if (strncmp(c->family->architecture, "granite", 7) != 0) return TN_OK;
    TRY(read_real(f, c, "embedding_scale", 1, 1e6, &c->scales.embedding));
    TRY(read_real(f, c, "residual_scale", 1, 1e6, &c->scales.residual));
    if (has(f, c, "attention.scale")) TRY(read_real(f, c, "attention.scale", 1, 1e6, &c->attention.scale));
    TRY(read_real(f, c, "logit_scale", 1, 1e6, &divisor));
    c->scales.logits = 1 / divisor;
    return TN_OK;
}

/* Llama 4's files lack these values; they are constants of llama.cpp and of the released models. A window of 0 means
 * that all layers see the whole text and have rope. */
static tn_status read_llama4(const tn_gguf *f, llm_config *c) {
    enum { CHUNK = 8192, UNROTATED = 4, MAVERICK = 128 };
    int64_t window;
    if (strcmp(c->family->architecture, "llama4") != 0) return TN_OK;
    c->attention.unit_heads = c->size[SIZE_EXPERTS] != MAVERICK;
    TRY(get_int(f, c, "attention.sliding_window", CHUNK, &window));
    c->attention.window = 0;
    if (window == 0) return TN_OK;
    for (int64_t i = UNROTATED - 1; i < c->layers; i += UNROTATED)
        tn_llm_set_rope(c, i, false);
    c->attention.late_step = CHUNK;
    c->attention.late_scale = 0.1;
    if (c->trained_context > CHUNK) c->trained_context = CHUNK;
    return TN_OK;
}

/* Files do not say which layers have no rope: every fourth of SmolLM 3, those without a window of others. */
static void read_unrotated(llm_config *c) {
    for (int64_t i = 0; c->family->positions.in_windows && c->attention.window > 0 && i < c->layers; i++)
        tn_llm_set_rope(c, i, tn_llm_slides(c, i));
    for (int64_t i = 3; strcmp(c->family->architecture, "smollm3") == 0 && i < c->layers; i += 4)
        tn_llm_set_rope(c, i, false);
}

/* A width for each layer: 0, or the same one. */
static tn_status read_widths(const tn_gguf *f, llm_config *c, const tn_gguf_value *list) {
    key_name key = key_of(c, "feed_forward_length");
    int64_t own, *width = &c->size[SIZE_INTERMEDIATE];
    if (tn_gguf_length(list) < c->layers)
        return out_of_range(f, key.text, (double)tn_gguf_length(list), (double)c->layers, LLM_MOST_LAYERS);
    for (int64_t i = 0; i < c->layers; i++) {
        TRY(tn_gguf_int(list, i, &own));
        if (own < 0 || own > LLM_MOST_WIDTH || (own > 0 && *width > 1 && own != *width))
            return out_of_range(f, key.text, (double)own, (double)*width, (double)*width);
        if (own > 0) *width = own;
    }
    return TN_OK;
}

static tn_status read_sizes(const tn_gguf *f, llm_config *c) {
    bool mixed = !has(f, c, "feed_forward_length") && has(f, c, "expert_feed_forward_length"); /* all layers */
    TRY(get_size(f, c, "block_count", LLM_MOST_LAYERS, &c->layers));
    TRY(get_int(f, c, "nextn_predict_layers", 0, &c->file.predicting_layers)); /* counted among the others */
    if (c->file.predicting_layers < 0 || c->file.predicting_layers >= c->layers)
        return out_of_range(f, key_of(c, "nextn_predict_layers").text, (double)c->file.predicting_layers, 0,
                            (double)c->layers - 1);
    c->layers -= c->file.predicting_layers;
    TRY(get_size(f, c, "embedding_length", LLM_MOST_WIDTH, &c->size[SIZE_HIDDEN]));
    c->size[SIZE_INTERMEDIATE] = 1;
    const tn_gguf_value *widths = tn_gguf_get(f, key_of(c, "feed_forward_length").text);
    if (widths && tn_gguf_type_of(widths) == TN_GGUF_ARRAY)
        TRY(read_widths(f, c, widths));
    else if (!(c->family->recurrent.kind && tn_llm_is_pure(c)))
        TRY(get_size(f, c, mixed ? "expert_feed_forward_length" : "feed_forward_length", LLM_MOST_WIDTH,
                     &c->size[SIZE_INTERMEDIATE]));
    TRY(read_experts(f, c));
    TRY(get_size(f, c, "context_length", LLM_MOST_CONTEXT, &c->trained_context));
    c->attention.parallel = c->family->attention.parallel;
    if (c->family->attention.chooses_parallel)
        TRY(get_bool(f, c, "use_parallel_residual", c->attention.parallel, &c->attention.parallel));
    bool feeds = c->family->slots.needs & BIT(SLOT_ATTENTION_NORM) && c->family->slots.needs & BIT(SLOT_UP);
    if (!c->attention.parallel && feeds && !c->family->slots.lone) c->needs |= BIT(SLOT_FFN_NORM);
    const char *const eps[] = {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"};
    bool mean = c->family->norms.layer_norm || (c->family->slots.lone && !has(f, c, eps[0])); /* Nemotron-H's key */
    TRY(get_real(f, c, eps[mean], 1e-12, 1, &c->eps));
    TRY(read_recurrent(f, c));
    TRY(read_heads(f, c));
    c->size[SIZE_POSITIONS] = c->trained_context;
    c->positions.rope = (llm_rope){.base = 10000, .scale = 1, .amplitude = 1};
    if (has(f, c, "rope.freq_base")) TRY(get_real(f, c, "rope.freq_base", 1, 1e12, &c->positions.rope.base));
    TRY(read_rope_scaling(f, c));
    TRY(read_window(f, c));
    TRY(read_scales(f, c));
    TRY(read_streams(f, c));
    read_unrotated(c);
    TRY(read_llama4(f, c));
    return read_gemma(f, c);
}

tn_status tn_llm_read_gguf(const tn_gguf *f, llm_config *c) {
    TRY(find_family(f, c));
    TRY(refuse_features(f, c));
    c->file.naming = c->family->gguf_naming ? c->family->gguf_naming : &tn_llm_gguf_names;
    if (has_tensor(f, "blk.0.ffn_gate.0.weight")) c->file.naming = &tn_llm_gguf_apart;
    if (has_tensor(f, "blk.0.attn_norm_2.weight")) c->file.naming = &tn_llm_gguf_falcon_two;
    c->positions.interleaved = c->family->positions.interleaved;
    c->activation = tn_txt_activation(c->family->forward.activation);
    return read_sizes(f, c);
}
