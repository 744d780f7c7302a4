/* tuner.c — measures the ways to compute products, on the CPU and on devices.
 *
 * Candidates belong to one class: our own ways, which give the same bits, and, if the caller allows it, libraries. A
 * child process times them with its own memory and the product's sizes and layout, so a library that crashes or hangs
 * costs an entry ("own") and not the program. Gains below 3 % are ignored as noise of the clock. */
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"
#include "plan/passes.h"

enum { MOST_WAYS = 24, SECONDS = 20, MOST_BYTES = 1 << 30, PAIRS = 8, LEAST_WON = 6 };
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
    {"own, A in place, B packed", {TN_GEMM_IN_PLACE, TN_GEMM_PACKED, 0}, true},
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

/* Sizes that a record has one entry for: up to 8 the number itself, then four steps an octave. */
static int64_t tn_tune_bucket(int64_t n) {
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

static bool write_matmul_key(const tn_gemm_args *g, tn_dtype dtype, bool kept, bool libraries, char *key, size_t size) {
    char a = layout_of(&g->a), b = layout_of(&g->b);
    int64_t batches = tn_product(g->batch, TN_GEMM_BATCH_AXES);
    double flops = 2.0 * (double)batches * (double)g->m * (double)g->n * (double)g->k;
    if (!a || !b || flops < LEAST_FLOPS) return false;
    snprintf(key, size, "matmul %s %c%c %lldx%lldx%lldx%lld%s%s %d threads %s", tn_dtype_name(dtype), a, b,
             (long long)tn_tune_bucket(batches), (long long)tn_tune_bucket(g->m), (long long)tn_tune_bucket(g->n),
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
    int count, best;
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

static void add_cpu_way(candidates *c, const question *q, const tn_way *way) {
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
            add_cpu_way(c, q, &(tn_way){.own = own_ways[i].way, .name = own_ways[i].name});
    for (int i = 0; q->libraries && i < tn_blas_count(); i++) {
        tn_blas_facts facts;
        tn_way way;
        tn_blas_probe(i, &facts);
        if (facts.why.code == TN_REASON_NONE && find_way(facts.name, true, &way)) add_cpu_way(c, q, &way);
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

/* A minimum may be luck on a busy machine: a way is kept only if it also wins most of some further pairs. */
static bool wins_again(const question *q, const tn_way *rule, const tn_way *way) {
    int won = 0;
    for (int i = 0; i < PAIRS; i++)
        won += time_once(q, rule) > time_once(q, way);
    return won >= LEAST_WON;
}

/* The candidates are timed in turns, so that other load on the machine affects all of them equally. The minimum of each
 * counts; the first round is dropped. */
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
    for (int i = 0; i < c->count; i++) {
        snprintf(a->name[i], sizeof a->name[i], "%s", c->way[i].name);
        if (a->seconds[i] < a->seconds[a->best] && a->seconds[i] < GAIN * a->seconds[0]) a->best = i;
    }
    if (a->best > 0 && !wins_again(q, &c->way[0], &c->way[a->best])) a->best = 0;
    a->count = c->count;
}

static void measure_cpu_ways(void *ctx, void *out) {
    question *q = ctx;
    tn_gemm_args *g = &q->args;
    candidates c = {.count = 0};
    g->c.fused = (tn_fused_program){0};
    g->a.data = memory_for(&g->a, g->batch, g->m, g->k, q->dtype);
    g->b.data = memory_for(&g->b, g->batch, g->k, g->n, q->dtype);
    g->c.data = memory_for(&g->c, g->batch, g->m, g->n, g->wide ? TN_F32 : q->dtype);
    if (q->kept) g->packed_b = tn_mem_alloc(tn_gemm_packed_bytes(g->n, g->k, q->dtype));
    g->packed_valid = q->kept ? &q->packed : NULL;
    list_candidates(&c, q);
    g->workspace = tn_mem_alloc(c.workspace);
    if (g->a.data && g->b.data && g->c.data && g->workspace && (!q->kept || g->packed_b)) time_all(q, &c, out);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* If measuring failed, the choice by rule is stored, because it would fail again next time. */
static void tune(const tn_device *d, const tn_gemm_args *args, tn_dtype dtype, bool kept, bool libraries,
                 const char *key, tn_tuned *e) {
    question q = {.args = *args, .dtype = dtype, .kept = kept, .libraries = libraries};
    answer a = {.count = 0};
    const char *why = "";
    bool told = tn_child_run(measure_cpu_ways, &q, &a, sizeof a, SECONDS, &why) && a.count > 0 && a.count <= MOST_WAYS;
    const int best = told && a.best > 0 && a.best < a.count ? a.best : 0;
    if (!told)
        tn_log_line(TN_LOG_NOTICE, "tuning of %s: %s; using the rules", key,
                    why[0] ? why : "it is too large to try every variant");
    *e = (tn_tuned){.seconds = told ? a.seconds[best] : 0, .rule_seconds = told ? a.seconds[0] : 0};
    snprintf(e->key, sizeof e->key, "%s", key);
    snprintf(e->way, sizeof e->way, "%.*s", (int)sizeof e->way - 1, told ? a.name[best] : own_ways[0].name);
    tn_tune_put(d, e);
}

bool tn_tune_product(const tn_device *d, const tn_gemm_args *args, tn_dtype dtype, bool kept, bool libraries,
                     tn_way *out) {
    char key[sizeof((tn_tuned *)NULL)->key];
    tn_tuned e;
    tn_tuning mode = tn_device_tuning(d);
    if (mode == TN_TUNING_OFF || !write_matmul_key(args, dtype, kept, libraries, key, sizeof key)) return false;
    if (!tn_tune_find(d, key, &e)) {
        if (mode != TN_TUNING_FIRST_USE) return false;
        tune(d, args, dtype, kept, libraries, key, &e);
    }
    if (!find_way(e.way, libraries, out)) return false;
    if (out->library && !tn_blas_takes(out->library, args, dtype)) return false;
    return out->library || strcmp(out->name, own_ways[0].name) != 0 || libraries;
}

/* ==== tiles on devices ============================================================================================ */
/* All tiles of a workgroup kernel give the same bits; the fastest depends on the device's memory, registers and
 * compiler. For each a kernel is made that multiplies plain matrices of the product's sizes; it is timed from the host
 * over a few milliseconds of launches. This happens in this process, because a process that has started a driver cannot
 * be forked. So "by rule" is stored first: a device that hangs or dies is not measured again. `trunnion tune --device`
 * measures in a separate process. */

enum { MOST_TILES = 16, ROUNDS = 5, MOST_LAUNCHES = 64, MOST_ELEMENTS = 1 << 28 };
static const char BY_RULE[] = "by rule";
static const double DEVICE_LEAST_FLOPS = 6e4, DEVICE_GAIN = 0.97;
/* Of one launch by rule, beyond which nothing is measured; that launches between two looks at the clock take. */
static const double DEVICE_LONGEST = 0.5, SAMPLE = 4e-3;

/* Name and driver version of the device are in the key as a hash. */
static bool write_tile_key(const tn_device *d, const tn_gemm_shape *s, char *key, size_t size) {
    int64_t batches = tn_product(s->batch, s->batch_axes);
    double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)batches;
    if (s->type != KIR_F32 || flops < DEVICE_LEAST_FLOPS) return false;
    uint64_t who =
        tn_hash64(d->caps.version, strlen(d->caps.version), tn_hash64(d->info.name, strlen(d->info.name), 0));
    snprintf(key, size, "tile f32 %c%c %lldx%lldx%lldx%lld on %s %016llx", s->a_along_k ? 'r' : 'c',
             s->b_along_k ? 'c' : 'r', (long long)tn_tune_bucket(batches), (long long)tn_tune_bucket(s->m),
             (long long)tn_tune_bucket(s->n), (long long)tn_tune_bucket(s->k), d->info.backend,
             (unsigned long long)who);
    return true;
}

/* ---- plain matrices at the fused programs ------------------------------------------------------------------------ */

typedef struct plain {
    const tn_gemm_shape *s;
    kir_builder *kb;
    int a, b, c;
} plain;

static void begin_plain(void *context, kir_builder *kb) {
    plain *p = context;
    p->kb = kb;
    p->a = kir_buffer(kb, TN_F32);
    p->b = kir_buffer(kb, TN_F32);
    p->c = kir_buffer(kb, TN_F32);
}

static void add_times(kir_aff *to, const kir_aff *x, int64_t stride) {
    to->c += x->c * stride;
    for (int i = 0; i < KIR_MAX_AXES; i++)
        to->s[i] += x->s[i] * stride;
}

/* Of matrix [batch, rows, columns], or with the last two turned. */
static kir_aff place_in(const plain *p, const kir_aff *batch, const kir_aff *row, int64_t rows, const kir_aff *column,
                        int64_t columns, bool turned) {
    kir_aff at = kir_aff_const(0);
    int64_t stride = rows * columns;
    for (int d = p->s->batch_axes - 1; d >= 0; stride *= p->s->batch[d--])
        add_times(&at, &batch[d], stride);
    add_times(&at, row, turned ? 1 : columns);
    add_times(&at, column, turned ? rows : 1);
    return at;
}

static kir_val load_plain_a(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *k, kir_val mask) {
    const plain *p = context;
    kir_aff at = place_in(p, batch, row, p->s->m, k, p->s->k, !p->s->a_along_k);
    return kir_load(p->kb, p->a, &at, mask);
}

static kir_val load_plain_b(void *context, const kir_aff *batch, const kir_aff *k, const kir_aff *column,
                            kir_val mask) {
    const plain *p = context;
    kir_aff at = place_in(p, batch, k, p->s->k, column, p->s->n, p->s->b_along_k);
    return kir_load(p->kb, p->b, &at, mask);
}

static void store_plain(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *column, kir_val value,
                        kir_val mask) {
    const plain *p = context;
    kir_aff at = place_in(p, batch, row, p->s->m, column, p->s->n, false);
    kir_store(p->kb, p->c, &at, value, mask);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

typedef struct candidate {
    int tile;
    tn_workgroup_program made;
    tn_kernel *kernel;
    double seconds;
} candidate;

typedef struct trial {
    tn_device *device;
    tn_buffer *memory[3]; /* A, B, C */
    candidate each[MOST_TILES];
    int count;
} trial;

/* Operands that are expanded may have more elements than any memory could hold. */
static tn_status make_memory(trial *t, const tn_gemm_shape *s) {
    const int64_t sides[][2] = {{s->m, s->k}, {s->k, s->n}, {s->m, s->n}};
    for (int i = 0; i < 3; i++) {
        int64_t elements;
        bool over = tn_mul_overflow(sides[i][0], sides[i][1], &elements);
        for (int d = 0; !over && d < s->batch_axes; d++)
            over = tn_mul_overflow(elements, s->batch[d], &elements);
        if (over || elements > MOST_ELEMENTS) return TN_ERR_MEMORY;
        size_t bytes = (size_t)elements * sizeof(float);
        TRY(tn_buffer_new_for_host(t->device, bytes, &t->memory[i]));
        void *zeros = i < 2 ? tn_mem_zalloc(bytes, 1) : NULL;
        tn_status status = !zeros ? (i < 2 ? TN_ERR_MEMORY : TN_OK) : tn_buffer_write(t->memory[i], 0, zeros, bytes);
        tn_mem_free(zeros);
        TRY(status);
    }
    return TN_OK;
}

static void free_candidate(candidate *c) {
    tn_kernel_release(c->kernel);
    kir_free(c->made.program);
    tn_mem_free(c->made.sizes);
}

/* A tile that cannot be had here is left out. */
static void add_candidate(trial *t, const tn_gemm_shape *shape, int tile, const tn_group_limits *limits) {
    tn_gemm_shape s = *shape;
    plain p = {.s = shape};
    tn_product_callbacks callbacks = {
        .context = &p, .begin = begin_plain, .load_a = load_plain_a, .load_b = load_plain_b, .store = store_plain};
    candidate c = {.tile = tile};
    s.tile = tile;
    if (t->count == MOST_TILES || !tn_gemm_tile_fits(tile, &s, limits)) return;
    bool can = tn_gemm_workgroup(&s, limits, &callbacks, &c.made) == TN_OK &&
               tn_kernel_supported(t->device, c.made.program, c.made.sizes, NULL) &&
               tn_kernel_get(t->device, c.made.program, &c.kernel) == TN_OK;
    if (can)
        t->each[t->count++] = c;
    else
        free_candidate(&c);
}

/* Seconds a launch; negative: it failed. */
static double time_launches(trial *t, const candidate *c, int count) {
    void *buffers[KIR_MAX_BUFFERS] = {t->memory[0]->address, t->memory[1]->address, t->memory[2]->address};
    tn_launch launch = {.sizes = c->made.sizes, .buffers = buffers, .scalars = buffers};
    float seen;
    if (tn_buffer_read(t->memory[2], 0, &seen, sizeof seen) != TN_OK) return -1; /* what came before is over */
    double begun = tn_now();
    for (int i = 0; i < count; i++)
        if (tn_kernel_launch(t->device, c->kernel, &launch, 1) != TN_OK) return -1;
    if (tn_buffer_read(t->memory[2], 0, &seen, sizeof seen) != TN_OK) return -1;
    return (tn_now() - begun) / count;
}

/* The candidates are timed in turns, so that other load on the machine affects all of them equally. The minimum of each
 * counts; the first round is dropped. */
static bool device_time_all(trial *t) {
    for (int i = 0; i < t->count; i++)
        if (time_launches(t, &t->each[i], 1) < 0) return false;
    double once = time_launches(t, &t->each[0], 1);
    if (once < 0 || once > DEVICE_LONGEST) return false;
    int launches = once > 0 ? (int)tn_min64(1 + (int64_t)(SAMPLE / once), MOST_LAUNCHES) : MOST_LAUNCHES;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < t->count; i++) {
            double seconds = time_launches(t, &t->each[i], launches);
            if (seconds < 0) return false;
            if (round == 0 || seconds < t->each[i].seconds) t->each[i].seconds = seconds;
        }
    return true;
}

/* Memory is allocated first: if the matrices fit into it, every offset fits into a kernel's index type. */
static void measure_device_tiles(tn_device *d, const tn_gemm_shape *s, const tn_group_limits *limits, tn_tuned *e) {
    trial t = {.device = d};
    int rule = tn_gemm_tile_by_rule(s, limits), best = 0;
    char name[TN_TILE_NAME];
    if (make_memory(&t, s) == TN_OK) add_candidate(&t, s, rule, limits);
    for (int tile = 1; t.count && tn_gemm_tile_name(tile, name); tile++)
        if (tile != rule) add_candidate(&t, s, tile, limits);
    if (t.count && device_time_all(&t)) {
        for (int i = 1; i < t.count; i++)
            if (t.each[i].seconds < t.each[best].seconds && t.each[i].seconds < DEVICE_GAIN * t.each[0].seconds)
                best = i;
        e->seconds = t.each[best].seconds;
        e->rule_seconds = t.each[0].seconds;
        (void)tn_gemm_tile_name(t.each[best].tile, e->way);
    } else {
        tn_log_line(TN_LOG_NOTICE, "tuning of %s: it could not be measured; using the rules", e->key);
    }
    for (int i = 0; i < t.count; i++)
        free_candidate(&t.each[i]);
    for (int i = 0; i < 3; i++)
        tn_buffer_release(t.memory[i]);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static int tile_named(const char *way) {
    char name[TN_TILE_NAME];
    for (int tile = 1; tn_gemm_tile_name(tile, name); tile++)
        if (strcmp(name, way) == 0) return tile;
    return 0;
}

int tn_tune_tile(tn_device *d, const tn_gemm_shape *s, const tn_group_limits *limits) {
    tn_tuned e = {.seconds = 0};
    tn_tuning mode = tn_device_tuning(d);
    char key[sizeof e.key];
    if (mode == TN_TUNING_OFF || !write_tile_key(d, s, key, sizeof key)) return 0;
    if (!tn_tune_find(d, key, &e)) {
        if (mode != TN_TUNING_FIRST_USE) return 0;
        snprintf(e.key, sizeof e.key, "%s", key);
        snprintf(e.way, sizeof e.way, "%s", BY_RULE);
        tn_tune_put(d, &e);
        measure_device_tiles(d, s, limits, &e);
        tn_tune_put(d, &e);
    }
    return tile_named(e.way);
}
