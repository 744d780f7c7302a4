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

#include "nn/make.h"
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

/* A bucket: gradients of one dtype, one after the other, cut into a piece for each rank. With owners a rank's piece has
 * the gradients of its own variables. */
typedef struct tn_bucket {
    tn_dtype dtype;
    int first, end;          /* variables: those that take part of first … end - 1 */
    int64_t elements, piece; /* of all gradients; of a rank's piece, which may end with padding */
} exchange;

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

/* A rank that failed returns its own error; the others return the error of the first rank that failed. */
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
    TRY(tn_group_all_gather(r->group, r->report, r->report_bytes, r->reports));
    tn_status sent = first_failure(r);
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
        if (r->sharded && r->variables[i].parameter) continue;
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
    *r = (tn_ranks){.group = group, .variables = variables, .count = count, .parts = parts, .sharded = r->sharded};
    r->most = (parts + size - 1) / size;
    r->report_bytes = sizeof(head) + (size_t)r->most * sizeof(tn_part_report);
    r->presence = calloc((size_t)count + 1, 1);
    r->reports = malloc((size_t)size * r->report_bytes);
    r->report = malloc(r->report_bytes);
    r->lengths = malloc((size_t)size * sizeof *r->lengths);
    r->buckets = malloc(((size_t)count + 1) * sizeof *r->buckets);
    if (status == TN_OK && (!r->lengths || !r->buckets || !r->presence || !r->reports || !r->report))
        status = out_of_memory();
    status = tn_ranks_status(group, status, "data parallel");
    if (status == TN_OK) status = tn_ranks_status(group, check_structure(r), "data parallel");
    if (status == TN_OK) status = copy_all_from_first(r);
    return status == TN_OK ? take_random_state(r) : status;
}

void tn_ranks_end(tn_ranks *r) {
    free(r->presence);
    free(r->reports);
    free(r->report);
    free(r->lengths);
    free(r->buckets);
    *r = (tn_ranks){.group = NULL};
}

/* ---- sums of gradients ------------------------------------------------------------------------------------------- */

static bool takes_part(const tn_ranks *r, int i, tn_dtype dtype) {
    return (r->presence[i] & TN_HAS_GRADIENT) && tn_dtype_of(r->variables[i].tensor) == dtype;
}

/* Without owners there is one section, which reaches over the pieces of all ranks. */
static int sections(const tn_ranks *r) { return r->owners ? tn_group_size(r->group) : 1; }
static bool is_in_section(const tn_ranks *r, const exchange *e, int i, int section) {
    return takes_part(r, i, e->dtype) && (!r->owners || r->owners[i] == section);
}

static int64_t elements_of(const tn_ranks *r, const exchange *e, int section) {
    int64_t n = 0;
    for (int i = e->first; i < e->end; i++)
        if (is_in_section(r, e, i, section)) n += tn_numel(r->variables[i].tensor);
    return n;
}

/* A rank's piece, in elements, if the longest section has `longest`. */
static int64_t piece_of(const tn_ranks *r, tn_dtype dtype, int64_t longest) {
    int64_t size = tn_group_size(r->group), align = ALIGN / (int64_t)tn_dtype_size(dtype);
    if (!r->owners) longest = (longest + size - 1) / size;
    return (longest + align - 1) / align * align;
}

/* The next bucket, from variable `first` on: as many as fit, at least one. */
static exchange exchange_of(const tn_ranks *r, tn_dtype dtype, int first) {
    exchange e = {.dtype = dtype, .first = first, .end = first};
    int64_t most = r->bucket_bytes / tn_group_size(r->group) / (int64_t)tn_dtype_size(dtype), longest = 0;
    memset(r->lengths, 0, (size_t)sections(r) * sizeof *r->lengths);
    for (int i = first; i < r->count; i++) {
        if (!takes_part(r, i, dtype)) continue;
        int64_t n = tn_numel(r->variables[i].tensor), length = r->lengths[r->owners ? r->owners[i] : 0] += n;
        longest = length > longest ? length : longest;
        if (e.elements && piece_of(r, dtype, longest) > most) return e;
        e = (exchange){dtype, first, i + 1, e.elements + n, piece_of(r, dtype, longest)};
    }
    e.end = r->count;
    return e;
}

/* The gradients of a part as [ranks, piece]; NULL if the part belongs to another rank. */
static tn_tensor *pack_part(const tn_ranks *r, const exchange *e, tn_tensor *const *values, tn_tensor **room) {
    int64_t size = tn_group_size(r->group), shape[] = {size, e->piece};
    int count = 0;
    if (!values) return tn_zeros(shape, 2, e->dtype);
    for (int k = 0; k < sections(r); k++) {
        int64_t rest = (r->owners ? 1 : size) * e->piece - elements_of(r, e, k);
        for (int i = e->first; i < e->end; i++)
            if (is_in_section(r, e, i, k)) room[count++] = tn_reshape(values[i], (int64_t[]){-1}, 1);
        if (rest) room[count++] = tn_zeros(&rest, 1, e->dtype);
    }
    return tn_reshape(tn_cat(room, count, 0), shape, 2);
}

