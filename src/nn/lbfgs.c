/* lbfgs.c — L-BFGS with PyTorch's steps and line search (torch.optim.LBFGS).
 *
 * All parameters are one vector. The directions follow from the last differences of points and gradients (two-loop
 * recursion, Nocedal and Wright, algorithm 7.4); the line search brackets and zooms by cubic interpolation (algorithms
 * 3.5 and 3.6). Numbers of the search are the host's, vectors are tensors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"

enum { MOST_SEARCH = 25 };
static const double C1 = 1e-4, C2 = 0.9, SEARCH_CHANGE = 1e-9, CURVATURE = 1e-10;

struct tn_lbfgs {
    tn_lbfgs_options o;
    tn_variable *variables;
    int count;
    tn_tensor **y, **s; /* history: differences of gradients and of points; the oldest first */
    double *ro, *al;
    int kept;
    tn_tensor *direction, *earlier; /* of the iteration before: direction and gradient */
    double length, scale;           /* its step length; the diagonal of the first Hessian */
    int64_t iterations;
    tn_status status; /* of this step: the first number that could not be read */
};

/* One call of tn_lbfgs_step. */
typedef struct walk {
    tn_lbfgs *l;
    tn_loss_function *loss;
    void *ctx;
    tn_tensor *start; /* the point from which the line search goes */
    int evaluations;
} walk;

/* A place on the line: its value, gradient (owned), and slope along the direction. */
typedef struct place {
    double t, f, slope;
    tn_tensor *g;
} place;

static void take(tn_tensor **to, tn_tensor *t) {
    tn_tensor *old = *to;
    *to = t ? tn_retain(t) : NULL;
    tn_free(old);
}

/* NaN if it cannot be read; then l->status says why. */
static double number(tn_lbfgs *l, const tn_tensor *t) {
    double value = NAN;
    tn_status status = tn_read_item(t, &value);
    if (l->status == TN_OK) l->status = status;
    return value;
}

static double dot(tn_lbfgs *l, const tn_tensor *a, const tn_tensor *b) {
    return number(l, tn_sum(tn_mul(a, b), TN_ALL, false));
}
static double greatest(tn_lbfgs *l, const tn_tensor *a) { return number(l, tn_amax(tn_abs(a), TN_ALL, false)); }

/* values or gradients of all parameters, one after the other; zeros where there is no gradient. */
static tn_tensor *flat_of(const tn_lbfgs *l, bool gradients) {
    AUTO_NN_FREE tn_tensor **parts = malloc((size_t)l->count * sizeof *parts);
    if (!parts) return tn_failed(TN_ERR_MEMORY, "lbfgs: out of memory");
    for (int i = 0; i < l->count; i++) {
        tn_tensor *v = l->variables[i].tensor, *g = gradients ? tn_grad(v) : NULL;
        tn_tensor *x = gradients ? (g ? g : tn_zeros_like(v)) : tn_detach(v);
        parts[i] = tn_reshape(x, (int64_t[]){-1}, 1);
    }
    return tn_cat(parts, l->count, 0);
}

/* Parameters become start + t·direction. */
static tn_status move_to(const walk *w, double t) {
    TN_SCOPE;
    TN_NO_GRAD;
    const tn_lbfgs *l = w->l;
    tn_tensor *x = t == 0 ? w->start : tn_add(w->start, tn_mul(l->direction, tn_scalar(t)));
    int64_t at = 0;
    for (int i = 0; i < l->count; i++) {
        tn_tensor *v = l->variables[i].tensor;
        tn_tensor *piece = tn_slice(x, 0, at, at + tn_numel(v), 1);
        TRY(tn_status_of(tn_copy_(v, tn_reshape(piece, tn_shape(v), tn_rank(v)))));
        at += tn_numel(v);
    }
    return tn_eval(NULL, 0);
}

/* Value and gradient where the parameters are. */
static tn_status evaluate(walk *w, double *f, tn_tensor **g) {
    TN_SCOPE;
    const tn_lbfgs *l = w->l;
    for (int i = 0; i < l->count; i++)
        tn_zero_grad(l->variables[i].tensor);
    tn_tensor *loss = w->loss(w->ctx), *flat = NULL;
    w->evaluations++;
    tn_status status = tn_status_of(loss);
    if (status == TN_OK) status = tn_backward(loss);
    if (status == TN_OK) flat = flat_of(l, true);
    if (status == TN_OK) status = tn_eval(&flat, 1);
    if (status == TN_OK) status = tn_read_item(loss, f);
    for (int i = 0; i < l->count; i++)
        tn_zero_grad(l->variables[i].tensor);
    if (status == TN_OK) take(g, flat);
    return status;
}

