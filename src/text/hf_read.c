/* hf_read.c — reads tokenizers: from a tokenizer.json, and from the metadata of a GGUF file. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/hf.h"
#include "text/tokenizer.h"

/* ==== tokenizer.json ============================================================================================== */

/* ---- what readers of steps share --------------------------------------------------------------------------------- */

const tn_json *tn_hf_get(const tn_json *v, const char *key) {
    const tn_json *member = tn_json_get(v, key);
    return tn_json_kind_of(member) == TN_JSON_NULL ? NULL : member;
}

tn_text_slice tn_hf_slice(const tn_json *v) {
    if (tn_json_kind_of(v) != TN_JSON_STRING) return (tn_text_slice){0};
    return (tn_text_slice){tn_json_string(v, ""), tn_json_length(v)};
}

tn_text_slice tn_hf_key(const tn_json *v, size_t i) {
    return (tn_text_slice){tn_json_key(v, i), tn_json_key_length(v, i)};
}

bool tn_hf_is(const tn_json *v, const char *text) {
    tn_text_slice s = tn_hf_slice(v);
    return s.data && s.size == strlen(text) && !memcmp(s.data, text, s.size);
}

tn_status tn_hf_read_text(const tn_json *v, const char *key, const char *otherwise, tn_bytes *out) {
    const tn_json *member = tn_hf_get(v, key);
    tn_text_slice text = tn_hf_slice(member);
    out->size = 0;
    if (text.data) return tn_bytes_append(out, text.data, text.size);
    if (member || !otherwise) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: %s must be a string", key);
    return tn_bytes_append(out, otherwise, strlen(otherwise));
}

tn_status tn_hf_read_char(const tn_json *v, const char *key, uint32_t *out) {
    tn_text_slice text = tn_hf_slice(tn_hf_get(v, key));
    if (text.size == 0 || tn_hf_char(text.data, text.size, out) != text.size)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: %s must be a string of one character", key);
    return TN_OK;
}

tn_status tn_hf_read_nothing(TN_UNUSED tn_hf_step *s, TN_UNUSED const tn_json *v) { return TN_OK; }

tn_status tn_hf_read_replace(tn_hf_step *s, const tn_json *v) {
    TRY(tn_hf_read_text(v, "content", NULL, &s->text));
    return tn_hf_read_pattern(tn_hf_get(v, "pattern"), &s->pattern);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static tn_status unknown_step(const tn_hf_row *rows, const char *what, const tn_json *type) {
    char known[512];
    size_t length = 0;
    for (const tn_hf_row *row = rows; row->name; row++) {
        int n = snprintf(known + length, sizeof known - length, "%s, ", row->name);
        if (n > 0 && (size_t)n < sizeof known - length) length += (size_t)n;
    }
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the %s \"%.*s\" is not supported; supported are %sSequence",
                           what, (int)(tn_json_length(type) < 64 ? tn_json_length(type) : 64), tn_json_string(type, ""),
                           known);
}

/* Which part of the file, and what its sequences call their members. */
typedef struct part {
    const char *key, *members;
    const tn_hf_row *rows;
    tn_hf_steps *steps;
} part;

static tn_status read_step(const part *p, const tn_json *v, int depth) {
    const tn_json *type = tn_hf_get(v, "type"), *list = tn_hf_get(v, p->members);
    const tn_hf_row *row = p->rows;
    if (depth > TN_HF_MAX_DEPTH)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: sequences of %s are nested too deeply", p->key);
    if (tn_hf_is(type, "Sequence") && (tn_json_kind_of(list) == TN_JSON_ARRAY)) {
        for (size_t i = 0; i < tn_json_length(list); i++)
            TRY(read_step(p, tn_json_at(list, i), depth + 1));
        return TN_OK;
    }
    while (row->name && !tn_hf_is(type, row->name))
        row++;
    if (!row->name) return unknown_step(p->rows, p->key, type);
    if (p->steps->count == TN_HF_MAX_STEPS)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: more than %d steps of %s", (int)TN_HF_MAX_STEPS, p->key);
    if (!p->steps->items) p->steps->items = tn_txt_zalloc(TN_HF_MAX_STEPS, sizeof *p->steps->items);
    if (!p->steps->items) return TN_ERR_MEMORY;
    tn_hf_step *s = &p->steps->items[p->steps->count];
    *s = (tn_hf_step){.row = row, .index = p->steps->count++};
    return row->read(s, v);
}

