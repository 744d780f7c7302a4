/* losses.c — distances between vectors, and losses that need more than an element-wise distance. */
#include "functions/common.h"

tn_tensor *(tn_pairwise_distance)(const tn_tensor *x, const tn_tensor *y, double p, double eps, bool keepdim) {
    TN_FUNCTION("pairwise_distance");
    tn_tensor *bad = refused2(x, y);
    if (bad) return tn_keep(bad);
    return tn_keep(tn_norm(tn_add(tn_sub(x, y), tn_scalar(eps)), p, (int64_t[]){-1}, 1, keepdim));
}

tn_tensor *(tn_cdist)(const tn_tensor *x, const tn_tensor *y, double p) {
    TN_FUNCTION("cdist");
    tn_tensor *bad = refused2(x, y);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) < 2 || tn_rank(y) < 2 || tn_size(x, -1) != tn_size(y, -1))
        return tn_keep(tn_failed(TN_ERR_SHAPE, "cdist: x [..., n, d] and y [..., m, d] with equal d are needed"));
    if (!(p >= 0)) return tn_keep(tn_failed(TN_ERR_ARGUMENT, "cdist: p is %g; it must be at least 0", p));
    return tn_keep(tn_norm(tn_sub(tn_unsqueeze(x, -2), tn_unsqueeze(y, -3)), p, (int64_t[]){-1}, 1, false));
}

tn_tensor *(tn_pdist)(const tn_tensor *x, double p) {
    TN_FUNCTION("pdist");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) != 2)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "pdist: the tensor has rank %d; it must be a matrix", tn_rank(x)));
    if (!(p >= 0)) return tn_keep(tn_failed(TN_ERR_ARGUMENT, "pdist: p is %g; it must be at least 0", p));
    tn_tensor *pair = tn_triu_indices(tn_size(x, 0), tn_size(x, 0), 1);
    tn_tensor *a = tn_index_select(x, 0, tn_select(pair, 0, 0)), *b = tn_index_select(x, 0, tn_select(pair, 0, 1));
    return tn_keep(tn_norm(tn_sub(a, b), p, (int64_t[]){-1}, 1, false));
}

/* ---- pairs and triplets ------------------------------------------------------------------------------------------ */

tn_tensor *(tn_cosine_embedding_loss)(const tn_tensor *x1, const tn_tensor *x2, const tn_tensor *target, double margin,
                                      tn_reduction reduction) {
    TN_FUNCTION("cosine_embedding_loss");
    tn_tensor *bad = refused2(x1, x2);
    if (!bad) bad = refused(target);
    if (bad) return tn_keep(bad);
    if (are_halves(x1, x2))
        return tn_keep(
            tn_cast((tn_cosine_embedding_loss)(in_f32(x1), in_f32(x2), target, margin, reduction), tn_dtype_of(x1)));
    int rank = tn_rank(target) + 1;
    if (tn_rank(target) > 1 || tn_rank(x1) != rank || tn_rank(x2) != rank)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE,
            "cosine_embedding_loss: x1 and x2 [batch, features] and target [batch] (or without the batch) are needed"));
    const double eps = 1e-12;
    tn_tensor *dot = sum_dim(tn_mul(x1, x2), -1, false);
    tn_tensor *a = tn_add(sum_dim(tn_mul(x1, x1), -1, false), tn_scalar(eps));
    tn_tensor *b = tn_add(sum_dim(tn_mul(x2, x2), -1, false), tn_scalar(eps));
    tn_tensor *cosine = tn_div(dot, tn_sqrt(tn_mul(a, b))), *zero = tn_scalar(0);
    tn_tensor *like = tn_where(tn_eq(target, tn_scalar_int(1)), tn_sub(tn_scalar(1), cosine), tn_zeros_like(cosine));
    tn_tensor *apart = tn_maximum(tn_sub(cosine, tn_scalar(margin)), zero);
    tn_tensor *unlike = tn_where(tn_eq(target, tn_scalar_int(-1)), apart, tn_zeros_like(cosine));
    return tn_keep(reduced(tn_add(like, unlike), reduction));
}

