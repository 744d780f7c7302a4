/* native.c — groups that a kernel of kern/ computes: products with their store joint, argsort, index_add.
 *
 * Everything that does not change between runs is worked out once: strides, workspace, the compiled joint. A second
 * operand that lies in bound memory which this plan does not write (a weight under inference) is packed once: its
 * packed form hangs on the buffer (tn_form), for all plans, and is made anew only when somebody wrote it. */
#include <string.h>

#include "core/core.h"

static const int64_t PACK_LIMIT = (int64_t)64 << 20; /* bytes of one packed operand that is kept beside it */

struct tn_native {
    tn_status (*run)(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound);
    tn_dtype dtype;
    int64_t offset[TN_NATIVE_POINTERS]; /* of the operands in their memory, bytes */
    tn_gemm_args gemm;
    kir_vm *vm; /* the product's joint */
    int64_t *sizes;
    bool packed_valid;
    tn_form form; /* of the weight that the kernel reads, of the buffer bound to form_slot; -1: none */
    int form_slot;
    void **formed; /* where the kernel looks for it */
    tn_qmat_args qmat;
    void *packed_weight;
    size_t packed_at; /* in the workspace, of a weight that is packed at each run */
    tn_argsort_args argsort;
    tn_scatter_args scatter;
    tn_cache_write_args append;
    tn_attention_args attention;
    tn_rope_args rope;
    size_t self_bytes;
};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* MATMUL: a, b, c, workspace. Others: result, inputs …, workspace. */
int tn_native_operands(const tn_graph_plan *g, const tn_group *group, int values[TN_NATIVE_POINTERS]) {
    const tn_value *v = &g->values[group->lead];
    int count = 0;
    if (group->kind == TN_GROUP_MATMUL) {
        values[count++] = v->in[0];
        values[count++] = v->in[1];
        values[count++] = group->member_count == 1 ? group->lead : -1;
    } else {
        values[count++] = group->lead;
        for (int k = 0; k < v->n_in; k++)
            values[count++] = v->in[k];
    }
    values[count++] = TN_WORKSPACE;
    return count;
}

static size_t byte_offset(const tn_value *v) { return (size_t)v->offset * tn_dtype_size((tn_dtype)v->node->dtype); }

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void matrix_of(const tn_value *v, tn_matrix *m) {
    int rank = v->node->rank;
    m->row_stride = v->stride[rank - 2];
    m->col_stride = v->stride[rank - 1];
    for (int d = 0; d < rank - 2; d++) {
        int axis = TN_GEMM_BATCH_AXES - (rank - 2) + d;
        m->batch_stride[axis] = v->node->shape[d] == 1 ? 0 : v->stride[d];
    }
}

static bool writes_slot(const tn_graph_plan *g, int slot) {
    for (size_t i = 0; i < g->binding->output_count; i++)
        if (g->binding->outputs[i].home == slot) return true;
    return false;
}

/* Is the memory bound to a slot the host's own, and left as it is by this plan? */
static bool may_be_formed(const tn_graph_plan *g, int slot) {
    return slot >= 0 && g->binding->device->is_cpu && !writes_slot(g, slot);
}

static bool worth_keeping_packed(const tn_graph_plan *g, const tn_native *n, const tn_value *b) {
    const tn_value *root = &g->values[b->root];
    if (!may_be_formed(g, root->slot)) return false;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        if (n->gemm.b.batch_stride[axis] != 0) return false;
    return (int64_t)tn_gemm_packed_bytes(n->gemm.n, n->gemm.k, n->dtype) <= PACK_LIMIT;
}

/* words of a form's name */
enum { FORM_DTYPE, FORM_ROWS, FORM_COLUMNS, FORM_OFFSET, FORM_ROW_STRIDE, FORM_COLUMN_STRIDE };

static void pack_operand(const tn_form *form, const void *from, void *to) {
    const int64_t *w = form->word;
    tn_gemm_args args = {.batch = {1, 1, 1, 1}, .m = 1, .n = w[FORM_COLUMNS], .k = w[FORM_ROWS], .packed_b = to};
    args.b.data = (char *)(uintptr_t)from + w[FORM_OFFSET];
    args.b.row_stride = w[FORM_ROW_STRIDE];
    args.b.col_stride = w[FORM_COLUMN_STRIDE];
    tn_gemm_pack(&args, (tn_dtype)w[FORM_DTYPE]);
}

