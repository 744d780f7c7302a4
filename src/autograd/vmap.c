/* vmap.c — a function of single examples applied to a batch (autograd.h).
 *
 * The function records its result for the first example. Each node between the examples and the result is then made
 * again with the batch as a new first dimension: composed ops by their composition, the others by a rule in the table
 * below. Nodes that depend on no example stay as they are, so broadcasting extends them. The examples are copies with
 * live handles: an evaluation inside the function would compute them, which is refused, because it would use the values
 * of one example for all. */
#include <string.h>

#include "ops/ops_common.h"
#include "plan/passes.h"
#include "plan/plan.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

#include "gen/ops_build.h"

enum { MOST_INPUTS = 128, MOST_NODE_INPUTS = 16 };

typedef struct vmap {
    tn_build build;
    int64_t batch;
    tn_pointer_map of; /* node → place in `made` */
    tn_node **made;    /* with the batch first; NULL: depends on no example */
    tn_node **stack;   /* nodes whose inputs are being made */
    size_t count, capacity, depth, stack_capacity;
} vmap;

static tn_node *batched(const vmap *v, const tn_node *n) {
    int32_t at = n ? tn_map_find(&v->of, n) : -1;
    return at < 0 ? NULL : v->made[at];
}

static tn_status put(vmap *v, const tn_node *n, tn_node *made) {
    TRY(tn_mem_grow(&v->made, &v->capacity, v->count + 1, sizeof *v->made));
    v->made[v->count] = made;
    return tn_map_put(&v->of, n, (int32_t)v->count++);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* The operand with ones between the batch and its own dimensions, for a result of `rank` dimensions and the batch. */
static tn_node *aligned(vmap *v, tn_node *in, int rank) {
    tn_node *x = batched(v, in);
    int64_t shape[TN_MAX_RANK] = {v->batch};
    if (!x) return in;
    if (in->rank >= rank) return x;
    for (int d = 0; d < rank; d++)
        shape[1 + d] = d < rank - in->rank ? 1 : in->shape[d - (rank - in->rank)];
    return tn_b_reshape(&v->build, x, shape, rank + 1);
}

/* The operand repeated for each example if it is the same for all. */
static tn_node *repeated(vmap *v, tn_node *in) {
    int64_t shape[TN_MAX_RANK] = {v->batch};
    if (!in || batched(v, in)) return batched(v, in);
    memcpy(shape + 1, in->shape, in->rank * sizeof *shape);
    return tn_b_expand(&v->build, in, shape, in->rank + 1);
}

/* n's op with other attributes, of the operands that `operand` makes. */
static tn_node *again(vmap *v, const tn_node *n, const int64_t *i, int n_i, bool repeats, int rank) {
    tn_node *in[MOST_NODE_INPUTS];
    tn_attrs attrs = {.n_i = (uint8_t)n_i, .n_f = n->n_f};
    memcpy(attrs.i, i, (size_t)n_i * sizeof *i);
    memcpy(attrs.f, n->f, n->n_f * sizeof *n->f);
    for (int k = 0; k < n->n_in; k++) {
        in[k] = repeats ? repeated(v, n->in[k]) : n->in[k] ? aligned(v, n->in[k], rank) : NULL;
        if (in[k] && (tn_op(n->op)->impl->contiguous >> k & 1)) in[k] = tn_b_row_major(&v->build, in[k]);
    }
    return v->build.status == TN_OK ? tn_b_op(&v->build, n->op, in, n->n_in, &attrs) : NULL;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static tn_node *same(vmap *v, const tn_node *n) { return again(v, n, n->i, n->n_i, false, n->rank); }

/* The op works on the last dimensions, whatever stands before them. */
static tn_node *before_the_last(vmap *v, const tn_node *n) { return again(v, n, n->i, n->n_i, true, n->rank); }

static tn_node *product_rule(vmap *v, const tn_node *n) {
    return tn_b_matmul_batched(&v->build, aligned(v, n->in[0], n->rank), aligned(v, n->in[1], n->rank));
}

static tn_node *shape_rule(vmap *v, const tn_node *n) {
    int64_t shape[TN_MAX_RANK] = {v->batch};
    memcpy(shape + 1, n->shape, n->rank * sizeof *shape);
    tn_node *x = aligned(v, n->in[0], n->op == TN_OP_EXPAND ? n->rank : 0);
    return n->op == TN_OP_EXPAND ? tn_b_expand(&v->build, x, shape, n->rank + 1)
                                 : tn_b_reshape(&v->build, x, shape, n->rank + 1);
}

static tn_node *permute_rule(vmap *v, const tn_node *n) {
    int64_t dims[TN_MAX_RANK] = {0};
    for (int d = 0; d < n->rank; d++)
        dims[1 + d] = n->i[1 + d] + 1;
    return tn_b_permute(&v->build, batched(v, n->in[0]), dims, n->rank + 1);
}

/* The first attribute is a dimension. A number has none, although ops take 0 for it. */
static tn_node *dim_rule(vmap *v, const tn_node *n) {
    int64_t i[TN_MAX_ATTR_INTS];
    if (n->rank == 0) return NULL;
    memcpy(i, n->i, n->n_i * sizeof *i);
    i[0]++;
    return again(v, n, i, n->n_i, true, n->rank);
}

/* Rows that an index chooses. Of an index for each example: those of all examples at once. */
static tn_node *select_rule(vmap *v, const tn_node *n) {
    tn_build *b = &v->build;
    tn_node *x = n->in[0], *index = n->in[1];
    if (!batched(v, index)) return tn_b_index_select(b, batched(v, x), n->i[0] + 1, index);
    if (batched(v, x) || n->i[0] != 0) return NULL;
    int64_t shape[TN_MAX_RANK] = {v->batch};
    memcpy(shape + 1, n->shape, n->rank * sizeof *shape);
    return tn_b_reshape(b, tn_b_index_select(b, x, 0, tn_b_flatten(b, batched(v, index), 0, -1)), shape, n->rank + 1);
}

static tn_node *reduce_rule(vmap *v, const tn_node *n) {
    int64_t i[TN_MAX_ATTR_INTS] = {0}, count = 0;
    for (int d = 0; d < n->in[0]->rank; d++)
        if (tn_is_reduced(n, d)) i[1 + count++] = d + 1;
    bool keeps = n->dtype == n->in[0]->dtype && n->op != TN_OP_ARGMAX && n->op != TN_OP_ARGMIN;
    if (!count) return keeps ? batched(v, n->in[0]) : NULL; /* of a number: no list for that */
    i[0] = count;
    i[1 + count] = n->i[n->n_i - 1];
    return again(v, n, i, (int)count + 2, true, n->rank);
}

static const struct {
    int op;
    tn_node *(*rule)(vmap *v, const tn_node *n);
} rules[] = {
    {TN_OP_VIEW, shape_rule},
    {TN_OP_EXPAND, shape_rule},
    {TN_OP_PERMUTE, permute_rule},
    {TN_OP_SLICE, dim_rule},
    {TN_OP_DETACH, same},
    {TN_OP_PAD, same}, /* its list begins with the last dimension */
    {TN_OP_CAT_FEW, dim_rule},
    {TN_OP_GATHER, dim_rule},
    {TN_OP_INDEX_SELECT, select_rule},
    {TN_OP_CUMSUM, dim_rule},
    {TN_OP_CUMPROD, dim_rule},
    {TN_OP_SUM, reduce_rule},
    {TN_OP_PROD, reduce_rule},
    {TN_OP_AMAX, reduce_rule},
    {TN_OP_AMIN, reduce_rule},
    {TN_OP_ARGMAX, reduce_rule},
    {TN_OP_ARGMIN, reduce_rule},
    {TN_OP_MATMUL_BATCHED, product_rule},
    {TN_OP_ARGSORT_LAST, before_the_last},
    {TN_OP_LINALG_CHOLESKY_LOWER, before_the_last},
    {TN_OP_LINALG_SOLVE_SYSTEMS, before_the_last},
    {TN_OP_LINALG_SOLVE_LOWER, before_the_last},
    {TN_OP_LINALG_SOLVE_UPPER, before_the_last},
    {TN_OP_LINALG_DETERMINANTS, before_the_last},
    {TN_OP_LINALG_LU_PACKED, before_the_last},
    {TN_OP_LINALG_QR_PACKED, before_the_last},
    {TN_OP_LINALG_EIGH_PACKED, before_the_last},
    {TN_OP_LINALG_EIG_PACKED, before_the_last},
    {TN_OP_LINALG_SVD_PACKED, before_the_last},
};

static tn_node *make_batched(vmap *v, const tn_node *n) {
    const tn_op_impl *impl = tn_op(n->op)->impl;
    if (tn_op_has(n, TN_FACT_RANDOM) || n->n_in > MOST_NODE_INPUTS) return NULL;
    if (impl->class_ == TN_ELEMENTWISE) return same(v, n);
    for (size_t i = 0; i < TN_COUNT(rules); i++)
        if (rules[i].op == n->op) return rules[i].rule(v, n);
    return NULL;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

static bool is_composed(const tn_node *n) { return n->op != TN_OP_NONE && tn_op(n->op)->kind == TN_COMPOSED; }

/* The next node that n is made of and that was not visited; NULL: there is none left. */
static tn_status next_input(const vmap *v, tn_node *n, tn_node **next) {
    *next = NULL;
    if (is_composed(n)) {
        bool depends = false; /* otherwise its composition is of no interest */
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k] && tn_map_find(&v->of, n->in[k]) < 0) *next = n->in[k];
            depends |= batched(v, n->in[k]) != NULL;
        }
        if (*next || !depends) return TN_OK;
        TRY(tn_expand_node(n));
        if (tn_map_find(&v->of, n->expansion) < 0) *next = n->expansion;
        return TN_OK;
    }
    for (int k = 0; k < n->n_in && !*next; k++)
        if (n->in[k] && tn_map_find(&v->of, n->in[k]) < 0) *next = n->in[k];
    return TN_OK;
}

