/* test_legal.c — simplified programs yield the bits of those that they were made of, and hold nothing that they must
 * not.
 *
 * The cases made by hand (every operation on every type) and random programs are rewritten, and the interpreter runs
 * both on the same memory. Results that languages leave open (a shift by more than the width, a divisor of 0 …) are
 * garbage when it does: nothing may depend on them. */
#include "test_support.h"

#include <math.h>

#include "kir/legal_math.h"
#include "kir/render.h"
#include "kir/rules.h"
#include "kir_cases.h"
#include "kir_random.h"

enum { LONG_CASES = 2 };
#define CASES TEST_SWEEP(30)

static bool full(void) { return getenv("TRUNNION_TEST_FULL") != NULL; }
static uint64_t cases(uint64_t few) { return full() ? 10 * few : few; }

/* ---- what may stand ---------------------------------------------------------------------------------------------- */

static bool is_int(kir_type t) { return !kir_is_float(t) && t != KIR_BOOL; }

/* Is operand k a constant other than 0 and -1? What guards others is seen by running them. */
static bool forbidden(const kir_program *p, int i, unsigned what) {
    const kir_ins *in = &p->ins[i];
    kir_type t = in->a == KIR_NONE ? (kir_type)in->type : (kir_type)p->ins[in->a].type;
    if (what & KIR_LEGAL_I64) {
        what |= KIR_LEGAL_MATHS | KIR_LEGAL_SCALARS;
        if (in->type == KIR_I64 || in->type == KIR_U64) return true;
        if (in->op == KIR_SCALAR && in->type == KIR_BOOL) return true;
    }
    if (what & KIR_LEGAL_SCALARS && in->op == KIR_SCALAR && in->type == KIR_F32) return true;
    if (!(what & KIR_LEGAL_MATHS)) return false;
    switch (in->op) {
    case KIR_EXP:
    case KIR_LOG:
    case KIR_SIN:
    case KIR_COS:
    case KIR_TANH:
    case KIR_ERF:
    case KIR_PHILOX:
    case KIR_MIN:
    case KIR_MAX: return true;
    case KIR_MOD: return kir_is_float(t);
    case KIR_ABS: return is_int(t);
    case KIR_LT:
    case KIR_LE: return t == KIR_BOOL;
    default: return false;
    }
}

static void check_content(const kir_program *p, const kir_program *made_of, unsigned what) {
    assert_ok(kir_verify(p));
    assert_int_equal(p->n_par, made_of->n_par);
    assert_int_equal(kir_sizes_count(p), kir_sizes_count(made_of));
    assert_int_equal(p->n_access, made_of->n_access);
    assert_int_equal(p->n_buffers, made_of->n_buffers);
    assert_int_equal(p->n_scalars, made_of->n_scalars);
    for (int i = 0; i < p->n_buffers; i++) {
        int dtype = made_of->buffer_dtype[i];
        bool bits = (dtype == TN_F16 && what & KIR_LEGAL_HALVES) || (dtype == TN_BF16 && what & KIR_LEGAL_BRAINS);
        assert_int_equal(p->buffer_dtype[i], bits ? TN_U16 : dtype);
        assert_int_equal(p->buffer_written[i], made_of->buffer_written[i]);
        assert_int_equal(p->local[i], made_of->local[i]);
    }
    for (int i = 0; i < p->n_ins; i++) {
        if (forbidden(p, i, what)) fail_msg("instruction %d (%s) is left", i, kir_op_name((kir_op)p->ins[i].op));
    }
}

/* ---- what languages leave open ----------------------------------------------------------------------------------- */

static kir_val between(kir_builder *b, kir_val low, kir_val x, kir_val high, bool open) {
    return kir_binary(b, KIR_AND, kir_binary(b, open ? KIR_LT : KIR_LE, low, x), kir_binary(b, KIR_LT, x, high));
}

