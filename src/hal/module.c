/* module.c — from a kernel program to a driver's module, and from launches to what the driver is called with.
 *
 * A driver of KIR gets the program and the launches as they are. For all others the program is rendered in their
 * language, compiled or taken from the disk cache, and a launch becomes a dispatch: a number of workgroups, the global
 * buffers, and one struct of parameters (sizes, dials, a base a buffer), of 8-byte words as kir/render.h lays them out.
 * Dispatches are gathered in the caller's room, so that a launch takes no memory. */
#include <stdio.h>
#include <string.h>

#include "hal/code.h"

enum {
    GROUP = 64,         /* items of a workgroup of a plain program, where the device allows as many */
    MOST_HELD = 32,     /* dispatches in one call of the driver */
    HELD_BYTES = 16384, /* of parameters in one call, about */
    WORD = 8
};

bool tn_form_is_rendered(tn_code_form form) { return form == TN_CODE_KIR; }

const char *tn_kernel_name(const kir_program *p, char out[TN_KERNEL_NAME]) {
    snprintf(out, TN_KERNEL_NAME, "k%016llx", (unsigned long long)p->hash);
    return out;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static tn_status load_as_is(tn_device *d, const kir_program *p, tn_loaded *out) {
    tn_code code = {.form = TN_CODE_KIR, .data = p, .size = sizeof *p, .entry = "kernel", .options = ""};
    return d->driver->load(d->handle, &code, &out->handle);
}

tn_status tn_code_load(tn_device *d, const kir_program *p, bool narrow, tn_loaded *out) {
    char name[TN_KERNEL_NAME];
    *out = (tn_loaded){0};
    bool rendered = d->caps.code != TN_CODE_KIR;
    (void)narrow;
    tn_status s = rendered ? tn_fail(TN_ERR_UNSUPPORTED, "no renderer for the kernel language that this driver takes")
                           : load_as_is(d, p, out);
    if (s != TN_OK) out->handle = NULL;
    return s == TN_OK || s == TN_ERR_MEMORY || d->is_cpu
               ? s
               : tn_fail_prefix(s, "%s: kernel %s", d->info.id, tn_kernel_name(p, name));
}

void tn_code_unload(tn_device *d, tn_loaded *m) {
    if (m->handle) d->driver->unload(d->handle, m->handle);
    m->handle = NULL;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The room of a runner: dispatches, their buffers, their parameters, and the sizes of one part. */
static int most_held(const tn_loaded *m) {
    size_t n = m->params_bytes ? HELD_BYTES / m->params_bytes : MOST_HELD;
    return n < 1 ? 1 : n < MOST_HELD ? (int)n : MOST_HELD;
}

static size_t buffers_at(const tn_loaded *m) { return (size_t)most_held(m) * sizeof(tn_dispatch); }
static size_t params_at(const kir_program *p, const tn_loaded *m) {
    return buffers_at(m) + (size_t)most_held(m) * (size_t)p->n_buffers * sizeof(void *);
}

size_t tn_code_room(const kir_program *p, const tn_loaded *m) {
    return params_at(p, m) + (size_t)most_held(m) * m->params_bytes;
}

tn_status tn_runner_flush(tn_runner *r) {
    int n = r->held;
    r->held = 0;
    if (!n) return TN_OK;
    return r->device->driver->dispatch(r->device->handle, r->m->handle, (const tn_dispatch *)r->room, n);
}

tn_status tn_runner_add(void *runner, const tn_launch *part) {
    tn_runner *r = runner;
    const tn_loaded *m = r->m;
    if (r->device->caps.code == TN_CODE_KIR) return r->device->driver->launch(r->device->handle, m->handle, part, 1);
    return TN_ERR_UNSUPPORTED;
}
