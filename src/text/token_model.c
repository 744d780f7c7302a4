/* token_model.c — the models of tokenizer.json, which split a word into tokens.
 *
 * WordPiece takes the longest token that matches the rest of the word (Schuster and Nakajima 2012). Unigram takes the
 * most probable sequence of tokens (Kudo 2018, Viterbi algorithm). Both walk one tree of the vocabulary, so each byte
 * is examined once per position. BPE merges by rank (bpe.c), starting from characters, or from bytes if the vocabulary
 * contains every byte. WordLevel looks up the whole word. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/hf.h"

static tn_status no_unknown(const char *word, size_t size) {
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "tokenizer: \"%.*s\" is not in the vocabulary, and the file defines no unknown token",
                           size < 64 ? (int)size : 64, word);
}

static tn_status put_unknown(tn_hf_work *w, const char *word, size_t size) {
    return w->hf->unknown >= 0 ? tn_ids_append(w->base.out, w->hf->unknown) : no_unknown(word, size);
}

/* ---- WordLevel, WordPiece ---------------------------------------------------------------------------------------- */

static tn_status word_level(tn_hf_work *w, const char *word, size_t size) {
    int32_t id = tn_txt_find_plain(w->base.tokenizer, word, size);
    return id >= 0 ? tn_ids_append(w->base.out, id) : put_unknown(w, word, size);
}

static bool has_more_characters(const char *word, size_t size, int64_t most) {
    if ((int64_t)size <= most) return false;
    int64_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += ((uint8_t)word[i] & 0xc0) != 0x80;
    return count > most;
}

/* The longest token that begins at a node of the tree and goes on with the text; -1 for none. */
static int32_t longest(const tn_txt_special *tree, uint32_t node, const char *text, size_t size, size_t *length) {
    int32_t best = -1;
    for (size_t i = 0; i < size && (node = tn_txt_special_step(tree, node, (uint8_t)text[i])) != TN_TXT_NONE; i++) {
        if (tree->ids[node] < 0) continue;
        best = tree->ids[node];
        *length = i + 1;
    }
    return best;
}

static tn_status word_piece(tn_hf_work *w, const char *word, size_t size) {
    const tn_hf *hf = w->hf;
    size_t before = w->base.out->count, length = 0;
    if (has_more_characters(word, size, hf->max_chars)) return put_unknown(w, word, size);
    for (size_t at = 0; at < size; at += length) {
        uint32_t node = at == 0 ? 0 : hf->continuing;
        int32_t id = node == TN_TXT_NONE ? -1 : longest(&hf->words, node, word + at, size - at, &length);
        if (id < 0) {
            w->base.out->count = before;
            return put_unknown(w, word, size);
        }
        TRY(tn_ids_append(w->base.out, id));
    }
    return TN_OK;
}

/* ---- Unigram ----------------------------------------------------------------------------------------------------- */

/* The best way to a place in the word. */
typedef struct tn_hf_node {
    double score;
    uint32_t from; /* where its last token begins; TN_TXT_NONE: it cannot be reached */
    int32_t id;
} tn_hf_node;

static void offer(tn_hf_node *to, double score, size_t from, int32_t id) {
    if (to->from != TN_TXT_NONE && !(score > to->score)) return;
    *to = (tn_hf_node){.score = score, .from = (uint32_t)from, .id = id};
}

/* All tokens that begin at a place. */
static tn_status extend(tn_hf_work *w, const char *word, size_t size, size_t at) {
    const tn_hf *hf = w->hf;
    tn_hf_node *nodes = w->nodes;
    uint32_t c, node = 0;
    size_t single = tn_hf_char(word + at, size - at, &c);
    bool has_single = false;
    for (size_t i = at; i < size && (node = tn_txt_special_step(&hf->words, node, (uint8_t)word[i])) != TN_TXT_NONE;
         i++) {
        int32_t id = hf->words.ids[node];
        if (id < 0) continue;
        offer(&nodes[i + 1], nodes[at].score + hf->scores[id], at, id);
        has_single |= i + 1 == at + single;
    }
    if (has_single) return TN_OK;
    if (hf->unknown < 0) return no_unknown(word + at, single);
    offer(&nodes[at + single], nodes[at].score + hf->unknown_score, at, hf->unknown);
    return TN_OK;
}

