/* text.h — tokenizers, chat templates, stop strings and samplers: the part of libtrunnion-text between text and token
 * ids.
 *
 * libtrunnion-text requires PCRE2 and utf8proc, and uses only the public headers of libtrunnion. Errors are tn_status
 * values; tn_error() has the text. Threads: several threads may use an object at once through a const pointer.
 *
 * Results of unknown length are appended to a buffer of the caller, which can be reused:
 *   tn_ids ids = {0};                  // empty
 *   … calls that append …
 *   tn_ids_free(&ids); */
#ifndef TRUNNION_TEXT_H
#define TRUNNION_TEXT_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Bytes, by convention UTF-8. data is NULL, or followed by a NUL that size does not count. */
typedef struct tn_bytes {
    char *data;
    size_t size, capacity;
} tn_bytes;

/* Token ids. */
typedef struct tn_ids {
    int32_t *data;
    size_t count, capacity;
} tn_ids;

/* Appends a copy of `size` bytes, or an id. On failure (TN_ERR_MEMORY) the buffer is unchanged. */
TN_API tn_status tn_bytes_append(tn_bytes *b, const void *data, size_t size);
TN_API tn_status tn_ids_append(tn_ids *ids, int32_t id);

/* Free the memory and leave an empty buffer; NULL is allowed. */
TN_API void tn_bytes_free(tn_bytes *b);
TN_API void tn_ids_free(tn_ids *ids);

/* ---- tokenizer --------------------------------------------------------------------------------------------------- */

typedef struct tn_tokenizer tn_tokenizer;

/* Types of tokens; the values are those of GGUF's tokenizer.ggml.token_type. */
typedef enum tn_token_type {
    TN_TOKEN_NORMAL = 1,
    TN_TOKEN_UNKNOWN = 2,      /* replaces text that the vocabulary cannot represent */
    TN_TOKEN_CONTROL = 3,      /* begins, ends or structures a text; plain text is never encoded as one */
    TN_TOKEN_USER_DEFINED = 4, /* matched in the text before anything else, never split */
    TN_TOKEN_UNUSED = 5,
    TN_TOKEN_BYTE = 6 /* one byte, spelled "<0x41>" */
} tn_token_type;

/* Special tokens. */
typedef enum tn_special {
    TN_SPECIAL_BOS,         /* begins a text */
    TN_SPECIAL_EOS,         /* ends a text */
    TN_SPECIAL_END_OF_TURN, /* ends an answer */
    TN_SPECIAL_UNKNOWN,
    TN_SPECIAL_SEPARATOR,
    TN_SPECIAL_PADDING,
    TN_SPECIAL_COUNT
} tn_special;

typedef struct tn_text_slice {
    const char *data;
    size_t size;
} tn_text_slice;

/* A vocabulary to make a tokenizer from; its data is copied. */
typedef struct tn_vocabulary {
    size_t struct_size;
    /* Must be set, as count and tokens.
     * "gpt2": byte-level BPE, the merge with the lowest rank first (Sennrich et al. 2016; Radford et al. 2019).
     * "llama": SentencePiece BPE, the pair with the highest score first (Kudo and Richardson 2018). */
    const char *model;
    const char *pre; /* gpt2: the pre-tokenizer, by its name in GGUF; default NULL: "default" */
    int32_t count;
    const tn_text_slice *tokens; /* [count]; "gpt2": in GPT-2's encoding of bytes as letters */
    const float *scores;         /* [count], "llama" only */
    const int32_t *types;        /* [count] of tn_token_type; default NULL: all are normal */
    const tn_text_slice *merges; /* "gpt2" only: "left right", the best first; merges without a token are ignored */
    int32_t merge_count;
    int32_t special[TN_SPECIAL_COUNT];         /* ids; default -1: none */
    int8_t add_bos, add_eos, add_space_prefix; /* 0 or 1; default -1: as usual for the model and pre-tokenizer */
    const char *chat_template;                 /* default NULL: none */
} tn_vocabulary;
#define TN_VOCABULARY_DEFAULTS                                                                   \
    {                                                                                            \
        TN_OPTIONS_SIZE(tn_vocabulary, chat_template), NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, \
            {-1, -1, -1, -1, -1, -1}, -1, -1, -1, NULL                                           \
    }

