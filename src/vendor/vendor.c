/* vendor.c — the table of vendors' libraries, and a product in the form that they have in common. */
#include "vendor/vendor.h"

#include <string.h>

#include "cpu/blas.h"

static const tn_vendor_library *const table[] = {
#if TRUNNION_WITH_CUDA
    &tn_vendor_cublaslt,
    &tn_vendor_cudnn,
#endif
#if TRUNNION_WITH_ROCM
    &tn_vendor_rocblas,
#endif
#if TRUNNION_WITH_METAL
    &tn_vendor_mps,
#endif
    NULL,
};

const tn_vendor_library *tn_vendor_library_at(int row) { return table[row]; }

int tn_vendor_row(const char *name) {
    for (int i = 0; table[i]; i++)
        if (strcmp(table[i]->name, name) == 0) return i;
    return -1;
}

static const tn_vendor_error *find_vendor(const tn_vendor_error *errors, int code) {
    while (errors->name && errors->code != code)
        errors++;
    return errors;
}

tn_status tn_vendor_check(const tn_vendor_library *l, const tn_vendor_error *errors, int code, const char *call) {
    if (code == 0) return TN_OK;
    const tn_vendor_error *e = find_vendor(errors, code);
    if (!e->name && code > 1000) e = find_vendor(errors, code - code % 1000);
    const char *name = e->name ? e->name : "an unknown error";
    return tn_fail(e->name ? e->status : TN_ERR_DEVICE, "%s: %s: %s (%d)", l->spec.title, call, name, code);
}

/* ---- the form of a product --------------------------------------------------------------------------------------- */

/* A batch axis; strides of the three. */
typedef struct axis {
    int64_t extent, stride[TN_VENDOR_SIDES];
} axis;

static bool are_one(const axis *outer, const axis *inner) {
    for (int s = 0; s < TN_VENDOR_SIDES; s++)
        if (outer->stride[s] != inner->stride[s] * inner->extent) return false;
    return true;
}

/* Batch axes, the outermost first; neighbours that lie behind each other in all three are one. */
static int gather_axes(const tn_gemm_args *g, axis *out) {
    int count = 0;
    for (int d = 0; d < TN_GEMM_BATCH_AXES; d++) {
        axis a = {g->batch[d], {g->a.batch_stride[d], g->b.batch_stride[d], g->c.batch_stride[d]}};
        if (a.extent == 1) continue;
        if (count > 0 && are_one(&out[count - 1], &a)) a.extent *= out[--count].extent;
        out[count++] = a;
    }
    return count;
}

/* Products with one B are one product, of all rows, where rows of A and C go on from one to the next. */
static bool are_rows(const tn_vendor_product *p, const axis *a) {
    const tn_vendor_side *rows = p->side;
    return a->stride[TN_VENDOR_B] == 0 && !rows[TN_VENDOR_A].transposed &&
           a->stride[TN_VENDOR_A] == p->m * rows[TN_VENDOR_A].ld &&
           a->stride[TN_VENDOR_C] == p->m * rows[TN_VENDOR_C].ld;
}

static bool vendor_fits(int64_t n) { return n > 0 && n <= INT32_MAX; }

static bool take_side(const tn_matrix *x, int64_t rows, int64_t columns, tn_vendor_side *out) {
    if (!tn_matrix_has_side(x, rows, columns)) return false;
    tn_side s = tn_matrix_side(x, rows, columns);
    out->ld = s.ld;
    out->transposed = s.transposed;
    return vendor_fits(s.ld);
}

static void put_axis(tn_vendor_product *p, const axis *a, bool outer) {
    *(outer ? &p->outer : &p->batch) = a->extent;
    for (int s = 0; s < TN_VENDOR_SIDES; s++)
        *(outer ? &p->side[s].outer_stride : &p->side[s].batch_stride) = a->stride[s];
}

/* What every address of an operand is a multiple of. */
static void limit_alignment(tn_vendor_side *s, tn_dtype dtype) {
    int64_t step = s->outer_stride * (int64_t)tn_dtype_size(dtype);
    while (step % s->alignment != 0)
        s->alignment /= 2;
}

bool tn_vendor_product_of(const tn_gemm_args *g, tn_dtype dtype, const int64_t alignment[TN_VENDOR_SIDES],
                          tn_vendor_product *out, const char **why) {
    enum { MOST_AXES = 2, MOST_CALLS = 64 };
    axis axes[TN_GEMM_BATCH_AXES];
    tn_vendor_product p = {.dtype = dtype, .m = g->m, .n = g->n, .k = g->k, .batch = 1, .outer = 1};
    int count = gather_axes(g, axes);
    *why = "does not support products of these dtypes";
    if (!tn_dtype_is_float(dtype) || g->a_dtype != dtype || g->b_dtype != dtype) return false;
    *why = "requires operands with contiguous rows or columns, of fewer than 2^31 each";
    if (!vendor_fits(g->m) || !vendor_fits(g->n) || !vendor_fits(g->k)) return false;
    if (!take_side(&g->a, g->m, g->k, &p.side[TN_VENDOR_A]) || !take_side(&g->b, g->k, g->n, &p.side[TN_VENDOR_B]) ||
        !take_side(&g->c, g->m, g->n, &p.side[TN_VENDOR_C]) || p.side[TN_VENDOR_C].transposed)
        return false;
    while (count > 0 && are_rows(&p, &axes[count - 1]) && vendor_fits(p.m * axes[count - 1].extent))
        p.m *= axes[--count].extent;
    *why = "takes one batch dimension; this product has several that cannot be merged";
    if (count > MOST_AXES || (count == MOST_AXES && axes[0].extent > MOST_CALLS)) return false;
    for (int i = 0; i < count; i++) {
        if (!vendor_fits(axes[i].extent) || axes[i].stride[TN_VENDOR_A] < 0 || axes[i].stride[TN_VENDOR_B] < 0)
            return false;
        put_axis(&p, &axes[i], i + 1 < count);
    }
    for (int s = 0; s < TN_VENDOR_SIDES; s++) {
        p.side[s].alignment = alignment[s];
        limit_alignment(&p.side[s], dtype);
    }
    *out = p;
    return true;
}

/* ---- a run of it ------------------------------------------------------------------------------------------------- */

static const void *scalar(tn_dtype dtype, int value) {
    static const double wide[] = {0, 1};
    static const float narrow[] = {0, 1};
    return dtype == TN_F64 ? (const void *)&wide[value] : &narrow[value];
}

const void *tn_vendor_zero(tn_dtype dtype) { return scalar(dtype, 0); }
const void *tn_vendor_one(tn_dtype dtype) { return scalar(dtype, 1); }

void tn_vendor_step(const tn_vendor_product *p, void *at[TN_VENDOR_SIDES]) {
    for (int s = 0; s < TN_VENDOR_SIDES; s++)
        at[s] = (char *)at[s] + p->side[s].outer_stride * (int64_t)tn_dtype_size(p->dtype);
}
