/* model.h — models in files: safetensors in and out, a module's weights, checkpoints, and how much memory a model needs.
 *
 * A file is read through a mapping: opening costs the header, and a tensor's bytes are touched when they are used. A file
 * is written beside its name and then renamed: whoever is killed while saving leaves the old file or the new one, whole.
 * What a file claims is checked before it is believed. */
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

/* Opens a file and checks its header whole: bounds, overlaps, holes, duplicate names, sizes that do not fit.
 * *out: closed with tn_safetensors_close; tensors made from it stay valid after that. The file must not shrink meanwhile.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT naming what is wrong where. Source: the format's description by Hugging Face. */
TN_API tn_status tn_safetensors_open(const char *path, tn_safetensors **out);
TN_API void tn_safetensors_close(tn_safetensors *file); /* NULL is fine */

TN_API int tn_safetensors_count(const tn_safetensors *file);
/* Tensor i in the order of the header. TN_ERR_ARGUMENT when there is none. */
TN_API tn_status tn_safetensors_at(const tn_safetensors *file, int i, tn_safetensors_info *info);
/* The same by name. */
TN_API tn_status tn_safetensors_find(const tn_safetensors *file, const char *name, tn_safetensors_info *info);
/* A tensor of the file without a copy where the device can read host memory and the bytes are aligned: a new handle. */
TN_API tn_tensor *tn_safetensors_tensor(const tn_safetensors *file, const char *name);

/* The file's free text under `key`; NULL when absent. Entry i for listing: NULL past the end. */
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

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* All variables below m, under their dotted names: a file that PyTorch's load_state_dict takes. */
TN_API tn_status tn_module_save(const tn_module *m, const char *path);

/* Reads the variables below m from a file; dtypes are converted. All or nothing: every variable must be there in its shape;
 * more in the file is fine. Errors: TN_ERR_FORMAT naming the first variable that is missing or differs. */
TN_API tn_status tn_module_load(tn_module *m, const char *path);

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* What a run needs to go on as if it had not stopped. Every pointer may be NULL: what is not there is neither written nor
 * read. The random numbers of the calling thread always belong to it. */
typedef struct tn_checkpoint {
    size_t struct_size; /* set by the caller */
    tn_module *model;
    tn_optimizer *optimizer;   /* its state and step count */
    int64_t step;              /* saved; set by loading */
    const tn_variable *extras; /* further tensors of the run: environments, running averages */
    int extra_count;
    const char *json;  /* saved: free text, JSON by convention */
    char *loaded_json; /* set by loading: the free text, freed with tn_text_free, or NULL */
} tn_checkpoint;

/* One safetensors file; model variables under "model.NAME", optimiser state under "optimizer.NAME", extras under
 * "extra.NAME", the rest as metadata: "trunnion.kind" is "checkpoint", "step" and "json" are what the struct says. */
TN_API tn_status tn_checkpoint_save(const char *path, const tn_checkpoint *c);

/* Puts everything back, all or nothing: the same bits follow as without the stop, on the same device and numerics. (Host
 * memory that runs out while the writes are recorded is the exception: the failure says so, and the model is lost.)
 * Errors: TN_ERR_FORMAT when the file is no checkpoint or does not fit the model, naming what differs. */
TN_API tn_status tn_checkpoint_load(const char *path, tn_checkpoint *c);

/* ---- how much memory --------------------------------------------------------------------------------------------- */

/* A decoder-only language model's sizes, as config.json names them. */
typedef struct tn_model_sizes {
    size_t struct_size;                                                /* set by the caller */
    int64_t hidden, intermediate, layers, vocabulary, heads, kv_heads; /* kv_heads 0: as heads */
    int64_t sequence;                                                  /* tokens of context */
    double bytes_per_weight; /* 4 for f32, 2 for bf16, 0.5625 for 4-bit blocks of 32 */
    double bytes_per_cache;  /* an element of the key-value cache; 0: 2 (f16) */
    bool tied_embeddings;    /* input and output embedding are one matrix */
} tn_model_sizes;

typedef struct tn_memory_estimate {
    size_t struct_size; /* set by the caller */
    int64_t weights_bytes, cache_bytes, activation_bytes, total_bytes;
} tn_memory_estimate;

/* Memory for inference, one sequence: weights, key-value cache, working space. Compare with tn_device_info, or hand
 * total_bytes to tn_device_options.minimum_memory so that devices with less are passed over.
 * Errors: TN_ERR_ARGUMENT for sizes ≤ 0 or such that exceed 64 bits. */
TN_API tn_status tn_estimate_inference_memory(const tn_model_sizes *sizes, tn_memory_estimate *out);

#ifdef __cplusplus
}
#endif
#endif
