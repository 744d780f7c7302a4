/* kir_math.h — the meaning of KIR's operations on one element, in plain C.
 *
 * The interpreter calls these functions point by point, the tile VM puts them into loops that the compiler vectorizes
 * for each instruction set, and renderers transcribe them to other languages. So they have no branches (a choice is a
 * conditional expression of two computed values), spell out every fused multiply-add, and are compiled with
 * -ffp-contract=off: then all of these give the same bits.
 *
 * Polynomials are minimax fits (Remez exchange) over the reduced range; coefficients are ordered from low to high
 * power. Maximum errors, measured against long double (tests/kernels/test_kir.c): f32 below 2 ulp, f64 below 4 ulp. */
#ifndef KIR_MATH_H
#define KIR_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef float kir_f32;
typedef double kir_f64;
typedef int32_t kir_i32;
typedef int64_t kir_i64;
typedef uint32_t kir_u32;
typedef uint64_t kir_u64;
typedef uint8_t kir_b8;

extern const uint32_t kir_two_over_pi[42];
enum { KIR_ERF_DEGREE = 11, KIR_ERF_PIECES = 24 };
extern const double kir_erf_table[KIR_ERF_DEGREE + 1][KIR_ERF_PIECES];

/* x - quadrant·π/2 for a finite |x| > 2^20, to the last bit or two; *quadrant modulo 4 is what counts. */
double kir_reduce_large(double x, int64_t *quadrant);

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static inline uint32_t kir_bits_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float kir_from_bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static inline uint64_t kir_bits_f64(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline double kir_from_bits_f64(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

/* Adding and subtracting 1.5·2^23 rounds to the nearest integer, whose low bits are then in the sum. */
#define KIR_MAGIC_F32 0x1.8p23f
#define KIR_MAGIC_F64 0x1.8p52

/* 2^n for n in [-126, 127]; any other n gives some number. */
static inline float kir_pow2_f32(int32_t n) { return kir_from_bits_f32((uint32_t)(n + 127) << 23); }

/* n = round(x / ln 2) as a float, *r = x - n ln 2. */
static inline float kir_reduce_ln2_f32(float x, float *r) {
    float n = __builtin_fmaf(x, 0x1.715476p0f, KIR_MAGIC_F32) - KIR_MAGIC_F32;
    float head = __builtin_fmaf(n, -0x1.62e43p-1f, x);
    *r = __builtin_fmaf(n, 0x1.05c61p-29f, head);
    return n;
}

/* A small whole number held in a float, as an integer; a NaN gives some integer. */
static inline int32_t kir_whole_f32(float n) { return (int32_t)(kir_bits_f32(n + KIR_MAGIC_F32) - 0x4b400000U); }

/* e^r for |r| ≤ ln 2 / 2. */
static inline float kir_exp_core_f32(float r) {
    float p = __builtin_fmaf(0x1.6a2352p-10f, r, 0x1.123a6ap-7f);
    p = __builtin_fmaf(p, r, 0x1.5558f4p-5f);
    p = __builtin_fmaf(p, r, 0x1.55549p-3f);
    p = __builtin_fmaf(p, r, 0x1.fffffcp-2f);
    return 1.0f + __builtin_fmaf(p, r * r, r);
}

static inline float kir_exp_f32(float x) {
    float c = x > 89.0f ? 89.0f : x;
    c = c < -104.0f ? -104.0f : c;
    float r;
    float n = kir_reduce_ln2_f32(c, &r);
    int32_t whole = kir_whole_f32(n), part = whole >> 1; /* in two steps, so that subnormal results round once */
    return kir_exp_core_f32(r) * kir_pow2_f32(part) * kir_pow2_f32(whole - part);
}

static inline float kir_log_f32(float x) {
    bool subnormal = x < 0x1p-126f;
    float scaled = subnormal ? x * 0x1p23f : x;
    uint32_t bits = kir_bits_f32(scaled);
    int32_t e = (int32_t)(bits - 0x3f3504f3U) >> 23; /* so that m lies in [√½, √2) */
    float m = kir_from_bits_f32(bits - ((uint32_t)e << 23));
    float n = (float)(e - (subnormal ? 23 : 0));
    float f = m - 1.0f;
    float p = __builtin_fmaf(0x1.1b4602p-4f, f, -0x1.e316d8p-4f);
    p = __builtin_fmaf(p, f, 0x1.e66658p-4f);
    p = __builtin_fmaf(p, f, -0x1.fb3d5ap-4f);
    p = __builtin_fmaf(p, f, 0x1.233108p-3f);
    p = __builtin_fmaf(p, f, -0x1.5562fep-3f);
    p = __builtin_fmaf(p, f, 0x1.99a55ap-3f);
    p = __builtin_fmaf(p, f, -0x1.ffffeep-3f);
    p = __builtin_fmaf(p, f, 0x1.555546p-2f);
    float tail = f * f * __builtin_fmaf(p, f, -0.5f);
    tail = __builtin_fmaf(n, -0x1.05c61p-29f, tail);
    float y = __builtin_fmaf(n, 0x1.62e43p-1f, f + tail);
    y = x == INFINITY ? x : y;
    y = x < 0.0f ? NAN : y;
    y = x == 0.0f ? -INFINITY : y;
    return x != x ? x : y;
}

/* sin and cos of r + n·π/2, |r| ≤ π/4: `quarter` is n for the sine, n + 1 for the cosine. */
static inline float kir_quarter_f32(float r, int32_t quarter) {
    float s = r * r;
    float p = __builtin_fmaf(0x1.6cd734p-19f, s, -0x1.a00f98p-13f);
    p = __builtin_fmaf(p, s, 0x1.111108p-7f);
    p = __builtin_fmaf(p, s, -0x1.555556p-3f);
    float sine = __builtin_fmaf(r * s, p, r);
    float q = __builtin_fmaf(-0x1.2429fcp-22f, s, 0x1.a0111cp-16f);
    q = __builtin_fmaf(q, s, -0x1.6c16b8p-10f);
    q = __builtin_fmaf(q, s, 0x1.555556p-5f);
    float cosine = __builtin_fmaf(s, __builtin_fmaf(q, s, -0.5f), 1.0f);
    float y = quarter & 1 ? cosine : sine;
    return quarter & 2 ? -y : y;
}

/* Right for |x| ≤ KIR_TRIG_NEAR; beyond, kir_trig_far_f32 has the answer. */
#define KIR_TRIG_NEAR 1e5f

static inline float kir_trig_near_f32(float x, int32_t shift) {
    float n = __builtin_fmaf(x, 0x1.45f306p-1f, KIR_MAGIC_F32) - KIR_MAGIC_F32;
    float r = __builtin_fmaf(n, -0x1.921fb6p+0f, x);
    r = __builtin_fmaf(n, 0x1.777a5cp-25f, r);
    r = __builtin_fmaf(n, 0x1.ee59dap-50f, r);
    return kir_quarter_f32(r, kir_whole_f32(n) + shift);
}

/* Any x beyond KIR_TRIG_NEAR, without doubles; rare, so it may branch. |x| = mantissa · 2^exponent times 96 bits of
 * 2/π, starting at the first bit whose product is not a multiple of 4; the fraction is the turn, to 2^-64. */
static inline float kir_trig_far_f32(float x, int32_t shift) {
    if (!(__builtin_fabsf(x) < INFINITY)) return NAN;
    uint32_t bits = kir_bits_f32(x);
    int32_t exponent = (int32_t)(bits >> 23 & 0xffU) - 150, skip = exponent > 2 ? exponent - 2 : 0;
    uint64_t mantissa = (bits & 0x7fffffU) | 0x800000U;
    int32_t word = skip >> 5, by = skip & 31;
    uint64_t first = (uint64_t)kir_two_over_pi[word] << 32 | kir_two_over_pi[word + 1];
    uint64_t second = (uint64_t)kir_two_over_pi[word + 1] << 32 | kir_two_over_pi[word + 2];
    uint64_t third = (uint64_t)kir_two_over_pi[word + 2] << 32 | kir_two_over_pi[word + 3];
    uint64_t middle = mantissa * (second << by >> 32), low = mantissa * (third << by >> 32) + (middle << 32);
    uint64_t high = mantissa * (first << by >> 32) + (middle >> 32) + (low < middle << 32 ? 1 : 0);
    int32_t point = 32 - (exponent - skip); /* of high's bits, those behind the point */
    uint64_t turn = high << (64 - point) | low >> point;
    int32_t quadrant = (int32_t)(high >> point & 3);
    bool above_half = turn >> 63 != 0;
    turn = above_half ? 0 - turn : turn;
    float t = (float)turn, rest = (float)(int64_t)(turn - (uint64_t)t);
    float r = __builtin_fmaf(t, 0x1.921fb6p-64f, __builtin_fmaf(t, -0x1.777a5cp-89f, rest * 0x1.921fb6p-64f));
    quadrant += above_half ? 1 : 0;
    bool negative = x < 0.0f;
    r = above_half != negative ? -r : r;
    return kir_quarter_f32(r, (negative ? -quadrant : quadrant) + shift);
}

/* An odd polynomial near 0, beyond it 1 - 2 / (e^(2a) + 1): a single quotient would round once too often. */
static inline float kir_tanh_f32(float x) {
    float a = __builtin_fabsf(x), s = x * x;
    float p = __builtin_fmaf(-0x1.963d5cp-8f, s, 0x1.58669ap-6f);
    p = __builtin_fmaf(p, s, -0x1.b90fcp-5f);
    p = __builtin_fmaf(p, s, 0x1.110c98p-3f);
    p = __builtin_fmaf(p, s, -0x1.555548p-2f);
    float small = __builtin_fmaf(x * s, p, x);
    float t = a > 10.0f ? 20.0f : a + a, r;
    float n = kir_reduce_ln2_f32(t, &r);
    float power = kir_exp_core_f32(r) * kir_pow2_f32(kir_whole_f32(n));
    float large = 1.0f - 2.0f / (power + 1.0f);
    return __builtin_copysignf(a < 0.56f ? small : large, x);
}

static inline float kir_erf_f32(float x) {
    float a = __builtin_fabsf(x), s = x * x;
    float p = __builtin_fmaf(0x1.5cd4b2p-14f, s, -0x1.aa3f3p-11f);
    p = __builtin_fmaf(p, s, 0x1.54c7f6p-8f);
    p = __builtin_fmaf(p, s, -0x1.b80e9p-6f);
    p = __builtin_fmaf(p, s, 0x1.ce2e0ap-4f);
    p = __builtin_fmaf(p, s, -0x1.812742p-2f);
    p = __builtin_fmaf(p, s, 0x1.06eba8p-3f);
    float small = __builtin_fmaf(x, p, x);
    float t = a > 3.95f ? 3.95f : a;
    float q = __builtin_fmaf(0x1.63ca0ep-16f, t, -0x1.c8ecp-12f); /* -log(erfc(t)) */
    q = __builtin_fmaf(q, t, 0x1.11c3fap-8f);
    q = __builtin_fmaf(q, t, -0x1.9bd3d4p-6f);
    q = __builtin_fmaf(q, t, 0x1.bb9ebep-4f);
    q = __builtin_fmaf(q, t, 0x1.4442fep-1f);
    q = __builtin_fmaf(q, t, 0x1.2128a6p+0f);
    q = __builtin_fmaf(q, t, -0x1.73625p-13f);
    float large = __builtin_copysignf(1.0f - kir_exp_f32(-q), x);
    return a < 0.93f ? small : large;
}

/* ---- f64 --------------------------------------------------------------------------------------------------------- */

static inline double kir_pow2_f64(int64_t n) { return kir_from_bits_f64((uint64_t)(n + 1023) << 52); }

static inline double kir_reduce_ln2_f64(double x, double *r) {
    double n = __builtin_fma(x, 0x1.71547652b82fep0, KIR_MAGIC_F64) - KIR_MAGIC_F64;
    double head = __builtin_fma(n, -0x1.62e42fefa39efp-1, x);
    *r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, head);
    return n;
}

static inline int64_t kir_whole_f64(double n) {
    return (int64_t)(kir_bits_f64(n + KIR_MAGIC_F64) - 0x4338000000000000U);
}

/* e^r - 1 for |r| ≤ ln 2 / 2. */
static inline double kir_expm1_core_f64(double r) {
    double p = __builtin_fma(0x1.61e6102989209p-33, r, 0x1.1f8b847e3e413p-29);
    p = __builtin_fma(p, r, 0x1.ae6411c0bf03ap-26);
    p = __builtin_fma(p, r, 0x1.27e4cbf36127fp-22);
    p = __builtin_fma(p, r, 0x1.71de3a61923f6p-19);
    p = __builtin_fma(p, r, 0x1.a01a01add1416p-16);
    p = __builtin_fma(p, r, 0x1.a01a01a017cccp-13);
    p = __builtin_fma(p, r, 0x1.6c16c16c14d50p-10);
    p = __builtin_fma(p, r, 0x1.1111111111114p-7);
    p = __builtin_fma(p, r, 0x1.5555555555559p-5);
    p = __builtin_fma(p, r, 0x1.5555555555555p-3);
    p = __builtin_fma(p, r, 0.5);
    return __builtin_fma(p, r * r, r);
}

static inline double kir_exp_f64(double x) {
    double c = x > 710.0 ? 710.0 : x;
    c = c < -746.0 ? -746.0 : c;
    double r;
    double n = kir_reduce_ln2_f64(c, &r);
    double y = 1.0 + kir_expm1_core_f64(r);
    int64_t whole = kir_whole_f64(n), part = whole >> 1;
    return y * kir_pow2_f64(part) * kir_pow2_f64(whole - part);
}

static inline double kir_log_f64(double x) {
    bool subnormal = x < 0x1p-1022;
    double scaled = subnormal ? x * 0x1p52 : x;
    uint64_t bits = kir_bits_f64(scaled);
    int64_t e = (int64_t)(bits - 0x3fe6a09e667f3bcdU) >> 52;
    double m = kir_from_bits_f64(bits - ((uint64_t)e << 52));
    double n = (double)(e - (subnormal ? 52 : 0));
    double f = m - 1.0, s = f / (2.0 + f), z = s * s; /* log(1 + f) = 2 artanh(s) */
    double p = __builtin_fma(0x1.0f7e3c7dc4a6cp-3, z, 0x1.0f59cf22626e2p-3);
    p = __builtin_fma(p, z, 0x1.3b20cd3790f12p-3);
    p = __builtin_fma(p, z, 0x1.745cdd715d753p-3);
    p = __builtin_fma(p, z, 0x1.c71c725b6ee93p-3);
    p = __builtin_fma(p, z, 0x1.2492492429304p-2);
    p = __builtin_fma(p, z, 0x1.9999999999e19p-2);
    p = __builtin_fma(p, z, 0x1.5555555555555p-1);
    double half_square = 0.5 * f * f;
    double tail = s * __builtin_fma(p, z, half_square);
    tail = __builtin_fma(n, 0x1.abc9e3b39803fp-56, tail) - half_square;
    double y = __builtin_fma(n, 0x1.62e42fefa39efp-1, f + tail);
    y = x == (double)INFINITY ? x : y;
    y = x < 0.0 ? (double)NAN : y;
    y = x == 0.0 ? -(double)INFINITY : y;
    return x != x ? x : y;
}

static inline double kir_quarter_f64(double r, int64_t quarter) {
    double s = r * r;
    double p = __builtin_fma(-0x1.aaa47cc5e3cb9p-41, s, 0x1.6120912669764p-33);
    p = __builtin_fma(p, s, -0x1.ae645295e148fp-26);
    p = __builtin_fma(p, s, 0x1.71de3a5337a57p-19);
    p = __builtin_fma(p, s, -0x1.a01a01a018acep-13);
    p = __builtin_fma(p, s, 0x1.111111111110bp-7);
    p = __builtin_fma(p, s, -0x1.5555555555555p-3);
    double sine = __builtin_fma(r * s, p, r);
    double q = __builtin_fma(0x1.aac4e76ea90c3p-45, s, -0x1.939336904596ep-37);
    q = __builtin_fma(q, s, 0x1.1eed8ca230184p-29);
    q = __builtin_fma(q, s, -0x1.27e4fb75fc2a6p-22);
    q = __builtin_fma(q, s, 0x1.a01a01a018dd6p-16);
    q = __builtin_fma(q, s, -0x1.6c16c16c16c10p-10);
    q = __builtin_fma(q, s, 0x1.5555555555555p-5);
    double cosine = __builtin_fma(s, __builtin_fma(q, s, -0.5), 1.0);
    double y = quarter & 1 ? cosine : sine;
    return quarter & 2 ? -y : y;
}

/* Right for |x| ≤ KIR_TRIG_NEAR. */
static inline double kir_trig_near_f64(double x, int64_t shift) {
    double n = __builtin_fma(x, 0x1.45f306dc9c883p-1, KIR_MAGIC_F64) - KIR_MAGIC_F64;
    double r = __builtin_fma(n, -0x1.921fb54442d18p+0, x);
    r = __builtin_fma(n, -0x1.1a62633145c07p-54, r);
    r = __builtin_fma(n, 0x1.f1976b7ed8fbcp-110, r);
    return kir_quarter_f64(r, kir_whole_f64(n) + shift);
}

/* Any x beyond KIR_TRIG_NEAR. */
static inline double kir_trig_far_f64(double x, int64_t shift) {
    if (!(__builtin_fabs(x) < (double)INFINITY)) return (double)NAN;
    int64_t quadrant;
    double r = kir_reduce_large(x, &quadrant);
    return kir_quarter_f64(r, quadrant + shift);
}

static inline bool kir_trig_is_far_f32(float x) { return !(__builtin_fabsf(x) <= KIR_TRIG_NEAR); }
static inline bool kir_trig_is_far_f64(double x) { return !(__builtin_fabs(x) <= (double)KIR_TRIG_NEAR); }

static inline float kir_sin_near_f32(float x) { return x == 0.0f ? x : kir_trig_near_f32(x, 0); }
static inline float kir_cos_near_f32(float x) { return kir_trig_near_f32(x, 1); }
static inline double kir_sin_near_f64(double x) { return x == 0.0 ? x : kir_trig_near_f64(x, 0); }
static inline double kir_cos_near_f64(double x) { return kir_trig_near_f64(x, 1); }

static inline float kir_sin_f32(float x) {
    return kir_trig_is_far_f32(x) ? kir_trig_far_f32(x, 0) : kir_sin_near_f32(x);
}
static inline float kir_cos_f32(float x) {
    return kir_trig_is_far_f32(x) ? kir_trig_far_f32(x, 1) : kir_cos_near_f32(x);
}
static inline double kir_sin_f64(double x) {
    return kir_trig_is_far_f64(x) ? kir_trig_far_f64(x, 0) : kir_sin_near_f64(x);
}
static inline double kir_cos_f64(double x) {
    return kir_trig_is_far_f64(x) ? kir_trig_far_f64(x, 1) : kir_cos_near_f64(x);
}

static inline double kir_tanh_f64(double x) {
    double a = __builtin_fabs(x);
    a = a > 22.0 ? 22.0 : a;
    double r;
    double n = kir_reduce_ln2_f64(a + a, &r);
    double scale = kir_pow2_f64(kir_whole_f64(n));
    double minus_one = __builtin_fma(scale, kir_expm1_core_f64(r), scale - 1.0);
    return __builtin_copysign(minus_one / (minus_one + 2.0), x);
}

static inline double kir_erf_f64(double x) {
    double a = __builtin_fabs(x);
    double t = a < 6.0 ? a : 0.0;
    int32_t piece = (int32_t)(t * 4.0);
    double u = t - ((double)piece * 0.25 + 0.125);
    double p = kir_erf_table[KIR_ERF_DEGREE][piece];
    for (int k = KIR_ERF_DEGREE - 1; k >= 0; k--)
        p = __builtin_fma(p, u, kir_erf_table[k][piece]);
    double y = x * p;
    y = y > 1.0 ? 1.0 : y;
    y = y < -1.0 ? -1.0 : y;
    y = a >= 6.0 ? __builtin_copysign(1.0, x) : y;
    return x != x ? x : y;
}

/* ---- f16 and bf16 ------------------------------------------------------------------------------------------------ */

static inline float kir_from_f16(uint16_t h) {
    uint32_t magnitude = h & 0x7fffU, shifted = magnitude << 13;
    float normal = kir_from_bits_f32(shifted + (112U << 23));
    float subnormal = kir_from_bits_f32(0x38800000U | shifted) - 0x1p-14f;
    float special = kir_from_bits_f32(shifted | 0x7f800000U);
    float y = magnitude < 0x400U ? subnormal : normal;
    y = magnitude >= 0x7c00U ? special : y;
    return kir_from_bits_f32(kir_bits_f32(y) | (uint32_t)(h & 0x8000U) << 16);
}

static inline uint16_t kir_to_f16(float x) {
    uint32_t bits = kir_bits_f32(x), magnitude = bits & 0x7fffffffU;
    uint32_t normal = (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1)) >> 13;
    uint32_t subnormal = kir_bits_f32(kir_from_bits_f32(magnitude) + 0.5f) - 0x3f000000U;
    uint32_t y = magnitude < 0x38800000U ? subnormal : normal;
    y = magnitude >= 0x47800000U ? 0x7c00U : y;
    y = magnitude > 0x7f800000U ? 0x7e00U : y;
    return (uint16_t)(y | (bits >> 16 & 0x8000U));
}

