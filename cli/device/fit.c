/* fit.c — `trunnion fit`: how much memory a language model needs, and which devices here have it.
 *
 * The sizes come from a GGUF file's header or a folder's config.json (weights are not touched), from a model known by
 * name, or from the command line; the sums are the library's, the same that a start checks against the free memory. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "cli/cli.h"
#include "cli/device/fit.h"
#include "trunnion/model.h"

static int run_fit(int argc, char **argv);

const cli_command cli_fit = {
    .name = "fit",
    .summary = "estimate the memory that a model or a training needs, and where it fits",
    .usage = "fit MODEL [options] | fit MODEL.onnx | fit run|train|finetune … | fit --config NAME-OR-SIZES [options]",
    .help =
        "  MODEL                 a language model: a GGUF file, a Hugging Face model folder, or a config.json alone\n"
        "  MODEL.onnx, train digits, finetune -m …: a command that runs a network or trains one, with its\n"
        "                        options: some steps are planned on its device (--device) without computing or\n"
        "                        writing anything\n"
        "  --measure             compute these steps of the command, and print the memory that they used\n"
        "  --config WHAT         a known model (mistral-7b, llama-2-7b, llama-3-8b, qwen2.5-7b, smollm2-135m), or\n"
        "                        sizes separated by commas: hidden=N, intermediate=N, layers=N, vocabulary=N,\n"
        "                        heads=N, kv_heads=N, head_dim=N, tied=1; sizes after a name replace those of the "
        "model\n"
        "  --context N           context length (default: the model's own, at most 4096)\n"
        "  --weights TYPE        type of the weights, with --config or config.json alone: f32, f16, bf16, q8_0, q6_K, "
        "q5_K, q5_1, q5_0, "
        "q4_K, q4_1, q4_0, q3_K, q2_K (default f32)\n"
        "  --cache TYPE          type of the key/value cache: f16, bf16, f32 or q8_0 (default f16)\n"
        "  --train               training with Adam in f32 instead of inference\n"
        "  --batch N             sequences per training step (default 1)\n"
        "  --json                total_bytes, weights_bytes, cache_bytes, activation_bytes, runtime_bytes,\n"
        "                        gradient_bytes, optimizer_bytes, parameters, context, fits{device:bool}, "
        "would_fit{device:{weights, context}}; of a command: device, total_bytes, free_bytes, fits, measured\n"
        "\n"
        "The total is the peak resident memory of a process that does nothing else. If a device does not report its\n"
        "free memory, all of its memory is assumed to be free.\n"
        "\n"
        "examples:\n"
        "  trunnion fit model.gguf --context 2048\n"
        "  trunnion fit --config mistral-7b --weights q4_K --context 8192\n"
        "  trunnion fit --config mistral-7b,layers=40 --weights q4_K\n"
        "  trunnion fit --config smollm2-135m --train --batch 8 --context 512\n"
        "  trunnion fit model.onnx --device opencl\n"
        "  trunnion fit train chars --device cpu\n",
    .accepts = CLI_JSON,
    .run = run_fit,
};

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

enum { LONGEST_DEFAULT = 4096 };

typedef struct request {
    const char *config;
    int64_t context, batch; /* 0: not given */
    tn_dtype weights, cache;
    bool weights_given, cache_given, train;
} request;

static const struct known_model {
    const char *name;
    tn_model_sizes sizes;
} known[] = {
    {"mistral-7b",
     {.hidden = 4096,
      .intermediate = 14336,
      .layers = 32,
      .vocabulary = 32000,
      .heads = 32,
      .kv_heads = 8,
      .sequence = 32768}},
    {"llama-2-7b",
     {.hidden = 4096,
      .intermediate = 11008,
      .layers = 32,
      .vocabulary = 32000,
      .heads = 32,
      .kv_heads = 32,
      .sequence = 4096}},
    {"llama-3-8b",
     {.hidden = 4096,
      .intermediate = 14336,
      .layers = 32,
      .vocabulary = 128256,
      .heads = 32,
      .kv_heads = 8,
      .sequence = 8192}},
    {"qwen2.5-7b",
     {.hidden = 3584,
      .intermediate = 18944,
      .layers = 28,
      .vocabulary = 152064,
      .heads = 28,
      .kv_heads = 4,
      .sequence = 32768}},
    {"smollm2-135m",
     {.hidden = 576,
      .intermediate = 1536,
      .layers = 30,
      .vocabulary = 49152,
      .heads = 9,
      .kv_heads = 3,
      .sequence = 8192,
      .tied_embeddings = true}},
};
enum { KNOWN = sizeof known / sizeof known[0] };

