/* vm.c — the tile VM beside loops written by hand.
 *
 * A hand loop applies the same functions (kir/kir_math.h) to the same arrays in one pass, compiled for the same
 * instruction set: what is left between the two is what interpreting costs. Answers are compared before anything is
 * timed. One line a case: nanoseconds an element of the hand loop and of the VM on one thread, their ratio, and the VM
 * on all threads; for cases without a hand loop, the VM alone. Each figure is the best of many short samples, the two
 * sides by turns: what others do on the machine at the same time shows in all but the best.
 *
 *   bench_vm [name part]     default: all cases */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kir/kir.h"
#include "kir/kir_math.h"

enum { SAMPLES = 60, MOST = 1 << 24, BUFFERS = 4 };
static const double SAMPLE_SECONDS = 3e-4;

#if defined(__x86_64__)
#define TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), optimize("O3"), noinline))
#else
#define TARGET __attribute__((noinline))
#endif

typedef void hand_fn(float *d, const float *x, const float *y, int64_t n);

TARGET static void hand_cheap(float *d, const float *x, const float *y, int64_t n) {
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) d[i] = kir_max_f32((x[i] * y[i] + 1.0f) * x[i], 0.0f);
}

TARGET static void hand_tanh(float *d, const float *x, const float *y, int64_t n) {
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {
        d[i] = kir_max_f32(kir_tanh_f32(x[i] * y[i] + 1.0f) * x[i], 0.0f);
    }
}

TARGET static void hand_add(float *d, const float *x, const float *y, int64_t n) {
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) d[i] = x[i] + y[i];
}

TARGET static void hand_gelu(float *d, const float *x, const float *y, int64_t n) {
    (void)y;
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {
        d[i] = x[i] * 0.5f * (kir_erf_f32(x[i] * 0.70710678f) + 1.0f);
    }
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct bench_case {
    const char *name;
    void (*build)(kir_builder *b);
    hand_fn *hand;
    int n_par, n_loop;
    int64_t extent[3];
} bench_case;

static kir_aff row_major(const int64_t *extent, int n) {
    kir_aff index = kir_aff_const(0);
    int64_t stride = 1;
    for (int k = n - 1; k >= 0; k--) {
        index.s[k] = stride;
        stride *= extent[k];
    }
    return index;
}

static const bench_case *current;

static kir_aff whole_index(void) { return row_major(current->extent, current->n_par + current->n_loop); }

static kir_val load(kir_builder *b, int buffer) {
    kir_aff index = whole_index();
    return kir_load(b, buffer, &index, KIR_NONE);
}

static void store(kir_builder *b, int buffer, kir_val v) {
    kir_aff index = whole_index();
    kir_store(b, buffer, &index, v, KIR_NONE);
}

static void declare(kir_builder *b) {
    for (int i = 0; i < BUFFERS; i++)
        kir_buffer(b, TN_F32);
}

static kir_val f32(kir_builder *b, double x) { return kir_const(b, KIR_F32, x); }

static void build_chain(kir_builder *b, bool with_tanh) {
    declare(b);
    kir_val x = load(b, 1), y = load(b, 2);
    kir_val v = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, x, y), f32(b, 1));
    if (with_tanh) v = kir_unary(b, KIR_TANH, v);
    store(b, 0, kir_binary(b, KIR_MAX, kir_binary(b, KIR_MUL, v, x), f32(b, 0)));
}
static void build_cheap(kir_builder *b) { build_chain(b, false); }
static void build_tanh(kir_builder *b) { build_chain(b, true); }

static void build_add(kir_builder *b) {
    declare(b);
    store(b, 0, kir_binary(b, KIR_ADD, load(b, 1), load(b, 2)));
}

static void build_gelu(kir_builder *b) {
    declare(b);
    kir_val x = load(b, 1);
    kir_val e = kir_unary(b, KIR_ERF, kir_binary(b, KIR_MUL, x, f32(b, 0.70710678)));
    store(b, 0, kir_binary(b, KIR_MUL, kir_binary(b, KIR_MUL, x, f32(b, 0.5)), kir_binary(b, KIR_ADD, e, f32(b, 1))));
}

static void build_transpose(kir_builder *b) {
    declare(b);
    kir_aff index = kir_aff_const(0);
    index.s[0] = 1;
    index.s[1] = current->extent[0];
    store(b, 0, kir_load(b, 1, &index, KIR_NONE));
}

static void build_bias(kir_builder *b) {
    declare(b);
    kir_aff index = kir_aff_const(0);
    index.s[1] = 1;
    kir_val biased = kir_binary(b, KIR_ADD, load(b, 1), kir_load(b, 2, &index, KIR_NONE));
    store(b, 0, kir_binary(b, KIR_MAX, biased, f32(b, 0)));
}