static inline float kir_from_bf16(uint16_t h) { return kir_from_bits_f32((uint32_t)h << 16); }

static inline uint16_t kir_to_bf16(float x) {
    uint32_t bits = kir_bits_f32(x);
    uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? bits >> 16 | 0x40U : rounded);
}

/* The double of these bits as a float, rounded to nearest even: for machines that have no doubles. */
static inline float kir_narrow_bits(uint64_t bits) {
    int32_t exponent = (int32_t)(bits >> 52 & 0x7ffU) - 1023;
    uint64_t mantissa = (bits & 0xfffffffffffffU) | 0x10000000000000U;
    int32_t lost = exponent < -126 ? -97 - exponent : 29; /* bits behind a float's last; all of them below 2^-150 */
    lost = lost > 54 ? 54 : lost;
    uint32_t kept = (uint32_t)((mantissa + (((uint64_t)1 << (lost - 1)) - 1) + (mantissa >> lost & 1)) >> lost);
    uint32_t y = exponent < -126 ? kept : kept + ((uint32_t)(exponent + 126) << 23);
    y = exponent > 127 ? 0x7f800000U : y;
    y = (bits & 0x7fffffffffffffffU) > 0x7ff0000000000000U ? 0x7fc00000U : y;
    return kir_from_bits_f32(y | (uint32_t)(bits >> 32 & 0x80000000U));
}

