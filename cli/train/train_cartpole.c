/* train_cartpole.c — the task `cartpole`: eight carts at once, the generic policy, PPO.
 *
 * The measure is the mean return of 100 episodes, all played at once, in which the
 * policy takes its likeliest action. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/train/cartpole.h"
#include "cli/train/ppo.h"
#include "cli/train/train.h"

enum {
    CARTS = 8,
    EVALUATIONS = 100,
    CART_NUMBERS = CARTPOLE_OBSERVATIONS + 2 /* in a checkpoint: the four values; steps; random numbers */
};

typedef struct carts {
    tn_policy *policy;
    ppo *learner;
    cartpole cart[CARTS];
    double recent_return; /* smoothed return of the episodes that ended in training */
    tn_tensor *values;    /* f64 [CARTS, 5]: the four values and the smoothed return, for checkpoints */
    tn_tensor *counters;  /* i64 [CARTS, 2] */
    uint64_t seed;
    tn_variable extras[TN_MAX_POLICY_STATE + 3];
} carts;

static const double RECENT = 0.05; /* weight of the newest episode */

/* ---- environments ------------------------------------------------------------------------------------------------ */

static void observe(void *self, float *observations) {
    const carts *c = self;
    for (int i = 0; i < CARTS; i++)
        cartpole_observe(&c->cart[i], observations + i * CARTPOLE_OBSERVATIONS);
}

static void step_carts(void *self, const int32_t *actions, float *rewards, bool *ended, bool *cut, float *last) {
    carts *c = self;
    for (int i = 0; i < CARTS; i++) {
        cartpole *cart = &c->cart[i];
        cartpole_result r = cartpole_step(cart, actions[i]);
        rewards[i] = 1;
        ended[i] = r.terminated || r.truncated;
        cut[i] = r.truncated && !r.terminated;
        cartpole_observe(cart, last + i * CARTPOLE_OBSERVATIONS);
        if (!ended[i]) continue;
        c->recent_return += RECENT * ((double)cart->steps - c->recent_return);
        cartpole_reset(cart);
    }
}

/* ---- the task ---------------------------------------------------------------------------------------------------- */

static void carts_end(void *self) {
    carts *c = self;
    if (!c) return;
    ppo_free(c->learner);
    tn_policy_free(c->policy);
    tn_free(c->values);
    tn_free(c->counters);
    free(c);
}

/* Settings that balance within 100,000 steps; found by trying, starting from those usual for this task. */
static ppo_settings settings_for(bool recurrent, uint64_t seed) {
    ppo_settings s = {.horizon = 32,
                      .stretch = 8,
                      .epochs = 20,
                      .minibatches = 1,
                      .discount = 0.98,
                      .trace = 0.8,
                      .clip = 0.2,
                      .learning_rate = 1e-3,
                      .floor = 0.01,
                      .decay_steps = 100000,
                      .value_weight = 0.5,
                      .entropy_weight = 0,
                      .max_grad_norm = 0.5,
                      .seed = seed};
    if (recurrent) {
        s.epochs = 10;
        s.minibatches = 2;
    }
    return s;
}

/* Copied, not computed: a device that cannot compute in f64 can keep it. */
static tn_status make_storage(carts *c) {
    static const double values[CARTS][CARTPOLE_OBSERVATIONS + 1];
    static const int64_t counters[CARTS][2];
    c->values = tn_from_data(values, (int64_t[]){CARTS, CARTPOLE_OBSERVATIONS + 1}, 2, TN_F64);
    c->counters = tn_from_data(counters, (int64_t[]){CARTS, 2}, 2, TN_I64);
    return tn_eval((tn_tensor *[]){c->values, c->counters}, 2);
}

static tn_status carts_begin(const train_options *o, void **self) {
    carts *c = calloc(1, sizeof *c);
    *self = c;
    if (!c) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    bool recurrent = strcmp(o->policy, "lstm") == 0;
    c->seed = o->common.seed;
    uint64_t seeds = c->seed;
    for (int i = 0; i < CARTS; i++)
        cartpole_seed(&c->cart[i], random_next(&seeds));
    tn_policy_options p = TN_POLICY_DEFAULTS;
    p.observations = CARTPOLE_OBSERVATIONS;
    p.actions = CARTPOLE_ACTIONS;
    p.activation = tn_tanh;
    p.separate_value = true;
    TRY(recurrent ? tn_policy_lstm(&p, &c->policy) : tn_policy_mlp(&p, &c->policy));
    TRY(make_storage(c));
    ppo_environments e = {.count = CARTS,
                          .observations = CARTPOLE_OBSERVATIONS,
                          .actions = CARTPOLE_ACTIONS,
                          .self = c,
                          .observe = observe,
                          .step = step_carts};
    ppo_settings s = settings_for(recurrent, random_next(&seeds));
    return ppo_new(c->policy, &e, &s, &c->learner);
}

static tn_status carts_advance(void *self, int64_t step, int64_t *made, double *loss) {
    carts *c = self;
    *made = ppo_steps_an_iteration(c->learner);
    return ppo_iterate(c->learner, step, loss);
}

static void carts_status_text(void *self, char *text, size_t size) {
    const carts *c = self;
    snprintf(text, size, "return %.0f", c->recent_return);
}

static double carts_return(void *self) {
    const carts *c = self;
    return c->recent_return;
}

static void carts_describe(void *self, char *text, size_t size) {
    const carts *c = self;
    snprintf(text, size, "\"policy\": \"%s\"", tn_policy_name(c->policy));
}

