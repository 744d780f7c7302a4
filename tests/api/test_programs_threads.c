/* test_programs_threads.c — several threads, each running random programs, over inputs that all of them read.
 *
 * The inputs are evaluated tensors of the main thread: the programs make views of them and compute with them, at the
 * same time, and never write them. And a leaf that two threads give back at once. */
#include "test_support.h"

#include <pthread.h>

#include "programs.h"
#include "trunnion/ops.h"

#if defined(TEST_ADDRESS_SANITIZER) || defined(TEST_THREAD_SANITIZER)
enum { PROGRAMS = 40 };
#else
enum { PROGRAMS = 200 };
#endif
enum { THREADS = 4, INPUTS = 5 };

/* What threads share: values that nobody writes. */
static oracle *eager_inputs[INPUTS];
static tn_tensor *lazy_inputs[INPUTS];

static void make_input(int n, const int64_t *shape, int rank, tn_dtype dtype, bool computed) {
    step s = {.kind = STEP_data, .salt = (uint64_t)n + 99, .dtype = dtype, .n_i = rank + 4, .i = {rank}};
    memcpy(s.i + 1, shape, (size_t)rank * sizeof *shape);
    s.i[rank + 3] = -1;
    eager_inputs[n] = step_eager(&s, NULL, 0);
    lazy_inputs[n] = step_lazy(&s, NULL, 0);
    if (!computed) return;
    step neg = {.kind = STEP_neg, .n_in = 1};
    oracle *x = eager_inputs[n];
    tn_tensor *t = lazy_inputs[n];
    eager_inputs[n] = step_eager(&neg, &x, 0);
    lazy_inputs[n] = step_lazy(&neg, &t, 0);
    oracle_free(x);
    tn_free(t);
}

/* Storages are counted without locks by the oracle: each thread has aliases of its own memory. */
typedef struct worker {
    pthread_t thread;
    int number, failures;
    char why[512];
    uint64_t seed;
} worker;

static void *run_programs(void *ctx) {
    worker *w = ctx;
    oracle *own[INPUTS];
    program *p = malloc(sizeof *p);
    program_inputs shared = {.eager = own, .lazy = lazy_inputs, .count = INPUTS};
    for (int n = 0; n < INPUTS; n++)
        own[n] = oracle_contiguous(eager_inputs[n]);
    for (int n = 0; n < PROGRAMS && w->failures == 0; n++) {
        w->seed = (uint64_t)(n * THREADS + w->number + 1);
        program_make(p, w->seed, PROGRAM_PLAIN, own, INPUTS);
        run_mode mode = n % 3 == 0 ? RUN_EAGER : n % 3 == 1 ? RUN_AGAIN : RUN_LAZY;
        w->failures += !program_run(p, mode, &shared, w->why, sizeof w->why);
    }
    for (int n = 0; n < INPUTS; n++)
        oracle_free(own[n]);
    free(p);
    return NULL;
}

static void threads_run_programs_over_shared_inputs(void **state) {
    (void)state;
    worker workers[THREADS] = {{.failures = 0}};
    make_input(0, (int64_t[]){4, 3}, 2, TN_F32, false);
    make_input(1, (int64_t[]){2, 3, 5}, 3, TN_F32, true);
    make_input(2, (int64_t[]){6}, 1, TN_I64, true);
    make_input(3, (int64_t[]){3000}, 1, TN_F32, true);
    make_input(4, (int64_t[]){5, 5}, 2, TN_F64, true);
    assert_ok(tn_eval(lazy_inputs, INPUTS));
    for (int n = 0; n < THREADS; n++) {
        workers[n].number = n;
        assert_int_equal(pthread_create(&workers[n].thread, NULL, run_programs, &workers[n]), 0);
    }
    for (int n = 0; n < THREADS; n++)
        pthread_join(workers[n].thread, NULL);
    for (int n = 0; n < INPUTS; n++) {
        tn_free(lazy_inputs[n]);
        oracle_free(eager_inputs[n]);
    }
    for (int n = 0; n < THREADS; n++)
        if (workers[n].failures)
            fail_msg("thread %d, seed %llu: %s", n, (unsigned long long)workers[n].seed, workers[n].why);
}

/* ---- a leaf's last references ------------------------------------------------------------------------------------ */

enum { ROUNDS = 200 };

typedef struct turn {
    pthread_barrier_t given, used, ended;
    tn_tensor *leaf;
} turn;

static void *use_and_give_back(void *ctx) {
    turn *t = ctx;
    for (int n = 0; n < ROUNDS; n++) {
        pthread_barrier_wait(&t->given);
        tn_tensor *y = tn_neg(t->leaf); /* until it goes, it refers to the leaf */
        pthread_barrier_wait(&t->used);
        tn_free(y);
        tn_free(tn_rand((int64_t[]){1}, 1)); /* takes the leaf's node, if that is free now */
        pthread_barrier_wait(&t->ended);
    }
    return NULL;
}

/* Who gives back a reference that is not the last does not look at the leaf any more: another thread may have freed it.
 * The thread sanitizer sees it. */
static void a_leaf_is_left_alone_by_who_has_given_it_back(void **state) {
    (void)state;
    turn t;
    pthread_t thread;
    pthread_barrier_init(&t.given, NULL, 2);
    pthread_barrier_init(&t.used, NULL, 2);
    pthread_barrier_init(&t.ended, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, use_and_give_back, &t), 0);
    for (int n = 0; n < ROUNDS; n++) {
        t.leaf = tn_full((int64_t[]){3}, 1, n, TN_F32);
        assert_ok(tn_eval(&t.leaf, 1));
        pthread_barrier_wait(&t.given);
        pthread_barrier_wait(&t.used);
        tn_free(t.leaf);
        pthread_barrier_wait(&t.ended);
    }
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&t.given);
    pthread_barrier_destroy(&t.used);
    pthread_barrier_destroy(&t.ended);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_run_programs_over_shared_inputs),
        cmocka_unit_test(a_leaf_is_left_alone_by_who_has_given_it_back),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    puts("ran on: cpu");
    return failed;
}