/* Creates a tokenizer from a vocabulary. *out: freed with tn_tokenizer_free.
 * Errors: TN_ERR_FORMAT for invalid ids, types or scores; TN_ERR_UNSUPPORTED for an unknown model or pre-tokenizer (the
 * text lists the supported ones); TN_ERR_MEMORY. */
TN_API tn_status tn_tokenizer_new(const tn_vocabulary *vocabulary, tn_tokenizer **out);

/* Creates a tokenizer from the metadata of a GGUF file (tokenizer.ggml.*, tokenizer.chat_template). The file may be
 * closed afterwards. */
TN_API tn_status tn_tokenizer_from_gguf(const tn_gguf *file, tn_tokenizer **out);

/* Creates a tokenizer from the text of a tokenizer.json (`size` bytes), and of its tokenizer_config.json (NULL: none),
 * which names special tokens and the chat template. Supported: the models BPE, WordPiece, Unigram and WordLevel, every
 * normalizer, pre-tokenizer (except UnicodeScripts), post-processor and decoder, added tokens, truncation and padding.
 * Ids are those of Hugging Face's tokenizers library, which defines the format and ignores the declared ids of added
 * tokens. A token has the spelling of the file; several tokens may decode to one character together.
 * Errors: TN_ERR_FORMAT with the file and the byte, or what is invalid; TN_ERR_UNSUPPORTED for an unknown component,
 * for a pattern that PCRE2 cannot express, and for dropout; TN_ERR_MEMORY. */
TN_API tn_status tn_tokenizer_from_json(const char *json, size_t size, const char *config, size_t config_size,
                                        tn_tokenizer **out);

/* Creates a tokenizer from a path: a folder with tokenizer.json (and special_tokens_map.json, tokenizer_config.json,
 * chat_template.jinja and generation_config.json, if they exist) or, of older Marian models, with source.spm and
 * vocab.json; a tokenizer.json (with those next to it); or a GGUF file.
 * Errors: TN_ERR_IO, and those of the two above. Source: transformers.AutoTokenizer. */
TN_API tn_status tn_tokenizer_open(const char *path, tn_tokenizer **out);

TN_API void tn_tokenizer_free(tn_tokenizer *t); /* NULL is allowed */

enum {
    TN_ENCODE_SPECIAL = 1,  /* parse control tokens that are spelled out in the text: for prompts made by a template,
                              never for untrusted text */
    TN_ENCODE_ENDS = 2,     /* add the begin and end tokens that the model was trained with */
    TN_ENCODE_TRUNCATE = 4, /* tn_tokenizer_encode_pair: truncate as the file declares */
    TN_ENCODE_PAD = 8       /* tn_tokenizer_encode_pair: pad as the file declares */
};

/* Appends the tokens of a text of at most 700 MB. Bytes that are not valid UTF-8 become U+FFFD each ("gpt2"; overlong
 * forms are decoded, surrogates are bytes) or byte tokens ("llama"). Text that the vocabulary cannot represent becomes
 * the unknown token ("llama") or is omitted ("gpt2"), as in llama.cpp. Uses memory in proportion to the text, up to 80
 * bytes per byte of its longest word ("llama": of the whole text). On failure `out` is unchanged.
 * Errors: TN_ERR_ARGUMENT; TN_ERR_MEMORY; TN_ERR_UNSUPPORTED if the pre-tokenizer's pattern exceeds its limit on this
 * text. */
TN_API tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, size_t size, unsigned flags, tn_ids *out);

/* Input of an encoder model, three lists of equal length: token ids; token type ids (which of two texts a token belongs
 * to); attention mask (1 for tokens, 0 for padding). Initialize it with {0}. */
typedef struct tn_encoding {
    tn_ids ids, types, mask;
} tn_encoding;

TN_API void tn_encoding_free(tn_encoding *e); /* leaves it empty; NULL is allowed */

