/* test_kir_vm.c — the tile VM yields the interpreter's bits: random programs on every instruction set, on one, two and
 * three threads, whole and in boxes.
 *
 * A seed that fails is printed with its program (kir_random.h): --seeds N N+1 repeats it
 * (--long, --code, --long-code where it is one of those). */
#include "test_support.h"

#include "kir/vm.h"
#include "kir_random.h"

enum { CASES = 120, LONG_CASES = 8, MAX_THREADS = 3 };

/* ---- running ----------------------------------------------------------------------------------------------------- */

enum { LAUNCHES = 3 }; /* each with memory of its own, all but the first with smaller extents */

typedef struct runner {
    const kir_random *t;
    const kir_vm *vm;
    char *start, *want[LAUNCHES], *got[LAUNCHES];
    int64_t *sizes[LAUNCHES];
    void *buffers[LAUNCHES][KIR_MAX_BUFFERS];
    kir_launch launches[LAUNCHES];
} runner;

static void start_anew(runner *r) {
    for (int i = 0; i < LAUNCHES; i++) {
        memcpy(r->got[i], r->start, r->t->bytes);
        kir_random_buffers(r->t, r->got[i], r->buffers[i]);
    }
}

static bool is_right(const runner *r, int launch, const char *how) {
    return kir_random_same(r->t, r->want[launch], r->got[launch], how);
}

static bool check_run(runner *r, const char *isa, int threads, int count) {
    char how[64];
    snprintf(how, sizeof how, "%s, %d threads, %d launches", isa, threads, count);
    start_anew(r);
    assert_ok(tn_threads_set(threads));
    assert_ok(kir_vm_run(r->vm, r->launches, count));
    bool good = true;
    for (int i = 0; i < count; i++) {
        if (good && !is_right(r, i, how)) {
            good = false;
            print_error("launch %d:", i);
            for (int k = 0; k < r->t->n_par + r->t->n_loop; k++)
                print_error(" %lld", (long long)r->sizes[i][k]);
            print_error("\n");
        }
    }
    return good;
}

/* Runs the box as a whole, or cut in two along some axis. */
static void run_boxes(runner *r, int64_t *lo, int64_t *hi, void *scratch, int depth) {
    int axis = r->t->n_par > 0 ? (int)kir_random_below(r->t->n_par) : 0;
    if (depth == 0 || r->t->n_par == 0 || hi[axis] - lo[axis] < 2) {
        kir_vm_run_box(r->vm, &r->launches[0], lo, hi, scratch);
        return;
    }
    int64_t begin = lo[axis], end = hi[axis], middle = begin + 1 + kir_random_below(end - begin - 1);
    hi[axis] = middle;
    run_boxes(r, lo, hi, scratch, depth - 1);
    hi[axis] = end;
    lo[axis] = middle;
    run_boxes(r, lo, hi, scratch, depth - 1);
    lo[axis] = begin;
}

static bool check_boxes(runner *r, const char *isa) {
    char how[64];
    snprintf(how, sizeof how, "%s, boxes", isa);
    start_anew(r);
    int64_t lo[KIR_MAX_AXES] = {0}, hi[KIR_MAX_AXES];
    memcpy(hi, r->t->extent, sizeof hi);
    void *scratch = tn_mem_alloc(kir_vm_scratch(r->vm));
    assert_non_null(scratch);
    run_boxes(r, lo, hi, scratch, 3);
    tn_mem_free(scratch);
    return is_right(r, 0, how);
}

static bool check_all(runner *r) {
    bool good = true;
    for (int way = 0; way < 2 * TN_ISA_COUNT && good; way++) {
        tn_isa isa = (tn_isa)(way / 2);
        if (!kir_vm_use(isa)) continue;
        kir_code_use(way % 2 == 1);
        char name[32];
        snprintf(name, sizeof name, "%s%s", tn_isa_name(isa), way % 2 ? ", machine code" : "");
        good = good && check_run(r, name, 1, 1) && check_run(r, name, 2, 1) && check_run(r, name, 1, LAUNCHES) &&
               check_run(r, name, MAX_THREADS, LAUNCHES);
        if (r->t->n_loop == 0) good = good && check_boxes(r, name);
    }
    kir_vm_use(tn_cpu().isa);
    return good;
}

