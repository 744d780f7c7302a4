/* draws.c — distributions made of uniform numbers; dropouts of other kinds; embedding bags. */
#include "functions/common.h"

static tn_tensor *wrong(const char *name, const char *what, double v, const char *range) {
    return tn_keep(tn_failed(TN_ERR_ARGUMENT, "%s: %s is %g; it must %s", name, what, v, range));
}

/* −log(1 − u) with u in [0, 1): never infinite. */
static tn_tensor *standard_exponential(const int64_t *shape, int rank) {
    return tn_neg(tn_log1p(tn_neg(tn_rand(shape, rank))));
}

tn_tensor *(tn_exponential)(double lambd, const int64_t *shape, int rank) {
    TN_FUNCTION("exponential");
    if (!(lambd > 0)) return wrong("exponential", "lambd", lambd, "be above 0");
    return tn_keep(tn_div(standard_exponential(shape, rank), tn_scalar(lambd)));
}

tn_tensor *(tn_cauchy)(double median, double sigma, const int64_t *shape, int rank) {
    TN_FUNCTION("cauchy");
    if (!(sigma > 0)) return wrong("cauchy", "sigma", sigma, "be above 0");
    tn_tensor *angle = tn_mul(tn_sub(tn_rand(shape, rank), tn_scalar(0.5)), tn_scalar(M_PI));
    return tn_keep(tn_add(tn_mul(tn_tan(angle), tn_scalar(sigma)), tn_scalar(median)));
}

tn_tensor *(tn_log_normal)(double mean, double std, const int64_t *shape, int rank) {
    TN_FUNCTION("log_normal");
    if (!(std > 0)) return wrong("log_normal", "std", std, "be above 0");
    return tn_keep(tn_exp(tn_normal(mean, std, shape, rank)));
}

tn_tensor *(tn_geometric)(double p, const int64_t *shape, int rank) {
    TN_FUNCTION("geometric");
    if (!(p > 0 && p < 1)) return wrong("geometric", "p", p, "lie between 0 and 1");
    tn_tensor *trials = tn_ceil(tn_div(standard_exponential(shape, rank), tn_scalar(-log1p(-p))));
    return tn_keep(tn_maximum(trials, tn_scalar(1)));
}

/* The places drawn, -1 in rows that are not `valid`, which is an error where indices are checked. */
static tn_tensor *drawn(const tn_tensor *valid, const tn_tensor *place, int64_t classes) {
    tn_tensor *none = tn_scalar_int(-1), *checked = within(flat(tn_where(valid, place, none)), classes - 1);
    return tn_keep(tn_where(valid, tn_reshape(checked, tn_shape(place), tn_rank(place)), none));
}

tn_tensor *(tn_multinomial)(const tn_tensor *p, int64_t num_samples, bool replacement) {
    TN_FUNCTION("multinomial");
    tn_tensor *bad = refused(p);
    if (bad) return tn_keep(bad);
    if ((tn_rank(p) != 1 && tn_rank(p) != 2) || !is_float(p) || num_samples < 1 || tn_size(p, -1) < 1)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "multinomial: weights [classes] or [rows, classes] of a floating point "
                                               "type, and at least one sample, are needed"));
    int rank = tn_rank(p);
    int64_t classes = tn_size(p, -1), shape[2] = {rank == 2 ? tn_size(p, 0) : num_samples, num_samples};
    if (classes > 1 << 24) /* as far as f32 counts */
        return tn_keep(
            tn_failed(TN_ERR_ARGUMENT, "multinomial: %lld classes; at most 2^24 are possible", (long long)classes));
    if (!replacement && num_samples > classes)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "multinomial: %lld samples without replacement from %lld classes",
                                 (long long)num_samples, (long long)classes));
    tn_tensor *weights = tn_cast(p, tn_dtype_of(p) == TN_F64 ? TN_F64 : TN_F32);
    tn_tensor *sums = tn_cumsum(weights, -1), *total = tn_slice(sums, -1, classes - 1, classes, 1);
    tn_tensor *valid = tn_logical_and(tn_gt(total, tn_scalar(0)), tn_isfinite(total));
    valid = tn_logical_and(valid, tn_ge(tn_amin(weights, (int64_t[]){-1}, 1, true), tn_scalar(0)));
    if (!replacement) { /* the first arrivals of Poisson processes with these rates */
        tn_tensor *time = tn_maximum(standard_exponential(tn_shape(p), rank), tn_scalar(1e-30));
        return drawn(valid, tn_topk_indices(tn_div(weights, time), num_samples, -1, true), classes);
    }
    tn_tensor *at = tn_mul(tn_rand(shape, rank), total);
    tn_tensor *place = tn_searchsorted(sums, at, true);
    return drawn(valid, tn_minimum(place, tn_scalar_int(classes - 1)), classes);
}