typedef struct tn_pair_options {
    size_t struct_size;
    unsigned flags;     /* TN_ENCODE_…; default TN_ENCODE_ENDS */
    int64_t max_tokens; /* including begin and end tokens: the longer text is truncated until both fit; default 0: no
                           limit except that of TN_ENCODE_TRUNCATE */
} tn_pair_options;
#define TN_PAIR_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_pair_options, max_tokens), TN_ENCODE_ENDS, 0 }

/* Appends the tokens of one text, or of two that belong together (second.data not NULL), such as question and answer.
 * o: NULL for the defaults. On failure `out` is unchanged. Errors: those of tn_tokenizer_encode; TN_ERR_UNSUPPORTED for
 * a pair without a tokenizer.json. */
TN_API tn_status tn_tokenizer_encode_pair(const tn_tokenizer *t, tn_text_slice first, tn_text_slice second,
                                          const tn_pair_options *o, tn_encoding *out);

enum { TN_DECODE_SPECIAL = 1 /* write the spelling of control tokens; otherwise they are omitted */ };

/* Appends the text of `count` ids. Tokens may end inside a character, so the result can be any bytes. A space that
 * encoding added before a text is removed. Errors: TN_ERR_ARGUMENT for an id outside the vocabulary; TN_ERR_MEMORY. */
TN_API tn_status tn_tokenizer_decode(const tn_tokenizer *t, const int32_t *ids, size_t count, unsigned flags,
                                     tn_bytes *out);

/* State of a streaming decoder: bytes of an incomplete character are held back. Initialize it with {0}; it owns no
 * memory. */
typedef struct tn_text_stream {
    uint8_t pending[4];
    int pending_count;
    bool begun; /* not the first token: decoders separate words by a space, or remove one from the first */
} tn_text_stream;

/* Appends the text that is complete after one more token: bytes that were held back and the token's text, except an
 * incomplete character at its end. Over a whole text, followed by tn_tokenizer_stream_end, the result is the text of
 * tn_tokenizer_decode (except the space in front). Errors: those of tn_tokenizer_decode. */
TN_API tn_status tn_tokenizer_stream(const tn_tokenizer *t, tn_text_stream *s, int32_t id, unsigned flags,
                                     tn_bytes *out);
/* Appends the bytes that are still held back, and resets the state. */
TN_API tn_status tn_tokenizer_stream_end(tn_text_stream *s, tn_bytes *out);

TN_API int32_t tn_tokenizer_count(const tn_tokenizer *t);
/* "gpt2" or "llama"; of a tokenizer.json "BPE", "WordPiece", "Unigram" or "WordLevel" */
TN_API const char *tn_tokenizer_model(const tn_tokenizer *t);
TN_API const char *tn_tokenizer_rule(const tn_tokenizer *t); /* name of the pre-tokenizer of "gpt2"; otherwise "" */
/* 0 for an id outside the vocabulary. */
TN_API tn_token_type tn_tokenizer_type(const tn_tokenizer *t, int32_t id);
/* Returns the spelling of a token in the vocabulary, valid as long as the tokenizer; NULL for an id outside it. */
TN_API const char *tn_tokenizer_spelling(const tn_tokenizer *t, int32_t id, size_t *size);
/* Returns the token with this spelling; -1 if there is none. */
TN_API int32_t tn_tokenizer_find(const tn_tokenizer *t, const char *spelling, size_t size);
/* Returns the id of a special token; -1 if there is none. */
TN_API int32_t tn_tokenizer_special(const tn_tokenizer *t, tn_special which);
/* Returns whether generation ends with this token: end of text, end of turn, or a control token with this meaning. */
TN_API bool tn_tokenizer_ends(const tn_tokenizer *t, int32_t id);
/* Returns whether TN_ENCODE_ENDS adds the begin token. */
TN_API bool tn_tokenizer_adds_bos(const tn_tokenizer *t);
/* Returns the model's chat template; NULL if it has none. */
TN_API const char *tn_tokenizer_chat_template(const tn_tokenizer *t);

/* ---- chat templates ---------------------------------------------------------------------------------------------- */

/* A chat template converts a conversation to the prompt format that a model was trained on. Templates are written in
 * Jinja. Supported is what model files use: set, for, if, macro, filter, with, break and continue, the usual filters
 * and tests, Python's methods of strings, lists and dicts, namespace, range, raise_exception, strftime_now. Blocks trim
 * their line as in transformers (trim_blocks, lstrip_blocks). Unsupported syntax is an error when the template is
 * created. A template can access only its variables, with limits on steps, memory and output. */
