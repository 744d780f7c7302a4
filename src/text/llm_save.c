/* llm_save.c — writing what was trained: an adapter in PEFT's format, or the whole model in its kind of file.
 *
 * A model is written one tensor at a time. Every tensor of the source is in the result under its name; those that were
 * trained or have an adapter come from memory, the others are copied as they are. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "text/llm_model.h"

enum { PATH_SIZE = 4096 };

static tn_status make_folder(const char *folder) {
    struct stat s;
    if (mkdir(folder, 0777) == 0) return TN_OK;
    if (errno == EEXIST && stat(folder, &s) == 0 && S_ISDIR(s.st_mode)) return TN_OK;
    return tn_backend_fail(TN_ERR_IO, "cannot make the folder '%s': %s", folder,
                           strerror(errno == EEXIST ? ENOTDIR : errno));
}

static tn_status join_path(const char *folder, const char *name, char out[PATH_SIZE]) {
    if (snprintf(out, PATH_SIZE, "%s/%s", folder, name) < PATH_SIZE) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "the path is too long: '%.80s…/%.80s'", folder, name);
}

/* A small file, whole or not at all. */
static tn_status write_text(const char *folder, const char *name, const void *data, size_t size) {
    char path[PATH_SIZE], part[PATH_SIZE];
    TRY(join_path(folder, name, path));
    if (snprintf(part, sizeof part, "%s.part", path) >= PATH_SIZE) return join_path(path, ".part", part);
    FILE *f = fopen(part, "wb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot write '%s': %s", part, strerror(errno));
    bool good = fwrite(data, 1, size, f) == size;
    good = fclose(f) == 0 && good && rename(part, path) == 0;
    if (good) return TN_OK;
    tn_status status = tn_backend_fail(TN_ERR_IO, "writing '%s': %s", path, strerror(errno));
    remove(part);
    return status;
}

/* ==== the adapter ================================================================================================= */

/* Names of the module's last part, each once. */
static void list_targets(const tn_llm *m, FILE *to) {
    bool any = false;
    for (int slot = 0; slot < LAYER_SLOTS; slot++) {
        char name[LLM_NAME_SIZE];
        bool here = false;
        for (int64_t i = 0; i < m->config.layers && !here; i++)
            here = m->weights.lora[i * LAYER_SLOTS + slot].a != NULL;
        if (!here || !tn_llm_lora_slot(&m->config, 0, slot, name)) continue;
        const char *dot = strrchr(name, '.'), *last = dot + 1;
        for (const char *at = name; m->config.file.naming->transposed && (at = strchr(at, '.')) != NULL; at++)
            if (strcmp(at + 1, last) != 0 && strchr(at + 1, '.') == dot) last = at + 1; /* "attn.c_proj" */
        fprintf(to, "%s\"%s\"", any ? ", " : "", last);
        any = true;
    }
}

/* A JSON string of any bytes. */
static void put_string(const char *text, FILE *to) {
    fputc('"', to);
    for (const char *s = text; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(to, "\\%c", *s);
        else if ((unsigned char)*s < ' ')
            fprintf(to, "\\u%04x", (unsigned)*s);
        else
            fputc(*s, to);
    }
    fputc('"', to);
}

static tn_status write_settings(const tn_llm *m, int64_t rank, const char *base_model, const char *folder) {
    TN_C_LOCALE;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    fputs("{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"base_model_name_or_path\": ", f);
    put_string(base_model, f);
    fprintf(f, ",\n  \"r\": %" PRId64 ",\n  \"lora_alpha\": %.17g,\n  \"target_modules\": [", rank,
            m->weights.lora_scale * (double)rank);
    list_targets(m, f);
    fprintf(f,
            "],\n  \"fan_in_fan_out\": %s,\n  \"lora_dropout\": 0.0,\n  \"bias\": \"none\",\n  \"use_rslora\": false,\n"
            "  \"use_dora\": false,\n  \"modules_to_save\": null,\n  \"rank_pattern\": {},\n  \"alpha_pattern\": {},\n"
            "  \"init_lora_weights\": true,\n  \"inference_mode\": true\n}\n",
            m->config.family->naming->transposed ? "true" : "false");
    tn_status status = fclose(f) == 0 ? write_text(folder, "adapter_config.json", text, size)
                                      : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    free(text);
    return status;
}

