/* ranks.c — a training step of several processes: agreement, and gradients added in the order of the parts.
 *
 * The sum has the bits that one process with the same parts gets. So each rank owns a piece of the gradients: it
 * receives this piece of every part (all-to-all), adds the parts in their order, and all ranks gather the sums. If each
 * rank has one part, that is the traffic of a ring all-reduce. A rank that has failed still takes part in every
 * exchange, because the others wait for it. */
#include "nn/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { WORDS = 400, ALIGN = 64 /* bytes: pieces of ranks begin at vectors */ };

/* The head of a rank's report; a tn_part_report for each of its parts follows. */
typedef struct head {
    int64_t rows; /* of the batch; also aligns the reports behind it */
    int32_t status;
    char words[WORDS];
} head;

static tn_status out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "data parallel: out of memory"); }

static size_t bytes_of(const tn_tensor *t) { return (size_t)tn_numel(t) * tn_dtype_size(tn_dtype_of(t)); }

int tn_ranks_first_part(const tn_ranks *r, int rank) {
    return (int)((int64_t)r->parts * rank / tn_group_size(r->group));
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

tn_status tn_ranks_status(tn_group *group, tn_status status, const char *what) {
    int size = tn_group_size(group);
    int32_t own = (int32_t)status, *all = calloc((size_t)size, sizeof *all);
    if (!all) return tn_backend_fail(TN_ERR_MEMORY, "%s: out of memory", what);
    tn_status sent = tn_group_all_gather(group, &own, sizeof own, all);
    for (int rank = 0; rank < size && sent == TN_OK && status == TN_OK; rank++)
        if (all[rank] != TN_OK)
            sent = tn_backend_fail((tn_status)all[rank], "%s: rank %d failed: %s", what, rank,
                                   tn_status_name((tn_status)all[rank]));
    free(all);
    return status != TN_OK ? status : sent;
}

static const head *report_of(const tn_ranks *r, int rank) {
    return (const head *)(const void *)(r->reports + (size_t)rank * r->report_bytes);
}

/* A rank that has failed keeps its own words: it may have them from the others. */
static tn_status first_failure(const tn_ranks *r) {
    const head *own = report_of(r, tn_group_rank(r->group));
    if (own->status != TN_OK) return tn_backend_fail((tn_status)own->status, "%s", own->words);
    for (int rank = 0; rank < tn_group_size(r->group); rank++) {
        const head *h = report_of(r, rank);
        if (h->status != TN_OK) return tn_backend_fail((tn_status)h->status, "rank %d: %s", rank, h->words);
        if (h->rows != own->rows)
            return tn_backend_fail(TN_ERR_STATE, "data parallel: the batch has %lld rows here and %lld on rank %d",
                                   (long long)own->rows, (long long)h->rows, rank);
    }
    return TN_OK;
}

tn_status tn_ranks_agree(tn_ranks *r, tn_status status, const tn_part_report *own, tn_part_report *all) {
    head *h = (head *)(void *)r->report;
    tn_part_report *mine = (tn_part_report *)(void *)(h + 1);
    int first = tn_ranks_first_part(r, tn_group_rank(r->group));
    int next = tn_ranks_first_part(r, tn_group_rank(r->group) + 1);
    memset(r->report, 0, r->report_bytes);
    h->status = (int32_t)status;
    h->rows = r->rows;
    if (status != TN_OK) snprintf(h->words, sizeof h->words, "%s", tn_error());
    if (own) memcpy(mine, own, (size_t)(next - first) * sizeof *own);
    tn_status sent = tn_group_all_gather(r->group, r->report, r->report_bytes, r->reports);
    if (sent != TN_OK) return sent;
    sent = first_failure(r);
    for (int rank = 0; sent == TN_OK && all && rank < tn_group_size(r->group); rank++)
        for (int i = tn_ranks_first_part(r, rank), k = 0; i < tn_ranks_first_part(r, rank + 1); i++, k++)
            all[i] = ((const tn_part_report *)(const void *)(report_of(r, rank) + 1))[k];
    return sent;
}

static unsigned char presence_of(const tn_variable *v, const tn_tensor *value) {
    if (!value) return 0;
    return v->parameter ? TN_HAS_GRADIENT : TN_HAS_BUFFER;
}

static tn_status compare_part(const tn_ranks *r, int owner, const tn_rank_part *part) {
    for (int i = 0; i < r->count; i++) {
        const tn_variable *v = &r->variables[i];
        bool here = v->parameter && part->values[i], there = r->presence[i] & TN_HAS_GRADIENT;
        if (here != there)
            return tn_backend_fail(TN_ERR_STATE,
                                   "data parallel: the loss of part %d %s the parameter %s, but that of the first part "
                                   "(rank %d) %s; all parts must record the same computation",
                                   part->index, here ? "uses" : "does not use", v->name, owner,
                                   there ? "does" : "does not");
    }
    return TN_OK;
}

tn_status tn_ranks_compare(tn_ranks *r, int owner, const tn_rank_part *own, int own_count) {
    for (int i = 0; i < r->count && tn_group_rank(r->group) == owner; i++)
        r->presence[i] = own_count ? presence_of(&r->variables[i], own[0].values[i]) : 0;
    tn_status status = tn_group_broadcast(r->group, r->presence, (size_t)r->count, owner);
    for (int k = 0; k < own_count && status == TN_OK; k++)
        status = compare_part(r, owner, &own[k]);
    return status;
}

/* ---- equal variables at the beginning ---------------------------------------------------------------------------- */

/* FNV-1a of names, dtypes and shapes. */
static uint64_t structure_of(const tn_variable *variables, int count) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < count; i++) {
        char text[64];
        const tn_tensor *t = variables[i].tensor;
        const char *parts[] = {variables[i].name, text};
        int n = snprintf(text, sizeof text, "|%d", (int)tn_dtype_of(t));
        for (int d = 0; d < tn_rank(t) && n < (int)sizeof text - 24; d++)
            n += snprintf(text + n, sizeof text - (size_t)n, ",%lld", (long long)tn_size(t, d));
        for (int k = 0; k < 2; k++)
            for (const char *c = parts[k]; *c; c++)
                hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    }
    return hash;
}

