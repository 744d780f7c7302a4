/* legal_math.h — operations that legal.c expands, in C: those that elsewhere are defined by the C library or the
 * compiler, as steps that every language has.
 *
 * gen_legal.py makes tables of steps from these functions and from those of kir_math.h, so they use only the C
 * that it can read. tests/kernels/test_legal.c compares them with the originals. */
#ifndef KIR_LEGAL_MATH_H
#define KIR_LEGAL_MATH_H

#include "kir/kir_math.h"

/* ---- bool -------------------------------------------------------------------------------------------------------- */

static inline bool kir_legal_max_bool(bool a, bool b) { return a || b; }
static inline bool kir_legal_min_bool(bool a, bool b) { return a && b; }
static inline bool kir_legal_lt_bool(bool a, bool b) { return !a && b; }
static inline bool kir_legal_le_bool(bool a, bool b) { return !a || b; }

/* ---- fmod -------------------------------------------------------------------------------------------------------- */

/* With |x| = m · 2^k · u and |y| = n · u, integers m and n below 2^24: the remainder of m · 2^k by n, eight bits at a
 * time. The sign comes last, because LLVM 19 to 22 (llvmpipe of Mesa 25 and 26) miscompile a select between x and a
 * value with x's sign. */
static inline float kir_legal_mod_f32(float x, float y) {
    uint32_t x_bits = kir_bits_f32(x) & 0x7fffffffU, y_bits = kir_bits_f32(y) & 0x7fffffffU;
    uint32_t x_exponent = x_bits >> 23, y_exponent = y_bits >> 23;
    uint32_t m = x_exponent == 0 ? x_bits : (x_bits & 0x7fffffU) | 0x800000U;
    uint32_t n = y_exponent == 0 ? y_bits : (y_bits & 0x7fffffU) | 0x800000U;
    int32_t unit = (int32_t)(y_exponent == 0 ? 1 : y_exponent);
    int32_t left = (int32_t)(x_exponent == 0 ? 1 : x_exponent) - unit;
    left = left < 0 ? 0 : left;
    n = n == 0 ? 1 : n;
    uint32_t rest = m % n;
    for (int turn = 0; turn < 32; turn++) {
        int32_t now = left < 8 ? left : 8;
        rest = (rest << now) % n;
        left -= now;
    }
    int32_t power = unit - 150, half = power >> 1;
    float y_rest = (float)rest * kir_pow2_f32(half) * kir_pow2_f32(power - half);
    float value = __builtin_copysignf(x_bits < y_bits ? __builtin_fabsf(x) : y_rest, x);
    return x_bits >= 0x7f800000U || y_bits > 0x7f800000U || y_bits == 0 ? NAN : value;
}

static inline double kir_legal_mod_f64(double x, double y) {
    uint64_t x_bits = kir_bits_f64(x) & 0x7fffffffffffffffU, y_bits = kir_bits_f64(y) & 0x7fffffffffffffffU;
    uint64_t x_exponent = x_bits >> 52, y_exponent = y_bits >> 52;
    uint64_t m = x_exponent == 0 ? x_bits : (x_bits & 0xfffffffffffffU) | 0x10000000000000U;
    uint64_t n = y_exponent == 0 ? y_bits : (y_bits & 0xfffffffffffffU) | 0x10000000000000U;
    int64_t unit = (int64_t)(y_exponent == 0 ? 1 : y_exponent);
    int64_t left = (int64_t)(x_exponent == 0 ? 1 : x_exponent) - unit;
    left = left < 0 ? 0 : left;
    n = n == 0 ? 1 : n;
    uint64_t rest = m % n;
    for (int turn = 0; turn < 186; turn++) {
        int64_t now = left < 11 ? left : 11;
        rest = (rest << now) % n;
        left -= now;
    }
    int64_t power = unit - 1075, half = power >> 1;
    double y_rest = (double)rest * kir_pow2_f64(half) * kir_pow2_f64(power - half);
    double value = __builtin_copysign(x_bits < y_bits ? __builtin_fabs(x) : y_rest, x);
    return x_bits >= 0x7ff0000000000000U || y_bits > 0x7ff0000000000000U || y_bits == 0 ? (double)NAN : value;
}

