/* llm.c — a language model and its one sequence: opening, the cache, prompts, single tokens by a captured plan. */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

/* ==== source: a GGUF file or a folder's weights =================================================================== */

tn_status tn_llm_source_open(const char *path, llm_source *out) {
    *out = (llm_source){.folder = {.prefix = ""}};
    if (!path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm: the path is NULL");
    return tn_hf_is_folder(path) ? tn_hf_open(path, &out->folder) : tn_gguf_open(path, &out->gguf);
}

void tn_llm_source_close(llm_source *s) {
    tn_gguf_close(s->gguf);
    tn_hf_close(&s->folder);
    s->gguf = NULL;
}

const char *tn_llm_source_path(const llm_source *s) { return s->gguf ? tn_gguf_path(s->gguf) : s->folder.path; }

llm_place tn_llm_source_place(const llm_source *s, const llm_tensor *t) {
    llm_place p;
    if (s->gguf && t)
        snprintf(p.text, sizeof p.text, "'%.250s': byte %" PRId64, tn_gguf_path(s->gguf), t->offset);
    else
        snprintf(p.text, sizeof p.text, "'%.250s'", tn_llm_source_path(s));
    return p;
}

int64_t tn_llm_source_count(const llm_source *s) {
    return s->gguf ? tn_gguf_count(s->gguf) : tn_hf_weights_count(s->folder.weights);
}

static void translate(const tn_safetensors_info *t, llm_tensor *out) {
    out->name = t->name;
    out->dtype_name = t->dtype_name;
    out->dtype = t->dtype;
    out->rank = t->rank;
    memcpy(out->shape, t->shape, sizeof out->shape);
    out->data = t->data;
    out->bytes = t->bytes;
    out->offset = -1;
}

tn_status tn_llm_source_at(const llm_source *s, int64_t i, llm_tensor *out) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (s->gguf) return tn_gguf_at(s->gguf, i, out);
    TRY(tn_hf_weights_at(s->folder.weights, i, &t));
    translate(&t, out);
    return TN_OK;
}

tn_status tn_llm_source_find(const llm_source *s, const char *name, llm_tensor *out) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (s->gguf) return tn_gguf_find(s->gguf, name, out);
    if (!tn_hf_find(&s->folder, name, &t))
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' has no tensor '%s'", s->folder.path, name);
    translate(&t, out);
    return TN_OK;
}

tn_tensor *tn_llm_source_tensor(const llm_source *s, const llm_tensor *t) {
    return s->gguf ? tn_gguf_tensor(s->gguf, t->name) : tn_hf_weights_tensor(s->folder.weights, t->name);
}

tn_status tn_llm_source_rows(const llm_source *s, const char *name, const int64_t *rows, int64_t count, void *out) {
    llm_tensor t = {.struct_size = sizeof t};
    if (s->gguf) return tn_gguf_rows(s->gguf, name, rows, count, out);
    TRY(tn_llm_source_find(s, name, &t));
    if (!t.data)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%s' cannot be read row by row: it is quantized, or not contiguous in its "
                               "file (save it again with .contiguous())",
                               s->folder.path, name);
    size_t bytes = (size_t)t.shape[1] * tn_dtype_size(t.dtype);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)out + (size_t)i * bytes, (const char *)t.data + (size_t)rows[i] * bytes, bytes);
    return TN_OK;
}

/* ==== model and sequence ========================================================================================== */
/* Conversations of one model share the open file and the weights; each has its own cache, plans and buffers.
 * Weights are borrowed from the mapped file. A prompt is computed in pieces of at most LLM_CHUNK tokens whose number is
 * a symbolic extent, so one plan serves them all. A token is a launch of a captured graph: nothing is recorded, nothing
 * is looked up; its position is a runtime scalar, its row of the embedding an input. */

enum { SYMBOL_TOKENS = 0 };

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* A tensor's bytes; read through a tensor where they are not in the file as they are. */
static tn_status copy_bytes(const llm_source *s, const llm_tensor *t, char *out) {
    if (t->data) return memcpy(out, t->data, (size_t)t->bytes), TN_OK;
    TN_SCOPE;
    return tn_read(tn_llm_source_tensor(s, t), out, (size_t)t->bytes);
}

/* Matrices that have a tensor each, as one: copied side by side. */
static tn_status join_parts(const tn_llm *m, int64_t layer, int slot, const char *name, tn_tensor **out) {
    char own[LLM_NAME_SIZE];
    int64_t parts = tn_llm_parts(&m->config, layer, slot);
    llm_tensor info = {.struct_size = sizeof info}, next = {.struct_size = sizeof next};
    if (!tn_llm_expert_name(name, 0, own) || tn_llm_source_find(&m->file->source, own, &info) != TN_OK) return TN_OK;
    AUTO_TXT_FREE char *all = tn_txt_alloc((size_t)parts, (size_t)info.bytes);
    if (!all) return TN_ERR_MEMORY;
    for (int64_t e = 0; e < parts; e++) {
        tn_llm_expert_name(name, e, own);
        TRY(tn_llm_source_find(&m->file->source, own, &next));
        if (next.dtype != info.dtype || next.bytes != info.bytes)
            return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': '%s' has another type than the first such matrix",
                                   tn_llm_source_path(&m->file->source), own);
        TRY(copy_bytes(&m->file->source, &next, all + (size_t)e * (size_t)info.bytes));
    }
    TN_SCOPE;
    *out = tn_retain(tn_from_data(all, TN_DIMS(parts, info.shape[0], info.shape[1]), info.dtype));
    return tn_eval(out, 1);
}

/* The handle is the model's, whatever scope the caller stands in. Vectors are made f32, which they are computed in, and
 * matrices that are stored [in, out] are turned. */
static tn_status take_weight(tn_llm *m, int64_t layer, int slot, tn_tensor **out) {
    char name[LLM_NAME_SIZE];
    llm_tensor info = {.struct_size = sizeof info};
    const llm_naming *n = m->config.file.naming;
    if (layer < 0 && slot == SLOT_LAYER_TABLE) return TN_OK; /* tn_llm_copy_rows */
    if (!tn_llm_name(n, name, layer, slot)) return TN_OK;
    if (tn_llm_is_spare(&m->config, layer, slot)) return TN_OK;
    if (strchr(name, '*')) return join_parts(m, layer, slot, name, out);
    if (tn_llm_source_find(&m->file->source, name, &info) != TN_OK)
        return TN_OK; /* optional: the needed was looked for */
    {
        TN_SCOPE;
        tn_tensor *t = tn_llm_source_tensor(&m->file->source, &info);
        if (info.rank == 1 && info.dtype != TN_F32) t = tn_cast(t, TN_F32);
        if (layer >= 0 && n->transposed & BIT(slot)) t = tn_contiguous(tn_transpose(t, -2, -1));
        *out = tn_retain(t);
    }
    return tn_eval(out, 1);
}

