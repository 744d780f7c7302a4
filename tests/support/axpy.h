/* axpy.h — what tests of single drivers share: a kernel's parameters, and the same work on any driver whose language
 * the kernel is written in. out[i] = x[i] · scale + y[i] for n elements; bases are bytes. */
#ifndef TN_TESTS_AXPY_H
#define TN_TESTS_AXPY_H

#include <pthread.h>
#include <stddef.h>

#include "test_support.h"
#include "trunnion/backend.h"

typedef struct axpy_params {
    int64_t n;
    float scale;
    int32_t pad;
    int64_t base[3];
} axpy_params;

static inline tn_code axpy_of(tn_code_format form, const char *text, const bool *written) {
    return (tn_code){.format = form,
                     .data = text,
                     .size = strlen(text),
                     .entry = "axpy",
                     .buffer_count = 3,
                     .group = {64, 1, 1},
                     .params_bytes = sizeof(axpy_params),
                     .bases_at = offsetof(axpy_params, base),
                     .written = written};
}

static inline void *alloc_on(const tn_driver *driver, void *device, size_t bytes) {
    void *address = NULL;
    assert_ok(driver->alloc(device, bytes, &address));
    return address;
}

/* Launches the kernel over 1000 numbers, which x and y (it may be x) are filled with, and checks the result, which lies
 * `base` bytes behind `out`. */
static inline void axpy_run(const tn_driver *driver, void *device, void *module, char *x, char *y, char *out,
                            size_t base) {
    enum { N = 1000 };
    float a[N], b[N], c[N];
    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = x == y ? a[i] : 0.25f * (float)i;
    }
    assert_ok(driver->copy(device, x, a, sizeof a, 0));
    if (x != y) assert_ok(driver->copy(device, y, b, sizeof b, 0));
    axpy_params params = {.n = N, .scale = 2.0f, .base = {0, 0, (int64_t)base}};
    void *buffers[] = {x, y, out};
    tn_dispatch d = {.groups = {(N + 63) / 64, 1, 1}, .buffers = buffers, .params = &params};
    assert_ok(driver->dispatch(device, module, &d, 1));
    assert_int_equal(params.base[2], base);
    assert_ok(driver->copy(device, c, out + base, sizeof c, 1));
    for (int i = 0; i < N; i++)
        assert_true(c[i] == a[i] * 2.0f + b[i]);
}

static inline void addresses_are_offset(const tn_driver *driver, void *device) {
    char *a = alloc_on(driver, device, 1000), *b = alloc_on(driver, device, 1 << 20);
    unsigned char in[700], out[700];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7);
    assert_ok(driver->copy(device, a + 13, in, 700, 0));
    assert_ok(driver->copy(device, b + 4099, a + 13, 700, 2));
    assert_ok(driver->copy(device, out, b + 4099 + 350, 350, 1));
    assert_memory_equal(out, in + 350, 350);
    assert_ok(driver->copy(device, NULL, NULL, 0, 0));
    assert_int_equal(driver->copy(device, a + 900, in, 101, 0), TN_ERR_INTERNAL);
    driver->free(device, a);
    assert_int_equal(driver->copy(device, a, in, 1, 0), TN_ERR_INTERNAL);
    assert_text_has(tn_error(), "outside every allocation");
    driver->free(device, b);
}

typedef struct axpy_job {
    const tn_driver *driver;
    void *device, *module;
    pthread_t thread;
    int number;
    bool good;
} axpy_job;

/* Launches the shared kernel again and again with buffers and a scale of this thread's own. */
static inline void *axpy_often(void *ctx) {
    axpy_job *j = ctx;
    void *buffers[3];
    float in[64], out[64];
    bool good = true;
    for (int i = 0; i < 3; i++)
        good = good && j->driver->alloc(j->device, sizeof in, &buffers[i]) == TN_OK;
    for (int i = 0; i < 64; i++)
        in[i] = (float)(i + j->number);
    good = good && j->driver->copy(j->device, buffers[0], in, sizeof in, 0) == TN_OK;
    good = good && j->driver->copy(j->device, buffers[1], in, sizeof in, 0) == TN_OK;
    for (int round = 0; round < 30 && good; round++) {
        axpy_params params = {.n = 64, .scale = (float)(j->number * 100 + round)};
        tn_dispatch d = {.groups = {1, 1, 1}, .buffers = buffers, .params = &params};
        good = j->driver->dispatch(j->device, j->module, &d, 1) == TN_OK &&
               j->driver->copy(j->device, out, buffers[2], sizeof out, 1) == TN_OK;
        for (int i = 0; i < 64; i++)
            good = good && out[i] == in[i] * params.scale + in[i];
    }
    for (int i = 0; i < 3; i++)
        j->driver->free(j->device, buffers[i]);
    j->good = good;
    return NULL;
}

static inline void threads_launch_one_kernel(const tn_driver *driver, void *device, const tn_code *code) {
    axpy_job jobs[4] = {0};
    void *module = NULL;
    assert_ok(driver->load(device, code, &module));
    for (int i = 0; i < 4; i++) {
        jobs[i] = (axpy_job){.driver = driver, .device = device, .module = module, .number = i};
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, axpy_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(jobs[i].thread, NULL);
    for (int i = 0; i < 4; i++)
        assert_true(jobs[i].good);
    driver->unload(device, module);
}

#endif
