/* data_parallel.c — training and inference on several devices: each computes a part of the batch.
 *
 * While a part is recorded, the module's handles refer to the copies on that part's device (tn_swap), so any forward
 * function works here unchanged. Parts are submitted to the devices' queues one after another and fetched in order.
 * The model is written only after all parts have arrived, so a part whose device failed can be computed by another
 * device. Buffers (running statistics) are copied for each part; the first part's new values are written together with
 * the optimizer's step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/make.h"
#include "nn/optimizer.h"
#include "nn/ranks.h"
#include "trunnion/amp.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/data_parallel.h"
#include "trunnion/ops.h"

enum { MOST_PARTS = 256, MOST_DEVICES = 64, LEAST_BUCKET = 1 << 20, MOST_BUCKET = 25 << 20, BUCKETS = 32 };

/* A value of a variable: the handle's value, and how often it was written. */
typedef struct version {
    uint64_t id; /* 0: none */
    int64_t writes;
} version;

/* A device that computes parts. */
typedef struct member {
    tn_device *device;
    tn_queue *queue;    /* NULL: its own */
    tn_tensor **copies; /* of each variable; NULL at home, which has the variables themselves */
    version *copied;    /* the variables' values then */
    int64_t parts;
    bool lost;
    char reason[sizeof((tn_data_parallel_device *)NULL)->reason];
} member;

struct tn_data_parallel {
    tn_device *home;
    tn_variable *variables;
    int count;
    tn_tensor **stand_ins; /* a variable each, while a part is recorded; NULL: it stands for itself */
    member *members;
    int member_count, parts;
    double *shares;  /* of the parts, up to and with each: the last is the sum; NULL: even */
    tn_tensor **ran; /* what parts yield, `row` tensors each */
    bool sum;
    bool saves_memory, recomputes;
    int64_t refused; /* the least that a step needed for which there was no memory; 0: there always was */
    tn_fallback fallback;
    /* In a group of several processes; otherwise group is NULL. */
    tn_group *group;
    tn_ranks ranks;
    tn_tensor **totals;      /* of each variable: the sum of gradients, or the buffer's new value */
    tn_part_report *reports; /* of all parts, in the step before: how many random numbers each uses */
    bool shards_gradients;
    int *owners; /* of each variable's summed gradient, with shards_gradients */
    int64_t bucket_bytes;
    bool overlaps;          /* gradients are exchanged while the backward pass runs, in the evaluation of the part */
    tn_division *divisions; /* of each variable, if this group divides the parameters (tn_module_shard); or NULL */
};

/* A part at work, and what it yields: the function's result; for each variable the parameter's gradient or the buffer's
 * new value, NULL when there is none. */
typedef struct work {
    tn_part part;
    member *by;
    tn_random_state random; /* before it */
    double weight;          /* of its loss in the batch's */
    double loss;
    tn_tensor *result, **values;
} work;

/* A call: the function of parts, and the parts. */
typedef struct call {
    tn_data_parallel *p;
    tn_part_function *function;
    void *ctx;
    bool train, wants_loss;
    const tn_optimizer *optimizer; /* of a training step: it may scale the loss */
    work *works;                   /* those that have rows and are computed by this process */
    int count;
    int next;         /* variable that is likely asked for next */
    int first;        /* the first part of the batch that has rows */
    tn_tensor **sums; /* sums of the gradients of all works except the last, and the buffers' new values */
} call;

static tn_status data_parallel_out_of_memory(void) {
    return tn_backend_fail(TN_ERR_MEMORY, "data parallel: out of memory");
}

static const char *id_of(const tn_device *device, tn_device_info *info) {
    info->struct_size = sizeof *info;
    return tn_device_get_info(device, info) == TN_OK ? info->id : "a device";
}

static void free_tensors(tn_tensor **tensors, int count) {
    for (int i = 0; tensors && i < count; i++) {
        tn_free(tensors[i]);
        tensors[i] = NULL;
    }
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

void tn_data_parallel_free(tn_data_parallel *p) {
    if (!p) return;
    for (int i = 0; i < p->member_count; i++) {
        member *m = &p->members[i];
        tn_queue_free(m->queue);
        free_tensors(m->copies, p->count);
        free(m->copies);
        free(m->copied);
    }
    tn_ranks_end(&p->ranks);
    if (p->totals) free_tensors(p->totals, p->count);
    free(p->totals);
    free(p->reports);
    free(p->owners);
    free(p->divisions);
    tn_variables_free(p->variables);
    free(p->stand_ins);
    free(p->members);
    free(p->shares);
    free(p->ran);
    free(p);
}

static tn_status add_member(tn_data_parallel *p, tn_device *device, bool alone) {
    member *m = &p->members[p->member_count++];
    m->device = device;
    if (device != p->home) {
        m->copies = calloc((size_t)p->count + 1, sizeof *m->copies);
        m->copied = calloc((size_t)p->count + 1, sizeof *m->copied);
        if (!m->copies || !m->copied) return data_parallel_out_of_memory();
    }
    return alone ? TN_OK : tn_queue_new(device, &m->queue);
}

/* Layers that the ranks divide exclude that they divide the batch, but not parameters that are gathered. */
static tn_status take_divisions(tn_data_parallel *p, const tn_module *m) {
    for (int i = 0; i < p->count; i++) {
        tn_division d = tn_nn_division(m, p->variables[i].tensor);
        if (!d.group) continue;
        if (d.elements && d.group != p->group)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "data parallel: %s is divided among the ranks of %s group (tn_module_shard); pass "
                                   "that group as options.group",
                                   p->variables[i].name, p->group ? "another" : "a");
        if (!d.elements && !p->group) continue;
        if (!d.elements)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "data parallel: %s is divided among the ranks (tn_module_divide), so they cannot "
                                   "divide the batch as well; leave options.group NULL",
                                   p->variables[i].name);
        if (!p->divisions) p->divisions = calloc((size_t)p->count + 1, sizeof *p->divisions);
        if (!p->divisions) return data_parallel_out_of_memory();
        p->divisions[i] = d;
    }
    for (int i = 0; i < p->count && p->divisions; i++)
        if (p->variables[i].parameter && !p->divisions[i].group && tn_numel(p->variables[i].tensor) > 0)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "data parallel: %s is whole, but other parameters are divided among the ranks; call "
                                   "tn_module_shard on all of the module",
                                   p->variables[i].name);
    return TN_OK;
}