static tn_status evaluate_at(walk *w, double t, place *p) {
    p->t = t;
    TRY(move_to(w, t));
    TRY(evaluate(w, &p->f, &p->g));
    TN_SCOPE;
    p->slope = dot(w->l, p->g, w->l->direction);
    return w->l->status;
}

static void copy_place(place *to, const place *from) {
    if (to == from) return;
    take(&to->g, from->g);
    to->t = from->t;
    to->f = from->f;
    to->slope = from->slope;
}

/* The minimum of the cubic through two places with their slopes, within [low, high]. */
static double interpolate(const place *a, const place *b, double low, double high) {
    double d1 = a->slope + b->slope - 3 * (a->f - b->f) / (a->t - b->t), square = d1 * d1 - a->slope * b->slope, at;
    if (!(square >= 0)) return (low + high) / 2;
    double d2 = sqrt(square);
    if (a->t <= b->t)
        at = b->t - (b->t - a->t) * ((b->slope + d2 - d1) / (b->slope - a->slope + 2 * d2));
    else
        at = a->t - (a->t - b->t) * ((a->slope + d2 - d1) / (a->slope - b->slope + 2 * d2));
    return fmin(fmax(at, low), high);
}

/* ---- line search ------------------------------------------------------------------------------------------------- */

/* The strong Wolfe conditions hold within the bracket b[0], b[1], or at b[0] itself (*done). */
static tn_status bracket(walk *w, const place *zero, double t, place b[2], bool *done, int *tried) {
    place before = {0}, now = {.g = NULL};
    copy_place(&before, zero);
    tn_status status = evaluate_at(w, t, &now);
    *done = false;
    for (*tried = 0; status == TN_OK && *tried < MOST_SEARCH;) {
        bool rises = now.f > zero->f + C1 * now.t * zero->slope || (*tried > 1 && now.f >= before.f);
        *done = !rises && fabs(now.slope) <= -C2 * zero->slope;
        if (rises || *done || now.slope >= 0) break;
        double next = interpolate(&before, &now, now.t + 0.01 * (now.t - before.t), now.t * 10);
        copy_place(&before, &now);
        status = evaluate_at(w, next, &now);
        ++*tried;
    }
    copy_place(&b[0], *done ? &now : *tried == MOST_SEARCH ? zero : &before);
    copy_place(&b[1], &now);
    take(&before.g, NULL);
    take(&now.g, NULL);
    return status;
}

/* Where to look next within the bracket. *stuck: the point before was near an end too. */
static double choose_within(const place b[2], bool *stuck) {
    double low = fmin(b[0].t, b[1].t), high = fmax(b[0].t, b[1].t), eps = 0.1 * (high - low);
    double t = interpolate(&b[0], &b[1], low, high);
    if (fmin(high - t, t - low) >= eps) {
        *stuck = false;
        return t;
    }
    bool move = *stuck || t >= high || t <= low;
    *stuck = !move;
    if (!move) return t;
    return fabs(t - high) < fabs(t - low) ? high - eps : low + eps;
}

static tn_status zoom(walk *w, const place *zero, place b[2], int tried, place *best) {
    int low = b[0].f <= b[1].f ? 0 : 1;
    bool done = false, stuck = false;
    double widest = 0;
    place now = {.g = NULL};
    tn_status status = TN_OK;
    {
        TN_SCOPE;
        widest = greatest(w->l, w->l->direction);
    }
    while (!done && tried < MOST_SEARCH && status == TN_OK && !(fabs(b[1].t - b[0].t) * widest < SEARCH_CHANGE)) {
        status = evaluate_at(w, choose_within(b, &stuck), &now);
        tried++;
        if (status != TN_OK) break;
        if (now.f > zero->f + C1 * now.t * zero->slope || now.f >= b[low].f) {
            copy_place(&b[1 - low], &now);
            low = b[0].f <= b[1].f ? 0 : 1;
            continue;
        }
        done = fabs(now.slope) <= -C2 * zero->slope;
        if (!done && now.slope * (b[1 - low].t - b[low].t) >= 0) copy_place(&b[1 - low], &b[low]);
        copy_place(&b[low], &now);
    }
    copy_place(best, &b[low]);
    take(&now.g, NULL);
    return status;
}

