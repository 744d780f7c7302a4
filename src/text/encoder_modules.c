/* encoder_modules.c — the modules of a sentence-transformers folder: modules.json, and a folder for each module.
 *
 * A text passes through all modules in order: encoder, pooling, dense layers, normalisation. modules.json is read even
 * if the caller chooses pooling and norm, because the vectors would be different without the dense layers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text/encoder.h"

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

typedef struct pooling_row {
    const char *key;
    tn_pooling pooling; /* TN_POOLING_DEFAULT: not computed here */
} pooling_row;

static const pooling_row pooling_rows[] = {
    {"pooling_mode_mean_tokens", TN_POOLING_MEAN},
    {"pooling_mode_cls_token", TN_POOLING_CLS},
    {"pooling_mode_max_tokens", TN_POOLING_MAX},
    {"pooling_mode_mean_sqrt_len_tokens", TN_POOLING_DEFAULT},
    {"pooling_mode_weightedmean_tokens", TN_POOLING_DEFAULT},
    {"pooling_mode_lasttoken", TN_POOLING_DEFAULT},
};

static tn_status take_pooling(const hf_folder *f, const char *path, const tn_json *config, encoder_config *c) {
    int set = 0;
    for (size_t i = 0; i < sizeof pooling_rows / sizeof *pooling_rows; i++) {
        if (!tn_json_bool(tn_json_get(config, pooling_rows[i].key), false)) continue;
        c->pooling = pooling_rows[i].pooling;
        if (++set > 1 || c->pooling == TN_POOLING_DEFAULT)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s/%s/config.json': '%s'%s is not computed here; choose another pooling in "
                                   "tn_embedder_options (--pooling of the command)",
                                   f->path, path, pooling_rows[i].key, set > 1 ? " beside others" : "");
    }
    return TN_OK;
}

/* FOLDER/path/config.json; *out NULL where there is none. */
static tn_status open_config(const hf_folder *f, const char *path, tn_json_doc **out) {
    char name[HF_NAME_SIZE + 16];
    snprintf(name, sizeof name, "%s/config.json", path);
    return tn_hf_json(f, name, out);
}

static tn_status read_pooling(const hf_folder *f, const char *path, encoder_config *c) {
    tn_json_doc *doc;
    TRY(open_config(f, path, &doc));
    tn_status status = take_pooling(f, path, tn_json_root(doc), c);
    tn_json_free(doc);
    return status;
}

/* ---- dense layers ------------------------------------------------------------------------------------------------ */

static tn_tensor *same(const tn_tensor *x) { return (tn_tensor *)(uintptr_t)x; }
static tn_tensor *tanh_of(const tn_tensor *x) { return tn_tanh(x); }
static tn_tensor *relu_of(const tn_tensor *x) { return tn_relu(x); }
static tn_tensor *sigmoid_of(const tn_tensor *x) { return tn_sigmoid(x); }
static tn_tensor *silu_of(const tn_tensor *x) { return tn_silu(x); }
static tn_tensor *gelu_of(const tn_tensor *x) { return tn_gelu(x, NULL); }

/* The classes of torch.nn, by the last part of their names. */
static tn_activation *activation_of(const char *class) {
    static const struct {
        const char *name;
        tn_activation *function;
    } rows[] = {{"Identity", same},      {"Tanh", tanh_of}, {"ReLU", relu_of},
                {"Sigmoid", sigmoid_of}, {"SiLU", silu_of}, {"GELU", gelu_of}};
    const char *dot = strrchr(class, '.'), *name = dot ? dot + 1 : class;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].function;
    return NULL;
}

/* Keys of newer files by which a dense layer is something else. */
static tn_status refuse_variants(const hf_folder *f, const encoder_dense *d, const tn_json *config) {
    static const char *const ends[] = {"module_input_name", "module_output_name"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *end = tn_json_string(tn_json_get(config, ends[i]), "sentence_embedding");
        if (strcmp(end, "sentence_embedding") != 0)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s/%s/config.json': '%s' is '%s'; dense layers are supported for "
                                   "'sentence_embedding' only",
                                   f->path, d->path, ends[i], tn_txt_shown(end, strlen(end)).text);
    }
    if (!tn_json_bool(tn_json_get(config, "use_residual"), false)) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/%s/config.json': 'use_residual' is set, which is not computed here",
                           f->path, d->path);
}

static tn_status take_dense(const hf_folder *f, const tn_json *config, encoder_config *c, encoder_dense *d) {
    const char *class = tn_json_string(tn_json_get(config, "activation_function"), "torch.nn.modules.activation.Tanh");
    d->in = tn_json_int(tn_json_get(config, "in_features"), 0);
    d->out = tn_json_int(tn_json_get(config, "out_features"), 0);
    d->has_bias = tn_json_bool(tn_json_get(config, "bias"), true);
    d->activation = activation_of(class);
    if (!d->activation)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/%s/config.json': the activation '%s' is not computed here; Identity, Tanh, ReLU, "
                               "Sigmoid, SiLU and GELU are",
                               f->path, d->path, tn_txt_shown(class, strlen(class)).text);
    if (d->in != c->width || d->out < 1 || d->out > HF_MOST_WIDTH)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s/%s/config.json': a dense layer from %" PRId64 " to %" PRId64
                               " features does not fit vectors of %" PRId64,
                               f->path, d->path, d->in, d->out, c->width);
    c->width = d->out;
    return refuse_variants(f, d, config);
}

