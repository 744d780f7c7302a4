/* llm_config.c — proof that a file's tensors are a model of its family (llm_families.c); rotary frequencies.
 *
 * Every tensor of the file must be one that the family's row knows, in the shape that the metadata gives it: a model
 * that has something more would be computed wrongly without it, so it is refused by name. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/llm_model.h"

static slot_set llm_needs(const llm_config *c, int64_t layer);
static slot_set llm_allows(const llm_config *c, int64_t layer);

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct slot_row {
    const char *folder, *gguf; /* names; NULL: none */
    llm_size shape[3];
    int bias_of; /* 1 + the slot whose bias it is; 0: none */
} slot_row;

#define SLOT(name, folder, gguf, ...) [SLOT_##name] = {folder, gguf, {__VA_ARGS__}, 0},
#define BIAS(of, ...) [SLOT_##of##_BIAS] = {NULL, NULL, {__VA_ARGS__}, 1 + SLOT_##of},
static const slot_row layer_rows[LAYER_SLOTS] = {
#include "text/layer_slots.def"
};
static const slot_row head_rows[HEAD_SLOTS] = {
#include "text/head_slots.def"
};

static const slot_row *row_of(int64_t layer, int slot) { return layer < 0 ? &head_rows[slot] : &layer_rows[slot]; }

int64_t tn_llm_parts(const llm_config *c, int64_t layer, int slot) { return c->size[row_of(layer, slot)->shape[0]]; }

/* The name without that of the layer; "": such files have none. A naming may have one of its own for a bias. */
static const char *word_of(const llm_naming *n, int64_t layer, int slot, char room[LLM_NAME_SIZE]) {
    const slot_row *row = row_of(layer, slot);
    const char *own = layer < 0 ? n->head_slots[slot] : n->layer_slots[slot],
               *usual = n->gguf ? row->gguf : row->folder;
    if (own || row->bias_of == 0) return own ? own : usual ? usual : "";
    const char *of = word_of(n, layer, row->bias_of - 1, room);
    if (!tn_txt_ends_with(of, ".weight")) return "";
    snprintf(room, LLM_NAME_SIZE, "%.*s.bias", (int)(strlen(of) - strlen(".weight")), of);
    return room;
}

bool tn_llm_name(const llm_naming *n, char name[LLM_NAME_SIZE], int64_t layer, int slot) {
    char room[LLM_NAME_SIZE];
    const char *word = word_of(n, layer, slot, room);
    if (layer < 0)
        snprintf(name, LLM_NAME_SIZE, "%s", word);
    else
        snprintf(name, LLM_NAME_SIZE, "%s%" PRId64 ".%s", n->layer, layer, word);
    return word[0] != 0;
}

bool tn_llm_expert_name(const char name[LLM_NAME_SIZE], int64_t expert, char out[LLM_NAME_SIZE]) {
    const char *star = strchr(name, '*');
    if (star) snprintf(out, LLM_NAME_SIZE, "%.*s%" PRId64 "%s", (int)(star - name), name, expert, star + 1);
    return star != NULL;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* alone: of an expert that has a tensor of its own; row: a vector that may be stored as one. */
static tn_status check_shape(const llm_source *s, const llm_config *c, const llm_tensor *t, const llm_size *shape,
                             bool transposed, bool alone, bool row) {
    int64_t wanted[3];
    int rank = 0;
    for (const llm_size *size = shape + alone; rank < 3 - alone && size[rank] != SIZE_ONE && c->size[size[rank]];
         rank++)
        wanted[rank] = c->size[size[rank]];
    if (s->gguf && shape[1] == SIZE_UNIT && t->rank == 2 && rank == 3)
        wanted[--rank - 1] = wanted[2]; /* of a convolution */
    bool flattened = s->gguf && c->family->recurrent.kind == RECURRENCE_MAMBA2 && rank == 1 && t->rank == 2 &&
                     (shape == layer_rows[SLOT_DECAY].shape || shape == layer_rows[SLOT_SKIP].shape ||
                      shape == layer_rows[SLOT_MIX_NORM].shape);
    if (flattened && t->shape[0] * t->shape[1] == wanted[0]) return TN_OK; /* heads or groups are rows there */
    if (transposed && rank > 1) {                                          /* the last two are exchanged */
        int64_t rows = wanted[rank - 2];
        wanted[rank - 2] = wanted[rank - 1];
        wanted[rank - 1] = rows;
    }
    row = row && t->rank == 2 && t->shape[0] == 1;
    bool fits = row || t->rank == rank;
    for (int d = 0; d < rank && fits; d++)
        fits = t->shape[d + row] == wanted[d];
    if (fits) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "%s: tensor '%.100s' has %d dimensions, %s; according to the metadata it must have %d, %s",
                           tn_llm_source_place(s, t).text, t->name, t->rank, tn_txt_shape(t->shape, t->rank).text, rank,
                           tn_txt_shape(wanted, rank).text);
}

