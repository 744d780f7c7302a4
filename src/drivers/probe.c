/* probe.c — what the probes of drivers share. */
#include <stdio.h>
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

static void node_path(char *out, size_t size, const char *node) {
    const char *folder = tn_env("TRUNNION_DEV");
    snprintf(out, size, "%s/%s", folder ? folder : "/dev", node);
}

void tn_probe_watch_node(const char *node, tn_watch_add *add, void *ctx) {
    char path[256];
    node_path(path, sizeof path, node);
    add(ctx, path);
}

bool tn_probe_denied(tn_probe *out, const char *node) {
    char path[256];
    node_path(path, sizeof path, node);
    if (access(path, F_OK) != 0 || access(path, R_OK | W_OK) == 0) return false;
    tn_probe_reason(out, TN_REASON_PERMISSION,
                    "add your user to the group that owns it (often render or video) and log in again; "
                    "in a container, pass the device in",
                    "this user has no permission to open %.180s", path);
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

void tn_probe_watch_vulkan(const tn_library_spec *spec, tn_watch_add *add, void *ctx) {
    static const char *const settings[] = {
        "$VK_ICD_FILENAMES", "$VK_DRIVER_FILES",        "$VK_ADD_DRIVER_FILES",
        "/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d",
    };
    static const char *const nodes[] = {"dri", "dri/renderD128", "nvidiactl"};
    tn_probe_watch(spec, add, ctx);
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