static tn_status read_steps(tn_hf *hf, const tn_json *root) {
    const part parts[] = {
        {"normalizer", "normalizers", tn_hf_normalizers, &hf->normalizers},
        {"pre_tokenizer", "pretokenizers", tn_hf_cutters, &hf->cutters},
        {"decoder", "decoders", tn_hf_decoders, &hf->decoders},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const tn_json *v = tn_hf_get(root, parts[i].key);
        if (v) TRY(read_step(&parts[i], v, 0));
    }
    hf->has_decoder = tn_hf_get(root, "decoder") != NULL;
    bool fused = false;
    for (int i = 0; i < hf->decoders.count; i++) {
        tn_hf_step *s = &hf->decoders.items[i];
        s->on[0] = strcmp(s->row->name, "Strip") == 0 ? fused : s->on[0];
        fused |= strcmp(s->row->name, "Fuse") == 0 || strcmp(s->row->name, "ByteLevel") == 0;
    }
    return TN_OK;
}

static void free_steps(tn_hf_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        tn_hf_step *s = &steps->items[i];
        tn_txt_pattern_free(s->pattern);
        tn_bytes_free(&s->text);
        tn_bytes_free(&s->more);
        tn_txt_free(s->units);
    }
    tn_txt_free(steps->items);
}

void tn_hf_free(tn_hf *hf) {
    if (!hf) return;
    free_steps(&hf->normalizers);
    free_steps(&hf->cutters);
    free_steps(&hf->decoders);
    tn_txt_special_free(&hf->words);
    tn_txt_special_free(&hf->raw);
    tn_txt_special_free(&hf->normal);
    tn_bytes_free(&hf->prefix);
    tn_bytes_free(&hf->suffix);
    tn_bytes_free(&hf->names);
    void *const blocks[] = {hf->scores, hf->added, hf->renamed, hf->single.items, hf->pair.items, hf};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        tn_txt_free(blocks[i]);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static char *copy_slice(tn_text_slice text) {
    char *copy = tn_txt_alloc(text.size + 1, 1);
    if (!copy) return NULL;
    if (text.size > 0) memcpy(copy, text.data, text.size);
    copy[text.size] = 0;
    return copy;
}

static tn_status read_root(tn_tokenizer *t, const tn_json *root) {
    const tn_json *version = tn_hf_get(root, "version");
    if (tn_json_kind_of(root) != TN_JSON_OBJECT)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer.json: expected a JSON object");
    if (version && !tn_hf_is(version, "1.0"))
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer.json: version \"%.*s\" is not supported; 1.0 is",
                               (int)(tn_json_length(version) < 32 ? tn_json_length(version) : 32),
                               tn_json_string(version, ""));
    TRY(read_steps(t->hf, root));
    TRY(tn_hf_read_model(t, root));
    TRY(tn_hf_fill_added(t));
    TRY(tn_hf_read_post(t->hf, root));
    for (size_t i = 0; i < t->hf->single.count + t->hf->pair.count; i++) {
        const tn_hf_items *list = i < t->hf->single.count ? &t->hf->single : &t->hf->pair;
        int32_t id = list->items[i < t->hf->single.count ? i : i - t->hf->single.count].id;
        if (id >= t->count)
            return tn_backend_fail(TN_ERR_FORMAT,
                                   "tokenizer: the post_processor's token %d is outside the vocabulary "
                                   "of %d",
                                   (int)id, (int)t->count);
    }
    t->special[TN_SPECIAL_PADDING] = t->hf->padding.declared && t->hf->padding.id < t->count ? t->hf->padding.id : -1;
    t->rule_name = copy_slice((tn_text_slice){"", 0});
    return t->rule_name ? TN_OK : TN_ERR_MEMORY;
}

/* ---- files of the folder ----------------------------------------------------------------------------------------- */

/* "<s>", or {"content": "<s>", …}. */
static int32_t named_token(const tn_tokenizer *t, const tn_json *config, const char *key) {
    const tn_json *v = tn_hf_get(config, key), *content = tn_hf_get(v, "content");
    tn_text_slice text = tn_hf_slice(content ? content : v);
    return text.data ? tn_tokenizer_find(t, text.data, text.size) : -1;
}

