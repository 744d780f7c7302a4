/* bench_work.c — the works of `trunnion bench`, each as a user of the library would write it.
 *
 * A table row names the work, its sizes and its three functions. Weights and inputs are random, of one seed. What
 * is timed is a whole call with its recording, but for `add-16`, which is replayed. Policies train on batches that
 * differ, as in life: on one alone many gradients vanish, and arithmetic on numbers next to zero is slow. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "trunnion/backend.h"

enum { RECORDED = 15 };

void bench_end_work(void *self) {
    bench_holder *h = self;
    if (!h) return;
    for (int i = 0; i < BENCH_TENSORS; i++)
        tn_free(h->t[i]);
    for (int i = 0; i < h->results; i++)
        tn_free(h->result[i]);
    tn_graph_free(h->graph);
    tn_optimizer_free(h->optimizer);
    tn_policy_free(h->policy);
    tn_module_free(h->module);
    tn_loader_free(h->loader);
    tn_dataset_free(h->dataset);
    free(h);
}

bench_holder *bench_new_holder(void **self) {
    tn_manual_seed(1);
    return *self = calloc(1, sizeof(bench_holder));
}

void bench_keep_result(bench_holder *h, tn_tensor *y) {
    if (!h->keeps || h->results == BENCH_RESULTS) return;
    h->result[h->results++] = tn_retain(y);
}

void bench_keep_results(void *self) { ((bench_holder *)self)->keeps = true; }

bench_parts bench_parts_of(const void *self) {
    const bench_holder *h = self;
    const tn_module *module = h->policy ? tn_policy_module(h->policy) : h->module;
    return (bench_parts){h->t, h->result, h->inputs, h->results, module};
}

tn_status bench_work_out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "out of memory"); }

tn_tensor *bench_numbers(const int64_t *shape, int rank, tn_dtype dtype) {
    tn_tensor *x = NULL;
    {
        TN_SCOPE;
        x = tn_keep(tn_cast(tn_sub_scalar(tn_mul_scalar(tn_rand(shape, rank), 2), 1), dtype));
    }
    (void)tn_eval(&x, 1); /* an error stays in x and is met by whoever reads it */
    return x;
}

static tn_tensor *matrix(int64_t rows, int64_t columns, tn_dtype dtype) {
    return bench_numbers((int64_t[]){rows, columns}, 2, dtype);
}

tn_status bench_finish(bench_holder *h, tn_tensor *y) {
    tn_status s = tn_eval(&y, 1);
    bench_keep_result(h, y);
    return s;
}

/* ---- matrix products --------------------------------------------------------------------------------------------- */

static tn_status begin_gemm_as(bench_work *w, void **self, tn_dtype dtype) {
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->t[0] = matrix(w->size[0], w->size[0], dtype);
    h->t[1] = matrix(w->size[0], w->size[1], dtype);
    h->inputs = 2;
    return TN_OK;
}

static tn_status begin_gemm(bench_work *w, void **self) { return begin_gemm_as(w, self, TN_F32); }
static tn_status begin_gemm_bf16(bench_work *w, void **self) { return begin_gemm_as(w, self, TN_BF16); }
static tn_status begin_gemm_f16(bench_work *w, void **self) { return begin_gemm_as(w, self, TN_F16); }

