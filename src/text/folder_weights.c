/* folder_weights.c — the weights of a Hugging Face folder: safetensors, or pytorch_model.bin (a pickle of torch.save).
 *
 * A folder has one file or an index of several ("shards"). If it has both formats, safetensors are read; the values are
 * the same. Pickled tensors are described by tn_safetensors_info too, so callers need not distinguish them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "text/folder.h"

enum { MOST_SHARDS = 4096 };

/* One tensor of a pickle. */
typedef struct pickled {
    const char *name;
    tn_pickle *file;
} pickled;

struct hf_weights {
    tn_safetensors *safe; /* NULL: they are pickled */
    tn_pickle **files;
    int64_t file_count;
    pickled *tensors; /* of all files, by name */
    int64_t count;
};

static char *path_of(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = tn_txt_alloc(size, 1);
    if (path) snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static bool is_there(const char *folder, const char *name, bool *failed) {
    struct stat facts;
    char *path = path_of(folder, name);
    bool there = path && stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
    *failed |= !path;
    tn_txt_free(path);
    return there;
}

/* ---- pickles ----------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const pickled *)a)->name, ((const pickled *)b)->name);
}

static tn_status open_file(hf_weights *w, const char *folder, const char *name) {
    char *path = path_of(folder, name);
    tn_status status = path ? tn_pickle_open(path, &w->files[w->file_count]) : TN_ERR_MEMORY;
    w->file_count += status == TN_OK;
    tn_txt_free(path);
    return status;
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
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': two tensors are called '%.100s'", folder, w->tensors[i].name);
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
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': the index names %zu files; 1 to %d are possible", folder, files,
                               MOST_SHARDS);
    w->files = tn_txt_zalloc(files, sizeof(tn_pickle *));
    if (!w->files) return TN_ERR_MEMORY;
    for (size_t i = 0; i < files; i++)
        TRY(open_file(w, folder, names[i]));
    return TN_OK;
}

static tn_status open_index(hf_weights *w, const char *folder, const char *name) {
    char *path = path_of(folder, name);
    tn_json_doc *doc = NULL;
    tn_status status = path ? tn_json_open(path, &doc) : TN_ERR_MEMORY;
    const tn_json *map = status == TN_OK ? tn_json_get(tn_json_root(doc), "weight_map") : NULL;
    const char **names = NULL;
    if (status == TN_OK && tn_json_kind_of(map) != TN_JSON_OBJECT)
        status = tn_backend_fail(TN_ERR_FORMAT, "'%s' has no object \"weight_map\"", path);
    if (status == TN_OK && !(names = tn_txt_zalloc(tn_json_length(map) + 1, sizeof *names))) status = TN_ERR_MEMORY;
    if (status == TN_OK) status = open_named(w, folder, map, names);
    tn_txt_free(names);
    tn_json_free(doc);
    tn_txt_free(path);
    return status;
}

static tn_status open_all(hf_weights *w, const char *folder) {
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
    return *out ? open_all(*out, folder) : TN_ERR_MEMORY;
}

void tn_hf_weights_close(hf_weights *w) {
    if (!w) return;
    tn_safetensors_close(w->safe);
    for (int64_t i = 0; i < w->file_count; i++)
        tn_pickle_close(w->files[i]);
    tn_txt_free(w->files);
    tn_txt_free(w->tensors);
    tn_txt_free(w);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

int64_t tn_hf_weights_count(const hf_weights *w) { return w->safe ? tn_safetensors_count(w->safe) : w->count; }

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
    return w->safe ? tn_safetensors_at(w->safe, (int)i, info) : describe_weights(&w->tensors[i], info);
}

static const pickled *find_weights(const hf_weights *w, const char *name) {
    const pickled key = {.name = name};
    return bsearch(&key, w->tensors, (size_t)w->count, sizeof key, by_name);
}

bool tn_hf_weights_find(const hf_weights *w, const char *name, tn_safetensors_info *info) {
    if (w->safe) return tn_safetensors_find(w->safe, name, info) == TN_OK;
    const pickled *p = find_weights(w, name);
    return p && describe_weights(p, info) == TN_OK;
}

tn_tensor *tn_hf_weights_tensor(const hf_weights *w, const char *name) {
    if (w->safe) return tn_safetensors_tensor(w->safe, name);
    const pickled *p = find_weights(w, name);
    return p ? tn_pickle_tensor(p->file, name) : tn_failed(TN_ERR_FORMAT, "there is no tensor '%s'", name);
}