/* Keys' and values' matrices of latent attention in GGUF files, [heads, rank, keys] and [heads, values, rank], as the
 * one of folders. What is packed becomes f16. */
static tn_status join_latent(tn_llm *m, tn_tensor **weight) {
    const int64_t *size = m->config.size;
    tn_tensor *parts[] = {weight[SLOT_K_UP], weight[SLOT_V_UP]};
    if (!parts[0]) return TN_OK;
    {
        TN_SCOPE;
        tn_dtype kind = tn_dtype_of(parts[0]) == tn_dtype_of(parts[1]) ? tn_dtype_of(parts[0]) : TN_F32;
        if (tn_dtype_block(kind) > 1) kind = TN_F16;
        tn_tensor *keys = tn_transpose(tn_cast(parts[0], kind), 1, 2), *values = tn_cast(parts[1], kind);
        tn_tensor *all = tn_cat((tn_tensor *[]){keys, values}, 2, 1);
        weight[SLOT_KV_UP] = tn_retain(tn_contiguous(tn_reshape(all, TN_DIMS(size[SIZE_KV_UP], size[SIZE_KV_RANK]))));
    }
    tn_status status = tn_eval(&weight[SLOT_KV_UP], 1);
    tn_free(parts[0]);
    tn_free(parts[1]);
    weight[SLOT_K_UP] = weight[SLOT_V_UP] = NULL;
    return status;
}

/* Keys' part of the matrix that makes keys and values of latent vectors, for products of queries with it. What is
 * packed becomes f16. */
static tn_status turn_keys(const llm_config *c, llm_layer *l) {
    const tn_tensor *up = l->weight[SLOT_KV_UP];
    if (!up) return TN_OK;
    {
        TN_SCOPE;
        l->key_up = tn_retain(tn_llm_keys_of(c, tn_dtype_block(tn_dtype_of(up)) > 1 ? tn_cast(up, TN_F16) : up));
    }
    return tn_eval(&l->key_up, 1);
}

static tn_status take_weights(tn_llm *m) {
    llm_weights *w = &m->weights;
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        TRY(take_weight(m, -1, slot, &w->head[slot]));
    for (int64_t i = 0; i < m->config.layers; i++) {
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            TRY(take_weight(m, i, slot, &w->layers[i].weight[slot]));
        TRY(join_latent(m, w->layers[i].weight));
        TRY(turn_keys(&m->config, &w->layers[i]));
    }
    return TN_OK;
}

static tn_status read_factors(const tn_llm *m, const tn_tensor *factors, float *out) {
    int64_t half = m->config.size[SIZE_HALF];
    TRY(tn_read(factors, out, (size_t)half * sizeof *out));
    for (int64_t i = 0; i < half; i++)
        if (!(out[i] > 0 && isfinite(out[i])))
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': factor %" PRId64 " of rope is %g: it must be greater than 0",
                                   tn_llm_source_path(&m->file->source), i, (double)out[i]);
    return TN_OK;
}

/* What divides each frequency, where the model has a list: of a GGUF file's tensor, or of config.json. */
static tn_status read_divisors(const tn_llm *m, float *out, bool *any) {
    const llm_config *c = &m->config;
    bool tables = c->positions.rope.kind == ROPE_LONG, beyond = (double)c->context > c->positions.rope.trained;
    int64_t half = c->size[SIZE_HALF];
    const tn_tensor *factors = m->weights.head[!tables ? SLOT_ROPE_FACTORS : beyond ? SLOT_ROPE_LONG : SLOT_ROPE_SHORT];
    *any = factors || tables;
    if (factors) return read_factors(m, factors, out);
    return tables ? tn_llm_rope_list(&m->file->source.folder, beyond ? "long_factor" : "short_factor", half, out)
                  : TN_OK;
}

/* Pairs of a head that rope rotates; local: in layers with a window, which may have a rope of their own. */
static int64_t half_of(const tn_llm *m, bool local) {
    int64_t wide = m->config.attention.wide_head;
    return !local && wide > 0 ? wide / 2 : m->config.size[SIZE_HALF];
}

/* Of layers with a window, if they have their own, or of all others. */
static tn_status fill_frequencies(const tn_llm *m, bool local, float *divisors, float *out) {
    bool any = false;
    if (!local) TRY(read_divisors(m, divisors, &any));
    tn_llm_rope_fill(local ? &m->config.positions.local_rope : &m->config.positions.rope, half_of(m, local),
                     any ? divisors : NULL, out);
    return TN_OK;
}

static tn_status make_frequencies(tn_llm *m, bool local) {
    int64_t half = half_of(m, local);
    tn_tensor **out = &m->weights.rope[local];
    if (m->weights.head[SLOT_POSITIONS] || half == 0) return TN_OK; /* they are learned, or no layer needs them */
    AUTO_TXT_FREE float *values = tn_txt_alloc((size_t)half, 2 * sizeof *values);
    if (!values) return TN_ERR_MEMORY;
    TRY(fill_frequencies(m, local, values + half, values));
    TN_SCOPE;
    *out = tn_retain(tn_from_data(values, TN_DIMS(1, 1, half), TN_F32));
    return tn_status_of(*out);
}

/* ---- cache ------------------------------------------------------------------------------------------------------- */

static bool has_such_cache(const llm_config *c, int64_t layer, bool wide) {
    llm_config own;
    return tn_llm_has_cache(c, layer) && (tn_llm_of_layer(c, layer, &own) != c) == wide;
}

/* Makes the caches of layers with wide heads, or of the others, in one allocation: a token reads a little of each. */
static tn_status make_such_caches(const llm_config *c, int conversations, bool wide, llm_layer *layers) {
    const llm_config *of = c;
    llm_config own;
    int count = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        if (!has_such_cache(c, i, wide)) continue;
        count++;
        of = tn_llm_of_layer(c, i, &own);
    }
    if (count == 0) return TN_OK;
    AUTO_TXT_FREE tn_tensor **all = tn_txt_zalloc((size_t)count, sizeof(tn_tensor *));
    if (!all) return TN_ERR_MEMORY;
    for (int k = CACHE_KEYS; k < tn_llm_cache_count(c); k++) {
        TN_SCOPE;
        int used = 0;
        int64_t shape[] = {c->pages * conversations, tn_llm_cache_heads(of), LLM_PAGE, tn_llm_cache_row(of, k)};
        TRY(tn_zero_states(shape, 4, c->cache[k], all, count));
        for (int64_t i = 0; i < c->layers; i++)
            if (has_such_cache(c, i, wide)) layers[i].cache[k] = tn_retain(all[used++]);
    }
    return TN_OK;
}

