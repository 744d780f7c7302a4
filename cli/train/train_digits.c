/* train_digits.c — the task `digits`: 1,797 handwritten digits of 8 by 8 pixels, an MLP or a small CNN, Adam, batches
 * of 64, cross-entropy with smoothed labels.
 *
 * Every fifth row of the table is kept aside for the test. The order of the others is a permutation drawn from seed and
 * epoch, so a step's batch follows from its number alone and a resumed run needs no memory of the order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/train/train.h"

enum {
    PIXELS = 64,
    SIDE = 8,
    CLASSES = 10,
    DEEPEST_INK = 16, /* the table's values are 0 … 16 */
    BATCH = 64,
    TEST_EVERY = 5,
    MOST_ROWS = 100000,
    LINE_BYTES = 1024
};

static const double LEARNING_RATE = 2e-3;
static const double SMOOTHING = 0.1; /* of the labels: without it the MLP gains a percent less */

/* Rows of a split, pixels scaled to [0, 1]. */
typedef struct rows {
    float *pixels;
    int64_t *labels;
    int64_t count, capacity;
} rows;

typedef struct digits {
    rows train, test;
    tn_module *root, *net;
    tn_optimizer *optimizer;
    tn_data_parallel *all;
    bool images; /* the network takes [batch, 1, 8, 8] */
    tn_dtype amp;
    uint64_t seed;
    int32_t *order;      /* of the epoch `order_epoch` */
    int64_t order_epoch; /* -1: none yet */
} digits;

/* ---- the table --------------------------------------------------------------------------------------------------- */

static bool rows_reserve(rows *r) {
    if (r->count < r->capacity) return true;
    int64_t capacity = r->capacity ? 2 * r->capacity : 512;
    float *pixels = realloc(r->pixels, (size_t)capacity * PIXELS * sizeof *pixels);
    if (pixels) r->pixels = pixels;
    int64_t *labels = realloc(r->labels, (size_t)capacity * sizeof *labels);
    if (labels) r->labels = labels;
    if (pixels && labels) r->capacity = capacity;
    return pixels && labels;
}

/* One number of a line, at *text, which moves behind it and its comma. */
static bool read_cell(char **text, long most, long *out) {
    char *end;
    *out = strtol(*text, &end, 10);
    bool good = end != *text && *out >= 0 && *out <= most && (*end == ',' || *end == '\n' || *end == '\r' || *end == 0);
    *text = *end == ',' ? end + 1 : end;
    return good;
}

static bool read_row(char *line, float *pixels, int64_t *label) {
    long value;
    for (int i = 0; i < PIXELS; i++) {
        if (!read_cell(&line, DEEPEST_INK, &value)) return false;
        pixels[i] = (float)value / DEEPEST_INK;
    }
    if (!read_cell(&line, CLASSES - 1, &value)) return false;
    *label = value;
    return *line == 0 || *line == '\n' || *line == '\r';
}

static tn_status read_rows(FILE *f, const char *path, digits *d) {
    char line[LINE_BYTES];
    for (int64_t number = 0; fgets(line, sizeof line, f); number++) {
        rows *part = number % TEST_EVERY == 0 ? &d->test : &d->train;
        if (number >= MOST_ROWS || !rows_reserve(part))
            return tn_backend_fail(TN_ERR_MEMORY, "'%s' has too many rows", path);
        if (!read_row(line, part->pixels + part->count * PIXELS, &part->labels[part->count]))
            return tn_backend_fail(TN_ERR_FORMAT, "'%s', line %lld: expected 64 numbers up to 16 and a digit", path,
                                   (long long)number + 1);
        part->count++;
    }
    if (ferror(f)) return tn_backend_fail(TN_ERR_IO, "'%s': %s", path, strerror(errno));
    if (d->train.count < BATCH || d->test.count == 0)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' has only %lld training rows; a batch needs %d", path,
                               (long long)d->train.count, BATCH);
    return TN_OK;
}

