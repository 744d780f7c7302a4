/* ppo.c — proximal policy optimisation (Schulman et al. 2017) with generalised advantage estimation (Schulman et al.
 * 2016).
 *
 * The policy acts in all environments at once; what happened is kept on the host. Then it learns in several passes: a
 * policy without state from shuffled single steps, a recurrent one from shuffled stretches, through which the gradient
 * flows back and whose first state was kept. Advantages are normalised a minibatch; an episode that was cut is worth
 * what the policy expected behind the cut. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/train/ppo.h"
#include "cli/train/train.h"

enum { MOST_STRETCHES = 16 }; /* of one environment */

struct ppo {
    tn_policy *policy;
    ppo_environments environments;
    ppo_settings settings;
    tn_optimizer *optimizer;
    uint64_t random;
    int64_t n, steps; /* environments; horizon */
    int state_count;

    tn_tensor *state[TN_MAX_POLICY_STATE];                     /* before the next step; held */
    tn_tensor *starts_of[MOST_STRETCHES][TN_MAX_POLICY_STATE]; /* before the first step of each stretch; held */
    tn_tensor *stored;                                         /* the random numbers' state, for checkpoints */
    bool *started;                                             /* [n]: the next step is the first of an episode */

    /* What happened, [steps][n]; observations and last ones [steps][n][observations]. */
    float *observations, *rewards, *values, *log_probabilities, *advantages, *returns, *starts;
    int32_t *actions;
    bool *ended, *cut;
    float *last, *logits, *row; /* of one step */
    int32_t *order;
    /* A minibatch as it goes to the device. */
    float *batch_observations, *batch_old, *batch_advantages, *batch_returns, *batch_starts;
    int64_t *batch_actions;
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* One block of memory a field: what, and how many elements of which size. */
typedef struct block {
    void **place;
    int64_t count;
    size_t size;
} block;

static tn_status allocate(ppo *p) {
    int64_t n = p->n, all = p->n * p->steps, width = p->environments.observations, actions = p->environments.actions;
    const block blocks[] = {
        {(void **)&p->started, n, sizeof(bool)},
        {(void **)&p->observations, all * width, sizeof(float)},
        {(void **)&p->rewards, all, sizeof(float)},
        {(void **)&p->values, all, sizeof(float)},
        {(void **)&p->log_probabilities, all, sizeof(float)},
        {(void **)&p->advantages, all, sizeof(float)},
        {(void **)&p->returns, all, sizeof(float)},
        {(void **)&p->starts, all, sizeof(float)},
        {(void **)&p->actions, all, sizeof(int32_t)},
        {(void **)&p->ended, all, sizeof(bool)},
        {(void **)&p->cut, n, sizeof(bool)},
        {(void **)&p->last, n * width, sizeof(float)},
        {(void **)&p->logits, n * actions, sizeof(float)},
        {(void **)&p->row, n, sizeof(float)},
        {(void **)&p->order, all, sizeof(int32_t)},
        {(void **)&p->batch_observations, all * width, sizeof(float)},
        {(void **)&p->batch_old, all, sizeof(float)},
        {(void **)&p->batch_advantages, all, sizeof(float)},
        {(void **)&p->batch_returns, all, sizeof(float)},
        {(void **)&p->batch_starts, all, sizeof(float)},
        {(void **)&p->batch_actions, all, sizeof(int64_t)},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        *blocks[i].place = calloc((size_t)blocks[i].count, blocks[i].size);
        if (!*blocks[i].place) return tn_backend_fail(TN_ERR_MEMORY, "ppo: out of memory");
    }
    return TN_OK;
}

static void free_state(ppo *p, tn_tensor **state) {
    for (int i = 0; i < p->state_count; i++) {
        tn_free(state[i]);
        state[i] = NULL;
    }
}

void ppo_free(ppo *p) {
    if (!p) return;
    void *blocks[] = {p->started,
                      p->observations,
                      p->rewards,
                      p->values,
                      p->log_probabilities,
                      p->advantages,
                      p->returns,
                      p->starts,
                      p->actions,
                      p->ended,
                      p->cut,
                      p->last,
                      p->logits,
                      p->row,
                      p->order,
                      p->batch_observations,
                      p->batch_old,
                      p->batch_advantages,
                      p->batch_returns,
                      p->batch_starts,
                      p->batch_actions};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        free(blocks[i]);
    free_state(p, p->state);
    for (int64_t k = 0; k < MOST_STRETCHES; k++)
        free_state(p, p->starts_of[k]);
    tn_free(p->stored);
    tn_optimizer_free(p->optimizer);
    free(p);
}

static tn_status begin_ppo(ppo *p) {
    TRY(allocate(p));
    for (int64_t i = 0; i < p->n; i++)
        p->started[i] = true;
    tn_policy_initial_state(p->policy, p->n, p->state);
    for (int i = 0; i < p->state_count; i++)
        TRY(tn_eval(&p->state[i], 1));
    int64_t stored_shape = 1 + p->n;
    p->stored = tn_full(&stored_shape, 1, 0, TN_I64);
    TRY(tn_eval(&p->stored, 1));
    tn_adam_options o = TN_ADAM_DEFAULTS;
    o.lr = p->settings.learning_rate;
    o.eps = 1e-5;
    o.max_grad_norm = p->settings.max_grad_norm;
    return tn_optimizer_adam(tn_policy_module(p->policy), &o, &p->optimizer);
}

tn_status ppo_new(tn_policy *policy, const ppo_environments *environments, const ppo_settings *settings, ppo **out) {
    *out = NULL;
    int64_t stretches = settings->stretch > 0 ? settings->horizon / settings->stretch : 0;
    bool fits = stretches > 0 && stretches <= MOST_STRETCHES && stretches * settings->stretch == settings->horizon;
    if (tn_policy_state_count(policy) > 0 && !fits)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "ppo: horizon is %lld; it must be 1 to %d times the stretch of %lld steps",
                               (long long)settings->horizon, MOST_STRETCHES, (long long)settings->stretch);
    ppo *p = calloc(1, sizeof *p);
    if (!p) return tn_backend_fail(TN_ERR_MEMORY, "ppo: out of memory");
    p->policy = policy;
    p->environments = *environments;
    p->settings = *settings;
    p->random = settings->seed;
    p->n = environments->count;
    p->steps = settings->horizon;
    p->state_count = tn_policy_state_count(policy);
    tn_status status = begin_ppo(p);
    if (status == TN_OK)
        *out = p;
    else
        ppo_free(p);
    return status;
}

