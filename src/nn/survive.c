/* survive.c — tn_survive: a run that continues on the next device if its own fails.
 *
 * The run is a set of functions that build, step and free it: it is built anew on the next device and filled from the
 * copy in host memory. There are two copies, so that a device that fails during copying leaves the previous one
 * complete. Each device's share runs on a thread of its own (`attempt`): what is recorded but not computed when a
 * device fails belongs to that thread and goes with it. A thread that hangs in a driver cannot be ended, so it is left
 * behind: it owns its attempt, and the run shares nothing with it but the flag that says so. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/survive.h"

enum { MOST_DEVICES = 64, MOST_EVERY = 100000, ID_BYTES = 32 };

/* ---- the copy of the state --------------------------------------------------------------------------------------- */

typedef struct snapshot {
    char *values; /* of all variables, one after the other */
    size_t bytes;
    int64_t *steps; /* of the optimizer's variables */
    int step_count;
    double rate;
    tn_random_state random;
    int64_t made; /* steps; -1: there is no copy yet */
} snapshot;

typedef struct variables {
    tn_variable *list[2]; /* owned */
    const tn_variable *items[3];
    int count[3];
} variables;

static void variables_end(variables *v) {
    tn_variables_free(v->list[0]);
    tn_variables_free(v->list[1]);
}

static tn_status variables_of(const tn_checkpoint *c, variables *v) {
    *v = (variables){.items = {NULL, NULL, c->extras}, .count = {0, 0, c->extra_count}};
    tn_status s = c->model ? tn_module_variables(c->model, &v->list[0], &v->count[0]) : TN_OK;
    if (s == TN_OK && c->optimizer) s = tn_optimizer_variables(c->optimizer, &v->list[1], &v->count[1]);
    v->items[0] = v->list[0];
    v->items[1] = v->list[1];
    return s;
}

static size_t bytes_of(const tn_tensor *t) { return (size_t)tn_numel(t) * tn_dtype_size(tn_dtype_of(t)); }

static size_t bytes_of_all(const variables *v) {
    size_t bytes = 0;
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < v->count[p]; i++)
            bytes += bytes_of(v->items[p][i].tensor);
    return bytes;
}

static tn_status snapshot_reserve(snapshot *s, size_t bytes, int step_count) {
    if (s->values && s->bytes == bytes && s->step_count == step_count) return TN_OK;
    free(s->values);
    free(s->steps);
    *s = (snapshot){.values = malloc(bytes + 1), .steps = malloc(((size_t)step_count + 1) * sizeof(int64_t))};
    s->made = -1;
    s->bytes = bytes;
    s->step_count = step_count;
    if (s->values && s->steps) return TN_OK;
    return tn_backend_fail(TN_ERR_MEMORY, "survive: out of host memory for a copy of %zu bytes", bytes);
}

/* Reads all variables; *s is complete only after TN_OK. */
static tn_status snapshot_read(const tn_checkpoint *c, const variables *v, snapshot *s) {
    int count = c->optimizer ? tn_optimizer_count(c->optimizer) : 0;
    tn_status status = snapshot_reserve(s, bytes_of_all(v), count);
    char *to = s->values;
    s->made = -1;
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < v->count[p] && status == TN_OK; i++) {
            const tn_tensor *t = v->items[p][i].tensor;
            status = tn_read(t, to, bytes_of(t));
            to += bytes_of(t);
        }
    for (int i = 0; i < count && status == TN_OK; i++)
        s->steps[i] = tn_optimizer_steps(c->optimizer, i);
    if (c->optimizer) s->rate = tn_optimizer_lr(c->optimizer);
    s->random = tn_get_random_state();
    return status;
}