/* Types that the model's operations take besides f32. */
static bool is_weight_dtype(tn_dtype t) {
    return t < TN_DTYPE_COUNT && (t == TN_F32 || t == TN_F16 || t == TN_BF16 || tn_dtype_block(t) > 1);
}

static tn_status check_named(const llm_source *s, llm_config *c, const char *name, int64_t layer, int slot, bool needed,
                             bool alone) {
    const llm_size *shape = row_of(layer, slot)->shape;
    llm_tensor t = {.struct_size = sizeof t};
    tn_status status = tn_llm_source_find(s, name, &t);
    if (status != TN_OK) return needed ? status : TN_OK;
    if (!is_weight_dtype(t.dtype))
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "%s: tensor '%s' has type %s, which is not supported; use another quantization of the model",
            tn_llm_source_place(s, &t).text, name, t.dtype_name);
    bool chosen = layer >= 0 && BIT(slot) & EXPERTS & ~BIT(SLOT_ROUTER);
    c->file.weights_bytes += t.bytes;
    c->experts.bytes += chosen ? t.bytes : 0;
    llm_config own;
    return check_shape(s, tn_llm_of_layer(c, layer, &own), &t, shape,
                       layer >= 0 && (c->file.naming->transposed & BIT(slot)), alone,
                       layer >= 0 && (slot == SLOT_SHARED_ROUTER || slot == SLOT_CHOICE_BIAS));
}

static tn_status check_tensor(const llm_source *s, llm_config *c, int64_t layer, int slot, bool needed) {
    char name[LLM_NAME_SIZE], own[LLM_NAME_SIZE];
    if (!tn_llm_name(c->file.naming, name, layer, slot)) return TN_OK;
    if (!strchr(name, '*')) return check_named(s, c, name, layer, slot, needed, false);
    for (int64_t e = 0; e < tn_llm_parts(c, layer, slot) && tn_llm_expert_name(name, e, own); e++)
        TRY(check_named(s, c, own, layer, slot, needed, true));
    return TN_OK;
}

/* Is it this name, with a number less than `parts` in place of a *? */
static bool is_spelt(const char *name, const char *spelt, int64_t parts) {
    const char *star = strchr(spelt, '*');
    char *rest, own[LLM_NAME_SIZE];
    if (!star) return strcmp(name, spelt) == 0;
    if (strncmp(name, spelt, (size_t)(star - spelt)) != 0) return false;
    int64_t part = strtoll(name + (star - spelt), &rest, 10);
    return part >= 0 && part < parts && tn_llm_expert_name(spelt, part, own) && strcmp(name, own) == 0;
}

bool tn_llm_find_slot(const llm_config *c, const llm_naming *n, const char *name, int64_t *layer, int *slot) {
    size_t length = strlen(n->layer);
    *layer = strncmp(name, n->layer, length) == 0 ? strtoll(name + length, NULL, 10) : -1;
    for (;; *layer = -1) { /* a norm of the embedding may be among the tensors of the first layer */
        int count = *layer >= 0 ? (int)LAYER_SLOTS : (int)HEAD_SLOTS;
        for (*slot = 0; *slot < count; ++*slot) {
            char spelt[LLM_NAME_SIZE];
            if (tn_llm_name(n, spelt, *layer, *slot) && is_spelt(name, spelt, tn_llm_parts(c, *layer, *slot)))
                return true;
        }
        if (*layer < 0) return false;
    }
}

static bool is_beside(const llm_naming *n, const char *name) {
    for (size_t i = 0; i < sizeof n->beside / sizeof *n->beside; i++)
        if (n->beside[i] && tn_txt_ends_with(name, n->beside[i])) return true;
    return false;
}

