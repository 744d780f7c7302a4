/* test_kir_rows.c — a row by a workgroup has the bits of a row by a point: kinds of reductions, types and lengths one
 * by one, then random programs. The interpreter runs both, and would find a race. */
#include "test_support.h"

#include <math.h>

#include "gpu/gpu.h"
#include "kir_random.h"

enum { LONG_CASES = 2, MOST_POINTS = 300 };
#define CASES TEST_SWEEP(60)

static const tn_dtype DTYPES[KIR_TYPE_COUNT] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};

typedef struct kernel {
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
} kernel;

static void release(kernel *k) {
    kir_free(k->p);
    tn_mem_free(k->sizes);
}

static int64_t *scheduled_sizes(const kir_rows *r, const int64_t *plain) {
    int64_t *sizes = malloc(kir_sizes_count(r->program) * sizeof *sizes);
    assert_non_null(sizes);
    kir_schedule_sizes(r, plain, sizes);
    assert_ok(kir_check_sizes(r->program, sizes));
    return sizes;
}

static tn_status run_scheduled(const kir_rows *r, const int64_t *plain, void *const *buffers,
                               const kir_scalar *scalars) {
    int64_t *sizes = scheduled_sizes(r, plain);
    tn_status status = kir_interpret(r->program, &(kir_launch){sizes, buffers, scalars});
    free(sizes);
    return status;
}

/* ---- one reduction ----------------------------------------------------------------------------------------------- */

enum { ROWS = 2, MOST = 2 * KIR_BLOCK + 70 };

/* out[row] = reduction of in[row, …] over `axes` loop axes; both numbers of elements are those of one row. */
static kernel reduction(kir_reduce kind, kir_type t, int axes, int64_t n, int64_t inner) {
    const int64_t extents[] = {ROWS, axes == 1 ? n : n / inner, inner};
    kernel k = {0};
    assert_ok(kir_begin(1, axes, extents, &k.b));
    bool arg = kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    int in = kir_buffer(k.b, DTYPES[t]), out = kir_buffer(k.b, arg ? TN_I64 : DTYPES[t]);
    kir_aff from = kir_aff_const(0), to = kir_aff_const(0);
    from.s[0] = MOST, from.s[1] = axes == 1 ? 1 : inner, from.s[2] = axes == 1 ? 0 : 1;
    to.s[0] = 1;
    kir_loop(k.b, 1, axes);
    kir_val r = kir_reduce_value(k.b, kind, kir_load(k.b, in, &from, KIR_NONE), KIR_NONE);
    kir_end(k.b);
    kir_store(k.b, out, &to, r, KIR_NONE);
    assert_ok(kir_finish(k.b, &k.p, &k.sizes));
    return k;
}

static void fill(char *memory, kir_type t, uint64_t seed) {
    kir_random_seed(seed);
    for (int64_t i = 0; i < (int64_t)ROWS * MOST; i++) {
        int64_t whole = kir_random_below(2000) - 1000;
        double wide = (double)whole / 7;
        if (seed % 3 == 0) wide = kir_random_below(2) ? 0.0 : -0.0;
        if (seed % 3 == 1 && kir_random_below(5000) == 0) wide = kir_random_below(2) ? (double)NAN : (double)INFINITY;
        float single = (float)wide;
        if (t == KIR_BOOL) whole = kir_random_below(2);
        size_t size = kir_type_size(t);
        memcpy(memory + (size_t)i * size,
               t == KIR_F32   ? (const void *)&single
               : t == KIR_F64 ? (const void *)&wide
                              : (const void *)&whole,
               size);
    }
}

static bool same_value(kir_type t, const char *a, const char *b, size_t size) {
    float x, y;
    double u, v;
    if (memcmp(a, b, size) == 0) return true;
    if (t == KIR_F32) return memcpy(&x, a, 4), memcpy(&y, b, 4), x != x && y != y;
    if (t == KIR_F64) return memcpy(&u, a, 8), memcpy(&v, b, 8), u != u && v != v;
    return false;
}