static void runner_open(runner *r, const kir_random *t, const kir_vm *vm, uint64_t seed) {
    *r = (runner){.t = t, .vm = vm, .start = kir_random_memory(t, seed)};
    for (int i = 0; i < LAUNCHES; i++) {
        r->want[i] = calloc(1, t->bytes + 64);
        r->got[i] = calloc(1, t->bytes + 64);
        assert_true(r->want[i] && r->got[i]);
        r->sizes[i] = i == 0 ? t->sizes : kir_random_smaller(t);
        r->launches[i] = (kir_launch){r->sizes[i], r->buffers[i], t->scalars};
        memcpy(r->want[i], r->start, t->bytes);
        kir_random_buffers(t, r->want[i], r->buffers[i]);
        assert_ok(kir_interpret(t->program, &r->launches[i]));
    }
}

static void runner_close(runner *r) {
    free(r->start);
    for (int i = 0; i < LAUNCHES; i++) {
        free(r->want[i]);
        free(r->got[i]);
        if (i > 0) free(r->sizes[i]);
    }
}

/* What a seed becomes: any program, one with a long loop, one for machine code (on even seeds without elements of 8
 * bytes), or both. */
typedef enum case_kind { ANY_CASE, LONG_CASE, CODE_CASE, LONG_CODE_CASE, CASE_KINDS } case_kind;

static bool run_case(uint64_t seed, case_kind kind, bool show) {
    kir_random t;
    kir_random_options options = {.simple = kind >= CODE_CASE, .long_loop = kind % 2 == 1};
    options.narrow = options.simple && seed % 2 == 0;
    kir_random_make(&t, seed, &options);
    if (show) kir_random_print(&t, seed);
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(t.program, &vm));
    runner r;
    runner_open(&r, &t, vm, seed);
    bool good = check_all(&r);
    if (!good && !show) kir_random_print(&t, seed);
    runner_close(&r);
    kir_vm_free(vm);
    kir_random_free(&t);
    return good;
}

/* Every check runs a few; TRUNNION_TEST_FULL, ten times as many. */
static uint64_t cases(uint64_t few) {
#if defined(TEST_ADDRESS_SANITIZER) || defined(TEST_THREAD_SANITIZER)
    few = (few + 2) / 3;
#endif
    return getenv("TRUNNION_TEST_FULL") ? 10 * few : few;
}

static void random_programs_match_the_interpreter(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < cases(CASES); seed++)
        assert_true(run_case(seed, ANY_CASE, false));
}

static void long_loops_match_the_interpreter(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < cases(LONG_CASES); seed++)
        assert_true(run_case(seed, LONG_CASE, false));
}

/* How many of these programs get code, at least: half with AVX-512; AVX2 has instructions for fewer operations and
 * types, there it is a quarter of them that do, and an eighth that is asked for. */
static void machine_code_matches_the_interpreter(void **state) {
    (void)state;
    int64_t before = kir_code_made();
    for (uint64_t seed = 0; seed < cases(CASES); seed++)
        assert_true(run_case(seed, CODE_CASE, false));
    for (uint64_t seed = 0; seed < cases(LONG_CASES); seed++)
        assert_true(run_case(seed, LONG_CODE_CASE, false));
    int64_t least = (int64_t)cases(CASES) / (tn_cpu().isa == TN_ISA_AVX512 ? 2 : 8);
    if (strcmp(kir_code_state(), "on") == 0) assert_true(kir_code_made() - before > least);
}

/* ---- reductions of columns --------------------------------------------------------------------------------------- */

