/* model.h — models in files: safetensors and GGUF in and out, PyTorch's files in, a module's weights, checkpoints,
 * and how much memory a model needs.
 *
 * A file is read through a mapping: opening costs the header, and a tensor's bytes are touched when they are used. A
 * file is written beside its name and then renamed: whoever is killed while saving leaves the old file or the new one,
 * whole. What a file claims is checked before it is believed. */
#ifndef TRUNNION_MODEL_H
#define TRUNNION_MODEL_H

#include "trunnion/nn.h"
#include "trunnion/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

typedef struct tn_safetensors tn_safetensors;

/* Facts about one tensor of a file. Strings and data live as long as the file is open. */
typedef struct tn_safetensors_info {
    size_t struct_size; /* set by the caller */
    const char *name;
    const char *dtype_name; /* the file's word: "F32", "BF16", "F8_E4M3" … */
    tn_dtype dtype;         /* TN_DTYPE_COUNT for a type that only other programs compute with */
    int rank;
    int64_t shape[TN_MAX_RANK];
    const void *data; /* in the mapping; may be unaligned */
    int64_t bytes;
} tn_safetensors_info;

/* Opens a file, or the shards of a model as if they were one file, and checks all headers whole: bounds, overlaps,
 * holes, duplicate names, sizes that do not fit. path: a file; an index of shards (its name ends in ".index.json"), all
 * of which lie beside it; or a folder with model.safetensors or model.safetensors.index.json in it.
 * *out: closed with tn_safetensors_close; tensors made from it stay valid after that. The files must not shrink
 * meanwhile. Errors: TN_ERR_IO; TN_ERR_FORMAT naming what is wrong where; for shards also a tensor that is not where
 * the index has it, and a name that leads out of the folder. Source: the format's description by Hugging Face. */
TN_API tn_status tn_safetensors_open(const char *path, tn_safetensors **out);
TN_API void tn_safetensors_close(tn_safetensors *file); /* NULL is fine */

TN_API int tn_safetensors_count(const tn_safetensors *file);
/* Tensor i in the order of the headers. TN_ERR_ARGUMENT when there is none. */
TN_API tn_status tn_safetensors_at(const tn_safetensors *file, int i, tn_safetensors_info *info);
/* The same by name. */
TN_API tn_status tn_safetensors_find(const tn_safetensors *file, const char *name, tn_safetensors_info *info);
/* A tensor of the file without a copy where the device can read host memory and the bytes are aligned: a new handle. */
TN_API tn_tensor *tn_safetensors_tensor(const tn_safetensors *file, const char *name);

/* The file's (the first shard's) free text under `key`; NULL when absent. Entry i for listing: NULL past the end. */
TN_API const char *tn_safetensors_metadata(const tn_safetensors *file, const char *key);
TN_API const char *tn_safetensors_metadata_key(const tn_safetensors *file, int i);

typedef struct tn_named_tensor {
    const char *name;
    const tn_tensor *tensor;
} tn_named_tensor;

typedef struct tn_metadata {
    const char *key, *value;
} tn_metadata;

/* Writes tensors (evaluated first) and metadata. Names must differ and not be "__metadata__". */
TN_API tn_status tn_safetensors_save(const char *path, const tn_named_tensor *tensors, int count,
                                     const tn_metadata *metadata, int metadata_count);

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

typedef struct tn_gguf tn_gguf;

/* Types of metadata; the numbers are the file's. */
typedef enum tn_gguf_type {
    TN_GGUF_U8 = 0,
    TN_GGUF_I8,
    TN_GGUF_U16,
    TN_GGUF_I16,
    TN_GGUF_U32,
    TN_GGUF_I32,
    TN_GGUF_F32,
    TN_GGUF_BOOL,
    TN_GGUF_STRING,
    TN_GGUF_ARRAY,
    TN_GGUF_U64,
    TN_GGUF_I64,
    TN_GGUF_F64,
    TN_GGUF_TYPE_COUNT
} tn_gguf_type;

/* Opens a GGUF file (version 2 or 3, little-endian) and checks all that it says of itself: counts, lengths, nesting,
 * duplicate names, places and sizes of tensors. Costs a pass over the metadata; tensors are not touched, and memory is
 * taken in proportion to what the file really holds.
 * The first file of a split model ("NAME-00001-of-00003.gguf") opens the others beside it and has all their tensors.
 * *out: closed with tn_gguf_close; tensors made from it stay valid after that. The file must not shrink meanwhile.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT naming the file, the byte and what is wrong there; TN_ERR_UNSUPPORTED for version 1
 * and for big-endian files. Source: the format's description in the ggml project.
 * Threads: an open file is read by any number of threads at once. */
