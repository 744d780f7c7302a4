/* host_fallback.c — what the host computes for a device that lacks it: a row an operation and reason, as plans are
 * made. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"

enum { MOST = 64 }; /* rows of a device; more kinds of lack than that say no more */

struct tn_host_rows {
    int count;
    tn_host_use rows[MOST];
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* of all devices' rows */

/* The row of an operation and reason, new if it must be; NULL when there is no room. *told: the reason has a row. */
static tn_host_use *host_use_row_of(struct tn_host_rows *t, const char *op, const char *code, bool *told) {
    for (int i = 0; i < t->count; i++) {
        bool same = strcmp(t->rows[i].code, code) == 0;
        *told |= same;
        if (same && strcmp(t->rows[i].op, op) == 0) return &t->rows[i];
    }
    if (t->count == MOST) return NULL;
    tn_host_use *row = &t->rows[t->count++];
    snprintf(row->op, sizeof row->op, "%s", op);
    snprintf(row->code, sizeof row->code, "%s", code);
    return row;
}

bool tn_device_note_host(tn_device *d, const char *op, const char *code, const char *reason) {
    bool told = false;
    pthread_mutex_lock(&guard);
    if (!d->host_rows) d->host_rows = tn_mem_zalloc(1, sizeof *d->host_rows);
    tn_host_use *row = d->host_rows ? host_use_row_of(d->host_rows, op, code, &told) : NULL;
    if (row && row->operations++ == 0) snprintf(row->reason, sizeof row->reason, "%s", reason);
    pthread_mutex_unlock(&guard);
    return !told;
}

int tn_device_host_count(const tn_device *d) {
    if (!d) return 0;
    pthread_mutex_lock(&guard);
    int count = d->host_rows ? d->host_rows->count : 0;
    pthread_mutex_unlock(&guard);
    return count;
}

tn_status tn_device_host_at(const tn_device *d, int i, tn_host_use *out) {
    TRY(tn_need(d, "tn_device_host_at: device"));
    TRY(tn_need(out, "tn_device_host_at: out"));
    tn_host_use row = {.struct_size = 0};
    size_t room = out->struct_size < sizeof row ? out->struct_size : sizeof row;
    if (room < sizeof(size_t)) return tn_fail(TN_ERR_ARGUMENT, "tn_device_host_at: out->struct_size is not set");
    pthread_mutex_lock(&guard);
    int count = d->host_rows ? d->host_rows->count : 0;
    if (i >= 0 && i < count) row = d->host_rows->rows[i];
    pthread_mutex_unlock(&guard);
    if (i < 0 || i >= count)
        return tn_fail(TN_ERR_ARGUMENT, "tn_device_host_at: row %d; there are %d for %s", i, count, d->info.id);
    row.struct_size = room;
    memcpy(out, &row, room);
    return TN_OK;
}
