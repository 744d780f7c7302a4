/* onnx_quant.c — ONNX: casts between the standard's types, and integers with a scale and a zero point.
 *
 * Products of bytes are exact: (a − za)(b − zb) summed is a product of the bytes themselves (int_mm) and sums over rows
 * and columns. Processors that multiply bytes four at a time want the first without a sign and the second with one, so
 * bytes are moved by 128 where they are not so, and their zero points with them. Rounding to a byte is one function for
 * all operators that end so. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/conv.h"
#include "hal/hal.h"
#include "onnx/model.h"
#include "onnx/operator_support.h"

/* x as `to` would hold it, in the dtype that such values live in (onnx_types). saturate: 8-bit floats have their
 * greatest number for what is too large, else NaN or infinity. mode: for powers of two (FLOAT8E8M0). */
static tn_tensor *cast_to(const tn_tensor *x, onnx_type to, bool saturate, onnx_rounding mode);

/* ---- scales and zero points -------------------------------------------------------------------------------------- */

/* A scale or zero point so that it meets x: one number, one an index of the axis, or one a block of that axis. */
static tn_status spread_over(const onnx_call *c, const tn_tensor *t, const tn_tensor *x, const tn_tensor **out) {
    int64_t shape[TN_MAX_RANK], block = onnx_int(c, "block_size", 0);
    int axis = 0, rank = tn_rank(x);
    TRY(tn_status_of(x));
    TRY(tn_status_of(t));
    *out = t;
    if (tn_numel(t) == 1 && tn_rank(t) <= 1) return *out = tn_reshape(t, NULL, 0), tn_status_of(*out);
    TRY(onnx_axis(c, onnx_int(c, "axis", 1), rank, rank == 1 ? &(int){0} : &axis));
    if (tn_rank(t) == 1 && !block) {
        for (int d = 0; d < rank; d++)
            shape[d] = d == axis ? tn_numel(t) : 1;
        *out = tn_reshape(t, shape, rank);
        return tn_status_of(*out);
    }
    if (tn_rank(t) != rank || block < 1)
        return onnx_refuse(c, "a scale of %d dimensions for an input of %d, or block_size below 1", tn_rank(t), rank);
    if (rank == TN_MAX_RANK) return onnx_refuse(c, "blocks of a tensor of %d dimensions are not supported", rank);
    memcpy(shape, tn_shape(t), (size_t)(axis + 1) * sizeof *shape);
    shape[axis + 1] = block;
    for (int d = axis + 1; d < rank; d++)
        shape[d + 1] = tn_size(t, d);
    tn_tensor *each = tn_flatten(tn_expand(tn_unsqueeze(t, axis + 1), shape, rank + 1), axis, axis + 1);
    *out = tn_narrow(each, axis, 0, tn_size(x, axis));
    return tn_status_of(*out);
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static const struct {
    onnx_type type;
    double least, most;
} integer_ranges[] = {{ONNX_UINT8, 0, UINT8_MAX},   {ONNX_INT8, INT8_MIN, INT8_MAX},
                      {ONNX_UINT16, 0, UINT16_MAX}, {ONNX_INT16, INT16_MIN, INT16_MAX},
                      {ONNX_UINT4, 0, 15},          {ONNX_INT4, -8, 7},
                      {ONNX_UINT2, 0, 3},           {ONNX_INT2, -2, 1}};

tn_tensor *onnx_rounded(const onnx_call *c, const tn_tensor *x, const tn_tensor *zero, onnx_type to) {
    for (size_t i = 0; i < TN_COUNT(integer_ranges); i++) {
        if (integer_ranges[i].type != to) continue;
        const tn_tensor *y = tn_round(onnx_as(x, TN_F32));
        if (zero) y = tn_add(y, tn_cast(zero, TN_F32));
        return tn_cast(tn_clamp(y, integer_ranges[i].least, integer_ranges[i].most), onnx_types[to].dtype);
    }
    if (zero) x = tn_add(onnx_as(x, TN_F32), zero);
    return cast_to(x, to, onnx_int(c, "saturate", 1) != 0, ONNX_ROUND_UP);
}

static bool quantises_to(onnx_type t) {
    static const onnx_type floats[] = {ONNX_FLOAT8E4M3FN, ONNX_FLOAT8E4M3FNUZ, ONNX_FLOAT8E5M2, ONNX_FLOAT8E5M2FNUZ,
                                       ONNX_FLOAT4E2M1,   ONNX_FLOAT6E2M3,     ONNX_FLOAT6E3M2};
    bool found = false;
    for (size_t k = 0; k < TN_COUNT(floats); k++)
        found = found || floats[k] == t;
    for (size_t k = 0; k < TN_COUNT(integer_ranges); k++)
        found = found || integer_ranges[k].type == t;
    return found;
}

tn_status onnx_check_zero(const onnx_call *c, int zero, int of) {
    if (!onnx_has(c, zero) || onnx_in_type(c, zero) == onnx_in_type(c, of)) return TN_OK;
    return onnx_refuse(c, "input %d is %s but its zero point %s", of, onnx_types[onnx_in_type(c, of)].name,
                       onnx_types[onnx_in_type(c, zero)].name);
}

tn_status onnx_check_scale(const onnx_call *c, int scale, bool divides) {
    AUTO_FREE double *list = NULL;
    int64_t count;
    if (!onnx_has(c, scale) || c->in[scale]->fixed != ONNX_CONSTANT) return TN_OK;
    TRY(onnx_read_floats(c, scale, &list, &count, INT64_MAX));
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(list[i]) || (divides && list[i] == 0))
            return onnx_refuse(c, "scale %lld (input %d) is %g; it must be finite%s", (long long)i, scale, list[i],
                               divides ? " and not 0" : "");
    return TN_OK;
}

static tn_status quantize(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *scale = onnx_in(c, 1), *zero = NULL;
    onnx_type to = onnx_has(c, 2) ? onnx_in_type(c, 2) : onnx_type_attribute(c, "output_dtype", ONNX_UINT8);
    tn_dtype precision = onnx_types[onnx_type_attribute(c, "precision", onnx_type_of(tn_dtype_of(scale)))].dtype;
    if (precision == TN_I32) precision = TN_F32;
    if (!quantises_to(to)) return onnx_refuse(c, "cannot quantize to %s", onnx_types[to].name);
    TRY(onnx_check_scale(c, 1, true));
    TRY(spread_over(c, scale, x, &scale));
    if (onnx_has(c, 2)) TRY(spread_over(c, onnx_in(c, 2), x, &zero));
    tn_tensor *ratio = tn_div(onnx_as(x, precision), onnx_as(scale, precision));
    return onnx_put_typed(c, 0, onnx_rounded(c, ratio, zero, to), to);
}

static bool is_integer(tn_dtype t) { return t != TN_F32 && t != TN_F64 && t != TN_F16 && t != TN_BF16; }

