/* torch_file.h — inside of PyTorch's files: pickles as values, and the zip directory. */
#ifndef TN_TORCH_FILE_H
#define TN_TORCH_FILE_H

#include "base/base.h"
#include "trunnion/tensor.h"

/* ==== pickles ===================================================================================================== */

typedef enum tn_pickle_kind {
    TN_PICKLE_NONE, /* also objects that are not used */
    TN_PICKLE_BOOL,
    TN_PICKLE_INT,
    TN_PICKLE_FLOAT,
    TN_PICKLE_STRING,
    TN_PICKLE_TUPLE,
    TN_PICKLE_LIST,
    TN_PICKLE_DICT, /* keys and values in turn */
    TN_PICKLE_GLOBAL,
    TN_PICKLE_STORAGE,
    TN_PICKLE_TENSOR
} tn_pickle_kind;

/* A storage: its number, element type and number of elements, as the file states them. */
typedef struct tn_pickle_storage {
    const char *key; /* in the file's bytes, not terminated */
    size_t key_length;
    int type; /* of tn_pickle_types */
    int64_t count;
} tn_pickle_storage;

typedef struct tn_pickle_place {
    uint32_t storage;
    int type, rank;
    int64_t offset, shape[TN_MAX_RANK], stride[TN_MAX_RANK]; /* in elements */
} tn_pickle_place;

typedef struct tn_pickle_type {
    const char *storage, *name; /* torch's: "FloatStorage" and "float32" */
    tn_dtype dtype;             /* TN_DTYPE_COUNT: not computed with */
    uint8_t size;
} tn_pickle_type;
extern const tn_pickle_type tn_pickle_types[];

typedef struct tn_pickle_node {
    uint8_t kind;
    int row;              /* of a global: which */
    uint32_t first, last; /* cells of a container, 0: none */
    int64_t number;       /* of an int, a bool; length of a string; index of a storage or tensor */
    double real;
    const char *text;
} tn_pickle_node;

typedef struct tn_pickle_cell {
    uint32_t node, next;
} tn_pickle_cell;

/* What a pickle became. */
typedef struct tn_pickle_values {
    tn_pickle_node *nodes;
    tn_pickle_cell *cells; /* cell 0 is not used */
    tn_pickle_storage *storages;
    tn_pickle_place *tensors;
    size_t node_count, node_capacity, cell_count, cell_capacity;
    size_t storage_count, storage_capacity, tensor_count, tensor_capacity;
    uint32_t root;
} tn_pickle_values;

/* Reads the pickle at the beginning of `bytes`; *used: its length. `base`: its place in the file, for messages. Errors:
 * TN_ERR_FORMAT naming the byte; TN_ERR_UNSUPPORTED naming the global that is not allowed. */
tn_status tn_pickle_read(const uint8_t *bytes, size_t size, size_t base, tn_pickle_values *out, size_t *used);
void tn_pickle_values_free(tn_pickle_values *v);

/* ==== zip directory =============================================================================================== */

typedef struct tn_zip_entry {
    const char *name; /* in the archive's bytes, not terminated */
    size_t name_length;
    const uint8_t *data;
    size_t size;
} tn_zip_entry;

typedef struct tn_zip {
    tn_zip_entry *entries; /* sorted by name */
    size_t count;
} tn_zip;

#endif