static tn_status take_module(tn_data_parallel *p, tn_module *m, tn_device *first) {
    TRY(tn_module_status(m));
    TRY(tn_module_variables(m, &p->variables, &p->count));
    TRY(tn_nn_untie(p->variables, &p->count)); /* a handle that is swapped twice would be unchanged */
    p->home = p->count ? tn_device_of(p->variables[0].tensor) : first;
    for (int i = 0; i < p->count; i++)
        if (tn_device_of(p->variables[i].tensor) != p->home)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "data parallel: %s is on another device than %s; they must be on one device",
                                   p->variables[i].name, p->variables[0].name);
    return take_divisions(p, m);
}

static tn_status take_shares(tn_data_parallel *p, const double *shares) {
    double sum = 0;
    if (!shares) return tn_nn_need(NULL, "tn_data_parallel_new: options->shares");
    p->shares = malloc((size_t)p->parts * sizeof *p->shares);
    if (!p->shares) return data_parallel_out_of_memory();
    for (int i = 0; i < p->parts; i++) {
        if (!(shares[i] > 0) || !isfinite(shares[i]))
            return tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: share %d is %g; it must be greater than 0", i,
                                   shares[i]);
        p->shares[i] = sum += shares[i];
    }
    return TN_OK;
}

static tn_status take_options(tn_data_parallel *p, const tn_data_parallel_options *given, int devices) {
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    tn_status status =
        tn_options_read(&o, given, "data parallel", "tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS");
    if (status != TN_OK) return status;
    p->group = tn_group_size(o.group) > 1 ? o.group : NULL;
    p->parts = o.parts ? o.parts : devices * tn_group_size(p->group);
    p->sum = o.sum;
    p->fallback = o.fallback;
    p->saves_memory = o.save_memory && !p->group;
    p->shards_gradients = o.shard_gradients && p->group;
    p->bucket_bytes = o.bucket_bytes;
    if (p->bucket_bytes < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: bucket_bytes is %lld; it must be at least 0",
                               (long long)o.bucket_bytes);
    if (p->parts < 1 || p->parts > MOST_PARTS)
        return tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: %d parts; must be 1 to %d", p->parts, MOST_PARTS);
    if (o.split != TN_SPLIT_EVEN && o.split != TN_SPLIT_SHARES)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "data parallel: split is %d; it must be one of TN_SPLIT_EVEN, TN_SPLIT_SHARES",
                               (int)o.split);
    if ((unsigned)o.fallback > TN_FALLBACK_SILENT)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "data parallel: fallback is %d; it must be one of TN_FALLBACK_WARN, "
                               "TN_FALLBACK_STRICT, TN_FALLBACK_SILENT",
                               (int)o.fallback);
    return o.split == TN_SPLIT_SHARES ? take_shares(p, o.shares) : TN_OK;
}

/* About five buckets are in memory at a time, so those of small models are smaller. */
static int64_t usual_bucket_bytes(const tn_data_parallel *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->count; i++)
        bytes += tn_numel(p->variables[i].tensor) * (int64_t)tn_dtype_size(tn_dtype_of(p->variables[i].tensor));
    bytes /= BUCKETS;
    return bytes < LEAST_BUCKET ? LEAST_BUCKET : bytes > MOST_BUCKET ? MOST_BUCKET : bytes;
}

/* One part, computed where the sums are, in the host's memory: others go through NCCL, or need all parts first. */
static bool may_overlap(const tn_data_parallel *p) {
    tn_device_info info = {.struct_size = sizeof info};
    bool here = p->member_count == 1 && p->members[0].device == p->home && p->ranks.most == 1;
    (void)id_of(p->home, &info);
    return here && strcmp(info.backend, "cpu") == 0;
}

/* status: how this rank has prepared itself; a rank that has failed tells the others, which would wait for it. */
static tn_status join_group(tn_data_parallel *p, tn_status status) {
    p->totals = calloc((size_t)p->count + 1, sizeof *p->totals);
    p->reports = calloc((size_t)p->parts, sizeof *p->reports);
    p->owners = calloc((size_t)p->count + 1, sizeof *p->owners);
    if (status == TN_OK && (!p->totals || !p->reports || !p->owners)) status = data_parallel_out_of_memory();
    p->ranks.sharded = p->divisions != NULL;
    TRY(tn_ranks_begin(&p->ranks, p->group, p->variables, p->count, p->parts, status));
    p->ranks.bucket_bytes = p->bucket_bytes ? p->bucket_bytes : usual_bucket_bytes(p);
    p->overlaps = tn_ranks_status(p->group, may_overlap(p) ? TN_OK : TN_ERR_UNSUPPORTED, "data parallel") == TN_OK;
    if (p->divisions && (!p->overlaps || p->parts != tn_group_size(p->group)))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "data parallel: parameters divided by tn_module_shard require the cpu and one part for "
                               "each of the %d ranks; there are %d parts",
                               tn_group_size(p->group), p->parts);
    return TN_OK;
}