bool tn_llm_is_spare(const llm_config *c, int64_t layer, int slot) {
    if (layer < 0) return c->tied && slot == SLOT_OUTPUT;
    return tn_llm_is_skipped(c, layer) || (KEY_SLOTS & BIT(slot) && tn_llm_key_layer(c, layer) != layer);
}

static bool is_of_skipped(const llm_config *c, const char *name) {
    size_t length = strlen(c->file.naming->layer);
    int64_t layer = strncmp(name, c->file.naming->layer, length) == 0 ? strtoll(name + length, NULL, 10) : -1;
    return layer >= 0 && layer < c->layers && tn_llm_is_skipped(c, layer);
}

static tn_status check_known(const llm_source *s, const llm_config *c, const llm_tensor *t, bool *counts) {
    slot_set head = c->family->slots.head_needs | c->family->slots.head_allows | BIT(SLOT_OUTPUT);
    head |= c->positions.rope.kind == ROPE_LONG ? ROPE_TABLES : BIT(SLOT_ROPE_FACTORS);
    const char *name = s->gguf ? t->name : tn_hf_strip(&s->folder, t->name);
    int64_t layer;
    int slot;
    bool fits = tn_llm_find_slot(c, c->file.naming, name, &layer, &slot) && layer < c->layers;
    *counts = fits && !tn_llm_is_spare(c, layer, slot);
    if (fits && !*counts) return TN_OK;
    if (layer >= c->layers && layer - c->layers < c->file.predicting_layers) return TN_OK;
    if (is_of_skipped(c, name)) return TN_OK;
    if (c->family->recurrent.kind == RECURRENCE_DELTANET && strncmp(t->name, "mtp.", 4) == 0) return TN_OK;
    if (fits && (layer < 0 ? head : llm_needs(c, layer) | llm_allows(c, layer)) & BIT(slot)) return TN_OK;
    if (is_beside(c->file.naming, name)) return TN_OK;
    if (!s->gguf && tn_hf_is_other_part(&s->folder, t->name)) return TN_OK;
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
        c->file.parameters += elements;
        bytes[t.dtype] += t.bytes;
        if (bytes[t.dtype] <= most) continue;
        most = bytes[t.dtype];
        snprintf(c->file.quantization, sizeof c->file.quantization, "%s", t.dtype_name);
    }
    return TN_OK;
}

/* A model may read more tokens than it writes: those that stand for pictures. Only the others are its vocabulary. */
static tn_status read_vocabulary(const llm_source *s, llm_config *c) {
    char name[LLM_NAME_SIZE];
    llm_tensor embedding = {.struct_size = sizeof embedding}, output = {.struct_size = sizeof output};
    tn_llm_name(c->file.naming, name, -1, SLOT_EMBEDDING);
    TRY(tn_llm_source_find(s, name, &embedding));
    c->size[SIZE_VOCABULARY] = c->size[SIZE_EMBEDDINGS] = embedding.rank > 0 ? embedding.shape[0] : 0;
    if (c->size[SIZE_VOCABULARY] < 1 || c->size[SIZE_VOCABULARY] > INT32_MAX)
        return tn_backend_fail(TN_ERR_FORMAT, "%s: tensor '%s' has %" PRId64 " rows; it must have one per token",
                               tn_llm_source_place(s, &embedding).text, embedding.name, c->size[SIZE_VOCABULARY]);
    tn_llm_name(c->file.naming, name, -1, SLOT_OUTPUT);
    bool has_output = tn_llm_source_find(s, name, &output) == TN_OK;
    if (s->gguf) c->tied = !has_output;
    if (!c->tied && has_output && output.rank == 2 && output.shape[0] > 0 && output.shape[0] < embedding.shape[0])
        c->size[SIZE_VOCABULARY] = output.shape[0];
    if (c->size[SIZE_ALL_INPUTS] == 0 || c->size[SIZE_TABLE_ROWS] > 0) return TN_OK;
    tn_llm_name(c->file.naming, name, -1, SLOT_LAYER_TABLE);
    TRY(tn_llm_source_find(s, name, &output));
    c->size[SIZE_TABLE_ROWS] = output.rank > 0 ? output.shape[0] : 0;
    return TN_OK;
}

