/* optim_shard.c — the state of an optimizer, and its gradients, divided among processes (ZeRO, stages 1 and 2).
 *
 * Each parameter has an owner: the rank that keeps its slots. A step records the updates of this rank's own parameters
 * only; then every owner sends the new values. All ranks must take part in every exchange, so errors are exchanged
 * first. If one rank cannot evaluate its step, all ranks return an error, but the others have updated the parameters
 * that they own: later steps are refused, and training must continue from a checkpoint. */
#include <stdlib.h>

#include "nn/optimizer.h"
#include "nn/ranks.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

static int64_t shard_bytes_of(const tn_tensor *t) {
    return t ? tn_numel(t) * (int64_t)tn_dtype_size(tn_dtype_of(t)) : 0;
}

bool tn_optim_is_own(const tn_optimizer *o, int i) { return !o->owners || o->owners[i] == tn_group_rank(o->group); }

int64_t tn_optimizer_state_bytes(const tn_optimizer *o) {
    int64_t bytes = 0;
    for (int i = 0; o && i < o->count; i++)
        for (int k = 0; k < TN_OPTIM_SLOTS; k++)
            bytes += shard_bytes_of(o->items[i].slots[k]);
    return bytes;
}

static void free_slots_of_others(tn_optimizer *o) {
    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < TN_OPTIM_SLOTS && !tn_optim_is_own(o, i); k++) {
            tn_free(o->items[i].slots[k]);
            o->items[i].slots[k] = NULL;
        }
    o->gathered = false;
}

/* Each parameter goes to the rank with the least so far, so all ranks divide alike. */
static tn_status choose_owners(tn_optimizer *o, tn_group *group) {
    int size = tn_group_size(group);
    int64_t *load = calloc((size_t)size, sizeof *load);
    int *owners = malloc(((size_t)o->count + 1) * sizeof *owners);
    for (int i = 0; i < o->count && load && owners; i++) {
        int least = 0;
        for (int rank = 1; rank < size; rank++)
            if (load[rank] < load[least]) least = rank;
        owners[i] = least;
        load[least] += shard_bytes_of(o->items[i].value);
    }
    bool made = load && owners;
    free(load);
    if (!made) free(owners);
    if (!made) return tn_optim_out_of_memory();
    o->owners = owners;
    o->group = group;
    return TN_OK;
}

tn_status tn_optimizer_shard(tn_optimizer *o, tn_group *group) {
    tn_status status = tn_nn_need(o, "tn_optimizer_shard: the optimizer");
    if (status == TN_OK) status = tn_nn_need(group, "tn_optimizer_shard: the group");
    if (status != TN_OK || tn_group_size(group) == 1) return status;
    if (tn_capturing()) return tn_backend_fail(TN_ERR_STATE, "tn_optimizer_shard: a graph is being captured");
    for (int i = 0; i < o->count; i++)
        if (o->items[i].division.group)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "tn_optimizer_shard: %s is divided among the ranks already (tn_module_divide or "
                                   "tn_module_shard)",
                                   o->items[i].name);
    o->diverged = false;
    if (!o->owners) status = choose_owners(o, group);
    if (status == TN_OK) free_slots_of_others(o);
    return status;
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

/* Broadcasts t's value from its owner; ranks with `wants` store it in their t. block: at least `bytes` bytes. */
static tn_status send_tensor(const tn_optimizer *o, int owner, tn_tensor *t, bool wants, char *block, int64_t bytes) {
    tn_status status = TN_OK;
    bool own = tn_group_rank(o->group) == owner;
    if (own) status = tn_read(t, block, (size_t)bytes);
    tn_status sent = tn_group_broadcast(o->group, block, (size_t)bytes, owner);
    if (status != TN_OK || sent != TN_OK || own || !wants) return status != TN_OK ? status : sent;
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_status_of(tn_copy_(t, tn_from_data(block, tn_shape(t), tn_rank(t), tn_dtype_of(t))));
}

static bool has_moved(const tn_optimizer *o, int i) { return o->items[i].gradient != NULL; }

static tn_status share_values(tn_optimizer *o, char *block) {
    tn_status first = TN_OK;
    for (int i = 0; i < o->count; i++) {
        tn_tensor *t = o->items[i].value;
        if (!has_moved(o, i)) continue;
        tn_status status = send_tensor(o, o->owners[i], t, true, block, shard_bytes_of(t));
        if (first == TN_OK) first = status;
    }
    return first == TN_OK ? tn_eval(NULL, 0) : first;
}

static char *block_for_values(const tn_optimizer *o) {
    int64_t most = 1;
    for (int i = 0; i < o->count; i++)
        if (shard_bytes_of(o->items[i].value) > most) most = shard_bytes_of(o->items[i].value);
    return malloc((size_t)most);
}

tn_status tn_optim_shard_begin(tn_optimizer *o) {
    if (!o->owners) return TN_OK;
    if (tn_capturing())
        return tn_backend_fail(TN_ERR_STATE, "optimizer: a step that is divided among processes cannot be captured");
    if (o->diverged)
        return tn_backend_fail(TN_ERR_STATE, "optimizer: a step failed on another process after this one made it; load "
                                             "a checkpoint on all, and call tn_optimizer_shard again");
    if (o->gathered) free_slots_of_others(o);
    return TN_OK;
}

