/* folder.c — Hugging Face folders: config.json with bounds, and the weights. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "text/folder.h"
#include "trunnion/ops.h"

static tn_status hf_weights_unpack(hf_weights *w, const char *folder, const tn_json *config);

shown_word tn_txt_shown(const char *text, size_t length) {
    shown_word w = {""};
    for (size_t i = 0; i < length && i < sizeof w.text - 1; i++)
        w.text[i] = (char)(text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?');
    return w;
}

bool tn_hf_is_folder(const char *path) {
    struct stat facts;
    return path && stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* "FOLDER/name", to be freed. */
static char *path_of(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = tn_txt_alloc(size, 1);
    if (path) snprintf(path, size, "%s/%s", folder, name);
    return path;
}

tn_status tn_hf_json(const hf_folder *f, const char *name, tn_json_doc **out) {
    struct stat facts;
    *out = NULL;
    AUTO_TXT_FREE char *path = path_of(f->path, name);
    if (!path) return TN_ERR_MEMORY;
    return stat(path, &facts) == 0 ? tn_json_open(path, out) : TN_OK;
}

/* What is true or false in all families: a fallback in place of another kind of value would give wrong results. */
static const hf_key flags[] = {
    {"tie_word_embeddings", TN_JSON_BOOL},
    {"use_task_id", TN_JSON_BOOL},
    {"use_sliding_window", TN_JSON_BOOL},
    {"use_parallel_residual", TN_JSON_BOOL},
    {"share_encoder_decoder_embeddings", TN_JSON_BOOL},
    {"scale_embedding", TN_JSON_BOOL},
    {"scale_decoder_outputs", TN_JSON_BOOL},
    {"do_stable_layer_norm", TN_JSON_BOOL},
    {"conv_bias", TN_JSON_BOOL},
    {"feat_proj_layer_norm", TN_JSON_BOOL},
    {"qkv_bias", TN_JSON_BOOL},
    {"downsample_in_bottleneck", TN_JSON_BOOL},
    {"downsample_in_first_stage", TN_JSON_BOOL},
    {"tf_padding", TN_JSON_BOOL},
    {"first_layer_is_expansion", TN_JSON_BOOL},
    {"use_weighted_layer_sum", TN_JSON_BOOL},
    {NULL, TN_JSON_NULL},
};

static tn_status open_all(hf_folder *f) {
    TRY(tn_hf_json(f, "config.json", &f->doc));
    f->config = tn_json_root(f->doc);
    if (!f->doc) return tn_backend_fail(TN_ERR_IO, "'%s' has no config.json: is it a model folder?", f->path);
    if (tn_json_kind_of(f->config) != TN_JSON_OBJECT)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json' is not an object", f->path);
    TRY(tn_hf_check_kinds(f, "config.json", f->config, flags));
    TRY(tn_hf_weights_open(f->path, &f->weights));
    const tn_json *quant = tn_json_get(f->config, "quantization_config");
    return tn_json_kind_of(quant) == TN_JSON_NULL ? TN_OK : hf_weights_unpack(f->weights, f->path, quant);
}

tn_status tn_hf_open(const char *path, hf_folder *out) {
    *out = (hf_folder){.prefix = ""};
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    out->path = tn_txt_zalloc(length + 1, 1);
    if (!out->path) return TN_ERR_MEMORY;
    memcpy(out->path, path, length);
    return open_all(out);
}

tn_status tn_hf_open_model(const hf_kind *kind, const char *folder, const void *options, void *defaults, void *out) {
    void *m = NULL;
    tn_device *device;
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "%s: out is NULL", kind->function);
    memcpy(out, &m, sizeof m);
    if (!folder) return tn_backend_fail(TN_ERR_ARGUMENT, "%s: the folder is NULL", kind->function);
    TRY(tn_options_read(defaults, options, kind->function, kind->initialiser));
    memcpy(&device, (const char *)defaults + kind->device, sizeof device);
    if (!device) device = tn_current_device();
    m = device ? tn_txt_zalloc(1, kind->size) : NULL;
    if (!m) return TN_ERR_MEMORY;
    tn_status status = kind->open(m, folder, device, defaults);
    if (status == TN_OK)
        memcpy(out, &m, sizeof m);
    else
        kind->close(m);
    return status;
}