TN_API tn_status tn_gguf_open(const char *path, tn_gguf **out);
TN_API void tn_gguf_close(tn_gguf *file);             /* NULL is fine */
TN_API const char *tn_gguf_path(const tn_gguf *file); /* as it was opened, for messages */

/* A value of the metadata: a scalar, a string or an array. Lives as long as the file is open. */
typedef struct tn_gguf_value tn_gguf_value;

TN_API int64_t tn_gguf_key_count(const tn_gguf *file);
/* in the order of the file; NULL past the end */
TN_API const char *tn_gguf_key(const tn_gguf *file, int64_t i);
TN_API const tn_gguf_value *tn_gguf_get(const tn_gguf *file, const char *key); /* NULL when absent */
TN_API tn_gguf_type tn_gguf_type_of(const tn_gguf_value *v);                   /* TN_GGUF_TYPE_COUNT for NULL */
TN_API tn_gguf_type tn_gguf_item_type(const tn_gguf_value *v); /* of an array's items; of a scalar its own type */
TN_API int64_t tn_gguf_length(const tn_gguf_value *v);         /* items of an array; 1 for a scalar, 0 for NULL */
TN_API int64_t tn_gguf_offset(const tn_gguf_value *v);         /* place of the first item in the file; -1 for NULL */

/* Item i of an array; a scalar or a string has one item, number 0. Integers of every width and booleans are ints, f32,
 * f64 and ints are floats. A string's bytes lie in the mapping: `length` of them, not terminated, of any content.
 * Items of arrays of arrays cannot be read.
 * Errors: TN_ERR_ARGUMENT for i out of range or v NULL; TN_ERR_FORMAT for another type, naming file, key and byte. */
TN_API tn_status tn_gguf_int(const tn_gguf_value *v, int64_t i, int64_t *out);
TN_API tn_status tn_gguf_float(const tn_gguf_value *v, int64_t i, double *out);
TN_API tn_status tn_gguf_bool(const tn_gguf_value *v, int64_t i, bool *out);
TN_API tn_status tn_gguf_string(const tn_gguf_value *v, int64_t i, const char **text, int64_t *length);

/* The same for item 0 of the value under `key`; TN_ERR_FORMAT naming file and key when it is absent. */
TN_API tn_status tn_gguf_get_int(const tn_gguf *file, const char *key, int64_t *out);
TN_API tn_status tn_gguf_get_float(const tn_gguf *file, const char *key, double *out);
TN_API tn_status tn_gguf_get_bool(const tn_gguf *file, const char *key, bool *out);
TN_API tn_status tn_gguf_get_string(const tn_gguf *file, const char *key, const char **text, int64_t *length);

/* Facts about one tensor of a file. Strings and data live as long as the file is open. */
typedef struct tn_gguf_info {
    size_t struct_size; /* set by the caller */
    const char *name;
    const char *dtype_name; /* the format's word: "F32", "Q4_1", "IQ2_XS" … */
    tn_dtype dtype;         /* what tn_gguf_tensor makes of it: TN_Q8_X for IQ*, TQ*, MXFP4 and NVFP4 */
    int rank;
    int64_t shape[TN_MAX_RANK]; /* PyTorch's order, the last dim is contiguous: [rows, columns] of a matrix */
    const void *data;           /* in the mapping, of the type that dtype_name says; may be unaligned */
    int64_t bytes, offset;      /* length, and place in the file; of a split model, in its part */
} tn_gguf_info;

TN_API int64_t tn_gguf_count(const tn_gguf *file); /* tensors */
/* Tensor i in the file's order. TN_ERR_ARGUMENT when there is none. */
TN_API tn_status tn_gguf_at(const tn_gguf *file, int64_t i, tn_gguf_info *info);
/* The same by name; TN_ERR_FORMAT naming the file when there is none. */
TN_API tn_status tn_gguf_find(const tn_gguf *file, const char *name, tn_gguf_info *info);
/* A tensor of the file without a copy where the device can read host memory and the bytes are aligned: a new handle.
 * The i-quants and other types that become TN_Q8_X are decoded into memory of their own, 10 bits a weight, to the
 * values of the format. */
