/* llm_source.c — what a model is read from: a GGUF file or a folder's weights, behind one set of functions. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

tn_status tn_llm_source_open(const char *path, llm_source *out) {
    *out = (llm_source){.folder = {.prefix = ""}};
    if (!path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm: the path is NULL");
    return tn_hf_is_folder(path) ? tn_hf_open(path, &out->folder) : tn_gguf_open(path, &out->gguf);
}

void tn_llm_source_close(llm_source *s) {
    tn_gguf_close(s->gguf);
    tn_hf_close(&s->folder);
    s->gguf = NULL;
}

const char *tn_llm_source_path(const llm_source *s) { return s->gguf ? tn_gguf_path(s->gguf) : s->folder.path; }

llm_place tn_llm_source_place(const llm_source *s, const llm_tensor *t) {
    llm_place p;
    if (s->gguf && t)
        snprintf(p.text, sizeof p.text, "'%.250s': byte %" PRId64, tn_gguf_path(s->gguf), t->offset);
    else
        snprintf(p.text, sizeof p.text, "'%.250s'", tn_llm_source_path(s));
    return p;
}

int64_t tn_llm_source_count(const llm_source *s) {
    return s->gguf ? tn_gguf_count(s->gguf) : tn_hf_weights_count(s->folder.weights);
}

static void translate(const tn_safetensors_info *t, llm_tensor *out) {
    out->name = t->name;
    out->dtype_name = t->dtype_name;
    out->dtype = t->dtype;
    out->rank = t->rank;
    memcpy(out->shape, t->shape, sizeof out->shape);
    out->data = t->data;
    out->bytes = t->bytes;
    out->offset = -1;
}

tn_status tn_llm_source_at(const llm_source *s, int64_t i, llm_tensor *out) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (s->gguf) return tn_gguf_at(s->gguf, i, out);
    TRY(tn_hf_weights_at(s->folder.weights, i, &t));
    translate(&t, out);
    return TN_OK;
}

tn_status tn_llm_source_find(const llm_source *s, const char *name, llm_tensor *out) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (s->gguf) return tn_gguf_find(s->gguf, name, out);
    if (!tn_hf_find(&s->folder, name, &t))
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': there is no tensor '%s'", s->folder.path, name);
    translate(&t, out);
    return TN_OK;
}

tn_tensor *tn_llm_source_tensor(const llm_source *s, const llm_tensor *t) {
    return s->gguf ? tn_gguf_tensor(s->gguf, t->name) : tn_hf_weights_tensor(s->folder.weights, t->name);
}

tn_status tn_llm_source_rows(const llm_source *s, const char *name, const int64_t *rows, int64_t count, void *out) {
    llm_tensor t = {.struct_size = sizeof t};
    if (s->gguf) return tn_gguf_rows(s->gguf, name, rows, count, out);
    TRY(tn_llm_source_find(s, name, &t));
    if (!t.data)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%s' is not contiguous in its file; save it again with "
                               ".contiguous()",
                               s->folder.path, name);
    size_t bytes = (size_t)t.shape[1] * tn_dtype_size(t.dtype);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)out + (size_t)i * bytes, (const char *)t.data + (size_t)rows[i] * bytes, bytes);
    return TN_OK;
}