/* Writes all variables, in one run. */
static tn_status snapshot_write(const snapshot *s, const tn_checkpoint *c, const variables *v) {
    TN_SCOPE;
    TN_NO_GRAD;
    const char *from = s->values;
    int count = c->optimizer ? tn_optimizer_count(c->optimizer) : 0;
    if (bytes_of_all(v) != s->bytes || count != s->step_count)
        return tn_backend_fail(
            TN_ERR_STATE,
            "tn_survive: the state has %zu bytes, but %zu before its device failed: begin must build the "
            "same each time",
            bytes_of_all(v), s->bytes);
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < v->count[p]; i++) {
            tn_tensor *t = v->items[p][i].tensor;
            tn_tensor *value = tn_from_data(from, tn_shape(t), tn_rank(t), tn_dtype_of(t));
            TRY(tn_status_of(tn_copy_(t, value)));
            from += bytes_of(t);
        }
    tn_status status = tn_eval(NULL, 0);
    for (int i = 0; i < count && status == TN_OK; i++)
        status = tn_optimizer_set_steps(c->optimizer, i, s->steps[i]);
    if (status == TN_OK && c->optimizer) status = tn_optimizer_set_lr(c->optimizer, s->rate);
    tn_set_random_state(s->random);
    return status;
}

static void snapshot_end(snapshot *s) {
    free(s->values);
    free(s->steps);
}

