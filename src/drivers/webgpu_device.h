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

/* What bindings of a pipeline are like, told by a letter each: w(ritten), r(ead), p(arameters). */
typedef struct wg_layout {
    struct wg_layout *next;
    void *layout, *pipeline_layout;
    char kinds[SLOTS + 1];
} wg_layout;

typedef struct wg_variant {
    struct wg_variant *next;
    wg_layout *layout;
    void *shader, *pipeline; /* the pipeline is made of the shader when it is first launched */
    tn_sharing sharing;
} wg_variant;

typedef struct wg_module {
    char *body; /* the text without its head */
    char name[48];
    int buffer_count;
    uint8_t uses[KIR_MAX_BUFFERS];
    size_t params_bytes, bases_at;
    wg_variant *variants; /* the latest first */
    int variant_count;
} wg_module;

/* A layout with memory in its bindings. */
typedef struct wg_group {
    void *group;
    const wg_layout *layout;
    size_t count;
    struct {
        uint64_t number, from, bytes;
    } at[SLOTS]; /* … of the memory, and what of it */
} wg_group;

#endif
