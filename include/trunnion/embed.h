/* embed.h — sentence embeddings from encoders in Hugging Face folders (BERT, MiniLM, RoBERTa, DistilBERT, MPNet,
 * nomic-bert, GTE, ModernBERT, ELECTRA, ALBERT, …) and from language models (Qwen3-Embedding, EmbeddingGemma, …):
 * token ids in, one vector per text out.
 *
 * Part of libtrunnion-text; it uses only libtrunnion's public interface. text.h converts texts to ids (TN_ENCODE_ENDS
 * adds the begin and end tokens that an encoder expects).
 *
 *   tn_embedder *e;
 *   tn_embedder_open("all-MiniLM-L6-v2", NULL, &e);
 *   tn_embedder_run(e, ids, lengths, count, vectors); // vectors [count, width]
 *   tn_embedder_close(e);
 *
 * Threads: several threads may use an open embedder at once. Plans belong to the thread that made them, so each
 * thread's first run with a new length is slower. Close it when no thread uses it. */
#ifndef TRUNNION_EMBED_H
#define TRUNNION_EMBED_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_embedder tn_embedder;

/* How the embeddings of a text's tokens are combined. */
typedef enum tn_pooling {
    TN_POOLING_DEFAULT = 0, /* from the folder (1_Pooling/config.json), else mean; last for causal models */
    TN_POOLING_MEAN,        /* mean of all tokens */
    TN_POOLING_CLS,         /* the first token */
    TN_POOLING_MAX,         /* element-wise maximum */
    TN_POOLING_LAST         /* the last token */
} tn_pooling;

typedef enum tn_embed_norm {
    TN_EMBED_NORM_DEFAULT = 0, /* from the folder (modules.json), else none */
    TN_EMBED_NORM_NONE,
    TN_EMBED_NORM_UNIT /* length 1, so that the dot product of two embeddings is their cosine similarity */
} tn_embed_norm;

typedef struct tn_embedder_options {
    size_t struct_size;
    tn_pooling pooling; /* default TN_POOLING_DEFAULT */
    tn_embed_norm norm; /* default TN_EMBED_NORM_DEFAULT */
    tn_device *device;  /* default NULL: the thread's current device */
} tn_embedder_options;
#define TN_EMBEDDER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_embedder_options, device), TN_POOLING_DEFAULT, TN_EMBED_NORM_DEFAULT, NULL }

/* Properties of an encoder. Strings are valid as long as the library. */
typedef struct tn_embedder_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* config.json's model_type: "bert" */
    int64_t layers, hidden, intermediate, heads, vocabulary;
    int64_t width;   /* elements of an embedding */
    int64_t longest; /* maximum number of tokens of a text, including begin and end tokens */
    int64_t parameters, weights_bytes;
    tn_pooling pooling; /* the pooling in use, not DEFAULT */
    tn_embed_norm norm;
} tn_embedder_facts;

/* Opens the encoder in a folder: config.json, weights as safetensors or pytorch_model.bin (model.h), and the files of
 * sentence-transformers if they exist: modules.json (pooling, dense layers, norm) and sentence_bert_config.json. The
 * options replace pooling and norm; dense layers are always computed. Weights in half precision are computed in f32.
 * options may be NULL. *out: closed with tn_embedder_close.
 * Errors: those of tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED with the name of an unsupported model_type
 * or feature; TN_ERR_FORMAT with the key or tensor that is missing or does not fit. */
TN_API tn_status tn_embedder_open(const char *folder, const tn_embedder_options *options, tn_embedder **out);
TN_API void tn_embedder_close(tn_embedder *e); /* NULL is allowed */
/* Fills *facts; the caller sets facts->struct_size. */
TN_API tn_status tn_embedder_get_facts(const tn_embedder *e, tn_embedder_facts *facts);

/* Computes the embeddings of `count` texts and writes them to out [count, width].
 *   ids: the token ids of all texts, one text after the other; lengths[count]: their numbers of tokens.
 * Texts of similar length are computed together, padded to the longest. Padding is masked, so the other texts affect an
 * embedding only by rounding.
 * Errors: TN_ERR_ARGUMENT for an id outside the vocabulary, an empty text, or more than facts.longest tokens. */
TN_API tn_status tn_embedder_run(tn_embedder *e, const int32_t *ids, const int64_t *lengths, int64_t count, float *out);

/* Writes the encoder with its pooling as an ONNX model (onnx.h): "input_ids" and "attention_mask" [batch, tokens] i64
 * (1 for tokens, 0 for padding) → "embedding" [batch, width] f32. Weights keep their names; the projections of queries,
 * keys and values are merged as "LAYER.qkv", the embeddings of positions and of token type 0 as "places.weight".
 * Errors: those of tn_onnx_export; TN_ERR_UNSUPPORTED for the families of llm.h. */
TN_API tn_status tn_embedder_export_onnx(tn_embedder *e, const char *path);

#ifdef __cplusplus
}
#endif
#endif
