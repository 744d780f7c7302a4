/* mock_driver.c — see mock_driver.h. */
#include "mock_driver.h"

#include <stdio.h>
#include <string.h>

mock_state mock;

static void mock_probe(tn_probe *out) {
    for (int i = 0; i < mock.devices && i < out->capacity; i++) {
        snprintf(out->devices[i].name, sizeof out->devices[i].name, "mock %d", i);
        out->devices[i].total_memory = (int64_t)1 << 40;
        out->devices[i].software = mock.software;
        out->count++;
    }
    if (mock.devices) return;
    snprintf(out->reason_code, sizeof out->reason_code, "no_device");
    snprintf(out->reason, sizeof out->reason, "the mock has no device now");
    snprintf(out->fix, sizeof out->fix, "give it some");
}

static tn_status mock_open(int index, const tn_device_options *o, void **device) {
    (void)o;
    if (mock.open_fails) return tn_backend_fail(TN_ERR_DEVICE, "mock:%d: mkOpen gives error %d", index, 77);
    mock.live++;
    *device = &mock;
    return TN_OK;
}

static void mock_close(void *device) {
    (void)device;
    mock.live--;
}

static tn_status mock_caps(void *device, tn_caps *out) {
    (void)device;
    out->code = TN_CODE_KIR;
    out->alignment = 64;
    return TN_OK;
}

static tn_status mock_alloc(void *device, size_t bytes, void **address) {
    (void)device;
    char *memory = tn_mem_alloc(bytes + mock.skew);
    *address = memory ? memory + mock.skew : NULL;
    return memory ? TN_OK : TN_ERR_MEMORY;
}

static void mock_free(void *device, void *address) {
    (void)device;
    tn_mem_free((char *)address - mock.skew);
}

static tn_status mock_load(void *device, const tn_code *code, void **module) {
    (void)device;
    if (!code->data || code->format != TN_CODE_KIR) return tn_backend_fail(TN_ERR_INTERNAL, "mock: no program");
    *module = &mock.loads;
    mock.loads++;
    return TN_OK;
}

static void mock_unload(void *device, void *module) {
    (void)device;
    (void)module;
    mock.unloads++;
}

static tn_status mock_launch(void *device, void *module, const tn_launch *l, int64_t count) {
    (void)device;
    (void)module;
    (void)l;
    mock.launches += (int)count;
    return TN_OK;
}

static tn_status mock_copy(void *device, void *dst, const void *src, size_t bytes, int kind) {
    (void)device;
    (void)kind;
    memcpy(dst, src, bytes);
    return TN_OK;
}

static tn_status mock_copy_peer(void *device, void *dst, void *other, const void *src, size_t bytes) {
    (void)device;
    (void)other;
    if (++mock.peer_copies > 1) return TN_ERR_UNSUPPORTED;
    memcpy(dst, src, bytes);
    return TN_OK;
}

static tn_status mock_sync(void *device) {
    (void)device;
    return mock.lost ? tn_backend_fail(TN_ERR_LOST, "mock: the device is gone") : TN_OK;
}

static tn_status mock_memory(void *device, int64_t *total, int64_t *left) {
    (void)device;
    *total = (int64_t)1 << 40;
    *left = mock.free_memory;
    return TN_OK;
}

const tn_driver mock_driver = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "mock",
    .title = "Mock",
    .probe = mock_probe,
    .open = mock_open,
    .close = mock_close,
    .caps = mock_caps,
    .alloc = mock_alloc,
    .free = mock_free,
    .load = mock_load,
    .unload = mock_unload,
    .launch = mock_launch,
    .copy = mock_copy,
    .sync = mock_sync,
    .memory = mock_memory,
    .copy_peer = mock_copy_peer,
};
