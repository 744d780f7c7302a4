/* op_linalg.c — products of matrices and vectors.
 *
 * One primitive carries them all: matmul_batched, C[…, m, n] = A[…, m, k] · B[…, k, n] with broadcast batch dimensions.
 * The planner gives it to a native kernel and joins its neighbours; its lowering here is the definition (an fma chain
 * over k, KIR_CHAIN) and the way of dtypes that have no kernel. Transposed operands are views and cost nothing. */
#include <string.h>

#include "ops/ops_common.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status shapes_do_not_fit(const tn_infer *c, const char *what) {
    char x[96], y[96];
    return tn_fail(TN_ERR_SHAPE, "%s: shapes %s and %s do not fit together: %s", c->row->name,
                   tn_shape_text(c->in[0], x, sizeof x), tn_shape_text(c->in[1], y, sizeof y), what);
}

static tn_status check_same_dtype(const tn_infer *c) {
    for (int i = 1; i < c->n_in; i++) {
        if (!c->in[i] || c->in[i]->dtype == c->in[0]->dtype) continue;
        return tn_fail(TN_ERR_DTYPE, "%s: dtypes %s and %s differ; cast one of them (tn_cast)", c->row->name,
                       tn_dtype_name((tn_dtype)c->in[0]->dtype), tn_dtype_name((tn_dtype)c->in[i]->dtype));
    }
    if (c->in[0]->dtype == TN_BOOL)
        return tn_fail(TN_ERR_DTYPE, "%s: bool is not supported; cast to an integer dtype", c->row->name);
    return TN_OK;
}

static tn_status check_rank(const tn_infer *c, int i, int rank, const char *name) {
    char x[96];
    if (c->in[i]->rank == rank) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: %s must have %d dimensions; it is %s", c->row->name, name, rank,
                   tn_shape_text(c->in[i], x, sizeof x));
}

/* The batch dimension `back` places before the last one of an operand with `tail` dimensions of its own; < 0: none. */
static int batch_dim(const tn_node *x, int tail, int back) { return x->rank - tail - 1 - back; }

static tn_status infer_batch(tn_infer *c, const tn_node *x, int x_tail, const tn_node *y, int y_tail, int *batch) {
    int xb = x->rank - x_tail, yb = y->rank - y_tail;
    *batch = xb > yb ? xb : yb;
    for (int back = 0; back < *batch; back++) {
        int xd = batch_dim(x, x_tail, back), yd = batch_dim(y, y_tail, back), to = *batch - 1 - back;
        if (yd < 0 || (xd >= 0 && y->shape[yd] == 1))
            tn_infer_dim_of(c, to, x, xd);
        else
            tn_infer_dim_of(c, to, y, yd);
        if (xd >= 0 && yd >= 0 && x->shape[xd] != y->shape[yd] && x->shape[xd] != 1 && y->shape[yd] != 1)
            return shapes_do_not_fit(c, "the batch dimensions do not broadcast");
    }
    return TN_OK;
}

/* torch.matmul: a vector on the left is a row, one on the right a column, and that dimension is dropped again. */
static tn_status infer_product(tn_infer *c) {
    const tn_node *x = c->in[0], *y = c->in[1];
    TRY(check_same_dtype(c));
    if (x->rank == 0 || y->rank == 0) return shapes_do_not_fit(c, "both must have at least one dimension");
    int x_tail = x->rank == 1 ? 1 : 2, y_tail = y->rank == 1 ? 1 : 2, batch = 0;
    if (x->shape[x->rank - 1] != y->shape[y->rank - y_tail])
        return shapes_do_not_fit(
            c, "the last dimension of the first must equal the second-to-last dimension of the second");
    TRY(infer_batch(c, x, x_tail, y, y_tail, &batch));
    c->rank = batch;
    c->dtype = (tn_dtype)x->dtype;
    if (x_tail == 2) tn_infer_dim_of(c, c->rank++, x, x->rank - 2);
    if (y_tail == 2) tn_infer_dim_of(c, c->rank++, y, y->rank - 1);
    return TN_OK;
}

/* ---- the primitive ----------------------------------------------------------------------------------------------- */

static tn_status infer_matmul_batched(tn_infer *c) {
    if (c->in[0]->rank < 2 || c->in[1]->rank < 2) return shapes_do_not_fit(c, "both must have at least two dimensions");
    return infer_product(c);
}

static int loops_matmul_batched(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->in[0]->shape[n->in[0]->rank - 1];
    return 1;
}

/* Batch indices of operand x for an index of the result. */
static void batch_index(const tn_node *n, const tn_node *x, const kir_aff *at, kir_aff *own) {
    for (int d = 0; d < x->rank - 2; d++)
        own[d] = x->shape[d] == 1 ? kir_aff_const(0) : at[n->rank - x->rank + d];
}

static kir_val lower_matmul_batched(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0], *y = n->in[1];
    kir_aff xi[TN_MAX_RANK], yi[TN_MAX_RANK];
    batch_index(n, x, at, xi);
    batch_index(n, y, at, yi);
    xi[x->rank - 2] = at[n->rank - 2];
    xi[x->rank - 1] = yi[y->rank - 2] = at[n->rank];
    yi[y->rank - 1] = at[n->rank - 1];
    bool outer = tn_is_outer_product(n);
    if (outer) xi[x->rank - 1] = yi[y->rank - 2] = kir_aff_const(0);
    kir_val a = tn_lower_at(lw, x, xi), b = tn_lower_at(lw, y, yi);
    if (outer) return kir_fma(lw->kb, a, b, kir_real(lw->kb, 0));
    if (tn_dtype_is_float((tn_dtype)n->dtype)) return kir_reduce_value(lw->kb, KIR_CHAIN, a, b);
    return kir_reduce_value(lw->kb, KIR_SUM, kir_mul(lw->kb, a, b), KIR_NONE);
}