static tn_status strong_wolfe(walk *w, const place *zero, double t, place *best) {
    place b[2] = {{.g = NULL}, {.g = NULL}};
    bool done;
    int tried;
    tn_status status = bracket(w, zero, t, b, &done, &tried);
    if (status == TN_OK && done) copy_place(best, &b[0]);
    if (status == TN_OK && !done) status = zoom(w, zero, b, tried, best);
    take(&b[0].g, NULL);
    take(&b[1].g, NULL);
    return status == TN_OK ? move_to(w, best->t) : status;
}

/* ---- directions -------------------------------------------------------------------------------------------------- */

static void remember(tn_lbfgs *l, tn_tensor *y, tn_tensor *s, double ys) {
    if (l->kept == l->o.history_size) {
        tn_free(l->y[0]);
        tn_free(l->s[0]);
        memmove(l->y, l->y + 1, (size_t)(l->kept - 1) * sizeof *l->y);
        memmove(l->s, l->s + 1, (size_t)(l->kept - 1) * sizeof *l->s);
        memmove(l->ro, l->ro + 1, (size_t)(l->kept - 1) * sizeof *l->ro);
        l->kept--;
    }
    l->y[l->kept] = tn_retain(y);
    l->s[l->kept] = tn_retain(s);
    l->ro[l->kept++] = 1 / ys;
    l->scale = ys / dot(l, y, y);
}

static tn_tensor *plus_scaled(const tn_tensor *x, const tn_tensor *y, double factor) {
    return tn_add(x, tn_mul(y, tn_scalar(factor)));
}

/* The direction from a point with gradient g. */
static tn_status choose_direction(tn_lbfgs *l, tn_tensor *g) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *q = tn_neg(g);
    if (l->earlier) {
        tn_tensor *y = tn_sub(g, l->earlier), *s = tn_mul(l->direction, tn_scalar(l->length));
        TRY(tn_eval((tn_tensor *[]){y, s}, 2));
        double ys = dot(l, y, s);
        if (ys > CURVATURE) remember(l, y, s, ys);
        for (int i = l->kept; i-- > 0;) {
            l->al[i] = dot(l, l->s[i], q) * l->ro[i];
            q = plus_scaled(q, l->y[i], -l->al[i]);
        }
        q = tn_mul(q, tn_scalar(l->scale));
        for (int i = 0; i < l->kept; i++)
            q = plus_scaled(q, l->s[i], l->al[i] - dot(l, l->y[i], q) * l->ro[i]);
    }
    TRY(tn_eval(&q, 1));
    TRY(l->status);
    take(&l->direction, q);
    take(&l->earlier, g);
    return TN_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* One iteration from `at`, which becomes the next point. *end: there is nothing more to do. */
static tn_status iterate(walk *w, place *at, bool last, bool *end) {
    tn_lbfgs *l = w->l;
    TN_SCOPE;
    TRY(choose_direction(l, at->g));
    l->iterations++;
    double before = at->f, first = l->o.lr / fmax(1, number(l, tn_sum(tn_abs(at->g), TN_ALL, false)));
    l->length = l->iterations == 1 ? first : l->o.lr;
    at->slope = dot(l, at->g, l->direction);
    at->t = 0;
    *end = at->slope > -l->o.tolerance_change;
    if (*end || l->status != TN_OK) return l->status;
    tn_tensor *start = flat_of(l, false);
    TRY(tn_eval(&start, 1));
    take(&w->start, start);
    tn_status status = TN_OK;
    if (l->o.strong_wolfe) {
        place best = {.g = NULL};
        status = strong_wolfe(w, at, l->length, &best);
        if (status == TN_OK) copy_place(at, &best);
        take(&best.g, NULL);
        l->length = at->t;
    } else {
        status = move_to(w, l->length);
        if (status == TN_OK && !last) status = evaluate(w, &at->f, &at->g);
    }
    if (status != TN_OK) {
        (void)move_to(w, 0);
        return status;
    }
    *end = greatest(l, at->g) <= l->o.tolerance_grad ||
           greatest(l, l->direction) * l->length <= l->o.tolerance_change ||
           fabs(at->f - before) < l->o.tolerance_change;
    return l->status;
}

