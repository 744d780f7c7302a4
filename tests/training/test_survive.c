/* test_survive.c — promises of tn_survive: a run whose device is lost, out of memory or hangs at any moment ends with
 * the bits of an undisturbed one, repeats at most the steps since the last copy, and tells each step once. */
#include "test_support.h"

#include <pthread.h>
#include <unistd.h>

#include "far_driver.h"
#include "trunnion/trunnion.h"
#include "wrap_driver.h"

#ifdef TEST_ADDRESS_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

/* Memory that is left behind with a lost device is no leak. */
static void leave_memory(bool on) {
#ifdef TEST_ADDRESS_SANITIZER
    (on ? __lsan_disable : __lsan_enable)();
#else
    (void)on;
#endif
}

enum { STEPS = 14, ROWS = 6, FEATURES = 5, HIDDEN = 8, EVERY = 4, VALUES = FEATURES * HIDDEN };

/* What a run yields. */
typedef struct outcome {
    double loss[STEPS + 1];
    float weights[VALUES], total;
    int told, restored;
} outcome;

typedef struct net {
    outcome *out;
    tn_module *root, *net;
    tn_optimizer *adam;
    tn_tensor *total; /* an extra: the sum of all losses */
    tn_variable extra;
    double loss;
    int begun;
} net;

static int refuse_at = -1; /* the step that fails for a reason that is the program's */
static int stop_at = -1;
static bool lost_at_finish; /* the next `finish` fails */

static tn_status begin(void *ctx, tn_device *device, void **self) {
    (void)device;
    net *n = calloc(1, sizeof *n);
    *self = n;
    n->out = ctx;
    tn_manual_seed(7);
    n->root = tn_module_root();
    tn_module *s = n->net = tn_nn_sequential(n->root, "net");
    tn_nn_linear(s, "0", FEATURES, HIDDEN, true);
    tn_nn_dropout(s, "1", 0.25);
    tn_nn_linear(s, "2", HIDDEN, 1, true);
    tn_status status = tn_module_status(n->root);
    tn_adam_options o = TN_ADAM_DEFAULTS;
    o.lr = 0.05;
    if (status == TN_OK) status = tn_optimizer_adam(n->root, &o, &n->adam);
    n->total = tn_keep(tn_zeros(NULL, 0, TN_F32));
    n->extra = (tn_variable){"total", n->total, false};
    return status == TN_OK ? tn_make_state(n->total) : status;
}

static void end(void *self) {
    net *n = self;
    if (!n) return;
    tn_free(n->total);
    tn_optimizer_free(n->adam);
    tn_module_free(n->root);
    free(n);
}

static tn_status step(void *self, int64_t at, int64_t *made) {
    net *n = self;
    float x[ROWS * FEATURES], y[ROWS];
    (void)made;
    if (at == refuse_at) return tn_backend_fail(TN_ERR_IO, "the data of step %lld is missing", (long long)at);
    for (int i = 0; i < ROWS * FEATURES; i++)
        x[i] = (float)((i * 7 + at * 3) % 11) / 5 - 1;
    for (int i = 0; i < ROWS; i++)
        y[i] = x[i * FEATURES] * 2 - x[i * FEATURES + 1];
    TN_SCOPE;
    tn_tensor *in = tn_from_data(x, (int64_t[]){ROWS, FEATURES}, 2, TN_F32);
    tn_tensor *target = tn_from_data(y, (int64_t[]){ROWS, 1}, 2, TN_F32);
    tn_tensor *loss = tn_mse_loss(tn_forward(n->net, in), target, TN_REDUCTION_MEAN);
    tn_status s = tn_minimize(n->adam, loss);
    {
        TN_NO_GRAD;
        if (s == TN_OK) s = tn_status_of(tn_add_(n->total, loss));
    }
    if (s == TN_OK) s = tn_eval(NULL, 0);
    float value = 0;
    if (s == TN_OK) s = tn_read(loss, &value, sizeof value);
    n->loss = (double)value;
    return s;
}

static tn_status stepped(void *ctx, void *self, int64_t at, bool *stop) {
    outcome *out = ctx;
    if (at != ++out->told || at > STEPS)
        return tn_backend_fail(TN_ERR_INTERNAL, "step %lld was told twice", (long long)at);
    out->loss[at] = ((net *)self)->loss;
    *stop = at == stop_at;
    return TN_OK;
}

