/* test_posix.c — what the sources need of the system, so that src/windows and the C libraries of other targets are held
 * to it: names in UTF-8, files replaced and removed while they are open, locks, streams into memory, child processes.
 * Started with --words it prints its arguments, a line each. */
#include "test_support.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "base/os.h"

static const char NAME[] = "gr\xC3\xBC\xC3\x9F \xE6\xA8\xA1\xE5\x9E\x8B \xF0\x9F\x98\x80";

static void save_text(const char *path, const char *text) {
    tn_save *s;
    assert_ok(tn_save_begin(path, &s));
    assert_ok(tn_save_write(s, text, strlen(text)));
    assert_ok(tn_save_commit(s));
}

static void expect_file(const char *path, const char *text) {
    char *data;
    size_t size;
    assert_ok(tn_file_read(path, &data, &size, 1000));
    assert_int_equal(size, strlen(text));
    assert_memory_equal(data, text, size);
    tn_mem_free(data);
}

/* The names in a folder, without . and .., in any order, each followed by '|'. */
static void list_folder(const char *path, char *out, size_t size) {
    DIR *d = opendir(path);
    assert_non_null(d);
    out[0] = 0;
    for (const struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            snprintf(out + strlen(out), size - strlen(out), "%s|", e->d_name);
    closedir(d);
}

static void a_name_of_any_script_is_saved_listed_and_read(void **state) {
    (void)state;
    char folder[600], path[1300], names[300], expected[300];
    snprintf(folder, sizeof folder, "%s/%s/inner", test_scratch("utf8"), NAME);
    assert_ok(tn_make_dirs(folder, 0700));
    snprintf(path, sizeof path, "%s/%s", folder, NAME);
    save_text(path, "one\n");
    expect_file(path, "one\n"); /* no line end was changed */
    snprintf(expected, sizeof expected, "%s|", NAME);
    list_folder(folder, names, sizeof names);
    assert_string_equal(names, expected);
    char real[PATH_MAX];
    assert_non_null(realpath(path, real));
    assert_string_equal(strrchr(real, '/') + 1, NAME);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_true(S_ISREG(s.st_mode));
    assert_int_equal(s.st_size, 4);
    assert_true(time(NULL) - s.st_mtime < 100);
}

static void a_long_path_is_no_limit(void **state) {
    (void)state;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", test_scratch("long"));
    while (strlen(path) < 700)
        snprintf(path + strlen(path), sizeof path - strlen(path), "/a folder of forty characters, with spaces");
    assert_ok(tn_make_dirs(path, 0700));
    snprintf(path + strlen(path), sizeof path - strlen(path), "/file");
    save_text(path, "deep");
    expect_file(path, "deep");
}

/* Windows before 10, and Wine, keep an open file: then the save fails and the old file stays as it was. */
static void an_open_file_can_be_replaced_and_removed(void **state) {
    (void)state;
    const char *path = test_scratch("open");
    char first[8] = "";
    save_text(path, "old");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    tn_save *s;
    assert_ok(tn_save_begin(path, &s));
    assert_ok(tn_save_write(s, "new", 3));
    tn_status status = tn_save_commit(s);
    assert_true(status == TN_OK || TN_ON_WINDOWS);
    if (status != TN_OK) assert_text_has(tn_error(), "open': renaming: Permission denied");
    expect_file(path, status == TN_OK ? "new" : "old");
    assert_int_equal(read(fd, first, sizeof first), 3);
    assert_string_equal(first, "old");
    assert_int_equal(unlink(path), 0);
    close(fd); /* Windows before 10 keeps the name until here */
    struct stat info;
    assert_int_equal(stat(path, &info), -1);
    assert_int_equal(errno, ENOENT);
}

static void a_mapped_file_is_read_at_any_place(void **state) {
    (void)state;
    const char *path = test_scratch("mapped");
    char part[4] = "";
    save_text(path, "0123456789");
    tn_map m;
    assert_ok(tn_map_open(path, &m));
    assert_int_equal(m.size, 10);
    assert_memory_equal(m.data, "0123456789", 10);
    assert_ok(tn_map_read(&m, 7, part, 3));
    assert_string_equal(part, "789");
    assert_int_equal(tn_map_read(&m, 8, part, 3), TN_ERR_ARGUMENT);
    tn_map_close(&m);
    assert_int_equal(tn_map_open(test_scratch("absent"), &m), TN_ERR_IO);
    assert_text_has(tn_error(), "absent");
}

/* A save that is under way keeps its temporary file from others; one that was abandoned leaves nothing. */
static void saves_of_one_name_do_not_meet(void **state) {
    (void)state;
    char folder[600], path[700], names[300];
    snprintf(folder, sizeof folder, "%s", test_scratch("saves"));
    snprintf(path, sizeof path, "%s/file", folder);
    assert_ok(tn_make_dirs(folder, 0700));
    tn_save *a, *b;
    assert_ok(tn_save_begin(path, &a));
    assert_ok(tn_save_begin(path, &b));
    assert_ok(tn_save_write(a, "a", 1));
    assert_ok(tn_save_write(b, "b", 1));
    list_folder(folder, names, sizeof names);
    assert_non_null(strstr(names, ".file.tmp0|"));
    assert_non_null(strstr(names, ".file.tmp1|"));
    assert_ok(tn_save_commit(b));
    tn_save_abandon(a);
    expect_file(path, "b");
    list_folder(folder, names, sizeof names);
    assert_string_equal(names, "file|");
    assert_ok(tn_save_begin(path, &a));
    tn_discard_saves(); /* what a signal's handler does */
    list_folder(folder, names, sizeof names);
    if (!TN_ON_WINDOWS) assert_string_equal(names, "file|"); /* there the name goes when the file is closed */
    tn_save_abandon(a);
    list_folder(folder, names, sizeof names);
    assert_string_equal(names, "file|");
}

static void a_pattern_finds_folders_and_files(void **state) {
    (void)state;
    char path[700];
    static const char *const names[] = {"v12/bin/lib12.so", "v9/bin/lib9.so", "v9/bin/other"};
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", test_scratch("glob"), names[i]);
        *strrchr(path, '/') = 0;
        assert_ok(tn_make_dirs(path, 0700));
        path[strlen(path)] = '/';
        save_text(path, "");
    }
    glob_t found = {0};
    snprintf(path, sizeof path, "%s/v*/bin/lib*.so", test_scratch("glob"));
    assert_int_equal(glob(path, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 2);
    assert_text_has(found.gl_pathv[0], "v12/bin/lib12.so");
    assert_text_has(found.gl_pathv[1], "v9/bin/lib9.so");
    globfree(&found);
    snprintf(path, sizeof path, "%s/w*", test_scratch("glob"));
    assert_true(glob(path, 0, NULL, &found) != 0);
    globfree(&found);
}

static void a_stream_into_memory_is_there_after_a_flush(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    fputs("one\n", f);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(size, 4);
    assert_string_equal(text, "one\n");
    fputs("two", f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(size, 7);
    assert_string_equal(text, "one\ntwo");
    free(text);
}

static void an_environment_variable_keeps_its_letters(void **state) {
    (void)state;
    assert_int_equal(setenv("TRUNNION_TEST_NAME", NAME, 1), 0);
    assert_string_equal(tn_env("TRUNNION_TEST_NAME"), NAME);
    assert_int_equal(setenv("TRUNNION_TEST_NAME", "other", 0), 0);
    assert_string_equal(tn_env("TRUNNION_TEST_NAME"), NAME);
    unsetenv("TRUNNION_TEST_NAME");
    assert_null(tn_env("TRUNNION_TEST_NAME"));
}

static void the_system_has_memory_and_processors(void **state) {
    (void)state;
    tn_host_memory m = tn_host_memory_now();
    assert_in_range(m.total, 64 << 20, INT64_MAX / 2);
    assert_in_range(m.unused, 1, m.total);
    assert_in_range(tn_cpu().cores, 1, 100000);
    double begun = tn_now();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_true(tn_now() - begun >= 0.019);
}

static void memory_becomes_code(void **state) {
    (void)state;
#if defined(__x86_64__)
    static const unsigned char seven[] = {0xB8, 7, 0, 0, 0, 0xC3}; /* mov eax, 7; ret */
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    memcpy(memory, seven, sizeof seven);
    assert_int_equal(mprotect(memory, 4096, PROT_READ | PROT_EXEC), 0);
    int (*code)(void);
    memcpy(&code, &memory, sizeof code);
    assert_int_equal(code(), 7);
    assert_int_equal(munmap(memory, 4096), 0);
#else
    skip();
#endif
}

static void a_missing_library_is_named(void **state) {
    (void)state;
    assert_null(dlopen("no-such-library-here.so.1", RTLD_NOW | RTLD_LOCAL));
    const char *text = dlerror();
    if (strstr(text, "Dynamic loading not supported")) skip(); /* a static command of musl */
    assert_text_has(text, "no-such-library-here.so.1");
    assert_text_has(text, "No such file");
}

#if !defined(__wasi__)

#if !defined(_WIN32)
extern char **environ;
#endif

static char own_path[PATH_MAX];

/* Starts this program with the words and returns what it prints; *status: how it ended. */
static void run_self(const char *const words[], char *heard, size_t size, int *status) {
    int ends[2];
    pid_t child;
    posix_spawn_file_actions_t files;
    assert_int_equal(pipe(ends), 0);
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    assert_int_equal(posix_spawn_file_actions_init(&files), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawnp(&child, own_path, &files, NULL, (char *const *)(uintptr_t)words, environ), 0);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    struct pollfd ready = {.fd = ends[0], .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 30000), 1);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], heard + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    heard[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, status, 0), child);
}

