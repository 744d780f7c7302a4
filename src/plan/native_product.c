/* native_product.c — native matrix products: float and stored weights; row-fused chains; products with one left
 * operand.
 *
 * A second operand in bound memory that this plan does not write (a weight at inference) is packed once. The packed
 * weight is kept with the buffer (tn_packed_weight) for all plans and is made again only after a write. */
#include "plan/native.h"
#include "plan/passes.h"

/* The group at position `from` is computed at `to`, before those that stood there. */
static void group_move_up(tn_graph_plan *g, int from, int to);

static const int64_t PACK_LIMIT = (int64_t)64 << 20; /* bytes of one packed operand that is kept */

/* words of a form's name */
enum { PACKED_DTYPE, PACKED_ROWS, PACKED_COLUMNS, PACKED_OFFSET, PACKED_ROW_STRIDE, PACKED_COLUMN_STRIDE };

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Bytes that are widened to floats would be four times as large: they are not kept. */
static tn_dtype packed_dtype(const tn_native *n) { return n->dtype == TN_I32 ? TN_I8 : n->dtype; }

static bool worth_keeping_packed(const tn_graph_plan *g, const tn_native *n, const tn_value *b) {
    enum { FEW = 8 }; /* columns that are packed in no time, or few enough for the kernel to swap its sides */
    const tn_value *root = &g->values[b->root];
    if (!tn_native_may_pack(g, root->slot) || n->gemm.n < FEW) return false;
    if (n->dtype == TN_I32 && !tn_gemm_takes_quads(&n->gemm)) return false;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        if (n->gemm.b.batch_stride[axis] != 0) return false;
    if ((int64_t)tn_gemm_packed_bytes(n->gemm.n, n->gemm.k, packed_dtype(n)) > PACK_LIMIT) return false;
    return !g->fusion.read_along ||
           g->fusion.read_along[root->slot] != TN_READ_BOTH; /* it would be kept twice, packed */
}

static void pack_operand(const tn_packed_weight *weight_form, const void *from, void *to) {
    const int64_t *w = weight_form->word;
    tn_gemm_args args = {.batch = {1, 1, 1, 1}, .m = 1, .n = w[PACKED_COLUMNS], .k = w[PACKED_ROWS], .packed_b = to};
    args.a_dtype = TN_U8; /* for bytes only these are kept */
    args.b_dtype = TN_I8;
    args.b.data = (char *)(uintptr_t)from + w[PACKED_OFFSET];
    args.b.row_stride = w[PACKED_ROW_STRIDE];
    args.b.col_stride = w[PACKED_COLUMN_STRIDE];
    tn_gemm_pack(&args, (tn_dtype)w[PACKED_DTYPE]);
}

static void keep_packed(const tn_graph_plan *g, tn_native *n, const tn_value *b) {
    if (!worth_keeping_packed(g, n, b)) return;
    tn_gemm_args *gemm = &n->gemm;
    n->weight.slot = g->values[b->root].slot;
    n->weight.packed = (tn_packed_weight){.make = pack_operand,
                                          .bytes = tn_gemm_packed_bytes(gemm->n, gemm->k, packed_dtype(n)),
                                          .word = {n->dtype, gemm->k, gemm->n, (int64_t)tn_native_byte_offset(b),
                                                   gemm->b.row_stride, gemm->b.col_stride}};
    n->weight.target = &gemm->packed_b;
    n->weight.valid = true;
    gemm->packed_valid = &n->weight.valid;
}

static void bind_matmul(tn_gemm_args *args, void *const *pointers) {
    args->a.data = pointers[TN_PRODUCT_A];
    args->b.data = pointers[TN_PRODUCT_B];
    args->c.data = pointers[TN_PRODUCT_C];
    args->workspace = pointers[TN_PRODUCT_WORKSPACE];
}

static void run_matmul(tn_native *n, void *const *pointers) {
    tn_gemm_args *args = &n->gemm;
    bind_matmul(args, pointers);
    if (n->library)
        tn_blas_gemm(n->library, args, n->dtype);
    else
        tn_gemm_run(args, n->dtype);
}