/* ---- Philox-4x32-10 ---------------------------------------------------------------------------------------------- */

static inline uint32_t kir_philox_u32(uint64_t key, uint64_t counter) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53U, p1 = (uint64_t)c2 * 0xCD9E8D57U;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    return c0;
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

#define KIR_FLOAT_ARITHMETIC(t, suffix)                                                                           \
    static inline kir_##t kir_neg_##t(kir_##t a) { return -a; }                                                   \
    static inline kir_##t kir_abs_##t(kir_##t a) { return __builtin_fabs##suffix(a); }                            \
    static inline kir_##t kir_sqrt_##t(kir_##t a) { return __builtin_sqrt##suffix(a); }                           \
    static inline kir_##t kir_floor_##t(kir_##t a) { return __builtin_floor##suffix(a); }                         \
    static inline kir_##t kir_ceil_##t(kir_##t a) { return __builtin_ceil##suffix(a); }                           \
    static inline kir_##t kir_trunc_##t(kir_##t a) { return __builtin_trunc##suffix(a); }                         \
    static inline kir_##t kir_nearest_##t(kir_##t a) { return __builtin_rint##suffix(a); }                        \
    static inline kir_##t kir_add_##t(kir_##t a, kir_##t b) { return a + b; }                                     \
    static inline kir_##t kir_sub_##t(kir_##t a, kir_##t b) { return a - b; }                                     \
    static inline kir_##t kir_mul_##t(kir_##t a, kir_##t b) { return a * b; }                                     \
    static inline kir_##t kir_div_##t(kir_##t a, kir_##t b) { return a / b; }                                     \
    static inline kir_##t kir_mod_##t(kir_##t a, kir_##t b) { return __builtin_fmod##suffix(a, b); }              \
    static inline kir_##t kir_fma_##t(kir_##t a, kir_##t b, kir_##t c) { return __builtin_fma##suffix(a, b, c); } \
    static inline kir_##t kir_max_##t(kir_##t a, kir_##t b) {                                                     \
        kir_##t greater = a > b ? a : b;                                                                          \
        return a != a ? a : greater;                                                                              \
    }                                                                                                             \
    static inline kir_##t kir_min_##t(kir_##t a, kir_##t b) {                                                     \
        kir_##t less = a < b ? a : b;                                                                             \
        return a != a ? a : less;                                                                                 \
    }
