/* test_threads.c — promises of the one thread pool: every item once, by position alone, from any number of threads and
 * callers, in a child of fork as well. Runs under the thread sanitizer too. */
#include "test_support.h"

#include <dirent.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/base.h"

enum { MOST_ITEMS = 10000 };

/* ---- splitting --------------------------------------------------------------------------------------------------- */

typedef struct tally {
    _Atomic int times[MOST_ITEMS];
    _Atomic int worker_of[MOST_ITEMS];
    _Atomic int parts, short_parts;
    int64_t grain;
} tally;

static void count_items(void *ctx, int64_t begin, int64_t end, int worker) {
    tally *t = ctx;
    t->parts++;
    t->short_parts += end - begin < t->grain;
    for (int64_t i = begin; i < end; i++) {
        t->times[i]++;
        t->worker_of[i] = worker;
    }
}

typedef void parallel(int64_t n, int64_t grain, tn_parallel_body *body, void *ctx);

static void run_every_item_once(parallel *run, int parts_a_thread, bool shared) {
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 100, 1001, MOST_ITEMS};
    static const int64_t grains[] = {-1, 0, 1, 2, 7, 100, 1 << 20};
    tally *t = malloc(sizeof *t);
    for (int threads = 1; threads <= 5; threads++) {
        assert_ok(tn_threads_set(threads));
        for (size_t s = 0; s < TN_COUNT(sizes); s++) {
            for (size_t g = 0; g < TN_COUNT(grains); g++) {
                memset(t, 0, sizeof *t);
                t->grain = grains[g];
                run(sizes[s], grains[g], count_items, t);
                for (int64_t i = 0; i < sizes[s]; i++)
                    assert_int_equal(t->times[i], 1);
                assert_in_range(t->parts, 0, threads * parts_a_thread);
                assert_in_range(t->short_parts, 0, shared ? threads : 1);
            }
        }
    }
    free(t);
}

static void every_item_runs_once(void **state) {
    (void)state;
    run_every_item_once(tn_parallel, 1, false);
    run_every_item_once(tn_parallel_shared, 40, true); /* pieces are quarters of what is left, then single grains */
}

/* ---- shared work ------------------------------------------------------------------------------------------------- */

typedef struct held {
    tally seen;
    _Atomic int64_t done;
    int64_t all;
    _Atomic bool late;
} held;

/* A worker's first piece lasts until all others have run; the caller's, until the worker has begun. */
static void hold_first_piece(void *ctx, int64_t begin, int64_t end, int worker) {
    held *h = ctx;
    count_items(&h->seen, begin, end, worker);
    double deadline = tn_now() + 10;
    while (worker == 0 && begin == 0 && !h->seen.times[h->all / 2] && tn_now() < deadline) {
    }
    bool holds = worker != 0 && begin == h->all / 2;
    while (holds && h->done < h->all - (end - begin) && !h->late)
        h->late = tn_now() > deadline;
    h->done += end - begin;
}

static void a_thread_that_is_held_up_holds_up_nobody(void **state) {
    (void)state;
    held *h = malloc(sizeof *h);
    int waited = 0;
    assert_ok(tn_threads_set(2));
    for (int run = 0; run < 5; run++) {
        memset(h, 0, sizeof *h);
        h->all = 1000;
        tn_parallel_shared(h->all, 10, hold_first_piece, h);
        for (int64_t i = 0; i < h->all; i++)
            assert_int_equal(h->seen.times[i], 1);
        assert_false(h->late);
        waited += h->seen.worker_of[500] == 1;
    }
    assert_in_range(waited, 1, 5);
    free(h);
}

static void parts_depend_on_position_alone(void **state) {
    (void)state;
    tally *t = calloc(2, sizeof *t);
    assert_ok(tn_threads_set(3));
    for (int run = 0; run < 200; run++) {
        tn_parallel(1000, 10, count_items, &t[run > 0]);
        for (int i = 0; i < 1000 && run > 0; i++)
            assert_int_equal(t[1].worker_of[i], t[0].worker_of[i]);
    }
    assert_int_equal(t[0].worker_of[0], 0);
    assert_int_equal(t[0].worker_of[339], 0); /* 100 grains: 34, 33, 33 */
    assert_int_equal(t[0].worker_of[340], 1);
    assert_int_equal(t[0].worker_of[999], 2);
    free(t);
}