/* A text, or a list of {"name", "template"}; conversations use the one named default. */
static tn_text_slice chat_template(const tn_json *config) {
    const tn_json *v = tn_hf_get(config, "chat_template");
    if (tn_json_kind_of(v) != TN_JSON_ARRAY) return tn_hf_slice(v);
    for (size_t i = 0; i < tn_json_length(v); i++) {
        const tn_json *one = tn_json_at(v, i);
        if (tn_hf_is(tn_hf_get(one, "name"), "default")) return tn_hf_slice(tn_hf_get(one, "template"));
    }
    return (tn_text_slice){0};
}

static tn_status take_template(tn_tokenizer *t, tn_text_slice text) {
    if (!text.data) return TN_OK;
    if (memchr(text.data, 0, text.size))
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: the chat template contains a NUL byte");
    tn_txt_free(t->chat_template);
    t->chat_template = copy_slice(text);
    return t->chat_template ? TN_OK : TN_ERR_MEMORY;
}

static tn_status take_config(tn_tokenizer *t, const tn_json *config) {
    static const struct {
        const char *key;
        tn_special which;
    } names[] = {
        {"cls_token", TN_SPECIAL_BOS},     {"bos_token", TN_SPECIAL_BOS},       {"eos_token", TN_SPECIAL_EOS},
        {"unk_token", TN_SPECIAL_UNKNOWN}, {"sep_token", TN_SPECIAL_SEPARATOR}, {"pad_token", TN_SPECIAL_PADDING},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = named_token(t, config, names[i].key);
        if (id >= 0) t->special[names[i].which] = id;
    }
    if (t->special[TN_SPECIAL_EOS] >= 0) t->ends[t->special[TN_SPECIAL_EOS]] = 1;
    return take_template(t, chat_template(config));
}

/* generation_config.json tells all tokens that end an answer: "eos_token_id", a number or a list. */
static void take_generation(tn_tokenizer *t, const tn_json *config) {
    const tn_json *v = tn_hf_get(config, "eos_token_id");
    bool list = tn_json_kind_of(v) == TN_JSON_ARRAY;
    for (size_t i = 0; i < (list ? tn_json_length(v) : 1); i++) {
        int64_t id = tn_json_int(list ? tn_json_at(v, i) : v, -1);
        if (id >= 0 && id < t->count) t->ends[id] = 1;
    }
}

/* The texts; all but the first may be absent. `names`: older folders tell there what special tokens are called. */
typedef struct sources {
    tn_text_slice tokenizer, names, config, chat, generation;
} sources;

/* The tree of a text; errors name the file. *doc is NULL after a failure. */
static tn_status parse(tn_text_slice text, const char *what, tn_json_doc **doc) {
    char why[256];
    *doc = NULL;
    tn_status status = tn_json_parse(text.data, text.size, doc);
    if (status == TN_OK || status == TN_ERR_MEMORY) return status;
    snprintf(why, sizeof why, "%s", tn_error());
    return tn_backend_fail(status, "%s: %s", what, why);
}

static tn_status take_sources(tn_tokenizer *t, const sources *s) {
    AUTO_TXT_JSON tn_json_doc *doc = NULL, *names = NULL, *config = NULL, *generation = NULL;
    TRY(parse(s->tokenizer, "tokenizer.json", &doc));
    TRY(read_root(t, tn_json_root(doc)));
    if (s->names.data) TRY(parse(s->names, "special_tokens_map.json", &names));
    if (names) TRY(take_config(t, tn_json_root(names)));
    if (s->config.data) TRY(parse(s->config, "tokenizer_config.json", &config));
    if (config) TRY(take_config(t, tn_json_root(config)));
    TRY(take_template(t, s->chat));
    if (s->generation.data) TRY(parse(s->generation, "generation_config.json", &generation));
    if (generation) take_generation(t, tn_json_root(generation));
    const tn_hf_items *single = &t->hf->single;
    t->add_bos = single->count > 0 && single->items[0].id >= 0;
    return TN_OK;
}

static tn_status make_hf(const sources *s, tn_tokenizer **out) {
    tn_tokenizer *t = tn_txt_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    t->hf = tn_txt_zalloc(1, sizeof *t->hf);
    tn_status status = t->hf ? take_sources(t, s) : TN_ERR_MEMORY;
    if (status == TN_OK)
        *out = t;
    else
        tn_tokenizer_free(t);
    return status;
}