tn_status tn_lbfgs_step(tn_lbfgs *l, tn_loss_function *loss, void *ctx, double *value) {
    if (!l || !loss) return tn_nn_need(l ? (const void *)(uintptr_t)loss : l, "tn_lbfgs_step: the optimizer or loss");
    if (tn_capturing()) return tn_backend_fail(TN_ERR_STATE, "tn_lbfgs_step: cannot be captured");
    walk w = {.l = l, .loss = loss, .ctx = ctx};
    place at = {.g = NULL};
    int most = l->o.max_eval > 0 ? l->o.max_eval : l->o.max_iter * 5 / 4;
    bool end = false;
    l->status = TN_OK;
    tn_status status = evaluate(&w, &at.f, &at.g);
    if (status == TN_OK && value) *value = at.f;
    if (status == TN_OK) {
        TN_SCOPE;
        end = greatest(l, at.g) <= l->o.tolerance_grad;
        status = l->status;
    }
    for (int n = 1; n <= l->o.max_iter && status == TN_OK && !end && w.evaluations < most; n++)
        status = iterate(&w, &at, n == l->o.max_iter, &end);
    take(&at.g, NULL);
    take(&w.start, NULL);
    return status;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

void tn_lbfgs_free(tn_lbfgs *l) {
    if (!l) return;
    for (int i = 0; i < l->kept; i++) {
        tn_free(l->y[i]);
        tn_free(l->s[i]);
    }
    take(&l->direction, NULL);
    take(&l->earlier, NULL);
    tn_variables_free(l->variables);
    free(l->y);
    free(l->s);
    free(l->ro);
    free(l->al);
    free(l);
}

static tn_status check_lbfgs(const tn_lbfgs_options *o) {
    if (o->lr > 0 && isfinite(o->lr) && o->max_iter > 0 && o->max_eval >= 0 && o->tolerance_grad >= 0 &&
        o->tolerance_change >= 0 && o->history_size > 0)
        return TN_OK;
    return tn_backend_fail(
        TN_ERR_ARGUMENT,
        "lbfgs: lr %g, max_iter %d, max_eval %d, tolerance_grad %g, tolerance_change %g, history_size %d; lr must be "
        "finite; lr, max_iter and history_size must be greater than 0, the others at least 0",
        o->lr, o->max_iter, o->max_eval, o->tolerance_grad, o->tolerance_change, o->history_size);
}

static tn_status take_parameters(tn_lbfgs *l, const tn_module *m) {
    TRY(tn_nn_refuse_shares(m, TN_ERR_UNSUPPORTED, "lbfgs", "use another optimizer"));
    tn_status status = tn_module_parameters(m, &l->variables, &l->count);
    int kept = 0;
    for (int i = 0; i < l->count && status == TN_OK; i++)
        if (tn_requires_grad(l->variables[i].tensor)) l->variables[kept++] = l->variables[i];
    l->count = kept;
    for (int i = 1; i < kept && status == TN_OK; i++)
        if (tn_dtype_of(l->variables[i].tensor) != tn_dtype_of(l->variables[0].tensor))
            status = tn_backend_fail(TN_ERR_DTYPE, "lbfgs: %s and %s have different dtypes", l->variables[0].name,
                                     l->variables[i].name);
    return status == TN_OK && !kept ? tn_backend_fail(TN_ERR_ARGUMENT, "lbfgs: there is nothing to train") : status;
}

tn_status tn_lbfgs_new(tn_module *m, const tn_lbfgs_options *options, tn_lbfgs **out) {
    tn_lbfgs_options o = TN_LBFGS_DEFAULTS;
    if (!out || !m) return tn_nn_need(out ? (const void *)m : out, out ? "tn_lbfgs_new: m" : "tn_lbfgs_new: out");
    *out = NULL;
    tn_status status = tn_options_read(&o, options, "lbfgs", "tn_lbfgs_options o = TN_LBFGS_DEFAULTS");
    if (status == TN_OK) status = check_lbfgs(&o);
    if (status != TN_OK) return status;
    size_t n = (size_t)o.history_size;
    tn_lbfgs *l = calloc(1, sizeof *l);
    if (!l) return tn_backend_fail(TN_ERR_MEMORY, "lbfgs: out of memory");
    *l = (tn_lbfgs){.o = o, .scale = 1};
    l->y = calloc(n, sizeof *l->y);
    l->s = calloc(n, sizeof *l->s);
    l->ro = calloc(n, sizeof *l->ro);
    l->al = calloc(n, sizeof *l->al);
    status =
        l->y && l->s && l->ro && l->al ? take_parameters(l, m) : tn_backend_fail(TN_ERR_MEMORY, "lbfgs: out of memory");
    if (status == TN_OK)
        *out = l;
    else
        tn_lbfgs_free(l);
    return status;
}