/* A part of the word that no token spells: its bytes where these are tokens, else the unknown token. */
static tn_status spell_out(tn_hf_work *w, const char *part, size_t size) {
    const tn_tokenizer *t = w->base.tokenizer;
    int32_t id = tn_txt_find_plain(t, part, size);
    if (id >= 0) return tn_ids_append(w->base.out, id);
    bool bytes = w->hf->byte_fallback;
    for (size_t i = 0; i < size && bytes; i++)
        bytes = t->bytes[(uint8_t)part[i]] >= 0;
    if (!bytes) return put_unknown(w, part, size);
    for (size_t i = 0; i < size; i++)
        TRY(tn_ids_append(w->base.out, t->bytes[(uint8_t)part[i]]));
    return TN_OK;
}

static tn_status unigram(tn_hf_work *w, const char *word, size_t size) {
    const tn_hf *hf = w->hf;
    uint32_t c;
    TRY(tn_txt_reserve(&w->nodes, &w->node_capacity, size + 1, sizeof *w->nodes));
    tn_hf_node *nodes = w->nodes;
    for (size_t i = 0; i <= size; i++)
        nodes[i].from = TN_TXT_NONE;
    nodes[0].score = 0;
    for (size_t at = 0; at < size; at += tn_hf_char(word + at, size - at, &c))
        TRY(extend(w, word, size, at));
    /* The way back, turned round: a node's `from` becomes where the token after it ends. */
    uint32_t next = TN_TXT_NONE;
    for (uint32_t at = (uint32_t)size; at > 0;) {
        uint32_t from = nodes[at].from;
        nodes[from].score = (double)at;
        if (next == TN_TXT_NONE) next = at;
        at = from;
    }
    for (size_t at = 0; at < size;) {
        size_t end = (size_t)nodes[at].score;
        if (nodes[end].id != hf->unknown) {
            TRY(tn_ids_append(w->base.out, nodes[end].id));
            at = end;
            continue;
        }
        while (end < size && nodes[(size_t)nodes[end].score].id == hf->unknown) /* unknown parts are one */
            end = (size_t)nodes[end].score;
        TRY(spell_out(w, word + at, end - at));
        at = end;
    }
    return TN_OK;
}

/* ---- BPE --------------------------------------------------------------------------------------------------------- */

/* A character of a word: with the prefix of what continues it and the suffix of what ends it. */
static tn_status spell(tn_hf_work *w, const char *c, size_t size, bool begins, bool ends) {
    const tn_hf *hf = w->hf;
    w->word.size = 0;
    if (!begins) TRY(tn_bytes_append(&w->word, hf->prefix.data, hf->prefix.size));
    TRY(tn_bytes_append(&w->word, c, size));
    if (ends) TRY(tn_bytes_append(&w->word, hf->suffix.data, hf->suffix.size));
    return TN_OK;
}

static tn_status add_symbol(tn_hf_work *w, uint32_t *count, int32_t id) {
    TRY(tn_txt_reserve(&w->base.symbols, &w->base.symbol_capacity, (size_t)*count + 1, sizeof *w->base.symbols));
    w->base.symbols[(*count)++] = (tn_txt_symbol){.id = id};
    return TN_OK;
}

/* Whether all bytes of w->word are tokens. */
static bool spells_bytes(const tn_hf_work *w) {
    bool all = w->hf->byte_fallback;
    for (size_t i = 0; i < w->word.size && all; i++)
        all = w->base.tokenizer->bytes[(uint8_t)w->word.data[i]] >= 0;
    return all;
}

/* One character's symbols. An unknown one waits until a known one comes: so they fuse. */
static tn_status add_character(tn_hf_work *w, uint32_t *count, bool *unknown_waits) {
    const tn_hf *hf = w->hf;
    int32_t id = tn_txt_find_plain(w->base.tokenizer, w->word.data, w->word.size);
    if (id >= 0) {
        if (*unknown_waits) TRY(add_symbol(w, count, hf->unknown));
        *unknown_waits = false;
        return add_symbol(w, count, id);
    }
    if (spells_bytes(w)) {
        for (size_t i = 0; i < w->word.size; i++)
            TRY(add_symbol(w, count, w->base.tokenizer->bytes[(uint8_t)w->word.data[i]]));
        return TN_OK;
    }
    if (hf->unknown < 0) return TN_OK;
    if (*unknown_waits && !hf->fuse_unknown) TRY(add_symbol(w, count, hf->unknown));
    *unknown_waits = true;
    return TN_OK;
}