KIR_FLOAT_ARITHMETIC(f32, f)
KIR_FLOAT_ARITHMETIC(f64, )

/* u is the unsigned type of the same width: there arithmetic wraps. */
#define KIR_INT_ARITHMETIC(t, u, width)                                                                    \
    static inline kir_##t kir_neg_##t(kir_##t a) { return (kir_##t)(0U - (kir_##u)a); }                    \
    static inline kir_##t kir_add_##t(kir_##t a, kir_##t b) { return (kir_##t)((kir_##u)a + (kir_##u)b); } \
    static inline kir_##t kir_sub_##t(kir_##t a, kir_##t b) { return (kir_##t)((kir_##u)a - (kir_##u)b); } \
    static inline kir_##t kir_mul_##t(kir_##t a, kir_##t b) { return (kir_##t)((kir_##u)a * (kir_##u)b); } \
    static inline kir_##t kir_max_##t(kir_##t a, kir_##t b) { return a > b ? a : b; }                      \
    static inline kir_##t kir_min_##t(kir_##t a, kir_##t b) { return a < b ? a : b; }                      \
    static inline kir_##t kir_and_##t(kir_##t a, kir_##t b) { return a & b; }                              \
    static inline kir_##t kir_or_##t(kir_##t a, kir_##t b) { return a | b; }                               \
    static inline kir_##t kir_xor_##t(kir_##t a, kir_##t b) { return a ^ b; }                              \
    static inline kir_##t kir_shl_##t(kir_##t a, kir_##t b) {                                              \
        kir_##t shifted = (kir_##t)((kir_##u)a << ((kir_##u)b & (width - 1)));                             \
        return (kir_##u)b < width ? shifted : 0;                                                           \
    }
