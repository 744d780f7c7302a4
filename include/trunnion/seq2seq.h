/* seq2seq.h — encoder-decoder language models (T5, flan-T5, mT5, UMT5, BART, mBART, Marian, Pegasus,
 * M2M-100, NLLB): a text goes to the encoder, the answer comes from the decoder, token by token.
 *
 * Part of libtrunnion-text; it uses only libtrunnion's public interface.
 *
 *   tn_seq2seq *m;
 *   tn_seq2seq_open("flan-t5-small", NULL, &m);
 *   tn_seq2seq_encode(m, ids, count);                     // of a tokenizer, with the token that ends a text
 *   tn_seq2seq_get_facts(m, &facts);
 *   for (id = facts.start; !tn_seq2seq_ends(m, id); id = best(logits)) tn_seq2seq_step(m, id, &logits);
 *   tn_seq2seq_close(m);
 *
 * Threads: one thread at a time may use a model. */
#ifndef TRUNNION_SEQ2SEQ_H
#define TRUNNION_SEQ2SEQ_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_seq2seq tn_seq2seq;

enum { TN_SEQ2SEQ_TEXT = 2048 /* tokens of a text at most: attention keeps a bias for each pair of tokens */ };

typedef struct tn_seq2seq_options {
    size_t struct_size;
    /* tokens of an answer at most, with the one that begins it; default 512, at most 8192. A model of BART's kind has
     * at most as many as its table of positions. */
    int64_t context;
    tn_device *device; /* default NULL: the thread's current device */
} tn_seq2seq_options;
#define TN_SEQ2SEQ_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_seq2seq_options, device), 512, NULL }

/* Returns whether a path is a folder whose config.json has a model_type of this kind. */
TN_API bool tn_seq2seq_knows(const char *path);

/* Opens a model in a Hugging Face folder: config.json, and weights as safetensors or pytorch_model.bin. options may be
 * NULL. *out: closed with tn_seq2seq_close.
 * Errors: those of tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED for another model_type; TN_ERR_FORMAT with
 * the key or tensor that is missing or does not fit.
 * Source: Raffel et al. 2020; Lewis et al. 2019, "BART"; T5-, BartForConditionalGeneration of transformers. */
TN_API tn_status tn_seq2seq_open(const char *folder, const tn_seq2seq_options *options, tn_seq2seq **out);
TN_API void tn_seq2seq_close(tn_seq2seq *m); /* NULL is allowed */

/* Properties of a model. */
typedef struct tn_seq2seq_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* config.json's model_type: "t5" */
    int64_t encoder_layers, decoder_layers, hidden, heads, vocabulary;
    int64_t context; /* tokens of an answer at most */
    int64_t parameters, weights_bytes;
    int32_t start;  /* the token that begins every answer */
    int32_t forced; /* the token that follows it in every answer, whatever the logits are; -1: none */
} tn_seq2seq_facts;
/* Fills *facts; the caller sets facts->struct_size. */
TN_API tn_status tn_seq2seq_get_facts(const tn_seq2seq *m, tn_seq2seq_facts *facts);
/* Returns whether a token ends an answer; false for NULL. */
TN_API bool tn_seq2seq_ends(const tn_seq2seq *m, int32_t id);

/* Encodes a text of `count` tokens, 1 to TN_SEQ2SEQ_TEXT, and begins an empty answer.
 * Errors: TN_ERR_ARGUMENT for an id outside the vocabulary, or another number of tokens. */
TN_API tn_status tn_seq2seq_encode(tn_seq2seq *m, const int32_t *ids, int64_t count);
/* Appends a token to the answer, the first of them facts.start. *logits: [vocabulary] of the next token, valid until
 * the next call on m; may be NULL.
 * Errors: TN_ERR_STATE before tn_seq2seq_encode; TN_ERR_ARGUMENT for an id outside the vocabulary or a full answer. */
TN_API tn_status tn_seq2seq_step(tn_seq2seq *m, int32_t id, const float **logits);

#ifdef __cplusplus
}
#endif
#endif
