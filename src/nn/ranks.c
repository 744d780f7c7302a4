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
    int64_t elements, piece; /* of all gradients; of a rank's piece: the last ones may reach beyond `elements` */
} exchange;

static bool takes_part(const tn_ranks *r, int i, tn_dtype dtype) {
    return (r->presence[i] & TN_HAS_GRADIENT) && tn_dtype_of(r->variables[i].tensor) == dtype;
}

static exchange exchange_of(const tn_ranks *r, tn_dtype dtype) {
    exchange e = {.dtype = dtype};
    int64_t size = tn_group_size(r->group), align = ALIGN / (int64_t)tn_dtype_size(dtype);
    for (int i = 0; i < r->count; i++)
        if (takes_part(r, i, dtype)) e.elements += tn_numel(r->variables[i].tensor);
    e.piece = ((e.elements + size - 1) / size + align - 1) / align * align;
    return e;
}

/* The gradients of a part as [ranks, piece]; NULL: the part is none of this rank's. */
static tn_tensor *pack_part(const tn_ranks *r, const exchange *e, tn_tensor *const *values, tn_tensor **room) {
    int64_t size = tn_group_size(r->group), shape[] = {size, e->piece};
    int count = 0;
    if (!values) return tn_zeros(shape, 2, e->dtype);
    for (int i = 0; i < r->count; i++)
        if (takes_part(r, i, e->dtype)) room[count++] = tn_reshape(values[i], (int64_t[]){-1}, 1);
    tn_tensor *flat = tn_cat(room, count, 0);
    return tn_reshape(tn_pad(flat, (int64_t[]){0, size * e->piece - e->elements}, 2, 0), shape, 2);
}

/* What this rank sends, [ranks, its parts, piece], evaluated. */
static tn_status pack(const tn_ranks *r, const exchange *e, const tn_rank_part *own, int own_count, tn_tensor **send) {
    int first = tn_ranks_first_part(r, tn_group_rank(r->group));
    tn_tensor **room = malloc(((size_t)r->count + (size_t)r->most) * sizeof *room), **parts = room + r->count;
    if (!room) return out_of_memory();
    for (int k = 0; k < r->most; k++) {
        tn_tensor *const *values = NULL;
        for (int i = 0; i < own_count; i++)
            if (own[i].index - first == k) values = own[i].values;
        parts[k] = pack_part(r, e, values, room);
    }
    *send = tn_stack(parts, r->most, 1);
    free(room);
    return tn_eval(send, 1);
}

/* This rank's piece of all parts, added in their order. */
static tn_tensor *add_pieces(const tn_ranks *r, const tn_tensor *received, const bool *has_rows) {
    tn_tensor *sum = NULL;
    for (int rank = 0; rank < tn_group_size(r->group); rank++)
        for (int i = tn_ranks_first_part(r, rank), k = 0; i < tn_ranks_first_part(r, rank + 1); i++, k++) {
            if (!has_rows[i]) continue;
            tn_tensor *piece = tn_select(tn_select(received, 0, rank), 0, k);
            sum = sum ? tn_add(sum, piece) : piece;
        }
    return sum;
}

static tn_status unpack(const tn_ranks *r, const exchange *e, const tn_tensor *all, tn_tensor **totals) {
    tn_tensor *flat = tn_reshape(all, (int64_t[]){-1}, 1);
    tn_status status = tn_status_of(flat);
    int64_t first = 0;
    for (int i = 0; i < r->count && status == TN_OK; i++) {
        const tn_tensor *like = r->variables[i].tensor;
        if (!takes_part(r, i, e->dtype)) continue;
        tn_tensor *slice = tn_slice(flat, 0, first, first + tn_numel(like), 1);
        totals[i] = tn_retain(tn_reshape(slice, tn_shape(like), tn_rank(like)));
        first += tn_numel(like);
        status = tn_status_of(totals[i]);
    }
    return status;
}

/* *late: what failed on this rank only when nothing remains to be exchanged. */
static tn_status sum_of_dtype(tn_ranks *r, tn_dtype dtype, const tn_rank_part *own, int own_count, const bool *has_rows,
                              tn_tensor **totals, tn_status *late) {
    exchange e = exchange_of(r, dtype);
    tn_tensor *send = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    if (!e.elements) return TN_OK;
    tn_status status = tn_ranks_agree(r, pack(r, &e, own, own_count, &send), NULL, NULL);
    if (status != TN_OK) return status;
    tn_tensor *received = tn_group_all_to_all_tensor(r->group, send);
    status = tn_ranks_status(r->group, tn_status_of(received), "data parallel");
    if (status != TN_OK) return status;
    tn_tensor *all = tn_group_all_gather_tensor(r->group, add_pieces(r, received, has_rows));
    status = tn_status_of(all);
    tn_status unpacked = status == TN_OK ? unpack(r, &e, all, totals) : TN_OK;
    if (*late == TN_OK) *late = unpacked;
    return status;
}

tn_status tn_ranks_sum(tn_ranks *r, const tn_rank_part *own, int own_count, const bool *has_rows, tn_device *home,
                       tn_tensor **totals) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    tn_device *before = tn_current_device();
    tn_status status = tn_set_current_device(home), late = TN_OK;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] && status == TN_OK; i++)
        status = sum_of_dtype(r, dtypes[i], own, own_count, has_rows, totals, &late);
    (void)tn_set_current_device(before);
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
