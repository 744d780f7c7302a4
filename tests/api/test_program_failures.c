/* test_program_failures.c — memory that runs out anywhere: a clean error, no leak, states as they were, and the next
 * try works.
 *
 * Every allocation of a training step fails once; then random allocations of random programs do. Each try has a device
 * of its own, so that loading kernels fails as well, and leaves as many of the library's blocks
 * behind as there were before: none. */
#include "test_support.h"

#include <pthread.h>

#include "far_driver.h"
#include "hal/hal.h"
#include "live_blocks.h"
#include "plan/plan.h"
#include "programs.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"
#include "two_states.h"

enum { PROGRAMS = 90, STRIDE = 2, FAR_STRIDE = 4, THIN_STRIDE = 6, THIN_FAR_STRIDE = 24 };
enum { TRIES = 12 };

/* Where it happens. */
static struct {
    bool far;    /* on a device whose memory is not the host's */
    bool shares; /* which leaves to the host what it lacks: the host's kernels and blocks then stay for the process */
} place;

/* From one allocation that fails to the next. Under a sanitizer each costs ten times as much. */
static int64_t stride(void) {
    return place.far ? test_every(FAR_STRIDE, THIN_FAR_STRIDE) : test_every(STRIDE, THIN_STRIDE);
}

/* A device for one try. It must be the only one in the process: kernels live as long as their device. */
static tn_device *begin(void) {
    tn_device *device = NULL;
    tn_device_options silent = TN_DEVICE_DEFAULTS;
    silent.fallback = TN_FALLBACK_SILENT;
    far_nature_now = (far_nature){.no_f64 = place.shares};
    if (place.far)
        device = far_open(0, &silent);
    else
        assert_ok(tn_device_open("cpu", NULL, NULL, &device));
    assert_ok(tn_set_current_device(device));
    return device;
}

/* All that this thread and the device keep for reuse is given back. */
static void end(tn_device *device) {
    tn_recorder_drop();
    tn_handles_drop();
    tn_memory_trim(device);
    kir_vm_trim();
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
}

/* ---- a step of training ------------------------------------------------------------------------------------------ */

typedef struct values {
    float weight[ELEMENTS], momentum[ELEMENTS];
} values;

static void read_states(const model *m, values *v) {
    assert_ok(tn_read(m->weight_seen, v->weight, sizeof v->weight));
    assert_ok(tn_read(m->momentum_seen, v->momentum, sizeof v->momentum));
}

static bool same(const float *a, const float *b) { return memcmp(a, b, ELEMENTS * sizeof *a) == 0; }

static bool is_any_of(const float *v, const float (*known)[ELEMENTS], int count) {
    for (int k = 0; k < count; k++)
        if (same(v, known[k])) return true;
    return false;
}

/* What the states may be: before the step, after each of the writes that were recorded, after the step. */
typedef struct expected {
    values before, after;
    float weight[3][ELEMENTS]; /* before, without the write through the view, with it */
} expected;

static void find_expected(expected *e) {
    model m;
    float loss;
    tn_device *device = begin();
    assert_ok(make_model(&m));
    read_states(&m, &e->before);
    assert_ok(train(&m, true, &loss));
    read_states(&m, &e->after);
    free_model(&m);
    memcpy(e->weight[0], e->before.weight, sizeof e->weight[0]);
    memcpy(e->weight[2], e->after.weight, sizeof e->weight[2]);
    memcpy(e->weight[1], e->after.weight, sizeof e->weight[1]);
    for (int row = 1; row < ROWS; row += 2)
        for (int n = 0; n < COLUMNS; n++)
            e->weight[1][row * COLUMNS + n] *= 2.0f;
    end(device);
}

/* The n-th allocation of a step fails, which may still succeed: some are for speed alone. False: it has fewer. */
static bool fail_once(int64_t n, const expected *e) {
    model m;
    values now;
    float loss = 0;
    assert_ok(make_model(&m));
    int64_t calls = tn_mem_get_stats().calls;
    tn_mem_fail_at(n);
    tn_status s = train(&m, true, &loss);
    tn_mem_fail_at(0);
    calls = tn_mem_get_stats().calls - calls;
    if (s != TN_OK) {
        assert_int_equal(s, TN_ERR_MEMORY);
        assert_text_has(tn_error(), "memory");
    }
    /* With memory again, whatever was recorded is done in full, and nothing else. */
    read_states(&m, &now);
    if (s == TN_OK) assert_true(same(now.weight, e->after.weight) && same(now.momentum, e->after.momentum));
    assert_true(is_any_of(now.weight, e->weight, 3));
    assert_true(same(now.momentum, e->before.momentum) || same(now.momentum, e->after.momentum));
    free_model(&m);
    return calls >= n;
}

