/* op_factor.c — linear systems, factorizations, determinants, eigenvalues and singular values.
 *
 * One primitive per factorization computes all of its results into one tensor, for batches of matrices. The functions
 * with PyTorch's names are views of that tensor; those with several results are in trunnion/linalg.h. Only the CPU has
 * these kernels (cpu/linalg.h states what they return, including signs); for other devices the host computes them.
 * Gradients follow from implicit differentiation and use products and solves. They exist where the result is smooth:
 * distinct eigenvalues or singular values, full rank for QR.
 *
 * The f64 references use other algorithms than the kernels, so that both do not share a mistake: complete pivoting,
 * Gram-Schmidt, Jacobi rotations. */
#include <math.h>
#include <string.h>

#include "cpu/linalg.h"
#include "ops/ops_common.h"
#include "trunnion/linalg.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static int64_t factor_rows_of(const tn_node *x) { return x->shape[x->rank - 2]; }
static int64_t factor_columns_of(const tn_node *x) { return x->shape[x->rank - 1]; }
static int64_t shorter(const tn_node *x) { return tn_min64(factor_rows_of(x), factor_columns_of(x)); }

static tn_status check_matrix(const char *name, const tn_node *x, bool square) {
    char text[96];
    if (x->dtype != TN_F32 && x->dtype != TN_F64)
        return tn_fail(TN_ERR_DTYPE, "%s: only f32 and f64 are supported, not %s; cast it (tn_cast)", name,
                       tn_dtype_name((tn_dtype)x->dtype));
    if (x->rank >= 2 && (!square || factor_rows_of(x) == factor_columns_of(x))) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: requires %s, or a batch of such, not %s", name,
                   square ? "a square matrix" : "a matrix", tn_shape_text(x, text, sizeof text));
}

/* The batch of in[0], then `tail` dimensions. */
static tn_status batch_and(tn_infer *c, const int64_t *tail, int count) {
    const tn_node *x = c->in[0];
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank - 2;
    for (int d = 0; d < c->rank; d++) {
        c->shape[d] = x->shape[d];
        c->symbol[d] = x->symbol[d];
    }
    for (int i = 0; i < count; i++)
        c->shape[c->rank++] = tail[i];
    return TN_OK;
}

static tn_status infer_packed(tn_infer *c, tn_linalg_kind kind, bool square) {
    TRY(check_matrix(c->row->name, c->in[0], square));
    return batch_and(c, (int64_t[]){tn_linalg_result(kind, factor_rows_of(c->in[0]), factor_columns_of(c->in[0]), 0)},
                     1);
}

static tn_status infer_square(tn_infer *c) {
    TRY(check_matrix(c->row->name, c->in[0], true));
    return tn_infer_same(c);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static tn_node *factor_turned(tn_build *b, tn_node *x) { return x ? tn_b_transpose(b, x, -2, -1) : NULL; }
static tn_node *times(tn_build *b, tn_node *x, tn_node *y) { return x && y ? tn_b_matmul_batched(b, x, y) : NULL; }
static tn_node *left_times(tn_build *b, tn_node *x, tn_node *y) { return times(b, factor_turned(b, x), y); } /* xᵀ·y */
static tn_node *times_right(tn_build *b, tn_node *x, tn_node *y) { return times(b, x, factor_turned(b, y)); } /* x·yᵀ */
static tn_node *systems(tn_build *b, tn_node *a, tn_node *rhs) {
    return tn_b_linalg_solve_systems(b, tn_b_row_major(b, a), tn_b_row_major(b, rhs));
}

static tn_node *factor_identity(tn_build *b, const tn_node *like) {
    if (b->status != TN_OK || !like) return NULL;
    tn_node *one = tn_b_eye(b, factor_columns_of(like), factor_columns_of(like), (tn_dtype)like->dtype);
    if (one) one->device = like->device;
    return one;
}

/* [batch…, n] as the diagonal of matrices. */
static tn_node *diagonal_of(tn_build *b, tn_node *x) {
    tn_node *row = x ? tn_b_unsqueeze(b, x, -2) : NULL;
    return row ? tn_b_mul(b, row, factor_identity(b, row)) : NULL;
}

static tn_node *symmetric(tn_build *b, tn_node *x) {
    return tn_b_scale(b, x ? tn_b_add(b, x, factor_turned(b, x)) : NULL, 0.5);
}

/* Elements [start, start + rows·columns) of the last dimension as a matrix. */
static tn_node *matrix_at(tn_build *b, tn_node *packed, int64_t start, int64_t rows, int64_t columns) {
    tn_node *flat = packed ? tn_b_narrow(b, packed, -1, start, rows * columns) : NULL;
    return flat ? tn_b_unflatten(b, flat, -1, (int64_t[]){rows, columns}, 2) : NULL;
}

/* ---- definitions in f64 ------------------------------------------------------------------------------------------ */

typedef struct batch {
    const tn_node *x;
    int64_t count, m, n;
} batch;

static batch batch_of(const tn_reference *r) {
    const tn_node *x = r->node->in[0];
    int64_t count = tn_product(x->shape, x->rank - 2);
    return (batch){.x = x, .count = count, .m = factor_rows_of(x), .n = factor_columns_of(x)};
}

/* Room for one matrix's way; NULL leaves the result as it is, which no test takes for right. */
static double *room(int64_t numbers) { return tn_mem_zalloc((size_t)numbers + 1, sizeof(double)); }

static void exchange(double *x, int64_t step_x, double *y, int64_t step_y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double t = x[i * step_x];
        x[i * step_x] = y[i * step_y];
        y[i * step_y] = t;
    }
}

/* Gauss and Jordan with the greatest element of all as the pivot: a [n, n + k] becomes 1 and the solution, whose rows
 * stand in the order of `column`. Returns the determinant. */
static double eliminate_completely(double *a, int64_t n, int64_t k, double *column) {
    int64_t width = n + k;
    double determinant = 1;
    for (int64_t i = 0; i < n; i++)
        column[i] = (double)i;
    for (int64_t c = 0; c < n; c++) {
        int64_t row = c, col = c;
        for (int64_t i = c; i < n; i++)
            for (int64_t j = c; j < n; j++)
                if (fabs(a[i * width + j]) > fabs(a[row * width + col])) row = i, col = j;
        if (row != c) exchange(a + row * width, 1, a + c * width, 1, width);
        if (col != c) exchange(a + col, width, a + c, width, n);
        if (col != c) exchange(column + col, 1, column + c, 1, 1);
        double top = a[c * width + c];
        determinant *= (row != c) != (col != c) ? -top : top;
        for (int64_t j = c; j < width; j++)
            a[c * width + j] /= top;
        for (int64_t i = 0; i < n; i++) {
            double factor = a[i * width + c];
            for (int64_t j = c; j < width && i != c; j++)
                a[i * width + j] -= factor * a[c * width + j];
        }
    }
    return determinant;
}

typedef bool in_triangle(int64_t i, int64_t j);
static bool everywhere(int64_t i, int64_t j) { return (void)i, (void)j, true; }
static bool below(int64_t i, int64_t j) { return i >= j; }
static bool above(int64_t i, int64_t j) { return i <= j; }

static void reference_systems(const tn_reference *r, in_triangle *read) {
    batch b = batch_of(r);
    int64_t n = b.n, k = factor_columns_of(r->node->in[1]), width = n + k;
    double *a = room(n * width), *column = room(n);
    for (int64_t at = 0; at < b.count && a && column; at++) {
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < n; j++)
                a[i * width + j] = read(i, j) ? r->in[0][(at * n + i) * n + j] : 0;
            memcpy(a + i * width + n, r->in[1] + (at * n + i) * k, (size_t)k * sizeof *a);
        }
        eliminate_completely(a, n, k, column);
        for (int64_t i = 0; i < n; i++)
            memcpy(r->out + (at * n + (int64_t)column[i]) * k, a + i * width + n, (size_t)k * sizeof *a);
    }
    tn_mem_free_each(a, column);
}

