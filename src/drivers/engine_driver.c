/* engine_driver.c — the drivers of engines: ONNX Runtime, LibTorch.
 *
 * An engine computes whole graphs (plan/engine.h); what a driver has to have besides, memory and kernels, is the cpu's.
 *
 * Loading LibTorch takes a third of a second and a hundred megabytes; a listing must not cost that. So a probe only
 * locates the library. The version stands in the file's name (libonnxruntime.so.1.31.1), or beside the library: in the
 * folder that pip leaves (torch-2.15.0.dist-info) or the file of the unpacked archive (build-version). The library is
 * loaded when the device is opened by name: first in a process of its own, so that one that crashes or hangs there is
 * refused with that as the reason. */
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "drivers/drivers.h"
#include "drivers/probe.h"
#include "vendor/onnxruntime.h"
#include "vendor/torch.h"

#if TRUNNION_WITH_ONNXRUNTIME || TRUNNION_WITH_TORCH

typedef struct engine {
    const tn_library_spec *library;
    tn_status (*load)(void); /* once a process; TN_ERR_UNAVAILABLE with the reason */
    bool (*is_loaded)(void);
    void (*version)(const char *path, char out[32]);
    int oldest_major, oldest_minor;
    const char *why_oldest;
} engine;

/* Copies digits and dots, as far as they go. */
static void copy_version(char out[32], const char *text) {
    size_t n = strspn(text, "0123456789.");
    while (n && text[n - 1] == '.')
        n--;
    snprintf(out, 32, "%.*s", (int)n, text);
}

/* What follows ".so." in the name of the file itself, links followed. */
static void version_in_name(const char *path, char out[32]) {
    char real[PATH_MAX];
    const char *at = realpath(path, real) ? strstr(real, ".so.") : NULL;
    out[0] = 0;
    if (at) copy_version(out, at + 4);
}

/* Cuts the last `levels` parts off a path. */
static void parent(char *path, int levels) {
    for (; levels > 0; levels--) {
        char *slash = strrchr(path, '/');
        if (slash) *slash = 0;
    }
}

/* From the folder that pip leaves: site-packages/NAME-VERSION.dist-info for site-packages/NAME/FOLDER/LIBRARY. */
static bool version_of_pip(const char *library, const char *name, char out[32]) {
    char pattern[PATH_MAX + 64];
    glob_t found;
    snprintf(pattern, PATH_MAX, "%s", library);
    parent(pattern, 3);
    size_t n = strlen(pattern);
    n += (size_t)snprintf(pattern + n, 64, "/%.40s-", name);
    strcat(pattern, "*.dist-info");
    bool there = glob(pattern, 0, NULL, &found) == 0;
    if (there) copy_version(out, found.gl_pathv[0] + n);
    globfree(&found);
    return there;
}

