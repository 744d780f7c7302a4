/* check.h — what checks of results share: f64 references of nodes, and the cases that ops name for their tests. */
#ifndef TN_CHECK_H
#define TN_CHECK_H

#include "tensor/graph.h"

/* ==== f64 references ============================================================================================== */

/* Values that are known by node; add inputs with other values than their buffers hold to ask "what if". */
typedef struct tn_reference_values {
    struct tn_reference_entry {
        const tn_node *node;
        double *values; /* numel of them, owned */
    } * entries;
    size_t count, capacity;
} tn_reference_values;

/* The values of n, in row-major order: valid until the next call with `v`. Composed nodes go through their expansion,
 * nodes that have been computed and have forgotten their inputs through what their buffers hold. No rounding to the
 * nodes' float types takes place on the way; integers are exact up to 2^53. */
tn_status tn_reference_of(tn_reference_values *v, tn_node *n, const double **out);
/* Makes `values` (numel doubles, copied) those of n, in place of what it has. */
tn_status tn_reference_set(tn_reference_values *v, const tn_node *n, const double *values);
void tn_reference_free(tn_reference_values *v);

/* count elements of a dtype as doubles; f16, bf16 and whole blocks too. */
void tn_doubles_of(tn_dtype dtype, const void *from, int64_t count, double *to);

/* ==== cases of ops ================================================================================================ */
/* docs/new-op.md explains the language. The unit tests run every case of every op; `certify` can run the same ones on a
 * device. */

enum { TN_CASE_INPUTS = 16 };

/* One input: `[2,3]:i64@0..4~0.1`. */
typedef struct tn_case_input {
    bool absent; /* an optional tensor that is left out */
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK];
    double low, high;
    double away;     /* at least this far from whole numbers */
    double diagonal; /* is added to the diagonals of the last two dimensions */
} tn_case_input;

typedef struct tn_case {
    const char *text; /* as written, `length` characters, for messages */
    int length;
    tn_dtype type; /* of the inputs that name none */
    int n_in;
    tn_case_input in[TN_CASE_INPUTS];
    tn_attrs attrs;
    double relative, absolute, ulps, absolute_ulps; /* tolerance, see tn_case_allows */
    bool gradient, special;
    char error[48]; /* a word that the refusal must hold; "" when the case is a valid one */
} tn_case;

typedef struct tn_case_reader {
    int op;
    const char *at;
    tn_case settings; /* those that hold until they are set anew */
    tn_dtype types[TN_PLAIN_DTYPES];
    int type_count, next_type;
    const char *begin; /* of the case that is being read with each of the types */
} tn_case_reader;

void tn_cases_begin(tn_case_reader *r, int op);
/* The next case into *out; *more is false when there is none. Errors: what is wrong in the text, and where. */
tn_status tn_cases_next(tn_case_reader *r, tn_case *out, bool *more);

/* Values of an input, in row-major order, each exact in its dtype: distinct where the type allows, the same for one
 * seed. Of a type that is quantised in blocks they are those of tn_case_blocks. */
void tn_case_values(const tn_case_input *in, uint64_t seed, double *out);
/* The bytes of an input that is quantised in blocks: any bits, with scales such that values stay within ±2 or so. */
void tn_case_blocks(const tn_case_input *in, uint64_t seed, void *out);
/* Values as elements of a plain dtype; those of tn_case_values are exact in it. */
void tn_case_store(tn_dtype dtype, const double *values, int64_t count, void *out);
/* Is `got` near enough to `want` as a result of this dtype? Relative and absolute tolerances are stated for f32 and
 * shrink with the precision of f64; ulps are the result type's. */
bool tn_case_allows(const tn_case *c, tn_dtype result, double got, double want);

#endif
