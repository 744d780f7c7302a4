/* schedule.c — learning-rate schedules: numbers of the host, for tn_optimizer_set_lr. */
#include <math.h>
#include <string.h>

#include "nn/make.h"
#include "trunnion/backend.h"

/* ---- functions of the step --------------------------------------------------------------------------------------- */

static tn_status check_schedule(const tn_schedule *s, int64_t at) {
    if ((unsigned)s->kind > TN_SCHEDULE_ONE_CYCLE)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: kind is %d; it must be one of TN_SCHEDULE_CONSTANT, "
                               "TN_SCHEDULE_LINEAR, TN_SCHEDULE_COSINE, TN_SCHEDULE_STEP, TN_SCHEDULE_EXPONENTIAL, "
                               "TN_SCHEDULE_ONE_CYCLE",
                               (int)s->kind);
    if (!(s->lr >= 0 && isfinite(s->lr)) || !(s->final_lr >= 0 && isfinite(s->final_lr)))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: lr is %g and final_lr %g; they must be finite and at least 0", s->lr,
                               s->final_lr);
    if (at < 0 || s->warmup < 0 || s->total < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: step %lld, warmup %lld, total %lld; all must be at least 0",
                               (long long)at, (long long)s->warmup, (long long)s->total);
    bool ends = s->kind == TN_SCHEDULE_LINEAR || s->kind == TN_SCHEDULE_COSINE || s->kind == TN_SCHEDULE_ONE_CYCLE;
    if (ends && s->total == 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: total is 0; set it to the step at which the rate reaches its end");
    if (s->kind == TN_SCHEDULE_STEP && s->step_size < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_schedule_at: step_size is %lld; it must be at least 1",
                               (long long)s->step_size);
    if (!(s->gamma >= 0 && isfinite(s->gamma)))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_schedule_at: gamma is %g; it must be finite and at least 0",
                               s->gamma);
    if (!(s->pct_start > 0 && s->pct_start < 1) || !(s->div_factor > 0) || !(s->final_div_factor > 0))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: pct_start is %g, div_factor %g, final_div_factor %g; pct_start must be "
                               "in (0, 1), the others greater than 0",
                               s->pct_start, s->div_factor, s->final_div_factor);
    return TN_OK;
}

/* From a to b along half a cosine wave; part in [0, 1]. */
static double along_cosine(double a, double b, double part) { return b + (a - b) * 0.5 * (1 + cos(acos(-1) * part)); }

/* Up to lr until step pct_start · total − 1, then down until step total − 1. */
static double one_cycle(const tn_schedule *s, double at) {
    double first = s->lr / s->div_factor, last = first / s->final_div_factor;
    double top = s->pct_start * (double)s->total - 1, end = (double)s->total - 1;
    if (at >= end) return last;
    if (at <= top) return along_cosine(first, s->lr, at / top);
    return along_cosine(s->lr, last, (at - top) / (end - top));
}

double tn_schedule_at(const tn_schedule *given, int64_t at) {
    if (!given) return NAN;
    tn_schedule read = TN_SCHEDULE_DEFAULTS, *s = &read;
    if (tn_options_read(s, given, "tn_schedule_at", "tn_schedule s = TN_SCHEDULE_DEFAULTS") != TN_OK) return NAN;
    if (check_schedule(s, at) != TN_OK) return NAN;
    if (at < s->warmup) return s->lr * (double)(at + 1) / (double)s->warmup;
    int64_t behind = at - s->warmup;
    switch (s->kind) {
    case TN_SCHEDULE_CONSTANT: return s->lr;
    case TN_SCHEDULE_STEP: return s->lr * pow(s->gamma, (double)(behind / s->step_size));
    case TN_SCHEDULE_EXPONENTIAL: return s->lr * pow(s->gamma, (double)behind);
    case TN_SCHEDULE_ONE_CYCLE: return one_cycle(s, (double)at);
    default: break;
    }
    if (at >= s->total) return s->final_lr;
    double part = (double)behind / (double)(s->total - s->warmup); /* of the way down: [0, 1) */
    double left = s->kind == TN_SCHEDULE_LINEAR ? 1 - part : 0.5 * (1 + cos(acos(-1) * part));
    return s->final_lr + (s->lr - s->final_lr) * left;
}

/* ---- by a metric ------------------------------------------------------------------------------------------------- */

static tn_status check_plateau(const tn_plateau *p) {
    if (p->factor > 0 && p->factor < 1 && p->lr >= 0 && isfinite(p->lr) && p->min_lr >= 0 && isfinite(p->min_lr) &&
        p->patience >= 0 && p->cooldown >= 0 && p->threshold >= 0 && isfinite(p->threshold) && p->bad_steps >= 0 &&
        p->cooling >= 0)
        return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT,
                           "tn_plateau_step: lr %g, factor %g, min_lr %g, threshold %g, patience %lld, cooldown %lld, "
                           "bad_steps %lld, cooling %lld; factor must be in (0, 1), the others finite and at least 0",
                           p->lr, p->factor, p->min_lr, p->threshold, (long long)p->patience, (long long)p->cooldown,
                           (long long)p->bad_steps, (long long)p->cooling);
}

static bool is_better(const tn_plateau *p, double metric) {
    if (isnan(p->best)) return !isnan(metric);
    double margin = p->absolute ? p->threshold : p->threshold * fabs(p->best);
    return p->maximize ? metric > p->best + margin : metric < p->best - margin;
}

double tn_plateau_step(tn_plateau *given, double metric) {
    enum { EPS_DIGITS = 8 }; /* changes of the rate below 1e-8 are ignored, as in PyTorch */
    if (!given) return NAN;
    tn_plateau read = TN_PLATEAU_DEFAULTS, *p = &read;
    if (tn_options_read(p, given, "tn_plateau_step", "tn_plateau p = TN_PLATEAU_DEFAULTS") != TN_OK) return NAN;
    if (check_plateau(p) != TN_OK) return NAN;
    bool better = is_better(p, metric);
    if (better) p->best = metric;
    p->bad_steps = better ? 0 : p->bad_steps + 1;
    if (p->cooling > 0) {
        p->cooling--;
        p->bad_steps = 0;
    }
    if (p->bad_steps > p->patience) {
        double lower = fmax(p->lr * p->factor, p->min_lr);
        if (p->lr - lower > pow(10, -EPS_DIGITS)) p->lr = lower;
        p->cooling = p->cooldown;
        p->bad_steps = 0;
    }
    size_t size = given->struct_size & ~TN_OPTIONS_MARK; /* an older program has fewer fields */
    memcpy((char *)given + sizeof size, (char *)p + sizeof size, size - sizeof size);
    return p->lr;
}