/* Element offset of batch entry `flat` of the result in operand x. */
static int64_t reference_batch(const tn_node *n, const tn_node *x, int64_t flat) {
    int64_t offset = 0, step = x->shape[x->rank - 1] * x->shape[x->rank - 2];
    for (int d = n->rank - 3; d >= 0; d--) {
        int own = d - (n->rank - x->rank);
        int64_t i = flat % n->shape[d];
        flat /= n->shape[d];
        if (own < 0) continue;
        if (x->shape[own] != 1) offset += i * step;
        step *= x->shape[own];
    }
    return offset;
}

static void reference_matrix(const double *a, const double *b, double *c, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++)
                sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
}

static void reference_matmul_batched(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[0], *y = n->in[1];
    int64_t rows = n->shape[n->rank - 2], columns = n->shape[n->rank - 1], k = x->shape[x->rank - 1];
    int64_t batches = tn_product(n->shape, n->rank - 2);
    for (int64_t i = 0; i < batches; i++)
        reference_matrix(r->in[0] + reference_batch(n, x, i), r->in[1] + reference_batch(n, y, i),
                         r->out + i * rows * columns, rows, columns, k);
}

/* ---- its gradient ------------------------------------------------------------------------------------------------ */

static tn_node *transposed(tn_build *b, tn_node *x) { return tn_b_transpose(b, x, -2, -1); }

static bool same_batch(const tn_node *a, const tn_node *b) {
    return a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)(a->rank - 2) * sizeof *a->shape) == 0;
}

static int64_t batch_count(const tn_node *x) { return tn_product(x->shape, x->rank - 2); }

/* [batch…, m, n] as the matrix [batch · m, n]. */
static tn_node *linalg_rows_of(tn_build *b, tn_node *x) {
    int64_t columns = x->shape[x->rank - 1];
    return tn_b_reshape(b, x, (int64_t[]){batch_count(x) * x->shape[x->rank - 2], columns}, 2);
}

/* [batch…, m, n] as the matrix [m, batch · n]: a copy, unless the planner joins it to the product. */
static tn_node *linalg_columns_of(tn_build *b, tn_node *x) {
    int64_t dims[TN_MAX_RANK], rows = x->shape[x->rank - 2];
    dims[0] = x->rank - 2;
    for (int d = 0; d < x->rank - 2; d++)
        dims[1 + d] = d;
    dims[x->rank - 1] = x->rank - 1;
    return tn_b_reshape(b, tn_b_permute(b, x, dims, x->rank), (int64_t[]){rows, batch_count(x) * x->shape[x->rank - 1]},
                        2);
}

/* A shared left operand's gradient as one product over (batch, n) instead of one product a batch entry and their sum:
 * worth it when the products to be summed would be larger than the operands that are rearranged. */
static bool folding_left_pays(const tn_node *x, const tn_node *y, const tn_node *dy) {
    return batch_count(dy) * x->shape[x->rank - 2] * x->shape[x->rank - 1] > tn_node_numel(y) + tn_node_numel(dy);
}

static tn_node *left_gradient(tn_build *b, const tn_node *x, tn_node *y, tn_node *dy) {
    bool shared = batch_count(x) == 1 && batch_count(dy) > 1 && same_batch(y, dy);
    if (!shared || !folding_left_pays(x, y, dy)) return tn_b_sum_to(b, tn_b_matmul_batched(b, dy, transposed(b, y)), x);
    tn_node *g = tn_b_matmul_batched(b, linalg_columns_of(b, dy), transposed(b, linalg_columns_of(b, y)));
    return tn_b_view(b, g, x->shape, x->rank);
}

/* A shared right operand (the weights of a layer) takes the rows of all batch entries at once. */
static tn_node *right_gradient(tn_build *b, tn_node *x, const tn_node *y, tn_node *dy) {
    bool shared = batch_count(y) == 1 && batch_count(dy) > 1 && same_batch(x, dy);
    if (!shared) return tn_b_sum_to(b, tn_b_matmul_batched(b, transposed(b, x), dy), y);
    tn_node *g = tn_b_matmul_batched(b, transposed(b, linalg_rows_of(b, x)), linalg_rows_of(b, dy));
    return tn_b_view(b, g, y->shape, y->rank);
}

static void grad_matmul_batched(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *y = n->in[1];
    if (x->flags & TN_NODE_GRAD) grads[0] = left_gradient(b, x, y, dy);
    if (y->flags & TN_NODE_GRAD) grads[1] = right_gradient(b, x, y, dy);
}