tn_tensor *(tn_triplet_margin_loss)(const tn_tensor *anchor, const tn_tensor *positive, const tn_tensor *negative,
                                    double margin, double p, double eps, bool swap, tn_reduction reduction) {
    TN_FUNCTION("triplet_margin_loss");
    tn_tensor *bad = refused2(anchor, positive);
    if (!bad) bad = refused(negative);
    if (bad) return tn_keep(bad);
    if (are_halves(anchor, positive) && are_halves(anchor, negative))
        return tn_keep(tn_cast((tn_triplet_margin_loss)(in_f32(anchor), in_f32(positive), in_f32(negative), margin, p,
                                                        eps, swap, reduction),
                               tn_dtype_of(anchor)));
    if (tn_rank(anchor) != tn_rank(positive) || tn_rank(anchor) != tn_rank(negative))
        return tn_keep(
            tn_failed(TN_ERR_SHAPE, "triplet_margin_loss: anchor, positive and negative must have the same rank"));
    if (!(margin > 0))
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "triplet_margin_loss: margin is %g; it must be positive", margin));
    tn_tensor *near = tn_pairwise_distance(anchor, positive, p, eps, false);
    tn_tensor *far = tn_pairwise_distance(anchor, negative, p, eps, false);
    if (swap) far = tn_minimum(far, tn_pairwise_distance(positive, negative, p, eps, false));
    return tn_keep(reduced(tn_relu(tn_add(tn_sub(near, far), tn_scalar(margin))), reduction));
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

tn_tensor *(tn_multi_margin_loss)(const tn_tensor *x, const tn_tensor *target, const tn_tensor *weight, double p,
                                  double margin, tn_reduction reduction) {
    TN_FUNCTION("multi_margin_loss");
    tn_tensor *bad = refused2(x, target);
    if (!bad && weight) bad = refused(weight);
    if (bad) return tn_keep(bad);
    if (are_halves(x, weight))
        return tn_keep(
            tn_cast((tn_multi_margin_loss)(in_f32(x), target, in_f32(weight), p, margin, reduction), tn_dtype_of(x)));
    int64_t classes = tn_rank(x) ? tn_size(x, -1) : 1;
    if (p != 1 && p != 2)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "multi_margin_loss: p is %g; it must be 1 or 2", p));
    if (tn_rank(x) > 2 || !is_index(target) || tn_numel(target) * classes != tn_numel(x) || tn_rank(target) > 1)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE,
            "multi_margin_loss: x [batch, classes] (or [classes]) and target [batch] of integers are needed"));
    if (weight && (tn_rank(weight) != 1 || tn_numel(weight) != classes))
        return tn_keep(tn_failed(TN_ERR_SHAPE,
                                 "multi_margin_loss: weight must have one element for each of the %lld classes",
                                 (long long)classes));
    tn_tensor *rows = tn_reshape(x, (int64_t[]){tn_numel(target), classes}, 2), *own = tn_unsqueeze(flat(target), 1);
    tn_tensor *v = tn_relu(tn_add(tn_sub(rows, tn_gather(rows, 1, own)), tn_scalar(margin)));
    if (p == 2) v = tn_mul(v, v);
    if (weight) v = tn_mul(v, tn_unsqueeze(tn_index_select(weight, 0, flat(target)), 1));
    v = tn_where(tn_eq(own, numbers(0, classes)), tn_zeros_like(v), v);
    tn_tensor *loss = tn_div(sum_dim(v, 1, false), tn_scalar((double)classes));
    loss = reduced(loss, reduction);
    return tn_keep(reduction == TN_REDUCTION_NONE
                       ? tn_reshape(loss, tn_shape(target), tn_rank(x) > 1 ? tn_rank(target) : 0)
                       : loss);
}