/* All ranks must have the model and the number of parts of rank 0. */
static tn_status check_structure(tn_ranks *r) {
    struct {
        uint64_t structure;
        int64_t count, parts;
    } own, first;
    memset(&own, 0, sizeof own);
    own.structure = structure_of(r->variables, r->count);
    own.count = r->count;
    own.parts = r->parts;
    first = own;
    tn_status status = tn_group_broadcast(r->group, &first, sizeof first, 0);
    if (status != TN_OK) return status;
    if (memcmp(&own, &first, sizeof own) != 0)
        status =
            tn_backend_fail(TN_ERR_STATE,
                            "data parallel: this rank has %lld variables and %lld parts, rank 0 has %lld and "
                            "%lld; names, shapes and dtypes must be equal too",
                            (long long)own.count, (long long)own.parts, (long long)first.count, (long long)first.parts);
    return status;
}

static tn_status copy_from_first(tn_ranks *r, int i, void *block) {
    tn_tensor *t = r->variables[i].tensor;
    size_t bytes = bytes_of(t);
    bool first = tn_group_rank(r->group) == 0;
    tn_status status = first ? tn_read(t, block, bytes) : TN_OK;
    if (status != TN_OK) memset(block, 0, bytes);
    tn_status sent = tn_group_broadcast(r->group, block, bytes, 0);
    if (status != TN_OK || sent != TN_OK || first) return status != TN_OK ? status : sent;
    TN_SCOPE;
    TN_NO_GRAD;
    status = tn_status_of(tn_copy_(t, tn_from_data(block, tn_shape(t), tn_rank(t), tn_dtype_of(t))));
    return status == TN_OK ? tn_eval(NULL, 0) : status;
}

static tn_status copy_all_from_first(tn_ranks *r) {
    size_t most = 1;
    for (int i = 0; i < r->count; i++)
        if (bytes_of(r->variables[i].tensor) > most) most = bytes_of(r->variables[i].tensor);
    void *block = malloc(most);
    tn_status status = tn_ranks_agree(r, block ? TN_OK : out_of_memory(), NULL, NULL);
    tn_status first = TN_OK;
    for (int i = 0; i < r->count && status == TN_OK; i++) {
        tn_status one = copy_from_first(r, i, block);
        if (first == TN_OK) first = one;
    }
    free(block);
    return status == TN_OK ? tn_ranks_agree(r, first, NULL, NULL) : status;
}

static tn_status take_random_state(tn_ranks *r) {
    tn_random_state state = tn_get_random_state();
    tn_status status = tn_group_broadcast(r->group, &state, sizeof state, 0);
    if (status == TN_OK) tn_set_random_state(state);
    return status;
}

