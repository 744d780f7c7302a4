/* distributed.c — one model trained by several processes: each computes its parts of every batch.
 *
 *   cc distributed.c $(pkg-config --cflags --libs trunnion) && mpirun -n 4 ./a.out
 *
 * One process computes all four parts itself, and prints the same loss to the last bit: gradients are added in the
 * order of the parts, dropout draws the same numbers, and batch normalization follows the first part. */
#include <stdio.h>

#include <trunnion/trunnion.h>

enum { ROWS = 64, WIDTH = 8, HIDDEN = 32, STEPS = 40, PARTS = 4 };

typedef struct task {
    tn_module *net;
    tn_tensor *x, *y;
} task;

static tn_tensor *as_channels(const tn_tensor *x) { return tn_reshape(x, TN_DIMS(-1, HIDDEN, 1, 1)); }
static tn_tensor *as_rows(const tn_tensor *x) { return tn_reshape(x, TN_DIMS(-1, HIDDEN)); }
static tn_tensor *dropped(const tn_tensor *x) { return tn_dropout(x, 0.1, true); }

/* A batch of which every rank records only its rows. */
static tn_tensor *loss_of_rows(void *ctx, const tn_part *part) {
    const task *t = ctx;
    tn_tensor *x = tn_part_rows(part, t->x), *y = tn_part_rows(part, t->y);
    return tn_mse_loss(tn_forward(t->net, x), y, TN_REDUCTION_MEAN);
}

static tn_status train(tn_group *group, tn_device *device, double *loss) {
    tn_module *model = tn_module_root(), *net = tn_nn_sequential(model, "net");
    tn_nn_linear(net, "0", WIDTH, HIDDEN, true);
    tn_nn_function(net, "1", as_channels);
    tn_nn_batch_norm2d(net, "2", HIDDEN, NULL);
    tn_nn_function(net, "3", tn_tanh);
    tn_nn_function(net, "4", as_rows);
    tn_nn_function(net, "5", dropped);
    tn_nn_linear(net, "6", HIDDEN, 1, true);

    tn_optimizer *adam = NULL;
    tn_data_parallel *all = NULL;
    tn_data_parallel_options parts = TN_DATA_PARALLEL_DEFAULTS;
    parts.parts = PARTS;
    parts.group = group;
    parts.bucket_bytes = 1 << 10; /* so small that this model's gradients are exchanged in several buckets */
    tn_status status = tn_optimizer_adam(model, NULL, &adam);
    if (status == TN_OK) status = tn_data_parallel_new(model, &device, 1, &parts, &all);
    task t = {.net = net, .x = tn_randn(TN_DIMS(ROWS, WIDTH))};
    t.y = tn_sum(tn_sin(t.x), (int64_t[]){1}, 1, true);
    for (int step = 0; step < STEPS && status == TN_OK; step++)
        status = tn_data_parallel_minimize(all, adam, ROWS, loss_of_rows, &t, loss);
    tn_data_parallel_free(all);
    tn_optimizer_free(adam);
    tn_module_free(model);
    return status;
}

int main(void) {
    tn_group *group;
    tn_device *device;
    double loss = 0;
    tn_status status = tn_group_open(NULL, &group);
    if (status == TN_OK) {
        status = tn_device_open("cpu", NULL, NULL, &device);
        if (status == TN_OK) {
            tn_set_current_device(device);
            TN_SCOPE;
            tn_manual_seed(7);
            status = train(group, device, &loss);
        }
        if (status == TN_OK && tn_group_rank(group) == 0)
            printf("loss %.17g, %d processes, %s\n", loss, tn_group_size(group), tn_group_backend(group));
    }
    if (status != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        tn_group_abort(group, 1); /* the other processes wait for this one */
        return 1;
    }
    tn_device_close(device);
    tn_group_close(group);
    return 0;
}
