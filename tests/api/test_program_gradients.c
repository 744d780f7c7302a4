/* test_program_gradients.c — gradients through views, writes and reads: random programs against central differences. */
#include "test_support.h"

#include "programs.h"

enum { PROGRAMS = 500 };

static void gradients_of_programs_are_their_slopes(void **state) {
    (void)state;
    const char *many = getenv("TRUNNION_PROGRAMS"), *first = getenv("TRUNNION_FIRST");
    int count = many ? atoi(many) / 4 : PROGRAMS / test_every(4, 8), from = first ? atoi(first) : 1, failures = 0;
    program *p = malloc(sizeof *p);
    for (int n = 0; n < count && failures < 3; n++) {
        program_make(p, (uint64_t)(from + n), PROGRAM_GRADIENT, NULL, 0);
        failures += !program_check(p, RUN_GRADIENT);
    }
    free(p);
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_of_programs_are_their_slopes)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    puts("ran on: cpu");
    return failed;
}
