/* model.h — model files: reading and writing safetensors and GGUF, reading PyTorch files, saving and loading weights
 * and checkpoints, quantization, memory estimates.
 *
 * Files are memory-mapped: opening reads only the header, and the bytes of a tensor are read when they are used. Files
 * are saved atomically: a process that is killed while saving leaves the complete old or the complete new file. All
 * contents of a file are validated. */
#ifndef TRUNNION_MODEL_H
#define TRUNNION_MODEL_H

#include "trunnion/nn.h"
#include "trunnion/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

typedef struct tn_safetensors tn_safetensors;

/* Description of one tensor of a file. Strings and data are valid as long as the file is open. */
typedef struct tn_safetensors_info {
    size_t struct_size; /* set by the caller */
    const char *name;
    const char *dtype_name; /* as in the file: "F32", "BF16", "F8_E4M3" … */
    tn_dtype dtype;         /* TN_DTYPE_COUNT for a type that Trunnion does not support */
    int rank;
    int64_t shape[TN_MAX_RANK];
    const void *data; /* in the mapping; may be unaligned */
    int64_t bytes;
} tn_safetensors_info;

/* Opens a file, or the shards of a model as one file, and validates all headers (bounds, overlaps, gaps, duplicate
 * names, sizes).
 *   path: a file; an index of shards (its name ends in ".index.json") in the folder of the shards; or a folder with
 *     model.safetensors or model.safetensors.index.json.
 *   *out: closed with tn_safetensors_close; tensors made from it stay valid after that. The files must not be truncated
 *     while they are open.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT with what is wrong and where. Source: Hugging Face, safetensors. */
TN_API tn_status tn_safetensors_open(const char *path, tn_safetensors **out);
TN_API void tn_safetensors_close(tn_safetensors *file); /* NULL is allowed */

TN_API int tn_safetensors_count(const tn_safetensors *file);
/* Describes tensor i in the order of the headers, or the tensor `name`. Errors: TN_ERR_ARGUMENT if i is out of range;
 * TN_ERR_FORMAT if there is no such name. */
TN_API tn_status tn_safetensors_at(const tn_safetensors *file, int i, tn_safetensors_info *info);
TN_API tn_status tn_safetensors_find(const tn_safetensors *file, const char *name, tn_safetensors_info *info);
/* Returns a tensor of the file as a new handle; without a copy if the device can read host memory and the bytes are
 * aligned. */
TN_API tn_tensor *tn_safetensors_tensor(const tn_safetensors *file, const char *name);

/* Returns the metadata text under `key` (of the first shard), NULL if absent; and key i, NULL if out of range. */
TN_API const char *tn_safetensors_metadata(const tn_safetensors *file, const char *key);
TN_API const char *tn_safetensors_metadata_key(const tn_safetensors *file, int i);

typedef struct tn_named_tensor {
    const char *name;
    const tn_tensor *tensor;
} tn_named_tensor;

typedef struct tn_metadata {
    const char *key, *value;
} tn_metadata;

/* Evaluates tensors and writes them and the metadata to a file. Names must be unique and not "__metadata__".
 * Errors: TN_ERR_IO, TN_ERR_ARGUMENT, TN_ERR_DTYPE. */
TN_API tn_status tn_safetensors_save(const char *path, const tn_named_tensor *tensors, int count,
                                     const tn_metadata *metadata, int metadata_count);

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

typedef struct tn_gguf tn_gguf;

/* Types of metadata values; the numbers are those of the format. */
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

/* Opens a GGUF file (version 2 or 3, little-endian) and validates its metadata: counts, lengths, nesting, duplicate
 * names, offsets and sizes of tensors. The data of tensors is not read. The first file of a split model
 * ("NAME-00001-of-00003.gguf") opens the others in its folder and has all tensors.
 *   *out: closed with tn_gguf_close; tensors made from it stay valid after that. The file must not be truncated while
 *     it is open.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT with file, byte and what is wrong; TN_ERR_UNSUPPORTED for version 1 and big-endian
 * files. Threads: any number may read an open file at once. Source: ggml, gguf.md. */
TN_API tn_status tn_gguf_open(const char *path, tn_gguf **out);
TN_API void tn_gguf_close(tn_gguf *file);             /* NULL is allowed */
TN_API const char *tn_gguf_path(const tn_gguf *file); /* as it was opened, for messages */