KIR_INT_ARITHMETIC(i32, u32, 32)
KIR_INT_ARITHMETIC(i64, u64, 64)
KIR_INT_ARITHMETIC(u32, u32, 32)
KIR_INT_ARITHMETIC(u64, u64, 64)

static inline int32_t kir_abs_i32(int32_t a) { return a < 0 ? kir_neg_i32(a) : a; }
static inline int64_t kir_abs_i64(int64_t a) { return a < 0 ? kir_neg_i64(a) : a; }
static inline uint32_t kir_abs_u32(uint32_t a) { return a; }
static inline uint64_t kir_abs_u64(uint64_t a) { return a; }

static inline int32_t kir_shr_i32(int32_t a, int32_t b) { return a >> ((uint32_t)b < 32 ? b : 31); }
static inline int64_t kir_shr_i64(int64_t a, int64_t b) { return a >> ((uint64_t)b < 64 ? b : 63); }
static inline uint32_t kir_shr_u32(uint32_t a, uint32_t b) { return b < 32 ? a >> (b & 31) : 0; }
static inline uint64_t kir_shr_u64(uint64_t a, uint64_t b) { return b < 64 ? a >> (b & 63) : 0; }

/* A double holds the quotient of 32-bit integers well enough to truncate right, and divides in vectors. */
static inline int32_t kir_div_i32(int32_t a, int32_t b) {
    int32_t divisor = b == 0 || b == -1 ? 1 : b;
    int32_t quotient = (int32_t)((double)a / (double)divisor);
    quotient = b == -1 ? kir_neg_i32(a) : quotient;
    return b == 0 ? 0 : quotient;
}
static inline int64_t kir_div_i64(int64_t a, int64_t b) {
    int64_t quotient = a / (b == 0 || b == -1 ? 1 : b);
    quotient = b == -1 ? kir_neg_i64(a) : quotient;
    return b == 0 ? 0 : quotient;
}
static inline uint32_t kir_div_u32(uint32_t a, uint32_t b) { return b == 0 ? 0 : a / (b == 0 ? 1 : b); }
static inline uint64_t kir_div_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / (b == 0 ? 1 : b); }