/* matmul_batched(x, y): matrix product of the last two dimensions, the others broadcast together. */
OP_CODE(matmul_batched, .facts = TN_FACT_VENDOR_PRODUCT, .class_ = TN_MATMUL, .reduce = KIR_CHAIN,
        .infer = infer_matmul_batched, .grad = grad_matmul_batched, .lower = lower_matmul_batched,
        .loops = loops_matmul_batched, .reference = reference_matmul_batched, .flops = 2,
        .cases = "types=f32,f64,i32,i64 tol=4e-6 atol=4e-6; [3,4] [4,5]; [2,3,4] [4,2]; [3,1,2,4] [2,4,3]; "
                 "[2,3] [5,3,2]; [1,1] [1,1]; [2,0] [0,3]; [0,3] [3,2]; [2,300] [300,2] grad=off; "
                 "error=dtypes [2,2]:f32 [2,2]:f64; error=last [2,3] [4,2]; error=broadcast [2,2,3] [3,3,2]; "
                 "error=two [3] [3,2]");

/* ---- sums that are not rounded yet ------------------------------------------------------------------------------- */

static tn_status infer_matmul_wide(tn_infer *c) {
    for (int i = 0; i < 2; i++)
        if (!tn_dtype_is_half(c->in[i]->dtype)) return tn_refuse_dtype(c, i, "f16 or bf16");
    TRY(infer_matmul_batched(c));
    c->dtype = TN_F32;
    return TN_OK;
}

/* The gradient is f32 and need not fit a half: these products are of f32, and rounded once. */
static void grad_matmul_wide(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = tn_b_cast(b, n->in[0], TN_F32), *y = tn_b_cast(b, n->in[1], TN_F32);
    if (!x || !y) return;
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_cast_like(b, left_gradient(b, x, y, dy), n->in[0]);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_cast_like(b, right_gradient(b, x, y, dy), n->in[1]);
}

/* matmul_wide(x, y): matmul_batched of f16 or bf16 that returns f32 sums, for ops that add to them before rounding. */
OP_CODE(matmul_wide, .facts = TN_FACT_WIDE_PRODUCT, .class_ = TN_MATMUL, .reduce = KIR_CHAIN,
        .infer = infer_matmul_wide, .grad = grad_matmul_wide, .lower = lower_matmul_batched,
        .loops = loops_matmul_batched, .reference = reference_matmul_batched, .flops = 2,
        .cases = "types=f16,bf16 tol=4e-6 atol=4e-6; [3,4] [4,5]; [2,3,4] [4,2]; [3,1,2,4] [2,4,3]; [2,3] [5,3,2]; "
                 "[1,1] [1,1]; [2,0] [0,3]; [0,3] [3,2]; [40,300] [300,33]; error=f16 [2,2]:f32 [2,2]; "
                 "error=dtypes [2,2]:f16 [2,2]:bf16; error=last [2,3] [4,2]; error=two [3] [3,2]");

/* ---- the everyday names ------------------------------------------------------------------------------------------ */

static tn_node *as_matrix(tn_build *b, tn_node *x, bool column) {
    if (x->rank > 1) return x;
    return tn_b_view(b, x, column ? (int64_t[]){x->shape[0], 1} : (int64_t[]){1, x->shape[0]}, 2);
}

static tn_node *compose_matmul(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *y = n->in[1], *attention = tn_attention_of_product(b, n);
    if (attention) return attention;
    tn_node *product = tn_b_matmul_batched(b, as_matrix(b, x, false), as_matrix(b, y, true));
    return x->rank > 1 && y->rank > 1 ? product : tn_b_view(b, product, n->shape, n->rank);
}

/* matmul(x, y): matrix product, as torch.matmul: two vectors give their dot product, a vector and a matrix a vector,
 * and with more dimensions the leading ones are batch dimensions, which broadcast. */
OP_CODE(matmul, .keeps_half = true, .infer = infer_product, .compose = compose_matmul,
        .cases = "tol=4e-6 atol=4e-6; [5] [5]; [4] [4,3]; [3,4] [4]; [3,4] [4,2]; [2,3,4] [4,5]; [4] [2,4,3]; "
                 "[2,3,4] [4]; [0] [0]; error=one [] [3]; error=last [2,3] [2,3]");

static tn_node *compose_product(tn_build *b, const tn_node *n) {
    tn_node *attention = tn_attention_of_product(b, n);
    return attention ? attention : tn_b_matmul_batched(b, n->in[0], n->in[1]);
}

static tn_status infer_mm(tn_infer *c) {
    TRY(check_rank(c, 0, 2, "the first matrix"));
    TRY(check_rank(c, 1, 2, "the second matrix"));
    return infer_product(c);
}

/* mm(x, y): product of two matrices, without broadcasting. */
OP_CODE(mm, .keeps_half = true, .infer = infer_mm, .compose = compose_product,
        .cases = "tol=4e-6 atol=4e-6; [3,4] [4,5]; [17,3] [3,1]; error=dimensions [3] [3,2]; "
                 "error=dimensions [2,3,4] [4,2]");

static tn_status infer_int_mm(tn_infer *c) {
    TRY(check_rank(c, 0, 2, "the first matrix"));
    TRY(check_rank(c, 1, 2, "the second matrix"));
    for (int i = 0; i < 2; i++)
        if (c->in[i]->dtype != TN_I8 && c->in[i]->dtype != TN_U8)
            return tn_fail(TN_ERR_DTYPE, "int_mm: the matrices must be i8 or u8; one is %s",
                           tn_dtype_name((tn_dtype)c->in[i]->dtype));
    if (c->in[0]->shape[1] != c->in[1]->shape[0])
        return shapes_do_not_fit(c, "the last dimension of the first must equal the first dimension of the second");
    c->rank = 2;
    c->dtype = TN_I32;
    tn_infer_dim_of(c, 0, c->in[0], 0);
    tn_infer_dim_of(c, 1, c->in[1], 1);
    return TN_OK;
}

