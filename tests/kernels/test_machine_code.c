/* test_machine_code.c — machine code beside kir_math.h, at the edges of memory, and where it cannot be had.
 *
 * Random programs are in test_kir_vm.c; here every function is compared on dense samples and special values, every
 * element of the half types is converted, rows end where memory ends, and the system, memory or a user say no. Where
 * there is no code (another processor), the VM runs the same tests. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kir/rules.h"
#include "kir/vm.h"
#include "kir_random.h"

enum { SAMPLES = 1 << 18 };

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct program {
    kir_program *p;
    int64_t *sizes;
    kir_vm *vm;
} program;

static kir_aff along(int axis) {
    kir_aff index = kir_aff_const(0);
    index.s[axis] = 1;
    return index;
}

static program finish(kir_builder *b) {
    program made = {NULL, NULL, NULL};
    assert_ok(kir_finish(b, &made.p, &made.sizes));
    assert_ok(kir_vm_compile(made.p, &made.vm));
    return made;
}

static void discard(program *made) {
    kir_vm_free(made->vm);
    kir_free(made->p);
    tn_mem_free(made->sizes);
}

static kir_builder *begin(int64_t n) {
    kir_builder *b = NULL;
    assert_ok(kir_begin(1, 0, &n, &b));
    return b;
}

/* buffer 1 → one operation → buffer 0 */
static program one_operation(int64_t n, tn_dtype to, tn_dtype from,
                             kir_val (*apply)(kir_builder *b, kir_val x, int what), int what) {
    kir_builder *b = begin(n);
    kir_aff index = along(0);
    kir_buffer(b, to);
    kir_buffer(b, from);
    kir_store(b, 0, &index, apply(b, kir_load(b, 1, &index, KIR_NONE), what), KIR_NONE);
    return finish(b);
}

static void run(const program *made, void *d, const void *x, const void *y) {
    void *buffers[] = {d, (void *)(uintptr_t)x, (void *)(uintptr_t)y};
    kir_launch launch = {made->sizes, buffers, NULL};
    assert_ok(kir_vm_run(made->vm, &launch, 1));
}

/* Calls the test for each instruction set that has code. */
static void with_each_isa(void (*test)(void)) {
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!kir_code_has((tn_isa)isa) || !kir_vm_use((tn_isa)isa)) continue;
        test();
    }
    kir_vm_use(tn_cpu().isa);
}

static bool has_code(void) { return strcmp(kir_code_state(), "on") == 0; }

/* ---- functions --------------------------------------------------------------------------------------------------- */

static kir_val apply_unary(kir_builder *b, kir_val x, int op) { return kir_unary(b, (kir_op)op, x); }
static kir_val apply_rounding(kir_builder *b, kir_val x, int mode) { return kir_rounding(b, (kir_round)mode, x); }
static kir_val apply_cast(kir_builder *b, kir_val x, int type) { return kir_cast(b, (kir_type)type, x); }
static kir_val apply_nothing(kir_builder *b, kir_val x, int unused) {
    (void)b;
    (void)unused;
    return x;
}

/* Special values first, then patterns all over the range. */
static uint32_t sample(int64_t i) {
    static const uint32_t special[] = {0,          0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000,
                                       0x7fc00000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
                                       0xff7fffff, 0x42b17218, 0xc2cff1b5, 0x42b20000, 0xc2d00000, 0x41200000,
                                       0x3f0f5c29, 0x3f6e147b, 0x407ccccd, 0x4f000000, 0xcf000000, 0x4effffff};
    if (i < (int64_t)TN_COUNT(special)) return special[i];
    return (uint32_t)i * 16411u;
}

static bool same_f32(float x, float y) { return memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y); }

/* Every sample through the program and through kir_eval. */
static void compare_f32(program *made, const kir_ins *in, const char *name) {
    float *x = calloc(SAMPLES, sizeof *x);
    uint32_t *d = calloc(SAMPLES, sizeof *d);
    assert_true(x && d);
    for (int64_t i = 0; i < SAMPLES; i++) {
        uint32_t bits = sample(i);
        memcpy(&x[i], &bits, sizeof bits);
    }
    run(made, d, x, NULL);
    for (int64_t i = 0; i < SAMPLES; i++) {
        kir_value want = {.u64 = 0}, got = {.u64 = 0};
        assert_true(kir_eval(in, KIR_F32, (kir_value[3]){{.f32 = x[i]}, {.u64 = 0}, {.u64 = 0}}, &want));
        memcpy(&got, &d[i], sizeof d[i]);
        bool same = in->type == KIR_F32 ? same_f32(got.f32, want.f32) : got.u32 == want.u32;
        if (!same) {
            fail_msg("%s(%a) = %x, should be %x (%s)", name, (double)x[i], got.u32, want.u32,
                     tn_isa_name(tn_cpu().isa));
        }
    }
    free(x);
    free(d);
    discard(made);
}