enum { ADAPTER_NAME = 2 * LLM_NAME_SIZE };

typedef struct adapter_list {
    tn_named_tensor *items;
    char (*names)[ADAPTER_NAME];
    int count;
    int64_t rank;
} adapter_list;

static void adapter_list_free(adapter_list *l) { tn_txt_free_each(l->items, l->names); }

static void add_half(adapter_list *l, const char *module, char letter, tn_tensor *t) {
    snprintf(l->names[l->count], ADAPTER_NAME, "base_model.model.%s.lora_%c.weight", module, letter);
    l->items[l->count] = (tn_named_tensor){l->names[l->count], t};
    l->count++;
}

/* Handles belong to the caller's scope. */
static void list_adapter(const tn_llm *m, adapter_list *l) {
    for (int64_t i = 0; i < m->config.layers * LAYER_SLOTS; i++) {
        const llm_lora *pair = &m->weights.lora[i];
        char module[LLM_NAME_SIZE];
        int slot = (int)(i % LAYER_SLOTS);
        if (!pair->a || !tn_llm_lora_slot(&m->config, i / LAYER_SLOTS, slot, module)) continue;
        l->rank = tn_size(pair->a, 0);
        add_half(l, module, 'A', tn_detach(pair->a));
        tn_tensor *rows = tn_llm_lora_rows(&m->config, slot, pair->b, true);
        add_half(l, module, 'B', tn_detach(rows));
        tn_free(rows);
    }
}

tn_status tn_llm_save_adapter(const tn_llm *m, const char *folder, const char *base_model) {
    static const tn_metadata format = {"format", "pt"};
    char path[PATH_SIZE];
    TRY(join_path(folder, "adapter_model.safetensors", path));
    TRY(make_folder(folder));
    size_t most = 2 * (size_t)m->config.layers * LAYER_SLOTS;
    AUTO_CALL(adapter_list_free)
    adapter_list l = {.items = tn_txt_alloc(most, sizeof *l.items), .names = tn_txt_alloc(most, sizeof *l.names)};
    if (!l.items || !l.names) return TN_ERR_MEMORY;
    TN_SCOPE;
    TN_NO_GRAD;
    list_adapter(m, &l);
    TRY(tn_safetensors_save(path, l.items, l.count, &format, 1));
    return write_settings(m, l.rank, base_model ? base_model : tn_llm_source_path(&m->file->source), folder);
}

/* ==== the model =================================================================================================== */

static bool is_float(tn_dtype t) { return t == TN_F32 || t == TN_F16 || t == TN_BF16; }

/* The slot of a tensor of the source if its values in memory differ from the file. */
static tn_status find_changed(const tn_llm *m, const llm_tensor *t, bool *changed, int64_t *layer, int *slot) {
    const llm_config *c = &m->config;
    const llm_source *s = &m->file->source;
    const char *name = s->gguf ? t->name : tn_hf_strip(&s->folder, t->name);
    *changed = tn_llm_find_slot(c, c->file.naming, name, layer, slot) && *layer < c->layers;
    if (!*changed) return TN_OK;
    if (*layer < 0 && *slot == SLOT_OUTPUT && c->tied) *slot = SLOT_EMBEDDING; /* a second copy in the file */
    bool rope = *layer < 0 && (*slot == SLOT_ROPE_FACTORS || *slot == SLOT_ROPE_SHORT || *slot == SLOT_ROPE_LONG);
    bool paired = *layer >= 0 && m->weights.lora && m->weights.lora[*layer * LAYER_SLOTS + *slot].a;
    *changed = paired || (m->trained_embedding && !rope);
    char pattern[LLM_NAME_SIZE];
    bool apart = *layer >= 0 && tn_llm_name(c->file.naming, pattern, *layer, *slot) && strchr(pattern, '*');
    if (!*changed || !apart) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "tn_llm_save_model: '%s' has a tensor for each expert ('%s'); saving trained experts is not "
                           "supported",
                           tn_llm_source_path(s), t->name);
}