TN_API tn_tensor *tn_gguf_tensor(const tn_gguf *file, const char *name);
/* Copies `count` rows of a matrix in tn_gguf_info's dtype, one behind the other, tn_dtype_bytes(dtype, columns) each.
 * They are read, not mapped: of an embedding in which a few rows are looked up at a time, no more than these comes to
 * memory. Errors: TN_ERR_FORMAT when there is no such tensor; TN_ERR_ARGUMENT for one that is no matrix and for a row
 * that it does not have; TN_ERR_IO. */
TN_API tn_status tn_gguf_rows(const tn_gguf *file, const char *name, const int64_t *rows, int64_t count, void *out);

/* ---- writing GGUF ------------------------------------------------------------------------------------------------ */

/* A file on its way: first all metadata and the descriptions of all tensors, then the tensors' bytes in that order. The
 * file gets its name when all is there (tn_gguf_commit). Version 3, little-endian.
 * Threads: one thread at a time uses a writer. */
typedef struct tn_gguf_writer tn_gguf_writer;

/* `alignment`: of the tensors' bytes, a power of two up to 65536; 0: 32, the format's usual one. */
TN_API tn_status tn_gguf_create(const char *path, int64_t alignment, tn_gguf_writer **out);

/* Metadata. Errors: TN_ERR_ARGUMENT for a key that is there already, for a number that the type does not hold, and when
 * bytes of tensors were written before. */
TN_API tn_status tn_gguf_put_int(tn_gguf_writer *w, const char *key, tn_gguf_type type, int64_t v); /* integers, bool */
TN_API tn_status tn_gguf_put_float(tn_gguf_writer *w, const char *key, tn_gguf_type type, double v); /* f32, f64 */
TN_API tn_status tn_gguf_put_string(tn_gguf_writer *w, const char *key, const char *text, int64_t length);
/* Numbers as they lie in memory: int32_t for TN_GGUF_I32 …, a byte of 0 or 1 for TN_GGUF_BOOL. */
TN_API tn_status tn_gguf_put_array(tn_gguf_writer *w, const char *key, tn_gguf_type item, int64_t count,
                                   const void *items);
/* lengths NULL: the texts are terminated */
TN_API tn_status tn_gguf_put_strings(tn_gguf_writer *w, const char *key, int64_t count, const char *const *texts,
                                     const int64_t *lengths);
/* A value of an open file, of any type. */
TN_API tn_status tn_gguf_put_value(tn_gguf_writer *w, const char *key, const tn_gguf_value *v);

/* Describes the next tensor: name, rank, shape and dtype_name; where that is NULL, dtype. Nothing else is read. Errors:
 * TN_ERR_ARGUMENT for rows that are no whole blocks; TN_ERR_DTYPE for a dtype that the format has no word for. That two
 * tensors have one name is told by the first tn_gguf_write. */
TN_API tn_status tn_gguf_add(tn_gguf_writer *w, const tn_gguf_info *tensor);
/* Bytes of tensors, one behind the other in the order of tn_gguf_add, in pieces of any size within a tensor. */
TN_API tn_status tn_gguf_write(tn_gguf_writer *w, const void *data, int64_t bytes);
/* Ends the file: atomic, a file of that name stays as it was until the new one is whole. Frees w in any case. Errors:
 * TN_ERR_IO; TN_ERR_ARGUMENT naming the tensor whose bytes are missing. */
TN_API tn_status tn_gguf_commit(tn_gguf_writer *w);
TN_API void tn_gguf_abandon(tn_gguf_writer *w); /* leaves no file; NULL is fine */

/* The same at once, for tensors in memory (evaluated first) and texts as metadata. */
TN_API tn_status tn_gguf_save(const char *path, const tn_named_tensor *tensors, int count, const tn_metadata *metadata,
                              int metadata_count);

/* ---- quantising -------------------------------------------------------------------------------------------------- */

/* Numbers to blocks of `dtype`: TN_Q4_0, TN_Q4_1, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q2_K … TN_Q6_K. Scales are searched for
 * the least sum of squared errors, where those of larger numbers count more, so it takes longer than rounding to the
 * largest number would; on all threads.
 *   x: `count` numbers, whole blocks; what is not finite counts as 0.
 *   blocks: tn_dtype_bytes(dtype, count).
 * Errors: TN_ERR_DTYPE for another dtype; TN_ERR_ARGUMENT for a part of a block. */
