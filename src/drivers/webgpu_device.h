/* webgpu_device.h — what the driver of WebGPU knows of a device, and the open library wgpu-native. */
#ifndef TN_WEBGPU_DEVICE_H
#define TN_WEBGPU_DEVICE_H

#include <pthread.h>

#include "drivers/probe.h"
#include "drivers/webgpu.h"
#include "hal/driver.h"
#include "hal/hal.h"
#include "kir/render.h"

/* ==== the open library ============================================================================================ */

/* The library's functions, by their names without "wgpu". */
typedef struct wg_calls {
#define X(name, result, parameters) result(*name) parameters;
    CALLS(X)
#undef X
} wg_calls;
extern wg_calls tn_wg_gpu;

/* Sets them to the functions that a browser's page provides (webgpu_browser.c). */
void tn_wg_import(void);

/* ==== a device ==================================================================================================== */

enum {
    BATCH = 64,              /* launches in one submission */
    PARAMS_BYTES = 64 << 10, /* of parameters in one submission */
    STAGING_BYTES = 4 << 20, /* what the host reads at once */
    SCRATCH_BYTES = 1 << 20, /* what is copied at once between ranges that WebGPU cannot copy between */
    UPLOAD_BYTES = 64 << 20, /* what the library may hold of the host's writes before they are submitted */
    GROUPS = 256,            /* bind groups kept */
    MOST_VARIANTS = 32,      /* of one kernel */
    WORD = 4,
    SLOTS = KIR_WGSL_BINDINGS
};

typedef struct wg_memory {
    void *buffer;
    uint64_t bytes, number; /* no two ever have the same number */
} wg_memory;

/* What a callback told. */
typedef struct outcome {
    atomic_bool done;
    uint32_t status, type;
    void *object;
    char text[480];
} outcome;

typedef struct wg_device {
    tn_device_lost lost_state;
    char version[96];
    void *instance, *device, *queue;
    wgpu_limits limits;
    uint32_t step; /* between the parameters of two launches */
    tn_bind_limits bind;
    bool software;
    kir_wgsl_answer can;
    tn_word_copier words;
    tn_memory_budget room;
    tn_address_ranges ranges;
    pthread_mutex_t lock; /* of all calls; guards all below but what is told */
    void *encoder, *pass; /* NULL: nothing is being encoded */
    int encoded;          /* launches in the encoder */
    size_t params_used, uploaded;
    char *params_host;
    wg_memory params, staging;
    void *scratch;                /* device address */
    void *patch;                  /* a module */
    const struct wg_variant *set; /* the pass's pipeline */
    struct wg_layout *layouts;
    struct wg_group *groups[GROUPS];
    uint64_t numbers;
    outcome wait;         /* of the call that this thread waits for */
    pthread_mutex_t told; /* guards what callbacks leave: */
    uint32_t error;       /* the first error that no scope caught; 0: none */
    char error_text[480];
} wg_device;

/* ---- waiting, submissions (webgpu.c) ----------------------------------------------------------------------------- */

uint32_t tn_wg_major_version(void);

/* Catches the errors of what is created until … */
void tn_wg_scopes_open(wg_device *d);
/* … this, which fails for the first of them, or when nothing came of it. */
tn_status tn_wg_scopes_close(wg_device *d, const void *made, const char *call, const char *format, ...) TN_PRINTF(4, 5);

tn_status tn_wg_pass_begin(wg_device *d); /* unless one has begun */
tn_status tn_wg_flush(wg_device *d);      /* hands the device all that was encoded */

/* The allocation of `bytes` bytes at a device address, and where in it they begin. */
tn_status tn_wg_locate(wg_device *d, const void *address, size_t bytes, const char *role, wg_memory **memory,
                       size_t *at);

/* ---- kernels and launches (webgpu_launch.c) ---------------------------------------------------------------------- */

tn_status tn_wg_module_new(wg_device *d, const tn_code *code, void **out);
void tn_wg_module_free(void *device, void *module);
tn_status tn_wg_encode(wg_device *d, void *module, const tn_dispatch *l);
void tn_wg_groups_forget(wg_device *d, const wg_memory *m); /* before memory goes: groups that bind it */
void tn_wg_launches_close(wg_device *d);                    /* frees layouts and bind groups */

#endif