static tn_status finish(vmap *v, const tn_node *n) {
    bool depends = false;
    for (int k = 0; k < n->n_in; k++)
        depends |= batched(v, n->in[k]) != NULL;
    if (!depends) return put(v, n, NULL);
    if (is_composed(n)) return put(v, n, batched(v, n->expansion));
    for (int k = -1; k < n->n_in; k++)
        if ((k < 0 ? n : n->in[k] ? n->in[k] : n)->rank == TN_MAX_RANK)
            return tn_fail(TN_ERR_SHAPE, "vmap: %s has %d dimensions; with the batch that is one too many",
                           tn_op(n->op)->name, TN_MAX_RANK);
    bool before = tn_set_grad_enabled((n->flags & TN_NODE_GRAD) != 0);
    tn_node *made = make_batched(v, n);
    tn_set_grad_enabled(before);
    TRY(v->build.status);
    if (made) return put(v, n, made);
    return tn_fail(TN_ERR_UNSUPPORTED,
                   "vmap: %s (%s:%d) cannot be recorded for a batch; call the function once for each example",
                   tn_op(n->op)->name, n->file ? n->file : "?", n->line);
}

static tn_status push(vmap *v, tn_node *n) {
    TRY(tn_mem_grow(&v->stack, &v->stack_capacity, v->depth + 1, sizeof *v->stack));
    v->stack[v->depth++] = n;
    return TN_OK;
}

