/* launch_limits.h — what a device takes of a kernel, where its interface would find out late, or not at all. */
#ifndef TN_HAL_LAUNCH_LIMITS_H
#define TN_HAL_LAUNCH_LIMITS_H

#include "base/base.h"
#include "trunnion/backend.h"

/* The most; 0: no limit. */
typedef struct tn_code_limits {
    uint32_t group[3], group_items, buffers;
    int64_t local_bytes;
    size_t params_bytes;
} tn_code_limits;

/* TN_ERR_UNSUPPORTED, with the limit, for code that is beyond one of them. */
tn_status tn_code_check(const char *device, const tn_code *code, const tn_code_limits *most);
/* The same for a launch, and the workgroups along an axis. */
tn_status tn_groups_check(const char *device, const char *kernel, const tn_dispatch *l, uint32_t most);

#endif
