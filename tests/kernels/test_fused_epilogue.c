/* test_fused_epilogue.c — what products do to sums in registers: the same bits as the store programs whose place that
 * takes.
 *
 * Programs of each kind that tn_fused_epilogue_read knows, and of neighbours that it must not take for these, run
 * behind products of drawn sizes: once read, once as programs (whose bits test_gemm.c compares with the definition), on
 * every instruction set and on one to three threads. Operands have infinities and NaNs, results lie in a larger buffer,
 * under a gate also over it; those of one row also over what is added, as a plan lays out what nobody reads any more.
 * */
#include "test_support.h"

#include <math.h>

#include "cpu/isa.h"
#include "random_numbers.h"

enum { AXES = TN_GEMM_BATCH_AXES + 2, ROW = TN_GEMM_BATCH_AXES, COLUMN = ROW + 1 };
enum { MAX_THREADS = 3 };
#define CASES TEST_SWEEP(120)
enum { BLOCK, TO, ADD, TIMES, GATE, BUFFERS };
enum { GAP = 3, FIRST = 5 }; /* elements behind a row, and before all of them, of matrices */

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct maker {
    kir_builder *b;
    int64_t n;
} maker;

static kir_aff index_of(const maker *m, int buffer) {
    kir_aff at = kir_aff_const(buffer == TO || buffer == GATE ? FIRST : 0);
    at.s[ROW] = buffer == BLOCK ? TN_GEMM_BLOCK_LD : buffer == ADD ? 0 : buffer == TIMES ? 2 : m->n + GAP;
    at.s[COLUMN] = buffer != TIMES && (buffer != TO || m->n > 1);
    return at;
}

static kir_val load(const maker *m, int buffer) {
    kir_aff at = index_of(m, buffer);
    return kir_load(m->b, buffer, &at, KIR_NONE);
}

static kir_val number(const maker *m, double x) { return kir_const(m->b, KIR_F32, x); }
static kir_val add(const maker *m, kir_val x, kir_val y) { return kir_binary(m->b, KIR_ADD, x, y); }
static kir_val at_least(const maker *m, kir_val x, double y) { return kir_binary(m->b, KIR_MAX, x, number(m, y)); }
static kir_val gated(const maker *m, kir_val x, double most) {
    return kir_select(m->b, kir_binary(m->b, KIR_LE, load(m, GATE), number(m, most)), number(m, 0), x);
}
static kir_val outer(const maker *m) { return kir_fma(m->b, load(m, TIMES), load(m, ADD), number(m, 0)); }

static kir_val sum(const maker *m) { return load(m, BLOCK); }
static kir_val biased(const maker *m) { return add(m, sum(m), load(m, ADD)); }
static kir_val biased_before(const maker *m) { return add(m, load(m, ADD), sum(m)); }
static kir_val relu(const maker *m) { return at_least(m, sum(m), 0); }
static kir_val biased_relu(const maker *m) { return at_least(m, biased(m), 0); }
static kir_val gradient(const maker *m) { return gated(m, sum(m), 0); }
static kir_val biased_gradient(const maker *m) { return gated(m, biased(m), 0); }
static kir_val outer_gradient(const maker *m) { return gated(m, add(m, sum(m), outer(m)), 0); }
static kir_val with_outer(const maker *m) { return add(m, sum(m), outer(m)); }
static kir_val with_outer_relu(const maker *m) { return at_least(m, with_outer(m), 0); }
static kir_val with_product(const maker *m) {
    return add(m, sum(m), kir_binary(m->b, KIR_MUL, load(m, ADD), load(m, TIMES)));
}
static kir_val above_one(const maker *m) { return at_least(m, biased(m), 1); }
static kir_val turned_maximum(const maker *m) { return kir_binary(m->b, KIR_MAX, number(m, 0), biased(m)); }
static kir_val gated_by_one(const maker *m) { return gated(m, sum(m), 1); }
static kir_val gated_less(const maker *m) {
    return kir_select(m->b, kir_binary(m->b, KIR_LT, load(m, GATE), number(m, 0)), number(m, 0), sum(m));
}
static kir_val gated_otherwise(const maker *m) {
    return kir_select(m->b, kir_binary(m->b, KIR_LE, load(m, GATE), number(m, 0)), sum(m), number(m, 0));
}
static kir_val by_rows(const maker *m) { return add(m, sum(m), load(m, TIMES)); }
static kir_val residual(const maker *m) { return add(m, sum(m), load(m, GATE)); }
static kir_val outer_and_one(const maker *m) {
    return add(m, sum(m), kir_fma(m->b, load(m, TIMES), load(m, ADD), number(m, 1)));
}
static kir_val by_rows_relu(const maker *m) { return at_least(m, by_rows(m), 0); }
static kir_val biased_residual(const maker *m) { return add(m, load(m, GATE), biased(m)); }
static kir_val by_rows_residual_relu(const maker *m) { return at_least(m, add(m, by_rows(m), load(m, GATE)), 0); }
static kir_val outer_residual(const maker *m) { return add(m, with_outer(m), load(m, GATE)); }