void tn_hf_close(hf_folder *f) {
    tn_hf_weights_close(f->weights);
    tn_json_free(f->doc);
    tn_txt_free(f->path);
    *f = (hf_folder){.prefix = ""};
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static bool find_plain(const hf_folder *f, const char *name, tn_safetensors_info *info) {
    return tn_hf_weights_find(f->weights, name, info);
}

static bool find_prefixed(const hf_folder *f, const char *prefix, const char *name, tn_safetensors_info *info) {
    char full[HF_NAME_SIZE + 32];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return find_plain(f, full, info);
}

void tn_hf_find_prefix(hf_folder *f, const char *prefix, const char *probe) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    const char *found = find_prefixed(f, prefix, probe, &info) ? prefix : "";
    if (f->prefix != found) f->prefix = found; /* found again by a new conversation, while others read it */
}

/* Length of what stands before the last "model." of a prefix: of "language_model.model.", 15. The output matrix has
 * that before its name. */
static size_t outer_length(const hf_folder *f) {
    size_t length = strlen(f->prefix);
    bool inner = length > 7 && strcmp(f->prefix + length - 7, ".model.") == 0;
    return inner ? length - 6 : 0;
}

static bool find_either(const hf_folder *f, const char *name, tn_safetensors_info *info) {
    char outer[HF_NAME_SIZE];
    snprintf(outer, sizeof outer, "%.*s", (int)outer_length(f), f->prefix);
    return find_prefixed(f, f->prefix, name, info) || (outer[0] && find_prefixed(f, outer, name, info)) ||
           (f->prefix[0] && find_plain(f, name, info));
}

/* Checkpoints that were TensorFlow's once: a norm's parameters under their older names. */
static const struct { const char *now, *once; } endings[] = {{".weight", ".gamma"}, {".bias", ".beta"}};
enum { ENDINGS = sizeof endings / sizeof *endings };

bool tn_hf_is_parameter(const char *ending) {
    for (int i = 0; i < ENDINGS; i++)
        if (strcmp(ending, endings[i].now) == 0 || strcmp(ending, endings[i].once) == 0) return true;
    return false;
}

bool tn_hf_find(const hf_folder *f, const char *name, tn_safetensors_info *info) {
    if (find_either(f, name, info)) return true;
    const char *ending = strrchr(name, '.');
    for (int i = 0; ending && i < ENDINGS; i++) {
        char older[HF_NAME_SIZE];
        if (strcmp(ending, endings[i].now) != 0) continue;
        snprintf(older, sizeof older, "%.*s%s", (int)(ending - name), name, endings[i].once);
        return find_either(f, older, info);
    }
    return false;
}

bool tn_hf_plain_name(const char *name) { return name[0] && name[0] != '.' && !strpbrk(name, "/\\"); }

const char *tn_hf_strip(const hf_folder *f, const char *name) {
    size_t length = strlen(f->prefix), outer = outer_length(f);
    if (strncmp(name, f->prefix, length) == 0) return name + length;
    return strncmp(name, f->prefix, outer) == 0 ? name + outer : name;
}

bool tn_hf_is_other_part(const hf_folder *f, const char *name) {
    static const char *const parts[] = {
        "vision",    "visual",    "multi_modal_projector", "audio",     "image_newline", "mm_projector",
        "connector", "projector", "view_seperator",        "sam_model", "qwen2_model"};
    const char *rest = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    const tn_json *root = tn_json_root(f->doc);
    bool whole = f->config != root || tn_json_get(root, "vision_config") || tn_json_get(root, "audio_config");
    if (!whole) return false;
    bool inside = !f->prefix[0] || tn_hf_strip(f, name) != name || strncmp(name, "lm_head", 7) == 0;
    if (!inside) return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strncmp(rest, parts[i], strlen(parts[i])) == 0) return true;
    return false;
}

shape_text tn_txt_shape(const int64_t *shape, int rank) {
    shape_text t = {"["};
    for (int d = 0; d < rank && d < 3; d++) {
        size_t used = strlen(t.text);
        snprintf(t.text + used, sizeof t.text - used, "%s%" PRId64, d ? ", " : "", shape[d]);
    }
    strcat(t.text, rank > 3 ? ", …]" : "]");
    return t;
}