static tn_status make_all_caches(const llm_config *c, int conversations, llm_layer *layers) {
    tn_status status = make_such_caches(c, conversations, false, layers);
    return status == TN_OK ? make_such_caches(c, conversations, true, layers) : status;
}

/* What recurrent layers of one conversation keep. */
static tn_status make_recurrent_states(const llm_config *c, llm_layer *layers) {
    int64_t shape[3], conv[] = {c->size[SIZE_CHANNELS], c->size[SIZE_KERNEL] - 1};
    int rank = tn_llm_state_shape(c, shape);
    TN_SCOPE;
    for (int64_t i = 0; i < c->layers; i++) {
        tn_tensor *made[2] = {NULL, NULL};
        if (!tn_llm_is_recurrent(c, i)) continue;
        TRY(tn_zero_states(conv, 2, TN_F32, &made[0], 1));
        if (rank > 0) TRY(tn_zero_states(shape, rank, TN_F32, &made[1], 1));
        layers[i].cache[CACHE_CONV] = tn_retain(made[0]);
        layers[i].cache[CACHE_STATE] = made[1] ? tn_retain(made[1]) : NULL;
    }
    return TN_OK;
}

static void free_caches(const llm_config *c, llm_layer *layers) {
    for (int64_t i = 0; i < c->layers; i++)
        for (int k = 0; k < LLM_CACHES; k++) {
            tn_free(layers[i].cache[k]);
            layers[i].cache[k] = NULL;
        }
}

static void leave_pool(tn_llm *m) {
    llm_pool *p = m->pool;
    m->pool = NULL;
    if (!p) return;
    p->taken &= ~(UINT64_C(1) << m->slot);
    if (--p->users > 0) return;
    if (p->layers) free_caches(&m->config, p->layers);
    tn_txt_free_each(p->layers, p);
}

static tn_status make_pool(tn_llm *m, int room) {
    llm_pool *p = m->pool = tn_txt_zalloc(1, sizeof *p);
    if (!p) return TN_ERR_MEMORY;
    *p = (llm_pool){.users = 1, .room = room, .taken = 1};
    p->layers = tn_txt_zalloc((size_t)m->config.layers, sizeof *p->layers);
    return p->layers ? make_all_caches(&m->config, room, p->layers) : TN_ERR_MEMORY;
}

static bool is_lost(const tn_tensor *cache) { return !cache || tn_status_of(cache) != TN_OK; }

/* pool: only caches of attention are looked at. */
static bool caches_are_lost(const llm_config *c, const llm_layer *layers, bool pool) {
    int64_t shape[3];
    bool has_state = tn_llm_state_shape(c, shape) > 0;
    for (int64_t i = 0; i < c->layers; i++) {
        tn_tensor *const *cache = layers[i].cache;
        if (tn_llm_is_recurrent(c, i) && !pool &&
            (is_lost(cache[CACHE_CONV]) || (has_state && is_lost(cache[CACHE_STATE]))))
            return true;
        for (int k = CACHE_KEYS; k < tn_llm_cache_count(c) && tn_llm_has_cache(c, i); k++)
            if (is_lost(cache[k])) return true;
    }
    return false;
}

static bool has_room(const llm_pool *p) { return p && p->users < p->room; }

/* Takes a place in the pool of another conversation if there is one that fits. */
static void join_pool(tn_llm *m, const tn_llm *with) {
    llm_pool *p = with->pool;
    bool same = m->config.pages == with->config.pages;
    for (int k = CACHE_KEYS; k <= CACHE_VALUES; k++)
        same = same && m->config.cache[k] == with->config.cache[k];
    if (!has_room(p) || !same || caches_are_lost(&m->config, p->layers, true)) return;
    while (p->taken >> m->slot & 1)
        m->slot++;
    p->taken |= UINT64_C(1) << m->slot;
    p->users++;
    m->pool = p;
}

int64_t tn_llm_first_page(const tn_llm *m) { return m->pool ? m->slot * m->config.pages : 0; }

static tn_status number_pages(tn_llm *m) {
    tn_free(m->weights.pages);
    {
        TN_SCOPE;
        tn_tensor *first = tn_runtime_scalar_int(tn_llm_first_page(m)); /* one plan for all conversations */
        m->weights.pages = tn_retain(tn_add(tn_arange(0, (double)m->config.pages, 1, TN_I64), first));
    }
    return tn_eval(&m->weights.pages, 1);
}

/* In a pool, or its own ones. */
static tn_status take_caches(tn_llm *m) {
    llm_layer *layers = m->weights.layers;
    TRY(number_pages(m));
    TRY(make_recurrent_states(&m->config, layers));
    m->stale = false;
    if (!m->pool) return make_all_caches(&m->config, 1, layers);
    for (int64_t i = 0; i < m->config.layers; i++)
        for (int k = CACHE_KEYS; k < tn_llm_cache_count(&m->config) && tn_llm_has_cache(&m->config, i); k++)
            layers[i].cache[k] = tn_retain(m->pool->layers[i].cache[k]);
    return TN_OK;
}

/* They are one block, which goes with the last of them: only then is there room for others. A conversation of a pool
 * gets caches of its own. */
static void renew_caches(tn_llm *m) {
    m->renewals++;
    free_caches(&m->config, m->weights.layers);
    leave_pool(m);
    (void)take_caches(m); /* the next call finds out, and tries again */
}

/* A write to a cache that could not be recorded leaves an error in its place: then the cache is made anew, and the
 * sequence begins anew. Any other failure has changed nothing. Returns the failure. */
