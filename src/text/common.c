/* common.c — memory and buffers of libtrunnion-text.
 *
 * Blocks are malloc's; the counters keep the promise that a failed allocation anywhere leaves a clean error and no
 * leak. */
#include "text/common.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t live_blocks;
static _Atomic int64_t fail_countdown; /* at 1 the next allocation fails; at 0 or below none does */

static bool told_to_fail(void) {
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

/* count · size as a request for malloc, at least 1; SIZE_MAX, which no malloc can serve, when it overflows. */
static size_t text_bytes_of(size_t count, size_t size) {
    if (size != 0 && count > (SIZE_MAX >> 1) / size) return SIZE_MAX;
    return count * size > 0 ? count * size : 1;
}

static tn_status text_out_of_memory(size_t count, size_t size) {
    return tn_backend_fail(TN_ERR_MEMORY, "out of host memory: %zu times %zu bytes could not be allocated", count,
                           size);
}

static void *text_counted(void *p, size_t count, size_t size) {
    if (p) {
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    } else {
        text_out_of_memory(count, size);
    }
    return p;
}

void *tn_txt_alloc(size_t count, size_t size) {
    size_t bytes = text_bytes_of(count, size);
    return text_counted(told_to_fail() || bytes == SIZE_MAX ? NULL : malloc(bytes), count, size);
}

void *tn_txt_zalloc(size_t count, size_t size) {
    size_t bytes = text_bytes_of(count, size);
    return text_counted(told_to_fail() || bytes == SIZE_MAX ? NULL : calloc(1, bytes), count, size);
}

void tn_txt_free(void *p) {
    if (p) atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(p);
}

tn_status tn_txt_grow(void *items, size_t *capacity, size_t need, size_t size) {
    void *old;
    memcpy(&old, items, sizeof old);
    size_t wanted = *capacity < SIZE_MAX / 2 ? *capacity * 2 : SIZE_MAX;
    if (wanted < need) wanted = need;
    if (wanted < 16) wanted = 16;
    size_t bytes = text_bytes_of(wanted, size);
    void *grown = told_to_fail() || bytes == SIZE_MAX ? NULL : realloc(old, bytes);
    if (!grown) return text_out_of_memory(wanted, size);
    if (!old) atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return TN_OK;
}

void tn_txt_fail_at(int64_t n) { atomic_store(&fail_countdown, n); }

int64_t tn_txt_live_blocks(void) { return atomic_load(&live_blocks); }

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

tn_status tn_bytes_append(tn_bytes *b, const void *data, size_t size) {
    if (size >= SIZE_MAX / 2 - b->size) return text_out_of_memory(size, 1);
    TRY(tn_txt_reserve(&b->data, &b->capacity, b->size + size + 1, 1));
    if (size > 0) memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
    return TN_OK;
}

tn_status tn_ids_append(tn_ids *ids, int32_t id) {
    TRY(tn_txt_reserve(&ids->data, &ids->capacity, ids->count + 1, sizeof *ids->data));
    ids->data[ids->count++] = id;
    return TN_OK;
}

void tn_bytes_free(tn_bytes *b) {
    if (!b) return;
    tn_txt_free(b->data);
    *b = (tn_bytes){0};
}

void tn_ids_free(tn_ids *ids) {
    if (!ids) return;
    tn_txt_free(ids->data);
    *ids = (tn_ids){0};
}