/* Whether the output's matrix is another one than the embedding, by rows throughout it. */
static bool has_other_output(const llm_source *s, const llm_config *c) {
    enum { SAMPLES = 64 };
    char name[LLM_NAME_SIZE];
    llm_tensor embedding = {.struct_size = sizeof embedding}, output = {.struct_size = sizeof output};
    bool both = tn_llm_name(c->file.naming, name, -1, SLOT_EMBEDDING) &&
                tn_llm_source_find(s, name, &embedding) == TN_OK &&
                tn_llm_name(c->file.naming, name, -1, SLOT_OUTPUT) && tn_llm_source_find(s, name, &output) == TN_OK;
    if (!both || !embedding.data || !output.data || embedding.rank != 2 || embedding.shape[0] < 1) return false;
    if (embedding.dtype != output.dtype || embedding.bytes != output.bytes) return true;
    int64_t rows = embedding.shape[0], row = embedding.bytes / rows;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t at = i * (rows - 1) / (SAMPLES - 1) * row;
        if (memcmp((const char *)embedding.data + at, (const char *)output.data + at, (size_t)row) != 0) return true;
    }
    return false;
}

static tn_status check_tensors(const llm_source *s, llm_config *c) {
    TRY(read_vocabulary(s, c));
    bool fused = c->family->forward.fused_gate && !(c->family->experts.slots & BIT(SLOT_SHARED_GATE));
    c->size[SIZE_SHARED_UP] = c->size[SIZE_SHARED] * (fused ? 2 : 1);
    slot_set head = c->family->slots.head_needs | (c->tied ? 0 : BIT(SLOT_OUTPUT));
    if (s->gguf && c->positions.rope.kind == ROPE_LONG) head |= ROPE_TABLES;
    if (c->size[SIZE_ALL_INPUTS] > 0) head |= LAYER_INPUTS;
    if (c->size[SIZE_STREAMS] > 1) head |= STREAM_ENDS;
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        if (!tn_llm_is_spare(c, -1, slot)) TRY(check_tensor(s, c, -1, slot, head & BIT(slot)));
    for (int64_t layer = 0; layer < c->layers; layer++) {
        slot_set needs = llm_needs(c, layer), allows = llm_allows(c, layer);
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            if ((needs | allows) & BIT(slot)) TRY(check_tensor(s, c, layer, slot, needs & BIT(slot)));
    }
    return refuse_unknown(s, c);
}

/* ---- mixtures of experts ----------------------------------------------------------------------------------------- */

tn_status tn_llm_set_experts(llm_config *c, const char *place, int64_t experts, int64_t choices) {
    const llm_family *f = c->family;
    c->needs = f->slots.needs;
    c->allows = f->slots.allows;
    if (experts == 0 && !f->experts.always) return TN_OK;
    if (!f->experts.slots)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s' has %" PRId64 " experts; mixture-of-experts %s models are not supported", place,
                               experts, f->architecture);
    if (experts < 1 || experts > LLM_MOST_EXPERTS || choices < 1 || choices > experts)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s' has %" PRId64 " experts and uses %" PRId64
                               " per token; it must have 1 to %d experts, and use at least one and at most all of them",
                               place, experts, choices, LLM_MOST_EXPERTS);
    c->needs = (f->slots.needs & ~(f->experts.beside ? 0 : FFN_MATRICES)) | f->experts.slots;
    c->allows = f->slots.allows & ~GATED_BIASES;
    c->size[SIZE_EXPERTS] = experts;
    c->experts.choices = choices;
    c->experts.whole_choice = f->experts.whole_choice;
    return TN_OK;
}

/* ---- layers that differ ------------------------------------------------------------------------------------------ */

static void set_bit(uint8_t *bits, int64_t i, bool on) {
    uint8_t bit = (uint8_t)(1u << i % 8);
    bits[i / 8] = (uint8_t)(on ? bits[i / 8] | bit : bits[i / 8] & ~bit);
}

static bool has_bit(const uint8_t *bits, int64_t i) { return bits[i / 8] >> i % 8 & 1; }

void tn_llm_set_window(llm_config *c, int64_t layer, bool slides) { set_bit(c->attention.slides, layer, slides); }

