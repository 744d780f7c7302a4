/* test_steps.c — training may go on for ever: whatever layer, loss and optimiser, a step leaves nothing behind that the
 * step before it did not leave; and when all is freed, nothing is recorded any more. */
#include "test_support.h"

#include "hal/hal.h"
#include "live_blocks.h"
#include "plan/plan.h"
#include "tensor/graph.h"
#include "trunnion/trunnion.h"

enum { WARM = 6, STEPS = 40, BATCH = 4, FEATURES = 8, SIDE = 8 };

/* What may grow: nodes that wait in this thread's recorder, allocations, the device's memory. */
typedef struct amounts {
    int64_t nodes, blocks, bytes;
} amounts;

static amounts amounts_now(void) {
    int64_t blocks = test_live_blocks();
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    assert_ok(tn_get_runtime_stats(&stats));
    return (amounts){(int64_t)tn_recorder_here()->count, blocks, stats.live_bytes};
}

static void assert_no_more(amounts now, amounts before, const char *what) {
    if (now.nodes > before.nodes || now.blocks > before.blocks || now.bytes > before.bytes)
        fail_msg(
            "%s: %lld nodes wait, %lld allocations and %lld bytes of the device live, where it was %lld, %lld, %lld",
            what, (long long)now.nodes, (long long)now.blocks, (long long)now.bytes, (long long)before.nodes,
            (long long)before.blocks, (long long)before.bytes);
}

/* ---- networks: each takes [BATCH, FEATURES] or a picture, each has its layer between others ---------------------- */

static void linear(tn_module *net) { tn_nn_linear(net, "layer", FEATURES, FEATURES, true); }
static void layer_norm(tn_module *net) { tn_nn_layer_norm(net, "layer", FEATURES, NULL); }
static void dropout(tn_module *net) { tn_nn_dropout(net, "layer", 0.5); }
static void function(tn_module *net) { tn_nn_function(net, "layer", tn_silu); }

static tn_tensor *as_picture(const tn_tensor *x) {
    return tn_expand(tn_view(x, TN_DIMS(BATCH, FEATURES, 1, 1)), TN_DIMS(BATCH, FEATURES, SIDE, SIDE));
}
static tn_tensor *of_picture(const tn_tensor *x) { return tn_mean(x, TN_DIMS(2, 3), false); }

static void convolution(tn_module *net) {
    tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS;
    same.padding = 1;
    tn_nn_function(net, "picture", as_picture);
    tn_nn_conv2d(net, "layer", FEATURES, FEATURES, 3, &same);
    tn_nn_function(net, "mean", of_picture);
}

static void batch_norm(tn_module *net) {
    tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS;
    same.padding = 1;
    same.bias = false;
    tn_nn_function(net, "picture", as_picture);
    tn_nn_conv2d(net, "conv", FEATURES, FEATURES, 3, &same);
    tn_nn_batch_norm2d(net, "layer", FEATURES, NULL);
    tn_nn_function(net, "relu", tn_relu);
    tn_nn_function(net, "mean", of_picture);
}

static tn_tensor *as_sequence(const tn_tensor *x) { return tn_view(x, TN_DIMS(1, BATCH, FEATURES)); }
static tn_tensor *of_sequence(const tn_tensor *x) { return tn_view(x, TN_DIMS(BATCH, FEATURES)); }

static void attention(tn_module *net) {
    tn_nn_function(net, "sequence", as_sequence);
    tn_nn_multihead_attention(net, "layer", FEATURES, 2, 0.1);
    tn_nn_function(net, "rows", of_sequence);
}

static void encoder(tn_module *net) {
    tn_nn_function(net, "sequence", as_sequence);
    tn_nn_transformer_encoder_layer(net, "layer", FEATURES, 2, NULL);
    tn_nn_function(net, "rows", of_sequence);
}

static tn_tensor *as_classes(const tn_tensor *x) { return tn_argmax(x, TN_DIMS(1), false); }

static void embedding(tn_module *net) {
    tn_nn_function(net, "classes", as_classes);
    tn_nn_embedding(net, "layer", FEATURES, FEATURES);
}

static tn_tensor *recur(tn_module *m, const tn_tensor *x) {
    tn_tensor *h = tn_zeros(TN_DIMS(BATCH, FEATURES), TN_F32), *c = h;
    for (int step = 0; step < 3; step++)
        tn_lstm_cell_forward(tn_module_child(m, "cell"), x, h, c, &h, &c);
    return h;
}

static void lstm(tn_module *net) {
    static const tn_module_type type = {sizeof(tn_module_type), "recur", recur, NULL};
    tn_nn_lstm_cell(tn_module_new(net, "layer", &type, NULL), "cell", FEATURES, FEATURES);
}

static const struct {
    const char *name;
    void (*add)(tn_module *net);
} layers[] = {
    {"linear", linear},       {"layer_norm", layer_norm},   {"dropout", dropout},     {"function", function},
    {"conv2d", convolution},  {"batch_norm2d", batch_norm}, {"attention", attention}, {"encoder", encoder},
    {"embedding", embedding}, {"lstm_cell", lstm},
};

