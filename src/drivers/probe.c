/* probe.c — what the probes of drivers share, and the probes of the engines ONNX Runtime and LibTorch. */
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drivers/drivers.h"
#include "drivers/probe.h"

void tn_probe_reason(tn_probe *out, tn_reason_code code, const char *fix, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(out->reason, sizeof out->reason, format, args);
    va_end(args);
    snprintf(out->reason_code, sizeof out->reason_code, "%s", tn_reason_code_name(code));
    snprintf(out->fix, sizeof out->fix, "%s", fix);
}

void *tn_probe_library(tn_probe *out, const tn_library_spec *spec) {
    tn_reason why;
    if (!tn_library_locate(spec, out->library, sizeof out->library)) out->library[0] = 0;
    void *library = tn_library_open(spec, &why);
    if (!library) tn_probe_reason(out, why.code, why.fix, "%s", why.text);
    return library;
}

tn_device_info *tn_probe_device(tn_probe *out) {
    if (out->count >= out->capacity) return NULL;
    tn_device_info *d = &out->devices[out->count++];
    *d = (tn_device_info){.struct_size = sizeof *d};
    return d;
}

void tn_probe_watch(const tn_library_spec *spec, tn_watch_add *add, void *ctx) {
    char text[256];
    if (spec->env) {
        snprintf(text, sizeof text, "$%s", spec->env);
        add(ctx, text);
    }
    add(ctx, "$LD_LIBRARY_PATH");
    if (tn_library_locate(spec, text, sizeof text)) add(ctx, text);
}

void tn_probe_node(char *out, size_t size, const char *node) {
    const char *folder = tn_env("TRUNNION_DEV");
    snprintf(out, size, "%s/%s", folder ? folder : "/dev", node);
}

void tn_probe_watch_node(const char *node, tn_watch_add *add, void *ctx) {
    char path[256];
    tn_probe_node(path, sizeof path, node);
    add(ctx, path);
}

bool tn_probe_denied(tn_probe *out, const char *node) {
    char path[256];
    tn_probe_node(path, sizeof path, node);
    if (access(path, F_OK) != 0 || access(path, R_OK | W_OK) == 0) return false;
    tn_probe_reason(out, TN_REASON_PERMISSION,
                    "add your user to the group that owns it (often render or video) and log in again; "
                    "in a container, pass the device in",
                    "%.180s is there but this user may not open it", path);
    return true;
}

bool tn_probe_render_denied(tn_probe *out) {
    for (int n = 128; n < 144; n++) {
        char node[32];
        snprintf(node, sizeof node, "dri/renderD%d", n);
        if (tn_probe_denied(out, node)) return true;
    }
    return false;
}

void tn_probe_watch_vulkan(tn_watch_add *add, void *ctx) {
    static const char *const settings[] = {
        "$VK_ICD_FILENAMES", "$VK_DRIVER_FILES",        "$VK_ADD_DRIVER_FILES",
        "/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d",
    };
    static const char *const nodes[] = {"dri", "dri/renderD128", "nvidiactl"};
    for (size_t i = 0; i < TN_COUNT(settings); i++)
        add(ctx, settings[i]);
    for (size_t i = 0; i < TN_COUNT(nodes); i++)
        tn_probe_watch_node(nodes[i], add, ctx);
}

void tn_probe_pci_numbers(char out[16], unsigned domain, unsigned bus, unsigned device, unsigned function) {
    snprintf(out, 16, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff, device & 0x1f, function & 7);
}

void tn_probe_pci(char out[16], const char *text) {
    unsigned domain, bus, device, function;
    out[0] = 0;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4)
        tn_probe_pci_numbers(out, domain, bus, device, function);
}

void tn_probe_uuid(char out[40], const unsigned char bytes[16]) {
    unsigned any = 0;
    for (int i = 0; i < 16; i++) {
        any |= bytes[i];
        snprintf(out + (size_t)i * 2, 3, "%02x", bytes[i]);
    }
    if (!any) out[0] = 0;
}

/* ==== engines ===================================================================================================== */
/* Loading LibTorch takes a third of a second and a hundred megabytes; a listing must not cost that. The version
 * stands in the file's name (libonnxruntime.so.1.31.1), or beside the library: in the folder that pip leaves
 * (torch-2.15.0.dist-info) or the file of the unpacked archive (build-version). Engines are used only when asked for
 * by name, and cannot be used yet: there is no driver. */

#if TRUNNION_WITH_ONNXRUNTIME || TRUNNION_WITH_TORCH

/* Not "pip install": nothing would come of it. */
static const char NO_DRIVER[] =
    "none: this version of Trunnion has no driver for it yet, installing it changes nothing";

