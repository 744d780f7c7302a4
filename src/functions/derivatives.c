/* derivatives.c — Jacobians, Hessians and products of the Jacobian with a vector, by reverse-mode differentiation. */
#include "functions/common.h"

enum { MOST_INPUTS = 128, ROWS_AT_ONCE = 64 /* of a Jacobian, evaluated by one plan */ };

/* A function and its value at inputs that require gradients: copies, unless the results are to be differentiated. */
typedef struct point {
    tn_tensor *x[MOST_INPUTS], *y;
    int count;
    bool create_graph;
} point;

static tn_status fail(tn_status code, const char *words) { return tn_status_of(tn_failed(code, "%s", words)); }

static tn_status evaluate(point *p, tn_differentiable *function, void *ctx, tn_tensor *const *inputs) {
    if (!function || !inputs || p->count < 1 || p->count > MOST_INPUTS)
        return tn_status_of(tn_failed(TN_ERR_ARGUMENT, "derivatives: needs a function and 1 to %d inputs, but has %d",
                                      MOST_INPUTS, p->count));
    for (int i = 0; i < p->count; i++) {
        tn_status s = tn_status_of(inputs[i]);
        if (s != TN_OK) return s;
        bool same = p->create_graph && tn_requires_grad(inputs[i]);
        p->x[i] = same ? inputs[i] : tn_clone(tn_detach(inputs[i]));
        if (!same) s = tn_set_requires_grad(p->x[i], true);
        if (s != TN_OK) return s;
    }
    p->y = function(ctx, p->x);
    tn_status s = tn_status_of(p->y);
    return s == TN_OK && !is_float(p->y) ? fail(TN_ERR_DTYPE, "derivatives: the result must be floating") : s;
}

/* rows[i * numel + e] = d (element e of y) / d x[i] */
static tn_status record_rows(const point *p, tn_tensor *y, int64_t numel, tn_tensor **rows) {
    tn_status s = TN_OK;
    for (int64_t e = 0; e < numel && s == TN_OK; e++) {
        tn_tensor *grads[MOST_INPUTS], *one = tn_one_hot(tn_from_data(&e, NULL, 0, TN_I64), numel, TN_F32);
        tn_tensor *seed = tn_cast(tn_reshape(one, tn_shape(y), tn_rank(y)), tn_dtype_of(y));
        s = tn_gradients(&y, 1, &seed, p->x, p->count, p->create_graph, grads);
        for (int i = 0; i < p->count && s == TN_OK; i++)
            rows[i * numel + e] = grads[i];
        int64_t begin = e / ROWS_AT_ONCE * ROWS_AT_ONCE, ready = e + 1 - begin;
        for (int i = 0; i < p->count && s == TN_OK && !p->create_graph && ready == ROWS_AT_ONCE; i++)
            s = tn_eval(rows + i * numel + begin, (int)ready);
    }
    return s;
}

/* out[i]: d y / d x[i], the shape of y followed by that of x[i]; zeros if y does not depend on it. */
static tn_status jacobians_of(const point *p, tn_tensor *y, tn_tensor **out) {
    int64_t numel = tn_numel(y), shape[TN_MAX_RANK];
    int rank = tn_rank(y);
    bool depends = numel > 0 && tn_requires_grad(y);
    tn_tensor **rows = malloc(((size_t)numel * (size_t)p->count + 1) * sizeof *rows);
    tn_status s = rows ? TN_OK : fail(TN_ERR_MEMORY, "derivatives: out of memory");
    if (s == TN_OK && depends) s = record_rows(p, y, numel, rows);
    for (int i = 0; i < p->count && s == TN_OK; i++) {
        int more = tn_rank(p->x[i]);
        if (rank + more > TN_MAX_RANK) {
            s = tn_status_of(tn_failed(TN_ERR_SHAPE,
                                       "derivatives: %d dims of the result and %d of input %d are more "
                                       "than %d",
                                       rank, more, i, TN_MAX_RANK));
            break;
        }
        for (int d = 0; d < rank + more; d++)
            shape[d] = d < rank ? tn_size(y, d) : tn_size(p->x[i], d - rank);
        out[i] = depends ? tn_reshape(tn_stack(rows + i * numel, (int)numel, 0), shape, rank + more)
                         : tn_zeros(shape, rank + more, tn_dtype_of(p->x[i]));
        s = tn_status_of(out[i]);
    }
    free(rows);
    return s;
}

