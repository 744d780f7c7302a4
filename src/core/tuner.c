/* tuner.c — matrix products are timed in each way that there is, and the fastest is written down.
 *
 * The candidates of one class only: our own ways, which yield the same bits, and, if the caller allows it, libraries. A
 * child process times them on memory of its own with the product's sizes and layout, so a library that crashes or hangs
 * costs an entry ("own"), not the program. Only a gain of three hundredths counts: less is the clock's. */
#include "core/tuner.h"

#include <stdio.h>
#include <string.h>

#include "hal/hal.h"
#include "hal/tune_cache.h"

enum { MOST_WAYS = 24, SECONDS = 20, MOST_BYTES = 1 << 30 };
static const double LEAST_FLOPS = 1e5, GAIN = 0.97, SAMPLE_SECONDS = 1e-2;
/* Of one run by rule, beyond which nothing is measured, or not by one thread; and of all runs. */
static const double LONGEST = 0.2, LONGEST_ALONE = 1e-2, ENOUGH = 1;

/* The first is what the rules choose. */
static const struct {
    const char *name;
    tn_gemm_way way;
    bool packs_b; /* says what happens to B: not for one whose packed form is kept */
} own_ways[] = {
    {"own", {0, 0, 0}, false},
    {"own, one thread", {0, 0, 1}, false},
    {"own, A packed", {TN_GEMM_PACKED, 0, 0}, false},
    {"own, A in place", {TN_GEMM_IN_PLACE, 0, 0}, false},
    {"own, B packed", {0, TN_GEMM_PACKED, 0}, true},
    {"own, B in place", {0, TN_GEMM_IN_PLACE, 0}, true},
    {"own, B packed at use", {0, TN_GEMM_AT_USE, 0}, true},
    {"own, both packed", {TN_GEMM_PACKED, TN_GEMM_PACKED, 0}, true},
    {"own, both in place", {TN_GEMM_IN_PLACE, TN_GEMM_IN_PLACE, 0}, true},
};
enum { OWN = TN_COUNT(own_ways) };

/* `libraries`: it may be one's, which is loaded then. */
static bool find_way(const char *name, bool libraries, tn_way *out) {
    for (size_t i = 0; i < OWN; i++) {
        if (strcmp(own_ways[i].name, name) != 0) continue;
        *out = (tn_way){.own = own_ways[i].way, .name = own_ways[i].name};
        return true;
    }
    const tn_blas *library = libraries ? tn_blas_by_name(name) : NULL;
    *out = (tn_way){.library = library, .name = tn_blas_name(library)};
    return library != NULL;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

int64_t tn_tune_bucket(int64_t n) {
    int shift = 0;
    while (n >> shift >= 8)
        shift++;
    int64_t half = shift ? (int64_t)1 << (shift - 1) : 0;
    return n > INT64_MAX / 2 ? n : (n + half) >> shift << shift;
}

/* By rows, by columns, or in a way that is not tuned. */
static char layout_of(const tn_matrix *x) {
    if (x->fused.vm || x->row_stride < 0 || x->col_stride < 0) return 0;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        if (x->batch_stride[axis] < 0) return 0;
    return x->col_stride == 1 ? 'r' : x->row_stride == 1 ? 'c' : 0;
}

static int64_t batches_of(const tn_gemm_args *g) {
    int64_t batches = 1;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        batches *= g->batch[axis];
    return batches;
}

static bool write_key_tuner(const tn_gemm_args *g, tn_dtype dtype, bool kept, bool libraries, char *key, size_t size) {
    char a = layout_of(&g->a), b = layout_of(&g->b);
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)batches_of(g);
    if (!a || !b || flops < LEAST_FLOPS) return false;
    snprintf(key, size, "matmul %s %c%c %lldx%lldx%lldx%lld%s%s %d threads %s", tn_dtype_name(dtype), a, b,
             (long long)tn_tune_bucket(batches_of(g)), (long long)tn_tune_bucket(g->m), (long long)tn_tune_bucket(g->n),
             (long long)tn_tune_bucket(g->k), kept ? " B kept" : "", g->c.fused.vm ? " joined" : "", tn_threads(),
             libraries ? "library" : "exact");
    return true;
}

/* ---- measuring, in a process of its own -------------------------------------------------------------------------- */

typedef struct question {
    tn_gemm_args args;
    tn_dtype dtype;
    bool kept, libraries;
    bool packed; /* B's packed form has been made */
} question;

typedef struct answer {
    char name[MOST_WAYS][40];
    double seconds[MOST_WAYS];
    int count;
} answer;

/* Memory as far as the matrix reaches, filled with small numbers of any type. NULL: too much. */
static void *memory_for(const tn_matrix *x, const int64_t *batch, int64_t rows, int64_t cols, tn_dtype dtype) {
    int64_t last = (rows - 1) * x->row_stride + (cols - 1) * x->col_stride;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        last += (batch[axis] - 1) * x->batch_stride[axis];
    if (last >= MOST_BYTES / (int64_t)tn_dtype_size(dtype)) return NULL;
    size_t bytes = (size_t)(last + 1) * tn_dtype_size(dtype);
    void *memory = tn_mem_alloc(bytes);
    if (memory) memset(memory, 0x3c, bytes);
    return memory;
}

typedef struct candidates {
    tn_way way[MOST_WAYS];
    int count;
    size_t workspace;
} candidates;

