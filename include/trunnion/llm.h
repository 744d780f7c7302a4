/* llm.h — language models from GGUF files and Hugging Face folders: token ids in, logits out.
 *
 * Part of libtrunnion-text; it uses only libtrunnion's public interface. A tn_llm holds one sequence: the keys and
 * values of its tokens are in a cache for `context` tokens, and each call appends to it. The logits of a token have the
 * same bits however the prompt was divided into calls. text.h converts text to ids, and logits to the next id.
 *
 *   tn_llm *m;
 *   const float *logits;
 *   tn_llm_open("model.gguf", NULL, &m);
 *   tn_llm_prompt(m, ids, count, &logits);
 *   while (…) tn_llm_step(m, next_id, &logits);
 *   tn_llm_close(m);
 *
 * tn_llm_new_conversation opens further sequences over the same weights.
 *
 * Threads: one thread at a time may use a tn_llm, and it need not be the same one. Several threads at once may use
 * different ones, also conversations over the same weights; none changes the results of another. Plans for prompts
 * belong to the thread that made them, so a conversation is fastest if it stays on one thread. */
#ifndef TRUNNION_LLM_H
#define TRUNNION_LLM_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_llm tn_llm;
enum { TN_LLM_BATCH = 64 }; /* conversations of a batch, and of a pool of caches, at most */

/* Type of the elements of the key/value cache. Q8_0: blocks of 32 numbers with a common scale, 53 % of the memory of
 * F16; on the CPU, for models whose heads have a multiple of 32 numbers. Logits of a model with quantized weights
 * differ from those of F32 by about 4 % of their standard deviation (SmolLM2 in Q4_1; F16: 3 %). */
typedef enum tn_llm_cache {
    TN_LLM_CACHE_F16 = 0,
    TN_LLM_CACHE_BF16,
    TN_LLM_CACHE_F32,
    TN_LLM_CACHE_Q8_0,
    TN_LLM_CACHE_SAME /* only for value_cache: the type of the keys */
} tn_llm_cache;

typedef struct tn_llm_options {
    size_t struct_size;
    /* Context length in tokens; default 0: the model's own, at most 4096. Models with two rope tables (longrope) use
     * the table for this length, for all tokens. */
    int64_t context;
    tn_llm_cache cache; /* type of the cached keys, not TN_LLM_CACHE_SAME; default TN_LLM_CACHE_F16 */
    tn_device *device;  /* default NULL: the thread's current device */
    int64_t memory;     /* bytes that may be used; default 0: all free memory of the device */
    /* Folder of a LoRA adapter in PEFT's format (adapter_config.json, adapter_model.safetensors) that is added to the
     * products of the model; default NULL: none. For a GGUF file too. Adapters with trained embeddings, biases, DoRA or
     * ranks that vary are refused. */
    const char *adapter;
    /* Number of conversations, this one included, whose caches form one pool, 1 to TN_LLM_BATCH; default 1. The pool is
     * allocated by tn_llm_open; tn_llm_new_conversation takes room there while there is some, if the context and the
     * types of the caches are the same. A batch of conversations of one pool computes their attention in one call,
     * which is faster. All conversations of a pool must be used by one thread at a time. */
    int conversations;
    /* Type of the cached values; default TN_LLM_CACHE_SAME, that is `cache`. It may be any other type: the memory of
     * the cache is the sum of both, and Q8_0 for one of them has the limits of Q8_0. */
    tn_llm_cache value_cache;
} tn_llm_options;
#define TN_LLM_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_llm_options, value_cache), 0, TN_LLM_CACHE_F16, NULL, 0, NULL, 1, TN_LLM_CACHE_SAME }

/* A model's sizes and memory. Strings are valid as long as the file or model that was asked. */
typedef struct tn_llm_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* general.architecture ("llama"); of a folder the same word, or its model_type */
    char name[128];           /* general.name, or ""; of a folder its name */
    char quantisation[16];    /* the type of most bytes of the weights: "Q4_1" */
    int64_t parameters;       /* number of elements of all weights */
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
    int64_t trained_context; /* tokens; the file's context_length */
    int64_t context;         /* tokens that the cache holds: from the options or the default */
    int64_t weights_bytes;   /* as in the file */
    int64_t cache_bytes;
    int64_t activation_bytes; /* maximum while a chunk of a prompt is processed */
    int64_t runtime_bytes;    /* the library and the tokenizer */
    int64_t total_bytes;      /* the sum of the four, from tn_estimate_inference_memory */
    bool tied_embeddings;
    int64_t token_bytes; /* bytes of weights read per token; of a mixture of experts only the chosen experts' */
} tn_llm_facts;