static void build_bf16(kir_builder *b) {
    for (int i = 0; i < BUFFERS; i++)
        kir_buffer(b, i == 0 ? TN_BF16 : TN_F16);
    store(b, 0, kir_binary(b, KIR_ADD, load(b, 1), load(b, 2)));
}

static void build_softmax(kir_builder *b) {
    declare(b);
    int axis = current->n_par;
    kir_loop(b, axis, 1);
    kir_val most = kir_reduce_value(b, KIR_RMAX, load(b, 1), KIR_NONE);
    kir_end(b);
    kir_loop(b, axis, 1);
    kir_val sum =
        kir_reduce_value(b, KIR_SUM, kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, load(b, 1), most)), KIR_NONE);
    kir_end(b);
    kir_loop(b, axis, 1);
    store(b, 0, kir_binary(b, KIR_DIV, kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, load(b, 1), most)), sum));
    kir_end(b);
}

static void build_layer_norm(kir_builder *b) {
    declare(b);
    int axis = current->n_par;
    double length = (double)current->extent[axis];
    kir_loop(b, axis, 1);
    kir_val sum = kir_reduce_value(b, KIR_SUM, load(b, 1), KIR_NONE);
    kir_end(b);
    kir_val mean = kir_binary(b, KIR_MUL, sum, f32(b, 1 / length));
    kir_loop(b, axis, 1);
    kir_val off = kir_binary(b, KIR_SUB, load(b, 1), mean);
    kir_val squares = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, off, off), KIR_NONE);
    kir_end(b);
    kir_val variance = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, squares, f32(b, 1 / length)), f32(b, 1e-5));
    kir_val scale = kir_binary(b, KIR_DIV, f32(b, 1), kir_unary(b, KIR_SQRT, variance));
    kir_loop(b, axis, 1);
    store(b, 0, kir_binary(b, KIR_MUL, kir_binary(b, KIR_SUB, load(b, 1), mean), scale));
    kir_end(b);
}

static void build_sum(kir_builder *b, const kir_aff *from) {
    declare(b);
    kir_loop(b, current->n_par, current->n_loop);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_load(b, 1, from, KIR_NONE), KIR_NONE);
    kir_end(b);
    kir_aff to = row_major(current->extent, current->n_par);
    kir_store(b, 0, &to, sum, KIR_NONE);
}

static void build_row_sum(kir_builder *b) {
    kir_aff from = whole_index();
    build_sum(b, &from);
}

/* extent: columns, rows; memory is [rows][columns] */
static void build_column_sum(kir_builder *b) {
    kir_aff from = kir_aff_const(0);
    from.s[0] = 1;
    from.s[1] = current->extent[0];
    build_sum(b, &from);
}

static const bench_case CASES[] = {
    {"add-16", build_add, hand_add, 1, 0, {16}},
    {"cheap-16", build_cheap, hand_cheap, 1, 0, {16}},
    {"add-4k", build_add, hand_add, 1, 0, {4096}},
    {"add-64k", build_add, hand_add, 1, 0, {65536}},
    {"cheap-4k", build_cheap, hand_cheap, 1, 0, {4096}},
    {"cheap-32k", build_cheap, hand_cheap, 1, 0, {32768}},
    {"cheap-64k", build_cheap, hand_cheap, 1, 0, {65536}},
    {"cheap-16m", build_cheap, hand_cheap, 1, 0, {MOST}},
    {"tanh-4k", build_tanh, hand_tanh, 1, 0, {4096}},
    {"tanh-32k", build_tanh, hand_tanh, 1, 0, {32768}},
    {"tanh-64k", build_tanh, hand_tanh, 1, 0, {65536}},
    {"tanh-16m", build_tanh, hand_tanh, 1, 0, {MOST}},
    {"gelu-64k", build_gelu, hand_gelu, 1, 0, {65536}},
    {"bias-relu-256x384", build_bias, NULL, 2, 0, {256, 384}},
    {"bias-relu-4096x8", build_bias, NULL, 2, 0, {4096, 8}},
    {"bf16-add-64k", build_bf16, NULL, 1, 0, {65536}},
    {"transpose-256", build_transpose, NULL, 2, 0, {256, 256}},
    {"transpose-2048", build_transpose, NULL, 2, 0, {2048, 2048}},
    {"softmax-4096x8", build_softmax, NULL, 1, 1, {4096, 8}},
    {"softmax-512x128", build_softmax, NULL, 1, 1, {512, 128}},
    {"softmax-64x1000", build_softmax, NULL, 1, 1, {64, 1000}},
    {"softmax-8x50000", build_softmax, NULL, 1, 1, {8, 50000}},
    {"layer-norm-512x384", build_layer_norm, NULL, 1, 1, {512, 384}},
    {"row-sum-4096x8", build_row_sum, NULL, 1, 1, {4096, 8}},
    {"row-sum-4096x10", build_row_sum, NULL, 1, 1, {4096, 10}},
    {"row-sum-2048x32", build_row_sum, NULL, 1, 1, {2048, 32}},
    {"row-sum-512x128", build_row_sum, NULL, 1, 1, {512, 128}},
    {"row-sum-64x4096", build_row_sum, NULL, 1, 1, {64, 4096}},
    {"sum-16m", build_row_sum, NULL, 0, 1, {MOST}},
    {"column-sum-384x512", build_column_sum, NULL, 1, 1, {384, 512}},
    {"column-sum-16x65536", build_column_sum, NULL, 1, 1, {16, 65536}},
    {"column-sum-64x9", build_column_sum, NULL, 1, 1, {64, 9}},
};

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Arrays begin at different places of a page, as they would in a larger block. */
enum { APART = 1088 };
static float *arrays[BUFFERS];
static void *allocations[BUFFERS];

