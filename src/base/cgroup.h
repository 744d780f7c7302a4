/* cgroup.h — what the control groups of this process leave it (private to base). */
#ifndef TN_BASE_CGROUP_H
#define TN_BASE_CGROUP_H

#include <stdint.h>

typedef struct tn_cgroup_limits {
    double processors;   /* quota in processors, 0 when there is none */
    int64_t memory;      /* bytes, 0 when there is no limit */
    int64_t memory_free; /* bytes that may still be taken; meaningful when `memory` is not 0 */
} tn_cgroup_limits;

/* Reads versions 1 and 2. `root` is put before every path; "" is the real system, tests give a folder. */
tn_cgroup_limits tn_cgroup_read(const char *root);

#endif