static void sum_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)worker;
    float *sums = ctx;
    for (int64_t row = begin; row < end; row++) {
        float sum = 0;
        for (int k = 1; k < 50; k++)
            sum += 1.0f / (float)(row + k);
        sums[row] = sum;
    }
}

static void results_are_the_same_for_any_thread_count(void **state) {
    (void)state;
    static float expected[1000], sums[1000];
    assert_ok(tn_threads_set(1));
    tn_parallel(1000, 3, sum_rows, expected);
    for (int threads = 2; threads <= 8; threads++) {
        assert_ok(tn_threads_set(threads));
        memset(sums, 0, sizeof sums);
        tn_parallel(1000, 3, sum_rows, sums);
        assert_memory_equal(sums, expected, sizeof sums);
    }
}

/* ---- size -------------------------------------------------------------------------------------------------------- */

static void note_worker(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)begin;
    (void)end;
    _Atomic uint64_t *seen = ctx;
    atomic_fetch_or(seen, (uint64_t)1 << worker);
}

static uint64_t workers_seen(int threads) {
    _Atomic uint64_t seen = 0;
    assert_ok(tn_threads_set(threads));
    tn_parallel(64, 1, note_worker, &seen);
    return seen;
}

static void pool_has_the_size_that_was_set(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 6, 3, 1, 4, 6};
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        assert_int_equal(workers_seen(sizes[i]), ((uint64_t)1 << sizes[i]) - 1);
        assert_int_equal(tn_threads(), sizes[i]);
    }
    assert_ok(tn_threads_set(0));
    assert_int_equal(tn_threads(), tn_cpu().usable_threads);
    assert_int_equal(tn_threads_set(-1), TN_ERR_ARGUMENT);
    assert_int_equal(tn_threads_set(100000), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "100000");
}

static void *threads_elsewhere(void *count) {
    *(int *)count = tn_threads();
    return NULL;
}

static void a_limit_holds_for_its_thread_alone_and_until_it_is_put_back(void **state) {
    (void)state;
    int elsewhere = 0;
    pthread_t thread;
    assert_ok(tn_threads_set(5));
    assert_int_equal(tn_threads_limit(2), 0);
    assert_int_equal(tn_threads(), 2);
    assert_int_equal(workers_seen(6), 3);
    assert_int_equal(workers_seen(1), 1);
    assert_ok(tn_threads_set(5));
    assert_int_equal(pthread_create(&thread, NULL, threads_elsewhere, &elsewhere), 0);
    pthread_join(thread, NULL);
    assert_int_equal(elsewhere, 5);
    assert_int_equal(tn_threads_limit(0), 2);
    assert_int_equal(tn_threads(), 5);
    assert_ok(tn_threads_set(0));
}

/* ---- nested and concurrent callers ------------------------------------------------------------------------------- */

typedef struct nest {
    _Atomic int64_t inner_items;
    _Atomic int elsewhere;
} nest;

typedef struct inner_call {
    nest *nest;
    pthread_t thread;
} inner_call;

static void inner_body(void *ctx, int64_t begin, int64_t end, int worker) {
    inner_call *call = ctx;
    call->nest->inner_items += end - begin;
    bool own_thread = pthread_equal(call->thread, pthread_self()) && worker == 0 && begin == 0 && end == 100;
    call->nest->elsewhere += !own_thread;
}

static void outer_body(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        inner_call call = {ctx, pthread_self()};
        tn_parallel(100, 1, inner_body, &call);
    }
}

static void nested_call_stays_on_its_thread(void **state) {
    (void)state;
    nest n = {0};
    assert_ok(tn_threads_set(4));
    for (int run = 0; run < 50; run++)
        tn_parallel(20, 1, outer_body, &n);
    assert_int_equal(n.inner_items, 50 * 20 * 100);
    assert_int_equal(n.elsewhere, 0);
}

static void add_items(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)worker;
    int64_t *items = ctx;
    for (int64_t i = begin; i < end; i++)
        items[i]++;
}

static void *call_many_times(void *unused) {
    (void)unused;
    int64_t items[500] = {0};
    for (int run = 0; run < 400; run++)
        tn_parallel(500, 5, add_items, items);
    for (int i = 0; i < 500; i++) {
        if (items[i] != 400) return (void *)1;
    }
    return NULL;
}

