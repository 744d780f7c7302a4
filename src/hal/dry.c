/* dry.c — dry runs (tn_device_options.dry_run): devices that plan everything and compute nothing, to find out how much
 * memory a program takes.
 *
 * Blocks larger than SMALL have an address but no memory; copies and plans that use one are skipped. Smaller ones have
 * memory, and plans that use only these are computed, so shapes that a program computes from values are right. The pool
 * counts all blocks as usual. If the device's memory is the host's, pages become resident only when they are touched:
 * this file counts the bytes that a real run would touch, in blocks and in mapped files. */
#include <string.h>

#include "base/os.h"
#include "hal/driver.h"
#include "hal/hal.h"

enum { SMALL = 16 << 10 };

struct tn_dry {
    tn_address_ranges ranges;
    pthread_mutex_t lock; /* guards the counts */
    int64_t now, peak;
};

tn_status tn_dry_begin(tn_device *d) {
    if (d->is_engine)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: a dry run is not supported: the engine's library plans its own memory",
                       d->info.id);
    tn_dry *dry = tn_mem_zalloc(1, sizeof *dry);
    if (!dry) return TN_ERR_MEMORY;
    tn_address_ranges_open(&dry->ranges);
    /* addresses that differ from those of the driver's own ranges */
    dry->ranges.next |= (uintptr_t)1 << (sizeof(uintptr_t) > 4 ? 54 : 29);
    pthread_mutex_init(&dry->lock, NULL);
    d->dry = dry;
    return TN_OK;
}

void tn_dry_end(tn_device *d) {
    if (!d->dry) return;
    tn_address_ranges_close(&d->dry->ranges);
    pthread_mutex_destroy(&d->dry->lock);
    tn_mem_free(d->dry);
}

bool tn_dry_has(const tn_device *d, const void *address) {
    size_t offset;
    return d->dry && tn_address_range_find(&d->dry->ranges, address, 1, &offset);
}

tn_status tn_dry_alloc(tn_device *d, size_t bytes, void **address) {
    tn_address_ranges *ranges = &d->dry->ranges;
    if (bytes <= SMALL) return d->driver->alloc(d->handle, bytes, address);
    if (!d->caps.host_visible) return tn_address_range_add(ranges, d->dry, bytes, address);
    *address = tn_address_space(bytes);
    if (!*address) return TN_ERR_MEMORY;
    tn_status s = tn_address_range_add_host(ranges, d->dry, bytes, *address);
    if (s != TN_OK) tn_address_space_free(*address, bytes);
    return s;
}

void tn_dry_free(tn_device *d, void *address) {
    size_t bytes = 0;
    if (!tn_address_range_remove(&d->dry->ranges, address, &bytes))
        d->driver->free(d->handle, address);
    else if (d->caps.host_visible)
        tn_address_space_free(address, bytes);
}

bool tn_dry_is_real(size_t bytes) { return bytes <= SMALL; }

/* ---- bytes that a real run would touch --------------------------------------------------------------------------- */

static void count_touched(tn_dry *dry, int64_t bytes) {
    AUTO_LOCK(&dry->lock);
    dry->now += bytes;
    if (bytes >= 0) dry->peak = tn_max64(dry->peak, dry->now + tn_resident_bytes());
}

tn_status tn_dry_copy(const tn_device *d, void *stream, void *to, const void *from, size_t bytes, int kind) {
    bool from_none = kind != 0 && tn_dry_has(d, from), to_none = kind != 1 && tn_dry_has(d, to);
    if (!from_none && !to_none) return d->driver->copy(stream, to, from, bytes, kind);
    if (kind != 1) return TN_OK;
    memset(to, 0, bytes);
    count_touched(d->dry, 0); /* the host's copy counts */
    return TN_OK;
}

void tn_dry_touch(tn_buffer *b) {
    if (!b->device->dry || b->bytes <= b->touched || b->bytes <= SMALL) return;
    count_touched(b->device->dry, (int64_t)(b->bytes - b->touched));
    b->touched = b->bytes;
}

/* Pages that reading the file has made resident count with the process. */
void tn_dry_touch_pages(tn_buffer *b) {
    if (!tn_buffer_is_borrowed(b) || !b->device->caps.host_visible || b->touched || b->bytes <= SMALL) return;
    b->touched = tn_map_absent(b->address, b->bytes);
    count_touched(b->device->dry, (int64_t)b->touched);
}

void tn_dry_untouch(tn_buffer *b) {
    if (b->touched) count_touched(b->device->dry, -(int64_t)b->touched);
    b->touched = 0;
}

int64_t tn_dry_peak(const tn_device *d) {
    if (!d->dry) return 0;
    count_touched(d->dry, 0);
    AUTO_LOCK(&d->dry->lock);
    return d->dry->peak;
}

tn_status tn_dry_clear(tn_buffer *b) {
    static const char zeros[SMALL];
    return tn_dry_is_real(b->bytes) ? tn_buffer_write(b, 0, zeros, b->bytes) : TN_OK;
}
