/* llm_config.c — from a GGUF file's metadata to a model's sizes, every one of them checked.
 *
 * A family of models is a table row: what it is called in files and which tensors a layer has. Every tensor of the file
 * must be one that the row knows, in the shape that the metadata gives it: a model that has something more would be
 * computed wrongly without it, so it is refused by name. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/llm_model.h"

#define BIT(slot) (1u << (slot))

enum {
    PLAIN_SLOTS = BIT(SLOT_Q_BIAS) - 1,
    BIASES = BIT(SLOT_Q_BIAS) | BIT(SLOT_K_BIAS) | BIT(SLOT_V_BIAS),
    NORMS = BIT(SLOT_Q_NORM) | BIT(SLOT_K_NORM)
};

/* Files of the llama architecture store the rows of q and k so that rope turns neighbours; the others leave them as
 * they were trained. */
static const llm_family families[] = {
    {"llama", "Llama, Mistral, SmolLM", true, 0, BIASES | BIT(SLOT_O_BIAS)},
    {"qwen2", "Qwen 2, Qwen 2.5", false, BIASES, 0},
    {"qwen3", "Qwen 3", false, NORMS, 0},
};

typedef struct slot_row {
    const char *name;
    llm_size shape[2];
} slot_row;

static const slot_row layer_rows[LAYER_SLOTS] = {
    [SLOT_ATTENTION_NORM] = {"attn_norm.weight", {SIZE_HIDDEN}},
    [SLOT_Q] = {"attn_q.weight", {SIZE_QUERIES, SIZE_HIDDEN}},
    [SLOT_K] = {"attn_k.weight", {SIZE_KEYS, SIZE_HIDDEN}},
    [SLOT_V] = {"attn_v.weight", {SIZE_KEYS, SIZE_HIDDEN}},
    [SLOT_O] = {"attn_output.weight", {SIZE_HIDDEN, SIZE_QUERIES}},
    [SLOT_FFN_NORM] = {"ffn_norm.weight", {SIZE_HIDDEN}},
    [SLOT_GATE] = {"ffn_gate.weight", {SIZE_INTERMEDIATE, SIZE_HIDDEN}},
    [SLOT_UP] = {"ffn_up.weight", {SIZE_INTERMEDIATE, SIZE_HIDDEN}},
    [SLOT_DOWN] = {"ffn_down.weight", {SIZE_HIDDEN, SIZE_INTERMEDIATE}},
    [SLOT_Q_BIAS] = {"attn_q.bias", {SIZE_QUERIES}},
    [SLOT_K_BIAS] = {"attn_k.bias", {SIZE_KEYS}},
    [SLOT_V_BIAS] = {"attn_v.bias", {SIZE_KEYS}},
    [SLOT_O_BIAS] = {"attn_output.bias", {SIZE_HIDDEN}},
    [SLOT_Q_NORM] = {"attn_q_norm.weight", {SIZE_HEAD}},
    [SLOT_K_NORM] = {"attn_k_norm.weight", {SIZE_HEAD}},
};

static const slot_row head_rows[HEAD_SLOTS] = {
    [SLOT_EMBEDDING] = {"token_embd.weight", {SIZE_VOCABULARY, SIZE_HIDDEN}},
    [SLOT_OUTPUT_NORM] = {"output_norm.weight", {SIZE_HIDDEN}},
    [SLOT_OUTPUT] = {"output.weight", {SIZE_VOCABULARY, SIZE_HIDDEN}},
    [SLOT_ROPE_FACTORS] = {"rope_freqs.weight", {SIZE_HALF}},
};

void tn_llm_name(char name[LLM_NAME_SIZE], int64_t layer, int slot) {
    if (layer < 0)
        snprintf(name, LLM_NAME_SIZE, "%s", head_rows[slot].name);
    else
        snprintf(name, LLM_NAME_SIZE, "blk.%" PRId64 ".%s", layer, layer_rows[slot].name);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* "ARCHITECTURE.what", as most keys are called. */
typedef struct key_name {
    char text[96];
} key_name;

static key_name key_of(const llm_config *c, const char *what) {
    key_name k;
    snprintf(k.text, sizeof k.text, "%s.%s", c->family->architecture, what);
    return k;
}

static bool has(const tn_gguf *f, const llm_config *c, const char *what) {
    return tn_gguf_get(f, key_of(c, what).text) != NULL;
}

static tn_status out_of_range(const tn_gguf *f, const char *key, double value, double least, double most) {
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': byte %" PRId64 ": key '%s' is %g; it must lie between %g and %g",
                           tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key)), key, value, least, most);
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

/* A word out of the file, short and without what would disturb a terminal. */
typedef struct shown_word {
    char text[64];
} shown_word;