/* Between two numbers in memory. */
static kir_val clipped_to(const maker *m, kir_val x, bool low, bool high) {
    const kir_aff first = kir_aff_const(0), second = kir_aff_const(1);
    if (low) x = kir_binary(m->b, KIR_MAX, x, kir_load(m->b, TIMES, &first, KIR_NONE));
    return high ? kir_binary(m->b, KIR_MIN, x, kir_load(m->b, TIMES, &second, KIR_NONE)) : x;
}
static kir_val clipped(const maker *m) { return clipped_to(m, by_rows(m), true, true); }
static kir_val clipped_below(const maker *m) { return clipped_to(m, biased_residual(m), true, false); }
static kir_val clipped_relu(const maker *m) { return clipped_to(m, by_rows_relu(m), false, true); }
static kir_val clipped_gradient(const maker *m) { return clipped_to(m, gradient(m), true, true); }
static kir_val twice(const maker *m) { return add(m, biased(m), load(m, ADD)); }

static const struct kind {
    const char *name;
    kir_val (*value)(const maker *m);
    bool known, gated;
} kinds[] = {{"sum", sum, true, false},
             {"biased", biased, true, false},
             {"biased before", biased_before, true, false},
             {"relu", relu, true, false},
             {"biased relu", biased_relu, true, false},
             {"gradient", gradient, true, true},
             {"biased gradient", biased_gradient, true, true},
             {"outer gradient", outer_gradient, true, true},
             {"with outer", with_outer, true, false},
             {"with outer, relu", with_outer_relu, true, false},
             {"with product", with_product, true, false},
             {"above one", above_one, false, false},
             {"turned maximum", turned_maximum, false, false},
             {"gated by one", gated_by_one, false, true},
             {"gated less", gated_less, false, true},
             {"gated otherwise", gated_otherwise, false, true},
             {"by rows", by_rows, true, false},
             {"by rows, relu", by_rows_relu, true, false},
             {"residual", residual, true, true},
             {"biased, residual", biased_residual, true, true},
             {"by rows, residual, relu", by_rows_residual_relu, true, true},
             {"outer, residual", outer_residual, false, true},
             {"clipped", clipped, true, false},
             {"clipped below", clipped_below, true, true},
             {"clipped relu", clipped_relu, true, false},
             {"clipped gradient", clipped_gradient, false, true},
             {"outer and one", outer_and_one, false, false},
             {"twice", twice, false, false}};

