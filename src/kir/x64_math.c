/* x64_math.c — the functions of kir_math.h as steps: the same operations in the same order, so the same bits.
 *
 * One thing is done otherwise where AVX-512 has an instruction that yields the same: a power of two is multiplied in by
 * SCALEF, which rounds once as the two multiplications of kir_exp_f32 do. tests/test_kir_x64.c compares every function
 * with kir_math.h. */
#include "kir/x64.h"

#include <math.h>

static int f(x64_build *b, float x) { return kir_x64_f32(b, x); }

static int add_x64(x64_build *b, int x, int y) { return kir_x64_binary(b, X64_ADDF, x, y); }
static int sub(x64_build *b, int x, int y) { return kir_x64_binary(b, X64_SUBF, x, y); }
static int mul(x64_build *b, int x, int y) { return kir_x64_binary(b, X64_MULF, x, y); }

/* Σ c[k] x^(n-1-k) by Horner's rule. */
static int polynomial(x64_build *b, int x, const float *c, int n) {
    int p = kir_x64_fma(b, f(b, c[0]), x, f(b, c[1]));
    for (int k = 2; k < n; k++)
        p = kir_x64_fma(b, p, x, f(b, c[k]));
    return p;
}

static const float MAGIC = 0x1.8p23f;

static int reduce_ln2(x64_build *b, int x, int *r) {
    int n = sub(b, kir_x64_fma(b, x, f(b, 0x1.715476p0f), f(b, MAGIC)), f(b, MAGIC));
    int head = kir_x64_fma(b, n, f(b, -0x1.62e43p-1f), x);
    *r = kir_x64_fma(b, n, f(b, 0x1.05c61p-29f), head);
    return n;
}

static int x64_whole(x64_build *b, int n) {
    return kir_x64_binary(b, X64_SUBI, add_x64(b, n, f(b, MAGIC)), kir_x64_u32(b, 0x4b400000U));
}

static int power_of_two(x64_build *b, int n) {
    return kir_x64_with_imm(b, X64_SLL, kir_x64_binary(b, X64_ADDI, n, kir_x64_u32(b, 127)), 23);
}

static int exp_core(x64_build *b, int r) {
    static const float c[] = {0x1.6a2352p-10f, 0x1.123a6ap-7f, 0x1.5558f4p-5f, 0x1.55549p-3f, 0x1.fffffcp-2f};
    int p = polynomial(b, r, c, TN_COUNT(c));
    return add_x64(b, kir_x64_fma(b, p, mul(b, r, r), r), f(b, 1.0f));
}

int kir_x64_exp(x64_build *b, int x) {
    int c = kir_x64_binary(b, X64_MINF, f(b, 89.0f), x), r;
    c = kir_x64_binary(b, X64_MAXF, f(b, -104.0f), c);
    int n = reduce_ln2(b, c, &r), core = exp_core(b, r);
    if (b->evex) return kir_x64_binary(b, X64_SCALEF, core, n);
    int all = x64_whole(b, n), half = kir_x64_with_imm(b, X64_SRA, all, 1);
    int rest = kir_x64_binary(b, X64_SUBI, all, half);
    return mul(b, mul(b, core, power_of_two(b, half)), power_of_two(b, rest));
}

int kir_x64_log(x64_build *b, int x) {
    static const float c[] = {0x1.1b4602p-4f,  -0x1.e316d8p-4f, 0x1.e66658p-4f,  -0x1.fb3d5ap-4f, 0x1.233108p-3f,
                              -0x1.5562fep-3f, 0x1.99a55ap-3f,  -0x1.ffffeep-3f, 0x1.555546p-2f};
    int subnormal = kir_x64_compare_f(b, X64_LESS, x, f(b, 0x1p-126f));
    int bits = kir_x64_choose(b, subnormal, mul(b, x, f(b, 0x1p23f)), x);
    int e = kir_x64_with_imm(b, X64_SRA, kir_x64_binary(b, X64_SUBI, bits, kir_x64_u32(b, 0x3f3504f3U)), 23);
    int m = kir_x64_binary(b, X64_SUBI, bits, kir_x64_with_imm(b, X64_SLL, e, 23));
    int more = kir_x64_choose(b, subnormal, kir_x64_u32(b, 23), kir_x64_u32(b, 0));
    int n = kir_x64_unary(b, X64_I2F, kir_x64_binary(b, X64_SUBI, e, more));
    int g = sub(b, m, f(b, 1.0f));
    int p = polynomial(b, g, c, TN_COUNT(c));
    int tail = mul(b, mul(b, g, g), kir_x64_fma(b, p, g, f(b, -0.5f)));
    tail = kir_x64_fma(b, n, f(b, -0x1.05c61p-29f), tail);
    int y = kir_x64_fma(b, n, f(b, 0x1.62e43p-1f), add_x64(b, g, tail));
    y = kir_x64_choose(b, kir_x64_compare_f(b, X64_EQUAL, x, f(b, INFINITY)), x, y);
    y = kir_x64_choose(b, kir_x64_compare_f(b, X64_LESS, x, f(b, 0.0f)), f(b, NAN), y);
    y = kir_x64_choose(b, kir_x64_compare_f(b, X64_EQUAL, x, f(b, 0.0f)), f(b, -INFINITY), y);
    return kir_x64_choose(b, kir_x64_compare_f(b, X64_UNORDERED, x, x), x, y);
}

