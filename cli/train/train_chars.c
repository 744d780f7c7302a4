/* train_chars.c — the task `chars`: a small transformer learns to go on with a text, character by character.
 *
 * A character is a byte; those that occur in the text are the vocabulary. The last tenth is kept aside for the test.
 * A batch is drawn from seed and step alone, so a resumed run needs no memory of it. Without --data the text is what
 * `trunnion help` has to say, which every copy of the command carries. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/train/train.h"

enum {
    BYTES = 256,
    CONTEXT = 64, /* characters that the network sees */
    BATCH = 16,
    FEATURES = 96,
    HEADS = 4,
    LAYERS = 2,
    TEST_BATCHES = 16,
    TEST_PART = 10, /* one in so many characters is kept aside */
    SAMPLE = 160,
    MOST_TEXT = 64 << 20
};

static const double LEARNING_RATE = 2e-3, MOST_GRADIENT = 1.0;
static const char SAMPLE_BEGINNING[] = "The ";

typedef struct chars {
    unsigned char *text; /* numbers of the vocabulary */
    int64_t length, train_length;
    int vocabulary;
    unsigned char byte_of[BYTES];
    uint64_t seed, text_hash;
    tn_dtype amp;
    tn_module *root, *block[LAYERS];
    tn_tensor *mask;
    tn_optimizer *optimizer;
    tn_data_parallel *all;
    tn_group *divides; /* processes that divide the layers; NULL: there are none */
} chars;

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static tn_status read_file_chars(const char *path, char **text, size_t *length) {
    FILE *f = fopen(path, "rb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "'%s': %s", path, strerror(errno));
    char *data = malloc((size_t)MOST_TEXT + 1);
    tn_status status = data ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (status == TN_OK) *length = fread(data, 1, (size_t)MOST_TEXT + 1, f);
    if (status == TN_OK && ferror(f)) status = tn_backend_fail(TN_ERR_IO, "'%s': %s", path, strerror(errno));
    if (status == TN_OK && *length > MOST_TEXT)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "'%s' has more than %d MiB; use a part of it", path, MOST_TEXT >> 20);
    fclose(f);
    if (status != TN_OK) free(data);
    *text = status == TN_OK ? data : NULL;
    return status;
}

/* The same bytes whatever the locale and the width of the terminal. */
static tn_status own_help(char **text, size_t *length) {
    static const cli_command *const commands[] = {&cli_devices, &cli_explain, &cli_fit, &cli_train};
    FILE *f = open_memstream(text, length);
    for (size_t i = 0; f && i < sizeof commands / sizeof commands[0]; i++)
        cli_write_help(commands[i], f);
    return f && fclose(f) == 0 ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
}

/* Replaces bytes by their numbers in the vocabulary. */
static void number_bytes(chars *c) {
    int number_of[BYTES];
    memset(number_of, -1, sizeof number_of);
    for (int64_t i = 0; i < c->length; i++)
        number_of[c->text[i]] = 0;
    for (int b = 0; b < BYTES; b++) {
        if (number_of[b] < 0) continue;
        c->byte_of[c->vocabulary] = (unsigned char)b;
        number_of[b] = c->vocabulary++;
    }
    for (int64_t i = 0; i < c->length; i++)
        c->text[i] = (unsigned char)number_of[c->text[i]];
}

static tn_status load_text(const char *given, chars *c) {
    char *text = NULL;
    size_t length = 0;
    tn_status status = given ? read_file_chars(given, &text, &length) : own_help(&text, &length);
    c->text = (unsigned char *)text;
    c->length = (int64_t)length;
    if (status != TN_OK) return status;
    c->train_length = c->length - c->length / TEST_PART;
    if (c->length - c->train_length <= CONTEXT)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' has %lld characters; at least %d are required",
                               given ? given : "help", (long long)c->length, TEST_PART * (CONTEXT + 1));
    c->text_hash = 0xCBF29CE484222325; /* FNV-1a */
    for (int64_t i = 0; i < c->length; i++)
        c->text_hash = (c->text_hash ^ c->text[i]) * 0x100000001B3;
    number_bytes(c);
    return TN_OK;
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

/* Minus infinity where a place would see a later one. */
static tn_tensor *causal_mask(void) {
    static float mask[CONTEXT * CONTEXT];
    for (int i = 0; i < CONTEXT; i++)
        for (int j = 0; j < CONTEXT; j++)
            mask[i * CONTEXT + j] = j > i ? -INFINITY : 0;
    return tn_from_data(mask, (int64_t[]){CONTEXT, CONTEXT}, 2, TN_F32);
}

