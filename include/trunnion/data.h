/* data.h — training data: the order of batches, sources of samples, and a loader that reads ahead in threads.
 *
 *   tn_dataset *d;
 *   tn_dataset_idx("train-images-idx3-ubyte", "train-labels-idx1-ubyte", &d);
 *   tn_loader_options o = TN_LOADER_DEFAULTS;
 *   o.batches = (tn_batches)TN_BATCHES_DEFAULTS;
 *   o.batches.batch = 64;
 *   tn_loader_new(d, &o, &l);
 *   while (…) { tn_tensor *x[2]; tn_loader_next(l, x, NULL); … tn_free(x[0]); tn_free(x[1]); }
 *
 * All batches of a loader have one shape (with drop_last), so one plan serves all of them. */
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

#ifdef __cplusplus
}
#endif
#endif
