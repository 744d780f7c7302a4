/* policy.c — the generic policy (64 → 128 → 128 → 8 and 1, ReLU): how long a forward pass and a whole training step
 * take.
 *
 * torch_train.py compares its losses; bench/compare.py times the same works beside PyTorch. A training step is
 * forward, cross-entropy plus mean squared error, backward and Adam.
 *
 *   bench_policy                     a table of the same, on all threads, without a peer
 *   bench_policy losses FILE STEPS   writes weights and data to FILE, then prints the loss of each step */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "trunnion/trunnion.h"

enum {
    OBSERVATIONS = 64,
    WIDTH = 128,
    ACTIONS = 8,
    MOST = 4096,
    CHECKED = 64,
    CHAIN = 15,
    CHAIN_ELEMENTS = 16,
    ROUND = 64
};
static const double LEARNING_RATE = 1e-3;

typedef struct bench {
    tn_policy *policy;
    tn_optimizer *optimizer;
    float observations[MOST * OBSERVATIONS], returns[MOST];
    int64_t actions[MOST];
} bench;

static bench b;

static void check(tn_status status) {
    if (status == TN_OK) return;
    fprintf(stderr, "bench_policy: %s\n", tn_error());
    exit(1);
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static void make_data(void) {
    uint32_t state = 1;
    for (int i = 0; i < MOST * OBSERVATIONS; i++) {
        state = state * 1664525U + 1013904223U;
        b.observations[i] = (float)(state >> 8) / (float)(1 << 23) - 1;
    }
    for (int i = 0; i < MOST; i++) {
        b.actions[i] = (int64_t)(b.observations[i * OBSERVATIONS] > 0) * 4 + i % 4;
        b.returns[i] = b.observations[i * OBSERVATIONS + 1] * 2;
    }
}

static void begin(void) {
    static const int64_t hidden[] = {WIDTH, WIDTH};
    tn_policy_options o = TN_POLICY_DEFAULTS;
    o.observations = OBSERVATIONS;
    o.actions = ACTIONS;
    o.hidden = hidden;
    o.hidden_count = 2;
    o.logits_gain = 1;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = LEARNING_RATE;
    make_data();
    tn_manual_seed(1);
    check(tn_policy_mlp(&o, &b.policy));
    check(tn_optimizer_adam(tn_policy_module(b.policy), &adam, &b.optimizer));
}

typedef struct batch {
    tn_tensor *observations, *actions, *returns;
} batch;

/* n rows from row `first` on. */
static batch take_batch(int64_t first, int64_t n) {
    return (batch){tn_from_data(b.observations + first * OBSERVATIONS, (int64_t[]){n, OBSERVATIONS}, 2, TN_F32),
                   tn_from_data(b.actions + first, &n, 1, TN_I64),
                   tn_from_data(b.returns + first, (int64_t[]){n, 1}, 2, TN_F32)};
}

/* Batches that differ, as in life: on one alone many gradients soon vanish, and arithmetic on
 * numbers next to zero is slow. */
static void take_batches(int64_t n, batch batches[ROUND]) {
    int64_t places = MOST / n;
    for (int64_t i = 0; i < ROUND; i++)
        batches[i] = take_batch(i % places * n, n);
}

/* out: logits and value. */
static void forward(const batch *x, tn_tensor *out[2]) {
    tn_policy_forward(b.policy, x->observations, NULL, &out[0], &out[1], NULL);
}

static tn_tensor *loss_of(const batch *x) {
    tn_tensor *loss = NULL;
    TN_SCOPE;
    tn_tensor *out[2];
    forward(x, out);
    tn_tensor *policy_loss = tn_cross_entropy(out[0], x->actions, NULL, NULL);
    loss = tn_keep(tn_add(policy_loss, tn_mse_loss(out[1], x->returns, TN_REDUCTION_MEAN)));
    return loss;
}

static double train_step(const batch *x) {
    double value = NAN;
    TN_SCOPE;
    tn_tensor *loss = loss_of(x);
    check(tn_minimize(b.optimizer, loss));
    value = tn_item(loss);
    return value;
}

static void forward_step(const batch *x) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *out[2];
    forward(x, out);
    check(tn_eval(out, 2));
}