static tn_status run_gemm(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    return bench_finish(h, tn_matmul(h->t[0], h->t[1]));
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

static tn_status begin_pair(bench_work *w, void **self) {
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->t[0] = bench_numbers(w->size, 1, TN_F32);
    h->t[1] = bench_numbers(w->size, 1, TN_F32);
    h->inputs = 2;
    return TN_OK;
}

static tn_status run_add(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    return bench_finish(h, tn_add(h->t[0], h->t[1]));
}

/* Fifteen operations in a row, each freed when the next one is recorded: what recording and finding a plan cost. */
static tn_status run_record(void *self) {
    bench_holder *h = self;
    tn_tensor *y = tn_add(h->t[0], h->t[1]);
    for (int i = 1; i < RECORDED; i++) {
        tn_tensor *z = i % 2 ? tn_mul(y, h->t[0]) : tn_add(y, h->t[0]);
        tn_free(y);
        y = z;
    }
    tn_status s = bench_finish(h, y);
    tn_free(y);
    return s;
}

static tn_status begin_replay(bench_work *w, void **self) {
    TRY(begin_pair(w, self));
    TRY(tn_capture_begin());
    bench_holder *h = *self;
    TN_SCOPE;
    tn_tensor *y = tn_add(h->t[0], h->t[1]);
    tn_status s = tn_capture_end(h->t, 2, &y, 1, &h->graph);
    return s;
}

static tn_status run_replay(void *self) {
    bench_holder *h = self;
    tn_tensor *y = NULL;
    tn_status s = tn_graph_launch(h->graph, h->t, &y);
    bench_keep_result(h, y);
    tn_free(y);
    return s;
}

/* The handles of what is between end before it is computed, as PyTorch's do: what has a handle is stored. */
static tn_status run_chain(void *self) {
    bench_holder *h = self;
    tn_tensor *y = NULL;
    {
        TN_SCOPE;
        y = tn_keep(tn_relu(tn_mul(tn_tanh(tn_add_scalar(tn_mul(h->t[0], h->t[1]), 1)), h->t[0])));
    }
    tn_status s = bench_finish(h, y);
    tn_free(y);
    return s;
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

static tn_status begin_conv(bench_work *w, void **self) {
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->t[0] = bench_numbers((int64_t[]){1, w->size[0], w->size[1], w->size[1]}, 4, TN_F32);
    h->t[1] = bench_numbers((int64_t[]){w->size[0], w->size[0], 3, 3}, 4, TN_F32);
    h->inputs = 2;
    return TN_OK;
}

static tn_status run_conv(void *self) {
    bench_holder *h = self;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    TN_SCOPE;
    return bench_finish(h, tn_conv2d(h->t[0], h->t[1], NULL, &o));
}

/* A work under fast numerics, whatever the other works are under. */
static tn_status run_fast(tn_status (*run)(void *self), void *self) {
    tn_numerics asked = tn_get_numerics();
    (void)tn_set_numerics(TN_NUMERICS_FAST);
    tn_status s = run(self);
    (void)tn_set_numerics(asked);
    return s;
}

static tn_status run_conv_fast(void *self) { return run_fast(run_conv, self); }

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { ATTENTION_HEADS = 16, HEAD_SIZE = 64 };

/* size: queries, and keys. */
static tn_status begin_attention_as(bench_work *w, void **self, tn_dtype dtype) {
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    for (int i = 0; i < 3; i++)
        h->t[i] = bench_numbers((int64_t[]){1, ATTENTION_HEADS, w->size[i > 0], HEAD_SIZE}, 4, dtype);
    h->inputs = 3;
    return TN_OK;
}

static tn_status begin_attention(bench_work *w, void **self) { return begin_attention_as(w, self, TN_F32); }
static tn_status begin_attention_f16(bench_work *w, void **self) { return begin_attention_as(w, self, TN_F16); }

static tn_status run_attention(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    return bench_finish(h, tn_scaled_dot_product_attention(h->t[0], h->t[1], h->t[2], NULL, NULL));
}

/* ---- copies between host and device ------------------------------------------------------------------------------ */

typedef struct transfer {
    void *device_memory, *host; /* host: pinned where the device can */
    tn_device *device;
    size_t bytes;
    bool up;
} transfer;

static void end_transfer(void *self) {
    transfer *t = self;
    if (!t) return;
    tn_host_free(t->host);
    tn_device_dealloc(t->device, t->device_memory);
    free(t);
}

static tn_status begin_transfer(bench_work *w, void **self) {
    transfer *t = *self = calloc(1, sizeof *t);
    if (!t) return bench_work_out_of_memory();
    t->device = tn_current_device();
    t->bytes = (size_t)w->size[0];
    t->up = w->size[1] != 0;
    tn_status s = tn_host_alloc(t->device, t->bytes, &t->host, NULL);
    if (s == TN_OK) memset(t->host, 1, t->bytes);
    return s == TN_OK ? tn_device_alloc(t->device, t->bytes, 64, &t->device_memory) : s;
}

static tn_status run_transfer(void *self) {
    const transfer *t = self;
    return t->up ? tn_device_copy(t->device, t->device_memory, NULL, t->host, t->bytes)
                 : tn_device_copy(NULL, t->host, t->device, t->device_memory, t->bytes);
}

/* ---- a small policy ---------------------------------------------------------------------------------------------- */

enum { OBSERVATIONS = 64, WIDTH = 128, ACTIONS = 8, MOST_ROWS = 4096 };

tn_tensor *bench_class_numbers(int64_t count, int64_t classes) {
    tn_tensor *x = NULL;
    {
        TN_SCOPE;
        tn_tensor *uniform = tn_mul_scalar(tn_rand(&count, 1), (double)classes);
        x = tn_keep(tn_cast(tn_floor(uniform), TN_I64));
    }
    (void)tn_eval(&x, 1);
    return x;
}

static tn_status begin_policy(bench_work *w, void **self) {
    static const int64_t hidden[] = {WIDTH, WIDTH};
    tn_policy_options o = TN_POLICY_DEFAULTS;
    o.observations = OBSERVATIONS;
    o.actions = ACTIONS;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 1e-3;
    o.hidden = hidden;
    o.hidden_count = 2;
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->batches = w->size[0] < MOST_ROWS / BENCH_BATCHES ? BENCH_BATCHES : (int)(MOST_ROWS / w->size[0]);
    h->inputs = h->batches * BENCH_BATCH_PARTS;
    for (int i = 0; i < h->inputs; i += BENCH_BATCH_PARTS) {
        h->t[i] = matrix(w->size[0], OBSERVATIONS, TN_F32);
        h->t[i + 1] = bench_class_numbers(w->size[0], ACTIONS);
        h->t[i + 2] = matrix(w->size[0], 1, TN_F32);
    }
    TRY(tn_policy_mlp(&o, &h->policy));
    return tn_optimizer_adam(tn_policy_module(h->policy), &adam, &h->optimizer);
}

static tn_status run_policy_forward(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *out[2];
    tn_policy_forward(h->policy, h->t[0], NULL, &out[0], &out[1], NULL);
    tn_status s = tn_eval(out, 2);
    bench_keep_result(h, out[0]);
    bench_keep_result(h, out[1]);
    return s;
}

static tn_status run_policy_train(void *self) {
    bench_holder *h = self;
    tn_tensor *const *batch = &h->t[h->turn++ % h->batches * BENCH_BATCH_PARTS];
    TN_SCOPE;
    tn_tensor *logits, *value;
    tn_policy_forward(h->policy, batch[0], NULL, &logits, &value, NULL);
    tn_tensor *loss =
        tn_add(tn_cross_entropy(logits, batch[1], NULL, NULL), tn_mse_loss(value, batch[2], TN_REDUCTION_MEAN));
    tn_status s = tn_minimize(h->optimizer, loss);
    bench_keep_result(h, loss);
    return s;
}

/* ---- transformer blocks ------------------------------------------------------------------------------------------ */

enum { FEATURES = 384, HEADS = 6, FEEDFORWARD = 1536 };

static tn_status begin_transformer(bench_work *w, void **self) {
    tn_nn_encoder_options o = TN_NN_ENCODER_DEFAULTS;
    o.feedforward = FEEDFORWARD;
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->t[0] = bench_numbers((int64_t[]){w->size[0], w->size[1], FEATURES}, 3, TN_F32);
    h->inputs = 1;
    h->module = tn_module_root();
    for (int i = 0; i < BENCH_BLOCKS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        h->block[i] = tn_nn_transformer_encoder_layer(h->module, name, FEATURES, HEADS, &o);
    }
    /* The mean of squares of what was normalised would be 1 whatever came before, and all gradients rounding errors. */
    tn_tensor *weight = tn_module_variable(h->block[BENCH_BLOCKS - 1], "norm2.weight");
    if (weight) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_copy_(weight, bench_numbers((int64_t[]){FEATURES}, 1, TN_F32));
    }
    return tn_module_status(h->module);
}

static tn_tensor *through_blocks(const bench_holder *h) {
    tn_tensor *x = h->t[0];
    for (int i = 0; i < BENCH_BLOCKS; i++)
        x = tn_forward(h->block[i], x);
    return x;
}

static tn_status run_transformer_forward(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    TN_NO_GRAD;
    return bench_finish(h, through_blocks(h));
}

tn_status bench_gradients(bench_holder *h, const tn_tensor *y) {
    tn_variable *v = NULL;
    int count = 0;
    tn_status s = tn_module_variables(h->module, &v, &count);
    {
        TN_SCOPE;
        tn_tensor *gradients[256] = {NULL};
        for (int i = 0; i < count && s == TN_OK; i++)
            tn_zero_grad(v[i].tensor);
        tn_tensor *loss = tn_mean(tn_mul(y, y), NULL, 0, false);
        if (s == TN_OK) s = tn_backward(loss);
        int n = 0;
        for (int i = 0; i < count && n < 256 && s == TN_OK; i++) {
            gradients[n] = tn_grad(v[i].tensor);
            n += gradients[n] != NULL;
        }
        if (s == TN_OK) s = tn_eval(gradients, n);
        bench_keep_result(h, loss);
    }
    tn_variables_free(v);
    return s;
}

static tn_status run_transformer_train(void *self) {
    bench_holder *h = self;
    tn_tensor *y = NULL;
    {
        TN_SCOPE;
        y = tn_keep(through_blocks(h));
    }
    tn_status s = bench_gradients(h, y);
    tn_free(y);
    return s;
}

/* ---- a convolutional network ------------------------------------------------------------------------------------- */

enum { IMAGES = 32, SIDE = 32, CLASSES = 10 };

static tn_tensor *mean_of_channels(const tn_tensor *x) { return tn_mean(x, (int64_t[]){2, 3}, 2, false); }

static void add_convolution(tn_module *net, int at, int64_t in, int64_t out, int64_t stride) {
    tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS;
    o.padding = 1;
    o.stride = stride;
    o.bias = false;
    char name[3][16];
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof name[i], "%d", 3 * at + i);
    tn_nn_conv2d(net, name[0], in, out, 3, &o);
    tn_nn_batch_norm2d(net, name[1], out, NULL);
    tn_nn_function(net, name[2], tn_relu);
}

