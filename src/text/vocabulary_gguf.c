/* vocabulary_gguf.c — a tokenizer from the metadata of a GGUF file: gathers tokenizer.ggml.* into a tn_vocabulary.
 *
 * Strings stay in the file's mapping until the tokenizer copies them. */
#include <string.h>

#include "text/tokenizer.h"

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
    return tn_backend_fail(TN_ERR_FORMAT, "%s: %s has %lld items for %d tokens", tn_gguf_path(file), key,
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
        return tn_backend_fail(TN_ERR_FORMAT, "%s: %s holds a NUL", tn_gguf_path(file), key);
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
        return tn_backend_fail(TN_ERR_FORMAT, "%s: it holds no tokenizer: %s is absent", tn_gguf_path(file),
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