tn_status tn_hf_check(const hf_folder *f, const tn_safetensors_info *t, const int64_t *shape) {
    int rank = 0;
    bool fits = true;
    for (; shape[rank]; rank++)
        fits = fits && rank < t->rank && t->shape[rank] == shape[rank];
    if (t->dtype != TN_F32 && t->dtype != TN_F16 && t->dtype != TN_BF16)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%.100s' has type %s; weights must be F32, F16 or BF16", f->path, t->name,
                               t->dtype_name);
    if (fits && t->rank == rank) return TN_OK;
    return tn_backend_fail(
        TN_ERR_FORMAT, "'%s': tensor '%.100s' has %d dimensions, %s; according to config.json it must have %d, %s",
        f->path, t->name, t->rank, tn_txt_shape(t->shape, t->rank).text, rank, tn_txt_shape(shape, rank).text);
}

tn_status tn_hf_take(hf_folder *f, const char *name, const int64_t *shape, bool f32, tn_tensor **out) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    if (!tn_hf_find(f, name, &info)) return tn_backend_fail(TN_ERR_FORMAT, "'%s' has no tensor '%s'", f->path, name);
    TRY(tn_hf_check(f, &info, shape));
    {
        TN_SCOPE;
        tn_tensor *t = tn_hf_weights_tensor(f->weights, info.name);
        *out = tn_retain(f32 && info.dtype != TN_F32 ? tn_cast(t, TN_F32) : t);
    }
    f->taken += tn_numel(*out);
    f->taken_bytes += (int64_t)info.bytes;
    return tn_eval(out, 1);
}

tn_status tn_hf_take_linear(hf_folder *f, const char *stem, const int64_t *shape, bool f32, bool bias, hf_linear *out) {
    char name[HF_NAME_SIZE];
    bool matrix = shape[1] && !shape[2];
    snprintf(name, sizeof name, "%s.weight", stem);
    TRY(tn_hf_take(f, name, shape, f32 || !matrix, &out->weight));
    snprintf(name, sizeof name, "%s.bias", stem);
    return bias ? tn_hf_take(f, name, (int64_t[]){shape[0], 0}, true, &out->bias) : TN_OK;
}

void tn_hf_free_linear(const hf_linear *l) {
    tn_free(l->weight);
    tn_free(l->bias);
}

tn_tensor *tn_hf_linear(const tn_tensor *x, const hf_linear *l) { return tn_linear(x, l->weight, l->bias); }

tn_tensor *tn_hf_norm(const tn_tensor *x, const hf_linear *l, double eps) {
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = eps;
    return tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), l->weight, l->bias, &o);
}

tn_tensor *tn_hf_rms_norm(const tn_tensor *x, const tn_tensor *weight, double eps) {
    tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
    o.eps = eps;
    return tn_rms_norm(x, TN_DIMS(tn_size(x, -1)), weight, &o);
}

tn_status tn_txt_show(tn_tensor *logits, float *room, int64_t count, tn_tensor **shown, const float **out) {
    const void *at = NULL;
    TRY(tn_peek(logits, &at));
    *out = at ? at : room;
    if (!at) return tn_read(logits, room, (size_t)count * sizeof *room);
    *shown = tn_retain(logits);
    return TN_OK;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const tn_json *get(const tn_json *object, const char *key) {
    const tn_json *v = tn_json_get(object, key);
    return tn_json_kind_of(v) == TN_JSON_NULL ? NULL : v;
}

bool tn_hf_has(const hf_folder *f, const char *key) { return get(f->config, key) != NULL; }

const char *tn_hf_text(const hf_folder *f, const char *key, const char *fallback) {
    return tn_json_string(get(f->config, key), fallback);
}

static tn_status missing(const hf_folder *f, const char *key) {
    return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json' has no '%s'", f->path, key);
}

static shown_word shown_value(const tn_json *v) {
    static const char *const kinds[] = {"null", "", "", "", "a list", "an object"};
    const char *text = tn_json_string(v, kinds[tn_json_kind_of(v)]);
    char number[40];
    snprintf(number, sizeof number, "%.10g", tn_json_number(v, 0));
    if (tn_json_kind_of(v) == TN_JSON_BOOL) text = tn_json_bool(v, false) ? "true" : "false";
    if (tn_json_kind_of(v) == TN_JSON_NUMBER) text = number;
    return tn_txt_shown(text, strlen(text));
}

tn_status tn_hf_check_kinds(const hf_folder *f, const char *file, const tn_json *object, const hf_key *keys) {
    static const char *const wanted[] = {[TN_JSON_BOOL] = "true or false",
                                         [TN_JSON_NUMBER] = "a number",
                                         [TN_JSON_STRING] = "a string",
                                         [TN_JSON_ARRAY] = "a list",
                                         [TN_JSON_OBJECT] = "an object"};
    for (; keys->key; keys++) {
        const tn_json *v = get(object, keys->key);
        if (v && tn_json_kind_of(v) != keys->kind)
            return tn_backend_fail(TN_ERR_FORMAT, "'%s/%s': '%s' is %s; it must be %s", f->path, file, keys->key,
                                   shown_value(v).text, wanted[keys->kind]);
    }
    return TN_OK;
}

tn_status tn_hf_size(const hf_folder *f, const char *key, int64_t fallback, int64_t most, int64_t *out) {
    const tn_json *v = get(f->config, key);
    if (!v && fallback < 0) return missing(f, key);
    *out = v ? tn_json_int(v, 0) : fallback;
    if ((!v || *out >= 1) && *out <= most) return TN_OK;
    if (!v)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s/config.json' has no '%s'; what follows for it is %" PRId64 ", but at most %" PRId64
                               " is supported",
                               f->path, key, fallback, most);
    return tn_hf_fail(f->path, TN_ERR_FORMAT, "'%s' is %s; it must be an integer from 1 to %" PRId64, key,
                      shown_value(v).text, most);
}