static void functions_once(void) {
    static const kir_op ops[] = {KIR_EXP, KIR_LOG, KIR_TANH, KIR_ERF, KIR_SQRT, KIR_NEG, KIR_ABS, KIR_SIN, KIR_COS};
    for (size_t i = 0; i < TN_COUNT(ops); i++) {
        program made = one_operation(SAMPLES, TN_F32, TN_F32, apply_unary, (int)ops[i]);
        kir_ins in = {.op = (uint8_t)ops[i], .type = KIR_F32};
        compare_f32(&made, &in, kir_op_name(ops[i]));
    }
    for (int mode = KIR_FLOOR; mode <= KIR_NEAREST_EVEN; mode++) {
        program made = one_operation(SAMPLES, TN_F32, TN_F32, apply_rounding, mode);
        kir_ins in = {.op = KIR_ROUND, .type = KIR_F32, .imm.i = mode};
        compare_f32(&made, &in, "round");
    }
    program made = one_operation(SAMPLES, TN_I32, TN_F32, apply_cast, KIR_I32);
    kir_ins in = {.op = KIR_CAST, .type = KIR_I32};
    compare_f32(&made, &in, "cast to i32");
}

static void functions_are_those_of_kir_math(void **state) {
    (void)state;
    with_each_isa(functions_once);
}

/* ---- two operands ------------------------------------------------------------------------------------------------ */

static const float EDGES[] = {0.0f,    -0.0f,   1.0f,     -1.0f, INFINITY, -INFINITY, NAN,  1e-40f,
                              -1e-40f, 3.4e38f, -3.4e38f, 0.5f,  2.0f,     -2.5f,     1e10f};
enum { PAIRS = TN_COUNT(EDGES) * TN_COUNT(EDGES) };

static void pairs_once(void) {
    static const kir_op ops[] = {KIR_ADD, KIR_SUB, KIR_MUL, KIR_DIV, KIR_MIN, KIR_MAX};
    float x[PAIRS], y[PAIRS], d[PAIRS];
    for (size_t i = 0; i < PAIRS; i++) {
        x[i] = EDGES[i / TN_COUNT(EDGES)];
        y[i] = EDGES[i % TN_COUNT(EDGES)];
    }
    for (size_t k = 0; k < TN_COUNT(ops); k++) {
        kir_builder *b = begin(PAIRS);
        kir_aff index = along(0);
        for (int i = 0; i < 3; i++)
            kir_buffer(b, TN_F32);
        kir_val v = kir_binary(b, ops[k], kir_load(b, 1, &index, KIR_NONE), kir_load(b, 2, &index, KIR_NONE));
        kir_store(b, 0, &index, v, KIR_NONE);
        program made = finish(b);
        run(&made, d, x, y);
        for (size_t i = 0; i < PAIRS; i++) {
            kir_ins in = {.op = (uint8_t)ops[k], .type = KIR_F32};
            kir_value want;
            assert_true(kir_eval(&in, KIR_F32, (kir_value[3]){{.f32 = x[i]}, {.f32 = y[i]}, {.u64 = 0}}, &want));
            if (!same_f32(d[i], want.f32)) fail_msg("%s(%g, %g)", kir_op_name(ops[k]), (double)x[i], (double)y[i]);
        }
        discard(&made);
    }
}

/* MAX and MIN with constants take short cuts. */
static void bounds_once(void) {
    float d[TN_COUNT(EDGES)];
    for (size_t c = 0; c < TN_COUNT(EDGES); c++) {
        for (int k = 0; k < 2; k++) {
            kir_builder *b = begin((int64_t)TN_COUNT(EDGES));
            kir_aff index = along(0);
            kir_buffer(b, TN_F32);
            kir_buffer(b, TN_F32);
            kir_op op = k ? KIR_MAX : KIR_MIN;
            kir_val bound = kir_const(b, KIR_F32, (double)EDGES[c]);
            kir_store(b, 0, &index, kir_binary(b, op, kir_load(b, 1, &index, KIR_NONE), bound), KIR_NONE);
            program made = finish(b);
            run(&made, d, EDGES, NULL);
            for (size_t i = 0; i < TN_COUNT(EDGES); i++) {
                kir_ins in = {.op = (uint8_t)op, .type = KIR_F32};
                kir_value want, v[3] = {{.f32 = EDGES[i]}, {.f32 = EDGES[c]}, {.u64 = 0}};
                assert_true(kir_eval(&in, KIR_F32, v, &want));
                if (!same_f32(d[i], want.f32)) {
                    fail_msg("%s(%g, %g) = %g", kir_op_name(op), (double)EDGES[i], (double)EDGES[c], (double)d[i]);
                }
            }
            discard(&made);
        }
    }
}