typedef struct column_case {
    int64_t rows, columns, distance; /* distance: elements from row to row */
    kir_reduce kind;
    tn_dtype dtype;
} column_case;

static kir_program *column_program(const column_case *c, int64_t **sizes) {
    kir_builder *b;
    kir_program *p;
    assert_ok(kir_begin(1, 1, (int64_t[]){c->columns, c->rows}, &b));
    int from = kir_buffer(b, c->dtype), to = kir_buffer(b, c->dtype);
    kir_aff in = kir_aff_const(3), out = kir_aff_const(1);
    in.s[0] = out.s[0] = 1;
    in.s[1] = c->distance;
    kir_loop(b, 1, 1);
    kir_val sum = kir_reduce_value(b, c->kind, kir_load(b, from, &in, KIR_NONE), KIR_NONE);
    kir_end(b);
    kir_store(b, to, &out, sum, KIR_NONE);
    assert_ok(kir_finish(b, &p, sizes));
    return p;
}

/* Few numbers, so that there are ties; zeros of both signs, of which whole columns consist. */
static void fill_columns(const column_case *c, void *x, int64_t n) {
    static const float pool[] = {-0.0F, 1, -0.75F, 3e-9F, 1.0625F, -1, 0, 1.5F, -1.25F};
    for (int64_t i = 0; i < n; i++) {
        float value = i % 7 == 0 ? -0.0F : pool[(uint64_t)i * 2654435761U % 9];
        if (c->dtype == TN_F32)
            ((float *)x)[i] = value;
        else if (c->dtype == TN_F64)
            ((double *)x)[i] = value;
        else
            ((int32_t *)x)[i] = (int32_t)(4 * value);
    }
}

/* The `bytes` that p writes to buffers[result] are the interpreter's, on each instruction set and by
 * one thread and two. */
static void assert_bits_of_interpreter(const kir_program *p, const int64_t *sizes, void **buffers, int result,
                                       size_t bytes) {
    kir_vm *vm = NULL;
    void *want = calloc(1, bytes), *got = calloc(1, bytes);
    assert_true(want && got);
    kir_launch launch = {.sizes = sizes, .buffers = buffers};
    buffers[result] = want;
    assert_ok(kir_interpret(p, &launch));
    assert_ok(kir_vm_compile(p, &vm));
    buffers[result] = got;
    for (int way = 0; way < 2 * TN_ISA_COUNT; way++) {
        if (!kir_vm_use((tn_isa)(way / 2))) continue;
        assert_ok(tn_threads_set(1 + way % 2));
        memset(got, 0, bytes);
        assert_ok(kir_vm_run(vm, &launch, 1));
        assert_memory_equal(want, got, bytes);
    }
    kir_vm_use(tn_cpu().isa);
    kir_vm_free(vm);
    free(want);
    free(got);
}

static void check_columns(const column_case *c) {
    int64_t *sizes, n = 3 + c->rows * c->distance + c->columns;
    size_t width = tn_dtype_size(c->dtype);
    kir_program *p = column_program(c, &sizes);
    void *x = calloc((size_t)n, width);
    assert_non_null(x);
    fill_columns(c, x, n);
    assert_bits_of_interpreter(p, sizes, (void *[]){x, NULL}, 1, (size_t)(c->columns + 1) * width);
    kir_free(p);
    tn_mem_free(sizes);
    free(x);
}

