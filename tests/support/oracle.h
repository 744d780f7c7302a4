/* oracle.h — tensors that do at once what they are told: what lazy programs are compared with.
 *
 * Real shared memory, offsets and strides; no graph, no plan, no fusion. Written from the definitions alone (PyTorch's
 * for views, writes and promotion, kir.h's for the order of float sums), so that a mistake of the planner is not made
 * twice. The few curves (exp, tanh) come from kir_math.h, which defines their bits.
 *
 * Functions that make a tensor return NULL when the operation is not possible; the caller owns what they return. */
#ifndef TN_ORACLE_H
#define TN_ORACLE_H

#include "trunnion/tensor.h"

typedef struct oracle_storage {
    int refs;
    size_t bytes;
    char data[];
} oracle_storage;

typedef struct oracle {
    oracle_storage *storage;
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK], offset; /* in elements */
    bool number;  /* like a Python number: does not raise another operand's dtype within its category … */
    double value; /* … and has all its digits when it meets f64 */
} oracle;

void oracle_free(oracle *x); /* NULL is fine */
int64_t oracle_numel(const oracle *x);
void oracle_read(const oracle *x, void *out); /* row-major elements of x's dtype */
bool oracle_overlaps(const oracle *x);        /* do two elements share a place? */
bool oracle_same_storage(const oracle *x, const oracle *y);
double oracle_greatest(const oracle *x); /* |x|'s greatest element, infinite when one is not finite; 0 for integers */

oracle *oracle_data(const void *data, const int64_t *shape, int rank, tn_dtype dtype);
oracle *oracle_number(double v); /* tn_scalar */
oracle *oracle_full(const int64_t *shape, int rank, double v, tn_dtype dtype);

typedef enum oracle_unary_op {
    ORACLE_NEG,
    ORACLE_ABS,
    ORACLE_SQRT,
    ORACLE_EXP,
    ORACLE_TANH,
    ORACLE_FLOOR,
    ORACLE_NOT
} oracle_unary_op;
typedef enum oracle_binary_op {
    ORACLE_ADD,
    ORACLE_SUB,
    ORACLE_MUL,
    ORACLE_DIV,
    ORACLE_MAX,
    ORACLE_MIN,
    ORACLE_EQ,
    ORACLE_LT,
    ORACLE_LE,
    ORACLE_AND,
    ORACLE_OR,
    ORACLE_XOR
} oracle_binary_op;
oracle *oracle_unary(oracle_unary_op op, const oracle *x);
oracle *oracle_binary(oracle_binary_op op, const oracle *x, const oracle *y);
oracle *oracle_where(const oracle *condition, const oracle *x, const oracle *y);
oracle *oracle_cast(const oracle *x, tn_dtype dtype);

typedef enum oracle_reduce_op { ORACLE_SUM, ORACLE_AMAX, ORACLE_AMIN, ORACLE_ARGMAX } oracle_reduce_op;
oracle *oracle_reduce(oracle_reduce_op op, const oracle *x, const int64_t *dims, int count, bool keepdim);
oracle *oracle_cumsum(const oracle *x, int64_t dim);
oracle *oracle_matmul(const oracle *x, const oracle *y); /* [batch…, m, k] · [batch…, k, n] */

/* Views. */
oracle *oracle_alias(const oracle *x);
oracle *oracle_view(const oracle *x, const int64_t *shape, int rank);
oracle *oracle_reshape(const oracle *x, const int64_t *shape, int rank); /* a copy where no view is possible */
oracle *oracle_permute(const oracle *x, const int64_t *dims, int count);
oracle *oracle_expand(const oracle *x, const int64_t *shape, int rank);
oracle *oracle_slice(const oracle *x, int64_t dim, int64_t start, int64_t stop, int64_t step);
oracle *oracle_select(const oracle *x, int64_t dim, int64_t index);
oracle *oracle_squeeze(const oracle *x, const int64_t *dims, int count);
oracle *oracle_unsqueeze(const oracle *x, int64_t dim);
oracle *oracle_as_strided(const oracle *x, const int64_t *shape, const int64_t *stride, int rank, int64_t offset);

/* Copies. */
oracle *oracle_contiguous(const oracle *x);
oracle *oracle_cat(const oracle *const *parts, int count, int64_t dim);
oracle *oracle_pad(const oracle *x, const int64_t *pads, int count, double value);
oracle *oracle_gather(const oracle *x, int64_t dim, const oracle *index);
oracle *oracle_index_select(const oracle *x, int64_t dim, const oracle *index);
oracle *oracle_index_add(const oracle *x, int64_t dim, const oracle *index, const oracle *src);

/* Writes src, broadcast and cast, into dst's places; src is read whole before the first write. False: does not fit. */
bool oracle_write(oracle *dst, const oracle *src);

#endif