static tn_status build_data_parallel(tn_data_parallel *p, tn_module *m, tn_device *const *devices, int count,
                                     const tn_data_parallel_options *options) {
    TRY(take_options(p, options, count));
    tn_status status = take_module(p, m, devices[0]);
    p->stand_ins = calloc((size_t)p->count + 1, sizeof *p->stand_ins);
    p->members = calloc((size_t)count, sizeof *p->members);
    p->ran = calloc((size_t)(p->saves_memory ? MOST_PARTS : p->parts) * ((size_t)p->count + 1), sizeof *p->ran);
    if (status == TN_OK && (!p->stand_ins || !p->members || !p->ran)) status = data_parallel_out_of_memory();
    for (int i = 0; i < count && status == TN_OK; i++)
        status = add_member(p, devices[i], count == 1);
    return p->group ? join_group(p, status) : status;
}

tn_status tn_data_parallel_new(tn_module *m, tn_device *const *devices, int count,
                               const tn_data_parallel_options *options, tn_data_parallel **out) {
    if (!out) return tn_nn_need(out, "tn_data_parallel_new: out");
    *out = NULL;
    if (!devices) return tn_nn_need(devices, "tn_data_parallel_new: devices");
    if (count < 1 || count > MOST_DEVICES)
        return tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: %d devices; must be 1 to %d", count, MOST_DEVICES);
    for (int i = 0; i < count; i++)
        if (!devices[i]) return tn_nn_need(NULL, "tn_data_parallel_new: a device");
    tn_data_parallel *p = calloc(1, sizeof *p);
    tn_status status = p ? build_data_parallel(p, m, devices, count, options) : data_parallel_out_of_memory();
    if (status == TN_OK)
        *out = p;
    else
        tn_data_parallel_free(p);
    return status;
}

/* ---- recording a part -------------------------------------------------------------------------------------------- */

static bool is_trained(const tn_variable *v) { return v->parameter && tn_requires_grad(v->tensor); }

/* Brings the device's copies up to date. */
static tn_status refresh(const tn_data_parallel *p, member *m) {
    for (int i = 0; m->copies && i < p->count; i++) {
        const tn_variable *v = &p->variables[i];
        version now = {tn_value_id(v->tensor), tn_write_count(v->tensor)};
        if (!now.id || m->copied[i].id != now.id || m->copied[i].writes != now.writes) {
            tn_tensor *copy = NULL;
            {
                TN_SCOPE;
                TN_NO_GRAD;
                copy = tn_retain(tn_to_device(v->tensor, m->device));
            }
            tn_status status = tn_status_of(copy);
            if (status != TN_OK) {
                tn_free(copy);
                return status;
            }
            tn_free(m->copies[i]);
            m->copies[i] = copy;
            m->copied[i] = now;
        }
        if (tn_requires_grad(m->copies[i]) == tn_requires_grad(v->tensor)) continue;
        TRY(tn_set_requires_grad(m->copies[i], tn_requires_grad(v->tensor)));
    }
    return TN_OK;
}

/* Whether tn_module_join has made the divided parameters whole. One element alone has one size either way. */
static bool is_joined(const tn_data_parallel *p) {
    for (int i = 0; i < p->count; i++)
        if (p->divisions[i].elements > 1) return tn_numel(p->variables[i].tensor) == p->divisions[i].elements;
    return false;
}

/* Buffers get a copy of their own a part; in the scope around. */
static tn_status choose_stand_ins(const tn_data_parallel *p, const member *m, bool train) {
    tn_status status = TN_OK;
    for (int i = 0; i < p->count && status == TN_OK; i++) {
        const tn_division *d = train && p->divisions && p->divisions[i].group ? &p->divisions[i] : NULL;
        p->stand_ins[i] = m->copies ? m->copies[i] : NULL;
        if (p->variables[i].parameter && !d) continue;
        p->stand_ins[i] = p->variables[i].parameter
                              ? tn_group_whole(d->group, p->variables[i].tensor, d->shape, d->rank)
                              : tn_contiguous(m->copies ? m->copies[i] : p->variables[i].tensor);
        status = tn_status_of(p->stand_ins[i]);
    }
    return status;
}

/* Neither is a view, and both are there: nothing can fail. */
static void swap_all(const tn_data_parallel *p) {
    for (int i = 0; i < p->count; i++)
        if (p->stand_ins[i]) (void)tn_swap(p->variables[i].tensor, p->stand_ins[i]);
}

static tn_tensor *leaf_of(const tn_data_parallel *p, int i) {
    return p->stand_ins[i] && !p->divisions ? p->stand_ins[i] : p->variables[i].tensor;
}

static tn_status record_gradients(const call *c, work *w) {
    const tn_data_parallel *p = c->p;
    tn_tensor *loss = w->weight == 1 ? w->result : tn_mul(w->result, tn_scalar(w->weight));
    for (int i = 0; i < p->count; i++)
        if (is_trained(&p->variables[i])) tn_zero_grad(leaf_of(p, i));
    tn_status status = tn_backward(tn_optimizer_scale_loss(c->optimizer, loss));
    for (int i = 0; i < p->count; i++) {
        if (!is_trained(&p->variables[i])) continue;
        if (status == TN_OK) w->values[i] = tn_retain(tn_grad(leaf_of(p, i)));
        tn_zero_grad(leaf_of(p, i));
    }
    return status;
}

