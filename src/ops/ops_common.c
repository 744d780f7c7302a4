/* ops_common.c — what the files of ops/ share: see ops_common.h. */
#include "ops/ops_common.h"

#include <math.h>
#include <string.h>

/* ---- view functions ---------------------------------------------------------------------------------------------- */

tn_attrs *tn_view_step(tn_view_steps *s, int op) {
    tn_attrs *a = &s->attrs[s->count];
    s->op[s->count++] = op;
    a->n_i = a->n_f = 0;
    return a;
}

void tn_view_shape(tn_view_steps *s, int op, const int64_t *items, int count) {
    tn_attrs *a = tn_view_step(s, op);
    a->i[0] = count;
    memcpy(a->i + 1, items, (size_t)count * sizeof *items);
    a->n_i = (uint8_t)(count + 1);
}

/* The caller knows the function, not the view ops that it stands for. */
tn_tensor *tn_view_record(const tn_tensor *x, const tn_view_steps *s) {
    tn_tensor *before = NULL, *t = NULL;
    tn_recorder *r = tn_recorder_here();
    const char *called = r ? r->called : NULL;
    if (r && !called) r->called = s->name;
    for (int i = 0; i < s->count; i++) {
        const tn_tensor *from = t ? t : x;
        before = t;
        t = tn_record(s->op[i], &from, 1, &s->attrs[i]);
        if (before) tn_free(tn_tensor_unscoped(before)); /* t holds it still: a scope must not free it again */
    }
    if (r) r->called = called;
    return t;
}

tn_node *tn_view_build(tn_build *b, tn_node *x, const tn_view_steps *s) {
    for (int i = 0; i < s->count; i++)
        x = tn_b_op(b, s->op[i], &x, 1, &s->attrs[i]);
    return x;
}