/* The program, compiled; what was read off it is in the epilogue. */
static tn_fused_program make_epilogue(const struct kind *kind, int64_t m, int64_t n, kir_vm **vm, int64_t **sizes,
                                      tn_fused_epilogue *epilogue_ops) {
    const int64_t extents[AXES] = {1, 1, 1, 1, m, n};
    maker make = {.n = n};
    kir_program *program = NULL;
    assert_ok(kir_begin(AXES, 0, extents, &make.b));
    for (int i = 0; i < BUFFERS; i++)
        assert_int_equal(kir_buffer(make.b, TN_F32), i);
    kir_aff to = index_of(&make, TO);
    kir_store(make.b, TO, &to, kind->value(&make), KIR_NONE);
    assert_ok(kir_finish(make.b, &program, sizes));
    assert_ok(kir_vm_compile(program, vm));
    tn_fused_program fused = {.vm = *vm, .launch.sizes = *sizes, .block_buffer = BLOCK, .buffer_count = BUFFERS};
    if (tn_fused_epilogue_read(program, *sizes, BLOCK, epilogue_ops)) fused.epilogue_ops = epilogue_ops;
    kir_free(program);
    return fused;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static int64_t random_below(int64_t n) { return (int64_t)((random_step(&random_state) >> 33) % (uint64_t)n); }

/* One in `rare` is no finite number. */
static float *random_floats(int64_t count, int64_t rare) {
    static const float strange[] = {INFINITY, -INFINITY, NAN, -0.0f, 0.0f};
    float *x = tn_mem_alloc((size_t)(count + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = random_below(rare) ? (float)random_below(2001) / 1000 - 1 : strange[random_below(5)];
    return x;
}

typedef struct work {
    const struct kind *kind;
    int64_t m, n, k;
    float *a, *b, *add, *times, *gate;
    int64_t step;  /* of A's columns */
    bool along;    /* B's columns lie along k */
    bool over;     /* the result lies over the gate */
    bool over_add; /* … or, one row, over what is added */
} work;

static int64_t matrix_size(const work *w) { return FIRST + w->m * (w->n + GAP); }

static float *run(const work *w, bool read, bool kept) {
    kir_vm *vm;
    int64_t *sizes;
    size_t bytes = (size_t)matrix_size(w) * sizeof(float);
    float *to = tn_mem_alloc(bytes), *packed = NULL;
    bool valid = false;
    memcpy(to, w->gate, bytes);
    void *buffers[BUFFERS] = {NULL, to, w->over_add ? to + FIRST : w->add, w->times, w->over ? to : w->gate};
    tn_fused_epilogue epilogue_ops;
    tn_fused_program fused = make_epilogue(w->kind, w->m, w->n, &vm, &sizes, &epilogue_ops);
    assert_int_equal(fused.epilogue_ops != NULL, w->kind->known);
    if (!read) fused.epilogue_ops = NULL;
    fused.launch.buffers = buffers;
    tn_gemm_args args = {.batch = {1, 1, 1, 1}, .m = w->m, .n = w->n, .k = w->k};
    args.a = (tn_matrix){.data = w->a, .row_stride = w->k * w->step, .col_stride = w->step};
    args.b = (tn_matrix){.data = w->b, .row_stride = w->along ? 1 : w->n, .col_stride = w->along ? w->k : 1};
    args.c.fused = fused;
    if (kept) {
        args.packed_b = packed = tn_mem_alloc(tn_gemm_packed_bytes(w->n, w->k, TN_F32));
        args.packed_valid = &valid;
    }
    args.workspace = tn_mem_alloc(tn_gemm_workspace(&args, TN_F32, tn_threads()));
    tn_gemm_run(&args, TN_F32);
    tn_mem_free(args.workspace);
    tn_mem_free(packed);
    tn_mem_free(sizes);
    kir_vm_free(vm);
    return to;
}

static void compare(const work *w, const float *got, const float *want) {
    const char *where = w->over ? " over its gate" : w->over_add ? " over what is added" : "";
    for (int64_t i = 0; i < matrix_size(w); i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s%s, %d threads: [%d, %d] of k %d: %.9g at %d instead of %.9g", w->kind->name, where,
                     tn_threads(), (int)w->m, (int)w->n, (int)w->k, (double)got[i], (int)i, (double)want[i]);
}

static void check(const work *w) {
    bool kept = random_below(2);
    float *want = run(w, false, kept);
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use((tn_isa)isa)) continue;
        assert_ok(tn_threads_set(1 + (int)random_below(MAX_THREADS)));
        float *got = run(w, true, kept);
        compare(w, got, want);
        tn_mem_free(got);
    }
    tn_mem_free(want);
}

static void epilogues_have_the_bits_of_their_programs(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 2, 3, 4, 5, 9, 14, 15, 28, 33, 60, 120, 201};
    static const int64_t columns[] = {1, 2, 7, 8, 16, 17, 32, 33, 64, 100, 128, 150, 600};
    static const int64_t depths[] = {0, 1, 8, 64, 128, 255, 256, 257, 520, 4200};
    random_state = 3;
    for (int i = 0; i < CASES * (int)TN_COUNT(kinds); i++) {
        work w = {.kind = &kinds[i % (int)TN_COUNT(kinds)]};
        do {
            w.m = rows[random_below((int64_t)TN_COUNT(rows))];
            w.n = columns[random_below((int64_t)TN_COUNT(columns))];
            w.k = depths[random_below((int64_t)TN_COUNT(depths))];
        } while (w.m * w.n * w.k > 1000000);
        w.step = 1 + (random_below(4) == 0);
        w.along = random_below(2);
        w.a = random_floats(w.m * w.k * w.step, 5000);
        w.b = random_floats(w.k * w.n, 5000);
        w.add = random_floats(w.n, 20);
        w.times = random_floats(2 * w.m, 20);
        w.gate = random_floats(matrix_size(&w), 5);
        w.over = w.kind->gated && random_below(2);
        w.over_add = !w.over && w.m == 1 && random_below(2);
        check(&w);
        tn_mem_free(w.a);
        tn_mem_free(w.b);
        tn_mem_free(w.add);
        tn_mem_free(w.times);
        tn_mem_free(w.gate);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epilogues_have_the_bits_of_their_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