static void edges_of_arithmetic_are_right(void **state) {
    (void)state;
    with_each_isa(pairs_once);
    with_each_isa(bounds_once);
}

/* ---- subnormal elements ------------------------------------------------------------------------------------------ */

enum { NEAR = 1 << 14, RESULTS = 6, KEPT = 34 }; /* KEPT: more values at once than there are registers */

/* buffers RESULTS … RESULTS + 2 → one operation each. Code minds subnormal elements where there is a root, or where two
 * results lie over what is read. */
static program of_subnormals(bool roots) {
    kir_builder *b = begin(NEAR);
    kir_aff index = along(0);
    kir_val in[3], kept[KEPT];
    for (int i = 0; i < RESULTS + 3; i++)
        kir_buffer(b, TN_F32);
    for (int i = 0; i < 3; i++)
        in[i] = kir_load(b, RESULTS + i, &index, KIR_NONE);
    for (int i = 0; i < KEPT; i++)
        kept[i] = kir_binary(b, KIR_MUL, in[0], kir_const(b, KIR_F32, (i + 0.7) / 9));
    kir_val sum = in[2];
    for (int i = 0; i < KEPT; i++)
        sum = kir_fma(b, kept[i], in[1], sum);
    kir_val tenth = kir_const(b, KIR_F32, 0.1);
    const kir_val results[RESULTS] = {roots ? kir_unary(b, KIR_SQRT, in[2]) : kir_binary(b, KIR_MUL, in[2], tenth),
                                      kir_binary(b, KIR_MUL, in[0], in[1]),
                                      kir_binary(b, KIR_DIV, in[0], in[1]),
                                      kir_fma(b, in[0], in[1], in[2]),
                                      kir_fma(b, tenth, in[0], in[2]),
                                      sum};
    for (int i = 0; i < RESULTS; i++)
        kir_store(b, i, &index, results[i], KIR_NONE);
    return finish(b);
}

static float with_exponent(int64_t least, int64_t count) {
    float mantissa = 1 + (float)kir_random_below(1 << 23) * 0x1p-23f;
    return ldexpf(kir_random_below(2) ? mantissa : -mantissa, (int)(least + kir_random_below(count)));
}

/* Subnormal, next to it, ordinary, special, any. */
static float drawn(void) {
    switch (kir_random_below(6)) {
    case 0: return with_exponent(-149, 23);
    case 1: return with_exponent(-130, 30);
    case 2: return with_exponent(-12, 24);
    case 3: return EDGES[kir_random_below((int64_t)TN_COUNT(EDGES))];
    case 4: return (float)kir_random_below(9) * 0x1p-149f;
    default: return with_exponent(-149, 270);
    }
}

/* Of x and z in vectors whose sums f64 has: subnormal or 0. */
static float drawn_tiny(void) {
    float x = (float)kir_random_below(kir_random_below(2) ? 3 : 1 << 23) * 0x1p-149f;
    return kir_random_below(2) ? x : -x;
}

static void subnormals_with(bool roots) {
    static float memory[RESULTS + 3][NEAR], want[RESULTS][NEAR], in[3][NEAR];
    void *buffers[RESULTS + 3];
    for (int i = 0; i < NEAR; i++) {
        /* a sum that f64 would round to the middle of two f32, and that lies below it */
        const float middle[3] = {0x1p-12f + 0x1p-35f, 0x1p-12f - 0x1p-35f, 1 + 0x1p-23f};
        bool is_middle = kir_random_below(32) == 0, tiny = i / 16 % 2 == 0;
        for (int k = 0; k < 3; k++)
            in[k][i] = is_middle ? middle[k] : !tiny ? drawn() : k == 1 ? with_exponent(-4, 5) : drawn_tiny();
    }
    program made = of_subnormals(roots);
    kir_launch launch = {made.sizes, buffers, NULL};
    for (int i = 0; i < RESULTS + 3; i++)
        buffers[i] = i < RESULTS ? want[i] : in[i - RESULTS];
    assert_ok(kir_interpret(made.p, &launch));
    for (int i = 0; i < RESULTS + 3; i++)
        buffers[i] = memory[i];
    for (int i = 0; i < 2 && !roots; i++)
        buffers[i] = memory[RESULTS + i];
    for (int i = 0; i < 2; i++) { /* the second run is code */
        memcpy(memory + RESULTS, in, sizeof in);
        assert_ok(kir_vm_run(made.vm, &launch, 1));
    }
    for (int k = 0; k < RESULTS; k++)
        for (int i = 0; i < NEAR; i++) {
            double got = (double)((const float *)buffers[k])[i];
            if (!same_f32((float)got, want[k][i]))
                fail_msg("result %d of %a, %a, %a is %a, should be %a", k, (double)in[0][i], (double)in[1][i],
                         (double)in[2][i], got, (double)want[k][i]);
        }
    discard(&made);
}

