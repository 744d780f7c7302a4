/* test_kir.c — promises of the kernel language: what every operation yields. Expectations are worked out here, by other
 * means than the library's (wide integers, plain loops), and hold for the interpreter and for the tile VM alike.
 * What the builder, the verifier and failures promise: test_kir_program.c. */
#include "kir_kernel.h"
#include "kir_print.h"

#include <float.h>
#include <math.h>

#include "kir/rules.h"

static const kir_type TYPES[] = {KIR_F32, KIR_F64, KIR_I32, KIR_I64, KIR_U32, KIR_U64, KIR_BOOL};
static const tn_dtype DTYPES[] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};

static bool is_float(kir_type t) { return t == KIR_F32 || t == KIR_F64; }
static bool is_signed(kir_type t) { return t == KIR_I32 || t == KIR_I64; }
static int bits_of(kir_type t) { return t == KIR_BOOL ? 1 : 8 * (int)kir_type_size(t); }

/* ---- operands of every type -------------------------------------------------------------------------------------- */

enum { PATTERNS = 16, PAIRS = PATTERNS * PATTERNS };

/* A value as the test sees it: floats in `f`, whole numbers in `i` (reduced to the type's width). */
typedef struct number {
    double f;
    __int128 i;
} number;

static __int128 wrapped(kir_type t, __int128 x) {
    if (t == KIR_BOOL) return x != 0;
    unsigned __int128 one = 1, mask = (one << bits_of(t)) - 1, low = (unsigned __int128)x & mask;
    bool negative = is_signed(t) && low >> (bits_of(t) - 1);
    return negative ? (__int128)low - (__int128)(mask + 1) : (__int128)low;
}

static __int128 least(kir_type t) { return is_signed(t) ? -((__int128)1 << (bits_of(t) - 1)) : 0; }
static __int128 most(kir_type t) { return ((__int128)1 << (bits_of(t) - is_signed(t))) - 1; }

static number sample(kir_type t, int which) {
    static const double floats[PATTERNS] = {0.0,  -0.0, 1.0,  -1.0, INFINITY, -INFINITY, NAN,   0.5,
                                            -2.5, 3.5,  1e30, -7e9, 1e-40,    255.75,    -0.75, 4294967295.0};
    const __int128 wholes[PATTERNS] = {0,  1,  2,   -1,   3,       7,        31,          32,
                                       63, 64, 100, -100, most(t), least(t), most(t) - 1, 12345678};
    if (is_float(t)) return (number){.f = t == KIR_F32 ? (double)(float)floats[which] : floats[which]};
    return (number){.i = wrapped(t, wholes[which])};
}

static void put(void *memory, int64_t at, kir_type t, number x) {
    float single = (float)x.f;
    int64_t whole = (int64_t)x.i;
    char *to = (char *)memory + (size_t)at * kir_type_size(t);
    memcpy(to, t == KIR_F32 ? (void *)&single : t == KIR_F64 ? (void *)&x.f : (void *)&whole, kir_type_size(t));
}

static number get(const void *memory, int64_t at, kir_type t) {
    float single = 0;
    double wide = 0;
    int64_t whole = 0;
    const char *from = (const char *)memory + (size_t)at * kir_type_size(t);
    memcpy(t == KIR_F32 ? (void *)&single : t == KIR_F64 ? (void *)&wide : (void *)&whole, from, kir_type_size(t));
    if (is_float(t)) return (number){.f = t == KIR_F32 ? (double)single : wide};
    return (number){.i = wrapped(t, whole)};
}

static bool same_number(kir_type t, number a, number b) {
    if (!is_float(t)) return a.i == b.i;
    return (isnan(a.f) && isnan(b.f)) || memcmp(&a.f, &b.f, sizeof a.f) == 0;
}

/* ---- what operations should yield -------------------------------------------------------------------------------- */

static double rounded_to(kir_type t, double x) { return t == KIR_F32 ? (double)(float)x : x; }

/* IEEE arithmetic of f32 in f64 rounds right: one operation's exact result rounded twice
 * is the same for + - * / and √. */