/* Fills *facts with what tn_llm_open would report for an open file, from its metadata only: sizes are checked against
 * the tensors, nothing is allocated. options may be NULL. Errors: those of tn_llm_open, except memory. */
TN_API tn_status tn_llm_inspect(const tn_gguf *file, const tn_llm_options *options, tn_llm_facts *facts);

/* The same for a path, as in tn_llm_open. */
TN_API tn_status tn_llm_inspect_path(const char *path, const tn_llm_options *options, tn_llm_facts *facts);

/* Opens a model.
 *   path: a GGUF file, or a Hugging Face folder with config.json and safetensors (model.h), of a family that the
 *     error for an unknown one lists. Folders of models with pictures or sound (text_config) are read for their text.
 *   options: NULL for the defaults. *out: closed with tn_llm_close.
 * The file stays mapped; weights are loaded when they are first used.
 * Errors: those of tn_gguf_open, tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED with the name of an
 * unsupported architecture or feature; TN_ERR_FORMAT with the key or tensor that is missing or does not fit;
 * TN_ERR_ARGUMENT for a context longer than the model supports; TN_ERR_MEMORY, before anything is allocated, with what
 * is needed, what is free, and what would fit. */
TN_API tn_status tn_llm_open(const char *path, const tn_llm_options *options, tn_llm **out);
TN_API void tn_llm_close(tn_llm *m); /* NULL is allowed */

/* Opens another, empty sequence over the weights of `with`. *out is used and closed (in any order) like a model from
 * tn_llm_open; its logits have the same bits as those of a separately opened model. It allocates its own cache and the
 * buffers for one chunk of a prompt, and shares the weights, including packed ones.
 *   options: context, cache type and memory limit; NULL: those of `with`.
 * Errors: those of tn_llm_open for options and memory; TN_ERR_ARGUMENT for another device.
 * Threads: may be called while another thread uses `with`. */
TN_API tn_status tn_llm_new_conversation(const tn_llm *with, const tn_llm_options *options, tn_llm **out);

/* Packs the weights and makes the plans now, so that the first calls are as fast as later ones. Computes one or two
 * tokens for this; the sequence does not change. */
TN_API tn_status tn_llm_prepare(tn_llm *m);

/* Returns the open file, for tn_tokenizer_from_gguf; NULL for a folder and for NULL. */
TN_API const tn_gguf *tn_llm_file(const tn_llm *m);
/* Fills *facts; the caller sets facts->struct_size. */
TN_API tn_status tn_llm_get_facts(const tn_llm *m, tn_llm_facts *facts);

/* Returns whether the token ends a text according to the folder's generation_config.json or config.json. For a GGUF
 * file use tn_tokenizer_ends. false for NULL. */
TN_API bool tn_llm_ends(const tn_llm *m, int32_t id);

/* Returns the number of tokens in the sequence; 0 for NULL. */
TN_API int64_t tn_llm_position(const tn_llm *m);

/* Truncates the sequence to its first `position` tokens; 0 restarts it. Errors: TN_ERR_ARGUMENT if it is shorter. */
TN_API tn_status tn_llm_rewind(tn_llm *m, int64_t position);

/* Returns the tokens of the sequence, [tn_llm_position], borrowed: valid until the next call on m. NULL for NULL. */
TN_API const int32_t *tn_llm_tokens(const tn_llm *m);

/* Returns how many leading tokens of ids[count] are already in the sequence: the longest common prefix, but at most
 * count - 1, so that logits of the last token can be computed. With it, only the new part of a conversation is
 *   computed: int64_t kept = tn_llm_common_prefix(m, ids, count);
 *   tn_llm_rewind(m, kept);
 *   tn_llm_prompt(m, ids + kept, count - kept, &logits);
 * The logits have the same bits as those of the whole prompt in an empty sequence. 0 for NULL or no ids. */
TN_API int64_t tn_llm_common_prefix(const tn_llm *m, const int32_t *ids, int64_t count);

/* Appends `count` ≥ 1 tokens.
 *   *logits: [vocabulary] logits of the next token; valid until the next call on m; may be NULL.
 * On failure nothing is appended. Exception: if host memory runs out while the pass is recorded, the error says so, and
 * the sequence restarts at position 0.
 * Errors: TN_ERR_ARGUMENT for an id outside the vocabulary, or more tokens than the context has room for. */
