/* torch.h — LibTorch's stable C interface: loading the library, tensors over our memory, calling aten overloads.
 *
 * All calls go through the dispatcher (torch_call_dispatcher): a stack of 64-bit slots, one for each argument of the
 * overload's schema, keyword-only ones and defaults included; results overwrite the first slots. The dispatcher
 * consumes the arguments and is not told how many there are, so each call is checked against a generated table of
 * signatures (gen/torch_signatures.h). The interface cannot convert Scalar arguments: an op that has one is called
 * through an overload without it, or through a function of its own (tn_torch_add).
 *
 * Source: torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h of PyTorch 2.10 and later. */
#ifndef TN_VENDOR_TORCH_H
#define TN_VENDOR_TORCH_H

#include "base/base.h"

#include "gen/torch_signatures.h"

#define TORCH_NUMBER(number, name, overload, takes, results) number,
typedef enum tn_torch_overload { TORCH_SIGNATURES(TORCH_NUMBER) TORCH_OVERLOADS } tn_torch_overload;

/* takes: a letter an argument: T Tensor, L Tensor[], O Tensor?[], I int, N int[], F float, B bool, P bool[], S str,
 * D dtype, M memory format, Y layout, V device; a small letter: the same or none. */
typedef struct tn_torch_signature {
    const char *name, *overload, *takes;
    int results;
} tn_torch_signature;
extern const tn_torch_signature tn_torch_signatures[TORCH_OVERLOADS];

typedef struct tn_torch_tensor tn_torch_tensor; /* AtenTensorHandle: a reference to one of LibTorch's tensors */

/* Where LibTorch is looked for, and what it must have. */
extern const tn_library_spec tn_torch_library;

/* Loads LibTorch, at the first call, which takes about 0.3 s and 110 MB. Errors: TN_ERR_UNAVAILABLE with why: not
 * found, too old (before 2.10), a missing function. Any thread. */
tn_status tn_torch_load(void);
/* Its release, once loaded: "2.15.0". */
bool tn_torch_is_loaded(void);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* LibTorch's code of a dtype; -1: it has none, or too little is implemented for it. */
int32_t tn_torch_dtype(tn_dtype t);
/* A tensor over memory that the caller keeps. stride: in elements, >= 0. NULL with the error set. */
tn_torch_tensor *tn_torch_over(void *data, const int64_t *shape, const int64_t *stride, int rank, tn_dtype dtype);
/* A contiguous tensor of its own memory, not initialised. */
tn_torch_tensor *tn_torch_empty(const int64_t *shape, int rank, tn_dtype dtype);
void tn_torch_free(tn_torch_tensor *t); /* NULL is fine */
tn_status tn_torch_data(tn_torch_tensor *t, void **data);
/* [rank]; LibTorch's own memory, valid as long as t. */
tn_status tn_torch_shape(tn_torch_tensor *t, const int64_t **shape, const int64_t **stride, int *rank);

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* An argument; `kind` is the signature's letter in capitals, or '-' for none. Lists are copied. */
typedef struct tn_torch_arg {
    char kind;
    int count; /* lists */
    union {
        tn_torch_tensor *tensor;         /* T; stays the caller's */
        tn_torch_tensor *const *tensors; /* L, O */
        const int64_t *ints;             /* N */
        const bool *bools;               /* P */
        const char *text;                /* S */
        int64_t i;                       /* I, B; D, M: LibTorch's code */
        double f;                        /* F */
    };
} tn_torch_arg;

/* Calls an overload. results: as many as its signature has, the caller's to free; NULL: they are freed at once (out=
 * overloads return one of their arguments). Errors: TN_ERR_DEVICE with LibTorch's words; TN_ERR_INTERNAL: arguments
 * that do not fit the signature; TN_ERR_MEMORY. */
tn_status tn_torch_call(tn_torch_overload which, const tn_torch_arg *args, int count, tn_torch_tensor **results);
/* *result = a + scale · b, for floating dtypes: `add` itself takes a Scalar. */
tn_status tn_torch_add(tn_torch_tensor *a, tn_torch_tensor *b, double scale, tn_torch_tensor **result);

/* Once before calls of a thread: gradients off, and as many threads as the library uses. */
void tn_torch_begin(int threads);

#endif