/* The first of several. */
static void run_row_fused(tn_native *n, void *const *pointers) {
    tn_gemm_row_fused chain = {.workspace = pointers[TN_PRODUCT_WORKSPACE], .plan = n->own};
    for (tn_native *step = n; step; step = step->next) {
        bind_matmul(&step->gemm, step == n ? pointers : step->pointers);
        chain.step[chain.count++] = &step->gemm;
    }
    tn_gemm_row_fused_run(&chain);
}

static bool tn_native_is_row_fusable(const tn_native *n) {
    return n->run == run_matmul && !n->by && n->dtype == TN_F32 && tn_gemm_row_fused_takes(&n->gemm);
}

static tn_status tn_native_fuse_rows(tn_native *const *natives, int count, size_t *workspace) {
    tn_gemm_row_fused chain = {.count = count};
    natives[0]->own = tn_mem_zalloc(1, tn_gemm_row_fused_bytes());
    if (!natives[0]->own) return TN_ERR_MEMORY;
    natives[0]->run = run_row_fused;
    for (int i = 0; i < count; i++) {
        chain.step[i] = &natives[i]->gemm;
        natives[i]->next = i + 1 < count ? natives[i + 1] : NULL;
    }
    *workspace = tn_gemm_row_fused_workspace(&chain, tn_threads());
    return TN_OK;
}

/* A library that was asked for by name, else what the record of measurements says, else the rules. */
static void choose_way(const tn_graph_plan *g, tn_native *n, const tn_value *b) {
    const tn_device *d = g->binding->device;
    const tn_blas *asked = tn_device_blas(d);
    bool open = asked && tn_device_blas_is_open(d);
    tn_way way;
    if (asked && tn_blas_takes(asked, &n->gemm, n->dtype)) n->library = asked;
    n->by = n->library ? tn_blas_name(n->library) : NULL;
    if (asked && !open) return;
    if (!tn_tune_product(d, &n->gemm, n->dtype, worth_keeping_packed(g, n, b), open, &way)) return;
    n->library = way.library;
    n->gemm.way = way.own;
    n->by = way.name;
}

void tn_native_product(const tn_graph_plan *g, const tn_value *c, tn_gemm_args *out) {
    const tn_value *a = &g->values[c->in[0]], *b = &g->values[c->in[1]];
    int rank = c->node->rank;
    *out = (tn_gemm_args){.m = c->node->shape[rank - 2],
                          .n = c->node->shape[rank - 1],
                          .k = a->node->shape[a->node->rank - 1],
                          .a_dtype = (tn_dtype)a->node->dtype,
                          .b_dtype = (tn_dtype)b->node->dtype};
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        out->batch[axis] = 1;
    for (int d = 0; d < rank - 2; d++)
        out->batch[TN_GEMM_BATCH_AXES - (rank - 2) + d] = c->node->shape[d];
    tn_native_matrix(a, &out->a);
    tn_native_matrix(b, &out->b);
    tn_native_matrix(c, &out->c);
}

tn_status tn_make_matmul(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *c = &g->values[group->lead];
    n->run = run_matmul;
    tn_native_product(g, c, &n->gemm);
    n->gemm.wide = tn_op_has(c->node, TN_FACT_WIDE_PRODUCT);
    if (n->gemm.wide) n->dtype = n->gemm.a_dtype;
    TRY(tn_native_join_product(n, group, &n->gemm.c.fused));
    choose_way(g, n, &g->values[c->in[1]]);
    if (n->library) {
        *workspace = tn_blas_workspace(&n->gemm, tn_threads());
        return TN_OK;
    }
    keep_packed(g, n, &g->values[c->in[1]]);
    *workspace = tn_gemm_workspace(&n->gemm, n->dtype, tn_threads());
    return TN_OK;
}

bool tn_takes_quantized_mm(const tn_node *n) {
    const tn_gemm_args args = {.a_dtype = (tn_dtype)n->in[0]->dtype, .b_dtype = (tn_dtype)n->in[1]->dtype};
    return tn_gemm_takes_quads(&args) && tn_node_numel(n) > 0;
}

