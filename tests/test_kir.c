/* test_kir.c — promises of the kernel language: what every operation yields, what the builder simplifies, what the
 * verifier refuses, and that no failure loses memory. Expectations are worked out here, by other means than the
 * library's (wide integers, plain loops), and hold for the interpreter and for the tile VM alike. */
#include "test_support.h"

#include <float.h>
#include <math.h>
#include <pthread.h>

#include "kir/kir.h"
#include "kir/rules.h"

static const kir_type TYPES[] = {KIR_F32, KIR_F64, KIR_I32, KIR_I64, KIR_U32, KIR_U64, KIR_BOOL};
static const tn_dtype DTYPES[] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};

static bool is_float(kir_type t) { return t == KIR_F32 || t == KIR_F64; }
static bool is_signed(kir_type t) { return t == KIR_I32 || t == KIR_I64; }
static int bits_of(kir_type t) { return t == KIR_BOOL ? 1 : 8 * (int)kir_type_size(t); }

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct kernel {
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
} kernel;

static kernel begin(int n_par, int n_loop, const int64_t *extents) {
    kernel k = {0};
    assert_ok(kir_begin(n_par, n_loop, extents, &k.b));
    return k;
}

static void finish(kernel *k) { assert_ok(kir_finish(k->b, &k->p, &k->sizes)); }

static void release(kernel *k) {
    kir_free(k->p);
    tn_mem_free(k->sizes);
}

static kir_aff along(int axis) {
    kir_aff index = kir_aff_const(0);
    index.s[axis] = 1;
    return index;
}

static kir_val load_axis(kernel *k, int buffer, int axis) {
    kir_aff index = along(axis);
    return kir_load(k->b, buffer, &index, KIR_NONE);
}

static void store_axis(kernel *k, int buffer, int axis, kir_val v) {
    kir_aff index = along(axis);
    kir_store(k->b, buffer, &index, v, KIR_NONE);
}

static void store_first(kernel *k, int buffer, kir_val v) {
    kir_aff index = kir_aff_const(0);
    kir_store(k->b, buffer, &index, v, KIR_NONE);
}

typedef enum engine { INTERPRETER, TILE_VM, ENGINES } engine;

static void run_on(engine e, const kernel *k, void *const *buffers, const kir_dial *dials) {
    kir_launch launch = {k->sizes, buffers, dials};
    if (e == INTERPRETER) {
        assert_ok(kir_interpret(k->p, &launch));
        return;
    }
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(k->p, &vm));
    assert_ok(kir_vm_run(vm, &launch, 1));
    kir_vm_free(vm);
}

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

