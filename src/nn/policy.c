/* policy.c — the generic policy: maps observations and state to logits, value and new state.
 *
 * A policy is a table of functions, a module that owns its variables, and a private pointer. The two built-in policies
 * share hidden layers and heads; the recurrent one has an LSTM cell between them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "nn/make.h"
#include "trunnion/backend.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

struct tn_policy {
    const tn_policy_type *type;
    tn_module *module;
    void *self;
};

/* ---- any policy -------------------------------------------------------------------------------------------------- */

static tn_status check_type(const tn_policy_type *type) {
    if (!type || !type->forward || type->state_count < 0 || type->state_count > TN_MAX_POLICY_STATE)
        return tn_backend_fail(TN_ERR_ARGUMENT, "policy: a type must have forward, and 0 to %d state tensors",
                               TN_MAX_POLICY_STATE);
    if (type->state_count > 0 && !type->initial_state)
        return tn_backend_fail(TN_ERR_ARGUMENT, "policy %s: it has state, so initial_state must be set", type->name);
    return TN_OK;
}

tn_status tn_policy_new(const tn_policy_type *type, tn_module *module, void *self, tn_policy **out) {
    tn_status status = tn_nn_need(out, "tn_policy_new: out");
    if (status == TN_OK) *out = NULL;
    if (status == TN_OK) status = check_type(type);
    if (status == TN_OK) status = tn_module_status(module);
    tn_policy *p = status == TN_OK ? calloc(1, sizeof *p) : NULL;
    if (p) {
        *p = (tn_policy){type, module, self};
        *out = p;
        return TN_OK;
    }
    if (status == TN_OK) status = tn_backend_fail(TN_ERR_MEMORY, "policy: out of memory");
    tn_module_free(module);
    if (type && type->destroy) type->destroy(self);
    return status;
}

void tn_policy_free(tn_policy *p) {
    if (!p) return;
    tn_module_free(p->module);
    if (p->type->destroy) p->type->destroy(p->self);
    free(p);
}

void *tn_policy_self(const tn_policy *p) { return p ? p->self : NULL; }
tn_module *tn_policy_module(const tn_policy *p) { return p ? p->module : NULL; }
const char *tn_policy_name(const tn_policy *p) { return p ? p->type->name : ""; }
int tn_policy_state_count(const tn_policy *p) { return p ? p->type->state_count : 0; }

void tn_policy_initial_state(tn_policy *p, int64_t batch, tn_tensor **state) {
    if (state && tn_policy_state_count(p) > 0) p->type->initial_state(p, batch, state);
}

/* Error tensors for every output, when a policy cannot even be asked. */
static void fail_outputs(const tn_policy *p, tn_status status, tn_tensor **logits, tn_tensor **value,
                         tn_tensor **new_state) {
    char text[512];
    snprintf(text, sizeof text, "%s", tn_error());
    *logits = tn_failed(status, "%s", text);
    *value = tn_failed(status, "%s", text);
    for (int i = 0; i < tn_policy_state_count(p); i++)
        new_state[i] = tn_failed(status, "%s", text);
}

static tn_status check_observations(const tn_policy *p, const tn_tensor *observations) {
    tn_status status = tn_nn_need(p, "policy: the policy");
    if (status == TN_OK) status = tn_status_of(observations);
    if (status != TN_OK || tn_rank(observations) >= 2) return status;
    return tn_backend_fail(TN_ERR_SHAPE, "policy %s: observations must have at least two dimensions, [batch, …]",
                           p->type->name);
}

void tn_policy_forward(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                       tn_tensor **value, tn_tensor **new_state) {
    TN_SCOPE;
    tn_tensor *initial[TN_MAX_POLICY_STATE], *next[TN_MAX_POLICY_STATE], *made[2];
    tn_status status = check_observations(p, observations);
    if (status != TN_OK) {
        fail_outputs(p, status, &made[0], &made[1], next);
    } else {
        if (!state) tn_policy_initial_state(p, tn_size(observations, 0), initial);
        p->type->forward(p, observations, state ? state : initial, &made[0], &made[1], next);
    }
    if (logits) *logits = tn_keep(made[0]);
    if (value) *value = tn_keep(made[1]);
    for (int i = 0; new_state && i < tn_policy_state_count(p); i++)
        new_state[i] = tn_keep(next[i]);
}

