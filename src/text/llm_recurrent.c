/* llm_recurrent.c — layers with a state of fixed size: short convolutions, Mamba 1 and 2, delta nets, RWKV, Griffin.
 *
 * A layer is recorded for n tokens, of one sequence or one each of n sequences. Products and norms are those of all
 * tokens at once; the state goes from token to token of its sequence, by the same operations as if each were computed
 * alone, so it has the same bits. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "text/llm_model.h"

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static tn_status read_conv(const hf_folder *f, llm_config *c) {
    int64_t hidden = c->size[SIZE_HIDDEN];
    TRY(tn_hf_size(f, "conv_L_cache", 3, LLM_MOST_WIDTH, &c->size[SIZE_KERNEL]));
    c->size[SIZE_CHANNELS] = c->size[SIZE_INNER] = hidden;
    c->size[SIZE_MIX_IN] = 3 * hidden;
    return TN_OK;
}

/* What config.json calls the sizes of Mamba layers, where all layers are of that kind and where some are. */
typedef enum mamba_word { EXPAND, STATE, KERNEL, RANK, HEADS, WIDTH, GROUPS, MAMBA_WORDS } mamba_word;

bool tn_llm_is_pure(const llm_config *c) { return !(c->family->slots.needs & BIT(SLOT_O)); }

static tn_status read_word(const hf_folder *f, const llm_config *c, mamba_word word, int64_t usual, int64_t most,
                           int64_t *out) {
    static const char *const words[3][MAMBA_WORDS] = {
        {"mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_n_heads", "mamba_d_head",
         "mamba_n_groups"},
        {"expand", "state_size", "conv_kernel", "time_step_rank", "num_heads", "head_dim", "n_groups"},
        {"expand", "ssm_state_size", "conv_kernel", "", "mamba_num_heads", "mamba_head_dim", "n_groups"}};
    const char *key = words[c->family->slots.lone ? 2 : tn_llm_is_pure(c)][word];
    *out = usual;
    bool by_itself = tn_json_kind_of(tn_json_get(f->config, key)) == TN_JSON_STRING; /* "auto" */
    return by_itself ? TN_OK : tn_hf_size(f, key, usual, most, out);
}

/* The part that both kinds of Mamba have. */
static tn_status read_inner(const hf_folder *f, llm_config *c, int64_t state) {
    int64_t expand, *inner = &c->size[SIZE_INNER];
    TRY(read_word(f, c, EXPAND, 2, 1024, &expand));
    TRY(read_word(f, c, STATE, state, LLM_MOST_WIDTH, &c->size[SIZE_STATE]));
    TRY(read_word(f, c, KERNEL, 4, LLM_MOST_WIDTH, &c->size[SIZE_KERNEL]));
    *inner = expand * c->size[SIZE_HIDDEN];
    if (tn_hf_has(f, "mamba_d_ssm")) TRY(tn_hf_size(f, "mamba_d_ssm", *inner, LLM_MOST_WIDTH, inner));
    return tn_llm_is_pure(c) ? tn_hf_size(f, "intermediate_size", *inner, LLM_MOST_WIDTH, inner) : TN_OK;
}

tn_status tn_llm_size_mamba(llm_config *c, const char *place) {
    int64_t inner = c->size[SIZE_INNER], state = c->size[SIZE_STATE], heads = c->recurrent.value_heads;
    int64_t groups = c->recurrent.key_heads;
    if (c->family->recurrent.kind == RECURRENCE_MAMBA) {
        c->size[SIZE_MIX_IN] = 2 * inner;
        c->size[SIZE_CHANNELS] = c->size[SIZE_DECAYS] = inner;
        c->size[SIZE_DECAY_STATES] = state;
        c->size[SIZE_MIX_X] = c->size[SIZE_STEP_RANK] + 2 * state;
        return TN_OK;
    }
    if (heads % groups != 0 || inner < 1 || inner % heads != 0)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': Mamba layers have %" PRId64 " numbers in %" PRId64 " heads and %" PRId64
                               " groups; each must be a multiple of the next",
                               place, inner, heads, groups);
    c->size[SIZE_MIX_NORM] = inner;
    c->size[SIZE_DECAYS] = heads;
    c->size[SIZE_CHANNELS] = inner + 2 * groups * state;
    c->size[SIZE_MIX_IN] = inner + c->size[SIZE_CHANNELS] + heads;
    return TN_OK;
}

static tn_status read_mamba(const hf_folder *f, llm_config *c) {
    TRY(read_inner(f, c, 16));
    TRY(read_word(f, c, RANK, (c->size[SIZE_HIDDEN] + 15) / 16, LLM_MOST_WIDTH, &c->size[SIZE_STEP_RANK]));
    return tn_llm_size_mamba(c, f->path);
}

static tn_status read_mamba2(const hf_folder *f, llm_config *c) {
    int64_t width, *inner = &c->size[SIZE_INNER];
    bool pure = tn_llm_is_pure(c) || c->family->slots.lone;
    TRY(read_inner(f, c, pure ? 128 : 256));
    TRY(read_word(f, c, HEADS, 128, LLM_MOST_HEADS, &c->recurrent.value_heads));
    TRY(read_word(f, c, WIDTH, pure ? 64 : *inner / c->recurrent.value_heads, LLM_MOST_WIDTH, &width));
    TRY(read_word(f, c, GROUPS, pure ? 8 : 1, c->recurrent.value_heads, &c->recurrent.key_heads));
    const tn_json *limit = tn_json_get(f->config, "time_step_limit");
    if (tn_json_number(tn_json_at(limit, 0), 0) > 0 || tn_json_kind_of(tn_json_at(limit, 1)) == TN_JSON_NUMBER)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "a 'time_step_limit' other than 0 to infinity is not supported");
    *inner = c->recurrent.value_heads * width;
    return tn_llm_size_mamba(c, f->path);
}

