/* test_kernel_cache.c — compiled kernels on disk are found again, never somebody else's file or a damaged one; the
 * list of kernels that a device computes wrongly. */
#include "test_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <time.h>

#include "hal/kernel_code.h"

static const tn_driver driver = {.struct_size = sizeof driver, .name = "test"};

static tn_device device_of(const char *name, const char *version) {
    tn_device d = {.driver = &driver};
    snprintf(d.info.name, sizeof d.info.name, "%s", name);
    snprintf(d.caps.version, sizeof d.caps.version, "%s", version);
    return d;
}

static tn_code code_of(const char *text) {
    return (tn_code){.format = TN_CODE_OPENCL_C, .data = text, .size = strlen(text), .entry = "k1", .options = "-O2"};
}

/* A cache folder of this test's own. */
static int own_cache(void **state) {
    if (make_scratch(state)) return -1;
    return setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
}

static int drop_cache(void **state) {
    (void)chmod(test_scratch("cache"), 0700);
    (void)chmod(test_scratch("cache/kernels"), 0700);
    tn_kernel_cache_set_limit((int64_t)256 << 20);
    return remove_scratch(state);
}

static bool finds(const tn_device *d, const tn_code *code, const char *expected) {
    void *data = NULL;
    size_t size = 0;
    if (!tn_kernel_cache_find(d, code, &data, &size)) return false;
    bool same = size == strlen(expected) && !memcmp(data, expected, size);
    tn_mem_free(data);
    if (!same) fail_msg("found %zu bytes that are not \"%s\"", size, expected);
    return true;
}

static void keep(const tn_device *d, const tn_code *code, const char *data) {
    tn_kernel_cache_put(d, code, data, strlen(data));
}

/* The path of the n-th entry of the folder, in no order; NULL when there are fewer. Valid until the next call. */
static const char *entry_file(int n) {
    static char path[600];
    DIR *folder = opendir(test_scratch("cache/kernels"));
    const char *found = NULL;
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (!strstr(e->d_name, ".kernel") || n-- > 0) continue;
        snprintf(path, sizeof path, "%s/%s", test_scratch("cache/kernels"), e->d_name);
        found = path;
        break;
    }
    if (folder) closedir(folder);
    return found;
}

static int entry_count(void) {
    int n = 0;
    while (entry_file(n))
        n++;
    return n;
}

static void what_was_kept_is_found(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    tn_code code = code_of("kernel one");
    assert_false(finds(&d, &code, "binary one"));
    keep(&d, &code, "binary one");
    assert_true(finds(&d, &code, "binary one"));
    keep(&d, &code, "binary two"); /* a later one replaces it */
    assert_true(finds(&d, &code, "binary two"));
    tn_kernel_cache_drop(&d, &code);
    assert_false(finds(&d, &code, ""));
}

static void every_part_of_the_key_counts(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0"), newer = device_of("chip", "1.1"), other = device_of("chip 2", "1.0");
    tn_code code = code_of("kernel one"), text = code_of("kernel two"), entry = code, options = code, form = code;
    entry.entry = "k2";
    options.options = "-O1";
    form.format = TN_CODE_CUDA_C;
    keep(&d, &code, "binary");
    assert_false(finds(&newer, &code, ""));
    assert_false(finds(&other, &code, ""));
    assert_false(finds(&d, &text, ""));
    assert_false(finds(&d, &entry, ""));
    assert_false(finds(&d, &options, ""));
    assert_false(finds(&d, &form, ""));
    assert_true(finds(&d, &code, "binary"));
}