static tn_status load_table(const char *given, digits *d) {
    char found[4096] = "";
    if (!given && !cli_cache_path("data/digits.csv", found, sizeof found))
        return tn_backend_fail(TN_ERR_IO,
                               "no cache folder: HOME is not set; set it, or pass the table with --data FILE");
    const char *path = given ? given : found;
    FILE *f = fopen(path, "r");
    if (!f && errno == ENOENT)
        return tn_backend_fail(TN_ERR_IO,
                               "no digits at '%s'; put them there or pass --data FILE: scikit-learn's digits.csv as "
                               "integers (`make demo` in the source tree does that)",
                               path);
    if (!f) return tn_backend_fail(TN_ERR_IO, "'%s': %s", path, strerror(errno));
    tn_status status = read_rows(f, path, d);
    fclose(f);
    return status;
}

/* ---- the networks ------------------------------------------------------------------------------------------------ */

/* 64 → 256 → 256 → 10 */
static void build_mlp(tn_module *net) {
    tn_nn_linear(net, "0", PIXELS, 256, true);
    tn_nn_function(net, "1", tn_relu);
    tn_nn_linear(net, "2", 256, 256, true);
    tn_nn_function(net, "3", tn_relu);
    tn_nn_linear(net, "4", 256, CLASSES, true);
}

/* [batch, channels, height, width] → [batch, channels], the mean of each channel */
static tn_tensor *mean_of_channels(const tn_tensor *x) { return tn_mean(x, (int64_t[]){2, 3}, 2, false); }

/* Two blocks of convolution, normalisation and ReLU, 1 → 32 → 64 at half the size, then the mean of each channel. */
static void build_cnn(tn_module *net) {
    tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS;
    same.padding = 1;
    same.bias = false;
    tn_nn_conv2d_options half = TN_NN_CONV2D_DEFAULTS;
    half.padding = 1;
    half.stride = 2;
    half.bias = false;
    tn_nn_conv2d(net, "0", 1, 32, 3, &same);
    tn_nn_batch_norm2d(net, "1", 32, NULL);
    tn_nn_function(net, "2", tn_relu);
    tn_nn_conv2d(net, "3", 32, 64, 3, &half);
    tn_nn_batch_norm2d(net, "4", 64, NULL);
    tn_nn_function(net, "5", tn_relu);
    tn_nn_function(net, "6", mean_of_channels);
    tn_nn_linear(net, "7", 64, CLASSES, true);
}

static tn_status build_digits(digits *d, const train_options *all) {
    d->root = tn_module_root();
    d->net = tn_nn_sequential(d->root, "net");
    if (d->images)
        build_cnn(d->net);
    else
        build_mlp(d->net);
    tn_status status = train_divide(all, d->root);
    tn_adam_options o = TN_ADAM_DEFAULTS;
    o.lr = LEARNING_RATE;
    return status == TN_OK ? tn_optimizer_adam(d->root, &o, &d->optimizer) : status;
}

/* ---- the task ---------------------------------------------------------------------------------------------------- */

static void digits_end(void *self) {
    digits *d = self;
    if (!d) return;
    tn_data_parallel_free(d->all);
    tn_optimizer_free(d->optimizer);
    tn_module_free(d->root);
    free(d->train.pixels);
    free(d->train.labels);
    free(d->test.pixels);
    free(d->test.labels);
    free(d->order);
    free(d);
}

static tn_status digits_begin(const train_options *o, void **self) {
    digits *d = calloc(1, sizeof *d);
    *self = d;
    if (!d) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    d->images = strcmp(o->model, "cnn") == 0;
    d->amp = train_amp_dtype(o);
    d->seed = o->common.seed;
    d->order_epoch = -1;
    TRY(load_table(o->data, d));
    d->order = malloc((size_t)d->train.count * sizeof *d->order);
    if (!d->order) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    TRY(build_digits(d, o));
    TRY(train_amp_prepare(o, d->optimizer));
    return train_share(o, d->root, &d->all);
}

static tn_tensor *input_of(const digits *d, const float *pixels, int64_t count) {
    if (d->images) return tn_from_data(pixels, (int64_t[]){count, 1, SIDE, SIDE}, 4, TN_F32);
    return tn_from_data(pixels, (int64_t[]){count, PIXELS}, 2, TN_F32);
}

