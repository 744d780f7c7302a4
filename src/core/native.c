/* native.c — groups that a kernel of kern/ computes: the table of kernels, and what they have in common.
 *
 * Everything that does not change between runs is worked out once: strides, workspace, the compiled epilogue, the
 * weight in the form that the kernel reads. The kinds are in native_product.c, native_conv.c, native_attention.c and
 * native_linalg.c; argsort, index_add, cat_few and index_select are short and here. */
#include "core/native.h"

#include <string.h>

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Products: a, b, c, workspace. Others: result, inputs …, workspace. */
int tn_native_operands(const tn_graph_plan *g, const tn_group *group, int values[TN_NATIVE_POINTERS]) {
    const tn_value *v = &g->values[group->lead];
    int count = 0;
    if (group->kind == TN_GROUP_MATMUL) {
        values[count++] = v->in[0];
        values[count++] = v->n_in > 1 ? v->in[1] : -1;
        values[count++] = group->member_count == 1 ? group->lead : group->pool;
    } else {
        values[count++] = group->lead;
        for (int k = 0; k < v->n_in; k++)
            values[count++] = v->in[k];
    }
    values[count++] = TN_WORKSPACE;
    return count;
}

size_t tn_native_byte_offset(const tn_value *v) { return tn_dtype_bytes((tn_dtype)v->node->dtype, v->offset); }

void tn_native_matrix(const tn_value *v, tn_matrix *m) {
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

/* What lies elsewhere at the next run would be packed each time. */
static bool shifts(const tn_graph_plan *g, int slot) {
    for (size_t i = 0; i < g->binding->shift_count; i++)
        if (g->binding->shifts[i].slot == slot) return true;
    return false;
}

bool tn_native_may_pack(const tn_graph_plan *g, int slot) {
    return slot >= 0 && !shifts(g, slot) && g->binding->device->is_cpu && !writes_slot(g, slot);
}

tn_status tn_native_join(tn_native *n, const tn_group *group, tn_fused_program *program) {
    if (!group->program) return TN_OK;
    tn_device *host = tn_host_device();
    if (!host) return tn_error_code();
    TRY(tn_kernel_get(host, group->program, &n->kernel));
    TRY(kir_vm_share(tn_kernel_vm(n->kernel), &n->vm));
    size_t bytes = kir_sizes_count(group->program) * sizeof(int64_t);
    n->sizes = tn_mem_alloc(bytes);
    if (!n->sizes) return TN_ERR_MEMORY;
    memcpy(n->sizes, group->sizes, bytes);
    *program = (tn_fused_program){.vm = n->vm,
                                  .launch = {.sizes = n->sizes},
                                  .block_buffer = group->block_buffer,
                                  .buffer_count = group->buffer_count};
    n->epilogue = program;
    return TN_OK;
}

tn_status tn_native_join_product(tn_native *n, const tn_group *group, tn_fused_program *program) {
    TRY(tn_native_join(n, group, program));
    if (n->epilogue && tn_fused_epilogue_read(group->program, n->sizes, group->block_buffer, &n->epilogue_ops))
        program->epilogue_ops = &n->epilogue_ops;
    return TN_OK;
}

/* ---- argsort, index_add ------------------------------------------------------------------------------------------ */

static void run_argsort(tn_native *n, void *const *pointers) {
    n->argsort.order = pointers[0];
    n->argsort.data = pointers[1];
    n->argsort.workspace = pointers[2];
    tn_argsort_rows(&n->argsort);
}

/* argsort(x, descending): over the last dim of a contiguous x. */
static tn_status make_argsort(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *x = &g->values[v->in[0]];
    int rank = x->node->rank;
    int64_t length = rank ? x->node->shape[rank - 1] : 1;
    n->run = run_argsort;
    n->argsort = (tn_argsort_args){.rows = length ? tn_value_numel(x) / length : 0,
                                   .length = length,
                                   .dtype = (tn_dtype)x->node->dtype,
                                   .descending = v->node->i[0] != 0};
    *workspace = (size_t)tn_threads() * 2 * (size_t)length * sizeof(int64_t);
    return TN_OK;
}

/* Rows outside are left out, by definition. */
static void run_index_add(tn_native *n, void *const *pointers) {
    tn_scatter_args *s = &n->scatter;
    s->out = pointers[0];
    s->index = pointers[2];
    s->src = pointers[3];
    (void)(n->dtype == TN_F32 ? tn_scatter_add_f32(s) : tn_scatter_add_f64(s));
}

/* index_add_rows(x, index, src): x[index[i]] += src[i] along dim 0, all contiguous. */
static tn_status make_index_add(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *self = &g->values[v->in[0]], *index = &g->values[v->in[1]];
    n->run = run_index_add;
    int64_t rows = self->node->shape[0];
    int64_t width = rows ? tn_value_numel(self) / rows : 0;
    n->scatter = (tn_scatter_args){.rows = rows, .width = width, .count = tn_value_numel(index), .src_stride = width};
    n->result_from = tn_node_bytes(self->node);
    *workspace = 0;
    return TN_OK;
}

/* ---- cat_few ----------------------------------------------------------------------------------------------------- */

static void run_cat(tn_native *n, void *const *pointers) {
    n->cat->out = pointers[0];
    for (int k = 0; k < n->cat->parts; k++)
        n->cat->part[k].data = pointers[1 + k];
    tn_cat_run(n->cat);
}

static tn_status make_cat(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead];
    tn_cat_args *a = n->own = tn_mem_zalloc(1, sizeof *a);
    if (!a) return TN_ERR_MEMORY;
    n->run = run_cat;
    n->cat = a;
    bool joins = v->node->op == TN_OP_CAT_FEW; /* else a copy: of one part, cut along its other dims */
    int dim = joins ? (int)v->node->i[0] : v->node->rank - 1;
    *a = (tn_cat_args){.rank = v->node->rank, .dim = dim, .parts = v->n_in};
    memcpy(a->shape, v->node->shape, sizeof a->shape);
    for (int k = 0; k < v->n_in; k++) {
        const tn_value *x = &g->values[v->in[k]];
        a->part[k].extent = x->node->rank == v->node->rank ? x->node->shape[a->dim] : 0;
        memcpy(a->part[k].stride, x->stride, sizeof a->part[k].stride);
    }
    *workspace = 0;
    return TN_OK;
}

