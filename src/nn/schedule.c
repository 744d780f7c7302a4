/* schedule.c — learning-rate schedules: numbers of the host, for tn_optimizer_set_lr. */
#include <math.h>

#include "nn/make.h"
#include "trunnion/backend.h"

static tn_status check_schedule(const tn_schedule *s, int64_t at) {
    if ((unsigned)s->kind > TN_SCHEDULE_COSINE)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: kind is %d; it must be one of TN_SCHEDULE_CONSTANT, "
                               "TN_SCHEDULE_LINEAR, TN_SCHEDULE_COSINE",
                               (int)s->kind);
    if (!(s->lr >= 0 && isfinite(s->lr)) || !(s->final_lr >= 0 && isfinite(s->final_lr)))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: lr is %g and final_lr %g; they must be finite and at least 0", s->lr,
                               s->final_lr);
    if (at < 0 || s->warmup < 0 || s->total < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: step %lld, warmup %lld, total %lld; all must be at least 0",
                               (long long)at, (long long)s->warmup, (long long)s->total);
    return TN_OK;
}

double tn_schedule_at(const tn_schedule *given, int64_t at) {
    if (!given) return NAN;
    tn_schedule read = TN_SCHEDULE_DEFAULTS, *s = &read;
    if (tn_options_read(s, given, "tn_schedule_at", "tn_schedule s = TN_SCHEDULE_DEFAULTS") != TN_OK) return NAN;
    if (check_schedule(s, at) != TN_OK) return NAN;
    if (at < s->warmup) return s->lr * (double)(at + 1) / (double)s->warmup;
    if (s->kind == TN_SCHEDULE_CONSTANT) return s->lr;
    if (at >= s->total) return s->final_lr;
    double part = (double)(at - s->warmup) / (double)(s->total - s->warmup); /* of the way down: [0, 1) */
    double left = s->kind == TN_SCHEDULE_LINEAR ? 1 - part : 0.5 * (1 + cos(acos(-1) * part));
    return s->final_lr + (s->lr - s->final_lr) * left;
}
