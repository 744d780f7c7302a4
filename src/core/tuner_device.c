/* tuner_device.c — the tiles of products on devices are timed, and the fastest is written down.
 *
 * Tiles of a workgroup kernel yield the same bits; which is the fastest depends on the device's memory, registers and
 * compiler. Each is made into a kernel that multiplies plain matrices of the product's sizes, and timed from the host
 * over as many launches as take a few milliseconds. That happens in this process, for what a driver has begun cannot be
 * forked: an entry is written down as "by rule" first, so that a device which hangs or dies is not asked the same
 * again. `trunnion tune --device` measures in a process of its own. */
#include "core/tuner.h"

#include <stdio.h>
#include <string.h>

#include "hal/kernel_code.h"
#include "hal/tune_cache.h"

enum { MOST_TILES = 16, ROUNDS = 5, MOST_LAUNCHES = 64, MOST_ELEMENTS = 1 << 28 };
static const char BY_RULE[] = "by rule";
static const double LEAST_FLOPS = 6e4, GAIN = 0.97;
/* Of one launch by rule, beyond which nothing is measured; that launches between two looks at the clock take. */
static const double LONGEST = 0.5, SAMPLE = 4e-3;

static int64_t batches_of(const tn_gemm_shape *s) {
    int64_t n = 1;
    for (int d = 0; d < s->batch_axes; d++)
        n *= s->batch[d];
    return n;
}

/* Device, driver and their versions stand for themselves by a hash. */
static bool write_key_device_tuner(const tn_device *d, const tn_gemm_shape *s, char *key, size_t size) {
    double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)batches_of(s);
    if (s->type != KIR_F32 || flops < LEAST_FLOPS) return false;
    uint64_t who =
        tn_hash64(d->caps.version, strlen(d->caps.version), tn_hash64(d->info.name, strlen(d->info.name), 0));
    snprintf(key, size, "tile f32 %c%c %lldx%lldx%lldx%lld on %s %016llx", s->a_along_k ? 'r' : 'c',
             s->b_along_k ? 'c' : 'r', (long long)tn_tune_bucket(batches_of(s)), (long long)tn_tune_bucket(s->m),
             (long long)tn_tune_bucket(s->n), (long long)tn_tune_bucket(s->k), d->info.backend,
             (unsigned long long)who);
    return true;
}

/* ---- plain matrices at the fused programs
 * -------------------------------------------------------------------------------- */

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

/* In turns, so that what else the machine does meets all alike; the least time of each counts, the first none. */
static bool time_all(trial *t) {
    for (int i = 0; i < t->count; i++)
        if (time_launches(t, &t->each[i], 1) < 0) return false;
    double once = time_launches(t, &t->each[0], 1);
    if (once < 0 || once > LONGEST) return false;
    int launches = once > 0 ? (int)tn_min64(1 + (int64_t)(SAMPLE / once), MOST_LAUNCHES) : MOST_LAUNCHES;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < t->count; i++) {
            double seconds = time_launches(t, &t->each[i], launches);
            if (seconds < 0) return false;
            if (round == 0 || seconds < t->each[i].seconds) t->each[i].seconds = seconds;
        }
    return true;
}

/* Memory comes first: of a product whose matrices fit into it, every place is a number that a kernel can hold. */
static void measure_device_tuner(tn_device *d, const tn_gemm_shape *s, const tn_group_limits *limits, tn_tuned *e) {
    trial t = {.device = d};
    int rule = tn_gemm_tile_by_rule(s, limits), best = 0;
    char name[TN_TILE_NAME];
    if (make_memory(&t, s) == TN_OK) add_candidate(&t, s, rule, limits);
    for (int tile = 1; t.count && tn_gemm_tile_name(tile, name); tile++)
        if (tile != rule) add_candidate(&t, s, tile, limits);
    if (t.count && time_all(&t)) {
        for (int i = 1; i < t.count; i++)
            if (t.each[i].seconds < t.each[best].seconds && t.each[i].seconds < GAIN * t.each[0].seconds) best = i;
        e->seconds = t.each[best].seconds;
        e->rule_seconds = t.each[0].seconds;
        (void)tn_gemm_tile_name(t.each[best].tile, e->way);
    } else {
        tn_log_line(TN_LOG_NOTICE, "tuning of %s: it could not be measured; the rules choose", e->key);
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
    tn_tuning mode = tn_tuning_mode();
    char key[sizeof e.key];
    if (mode == TN_TUNING_OFF || !write_key_device_tuner(d, s, key, sizeof key)) return 0;
    if (!tn_tune_find(key, &e)) {
        if (mode != TN_TUNING_FIRST_USE) return 0;
        snprintf(e.key, sizeof e.key, "%s", key);
        snprintf(e.way, sizeof e.way, "%s", BY_RULE);
        tn_tune_put(&e);
        measure_device_tuner(d, s, limits, &e);
        tn_tune_put(&e);
    }
    return tile_named(e.way);
}