static tn_status dequantize(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *scale = onnx_in(c, 1), *zero;
    onnx_type to = onnx_type_attribute(c, "output_dtype", onnx_in_type(c, 1));
    if (to == ONNX_FLOAT8E8M0) to = ONNX_FLOAT;
    tn_dtype own = onnx_types[to].dtype;
    if (!quantises_to(onnx_in_type(c, 0)) && onnx_in_type(c, 0) != ONNX_INT32)
        return onnx_refuse(c, "its input is %s, which is not a quantized type", onnx_types[onnx_in_type(c, 0)].name);
    TRY(onnx_check_scale(c, 1, false));
    TRY(onnx_check_zero(c, 2, 0));
    if (onnx_has(c, 2)) {
        TRY(spread_over(c, onnx_in(c, 2), x, &zero));
        tn_dtype wide = is_integer(tn_dtype_of(x)) ? TN_I32 : TN_F32;
        x = tn_sub(onnx_as(x, wide), onnx_as(zero, wide));
    }
    TRY(spread_over(c, scale, x, &scale));
    return onnx_put_typed(c, 0, tn_mul(onnx_as(x, own), onnx_as(scale, own)), to);
}

/* Numbers as bytes with the scale and zero point by which they span the numbers and 0. */
typedef struct spanned {
    tn_tensor *bytes, *scale, *zero;
} spanned;

/* The last dims of x, so that the dims before them have enough places for all threads; returns how many. */
static int inner_dims(const tn_tensor *x, int64_t *dims) {
    enum { PLACES = 16 };
    int64_t places = 1;
    int first = 0, count = 0;
    while (first < tn_rank(x) && places < PLACES)
        places *= tn_size(x, first++);
    for (; first < tn_rank(x); first++)
        dims[count++] = first;
    return count;
}

static spanned span(const onnx_call *c, const tn_tensor *x) {
    int64_t dims[TN_MAX_RANK];
    const int inner = inner_dims(x, dims);
    const tn_tensor *least = inner ? tn_amin(x, dims, inner, false) : x;
    const tn_tensor *most = inner ? tn_amax(x, dims, inner, false) : x;
    tn_tensor *low = tn_minimum_scalar(tn_amin(least, TN_ALL, false), 0),
              *high = tn_maximum_scalar(tn_amax(most, TN_ALL, false), 0);
    tn_tensor *scale = tn_div_scalar(tn_sub(high, low), UINT8_MAX);
    tn_tensor *divisor = tn_where(tn_eq_scalar(scale, 0), tn_ones_like(scale), scale);
    tn_tensor *zero = tn_cast(tn_round(tn_clamp(tn_neg(tn_div(low, divisor)), 0, UINT8_MAX)), TN_U8);
    return (spanned){.bytes = onnx_rounded(c, tn_div(x, divisor), zero, ONNX_UINT8), .scale = scale, .zero = zero};
}