static tn_status state_of_net(void *self, tn_checkpoint *c) {
    net *n = self;
    c->model = n->root;
    c->optimizer = n->adam;
    c->extras = &n->extra;
    c->extra_count = 1;
    return TN_OK;
}

static tn_status restored(void *self) {
    ((net *)self)->out->restored++;
    return TN_OK;
}

static tn_status finish(void *ctx, void *self) {
    outcome *out = ctx;
    net *n = self;
    bool lost = lost_at_finish;
    lost_at_finish = false;
    if (lost) return tn_backend_fail(TN_ERR_LOST, "the device is lost");
    tn_status s = tn_read(tn_module_variable(n->root, "net.0.weight"), out->weights, sizeof out->weights);
    return s == TN_OK ? tn_read(n->total, &out->total, sizeof out->total) : s;
}

static tn_survivor the_work(void) {
    tn_survivor w = TN_SURVIVOR_DEFAULTS;
    w.begin = begin;
    w.step = step;
    w.stepped = stepped;
    w.state = state_of_net;
    w.restored = restored;
    w.finish = finish;
    w.end = end;
    return w;
}

static tn_survive_options the_options(void) {
    tn_survive_options o = TN_SURVIVE_DEFAULTS;
    o.last = STEPS;
    o.every = EVERY;
    o.fallback = TN_FALLBACK_SILENT;
    return o;
}

static outcome undisturbed(void) {
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    outcome out = {.told = 0};
    assert_ok(tn_survive(&w, &out, (const char *[]){"cpu"}, 1, &o, &r));
    assert_string_equal(r.ran, "cpu");
    assert_int_equal(r.copies, 0); /* nothing comes after the cpu */
    assert_int_equal(r.failure_count, 0);
    assert_int_equal(out.told, STEPS);
    return out;
}

static void assert_same(const outcome *a, const outcome *b) {
    assert_int_equal(b->told, STEPS);
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->weights, b->weights, sizeof a->weights);
    assert_memory_equal(&a->total, &b->total, sizeof a->total);
}

static void assert_moved(const tn_survive_report *r, const char *from) {
    assert_string_equal(r->ran, "cpu");
    assert_int_equal(r->failure_count, 1);
    const tn_survive_failure *f = &r->failures[0];
    assert_string_equal(f->id, from);
    assert_true(f->reason[0] != 0);
    assert_in_range(f->step - f->resumed, 0, EVERY);
    assert_int_equal(r->recomputed, f->step - f->resumed);
}

static int moments(int quick) { return getenv("TRUNNION_TEST_FULL") ? 200 : quick; }

/* ---- devices that are lost --------------------------------------------------------------------------------------- */

static void a_device_lost_at_any_launch_is_replaced(void **state) {
    (void)state;
    outcome expected = undisturbed(), with = {.told = 0};
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    int64_t before = far_counts_now.launches;
    assert_ok(tn_survive(&w, &with, (const char *[]){"far:0", "cpu"}, 2, &o, &r));
    assert_same(&expected, &with);
    assert_string_equal(r.ran, "far:0");
    assert_int_equal(r.copies, 1 + (STEPS - 1) / EVERY);
    int64_t launches = far_counts_now.launches - before, times = moments(24);
    assert_true(launches > STEPS);
    for (int64_t i = 0; i < times; i++) {
        outcome got = {.told = 0};
        far_nature_now.launches_left = i * launches / times;
        far_nature_now.loses = true;
        assert_ok(tn_survive(&w, &got, (const char *[]){"far:0"}, 1, &o, &r));
        far_nature_now.loses = false;
        assert_same(&expected, &got);
        assert_moved(&r, "far:0");
        assert_int_equal(got.restored, r.failures[0].step > 0 || r.copies > 0);
    }
}

