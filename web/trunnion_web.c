/* trunnion_web.c — the functions that the WebAssembly module exports; web/trunnion.js calls them.
 *
 * Numbers are passed as they are, texts as addresses of zero-terminated UTF-8 in memory from web_alloc. Descriptions
 * are returned as JSON in one buffer, which the next description overwrites. Objects are opened by a function that
 * returns NULL on failure; other functions return a negative number. web_error has the text then. Files are those of
 * the WASI functions that the caller provides.
 *
 * An object computes on the device that it was opened for, "cpu" or "webgpu". Functions that compute on WebGPU suspend
 * the module until the browser has answered; no other function that computes may be called meanwhile. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text/answer.h"
#include "cli/text/conversation.h"
#include "cli/text/language.h"
#include "cli/text/sampling.h"
#include "cli/train/train.h"
#include "trunnion/backend.h"
#include "trunnion/certify.h"
#include "trunnion/onnx.h"

#if defined(__wasm__)
#define WEB(name) __attribute__((export_name(#name))) name
#else /* `tests` compiles this file */
#define WEB(name) name
#endif

enum { FAILED = -1, MOST_STOPS = 16 };

void *WEB(web_alloc)(size_t bytes);
void WEB(web_free)(void *p);
const char *WEB(web_error)(void);
const char *WEB(web_version)(void);

void *web_alloc(size_t bytes) { return malloc(bytes ? bytes : 1); }
void web_free(void *p) { free(p); }
const char *web_error(void) { return tn_error(); }
const char *web_version(void) { return tn_version(); }

/* Opens the device of an object, and makes it the current one. */
static tn_status use_device(const char *name, tn_device **out) {
    tn_status status = tn_device_open(name, NULL, NULL, out);
    return status == TN_OK ? tn_set_current_device(*out) : status;
}

/* Before any work of an object: another one may have computed on its own device meanwhile. */
static void resume_device(tn_device *device) { (void)tn_set_current_device(device); }