tn_status tn_llm_mend(tn_llm *m, tn_status failure) {
    if (failure == TN_OK) return TN_OK;
    m->stale = m->config.recurrent.layers > 0;
    char words[1024]; /* looking at the caches may leave others */
    snprintf(words, sizeof words, "%s", tn_error());
    if (!caches_are_lost(&m->config, m->weights.layers, false)) return tn_backend_fail(failure, "%s", words);
    tn_graph_free(m->token); /* it writes to the old caches */
    m->token = NULL;
    tn_llm_drop_draft_graphs(m);
    m->position = 0;
    renew_caches(m);
    return tn_backend_fail(failure, "%s (the sequence is lost; the conversation starts again)", words);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* The largest unit that is not larger than `bytes`. */
typedef struct size_unit {
    const char *name;
    double bytes;
} size_unit;

static size_unit unit_of(int64_t bytes) {
    static const size_unit units[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if ((double)bytes >= units[i].bytes) return units[i];
    return (size_unit){"bytes", 1};
}

/* What would make it fit: a context that is as long as the room allows. */
static tn_status too_large(const tn_llm *m, const tn_llm_facts *f, int64_t room) {
    int64_t fixed = f->total_bytes - f->cache_bytes;
    int64_t a_page = f->cache_bytes / m->config.pages; /* of each conversation */
    int64_t pages = room > fixed && a_page > 0 ? (room - fixed) / a_page : 0;
    char fix[160];
    if (pages > 0)
        snprintf(fix, sizeof fix,
                 "a context of %" PRId64 " tokens would fit: set context in tn_llm_options (--context of the command)",
                 pages * LLM_PAGE);
    else
        snprintf(fix, sizeof fix, "use a smaller or more quantized model, or another device (trunnion devices)");
    size_unit unit = unit_of(f->total_bytes), left = unit_of(room);
    return tn_backend_fail(TN_ERR_MEMORY,
                           "'%s' needs %.2f %s: %.2f for weights, %.2f for the key/value cache of %" PRId64
                           " tokens, %.2f for computing; %.2f %s are free. %s",
                           tn_llm_source_path(&m->file->source), (double)f->total_bytes / unit.bytes, unit.name,
                           (double)f->weights_bytes / unit.bytes, (double)f->cache_bytes / unit.bytes, f->context,
                           (double)(f->activation_bytes + f->runtime_bytes) / unit.bytes, (double)room / left.bytes,
                           left.name, fix);
}

static tn_status read_options_llm(const tn_llm_options *given, const char *function, tn_llm_options *o) {
    *o = (tn_llm_options)TN_LLM_DEFAULTS;
    TRY(tn_options_read(o, given, function, "tn_llm_options o = TN_LLM_DEFAULTS"));
    if (o->conversations < 1 || o->conversations > TN_LLM_BATCH)
        return tn_backend_fail(TN_ERR_ARGUMENT, "%s: conversations is %d; a pool of caches is for 1 to %d", function,
                               o->conversations, (int)TN_LLM_BATCH);
    if (o->memory >= 0) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "%s: memory is %" PRId64 " bytes; 0 means all that is free", function,
                           o->memory);
}

/* shared: the weights are in memory already. caches: how many are allocated. */
static tn_status check_memory(const tn_llm *m, const tn_llm_options *o, bool shared, int caches) {
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_device_info info = {.struct_size = sizeof info};
    TRY(tn_llm_describe(&m->config, &m->file->source, &facts));
    TRY(tn_device_get_info(m->device, &info));
    if (shared) {
        facts.total_bytes -= facts.weights_bytes + facts.runtime_bytes;
        facts.weights_bytes = facts.runtime_bytes = 0;
    }
    facts.total_bytes += (caches - 1) * facts.cache_bytes;
    facts.cache_bytes *= caches;
    int64_t room = o->memory > 0 ? o->memory : info.free_memory;
    return room > 0 && facts.total_bytes > room ? too_large(m, &facts, room) : TN_OK;
}

/* Kernels of other devices do not read the blocks. */
static tn_status check_cache_type(const tn_llm *m) {
    tn_device_info info = {.struct_size = sizeof info};
    TRY(tn_device_get_info(m->device, &info));
    bool blocks = m->config.cache[CACHE_KEYS] == TN_U8 || m->config.cache[CACHE_VALUES] == TN_U8;
    if (!blocks || strcmp(info.backend, "cpu") == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "a key/value cache in q8_0 is supported on the device cpu only, not on %s; set it to f16 "
                           "in tn_llm_options (--cache of the command)",
                           info.id);
}

/* Of a table of rows, in the file. */
static tn_status find_table(const tn_llm *m, int slot, llm_tensor *out) {
    char name[LLM_NAME_SIZE];
    tn_llm_name(m->config.file.naming, name, -1, slot);
    *out = (llm_tensor){.struct_size = sizeof *out};
    return tn_llm_source_find(&m->file->source, name, out);
}

/* One tensor has the rows of both tables, so they need one dtype, in which a row can follow the other. */
static tn_dtype choose_rows_dtype(const tn_llm *m) {
    llm_tensor words, inputs;
    if (find_table(m, SLOT_EMBEDDING, &words) != TN_OK) return TN_F32;
    if (m->config.size[SIZE_ALL_INPUTS] == 0 || find_table(m, SLOT_LAYER_TABLE, &inputs) != TN_OK) return words.dtype;
    return words.dtype == inputs.dtype && tn_dtype_block(words.dtype) == 1 ? words.dtype : TN_F32;
}

/* Bytes of a token's row. */
size_t tn_llm_embedding_row(const tn_llm *m) { return tn_dtype_bytes(m->rows_dtype, tn_llm_row_width(&m->config)); }

static tn_status take_memory(tn_llm *m) {
    m->weights.layers = tn_txt_zalloc((size_t)m->config.layers, sizeof *m->weights.layers);
    m->logits = tn_txt_alloc((size_t)m->config.size[SIZE_VOCABULARY], sizeof *m->logits);
    m->tokens = tn_txt_alloc((size_t)m->config.context, sizeof *m->tokens);
    m->numbers = tn_txt_alloc(LLM_CHUNK, sizeof *m->numbers);
    m->places = tn_txt_alloc(LLM_CHUNK, sizeof *m->places);
    m->rows_dtype = choose_rows_dtype(m);
    m->rows = tn_txt_alloc(LLM_CHUNK, tn_llm_embedding_row(m));
    bool all = m->weights.layers && m->logits && m->tokens && m->numbers && m->places && m->rows;
    return all ? TN_OK : TN_ERR_MEMORY;
}

/* Rows of the embedding come from the tensor, in f32, from now on. */
tn_status tn_llm_train_embedding(tn_llm *m) {
    void *rows = tn_txt_alloc(LLM_CHUNK, (size_t)m->config.size[SIZE_HIDDEN] * sizeof(float));
    if (!rows) return TN_ERR_MEMORY;
    tn_txt_free(m->rows);
    m->rows = rows;
    m->trained_embedding = true;
    m->rows_dtype = TN_F32;
    return TN_OK;
}

/* Handles of another conversation's adapter. */
static tn_status share_adapter(tn_llm *m, const tn_llm *with) {
    if (!with->weights.lora) return TN_OK;
    TRY(tn_llm_lora_new(&m->config, &m->weights.lora));
    m->weights.lora_scale = with->weights.lora_scale;
    for (int64_t i = 0; i < m->config.layers * LAYER_SLOTS; i++) {
        const llm_lora *pair = &with->weights.lora[i];
        if (pair->a) m->weights.lora[i] = (llm_lora){tn_retain(pair->a), tn_retain(pair->b)};
    }
    return TN_OK;
}

/* Handles of another conversation's weights: what is made of them for kernels belongs to their memory, and is shared
 * too. */
static tn_status share_weights(tn_llm *m, const tn_llm *with) {
    m->trained = with->trained;
    if (with->trained_embedding) TRY(tn_llm_train_embedding(m));
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        m->weights.head[slot] = with->weights.head[slot] ? tn_retain(with->weights.head[slot]) : NULL;
    for (int64_t i = 0; i < m->config.layers; i++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++) {
            tn_tensor *weight = with->weights.layers[i].weight[slot];
            m->weights.layers[i].weight[slot] = weight ? tn_retain(weight) : NULL;
        }
    for (int64_t i = 0; i < m->config.layers; i++)
        if (with->weights.layers[i].key_up) m->weights.layers[i].key_up = tn_retain(with->weights.layers[i].key_up);
    return share_adapter(m, with);
}

/* with: NULL, or whose weights are shared; adapter: NULL, or a folder. */
static tn_status set_up(tn_llm *m, const tn_llm *with, const char *adapter) {
    TRY(take_memory(m));
    TRY(with ? share_weights(m, with) : take_weights(m));
    if (adapter) TRY(tn_llm_lora_read(m, adapter));
    TRY(make_frequencies(m, false));
    if (m->config.positions.two_ropes) TRY(make_frequencies(m, true));
    return take_caches(m);
}

static tn_status open_model(tn_llm *m, const char *path, const tn_llm_options *options) {
    m->file = tn_txt_zalloc(1, sizeof *m->file);
    if (!m->file) return TN_ERR_MEMORY;
    m->file->users = 1;
    TRY(tn_llm_source_open(path, &m->file->source));
    TRY(tn_llm_configure(&m->file->source, options, &m->config));
    TRY(check_cache_type(m));
    TRY(check_memory(m, options, false, options->conversations));
    AUTO_DEVICE(m->device);
    if (options->conversations > 1) TRY(make_pool(m, options->conversations));
    return set_up(m, NULL, options->adapter);
}

tn_status tn_llm_open(const char *path, const tn_llm_options *options, tn_llm **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_open: out is NULL");
    *out = NULL;
    tn_llm_options o;
    TRY(read_options_llm(options, "tn_llm_open", &o));
    tn_llm *m = tn_txt_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->device = o.device ? o.device : tn_current_device();
    tn_status status = m->device ? open_model(m, path, &o) : TN_ERR_MEMORY;
    if (status == TN_OK)
        *out = m;
    else
        tn_llm_close(m);
    return status;
}

static tn_status open_reader(tn_llm *m, const char *path) {
    m->file = tn_txt_zalloc(1, sizeof *m->file);
    if (!m->file) return TN_ERR_MEMORY;
    m->file->users = 1;
    TRY(tn_llm_source_open(path, &m->file->source));
    TRY(tn_llm_configure_reader(&m->file->source, &m->config));
    m->weights.layers = tn_txt_zalloc((size_t)m->config.layers, sizeof *m->weights.layers);
    if (!m->weights.layers) return TN_ERR_MEMORY;
    TRY(take_weights(m));
    TRY(make_frequencies(m, false));
    return m->config.positions.two_ropes ? make_frequencies(m, true) : TN_OK;
}

tn_status tn_llm_open_reader(const char *path, tn_device *device, tn_llm **out) {
    tn_llm *m = *out = tn_txt_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->device = device;
    AUTO_DEVICE(m->device);
    tn_status status = open_reader(m, path);
    if (status == TN_OK) return TN_OK;
    tn_llm_close(m);
    *out = NULL;
    return status;
}

/* o: NULL for those of `with`. */
static tn_status join_conversation(tn_llm *m, const tn_llm *with, const tn_llm_options *o) {
    const tn_llm_options usual = TN_LLM_DEFAULTS;
    m->device = with->device;
    m->file = with->file;
    m->file->users++;
    m->config = with->config;
    if (o && o->device && o->device != m->device)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_new_conversation: the weights are on another device; open the "
                                                "model there (tn_llm_open)");
    if (o && o->adapter)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_new_conversation: adapter must be NULL; the conversation has "
                                                "the adapter of the model");
    if (o) TRY(tn_llm_configure(&m->file->source, o, &m->config));
    TRY(check_cache_type(m));
    join_pool(m, with);
    TRY(check_memory(m, o ? o : &usual, true, m->pool ? 0 : 1));
    AUTO_DEVICE(m->device);
    return set_up(m, with, NULL);
}