TN_API tn_status tn_llm_prompt(tn_llm *m, const int32_t *ids, int64_t count, const float **logits);

/* Appends one token, with a captured plan: faster than tn_llm_prompt with one id, with the same result. */
TN_API tn_status tn_llm_step(tn_llm *m, int32_t id, const float **logits);

/* Appends `count` tokens and writes the logits after each of them to out [count, vocabulary]. */
TN_API tn_status tn_llm_logits(tn_llm *m, const int32_t *ids, int64_t count, float *out);

/* ---- several conversations at once ------------------------------------------------------------------------------- */

/* Computes the next tokens of several conversations in one pass, which reads each weight once for all of them:
 *   tn_llm *talks[8] = {model};        // opened with conversations = 8; and seven of tn_llm_new_conversation
 *   tn_llm_batch *batch;
 *   tn_llm_batch_new(talks, 8, &batch);
 *   tn_llm_batch_step(batch, next_ids, &logits);
 * Between steps each conversation may be used alone: for prompts, rewinding, saving. */
typedef struct tn_llm_batch tn_llm_batch;

/* models [count]: conversations over the same weights, all different; they must be closed after the batch. *out: freed
 * with tn_llm_batch_free. Threads: one at a time for the batch and all its conversations.
 * Errors: TN_ERR_ARGUMENT, TN_ERR_MEMORY. */
TN_API tn_status tn_llm_batch_new(tn_llm *const *models, int count, tn_llm_batch **out);
TN_API void tn_llm_batch_free(tn_llm_batch *b); /* NULL is fine */

/* Appends ids[i] to conversation i; a negative id leaves that one as it is. *logits (may be NULL): [count, vocabulary],
 * valid until the next step; row i has the same bits as tn_llm_step's for conversation i, and no meaning where the id
 * is negative. The first step makes the plan. A failure appends nothing, except as with tn_llm_prompt.
 * Errors: TN_ERR_ARGUMENT for an id outside the vocabulary, for a conversation whose context is full, or if a trainer
 * has given one conversation other weights than the others (tn_finetune_new). */
TN_API tn_status tn_llm_batch_step(tn_llm_batch *b, const int32_t *ids, const float **logits);

/* ---- speculative decoding ---------------------------------------------------------------------------------------- */

/* Lets tn_llm_step and tn_llm_batch_step compute several tokens of a conversation in one pass: a draft guesses the
 * tokens that follow, the model computes the logits behind all of them together, and while the next steps' ids are the
 * guessed ones, their logits are there already. The logits have the same bits as without a draft, so greedy and sampled
 * texts stay the same for the same seed; only the time changes. Guesses come from the sequence itself (what followed
 * the last tokens where they occurred before), or from a smaller model with the same tokenizer. */
enum { TN_LLM_DRAFT = 15 }; /* tokens of a draft at most */

typedef struct tn_llm_draft_options {
    size_t struct_size;
    tn_llm *model; /* guesses by its most probable tokens; borrowed, used by m's thread; default NULL: n-grams */
    int tokens;    /* of a draft at most, 1 to TN_LLM_DRAFT; default 7. Drafts are shorter while few are accepted. */
    int ngram;     /* without a model: the longest n-gram that is looked for, 2 to 16; default 4 */
    /* With a model: a draft ends at the first token that it thinks less probable; 0 to 1, default 0.5. */
    double least_probability;
} tn_llm_draft_options;
#define TN_LLM_DRAFT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_llm_draft_options, least_probability), NULL, 7, 4, 0.5 }

/* Sets the draft of m; options NULL: none. m must be closed, or get another draft, before options->model is closed.
 * One model may be the draft of several conversations of one thread, but it has one sequence, which is computed again
 * whenever another conversation guesses. Conversations that take turns should each have a draft of their own, made with
 * tn_llm_new_conversation.
 * In a batch (tn_llm_batch_step) drafts have an effect if all caches are one pool (tn_llm_options.conversations) on the
 * device cpu. One pass checks at most three guesses of each conversation. Steps that compute more than five tokens do
 * not guess, because a guess costs too much there; nor does a conversation whose last guesses were mostly wrong, except
 * with every eighth token.
 * Errors: TN_ERR_ARGUMENT for values out of range, TN_ERR_MEMORY. tn_llm_step then also has those of the draft's
 * steps. */
TN_API tn_status tn_llm_set_draft(tn_llm *m, const tn_llm_draft_options *options);