/* ---- acting ------------------------------------------------------------------------------------------------------ */

/* The policy's logits and values for observations of all environments; new_state: NULL, or where new handles go. */
static tn_status ask_ppo(ppo *p, const float *observations, tn_tensor *const *state, float *logits, float *values,
                         tn_tensor **new_state) {
    int64_t n = p->n;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = tn_from_data(observations, (int64_t[]){n, p->environments.observations}, 2, TN_F32);
    tn_tensor *out[2 + TN_MAX_POLICY_STATE];
    tn_policy_forward(p->policy, x, state, &out[0], &out[1], out + 2);
    TRY(tn_eval(out, 2 + p->state_count));
    TRY(tn_read(out[0], logits, (size_t)(n * p->environments.actions) * sizeof *logits));
    TRY(tn_read(out[1], values, (size_t)n * sizeof *values));
    for (int i = 0; new_state && i < p->state_count; i++)
        new_state[i] = tn_keep(out[2 + i]);
    return TN_OK;
}

/* Draws an action by the probabilities that the logits stand for; *log_probability: of that action. */
static int32_t draw_ppo(ppo *p, const float *logits, float *log_probability) {
    int64_t actions = p->environments.actions;
    double most = logits[0], sum = 0, u = random_uniform(&p->random), reached = 0;
    for (int64_t a = 1; a < actions; a++)
        most = fmax(most, logits[a]);
    for (int64_t a = 0; a < actions; a++)
        sum += exp(logits[a] - most);
    int64_t chosen = 0;
    for (; chosen < actions - 1; chosen++) {
        reached += exp(logits[chosen] - most) / sum;
        if (u < reached) break;
    }
    *log_probability = (float)(logits[chosen] - most - log(sum));
    return (int32_t)chosen;
}