static number float_result(kir_op op, kir_type t, double a, double b) {
    double x = 0;
    switch (op) {
    case KIR_NEG: x = -a; break;
    case KIR_ABS: x = fabs(a); break;
    case KIR_SQRT: x = sqrt(a); break;
    case KIR_ADD: x = a + b; break;
    case KIR_SUB: x = a - b; break;
    case KIR_MUL: x = a * b; break;
    case KIR_DIV: x = a / b; break;
    case KIR_MOD: x = fmod(a, b); break;
    case KIR_MAX: x = isnan(a) || isnan(b) ? (double)NAN : a > b ? a : b; break;
    case KIR_MIN: x = isnan(a) || isnan(b) ? (double)NAN : a < b ? a : b; break;
    default: fail_msg("no expectation for %s", kir_op_name(op));
    }
    return (number){.f = rounded_to(t, x)};
}

static __int128 shifted(kir_op op, kir_type t, __int128 a, __int128 count) {
    bool outside = count < 0 || count >= bits_of(t);
    if (op == KIR_SHL) return outside ? 0 : a * ((__int128)1 << (int)count);
    if (outside) return a < 0 ? -1 : 0;
    __int128 divisor = (__int128)1 << (int)count;
    return a < 0 ? -((-a + divisor - 1) / divisor) : a / divisor;
}

static number whole_result(kir_op op, kir_type t, __int128 a, __int128 b) {
    __int128 x = 0;
    switch (op) {
    case KIR_NEG: x = -a; break;
    case KIR_ABS: x = a < 0 ? -a : a; break;
    case KIR_ADD: x = a + b; break;
    case KIR_SUB: x = a - b; break;
    case KIR_MUL: x = (__int128)((unsigned __int128)a * (unsigned __int128)b); break;
    case KIR_DIV: x = b == 0 ? 0 : a / b; break;
    case KIR_MOD: x = b == 0 ? 0 : a % b; break;
    case KIR_MAX: x = a > b ? a : b; break;
    case KIR_MIN: x = a < b ? a : b; break;
    case KIR_AND: x = a & b; break;
    case KIR_OR: x = a | b; break;
    case KIR_XOR: x = a ^ b; break;
    case KIR_SHL:
    case KIR_SHR: x = shifted(op, t, a, b); break;
    default: fail_msg("no expectation for %s", kir_op_name(op));
    }
    return (number){.i = wrapped(t, x)};
}

static number compared(kir_op op, kir_type t, number a, number b) {
    bool less = is_float(t) ? a.f < b.f : a.i < b.i, equal = is_float(t) ? a.f == b.f : a.i == b.i;
    return (number){.i = op == KIR_EQ ? equal : op == KIR_LT ? less : less || equal};
}

static number cast_result(kir_type to, kir_type from, number x) {
    if (is_float(to)) {
        double f = is_float(from) ? x.f : from == KIR_U64 ? (double)(uint64_t)x.i : (double)(int64_t)x.i;
        if (!is_float(from) && to == KIR_F32)
            f = (double)(from == KIR_U64 ? (float)(uint64_t)x.i : (float)(int64_t)x.i);
        return (number){.f = rounded_to(to, f)};
    }
    if (to == KIR_BOOL) return (number){.i = is_float(from) ? x.f != 0 : x.i != 0};
    if (!is_float(from)) return (number){.i = wrapped(to, x.i)};
    if (isnan(x.f)) return (number){.i = 0};
    if (x.f >= (double)most(to)) return (number){.i = most(to)};
    if (x.f <= (double)least(to)) return (number){.i = least(to)};
    return (number){.i = (__int128)x.f};
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

typedef struct operands {
    char a[PAIRS * 8], b[PAIRS * 8], out[PAIRS * 8];
} operands;

static void fill_pairs(operands *o, kir_type t) {
    for (int i = 0; i < PAIRS; i++) {
        put(o->a, i, t, sample(t, i / PATTERNS));
        put(o->b, i, t, sample(t, i % PATTERNS));
    }
}

static kernel operation(kir_op op, kir_type in, kir_type out, int operand_count) {
    const int64_t extents[] = {PAIRS};
    kernel k = begin(1, 0, extents);
    for (int i = 0; i < 2; i++)
        kir_buffer(k.b, DTYPES[in]);
    kir_buffer(k.b, DTYPES[out]);
    kir_val a = load_axis(&k, 0, 0), b = load_axis(&k, 1, 0);
    kir_val v = op == KIR_CAST       ? kir_cast(k.b, out, a)
                : operand_count == 1 ? kir_unary(k.b, op, a)
                                     : kir_binary(k.b, op, a, b);
    store_axis(&k, 2, 0, v);
    finish(&k);
    return k;
}

typedef number expectation(kir_op op, kir_type in, kir_type out, number a, number b);

static void check_operation(kir_op op, kir_type in, kir_type out, int operand_count, expectation *expect) {
    static operands o;
    kernel k = operation(op, in, out, operand_count);
    fill_pairs(&o, in);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        run_on(e, &k, (void *const[]){o.a, o.b, o.out}, NULL);
        for (int i = 0; i < PAIRS; i++) {
            number a = get(o.a, i, in), b = get(o.b, i, in), want = expect(op, in, out, a, b), got = get(o.out, i, out);
            if (same_number(out, want, got)) continue;
            fail_msg("%s %s → %s, engine %d: (%g %lld), (%g %lld) gives (%g %lld), should be (%g %lld)",
                     kir_op_name(op), kir_type_name(in), kir_type_name(out), (int)e, a.f, (long long)a.i, b.f,
                     (long long)b.i, got.f, (long long)got.i, want.f, (long long)want.i);
        }
    }
    release(&k);
}