/* Flips or cuts the only entry at each of its bytes: none is found, all are removed and can be kept anew. */
static void damaged_entries_are_replaced(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    tn_code code = code_of("kernel");
    keep(&d, &code, "some binary");
    struct stat s;
    assert_int_equal(stat(entry_file(0), &s), 0);
    for (off_t at = 0; at < s.st_size; at++) {
        for (int cut = 0; cut < 2; cut++) {
            const char *path = entry_file(0);
            int fd = open(path, O_RDWR);
            assert_true(fd >= 0);
            char byte;
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= 0x10;
            if (cut)
                assert_int_equal(ftruncate(fd, at), 0);
            else
                assert_int_equal(pwrite(fd, &byte, 1, at), 1);
            close(fd);
            if (finds(&d, &code, "some binary")) fail_msg("%s at byte %d is believed", cut ? "cut" : "change", (int)at);
            assert_null(entry_file(0));
            keep(&d, &code, "some binary");
            assert_true(finds(&d, &code, "some binary"));
        }
    }
}

static void what_others_can_write_is_not_believed(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    tn_code code = code_of("kernel");
    keep(&d, &code, "binary");
    assert_int_equal(chmod(entry_file(0), 0620), 0);
    assert_false(finds(&d, &code, "binary"));
    keep(&d, &code, "binary");
    assert_int_equal(chmod(test_scratch("cache/kernels"), 0777), 0);
    assert_false(finds(&d, &code, "binary"));
    assert_int_equal(chmod(test_scratch("cache/kernels"), 0700), 0);
    assert_true(finds(&d, &code, "binary"));
    assert_int_equal(chmod(test_scratch("cache"), 0770), 0);
    assert_false(finds(&d, &code, "binary"));
    assert_int_equal(chmod(test_scratch("cache"), 0700), 0);
    /* an entry that is a link is removed, what it leads to stays as it was */
    char path[600];
    snprintf(path, sizeof path, "%s", entry_file(0));
    const char *elsewhere = test_scratch("elsewhere");
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_false(finds(&d, &code, "binary"));
    keep(&d, &code, "another binary");
    assert_true(finds(&d, &code, "another binary"));
    struct stat s;
    assert_int_equal(lstat(path, &s), 0);
    assert_true(S_ISREG(s.st_mode));
    assert_int_equal(stat(elsewhere, &s), 0);
}

static void a_wide_file_mask_does_not_matter(void **state) {
    (void)state;
    mode_t before = umask(0);
    tn_device d = device_of("chip", "1.0");
    tn_code code = code_of("kernel");
    keep(&d, &code, "binary");
    umask(before);
    assert_true(finds(&d, &code, "binary"));
}

static void a_folder_that_cannot_be_written_is_harmless(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    tn_code code = code_of("kernel"), other = code_of("other");
    keep(&d, &code, "binary");
    assert_int_equal(chmod(test_scratch("cache/kernels"), 0500), 0);
    assert_true(finds(&d, &code, "binary"));
    keep(&d, &other, "binary");
    if (geteuid() != 0) assert_false(finds(&d, &other, "binary"));
    setenv("TRUNNION_CACHE", "/proc/nowhere", 1);
    assert_false(finds(&d, &code, "binary"));
    keep(&d, &code, "binary");
    FILE *f = fopen(test_scratch("file"), "w");
    assert_non_null(f);
    fclose(f);
    setenv("TRUNNION_CACHE", test_scratch("file"), 1);
    assert_false(finds(&d, &code, "binary"));
    keep(&d, &code, "binary");
}

static void the_oldest_go_when_there_is_no_room(void **state) {
    (void)state;
    enum { BYTES = 4000, ENTRIES = 24 };
    tn_device d = device_of("chip", "1.0");
    char text[32], *data = calloc(1, BYTES);
    assert_non_null(data);
    tn_kernel_cache_set_limit(16 * BYTES);
    for (int i = 0; i < ENTRIES; i++) {
        snprintf(text, sizeof text, "kernel %02d", i);
        tn_code code = code_of(text), first = code_of("kernel 00");
        void *found;
        size_t size;
        tn_kernel_cache_put(&d, &code, data, BYTES);
        if (i) assert_true(tn_kernel_cache_find(&d, &first, &found, &size)); /* used all the time: it stays */
        if (i) tn_mem_free(found);
        usleep(2000); /* of the clock that files are stamped with */
    }
    free(data);
    int left = entry_count();
    assert_true(left < 16 && left > 8);
    tn_code oldest = code_of("kernel 01"), newest = code_of("kernel 23");
    void *found;
    size_t size;
    assert_false(tn_kernel_cache_find(&d, &oldest, &found, &size));
    assert_true(tn_kernel_cache_find(&d, &newest, &found, &size));
    tn_mem_free(found);
    char large[17] = {0}; /* one that would fill it alone is not kept */
    tn_kernel_cache_set_limit(16);
    tn_code huge = code_of("huge");
    tn_kernel_cache_put(&d, &huge, large, sizeof large);
    assert_false(tn_kernel_cache_find(&d, &huge, &found, &size));
}

