/* all_tests.c — every test and fuzzer in one program: a sanitizer build links once instead of 145 times.
 *
 *   all_tests NAME [ARGUMENT…]      what the program NAME does with these arguments
 *
 * CMake compiles each source with another name for main (NAME_main), or for a fuzzer's entry (NAME_input), and lists
 * them in a header. TRUNNION_TEST holds NAME for children that a test starts from /proc/self/exe: these get no NAME
 * as their first argument. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "all_tests.h"

/* Some tests define main without parameters: as the C library's start code does, they are called with both. */
#define DECLARE_TEST(name) int name##_main(int argc, char **argv);
#define DECLARE_FUZZER(name) int name##_input(const uint8_t *data, size_t size);
EACH_TEST(DECLARE_TEST)
EACH_FUZZER(DECLARE_FUZZER)
int fuzz_replay_main(int argc, char **argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef int run_test(int argc, char **argv);
typedef int run_input(const uint8_t *data, size_t size);

typedef struct program {
    const char *name;
    run_test *run;
    run_input *input; /* of a fuzzer */
} program;

#define TEST_ROW(name) {#name, name##_main, NULL},
#define FUZZER_ROW(name) {#name, fuzz_replay_main, name##_input},
static const program programs[] = {EACH_TEST(TEST_ROW) EACH_FUZZER(FUZZER_ROW)};

static run_input *fuzzed;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzzed(data, size); }

int main(int argc, char **argv) {
    const char *name = getenv("TRUNNION_TEST");
    if (name == NULL && argc > 1) {
        name = *++argv;
        argc--;
        setenv("TRUNNION_TEST", name, 1);
    }
    for (size_t i = 0; name != NULL && i < sizeof programs / sizeof *programs; i++) {
        if (strcmp(programs[i].name, name) != 0) continue;
        fuzzed = programs[i].input;
        return programs[i].run(argc, argv);
    }
    fprintf(stderr, "all_tests: the first argument must be the name of a test or fuzzer, not '%s'\n", name ? name : "");
    return 2;
}