/* int_mm(x, y): matrix product of i8 or u8 matrices (they may differ), accumulated in i32, exact modulo 2^32
 * (torch._int_mm takes only i8). */
OP_CODE(int_mm, .facts = TN_FACT_INT_PRODUCT, .class_ = TN_MATMUL, .reduce = KIR_SUM, .infer = infer_int_mm,
        .lower = lower_matmul_batched, .loops = loops_matmul_batched, .reference = reference_matmul_batched, .flops = 2,
        .cases = "types=i8,u8; [3,4] [4,5]; [17,300] [300,33]; [1,7]:u8 [7,2]:i8; [2,0] [0,3]; [0,3] [3,2]; "
                 "error=i8 [2,2]:f32 [2,2]; error=first [2,3] [4,2]; error=dimensions [2] [2,2]");

static tn_status infer_quantized_mm(tn_infer *c) {
    TRY(infer_int_mm(c));
    return tn_infer_rounding(c, c->shape[1], c->attrs->i[TN_QUANTIZED_MM_ZERO]);
}

static tn_node *compose_quantized_mm(tn_build *b, const tn_node *n) {
    return tn_b_rounded(b, tn_b_int_mm(b, n->in[0], n->in[1]), n->in[2], n->in[3], n->i[TN_QUANTIZED_MM_ZERO],
                        (tn_dtype)n->dtype);
}

static void reference_quantized_mm(const tn_reference *r) {
    const int64_t columns = r->node->shape[1];
    reference_matmul_batched(r);
    for (int64_t i = 0; i < r->node->shape[0] * columns; i++) {
        const float sum = (float)(r->out[i] + r->in[2][i % columns]) * (float)r->in[3][i % columns];
        r->out[i] = tn_reference_byte(sum, r->node->i[TN_QUANTIZED_MM_ZERO], r->node->dtype == TN_I8);
    }
}

/* quantized_mm(x, y, bias, scale, zero): int_mm's sums as bytes of x's dtype: round((sum + bias) · scale) + zero,
 * saturated, NaN as the least one; the sums are i32, the rest f32, rounded to the nearest number, ties to even. bias
 * (i32) and scale (f32) have a number for each column. */
OP_CODE(quantized_mm, .class_ = TN_NATIVE, .infer = infer_quantized_mm, .contiguous = 1 << 2 | 1 << 3,
        .compose = compose_quantized_mm, .reference = reference_quantized_mm,
        .cases =
            "types=i8,u8 grad=off; [3,4] [4,5] [5]:i32 [5]:f32@0..1 zero=7; "
            "[17,300]:u8 [300,133]:i8 [133]:i32 [133]:f32@0..1 zero=128; [1,7]:u8 [7,2]:i8 [2]:i32 [2]:f32@0..1; "
            "[0,3] [3,2] [2]:i32 [2]:f32; [2,0] [0,3] [3]:i32 [3]:f32@0..1; error=one [2,2] [2,2] [3]:i32 [2]:f32; "
            "error=i32 [2,2] [2,2] [2]:f32 [2]:f32; error=zero [2,2]:u8 [2,2] [2]:i32 [2]:f32 zero=-1");

static tn_status infer_bmm(tn_infer *c) {
    TRY(check_rank(c, 0, 3, "the first batch"));
    TRY(check_rank(c, 1, 3, "the second batch"));
    if (c->in[0]->shape[0] != c->in[1]->shape[0]) return shapes_do_not_fit(c, "both batches must have equal length");
    return infer_product(c);
}

/* bmm(x, y): products of two batches of matrices, [b, m, k] and [b, k, n], without broadcasting. */
OP_CODE(bmm, .keeps_half = true, .infer = infer_bmm, .compose = compose_product,
        .cases = "tol=4e-6 atol=4e-6; [2,3,4] [2,4,2]; error=equal [2,3,4] [1,4,2]; error=dimensions [3,4] [4,2]");

static tn_status infer_mv(tn_infer *c) {
    TRY(check_rank(c, 0, 2, "the matrix"));
    TRY(check_rank(c, 1, 1, "the vector"));
    return infer_product(c);
}

/* mv(x, y): product of a matrix and a vector. */
OP_CODE(mv, .keeps_half = true, .infer = infer_mv, .compose = compose_matmul,
        .cases = "tol=4e-6 atol=4e-6; [3,4] [4]; [0,4] [4]; error=dimensions [3,4] [4,1]");

static tn_status infer_dot(tn_infer *c) {
    TRY(check_rank(c, 0, 1, "the first vector"));
    TRY(check_rank(c, 1, 1, "the second vector"));
    return infer_product(c);
}

/* dot(x, y): Σ x·y of two vectors. */
OP_CODE(dot, .keeps_half = true, .infer = infer_dot, .compose = compose_matmul,
        .cases = "tol=4e-6 atol=4e-6; [7] [7]; [0] [0]; error=last [3] [4]");

static tn_status infer_outer(tn_infer *c) {
    TRY(check_rank(c, 0, 1, "the first vector"));
    TRY(check_rank(c, 1, 1, "the second vector"));
    c->dtype = (tn_dtype)c->in[0]->dtype;
    c->rank = 2;
    tn_infer_dim_of(c, 0, c->in[0], 0);
    tn_infer_dim_of(c, 1, c->in[1], 0);
    return TN_OK;
}

