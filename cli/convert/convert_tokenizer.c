/* convert_tokenizer.c — tokenizer.json as a GGUF file has it: a list of tokens with their kinds, and what says which
 * two are joined first.
 *
 * Byte-level BPE, with the patterns that the families of convert_folder.c have, keeps its list of merges.
 * SentencePiece's BPE has a score a token instead: the rank of the first merge that makes it, so that the order stays
 * the same. */
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6, MOST_TOKENS = 1 << 22, FILLER = 16 };

/* ---- tokens and merges ------------------------------------------------------------------------------------------- */

typedef struct vocabulary {
    const char **tokens, **merges;
    int32_t *types;
    float *scores;           /* SentencePiece's; else NULL */
    char **joined;           /* merges that were pairs */
    char (*fillers)[FILLER]; /* of rows that have no token */
    int64_t count, merge_count;
} vocabulary;

static void vocabulary_free(vocabulary *v) {
    for (int64_t i = 0; i < v->merge_count && v->joined; i++)
        free(v->joined[i]);
    free(v->tokens);
    free(v->merges);
    free(v->types);
    free(v->scores);
    free(v->joined);
    free(v->fillers);
}

static tn_status place_token(vocabulary *v, const char *text, int64_t id, int32_t type) {
    if (!text || id < 0 || id >= v->count)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer.json: a token has id %lld, but there are %lld tokens",
                               (long long)id, (long long)v->count);
    v->tokens[id] = text;
    v->types[id] = type;
    return TN_OK;
}

