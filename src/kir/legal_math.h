/* legal_math.h — operations that legal.c takes apart, in C: those whose definition elsewhere is the C library's or the
 * compiler's, as steps that every language has.
 *
 * tools/gen_legal.py makes tables of steps out of these functions, as out of kir_math.h's; so they keep to what that
 * reads. tests/test_legal.c compares them with what they stand for. */
#ifndef KIR_LEGAL_MATH_H
#define KIR_LEGAL_MATH_H

#include "kir/kir_math.h"

/* ---- bool -------------------------------------------------------------------------------------------------------- */

static inline bool kir_legal_max_bool(bool a, bool b) { return a || b; }
static inline bool kir_legal_min_bool(bool a, bool b) { return a && b; }
static inline bool kir_legal_lt_bool(bool a, bool b) { return !a && b; }
static inline bool kir_legal_le_bool(bool a, bool b) { return !a || b; }

/* ---- fmod -------------------------------------------------------------------------------------------------------- */

/* |x| = m · 2^k · u, |y| = n · u with whole m, n below 2^24: the rest of m · 2^k by n, eight bits at a time. */
static inline float kir_legal_mod_f32(float x, float y) {
    uint32_t x_bits = kir_bits_f32(x) & 0x7fffffffU, y_bits = kir_bits_f32(y) & 0x7fffffffU;
    uint32_t x_exponent = x_bits >> 23, y_exponent = y_bits >> 23;
    uint32_t m = x_exponent == 0 ? x_bits : (x_bits & 0x7fffffU) | 0x800000U;
    uint32_t n = y_exponent == 0 ? y_bits : (y_bits & 0x7fffffU) | 0x800000U;
    int32_t unit = (int32_t)(y_exponent == 0 ? 1 : y_exponent);
    int32_t left = (int32_t)(x_exponent == 0 ? 1 : x_exponent) - unit;
    n = n == 0 ? 1 : n;
    uint32_t rest = m % n;
    for (int turn = 0; turn < 32; turn++) {
        int32_t now = left < 8 ? left : 8;
        rest = (rest << now) % n;
        left -= now;
    }
    int32_t power = unit - 150, half = power >> 1;
    float y_rest = (float)rest * kir_pow2_f32(half) * kir_pow2_f32(power - half);
    float value = __builtin_copysignf(y_rest, x);
    value = x_bits < y_bits ? x : value;
    return x_bits >= 0x7f800000U || y_bits > 0x7f800000U || y_bits == 0 ? NAN : value;
}

static inline double kir_legal_mod_f64(double x, double y) {
    uint64_t x_bits = kir_bits_f64(x) & 0x7fffffffffffffffU, y_bits = kir_bits_f64(y) & 0x7fffffffffffffffU;
    uint64_t x_exponent = x_bits >> 52, y_exponent = y_bits >> 52;
    uint64_t m = x_exponent == 0 ? x_bits : (x_bits & 0xfffffffffffffU) | 0x10000000000000U;
    uint64_t n = y_exponent == 0 ? y_bits : (y_bits & 0xfffffffffffffU) | 0x10000000000000U;
    int64_t unit = (int64_t)(y_exponent == 0 ? 1 : y_exponent);
    int64_t left = (int64_t)(x_exponent == 0 ? 1 : x_exponent) - unit;
    n = n == 0 ? 1 : n;
    uint64_t rest = m % n;
    for (int turn = 0; turn < 186; turn++) {
        int64_t now = left < 11 ? left : 11;
        rest = (rest << now) % n;
        left -= now;
    }
    int64_t power = unit - 1075, half = power >> 1;
    double y_rest = (double)rest * kir_pow2_f64(half) * kir_pow2_f64(power - half);
    double value = __builtin_copysign(y_rest, x);
    value = x_bits < y_bits ? x : value;
    return x_bits >= 0x7ff0000000000000U || y_bits > 0x7ff0000000000000U || y_bits == 0 ? (double)NAN : value;
}

#endif