/* State of environments whose episode begins is the initial one again: the old one times 0 there, times 1 elsewhere. */
static tn_tensor *kept_where_running(const tn_tensor *state, const tn_tensor *starts) {
    return tn_mul(state, tn_sub(tn_scalar(1), starts));
}

static tn_status restart_states(ppo *p, const bool *ended) {
    bool any = false;
    for (int64_t i = 0; i < p->n; i++) {
        p->row[i] = ended[i] ? 1.0F : 0.0F;
        any |= ended[i];
    }
    if (!any || p->state_count == 0) return TN_OK;
    tn_status status = TN_OK;
    tn_tensor *fresh[TN_MAX_POLICY_STATE];
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *starts = tn_from_data(p->row, (int64_t[]){p->n, 1}, 2, TN_F32);
        for (int i = 0; i < p->state_count; i++)
            fresh[i] = kept_where_running(p->state[i], starts);
        status = tn_eval(fresh, p->state_count);
        for (int i = 0; status == TN_OK && i < p->state_count; i++)
            tn_keep(fresh[i]);
    }
    if (status != TN_OK) return status;
    free_state(p, p->state);
    memcpy(p->state, fresh, sizeof fresh);
    return TN_OK;
}

/* What the policy expects behind the cut is added to the last reward, so that the cut looks like no end. */
static tn_status add_value_behind_cut(ppo *p, int64_t t) {
    bool any = false;
    for (int64_t i = 0; i < p->n; i++)
        any |= p->cut[i];
    if (!any) return TN_OK;
    tn_status status = ask_ppo(p, p->last, p->state, p->logits, p->row, NULL);
    for (int64_t i = 0; status == TN_OK && i < p->n; i++)
        if (p->cut[i]) p->rewards[t * p->n + i] += (float)p->settings.discount * p->row[i];
    return status;
}

static tn_status collect_step(ppo *p, int64_t t) {
    int64_t n = p->n, at = t * n;
    float *observations = p->observations + at * p->environments.observations;
    tn_tensor *after[TN_MAX_POLICY_STATE];
    p->environments.observe(p->environments.self, observations);
    TRY(ask_ppo(p, observations, p->state, p->logits, p->values + at, after));
    free_state(p, p->state);
    for (int i = 0; i < p->state_count; i++)
        p->state[i] = after[i];
    for (int64_t i = 0; i < n; i++) {
        p->starts[at + i] = p->started[i] ? 1.0F : 0.0F;
        p->actions[at + i] = draw_ppo(p, p->logits + i * p->environments.actions, &p->log_probabilities[at + i]);
    }
    p->environments.step(p->environments.self, p->actions + at, p->rewards + at, p->ended + at, p->cut, p->last);
    memcpy(p->started, p->ended + at, (size_t)n * sizeof *p->started);
    TRY(add_value_behind_cut(p, t));
    return restart_states(p, p->ended + at);
}

/* Backwards through what happened: advantage = Σ (gamma·lambda)^k · error, never across the end of an episode. */
static void estimate_advantages(ppo *p, const float *values_behind) {
    int64_t n = p->n;
    double gamma = p->settings.discount, lambda = p->settings.trace;
    for (int64_t i = 0; i < n; i++) {
        double next_value = values_behind[i], advantage = 0;
        for (int64_t t = p->steps - 1; t >= 0; t--) {
            int64_t at = t * n + i;
            double on = p->ended[at] ? 0 : 1;
            double error = p->rewards[at] + gamma * next_value * on - p->values[at];
            advantage = error + gamma * lambda * on * advantage;
            p->advantages[at] = (float)advantage;
            p->returns[at] = (float)(advantage + p->values[at]);
            next_value = p->values[at];
        }
    }
}

