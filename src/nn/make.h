/* make.h — shared by the files of this folder: helpers that make layers. */
#ifndef TN_NN_MAKE_H
#define TN_NN_MAKE_H

#include <stdlib.h>
#include <string.h>

#include "trunnion/distributed.h"
#include "trunnion/optim.h"

#define TRY TN_TRY
/* Before a declaration with an initializer: frees malloc's block, or calls function(&variable), at the scope's end. */
#define AUTO_CALL(function) __attribute__((cleanup(function)))
#define AUTO_NN_FREE AUTO_CALL(tn_nn_free_held)
static inline void tn_nn_free_held(void *variable) {
    void *block;
    memcpy(&block, variable, sizeof block);
    free(block);
}

/* A module with a zeroed self of `size` bytes; NULL on failure, noted on the root. */
tn_module *tn_nn_make(tn_module *parent, const char *name, const tn_module_type *type, size_t size);

/* The end of making: m, or NULL when anything in its tree failed; then m is taken out of it and freed. */
tn_module *tn_nn_made(tn_module *m);

/* Leaves out the variables whose storage an earlier one has (tied weights): each storage stays once, in order. */
tn_status tn_nn_untie(tn_variable *items, int *count);

/* TN_OK when p is there; else TN_ERR_ARGUMENT with "what is NULL". */
tn_status tn_nn_need(const void *p, const char *what);

/* Two extents must be positive; false otherwise, noted on the root, and when the parent is NULL. */
bool tn_nn_check_sizes(tn_module *parent, const char *what, const char *name, int64_t a, int64_t b);

/* Adds weight [out, in] and, with `bias`, bias [out] of a linear layer to m. *made_bias is unchanged without one. */
void tn_nn_linear_variables(tn_module *m, int64_t in_features, int64_t out_features, bool bias, tn_tensor **weight,
                            tn_tensor **made_bias);

/* Overwrites a variable of m with a value (computed with the next run); NULL as m is fine. */
void tn_nn_write(tn_module *m, const char *name, const tn_tensor *value);

/* How a variable is divided among the ranks of a group: along `dim`, each of `sections` equal parts separately
 * (tn_module_divide), or all its elements in order, then zeros (tn_module_shard). group NULL: not divided. */
typedef struct tn_division {
    tn_group *group;
    int dim;
    int64_t sections, whole; /* whole: the extent of that dim on all ranks together */
    int64_t elements;        /* of tn_module_shard: without the zeros; then rank and shape are the undivided tensor's */
    int rank;
    int64_t shape[TN_MAX_RANK];
    bool joined; /* the value is whole now (tn_module_join) */
} tn_division;
tn_division tn_nn_division(const tn_module *m, const tn_tensor *t); /* of a variable below m */
static inline bool tn_nn_is_share(const tn_division *d) { return d->group && !d->joined; }
/* Fails with `status` if a variable below m is this rank's share now; `advice` ends the message. */
tn_status tn_nn_refuse_shares(const tn_module *m, tn_status status, const char *what, const char *advice);
/* divide.c. Replace t's value by this rank's share of it; by the whole, from the shares of all ranks, which all call
 * it. */
tn_status tn_nn_split(const tn_division *d, tn_tensor *t);
tn_status tn_nn_join(const tn_division *d, tn_tensor *t);
/* Calls `change` (one of these) for a divided value, if d is of one, and notes which. NULL as t is fine. */
typedef tn_status tn_division_change(const tn_division *d, tn_tensor *t);
tn_status tn_nn_change_divided(tn_division *d, tn_tensor *const *t, int count, tn_division_change *change);
/* The same for what the optimizer keeps for each divided parameter. */
tn_status tn_optim_change_divided(tn_optimizer *o, tn_division_change *change);
/* Fails if that is this rank's share now. */
tn_status tn_optim_refuse_shares(const tn_optimizer *o, const char *what, const char *advice);

/* tn_minimize with gradients that were computed elsewhere: gradient(ctx, v) is that of parameter v (the handle that
 * its module has), in the scope around it; NULL: v is left alone. also(ctx) records what is written together with the
 * step: it is called when nothing but the run can fail any more. */
tn_status tn_nn_step(tn_optimizer *o, tn_tensor *(*gradient)(void *ctx, const tn_tensor *parameter),
                     tn_status (*also)(void *ctx), void *ctx);

#endif
