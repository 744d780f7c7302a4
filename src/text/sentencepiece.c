/* sentencepiece.c — tokenizers of folders from before tokenizer.json (Marian): source.spm, a SentencePiece model, says
 * how texts are cut, vocab.json which id a piece has. Both become the text of a tokenizer.json, which hf_read.c reads.
 *
 * Pieces without an id in vocab.json are left out. Tokens of vocab.json that source.spm lacks can be decoded, but texts
 * are not cut into them. target.spm is not needed: pieces are joined alike. Source: sentencepiece_model.proto. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/hf.h"

/* ---- protocol buffers -------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

/* data: of strings, messages and fixed numbers; else value. */
typedef struct field {
    uint64_t number, value;
    const uint8_t *data;
    size_t size;
} field;

static bool read_varint(cursor *c, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* 1: a field; 0: there are no more; -1: damaged. */
static int next_field(cursor *c, field *f) {
    enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };
    uint64_t key;
    *f = (field){0};
    if (c->at == c->end) return 0;
    if (!read_varint(c, &key)) return -1;
    f->number = key >> 3;
    int kind = (int)(key & 7);
    if (kind == VARINT) return read_varint(c, &f->value) ? 1 : -1;
    uint64_t size = kind == FIXED64 ? 8 : 4;
    if (kind == BYTES && !read_varint(c, &size)) return -1;
    if ((kind != FIXED64 && kind != BYTES && kind != FIXED32) || size > (uint64_t)(c->end - c->at)) return -1;
    f->data = c->at;
    f->size = (size_t)size;
    c->at += size;
    return 1;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

typedef struct piece {
    tn_text_slice text;
    double score;
} piece;

typedef struct model {
    piece *pieces; /* that texts are cut into, sorted by their text */
    size_t count;
    tn_text_slice characters; /* normalizer_spec.precompiled_charsmap */
} model;
static void free_model(model *m) { tn_txt_free(m->pieces); }

enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };

static int by_text(const void *a, const void *b) {
    const tn_text_slice *x = &((const piece *)a)->text, *y = &((const piece *)b)->text;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static bool read_piece(model *m, field from) {
    enum { PIECE_TEXT = 1, PIECE_SCORE, PIECE_TYPE, NORMAL = 1, USER_DEFINED = 4 };
    cursor c = {from.data, from.data + from.size};
    piece p = {{"", 0}, 0};
    uint64_t type = NORMAL;
    float score = 0;
    field f;
    int more;
    while ((more = next_field(&c, &f)) > 0) {
        if (f.number == PIECE_TEXT && f.data) p.text = (tn_text_slice){(const char *)f.data, f.size};
        if (f.number == PIECE_SCORE && f.data && f.size == sizeof score) {
            uint32_t bits =
                f.data[0] | (uint32_t)f.data[1] << 8 | (uint32_t)f.data[2] << 16 | (uint32_t)f.data[3] << 24;
            memcpy(&score, &bits, sizeof score);
        }
        if (f.number == PIECE_TYPE) type = f.value;
    }
    p.score = (double)score;
    if ((type == NORMAL || type == USER_DEFINED) && p.text.size > 0) m->pieces[m->count++] = p;
    return more == 0 && fabs(p.score) < 1e9; /* and not a NaN */
}

/* The field of this number in a message: the last one, as the format wants it. */
static bool find_field(field from, uint64_t number, field *out) {
    cursor c = {from.data, from.data + from.size};
    field f;
    int more;
    while ((more = next_field(&c, &f)) > 0)
        if (f.number == number) *out = f;
    return more == 0;
}

static tn_status read_model(const tn_bytes *file, const char *path, model *m) {
    enum { TRAINER_TYPE = 3, NORMALIZER_CHARACTERS = 2, UNIGRAM = 1 };
    cursor c = {(const uint8_t *)file->data, (const uint8_t *)file->data + file->size};
    field f, type = {.value = UNIGRAM}, characters = {0};
    int more;
    bool good = true;
    m->pieces = tn_txt_zalloc(file->size / 4 + 1, sizeof *m->pieces); /* a piece takes more bytes than that */
    if (!m->pieces) return TN_ERR_MEMORY;
    while (good && (more = next_field(&c, &f)) > 0) {
        if (f.number <= MODEL_NORMALIZER && !f.data) good = false;
        if (good && f.number == MODEL_PIECE) good = read_piece(m, f);
        if (good && f.number == MODEL_TRAINER) good = find_field(f, TRAINER_TYPE, &type);
        if (good && f.number == MODEL_NORMALIZER) good = find_field(f, NORMALIZER_CHARACTERS, &characters);
    }
    if (!good || more < 0 || m->count == 0)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' is not a SentencePiece model, or it is damaged", path);
    if (type.value != UNIGRAM)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': SentencePiece's model type %llu is not supported; unigram is",
                               path, (unsigned long long)type.value);
    m->characters = (tn_text_slice){(const char *)characters.data, characters.size};
    qsort(m->pieces, m->count, sizeof *m->pieces, by_text);
    return TN_OK;
}

/* ---- the text of a tokenizer.json -------------------------------------------------------------------------------- */

static tn_status put(tn_bytes *out, const char *text) { return tn_bytes_append(out, text, strlen(text)); }