static void subnormals_once(void) {
    subnormals_with(true);
    subnormals_with(false);
}

static void subnormal_elements_have_the_same_bits(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        kir_random_seed(seed);
        with_each_isa(subnormals_once);
    }
}

/* ---- half types -------------------------------------------------------------------------------------------------- */

enum { HALVES = 1 << 16 };

/* Every pattern, to f32 and back; and every sample from f32. The interpreter says what is right. */
static void compare_conversion(tn_dtype to, tn_dtype from, const void *x, int64_t n) {
    program made = one_operation(n, to, from, apply_nothing, 0);
    size_t size = tn_dtype_size(to);
    char *d = calloc((size_t)n, size), *want = calloc((size_t)n, size);
    assert_true(d && want);
    run(&made, d, x, NULL);
    void *buffers[] = {want, (void *)(uintptr_t)x};
    assert_ok(kir_interpret(made.p, &(kir_launch){made.sizes, buffers, NULL}));
    for (int64_t i = 0; i < n; i++) {
        kir_value a = {.u64 = 0}, b = {.u64 = 0};
        memcpy(&a, d + (size_t)i * size, size);
        memcpy(&b, want + (size_t)i * size, size);
        uint32_t infinite = to == TN_F32 ? 0x7f800000 : to == TN_F16 ? 0x7c00 : 0x7f80, all = 2 * infinite - 1;
        if (to != TN_F32) all = 0x7fff;
        if (to == TN_F32) all = 0x7fffffff;
        bool nan = (a.u32 & all) > infinite && (b.u32 & all) > infinite;
        if (a.u64 != b.u64 && !nan)
            fail_msg("%s from %s, element %lld", tn_dtype_name(to), tn_dtype_name(from), (long long)i);
    }
    free(d);
    free(want);
    discard(&made);
}

static void halves_once(void) {
    uint16_t *x = calloc(HALVES, sizeof *x);
    uint32_t *y = calloc(SAMPLES, sizeof *y);
    assert_true(x && y);
    for (int i = 0; i < HALVES; i++)
        x[i] = (uint16_t)i;
    for (int64_t i = 0; i < SAMPLES; i++)
        y[i] = i % 2 ? sample(i) : (uint32_t)(i - SAMPLES / 2) * 1021u + 0x38000000u;
    compare_conversion(TN_F32, TN_F16, x, HALVES);
    compare_conversion(TN_F32, TN_BF16, x, HALVES);
    compare_conversion(TN_F16, TN_F32, y, SAMPLES);
    compare_conversion(TN_BF16, TN_F32, y, SAMPLES);
    free(x);
    free(y);
}

static void halves_convert_as_defined(void **state) {
    (void)state;
    with_each_isa(halves_once);
}

/* ---- the end of memory ------------------------------------------------------------------------------------------- */

/* A page between two that nobody may touch. */
static char *guarded_page(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_READ | PROT_WRITE), 0);
    return pages + page;
}

static void free_page(char *at) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(at - page, 3 * page);
}

/* Rows of n elements that end (or begin) with the page; with a mask, elements behind it are beyond the page. */
static void run_at_the_edge(tn_dtype dtype, char *from, char *to, int64_t n, int64_t let, bool at_end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)(let < n ? let : n) * tn_dtype_size(dtype);
    kir_builder *b = begin(n);
    kir_aff index = along(0);
    kir_buffer(b, dtype);
    kir_buffer(b, dtype);
    kir_val mask = KIR_NONE;
    if (let < n) mask = kir_binary(b, KIR_LT, kir_index(b, &index), kir_const_i(b, KIR_I64, let));
    kir_store(b, 0, &index, kir_load(b, 1, &index, mask), mask);
    program made = finish(b);
    char *x = at_end ? from + page - bytes : from, *d = at_end ? to + page - bytes : to;
    memset(from, 1, page);
    memset(to, 0, page);
    run(&made, d, x, NULL);
    assert_memory_equal(d, x, bytes);
    for (size_t i = 0; i < page; i++) { /* nothing else was written */
        if ((to + i < d || to + i >= d + bytes) && to[i] != 0) fail_msg("byte %zu of the page was written", i);
    }
    discard(&made);
}