void tn_llm_set_pattern(llm_config *c, int64_t pattern) {
    for (int64_t i = 0; i < c->layers; i++)
        tn_llm_set_window(c, i, pattern == 0 || i % pattern != (c->family->attention.whole_first ? 0 : pattern - 1));
}

bool tn_llm_slides(const llm_config *c, int64_t layer) { return has_bit(c->attention.slides, layer); }

int64_t tn_llm_window(const llm_config *c, int64_t layer) {
    return has_bit(c->attention.slides, layer) ? c->attention.window : 0;
}

int64_t tn_llm_key_layer(const llm_config *c, int64_t layer) {
    if (c->attention.first_shared == 0 || layer < c->attention.first_shared) return layer;
    for (int64_t i = c->attention.first_shared - 1; i >= 0; i--)
        if (tn_llm_slides(c, i) == tn_llm_slides(c, layer)) return i;
    return layer;
}

bool tn_llm_has_cache(const llm_config *c, int64_t layer) {
    return tn_llm_attends(c, layer) && tn_llm_key_layer(c, layer) == layer;
}

const llm_config *tn_llm_of_layer(const llm_config *c, int64_t layer, llm_config *own) {
    const llm_attention *a = &c->attention;
    bool wide = layer >= 0 && a->wide_head > 0 && !tn_llm_slides(c, layer);
    bool deep = layer >= 0 && a->shared_width > 0 && tn_llm_key_layer(c, layer) != layer;
    if (!wide && !deep) return c;
    *own = *c;
    if (deep) own->size[SIZE_INTERMEDIATE] = own->size[SIZE_UP] = a->shared_width;
    if (!wide) return own;
    own->size[SIZE_HEAD] = a->wide_head;
    own->size[SIZE_HALF] = a->wide_head / 2;
    own->attention.kv_heads = a->wide_kv_heads;
    tn_llm_set_head_sizes(own);
    return own;
}

int64_t tn_llm_row_width(const llm_config *c) { return c->size[SIZE_HIDDEN] + c->size[SIZE_ALL_INPUTS]; }

int64_t tn_llm_key_width(const llm_config *c) {
    return c->size[SIZE_HEAD] + (c->attention.alibi > 0 ? DISTANCE_DIMS : 0);
}

int tn_llm_cache_count(const llm_config *c) { return c->family->attention.latent ? 1 : CACHE_VALUES + 1; }

int64_t tn_llm_cache_heads(const llm_config *c) { return c->family->attention.latent ? 1 : c->attention.kv_heads; }

static int64_t cache_width(const llm_config *c) {
    return c->family->attention.latent ? c->size[SIZE_KV_DOWN] : tn_llm_key_width(c);
}

int64_t tn_llm_cache_row(const llm_config *c, int which) {
    int64_t head = cache_width(c);
    return c->cache[which] == TN_U8 ? head / LLM_BLOCK * LLM_BLOCK_BYTES : head;
}

void tn_llm_set_rope(llm_config *c, int64_t layer, bool rotates) { set_bit(c->positions.unrotated, layer, !rotates); }

bool tn_llm_has_rope(const llm_config *c, int64_t layer) { return !has_bit(c->positions.unrotated, layer); }

void tn_llm_set_sparse(llm_config *c, int64_t layer) { set_bit(c->streams.sparse, layer, true); }

bool tn_llm_is_sparse(const llm_config *c, int64_t layer) { return has_bit(c->streams.sparse, layer); }

void tn_llm_set_unmixed(llm_config *c, int64_t layer) { set_bit(c->experts.unmixed, layer, true); }

void tn_llm_set_skipped(llm_config *c, int64_t layer) {
    set_bit(c->skipped, layer, true);
    set_bit(c->attention.absent, layer, true);
}

bool tn_llm_is_skipped(const llm_config *c, int64_t layer) { return has_bit(c->skipped, layer); }

int64_t tn_llm_group_best(const llm_config *c) {
    return c->family->experts.by_sigmoid || c->family->experts.pairs_count ? 2 : 1;
}

void tn_llm_set_attention(llm_config *c, int64_t layer, bool attends) { set_bit(c->attention.absent, layer, !attends); }

bool tn_llm_attends(const llm_config *c, int64_t layer) { return !has_bit(c->attention.absent, layer); }