/* ---- integers of 64 bits as two words ---------------------------------------------------------------------------- */

/* Each takes low and high words; the high word of the result is *high. */
static inline uint32_t kir_words_add(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh, uint32_t *high) {
    uint32_t low = a + b;
    *high = ah + bh + (low < a ? 1U : 0U);
    return low;
}

static inline uint32_t kir_words_sub(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh, uint32_t *high) {
    *high = ah - bh - (a < b ? 1U : 0U);
    return a - b;
}

static inline uint32_t kir_words_mul(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh, uint32_t *high) {
    uint32_t a0 = a & 0xffffU, a1 = a >> 16, b0 = b & 0xffffU, b1 = b >> 16;
    uint32_t left = a1 * b0 + (a0 * b0 >> 16), right = a0 * b1 + (left & 0xffffU);
    *high = a1 * b1 + (left >> 16) + (right >> 16) + a * bh + ah * b;
    return a * b;
}

/* Shifts by 0 … 63. */
static inline uint32_t kir_words_shl(uint32_t a, uint32_t ah, uint32_t count, uint32_t *high) {
    uint32_t by = count & 31U, low = a << by, carry = a >> 1 >> (by ^ 31U);
    bool far = (count & 32U) != 0;
    *high = far ? low : ah << by | carry;
    return far ? 0 : low;
}

static inline uint32_t kir_words_shr_u(uint32_t a, uint32_t ah, uint32_t count, uint32_t *high) {
    uint32_t by = count & 31U, top = ah >> by, carry = ah << 1 << (by ^ 31U);
    bool far = (count & 32U) != 0;
    *high = far ? 0 : top;
    return far ? top : a >> by | carry;
}

static inline uint32_t kir_words_shr_i(uint32_t a, uint32_t ah, uint32_t count, uint32_t *high) {
    uint32_t by = count & 31U, top = (uint32_t)((int32_t)ah >> (int32_t)by), carry = ah << 1 << (by ^ 31U);
    bool far = (count & 32U) != 0;
    *high = far ? (uint32_t)((int32_t)ah >> 31) : top;
    return far ? top : a >> by | carry;
}

static inline bool kir_words_eq(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh) { return a == b && ah == bh; }
static inline bool kir_words_lt_u(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh) {
    return ah < bh || (ah == bh && a < b);
}
static inline bool kir_words_lt_i(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh) {
    return (int32_t)ah < (int32_t)bh || (ah == bh && a < b);
}

/* How many bits x has: 0 for 0. */
static inline uint32_t kir_words_width(uint32_t x) {
    uint32_t n = x >= 0x10000U ? 16U : 0U, rest = x >> n;
    uint32_t by = rest >= 0x100U ? 8U : 0U;
    n += by;
    rest = rest >> by;
    by = rest >= 0x10U ? 4U : 0U;
    n += by;
    rest = rest >> by;
    by = rest >= 4U ? 2U : 0U;
    n += by;
    rest = rest >> by;
    return n + (rest >= 2U ? 2U : rest);
}

/* One 16-bit digit of a quotient: of u and the next digit, by v, whose top bit is set. Knuth's algorithm D: the
 * quotient by v's upper half is too large by at most two. */
static inline uint32_t kir_words_digit(uint32_t u, uint32_t next, uint32_t v) {
    uint32_t v1 = v >> 16, v0 = v & 0xffffU, divisor = v1 == 0 ? 1U : v1;
    uint32_t q = u / divisor, rest = u - q * v1;
    bool less = q >= 0x10000U || q * v0 > (rest << 16 | next);
    q = less ? q - 1U : q;
    rest = less ? rest + v1 : rest;
    less = less && rest < 0x10000U && (q >= 0x10000U || q * v0 > (rest << 16 | next));
    return less ? q - 1U : q;
}