/* target: class numbers up to the first −1. Each of these, t, meets each class i that is not among them. */
tn_tensor *(tn_multilabel_margin_loss)(const tn_tensor *x, const tn_tensor *target, tn_reduction reduction) {
    TN_FUNCTION("multilabel_margin_loss");
    tn_tensor *bad = refused2(x, target);
    if (bad) return tn_keep(bad);
    bool fits = tn_rank(x) == tn_rank(target) && tn_rank(x) <= 2 && is_index(target);
    for (int d = 0; fits && d < tn_rank(x); d++)
        fits = tn_size(x, d) == tn_size(target, d);
    if (!fits)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE,
            "multilabel_margin_loss: x and target [batch, classes] (or [classes]) of the same shape are needed"));
    int64_t classes = tn_rank(x) ? tn_size(x, -1) : 1, batch = tn_rank(x) == 2 ? tn_size(x, 0) : 1;
    tn_tensor *rows = tn_reshape(x, (int64_t[]){batch, classes}, 2),
              *t = tn_reshape(target, (int64_t[]){batch, classes}, 2);
    tn_tensor *counts = tn_eq(tn_cumsum(tn_cast(tn_lt(t, tn_scalar_int(0)), TN_I64), 1), tn_scalar_int(0));
    tn_tensor *known = tn_where(tn_logical_or(counts, tn_lt(t, tn_scalar_int(-1))), t, tn_scalar_int(0));
    tn_tensor *is_own = tn_logical_and(tn_unsqueeze(counts, 2), tn_eq(tn_unsqueeze(known, 2), numbers(0, classes)));
    tn_tensor *labelled = tn_any(is_own, (int64_t[]){1}, 1, true);
    tn_tensor *v = tn_sub(tn_unsqueeze(tn_gather(rows, 1, known), 2), tn_unsqueeze(rows, 1));
    v = tn_relu(tn_sub(tn_scalar(1), v)); /* [batch, label, class] */
    v = tn_where(tn_logical_and(tn_unsqueeze(counts, 2), tn_logical_not(labelled)), v, tn_zeros_like(v));
    tn_tensor *loss = tn_div(tn_sum(v, (int64_t[]){1, 2}, 2, false), tn_scalar((double)classes));
    loss = reduced(loss, reduction);
    return tn_keep(reduction == TN_REDUCTION_NONE && tn_rank(x) < 2 ? tn_select(loss, 0, 0) : loss);
}

tn_tensor *(tn_multilabel_soft_margin_loss)(const tn_tensor *x, const tn_tensor *target, const tn_tensor *weight,
                                            tn_reduction reduction) {
    TN_FUNCTION("multilabel_soft_margin_loss");
    tn_tensor *bad = refused2(x, target);
    if (!bad && weight) bad = refused(weight);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) == 0)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "multilabel_soft_margin_loss: the tensor has no dimension of classes"));
    tn_tensor *yes = tn_mul(target, tn_logsigmoid(x));
    tn_tensor *no = tn_mul(tn_sub(tn_scalar(1), target), tn_logsigmoid(tn_neg(x)));
    tn_tensor *loss = tn_neg(tn_add(yes, no));
    if (weight) loss = tn_mul(loss, weight);
    return tn_keep(reduced(tn_mean(loss, (int64_t[]){-1}, 1, false), reduction));
}

/* ---- CTC --------------------------------------------------------------------------------------------------------- */

/* A number below all log probabilities that matter, whose sums stay finite, so that no gradient meets ∞ − ∞. */
static const double nothing = -1e30;

static tn_tensor *log_sum3(const tn_tensor *a, const tn_tensor *b, const tn_tensor *c) {
    tn_tensor *all = tn_stack((tn_tensor *[]){tn_contiguous(a), tn_contiguous(b), tn_contiguous(c)}, 3, 0);
    return tn_logsumexp(all, (int64_t[]){0}, 1, false);
}

/* The target with blanks between, before and after its labels: [batch, 2 · longest + 1]. */
static tn_tensor *with_blanks(const tn_tensor *targets, int64_t blank) {
    int64_t batch = tn_size(targets, 0), longest = tn_size(targets, 1);
    tn_tensor *pair =
        tn_stack((tn_tensor *[]){tn_full(tn_shape(targets), 2, (double)blank, TN_I64), tn_cast(targets, TN_I64)}, 2, 2);
    pair = tn_reshape(pair, (int64_t[]){batch, 2 * longest}, 2);
    return tn_pad(pair, (int64_t[]){0, 1}, 2, (double)blank);
}

/* Log probability of reaching each place of the extended target, step by step; past an input's length it stays. Before
 * the first step that is 0 at the first blank: an input of length 0 has the empty target with probability 1. */
