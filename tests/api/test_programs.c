/* test_programs.c — laziness changes nothing: random programs by the library and by an eager oracle, bit for bit.
 *
 * TRUNNION_PROGRAMS says how many (200, in full runs 600), TRUNNION_FIRST with which seed they begin (1). A difference
 * is printed with its seed and the shortest program that shows it; TRUNNION_FIRST=seed TRUNNION_PROGRAMS=1 shows it
 * again, and with TRUNNION_ISOLATE=1 programs that crash or do not end are shortened as well. */
#include "test_support.h"

#include <signal.h>

#include "far_driver.h"
#include "programs.h"
#include "trunnion/ops.h"

enum { PROGRAMS = 600 };
enum { ENOUGH_FAILURES = 3, COUNTED = 400 };

static int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? atoll(text) : otherwise;
}

static uint64_t first_seed(void) { return (uint64_t)number_from("TRUNNION_FIRST", 1); }

static int programs(void) { return (int)number_from("TRUNNION_PROGRAMS", PROGRAMS / test_every(3, 6)); }

/* ---- a crash tells its seed -------------------------------------------------------------------------------------- */

static volatile sig_atomic_t seed_now;

static void tell_seed(int number) {
    char text[] = "\nkilled in the program of seed 0000000000\n";
    long seed = seed_now;
    for (size_t at = sizeof text - 3; seed > 0; seed /= 10)
        text[at--] = (char)('0' + seed % 10);
    (void)!write(STDOUT_FILENO, text, sizeof text - 1);
    signal(number, SIG_DFL);
    raise(number);
}

/* Where cmocka's own handlers would catch a crash. */
static void tell_seed_of_crashes(void) {
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGTERM};
    for (size_t k = 0; k < TN_COUNT(deadly); k++)
        signal(deadly[k], tell_seed);
}

/* ---- running many ------------------------------------------------------------------------------------------------ */

static void check_many(program_form form, const run_mode *modes, int mode_count, int count) {
    program *p = malloc(sizeof *p);
    int failures = 0;
    tell_seed_of_crashes();
    for (int n = 0; n < count && failures < ENOUGH_FAILURES; n++) {
        seed_now = (sig_atomic_t)(first_seed() + (uint64_t)n);
        program_make(p, (uint64_t)seed_now, form, NULL, 0);
        for (int k = 0; k < mode_count; k++)
            failures += !program_check(p, modes[k]);
    }
    free(p);
    assert_int_equal(failures, 0);
}

static void programs_equal_the_oracle_lazily_eagerly_and_again(void **state) {
    (void)state;
    check_many(PROGRAM_PLAIN, (run_mode[]){RUN_AGAIN, RUN_EAGER}, 2, programs());
}

static void programs_equal_the_oracle_whatever_is_kept(void **state) {
    (void)state;
    check_many(PROGRAM_PLAIN, (run_mode[]){RUN_KEPT}, 1, programs() / 2);
}

static void captured_programs_equal_the_oracle_at_each_launch(void **state) {
    (void)state;
    check_many(PROGRAM_CAPTURE, (run_mode[]){RUN_CAPTURE}, 1, programs() / 2);
}

static void programs_of_symbolic_extents_equal_the_oracle_at_each_size(void **state) {
    (void)state;
    check_many(PROGRAM_SYMBOLIC, (run_mode[]){RUN_AGAIN}, 1, programs() / 2);
}

/* The pool's size is part of no result. */
static void programs_have_the_same_bits_on_one_two_and_three_threads(void **state) {
    (void)state;
    int before = tn_get_num_threads();
    for (int threads = 1; threads <= 3; threads++) {
        assert_ok(tn_set_num_threads(threads));
        check_many(PROGRAM_PLAIN, (run_mode[]){RUN_LAZY}, 1, programs() / 10);
        check_many(PROGRAM_LARGE, (run_mode[]){RUN_LAZY}, 1, programs() / 20);
    }
    assert_ok(tn_set_num_threads(before));
}

/* ---- what the programs are --------------------------------------------------------------------------------------- */

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static int median(int *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_ints);
    return values[count / 2];
}

static void programs_are_long_and_full_of_views_and_writes(void **state) {
    (void)state;
    static int ops[COUNTED], views[COUNTED], writes[COUNTED], reads[COUNTED];
    program *p = malloc(sizeof *p);
    for (int n = 0; n < COUNTED; n++) {
        program_make(p, (uint64_t)n + 1, PROGRAM_PLAIN, NULL, 0);
        program_counts c = program_count(p);
        ops[n] = c.ops;
        views[n] = c.views;
        writes[n] = c.writes;
        reads[n] = c.reads;
    }
    free(p);
    int typical[] = {median(ops, COUNTED), median(views, COUNTED), median(writes, COUNTED), median(reads, COUNTED)};
    print_message("median of a program: %d ops, of them %d views and %d writes; %d reads\n", typical[0], typical[1],
                  typical[2], typical[3]);
    assert_true(typical[0] >= 20);
    assert_true(typical[1] >= 4);
    assert_true(typical[2] >= 3);
    assert_true(typical[3] >= 2);
}

