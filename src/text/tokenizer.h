/* tokenizer.h — inside a tokenizer: the vocabulary, its look-ups, and the data shared by both merge algorithms.
 *
 * The text is split at added tokens (added_tokens.c). The text between them is split into words by the model's rule
 * (pre_tokenizer.c) and merged by rank, or merged without splitting by score (both bpe.c). Both algorithms merge
 * neighbours from a heap of candidates, so the time is O(n log n) for any text. */
#ifndef TN_TEXT_TOKENIZER_H
#define TN_TEXT_TOKENIZER_H

#include "text/text_common.h"

enum {
    TN_TXT_MAX_TOKENS = 1 << 26,
    TN_TXT_MAX_SPECIAL = 512, /* bytes of a token that is found in the text itself; bounds the work at each byte */
    TN_TXT_MAX_PATTERNS = 4   /* of a rule */
};

#define TN_TXT_NONE UINT32_MAX

/* A rule that cuts text into words: its patterns, each applied inside the pieces that those before it have left. */
typedef struct tn_txt_rule {
    const char *const *patterns;
    int count;
    bool whole_words; /* a word that is a token is taken as it is, whatever the merges say */
    bool add_bos;     /* unless the file says otherwise */
} tn_txt_rule;

typedef struct tn_txt_cutter tn_txt_cutter; /* a rule, compiled */

typedef struct tn_txt_merge {
    int32_t left, right, result;
} tn_txt_merge;

/* A node of the tree of special tokens; children are found by (node, byte) in a table of their own. */
typedef struct tn_txt_special {
    uint64_t *keys; /* (node << 8 | byte) + 1, 0 for an empty place */
    uint32_t *children;
    size_t slots; /* a power of two; 0: no special tokens */
    int32_t *ids; /* of a node: the token that ends there, -1 for none */
    size_t nodes, capacity;
    bool begins[256];
} tn_txt_special;

struct tn_tokenizer {
    struct tn_hf *hf; /* made from a tokenizer.json (hf.h), which then does the work; else NULL */
    bool by_score;    /* "llama"; else "gpt2" */
    bool add_bos, add_eos, add_space;
    bool whole_words;
    char *rule_name;
    char *chat_template; /* NULL for none */
    tn_txt_cutter *cutter;

    int32_t count;
    char *spellings;   /* all tokens' bytes, each with a NUL after */
    size_t *places;    /* [count + 1] where they begin */
    uint8_t *types;    /* of tn_token_type */
    uint8_t *ends;     /* ends a generation */
    float *scores;     /* by_score only */
    size_t longest;    /* bytes of the longest token */
    int32_t *slots;    /* ids by the hash of their spelling, -1 for an empty place */
    size_t slot_count; /* a power of two */
    int32_t special[TN_SPECIAL_COUNT];
    int32_t bytes[256];                  /* the token of a single byte, -1 for none */
    tn_txt_special always, with_control; /* tokens found in every text; and with TN_ENCODE_SPECIAL */

    tn_txt_merge *merges; /* in the order of their rank */
    int32_t *merge_slots; /* ranks by the hash of the pair */
    size_t merge_count, merge_slot_count;
};

/* ---- tokenizer.c ------------------------------------------------------------------------------------------------ */

tn_status tn_txt_vocabulary_fill(tn_tokenizer *t, const tn_vocabulary *v);
void tn_txt_vocabulary_free(tn_tokenizer *t);
/* A table for up to `count` merges; each is added after those before. Of equal pairs the first or the last counts. */
tn_status tn_txt_merges_new(tn_tokenizer *t, size_t count);
void tn_txt_merges_add(tn_tokenizer *t, const tn_txt_merge *m, bool last_counts);
/* The token with this spelling that a text may become (no control, unknown, unused or byte token; of a tokenizer.json:
 * any token of its model); -1 for none. */
int32_t tn_txt_find_plain(const tn_tokenizer *t, const char *spelling, size_t size);
/* The rank of a merge, -1 for none. */
int32_t tn_txt_find_merge(const tn_tokenizer *t, int32_t left, int32_t right);
/* GPT-2's letter for a byte, and the byte of a letter (-1: the letter stands for itself). */
uint32_t tn_txt_letter_of_byte(uint8_t byte);
int tn_txt_byte_of_letter(uint32_t letter);

/* ---- added_tokens.c ---------------------------------------------------------------------------------------------- */