static void keep_state(ppo *p, int64_t stretch) {
    free_state(p, p->starts_of[stretch]);
    for (int i = 0; i < p->state_count; i++)
        p->starts_of[stretch][i] = tn_retain(p->state[i]);
}

static tn_status collect(ppo *p) {
    for (int64_t t = 0; t < p->steps; t++) {
        if (p->state_count && t % p->settings.stretch == 0) keep_state(p, t / p->settings.stretch);
        TRY(collect_step(p, t));
    }
    p->environments.observe(p->environments.self, p->last);
    TRY(ask_ppo(p, p->last, p->state, p->logits, p->row, NULL));
    estimate_advantages(p, p->row);
    return TN_OK;
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

/* Copies item `from` of what happened to place `to` of the minibatch. */
static void pick(ppo *p, int64_t from, int64_t to) {
    int64_t width = p->environments.observations;
    memcpy(p->batch_observations + to * width, p->observations + from * width, (size_t)width * sizeof(float));
    p->batch_actions[to] = p->actions[from];
    p->batch_old[to] = p->log_probabilities[from];
    p->batch_advantages[to] = p->advantages[from];
    p->batch_returns[to] = p->returns[from];
    p->batch_starts[to] = p->starts[from];
}

static void normalise(float *x, int64_t n) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / (sqrt(square / (double)(n > 1 ? n - 1 : 1)) + 1e-8);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((x[i] - mean) * scale);
}

static tn_tensor *column(const float *data, int64_t n) { return tn_from_data(data, (int64_t[]){n, 1}, 2, TN_F32); }

static tn_tensor *mean_of_all(const tn_tensor *x) { return tn_mean(x, NULL, 0, false); }

/* The objective of a minibatch of n items; logits [n, actions], values [n, 1]. clip may differ every time: a runtime
 * scalar. */
static tn_tensor *objective(ppo *p, const tn_tensor *logits, const tn_tensor *values, int64_t n, double clip) {
    const ppo_settings *s = &p->settings;
    tn_tensor *actions = tn_from_data(p->batch_actions, (int64_t[]){n, 1}, 2, TN_I64);
    tn_tensor *advantages = column(p->batch_advantages, n);
    tn_tensor *all = tn_log_softmax(logits, 1);
    tn_tensor *ratio = tn_exp(tn_sub(tn_gather(all, 1, actions), column(p->batch_old, n)));
    tn_tensor *near = tn_minimum(tn_maximum(ratio, tn_runtime_scalar(1 - clip)), tn_runtime_scalar(1 + clip));
    tn_tensor *gain = mean_of_all(tn_minimum(tn_mul(ratio, advantages), tn_mul(near, advantages)));
    tn_tensor *error = tn_sub(values, column(p->batch_returns, n));
    tn_tensor *loss = tn_sub(tn_mul(mean_of_all(tn_mul(error, error)), tn_scalar(s->value_weight)), gain);
    if (s->entropy_weight == 0) return loss;
    tn_tensor *negative_entropy = mean_of_all(tn_sum(tn_mul(tn_exp(all), all), (int64_t[]){1}, 1, false));
    return tn_add(loss, tn_mul(negative_entropy, tn_scalar(s->entropy_weight)));
}

static tn_tensor *batch_observations(const ppo *p, int64_t first, int64_t n) {
    int64_t width = p->environments.observations;
    return tn_from_data(p->batch_observations + first * width, (int64_t[]){n, width}, 2, TN_F32);
}