/* Any call of the driver may be the one that fails, with any of the errors that a device can end with. */
static void any_failing_call_is_survived(void **state) {
    (void)state;
    static const tn_status errors[] = {TN_ERR_LOST, TN_ERR_DEVICE, TN_ERR_MEMORY};
    outcome expected = undisturbed(), with = {.told = 0};
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    const char *name = wrap_driver(&far_driver)->name;
    wrap_reset();
    assert_ok(tn_survive(&w, &with, (const char *[]){name, "cpu"}, 2, &o, &r));
    assert_string_equal(r.ran, name);
    assert_same(&expected, &with);
    int64_t calls = wrap_get_counts().calls, times = moments(24), moved = 0;
    for (int64_t i = 0; i < times; i++) {
        outcome got = {.told = 0};
        wrap_reset();
        wrap_now.fail_at = 1 + i * calls / times;
        wrap_now.fail_kind = WRAP_ANY;
        wrap_now.fail_with = errors[i % 3];
        wrap_now.stays = true;
        tn_status s = tn_survive(&w, &got, (const char *[]){name, "cpu"}, 2, &o, &r);
        wrap_reset();
        assert_ok(s);
        assert_same(&expected, &got);
        moved += r.failure_count;
        if (r.failure_count) assert_moved(&r, name);
    }
    assert_true(moved > times / 2);
    assert_int_equal(wrap_get_counts().devices, 0);
    assert_int_equal(wrap_get_counts().blocks, 0);
}

/* A driver call that does not return: the run leaves it behind. */
static void a_device_that_hangs_is_left(void **state) {
    (void)state;
    outcome expected = undisturbed();
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    o.time_limit = 0.5;
    for (int i = 0; i < 2; i++) {
        outcome got = {.told = 0};
        far_hangs_after = i * 60;
        assert_ok(tn_survive(&w, &got, (const char *[]){i ? "far:1" : "far:0"}, 1, &o, &r));
        assert_same(&expected, &got);
        assert_moved(&r, i ? "far:1" : "far:0");
        assert_string_equal(r.failures[0].reason, "no answer for 0.5 seconds");
        assert_int_equal(r.failures[0].status, TN_ERR_LOST);
        far_hangs_after = -1; /* the thread that was left behind wakes up, and must change nothing */
        (void)usleep(100000);
        assert_int_equal(got.told, STEPS);
    }
}

/* With a time limit and without a failure, the work is done on another thread. */
static void a_time_limit_changes_nothing(void **state) {
    (void)state;
    outcome expected = undisturbed(), got = {.told = 0};
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    o.time_limit = 60;
    assert_ok(tn_survive(&w, &got, (const char *[]){"cpu"}, 1, &o, NULL));
    assert_same(&expected, &got);
}

/* ---- without tn_survive ------------------------------------------------------------------------------------------ */

/* Writes of states that were recorded for a lost device are dropped: another device's are evaluated by the same thread.
 * */
static void a_thread_computes_on_after_its_device_is_lost(void **state) {
    (void)state;
    wrap_reset();
    const char *name = wrap_driver(&far_driver)->name;
    tn_device *far = NULL, *cpu = NULL;
    assert_ok(tn_device_open(name, NULL, NULL, &far));
    assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    tn_tensor *state_far, *state_cpu;
    float value = 0;
    assert_ok(tn_set_current_device(far));
    state_far = tn_full((int64_t[]){32, 32}, 2, 1, TN_F32);
    assert_ok(tn_make_state(state_far));
    assert_ok(tn_set_current_device(cpu));
    state_cpu = tn_full((int64_t[]){1}, 1, 1, TN_F32);
    assert_ok(tn_make_state(state_cpu));
    wrap_now.fail_at = 1;
    wrap_now.fail_kind = WRAP_LAUNCH;
    wrap_now.fail_with = TN_ERR_LOST;
    wrap_now.stays = true;
    {
        TN_SCOPE;
        /* Its first kernel fails, before any that writes the state. */
        tn_add_(state_far, tn_softmax(tn_matmul(state_far, state_far), 1));
        assert_int_equal(tn_eval(NULL, 0), TN_ERR_LOST);
        for (int i = 0; i < 2; i++) {
            tn_add_(state_cpu, tn_scalar(1));
            assert_ok(tn_eval(NULL, 0));
        }
    }
    assert_ok(tn_read(state_cpu, &value, sizeof value));
    assert_float_equal(value, 3, 0);
    tn_free(state_far);
    tn_free(state_cpu);
    wrap_reset();
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(far);
    tn_device_close(cpu);
}

/* Waits a little later than the caller's thread. */
typedef struct second_wait {
    tn_device *device;
    _Atomic int status; /* -1: it waits */
} second_wait;

static void *wait_second(void *argument) {
    second_wait *w = argument;
    (void)usleep(100000);
    w->status = (int)tn_device_synchronize(w->device);
    return NULL;
}

/* tn_device_options.time_limit: a wait that does not end is an error, and so is everything that the device is asked
 * later. Nothing waits again, not even closing. */
