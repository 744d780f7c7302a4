/* webgpu_device.h — between the files of the WebGPU driver: webgpu.c has devices, memory and copies,
 * webgpu_kernels.c what is launched. The caller of all functions holds the device's lock. */
#ifndef TN_DRIVERS_WEBGPU_DEVICE_H
#define TN_DRIVERS_WEBGPU_DEVICE_H

#include <pthread.h>

#include "drivers/probe_webgpu.h"
#include "hal/binding.h"
#include "hal/hal.h"
#include "hal/loss.h"
#include "hal/room.h"
#include "hal/span.h"
#include "hal/words.h"
#include "kir/wgsl.h"

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
    tn_loss loss;
    char version[96];
    void *instance, *device, *queue;
    wgpu_limits limits;
    uint32_t step; /* between the parameters of two launches */
    tn_bind_limits bind;
    bool software;
    kir_wgsl_answer can;
    tn_words words;
    tn_room room;
    tn_spans spans;
    pthread_mutex_t lock; /* of all calls; guards all below but what is told */
    void *encoder, *pass; /* NULL: nothing is being encoded */
    int encoded;          /* launches in the encoder */
    size_t params_used, uploaded;
    char *params_host;
    wg_memory params, staging;
    void *scratch; /* device address */
    struct wg_module *patch;
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

/* ---- webgpu.c ---------------------------------------------------------------------------------------------------- */

/* TN_OK, or the failure of a call by the type of error that it left, or by the device's loss. */
tn_status tn_wg_check(wg_device *d, uint32_t type, const char *words, const char *call, const char *values);
/* Catches the errors of what is created until tn_wg_scopes_close, which fails for the first of them, or when nothing
 * came of it (`made` is NULL). */
void tn_wg_scopes_open(wg_device *d);
tn_status tn_wg_scopes_close(wg_device *d, const void *made, const char *call, const char *format, ...) TN_PRINTF(4, 5);
tn_status tn_wg_pass_begin(wg_device *d);
tn_status tn_wg_flush(wg_device *d); /* hands the device all that was encoded */
/* The allocation of `bytes` bytes at a device address, and where in it they begin. */
tn_status tn_wg_locate(wg_device *d, const void *address, size_t bytes, const char *role, wg_memory **memory,
                       size_t *at);

/* ---- webgpu_kernels.c -------------------------------------------------------------------------------------------- */

tn_status tn_wg_module_new(wg_device *d, const tn_code *code, wg_module **out);
void tn_wg_module_free(wg_module *m);
tn_status tn_wg_encode(wg_device *d, wg_module *m, const tn_dispatch *l);
void tn_wg_groups_forget(wg_device *d, const wg_memory *m); /* that memory ends */
void tn_wg_kernels_close(wg_device *d);

#endif
