/* render_spirv_fma.c — a·b + c rounded once, on devices whose own instruction rounds the product too.
 *
 * What an operation on floats leaves out is a float as well, and sums of these rests round as the exact sum would, if
 * the last but one is rounded to odd (Boldo and Melquiond 2008). That holds while no rest underflows and nothing
 * overflows. So the operands are brought to exponents about 0 first; their own, e, comes back at the end, by powers of
 * two. A result that will have fewer bits there, as subnormal numbers do, is rounded to these bits before: on top of
 * the least normal number, where floats lie as far apart as subnormal ones. Then coming back is exact. */
#include "kir/spirv.h"

typedef struct format {
    spv_type real, word;
    uint32_t digits, bias;
    uint64_t halves; /* a float, 2^h + 1: splits a factor in two of which each product is exact */
    int64_t least;   /* an exponent at which everything that the operands can be is nothing */
} format;

static const format FORMATS[] = {{SPV_F32, SPV_U32, 24, 127, 0x45800800, -200},
                                 {SPV_F64, SPV_U64, 53, 1023, 0x41a0000002000000, -1200}};

typedef struct maths {
    spv *e;
    const format *f;
} maths;

static uint32_t real(maths m, uint32_t op, uint32_t a, uint32_t b) { return kir_spv_op(m.e, op, m.f->real, a, b, 0); }
static uint32_t fma_word(maths m, uint32_t op, uint32_t a, uint32_t b) {
    return kir_spv_op(m.e, op, m.f->word, a, b, 0);
}
static uint32_t is(maths m, uint32_t op, uint32_t a, uint32_t b) { return kir_spv_op(m.e, op, SPV_BOOL, a, b, 0); }
static uint32_t bits_of(maths m, uint32_t v) { return fma_word(m, OpBitcast, v, 0); }
static uint32_t real_of(maths m, uint32_t bits) { return real(m, OpBitcast, bits, 0); }

static uint32_t fma_number(maths m, int64_t v) {
    return kir_spv_const(m.e, m.f->word, m.f->word == SPV_U32 ? (uint32_t)v : (uint64_t)v);
}

static uint32_t choose_fma(maths m, spv_type type, uint32_t condition, uint32_t a, uint32_t b) {
    return kir_spv_op(m.e, OpSelect, type, condition, a, b);
}

/* The greater one of an integer and a number. */
static uint32_t at_least(maths m, uint32_t a, uint32_t b) {
    return choose_fma(m, m.f->word, is(m, OpSLessThan, a, b), b, a);
}

/* A result, and what it leaves out. */
typedef struct two {
    uint32_t value, rest;
} two;

/* Knuth's. */
static two sum_of(maths m, uint32_t a, uint32_t b) {
    uint32_t sum = real(m, OpFAdd, a, b), of_b = real(m, OpFSub, sum, a), of_a = real(m, OpFSub, sum, of_b);
    uint32_t left_a = real(m, OpFSub, a, of_a), left_b = real(m, OpFSub, b, of_b);
    return (two){sum, real(m, OpFAdd, left_a, left_b)};
}

/* Veltkamp's and Dekker's, by halves of the factors. */
static two halves_of(maths m, uint32_t a) {
    uint32_t wide = real(m, OpFMul, a, kir_spv_const(m.e, m.f->real, m.f->halves)), low = real(m, OpFSub, wide, a);
    uint32_t high = real(m, OpFSub, wide, low);
    return (two){high, real(m, OpFSub, a, high)};
}

static two product_of(maths m, uint32_t a, uint32_t b) {
    two x = halves_of(m, a), y = halves_of(m, b);
    uint32_t product = real(m, OpFMul, a, b), rest = real(m, OpFSub, real(m, OpFMul, x.value, y.value), product);
    rest = real(m, OpFAdd, rest, real(m, OpFMul, x.value, y.rest));
    rest = real(m, OpFAdd, rest, real(m, OpFMul, x.rest, y.value));
    return (two){product, real(m, OpFAdd, rest, real(m, OpFMul, x.rest, y.rest))};
}

/* a + b, whose last bit says whether anything was left out: rounding it further is as if the exact sum were rounded. */
static uint32_t odd_sum_of(maths m, uint32_t a, uint32_t b) {
    two s = sum_of(m, a, b);
    uint32_t way = real(m, OpFMul, s.rest, s.value),
             zero = kir_spv_const(m.e, m.f->real, 0); /* from or to 0, or none */
    uint32_t bits = bits_of(m, s.value), one = fma_number(m, 1), odd = fma_word(m, OpBitwiseOr, bits, one);
    uint32_t even = is(m, OpINotEqual, odd, bits);
    uint32_t below = choose_fma(m, m.f->word, even, fma_word(m, OpISub, bits, one), bits);
    bits = choose_fma(m, m.f->word, is(m, OpFOrdLessThan, zero, way), odd, bits);
    bits = choose_fma(m, m.f->word, is(m, OpFOrdLessThan, way, zero), below, bits);
    return real_of(m, bits);
}

/* ---- exponents --------------------------------------------------------------------------------------------------- */

/* 2^exponent, which is a normal number. */
static uint32_t power(maths m, uint32_t exponent) {
    uint32_t field = fma_word(m, OpIAdd, exponent, fma_number(m, m.f->bias));
    return real_of(m, fma_word(m, OpShiftLeftLogical, field, fma_number(m, m.f->digits - 1)));
}

/* A number as value · 2^exponent with a value from 1 to 2; itself and an exponent that means nothing where that cannot
 * be: 0, infinity, NaN. */
typedef struct scaled {
    uint32_t value, exponent, is_finite, is_nothing /* 0 */;
} scaled;