/* A metadata value: a scalar, a string or an array. Valid as long as the file is open. */
typedef struct tn_gguf_value tn_gguf_value;

TN_API int64_t tn_gguf_key_count(const tn_gguf *file);
/* in the order of the file; NULL past the end */
TN_API const char *tn_gguf_key(const tn_gguf *file, int64_t i);
TN_API const tn_gguf_value *tn_gguf_get(const tn_gguf *file, const char *key); /* NULL when absent */
TN_API tn_gguf_type tn_gguf_type_of(const tn_gguf_value *v);                   /* TN_GGUF_TYPE_COUNT for NULL */
TN_API tn_gguf_type tn_gguf_item_type(const tn_gguf_value *v); /* of an array's items; of a scalar its own type */
TN_API int64_t tn_gguf_length(const tn_gguf_value *v);         /* items of an array; 1 for a scalar, 0 for NULL */
TN_API int64_t tn_gguf_offset(const tn_gguf_value *v);         /* place of the first item in the file; -1 for NULL */

/* Read item i of an array; a scalar or string has one item, 0. tn_gguf_int reads integers of every width and booleans;
 * tn_gguf_float also f32 and f64. The bytes of a string are in the mapping: `length` bytes, not terminated, not
 * validated. Arrays of arrays cannot be read.
 * Errors: TN_ERR_ARGUMENT if i is out of range or v is NULL; TN_ERR_FORMAT, with file, key and byte, for another
 * type. */
TN_API tn_status tn_gguf_int(const tn_gguf_value *v, int64_t i, int64_t *out);
TN_API tn_status tn_gguf_float(const tn_gguf_value *v, int64_t i, double *out);
TN_API tn_status tn_gguf_bool(const tn_gguf_value *v, int64_t i, bool *out);
TN_API tn_status tn_gguf_string(const tn_gguf_value *v, int64_t i, const char **text, int64_t *length);

/* The same for item 0 of the value of `key`. Errors: TN_ERR_FORMAT, with file and key, if it is absent. */
TN_API tn_status tn_gguf_get_int(const tn_gguf *file, const char *key, int64_t *out);
TN_API tn_status tn_gguf_get_float(const tn_gguf *file, const char *key, double *out);
TN_API tn_status tn_gguf_get_bool(const tn_gguf *file, const char *key, bool *out);
TN_API tn_status tn_gguf_get_string(const tn_gguf *file, const char *key, const char **text, int64_t *length);

/* Description of one tensor of a file. Strings and data are valid as long as the file is open. */
typedef struct tn_gguf_info {
    size_t struct_size; /* set by the caller */
    const char *name;
    const char *dtype_name; /* as in the format: "F32", "Q4_1", "IQ2_XS" … */
    tn_dtype dtype;         /* dtype of tn_gguf_tensor: TN_Q8_X for IQ*, TQ*, MXFP4 and NVFP4 */
    int rank;
    int64_t shape[TN_MAX_RANK]; /* in PyTorch's order, the last dimension contiguous: [rows, columns] of a matrix */
    const void *data;           /* in the mapping, of type dtype_name; may be unaligned */
    int64_t bytes, offset;      /* length, and offset in the file; of a split model in its part */
} tn_gguf_info;

TN_API int64_t tn_gguf_count(const tn_gguf *file); /* tensors */
/* Describes tensor i in the order of the file, or the tensor `name`. Errors: TN_ERR_ARGUMENT if i is out of range;
 * TN_ERR_FORMAT, with the file, if there is no such name. */
TN_API tn_status tn_gguf_at(const tn_gguf *file, int64_t i, tn_gguf_info *info);
TN_API tn_status tn_gguf_find(const tn_gguf *file, const char *name, tn_gguf_info *info);
/* Returns a tensor of the file as a new handle; without a copy if the device can read host memory and the bytes are
 * aligned. Types that become TN_Q8_X (i-quants and others) are decoded exactly into memory of their own, 10 bits per
 * weight. */