static void columns_match_the_interpreter(void **state) {
    static const column_case some[] = {
        {1, 40, 40, KIR_SUM, TN_F32},     {17, 300, 301, KIR_SUM, TN_F32},   {63, 16, 16, KIR_SUM, TN_F32},
        {64, 130, 133, KIR_RMAX, TN_F32}, {65, 1300, 1300, KIR_SUM, TN_F32}, {200, 70, 77, KIR_PROD, TN_F32},
        {700, 96, 96, KIR_RMIN, TN_F64},  {16, 4000, 4000, KIR_SUM, TN_F64}, {130, 48, 50, KIR_SUM, TN_I32},
        {16500, 33, 33, KIR_SUM, TN_F32}, {33000, 70, 71, KIR_RMAX, TN_F32}, {90, 5, 7, KIR_SUM, TN_F32},
        {4099, 8, 8, KIR_SUM, TN_F32},    {33000, 5, 5, KIR_SUM, TN_F32},    {50, 64, 64, KIR_RMIN, TN_F32},
        {700, 128, 128, KIR_SUM, TN_F32}, {130, 128, 128, KIR_SUM, TN_F64},  {300, 100, 100, KIR_RMAX, TN_I32},
    };
    (void)state;
    for (size_t i = 0; i < TN_COUNT(some); i++)
        check_columns(&some[i]);
}

/* sums[c] = Σ x[r][c], and in the same loop to[r][c] = y[r][c]: where `to` is x, the rows must not be lent. */
static void rows_that_are_overwritten_are_not_lent(void **state) {
    enum { ROWS = 37, COLUMNS = 70, ALL = ROWS * COLUMNS };
    (void)state;
    kir_builder *b = NULL;
    kir_program *p = NULL;
    kir_vm *vm = NULL;
    int64_t *sizes = NULL;
    assert_ok(kir_begin(1, 1, (int64_t[]){COLUMNS, ROWS}, &b));
    for (int i = 0; i < 4; i++)
        kir_buffer(b, TN_F32);
    kir_aff at = kir_aff_const(0), to = kir_aff_const(0);
    at.s[0] = to.s[0] = 1;
    at.s[1] = COLUMNS;
    kir_loop(b, 1, 1);
    kir_val x = kir_load(b, 0, &at, KIR_NONE);
    kir_store(b, 2, &at, kir_load(b, 1, &at, KIR_NONE), KIR_NONE);
    kir_val sum = kir_reduce_value(b, KIR_SUM, x, KIR_NONE);
    kir_end(b);
    kir_store(b, 3, &to, sum, KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    assert_ok(kir_vm_compile(p, &vm));
    static float start[2][ALL];
    for (int i = 0; i < 2 * ALL; i++)
        start[i / ALL][i % ALL] = (float)(i * 7919 % 1000) / 8;
    for (int way = 0; way < 4 * TN_ISA_COUNT; way++) {
        static float memory[2][3][ALL];
        float sums[2][COLUMNS];
        kir_launch launch[2];
        void *buffers[2][4];
        if (!kir_vm_use((tn_isa)(way / 4))) continue;
        kir_code_use(way % 2 == 1);
        for (int i = 0; i < 2; i++) {
            memcpy(memory[i], start, sizeof start);
            memcpy(buffers[i], ((void *[]){memory[i][0], memory[i][1], memory[i][way / 2 % 2 ? 0 : 2], sums[i]}),
                   sizeof buffers[i]);
            launch[i] = (kir_launch){sizes, buffers[i], NULL};
        }
        assert_ok(kir_interpret(p, &launch[0]));
        assert_ok(kir_vm_run(vm, &launch[1], 1));
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
        assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
    }
    kir_vm_use(tn_cpu().isa);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
}

/* ---- one element, several times ---------------------------------------------------------------------------------- */

/* d[i][j] = x[i], and nothing behind it. */
static void check_repeated(tn_dtype dtype, int64_t rows, int64_t times) {
    enum { BEHIND = 64 };
    kir_builder *b = NULL;
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    assert_ok(kir_begin(2, 0, (int64_t[]){rows, times}, &b));
    kir_aff from = kir_aff_const(0), to = kir_aff_const(0);
    from.s[0] = to.s[1] = 1;
    to.s[0] = times;
    kir_buffer(b, dtype);
    kir_buffer(b, dtype);
    kir_store(b, 0, &to, kir_load(b, 1, &from, KIR_NONE), KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    size_t bytes = (size_t)(rows * times) * tn_dtype_size(dtype) + BEHIND;
    char *x = malloc((size_t)rows * 8);
    assert_non_null(x);
    for (int64_t i = 0; i < rows * 8; i++)
        x[i] = (char)(i * 37 % 61);
    assert_bits_of_interpreter(p, sizes, (void *[]){NULL, x}, 0, bytes);
    kir_free(p);
    tn_mem_free(sizes);
    free(x);
}

static void repeated_elements_match_the_interpreter(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_U8, TN_U16, TN_F32, TN_F64};
    for (size_t t = 0; t < TN_COUNT(types); t++)
        for (int64_t times = 1; times < 10; times++)
            for (int64_t rows = 1; rows < 300; rows += rows < 20 ? 1 : 93)
                check_repeated(types[t], rows, times);
}

/* ---- the place of an extreme in a row that threads share ------------------------------------------------------ */

static void place_in_a_long_row_is_found(void **state) {
    (void)state;
    enum { LENGTH = 3 * KIR_BLOCK - 100, PLACE = 2 * KIR_BLOCK + 7 };
    float *x = calloc(LENGTH, sizeof *x);
    assert_non_null(x);
    for (int kind = KIR_ARGMAX; kind <= KIR_ARGMIN; kind++) {
        kir_builder *b = NULL;
        kir_program *p = NULL;
        kir_vm *vm = NULL;
        int64_t *sizes = NULL, found = 0;
        kir_aff along = kir_aff_const(0), to = kir_aff_const(0);
        assert_ok(kir_begin(0, 1, (int64_t[]){LENGTH}, &b));
        kir_buffer(b, TN_F32);
        kir_buffer(b, TN_I64);
        along.s[0] = 1;
        kir_loop(b, 0, 1);
        kir_val best = kir_reduce_value(b, (kir_reduce)kind, kir_load(b, 0, &along, KIR_NONE), KIR_NONE);
        kir_end(b);
        kir_store(b, 1, &to, best, KIR_NONE);
        assert_ok(kir_finish(b, &p, &sizes));
        assert_ok(kir_vm_compile(p, &vm));
        x[PLACE] = x[PLACE + 50] = kind == KIR_ARGMAX ? 3 : -3;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            assert_ok(tn_threads_set(threads));
            assert_ok(kir_vm_run(vm, &(kir_launch){sizes, (void *[]){x, &found}, NULL}, 1));
            assert_int_equal(found, PLACE);
        }
        kir_vm_free(vm);
        kir_free(p);
        tn_mem_free(sizes);
    }
    free(x);
}

