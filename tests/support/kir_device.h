/* kir_device.h — kernel programs on a driver, one by one, and nothing between: rendered, loaded, dispatched, compared
 * with the interpreter byte by byte. */
#ifndef TN_KIR_DEVICE_H
#define TN_KIR_DEVICE_H

#include "kir/render.h"
#include "kir_random.h"
#include "trunnion/backend.h"

typedef struct kir_device {
    const tn_driver *driver;
    const kir_dialect *dialect;
    void *handle; /* NULL: there is no such device */
    tn_caps caps;
} kir_device;

/* The driver's first device; handle NULL, and a line that says why, when there is none. */
void kir_device_open(const tn_driver *driver, const kir_dialect *dialect, kir_device *out);
void kir_device_close(kir_device *d);

/* What a program is rendered for. */
kir_target kir_device_target(const kir_device *d, bool index32);

/* Renders and runs it. `seed`: of what is in memory; odd ones have many rows of workgroups. What differs is printed,
 * with the program and its text. TN_ERR_UNSUPPORTED: it cannot be rendered for this device. */
tn_status kir_device_check(const kir_device *d, const kir_random *t, uint64_t seed, bool index32, bool *good);

/* Renders it with each allocation failing once: an error each time, and nothing is left behind. */
void kir_render_without_memory(const kir_program *p, const kir_target *t);

#endif