static void leave_device(tn_device *device) {
    (void)tn_set_current_device(NULL);
    tn_device_close(device);
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

static char *description;
static size_t description_size;

static FILE *describe(cli_json *j) {
    free(description);
    description = NULL;
    FILE *to = open_memstream(&description, &description_size);
    if (!to) (void)tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    *j = (cli_json){.out = to};
    return to;
}

static const char *described(FILE *to) { return fclose(to) == 0 ? description : NULL; }

/* ---- certification ----------------------------------------------------------------------------------------------- */

const char *WEB(web_certify)(const char *device, const char *only, int32_t every);

/* Lists an operation that has failures, or cases that the device does not support. */
static void list_certified(void *ctx, const tn_certify_op *op, TN_UNUSED int done, TN_UNUSED int total) {
    int64_t failed = op->forward_failed + op->backward_failed;
    if (failed || op->skipped)
        cli_json_write(ctx, "{'name': %s, 'failed': %jd, 'skipped': %jd, 'why': %s}", op->name, (intmax_t)failed,
                       (intmax_t)op->skipped, op->why);
}

/* Certifies a device. only: names of operations between commas, "" for all; every: one case in so many. */
const char *web_certify(const char *device, const char *only, int32_t every) {
    tn_device *d = NULL;
    cli_json j;
    if (use_device(device, &d) != TN_OK) return NULL;
    FILE *to = describe(&j);
    tn_certify_counts counts = {.struct_size = sizeof counts};
    tn_certify_options o = TN_CERTIFY_DEFAULTS;
    o.only = *only ? only : NULL;
    o.every = every;
    o.found = list_certified;
    o.ctx = &j;
    if (to) cli_json_write(&j, "{'ops': [");
    tn_status status = to ? tn_certify(d, &o, &counts) : TN_ERR_MEMORY;
    leave_device(d);
    if (!to) return NULL;
    cli_json_write(&j, "], 'passed': %jd, 'failed': %jd, 'skipped': %jd}", (intmax_t)counts.passed,
                   (intmax_t)counts.failed, (intmax_t)counts.skipped);
    const char *text = described(to);
    return status == TN_OK ? text : NULL;
}

/* ---- language models --------------------------------------------------------------------------------------------- */

typedef struct chat {
    char *path;
    tn_device *device;
    tn_llm *model;
    vocabulary words;
    tn_llm_facts facts;
    tn_sampler *sampler;
    tn_stop_strings *stops;
    tn_ids prompt;
    answer answer;
    int64_t done; /* tokens of the prompt that are in the model's sequence */
    const float *logits;
    size_t given; /* bytes of the answer's text that web_chat_text has returned */
} chat;

chat *WEB(web_chat_open)(const char *path, const char *device, int32_t context);
const char *WEB(web_chat_facts)(const chat *c);
int32_t WEB(web_chat_begin)(chat *c, const char *request);
int32_t WEB(web_chat_prompt)(chat *c);
int32_t WEB(web_chat_next)(chat *c);
const char *WEB(web_chat_text)(chat *c);
const char *WEB(web_chat_result)(const chat *c);
void WEB(web_chat_close)(chat *c);

static void forget_answer(chat *c) {
    answer_free(&c->answer);
    tn_sampler_free(c->sampler);
    tn_stop_strings_free(c->stops);
    c->sampler = NULL;
    c->stops = NULL;
    c->prompt.count = 0;
    c->given = 0;
    c->done = 0;
    c->logits = NULL;
}

void web_chat_close(chat *c) {
    if (!c) return;
    resume_device(c->device);
    forget_answer(c);
    tn_ids_free(&c->prompt);
    vocabulary_close(&c->words);
    tn_llm_close(c->model);
    leave_device(c->device);
    free(c->path);
    free(c);
}

/* context: tokens, 0 for the default. */
chat *web_chat_open(const char *path, const char *device, int32_t context) {
    chat *c = calloc(1, sizeof *c);
    if (c) c->path = strdup(path);
    tn_status status = c && c->path ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = context;
    if (status == TN_OK) status = use_device(device, &c->device);
    if (status == TN_OK) status = tn_llm_open(path, &o, &c->model);
    if (status == TN_OK) {
        c->facts.struct_size = sizeof c->facts;
        status = tn_llm_get_facts(c->model, &c->facts);
    }
    if (status == TN_OK) status = vocabulary_open(&c->words, c->path, &c->facts);
    if (status == TN_OK) status = tn_llm_prepare(c->model);
    if (status == TN_OK) return c;
    web_chat_close(c);
    return NULL;
}

const char *web_chat_facts(const chat *c) {
    cli_json j;
    FILE *to = describe(&j);
    if (!to) return NULL;
    const tn_llm_facts *f = &c->facts;
    cli_json_write(
        &j,
        "{'architecture': %s, 'name': %s, 'quantization': %s, 'parameters': %jd, 'layers': %jd, 'vocabulary': %jd, "
        "'context': %jd, 'weightsBytes': %jd, 'chatTemplate': %i}",
        f->architecture, f->name, f->quantisation, (intmax_t)f->parameters, (intmax_t)f->layers,
        (intmax_t)f->vocabulary, (intmax_t)f->context, (intmax_t)f->weights_bytes,
        tn_tokenizer_chat_template(c->words.tokenizer) != NULL);
    return described(to);
}

/* The text of a number or string for cli_sampling_set. */
static const char *option_text(const tn_json *v, char *room, size_t size) {
    if (tn_json_kind_of(v) == TN_JSON_STRING) return tn_json_string(v, "");
    snprintf(room, size, "%.17g", tn_json_number(v, 0));
    return room;
}

/* The object `sampling` of a request: the options of `trunnion generate` by their names, "top-k": 40. */
static tn_status take_sampling(const tn_json *given, cli_sampling *s) {
    for (size_t i = 0; i < tn_json_length(given); i++) {
        char room[64];
        const char *name = tn_json_key(given, i);
        const char *text = option_text(tn_json_at(given, i), room, sizeof room);
        if (!cli_sampling_set(s, name, text))
            return tn_backend_fail(TN_ERR_ARGUMENT, "sampling: \"%.40s\": %.40s is no option, or out of range", name,
                                   text);
    }
    return TN_OK;
}

static tn_status take_stops(const tn_json *given, tn_stop_strings **out) {
    tn_text_slice texts[MOST_STOPS];
    size_t count = tn_json_length(given);
    if (count > MOST_STOPS)
        return tn_backend_fail(TN_ERR_ARGUMENT, "stop: at most %d texts, not %zu", MOST_STOPS, count);
    for (size_t i = 0; i < count; i++) {
        const tn_json *v = tn_json_at(given, i);
        texts[i] = (tn_text_slice){tn_json_string(v, ""), tn_json_length(v)};
    }
    return tn_stop_strings_new(texts, (int)count, out);
}

static tn_status encode_messages(chat *c, const tn_json *messages) {
    conversation talk = {0};
    tn_status status = conversation_take(&talk, messages, "messages");
    if (status == TN_OK) status = conversation_encode(&talk, &c->words, &c->prompt);
    conversation_free(&talk);
    return status;
}

static tn_status encode_request(chat *c, const tn_json *request) {
    const tn_json *messages = tn_json_get(request, "messages"), *prompt = tn_json_get(request, "prompt");
    if (messages) return encode_messages(c, messages);
    if (tn_json_kind_of(prompt) != TN_JSON_STRING)
        return tn_backend_fail(TN_ERR_ARGUMENT, "a request needs \"prompt\", a text, or \"messages\"");
    return tn_tokenizer_encode(c->words.tokenizer, tn_json_string(prompt, ""), tn_json_length(prompt),
                               TN_ENCODE_SPECIAL | TN_ENCODE_ENDS, &c->prompt);
}

static tn_status check_prompt(const chat *c) {
    if (c->prompt.count == 0) return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt is empty");
    if ((int64_t)c->prompt.count <= c->facts.context) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt has %zu tokens, the context only %" PRId64, c->prompt.count,
                           c->facts.context);
}