/* ---- sums of products along rows --------------------------------------------------------------------------------- */

enum { PRODUCT_ROWS = 5, LONGEST_PRODUCT = 5000 };

/* Σ x·y and Σ x·x, as norms have them; y is a row of its own for each sum, or (weights) one for all. */
static void check_products(int64_t n, bool weights, const float *x) {
    kir_builder *b = NULL;
    kir_program *p = NULL;
    kir_vm *vm = NULL;
    int64_t *sizes = NULL;
    assert_ok(kir_begin(1, 1, (int64_t[]){PRODUCT_ROWS, n}, &b));
    for (int i = 0; i < 2; i++)
        kir_buffer(b, TN_F32);
    kir_aff rows = kir_aff_const(0), other = kir_aff_const(7), to = kir_aff_const(0);
    rows.s[0] = n;
    rows.s[1] = other.s[1] = 1;
    if (!weights) other.s[0] = n;
    to.s[0] = 2;
    kir_loop(b, 1, 1);
    kir_val v = kir_load(b, 0, &rows, KIR_NONE), w = kir_load(b, 0, &other, KIR_NONE);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, v, w), KIR_NONE);
    kir_val squares = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, v, v), KIR_NONE);
    kir_end(b);
    kir_store(b, 1, &to, sum, KIR_NONE);
    to.c = 1;
    kir_store(b, 1, &to, squares, KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    assert_ok(kir_vm_compile(p, &vm));
    float want[2 * PRODUCT_ROWS], got[2 * PRODUCT_ROWS];
    void *memory = (void *)(uintptr_t)x;
    assert_ok(kir_interpret(p, &(kir_launch){sizes, (void *[]){memory, want}, NULL}));
    for (int way = 0; way < 2 * TN_ISA_COUNT; way++) {
        if (!kir_vm_use((tn_isa)(way / 2))) continue;
        kir_code_use(way % 2 == 1);
        assert_ok(kir_vm_run(vm, &(kir_launch){sizes, (void *[]){memory, got}, NULL}, 1));
        assert_memory_equal(want, got, sizeof want);
    }
    kir_vm_use(tn_cpu().isa);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
}