int64_t tn_llm_attention_layers(const llm_config *c) {
    int64_t count = 0;
    for (int64_t i = 0; i < c->layers; i++)
        count += tn_llm_attends(c, i);
    return count;
}

void tn_llm_set_recurrent(llm_config *c, int64_t layer) {
    c->recurrent.layers += !tn_llm_is_recurrent(c, layer);
    set_bit(c->recurrent.which, layer, true);
    tn_llm_set_attention(c, layer, c->family->recurrent.beside);
}

bool tn_llm_is_recurrent(const llm_config *c, int64_t layer) { return has_bit(c->recurrent.which, layer); }

/* Of slots that most layers have: those of one layer. recurrent, dense: what such layers have instead of others. */
static slot_set of_layer(const llm_config *c, int64_t layer, slot_set slots, slot_set recurrent, slot_set dense) {
    bool attends = tn_llm_attends(c, layer), recurs = tn_llm_is_recurrent(c, layer);
    if (tn_llm_is_skipped(c, layer)) return 0;
    if (has_bit(c->experts.unmixed, layer)) slots = (slots & ~c->family->experts.slots) | dense;
    if (c->family->slots.lone && (attends || recurs))
        slots &= ~(FFN_MATRICES | GATED_BIASES | c->family->experts.slots);
    bool wide = c->attention.wide_keys_only && !tn_llm_slides(c, layer), shares = tn_llm_key_layer(c, layer) != layer;
    if (wide) slots &= ~(BIT(SLOT_V) | BIT(SLOT_V_BIAS));
    if (shares) slots &= ~KEY_SLOTS;
    if (!attends) slots &= ~(ATTENTION_SLOTS | BIT(SLOT_ATTENTION_GATE));
    return recurs ? slots | recurrent : slots;
}

static slot_set llm_needs(const llm_config *c, int64_t layer) {
    slot_set needs = c->needs | (layer > 0 ? c->family->slots.needs_later : 0);
    return of_layer(c, layer, needs, c->family->recurrent.needs, c->family->slots.needs & FFN_MATRICES);
}

static slot_set llm_allows(const llm_config *c, int64_t layer) {
    return of_layer(c, layer, c->allows, c->family->recurrent.allows, c->family->slots.allows & GATED_BIASES);
}

/* ---- the configuration ------------------------------------------------------------------------------------------- */

static tn_status take_options(const llm_source *s, const tn_llm_options *options, llm_config *c) {
    static const tn_dtype caches[] = {[TN_LLM_CACHE_F16] = TN_F16,
                                      [TN_LLM_CACHE_BF16] = TN_BF16,
                                      [TN_LLM_CACHE_F32] = TN_F32,
                                      [TN_LLM_CACHE_Q8_0] = TN_U8}; /* bytes of its blocks */
    tn_llm_options o = TN_LLM_DEFAULTS;
    TRY(tn_options_read(&o, options, "language model", "tn_llm_options o = TN_LLM_DEFAULTS"));
    if (o.context < 0 || o.context > c->trained_context)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "a context of %" PRId64 " tokens is not supported; '%s' supports 1 to %" PRId64,
                               o.context, tn_llm_source_path(s), c->trained_context);
    if ((unsigned)o.cache > TN_LLM_CACHE_Q8_0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "language model: cache is %d; it must be one of TN_LLM_CACHE_F16, TN_LLM_CACHE_BF16, "
                               "TN_LLM_CACHE_F32, TN_LLM_CACHE_Q8_0",
                               (int)o.cache);
    if ((unsigned)o.value_cache > TN_LLM_CACHE_SAME)
        return tn_backend_fail(TN_ERR_ARGUMENT, "language model: value_cache is %d; it must be a tn_llm_cache",
                               (int)o.value_cache);
    if (o.value_cache == TN_LLM_CACHE_SAME) o.value_cache = o.cache;
    if (o.value_cache != o.cache && tn_llm_cache_count(c) == 1)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': latent attention has one cache of keys and values: leave value_cache out",
                               tn_llm_source_path(s));
    bool blocks = o.cache == TN_LLM_CACHE_Q8_0 || o.value_cache == TN_LLM_CACHE_Q8_0;
    if (blocks && (cache_width(c) % LLM_BLOCK != 0 || c->attention.wide_head % LLM_BLOCK != 0))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': heads of %" PRId64 " numbers; a cache in q8_0 requires a multiple of %d: use f16",
                               tn_llm_source_path(s), cache_width(c), LLM_BLOCK);
    int64_t usual = c->trained_context < LLM_DEFAULT_CONTEXT ? c->trained_context : LLM_DEFAULT_CONTEXT;
    c->context = o.context ? o.context : usual;
    c->cache[CACHE_KEYS] = caches[o.cache];
    c->cache[CACHE_VALUES] = caches[o.value_cache];
    c->pages = (c->context + LLM_PAGE - 1) / LLM_PAGE;
    return TN_OK;
}