/* Whether a float's whole part fits the integer type: that of -1.5 does not fit u32, that of -0.5 does. */
static kir_val cast_fits(kir_builder *b, kir_type to, kir_type from, kir_val x) {
    int bits = (int)kir_type_size(to) * 8;
    bool is_signed = to == KIR_I32 || to == KIR_I64, exact = from == KIR_F64 && bits == 32;
    double low = is_signed ? -ldexp(1, bits - 1) : -1, high = ldexp(1, is_signed ? bits - 1 : bits);
    if (is_signed && exact) low -= 1;
    return between(b, kir_const(b, from, low), x, kir_const(b, from, high), !is_signed || exact);
}

static kir_val division_fits(kir_builder *b, kir_type t, kir_val x, kir_val y) {
    kir_val zero = kir_const(b, t, 0),
            fits = kir_binary(b, KIR_XOR, kir_binary(b, KIR_EQ, y, zero), kir_const(b, KIR_BOOL, 1));
    if (t == KIR_U32 || t == KIR_U64) return fits;
    kir_val least = kir_const_i(b, t, t == KIR_I32 ? INT32_MIN : INT64_MIN), minus_one = kir_const_i(b, t, -1);
    kir_val overflows = kir_binary(b, KIR_AND, kir_binary(b, KIR_EQ, x, least), kir_binary(b, KIR_EQ, y, minus_one));
    return kir_binary(b, KIR_AND, fits, kir_binary(b, KIR_XOR, overflows, kir_const(b, KIR_BOOL, 1)));
}

/* Where the operation has one result in every language; KIR_NONE: everywhere. */
static kir_val where_defined(kir_builder *b, const kir_ins *in, kir_type operand) {
    kir_type t = (kir_type)in->type;
    if (in->op == KIR_CAST && kir_is_float(operand) && is_int(t)) return cast_fits(b, t, operand, in->a);
    if ((in->op == KIR_DIV || in->op == KIR_MOD) && is_int(t)) return division_fits(b, t, in->a, in->b);
    if (in->op != KIR_SHL && in->op != KIR_SHR) return KIR_NONE;
    return between(b, kir_const(b, t, 0), in->b, kir_const(b, t, (double)kir_type_size(t) * 8), false);
}

/* The program with something else wherever languages leave a result open. */
static kir_program *with_garbage(const kir_program *p) {
    kir_builder *b = NULL;
    kir_program *out = NULL;
    int64_t *sizes = NULL;
    kir_val *map = calloc((size_t)p->n_ins + 1, sizeof *map);
    assert_non_null(map);
    assert_ok(kir_begin_like(p, &b));
    for (int i = 0; i < p->n_ins; i++) {
        kir_ins in = p->ins[i];
        kir_type operand = in.a == KIR_NONE ? (kir_type)in.type : (kir_type)p->ins[in.a].type;
        kir_val dyn = kir_has_access((kir_op)in.op) ? p->access[in.imm.i].dyn : KIR_NONE;
        in.a = in.a == KIR_NONE ? KIR_NONE : map[in.a];
        in.b = in.b == KIR_NONE ? KIR_NONE : map[in.b];
        in.c = in.c == KIR_NONE ? KIR_NONE : map[in.c];
        map[i] = kir_append(b, &in, dyn == KIR_NONE ? KIR_NONE : map[dyn]);
        kir_val defined = where_defined(b, &in, operand);
        if (defined != KIR_NONE) map[i] = kir_select(b, defined, map[i], kir_const(b, (kir_type)in.type, 85));
    }
    assert_ok(kir_finish(b, &out, &sizes));
    tn_mem_free(sizes);
    free(map);
    return out;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool runs_alike(const kir_random *t, const kir_program *p, const int64_t *sizes, uint64_t seed) {
    char *want = kir_random_memory(t, seed), *got = kir_random_memory(t, seed);
    void *buffers[KIR_MAX_BUFFERS];
    kir_random_buffers(t, want, buffers);
    assert_ok(kir_interpret(t->program, &(kir_launch){sizes, buffers, t->scalars}));
    kir_random_buffers(t, got, buffers);
    assert_ok(kir_interpret(p, &(kir_launch){sizes, buffers, t->scalars}));
    bool good = kir_random_same(t, want, got, "simplified");
    free(want);
    free(got);
    return good;
}

/* Rewrites, looks, runs; false when it has no such form. */
static bool check(const kir_random *t, uint64_t seed, unsigned what, const char *name) {
    kir_program *p = NULL;
    tn_status status = kir_legalise(t->program, what, &p);
    if (status == TN_ERR_UNSUPPORTED) {
        assert_null(p);
        return false;
    }
    if (status != TN_OK) fail_msg("%s, %u: %s", name, what, tn_error());
    check_content(p, t->program, what);
    if (what & KIR_LEGAL_MATHS) {
        kir_program *garbage = with_garbage(p);
        kir_free(p);
        p = garbage;
    }
    bool good = runs_alike(t, p, t->sizes, seed);
    if (good && full()) {
        int64_t *smaller = kir_random_smaller(t);
        good = runs_alike(t, p, smaller, seed + 1);
        free(smaller);
    }
    if (!good) {
        print_error("%s, %u\n", name, what);
        kir_random_print(t, seed);
    }
    assert_true(good);
    kir_free(p);
    return true;
}

enum {
    ALL = KIR_LEGAL_MATHS | KIR_LEGAL_I64 | KIR_LEGAL_HALVES | KIR_LEGAL_SCALARS | KIR_LEGAL_BRAINS,
    WITH_I64 = KIR_LEGAL_MATHS | KIR_LEGAL_HALVES | KIR_LEGAL_SCALARS | KIR_LEGAL_BRAINS
};
static const unsigned WHATS[] = {ALL, WITH_I64, KIR_LEGAL_I64, KIR_LEGAL_MATHS, KIR_LEGAL_HALVES, KIR_LEGAL_BRAINS, 0};

static void every_operation(void **state) {
    (void)state;
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        kir_case_make(&t, &kir_cases[i]);
        for (size_t k = 0; k < (full() ? TN_COUNT(WHATS) : 2); k++) {
            bool made = check(&t, (uint64_t)i, WHATS[k], kir_cases[i].name);
            assert_true(made || (kir_cases[i].f64 && WHATS[k] & KIR_LEGAL_I64));
        }
        kir_random_free(&t);
    }
}