/* Makes a file that is `age` seconds old; false when it is not there. */
static bool leave_file(const char *name, int age) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", test_scratch("cache/kernels"), name);
    FILE *f = fopen(path, "w");
    if (f) fclose(f);
    struct timespec then[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
    return f && utimensat(AT_FDCWD, path, then, 0) == 0;
}

static bool has_file(const char *name) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", test_scratch("cache/kernels"), name);
    return access(path, F_OK) == 0;
}

static void what_a_killed_process_left_goes_after_an_hour(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    tn_code code = code_of("kernel");
    keep(&d, &code, "data");
    assert_true(leave_file(".0123.kernel.tmp0", 3700) && leave_file(".0123.kernel.tmp1", 3500));
    assert_true(leave_file("notes.tmp0", 9000));
    tn_code another = code_of("another");
    keep(&d, &another, "data");
    assert_false(has_file(".0123.kernel.tmp0"));
    assert_true(has_file(".0123.kernel.tmp1")); /* somebody may be writing it */
    assert_true(has_file("notes.tmp0"));
    assert_int_equal(entry_count() - 1, 2); /* the one that is being written is counted too */
}

/* What a process of its own does: keeps and reads the same entries again and again. Its exit status counts what was
 * neither absent nor whole. */
static int busy_process(int number) {
    tn_device d = device_of("chip", "1.0");
    int wrong = 0;
    for (int i = 0; i < 60; i++) {
        char text[32], data[3000];
        snprintf(text, sizeof text, "kernel %d", i % 5);
        tn_code code = code_of(text);
        memset(data, 'a' + i % 5, sizeof data);
        void *found;
        size_t size;
        if (tn_kernel_cache_find(&d, &code, &found, &size)) {
            wrong += size != sizeof data || memcmp(found, data, size) != 0;
            tn_mem_free(found);
        }
        if ((i + number) % 3 == 0) tn_kernel_cache_put(&d, &code, data, sizeof data);
        if ((i + number) % 17 == 0) tn_kernel_cache_drop(&d, &code);
    }
    return wrong;
}