TN_API tn_tensor *tn_gguf_tensor(const tn_gguf *file, const char *name);
/* Copies `count` rows of a matrix to `out`, in the dtype of tn_gguf_info: tn_dtype_bytes(dtype, columns) bytes each.
 * The rows are read, not mapped, so looking up rows of an embedding loads only those rows into memory.
 * Errors: TN_ERR_FORMAT if there is no such tensor; TN_ERR_ARGUMENT if it is not a matrix, or a row is out of range;
 * TN_ERR_IO. */
TN_API tn_status tn_gguf_rows(const tn_gguf *file, const char *name, const int64_t *rows, int64_t count, void *out);

/* ---- writing GGUF ------------------------------------------------------------------------------------------------ */

/* Writer of a GGUF file (version 3, little-endian): first all metadata and the descriptions of all tensors, then the
 * bytes of the tensors in that order. The file appears under its name with tn_gguf_commit.
 * Threads: one thread at a time may use a writer. */
typedef struct tn_gguf_writer tn_gguf_writer;

/* Creates a writer; it is freed by tn_gguf_commit or tn_gguf_abandon.
 *   alignment: of the data of tensors, a power of two up to 65536; 0: 32, the default of the format. */
TN_API tn_status tn_gguf_create(const char *path, int64_t alignment, tn_gguf_writer **out);

/* Add metadata. Errors: TN_ERR_ARGUMENT if the key exists already, the type cannot represent the number, or tensor data
 * was already written. */
TN_API tn_status tn_gguf_put_int(tn_gguf_writer *w, const char *key, tn_gguf_type type, int64_t v); /* integers, bool */
TN_API tn_status tn_gguf_put_float(tn_gguf_writer *w, const char *key, tn_gguf_type type, double v); /* f32, f64 */
TN_API tn_status tn_gguf_put_string(tn_gguf_writer *w, const char *key, const char *text, int64_t length);
/* items: `count` numbers in memory: int32_t for TN_GGUF_I32 …, one byte, 0 or 1, for TN_GGUF_BOOL. */
TN_API tn_status tn_gguf_put_array(tn_gguf_writer *w, const char *key, tn_gguf_type item, int64_t count,
                                   const void *items);
/* lengths: NULL if the strings are terminated by a 0 byte. */
TN_API tn_status tn_gguf_put_strings(tn_gguf_writer *w, const char *key, int64_t count, const char *const *texts,
                                     const int64_t *lengths);
/* Copies a value of an open file, of any type. */
TN_API tn_status tn_gguf_put_value(tn_gguf_writer *w, const char *key, const tn_gguf_value *v);

/* Describes the next tensor by its name, rank, shape and dtype_name (if that is NULL, dtype). Other fields are ignored.
 * Errors: TN_ERR_ARGUMENT if rows are not a multiple of the block size; TN_ERR_DTYPE if the format cannot store the
 * dtype. Duplicate names are reported by the first tn_gguf_write. */
TN_API tn_status tn_gguf_add(tn_gguf_writer *w, const tn_gguf_info *tensor);
/* Writes bytes of tensors, in the order of tn_gguf_add, in pieces of any size within a tensor. */
TN_API tn_status tn_gguf_write(tn_gguf_writer *w, const void *data, int64_t bytes);
/* Completes the file atomically; until then an existing file of this name is unchanged. Always frees w.
 * Errors: TN_ERR_IO; TN_ERR_ARGUMENT with the tensor whose bytes are missing. */
TN_API tn_status tn_gguf_commit(tn_gguf_writer *w);
TN_API void tn_gguf_abandon(tn_gguf_writer *w); /* leaves no file; NULL is allowed */

/* Writes a GGUF file in one call, from tensors (evaluated first) and string metadata. */
TN_API tn_status tn_gguf_save(const char *path, const tn_named_tensor *tensors, int count, const tn_metadata *metadata,
                              int metadata_count);

/* ---- quantizing -------------------------------------------------------------------------------------------------- */

/* Quantizes numbers to blocks of `dtype`: TN_Q4_0, TN_Q4_1, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q2_K … TN_Q6_K. Scales are
 * chosen by a search for the least sum of squared errors, weighted towards larger numbers. Uses all threads.
 *   x: `count` numbers, a multiple of the block size; numbers that are not finite count as 0.
 *   blocks: tn_dtype_bytes(dtype, count) bytes.
 * Errors: TN_ERR_DTYPE for another dtype; TN_ERR_ARGUMENT if count is not a multiple of the block size. */
