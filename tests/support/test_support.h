/* test_support.h — what several test programs share: cmocka with its includes, a scratch folder, sanitizer switches. */
#ifndef TN_TEST_SUPPORT_H
#define TN_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#if defined(__SANITIZE_ADDRESS__)
#define TEST_ADDRESS_SANITIZER 1
#endif
#if defined(__SANITIZE_THREAD__)
#define TEST_THREAD_SANITIZER 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#define TEST_THREAD_SANITIZER 1
#endif
#endif

#if defined(TEST_ADDRESS_SANITIZER) || defined(TEST_THREAD_SANITIZER)
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

/* Cases of a random sweep: a third of them in make check. Under a sanitizer a fifteenth: each takes ten times as long
 * there, and the first case reports a wrong access. Wrong values can need many cases: unit-full runs them all. */
#define TEST_SWEEP(cases) (test_is_full() ? (cases) : test_is_thin() ? ((cases) + 14) / 15 : ((cases) + 2) / 3)

/* For the scalar loops that define results: sanitizers leave them alone, and they are optimized in every build. They
 * are not under test, and take most of a sweep's time otherwise. A function so marked inlines only others that are. */
#if defined(__GNUC__) && !defined(__clang__)
#define TEST_DEFINITION __attribute__((no_sanitize("address", "undefined"), optimize("O2")))
#else
#define TEST_DEFINITION __attribute__((no_sanitize("address", "undefined")))
#endif

static inline bool test_is_full(void) { return getenv("TRUNNION_TEST_FULL") != NULL; }

/* Whether a sweep may leave out what differs only in its numbers: under a sanitizer, unless all is asked for. */
static inline bool test_is_thin(void) { return TEST_SANITIZED && !test_is_full(); }

/* Of a sweep's cases one in how many runs: in `plain`, under a sanitizer in `thin`. TRUNNION_TEST_FULL runs all. */
static inline int test_every(int plain, int thin) { return test_is_full() ? 1 : TEST_SANITIZED ? thin : plain; }

/* Whether a sweep over 1 to 3 threads leaves this count out. Each case runs with one count, by turns, and for sets of
 * instructions whose kernels emulate fma (`slow`) each third case does: a wrong access or bit does not hide from all of
 * its cases. TRUNNION_TEST_FULL runs all. */
static inline bool test_leaves_out(int threads, bool slow) {
    static int turn, slow_turn;
    if (test_is_full()) return false;
    if (threads == 1 && slow) slow_turn++;
    if (slow && slow_turn % 3 != 1) return true;
    if (threads == 1) turn++;
    return threads != 1 + (turn + turn / 3) % 3;
}

#if defined(__x86_64__)
enum { TEST_BASE_IS_SLOW = 1 };
#else
enum { TEST_BASE_IS_SLOW = 0 };
#endif

/* Fails with the library's own words instead of a bare number. */
#define assert_ok(expr) assert_ok_at((expr), #expr, __FILE__, __LINE__)

static inline void assert_ok_at(tn_status status, const char *expression, const char *file, int line) {
    if (status == TN_OK) return;
    print_error("%s: %s: %s\n", expression, tn_status_name(status), tn_error());
    _fail(file, line);
}

