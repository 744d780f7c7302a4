/* data.h — training data: the order of batches, sources of samples, and a loader that reads ahead in threads.
 *
 *   tn_dataset *d;
 *   tn_loader *l;
 *   tn_tensor *batch[2];
 *   tn_loader_options o = TN_LOADER_DEFAULTS;
 *   o.batch = 64;
 *   o.drop_last = true;
 *   tn_dataset_idx("train-images-idx3-ubyte", "train-labels-idx1-ubyte", &d);
 *   tn_loader_new(d, &o, &l);
 *   while (…) tn_loader_next(l, batch, NULL); // [64, 28, 28] u8 and [64] u8, handles of the scope
 *
 * With drop_last all batches have one shape, so one plan serves all of them. */
#ifndef TRUNNION_DATA_H
#define TRUNNION_DATA_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Which samples each batch has. A plain struct without memory of its own; (epoch, next) is the whole position: save the
 * two and set them to go on at the same batch. Each epoch has its own order, which depends only on seed and epoch: a
 * keyed permutation of the numbers (Luby and Rackoff 1988: a Feistel network with cycle walking); nothing is kept. */
typedef struct tn_batches {
    size_t struct_size;
    int64_t count;       /* samples; must be set */
    int64_t batch;       /* samples of a batch; default 1 */
    uint64_t seed;       /* default 0 */
    bool shuffle;        /* default true; false: 0, 1, 2 … in each epoch */
    bool drop_last;      /* default false: the last batch of an epoch may be smaller */
    int64_t epoch, next; /* position: the epoch, and the batch within it that comes next; default 0, 0 */
} tn_batches;
#define TN_BATCHES_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_batches, next), 0, 1, 0, true, false, 0, 0 }

/* Returns the number of batches of an epoch; 0 for settings out of range, with tn_error set. */
TN_API int64_t tn_batches_per_epoch(const tn_batches *b);
/* Writes the numbers of the next batch's samples to indices [batch], moves the position on, and returns how many there
 * are. 0 for settings out of range, with tn_error set. */
TN_API int64_t tn_batches_next(tn_batches *b, int64_t *indices);

/* ---- sources ----------------------------------------------------------------------------------------------------- */

enum { TN_DATASET_FIELDS = 8 }; /* of a sample at most */

/* Samples by number, each with the same fields. */
typedef struct tn_dataset tn_dataset;

/* One field of a sample: "x" [28, 28] u8. */
typedef struct tn_dataset_field {
    int rank;
    int64_t shape[TN_MAX_RANK];
    tn_dtype dtype;
} tn_dataset_field;

/* Writes field `field` of a sample to `out`, contiguous. Called by several threads at once. On failure it calls
 * tn_backend_fail. */
typedef tn_status tn_dataset_read(void *ctx, int64_t sample, int field, void *out);

/* Creates a source of your own.
 *   fields: field_count of at most TN_DATASET_FIELDS, rank at most TN_MAX_RANK - 1; copied.
 *   destroy: frees ctx with the source, also if this fails; may be NULL.
 * Errors: TN_ERR_ARGUMENT, TN_ERR_MEMORY. */
TN_API tn_status tn_dataset_new(int64_t count, const tn_dataset_field *fields, int field_count, tn_dataset_read *read,
                                void (*destroy)(void *ctx), void *ctx, tn_dataset **out);
TN_API void tn_dataset_free(tn_dataset *d);           /* NULL is allowed */
TN_API int64_t tn_dataset_count(const tn_dataset *d); /* samples; 0 for NULL */
TN_API int tn_dataset_fields(const tn_dataset *d);    /* 0 for NULL */

/* NumPy files (.npy, C order), one a field, whose first extents are the number of samples and agree. Samples are read
 * when they are needed. dtypes: f2, f4, f8, i1 to i8, u1, b1, little-endian.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT; TN_ERR_UNSUPPORTED for other dtypes and Fortran order. */
TN_API tn_status tn_dataset_npy(const char *const *paths, int count, tn_dataset **out);

/* Files of the MNIST kind (IDX): images [n, …] and labels [n]; labels may be NULL. Errors: as above. */
TN_API tn_status tn_dataset_idx(const char *images, const char *labels, tn_dataset **out);

/* A file of token ids, 2 (unsigned) or 4 bytes each, without header: sample i has ids [length] and the ids that follow
 * each of them, both i64, from place i · length on. Errors: TN_ERR_IO; TN_ERR_ARGUMENT if the file is too short. */
TN_API tn_status tn_dataset_tokens(const char *path, int bytes, int64_t length, tn_dataset **out);

/* A table of numbers with commas, read at once: field 0 the columns but `label` as f32, field 1 column `label` as i64
 * (-1: no label, one field). A first line that has no number is skipped. Errors: TN_ERR_IO; TN_ERR_FORMAT with the
 * line. */
TN_API tn_status tn_dataset_csv(const char *path, int64_t label, tn_dataset **out);

/* ---- loader ------------------------------------------------------------------------------------------------------ */

typedef struct tn_loader tn_loader;

typedef struct tn_loader_options {
    size_t struct_size;
    int64_t batch;           /* default 1 */
    uint64_t seed;           /* default 0 */
    bool shuffle, drop_last; /* default true, false */
    int threads;             /* that read ahead; default 1, at most 64; 0: tn_loader_next reads */
    int ahead;               /* batches that are kept ready; default 2, at most 64 */
} tn_loader_options;
#define TN_LOADER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_loader_options, ahead), 1, 0, true, false, 1, 2 }

/* d must outlive the loader. Errors: TN_ERR_ARGUMENT for options out of range; TN_ERR_MEMORY. */
TN_API tn_status tn_loader_new(tn_dataset *d, const tn_loader_options *options, tn_loader **out);
TN_API void tn_loader_free(tn_loader *l); /* NULL is allowed */

/* Hands out the next batch: fields[f] is a new handle, [rows, shape of the field], one for each field of the source;
 * *rows may be NULL. The batches do not depend on the number of threads. Errors: those of the source, with the sample;
 * the next call then tries the batch after it. Threads: one at a time. */
TN_API tn_status tn_loader_next(tn_loader *l, tn_tensor **fields, int64_t *rows);

/* tn_loader_position: the position after the last batch handed out. tn_loader_seek: continues from such a position and
 * discards what was read ahead. Errors: TN_ERR_ARGUMENT for negative numbers. */
TN_API void tn_loader_position(const tn_loader *l, int64_t *epoch, int64_t *next);
TN_API tn_status tn_loader_seek(tn_loader *l, int64_t epoch, int64_t next);

#ifdef __cplusplus
}
#endif
#endif