static tn_status dynamic_quantize(onnx_call *c) {
    spanned s = span(c, onnx_in(c, 0));
    TRY(onnx_put(c, 0, s.bytes));
    TRY(onnx_put(c, 1, s.scale));
    return onnx_put(c, 2, s.zero);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A zero point or scale a row or a column so that it meets the matrices: [m] as [m, 1], [n] as [1, n]. */
static const tn_tensor *of_lines(const tn_tensor *t, bool rows) {
    if (!t || tn_rank(t) != 1) return t;
    int64_t n = tn_numel(t), shape[2] = {rows ? n : 1, rows ? 1 : n};
    return n == 1 ? tn_reshape(t, NULL, 0) : tn_reshape(t, shape, 2);
}

static tn_tensor *line_sums(const tn_tensor *x, int64_t dim) {
    return tn_cast(tn_sum(tn_cast(x, TN_I32), &dim, 1, true), TN_I32);
}

static bool is_byte(const tn_tensor *x) { return tn_dtype_of(x) == TN_I8 || tn_dtype_of(x) == TN_U8; }

enum {
    MOVE = 128,             /* from one kind of byte to the other */
    MOST_WEIGHTS = 1 << 22, /* that are read once to see how large their sums are */
    MOST_FILTERS = 1 << 20,
    EXACT = (1 << 24) / (UINT8_MAX * UINT8_MAX) /* products of bytes whose sum is a whole number of f32 */
};

/* Bytes as i8: those of u8 less MOVE. */
static tn_tensor *with_sign(const tn_tensor *x) {
    return tn_dtype_of(x) == TN_I8 ? tn_detach(x) : tn_cast(tn_sub(tn_cast(x, TN_I32), tn_scalar_int(MOVE)), TN_I8);
}

/* Of a matrix [k, n], or of each of several, [m, k, n]. */
static tn_tensor *column_sums(const tn_tensor *x) { return line_sums(with_sign(x), tn_rank(x) - 2); }

static tn_tensor *centred(const tn_tensor *x) { return tn_cast(with_sign(x), TN_F32); }

static tn_tensor *by_place(const tn_tensor *x) {
    return tn_contiguous(tn_flatten(tn_movedim(with_sign(x), 1, -1), 1, -1));
}

static tn_tensor *filter_sums(const tn_tensor *x) { return tn_t(line_sums(tn_flatten(with_sign(x), 1, -1), 1)); }

/* The zero point of bytes that were shifted to another type; NULL if the node has none. */
static const tn_tensor *moved_zero(const tn_tensor *zero, const tn_tensor *bytes, tn_dtype wanted) {
    double by = tn_dtype_of(bytes) == wanted ? 0 : wanted == TN_U8 ? MOVE : -MOVE;
    const tn_tensor *wide = zero ? tn_cast(zero, TN_I32) : by != 0 ? tn_full(NULL, 0, 0, TN_I32) : NULL;
    return by != 0 ? tn_add(wide, tn_scalar_int((int64_t)by)) : wide;
}

/* The second operand of a product of bytes: [k, n], i8; the sums of its columns, [1, n], where they are asked for. */
typedef struct byte_matrix {
    const tn_tensor *bytes, *sums, *zero;
} byte_matrix;

/* Input b_in, whose zero point is zb. */
static byte_matrix matrix_of(const onnx_call *c, int b_in, const tn_tensor *b, const tn_tensor *zb) {
    bool signs = tn_dtype_of(b) == TN_I8;
    return (byte_matrix){.bytes = signs ? b : onnx_derived(c, b_in, ONNX_SIGNED, with_sign),
                         .zero = moved_zero(zb, b, TN_I8)};
}

/* Σ (a − za)(b − zb) for bytes a [m, k]: zero points broadcast to columns and rows, or are NULL. */
static tn_tensor *product_of_bytes(const tn_tensor *a, const tn_tensor *za, const byte_matrix *b) {
    const tn_tensor *zb = b->zero;
    za = moved_zero(za, a, TN_U8);
    if (tn_dtype_of(a) == TN_I8) a = tn_cast(tn_add(tn_cast(a, TN_I32), tn_scalar_int(MOVE)), TN_U8);
    tn_tensor *y = tn_int_mm(a, b->bytes);
    if (za) y = tn_sub(y, tn_mul(za, b->sums));
    if (zb) y = tn_sub(y, tn_mul(line_sums(a, 1), zb));
    if (za && zb) y = tn_add(y, tn_mul(tn_mul(za, zb), tn_scalar_int(tn_size(a, 1))));
    return y;
}

onnx_byte_weight onnx_byte_weight_of(const onnx_call *c, const onnx_byte_operands *at, int64_t which) {
    const tn_tensor *b = onnx_in(c, at->b), *zero = onnx_optional(c, at->b_zero);
    zero = zero ? moved_zero(tn_select(zero, 0, which), b, TN_I8) : moved_zero(NULL, b, TN_I8);
    return (onnx_byte_weight){
        .bytes = tn_select(tn_dtype_of(b) == TN_I8 ? b : onnx_derived(c, at->b, ONNX_SIGNED, with_sign), 0, which),
        .sums = tn_select(onnx_derived(c, at->b, ONNX_COLUMN_SUMS, column_sums), 0, which),
        .scale = tn_select(onnx_in(c, at->b_scale), 0, which),
        .zero = of_lines(zero, false)};
}

tn_tensor *onnx_product_of_rounded(const onnx_call *c, const tn_tensor *x, const onnx_byte_weight *w) {
    spanned s = span(c, x);
    byte_matrix b = {.bytes = w->bytes, .sums = w->sums, .zero = w->zero};
    return tn_mul(tn_cast(product_of_bytes(s.bytes, s.zero, &b), TN_F32), tn_mul(s.scale, w->scale));
}

/* Bytes that are no rows times a matrix: products of floats, of so few steps that these hold each sum exactly. */
static tn_tensor *wide_product(const tn_tensor *a, const tn_tensor *b, const tn_tensor *za, const tn_tensor *zb) {
    const tn_tensor *wide_a = onnx_as(a, TN_F32), *wide_b = onnx_as(b, TN_F32);
    if (za) wide_a = tn_sub(wide_a, onnx_as(za, TN_F32));
    if (zb) wide_b = tn_sub(wide_b, onnx_as(zb, TN_F32));
    if (!is_byte(a)) return tn_matmul(wide_a, wide_b);
    int64_t k = tn_size(a, -1), steps = tn_rank(b) > 1 ? -2 : -1;
    if (k <= EXACT || k != tn_size(b, (int)steps)) return tn_cast(tn_matmul(wide_a, wide_b), TN_I32);
    tn_tensor *y = NULL;
    for (int64_t at = 0; at < k; at += EXACT) {
        int64_t count = k - at < EXACT ? k - at : EXACT;
        const tn_tensor *part = tn_matmul(tn_narrow(wide_a, -1, at, count), tn_narrow(wide_b, (int)steps, at, count));
        y = y ? tn_add(y, tn_cast(part, TN_I32)) : tn_cast(part, TN_I32);
    }
    return y;
}

/* Matrices of any rank as numpy multiplies them; i32. Which inputs they and their zero points are. */
static tn_tensor *product(const onnx_call *c, int a_in, int b_in, int a_zero, int b_zero) {
    const tn_tensor *a = onnx_in(c, a_in), *b = onnx_in(c, b_in);
    const tn_tensor *za = of_lines(onnx_optional(c, a_zero), true), *zb = of_lines(onnx_optional(c, b_zero), false);
    int rank = tn_rank(a);
    if (is_byte(a) != is_byte(b))
        return tn_failed(TN_ERR_UNSUPPORTED, "products of %s with %s are not supported", tn_dtype_name(tn_dtype_of(a)),
                         tn_dtype_name(tn_dtype_of(b)));
    bool rows = rank >= 2 && tn_rank(b) == 2 && (!za || tn_rank(za) == 0 || rank == 2) && (!zb || tn_rank(zb) <= 2);
    if (!rows || !is_byte(a) || !is_byte(b)) return wide_product(a, b, za, zb);
    byte_matrix matrix = matrix_of(c, b_in, b, zb);
    if (za || tn_dtype_of(a) == TN_I8) matrix.sums = onnx_derived(c, b_in, ONNX_COLUMN_SUMS, column_sums);
    int64_t shape[TN_MAX_RANK], flat[2] = {-1, tn_size(a, -1)};
    memcpy(shape, tn_shape(a), (size_t)rank * sizeof *shape);
    shape[rank - 1] = tn_size(b, 1);
    for (int d = 0; flat[1] == 0 && d < rank - 1; d++) /* no extent follows from no numbers */
        flat[0] = d ? flat[0] * shape[d] : shape[d];
    tn_tensor *y = product_of_bytes(rank == 2 ? a : tn_reshape(a, flat, 2), za, &matrix);
    return rank == 2 ? y : tn_reshape(y, shape, rank);
}

static tn_status matmul_integer(onnx_call *c) {
    TRY(onnx_check_zero(c, 2, 0));
    TRY(onnx_check_zero(c, 3, 1));
    return onnx_put(c, 0, product(c, 0, 1, 2, 3));
}

/* The inputs of QLinearConv and QLinearMatMul that are not bytes, or say what these are in the result; behind a bias,
 * what quant_graph.c adds of a QLinearAdd that reads that result. */
enum { A_SCALE = 1, B_SCALE = 4, Y_SCALE = 6, Y_ZERO = 7, ADDEND = 9, ADDEND_SCALE, ADDEND_ZERO, SUM_SCALE, SUM_ZERO };

/* The operands' scales by the result's, of constants by the host, in f32 as they would be: else each element divided.
 * NULL: it is for the device. */
static tn_tensor *constant_ratio(const onnx_call *c, const tn_tensor *b_scale) {
    double a, y;
    AUTO_FREE double *b = NULL;
    int64_t count = tn_numel(b_scale), found;
    if (c->in[A_SCALE]->fixed != ONNX_CONSTANT || c->in[B_SCALE]->fixed != ONNX_CONSTANT) return NULL;
    if (c->in[Y_SCALE]->fixed != ONNX_CONSTANT || tn_status_of(b_scale) != TN_OK) return NULL;
    if (tn_numel(onnx_in(c, A_SCALE)) != 1 || tn_numel(onnx_in(c, Y_SCALE)) != 1) return NULL;
    if (onnx_read_float(c, A_SCALE, 1, &a) != TN_OK || onnx_read_float(c, Y_SCALE, 1, &y) != TN_OK) return NULL;
    if (onnx_read_floats(c, B_SCALE, &b, &found, count) != TN_OK || found != count) return NULL;
    for (int64_t i = 0; i < count; i++)
        b[i] = (float)a * (float)b[i] / (float)y;
    return onnx_from_doubles(b, tn_shape(b_scale), tn_rank(b_scale), TN_F32);
}

/* Σ (x − zero)·w + bias is Σ x·w plus a number for each filter or column, and a group of constants has these once. */
typedef struct rounding {
    onnx_value *bias, *scale; /* NULL: scales are not finite */
} rounding;

static void drop_rounding(void *data) {
    rounding *r = data;
    onnx_value_release(r->bias);
    onnx_value_release(r->scale);
    tn_mem_free(r);
}

/* One number for each filter, or column of a matrix. */
static tn_tensor *for_filters(const tn_tensor *t, int64_t filters) {
    return tn_expand(tn_reshape(t, (int64_t[]){tn_numel(t)}, 1), &filters, 1);
}

static tn_status fill_rounding(const onnx_call *c, rounding *r) {
    const tn_tensor *weight = onnx_in(c, 3);
    const bool matrix = tn_rank(weight) == 2;
    const int64_t filters = tn_size(weight, matrix);
    int64_t zero;
    TRY(onnx_read_int(c, 2, 0, &zero));
    weight = matrix ? tn_t(weight) : tn_flatten(weight, 1, -1);
    const tn_tensor *sums = tn_sum(tn_cast(weight, TN_I32), &(int64_t){1}, 1, false);
    const tn_tensor *bias = tn_mul(tn_cast(sums, TN_I32), tn_full(NULL, 0, -(double)zero, TN_I32));
    if (onnx_has(c, 8)) bias = tn_add(bias, onnx_in(c, 8));
    tn_tensor *ratio = constant_ratio(c, onnx_in(c, B_SCALE));
    if (!ratio || tn_item(tn_all(tn_isfinite(ratio), TN_ALL, false)) == 0) return TN_OK;
    tn_tensor *made[] = {tn_contiguous(for_filters(bias, filters)), tn_contiguous(for_filters(ratio, filters))};
    TRY(tn_eval(made, 2));
    r->bias = onnx_value_tensor(tn_detach(made[0]), ONNX_INT32);
    r->scale = onnx_value_tensor(tn_detach(made[1]), ONNX_FLOAT);
    return r->bias && r->scale ? TN_OK : tn_error_code();
}

static tn_status make_rounding(const onnx_call *c, void **data) {
    rounding *r = tn_mem_zalloc(1, sizeof *r);
    tn_status status = r ? fill_rounding(c, r) : TN_ERR_MEMORY;
    if (status == TN_OK) return *data = r, TN_OK;
    if (r) drop_rounding(r);
    return status;
}

/* Largest distance of a weight's zero points from the middle of their range; −1: unknown. */
static int64_t zero_off(const onnx_call *c, int zero, double centre) {
    double *list = NULL, most = fabs(centre);
    int64_t count = 0;
    if (!onnx_has(c, zero)) return (int64_t)most;
    if (c->in[zero]->fixed != ONNX_CONSTANT || onnx_read_floats(c, zero, &list, &count, MOST_FILTERS) != TN_OK)
        return -1;
    most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(list[i] - centre));
    tn_mem_free(list);
    return (int64_t)most;
}