TN_API tn_status tn_quantize_blocks(tn_dtype dtype, const float *x, int64_t count, void *blocks);

/* The same for rows of a matrix with weighted columns.
 *   importance: [columns], each at least 0: the weight of errors in a column, for example the mean square of the
 *     activations that it is multiplied with (tn_llm_importance); only ratios matter. NULL: equal weights.
 *   columns: a multiple of the block size. Errors: those above, and TN_ERR_MEMORY. */
TN_API tn_status tn_quantize_rows(tn_dtype dtype, const float *x, int64_t count, const float *importance,
                                  int64_t columns, void *blocks);

/* ---- PyTorch files ----------------------------------------------------------------------------------------------- */

typedef struct tn_pickle tn_pickle;

/* Description of one tensor of a file. Strings and data are valid as long as the file is open. */
typedef struct tn_pickle_info {
    size_t struct_size;     /* set by the caller */
    const char *name;       /* keys of dicts and indices of lists, joined by dots: "model.0.weight" */
    const char *dtype_name; /* PyTorch's name: "float32", "bfloat16" … */
    tn_dtype dtype;         /* TN_DTYPE_COUNT for a type that Trunnion does not support */
    int rank;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK]; /* in elements */
    const void *data;                                /* the first element, in the mapping; may be unaligned */
} tn_pickle_info;

/* Opens a .pt or .pth file of torch.save with tensors in dicts, lists and tuples, such as a state_dict. The pickle is
 * parsed, not executed: only the names of tensors, storages and dicts are accepted, so a whole module cannot be read,
 * but its state_dict can.
 *   *out: closed with tn_pickle_close; tensors made from it stay valid after that. The file must not be truncated while
 *     it is open.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT with the byte; TN_ERR_UNSUPPORTED for other names, compressed entries and big-endian
 * files. Threads: any number may read an open file at once. Source: torch.load with weights_only; pickletools. */
TN_API tn_status tn_pickle_open(const char *path, tn_pickle **out);
TN_API void tn_pickle_close(tn_pickle *file); /* NULL is allowed */
TN_API int64_t tn_pickle_count(const tn_pickle *file);
/* Describes tensor i in the order of the file, or the tensor `name`. Errors: TN_ERR_ARGUMENT if i is out of range;
 * TN_ERR_FORMAT if there is no such name. */
TN_API tn_status tn_pickle_at(const tn_pickle *file, int64_t i, tn_pickle_info *info);
TN_API tn_status tn_pickle_find(const tn_pickle *file, const char *name, tn_pickle_info *info);
/* Returns a tensor of the file as a new handle; without a copy if the device can read host memory, the bytes are
 * aligned and the tensor is contiguous. Tensors that share a storage in the file do not share writes. */
TN_API tn_tensor *tn_pickle_tensor(const tn_pickle *file, const char *name);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Saves all variables below m under their dotted names to a safetensors file, whose tensors PyTorch's load_state_dict
 * accepts. Tied variables are written under each of their names. */
TN_API tn_status tn_module_save(const tn_module *m, const char *path);

/* Loads the variables below m from a safetensors file, all or none; dtypes are converted. Every variable must be in the
 * file with its shape; other tensors are ignored. One name of a tied variable is enough; several must have equal
 * values.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT with the first variable that is missing or differs. */
TN_API tn_status tn_module_load(tn_module *m, const char *path);

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* State of a training run, from which it continues as if it had not stopped. Every pointer may be NULL: that part is
 * neither saved nor loaded. The state of the calling thread's random generator is always included. */
typedef struct tn_checkpoint {
    size_t struct_size;
    tn_module *model;
    tn_optimizer *optimizer;   /* its state, step counts and learning rate */
    int64_t step;              /* saved as given; set by loading */
    const tn_variable *extras; /* further tensors of the run: environments, running averages */
    int extra_count;
    const char *json;  /* saved: free text, JSON by convention */
    char *loaded_json; /* set by loading: the free text, freed with tn_text_free, or NULL */
} tn_checkpoint;
#define TN_CHECKPOINT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_checkpoint, loaded_json), NULL, NULL, 0, NULL, 0, NULL, NULL }

