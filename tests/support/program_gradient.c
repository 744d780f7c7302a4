/* program_gradient.c — a program differentiated by the library, against central differences of the oracle in f64.
 *
 * The loss is the sum of everything that is left at the end, each element with a weight of its own. Every leaf is
 * checked along random directions: the difference of the loss there is the gradient's product with the direction, so
 * one direction sees every element. A direction along which two step sizes disagree crosses a kink (max, abs) and says
 * nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

enum { DIRECTIONS = 3, MAX_LEAVES = 8 };

typedef struct check {
    const program *p;
    bool ran[MAX_STEPS];
    tn_tensor *reg[MAX_REGISTERS];
    int leaves[MAX_LEAVES], leaf_count; /* steps */
    char *why;
    size_t size;
} check;

/* Between -1 and 1, from a name. */
static double weight_of(uint64_t name, int64_t n) {
    uint64_t state = name + (uint64_t)n * 0x9E3779B97F4A7C15u;
    return (double)(int64_t)(program_random(&state) >> 11) / 0x1p52 - 1.0;
}

static uint64_t name_of(const program *p, int r) { return p->seed * 1000003 + (uint64_t)r; }

static bool counts(const oracle *x) { return x && x->dtype == TN_F64; }

/* ---- the oracle's side ------------------------------------------------------------------------------------------- */

static double loss_of(const machine *m, const program *p) {
    double loss = 0;
    for (int r = 0; r < MAX_REGISTERS; r++) {
        const oracle *x = m->reg[r];
        if (!counts(x)) continue;
        int64_t count = oracle_numel(x);
        double *v = malloc((size_t)count * sizeof *v + 1);
        oracle_read(x, v);
        for (int64_t n = 0; n < count; n++)
            loss += v[n] * weight_of(name_of(p, r), n);
        free(v);
    }
    return loss;
}

/* Runs the program with leaf `moved` (a step) moved by `by` along a direction; notes what ran when asked to. */
static double loss_at(check *c, int moved, uint64_t direction, double by, bool note) {
    machine *m = calloc(1, sizeof *m);
    for (int n = 0; n < c->p->count; n++) {
        const step *s = &c->p->steps[n];
        bool ran = machine_step(m, s);
        if (note) c->ran[n] = ran;
        if (n + 1 == c->p->leaves) machine_freeze(m);
        if (n != moved || !ran) continue;
        double *v = (double *)(void *)m->reg[s->to]->storage->data;
        for (int64_t e = 0, count = oracle_numel(m->reg[s->to]); e < count; e++)
            v[e] += by * weight_of(direction, e);
    }
    double loss = loss_of(m, c->p);
    machine_clear(m);
    free(m);
    return loss;
}

static double slope_at(check *c, int moved, uint64_t direction, double h) {
    return (loss_at(c, moved, direction, h, false) - loss_at(c, moved, direction, -h, false)) / (2 * h);
}

/* ---- the library's side ------------------------------------------------------------------------------------------ */

static bool fail(const check *c, int n, const char *what) {
    snprintf(c->why, c->size, "step %d: %s: %s", n, what, tn_error());
    return false;
}

static bool is_leaf(const check *c, int n) {
    return n < c->p->leaves && c->p->steps[n].kind == STEP_data && c->p->steps[n].dtype == TN_F64;
}

static bool do_control(check *c, int n) {
    const step *s = &c->p->steps[n];
    tn_tensor *x = s->n_in ? c->reg[s->in[0]] : NULL;
    if (s->kind == STEP_free) {
        tn_free(x);
        c->reg[s->in[0]] = NULL;
        return true;
    }
    if (s->kind == STEP_eval) return tn_eval(x ? &x : NULL, x ? 1 : 0) == TN_OK || fail(c, n, "eval");
    size_t bytes = (size_t)tn_numel(x) * tn_dtype_size(tn_dtype_of(x));
    void *room = malloc(bytes + 1);
    bool ok = tn_read(x, room, bytes) == TN_OK || fail(c, n, "read");
    free(room);
    return ok;
}

