/* embed.h — sentence embeddings from encoders in Hugging Face folders (BERT, MiniLM, RoBERTa, DistilBERT): what goes in
 * is token ids, what comes out is one vector a text.
 *
 * Part of libtrunnion-text, made of recorded operations (ops.h) over libtrunnion's public interface. Texts become ids
 * through text.h (TN_ENCODE_ENDS puts the tokens around them that an encoder expects).
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

/* How the vectors of a text's tokens become one. */
typedef enum tn_pooling {
    TN_POOLING_DEFAULT = 0, /* as the folder says (1_Pooling/config.json); mean where it says nothing */
    TN_POOLING_MEAN,        /* of all tokens */
    TN_POOLING_CLS,         /* the first token's */
    TN_POOLING_MAX          /* number by number, the greatest */
} tn_pooling;

typedef enum tn_embed_norm {
    TN_EMBED_NORM_DEFAULT = 0, /* as the folder says (modules.json); none where it says nothing */
    TN_EMBED_NORM_NONE,
    TN_EMBED_NORM_UNIT /* of length 1, so that a product of two is their cosine */
} tn_embed_norm;

typedef struct tn_embedder_options {
    size_t struct_size;
    tn_pooling pooling; /* default TN_POOLING_DEFAULT */
    tn_embed_norm norm; /* default TN_EMBED_NORM_DEFAULT */
    tn_device *device;  /* default NULL: the thread's current device */
} tn_embedder_options;
#define TN_EMBEDDER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_embedder_options, device), TN_POOLING_DEFAULT, TN_EMBED_NORM_DEFAULT, NULL }

/* Strings live as long as the library. */
typedef struct tn_embedder_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* config.json's model_type: "bert" */
    int64_t layers, hidden, intermediate, heads, vocabulary;
    int64_t width;   /* numbers of an embedding */
    int64_t longest; /* tokens of the longest text, those around it included */
    int64_t parameters, weights_bytes;
    tn_pooling pooling; /* what is done: no default */
    tn_embed_norm norm;
} tn_embedder_facts;

/* Opens the encoder in a folder: config.json, weights as safetensors or pytorch_model.bin (model.h), and the files of
 * sentence-transformers if they exist: modules.json (pooling, dense layers, norm) and sentence_bert_config.json. The
 * options replace pooling and norm; dense layers are always computed. Weights in half precision are computed in f32.
 * options may be NULL. *out: closed with tn_embedder_close.
 * Errors: those of tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED for a model_type or a feature that is not
 * known here, naming it; TN_ERR_FORMAT naming the key or tensor that is missing or does not fit. */
TN_API tn_status tn_embedder_open(const char *folder, const tn_embedder_options *options, tn_embedder **out);
TN_API void tn_embedder_close(tn_embedder *e); /* NULL is fine */
TN_API tn_status tn_embedder_get_facts(const tn_embedder *e, tn_embedder_facts *facts);

/* Embeds `count` texts: lengths[count] tokens each, whose ids stand in `ids` one text behind the other. Writes
 * out [count, width]. Texts of like length are computed together, filled up to the longest; what fills up is not seen,
 * so a text's embedding depends on the others in rounding alone.
 * Errors: TN_ERR_ARGUMENT for an id outside the vocabulary and for a text of no tokens or more than facts.longest. */
TN_API tn_status tn_embedder_run(tn_embedder *e, const int32_t *ids, const int64_t *lengths, int64_t count, float *out);

/* Writes the encoder, its pooling included, as an ONNX model (onnx.h): "input_ids" and "attention_mask" [batch, tokens]
 * i64 (1, and 0 for what fills up) → "embedding" [batch, width] f32. Weights keep their names; projections of queries,
 * keys and values are one, "LAYER.qkv"; positions and the first type are too, "places.weight".
 * Errors: as tn_onnx_export's. */
TN_API tn_status tn_embedder_export_onnx(tn_embedder *e, const char *path);

#ifdef __cplusplus
}
#endif
#endif