static tn_status begin_cnn(bench_work *w, void **self) {
    tn_sgd_options sgd = TN_SGD_DEFAULTS;
    sgd.lr = 1e-2;
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->t[0] = bench_numbers((int64_t[]){IMAGES, 3, SIDE, SIDE}, 4, TN_F32);
    h->t[1] = bench_class_numbers(IMAGES, CLASSES);
    h->inputs = 2;
    h->module = tn_module_root();
    tn_module *net = h->block[0] = tn_nn_sequential(h->module, "net");
    static const int64_t channels[] = {3, 32, 64, 64, 128, 128}, stride[] = {1, 2, 1, 2, 1};
    for (int i = 0; i < 5; i++)
        add_convolution(net, i, channels[i], channels[i + 1], stride[i]);
    tn_nn_function(net, "15", mean_of_channels);
    tn_nn_linear(net, "16", channels[5], CLASSES, true);
    h->training = w->size[0] != 0;
    tn_module_train(h->module, h->training);
    TRY(tn_module_status(h->module));
    return tn_optimizer_sgd(h->module, &sgd, &h->optimizer);
}

static tn_status run_cnn(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    if (h->training) {
        tn_tensor *loss = tn_cross_entropy(tn_forward(h->block[0], h->t[0]), h->t[1], NULL, NULL);
        tn_status s = tn_minimize(h->optimizer, loss);
        bench_keep_result(h, loss);
        return s;
    }
    TN_NO_GRAD;
    return bench_finish(h, tn_forward(h->block[0], h->t[0]));
}

