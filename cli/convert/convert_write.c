/* convert_write.c — a file's tensors written as GGUF or safetensors, with the metadata that the other kind has room
 * for.
 *
 * A GGUF file takes tensors one at a time; safetensors are gathered first. */
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

static bool is_ours(const char *key) { /* written anew */
    static const char *const keys[] = {"general.alignment", "general.file_type", "general.quantization_version",
                                       "split.no",          "split.count",       "split.tensors.count"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}

static tn_status copy_metadata(const tn_gguf *from, tn_gguf_writer *w, bool all) {
    for (int64_t i = 0; i < tn_gguf_key_count(from); i++) {
        const char *key = tn_gguf_key(from, i);
        if (is_ours(key) && (!all || strcmp(key, "general.file_type") != 0)) continue;
        TRY(tn_gguf_put_value(w, key, tn_gguf_get(from, key)));
    }
    return TN_OK;
}

static tn_status put_metadata(const convert_file *in, const convert_wishes *w, const tn_gguf *like,
                              tn_gguf_writer *out) {
    if (in->folder && !like) TRY(convert_folder_metadata(in->folder, out));
    if (in->folder && like) TRY(convert_folder_is_like(in->folder, like));
    if (in->gguf || like) TRY(copy_metadata(like ? like : in->gguf, out, w->to == TN_DTYPE_COUNT));
    bool has_texts = in->safetensors && !in->folder && !like;
    for (int i = 0; has_texts && tn_safetensors_metadata_key(in->safetensors, i); i++) {
        const char *key = tn_safetensors_metadata_key(in->safetensors, i);
        const char *text = tn_safetensors_metadata(in->safetensors, key);
        if (!is_ours(key)) TRY(tn_gguf_put_string(out, key, text, (int64_t)strlen(text)));
    }
    if (w->to != TN_DTYPE_COUNT)
        TRY(tn_gguf_put_int(out, "general.file_type", TN_GGUF_U32,
                            w->mix ? convert_mix_file_type(w) : convert_file_type(w->to)));
    return tn_gguf_put_int(out, "general.quantization_version", TN_GGUF_U32, 2);
}

static tn_status add_gguf_tensor(tn_gguf_writer *out, const convert_wishes *w, const convert_file *in,
                                 const convert_tensor *t) {
    bool same;
    tn_gguf_info info = {.struct_size = sizeof info, .name = t->name, .rank = t->rank};
    info.dtype = convert_type_for(w, t, true, &same);
    if (same && in->gguf) info.dtype_name = t->type;
    memcpy(info.shape, t->shape, sizeof info.shape);
    return tn_gguf_add(out, &info);
}

static tn_status write_gguf_tensor(tn_gguf_writer *out, const convert_wishes *w, const convert_file *in,
                                   const convert_tensor *t, convert_report *r) {
    bool same;
    AUTO_CALL(convert_bytes_free) convert_bytes data = {0};
    tn_dtype to = convert_type_for(w, t, true, &same);
    TRY(convert_one(in, t, to, same, r, &data));
    return tn_gguf_write(out, data.bytes, data.size);
}

static tn_status fill_gguf(const convert_file *in, const convert_wishes *w, const tn_gguf *like, tn_gguf_writer *out,
                           convert_report *r) {
    convert_tensor t;
    TRY(put_metadata(in, w, like, out));
    for (int64_t i = 0; i < in->count; i++) {
        TRY(convert_at(in, i, &t));
        TRY(add_gguf_tensor(out, w, in, &t));
    }
    AUTO_CALL(cli_progress_end) cli_progress p = {.what = NULL};
    cli_progress_begin(&p, "convert", "tensors", in->count);
    for (int64_t i = 0; i < in->count; i++) {
        TRY(convert_at(in, i, &t));
        cli_progress_update(&p, i, t.name);
        TRY(write_gguf_tensor(out, w, in, &t, r));
    }
    return TN_OK;
}

tn_status convert_to_gguf(const convert_file *in, const convert_wishes *w, convert_report *r) {
    tn_gguf *like = NULL;
    tn_gguf_writer *out = NULL;
    tn_status status = w->like ? tn_gguf_open(w->like, &like) : TN_OK;
    if (status == TN_OK) status = tn_gguf_create(w->out, 0, &out);
    if (status == TN_OK) status = fill_gguf(in, w, like, out, r);
    if (status == TN_OK) {
        status = tn_gguf_commit(out);
    } else {
        tn_gguf_abandon(out);
    }
    tn_gguf_close(like);
    return status;
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

typedef struct gathered {
    tn_named_tensor *tensors;
    tn_metadata *metadata;
    char **texts;
    int count, metadata_count;
} gathered;

static void gathered_free(gathered *g) {
    for (int i = 0; i < g->count; i++)
        tn_free((tn_tensor *)(uintptr_t)g->tensors[i].tensor);
    for (int i = 0; i < g->metadata_count; i++)
        free(g->texts[i]);
    free(g->tensors);
    free(g->metadata);
    free(g->texts);
}

/* A text or a number of GGUF metadata as text; NULL for arrays, which safetensors has no place for. */
static char *written_text_of(const tn_gguf_value *v) {
    const char *text;
    int64_t length, whole;
    double real;
    char number[40];
    if (tn_gguf_type_of(v) == TN_GGUF_ARRAY) return NULL;
    if (tn_gguf_string(v, 0, &text, &length) == TN_OK) return strndup(text, (size_t)length);
    if (tn_gguf_int(v, 0, &whole) == TN_OK) {
        snprintf(number, sizeof number, "%lld", (long long)whole);
    } else if (tn_gguf_float(v, 0, &real) == TN_OK) {
        snprintf(number, sizeof number, "%.17g", real);
    } else {
        return NULL;
    }
    return strdup(number);
}

static void add_text(gathered *g, const char *key, char *text) {
    if (!text) return;
    g->texts[g->metadata_count] = text;
    g->metadata[g->metadata_count++] = (tn_metadata){key, text};
}

static tn_status gather_metadata(const convert_file *in, gathered *g) {
    bool in_folder = in->folder && in->folder->back; /* then config.json has it; readers of folders ask for "format" */
    int64_t most = in->gguf && !in_folder ? tn_gguf_key_count(in->gguf) : 0;
    while (in->safetensors && tn_safetensors_metadata_key(in->safetensors, (int)most))
        most++;
    g->metadata = calloc((size_t)most + 1, sizeof *g->metadata);
    g->texts = calloc((size_t)most + 1, sizeof *g->texts);
    if (!g->metadata || !g->texts) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the metadata");
    if (in_folder) add_text(g, "format", strdup("pt"));
    for (int64_t i = 0; i < most; i++) {
        const char *key = in->gguf ? tn_gguf_key(in->gguf, i) : tn_safetensors_metadata_key(in->safetensors, (int)i);
        add_text(g, key,
                 in->gguf ? written_text_of(tn_gguf_get(in->gguf, key))
                          : strdup(tn_safetensors_metadata(in->safetensors, key)));
    }
    return TN_OK;
}

static tn_status gather_tensor(const convert_file *in, const convert_wishes *w, const convert_tensor *t,
                               convert_report *r, gathered *g) {
    bool same;
    AUTO_CALL(convert_bytes_free) convert_bytes data = {0};
    tn_dtype to = convert_type_for(w, t, false, &same);
    TRY(convert_one(in, t, to, same, r, &data));
    tn_tensor *made = tn_from_data(data.bytes, t->shape, t->rank, to);
    g->tensors[g->count++] = (tn_named_tensor){t->name, made};
    return tn_status_of(made);
}

tn_status convert_to_safetensors(const convert_file *in, const convert_wishes *w, convert_report *r) {
    AUTO_CALL(gathered_free) gathered g = {.tensors = calloc((size_t)in->count + 1, sizeof *g.tensors)};
    if (!g.tensors) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    TRY(gather_metadata(in, &g));
    AUTO_CALL(cli_progress_end) cli_progress p = {.what = NULL};
    cli_progress_begin(&p, "convert", "tensors", in->count);
    for (int64_t i = 0; i < in->count; i++) {
        convert_tensor t;
        TRY(convert_at(in, i, &t));
        cli_progress_update(&p, i, t.name);
        TRY(gather_tensor(in, w, &t, r, &g));
    }
    return tn_safetensors_save(w->out, g.tensors, g.count, g.metadata, g.metadata_count);
}