static void check_reduction(kir_reduce kind, kir_type t, const char *memory) {
    static const int64_t lengths[] = {
        0, 1, 2, 63, 64, 65, 127, 128, 777, 4096, KIR_BLOCK, KIR_BLOCK + 1, 2 * KIR_BLOCK + 69};
    bool arg = kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    size_t size = arg ? 8 : kir_type_size(t);
    for (int axes = 1; axes <= 2; axes++) {
        kernel k = reduction(kind, t, axes, 0, 1);
        kir_rows *rows = NULL;
        assert_ok(kir_schedule_rows(k.p, &rows));
        bool all = axes == 1 ? t == KIR_F32 : kind == KIR_SUM; /* the last four take long */
        size_t count = all ? TN_COUNT(lengths) : TN_COUNT(lengths) - 4;
        for (size_t i = 0; i < count; i++) {
            int64_t n = lengths[i], inner = n % 7 == 0 ? 7 : n % 2 == 0 ? 2 : 1;
            kernel sized = reduction(kind, t, axes, n, inner);
            assert_true(kir_equal(k.p, sized.p));
            char want[ROWS * 8] = {0}, got[ROWS * 8] = {0};
            void *const plain[] = {(void *)(uintptr_t)memory, want};
            void *const ours[KIR_MAX_BUFFERS] = {(void *)(uintptr_t)memory, got};
            assert_ok(kir_interpret(sized.p, &(kir_launch){sized.sizes, plain, NULL}));
            assert_ok(run_scheduled(rows, sized.sizes, ours, NULL));
            for (size_t row = 0; row < ROWS; row++) {
                if (!same_value(arg ? KIR_I64 : t, want + row * size, got + row * size, size))
                    fail_msg("reduction %d of type %d over %lld elements (%d axes): row %d differs", (int)kind, (int)t,
                             (long long)n, axes, (int)row);
            }
            release(&sized);
        }
        kir_rows_free(rows);
        release(&k);
    }
}

static void reductions_have_the_bits_of_the_plain_order(void **state) {
    (void)state;
    char *memory = malloc((size_t)ROWS * MOST * 8);
    assert_non_null(memory);
    uint64_t seed = 0;
    for (int t = 0; t < KIR_TYPE_COUNT; t++) {
        for (int kind = KIR_SUM; kind <= KIR_ARGMIN; kind++) {
            if (t == KIR_BOOL && kind < KIR_RMAX) continue;
            fill(memory, (kir_type)t, seed++);
            check_reduction((kir_reduce)kind, (kir_type)t, memory);
        }
    }
    free(memory);
}

static void extremes_are_the_first_whatever_the_lane(void **state) {
    (void)state;
    enum { N = 400 };
    float *memory = calloc((size_t)ROWS * MOST, sizeof *memory);
    assert_non_null(memory);
    kernel k = reduction(KIR_ARGMAX, KIR_F32, 1, N, 1);
    kir_rows *rows = NULL;
    assert_ok(kir_schedule_rows(k.p, &rows));
    for (int a = 0; a < N; a += 37) {
        for (int b = 0; b < N; b += 23) {
            int64_t found[ROWS];
            memory[a] = memory[b] = 5;
            memory[MOST + a] = 7;
            memory[MOST + b] = (float)NAN;
            memory[MOST + N - 1] = (float)NAN;
            assert_ok(run_scheduled(rows, k.sizes, (void *const[KIR_MAX_BUFFERS]){memory, found}, NULL));
            assert_int_equal(found[0], a < b ? a : b);
            assert_int_equal(found[1], b);
            memory[a] = memory[b] = memory[MOST + a] = memory[MOST + b] = 0;
        }
    }
    kir_rows_free(rows);
    release(&k);
    free(memory);
}

/* ---- what loops do to memory ------------------------------------------------------------------------------------- */

/* Softmax in place, then the row reversed: the second loop reads what other items wrote. */
static kernel softmax_reversed(int64_t rows, int64_t n) {
    kernel k = {0};
    assert_ok(kir_begin(1, 1, (const int64_t[]){rows, n}, &k.b));
    int x = kir_buffer(k.b, TN_F32), y = kir_buffer(k.b, TN_F16);
    kir_aff at = kir_aff_const(0), back = kir_aff_const(n - 1);
    at.s[0] = back.s[0] = n, at.s[1] = 1, back.s[1] = -1;
    kir_loop(k.b, 1, 1);
    kir_val most = kir_reduce_value(k.b, KIR_RMAX, kir_load(k.b, x, &at, KIR_NONE), KIR_NONE);
    kir_end(k.b);
    kir_loop(k.b, 1, 1);
    kir_val e = kir_unary(k.b, KIR_EXP, kir_binary(k.b, KIR_SUB, kir_load(k.b, x, &at, KIR_NONE), most));
    kir_val sum = kir_reduce_value(k.b, KIR_SUM, e, KIR_NONE);
    kir_store(k.b, x, &at, e, KIR_NONE);
    kir_end(k.b);
    kir_loop(k.b, 1, 1);
    kir_store(k.b, x, &at, kir_binary(k.b, KIR_DIV, kir_load(k.b, x, &at, KIR_NONE), sum), KIR_NONE);
    kir_end(k.b);
    kir_loop(k.b, 1, 1);
    kir_store(k.b, y, &at, kir_load(k.b, x, &back, KIR_NONE), KIR_NONE);
    kir_end(k.b);
    assert_ok(kir_finish(k.b, &k.p, &k.sizes));
    return k;
}