/* ---- dropouts, leaky slopes -------------------------------------------------------------------------------------- */

tn_tensor *(tn_rrelu)(const tn_tensor *x, double lower, double upper, bool training) {
    TN_FUNCTION("rrelu");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (!(lower <= upper)) return wrong("rrelu", "lower", lower, "not exceed upper");
    if (!is_float(x)) return tn_keep(tn_failed(TN_ERR_DTYPE, "rrelu: the tensor must be of a floating point type"));
    if (!training) return tn_keep(tn_leaky_relu(x, (lower + upper) / 2));
    tn_tensor *slope = tn_cast(tn_uniform(lower, upper, tn_shape(x), tn_rank(x)), tn_dtype_of(x));
    return tn_keep(tn_where(tn_lt(x, tn_scalar(0)), tn_mul(x, slope), x));
}

static tn_tensor *kept_mask(const int64_t *shape, int rank, double p, tn_dtype t) {
    return tn_cast(tn_bernoulli(tn_full(shape, rank, 1 - p, TN_F32)), t);
}

tn_tensor *(tn_feature_dropout)(const tn_tensor *x, double p, bool training, bool batched) {
    int64_t shape[TN_MAX_RANK];
    TN_FUNCTION("feature_dropout");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (!(p >= 0 && p <= 1)) return wrong("feature_dropout", "p", p, "lie in [0, 1]");
    if (tn_rank(x) < 1 + batched)
        return tn_keep(
            tn_failed(TN_ERR_SHAPE, "dropout: the tensor of rank %d has no dimension of channels", tn_rank(x)));
    if (!training || p == 0) return tn_keep(tn_contiguous(x));
    for (int d = 0; d < tn_rank(x); d++)
        shape[d] = d <= (batched ? 1 : 0) ? tn_size(x, d) : 1;
    tn_tensor *kept = kept_mask(shape, tn_rank(x), p, tn_dtype_of(x));
    return tn_keep(tn_mul(x, tn_mul(kept, tn_scalar(p < 1 ? 1 / (1 - p) : 0))));
}

/* Dropped elements become the value that selu tends to; a and b keep mean 0 and variance 1. Source: Klambauer 2017. */
tn_tensor *(tn_alpha_dropout)(const tn_tensor *x, double p, bool training) {
    const double low = -1.7580993408473766;
    TN_FUNCTION("alpha_dropout");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (!(p >= 0 && p <= 1)) return wrong("alpha_dropout", "p", p, "lie in [0, 1]");
    if (!is_float(x))
        return tn_keep(tn_failed(TN_ERR_DTYPE, "alpha_dropout: the tensor must be of a floating point type"));
    if (!training || p == 0) return tn_keep(tn_contiguous(x));
    if (p == 1) return tn_keep(tn_mul(x, tn_scalar(0)));
    double a = 1 / sqrt((1 - p) * (1 + p * low * low)), b = -a * low * p;
    tn_tensor *kept = kept_mask(tn_shape(x), tn_rank(x), p, TN_BOOL);
    tn_tensor *v = tn_where(kept, x, tn_full(NULL, 0, low, tn_dtype_of(x)));
    return tn_keep(tn_add(tn_mul(v, tn_scalar(a)), tn_scalar(b)));
}

/* ---- embedding bags ---------------------------------------------------------------------------------------------- */