static void check_random(uint64_t count, const kir_random_options *options) {
    int made = 0;
    for (uint64_t seed = 0; seed < count; seed++) {
        kir_random t;
        kir_random_make(&t, seed, options);
        made += check(&t, seed, WHATS[seed % (TN_COUNT(WHATS) - 1)], "random");
        kir_random_free(&t);
    }
    assert_true(made > (int)count / 2);
}

static void random_programs(void **state) {
    (void)state;
    check_random(cases(CASES), &(kir_random_options){.variables = true, .no_f64 = true});
    check_random(cases(CASES) / 2, &(kir_random_options){.variables = true});
}

static void random_long_loops(void **state) {
    (void)state;
    check_random(cases(LONG_CASES), &(kir_random_options){.long_loop = true});
}

static void random_groups(void **state) {
    (void)state;
    check_random(cases(CASES), &(kir_random_options){.group = true, .variables = true});
}

/* A program of words made of one that loads, adds and stores i64. */
static kir_program *program_of_words(void) {
    kir_builder *b = NULL;
    kir_program *p = NULL, *words = NULL;
    int64_t *sizes = NULL, extent = 4;
    assert_ok(kir_begin(1, 0, &extent, &b));
    int from = kir_buffer(b, TN_I64), to = kir_buffer(b, TN_I64);
    kir_aff index = kir_aff_const(0);
    index.s[0] = 1;
    kir_val x = kir_binary(b, KIR_ADD, kir_load(b, from, &index, KIR_NONE), kir_index(b, &index));
    kir_store(b, to, &index, x, KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    assert_ok(kir_legalise(p, KIR_LEGAL_I64, &words));
    kir_free(p);
    tn_mem_free(sizes);
    return words;
}

static int first_of(const kir_program *p, kir_op op) {
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == op) return i;
    }
    fail_msg("no %s", kir_op_name(op));
    return -1;
}