static shown_word shown(const char *text, int64_t length) {
    shown_word w = {""};
    for (int64_t i = 0; i < length && i < (int64_t)sizeof w.text - 1; i++)
        w.text[i] = (char)(text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?');
    return w;
}

static bool text_is(const char *text, int64_t length, const char *word) {
    return (size_t)length == strlen(word) && memcmp(text, word, (size_t)length) == 0;
}

static tn_status find_family(const tn_gguf *f, llm_config *c) {
    const char *text;
    int64_t length;
    TRY(tn_gguf_get_string(f, "general.architecture", &text, &length));
    char known[160] = "";
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (text_is(text, length, families[i].architecture)) c->family = &families[i];
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s (%s)", i ? ", " : "", families[i].architecture,
                 families[i].models);
    }
    if (c->family) return TN_OK;
    return tn_backend_fail(
        TN_ERR_UNSUPPORTED, "'%s': byte %" PRId64 ": the architecture '%s' is not known here; known are %s",
        tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, "general.architecture")), shown(text, length).text, known);
}

/* Features that would change the results, and that no family here has. */
static tn_status refuse_features(const tn_gguf *f, const llm_config *c) {
    int64_t experts = 0;
    if (has(f, c, "expert_count")) TRY(tn_gguf_get_int(f, key_of(c, "expert_count").text, &experts));
    if (experts != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s' has %" PRId64 " experts; mixtures of experts are not computed here",
                               tn_gguf_path(f), experts);
    return TN_OK;
}

enum { MOST_LAYERS = 4096, MOST_HEADS = 1 << 16, MOST_WIDTH = 1 << 24, MOST_CONTEXT = 1 << 30 };

/* keys and values of a head have one length, and rope turns all of it. */
static tn_status read_head_dim(const tn_gguf *f, llm_config *c) {
    int64_t hidden = c->size[SIZE_HIDDEN], *head = &c->size[SIZE_HEAD];
    if (has(f, c, "attention.key_length")) {
        TRY(get_size(f, c, "attention.key_length", MOST_WIDTH, head));
    } else if (hidden % c->heads == 0) {
        *head = hidden / c->heads;
    } else {
        key_name key = key_of(c, "attention.head_count");
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': byte %" PRId64 ": %" PRId64 " heads do not divide a width of %" PRId64,
                               tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key.text)), c->heads, hidden);
    }
    const char *const equal[] = {"attention.value_length", "rope.dimension_count"};
    for (int i = 0; i < 2; i++) {
        int64_t other = *head;
        if (has(f, c, equal[i])) TRY(get_size(f, c, equal[i], MOST_WIDTH, &other));
        if (other != *head)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': byte %" PRId64 ": key '%s' is %" PRId64 " where the heads are %" PRId64
                                   " wide; only equal lengths are computed here",
                                   tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key_of(c, equal[i]).text)),
                                   key_of(c, equal[i]).text, other, *head);
    }
    if (*head % 2 == 0) return TN_OK;
    key_name key = key_of(c, has(f, c, "attention.key_length") ? "attention.key_length" : "attention.head_count");
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': byte %" PRId64 ": key '%s' makes heads %" PRId64
                           " wide; rope turns pairs, so it must be an even number",
                           tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key.text)), key.text, *head);
}

static tn_status read_heads(const tn_gguf *f, llm_config *c) {
    TRY(get_size(f, c, "attention.head_count", MOST_HEADS, &c->heads));
    c->kv_heads = c->heads;
    if (has(f, c, "attention.head_count_kv")) TRY(get_size(f, c, "attention.head_count_kv", MOST_HEADS, &c->kv_heads));
    if (c->heads % c->kv_heads != 0)
        return tn_backend_fail(
            TN_ERR_FORMAT,
            "'%s': byte %" PRId64 ": %" PRId64 " heads cannot share %" PRId64 " heads of keys and values",
            tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key_of(c, "attention.head_count_kv").text)), c->heads,
            c->kv_heads);
    TRY(read_head_dim(f, c));
    c->size[SIZE_HALF] = c->size[SIZE_HEAD] / 2;
    c->size[SIZE_QUERIES] = c->heads * c->size[SIZE_HEAD];
    c->size[SIZE_KEYS] = c->kv_heads * c->size[SIZE_HEAD];
    return TN_OK;
}

static tn_status read_rope_scaling(const tn_gguf *f, llm_config *c) {
    const char *type = "none";
    int64_t length = 4;
    double factor = 1;
    key_name key = key_of(c, "rope.scaling.type");
    if (tn_gguf_get(f, key.text)) TRY(tn_gguf_get_string(f, key.text, &type, &length));
    if (text_is(type, length, "none")) return TN_OK;
    if (!text_is(type, length, "linear"))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': byte %" PRId64 ": rope scaling of type '%s' is not computed here",
                               tn_gguf_path(f), tn_gguf_offset(tn_gguf_get(f, key.text)), shown(type, length).text);
    TRY(get_real(f, c, "rope.scaling.factor", 1e-3, 1e6, &factor));
    c->rope_scale = 1 / factor;
    return TN_OK;
}