tn_status tn_hf_real(const hf_folder *f, const tn_json *object, const char *key, double fallback, double least,
                     double most, double *out) {
    const tn_json *v = get(object, key);
    if (!v && isnan(fallback)) return missing(f, key);
    *out = v ? tn_json_number(v, least - 1) : fallback;
    if (!v || (*out >= least && *out <= most)) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT, "'%s' is %s; it must be a number from %g to %g", key, shown_value(v).text,
                      least, most);
}

bool tn_hf_is_of(const char *path, bool (*is_known)(const char *type)) {
    char file[4096];
    struct stat facts;
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    if (!tn_hf_is_folder(path) || snprintf(file, sizeof file, "%s/config.json", path) >= (int)sizeof file) return false;
    if (stat(file, &facts) != 0 || tn_json_open(file, &doc) != TN_OK) return false;
    return is_known(tn_json_string(tn_json_get(tn_json_root(doc), "model_type"), ""));
}

tn_status tn_hf_fail(const char *folder, tn_status code, const char *format, ...) {
    char text[3072]; /* has room for the list of all families */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tn_backend_fail(code, "'%s/config.json': %s", folder, text);
}

tn_status tn_hf_refuse(const hf_folder *f, const char *key) {
    const tn_json *v = get(f->config, key);
    if (!v || (tn_json_kind_of(v) == TN_JSON_BOOL && !tn_json_bool(v, true))) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'%s' is set, which is not supported", key);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

static tn_tensor *gelu_exact(const tn_tensor *x) { return tn_gelu(x, NULL); }

static tn_tensor *gelu_tanh(const tn_tensor *x) {
    tn_gelu_options o = TN_GELU_DEFAULTS;
    o.approximate = TN_APPROXIMATE_TANH;
    return tn_gelu(x, &o);
}

static tn_tensor *relu(const tn_tensor *x) { return tn_relu(x); }

static tn_tensor *relu_squared(const tn_tensor *x) {
    tn_tensor *y = tn_relu(x);
    return tn_mul(y, y);
}

static tn_tensor *relu6(const tn_tensor *x) { return tn_relu6(x); }

static tn_tensor *silu(const tn_tensor *x) { return tn_silu(x); }

static tn_tensor *quick_gelu(const tn_tensor *x) { return tn_mul(x, tn_sigmoid(tn_mul_scalar(x, 1.702))); }

tn_activation *tn_txt_activation(const char *name) {
    static const struct {
        const char *name;
        tn_activation *function;
    } rows[] = {
        {"gelu", gelu_exact},     {"gelu_new", gelu_tanh},
        {"gelu_fast", gelu_tanh}, {"gelu_pytorch_tanh", gelu_tanh},
        {"silu", silu},           {"swish", silu},
        {"relu", relu},           {"relu2", relu_squared},
        {"relu6", relu6},         {"quick_gelu", quick_gelu},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].function;
    return NULL;
}

tn_status tn_hf_activation(const hf_folder *f, const char *key, const char *fallback, tn_activation **out) {
    const char *name = tn_hf_text(f, key, fallback);
    if (tn_hf_has(f, key) && !tn_hf_text(f, key, NULL))
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "'%s' must be the name of an activation", key);
    *out = tn_txt_activation(name);
    if (*out) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "the activation '%s' ('%s') is not supported",
                      tn_txt_shown(name, strlen(name)).text, key);
}

