/* native.c — groups that a native kernel computes: the table of kernels; attention; linear algebra.
 *
 * Everything that is the same in every run is computed once: strides, workspace, the compiled epilogue, the packed
 * weight. Products are in native_product.c, convolutions in native_conv.c; attention, recurrent layers, linear algebra,
 * argsort, index_add, cat_few and index_select are here. */
#include <string.h>

#include "cpu/linalg.h"
#include "plan/native.h"

static void cost_of_cache_append(const tn_native *n, tn_cost *cost);
static void cost_of_cached_attention(const tn_native *n, tn_cost *cost);
static void cost_of_sdpa(const tn_native *n, tn_cost *cost);
static void cost_of_sdpa_gradient(const tn_native *n, tn_cost *cost);

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Products: a, b, c, workspace. Programs: workspace. Others: result, inputs …, workspace. */
int tn_native_operands(const tn_graph_plan *g, const tn_group *group, int values[TN_NATIVE_POINTERS]) {
    const tn_value *v = &g->values[group->lead];
    int count = 0;
    if (group->kind != TN_GROUP_MATMUL && group->kind != TN_GROUP_NATIVE) {
        values[0] = TN_WORKSPACE;
        return TN_PROGRAM_POINTERS;
    }
    if (group->kind == TN_GROUP_MATMUL) {
        values[count++] = v->in[0];
        values[count++] = v->n_in > 1 ? v->in[1] : -1;
        values[count++] = group->member_count == 1 ? group->lead : group->pool;
    } else {
        values[count++] = group->lead;
        for (int k = 0; k < v->n_in; k++) {
            bool none = v->by.engine && v->in[k] >= 0 && tn_engine_has_constant(g, v->in[k]);
            values[count++] = none ? -1 : v->in[k];
        }
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

/* A weight at another address in each run would be packed every time. */
static bool shifts(const tn_graph_plan *g, int slot) {
    for (size_t i = 0; i < g->binding->shift_count; i++)
        if (g->binding->shifts[i].slot == slot) return true;
    return false;
}

bool tn_native_may_pack(const tn_graph_plan *g, int slot) {
    return slot >= 0 && !shifts(g, slot) && g->binding->device->is_cpu && !writes_slot(g, slot);
}

/* The program, with axes and accesses of the group's, compiled; the group's sizes. */
static tn_status take_program(tn_native *n, const tn_group *group, const kir_program *program) {
    tn_device *host = tn_host_device();
    if (!host) return tn_error_code();
    TRY(tn_kernel_get(host, program, &n->fused.kernel));
    TRY(kir_vm_share(tn_kernel_vm(n->fused.kernel), &n->fused.vm));
    size_t bytes = kir_sizes_count(group->lowered.program) * sizeof(int64_t);
    n->fused.sizes = tn_mem_alloc(bytes);
    if (!n->fused.sizes) return TN_ERR_MEMORY;
    memcpy(n->fused.sizes, group->lowered.sizes, bytes);
    return TN_OK;
}

tn_status tn_native_join(tn_native *n, const tn_group *group, tn_fused_program *program) {
    if (!group->lowered.program) return TN_OK;
    TRY(take_program(n, group, group->lowered.program));
    *program = (tn_fused_program){.vm = n->fused.vm,
                                  .launch = {.sizes = n->fused.sizes},
                                  .block_buffer = group->lowered.block_buffer,
                                  .buffer_count = group->lowered.buffer_count};
    n->fused.program = program;
    return TN_OK;
}

tn_status tn_native_join_product(tn_native *n, const tn_group *group, tn_fused_program *program) {
    TRY(tn_native_join(n, group, program));
    if (n->fused.program &&
        tn_fused_epilogue_read(group->lowered.program, n->fused.sizes, group->lowered.block_buffer, &n->fused.ops))
        program->epilogue_ops = &n->fused.ops;
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
    bool joins = tn_op_has(v->node, TN_FACT_CONCAT); /* else a copy: of one part, cut along its other dims */
    int dim = joins ? (int)v->node->i[0] : v->node->rank - 1;
    *a = (tn_cat_args){.size = tn_dtype_size(n->dtype), .rank = v->node->rank, .dim = dim, .parts = v->n_in};
    memcpy(a->shape, v->node->shape, sizeof a->shape);
    for (int k = 0; k < v->n_in; k++) {
        const tn_value *x = &g->values[v->in[k]];
        a->part[k].extent = x->node->rank == v->node->rank ? x->node->shape[a->dim] : 0;
        memcpy(a->part[k].stride, x->stride, sizeof a->part[k].stride);
    }
    *workspace = 0;
    return TN_OK;
}

bool tn_native_is_cat(const tn_native *n) { return n->run == run_cat; }

void tn_native_lay_cat_in_blocks(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *y = &g->values[group->lead];
    const int64_t lanes = tn_conv_block_elements(1, 1, 1), plane = y->node->shape[2] * y->node->shape[3];
    tn_cat_args *a = group->run.native->cat;
    memcpy(a->shape, (const int64_t[]){y->node->shape[0], y->node->shape[1] / lanes, plane, lanes},
           4 * sizeof *a->shape);
    for (int k = 0; k < a->parts; k++) {
        a->part[k].extent = g->values[y->in[k]].node->shape[1] / lanes;
        memcpy(a->part[k].stride, (const int64_t[]){a->part[k].extent * plane * lanes, plane * lanes, lanes, 1},
               4 * sizeof *a->shape);
    }
    group->run.native->by = "in blocks of channels";
}

/* Copies of views in which elements or short rows are repeated, as when images are enlarged: a KIR program would copy
 * single elements. */
static bool takes_copy(const tn_node *n) {
    enum { MOST_TIMES = 16, SHORT = 64, MANY = 1024 };
    int64_t offset, stride[TN_MAX_RANK], extent[TN_MAX_RANK] = {0}, step[TN_MAX_RANK] = {0}; /* innermost first */
    const tn_node *x = n->in[0];
    int axes = 0;
    bool repeats = false;
    if (tn_dtype_block((tn_dtype)n->dtype) != 1 || tn_node_numel(n) < MANY || !(x->flags & TN_NODE_VIEW)) return false;
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

/* What the kernel supports; whether it is used is decided per value (tn_value.copied). */
static bool takes_cat(const tn_node *n) {
    enum { MANY = 1024 };
    return tn_dtype_block((tn_dtype)n->dtype) == 1 && n->n_in <= TN_CAT_PARTS && tn_node_numel(n) >= MANY;
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

/* Data, or the result of its own kernel. A value that is computed where it is looked up computes only the rows
 * taken. */
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

bool tn_node_is_dense(const tn_node *n) {
    int64_t offset, stride[TN_MAX_RANK];
    tn_node_layout(n, &offset, stride);
    return tn_strides_are_contiguous(n->shape, n->rank, stride);
}

/* ---- resample ---------------------------------------------------------------------------------------------------- */

static void run_resample(tn_native *n, void *const *pointers) {
    n->resample.out = pointers[0];
    n->resample.x = pointers[1];
    n->resample.index = pointers[2];
    n->resample.weight = pointers[3];
    tn_resample_run(&n->resample);
}

static tn_status make_resample(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_node *y = g->values[group->lead].node, *x = y->in[0], *index = y->in[1];
    const int64_t dim = y->i[0];
    n->run = run_resample;
    n->resample = (tn_resample_args){.rows = tn_product(y->shape, dim),
                                     .extent = x->shape[dim],
                                     .inner = tn_product(y->shape + dim + 1, y->rank - dim - 1),
                                     .places = index->shape[1],
                                     .taps = index->shape[0]};
    *workspace = 0;
    return TN_OK;
}

static bool takes_resample(const tn_node *n) {
    bool dense = n->dtype == TN_F32 && n->in[1]->dtype == TN_I64;
    for (int i = 0; i < 3; i++)
        dense = dense && tn_node_is_dense(n->in[i]);
    return dense;
}

/* ---- recurrent layers -------------------------------------------------------------------------------------------- */

/* The operands of each op in the order of tn_recurrent_args: x, weight, bias, h, c, cells, dy; -1: none. */
static const struct {
    uint16_t op;
    int8_t gates, backward, from[7];
} recurrent_ops[] = {
    {TN_OP_LSTM_ROWS, 4, 0, {0, 1, 2, 3, 4, -1, -1}},
    {TN_OP_LSTM_GRADIENT, 4, 1, {0, 1, -1, -1, 3, 2, 4}},
    {TN_OP_GRU_ROWS, 3, 0, {0, 1, 2, 3, -1, -1, -1}},
    {TN_OP_GRU_GRADIENT, 3, 1, {0, 1, -1, 3, 2, -1, 4}},
};

static int recurrent_op_of(int op) {
    int i = 0;
    while (recurrent_ops[i].op != op)
        i++;
    return i;
}

static void run_recurrent(tn_native *n, void *const *pointers) {
    tn_recurrent_args *a = &n->recurrent;
    const int8_t *from = recurrent_ops[n->recurrent_op].from;
    const float **to[] = {&a->x, &a->weight, &a->bias, &a->h, &a->c, &a->cells, &a->dy};
    a->out = pointers[0];
    for (size_t i = 0; i < TN_COUNT(to); i++)
        *to[i] = from[i] >= 0 ? pointers[1 + from[i]] : NULL;
    a->workspace = pointers[1 + n->recurrent_inputs];
    tn_recurrent(a);
}

static tn_status make_recurrent(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *x = &g->values[v->in[0]], *w = &g->values[v->in[1]];
    n->run = run_recurrent;
    n->recurrent_op = recurrent_op_of(v->node->op);
    n->recurrent_inputs = v->n_in;
    n->recurrent = (tn_recurrent_args){.steps = x->node->shape[0],
                                       .batch = x->node->shape[1],
                                       .hidden = w->node->shape[1],
                                       .gates = recurrent_ops[n->recurrent_op].gates,
                                       .backward = recurrent_ops[n->recurrent_op].backward,
                                       .reverse = v->node->i[0] != 0};
    *workspace = tn_recurrent_workspace(&n->recurrent, tn_threads());
    return TN_OK;
}

/* Of each step the product with the weight. */
static void cost_of_recurrent(const tn_native *n, tn_cost *cost) {
    const tn_recurrent_args *a = &n->recurrent;
    cost->flops = 2.0 * (double)(a->steps * a->batch * a->hidden) * (double)(a->gates * a->hidden);
}

static bool takes_recurrent(const tn_node *n) { return n->dtype == TN_F32; }

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* A kernel's result: new memory; its first operand with some elements updated in place; or the same with elements
 * appended that nothing reads before the plan has ended. */
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
    {TN_OP_QUANTIZED_MM, tn_make_quantized_mm, RESULT_FRESH, NULL, tn_takes_quantized_mm, NULL},
    {TN_OP_LINEAR_QUANTIZED, tn_make_linear_stored, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINEAR_HALF, tn_make_linear_stored, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINEAR_EXPERTS_ROWS, tn_make_experts, RESULT_FRESH, tn_cost_of_experts, NULL, NULL},
    {TN_OP_ARGSORT_LAST, make_argsort, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_INDEX_ADD_ROWS, make_index_add, RESULT_UPDATED, NULL, NULL, NULL},
    {TN_OP_CAT_FEW, make_cat, RESULT_FRESH, NULL, takes_cat, NULL},
    {TN_OP_CONTIGUOUS, make_cat, RESULT_FRESH, NULL, takes_copy, NULL},
    {TN_OP_INDEX_SELECT, make_take, RESULT_FRESH, NULL, takes_take, NULL},
    {TN_OP_RESAMPLE, make_resample, RESULT_FRESH, NULL, takes_resample, NULL},
    {TN_OP_ROPE_ROWS, tn_make_rope, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_CACHE_APPEND_ROWS, tn_make_cache_append, RESULT_APPENDED, cost_of_cache_append, NULL, NULL},
    {TN_OP_ATTENTION_DENSE, tn_make_sdpa, RESULT_FRESH, cost_of_sdpa, NULL, NULL},
    {TN_OP_ATTENTION_DENSE_GRADIENT, tn_make_sdpa_gradient, RESULT_FRESH, cost_of_sdpa_gradient, NULL, NULL},
    {TN_OP_LSTM_ROWS, make_recurrent, RESULT_FRESH, cost_of_recurrent, takes_recurrent, NULL},
    {TN_OP_LSTM_GRADIENT, make_recurrent, RESULT_FRESH, cost_of_recurrent, takes_recurrent, NULL},
    {TN_OP_GRU_ROWS, make_recurrent, RESULT_FRESH, cost_of_recurrent, takes_recurrent, NULL},
    {TN_OP_GRU_GRADIENT, make_recurrent, RESULT_FRESH, cost_of_recurrent, takes_recurrent, NULL},
    {TN_OP_CACHED_ATTENTION_ROWS, tn_make_cached_attention, RESULT_FRESH, cost_of_cached_attention, NULL, NULL},
    {TN_OP_CONV2D_FORWARD, tn_make_conv2d_forward, RESULT_FRESH, tn_cost_of_conv, tn_takes_conv2d_forward,
     &tn_conv2d_epilogue},
    {TN_OP_INT_CONV2D, tn_make_int_conv2d, RESULT_FRESH, tn_cost_of_conv, tn_takes_int_conv2d, &tn_conv2d_epilogue},
    {TN_OP_QUANTIZED_CONV2D, tn_make_quantized_conv2d, RESULT_FRESH, tn_cost_of_conv, tn_takes_quantized_conv2d, NULL},
    {TN_OP_MAX_POOL2D, tn_make_max_pool2d, RESULT_FRESH, tn_cost_of_conv, tn_takes_max_pool2d, &tn_max_pool2d_epilogue},
    {TN_OP_CONV2D_DGRAD, tn_make_conv2d_dgrad, RESULT_FRESH, tn_cost_of_conv, tn_takes_conv2d_dgrad, NULL},
    {TN_OP_CONV2D_WGRAD, tn_make_conv2d_wgrad, RESULT_FRESH, tn_cost_of_conv, tn_takes_conv2d_wgrad, NULL},
    {TN_OP_GROUP_POST, tn_make_group_post, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_GROUP_AWAIT, tn_make_group_await, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_CHOLESKY_LOWER, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SOLVE_SYSTEMS, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SOLVE_LOWER, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_SOLVE_UPPER, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_DETERMINANTS, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_LU_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_QR_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_EIGH_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
    {TN_OP_LINALG_EIG_PACKED, tn_make_linalg, RESULT_FRESH, NULL, NULL, NULL},
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
    if (!v->row || v->host.only || !v->node->device->is_cpu) return false;
    const tn_native_row *row = row_of(v->node);
    return row && row->epilogue && row->takes(v->node) && row->epilogue->pays(v->node);
}

bool tn_native_epilogue_fits(const tn_value *lead, const tn_group *group) {
    return row_of(lead->node)->epilogue->fit(lead->node, group);
}

bool tn_native_pools(const tn_value *lead, const tn_value *pool) {
    bool here = pool->row && !pool->host.only && lead->row && lead->node->device->is_cpu;
    return here && tn_conv_joins_pool(lead->node, pool->node);
}

static result_kind result_kind_of(const tn_value *v) {
    const tn_native_row *row = v->by.engine ? NULL : row_of(v->node);
    return row ? row->result : RESULT_FRESH;
}

bool tn_native_updates(const tn_graph_plan *g, const tn_group *group, int slot) {
    const tn_value *v = &g->values[group->lead];
    if (result_kind_of(v) == RESULT_FRESH) return false;
    for (int k = 1; k < v->n_in; k++)
        if (v->in[k] >= 0 && g->values[g->values[v->in[k]].root].slot == slot) return false;
    return g->values[v->in[0]].offset == 0;
}

bool tn_native_appends(const tn_graph_plan *g, const tn_group *group, int slot) {
    return result_kind_of(&g->values[group->lead]) == RESULT_APPENDED && tn_native_updates(g, group, slot);
}

static tn_status new_native(const tn_value *v, const tn_native_row *row, tn_native **out) {
    tn_native *n = *out = tn_mem_zalloc(1, sizeof *n);
    if (!n) return TN_ERR_MEMORY;
    n->row = row;
    n->dtype = (tn_dtype)v->node->dtype;
    n->weight.slot = -1;
    return TN_OK;
}

tn_status tn_native_make(const tn_graph_plan *g, const tn_group *group, tn_native **out, size_t *workspace) {
    const tn_value *v = &g->values[group->lead];
    const tn_native_row *row = row_of(v->node);
    if (!row)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: no native kernel on this device; evaluate it on the cpu", v->row->name);
    TRY(new_native(v, row, out));
    return row->make(g, group, *out, workspace);
}

tn_status tn_native_of_program(const tn_graph_plan *g, tn_group *group, const kir_program *program) {
    static const tn_native_row row = {.result = RESULT_FRESH};
    TRY(new_native(&g->values[group->lead], &row, &group->run.native));
    return take_program(group->run.native, group, program);
}

/* A packed weight is looked up if another buffer is bound or the buffer was written, and otherwise only now and then,
 * so that memory.c can drop pages of a file. A model has hundreds of weights, none of which stays in a cache between
 * two tokens. */
static tn_status find_packed(tn_native *n, tn_buffer *const *bound) {
    enum { BETWEEN = 64 };
    tn_buffer *b = bound[n->weight.slot];
    if (b == n->weight.of && b->version == n->weight.version && ++n->weight.uses % BETWEEN != 0) return TN_OK;
    n->weight.of = NULL;
    TRY(tn_buffer_packed_weight(b, &n->weight.packed, &n->weight.found));
    n->weight.of = b;
    n->weight.version = b->version;
    return TN_OK;
}

tn_status tn_native_prepare(tn_native *n, tn_buffer *const *bound) {
    if (n->weight.slot < 0) return TN_OK;
    TRY(find_packed(n, bound));
    tn_native_set_packed(n, n->weight.found);
    return TN_OK;
}

tn_status tn_native_packed_weight(tn_native *n, tn_buffer *const *bound, void **weight_form) {
    *weight_form = NULL;
    if (n->weight.slot < 0) return TN_OK;
    TRY(find_packed(n, bound));
    *weight_form = n->weight.found;
    return TN_OK;
}

void tn_native_set_packed(tn_native *n, void *weight_form) {
    if (n->weight.slot >= 0 && *n->weight.target != weight_form) *n->weight.target = weight_form;
}

bool tn_native_packs(const tn_native *n, int slot) { return n->weight.slot == slot; }

static void bind_epilogue(tn_native *n, void *const *pointers, const kir_scalar *scalars) {
    n->fused.scalars = scalars;
    if (!n->fused.program) return;
    n->fused.program->launch.buffers = pointers + TN_PRODUCT_POINTERS;
    n->fused.program->launch.scalars = scalars;
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
    kir_vm_free(n->fused.vm);
    tn_kernel_release(n->fused.kernel);
    tn_mem_free_each(n->fused.sizes, n->own, n);
}

/* ==== attention, paged cache, rotary positions ==================================================================== */

/* ---- keys and values in pages ------------------------------------------------------------------------------------ */

static tn_kv_cache cache_of(const tn_value *cache, const tn_value *pages) {
    return (tn_kv_cache){.dtype = (tn_dtype)cache->node->dtype,
                         .n_pages = cache->node->shape[0],
                         .page_stride = cache->stride[0],
                         .page_count = pages->node->shape[pages->node->rank - 1]};
}

static void run_cache_append(tn_native *n, void *const *pointers) {
    n->append.cache.data = pointers[0];
    n->append.x = pointers[2];
    n->append.positions = pointers[3];
    n->append.position = n->append.batch ? 0 : *n->append.positions;
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
                                         .batch = pages->node->rank == 2,
                                         .x_token_stride = x->stride[0],
                                         .x_head_stride = x->stride[1]};
    *workspace = 0;
    return TN_OK;
}

/* The state stays where it is. */
static void cost_of_cache_append(const tn_native *n, tn_cost *cost) {
    const tn_kv_cache_write_args *a = &n->append;
    int64_t element = (int64_t)(tn_dtype_size(a->cache.dtype) + sizeof(float));
    cost->bytes = a->n * a->kv_heads * a->head_dim * element;
}

/* For the estimate of its cost. */
static int64_t mean_position(const tn_attention_args *a) {
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++)
        sum += (double)a->positions[i];
    return a->n > 0 ? (int64_t)(sum / (double)a->n) : 0;
}

static void run_cached_attention(tn_native *n, void *const *pointers) {
    tn_attention_args *a = &n->attention;
    a->out = pointers[0];
    a->q = pointers[1];
    a->k = pointers[2];
    a->v = pointers[3];
    a->k_cache.data = pointers[4];
    a->v_cache.data = pointers[5];
    a->positions = pointers[6];
    a->position = a->batch ? mean_position(a) : *a->positions;
    a->k_cache.pages = a->v_cache.pages = pointers[7];
    a->sinks = pointers[8];
    a->workspace = pointers[9];
    tn_attention(a);
}

/* cached_attention_rows(q, k, v, k_cache, v_cache, position, pages, sinks; scale; window; softcap; runs) */
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
                                       .batch = in[6]->node->rank == 2,
                                       .runs = out->node->i[1],
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

/* Keys and values are read up to the sequence's length, not the cache's; on average a query reads half of the new
 * ones. */
static void cost_of_cached_attention(const tn_native *n, tn_cost *cost) {
    const tn_attention_args *a = &n->attention;
    double old = (double)a->position, met = old + (a->batch ? 1 : 0.5 * (double)(a->n + 1));
    if (a->window > 0 && met > (double)a->window) met = (double)a->window;
    if (a->window > 0 && old > (double)a->window) old = (double)a->window;
    double key = (double)(a->kv_heads * a->head_dim), query = (double)(a->heads * a->head_dim);
    double element = (double)(tn_dtype_size(a->k_cache.dtype) + tn_dtype_size(a->v_cache.dtype));
    double bytes = old * key * (double)(a->batch ? a->n : 1) * element + (double)a->n * (2 * key + 2 * query) * 4;
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

/* Only the products count: two forward, five backward; half if causal. */
static double sdpa_flops(const tn_sdpa_args *a, double products) {
    double pairs = (double)(a->batch * a->heads * a->queries) * (double)a->keys * (a->causal ? 0.5 : 1.0);
    return products * pairs * (double)(a->features + a->value_features);
}

static void cost_of_sdpa(const tn_native *n, tn_cost *cost) { cost->flops = sdpa_flops(&n->sdpa, 2); }
static void cost_of_sdpa_gradient(const tn_native *n, tn_cost *cost) { cost->flops = sdpa_flops(&n->sdpa, 5); }

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

/* ==== linear algebra ============================================================================================== */

static void run_linalg(tn_native *n, void *const *pointers) {
    bool system = n->linalg.k > 0;
    n->linalg.out = pointers[0];
    n->linalg.a = pointers[1];
    n->linalg.b = system ? pointers[2] : NULL;
    n->linalg.workspace = pointers[system ? 3 : 2];
    tn_linalg(&n->linalg);
}

static const struct {
    int op;
    tn_linalg_kind kind;
} kinds[] = {
    {TN_OP_LINALG_CHOLESKY_LOWER, TN_LINALG_CHOLESKY},  {TN_OP_LINALG_SOLVE_SYSTEMS, TN_LINALG_SOLVE},
    {TN_OP_LINALG_SOLVE_LOWER, TN_LINALG_SOLVE_LOWER},  {TN_OP_LINALG_SOLVE_UPPER, TN_LINALG_SOLVE_UPPER},
    {TN_OP_LINALG_DETERMINANTS, TN_LINALG_DETERMINANT}, {TN_OP_LINALG_QR_PACKED, TN_LINALG_QR},
    {TN_OP_LINALG_EIGH_PACKED, TN_LINALG_EIGH},         {TN_OP_LINALG_EIG_PACKED, TN_LINALG_EIG},
    {TN_OP_LINALG_SVD_PACKED, TN_LINALG_SVD},           {TN_OP_LINALG_LU_PACKED, TN_LINALG_LU},
};

static tn_linalg_kind linalg_kind_of(int op) {
    size_t i = 0;
    while (kinds[i].op != op)
        i++;
    return kinds[i].kind;
}

/* LAPACK of the requested library. */
static void choose_library(const tn_device *d, tn_linalg_args *x, const char **by) {
    const tn_blas *asked = tn_device_blas(d); /* once: another thread may choose meanwhile */
    const tn_lapack *lapack = tn_lapack_of(asked);
    if (!lapack || !tn_lapack_takes(lapack, x->kind, x->m, x->n, x->k)) return;
    x->lapack = lapack;
    *by = tn_blas_name(asked);
}

/* a, perhaps b: contiguous, with the same batch dimensions. */
tn_status tn_make_linalg(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *a = &g->values[v->in[0]];
    const tn_node *x = a->node, *b = v->n_in > 1 ? g->values[v->in[1]].node : NULL;
    n->run = run_linalg;
    n->linalg = (tn_linalg_args){.kind = linalg_kind_of(v->node->op),
                                 .dtype = n->dtype,
                                 .batch = tn_product(x->shape, x->rank - 2),
                                 .m = x->shape[x->rank - 2],
                                 .n = x->shape[x->rank - 1],
                                 .k = b ? b->shape[b->rank - 1] : 0};
    if (tn_value_numel(v) == 0) n->linalg.batch = 0;
    choose_library(g->binding->device, &n->linalg, &n->by);
    *workspace = tn_linalg_workspace(&n->linalg, tn_threads());
    return TN_OK;
}