tn_status tn_ranks_begin(tn_ranks *r, tn_group *group, const tn_variable *variables, int count, int parts,
                         tn_status status) {
    int size = tn_group_size(group);
    *r = (tn_ranks){.group = group, .variables = variables, .count = count, .parts = parts};
    r->most = (parts + size - 1) / size;
    r->report_bytes = sizeof(head) + (size_t)r->most * sizeof(tn_part_report);
    r->presence = calloc((size_t)count + 1, 1);
    r->reports = malloc((size_t)size * r->report_bytes);
    r->report = malloc(r->report_bytes);
    if (status == TN_OK && (!r->presence || !r->reports || !r->report)) status = out_of_memory();
    status = tn_ranks_status(group, status, "data parallel");
    if (status == TN_OK) status = tn_ranks_status(group, check_structure(r), "data parallel");
    if (status == TN_OK) status = copy_all_from_first(r);
    return status == TN_OK ? take_random_state(r) : status;
}

void tn_ranks_end(tn_ranks *r) {
    free(r->presence);
    free(r->reports);
    free(r->report);
    *r = (tn_ranks){.group = NULL};
}

/* ---- sums of gradients ------------------------------------------------------------------------------------------- */

/* The gradients of one dtype, one after the other, cut into a piece for each rank. */
typedef struct exchange {
    tn_dtype dtype;
    size_t item, bytes;   /* of an element; of all elements */
    size_t piece;         /* bytes of a rank's piece; the last ones may reach beyond `bytes` */
    char *flat;           /* one part's gradients, or all sums: size pieces */
    char *send, *receive; /* [rank][its part][piece] */
} exchange;

static bool takes_part(const tn_ranks *r, int i, tn_dtype dtype) {
    return (r->presence[i] & TN_HAS_GRADIENT) && tn_dtype_of(r->variables[i].tensor) == dtype;
}

static void exchange_free(exchange *e) {
    free(e->flat);
    free(e->send);
    free(e->receive);
}

static tn_status exchange_make(const tn_ranks *r, tn_dtype dtype, exchange *e) {
    size_t size = (size_t)tn_group_size(r->group);
    *e = (exchange){.dtype = dtype, .item = tn_dtype_size(dtype)};
    for (int i = 0; i < r->count; i++)
        if (takes_part(r, i, dtype)) e->bytes += bytes_of(r->variables[i].tensor);
    e->piece = ((e->bytes + size - 1) / size + ALIGN - 1) / ALIGN * ALIGN;
    if (!e->bytes) return TN_OK;
    size_t rows = size * (size_t)r->most;
    e->flat = calloc(size, e->piece);
    e->send = calloc(rows, e->piece);
    e->receive = malloc(rows * e->piece);
    return e->flat && e->send && e->receive ? TN_OK : out_of_memory();
}

/* The gradients of a part into `send`, as its k-th of this rank. */
static tn_status pack_part(const tn_ranks *r, exchange *e, tn_tensor *const *values, int k) {
    size_t at = 0;
    for (int i = 0; i < r->count; i++) {
        if (!takes_part(r, i, e->dtype)) continue;
        size_t bytes = bytes_of(r->variables[i].tensor);
        tn_status status = tn_read(values[i], e->flat + at, bytes);
        if (status != TN_OK) return status;
        at += bytes;
    }
    for (size_t rank = 0; rank < (size_t)tn_group_size(r->group); rank++)
        memcpy(e->send + (rank * (size_t)r->most + (size_t)k) * e->piece, e->flat + rank * e->piece, e->piece);
    return TN_OK;
}

/* Adds this rank's piece of all parts, in their order, at the beginning of `send`. */
static tn_status add_pieces(const tn_ranks *r, exchange *e, const bool *has_rows) {
    int64_t elements = (int64_t)(e->piece / e->item);
    tn_tensor *sum = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    for (int rank = 0; rank < tn_group_size(r->group); rank++)
        for (int i = tn_ranks_first_part(r, rank), k = 0; i < tn_ranks_first_part(r, rank + 1); i++, k++) {
            if (!has_rows[i]) continue;
            const char *from = e->receive + ((size_t)rank * (size_t)r->most + (size_t)k) * e->piece;
            tn_tensor *piece = tn_from_data(from, &elements, 1, e->dtype);
            sum = sum ? tn_add(sum, piece) : piece;
        }
    return tn_read(sum, e->send, e->piece);
}

