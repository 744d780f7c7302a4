/* test_recompute.c — recomputation and training within a limit of memory: the same bits, in fewer bytes. */
#include "test_support.h"

#include <math.h>
#include <string.h>

#include "trunnion/trunnion.h"

/* ---- three networks whose activations are much larger than their weights ----------------------------------------- */

enum { MLP, CNN, TRANSFORMER, NETS, STEPS = 3, CLASSES = 10 };
static const char *const names[NETS] = {"mlp", "cnn", "transformer"};

typedef struct net {
    tn_device *device;
    tn_module *root, *body, *head;
    tn_optimizer *optimizer;
    tn_data_parallel *all;
    tn_tensor *x, *y;
    int64_t rows;
} net;

static tn_tensor *mean_of_channels(const tn_tensor *x) { return tn_mean(x, (int64_t[]){2, 3}, 2, false); }
static tn_tensor *mean_of_tokens(const tn_tensor *x) { return tn_mean(x, (int64_t[]){1}, 1, false); }

static int64_t build_mlp(net *n) {
    for (int i = 0; i < 12; i++) {
        char name[2][8];
        snprintf(name[0], sizeof name[0], "%d", 2 * i);
        snprintf(name[1], sizeof name[1], "%d", 2 * i + 1);
        tn_nn_linear(n->body, name[0], 64, i == 11 ? CLASSES : 64, true);
        if (i < 11) tn_nn_function(n->body, name[1], tn_tanh);
    }
    n->x = tn_randn(TN_DIMS(2048, 64));
    return 2048;
}

static int64_t build_cnn(net *n) {
    tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS;
    same.padding = 1;
    for (int i = 0; i < 6; i++) {
        char name[3][8];
        for (int k = 0; k < 3; k++)
            snprintf(name[k], sizeof name[k], "%d", 3 * i + k);
        tn_nn_conv2d(n->body, name[0], i ? 16 : 3, 16, 3, &same);
        tn_nn_group_norm(n->body, name[1], 4, 16, NULL);
        tn_nn_function(n->body, name[2], tn_relu);
    }
    tn_nn_function(n->body, "mean", mean_of_channels);
    tn_nn_linear(n->body, "head", 16, CLASSES, true);
    n->x = tn_randn(TN_DIMS(16, 3, 24, 24));
    return 16;
}

static int64_t build_transformer(net *n) {
    tn_nn_encoder_options o = TN_NN_ENCODER_DEFAULTS;
    o.feedforward = 128;
    for (int i = 0; i < 6; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        tn_nn_transformer_encoder_layer(n->body, name, 64, 4, &o);
    }
    tn_nn_function(n->body, "mean", mean_of_tokens);
    tn_nn_linear(n->body, "head", 64, CLASSES, true);
    n->x = tn_randn(TN_DIMS(16, 32, 64));
    return 16;
}

static int64_t (*const builders[NETS])(net *n) = {build_mlp, build_cnn, build_transformer};

static net net_new(int kind, tn_device *device, const tn_data_parallel_options *o) {
    net n = {.device = device, .root = tn_module_root()};
    tn_manual_seed(3);
    assert_ok(tn_set_current_device(device));
    n.body = tn_nn_sequential(n.root, "net");
    {
        TN_SCOPE;
        n.rows = builders[kind](&n);
        tn_keep(n.x);
        n.y = tn_keep(tn_cast(tn_floor(tn_mul_scalar(tn_rand(TN_DIMS(n.rows)), CLASSES)), TN_I64));
    }
    assert_ok(tn_eval((tn_tensor *[]){n.x, n.y}, 2));
    assert_ok(tn_module_status(n.root));
    assert_ok(tn_optimizer_adam(n.root, NULL, &n.optimizer));
    assert_ok(tn_data_parallel_new(n.root, &device, 1, o, &n.all));
    return n;
}

static void net_free(net *n) {
    tn_data_parallel_free(n->all);
    tn_optimizer_free(n->optimizer);
    tn_module_free(n->root);
    tn_free(n->x);
    tn_free(n->y);
    assert_ok(tn_set_current_device(NULL));
}

static tn_tensor *loss_of(void *ctx, const tn_part *part) {
    const net *n = ctx;
    tn_tensor *x = tn_part_rows(part, n->x), *y = tn_part_rows(part, n->y), *loss;
    loss = tn_cross_entropy(tn_forward(n->body, x), y, NULL, NULL);
    tn_free(x);
    tn_free(y);
    return loss;
}

