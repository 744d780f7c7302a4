/* try_device.c — one piece of work on one device after the other, until one does it. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "trunnion/tensor.h"

typedef struct trial {
    tn_device_options options;
    tn_fallback policy;
    tn_status (*work)(void *ctx, tn_device *device);
    void *ctx;
    tn_random_state random; /* at the beginning: every attempt draws the same numbers */
    tn_try_report report;
} trial;

static const char *const USUAL[] = {"auto", "cpu"};

static bool same_everywhere(tn_status s) {
    return s == TN_ERR_ARGUMENT || s == TN_ERR_SHAPE || s == TN_ERR_DTYPE || s == TN_ERR_FORMAT;
}

static bool was_tried(const tn_try_report *r, const char *id) {
    for (int i = 0; i < r->attempt_count; i++)
        if (strcmp(r->attempts[i].id, id) == 0) return true;
    return false;
}

static tn_status work_on(const trial *t, tn_device *device) {
    tn_device *before = tn_chosen_device();
    tn_scope scope = tn_scope_begin();
    TRY(tn_set_current_device(device));
    tn_set_random_state(t->random);
    tn_status s = t->work(t->ctx, device);
    tn_scope_end(&scope);
    (void)tn_set_current_device(before);
    return s;
}

static void note_try(trial *t, const char *id, tn_status s, double begun) {
    tn_try_report *r = &t->report;
    if (s == TN_OK) snprintf(r->ran, sizeof r->ran, "%s", id);
    if (r->attempt_count == (int)TN_COUNT(r->attempts)) return;
    tn_attempt *a = &r->attempts[r->attempt_count++];
    *a = (tn_attempt){.status = s, .seconds = tn_now() - begun};
    snprintf(a->id, sizeof a->id, "%s", id);
    if (s != TN_OK) snprintf(a->reason, sizeof a->reason, "%s", tn_error_code() == s ? tn_error() : tn_status_name(s));
}

/* *tried: there was a device that had not been tried yet, or a reason why there is none. */
static tn_status attempt(trial *t, const char *preference, bool *tried) {
    double begun = tn_now();
    tn_device *device = NULL;
    *tried = true;
    tn_status s = tn_device_open(preference, &t->options, NULL, &device);
    if (s != TN_OK) {
        note_try(t, preference, s, begun);
        return s;
    }
    char id[sizeof device->info.id];
    memcpy(id, device->info.id, sizeof id);
    *tried = !was_tried(&t->report, id);
    if (*tried) {
        s = work_on(t, device);
        note_try(t, id, s, begun);
    }
    tn_device_close(device);
    return s;
}

static void say(const trial *t, const char *next) {
    const tn_try_report *r = &t->report;
    if (t->policy != TN_FALLBACK_WARN || !next || r->attempt_count == 0) return;
    const tn_attempt *last = &r->attempts[r->attempt_count - 1];
    tn_log_line(TN_LOG_NOTICE, "%s failed (%s); trying %s", last->id, last->reason, next);
}

/* "opencl:0: …; cpu: …" */
static tn_status all_failed(const trial *t, tn_status s) {
    char why[900] = "";
    size_t n = 0;
    for (int i = 0; i < t->report.attempt_count && n < sizeof why; i++) {
        const tn_attempt *a = &t->report.attempts[i];
        n += (size_t)snprintf(why + n, sizeof why - n, "%s%s: %s", i ? "; " : "", a->id, a->reason);
    }
    return tn_fail(s, "tn_try: all devices failed: %s", why);
}

static tn_status try_each(trial *t, const char *const *preferences, int count) {
    tn_status s = TN_ERR_UNAVAILABLE;
    for (int i = 0; i < count; i++) {
        bool tried;
        if (i > 0) say(t, preferences[i]);
        tn_status now = attempt(t, preferences[i], &tried);
        if (!tried) continue;
        s = now;
        if (s == TN_OK) return TN_OK;
        if (t->policy == TN_FALLBACK_STRICT || same_everywhere(s)) break;
    }
    return t->report.attempt_count == 1 ? tn_fail(s, "%s", t->report.attempts[0].reason) : all_failed(t, s);
}

static tn_status read_options_try(const tn_device_options *given, trial *t) {
    t->options = (tn_device_options)TN_DEVICE_DEFAULTS;
    TRY(tn_options_read(&t->options, given, "tn_try", "tn_device_options o = TN_DEVICE_DEFAULTS"));
    if ((unsigned)t->options.fallback > TN_FALLBACK_SILENT)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_try: fallback is %d; it must be one of TN_FALLBACK_WARN, TN_FALLBACK_STRICT, "
                       "TN_FALLBACK_SILENT",
                       (int)t->options.fallback);
    t->policy = t->options.fallback;
    t->options.fallback = TN_FALLBACK_STRICT;
    return TN_OK;
}

tn_status tn_try(const char *const *preferences, int count, const tn_device_options *options,
                 tn_status (*work)(void *ctx, tn_device *device), void *ctx, tn_try_report *report) {
    trial t = {.work = work, .ctx = ctx, .random = tn_get_random_state()};
    TRY(tn_need((const void *)(uintptr_t)work, "tn_try: work"));
    if (count < 0 || (count > 0 && !preferences))
        return tn_fail(TN_ERR_ARGUMENT, "tn_try: %d preferences%s", count, preferences ? "" : ", and the list is NULL");
    for (int i = 0; i < count; i++)
        if (!preferences[i]) return tn_fail(TN_ERR_ARGUMENT, "tn_try: preference %d is NULL", i);
    if (report) TRY(tn_result_check(report, "tn_try: report"));
    TRY(read_options_try(options, &t));
    tn_status s = count > 0 ? try_each(&t, preferences, count) : try_each(&t, USUAL, (int)TN_COUNT(USUAL));
    if (report) (void)tn_result_write(report, &t.report, sizeof t.report, "tn_try: report");
    return s;
}