typedef struct tn_chat_template tn_chat_template;

/* Compiles a template; the source is not kept. *out: freed with tn_chat_template_free.
 * Errors: TN_ERR_FORMAT naming line and column, TN_ERR_MEMORY. */
TN_API tn_status tn_chat_template_new(const char *source, size_t size, tn_chat_template **out);
TN_API void tn_chat_template_free(tn_chat_template *t); /* NULL is allowed */

typedef struct tn_chat_template_options {
    size_t struct_size;
    /* the time for strftime_now, in seconds since 1970; default TN_CHAT_TEMPLATE_NOW: the current time */
    int64_t now;
    int64_t max_steps;  /* default 20 million, a second or two */
    int64_t max_memory; /* bytes for values; default 256 MiB */
} tn_chat_template_options;
#define TN_CHAT_TEMPLATE_NOW INT64_MIN
#define TN_CHAT_TEMPLATE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_chat_template_options, max_memory), TN_CHAT_TEMPLATE_NOW, 20000000, (int64_t)256 << 20 }

/* Renders the template with the variables of a JSON object (`size` bytes; NULL: none), and appends the result. options
 * may be NULL. Errors: TN_ERR_FORMAT with line and column of what cannot be computed; TN_ERR_ARGUMENT with the
 * template's own message if it raises an exception; TN_ERR_MEMORY. */
TN_API tn_status tn_chat_template_render(const tn_chat_template *t, const char *json, size_t size,
                                         const tn_chat_template_options *options, tn_bytes *out);

typedef struct tn_chat_message {
    const char *role; /* "system", "user", "assistant", … */
    const char *content;
} tn_chat_message;

typedef struct tn_chat {
    size_t struct_size;
    const tn_chat_message *messages; /* default NULL, 0 */
    int count;
    bool add_generation_prompt;    /* end with the beginning of an answer; default false */
    const tn_tokenizer *tokenizer; /* for the spelling of bos_token, eos_token …; default NULL: undefined */
    const char *variables; /* further variables, or richer messages, as a JSON object: tools …; default NULL: none */
} tn_chat;
#define TN_CHAT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_chat, variables), NULL, 0, false, NULL, NULL }

/* Renders the template for a conversation. Encode the result with TN_ENCODE_SPECIAL and without TN_ENCODE_ENDS, because
 * templates write the begin token themselves. (Text of the conversation that spells a control token becomes that
 * token.)
 * Source: transformers, apply_chat_template. */
TN_API tn_status tn_chat_template_apply(const tn_chat_template *t, const tn_chat *chat,
                                        const tn_chat_template_options *options, tn_bytes *out);

/* ---- stop strings ------------------------------------------------------------------------------------------------ */

/* Ends a generated text at the first of some strings, which need not begin or end where tokens do. Text that may be the
 * beginning of a stop string is withheld until more is known, so no part of a stop string is ever shown. */
typedef struct tn_stop_strings tn_stop_strings;

/* strings [count], copied. *out: freed with tn_stop_strings_free; used by one thread at a time.
 * Errors: TN_ERR_ARGUMENT for an empty string or more than 1 MiB of them, TN_ERR_MEMORY. */
TN_API tn_status tn_stop_strings_new(const tn_text_slice *strings, int count, tn_stop_strings **out);
TN_API void tn_stop_strings_free(tn_stop_strings *s); /* NULL is fine */

/* Takes `size` further bytes of the text and appends to `out` what can be shown by now. *found: -1, or the index of the
 * stop string that was completed first: then `out` ends where that string begins, what follows it is dropped, and
 * further calls append nothing. Of strings that begin at the same byte the one that is completed first counts.
 * Errors: TN_ERR_MEMORY. */
TN_API tn_status tn_stop_strings_feed(tn_stop_strings *s, const char *data, size_t size, tn_bytes *out, int *found);

/* The text ends: appends what was withheld, and begins anew. */
TN_API tn_status tn_stop_strings_end(tn_stop_strings *s, tn_bytes *out);

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