static void symbolic_programs_look_up_by_index(void **state) {
    (void)state;
    int looked_up[STEP_KIND_COUNT] = {0};
    program *p = malloc(sizeof *p);
    for (int n = 0; n < COUNTED; n++) {
        program_make(p, (uint64_t)n + 1, PROGRAM_SYMBOLIC, NULL, 0);
        for (int k = 0; k < p->count; k++)
            looked_up[p->steps[k].kind]++;
    }
    free(p);
    int gathers = looked_up[STEP_gather], selects = looked_up[STEP_index_select], adds = looked_up[STEP_index_add];
    print_message("%d programs: %d gather, %d index_select, %d index_add\n", COUNTED, gathers, selects, adds);
    assert_true(gathers >= COUNTED / 10 && selects >= COUNTED / 10 && adds >= COUNTED / 20);
}

/* A plan that was kept is found again by keys alone, so running a program a second time plans nothing; with symbolic
 * extents most plans are found at another size. */
static void symbolic_programs_mostly_keep_their_plans(void **state) {
    (void)state;
    program *p = malloc(sizeof *p);
    char why[512];
    tn_runtime_stats s = {.struct_size = sizeof s};
    tn_reset_runtime_stats();
    for (int n = 0; n < 50; n++) {
        program_make(p, (uint64_t)n + 1, PROGRAM_SYMBOLIC, NULL, 0);
        assert_true(program_run(p, RUN_AGAIN, NULL, why, sizeof why));
    }
    free(p);
    assert_ok(tn_get_runtime_stats(&s));
    int64_t resized = s.plans_made - s.plan_misses;
    print_message("%lld plans: %lld new, %lld at another size\n", (long long)s.plans_made, (long long)s.plan_misses,
                  (long long)resized);
    assert_true(resized > s.plans_made / 10);
}

/* ---- other devices ----------------------------------------------------------------------------------------------- */

static void check_on(tn_device *d, int count) {
    assert_ok(tn_set_current_device(d));
    check_many(PROGRAM_PLAIN, (run_mode[]){RUN_AGAIN, RUN_EAGER, RUN_KEPT}, 3, count);
    check_many(PROGRAM_CAPTURE, (run_mode[]){RUN_CAPTURE}, 1, count);
    check_many(PROGRAM_SYMBOLIC, (run_mode[]){RUN_AGAIN}, 1, count / 2);
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
}

static void programs_equal_the_oracle_on_memory_that_is_not_the_hosts(void **state) {
    (void)state;
    far_nature_now = (far_nature){0};
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_SILENT;
    check_on(far_open(0, &o), programs() / 8);
}

/* What the device lacks, the host computes in the middle of the device's plan. */
static void programs_equal_the_oracle_on_a_device_that_lacks_types(void **state) {
    (void)state;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_SILENT;
    far_nature_now = (far_nature){.no_f64 = true, .no_i64 = true};
    check_on(far_open(1, &o), programs() / 8);
    far_nature_now = (far_nature){0};
}

/* The device of TRUNNION_DEVICE, if it is named: for machines that have more. */
static void programs_equal_the_oracle_on_the_device_that_is_named(void **state) {
    (void)state;
    const char *name = getenv("TRUNNION_DEVICE");
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    if (!name || !name[0]) skip();
    assert_ok(tn_device_open(name, &o, NULL, &d));
    check_on(d, programs() / 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_are_long_and_full_of_views_and_writes),
        cmocka_unit_test(programs_equal_the_oracle_lazily_eagerly_and_again),
        cmocka_unit_test(programs_equal_the_oracle_whatever_is_kept),
        cmocka_unit_test(captured_programs_equal_the_oracle_at_each_launch),
        cmocka_unit_test(programs_of_symbolic_extents_equal_the_oracle_at_each_size),
        cmocka_unit_test(symbolic_programs_look_up_by_index),
        cmocka_unit_test(symbolic_programs_mostly_keep_their_plans),
        cmocka_unit_test(programs_have_the_same_bits_on_one_two_and_three_threads),
        cmocka_unit_test(programs_equal_the_oracle_on_memory_that_is_not_the_hosts),
        cmocka_unit_test(programs_equal_the_oracle_on_a_device_that_lacks_types),
        cmocka_unit_test(programs_equal_the_oracle_on_the_device_that_is_named),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    puts("ran on: cpu, far");
    return failed;
}
