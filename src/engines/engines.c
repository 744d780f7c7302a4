/* engines.c — the lists in which plan/ finds the engine of a device by its backend's name, and what a program sets of
 * an engine (trunnion/engine.h). */
#include "engines/engines.h"

#include <stdio.h>
#include <string.h>

#include "trunnion/engine.h"
#include "vendor/onnxruntime.h"

const tn_engine *const tn_engines[] = {
#if TRUNNION_WITH_ONNXRUNTIME
    &tn_engine_onnxruntime,
#endif
    NULL,
};

const tn_op_engine *const tn_op_engines[] = {
#if TRUNNION_WITH_TORCH
    &tn_op_engine_torch,
#endif
    NULL,
};

static tn_status check_engine(const tn_device *d, const char *function) {
    if (d && !strcmp(d->info.backend, "engine:onnxruntime")) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: %s is not engine:onnxruntime", function, d ? d->info.id : "NULL");
}

#if TRUNNION_WITH_ONNXRUNTIME

tn_status tn_engine_set_options(tn_device *engine, const tn_engine_options *options) {
    static const tn_ort_level levels[] = {[TN_ENGINE_LEVEL_ALL] = TN_ORT_ALL,
                                          [TN_ENGINE_LEVEL_NONE] = TN_ORT_NONE,
                                          [TN_ENGINE_LEVEL_BASIC] = TN_ORT_BASIC,
                                          [TN_ENGINE_LEVEL_EXTENDED] = TN_ORT_EXTENDED};
    enum { MOST_THREADS = 1024 };
    tn_engine_options o = TN_ENGINE_DEFAULTS;
    tn_ort_options set = {0};
    TRY(tn_options_read(&o, options, "tn_engine_set_options", "tn_engine_options o = TN_ENGINE_DEFAULTS"));
    if ((unsigned)o.level >= TN_COUNT(levels))
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_engine_set_options: level is %d; it must be one of TN_ENGINE_LEVEL_ALL, "
                       "TN_ENGINE_LEVEL_NONE, TN_ENGINE_LEVEL_BASIC, TN_ENGINE_LEVEL_EXTENDED",
                       (int)o.level);
    if (o.threads < 0 || o.threads > MOST_THREADS)
        return tn_fail(TN_ERR_ARGUMENT, "tn_engine_set_options: threads is %d; it must be 0 to %d", o.threads,
                       MOST_THREADS);
    TRY(check_engine(engine, "tn_engine_set_options"));
    const char *provider = o.provider ? o.provider : tn_env("TRUNNION_ONNXRUNTIME_PROVIDER");
    if (provider && strlen(provider) >= sizeof set.provider)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_engine_set_options: the provider's name has %zu bytes, at most %zu are allowed",
                       strlen(provider), sizeof set.provider - 1);
    snprintf(set.provider, sizeof set.provider, "%s", provider ? provider : "");
    set.level = levels[o.level];
    set.threads = o.threads;
    tn_ort_set_device_options(&set);
    tn_clear_plans();
    return TN_OK;
}

int tn_engine_provider_count(const tn_device *engine) {
    int count = 0;
    while (tn_engine_provider_at(engine, count))
        count++;
    return count;
}

const char *tn_engine_provider_at(const tn_device *engine, int i) {
    return check_engine(engine, "tn_engine_provider_at") == TN_OK ? tn_ort_provider_at(i) : NULL;
}

#else

tn_status tn_engine_set_options(tn_device *engine, TN_UNUSED const tn_engine_options *options) {
    return check_engine(engine, "tn_engine_set_options");
}

int tn_engine_provider_count(TN_UNUSED const tn_device *engine) { return 0; }

const char *tn_engine_provider_at(TN_UNUSED const tn_device *engine, TN_UNUSED int i) { return NULL; }

#endif