static void dials_are_read_at_each_launch(void **state) {
    (void)state;
    const int64_t extents[] = {3};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_I64);
    kir_buffer(k.b, TN_BOOL);
    store_axis(&k, 0, 0, kir_dial_value(k.b, KIR_F32, 0));
    store_axis(&k, 1, 0, kir_dial_value(k.b, KIR_I64, 1));
    store_axis(&k, 2, 0, kir_dial_value(k.b, KIR_BOOL, 2));
    finish(&k);
    assert_int_equal(k.p->n_dials, 3);
    for (engine e = INTERPRETER; e < ENGINES; e++) {
        float f[3];
        int64_t i[3];
        uint8_t b[3];
        for (int64_t step = 1; step < 3; step++) {
            const kir_dial dials[] = {{.f = 0.1 * (double)step}, {.i = INT64_MIN + step}, {.i = 4}};
            run_on(e, &k, (void *const[]){f, i, b}, dials);
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

/* ---- the builder ------------------------------------------------------------------------------------------------- */

static void builder_shares_folds_and_drops(void **state) {
    (void)state;
    const int64_t extents[] = {10};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_F32);
    kir_val x = load_axis(&k, 0, 0), one = kir_const(k.b, KIR_F32, 1);
    assert_int_equal(load_axis(&k, 0, 0), x);
    kir_val sum = kir_binary(k.b, KIR_ADD, x, one);
    assert_int_equal(kir_binary(k.b, KIR_ADD, one, x), sum);
    assert_int_equal(kir_binary(k.b, KIR_MUL, x, one), x);
    assert_int_equal(kir_binary(k.b, KIR_SUB, x, kir_const(k.b, KIR_F32, 0)), x);
    assert_int_not_equal(kir_binary(k.b, KIR_ADD, x, kir_const(k.b, KIR_F32, 0)), x); /* -0 + 0 is 0 */
    assert_int_equal(kir_binary(k.b, KIR_ADD, x, kir_const(k.b, KIR_F32, -0.0)), x);
    assert_int_equal(kir_binary(k.b, KIR_ADD, one, one), kir_const(k.b, KIR_F32, 2));
    assert_int_equal(kir_cast(k.b, KIR_F32, x), x);
    assert_int_equal(kir_select(k.b, kir_const_i(k.b, KIR_BOOL, 0), x, sum), sum);
    assert_int_equal(kir_const(k.b, KIR_I32, 3e9), kir_const_i(k.b, KIR_I32, INT32_MAX));
    kir_unary(k.b, KIR_EXP, sum); /* nobody reads it */
    store_axis(&k, 1, 0, sum);
    assert_int_not_equal(load_axis(&k, 0, 0), x); /* the store may have changed it */
    finish(&k);
    assert_int_equal(k.p->n_ins, 4);
    assert_int_equal(k.p->n_access, 2);
    release(&k);
}

static void hash_depends_on_structure_alone(void **state) {
    (void)state;
    kernel kernels[4];
    for (int i = 0; i < 4; i++) {
        const int64_t extents[] = {10 + i % 2};
        kernels[i] = begin(1, 0, extents);
        kir_buffer(kernels[i].b, TN_F32);
        kir_buffer(kernels[i].b, i == 3 ? TN_F16 : TN_F32);
        store_axis(&kernels[i], 1, 0,
                   kir_unary(kernels[i].b, i == 2 ? KIR_LOG : KIR_EXP, load_axis(&kernels[i], 0, 0)));
        finish(&kernels[i]);
    }
    assert_true(kir_equal(kernels[0].p, kernels[1].p));
    assert_int_equal(kernels[0].p->hash, kernels[1].p->hash);
    assert_int_not_equal(kernels[0].sizes[0], kernels[1].sizes[0]);
    assert_false(kir_equal(kernels[0].p, kernels[2].p));
    assert_false(kir_equal(kernels[0].p, kernels[3].p));
    for (int i = 0; i < 4; i++)
        release(&kernels[i]);
}

static void builder_keeps_its_first_failure(void **state) {
    (void)state;
    const int64_t extents[] = {10};
    kir_builder *b = NULL;
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    assert_ok(kir_begin(1, 0, extents, &b));
    int buffer = kir_buffer(b, TN_F32);
    kir_aff index = along(0);
    kir_val x = kir_load(b, buffer, &index, KIR_NONE);
    kir_val bad = kir_binary(b, KIR_ADD, x, kir_const_i(b, KIR_I64, 1));
    assert_int_equal(bad, KIR_NONE);
    assert_int_equal(kir_unary(b, KIR_EXP, bad), KIR_NONE);
    kir_loop(b, 7, 3);
    kir_end(b);
    kir_store(b, 12, &index, bad, bad);
    tn_fail(TN_ERR_IO, "something else");
    assert_int_equal(kir_finish(b, &p, &sizes), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "ADD");
    assert_text_has(tn_error(), "different types");
    assert_null(p);
    assert_null(sizes);
    assert_int_equal(kir_begin(9, 9, extents, &b), TN_ERR_ARGUMENT);
}

static void values_are_not_seen_outside_their_loop(void **state) {
    (void)state;
    const int64_t extents[] = {10};
    for (int variant = 0; variant < 3; variant++) {
        kir_builder *b = NULL;
        kir_program *p = NULL;
        int64_t *sizes = NULL;
        assert_ok(kir_begin(0, 1, extents, &b));
        int buffer = kir_buffer(b, TN_F32);
        kir_aff index = along(0), first = kir_aff_const(0);
        kir_loop(b, 0, 1);
        kir_val x = kir_load(b, buffer, &index, KIR_NONE);
        kir_val sum = kir_reduce_value(b, KIR_SUM, x, KIR_NONE);
        if (variant == 0) kir_store(b, buffer, &index, sum, KIR_NONE);
        if (variant != 2) kir_end(b);
        if (variant == 1) kir_store(b, buffer, &first, x, KIR_NONE);
        assert_int_equal(kir_finish(b, &p, &sizes), TN_ERR_ARGUMENT);
    }
}

static void programs_can_be_read(void **state) {
    (void)state;
    const int64_t extents[] = {4, 6};
    kernel k = begin(1, 1, extents);
    kir_buffer(k.b, TN_F16);
    kir_buffer(k.b, TN_F32);
    kir_aff index = along(1);
    index.s[0] = 6;
    kir_loop(k.b, 1, 1);
    kir_val x = kir_load(k.b, 0, &index, KIR_NONE);
    kir_val sum = kir_reduce_value(k.b, KIR_SUM, kir_rounding(k.b, KIR_FLOOR, x), KIR_NONE);
    kir_end(k.b);
    store_axis(&k, 1, 0, kir_binary(k.b, KIR_MUL, sum, kir_const(k.b, KIR_F32, 0.5)));
    finish(&k);
    tn_str text = {0};
    kir_print(k.p, k.sizes, &text);
    static const char *const parts[] = {"x0=4 x1=6",
                                        "b0: f16",
                                        "b1: f32 written",
                                        "LOOP over 1 axes from x1",
                                        "%1 = LOAD f32 b0[0 + 6·x0 + 1·x1]",
                                        "ROUND f32 floor %1",
                                        "REDUCE f32 SUM %2",
                                        "CONST f32 0.5",
                                        "STORE f32 b1[0 + 1·x0] %6"};
    for (size_t i = 0; i < TN_COUNT(parts); i++)
        assert_text_has(tn_str_text(&text), parts[i]);
    tn_str_free(&text);
    release(&k);
}

/* ---- the verifier ------------------------------------------------------------------------------------------------ */

static kernel small_program(void) {
    const int64_t extents[] = {8, 5};
    kernel k = begin(1, 1, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_I64);
    kir_buffer(k.b, TN_F32);
    kir_aff index = along(1), gathered = kir_aff_const(0);
    index.s[0] = 5;
    kir_loop(k.b, 1, 1);
    gathered.dyn = kir_load(k.b, 1, &index, KIR_NONE);
    kir_val x = kir_load(k.b, 0, &gathered, KIR_NONE);
    kir_val positive = kir_binary(k.b, KIR_LT, kir_const(k.b, KIR_F32, 0), x);
    kir_val y = kir_select(k.b, positive, kir_unary(k.b, KIR_SQRT, x), kir_dial_value(k.b, KIR_F32, 0));
    kir_val sum = kir_reduce_value(k.b, KIR_SUM, y, KIR_NONE);
    kir_end(k.b);
    kir_aff out = along(0);
    kir_store(k.b, 2, &out, kir_fma(k.b, sum, sum, sum), KIR_NONE);
    finish(&k);
    return k;
}

static int find(const kir_program *p, kir_op op) {
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == op) return i;
    }
    fail_msg("no %s", kir_op_name(op));
    return -1;
}