TN_API tn_status tn_quantize_blocks(tn_dtype dtype, const float *x, int64_t count, void *blocks);

/* The same for the rows of a matrix whose columns do not count alike: importance[c] ≥ 0 says how much an error in
 * column c matters, as the mean square of the numbers that it is multiplied with does (tn_llm_importance). Only their
 * ratios count. importance: [columns], NULL: alike. columns: whole blocks. Errors: as above, TN_ERR_MEMORY besides. */
TN_API tn_status tn_quantize_rows(tn_dtype dtype, const float *x, int64_t count, const float *importance,
                                  int64_t columns, void *blocks);

/* ---- PyTorch's files --------------------------------------------------------------------------------------------- */

typedef struct tn_pickle tn_pickle;

/* Facts about one tensor of a file. Strings and data live as long as the file is open. */
typedef struct tn_pickle_info {
    size_t struct_size;     /* set by the caller */
    const char *name;       /* keys of dicts and places in lists, joined by dots: "model.0.weight" */
    const char *dtype_name; /* torch's: "float32", "bfloat16" … */
    tn_dtype dtype;         /* TN_DTYPE_COUNT for a type that only other programs compute with */
    int rank;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK]; /* in elements */
    const void *data;                                /* the first element, in the mapping; may be unaligned */
} tn_pickle_info;

/* Opens a .pt or .pth file that torch.save wrote: tensors in dicts, lists and tuples; state_dicts above all. Its pickle
 * is read, not run: of the names that it uses only those of tensors, storages and dicts are known, and any other is
 * refused, with the name. So a whole module cannot be read, but its state_dict can.
 * *out: closed with tn_pickle_close; tensors made from it stay valid after that. The file must not shrink meanwhile.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT naming the byte; TN_ERR_UNSUPPORTED for names that are not allowed, entries that are
 * compressed, big-endian files. Source: PyTorch's serialization notes; Python's pickletools.
 * Threads: an open file is read by any number of threads at once. */
TN_API tn_status tn_pickle_open(const char *path, tn_pickle **out);
TN_API void tn_pickle_close(tn_pickle *file); /* NULL is fine */
TN_API int64_t tn_pickle_count(const tn_pickle *file);
/* Tensor i in the file's order. TN_ERR_ARGUMENT when there is none. */
TN_API tn_status tn_pickle_at(const tn_pickle *file, int64_t i, tn_pickle_info *info);
/* The same by name; TN_ERR_FORMAT when there is none. */
TN_API tn_status tn_pickle_find(const tn_pickle *file, const char *name, tn_pickle_info *info);
/* A tensor without a copy where the device can read host memory, the bytes are aligned and the strides are those of a
 * contiguous tensor; else a copy: a new handle. Tensors that share a storage in the file do not share writes. */
TN_API tn_tensor *tn_pickle_tensor(const tn_pickle *file, const char *name);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* All variables below m, under their dotted names: a file that PyTorch's load_state_dict takes. Tied variables are
 * written under each of their names. */
TN_API tn_status tn_module_save(const tn_module *m, const char *path);

/* Reads the variables below m from a file; dtypes are converted. All or nothing: every variable must be there in its
 * shape; more in the file is fine. Of tied variables one name is enough, and several must have the same value. Errors:
 * TN_ERR_FORMAT naming the first variable that is missing or differs. */
TN_API tn_status tn_module_load(tn_module *m, const char *path);

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* What a run needs to go on as if it had not stopped. Every pointer may be NULL: what is not there is neither written
 * nor read. The random numbers of the calling thread always belong to it. */
typedef struct tn_checkpoint {
    size_t struct_size;
    tn_module *model;
    tn_optimizer *optimizer;   /* its state, step counts and learning rate */
    int64_t step;              /* saved; set by loading */
    const tn_variable *extras; /* further tensors of the run: environments, running averages */
    int extra_count;
    const char *json;  /* saved: free text, JSON by convention */
    char *loaded_json; /* set by loading: the free text, freed with tn_text_free, or NULL */
} tn_checkpoint;
#define TN_CHECKPOINT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_checkpoint, loaded_json), NULL, NULL, 0, NULL, 0, NULL, NULL }

/* One safetensors file; model variables under "model.NAME", optimiser state under "optimizer.NAME", extras under
 * "extra.NAME", the rest as metadata: "trunnion.kind" is "checkpoint", "step" and "json" are what the struct says. */