static tn_status configure(llm_source *s, const tn_llm_options *options, bool reader, llm_config *out) {
    *out = (llm_config){.size = {[SIZE_ONE] = 1, [SIZE_UNIT] = 1},
                        .attention.scale = TN_AUTO,
                        .scales = {.embedding = 1,
                                   .residual = 1,
                                   .logits = 1,
                                   .attention_in = 1,
                                   .attention_out = 1,
                                   .mix = {1, 1, 1, 1, 1},
                                   .mix_out = 1,
                                   .gate = 1,
                                   .down = 1},
                        .experts = {.scale = 1, .gate_limit = 7, .gate_slope = 1.702}};
    TRY(s->gguf ? tn_llm_read_gguf(s->gguf, out) : tn_llm_read_folder(&s->folder, out));
    if (reader)
        out->tied = true;
    else if (!s->gguf && out->tied) /* config.json may be wrong: transformers uses both matrices, too */
        out->tied = !has_other_output(s, out);
    if (!reader && out->attention.bidirectional)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "'%s': each token sees the whole text, so this %s model embeds texts (trunnion embed) and "
            "does not generate them",
            tn_llm_source_path(s), out->family->architecture);
    TRY(check_tensors(s, out));
    TRY(take_options(s, options, out));
    if (out->attention.window >= out->context) out->attention.window = 0; /* nothing is ever that far back */
    return TN_OK;
}

tn_status tn_llm_configure(llm_source *s, const tn_llm_options *options, llm_config *out) {
    return configure(s, options, false, out);
}

tn_status tn_llm_configure_reader(llm_source *s, llm_config *out) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    TRY(configure(s, NULL, true, out));
    if (out->size[SIZE_ALL_INPUTS] > 0 || out->attention.first_shared > 0)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "'%s': layers of a %s model have inputs of their own or keys of others; it generates texts "
            "and does not embed them",
            tn_llm_source_path(s), out->family->architecture);
    if (out->recurrent.layers > 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': a %s model has recurrent layers, which compute one text at a time; it generates "
                               "texts and does not embed them",
                               tn_llm_source_path(s), out->family->architecture);
    o.context = out->trained_context < LLM_READER_CONTEXT ? out->trained_context : LLM_READER_CONTEXT;
    return configure(s, &o, true, out);
}

static tn_status estimate(const llm_config *c, tn_memory_estimate *out) {
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    sizes.hidden = c->size[SIZE_HIDDEN];
    sizes.intermediate = c->size[SIZE_INTERMEDIATE];
    sizes.layers = c->layers;
    sizes.vocabulary = c->size[SIZE_VOCABULARY];
    sizes.heads = c->attention.heads;
    sizes.kv_heads = c->attention.kv_heads;
    sizes.head_dim = c->size[SIZE_HEAD];
    sizes.sequence = c->context;
    double row = 0; /* keys and values of all heads */
    for (int k = CACHE_KEYS; k < tn_llm_cache_count(c); k++)
        row += (double)tn_llm_cache_heads(c) * (double)tn_llm_cache_row(c, k) * (double)tn_dtype_size(c->cache[k]);
    sizes.bytes_per_cache = row / 2 / (double)(c->attention.kv_heads * c->size[SIZE_HEAD]);
    sizes.weights_bytes = c->file.weights_bytes;
    sizes.tied_embeddings = c->tied;
    *out = (tn_memory_estimate){.struct_size = sizeof *out};
    return tn_estimate_inference_memory(&sizes, out);
}