static number expect_arithmetic(kir_op op, kir_type in, kir_type out, number a, number b) {
    (void)out;
    return is_float(in) ? float_result(op, in, a.f, b.f) : whole_result(op, in, a.i, b.i);
}

static number expect_comparison(kir_op op, kir_type in, kir_type out, number a, number b) {
    (void)out;
    return compared(op, in, a, b);
}

static number expect_cast(kir_op op, kir_type in, kir_type out, number a, number b) {
    (void)op;
    (void)b;
    return cast_result(out, in, a);
}

static void check_arithmetic(const kir_op *ops, size_t count, int operand_count, const kir_type *types,
                             size_t type_count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < type_count; k++) {
            check_operation(ops[i], types[k], types[k], operand_count, expect_arithmetic);
        }
    }
}

static void arithmetic_follows_its_definition(void **state) {
    (void)state;
    static const kir_op all[] = {KIR_ADD, KIR_SUB, KIR_MUL, KIR_DIV, KIR_MOD, KIR_MAX, KIR_MIN};
    static const kir_op whole[] = {KIR_AND, KIR_OR, KIR_XOR, KIR_SHL, KIR_SHR};
    static const kir_op of_bool[] = {KIR_AND, KIR_OR, KIR_XOR, KIR_MAX, KIR_MIN};
    static const kir_op one[] = {KIR_NEG, KIR_ABS}, root[] = {KIR_SQRT};
    check_arithmetic(all, TN_COUNT(all), 2, TYPES, 6);
    check_arithmetic(whole, TN_COUNT(whole), 2, TYPES + 2, 4);
    check_arithmetic(of_bool, TN_COUNT(of_bool), 2, TYPES + 6, 1);
    check_arithmetic(one, TN_COUNT(one), 1, TYPES, 6);
    check_arithmetic(root, 1, 1, TYPES, 2);
}

static void comparisons_follow_their_definition(void **state) {
    (void)state;
    for (kir_op op = KIR_EQ; op <= KIR_LE; op++) {
        for (int t = 0; t < KIR_TYPE_COUNT; t++)
            check_operation(op, TYPES[t], KIR_BOOL, 2, expect_comparison);
    }
}

static void casts_truncate_saturate_and_wrap(void **state) {
    (void)state;
    for (int from = 0; from < KIR_TYPE_COUNT; from++) {
        for (int to = 0; to < KIR_TYPE_COUNT; to++)
            check_operation(KIR_CAST, TYPES[from], TYPES[to], 1, expect_cast);
    }
}

static void extremes_prefer_the_second_of_two_zeros(void **state) {
    (void)state;
    const int64_t extents[] = {2};
    kernel k = begin(1, 0, extents);
    for (int i = 0; i < 4; i++)
        kir_buffer(k.b, TN_F32);
    kir_val a = load_axis(&k, 0, 0), b = load_axis(&k, 1, 0);
    store_axis(&k, 2, 0, kir_binary(k.b, KIR_MAX, a, b));
    store_axis(&k, 3, 0, kir_binary(k.b, KIR_MIN, a, b));
    finish(&k);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        float x[] = {-0.0f, 0.0f}, y[] = {0.0f, -0.0f}, greatest[2], least_of[2];
        run_on(e, &k, (void *const[]){x, y, greatest, least_of}, NULL);
        assert_memory_equal(greatest, y, sizeof y);
        assert_memory_equal(least_of, y, sizeof y);
    }
    release(&k);
}

