/* native_linalg.c — systems, factorizations and eigenvalues: one kernel for all, in which an op is a kind. */
#include "core/native.h"

#include "kern/lapack.h"

static void run_linalg(tn_native *n, void *const *pointers) {
    bool system = n->linalg.k > 0;
    n->linalg.out = pointers[0];
    n->linalg.a = pointers[1];
    n->linalg.b = system ? pointers[2] : NULL;
    n->linalg.workspace = pointers[system ? 3 : 2];
    tn_linalg(&n->linalg);
}

static const struct {
    int op;
    tn_linalg_kind kind;
} kinds[] = {
    {TN_OP_LINALG_CHOLESKY_LOWER, TN_LINALG_CHOLESKY},  {TN_OP_LINALG_SOLVE_SYSTEMS, TN_LINALG_SOLVE},
    {TN_OP_LINALG_SOLVE_LOWER, TN_LINALG_SOLVE_LOWER},  {TN_OP_LINALG_SOLVE_UPPER, TN_LINALG_SOLVE_UPPER},
    {TN_OP_LINALG_DETERMINANTS, TN_LINALG_DETERMINANT}, {TN_OP_LINALG_QR_PACKED, TN_LINALG_QR},
    {TN_OP_LINALG_EIGH_PACKED, TN_LINALG_EIGH},         {TN_OP_LINALG_SVD_PACKED, TN_LINALG_SVD},
};

static tn_linalg_kind linalg_kind_of(int op) {
    size_t i = 0;
    while (kinds[i].op != op)
        i++;
    return kinds[i].kind;
}

/* The LAPACK of a library that was asked for. */
static void choose_library(tn_linalg_args *x, const char **by) {
    const tn_blas *asked = tn_blas_chosen(); /* once: another thread may choose meanwhile */
    const tn_lapack *lapack = tn_lapack_of(asked);
    if (!lapack || !tn_lapack_takes(lapack, x->kind, x->m, x->n, x->k)) return;
    x->lapack = lapack;
    *by = tn_blas_name(asked);
}

/* a, perhaps b: contiguous, with the same batch dimensions. */
tn_status tn_make_linalg(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *v = &g->values[group->lead], *a = &g->values[v->in[0]];
    const tn_node *x = a->node, *b = v->n_in > 1 ? g->values[v->in[1]].node : NULL;
    n->run = run_linalg;
    n->linalg = (tn_linalg_args){.kind = linalg_kind_of(v->node->op),
                                 .dtype = n->dtype,
                                 .batch = 1,
                                 .m = x->shape[x->rank - 2],
                                 .n = x->shape[x->rank - 1],
                                 .k = b ? b->shape[b->rank - 1] : 0};
    for (int d = 0; d < x->rank - 2; d++)
        n->linalg.batch *= x->shape[d];
    if (tn_value_numel(v) == 0) n->linalg.batch = 0;
    choose_library(&n->linalg, &n->by);
    *workspace = tn_linalg_workspace(&n->linalg, tn_threads());
    return TN_OK;
}