tn_status tn_view_dim(const tn_view_steps *s, int64_t dim, int rank, int64_t *out) {
    tn_op_row row = {.name = s->name};
    tn_infer c = {.row = &row};
    return tn_infer_dim(&c, dim, rank, out);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

tn_node *tn_b_const(tn_build *b, double v, const tn_node *like) {
    if (b->status != TN_OK || !like) return NULL;
    tn_node *c = tn_b_full(b, NULL, 0, v, (tn_dtype)like->dtype);
    if (c) c->device = like->device;
    return c;
}

tn_node *tn_b_scale(tn_build *b, tn_node *x, double v) { return x ? tn_b_mul(b, x, tn_b_const(b, v, x)) : NULL; }

tn_node *tn_b_offset(tn_build *b, tn_node *x, double v) { return x ? tn_b_add(b, x, tn_b_const(b, v, x)) : NULL; }
tn_node *tn_b_as_f32(tn_build *b, tn_node *x) { return x && tn_dtype_is_half(x->dtype) ? tn_b_cast(b, x, TN_F32) : x; }

/* How many of the dims, which ascend, are the last ones of x, when it pays to sum over these first; else 0. What lies
 * between them and the others makes rows of many pieces, and pieces of some length are better rows. */
static int rows_first(const tn_node *x, const int64_t *dims, int count) {
    enum { LONG_ROW = 64 };
    int64_t length = 1;
    int last = 0;
    for (; last < count && dims[count - 1 - last] == x->rank - 1 - last; last++) {
        if (x->symbol[x->rank - 1 - last]) return 0;
        length *= x->shape[x->rank - 1 - last];
    }
    return last < count && length >= LONG_ROW ? last : 0;
}

static tn_node *tn_b_sum_apart(tn_build *b, tn_node *x, const int64_t *dims, int count) {
    int last = x ? rows_first(x, dims, count) : 0;
    if (last > 0) x = tn_b_sum(b, x, dims + count - last, last, true);
    return x ? tn_b_sum(b, x, dims, count - last, true) : NULL;
}

tn_node *tn_b_mean_apart(tn_build *b, tn_node *x, const int64_t *dims, int count) {
    int last = x ? rows_first(x, dims, count) : 0;
    if (last > 0) x = tn_b_mean(b, x, dims + count - last, last, true);
    return x ? tn_b_mean(b, x, dims, count - last, true) : NULL;
}

tn_node *tn_b_sum_to(tn_build *b, tn_node *dy, const tn_node *like) {
    if (b->status != TN_OK || !dy) return NULL;
    int64_t dims[TN_MAX_RANK];
    int count = 0, extra = dy->rank - like->rank;
    for (int d = 0; d < dy->rank; d++)
        if (d < extra || (like->shape[d - extra] == 1 && dy->shape[d] != 1)) dims[count++] = d;
    if (count == extra) return count ? tn_b_sum(b, dy, dims, count, false) : dy;
    dy = tn_b_sum_apart(b, dy, dims, count);
    if (!dy || extra == 0) return dy;
    return tn_b_view(b, dy, like->shape, like->rank);
}

tn_node *tn_b_line(tn_build *b, tn_node *x) { return x && x->rank == 0 ? tn_b_view(b, x, (int64_t[]){1}, 1) : x; }

tn_node *tn_b_row_major(tn_build *b, tn_node *x) { return x && !tn_node_contiguous(x) ? tn_b_contiguous(b, x) : x; }

void tn_grad_none(TN_UNUSED tn_build *b, TN_UNUSED const tn_node *n, TN_UNUSED tn_node *dy, TN_UNUSED tn_node **grads) {
}

/* ---- sums of bytes as bytes -------------------------------------------------------------------------------------- */

tn_status tn_infer_rounding(tn_infer *c, int64_t columns, int64_t zero) {
    const tn_node *bias = c->in[2], *scale = c->in[3];
    const int64_t least = c->in[0]->dtype == TN_I8 ? INT8_MIN : 0;
    char a[96], b[96];
    c->dtype = (tn_dtype)c->in[0]->dtype;
    if (bias->dtype != TN_I32 || scale->dtype != TN_F32)
        return tn_fail(TN_ERR_DTYPE, "%s: bias must be i32 and scale f32; they are %s and %s", c->row->name,
                       tn_dtype_name((tn_dtype)bias->dtype), tn_dtype_name((tn_dtype)scale->dtype));
    if (bias->rank != 1 || scale->rank != 1 || bias->shape[0] != columns || scale->shape[0] != columns)
        return tn_fail(TN_ERR_SHAPE, "%s: bias %s and scale %s must be [%lld], one for each sum", c->row->name,
                       tn_shape_text(bias, a, sizeof a), tn_shape_text(scale, b, sizeof b), (long long)columns);
    if (zero >= least && zero <= least + UINT8_MAX) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: the input is %s, so zero cannot be %lld", c->row->name,
                   tn_dtype_name(c->dtype), (long long)zero);
}

tn_node *tn_b_bytes(tn_build *b, tn_node *y, int64_t zero, tn_dtype dtype) {
    const double least = dtype == TN_I8 ? INT8_MIN : 0, most = dtype == TN_I8 ? INT8_MAX : UINT8_MAX;
    y = tn_b_nan_to_num(b, tn_b_add_scalar(b, tn_b_round(b, y), (double)zero), least, most, least);
    return tn_b_cast(b, tn_b_clamp(b, y, least, most), dtype);
}

tn_node *tn_b_rounded(tn_build *b, tn_node *sums, tn_node *bias, tn_node *scale, int64_t zero, tn_dtype dtype) {
    return tn_b_bytes(b, tn_b_mul(b, tn_b_cast(b, tn_b_add(b, sums, bias), TN_F32), scale), zero, dtype);
}

double tn_reference_byte(float y, int64_t zero, bool is_signed) {
    const double least = is_signed ? INT8_MIN : 0, most = is_signed ? INT8_MAX : UINT8_MAX;
    return fmin(fmax((double)rintf(y) + (double)zero, least), most);
}

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

/* Rounds the low `drop` bits of an f32's pattern away, to nearest, ties to even; NaN stays as it is. */
static kir_val round_bits(kir_builder *kb, kir_val v, int drop) {
    kir_val bits = kir_bitcast(kb, KIR_U32, v);
    kir_val odd = kir_and(kb, kir_shr(kb, bits, kir_const_i(kb, KIR_U32, drop)), kir_const_i(kb, KIR_U32, 1));
    kir_val half = kir_add(kb, odd, kir_const_i(kb, KIR_U32, (INT64_C(1) << (drop - 1)) - 1));
    kir_val mask = kir_const_i(kb, KIR_U32, INT64_C(0xFFFFFFFF) << drop & INT64_C(0xFFFFFFFF));
    kir_val cut = kir_bitcast(kb, KIR_F32, kir_and(kb, kir_add(kb, bits, half), mask));
    return kir_select(kb, kir_eq(kb, v, v), cut, v);
}

