/* mixed_precision.c — trains a small network with products in f16, weights in f32 and a dynamic loss scale; a step
 * whose gradients overflow is skipped and leaves the weights as they were.
 *
 *   cc mixed_precision.c $(pkg-config --cflags --libs trunnion) && ./a.out */
#include <math.h>
#include <stdio.h>

#include <trunnion/trunnion.h>

enum { POINTS = 256, STEPS = 300 };

static int failed(void) {
    fprintf(stderr, "%s\n", tn_error());
    return 1;
}

/* sin(3x) on [-1, 1). */
static void make_points(float *x, float *y) {
    for (int i = 0; i < POINTS; i++) {
        x[i] = (float)i / POINTS * 2 - 1;
        y[i] = (float)sin(3.0 * (double)x[i]);
    }
}

int main(void) {
    float x[POINTS], y[POINTS];
    make_points(x, y);

    tn_module *model = tn_module_root();
    tn_module *net = tn_nn_sequential(model, "net");
    tn_nn_linear(net, "0", 1, 64, true);
    tn_nn_function(net, "1", tn_tanh);
    tn_nn_linear(net, "2", 64, 1, true);
    if (tn_module_status(model) != TN_OK) return failed();

    tn_optimizer *adam;
    tn_adam_options options = TN_ADAM_DEFAULTS;
    options.lr = 0.01;
    if (tn_optimizer_adam(model, &options, &adam) != TN_OK) return failed();
    if (tn_optimizer_set_grad_scaler(adam, NULL) != TN_OK) return failed(); /* scale 65536; needed for f16 only */

    double last = NAN;
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *loss;
        {
            TN_AUTOCAST(TN_F16); /* the two products run in f16, the loss in f32 */
            tn_tensor *inputs = tn_from_data(x, (int64_t[]){POINTS, 1}, 2, TN_F32);
            tn_tensor *targets = tn_from_data(y, (int64_t[]){POINTS, 1}, 2, TN_F32);
            loss = tn_mse_loss(tn_forward(net, inputs), targets, TN_REDUCTION_MEAN);
        }
        tn_tensor *used = step == 100 ? tn_mul_scalar(loss, INFINITY) : loss; /* an overflow, for show */
        if (tn_minimize(adam, used) != TN_OK) return failed();
        last = tn_item(loss);
    }
    printf("loss %.5f; %lld of %d steps skipped, loss scale %g\n", last, (long long)tn_optimizer_skipped_steps(adam),
           STEPS, tn_optimizer_loss_scale(adam));
    int code = last < 0.01 && tn_optimizer_skipped_steps(adam) == 1 ? 0 : 1;
    tn_optimizer_free(adam);
    tn_module_free(model);
    return code;
}