static void refuses(kir_program *p, const char *why) {
    assert_int_equal(kir_verify(p), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), why);
}

static void verifier_names_what_is_wrong(void **state) {
    (void)state;
    kernel k = small_program();
    kir_program *p = k.p;
    kir_ins saved;
#define WITH(op, change, why)               \
    do {                                    \
        kir_ins *in = &p->ins[find(p, op)]; \
        saved = *in;                        \
        change;                             \
        refuses(p, why);                    \
        *in = saved;                        \
    } while (0)
    WITH(KIR_SQRT, in->a = 4000, "not an earlier instruction");
    WITH(KIR_SQRT, in->a = -7, "not an earlier instruction");
    WITH(KIR_SQRT, in->type = KIR_F64, "different types");
    WITH(KIR_SQRT, in->type = KIR_I32, "result type");
    WITH(KIR_SQRT, in->type = 99, "result type");
    WITH(KIR_SQRT, in->op = 200, "no such operation");
    WITH(KIR_SQRT, in->b = in->a, "too many operands");
    WITH(KIR_SELECT, in->a = in->b, "not bool");
    WITH(KIR_LT, in->b = KIR_NONE, "not an earlier instruction");
    WITH(KIR_LOAD, in->imm.i = 77, "no such access");
    WITH(KIR_LOAD, in->type = KIR_F64, "computes in");
    WITH(KIR_DIAL, in->imm.i = 5, "no such dial");
    WITH(KIR_CONST, in->imm.f = 0.1, "outside its type");
    WITH(KIR_LOOP, in->imm.i = 0 | 1 << 8, "loop axes");
    WITH(KIR_LOOP, in->imm.i = 1 | 9 << 8, "loop axes");
    WITH(KIR_END, in->op = KIR_LOOP; in->imm.i = 1 | 1 << 8, "runs over already");
    WITH(KIR_REDUCE, in->kind = 90, "no such reduction");
    WITH(KIR_REDUCE, in->type = KIR_I64, "does not follow");
    WITH(KIR_FMA, in->a = (kir_val)find(p, KIR_SQRT), "inside a loop that has ended");
    WITH(KIR_STORE, in->a = (kir_val)find(p, KIR_END), "yields no value");
    WITH(KIR_STORE, in->type = KIR_F64, "other than its value's");
#undef WITH
    p->buffer_written[2] = false;
    refuses(p, "not marked as written");
    p->buffer_written[2] = true;
    p->buffer_dtype[1] = 100;
    refuses(p, "no valid dtype");
    p->buffer_dtype[1] = TN_I64;
    p->n_par = 12;
    refuses(p, "limits");
    p->n_par = 1;
    assert_ok(kir_verify(p));
    assert_int_equal(kir_verify(NULL), TN_ERR_ARGUMENT);
    release(&k);
}