static tn_status read_sizes(const tn_gguf *f, llm_config *c) {
    TRY(get_size(f, c, "block_count", MOST_LAYERS, &c->layers));
    TRY(get_size(f, c, "embedding_length", MOST_WIDTH, &c->size[SIZE_HIDDEN]));
    TRY(get_size(f, c, "feed_forward_length", MOST_WIDTH, &c->size[SIZE_INTERMEDIATE]));
    TRY(get_size(f, c, "context_length", MOST_CONTEXT, &c->trained_context));
    TRY(read_heads(f, c));
    TRY(get_real(f, c, "attention.layer_norm_rms_epsilon", 1e-12, 1, &c->rms_eps));
    c->rope_base = 10000;
    c->rope_scale = 1;
    if (has(f, c, "rope.freq_base")) TRY(get_real(f, c, "rope.freq_base", 1, 1e12, &c->rope_base));
    TRY(read_rope_scaling(f, c));
    if (has(f, c, "attention.sliding_window"))
        TRY(get_size(f, c, "attention.sliding_window", MOST_CONTEXT, &c->window));
    return TN_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static tn_status check_shape(const tn_gguf *f, const llm_config *c, const tn_gguf_info *t, const slot_row *row) {
    int rank = row->shape[1] == SIZE_ONE ? 1 : 2;
    bool fits = t->rank == rank;
    for (int d = 0; d < rank && fits; d++)
        fits = t->shape[d] == c->size[row->shape[d]];
    if (fits) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': byte %" PRId64 ": tensor '%s' has %d dimensions, [%" PRId64 ", %" PRId64
                           "]; by the metadata it must have %d, [%" PRId64 ", %" PRId64 "]",
                           tn_gguf_path(f), t->offset, t->name, t->rank, t->rank > 0 ? t->shape[0] : 1,
                           t->rank > 1 ? t->shape[1] : 1, rank, c->size[row->shape[0]], c->size[row->shape[1]]);
}

/* What the model's operations take beside activations in f32. */
static bool is_weight_dtype(tn_dtype t) {
    return t < TN_DTYPE_COUNT && (t == TN_F32 || t == TN_F16 || t == TN_BF16 || tn_dtype_block(t) > 1);
}

static tn_status check_tensor(const tn_gguf *f, llm_config *c, int64_t layer, int slot, bool needed) {
    char name[LLM_NAME_SIZE];
    const slot_row *row = layer < 0 ? &head_rows[slot] : &layer_rows[slot];
    tn_gguf_info t = {.struct_size = sizeof t};
    tn_llm_name(name, layer, slot);
    tn_status status = tn_gguf_find(f, name, &t);
    if (status != TN_OK) return needed ? status : TN_OK;
    if (!is_weight_dtype(t.dtype))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': byte %" PRId64
                               ": tensor '%s' is of type %s, which is not computed with here; take "
                               "the model in another quantisation",
                               tn_gguf_path(f), t.offset, name, t.dtype_name);
    c->weights_bytes += t.bytes;
    return check_shape(f, c, &t, row);
}

/* The slot whose name this is; false when there is none. */
static bool find_slot(const char *name, int64_t *layer, int *slot) {
    bool in_layer = strncmp(name, "blk.", 4) == 0;
    *layer = in_layer ? strtoll(name + 4, NULL, 10) : -1;
    int count = *layer >= 0 ? (int)LAYER_SLOTS : (int)HEAD_SLOTS;
    for (*slot = 0; *slot < count; ++*slot) {
        char spelt[LLM_NAME_SIZE];
        tn_llm_name(spelt, *layer, *slot);
        if (strcmp(name, spelt) == 0) return true;
    }
    return false;
}