/* A tensor as it is written: a handle of the caller's scope, and its type in out->dtype. */
static tn_status tensor_to_save(const tn_llm *m, llm_tensor *out, bool *changed, tn_tensor **tensor) {
    int64_t layer;
    int slot;
    *tensor = NULL;
    TRY(find_changed(m, out, changed, &layer, &slot));
    if (!*changed) return TN_OK;
    tn_tensor *merged = tn_llm_merged(m, layer, slot), *x = merged;
    if (layer >= 0 && m->config.file.naming->transposed & BIT(slot)) x = tn_transpose(x, 0, 1);
    if (!is_float(out->dtype)) {
        out->dtype = TN_F16;
        out->dtype_name = "F16";
    }
    *tensor = tn_contiguous(tn_cast(tn_reshape(x, out->shape, out->rank), out->dtype));
    tn_free(merged);
    return tn_status_of(*tensor);
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

enum { MOSTLY_F16 = 1 }; /* of general.file_type */

/* Split files become one, with the default alignment. */
static bool is_about_the_file(const char *key, bool widened) {
    return !strcmp(key, "general.alignment") || !strncmp(key, "split.", 6) ||
           (widened && !strcmp(key, "general.file_type"));
}

/* widened: quantized matrices become f16. */
static tn_status put_metadata(const tn_gguf *from, tn_gguf_writer *to, bool widened) {
    for (int64_t i = 0; i < tn_gguf_key_count(from); i++) {
        const char *key = tn_gguf_key(from, i);
        if (!is_about_the_file(key, widened)) TRY(tn_gguf_put_value(to, key, tn_gguf_get(from, key)));
    }
    return widened ? tn_gguf_put_int(to, "general.file_type", TN_GGUF_U32, MOSTLY_F16) : TN_OK;
}

/* Descriptions of all tensors; `to` may be NULL. *widened: whether a quantized one becomes f16. */
static tn_status add_tensors(const tn_llm *m, tn_gguf_writer *to, bool *widened) {
    *widened = false;
    for (int64_t i = 0; i < tn_llm_source_count(&m->file->source); i++) {
        llm_tensor t = {.struct_size = sizeof t};
        bool changed;
        int64_t layer;
        int slot;
        TRY(tn_llm_source_at(&m->file->source, i, &t));
        TRY(find_changed(m, &t, &changed, &layer, &slot));
        if (changed && !is_float(t.dtype)) {
            t.dtype = TN_F16;
            t.dtype_name = "F16";
            *widened = true;
        }
        if (to) TRY(tn_gguf_add(to, &t));
    }
    return TN_OK;
}

static tn_status write_one(const tn_llm *m, tn_gguf_writer *to, int64_t i) {
    llm_tensor t = {.struct_size = sizeof t};
    bool changed;
    tn_tensor *x;
    TRY(tn_llm_source_at(&m->file->source, i, &t));
    TN_SCOPE;
    TN_NO_GRAD;
    TRY(tensor_to_save(m, &t, &changed, &x));
    if (!changed) return tn_gguf_write(to, t.data, t.bytes);
    int64_t bytes = (int64_t)tn_dtype_bytes(t.dtype, tn_numel(x));
    AUTO_TXT_FREE void *data = tn_txt_alloc((size_t)bytes, 1);
    TRY(data ? tn_read(x, data, (size_t)bytes) : TN_ERR_MEMORY);
    return tn_gguf_write(to, data, bytes);
}

static tn_status save_gguf(const tn_llm *m, const char *path) {
    tn_gguf_writer *to;
    bool widened;
    TRY(add_tensors(m, NULL, &widened));
    TRY(tn_gguf_create(path, 0, &to));
    tn_status status = put_metadata(m->file->source.gguf, to, widened);
    if (status == TN_OK) status = add_tensors(m, to, &widened);
    for (int64_t i = 0; i < tn_llm_source_count(&m->file->source) && status == TN_OK; i++)
        status = write_one(m, to, i);
    if (status == TN_OK) return tn_gguf_commit(to);
    tn_gguf_abandon(to);
    return status;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

enum { MOST_COPIED = 64 << 20 }; /* bytes of a file that is copied: tokenizers are the largest */

static bool ends_in(const char *name, const char *ending) {
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

static bool is_weights_file(const char *name) {
    static const char *const endings[] = {".safetensors", ".bin", ".pt",        ".pth", ".gguf",    ".index.json",
                                          ".onnx",        ".md5", ".onnx_data", ".h5",  ".msgpack", "rust_model.ot"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_in(name, endings[i])) return true;
    return false;
}

/* to: NULL: only checks whether it could be copied. */
static tn_status copy_file(const char *from, const char *to, const char *name) {
    char path[PATH_SIZE];
    struct stat facts;
    TRY(join_path(from, name, path));
    if (is_weights_file(name) || stat(path, &facts) != 0 || !S_ISREG(facts.st_mode)) return TN_OK;
    if (facts.st_size > MOST_COPIED)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s' has %lld bytes; files beside the weights are copied up to %d: move it elsewhere",
                               path, (long long)facts.st_size, MOST_COPIED);
    if (!to) return TN_OK;
    FILE *f = fopen(path, "rb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
    AUTO_TXT_FREE char *data = tn_txt_alloc((size_t)facts.st_size + 1, 1);
    size_t size = data ? fread(data, 1, (size_t)facts.st_size, f) : 0;
    bool whole = size == (size_t)facts.st_size;
    fclose(f);
    if (!data) return TN_ERR_MEMORY;
    if (!whole)
        return tn_backend_fail(TN_ERR_IO, "reading '%s': %zu of %lld bytes", path, size, (long long)facts.st_size);
    return write_text(to, name, data, size);
}

static tn_status copy_others(const char *from, const char *to) {
    DIR *d = opendir(from);
    if (!d) return tn_backend_fail(TN_ERR_IO, "cannot read the folder '%s': %s", from, strerror(errno));
    tn_status status = TN_OK;
    for (struct dirent *e; status == TN_OK && (e = readdir(d)) != NULL;)
        status = copy_file(from, to, e->d_name);
    closedir(d);
    return status;
}

static tn_status list_tensors(const tn_llm *m, tn_named_tensor *list) {
    for (int64_t i = 0; i < tn_llm_source_count(&m->file->source); i++) {
        llm_tensor t = {.struct_size = sizeof t};
        bool changed;
        tn_tensor *x;
        TRY(tn_llm_source_at(&m->file->source, i, &t));
        const char *name = t.name;
        TRY(tensor_to_save(m, &t, &changed, &x));
        list[i] = (tn_named_tensor){name, changed ? x : tn_llm_source_tensor(&m->file->source, &t)};
    }
    return TN_OK;
}

static tn_status save_folder(const tn_llm *m, const char *folder) {
    static const tn_metadata format = {"format", "pt"};
    char path[PATH_SIZE];
    int64_t count = tn_llm_source_count(&m->file->source);
    TRY(join_path(folder, "model.safetensors", path));
    TRY(make_folder(folder));
    TRY(copy_others(m->file->source.folder.path, folder));
    AUTO_TXT_FREE tn_named_tensor *list = tn_txt_zalloc((size_t)count, sizeof *list);
    if (!list) return TN_ERR_MEMORY;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        TRY(list_tensors(m, list));
        TRY(tn_safetensors_save(path, list, (int)count, &format, 1));
    }
    return TN_OK;
}

/* Whether both exist and are the same file or folder. */
static bool is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

tn_status tn_llm_can_save_model(const tn_llm *m, const char *path) {
    bool widened;
    if (!m || !path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_save_model: the model or the path is NULL");
    if (is_same(tn_llm_source_path(&m->file->source), path))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_save_model: '%s' is the model itself, which is still read",
                               path);
    if (!m->file->source.gguf && tn_json_get(tn_json_root(m->file->source.folder.doc), "quantization_config"))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s' has quantized weights, which cannot be written; save the adapter alone, or train "
                               "the model that it was quantized from",
                               m->file->source.folder.path);
    TRY(add_tensors(m, NULL, &widened));
    return m->file->source.gguf ? TN_OK : copy_others(m->file->source.folder.path, NULL);
}

tn_status tn_llm_save_model(tn_llm *m, const char *path) {
    TRY(tn_llm_can_save_model(m, path));
    AUTO_DEVICE(m->device);
    return m->file->source.gguf ? save_gguf(m, path) : save_folder(m, path);
}