/* Results outlive the scope; without create_graph they are detached. */
static void give_all(const point *p, tn_status s, tn_tensor **found, int count, tn_tensor **out) {
    for (int i = 0; out && i < count; i++)
        out[i] = s != TN_OK ? NULL : tn_keep(p->create_graph ? found[i] : tn_detach(found[i]));
}

tn_status tn_jacobian(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count, bool create_graph,
                      tn_tensor **jacobians) {
    tn_tensor *found[MOST_INPUTS];
    point p = {.count = count, .create_graph = create_graph};
    TN_SCOPE;
    bool before = tn_set_grad_enabled(true);
    tn_status s = jacobians ? evaluate(&p, function, ctx, inputs) : fail(TN_ERR_ARGUMENT, "jacobian: no results");
    if (s == TN_OK) s = jacobians_of(&p, p.y, found);
    give_all(&p, s, found, count, jacobians);
    tn_set_grad_enabled(before);
    return s;
}

tn_status tn_hessian(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count, bool create_graph,
                     tn_tensor **hessians) {
    tn_tensor *first[MOST_INPUTS], **found = NULL;
    point p = {.count = count, .create_graph = create_graph};
    TN_SCOPE;
    bool before = tn_set_grad_enabled(true);
    tn_status s = hessians ? evaluate(&p, function, ctx, inputs) : fail(TN_ERR_ARGUMENT, "hessian: no results");
    if (s == TN_OK && tn_numel(p.y) != 1)
        s = tn_status_of(tn_failed(TN_ERR_SHAPE, "hessian: the result has %lld elements; it must have one",
                                   (long long)tn_numel(p.y)));
    if (s == TN_OK && !(found = malloc((size_t)count * (size_t)count * sizeof *found)))
        s = fail(TN_ERR_MEMORY, "derivatives: out of memory");
    bool depends = s == TN_OK && tn_requires_grad(p.y);
    if (depends) s = tn_gradients(&p.y, 1, NULL, p.x, count, true, first);
    for (int i = 0; i < count && s == TN_OK; i++)
        s = jacobians_of(&p, depends ? first[i] : tn_zeros_like(p.x[i]), found + (ptrdiff_t)i * count);
    if (count > 0 && count <= MOST_INPUTS) give_all(&p, s, found, count * count, hessians);
    free(found);
    tn_set_grad_enabled(before);
    return s;
}

/* The product of the transposed Jacobian with v is linear in v, so its gradient with respect to v, weighted by the
 * tangents, is the product of the Jacobian with these. */
static tn_status jvp_of(point *p, tn_tensor *const *tangents, tn_tensor **out) {
    tn_tensor *v = tn_zeros_like(p->y), *grads[MOST_INPUTS], *sum = NULL;
    *out = v;
    for (int i = 0; i < p->count; i++)
        if (tn_status_of(tangents[i]) != TN_OK || tn_rank(tangents[i]) != tn_rank(p->x[i]) ||
            memcmp(tn_shape(tangents[i]), tn_shape(p->x[i]), (size_t)tn_rank(p->x[i]) * sizeof(int64_t)) != 0)
            return tn_status_of(tn_failed(TN_ERR_SHAPE, "jvp: tangent %d must be a tensor of its input's shape", i));
    if (!tn_requires_grad(p->y)) return TN_OK;
    v = tn_clone(tn_detach(v));
    tn_status s = tn_set_requires_grad(v, true);
    if (s == TN_OK) s = tn_gradients(&p->y, 1, &v, p->x, p->count, true, grads);
    for (int i = 0; i < p->count && s == TN_OK; i++) {
        tn_tensor *term = tn_sum(tn_mul(grads[i], tangents[i]), NULL, 0, false);
        sum = sum ? tn_add(sum, term) : term;
    }
    if (s == TN_OK && tn_requires_grad(sum)) s = tn_gradients(&sum, 1, NULL, &v, 1, p->create_graph, out);
    return s;
}

tn_status tn_jvp(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, tn_tensor *const *tangents,
                 int count, bool create_graph, tn_tensor **value, tn_tensor **derivative) {
    point p = {.count = count, .create_graph = create_graph};
    tn_tensor *found = NULL;
    TN_SCOPE;
    bool before = tn_set_grad_enabled(true);
    tn_status s = tangents && derivative ? evaluate(&p, function, ctx, inputs)
                                         : fail(TN_ERR_ARGUMENT, "jvp: the tangents or the derivative are NULL");
    if (s == TN_OK) s = jvp_of(&p, tangents, &found);
    give_all(&p, s, &found, 1, derivative);
    give_all(&p, s, &p.y, 1, value);
    tn_set_grad_enabled(before);
    return s;
}