/* One step of learning from the picked minibatch, [n] items. */
static tn_status learn_single(ppo *p, int64_t n, double clip, double *loss_out) {
    tn_status status = TN_OK;
    TN_SCOPE;
    tn_tensor *loss = NULL;
    {
        TN_SCOPE;
        tn_tensor *logits, *values;
        tn_policy_forward(p->policy, batch_observations(p, 0, n), NULL, &logits, &values, NULL);
        loss = tn_keep(objective(p, logits, values, n, clip));
    }
    status = tn_minimize(p->optimizer, loss);
    return status == TN_OK ? tn_read_item(loss, loss_out) : status;
}

/* The kept states of all stretches, one row each: stretch k of environment i is row k·n + i. */
static tn_tensor *kept_states(const ppo *p, int which) {
    tn_tensor *parts[MOST_STRETCHES];
    int count = (int)(p->steps / p->settings.stretch);
    for (int k = 0; k < count; k++)
        parts[k] = p->starts_of[k][which];
    return tn_cat(parts, count, 0);
}

/* The objective of `m` stretches, items [stretch][m]; chosen: the rows of their kept states. */
static tn_tensor *stretch_objective(ppo *p, const int64_t *chosen, int64_t m, double clip) {
    int64_t length = p->settings.stretch;
    tn_tensor *rows = tn_from_data(chosen, &m, 1, TN_I64);
    tn_tensor *state[TN_MAX_POLICY_STATE], **logits = calloc((size_t)length * 2, sizeof(tn_tensor *));
    if (!logits) return tn_failed(TN_ERR_MEMORY, "ppo: out of memory");
    tn_tensor **values = logits + length;
    for (int i = 0; i < p->state_count; i++)
        state[i] = tn_index_select(kept_states(p, i), 0, rows);
    for (int64_t t = 0; t < length; t++) {
        tn_tensor *next[TN_MAX_POLICY_STATE];
        /* The first state is as it was: restarted already where an episode began. */
        tn_tensor *starts = column(p->batch_starts + t * m, m);
        for (int i = 0; i < p->state_count && t > 0; i++)
            state[i] = kept_where_running(state[i], starts);
        tn_policy_forward(p->policy, batch_observations(p, t * m, m), state, &logits[t], &values[t], next);
        memcpy(state, next, sizeof next);
    }
    tn_tensor *result = objective(p, tn_cat(logits, (int)length, 0), tn_cat(values, (int)length, 0), length * m, clip);
    free(logits);
    return result;
}

static tn_status learn_stretches(ppo *p, const int64_t *chosen, int64_t m, double clip, double *loss_out) {
    tn_status status = TN_OK;
    TN_SCOPE;
    tn_tensor *loss = NULL;
    {
        TN_SCOPE;
        loss = tn_keep(stretch_objective(p, chosen, m, clip));
    }
    status = tn_minimize(p->optimizer, loss);
    return status == TN_OK ? tn_read_item(loss, loss_out) : status;
}

/* Part `k` of a pass over single steps. */
static tn_status learn_part(ppo *p, int64_t k, double clip, double *loss) {
    int64_t all = p->n * p->steps, parts = p->settings.minibatches;
    int64_t begin_at = all * k / parts, n = all * (k + 1) / parts - begin_at;
    for (int64_t i = 0; i < n; i++)
        pick(p, p->order[begin_at + i], i);
    normalise(p->batch_advantages, n);
    return learn_single(p, n, clip, loss);
}

/* The same over stretches. */
static tn_status learn_part_recurrent(ppo *p, int64_t part, double clip, double *loss) {
    int64_t length = p->settings.stretch, all = p->n * p->steps / length, parts = p->settings.minibatches;
    int64_t begin_at = all * part / parts, m = all * (part + 1) / parts - begin_at;
    int64_t *chosen = calloc((size_t)m, sizeof *chosen);
    if (!chosen) return tn_backend_fail(TN_ERR_MEMORY, "ppo: out of memory");
    for (int64_t j = 0; j < m; j++) {
        chosen[j] = p->order[begin_at + j];
        int64_t stretch = chosen[j] / p->n, environment = chosen[j] % p->n;
        for (int64_t t = 0; t < length; t++)
            pick(p, (stretch * length + t) * p->n + environment, t * m + j);
    }
    normalise(p->batch_advantages, length * m);
    tn_status status = learn_stretches(p, chosen, m, clip, loss);
    free(chosen);
    return status;
}