static tn_node *compose_outer(tn_build *b, const tn_node *n) {
    return tn_b_mul(b, tn_b_view(b, n->in[0], (int64_t[]){n->shape[0], 1}, 2), n->in[1]);
}

/* outer(x, y): x[i]·y[j] of two vectors. */
OP_CODE(outer, .keeps_half = true, .promote = true, .infer = infer_outer, .compose = compose_outer,
        .cases = "types=f32,f64,i32; [3] [4]; [0] [2]; error=dimensions [2,2] [2]");

/* ---- linear ------------------------------------------------------------------------------------------------------ */

static bool weight_is_quantized(const tn_node *w) { return tn_dtype_is_quantized((tn_dtype)w->dtype); }

/* A weight quantized in blocks, or in half precision with x in f32, is multiplied as it is stored. */
static bool weight_is_stored(const tn_node *x, const tn_node *w) {
    return weight_is_quantized(w) || (x->dtype == TN_F32 && (w->dtype == TN_F16 || w->dtype == TN_BF16));
}

/* Everything around such a weight is f32. */
static tn_status check_stored(const tn_infer *c) {
    for (int i = 0; i < c->n_in; i++) {
        if (i == 1 || !c->in[i] || c->in[i]->dtype == TN_F32) continue;
        return tn_fail(TN_ERR_DTYPE, "linear: with a %s weight, %s must be f32; it is %s: cast it (tn_cast)",
                       tn_dtype_name((tn_dtype)c->in[1]->dtype), i == 0 ? "x" : "the bias",
                       tn_dtype_name((tn_dtype)c->in[i]->dtype));
    }
    return TN_OK;
}

/* A weight [in] is one row: the result has no features. */
static tn_status infer_linear_row(tn_infer *c) {
    const tn_node *x = c->in[0], *w = c->in[1], *bias = c->in[2];
    char text[96];
    if (x->rank < 1 || x->shape[x->rank - 1] != w->shape[0])
        return shapes_do_not_fit(c, "the input's last dimension must equal the weight's [in]");
    if (bias && bias->rank != 0)
        return tn_fail(TN_ERR_SHAPE, "linear: the bias of a weight [in] must have no dimensions; it is %s",
                       tn_shape_text(bias, text, sizeof text));
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank - 1;
    for (int d = 0; d < c->rank; d++)
        tn_infer_dim_of(c, d, x, d);
    return TN_OK;
}

static tn_status infer_linear(tn_infer *c) {
    const tn_node *x = c->in[0], *w = c->in[1], *bias = c->in[2];
    bool stored = weight_is_stored(x, w);
    TRY(stored ? check_stored(c) : check_same_dtype(c));
    if (!stored && w->rank == 1) return infer_linear_row(c);
    TRY(check_rank(c, 1, 2, "the weight"));
    if (weight_is_quantized(w)) TRY(tn_need_rows(c, 1));
    if (x->rank < 1 || x->shape[x->rank - 1] != w->shape[1])
        return shapes_do_not_fit(c, "the input's last dimension must equal the weight's second [out, in]");
    if (bias && (bias->rank != 1 || bias->shape[0] != w->shape[0])) {
        char text[96];
        return tn_fail(TN_ERR_SHAPE, "linear: the bias must be [%lld]; it is %s", (long long)w->shape[0],
                       tn_shape_text(bias, text, sizeof text));
    }
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank;
    for (int d = 0; d < x->rank - 1; d++)
        tn_infer_dim_of(c, d, x, d);
    tn_infer_dim_of(c, x->rank - 1, w, 0);
    return TN_OK;
}

static tn_node *compose_linear_stored(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *rows = as_matrix(b, x, false);
    if (rows && rows->rank > 2) rows = linalg_rows_of(b, rows);
    int64_t offset, stride[TN_MAX_RANK];
    if (!rows) return NULL;
    tn_node_layout(rows, &offset, stride);
    if (stride[1] != 1 && rows->shape[1] > 1) rows = tn_b_contiguous(b, rows);
    tn_node *w = n->in[1], *product;
    if (weight_is_quantized(w))
        product = tn_b_linear_quantized(b, rows, w);
    else
        product = tn_b_linear_half(b, rows, tn_rows_follow(w) ? w : tn_b_contiguous(b, w));
    if (x->rank != 2) product = tn_b_view(b, product, n->shape, n->rank);
    return n->in[2] ? tn_b_add(b, product, n->in[2]) : product;
}

/* x·y, in f32 for halves to which something `is_added`: their sum is rounded once. */
static tn_node *unrounded(tn_build *b, tn_node *x, tn_node *y, bool is_added) {
    if (!x || !y) return NULL;
    bool wide = is_added && tn_dtype_is_half(x->dtype);
    return wide ? tn_b_matmul_wide(b, x, y) : tn_b_matmul_batched(b, x, y);
}

static tn_node *compose_linear(tn_build *b, const tn_node *n) {
    if (weight_is_stored(n->in[0], n->in[1])) return compose_linear_stored(b, n);
    tn_node *x = n->in[0], *w = n->in[1];
    tn_node *columns = w->rank == 1 ? as_matrix(b, w, true) : transposed(b, w);
    tn_node *product = unrounded(b, as_matrix(b, x, false), columns, n->in[2] != NULL);
    if (x->rank == 1 || w->rank == 1) product = tn_b_view(b, product, n->shape, n->rank);
    if (!n->in[2]) return product;
    return tn_b_cast_like(b, tn_b_add(b, product, tn_b_as_f32(b, n->in[2])), x);
}

