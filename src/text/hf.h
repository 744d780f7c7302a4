/* hf.h — inside a tokenizer that a tokenizer.json describes: a pipeline of steps, each a row of a table by its name.
 *
 * Encoding: added tokens are found in the text (added_tokens.c); the text between them is rewritten by the normalizers
 * (normalizer.c) and split into words by the pre-tokenizers (pre_tokenizer.c); the model turns each word into tokens
 * (token_model.c); the post-processors add the tokens that the model was trained with. Decoding: the decoders turn
 * tokens into text (both decode.c). hf_read.c builds the pipeline from the file. Every part is defined by the behaviour
 * of Hugging Face's tokenizers library; names of steps and options are those of the file. */
#ifndef TN_TEXT_HF_H
#define TN_TEXT_HF_H

#include "text/tokenizer.h"
#include "trunnion/json.h"

enum {
    TN_HF_MAX_STEPS = 64,   /* of one kind, all sequences taken together */
    TN_HF_MAX_DEPTH = 16,   /* of sequences in sequences */
    TN_HF_MAX_ITEMS = 4096, /* of a template */
    TN_HF_MAX_GROWTH = 64   /* times that the normalizers together may make a text longer (and 4 KiB) */
};

/* What becomes of the matches at which a text is cut. */
typedef enum tn_hf_behavior {
    TN_HF_REMOVED,
    TN_HF_ISOLATED,
    TN_HF_WITH_PREVIOUS,
    TN_HF_WITH_NEXT,
    TN_HF_CONTIGUOUS
} tn_hf_behavior;

typedef struct tn_hf tn_hf;
typedef struct tn_hf_work tn_hf_work;
typedef struct tn_hf_step tn_hf_step;

/* A step; which fields it uses, its row says. */
struct tn_hf_step {
    const struct tn_hf_row *row;
    tn_txt_pattern *pattern;
    tn_bytes text, more;
    uint32_t *units; /* of a character map: its tree */
    size_t unit_count;
    int64_t n, m;
    uint32_t c; /* a character */
    tn_hf_behavior behavior;
    bool on[4];
    int index; /* among its kind */
};

/* Texts one after the other, while tokens are decoded. */
typedef struct tn_hf_texts {
    tn_bytes text;
    size_t *ends;
    size_t count, capacity;
    bool begun, whole; /* of tn_hf_decode */
} tn_hf_texts;

/* A kind of step: reads its options (`v` is an object), and does its work by one of the three functions. */
typedef struct tn_hf_row {
    const char *name;
    tn_status (*read)(tn_hf_step *s, const tn_json *v);
    /* Normalizers: append to `out` what becomes of the text. *first: whether the text's first byte comes from the
     * first of what was given to encode; cleared when that goes away. */
    tn_status (*rewrite)(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, tn_bytes *out, bool *first);
    /* Pre-tokenizers: hand the pieces of a text on to the next step, tn_hf_pass. */
    tn_status (*cut)(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, bool first);
    /* Decoders: texts of tokens to texts. */
    tn_status (*decode)(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out);
} tn_hf_row;

typedef struct tn_hf_steps {
    tn_hf_step *items;
    int count;
} tn_hf_steps;

/* An added token. */
typedef struct tn_hf_added {
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} tn_hf_added;

/* A part of what is put together at the end: a token, or a text's tokens. */
typedef struct tn_hf_item {
    int32_t id;    /* -1: the tokens of text `which` */
    int32_t type;  /* what an encoder is told of the token; */
    uint8_t which; /* 0 or 1 */
} tn_hf_item;

typedef struct tn_hf_items {
    tn_hf_item *items;
    size_t count, capacity;
} tn_hf_items;

typedef tn_status (*tn_hf_model)(tn_hf_work *w, const char *word, size_t size);

struct tn_hf {
    tn_hf_steps normalizers, cutters, decoders;
    bool has_decoder;
    bool letters_later; /* the last pre-tokenizer writes bytes as letters; the model reads bytes instead */
    const char *model_name;
    tn_hf_model model;
    tn_txt_special words;    /* the model's vocabulary as a tree: WordPiece, Unigram */
    uint32_t continuing;     /* WordPiece: the node after the prefix of what continues a word; TN_TXT_NONE: none */
    tn_bytes prefix, suffix; /* of BPE and WordPiece: what continues, what ends a word */
    int64_t max_chars;       /* WordPiece: of a word */
    int32_t unknown;         /* id, -1 for none */
    bool fuse_unknown, byte_fallback;
    double *scores, unknown_score; /* Unigram */

    tn_txt_special raw, normal; /* added tokens found in the text as it is, and in the normalized one */
    tn_hf_added *added;         /* in the order of the file; what the trees find */
    int32_t added_count;
    int32_t added_first, added_end; /* ids that are added tokens' alone */
    int32_t *renamed; /* [vocabulary] of a token that decodes otherwise than it is spelled: place in names … */
    tn_bytes names;   /* … each with a NUL after; renamed NULL: there are none */

    tn_hf_items single, pair;
    struct {
        int64_t max_length; /* 0: none is declared */
        int strategy;       /* 0: the longest first, 1: the first text only, 2: the second only */
        bool left;
    } truncation;
    struct {
        bool declared, left;
        int64_t length, multiple; /* 0: none */
        int32_t id, type;
    } padding;
};

/* One encoding at work. */
struct tn_hf_work {
    tn_txt_work base; /* tokenizer, out, room for BPE */
    const tn_hf *hf;
    unsigned flags;
    tn_txt_matcher matcher;
    tn_bytes normal[2];                /* what normalizers write, in turn */
    tn_bytes scratch[TN_HF_MAX_STEPS]; /* what a pre-tokenizer has rewritten */
    tn_bytes word;                     /* the model's own */
    int32_t *codes;                    /* of characters, while they are composed */
    size_t code_capacity;
    struct tn_hf_node *nodes; /* Unigram's */
    size_t node_capacity;
    size_t room; /* bytes that a normalized text may have */
};

