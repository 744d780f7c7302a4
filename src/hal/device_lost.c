/* device_lost.c — see device_lost.h. */
#include "hal/device_lost.h"

#include <stdio.h>

void tn_device_lost_open(tn_device_lost *l, const char *backend, int index) {
    snprintf(l->id, sizeof l->id, "%s:%d", backend, index);
    atomic_init(&l->lost, false);
    l->first[0] = 0;
    pthread_mutex_init(&l->lock, NULL);
}

void tn_device_lost_close(tn_device_lost *l) { pthread_mutex_destroy(&l->lock); }

void tn_device_lost_note(tn_device_lost *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&l->lock);
    if (!tn_is_lost(l)) vsnprintf(l->first, sizeof l->first, format, args);
    atomic_store_explicit(&l->lost, true, memory_order_release);
    pthread_mutex_unlock(&l->lock);
    va_end(args);
}

tn_status tn_device_lost_check(tn_device_lost *l) {
    if (!tn_is_lost(l)) return TN_OK;
    return tn_fail(TN_ERR_LOST, "%s: the device was lost before (%s); " TN_ADVICE_ANEW, l->id, l->first);
}

tn_status tn_device_lost_with_work(tn_device_lost *l, tn_status s, const char *call) {
    if (s == TN_ERR_LOST) return s;
    tn_device_lost_note(l, "%s: commands that were not taken", call);
    return tn_fail_prefix(TN_ERR_LOST, "the device is lost with what it was to do");
}

static const tn_call_error *call_error_row_of(const tn_call_errors *known, int32_t code) {
    static const tn_call_error unknown = {0, "an error of the driver's own", TN_ERR_DEVICE, TN_ADVICE_UPDATE};
    for (; known; known = known->next)
        for (size_t i = 0; i < known->count; i++)
            if (known->rows[i].code == code) return &known->rows[i];
    return &unknown;
}

tn_status tn_call_check(tn_device_lost *l, const tn_call_errors *known, int32_t code, const char *call,
                        const char *format, ...) {
    char values[160];
    va_list args;
    if (known->positive ? code <= 0 : code >= 0) return TN_OK;
    va_start(args, format);
    vsnprintf(values, sizeof values, format, args);
    va_end(args);
    const tn_call_error *row = call_error_row_of(known, code);
    bool lost = row->status == TN_ERR_LOST;
    if (lost) tn_device_lost_note(l, "%s(%s): %s", call, values, row->name);
    return tn_fail(row->status, "%s: %s(%s): %s (%d)%s; %s", l->id, call, values, row->name, code,
                   lost ? ": the device is lost" : "", row->advice);
}

tn_status tn_hand_out(tn_status s, void *made, void (*end)(void *device, void *made), void *device, void **out) {
    if (s != TN_OK)
        end(device, made);
    else
        *out = made;
    return s;
}

tn_status tn_hand_out_device(tn_status s, void *made, void (*close)(void *device), void **out) {
    if (s != TN_OK)
        close(made);
    else
        *out = made;
    return s;
}