/* Buffers that the first part has written. */
static void note_buffers(const call *c, work *w) {
    for (int i = 0; w->part.index == c->first && i < c->p->count; i++)
        if (!c->p->variables[i].parameter && tn_write_count(c->p->stand_ins[i]) > 0)
            w->values[i] = tn_retain(c->p->stand_ins[i]);
}

static tn_status give_data_parallel(const call *c, const work *w) {
    AUTO_NN_FREE tn_tensor **targets = malloc(((size_t)c->p->count + 1) * sizeof *targets);
    if (!targets) return data_parallel_out_of_memory();
    int n = 0;
    targets[n++] = w->result;
    for (int i = 0; i < c->p->count; i++)
        if (w->values[i]) targets[n++] = w->values[i];
    return tn_eval_async(targets, n, w->by->queue, NULL);
}

static tn_status record_data_parallel(const call *c, work *w) {
    TN_SCOPE;
    TRY(choose_stand_ins(c->p, w->by, c->train));
    swap_all(c->p);
    w->result = tn_retain(c->function(c->ctx, &w->part));
    swap_all(c->p);
    TRY(tn_status_of(w->result));
    if (c->train) TRY(record_gradients(c, w));
    note_buffers(c, w);
    return c->p->overlaps ? TN_OK : give_data_parallel(c, w);
}

static void forget(const call *c, work *w) {
    tn_free(w->result);
    w->result = NULL;
    free_tensors(w->values, c->p->count);
}

/* Has the part recorded and given to its device. */
static tn_status compute(const call *c, work *w) {
    tn_device *before = tn_current_device();
    forget(c, w);
    w->part.device = w->by->device;
    tn_status status = refresh(c->p, w->by);
    if (status == TN_OK) status = tn_set_current_device(w->by->device);
    if (status == TN_OK) {
        tn_set_random_state(w->random);
        status = record_data_parallel(c, w);
    }
    (void)tn_set_current_device(before);
    if (status != TN_OK) forget(c, w);
    return status;
}

/* Waits for what the part yields, and brings it home. */
static tn_status fetch(const call *c, work *w) {
    tn_status status = TN_OK;
    if (c->wants_loss) status = tn_read_item(w->result, &w->loss);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        for (int i = -1; i < c->p->count && status == TN_OK; i++) {
            tn_tensor **at = i < 0 ? &w->result : &w->values[i];
            if (!*at || (i < 0 && c->train)) continue;
            tn_tensor *moved = tn_to_device(*at, c->p->home);
            status = tn_status_of(moved);
            if (status != TN_OK) break;
            tn_free(*at);
            *at = tn_retain(moved);
        }
    }
    if (status == TN_OK) w->by->parts++;
    return status;
}

/* ---- devices that fail ------------------------------------------------------------------------------------------- */

/* What would be the same on any device. */
static bool same_everywhere(tn_status s) {
    return s == TN_ERR_ARGUMENT || s == TN_ERR_SHAPE || s == TN_ERR_DTYPE || s == TN_ERR_FORMAT || s == TN_ERR_STATE;
}

static member *another(const tn_data_parallel *p, const member *than) {
    int at = (int)(than - p->members);
    for (int i = 1; i < p->member_count; i++)
        if (!p->members[(at + i) % p->member_count].lost) return &p->members[(at + i) % p->member_count];
    return NULL;
}

/* The part's device is not asked again. *next: the device to ask. */
static tn_status lose(const tn_data_parallel *p, member *m, tn_status why, member **next) {
    tn_device_info info, home;
    char text[sizeof m->reason];
    snprintf(text, sizeof text, "%s", tn_error());
    if (m->queue) (void)tn_queue_synchronize(m->queue); /* it has told */
    *next = another(p, m);
    if (tn_device_synchronize(p->home) != TN_OK && m->device != p->home)
        return tn_backend_fail(why, "%s, which holds the model, failed: %s", id_of(p->home, &home), tn_error());
    memcpy(m->reason, text, sizeof text);
    m->lost = p->fallback != TN_FALLBACK_STRICT;
    if (!*next || !m->lost) return tn_backend_fail(why, "%s failed: %s", id_of(m->device, &info), text);
    if (p->fallback == TN_FALLBACK_WARN)
        fprintf(stderr, "trunnion: %s failed (%s); %s computes its part\n", id_of(m->device, &info), text,
                id_of((*next)->device, &home));
    return TN_OK;
}

/* Computes the part on the first device that can. */
static tn_status compute_anywhere(const call *c, work *w) {
    for (;;) {
        if (w->by->lost) w->by = another(c->p, w->by);
        if (!w->by) return tn_backend_fail(TN_ERR_DEVICE, "data parallel: all devices have failed");
        tn_status status = compute(c, w);
        if (status == TN_OK || same_everywhere(status)) return status;
        if (status == TN_ERR_MEMORY && c->p->saves_memory) return status;
        member *next;
        status = lose(c->p, w->by, status, &next);
        if (status != TN_OK) return status;
        w->by = next;
    }
}

static tn_status fetch_anyhow(const call *c, work *w) {
    for (;;) {
        member *next = NULL;
        if (!w->by->lost) {
            tn_status status = fetch(c, w);
            if (status == TN_OK || same_everywhere(status)) return status;
            if (status == TN_ERR_MEMORY && c->p->saves_memory) return status;
            status = lose(c->p, w->by, status, &next);
            if (status != TN_OK) return status;
        }
        tn_random_state now = tn_get_random_state();
        tn_status status = compute_anywhere(c, w);
        tn_set_random_state(now);
        if (status != TN_OK) return status;
    }
}

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