static bool find_dtype(const char *name, tn_dtype *out) {
    for (int t = 0; t < TN_DTYPE_COUNT; t++)
        if (!strcasecmp(tn_dtype_name((tn_dtype)t), name)) {
            *out = (tn_dtype)t;
            return true;
        }
    return false;
}

/* Takes "name=value" (length bytes). */
static bool take_size(tn_model_sizes *s, const char *text, size_t length) {
    const struct {
        const char *name;
        int64_t *at;
    } rows[] = {{"hidden", &s->hidden},     {"intermediate", &s->intermediate},
                {"layers", &s->layers},     {"vocabulary", &s->vocabulary},
                {"heads", &s->heads},       {"kv_heads", &s->kv_heads},
                {"head_dim", &s->head_dim}, {"sequence", &s->sequence}};
    char pair[64];
    if (length >= sizeof pair) return false;
    memcpy(pair, text, length);
    pair[length] = 0;
    char *value = strchr(pair, '=');
    int64_t n;
    if (!value) return false;
    *value++ = 0;
    if (!strcmp(pair, "tied")) {
        if (!cli_parse_int(value, 0, 1, &n)) return false;
        s->tied_embeddings = n == 1;
        return true;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(pair, rows[i].name)) return cli_parse_int(value, 1, INT64_C(1) << 40, rows[i].at);
    return false;
}

static bool take_name(tn_model_sizes *s, const char *text, size_t length) {
    for (int i = 0; i < KNOWN; i++)
        if (strlen(known[i].name) == length && !strncasecmp(known[i].name, text, length)) {
            const tn_model_sizes *k = &known[i].sizes; /* other fields keep their defaults */
            s->hidden = k->hidden;
            s->intermediate = k->intermediate;
            s->layers = k->layers;
            s->vocabulary = k->vocabulary;
            s->heads = k->heads;
            s->kv_heads = k->kv_heads;
            s->sequence = k->sequence;
            s->tied_embeddings = k->tied_embeddings;
            return true;
        }
    return false;
}

static int parse_config(const char *text, tn_model_sizes *s) {
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        if (!(at == text && take_name(s, at, length)) && !take_size(s, at, length))
            return cli_wrong_usage(&cli_fit,
                                   "--config: \"%.*s\" is neither a known model nor a size such as hidden=4096",
                                   (int)length, at);
        at += length + (at[length] == ',');
    }
    return CLI_OK;
}

static double fit_bytes_of(tn_dtype t) { return (double)tn_dtype_size(t) / (double)tn_dtype_block(t); }

/* The sizes that were asked for, with everything filled in; CLI_OK or the exit status after a message. */
static int find_sizes(const request *r, const char *path, tn_model_sizes *s) {
    bool as_stored = path && !r->weights_given;
    if (as_stored && fit_inspect(path, r->context, r->cache, s)) return CLI_OK;
    int status = !path ? parse_config(r->config, s) : tn_read_model_sizes(path, s) == TN_OK ? CLI_OK : cli_failed();
    if (status != CLI_OK) return status;
    if (s->weights_bytes > 0 && r->weights_given)
        return cli_wrong_usage(&cli_fit, "--weights requires --config or config.json alone: the weights of a file have "
                                         "their own type");
    if (s->weights_bytes == 0) s->bytes_per_weight = fit_bytes_of(r->weights);
    s->bytes_per_cache = fit_bytes_of(r->cache);
    if (r->context)
        s->sequence = r->context;
    else if (!s->sequence || s->sequence > LONGEST_DEFAULT)
        s->sequence = LONGEST_DEFAULT;
    return CLI_OK;
}