static tn_status build_chars(chars *c, const train_options *all) {
    tn_nn_encoder_options block = TN_NN_ENCODER_DEFAULTS;
    block.norm_first = true;
    block.group = c->divides;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = LEARNING_RATE;
    adam.max_grad_norm = MOST_GRADIENT;
    c->root = tn_module_root();
    tn_nn_embedding(c->root, "tokens", c->vocabulary, FEATURES);
    tn_nn_embedding(c->root, "positions", CONTEXT, FEATURES);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        c->block[i] = tn_nn_transformer_encoder_layer(c->root, name, FEATURES, HEADS, &block);
    }
    tn_nn_layer_norm(c->root, "norm", FEATURES, NULL);
    tn_nn_linear(c->root, "head", FEATURES, c->vocabulary, true);
    c->mask = causal_mask();
    TRY(train_divide(all, c->root));
    TRY(tn_eval(&c->mask, 1));
    return tn_optimizer_adamw(c->root, &adam, &c->optimizer);
}

/* Numbers [batch, CONTEXT] → logits [batch · CONTEXT, vocabulary]. */
static tn_tensor *logits_of(const chars *c, const int64_t *numbers, int64_t batch) {
    tn_tensor *ids = tn_from_data(numbers, (int64_t[]){batch, CONTEXT}, 2, TN_I64);
    tn_tensor *places = tn_module_variable(c->root, "positions.weight");
    tn_tensor *mask = tn_to_device(c->mask, tn_current_device());
    tn_tensor *x = tn_add(tn_forward(tn_module_child(c->root, "tokens"), ids), places);
    for (int i = 0; i < LAYERS; i++)
        x = tn_transformer_encoder_layer_forward(c->block[i], x, mask);
    x = tn_forward(tn_module_child(c->root, "head"), tn_forward(tn_module_child(c->root, "norm"), x));
    return tn_reshape(x, (int64_t[]){batch * CONTEXT, c->vocabulary}, 2);
}

/* After each evaluation: the processes that divide the layers have exchanged values in it. */
static tn_status settle(const chars *c, tn_status status) {
    return c->divides ? tn_group_settle(c->divides, status) : status;
}

/* ---- the task ---------------------------------------------------------------------------------------------------- */

static void chars_end(void *self) {
    chars *c = self;
    if (!c) return;
    tn_data_parallel_free(c->all);
    tn_optimizer_free(c->optimizer);
    tn_free(c->mask);
    tn_module_free(c->root);
    free(c->text);
    free(c);
}

static tn_status chars_begin(const train_options *o, void **self) {
    chars *c = calloc(1, sizeof *c);
    *self = c;
    if (!c) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    c->seed = o->common.seed;
    c->amp = train_amp_dtype(o);
    c->divides = o->tensor_parallel ? o->team->divides : NULL;
    TRY(load_text(o->data, c));
    TRY(build_chars(c, o));
    TRY(train_amp_prepare(o, c->optimizer));
    return train_share(o, c->root, &c->all);
}

/* Pieces of the text, at most BATCH, from each `begin`, with what follows each of their characters. */
static tn_tensor *loss_of(const chars *c, const int64_t *begin, int64_t count) {
    int64_t seen[BATCH * CONTEXT], next[BATCH * CONTEXT];
    for (int64_t b = 0; b < count; b++)
        for (int i = 0; i < CONTEXT; i++) {
            seen[b * CONTEXT + i] = c->text[begin[b] + i];
            next[b * CONTEXT + i] = c->text[begin[b] + i + 1];
        }
    tn_tensor *target = tn_from_data(next, (int64_t[]){count * CONTEXT}, 1, TN_I64);
    return tn_cross_entropy(logits_of(c, seen, count), target, NULL, NULL);
}

typedef struct batch {
    const chars *c;
    int64_t begin[BATCH];
} batch;

static tn_tensor *loss_of_part(void *ctx, const tn_part *part) {
    const batch *b = ctx;
    TN_AUTOCAST(b->c->amp);
    return loss_of(b->c, b->begin + part->first, part->rows);
}

static tn_status chars_advance(void *self, int64_t step, int64_t *made, double *loss_out) {
    chars *c = self;
    batch b = {.c = c};
    uint64_t state = c->seed * 0x10001 + (uint64_t)step;
    for (int i = 0; i < BATCH; i++)
        b.begin[i] = (int64_t)(random_next(&state) % (uint64_t)(c->train_length - CONTEXT));
    *made = 1;
    return settle(c, tn_data_parallel_minimize(c->all, c->optimizer, BATCH, loss_of_part, &b, loss_out));
}