static void edge_once(void) {
    char *from = guarded_page(), *to = guarded_page();
    static const tn_dtype dtypes[] = {TN_F32, TN_F16, TN_BF16, TN_U8, TN_I16, TN_BOOL, TN_I64, TN_F64};
    for (size_t k = 0; k < TN_COUNT(dtypes); k++) {
        for (int64_t n = 1; n < 140; n += n < 40 ? 1 : 7) {
            run_at_the_edge(dtypes[k], from, to, n, n, true);
            run_at_the_edge(dtypes[k], from, to, n, n, false);
            run_at_the_edge(dtypes[k], from, to, n + 9, n, true);
        }
    }
    free_page(from);
    free_page(to);
}

static void memory_beyond_a_row_is_not_touched(void **state) {
    (void)state;
    with_each_isa(edge_once);
}

/* ---- when there is none ------------------------------------------------------------------------------------------ */

/* Results that go past the caches: in whole lines, beside them, and over what is read; what is around them stays. */
static void large_once(void) {
    enum { LARGE = (8 << 20) + 5, ROOM = 32 };
    static const int at[] = {16, 17};
    float *x = tn_mem_alloc((LARGE + ROOM) * sizeof *x), *y = tn_mem_alloc((LARGE + ROOM) * sizeof *y);
    assert_non_null(x);
    assert_non_null(y);
    program negate = one_operation(LARGE, TN_F32, TN_F32, apply_unary, KIR_NEG);
    for (int which = 0; which < 3; which++) {
        float *to = which < 2 ? y + at[which] : x;
        for (int64_t i = 0; i < LARGE + ROOM; i++)
            x[i] = y[i] = (float)i;
        run(&negate, to, x, NULL);
        for (int64_t i = 0; i < LARGE; i++)
            if (to[i] != -(float)i) fail_msg("case %d: element %lld is %g", which, (long long)i, (double)to[i]);
        if (which < 2) assert_true(to[-1] == (float)(at[which] - 1));
        assert_true(to[LARGE] == (float)(LARGE + (which < 2 ? at[which] : 0)));
    }
    discard(&negate);
    tn_mem_free(x);
    tn_mem_free(y);
}

static void large_results_pass_the_caches_whole(void **state) {
    (void)state;
    with_each_isa(large_once);
}

static void run_exp(void) {
    float x[100], d[100];
    for (int i = 0; i < 100; i++)
        x[i] = (float)i / 10;
    program made = one_operation(100, TN_F32, TN_F32, apply_unary, KIR_EXP);
    for (int i = 0; i < 3; i++)
        run(&made, d, x, NULL);
    kir_value want;
    kir_ins in = {.op = KIR_EXP, .type = KIR_F32};
    assert_true(kir_eval(&in, KIR_F32, (kir_value[3]){{.f32 = x[99]}}, &want));
    assert_true(same_f32(d[99], want.f32));
    discard(&made);
}

static void a_system_that_refuses_leaves_the_vm(void **state) {
    (void)state;
    if (!has_code()) return;
    int64_t before = kir_code_made();
    kir_code_refuse_memory(true);
    run_exp();
    assert_int_equal(kir_code_made(), before);
    assert_string_equal(kir_code_state(), "the system refuses executable memory");
    kir_code_refuse_memory(false);
    run_exp();
    assert_int_equal(kir_code_made(), before + 1);
    assert_true(has_code());
}

static void it_can_be_turned_off(void **state) {
    (void)state;
    int64_t before = kir_code_made();
    kir_code_use(false);
    assert_string_equal(kir_code_state(), "turned off");
    run_exp();
    assert_int_equal(kir_code_made(), before);
    kir_code_use(true);
}

/* A short launch waits for the second one. */
static void code_is_made_when_it_pays(void **state) {
    (void)state;
    if (!has_code()) return;
    float x[64] = {1}, d[64];
    program made = one_operation(64, TN_F32, TN_F32, apply_unary, KIR_EXP);
    int64_t before = kir_code_made();
    kir_code_worth(1e9);
    run(&made, d, x, NULL);
    assert_int_equal(kir_code_made(), before);
    run(&made, d, x, NULL);
    assert_int_equal(kir_code_made(), before + 1);
    kir_code_worth(0);
    discard(&made);
}

