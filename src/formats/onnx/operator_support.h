/* operator_support.h — what the rows of several files share: operands, axes, casts, texts that are moved, order on the
 * host. */
#ifndef TN_ONNX_OPERATOR_SUPPORT_H
#define TN_ONNX_OPERATOR_SUPPORT_H

#include "formats/onnx/onnx.h"

/* ---- operands (operands.c) --------------------------------------------------------------------------------------- */

/* Input i as a tensor; an error where it was left out, is none, or failed. */
tn_status onnx_need(const onnx_call *c, int i, const tn_tensor **out);

/* v as a rank-0 tensor of like's dtype. */
tn_tensor *onnx_number(double v, const tn_tensor *like);

/* axis in [-rank, rank) counted from the front. */
tn_status onnx_axis(const onnx_call *c, int64_t axis, int rank, int *out);

/* Distinct axes from input i where the node has it, else from an attribute; *count is −1 where there are neither. */
tn_status onnx_axes(const onnx_call *c, int i, const char *name, int rank, int64_t axes[TN_MAX_RANK], int *count);

/* As many numbers as a shape may have, from input i where the node has it, else from an attribute; −1: neither. */
tn_status onnx_list(const onnx_call *c, int i, const char *name, int64_t out[2 * TN_MAX_RANK], int *count);

/* Output k with the type of input i, which the operator does not change; t may be that input. */
tn_status onnx_put_like(onnx_call *c, int k, const tn_tensor *t, int i);

/* An attribute that is a list of this kind (ONNX_KIND_FLOATS …); NULL where the node has none or another. */
static inline const onnx_attribute *onnx_find_list(const onnx_call *c, const char *name, int kind) {
    const onnx_attribute *a = onnx_find(c, name);
    return a && a->kind == kind ? a : NULL;
}

/* ---- types (cast.c) ---------------------------------------------------------------------------------------------- */

typedef enum onnx_rounding { ONNX_ROUND_UP, ONNX_ROUND_DOWN, ONNX_ROUND_NEAREST } onnx_rounding;

/* x as `to` would hold it, in the dtype that such values live in (onnx_types). saturate: 8-bit floats have their
 * greatest number for what is too large, else NaN or infinity. mode: for powers of two (FLOAT8E8M0). */
tn_tensor *onnx_cast_to(const tn_tensor *x, onnx_type to, bool saturate, onnx_rounding mode);

tn_status onnx_cast(onnx_call *c); /* Cast; with = 1: CastLike */
tn_status onnx_bit_cast(onnx_call *c);

/* ---- texts (string_tensor.c)
 * --------------------------------------------------------------------------------------------- */

/* For operators that move elements: where an input is a tensor of texts, `row` moves their numbers in its place, and
 * the outputs are the texts that these say. */
tn_status onnx_moved(onnx_call *c, tn_status (*row)(onnx_call *c));

/* Equal numbers for equal texts, in the order of the texts. out: freed with tn_mem_free. */
tn_status onnx_text_ranks(const onnx_text *texts, int64_t count, int64_t **out);

/* Places 0 … count − 1 in order, equal ones as they were. before(a, b) of two places. out: freed with tn_mem_free. */
tn_status onnx_sort(int64_t count, bool (*before)(const void *data, int64_t a, int64_t b), const void *data,
                    int64_t **out);

/* ---- rows whose functions have files of their own ---------------------------------------------------------------- */

tn_status onnx_einsum(onnx_call *c);
/* one_hot_matmul.c */
tn_status onnx_equal_numbers(onnx_call *c), onnx_cast_choice(onnx_call *c), onnx_product(onnx_call *c);

tn_status onnx_gather(onnx_call *c); /* ops_index.c */
tn_status onnx_gather_elements(onnx_call *c);
tn_status onnx_gather_nd(onnx_call *c);
tn_status onnx_scatter_elements(onnx_call *c);
tn_status onnx_scatter_nd(onnx_call *c);
tn_status onnx_tensor_scatter(onnx_call *c);
tn_status onnx_one_hot(onnx_call *c);
tn_status onnx_reverse_sequence(onnx_call *c);
tn_status onnx_non_zero(onnx_call *c);
tn_status onnx_compress(onnx_call *c);
tn_status onnx_unique(onnx_call *c);

#endif