/* Copies of views in which elements or short rows stand several times, as in images that grow: a program would take
 * them one by one. */
static bool takes_copy(const tn_node *n) {
    enum { MOST_TIMES = 16, SHORT = 64, MANY = 1024 };
    int64_t offset, stride[TN_MAX_RANK], extent[TN_MAX_RANK] = {0}, step[TN_MAX_RANK] = {0}; /* innermost first */
    const tn_node *x = n->in[0];
    int axes = 0;
    bool repeats = false;
    if (tn_dtype_size((tn_dtype)n->dtype) != 4 || tn_node_numel(n) < MANY || !(x->flags & TN_NODE_VIEW)) return false;
    tn_node_layout(x, &offset, stride);
    for (int d = n->rank; d-- > 0;) {
        if (n->shape[d] == 1) continue;
        extent[axes] = n->shape[d];
        step[axes++] = stride[d];
        repeats = repeats || stride[d] == 0;
    }
    if (step[0] == 0) return extent[0] <= MOST_TIMES && axes > 1 && step[1] == 1;
    return repeats && step[0] == 1 && extent[0] < SHORT;
}

/* What the kernel can do; whether it should is known of values (tn_value.copied). */
static bool takes_cat(const tn_node *n) {
    enum { MANY = 1024 };
    return tn_dtype_size((tn_dtype)n->dtype) == 4 && n->n_in <= TN_CAT_PARTS && tn_node_numel(n) >= MANY;
}

/* ---- index_select ------------------------------------------------------------------------------------------------ */

static void run_take(tn_native *n, void *const *pointers) {
    n->take.out = pointers[0];
    n->take.data = pointers[1];
    n->take.index = pointers[2];
    tn_take_run(&n->take);
}

static tn_status make_take(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *x = &g->values[v->in[0]], *index = &g->values[v->in[1]];
    int dim = (int)v->node->i[0];
    n->run = run_take;
    n->take = (tn_take_args){.rank = v->node->rank,
                             .dim = dim,
                             .extent = x->node->shape[dim],
                             .wide = index->node->dtype == TN_I64,
                             .index_stride = index->node->rank ? index->stride[0] : 0,
                             .outside = v->node->dtype == TN_F32 ? 0x7fc00000u : 0};
    memcpy(n->take.shape, v->node->shape, sizeof n->take.shape);
    memcpy(n->take.stride, x->stride, sizeof n->take.stride);
    *workspace = 0;
    return TN_OK;
}

/* Data, or what has a kernel of its own: of what is computed where it is looked up, only what is taken is computed. */
static bool is_there(const tn_node *x) {
    while (x->op != TN_OP_NONE && !tn_node_computed(x)) {
        tn_op_class c = tn_op(x->op)->impl->class_;
        if (c != TN_VIEW_OP) return c == TN_MATMUL || c == TN_NATIVE || c == TN_REDUCTION;
        x = x->in[0];
    }
    return true;
}

