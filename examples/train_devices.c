/* train_devices.c — one model trained on several devices: each computes its part of every batch.
 *
 *   cc train_devices.c $(pkg-config --cflags --libs trunnion) && ./a.out cuda:0 cuda:1
 *
 * Without names the processor computes both parts; the numbers are the same. */
#include <stdio.h>

#include <trunnion/trunnion.h>

enum { ROWS = 64, WIDTH = 8, STEPS = 100, MOST = 8 };

typedef struct task {
    tn_module *net;
    tn_tensor *x, *y;
} task;

static int failed(void) {
    fprintf(stderr, "%s\n", tn_error());
    return 1;
}

/* The loss of some rows of the batch. `net` stands for the copy on the part's device meanwhile. */
static tn_tensor *loss_of_rows(void *ctx, const tn_part *part) {
    const task *t = ctx;
    tn_tensor *x = tn_part_rows(part, t->x), *y = tn_part_rows(part, t->y);
    return tn_mse_loss(tn_forward(t->net, x), y, TN_REDUCTION_MEAN);
}

static int train(tn_device *const *devices, int count) {
    tn_module *model = tn_module_root(), *net = tn_nn_sequential(model, "net");
    tn_nn_linear(net, "0", WIDTH, 32, true);
    tn_nn_function(net, "1", tn_tanh);
    tn_nn_linear(net, "2", 32, 1, true);

    tn_optimizer *adam;
    tn_data_parallel *all;
    tn_adam_options rate = TN_ADAM_DEFAULTS;
    rate.lr = 0.01;
    tn_data_parallel_options two = TN_DATA_PARALLEL_DEFAULTS;
    two.parts = 2;
    if (tn_optimizer_adam(model, &rate, &adam) != TN_OK) return failed();
    if (tn_data_parallel_new(model, devices, count, &two, &all) != TN_OK) return failed();

    task t = {.net = net, .x = tn_randn(TN_DIMS(ROWS, WIDTH))};
    t.y = tn_sum(tn_sin(t.x), (int64_t[]){1}, 1, true);
    double first = 0, last = 0;
    for (int step = 0; step < STEPS; step++) {
        if (tn_data_parallel_minimize(all, adam, ROWS, loss_of_rows, &t, &last) != TN_OK) return failed();
        if (step == 0) first = last;
    }
    printf("loss %.4f, then %.4f\n", first, last);

    tn_data_parallel_device d = {.struct_size = sizeof d};
    for (int i = 0; tn_data_parallel_device_at(all, i, &d) == TN_OK; i++)
        printf("%s computed %lld parts%s%s\n", d.id, (long long)d.parts, d.lost ? ", then failed: " : "", d.reason);

    tn_data_parallel_free(all);
    tn_optimizer_free(adam);
    tn_module_free(model);
    return last < first / 4 ? 0 : 1;
}

int main(int argc, char **argv) {
    tn_device *devices[MOST];
    int count = 0, result = 1;
    for (int i = 1; i < argc && count < MOST; i++)
        if (tn_device_open(argv[i], NULL, NULL, &devices[count++]) != TN_OK) return failed();
    if (count == 0 && tn_device_open("cpu", NULL, NULL, &devices[count++]) != TN_OK) return failed();
    tn_set_current_device(devices[0]);
    {
        TN_SCOPE;
        result = train(devices, count);
    }
    tn_set_current_device(NULL);
    for (int i = 0; i < count; i++)
        tn_device_close(devices[i]);
    return result;
}
