/* vendor.h — a vendor's library (kern/vendor.h) at work on an open device. */
#ifndef TN_HAL_VENDOR_H
#define TN_HAL_VENDOR_H

#include "hal/hal.h"
#include "kern/vendor.h"

/* A product or a convolution that a library has agreed to compute, and how it will. May outlive its device. */
typedef struct tn_vendor_call {
    const tn_vendor_library *library;
    void *state;
    size_t workspace; /* bytes that a run wants, aligned to 64 */
} tn_vendor_call;

/* The library that was asked for and computes products, or convolutions, on this kind of device; NULL: our kernels. */
const tn_vendor_library *tn_vendor_for(const tn_device *d, bool convolutions);

/* Asks such a library for a product, or where that is NULL for a convolution. *out stays NULL where it cannot; *why is
 * then the rest of a sentence that begins with its name. A library that does not start on this device says so once, as
 * a notice. Errors: TN_ERR_MEMORY, TN_ERR_LOST. */
tn_status tn_vendor_make(tn_device *d, const tn_vendor_library *l, const tn_vendor_product *p,
                         const tn_vendor_conv *conv, tn_vendor_call **out, const char **why);
void tn_vendor_free(tn_vendor_call *c); /* NULL is fine */
/* In the order of this thread's queue. pointers: A, B, C or a convolution's, then the workspace. */
tn_status tn_vendor_run(tn_device *d, const tn_vendor_call *c, void *const *pointers);

/* When the device ends. */
void tn_vendors_close(tn_device *d);

#endif