/* A context-free grammar that a generated text has to follow, in GBNF, llama.cpp's notation:
 *   root   ::= "{" pair ("," pair)* "}"      # rules; the text is a root
 *   pair   ::= [a-z]+ ": " value{1,3}        # classes, [^…] all others, . any; * + ? {m} {m,} {m,n}
 *   value  ::= "yes" | "no" | "\u00e9" | (value "!")
 * Escapes: \n \r \t \\ \" \[ \] \- \^ \/ \xHH \uHHHH \UHHHHHHHH. A rule ends with its line, except in parentheses
 * and before or after |. Limits: 1 MiB of text, 2^14 rules, 2^18 elements, 64 nested parentheses, 1000 repetitions. */
typedef struct tn_grammar tn_grammar;

/* Compiles a grammar; the source is not kept. *out: freed with tn_grammar_free. Errors: TN_ERR_FORMAT naming line and
 * byte, or a rule that is not defined; TN_ERR_UNSUPPORTED for left recursion and beyond the limits; TN_ERR_MEMORY. */
TN_API tn_status tn_grammar_new(const char *source, size_t size, tn_grammar **out);
TN_API void tn_grammar_free(tn_grammar *g); /* NULL is fine */

/* Appends the grammar of the JSON texts that match a JSON schema (`size` bytes), with at most one blank after a comma
 * or colon. Known are type, properties (written in the schema's order; others are not written), required, items,
 * minItems, maxItems, minLength, maxLength (to 1000), enum and const of plain values, anyOf, oneOf (as anyOf), $ref to
 * #/$defs and #/definitions, and notes as title and description.
 * Errors: TN_ERR_UNSUPPORTED naming a keyword that is not known; TN_ERR_FORMAT; TN_ERR_MEMORY. */
TN_API tn_status tn_grammar_from_json_schema(const char *json, size_t size, tn_bytes *out);

/* How far a text has come in a grammar: all ways in which it could be read. At most 4096 ways and 2^20 states, beyond
 * which calls fail with TN_ERR_UNSUPPORTED. Used by one thread at a time. */
typedef struct tn_grammar_state tn_grammar_state;

/* The begin of a text. g and t must live as long. t may be NULL: then only bytes can be taken.
 * *out: freed with tn_grammar_state_free. */
TN_API tn_status tn_grammar_state_new(const tn_grammar *g, const tn_tokenizer *t, tn_grammar_state **out);
TN_API void tn_grammar_state_free(tn_grammar_state *s); /* NULL is fine */
TN_API tn_status tn_grammar_state_reset(tn_grammar_state *s);

/* Whether the text may end here. */
TN_API bool tn_grammar_may_end(const tn_grammar_state *s);

/* Goes on with a token's text, or with bytes. TN_ERR_ARGUMENT where the grammar does not allow them: then the state is
 * as before. */
TN_API tn_status tn_grammar_accept(tn_grammar_state *s, int32_t id);
TN_API tn_status tn_grammar_accept_bytes(tn_grammar_state *s, const char *text, size_t size);

/* Whether a token may come next; control tokens never do. Changes nothing. */
TN_API tn_status tn_grammar_allows(tn_grammar_state *s, int32_t id, bool *allowed);

/* Sets the logits of all tokens that may not come next to minus infinity. ends [count], or NULL: tokens that end the
 * text; they stay where it may end. */
TN_API tn_status tn_grammar_filter(tn_grammar_state *s, const bool *ends, float *logits, int32_t count);

/* ---- sampler ----------------------------------------------------------------------------------------------------- */

/* How the next token is chosen from a model's logits. By default the token with the greatest logit.
 *
 * The steps, in this order: penalties (repetition, frequency, presence, DRY) change logits; temperature divides them;
 * top_k, top_p, min_p and mirostat each keep the more probable tokens; one of those is drawn with its probability. This
 * is Hugging Face's order. (llama.cpp applies the temperature last, so that with top_p and min_p other tokens may stay:
 * at a temperature below 1 more of them there, above 1 fewer. Both agree at temperature 1.) */