/* x[i][j], y[i] → as many functions of their product with a runtime scalar as are asked for, in a row of d of their
 * own. */
static program of_rows(int64_t rows, int64_t columns, int functions) {
    kir_builder *b = NULL;
    kir_aff index = kir_aff_const(0), row = along(0);
    assert_ok(kir_begin(2, 0, (int64_t[]){rows, columns}, &b));
    index.s[0] = columns;
    index.s[1] = 1;
    kir_buffer(b, TN_F32);
    kir_buffer(b, TN_F32);
    kir_buffer(b, TN_F32);
    kir_val v = kir_binary(b, KIR_MUL, kir_load(b, 1, &index, KIR_NONE), kir_load(b, 2, &row, KIR_NONE));
    v = kir_binary(b, KIR_SUB, v, kir_scalar_value(b, KIR_F32, 0));
    for (int i = 0; i < functions; i++)
        v = kir_unary(b, i % 2 ? KIR_TANH : KIR_EXP, v);
    kir_store(b, 0, &index, v, KIR_NONE);
    return finish(b);
}

enum { MOST_ROWS = 300, MOST_COLUMNS = 48, MOST = MOST_ROWS * MOST_COLUMNS };
static float row_x[MOST], row_y[MOST_ROWS], row_d[MOST], row_want[MOST];

static kir_launch launch_of_rows(const program *made, void **buffers, const kir_scalar *scalar) {
    for (int i = 0; i < MOST; i++)
        row_x[i] = (float)(i % 97) / 50 - 1;
    for (int i = 0; i < MOST_ROWS; i++)
        row_y[i] = (float)(i % 13) / 13;
    buffers[1] = row_x;
    buffers[2] = row_y;
    kir_launch launch = {made->sizes, buffers, scalar};
    buffers[0] = row_want;
    assert_ok(kir_interpret(made->p, &launch));
    buffers[0] = row_d;
    memset(row_d, 0, sizeof row_d);
    return launch;
}

static void short_rows_once(void) {
    for (int64_t columns = 2; columns < 12; columns++) {
        for (int functions = 0; functions < 6; functions += 5) { /* none cost little */
            void *buffers[3];
            kir_scalar scalar = {.f = 0.25};
            program made = of_rows(MOST_ROWS, columns, functions);
            int64_t before = kir_code_made();
            kir_launch launch = launch_of_rows(&made, buffers, &scalar);
            for (int i = 0; i < 2; i++)
                assert_ok(kir_vm_run(made.vm, &launch, 1));
            if (has_code()) assert_int_equal(kir_code_made() - before, functions > 0);
            assert_memory_equal(row_d, row_want, sizeof *row_d * (size_t)(MOST_ROWS * columns));
            discard(&made);
        }
    }
}

static void dear_rows_of_a_few_elements_are_code(void **state) {
    (void)state;
    with_each_isa(short_rows_once);
}

/* Rows of two points in runs: each run has a pair of factors of its own, so the runs do not follow each other. */
static void short_runs_once(void) {
    enum { ROWS = 256, PAIR = 2, MOST_RUN = 64 };
    for (int64_t run = 4; run <= MOST_RUN; run *= 4) {
        int64_t extent[] = {ROWS / run, run, PAIR};
        kir_builder *b = NULL;
        assert_ok(kir_begin(3, 0, extent, &b));
        kir_aff here = along(2), factor = along(2);
        here.s[1] = PAIR;
        here.s[0] = PAIR * run;
        factor.s[0] = PAIR;
        for (int i = 0; i < 3; i++)
            kir_buffer(b, TN_F32);
        kir_val x = kir_load(b, 1, &here, KIR_NONE), y = kir_load(b, 2, &factor, KIR_NONE);
        kir_store(b, 0, &here, kir_binary(b, KIR_MUL, x, y), KIR_NONE);
        program made = finish(b);
        void *buffers[3];
        kir_launch launch = launch_of_rows(&made, buffers, NULL);
        int64_t before = kir_code_made();
        for (int i = 0; i < 2; i++)
            assert_ok(kir_vm_run(made.vm, &launch, 1));
        if (has_code()) assert_int_equal(kir_code_made() - before, run < 32);
        assert_memory_equal(row_d, row_want, sizeof *row_d * ROWS * PAIR);
        discard(&made);
    }
}