typedef struct work {
    const kir_vm *vm;
    kir_launch launch;
    hand_fn *hand;
    int64_t n;
} work;

static void run_vm(const work *w) { kir_vm_run(w->vm, &w->launch, 1); }

static void run_hand(const work *w) { w->hand(arrays[3], arrays[1], arrays[2], w->n); }

static double time_calls(void (*run)(const work *), const work *w, int64_t calls) {
    double begin = tn_now();
    for (int64_t i = 0; i < calls; i++)
        run(w);
    return (tn_now() - begin) / (double)calls;
}

static int64_t calls_for_a_sample(void (*run)(const work *), const work *w) {
    int64_t calls = 1;
    while (calls < 1 << 20 && time_calls(run, w, calls) * (double)calls < SAMPLE_SECONDS)
        calls *= 2;
    return calls;
}

/* Best seconds of a call, for both sides by turns. */
static void time_both(const work *w, double *hand, double *vm) {
    int64_t vm_calls = calls_for_a_sample(run_vm, w), hand_calls = w->hand ? calls_for_a_sample(run_hand, w) : 0;
    *hand = *vm = 1e9;
    for (int s = 0; s < SAMPLES; s++) {
        double v = time_calls(run_vm, w, vm_calls);
        if (v < *vm) *vm = v;
        double h = w->hand ? time_calls(run_hand, w, hand_calls) : 0;
        if (h < *hand) *hand = h;
    }
}

static void fail(const char *what) {
    fprintf(stderr, "bench_vm: %s\n", what);
    exit(1);
}

static void fill(void) {
    for (int i = 0; i < BUFFERS; i++) {
        char *memory = tn_mem_alloc(sizeof(float) * MOST + APART * BUFFERS);
        allocations[i] = memory;
        if (!memory) fail(tn_error());
        arrays[i] = (float *)(void *)(memory + APART * i);
        for (int64_t e = 0; e < MOST; e++)
            arrays[i][e] = (float)((e * (7919 + 4 * i)) % 1000) / 500 - 1;
    }
}

static void check(const work *w) {
    run_vm(w);
    run_hand(w);
    if (memcmp(arrays[0], arrays[3], (size_t)w->n * sizeof(float)) != 0) fail("the answers differ");
}

static void run_case(const bench_case *c) {
    kir_builder *b = NULL;
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    kir_vm *vm = NULL;
    current = c;
    if (kir_begin(c->n_par, c->n_loop, c->extent, &b) != TN_OK) fail(tn_error());
    c->build(b);
    if (kir_finish(b, &p, &sizes) != TN_OK || kir_vm_compile(p, &vm) != TN_OK) fail(tn_error());
    work w = {.vm = vm, .launch = {sizes, (void *const *)arrays, NULL}, .hand = c->hand, .n = 1};
    for (int k = 0; k < c->n_par + c->n_loop; k++)
        w.n *= c->extent[k];
    double each = 1e9 / (double)w.n, hand, one, all, unused;
    tn_threads_set(1);
    if (c->hand) check(&w);
    time_both(&w, &hand, &one);
    tn_threads_set(0);
    w.hand = NULL;
    time_both(&w, &unused, &all);
    printf("%-22s %9.4f %9.4f %6.2fx %9.4f   %10.3f us a launch\n", c->name, hand * each, one * each,
           c->hand ? one / hand : 0, all * each, one * 1e6);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
}

int main(int argc, char **argv) {
    fill();
    printf("%-22s %9s %9s %7s %9s   (ns an element)\n", "case", "hand", "vm", "", "all threads");
    for (size_t i = 0; i < TN_COUNT(CASES); i++) {
        if (argc < 2 || strstr(CASES[i].name, argv[1])) run_case(&CASES[i]);
    }
    for (int i = 0; i < BUFFERS; i++)
        tn_mem_free(allocations[i]);
    kir_vm_trim();
    return 0;
}