static void find_engine(tn_probe *out, const engine *e) {
    int major = 0, minor = 0;
    char version[32] = "";
    if (!tn_library_locate(e->library, out->library, sizeof out->library)) {
        const char *place = tn_env(e->library->env);
        if (place)
            tn_probe_reason(out, TN_REASON_LIBRARY_NOT_FOUND, e->library->fix, "%s: not found where %s points: %.120s",
                            e->library->title, e->library->env, place);
        else
            tn_probe_reason(out, TN_REASON_LIBRARY_NOT_FOUND, e->library->fix, "%s: not found", e->library->title);
        return;
    }
    e->version(out->library, version);
    int parts = sscanf(version, "%d.%d", &major, &minor);
    if (parts == 2 && (major < e->oldest_major || (major == e->oldest_major && minor < e->oldest_minor))) {
        tn_probe_reason(out, TN_REASON_TOO_OLD, e->library->fix, "%s %s is older than %d.%d, %s", e->library->title,
                        version, e->oldest_major, e->oldest_minor, e->why_oldest);
        return;
    }
    tn_device_info *d = tn_probe_device(out);
    if (d) snprintf(d->name, sizeof d->name, "%s%s%s", e->library->title, version[0] ? " " : "", version);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void try_load(void *ctx, void *out) {
    const engine *e = ctx;
    *(bool *)out = e->load() == TN_OK;
}

static tn_status open_engine(const engine *e, int index, const tn_device_options *options, void **device) {
    enum { SECONDS = 30, MOST_SECONDS = 600 };
    bool works = false;
    const char *why = "";
    int seconds = tn_env_int("TRUNNION_PROBE_SECONDS", 1, MOST_SECONDS, SECONDS);
    if (TN_HAS_PROCESSES && !e->is_loaded() &&
        !tn_child_run(try_load, (void *)(uintptr_t)e, &works, sizeof works, seconds, &why))
        return tn_fail(TN_ERR_UNAVAILABLE, "%s was loaded in a process of its own, to see whether it works, and %s",
                       e->library->title, why);
    TRY(e->load());
    return tn_driver_cpu.open(index, options, device);
}

/* ---- what is the cpu's ------------------------------------------------------------------------------------------- */

static tn_status engine_caps(void *device, tn_caps *out) {
    TRY(tn_driver_cpu.caps(device, out));
    out->exact = false; /* an engine adds in an order of its own */
    return TN_OK;
}

#define ENGINE_DRIVER(id, words, part)                                                                               \
    {                                                                                                                \
        .struct_size = sizeof(tn_driver), .abi = TN_BACKEND_ABI, .name = (id), .title = (words),                     \
        .probe = part##_probe, .watch = part##_watch, .open = part##_open, .only_by_name = true,                     \
        .close = tn_cpu_close, .caps = engine_caps, .alloc = tn_cpu_alloc, .free = tn_cpu_free, .load = tn_cpu_load, \
        .unload = tn_cpu_unload, .launch = tn_cpu_launch, .copy = tn_cpu_copy, .sync = tn_cpu_sync,                  \
        .memory = tn_cpu_memory, .prepare = tn_cpu_prepare,                                                          \
    }

#endif

/* ---- ONNX Runtime ------------------------------------------------------------------------------------------------ */

#if TRUNNION_WITH_ONNXRUNTIME

static void onnxruntime_version(const char *path, char out[32]) {
    version_in_name(path, out);
    if (!out[0]) (void)version_of_pip(path, "onnxruntime", out);
}

static const engine onnxruntime = {
    .library = &tn_ort_library,
    .load = tn_ort_load,
    .is_loaded = tn_ort_is_loaded,
    .version = onnxruntime_version,
    .oldest_major = 1,
    .oldest_minor = 18,
    .why_oldest = "the first with opset 21, in which graphs are handed to it",
};

static void onnxruntime_probe(tn_probe *out) { find_engine(out, &onnxruntime); }
static void onnxruntime_watch(tn_watch_add *add, void *ctx) { tn_probe_watch(onnxruntime.library, add, ctx); }
static tn_status onnxruntime_open(int index, const tn_device_options *options, void **device) {
    return open_engine(&onnxruntime, index, options, device);
}

const tn_driver tn_driver_onnxruntime = ENGINE_DRIVER("engine:onnxruntime", "ONNX Runtime", onnxruntime);

#endif

/* ---- LibTorch ---------------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_TORCH

static bool version_of_archive(const char *library, char out[32]) {
    char path[PATH_MAX + 32];
    AUTO_FREE char *text = NULL;
    size_t size;
    snprintf(path, PATH_MAX, "%s", library);
    parent(path, 2); /* libtorch/lib/libtorch_cpu.so */
    strcat(path, "/build-version");
    if (tn_file_read(path, &text, &size, 256) != TN_OK) return false;
    copy_version(out, text);
    return true;
}

static void torch_version(const char *path, char out[32]) {
    out[0] = 0;
    if (!version_of_pip(path, "torch", out) && !version_of_archive(path, out)) version_in_name(path, out);
}

static const engine torch = {
    .library = &tn_torch_library,
    .load = tn_torch_load,
    .is_loaded = tn_torch_is_loaded,
    .version = torch_version,
    .oldest_major = 2,
    .oldest_minor = 10,
    .why_oldest = "the first with the whole C interface",
};

static void torch_probe(tn_probe *out) { find_engine(out, &torch); }
static void torch_watch(tn_watch_add *add, void *ctx) { tn_probe_watch(torch.library, add, ctx); }

static tn_status torch_open(int index, const tn_device_options *options, void **device) {
    return open_engine(&torch, index, options, device);
}

const tn_driver tn_driver_torch = ENGINE_DRIVER("engine:torch", "LibTorch", torch);

#endif