/* Where part i begins. */
static int64_t data_parallel_row_of(const tn_data_parallel *p, int64_t rows, int i) {
    if (i == 0 || i == p->parts) return i ? rows : 0;
    if (!p->shares) return rows / p->parts * i + rows % p->parts * i / p->parts;
    return (int64_t)llround((double)rows * (p->shares[i - 1] / p->shares[p->parts - 1]));
}

static int64_t rows_of(const tn_data_parallel *p, int64_t rows, int i) {
    return data_parallel_row_of(p, rows, i + 1) - data_parallel_row_of(p, rows, i);
}

static double weight_of(const tn_data_parallel *p, int64_t rows, int i) {
    return p->sum ? 1 : (double)rows_of(p, rows, i) / (double)rows;
}

/* Parts that this process computes: begin … end - 1. */
static void cut_data_parallel(call *c, int64_t rows, int begin, int end) {
    tn_data_parallel *p = c->p;
    for (c->first = 0; c->first < p->parts - 1 && rows_of(p, rows, c->first) <= 0;)
        c->first++;
    for (int i = begin; i < end; i++) {
        int64_t first = data_parallel_row_of(p, rows, i), count = rows_of(p, rows, i);
        if (count <= 0) continue;
        work *w = &c->works[c->count];
        *w = (work){.by = &p->members[(i - begin) % p->member_count],
                    .values = p->ran + (size_t)c->count * (size_t)p->count};
        w->part = (tn_part){sizeof w->part, i, p->parts, first, count, rows, NULL};
        w->weight = weight_of(p, rows, i);
        c->count++;
    }
}

/* Adds the parts' gradients to the first one's as they arrive; the last are added in the step itself, unless memory is
 * to be saved. */
static tn_status add_up(const call *c, const work *w) {
    const tn_data_parallel *p = c->p;
    tn_tensor **sums = c->works[0].values;
    if (w == c->works || (w == c->works + c->count - 1 && !p->saves_memory)) return TN_OK;
    tn_status status = TN_OK;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        for (int i = 0; i < p->count && status == TN_OK; i++) {
            if (!w->values[i]) continue;
            tn_tensor *sum = sums[i] ? tn_retain(tn_add(sums[i], w->values[i])) : tn_retain(w->values[i]);
            tn_free(sums[i]);
            sums[i] = sum;
            if (!p->saves_memory) continue;
            tn_free(w->values[i]); /* else old and new sums of all would be in memory at once */
            w->values[i] = NULL;
            status = tn_eval(&sum, 1);
        }
    }
    free_tensors(w->values, p->count);
    return status == TN_OK ? tn_eval(NULL, 0) : status;
}

static tn_status compute_all(call *c, int64_t rows) {
    cut_data_parallel(c, rows, 0, c->p->parts);
    c->sums = c->works[0].values;
    /* A device alone has nothing to wait for: the gradients of a part are added before the next part makes others. */
    int ahead = c->p->member_count == 1 ? 1 : c->count;
    for (int i = 0, computed = 0; i < c->count; i++) {
        for (; computed < c->count && computed < i + ahead; computed++) {
            c->works[computed].random = tn_get_random_state();
            TRY(compute_anywhere(c, &c->works[computed]));
        }
        TRY(fetch_anyhow(c, &c->works[i]));
        if (c->train) TRY(add_up(c, &c->works[i]));
    }
    return TN_OK;
}

static tn_status call_begin(call *c, const char *what, int64_t rows) {
    if (!c->p || !c->function) return tn_nn_need(NULL, what);
    if (rows < 1) return tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: the batch has %lld rows", (long long)rows);
    c->works = malloc((size_t)c->p->parts * sizeof *c->works);
    return c->works ? TN_OK : data_parallel_out_of_memory();
}

static void call_end(const call *c) {
    for (int i = 0; c->works && i < c->count; i++)
        forget(c, &c->works[i]);
    free(c->works);
}

static tn_status write_buffers(void *ctx) {
    const call *c = ctx;
    tn_status status = TN_OK;
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < c->p->count && status == TN_OK; i++) {
        tn_tensor *value = c->sums[i];
        if (value && !c->p->variables[i].parameter) status = tn_status_of(tn_copy_(c->p->variables[i].tensor, value));
    }
    return status;
}

static tn_tensor *gradient_of(void *ctx, const tn_tensor *parameter) {
    call *c = ctx;
    const tn_data_parallel *p = c->p;
    for (int k = 0; k < p->count; k++) {
        int i = (c->next + k) % p->count;
        if (p->variables[i].tensor != parameter) continue;
        c->next = i + 1;
        bool divided = !p->group && c->count > 1 && !p->saves_memory;
        tn_tensor *sum = c->sums[i], *last = divided ? c->works[c->count - 1].values[i] : NULL;
        return sum && last ? tn_add(sum, last) : sum ? sum : last;
    }
    return tn_failed(TN_ERR_ARGUMENT, "data parallel: the optimizer updates a variable that is not part of the module");
}

/* ---- a step of several processes --------------------------------------------------------------------------------- */

/* Where the parts' random numbers begin if each uses as many as `reports` says. */
static uint64_t random_before(const tn_part_report *reports, int part) {
    uint64_t sum = 0;
    for (int i = 0; i < part; i++)
        sum += reports[i].random;
    return sum;
}

/* Computes the parts of this rank. Their random numbers must be those that one process would draw, which depend on how
 * many the parts before use: assumed is what they used in the step before, and again is for those for which that was
 * wrong. */