static void roundings_and_fma_and_choice(void **state) {
    (void)state;
    const int64_t extents[] = {6};
    kernel k = begin(1, 0, extents);
    for (int i = 0; i < 7; i++)
        kir_buffer(k.b, TN_F64);
    kir_val x = load_axis(&k, 0, 0);
    for (int mode = KIR_FLOOR; mode <= KIR_NEAREST_EVEN; mode++)
        store_axis(&k, 1 + mode, 0, kir_rounding(k.b, (kir_round)mode, x));
    kir_val third = kir_const(k.b, KIR_F64, 1.0 / 3.0);
    store_axis(&k, 5, 0, kir_fma(k.b, third, kir_const(k.b, KIR_F64, 3), kir_binary(k.b, KIR_SUB, x, x)));
    kir_val below = kir_binary(k.b, KIR_LT, x, kir_const(k.b, KIR_F64, 0));
    store_axis(&k, 6, 0, kir_select(k.b, below, kir_const(k.b, KIR_F64, -1), x));
    finish(&k);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        double in[] = {-2.5, -0.5, 0.5, 1.5, 2.5, -0.0}, out[6][6];
        static const double want[6][6] = {{-3, -1, 0, 1, 2, -0.0},   {-2, -0.0, 1, 2, 3, -0.0},
                                          {-2, -0.0, 0, 1, 2, -0.0}, {-2, -0.0, 0, 2, 2, -0.0},
                                          {1, 1, 1, 1, 1, 1},        {-1, -1, 0.5, 1.5, 2.5, -0.0}};
        run_on(e, &k, (void *const[]){in, out[0], out[1], out[2], out[3], out[4], out[5]}, NULL);
        for (int r = 0; r < 6; r++) {
            if (r == 4)
                assert_true(out[4][0] == fma(1.0 / 3.0, 3, 0));
            else
                assert_memory_equal(out[r], want[r], sizeof want[r]);
        }
    }
    release(&k);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void narrow_buffers_convert_on_the_way(void **state) {
    (void)state;
    const int64_t extents[] = {4};
    kernel k = begin(1, 0, extents);
    static const tn_dtype dtypes[] = {TN_I8, TN_U8, TN_I16, TN_U16, TN_F16, TN_BF16};
    for (int i = 0; i < 6; i++)
        kir_buffer(k.b, dtypes[i]);
    kir_buffer(k.b, TN_I32);
    kir_buffer(k.b, TN_F32);
    kir_val sum = kir_const_i(k.b, KIR_I32, 0);
    for (int i = 0; i < 4; i++)
        sum = kir_binary(k.b, KIR_ADD, sum, load_axis(&k, i, 0));
    store_axis(&k, 6, 0, sum);
    store_axis(&k, 0, 0, kir_binary(k.b, KIR_MUL, sum, kir_const_i(k.b, KIR_I32, 3)));
    kir_val f = kir_binary(k.b, KIR_ADD, load_axis(&k, 4, 0), load_axis(&k, 5, 0));
    store_axis(&k, 7, 0, f);
    store_axis(&k, 5, 0, f);
    finish(&k);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        int8_t i8[] = {-1, 127, -128, 5};
        uint8_t u8[] = {255, 1, 0, 200};
        int16_t i16[] = {-300, 0, 32767, -32768};
        uint16_t u16[] = {65535, 2, 3, 4}, f16[] = {0x3c00, 0x0001, 0x7c00, 0xc000},
                 bf16[] = {0x3f80, 0x3f80, 0, 0x4000};
        int32_t total[4];
        float real[4];
        run_on(e, &k, (void *const[]){i8, u8, i16, u16, f16, bf16, total, real}, NULL);
        const int32_t want[] = {65489, 130, 32642, -32559};
        const float want_real[] = {2, 1 + 0x1p-24f, INFINITY, 0};
        assert_memory_equal(total, want, sizeof want);
        assert_memory_equal(real, want_real, sizeof want_real);
        for (int i = 0; i < 4; i++)
            assert_int_equal(i8[i], (int8_t)(uint8_t)(uint32_t)(want[i] * 3));
        assert_int_equal(bf16[0], 0x4000);
        assert_int_equal(bf16[1], 0x3f80);
    }
    release(&k);
}

