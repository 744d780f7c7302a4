/* cases.h — the inputs that an op names for its tests (tn_op_impl.cases): reading the language, making the values.
 *
 * docs/new-op.md explains the language. The unit tests run every case of every op; `certify` can run the same ones on a
 * device. */
#ifndef TN_CASES_H
#define TN_CASES_H

#include "graph/graph.h"

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