static void run_quantized_mm(tn_native *n, void *const *pointers) {
    enum { RESULT, A, B, BIAS, SCALE, WORKSPACE };
    n->gemm_rounding.bias = pointers[BIAS];
    n->gemm_rounding.scale = pointers[SCALE];
    n->gemm.rounding = &n->gemm_rounding;
    n->gemm.a.data = pointers[A];
    n->gemm.b.data = pointers[B];
    n->gemm.c.data = pointers[RESULT];
    n->gemm.workspace = pointers[WORKSPACE];
    tn_gemm_run(&n->gemm, TN_I32);
}

tn_status tn_make_quantized_mm(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *c = &g->values[group->lead];
    n->run = run_quantized_mm;
    n->dtype = TN_I32; /* of its sums */
    tn_native_product(g, c, &n->gemm);
    n->gemm_rounding.zero = (int32_t)c->node->i[TN_QUANTIZED_MM_ZERO];
    n->gemm.rounding = &n->gemm_rounding;
    keep_packed(g, n, &g->values[c->in[1]]);
    *workspace = tn_gemm_workspace(&n->gemm, TN_I32, tn_threads());
    return TN_OK;
}

/* ---- products with weights as they are stored -------------------------------------------------------------------- */

enum { PACKED_ALIGN = 64, MANY_ROWS = 1 << 14 /* of a weight that takes long enough to tell which is slower */ };

/* Packs piece by piece and releases each piece's file pages, so a large weight is never in memory twice. Packed rows
 * are in groups of 16. */
static void pack_blocks(const tn_packed_weight *weight_form, const void *from, void *to) {
    enum { PIECE_BYTES = 1 << 20, GROUP = 16 };
    const int64_t *w = weight_form->word;
    tn_dtype dtype = (tn_dtype)w[PACKED_DTYPE];
    int64_t rows = w[PACKED_ROWS], columns = w[PACKED_COLUMNS];
    size_t row = tn_dtype_bytes(dtype, columns);
    int64_t piece = tn_max64(1, PIECE_BYTES / tn_max64(1, (int64_t)row) / GROUP) * GROUP;
    for (int64_t first = 0; first < rows; first += piece) {
        int64_t n = tn_min64(piece, rows - first);
        const char *blocks = (const char *)from + w[PACKED_OFFSET] + (size_t)first * row;
        tn_qmat_pack(dtype, blocks, n, columns, (char *)to + tn_qmat_packed_bytes(first, columns, dtype));
        if (weight_form->replaces) tn_map_return_pages(blocks, (size_t)n * row);
    }
}

static void bind_linear_stored(tn_native *n, void *const *pointers) {
    tn_qmat_args *args = &n->qmat;
    args->x = pointers[TN_PRODUCT_A];
    args->c.data = pointers[TN_PRODUCT_C];
    args->workspace = pointers[TN_PRODUCT_WORKSPACE];
    args->packed = n->weight.memory;
}

static void run_linear_stored(tn_native *n, void *const *pointers) {
    tn_qmat_args *args = &n->qmat;
    bind_linear_stored(n, pointers);
    for (tn_native *next = n->next; next; next = next->next)
        bind_linear_stored(next, next->pointers);
    if (n->weight.slot < 0) {
        args->packed = (char *)args->workspace + n->weight.at;
        pack_blocks(&n->weight.packed, pointers[TN_PRODUCT_B], (char *)args->workspace + n->weight.at);
    }
    tn_qmat(args);
}

static bool tn_native_are_siblings(const tn_native *a, const tn_native *b) {
    const tn_qmat_args *x = &a->qmat, *y = &b->qmat;
    bool stored =
        a->run == run_linear_stored && b->run == run_linear_stored && a->weight.slot >= 0 && b->weight.slot >= 0;
    bool same = stored && x->m == y->m && x->k == y->k && x->dtype == y->dtype && x->x_stride == y->x_stride;
    return same && x->m > 0 && x->n > 0 && y->n > 0;
}

void tn_native_run_sibling(tn_native *n, void *const *pointers, const kir_scalar *scalars) {
    n->pointers = pointers;
    n->scalars = scalars;
}

static void tn_native_add_sibling(tn_native *n, tn_native *next) {
    n->next = next;
    n->qmat.next = &next->qmat;
}