static void masked_accesses_touch_nothing(void **state) {
    (void)state;
    const int64_t extents[] = {100};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_F32);
    kir_aff at = along(0), shifted_by = along(0);
    shifted_by.c = -40;
    kir_val index = kir_index(k.b, &shifted_by);
    kir_val inside = kir_binary(k.b, KIR_AND, kir_binary(k.b, KIR_LE, kir_const_i(k.b, KIR_I64, 0), index),
                                kir_binary(k.b, KIR_LT, index, kir_const_i(k.b, KIR_I64, 20)));
    kir_val x = kir_load(k.b, 0, &shifted_by, inside);
    kir_store(k.b, 1, &at, kir_binary(k.b, KIR_ADD, x, kir_const(k.b, KIR_F32, 1)), KIR_NONE);
    kir_store(k.b, 0, &shifted_by, kir_const(k.b, KIR_F32, 7), inside);
    finish(&k);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        float *source = malloc(20 * sizeof *source), out[100]; /* its own block: the sanitizer guards both ends */
        assert_non_null(source);
        for (int i = 0; i < 20; i++)
            source[i] = (float)i;
        run_on(e, &k, (void *const[]){source, out}, NULL);
        for (int i = 0; i < 100; i++)
            assert_true(out[i] == (i >= 40 && i < 60 ? (float)(i - 40) : 0) + 1);
        for (int i = 0; i < 20; i++)
            assert_true(source[i] == 7);
        free(source);
    }
    release(&k);
}

static void runtime_scalars_are_read_at_each_launch(void **state) {
    (void)state;
    const int64_t extents[] = {3};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_I64);
    kir_buffer(k.b, TN_BOOL);
    store_axis(&k, 0, 0, kir_scalar_value(k.b, KIR_F32, 0));
    store_axis(&k, 1, 0, kir_scalar_value(k.b, KIR_I64, 1));
    store_axis(&k, 2, 0, kir_scalar_value(k.b, KIR_BOOL, 2));
    finish(&k);
    assert_int_equal(k.p->n_scalars, 3);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        float f[3];
        int64_t i[3];
        uint8_t b[3];
        for (int64_t step = 1; step < 3; step++) {
            const kir_scalar scalars[] = {{.f = 0.1 * (double)step}, {.i = INT64_MIN + step}, {.i = 4}};
            run_on(e, &k, (void *const[]){f, i, b}, scalars);
            assert_true(f[2] == (float)(0.1 * (double)step) && i[2] == INT64_MIN + step && b[2] == 1);
        }
    }
    release(&k);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* The order of kir.h, spelled out once more: 64 lanes, folded by halves after each block of 16384. */
static float sum_in_lanes(const float *x, int64_t n) {
    float total = 0;
    for (int64_t begin_at = 0; begin_at < n; begin_at += 16384) {
        float lane[64] = {0};
        for (int64_t i = begin_at; i < n && i < begin_at + 16384; i++)
            lane[i % 64] += x[i];
        for (int width = 32; width >= 1; width /= 2) {
            for (int i = 0; i < width; i++)
                lane[i] += lane[i + width];
        }
        total = begin_at == 0 ? lane[0] : total + lane[0];
    }
    return total;
}

static float sum_in_chains(const float *x, const float *y, int64_t n) {
    float total = 0;
    for (int64_t begin_at = 0; begin_at < n; begin_at += 256) {
        float chain = 0;
        for (int64_t i = begin_at; i < n && i < begin_at + 256; i++)
            chain = fmaf(x[i], y[i], chain);
        total = begin_at == 0 ? chain : total + chain;
    }
    return total;
}