static tn_tensor *slice_of(const tn_tensor *flat, int64_t first, const tn_tensor *like) {
    return tn_reshape(tn_slice(flat, 0, first, first + tn_numel(like), 1), tn_shape(like), tn_rank(like));
}

/* Makes the totals from `flat`. */
static tn_status unpack(const tn_ranks *r, const exchange *e, tn_device *home, tn_tensor **totals) {
    tn_device *before = tn_current_device();
    int64_t elements = (int64_t)(e->bytes / e->item), first = 0;
    tn_status status = tn_set_current_device(home);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *flat = tn_from_data(e->flat, &elements, 1, e->dtype);
        for (int i = 0; i < r->count && status == TN_OK; i++) {
            if (!takes_part(r, i, e->dtype)) continue;
            totals[i] = tn_retain(slice_of(flat, first, r->variables[i].tensor));
            first += tn_numel(r->variables[i].tensor);
            status = tn_status_of(totals[i]);
        }
    }
    (void)tn_set_current_device(before);
    return status;
}

/* *late: what failed on this rank only when nothing remains to be exchanged. */
static tn_status sum_of_dtype(tn_ranks *r, tn_dtype dtype, const tn_rank_part *own, int own_count, const bool *has_rows,
                              tn_device *home, tn_tensor **totals, tn_status *late) {
    exchange e;
    int first = tn_ranks_first_part(r, tn_group_rank(r->group));
    tn_status status = exchange_make(r, dtype, &e);
    for (int k = 0; k < own_count && status == TN_OK && e.bytes; k++)
        status = pack_part(r, &e, own[k].values, own[k].index - first);
    if (e.bytes) status = tn_ranks_agree(r, status, NULL, NULL);
    if (status == TN_OK && e.bytes) {
        status = tn_group_all_to_all(r->group, e.send, (size_t)r->most * e.piece, e.receive);
        if (status == TN_OK) status = tn_ranks_agree(r, add_pieces(r, &e, has_rows), NULL, NULL);
        if (status == TN_OK) status = tn_group_all_gather(r->group, e.send, e.piece, e.flat);
        tn_status unpacked = status == TN_OK ? unpack(r, &e, home, totals) : TN_OK;
        if (*late == TN_OK) *late = unpacked;
    }
    exchange_free(&e);
    return status;
}

tn_status tn_ranks_sum(tn_ranks *r, const tn_rank_part *own, int own_count, const bool *has_rows, tn_device *home,
                       tn_tensor **totals) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    tn_status status = TN_OK, late = TN_OK;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] && status == TN_OK; i++)
        status = sum_of_dtype(r, dtypes[i], own, own_count, has_rows, home, totals, &late);
    return status != TN_OK ? status : late;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static size_t buffer_bytes(const tn_ranks *r, int i) {
    return r->presence[i] & TN_HAS_BUFFER ? bytes_of(r->variables[i].tensor) : 0;
}

static tn_tensor *tensor_at(const char *data, const tn_tensor *like, tn_device *home) {
    return tn_to_device(tn_from_data(data, tn_shape(like), tn_rank(like), tn_dtype_of(like)), home);
}

/* block: the buffers, one after the other. */
static tn_status share_block(tn_ranks *r, int owner, tn_tensor *const *values, char *block, size_t bytes) {
    tn_status status = block ? TN_OK : out_of_memory();
    size_t at = 0;
    for (int i = 0; i < r->count && status == TN_OK && tn_group_rank(r->group) == owner; i++) {
        if (!buffer_bytes(r, i)) continue;
        status = tn_read(values[i], block + at, buffer_bytes(r, i));
        at += buffer_bytes(r, i);
    }
    status = tn_ranks_agree(r, status, NULL, NULL);
    return status == TN_OK ? tn_group_broadcast(r->group, block, bytes, owner) : status;
}

tn_status tn_ranks_share_buffers(tn_ranks *r, int owner, tn_tensor *const *values, tn_device *home,
                                 tn_tensor **totals) {
    size_t bytes = 0, at = 0;
    for (int i = 0; i < r->count; i++)
        bytes += buffer_bytes(r, i);
    if (!bytes) return TN_OK;
    char *block = malloc(bytes);
    tn_status status = share_block(r, owner, values, block, bytes);
    for (int i = 0; i < r->count && status == TN_OK; i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        if (!buffer_bytes(r, i)) continue;
        totals[i] = tn_retain(tensor_at(block + at, r->variables[i].tensor, home));
        at += buffer_bytes(r, i);
        status = tn_status_of(totals[i]);
    }
    free(block);
    return status;
}