static void programs_of_words_are_verified(void **state) {
    (void)state;
    kir_program *p = program_of_words(), *again = NULL;
    kir_vm *vm = NULL;
    assert_true(p->words);
    assert_int_equal(kir_vm_compile(p, &vm), TN_ERR_UNSUPPORTED);
    assert_ok(kir_legalise(p, ALL, &again));
    assert_true(kir_equal(p, again));
    kir_free(again);
    kir_ins *load = &p->ins[first_of(p, KIR_LOAD)], *at = &p->ins[first_of(p, KIR_INDEX)];
    load->kind = 2;
    assert_int_equal(kir_verify(p), TN_ERR_ARGUMENT);
    load->kind = 1;
    assert_ok(kir_verify(p));
    at->type = KIR_I64;
    assert_int_equal(kir_verify(p), TN_ERR_ARGUMENT);
    at->type = KIR_I32;
    p->words = false;
    assert_int_equal(kir_verify(p), TN_ERR_ARGUMENT);
    kir_free(p);
}

/* Only the affine part of an INDEX is promised to fit 32 bits: what is computed has 64. */
static void computed_indices_have_64_bits(void **state) {
    (void)state;
    enum { N = 5 };
    int64_t numbers[N] = {-3, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 40}, got[N] = {0};
    kir_builder *b = NULL;
    kir_program *p = NULL, *words = NULL;
    int64_t *sizes = NULL, extent = N;
    assert_ok(kir_begin(1, 0, &extent, &b));
    int from = kir_buffer(b, TN_I64), to = kir_buffer(b, TN_I64);
    kir_aff at = kir_aff_const(0), moved = kir_aff_const(7);
    at.s[0] = moved.s[0] = 1;
    moved.dyn = kir_load(b, from, &at, KIR_NONE);
    kir_store(b, to, &at, kir_index(b, &moved), KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    assert_ok(kir_legalise(p, KIR_LEGAL_I64, &words));
    assert_ok(kir_interpret(words, &(kir_launch){sizes, (void *[]){numbers, got}, NULL}));
    for (int i = 0; i < N; i++)
        assert_true((uint64_t)got[i] == (uint64_t)numbers[i] + 7 + (uint64_t)i);
    kir_free(words);
    kir_free(p);
    tn_mem_free(sizes);
}

/* ---- functions of legal_math.h ----------------------------------------------------------------------------------- */

static void same_f32(float want, float got, float x, float y) {
    if (kir_bits_f32(want) == kir_bits_f32(got) || (want != want && got != got)) return;
    fail_msg("fmod(%a, %a) is %a, should be %a", (double)x, (double)y, (double)got, (double)want);
}

static void same_f64(double want, double got, double x, double y) {
    if (kir_bits_f64(want) == kir_bits_f64(got) || (want != want && got != got)) return;
    fail_msg("fmod(%a, %a) is %a, should be %a", x, y, got, want);
}

static uint64_t any_bits(void) {
    return (uint64_t)kir_random_below(INT64_MAX) << 1 ^ (uint64_t)kir_random_below(INT64_MAX);
}

static void fmod_is_exact(void **state) {
    (void)state;
    static const float hard[] = {0.0f,      -0.0f,           1.0f,      -1.0f, INFINITY, -INFINITY,        NAN,
                                 0x1p-149f, -0x3p-149f,      0x1p-126f, 3.0f,  0x1p127f, -0x1.fffffep127f, 0.1f,
                                 7.5f,      0x1.fffffcp-127f};
    kir_random_seed(7);
    for (size_t i = 0; i < TN_COUNT(hard); i++) {
        for (size_t k = 0; k < TN_COUNT(hard); k++) {
            float x = hard[i], y = hard[k];
            same_f32(fmodf(x, y), kir_legal_mod_f32(x, y), x, y);
            double wide = (double)x * 0x1p-900, narrow = (double)y * 0x1p-925;
            same_f64(fmod(wide, narrow), kir_legal_mod_f64(wide, narrow), wide, narrow);
            same_f64(fmod((double)x, narrow), kir_legal_mod_f64((double)x, narrow), (double)x, narrow);
        }
    }
    for (int i = 0; i < 100000; i++) {
        float x = kir_from_bits_f32((uint32_t)any_bits()), y = kir_from_bits_f32((uint32_t)any_bits());
        same_f32(fmodf(x, y), kir_legal_mod_f32(x, y), x, y);
        if (i % 16) continue;
        double v = kir_from_bits_f64(any_bits()), w = kir_from_bits_f64(any_bits());
        same_f64(fmod(v, w), kir_legal_mod_f64(v, w), v, w);
    }
}

/* ---- integers of 64 bits as two words ---------------------------------------------------------------------------- */

typedef uint32_t words_fn(uint32_t a, uint32_t ah, uint32_t b, uint32_t bh, uint32_t *high);

static uint64_t run_words(words_fn *fn, uint64_t a, uint64_t b) {
    uint32_t high, low = fn((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32), &high);
    return (uint64_t)high << 32 | low;
}

/* Numbers of every length, those around powers of two above all. */
static uint64_t some_number(void) {
    uint64_t power = (uint64_t)1 << kir_random_below(64);
    switch (kir_random_below(4)) {
    case 0: return power + (uint64_t)kir_random_below(5) - 2;
    case 1: return any_bits() & (power - 1);
    case 2: return (uint64_t)0 - (any_bits() & (power - 1));
    default: return any_bits();
    }
}

static void check_word_shifts(uint64_t a, uint32_t count) {
    uint32_t low, high;
    low = kir_words_shl((uint32_t)a, (uint32_t)(a >> 32), count, &high);
    assert_int_equal((uint64_t)high << 32 | low, a << count);
    low = kir_words_shr_u((uint32_t)a, (uint32_t)(a >> 32), count, &high);
    assert_int_equal((uint64_t)high << 32 | low, a >> count);
    low = kir_words_shr_i((uint32_t)a, (uint32_t)(a >> 32), count, &high);
    assert_int_equal((uint64_t)high << 32 | low, (uint64_t)((int64_t)a >> count));
}

static void check_word_floats(uint64_t a) {
    uint32_t low = (uint32_t)a, high = (uint32_t)(a >> 32);
    assert_true(kir_words_to_u(low, high) == (float)a);
    assert_true(kir_words_to_i(low, high) == (float)(int64_t)a);
    float x = (float)(a >> 1), y = (float)((int64_t)a / 2);
    low = kir_words_from_u(x, &high);
    assert_int_equal((uint64_t)high << 32 | low, (uint64_t)x);
    low = kir_words_from_i(y, &high);
    assert_int_equal((uint64_t)high << 32 | low, (uint64_t)(int64_t)y);
}

static void words_are_64_bits(void **state) {
    (void)state;
    kir_random_seed(11);
    for (int i = 0; i < 300000; i++) {
        uint64_t a = some_number(), b = some_number();
        assert_int_equal(run_words(kir_words_add, a, b), a + b);
        assert_int_equal(run_words(kir_words_sub, a, b), a - b);
        assert_int_equal(run_words(kir_words_mul, a, b), a * b);
        if (b) assert_int_equal(run_words(kir_words_div_u, a, b), a / b);
        check_word_shifts(a, (uint32_t)(i % 64));
        check_word_floats(a);
    }
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void without_memory(void **state) {
    (void)state;
    kir_random t;
    kir_program *p = NULL;
    kir_random_make(&t, 3, &(kir_random_options){.group = true, .variables = true});
    tn_status status = TN_ERR_MEMORY;
    int n = 0;
    for (; status != TN_OK && n < 1000; n++) {
        tn_mem_fail_at(n + 1);
        status = kir_legalise(t.program, ALL, &p);
        tn_mem_fail_at(0);
        if (status != TN_OK) {
            assert_int_equal(status, TN_ERR_MEMORY);
            assert_null(p);
        }
    }
    assert_int_equal(status, TN_OK);
    assert_true(n > 5);
    kir_free(p);
    kir_random_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation),
        cmocka_unit_test(random_programs),
        cmocka_unit_test(random_long_loops),
        cmocka_unit_test(random_groups),
        cmocka_unit_test(programs_of_words_are_verified),
        cmocka_unit_test(computed_indices_have_64_bits),
        cmocka_unit_test(fmod_is_exact),
        cmocka_unit_test(words_are_64_bits),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