/* Nothing in the file may go unused: it would have changed the results. Adds up bytes by type on the way. */
static tn_status refuse_unknown(const tn_gguf *f, llm_config *c) {
    uint32_t known = PLAIN_SLOTS | c->family->needs | c->family->allows;
    int64_t bytes[TN_DTYPE_COUNT] = {0}, most = -1;
    for (int64_t i = 0; i < tn_gguf_count(f); i++) {
        tn_gguf_info t = {.struct_size = sizeof t};
        int64_t layer;
        int slot;
        TRY(tn_gguf_at(f, i, &t));
        bool fits = find_slot(t.name, &layer, &slot) && layer < c->layers;
        if (!fits || (layer >= 0 && !(known & BIT(slot))))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': byte %" PRId64 ": tensor '%.64s' is none that a %s model of %" PRId64
                                   " layers has here; without it the results would be wrong",
                                   tn_gguf_path(f), t.offset, t.name, c->family->architecture, c->layers);
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

static tn_status check_tensors(const tn_gguf *f, llm_config *c) {
    tn_gguf_info embedding = {.struct_size = sizeof embedding}, output = {.struct_size = sizeof output};
    TRY(tn_gguf_find(f, head_rows[SLOT_EMBEDDING].name, &embedding));
    c->size[SIZE_VOCABULARY] = embedding.rank > 0 ? embedding.shape[0] : 0;
    if (c->size[SIZE_VOCABULARY] < 1 || c->size[SIZE_VOCABULARY] > INT32_MAX)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': byte %" PRId64 ": tensor '%s' has %" PRId64 " rows, one a token",
                               tn_gguf_path(f), embedding.offset, embedding.name, c->size[SIZE_VOCABULARY]);
    c->tied = tn_gguf_find(f, head_rows[SLOT_OUTPUT].name, &output) != TN_OK;
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        TRY(check_tensor(f, c, -1, slot, slot == SLOT_EMBEDDING || slot == SLOT_OUTPUT_NORM));
    uint32_t needs = PLAIN_SLOTS | c->family->needs;
    for (int64_t layer = 0; layer < c->layers; layer++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            TRY(check_tensor(f, c, layer, slot, needs & BIT(slot)));
    return refuse_unknown(f, c);
}

/* ---- the configuration ------------------------------------------------------------------------------------------- */

static tn_status take_options(const tn_gguf *f, const tn_llm_options *o, llm_config *c) {
    static const tn_dtype caches[] = {
        [TN_LLM_CACHE_F16] = TN_F16, [TN_LLM_CACHE_BF16] = TN_BF16, [TN_LLM_CACHE_F32] = TN_F32};
    c->cache = TN_F16;
    c->context = c->trained_context < LLM_DEFAULT_CONTEXT ? c->trained_context : LLM_DEFAULT_CONTEXT;
    if (o) {
        if (o->struct_size < sizeof *o)
            return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_options: set struct_size to sizeof(tn_llm_options)");
        if (o->context < 0 || o->context > c->trained_context)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "a context of %" PRId64 " tokens; '%s' was trained for 1 to %" PRId64, o->context,
                                   tn_gguf_path(f), c->trained_context);
        if ((unsigned)o->cache > TN_LLM_CACHE_F32)
            return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_options: %d is no type of cache", (int)o->cache);
        if (o->context > 0) c->context = o->context;
        c->cache = caches[o->cache];
    }
    c->pages = (c->context + LLM_PAGE - 1) / LLM_PAGE;
    return TN_OK;
}

tn_status tn_llm_configure(const tn_gguf *file, const tn_llm_options *options, llm_config *out) {
    *out = (llm_config){.size = {[SIZE_ONE] = 1}};
    TRY(find_family(file, out));
    TRY(refuse_features(file, out));
    TRY(read_sizes(file, out));
    TRY(check_tensors(file, out));
    TRY(take_options(file, options, out));
    if (out->window >= out->context) out->window = 0; /* nothing is ever that far back */
    return TN_OK;
}

static tn_status estimate(const llm_config *c, tn_memory_estimate *out) {
    tn_model_sizes sizes = {.struct_size = sizeof sizes,
                            .hidden = c->size[SIZE_HIDDEN],
                            .intermediate = c->size[SIZE_INTERMEDIATE],
                            .layers = c->layers,
                            .vocabulary = c->size[SIZE_VOCABULARY],
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->size[SIZE_HEAD],
                            .sequence = c->context,
                            .bytes_per_cache = (double)tn_dtype_size(c->cache),
                            .weights_bytes = c->weights_bytes,
                            .tied_embeddings = c->tied};
    *out = (tn_memory_estimate){.struct_size = sizeof *out};
    return tn_estimate_inference_memory(&sizes, out);
}

tn_status tn_llm_describe(const llm_config *c, const tn_gguf *file, tn_llm_facts *facts) {
    const char *name = "";
    int64_t length = 0;
    tn_memory_estimate memory;
    TRY(estimate(c, &memory));
    if (tn_gguf_get(file, "general.name")) TRY(tn_gguf_get_string(file, "general.name", &name, &length));
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
    };
    snprintf(facts->name, sizeof facts->name, "%.*s", (int)(length < 120 ? length : 120), name);
    snprintf(facts->quantisation, sizeof facts->quantisation, "%s", c->quantisation);
    return TN_OK;
}

tn_status tn_llm_inspect(const tn_gguf *file, const tn_llm_options *options, tn_llm_facts *facts) {
    if (!file || !facts || facts->struct_size < sizeof *facts)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_inspect: an argument is NULL or facts->struct_size is not set");
    llm_config c;
    TRY(tn_llm_configure(file, options, &c));
    return tn_llm_describe(&c, file, facts);
}