static void float_sums_keep_their_order(void **state) {
    (void)state;
    static const int64_t lengths[] = {0,   1,   7,    8,    16,   17,   63,    64,    65,   255,
                                      256, 257, 1000, 1024, 1025, 5000, 16384, 16385, 50001};
    static float x[50001], y[50001];
    for (int i = 0; i < 50001; i++) {
        x[i] = (float)(i * 919 % 1000) / 333.0f - 1;
        y[i] = (float)(i * 4729 % 1000) / 777.0f - 0.5f;
    }
    for (size_t c = 0; c < TN_COUNT(lengths); c++) {
        int64_t n = lengths[c];
        kernel k = begin(0, 1, &n);
        for (int i = 0; i < 5; i++)
            kir_buffer(k.b, TN_F32);
        kir_loop(k.b, 0, 1);
        kir_val a = load_axis(&k, 0, 0), b = load_axis(&k, 1, 0);
        kir_val sum = kir_reduce_value(k.b, KIR_SUM, a, KIR_NONE), chain = kir_reduce_value(k.b, KIR_CHAIN, a, b);
        kir_val plain = kir_reduce_value(k.b, KIR_SEQ, a, KIR_NONE);
        kir_end(k.b);
        store_first(&k, 2, sum);
        store_first(&k, 3, chain);
        store_first(&k, 4, plain);
        finish(&k);
        float want_plain = 0;
        for (int64_t i = 0; i < n; i++)
            want_plain += x[i];
        for (engine e = INTERPRETER; e < ENGINES; e++) {
            float got[3] = {-1, -1, -1};
            run_on(e, &k, (void *const[]){x, y, &got[0], &got[1], &got[2]}, NULL);
            assert_true(got[0] == sum_in_lanes(x, n));
            assert_true(got[1] == sum_in_chains(x, y, n));
            assert_true(got[2] == want_plain);
        }
        release(&k);
    }
}

/* One row of six, and its results for each kind of reduction. */
static void reductions_of_nothing_yield_their_identity(void **state) {
    (void)state;
    static const struct {
        kir_reduce kind;
        kir_type type;
        number want;
    } rows[] = {
        {KIR_SUM, KIR_F32, {.f = 0}},          {KIR_PROD, KIR_F64, {.f = 1}},  {KIR_RMAX, KIR_F32, {.f = -INFINITY}},
        {KIR_RMIN, KIR_F64, {.f = INFINITY}},  {KIR_RMAX, KIR_U32, {.i = 0}},  {KIR_RMIN, KIR_I64, {.i = INT64_MAX}},
        {KIR_RMAX, KIR_I32, {.i = INT32_MIN}}, {KIR_PROD, KIR_I64, {.i = 1}},  {KIR_ARGMAX, KIR_F32, {.i = 0}},
        {KIR_RMIN, KIR_BOOL, {.i = 1}},        {KIR_CHAIN, KIR_F32, {.f = 0}}, {KIR_SEQ, KIR_F64, {.f = -0.0}},
    };
    for (size_t r = 0; r < TN_COUNT(rows); r++) {
        const int64_t extents[] = {2, 0};
        kir_type result = rows[r].kind == KIR_ARGMAX ? KIR_I64 : rows[r].type;
        kernel k = begin(1, 1, extents);
        kir_buffer(k.b, DTYPES[rows[r].type]);
        kir_buffer(k.b, DTYPES[result]);
        kir_loop(k.b, 1, 1);
        kir_val x = load_axis(&k, 0, 1);
        kir_val v = kir_reduce_value(k.b, rows[r].kind, x, rows[r].kind == KIR_CHAIN ? x : (kir_val)KIR_NONE);
        kir_end(k.b);
        store_axis(&k, 1, 0, v);
        finish(&k);
        for (engine e = INTERPRETER; e < ENGINES; e++) {
            char out[16], in[8] = {0};
            memset(out, 0x55, sizeof out);
            run_on(e, &k, (void *const[]){in, out}, NULL);
            for (int i = 0; i < 2; i++)
                assert_true(same_number(result, get(out, i, result), rows[r].want));
        }
        release(&k);
    }
}

static void arg_reductions_find_the_first_extreme_and_nan_first_of_all(void **state) {
    (void)state;
    const int64_t extents[] = {4, 5};
    kernel k = begin(1, 1, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_I64);
    kir_buffer(k.b, TN_I64);
    kir_aff index = along(1);
    index.s[0] = 5;
    kir_loop(k.b, 1, 1);
    kir_val x = kir_load(k.b, 0, &index, KIR_NONE);
    kir_val greatest = kir_reduce_value(k.b, KIR_ARGMAX, x, KIR_NONE),
            smallest = kir_reduce_value(k.b, KIR_ARGMIN, x, KIR_NONE);
    kir_end(k.b);
    store_axis(&k, 1, 0, greatest);
    store_axis(&k, 2, 0, smallest);
    finish(&k);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        float in[] = {1,     3, 3,     -1, -1, 0,         NAN,       9,         NAN,       -9,
                      -0.0f, 0, -0.0f, 0,  0,  -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        int64_t most_at[4], least_at[4];
        run_on(e, &k, (void *const[]){in, most_at, least_at}, NULL);
        const int64_t want_most[] = {1, 1, 0, 0}, want_least[] = {3, 1, 0, 0};
        assert_memory_equal(most_at, want_most, sizeof want_most);
        assert_memory_equal(least_at, want_least, sizeof want_least);
    }
    release(&k);
}