/* ==== weights ===================================================================================================== */
/* A folder has one file or an index of several ("shards"). If it has both formats, safetensors are read; the values are
 * the same. Pickled tensors are described by tn_safetensors_info too, so callers need not distinguish them. */

enum { MOST_SHARDS = 4096 };

/* One tensor of a pickle. */
typedef struct pickled {
    const char *name;
    tn_pickle *file;
} pickled;

struct hf_weights {
    tn_safetensors *safe; /* NULL: they are pickled */
    hf_quant *quant;      /* NULL: they are stored plainly */
    tn_pickle **files;
    int64_t file_count;
    pickled *tensors; /* of all files, by name */
    int64_t count;
};

static bool is_there(const char *folder, const char *name, bool *failed) {
    struct stat facts;
    AUTO_TXT_FREE char *path = path_of(folder, name);
    bool there = path && stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
    *failed |= !path;
    return there;
}

/* ---- pickles ----------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const pickled *)a)->name, ((const pickled *)b)->name);
}

static tn_status open_file(hf_weights *w, const char *folder, const char *name) {
    AUTO_TXT_FREE char *path = path_of(folder, name);
    if (!path) return TN_ERR_MEMORY;
    TRY(tn_pickle_open(path, &w->files[w->file_count]));
    w->file_count++;
    return TN_OK;
}

/* The list of all tensors, sorted by name. A name in two shards is an error, because which one counts is not
 * defined. */
static tn_status list_tensors(hf_weights *w, const char *folder) {
    for (int64_t i = 0; i < w->file_count; i++)
        w->count += tn_pickle_count(w->files[i]);
    w->tensors = tn_txt_zalloc((size_t)w->count + 1, sizeof *w->tensors);
    if (!w->tensors) return TN_ERR_MEMORY;
    pickled *at = w->tensors;
    for (int64_t i = 0; i < w->file_count; i++)
        for (int64_t k = 0; k < tn_pickle_count(w->files[i]); k++) {
            tn_pickle_info t = {.struct_size = sizeof t};
            TRY(tn_pickle_at(w->files[i], k, &t));
            *at++ = (pickled){t.name, w->files[i]};
        }
    qsort(w->tensors, (size_t)w->count, sizeof *w->tensors, by_name);
    for (int64_t i = 1; i < w->count; i++)
        if (by_name(&w->tensors[i - 1], &w->tensors[i]) == 0)
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': two tensors are named '%.100s'", folder, w->tensors[i].name);
    return TN_OK;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The files that an index names, each once; names: room for as many as the map has members. */
static tn_status open_named(hf_weights *w, const char *folder, const tn_json *map, const char **names) {
    size_t count = tn_json_length(map), files = 0;
    for (size_t i = 0; i < count; i++) {
        names[i] = tn_json_string(tn_json_at(map, i), "");
        if (!tn_hf_plain_name(names[i]))
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': '%s' is not the name of a file in the folder", folder,
                                   tn_txt_shown(names[i], strlen(names[i])).text);
    }
    qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) names[files++] = names[i];
    if (files < 1 || files > MOST_SHARDS)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': the index lists %zu files; it must list 1 to %d", folder, files,
                               MOST_SHARDS);
    w->files = tn_txt_zalloc(files, sizeof(tn_pickle *));
    if (!w->files) return TN_ERR_MEMORY;
    for (size_t i = 0; i < files; i++)
        TRY(open_file(w, folder, names[i]));
    return TN_OK;
}

static tn_status open_index(hf_weights *w, const char *folder, const char *name) {
    AUTO_TXT_FREE char *path = path_of(folder, name);
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    if (!path) return TN_ERR_MEMORY;
    TRY(tn_json_open(path, &doc));
    const tn_json *map = tn_json_get(tn_json_root(doc), "weight_map");
    if (tn_json_kind_of(map) != TN_JSON_OBJECT)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': the object \"weight_map\" is missing", path);
    AUTO_TXT_FREE const char **names = tn_txt_zalloc(tn_json_length(map) + 1, sizeof *names);
    return names ? open_named(w, folder, map, names) : TN_ERR_MEMORY;
}