/* A program that looks up has no machine code, and what is joined to it none either. */
static bool takes_take(const tn_node *n) {
    enum { MANY = 1024 };
    uint8_t index = n->in[1]->dtype;
    return tn_dtype_size((tn_dtype)n->dtype) == 4 && tn_dtype_block((tn_dtype)n->dtype) == 1 &&
           (index == TN_I64 || index == TN_I32) && tn_node_numel(n) >= MANY &&
           (is_there(n->in[0]) || tn_node_numel(n->in[0]) <= tn_node_numel(n));
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* What a kernel's result is: memory of its own; its first operand with some elements changed, each by itself; or that
 * with elements written that nobody counts on before the plan has ended. */
typedef enum result_kind { RESULT_FRESH, RESULT_UPDATED, RESULT_APPENDED } result_kind;

typedef struct tn_native_row {
    uint16_t op;
    tn_native_maker *make;
    result_kind result;
    void (*cost)(const tn_native *n, tn_cost *cost); /* NULL: what the op's shapes say */
    bool (*takes)(const tn_node *n);                 /* NULL: all there is; others are composed */
    const tn_native_epilogue *epilogue;              /* NULL: none, or a product's */
} tn_native_row;

static const tn_native_row natives[] = {
    {TN_OP_MATMUL_BATCHED, tn_make_matmul, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_MATMUL_WIDE, tn_make_matmul, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_INT_MM, tn_make_matmul, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINEAR_QUANTIZED, tn_make_linear_stored, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINEAR_HALF, tn_make_linear_stored, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINEAR_EXPERTS_ROWS, tn_make_experts, RESULT_FRESH, tn_cost_of_experts, NULL, NULL},
    {TN_OP_ARGSORT_LAST, make_argsort, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_INDEX_ADD_ROWS, make_index_add, RESULT_UPDATED, NULL, NULL, NULL},
    {TN_OP_CAT_FEW, make_cat, RESULT_FRESH, NULL, takes_cat, NULL},
    {TN_OP_CONTIGUOUS, make_cat, RESULT_FRESH, NULL, takes_copy, NULL},
    {TN_OP_INDEX_SELECT, make_take, RESULT_FRESH, NULL, takes_take, NULL},
    {TN_OP_ROPE_ROWS, tn_make_rope, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_CACHE_APPEND_ROWS, tn_make_cache_append, RESULT_APPENDED, tn_cost_of_cache_append, NULL, NULL},
    {TN_OP_ATTENTION_DENSE, tn_make_sdpa, RESULT_FRESH, tn_cost_of_sdpa, NULL, NULL},
    {TN_OP_ATTENTION_DENSE_GRADIENT, tn_make_sdpa_gradient, RESULT_FRESH, tn_cost_of_sdpa_gradient, NULL, NULL},
    {TN_OP_CACHED_ATTENTION_ROWS, tn_make_cached_attention, RESULT_FRESH, tn_cost_of_cached_attention, NULL, NULL},
    {TN_OP_CONV2D_FORWARD, tn_make_conv2d_forward, RESULT_FRESH, tn_cost_of_conv, tn_takes_conv2d_forward,
     &tn_conv2d_epilogue},
    {TN_OP_INT_CONV2D, tn_make_int_conv2d, RESULT_FRESH, tn_cost_of_conv, tn_takes_int_conv2d, &tn_conv2d_epilogue},
    {TN_OP_MAX_POOL2D, tn_make_max_pool2d, RESULT_FRESH, tn_cost_of_conv, tn_takes_max_pool2d, &tn_max_pool2d_epilogue},
    {TN_OP_CONV2D_DGRAD, tn_make_conv2d_dgrad, RESULT_FRESH, tn_cost_of_conv, tn_takes_conv2d_dgrad, NULL},
    {TN_OP_CONV2D_WGRAD, tn_make_conv2d_wgrad, RESULT_FRESH, tn_cost_of_conv, tn_takes_conv2d_wgrad, NULL},
    {TN_OP_LINALG_CHOLESKY_LOWER, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SOLVE_SYSTEMS, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SOLVE_LOWER, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SOLVE_UPPER, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_DETERMINANTS, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_QR_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_EIGH_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SVD_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
};

static const tn_native_row *row_of(const tn_node *n) {
    for (size_t i = 0; i < TN_COUNT(natives); i++)
        if (natives[i].op == n->op) return &natives[i];
    return NULL;
}

bool tn_native_takes(const tn_node *n) {
    const tn_native_row *row = row_of(n);
    return row && (!row->takes || row->takes(n));
}

bool tn_native_joins(const tn_value *v) {
    if (!v->row || v->host_only || !v->node->device->is_cpu) return false;
    const tn_native_row *row = row_of(v->node);
    return row && row->epilogue && row->takes(v->node) && row->epilogue->pays(v->node);
}

bool tn_native_epilogue_fits(const tn_value *lead, const tn_group *group) {
    return row_of(lead->node)->epilogue->fit(lead->node, group);
}

bool tn_native_pools(const tn_value *lead, const tn_value *pool) {
    bool here = pool->row && !pool->host_only && lead->row && lead->node->device->is_cpu;
    return here && tn_conv_joins_pool(lead->node, pool->node);
}

static result_kind native_result_of(const tn_value *v) {
    const tn_native_row *row = row_of(v->node);
    return row ? row->result : RESULT_FRESH;
}

bool tn_native_updates(const tn_graph_plan *g, const tn_group *group, int slot) {
    const tn_value *v = &g->values[group->lead];
    if (native_result_of(v) == RESULT_FRESH) return false;
    for (int k = 1; k < v->n_in; k++)
        if (v->in[k] >= 0 && g->values[g->values[v->in[k]].root].slot == slot) return false;
    return g->values[v->in[0]].offset == 0;
}

bool tn_native_appends(const tn_graph_plan *g, const tn_group *group, int slot) {
    return native_result_of(&g->values[group->lead]) == RESULT_APPENDED && tn_native_updates(g, group, slot);
}

tn_status tn_native_make(const tn_graph_plan *g, const tn_group *group, tn_native **out, size_t *workspace) {
    const tn_value *v = &g->values[group->lead];
    const tn_native_row *row = row_of(v->node);
    if (!row) return tn_fail(TN_ERR_UNSUPPORTED, "%s: no native kernel; evaluate it on the cpu", v->row->name);
    tn_native *n = tn_mem_zalloc(1, sizeof *n);
    if (!n) return TN_ERR_MEMORY;
    *out = n;
    n->row = row;
    n->dtype = (tn_dtype)v->node->dtype;
    n->packed_slot = -1;
    return row->make(g, group, n, workspace);
}

/* Forms are looked for where another buffer is bound or it was written, and now and then, so that packed_weight.c gives
 * pages of a file back: a model has hundreds of weights, none of which is in a cache between two tokens. */
static tn_status find_packed(tn_native *n, tn_buffer *const *bound) {
    enum { BETWEEN = 64 };
    tn_buffer *b = bound[n->packed_slot];
    if (b == n->packed_of && b->version == n->packed_version && ++n->packed_uses % BETWEEN != 0) return TN_OK;
    n->packed_of = NULL;
    TRY(tn_buffer_packed_weight(b, &n->packed, &n->packed_found));
    n->packed_of = b;
    n->packed_version = b->version;
    return TN_OK;
}

tn_status tn_native_prepare(tn_native *n, tn_buffer *const *bound) {
    if (n->packed_slot < 0) return TN_OK;
    TRY(find_packed(n, bound));
    tn_native_set_packed(n, n->packed_found);
    return TN_OK;
}

tn_status tn_native_packed_weight(tn_native *n, tn_buffer *const *bound, void **weight_form) {
    *weight_form = NULL;
    if (n->packed_slot < 0) return TN_OK;
    TRY(find_packed(n, bound));
    *weight_form = n->packed_found;
    return TN_OK;
}

void tn_native_set_packed(tn_native *n, void *weight_form) {
    if (n->packed_slot >= 0 && *n->packed_target != weight_form) *n->packed_target = weight_form;
}

static void bind_epilogue(tn_native *n, void *const *pointers, const kir_scalar *scalars) {
    if (!n->epilogue) return;
    n->epilogue->launch.buffers = pointers + TN_PRODUCT_POINTERS;
    n->epilogue->launch.scalars = scalars;
}

void tn_native_run(tn_native *n, void *const *pointers, const kir_scalar *scalars) {
    bind_epilogue(n, pointers, scalars);
    for (tn_native *c = n->next; c; c = c->next)
        bind_epilogue(c, c->pointers, c->scalars);
    if (n->result_from > 0 && pointers[0] != pointers[1]) memcpy(pointers[0], pointers[1], n->result_from);
    n->run(n, pointers);
}

void tn_native_cost(const tn_native *n, tn_cost *cost) {
    double flops = 0;
    for (; n && n->row->cost; n = n->next, flops = cost->flops) {
        n->row->cost(n, cost);
        cost->flops += flops;
    }
}

const char *tn_native_by(const tn_native *n) { return n->by; }

size_t tn_native_bytes(void) { return sizeof(tn_native); }

void tn_native_free(tn_native *n) {
    if (!n) return;
    kir_vm_free(n->vm);
    tn_kernel_release(n->kernel);
    tn_mem_free(n->sizes);
    tn_mem_free(n->own);
    tn_mem_free(n);
}