static void short_runs_of_short_rows_are_code(void **state) {
    (void)state;
    with_each_isa(short_runs_once);
}

/* x[i][j] → softmax of each row times its largest element: reductions with whole blocks, whole vectors and a rest. */
static void reductions_once(void) {
    static float x[3 * 17000], d[3 * 17000], want[3 * 17000];
    for (size_t i = 0; i < TN_COUNT(x); i++)
        x[i] = i % 7 == 0 ? -0.0F : (float)(i * 2654435761U % 1000) / 300 - 2;
    static const int64_t lengths[] = {13, 64, 77, 126, 128, 131, 1000, 17000};
    for (size_t k = 0; k < TN_COUNT(lengths); k++) {
        kir_builder *b = NULL;
        kir_aff index = kir_aff_const(0);
        assert_ok(kir_begin(1, 1, (int64_t[]){3, lengths[k]}, &b));
        index.s[0] = lengths[k];
        index.s[1] = 1;
        kir_buffer(b, TN_F32);
        kir_buffer(b, TN_F32);
        kir_loop(b, 1, 1);
        kir_val most = kir_reduce_value(b, KIR_RMAX, kir_load(b, 1, &index, KIR_NONE), KIR_NONE);
        kir_end(b);
        kir_loop(b, 1, 1);
        kir_val part = kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, kir_load(b, 1, &index, KIR_NONE), most));
        kir_val sum = kir_reduce_value(b, KIR_SUM, part, KIR_NONE);
        kir_end(b);
        kir_loop(b, 1, 1);
        part = kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, kir_load(b, 1, &index, KIR_NONE), most));
        kir_store(b, 0, &index, kir_binary(b, KIR_DIV, kir_binary(b, KIR_MUL, part, most), sum), KIR_NONE);
        kir_end(b);
        program made = finish(b);
        void *buffers[] = {want, x};
        assert_ok(kir_interpret(made.p, &(kir_launch){made.sizes, buffers, NULL}));
        memset(d, 0, sizeof d);
        int64_t before = kir_code_made();
        run(&made, d, x, NULL);
        if (has_code()) assert_int_equal(kir_code_made() - before, 1);
        assert_memory_equal(d, want, (size_t)lengths[k] * 3 * sizeof *d);
        discard(&made);
    }
}

/* Σ x[i] · (y[i] < 0 ? x[i] : 0): one place in memory read twice in a step of the loop, once under a mask. */
static void read_twice_once(void) {
    enum { N = 300 };
    float x[N], y[N], d = 0, want = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i % 17) - 5;
        y[i] = (float)(i % 3) - 1;
    }
    kir_builder *b = NULL;
    assert_ok(kir_begin(0, 1, (int64_t[]){N}, &b));
    for (int i = 0; i < 3; i++)
        kir_buffer(b, TN_F32);
    kir_aff index = along(0), first = kir_aff_const(0);
    kir_loop(b, 0, 1);
    kir_val mask = kir_binary(b, KIR_LT, kir_load(b, 2, &index, KIR_NONE), kir_const(b, KIR_F32, 0));
    kir_val some = kir_load(b, 1, &index, mask), all = kir_load(b, 1, &index, KIR_NONE);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, some, all), KIR_NONE);
    kir_end(b);
    kir_store(b, 0, &first, sum, KIR_NONE);
    program made = finish(b);
    void *buffers[] = {&want, x, y};
    assert_ok(kir_interpret(made.p, &(kir_launch){made.sizes, buffers, NULL}));
    run(&made, &d, x, y);
    assert_memory_equal(&d, &want, sizeof d);
    discard(&made);
}

static void rows_with_reductions_are_code(void **state) {
    (void)state;
    with_each_isa(reductions_once);
    with_each_isa(read_twice_once);
}

/* Boxes of a launch: the third of its kind follows a recipe, wherever it begins and whatever the runtime scalar is. */
static void boxes_once(void) {
    enum { HIGH = 20, WIDE = 12 };
    program made = of_rows(MOST_ROWS, MOST_COLUMNS, 2);
    void *scratch = aligned_alloc(64, (kir_vm_scratch(made.vm) + 63) / 64 * 64), *buffers[3];
    assert_non_null(scratch);
    for (int turn = 0; turn < 2; turn++) {
        kir_scalar scalar = {.f = turn ? 0.5 : -0.5};
        kir_launch launch = launch_of_rows(&made, buffers, &scalar);
        for (int64_t i = 0; i < MOST_ROWS; i += HIGH) {
            for (int64_t j = 0; j < MOST_COLUMNS; j += WIDE) {
                memset(scratch, 0x5a, kir_vm_scratch(made.vm)); /* others use it between two boxes */
                kir_vm_run_box(made.vm, &launch, (int64_t[]){i, j}, (int64_t[]){i + HIGH, j + WIDE}, scratch);
            }
        }
        assert_memory_equal(row_d, row_want, sizeof row_d);
    }
    if (has_code()) assert_int_equal(kir_recipes_kept(made.vm), 1);
    free(scratch);
    discard(&made);
}

