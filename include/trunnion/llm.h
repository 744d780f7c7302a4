/* llm.h — language models from GGUF files and Hugging Face folders: what goes in is token ids, what comes out is
 * logits.
 *
 * Part of libtrunnion-text, made of recorded operations (ops.h) over libtrunnion's public interface. A model holds one
 * sequence: its tokens' keys and values stand in a cache of `context` places, and every call appends to it. What is
 * computed for a token does not depend on how the prompt was cut into calls: its logits are the same bits.
 * Text becomes ids, and logits become the next id, through text.h.
 *
 *   tn_llm *m;
 *   const float *logits;
 *   tn_llm_open("model.gguf", NULL, &m);
 *   tn_llm_prompt(m, ids, count, &logits);
 *   while (…) tn_llm_step(m, next_id, &logits);
 *   tn_llm_close(m);
 *
 * Further sequences over the same weights: tn_llm_new_conversation.
 *
 * Threads: one thread at a time may use a tn_llm, and it need not be the same one. Several threads at once may use
 * different tn_llms, also conversations over the same weights; none changes the results of another. Plans for prompts
 * belong to the thread that made them, so a conversation is fastest if it stays on one thread. */
#ifndef TRUNNION_LLM_H
#define TRUNNION_LLM_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_llm tn_llm;

/* What a number of the cache is stored as. */
typedef enum tn_llm_cache { TN_LLM_CACHE_F16 = 0, TN_LLM_CACHE_BF16, TN_LLM_CACHE_F32 } tn_llm_cache;

typedef struct tn_llm_options {
    size_t struct_size;
    /* Tokens of the longest sequence; default 0: what the model was trained for, at most 4096. Models with two tables
     * of rope (longrope) take the one for this length, for all tokens. */
    int64_t context;
    tn_llm_cache cache; /* default TN_LLM_CACHE_F16 */
    tn_device *device;  /* default NULL: the thread's current device */
    int64_t memory;     /* bytes that may be used; default 0: what is free on the device */
} tn_llm_options;
#define TN_LLM_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_llm_options, memory), 0, TN_LLM_CACHE_F16, NULL, 0 }

/* A model's sizes and what it takes. Strings live as long as the file or model that they were asked of. */
typedef struct tn_llm_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* general.architecture; of a folder the same word, or its model_type: "llama" */
    char name[128];           /* general.name, or ""; the folder's */
    char quantisation[16];    /* the type that most of the weights' bytes have: "Q4_1" */
    int64_t parameters;       /* numbers in all weights */
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
    int64_t trained_context; /* tokens; the file's context_length */
    int64_t context;         /* tokens that the cache holds: the options' or the default's */
    int64_t weights_bytes;   /* as in the file */
    int64_t cache_bytes;
    int64_t activation_bytes; /* at most, while a piece of a prompt passes */
    int64_t runtime_bytes;    /* the library and the tokenizer */
    int64_t total_bytes;      /* the four together: tn_estimate_inference_memory's numbers */
    bool tied_embeddings;
    int64_t token_bytes; /* of weights, that are read for a token: of a mixture the chosen experts' alone */
} tn_llm_facts;

/* What tn_llm_open would make of an open file, from its metadata alone: sizes are checked against the tensors', nothing
 * is allocated. options may be NULL. Errors: as tn_llm_open's, but for memory. */
TN_API tn_status tn_llm_inspect(const tn_gguf *file, const tn_llm_options *options, tn_llm_facts *facts);

/* The same for what tn_llm_open takes. */
TN_API tn_status tn_llm_inspect_path(const char *path, const tn_llm_options *options, tn_llm_facts *facts);

/* Opens a model: a GGUF file, or a folder with config.json and safetensors (model.h) as Hugging Face has them, of the
 * families llama, mistral, qwen2, qwen3, phi3, gemma, gemma2, gemma3 (text alone), gpt2, and of the mixtures of experts
 * mixtral, qwen2moe and qwen3moe. options may be NULL.
 * Weights stay mapped until they are used. *out: closed with tn_llm_close.
 * Errors: those of tn_gguf_open, tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED for an architecture or a
 * feature that is not known here, naming it; TN_ERR_FORMAT naming the key or tensor that is missing or does not fit;
 * TN_ERR_ARGUMENT for a context beyond what the model was trained for; TN_ERR_MEMORY before anything is taken, with
 * what is needed, what is free, and what would fit. */
TN_API tn_status tn_llm_open(const char *path, const tn_llm_options *options, tn_llm **out);
TN_API void tn_llm_close(tn_llm *m); /* NULL is fine */

/* Opens another sequence over the weights of `with`. *out is an empty sequence, used and closed (tn_llm_close, in any
 * order) like a model from tn_llm_open; its logits have the same bits as those of a separately opened model. It
 * allocates its own cache and the buffers for one chunk of a prompt, and shares the weights, packed ones included.
 * options: its context, cache type and memory limit; NULL: those of `with`.
 * Errors: as tn_llm_open's for options and memory; TN_ERR_ARGUMENT for another device.
 * Threads: may be called while another thread uses `with`. */
