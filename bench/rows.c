/* rows.c — kernels with loops on another device: a row an item, and a row a workgroup.
 *
 * Both kernels compute the same bits, which is checked against the interpreter where that takes no time. One line a
 * case: microseconds a launch of each, the faster one named, what hal chooses by itself, and the same program by the
 * tile VM on one thread. Best of some samples, taken by turns. Software devices share the processor with whatever else
 * runs on the machine.
 *
 *   bench_rows [device [name part]]     default: opencl, all cases */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hal/kernel_code.h"

enum { SAMPLES = 15, MOST = 1 << 22 };

typedef struct bench_case {
    const char *name;
    void (*build)(kir_builder *b, const kir_aff *at);
    int64_t rows, length;
    bool across; /* neighbours in memory belong to neighbouring rows */
} bench_case;

static kir_val load(kir_builder *b, const kir_aff *at) { return kir_load(b, 0, at, KIR_NONE); }

static kir_val reduce(kir_builder *b, kir_reduce kind, kir_val v) {
    kir_val r = kir_reduce_value(b, kind, v, KIR_NONE);
    kir_end(b);
    return r;
}

static void build_sum(kir_builder *b, const kir_aff *at) {
    kir_aff row = kir_aff_const(0);
    row.s[0] = 1;
    kir_loop(b, 1, 1);
    kir_store(b, 1, &row, reduce(b, KIR_SUM, load(b, at)), KIR_NONE);
}

static void build_argmax(kir_builder *b, const kir_aff *at) {
    kir_aff row = kir_aff_const(0);
    row.s[0] = 1;
    kir_loop(b, 1, 1);
    kir_store(b, 1, &row, reduce(b, KIR_ARGMAX, load(b, at)), KIR_NONE);
}

static void build_softmax(kir_builder *b, const kir_aff *at) {
    kir_loop(b, 1, 1);
    kir_val most = reduce(b, KIR_RMAX, load(b, at));
    kir_loop(b, 1, 1);
    kir_val sum = reduce(b, KIR_SUM, kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, load(b, at), most)));
    kir_loop(b, 1, 1);
    kir_val e = kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, load(b, at), most));
    kir_store(b, 1, at, kir_binary(b, KIR_DIV, e, sum), KIR_NONE);
    kir_end(b);
}

static const bench_case CASES[] = {
    {"sum-1x4m", build_sum, 1, MOST, false},
    {"sum-16x64k", build_sum, 16, 65536, false},
    {"sum-1024x1024", build_sum, 1024, 1024, false},
    {"sum-16384x128", build_sum, 16384, 128, false},
    {"sum-65536x32", build_sum, 65536, 32, false},
    {"columns-64x16k", build_sum, 64, 16384, true},
    {"columns-1024x1024", build_sum, 1024, 1024, true},
    {"columns-16384x128", build_sum, 16384, 128, true},
    {"argmax-64x32k", build_argmax, 64, 32768, false},
    {"softmax-64x4096", build_softmax, 64, 4096, false},
    {"softmax-4096x256", build_softmax, 4096, 256, false},
    {"softmax-16384x64", build_softmax, 16384, 64, false},
};

static bool failed(tn_status s, const char *what) {
    if (s != TN_OK) fprintf(stderr, "%s: %s\n", what, tn_error());
    return s != TN_OK;
}

static tn_status build(const bench_case *c, kir_program **p, int64_t **sizes) {
    kir_builder *b = NULL;
    kir_aff at = kir_aff_const(0);
    at.s[0] = c->across ? 1 : c->length;
    at.s[1] = c->across ? c->rows : 1;
    TRY(kir_begin(1, 1, (const int64_t[]){c->rows, c->length}, &b));
    kir_buffer(b, TN_F32);
    kir_buffer(b, TN_F32);
    c->build(b, &at);
    return kir_finish(b, p, sizes);
}

typedef struct bench {
    tn_device *device;
    tn_buffer *in, *out;
    float *x, *y, *z;
} bench;

/* Seconds of one launch, waited for. */
static double run(const bench *w, tn_kernel *k, const int64_t *sizes, tn_row_split_policy policy, bool *good) {
    void *const buffers[] = {(void *)w->in->address, (void *)w->out->address};
    tn_launch launch = {sizes, buffers, NULL};
    tn_row_split_set(policy);
    double begin = tn_now();
    *good = *good && !failed(tn_kernel_launch(w->device, k, &launch, 1), "launch");
    *good = *good && !failed(tn_device_synchronize(w->device), "wait");
    return tn_now() - begin;
}