static void keep_packed(const tn_graph_plan *g, tn_native *n, const tn_value *b) {
    if (!worth_keeping_packed(g, n, b)) return;
    tn_gemm_args *gemm = &n->gemm;
    n->form_slot = g->values[b->root].slot;
    n->form = (tn_form){.make = pack_operand,
                        .bytes = tn_gemm_packed_bytes(gemm->n, gemm->k, n->dtype),
                        .word = {n->dtype, gemm->k, gemm->n, n->offset[1], gemm->b.row_stride, gemm->b.col_stride}};
    n->formed = &gemm->packed_b;
    n->packed_valid = true;
    gemm->packed_valid = &n->packed_valid;
}

static tn_status make_joint(tn_native *n, const tn_group *group) {
    if (!group->program) return TN_OK;
    TRY(kir_vm_compile(group->program, &n->vm));
    size_t bytes = kir_sizes_count(group->program) * sizeof(int64_t);
    n->sizes = tn_mem_alloc(bytes);
    if (!n->sizes) return TN_ERR_MEMORY;
    memcpy(n->sizes, group->sizes, bytes);
    n->gemm.c.joint = (tn_joint){.vm = n->vm,
                                 .launch = {.sizes = n->sizes},
                                 .block_buffer = group->block_buffer,
                                 .buffer_count = group->buffer_count};
    return TN_OK;
}

static tn_status run_matmul(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound) {
    tn_gemm_args *args = &n->gemm;
    args->a.data = (char *)pointers[0] + n->offset[0];
    args->b.data = (char *)pointers[1] + n->offset[1];
    args->c.data = pointers[2];
    args->workspace = pointers[3];
    if (args->c.joint.vm) {
        args->c.joint.launch.buffers = pointers + 4;
        args->c.joint.launch.dials = dials;
    }
    (void)bound;
    if (n->dtype == TN_F32)
        tn_gemm_f32(args);
    else
        tn_gemm_f64(args);
    return TN_OK;
}

static tn_status make_matmul(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *c = &g->values[group->lead], *a = &g->values[c->in[0]], *b = &g->values[c->in[1]];
    int rank = c->node->rank;
    size_t element = tn_dtype_size((tn_dtype)c->node->dtype);
    n->run = run_matmul;
    n->gemm = (tn_gemm_args){
        .m = c->node->shape[rank - 2], .n = c->node->shape[rank - 1], .k = a->node->shape[a->node->rank - 1]};
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        n->gemm.batch[axis] = 1;
    for (int d = 0; d < rank - 2; d++)
        n->gemm.batch[TN_GEMM_BATCH_AXES - (rank - 2) + d] = c->node->shape[d];
    matrix_of(a, &n->gemm.a);
    matrix_of(b, &n->gemm.b);
    matrix_of(c, &n->gemm.c);
    n->offset[0] = a->offset * (int64_t)element;
    n->offset[1] = b->offset * (int64_t)element;
    TRY(make_joint(n, group));
    keep_packed(g, n, b);
    *workspace = tn_gemm_workspace(&n->gemm, n->dtype, tn_threads());
    return TN_OK;
}

/* ---- products with weights as they are stored -------------------------------------------------------------------- */

enum { PACKED_ALIGN = 64 };

/* Piece by piece, each piece's pages of the file going back at once: a large weight is never in memory twice. Packed
 * rows stand in groups of 16, one group after the other. */
static void pack_blocks(const tn_form *form, const void *from, void *to) {
    enum { PIECE_BYTES = 1 << 20, GROUP = 16 };
    const int64_t *w = form->word;
    tn_dtype dtype = (tn_dtype)w[FORM_DTYPE];
    int64_t rows = w[FORM_ROWS], columns = w[FORM_COLUMNS];
    size_t row = tn_dtype_bytes(dtype, columns);
    int64_t piece = tn_max64(1, PIECE_BYTES / tn_max64(1, (int64_t)row) / GROUP) * GROUP;
    for (int64_t first = 0; first < rows; first += piece) {
        int64_t n = tn_min64(piece, rows - first);
        const char *blocks = (const char *)from + w[FORM_OFFSET] + (size_t)first * row;
        tn_qmat_pack(dtype, blocks, n, columns, (char *)to + tn_qmat_packed_bytes(first, columns, dtype));
        if (form->replaces) tn_map_return_pages(blocks, (size_t)n * row);
    }
}

