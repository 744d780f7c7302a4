/* ema.c — exponential moving averages of a module's parameters, for evaluation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/optimizer.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

struct tn_ema {
    tn_variable *parameters; /* names and the module's handles, which are borrowed */
    tn_tensor **averages;    /* states */
    tn_division *divisions;  /* of the averages, by parameter */
    const tn_module *m;
    int count;
    double decay;
    bool swapped; /* the module's handles stand for the averages */
};

void tn_ema_free(tn_ema *e) {
    if (!e) return;
    for (int i = 0; e->averages && i < e->count; i++)
        tn_free(e->averages[i]);
    free(e->averages);
    free(e->divisions);
    tn_variables_free(e->parameters);
    free(e);
}

static tn_status copy_parameters(tn_ema *e) {
    e->averages = calloc((size_t)e->count + 1, sizeof *e->averages);
    e->divisions = calloc((size_t)e->count + 1, sizeof *e->divisions);
    if (!e->averages || !e->divisions) return tn_optim_out_of_memory();
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < e->count; i++) {
        tn_tensor *copy = tn_contiguous(tn_detach(e->parameters[i].tensor));
        TRY(tn_make_state(copy));
        e->averages[i] = tn_retain(copy);
        e->divisions[i] = tn_nn_division(e->m, e->parameters[i].tensor);
    }
    return TN_OK;
}

tn_status tn_ema_new(tn_module *m, double decay, tn_ema **out) {
    TRY(tn_nn_need(out, "tn_ema_new: out"));
    *out = NULL;
    TRY(tn_module_status(m));
    if (!(decay >= 0 && decay <= 1))
        TRY(tn_backend_fail(TN_ERR_ARGUMENT, "tn_ema_new: decay is %g; it must be in [0, 1]", decay));
    tn_ema *e = calloc(1, sizeof *e);
    if (!e) return tn_optim_out_of_memory();
    e->decay = decay;
    e->m = m;
    tn_status status = tn_module_parameters(m, &e->parameters, &e->count);
    if (status == TN_OK) status = copy_parameters(e);
    if (status == TN_OK)
        *out = e;
    else
        tn_ema_free(e);
    return status;
}

/* If the parameters are divided among ranks, the averages must be so too, and whole while they are. */
static tn_status check_alike(const tn_ema *e, const char *what) {
    for (int i = 0; i < e->count; i++) {
        const tn_tensor *a = e->averages[i], *t = e->parameters[i].tensor;
        int rank = tn_rank(t);
        if (rank != tn_rank(a) || (rank && memcmp(tn_shape(a), tn_shape(t), (size_t)rank * sizeof(int64_t)) != 0))
            return tn_backend_fail(TN_ERR_STATE,
                                   "%s: %s is divided among processes, or whole, but its average is not; call "
                                   "tn_ema_join where tn_module_join is called, tn_ema_split with tn_module_split, and "
                                   "tn_ema_new after tn_module_shard",
                                   what, e->parameters[i].name);
    }
    return TN_OK;
}

static tn_status change_averages(tn_ema *e, tn_division_change *change, const char *what) {
    tn_status first = tn_nn_need(e, what);
    for (int i = 0; e && i < e->count; i++) {
        tn_status status = tn_nn_change_divided(&e->divisions[i], &e->averages[i], 1, change);
        if (first == TN_OK) first = status;
    }
    return first;
}

tn_status tn_ema_join(tn_ema *e) { return change_averages(e, tn_nn_join, "tn_ema_join: the averages"); }

tn_status tn_ema_split(tn_ema *e) { return change_averages(e, tn_nn_split, "tn_ema_split: the averages"); }

tn_status tn_ema_update(tn_ema *e) {
    TRY(tn_nn_need(e, "tn_ema_update: the averages"));
    if (e->swapped)
        return tn_backend_fail(TN_ERR_STATE, "tn_ema_update: the module has the averages; call tn_ema_swap first");
    TRY(check_alike(e, "tn_ema_update"));
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *new_part = tn_scalar(1 - e->decay);
    for (int i = 0; i < e->count; i++)
        TRY(tn_status_of(tn_lerp_(e->averages[i], tn_detach(e->parameters[i].tensor), new_part)));
    return tn_eval(NULL, 0);
}

tn_status tn_ema_swap(tn_ema *e) {
    TRY(tn_nn_need(e, "tn_ema_swap: the averages"));
    TRY(check_alike(e, "tn_ema_swap"));
    for (int i = 0; i < e->count; i++)
        TRY(tn_swap(e->parameters[i].tensor, e->averages[i]));
    e->swapped = !e->swapped;
    return TN_OK;
}

tn_status tn_ema_variables(const tn_ema *e, tn_variable **items, int *count) {
    if (!e || !items || !count) return tn_nn_need(NULL, "tn_ema_variables: the averages, items or count");
    size_t text_size = 0;
    *items = NULL;
    *count = 0;
    if (e->count == 0) return TN_OK;
    for (int i = 0; i < e->count; i++)
        if (tn_nn_is_share(&e->divisions[i]))
            return tn_backend_fail(TN_ERR_STATE,
                                   "tn_ema_variables: the average of %s is divided among %d processes; call "
                                   "tn_ema_join on all of them first, and tn_ema_split afterwards",
                                   e->parameters[i].name, tn_group_size(e->divisions[i].group));
    for (int i = 0; i < e->count; i++)
        text_size += strlen(e->parameters[i].name) + sizeof "ema.";
    tn_variable *block = malloc((size_t)e->count * sizeof *block + text_size);
    if (!block) return tn_optim_out_of_memory();
    char *text = (char *)(block + e->count);
    for (int i = 0; i < e->count; i++) {
        block[i] = (tn_variable){text, e->swapped ? e->parameters[i].tensor : e->averages[i], false};
        const char *name = e->parameters[i].name;
        text += snprintf(text, sizeof "ema." + strlen(name), "ema.%s", name) + 1;
    }
    *items = block;
    *count = e->count;
    return TN_OK;
}