static tn_status walk(vmap *v, tn_node *result) {
    TRY(tn_map_find(&v->of, result) < 0 ? push(v, result) : TN_OK);
    while (v->depth) {
        tn_node *n = v->stack[v->depth - 1], *next;
        TRY(next_input(v, n, &next));
        if (next) {
            TRY(push(v, next));
            continue;
        }
        v->depth--;
        TRY(finish(v, n));
    }
    return TN_OK;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* Makes the example of input k and notes the whole input, with its batch first. *batch: -1 before the first. */
static tn_status take_input(vmap *v, int k, const tn_tensor *x, int64_t dim, tn_tensor **example) {
    int rank = tn_rank(x);
    TRY(tn_status_of(x));
    if (dim == TN_NOT_MAPPED) {
        *example = (tn_contiguous)(x);
        return tn_status_of(*example);
    }
    if (dim < -rank || dim >= rank)
        return tn_fail(TN_ERR_SHAPE, "vmap: input %d has %d dimensions, so dim %lld cannot be mapped", k, rank,
                       (long long)dim);
    int64_t extent = tn_size(x, (int)dim);
    if (extent < 1 || (v->batch >= 0 && extent != v->batch))
        return tn_fail(TN_ERR_SHAPE, "vmap: input %d has %lld examples, %s", k, (long long)extent,
                       extent < 1 ? "at least 1 is needed" : "but an earlier input has another number");
    v->batch = extent;
    static const int64_t once[TN_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    tn_tensor *all = (tn_movedim)(x, dim, 0);
    *example = (tn_repeat)((tn_select)(all, 0, 0), once, rank - 1); /* a copy */
    TRY(tn_status_of(*example));
    return put(v, tn_tensor_node(*example), tn_tensor_node(all));
}

static tn_status record_batch(vmap *v, tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                              const int64_t *in_dims, int64_t out_dim, tn_tensor **out) {
    tn_tensor *examples[MOST_INPUTS];
    if (!function || !inputs || count < 1 || count > MOST_INPUTS)
        return tn_fail(TN_ERR_ARGUMENT, "vmap: needs a function and 1 to %d inputs, but has %d", MOST_INPUTS, count);
    for (int k = 0; k < count; k++)
        TRY(take_input(v, k, inputs[k], in_dims ? in_dims[k] : 0, &examples[k]));
    if (v->batch < 0) return tn_fail(TN_ERR_ARGUMENT, "vmap: no input is mapped");
    tn_tensor *one = function(ctx, examples);
    TRY(tn_status_of(one));
    for (int k = 0; k < count; k++) {
        const tn_node *n = tn_tensor_node(examples[k]);
        if (batched(v, n) && n->buffer)
            return tn_fail(TN_ERR_STATE, "vmap: the function evaluates a tensor (tn_read, tn_item, tn_eval), which "
                                         "would use the first example's values for all; record operations only");
    }
    TRY(walk(v, tn_tensor_node(one)));
    tn_node *result = repeated(v, tn_tensor_node(one));
    TRY(v->build.status);
    *out = tn_keep((tn_movedim)(tn_tensor_new(tn_node_retain(result)), 0, out_dim));
    return tn_status_of(*out);
}

tn_tensor *(tn_vmap)(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                     const int64_t *in_dims, int64_t out_dim) {
    vmap v = {.batch = -1};
    tn_tensor *out = NULL;
    tn_recorder *r = tn_recorder_here();
    TN_SCOPE;
    if (!r) return tn_keep(tn_tensor_error(TN_ERR_MEMORY));
    size_t recorded = r->count;
    bool before = tn_recorder_begin_gradient(r); /* an unasked flush would evaluate and free what is walked through */
    tn_status status = record_batch(&v, function, ctx, inputs, count, in_dims, out_dim, &out);
    tn_recorder_end_gradient(r, before, recorded);
    if (!out) out = tn_keep(tn_tensor_error(status));
    tn_build_end(&v.build);
    tn_map_free(&v.of);
    tn_mem_free_each(v.made, v.stack);
    return out;
}