static inline int32_t kir_mod_i32(int32_t a, int32_t b) {
    int32_t rest = kir_sub_i32(a, kir_mul_i32(kir_div_i32(a, b), b));
    return b == 0 ? 0 : rest;
}
static inline int64_t kir_mod_i64(int64_t a, int64_t b) {
    int64_t rest = kir_sub_i64(a, kir_mul_i64(kir_div_i64(a, b), b));
    return b == 0 ? 0 : rest;
}
static inline uint32_t kir_mod_u32(uint32_t a, uint32_t b) { return b == 0 ? 0 : a % (b == 0 ? 1 : b); }
static inline uint64_t kir_mod_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % (b == 0 ? 1 : b); }

static inline uint8_t kir_and_b8(uint8_t a, uint8_t b) { return a & b; }
static inline uint8_t kir_or_b8(uint8_t a, uint8_t b) { return a | b; }
static inline uint8_t kir_xor_b8(uint8_t a, uint8_t b) { return a ^ b; }
static inline uint8_t kir_max_b8(uint8_t a, uint8_t b) { return a > b ? a : b; }
static inline uint8_t kir_min_b8(uint8_t a, uint8_t b) { return a < b ? a : b; }

#define KIR_COMPARISONS(t)                                                    \
    static inline uint8_t kir_eq_##t(kir_##t a, kir_##t b) { return a == b; } \
    static inline uint8_t kir_lt_##t(kir_##t a, kir_##t b) { return a < b; }  \
    static inline uint8_t kir_le_##t(kir_##t a, kir_##t b) { return a <= b; } \
    static inline kir_##t kir_select_##t(uint8_t c, kir_##t a, kir_##t b) { return c ? a : b; }