static tn_status bpe_of_characters(tn_hf_work *w, const char *word, size_t size) {
    uint32_t count = 0, c;
    bool unknown_waits = false;
    if (w->base.tokenizer->whole_words) {
        int32_t id = tn_txt_find_plain(w->base.tokenizer, word, size);
        if (id >= 0) return tn_ids_append(w->base.out, id);
    }
    for (size_t at = 0, length; at < size; at += length) {
        length = tn_hf_char(word + at, size - at, &c);
        TRY(spell(w, word + at, length, at == 0, at + length == size));
        TRY(add_character(w, &count, &unknown_waits));
    }
    if (unknown_waits) TRY(add_symbol(w, &count, w->hf->unknown));
    return tn_txt_bpe_symbols(&w->base, count);
}

static tn_status bpe_of_bytes(tn_hf_work *w, const char *word, size_t size) { return tn_txt_bpe(&w->base, word, size); }

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The vocabulary while it is gathered. */
typedef struct gathered {
    tn_text_slice *tokens;
    int32_t *types;
    tn_text_slice *merges;                /* pairs: left, right */
    int32_t count, capacity, merge_count; /* capacity: with room for added tokens */
    size_t known;                         /* tokens of the model */
} gathered;

static void free_gathered(gathered *g) { tn_txt_free_each(g->tokens, g->types, g->merges); }

static tn_status bad(const char *what) { return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: %s", what); }

/* Room for ids 0 to count - 1, and for `more` after them. */
static tn_status make_tokens(gathered *g, int64_t count, int64_t named, int64_t more) {
    if (count > 16 * named + 65536 || count + more > TN_TXT_MAX_TOKENS)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: ids up to %lld, but %lld tokens", (long long)count - 1,
                               (long long)named);
    g->tokens = tn_txt_zalloc((size_t)(count + more + 1), sizeof *g->tokens);
    g->types = tn_txt_zalloc((size_t)(count + more + 1), sizeof *g->types);
    g->count = (int32_t)count;
    g->capacity = (int32_t)(count + more);
    return g->tokens && g->types ? TN_OK : TN_ERR_MEMORY;
}

/* {"token": id, …}, with room for `more` tokens after the last. */
static tn_status gather_map(gathered *g, const tn_json *vocab, size_t more) {
    int64_t last = -1;
    if (tn_json_kind_of(vocab) != TN_JSON_OBJECT) return bad("the model's vocab must be an object");
    const size_t length = tn_json_length(vocab);
    for (size_t i = 0; i < length; i++) {
        int64_t id = tn_json_int(tn_json_at(vocab, i), -1);
        if (id < 0) return bad("an id in the model's vocab is not a number of at least 0");
        if (id > last) last = id;
    }
    TRY(make_tokens(g, last >= (int64_t)length ? last + 1 : (int64_t)length, (int64_t)length, (int64_t)more));
    for (size_t i = 0; i < length; i++) {
        int64_t id = tn_json_int(tn_json_at(vocab, i), -1);
        g->tokens[id] = tn_hf_key(vocab, i);
        g->types[id] = TN_TOKEN_NORMAL;
    }
    g->known = length; /* new ids begin here, holes or not, as in the library */
    return TN_OK;
}

/* [["token", score], …] */
static tn_status gather_scores(gathered *g, tn_hf *hf, const tn_json *vocab, size_t more) {
    if (tn_json_kind_of(vocab) != TN_JSON_ARRAY) return bad("Unigram's vocab must be an array");
    const size_t length = tn_json_length(vocab);
    TRY(make_tokens(g, (int64_t)length, (int64_t)length, (int64_t)more));
    hf->scores = tn_txt_alloc(length, sizeof *hf->scores);
    if (!hf->scores) return TN_ERR_MEMORY;
    double least = INFINITY;
    for (size_t i = 0; i < length; i++) {
        const tn_json *pair = tn_json_at(vocab, i);
        const tn_json *token = tn_json_at(pair, 0), *score = tn_json_at(pair, 1);
        bool good = tn_json_kind_of(pair) == TN_JSON_ARRAY && tn_json_length(pair) == 2 &&
                    tn_json_kind_of(token) == TN_JSON_STRING &&
                    (tn_json_kind_of(score) == TN_JSON_NUMBER || tn_json_kind_of(score) == TN_JSON_NULL);
        if (!good) return bad("a token of Unigram's vocab must be [text, score]");
        g->tokens[i] = tn_hf_slice(token);
        g->types[i] = TN_TOKEN_NORMAL;
        hf->scores[i] = tn_json_number(score, -INFINITY); /* null: texts are not cut into it (sentencepiece.c) */
        if (hf->scores[i] > -INFINITY && hf->scores[i] < least) least = hf->scores[i];
    }
    g->known = length;
    hf->unknown_score = least < INFINITY ? least - 10 : 0; /* SentencePiece's penalty */
    return TN_OK;
}