static inline void assert_text_has(const char *text, const char *part) {
    if (strstr(text, part) != NULL) return;
    fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* ---- scratch folder: test_scratch("name") is the path of a file in it -------------------------------------------- */

static char scratch_folder[256];

static inline int make_scratch(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(scratch_folder, sizeof scratch_folder, "%s/trunnion-test-XXXXXX", parent != NULL ? parent : "/tmp");
    return mkdtemp(scratch_folder) != NULL ? 0 : -1;
}

static inline int remove_one(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

static inline int remove_scratch(void **state) {
    (void)state;
    return nftw(scratch_folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static pid_t scratch_owner;

static inline void remove_scratch_at_exit(void) {
    if (getpid() == scratch_owner) (void)remove_scratch(NULL);
}

/* Valid until the eighth call from now. A program without the fixture above gets a folder at its first call, which goes
 * when the program ends. */
static inline const char *test_scratch(const char *name) {
    static char paths[8][512];
    static int next;
    if (scratch_folder[0] == 0) {
        assert_int_equal(make_scratch(NULL), 0);
        scratch_owner = getpid();
        assert_int_equal(atexit(remove_scratch_at_exit), 0);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

/* Sets a locale whose decimal point is a comma, as a host program may: one that is installed, or one that localedef
 * makes, which has nothing else (a whole one takes seconds to make). Skips the test where there is neither.
 * setlocale(LC_ALL, "C") ends it. */
static inline void test_enter_comma_locale(void) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8", "pt_BR.UTF-8"};
    char command[1200], number[16];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (setlocale(LC_ALL, names[i]) != NULL) return;
    const char *source = test_scratch("comma-source");
    FILE *f = fopen(source, "w");
    assert_non_null(f);
    fputs("LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n", f);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command, "localedef -c -f ANSI_X3.4-1968 -i %s %s >/dev/null 2>&1", source,
             test_scratch("comma"));
    (void)!system(command); /* fails for what is not in the source, and has made the locale */
    setenv("LOCPATH", scratch_folder, 1);
    if (setlocale(LC_ALL, "comma") == NULL) skip();
    snprintf(number, sizeof number, "%.1f", 0.5);
    assert_string_equal(number, "0,5");
}

/* Where the built command lies, beside this test, if it was built; TRUNNION_COMMAND names a script that emulates it. */
static inline void path_of_trunnion(char *path, size_t size) {
    char self[512];
    if (getenv("TRUNNION_COMMAND")) {
        snprintf(path, size, "%s", getenv("TRUNNION_COMMAND"));
        return;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(path, size, "%s/trunnion", self);
}

/* Runs a line of the shell, hears what it says on standard output, and gives its exit code. */
static inline int run_line(const char *line, char *heard, size_t size) {
    FILE *p = popen(line, "r");
    assert_non_null(p);
    heard[fread(heard, 1, size - 1, p)] = 0;
    int status = pclose(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The same with what `command` makes of the path of the built command (a format with one %s). Without the command
 * beside the test, the test is skipped. */
static inline int run_trunnion(const char *command, char *heard, size_t size) {
    char self[600], line[2600];
    path_of_trunnion(self, sizeof self);
    if (access(self, X_OK) != 0) {
        print_message("skipped: trunnion was not built beside this test\n");
        skip();
    }
    const char *mark = strstr(command, "%s");
    assert_non_null(mark);
    snprintf(line, sizeof line, "%.*s%s%s", (int)(mark - command), command, self, mark + 2);
    return run_line(line, heard, size);
}

/* A call of the command: its exit code, and a part of what it says. */
typedef struct test_call {
    const char *arguments;
    int code;
    const char *part;
} test_call;

static inline void assert_calls(const test_call *calls, size_t count, int (*run)(const char *, char *, size_t)) {
    char heard[65536];
    for (size_t i = 0; i < count; i++) {
        int code = run(calls[i].arguments, heard, sizeof heard);
        if (code != calls[i].code) fail_msg("'%s' ends with %d: %s", calls[i].arguments, code, heard);
        assert_text_has(heard, calls[i].part);
    }
}

/* Runs `trunnion convert` in the scratch folder; what it says, errors too, is in `said`. */
static inline int run_convert(const char *arguments, char *said, size_t size) {
    char self[600], line[2600];
    path_of_trunnion(self, sizeof self);
    snprintf(line, sizeof line, "cd '%s' && TRUNNION_LOG=0 '%s' convert %s 2>&1", scratch_folder, self, arguments);
    return run_line(line, said, size);
}

static inline void write_file(const char *path, const char *content) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    assert_int_equal(fclose(f), 0);
}

#endif