/* Damages a program at random; whatever is left must be refused or be safe to compile. */
static void verifier_survives_any_damage(void **state) {
    (void)state;
    kernel k = small_program();
    size_t bytes = (size_t)k.p->n_ins * sizeof *k.p->ins;
    kir_ins *good = malloc(bytes);
    assert_non_null(good);
    memcpy(good, k.p->ins, bytes);
    uint32_t random = 1;
    int refused = 0;
    for (int round = 0; round < 20000; round++) {
        for (int hits = 1 + round % 3; hits > 0; hits--) {
            random = random * 1664525u + 1013904223u;
            ((uint8_t *)k.p->ins)[(random >> 8) % bytes] ^= (uint8_t)(1 << (random >> 3 & 7));
        }
        kir_vm *vm = NULL;
        tn_str text = {0};
        if (kir_vm_compile(k.p, &vm) != TN_OK) refused++;
        if (kir_verify(k.p) == TN_OK) kir_print(k.p, NULL, &text);
        tn_str_free(&text);
        kir_vm_free(vm);
        memcpy(k.p->ins, good, bytes);
    }
    assert_in_range(refused, 5000, 19999);
    free(good);
    release(&k);
}

/* ---- failures and threads ---------------------------------------------------------------------------------------- */

/* Builds, compiles and runs small_program under a failing allocation; TN_OK when none failed. */
enum { ROWS = 300, LAUNCHES = 3 };

static tn_status live_through(float out[LAUNCHES][ROWS]) {
    const int64_t extents[] = {ROWS, 40};
    kir_builder *b = NULL;
    kir_program *p = NULL;
    kir_vm *vm = NULL;
    int64_t *sizes = NULL;
    static float in[ROWS * 40];
    for (int i = 0; i < ROWS * 40; i++)
        in[i] = (float)(i % 17) - 3;
    TRY(kir_begin(1, 1, extents, &b));
    int from = kir_buffer(b, TN_F32), to = kir_buffer(b, TN_F32);
    kir_aff index = along(1), row = along(0);
    index.s[0] = 40;
    kir_loop(b, 1, 1);
    kir_val x = kir_load(b, from, &index, KIR_NONE);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, kir_binary(b, KIR_ADD, x, x), x), KIR_NONE);
    kir_end(b);
    kir_store(b, to, &row, sum, KIR_NONE);
    tn_status status = kir_finish(b, &p, &sizes);
    void *buffers[LAUNCHES][2];
    kir_launch launches[LAUNCHES];
    for (int i = 0; i < LAUNCHES; i++) {
        buffers[i][0] = in;
        buffers[i][1] = out[i];
        launches[i] = (kir_launch){sizes, buffers[i], NULL};
    }
    if (status == TN_OK) status = kir_interpret(p, &launches[0]);
    if (status == TN_OK) status = kir_vm_compile(p, &vm);
    if (status == TN_OK) status = kir_vm_run(vm, launches, LAUNCHES);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
    return status;
}