/* Links a product with a stored weight to the next one. Returns it, or `before` if `n` is not such a product. */
static tn_native *tn_native_set_next_weight(tn_native *n, tn_native *before) {
    if (n->run != run_linear_stored) return before;
    if (before) before->qmat.later = &n->qmat;
    return n;
}

tn_status tn_make_linear_stored(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *c = &g->values[group->lead], *x = &g->values[c->in[0]], *w = &g->values[c->in[1]];
    tn_dtype dtype = (tn_dtype)w->node->dtype;
    int64_t rows = w->node->shape[0], k = w->node->shape[1];
    n->run = run_linear_stored;
    n->qmat = (tn_qmat_args){.m = c->node->shape[0], .n = rows, .k = k, .dtype = dtype, .x_stride = x->stride[0]};
    tn_native_matrix(c, &n->qmat.c);
    TRY(tn_native_join_product(n, group, &n->qmat.c.fused));
    if (rows >= MANY_ROWS)
        n->own = n->qmat.column_cuts = tn_mem_zalloc((size_t)tn_threads(), sizeof *n->qmat.column_cuts);
    if (rows >= MANY_ROWS && !n->own) return TN_ERR_MEMORY;
    n->weight.target = &n->weight.memory;
    n->weight.packed = (tn_packed_weight){.make = pack_blocks, .bytes = tn_qmat_packed_bytes(rows, k, dtype)};
    n->weight.packed.word[PACKED_DTYPE] = dtype;
    n->weight.packed.word[PACKED_ROWS] = rows;
    n->weight.packed.word[PACKED_COLUMNS] = k;
    *workspace = tn_qmat_workspace(&n->qmat, tn_threads());
    int slot = g->values[w->root].slot;
    if (tn_native_may_pack(g, slot)) {
        n->weight.packed.word[PACKED_OFFSET] = (int64_t)tn_native_byte_offset(w);
        n->weight.packed.replaces = true;
        n->weight.slot = slot;
        return TN_OK;
    }
    /* Made or written in this plan, or fetched from a device: packed at each run. */
    n->weight.at = (*workspace + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    *workspace = n->weight.at + n->weight.packed.bytes;
    return TN_OK;
}

/* ---- products whose rows have matrices of their own -------------------------------------------------------------- */

enum { PACKED_EXPERTS = PACKED_OFFSET + 1 }; /* instead of strides */

static void pack_experts(const tn_packed_weight *weight_form, const void *from, void *to) {
    const int64_t *w = weight_form->word;
    tn_dtype dtype = (tn_dtype)w[PACKED_DTYPE];
    size_t packed = tn_qmat_packed_bytes(w[PACKED_ROWS], w[PACKED_COLUMNS], dtype);
    tn_packed_weight one = *weight_form;
    for (int64_t e = 0; e < w[PACKED_EXPERTS]; e++) {
        pack_blocks(&one, from, (char *)to + (size_t)e * packed);
        one.word[PACKED_OFFSET] += (int64_t)tn_dtype_bytes(dtype, w[PACKED_ROWS] * w[PACKED_COLUMNS]);
    }
}

static void run_experts(tn_native *n, void *const *pointers) {
    enum { RESULT, X, WEIGHT, CHOSEN, WORKSPACE };
    tn_experts_args *a = &n->experts;
    a->result = pointers[RESULT];
    a->x = pointers[X];
    a->chosen = pointers[CHOSEN];
    a->workspace = pointers[WORKSPACE];
    a->weight = n->weight.target ? n->weight.memory : pointers[WEIGHT];
    if (n->weight.target && n->weight.slot < 0) {
        a->weight = (char *)a->workspace + n->weight.at;
        pack_experts(&n->weight.packed, pointers[WEIGHT], (char *)a->workspace + n->weight.at);
    }
    tn_experts(a);
}

/* linear_experts_rows(x, weight, chosen) */
tn_status tn_make_experts(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *c = &g->values[group->lead], *x = &g->values[c->in[0]], *w = &g->values[c->in[1]];
    tn_dtype dtype = (tn_dtype)w->node->dtype;
    int64_t rows = w->node->shape[1], k = w->node->shape[2];
    bool each = x->node->rank == 3;
    n->run = run_experts;
    n->experts = (tn_experts_args){.tokens = c->node->shape[0],
                                   .choices = c->node->shape[1],
                                   .experts = w->node->shape[0],
                                   .out = rows,
                                   .in = k,
                                   .dtype = dtype,
                                   .x_token_stride = each ? c->node->shape[1] * k : k,
                                   .x_choice_stride = each ? k : 0,
                                   .threads = tn_threads()};
    *workspace = tn_experts_workspace(&n->experts, tn_threads());
    if (dtype == TN_F32) return TN_OK;
    n->weight.target = &n->weight.memory;
    n->weight.packed =
        (tn_packed_weight){.make = pack_experts,
                           .bytes = (size_t)n->experts.experts * tn_qmat_packed_bytes(rows, k, dtype),
                           .word = {dtype, rows, k, (int64_t)tn_native_byte_offset(w), n->experts.experts}};
    int slot = g->values[w->root].slot;
    if (tn_native_may_pack(g, slot)) {
        n->weight.packed.replaces = true;
        n->weight.slot = slot;
        return TN_OK;
    }
    n->weight.packed.word[PACKED_OFFSET] = 0; /* the address is the weight's */
    n->weight.at = (*workspace + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    *workspace = n->weight.at + n->weight.packed.bytes;
    return TN_OK;
}

/* Of the weight, the experts that rows can choose at most. */
void tn_cost_of_experts(const tn_native *n, tn_cost *cost) {
    const tn_experts_args *a = &n->experts;
    int64_t rows = a->tokens * a->choices, met = tn_min64(rows, a->experts);
    int64_t numbers = (a->x_choice_stride ? rows : a->tokens) * a->in + rows * a->out;
    *cost = (tn_cost){.bytes = (int64_t)tn_dtype_bytes(a->dtype, met * a->out * a->in) + 4 * numbers + 8 * rows,
                      .flops = 2.0 * (double)rows * (double)(a->out * a->in)};
}

/* ==== row-fused GEMM chains ======================================================================================= */
/* A small network's layers take little more time than passing their rows between threads. So consecutive products form
 * a chain: row r of each needs only row r of the results before it, and a thread takes its rows through all of them
 * (cpu/gemm.c). layout.c makes sure that groups of a chain share memory only in this way. Weights beyond a share of the
 * second-level cache would be fetched again for each block of rows, so they stay separate products. */

enum {
    FAR = 24, /* groups that a product may be moved past */
    BY_ROWS_MANY_ROWS =
        256 /* with fewer, it is better if threads share the columns of a weight that they have just written */
};

/* ---- what may be in a run ---------------------------------------------------------------------------------------- */

static int64_t row_run_rows_of(const tn_graph_plan *g, const tn_group *group) {
    return g->values[group->lead].node->shape[0];
}

static int64_t weight_of(const tn_graph_plan *g, const tn_group *group) {
    return (int64_t)tn_node_bytes(g->values[g->values[group->lead].in[1]].node);
}

static int64_t tn_group_makes(const tn_graph_plan *g, const tn_group *group) {
    int64_t bytes = 0;
    for (size_t i = 0; i < group->member_count; i++)
        if (g->values[group->members[i]].stored) bytes += (int64_t)tn_node_bytes(g->values[group->members[i]].node);
    return bytes;
}

/* A weight that other plans change, or none, is in every thread's cache. */
static bool weight_stays(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *b = &g->values[g->values[group->lead].in[1]];
    return tn_native_may_pack(g, g->values[b->root].slot);
}

static bool is_product(const tn_graph_plan *g, const tn_group *group) {
    if (group->kind != TN_GROUP_MATMUL || !group->run.native || group->order.commit || group->order.appends ||
        group->host)
        return false;
    return !tn_group_writes_state(g, group) && g->values[group->lead].node->rank == 2 && group->pool < 0 &&
           (row_run_rows_of(g, group) >= BY_ROWS_MANY_ROWS || weight_stays(g, group)) &&
           tn_native_is_row_fusable(group->run.native);
}

typedef struct run {
    int first, count;     /* positions */
    int64_t weight, made; /* bytes */
} run;

static bool made_in(const tn_graph_plan *g, const run *r, int value) {
    int group = g->values[g->values[value].root].group;
    int at = group >= 0 ? g->groups[group].order.position : -1;
    return at >= r->first && at < r->first + r->count;
}

/* Whether row r of the group's result reads only rows r of the chain: its first operand as stored, and the operands of
 * its epilogue at the place that it writes. */
static bool reads_own_rows(const tn_graph_plan *g, const run *r, const tn_group *group) {
    const tn_value *lead = &g->values[group->lead];
    int own = (int)(group - g->groups);
    if (made_in(g, r, lead->in[1])) return false;
    if (made_in(g, r, lead->in[0]) && g->values[lead->in[0]].root != lead->in[0]) return false;
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        int x = group->lowered.buffer_values[b];
        if (x == TN_BLOCK || g->values[x].group == own || !made_in(g, r, x)) continue;
        const tn_node *n = g->values[x].node;
        if (!group->lowered.buffer_same_place[b] || n->rank != 2 || n->shape[0] != lead->node->shape[0] ||
            n->shape[1] != lead->node->shape[1])
            return false;
    }
    return true;
}

/* Whether the group at this position can run directly after the chain: the groups between must not compute its
 * operands. */
static bool may_follow(const tn_graph_plan *g, const run *r, int position) {
    const tn_group *group = &g->groups[g->fusion.order[position]];
    if (!is_product(g, group) || row_run_rows_of(g, group) != row_run_rows_of(g, &g->groups[g->fusion.order[r->first]]))
        return false;
    if (r->weight + weight_of(g, group) > tn_cpu().l2 / 2) return false;
    if (r->made + tn_group_makes(g, group) > TN_MOST_MADE) return false;
    for (size_t k = 0; k < group->order.dep_count; k++)
        if (g->groups[group->order.deps[k]].order.position >= r->first + r->count) return false;
    return reads_own_rows(g, r, group);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static void add_row_run(const tn_graph_plan *g, run *r, const tn_group *group) {
    r->weight += weight_of(g, group);
    r->made += tn_group_makes(g, group);
}

static void grow_run(tn_graph_plan *g, run *r) {
    for (int at = r->first + r->count; at < (int)g->group_count && at < r->first + r->count + FAR; at++) {
        if (r->count == TN_ROW_FUSED_MOST || g->groups[g->fusion.order[at]].order.commit) return;
        if (!may_follow(g, r, at)) continue;
        add_row_run(g, r, &g->groups[g->fusion.order[at]]);
        group_move_up(g, at, r->first + r->count);
        at = r->first + r->count++;
    }
}

static tn_status join_row_run(tn_graph_plan *g, const run *r) {
    tn_native *natives[TN_ROW_FUSED_MOST];
    for (int i = 0; i < r->count; i++) {
        tn_group *group = &g->groups[g->fusion.order[r->first + i]];
        natives[i] = group->run.native;
        group->run.workspace = 0;
        group->row_fused = true;
        group->sibling = i > 0;
    }
    return tn_native_fuse_rows(natives, r->count, &g->groups[g->fusion.order[r->first]].run.workspace);
}

tn_status tn_fuse_gemm_rows(tn_graph_plan *g) {
    run r;
    for (int i = 0; i < (int)g->group_count; i += r.count) {
        const tn_group *first = &g->groups[g->fusion.order[i]];
        r = (run){.first = i, .count = 1};
        if (!is_product(g, first)) continue;
        add_row_run(g, &r, first);
        if (r.weight > tn_cpu().l2 / 2) continue;
        grow_run(g, &r);
        if (r.count > 1) TRY(join_row_run(g, &r));
    }
    return TN_OK;
}

/* ==== products that share their left operand ====================================================================== */
/* Sibling products: one launch computes the products of one left operand with several weights, which rounds the operand
 * and wakes the threads once. A product whose operands exist before the first of the launch is moved behind the last.
 * Its epilogue may also read another product's result at exactly the places that it writes; the same thread computes
 * these in order. The memory of a launch is laid out as if all products ran at once, so large results are not moved up:
 * they would wait for their readers. */

enum { WITHIN = 32 }; /* groups after the last product that are examined */

typedef struct chain {
    int first, count; /* positions */
    int64_t made;     /* bytes of results */
} chain;

static tn_group *at_position(const tn_graph_plan *g, int position) { return &g->groups[g->fusion.order[position]]; }

static const tn_value *left_of(const tn_graph_plan *g, const tn_group *group) {
    return &g->values[g->values[group->lead].in[0]];
}

static bool can_chain(const tn_group *group) {
    return group->kind == TN_GROUP_MATMUL && group->run.native && !group->order.commit && !group->order.appends &&
           !group->host;
}

static bool reads(const tn_group *group, int value) {
    for (int k = 0; k < group->run.read_count; k++)
        if (group->run.reads[k] == value) return true;
    return false;
}

/* Whether `group` reads the result of group `made`, which is to be in the same launch, only at the places that it
 * writes. */
static bool reads_same_places(const tn_graph_plan *g, const tn_group *group, int made) {
    const tn_value *lead = &g->values[group->lead];
    if (!tn_same_shape(lead->node, g->values[g->groups[made].lead].node)) return false;
    for (int k = 0; k < lead->n_in; k++)
        if (g->values[g->values[lead->in[k]].root].group == made) return false; /* as a factor: all over */
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        int v = group->lowered.buffer_values[b];
        if (v != TN_BLOCK && g->values[v].group == made && !group->lowered.buffer_same_place[b]) return false;
    }
    return true;
}

/* Its memory may be reused for a result of its last reader, while other products of the launch still run. */
static bool shares_more(const tn_graph_plan *g, const tn_group *group, const tn_group *other) {
    for (int k = 0; k < group->run.read_count; k++) {
        int v = group->run.reads[k];
        if (g->values[v].slot < 0 && v != left_of(g, group)->root && reads(other, v)) return true;
    }
    return false;
}

static bool sibling_fits(const tn_graph_plan *g, const chain *c, const tn_group *group) {
    const tn_group *first = at_position(g, c->first);
    const tn_value *x = left_of(g, first), *y = left_of(g, group);
    if (x->root != y->root || x->offset != y->offset || !tn_native_are_siblings(first->run.native, group->run.native))
        return false;
    for (size_t k = 0; k < group->order.dep_count; k++) {
        int needed = group->order.deps[k], position = g->groups[needed].order.position;
        if (position >= c->first + c->count) return false;
        if (position >= c->first && !reads_same_places(g, group, needed)) return false;
    }
    if (group->order.position > c->first + c->count && c->made + tn_group_makes(g, group) > TN_MOST_MADE) return false;
    for (int i = c->first; i < c->first + c->count; i++)
        if (shares_more(g, group, at_position(g, i))) return false;
    return true;
}

static void group_move_up(tn_graph_plan *g, int from, int to) {
    int moved = g->fusion.order[from];
    for (int i = from; i > to; i--) {
        g->fusion.order[i] = g->fusion.order[i - 1];
        at_position(g, i)->order.position = i;
    }
    g->fusion.order[to] = moved;
    g->groups[moved].order.position = to;
}

/* The first one's workspace serves all. */
static void take_siblings(tn_graph_plan *g, chain *c, int position) {
    tn_group *first = at_position(g, c->first), *group = at_position(g, position);
    tn_native_add_sibling(at_position(g, c->first + c->count - 1)->run.native, group->run.native);
    if (group->run.workspace > first->run.workspace) first->run.workspace = group->run.workspace;
    group->run.workspace = 0;
    group->sibling = true;
    c->made += tn_group_makes(g, group);
    group_move_up(g, position, c->first + c->count++);
}

void tn_fuse_siblings(tn_graph_plan *g) {
    tn_native *before = NULL;
    chain c;
    for (int i = 0; i < (int)g->group_count; i += c.count) {
        tn_native *own = at_position(g, i)->run.native;
        c = (chain){i, 1, tn_group_makes(g, at_position(g, i))};
        if (own) before = tn_native_set_next_weight(own, before);
        if (!can_chain(at_position(g, i))) continue;
        int end = i + 1;
        for (int j = i + 1; j < (int)g->group_count && j - end < WITHIN && c.count < TN_MOST_SIBLINGS; j++) {
            const tn_group *group = at_position(g, j);
            if (!can_chain(group) || !sibling_fits(g, &c, group)) continue;
            take_siblings(g, &c, j);
            end = j + 1;
        }
    }
}
