/* address_range.h — device addresses for interfaces that know memory by handles (OpenCL, Vulkan, WebGPU, Metal).
 *
 * The layers above offset addresses: address + n lies n bytes further. A driver whose memory has handles gives each
 * allocation a range of numbers here, and finds handle and offset again from any number in it. No number is ever a
 * valid pointer: who takes one for a pointer crashes at once. */
#ifndef TN_HAL_ADDRESS_RANGE_H
#define TN_HAL_ADDRESS_RANGE_H

#include <pthread.h>

#include "base/base.h"

typedef struct tn_address_range {
    uintptr_t start;
    size_t bytes;
    void *handle;
} tn_address_range;

/* A device's ranges, in ascending order. All functions but open and close may be called from several threads. */
typedef struct tn_address_ranges {
    pthread_mutex_t lock;
    tn_address_range *items;
    size_t count, capacity;
    uintptr_t next; /* no number from here on was given out in this round */
} tn_address_ranges;

void tn_address_ranges_open(tn_address_ranges *s);
void tn_address_ranges_close(tn_address_ranges *s); /* the handles are the driver's to free */

/* Gives `handle` a range of `bytes` numbers (of one when there are none). Starts are multiples of 4096; numbers come
 * back only when all others were used, so that a stale address is found out. Errors: TN_ERR_MEMORY. */
tn_status tn_address_range_add(tn_address_ranges *s, void *handle, size_t bytes, void **address);

/* Of ranges that are memory of the host, which drivers lend: `handle` is that of these bytes. Errors: TN_ERR_MEMORY. */
tn_status tn_address_range_add_host(tn_address_ranges *s, void *handle, size_t bytes, const void *host);

/* The handle whose range holds the `bytes` bytes from `address`, and where in it they begin; NULL if none does. */
void *tn_address_range_find(tn_address_ranges *s, const void *address, size_t bytes, size_t *offset);

/* The same as *handle; TN_ERR_INTERNAL with the device and what the bytes were for when none does. */
tn_status tn_address_range_locate(tn_address_ranges *s, const char *device, const char *role, const void *address,
                                  size_t bytes, void **handle, size_t *offset);

/* Ends the range that starts at `address`; its handle and length, or NULL if there is none. */
void *tn_address_range_remove(tn_address_ranges *s, const void *address, size_t *bytes);

#endif