static void a_child_hears_every_word_as_it_is(void **state) {
    (void)state;
    const char *const words[] = {own_path,        "--words", "plain",     "two words", "a \"quoted\" one",
                                 "back\\slash\\", "\\\"",    "C:\\dir\\", "",          NAME,
                                 "*.c",           NULL};
    char heard[2000], expected[2000] = "";
    int status;
    for (size_t i = 2; words[i]; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s\n", words[i]);
    run_self(words, heard, sizeof heard, &status);
    assert_string_equal(heard, expected);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

static void a_child_that_crashes_is_no_exit(void **state) {
    (void)state;
    const char *const words[] = {own_path, "--crash", NULL};
    char heard[100];
    int status;
    run_self(words, heard, sizeof heard, &status);
    assert_false(WIFEXITED(status));
}

static void a_program_that_is_absent_is_not_started(void **state) {
    (void)state;
    pid_t child;
    posix_spawn_file_actions_t files;
    char *words[] = {(char[]){"x"}, NULL};
    assert_int_equal(posix_spawn_file_actions_init(&files), 0);
    assert_int_equal(posix_spawnp(&child, "no-such-program-here", &files, NULL, words, environ), ENOENT);
    posix_spawn_file_actions_destroy(&files);
}

#endif

/* As a program without a sanitizer, which would end it with an exit status. */
static void crash(void) {
#if defined(_WIN32) || defined(__wasi__)
    *(volatile int *)(uintptr_t)8 = 1;
#else
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
#endif
}

int main(int argc, char **argv) {
#if defined(_WIN32)
    tn_win_begin(&argc, &argv);
#endif
    for (int i = 2; i < argc && !strcmp(argv[1], "--words"); i++)
        printf("%s\n", argv[i]);
    if (argc > 1 && !strcmp(argv[1], "--words")) return 3;
    if (argc > 1 && !strcmp(argv[1], "--crash")) crash();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_of_any_script_is_saved_listed_and_read),
        cmocka_unit_test(a_long_path_is_no_limit),
        cmocka_unit_test(an_open_file_can_be_replaced_and_removed),
        cmocka_unit_test(a_mapped_file_is_read_at_any_place),
        cmocka_unit_test(saves_of_one_name_do_not_meet),
        cmocka_unit_test(a_pattern_finds_folders_and_files),
        cmocka_unit_test(a_stream_into_memory_is_there_after_a_flush),
        cmocka_unit_test(an_environment_variable_keeps_its_letters),
        cmocka_unit_test(the_system_has_memory_and_processors),
        cmocka_unit_test(memory_becomes_code),
        cmocka_unit_test(a_missing_library_is_named),
#if !defined(__wasi__)
        cmocka_unit_test(a_child_hears_every_word_as_it_is),
        cmocka_unit_test(a_child_that_crashes_is_no_exit),
        cmocka_unit_test(a_program_that_is_absent_is_not_started),
#endif
    };
    ssize_t n = readlink("/proc/self/exe", own_path, sizeof own_path - 1);
    if (n > 0) own_path[n] = 0;
    return cmocka_run_group_tests_name("posix", tests, make_scratch, remove_scratch);
}
