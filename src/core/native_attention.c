/* native_attention.c — attention over keys and values in pages, writing there, and rotary positions. */
#include "core/native.h"

/* ---- keys and values in pages ------------------------------------------------------------------------------------ */

static tn_cache cache_of(const tn_value *cache, const tn_value *pages) {
    return (tn_cache){.dtype = (tn_dtype)cache->node->dtype,
                      .n_pages = cache->node->shape[0],
                      .page_stride = cache->stride[0],
                      .page_count = tn_value_numel(pages)};
}

static void run_cache_append(tn_native *n, void *const *pointers) {
    n->append.cache.data = pointers[0];
    n->append.x = pointers[2];
    n->append.position = *(const int64_t *)pointers[3];
    n->append.cache.pages = pointers[4];
    tn_cache_write(&n->append);
}

/* cache_append_rows(cache, x, position, pages) */
tn_status tn_make_cache_append(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *cache = &g->values[v->in[0]], *x = &g->values[v->in[1]];
    const tn_value *pages = &g->values[v->in[3]];
    n->run = run_cache_append;
    n->result_from = tn_node_bytes(cache->node);
    n->append = (tn_cache_write_args){.cache = cache_of(cache, pages),
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
    const tn_cache_write_args *a = &n->append;
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

/* cached_attention_rows(q, k, v, k_cache, v_cache, position, pages; scale; window) */
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
