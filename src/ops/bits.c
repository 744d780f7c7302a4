/* bits.c — the same bits as another type.
 *
 * Types of one size share their bits. Small ones compute in wider types, so what the memory would hold is made of the
 * number first: that of an f16 takes apart its exponent, all others are a cut or a shift. */
#include <math.h>
#include <string.h>

#include "ops/common.h"

static kir_val bits_number(kir_builder *kb, kir_type t, int64_t v) { return kir_const_i(kb, t, v); }

/* The 16 bits of an f16 whose value v is, as U32. Below 2^-14 it counts in steps of 2^-24. */
static kir_val bits_of_f16(kir_builder *kb, kir_val v) {
    kir_val bits = kir_bitcast(kb, KIR_U32, v), size = kir_unary(kb, KIR_ABS, v);
    kir_val sign = kir_binary(kb, KIR_AND, kir_binary(kb, KIR_SHR, bits, bits_number(kb, KIR_U32, 16)),
                              bits_number(kb, KIR_U32, 0x8000));
    kir_val exponent = kir_binary(kb, KIR_SUB, kir_bitcast(kb, KIR_U32, size), bits_number(kb, KIR_U32, 112 << 23));
    kir_val normal = kir_binary(kb, KIR_SHR, exponent, bits_number(kb, KIR_U32, 13));
    kir_val small = kir_cast(kb, KIR_U32, kir_binary(kb, KIR_MUL, size, kir_const(kb, KIR_F32, 0x1p24)));
    kir_val r = kir_select(kb, kir_binary(kb, KIR_LT, size, kir_const(kb, KIR_F32, 0x1p-14)), small, normal);
    kir_val infinite = kir_binary(kb, KIR_EQ, size, kir_const(kb, KIR_F32, INFINITY));
    r = kir_select(kb, infinite, bits_number(kb, KIR_U32, 0x7C00), r);
    r = kir_select(kb, kir_binary(kb, KIR_EQ, v, v), r, bits_number(kb, KIR_U32, 0x7E00));
    return kir_binary(kb, KIR_OR, sign, r);
}
static kir_val f16_of_bits(kir_builder *kb, kir_val bits) {
    kir_val rest = kir_binary(kb, KIR_AND, bits, bits_number(kb, KIR_U32, 0x7FFF));
    kir_val sign = kir_binary(kb, KIR_SHL, kir_binary(kb, KIR_AND, bits, bits_number(kb, KIR_U32, 0x8000)),
                              bits_number(kb, KIR_U32, 16));
    kir_val wide = kir_binary(kb, KIR_SHL, rest, bits_number(kb, KIR_U32, 13));
    kir_val normal = kir_bitcast(kb, KIR_F32, kir_binary(kb, KIR_ADD, wide, bits_number(kb, KIR_U32, 112 << 23)));
    kir_val special = kir_bitcast(kb, KIR_F32, kir_binary(kb, KIR_OR, wide, bits_number(kb, KIR_U32, 0x7F800000)));
    kir_val small = kir_binary(kb, KIR_MUL, kir_cast(kb, KIR_F32, rest), kir_const(kb, KIR_F32, 0x1p-24));
    kir_val r = kir_select(kb, kir_binary(kb, KIR_LT, rest, bits_number(kb, KIR_U32, 0x400)), small, normal);
    r = kir_select(kb, kir_binary(kb, KIR_LT, rest, bits_number(kb, KIR_U32, 0x7C00)), r, special);
    return kir_bitcast(kb, KIR_F32, kir_binary(kb, KIR_OR, sign, kir_bitcast(kb, KIR_U32, r)));
}