tn_status tn_llm_new_conversation(const tn_llm *with, const tn_llm_options *options, tn_llm **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_new_conversation: out is NULL");
    *out = NULL;
    if (!with) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_new_conversation: the model is NULL");
    tn_llm_options o;
    TRY(read_options_llm(options, "tn_llm_new_conversation", &o));
    tn_llm *m = tn_txt_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    tn_status status = join_conversation(m, with, options ? &o : NULL);
    if (status == TN_OK)
        *out = m;
    else
        tn_llm_close(m);
    return status;
}

static void release_file(llm_file *f) {
    if (!f || atomic_fetch_sub(&f->users, 1) != 1) return;
    tn_llm_source_close(&f->source);
    tn_txt_free(f);
}

void tn_llm_close(tn_llm *m) {
    if (!m) return;
    tn_graph_free(m->token);
    tn_llm_draft_free(m->draft);
    for (int64_t i = 0; m->weights.layers && i < m->config.layers; i++) {
        llm_layer *l = &m->weights.layers[i];
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            tn_free(l->weight[slot]);
        tn_free(l->key_up);
    }
    if (m->weights.layers) free_caches(&m->config, m->weights.layers);
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        tn_free(m->weights.head[slot]);
    tn_free(m->weights.rope[0]);
    tn_free(m->weights.rope[1]);
    tn_free(m->weights.pages);
    tn_llm_lora_free(m->weights.lora, &m->config);
    leave_pool(m);
    tn_txt_free_each(m->weights.layers, m->logits);
    tn_free(m->shown);
    tn_txt_free_each(m->tokens, m->numbers, m->rows, m->places);
    release_file(m->file);
    tn_txt_free(m);
}

const tn_gguf *tn_llm_file(const tn_llm *m) { return m ? m->file->source.gguf : NULL; }
bool tn_llm_ends(const tn_llm *m, int32_t id) {
    for (int i = 0; m && i < m->config.ends.count; i++)
        if (m->config.ends.ids[i] == id) return true;
    return false;
}

int64_t tn_llm_position(const tn_llm *m) { return m ? m->position : 0; }

tn_status tn_llm_get_facts(const tn_llm *m, tn_llm_facts *facts) {
    TRY(tn_txt_check_facts("tn_llm_get_facts: facts", m, facts));
    return tn_llm_describe(&m->config, &m->file->source, facts);
}

const int32_t *tn_llm_tokens(const tn_llm *m) { return m ? m->tokens : NULL; }