static void each_allocation_of_a_training_step_may_fail(void **state) {
    (void)state;
    expected e;
    find_expected(&e);
    int64_t before = test_live_blocks(), n = 1;
    for (bool failed = true; failed; n += stride()) {
        tn_device *device = begin();
        failed = fail_once(n, &e);
        end(device);
        if (test_live_blocks() > before)
            fail_msg("allocation %lld failed: %lld blocks more than before", (long long)n,
                     (long long)(test_live_blocks() - before));
    }
    print_message("%lld allocations\n", (long long)n);
    assert_true(n > 300);
}

/* ---- several states ---------------------------------------------------------------------------------------------- */

enum { STATES = 4 };

typedef struct half_way {
    void (*write)(tn_tensor *state, int k); /* doubles the k-th state */
    bool looks;                             /* results need the states' new values, so these are made early */
    int64_t n;                              /* the allocation that fails */
    bool reached;
    int wrong; /* states that are not twice what they were */
} half_way;

static tn_tensor *new_state(int k) {
    tn_tensor *t = tn_full(TN_DIMS(300, 2 + k), 1.0 + k, TN_F32);
    assert_ok(tn_make_state(t));
    return t;
}

/* Twice the value, by ways that need different kernels. */
static void double_it(tn_tensor *t, int k) {
    TN_SCOPE;
    tn_tensor *mean = tn_mean(t, TN_DIMS(1), true), *low = tn_sub(t, mean);
    tn_tensor *wide = tn_sqrt(tn_add(tn_mean(tn_mul(low, low), TN_DIMS(1), true), tn_mul(mean, mean)));
    if (k == 0) tn_mul_(t, tn_scalar(2));
    if (k == 1) tn_add_(t, tn_sum(tn_mul(t, tn_scalar(1.0 / 3)), TN_DIMS(1), true));
    if (k == 2) tn_add_(t, wide);
    if (k == 3) tn_copy_(t, tn_transpose(tn_add(tn_transpose(t, 0, 1), tn_transpose(mean, 0, 1)), 0, 1));
}

/* Twice the value, in place. The more waves, the more memory the kernel takes for itself. */
static void double_with_waves(tn_tensor *t, int waves) {
    TN_SCOPE;
    tn_tensor *nothing = tn_mul(t, tn_scalar(0));
    for (int i = 1; i <= waves; i++) {
        tn_tensor *wave = tn_sin(tn_mul(t, tn_scalar(i)));
        nothing = tn_maximum(nothing, tn_mul(tn_mul(wave, tn_scalar(0)), tn_abs(wave)));
    }
    tn_add_(t, tn_add(t, tn_mul(nothing, tn_scalar(0))));
}

/* Nothing but writes of states, each kernel with more memory than the one before it: in whichever order they run, one
 * of these two has it so. */
static void double_growing(tn_tensor *t, int k) { double_with_waves(t, 8 * k); }

static void double_shrinking(tn_tensor *t, int k) { double_with_waves(t, 8 * (STATES - k)); }

/* States that are written by kernels of their own: a run that fails half-way is done again as a whole, and must not
 * find its own traces. On a new thread, as what a thread keeps for its kernels would hide allocations. */
static void *fail_half_way(void *ctx) {
    half_way *h = ctx;
    tn_device *device = begin();
    tn_tensor *states[STATES], *seen[STATES];
    for (int k = 0; k < STATES; k++)
        states[k] = new_state(k);
    assert_ok(tn_eval(NULL, 0));
    for (int k = 0; k < STATES; k++) {
        h->write(states[k], k);
        seen[k] = h->looks ? tn_cumsum(states[k], k % 2) : NULL;
    }
    int64_t calls = tn_mem_get_stats().calls;
    tn_mem_fail_at(h->n);
    tn_status s = tn_eval(NULL, 0);
    tn_mem_fail_at(0);
    h->reached = tn_mem_get_stats().calls - calls >= h->n;
    if (s != TN_OK) assert_ok(tn_eval(NULL, 0));
    for (int k = 0; k < STATES; k++) {
        double now = 0;
        {
            TN_SCOPE;
            now = tn_item(tn_select(tn_select(states[k], 0, 7), 0, 0));
        }
        bool twice = now >= 2.0 * (1 + k) - 1e-3 && now <= 2.0 * (1 + k) + 1e-3; /* a lost state's is NaN */
        if (!twice) h->wrong++;
        tn_free(states[k]);
        tn_free(seen[k]);
    }
    end(device);
    return NULL;
}