/* Cyclic Jacobi rotations: a, symmetric, becomes diagonal, the columns of v its eigenvectors; then ascending. */
static void jacobi(double *a, double *v, int64_t n) {
    enum { SWEEPS = 40 };
    for (int64_t i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    for (int64_t step = 0; step < SWEEPS * n * n; step++) {
        int64_t p = step / n % n, q = step % n;
        double x = a[p * n + q];
        if (p >= q || x == 0) continue;
        double theta = (a[q * n + q] - a[p * n + p]) / (2 * x);
        double t = copysign(1, theta) / (fabs(theta) + sqrt(1 + theta * theta)), c = 1 / sqrt(1 + t * t), s = t * c;
        for (int64_t i = 0; i < n; i++) {
            double up = a[i * n + p], uq = a[i * n + q], wp = v[i * n + p], wq = v[i * n + q];
            a[i * n + p] = c * up - s * uq;
            a[i * n + q] = s * up + c * uq;
            v[i * n + p] = c * wp - s * wq;
            v[i * n + q] = s * wp + c * wq;
        }
        for (int64_t i = 0; i < n; i++) {
            double up = a[p * n + i], uq = a[q * n + i];
            a[p * n + i] = c * up - s * uq;
            a[q * n + i] = s * up + c * uq;
        }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            if (a[j * n + j] < a[i * n + i]) {
                exchange(a + i * (n + 1), 1, a + j * (n + 1), 1, 1);
                exchange(v + i, n, v + j, n, n);
            }
}

static double sign_of_greatest(const double *x, int64_t step, int64_t n) {
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (fabs(x[i * step]) > fabs(x[at * step])) at = i;
    return x[at * step] < 0 ? -1 : 1;
}

/* ---- Cholesky ---------------------------------------------------------------------------------------------------- */

static void reference_cholesky_lower(const tn_reference *r) {
    batch b = batch_of(r);
    int64_t n = b.n;
    memset(r->out, 0, (size_t)(b.count * n * n) * sizeof *r->out);
    for (int64_t at = 0; at < b.count; at++)
        for (int64_t c = 0; c < n; c++) { /* column after column */
            double *l = r->out + at * n * n;
            for (int64_t i = c; i < n; i++) {
                double rest = r->in[0][(at * n + i) * n + c];
                for (int64_t k = 0; k < c; k++)
                    rest -= l[i * n + k] * l[c * n + k];
                l[i * n + c] = i == c ? sqrt(rest) : rest / l[c * n + c];
            }
        }
}

/* L⁻ᵀ·Φ(Lᵀ·dL)·L⁻¹, as a symmetric matrix; Φ is the lower triangle with half the diagonal. */
static tn_node *cholesky_back(tn_build *b, tn_node *l, tn_node *dy) {
    tn_node *inner = left_times(b, l, dy), *one = factor_identity(b, l);
    if (!inner || !one) return NULL;
    tn_node *phi = tn_b_sub(b, tn_b_tril(b, inner, 0), tn_b_scale(b, tn_b_mul(b, inner, one), 0.5));
    tn_node *upper = tn_b_row_major(b, factor_turned(b, l));
    tn_node *half = tn_b_linalg_solve_upper(b, upper, tn_b_row_major(b, phi));                   /* L⁻ᵀ·Φ */
    tn_node *all = tn_b_linalg_solve_upper(b, upper, tn_b_row_major(b, factor_turned(b, half))); /* L⁻ᵀ·(L⁻ᵀ·Φ)ᵀ */
    return symmetric(b, all);
}

static void grad_cholesky_lower(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (tn_needs_grad(n, 0)) grads[0] = cholesky_back(b, tn_b_self(n), dy);
}

/* linalg_cholesky_lower(x): linalg_cholesky of contiguous matrices. */
OP_CODE(linalg_cholesky_lower, .class_ = TN_NATIVE, .infer = infer_square, .contiguous = 1, .grad = grad_cholesky_lower,
        .reference = reference_cholesky_lower,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5 grad=off; [1,1]@1..2; "
                 "[2,2]@-1..1+3I; [2,3,3]@-1..1+4I; [5,5]@-1..1+6I; [0,0]; "
                 "[0,2,2]; error=square [2,3]; error=f32 [2,2]:i32",
        .flops = 10);

static tn_node *compose_cholesky(tn_build *b, const tn_node *n) {
    return tn_b_linalg_cholesky_lower(b, tn_b_row_major(b, n->in[0]));
}

/* linalg_cholesky(x): L with L·Lᵀ = x, of symmetric positive definite matrices [..., n, n], whose lower triangle is
 * read. A matrix that is not positive definite yields NaN everywhere (PyTorch raises an error). The gradient is
 * symmetric. */
OP_CODE(linalg_cholesky, .to_float = true, .infer = infer_square, .compose = compose_cholesky,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5 grad=off; [3,3]@-1..1+4I; [2,4,4]@-1..1+5I; error=square [3]");

/* ---- systems ----------------------------------------------------------------------------------------------------- */

/* What A needs on its right, and what stands there. */
static tn_status no_fit(const tn_infer *c, const char *needs) {
    const tn_node *a = c->in[0], *b = c->in[1];
    char x[96], y[96];
    return tn_fail(b->dtype == a->dtype ? TN_ERR_SHAPE : TN_ERR_DTYPE, "%s: %s %s and %s %s do not fit together: %s",
                   c->row->name, tn_dtype_name((tn_dtype)a->dtype), tn_shape_text(a, x, sizeof x),
                   tn_dtype_name((tn_dtype)b->dtype), tn_shape_text(b, y, sizeof y), needs);
}

static tn_status check_sides(const tn_infer *c) {
    const tn_node *a = c->in[0], *b = c->in[1];
    bool fit = b->rank >= 2 && factor_rows_of(b) == factor_columns_of(a) && b->dtype == a->dtype;
    return fit ? TN_OK : no_fit(c, "B must be [..., n, k] with A's dtype, and as many rows as A [..., n, n]");
}

static tn_status infer_systems(tn_infer *c) {
    const tn_node *a = c->in[0], *b = c->in[1];
    TRY(check_matrix(c->row->name, c->in[0], true));
    TRY(check_sides(c));
    bool same = a->rank == b->rank && !memcmp(a->shape, b->shape, (size_t)(a->rank - 2) * sizeof *a->shape);
    if (!same) return no_fit(c, "the batches differ");
    return batch_and(c, (int64_t[]){factor_rows_of(b), factor_columns_of(b)}, 2);
}

static void grad_systems(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *db = systems(b, factor_turned(b, n->in[0]), dy);
    if (tn_needs_grad(n, 1)) grads[1] = db;
    if (tn_needs_grad(n, 0) && db) grads[0] = tn_b_neg(b, times_right(b, db, tn_b_self(n)));
}

static void reference_solve_systems(const tn_reference *r) { reference_systems(r, everywhere); }

/* linalg_solve_systems(A, B): x with A·x = B, batches alike. */
OP_CODE(linalg_solve_systems, .class_ = TN_NATIVE, .infer = infer_systems, .contiguous = 3, .grad = grad_systems,
        .reference = reference_solve_systems,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5; [1,1]@1..2 [1,2]; [3,3]@-1..1+3I [3,2]; [2,4,4]@-1..1+4I [2,4,1]; "
                 "[7,7]@-1..1 [7,3] grad=off tol=1e-4 atol=1e-4; [0,0] [0,2]; [2,2]@1..2+3I [2,0]; "
                 "error=square [2,3] [2,1]; error=fit [2,2] [3,1]; error=batches [2,2,2] [3,2,1]",
        .flops = 10);

static void grad_triangle(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads, bool upper) {
    tn_node *flipped = tn_b_row_major(b, factor_turned(b, n->in[0])), *side = tn_b_row_major(b, dy);
    tn_node *db = upper ? tn_b_linalg_solve_lower(b, flipped, side) : tn_b_linalg_solve_upper(b, flipped, side);
    if (tn_needs_grad(n, 1)) grads[1] = db;
    if (!tn_needs_grad(n, 0) || !db) return;
    tn_node *da = tn_b_neg(b, times_right(b, db, tn_b_self(n)));
    grads[0] = upper ? tn_b_triu(b, da, 0) : tn_b_tril(b, da, 0);
}
static void grad_lower(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grad_triangle(b, n, dy, grads, false);
}
static void grad_upper(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grad_triangle(b, n, dy, grads, true);
}
static void reference_solve_lower(const tn_reference *r) { reference_systems(r, below); }
static void reference_solve_upper(const tn_reference *r) { reference_systems(r, above); }

#define TRIANGULAR                                                                                         \
    "types=f32,f64 tol=1e-5 atol=1e-5; [1,1]@1..2 [1,2]; [3,3]@-1..1+3I [3,2]; [2,4,4]@-1..1+4I [2,4,1]; " \
    "[0,0] [0,2]; error=square [2,3] [2,1]"

/* linalg_solve_lower(A, B): x with A·x = B for the lower triangle of A. */
OP_CODE(linalg_solve_lower, .class_ = TN_NATIVE, .infer = infer_systems, .contiguous = 3, .grad = grad_lower,
        .reference = reference_solve_lower, .cases = TRIANGULAR, .flops = 5);

/* linalg_solve_upper(A, B): x with A·x = B for the upper triangle of A. */
OP_CODE(linalg_solve_upper, .class_ = TN_NATIVE, .infer = infer_systems, .contiguous = 3, .grad = grad_upper,
        .reference = reference_solve_upper, .cases = TRIANGULAR, .flops = 5);

/* torch.linalg.solve: b is a vector, or a batch of vectors, when it has a's shape without the last dimension. */
static bool is_vector(const tn_node *a, const tn_node *b) {
    if (b->rank == 1) return true;
    return b->rank == a->rank - 1 && !memcmp(a->shape, b->shape, (size_t)b->rank * sizeof *b->shape);
}

static tn_status broadcast_batch(const tn_infer *c, const tn_node *a, const tn_node *b, int b_tail, int64_t *shape,
                                 int *rank) {
    int count_a = a->rank - 2, count_b = b->rank - b_tail;
    *rank = count_a > count_b ? count_a : count_b;
    if (*rank + 2 > TN_MAX_RANK) return c ? no_fit(c, "the result has too many dimensions") : TN_ERR_SHAPE;
    for (int d = 0; d < *rank; d++) {
        int at_a = d - (*rank - count_a), at_b = d - (*rank - count_b);
        int64_t x = at_a >= 0 ? a->shape[at_a] : 1, y = at_b >= 0 ? b->shape[at_b] : 1;
        shape[d] = x == 1 ? y : x;
        if (x != y && x != 1 && y != 1) return c ? no_fit(c, "the batches do not broadcast") : TN_ERR_SHAPE;
    }
    return TN_OK;
}

static tn_status infer_sides(tn_infer *c, bool vector) {
    const tn_node *a = c->in[0], *b = c->in[1];
    TRY(check_matrix(c->row->name, c->in[0], true));
    if (vector) {
        if (b->shape[b->rank - 1] != factor_columns_of(a) || b->dtype != a->dtype)
            return no_fit(c, "a vector must have A's dtype and as many elements as A has rows");
    } else {
        TRY(check_sides(c));
    }
    int64_t shape[TN_MAX_RANK];
    int rank;
    TRY(broadcast_batch(c, a, b, vector ? 1 : 2, shape, &rank));
    shape[rank++] = factor_columns_of(a);
    if (!vector) shape[rank++] = factor_columns_of(b);
    c->dtype = (tn_dtype)a->dtype;
    return tn_infer_shape(c, shape, rank);
}
static tn_status infer_solve(tn_infer *c) {
    return infer_sides(c, c->in[1]->rank == 1 || (c->in[0]->rank >= 2 && is_vector(c->in[0], c->in[1])));
}
static tn_status infer_solve_triangular(tn_infer *c) { return infer_sides(c, false); }

/* x [..., rows, columns] repeated over the batch. */
static tn_node *over_batch(tn_build *b, tn_node *x, const int64_t *outer, int rank) {
    int64_t shape[TN_MAX_RANK];
    if (!x) return NULL;
    memcpy(shape, outer, (size_t)rank * sizeof *shape);
    shape[rank] = factor_rows_of(x);
    shape[rank + 1] = factor_columns_of(x);
    return tn_b_row_major(b, tn_b_expand(b, x, shape, rank + 2));
}

static tn_node *compose_sides(tn_build *b, const tn_node *n, bool vector,
                              tn_node *(*build)(tn_build *b, tn_node *a, tn_node *side)) {
    int64_t shape[TN_MAX_RANK];
    int rank = 0;
    tn_node *side = vector ? tn_b_unsqueeze(b, n->in[1], -1) : n->in[1];
    if (!side || broadcast_batch(NULL, n->in[0], side, 2, shape, &rank) != TN_OK) return NULL;
    tn_node *x = build(b, over_batch(b, n->in[0], shape, rank), over_batch(b, side, shape, rank));
    return vector && x ? tn_b_squeeze(b, x, (int64_t[]){-1}, 1) : x;
}

static tn_node *compose_solve(tn_build *b, const tn_node *n) {
    return compose_sides(b, n, is_vector(n->in[0], n->in[1]), tn_b_linalg_solve_systems);
}

/* linalg_solve(A, B): x with A·x = B, of square matrices A [..., n, n]. B is [..., n, k], or a vector: rank 1, or A's
 * shape without the last dimension. Batches broadcast. A singular matrix yields infinities or NaN (PyTorch raises an
 * error). */
OP_CODE(linalg_solve, .promote = true, .to_float = true, .infer = infer_solve, .compose = compose_solve,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-5; [3,3]@-1..1+3I [3]; [2,3,3]@-1..1+3I [2,3]; [3,3]@-1..1+3I [2,3,2]; "
            "[2,1,2,2]@-1..1+3I [3,2,1]; error=fit [3,3] [2]; error=broadcast [2,2,2] [3,2,1]; error=square [3] [3]");

static tn_node *compose_solve_triangular(tn_build *b, const tn_node *n) {
    return compose_sides(b, n, false, n->i[0] ? tn_b_linalg_solve_upper : tn_b_linalg_solve_lower);
}

/* linalg_solve_triangular(A, B, upper): x with A·x = B, of triangular matrices A [..., n, n] of which only that
 * triangle is read, and B [..., n, k]. Batches broadcast. */
OP_CODE(linalg_solve_triangular, .promote = true, .to_float = true, .infer = infer_solve_triangular,
        .compose = compose_solve_triangular,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-5; [3,3]@-1..1+3I [3,2] upper=true; [3,3]@-1..1+3I [2,3,1] upper=false; "
            "error=fit [3,3] [2,1] upper=true");

static tn_node *compose_inv(tn_build *b, const tn_node *n) {
    tn_node *x = tn_b_row_major(b, n->in[0]), *one = factor_identity(b, n);
    if (!x || !one) return NULL;
    return tn_b_linalg_solve_systems(b, x, tn_b_row_major(b, tn_b_expand(b, one, n->shape, n->rank)));
}

/* linalg_inv(x): the inverses of square matrices [..., n, n]. A singular one yields infinities or NaN (PyTorch raises
 * an error). */
OP_CODE(linalg_inv, .to_float = true, .infer = infer_square, .compose = compose_inv,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5; [3,3]@-1..1+3I; [2,4,4]@-1..1+4I; "
                 "[0,0]; error=square [2,3]");

/* ---- determinants ------------------------------------------------------------------------------------------------ */

static tn_status infer_determinants(tn_infer *c) { return infer_packed(c, TN_LINALG_DETERMINANT, true); }

static void reference_determinants(const tn_reference *r) {
    batch b = batch_of(r);
    double *a = room(b.n * b.n), *column = room(b.n);
    for (int64_t at = 0; at < b.count && a && column; at++) {
        memcpy(a, r->in[0] + at * b.n * b.n, (size_t)(b.n * b.n) * sizeof *a);
        double d = eliminate_completely(a, b.n, 0, column);
        r->out[at * 3] = d;
        r->out[at * 3 + 1] = d > 0 ? 1 : d < 0 ? -1 : d;
        r->out[at * 3 + 2] = log(fabs(d));
    }
    tn_mem_free_each(a, column);
}

/* d det = det·tr(x⁻¹·dx), d log|det| = tr(x⁻¹·dx). */
static void grad_determinants(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (!tn_needs_grad(n, 0)) return;
    tn_node *inverse = tn_b_linalg_inv(b, n->in[0]);
    tn_node *by_value = tn_b_mul(b, tn_b_narrow(b, dy, -1, 0, 1), tn_b_narrow(b, tn_b_self(n), -1, 0, 1));
    tn_node *factor = tn_b_add(b, by_value, tn_b_narrow(b, dy, -1, 2, 1));
    if (factor && inverse) grads[0] = tn_b_mul(b, tn_b_unsqueeze(b, factor, -1), factor_turned(b, inverse));
}

/* linalg_determinants(x): the determinant, its sign and the logarithm of its size, [..., 3]. */
OP_CODE(linalg_determinants, .class_ = TN_NATIVE, .infer = infer_determinants, .contiguous = 1,
        .grad = grad_determinants, .reference = reference_determinants,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-5; [1,1]@1..2; [3,3]@-1..1+3I; [2,4,4]@-1..1+4I; [5,5]@-1..1 grad=off; "
            "[0,0]; [0,2,2]; error=square [2,3]",
        .flops = 100);

static tn_status infer_det(tn_infer *c) {
    TRY(check_matrix(c->row->name, c->in[0], true));
    return batch_and(c, NULL, 0);
}

static tn_node *compose_det(tn_build *b, const tn_node *n) {
    tn_node *all = tn_b_linalg_determinants(b, tn_b_row_major(b, n->in[0]));
    return all ? tn_b_select(b, all, -1, 0) : NULL;
}

/* linalg_det(x): the determinants of square matrices [..., n, n]. The gradient of a singular one is NaN. */
OP_CODE(linalg_det, .to_float = true, .infer = infer_det, .compose = compose_det,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5; [3,3]@-1..1+3I; [2,2,2]@-1..1+2I; error=square [2,3]");

/* ---- LU ---------------------------------------------------------------------------------------------------------- */

static tn_status infer_lu_packed(tn_infer *c) { return infer_packed(c, TN_LINALG_LU, false); }

/* Column by column, each made from the finished ones before it. */
static void reference_lu_packed(const tn_reference *r) {
    batch b = batch_of(r);
    int64_t m = b.m, n = b.n;
    for (int64_t at = 0; at < b.count; at++) {
        double *a = r->out + at * m * (n + m), *p = a + m * n;
        memcpy(a, r->in[0] + at * m * n, (size_t)(m * n) * sizeof *a);
        for (int64_t i = 0; i < m * m; i++)
            p[i] = i % (m + 1) == 0;
        for (int64_t c = 0; c < n; c++) {
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < tn_min64(i, c); j++)
                    a[i * n + c] -= a[i * n + j] * a[j * n + c];
            int64_t top = c;
            for (int64_t i = c + 1; i < m; i++)
                if (fabs(a[i * n + c]) > fabs(a[top * n + c])) top = i;
            if (c >= m || a[top * n + c] == 0) continue;
            if (top != c) exchange(a + top * n, 1, a + c * n, 1, n);
            if (top != c) exchange(p + top, m, p + c, m, m);
            for (int64_t i = c + 1; i < m; i++)
                a[i * n + c] /= a[c * n + c];
        }
    }
}

/* y·U⁻ᵀ */
static tn_node *over_upper(tn_build *b, tn_node *y, tn_node *u) {
    return factor_turned(b, tn_b_linalg_solve_upper(b, tn_b_row_major(b, u), tn_b_row_major(b, factor_turned(b, y))));
}

/* L⁻ᵀ·y */
static tn_node *under_lower(tn_build *b, tn_node *l, tn_node *y) {
    return tn_b_linalg_solve_upper(b, tn_b_row_major(b, factor_turned(b, l)), tn_b_row_major(b, y));
}

/* Of the square part: L⁻ᵀ·(tril(Lᵀ·dL, -1) + triu(dU·Uᵀ))·U⁻ᵀ. Rows below it have L₂ = A₂·U⁻¹, columns after it
 * U₂ = L⁻¹·A₂, which add to dU and dL. */
static void grad_lu_packed(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t m = factor_rows_of(x), columns = factor_columns_of(x), k = shorter(x);
    if (!tn_needs_grad(n, 0)) return;
    tn_node *all = matrix_at(b, tn_b_self(n), 0, m, columns), *d = matrix_at(b, dy, 0, m, columns);
    tn_node *p = matrix_at(b, tn_b_self(n), m * columns, m, m);
    int axis = m > k ? -2 : -1; /* of what is outside the square part */
    int64_t more = m + columns - 2 * k;
    tn_node *square = tn_b_narrow(b, all, axis, 0, k), *dsquare = tn_b_narrow(b, d, axis, 0, k);
    if (b->status != TN_OK) return;
    tn_node *u = tn_b_triu(b, square, 0), *dl = tn_b_tril(b, dsquare, -1), *du = tn_b_triu(b, dsquare, 0);
    tn_node *l = tn_b_add(b, tn_b_tril(b, square, -1), factor_identity(b, square)), *rest = NULL;
    if (more) {
        tn_node *other = tn_b_narrow(b, all, axis, k, more), *dother = tn_b_narrow(b, d, axis, k, more);
        rest = m > k ? over_upper(b, dother, u) : under_lower(b, l, dother);
        if (m > k)
            du = tn_b_sub(b, du, tn_b_triu(b, left_times(b, other, rest), 0));
        else
            dl = tn_b_sub(b, dl, tn_b_tril(b, times_right(b, rest, other), -1));
    }
    tn_node *core = tn_b_add(b, tn_b_tril(b, left_times(b, l, dl), -1), tn_b_triu(b, times_right(b, du, u), 0));
    tn_node *parts[] = {over_upper(b, under_lower(b, l, core), u), rest};
    if (b->status != TN_OK) return;
    grads[0] = times(b, p, more ? tn_b_cat(b, parts, 2, axis) : parts[0]);
}

/* linalg_lu_packed(x): L and U [m, n] in one matrix, after it the permutation P [m, m], in the last dimension. */
OP_CODE(linalg_lu_packed, .class_ = TN_NATIVE, .infer = infer_lu_packed, .contiguous = 1, .grad = grad_lu_packed,
        .reference = reference_lu_packed,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-5; [1,1]@1..2; [3,3]@-1..1+3I; [4,2]@-1..1+1I; [2,3,5]@-1..1+2I; [6,1]; "
            "[1,3]@1..2; [9,7]@-1..1 grad=off tol=1e-4 atol=1e-4; [0,2]; error=matrix [3]",
        .flops = 10);

/* ---- QR ---------------------------------------------------------------------------------------------------------- */

static tn_status infer_qr_packed(tn_infer *c) { return infer_packed(c, TN_LINALG_QR, false); }

static double dot_of_columns(const double *a, int64_t a_step, const double *b, int64_t b_step, int64_t rows) {
    double dot = 0;
    for (int64_t i = 0; i < rows; i++)
        dot += a[i * a_step] * b[i * b_step];
    return dot;
}

/* Makes column c of q [m, k] orthogonal to those before it, twice, and 1 long; parts: what is taken off it, by rows of
 * `step` numbers. */
static void orthogonalize(double *q, int64_t m, int64_t k, int64_t c, double *parts, int64_t step) {
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j < c; j++) {
            double dot = dot_of_columns(q + j, k, q + c, k, m);
            for (int64_t i = 0; i < m; i++)
                q[i * k + c] -= dot * q[i * k + j];
            parts[j * step] += dot;
        }
    double length = parts[c * step] = sqrt(dot_of_columns(q + c, k, q + c, k, m));
    for (int64_t i = 0; i < m; i++)
        q[i * k + c] /= length;
}

/* Gram and Schmidt; the columns of R after its square part are Qᵀ·x. */
static void reference_qr_packed(const tn_reference *r) {
    batch b = batch_of(r);
    int64_t m = b.m, n = b.n, k = tn_min64(m, n);
    for (int64_t at = 0; at < b.count; at++) {
        const double *x = r->in[0] + at * m * n;
        double *q = r->out + at * (m + n) * k, *upper = q + m * k;
        memset(upper, 0, (size_t)(n * k) * sizeof *upper);
        for (int64_t c = 0; c < k; c++) {
            for (int64_t i = 0; i < m; i++)
                q[i * k + c] = x[i * n + c];
            orthogonalize(q, m, k, c, upper + c, n);
        }
        for (int64_t c = k; c < n; c++)
            for (int64_t j = 0; j < k; j++)
                upper[j * n + c] = dot_of_columns(q + j, k, x + c, n, m);
    }
}

/* With M = R·dRᵀ - dQᵀ·Q, made symmetric from its lower triangle: dx = (dQ + Q·M)·R⁻ᵀ, for a square R. */
static tn_node *qr_back(tn_build *b, tn_node *q, tn_node *r, tn_node *dq, tn_node *dr) {
    tn_node *m = tn_b_sub(b, times_right(b, r, dr), left_times(b, dq, q));
    if (!m) return NULL;
    tn_node *low = tn_b_tril(b, m, -1);
    tn_node *even = tn_b_add(b, tn_b_tril(b, m, 0), factor_turned(b, low));
    tn_node *all = tn_b_add(b, dq, times(b, q, even));
    tn_node *x =
        tn_b_linalg_solve_upper(b, tn_b_row_major(b, r), tn_b_row_major(b, factor_turned(b, all))); /* R⁻¹·allᵀ */
    return factor_turned(b, x);
}

static void grad_qr_packed(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t m = factor_rows_of(x), columns = factor_columns_of(x), k = shorter(x);
    if (!tn_needs_grad(n, 0)) return;
    tn_node *q = matrix_at(b, tn_b_self(n), 0, m, k), *r = matrix_at(b, tn_b_self(n), m * k, k, columns);
    tn_node *dq = matrix_at(b, dy, 0, m, k), *dr = matrix_at(b, dy, m * k, k, columns);
    if (b->status != TN_OK) return;
    if (columns > k) { /* x = [left right]: right = Q·(R's right), so Q gets a share of its gradient */
        tn_node *right = tn_b_narrow(b, n->in[0], -1, k, columns - k);
        tn_node *dright = tn_b_narrow(b, dr, -1, k, columns - k);
        tn_node *shared = tn_b_add(b, dq, times_right(b, right, dright));
        tn_node *left = qr_back(b, q, tn_b_narrow(b, r, -1, 0, k), shared, tn_b_narrow(b, dr, -1, 0, k));
        tn_node *parts[] = {left, times(b, q, dright)};
        if (b->status == TN_OK) grads[0] = tn_b_cat(b, parts, 2, -1);
        return;
    }
    grads[0] = qr_back(b, q, r, dq, dr);
}

/* linalg_qr_packed(x): Q [m, k] and R [k, n], one after the other in the last dimension. */
OP_CODE(
    linalg_qr_packed, .class_ = TN_NATIVE, .infer = infer_qr_packed, .contiguous = 1, .grad = grad_qr_packed,
    .reference = reference_qr_packed,
    .cases =
        "types=f32,f64 tol=1e-5 atol=1e-5; [1,1]@1..2; [3,3]@-1..1+2I; [4,2]@-1..1+1I; [2,3,5]@-1..1+2I; [6,1]; "
        "[1,3]@1..2; [9,7]@-1..1 grad=off tol=1e-4 atol=1e-4; [70,3]@-1..1 grad=off; [0,2]; [2,0]; error=matrix [3]",
    .flops = 10);

/* ---- eigenvalues ------------------------------------------------------------------------------------------------- */

static tn_status infer_eigh_packed(tn_infer *c) { return infer_packed(c, TN_LINALG_EIGH, true); }

static void reference_eigh_packed(const tn_reference *r) {
    batch b = batch_of(r);
    int64_t n = b.n;
    double *a = room(n * n), *v = room(n * n);
    for (int64_t at = 0; at < b.count && a && v; at++) {
        double *out = r->out + at * n * (n + 1);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                a[i * n + j] = r->in[0][at * n * n + (i > j ? i * n + j : j * n + i)];
        jacobi(a, v, n);
        for (int64_t c = 0; c < n; c++) {
            double sign = sign_of_greatest(v + c, n, n);
            out[c] = a[c * n + c];
            for (int64_t i = 0; i < n; i++)
                out[(i + 1) * n + c] = sign * v[i * n + c];
        }
    }
    tn_mem_free_each(a, v);
}

/* 1 / (v[j] - v[i]) for i ≠ j, 0 on the diagonal. */
static tn_node *inverse_gaps(tn_build *b, tn_node *v) {
    tn_node *one = diagonal_of(b, v);
    if (!one) return NULL;
    one = factor_identity(b, one);
    tn_node *gap = tn_b_sub(b, tn_b_unsqueeze(b, v, -2), tn_b_unsqueeze(b, v, -1));
    tn_node *off = tn_b_rsub_scalar(b, one, 1);
    return gap && off ? tn_b_div(b, off, tn_b_add(b, gap, one)) : NULL;
}

/* V·(diag(dw) + F∘(Vᵀ·dV))·Vᵀ, as a symmetric matrix. */
static tn_node *eigh_back(tn_build *b, tn_node *packed, tn_node *dy) {
    if (!packed || !dy) return NULL;
    int64_t n = 0;
    while (n * (n + 1) < packed->shape[packed->rank - 1])
        n++;
    tn_node *w = tn_b_narrow(b, packed, -1, 0, n), *v = matrix_at(b, packed, n, n, n);
    tn_node *dw = tn_b_narrow(b, dy, -1, 0, n), *dv = matrix_at(b, dy, n, n, n);
    if (b->status != TN_OK) return NULL;
    /* Equal eigenvalues have no gap, which only matters to a function of their vectors. */
    tn_node *turn = left_times(b, v, dv), *none = tn_b_const(b, 0, turn);
    turn = tn_b_where(b, tn_b_eq(b, turn, none), none, tn_b_mul(b, inverse_gaps(b, w), turn));
    tn_node *inner = tn_b_add(b, diagonal_of(b, dw), turn);
    return symmetric(b, times_right(b, times(b, v, inner), v));
}

static void grad_eigh_packed(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (tn_needs_grad(n, 0)) grads[0] = eigh_back(b, tn_b_self(n), dy);
}

/* linalg_eigh_packed(x): eigenvalues, then eigenvectors as columns [n, n], in the last dimension. */
OP_CODE(linalg_eigh_packed, .class_ = TN_NATIVE, .infer = infer_eigh_packed, .contiguous = 1, .grad = grad_eigh_packed,
        .reference = reference_eigh_packed,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-5 grad=off; [1,1]; [2,2]; [2,3,3]; [6,6]@-1..1 tol=1e-4 atol=1e-4; [0,0]; "
            "[0,2,2]; error=square [2,3]",
        .flops = 50);

static tn_status infer_eigvalsh(tn_infer *c) {
    TRY(check_matrix(c->row->name, c->in[0], true));
    return batch_and(c, (int64_t[]){factor_columns_of(c->in[0])}, 1);
}

static tn_node *compose_eigvalsh(tn_build *b, const tn_node *n) {
    tn_node *all = tn_b_linalg_eigh_packed(b, tn_b_row_major(b, n->in[0]));
    return all ? tn_b_narrow(b, all, -1, 0, factor_columns_of(n->in[0])) : NULL;
}

/* linalg_eigvalsh(x): the eigenvalues of symmetric matrices [..., n, n], ascending: [..., n]. The lower triangle is
 * read; the gradient is symmetric. */
OP_CODE(linalg_eigvalsh, .to_float = true, .infer = infer_eigvalsh, .compose = compose_eigvalsh,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5 grad=off; [3,3]; [2,2,2]; error=square [2,3]");

/* ---- eigenvalues of matrices that are not symmetric -------------------------------------------------------------- */

/* A complex matrix M as a real one: [re; im], n columns, and [re, -im; im, re], whose products are those of complex
 * matrices and whose transpose is the conjugate transpose. */
typedef struct complex_node {
    tn_node *re, *im;
} complex_node;

static tn_node *stacked(tn_build *b, complex_node m) {
    return b->status == TN_OK ? tn_b_cat(b, (tn_node *[]){m.re, m.im}, 2, -2) : NULL;
}

static tn_node *real_of_complex(tn_build *b, complex_node m) {
    tn_node *left = stacked(b, m), *right = stacked(b, (complex_node){tn_b_neg(b, m.im), m.re});
    return b->status == TN_OK ? tn_b_cat(b, (tn_node *[]){left, right}, 2, -1) : NULL;
}

static complex_node unstacked(tn_build *b, tn_node *x, int64_t n) {
    if (b->status != TN_OK) return (complex_node){NULL, NULL};
    return (complex_node){tn_b_narrow(b, x, -2, 0, n), tn_b_narrow(b, x, -2, n, n)};
}

/* Of the packed results: complex numbers [rows, columns] from `start` on; rows 0: a vector. */
static complex_node complex_at(tn_build *b, tn_node *packed, int64_t start, int64_t rows, int64_t columns) {
    int64_t count = 2 * columns * (rows ? rows : 1), shape[3] = {rows, columns, 2};
    tn_node *flat = b->status == TN_OK ? tn_b_narrow(b, packed, -1, start, count) : NULL;
    tn_node *all = flat ? tn_b_unflatten(b, flat, -1, rows ? shape : shape + 1, rows ? 3 : 2) : NULL;
    if (!all) return (complex_node){NULL, NULL};
    return (complex_node){tn_b_select(b, all, -1, 0), tn_b_select(b, all, -1, 1)};
}

/* x[j] - x[i] of [batch…, n], as matrices. */
static tn_node *gaps_of(tn_build *b, tn_node *x) {
    return x ? tn_b_sub(b, tn_b_unsqueeze(b, x, -2), tn_b_unsqueeze(b, x, -1)) : NULL;
}

/* x / y, 0 where x is. */
static tn_node *quotient_or_zero(tn_build *b, tn_node *x, tn_node *y) {
    if (b->status != TN_OK) return NULL;
    tn_node *none = tn_b_const(b, 0, x);
    return tn_b_where(b, tn_b_eq(b, x, none), none, tn_b_div(b, x, y));
}

/* Off the diagonal x, on it d [batch…, n]. */
static tn_node *with_diagonal(tn_build *b, tn_node *x, tn_node *d, tn_node *one) {
    tn_node *off = tn_b_mul(b, x, tn_b_rsub_scalar(b, one, 1));
    return off && d ? tn_b_add(b, off, tn_b_mul(b, tn_b_unsqueeze(b, d, -2), one)) : NULL;
}

/* V⁻ᴴ·(diag(dw) + (Vᴴ·dV - Vᴴ·V·diag(re(Vᴴ·dV))) / conj(w[j] - w[i]))·Vᴴ, the real part. Source: Boeddeker et al. 2017,
 * "On the computation of complex-valued gradients", 4.15. */
static tn_node *eig_back(tn_build *b, tn_node *packed, tn_node *dy) {
    if (!packed || !dy) return NULL;
    int64_t n = 0;
    while (2 * n * (n + 1) < packed->shape[packed->rank - 1])
        n++;
    complex_node w = complex_at(b, packed, 0, 0, n), dw = complex_at(b, dy, 0, 0, n);
    complex_node v = complex_at(b, packed, 2 * n, n, n), dv = complex_at(b, dy, 2 * n, n, n);
    tn_node *all = real_of_complex(b, v), *one = b->status == TN_OK ? factor_identity(b, v.re) : NULL;
    complex_node turn = unstacked(b, left_times(b, all, stacked(b, dv)), n);
    complex_node gram = unstacked(b, left_times(b, all, stacked(b, v)), n);
    if (b->status != TN_OK) return NULL;
    tn_node *own = tn_b_sum(b, tn_b_mul(b, turn.re, one), (int64_t[]){-2}, 1, true);
    complex_node rest = {tn_b_sub(b, turn.re, tn_b_mul(b, gram.re, own)),
                         tn_b_sub(b, turn.im, tn_b_mul(b, gram.im, own))};
    tn_node *x = tn_b_add(b, gaps_of(b, w.re), one), *y = gaps_of(b, w.im); /* divided by x - iy */
    tn_node *size = tn_b_add(b, tn_b_mul(b, x, x), tn_b_mul(b, y, y));
    tn_node *re = tn_b_sub(b, tn_b_mul(b, rest.re, x), tn_b_mul(b, rest.im, y));
    tn_node *im = tn_b_add(b, tn_b_mul(b, rest.im, x), tn_b_mul(b, rest.re, y));
    complex_node inner = {with_diagonal(b, quotient_or_zero(b, re, size), dw.re, one),
                          with_diagonal(b, quotient_or_zero(b, im, size), dw.im, one)};
    tn_node *side = b->status == TN_OK ? tn_b_narrow(b, factor_turned(b, all), -1, 0, n) : NULL;
    tn_node *right = times(b, real_of_complex(b, inner), side);
    return b->status == TN_OK ? unstacked(b, systems(b, factor_turned(b, all), right), n).re : NULL;
}

static tn_status infer_eig_packed(tn_infer *c) { return infer_packed(c, TN_LINALG_EIG, true); }

static void grad_eig_packed(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (!tn_needs_grad(n, 0)) return;
    bool empty = factor_columns_of(n->in[0]) == 0;
    grads[0] = empty ? tn_b_zeros_like(b, n->in[0]) : eig_back(b, tn_b_self(n), dy);
}

/* Coefficients of the characteristic polynomial, c[0] = 1 first (Faddeev and LeVerrier); m, t: room for a matrix. */
static void characteristic(const double *a, int64_t n, double *c, double *m, double *t) {
    memset(m, 0, (size_t)(n * n) * sizeof *m);
    c[0] = 1;
    for (int64_t k = 1; k <= n; k++) {
        double trace = 0;
        for (int64_t i = 0; i < n; i++)
            m[i * n + i] += c[k - 1];
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                t[i * n + j] = 0;
                for (int64_t l = 0; l < n; l++)
                    t[i * n + j] += a[i * n + l] * m[l * n + j];
            }
        for (int64_t i = 0; i < n; i++)
            trace += t[i * n + i];
        c[k] = -trace / (double)k;
        memcpy(m, t, (size_t)(n * n) * sizeof *m);
    }
}

static void multiply_complex(double x[2], double re, double im) {
    double old = x[0];
    x[0] = old * re - x[1] * im;
    x[1] = old * im + x[1] * re;
}

/* All roots at once (Durand 1960, Kerner 1966): z [n, 2]. */
static void all_roots(const double *c, int64_t n, double *z) {
    enum { STEPS = 400 };
    for (int64_t i = 0; i < n; i++)
        z[2 * i] = cos((double)i + 0.4), z[2 * i + 1] = sin((double)i + 0.4);
    for (int64_t step = 0; step < STEPS * n; step++) {
        int64_t i = step % n;
        double value[2] = {c[0], 0}, others[2] = {1, 0}, *x = z + 2 * i;
        for (int64_t k = 1; k <= n; k++) {
            multiply_complex(value, x[0], x[1]);
            value[0] += c[k];
        }
        for (int64_t j = 0; j < n; j++)
            if (j != i) multiply_complex(others, x[0] - z[2 * j], x[1] - z[2 * j + 1]);
        double size = others[0] * others[0] + others[1] * others[1];
        if (size == 0) continue;
        multiply_complex(value, others[0] / size, -others[1] / size);
        x[0] -= value[0];
        x[1] -= value[1];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) {
            double gap = z[2 * j] - z[2 * i];
            bool before = fabs(gap) > 1e-7 ? gap < 0 : z[2 * j + 1] > z[2 * i + 1];
            if (before) exchange(z + 2 * i, 1, z + 2 * j, 1, 2);
        }
}

/* Inverse iteration, in real numbers: s [2n, 2n + 1] of rows [re - x, -im + y; im - y, re - x]; v [2n]: re, then im. */
static void eigenvector_of(const double *a, int64_t n, const double *root, double *s, double *column, double *v) {
    enum { TIMES = 3 };
    int64_t width = 2 * n + 1, at = 0;
    for (int64_t i = 0; i < 2 * n; i++)
        v[i] = 1 / (1.0 + (double)i);
    for (int time = 0; time < TIMES; time++) {
        double square = 0;
        for (int64_t i = 0; i < 2 * n; i++) {
            for (int64_t j = 0; j < 2 * n; j++) {
                double own = i == j ? root[0] + 1e-9 : i + n == j ? -root[1] : i == j + n ? root[1] : 0;
                s[i * width + j] = ((i < n) == (j < n) ? a[i % n * n + j % n] : 0) - own;
            }
            s[i * width + 2 * n] = v[i];
        }
        eliminate_completely(s, 2 * n, 1, column);
        for (int64_t i = 0; i < 2 * n; i++)
            square += s[i * width + 2 * n] * s[i * width + 2 * n];
        for (int64_t i = 0; i < 2 * n; i++)
            v[(int64_t)column[i]] = s[i * width + 2 * n] / sqrt(square);
    }
    for (int64_t i = 1; i < n; i++)
        if (hypot(v[i], v[n + i]) > hypot(v[at], v[n + at]) * (1 + 1e-9)) at = i;
    double size = hypot(v[at], v[n + at]), turn[2] = {v[at] / size, -v[n + at] / size};
    for (int64_t i = 0; i < n; i++) {
        double x[2] = {v[i], v[n + i]};
        multiply_complex(x, turn[0], turn[1]);
        v[i] = x[0], v[n + i] = x[1];
    }
}

static void reference_eig_packed(const tn_reference *r) {
    batch b = batch_of(r);
    int64_t n = b.n;
    double *c = room(n + 1), *m = room(2 * n * n), *s = room(2 * n * (2 * n + 1)), *v = room(4 * n);
    for (int64_t at = 0; at < b.count && c && m && s && v; at++) {
        const double *a = r->in[0] + at * n * n;
        double *out = r->out + at * 2 * n * (n + 1);
        characteristic(a, n, c, m, m + n * n);
        all_roots(c, n, out);
        for (int64_t k = 0; k < n; k++) {
            eigenvector_of(a, n, out + 2 * k, s, v + 2 * n, v);
            for (int64_t i = 0; i < 2 * n; i++)
                out[2 * n + 2 * (i % n * n + k) + i / n] = v[i];
        }
    }
    tn_mem_free_each(c, m, s, v);
}

/* linalg_eig_packed(x): eigenvalues [n, 2], then eigenvectors as columns [n, n, 2], in the last dimension. */
OP_CODE(linalg_eig_packed, .class_ = TN_NATIVE, .infer = infer_eig_packed, .contiguous = 1, .grad = grad_eig_packed,
        .reference = reference_eig_packed,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5 grad=off; [1,1]; [2,2]; [2,3,3]; [5,5]@-1..1 tol=1e-4 atol=1e-4; "
                 "[0,0]; [0,2,2]; error=square [2,3]",
        .flops = 100);

static tn_status infer_eigvals(tn_infer *c) {
    TRY(check_matrix(c->row->name, c->in[0], true));
    return batch_and(c, (int64_t[]){factor_columns_of(c->in[0]), 2}, 2);
}

static tn_node *compose_eigvals(tn_build *b, const tn_node *n) {
    int64_t count = factor_columns_of(n->in[0]);
    tn_node *all = tn_b_linalg_eig_packed(b, tn_b_row_major(b, n->in[0]));
    return matrix_at(b, all, 0, count, 2);
}

/* linalg_eigvals(x): the eigenvalues of matrices [..., n, n] as complex numbers, [..., n, 2]: real and imaginary parts.
 * By ascending real part; of a pair, the one with the positive imaginary part comes first. PyTorch has no order. */
OP_CODE(linalg_eigvals, .to_float = true, .infer = infer_eigvals, .compose = compose_eigvals,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5 grad=off; [3,3]; [2,2,2]; error=square [2,3]");

/* ---- singular values --------------------------------------------------------------------------------------------- */

static tn_status infer_svd_packed(tn_infer *c) { return infer_packed(c, TN_LINALG_SVD, false); }

/* The eigenvalues of [0 x; xᵀ 0] are plus and minus the singular values, its vectors (u, ±v)/√2. */
static void reference_svd_packed(const tn_reference *r) {
    batch b = batch_of(r);
    int64_t m = b.m, n = b.n, k = tn_min64(m, n), all = m + n;
    double *a = room(all * all), *v = room(all * all);
    for (int64_t at = 0; at < b.count && a && v; at++) {
        double *u = r->out + at * (all + 1) * k, *s = u + m * k, *vt = s + k;
        memset(a, 0, (size_t)(all * all) * sizeof *a);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                a[i * all + m + j] = a[(m + j) * all + i] = r->in[0][(at * m + i) * n + j];
        jacobi(a, v, all);
        for (int64_t c = 0; c < k; c++) {
            int64_t from = all - 1 - c; /* the greatest stand at the end */
            double scale = sqrt(2) * sign_of_greatest(v + from, all, m);
            s[c] = a[from * all + from];
            for (int64_t i = 0; i < m; i++)
                u[i * k + c] = scale * v[i * all + from];
            for (int64_t j = 0; j < n; j++)
                vt[c * n + j] = scale * v[(m + j) * all + from];
        }
    }
    tn_mem_free_each(a, v);
}

/* dx - p·(pᵀ·dx): what lies outside of p's columns. */
static tn_node *outside(tn_build *b, tn_node *p, tn_node *dx) {
    return tn_b_sub(b, dx, times(b, p, left_times(b, p, dx)));
}

/* U·(A·S + S·B + diag(dS))·Vᵀ + (1 - U·Uᵀ)·dU·S⁻¹·Vᵀ + U·S⁻¹·dVᵀ·(1 - V·Vᵀ), with A = F∘(Uᵀ·dU - dUᵀ·U),
 * B = F∘(Vᵀ·dV - dVᵀ·V), F of the squares' gaps. */
static tn_node *svd_back(tn_build *b, const tn_node *x, tn_node *packed, tn_node *dy) {
    int64_t m = factor_rows_of(x), n = factor_columns_of(x), k = shorter(x);
    tn_node *u = matrix_at(b, packed, 0, m, k), *du = matrix_at(b, dy, 0, m, k);
    tn_node *s = tn_b_narrow(b, packed, -1, m * k, k), *ds = tn_b_narrow(b, dy, -1, m * k, k);
    tn_node *v = factor_turned(b, matrix_at(b, packed, (m + 1) * k, k, n)),
            *dv = factor_turned(b, matrix_at(b, dy, (m + 1) * k, k, n));
    if (b->status != TN_OK) return NULL;
    tn_node *gaps = inverse_gaps(b, tn_b_square(b, s));
    tn_node *in_u = left_times(b, u, du), *in_v = left_times(b, v, dv);
    if (!gaps || !in_u || !in_v) return NULL;
    tn_node *by_row = tn_b_unsqueeze(b, s, -1), *by_column = tn_b_unsqueeze(b, s, -2);
    tn_node *from_u = tn_b_mul(b, tn_b_mul(b, gaps, tn_b_sub(b, in_u, factor_turned(b, in_u))), by_column);
    tn_node *from_v = tn_b_mul(b, tn_b_mul(b, gaps, tn_b_sub(b, in_v, factor_turned(b, in_v))), by_row);
    tn_node *inner = tn_b_add(b, tn_b_add(b, from_u, from_v), diagonal_of(b, ds));
    tn_node *dx = times_right(b, times(b, u, inner), v);
    tn_node *inverse = tn_b_reciprocal(b, by_column);
    if (m > k) dx = tn_b_add(b, dx, times_right(b, tn_b_mul(b, outside(b, u, du), inverse), v));
    if (n > k) dx = tn_b_add(b, dx, times_right(b, tn_b_mul(b, u, inverse), outside(b, v, dv)));
    return dx;
}

static void grad_svd_packed(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (tn_needs_grad(n, 0)) grads[0] = svd_back(b, n->in[0], tn_b_self(n), dy);
}

/* linalg_svd_packed(x): U [m, k], the singular values, Vᵀ [k, n], one after the other in the last dimension. */
OP_CODE(linalg_svd_packed, .class_ = TN_NATIVE, .infer = infer_svd_packed, .contiguous = 1, .grad = grad_svd_packed,
        .reference = reference_svd_packed,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5; [1,1]@1..2; [2,2]@-1..1+1I; [4,2]@-1..1+1I; [2,3]@-1..1+2I; "
                 "[5,7]@-1..1 grad=off tol=1e-4 atol=1e-4; [0,2]; [2,0]; error=matrix [3]",
        .flops = 50);

static tn_status infer_svdvals(tn_infer *c) {
    TRY(check_matrix(c->row->name, c->in[0], false));
    return batch_and(c, (int64_t[]){shorter(c->in[0])}, 1);
}

static tn_node *compose_svdvals(tn_build *b, const tn_node *n) {
    const tn_node *x = n->in[0];
    tn_node *all = tn_b_linalg_svd_packed(b, tn_b_row_major(b, n->in[0]));
    return all ? tn_b_narrow(b, all, -1, factor_rows_of(x) * shorter(x), shorter(x)) : NULL;
}

/* linalg_svdvals(x): the singular values of matrices [..., m, n], descending: [..., min(m, n)]. */
OP_CODE(linalg_svdvals, .to_float = true, .infer = infer_svdvals, .compose = compose_svdvals,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5; [3,3]@-1..1+1I; [2,4,2]@-1..1+1I; error=matrix [3]");

/* ---- several results --------------------------------------------------------------------------------------------- */

typedef struct packed {
    tn_tensor *all;
    int64_t m, n, k;
} packed;

/* The packed results of x, in f32 or f64; an error names the function that was called. */
static packed pack(const char *name, int op, bool square, const tn_tensor *x) {
    packed p = {0};
    if (!x) {
        p.all = tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "%s: the tensor is NULL", name));
        return p;
    }
    const tn_node *n = tn_tensor_node(x);
    bool whole_number = !(n->flags & TN_NODE_ERROR) && !tn_dtype_is_float((tn_dtype)n->dtype);
    tn_tensor *cast = whole_number ? (tn_cast)(x, TN_F32) : NULL;
    tn_tensor *laid = (tn_contiguous)(cast ? cast : x);
    const tn_tensor *in[] = {laid};
    tn_status fits = tn_status_of(laid) == TN_OK ? check_matrix(name, tn_tensor_node(laid), square) : TN_OK;
    p.all = fits == TN_OK ? tn_record(op, in, 1, NULL) : tn_tensor_error(fits);
    tn_free(laid);
    tn_free(cast);
    if (tn_status_of(p.all) != TN_OK) return p;
    p.m = factor_rows_of(n);
    p.n = factor_columns_of(n);
    p.k = shorter(n);
    return p;
}

/* A matrix (or with columns < 0 a vector) of the packed results; an error tensor if they are one. */
static void take_factor(const packed *p, int64_t start, int64_t rows, int64_t columns, tn_tensor **out) {
    if (!out) return;
    if (tn_status_of(p->all) != TN_OK) {
        *out = (tn_contiguous)(p->all);
        return;
    }
    *out = (tn_narrow)(p->all, -1, start, columns < 0 ? rows : rows * columns);
    if (columns < 0) return;
    tn_tensor *flat = *out;
    *out = (tn_unflatten)(flat, -1, (int64_t[]){rows, columns}, 2);
    tn_free(tn_tensor_unscoped(flat));
}

void(tn_linalg_qr)(const tn_tensor *x, tn_tensor **q, tn_tensor **r) {
    packed p = pack("linalg_qr", TN_OP_LINALG_QR_PACKED, false, x);
    take_factor(&p, 0, p.m, p.k, q);
    take_factor(&p, p.m * p.k, p.k, p.n, r);
    tn_free(tn_tensor_unscoped(p.all));
}

void(tn_linalg_lu)(const tn_tensor *x, tn_tensor **p, tn_tensor **l, tn_tensor **u) {
    TN_SCOPE;
    packed all = pack("linalg_lu", TN_OP_LINALG_LU_PACKED, false, x);
    tn_tensor *factors;
    take_factor(&all, 0, all.m, all.n, &factors);
    take_factor(&all, all.m * all.n, all.m, all.m, p);
    if (p) tn_keep(*p);
    if (u) *u = tn_keep((tn_triu)((tn_narrow)(factors, -2, 0, all.k), 0));
    if (!l) return;
    tn_tensor *low = (tn_tril)((tn_narrow)(factors, -1, 0, all.k), -1);
    *l = tn_keep((tn_add)(low, (tn_eye)(all.m, all.k, tn_dtype_of(low))));
}

void(tn_linalg_eigh)(const tn_tensor *x, tn_tensor **values, tn_tensor **vectors) {
    packed p = pack("linalg_eigh", TN_OP_LINALG_EIGH_PACKED, true, x);
    take_factor(&p, 0, p.n, -1, values);
    take_factor(&p, p.n, p.n, p.n, vectors);
    tn_free(tn_tensor_unscoped(p.all));
}

void(tn_linalg_eig)(const tn_tensor *x, tn_tensor **values, tn_tensor **vectors) {
    TN_SCOPE;
    packed p = pack("linalg_eig", TN_OP_LINALG_EIG_PACKED, true, x);
    take_factor(&p, 0, p.n, 2, values);
    if (values) tn_keep(*values);
    tn_tensor *flat;
    take_factor(&p, 2 * p.n, p.n * p.n, 2, &flat);
    if (vectors) *vectors = tn_keep((tn_unflatten)(flat, -2, (int64_t[]){p.n, p.n}, 2));
}

/* Replaces *q [..., m, k], whose k columns are orthonormal, by a square matrix that begins with them: Q of [q,
 * identity], whose R has a positive diagonal, so that q itself comes first. */
static void complete_basis(tn_tensor **q, int64_t m) {
    tn_tensor *given = *q, *whole = NULL;
    int rank = tn_rank(given);
    if (rank < 2 || tn_size(given, -1) == m) return;
    int64_t shape[TN_MAX_RANK];
    memcpy(shape, tn_shape(given), (size_t)rank * sizeof *shape);
    shape[rank - 1] = m;
    tn_tensor *one = (tn_eye)(m, m, tn_dtype_of(given)), *ones = (tn_expand)(one, shape, rank);
    tn_tensor *both = (tn_cat)((tn_tensor *[]){given, ones}, 2, -1);
    (tn_linalg_qr)(both, &whole, NULL);
    tn_tensor *used[] = {both, ones, one, given};
    for (size_t i = 0; i < TN_COUNT(used); i++)
        tn_free(tn_tensor_unscoped(used[i]));
    *q = whole;
}

static void complete_rows(tn_tensor **vh, int64_t n) {
    if (tn_rank(*vh) < 2 || tn_size(*vh, -2) == n) return;
    tn_tensor *v = (tn_transpose)(*vh, -2, -1);
    tn_free(tn_tensor_unscoped(*vh));
    complete_basis(&v, n);
    *vh = (tn_transpose)(v, -2, -1);
    tn_free(tn_tensor_unscoped(v));
}

void(tn_linalg_svd)(const tn_tensor *x, bool full_matrices, tn_tensor **u, tn_tensor **s, tn_tensor **vh) {
    packed p = pack("linalg_svd", TN_OP_LINALG_SVD_PACKED, false, x);
    take_factor(&p, 0, p.m, p.k, u);
    take_factor(&p, p.m * p.k, p.k, -1, s);
    take_factor(&p, (p.m + 1) * p.k, p.k, p.n, vh);
    if (full_matrices && u) complete_basis(u, p.m);
    if (full_matrices && vh) complete_rows(vh, p.n);
    tn_free(tn_tensor_unscoped(p.all));
}

void(tn_linalg_slogdet)(const tn_tensor *x, tn_tensor **sign, tn_tensor **logabsdet) {
    packed p = pack("linalg_slogdet", TN_OP_LINALG_DETERMINANTS, true, x);
    tn_tensor **out[] = {sign, logabsdet};
    for (int i = 0; i < 2; i++)
        if (out[i]) *out[i] = tn_status_of(p.all) == TN_OK ? (tn_select)(p.all, -1, i + 1) : (tn_contiguous)(p.all);
    tn_free(tn_tensor_unscoped(p.all));
}