static void grad_linear(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *w = n->in[1], *bias = n->in[2];
    if (w->rank == 1) {
        tn_node *each = tn_b_unsqueeze(b, dy, -1);
        if (tn_needs_grad(n, 0)) grads[0] = tn_b_mul(b, each, w);
        if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_mul(b, each, x), w);
        if (tn_needs_grad(n, 2)) grads[2] = tn_b_sum_to(b, dy, bias);
        return;
    }
    tn_node *dy2 = as_matrix(b, dy, false), *x2 = as_matrix(b, x, false);
    if (!dy2 || !x2) return;
    if (x->flags & TN_NODE_GRAD) {
        tn_node *dx = tn_b_matmul_batched(b, dy2, tn_b_cast_like(b, w, x));
        grads[0] = x->rank == 1 ? tn_b_view(b, dx, x->shape, x->rank) : dx;
    }
    if (w->flags & TN_NODE_GRAD) {
        if (x->rank > 2) {
            dy2 = linalg_rows_of(b, dy2);
            x2 = linalg_rows_of(b, x2);
        }
        grads[1] = tn_b_cast_like(b, tn_b_matmul_batched(b, transposed(b, dy2), x2), w);
    }
    if (bias && (bias->flags & TN_NODE_GRAD)) grads[2] = tn_b_sum_to(b, dy, bias);
}

/* linear(x, weight, bias): x·weightᵀ + bias; x [..., in], weight [out, in], bias [out] or NULL; or weight [in], bias
 * [] or NULL. With a weight quantized in blocks, x, bias and the result are f32; blocks of 32 elements of x are rounded
 * to eight bits, the weight is not dequantized, and gradients go only to x and bias. With a weight in f16 or bf16 and x
 * in f32 the same holds, and x is not rounded. */
OP_CODE(
    linear, .keeps_half = true, .quantized = 2, .infer = infer_linear, .compose = compose_linear, .grad = grad_linear,
    .cases = "tol=4e-6 atol=4e-6; [3,4] [5,4] [5]; [2,3,4] [2,4] -; [4] [3,4] [3]; [0,4] [3,4] [3]; "
             "[3,4] [4] -; [2,3,4] [4] []; [4] [4] -; error=weight [3,4] [3] -; error=bias [3,4] [4] [1]; "
             "error=weight [3,4] [4,3] -; error=bias [3,4] [2,4] [3]; error=dtypes [3,4]:f32 [2,4]:f64 -; "
             "error= types=f32 atol=2e-5; [3,64] [5,64]:q4_1 [5]; [2,2,32] [3,32]:q8_0 -; [256] [2,256]:q6_k [2]; "
             "[3,6] [5,6]:f16 [5]; [6] [2,6]:bf16 -; error=f32 [2,32]:f64 [3,32]:q4_0 -; error=bias [2,32] [3,32]:q4_0 "
             "[3]:f64");

/* ---- products with factors --------------------------------------------------------------------------------------- */

static tn_node *linalg_scaled(tn_build *b, tn_node *x, double factor) {
    return factor == 1.0 ? x : tn_b_scale(b, x, factor);
}

/* n's result, beta·addend + alpha·x·y; as in PyTorch, an addend with factor 0 is not even read (its NaNs do not
 * count). Halves are rounded once. */
static tn_node *combine(tn_build *b, const tn_node *n, tn_node *x, tn_node *y, double alpha, tn_node *addend,
                        double beta) {
    bool adds = addend && beta != 0.0;
    tn_node *product = unrounded(b, x, y, adds || alpha != 1.0);
    if (product && product->rank != n->rank) product = tn_b_view(b, product, n->shape, n->rank);
    product = linalg_scaled(b, product, alpha);
    if (adds) product = tn_b_add(b, product, linalg_scaled(b, tn_b_as_f32(b, addend), beta));
    return tn_b_cast_like(b, product, n->in[0]);
}

static tn_status check_addend(const tn_infer *c, const tn_node *addend) {
    char is[96], want[96];
    int skip = c->rank - addend->rank;
    bool fits = skip >= 0;
    for (int d = 0; fits && d < addend->rank; d++)
        fits = addend->shape[d] == 1 || addend->shape[d] == c->shape[skip + d];
    tn_node result = {.rank = (uint8_t)c->rank};
    memcpy(result.shape, c->shape, sizeof result.shape);
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the addend %s does not broadcast to the product %s", c->row->name,
                   tn_shape_text(addend, is, sizeof is), tn_shape_text(&result, want, sizeof want));
}

/* Integers: factors are truncated, and must be in the dtype's range. */
static tn_status need_factors(const tn_infer *c, double alpha, double beta) {
    TRY(tn_need_held(c, (tn_dtype)c->in[0]->dtype, "alpha", alpha));
    return tn_need_held(c, (tn_dtype)c->in[0]->dtype, "beta", beta);
}