/* ["left", "right"] or "left right". */
static tn_status gather_merges(gathered *g, const tn_json *merges) {
    if (!merges) return TN_OK;
    if (tn_json_kind_of(merges) != TN_JSON_ARRAY || tn_json_length(merges) > TN_TXT_MAX_TOKENS)
        return bad("the model's merges must be an array");
    g->merges = tn_txt_alloc(2 * tn_json_length(merges), sizeof *g->merges);
    if (!g->merges) return TN_ERR_MEMORY;
    for (size_t i = 0; i < tn_json_length(merges); i++) {
        const tn_json *one = tn_json_at(merges, i);
        tn_text_slice *out = &g->merges[2 * (size_t)g->merge_count], text = tn_hf_slice(one);
        const char *space = text.size > 0 ? memchr(text.data, ' ', text.size) : NULL;
        if (i == 0 && text.size >= 8 && !memcmp(text.data, "#version", 8)) continue;
        if (space) {
            out[0] = (tn_text_slice){text.data, (size_t)(space - text.data)};
            out[1] = (tn_text_slice){space + 1, text.size - out[0].size - 1};
        } else if (tn_json_kind_of(one) == TN_JSON_ARRAY && tn_json_length(one) == 2) {
            out[0] = tn_hf_slice(tn_json_at(one, 0));
            out[1] = tn_hf_slice(tn_json_at(one, 1));
        } else {
            return bad("a merge must be \"left right\" or [left, right]");
        }
        g->merge_count++;
    }
    return TN_OK;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

static tn_vocabulary vocabulary_of(const gathered *g, int32_t count) {
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    v.count = count;
    v.tokens = g->tokens;
    v.types = g->types;
    return v;
}

/* The id of an added token: the model's, where the model has it, else that of an equal one before; -1: a new one.
 * model->always holds the new ones so far. */
static int32_t id_of_added(const tn_tokenizer *model, tn_text_slice text) {
    int32_t id = tn_tokenizer_find(model, text.data, text.size);
    uint32_t node = 0;
    for (size_t i = 0; i < text.size && id < 0; i++) {
        node = tn_txt_special_step(&model->always, node, (uint8_t)text.data[i]);
        if (node == TN_TXT_NONE) return -1;
    }
    return id >= 0 ? id : model->always.ids[node];
}

static tn_status gather_one_added(tn_tokenizer *model, gathered *g, tn_hf *hf, const tn_json *v) {
    tn_text_slice text = tn_hf_slice(tn_hf_get(v, "content"));
    if (!text.data) return bad("an added token has no content");
    if (text.size == 0) return TN_OK;
    tn_hf_added *a = &hf->added[hf->added_count];
    *a = (tn_hf_added){
        .id = id_of_added(model, text),
        .special = tn_json_bool(tn_hf_get(v, "special"), false),
        .single_word = tn_json_bool(tn_hf_get(v, "single_word"), false),
        .lstrip = tn_json_bool(tn_hf_get(v, "lstrip"), false),
        .rstrip = tn_json_bool(tn_hf_get(v, "rstrip"), false),
        .normalized = tn_json_bool(tn_hf_get(v, "normalized"), true),
    };
    if (a->id < 0) {
        a->id = hf->added_end;
        if (a->id >= g->capacity || g->types[a->id] != 0) return bad("an added token and one of the model share an id");
        hf->added_end++;
        g->tokens[a->id] = text;
        TRY(tn_txt_special_add(&model->always, text.data, text.size, a->id));
    }
    g->types[a->id] = a->special ? TN_TOKEN_CONTROL : TN_TOKEN_USER_DEFINED;
    hf->added_count++;
    return TN_OK;
}

static tn_status gather_added(gathered *g, tn_hf *hf, const tn_json *list) {
    uint32_t count = tn_json_kind_of(list) == TN_JSON_ARRAY ? (uint32_t)tn_json_length(list) : 0;
    hf->added = tn_txt_alloc(count, sizeof *hf->added);
    if (!hf->added) return TN_ERR_MEMORY;
    hf->added_first = hf->added_end = (int32_t)g->known;
    if (count == 0) return TN_OK;
    AUTO_CALL(tn_txt_vocabulary_free) tn_tokenizer model = {.hf = hf};
    tn_vocabulary v = vocabulary_of(g, g->count);
    TRY(tn_txt_vocabulary_fill(&model, &v));
    for (size_t i = 0; i < count; i++)
        TRY(gather_one_added(&model, g, hf, tn_json_at(list, i)));
    return TN_OK;
}

/* ---- the kinds --------------------------------------------------------------------------------------------------- */

static void fill_bytes(tn_tokenizer *t, bool letters) {
    for (int b = 0; b < 256; b++) {
        char spelling[8];
        size_t length = letters ? tn_txt_utf8_write(tn_txt_letter_of_byte((uint8_t)b), spelling)
                                : (size_t)snprintf(spelling, sizeof spelling, "<0x%02X>", (unsigned)b);
        t->bytes[b] = tn_txt_find_plain(t, spelling, length);
        if (!letters && t->bytes[b] >= 0 && t->types[t->bytes[b]] == TN_TOKEN_NORMAL && t->hf->byte_fallback)
            t->types[t->bytes[b]] = TN_TOKEN_BYTE;
    }
}

/* scored: how many tokens have a score; those of minus infinity are no words. */
static tn_status add_words(tn_tokenizer *t, size_t scored) {
    tn_hf *hf = t->hf;
    for (int32_t i = 0; i < t->count; i++) {
        size_t size;
        const char *text = tn_tokenizer_spelling(t, i, &size);
        if ((size_t)i < scored && hf->scores[i] == -INFINITY) continue;
        if (i < hf->added_first || i >= hf->added_end) TRY(tn_txt_special_add(&hf->words, text, size, i));
    }
    return TN_OK;
}

/* The node after WordPiece's prefix. */
static uint32_t behind_prefix(const tn_hf *hf) {
    uint32_t node = hf->words.nodes > 0 ? 0 : TN_TXT_NONE;
    for (size_t i = 0; i < hf->prefix.size && node != TN_TXT_NONE; i++)
        node = tn_txt_special_step(&hf->words, node, (uint8_t)hf->prefix.data[i]);
    return node;
}

/* A merge's right part stands in the vocabulary with the prefix of what continues a word, the result without it. */
static tn_status add_merges(tn_tokenizer *t, const gathered *g) {
    AUTO_BYTES tn_bytes joined = {0};
    TRY(tn_txt_merges_new(t, (size_t)g->merge_count));
    for (int32_t i = 0; i < g->merge_count; i++) {
        tn_text_slice left = g->merges[2 * (size_t)i], right = g->merges[2 * (size_t)i + 1];
        size_t cut = t->hf->prefix.size < right.size ? t->hf->prefix.size : right.size;
        joined.size = 0;
        TRY(tn_bytes_append(&joined, left.data, left.size));
        TRY(tn_bytes_append(&joined, right.data + cut, right.size - cut));
        const tn_txt_merge m = {.left = tn_txt_find_plain(t, left.data, left.size),
                                .right = tn_txt_find_plain(t, right.data, right.size),
                                .result = tn_txt_find_plain(t, joined.data, joined.size)};
        if (m.left < 0 || m.right < 0 || m.result < 0)
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: merge %d uses tokens that are not in the vocabulary",
                                   (int)i);
        tn_txt_merges_add(t, &m, true);
    }
    return TN_OK;
}