/* ---- losses: of logits y [BATCH, FEATURES] ----------------------------------------------------------------------- */

static tn_tensor *half(const tn_tensor *y) { return tn_full_like(y, 0.5); }

static tn_tensor *classes_of(void) {
    static const int64_t classes[BATCH] = {0, 3, 7, 1};
    return tn_from_data(classes, TN_DIMS(BATCH), TN_I64);
}

static tn_tensor *mse(const tn_tensor *y) { return tn_mse_loss(y, half(y), TN_REDUCTION_MEAN); }
static tn_tensor *l1(const tn_tensor *y) { return tn_l1_loss(y, half(y), TN_REDUCTION_SUM); }
static tn_tensor *smooth_l1(const tn_tensor *y) { return tn_smooth_l1_loss(y, half(y), TN_REDUCTION_MEAN, NULL); }
static tn_tensor *huber(const tn_tensor *y) { return tn_huber_loss(y, half(y), TN_REDUCTION_MEAN, NULL); }
static tn_tensor *kl(const tn_tensor *y) { return tn_kl_div(tn_log_softmax(y, 1), half(y), TN_REDUCTION_MEAN, NULL); }
static tn_tensor *bce(const tn_tensor *y) {
    return tn_binary_cross_entropy(tn_sigmoid(y), half(y), NULL, TN_REDUCTION_MEAN);
}
static tn_tensor *bce_logits(const tn_tensor *y) {
    return tn_binary_cross_entropy_with_logits(y, half(y), NULL, NULL, TN_REDUCTION_MEAN);
}
static tn_tensor *nll(const tn_tensor *y) { return tn_nll_loss(tn_log_softmax(y, 1), classes_of(), NULL, NULL); }
static tn_tensor *cross_entropy(const tn_tensor *y) { return tn_cross_entropy(y, classes_of(), NULL, NULL); }

static const struct {
    const char *name;
    tn_tensor *(*of)(const tn_tensor *y);
} losses[] = {
    {"mse", mse},
    {"l1", l1},
    {"smooth_l1", smooth_l1},
    {"huber", huber},
    {"kl_div", kl},
    {"bce", bce},
    {"bce_logits", bce_logits},
    {"nll", nll},
    {"cross_entropy", cross_entropy},
};

/* ---- optimisers -------------------------------------------------------------------------------------------------- */

static tn_status sgd(tn_module *net, tn_optimizer **o) {
    tn_sgd_options options = TN_SGD_DEFAULTS;
    options.lr = 1e-3;
    options.momentum = 0.9;
    return tn_optimizer_sgd(net, &options, o);
}
static tn_status adam(tn_module *net, tn_optimizer **o) { return tn_optimizer_adam(net, NULL, o); }
static tn_status adamw(tn_module *net, tn_optimizer **o) { return tn_optimizer_adamw(net, NULL, o); }

static tn_status (*const optimisers[])(tn_module *net, tn_optimizer **o) = {sgd, adam, adamw};

/* ---- the promise ------------------------------------------------------------------------------------------------- */

/* Trains a network and frees it; yields what is left then. */
static amounts train(size_t layer, size_t loss, size_t optimiser) {
    char what[96];
    snprintf(what, sizeof what, "%s, %s, optimiser %d", layers[layer].name, losses[loss].name, (int)optimiser);
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_nn_linear(net, "first", FEATURES, FEATURES, true);
    layers[layer].add(net);
    tn_nn_linear(net, "last", FEATURES, FEATURES, true);
    assert_ok(tn_module_status(root));
    tn_optimizer *o = NULL;
    assert_ok(optimisers[optimiser](net, &o));
    amounts before = {0};
    for (int step = 0; step < STEPS; step++) {
        double value = 0;
        {
            TN_SCOPE;
            tn_tensor *l = losses[loss].of(tn_forward(net, tn_randn(TN_DIMS(BATCH, FEATURES))));
            assert_ok(tn_minimize(o, l));
            value = tn_item(l);
        }
        if (!(value == value)) fail_msg("%s: step %d has no loss: %s", what, step, tn_error());
        if (step == WARM) before = amounts_now();
        if (step > WARM) assert_no_more(amounts_now(), before, what);
    }
    tn_optimizer_free(o);
    tn_module_free(root);
    assert_int_equal(tn_recorder_here()->count, 0);
    return amounts_now();
}

/* Plans, their memory and free lists stay with the thread: some rounds make them, the last one has them already. */
static void train_again(size_t layer, size_t loss, size_t optimiser) {
    amounts before = {0};
    for (int round = 0; round < 4; round++)
        before = train(layer, loss, optimiser);
    assert_no_more(train(layer, loss, optimiser), before, layers[layer].name);
}

static void a_step_leaves_nothing_behind(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(layers); i++)
        train_again(i, i % TN_COUNT(losses), i % TN_COUNT(optimisers));
    for (size_t i = 0; i < TN_COUNT(losses); i++)
        train_again(0, i, i % TN_COUNT(optimisers));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_leaves_nothing_behind),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