int64_t tn_llm_common_prefix(const tn_llm *m, const int32_t *ids, int64_t count) {
    int64_t kept = 0;
    while (m && ids && kept < m->position && kept < count - 1 && m->tokens[kept] == ids[kept])
        kept++;
    return kept;
}

tn_status tn_llm_refuse_recurrent(const tn_llm *m, const char *function, const char *why) {
    const llm_config *c = &m->config;
    if (c->size[SIZE_ALL_INPUTS] > 0 || c->attention.first_shared > 0)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "%s does not support models whose layers have inputs of their own or keys of others, such as '%s'",
            function, tn_llm_source_path(&m->file->source));
    for (int64_t i = 0; i < c->layers; i++)
        if (tn_llm_is_skipped(c, i))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "%s does not support models with layers for pictures, such as '%s'", function,
                                   tn_llm_source_path(&m->file->source));
    if (c->recurrent.layers == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "%s does not support models with recurrent layers, such as '%s': %s",
                           function, tn_llm_source_path(&m->file->source), why);
}

tn_status tn_llm_rewind(tn_llm *m, int64_t position) {
    if (!m) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_rewind: the model is NULL");
    if (position < 0 || position > m->position)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_llm_rewind: cannot rewind to %" PRId64 " tokens; the sequence has %" PRId64,
                               position, m->position);
    if (position < m->position) {
        tn_llm_drop_draft(m);
        m->stale = m->config.recurrent.layers > 0;
    }
    m->position = position;
    return TN_OK;
}

tn_status tn_llm_export_onnx(tn_llm *m, const char *path, const tn_llm_export_onnx_options *options) {
    tn_llm_export_onnx_options o = TN_LLM_EXPORT_ONNX_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_llm_export_onnx",
                        "tn_llm_export_onnx_options o = TN_LLM_EXPORT_ONNX_DEFAULTS"));
    if (!m || !path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_export_onnx: the model or the path is NULL");
    TRY(tn_llm_refuse_recurrent(m, "tn_llm_export_onnx", "an ONNX network would need their states as inputs"));
    AUTO_DEVICE(m->device);
    return tn_llm_write_onnx(&m->file->source, &m->config, &m->weights, path, o.cache);
}

/* ---- pieces of a prompt ------------------------------------------------------------------------------------------ */

static tn_status too_long(const tn_llm *m, int64_t count) {
    char fix[160] = "this is the longest context that the model supports: shorten the text";
    if (m->config.context < m->config.trained_context)
        snprintf(fix, sizeof fix, "set a longer context in tn_llm_options (--context of the command), at most %" PRId64,
                 m->config.trained_context);
    return tn_backend_fail(TN_ERR_ARGUMENT,
                           "%" PRId64 " tokens exceed the context of %" PRId64 ", of which %" PRId64 " are used; %s",
                           count, m->config.context, m->position, fix);
}

static tn_status check_ids(const tn_llm *m, const int32_t *ids, int64_t count) {
    if (!m || !ids || count < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_llm: the model or the ids are NULL, or the number of ids is %" PRId64, count);
    if (count > m->config.context - m->position) return too_long(m, count);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= m->config.size[SIZE_VOCABULARY])
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "token %" PRId64 " is %" PRId32 ", but the vocabulary has %" PRId64 " tokens", i,
                                   ids[i], m->config.size[SIZE_VOCABULARY]);
    return TN_OK;
}

/* Of an embedding that was trained. */
static tn_status copy_trained_rows(const tn_llm *m, const int64_t *ids, int64_t n, void *out) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *rows = tn_embedding(tn_from_data(ids, TN_DIMS(n), TN_I64), m->weights.head[SLOT_EMBEDDING]);
    return tn_read(rows, out, (size_t)n * tn_llm_embedding_row(m));
}

/* Rows of one table, `stride` bytes apart, in m->rows_dtype. A table of per-layer embeddings may end before the
 * vocabulary does. */
static tn_status copy_table(const tn_llm *m, int slot, const int64_t *ids, int64_t n, char *out, size_t stride) {
    llm_tensor t;
    TRY(find_table(m, slot, &t));
    size_t made = tn_dtype_bytes(m->rows_dtype, t.shape[1]), stored = tn_dtype_bytes(t.dtype, t.shape[1]);
    bool same = t.dtype == m->rows_dtype;
    AUTO_TXT_FREE char *all = same ? NULL : tn_txt_alloc((size_t)n, made + stored);
    char *read = all ? all + (size_t)n * made : NULL;
    if (!same && !all) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = ids[i] < t.shape[0] ? ids[i] : 0;
        char *to = same ? out + (size_t)i * stride : read + (size_t)i * stored;
        TRY(tn_llm_source_rows(&m->file->source, t.name, &id, 1, to));
    }
    if (same) return TN_OK;
    TN_SCOPE;
    tn_tensor *decoded = tn_cast(tn_from_data(read, TN_DIMS(n, t.shape[1]), t.dtype), m->rows_dtype);
    TRY(tn_read(decoded, all, (size_t)n * made));
    for (int64_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * stride, all + (size_t)i * made, made);
    return TN_OK;
}

/* A token's row is that of the embedding, followed by that of the per-layer embeddings if the model has these. */
tn_status tn_llm_copy_rows(const tn_llm *m, const int64_t *ids, int64_t n, void *out) {
    size_t row = tn_llm_embedding_row(m), first = tn_dtype_bytes(m->rows_dtype, m->config.size[SIZE_HIDDEN]);
    if (m->trained_embedding) return copy_trained_rows(m, ids, n, out);
    TRY(copy_table(m, SLOT_EMBEDDING, ids, n, out, row));
    return m->config.size[SIZE_ALL_INPUTS] > 0 ? copy_table(m, SLOT_LAYER_TABLE, ids, n, (char *)out + first, row)
                                               : TN_OK;
}

/* Reads the rows of these tokens in the embedding from the file, a few hundred bytes each: looked up in its mapping
 * they would bring large parts of a matrix to memory that stands there already, packed, as the output's weight. */
tn_status tn_llm_read_rows(tn_llm *m, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        m->numbers[i] = ids[i];
    return tn_llm_copy_rows(m, m->numbers, n, m->rows);
}

tn_tensor *tn_llm_rows(const tn_llm *m, const void *rows, int64_t n) {
    return tn_from_data(rows, TN_DIMS(n, tn_llm_row_width(&m->config)), m->rows_dtype);
}

static tn_tensor *make_positions(tn_llm *m, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        m->places[i] = (float)(first + i);
    return tn_from_data(m->places, TN_DIMS(n, 1, 1), TN_F32);
}

/* The inputs of the n tokens whose rows were read, from place `first` on; n = 1 has plain extents, more share a
 * symbolic one. */