typedef struct model_row {
    const char *name;
    tn_hf_model run;
    bool tree, merges, scores;
} model_row;

static const model_row models[] = {
    {.name = "BPE", .run = bpe_of_characters, .merges = true},
    {.name = "WordPiece", .run = word_piece, .tree = true},
    {.name = "Unigram", .run = unigram, .tree = true, .scores = true},
    {.name = "WordLevel", .run = word_level},
};

/* Old files do not name the model; its members tell which it is. */
static const model_row *tokenizer_model_row_of(const tn_json *model) {
    const tn_json *type = tn_hf_get(model, "type");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (tn_hf_is(type, models[i].name)) return &models[i];
    if (type) return NULL;
    if (tn_hf_get(model, "merges")) return &models[0];
    if (tn_json_kind_of(tn_hf_get(model, "vocab")) == TN_JSON_ARRAY) return &models[2];
    return tn_hf_get(model, "continuing_subword_prefix") ? &models[1] : &models[3];
}

static tn_status read_options_tokenizer_model(tn_tokenizer *t, const tn_json *model, const model_row *row) {
    tn_hf *hf = t->hf;
    const tn_json *dropout = tn_hf_get(model, "dropout");
    if (tn_json_number(dropout, 0) != 0)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "tokenizer: BPE with dropout is not deterministic, so it is not supported; set dropout to null");
    TRY(tn_hf_read_text(model, "continuing_subword_prefix", row->tree && !row->scores ? "##" : "", &hf->prefix));
    TRY(tn_hf_read_text(model, "end_of_word_suffix", "", &hf->suffix));
    hf->max_chars = tn_json_int(tn_hf_get(model, "max_input_chars_per_word"), 100);
    hf->fuse_unknown = tn_json_bool(tn_hf_get(model, "fuse_unk"), false);
    hf->byte_fallback = tn_json_bool(tn_hf_get(model, "byte_fallback"), false);
    t->whole_words = tn_json_bool(tn_hf_get(model, "ignore_merges"), false);
    return TN_OK;
}