static void callers_at_the_same_time_each_get_all_their_items(void **state) {
    (void)state;
    pthread_t callers[4];
    assert_ok(tn_threads_set(3));
    for (size_t i = 0; i < TN_COUNT(callers); i++) {
        assert_int_equal(pthread_create(&callers[i], NULL, call_many_times, NULL), 0);
    }
    for (size_t i = 0; i < TN_COUNT(callers); i++) {
        void *wrong;
        assert_int_equal(pthread_join(callers[i], &wrong), 0);
        assert_null(wrong);
    }
}

/* Pauses of every length around the moment in which workers fall asleep must lose no wake-up. */
static void sleeping_workers_wake(void **state) {
    (void)state;
    int64_t items[8] = {0};
    alarm(100);
    for (int oversubscribed = 0; oversubscribed < 2; oversubscribed++) {
        assert_ok(tn_threads_set(oversubscribed ? 8 : 2));
        for (int run = 0; run < 1500; run++) {
            double until = tn_now() + run % 100 * 1e-6;
            while (tn_now() < until)
                sched_yield();
            tn_parallel(8, 1, add_items, items);
        }
    }
    alarm(0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(items[i], 3000);
}

/* ---- what a worker is -------------------------------------------------------------------------------------------- */

typedef struct environment {
    pthread_t caller;
    _Atomic int wrong_mask, wrong_rounding;
    bool shared;
} environment;

/* The caller may run parts of workers that come late: with their rounding, and with its own signals. Of shared work it
 * runs all pieces so, since nobody knows whose they will be. */
static void look_at_environment(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)begin;
    (void)end;
    environment *e = ctx;
    e->wrong_rounding += e->shared && fegetround() != FE_TONEAREST;
    if (worker == 0) return;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    bool takes = !sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGUSR1);
    e->wrong_mask += takes && !pthread_equal(pthread_self(), e->caller);
    e->wrong_rounding += fegetround() != FE_TONEAREST;
}

static void workers_take_no_signals_and_round_to_nearest(void **state) {
    (void)state;
    environment e = {.caller = pthread_self()};
    assert_ok(tn_threads_set(12)); /* more than before: new workers start from this thread, as it is set now */
    fesetround(FE_UPWARD);
    for (int run = 0; run < 50; run++)
        tn_parallel(12, 1, look_at_environment, &e);
    e.shared = true;
    tn_parallel_shared(1200, 1, look_at_environment, &e);
    assert_int_equal(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    assert_int_equal(e.wrong_mask, 0);
    assert_int_equal(e.wrong_rounding, 0);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    assert_false(sigismember(&blocked, SIGUSR1)); /* and the caller's own mask is as it was */
}

/* Times are handed in, so this depends on none. */
static void crowded_processors_free_the_workers_for_a_while(void **state) {
    (void)state;
    tn_pin_pause p = {0};
    assert_true(tn_pin_may_tie(&p, 10, false));
    assert_false(tn_pin_may_tie(&p, 11, true));
    assert_false(tn_pin_may_tie(&p, 11.05, false));
    assert_false(tn_pin_may_tie(&p, 11.09, true)); /* stopped while free: says nothing */
    assert_true(tn_pin_may_tie(&p, 11.2, true));   /* nor does what was noted in the pause */
    assert_true(tn_pin_may_tie(&p, 11.3, false));
    assert_false(tn_pin_may_tie(&p, 11.4, true)); /* again at once: twice as long */
    assert_false(tn_pin_may_tie(&p, 11.55, false));
    assert_true(tn_pin_may_tie(&p, 11.65, false));
    double now = 11.65, longest = 0;
    for (int k = 0; k < 20; k++) {
        double from = now += 0.1;
        assert_false(tn_pin_may_tie(&p, now, true));
        while (!tn_pin_may_tie(&p, now += 0.01, false)) {
        }
        if (now - from > longest) longest = now - from;
    }
    assert_true(longest > 2 && longest < 5);
    now += 3; /* a calm time */
    assert_false(tn_pin_may_tie(&p, now, true));
    assert_true(tn_pin_may_tie(&p, now + 0.15, false));
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

typedef struct expecting {
    int64_t items[500];
    const void *from;
    int64_t bytes;
} expecting;

static void expect_and_add(void *ctx, int64_t begin, int64_t end, int worker) {
    expecting *e = ctx;
    add_items(e->items, begin, end, worker);
    tn_parallel_expect(e->from, e->bytes);
}

/* Nothing is read: there may be no memory, or less than nothing of it. */
static void expected_memory_need_not_be_there(void **state) {
    static const char here[4096];
    const expecting cases[] = {{.from = (const void *)(uintptr_t)64, .bytes = 1 << 16},
                               {.from = here, .bytes = 1 << 16},
                               {.from = here + sizeof here, .bytes = -4096}};
    (void)state;
    assert_ok(tn_threads_set(3));
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        expecting e = cases[i];
        for (int run = 0; run < 20; run++)
            tn_parallel(500, 5, expect_and_add, &e);
        for (int k = 0; k < 500; k++)
            assert_int_equal(e.items[k], 20);
    }
}

static void expected_memory_is_taken_piece_by_piece(void **state) {
    static const char here[4096];
    (void)state;
    tn_parallel_expect(here, sizeof here);
    assert_ptr_equal(tn_parallel_expected(1024), here);
    assert_null(tn_parallel_expected(3073));
    assert_ptr_equal(tn_parallel_expected(3072), here + 1024);
    assert_null(tn_parallel_expected(1));
    tn_parallel_expect(here + 64, -64);
    assert_null(tn_parallel_expected(1));
}

static void sleep_as_one(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)begin;
    (void)end;
    if (worker == *(const int *)ctx) nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
}

