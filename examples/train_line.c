/* train_line.c — fits y = 3x − 1 to noisy points: a module, a loss, an optimiser, a checkpoint.
 *
 *   cc train_line.c $(pkg-config --cflags --libs trunnion) && ./a.out */
#include <math.h>
#include <stdio.h>

#include <trunnion/trunnion.h>

enum { POINTS = 64, STEPS = 200 };

static int failed(void) {
    fprintf(stderr, "%s\n", tn_error());
    return 1;
}

/* Points on the line, with a little noise that is no random number so that every run is the same. */
static void make_points(float *x, float *y) {
    for (int i = 0; i < POINTS; i++) {
        x[i] = (float)i / POINTS * 2 - 1;
        y[i] = 3 * x[i] - 1 + 0.05F * (float)sin(37.0 * i);
    }
}

int main(void) {
    float x[POINTS], y[POINTS];
    make_points(x, y);

    tn_module *model = tn_module_root();
    tn_module *line = tn_nn_linear(model, "line", 1, 1, true);
    if (tn_module_status(model) != TN_OK) return failed();

    tn_optimizer *adam;
    tn_adam_options options = TN_ADAM_DEFAULTS;
    options.lr = 0.1;
    if (tn_optimizer_adam(model, &options, &adam) != TN_OK) return failed();

    double last = NAN;
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *inputs = tn_from_data(x, (int64_t[]){POINTS, 1}, 2, TN_F32);
        tn_tensor *targets = tn_from_data(y, (int64_t[]){POINTS, 1}, 2, TN_F32);
        tn_tensor *loss = tn_mse_loss(tn_forward(line, inputs), targets, TN_REDUCTION_MEAN);
        if (tn_minimize(adam, loss) != TN_OK) return failed(); /* backward and step, one plan */
        last = tn_item(loss);
    }
    double weight = tn_item(tn_module_variable(model, "line.weight")),
           bias = tn_item(tn_module_variable(model, "line.bias"));
    printf("y = %.2f x %+.2f, loss %.5f\n", weight, bias, last);

    tn_optimizer_free(adam);
    tn_module_free(model);
    return fabs(weight - 3) < 0.05 && fabs(bias + 1) < 0.05 ? 0 : 1;
}