/* Saves a checkpoint as one safetensors file: model variables as "model.NAME", optimizer state as "optimizer.NAME",
 * extras as "extra.NAME", the rest as metadata ("trunnion.kind" is "checkpoint"). */
TN_API tn_status tn_checkpoint_save(const char *path, const tn_checkpoint *c);

/* Loads a checkpoint, all or nothing. Continuing then gives the same bits as without the interruption, on the same
 * device with the same numerics. (Exception: if host memory runs out while the writes are recorded, the error says so,
 * and the model must be loaded again.) Errors: TN_ERR_IO; TN_ERR_FORMAT if the file is not a checkpoint, or with what
 * differs from the model. */
TN_API tn_status tn_checkpoint_load(const char *path, tn_checkpoint *c);

/* ---- memory estimates -------------------------------------------------------------------------------------------- */

/* Sizes of a decoder-only language model, with the names of config.json. */
typedef struct tn_model_sizes {
    size_t struct_size;
    int64_t hidden, intermediate, layers, vocabulary, heads; /* must be set */
    int64_t kv_heads;                                        /* default 0: as heads */
    int64_t sequence;                                        /* tokens of context; must be set */
    /* 4 for f32, 2 for bf16, 0.5625 for 4-bit blocks of 32; must be set if weights_bytes is not */
    double bytes_per_weight;
    double bytes_per_cache; /* bytes of an element of the key/value cache; default 2 (f16) */
    bool tied_embeddings;   /* input and output embedding are one matrix; default false */
    int64_t head_dim;       /* default 0: hidden / heads */
    int64_t chunk;          /* tokens of a prompt that are processed at once; default TN_PROMPT_CHUNK */
    int64_t weights_bytes;  /* of all weights, if known; default 0: use bytes_per_weight */
    int64_t parameters;     /* number of weights, if known; default 0: that of a Llama of these sizes */
} tn_model_sizes;

enum { TN_PROMPT_CHUNK = 256 }; /* a prompt is processed in chunks of this many tokens */
#define TN_MODEL_SIZES_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_model_sizes, parameters), 0, 0, 0, 0, 0, 0, 0, 0, 2, false, 0, TN_PROMPT_CHUNK, 0, 0 }

/* Memory estimate. total_bytes is the sum of the others: the peak resident memory of a process that does nothing
 * else. */
typedef struct tn_memory_estimate {
    size_t struct_size; /* set by the caller */
    int64_t weights_bytes, cache_bytes, activation_bytes, total_bytes;
    int64_t gradient_bytes, optimizer_bytes; /* training only */
    int64_t runtime_bytes; /* the library, its data per token of the vocabulary, unused ends of blocks of weights */
    int64_t parameters;    /* number of weights */
} tn_memory_estimate;

/* Estimates the memory for inference of one sequence: weights, key/value cache, activations. Compare it with
 * tn_device_info, or set tn_device_options.minimum_memory to total_bytes to skip devices with less.
 * Errors: TN_ERR_ARGUMENT for sizes that are not positive or exceed 64 bits. */
TN_API tn_status tn_estimate_inference_memory(const tn_model_sizes *sizes, tn_memory_estimate *out);

/* Estimates the memory for training on `batch` sequences of sizes->sequence tokens at once: weights, their gradients in
 * f32, the optimizer's f32 states per weight (`states`: 0 for SGD, 1 with momentum, 2 for Adam), and the activations
 * that the backward pass needs (attention without its scores). Errors: as above. */
TN_API tn_status tn_estimate_training_memory(const tn_model_sizes *sizes, int64_t batch, int states,
                                             tn_memory_estimate *out);

/* Reads the sizes of a language model in a GGUF file from its metadata and tensor descriptions. sequence: the context
 * length of the model. Errors: TN_ERR_FORMAT with what is missing. */
TN_API tn_status tn_gguf_model_sizes(const tn_gguf *file, tn_model_sizes *out);

/* The same for a path: a GGUF file, or a Hugging Face folder of a language model. Safetensors may be missing, and path
 * may be a config.json file: without weights, weights_bytes is 0 and bytes_per_weight is that of f32.
 * Errors: also those of opening; TN_ERR_UNSUPPORTED for the folder of an encoder, which has no key/value cache, and for
 * a mixture of experts without weights. */
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