static int magnitude(x64_build *b, int x) { return kir_x64_binary(b, X64_AND, x, kir_x64_u32(b, 0x7fffffffU)); }

/* y ≥ 0 with the sign of x. */
static int with_sign(x64_build *b, int y, int x) {
    int sign = kir_x64_binary(b, X64_AND, x, kir_x64_u32(b, 0x80000000U));
    return kir_x64_binary(b, X64_OR, kir_x64_binary(b, X64_AND, y, kir_x64_u32(b, 0x7fffffffU)), sign);
}

int kir_x64_tanh(x64_build *b, int x) {
    static const float c[] = {-0x1.963d5cp-8f, 0x1.58669ap-6f, -0x1.b90fcp-5f, 0x1.110c98p-3f, -0x1.555548p-2f};
    int a = magnitude(b, x), s = mul(b, x, x), r;
    int small = kir_x64_fma(b, mul(b, x, s), polynomial(b, s, c, TN_COUNT(c)), x);
    /* a > 10 ? 20 : a + a; a NaN stays */
    int t = kir_x64_binary(b, X64_MINF, f(b, 20.0f), add_x64(b, a, a));
    int n = reduce_ln2(b, t, &r), core = exp_core(b, r);
    int power = b->evex ? kir_x64_binary(b, X64_SCALEF, core, n) : mul(b, core, power_of_two(b, x64_whole(b, n)));
    int large = sub(b, f(b, 1.0f), kir_x64_binary(b, X64_DIVF, f(b, 2.0f), add_x64(b, power, f(b, 1.0f))));
    return with_sign(b, kir_x64_choose(b, kir_x64_compare_f(b, X64_LESS, a, f(b, 0.56f)), small, large), x);
}

int kir_x64_erf(x64_build *b, int x) {
    static const float near[] = {0x1.5cd4b2p-14f, -0x1.aa3f3p-11f, 0x1.54c7f6p-8f, -0x1.b80e9p-6f,
                                 0x1.ce2e0ap-4f,  -0x1.812742p-2f, 0x1.06eba8p-3f};
    static const float far[] = {0x1.63ca0ep-16f, -0x1.c8ecp-12f, 0x1.11c3fap-8f, -0x1.9bd3d4p-6f,
                                0x1.bb9ebep-4f,  0x1.4442fep-1f, 0x1.2128a6p+0f, -0x1.73625p-13f};
    int a = magnitude(b, x), s = mul(b, x, x);
    int small = kir_x64_fma(b, x, polynomial(b, s, near, TN_COUNT(near)), x);
    int t = kir_x64_binary(b, X64_MINF, f(b, 3.95f), a);
    int q = polynomial(b, t, far, TN_COUNT(far));
    int e = kir_x64_exp(b, kir_x64_binary(b, X64_XOR, q, kir_x64_u32(b, 0x80000000U)));
    int large = with_sign(b, sub(b, f(b, 1.0f), e), x);
    return kir_x64_choose(b, kir_x64_compare_f(b, X64_LESS, a, f(b, 0.93f)), small, large);
}

int kir_x64_to_bf16(x64_build *b, int x) {
    int odd = kir_x64_binary(b, X64_AND, kir_x64_with_imm(b, X64_SRL, x, 16), kir_x64_u32(b, 1));
    int rounded = kir_x64_binary(b, X64_ADDI, kir_x64_binary(b, X64_ADDI, x, kir_x64_u32(b, 0x7fff)), odd);
    int quiet = kir_x64_binary(b, X64_OR, x, kir_x64_u32(b, 0x400000));
    return kir_x64_with_imm(b, X64_SRL, kir_x64_choose(b, kir_x64_compare_f(b, X64_UNORDERED, x, x), quiet, rounded),
                            16);
}