/* Where others keep the processors busy, a second one may be late. */
static bool is_known_as_slow(int worker) {
    for (int tries = 0; tries < 20; tries++) {
        tn_parallel(3, 1, sleep_as_one, &worker);
        if (tn_parallel_awaited() == worker) return true;
    }
    return false;
}

static void call_within(void *ctx, int64_t begin, int64_t end, int worker) {
    (void)worker;
    tn_parallel(end - begin, 1, add_items, (int64_t *)ctx + begin);
}

static void the_slow_worker_is_known(void **state) {
    (void)state;
    int64_t items[3] = {0};
    assert_ok(tn_threads_set(3));
    for (int slow = 0; slow < 3; slow++)
        assert_true(is_known_as_slow(slow));
    tn_parallel(1, 1, sleep_as_one, &(int){0});
    assert_int_equal(tn_parallel_awaited(), -1);
    for (int run = 0; run < 2000; run++) { /* some of these parts run here, as nobody has taken them */
        tn_parallel(3, 1, call_within, items);
        assert_in_range(tn_parallel_awaited(), 0, 2);
    }
}

#if !defined(TEST_THREAD_SANITIZER)

/* Runs `body` in a child process; its exit status. */
static int run_in_child(int (*body)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(body());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int count_in_child(void) {
    int64_t items[100] = {0};
    for (int run = 0; run < 100; run++)
        tn_parallel(100, 1, add_items, items);
    for (int i = 0; i < 100; i++) {
        if (items[i] != 100) return 1;
    }
    return workers_seen(4) == 15 ? 0 : 2;
}

static void child_of_fork_has_a_pool_of_its_own(void **state) {
    (void)state;
    assert_int_equal(workers_seen(4), 15);
    for (int i = 0; i < 20; i++)
        assert_int_equal(run_in_child(count_in_child), 0);
    assert_int_equal(workers_seen(4), 15);
}

/* ---- where workers run ------------------------------------------------------------------------------------------- */

/* The one thread of this process beside the caller. */
static pid_t the_worker(void) {
    pid_t found = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
        pid_t thread = (pid_t)atoi(task->d_name);
        if (thread > 0 && thread != getpid()) found = thread;
    }
    closedir(tasks);
    return found;
}

static cpu_set_t mask_of(pid_t thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(thread, sizeof set, &set);
    return set;
}

static int only_cpu_of(pid_t thread) {
    cpu_set_t set = mask_of(thread);
    int only = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&set) == 1; cpu++)
        if (CPU_ISSET((size_t)cpu, &set)) only = cpu;
    return only;
}

static void stand_on(pid_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(thread, sizeof set, &set);
}

static void use_two_threads(void) {
    int64_t items[2] = {0};
    (void)tn_threads_set(2);
    tn_parallel(2, 1, add_items, items);
}

static bool may_be_tied(void) { return tn_cpu().cores > 1 && tn_cpu().usable_threads == tn_cpu().cores; }

static int worker_keeps_away_from_its_caller(void) {
    cpu_set_t all = mask_of(0), now;
    use_two_threads();
    pid_t worker = the_worker();
    now = mask_of(0);
    if (!CPU_EQUAL(&all, &now)) return 1; /* the caller is left as it is */
    int first = only_cpu_of(worker);
    if (first < 0) return 2;
    stand_on(0, first);
    use_two_threads();
    int second = only_cpu_of(worker);
    if (second < 0 || second == first) return 3;
    sched_setaffinity(worker, sizeof all, &all); /* by a user's hand */
    stand_on(0, second);
    use_two_threads();
    now = mask_of(worker);
    return CPU_EQUAL(&all, &now) ? 0 : 4;
}