/* view_dtype(x, dtype): x's bits as another dtype of the same size (PyTorch's view(dtype)); to bool: any bit. */
static tn_status infer_view_dtype(tn_infer *c) {
    int64_t to = c->attrs->i[TN_VIEW_DTYPE_DTYPE];
    tn_dtype from = (tn_dtype)c->in[0]->dtype;
    if (to < 0 || to >= TN_PLAIN_DTYPES || tn_dtype_size((tn_dtype)to) != tn_dtype_size(from))
        return tn_fail(TN_ERR_DTYPE, "view_dtype: an element of %s as %s: they must have one size", tn_dtype_name(from),
                       tn_dtype_name((tn_dtype)to));
    TRY(tn_infer_same(c));
    c->dtype = (tn_dtype)to;
    return TN_OK;
}
static kir_val lower_view_dtype(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    tn_dtype from = (tn_dtype)n->in[0]->dtype, to = (tn_dtype)n->dtype;
    kir_val v = tn_lower_in(lw, n, 0, at);
    if (from == to) return v;
    if (tn_dtype_size(to) >= 4) return kir_bitcast(kb, kir_type_of(to), v);
    if (from == TN_F16) v = bits_of_f16(kb, v);
    if (from == TN_BF16) v = kir_binary(kb, KIR_SHR, kir_bitcast(kb, KIR_U32, v), bits_number(kb, KIR_U32, 16));
    if (!tn_dtype_is_float(to)) return tn_lower_narrow(kb, to, kir_cast(kb, kir_type_of(to), v));
    v = kir_cast(kb, KIR_U32, v);
    if (to == TN_F16) return f16_of_bits(kb, v);
    return kir_bitcast(kb, KIR_F32, kir_binary(kb, KIR_SHL, v, bits_number(kb, KIR_U32, 16)));
}
/* An f16's bits from its value, and back, by arithmetic. */
static double f16_bits(double v) {
    int e;
    double m = frexp(fabs(v), &e), sign = signbit(v) ? 0x8000 : 0;
    if (v != v) return 0x7E00;
    if (isinf(v)) return sign + 0x7C00;
    if (fabs(v) < 0x1p-14) return sign + fabs(v) * 0x1p24;
    return sign + (e + 14) * 1024 + (m * 2 - 1) * 1024;
}
static double f16_value(int bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    if (e == 31) v = m ? NAN : INFINITY;
    return bits & 0x8000 ? -v : v;
}
static int64_t reference_bits(tn_dtype t, double v) {
    float f = (float)v;
    int32_t bits;
    int64_t long_bits;
    memcpy(&bits, &f, sizeof bits);
    memcpy(&long_bits, &v, sizeof v);
    switch (t) {
    case TN_F64: return long_bits;
    case TN_F32: return bits;
    case TN_BF16: return bits >> 16;
    case TN_F16: return (int64_t)f16_bits(v);
    default: return (int64_t)v;
    }
}
static double reference_number(tn_dtype t, int64_t bits) {
    float f;
    double d;
    uint32_t high = (uint32_t)bits << (t == TN_BF16 ? 16 : 0);
    memcpy(&f, &high, sizeof f);
    memcpy(&d, &bits, sizeof d);
    switch (t) {
    case TN_F64: return d;
    case TN_F32:
    case TN_BF16: return (double)f;
    case TN_F16: return f16_value((int)bits & 0xFFFF);
    case TN_I8: return (double)(int8_t)bits;
    case TN_U8: return (double)(uint8_t)bits;
    case TN_I16: return (double)(int16_t)bits;
    case TN_U16: return (double)(uint16_t)bits;
    case TN_U32: return (double)(uint32_t)bits;
    case TN_BOOL: return bits != 0;
    default: return (double)bits;
    }
}
static void reference_view_dtype(const tn_reference *r) {
    const tn_node *n = r->node;
    for (int64_t i = 0, count = tn_node_numel(n); i < count; i++)
        r->out[i] = reference_number((tn_dtype)n->dtype, reference_bits((tn_dtype)n->in[0]->dtype, r->in[0][i]));
}
const tn_op_impl tn_impl_view_dtype = {
    .class_ = TN_ELEMENTWISE,
    .infer = infer_view_dtype,
    .grad = tn_grad_none,
    .lower = lower_view_dtype,
    .reference = reference_view_dtype,
    .cases = "special=off grad=off; types=f32; [2,3] dtype=i32; [0,3] dtype=u32; [] dtype=i32; types=i32; [7]@0..1e9 "
             "dtype=f32; types=f16; [9]@-4..4 dtype=i16; [9]@1e-6..1e-5 dtype=u16; types=bf16; [9] dtype=i16; "
             "types=i16; [9]@0..20000 dtype=f16; [9]@-2000..2000 dtype=bf16; [9]@0..900 dtype=f16; types=i8; [9] "
             "dtype=u8; types=u8; [9]@0..255 dtype=i8; types=bool; [4] dtype=u8; error=size [4] dtype=f32",
    .flops = 1};