tn_status tn_llm_size_deltanet(llm_config *c, const char *place) {
    int64_t inner = c->size[SIZE_INNER], heads = c->recurrent.value_heads, groups = c->recurrent.key_heads;
    if (heads % groups != 0 || inner % heads != 0)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': recurrent layers have %" PRId64 " numbers in %" PRId64 " value heads and %" PRId64
                               " key heads; each must be a multiple of the next",
                               place, inner, heads, groups);
    c->size[SIZE_DECAYS] = heads;
    c->size[SIZE_MIX_NORM] = inner / heads;
    c->size[SIZE_CHANNELS] = inner + 2 * groups * c->size[SIZE_STATE];
    c->size[SIZE_MIX_IN] = c->size[SIZE_CHANNELS] + (c->family->recurrent.needs & BIT(SLOT_MIX_GATE) ? 0 : inner);
    c->size[SIZE_RATES] = 2 * heads;
    return TN_OK;
}

static tn_status read_deltanet(const hf_folder *f, llm_config *c) {
    int64_t keys, values, *inner = &c->size[SIZE_INNER];
    TRY(tn_hf_size(f, "linear_num_key_heads", 16, LLM_MOST_HEADS, &c->recurrent.key_heads));
    TRY(tn_hf_size(f, "linear_num_value_heads", 32, LLM_MOST_HEADS, &c->recurrent.value_heads));
    TRY(tn_hf_size(f, "linear_key_head_dim", 128, LLM_MOST_WIDTH, &keys));
    TRY(tn_hf_size(f, "linear_value_head_dim", 128, LLM_MOST_WIDTH, &values));
    TRY(tn_hf_size(f, "linear_conv_kernel_dim", 4, LLM_MOST_WIDTH, &c->size[SIZE_KERNEL]));
    *inner = c->recurrent.value_heads * values;
    c->size[SIZE_STATE] = keys;
    return tn_llm_size_deltanet(c, f->path);
}

/* RWKV's state has, for each channel, a sum of values, that of their weights, and the exponent both are divided by. */
enum { RWKV_ROWS = 3, RWKV_SHIFTS = 2 };

static tn_status read_rwkv(const hf_folder *f, llm_config *c) {
    int64_t *inner = &c->size[SIZE_INNER];
    TRY(tn_hf_size(f, "attention_hidden_size", c->size[SIZE_HIDDEN], LLM_MOST_WIDTH, inner));
    if (*inner != c->size[SIZE_HIDDEN]) /* transformers' own states have no room for another width */
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "'attention_hidden_size' is %" PRId64 ", not the hidden size %" PRId64
                          "; this is not supported",
                          *inner, c->size[SIZE_HIDDEN]);
    c->size[SIZE_ASK] = c->size[SIZE_KEYS] = c->size[SIZE_DECAYS] = *inner;
    c->size[SIZE_CHANNELS] = c->size[SIZE_HIDDEN];
    c->size[SIZE_KERNEL] = RWKV_SHIFTS + 1;
    return TN_OK;
}

static tn_status read_griffin(const hf_folder *f, llm_config *c) {
    int64_t *heads = &c->size[SIZE_BLOCKS], *inner = &c->size[SIZE_INNER];
    TRY(tn_hf_size(f, "lru_width", c->size[SIZE_HIDDEN], LLM_MOST_WIDTH, inner));
    TRY(tn_hf_size(f, "num_attention_heads", -1, LLM_MOST_HEADS, heads));
    TRY(tn_hf_size(f, "conv1d_width", 4, LLM_MOST_WIDTH, &c->size[SIZE_KERNEL]));
    if (*inner % *heads != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "'lru_width' %" PRId64 " is not a multiple of %" PRId64 " heads",
                          *inner, *heads);
    c->size[SIZE_BLOCK] = *inner / *heads;
    c->size[SIZE_MIX_IN] = c->size[SIZE_CHANNELS] = c->size[SIZE_DECAYS] = *inner;
    return TN_OK;
}

static const tn_json *either(const hf_folder *f, const char *key, const char *other) {
    const tn_json *v = tn_json_get(f->config, key);
    return tn_json_kind_of(v) == TN_JSON_ARRAY ? v : tn_json_get(f->config, other);
}