static void fail_everywhere(half_way h) {
    h.n = 1;
    h.reached = true;
    for (; h.reached; h.n += stride()) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, fail_half_way, &h), 0);
        pthread_join(thread, NULL);
        if (h.wrong) fail_msg("allocation %lld failed: %d states are not doubled once", (long long)h.n, h.wrong);
    }
    assert_true(h.n > 60);
}

static void a_run_that_failed_half_way_is_done_again_as_a_whole(void **state) {
    (void)state;
    fail_everywhere((half_way){.write = double_it, .looks = true});
    fail_everywhere((half_way){.write = double_growing});
    fail_everywhere((half_way){.write = double_shrinking});
}

/* ---- random programs --------------------------------------------------------------------------------------------- */

/* How many allocations a program takes on a new device. */
static int64_t count_allocations(const program *p, run_mode mode) {
    char why[512];
    tn_device *device = begin();
    int64_t before = tn_mem_get_stats().calls;
    assert_true(program_run(p, mode, NULL, why, sizeof why));
    int64_t calls = tn_mem_get_stats().calls - before;
    end(device);
    return calls;
}

static void fail_somewhere(const program *p, run_mode mode, uint64_t *random) {
    char why[512];
    int64_t calls = count_allocations(p, mode), blocks = test_live_blocks();
    for (int k = 0; k < TRIES && calls > 0; k++) {
        int64_t n = 1 + (int64_t)(program_random(random) % (uint64_t)calls);
        tn_device *device = begin();
        tn_mem_fail_at(n);
        bool ok = program_run(p, mode, NULL, why, sizeof why);
        tn_mem_fail_at(0);
        end(device);
        if (!ok && !strstr(why, "memory"))
            fail_msg("seed %llu, allocation %lld: %s", (unsigned long long)p->seed, (long long)n, why);
        if (test_live_blocks() > blocks && !place.shares)
            fail_msg("seed %llu, allocation %lld: %lld blocks more than before", (unsigned long long)p->seed,
                     (long long)n, (long long)(test_live_blocks() - blocks));
    }
}

static void random_allocations_of_random_programs_may_fail(void **state) {
    (void)state;
    const int programs = PROGRAMS / test_every(6, 18);
    program *p = malloc(sizeof *p);
    uint64_t random = 7;
    for (int n = 1; n <= (place.far ? programs / 4 : programs); n++) {
        program_make(p, (uint64_t)n, PROGRAM_PLAIN, NULL, 0);
        fail_somewhere(p, n % 2 ? RUN_LAZY : RUN_EAGER, &random);
        program_make(p, (uint64_t)n, PROGRAM_CAPTURE, NULL, 0);
        fail_somewhere(p, RUN_CAPTURE, &random);
        program_make(p, (uint64_t)n, PROGRAM_GRADIENT, NULL, 0);
        fail_somewhere(p, RUN_GRADIENT, &random);
    }
    free(p);
}

static void the_same_far_from_the_host(void **state) {
    place.far = true;
    each_allocation_of_a_training_step_may_fail(state);
    a_run_that_failed_half_way_is_done_again_as_a_whole(state);
    random_allocations_of_random_programs_may_fail(state);
    place.far = false;
}

static void the_same_partly_on_the_host(void **state) {
    place.far = place.shares = true;
    random_allocations_of_random_programs_may_fail(state);
    place.far = place.shares = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_of_a_training_step_may_fail),
        cmocka_unit_test(a_run_that_failed_half_way_is_done_again_as_a_whole),
        cmocka_unit_test(random_allocations_of_random_programs_may_fail),
        cmocka_unit_test(the_same_far_from_the_host),
        cmocka_unit_test(the_same_partly_on_the_host),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    puts("ran on: cpu, far");
    return failed;
}