/* ---- the two that come with the library -------------------------------------------------------------------------- */

typedef struct network {
    tn_module *hidden;       /* a sequence; NULL: none, heads on the observations */
    tn_module *value_hidden; /* a sequence of the value's own; NULL: shared */
    tn_module *cell;         /* LSTM, or NULL */
    tn_module *logits, *value;
    int64_t observations, recurrent;
} network;

static const int64_t default_hidden[] = {64, 64};

/* The caller's options; functions and lists that may be NULL are filled in. */
static tn_status read_options_policy(const tn_policy_options *given, tn_policy_options *o) {
    *o = (tn_policy_options)TN_POLICY_DEFAULTS;
    TRY(tn_options_read(o, given, "policy", "tn_policy_options o = TN_POLICY_DEFAULTS"));
    if (o->observations <= 0 || o->actions <= 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "policy: %lld observations and %lld actions; both must be positive",
                               (long long)o->observations, (long long)o->actions);
    if (o->recurrent <= 0 || o->hidden_count < 0)
        return tn_backend_fail(
            TN_ERR_ARGUMENT, "policy: recurrent is %lld (must be at least 1) and hidden_count %d (must be at least 0)",
            (long long)o->recurrent, o->hidden_count);
    if (!isfinite(o->hidden_gain) || !isfinite(o->logits_gain) || !isfinite(o->value_gain))
        return tn_backend_fail(TN_ERR_ARGUMENT, "policy: gains %g, %g and %g must be finite", o->hidden_gain,
                               o->logits_gain, o->value_gain);
    if (!o->hidden) {
        o->hidden = default_hidden;
        o->hidden_count = 2;
    }
    if (!o->activation) o->activation = tn_relu;
    return TN_OK;
}

static tn_module *orthogonal_linear(tn_module *parent, const char *name, int64_t in, int64_t out, double gain) {
    tn_module *m = tn_nn_linear(parent, name, in, out, true);
    TN_SCOPE;
    tn_nn_write(m, "weight", tn_init_orthogonal(out, in, gain));
    tn_nn_write(m, "bias", tn_init_constant(&out, 1, 0));
    return m;
}

/* Linear layers with an activation behind each, in a sequence; *width becomes what comes out. */
static tn_module *make_hidden(tn_module *root, const char *part, const tn_policy_options *s, int64_t *width) {
    *width = s->observations;
    if (s->hidden_count == 0) return NULL;
    tn_module *sequence = tn_nn_sequential(root, part);
    for (int i = 0; i < s->hidden_count; i++) {
        char name[24];
        snprintf(name, sizeof name, "%d", 2 * i);
        orthogonal_linear(sequence, name, *width, s->hidden[i], s->hidden_gain);
        snprintf(name, sizeof name, "%d", 2 * i + 1);
        tn_nn_function(sequence, name, s->activation);
        *width = s->hidden[i];
    }
    return sequence;
}

/* Orthogonal weights for each of the four gates, biases 0, that of the forget gate 1 (Jozefowicz et al. 2015). */
static void set_cell(tn_module *cell, int64_t in, int64_t width) {
    TN_SCOPE;
    tn_tensor *gates[2][4];
    for (int k = 0; k < 4; k++) {
        gates[0][k] = tn_init_orthogonal(width, in, 1);
        gates[1][k] = tn_init_orthogonal(width, width, 1);
    }
    tn_nn_write(cell, "weight_ih", tn_cat(gates[0], 4, 0));
    tn_nn_write(cell, "weight_hh", tn_cat(gates[1], 4, 0));
    tn_tensor *zero = tn_init_constant(&width, 1, 0), *one = tn_init_constant(&width, 1, 1);
    tn_nn_write(cell, "bias_ih", tn_cat((tn_tensor *[]){zero, one, zero, zero}, 4, 0));
    tn_nn_write(cell, "bias_hh", tn_cat((tn_tensor *[]){zero, zero, zero, zero}, 4, 0));
}