static tn_status begin(chat *c, const tn_json *request) {
    cli_sampling sampling;
    cli_sampling_begin(&sampling);
    sampling.options.seed = (uint64_t)tn_json_int(tn_json_get(request, "seed"), 0);
    sampling.greedy = tn_json_bool(tn_json_get(request, "greedy"), false);
    tn_status status = take_sampling(tn_json_get(request, "sampling"), &sampling);
    if (status == TN_OK) status = encode_request(c, request);
    if (status == TN_OK) status = check_prompt(c);
    if (status == TN_OK) status = cli_sampling_make(&sampling, c->words.tokenizer, &c->sampler);
    if (status == TN_OK) status = take_stops(tn_json_get(request, "stop"), &c->stops);
    if (status != TN_OK) return status;
    c->done = tn_llm_common_prefix(c->model, c->prompt.data, (int64_t)c->prompt.count);
    c->answer = (answer){.model = c->model,
                         .tokenizer = c->words.tokenizer,
                         .sampler = c->sampler,
                         .stops = c->stops,
                         .most = tn_json_int(tn_json_get(request, "maxTokens"), ANSWER_ALL),
                         .keep = c->done,
                         .silent = true,
                         .logprobs = -1};
    for (size_t i = 0; i < c->prompt.count; i++)
        tn_sampler_accept(c->sampler, c->prompt.data[i]);
    status = tn_llm_rewind(c->model, c->done);
    return status == TN_OK ? answer_begin(&c->answer) : status;
}