static bool same_answer(const bench *w, tn_kernel *k, const int64_t *sizes, size_t bytes) {
    bool good = true;
    for (int policy = TN_ROW_SPLIT_ALWAYS; policy <= TN_ROW_SPLIT_NEVER && good; policy++) {
        run(w, k, sizes, (tn_row_split_policy)policy, &good);
        good = good && !failed(tn_buffer_read(w->out, 0, policy == TN_ROW_SPLIT_ALWAYS ? w->y : w->z, bytes), "read");
    }
    if (good && memcmp(w->y, w->z, bytes) == 0) return true;
    fprintf(stderr, "the two kernels differ\n");
    return false;
}

static double on_vm(const bench *w, const kir_program *p, const int64_t *sizes) {
    kir_vm *vm = NULL;
    if (failed(kir_vm_compile(p, &vm), "tile VM")) return 0;
    double best = 1e9;
    kir_launch launch = {sizes, (void *const[]){w->x, w->z}, NULL};
    for (int i = 0; i < SAMPLES; i++) {
        double begin = tn_now();
        if (failed(kir_vm_run(vm, &launch, 1), "tile VM")) break;
        best = tn_now() - begin < best ? tn_now() - begin : best;
    }
    kir_vm_free(vm);
    return best;
}

static int run_case(const bench *w, const bench_case *c) {
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    tn_kernel *k = NULL;
    bool good = !failed(build(c, &p, &sizes), "build") && !failed(tn_kernel_get(w->device, p, &k), "compile");
    good = good && same_answer(w, k, sizes, (size_t)c->rows * 4);
    double best[3] = {1e9, 1e9, 1e9};
    for (int i = 0; i < SAMPLES && good; i++) {
        for (int policy = 0; policy < 3; policy++) {
            double t = run(w, k, sizes, (tn_row_split_policy)policy, &good);
            best[policy] = t < best[policy] ? t : best[policy];
        }
    }
    if (good) {
        printf("%-20s %10.1f %10.1f %10.1f   %-10s %10.1f\n", c->name, best[TN_ROW_SPLIT_NEVER] * 1e6,
               best[TN_ROW_SPLIT_ALWAYS] * 1e6, best[TN_ROW_SPLIT_AUTO] * 1e6,
               best[TN_ROW_SPLIT_NEVER] < best[TN_ROW_SPLIT_ALWAYS] ? "item" : "workgroup", on_vm(w, p, sizes) * 1e6);
    }
    tn_kernel_release(k);
    kir_free(p);
    tn_mem_free(sizes);
    return good ? 0 : 1;
}

static int run_cases(bench *w, const char *part) {
    for (int i = 0; i < MOST; i++)
        w->x[i] = (float)(i % 1000) / 100.0f;
    if (failed(tn_buffer_write(w->in, 0, w->x, (size_t)MOST * 4), "write")) return 1;
    printf("%-20s %10s %10s %10s   %-10s %10s   us a launch\n", "", "an item", "a group", "chosen", "faster", "VM");
    int result = 0;
    for (size_t i = 0; i < TN_COUNT(CASES); i++) {
        if (strstr(CASES[i].name, part)) result |= run_case(w, &CASES[i]);
    }
    return result;
}

int main(int argc, char **argv) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    bench w = {0};
    if (failed(tn_device_open(argc > 1 ? argv[1] : "opencl", &o, NULL, &w.device), "nothing to measure on")) return 0;
    printf("%s (%s), tile VM on one thread\n", w.device->info.id, w.device->info.name);
    size_t bytes = (size_t)MOST * 4;
    w.x = malloc(bytes);
    w.y = malloc(bytes);
    w.z = malloc(bytes);
    int result = 1;
    if (w.x && w.y && w.z && !failed(tn_threads_set(1), "threads") &&
        !failed(tn_buffer_new(w.device, bytes, &w.in), "memory") &&
        !failed(tn_buffer_new(w.device, bytes, &w.out), "memory"))
        result = run_cases(&w, argc > 2 ? argv[2] : "");
    tn_buffer_release(w.in);
    tn_buffer_release(w.out);
    tn_device_close(w.device);
    free(w.x);
    free(w.y);
    free(w.z);
    return result;
}