static uint32_t field_of(maths m, uint32_t v) {
    uint32_t field = fma_word(m, OpShiftRightLogical, bits_of(m, v), fma_number(m, m.f->digits - 1));
    return fma_word(m, OpBitwiseAnd, field, fma_number(m, 2 * m.f->bias + 1));
}

static scaled scale(maths m, uint32_t v) {
    const format *f = m.f;
    uint32_t zero = fma_number(m, 0), all = 2 * f->bias + 1,
             one = kir_spv_const(m.e, f->real, (uint64_t)f->bias << (f->digits - 1));
    uint32_t is_small = is(m, OpIEqual, field_of(m, v), zero);
    uint32_t up = kir_spv_const(m.e, f->real, (uint64_t)(f->bias + f->digits) << (f->digits - 1));
    uint32_t grown = real(m, OpFMul, v, choose_fma(m, f->real, is_small, up, one)), field = field_of(m, grown);
    uint32_t bias = choose_fma(m, f->word, is_small, fma_number(m, f->bias + f->digits), fma_number(m, f->bias));
    scaled s = {.exponent = fma_word(m, OpISub, field, bias), .is_nothing = is(m, OpIEqual, field, zero)};
    s.is_finite = is(m, OpINotEqual, field, fma_number(m, all));
    uint32_t rest = fma_number(m, (int64_t) ~((uint64_t)all << (f->digits - 1)));
    uint32_t value = fma_word(m, OpBitwiseOr, fma_word(m, OpBitwiseAnd, bits_of(m, grown), rest), bits_of(m, one));
    uint32_t plain = is(m, OpLogicalOr, s.is_nothing, is(m, OpLogicalNot, s.is_finite, 0));
    s.value = choose_fma(m, f->real, plain, v, real_of(m, value));
    return s;
}

/* (sum + rest) · 2^exponent, rounded once; `sum` is what the two round to. */
static uint32_t descale(maths m, two x, uint32_t exponent) {
    uint32_t top = fma_number(m, (int64_t)((uint64_t)1 << (m.f->word == SPV_U32 ? 31 : 63))), one = fma_number(m, 1);
    uint32_t bits = bits_of(m, x.value), sign = fma_word(m, OpBitwiseAnd, bits, top);
    uint32_t size = fma_word(m, OpBitwiseXor, bits, sign),
             field = at_least(m, fma_word(m, OpISub, one, exponent), fma_number(m, 0));
    uint32_t least =
        fma_word(m, OpShiftLeftLogical, field, fma_number(m, m.f->digits - 1)); /* the least normal number, there */
    uint32_t is_below = is(m, OpULessThan, size, least);
    least = choose_fma(m, m.f->word, is_below, fma_word(m, OpBitwiseOr, least, sign), fma_number(m, 0));
    two y = sum_of(m, real_of(m, least), x.value);
    uint32_t v = real(m, OpFSub, real(m, OpFAdd, y.value, odd_sum_of(m, y.rest, x.rest)), real_of(m, least));
    uint32_t half = fma_word(m, OpShiftRightArithmetic, exponent, one);
    v = real(m, OpFMul, v, power(m, half));
    v = real(m, OpFMul, v, power(m, fma_word(m, OpISub, exponent, half)));
    return real_of(m, fma_word(m, OpBitwiseOr, bits_of(m, v), sign));
}

/* By floats of the same type. The exponent is the product's, so c has the distance; where c is so large or so small
 * that the other only says which way to round, the distance ends. */
static uint32_t by_rests(maths m, const uint32_t v[3]) {
    int64_t digits = m.f->digits;
    scaled a = scale(m, v[0]), b = scale(m, v[1]), c = scale(m, v[2]);
    uint32_t exponent = fma_word(m, OpIAdd, a.exponent, b.exponent);
    exponent = at_least(m, exponent, fma_word(m, OpISub, c.exponent, fma_number(m, digits + 7)));
    exponent = at_least(m, exponent, fma_number(m, m.f->least));
    uint32_t distance = at_least(m, fma_word(m, OpISub, c.exponent, exponent), fma_number(m, -2 * digits - 4));
    two product = product_of(m, a.value, b.value);
    two low = sum_of(m, real(m, OpFMul, c.value, power(m, distance)), product.rest);
    two high = sum_of(m, product.value, low.value);
    two exact = sum_of(m, high.value, odd_sum_of(m, high.rest, low.rest));
    uint32_t nothing = is(m, OpLogicalOr, a.is_nothing, b.is_nothing);
    uint32_t finite = is(m, OpLogicalAnd, is(m, OpLogicalAnd, a.is_finite, b.is_finite), c.is_finite);
    uint32_t plain = real(m, OpFAdd, product.value, v[2]), result = descale(m, exact, exponent);
    return choose_fma(m, m.f->real, is(m, OpLogicalAnd, finite, is(m, OpLogicalNot, nothing, 0)), result, plain);
}

/* That of f32 in f64, where the product is exact and nothing leaves the range. */
static uint32_t by_doubles(maths m, const uint32_t v[3]) {
    uint32_t wide[3];
    for (int i = 0; i < 3; i++)
        wide[i] = kir_spv_resize(m.e, v[i], SPV_F32, SPV_F64, true);
    return kir_spv_resize(m.e, odd_sum_of(m, real(m, OpFMul, wide[0], wide[1]), wide[2]), SPV_F64, SPV_F32, true);
}

uint32_t kir_spv_fma(spv *e, spv_type type, const uint32_t v[3]) {
    if (type == SPV_F32 && e->t->f64 && e->t->i64) return by_doubles((maths){e, &FORMATS[1]}, v);
    return by_rests((maths){e, &FORMATS[type == SPV_F64]}, v);
}
