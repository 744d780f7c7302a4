/* kir_device.c — see kir_device.h. */
#include "kir_device.h"

#include "hal/kernel_code.h"
#include "test_support.h"

void kir_device_open(const tn_driver *driver, const kir_dialect *dialect, kir_device *out) {
    tn_device_options options = TN_DEVICE_DEFAULTS;
    *out = (kir_device){.driver = driver, .dialect = dialect, .caps = {.struct_size = sizeof out->caps}};
    if (driver->open(0, &options, &out->handle) == TN_OK) {
        assert_ok(driver->caps(out->handle, &out->caps));
        return;
    }
    printf("skipped: no %s device: %s\n", driver->title, tn_error());
    out->handle = NULL;
}

void kir_device_close(kir_device *d) {
    if (d->handle) d->driver->close(d->handle);
    d->handle = NULL;
}

kir_target kir_device_target(const kir_device *d, bool index32) {
    return (kir_target){.dialect = d->dialect,
                        .group_size = 64,
                        .index32 = index32,
                        .f64 = d->caps.f64,
                        .f16 = d->caps.f16,
                        .i64 = d->caps.i64,
                        .words_only = d->caps.words_only,
                        .features = d->caps.features,
                        .window = tn_window_bytes(&d->caps),
                        .lanes = d->caps.matrix ? (int)d->caps.subgroup : 0};
}

static void *load(const kir_device *d, const kir_program *p, const kir_rendering *k) {
    void *module = NULL;
    tn_rendered_code rendered;
    tn_code_of_rendering(&d->caps, p, k, &rendered);
    if (d->driver->load(d->handle, &rendered.code, &module) != TN_OK) fail_msg("%s", tn_error());
    return module;
}

static void *alloc(const kir_device *d, size_t bytes) {
    void *memory = NULL;
    assert_ok(d->driver->alloc(d->handle, bytes, &memory));
    return memory;
}

/* Bytes in front of the block of memory: element 0 of a buffer may lie before it, and a base is never negative. */
static size_t front_of(const kir_random *t, char *memory) {
    void *buffers[KIR_MAX_BUFFERS];
    ptrdiff_t least = 0;
    kir_random_buffers(t, memory, buffers);
    for (int i = 0; i < t->n_areas; i++) {
        if (t->program->local[i] == 0 && (char *)buffers[i] - memory < least) least = (char *)buffers[i] - memory;
    }
    return (size_t)(63 - least) / 64 * 64;
}

/* The sizes, runtime scalars and bases. The block lies `front` bytes behind where memory begins; element 0 may lie
 * outside of it, so only the kernel may go there. */
static int64_t *make_params(const kir_random *t, const kir_rendering *k, char *memory, size_t front, void **buffers) {
    int64_t *params = calloc(1, k->params_bytes + 8);
    assert_non_null(params);
    size_t count = kir_sizes_count(t->program);
    memcpy(params, t->sizes, count * 8);
    memcpy(params + count, t->scalars, (size_t)t->program->n_scalars * 8);
    kir_random_buffers(t, memory + front, buffers);
    int n = 0;
    for (int i = 0; i < t->n_areas; i++) {
        if (t->program->local[i] > 0) continue;
        params[k->bases_at / 8 + (size_t)n] = (char *)buffers[i] - memory;
        buffers[n++] = memory;
    }
    return params;
}

static bool run(const kir_device *d, const kir_random *t, const kir_rendering *k, const kir_target *target,
                uint64_t seed) {
    char *want = kir_random_memory(t, seed), *got = kir_random_memory(t, seed), *memory;
    void *buffers[KIR_MAX_BUFFERS], *module = load(d, t->program, k);
    kir_random_buffers(t, want, buffers);
    assert_ok(kir_interpret(t->program, &(kir_launch){t->sizes, buffers, t->scalars}));
    size_t front = front_of(t, got);
    memory = alloc(d, front + t->bytes + 64);
    assert_ok(d->driver->copy(d->handle, memory + front, got, t->bytes, 0));
    int64_t *params = make_params(t, k, memory, front, buffers);
    tn_dispatch dispatch = {.buffers = buffers, .params = params};
    uint64_t most = d->caps.max_groups_x > 0 ? (uint64_t)d->caps.max_groups_x : 0;
    kir_count_groups(t->program, t->sizes, target, seed % 2 ? 3 : most, dispatch.groups);
    if (dispatch.groups[0] > 0) assert_ok(d->driver->dispatch(d->handle, module, &dispatch, 1));
    assert_ok(d->driver->sync(d->handle));
    assert_ok(d->driver->copy(d->handle, got, memory + front, t->bytes, 1));
    bool good = kir_random_same(t, want, got, d->driver->title);
    d->driver->free(d->handle, memory);
    d->driver->unload(d->handle, module);
    free(params);
    free(want);
    free(got);
    return good;
}

tn_status kir_device_check(const kir_device *d, const kir_random *t, uint64_t seed, bool index32, bool *good) {
    kir_rendering k;
    kir_target target = kir_device_target(d, index32);
    TRY(kir_render(t->program, &target, &k));
    *good = run(d, t, &k, &target, seed);
    if (!*good) {
        kir_random_print(t, seed);
        if (d->caps.code != TN_CODE_SPIRV) fprintf(stderr, "%s", tn_str_text(&k.text));
    }
    kir_rendering_free(&k);
    return TN_OK;
}

void kir_render_without_memory(const kir_program *p, const kir_target *t) {
    int64_t live = tn_mem_get_stats().live_blocks;
    for (int64_t n = 1;; n++) {
        kir_rendering k;
        tn_mem_fail_at(n);
        tn_status s = kir_render(p, t, &k);
        tn_mem_fail_at(0);
        kir_rendering_free(&k);
        assert_int_equal(tn_mem_get_stats().live_blocks, live);
        if (s == TN_OK) break;
        assert_int_equal(s, TN_ERR_MEMORY);
    }
}