static tn_status compute_own(call *c, tn_random_state start, const tn_part_report *assumed, tn_part_report *own,
                             bool again) {
    const tn_data_parallel *p = c->p;
    int begin = tn_ranks_first_part(&p->ranks, tn_group_rank(p->group));
    tn_status status = TN_OK;
    bool fetches[MOST_PARTS] = {false};
    if (p->divisions && !c->count)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: a batch has fewer rows than there are ranks, which "
                                                  "divide the parameters; leave it out");
    for (int i = 0; i < c->count && status == TN_OK; i++) {
        work *w = &c->works[i];
        tn_random_state from = {start.seed, start.offset + random_before(assumed, w->part.index)};
        if (again && !p->divisions && (w->random.offset == from.offset || !own[w->part.index - begin].random)) continue;
        fetches[i] = true;
        w->random = from;
        status = compute_anywhere(c, w);
        own[w->part.index - begin].random = tn_get_random_state().offset - from.offset;
    }
    for (int i = 0; i < c->count && status == TN_OK && !p->overlaps; i++) {
        if (!fetches[i]) continue;
        status = fetch_anyhow(c, &c->works[i]);
        own[c->works[i].part.index - begin].loss = c->works[i].loss;
    }
    return status;
}

static bool equal_random(const tn_part_report *a, const tn_part_report *b, int count) {
    for (int i = 0; i < count; i++)
        if (a[i].random != b[i].random) return false;
    return true;
}

static int owner_of(const tn_data_parallel *p, int part) {
    int rank = 0;
    while (tn_ranks_first_part(&p->ranks, rank + 1) <= part)
        rank++;
    return rank;
}

/* Computes the parts of all ranks; p->reports is what they yielded. */
static tn_status compute_parts(call *c, int64_t rows) {
    tn_data_parallel *p = c->p;
    int rank = tn_group_rank(p->group);
    tn_random_state start = tn_get_random_state();
    tn_part_report own[MOST_PARTS] = {{0}}, assumed[MOST_PARTS];
    cut_data_parallel(c, rows, tn_ranks_first_part(&p->ranks, rank), tn_ranks_first_part(&p->ranks, rank + 1));
    c->wants_loss = true;
    bool again = false;
    do {
        memcpy(assumed, p->reports, (size_t)p->parts * sizeof *assumed);
        tn_status status = compute_own(c, start, assumed, own, again);
        status = tn_ranks_agree(&p->ranks, status, own, p->reports);
        if (status != TN_OK) {
            tn_set_random_state(start); /* each rank stopped at the numbers of its own parts */
            return status;
        }
        again = !again && !equal_random(assumed, p->reports, p->parts);
    } while (again);
    tn_set_random_state((tn_random_state){start.seed, start.offset + random_before(p->reports, p->parts)});
    return TN_OK;
}

/* The part and its exchanges, in one evaluation; then the loss. */
static tn_status evaluate_with_exchanges(call *c, const tn_rank_part *part, const bool *has_rows) {
    tn_data_parallel *p = c->p;
    tn_part_report own = {0};
    work *w = c->count ? c->works : NULL;
    /* Nothing that is made of exchanges may be left for a later evaluation, which would repeat them. */
    tn_tensor *all = NULL, **targets = malloc(((size_t)p->count + 2) * sizeof *targets);
    tn_status status = targets ? TN_OK : data_parallel_out_of_memory();
    if (status == TN_OK && !p->divisions)
        status = tn_ranks_record(&p->ranks, part, c->count, has_rows, p->home, p->totals, &all);
    int n = 0;
    for (int i = 0; i < p->count && p->divisions && w; i++) {
        if (!p->variables[i].parameter) continue;
        p->totals[i] = w->values[i]; /* the backward pass exchanges them */
        w->values[i] = NULL;
    }
    if (status == TN_OK && all) targets[n++] = all;
    if (status == TN_OK && w) targets[n++] = w->result;
    for (int i = 0; status == TN_OK && i < p->count; i++)
        if (p->totals[i]) targets[n++] = p->totals[i];
    if (status == TN_OK) status = tn_eval(targets, n);
    tn_free(all);
    free(targets);
    status = tn_group_settle(p->group, status);
    if (status == TN_OK && w) status = fetch(c, w);
    if (w) own = (tn_part_report){w->loss, p->reports[w->part.index].random};
    return tn_ranks_agree(&p->ranks, status, &own, p->reports);
}

/* c->sums: the totals of all ranks. */
static tn_status exchange_totals(call *c, int64_t rows) {
    tn_data_parallel *p = c->p;
    tn_rank_part parts[MOST_PARTS];
    bool has_rows[MOST_PARTS];
    int owner = owner_of(p, c->first);
    tn_tensor *const *values = c->count ? c->works[0].values : NULL;
    for (int i = 0; i < c->count; i++)
        parts[i] = (tn_rank_part){c->works[i].part.index, c->works[i].values};
    for (int i = 0; i < p->parts; i++)
        has_rows[i] = rows_of(p, rows, i) > 0;
    tn_status status = tn_ranks_agree(&p->ranks, tn_ranks_compare(&p->ranks, owner, parts, c->count), NULL, NULL);
    c->sums = p->totals;
    if (status != TN_OK) return status;
    if (p->overlaps) TRY(evaluate_with_exchanges(c, parts, has_rows));
    /* Both, even if this rank could not make the sums: the others wait for it. */
    if (!p->overlaps) status = tn_ranks_sum(&p->ranks, parts, c->count, has_rows, p->home, p->totals);
    tn_status shared = tn_ranks_share_buffers(&p->ranks, owner, values, p->home, p->totals);
    return status != TN_OK ? status : shared;
}