/* Which layers: a list of words, a list of those with attention, every n-th, or all. */
static tn_status read_kinds(const hf_folder *f, llm_config *c) {
    const tn_json *types = either(f, "layer_types", "layers_block_type");
    const tn_json *full = either(f, "full_attn_idxs", "attn_layer_indices");
    const tn_json *cycle = either(f, "block_types", "_block_types"); /* repeated (RecurrentGemma) */
    size_t period = tn_json_length(cycle);
    bool typed = tn_json_kind_of(types) == TN_JSON_ARRAY, listed = tn_json_kind_of(full) == TN_JSON_ARRAY;
    int64_t interval = c->family->recurrent.interval, offset = interval - 1;
    if (tn_hf_has(f, "attn_layer_period")) { /* Jamba */
        TRY(tn_hf_size(f, "attn_layer_period", -1, LLM_MOST_LAYERS, &interval));
        offset = tn_json_int(tn_json_get(f->config, "attn_layer_offset"), 4);
    } else if (interval > 0) {
        TRY(tn_hf_size(f, "full_attention_interval", interval, LLM_MOST_LAYERS, &interval));
        offset = interval - 1;
    }
    for (int64_t i = 0; i < c->layers; i++) {
        bool attends = interval > 0 && i % interval == offset;
        for (size_t k = 0; listed && k < tn_json_length(full); k++)
            attends = attends || tn_json_int(tn_json_at(full, k), -1) == i;
        const char *word = tn_json_string(tn_json_at(types, (size_t)i), "");
        if (typed) attends = tn_txt_ends_with(word, "attention") && strcmp(word, "linear_attention") != 0;
        if (period > 0) attends = strcmp(tn_json_string(tn_json_at(cycle, (size_t)i % period), ""), "attention") == 0;
        if (tn_llm_is_pure(c) || !attends) tn_llm_set_recurrent(c, i);
    }
    if (typed || listed || tn_llm_is_pure(c) || interval > 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json' has no list 'layer_types' of the kinds of layers", f->path);
}

/* Each layer is of one kind: a list of words, or a letter for each. */
static tn_status read_lone_kinds(const hf_folder *f, llm_config *c) {
    static const struct {
        const char *words[2], letter;
    } kinds[] = {{{"linear_attention", "mamba"}, 'M'},
                 {{"full_attention", "attention"}, '*'},
                 {{"moe", "moe"}, 'E'},
                 {{"mlp", "mlp"}, '-'}};
    enum { RECURRENT, ATTENTION, MIXTURE, DENSE, KINDS };
    const tn_json *types = either(f, "layers_block_type", "layer_types");
    const char *pattern = tn_hf_text(f, "hybrid_override_pattern", "");
    size_t letters = strlen(pattern);
    for (int64_t i = 0; i < c->layers; i++) {
        const char *word = tn_json_string(tn_json_at(types, (size_t)i), "");
        char letter = (size_t)i < letters ? pattern[i] : 0;
        int kind = 0;
        while (kind < KINDS && letter != kinds[kind].letter && strcmp(word, kinds[kind].words[0]) != 0 &&
               strcmp(word, kinds[kind].words[1]) != 0)
            kind++;
        if (kind == KINDS)
            return tn_hf_fail(f->path, TN_ERR_FORMAT,
                              "'layers_block_type' says '%s' of layer %" PRId64
                              "; it must be linear_attention, full_attention, moe or mlp",
                              tn_txt_shown(word, strlen(word)).text, i);
        if (kind == RECURRENT) tn_llm_set_recurrent(c, i);
        if (kind >= MIXTURE) tn_llm_set_attention(c, i, false);
        if (kind == DENSE) tn_llm_set_unmixed(c, i);
    }
    return TN_OK;
}

tn_status tn_llm_read_recurrent(const hf_folder *f, llm_config *c) {
    static tn_status (*const readers[])(const hf_folder *f, llm_config *c) = {
        [RECURRENCE_CONV] = read_conv,         [RECURRENCE_MAMBA] = read_mamba, [RECURRENCE_MAMBA2] = read_mamba2,
        [RECURRENCE_DELTANET] = read_deltanet, [RECURRENCE_RWKV] = read_rwkv,   [RECURRENCE_GRIFFIN] = read_griffin};
    if (c->family->recurrent.kind == RECURRENCE_NONE) return TN_OK;
    for (int64_t i = 0; i < c->layers && c->family->recurrent.beside; i++)
        tn_llm_set_recurrent(c, i);
    if (c->family->slots.lone)
        TRY(read_lone_kinds(f, c));
    else if (!c->family->recurrent.beside)
        TRY(read_kinds(f, c));
    TRY(readers[c->family->recurrent.kind](f, c));
    int64_t channels = c->size[SIZE_CHANNELS];
    if (channels <= LLM_MOST_WIDTH && c->size[SIZE_MIX_IN] <= 4 * (int64_t)LLM_MOST_WIDTH && c->size[SIZE_KERNEL] > 1)
        return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "recurrent layers have %" PRId64 " channels and a kernel of %" PRId64
                      "; at most %d and at least 2 are supported",
                      channels, c->size[SIZE_KERNEL], (int)LLM_MOST_WIDTH);
}