static void sums_of_products_match_the_interpreter(void **state) {
    static const int64_t lengths[] = {1, 8, 15, 16, 17, 33, 64, 100, 192, 1000, LONGEST_PRODUCT};
    (void)state;
    assert_ok(tn_threads_set(1));
    float *x = calloc(PRODUCT_ROWS * LONGEST_PRODUCT + 7, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < PRODUCT_ROWS * LONGEST_PRODUCT + 7; i++)
        x[i] = (float)((i * 7919 + 13) % 1000) / 333.0F - 1.5F;
    for (size_t i = 0; i < TN_COUNT(lengths); i++) {
        check_products(lengths[i], false, x);
        check_products(lengths[i], true, x);
    }
    free(x);
}

/* ---- short launches that come again ------------------------------------------------------------------------------ */

enum { SHORT = 300, ARRAYS = 4 };

/* 0 ← 1·runtime scalar + 2, then 3 ← 1 − runtime scalar: what is stored first must not reach the second when 0 is 1. */
static kir_vm *short_program(int64_t **sizes, kir_program **p) {
    int64_t extent[2] = {3, SHORT / 3};
    kir_builder *b = NULL;
    assert_ok(kir_begin(2, 0, extent, &b));
    kir_aff rows = kir_aff_const(0), line = kir_aff_const(0);
    rows.s[0] = SHORT / 3;
    rows.s[1] = line.s[1] = 1;
    for (int i = 0; i < ARRAYS; i++)
        kir_buffer(b, TN_F32);
    kir_val x = kir_load(b, 1, &rows, KIR_NONE), scalar = kir_scalar_value(b, KIR_F32, 0);
    kir_val y = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, x, scalar), kir_load(b, 2, &line, KIR_NONE));
    kir_store(b, 0, &rows, y, KIR_NONE);
    kir_store(b, 3, &rows, kir_binary(b, KIR_SUB, x, scalar), KIR_NONE);
    kir_vm *vm = NULL;
    assert_ok(kir_finish(b, p, sizes));
    assert_ok(kir_vm_compile(*p, &vm));
    return vm;
}

/* Again and again the same sizes, with other memory, other runtime scalars, and at times in place. */
static void short_launches_again_and_again(tn_isa isa, bool code) {
    static float start[ARRAYS][SHORT], want[ARRAYS][SHORT], got[2][ARRAYS][SHORT];
    int64_t *sizes;
    kir_program *p;
    kir_vm *vm = short_program(&sizes, &p);
    kir_code_use(code);
    assert_ok(tn_threads_set(1));
    for (int i = 0; i < ARRAYS * SHORT; i++)
        start[i / SHORT][i % SHORT] = (float)(i % 97) - 40;
    for (int turn = 0; turn < 12; turn++) {
        float(*mine)[SHORT] = got[turn / 2 % 2];
        int first = turn % 3 == 2 ? 1 : 0;
        kir_scalar scalar = {.f = turn};
        memcpy(want, start, sizeof want);
        memcpy(mine, start, sizeof want);
        kir_launch expected = {sizes, (void *[]){want[first], want[1], want[2], want[3]}, &scalar};
        kir_launch launch = {sizes, (void *[]){mine[first], mine[1], mine[2], mine[3]}, &scalar};
        assert_ok(kir_interpret(p, &expected));
        assert_ok(kir_vm_run(vm, &launch, 1));
        assert_memory_equal(mine, want, sizeof want);
    }
    assert_int_equal(kir_recipes_kept(vm), code && kir_code_has(isa) ? 1 : 0);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
}