/* Losses of some steps; the peak of the device's memory in the last ones, beyond what was there before. */
static tn_status train(net *n, double losses[STEPS], int64_t *peak) {
    for (int i = 0; i < STEPS; i++) {
        if (i == 1) tn_device_reset_pool_peak(n->device);
        tn_status s = tn_data_parallel_minimize(n->all, n->optimizer, n->rows, loss_of, n, &losses[i]);
        if (s != TN_OK) return s;
    }
    tn_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(tn_device_get_pool_stats(n->device, &stats));
    *peak = stats.peak_bytes;
    return TN_OK;
}

static void recomputation_keeps_bits_and_saves_memory(void **state) {
    (void)state;
    tn_device *device = NULL;
    assert_ok(tn_device_open("cpu", NULL, NULL, &device));
    for (int kind = 0; kind < NETS; kind++) {
        double losses[2][STEPS];
        int64_t peak[2];
        for (int on = 0; on < 2; on++) {
            net n = net_new(kind, device, NULL);
            bool before = tn_set_auto_recompute(on);
            assert_ok(train(&n, losses[on], &peak[on]));
            assert_false(before);
            assert_true(tn_set_auto_recompute(false) == (on != 0));
            net_free(&n);
            tn_clear_plans();
        }
        printf("%s: %lld KiB, with recomputation %lld KiB\n", names[kind], (long long)peak[0] >> 10,
               (long long)peak[1] >> 10);
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        assert_true(peak[1] < peak[0] * 3 / 4);
    }
    tn_device_close(device);
}

/* Trains within `limit` bytes (0: none). */
static tn_status train_within(int kind, const char *name, int64_t limit, double losses[STEPS], int64_t *peak,
                              tn_memory_report *saving) {
    tn_device *device = NULL;
    assert_ok(tn_device_open(name, NULL, NULL, &device));
    assert_ok(tn_device_set_pool_max(device, (size_t)limit));
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.save_memory = true;
    net n = net_new(kind, device, &o);
    tn_status status = train(&n, losses, peak);
    *saving = (tn_memory_report){.struct_size = sizeof *saving};
    assert_ok(tn_data_parallel_get_saving(n.all, saving));
    net_free(&n);
    tn_clear_plans();
    assert_ok(tn_device_set_pool_max(device, 0));
    tn_device_close(device);
    return status;
}

/* The bits of the unlimited run while the batch is whole; within rounding when it is in parts. */
static void training_finds_a_way_within_a_limit(void **state) {
    const char *name = *state ? *state : "cpu";
    static const int percents[] = {75, 50, 35};
    for (int kind = 0; kind < NETS; kind++) {
        double free_losses[STEPS], losses[STEPS];
        int64_t free_peak, peak;
        tn_memory_report saving;
        assert_ok(train_within(kind, name, 0, free_losses, &free_peak, &saving));
        assert_false(saving.recomputes);
        assert_int_equal(saving.parts, 1);
        for (int i = 0; i < 3; i++) {
            int64_t limit = free_peak * percents[i] / 100;
            tn_status status = train_within(kind, name, limit, losses, &peak, &saving);
            printf("%s, %s: %d %% of %lld KiB: peak %lld KiB, recomputes: %d, parts: %d\n", name, names[kind],
                   percents[i], (long long)free_peak >> 10, (long long)peak >> 10, saving.recomputes, saving.parts);
            assert_ok(status);
            assert_true(peak <= limit);
            assert_true(saving.recomputes || saving.parts > 1);
            for (int k = 0; k < STEPS; k++) {
                if (saving.parts == 1) assert_memory_equal(&losses[k], &free_losses[k], sizeof losses[k]);
                assert_true(fabs(losses[k] - free_losses[k]) <= 1e-5 * fabs(free_losses[k]));
            }
        }
    }
}

static void what_is_missing_is_told_in_bytes(void **state) {
    (void)state;
    double losses[STEPS];
    int64_t peak;
    tn_memory_report saving;
    int64_t limit = 3 << 19; /* 1.5 MiB; in 64 parts the mlp fits 2 MiB */
    assert_int_equal(train_within(MLP, "cpu", limit, losses, &peak, &saving), TN_ERR_MEMORY);
    printf("%s\n", tn_error());
    assert_non_null(strstr(tn_error(), "limit is 1.5 MiB"));
    assert_non_null(strstr(tn_error(), "are missing"));
    assert_true(saving.refused_bytes > limit);
    /* A bound from below: evaluations that come after the refused one may need more. */
    assert_ok(train_within(MLP, "cpu", 2 * saving.refused_bytes, losses, &peak, &saving));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputation_keeps_bits_and_saves_memory),
        cmocka_unit_test(training_finds_a_way_within_a_limit),
        cmocka_unit_test(what_is_missing_is_told_in_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