static void forget_sent(const tn_ranks *r, const exchange *e, const tn_rank_part *own, int own_count) {
    for (int k = 0; k < own_count; k++)
        for (int i = e->first; i < e->end; i++) {
            if (!takes_part(r, i, e->dtype)) continue;
            tn_free(own[k].values[i]);
            own[k].values[i] = NULL;
        }
}

/* What this rank sends, [ranks, its parts, piece], evaluated. Handles to values in between would keep memory. */
static tn_status pack(const tn_ranks *r, const exchange *e, const tn_rank_part *own, int own_count, tn_tensor **send) {
    int first = tn_ranks_first_part(r, tn_group_rank(r->group));
    size_t most = (size_t)(e->end - e->first + tn_group_size(r->group));
    tn_tensor **room = malloc((most + (size_t)r->most) * sizeof *room), **parts = room + most;
    if (!room) return out_of_memory();
    {
        TN_SCOPE;
        for (int k = 0; k < r->most; k++) {
            tn_tensor *const *values = NULL;
            for (int i = 0; i < own_count; i++)
                if (own[i].index - first == k) values = own[i].values;
            parts[k] = pack_part(r, e, values, room);
        }
        *send = tn_keep(tn_stack(parts, r->most, 1));
    }
    free(room);
    return tn_eval(send, 1);
}

/* This rank's piece of all parts, added in their order. */
static tn_tensor *add_pieces(const tn_ranks *r, const tn_tensor *received, const bool *has_rows) {
    tn_tensor *sum = NULL;
    TN_SCOPE;
    for (int rank = 0; rank < tn_group_size(r->group); rank++)
        for (int i = tn_ranks_first_part(r, rank), k = 0; i < tn_ranks_first_part(r, rank + 1); i++, k++) {
            if (!has_rows[i]) continue;
            tn_tensor *piece = tn_select(tn_select(received, 0, rank), 0, k);
            sum = sum ? tn_add(sum, piece) : piece;
        }
    return tn_keep(sum);
}

/* Zeros that take the memory of one number. */
static tn_tensor *no_gradient(const tn_tensor *like) {
    int64_t ones[TN_MAX_RANK];
    for (int d = 0; d < TN_MAX_RANK; d++)
        ones[d] = 1;
    return tn_expand(tn_zeros(ones, tn_rank(like), tn_dtype_of(like)), tn_shape(like), tn_rank(like));
}

/* sums: of all pieces, or with owners of this rank's. */
static tn_status unpack(const tn_ranks *r, const exchange *e, const tn_tensor *sums, tn_tensor **totals) {
    tn_tensor *flat = tn_reshape(sums, (int64_t[]){-1}, 1);
    tn_status status = tn_status_of(flat);
    int64_t first = 0;
    for (int i = e->first; i < e->end && status == TN_OK; i++) {
        const tn_tensor *like = r->variables[i].tensor;
        if (!takes_part(r, i, e->dtype)) continue;
        bool here = is_in_section(r, e, i, r->owners ? tn_group_rank(r->group) : 0);
        tn_tensor *slice = here ? tn_slice(flat, 0, first, first + tn_numel(like), 1) : NULL;
        totals[i] = tn_retain(here ? tn_reshape(slice, tn_shape(like), tn_rank(like)) : no_gradient(like));
        first += here ? tn_numel(like) : 0;
        status = tn_status_of(totals[i]);
    }
    return status;
}

/* r->buckets: the gradients, in the order of the variables. Returns how many. */
static int cut_buckets(tn_ranks *r) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    int count = 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        for (exchange e = {.end = 0}; e.end < r->count;) {
            e = exchange_of(r, dtypes[i], e.end);
            if (e.elements) r->buckets[count++] = e;
        }
    return count;
}

/* *late: what failed on this rank only when nothing remains to be exchanged. */
static tn_status sum_of_bucket(tn_ranks *r, const exchange *e, const tn_rank_part *own, int own_count,
                               const bool *has_rows, tn_tensor **totals, tn_status *late) {
    tn_tensor *send = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    TRY(tn_ranks_agree(r, pack(r, e, own, own_count, &send), NULL, NULL));
    forget_sent(r, e, own, own_count);
    tn_tensor *received = tn_group_all_to_all_tensor(r->group, send);
    tn_status status = tn_ranks_status(r->group, tn_status_of(received), "data parallel");
    if (status != TN_OK) return status;
    tn_tensor *sums = add_pieces(r, received, has_rows);
    if (r->owners) {
        status = tn_ranks_status(r->group, tn_eval(&sums, 1), "data parallel");
    } else {
        sums = tn_group_all_gather_tensor(r->group, sums);
        status = tn_status_of(sums);
    }
    tn_status unpacked = status == TN_OK ? unpack(r, e, sums, totals) : TN_OK;
    if (*late == TN_OK) *late = unpacked;
    return status;
}