static void short_launches_repeat(void **state) {
    (void)state;
    for (int isa = 0; isa < TN_ISA_COUNT; isa++) {
        if (!kir_vm_use((tn_isa)isa)) continue;
        short_launches_again_and_again((tn_isa)isa, false);
        short_launches_again_and_again((tn_isa)isa, true);
    }
    kir_vm_use(tn_cpu().isa);
}

/* ---- functions of one byte --------------------------------------------------------------------------------------- */

enum { BYTE_ROWS = 5, BYTE_COLUMNS = 4400, BYTE_GAP = 4411, BYTE_MEMORY = BYTE_ROWS * BYTE_GAP };

/* What a program reads besides its byte, and how its memory lies. */
typedef enum byte_case {
    BYTES_ALONE,
    BYTES_TURNED, /* rows are next to each other, not columns */
    BYTES_IN_PLACE,
    BYTES_WITH_GAPS,
    BYTES_SHIFTED, /* the result begins one element behind the operand */
    BYTES_OF_TWO,  /* a second operand that varies */
    BYTES_BY_ROW,  /* a scale for each row */
    BYTE_CASES
} byte_case;

/* round(tanh(x · scale) · exp(x / 100) · 50) + zero, of bytes with a sign or without. */
static kir_program *byte_program(byte_case kind, tn_dtype dtype, int64_t **sizes) {
    kir_builder *b = NULL;
    kir_program *p;
    assert_ok(kir_begin(2, 0, (int64_t[]){BYTE_ROWS, BYTE_COLUMNS}, &b));
    const int x = kir_buffer(b, dtype), y = kir_buffer(b, dtype), scale = kir_buffer(b, TN_F32);
    const int zero = kir_buffer(b, dtype), out = kir_buffer(b, dtype);
    kir_aff at = kir_aff_const(0), row = kir_aff_const(0), first = kir_aff_const(0);
    at.s[0] = kind == BYTES_TURNED ? 1 : kind == BYTES_WITH_GAPS ? BYTE_GAP : BYTE_COLUMNS;
    at.s[1] = kind == BYTES_TURNED ? BYTE_ROWS : 1;
    row.s[0] = kind == BYTES_BY_ROW;
    kir_val byte = kir_cast(b, KIR_F32, kir_load(b, x, &at, KIR_NONE));
    kir_val other = kir_cast(b, KIR_F32, kir_load(b, kind == BYTES_OF_TWO ? y : x, &at, KIR_NONE));
    kir_val scaled = kir_unary(b, KIR_TANH, kir_mul(b, byte, kir_load(b, scale, &row, KIR_NONE)));
    kir_val factor = kir_unary(b, KIR_EXP, kir_div(b, other, kir_real(b, 100)));
    kir_val sum = kir_add(b, kir_rounding(b, KIR_NEAREST_EVEN, kir_mul(b, kir_mul(b, scaled, factor), kir_real(b, 50))),
                          kir_cast(b, KIR_F32, kir_load(b, zero, &first, KIR_NONE)));
    const double low = dtype == TN_I8 ? -128 : 0;
    kir_val inside = kir_min(b, kir_max(b, sum, kir_real(b, low)), kir_real(b, low + 255));
    kir_store(b, out, &at, kir_cast(b, kir_type_of(dtype), inside), KIR_NONE);
    assert_ok(kir_finish(b, &p, sizes));
    return p;
}