static tn_status weights_open_all(hf_weights *w, const char *folder) {
    static const char single[] = "pytorch_model.bin", index[] = "pytorch_model.bin.index.json";
    bool failed = false;
    bool safe =
        is_there(folder, "model.safetensors", &failed) || is_there(folder, "model.safetensors.index.json", &failed);
    bool one = is_there(folder, single, &failed), several = is_there(folder, index, &failed);
    if (failed) return TN_ERR_MEMORY;
    if (safe) return tn_safetensors_open(folder, &w->safe);
    if (!one && !several)
        return tn_backend_fail(TN_ERR_IO,
                               "'%s' has no weights: neither model.safetensors nor %s, nor an index of one of them "
                               "(model.safetensors.index.json, %s)",
                               folder, single, index);
    if (one) {
        w->files = tn_txt_zalloc(1, sizeof(tn_pickle *));
        if (!w->files) return TN_ERR_MEMORY;
        TRY(open_file(w, folder, single));
    } else {
        TRY(open_index(w, folder, index));
    }
    return list_tensors(w, folder);
}

tn_status tn_hf_weights_open(const char *folder, hf_weights **out) {
    *out = tn_txt_zalloc(1, sizeof **out);
    return *out ? weights_open_all(*out, folder) : TN_ERR_MEMORY;
}

static tn_status hf_weights_unpack(hf_weights *w, const char *folder, const tn_json *config) {
    return tn_hf_quant_open(folder, config, w->safe, &w->quant);
}

void tn_hf_weights_close(hf_weights *w) {
    if (!w) return;
    tn_hf_quant_close(w->quant);
    tn_safetensors_close(w->safe);
    for (int64_t i = 0; i < w->file_count; i++)
        tn_pickle_close(w->files[i]);
    tn_txt_free_each(w->files, w->tensors, w);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

int64_t tn_hf_weights_count(const hf_weights *w) {
    if (w->quant) return tn_hf_quant_count(w->quant);
    return w->safe ? tn_safetensors_count(w->safe) : w->count;
}

static tn_status describe_weights(const pickled *p, tn_safetensors_info *out) {
    tn_pickle_info t = {.struct_size = sizeof t};
    TRY(tn_pickle_find(p->file, p->name, &t));
    int64_t count = 1;
    bool in_rows = true;
    for (int d = t.rank - 1; d >= 0; d--) {
        in_rows = in_rows && (t.stride[d] == count || t.shape[d] == 1);
        count *= t.shape[d];
        out->shape[d] = t.shape[d];
    }
    out->name = t.name;
    out->dtype_name = t.dtype_name;
    out->dtype = t.dtype;
    out->rank = t.rank;
    out->data = in_rows ? t.data : NULL;
    out->bytes = t.dtype < TN_DTYPE_COUNT ? count * (int64_t)tn_dtype_size(t.dtype) : 0;
    return TN_OK;
}

tn_status tn_hf_weights_at(const hf_weights *w, int64_t i, tn_safetensors_info *info) {
    if (w->quant) return tn_hf_quant_at(w->quant, i, info), TN_OK;
    return w->safe ? tn_safetensors_at(w->safe, (int)i, info) : describe_weights(&w->tensors[i], info);
}

static const pickled *find_weights(const hf_weights *w, const char *name) {
    const pickled key = {.name = name};
    return bsearch(&key, w->tensors, (size_t)w->count, sizeof key, by_name);
}

bool tn_hf_weights_find(const hf_weights *w, const char *name, tn_safetensors_info *info) {
    if (w->quant) return tn_hf_quant_find(w->quant, name, info);
    if (w->safe) return tn_safetensors_find(w->safe, name, info) == TN_OK;
    const pickled *p = find_weights(w, name);
    return p && describe_weights(p, info) == TN_OK;
}

tn_tensor *tn_hf_weights_tensor(const hf_weights *w, const char *name) {
    if (w->quant) return tn_hf_quant_tensor(w->quant, name);
    if (w->safe) return tn_safetensors_tensor(w->safe, name);
    const pickled *p = find_weights(w, name);
    return p ? tn_pickle_tensor(p->file, name) : tn_failed(TN_ERR_FORMAT, "no tensor '%s'", name);
}