static llm_inputs make_inputs(tn_llm *m, int64_t first, int64_t n) {
    llm_inputs in = {.rows = tn_llm_rows(m, m->rows, n),
                     .positions = make_positions(m, first, n),
                     .position = tn_runtime_scalar_int(first),
                     .last = tn_from_data(&(int64_t){n - 1}, TN_DIMS(1), TN_I64)};
    if (n == 1 || m->config.recurrent.layers > 0) return in;
    in.rows = tn_symbolic(in.rows, 0, SYMBOL_TOKENS);
    in.positions = tn_symbolic(in.positions, 0, SYMBOL_TOKENS);
    return in;
}

static tn_status run_piece(tn_llm *m, const int32_t *ids, int64_t done, int64_t n, llm_rows rows, float *out) {
    tn_llm_drop_draft(m); /* what the cache has of its guesses is overwritten, even if this fails */
    TRY(tn_llm_read_rows(m, ids + done, n));
    TN_SCOPE;
    llm_inputs in = make_inputs(m, m->position + done, n);
    AUTO_TXT_TENSOR tn_tensor *logits = tn_llm_record(&m->config, &m->weights, &in, rows);
    TRY(logits ? tn_eval(&logits, 1) : tn_eval(NULL, 0));
    size_t count = (size_t)(rows == LLM_ALL_ROWS ? n : 1) * (size_t)m->config.size[SIZE_VOCABULARY];
    if (logits) TRY(tn_read(logits, out, count * sizeof *out));
    return TN_OK;
}

/* These were computed, and belong to the sequence now. */
void tn_llm_append_accepted(tn_llm *m, int32_t id) { m->tokens[m->position++] = id; }

void tn_llm_append(tn_llm *m, const int32_t *ids, int64_t count) {
    tn_llm_drop_draft(m);
    memcpy(m->tokens + m->position, ids, (size_t)count * sizeof *ids);
    m->position += count;
}

/* How many of `left` tokens are computed at once. The tokens of recurrent layers are recorded one by one, so there are
 * two plans: for LLM_SCAN of them, and for one. */
static int64_t piece_of(const tn_llm *m, int64_t left, int64_t most) {
    if (m->config.recurrent.layers > 0) return left >= LLM_SCAN ? LLM_SCAN : 1;
    return left < most ? left : most;
}

/* The states of recurrent layers after a rewind: those of no text, then of each token of the sequence. */
static tn_status compute_anew(tn_llm *m) {
    int64_t position = m->position;
    for (int64_t i = 0; i < m->config.layers; i++)
        for (int k = CACHE_CONV; k <= CACHE_STATE; k++)
            if (m->weights.layers[i].cache[k]) tn_zero_(m->weights.layers[i].cache[k]);
    tn_status status = tn_eval(NULL, 0);
    m->position = 0;
    for (int64_t done = 0, n; done < position && status == TN_OK; done += n) {
        n = piece_of(m, position - done, LLM_CHUNK);
        status = run_piece(m, m->tokens, done, n, LLM_NO_ROWS, NULL);
    }
    m->position = position;
    m->stale = status != TN_OK;
    return status;
}

tn_status tn_llm_refresh(tn_llm *m) { return m->stale ? compute_anew(m) : TN_OK; }

static tn_status run_prompt_llm(tn_llm *m, const int32_t *ids, int64_t count, bool wanted) {
    TRY(tn_llm_refresh(m));
    for (int64_t done = 0, n; done < count; done += n) {
        n = piece_of(m, count - done, LLM_CHUNK);
        bool last = wanted && done + n == count;
        TRY(run_piece(m, ids, done, n, last ? LLM_LAST_ROW : LLM_NO_ROWS, m->logits));
    }
    tn_llm_append(m, ids, count);
    return TN_OK;
}

tn_status tn_llm_prompt(tn_llm *m, const int32_t *ids, int64_t count, const float **logits) {
    TRY(check_ids(m, ids, count));
    if (count == 1) return tn_llm_step(m, ids[0], logits);
    AUTO_DEVICE(m->device);
    tn_status status = tn_llm_mend(m, run_prompt_llm(m, ids, count, logits != NULL));
    if (status == TN_OK && logits) *logits = m->logits;
    return status;
}

static tn_status run_logits(tn_llm *m, const int32_t *ids, int64_t count, float *out) {
    TRY(tn_llm_refresh(m));
    for (int64_t done = 0, n; done < count; done += n) {
        n = piece_of(m, count - done, LLM_LOGITS_CHUNK);
        TRY(run_piece(m, ids, done, n, LLM_ALL_ROWS, out + done * m->config.size[SIZE_VOCABULARY]));
    }
    tn_llm_append(m, ids, count);
    return TN_OK;
}

tn_status tn_llm_logits(tn_llm *m, const int32_t *ids, int64_t count, float *out) {
    TRY(check_ids(m, ids, count));
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_logits: out is NULL");
    AUTO_DEVICE(m->device);
    return tn_llm_mend(m, run_logits(m, ids, count, out));
}

/* ---- how large the numbers are that weights are multiplied with -------------------------------------------------- */

static const int8_t probe_of[LAYER_SLOTS] = {
    [SLOT_Q] = 1 + PROBE_ATTENTION,   [SLOT_K] = 1 + PROBE_ATTENTION, [SLOT_V] = 1 + PROBE_ATTENTION,
    [SLOT_QKV] = 1 + PROBE_ATTENTION, [SLOT_O] = 1 + PROBE_O,         [SLOT_GATE] = 1 + PROBE_FFN,
    [SLOT_UP] = 1 + PROBE_FFN,        [SLOT_DOWN] = 1 + PROBE_DOWN};

/* What a text has left: `count` lists of `width` numbers, the longest of them. */
typedef struct importance {
    tn_tensor **probes;
    float *read;
    double *sums;
    int64_t count, width;
} importance;

static void importance_free(importance *p) { tn_txt_free_each(p->probes, p->sums, p->read); }

static tn_status add_probes(importance *p) {
    TRY(tn_eval(p->probes, (int)p->count));
    for (int64_t i = 0; i < p->count; i++) {
        int64_t n = tn_numel(p->probes[i]);
        TRY(tn_read(p->probes[i], p->read, (size_t)n * sizeof *p->read));
        for (int64_t k = 0; k < n; k++)
            p->sums[i * p->width + k] += (double)p->read[k];
    }
    return TN_OK;
}

static tn_status probe_piece(tn_llm *m, const int32_t *ids, int64_t n, importance *p) {
    tn_status status = tn_llm_read_rows(m, ids, n);
    if (status != TN_OK) return status;
    memset(p->probes, 0, (size_t)p->count * sizeof(tn_tensor *));
    {
        TN_SCOPE;
        llm_inputs in = make_inputs(m, m->position, n);
        in.probes = p->probes;
        tn_free(tn_llm_record(&m->config, &m->weights, &in, LLM_ALL_ROWS));
        status = add_probes(p);
    }
    for (int64_t i = 0; i < p->count; i++)
        tn_free(p->probes[i]);
    m->position += n;
    return status;
}