/* 1 at the start, `floor` from decay_steps on. */
static double decay(const ppo_settings *s, int64_t step) {
    tn_schedule line = TN_SCHEDULE_DEFAULTS;
    line.kind = TN_SCHEDULE_LINEAR;
    line.lr = 1;
    line.final_lr = s->floor;
    line.total = s->decay_steps;
    return tn_schedule_at(&line, step);
}

tn_status ppo_iterate(ppo *p, int64_t step, double *loss) {
    tn_status status = collect(p);
    double left = decay(&p->settings, step), sum = 0;
    int64_t updates = 0, items = p->n * p->steps / (p->state_count ? p->settings.stretch : 1);
    tn_optimizer_set_lr(p->optimizer, p->settings.learning_rate * left);
    for (int64_t e = 0; e < p->settings.epochs; e++) {
        random_shuffle(&p->random, p->order, items);
        for (int64_t k = 0; k < p->settings.minibatches && status == TN_OK; k++) {
            double part_loss = NAN, clip = p->settings.clip * left;
            status = p->state_count ? learn_part_recurrent(p, k, clip, &part_loss) : learn_part(p, k, clip, &part_loss);
            sum += part_loss;
            updates++;
        }
    }
    *loss = sum / (double)updates;
    return status;
}

int64_t ppo_steps_an_iteration(const ppo *p) { return p->n * p->steps; }
tn_optimizer *ppo_optimizer(const ppo *p) { return p->optimizer; }

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

int ppo_extras(const ppo *p, tn_variable extras[TN_MAX_POLICY_STATE + 1]) {
    static const char *const names[TN_MAX_POLICY_STATE] = {"state.0", "state.1", "state.2", "state.3",
                                                           "state.4", "state.5", "state.6", "state.7"};
    int count = 0;
    extras[count++] = (tn_variable){"ppo", p->stored, false};
    for (int i = 0; i < p->state_count; i++)
        extras[count++] = (tn_variable){names[i], p->state[i], false};
    return count;
}

/* stored: the random numbers' state, and for each environment whether an episode begins. */
tn_status ppo_store(ppo *p) {
    int64_t count = 1 + p->n;
    int64_t *numbers = calloc((size_t)count, sizeof *numbers);
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "ppo: out of memory");
    memcpy(numbers, &p->random, sizeof p->random);
    for (int64_t i = 0; i < p->n; i++)
        numbers[1 + i] = p->started[i];
    tn_free(p->stored);
    p->stored = tn_from_data(numbers, &count, 1, TN_I64);
    free(numbers);
    return tn_status_of(p->stored);
}

tn_status ppo_restore(ppo *p) {
    size_t bytes = (size_t)(1 + p->n) * sizeof(int64_t);
    AUTO_CLI_FREE int64_t *numbers = malloc(bytes);
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "ppo: out of memory");
    TRY(tn_read(p->stored, numbers, bytes));
    memcpy(&p->random, numbers, sizeof p->random);
    for (int64_t i = 0; i < p->n; i++)
        p->started[i] = numbers[1 + i] != 0;
    return TN_OK;
}

void ppo_greedy(const float *logits, int64_t count, int64_t actions, int32_t *out) {
    for (int64_t i = 0; i < count; i++) {
        const float *row = logits + i * actions;
        int64_t best = 0;
        for (int64_t a = 1; a < actions; a++)
            if (row[a] > row[best]) best = a;
        out[i] = (int32_t)best;
    }
}