/* Begins an answer. request: {"messages": […] or "prompt": "…", "maxTokens", "greedy", "seed", "sampling", "stop"}. */
int32_t web_chat_begin(chat *c, const char *request) {
    tn_json_doc *doc = NULL;
    resume_device(c->device);
    forget_answer(c);
    tn_status status = tn_json_parse(request, strlen(request), &doc);
    if (status == TN_OK) status = begin(c, tn_json_root(doc));
    tn_json_free(doc);
    return status == TN_OK ? 0 : FAILED;
}

/* Computes a further piece of the prompt; returns how many of its tokens are left. */
int32_t web_chat_prompt(chat *c) {
    int64_t left = (int64_t)c->prompt.count - c->done, n = left < TN_PROMPT_CHUNK ? left : TN_PROMPT_CHUNK;
    if (n <= 0) return 0;
    resume_device(c->device);
    if (tn_llm_prompt(c->model, c->prompt.data + c->done, n, n == left ? &c->logits : NULL) != TN_OK) return FAILED;
    c->done += n;
    return (int32_t)(left - n);
}

/* Computes a token behind the prompt and draws the next one. 1: the text goes on; 0: it ends. */
int32_t web_chat_next(chat *c) {
    answer *a = &c->answer;
    if (!a->model || (size_t)c->done < c->prompt.count) {
        (void)tn_backend_fail(TN_ERR_STATE, "an answer begins with web_chat_begin and the whole prompt");
        return FAILED;
    }
    resume_device(c->device);
    tn_status status = TN_OK;
    bool goes_on = answer_continues(a);
    if (goes_on && a->ids.count > 0) status = tn_llm_step(a->model, a->ids.data[a->ids.count - 1], &c->logits);
    if (status == TN_OK && goes_on) status = answer_draw(a, c->logits);
    goes_on = goes_on && !a->stopped;
    if (status == TN_OK && !goes_on) status = answer_end(a);
    return status != TN_OK ? FAILED : goes_on;
}

/* The text since the last call; whole characters. */
const char *web_chat_text(chat *c) {
    const char *from = c->answer.text.data ? c->answer.text.data + c->given : "";
    c->given = c->answer.text.size;
    return from;
}

const char *web_chat_result(const chat *c) {
    cli_json j;
    FILE *to = describe(&j);
    if (!to) return NULL;
    cli_json_write(&j, "{'promptTokens': %ju, 'promptTokensComputed': %jd, 'stopped': %s", (uintmax_t)c->prompt.count,
                   (intmax_t)(c->done - c->answer.keep), c->answer.stopped ? c->answer.stopped : "cancelled");
    cli_json_ids(&j, "ids", &c->answer.ids);
    cli_json_write(&j, "}");
    return described(to);
}

/* ---- ONNX models ------------------------------------------------------------------------------------------------- */

typedef struct network {
    tn_device *device;
    tn_onnx *model;
    int inputs, outputs;
    tn_onnx_value **in, **out;
    void *data; /* of the output that was asked for last */
} network;

network *WEB(web_onnx_open)(const char *path, const char *device);
const char *WEB(web_onnx_describe)(const network *n);
int32_t WEB(web_onnx_input)(network *n, int32_t i, int32_t dtype, const void *data, const int32_t *shape, int32_t rank);
int32_t WEB(web_onnx_run)(network *n);
const char *WEB(web_onnx_output)(network *n, int32_t i);
const void *WEB(web_onnx_data)(const network *n);
void WEB(web_onnx_close)(network *n);

static void free_values(tn_onnx_value **values, int count) {
    for (int i = 0; values && i < count; i++) {
        tn_onnx_value_free(values[i]);
        values[i] = NULL;
    }
}

void web_onnx_close(network *n) {
    if (!n) return;
    resume_device(n->device);
    free_values(n->in, n->inputs);
    free_values(n->out, n->outputs);
    free(n->in);
    free(n->out);
    free(n->data);
    tn_onnx_close(n->model);
    leave_device(n->device);
    free(n);
}