static tn_status run_linear_stored(tn_native *n, void *const *pointers, const kir_dial *dials,
                                   tn_buffer *const *bound) {
    (void)bound;
    tn_qmat_args *args = &n->qmat;
    args->x = (const float *)(const void *)((const char *)pointers[0] + n->offset[0]);
    args->c.data = pointers[2];
    args->workspace = pointers[3];
    args->packed = n->packed_weight;
    if (n->form_slot < 0) {
        args->packed = (char *)pointers[3] + n->packed_at;
        pack_blocks(&n->form, pointers[1], (char *)pointers[3] + n->packed_at);
    }
    if (args->c.joint.vm) {
        args->c.joint.launch.buffers = pointers + 4;
        args->c.joint.launch.dials = dials;
    }
    tn_qmat(args);
    return TN_OK;
}

static tn_status make_linear_stored(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *c = &g->values[group->lead], *x = &g->values[c->in[0]], *w = &g->values[c->in[1]];
    tn_dtype dtype = (tn_dtype)w->node->dtype;
    int64_t rows = w->node->shape[0], k = w->node->shape[1];
    n->run = run_linear_stored;
    n->offset[0] = x->offset * (int64_t)sizeof(float);
    n->qmat = (tn_qmat_args){.m = c->node->shape[0], .n = rows, .k = k, .dtype = dtype, .x_stride = x->stride[0]};
    matrix_of(c, &n->qmat.c);
    TRY(make_joint(n, group));
    n->qmat.c.joint = n->gemm.c.joint;
    n->formed = &n->packed_weight;
    n->form = (tn_form){.make = pack_blocks, .bytes = tn_qmat_packed_bytes(rows, k, dtype), .replaces = true};
    n->form.word[FORM_DTYPE] = dtype;
    n->form.word[FORM_ROWS] = rows;
    n->form.word[FORM_COLUMNS] = k;
    n->form.word[FORM_OFFSET] = (int64_t)tn_dtype_bytes(dtype, w->offset);
    *workspace = tn_qmat_workspace(&n->qmat, tn_threads());
    int slot = g->values[w->root].slot;
    if (may_be_formed(g, slot)) {
        n->form_slot = slot;
        return TN_OK;
    }
    /* Made or written in this plan, or fetched from a device: packed at each run. */
    n->form.replaces = false;
    n->packed_at = (*workspace + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    *workspace = n->packed_at + n->form.bytes;
    return TN_OK;
}

/* ---- argsort, index_add ------------------------------------------------------------------------------------------ */

static tn_status run_argsort(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound) {
    (void)dials;
    (void)bound;
    n->argsort.order = pointers[0];
    n->argsort.data = (char *)pointers[1] + n->offset[1];
    n->argsort.workspace = pointers[2];
    tn_argsort_rows(&n->argsort);
    return TN_OK;
}

/* argsort(x, descending): over the last dim of a contiguous x. */
static tn_status make_argsort(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *x = &g->values[v->in[0]];
    int rank = x->node->rank;
    int64_t length = rank ? x->node->shape[rank - 1] : 1;
    n->run = run_argsort;
    n->offset[1] = x->offset * (int64_t)tn_dtype_size((tn_dtype)x->node->dtype);
    n->argsort = (tn_argsort_args){.rows = length ? tn_value_numel(x) / length : 0,
                                   .length = length,
                                   .dtype = (tn_dtype)x->node->dtype,
                                   .descending = v->node->i[0] != 0};
    *workspace = (size_t)tn_threads() * 2 * (size_t)length * sizeof(int64_t);
    return TN_OK;
}

static tn_status run_index_add(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound) {
    (void)dials;
    (void)bound;
    tn_scatter_args *s = &n->scatter;
    s->out = pointers[0];
    s->index = (const int64_t *)(const void *)((const char *)pointers[2] + n->offset[1]);
    s->src = (const char *)pointers[3] + n->offset[2];
    const char *self = (const char *)pointers[1] + n->offset[0];
    if (s->out != (const void *)self) memcpy(s->out, self, n->self_bytes);
    /* rows outside are left out, by definition */
    (void)(n->dtype == TN_F32 ? tn_scatter_add_f32(s) : tn_scatter_add_f64(s));
    return TN_OK;
}

/* index_add_rows(x, index, src): x[index[i]] += src[i] along dim 0, all contiguous. */
static tn_status make_index_add(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *self = &g->values[v->in[0]], *index = &g->values[v->in[1]],
                   *src = &g->values[v->in[2]];
    size_t element = tn_dtype_size(n->dtype);
    n->run = run_index_add;
    n->offset[0] = self->offset * (int64_t)element;
    n->offset[1] = index->offset * (int64_t)sizeof(int64_t);
    n->offset[2] = src->offset * (int64_t)element;
    int64_t rows = self->node->shape[0];
    int64_t width = rows ? tn_value_numel(self) / rows : 0;
    n->scatter = (tn_scatter_args){.rows = rows, .width = width, .count = tn_value_numel(index), .src_stride = width};
    n->self_bytes = tn_node_bytes(self->node);
    *workspace = 0;
    return TN_OK;
}

/* ---- keys and values in pages ------------------------------------------------------------------------------------ */

/* Operand `i` of a native group: the pointers hold the result first. */
static void *operand(const tn_native *n, void *const *pointers, int i) {
    return (char *)pointers[1 + i] + n->offset[i];
}

static tn_cache cache_of(const tn_value *cache, const tn_value *pages) {
    return (tn_cache){.dtype = (tn_dtype)cache->node->dtype,
                      .n_pages = cache->node->shape[0],
                      .page_stride = cache->stride[0],
                      .page_count = tn_value_numel(pages)};
}

static tn_status run_cache_append(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound) {
    (void)dials;
    (void)bound;
    const void *self = operand(n, pointers, 0);
    if (pointers[0] != self) memcpy(pointers[0], self, n->self_bytes);
    n->append.cache.data = pointers[0];
    n->append.x = operand(n, pointers, 1);
    n->append.position = *(const int64_t *)operand(n, pointers, 2);
    n->append.cache.pages = operand(n, pointers, 3);
    tn_cache_write(&n->append);
    return TN_OK;
}

/* cache_append_rows(cache, x, position, pages) */
static tn_status make_cache_append(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *cache = &g->values[v->in[0]], *x = &g->values[v->in[1]];
    const tn_value *pages = &g->values[v->in[3]];
    n->run = run_cache_append;
    for (int i = 0; i < v->n_in; i++)
        n->offset[i] = (int64_t)byte_offset(&g->values[v->in[i]]);
    n->self_bytes = tn_node_bytes(cache->node);
    n->append = (tn_cache_write_args){.cache = cache_of(cache, pages),
                                      .n = x->node->shape[0],
                                      .kv_heads = x->node->shape[1],
                                      .head_dim = x->node->shape[2],
                                      .x_token_stride = x->stride[0],
                                      .x_head_stride = x->stride[1]};
    *workspace = 0;
    return TN_OK;
}

static tn_status run_cached_attention(tn_native *n, void *const *pointers, const kir_dial *dials,
                                      tn_buffer *const *bound) {
    (void)dials;
    (void)bound;
    tn_attention_args *a = &n->attention;
    a->out = pointers[0];
    a->q = operand(n, pointers, 0);
    a->k = operand(n, pointers, 1);
    a->v = operand(n, pointers, 2);
    a->k_cache.data = operand(n, pointers, 3);
    a->v_cache.data = operand(n, pointers, 4);
    a->position = *(const int64_t *)operand(n, pointers, 5);
    a->k_cache.pages = a->v_cache.pages = operand(n, pointers, 6);
    a->workspace = pointers[8];
    tn_attention(a);
    return TN_OK;
}

/* cached_attention_rows(q, k, v, k_cache, v_cache, position, pages; scale; window) */
static tn_status make_cached_attention(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *out = &g->values[group->lead], *in[7];
    for (int i = 0; i < 7; i++) {
        in[i] = &g->values[out->in[i]];
        n->offset[i] = (int64_t)byte_offset(in[i]);
    }
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

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

static tn_status run_rope(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound) {
    (void)dials;
    (void)bound;
    n->rope.out = pointers[0];
    n->rope.x = operand(n, pointers, 0);
    n->rope.cosine = operand(n, pointers, 1);
    n->rope.sine = operand(n, pointers, 2);
    tn_rope_f32(&n->rope);
    return TN_OK;
}

/* rope_rows(x, cos, sin; interleaved): the tables broadcast over x's rows. */
static tn_status make_rope(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *table = &g->values[v->in[1]];
    const tn_node *x = v->node, *angles = table->node;
    n->run = run_rope;
    for (int i = 0; i < v->n_in; i++)
        n->offset[i] = (int64_t)byte_offset(&g->values[v->in[i]]);
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

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* What a kernel's result is: memory of its own; its first operand with some elements changed, each by itself; or that
 * with elements written that nobody counts on before the plan has ended. */
typedef enum result_kind { RESULT_FRESH, RESULT_UPDATED, RESULT_APPENDED } result_kind;

static const struct {
    const char *name;
    tn_status (*make)(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace);
    result_kind result;
} natives[] = {
    {"matmul_batched", make_matmul, RESULT_FRESH},
    {"linear_quantized", make_linear_stored, RESULT_FRESH},
    {"linear_half", make_linear_stored, RESULT_FRESH},
    {"argsort_last", make_argsort, RESULT_FRESH},
    {"index_add_rows", make_index_add, RESULT_UPDATED},
    {"rope_rows", make_rope, RESULT_FRESH},
    {"cache_append_rows", make_cache_append, RESULT_APPENDED},
    {"cached_attention_rows", make_cached_attention, RESULT_FRESH},
};

static result_kind result_of(const tn_value *v) {
    for (size_t i = 0; i < TN_COUNT(natives); i++)
        if (strcmp(natives[i].name, v->row->name) == 0) return natives[i].result;
    return RESULT_FRESH;
}

bool tn_native_updates(const tn_graph_plan *g, const tn_group *group, int slot) {
    const tn_value *v = &g->values[group->lead];
    if (result_of(v) == RESULT_FRESH) return false;
    for (int k = 1; k < v->n_in; k++)
        if (v->in[k] >= 0 && g->values[g->values[v->in[k]].root].slot == slot) return false;
    return g->values[v->in[0]].offset == 0;
}

bool tn_native_appends(const tn_graph_plan *g, const tn_group *group, int slot) {
    return result_of(&g->values[group->lead]) == RESULT_APPENDED && tn_native_updates(g, group, slot);
}

tn_status tn_native_make(const tn_graph_plan *g, const tn_group *group, tn_native **out, size_t *workspace) {
    const tn_value *v = &g->values[group->lead];
    for (size_t i = 0; i < TN_COUNT(natives); i++) {
        if (strcmp(natives[i].name, v->row->name) != 0) continue;
        tn_native *n = tn_mem_zalloc(1, sizeof *n);
        if (!n) return TN_ERR_MEMORY;
        *out = n;
        n->dtype = (tn_dtype)v->node->dtype;
        n->form_slot = -1;
        return natives[i].make(g, group, n, workspace);
    }
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: no native kernel; evaluate it on the cpu", v->row->name);
}

tn_status tn_native_prepare(tn_native *n, tn_buffer *const *bound) {
    return n->form_slot < 0 ? TN_OK : tn_buffer_form(bound[n->form_slot], &n->form, n->formed);
}

tn_status tn_native_form(const tn_native *n, tn_buffer *const *bound, void **form) {
    *form = NULL;
    return n->form_slot < 0 ? TN_OK : tn_buffer_form(bound[n->form_slot], &n->form, form);
}

void tn_native_take_form(tn_native *n, void *form) {
    if (n->form_slot >= 0) *n->formed = form;
}

tn_status tn_native_run(tn_native *n, void *const *pointers, const kir_dial *dials, tn_buffer *const *bound) {
    return n->run(n, pointers, dials, bound);
}

/* Keys and values are read as far as the sequence goes, not as far as the cache does; and a query meets half of the new
 * ones on average. */
static tn_cost cost_of_attention(const tn_attention_args *a) {
    double old = (double)a->position, met = old + 0.5 * (double)(a->n + 1);
    if (a->window > 0 && met > (double)a->window) met = (double)a->window;
    if (a->window > 0 && old > (double)a->window) old = (double)a->window;
    double key = (double)(a->kv_heads * a->head_dim), query = (double)(a->heads * a->head_dim);
    double bytes =
        2 * old * key * (double)tn_dtype_size(a->k_cache.dtype) + (double)a->n * (2 * key + 2 * query) * sizeof(float);
    return (tn_cost){.bytes = (int64_t)bytes, .flops = 4 * (double)a->n * query * met};
}

void tn_native_cost(const tn_native *n, tn_cost *cost) {
    if (n->run == run_cached_attention) *cost = cost_of_attention(&n->attention);
    if (n->run == run_cache_append) {
        const tn_cache_write_args *a = &n->append;
        int64_t element = (int64_t)(tn_dtype_size(a->cache.dtype) + sizeof(float));
        cost->bytes = a->n * a->kv_heads * a->head_dim * element; /* the state stays where it is */
    }
}

void tn_native_free(tn_native *n) {
    if (!n) return;
    kir_vm_free(n->vm);
    tn_mem_free(n->sizes);
    tn_mem_free(n);
}
