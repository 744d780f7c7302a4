/* test_distributed.c — groups of processes in one process: what launchers announce, a group of one, errors. Suite
 * `processes` runs several under real launchers; with the argument `faults` this program is one of them. */
#include <dlfcn.h>

#include "test_support.h"

#include "hal/hal.h"
#include "trunnion/trunnion.h"

/* Runs with the environment of no launcher, but for the given variables: name, value, …, NULL. */
static void launched_with(const char *const *variables) {
    static const char *const all[] = {"OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "PMIX_RANK",
                                      "SLURM_NTASKS",
                                      "TRUNNION_MPI_LIB",
                                      "RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "TRUNNION_GROUP_SECONDS",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "MPI_LOCALRANKID"};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        unsetenv(all[i]);
    for (; variables && variables[0]; variables += 2)
        setenv(variables[0], variables[1], 1);
}

static void launchers_announce_rank_and_size(void **state) {
    (void)state;
    static const struct {
        const char *variables[5];
        int rank, size;
    } rows[] = {
        {{NULL}, 0, 1},
        {{"OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "3", NULL}, 2, 3},
        {{"PMI_RANK", "0", "PMI_SIZE", "4", NULL}, 0, 4},
        {{"PMIX_RANK", "7", "SLURM_NTASKS", "8", NULL}, 7, 8},
        {{"RANK", "1", "WORLD_SIZE", "2", NULL}, 1, 2},
        {{"SLURM_PROCID", "3", "SLURM_NTASKS", "4", NULL}, 3, 4},
        {{"PMI_RANK", "4", "PMI_SIZE", "4", NULL}, 0, 1},   /* not a rank */
        {{"PMI_RANK", "one", "PMI_SIZE", "4", NULL}, 0, 1}, /* not a number */
        {{"PMI_SIZE", "4", NULL}, 0, 1},                    /* no rank */
        {{"PMI_RANK", "-1", "PMI_SIZE", "-2", NULL}, 0, 1},
        {{"PMI_RANK", "1", "PMI_SIZE", "99999999999", NULL}, 0, 1},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        launched_with(rows[i].variables);
        assert_int_equal(tn_group_launched_rank(), rows[i].rank);
        assert_int_equal(tn_group_launched_size(), rows[i].size);
    }
    launched_with(NULL);
}

/* A call that one rank cannot make fails on all, and what follows finds the right partner. */
static const char *one_rank_fails(tn_group *g, int rank) {
    float own[] = {1.0f + (float)rank, 2}, is[4] = {-1, -1, -1, -1};
    tn_tensor *good = tn_from_data(own, TN_DIMS(2), TN_F32);
    tn_tensor *x = rank ? tn_matmul(good, tn_zeros(TN_DIMS(7, 2), TN_F32)) : good;
    tn_status want = rank ? TN_ERR_SHAPE : TN_ERR_STATE;
    if (tn_status_of(tn_group_all_gather_tensor(g, x)) != want) return "all_gather of an error";
    if (tn_status_of(tn_group_all_to_all_tensor(g, x)) != want) return "all_to_all of an error";
    if (tn_status_of(tn_group_broadcast_tensor(g, x, 0)) != want) return "broadcast of an error";
    if (tn_status_of(tn_group_all_reduce_tensor(g, x)) != want) return "all_reduce of an error";
    if (!rank && !strstr(tn_error(), "rank 1 failed before the exchange")) return tn_error();
    if (tn_status_of(tn_group_broadcast_tensor(g, good, 2 * rank)) != (rank ? TN_ERR_ARGUMENT : TN_ERR_STATE))
        return "broadcast from no rank";
    tn_tensor *short_one = tn_slice(good, 0, 0, 2 - rank, 1), *other = tn_cast(good, rank ? TN_I32 : TN_F32);
    if (tn_status_of(tn_group_all_gather_tensor(g, short_one)) != TN_ERR_STATE) return "another size";
    if (tn_status_of(tn_group_all_reduce_tensor(g, other)) != TN_ERR_STATE) return "another dtype";
    if (!strstr(tn_error(), "with another dtype or size")) return tn_error();
    if (tn_read_as(tn_group_all_reduce_tensor(g, good), is, 2, TN_F32) != TN_OK || is[0] != 3) return "after errors";
    if (tn_group_barrier(g) != TN_OK) return "barrier";
    if (rank) return tn_group_abort(g, 1), NULL;
    tn_tensor *gathered = tn_group_all_gather_tensor(g, good);
    if (tn_status_of(gathered) != TN_ERR_DEVICE || !strstr(tn_error(), "that process has ended")) return "an abort";
    tn_group_abort(g, 1);
    return tn_group_all_gather(g, own, sizeof own, is) == TN_ERR_STATE ? NULL : "a call after tn_group_abort";
}

/* Rank 0 has no memory for an exchange that is a step of a plan: both fail, and the next one succeeds. */
static const char *one_rank_has_no_memory(tn_group *g, int rank) {
    const float own[] = {1.0f + (float)rank, 5};
    for (int failing = 1; failing >= 0; failing--) {
        float is[4] = {0};
        if (failing && !rank) tn_mem_fail_at(1);
        tn_group_post(g, &(tn_group_step){.bytes = sizeof own}, own, NULL, is);
        tn_mem_fail_at(0);
        tn_group_await(g, is);
        tn_status want = !failing ? TN_OK : rank ? TN_ERR_STATE : TN_ERR_MEMORY;
        if (tn_group_settle(g, TN_OK) != want) return "a step without memory";
        if (!failing && (is[0] != 1 || is[1] != 5 || is[2] != 2 || is[3] != 5)) return "a step after one that failed";
    }
    return NULL;
}

/* Sum of |a - b|. */
static double apart(const tn_tensor *a, const tn_tensor *b) {
    double sum = NAN;
    TN_NO_GRAD;
    tn_tensor *difference = tn_sum(tn_abs(tn_sub(a, b)), TN_ALL, false);
    return tn_read_item(difference, &sum) == TN_OK ? sum : NAN;
}

/* A pair of layers: its loss and the gradient of x. */
static tn_status run_pair(tn_module *first, tn_module *second, tn_tensor *x, double *loss, tn_tensor **gradient) {
    tn_tensor *y = tn_forward(second, tn_tanh(tn_forward(first, x)));
    tn_tensor *sum = tn_sum(tn_mul(y, y), TN_ALL, false);
    if (tn_status_of(sum) != TN_OK || tn_backward(sum) != TN_OK) return TN_ERR_STATE;
    *gradient = tn_grad(x);
    if (tn_eval((tn_tensor *[]){sum, *gradient, tn_grad(tn_module_variable(first, "weight"))}, 3) != TN_OK)
        return TN_ERR_STATE;
    return tn_read_item(sum, loss);
}

/* Layers divided between two ranks have the results and gradients of whole ones; joined, their values. */
static const char *divided_layers(tn_group *g) {
    enum { ROWS = 3, IN = 6, INNER = 8 };
    double loss[2];
    tn_tensor *gradient[2], *x[2];
    tn_module *first[2], *second[2], *root[2];
    for (int k = 0; k < 2; k++) {
        tn_manual_seed(4);
        root[k] = tn_module_root();
        first[k] = k ? tn_nn_column_parallel_linear(root[k], "a", IN, INNER, true, g)
                     : tn_nn_linear(root[k], "a", IN, INNER, true);
        second[k] = k ? tn_nn_row_parallel_linear(root[k], "b", INNER, IN, true, g)
                      : tn_nn_linear(root[k], "b", INNER, IN, true);
        x[k] = tn_contiguous(tn_randn(TN_DIMS(ROWS, IN)));
        tn_set_requires_grad(x[k], true);
        if (tn_group_settle(g, run_pair(first[k], second[k], x[k], &loss[k], &gradient[k])) != TN_OK) return tn_error();
    }
    if (tn_size(tn_module_variable(first[1], "weight"), 0) != INNER / 2) return "the share of a column-parallel layer";
    if (tn_size(tn_module_variable(second[1], "weight"), 1) != INNER / 2) return "the share of a row-parallel layer";
    if (tn_size(tn_module_variable(second[1], "bias"), 0) != IN) return "the bias of a row-parallel layer";
    if (fabs(loss[0] - loss[1]) > 1e-6 * fabs(loss[0])) return "the loss of divided layers";
    if (!(apart(gradient[0], gradient[1]) < 1e-5)) return "the gradient of divided layers";
    tn_optimizer *o;
    if (tn_optimizer_lamb(root[1], NULL, &o) != TN_ERR_UNSUPPORTED) return "lamb with divided layers";
    if (tn_optimizer_adam(root[1], NULL, &o) != TN_OK) return "adam with divided layers";
    if (tn_module_join(root[1], o) != TN_OK) return "joining";
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    for (int i = 0; i < 4; i++)
        if (apart(tn_module_variable(root[0], names[i]), tn_module_variable(root[1], names[i])) != 0) return names[i];
    if (tn_module_join(root[1], o) != TN_ERR_STATE) return "joining twice";
    if (tn_module_split(root[1], o) != TN_OK || tn_optimizer_state_bytes(o) != 8 * (INNER / 2 * (2 * IN + 1) + IN))
        return "splitting";
    if (tn_module_split(root[1], o) != TN_ERR_STATE) return "splitting twice";
    if (tn_optimizer_shard(o, g) != TN_ERR_UNSUPPORTED) return "ZeRO of divided layers";
    tn_data_parallel *p;
    tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
    tn_device *cpu = tn_current_device();
    options.group = g;
    if (tn_data_parallel_new(root[1], &cpu, 1, &options, &p) != TN_ERR_UNSUPPORTED) return "batches of divided layers";
    tn_optimizer_free(o);
    if (tn_module_divide(first[0], "weight", g, 0, INT64_C(1) << 62) != TN_ERR_SHAPE) return "too many sections";
    if (tn_nn_column_parallel_linear(root[1], "odd", IN, 7, false, g)) return "7 features on 2 ranks";
    tn_module_free(root[0]);
    tn_module_free(root[1]);
    return NULL;
}

enum { SHARD_ROWS = 3, SHARD_IN = 5, SHARD_INNER = 7, SHARD_STEPS = 3 };

/* Parts of 1 and 2 rows: the ranks must gather in one order all the same. */
static tn_tensor *output_of_shards(void *ctx, const tn_part *part) {
    return tn_forward(ctx, tn_part_rows(part, tn_ones(TN_DIMS(SHARD_ROWS, SHARD_IN), TN_F32)));
}

static tn_tensor *loss_of_shards(void *ctx, const tn_part *part) {
    float data[SHARD_ROWS * SHARD_IN];
    for (int i = 0; i < SHARD_ROWS * SHARD_IN; i++)
        data[i] = (float)(i % 11) * 0.25f - 1;
    tn_tensor *x = tn_part_rows(part, tn_from_data(data, TN_DIMS(SHARD_ROWS, SHARD_IN), TN_F32));
    return tn_mean(tn_square(tn_sub(tn_forward(ctx, x), x)), TN_ALL, false);
}

/* Steps of a small network, with parameters that the ranks divide or, without a group, whole; joined at the end. */
static const char *train_in_shards(tn_group *g, bool recomputes, tn_module **out, double *loss) {
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
    tn_device *cpu = tn_current_device();
    tn_optimizer *o;
    tn_data_parallel *p;
    adam.max_grad_norm = 0.05;
    options.parts = 2;
    options.group = g;
    tn_manual_seed(g ? 6 + (uint64_t)tn_group_rank(g) : 6); /* rank 0's values are taken */
    *out = tn_module_root();
    tn_module *net = tn_nn_sequential(*out, "net");
    tn_nn_linear(net, "0", SHARD_IN, SHARD_INNER, true);
    tn_nn_layer_norm(net, "1", SHARD_INNER, NULL);
    tn_nn_function(net, "2", tn_tanh);
    tn_nn_linear(net, "3", SHARD_INNER, SHARD_IN, true);
    if (g && tn_module_shard(*out, g) != TN_OK) return tn_error();
    if (g && tn_numel(tn_module_variable(net, "0.weight")) != (SHARD_IN * SHARD_INNER + 1) / 2) return "a part's size";
    if (tn_optimizer_adam(*out, &adam, &o) != TN_OK || tn_data_parallel_new(*out, &cpu, 1, &options, &p) != TN_OK)
        return tn_error();
    bool before = tn_set_auto_recompute(recomputes);
    for (int i = 0; i < SHARD_STEPS; i++)
        if (tn_data_parallel_minimize(p, o, SHARD_ROWS, loss_of_shards, net, &loss[i]) != TN_OK) return tn_error();
    (void)tn_set_auto_recompute(before);
    if (g && tn_data_parallel_minimize(p, o, 1, loss_of_shards, net, loss) == TN_OK) return "a rank without rows";
    tn_tensor *early = g ? tn_data_parallel_forward(p, SHARD_ROWS, output_of_shards, net) : NULL;
    if (g && tn_status_of(early) != TN_ERR_STATE) return "a forward pass of divided parameters";
    if (tn_module_join(*out, o) != TN_OK) return tn_error();
    double unused;
    tn_tensor *whole = tn_data_parallel_forward(p, SHARD_ROWS, output_of_shards, net);
    if (g && tn_eval(&whole, 1) != TN_OK) return tn_error();
    if (g && tn_data_parallel_minimize(p, o, SHARD_ROWS, loss_of_shards, net, &unused) != TN_ERR_STATE)
        return "a step of joined parameters";
    tn_data_parallel_free(p);
    tn_optimizer_free(o);
    return NULL;
}

/* Training with divided parameters has the bits of one process with as many parts. */
static const char *divided_parameters(tn_group *g) {
    double loss[3][SHARD_STEPS];
    tn_module *root[3];
    for (int k = 0; k < 3; k++) {
        const char *wrong = train_in_shards(k ? g : NULL, k == 2, &root[k], loss[k]);
        if (wrong) return wrong;
        if (memcmp(loss[k] + 1, loss[0] + 1, sizeof loss[0] - sizeof loss[0][0]) != 0) return "losses of shards";
    }
    static const char *const names[] = {"net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias", "net.3.weight"};
    for (size_t i = 0; i < 2 * TN_COUNT(names); i++) {
        const char *name = names[i / 2];
        if (apart(tn_module_variable(root[0], name), tn_module_variable(root[1 + i % 2], name)) != 0) return name;
    }
    for (int k = 0; k < 3; k++)
        tn_module_free(root[k]);
    return NULL;
}

/* What cannot be trained in shards is refused, with the same answer on all ranks. */
static const char *refused_shards(tn_group *g) {
    tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
    tn_device *cpu = tn_current_device();
    tn_optimizer *o;
    tn_data_parallel *p;
    double loss;
    options.group = g;
    tn_module *root = tn_module_root(), *first = tn_nn_linear(root, "first", SHARD_IN, SHARD_IN, false);
    tn_module *tied = tn_module_new(root, "tied", NULL, NULL);
    (void)tn_module_add_parameter(tied, "weight", tn_module_variable(first, "weight"));
    (void)tn_module_add_parameter(first, "empty", tn_ones(TN_DIMS(0, 2), TN_F32));
    tn_nn_linear(root, "last", SHARD_IN, SHARD_IN, false);
    if (tn_optimizer_sgd(root, NULL, &o) != TN_OK || tn_module_shard(tied, g) != TN_OK) return tn_error();
    if (tn_data_parallel_new(root, &cpu, 1, &options, &p) != TN_ERR_UNSUPPORTED) return "a whole parameter";
    if (tn_module_shard(root, g) != TN_ERR_STATE) return "a tied parameter divided twice";
    if (tn_module_shard(tn_module_child(root, "last"), g) != TN_OK) return tn_error();
    if (tn_data_parallel_new(root, &cpu, 1, &options, &p) != TN_OK) return tn_error();
    if (tn_data_parallel_minimize(p, o, SHARD_ROWS, loss_of_shards, first, &loss) != TN_ERR_STATE)
        return "an optimizer that was made before its parameters were divided";
    tn_data_parallel_free(p);
    tn_optimizer_free(o);
    tn_module_free(root);
    return NULL;
}

enum { KEPT_STEPS = 2 };

/* Trains with averages of the parameters; saves rank 0's checkpoint, all of it whole. */
static const char *train_with_averages(tn_group *g, const char *path, tn_module **out, tn_ema **averages) {
    tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
    tn_device *cpu = tn_current_device();
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    tn_variable *extras = NULL;
    tn_data_parallel *p;
    double loss;
    options.group = g;
    options.parts = 2;
    tn_manual_seed(8);
    tn_module *net = *out = c.model = tn_module_root();
    tn_nn_linear(net, "fc", SHARD_IN, SHARD_IN, true);
    int64_t count = tn_module_parameter_count(net);
    if (g && tn_module_shard(net, g) != TN_OK) return tn_error();
    if (tn_module_parameter_count(net) != count) return "the number of divided parameters";
    if (tn_optimizer_adam(net, NULL, &c.optimizer) != TN_OK || tn_ema_new(net, 0.5, averages) != TN_OK)
        return tn_error();
    if (tn_data_parallel_new(net, &cpu, 1, &options, &p) != TN_OK) return tn_error();
    for (int i = 0; i < KEPT_STEPS; i++)
        if (tn_data_parallel_minimize(p, c.optimizer, SHARD_ROWS, loss_of_shards, tn_module_child(net, "fc"), &loss) ||
            tn_ema_update(*averages) != TN_OK)
            return tn_error();
    tn_data_parallel_free(p);
    if (g) {
        tn_checkpoint only = TN_CHECKPOINT_DEFAULTS;
        only.optimizer = c.optimizer;
        if (tn_checkpoint_save(path, &only) != TN_ERR_STATE) return "a checkpoint of an optimizer's shares";
        if (tn_checkpoint_save(path, &c) != TN_ERR_STATE) return "a checkpoint of shares";
        if (tn_checkpoint_load(path, &c) != TN_ERR_STATE) return "a checkpoint into shares";
        if (tn_module_save(net, path) != TN_ERR_STATE || tn_module_load(net, path) != TN_ERR_STATE) return "weights";
        if (tn_ema_variables(*averages, &extras, &c.extra_count) != TN_ERR_STATE) return "averages of shares";
        if (tn_clip_grad_norm(net, 1, NULL) != TN_ERR_UNSUPPORTED) return "a norm of shares";
        tn_tensor *y = tn_forward(tn_module_child(net, "fc"), tn_ones(TN_DIMS(1, SHARD_IN), TN_F32));
        if (tn_status_of(y) != TN_ERR_STATE || !strstr(tn_error(), "tn_module_shard"))
            return "a forward pass of shares";
        tn_lbfgs *l;
        if (tn_lbfgs_new(net, NULL, &l) != TN_ERR_UNSUPPORTED) return "lbfgs of shares";
        options.group = NULL;
        if (tn_data_parallel_new(net, &cpu, 1, &options, &p) != TN_ERR_UNSUPPORTED) return "shares without a group";
        if (access(path, F_OK) == 0) return "a file of shares";
        if (tn_module_join(net, c.optimizer) != TN_OK) return tn_error();
        if (tn_ema_update(*averages) != TN_ERR_STATE || tn_ema_swap(*averages) != TN_ERR_STATE)
            return "averages of shares for whole parameters";
        if (tn_ema_join(*averages) != TN_OK) return tn_error();
    }
    if (tn_ema_variables(*averages, &extras, &c.extra_count) != TN_OK) return tn_error();
    c.extras = extras;
    if (!tn_group_rank(g) && tn_checkpoint_save(path, &c) != TN_OK) return tn_error();
    tn_variables_free(extras);
    if (g && (tn_module_split(net, c.optimizer) != TN_OK || tn_ema_split(*averages) != TN_OK)) return tn_error();
    if (g && tn_ema_update(*averages) != TN_OK) return tn_error();
    tn_optimizer_free(c.optimizer);
    return NULL;
}

/* Checkpoints of divided parameters, and of their averages, are those of whole ones; shares are refused. */
static const char *checkpoints_of_shares(tn_group *g, int rank) {
    char path[2][64];
    tn_module *root[2];
    tn_ema *averages[2];
    tn_safetensors *file[2];
    static const char *const names[] = {"model.fc.weight", "model.fc.bias", "extra.ema.fc.weight", "extra.ema.fc.bias"};
    for (int k = 0; k < 2; k++) {
        snprintf(path[k], sizeof path[k], "%s.%d", test_scratch("shares"), 2 * k + rank);
        const char *wrong = train_with_averages(k ? g : NULL, path[k], &root[k], &averages[k]);
        if (wrong) return wrong;
        tn_ema_free(averages[k]);
        tn_module_free(root[k]);
        if (!rank && tn_safetensors_open(path[k], &file[k]) != TN_OK) return tn_error();
    }
    for (int i = 0; i < 4 && !rank; i++)
        if (apart(tn_safetensors_tensor(file[0], names[i]), tn_safetensors_tensor(file[1], names[i])) != 0)
            return names[i];
    for (int k = 0; k < 2 && !rank; k++)
        tn_safetensors_close(file[k]);
    return NULL;
}

/* Ranks that run other exchanges than each other find out. */
static const char *other_exchanges(tn_group *g, int rank) {
    tn_tensor *x = tn_ones(TN_DIMS(2), TN_F32), *unused = rank ? tn_group_sum_forward(g, x) : NULL;
    tn_tensor *sum = tn_group_sum_forward(g, x);
    if (tn_group_settle(g, tn_eval(&sum, 1)) != TN_ERR_STATE) return "exchanges in another order";
    return unused && tn_status_of(unused) != TN_OK ? "an exchange that nothing needs" : NULL;
}

/* Sums over a group whose address that of a closed one of another size may have been. */
static const char *sum_after_another_group(tn_group **g) {
    TN_SCOPE;
    tn_group *small;
    tn_group_options alone = TN_GROUP_DEFAULTS;
    alone.backend = "self";
    tn_tensor *x = tn_ones(TN_DIMS(6), TN_F32);
    if (tn_eval(&x, 1) != TN_OK) return tn_error(); /* so that both sums have one recording */
    for (int64_t size = 1; size <= 2; size++) {
        double all = 0;
        if (tn_group_open(size == 1 ? &alone : NULL, size == 1 ? &small : g) != TN_OK) return tn_error();
        tn_tensor *sum = tn_group_sum_forward(size == 1 ? small : *g, x);
        if (tn_group_settle(size == 1 ? small : *g, tn_eval(&sum, 1)) != TN_OK) return tn_error();
        if (size == 1) tn_group_close(small);
        if (tn_read_item(tn_sum(sum, TN_ALL, false), &all) != TN_OK || all != 6.0 * (double)size)
            return "a closed group";
    }
    return NULL;
}

/* What two processes see; returns what was wrong, NULL if nothing. */
static const char *exchange_tensors(int rank) {
    TN_SCOPE;
    tn_group *g;
    float own[] = {1.0f + (float)rank, 0x1p-24f, 3}, is[6];
    const char *wrong = sum_after_another_group(&g);
    if (wrong) return wrong;
    tn_tensor *x = tn_from_data(own, TN_DIMS(3), TN_F32), *y = tn_from_data(own, TN_DIMS(3), TN_F32);
    tn_tensor *sum = tn_group_all_reduce_tensor(g, x), *first = tn_group_broadcast_tensor(g, x, 0);
    tn_tensor *all = tn_group_all_gather_tensor(g, tn_slice(x, 0, 1, 3, 1));
    tn_tensor *pair = tn_slice(y, 0, 0, 2, 1), *turned = tn_group_all_to_all_tensor(g, pair);
    if (tn_read_as(sum, is, 3, TN_F32) != TN_OK || is[0] != 3 || is[1] != 0x1p-23f || is[2] != 6) wrong = "all_reduce";
    if (tn_read_as(first, is, 3, TN_F32) != TN_OK || is[0] != 1 || is[2] != 3) wrong = "broadcast";
    if (tn_read_as(all, is, 4, TN_F32) != TN_OK || is[1] != 3 || is[2] != 0x1p-24f || is[3] != 3) wrong = "all_gather";
    if (tn_read_as(turned, is, 2, TN_F32) != TN_OK || is[0] != (rank ? 0x1p-24f : 1) || is[1] != (rank ? 0x1p-24f : 2))
        wrong = "all_to_all";
    if (tn_status_of(tn_group_all_to_all_tensor(g, x)) != TN_ERR_SHAPE) wrong = "a wrong first extent";
    if (!wrong) wrong = one_rank_has_no_memory(g, rank);
    if (!wrong) wrong = divided_layers(g);
    if (!wrong) wrong = divided_parameters(g);
    if (!wrong) wrong = refused_shards(g);
    if (!wrong) wrong = checkpoints_of_shares(g, rank);
    if (!wrong) wrong = other_exchanges(g, rank);
    if (!wrong) wrong = one_rank_fails(g, rank);
    tn_group_close(g);
    return wrong;
}

/* First, because a process with threads cannot be forked well. */
static void two_processes_exchange_tensors_over_tcp(void **state) {
    (void)state;
    char port[16];
    snprintf(port, sizeof port, "%d", 20000 + (int)getpid() % 20000);
    launched_with((const char *const[]){"WORLD_SIZE", "2", "RANK", "1", "MASTER_ADDR", "127.0.0.1", "MASTER_PORT", port,
                                        "TRUNNION_GROUP_SECONDS", "20", NULL});
    pid_t child = fork();
    if (child != 0) setenv("RANK", "0", 1);
    const char *wrong = exchange_tensors(child == 0);
    if (child == 0) {
        if (wrong) fprintf(stderr, "rank 1: %s\n", wrong);
        _exit(wrong != NULL);
    }
    int code = 0;
    assert_int_equal(waitpid(child, &code, 0), child);
    launched_with(NULL);
    if (wrong) fail_msg("rank 0: %s", wrong);
    assert_int_equal(code, 0);
}

static void a_group_of_one_copies(void **state) {
    (void)state;
    tn_group *g;
    char a[5] = "abcd", b[5] = "";
    assert_ok(tn_group_open(NULL, &g));
    assert_int_equal(tn_group_rank(g), 0);
    assert_int_equal(tn_group_size(g), 1);
    assert_string_equal(tn_group_backend(g), "self");
    assert_string_equal(tn_group_library(g), "");
    assert_ok(tn_group_all_gather(g, a, 5, b));
    assert_string_equal(b, "abcd");
    assert_ok(tn_group_all_to_all(g, "efgh", 5, b));
    assert_string_equal(b, "efgh");
    assert_ok(tn_group_broadcast(g, b, 5, 0));
    assert_string_equal(b, "efgh");
    assert_ok(tn_group_barrier(g));
    tn_group_abort(g, 1); /* nobody else is there to be ended */
    tn_group_close(g);
    tn_group_close(NULL);
    assert_int_equal(tn_group_size(NULL), 1);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    tn_group *g;
    char a[4] = "";
    tn_group_options o = TN_GROUP_DEFAULTS;
    o.backend = "carrier pigeon";
    assert_int_equal(tn_group_open(&o, &g), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "unknown backend \"carrier pigeon\"; known are auto, mpi, self and tcp");
    assert_null(g);
    assert_int_equal(tn_group_open(NULL, NULL), TN_ERR_ARGUMENT);
    assert_ok(tn_group_open(NULL, &g));
    assert_int_equal(tn_group_broadcast(g, a, 4, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "root 1 is not a rank; there are 1");
    assert_int_equal(tn_group_broadcast(g, NULL, 4, 0), TN_ERR_ARGUMENT);
    assert_int_equal(tn_group_all_gather(NULL, a, 4, a), TN_ERR_ARGUMENT);
    assert_int_equal(tn_group_all_to_all(g, a, 4, NULL), TN_ERR_ARGUMENT);
    tn_group_close(g);
}

static void a_missing_library_is_named(void **state) {
    (void)state;
    tn_group *g;
    tn_group_options o = TN_GROUP_DEFAULTS;
    o.backend = "mpi";
    launched_with((const char *const[]){"TRUNNION_MPI_LIB", "/nonexistent/libmpi.so", NULL});
    assert_int_equal(tn_group_open(&o, &g), TN_ERR_UNAVAILABLE);
    assert_text_has(tn_error(), "MPI: not found at the path in TRUNNION_MPI_LIB: /nonexistent/libmpi.so");
    launched_with((const char *const[]){"PMI_RANK", "0", "PMI_SIZE", "2", "TRUNNION_MPI_LIB", "libm.so.6", NULL});
    assert_int_equal(tn_group_open(NULL, &g), TN_ERR_UNAVAILABLE);
    assert_text_has(tn_error(), "function MPI_Init_thread is missing from");
    launched_with(NULL);
}

/* A group of one changes nothing. */
static void data_parallel_trains_in_a_group_of_one(void **state) {
    (void)state;
    tn_group *g;
    tn_data_parallel *p;
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    tn_device *cpu = tn_current_device();
    assert_ok(tn_group_open(NULL, &g));
    o.group = g;
    tn_module *m = tn_module_root();
    tn_nn_linear(m, "fc", 2, 1, true);
    assert_ok(tn_data_parallel_new(m, &cpu, 1, &o, &p));
    assert_int_equal(tn_data_parallel_device_count(p), 1);
    tn_data_parallel_free(p);
    tn_module_free(m);
    tn_group_close(g);
}

/* ---- a rank under mpirun whose MPI fails ------------------------------------------------------------------------- */

enum { FAULT_ROWS = 12, FAULT_WIDTH = 40, MOST_FAULTS = 200 };

/* Batch normalization: there are buffers to share after the exchanges of the gradients. */
static tn_tensor *loss_with_buffers(void *ctx, const tn_part *part) {
    tn_tensor *x = tn_part_rows(part, tn_ones(TN_DIMS(FAULT_ROWS, 4), TN_F32));
    return tn_mean(tn_square(tn_forward(ctx, tn_mul(x, tn_rand(TN_DIMS(part->rows, 4))))), TN_ALL, false);
}

/* One training step while the n-th call of `name` fails on one rank. 1: it failed on all ranks; 0: there are fewer
 * calls, and it succeeded on all; -1: the ranks disagree. */
static int step_with_fault(tn_group *g, void *fake, const char *name, int n, tn_data_parallel *p, tn_optimizer *o,
                           tn_module *net) {
    void (*arm)(const char *, long, int, int);
    long (*failures)(void);
    int32_t own[2], all[2 * 8];
    *(void **)&arm = dlsym(fake, "faults_arm");
    *(void **)&failures = dlsym(fake, "faults_failures");
    if (tn_group_rank(g) == n % tn_group_size(g)) arm(name, n, 15 /* MPI_ERR_OTHER */, 0);
    own[0] = tn_data_parallel_minimize(p, o, FAULT_ROWS, loss_with_buffers, net, NULL) == TN_OK;
    own[1] = (int32_t)failures();
    arm(NULL, 0, 0, 0);
    if (tn_group_all_gather(g, own, sizeof own, all) != TN_OK) return -1;
    int succeeded = 0, failed = 0;
    for (int rank = 0; rank < tn_group_size(g); rank++) {
        succeeded += all[2 * rank];
        failed += all[2 * rank + 1];
    }
    return succeeded == (failed ? 0 : tn_group_size(g)) ? failed : -1;
}

/* Lets each call of each function fail once. No rank may wait for another for ever, all fail, and the next step works:
 * prints how many failures that were, and the last loss. */
static const char *train_with_faults(tn_group *g, tn_module *root) {
    tn_module *net = tn_nn_sequential(root, "net");
    tn_data_parallel *p;
    tn_optimizer *o;
    tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
    tn_device *cpu = tn_current_device();
    void *fake = dlopen(getenv("TRUNNION_MPI_LIB"), RTLD_NOW);
    options.group = g;
    options.bucket_bytes = 2048;
    tn_nn_linear(net, "0", 4, FAULT_WIDTH, true);
    tn_nn_batch_norm1d(net, "1", FAULT_WIDTH, NULL);
    tn_nn_linear(net, "2", FAULT_WIDTH, FAULT_WIDTH, true);
    if (!fake || tn_optimizer_adam(root, NULL, &o) != TN_OK ||
        tn_data_parallel_new(root, &cpu, 1, &options, &p) != TN_OK)
        return "nothing to train with";
    static const char *const names[] = {"MPI_Irecv", "MPI_Isend", "MPI_Wait"};
    int counts[3] = {0};
    double loss = 0;
    for (int k = 0; k < 3; k++) {
        for (int n = 1, failed = 1; failed && n < MOST_FAULTS; n++) {
            failed = step_with_fault(g, fake, names[k], n, p, o, net);
            if (failed < 0) return names[k];
            counts[k] += failed;
            if (tn_data_parallel_minimize(p, o, FAULT_ROWS, loss_with_buffers, net, &loss) != TN_OK) return tn_error();
        }
    }
    if (tn_group_rank(g) == 0)
        printf("%d failures of MPI_Irecv, %d of MPI_Isend, %d of MPI_Wait; loss %g\n", counts[0], counts[1], counts[2],
               loss);
    tn_optimizer_free(o);
    tn_data_parallel_free(p);
    dlclose(fake);
    return NULL;
}

static int run_with_faults(void) {
    tn_group *g;
    const char *wrong = tn_group_open(NULL, &g) == TN_OK ? NULL : tn_error();
    if (!wrong) {
        TN_SCOPE;
        tn_module *root = tn_module_root();
        wrong = train_with_faults(g, root);
        if (wrong) fprintf(stderr, "rank %d: %s\n", tn_group_rank(g), wrong);
        if (wrong) tn_group_abort(g, 1);
        tn_module_free(root);
        tn_group_close(g);
    }
    return wrong != NULL;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "faults") == 0) return run_with_faults();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_processes_exchange_tensors_over_tcp),
        cmocka_unit_test(launchers_announce_rank_and_size),
        cmocka_unit_test(a_group_of_one_copies),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(data_parallel_trains_in_a_group_of_one),
    };
    launched_with(NULL);
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