static tn_status put_string(tn_bytes *out, tn_text_slice s) {
    TRY(put(out, "\""));
    for (size_t i = 0; i < s.size; i++) {
        char escaped[8];
        unsigned char c = (unsigned char)s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            TRY(tn_bytes_append(out, &s.data[i], 1));
            continue;
        }
        snprintf(escaped, sizeof escaped, "\\u%04x", c);
        TRY(put(out, escaped));
    }
    return put(out, "\"");
}

static tn_status put_base64(tn_bytes *out, tn_text_slice s) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < s.size; i += 3) {
        uint32_t bits = 0;
        size_t left = s.size - i < 3 ? s.size - i : 3;
        char text[4];
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (k < left ? (uint8_t)s.data[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            text[k] = k <= left ? digits[bits >> (18 - 6 * k) & 63] : '=';
        TRY(tn_bytes_append(out, text, sizeof text));
    }
    return TN_OK;
}

/* [text, score]; a score of null: texts are not cut into it. The number is the same in every locale. */
static tn_status put_pair(tn_bytes *out, const model *m, tn_text_slice text, bool first) {
    char score[40] = "null";
    const piece wanted = {text, 0}, *found = bsearch(&wanted, m->pieces, m->count, sizeof *m->pieces, by_text);
    if (found) snprintf(score, sizeof score, "%llde-9", (long long)llround(found->score * 1e9));
    TRY(put(out, first ? "[" : ",["));
    TRY(put_string(out, text));
    TRY(put(out, ","));
    TRY(put(out, score));
    return put(out, "]");
}

static tn_status put_added(tn_bytes *out, tn_text_slice text, size_t id, bool special, bool first) {
    char rest[120];
    snprintf(rest, sizeof rest,
             ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s,\"id\":%zu}",
             special ? "true" : "false", id);
    TRY(put(out, first ? "{\"content\":" : ",{\"content\":"));
    TRY(put_string(out, text));
    return put(out, rest);
}

static bool is(tn_text_slice s, const char *word) { return s.size == strlen(word) && !memcmp(s.data, word, s.size); }

/* ">>fra<<": what a text for several languages begins with. */
static bool is_language(tn_text_slice s) {
    return s.size > 4 && !memcmp(s.data, ">>", 2) && !memcmp(s.data + s.size - 2, "<<", 2);
}

typedef struct names {
    tn_text_slice *tokens; /* by id */
    size_t count, unknown, end;
} names;
static void free_names(names *n) { tn_txt_free(n->tokens); }

static tn_status read_names(const tn_json *vocab, const char *path, names *n) {
    n->count = tn_json_kind_of(vocab) == TN_JSON_OBJECT ? tn_json_length(vocab) : 0;
    n->unknown = n->end = n->count;
    n->tokens = tn_txt_zalloc(n->count + 1, sizeof *n->tokens);
    if (!n->tokens) return TN_ERR_MEMORY;
    for (size_t i = 0; i < n->count; i++) {
        int64_t id = tn_json_int(tn_json_at(vocab, i), -1);
        if (id < 0 || id >= (int64_t)n->count || n->tokens[id].data)
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': ids must be the numbers from 0 to %zu, each once", path,
                                   n->count - 1);
        n->tokens[id] = tn_hf_key(vocab, i);
        if (is(n->tokens[id], "<unk>")) n->unknown = (size_t)id;
        if (is(n->tokens[id], "</s>")) n->end = (size_t)id;
    }
    if (n->unknown < n->count && n->end < n->count) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s' has no token <unk> or no token </s>", path);
}

static tn_status put_tokenizer(tn_bytes *out, const model *m, const names *n) {
    char text[400];
    bool first = true;
    TRY(put(out, "{\"added_tokens\":["));
    for (size_t i = 0; i < n->count; i++) {
        bool special = i == n->unknown || i == n->end || is(n->tokens[i], "<pad>");
        if (!special && !is_language(n->tokens[i])) continue;
        TRY(put_added(out, n->tokens[i], i, special, first));
        first = false;
    }
    TRY(put(out, "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["));
    if (m->characters.size > 0) {
        TRY(put(out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\""));
        TRY(put_base64(out, m->characters));
        TRY(put(out, "\"},"));
    }
    snprintf(
        text, sizeof text,
        ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
        "{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"</s>\":{\"id\":\"</s>\","
        "\"ids\":[%zu],\"tokens\":[\"</s>\"]}}},\"model\":{\"type\":\"Unigram\",\"unk_id\":%zu,\"vocab\":[",
        n->end, n->unknown);
    TRY(put(out, "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
                 "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]},\"pre_tokenizer\":"
                 "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"},\"decoder\":"
                 "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}"));
    TRY(put(out, text));
    for (size_t i = 0; i < n->count; i++)
        TRY(put_pair(out, m, n->tokens[i], i == 0));
    return put(out, "]}}");
}

tn_status tn_hf_from_sentencepiece(const tn_bytes *file, const char *path, const tn_json *vocab, const char *vocab_path,
                                   tn_tokenizer **out) {
    static const char config[] = "{\"eos_token\":\"</s>\",\"unk_token\":\"<unk>\",\"pad_token\":\"<pad>\"}";
    AUTO_CALL(free_model) model m = {0};
    AUTO_CALL(free_names) names n = {0};
    AUTO_BYTES tn_bytes text = {0};
    TRY(read_model(file, path, &m));
    TRY(read_names(vocab, vocab_path, &n));
    TRY(put_tokenizer(&text, &m, &n));
    return tn_tokenizer_from_json(text.data, text.size, config, sizeof config - 1, out);
}