network *web_onnx_open(const char *path, const char *device) {
    network *n = calloc(1, sizeof *n);
    tn_status status = n ? use_device(device, &n->device) : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (status == TN_OK) status = tn_onnx_open(path, NULL, &n->model);
    if (status == TN_OK) {
        n->inputs = tn_onnx_input_count(n->model);
        n->outputs = tn_onnx_output_count(n->model);
        n->in = calloc((size_t)n->inputs + 1, sizeof *n->in);
        n->out = calloc((size_t)n->outputs + 1, sizeof *n->out);
        if (!n->in || !n->out) status = tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    }
    if (status == TN_OK) return n;
    web_onnx_close(n);
    return NULL;
}

static void describe_shape(cli_json *j, const int64_t *shape, int rank) {
    cli_json_write(j, "'shape': [");
    for (int i = 0; i < rank; i++)
        cli_json_write(j, "%jd", (intmax_t)shape[i]);
    cli_json_write(j, "]}");
}

const char *web_onnx_describe(const network *n) {
    cli_json j;
    FILE *to = describe(&j);
    if (!to) return NULL;
    cli_json_write(&j, "{");
    for (int end = 0; end < 2; end++) {
        cli_json_write(&j, end ? "'outputs': [" : "'inputs': [");
        for (int i = 0; i < (end ? n->outputs : n->inputs); i++) {
            tn_onnx_info info = {.struct_size = sizeof info};
            if ((end ? tn_onnx_output_at : tn_onnx_input_at)(n->model, i, &info) != TN_OK) continue;
            cli_json_write(&j, "{'name': %s, 'type': %s, 'dtype': %d", info.name, info.type, (int)info.dtype);
            describe_shape(&j, info.shape, info.rank);
        }
        cli_json_write(&j, "]");
    }
    cli_json_write(&j, "}");
    return described(to);
}

/* Sets input i of the next run to a copy of the data, which has as many elements as the shape says. */
int32_t web_onnx_input(network *n, int32_t i, int32_t dtype, const void *data, const int32_t *shape, int32_t rank) {
    int64_t extents[TN_MAX_RANK];
    if (i < 0 || i >= n->inputs || rank < 0 || rank > TN_MAX_RANK || dtype < 0 || dtype >= TN_DTYPE_COUNT) {
        (void)tn_backend_fail(TN_ERR_ARGUMENT, "input %d of %d, of rank %d: out of range", (int)i, n->inputs,
                              (int)rank);
        return FAILED;
    }
    for (int32_t k = 0; k < rank; k++)
        extents[k] = shape[k];
    resume_device(n->device);
    tn_tensor *t = tn_from_data(data, extents, rank, (tn_dtype)dtype);
    tn_onnx_value_free(n->in[i]);
    n->in[i] = t ? tn_onnx_value_tensor(t) : NULL;
    tn_free(t);
    return n->in[i] ? 0 : FAILED;
}

int32_t web_onnx_run(network *n) {
    for (int i = 0; i < n->inputs; i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        if (n->in[i] || tn_onnx_input_at(n->model, i, &info) != TN_OK) continue;
        (void)tn_backend_fail(TN_ERR_ARGUMENT, "input '%s' was not given", info.name);
        return FAILED;
    }
    resume_device(n->device);
    free_values(n->out, n->outputs);
    tn_status status = tn_onnx_run(n->model, n->in, n->out);
    free_values(n->in, n->inputs);
    return status == TN_OK ? 0 : FAILED;
}

/* Describes output i after a run and reads it; its numbers begin at web_onnx_data. */
const char *web_onnx_output(network *n, int32_t i) {
    resume_device(n->device);
    tn_tensor *t = i >= 0 && i < n->outputs && n->out[i] ? tn_onnx_value_get(n->out[i]) : NULL;
    cli_json j;
    if (!t) return NULL;
    size_t bytes = tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    free(n->data);
    n->data = web_alloc(bytes);
    if (!n->data) (void)tn_backend_fail(TN_ERR_MEMORY, "an output of %zu bytes: out of memory", bytes);
    if (!n->data || tn_read(t, n->data, bytes) != TN_OK) return NULL;
    FILE *to = describe(&j);
    if (!to) return NULL;
    cli_json_write(&j, "{'dtype': %d", (int)tn_dtype_of(t));
    describe_shape(&j, tn_shape(t), tn_rank(t));
    return described(to);
}