static void carts_checkpoint(void *self, tn_checkpoint *k) {
    carts *c = self;
    int count = ppo_extras(c->learner, c->extras);
    c->extras[count++] = (tn_variable){"carts.values", c->values, false};
    c->extras[count++] = (tn_variable){"carts.counters", c->counters, false};
    k->model = tn_policy_module(c->policy);
    k->optimizer = ppo_optimizer(c->learner);
    k->extras = c->extras;
    k->extra_count = count;
}

static tn_status carts_before_save(void *self) {
    carts *c = self;
    double values[CARTS][CARTPOLE_OBSERVATIONS + 1];
    int64_t counters[CARTS][2];
    for (int i = 0; i < CARTS; i++) {
        const cartpole *cart = &c->cart[i];
        const double row[] = {cart->x, cart->x_dot, cart->theta, cart->theta_dot, c->recent_return};
        memcpy(values[i], row, sizeof row);
        counters[i][0] = cart->steps;
        memcpy(&counters[i][1], &cart->random, sizeof cart->random);
    }
    tn_free(c->values);
    tn_free(c->counters);
    c->values = tn_from_data(values, (int64_t[]){CARTS, CARTPOLE_OBSERVATIONS + 1}, 2, TN_F64);
    c->counters = tn_from_data(counters, (int64_t[]){CARTS, 2}, 2, TN_I64);
    TRY(tn_eval((tn_tensor *[]){c->values, c->counters}, 2));
    return ppo_store(c->learner);
}

static tn_status carts_after_load(void *self) {
    carts *c = self;
    double values[CARTS][CARTPOLE_OBSERVATIONS + 1];
    int64_t counters[CARTS][2];
    TRY(tn_read(c->values, values, sizeof values));
    TRY(tn_read(c->counters, counters, sizeof counters));
    for (int i = 0; i < CARTS; i++) {
        const double *row = values[i];
        c->cart[i] =
            (cartpole){.x = row[0], .x_dot = row[1], .theta = row[2], .theta_dot = row[3], .steps = counters[i][0]};
        memcpy(&c->cart[i].random, &counters[i][1], sizeof c->cart[i].random);
        c->recent_return = row[CARTPOLE_OBSERVATIONS];
    }
    return ppo_restore(c->learner);
}

/* ---- the measure ------------------------------------------------------------------------------------------------- */

typedef struct evaluation {
    cartpole cart[EVALUATIONS];
    bool done[EVALUATIONS];
    int running;
} evaluation;

static void evaluation_step(evaluation *e, const int32_t *actions) {
    for (int i = 0; i < EVALUATIONS; i++) {
        if (e->done[i]) continue;
        cartpole_result r = cartpole_step(&e->cart[i], actions[i]);
        e->done[i] = r.terminated || r.truncated;
        e->running -= e->done[i];
    }
}

/* One step of all; state holds handles from call to call. */
static tn_status evaluation_advance(carts *c, evaluation *e, tn_tensor **state) {
    float observations[EVALUATIONS][CARTPOLE_OBSERVATIONS], logits[EVALUATIONS][CARTPOLE_ACTIONS];
    int32_t actions[EVALUATIONS];
    int count = tn_policy_state_count(c->policy);
    tn_tensor *out[2 + TN_MAX_POLICY_STATE];
    tn_status status = TN_OK;
    for (int i = 0; i < EVALUATIONS; i++)
        cartpole_observe(&e->cart[i], observations[i]);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *x = tn_from_data(observations, (int64_t[]){EVALUATIONS, CARTPOLE_OBSERVATIONS}, 2, TN_F32);
        tn_policy_forward(c->policy, x, state, &out[0], &out[1], out + 2);
        status = tn_eval(out, 2 + count);
        if (status == TN_OK) status = tn_read(out[0], logits, sizeof logits);
        for (int i = 0; i < count && status == TN_OK; i++)
            tn_keep(out[2 + i]);
    }
    if (status != TN_OK) return status;
    for (int i = 0; i < count; i++) {
        tn_free(state[i]);
        state[i] = out[2 + i];
    }
    ppo_greedy(&logits[0][0], EVALUATIONS, CARTPOLE_ACTIONS, actions);
    evaluation_step(e, actions);
    return TN_OK;
}

static tn_status carts_measure(void *self, double *metric) {
    carts *c = self;
    static evaluation e;
    e = (evaluation){.running = EVALUATIONS};
    uint64_t seeds = c->seed ^ 0x5EED;
    tn_tensor *state[TN_MAX_POLICY_STATE] = {NULL};
    for (int i = 0; i < EVALUATIONS; i++)
        cartpole_seed(&e.cart[i], random_next(&seeds));
    tn_policy_initial_state(c->policy, EVALUATIONS, state);
    tn_status status = TN_OK;
    while (e.running > 0 && status == TN_OK)
        status = evaluation_advance(c, &e, state);
    for (int i = 0; i < tn_policy_state_count(c->policy); i++)
        tn_free(state[i]);
    double sum = 0;
    for (int i = 0; i < EVALUATIONS; i++)
        sum += (double)e.cart[i].steps;
    *metric = sum / EVALUATIONS;
    return status;
}

const train_task train_cartpole = {
    .name = "cartpole",
    .unit = "steps in the environment",
    .metric = "mean return of 100 episodes",
    .takes = TRAIN_TAKES_POLICY,
    .steps = 100000,
    .begin = carts_begin,
    .describe = carts_describe,
    .advance = carts_advance,
    .status_text = carts_status_text,
    .shown = "mean return",
    .shown_now = carts_return,
    .checkpoint = carts_checkpoint,
    .before_save = carts_before_save,
    .after_load = carts_after_load,
    .measure = carts_measure,
    .end = carts_end,
};