/* input, x, y with the product of x and y by `rule`. */
static tn_status infer_added(tn_infer *c, tn_status (*rule)(tn_infer *)) {
    TRY(check_same_dtype(c));
    TRY(need_factors(c, c->attrs->f[TN_ADDMM_ALPHA], c->attrs->f[TN_ADDMM_BETA])); /* baddbmm: the same places */
    tn_infer product = *c;
    product.in = c->in + 1;
    product.n_in = 2;
    TRY(rule(&product));
    c->dtype = product.dtype;
    c->rank = product.rank;
    memcpy(c->shape, product.shape, sizeof c->shape);
    memcpy(c->symbol, product.symbol, sizeof c->symbol);
    return check_addend(c, c->in[0]);
}

static tn_status infer_addmm(tn_infer *c) { return infer_added(c, infer_mm); }
static tn_status infer_baddbmm(tn_infer *c) { return infer_added(c, infer_bmm); }

static tn_node *compose_addmm(tn_build *b, const tn_node *n) {
    return combine(b, n, n->in[1], n->in[2], n->f[TN_ADDMM_ALPHA], n->in[0], n->f[TN_ADDMM_BETA]);
}

/* addmm(input, x, y, beta, alpha): beta·input + alpha·(x·y) of two matrices; input broadcasts to the product. */
OP_CODE(addmm, .keeps_half = true, .infer = infer_addmm, .compose = compose_addmm,
        .cases = "tol=4e-6 atol=4e-6; [3] [2,4] [4,3] beta=0.5 alpha=-2; [2,1] [2,4] [4,3] beta=1 alpha=1; "
                 "[2,3] [2,4] [4,3] beta=0 alpha=1; error=broadcast [2] [2,4] [4,3] beta=1 alpha=1");

/* baddbmm(input, x, y, beta, alpha): beta·input + alpha·(x·y) of two batches of matrices;
 * input broadcasts to the product. */
OP_CODE(baddbmm, .keeps_half = true, .infer = infer_baddbmm, .compose = compose_addmm,
        .cases = "tol=4e-6 atol=4e-6; [2,2] [3,2,4] [3,4,2] beta=2 alpha=0.5; "
                 "error=equal [2,2] [3,2,4] [2,4,2] beta=1 alpha=1");

static int64_t side(const tn_node *x, bool transpose, int dim) { return x->shape[transpose ? 1 - dim : dim]; }

static tn_status infer_gemm(tn_infer *c) {
    const tn_node *x = c->in[0], *y = c->in[1];
    bool tx = c->attrs->i[TN_GEMM_TRANS_X], ty = c->attrs->i[TN_GEMM_TRANS_Y];
    TRY(check_same_dtype(c));
    TRY(need_factors(c, c->attrs->f[TN_GEMM_ALPHA], c->attrs->f[TN_GEMM_BETA]));
    TRY(check_rank(c, 0, 2, "x"));
    TRY(check_rank(c, 1, 2, "y"));
    if (side(x, tx, 1) != side(y, ty, 0))
        return shapes_do_not_fit(c, "after transposing, the columns of x must equal the rows of y");
    c->dtype = (tn_dtype)x->dtype;
    c->rank = 2;
    tn_infer_dim_of(c, 0, x, tx ? 1 : 0);
    tn_infer_dim_of(c, 1, y, ty ? 0 : 1);
    return c->in[2] ? check_addend(c, c->in[2]) : TN_OK;
}

static tn_node *compose_gemm(tn_build *b, const tn_node *n) {
    tn_node *x = n->i[TN_GEMM_TRANS_X] ? transposed(b, n->in[0]) : n->in[0];
    tn_node *y = n->i[TN_GEMM_TRANS_Y] ? transposed(b, n->in[1]) : n->in[1];
    return combine(b, n, x, y, n->f[TN_GEMM_ALPHA], n->in[2], n->f[TN_GEMM_BETA]);
}

/* gemm(x, y, addend, alpha, beta, trans_x, trans_y): alpha·op(x)·op(y) + beta·addend, where op transposes if requested;
 * addend is NULL or broadcasts to the product. BLAS's gemm without its output argument; ONNX Gemm. */
OP_CODE(gemm, .keeps_half = true, .infer = infer_gemm, .compose = compose_gemm,
        .cases = "tol=4e-6 atol=4e-6; [4,2] [3,4] [3] alpha=0.5 beta=2 trans_x=true trans_y=true; "
                 "[2,4] [4,3] - alpha=1 beta=0 trans_x=false trans_y=false; "
                 "[4,2] [4,3] [2,1] alpha=1 beta=-1 trans_x=true trans_y=false; "
                 "error=transposing [2,4] [4,3] - alpha=1 beta=1 trans_x=true trans_y=false");

static tn_status infer_gemv(tn_infer *c) {
    const tn_node *a = c->in[0], *x = c->in[1];
    bool trans = c->attrs->i[TN_GEMV_TRANS];
    TRY(check_same_dtype(c));
    TRY(need_factors(c, c->attrs->f[TN_GEMV_ALPHA], c->attrs->f[TN_GEMV_BETA]));
    TRY(check_rank(c, 0, 2, "the matrix"));
    TRY(check_rank(c, 1, 1, "x"));
    if (side(a, trans, 1) != x->shape[0])
        return shapes_do_not_fit(c, "after transposing, the columns of the matrix must equal the length of x");
    c->dtype = (tn_dtype)a->dtype;
    c->rank = 1;
    tn_infer_dim_of(c, 0, a, trans ? 1 : 0);
    return c->in[2] ? check_addend(c, c->in[2]) : TN_OK;
}

