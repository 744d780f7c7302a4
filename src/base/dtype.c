/* dtype.c — the table of element types: how large each is, what it is called, whether it is floating point. */
#include "base/base.h"

typedef struct dtype_row {
    const char *name;
    size_t size;
    bool is_float;
} dtype_row;

static const dtype_row dtype_table[TN_DTYPE_COUNT] = {
    [TN_F32] = {"f32", 4, true},    [TN_F64] = {"f64", 8, true},  [TN_I32] = {"i32", 4, false},
    [TN_I64] = {"i64", 8, false},   [TN_U32] = {"u32", 4, false}, [TN_U64] = {"u64", 8, false},
    [TN_BOOL] = {"bool", 1, false}, [TN_F16] = {"f16", 2, true},  [TN_BF16] = {"bf16", 2, true},
    [TN_I8] = {"i8", 1, false},     [TN_U8] = {"u8", 1, false},   [TN_I16] = {"i16", 2, false},
    [TN_U16] = {"u16", 2, false},
};

static const dtype_row *find_row(tn_dtype t) {
    static const dtype_row invalid = {"invalid", 0, false};
    return (unsigned)t < TN_DTYPE_COUNT ? &dtype_table[t] : &invalid;
}

size_t tn_dtype_size(tn_dtype t) { return find_row(t)->size; }

const char *tn_dtype_name(tn_dtype t) { return find_row(t)->name; }

bool tn_dtype_is_float(tn_dtype t) { return find_row(t)->is_float; }
