/* listing.c — looking at backends, and the list that comes of it. */
#include <stdio.h>
#include <string.h>

#include "hal/look.h"

/* Numbers the devices and notes what the driver cannot know. */
static void complete(const tn_backend *b, tn_findings *f) {
    for (int i = 0; i < f->count; i++) {
        tn_device_info *d = &f->devices[i];
        d->struct_size = sizeof *d;
        d->index = i;
        d->usable = tn_backend_usable(b);
        snprintf(d->backend, sizeof d->backend, "%s", b->name);
        if (b->driver == &tn_driver_cpu)
            snprintf(d->id, sizeof d->id, "cpu");
        else
            snprintf(d->id, sizeof d->id, "%s:%d", b->name, i);
    }
}

/* Asks the driver in this process. */
static void probe_here(const tn_backend *b, tn_findings *f) {
    tn_probe p = {.struct_size = sizeof p, .devices = f->devices, .capacity = TN_MOST_DEVICES};
    b->driver->probe(&p);
    f->count = p.count;
    snprintf(f->code, sizeof f->code, "%s", p.count ? "none" : p.reason_code);
    snprintf(f->reason, sizeof f->reason, "%s", p.reason);
    snprintf(f->fix, sizeof f->fix, "%s", p.fix);
    snprintf(f->library, sizeof f->library, "%s", p.library);
}

tn_status tn_look(tn_backend *b, int count, bool fresh) {
    (void)fresh;
    for (int i = 0; i < count; i++) {
        if (!b[i].found) b[i].found = tn_mem_zalloc(1, sizeof *b[i].found);
        if (!b[i].found) return TN_ERR_MEMORY;
        memset(b[i].found, 0, sizeof *b[i].found);
        if (!b[i].driver) {
            snprintf(b[i].found->code, sizeof b[i].found->code, "%s", tn_reason_code_name(TN_REASON_NOT_BUILT));
            continue;
        }
        probe_here(&b[i], b[i].found);
        complete(&b[i], b[i].found);
    }
    return TN_OK;
}