tn_status tn_tokenizer_from_json(const char *json, size_t size, const char *config, size_t config_size,
                                 tn_tokenizer **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: out is NULL");
    *out = NULL;
    if (!json) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: the text is NULL");
    return make_hf(&(sources){.tokenizer = {json, size}, .config = {config, config ? config_size : 0}}, out);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* A file's bytes. `needed`: its absence is an error, else it leaves `out` without data. */
static tn_status read_file_hf(const char *path, bool needed, tn_bytes *out) {
    char chunk[65536];
    size_t n;
    FILE *f;
    if (!needed && access(path, F_OK) != 0) return TN_OK;
    TRY(tn_backend_open(path, &f));
    tn_status status = tn_bytes_append(out, "", 0);
    while (status == TN_OK && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        status = out->size < INT32_MAX ? tn_bytes_append(out, chunk, n)
                                       : tn_backend_fail(TN_ERR_FORMAT, "'%s' is too long", path);
    if (status == TN_OK && ferror(f)) status = tn_backend_fail(TN_ERR_IO, "reading '%s': %s", path, strerror(errno));
    fclose(f);
    return status;
}

/* The folder's part of a path with its /, and a name after it. */
static tn_status beside(const char *folder, size_t length, const char *name, tn_bytes *out) {
    out->size = 0;
    TRY(tn_bytes_append(out, folder, length));
    return tn_bytes_append(out, name, strlen(name));
}

enum { FILES = 5 }; /* that a tokenizer is made of */

static void free_files(tn_bytes (*texts)[FILES]) {
    for (int i = 0; i < FILES; i++)
        tn_bytes_free(&(*texts)[i]);
}

static tn_status open_json(const char *path, const char *folder, size_t length, tn_tokenizer **out) {
    static const char *const names[] = {"special_tokens_map.json", "tokenizer_config.json", "chat_template.jinja",
                                        "generation_config.json"};
    AUTO_CALL(free_files) tn_bytes texts[FILES] = {0};
    AUTO_BYTES tn_bytes place = {0};
    TRY(read_file_hf(path, true, &texts[0]));
    for (int i = 1; i < FILES; i++) {
        TRY(beside(folder, length, names[i - 1], &place));
        TRY(read_file_hf(place.data, false, &texts[i]));
    }
    tn_status status = make_hf(&(sources){.tokenizer = {texts[0].data, texts[0].size},
                                          .names = {texts[1].data, texts[1].size},
                                          .config = {texts[2].data, texts[2].size},
                                          .chat = {texts[3].data, texts[3].size},
                                          .generation = {texts[4].data, texts[4].size}},
                               out);
    if (status == TN_OK || status == TN_ERR_MEMORY) return status;
    char why[1024];
    snprintf(why, sizeof why, "%s", tn_error());
    return tn_backend_fail(status, "'%s': %s", path, why);
}

static tn_status open_gguf(const char *path, tn_tokenizer **out) {
    tn_gguf *file;
    TRY(tn_gguf_open(path, &file));
    tn_status status = tn_tokenizer_from_gguf(file, out);
    tn_gguf_close(file);
    return status;
}

/* Whether a file begins as a GGUF file does; false too where it cannot be read. */
static bool is_gguf(const char *path) {
    char magic[4];
    FILE *f;
    if (tn_backend_open(path, &f) != TN_OK) return false;
    bool is = fread(magic, 1, sizeof magic, f) == sizeof magic && !memcmp(magic, "GGUF", 4);
    fclose(f);
    return is;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* Of a folder from before tokenizer.json. */
static tn_status open_sentencepiece(const char *path, const char *folder, size_t length, tn_tokenizer **out) {
    AUTO_BYTES tn_bytes file = {0}, names = {0};
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    TRY(read_file_hf(path, true, &file));
    TRY(beside(folder, length, "vocab.json", &names));
    TRY(tn_json_open(names.data, &doc));
    return tn_hf_from_sentencepiece(&file, path, tn_json_root(doc), names.data, out);
}

static tn_status check_folder(const char *path) {
    struct stat facts;
    FILE *f;
    if (stat(path, &facts) != 0 || S_ISDIR(facts.st_mode)) return TN_OK;
    TRY(tn_backend_open(path, &f));
    fclose(f);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s' is neither a folder nor a GGUF file nor a tokenizer whose name ends in .json", path);
}

tn_status tn_tokenizer_open(const char *path, tn_tokenizer **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: out is NULL");
    *out = NULL;
    if (!path) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: the path is NULL");
    const size_t length = strlen(path);
    if (length > 5 && !strcmp(path + length - 5, ".json")) {
        const char *slash = strrchr(path, '/');
        return open_json(path, path, slash ? (size_t)(slash - path) + 1 : 0, out);
    }
    if (is_gguf(path) || (length > 5 && !strcmp(path + length - 5, ".gguf"))) return open_gguf(path, out);
    TRY(check_folder(path));
    AUTO_BYTES tn_bytes folder = {0}, file = {0}, old = {0};
    TRY(tn_bytes_append(&folder, path, length));
    if (length == 0 || path[length - 1] != '/') TRY(tn_bytes_append(&folder, "/", 1));
    TRY(beside(folder.data, folder.size, "tokenizer.json", &file));
    TRY(beside(folder.data, folder.size, "source.spm", &old));
    return !exists(file.data) && exists(old.data) ? open_sentencepiece(old.data, folder.data, folder.size, out)
                                                  : open_json(file.data, folder.data, folder.size, out);
}

/* ==== GGUF metadata =============================================================================================== */
/* Strings stay in the file's mapping until the tokenizer copies them. */

#define KEY(name) "tokenizer.ggml." name

/* What is gathered, and the arrays that have to be given back. */
typedef struct gathered {
    tn_vocabulary v;
    tn_text_slice *tokens, *merges;
    float *scores;
    int32_t *types;
    char *model, *pre, *chat_template;
} gathered;

/* The items of an array of strings. A missing array has none. */
static tn_status read_strings(const tn_gguf *file, const char *key, tn_text_slice **items, int32_t *count) {
    const tn_gguf_value *value = tn_gguf_get(file, key);
    int64_t length = tn_gguf_length(value);
    if (length >= INT32_MAX) return tn_backend_fail(TN_ERR_FORMAT, "%s: %s is too long", tn_gguf_path(file), key);
    *items = tn_txt_alloc((size_t)length, sizeof **items);
    if (!*items) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < length; i++) {
        int64_t size = 0;
        TRY(tn_gguf_string(value, i, &(*items)[i].data, &size));
        (*items)[i].size = (size_t)size;
    }
    *count = (int32_t)length;
    return TN_OK;
}

static tn_status check_length(const tn_gguf *file, const char *key, int32_t count) {
    int64_t length = tn_gguf_length(tn_gguf_get(file, key));
    if (length == count) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "%s: %s has %lld items, but there are %d tokens", tn_gguf_path(file), key,
                           (long long)length, (int)count);
}

static tn_status read_scores(const tn_gguf *file, gathered *g) {
    const tn_gguf_value *value = tn_gguf_get(file, KEY("scores"));
    if (!value) return TN_OK;
    TRY(check_length(file, KEY("scores"), g->v.count));
    g->scores = tn_txt_alloc((size_t)g->v.count, sizeof *g->scores);
    if (!g->scores) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < g->v.count; i++) {
        double score = 0;
        TRY(tn_gguf_float(value, i, &score));
        g->scores[i] = (float)score;
    }
    return TN_OK;
}