static bool do_step(check *c, int n) {
    const step *s = &c->p->steps[n];
    if (step_class_of(s->kind) == STEP_CONTROLS) return do_control(c, n);
    tn_tensor *in[STEP_INPUTS];
    for (int k = 0; k < s->n_in; k++)
        in[k] = c->reg[s->in[k]];
    tn_tensor *made = step_lazy(s, in, 0);
    if (s->to >= 0) {
        tn_free(c->reg[s->to]);
        c->reg[s->to] = made;
    }
    if (tn_status_of(made) != TN_OK) return fail(c, n, step_name(s->kind));
    if (!is_leaf(c, n)) return true;
    if (c->leaf_count < MAX_LEAVES) c->leaves[c->leaf_count++] = n;
    return tn_set_requires_grad(made, true) == TN_OK || fail(c, n, "set_requires_grad");
}

static tn_tensor *weights_like(const check *c, int r) {
    const tn_tensor *x = c->reg[r];
    int64_t count = tn_numel(x);
    double *w = malloc((size_t)count * sizeof *w + 1);
    for (int64_t n = 0; n < count; n++)
        w[n] = weight_of(name_of(c->p, r), n);
    tn_tensor *t = tn_from_data(w, tn_shape(x), tn_rank(x), TN_F64);
    free(w);
    return t;
}

static bool backward(check *c) {
    bool ok = true;
    TN_SCOPE;
    tn_tensor *loss = tn_full(NULL, 0, 0.0, TN_F64);
    for (int r = 0; r < MAX_REGISTERS; r++)
        if (c->reg[r] && tn_dtype_of(c->reg[r]) == TN_F64)
            loss = tn_add(loss, tn_sum(tn_mul(c->reg[r], weights_like(c, r)), TN_ALL, false));
    ok = tn_status_of(loss) == TN_OK || fail(c, c->p->count, "the loss");
    ok = ok && (!tn_requires_grad(loss) || tn_backward(loss) == TN_OK || fail(c, c->p->count, "tn_backward"));
    return ok;
}

/* The leaf's gradient along a direction. */
static bool gradient_along(const check *c, int leaf, uint64_t direction, double *sum) {
    tn_tensor *x = c->reg[c->p->steps[leaf].to], *g = tn_grad(x);
    int64_t count = tn_numel(x);
    *sum = 0;
    if (!g) return true; /* the loss does not depend on it */
    double *v = malloc((size_t)count * sizeof *v + 1);
    bool ok = tn_read(g, v, (size_t)count * sizeof *v) == TN_OK || fail(c, leaf, "reading a gradient");
    for (int64_t n = 0; ok && n < count; n++)
        *sum += v[n] * weight_of(direction, n);
    free(v);
    tn_free(g);
    return ok;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static bool near(double a, double b, double within) { return fabs(a - b) <= within * (1 + fabs(a) + fabs(b)); }

static bool check_leaf(check *c, int leaf) {
    for (int k = 0; k < DIRECTIONS; k++) {
        uint64_t direction = name_of(c->p, leaf) * 31 + (uint64_t)k;
        double coarse = slope_at(c, leaf, direction, 2e-5), fine = slope_at(c, leaf, direction, 1e-5), got;
        if (!near(coarse, fine, 1e-6)) continue;
        if (!gradient_along(c, leaf, direction, &got)) return false;
        if (near(got, fine, 2e-5)) continue;
        snprintf(c->why, c->size, "r%d: its gradient along direction %d is %.9g, the differences say %.9g",
                 c->p->steps[leaf].to, k, got, fine);
        return false;
    }
    return true;
}

bool program_run_gradient(const program *p, char *why, size_t size) {
    check *c = calloc(1, sizeof *c);
    *c = (check){.p = p, .why = why, .size = size};
    loss_at(c, -1, 0, 0, true);
    bool ok = true;
    tn_recompute region = {0};
    enum { STEPS = 5 }; /* of a region; every other program has regions */
    for (int n = 0; n < p->count && ok; n++) {
        if (p->count % 2 && n % STEPS == 1) region = tn_recompute_begin();
        ok = !c->ran[n] || do_step(c, n);
        if (p->count % 2 && n % STEPS == 0) tn_recompute_end(&region);
    }
    tn_recompute_end(&(tn_recompute){0});
    ok = ok && backward(c);
    for (int k = 0; k < c->leaf_count && ok; k++)
        if (c->reg[p->steps[c->leaves[k]].to]) ok = check_leaf(c, c->leaves[k]);
    for (int r = 0; r < MAX_REGISTERS; r++)
        tn_free(c->reg[r]);
    free(c);
    return ok;
}