static void a_wait_without_end_loses_the_device(void **state) {
    (void)state;
    const char *name = wrap_driver(&far_driver)->name;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    tn_device *device = NULL;
    float values[64];
    wrap_reset();
    o.time_limit = 0.3;
    leave_memory(true);
    assert_ok(tn_device_open(name, &o, NULL, &device));
    assert_ok(tn_set_current_device(device));
    {
        TN_SCOPE;
        tn_tensor *x = tn_full((int64_t[]){64}, 1, 2, TN_F32), *y = tn_softmax(x, 0);
        assert_ok(tn_read(y, values, sizeof values));
        assert_float_equal(values[63], 1.0 / 64, 1e-6);
        int64_t blocks = wrap_get_counts().blocks;
        far_sync_hangs = true;
        second_wait second = {.device = device, .status = -1}; /* for the same work, from another thread */
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wait_second, &second), 0);
        assert_int_equal(tn_read(tn_exp(y), values, sizeof values), TN_ERR_LOST);
        assert_text_has(tn_error(), "no answer for 0.3 seconds");
        for (int i = 0; i < 200 && second.status < 0; i++)
            (void)usleep(10000);
        int ended = second.status;
        if (ended < 0) far_sync_hangs = false;
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(ended, TN_ERR_LOST);
        double begun = tn_now();
        assert_int_equal(tn_read(tn_mul(y, y), values, sizeof values), TN_ERR_LOST);
        assert_text_has(tn_error(), "did not answer within its time limit earlier");
        assert_int_equal(tn_device_synchronize(device), TN_ERR_LOST);
        tn_queue *queue = NULL;
        assert_int_equal(tn_queue_new(device, &queue), TN_ERR_LOST);
        assert_true(wrap_get_counts().blocks >= blocks); /* nothing was taken from work under way */
        assert_true(tn_now() - begun < 0.2);
    }
    tn_clear_plans();
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
    leave_memory(false);
    assert_int_equal(wrap_get_counts().devices, 1);
    far_sync_hangs = false;
    (void)usleep(100000); /* the thread that was left behind wakes up, and must touch nothing */
}

/* ---- what is no device's failure --------------------------------------------------------------------------------- */

/* A value that was recorded from a dropped write is an error, and does not fail later evaluations. */
static void discarded_writes_leave_nothing_behind(void **state) {
    (void)state;
    TN_SCOPE;
    float value = 0;
    tn_tensor *s = tn_full((int64_t[]){1}, 1, 5, TN_F32);
    assert_ok(tn_make_state(s));
    tn_add_(s, tn_scalar(10));
    tn_tensor *twice = tn_mul(s, tn_scalar(2)), *more = tn_softmax(tn_add(twice, tn_scalar(1)), 0);
    tn_discard_writes();
    for (int i = 0; i < 2; i++) {
        tn_add_(s, tn_scalar(1));
        assert_ok(tn_eval(NULL, 0));
    }
    assert_ok(tn_read(s, &value, sizeof value));
    assert_float_equal(value, 7, 0);
    assert_int_equal(tn_read(more, &value, sizeof value), TN_ERR_STATE);
    assert_non_null(strstr(tn_error(), "depends on a write of a state that was dropped"));
}

static void strictly_the_first_failure_is_final(void **state) {
    (void)state;
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    outcome got = {.told = 0};
    o.fallback = TN_FALLBACK_STRICT;
    wrap_reset();
    const char *name = wrap_driver(&far_driver)->name;
    wrap_now.fail_at = 200;
    wrap_now.fail_kind = WRAP_ANY;
    wrap_now.fail_with = TN_ERR_LOST;
    wrap_now.stays = true;
    tn_status s = tn_survive(&w, &got, (const char *[]){name, "cpu"}, 2, &o, &r);
    wrap_reset();
    assert_int_equal(s, TN_ERR_LOST);
    assert_text_has(tn_error(), name);
    assert_string_equal(r.ran, "");
    assert_int_equal(r.copies, 0);
}

static void a_failure_of_the_program_ends_the_run(void **state) {
    (void)state;
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    outcome got = {.told = 0};
    refuse_at = 5;
    tn_status s = tn_survive(&w, &got, (const char *[]){"far:1", "cpu"}, 2, &o, &r);
    refuse_at = -1;
    assert_int_equal(s, TN_ERR_IO);
    assert_text_has(tn_error(), "the data of step 5 is missing");
    assert_int_equal(r.failure_count, 1);
    assert_int_equal(got.told, 5);
}

