/* native_product.c — matrix products: of floats, and with weights as files store them.
 *
 * A second operand that lies in bound memory which this plan does not write (a weight under inference) is packed once:
 * its packed form hangs on the buffer (tn_packed_weight), for all plans, and is made anew only when somebody wrote it.
 * */
#include "core/native.h"
#include "core/tuner.h"

static const int64_t PACK_LIMIT = (int64_t)64 << 20; /* bytes of one packed operand that is kept beside it */

/* words of a form's name */
enum { PACKED_DTYPE, PACKED_ROWS, PACKED_COLUMNS, PACKED_OFFSET, PACKED_ROW_STRIDE, PACKED_COLUMN_STRIDE };

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Bytes that are widened to floats would be four times as large: they are not kept. */
static tn_dtype packed_dtype(const tn_native *n) { return n->dtype == TN_I32 ? TN_I8 : n->dtype; }

static bool worth_keeping_packed(const tn_graph_plan *g, const tn_native *n, const tn_value *b) {
    enum { FEW = 8 }; /* columns that are packed in no time, or where the kernel had rather change sides */
    const tn_value *root = &g->values[b->root];
    if (!tn_native_may_pack(g, root->slot) || n->gemm.n < FEW) return false;
    if (n->dtype == TN_I32 && !tn_gemm_takes_quads(&n->gemm)) return false;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        if (n->gemm.b.batch_stride[axis] != 0) return false;
    return (int64_t)tn_gemm_packed_bytes(n->gemm.n, n->gemm.k, packed_dtype(n)) <= PACK_LIMIT;
}

static void pack_operand(const tn_packed_weight *weight_form, const void *from, void *to) {
    const int64_t *w = weight_form->word;
    tn_gemm_args args = {.batch = {1, 1, 1, 1}, .m = 1, .n = w[PACKED_COLUMNS], .k = w[PACKED_ROWS], .packed_b = to};
    args.a_dtype = TN_U8; /* of bytes these alone are kept */
    args.b_dtype = TN_I8;
    args.b.data = (char *)(uintptr_t)from + w[PACKED_OFFSET];
    args.b.row_stride = w[PACKED_ROW_STRIDE];
    args.b.col_stride = w[PACKED_COLUMN_STRIDE];
    tn_gemm_pack(&args, (tn_dtype)w[PACKED_DTYPE]);
}

static void keep_packed(const tn_graph_plan *g, tn_native *n, const tn_value *b) {
    if (!worth_keeping_packed(g, n, b)) return;
    tn_gemm_args *gemm = &n->gemm;
    n->packed_slot = g->values[b->root].slot;
    n->packed = (tn_packed_weight){.make = pack_operand,
                                   .bytes = tn_gemm_packed_bytes(gemm->n, gemm->k, packed_dtype(n)),
                                   .word = {n->dtype, gemm->k, gemm->n, (int64_t)tn_native_byte_offset(b),
                                            gemm->b.row_stride, gemm->b.col_stride}};
    n->packed_target = &gemm->packed_b;
    n->packed_valid = true;
    gemm->packed_valid = &n->packed_valid;
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

bool tn_native_is_row_fusable(const tn_native *n) {
    return n->run == run_matmul && !n->by && n->dtype == TN_F32 && tn_gemm_row_fused_takes(&n->gemm);
}

tn_status tn_native_fuse_rows(tn_native *const *natives, int count, size_t *workspace) {
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
    const tn_blas *asked = tn_blas_chosen();
    bool open = tn_blas_is_open_choice();
    tn_way way;
    if (asked && tn_blas_takes(asked, &n->gemm, n->dtype)) n->library = asked;
    n->by = n->library ? tn_blas_name(n->library) : NULL;
    if (asked && !open) return;
    if (!tn_tune_product(&n->gemm, n->dtype, worth_keeping_packed(g, n, b), open, &way)) return;
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
    n->gemm.wide = c->node->op == TN_OP_MATMUL_WIDE;
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

/* ---- products with weights as they are stored -------------------------------------------------------------------- */

enum { PACKED_ALIGN = 64, MANY_ROWS = 1 << 14 /* of a weight that takes long enough to see who is slower */ };

/* Piece by piece, each piece's pages of the file going back at once: a large weight is never in memory twice. Packed
 * rows stand in groups of 16, one group after the other. */
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
    args->packed = n->packed_weight;
}

static void run_linear_stored(tn_native *n, void *const *pointers) {
    tn_qmat_args *args = &n->qmat;
    bind_linear_stored(n, pointers);
    for (tn_native *next = n->next; next; next = next->next)
        bind_linear_stored(next, next->pointers);
    if (n->packed_slot < 0) {
        args->packed = (char *)args->workspace + n->packed_at;
        pack_blocks(&n->packed, pointers[TN_PRODUCT_B], (char *)args->workspace + n->packed_at);
    }
    tn_qmat(args);
}

bool tn_native_are_siblings(const tn_native *a, const tn_native *b) {
    const tn_qmat_args *x = &a->qmat, *y = &b->qmat;
    bool stored =
        a->run == run_linear_stored && b->run == run_linear_stored && a->packed_slot >= 0 && b->packed_slot >= 0;
    bool same = stored && x->m == y->m && x->k == y->k && x->dtype == y->dtype && x->x_stride == y->x_stride;
    return same && x->m > 0 && x->n > 0 && y->n > 0;
}

void tn_native_run_sibling(tn_native *n, void *const *pointers, const kir_scalar *scalars) {
    n->pointers = pointers;
    n->scalars = scalars;
}

void tn_native_add_sibling(tn_native *n, tn_native *next) {
    n->next = next;
    n->qmat.next = &next->qmat;
}

tn_native *tn_native_set_next_weight(tn_native *n, tn_native *before) {
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
    n->packed_target = &n->packed_weight;
    n->packed = (tn_packed_weight){.make = pack_blocks, .bytes = tn_qmat_packed_bytes(rows, k, dtype)};
    n->packed.word[PACKED_DTYPE] = dtype;
    n->packed.word[PACKED_ROWS] = rows;
    n->packed.word[PACKED_COLUMNS] = k;
    *workspace = tn_qmat_workspace(&n->qmat, tn_threads());
    int slot = g->values[w->root].slot;
    if (tn_native_may_pack(g, slot)) {
        n->packed.word[PACKED_OFFSET] = (int64_t)tn_native_byte_offset(w);
        n->packed.replaces = true;
        n->packed_slot = slot;
        return TN_OK;
    }
    /* Made or written in this plan, or fetched from a device: packed at each run. */
    n->packed_at = (*workspace + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    *workspace = n->packed_at + n->packed.bytes;
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
    a->weight = n->packed_target ? n->packed_weight : pointers[WEIGHT];
    if (n->packed_target && n->packed_slot < 0) {
        a->weight = (char *)a->workspace + n->packed_at;
        pack_experts(&n->packed, pointers[WEIGHT], (char *)a->workspace + n->packed_at);
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
    n->packed_target = &n->packed_weight;
    n->packed = (tn_packed_weight){.make = pack_experts,
                                   .bytes = (size_t)n->experts.experts * tn_qmat_packed_bytes(rows, k, dtype),
                                   .word = {dtype, rows, k, (int64_t)tn_native_byte_offset(w), n->experts.experts}};
    int slot = g->values[w->root].slot;
    if (tn_native_may_pack(g, slot)) {
        n->packed.replaces = true;
        n->packed_slot = slot;
        return TN_OK;
    }
    n->packed.word[PACKED_OFFSET] = 0; /* the address is the weight's */
    n->packed_at = (*workspace + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    *workspace = n->packed_at + n->packed.bytes;
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