static int worker_is_free_when_asked_for(void) {
    cpu_set_t all = mask_of(0);
    setenv("TRUNNION_PIN", "0", 1);
    use_two_threads();
    cpu_set_t now = mask_of(the_worker());
    return CPU_EQUAL(&all, &now) ? 0 : 1;
}

static int workers_in_each_others_way_are_free(void) {
    cpu_set_t all = mask_of(0);
    use_two_threads();
    pid_t worker = the_worker();
    if (only_cpu_of(worker) < 0) return 1;
    int64_t items[1000] = {0};
    (void)tn_threads_set(tn_cpu().cores + 1);
    tn_parallel(1000, 1, add_items, items);
    cpu_set_t now = mask_of(worker);
    return CPU_EQUAL(&all, &now) ? 0 : 2;
}

static void workers_have_processors_of_their_own(void **state) {
    (void)state;
    if (!may_be_tied()) {
        print_message("skipped: workers are tied to processors only where there are two, and no quota\n");
        skip();
    }
    assert_int_equal(run_in_child(worker_keeps_away_from_its_caller), 0);
    assert_int_equal(run_in_child(worker_is_free_when_asked_for), 0);
    assert_int_equal(run_in_child(workers_in_each_others_way_are_free), 0);
}

#if !defined(TEST_ADDRESS_SANITIZER) /* which itself needs the address space */

/* Address space for a few stacks only. */
static int count_with_little_memory(void) {
    struct rlimit limit = {0};
    char *text;
    size_t size;
    if (tn_file_read("/proc/self/statm", &text, &size, 4096) != TN_OK) return 3;
    limit.rlim_cur = limit.rlim_max = (rlim_t)strtoull(text, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE) + (12 << 20);
    tn_mem_free(text);
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 4;
    if (tn_threads_set(200) != TN_OK) return 5;
    int64_t items[1000] = {0};
    for (int run = 0; run < 10; run++)
        tn_parallel(1000, 1, add_items, items);
    for (int i = 0; i < 1000; i++) {
        if (items[i] != 10) return 1;
    }
    return 0;
}

static void pool_makes_do_with_the_threads_it_gets(void **state) {
    (void)state;
    assert_int_equal(run_in_child(count_with_little_memory), 0);
}

#endif

static void fork_while_another_thread_computes_leaves_the_child_a_pool(void **state) {
    (void)state;
    pthread_t caller;
    assert_ok(tn_threads_set(3));
    for (int i = 0; i < 10; i++) {
        assert_int_equal(pthread_create(&caller, NULL, call_many_times, NULL), 0);
        assert_int_equal(run_in_child(count_in_child), 0);
        assert_int_equal(pthread_join(caller, NULL), 0);
    }
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(a_thread_that_is_held_up_holds_up_nobody),
        cmocka_unit_test(parts_depend_on_position_alone),
        cmocka_unit_test(results_are_the_same_for_any_thread_count),
        cmocka_unit_test(pool_has_the_size_that_was_set),
        cmocka_unit_test(a_limit_holds_for_its_thread_alone_and_until_it_is_put_back),
        cmocka_unit_test(nested_call_stays_on_its_thread),
        cmocka_unit_test(callers_at_the_same_time_each_get_all_their_items),
        cmocka_unit_test(sleeping_workers_wake),
        cmocka_unit_test(expected_memory_need_not_be_there),
        cmocka_unit_test(expected_memory_is_taken_piece_by_piece),
        cmocka_unit_test(the_slow_worker_is_known),
        cmocka_unit_test(workers_take_no_signals_and_round_to_nearest),
        cmocka_unit_test(crowded_processors_free_the_workers_for_a_while),
#if !defined(TEST_THREAD_SANITIZER) /* which cannot follow threads that start after a fork */
        cmocka_unit_test(child_of_fork_has_a_pool_of_its_own),
        cmocka_unit_test(workers_have_processors_of_their_own),
        cmocka_unit_test(fork_while_another_thread_computes_leaves_the_child_a_pool),
#if !defined(TEST_ADDRESS_SANITIZER)
        cmocka_unit_test(pool_makes_do_with_the_threads_it_gets),
#endif
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