static void scans_run_up_to_and_including_each_point(void **state) {
    (void)state;
    const int64_t extents[] = {2500};
    kernel k = begin(0, 1, extents);
    for (int i = 0; i < 3; i++)
        kir_buffer(k.b, TN_I64);
    kir_loop(k.b, 0, 1);
    kir_val x = load_axis(&k, 0, 0);
    store_axis(&k, 1, 0, kir_scan(k.b, KIR_SUM, x));
    store_axis(&k, 2, 0, kir_scan(k.b, KIR_RMAX, x));
    kir_end(k.b);
    finish(&k);
    static int64_t in[2500], sums[2500], tops[2500];
    for (int i = 0; i < 2500; i++)
        in[i] = i * 31 % 997 - 500;
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        run_on(e, &k, (void *const[]){in, sums, tops}, NULL);
        int64_t sum = 0, top = INT64_MIN;
        for (int i = 0; i < 2500; i++) {
            sum += in[i];
            top = in[i] > top ? in[i] : top;
            assert_true(sums[i] == sum && tops[i] == top);
        }
    }
    release(&k);
}

static void nested_loops_run_in_the_interpreter_alone(void **state) {
    (void)state;
    const int64_t extents[] = {3, 4};
    kernel k = begin(0, 2, extents);
    kir_buffer(k.b, TN_I32);
    kir_buffer(k.b, TN_I32);
    kir_aff index = along(1);
    index.s[0] = 4;
    kir_loop(k.b, 0, 1);
    kir_loop(k.b, 1, 1);
    kir_val inner = kir_reduce_value(k.b, KIR_RMAX, kir_load(k.b, 0, &index, KIR_NONE), KIR_NONE);
    kir_end(k.b);
    kir_val outer = kir_reduce_value(k.b, KIR_SUM, inner, KIR_NONE);
    kir_end(k.b);
    store_first(&k, 1, outer);
    finish(&k);
    int32_t in[] = {1, 5, 2, 3, -4, -3, -9, -8, 7, 0, 0, 0}, out = 0;
    run_on(INTERPRETER, &k, (void *const[]){in, &out}, NULL);
    assert_int_equal(out, 5 - 3 + 7);
    kir_vm *vm = NULL;
    assert_int_equal(kir_vm_compile(k.p, &vm), TN_ERR_UNSUPPORTED);
    assert_null(vm);
    assert_text_has(tn_error(), "nested");
    release(&k);
}

static void programs_on_no_points_run_nothing(void **state) {
    (void)state;
    const int64_t extents[] = {3, 0};
    kernel k = begin(2, 0, extents);
    kir_buffer(k.b, TN_F32);
    store_axis(&k, 0, 1, kir_const(k.b, KIR_F32, 1));
    finish(&k);
    for (engine e = INTERPRETER; e < ENGINES; e++)
        run_on(e, &k, (void *const[]){NULL}, NULL);
    release(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_follows_its_definition),
        cmocka_unit_test(comparisons_follow_their_definition),
        cmocka_unit_test(casts_truncate_saturate_and_wrap),
        cmocka_unit_test(extremes_prefer_the_second_of_two_zeros),
        cmocka_unit_test(roundings_and_fma_and_choice),
        cmocka_unit_test(narrow_buffers_convert_on_the_way),
        cmocka_unit_test(masked_accesses_touch_nothing),
        cmocka_unit_test(runtime_scalars_are_read_at_each_launch),
        cmocka_unit_test(float_sums_keep_their_order),
        cmocka_unit_test(reductions_of_nothing_yield_their_identity),
        cmocka_unit_test(arg_reductions_find_the_first_extreme_and_nan_first_of_all),
        cmocka_unit_test(scans_run_up_to_and_including_each_point),
        cmocka_unit_test(nested_loops_run_in_the_interpreter_alone),
        cmocka_unit_test(programs_on_no_points_run_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
