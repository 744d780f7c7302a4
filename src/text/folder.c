/* folder.c — opening a Hugging Face folder, and reading config.json with bounds. */
#include "text/folder.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "trunnion/ops.h"

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
static char *path_of(const hf_folder *f, const char *name) {
    size_t size = strlen(f->path) + strlen(name) + 2;
    char *path = tn_txt_alloc(size, 1);
    if (path) snprintf(path, size, "%s/%s", f->path, name);
    return path;
}

tn_status tn_hf_json(const hf_folder *f, const char *name, tn_json_doc **out) {
    struct stat facts;
    *out = NULL;
    char *path = path_of(f, name);
    if (!path) return TN_ERR_MEMORY;
    tn_status status = stat(path, &facts) == 0 ? tn_json_open(path, out) : TN_OK;
    tn_txt_free(path);
    return status;
}

static tn_status open_all(hf_folder *f) {
    TRY(tn_hf_json(f, "config.json", &f->doc));
    f->config = tn_json_root(f->doc);
    if (!f->doc) return tn_backend_fail(TN_ERR_IO, "'%s' has no config.json: is it the folder of a model?", f->path);
    if (tn_json_kind_of(f->config) != TN_JSON_OBJECT)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json' is no object", f->path);
    return tn_hf_weights_open(f->path, &f->weights);
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

static bool find_either(const hf_folder *f, const char *name, tn_safetensors_info *info) {
    return find_prefixed(f, f->prefix, name, info) || (f->prefix[0] && find_plain(f, name, info));
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
    size_t length = strlen(f->prefix);
    return strncmp(name, f->prefix, length) == 0 ? name + length : name;
}

tn_status tn_hf_check(const hf_folder *f, const tn_safetensors_info *t, const int64_t shape[2]) {
    int rank = shape[1] ? 2 : 1;
    if (t->dtype != TN_F32 && t->dtype != TN_F16 && t->dtype != TN_BF16)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%.100s' is of type %s; weights are computed with as F32, F16 or BF16",
                               f->path, t->name, t->dtype_name);
    bool fits = t->rank == rank && t->shape[0] == shape[0] && (rank == 1 || t->shape[1] == shape[1]);
    if (fits) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': tensor '%.100s' has %d dimensions, [%" PRId64 ", %" PRId64
                           "]; by config.json it must have %d, [%" PRId64 ", %" PRId64 "]",
                           f->path, t->name, t->rank, t->rank > 0 ? t->shape[0] : 1, t->rank > 1 ? t->shape[1] : 1,
                           rank, shape[0], rank == 2 ? shape[1] : 1);
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

tn_status tn_hf_size(const hf_folder *f, const char *key, int64_t fallback, int64_t most, int64_t *out) {
    const tn_json *v = get(f->config, key);
    if (!v && fallback < 0) return missing(f, key);
    *out = v ? tn_json_int(v, 0) : fallback;
    if (!v || (*out >= 1 && *out <= most)) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json': '%s' must be a whole number from 1 to %" PRId64, f->path,
                           key, most);
}

tn_status tn_hf_real(const hf_folder *f, const tn_json *object, const char *key, double fallback, double least,
                     double most, double *out) {
    const tn_json *v = get(object, key);
    if (!v && isnan(fallback)) return missing(f, key);
    *out = v ? tn_json_number(v, least - 1) : fallback;
    if (!v || (*out >= least && *out <= most)) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json': '%s' must be a number from %g to %g", f->path, key, least,
                           most);
}

tn_status tn_hf_refuse(const hf_folder *f, const char *key) {
    const tn_json *v = get(f->config, key);
    if (!v || (tn_json_kind_of(v) == TN_JSON_BOOL && !tn_json_bool(v, true))) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/config.json': '%s' is set, which is not computed here", f->path,
                           key);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

static tn_tensor *gelu_exact(const tn_tensor *x) { return tn_gelu(x, NULL); }

static tn_tensor *gelu_tanh(const tn_tensor *x) {
    tn_gelu_options o = TN_GELU_DEFAULTS;
    o.approximate = TN_APPROXIMATE_TANH;
    return tn_gelu(x, &o);
}

static tn_tensor *relu(const tn_tensor *x) { return tn_relu(x); }

static tn_tensor *silu(const tn_tensor *x) { return tn_silu(x); }

tn_activation *tn_txt_activation(const char *name) {
    static const struct {
        const char *name;
        tn_activation *function;
    } rows[] = {
        {"gelu", gelu_exact}, {"gelu_new", gelu_tanh}, {"gelu_fast", gelu_tanh}, {"gelu_pytorch_tanh", gelu_tanh},
        {"silu", silu},       {"swish", silu},         {"relu", relu},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].function;
    return NULL;
}

tn_status tn_hf_activation(const hf_folder *f, const char *key, const char *fallback, tn_activation **out) {
    const char *name = tn_hf_text(f, key, fallback);
    *out = tn_txt_activation(name);
    if (*out) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/config.json': the activation '%s' ('%s') is not computed here",
                           f->path, tn_txt_shown(name, strlen(name)).text, key);
}
