/* discovery.h — inside hal/: the table of backends and what looking at them found. */
#ifndef TN_HAL_DISCOVERY_H
#define TN_HAL_DISCOVERY_H

#include "hal/hal.h"

enum { TN_MOST_BACKENDS = 24, TN_MOST_DEVICES = 16 };

/* The result of probing one backend. */
typedef struct tn_probe_result {
    char code[32], reason[TN_REASON_BYTES], fix[TN_REASON_BYTES], library[256];
    int count;
    tn_device_info devices[TN_MOST_DEVICES];
} tn_probe_result;

/* A file that was named as a driver's and cannot be used. */
typedef struct tn_refusal {
    char name[24], path[256], reason[TN_REASON_BYTES];
    tn_reason_code code;
} tn_refusal;

/* One line of the table. */
typedef struct tn_backend {
    const char *name, *title;
    const tn_driver *driver; /* NULL: left out at build time */
    bool is_cpu, is_engine;
    tn_probe_result *found;    /* discovery.c: the last look; NULL before it */
    uint64_t key;              /* discovery.c: what the last look depended on; 0: it is not to be relied on */
    double probed_at;          /* discovery.c: when a probe last answered, as tn_now; 0: not in this process */
    const tn_refusal *refused; /* device.c: why the file that should hold its driver does not */
} tn_backend;

/* The table in order of preference. The caller holds the registry's lock. */
tn_backend *tn_backends(int *count);
void tn_registry_lock(void);
void tn_registry_unlock(void);

static inline bool tn_backend_by_name(const tn_backend *b) { return b->driver && b->driver->only_by_name; }
static inline bool tn_backend_isolated(const tn_backend *b) { return b->driver && b->driver->isolate; }

/* Brings `found` of `count` backends up to date: from this process's memory, the record on disk, or a probe (always
 * with fresh). The caller holds the registry's lock. Errors: only TN_ERR_MEMORY. */
tn_status tn_discover(tn_backend *b, int count, bool fresh);

/* discovery.c: asks the driver in this process. */
void tn_probe_here(const tn_driver *driver, tn_probe_result *f);

/* Asks the driver in a child process (child.c): start, then finish. */
typedef struct tn_child {
    int pid, fd;
    double deadline;
} tn_child;
void tn_child_start(const tn_driver *driver, tn_child *c);
void tn_child_finish(tn_child *c, tn_probe_result *f); /* always fills f */

#endif
