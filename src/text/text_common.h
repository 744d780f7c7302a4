/* text_common.h — what the files of src/text share: memory that can fail on demand, growing arrays, error returns.
 *
 * This library stands on the public headers of libtrunnion alone, so it has its own few lines for memory; a test can
 * let the n-th allocation fail here as it can below. */
#ifndef TN_TEXT_COMMON_H
#define TN_TEXT_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "trunnion/backend.h"
#include "trunnion/json.h"
#include "trunnion/text.h"

#define TRY TN_TRY

/* As malloc, calloc, realloc and free, but a failure sets the error text (TN_ERR_MEMORY), sizes are checked for
 * overflow, and blocks are counted. */
void *tn_txt_alloc(size_t count, size_t size);
void *tn_txt_zalloc(size_t count, size_t size);
void tn_txt_free(void *p);
void tn_txt_free_list(void *const *blocks, size_t count);
/* Frees each of its arguments, all of which are evaluated first: a struct can follow its members. */
#define tn_txt_free_each(...) \
    tn_txt_free_list((void *const[]){__VA_ARGS__}, sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))

/* Before a declaration with an initializer: frees what the variable holds where its scope ends, on every way out. */
#define AUTO_CALL(function) __attribute__((cleanup(function)))
#define AUTO_TXT_FREE AUTO_CALL(tn_txt_free_held)
#define AUTO_BYTES AUTO_CALL(tn_bytes_free)
#define AUTO_IDS AUTO_CALL(tn_ids_free)
#define AUTO_TXT_JSON AUTO_CALL(tn_txt_json_free_held)
#define AUTO_TXT_TENSOR AUTO_CALL(tn_txt_tensor_free_held)
static inline void tn_txt_free_held(void *variable) {
    void *block;
    memcpy(&block, variable, sizeof block);
    tn_txt_free(block);
}
static inline void tn_txt_json_free_held(tn_json_doc **doc) { tn_json_free(*doc); }
static inline void tn_txt_tensor_free_held(tn_tensor **t) { tn_free(*t); }

/* Makes room for `need` items of `size` bytes in the array that *items points to; at least doubles it. On failure the
 * array stays as it was. */
tn_status tn_txt_grow(void *items, size_t *capacity, size_t need, size_t size);
static inline tn_status tn_txt_reserve(void *items, size_t *capacity, size_t need, size_t size) {
    return need <= *capacity ? TN_OK : tn_txt_grow(items, capacity, need, size);
}

static inline bool tn_txt_ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), k = strlen(ending);
    return n >= k && memcmp(text + n - k, ending, k) == 0;
}

/* sampler.c: the first of the greatest logits; TN_ERR_ARGUMENT if one is not a number, or all are -infinity. */
tn_status tn_txt_most_probable(const float *logits, int32_t count, int32_t *id);

/* The value of a hexadecimal digit; -1 if it is not one. */
static inline int tn_txt_hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* As tn_failed, for errors in files: a message names the file and no line of this library. */
#define tn_txt_failed(...) (tn_at(NULL, 0), (tn_failed)(__VA_ARGS__))

/* AUTO_DEVICE(m->device); is a declaration: a model's tensors live on its device, whichever the caller's thread works
 * on, so that device is the current one from here to the end of the block. */
#define AUTO_DEVICE(device) AUTO_CALL(tn_txt_leave) TN_UNUSED tn_device *device_before = tn_txt_enter(device)
static inline tn_device *tn_txt_enter(tn_device *device) {
    tn_device *before = tn_current_device();
    if (before != device) tn_set_current_device(device);
    return before;
}
static inline void tn_txt_leave(tn_device **before) {
    if (tn_current_device() != *before) tn_set_current_device(*before);
}

/* TN_ERR_ARGUMENT if the object that facts are asked of is NULL, or the struct for them has no size. */
static inline tn_status tn_txt_check_facts(const char *function, const void *object, const void *facts) {
    return object ? tn_result_check(facts, function) : tn_backend_fail(TN_ERR_ARGUMENT, "%s: it is NULL", function);
}

/* seq2seq.c: T5's buckets of distances, [n, n] i64 for queries and keys; half of `count` are for keys after the
 * query. */
tn_tensor *tn_txt_buckets(int64_t n, int64_t count, int64_t most_distance);

/* For tests: the n-th allocation from now on fails (once); 0 switches this off. Blocks not yet freed. */
void tn_txt_fail_at(int64_t n);
int64_t tn_txt_live_blocks(void);

#endif
