/* sort.c — the stable order of each row.
 *
 * Every type is first mapped to unsigned keys whose order is the one wanted: the sign is turned, NaN comes last, both
 * zeros are equal, and for descending order all bits are inverted. Then one sort serves all: by insertion if the row is
 * short, else by the bytes of the keys from the lowest to the highest, where each pass is stable and a byte that is the
 * same everywhere costs nothing. */
#include "kern/kern.h"

#include <string.h>

enum {
    SHORT_ROW = 48, /* below that insertion beats clearing and summing the counts */
    RADIX = 256,    /* one byte a pass: its counts and the open ends of its buckets fit the first cache */
    KEY_BYTES = 8,
    PART_ELEMENTS = 4096 /* rows are shared among threads in parts of at least so many elements */
};

typedef enum key_kind { KEY_UNSIGNED, KEY_SIGNED, KEY_FLOAT } key_kind;

/* How a type is read: `infinity` is the bits of +inf; a float whose magnitude is above it is NaN. */
typedef struct key_rule {
    key_kind kind;
    uint64_t infinity;
} key_rule;

static const key_rule rules[TN_PLAIN_DTYPES] = {
    [TN_F32] = {KEY_FLOAT, 0x7f800000}, [TN_F64] = {KEY_FLOAT, 0x7ff0000000000000},
    [TN_F16] = {KEY_FLOAT, 0x7c00},     [TN_BF16] = {KEY_FLOAT, 0x7f80},
    [TN_I32] = {KEY_SIGNED, 0},         [TN_I64] = {KEY_SIGNED, 0},
    [TN_I8] = {KEY_SIGNED, 0},          [TN_I16] = {KEY_SIGNED, 0},
    [TN_U32] = {KEY_UNSIGNED, 0},       [TN_U64] = {KEY_UNSIGNED, 0},
    [TN_BOOL] = {KEY_UNSIGNED, 0},      [TN_U8] = {KEY_UNSIGNED, 0},
    [TN_U16] = {KEY_UNSIGNED, 0},
};

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint64_t bits_at(const char *data, int64_t i, size_t size) {
    const char *from = data + (size_t)i * size;
    uint64_t b64;
    uint32_t b32;
    uint16_t b16;
    if (size == 8) return memcpy(&b64, from, 8), b64;
    if (size == 4) return memcpy(&b32, from, 4), b32;
    if (size == 2) return memcpy(&b16, from, 2), b16;
    return (uint8_t)*from;
}

static uint64_t sort_key_of(uint64_t bits, const key_rule *rule, uint64_t sign) {
    if (rule->kind == KEY_UNSIGNED) return bits;
    if (rule->kind == KEY_SIGNED) return bits ^ sign;
    uint64_t magnitude = bits & (sign - 1);
    if (magnitude > rule->infinity) return sign | (sign - 1);
    if (magnitude == 0) return sign;
    return bits & sign ? (sign - 1) & ~bits : bits | sign;
}

static void make_keys(const tn_argsort_args *x, int64_t row, uint64_t *keys) {
    size_t size = tn_dtype_size(x->dtype);
    const key_rule *rule = &rules[x->dtype];
    const char *data = (const char *)x->data + (size_t)(row * x->length) * size;
    uint64_t sign = (uint64_t)1 << (8 * size - 1), all = sign | (sign - 1);
    uint64_t turned = x->descending ? all : 0;
    for (int64_t i = 0; i < x->length; i++)
        keys[i] = sort_key_of(bits_at(data, i, size), rule, sign) ^ turned;
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

static void sort_by_insertion(const uint64_t *keys, int64_t *order, int64_t length) {
    for (int64_t i = 0; i < length; i++) {
        int64_t j = i;
        for (; j > 0 && keys[order[j - 1]] > keys[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

static void count_bytes(const uint64_t *keys, int64_t length, size_t bytes, int64_t counts[][RADIX]) {
    memset(counts, 0, bytes * sizeof *counts);
    for (int64_t i = 0; i < length; i++) {
        for (size_t byte = 0; byte < bytes; byte++)
            counts[byte][keys[i] >> (8 * byte) & (RADIX - 1)]++;
    }
}

/* One pass: `from` to `to`, by one byte of the keys. NULL for `from`: 0, 1, 2 … */
static void distribute(const uint64_t *keys, int64_t length, size_t byte, const int64_t *counts, const int64_t *from,
                       int64_t *to) {
    int64_t ends[RADIX], end = 0;
    for (int digit = 0; digit < RADIX; digit++) {
        ends[digit] = end;
        end += counts[digit];
    }
    for (int64_t i = 0; i < length; i++) {
        int64_t position = from ? from[i] : i;
        to[ends[keys[position] >> (8 * byte) & (RADIX - 1)]++] = position;
    }
}

static void sort_by_bytes(const uint64_t *keys, int64_t *order, int64_t *other, int64_t length, size_t bytes) {
    int64_t counts[KEY_BYTES][RADIX];
    count_bytes(keys, length, bytes, counts);
    const int64_t *from = NULL;
    int64_t *to = order;
    for (size_t byte = 0; byte < bytes; byte++) {
        if (counts[byte][keys[0] >> (8 * byte) & (RADIX - 1)] == length) continue;
        distribute(keys, length, byte, counts[byte], from, to);
        from = to;
        to = to == order ? other : order;
    }
    if (!from) {
        for (int64_t i = 0; i < length; i++)
            order[i] = i;
    } else if (from == other) {
        memcpy(order, other, (size_t)length * sizeof *order);
    }
}

static void sort_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const tn_argsort_args *x = ctx;
    uint64_t *keys = (uint64_t *)x->workspace + (int64_t)worker * 2 * x->length;
    int64_t *other = (int64_t *)keys + x->length;
    for (int64_t row = begin; row < end; row++) {
        int64_t *order = x->order + row * x->length;
        make_keys(x, row, keys);
        if (x->length < SHORT_ROW) {
            sort_by_insertion(keys, order, x->length);
        } else {
            sort_by_bytes(keys, order, other, x->length, tn_dtype_size(x->dtype));
        }
    }
}

void tn_argsort_rows(const tn_argsort_args *args) {
    if (args->length == 0) return;
    tn_argsort_args x = *args;
    tn_parallel(x.rows, tn_max64(PART_ELEMENTS / x.length, 1), sort_rows, &x);
}