int tn_llm_state_shape(const llm_config *c, int64_t shape[3]) {
    int64_t inner = c->size[SIZE_INNER], state = c->size[SIZE_STATE], heads = c->recurrent.value_heads;
    switch (c->family->recurrent.kind) {
    case RECURRENCE_MAMBA: shape[0] = inner, shape[1] = state; return 2;
    case RECURRENCE_MAMBA2: shape[0] = heads, shape[1] = inner / heads, shape[2] = state; return 3;
    case RECURRENCE_RWKV: shape[0] = RWKV_ROWS, shape[1] = inner; return 2;
    case RECURRENCE_GRIFFIN: shape[0] = 1, shape[1] = inner; return 2;
    case RECURRENCE_DELTANET: shape[0] = heads, shape[1] = state, shape[2] = inner / heads; return 3;
    default: return 0;
    }
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* A layer of a recording: its weights, and the states of its sequences. */
typedef struct place {
    const llm_weights *w;
    int64_t layer;
    const llm_inputs *in;
    tn_tensor *const *weight; /* the layer's, by slot */
} place;

static tn_tensor *product(const place *p, int slot, const tn_tensor *x, const tn_tensor *bias) {
    return tn_llm_product(p->w, p->layer, slot, x, bias);
}

/* Rows that belong to one sequence, of n. */
static int64_t rows_each(const place *p, int64_t n) { return p->in->sequences ? 1 : n; }

/* The state of the sequence that row t belongs to. */
static tn_tensor *state_at(const place *p, int64_t t, llm_cache which) {
    const llm_layer *layers = p->in->sequences ? p->in->sequences[t].layers : p->w->layers;
    return layers[p->layer].cache[which];
}

/* Replaces it, or a part of it, unless the sequence waits. */
static void keep_state(const place *p, int64_t t, tn_tensor *state, tn_tensor *made) {
    if (p->in->goes_on) made = tn_where(tn_narrow(p->in->goes_on, 0, t, 1), made, state);
    tn_copy_(state, made);
}

/* One sequence's part of the convolution: its inputs [channels, kernel - 1 + n] as [n, channels]. */
static tn_tensor *convolve_inputs(const tn_tensor *inputs, const tn_tensor *weight) {
    int64_t kernel = tn_size(weight, 1), n = tn_size(inputs, 1) - kernel + 1;
    tn_tensor *y = NULL;
    for (int64_t k = 0; k < kernel; k++) {
        tn_tensor *part = tn_mul(tn_narrow(inputs, 1, k, n), tn_narrow(weight, 1, k, 1));
        y = y ? tn_add(y, part) : part;
    }
    return tn_transpose(y, 0, 1);
}

static tn_tensor *join_rows(tn_tensor *const *rows, int64_t count) {
    return count == 1 ? rows[0] : tn_cat(rows, (int)count, 0);
}

/* The causal convolution of each channel: x [n, channels] and the inputs before it. Returns [n, channels]. */
static tn_tensor *convolve(const llm_config *c, const place *p, tn_tensor *x) {
    int64_t channels = c->size[SIZE_CHANNELS], kernel = c->size[SIZE_KERNEL], n = tn_size(x, 0);
    int64_t each = rows_each(p, n);
    tn_tensor *weight = tn_cast(tn_reshape(p->weight[SLOT_CONV], TN_DIMS(channels, kernel)), TN_F32);
    tn_tensor *columns = tn_transpose(x, 0, 1), *parts[TN_LLM_BATCH];
    for (int64_t t = 0; t < n; t += each) {
        tn_tensor *own = each == n ? columns : tn_narrow(columns, 1, t, each);
        tn_tensor *state = state_at(p, t, CACHE_CONV), *inputs = tn_cat((tn_tensor *[]){state, own}, 2, 1);
        parts[t / each] = convolve_inputs(inputs, weight);
        keep_state(p, t, state, tn_narrow(inputs, 1, each, kernel - 1));
    }
    tn_tensor *y = join_rows(parts, n / each);
    if (p->weight[SLOT_CONV_BIAS]) y = tn_add(y, p->weight[SLOT_CONV_BIAS]);
    return tn_contiguous(y);
}

/* log(1 + exp(x + bias)): how far a state moves. */
static tn_tensor *step_of(const tn_tensor *x, const tn_tensor *bias) {
    tn_softplus_options o = TN_SOFTPLUS_DEFAULTS;
    return tn_softplus(tn_add(x, bias), &o);
}

static tn_tensor *decay_of(const llm_config *c, const place *p) {
    const int64_t shape[] = {c->size[SIZE_DECAYS], c->size[SIZE_DECAY_STATES]};
    tn_tensor *x = tn_reshape(tn_cast(p->weight[SLOT_DECAY], TN_F32), shape, shape[1] > 0 ? 2 : 1);
    return c->recurrent.decays_made ? x : tn_neg(tn_exp(x));
}

/* Row t of x [n, …] in this shape. */
static tn_tensor *row(const tn_tensor *x, int64_t t, const int64_t *shape, int rank) {
    return tn_reshape(tn_narrow(x, 0, t, 1), shape, rank);
}

/* What one token makes of a layer's state: changes *h and returns what the layer reads there. */
typedef tn_tensor *advance(const llm_config *c, tn_tensor *const *parts, int64_t t, tn_tensor **h);

/* The tokens one by one. Returns [n, inner]. */
static tn_tensor *scan(const llm_config *c, const place *p, int64_t n, advance *step, tn_tensor *const *parts) {
    int64_t each = rows_each(p, n);
    tn_tensor *h = NULL, *y[TN_LLM_BATCH];
    for (int64_t t = 0; t < n; t++) {
        if (t % each == 0) h = state_at(p, t, CACHE_STATE);
        y[t] = tn_reshape(step(c, parts, t, &h), TN_DIMS(1, c->size[SIZE_INNER]));
        if (t % each == each - 1) keep_state(p, t, state_at(p, t, CACHE_STATE), h);
    }
    return join_rows(y, n);
}
_Static_assert((int)LLM_SCAN <= (int)TN_LLM_BATCH, "rows of a recording of recurrent layers");

/* ---- the kinds of layers ----------------------------------------------------------------------------------------- */

static tn_tensor *short_convolution(const llm_config *c, const place *p, const tn_tensor *x) {
    int64_t hidden = c->size[SIZE_HIDDEN];
    tn_tensor *before = tn_narrow(x, 1, 0, hidden), *behind = tn_narrow(x, 1, hidden, hidden);
    tn_tensor *y = convolve(c, p, tn_mul(before, tn_narrow(x, 1, 2 * hidden, hidden)));
    return tn_mul(behind, y);
}

/* Of a part of the second product, where the family has such norms (Jamba, Falcon Mamba). */
static tn_tensor *inner_norm(const llm_config *c, const place *p, int slot, tn_tensor *x) {
    return c->recurrent.inner_eps > 0 ? tn_hf_rms_norm(x, p->weight[slot], c->recurrent.inner_eps) : x;
}

enum { PART_STEP, PART_INPUT, PART_WRITTEN, PART_READ, PART_DECAY };

/* h = exp(step · decay) · h + step · u · B; returns h · C. parts: step and u [n, inner], B and C [n, state], decay. */
static tn_tensor *advance_mamba(const llm_config *c, tn_tensor *const *parts, int64_t t, tn_tensor **h) {
    const int64_t channels[] = {c->size[SIZE_INNER], 1}, states[] = {1, c->size[SIZE_STATE]};
    tn_tensor *step = row(parts[PART_STEP], t, channels, 2), *u = row(parts[PART_INPUT], t, channels, 2);
    tn_tensor *kept = tn_mul(*h, tn_exp(tn_mul(step, parts[PART_DECAY])));
    *h = tn_add(kept, tn_mul(tn_mul(step, u), row(parts[PART_WRITTEN], t, states, 2)));
    return tn_sum(tn_mul(*h, row(parts[PART_READ], t, states, 2)), (int64_t[]){1}, 1, false);
}

static tn_tensor *mamba(const llm_config *c, const place *p, const tn_tensor *x) {
    int64_t inner = c->size[SIZE_INNER], state = c->size[SIZE_STATE], rank = c->size[SIZE_STEP_RANK];
    tn_tensor *u = c->activation(convolve(c, p, tn_narrow(x, 1, 0, inner)));
    tn_tensor *made = product(p, SLOT_MIX_X, u, NULL);
    tn_tensor *step = inner_norm(c, p, SLOT_STEP_NORM, tn_narrow(made, 1, 0, rank));
    tn_tensor *parts[] = {step_of(product(p, SLOT_STEP, step, NULL), p->weight[SLOT_STEP_BIAS]), u,
                          inner_norm(c, p, SLOT_WRITTEN_NORM, tn_narrow(made, 1, rank, state)),
                          inner_norm(c, p, SLOT_READ_NORM, tn_narrow(made, 1, rank + state, state)), decay_of(c, p)};
    tn_tensor *y = scan(c, p, tn_size(x, 0), advance_mamba, parts);
    return tn_mul(tn_add(y, tn_mul(u, p->weight[SLOT_SKIP])), tn_silu(tn_narrow(x, 1, inner, inner)));
}

/* Each key head's numbers for all heads that share it: x [n, groups · width] as [n, heads, width]. */
static tn_tensor *for_heads(const llm_config *c, const tn_tensor *x) {
    int64_t heads = c->recurrent.value_heads, groups = c->recurrent.key_heads;
    int64_t n = tn_size(x, 0), width = tn_size(x, 1) / groups, each = heads / groups;
    tn_tensor *all = c->family->recurrent.tiled
                         ? tn_expand(tn_reshape(x, TN_DIMS(n, 1, groups, width)), TN_DIMS(n, each, groups, width))
                         : tn_expand(tn_reshape(x, TN_DIMS(n, groups, 1, width)), TN_DIMS(n, groups, each, width));
    return tn_reshape(all, TN_DIMS(n, heads, width));
}

/* The same by heads, with one decay a head. parts: step and how much is kept [n, heads] (in place of the decay), u
 * [n, inner], B and C [n, heads, state]. */
static tn_tensor *advance_mamba2(const llm_config *c, tn_tensor *const *parts, int64_t t, tn_tensor **h) {
    int64_t heads = c->recurrent.value_heads;
    const int64_t each[] = {heads, 1, 1}, inputs[] = {heads, c->size[SIZE_INNER] / heads, 1};
    const int64_t states[] = {heads, 1, c->size[SIZE_STATE]};
    tn_tensor *moved = tn_mul(row(parts[PART_INPUT], t, inputs, 3), row(parts[PART_STEP], t, each, 3));
    *h = tn_add(tn_mul(*h, row(parts[PART_DECAY], t, each, 3)), tn_mul(moved, row(parts[PART_WRITTEN], t, states, 3)));
    return tn_sum(tn_mul(*h, row(parts[PART_READ], t, states, 3)), (int64_t[]){2}, 1, false);
}

/* The parts of the first product, each times its number. */
static tn_tensor *scale_parts(const llm_config *c, tn_tensor *x) {
    int64_t inner = c->size[SIZE_INNER], keys = c->recurrent.key_heads * c->size[SIZE_STATE], from = 0;
    const int64_t widths[MIX_PARTS] = {inner, inner, keys, keys, c->recurrent.value_heads};
    tn_tensor *parts[MIX_PARTS];
    for (int i = 0; i < MIX_PARTS; from += widths[i++])
        parts[i] = tn_mul_scalar(tn_narrow(x, 1, from, widths[i]), c->scales.mix[i]);
    return tn_cat(parts, MIX_PARTS, 1);
}

/* A norm in groups ends it, in most models. */
static tn_tensor *mamba2(const llm_config *c, const place *p, tn_tensor *x) {
    int64_t n = tn_size(x, 0), inner = c->size[SIZE_INNER], heads = c->recurrent.value_heads;
    int64_t groups = c->recurrent.key_heads, keys = groups * c->size[SIZE_STATE];
    tn_activation *activation = c->recurrent.activation ? c->recurrent.activation : c->activation;
    if (c->family->recurrent.beside) x = scale_parts(c, x);
    tn_tensor *made = activation(convolve(c, p, tn_narrow(x, 1, inner, c->size[SIZE_CHANNELS])));
    tn_tensor *u = tn_narrow(made, 1, 0, inner);
    tn_tensor *step = step_of(tn_narrow(x, 1, inner + c->size[SIZE_CHANNELS], heads), p->weight[SLOT_STEP_BIAS]);
    tn_tensor *parts[] = {step, u, for_heads(c, tn_narrow(made, 1, inner, keys)),
                          for_heads(c, tn_narrow(made, 1, inner + keys, keys)), tn_exp(tn_mul(step, decay_of(c, p)))};
    tn_tensor *y = scan(c, p, n, advance_mamba2, parts);
    tn_tensor *skip =
        tn_mul(tn_reshape(u, TN_DIMS(n, heads, inner / heads)), tn_reshape(p->weight[SLOT_SKIP], TN_DIMS(heads, 1)));
    y = tn_mul(tn_add(y, tn_reshape(skip, TN_DIMS(n, inner))), tn_silu(tn_narrow(x, 1, 0, inner)));
    if (!p->weight[SLOT_MIX_NORM]) return y;
    y = tn_hf_rms_norm(tn_reshape(y, TN_DIMS(n, groups, inner / groups)), NULL, c->eps);
    return tn_mul(tn_reshape(y, TN_DIMS(n, inner)), tn_reshape(p->weight[SLOT_MIX_NORM], TN_DIMS(inner)));
}

/* Rows of length 1. */
static tn_tensor *unit_rows(const tn_tensor *x) {
    static const double EPS = 1e-6;
    tn_tensor *squares = tn_sum(tn_mul(x, x), (int64_t[]){-1}, 1, true);
    return tn_mul(x, tn_rsqrt(tn_add_scalar(squares, EPS)));
}

/* Gated delta net: a head's state maps keys to values; what it has for a key moves towards the new value.
 * parts: writing rate and how much is kept [n, heads], values [n, inner], keys and queries [n, heads, state]. */
static tn_tensor *advance_delta(const llm_config *c, tn_tensor *const *parts, int64_t t, tn_tensor **h) {
    int64_t heads = c->recurrent.value_heads;
    const int64_t each[] = {heads, 1, 1}, values[] = {heads, 1, c->size[SIZE_INNER] / heads};
    const int64_t states[] = {heads, c->size[SIZE_STATE], 1};
    tn_tensor *k = row(parts[PART_WRITTEN], t, states, 3), *kept = tn_mul(*h, row(parts[PART_DECAY], t, each, 3));
    tn_tensor *known = tn_sum(tn_mul(kept, k), (int64_t[]){1}, 1, true);
    tn_tensor *change = tn_mul(tn_sub(row(parts[PART_INPUT], t, values, 3), known), row(parts[PART_STEP], t, each, 3));
    *h = tn_add(kept, tn_mul(k, change));
    return tn_sum(tn_mul(*h, row(parts[PART_READ], t, states, 3)), (int64_t[]){1}, 1, false);
}

/* all: [n, queries, keys and values of the convolution]; gate [n, inner]; rates: writing and decay, [n, heads]. */
static tn_tensor *delta_rule(const llm_config *c, const place *p, tn_tensor *all, const tn_tensor *gate,
                             tn_tensor *const rates[2]) {
    int64_t heads = c->recurrent.value_heads, inner = c->size[SIZE_INNER], state = c->size[SIZE_STATE];
    int64_t groups = c->recurrent.key_heads, keys = groups * state, n = tn_size(all, 0);
    tn_tensor *made = c->activation(convolve(c, p, all));
    tn_tensor *q = unit_rows(for_heads(c, tn_narrow(made, 1, 0, keys)));
    tn_tensor *k = unit_rows(for_heads(c, tn_narrow(made, 1, keys, keys)));
    tn_tensor *parts[] = {tn_sigmoid(rates[0]), tn_narrow(made, 1, 2 * keys, inner), k,
                          tn_mul_scalar(q, 1 / sqrt((double)state)),
                          tn_exp(tn_mul(step_of(rates[1], p->weight[SLOT_STEP_BIAS]), decay_of(c, p)))};
    tn_tensor *y = tn_reshape(scan(c, p, n, advance_delta, parts), TN_DIMS(n, heads, inner / heads));
    y = tn_hf_rms_norm(y, p->weight[SLOT_MIX_NORM], c->eps);
    return tn_mul(tn_reshape(y, TN_DIMS(n, inner)), tn_silu(gate));
}

/* Part [from, from + width) of each group, [n, groups · width]: a product has the parts of each key head next to each
 * other. */
static tn_tensor *part_of(const tn_tensor *groups, int64_t from, int64_t width) {
    return tn_reshape(tn_narrow(groups, 2, from, width), TN_DIMS(tn_size(groups, 0), tn_size(groups, 1) * width));
}

static tn_tensor *deltanet(const llm_config *c, const place *p, const tn_tensor *x, tn_tensor *made) {
    int64_t groups = c->recurrent.key_heads, each = c->recurrent.value_heads / groups, state = c->size[SIZE_STATE];
    int64_t values = c->size[SIZE_INNER] / groups, n = tn_size(x, 0);
    tn_tensor *rates[2];
    if (p->weight[SLOT_RATES]) {
        tn_tensor *both = tn_reshape(product(p, SLOT_RATES, x, NULL), TN_DIMS(n, groups, 2 * each));
        rates[0] = part_of(both, 0, each);
        rates[1] = part_of(both, each, each);
    } else {
        rates[0] = product(p, SLOT_WRITE_RATE, x, NULL);
        rates[1] = product(p, SLOT_DECAY_RATE, x, NULL);
    }
    if (p->weight[SLOT_MIX_GATE]) return delta_rule(c, p, made, product(p, SLOT_MIX_GATE, x, NULL), rates);
    tn_tensor *parts = tn_reshape(made, TN_DIMS(n, groups, tn_size(made, 1) / groups));
    tn_tensor *all = tn_cat(
        (tn_tensor *[]){part_of(parts, 0, state), part_of(parts, state, state), part_of(parts, 2 * state, values)}, 3,
        1);
    return delta_rule(c, p, all, part_of(parts, 2 * state + values, values), rates);
}

/* h = kept · h + moved. parts: kept, moved [n, inner]. */
static tn_tensor *advance_griffin(const llm_config *c, tn_tensor *const *parts, int64_t t, tn_tensor **h) {
    const int64_t shape[] = {1, c->size[SIZE_INNER]};
    return *h = tn_add(tn_mul(row(parts[PART_STEP], t, shape, 2), *h), row(parts[PART_INPUT], t, shape, 2));
}

/* sigmoid of a product by blocks of channels: x [n, inner]. */
static tn_tensor *block_gates(const llm_config *c, const place *p, int slot, int shift, const tn_tensor *x) {
    int64_t n = tn_size(x, 0), inner = c->size[SIZE_INNER], block = c->size[SIZE_BLOCK], blocks = inner / block;
    tn_tensor *apart = tn_transpose(tn_reshape(x, TN_DIMS(n, blocks, block)), 0, 1);
    tn_tensor *y = tn_transpose(tn_matmul(apart, tn_cast(p->weight[slot], TN_F32)), 0, 1);
    return tn_sigmoid(tn_reshape(tn_add(y, tn_cast(p->weight[shift], TN_F32)), TN_DIMS(n, inner)));
}

/* A gated linear recurrent unit. Inputs but a text's first one are scaled so that the state's size stays the same. */
static tn_tensor *griffin(const llm_config *c, const place *p, const tn_tensor *x, tn_tensor *made) {
    static const double FASTEST = 8;
    tn_softplus_options o = TN_SOFTPLUS_DEFAULTS;
    int64_t n = tn_size(x, 0);
    tn_tensor *u = convolve(c, p, made), *rate = tn_softplus(tn_cast(p->weight[SLOT_DECAY], TN_F32), &o);
    tn_tensor *power = tn_mul(block_gates(c, p, SLOT_FADING, SLOT_FADING_SHIFT, u), tn_mul_scalar(rate, -FASTEST));
    tn_tensor *rest = tn_sqrt(tn_add_scalar(tn_neg(tn_exp(tn_mul_scalar(power, 2))), 1));
    tn_tensor *first = tn_eq_scalar(tn_reshape(p->in->positions, TN_DIMS(n, 1)), 0);
    tn_tensor *moved = tn_mul(tn_mul(u, block_gates(c, p, SLOT_TAKEN, SLOT_TAKEN_SHIFT, u)),
                              tn_where(first, tn_ones_like(rest), rest));
    tn_tensor *parts[] = {tn_exp(power), moved};
    tn_tensor *gate = product(p, SLOT_MIX_GATE, x, p->weight[SLOT_MIX_GATE_BIAS]);
    return tn_mul(scan(c, p, n, advance_griffin, parts), c->activation(gate));
}

/* x [n, hidden] as the rows before it: the first one is what column `which` of the cache has. */
static tn_tensor *row_before(const place *p, int which, const tn_tensor *x) {
    int64_t n = tn_size(x, 0), each = rows_each(p, n);
    tn_tensor *parts[TN_LLM_BATCH];
    for (int64_t t = 0; t < n; t += each) {
        tn_tensor *kept = tn_narrow(state_at(p, t, CACHE_CONV), 1, which, 1), *before = tn_transpose(kept, 0, 1);
        parts[t / each] =
            each == 1 ? tn_contiguous(before) : tn_cat((tn_tensor *[]){before, tn_narrow(x, 0, t, each - 1)}, 2, 0);
        keep_state(p, t, kept, tn_transpose(tn_narrow(x, 0, t + each - 1, 1), 0, 1));
    }
    return join_rows(parts, n / each);
}

/* The product of a mixture of each token with the one before. */
static tn_tensor *shifted_product(const place *p, int slot, int shift, const tn_tensor *x, const tn_tensor *before) {
    tn_tensor *part = tn_reshape(tn_cast(p->weight[shift], TN_F32), TN_DIMS(1, tn_size(x, 1)));
    tn_tensor *other = tn_mul(before, tn_add_scalar(tn_neg(part), 1));
    return product(p, slot, tn_add(tn_mul(x, part), other), NULL);
}

/* A mean of the values so far, weighted by exp(key) and by how long ago they were; the present one has a weight of its
 * own. Exponents are taken relative to the largest. parts: keys, values [n, inner], decay and the present's weight. */
static tn_tensor *advance_rwkv(const llm_config *c, tn_tensor *const *parts, int64_t t, tn_tensor **h) {
    static const double LEAST = -1e38;
    const int64_t shape[] = {1, c->size[SIZE_INNER]};
    tn_tensor *k = row(parts[PART_STEP], t, shape, 2), *v = row(parts[PART_INPUT], t, shape, 2);
    tn_tensor *sum = tn_narrow(*h, 0, 0, 1), *weights = tn_narrow(*h, 0, 1, 1);
    tn_tensor *most = tn_masked_fill(tn_narrow(*h, 0, 2, 1), tn_eq_scalar(weights, 0), LEAST); /* of no values yet */
    tn_tensor *now = tn_add(k, parts[PART_WRITTEN]), *top = tn_maximum(most, now);
    tn_tensor *old = tn_exp(tn_sub(most, top)), *new = tn_exp(tn_sub(now, top));
    tn_tensor *y = tn_div(tn_add(tn_mul(old, sum), tn_mul(new, v)), tn_add(tn_mul(old, weights), new));
    most = tn_add(most, parts[PART_DECAY]);
    top = tn_maximum(most, k);
    old = tn_exp(tn_sub(most, top)), new = tn_exp(tn_sub(k, top));
    sum = tn_add(tn_mul(old, sum), tn_mul(new, v));
    *h = tn_cat((tn_tensor *[]){sum, tn_add(tn_mul(old, weights), new), top}, RWKV_ROWS, 0);
    return y;
}

static tn_tensor *rwkv(const llm_config *c, const place *p, const tn_tensor *x) {
    const int64_t one[] = {1, c->size[SIZE_INNER]};
    tn_tensor *before = row_before(p, 0, x);
    tn_tensor *gate = tn_sigmoid(shifted_product(p, SLOT_Q, SLOT_SHIFT_Q, x, before));
    tn_tensor *parts[] = {
        shifted_product(p, SLOT_K, SLOT_SHIFT_K, x, before), shifted_product(p, SLOT_V, SLOT_SHIFT_V, x, before),
        tn_reshape(tn_cast(p->weight[SLOT_SKIP], TN_F32), one, 2), NULL, tn_reshape(decay_of(c, p), one, 2)};
    return tn_mul(gate, scan(c, p, tn_size(x, 0), advance_rwkv, parts));
}

bool tn_llm_shifts(const llm_config *c) { return c->family->recurrent.kind == RECURRENCE_RWKV; }

tn_tensor *tn_llm_shifted_forward(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                                  const tn_tensor *x) {
    const place p = {w, layer, in, w->layers[layer].weight};
    tn_tensor *before = row_before(&p, 1, x);
    tn_tensor *up = c->activation(shifted_product(&p, SLOT_UP, SLOT_SHIFT_UP, x, before));
    tn_tensor *gate = tn_sigmoid(shifted_product(&p, SLOT_YIELD, SLOT_SHIFT_YIELD, x, before));
    return tn_mul(gate, product(&p, SLOT_DOWN, up, NULL));
}

tn_tensor *tn_llm_recur(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                        const tn_tensor *x) {
    const place p = {w, layer, in, w->layers[layer].weight};
    int64_t n = tn_size(x, 0), most = in->sequences ? in->sequence_count : LLM_SCAN;
    if (n > most)
        return tn_failed(TN_ERR_ARGUMENT, "recurrent layers compute at most %" PRId64 " tokens at once, not %" PRId64,
                         most, n);
    tn_tensor *made = NULL, *y = NULL;
    if (p.weight[SLOT_MIX_IN]) made = product(&p, SLOT_MIX_IN, x, p.weight[SLOT_MIX_IN_BIAS]);
    switch (c->family->recurrent.kind) {
    case RECURRENCE_CONV: y = short_convolution(c, &p, made); break;
    case RECURRENCE_MAMBA: y = mamba(c, &p, made); break;
    case RECURRENCE_MAMBA2: y = mamba2(c, &p, made); break;
    case RECURRENCE_RWKV: y = rwkv(c, &p, x); break;
    case RECURRENCE_GRIFFIN: y = griffin(c, &p, x, made); break;
    default: y = deltanet(c, &p, x, made);
    }
    return product(&p, SLOT_MIX_OUT, y, p.weight[SLOT_MIX_OUT_BIAS]);
}