tn_status tn_ranks_sum(tn_ranks *r, const tn_rank_part *own, int own_count, const bool *has_rows, tn_device *home,
                       tn_tensor **totals) {
    tn_device *before = tn_current_device();
    tn_status status = tn_set_current_device(home), late = TN_OK;
    int count = cut_buckets(r);
    for (int i = 0; i < count && status == TN_OK; i++)
        status = sum_of_bucket(r, &r->buckets[i], own, own_count, has_rows, totals, &late);
    (void)tn_set_current_device(before);
    return status != TN_OK ? status : late;
}

/* ---- sums as steps of the backward pass -------------------------------------------------------------------------- */

/* A bucket under way: what was sent, the sum of this rank's piece, and what the exchange of each will have received. */
typedef struct flight {
    const exchange *bucket;
    tn_tensor *sent, *posted, *sum, *gathered;
} flight;

/* The gradients of all sections, one after the other; without owners padded to equal pieces. */
static tn_tensor *pack_closely(const tn_ranks *r, const exchange *e, tn_tensor *const *values, tn_tensor **room) {
    int64_t all = r->owners ? e->elements : tn_group_size(r->group) * e->piece, rest = all - e->elements;
    int count = 0;
    if (!values) return tn_zeros(&all, 1, e->dtype);
    for (int k = 0; k < sections(r); k++)
        for (int i = e->first; i < e->end; i++)
            if (is_in_section(r, e, i, k)) room[count++] = tn_reshape(values[i], (int64_t[]){-1}, 1);
    if (rest) room[count++] = tn_zeros(&rest, 1, e->dtype);
    return count == 1 ? tn_contiguous(room[0]) : tn_cat(room, count, 0);
}

/* Every step is recorded after `*last`, the one before, so that all ranks run them in one order. */
static tn_status record_sending(const tn_ranks *r, const tn_rank_part *own, int own_count, flight *f,
                                tn_tensor **last) {
    const exchange *e = f->bucket;
    tn_tensor **room = malloc((size_t)(e->end - e->first + tn_group_size(r->group)) * sizeof *room);
    if (!room) return out_of_memory();
    for (int rank = 0; rank < tn_group_size(r->group); rank++)
        r->lengths[rank] = r->owners ? elements_of(r, e, rank) : e->piece;
    f->sent = pack_closely(r, e, own_count ? own[0].values : NULL, room);
    free(room);
    forget_sent(r, e, own, own_count);
    *last = f->posted = tn_group_post_scatter(r->group, f->sent, r->lengths, *last);
    return tn_status_of(*last);
}

static tn_status record_sum(const tn_ranks *r, const bool *has_rows, flight *f, tn_tensor **last, tn_tensor **totals) {
    tn_tensor *received = tn_group_receive(r->group, f->posted, f->sent, *last);
    if (r->owners && !elements_of(r, f->bucket, tn_group_rank(r->group))) {
        *last = received;
        return unpack(r, f->bucket, received, totals);
    }
    int64_t shape[] = {tn_group_size(r->group), 1, tn_numel(received) / tn_group_size(r->group)};
    *last = f->sum = add_pieces(r, tn_reshape(received, shape, 3), has_rows);
    if (r->owners) return unpack(r, f->bucket, f->sum, totals);
    *last = f->gathered = tn_group_post_all_gather(r->group, f->sum, *last);
    return tn_status_of(*last);
}

static tn_status record_arrival(const tn_ranks *r, const flight *f, tn_tensor **last, tn_tensor **totals) {
    *last = tn_group_receive(r->group, f->gathered, f->sum, *last);
    return unpack(r, f->bucket, *last, totals);
}

/* In round k bucket k is sent, the one before arrives and is added, and the sums of the one before that arrive: so one
 * exchange of each kind is under way while the backward pass computes the next bucket. */
tn_status tn_ranks_record(tn_ranks *r, const tn_rank_part *own, int own_count, const bool *has_rows, tn_device *home,
                          tn_tensor **totals, tn_tensor **all) {
    enum { AT_WORK = 3 };
    int count = cut_buckets(r);
    tn_device *before = tn_current_device();
    tn_status status = tn_set_current_device(home);
    flight flights[AT_WORK];
    tn_tensor *last = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    for (int k = 0; k < count + 2 && status == TN_OK; k++) {
        /* the last variables first: the backward pass begins with them */
        if (k < count) flights[k % AT_WORK] = (flight){.bucket = &r->buckets[count - 1 - k]};
        if (k < count) status = record_sending(r, own, own_count, &flights[k % AT_WORK], &last);
        if (status == TN_OK && k >= 1 && k <= count)
            status = record_sum(r, has_rows, &flights[(k - 1) % AT_WORK], &last, totals);
        if (status == TN_OK && k >= 2 && !r->owners)
            status = record_arrival(r, &flights[(k - 2) % AT_WORK], &last, totals);
    }
    /* a value of its own: a view would not wait for the last exchange */
    *all = last && status == TN_OK ? tn_retain(tn_neg(tn_slice(last, 0, 0, 1, 1))) : NULL;
    (void)tn_set_current_device(before);
    return status;
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