/* Whether a step can gather the parameters and divide their gradients. */
static tn_status check_divided(const tn_data_parallel *p, const tn_optimizer *o) {
    if (!p->divisions) return TN_OK;
    if (is_joined(p))
        return tn_backend_fail(TN_ERR_STATE, "data parallel: the parameters are whole (tn_module_join); call "
                                             "tn_module_split before a step");
    for (int k = 0; k < o->count; k++)
        for (int i = 0; i < p->count; i++)
            if (p->variables[i].tensor == o->items[k].value && p->divisions[i].group != o->items[k].division.group)
                return tn_backend_fail(TN_ERR_STATE,
                                       "data parallel: tn_module_shard has divided %s since the optimizer was made; "
                                       "make the optimizer afterwards",
                                       p->variables[i].name);
    return TN_OK;
}

/* Where the sums of gradients go: with shards_gradients to the owners of the optimizer's state. */
static tn_status choose_gradient_owners(tn_data_parallel *p, tn_optimizer *o) {
    p->ranks.owners = NULL;
    TRY(check_divided(p, o));
    if (!p->shards_gradients) return TN_OK;
    if (!o->owners || o->group != p->group)
        return tn_backend_fail(TN_ERR_STATE, "data parallel: shard_gradients requires an optimizer that "
                                             "tn_optimizer_shard has divided among the same group");
    for (int k = 0; k < o->count; k++)
        for (int i = 0; i < p->count; i++)
            if (p->variables[i].tensor == o->items[k].value) p->owners[i] = o->owners[k];
    p->ranks.owners = p->owners;
    return TN_OK;
}

static tn_status minimize_in_group(call *c, tn_optimizer *o, int64_t rows, double *value) {
    tn_data_parallel *p = c->p;
    p->ranks.rows = rows;
    tn_status status = tn_ranks_agree(&p->ranks, choose_gradient_owners(p, o), NULL, NULL);
    if (status == TN_OK) status = compute_parts(c, rows);
    if (status == TN_OK) status = tn_ranks_agree(&p->ranks, exchange_totals(c, rows), NULL, NULL);
    o->gradients_divided = p->ranks.owners != NULL;
    tn_status stepped = status == TN_OK ? tn_nn_step(o, gradient_of, write_buffers, c) : TN_OK;
    if (p->divisions) stepped = tn_group_settle(p->group, stepped); /* also of exchanges that were only recorded */
    if (status == TN_OK) status = tn_ranks_agree(&p->ranks, stepped, NULL, NULL);
    o->gradients_divided = false;
    free_tensors(p->totals, p->count);
    if (value) *value = 0;
    for (int i = 0; i < p->parts && value && status == TN_OK; i++)
        if (rows_of(p, rows, i) > 0) *value += weight_of(p, rows, i) * p->reports[i].loss;
    return status;
}

/* One part at home: nothing to move and nothing to add. */
static tn_status minimize_here(const call *c, tn_optimizer *o, int64_t rows, double *value) {
    tn_part part = {sizeof part, 0, 1, 0, rows, rows, c->p->home};
    tn_device *before = tn_current_device();
    tn_status status = tn_set_current_device(c->p->home);
    if (status != TN_OK) return status;
    {
        TN_SCOPE;
        tn_tensor *loss = c->function(c->ctx, &part);
        status = tn_minimize(o, loss);
        if (status == TN_OK) c->p->members[0].parts++;
        if (status == TN_OK && value) status = tn_read_item(loss, value);
    }
    (void)tn_set_current_device(before);
    return status;
}

static tn_status minimize_once(tn_data_parallel *p, tn_optimizer *o, int64_t rows, tn_part_function *loss, void *ctx,
                               double *value) {
    call c = {.p = p, .function = loss, .ctx = ctx, .train = true, .wants_loss = value != NULL, .optimizer = o};
    tn_status status = tn_nn_need(o, "tn_data_parallel_minimize: the optimizer");
    if (status == TN_OK) status = call_begin(&c, "tn_data_parallel_minimize: p or the loss function", rows);
    if (status == TN_OK && p->group) {
        status = minimize_in_group(&c, o, rows, value);
    } else if (status == TN_OK && p->parts == 1 && p->members[0].device == p->home) {
        status = minimize_here(&c, o, rows, value);
    } else if (status == TN_OK) {
        status = compute_all(&c, rows);
        if (status == TN_OK) status = tn_nn_step(o, gradient_of, write_buffers, &c);
        if (value) *value = 0;
        for (int i = 0; i < c.count && value; i++)
            *value += c.works[i].weight * c.works[i].loss;
    }
    call_end(&c);
    if (status == TN_OK) status = tn_eval(NULL, 0); /* lets go of what was recorded on other devices */
    return status;
}

/* ---- a step that runs out of memory ------------------------------------------------------------------------------ */

/* Recomputation first, which keeps the bits; then more parts, where it costs less to leave it. false: nothing is left.
 * */
static bool save_more(tn_data_parallel *p, int64_t rows) {
    if (!p->recomputes) return p->recomputes = true;
    int64_t parts = 2 * (int64_t)p->parts;
    if (p->shares || p->parts >= rows || p->parts == MOST_PARTS) return false;
    parts = parts < rows ? parts : rows;
    p->parts = parts < MOST_PARTS ? (int)parts : MOST_PARTS;
    p->recomputes = false;
    return true;
}