static void check_bytes(byte_case kind, tn_dtype dtype) {
    static uint8_t start[BYTE_MEMORY + 1], want[BYTE_MEMORY + 1], got[BYTE_MEMORY + 1], second[BYTE_MEMORY];
    static uint8_t result[2][BYTE_MEMORY + 1];
    float scales[BYTE_ROWS] = {0.02F, 0.03F, -0.01F, 0.5F, 0.07F};
    uint8_t zero = 7;
    int64_t *sizes;
    kir_vm *vm = NULL;
    kir_program *p = byte_program(kind, dtype, &sizes);
    for (int i = 0; i <= BYTE_MEMORY; i++)
        start[i] = (uint8_t)(i * 7 + i / 256);
    for (int i = 0; i < BYTE_MEMORY; i++)
        second[i] = (uint8_t)(i * 5);
    assert_ok(kir_vm_compile(p, &vm));
    const bool same_memory = kind == BYTES_IN_PLACE || kind == BYTES_SHIFTED;
    for (int threads = 1; threads <= 2; threads++) {
        assert_ok(tn_threads_set(threads));
        memcpy(want, start, sizeof want);
        memcpy(got, start, sizeof got);
        memset(result, 1, sizeof result);
        uint8_t *to[2] = {same_memory ? want + (kind == BYTES_SHIFTED) : result[0],
                          same_memory ? got + (kind == BYTES_SHIFTED) : result[1]};
        kir_launch expected = {sizes, (void *[]){start, second, scales, &zero, to[0]}, NULL};
        kir_launch launch = {sizes, (void *[]){same_memory ? got : start, second, scales, &zero, to[1]}, NULL};
        const bool looks_up = kind <= BYTES_IN_PLACE;
        assert_int_equal(vm->table_store >= 0 && kir_table_run(vm, &launch), looks_up);
        if (kind == BYTES_SHIFTED) break; /* elements would be read after they were written: no launch is so */
        assert_ok(kir_interpret(p, &expected));
        if (!looks_up) assert_ok(kir_vm_run(vm, &launch, 1));
        assert_memory_equal(to[0], to[1], BYTE_ROWS * (kind == BYTES_WITH_GAPS ? BYTE_GAP : BYTE_COLUMNS));
    }
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
}

static void functions_of_a_byte_are_looked_up(void **state) {
    (void)state;
    for (int kind = 0; kind < BYTE_CASES; kind++) {
        check_bytes((byte_case)kind, TN_U8);
        check_bytes((byte_case)kind, TN_I8);
    }
}

static int run_seeds(uint64_t begin, uint64_t end, case_kind kind, bool show) {
    for (uint64_t seed = begin; seed < end; seed++) {
        if (!run_case(seed, kind, show)) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    static const char *const kinds[CASE_KINDS] = {"--seeds", "--long", "--code", "--long-code"};
    kir_vm_worth_a_thread(0); /* so that even small programs are divided */
    kir_code_worth(0);        /* … and get code at once */
    if (argc == 4) {          /* a kind, the first seed, one past the last */
        uint64_t begin = strtoull(argv[2], NULL, 10), end = strtoull(argv[3], NULL, 10);
        int kind = 0;
        while (kind < CASE_KINDS - 1 && strcmp(argv[1], kinds[kind]) != 0)
            kind++;
        return run_seeds(begin, end, (case_kind)kind, end == begin + 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_match_the_interpreter),
        cmocka_unit_test(long_loops_match_the_interpreter),
        cmocka_unit_test(machine_code_matches_the_interpreter),
        cmocka_unit_test(columns_match_the_interpreter),
        cmocka_unit_test(rows_that_are_overwritten_are_not_lent),
        cmocka_unit_test(sums_of_products_match_the_interpreter),
        cmocka_unit_test(repeated_elements_match_the_interpreter),
        cmocka_unit_test(place_in_a_long_row_is_found),
        cmocka_unit_test(short_launches_repeat),
        cmocka_unit_test(functions_of_a_byte_are_looked_up),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kir_vm_trim();
    return failed;
}
