/* clip.c — operations on the gradients of many parameters: norm, clipping, test for finite values. */
#include <stdlib.h>

#include "nn/optimizer.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* ---- lists of gradients ------------------------------------------------------------------------------------------ */

tn_tensor *tn_nn_sum_of_squares(const tn_tensor *gradient) {
    return tn_sum(tn_mul(gradient, gradient), NULL, 0, false);
}

tn_tensor *tn_nn_clip_factor(tn_tensor *const *gradients, int count, double max_norm, tn_tensor **norm) {
    AUTO_NN_FREE tn_tensor **squares = malloc(((size_t)count + 1) * sizeof *squares);
    if (!squares) return tn_failed(TN_ERR_MEMORY, "clipping: out of memory");
    for (int i = 0; i < count; i++)
        squares[i] = gradients[i] ? tn_nn_sum_of_squares(gradients[i]) : NULL;
    return tn_nn_clip_factor_of(squares, count, max_norm, norm);
}

tn_tensor *tn_nn_clip_factor_of(tn_tensor *const *squares, int count, double max_norm, tn_tensor **norm) {
    tn_tensor *sum = NULL;
    for (int i = 0; i < count; i++)
        if (squares[i]) sum = sum ? tn_add(sum, squares[i]) : squares[i];
    tn_tensor *total = tn_sqrt(sum ? sum : tn_scalar(0));
    if (norm) *norm = total;
    return tn_minimum(tn_div(tn_scalar(max_norm), tn_add(total, tn_scalar(1e-6))), tn_scalar(1));
}

/* Numbers in a row, [1] each, added in groups that tn_cat takes: reductions of one form side by side share launches,
 * which a chain of sums would part. */
static tn_tensor *join_sum(tn_tensor **parts, int count) {
    enum { GROUP = 64 };
    while (count > 1) {
        int groups = 0;
        for (int i = 0; i < count; i += GROUP)
            parts[groups++] = tn_cat(parts + i, count - i < GROUP ? count - i : GROUP, 0);
        if (groups == 1) break;
        for (int i = 0; i < groups; i++)
            parts[i] = tn_sum(parts[i], TN_DIMS(0), true);
        count = groups;
    }
    return tn_sum(parts[0], TN_ALL, false);
}

enum { LONG_LOOP = 1 << 15 };

/* 0 if all elements are finite, as [1]. A large gradient is summed by rows first, since some devices limit how long a
 * loop is. The sums are in f32, which every device spreads over a workgroup; rounding does not matter to a comparison
 * with 0. */
static tn_tensor *count_not_finite(const tn_tensor *gradient) {
    bool rows = tn_rank(gradient) > 1 && tn_numel(gradient) > LONG_LOOP;
    tn_tensor *flat = rows ? tn_flatten(gradient, 1, -1) : tn_reshape(gradient, TN_DIMS(-1));
    tn_tensor *bad = tn_cast(tn_logical_not(tn_isfinite(flat)), TN_F32);
    return tn_sum(rows ? tn_sum(bad, TN_DIMS(1), false) : bad, TN_DIMS(0), true);
}

tn_tensor *tn_nn_all_finite(tn_tensor *const *gradients, int count) {
    int n = 0;
    AUTO_NN_FREE tn_tensor **parts = malloc(((size_t)count + 1) * sizeof *parts);
    if (!parts) return tn_failed(TN_ERR_MEMORY, "are all gradients finite: out of memory");
    for (int i = 0; i < count; i++)
        if (gradients[i]) parts[n++] = count_not_finite(gradients[i]);
    return n ? tn_eq_scalar(join_sum(parts, n), 0) : tn_full(NULL, 0, 1, TN_BOOL);
}

/* ---- the gradients below a module -------------------------------------------------------------------------------- */

/* The collected gradients, in the scope around; *gradients: freed with free. */
static tn_status gradients_below(const tn_module *m, tn_tensor ***gradients, int *count) {
    tn_variable *variables = NULL;
    tn_status status = tn_module_parameters(m, &variables, count);
    if (status != TN_OK) return status;
    *gradients = malloc(((size_t)*count + 1) * sizeof **gradients);
    if (!*gradients) status = tn_backend_fail(TN_ERR_MEMORY, "gradients: out of memory");
    for (int i = 0; i < *count && status == TN_OK; i++) {
        (*gradients)[i] = tn_grad(variables[i].tensor);
        if ((*gradients)[i]) status = tn_status_of((*gradients)[i]);
    }
    tn_variables_free(variables);
    return status;
}

tn_status tn_clip_grad_norm(tn_module *m, double max_norm, tn_tensor **total_norm) {
    if (total_norm) *total_norm = NULL;
    if (!(max_norm >= 0))
        return tn_backend_fail(
            TN_ERR_ARGUMENT, "tn_clip_grad_norm: max_norm is %g; it must be at least 0 (INFINITY: no limit)", max_norm);
    TRY(tn_nn_refuse_shares(m, TN_ERR_UNSUPPORTED, "tn_clip_grad_norm",
                            "set max_grad_norm in the optimizer's options, which takes the gradients of all of them"));
    AUTO_NN_FREE tn_tensor **gradients = NULL;
    tn_tensor *norm;
    int count = 0;
    TN_SCOPE;
    TN_NO_GRAD;
    TRY(gradients_below(m, &gradients, &count));
    tn_tensor *factor = tn_nn_clip_factor(gradients, count, max_norm, &norm);
    for (int i = 0; i < count; i++)
        if (gradients[i]) tn_mul_(gradients[i], factor);
    if (total_norm) *total_norm = tn_keep(norm);
    return tn_status_of(norm);
}

tn_status tn_clip_grad_value(tn_module *m, double clip_value) {
    if (!(clip_value >= 0))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_clip_grad_value: clip_value is %g; it must be at least 0",
                               clip_value);
    AUTO_NN_FREE tn_tensor **gradients = NULL;
    int count = 0;
    TN_SCOPE;
    TN_NO_GRAD;
    TRY(gradients_below(m, &gradients, &count));
    for (int i = 0; i < count; i++)
        if (gradients[i]) TRY(tn_status_of(tn_clamp_(gradients[i], -clip_value, clip_value)));
    return TN_OK;
}

tn_tensor *tn_grad_is_finite(const tn_module *m) {
    tn_tensor **gradients = NULL, *result;
    int count = 0;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_status status = gradients_below(m, &gradients, &count);
    result = status == TN_OK ? tn_nn_all_finite(gradients, count) : tn_failed(status, "%s", tn_error());
    free(gradients);
    return tn_keep(result);
}