static void boxes_of_equal_extents_share_a_recipe(void **state) {
    (void)state;
    with_each_isa(boxes_once);
}

/* Whichever allocation fails, the launch is right or says that memory ran out. */
static void memory_may_run_out_at_every_call(void **state) {
    (void)state;
    float x[64] = {1, 2, 3}, d[64];
    program made = one_operation(64, TN_F32, TN_F32, apply_unary, KIR_EXP);
    run(&made, d, x, NULL); /* the thread's memory is there */
    kir_value want;
    kir_ins in = {.op = KIR_EXP, .type = KIR_F32};
    assert_true(kir_eval(&in, KIR_F32, (kir_value[3]){{.f32 = 3}}, &want));
    bool more = true;
    for (int64_t n = 1; more; n++) {
        assert_true(n < 500);
        int64_t before = kir_code_made();
        kir_vm *vm = NULL;
        tn_mem_fail_at(n);
        tn_status status = kir_vm_compile(made.p, &vm);
        if (status == TN_OK) {
            void *buffers[] = {d, x};
            kir_launch launch = {made.sizes, buffers, NULL};
            status = kir_vm_run(vm, &launch, 1);
        }
        tn_mem_fail_at(0);
        if (status == TN_OK) assert_true(same_f32(d[2], want.f32));
        if (status != TN_OK) assert_int_equal(status, TN_ERR_MEMORY);
        more = status != TN_OK || (has_code() && kir_code_made() == before);
        kir_vm_free(vm);
    }
    discard(&made);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct racer {
    const program *made;
    bool right;
} racer;

static void *race(void *context) {
    racer *r = context;
    float x[300], d[300];
    for (int i = 0; i < 300; i++)
        x[i] = (float)i / 100;
    void *buffers[] = {d, x};
    kir_launch launch = {r->made->sizes, buffers, NULL};
    kir_value want;
    kir_ins in = {.op = KIR_EXP, .type = KIR_F32};
    r->right = kir_vm_run(r->made->vm, &launch, 1) == TN_OK;
    kir_eval(&in, KIR_F32, (kir_value[3]){{.f32 = x[299]}}, &want);
    r->right = r->right && same_f32(d[299], want.f32);
    return NULL;
}

static void threads_may_make_the_same_code(void **state) {
    (void)state;
    enum { THREADS = 4, TIMES = 30 };
    for (int i = 0; i < TIMES; i++) {
        program made = one_operation(300, TN_F32, TN_F32, apply_unary, KIR_EXP);
        pthread_t threads[THREADS];
        racer racers[THREADS];
        for (int k = 0; k < THREADS; k++) {
            racers[k] = (racer){&made, false};
            assert_int_equal(pthread_create(&threads[k], NULL, race, &racers[k]), 0);
        }
        for (int k = 0; k < THREADS; k++) {
            pthread_join(threads[k], NULL);
            assert_true(racers[k].right);
        }
        discard(&made);
    }
}

int main(void) {
    kir_code_use(true);
    kir_code_worth(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_those_of_kir_math),
        cmocka_unit_test(edges_of_arithmetic_are_right),
        cmocka_unit_test(subnormal_elements_have_the_same_bits),
        cmocka_unit_test(halves_convert_as_defined),
        cmocka_unit_test(memory_beyond_a_row_is_not_touched),
        cmocka_unit_test(large_results_pass_the_caches_whole),
        cmocka_unit_test(it_can_be_turned_off),
        cmocka_unit_test(code_is_made_when_it_pays),
        cmocka_unit_test(dear_rows_of_a_few_elements_are_code),
        cmocka_unit_test(short_runs_of_short_rows_are_code),
        cmocka_unit_test(rows_with_reductions_are_code),
        cmocka_unit_test(boxes_of_equal_extents_share_a_recipe),
        cmocka_unit_test(memory_may_run_out_at_every_call),
        cmocka_unit_test(threads_may_make_the_same_code),
        cmocka_unit_test(a_system_that_refuses_leaves_the_vm),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kir_vm_trim();
    return failed;
}