static void chars_status_text(TN_UNUSED void *self, char *text, size_t size) {
    if (size) *text = 0;
}

static void chars_describe(void *self, char *text, size_t size) {
    const chars *c = self;
    snprintf(text, size, "\"text\": \"%016llx\"", (unsigned long long)c->text_hash);
}

static void chars_checkpoint(void *self, tn_checkpoint *k) {
    const chars *c = self;
    k->model = c->root;
    k->optimizer = c->optimizer;
}

static tn_status nothing_more(TN_UNUSED void *self) { return TN_OK; }

/* Bits a character over pieces of the part kept aside, evenly spread. */
static tn_status chars_measure(void *self, double *metric) {
    chars *c = self;
    int64_t begin[BATCH], room = c->length - c->train_length - CONTEXT;
    tn_status status = TN_OK;
    double sum = 0;
    tn_module_train(c->root, false);
    for (int64_t k = 0; k < TEST_BATCHES && status == TN_OK; k++) {
        for (int64_t b = 0; b < BATCH; b++)
            begin[b] = c->train_length + (k * BATCH + b) * room / (TEST_BATCHES * BATCH);
        TN_SCOPE;
        TN_NO_GRAD;
        double loss = 0;
        status = settle(c, tn_read_item(loss_of(c, begin, BATCH), &loss));
        sum += loss;
    }
    tn_module_train(c->root, true);
    *metric = sum / TEST_BATCHES / log(2);
    return status;
}

/* The number drawn from the probabilities of `logits`. */
static int64_t draw_chars(const float *logits, int count, uint64_t *state) {
    double most = -INFINITY, sum = 0, p[BYTES];
    for (int i = 0; i < count; i++)
        most = fmax(most, (double)logits[i]);
    for (int i = 0; i < count; i++)
        sum += p[i] = exp((double)logits[i] - most);
    double rest = random_uniform(state) * sum;
    for (int i = 0; i < count; i++)
        if ((rest -= p[i]) < 0) return i;
    return count - 1;
}

/* The logits behind the first `length` numbers of a context. */
static tn_status next_logits(const chars *c, const int64_t *context, int64_t length, float *logits) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *all = logits_of(c, context, 1);
    tn_tensor *row = tn_slice(all, 0, length - 1, length, 1);
    return settle(c, tn_read(row, logits, (size_t)c->vocabulary * sizeof *logits));
}

/* How the network would go on with a beginning, as far as its characters occur in the text. It makes bytes: those that
 * are no characters are shown as ?. */
static tn_status chars_show(void *self, FILE *to) {
    chars *c = self;
    char text[CONTEXT + SAMPLE + 1];
    int64_t context[CONTEXT] = {0}, length = 0, written = 0;
    uint64_t state = c->seed + 1;
    float logits[BYTES];
    for (const char *s = SAMPLE_BEGINNING; *s; s++) {
        const unsigned char *at = memchr(c->byte_of, *s, (size_t)c->vocabulary);
        if (at) context[length++] = at - c->byte_of;
    }
    length += length == 0; /* none of them: from the first of the vocabulary */
    tn_module_train(c->root, false);
    for (int64_t i = 0; i < length; i++)
        text[written++] = (char)c->byte_of[context[i]];
    for (int i = 0; i < SAMPLE; i++) {
        TRY(next_logits(c, context, length, logits));
        if (length == CONTEXT) memmove(context, context + 1, (size_t)--length * sizeof *context);
        context[length] = draw_chars(logits, c->vocabulary, &state);
        text[written++] = (char)c->byte_of[context[length++]];
    }
    text[written] = 0;
    cli_whole_characters(text, (size_t)written);
    tn_module_train(c->root, true);
    cli_print(to, "continuation: %s\n", text);
    return TN_OK;
}

static const tn_data_parallel *chars_shared(void *self) { return ((chars *)self)->all; }

const train_task train_chars = {
    .name = "chars",
    .unit = "batches of 16 pieces of 64 characters",
    .metric = "bits per character, on held-out text",
    .takes = TRAIN_TAKES_DATA | TRAIN_TAKES_DEVICES | TRAIN_TAKES_AMP | TRAIN_TAKES_LAYERS,
    .steps = 500,
    .begin = chars_begin,
    .describe = chars_describe,
    .advance = chars_advance,
    .status_text = chars_status_text,
    .checkpoint = chars_checkpoint,
    .before_save = nothing_more,
    .after_load = nothing_more,
    .measure = chars_measure,
    .show = chars_show,
    .shared = chars_shared,
    .end = chars_end,
};