typedef struct tn_sampler_options {
    size_t struct_size;
    double temperature; /* default 0: the first of the greatest logits, nothing is drawn */
    int32_t top_k;      /* keep the k most probable tokens; default 0: all */
    /* nucleus sampling (Holtzman et al. 2020): keep the smallest set of most probable tokens whose probabilities add up
     * to this, in [0, 1]; 0: the most probable one; default 1: all */
    double top_p;
    double min_p; /* keep tokens at least this fraction as probable as the best (Nguyen et al. 2024); default 0: all */
    double repeat_penalty; /* positive logits of recent tokens are divided by it, others multiplied (Keskar et al.
                              2019); default 1: as they are */
    int32_t repeat_window; /* how many recent tokens the first three penalties look at; default 64 */
    uint64_t seed;         /* of the draws: the same seed and logits give the same tokens; default 0 */
    /* OpenAI's penalties: a token that occurs n > 0 times among the recent ones loses n * frequency_penalty +
     * presence_penalty from its logit. Both in [-100, 100]; default 0. */
    double frequency_penalty, presence_penalty;
    /* DRY ("don't repeat yourself", p-e-w 2024): if the text ends with n >= dry_allowed_length tokens that occurred
     * before, the token that followed them then loses dry_multiplier * dry_base^(n - dry_allowed_length). */
    double dry_multiplier;      /* default 0: off */
    double dry_base;            /* at least 1; default 1.75 */
    int32_t dry_allowed_length; /* at least 1; default 2 */
    int32_t dry_window;         /* how many recent tokens it looks at; default 4096 */
    /* Tokens that end such a match and are never penalized, as line breaks are: [dry_breaker_count], copied; default
     * NULL, 0. */
    const int32_t *dry_breakers;
    int32_t dry_breaker_count;
    /* Mirostat 2 (Basu et al. 2021): keeps the mean surprise of the drawn tokens, -log2 of their probability before
     * this cut, near mirostat_tau by a limit on the surprise that each draw corrects by mirostat_eta times its error.
     * tau 0, the default: off; eta in [0, 1], default 0.1. */
    double mirostat_tau, mirostat_eta;
} tn_sampler_options;
#define TN_SAMPLER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_sampler_options, mirostat_eta), 0, 0, 1, 0, 1, 64, 0, 0, 0, 0, 1.75, 2, 4096, NULL, 0, 0, 0.1 }

typedef struct tn_sampler tn_sampler;

/* Makes a sampler (options may be NULL). *out: freed with tn_sampler_free; used by one thread at a time.
 * Errors: TN_ERR_ARGUMENT for an option out of range, TN_ERR_MEMORY. */
TN_API tn_status tn_sampler_new(const tn_sampler_options *options, tn_sampler **out);
TN_API void tn_sampler_free(tn_sampler *s); /* NULL is fine */

/* Tells the sampler the next token of the text, for the penalties: tokens of the prompt, and each one picked. */
TN_API void tn_sampler_accept(tn_sampler *s, int32_t id);

/* Forgets the text, and mirostat's limit; draws go on where they were. For another text with the same options. */
TN_API void tn_sampler_reset(tn_sampler *s);

/* Picks a token from logits[count]; does not accept it. Takes time in proportion to count (times a logarithm for what
 * top_k and top_p keep). Draw n uses block n of Philox4x32-10 (Salmon et al. 2011) keyed by the seed.
 * Errors: TN_ERR_ARGUMENT when a logit is NaN or none is above minus infinity; TN_ERR_MEMORY. */
TN_API tn_status tn_sampler_pick(tn_sampler *s, const float *logits, int32_t count, int32_t *id);

/* A token and the natural logarithm of its probability. */
typedef struct tn_logprob {
    int32_t id;
    double logprob;
} tn_logprob;

/* Log probabilities by the model itself, softmax(logits), before any step of a sampler: *own (may be NULL) of token
 * `id`, and top[n] (NULL for n = 0) of the n most probable tokens, descending, ties by id. Computed in f64.
 * Errors: TN_ERR_ARGUMENT for an id outside the logits, n > count, NaN, or no logit above minus infinity. */
TN_API tn_status tn_logprobs(const float *logits, int32_t count, int32_t id, double *own, tn_logprob *top, int32_t n);

#ifdef __cplusplus
}
#endif
#endif
