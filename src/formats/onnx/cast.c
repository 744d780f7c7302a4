/* cast.c — Cast, CastLike, BitCast: the standard's types, in the wider ones that they live in.
 *
 * A small float is a grid in f32: steps of 2^(exponent − mantissa bits), but not below those of the least normal
 * exponent. So rounding to it is to divide by the step, round to the nearest whole number (ties to even), and multiply;
 * all three are exact, since steps are powers of two. Source: the tables of Cast in Operators.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/onnx/operator_support.h"

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

/* The f32 with x's exponent alone: 2^floor(log2|x|), ∞ for ∞ and NaN, 0 for subnormal numbers. */
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

tn_tensor *onnx_cast_to(const tn_tensor *x, onnx_type to, bool saturate, onnx_rounding mode) {
    const onnx_type_row *row = &onnx_types[to];
    if (grids[to].greatest > 0) return to_grid(x, &grids[to], saturate);
    if (to == ONNX_FLOAT8E8M0) return to_power(x, saturate, mode);
    return row->bits < 8 ? to_bits(x, to) : tn_cast(x, row->dtype);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The number that a text names ("-1.5e3", "+INF", "nan" in any case), as f64 and as i64. */
static tn_status parse_number(const onnx_call *c, onnx_text t, double *number, int64_t *whole) {
    char text[64], *end;
    if (t.size == 0 || t.size >= sizeof text) return onnx_refuse(c, "a text of %zu bytes is no number", t.size);
    memcpy(text, t.at, t.size);
    text[t.size] = 0;
    *whole = strtoll(text, &end, 10);
    *number = strtod(text, *end ? &end : NULL);
    if (*end) return onnx_refuse(c, "'%s' is no number", text);
    if (text[strspn(text, "+-0123456789 ")])
        *whole = *number >= -0x1p63 && *number < 0x1p63 ? (int64_t)*number : INT64_MIN;
    return TN_OK;
}

static tn_status from_texts(onnx_call *c, const onnx_value *v, onnx_type to) {
    bool is_float = tn_dtype_is_float(onnx_types[to].dtype);
    union {
        double number;
        int64_t whole;
    } *all = tn_mem_zalloc((size_t)v->count, sizeof *all);
    tn_status status = all ? TN_OK : TN_ERR_MEMORY;
    for (int64_t i = 0; i < v->count && status == TN_OK; i++) {
        double number = 0;
        int64_t whole = 0;
        status = parse_number(c, v->strings[i], &number, &whole);
        if (is_float)
            all[i].number = number;
        else
            all[i].whole = whole;
    }
    if (status == TN_OK) {
        tn_tensor *t = tn_from_data(all, v->shape, v->rank, is_float ? TN_F64 : TN_I64);
        status = onnx_put_typed(c, 0, onnx_cast_to(t, to, true, ONNX_ROUND_UP), to);
    }
    tn_mem_free(all);
    return status;
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
    tn_mem_free(number);
    tn_mem_free(whole);
    tn_mem_free(text);
    tn_mem_free(list);
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
    return onnx_refuse(c, "round_mode '%.*s'; it is up, down or nearest", (int)name.size, name.at);
}

static tn_status wanted_type(const onnx_call *c, int64_t to, onnx_type *out) {
    bool known = to > ONNX_UNDEFINED && to < ONNX_TYPE_COUNT && to != ONNX_COMPLEX64 && to != ONNX_COMPLEX128;
    if (!known) return onnx_refuse(c, "to type %lld", (long long)to);
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
    return onnx_put_typed(c, 0, onnx_cast_to(x, to, onnx_int(c, "saturate", 1) != 0, mode), to);
}

/* Small floats have no bits here: only numbers. Integers of 2 and 4 bits have. */
tn_status onnx_bit_cast(onnx_call *c) {
    const tn_tensor *x;
    onnx_type to, from = onnx_in_type(c, 0);
    TRY(wanted_type(c, onnx_int(c, "to", 0), &to));
    TRY(onnx_need(c, 0, &x));
    const onnx_type_row *new = &onnx_types[to], *old = &onnx_types[from];
    if (new->bits != old->bits || to == ONNX_STRING)
        return onnx_refuse(c, "%s as %s: they must have one size", old->name, new->name);
    bool whole = !tn_dtype_is_float(new->dtype) && !tn_dtype_is_float(old->dtype);
    if (new->bits < 8 && whole) return onnx_put_typed(c, 0, onnx_cast_to(x, to, true, ONNX_ROUND_UP), to);
    bool stored = new->bits == 8 * tn_dtype_size(new->dtype) && old->bits == 8 * tn_dtype_size(old->dtype);
    if (!stored && to != from) return onnx_refuse(c, "%s as %s: their bits are not at hand", old->name, new->name);
    return onnx_put_typed(c, 0, stored ? tn_view_dtype(x, new->dtype) : tn_retain((tn_tensor *)x), to);
}