static tn_status run_cnn_fast(void *self) { return run_fast(run_cnn, self); }

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define GEMM(name, n, begin) BENCH_WORK(name, begin, run_gemm, n, n, 2.0 * n * n * n, 0)
/* Training multiplies thrice as much, but for the gradient of what came in, which nobody asks for. */
#define TRAIN_FLOPS(all, first) (3.0 * (all) - (first))
#define POLICY_FIRST(b) (2.0 * (b)*OBSERVATIONS * WIDTH)
#define POLICY_FLOPS(b) (POLICY_FIRST(b) + 2.0 * (b)*WIDTH * (WIDTH + ACTIONS + 1))
#define POLICY(b)                                                                                 \
    BENCH_WORK("policy-forward-" #b, begin_policy, run_policy_forward, b, 0, POLICY_FLOPS(b), 0), \
        BENCH_WORK("policy-train-" #b, begin_policy, run_policy_train, b, 0,                      \
                   TRAIN_FLOPS(POLICY_FLOPS(b), POLICY_FIRST(b)), 0)
/* Four products and two of attention a block: 2·(4·d² + 2·d·ff)·n + 4·n·s·d. */
#define BLOCK_FLOPS(b, s) \
    (4.0 *                \
     (2.0 * (4.0 * FEATURES * FEATURES + 2.0 * FEATURES * FEEDFORWARD) * (b) * (s) + 4.0 * (b) * (s) * (s)*FEATURES))
#define TRANSFORMER(b, s)                                                                                             \
    BENCH_WORK("transformer-forward-" #b "x" #s, begin_transformer, run_transformer_forward, b, s, BLOCK_FLOPS(b, s), \
               0),                                                                                                    \
        BENCH_WORK("transformer-train-" #b "x" #s, begin_transformer, run_transformer_train, b, s,                    \
                   3.0 * BLOCK_FLOPS(b, s), 0)
/* A convolution of 3×3 over side² places; the second and the fourth of the network halve the side. */
#define CONV_FLOPS(side, in, out) (2.0 * IMAGES * (side) * (side)*9 * (in) * (out))
#define CNN_FIRST CONV_FLOPS(SIDE, 3, 32)
#define CNN_FLOPS                                                                                              \
    (CNN_FIRST + CONV_FLOPS(SIDE / 2, 32, 64) + CONV_FLOPS(SIDE / 2, 64, 64) + CONV_FLOPS(SIDE / 4, 64, 128) + \
     CONV_FLOPS(SIDE / 4, 128, 128) + 2.0 * IMAGES * 128 * CLASSES)

const bench_work bench_works[] = {
    GEMM("gemm-f32-256", 256, begin_gemm),
    GEMM("gemm-f32-512", 512, begin_gemm),
    GEMM("gemm-f32-1024", 1024, begin_gemm),
    GEMM("gemm-f32-2048", 2048, begin_gemm),
    GEMM("gemm-bf16-1024", 1024, begin_gemm_bf16),
    BENCH_WORK("gemv-4096", begin_gemm, run_gemm, 4096, 1, 0, 4096.0 * 4096 * 4),
    BENCH_WORK("add-16", begin_replay, run_replay, 16, 0, 0, 0),
    BENCH_WORK("record-15", begin_pair, run_record, 16, 0, 0, 0),
    BENCH_WORK("add-64k", begin_pair, run_add, 65536, 0, 0, 0),
    BENCH_WORK("chain5-16m", begin_pair, run_chain, 1 << 24, 0, 0, 3.0 * 4 * (1 << 24)),
    POLICY(1),
    POLICY(64),
    POLICY(4096),
    TRANSFORMER(1, 16),
    TRANSFORMER(8, 128),
    TRANSFORMER(2, 512),
    BENCH_WORK("cnn-forward-32", begin_cnn, run_cnn, 0, 0, CNN_FLOPS, 0),
    BENCH_WORK("cnn-train-32", begin_cnn, run_cnn, 1, 0, TRAIN_FLOPS(CNN_FLOPS, CNN_FIRST), 0),
    BENCH_WORK("cnn-forward-32-fast", begin_cnn, run_cnn_fast, 0, 0, CNN_FLOPS, 0),
    BENCH_WORK("cnn-train-32-fast", begin_cnn, run_cnn_fast, 1, 0, TRAIN_FLOPS(CNN_FLOPS, CNN_FIRST), 0),
    BENCH_WORK("conv3x3-64-56", begin_conv, run_conv, 64, 56, 2.0 * 64 * 64 * 9 * 56 * 56, 0),
    BENCH_WORK("conv3x3-64-56-fast", begin_conv, run_conv_fast, 64, 56, 2.0 * 64 * 64 * 9 * 56 * 56, 0),
};
const int bench_work_count = sizeof bench_works / sizeof bench_works[0];

#define ATTENTION(name, m, n, begin) \
    BENCH_WORK(name, begin, run_attention, m, n, 4.0 * ATTENTION_HEADS * HEAD_SIZE * (m) * (n), 0)
#define TRANSFER(name, bytes, up) \
    { name, {bytes, up}, begin_transfer, run_transfer, end_transfer, 0, 0, 1, NULL, NULL, NULL }

/* Works of sizes that only show what a GPU can do, and copies to it: not part of a run of all works. */
const bench_work bench_device_works[] = {
    GEMM("gemm-f32-4096", 4096, begin_gemm),
    GEMM("gemm-f16-256", 256, begin_gemm_f16),
    GEMM("gemm-f16-4096", 4096, begin_gemm_f16),
    GEMM("gemm-bf16-4096", 4096, begin_gemm_bf16),
    ATTENTION("attention-f32-256", 256, 256, begin_attention),
    ATTENTION("attention-f32-2048", 2048, 2048, begin_attention),
    ATTENTION("attention-f16-2048", 2048, 2048, begin_attention_f16),
    ATTENTION("attention-token-f32-4096", 1, 4096, begin_attention),
    ATTENTION("attention-token-f16-4096", 1, 4096, begin_attention_f16),
    TRANSFER("upload-64m", 1 << 26, 1),
    TRANSFER("download-64m", 1 << 26, 0),
};
const int bench_device_work_count = sizeof bench_device_works / sizeof bench_device_works[0];