static tn_status estimate(const request *r, const tn_model_sizes *s, tn_memory_estimate *e) {
    e->struct_size = sizeof *e;
    if (!r->train) return tn_estimate_inference_memory(s, e);
    tn_model_sizes f32 = *s; /* what is trained is kept in f32 */
    f32.weights_bytes = 0;
    f32.bytes_per_weight = 4;
    return tn_estimate_training_memory(&f32, r->batch ? r->batch : 1, 2, e);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

/* The longest context with which the whole fits into `room`; 0 if none does. */
static int64_t longest_context(const request *r, const tn_model_sizes *s, int64_t room) {
    int64_t fits = 0, fails = s->sequence;
    while (fails - fits > 1) {
        tn_model_sizes probe = *s;
        probe.sequence = fits + (fails - fits) / 2;
        tn_memory_estimate e;
        bool enough = estimate(r, &probe, &e) == TN_OK && e.total_bytes <= room;
        *(enough ? &fits : &fails) = probe.sequence;
    }
    return fits;
}

/* What would make it fit: weights in `weights` (TN_DTYPE_COUNT: as they are) and this context. */
typedef struct advice {
    tn_dtype weights;
    int64_t context; /* 0: nothing does */
} advice;

enum { LEAST_CONTEXT = 64 };

/* Weights as precise as possible first; among smaller ones, one that keeps the whole context. */
static advice find_advice(const request *r, const tn_model_sizes *s, int64_t room) {
    static const tn_dtype smaller[] = {TN_BF16, TN_Q8_0, TN_Q6_K, TN_Q5_K, TN_Q4_K, TN_Q3_K, TN_Q2_K};
    advice best = {.weights = TN_DTYPE_COUNT, .context = longest_context(r, s, room)};
    if (best.context >= LEAST_CONTEXT || r->train) return best.context >= LEAST_CONTEXT ? best : (advice){0};
    double now = s->weights_bytes > 0 ? INFINITY : s->bytes_per_weight;
    best.context = 0;
    for (size_t i = 0; i < sizeof smaller / sizeof smaller[0]; i++) {
        tn_model_sizes probe = *s;
        tn_memory_estimate e;
        probe.bytes_per_weight = fit_bytes_of(smaller[i]);
        probe.weights_bytes = 0;
        bool is_smaller = probe.bytes_per_weight < now;
        if (is_smaller && s->weights_bytes > 0)
            is_smaller = estimate(r, &probe, &e) == TN_OK && e.weights_bytes < s->weights_bytes;
        if (!is_smaller || estimate(r, &probe, &e) != TN_OK) continue;
        if (e.total_bytes <= room) return (advice){smaller[i], s->sequence};
        int64_t context = longest_context(r, &probe, room);
        if (!best.context && context >= LEAST_CONTEXT) best = (advice){smaller[i], context};
    }
    return best;
}

static void put_advice(const request *r, const tn_model_sizes *s, int64_t room) {
    advice a = find_advice(r, s, room);
    if (!a.context) {
        printf("      no shorter context%s would fit\n", r->train ? "" : " and no smaller weight type");
        return;
    }
    printf("      would fit with");
    if (a.weights != TN_DTYPE_COUNT && s->weights_bytes == 0) printf(" --weights %s", tn_dtype_name(a.weights));
    if (a.weights != TN_DTYPE_COUNT && s->weights_bytes > 0)
        printf(" weights in %s (trunnion convert --quantize)", tn_dtype_name(a.weights));
    if (a.context < s->sequence) printf(" --context %lld", (long long)a.context);
    printf("\n");
}

static void put_part(const char *what, int64_t bytes, const char *why) {
    char text[32];
    if (bytes > 0) printf("  %-12s %12s   %s\n", what, cli_size_text(text, bytes, 2), why);
}

static void put_parts(const tn_model_sizes *s, const tn_memory_estimate *e, bool train) {
    char text[32], why[96];
    snprintf(why, sizeof why, "%.4g million weights", (double)e->parameters / 1e6);
    put_part("weights", e->weights_bytes, why);
    put_part("gradients", e->gradient_bytes, "f32, one per weight");
    put_part("optimiser", e->optimizer_bytes, "Adam: two f32 per weight");
    snprintf(why, sizeof why, "keys and values of %lld tokens", (long long)s->sequence);
    put_part("cache", e->cache_bytes, why);
    put_part("activations", e->activation_bytes,
             train ? "kept for the backward pass" : "while one chunk of the prompt is processed");
    put_part("runtime", e->runtime_bytes, "the library and the tokenizer");
    printf("  %-12s %12s\n", "total", cli_size_text(text, e->total_bytes, 2));
}

/* What is free on a device; all that it has where neither its interface nor the last findings say what is free. */
static int64_t room_on(const tn_device_info *d) { return d->free_memory > 0 ? d->free_memory : d->total_memory; }

static bool has_room(const tn_device_info *d, int64_t bytes) { return d->usable && room_on(d) >= bytes; }

static void put_devices(const tn_device_list *list, const request *r, const tn_model_sizes *s,
                        const tn_memory_estimate *e) {
    char text[32];
    printf("\n");
    for (int b = 0; b < tn_device_list_count(list); b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        for (int i = 0; i < backend->device_count; i++) {
            const tn_device_info *d = &backend->devices[i];
            bool fits = has_room(d, e->total_bytes);
            printf("  %-12s %12s %-6s   %s\n", d->id, cli_size_text(text, room_on(d), 2),
                   d->free_memory > 0 ? "free" : "total",
                   fits        ? "fits"
                   : d->usable ? "does not fit"
                               : "not usable");
            if (d->usable && !fits) put_advice(r, s, room_on(d));
        }
    }
}

static void put_json_fit(const tn_device_list *list, const request *r, const tn_model_sizes *s,
                         const tn_memory_estimate *e) {
    cli_json j = {.out = stdout};
    cli_json_write(
        &j,
        "{'total_bytes': %jd, 'weights_bytes': %jd, 'cache_bytes': %jd, 'activation_bytes': %jd, 'runtime_bytes': %jd, "
        "'gradient_bytes': %jd, 'optimizer_bytes': %jd, 'parameters': %jd, 'context': %jd, 'fits': {",
        e->total_bytes, e->weights_bytes, e->cache_bytes, e->activation_bytes, e->runtime_bytes, e->gradient_bytes,
        e->optimizer_bytes, e->parameters, s->sequence);
    for (int b = 0; b < tn_device_list_count(list); b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        for (int i = 0; i < backend->device_count; i++)
            cli_json_write(&j, "%s: %i", backend->devices[i].id, has_room(&backend->devices[i], e->total_bytes));
    }
    cli_json_write(&j, "}, 'would_fit': {");
    for (int b = 0; b < tn_device_list_count(list); b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        for (int i = 0; i < backend->device_count; i++) {
            const tn_device_info *d = &backend->devices[i];
            advice a = d->usable && !has_room(d, e->total_bytes) ? find_advice(r, s, room_on(d)) : (advice){0};
            if (!a.context) continue;
            cli_json_write(&j, "%s: {'weights': %s, 'context': %jd}", d->id,
                           a.weights == TN_DTYPE_COUNT ? NULL : tn_dtype_name(a.weights), a.context);
        }
    }
    cli_json_write(&j, "}}");
}

static bool take_weights(void *at, const char *name) {
    tn_dtype *type = at;
    return find_dtype(name, type) && (tn_dtype_is_float(*type) || tn_dtype_block(*type) > 1);
}

static bool take_cache(void *at, const char *name) {
    tn_dtype *type = at;
    return find_dtype(name, type) && (*type == TN_F16 || *type == TN_BF16 || *type == TN_F32 || *type == TN_Q8_0);
}

static const cli_option options[] = {
    CLI_NAME("config", 0, request, config),
    CLI_INT("context", 0, request, context, 1, INT64_C(1) << 40),
    CLI_TAKE("weights", 0, request, weights, take_weights),
    CLI_TAKE("cache", 0, request, cache, take_cache),
    CLI_TAKE("cache-type", 0, request, cache, take_cache),
    CLI_FLAG("train", 0, request, train),
    CLI_INT("batch", 0, request, batch, 1, INT64_C(1) << 40),
    {0},
};

static int run_fit(int argc, char **argv) {
    request r = {.weights = TN_F32, .cache = TN_F16};
    cli_options o;
    int command = fit_command_at(argc, argv);
    if (command) return fit_run_command(argc, argv, command);
    int status, first = cli_parse(&cli_fit, argc, argv, &o, options, &r, &status);
    if (first < 0) return status;
    r.weights_given = cli_is_given(&o, options, "weights");
    r.cache_given = cli_is_given(&o, options, "cache") || cli_is_given(&o, options, "cache-type");
    const char *path = first < argc ? argv[first] : NULL;
    if (argc - first > 1) return cli_wrong_usage(&cli_fit, "only one model is expected");
    if (!path == !r.config)
        return cli_wrong_usage(&cli_fit, "expected either a GGUF file or model folder, or --config");
    if (r.batch && !r.train) return cli_wrong_usage(&cli_fit, "--batch requires --train");
    if (r.train && (r.weights_given || r.cache_given))
        return cli_wrong_usage(&cli_fit, "--%s has no effect with --train, which keeps weights in f32 and has no cache",
                               r.weights_given ? "weights" : "cache");

    char found[CLI_PATH];
    if (path && !cli_find_model(&path, found)) return CLI_FAILED;
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    tn_memory_estimate e;
    status = find_sizes(&r, path, &sizes);
    if (status != CLI_OK) return status;
    if (estimate(&r, &sizes, &e) != TN_OK) return cli_failed();
    tn_device_list *list;
    if (tn_device_list_new(false, &list) != TN_OK) return cli_failed();
    if (o.json) {
        put_json_fit(list, &r, &sizes, &e);
    } else {
        put_parts(&sizes, &e, r.train);
        put_devices(list, &r, &sizes, &e);
    }
    tn_device_list_free(list);
    return CLI_OK;
}
