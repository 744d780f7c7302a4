/* native_attention.c — attention over tensors and over pages of keys and values, writing there, rotary positions. */
#include "core/native.h"

/* ---- keys and values in pages ------------------------------------------------------------------------------------ */

static tn_kv_cache cache_of(const tn_value *cache, const tn_value *pages) {
    return (tn_kv_cache){.dtype = (tn_dtype)cache->node->dtype,
                         .n_pages = cache->node->shape[0],
                         .page_stride = cache->stride[0],
                         .page_count = tn_value_numel(pages)};
}

static void run_cache_append(tn_native *n, void *const *pointers) {
    n->append.cache.data = pointers[0];
    n->append.x = pointers[2];
    n->append.position = *(const int64_t *)pointers[3];
    n->append.cache.pages = pointers[4];
    tn_kv_cache_write(&n->append);
}

/* cache_append_rows(cache, x, position, pages) */
tn_status tn_make_cache_append(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *cache = &g->values[v->in[0]], *x = &g->values[v->in[1]];
    const tn_value *pages = &g->values[v->in[3]];
    n->run = run_cache_append;
    n->result_from = tn_node_bytes(cache->node);
    n->append = (tn_kv_cache_write_args){.cache = cache_of(cache, pages),
                                         .n = x->node->shape[0],
                                         .kv_heads = x->node->shape[1],
                                         .head_dim = x->node->shape[2],
                                         .x_token_stride = x->stride[0],
                                         .x_head_stride = x->stride[1]};
    *workspace = 0;
    return TN_OK;
}

/* The state stays where it is. */
void tn_cost_of_cache_append(const tn_native *n, tn_cost *cost) {
    const tn_kv_cache_write_args *a = &n->append;
    int64_t element = (int64_t)(tn_dtype_size(a->cache.dtype) + sizeof(float));
    cost->bytes = a->n * a->kv_heads * a->head_dim * element;
}

static void run_cached_attention(tn_native *n, void *const *pointers) {
    tn_attention_args *a = &n->attention;
    a->out = pointers[0];
    a->q = pointers[1];
    a->k = pointers[2];
    a->v = pointers[3];
    a->k_cache.data = pointers[4];
    a->v_cache.data = pointers[5];
    a->position = *(const int64_t *)pointers[6];
    a->k_cache.pages = a->v_cache.pages = pointers[7];
    a->workspace = pointers[8];
    tn_attention(a);
}

/* cached_attention_rows(q, k, v, k_cache, v_cache, position, pages; scale; window; softcap) */
tn_status tn_make_cached_attention(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *out = &g->values[group->lead], *in[7];
    for (int i = 0; i < 7; i++)
        in[i] = &g->values[out->in[i]];
    n->run = run_cached_attention;
    n->attention = (tn_attention_args){.n = out->node->shape[0],
                                       .heads = out->node->shape[1],
                                       .kv_heads = in[3]->node->shape[1],
                                       .head_dim = out->node->shape[2],
                                       .window = out->node->i[0],
                                       .scale = (float)out->node->f[0],
                                       .cap = (float)out->node->f[1],
                                       .q_token_stride = in[0]->stride[0],
                                       .q_head_stride = in[0]->stride[1],
                                       .k_token_stride = in[1]->stride[0],
                                       .k_head_stride = in[1]->stride[1],
                                       .v_token_stride = in[2]->stride[0],
                                       .v_head_stride = in[2]->stride[1],
                                       .out_token_stride = out->stride[0],
                                       .out_head_stride = out->stride[1],
                                       .k_cache = cache_of(in[3], in[6]),
                                       .v_cache = cache_of(in[4], in[6])};
    *workspace = tn_attention_workspace(&n->attention, tn_threads());
    return TN_OK;
}

/* Keys and values are read as far as the sequence goes, not as far as the cache does; and a query meets half of the new
 * ones on average. */
void tn_cost_of_cached_attention(const tn_native *n, tn_cost *cost) {
    const tn_attention_args *a = &n->attention;
    double old = (double)a->position, met = old + 0.5 * (double)(a->n + 1);
    if (a->window > 0 && met > (double)a->window) met = (double)a->window;
    if (a->window > 0 && old > (double)a->window) old = (double)a->window;
    double key = (double)(a->kv_heads * a->head_dim), query = (double)(a->heads * a->head_dim);
    double bytes =
        2 * old * key * (double)tn_dtype_size(a->k_cache.dtype) + (double)a->n * (2 * key + 2 * query) * sizeof(float);
    *cost = (tn_cost){.bytes = (int64_t)bytes, .flops = 4 * (double)a->n * query * met};
}

/* ---- attention over tensors -------------------------------------------------------------------------------------- */

static tn_sdpa_tensor sdpa_tensor(const int64_t stride[4]) {
    return (tn_sdpa_tensor){.batch = stride[0], .head = stride[1], .row = stride[2], .column = stride[3]};
}

static void run_sdpa(tn_native *n, void *const *pointers) {
    tn_sdpa_args *a = &n->sdpa;
    a->out.data = pointers[0];
    a->q.data = pointers[1];
    a->k.data = pointers[2];
    a->v.data = pointers[3];
    a->mask.data = pointers[4];
    a->workspace = pointers[5];
    tn_sdpa(a, false);
}