/* Below the smallest normal number an f16 has a fixed step of 2^-24: adding and taking away 2^-1 rounds to it, for f32
 * has steps of 2^-24 there. From 65520 on it is infinite. */
static kir_val round_f16(kir_builder *kb, kir_val v) {
    kir_val size = kir_unary(kb, KIR_ABS, v);
    kir_val normal = round_bits(kb, v, 13);
    kir_val half = kir_real(kb, 0.5);
    kir_val small = kir_sub(kb, kir_add(kb, size, half), half);
    kir_val negative = kir_lt(kb, v, kir_real(kb, 0));
    small = kir_select(kb, negative, kir_neg(kb, small), small);
    kir_val zero = kir_eq(kb, v, kir_real(kb, 0));
    small = kir_select(kb, zero, v, small);
    kir_val huge = kir_mul(kb, v, kir_real(kb, 1e38));
    huge = kir_mul(kb, huge, kir_real(kb, 1e38));
    kir_val r = kir_select(kb, kir_lt(kb, size, kir_real(kb, 0x1p-14)), small, normal);
    return kir_select(kb, kir_le(kb, kir_real(kb, 65520), size), huge, r);
}

static kir_val wrap_signed(kir_builder *kb, kir_val v, int bits) {
    kir_val shift = kir_const_i(kb, kir_val_type(kb, v), 32 - bits);
    return kir_shr(kb, kir_shl(kb, v, shift), shift);
}

kir_val tn_lower_narrow(kir_builder *kb, tn_dtype dtype, kir_val v) {
    switch (dtype) {
    case TN_F16: return round_f16(kb, v);
    case TN_BF16: return round_bits(kb, v, 16);
    case TN_I8: return wrap_signed(kb, v, 8);
    case TN_I16: return wrap_signed(kb, v, 16);
    case TN_U8: return kir_and(kb, v, kir_const_i(kb, kir_val_type(kb, v), 0xFF));
    case TN_U16: return kir_and(kb, v, kir_const_i(kb, kir_val_type(kb, v), 0xFFFF));
    default: return v;
    }
}

/* ---- f64 references ---------------------------------------------------------------------------------------------- */

static void walk_steps(const tn_node *n, const tn_node *x, int64_t *step) {
    int64_t s = 1;
    memset(step, 0, TN_MAX_RANK * sizeof *step);
    for (int d = x->rank - 1; d >= 0; d--) {
        if (x->shape[d] != 1) step[d + n->rank - x->rank] = s;
        s *= x->shape[d];
    }
}

tn_walk tn_walk_begin(const tn_node *n) {
    tn_walk w = {.node = n, .count = tn_node_numel(n)};
    for (int i = 0; i < n->n_in && i < 4; i++)
        if (n->in[i] && n->in[i]->rank <= n->rank) walk_steps(n, n->in[i], w.step[i]);
    return w;
}

void tn_walk_next(tn_walk *w) {
    w->place++;
    for (int d = w->node->rank - 1; d >= 0; d--) {
        bool carry = ++w->at[d] == w->node->shape[d];
        int64_t moved = carry ? 1 - w->node->shape[d] : 1;
        for (int i = 0; i < 4; i++)
            w->in[i] += moved * w->step[i][d];
        if (!carry) return;
        w->at[d] = 0;
    }
}

void tn_op_reference(const tn_reference *r) {
    const tn_op_impl *impl = tn_op(r->node->op)->impl;
    bool zero_by_zero = impl->zero_by_zero && !tn_dtype_is_float((tn_dtype)r->node->dtype);
    if (impl->reference) {
        impl->reference(r);
        return;
    }
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) {
        double x = r->in[0][w.in[0]], y = impl->define_two ? r->in[1][w.in[1]] : 0, v = 0;
        if (!(zero_by_zero && y == 0)) v = impl->define_two ? impl->define_two(x, y) : impl->define_one(x);
        r->out[w.place] = r->node->dtype == TN_BOOL ? v != 0 : v;
    }
}