TN_API tn_status tn_checkpoint_save(const char *path, const tn_checkpoint *c);

/* Puts everything back, all or nothing: the same bits follow as without the stop, on the same device and numerics.
 * (Host memory that runs out while the writes are recorded is the exception: the failure says so, and the model is
 * lost.) Errors: TN_ERR_FORMAT when the file is no checkpoint or does not fit the model, naming what differs. */
TN_API tn_status tn_checkpoint_load(const char *path, tn_checkpoint *c);

/* ---- how much memory --------------------------------------------------------------------------------------------- */

/* A decoder-only language model's sizes, as config.json names them. */
typedef struct tn_model_sizes {
    size_t struct_size;
    int64_t hidden, intermediate, layers, vocabulary, heads; /* must be set */
    int64_t kv_heads;                                        /* default 0: as heads */
    int64_t sequence;                                        /* tokens of context; must be set */
    /* 4 for f32, 2 for bf16, 0.5625 for 4-bit blocks of 32; must be set where weights_bytes is not */
    double bytes_per_weight;
    double bytes_per_cache; /* an element of the key-value cache; default 2 (f16) */
    bool tied_embeddings;   /* input and output embedding are one matrix; default false */
    int64_t head_dim;       /* default 0: hidden / heads */
    int64_t chunk;          /* tokens of a prompt that are computed at once; default TN_PROMPT_CHUNK */
    int64_t weights_bytes;  /* of all weights where they are known; default 0: bytes_per_weight for each */
} tn_model_sizes;

enum { TN_PROMPT_CHUNK = 256 }; /* a prompt is cut into pieces of this many tokens */
#define TN_MODEL_SIZES_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_model_sizes, weights_bytes), 0, 0, 0, 0, 0, 0, 0, 0, 2, false, 0, TN_PROMPT_CHUNK, 0 }

/* total_bytes is the sum of all others: the most that a process which does nothing else has resident. */
typedef struct tn_memory_estimate {
    size_t struct_size; /* set by the caller */
    int64_t weights_bytes, cache_bytes, activation_bytes, total_bytes;
    int64_t gradient_bytes, optimizer_bytes; /* training only */
    int64_t runtime_bytes;                   /* the library, and what it keeps for each token of the vocabulary */
    int64_t parameters;                      /* number of weights */
} tn_memory_estimate;

/* Memory for inference, one sequence: weights, key-value cache, working space. Compare with tn_device_info, or hand
 * total_bytes to tn_device_options.minimum_memory so that devices with less are passed over.
 * Errors: TN_ERR_ARGUMENT for sizes ≤ 0 or such that exceed 64 bits. */
TN_API tn_status tn_estimate_inference_memory(const tn_model_sizes *sizes, tn_memory_estimate *out);

/* Memory for training on `batch` sequences of sizes->sequence tokens at once: weights, a gradient in f32 for each, as
 * many f32 states a weight as the optimiser keeps (0: plain SGD, 1: momentum, 2: Adam), and the values that the
 * backward pass needs. Attention is computed without keeping its scores. Errors: as above. */
TN_API tn_status tn_estimate_training_memory(const tn_model_sizes *sizes, int64_t batch, int states,
                                             tn_memory_estimate *out);

/* The sizes of a language model in a GGUF file, from its metadata and tensors alone. sequence: what the model was
 * trained for. Errors: TN_ERR_FORMAT naming what is missing. */
TN_API tn_status tn_gguf_model_sizes(const tn_gguf *file, tn_model_sizes *out);

/* The same for a path: a GGUF file, or a folder with config.json and safetensors as Hugging Face has language models.
 * Errors: those of opening besides; TN_ERR_UNSUPPORTED for an encoder's folder, which keeps no keys and values. */
TN_API tn_status tn_read_model_sizes(const char *path, tn_model_sizes *out);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_checkpoint_load(...) (tn_at(__FILE__, __LINE__), tn_checkpoint_load(__VA_ARGS__))
#define tn_gguf_tensor(...) (tn_at(__FILE__, __LINE__), tn_gguf_tensor(__VA_ARGS__))
#define tn_module_load(...) (tn_at(__FILE__, __LINE__), tn_module_load(__VA_ARGS__))
#define tn_pickle_tensor(...) (tn_at(__FILE__, __LINE__), tn_pickle_tensor(__VA_ARGS__))
#define tn_safetensors_tensor(...) (tn_at(__FILE__, __LINE__), tn_safetensors_tensor(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