static tn_status check_dense(const hf_folder *f, const encoder_dense *d, const hf_weights *w, encoder_config *c) {
    const struct {
        const char *name;
        int64_t shape[2];
    } rows[] = {{"linear.weight", {d->out, d->in}}, {"linear.bias", {d->out, 0}}};
    int count = d->has_bias ? 2 : 1;
    for (int i = 0; i < count; i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        if (!tn_hf_weights_find(w, rows[i].name, &t))
            return tn_backend_fail(TN_ERR_FORMAT, "'%s/%s': there is no tensor '%s'", f->path, d->path, rows[i].name);
        TRY(tn_hf_check(f, &t, rows[i].shape));
        c->parameters += d->out * (i == 0 ? d->in : 1);
        c->weights_bytes += t.bytes;
    }
    if (tn_hf_weights_count(w) == count) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/%s': %" PRId64 " tensors; a dense layer here has %d", f->path,
                           d->path, tn_hf_weights_count(w), count);
}

tn_status tn_encoder_dense_weights(const hf_folder *f, const encoder_dense *d, hf_weights **out) {
    char path[4096];
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", f->path, d->path) >= (int)sizeof path)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s': the path is too long", f->path);
    return tn_hf_weights_open(path, out);
}

static tn_status add_dense(const hf_folder *f, const char *path, encoder_config *c) {
    tn_json_doc *doc = NULL;
    hf_weights *w = NULL;
    if (c->dense_count == ENC_MOST_DENSE)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/modules.json': more than %d dense layers", f->path,
                               ENC_MOST_DENSE);
    encoder_dense *d = &c->dense[c->dense_count++];
    snprintf(d->path, sizeof d->path, "%s", path);
    TRY(open_config(f, path, &doc));
    tn_status status = doc ? take_dense(f, tn_json_root(doc), c, d)
                           : tn_backend_fail(TN_ERR_IO, "'%s/%s' has no config.json", f->path, path);
    if (status == TN_OK) status = tn_encoder_dense_weights(f, d, &w);
    if (status == TN_OK) status = check_dense(f, d, w, c);
    tn_hf_weights_close(w);
    tn_json_free(doc);
    return status;
}

/* ---- modules.json ------------------------------------------------------------------------------------------------ */

typedef struct modules {
    char pooling[HF_NAME_SIZE]; /* the folder of that module */
    bool normalizes;
} modules;

static const char *module_name_of(const tn_json *module) {
    const char *type = tn_json_string(tn_json_get(module, "type"), ""), *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

static tn_status take_module(const hf_folder *f, const tn_json *module, size_t i, encoder_config *c, modules *m) {
    const char *name = module_name_of(module), *path = tn_json_string(tn_json_get(module, "path"), "");
    bool pools = strcmp(name, "Pooling") == 0, dense = strcmp(name, "Dense") == 0;
    if (strcmp(name, "Transformer") == 0 && i == 0) return TN_OK;
    if (strcmp(name, "Dropout") == 0) return TN_OK; /* nothing is dropped outside training */
    if (strcmp(name, "Normalize") == 0) return m->normalizes = true, TN_OK;
    if (!pools && !dense)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "'%s/modules.json': module %zu is of the type '%s'; Transformer, Pooling, Dense, Dropout "
            "and Normalize are computed here",
            f->path, i, tn_txt_shown(name, strlen(name)).text);
    if (!tn_hf_plain_name(path) || strlen(path) >= sizeof m->pooling)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s/modules.json': the path of module %zu, '%s', is not a folder next to it", f->path,
                               i, tn_txt_shown(path, strlen(path)).text);
    if (m->normalizes)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/modules.json': module %zu, %s, after Normalize is not supported", f->path, i, name);
    if (dense) return add_dense(f, path, c);
    snprintf(m->pooling, sizeof m->pooling, "%s", path);
    return TN_OK;
}

static tn_status read_modules(const hf_folder *f, encoder_config *c, modules *m) {
    tn_json_doc *doc;
    TRY(tn_hf_json(f, "modules.json", &doc));
    const tn_json *list = tn_json_root(doc);
    tn_status status = TN_OK;
    for (size_t i = 0; i < tn_json_length(list) && status == TN_OK; i++)
        status = take_module(f, tn_json_at(list, i), i, c, m);
    tn_json_free(doc);
    return status;
}

static tn_status read_longest(const hf_folder *f, encoder_config *c) {
    tn_json_doc *doc;
    TRY(tn_hf_json(f, "sentence_bert_config.json", &doc));
    int64_t most = tn_json_int(tn_json_get(tn_json_root(doc), "max_seq_length"), c->longest);
    tn_json_free(doc);
    if (most >= 1 && most < c->longest) c->longest = most;
    return TN_OK;
}

tn_status tn_encoder_modules(const hf_folder *f, const tn_embedder_options *o, encoder_config *c) {
    modules m = {.pooling = "1_Pooling"};
    c->pooling = TN_POOLING_MEAN;
    c->width = c->hidden;
    TRY(read_modules(f, c, &m));
    c->norm = m.normalizes ? TN_EMBED_NORM_UNIT : TN_EMBED_NORM_NONE;
    if (o->pooling == TN_POOLING_DEFAULT) TRY(read_pooling(f, m.pooling, c));
    if (o->pooling != TN_POOLING_DEFAULT) c->pooling = o->pooling;
    if (o->norm != TN_EMBED_NORM_DEFAULT) c->norm = o->norm;
    return read_longest(f, c);
}