/* Whether all inputs but the image or the first matrix, and an addend, are constants. */
static bool rounds_by_constants(const onnx_call *c) {
    bool constant = !onnx_is_in_function(c);
    for (int i = A_SCALE; i <= SUM_ZERO; i++)
        constant = constant && (i == ADDEND || !onnx_has(c, i) || c->in[i]->fixed == ONNX_CONSTANT);
    return constant;
}

static tn_status check_scales(const onnx_call *c) {
    TRY(onnx_check_scale(c, A_SCALE, false));
    TRY(onnx_check_scale(c, B_SCALE, false));
    return onnx_check_scale(c, Y_SCALE, true);
}

/* Sums as numbers of the output's scale; the scales of the operands broadcast to the sums. */
static tn_status put_quantized(onnx_call *c, tn_tensor *sums, const tn_tensor *a_scale, const tn_tensor *b_scale) {
    tn_tensor *ratio = constant_ratio(c, b_scale);
    if (!ratio)
        ratio =
            tn_div(tn_mul(tn_cast(a_scale, TN_F32), tn_cast(b_scale, TN_F32)), tn_cast(onnx_in(c, Y_SCALE), TN_F32));
    tn_tensor *y = tn_mul(tn_cast(sums, TN_F32), ratio);
    onnx_type type = onnx_in_type(c, Y_ZERO);
    if (!quantises_to(type)) return onnx_refuse(c, "cannot quantize to %s", onnx_types[type].name);
    TRY(check_scales(c));
    return onnx_put_typed(c, 0, onnx_rounded(c, y, onnx_in(c, Y_ZERO), type), type);
}

/* One number, or a line of one a column. */
static bool is_line(const onnx_call *c, int i, int64_t columns) {
    const tn_tensor *t = onnx_optional(c, i);
    return !t || tn_numel(t) == 1 || (tn_numel(t) == columns && tn_size(t, -1) == columns);
}

tn_status onnx_matmul_rounded(const onnx_call *c, tn_tensor **y) {
    enum { A_ZERO = 2, B = 3, B_ZERO = 5, BIAS = 8 };
    const tn_tensor *a = onnx_in(c, 0), *b = onnx_in(c, B);
    const rounding *r;
    if (!rounds_by_constants(c)) return TN_OK;
    TRY(tn_status_of(a));
    TRY(tn_status_of(b));
    const int rank = tn_rank(a);
    if (tn_dtype_of(a) != TN_U8 || tn_dtype_of(b) != TN_I8 || rank < 2 || tn_rank(b) != 2 || tn_numel(a) == 0 ||
        zero_off(c, B_ZERO, 0) != 0 || (onnx_has(c, Y_ZERO) && onnx_in_type(c, Y_ZERO) != ONNX_UINT8) ||
        !is_line(c, A_ZERO, 1) || !is_line(c, B_SCALE, tn_size(b, 1)) || !is_line(c, BIAS, tn_size(b, 1)))
        return TN_OK;
    TRY(check_scales(c));
    TRY(onnx_prepare(c, make_rounding, drop_rounding, (const void **)&r));
    if (!r->scale) return TN_OK;
    tn_quantized_mm_options o = TN_QUANTIZED_MM_DEFAULTS;
    int64_t shape[TN_MAX_RANK];
    TRY(onnx_read_int(c, Y_ZERO, 0, &o.zero));
    memcpy(shape, tn_shape(a), (size_t)rank * sizeof *shape);
    shape[rank - 1] = tn_size(b, 1);
    if (rank > 2) a = tn_reshape(a, (int64_t[]){-1, tn_size(a, -1)}, 2);
    *y = tn_quantized_mm(a, b, r->bias->tensor, r->scale->tensor, &o);
    if (rank > 2) *y = tn_reshape(*y, shape, rank);
    return tn_status_of(*y);
}

