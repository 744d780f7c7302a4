/* ranks.h — what data_parallel.c needs of a group of processes: equal variables, agreement, sums of gradients. */
#ifndef TN_NN_RANKS_H
#define TN_NN_RANKS_H

#include "trunnion/distributed.h"
#include "trunnion/optim.h"

/* How the parts of a batch are divided among ranks: rank r computes parts first_of(r) … first_of(r + 1) - 1. */
typedef struct tn_ranks {
    tn_group *group;
    const tn_variable *variables; /* the model's, untied */
    int count, parts;
    int most;                /* parts of a rank at most */
    int64_t rows;            /* of the batch; must be the same on all ranks */
    int64_t bucket_bytes;    /* of gradients that are exchanged at once, unless one is larger */
    bool sharded;            /* each rank has its own part of each parameter: rank 0's are not copied */
    const int *owners;       /* of each variable: the rank that keeps its summed gradient; NULL: all do */
    unsigned char *presence; /* TN_HAS_… of each variable in this step, as the owner of the first part has it */
    char *reports, *report;  /* of all ranks; this rank's */
    size_t report_bytes;
    int64_t *lengths;          /* [ranks]: elements of each rank's section, while a bucket is filled */
    struct tn_bucket *buckets; /* room for one a variable */
} tn_ranks;

enum { TN_HAS_GRADIENT = 1, TN_HAS_BUFFER = 2 };

/* What a rank tells the others of a part. */
typedef struct tn_part_report {
    double loss;
    uint64_t random; /* how many random numbers recording it used */
} tn_part_report;

/* Every rank learns whether one has failed: returns this rank's status, or else that of the first rank that failed, as
 * "WHAT: rank 1 failed: …". */
tn_status tn_ranks_status(tn_group *group, tn_status status, const char *what);

/* Checks that all ranks have the same variables and copies rank 0's values and random state to all. status: whether
 * this rank is ready; if one is not, it fails on all. */
tn_status tn_ranks_begin(tn_ranks *r, tn_group *group, const tn_variable *variables, int count, int parts,
                         tn_status status);
void tn_ranks_end(tn_ranks *r);

int tn_ranks_first_part(const tn_ranks *r, int rank);

/* Tells every rank how this one did and what its parts yielded. own: a report for each part of this rank; all: for each
 * part of the batch. Fails on every rank if one has failed, with its words. */
tn_status tn_ranks_agree(tn_ranks *r, tn_status status, const tn_part_report *own, tn_part_report *all);

/* A part of this rank that has rows: values[i] is the gradient of variable i. */
typedef struct tn_rank_part {
    int index;
    tn_tensor **values;
} tn_rank_part;

/* own: this rank's parts. Takes over the presence that the owner's first part has and compares: TN_ERR_STATE (on this
 * rank) if a part of this rank has gradients of other variables. */
tn_status tn_ranks_compare(tn_ranks *r, int owner, const tn_rank_part *own, int own_count);

/* Adds the gradients of all parts of all ranks that have rows (has_rows[part]), in the order of the parts: totals[i] is
 * a new handle on `home` for each variable that has one. With owners it has the sum on its owner, and elsewhere zeros
 * without memory of their own. The gradients are freed, and their values become NULL, when they have been sent. */
tn_status tn_ranks_sum(tn_ranks *r, const tn_rank_part *own, int own_count, const bool *has_rows, tn_device *home,
                       tn_tensor **totals);
/* The same recorded (distributed.h), for ranks with at most one part each: buckets are exchanged while the backward
 * pass goes on, the last variables first. *all: a new handle whose evaluation runs all exchanges, also those of buckets
 * in which this rank owns nothing; NULL: there are none. Then every rank must call tn_group_settle. */
tn_status tn_ranks_record(tn_ranks *r, const tn_rank_part *own, int own_count, const bool *has_rows, tn_device *home,
                          tn_tensor **totals, tn_tensor **all);
/* Copies the buffers that the owner's first part has written: totals[i] is a new handle for each. */
tn_status tn_ranks_share_buffers(tn_ranks *r, int owner, tn_tensor *const *values, tn_device *home, tn_tensor **totals);

#endif