typedef struct tn_llm_draft_facts {
    size_t struct_size; /* set by the caller */
    int64_t passes;     /* of the model over a draft, */
    int64_t drafted;    /* tokens guessed in them, */
    int64_t accepted;   /* and of these the ones that were the next tokens */
} tn_llm_draft_facts;
/* What the draft of m has done since it was set; zeros without a draft. */
TN_API tn_status tn_llm_get_draft_facts(const tn_llm *m, tn_llm_draft_facts *facts);

/* ---- a sequence in a file ---------------------------------------------------------------------------------------- */

/* Writes the sequence, its tokens and what the cache has of them, to a safetensors file: whole or not at all.
 * Errors: TN_ERR_STATE for an empty sequence; those of tn_safetensors_save. */
TN_API tn_status tn_llm_save(const tn_llm *m, const char *path);

/* Makes the saved sequence m's: it goes on with the same bits as the one that was saved. m must have the same weights
 * (a fingerprint is compared), cache type, and a context that is long enough. If it fails, the sequence is as before,
 * or empty where writing to the cache failed.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT for another file or model; TN_ERR_DTYPE for another cache type; TN_ERR_ARGUMENT for
 * a context that is too short. */
TN_API tn_status tn_llm_load(tn_llm *m, const char *path);

/* Measures the importance matrix for quantization (tn_quantize_rows): the size of the activations that each matrix is
 * multiplied with, over `count` ≥ 1 tokens of a typical text. Calls take(ctx, name, squares, columns) with the file's
 * name of each matrix and the sum of squares for each of its columns, valid during the call; a failure of take stops
 * the measurement and is returned. A text longer than the context is processed in parts. The sequence restarts at
 * position
 * 0. Source: llama.cpp, imatrix. */
typedef tn_status tn_llm_take(void *ctx, const char *name, const float *squares, int64_t columns);
TN_API tn_status tn_llm_importance(tn_llm *m, const int32_t *ids, int64_t count, tn_llm_take *take, void *ctx);

/* Writes the model with what was added or trained: a GGUF file for a GGUF file, with its metadata, or a folder for a
 * folder, with its other files. The adapter of tn_llm_options, or that of a trainer (finetune.h), is merged into the
 * matrices; weights that were trained are written. Tensors keep their types, except quantized ones that changed: they
 * become f16 (`trunnion convert --quantize` makes them small again).
 *   path: must not be the path of m. A folder is made if it does not exist; its model.safetensors is replaced.
 * Errors: TN_ERR_IO; TN_ERR_ARGUMENT for the path of m; TN_ERR_UNSUPPORTED for trained experts of a file that has a
 * tensor for each expert. */
TN_API tn_status tn_llm_save_model(tn_llm *m, const char *path);
/* Checks, before a long training, whether tn_llm_save_model could write m there: its errors except those of writing. */
TN_API tn_status tn_llm_can_save_model(const tn_llm *m, const char *path);

typedef struct tn_llm_export_onnx_options {
    size_t struct_size;
    bool cache; /* false: only "input_ids" → "logits"; each run computes all tokens of a text; default true */
} tn_llm_export_onnx_options;
#define TN_LLM_EXPORT_ONNX_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_llm_export_onnx_options, cache), true }

/* Writes the model as an ONNX decoder with a key/value cache, with the inputs and outputs of Hugging Face's exporter:
 *   "input_ids" [1, n] i64: the tokens that follow `past` ones          → "logits" [1, n, vocabulary] f32
 *   "attention_mask" [1, past + n] i64: 0 for masked tokens
 *   "position_ids" [1, n] i64: the positions of the tokens
 *   "past_key_values.L.key", ".value" [1, kv_heads, past, head_dim] f32 → "present.L.key", … [1, …, past + n, …]
 * for each layer L, with open extents n ≥ 1 and past ≥ 0. A text begins with past = 0; `present` of one run is `past`
 * of the next one. Sliding-window layers also take all past tokens. Weights keep the names and types of the file;
 * block-quantized weights and vectors become f32, matrices stored as [in, out] are transposed. The sequence does not
 * change. options may be NULL.
 * Errors: those of tn_onnx_export; TN_ERR_UNSUPPORTED if rope angles depend on the length of the text. */
TN_API tn_status tn_llm_export_onnx(tn_llm *m, const char *path, const tn_llm_export_onnx_options *options);

#ifdef __cplusplus
}
#endif
#endif