static void add_tuner(candidates *c, const question *q, const tn_way *way) {
    tn_gemm_args args = q->args;
    args.way = way->own;
    if (c->count == MOST_WAYS || (way->library && !tn_blas_takes(way->library, &args, q->dtype))) return;
    size_t bytes =
        way->library ? tn_blas_workspace(&args, tn_threads()) : tn_gemm_workspace(&args, q->dtype, tn_threads());
    if (bytes > c->workspace) c->workspace = bytes;
    c->way[c->count++] = *way;
}

static void list_candidates(candidates *c, const question *q) {
    for (size_t i = 0; i < OWN; i++)
        if (!q->kept || !own_ways[i].packs_b)
            add_tuner(c, q, &(tn_way){.own = own_ways[i].way, .name = own_ways[i].name});
    for (int i = 0; q->libraries && i < tn_blas_count(); i++) {
        tn_blas_facts facts;
        tn_way way;
        tn_blas_probe(i, &facts);
        if (facts.why.code == TN_REASON_NONE && find_way(facts.name, true, &way)) add_tuner(c, q, &way);
    }
}

static double time_once(const question *q, const tn_way *way) {
    tn_gemm_args args = q->args;
    args.way = way->own;
    double begun = tn_now();
    if (way->library)
        tn_blas_gemm(way->library, &args, q->dtype);
    else
        tn_gemm_run(&args, q->dtype);
    return tn_now() - begun;
}

static void leave_out_one_thread(candidates *c) {
    int n = 0;
    for (int i = 0; i < c->count; i++)
        if (c->way[i].library || c->way[i].own.threads != 1) c->way[n++] = c->way[i];
    c->count = n;
}

/* In turns, so that what else the machine does meets all alike; the least time of each counts, the first none. */
static void time_all(const question *q, candidates *c, answer *a) {
    double spent = 0, by_rule = time_once(q, &c->way[0]);
    if (by_rule > LONGEST) return;
    if (by_rule > LONGEST_ALONE) leave_out_one_thread(c);
    for (int round = 0;
         round < 2 || (spent < ENOUGH && round < 8) || (spent < c->count * SAMPLE_SECONDS && round < 400); round++)
        for (int i = 0; i < c->count; i++) {
            double seconds = time_once(q, &c->way[i]);
            spent += seconds;
            if (round == 1 || (round > 1 && seconds < a->seconds[i])) a->seconds[i] = seconds;
        }
    for (int i = 0; i < c->count; i++)
        snprintf(a->name[i], sizeof a->name[i], "%s", c->way[i].name);
    a->count = c->count;
}

static void measure_tuner(void *ctx, void *out) {
    question *q = ctx;
    tn_gemm_args *g = &q->args;
    candidates c = {.count = 0};
    g->c.fused = (tn_fused_program){0};
    g->a.data = memory_for(&g->a, g->batch, g->m, g->k, q->dtype);
    g->b.data = memory_for(&g->b, g->batch, g->k, g->n, q->dtype);
    g->c.data = memory_for(&g->c, g->batch, g->m, g->n, g->wide ? TN_F32 : q->dtype);
    if (q->kept) g->packed_b = tn_mem_alloc(tn_gemm_packed_bytes(g->n, g->k, q->dtype));
    g->packed_valid = &q->packed;
    list_candidates(&c, q);
    g->workspace = tn_mem_alloc(c.workspace);
    if (g->a.data && g->b.data && g->c.data && g->workspace && (!q->kept || g->packed_b)) time_all(q, &c, out);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* What could not be measured is written down as the rules have it: it would not end better the next time. */
static void tune(const tn_gemm_args *args, tn_dtype dtype, bool kept, bool libraries, const char *key, tn_tuned *e) {
    question q = {.args = *args, .dtype = dtype, .kept = kept, .libraries = libraries};
    answer a = {.count = 0};
    const char *why = "";
    int best = 0;
    bool told = tn_child_run(measure_tuner, &q, &a, sizeof a, SECONDS, &why) && a.count > 0 && a.count <= MOST_WAYS;
    if (!told)
        tn_log_line(TN_LOG_NOTICE, "tuning of %s: %s; the rules choose", key,
                    why[0] ? why : "it is too large to be tried in every way");
    for (int i = 1; told && i < a.count; i++)
        if (a.seconds[i] < a.seconds[best] && a.seconds[i] < GAIN * a.seconds[0]) best = i;
    *e = (tn_tuned){.seconds = told ? a.seconds[best] : 0, .rule_seconds = told ? a.seconds[0] : 0};
    snprintf(e->key, sizeof e->key, "%s", key);
    snprintf(e->way, sizeof e->way, "%.*s", (int)sizeof e->way - 1, told ? a.name[best] : own_ways[0].name);
    tn_tune_put(e);
}

bool tn_tune_product(const tn_gemm_args *args, tn_dtype dtype, bool kept, bool libraries, tn_way *out) {
    char key[sizeof((tn_tuned *)NULL)->key];
    tn_tuned e;
    tn_tuning mode = tn_tuning_mode();
    if (mode == TN_TUNING_OFF || !write_key_tuner(args, dtype, kept, libraries, key, sizeof key)) return false;
    if (!tn_tune_find(key, &e)) {
        if (mode != TN_TUNING_FIRST_USE) return false;
        tune(args, dtype, kept, libraries, key, &e);
    }
    if (!find_way(e.way, libraries, out)) return false;
    if (out->library && !tn_blas_takes(out->library, args, dtype)) return false;
    return out->library || strcmp(out->name, own_ways[0].name) != 0 || libraries;
}