typedef struct engine {
    tn_library_spec library;
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

static void find_engine(tn_probe *out, const engine *e) {
    int major = 0, minor = 0;
    char version[32] = "";
    if (!tn_library_locate(&e->library, out->library, sizeof out->library)) {
        const char *place = tn_env(e->library.env);
        if (place)
            tn_probe_reason(out, TN_REASON_LIBRARY_NOT_FOUND, e->library.fix, "%s: not found where %s points: %.120s",
                            e->library.title, e->library.env, place);
        else
            tn_probe_reason(out, TN_REASON_LIBRARY_NOT_FOUND, e->library.fix, "%s: not found", e->library.title);
        return;
    }
    e->version(out->library, version);
    int parts = sscanf(version, "%d.%d", &major, &minor);
    if (parts == 2 && (major < e->oldest_major || (major == e->oldest_major && minor < e->oldest_minor))) {
        tn_probe_reason(out, TN_REASON_TOO_OLD, e->library.fix, "%s %s is older than %d.%d, %s", e->library.title,
                        version, e->oldest_major, e->oldest_minor, e->why_oldest);
        return;
    }
    tn_device_info *d = tn_probe_device(out);
    if (d) snprintf(d->name, sizeof d->name, "%s%s%s", e->library.title, version[0] ? " " : "", version);
}

#endif

/* ---- ONNX Runtime ------------------------------------------------------------------------------------------------ */

#if TRUNNION_WITH_ONNXRUNTIME

static const char *const onnxruntime_names[] = {
    "libonnxruntime.so.1",
    "libonnxruntime.so",
    "libonnxruntime.so.1.*",
    "libonnxruntime.dylib",
    "site-packages/onnxruntime/capi/libonnxruntime.so.1.*",
    "site-packages/onnxruntime/capi/libonnxruntime.*.dylib",
    "/opt/onnxruntime*/lib/libonnxruntime.so",
    NULL,
};

static const engine onnxruntime = {
    .library = {"ONNX Runtime", "TRUNNION_ONNXRUNTIME_LIB", onnxruntime_names, NULL, 0, NO_DRIVER},
    .version = version_in_name,
    .oldest_major = 1,
    .oldest_minor = 8,
    .why_oldest = "the first with all the functions that are needed",
};

static void onnxruntime_probe(tn_probe *out) { find_engine(out, &onnxruntime); }
static void onnxruntime_watch(tn_watch_add *add, void *ctx) { tn_probe_watch(&onnxruntime.library, add, ctx); }

const tn_driver tn_driver_onnxruntime = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "engine:onnxruntime",
    .title = "ONNX Runtime",
    .probe = onnxruntime_probe,
    .watch = onnxruntime_watch,
    .only_by_name = true,
};

#endif

/* ---- LibTorch ---------------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_TORCH

/* Cuts the last `levels` parts off a path. */
static void parent(char *path, int levels) {
    for (; levels > 0; levels--) {
        char *slash = strrchr(path, '/');
        if (slash) *slash = 0;
    }
}

static bool version_of_pip(const char *library, char out[32]) {
    static const char before[] = "/torch-", after[] = "*.dist-info";
    char pattern[PATH_MAX + 32];
    glob_t found;
    snprintf(pattern, PATH_MAX, "%s", library);
    parent(pattern, 3); /* …/site-packages/torch/lib/libtorch_cpu.so */
    size_t n = strlen(pattern) + strlen(before);
    strcat(strcat(pattern, before), after);
    bool there = glob(pattern, 0, NULL, &found) == 0;
    if (there) copy_version(out, found.gl_pathv[0] + n);
    globfree(&found);
    return there;
}

static bool version_of_archive(const char *library, char out[32]) {
    char path[PATH_MAX + 32];
    char *text;
    size_t size;
    snprintf(path, PATH_MAX, "%s", library);
    parent(path, 2); /* libtorch/lib/libtorch_cpu.so */
    strcat(path, "/build-version");
    if (tn_file_read(path, &text, &size, 256) != TN_OK) return false;
    copy_version(out, text);
    tn_mem_free(text);
    return true;
}

static void torch_version(const char *path, char out[32]) {
    out[0] = 0;
    if (!version_of_pip(path, out) && !version_of_archive(path, out)) version_in_name(path, out);
}

static const char *const torch_names[] = {
    "libtorch_cpu.so",
    "libtorch_cpu.so.*",
    "libtorch_cpu.dylib",
    "site-packages/torch/lib/libtorch_cpu.so",
    "site-packages/torch/lib/libtorch_cpu.dylib",
    "~/.pyenv/versions/*/lib/python3*/site-packages/torch/lib/libtorch_cpu.so",
    "/opt/libtorch/lib/libtorch_cpu.so",
    "/usr/local/libtorch/lib/libtorch_cpu.so",
    "~/libtorch/lib/libtorch_cpu.so",
    NULL,
};

static const engine torch = {
    .library = {"LibTorch", "TRUNNION_TORCH_LIB", torch_names, NULL, 0, NO_DRIVER},
    .version = torch_version,
    .oldest_major = 2,
    .oldest_minor = 10,
    .why_oldest = "the first with the whole C interface",
};

static void torch_probe(tn_probe *out) { find_engine(out, &torch); }
static void torch_watch(tn_watch_add *add, void *ctx) { tn_probe_watch(&torch.library, add, ctx); }

const tn_driver tn_driver_torch = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "engine:torch",
    .title = "LibTorch",
    .probe = torch_probe,
    .watch = torch_watch,
    .only_by_name = true,
};

#endif