static void find_unknown(tn_tokenizer *t, const tn_json *model, bool by_id) {
    tn_text_slice unknown = tn_hf_slice(tn_hf_get(model, "unk_token"));
    int64_t id = tn_json_int(tn_hf_get(model, "unk_id"), -1);
    t->hf->unknown =
        by_id ? (id >= 0 && id < t->count ? (int32_t)id : -1) : tn_txt_find_plain(t, unknown.data, unknown.size);
    id = t->hf->unknown;
    if (id >= 0 && t->types[id] == TN_TOKEN_NORMAL) t->types[id] = TN_TOKEN_UNKNOWN;
    t->special[TN_SPECIAL_UNKNOWN] = t->hf->unknown;
}

/* Whether BPE may read a word's bytes instead of letters for them. */
static bool can_read_bytes(const tn_tokenizer *t) {
    const tn_hf_steps *cutters = &t->hf->cutters;
    bool able = cutters->count > 0 && !strcmp(cutters->items[cutters->count - 1].row->name, "ByteLevel") &&
                t->hf->prefix.size == 0 && t->hf->suffix.size == 0;
    for (int b = 0; b < 256 && able; b++)
        able = t->bytes[b] >= 0;
    return able;
}

static tn_status fill_tokenizer_model(tn_tokenizer *t, const gathered *g, const tn_json *model, const model_row *row) {
    tn_hf *hf = t->hf;
    const tn_vocabulary v = vocabulary_of(g, hf->added_end > g->count ? hf->added_end : g->count);
    TRY(tn_txt_vocabulary_fill(t, &v));
    if (row->tree) TRY(add_words(t, row->scores ? g->known : 0));
    if (row->tree) hf->continuing = behind_prefix(hf);
    if (row->merges) TRY(add_merges(t, g));
    find_unknown(t, model, row->scores);
    hf->model = row->run;
    if (row->merges) {
        fill_bytes(t, true);
        hf->letters_later = can_read_bytes(t);
    }
    if (hf->letters_later)
        hf->model = bpe_of_bytes;
    else
        fill_bytes(t, false);
    return TN_OK;
}

tn_status tn_hf_read_model(tn_tokenizer *t, const tn_json *root) {
    const tn_json *model = tn_hf_get(root, "model"), *vocab = tn_hf_get(model, "vocab");
    const tn_json *added = tn_hf_get(root, "added_tokens");
    const model_row *row = tokenizer_model_row_of(model);
    const size_t more = tn_json_kind_of(added) == TN_JSON_ARRAY ? tn_json_length(added) : 0;
    if (!model) return bad("the file has no model");
    if (!row)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "tokenizer: the type of the model is not supported; supported are BPE, WordPiece, Unigram, WordLevel");
    t->hf->model_name = row->name;
    AUTO_CALL(free_gathered) gathered g = {0};
    TRY(read_options_tokenizer_model(t, model, row));
    TRY(row->scores ? gather_scores(&g, t->hf, vocab, more) : gather_map(&g, vocab, more));
    TRY(gather_added(&g, t->hf, added));
    if (row->merges) TRY(gather_merges(&g, tn_hf_get(model, "merges")));
    return fill_tokenizer_model(t, &g, model, row);
}