static void build_policy(tn_module *root, const tn_policy_options *s, bool recurrent, network *n) {
    n->observations = s->observations;
    int64_t width, own_width = 0;
    n->hidden = make_hidden(root, "hidden", s, &width);
    if (s->separate_value) n->value_hidden = make_hidden(root, "value_hidden", s, &own_width);
    if (recurrent) {
        n->recurrent = s->recurrent;
        n->cell = tn_nn_lstm_cell(root, "cell", width, s->recurrent);
        if (n->cell) set_cell(n->cell, width, s->recurrent);
        width = s->recurrent;
    }
    n->logits = orthogonal_linear(root, "logits", width, s->actions, s->logits_gain);
    n->value = orthogonal_linear(root, "value", n->value_hidden ? own_width : width, 1, s->value_gain);
}

static tn_status make_policy(const tn_policy_options *options, const tn_policy_type *type, tn_policy **out) {
    TRY(tn_nn_need(out, "policy: out"));
    *out = NULL;
    tn_policy_options s;
    TRY(read_options_policy(options, &s));
    tn_module *root = tn_module_root();
    network *n = calloc(1, sizeof *n);
    if (!root || !n) {
        tn_module_free(root);
        free(n);
        return tn_backend_fail(TN_ERR_MEMORY, "policy: out of memory");
    }
    build_policy(root, &s, type->state_count > 0, n);
    tn_status status = tn_eval(NULL, 0); /* the initial values written above */
    if (status != TN_OK) tn_module_fail(root, status);
    return tn_policy_new(type, root, n, out);
}

/* Any observation flat: [batch, observations]. */
static tn_tensor *flat(const network *n, const tn_tensor *x) {
    return tn_reshape(x, (int64_t[]){tn_size(x, 0), n->observations}, 2);
}

static void mlp_forward(tn_policy *p, const tn_tensor *observations, TN_UNUSED tn_tensor *const *state,
                        tn_tensor **logits, tn_tensor **value, TN_UNUSED tn_tensor **new_state) {
    const network *n = p->self;
    tn_tensor *x = flat(n, observations);
    tn_tensor *h = n->hidden ? tn_forward(n->hidden, x) : x;
    tn_tensor *v = n->value_hidden ? tn_forward(n->value_hidden, x) : h;
    *logits = tn_forward(n->logits, h);
    *value = tn_forward(n->value, v);
}

static void lstm_forward(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                         tn_tensor **value, tn_tensor **new_state) {
    const network *n = p->self;
    tn_tensor *x = flat(n, observations);
    tn_tensor *h = n->hidden ? tn_forward(n->hidden, x) : x;
    tn_lstm_cell_forward(n->cell, h, state[0], state[1], &new_state[0], &new_state[1]);
    *logits = tn_forward(n->logits, new_state[0]);
    *value = tn_forward(n->value, n->value_hidden ? tn_forward(n->value_hidden, x) : new_state[0]);
}

static void lstm_initial_state(tn_policy *p, int64_t batch, tn_tensor **state) {
    const network *n = p->self;
    for (int i = 0; i < 2; i++)
        state[i] = tn_init_constant((int64_t[]){batch, n->recurrent}, 2, 0);
}

static const tn_policy_type mlp_type = {sizeof(tn_policy_type), "mlp", 0, mlp_forward, NULL, free};
static const tn_policy_type lstm_type = {sizeof(tn_policy_type), "lstm", 2, lstm_forward, lstm_initial_state, free};

tn_status tn_policy_mlp(const tn_policy_options *options, tn_policy **out) {
    return make_policy(options, &mlp_type, out);
}
tn_status tn_policy_lstm(const tn_policy_options *options, tn_policy **out) {
    return make_policy(options, &lstm_type, out);
}