static tn_node *compose_gemv(tn_build *b, const tn_node *n) {
    tn_node *a = n->i[TN_GEMV_TRANS] ? transposed(b, n->in[0]) : n->in[0];
    return combine(b, n, a, as_matrix(b, n->in[1], true), n->f[TN_GEMV_ALPHA], n->in[2], n->f[TN_GEMV_BETA]);
}

/* gemv(matrix, x, addend, alpha, beta, trans): alpha·op(matrix)·x + beta·addend, where op transposes if requested;
 * addend is NULL or broadcasts to the product. BLAS's gemv without its output argument. */
OP_CODE(gemv, .keeps_half = true, .infer = infer_gemv, .compose = compose_gemv,
        .cases = "tol=4e-6 atol=4e-6; [4,2] [4] [2] alpha=3 beta=-1 trans=true; "
                 "[3,2] [2] - alpha=1 beta=0 trans=false; error=transposing [3,2] [3] - alpha=1 beta=0 trans=false");

/* ---- trace, cosine_similarity ------------------------------------------------------------------------------------ */

static tn_status infer_trace(tn_infer *c) {
    TRY(check_rank(c, 0, 2, "the matrix"));
    tn_dtype t = (tn_dtype)c->in[0]->dtype;
    c->dtype = tn_dtype_is_float(t) ? t : TN_I64;
    c->rank = 0;
    return TN_OK;
}

/* The diagonal of a matrix is every (columns + 1)-th of its elements in order. */
static tn_node *compose_trace(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    int64_t rows = x->shape[0], columns = x->shape[1], length = tn_min64(rows, columns);
    tn_node *flat = tn_b_reshape(b, x, (int64_t[]){rows * columns}, 1);
    tn_node *diagonal = tn_b_slice(b, flat, 0, 0, length ? (length - 1) * (columns + 1) + 1 : 0, columns + 1);
    return tn_b_sum(b, diagonal, TN_ALL, false);
}

/* trace(x): Σ x[i, i] of a matrix; integers give i64. */
OP_CODE(trace, .keeps_half = true, .infer = infer_trace, .compose = compose_trace,
        .cases = "types=f32,f64,i32 tol=4e-6 atol=4e-6; [3,5]; [4,2]; [1,1]; [0,3]; error=dimensions [3]");

static tn_status infer_cosine_similarity(tn_infer *c) {
    TRY(tn_need_range(c, "eps", c->attrs->f[TN_COSINE_SIMILARITY_EPS], 0, INFINITY));
    TRY(tn_infer_broadcast(c));
    if (!tn_dtype_is_float(c->dtype))
        return tn_fail(TN_ERR_DTYPE, "cosine_similarity: the tensors must be floating point");
    int64_t *dim = &c->attrs->i[TN_COSINE_SIMILARITY_DIM];
    TRY(tn_infer_dim(c, *dim, c->rank, dim));
    if (c->rank == 0) return TN_OK;
    for (int d = (int)*dim; d + 1 < c->rank; d++) {
        c->shape[d] = c->shape[d + 1];
        c->symbol[d] = c->symbol[d + 1];
    }
    c->rank--;
    return TN_OK;
}

static tn_node *clamped_norm(tn_build *b, tn_node *x, const int64_t *dim, double eps) {
    tn_node *norm = tn_b_norm(b, x, 2, dim, 1, false);
    return tn_b_maximum(b, norm, tn_b_const(b, eps, norm));
}

/* PyTorch broadcasts before it takes norms: with an extent of 1 along dim that is a difference. */
static tn_node *compose_cosine_similarity(tn_build *b, const tn_node *n) {
    const int64_t *dim = &n->i[TN_COSINE_SIMILARITY_DIM];
    double eps = n->f[TN_COSINE_SIMILARITY_EPS];
    tn_node *product = tn_b_mul(b, n->in[0], n->in[1]);
    if (!product) return NULL;
    tn_node *x = tn_b_expand(b, n->in[0], product->shape, product->rank);
    tn_node *y = tn_b_expand(b, n->in[1], product->shape, product->rank);
    tn_node *norms = tn_b_mul(b, clamped_norm(b, x, dim, eps), clamped_norm(b, y, dim, eps));
    return tn_b_div(b, tn_b_sum(b, product, dim, 1, false), norms);
}

/* cosine_similarity(x, y, dim, eps): x·y / (max(‖x‖, eps)·max(‖y‖, eps)) along dim, after broadcasting. */
OP_CODE(
    cosine_similarity, .promote = true, .infer = infer_cosine_similarity, .compose = compose_cosine_similarity,
    .cases =
        "tol=8e-6 atol=4e-6; [3,5]@0.5..2 [3,5]@-2..-0.5 dim=1 eps=1e-8; "
        "[3,5]@0.5..2 [5]@0.5..2 dim=-1 eps=1e-6; [3,5]@0.5..2 [3,1]@0.5..2 dim=0 eps=1e-6; "
        "[]@0.5..2 []@-2..-0.5 dim=0 eps=1e-8; []@0.5..2 []@0.5..2 dim=-1 eps=1e-8; error=range [] [] dim=1 eps=1e-8; "
        "error=range [3] [3] dim=1 eps=1e-8; error= types=f16,bf16 tol=1ulp atol=0; [3,40]@100..300 "
        "[3,40]@100..300 dim=1 eps=1e-8");