const void *web_onnx_data(const network *n) { return n->data; }

/* ---- training the digits ----------------------------------------------------------------------------------------- */

/* The task of `trunnion train digits`: same data, networks, order of batches, and therefore the same losses. */
typedef struct digits_run {
    train_options options;
    train_team team;
    void *task;
    int64_t step;
    bool images;
} digits_run;

enum { SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 10 };

digits_run *WEB(web_digits_open)(const char *table, const char *device, const char *model, int32_t seed);
double WEB(web_digits_step)(digits_run *d);
double WEB(web_digits_accuracy)(digits_run *d);
int32_t WEB(web_digits_predict)(digits_run *d, const float *pixels, float *probabilities);
void WEB(web_digits_close)(digits_run *d);

void web_digits_close(digits_run *d) {
    if (!d) return;
    resume_device(d->team.devices[0]);
    train_digits.end(d->task);
    (void)tn_set_current_device(NULL);
    train_close(&d->team);
    free(d);
}

/* model: "mlp" or "cnn". */
digits_run *web_digits_open(const char *table, const char *device, const char *model, int32_t seed) {
    digits_run *d = calloc(1, sizeof *d);
    tn_status status = d ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (status == TN_OK && strcmp(model, "mlp") != 0 && strcmp(model, "cnn") != 0)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "\"%.40s\" is not a network of the digits: mlp, cnn", model);
    if (status == TN_OK) status = use_device(device, &d->team.devices[0]);
    if (status == TN_OK) {
        d->team.count = 1;
        d->team.options = (tn_data_parallel_options)TN_DATA_PARALLEL_DEFAULTS;
        d->images = strcmp(model, "cnn") == 0;
        d->options = (train_options){.data = table, .model = model, .team = &d->team};
        d->options.common.seed = (uint64_t)seed;
        tn_manual_seed((uint64_t)seed);
        status = train_digits.begin(&d->options, &d->task);
    }
    if (status == TN_OK) return d;
    web_digits_close(d);
    return NULL;
}

/* One batch of 64; its loss, or a negative number. */
double web_digits_step(digits_run *d) {
    int64_t made = 0;
    double loss = 0;
    resume_device(d->team.devices[0]);
    if (train_digits.advance(d->task, d->step, &made, &loss) != TN_OK) return FAILED;
    d->step += made;
    return loss;
}

/* The part of the test's digits that the network recognizes. */
double web_digits_accuracy(digits_run *d) {
    double right = 0;
    resume_device(d->team.devices[0]);
    return train_digits.measure(d->task, &right) == TN_OK ? right : -1;
}

/* The probability of each class for one picture of 8 by 8 numbers from 0 to 1. */
int32_t web_digits_predict(digits_run *d, const float *pixels, float *probabilities) {
    tn_checkpoint c = {0};
    resume_device(d->team.devices[0]);
    train_digits.checkpoint(d->task, &c);
    tn_module_train(c.model, false);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = d->images ? tn_from_data(pixels, (int64_t[]){1, 1, SIDE, SIDE}, 4, TN_F32)
                             : tn_from_data(pixels, (int64_t[]){1, PIXELS}, 2, TN_F32);
    tn_tensor *y = tn_softmax(tn_forward(tn_module_child(c.model, "net"), x), 1);
    tn_status status = tn_read(y, probabilities, CLASSES * sizeof *probabilities);
    tn_module_train(c.model, true);
    return status == TN_OK ? 0 : FAILED;
}