static void loops_see_what_the_ones_before_them_stored(void **state) {
    (void)state;
    enum { ROW_COUNT = 3, N = 200 };
    float x[ROW_COUNT * N], z[ROW_COUNT * N];
    uint16_t want[ROW_COUNT * N], got[ROW_COUNT * N];
    for (int i = 0; i < ROW_COUNT * N; i++)
        x[i] = z[i] = (float)(i % 91) / 9.0f;
    kernel k = softmax_reversed(ROW_COUNT, N);
    kir_rows *rows = NULL;
    assert_ok(kir_schedule_rows(k.p, &rows));
    assert_ok(kir_interpret(k.p, &(kir_launch){k.sizes, (void *const[]){x, want}, NULL}));
    assert_ok(run_scheduled(rows, k.sizes, (void *const[KIR_MAX_BUFFERS]){z, got}, NULL));
    assert_memory_equal(want, got, sizeof want);
    kir_rows_free(rows);
    release(&k);
}

static void structure_does_not_depend_on_sizes(void **state) {
    (void)state;
    kernel a = softmax_reversed(3, 1), b = softmax_reversed(100, 77777);
    kir_rows *first = NULL, *second = NULL;
    assert_true(kir_equal(a.p, b.p));
    assert_ok(kir_schedule_rows(a.p, &first));
    assert_ok(kir_schedule_rows(b.p, &second));
    assert_true(kir_equal(first->program, second->program));
    kir_rows_free(first);
    kir_rows_free(second);
    release(&a);
    release(&b);
}

/* ---- random programs --------------------------------------------------------------------------------------------- */

static bool has_loop(const kir_program *p) {
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == KIR_LOOP) return true;
    }
    return false;
}

static bool run_case(uint64_t seed, bool long_loop) {
    kir_random t;
    kir_random_make(&t, seed,
                    &(kir_random_options){
                        .long_loop = long_loop, .no_chains = true, .most_buffers = 25, .most_points = MOST_POINTS});
    kir_rows *rows = NULL;
    tn_status status = kir_schedule_rows(t.program, &rows);
    assert_int_equal(status, has_loop(t.program) ? TN_OK : TN_ERR_UNSUPPORTED);
    bool good = true;
    for (int launch = 0; launch < 2 && rows && good; launch++) {
        int64_t *sizes = launch ? kir_random_smaller(&t) : t.sizes;
        char *want = kir_random_memory(&t, seed), *got = kir_random_memory(&t, seed);
        void *buffers[KIR_MAX_BUFFERS] = {NULL};
        kir_random_buffers(&t, want, buffers);
        assert_ok(kir_interpret(t.program, &(kir_launch){sizes, buffers, t.scalars}));
        kir_random_buffers(&t, got, buffers);
        status = run_scheduled(rows, sizes, buffers, t.scalars);
        if (status != TN_OK) print_error("%s\n", tn_error());
        good = status == TN_OK && kir_random_same(&t, want, got, "a row by a workgroup");
        free(want);
        free(got);
        if (launch) free(sizes);
    }
    if (!good) kir_random_print(&t, seed);
    kir_rows_free(rows);
    kir_random_free(&t);
    return good;
}

static void random_programs_have_the_bits_of_the_plain_order(void **state) {
    (void)state;
    uint64_t times = getenv("TRUNNION_TEST_FULL") ? 10 : 1;
    for (uint64_t seed = 0; seed < times * CASES; seed++)
        assert_true(run_case(seed, false));
    for (uint64_t seed = 0; seed < times * LONG_CASES; seed++)
        assert_true(run_case(seed, true));
}

/* ---- refusals and failures --------------------------------------------------------------------------------------- */