KIR_COMPARISONS(f32)
KIR_COMPARISONS(f64)
KIR_COMPARISONS(i32)
KIR_COMPARISONS(i64)
KIR_COMPARISONS(u32)
KIR_COMPARISONS(u64)
KIR_COMPARISONS(b8)

/* ---- casts ------------------------------------------------------------------------------------------------------- */

/* Float to integer: `low` and `high` are the extreme floats that the conversion takes, from `limit` on it is `most`. */
#define KIR_SATURATING(f, i, low, high, limit, most)      \
    static inline kir_##i kir_cast_##f##_##i(kir_##f x) { \
        kir_##f inside = x > (low) ? x : (low);           \
        inside = inside < (high) ? inside : (high);       \
        inside = x != x ? 0 : inside;                     \
        kir_##i whole = (kir_##i)inside;                  \
        return x >= (limit) ? (most) : whole;             \
    }
KIR_SATURATING(f32, i32, -0x1p31f, 0x1.fffffep30f, 0x1p31f, INT32_MAX)
KIR_SATURATING(f32, i64, -0x1p63f, 0x1.fffffep62f, 0x1p63f, INT64_MAX)
KIR_SATURATING(f32, u32, 0.0f, 0x1.fffffep31f, 0x1p32f, UINT32_MAX)
KIR_SATURATING(f32, u64, 0.0f, 0x1.fffffep63f, 0x1p64f, UINT64_MAX)
KIR_SATURATING(f64, i32, -0x1p31, 0x1.fffffffcp30, 0x1p31, INT32_MAX)
KIR_SATURATING(f64, i64, -0x1p63, 0x1.fffffffffffffp62, 0x1p63, INT64_MAX)
KIR_SATURATING(f64, u32, 0.0, 0x1.fffffffep31, 0x1p32, UINT32_MAX)
KIR_SATURATING(f64, u64, 0.0, 0x1.fffffffffffffp63, 0x1p64, UINT64_MAX)

#define KIR_PLAIN_CAST(from, to) \
    static inline kir_##to kir_cast_##from##_##to(kir_##from x) { return (kir_##to)x; }