static tn_status read_types(const tn_gguf *file, gathered *g) {
    const tn_gguf_value *value = tn_gguf_get(file, KEY("token_type"));
    if (!value) return TN_OK;
    TRY(check_length(file, KEY("token_type"), g->v.count));
    g->types = tn_txt_alloc((size_t)g->v.count, sizeof *g->types);
    if (!g->types) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < g->v.count; i++) {
        int64_t type = 0;
        TRY(tn_gguf_int(value, i, &type));
        g->types[i] = type >= 0 && type <= INT32_MAX ? (int32_t)type : INT32_MAX;
    }
    return TN_OK;
}

/* A copy that ends in a NUL, NULL when the key is absent. */
static tn_status read_text(const tn_gguf *file, const char *key, char **out) {
    if (!tn_gguf_get(file, key)) return TN_OK;
    const char *text = NULL;
    int64_t size = 0;
    TRY(tn_gguf_get_string(file, key, &text, &size));
    if (memchr(text, 0, (size_t)size))
        return tn_backend_fail(TN_ERR_FORMAT, "%s: %s contains a NUL byte", tn_gguf_path(file), key);
    *out = tn_txt_alloc((size_t)size + 1, 1);
    if (!*out) return TN_ERR_MEMORY;
    if (size > 0) memcpy(*out, text, (size_t)size);
    (*out)[size] = 0;
    return TN_OK;
}