static void a_run_can_be_stopped(void **state) {
    (void)state;
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    outcome got = {.told = 0};
    stop_at = 3;
    assert_ok(tn_survive(&w, &got, (const char *[]){"cpu"}, 1, &o, NULL));
    stop_at = -1;
    assert_int_equal(got.told, 3);
    assert_true(got.total != 0); /* `finish` was called */
}

/* The next device repeats the steps after the last copy, so the result belongs to the step that was stopped. */
static void a_device_lost_after_the_stop_loses_no_step(void **state) {
    (void)state;
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report r = {.struct_size = sizeof r};
    outcome expected = {.told = 0}, got = {.told = 0};
    stop_at = EVERY + 2;
    assert_ok(tn_survive(&w, &expected, (const char *[]){"cpu"}, 1, &o, NULL));
    lost_at_finish = true;
    assert_ok(tn_survive(&w, &got, (const char *[]){"far:0", "cpu"}, 2, &o, &r));
    stop_at = -1;
    assert_int_equal(r.failure_count, 1);
    assert_int_equal(r.failures[0].step, EVERY + 2);
    assert_int_equal(r.recomputed, 2);
    assert_int_equal(got.told, expected.told);
    assert_memory_equal(got.weights, expected.weights, sizeof got.weights);
    assert_memory_equal(&got.total, &expected.total, sizeof got.total);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    tn_survivor w = the_work(), none = TN_SURVIVOR_DEFAULTS;
    tn_survive_options o = the_options();
    outcome got = {.told = 0};
    assert_int_equal(tn_survive(NULL, &got, NULL, 0, &o, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_survive(&none, &got, NULL, 0, &o, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_survive(&w, &got, NULL, 1, &o, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_survive(&w, &got, (const char *[]){"nonsense"}, 1, &o, NULL), TN_ERR_ARGUMENT);
    o.overhead = 0;
    assert_int_equal(tn_survive(&w, &got, NULL, 0, &o, NULL), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "overhead is 0");
    o = the_options();
    o.first = STEPS + 1;
    assert_int_equal(tn_survive(&w, &got, NULL, 0, &o, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(got.told, 0);
}

/* ---- the interval of copies -------------------------------------------------------------------------------------- */

static void copies_take_their_share_of_the_time(void **state) {
    (void)state;
    tn_survivor w = the_work();
    tn_survive_options o = the_options();
    tn_survive_report all = {.struct_size = sizeof all}, few = {.struct_size = sizeof few};
    outcome got = {.told = 0};
    o.every = 1;
    assert_ok(tn_survive(&w, &got, (const char *[]){"far:1"}, 1, &o, &all));
    assert_int_equal(all.copies, STEPS);
    assert_true(all.copy_seconds > 0);
    o.every = 0;
    o.overhead = 1e-6;
    got = (outcome){.told = 0};
    assert_ok(tn_survive(&w, &got, (const char *[]){"far:1"}, 1, &o, &few));
    assert_in_range(few.copies, 1, 2); /* at the beginning, and before a step's time is known */
    assert_true(few.every > STEPS);
}

static int register_wrapped(void **state) {
    assert_ok(tn_backend_register(wrap_driver(&far_driver)));
    tn_device_close(far_open(0, NULL));
    return make_scratch(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_lost_at_any_launch_is_replaced),
        cmocka_unit_test(any_failing_call_is_survived),
        cmocka_unit_test(a_time_limit_changes_nothing),
        cmocka_unit_test(a_thread_computes_on_after_its_device_is_lost),
        cmocka_unit_test(discarded_writes_leave_nothing_behind),
        cmocka_unit_test(strictly_the_first_failure_is_final),
        cmocka_unit_test(a_failure_of_the_program_ends_the_run),
        cmocka_unit_test(a_run_can_be_stopped),
        cmocka_unit_test(a_device_lost_after_the_stop_loses_no_step),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(copies_take_their_share_of_the_time),
        cmocka_unit_test(a_wait_without_end_loses_the_device),
        cmocka_unit_test(a_device_that_hangs_is_left), /* last: the devices that hung stay open */
    };
    return cmocka_run_group_tests(tests, register_wrapped, remove_scratch);
}