/* The rows of batch `step`; the last incomplete batch of an epoch is left out. */
static void pick_batch(digits *d, int64_t step, float *pixels, int64_t *labels) {
    int64_t batches = d->train.count / BATCH, epoch = step / batches;
    if (epoch != d->order_epoch) {
        uint64_t state = d->seed * 0x10001 + (uint64_t)epoch;
        random_shuffle(&state, d->order, d->train.count);
        d->order_epoch = epoch;
    }
    for (int64_t i = 0; i < BATCH; i++) {
        int64_t row = d->order[step % batches * BATCH + i];
        memcpy(pixels + i * PIXELS, d->train.pixels + row * PIXELS, PIXELS * sizeof *pixels);
        labels[i] = d->train.labels[row];
    }
}

typedef struct batch {
    const digits *d;
    float pixels[BATCH * PIXELS];
    int64_t labels[BATCH];
} batch;

static tn_tensor *loss_of_part(void *ctx, const tn_part *part) {
    const batch *b = ctx;
    tn_cross_entropy_options smooth = TN_CROSS_ENTROPY_DEFAULTS;
    smooth.label_smoothing = SMOOTHING;
    TN_AUTOCAST(b->d->amp);
    tn_tensor *x = input_of(b->d, b->pixels + part->first * PIXELS, part->rows);
    tn_tensor *y = tn_from_data(b->labels + part->first, (int64_t[]){part->rows}, 1, TN_I64);
    return tn_cross_entropy(tn_forward(b->d->net, x), y, NULL, &smooth);
}

static tn_status digits_advance(void *self, int64_t step, int64_t *made, double *loss_out) {
    digits *d = self;
    batch b = {.d = d};
    pick_batch(d, step, b.pixels, b.labels);
    *made = 1;
    return tn_data_parallel_minimize(d->all, d->optimizer, BATCH, loss_of_part, &b, loss_out);
}

static void digits_status_text(TN_UNUSED void *self, char *text, size_t size) {
    if (size) *text = 0;
}

static void digits_describe(void *self, char *text, size_t size) {
    const digits *d = self;
    snprintf(text, size, "\"model\": \"%s\"", d->images ? "cnn" : "mlp");
}

static void digits_checkpoint(void *self, tn_checkpoint *c) {
    const digits *d = self;
    c->model = d->root;
    c->optimizer = d->optimizer;
}

static tn_status nothing_more(TN_UNUSED void *self) { return TN_OK; }

static tn_status digits_measure(void *self, double *metric) {
    digits *d = self;
    int64_t right = 0, count = d->test.count;
    int64_t *answers = malloc((size_t)count * sizeof *answers);
    if (!answers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    tn_status status = TN_OK;
    tn_module_train(d->root, false);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *logits = tn_forward(d->net, input_of(d, d->test.pixels, count));
        status = tn_read(tn_argmax(logits, (int64_t[]){1}, 1, false), answers, (size_t)count * sizeof *answers);
    }
    tn_module_train(d->root, true);
    for (int64_t i = 0; status == TN_OK && i < count; i++)
        right += answers[i] == d->test.labels[i];
    *metric = (double)right / (double)count;
    free(answers);
    return status;
}

static const tn_data_parallel *digits_shared(void *self) { return ((digits *)self)->all; }

const train_task train_digits = {
    .name = "digits",
    .unit = "batches of 64",
    .metric = "test accuracy",
    .takes = TRAIN_TAKES_MODEL | TRAIN_TAKES_DATA | TRAIN_TAKES_DEVICES | TRAIN_TAKES_AMP,
    .steps = 1000,
    .begin = digits_begin,
    .describe = digits_describe,
    .advance = digits_advance,
    .status_text = digits_status_text,
    .checkpoint = digits_checkpoint,
    .before_save = nothing_more,
    .after_load = nothing_more,
    .measure = digits_measure,
    .shared = digits_shared,
    .end = digits_end,
};