/* Fifteen small operations in a row: what recording, finding the plan and starting it cost. Tensors are freed as soon
 * as the next one is recorded: a held one would be a result, to be stored. */
static void chain_step(const tn_tensor *x) {
    tn_tensor *y = tn_add(x, x);
    for (int i = 1; i < CHAIN; i++) {
        tn_tensor *z = i % 2 ? tn_mul(y, x) : tn_add(y, x);
        tn_free(y);
        y = z;
    }
    check(tn_eval(&y, 1));
    tn_free(y);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void save(const char *path) {
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = tn_policy_module(b.policy);
    tn_variable *items;
    int count;
    check(tn_module_variables(c.model, &items, &count));
    {
        TN_SCOPE;
        tn_named_tensor *all = calloc((size_t)count + 5, sizeof *all);
        char(*names)[64] = calloc((size_t)count, sizeof *names);
        if (!all || !names) exit(1);
        for (int i = 0; i < count; i++) {
            snprintf(names[i], sizeof names[i], "model.%s", items[i].name);
            all[i] = (tn_named_tensor){names[i], items[i].tensor};
        }
        batch x = take_batch(0, MOST), few = take_batch(0, CHECKED);
        tn_tensor *out[2];
        {
            TN_NO_GRAD;
            forward(&few, out);
        }
        const tn_named_tensor more[] = {{"data.observations", x.observations},
                                        {"data.actions", x.actions},
                                        {"data.returns", x.returns},
                                        {"result.logits", out[0]},
                                        {"result.value", out[1]}};
        memcpy(all + count, more, sizeof more);
        check(tn_safetensors_save(path, all, count + 5, NULL, 0));
        free(all);
        free(names);
    }
    tn_variables_free(items);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Seconds a call over so many calls. */
static double time_forward(int64_t n, int64_t calls) {
    double seconds = 0;
    TN_SCOPE;
    batch x = take_batch(0, n);
    double start = cli_now();
    for (int64_t i = 0; i < calls; i++)
        forward_step(&x);
    seconds = (cli_now() - start) / (double)calls;
    return seconds;
}

static double time_replay(int64_t n, int64_t calls) {
    double seconds = 0;
    TN_SCOPE;
    TN_NO_GRAD;
    batch x = take_batch(0, n);
    tn_tensor *out[2], *got[2];
    tn_graph *graph;
    check(tn_capture_begin());
    forward(&x, out);
    check(tn_capture_end(&x.observations, 1, out, 2, &graph));
    double start = cli_now();
    for (int64_t i = 0; i < calls; i++) {
        TN_SCOPE;
        check(tn_graph_launch(graph, &x.observations, got));
    }
    seconds = (cli_now() - start) / (double)calls;
    tn_graph_free(graph);
    return seconds;
}

/* *host: the part of the time that was not spent in kernels. */
static double time_training(int64_t n, int64_t calls, double *host) {
    double seconds = 0;
    tn_runtime_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    {
        TN_SCOPE;
        batch batches[ROUND];
        take_batches(n, batches);
        check(tn_get_runtime_stats(&before));
        double start = cli_now();
        for (int64_t i = 0; i < calls; i++)
            (void)train_step(&batches[i % ROUND]);
        seconds = cli_now() - start;
        check(tn_get_runtime_stats(&after));
        *host = 1 - (after.run_seconds - before.run_seconds) / seconds;
    }
    return seconds / (double)calls;
}

/* The same steps, recorded once: launches with other batches. Adam's runtime scalars (rate, corrections) stay where the
 * recorded step had them, which changes no cost. */
static double time_replayed_training(int64_t n, int64_t calls, double *host) {
    double seconds = 0;
    tn_runtime_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    {
        TN_SCOPE;
        batch batches[ROUND];
        tn_graph *graph = NULL;
        take_batches(n, batches);
        check(tn_capture_begin());
        tn_tensor *loss = loss_of(&batches[0]);
        check(tn_minimize(b.optimizer, loss));
        tn_tensor *first[] = {batches[0].observations, batches[0].actions, batches[0].returns};
        check(tn_capture_end(first, 3, &loss, 1, &graph));
        check(tn_get_runtime_stats(&before));
        double start = cli_now();
        for (int64_t i = 0; i < calls; i++) {
            const batch *x = &batches[i % ROUND];
            tn_tensor *got = NULL;
            TN_SCOPE;
            check(tn_graph_launch(graph, (tn_tensor *[]){x->observations, x->actions, x->returns}, &got));
            (void)tn_item(got);
        }
        seconds = cli_now() - start;
        check(tn_get_runtime_stats(&after));
        *host = 1 - (after.run_seconds - before.run_seconds) / seconds;
        tn_graph_free(graph);
    }
    return seconds / (double)calls;
}

static double time_chain(int64_t calls) {
    double seconds = 0;
    static const float ones[CHAIN_ELEMENTS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    int64_t n = CHAIN_ELEMENTS;
    TN_SCOPE;
    tn_tensor *x = tn_from_data(ones, &n, 1, TN_F32);
    double start = cli_now();
    for (int64_t i = 0; i < calls; i++)
        chain_step(x);
    seconds = (cli_now() - start) / (double)calls;
    return seconds;
}

/* ---- a table ----------------------------------------------------------------------------------------------------- */

enum { ROWS_BATCHES = 3, SAMPLES = 15 };

static double forward_sample(int64_t n, int64_t calls, double *host) {
    (void)host;
    return time_forward(n, calls);
}

static double replay_sample(int64_t n, int64_t calls, double *host) {
    (void)host;
    return time_replay(n, calls);
}

/* Median and best of a few samples; the first warms up. */
static void row(const char *name, int64_t n, int64_t calls, double (*take)(int64_t n, int64_t calls, double *host)) {
    double samples[SAMPLES], host = NAN;
    (void)take(n, calls, &host);
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = take(n, calls, &host);
    times t = sorted(samples, SAMPLES);
    printf("%-18s %5lld %12.2f us %12.2f us", name, (long long)n, t.median * 1e6, t.best * 1e6);
    if (host >= 0) printf("   host %.0f %%", host * 100);
    printf("\n");
}

static void table(void) {
    static const int64_t batches[ROWS_BATCHES] = {1, 64, 4096}, calls[ROWS_BATCHES] = {400, 100, 6};
    begin();
    printf("%d threads\n%-18s %5s %15s %15s\n", tn_get_num_threads(), "work", "batch", "median", "best");
    for (int i = 0; i < ROWS_BATCHES; i++) {
        row("forward", batches[i], calls[i], forward_sample);
        row("forward, replayed", batches[i], calls[i], replay_sample);
        row("train", batches[i], calls[i] / 4 + 2, time_training);
        row("train, replayed", batches[i], calls[i] / 4 + 2, time_replayed_training);
    }
    printf("%-24s %12.2f us\n", "fifteen small ops", time_chain(20000) * 1e6);
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

static void losses(const char *path, long steps) {
    begin();
    save(path);
    TN_SCOPE;
    batch x = take_batch(0, MOST);
    for (long i = 0; i < steps; i++)
        printf("%.9g\n", train_step(&x));
}

int main(int argc, char **argv) {
    if (argc == 1)
        table();
    else if (argc == 4 && strcmp(argv[1], "losses") == 0)
        losses(argv[2], atol(argv[3]));
    else {
        fprintf(stderr, "usage: bench_policy [losses FILE STEPS]\n");
        return 2;
    }
    tn_optimizer_free(b.optimizer);
    tn_policy_free(b.policy);
    return 0;
}