#define KIR_PLAIN_CASTS(from) \
    KIR_PLAIN_CAST(from, f32) \
    KIR_PLAIN_CAST(from, f64) \
    KIR_PLAIN_CAST(from, i32) \
    KIR_PLAIN_CAST(from, i64) \
    KIR_PLAIN_CAST(from, u32) \
    KIR_PLAIN_CAST(from, u64)
KIR_PLAIN_CAST(f32, f32)
KIR_PLAIN_CAST(f32, f64)
KIR_PLAIN_CAST(f64, f32)
KIR_PLAIN_CAST(f64, f64)
KIR_PLAIN_CASTS(i32)
KIR_PLAIN_CASTS(i64)
KIR_PLAIN_CASTS(u32)
KIR_PLAIN_CASTS(u64)
KIR_PLAIN_CASTS(b8)

#define KIR_CAST_TO_BOOL(from) \
    static inline kir_b8 kir_cast_##from##_b8(kir_##from x) { return x != 0; }
KIR_CAST_TO_BOOL(f32)
KIR_CAST_TO_BOOL(f64)
KIR_CAST_TO_BOOL(i32)
KIR_CAST_TO_BOOL(i64)
KIR_CAST_TO_BOOL(u32)
KIR_CAST_TO_BOOL(u64)
KIR_CAST_TO_BOOL(b8)

/* ---- the lists --------------------------------------------------------------------------------------------------- */

/* Every (operation, type) there is, with the name of its function above: X(OP, op, TYPE, type). */
#define KIR_EACH_FLOAT(X, OP, op) X(OP, op, F32, f32) X(OP, op, F64, f64)
#define KIR_EACH_INT(X, OP, op) X(OP, op, I32, i32) X(OP, op, I64, i64) X(OP, op, U32, u32) X(OP, op, U64, u64)
#define KIR_EACH_NUMBER(X, OP, op) KIR_EACH_FLOAT(X, OP, op) KIR_EACH_INT(X, OP, op)
#define KIR_EACH_TYPE(X, OP, op) KIR_EACH_NUMBER(X, OP, op) X(OP, op, BOOL, b8)

// clang-format off
#define KIR_UNARY_LIST(X)                                                                                  \
    KIR_EACH_NUMBER(X, NEG, neg) KIR_EACH_NUMBER(X, ABS, abs) KIR_EACH_FLOAT(X, SQRT, sqrt)                \
    KIR_EACH_FLOAT(X, EXP, exp) KIR_EACH_FLOAT(X, LOG, log) KIR_EACH_FLOAT(X, SIN, sin)                    \
    KIR_EACH_FLOAT(X, COS, cos) KIR_EACH_FLOAT(X, TANH, tanh) KIR_EACH_FLOAT(X, ERF, erf)
// clang-format on

/* OP here is a kir_round. */
// clang-format off
#define KIR_ROUND_LIST(X)                                                                                  \
    KIR_EACH_FLOAT(X, FLOOR, floor) KIR_EACH_FLOAT(X, CEIL, ceil) KIR_EACH_FLOAT(X, TRUNC, trunc)          \
    KIR_EACH_FLOAT(X, NEAREST_EVEN, nearest)

// clang-format off
#define KIR_BINARY_LIST(X)                                                                                 \
    KIR_EACH_NUMBER(X, ADD, add) KIR_EACH_NUMBER(X, SUB, sub) KIR_EACH_NUMBER(X, MUL, mul)                 \
    KIR_EACH_NUMBER(X, DIV, div) KIR_EACH_NUMBER(X, MOD, mod) KIR_EACH_TYPE(X, MIN, min)                   \
    KIR_EACH_TYPE(X, MAX, max) KIR_EACH_INT(X, AND, and) KIR_EACH_INT(X, OR, or) KIR_EACH_INT(X, XOR, xor) \
    X(AND, and, BOOL, b8) X(OR, or, BOOL, b8) X(XOR, xor, BOOL, b8)                                  \
    KIR_EACH_INT(X, SHL, shl) KIR_EACH_INT(X, SHR, shr)
// clang-format on
// clang-format on

#define KIR_COMPARE_LIST(X) KIR_EACH_TYPE(X, EQ, eq) KIR_EACH_TYPE(X, LT, lt) KIR_EACH_TYPE(X, LE, le)

/* X(FROM, from, TO, to) */
#define KIR_CASTS_FROM(X, FROM, from) KIR_EACH_TYPE(X, FROM, from)
// clang-format off
#define KIR_CAST_LIST(X)                                                                                   \
    KIR_CASTS_FROM(X, F32, f32) KIR_CASTS_FROM(X, F64, f64) KIR_CASTS_FROM(X, I32, i32)                    \
    KIR_CASTS_FROM(X, I64, i64) KIR_CASTS_FROM(X, U32, u32) KIR_CASTS_FROM(X, U64, u64)                    \
    KIR_CASTS_FROM(X, BOOL, b8)
// clang-format on

#endif