/* Recurrent layers keep a state; others may have neither that nor keys and values. */
static void exchange_caches(const llm_config *c, tn_memory_estimate *m) {
    int64_t shape[3] = {0}, state = 1, conv = c->size[SIZE_CHANNELS] * (c->size[SIZE_KERNEL] - 1);
    int64_t before = m->cache_bytes, usual = c->attention.kv_heads * tn_llm_key_width(c), attention = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        llm_config of;
        const llm_config *each = tn_llm_of_layer(c, i, &of);
        attention += tn_llm_has_cache(c, i) ? each->attention.kv_heads * tn_llm_key_width(each) : 0;
    }
    int rank = tn_llm_state_shape(c, shape);
    for (int d = 0; d < rank; d++)
        state *= shape[d];
    int64_t own = (int64_t)sizeof(float) * (conv + (rank > 0 ? state : 0));
    if (attention != c->layers * usual) m->cache_bytes = before / (c->layers * usual) * attention;
    m->cache_bytes += own * c->recurrent.layers;
    m->total_bytes += m->cache_bytes - before;
}

/* Of latent attention's matrices, keys' part is also kept transposed, packed ones in f16. */
static void add_turned_keys(const llm_config *c, tn_memory_estimate *m) {
    static const double MOST = 0x1p60;
    if (!c->family->attention.latent) return;
    double numbers = (double)(c->layers * c->attention.heads) * (double)c->size[SIZE_PLAIN];
    double each = c->file.parameters > 0 ? (double)m->weights_bytes / (double)c->file.parameters : 0;
    int64_t bytes = (int64_t)fmin(numbers * (double)c->size[SIZE_KV_RANK] * fmax(each, (double)sizeof(uint16_t)), MOST);
    m->runtime_bytes += bytes;
    m->total_bytes += bytes;
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
    exchange_caches(c, &memory);
    add_turned_keys(c, &memory);
    TRY(find_name(s, &name, &length));
    int64_t experts = c->experts.choices > 0 ? c->size[SIZE_EXPERTS] : 1;
    tn_llm_facts full = {
        .struct_size = sizeof full,
        .architecture = c->family->architecture,
        .parameters = c->file.parameters,
        .layers = c->layers,
        .hidden = c->size[SIZE_HIDDEN],
        .intermediate = c->size[SIZE_INTERMEDIATE],
        .heads = c->attention.heads,
        .kv_heads = c->attention.kv_heads,
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
        .token_bytes = memory.weights_bytes - c->experts.bytes / experts * (experts - c->experts.choices),
    };
    snprintf(full.name, sizeof full.name, "%.*s", (int)(length < 120 ? length : 120), name);
    snprintf(full.quantisation, sizeof full.quantisation, "%s", c->file.quantization);
    return tn_result_write(facts, &full, sizeof full, "tn_llm_get_facts: facts");
}

tn_status tn_llm_inspect(const tn_gguf *file, const tn_llm_options *options, tn_llm_facts *facts) {
    TRY(tn_txt_check_facts("tn_llm_inspect: facts", file, facts));
    llm_config c;
    llm_source s = {.gguf = (tn_gguf *)(uintptr_t)file}; /* only read */
    TRY(tn_llm_configure(&s, options, &c));
    return tn_llm_describe(&c, &s, facts);
}

tn_status tn_llm_inspect_path(const char *path, const tn_llm_options *options, tn_llm_facts *facts) {
    TRY(tn_txt_check_facts("tn_llm_inspect_path: facts", path, facts));
    llm_config c;
    AUTO_CALL(tn_llm_source_close) llm_source s = {0};
    TRY(tn_llm_source_open(path, &s));
    TRY(tn_llm_configure(&s, options, &c));
    return tn_llm_describe(&c, &s, facts);
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
    double longer = c->positions.rope.trained * c->positions.rope.factor;
    if (longer > (double)c->trained_context && longer <= LLM_MOST_CONTEXT) c->trained_context = (int64_t)longer;
}

/* The pair of dims, by index in half a head, that rotates this many times within the trained context. */
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
        if (r->kind == ROPE_PROPORTIONAL) frequency = (double)i < r->high ? frequency / r->factor : 0;
        if (r->kind == ROPE_YARN) frequency = yarn(r, half, i, frequency);
        out[i] = (float)(factors ? frequency / (double)factors[i] : frequency);
    }
}
