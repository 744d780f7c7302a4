/* device_lost.h — what drivers do when a call of their interface fails: words for it, the memory of a lost device, and
 * giving back what was begun.
 *
 * A device that is lost stays lost: each later call says what happened first. */
#ifndef TN_HAL_DEVICE_LOST_H
#define TN_HAL_DEVICE_LOST_H

#include <pthread.h>

#include "base/base.h"

#define TN_ADVICE_SMALLER "try a smaller batch, a smaller type, or another device"
#define TN_ADVICE_ANEW "open the device anew or use another; the system's log may say why (dmesg)"
#define TN_ADVICE_UPDATE "update the driver; if that does not help, please report this text"

typedef struct tn_device_lost {
    char id[24]; /* the device's, "vulkan:0" */
    atomic_bool lost;
    pthread_mutex_t lock; /* guards first */
    char first[200];      /* what happened */
} tn_device_lost;

void tn_device_lost_open(tn_device_lost *l, const char *backend, int index);
void tn_device_lost_close(tn_device_lost *l);

/* The device is gone; what was noted first stays. */
void tn_device_lost_note(tn_device_lost *l, const char *format, ...) TN_PRINTF(2, 3);
static inline bool tn_is_lost(const tn_device_lost *l) { return atomic_load_explicit(&l->lost, memory_order_acquire); }
/* TN_OK while the device can be talked to, else TN_ERR_LOST and what happened first. */
tn_status tn_device_lost_check(tn_device_lost *l);

/* `call` has not taken the commands that it was given, with status `s`: what was recorded is gone, and others were told
 * that it is under way, so the device counts as lost. */
tn_status tn_device_lost_with_work(tn_device_lost *l, tn_status s, const char *call);

/* A result of the interface that has a meaning. TN_ERR_LOST: the device is gone. */
typedef struct tn_call_error {
    int32_t code;
    const char *name;
    tn_status status;
    const char *advice;
} tn_call_error;

/* The results that an interface gives; `next`: where to look for what is not among the rows. */
typedef struct tn_call_errors {
    const tn_call_error *rows;
    size_t count;
    bool positive; /* errors are numbers above 0, and not below */
    const struct tn_call_errors *next;
} tn_call_errors;

/* TN_OK, or what a call's failure means, with its values: "vulkan:0: vkCall(values): NAME (-2); what to do", and the
 * row's status; a loss is noted. A code that has no row asks for a newer driver. */
tn_status tn_call_check(tn_device_lost *l, const tn_call_errors *known, int32_t code, const char *call,
                        const char *format, ...) TN_PRINTF(5, 6);

/* ---- objects ----------------------------------------------------------------------------------------------------- */

/* What a driver made, whose beginning ended with `s`: handed out as *out, or given back by `end`. Returns s. */
tn_status tn_hand_out(tn_status s, void *made, void (*end)(void *device, void *made), void *device, void **out);
/* The same for a device that a driver opens. */
tn_status tn_hand_out_device(tn_status s, void *made, void (*close)(void *device), void **out);

#endif