static void processes_do_not_disturb_each_other(void **state) {
    (void)state;
    enum { PROCESSES = 3 };
    tn_kernel_cache_set_limit(4 * 3500); /* fewer than there are: they remove each other's too */
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(busy_process(i));
        assert_true(children[i] > 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* ---- the list of failed kernels ---------------------------------------------------------------------------------- */

static void failures_are_listed_by_device_version_and_name(void **state) {
    (void)state;
    char why[80];
    tn_device d = device_of("chip", "1.0"), newer = device_of("chip", "1.1"), other = device_of("chip 2", "1.0");
    assert_false(tn_certify_list_has(&d, "softmax", why, sizeof why));
    assert_ok(tn_certify_list_add(&d, "softmax", "row 3:\tnot a\nnumber"));
    assert_true(tn_certify_list_has(&d, "softmax", why, sizeof why));
    assert_string_equal(why, "row 3: not a number");
    assert_ok(tn_certify_list_add(&d, "softmax", "again")); /* it is there: the first reason stays */
    assert_true(tn_certify_list_has(&d, "softmax", why, sizeof why));
    assert_string_equal(why, "row 3: not a number");
    assert_false(tn_certify_list_has(&d, "softma", why, sizeof why));
    assert_false(tn_certify_list_has(&d, "softmax2", why, sizeof why));
    assert_false(tn_certify_list_has(&newer, "softmax", why, sizeof why));
    assert_false(tn_certify_list_has(&other, "softmax", why, sizeof why));
    assert_ok(tn_certify_list_add(&other, "add", "sign"));
    assert_true(tn_certify_list_has(&other, "add", why, sizeof why));
    assert_false(tn_certify_list_has(&d, "add", NULL, 0));
}

static void a_list_that_others_can_write_is_not_believed(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    assert_ok(tn_certify_list_add(&d, "add", "sign"));
    assert_int_equal(chmod(test_scratch("cache/certify.list"), 0666), 0);
    assert_false(tn_certify_list_has(&d, "add", NULL, 0));
    assert_int_equal(chmod(test_scratch("cache/certify.list"), 0600), 0);
    assert_true(tn_certify_list_has(&d, "add", NULL, 0));
}

static void an_unfinished_line_spoils_no_other(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    assert_ok(tn_certify_list_add(&d, "add", "sign"));
    FILE *f = fopen(test_scratch("cache/certify.list"), "a");
    assert_non_null(f);
    fputs("chip\t1.0\tmu", f);
    fclose(f);
    assert_ok(tn_certify_list_add(&d, "exp", "range"));
    assert_true(tn_certify_list_has(&d, "add", NULL, 0));
    assert_true(tn_certify_list_has(&d, "exp", NULL, 0));
    assert_false(tn_certify_list_has(&d, "mul", NULL, 0));
}

static void a_line_forgotten_takes_no_other_along(void **state) {
    (void)state;
    enum { LINES = 60 };
    char name[32];
    tn_device d = device_of("chip", "1.0");
    assert_ok(tn_certify_list_add(&d, "first", "sign"));
    pid_t child = fork();
    if (child == 0) {
        int failed = 0;
        for (int i = 0; i < LINES; i++)
            failed += tn_certify_list_add(&d, "mul", "sign") != TN_OK || tn_certify_list_forget(&d, "mul") != TN_OK;
        _exit(failed);
    }
    for (int i = 0; i < LINES; i++) {
        snprintf(name, sizeof name, "op %d", i);
        assert_ok(tn_certify_list_add(&d, name, "sign"));
        usleep(200);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < LINES; i++) {
        snprintf(name, sizeof name, "op %d", i);
        assert_true(tn_certify_list_has(&d, name, NULL, 0));
    }
    assert_false(tn_certify_list_has(&d, "mul", NULL, 0));
}

static void without_a_folder_adding_fails_with_words(void **state) {
    (void)state;
    tn_device d = device_of("chip", "1.0");
    setenv("TRUNNION_CACHE", "/proc/nowhere", 1);
    assert_int_equal(tn_certify_list_add(&d, "add", "sign"), TN_ERR_IO);
    assert_text_has(tn_error(), "TRUNNION_CACHE");
    assert_false(tn_certify_list_has(&d, "add", NULL, 0));
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, own_cache, drop_cache)
    const struct CMUnitTest tests[] = {
        TEST(what_was_kept_is_found),
        TEST(every_part_of_the_key_counts),
        TEST(damaged_entries_are_replaced),
        TEST(what_others_can_write_is_not_believed),
        TEST(a_wide_file_mask_does_not_matter),
        TEST(a_folder_that_cannot_be_written_is_harmless),
        TEST(the_oldest_go_when_there_is_no_room),
        TEST(what_a_killed_process_left_goes_after_an_hour),
        TEST(a_line_forgotten_takes_no_other_along),
        TEST(processes_do_not_disturb_each_other),
        TEST(failures_are_listed_by_device_version_and_name),
        TEST(a_list_that_others_can_write_is_not_believed),
        TEST(an_unfinished_line_spoils_no_other),
        TEST(without_a_folder_adding_fails_with_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