static tn_status probe_text(tn_llm *m, const int32_t *ids, int64_t count, importance *p) {
    for (int64_t done = 0, n; done < count; done += n) {
        if (m->position == m->config.context) m->position = 0;
        int64_t room = m->config.context - m->position;
        n = count - done < LLM_CHUNK ? count - done : LLM_CHUNK;
        n = n < room ? n : room;
        TRY(probe_piece(m, ids + done, n, p));
    }
    m->position = 0;
    return TN_OK;
}

static tn_status hand_out_llm(tn_llm *m, int64_t layer, int slot, const importance *p, tn_llm_take *take, void *ctx) {
    char name[LLM_NAME_SIZE];
    llm_tensor info = {.struct_size = sizeof info};
    const double *sums = p->sums + p->width * (layer < 0 ? p->count - 1 : layer * LLM_PROBES + probe_of[slot] - 1);
    bool there = tn_llm_name(m->config.file.naming, name, layer, slot) &&
                 tn_llm_source_find(&m->file->source, name, &info) == TN_OK;
    if (!there || info.rank != 2 || info.shape[1] > p->width) return TN_OK;
    for (int64_t k = 0; k < info.shape[1]; k++)
        p->read[k] = (float)sums[k];
    return take(ctx, info.name, p->read, info.shape[1]);
}

static tn_status find_importance(tn_llm *m, const int32_t *ids, int64_t count, importance *p, tn_llm_take *take,
                                 void *ctx) {
    TRY(tn_llm_mend(m, probe_text(m, ids, count, p)));
    TRY(hand_out_llm(m, -1, m->config.tied ? SLOT_EMBEDDING : SLOT_OUTPUT, p, take, ctx));
    for (int64_t i = 0; i < m->config.layers; i++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            if (probe_of[slot] && !(m->config.file.naming->transposed & BIT(slot)))
                TRY(hand_out_llm(m, i, slot, p, take, ctx));
    return TN_OK;
}

tn_status tn_llm_importance(tn_llm *m, const int32_t *ids, int64_t count, tn_llm_take *take, void *ctx) {
    if (!m || !take) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_importance: the model or the function is NULL");
    TRY(tn_llm_refuse_recurrent(m, "tn_llm_importance", "it takes no activations of their matrices"));
    TRY(tn_llm_rewind(m, 0));
    TRY(check_ids(m, ids, count < m->config.context ? count : m->config.context));
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= m->config.size[SIZE_VOCABULARY]) return check_ids(m, ids + i, 1);
    AUTO_CALL(importance_free) importance p = {.count = m->config.layers * LLM_PROBES + 1};
    const llm_size sizes[] = {SIZE_HIDDEN, SIZE_QUERIES, SIZE_INTERMEDIATE};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (m->config.size[sizes[i]] > p.width) p.width = m->config.size[sizes[i]];
    p.probes = tn_txt_zalloc((size_t)p.count, sizeof(tn_tensor *));
    p.sums = tn_txt_zalloc((size_t)(p.count * p.width), sizeof *p.sums);
    p.read = tn_txt_alloc((size_t)p.width, sizeof *p.read);
    AUTO_DEVICE(m->device);
    return p.probes && p.sums && p.read ? find_importance(m, ids, count, &p, take, ctx) : TN_ERR_MEMORY;
}

/* ---- single tokens ----------------------------------------------------------------------------------------------- */

/* Capturing computes the token that it is captured with. */
static tn_status capture(tn_llm *m, int32_t id, const float **out) {
    TRY(tn_llm_read_rows(m, &id, 1));
    TRY(tn_capture_begin());
    TN_SCOPE;
    llm_inputs in = make_inputs(m, m->position, 1);
    AUTO_TXT_TENSOR tn_tensor *logits = tn_llm_record(&m->config, &m->weights, &in, LLM_ALL_ROWS);
    TRY(tn_capture_end((tn_tensor *[]){in.rows, in.positions}, 2, &logits, 1, &m->token));
    return tn_txt_show(logits, m->logits, m->config.size[SIZE_VOCABULARY], &m->shown, out);
}

static tn_status launch_llm(tn_llm *m, int32_t id, const float **out) {
    TRY(tn_llm_read_rows(m, &id, 1));
    TRY(tn_graph_set_runtime_scalar(m->token, 0, (double)m->position));
    TN_SCOPE;
    tn_tensor *logits = NULL;
    tn_tensor *inputs[] = {tn_llm_rows(m, m->rows, 1), make_positions(m, m->position, 1)};
    TRY(tn_graph_launch(m->token, inputs, &logits));
    return tn_txt_show(logits, m->logits, m->config.size[SIZE_VOCABULARY], &m->shown, out);
}

static tn_status run_token(tn_llm *m, int32_t id, const float **out) {
    tn_free(m->shown); /* its memory is for the next ones */
    m->shown = NULL;
    TRY(tn_llm_refresh(m));
    return m->token ? launch_llm(m, id, out) : capture(m, id, out);
}

tn_status tn_llm_step_alone(tn_llm *m, int32_t id, const float **logits) {
    AUTO_DEVICE(m->device);
    const float *found = NULL;
    TRY(tn_llm_mend(m, run_token(m, id, &found)));
    tn_llm_append(m, &id, 1);
    if (logits) *logits = found;
    return TN_OK;
}

tn_status tn_llm_step(tn_llm *m, int32_t id, const float **logits) {
    TRY(check_ids(m, &id, 1));
    return m->draft ? tn_llm_step_drafted(m, id, logits) : tn_llm_step_alone(m, id, logits);
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

/* The cache entries of these tokens lie after the sequence: they are overwritten before they are read. */
static tn_status prepare_llm(tn_llm *m) {
    const int32_t any[LLM_SCAN] = {0};
    bool recurrent = m->config.recurrent.layers > 0;
    int64_t room = m->config.context - m->position, piece = recurrent ? LLM_SCAN : 2;
    if (room >= piece) TRY(run_piece(m, any, 0, piece, LLM_LAST_ROW, m->logits));
    if (room > (recurrent ? LLM_SCAN : LLM_CHUNK)) TRY(run_piece(m, any, 0, piece, LLM_NO_ROWS, m->logits));
    const float *unseen;
    if (room >= 1 && !m->token) TRY(run_token(m, any[0], &unseen));
    m->stale = recurrent;
    return TN_OK;
}

tn_status tn_llm_prepare(tn_llm *m) {
    if (!m) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_prepare: the model is NULL");
    AUTO_DEVICE(m->device);
    return tn_llm_mend(m, prepare_llm(m));
}