/* Gives the run a copy of its own; the thread that hangs keeps the other. */
static bool snapshot_keep(snapshot *s) {
    snapshot own = *s;
    if (s->made < 0) return true;
    own.values = malloc(s->bytes + 1);
    own.steps = malloc(((size_t)s->step_count + 1) * sizeof *own.steps);
    if (own.values && own.steps) {
        memcpy(own.values, s->values, s->bytes);
        memcpy(own.steps, s->steps, (size_t)s->step_count * sizeof *own.steps);
    } else {
        snapshot_end(&own);
        own = (snapshot){.made = -1};
    }
    *s = own;
    return own.values != NULL;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

typedef struct survival {
    tn_survivor work;
    void *ctx;
    tn_survive_options options;
    tn_survive_report report, *published; /* the caller's copy of it; may be NULL */
    snapshot copy;                        /* the last complete one; made -1: none */
    int64_t reported;                     /* steps that `stepped` was called for */
    int64_t made;                         /* steps, on the device that computes now */
    bool stop;                            /* `stepped` asked for it */
    double fastest;                       /* seconds of a step; 0: not known */
    double copying;                       /* seconds of the last copy */
    tn_random_state random;
    char tried[MOST_DEVICES][ID_BYTES];
    int tried_count;
    tn_survive_failure failed; /* the last one; id "" : none */
    tn_status status;          /* of the last device */
    bool over;
} survival;

/* One device's share of a run. Its thread and tn_survive hold it; whoever leaves last frees it. */
typedef struct attempt {
    survival *run; /* must not be touched once the attempt is abandoned */
    tn_survivor work;
    tn_device *device;
    void *self;
    snapshot from;  /* the run's copy at the beginning; the run owns it */
    snapshot spare; /* the next copy is written here, so that a failure leaves the last one complete */
    tn_status status;
    char reason[TN_REASON_BYTES]; /* the thread's */
    char text[TN_REASON_BYTES];   /* the same for tn_survive */
    bool last;                    /* no device comes after it: no copies are needed */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool watched, abandoned, done;
    bool owns_from, lacks_memory; /* of an abandoned one: `from` is its own; the run could not copy it */
    double since;                 /* when the work that is watched began */
    int holders;
} attempt;

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Begins or ends work that may hang. False: the attempt was given up meanwhile, and its run must not be touched. */
static bool watch(attempt *a, bool begins) {
    pthread_mutex_lock(&a->lock);
    a->watched = begins;
    a->since = now_seconds();
    bool still = !a->abandoned;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return still;
}

static const tn_status GIVEN_UP = TN_ERR_LOST;

static tn_status state_of(const attempt *a, tn_checkpoint *c, variables *v) {
    *c = (tn_checkpoint)TN_CHECKPOINT_DEFAULTS;
    TRY(a->work.state(a->self, c));
    return variables_of(c, v);
}

static tn_status make_copy(attempt *a, snapshot *to) {
    tn_checkpoint c;
    AUTO_CALL(variables_end) variables v = {0};
    TRY(state_of(a, &c, &v));
    return snapshot_read(&c, &v, to);
}

/* Steps between two copies. */
static int64_t interval_of(const survival *r) {
    if (r->options.every > 0) return r->options.every;
    if (r->fastest <= 0) return 1;
    double every = r->copying / (r->options.overhead * r->fastest);
    return every < 1 ? 1 : every > MOST_EVERY ? MOST_EVERY : (int64_t)every + 1;
}

static tn_status copy_state(attempt *a) {
    double begun = now_seconds();
    if (!watch(a, true)) return GIVEN_UP;
    tn_status s = make_copy(a, &a->spare);
    if (!watch(a, false)) return GIVEN_UP;
    if (s != TN_OK) return s;
    survival *r = a->run;
    snapshot before = r->copy;
    r->copy = a->spare;
    r->copy.made = r->made;
    a->spare = before;
    r->copying = now_seconds() - begun;
    r->report.copies++;
    r->report.copy_seconds += r->copying;
    return TN_OK;
}

static tn_status restore(attempt *a) {
    tn_checkpoint c;
    variables v = {0};
    if (a->from.made < 0) return TN_OK;
    tn_status s = state_of(a, &c, &v);
    if (s == TN_OK) s = snapshot_write(&a->from, &c, &v);
    variables_end(&v);
    return s == TN_OK && a->work.restored ? a->work.restored(a->self) : s;
}

static tn_status one_step(attempt *a) {
    int64_t made = 1, at = a->run->made;
    double begun = now_seconds();
    if (!watch(a, true)) return GIVEN_UP;
    tn_status s = a->work.step(a->self, at, &made);
    if (!watch(a, false)) return GIVEN_UP;
    survival *r = a->run;
    double seconds = now_seconds() - begun;
    if (s != TN_OK) return s;
    if (made < 1) return tn_backend_fail(TN_ERR_ARGUMENT, "survive: step made %lld steps", (long long)made);
    r->made += made;
    if (r->fastest <= 0 || seconds < r->fastest) r->fastest = seconds;
    if (r->made <= r->reported) {
        r->report.recomputed += made;
        return TN_OK;
    }
    s = a->work.stepped ? a->work.stepped(r->ctx, a->self, r->made, &r->stop) : TN_OK;
    if (s == TN_OK) r->reported = r->made;
    return s;
}

/* The report so far, for the caller and `finish`. */
static void publish(survival *r) {
    if (r->published) (void)tn_result_write(r->published, &r->report, sizeof r->report, "tn_survive: report");
}

static tn_status make_steps(attempt *a) {
    survival *r = a->run;
    int64_t since_copy = 0;
    /* A stopped run repeats what the device lost after its last copy, and ends at the step that was stopped. */
    while (r->made < r->options.last && !(r->stop && r->made >= r->reported)) {
        tn_status s = one_step(a);
        if (s != TN_OK) return s; /* the run may be gone */
        if (!a->last) r->report.every = interval_of(r);
        if (a->last || ++since_copy < r->report.every || r->made >= r->options.last) continue;
        if ((s = copy_state(a)) != TN_OK) return s;
        since_copy = 0;
    }
    publish(r);
    return a->work.finish ? a->work.finish(r->ctx, a->self) : TN_OK;
}

/* Frees what the work has, which may hang too. */
static bool end_work(attempt *a, tn_status s) {
    if (!watch(a, true)) return false;
    if (s != TN_OK) (void)tn_device_synchronize(a->device); /* reports what failed once, for the next user */
    a->work.end(a->self);
    a->self = NULL;
    return watch(a, false);
}

/* The attempt from its beginning to its end. */
static tn_status work_through(attempt *a) {
    survival *r = a->run;
    if (!watch(a, true)) return GIVEN_UP;
    tn_status s = tn_set_current_device(a->device);
    tn_set_random_state(r->random);
    if (s == TN_OK) s = a->work.begin(r->ctx, a->device, &a->self);
    if (s == TN_OK) s = restore(a);
    if (!watch(a, false)) return GIVEN_UP;
    r->made = a->from.made < 0 ? r->options.first : a->from.made;
    if (s == TN_OK && !a->last && r->copy.made < 0) s = copy_state(a);
    if (s == TN_OK) s = make_steps(a);
    if (!watch(a, false)) return GIVEN_UP;
    if (s != TN_OK) snprintf(a->reason, sizeof a->reason, "%s", tn_error());
    if (s == TN_OK) r->random = tn_get_random_state();
    if (!end_work(a, s)) return GIVEN_UP;
    snapshot_end(&a->spare);
    return s;
}

static void leave(attempt *a) {
    pthread_mutex_lock(&a->lock);
    bool last = --a->holders == 0;
    pthread_mutex_unlock(&a->lock);
    if (!last) return;
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static void *attempt_thread(void *argument) {
    attempt *a = argument;
    tn_status s = work_through(a);
    pthread_mutex_lock(&a->lock);
    bool woke = a->abandoned; /* the hung call returned after tn_survive gave up: free what only this thread holds */
    pthread_mutex_unlock(&a->lock);
    if (woke) {
        a->work.end(a->self);
        snapshot_end(&a->spare);
        if (a->owns_from) snapshot_end(&a->from);
        tn_device_close(a->device);
    }
    pthread_mutex_lock(&a->lock);
    a->status = s;
    a->done = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    leave(a);
    return NULL;
}

/* Waits for the thread, or until its work takes longer than the limit (0: none). */
static void wait_watching(attempt *a, double limit) {
    pthread_mutex_lock(&a->lock);
    while (!a->done && !a->abandoned) {
        if (limit <= 0) {
            (void)pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        double left = a->watched ? a->since + limit - now_seconds() : limit;
        a->abandoned = a->watched && left <= 0;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        double at = (double)until.tv_sec + 1e-9 * (double)until.tv_nsec + left + 1e-3;
        until.tv_sec = (time_t)at;
        until.tv_nsec = (long)((at - (double)until.tv_sec) * 1e9);
        if (!a->abandoned) (void)pthread_cond_timedwait(&a->changed, &a->lock, &until);
    }
    if (a->abandoned && a->from.made >= 0 && a->run->copy.values == a->from.values) { /* it may be reading it */
        a->owns_from = true;
        a->lacks_memory = !snapshot_keep(&a->run->copy);
    }
    pthread_mutex_unlock(&a->lock);
}

static tn_status run_attempt(attempt *a, double limit) {
    pthread_t thread;
    a->holders = 2;
    int failed = pthread_create(&thread, NULL, attempt_thread, a);
    if (failed) {
        a->holders = 1;
        return tn_backend_fail(TN_ERR_UNAVAILABLE, "survive: no thread could be started: %s", strerror(failed));
    }
    wait_watching(a, limit);
    if (a->abandoned) {
        pthread_detach(thread);
        snprintf(a->text, sizeof a->text, "no answer for %g seconds", limit);
        return TN_ERR_LOST;
    }
    pthread_join(thread, NULL); /* only then is its recording gone */
    snprintf(a->text, sizeof a->text, "%s", a->reason);
    return a->status;
}

/* Computes on one device. *kept: a thread that hangs still uses the device. */
static tn_status attempt_on(survival *r, tn_device *device, bool last, char *reason, bool *kept) {
    attempt *a = calloc(1, sizeof *a);
    *kept = false;
    if (!a) return tn_backend_fail(TN_ERR_MEMORY, "survive: out of host memory");
    a->run = r;
    a->work = r->work;
    a->from = r->copy;
    a->spare = (snapshot){.made = -1};
    a->device = device;
    a->last = last;
    a->holders = 1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    bool alone = last && r->options.time_limit <= 0; /* nothing comes after it: the caller's thread will do */
    tn_device *before = tn_current_device();
    tn_status s = alone ? work_through(a) : run_attempt(a, r->options.time_limit);
    if (alone) snprintf(a->text, sizeof a->text, "%s", a->reason);
    if (alone) (void)tn_set_current_device(before);
    if (s != TN_OK && !a->text[0]) snprintf(a->text, sizeof a->text, "%s", tn_error());
    snprintf(reason, TN_REASON_BYTES, "%s", a->text);
    *kept = a->abandoned;
    if (a->lacks_memory) s = tn_backend_fail(TN_ERR_INTERNAL, "survive: out of host memory");
    leave(a);
    return s;
}

/* ---- one device after the other ---------------------------------------------------------------------------------- */

static bool moves_on(tn_status s) { return s == TN_ERR_LOST || s == TN_ERR_DEVICE || s == TN_ERR_MEMORY; }

/* What comes after the preferences: the other devices, then the cpu. Names live as long as the list. */
static int further_names(const tn_device_list *list, const char **names) {
    int n = 0;
    for (int b = 0; b < tn_device_list_count(list); b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        bool other = strncmp(backend->name, "engine:", 7) == 0 || strcmp(backend->name, "cpu") == 0;
        for (int i = 0; !other && i < backend->device_count && n < MOST_DEVICES - 1; i++) {
            const tn_device_info *d = &backend->devices[i];
            if (d->usable && !d->software && !d->same_as[0]) names[n++] = d->id;
        }
    }
    names[n++] = "cpu";
    return n;
}

static bool was_tried(survival *r, const char *id) {
    for (int i = 0; i < r->tried_count; i++)
        if (strcmp(r->tried[i], id) == 0) return true;
    if (r->tried_count < MOST_DEVICES) snprintf(r->tried[r->tried_count++], ID_BYTES, "%s", id);
    return false;
}

static void note_failure(survival *r, const char *id, tn_status s, const char *reason) {
    tn_survive_report *to = &r->report;
    tn_survive_failure *f = &r->failed;
    *f = (tn_survive_failure){.status = s, .step = r->made};
    f->resumed = r->copy.made < 0 ? r->options.first : r->copy.made;
    snprintf(f->id, sizeof f->id, "%s", id);
    snprintf(f->reason, sizeof f->reason, "%s", reason);
    if (to->failure_count < (int)(sizeof to->failures / sizeof to->failures[0])) to->failures[to->failure_count] = *f;
    to->failure_count++;
    publish(r);
}

static void say_move(const survival *r, const char *id) {
    const tn_survive_failure *f = &r->failed;
    if (!f->id[0] || r->options.fallback != TN_FALLBACK_WARN) return;
    fprintf(stderr, "trunnion: %s failed after step %lld (%s); continuing from step %lld on %s\n", f->id,
            (long long)f->step, f->reason, (long long)f->resumed, id);
}

/* Makes the run go on where a device of this name can. Sets r->status unless the device was tried before. */
static void try_name(survival *r, const char *name) {
    bool kept = false;
    tn_device_info info = {.struct_size = sizeof info};
    tn_device *device = NULL;
    char reason[TN_REASON_BYTES] = "";
    tn_status s = tn_device_open(name, r->options.device, NULL, &device);
    if (s == TN_OK) s = tn_device_get_info(device, &info);
    if (s != TN_OK) snprintf(reason, sizeof reason, "%s", tn_error());
    const char *id = s == TN_OK ? info.id : name;
    bool tried = was_tried(r, id), opened = s == TN_OK;
    if (opened && !tried) {
        say_move(r, id);
        bool last = r->options.fallback == TN_FALLBACK_STRICT || strcmp(info.backend, "cpu") == 0;
        s = attempt_on(r, device, last, reason, &kept);
    }
    if (!kept) tn_device_close(device);
    if (tried) return;
    if (s == TN_OK) snprintf(r->report.ran, sizeof r->report.ran, "%s", id);
    if (s != TN_OK) note_failure(r, id, s, reason);
    bool further = moves_on(s) || !opened;
    if (s == TN_OK)
        r->status = TN_OK;
    else if (further)
        r->status = tn_backend_fail(s, "%s: %s", id, reason);
    else
        r->status = tn_backend_fail(s, "%s", reason);
    r->over = s == TN_OK || s == TN_ERR_ARGUMENT || !further || r->options.fallback == TN_FALLBACK_STRICT;
}

static tn_status try_in_order(survival *r, const char *const *preferences, int count) {
    static const char *const automatic[] = {"auto"};
    const char *names[MOST_DEVICES];
    tn_device_list *list = NULL;
    const char *const *first = count ? preferences : automatic;
    r->status = TN_ERR_UNAVAILABLE;
    for (int i = 0; i < (count ? count : 1) && !r->over; i++)
        try_name(r, first[i]);
    if (r->over) return r->status;
    TRY(tn_device_list_new(false, &list));
    int further = further_names(list, names);
    for (int i = 0; i < further && !r->over; i++)
        try_name(r, names[i]);
    tn_device_list_free(list);
    return r->status;
}

static tn_status read_survival(survival *r, const tn_survivor *work, const tn_survive_options *options) {
    if (!work) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_survive: the work is NULL");
    r->work = (tn_survivor)TN_SURVIVOR_DEFAULTS;
    r->options = (tn_survive_options)TN_SURVIVE_DEFAULTS;
    const tn_survive_options *o = &r->options;
    TRY(tn_options_read(&r->work, work, "tn_survive", "tn_survivor work = TN_SURVIVOR_DEFAULTS"));
    TRY(tn_options_read(&r->options, options, "tn_survive", "tn_survive_options o = TN_SURVIVE_DEFAULTS"));
    if (!r->work.begin || !r->work.step || !r->work.state || !r->work.end)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_survive: begin, step, state or end of the work is NULL");
    if (o->first < 0 || o->last < o->first || o->every < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_survive: steps %lld to %lld with a copy every %lld; they must be at least 0 and "
                               "ascending",
                               (long long)o->first, (long long)o->last, (long long)o->every);
    if (!(o->overhead > 0 && o->overhead <= 1) || !(o->time_limit >= 0 && o->time_limit <= 1e6))
        return tn_backend_fail(
            TN_ERR_ARGUMENT, "tn_survive: overhead is %g (must be greater than 0, at most 1), time_limit %g (0 to 1e6)",
            o->overhead, o->time_limit);
    if ((unsigned)o->fallback > TN_FALLBACK_SILENT)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_survive: fallback is %d; it must be one of TN_FALLBACK_WARN, TN_FALLBACK_STRICT, "
                               "TN_FALLBACK_SILENT",
                               (int)o->fallback);
    return TN_OK;
}

tn_status tn_survive(const tn_survivor *work, void *ctx, const char *const *preferences, int count,
                     const tn_survive_options *options, tn_survive_report *report) {
    survival r = {.ctx = ctx, .copy = {.made = -1}, .random = tn_get_random_state(), .published = report};
    tn_status s = read_survival(&r, work, options);
    if (s != TN_OK) return s;
    if (count < 0 || (count > 0 && !preferences))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_survive: %d preferences%s", count,
                               preferences ? "" : ", and the list is NULL");
    for (int i = 0; i < count; i++)
        if (!preferences[i]) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_survive: preference %d is NULL", i);
    if (report) TRY(tn_result_check(report, "tn_survive: report"));
    r.reported = r.made = r.options.first;
    s = try_in_order(&r, preferences, count);
    if (s == TN_OK) tn_set_random_state(r.random);
    snapshot_end(&r.copy);
    publish(&r);
    return s;
}