/* Matrices often have more rows than there are tokens. Each gets a name of its own: readers want to find one by it. */
static tn_status name_the_rest(vocabulary *v) {
    for (int64_t i = 0; i < v->count; i++) {
        if (v->tokens[i]) continue;
        if (!v->fillers) v->fillers = calloc((size_t)v->count, sizeof *v->fillers);
        if (!v->fillers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld tokens", (long long)v->count);
        snprintf(v->fillers[i], FILLER, "[PAD%lld]", (long long)i);
        v->tokens[i] = v->fillers[i];
        v->types[i] = UNUSED;
    }
    return TN_OK;
}

static tn_status read_tokens(const convert_folder *f, const tn_json *root, vocabulary *v) {
    const tn_json *vocab = tn_json_get(tn_json_get(root, "model"), "vocab"), *added = tn_json_get(root, "added_tokens");
    v->count = tn_json_int(tn_json_get(tn_json_root(f->config), "vocab_size"), 0);
    if (v->count < 1 || v->count > MOST_TOKENS)
        return tn_backend_fail(TN_ERR_FORMAT, "config.json: vocab_size is missing");
    v->tokens = calloc((size_t)v->count, sizeof *v->tokens);
    v->types = calloc((size_t)v->count, sizeof *v->types);
    if (!v->tokens || !v->types)
        return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld tokens", (long long)v->count);
    for (size_t i = 0; tn_json_key(vocab, i); i++)
        TRY(place_token(v, tn_json_key(vocab, i), tn_json_int(tn_json_at(vocab, i), -1), NORMAL));
    for (size_t i = 0; i < tn_json_length(added); i++) {
        const tn_json *t = tn_json_at(added, i);
        TRY(place_token(v, tn_json_string(tn_json_get(t, "content"), NULL), tn_json_int(tn_json_get(t, "id"), -1),
                        tn_json_bool(tn_json_get(t, "special"), false) ? CONTROL : USER));
    }
    return name_the_rest(v);
}

/* Older files have a merge as one text, newer ones as a pair. */
static tn_status read_merges(const tn_json *root, vocabulary *v) {
    const tn_json *merges = tn_json_get(tn_json_get(root, "model"), "merges");
    size_t count = tn_json_length(merges);
    v->merges = calloc(count + 1, sizeof *v->merges);
    v->joined = calloc(count + 1, sizeof *v->joined);
    if (!v->merges || !v->joined) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %zu merges", count);
    for (size_t i = 0; i < count; i++) {
        const tn_json *m = tn_json_at(merges, i);
        const char *a = tn_json_string(tn_json_at(m, 0), NULL), *b = tn_json_string(tn_json_at(m, 1), NULL);
        size_t size = a && b ? strlen(a) + strlen(b) + 2 : 1;
        v->merge_count = (int64_t)i + 1;
        v->merges[i] = tn_json_string(m, NULL);
        if (v->merges[i]) continue;
        v->merges[i] = v->joined[i] = malloc(size);
        if (!a || !b || !v->joined[i]) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer.json: merge %zu is invalid", i);
        snprintf(v->joined[i], size, "%s %s", a, b);
    }
    return TN_OK;
}

static bool has_step(const tn_json *pre, const char *type) {
    const tn_json *list = tn_json_get(pre, "pretokenizers");
    if (strcmp(tn_json_string(tn_json_get(pre, "type"), ""), type) == 0) return true;
    for (size_t i = 0; i < tn_json_length(list); i++)
        if (strcmp(tn_json_string(tn_json_get(tn_json_at(list, i), "type"), ""), type) == 0) return true;
    return false;
}

/* What GGUF calls the patterns that cut a text; NULL for others. */
static const char *pattern_name(const convert_folder *f, const tn_json *root) {
    const tn_json *pre = tn_json_get(root, "pre_tokenizer");
    if (strcmp(tn_json_string(tn_json_get(tn_json_get(root, "model"), "type"), ""), "BPE") != 0) return NULL;
    if (!has_step(pre, "ByteLevel")) return NULL;
    if (strncmp(f->architecture, "qwen", 4) == 0) return has_step(pre, "Split") ? "qwen2" : "gpt-2";
    if (has_step(pre, "Split")) return "llama-bpe";
    return has_step(pre, "Digits") ? "smollm" : "gpt-2";
}

/* ---- SentencePiece's BPE ----------------------------------------------------------------------------------------- */

static bool is_type(const tn_json *v, const char *type) {
    return strcmp(tn_json_string(tn_json_get(v, "type"), ""), type) == 0;
}

/* A blank becomes the mark. */
static bool is_marking(const tn_json *step) {
    const char *from = tn_json_string(tn_json_get(tn_json_get(step, "pattern"), "String"), "");
    return is_type(step, "Replace") && strcmp(from, " ") == 0 &&
           strcmp(tn_json_string(tn_json_get(step, "content"), ""), "▁") == 0;
}

/* Does a text that has marks for its blanks pass as it is? */
static bool cuts_nothing(const tn_json *cuts) {
    const char *blank = tn_json_string(tn_json_get(tn_json_get(cuts, "pattern"), "String"), "");
    return !cuts || tn_json_kind_of(cuts) == TN_JSON_NULL || (is_type(cuts, "Split") && strcmp(blank, " ") == 0);
}

/* Its blanks are marks, by a normalizer or Metaspace; nothing else may change a text. *in_front: a mark begins it. */
static bool is_sentence(const tn_json *root, bool *in_front) {
    const tn_json *normal = tn_json_get(root, "normalizer"), *list = tn_json_get(normal, "normalizers");
    const tn_json *cuts = tn_json_get(root, "pre_tokenizer"), *model = tn_json_get(root, "model");
    bool metaspace = is_type(cuts, "Metaspace"), marks = metaspace || is_marking(normal);
    bool alone = normal && tn_json_kind_of(normal) != TN_JSON_NULL && !is_type(normal, "Sequence");
    const char *scheme = tn_json_string(tn_json_get(cuts, "prepend_scheme"), "always");
    *in_front = metaspace && strcmp(scheme, "never") != 0 && tn_json_bool(tn_json_get(cuts, "add_prefix_space"), true);
    if (!is_type(model, "BPE") || !tn_json_bool(tn_json_get(model, "byte_fallback"), false)) return false;
    if (alone && !is_marking(normal)) return false;
    for (size_t i = 0; i < tn_json_length(list); i++) {
        const tn_json *step = tn_json_at(list, i);
        if (!is_type(step, "Prepend") && !is_marking(step)) return false;
        if (is_type(step, "Prepend")) *in_front = true;
        marks |= is_marking(step);
    }
    return marks && (metaspace || cuts_nothing(cuts));
}

typedef struct spelling {
    const char *text;
    int64_t id;
} spelling;

static int by_text(const void *a, const void *b) {
    return strcmp(((const spelling *)a)->text, ((const spelling *)b)->text);
}

/* The first merge that makes a token is its rank; what none makes comes last. */
static tn_status rank_tokens(vocabulary *v) {
    AUTO_CLI_FREE spelling *sorted = malloc((size_t)v->count * sizeof *sorted);
    v->scores = malloc((size_t)v->count * sizeof *v->scores);
    if (!sorted || !v->scores) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for scores");
    for (int64_t i = 0; i < v->count; i++) {
        sorted[i] = (spelling){v->tokens[i], i};
        v->scores[i] = v->types[i] == NORMAL ? -(float)v->merge_count : 0;
    }
    qsort(sorted, (size_t)v->count, sizeof *sorted, by_text);
    for (int64_t i = v->merge_count - 1; i >= 0; i--) {
        const char *blank = strchr(v->merges[i] ? v->merges[i] : "", ' ');
        AUTO_CLI_FREE char *whole = blank ? strdup(v->merges[i]) : NULL;
        if (!whole) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer.json: merge %lld is invalid", (long long)i);
        memmove(whole + (blank - v->merges[i]), blank + 1, strlen(blank));
        spelling wanted = {whole, 0};
        const spelling *found = bsearch(&wanted, sorted, (size_t)v->count, sizeof *sorted, by_text);
        if (found) v->scores[found->id] = -(float)i;
    }
    return TN_OK;
}

/* "<0x0A>" */
static bool is_byte(const char *text) {
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && strspn(text + 3, "0123456789ABCDEF") == 2 &&
           text[5] == '>';
}

/* Whether the end of a text, or its begin, gets a token of its own. */
static bool adds(const tn_json *root, bool end) {
    const tn_json *single = tn_json_get(tn_json_get(root, "post_processor"), "single");
    size_t n = tn_json_length(single);
    return n > 0 && tn_json_get(tn_json_at(single, end ? n - 1 : 0), "SpecialToken") != NULL;
}

static tn_status put_sentence(const tn_json *root, vocabulary *v, bool in_front, tn_gguf_writer *w) {
    const char *unknown = tn_json_string(tn_json_get(tn_json_get(root, "model"), "unk_token"), "");
    int64_t id = -1;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->types[i] == NORMAL && is_byte(v->tokens[i])) v->types[i] = BYTE;
        if (strcmp(v->tokens[i], unknown) != 0) continue;
        v->types[i] = UNKNOWN;
        id = i;
    }
    TRY(rank_tokens(v));
    TRY(tn_gguf_put_string(w, "tokenizer.ggml.model", "llama", 5));
    TRY(tn_gguf_put_array(w, "tokenizer.ggml.scores", TN_GGUF_F32, v->count, v->scores));
    TRY(tn_gguf_put_int(w, "tokenizer.ggml.add_space_prefix", TN_GGUF_BOOL, in_front));
    TRY(tn_gguf_put_int(w, "tokenizer.ggml.add_eos_token", TN_GGUF_BOOL, adds(root, true)));
    return id < 0 ? TN_OK : tn_gguf_put_int(w, "tokenizer.ggml.unknown_token_id", TN_GGUF_U32, id);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* A number, or the first of a list. */
