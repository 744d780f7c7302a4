/* one_hot_matmul.c — ONNX: products with a matrix that chooses rows.
 *
 * What frameworks write as a look-up may arrive as a comparison of indices with 0, 1, 2 …, a cast to floats and a
 * product. A value of zeros and ones that says so by where it comes from (`choice`) takes the rows themselves: with the
 * product's bits where all of the other factor's numbers are finite, which is looked at once. An index outside chooses
 * nothing, and a sum of zeros is never −0. */
#include <math.h>

#include "formats/onnx/operator_support.h"

enum {
    MOST_ROWS = 1 << 16,   /* of constants that are read to see whether they count up */
    MOST_NUMBERS = 1 << 22 /* … and whether they are finite */
};

static bool one_hot_is_whole(const tn_tensor *t) { return tn_dtype_of(t) == TN_I32 || tn_dtype_of(t) == TN_I64; }

/* Is input i a constant 0, 1, 2 … along its last dim? */
static bool counts_up(const onnx_call *c, int i) {
    const tn_tensor *t = c->in[i]->tensor;
    int64_t n = tn_numel(t), *list = NULL, count = 0;
    if (c->in[i]->fixed != ONNX_CONSTANT || tn_rank(t) < 1 || n < 2 || n > MOST_ROWS || tn_size(t, -1) != n)
        return false;
    bool up = onnx_read_ints(c, i, &list, &count, MOST_ROWS) == TN_OK && count == n;
    for (int64_t k = 0; up && k < n; k++)
        up = list[k] == k;
    tn_mem_free(list);
    return up;
}

/* Are these indices compared with others, one for each row of the result? */
static bool is_index(const tn_tensor *t, const tn_tensor *result) {
    int rank = tn_rank(result);
    if (!one_hot_is_whole(t) || tn_rank(t) != rank || tn_size(t, -1) != 1) return false;
    for (int d = 0; d < rank - 1; d++)
        if (tn_size(t, d) != tn_size(result, d)) return false;
    return true;
}

tn_status onnx_equal_numbers(onnx_call *c) {
    TRY(onnx_binary(c));
    if (!c->out[0] || c->in_count != 2) return TN_OK;
    for (int i = 0; i < 2; i++) {
        bool index = c->in[i]->kind == ONNX_TENSOR && is_index(c->in[i]->tensor, c->out[0]->tensor);
        if (!index || c->in[i]->fixed == ONNX_CONSTANT || !counts_up(c, 1 - i)) continue;
        onnx_value_release(c->out[0]->choice);
        c->out[0]->choice = onnx_value_retain(c->in[i]);
    }
    return TN_OK;
}

tn_status onnx_cast_choice(onnx_call *c) {
    TRY(onnx_cast(c));
    bool kept = c->in[0]->choice && c->out[0] && tn_dtype_is_float(tn_dtype_of(c->out[0]->tensor));
    if (kept) c->out[0]->choice = onnx_value_retain(c->in[0]->choice);
    return TN_OK;
}

static bool is_finite(const onnx_call *c, int i) {
    enum { UNKNOWN, YES, NO };
    double *list = NULL;
    int64_t count = 0;
    _Atomic uint8_t *known = &c->in[i]->finite;
    if (atomic_load_explicit(known, memory_order_relaxed) == UNKNOWN) {
        bool finite = onnx_read_floats(c, i, &list, &count, MOST_NUMBERS) == TN_OK;
        for (int64_t k = 0; finite && k < count; k++)
            finite = isfinite(list[k]);
        tn_mem_free(list);
        atomic_store_explicit(known, finite ? YES : NO, memory_order_relaxed);
    }
    return atomic_load_explicit(known, memory_order_relaxed) == YES;
}

static bool chooses_rows(const onnx_call *c) {
    if (c->in_count != 2 || !c->in[0] || !c->in[0]->choice || !c->in[1] || c->in[1]->kind != ONNX_TENSOR) return false;
    const tn_tensor *x = c->in[0]->tensor, *y = c->in[1]->tensor;
    return c->in[1]->fixed == ONNX_CONSTANT && tn_rank(y) == 2 && tn_size(y, 0) == tn_size(x, -1) &&
           tn_dtype_of(x) == tn_dtype_of(y) && tn_numel(y) <= MOST_NUMBERS && is_finite(c, 1);
}

tn_status onnx_product(onnx_call *c) {
    if (!chooses_rows(c)) return onnx_binary(c);
    const tn_tensor *table = c->in[1]->tensor, *index = tn_squeeze(c->in[0]->choice->tensor, &(int64_t){-1}, 1);
    double count = (double)tn_size(table, 0);
    tn_tensor *inside = tn_eq(tn_clamp(index, 0, count - 1), index),
              *row = tn_where(inside, index, onnx_number(count, index));
    table =
        tn_pad(tn_add(table, tn_scalar_int(0)), (int64_t[]){0, 0, 0, 1}, 4, 0); /* a row of zeros for what is outside */
    return onnx_put(c, 0, tn_embedding(row, table));
}
