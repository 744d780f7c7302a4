/* divide.c — layers whose weights are divided among the ranks of a group (tensor parallelism).
 *
 * Every rank initializes the whole weight, from the same random numbers, and keeps its share. So initial weights do not
 * depend on the number of ranks, and a checkpoint of whole weights fits any number. A column-parallel layer returns
 * this rank's features, which a row-parallel layer reads: between the two nothing is exchanged. The exchanges are
 * operations (tn_group_sum_forward, tn_group_sum_backward); the optimizer (optim.c) adds norms of gradients over the
 * ranks. */
#include <stdlib.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

/* ---- shares ------------------------------------------------------------------------------------------------------ */

/* A value as [outer, ranks, inner]: rank r has [:, r, :]. */
typedef struct share {
    int64_t outer, inner, whole[TN_MAX_RANK], part[TN_MAX_RANK];
    int rank;
} share;

/* t: a whole value, or a share of one. */
static share share_of(const tn_division *d, const tn_tensor *t, bool is_part) {
    int64_t size = tn_group_size(d->group);
    share s = {.outer = d->sections, .inner = 1, .rank = tn_rank(t)};
    for (int i = 0; i < s.rank; i++) {
        s.whole[i] = tn_size(t, i) * (is_part && i == d->dim ? size : 1);
        s.part[i] = s.whole[i] / (i == d->dim ? size : 1);
        if (i < d->dim) s.outer *= s.whole[i];
        if (i > d->dim) s.inner *= s.whole[i];
    }
    s.inner *= s.part[d->dim] / d->sections;
    return s;
}

/* Replaces t's value by `value`, as a new state, which requires gradients if t does. */
static tn_status take_place(tn_tensor *t, tn_tensor *value) {
    bool trained = tn_requires_grad(t);
    TRY(tn_status_of(value));
    TRY(tn_make_state(value));
    if (trained) TRY(tn_set_requires_grad(value, true));
    return tn_swap(t, value);
}

/* t must be one of `ranks` shares; 1: the whole. */
static tn_status check_share(const tn_division *d, const tn_tensor *t, int64_t ranks, const char *what) {
    if (tn_size(t, d->dim) * ranks == d->whole && (!d->elements || tn_rank(t) == 1)) return TN_OK;
    return tn_backend_fail(TN_ERR_STATE, "%s: dim %d of a variable has extent %lld; it must be %lld", what, d->dim,
                           (long long)tn_size(t, d->dim), (long long)(d->whole / ranks));
}

/* What is divided: t, or all its elements and zeros. */
static tn_tensor *divisible(const tn_division *d, tn_tensor *t) {
    if (!d->elements) return t;
    return tn_pad(tn_reshape(t, (int64_t[]){-1}, 1), (int64_t[]){0, d->whole - d->elements}, 2, 0);
}

tn_status tn_nn_split(const tn_division *d, tn_tensor *t) {
    TN_SCOPE;
    tn_tensor *value = NULL;
    {
        TN_NO_GRAD;
        const tn_tensor *from = divisible(d, t);
        TRY(check_share(d, from, 1, "tn_module_split without tn_module_join"));
        share s = share_of(d, from, false);
        tn_tensor *all = tn_reshape(from, (int64_t[]){s.outer, tn_group_size(d->group), s.inner}, 3);
        value = tn_contiguous(tn_reshape(tn_select(all, 1, tn_group_rank(d->group)), s.part, s.rank));
    }
    return take_place(t, value);
}

tn_status tn_nn_join(const tn_division *d, tn_tensor *t) {
    static const char what[] = "tn_module_join for the second time";
    int64_t ranks = tn_group_size(d->group);
    TN_SCOPE;
    if (check_share(d, t, ranks, what) != TN_OK) (void)tn_group_all_gather_tensor(d->group, NULL); /* others may wait */
    TRY(check_share(d, t, ranks, what));
    share s = share_of(d, t, true);
    tn_tensor *value = NULL;
    {
        TN_NO_GRAD;
        tn_tensor *part = tn_reshape(t, (int64_t[]){s.outer, s.inner}, 2);
        tn_tensor *all = tn_transpose(tn_group_all_gather_tensor(d->group, part), 0, 1);
        value = tn_contiguous(tn_reshape(tn_contiguous(all), s.whole, s.rank));
        if (d->elements) value = tn_contiguous(tn_reshape(tn_slice(value, 0, 0, d->elements, 1), d->shape, d->rank));
    }
    return take_place(t, value);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

typedef struct parallel_linear {
    tn_tensor *weight, *bias; /* bias may be NULL */
    tn_group *group;
} parallel_linear;

static tn_tensor *column_forward(tn_module *m, const tn_tensor *x) {
    const parallel_linear *s = tn_module_self(m);
    tn_tensor *result = NULL;
    TN_SCOPE;
    result = tn_keep(tn_linear(tn_group_sum_backward(s->group, x), s->weight, s->bias));
    return result;
}

/* The bias is added once, after the sum over ranks. */
static tn_tensor *row_forward(tn_module *m, const tn_tensor *x) {
    const parallel_linear *s = tn_module_self(m);
    tn_tensor *result = NULL;
    TN_SCOPE;
    tn_tensor *sum = tn_group_sum_forward(s->group, tn_linear(x, s->weight, NULL));
    result = tn_keep(s->bias ? tn_add(sum, s->bias) : sum);
    return result;
}

static const tn_module_type column_type = {sizeof(tn_module_type), "column_parallel_linear", column_forward, free};
static const tn_module_type row_type = {sizeof(tn_module_type), "row_parallel_linear", row_forward, free};

/* dim: the dimension of the weight that is divided, 0 by rows (out_features) or 1. */
static tn_module *make_parallel(tn_module *parent, const char *name, const tn_module_type *type, int64_t in_features,
                                int64_t out_features, bool bias, tn_group *group, int dim) {
    if (!group) (void)tn_module_fail(parent, tn_nn_need(NULL, "the group of a parallel linear layer"));
    if (!group || !tn_nn_check_sizes(parent, type->name, name, in_features, out_features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, type, sizeof(parallel_linear));
    if (!m) return NULL;
    parallel_linear *s = tn_module_self(m);
    s->group = group;
    tn_nn_linear_variables(m, in_features, out_features, bias, &s->weight, &s->bias);
    if (s->weight) (void)tn_module_divide(m, "weight", group, dim, 1);
    if (s->bias && dim == 0) (void)tn_module_divide(m, "bias", group, 0, 1);
    return tn_nn_made(m);
}

tn_module *tn_nn_column_parallel_linear(tn_module *parent, const char *name, int64_t in_features, int64_t out_features,
                                        bool bias, tn_group *group) {
    return make_parallel(parent, name, &column_type, in_features, out_features, bias, group, 0);
}

tn_module *tn_nn_row_parallel_linear(tn_module *parent, const char *name, int64_t in_features, int64_t out_features,
                                     bool bias, tn_group *group) {
    return make_parallel(parent, name, &row_type, in_features, out_features, bias, group, 1);
}