static tn_status put_id(const convert_folder *f, tn_gguf_writer *w, const char *hf, const char *key) {
    const tn_json *v = tn_json_get(tn_json_root(f->config), hf);
    int64_t id = tn_json_int(tn_json_kind_of(v) == TN_JSON_ARRAY ? tn_json_at(v, 0) : v, -1);
    return id < 0 ? TN_OK : tn_gguf_put_int(w, key, TN_GGUF_U32, id);
}

static tn_status put_template(const convert_folder *f, const tn_json *tokenizer, bool sentence, tn_gguf_writer *w) {
    AUTO_CLI_JSON tn_json_doc *doc = NULL;
    TRY(convert_folder_json(f, "tokenizer_config.json", false, &doc));
    const tn_json *root = tn_json_root(doc), *begins = tn_json_get(root, "add_bos_token");
    const char *text = tn_json_string(tn_json_get(root, "chat_template"), NULL);
    bool told = tn_json_kind_of(begins) == TN_JSON_BOOL;
    if (text) TRY(tn_gguf_put_string(w, "tokenizer.chat_template", text, (int64_t)strlen(text)));
    if (!told && !sentence) return TN_OK; /* readers of SentencePiece's take it as true otherwise */
    return tn_gguf_put_int(w, "tokenizer.ggml.add_bos_token", TN_GGUF_BOOL,
                           told ? tn_json_bool(begins, false) : adds(tokenizer, false));
}

static tn_status put_bytes(const vocabulary *v, const char *pattern, tn_gguf_writer *w) {
    TRY(tn_gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4));
    TRY(tn_gguf_put_string(w, "tokenizer.ggml.pre", pattern, (int64_t)strlen(pattern)));
    return tn_gguf_put_strings(w, "tokenizer.ggml.merges", v->merge_count, v->merges, NULL);
}

static tn_status put_vocabulary(const convert_folder *f, const tn_json *root, tn_gguf_writer *w) {
    AUTO_CALL(vocabulary_free) vocabulary v = {0};
    bool in_front, sentence = is_sentence(root, &in_front);
    const char *pattern = pattern_name(f, root);
    if (!pattern && !sentence)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/tokenizer.json' is neither byte-level BPE nor SentencePiece BPE; only these can be "
                               "converted. --like FILE.gguf takes the tokenizer from another file",
                               f->path);
    TRY(read_tokens(f, root, &v));
    TRY(read_merges(root, &v));
    TRY(sentence ? put_sentence(root, &v, in_front, w) : put_bytes(&v, pattern, w));
    TRY(tn_gguf_put_strings(w, "tokenizer.ggml.tokens", v.count, v.tokens, NULL));
    TRY(tn_gguf_put_array(w, "tokenizer.ggml.token_type", TN_GGUF_I32, v.count, v.types));
    TRY(put_id(f, w, "bos_token_id", "tokenizer.ggml.bos_token_id"));
    TRY(put_id(f, w, "eos_token_id", "tokenizer.ggml.eos_token_id"));
    return put_template(f, root, sentence, w);
}

tn_status convert_tokenizer(const convert_folder *f, tn_gguf_writer *w) {
    AUTO_CLI_JSON tn_json_doc *doc = NULL;
    TRY(convert_folder_json(f, "tokenizer.json", false, &doc));
    if (doc) return put_vocabulary(f, tn_json_root(doc), w);
    cli_print(stderr,
              "trunnion: '%s' has no tokenizer.json, so the file gets no tokenizer; --like FILE.gguf takes the "
              "tokenizer from FILE\n",
              f->path);
    return TN_OK;
}