TN_API tn_status tn_llm_new_conversation(const tn_llm *with, const tn_llm_options *options, tn_llm **out);

/* Packs the weights and makes the plans now, which the first calls would do otherwise: after it they are as fast as all
 * others. Computes a token or two to that end, and leaves the sequence as it is. */
TN_API tn_status tn_llm_prepare(tn_llm *m);

/* The open file, for tn_tokenizer_from_gguf; NULL for a folder and for NULL. */
TN_API const tn_gguf *tn_llm_file(const tn_llm *m);
TN_API tn_status tn_llm_get_facts(const tn_llm *m, tn_llm_facts *facts);

/* Whether the token ends a text by the folder's generation_config.json (or config.json); a GGUF file leaves that to its
 * tokenizer: tn_tokenizer_ends. false for NULL. */
TN_API bool tn_llm_ends(const tn_llm *m, int32_t id);

/* Tokens in the sequence so far; 0 for NULL. */
TN_API int64_t tn_llm_position(const tn_llm *m);

/* Cuts the sequence to its first `position` tokens; 0 begins anew. TN_ERR_ARGUMENT when it is shorter. */
TN_API tn_status tn_llm_rewind(tn_llm *m, int64_t position);

/* The tokens of the sequence, [tn_llm_position]; valid until the next call on m. NULL for NULL. */
TN_API const int32_t *tn_llm_tokens(const tn_llm *m);

/* How many leading tokens of ids[count] stand in the sequence already: the longest common prefix, but at most
 * count - 1, so that logits for the last token can be computed. Computes only what is new of a conversation that grew:
 *   int64_t kept = tn_llm_common_prefix(m, ids, count);
 *   tn_llm_rewind(m, kept);
 *   tn_llm_prompt(m, ids + kept, count - kept, &logits);
 * The logits have the same bits as those of the whole prompt in an empty sequence. 0 for NULL or no ids. */
TN_API int64_t tn_llm_common_prefix(const tn_llm *m, const int32_t *ids, int64_t count);

/* Appends `count` ≥ 1 tokens. *logits (may be NULL): vocabulary numbers for what follows the last one; valid until the
 * next call on m. A failure appends nothing; host memory that runs out
 * while the pass is recorded is the exception: the failure says so, and the sequence begins anew, at position 0.
 * Errors: TN_ERR_ARGUMENT for an id outside the vocabulary, or more tokens than the context has room for. */
TN_API tn_status tn_llm_prompt(tn_llm *m, const int32_t *ids, int64_t count, const float **logits);

/* Appends one token: the fast path, a captured plan. The same result as tn_llm_prompt with one id. */
TN_API tn_status tn_llm_step(tn_llm *m, int32_t id, const float **logits);

/* Appends `count` tokens and writes the logits behind every one of them: out [count, vocabulary]. */
TN_API tn_status tn_llm_logits(tn_llm *m, const int32_t *ids, int64_t count, float *out);

/* For quantising (tn_quantize_rows): how large the numbers are that each matrix is multiplied with, over `count` ≥ 1
 * tokens of a text that is like those to come. Calls take(ctx, name, squares, columns) with the file's name of each
 * matrix and a sum of squares for each of its columns, valid during the call; its failure ends this and is returned.
 * A text longer than the context is taken in pieces. The sequence begins anew, at position 0.
 * Source: llama.cpp's importance matrix. */
typedef tn_status tn_llm_take(void *ctx, const char *name, const float *squares, int64_t columns);
TN_API tn_status tn_llm_importance(tn_llm *m, const int32_t *ids, int64_t count, tn_llm_take *take, void *ctx);

typedef struct tn_llm_export_onnx_options {
    size_t struct_size;
    bool cache; /* false: only "input_ids" → "logits", and each run computes all tokens of a text; default true */
} tn_llm_export_onnx_options;
#define TN_LLM_EXPORT_ONNX_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_llm_export_onnx_options, cache), true }

/* Writes the model as an ONNX model (onnx.h) that generates, in the form that Hugging Face's exporter gives them:
 *   "input_ids" [1, n] i64: the tokens that follow `past` ones          → "logits" [1, n, vocabulary] f32
 *   "attention_mask" [1, past + n] i64: 0 for tokens that nobody sees
 *   "position_ids" [1, n] i64: the tokens' places in the text
 *   "past_key_values.L.key", ".value" [1, kv_heads, past, head_dim] f32 → "present.L.key", … [1, …, past + n, …]
 * for each layer L, n ≥ 1 and past ≥ 0 open: a text begins with past = 0, and what a run yields as present is the next
 * one's past. Layers with a window are given all of it, too. Weights keep the names and the types of the file; those in
 * blocks become f32, vectors too, matrices that are stored [in, out] are turned. The sequence stays as it is. options
 * may be NULL. Errors: as tn_onnx_export's; TN_ERR_UNSUPPORTED where angles depend on the length. */
TN_API tn_status tn_llm_export_onnx(tn_llm *m, const char *path, const tn_llm_export_onnx_options *options);

#ifdef __cplusplus
}
#endif
#endif
