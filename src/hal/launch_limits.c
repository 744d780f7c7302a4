/* launch_limits.c — see launch_limits.h. */
#include "hal/launch_limits.h"

static uint64_t items_of(const tn_code *code, const tn_code_limits *most) {
    uint64_t items = 1;
    for (int i = 0; i < 3; i++) {
        uint64_t n = code->group[i] ? code->group[i] : 1;
        items = most->group[i] && n > most->group[i] ? UINT32_MAX : items > UINT32_MAX ? items : items * n;
    }
    return items;
}

tn_status tn_code_check(const char *device, const tn_code *code, const tn_code_limits *most) {
    uint64_t items = items_of(code, most);
    if (most->group_items && items > most->group_items)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s takes workgroups of %llu items, and the device runs %u at most",
                       device, code->entry, (unsigned long long)items, most->group_items);
    if (most->buffers && (uint32_t)code->buffer_count > most->buffers)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s binds %d buffers, and the device takes %u at most", device,
                       code->entry, code->buffer_count, most->buffers);
    if (most->local_bytes && code->local_bytes > most->local_bytes)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s takes %lld bytes of workgroup memory, and the device has %lld",
                       device, code->entry, (long long)code->local_bytes, (long long)most->local_bytes);
    if (most->params_bytes && code->params_bytes > most->params_bytes)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s has %zu bytes of parameters, and %zu are the most", device,
                       code->entry, code->params_bytes, most->params_bytes);
    return TN_OK;
}

tn_status tn_groups_check(const char *device, const char *kernel, const tn_dispatch *l, uint32_t most) {
    for (int i = 0; i < 3; i++)
        if (l->groups[i] > most)
            return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: %u workgroups along axis %d, and the device runs %u at most",
                           device, kernel, l->groups[i], i, most);
    return TN_OK;
}