static void failure_of_any_allocation_is_an_error_and_loses_nothing(void **state) {
    (void)state;
    float right[LAUNCHES][ROWS], out[LAUNCHES][ROWS];
    assert_ok(tn_threads_set(2));
    kir_vm_trim();
    int64_t blocks = tn_mem_get_stats().live_blocks, calls = tn_mem_get_stats().calls;
    assert_ok(live_through(right));
    kir_vm_trim();
    calls = tn_mem_get_stats().calls - calls;
    assert_true(calls > 20);
    for (int64_t n = 1; n <= calls; n++) {
        memset(out, 0, sizeof out);
        tn_mem_fail_at(n);
        tn_status status = live_through(out);
        tn_mem_fail_at(0);
        kir_vm_trim();
        assert_int_equal(tn_mem_get_stats().live_blocks, blocks);
        if (status == TN_OK)
            assert_memory_equal(out, right, sizeof out); /* a pattern of kinds need not be kept */
        else
            assert_int_equal(status, TN_ERR_MEMORY);
    }
}

enum { RUNNERS = 4, ROUNDS = 200 };

static void *run_again_and_again(void *argument) {
    const kernel *k = argument;
    static float in[1000];
    float out[1000];
    kir_vm *vm = (kir_vm *)k->b; /* shared by all */
    void *const buffers[] = {in, out};
    kir_launch launch = {k->sizes, buffers, NULL};
    for (int i = 0; i < ROUNDS; i++) {
        if (kir_vm_run(vm, &launch, 1) != TN_OK || out[999] != 1) return NULL;
    }
    return argument;
}

static void threads_share_a_compiled_program(void **state) {
    (void)state;
    const int64_t extents[] = {1000};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_F32);
    store_axis(&k, 1, 0,
               kir_unary(k.b, KIR_COS, kir_unary(k.b, KIR_EXP, kir_unary(k.b, KIR_LOG, load_axis(&k, 0, 0)))));
    finish(&k);
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(k.p, &vm));
    k.b = (kir_builder *)vm;
    pthread_t threads[RUNNERS];
    for (int i = 0; i < RUNNERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_again_and_again, &k), 0);
    for (int i = 0; i < RUNNERS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, &k);
    }
    kir_vm_free(vm);
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
        cmocka_unit_test(dials_are_read_at_each_launch),
        cmocka_unit_test(float_sums_keep_their_order),
        cmocka_unit_test(reductions_of_nothing_yield_their_identity),
        cmocka_unit_test(arg_reductions_find_the_first_extreme_and_nan_first_of_all),
        cmocka_unit_test(scans_run_up_to_and_including_each_point),
        cmocka_unit_test(nested_loops_run_in_the_interpreter_alone),
        cmocka_unit_test(programs_on_no_points_run_nothing),
        cmocka_unit_test(builder_shares_folds_and_drops),
        cmocka_unit_test(hash_depends_on_structure_alone),
        cmocka_unit_test(builder_keeps_its_first_failure),
        cmocka_unit_test(values_are_not_seen_outside_their_loop),
        cmocka_unit_test(programs_can_be_read),
        cmocka_unit_test(verifier_names_what_is_wrong),
        cmocka_unit_test(verifier_survives_any_damage),
        cmocka_unit_test(failure_of_any_allocation_is_an_error_and_loses_nothing),
        cmocka_unit_test(threads_share_a_compiled_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