/* ---- unicode.c: Unicode's properties, as Rust's char and the libraries of tokenizers define them ----------------- */

bool tn_hf_is_space(uint32_t c);       /* White_Space */
bool tn_hf_is_numeric(uint32_t c);     /* Nd, Nl, No */
bool tn_hf_is_punctuation(uint32_t c); /* P*, and ASCII's symbols */
bool tn_hf_is_other(uint32_t c);       /* Cc, Cf, Co */
bool tn_hf_is_mark(uint32_t c);        /* M* */
bool tn_hf_is_nonspacing(uint32_t c);  /* Mn */
bool tn_hf_is_later_form(uint32_t c);  /* decomposes, but did not yet in the library's tables */
bool tn_hf_is_word(uint32_t c);        /* \w of regular expressions: UTS 18's word character */
uint32_t tn_hf_lower(uint32_t c);
/* The character at the begin of a text; a byte that begins none is its own number. At least 1 byte. */
static inline size_t tn_hf_char(const char *text, size_t size, uint32_t *c) {
    *c = (uint8_t)text[0];
    if (*c < 0x80) return 1;
    size_t length = tn_txt_utf8(text, size, c);
    return length > 0 ? length : 1;
}
bool tn_hf_is_ascii(const char *text, size_t size);
static inline tn_status tn_hf_put(tn_bytes *out, uint32_t c) {
    char bytes[4];
    return tn_bytes_append(out, bytes, tn_txt_utf8_write(c, bytes));
}
static inline bool tn_hf_begins(const char *text, size_t size, const tn_bytes *with) {
    return size >= with->size && (with->size == 0 || !memcmp(text, with->data, with->size));
}

/* ---- regex.c ----------------------------------------------------------------------------------------------------- */

/* A "pattern" of the file: {"String": …} or {"Regex": …}, the latter in Oniguruma's syntax, translated to PCRE2's. */
tn_status tn_hf_read_pattern(const tn_json *v, tn_txt_pattern **out);

/* Walks the matches of a pattern as Oniguruma's binding does: an empty match right after a match does not count. */
typedef struct tn_hf_matches {
    size_t from, last;
    bool any;
} tn_hf_matches;
tn_status tn_hf_next_match(const tn_txt_pattern *p, tn_txt_matcher *m, const char *text, size_t size,
                           tn_hf_matches *state, bool *found, size_t *begin, size_t *end);

/* ---- the parts --------------------------------------------------------------------------------------------------- */

extern const tn_hf_row tn_hf_normalizers[], tn_hf_cutters[], tn_hf_decoders[]; /* up to one with no name */

/* normalizer.c: the whole chain over a text; *text and *size become what came out, which lives until the next call. */
tn_status tn_hf_normalize(tn_hf_work *w, const char **text, size_t *size, bool *first);
/* pre_tokenizer.c: hands a piece to step `index`, after the last one to the model. */
tn_status tn_hf_pass(tn_hf_work *w, int index, const char *text, size_t size, bool first);
/* token_model.c: fills in the model and its vocabulary. */
tn_status tn_hf_read_model(tn_tokenizer *t, const tn_json *root);
/* added_tokens.c: a text's tokens, without what the post-processors add. */
tn_status tn_hf_encode_text(tn_hf_work *w, const char *text, size_t size);
tn_status tn_hf_fill_added(tn_tokenizer *t);
/* decode.c */
tn_status tn_hf_read_post(tn_hf *hf, const tn_json *root);
tn_status tn_hf_encode(const tn_tokenizer *t, const char *text, size_t size, unsigned flags, tn_ids *out);
/* decode.c: appends the text of tokens; `whole`: the ids are the complete text, else part of a stream, some of which
 * was shown before if `begun`. */
tn_status tn_hf_decode(const tn_tokenizer *t, const int32_t *ids, size_t count, unsigned flags, bool whole, bool begun,
                       tn_bytes *out);

void tn_hf_work_free(tn_hf_work *w);
void tn_hf_free(tn_hf *hf);

/* sentencepiece.c: a tokenizer of a SentencePiece model's bytes and the ids of vocab.json; paths: for messages. */
tn_status tn_hf_from_sentencepiece(const tn_bytes *file, const char *path, const tn_json *vocab, const char *vocab_path,
                                   tn_tokenizer **out);

/* ---- reading the file (hf_read.c) -------------------------------------------------------------------------------- */

/* A member that is there; absent and null mean the same in these files. */
const tn_json *tn_hf_get(const tn_json *v, const char *key);
/* A string's bytes; NULL and 0 if it is not a string. The key of an object's member. */
tn_text_slice tn_hf_slice(const tn_json *v);
tn_text_slice tn_hf_key(const tn_json *v, size_t i);
bool tn_hf_is(const tn_json *v, const char *text); /* a string of these bytes */

/* Common to readers of steps: a string option into bytes; its absence is an error unless `otherwise` is given. */
tn_status tn_hf_read_text(const tn_json *v, const char *key, const char *otherwise, tn_bytes *out);
/* An option of exactly one character. */
tn_status tn_hf_read_char(const tn_json *v, const char *key, uint32_t *out);
tn_status tn_hf_read_nothing(tn_hf_step *s, const tn_json *v);
tn_status tn_hf_read_replace(tn_hf_step *s, const tn_json *v); /* "content" and "pattern" */

#endif