static tn_tensor *ctc_alpha(const tn_tensor *log_probs, const tn_tensor *extended, const tn_tensor *input_lengths,
                            int64_t blank) {
    int64_t steps = tn_size(log_probs, 0), places = tn_size(extended, 1);
    tn_tensor *low = tn_scalar(nothing);
    tn_tensor *before2 = tn_pad(tn_slice(extended, 1, 0, places > 2 ? places - 2 : 0, 1),
                                (int64_t[]){places > 2 ? 2 : places, 0}, 2, (double)blank);
    tn_tensor *skips = tn_logical_and(tn_ne(extended, tn_scalar_int(blank)), tn_ne(extended, before2));
    skips = tn_logical_and(skips, tn_ge(numbers(0, places), tn_scalar_int(2)));
    tn_tensor *alpha = tn_where(tn_lt(numbers(0, places), tn_scalar_int(1)), tn_scalar(0), low);
    alpha = tn_cast(alpha, tn_dtype_of(log_probs));
    for (int64_t t = 0; t < steps; t++) {
        tn_tensor *p = tn_maximum(tn_gather(tn_select(log_probs, 0, t), 1, extended), low);
        tn_tensor *goes_on = tn_unsqueeze(tn_gt(input_lengths, tn_scalar_int(t)), 1);
        if (t == 0) {
            tn_tensor *first = tn_where(tn_lt(numbers(0, places), tn_scalar_int(2)), p, low);
            alpha = tn_where(goes_on, first, alpha);
            continue;
        }
        tn_tensor *one = tn_pad(tn_slice(alpha, 1, 0, places - 1, 1), (int64_t[]){1, 0}, 2, nothing);
        tn_tensor *two = tn_pad(tn_slice(alpha, 1, 0, places > 2 ? places - 2 : 0, 1),
                                (int64_t[]){places > 2 ? 2 : places, 0}, 2, nothing);
        tn_tensor *next = tn_maximum(tn_add(log_sum3(alpha, one, tn_where(skips, two, low)), p), low);
        alpha = tn_where(goes_on, next, alpha);
    }
    return alpha;
}

tn_tensor *(tn_ctc_loss)(const tn_tensor *log_probs, const tn_tensor *targets, const tn_tensor *input_lengths,
                         const tn_tensor *target_lengths, int64_t blank, tn_reduction reduction, bool zero_infinity) {
    TN_FUNCTION("ctc_loss");
    tn_tensor *bad = refused2(log_probs, targets);
    if (!bad) bad = refused2(input_lengths, target_lengths);
    if (bad) return tn_keep(bad);
    int64_t batch = tn_rank(log_probs) == 3 ? tn_size(log_probs, 1) : -1;
    bool fits = batch >= 0 && tn_size(log_probs, 0) > 0 && tn_rank(targets) == 2 && tn_size(targets, 0) == batch &&
                tn_rank(input_lengths) == 1 && tn_numel(input_lengths) == batch && tn_rank(target_lengths) == 1 &&
                tn_numel(target_lengths) == batch;
    if (!fits || !is_float(log_probs) || !is_index(targets) || !is_index(input_lengths) || !is_index(target_lengths))
        return tn_keep(tn_failed(TN_ERR_SHAPE, "ctc_loss: log_probs [time, batch, classes], targets [batch, longest], "
                                               "and lengths [batch] of integers are needed"));
    if (blank < 0 || blank >= tn_size(log_probs, 2))
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "ctc_loss: blank is %lld; it must be one of the %lld classes",
                                 (long long)blank, (long long)tn_size(log_probs, 2)));
    input_lengths = within(input_lengths, tn_size(log_probs, 0));
    target_lengths = within(target_lengths, tn_size(targets, 1));
    tn_tensor *extended = with_blanks(targets, blank), *alpha = ctc_alpha(log_probs, extended, input_lengths, blank);
    tn_tensor *last = tn_mul(target_lengths, tn_scalar_int(2));
    tn_tensor *ends_blank = tn_squeeze(tn_gather(alpha, 1, tn_unsqueeze(last, 1)), (int64_t[]){1}, 1);
    tn_tensor *label = tn_maximum(tn_sub(last, tn_scalar_int(1)), tn_scalar_int(0));
    tn_tensor *ends_label = tn_squeeze(tn_gather(alpha, 1, tn_unsqueeze(label, 1)), (int64_t[]){1}, 1);
    ends_label = tn_where(tn_gt(last, tn_scalar_int(0)), ends_label, tn_scalar(nothing));
    tn_tensor *sum = tn_logaddexp(ends_blank, ends_label);
    tn_tensor *impossible = tn_le(sum, tn_scalar(nothing / 2));
    tn_tensor *loss = tn_where(impossible, tn_scalar(zero_infinity ? 0 : INFINITY),
                               tn_neg(tn_where(impossible, tn_zeros_like(sum), sum)));
    if (reduction == TN_REDUCTION_MEAN)
        loss = tn_div(loss, tn_cast(tn_maximum(target_lengths, tn_scalar_int(1)), tn_dtype_of(loss)));
    return tn_keep(reduced(loss, reduction));
}
