/* dtype.c — the table of element types: how large each is, what it is called, whether it is floating point; for types
 * that are quantised in blocks, how large a block is. */
#include "base/base.h"

typedef struct dtype_row {
    const char *name;
    size_t size;
    bool is_float;
    int64_t block; /* elements */
} dtype_row;

static const dtype_row dtype_table[TN_DTYPE_COUNT] = {
    [TN_F32] = {"f32", 4, true, 1},
    [TN_F64] = {"f64", 8, true, 1},
    [TN_I32] = {"i32", 4, false, 1},
    [TN_I64] = {"i64", 8, false, 1},
    [TN_U32] = {"u32", 4, false, 1},
    [TN_U64] = {"u64", 8, false, 1},
    [TN_BOOL] = {"bool", 1, false, 1},
    [TN_F16] = {"f16", 2, true, 1},
    [TN_BF16] = {"bf16", 2, true, 1},
    [TN_I8] = {"i8", 1, false, 1},
    [TN_U8] = {"u8", 1, false, 1},
    [TN_I16] = {"i16", 2, false, 1},
    [TN_U16] = {"u16", 2, false, 1},
    [TN_Q4_0] = {"q4_0", 18, false, 32},
    [TN_Q4_1] = {"q4_1", 20, false, 32},
    [TN_Q5_0] = {"q5_0", 22, false, 32},
    [TN_Q5_1] = {"q5_1", 24, false, 32},
    [TN_Q8_0] = {"q8_0", 34, false, 32},
    [TN_Q2_K] = {"q2_k", 84, false, 256},
    [TN_Q3_K] = {"q3_k", 110, false, 256},
    [TN_Q4_K] = {"q4_k", 144, false, 256},
    [TN_Q5_K] = {"q5_k", 176, false, 256},
    [TN_Q6_K] = {"q6_k", 210, false, 256},
    [TN_Q8_X] = {"q8_x", 40, false, 32},
};

static const dtype_row *find_row(tn_dtype t) {
    static const dtype_row invalid = {"invalid", 0, false, 1};
    return (unsigned)t < TN_DTYPE_COUNT ? &dtype_table[t] : &invalid;
}

size_t tn_dtype_size(tn_dtype t) { return find_row(t)->size; }

int64_t tn_dtype_block(tn_dtype t) { return find_row(t)->block; }

size_t tn_dtype_bytes(tn_dtype t, int64_t numel) { return (size_t)(numel / tn_dtype_block(t)) * tn_dtype_size(t); }

const char *tn_dtype_name(tn_dtype t) { return find_row(t)->name; }

bool tn_dtype_is_float(tn_dtype t) { return find_row(t)->is_float; }