/* The quotient of 64 bits by a word that is greater than uh. */
static inline uint32_t kir_words_quotient(uint32_t u, uint32_t uh, uint32_t v) {
    uint32_t by = (32U - kir_words_width(v)) & 31U;
    uint32_t divisor = v << by, top = uh << by | u >> 1 >> (by ^ 31U), rest = u << by;
    uint32_t q1 = kir_words_digit(top, rest >> 16, divisor);
    uint32_t middle = (top << 16 | rest >> 16) - q1 * divisor;
    return (q1 << 16) + kir_words_digit(middle, rest & 0xffffU, divisor);
}

/* Divisor of one word: the upper word's quotient first. Larger divisor: half the dividend divided by the divisor's
 * upper 32 bits, minus 1, is right or too small by 1. For a divisor of 0 the result is arbitrary. */
static inline uint32_t kir_words_div_u(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh, uint32_t *high) {
    bool one = bh == 0;
    uint32_t divisor = b == 0 ? 1U : b, upper = ah / divisor;
    uint32_t width = kir_words_width(bh), by = (32U - width) & 31U;
    uint32_t v = bh << by | b >> 1 >> (by ^ 31U);
    uint32_t u = one ? a : a >> 1 | ah << 31, uh = one ? ah - upper * divisor : ah >> 1;
    uint32_t q = kir_words_quotient(u, uh, one ? divisor : v);
    uint32_t guess = q >> ((width - 1U) & 31U);
    guess = guess == 0 ? guess : guess - 1U;
    uint32_t product_high;
    uint32_t product = kir_words_mul(guess, 0, b, bh, &product_high);
    uint32_t rest_high;
    uint32_t rest = kir_words_sub(a, ah, product, product_high, &rest_high);
    guess = kir_words_lt_u(rest, rest_high, b, bh) ? guess : guess + 1U;
    *high = one ? upper : 0;
    return one ? q : guess;
}

/* The opposite where `minus` says so. */
static inline uint32_t kir_words_signed(uint32_t a, uint32_t ah, bool minus, uint32_t *high) {
    uint32_t nh;
    uint32_t n = kir_words_sub(0, 0, a, ah, &nh);
    *high = minus ? nh : ah;
    return minus ? n : a;
}

/* To f32: the 32 bits from the topmost on, the last of them also for what is behind, round as all of them do. */
static inline float kir_words_to_u(uint32_t a, uint32_t ah) {
    uint32_t width = kir_words_width(ah), by = (32U - width) & 31U;
    uint32_t upper = ah << by | a >> 1 >> (by ^ 31U), behind = a << by;
    upper = behind == 0 ? upper : upper | 1U;
    return ah == 0 ? (float)a : (float)upper * kir_pow2_f32((int32_t)width);
}

static inline float kir_words_to_i(uint32_t a, uint32_t ah) {
    bool minus = (int32_t)ah < 0;
    uint32_t xh;
    uint32_t x = kir_words_signed(a, ah, minus, &xh);
    float y = kir_words_to_u(x, xh);
    return minus ? -y : y;
}

/* From an f32 that fits, towards 0: both halves of it are exact. */
static inline uint32_t kir_words_from_u(float x, uint32_t *high) {
    uint32_t upper = (uint32_t)(x * 0x1p-32f);
    *high = upper;
    return (uint32_t)__builtin_fmaf((float)upper, -0x1p32f, x);
}

static inline uint32_t kir_words_from_i(float x, uint32_t *high) {
    uint32_t uh;
    uint32_t u = kir_words_from_u(__builtin_fabsf(x), &uh);
    uint32_t rh;
    uint32_t r = kir_words_signed(u, uh, x < 0.0f, &rh);
    *high = rh;
    return r;
}

#endif