static void note_refused_step(tn_data_parallel *p) {
    tn_pool_stats s = {.struct_size = sizeof s};
    if (tn_device_get_pool_stats(p->home, &s) != TN_OK || s.refused_bytes <= 0) return;
    if (!p->refused || s.refused_bytes < p->refused) p->refused = s.refused_bytes;
}

static tn_status memory_is_missing(const tn_data_parallel *p, int first_parts) {
    tn_pool_stats s = {.struct_size = sizeof s};
    tn_device_info info;
    char parts[64] = "a batch that cannot be divided further";
    (void)tn_device_get_pool_stats(p->home, &s);
    if (p->parts > first_parts) snprintf(parts, sizeof parts, "its batch in %d parts", p->parts);
    return tn_backend_fail(TN_ERR_MEMORY,
                           "%s: a training step needs at least %.1f MiB, with recomputation and %s, but the limit is "
                           "%.1f MiB: %.1f MiB are missing; %.1f MiB are in use before the step (weights, optimizer "
                           "state, data)",
                           id_of(p->home, &info), (double)p->refused / 0x1p20, parts, (double)s.limit / 0x1p20,
                           (double)(p->refused - s.limit) / 0x1p20, (double)s.in_use_bytes / 0x1p20);
}

tn_status tn_data_parallel_minimize(tn_data_parallel *p, tn_optimizer *o, int64_t rows, tn_part_function *loss,
                                    void *ctx, double *value) {
    if (!p || !p->saves_memory) return minimize_once(p, o, rows, loss, ctx, value);
    tn_random_state start = tn_get_random_state();
    int parts = p->parts;
    bool before = tn_set_auto_recompute(p->recomputes), recomputed = p->recomputes;
    tn_status status = minimize_once(p, o, rows, loss, ctx, value);
    while (status == TN_ERR_MEMORY) {
        note_refused_step(p);
        tn_clear_plans(); /* their memory, too */
        if (!save_more(p, rows)) break;
        tn_set_random_state(start);
        (void)tn_set_auto_recompute(p->recomputes);
        status = minimize_once(p, o, rows, loss, ctx, value);
    }
    (void)tn_set_auto_recompute(before);
    if (status != TN_ERR_MEMORY) return status;
    tn_pool_stats s = {.struct_size = sizeof s};
    bool limited = tn_device_get_pool_stats(p->home, &s) == TN_OK && s.limit && p->refused;
    status = limited ? memory_is_missing(p, parts) : status;
    p->parts = parts;
    p->recomputes = recomputed;
    return status;
}

tn_status tn_data_parallel_get_saving(const tn_data_parallel *p, tn_memory_report *out) {
    TRY(tn_nn_need(p, "tn_data_parallel_get_saving: p"));
    tn_memory_report full = {sizeof full, p->recomputes, p->parts, p->refused};
    return tn_result_write(out, &full, sizeof full, "tn_data_parallel_get_saving: out");
}

tn_tensor *tn_data_parallel_forward(tn_data_parallel *p, int64_t rows, tn_part_function *forward, void *ctx) {
    call c = {.p = p, .function = forward, .ctx = ctx};
    tn_tensor *out = NULL;
    tn_status status = call_begin(&c, "tn_data_parallel_forward: the model, or its forward function", rows);
    if (status == TN_OK && p->divisions && !is_joined(p))
        status = tn_backend_fail(TN_ERR_STATE, "data parallel: the parameters are divided (tn_module_shard); call "
                                               "tn_module_join before a forward pass, and tn_module_split after it");
    {
        TN_SCOPE;
        TN_NO_GRAD;
        if (status == TN_OK) status = compute_all(&c, rows);
        if (status == TN_OK) {
            tn_tensor *results[MOST_PARTS];
            for (int i = 0; i < c.count; i++)
                results[i] = c.works[i].result;
            status = write_buffers(&c);
            out = tn_cat(results, c.count, 0);
        }
        if (status != TN_OK) out = tn_failed(status, "%s", tn_error());
        tn_keep(out);
    }
    call_end(&c);
    return out;
}

tn_tensor *tn_part_rows(const tn_part *part, const tn_tensor *x) {
    if (!part) return tn_failed(TN_ERR_ARGUMENT, "tn_part_rows: the part is NULL");
    if (x && tn_status_of(x) == TN_OK && tn_size(x, 0) != part->total)
        return tn_failed(TN_ERR_SHAPE, "tn_part_rows: the tensor has %lld rows, but the batch has %lld",
                         (long long)tn_size(x, 0), (long long)part->total);
    tn_tensor *rows = NULL;
    TN_SCOPE;
    rows = tn_keep(tn_to_device(tn_slice(x, 0, part->first, part->first + part->rows, 1), part->device));
    return rows;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

int tn_data_parallel_device_count(const tn_data_parallel *p) { return p ? p->member_count : 0; }

tn_status tn_data_parallel_device_at(const tn_data_parallel *p, int i, tn_data_parallel_device *out) {
    if (i < 0 || i >= tn_data_parallel_device_count(p))
        return tn_backend_fail(TN_ERR_ARGUMENT, "data parallel: index %d is out of range; there are %d devices", i,
                               tn_data_parallel_device_count(p));
    const member *m = &p->members[i];
    tn_device_info info;
    tn_data_parallel_device full = {.parts = m->parts, .lost = m->lost};
    snprintf(full.id, sizeof full.id, "%s", id_of(m->device, &info));
    snprintf(full.reason, sizeof full.reason, "%s", m->reason);
    return tn_result_write(out, &full, sizeof full, "tn_data_parallel_device_at: out");
}
