/* engine_support.h — what the tests of engines share: an engine's library, a stand-in for it that fails in a given way,
 * the opened device, and comparisons of what it computed. */
#ifndef TN_ENGINE_SUPPORT_H
#define TN_ENGINE_SUPPORT_H

#include "device_support.h"

#include <math.h>

#include "trunnion/trunnion.h"

typedef struct engine_subject {
    const char *name, *title, *variable; /* of the device, of the library, and the variable that names its file */
    const char *const *files;            /* where it is found by itself; ends with NULL */
} engine_subject;

static char real_library[600]; /* empty: it is not installed */
static tn_device *engine;

/* Finds the library before a test changes the environment. */
static inline void find_real_library(const engine_subject *e) {
    const char *given = getenv(e->variable);
    tn_library_spec library = {e->title, e->variable, e->files, NULL, 0, ""};
    if (given || !tn_library_locate(&library, real_library, sizeof real_library))
        snprintf(real_library, sizeof real_library, "%s", given ? given : "");
}

/* With a stand-in that does so and says that it has this version. */
static inline void assert_engine_refused(const engine_subject *e, const char *does, const char *version,
                                         const char *why) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    tn_device *d;
    o.fallback = TN_FALLBACK_STRICT;
    setenv("FAKE_DOES", does, 1);
    setenv("FAKE_VERSION", version, 1);
    assert_int_equal(tn_device_open(e->name, &o, NULL, &d), TN_ERR_UNAVAILABLE);
    assert_null(d);
    assert_text_has(tn_error(), why);
}

/* Makes the engine the current device; false where its library is not installed. */
static inline bool open_real_engine(const engine_subject *e) {
    if (!real_library[0]) {
        print_message("skipped: %s is not installed\n", e->title);
        return false;
    }
    setenv(e->variable, real_library, 1);
    if (!engine) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        o.fallback = TN_FALLBACK_SILENT;
        assert_ok(tn_device_open(e->name, &o, NULL, &engine));
        tn_device_info info = {.struct_size = sizeof info};
        assert_ok(tn_device_get_info(engine, &info));
        assert_string_equal(info.id, e->name);
        print_message("ran on: %s\n", e->name);
    }
    assert_ok(tn_set_current_device(engine));
    return true;
}

static inline int64_t ran_on_the_host(void) {
    int64_t operations = 0;
    for (int i = 0; i < tn_device_host_count(engine); i++) {
        tn_host_use use = {.struct_size = sizeof use};
        assert_ok(tn_device_host_at(engine, i, &use));
        operations += use.operations;
    }
    return operations;
}

/* At most 64. */
static inline tn_tensor *numbers(int64_t rows, int64_t columns) {
    float v[64];
    for (int64_t i = 0; i < rows * columns; i++)
        v[i] = (float)(i % 7) * 0.25f - 0.5f;
    return tn_from_data(v, (int64_t[]){rows, columns}, 2, TN_F32);
}

static inline void assert_reads(tn_tensor *t, const float *want, int count, float within) {
    float got[64];
    assert_ok(tn_read(t, got, (size_t)count * sizeof *got));
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= within)) fail_msg("element %d is %.9g instead of %.9g", i, got[i], want[i]);
}

#endif