/* rows [n, features] joined by the bag [n] that each belongs to. */
static tn_tensor *join_bags(const tn_tensor *rows, const tn_tensor *bag, int64_t bags, tn_bag_mode mode) {
    int64_t shape[2] = {bags, tn_size(rows, 1)}, n = tn_size(rows, 0);
    tn_tensor *zeros = tn_zeros(shape, 2, tn_dtype_of(rows));
    if (mode == TN_BAG_MAX) return tn_index_reduce(zeros, 0, bag, rows, TN_REDUCE_AMAX, false);
    tn_tensor *sum = tn_index_add(zeros, 0, bag, rows);
    if (mode == TN_BAG_SUM) return sum;
    tn_tensor *count = tn_index_add(tn_zeros(&bags, 1, TN_F64), 0, bag, tn_ones(&n, 1, TN_F64));
    count = tn_cast(tn_maximum(count, tn_scalar(1)), tn_dtype_of(rows));
    return tn_div(sum, tn_unsqueeze(count, 1));
}

/* Offsets of bags, which must begin with 0, never fall, and not exceed n. */
static tn_tensor *ascending(const tn_tensor *offsets, int64_t n) {
    int64_t bags = tn_numel(offsets);
    tn_tensor *o = tn_cast(offsets, TN_I64), *first = within(tn_slice(o, 0, 0, 1, 1), 0);
    tn_tensor *steps = tn_sub(o, tn_pad(tn_slice(o, 0, 0, bags - 1, 1), (int64_t[]){1, 0}, 2, 0));
    return within(tn_add(tn_cumsum(within(steps, n), 0), first), n);
}

tn_tensor *(tn_embedding_bag)(const tn_tensor *index, const tn_tensor *weight, const tn_tensor *offsets,
                              tn_bag_mode mode, const tn_tensor *per_sample_weights) {
    TN_FUNCTION("embedding_bag");
    tn_tensor *bad = refused2(index, weight);
    if (!bad && offsets) bad = refused(offsets);
    if (!bad && per_sample_weights) bad = refused(per_sample_weights);
    if (bad) return tn_keep(bad);
    bad = no_choice("embedding_bag: mode", (int)mode, TN_BAG_MAX, "TN_BAG_SUM, TN_BAG_MEAN, TN_BAG_MAX");
    if (bad) return tn_keep(bad);
    bool fits = is_index(index) && tn_rank(weight) == 2 &&
                (offsets ? tn_rank(index) == 1 && tn_rank(offsets) == 1 && is_index(offsets) : tn_rank(index) == 2);
    if (!fits)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "embedding_bag: index [bags, n], or index [n] with offsets [bags], and "
                                               "weight [count, features] are needed"));
    if (per_sample_weights && (mode != TN_BAG_SUM || tn_numel(per_sample_weights) != tn_numel(index)))
        return tn_keep(
            tn_failed(TN_ERR_ARGUMENT, "embedding_bag: per_sample_weights are for the sum, one for each index"));
    int64_t n = tn_numel(index), bags = offsets ? tn_numel(offsets) : tn_size(index, 0),
            each = bags && !offsets ? n / bags : 0;
    tn_tensor *rows = tn_embedding(flat(index), weight);
    if (per_sample_weights) rows = tn_mul(rows, tn_unsqueeze(flat(per_sample_weights), 1));
    if (!offsets && n > 0) {
        tn_tensor *all = tn_reshape(rows, (int64_t[]){bags, each, tn_size(weight, 1)}, 3);
        if (mode == TN_BAG_MAX) return tn_keep(tn_max(all, 1, false));
        tn_tensor *sum = sum_dim(all, 1, false);
        return tn_keep(mode == TN_BAG_MEAN ? tn_div(sum, tn_scalar((double)each)) : sum);
    }
    if (n == 0 || bags == 0) return tn_keep(tn_zeros((int64_t[]){bags, tn_size(weight, 1)}, 2, tn_dtype_of(weight)));
    tn_tensor *bag = tn_sub(tn_searchsorted(ascending(offsets, n), numbers(0, n), true), tn_scalar_int(1));
    return tn_keep(join_bags(rows, bag, bags, mode));
}