static tn_status read_special(const tn_gguf *file, gathered *g) {
    static const char *const keys[TN_SPECIAL_COUNT] = {
        [TN_SPECIAL_BOS] = KEY("bos_token_id"),
        [TN_SPECIAL_EOS] = KEY("eos_token_id"),
        [TN_SPECIAL_END_OF_TURN] = KEY("eot_token_id"),
        [TN_SPECIAL_UNKNOWN] = KEY("unknown_token_id"),
        [TN_SPECIAL_SEPARATOR] = KEY("seperator_token_id"), /* GGUF spells it so */
        [TN_SPECIAL_PADDING] = KEY("padding_token_id"),
    };
    for (int i = 0; i < TN_SPECIAL_COUNT; i++) {
        int64_t id = -1;
        if (tn_gguf_get(file, keys[i])) TRY(tn_gguf_get_int(file, keys[i], &id));
        if (id == UINT32_MAX) id = -1; /* some writers' way to say none */
        if (id < -1 || id >= g->v.count)
            return tn_backend_fail(TN_ERR_FORMAT, "%s: %s is %lld, outside the vocabulary of %d", tn_gguf_path(file),
                                   keys[i], (long long)id, (int)g->v.count);
        g->v.special[i] = (int32_t)id;
    }
    return TN_OK;
}

static tn_status read_flag(const tn_gguf *file, const char *key, int8_t *out) {
    bool flag = false;
    *out = -1;
    if (!tn_gguf_get(file, key)) return TN_OK;
    TRY(tn_gguf_get_bool(file, key, &flag));
    *out = flag;
    return TN_OK;
}

static tn_status gather_vocabulary(const tn_gguf *file, gathered *g) {
    TRY(read_text(file, KEY("model"), &g->model));
    if (!g->model)
        return tn_backend_fail(TN_ERR_FORMAT, "%s: the file has no tokenizer: %s is missing", tn_gguf_path(file),
                               KEY("model"));
    TRY(read_text(file, KEY("pre"), &g->pre));
    TRY(read_text(file, "tokenizer.chat_template", &g->chat_template));
    TRY(read_strings(file, KEY("tokens"), &g->tokens, &g->v.count));
    TRY(read_strings(file, KEY("merges"), &g->merges, &g->v.merge_count));
    TRY(read_scores(file, g));
    TRY(read_types(file, g));
    TRY(read_special(file, g));
    TRY(read_flag(file, KEY("add_bos_token"), &g->v.add_bos));
    TRY(read_flag(file, KEY("add_eos_token"), &g->v.add_eos));
    return read_flag(file, KEY("add_space_prefix"), &g->v.add_space_prefix);
}

/* What is wrong with a vocabulary is known by token and word; a reader of the file wants to know where these stand. */
static tn_status name_place(const tn_gguf *file, tn_status status) {
    const tn_gguf_value *tokens = tn_gguf_get(file, KEY("tokens"));
    const tn_gguf_value *at = tokens ? tokens : tn_gguf_get(file, KEY("model"));
    if (status == TN_OK || status == TN_ERR_MEMORY || strstr(tn_error(), "byte ") || !at) return status;
    return tn_backend_fail(status, "'%s': the vocabulary, from byte %lld on: %s", tn_gguf_path(file),
                           (long long)tn_gguf_offset(at), tn_error());
}

tn_status tn_tokenizer_from_gguf(const tn_gguf *file, tn_tokenizer **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: out is NULL");
    *out = NULL;
    if (!file) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: the file is NULL");
    gathered g = {.v = TN_VOCABULARY_DEFAULTS};
    tn_status status = gather_vocabulary(file, &g);
    if (status == TN_OK) {
        g.v.model = g.model;
        g.v.pre = g.pre;
        g.v.chat_template = g.chat_template;
        g.v.tokens = g.tokens;
        g.v.merges = g.merges;
        g.v.scores = g.scores;
        g.v.types = g.types;
        status = tn_tokenizer_new(&g.v, out);
    }
    void *const blocks[] = {g.tokens, g.merges, g.scores, g.types, g.model, g.pre, g.chat_template};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        tn_txt_free(blocks[i]);
    return name_place(file, status);
}