int64_t tn_element_offset(const tn_node *n, const int64_t *at) {
    int64_t place = 0;
    for (int d = 0; d < n->rank; d++)
        place = place * n->shape[d] + at[d];
    return place;
}

/* ---- shape rules ------------------------------------------------------------------------------------------------- */

tn_status tn_need_integer(const tn_infer *c, int input) {
    tn_dtype t = (tn_dtype)c->in[input]->dtype;
    return tn_dtype_is_float(t) || t == TN_BOOL ? tn_refuse_dtype(c, input, "an integer type") : TN_OK;
}

tn_status tn_need_finite(const tn_infer *c, const char *what, double v) {
    if (isfinite(v)) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: %s is %g; it must be finite", c->row->name, what, v);
}

tn_status tn_need_range(const tn_infer *c, const char *what, double v, double least, double most) {
    if (v >= least && v <= most) return TN_OK;
    if (most == INFINITY)
        return tn_fail(TN_ERR_ARGUMENT, "%s: %s is %g; it must be at least %g", c->row->name, what, v, least);
    return tn_fail(TN_ERR_ARGUMENT, "%s: %s is %g; it must be between %g and %g", c->row->name, what, v, least, most);
}

bool tn_rows_follow(const tn_node *x) {
    int64_t offset, stride[TN_MAX_RANK];
    tn_node_layout(x, &offset, stride);
    int64_t expected = 1;
    for (int d = x->rank - 1; d >= 0; expected *= x->shape[d--])
        if (x->shape[d] > 1 && stride[d] != expected) return false;
    return true;
}

tn_status tn_need_rows(const tn_infer *c, int input) {
    const tn_node *x = c->in[input];
    char text[96];
    if (tn_rows_follow(x)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "%s: the rows of input %d, %s of %s, do not follow each other: take rows without a step",
                   c->row->name, input + 1, tn_shape_text(x, text, sizeof text), tn_dtype_name((tn_dtype)x->dtype));
}

tn_status tn_infer_scattered(const tn_infer *c, const tn_node *index, const tn_node *src, int64_t dim,
                             const int64_t *shape, int64_t rank) {
    char a[96], b[96];
    int64_t line = rank ? rank : 1;
    bool fits = tn_line_rank(index) == line && tn_line_rank(src) == line;
    for (int d = 0; fits && d < line; d++) {
        int64_t extent = tn_line_extent(index, d);
        fits = extent <= tn_line_extent(src, d) && (d == dim || extent <= (rank ? shape[d] : 1));
    }
    if (fits || tn_node_numel(index) == 0) return TN_OK;
    return tn_fail(
        TN_ERR_SHAPE,
        "%s: index %s and source %s do not fit the target: ranks must be equal, and no extent of index may be "
        "greater than the source's or (except along dim %lld) the target's",
        c->row->name, tn_shape_text(index, a, sizeof a), tn_shape_text(src, b, sizeof b), (long long)dim);
}

tn_status tn_infer_bits(tn_infer *c) {
    if (tn_dtype_is_float((tn_dtype)c->in[0]->dtype)) return tn_refuse_dtype(c, 0, "an integer type or bool");
    return tn_infer_broadcast(c);
}

tn_status tn_infer_shape(tn_infer *c, const int64_t *shape, int64_t rank) {
    if (rank > TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "%s: rank %lld is more than %d", c->row->name, (long long)rank, TN_MAX_RANK);
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            return tn_fail(TN_ERR_SHAPE, "%s: extent %lld of dimension %d is negative", c->row->name,
                           (long long)shape[d], d);
        if (shape != c->shape) c->symbol[d] = 0;
        c->shape[d] = shape[d];
    }
    c->rank = (int)rank;
    return tn_infer_counted(c);
}

tn_status tn_infer_reshaped(tn_infer *c, const int64_t *shape, int64_t rank) {
    TRY(tn_infer_shape(c, shape, rank));
    c->dtype = (tn_dtype)c->in[0]->dtype;
    return TN_OK;
}