/* A result that holds three: side by side, or one behind the other. */
static void run_sdpa_gradient(tn_native *n, void *const *pointers) {
    tn_sdpa_args *a = &n->sdpa;
    float *all = pointers[0];
    a->dq.data = all;
    a->dk.data = all + n->sdpa_at[0];
    a->dv.data = all + n->sdpa_at[1];
    a->q.data = pointers[1];
    a->k.data = pointers[2];
    a->v.data = pointers[3];
    a->mask.data = pointers[4];
    a->out.data = pointers[5];
    a->dout.data = pointers[6];
    a->workspace = pointers[7];
    tn_sdpa(a, true);
}

/* q, k, v, mask; is_causal; scale; blind; hides */
static void sdpa_operands(const tn_graph_plan *g, const tn_value *lead, tn_sdpa_args *a) {
    const tn_value *q = &g->values[lead->in[0]], *k = &g->values[lead->in[1]], *v = &g->values[lead->in[2]];
    *a = (tn_sdpa_args){.batch = q->node->shape[0],
                        .heads = q->node->shape[1],
                        .kv_heads = k->node->shape[1],
                        .queries = q->node->shape[2],
                        .keys = k->node->shape[2],
                        .features = q->node->shape[3],
                        .value_features = v->node->shape[3],
                        .scale = (float)lead->node->f[0],
                        .causal = lead->node->i[0] != 0,
                        .blind = lead->node->i[1] != 0,
                        .hides = lead->node->i[2] != 0};
    a->q = sdpa_tensor(q->stride);
    a->k = sdpa_tensor(k->stride);
    a->v = sdpa_tensor(v->stride);
    if (lead->in[3] >= 0) a->mask = sdpa_tensor(g->values[lead->in[3]].stride);
}

/* attention_dense(q, k, v, mask; is_causal; scale; blind; hides) */
tn_status tn_make_sdpa(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *lead = &g->values[group->lead];
    n->run = run_sdpa;
    sdpa_operands(g, lead, &n->sdpa);
    n->sdpa.out = sdpa_tensor(lead->stride);
    *workspace = tn_sdpa_workspace(&n->sdpa, false, tn_threads());
    return TN_OK;
}

/* attention_dense_gradient(q, k, v, mask, out, dout; is_causal; scale; blind; hides) */
tn_status tn_make_sdpa_gradient(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *lead = &g->values[group->lead];
    tn_sdpa_args *a = &n->sdpa;
    n->run = run_sdpa_gradient;
    sdpa_operands(g, lead, a);
    a->out = sdpa_tensor(g->values[lead->in[4]].stride);
    a->dout = sdpa_tensor(g->values[lead->in[5]].stride);
    if (lead->node->rank == 5) { /* [batch, positions, 3, heads, features] */
        int64_t width = a->heads * a->features, row = 3 * width;
        a->dq = a->dk = a->dv = (tn_sdpa_tensor){NULL, a->queries * row, a->features, row, 1};
        n->sdpa_at[0] = width;
        n->sdpa_at[1] = 2 * width;
    } else {
        int64_t d = a->features, dv = a->value_features;
        a->dq = (tn_sdpa_tensor){NULL, a->heads * a->queries * d, a->queries * d, d, 1};
        a->dk = (tn_sdpa_tensor){NULL, a->kv_heads * a->keys * d, a->keys * d, d, 1};
        a->dv = (tn_sdpa_tensor){NULL, a->kv_heads * a->keys * dv, a->keys * dv, dv, 1};
        n->sdpa_at[0] = a->batch * a->dq.batch;
        n->sdpa_at[1] = n->sdpa_at[0] + a->batch * a->dk.batch;
    }
    *workspace = tn_sdpa_workspace(a, true, tn_threads());
    return TN_OK;
}

/* Products alone: two forward, five backward; of a causal one half. */
static double sdpa_flops(const tn_sdpa_args *a, double products) {
    double pairs = (double)(a->batch * a->heads * a->queries) * (double)a->keys * (a->causal ? 0.5 : 1.0);
    return products * pairs * (double)(a->features + a->value_features);
}

void tn_cost_of_sdpa(const tn_native *n, tn_cost *cost) { cost->flops = sdpa_flops(&n->sdpa, 2); }
void tn_cost_of_sdpa_gradient(const tn_native *n, tn_cost *cost) { cost->flops = sdpa_flops(&n->sdpa, 5); }

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

static void run_rope(tn_native *n, void *const *pointers) {
    n->rope.out = pointers[0];
    n->rope.x = pointers[1];
    n->rope.cosine = pointers[2];
    n->rope.sine = pointers[3];
    tn_rope_f32(&n->rope);
}

/* rope_rows(x, cos, sin; interleaved): the tables broadcast over x's rows. */
tn_status tn_make_rope(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *table = &g->values[v->in[1]];
    const tn_node *x = v->node, *angles = table->node;
    n->run = run_rope;
    n->rope = (tn_rope_args){
        .features = x->shape[x->rank - 1], .half = angles->shape[angles->rank - 1], .interleaved = x->i[0] != 0};
    for (int d = 0; d < TN_ROPE_AXES; d++)
        n->rope.extent[d] = 1;
    for (int d = 0; d < x->rank - 1; d++) {
        int axis = TN_ROPE_AXES - (x->rank - 1) + d, own = d - (x->rank - angles->rank);
        n->rope.extent[axis] = x->shape[d];
        if (own >= 0 && angles->shape[own] != 1) n->rope.table_stride[axis] = table->stride[own];
    }
    *workspace = 0;
    return TN_OK;
}