static tn_status matmul_linear(onnx_call *c) {
    tn_tensor *y = NULL;
    TRY(onnx_check_zero(c, 2, 0));
    TRY(onnx_check_zero(c, 5, 3));
    TRY(onnx_matmul_rounded(c, &y));
    if (y) return onnx_put(c, 0, y);
    tn_tensor *sums = product(c, 0, 3, 2, 5);
    return put_quantized(c, sums, of_lines(onnx_in(c, A_SCALE), true), of_lines(onnx_in(c, B_SCALE), false));
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* One group by the product of bytes: what the window sees, a row a place, times filters [out, …]; `sums` of these. */
static tn_tensor *convolve_bytes(const tn_tensor *x, const byte_matrix *weight, const tn_tensor *zx, double padding,
                                 const onnx_window *w) {
    int64_t places[ONNX_MAX_AXES], shape[TN_MAX_RANK] = {tn_size(x, 0)}, count = tn_size(x, 0);
    int64_t out = tn_size(weight->bytes, 0), depth = tn_size(weight->bytes, 1);
    int axes = w->axes;
    for (int a = 0; a < axes; a++) {
        places[a] = onnx_places(w, a, tn_size(x, 2 + a), false);
        if (places[a] < 1) return tn_failed(TN_ERR_SHAPE, "the kernel is larger than the padded input");
        count *= places[a];
        shape[1 + a] = places[a];
    }
    shape[1 + axes] = out;
    tn_tensor *rows = tn_reshape(onnx_seen_by_place(x, w, places, padding), (int64_t[]){count, depth}, 2);
    byte_matrix filters = {.bytes = tn_t(weight->bytes), .sums = weight->sums, .zero = of_lines(weight->zero, false)};
    return tn_movedim(tn_reshape(product_of_bytes(rows, zx, &filters), shape, 2 + axes), -1, 1);
}

/* Sums that f32 holds exactly, whatever their order. Under fast numerics they are rounded as floats are, so large ones
 * may be off by ones. */
static tn_tensor *convolve_small(const tn_tensor *x, const tn_tensor *filters, const tn_tensor *zx,
                                 const onnx_window *w, int64_t groups) {
    const tn_tensor *wide = tn_cast(x, TN_F32);
    if (zx) wide = tn_sub(wide, tn_cast(zx, TN_F32));
    return tn_cast(tn_round(onnx_convolve(wide, filters, NULL, w, groups)), TN_I32);
}

/* The largest sum of absolute values of a filter's centred bytes; −1: unknown. Constants are examined once. */
static int64_t spread_of(const onnx_call *c, int weight, double centre) {
    onnx_value *v = c->in[weight];
    double *list = NULL;
    int64_t count = 0, out = tn_size(v->tensor, 0), most = 0;
    if (v->fixed != ONNX_CONSTANT || tn_numel(v->tensor) > MOST_WEIGHTS) return -1;
    if (v->spread) return v->spread - 1;
    if (onnx_read_floats(c, weight, &list, &count, MOST_WEIGHTS) != TN_OK) return -1;
    for (int64_t f = 0; f < out; f++) {
        double sum = 0;
        for (int64_t i = f * (count / out); i < (f + 1) * (count / out); i++)
            sum += fabs(list[i] - centre);
        most = sum > (double)most ? (int64_t)sum : most;
    }
    tn_mem_free(list);
    v->spread = most + 1;
    return most;
}

/* Filters as numbers, their zero points taken away; NULL where a sum of their products may be too large for f32. */
static const tn_tensor *small_filters(const onnx_call *c, int weight, int zero, const tn_tensor *zw, int64_t depth) {
    int64_t shape[TN_MAX_RANK] = {-1, 1, 1, 1, 1};
    const tn_tensor *w = onnx_in(c, weight);
    double centre = tn_dtype_of(w) == TN_U8 ? MOVE : 0;
    int64_t off = zero_off(c, zero, centre), spread = off < 0 ? -1 : spread_of(c, weight, centre);
    bool known = spread >= 0 && (double)spread + (double)off * (double)depth < (1 << 24) / UINT8_MAX;
    if (!known && depth > EXACT) return NULL;
    if (known && off == 0) return onnx_derived(c, weight, ONNX_CENTRED, centred);
    const tn_tensor *wide = tn_cast(w, TN_F32);
    return zw ? tn_sub(wide, tn_cast(tn_rank(zw) ? tn_reshape(zw, shape, tn_rank(w)) : zw, TN_F32)) : wide;
}

static tn_tensor *convolve_groups(const tn_tensor *x, const byte_matrix *weight, const tn_tensor *zx, double padding,
                                  const onnx_window *w, int64_t groups) {
    enum { GROUPS_MOST = 1024 };
    tn_tensor *parts[GROUPS_MOST];
    int64_t in = tn_size(x, 1) / groups, out = tn_size(weight->bytes, 0) / groups;
    if (groups == 1) return convolve_bytes(x, weight, zx, padding, w);
    if (groups > GROUPS_MOST) return tn_failed(TN_ERR_UNSUPPORTED, "%lld groups are not supported", (long long)groups);
    for (int64_t g = 0; g < groups; g++) {
        const tn_tensor *z = weight->zero;
        byte_matrix own = {.bytes = tn_narrow(weight->bytes, 0, g * out, out),
                           .sums = weight->sums ? tn_narrow(weight->sums, 1, g * out, out) : NULL,
                           .zero = z && tn_rank(z) && tn_numel(z) > 1 ? tn_narrow(z, 0, g * out, out) : z};
        parts[g] = convolve_bytes(tn_narrow(x, 1, g * in, in), &own, zx, padding, w);
    }
    return onnx_joined(parts, groups, 1, false);
}

/* Input i, one of a convolution, is bytes, with one zero point or one a filter, bytes of that kind. */
static tn_status check_bytes(const onnx_call *c, int i, int zero, int64_t filters) {
    const tn_tensor *x = onnx_in(c, i), *z = onnx_optional(c, zero);
    TRY(tn_status_of(x));
    if (!is_byte(x))
        return onnx_refuse(c, "input %d is %s, but must be INT8 or UINT8", i, tn_dtype_name(tn_dtype_of(x)));
    if (!z) return TN_OK;
    if (tn_dtype_of(z) != tn_dtype_of(x))
        return onnx_refuse(c, "input %d is %s but its zero point %s", i, tn_dtype_name(tn_dtype_of(x)),
                           tn_dtype_name(tn_dtype_of(z)));
    if (tn_numel(z) == 1 || tn_numel(z) == filters) return TN_OK;
    return onnx_refuse(c, "%lld zero points of input %d; expected one, or %lld", (long long)tn_numel(z), i,
                       (long long)filters);
}

/* As the kernel of bytes has it, where the processor has one and these sizes fit. */
static bool takes_bytes(const tn_tensor *x, const tn_tensor *weight, const onnx_window *w, int64_t groups,
                        bool rounds) {
    tn_conv_args a = {.batch = tn_size(x, 0), .groups = groups, .channels = tn_size(weight, 1)};
    a.rounding = rounds ? &tn_any_byte_rounding : NULL;
    if (w->axes > 2 || !tn_device_of(x)->is_cpu) return false;
    a.out_channels = tn_size(weight, 0) / groups;
    for (int d = 0; d < 2; d++) {
        int axis = d - 2 + w->axes;
        a.size[d] = axis < 0 ? 1 : tn_size(x, 2 + axis);
        a.kernel[d] = axis < 0 ? 1 : w->kernel[axis];
        a.stride[d] = axis < 0 ? 1 : w->stride[axis];
        a.dilation[d] = axis < 0 ? 1 : w->dilation[axis];
        a.pad_before[d] = axis < 0 ? 0 : w->before[axis];
        a.out_size[d] = axis < 0 ? 1 : onnx_places(w, axis, a.size[d], false);
        if (axis >= 0 && (w->before[axis] < 0 || w->after[axis] < 0)) return false;
    }
    return tn_conv_bytes_fits(&a);
}

/* Σ (x − zero)·w for filters without zero points: sums of bytes without a sign, less what the zero point adds. Images
 * with one axis have two here. */
static tn_tensor *convolve_as_bytes(const onnx_call *c, int x_in, int w_in, int64_t zero, const onnx_window *w,
                                    int64_t groups) {
    const tn_tensor *x = onnx_in(c, x_in), *weight = onnx_in(c, w_in);
    tn_int_conv2d_options o = TN_INT_CONV2D_DEFAULTS;
    o.groups = groups;
    if (tn_dtype_of(weight) == TN_U8) weight = onnx_derived(c, w_in, ONNX_SIGNED, with_sign);
    if (tn_dtype_of(x) == TN_I8) {
        x = tn_cast(tn_add_scalar(tn_cast(x, TN_I32), MOVE), TN_U8);
        zero += MOVE;
    }
    for (int axis = 0; axis < w->axes; axis++) {
        int d = 2 - w->axes + axis;
        o.stride[d] = w->stride[axis];
        o.padding[d] = w->before[axis];
        o.padding[2 + d] = w->after[axis];
        o.dilation[d] = w->dilation[axis];
    }
    o.outside = zero;
    bool lines = w->axes == 1;
    tn_tensor *y =
        lines ? tn_int_conv2d(tn_unsqueeze(x, 2), tn_unsqueeze(weight, 2), &o) : tn_int_conv2d(x, weight, &o);
    if (zero != 0) {
        const tn_tensor *sums = onnx_derived(c, w_in, ONNX_FILTER_SUMS, filter_sums);
        y = tn_sub(y, tn_mul(tn_reshape(sums, (int64_t[]){tn_numel(sums), 1, 1}, 3), tn_scalar_int(zero)));
    }
    return lines ? tn_squeeze(y, &(int64_t){2}, 1) : y;
}

/* The sums of a convolution of bytes; inputs x and weight, and their zero points, perhaps left out. */
static tn_status convolve(onnx_call *c, int x_in, int zero_x, int w_in, int zero_w, tn_tensor **sums) {
    const tn_tensor *x = onnx_in(c, x_in), *weight = onnx_in(c, w_in), *zx = onnx_optional(c, zero_x),
                    *zw = onnx_optional(c, zero_w);
    int64_t groups = onnx_int(c, "group", 1), padding = 0, depth;
    onnx_window w;
    TRY(check_bytes(c, x_in, zero_x, 1));
    TRY(tn_status_of(weight));
    if (tn_rank(weight) != tn_rank(x) || tn_rank(x) < 3)
        return onnx_refuse(c, "a weight of %d dimensions does not fit an input of %d", tn_rank(weight), tn_rank(x));
    TRY(check_bytes(c, w_in, zero_w, tn_size(weight, 0)));
    TRY(onnx_window_read(c, x, tn_shape(weight) + 2, &w));
    depth = tn_size(weight, 1);
    if (groups < 1 || tn_size(x, 1) != depth * groups || tn_size(weight, 0) % groups)
        return onnx_refuse(c, "the weight does not fit the input with %lld groups", (long long)groups);
    for (int a = 0; a < w.axes; a++)
        depth *= w.kernel[a];
    if (zx) zx = tn_reshape(zx, NULL, 0);
    if (zw) zw = tn_reshape(zw, (int64_t[]){tn_numel(zw)}, tn_numel(zw) == 1 ? 0 : 1);
    bool centred_filters = zero_off(c, zero_w, tn_dtype_of(weight) == TN_U8 ? MOVE : 0) == 0;
    if (centred_filters && takes_bytes(x, weight, &w, groups, false)) {
        TRY(onnx_read_int(c, zero_x, 0, &padding));
        return *sums = convolve_as_bytes(c, x_in, w_in, padding, &w, groups), TN_OK;
    }
    const tn_tensor *small = small_filters(c, w_in, zero_w, zw, depth);
    if (small) return *sums = convolve_small(x, small, zx, &w, groups), TN_OK;
    TRY(onnx_read_int(c, zero_x, 0, &padding));
    byte_matrix filters = {.bytes = onnx_derived(c, w_in, ONNX_FILTERS, by_place),
                           .zero = moved_zero(zw, weight, TN_I8)};
    if (zx || tn_dtype_of(x) == TN_I8) filters.sums = onnx_derived(c, w_in, ONNX_FILTER_SUMS, filter_sums);
    return *sums = convolve_groups(x, &filters, zx, (double)padding, &w, groups), TN_OK;
}

static tn_status conv_integer(onnx_call *c) {
    tn_tensor *sums;
    TRY(convolve(c, 0, 2, 1, 3, &sums));
    return onnx_put(c, 0, sums);
}

/* The numbers of an addend, as QLinearAdd has them (onnx_contrib.c); *fits: one kernel of bytes computes the same. */
static tn_status read_addend(const onnx_call *c, onnx_window *w, tn_quantized_conv2d_options *o, bool *fits) {
    static const double least = FLT_MIN, most = 1e18; /* of scales whose products are numbers */
    const tn_tensor *x = onnx_in(c, 0), *addend = onnx_in(c, ADDEND);
    double sum;
    TRY(tn_status_of(addend));
    TRY(onnx_read_float(c, Y_SCALE, 1, &o->own_scale));
    TRY(onnx_read_float(c, ADDEND_SCALE, 1, &o->addend_scale));
    TRY(onnx_read_float(c, SUM_SCALE, 1, &sum));
    TRY(onnx_read_int(c, ADDEND_ZERO, 0, &o->addend_zero));
    TRY(onnx_read_int(c, SUM_ZERO, 0, &o->sum_zero));
    o->sum_scale = 1 / (float)sum;
    *fits = sum >= least && o->sum_scale <= most && fabs(o->own_scale) <= most && fabs(o->addend_scale) <= most;
    *fits = *fits && tn_dtype_of(addend) == tn_dtype_of(x) && tn_rank(addend) == 4 &&
            tn_size(addend, 0) == tn_size(x, 0) && tn_size(addend, 1) == tn_size(onnx_in(c, 3), 0);
    for (int d = 0; d < 2 && *fits; d++)
        *fits = tn_size(addend, 2 + d) == onnx_places(w, d, tn_size(x, 2 + d), false);
    for (int i = Y_ZERO; i <= SUM_ZERO; i += SUM_ZERO - ADDEND_ZERO)
        *fits = *fits && (!onnx_has(c, i) || tn_dtype_of(onnx_in(c, i)) == tn_dtype_of(x));
    return TN_OK;
}

/* QLinearConv with constants for everything but x and an addend, filters in i8 without zero points, as one kernel of
 * bytes has it; *y stays NULL where that is not so. */
static tn_status conv_rounded(const onnx_call *c, tn_tensor **y) {
    enum { X_ZERO = 2, W = 3, W_ZERO = 5 };
    const tn_tensor *x = onnx_in(c, 0), *weight = onnx_in(c, W);
    const int64_t groups = onnx_int(c, "group", 1);
    const bool adds = onnx_has(c, ADDEND);
    const rounding *r;
    onnx_window w;
    if (!rounds_by_constants(c)) return TN_OK;
    TRY(tn_status_of(x));
    TRY(tn_status_of(weight));
    if (tn_dtype_of(weight) != TN_I8 || tn_dtype_of(x) != tn_dtype_of(onnx_in(c, Y_ZERO)) || !is_byte(x) ||
        tn_rank(x) != 4 || tn_rank(weight) != 4 || zero_off(c, W_ZERO, 0) != 0 || tn_numel(x) == 0)
        return TN_OK;
    TRY(check_bytes(c, 0, X_ZERO, 1));
    TRY(check_scales(c));
    TRY(onnx_window_read(c, x, tn_shape(weight) + 2, &w));
    if (groups < 1 || tn_size(x, 1) != tn_size(weight, 1) * groups || tn_size(weight, 0) % groups) return TN_OK;
    if (!takes_bytes(x, weight, &w, groups, true)) return TN_OK;
    tn_quantized_conv2d_options o = TN_QUANTIZED_CONV2D_DEFAULTS;
    for (int d = 0; d < 2; d++) {
        o.stride[d] = w.stride[d];
        o.padding[d] = w.before[d];
        o.padding[2 + d] = w.after[d];
        o.dilation[d] = w.dilation[d];
    }
    o.groups = groups;
    TRY(onnx_read_int(c, X_ZERO, 0, &o.outside));
    TRY(onnx_read_int(c, Y_ZERO, 0, &o.zero));
    bool fits = true;
    if (adds) TRY(read_addend(c, &w, &o, &fits));
    if (!fits) return TN_OK;
    TRY(onnx_prepare(c, make_rounding, drop_rounding, (const void **)&r));
    const tn_tensor *addend = onnx_optional(c, ADDEND);
    if (r->scale) *y = tn_quantized_conv2d(x, weight, r->bias->tensor, r->scale->tensor, addend, &o);
    return TN_OK;
}

static tn_status conv_linear(onnx_call *c) {
    tn_tensor *sums, *y = NULL;
    TRY(conv_rounded(c, &y));
    if (y) return onnx_put(c, 0, y);
    TRY(convolve(c, 0, 2, 3, 5, &sums));
    int rank = tn_rank(onnx_in(c, 0));
    if (onnx_has(c, 8)) sums = tn_add(sums, onnx_per_channel(onnx_in(c, 8), rank));
    const tn_tensor *a_scale = tn_reshape(onnx_in(c, A_SCALE), NULL, 0);
    return put_quantized(c, sums, a_scale, onnx_per_channel(onnx_in(c, B_SCALE), rank));
}

/* QLinearConv and the QLinearAdd behind it; one after the other where no kernel has both. */
static tn_status conv_linear_add(onnx_call *c) {
    static const onnx_text domain = {"com.microsoft", 13}, type = {"QLinearAdd", 10};
    tn_tensor *y = NULL;
    onnx_value *sums = NULL;
    onnx_call conv = *c, add = *c;
    TRY(conv_rounded(c, &y));
    if (y) return onnx_put(c, 0, y);
    conv.in_count = ADDEND;
    conv.out = &sums;
    TRY(conv_linear(&conv));
    onnx_value *const in[] = {sums, c->in[Y_SCALE], c->in[Y_ZERO]}, *all[8];
    memcpy(all, in, sizeof in);
    memcpy(all + 3, c->in + ADDEND, 5 * sizeof *all);
    add.in = all;
    add.in_count = 8;
    add.row = onnx_find_row(domain, type, 1);
    tn_status status = add.row->run(&add);
    onnx_value_release(sums);
    return status;
}

const onnx_op_row onnx_conv_add = {"QLinearConv", 10, .run = conv_linear_add};

const onnx_op_row onnx_quant_ops[] = {{"ConvInteger", 10, .run = conv_integer},
                                      {"DequantizeLinear", 10, .run = dequantize},
                                      {"DynamicQuantizeLinear", 11, .run = dynamic_quantize},
                                      {"MatMulInteger", 10, .run = matmul_integer},
                                      {"QLinearConv", 10, .run = conv_linear},
                                      {"QLinearMatMul", 10, .run = matmul_linear},
                                      {"QuantizeLinear", 10, .run = quantize},
                                      {.name = NULL}};

/* ==== casts ======================================================================================================= */
/* A small float is a grid in f32: steps of 2^(exponent − mantissa bits), but not below those of the least normal
 * exponent. So rounding to it is to divide by the step, round to the nearest whole number (ties to even), and multiply;
 * all three are exact, since steps are powers of two. Source: the tables of Cast in Operators.md. */

/* ---- small floats ------------------------------------------------------------------------------------------------ */

typedef struct float_grid {
    int8_t mantissa, least; /* bits of the mantissa; exponent of the smallest normal number */
    bool has_nan, signed_zero;
    float greatest;
    float beyond; /* what numbers that are too large become without saturation */
} float_grid;

static const float_grid grids[ONNX_TYPE_COUNT] = {
    [ONNX_FLOAT8E4M3FN] = {3, -6, true, true, 448, NAN},
    [ONNX_FLOAT8E4M3FNUZ] = {3, -7, true, false, 240, NAN},
    [ONNX_FLOAT8E5M2] = {2, -14, true, true, 57344, INFINITY},
    [ONNX_FLOAT8E5M2FNUZ] = {2, -15, true, false, 57344, NAN},
    [ONNX_FLOAT6E2M3] = {3, 0, false, true, 7.5F, 7.5F},
    [ONNX_FLOAT6E3M2] = {2, -2, false, true, 28, 28},
    [ONNX_FLOAT4E2M1] = {1, 0, false, true, 6, 6},
};

/* x with a mantissa of 1: 2^floor(log2|x|), ∞ for ∞ and NaN, 0 for subnormal numbers. */
static tn_tensor *power_of(const tn_tensor *x) {
    tn_tensor *bits = tn_view_dtype(x, TN_I32);
    return tn_view_dtype(tn_bitwise_and(bits, onnx_number(0x7F800000, bits)), TN_F32);
}

static tn_tensor *to_grid(const tn_tensor *x, const float_grid *g, bool saturate) {
    double beyond = saturate ? g->greatest : g->beyond, top = g->greatest;
    tn_tensor *v = tn_clamp(tn_cast(x, TN_F32), -2 * top, 2 * top);
    tn_tensor *step = tn_maximum_scalar(power_of(v), ldexp(1, g->least));
    step = tn_mul_scalar(step, ldexp(1, -g->mantissa));
    tn_tensor *r = tn_mul(tn_round(tn_div(v, step)), step);
    r = tn_where(tn_gt_scalar(r, top), onnx_number(beyond, r), r);
    r = tn_where(tn_lt_scalar(r, -top), onnx_number(-beyond, r), r);
    if (!g->signed_zero) r = tn_where(tn_eq_scalar(r, 0), onnx_number(0, r), r);
    return g->has_nan ? r : tn_where(tn_isnan(r), onnx_number(0, r), r);
}

/* Powers of two from 2^-127 to 2^127, and NaN: f32's exponent, with one more where the mantissa is rounded up. */
static tn_tensor *to_power(const tn_tensor *x, bool saturate, onnx_rounding mode) {
    enum { ONE = 1 << 23 };
    tn_tensor *v = tn_abs(tn_cast(x, TN_F32)), *bits = tn_view_dtype(v, TN_I32);
    tn_tensor *rest = tn_bitwise_and(bits, onnx_number(ONE - 1, bits));
    tn_tensor *whole = tn_sub(bits, rest);
    tn_tensor *up = tn_gt_scalar(rest, mode == ONNX_ROUND_UP ? 0 : ONE / 2);
    if (mode == ONNX_ROUND_NEAREST) /* a tie goes up, but from 2^-127, which lies in the middle of f32's last step */
        up = tn_logical_or(up, tn_logical_and(tn_eq_scalar(rest, ONE / 2), tn_gt_scalar(whole, 0)));
    if (mode != ONNX_ROUND_DOWN) whole = tn_where(up, tn_add(whole, tn_scalar_int(ONE)), whole);
    if (saturate) whole = tn_minimum(whole, onnx_number(0x1p31 - 2.0 * ONE, whole));
    tn_tensor *r = tn_view_dtype(whole, TN_F32), *none = onnx_number(NAN, r);
    r = tn_where(tn_eq_scalar(whole, 0), onnx_number(0x1p-127, r), r);
    r = tn_where(tn_isinf(r), none, r);
    if (!saturate) r = tn_where(tn_lt_scalar(v, 0x1p-127), none, r);
    return tn_where(tn_isnan(v), none, r);
}

/* ---- integers of 2 and 4 bits ------------------------------------------------------------------------------------ */

static tn_tensor *to_bits(const tn_tensor *x, onnx_type to) {
    double bits = onnx_types[to].bits, top = ldexp(1, (int)bits - 1);
    tn_tensor *v = tn_cast(x, TN_I32);
    v = tn_bitwise_and(v, onnx_number(2 * top - 1, v));
    if (to == ONNX_INT4 || to == ONNX_INT2) v = tn_sub(tn_bitwise_xor(v, onnx_number(top, v)), onnx_number(top, v));
    return tn_cast(v, onnx_types[to].dtype);
}

static tn_tensor *cast_to(const tn_tensor *x, onnx_type to, bool saturate, onnx_rounding mode) {
    const onnx_type_row *row = &onnx_types[to];
    if (grids[to].greatest > 0) return to_grid(x, &grids[to], saturate);
    if (to == ONNX_FLOAT8E8M0) return to_power(x, saturate, mode);
    return row->bits < 8 ? to_bits(x, to) : tn_cast(x, row->dtype);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The number that a text names ("-1.5e3", "+INF", "nan" in any case), as f64 and as i64. */
static tn_status parse_number(const onnx_call *c, onnx_text t, double *number, int64_t *whole) {
    char text[64], *end;
    if (t.size == 0 || t.size >= sizeof text) return onnx_refuse(c, "a string of %zu bytes is not a number", t.size);
    memcpy(text, t.at, t.size);
    text[t.size] = 0;
    *whole = strtoll(text, &end, 10);
    *number = strtod(text, *end ? &end : NULL);
    if (*end) return onnx_refuse(c, "'%s' is not a number", text);
    if (text[strspn(text, "+-0123456789 ")])
        *whole = *number >= -0x1p63 && *number < 0x1p63 ? (int64_t)*number : INT64_MIN;
    return TN_OK;
}

static tn_status from_texts(onnx_call *c, const onnx_value *v, onnx_type to) {
    TN_C_LOCALE;
    bool is_float = tn_dtype_is_float(onnx_types[to].dtype);
    AUTO_FREE union {
        double number;
        int64_t whole;
    } *all = tn_mem_zalloc((size_t)v->count, sizeof *all);
    if (!all) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < v->count; i++) {
        double number = 0;
        int64_t whole = 0;
        TRY(parse_number(c, v->strings[i], &number, &whole));
        if (is_float)
            all[i].number = number;
        else
            all[i].whole = whole;
    }
    tn_tensor *t = tn_from_data(all, v->shape, v->rank, is_float ? TN_F64 : TN_I64);
    return onnx_put_typed(c, 0, cast_to(t, to, true, ONNX_ROUND_UP), to);
}

/* The fewest digits that name the number: of an f32 up to 9, of an f64 up to 17. */
static int print_number(char *out, size_t size, double v, bool is_double) {
    int length = 0;
    if (!isfinite(v)) return snprintf(out, size, "%s", isnan(v) ? "NaN" : v < 0 ? "-INF" : "INF");
    for (int digits = 6; digits <= 17; digits++) {
        length = snprintf(out, size, "%.*g", digits, v);
        double again = strtod(out, NULL);
        if (is_double ? again == v : (float)again == (float)v) break;
    }
    return length;
}

static tn_status to_texts(onnx_call *c) {
    TN_C_LOCALE;
    enum { WIDTH = 32, MOST = 1 << 24 };
    const tn_tensor *x;
    int64_t count, *whole = NULL;
    double *number = NULL;
    TRY(onnx_need(c, 0, &x));
    tn_dtype t = tn_dtype_of(x);
    bool is_float = tn_dtype_is_float(t);
    TRY(is_float ? onnx_read_floats(c, 0, &number, &count, MOST) : onnx_read_ints(c, 0, &whole, &count, MOST));
    char(*text)[WIDTH] = tn_mem_zalloc((size_t)count, WIDTH);
    onnx_text *list = tn_mem_zalloc((size_t)count, sizeof *list);
    for (int64_t i = 0; i < count && text && list; i++) {
        int size = is_float       ? print_number(text[i], WIDTH, number[i], t == TN_F64)
                   : t == TN_U64  ? snprintf(text[i], WIDTH, "%llu", (unsigned long long)whole[i])
                   : t == TN_BOOL ? snprintf(text[i], WIDTH, "%s", whole[i] ? "True" : "False")
                                  : snprintf(text[i], WIDTH, "%lld", (long long)whole[i]);
        list[i] = (onnx_text){text[i], (size_t)size};
    }
    onnx_value *v = text && list ? onnx_value_strings(list, tn_shape(x), tn_rank(x)) : NULL;
    tn_mem_free_each(number, whole, text, list);
    return v ? onnx_put_value(c, 0, v) : TN_ERR_MEMORY;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static tn_status rounding_of(const onnx_call *c, onnx_rounding *mode) {
    onnx_text name = onnx_string(c, "round_mode", "up");
    static const char *const names[] = {
        [ONNX_ROUND_UP] = "up", [ONNX_ROUND_DOWN] = "down", [ONNX_ROUND_NEAREST] = "nearest"};
    for (int m = 0; m < 3; m++)
        if (onnx_is(name, names[m])) {
            *mode = (onnx_rounding)m;
            return TN_OK;
        }
    return onnx_refuse(c, "round_mode '%.*s' is invalid; use up, down or nearest", (int)name.size, name.at);
}

static tn_status wanted_type(const onnx_call *c, int64_t to, onnx_type *out) {
    bool known = to > ONNX_UNDEFINED && to < ONNX_TYPE_COUNT && to != ONNX_COMPLEX64 && to != ONNX_COMPLEX128;
    if (!known) return onnx_refuse(c, "casting to type %lld is not supported", (long long)to);
    *out = (onnx_type)to;
    return TN_OK;
}

tn_status onnx_cast(onnx_call *c) {
    onnx_type to;
    onnx_rounding mode = ONNX_ROUND_UP;
    const tn_tensor *x;
    TRY(wanted_type(c, c->row->with ? (int64_t)onnx_in_type(c, 1) : onnx_int(c, "to", 0), &to));
    TRY(rounding_of(c, &mode));
    if (onnx_has(c, 0) && c->in[0]->kind == ONNX_STRINGS)
        return to == ONNX_STRING ? onnx_put_value(c, 0, onnx_value_retain(c->in[0])) : from_texts(c, c->in[0], to);
    if (to == ONNX_STRING) return to_texts(c);
    TRY(onnx_need(c, 0, &x));
    return onnx_put_typed(c, 0, cast_to(x, to, onnx_int(c, "saturate", 1) != 0, mode), to);
}

/* Small floats have no bits here: only numbers. Integers of 2 and 4 bits have. */
tn_status onnx_bit_cast(onnx_call *c) {
    const tn_tensor *x;
    onnx_type to, from = onnx_in_type(c, 0);
    TRY(wanted_type(c, onnx_int(c, "to", 0), &to));
    TRY(onnx_need(c, 0, &x));
    const onnx_type_row *new = &onnx_types[to], *old = &onnx_types[from];
    if (new->bits != old->bits || to == ONNX_STRING)
        return onnx_refuse(c, "%s cannot be reinterpreted as %s: their elements must have the same size", old->name,
                           new->name);
    bool whole = !tn_dtype_is_float(new->dtype) && !tn_dtype_is_float(old->dtype);
    if (new->bits < 8 && whole) return onnx_put_typed(c, 0, cast_to(x, to, true, ONNX_ROUND_UP), to);
    bool stored = new->bits == 8 * tn_dtype_size(new->dtype) && old->bits == 8 * tn_dtype_size(old->dtype);
    if (!stored && to != from)
        return onnx_refuse(c, "%s cannot be reinterpreted as %s: the original bits are not stored", old->name,
                           new->name);
    return onnx_put_typed(c, 0, stored ? tn_view_dtype(x, new->dtype) : tn_retain((tn_tensor *)x), to);
}
