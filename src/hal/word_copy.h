/* word_copy.h — bytes on devices that only copy whole words, and not within one allocation: what is left a kernel does
 * (kir_wgsl_patch), which changes parts of words. Copies that the device cannot do go through scratch memory. */
#ifndef TN_HAL_WORD_COPY_H
#define TN_HAL_WORD_COPY_H

#include "hal/address_range.h"
#include "trunnion/backend.h"

typedef struct tn_word_calls {
    /* Whole words, at places that are multiples of a word; between different handles. */
    tn_status (*copy)(void *device, void *from, size_t from_at, void *to, size_t to_at, size_t bytes);
    tn_status (*write)(void *device, void *to, size_t at, const char *host, size_t bytes);
    tn_status (*patch)(void *device, const tn_dispatch *launch);
} tn_word_calls;

typedef struct tn_word_copier {
    const tn_word_calls *calls;
    void *device;
    const char *id;
    tn_address_ranges *ranges;
    void *scratch; /* device address of so many bytes */
    size_t scratch_bytes;
    size_t reach;    /* bytes that one patch changes at most */
    uint32_t groups; /* workgroups along an axis */
} tn_word_copier;

tn_status tn_word_copy(const tn_word_copier *w, char *dst, const void *src, size_t bytes);
tn_status tn_word_write(const tn_word_copier *w, char *dst, const unsigned char *host, size_t bytes);
tn_status tn_word_fill(const tn_word_copier *w, char *dst, uint8_t value, size_t bytes);

#endif