tn_status tn_optim_shard_end(tn_optimizer *o, tn_status status) {
    if (!o->owners || tn_capturing()) return status;
    char *block = block_for_values(o);
    if (status == TN_OK && !block) status = tn_optim_out_of_memory();
    bool stepped = status == TN_OK;
    status = tn_ranks_status(o->group, status, "optimizer");
    o->diverged = stepped && status != TN_OK;
    if (status == TN_OK) status = tn_ranks_status(o->group, share_values(o, block), "optimizer");
    free(block);
    return status;
}

/* ---- divided gradients ------------------------------------------------------------------------------------------- */

/* own: the sums of squares of this rank's gradients, 0 for others, then whether they are finite. */
static tn_status find_facts(const tn_optimizer *o, double *own) {
    for (int i = 0; i < o->count; i++) {
        const tn_tensor *g = o->items[i].gradient;
        own[i] = 0;
        if (!g || !tn_optim_is_own(o, i) || !(o->max_grad_norm < INFINITY)) continue;
        TRY(tn_read_item(tn_nn_sum_of_squares(g), &own[i]));
    }
    own[o->count] = 1;
    return o->scaler ? tn_read_item(o->scaler->finite, &own[o->count]) : TN_OK;
}

static tn_status take_facts(tn_optimizer *o, const double *all, tn_tensor **squares) {
    size_t each = (size_t)o->count + 1;
    bool finite = true;
    for (int rank = 0; rank < tn_group_size(o->group); rank++)
        finite &= all[(size_t)rank * each + (size_t)o->count] != 0;
    if (o->scaler) o->scaler->finite = tn_full(NULL, 0, finite, TN_BOOL);
    for (int i = 0; i < o->count; i++) {
        const tn_tensor *g = o->items[i].gradient;
        double square = all[(size_t)o->owners[i] * each + (size_t)i];
        squares[i] =
            g ? tn_cast(tn_to_device(tn_from_data(&square, NULL, 0, TN_F64), tn_device_of(g)), tn_dtype_of(g)) : NULL;
        if (g && tn_status_of(squares[i]) != TN_OK) return tn_status_of(squares[i]);
    }
    return o->scaler ? tn_status_of(o->scaler->finite) : TN_OK;
}

tn_status tn_optim_share_facts(tn_optimizer *o, tn_status status, tn_tensor ***squares) {
    size_t each = (size_t)o->count + 1, size = (size_t)tn_group_size(o->group);
    double *own = malloc((size + 1) * each * sizeof *own);
    *squares = malloc(each * sizeof **squares);
    if (status == TN_OK && (!own || !*squares)) status = tn_optim_out_of_memory();
    if (status == TN_OK) status = find_facts(o, own);
    status = tn_ranks_status(o->group, status, "optimizer");
    if (status == TN_OK) status = tn_group_all_gather(o->group, own, each * sizeof *own, own + each);
    if (status == TN_OK) status = take_facts(o, own + each, *squares);
    free(own);
    return status;
}

/* ---- the whole state on one rank --------------------------------------------------------------------------------- */

/* A slot's shape is known to its owner; it is made at the root from the same rule. */
static tn_status gather_slots(tn_optimizer *o, int root, char *block) {
    bool is_root = tn_group_rank(o->group) == root;
    tn_status first = TN_OK;
    for (int i = 0; i < o->count; i++) {
        tn_trained *v = &o->items[i];
        for (int k = 0; k < TN_OPTIM_SLOTS; k++) {
            int64_t bytes = shard_bytes_of(v->slots[k]);
            tn_status status = tn_group_broadcast(o->group, &bytes, sizeof bytes, o->owners[i]);
            if (status == TN_OK && bytes)
                status = send_tensor(o, o->owners[i], v->slots[k], is_root && v->slots[k], block, bytes);
            if (first == TN_OK) first = status;
        }
    }
    return first;
}

tn_status tn_optimizer_gather(tn_optimizer *o, int root) {
    tn_status status = tn_nn_need(o, "tn_optimizer_gather: the optimizer");
    if (status != TN_OK || !o->owners) return status;
    if (root < 0 || root >= tn_group_size(o->group))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_optimizer_gather: root %d is not a rank; there are %d", root,
                               tn_group_size(o->group));
    bool is_root = tn_group_rank(o->group) == root;
    char *block = block_for_values(o);
    if (!block) status = tn_optim_out_of_memory();
    for (int i = 0; i < o->count && is_root && status == TN_OK; i++)
        status = tn_optim_make_slots(o, &o->items[i]);
    status = tn_ranks_status(o->group, status, "optimizer");
    if (status == TN_OK) status = tn_ranks_status(o->group, gather_slots(o, root, block), "optimizer");
    if (status == TN_OK && is_root) status = tn_eval(NULL, 0);
    free(block);
    if (status == TN_OK && is_root)
        o->gathered = true;
    else
        free_slots_of_others(o); /* also those of an earlier root, and those that a failure left incomplete */
    return status;
}