tn_status tn_txt_special_add(tn_txt_special *s, const char *spelling, size_t size, int32_t id);
/* The longest special token at the begin of text; -1 for none. */
int32_t tn_txt_special_match(const tn_txt_special *s, const char *text, size_t size, size_t *length);
/* The child of a node (0: the root), TN_TXT_NONE for none; ids[node] is the token that ends there. */
uint32_t tn_txt_special_step(const tn_txt_special *s, uint32_t node, uint8_t byte);
void tn_txt_special_free(tn_txt_special *s);

/* ---- regex.c ----------------------------------------------------------------------------------------------------- */

/* Unicode's White_Space, as the inside of a class of PCRE2, whose own \s has one character more. */
#define TN_TXT_SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

typedef struct tn_txt_pattern tn_txt_pattern; /* a regular expression, compiled */

/* Compiles an expression in PCRE2's syntax. *out: freed with tn_txt_pattern_free. */
tn_status tn_txt_pattern_new(const char *text, size_t size, tn_txt_pattern **out);
void tn_txt_pattern_free(tn_txt_pattern *p);

/* The working memory of matching; initialize it with {0}. Its limits bound the time on hostile texts. */
typedef struct tn_txt_matcher {
    void *found, *limits;
} tn_txt_matcher;

/* Makes a matcher ready for texts of up to `size` bytes. */
tn_status tn_txt_matcher_set(tn_txt_matcher *m, size_t size);
void tn_txt_matcher_free(tn_txt_matcher *m);

/* The next match in a valid text at or after `from`. *found: whether there is one, at *begin to *end. */
tn_status tn_txt_match(const tn_txt_pattern *p, tn_txt_matcher *m, const char *text, size_t size, size_t from,
                       bool *found, size_t *begin, size_t *end);

/* ---- pre_tokenizer.c --------------------------------------------------------------------------------------------- */

/* The rule of that name; NULL after a failure that lists the known ones. */
const tn_txt_rule *tn_txt_find_rule(const char *name);
tn_status tn_txt_cutter_new(const tn_txt_rule *rule, tn_txt_cutter **out);
void tn_txt_cutter_free(tn_txt_cutter *c);

typedef tn_status (*tn_txt_word)(void *ctx, const char *word, size_t size);
/* Cuts a text (bytes that are no UTF-8 become U+FFFD) and hands each word on. */
tn_status tn_txt_cut(const tn_txt_cutter *c, const char *text, size_t size, tn_txt_word take, void *ctx);

/* ---- bpe.c ------------------------------------------------------------------------------------------------------- */

/* A piece of the word that is being merged. */
typedef struct tn_txt_symbol {
    int32_t id;           /* -1: no token */
    uint32_t prev, next;  /* neighbours, TN_TXT_NONE at the ends */
    uint32_t start, size; /* bytes of the text (SentencePiece), else size counts the symbols that it was made of */
} tn_txt_symbol;

/* A candidate: two neighbours that may become one. The least key goes first. */
typedef struct tn_txt_candidate {
    uint64_t key;  /* rank or inverted score, then the index of the left symbol: ties go to the left */
    uint32_t size; /* of both; a candidate whose symbols have changed since is stale */
    int32_t id;    /* what they become */
} tn_txt_candidate;

/* Room for merging, kept from word to word. */
typedef struct tn_txt_work {
    const tn_tokenizer *tokenizer;
    tn_ids *out;
    tn_txt_symbol *symbols;
    size_t symbol_capacity;
    tn_txt_candidate *heap;
    size_t heap_count, heap_capacity;
    tn_bytes text; /* bpe.c: with spaces escaped */
} tn_txt_work;

void tn_txt_work_free(tn_txt_work *w);

tn_status tn_txt_bpe(void *work, const char *word, size_t size); /* a tn_txt_word */
/* Merges the first `count` of the symbols, which have their ids, and appends what they become. */
tn_status tn_txt_bpe_symbols(tn_txt_work *w, uint32_t count);
tn_status tn_txt_sentence(tn_txt_work *w, const char *text, size_t size, bool space_in_front);

/* ---- unicode.c --------------------------------------------------------------------------------------------------- */

/* Length of the well-formed UTF-8 character at the begin of text, 0 for none; *c (may be NULL) is its code point. */
size_t tn_txt_utf8(const char *text, size_t size, uint32_t *c);
/* Writes a code point, at most 4 bytes; returns their number. */
size_t tn_txt_utf8_write(uint32_t c, char *out);
/* Bytes at the begin of text that are well-formed UTF-8. */
size_t tn_txt_utf8_valid(const char *text, size_t size);

#endif