static void chains_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        kernel k = {0};
        kir_rows *rows = NULL;
        assert_ok(kir_begin(0, 1, (const int64_t[]){8}, &k.b));
        int x = kir_buffer(k.b, TN_F32);
        kir_aff at = kir_aff_const(0);
        kir_loop(k.b, 0, 1);
        kir_val v = kir_load(k.b, x, &at, KIR_NONE);
        kir_val r = i == 0   ? kir_reduce_value(k.b, KIR_SEQ, v, KIR_NONE)
                    : i == 1 ? kir_reduce_value(k.b, KIR_CHAIN, v, v)
                             : kir_scan(k.b, KIR_SUM, v);
        if (i == 2) kir_store(k.b, x, &at, r, KIR_NONE);
        kir_end(k.b);
        if (i < 2) kir_store(k.b, x, &at, r, KIR_NONE);
        assert_ok(kir_finish(k.b, &k.p, &k.sizes));
        assert_int_equal(kir_schedule_rows(k.p, &rows), TN_ERR_UNSUPPORTED);
        assert_text_has(tn_error(), "the previous one");
        assert_null(rows);
        release(&k);
    }
}

static void failure_of_any_allocation_is_an_error_and_loses_nothing(void **state) {
    (void)state;
    kernel k = softmax_reversed(3, 100);
    kir_rows *rows = NULL;
    int64_t blocks = tn_mem_get_stats().live_blocks, calls = tn_mem_get_stats().calls;
    assert_ok(kir_schedule_rows(k.p, &rows));
    calls = tn_mem_get_stats().calls - calls;
    kir_rows_free(rows);
    assert_true(calls > 10);
    for (int64_t n = 1; n <= calls; n++) {
        tn_mem_fail_at(n);
        tn_status status = kir_schedule_rows(k.p, &rows);
        tn_mem_fail_at(0);
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_null(rows);
        assert_int_equal(tn_mem_get_stats().live_blocks, blocks);
    }
    release(&k);
}

/* Damages programs at random; whatever the verifier lets pass gets a schedule that is valid, or a refusal. */
static void damaged_programs_get_a_valid_schedule_or_none(void **state) {
    (void)state;
    int made = 0;
    kir_random_seed(7);
    const int rounds = 4000 / test_every(1, 4);
    for (int round = 0; round < rounds; round++) {
        kernel k = softmax_reversed(3, 100);
        size_t bytes = (size_t)k.p->n_ins * sizeof *k.p->ins;
        for (int hits = 1 + round % 3; hits > 0; hits--)
            ((uint8_t *)k.p->ins)[kir_random_below((int64_t)bytes)] ^= (uint8_t)(1 << kir_random_below(8));
        kir_rows *rows = NULL;
        if (kir_schedule_rows(k.p, &rows) == TN_OK) {
            made++;
            assert_ok(kir_verify(k.p));
            free(scheduled_sizes(rows, k.sizes));
        }
        kir_rows_free(rows);
        release(&k);
    }
    assert_in_range(made, rounds / 40, rounds - rounds / 40);
}

/* A loop over no axis runs once. */
static void loop_over_no_axis_runs_once(void **state) {
    (void)state;
    kernel k = {0};
    kir_rows *rows = NULL;
    assert_ok(kir_begin(KIR_MAX_AXES - 3, 0, (const int64_t[KIR_MAX_AXES]){1, 1, 1, 1, 1, 1, 1, 1, 1}, &k.b));
    int x = kir_buffer(k.b, TN_F32);
    kir_aff at = kir_aff_const(0);
    kir_loop(k.b, KIR_MAX_AXES - 3, 0);
    kir_val sum = kir_reduce_value(k.b, KIR_SUM, kir_load(k.b, x, &at, KIR_NONE), KIR_NONE);
    kir_end(k.b);
    kir_store(k.b, x, &at, kir_binary(k.b, KIR_ADD, sum, sum), KIR_NONE);
    assert_ok(kir_finish(k.b, &k.p, &k.sizes));
    assert_ok(kir_schedule_rows(k.p, &rows));
    float memory = 5;
    assert_ok(run_scheduled(rows, k.sizes, (void *const[KIR_MAX_BUFFERS]){&memory}, NULL));
    assert_true(memory == 10);
    kir_rows_free(rows);
    release(&k);
}

int main(int argc, char **argv) {
    if (argc == 3) return !run_case(strtoull(argv[2], NULL, 10), strcmp(argv[1], "--long") == 0); /* or --seed */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_have_the_bits_of_the_plain_order),
        cmocka_unit_test(extremes_are_the_first_whatever_the_lane),
        cmocka_unit_test(loops_see_what_the_ones_before_them_stored),
        cmocka_unit_test(structure_does_not_depend_on_sizes),
        cmocka_unit_test(random_programs_have_the_bits_of_the_plain_order),
        cmocka_unit_test(chains_are_refused),
        cmocka_unit_test(damaged_programs_get_a_valid_schedule_or_none),
        cmocka_unit_test(loop_over_no_axis_runs_once),
        cmocka_unit_test(failure_of_any_allocation_is_an_error_and_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
