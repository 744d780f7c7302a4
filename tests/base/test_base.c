/* test_base.c — promises of src/base: errors, memory, files, processor, shared libraries. JSON and threads have their
 * own programs. Started with --isa it prints the chosen instruction set, for the test that needs a fresh process. */
#include "test_support.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/base.h"

/* ---- errors and text --------------------------------------------------------------------------------------------- */

static void *fail_elsewhere(void *unused) {
    (void)unused;
    tn_fail(TN_ERR_SHAPE, "other thread");
    return NULL;
}

static void error_belongs_to_its_thread(void **state) {
    (void)state;
    assert_int_equal(tn_fail(TN_ERR_IO, "disk %d", 7), TN_ERR_IO);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(tn_error(), "disk 7");
    assert_int_equal(tn_error_code(), TN_ERR_IO);
}

static void error_may_quote_the_one_before(void **state) {
    (void)state;
    tn_fail(TN_ERR_IO, "inner");
    tn_fail(TN_ERR_FORMAT, "outer (%s)", tn_error());
    assert_string_equal(tn_error(), "outer (inner)");
    assert_int_equal(tn_fail_prefix(TN_ERR_DEVICE, "device %d", 2), TN_ERR_DEVICE);
    assert_string_equal(tn_error(), "device 2: outer (inner)");
    assert_int_equal(tn_error_code(), TN_ERR_DEVICE);
}

static void a_device_is_named_once(void **state) {
    (void)state;
    (void)tn_fail(TN_ERR_DEVICE, "chip:0: it gives error 7");
    (void)tn_fail_prefix(TN_ERR_DEVICE, "chip:0: kernel k1");
    assert_string_equal(tn_error(), "chip:0: kernel k1: it gives error 7");
    (void)tn_fail_prefix(TN_ERR_DEVICE, "chip: line 3");
    assert_string_equal(tn_error(), "chip: line 3: chip:0: kernel k1: it gives error 7");
}

static void long_error_is_cut_between_characters(void **state) {
    (void)state;
    char text[6000];
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "\xC3\xA9", 2);
    text[sizeof text - 2] = '\0';
    for (size_t shift = 0; shift < 2; shift++) {
        tn_fail(TN_ERR_IO, "%.*s%s", (int)shift, "x", text);
        size_t n = strlen(tn_error());
        assert_in_range(n, 4000, 4095);
        assert_int_equal((n - shift) % 2, 0);
    }
    tn_fail_prefix(TN_ERR_IO, "%s", text);
    assert_in_range(strlen(tn_error()), 4000, 4095);
}

static void error_needs_no_memory(void **state) {
    (void)state;
    tn_mem_stats before = tn_mem_get_stats();
    tn_fail(TN_ERR_IO, "%s", "words");
    tn_fail_prefix(TN_ERR_IO, "more");
    assert_int_equal(tn_mem_get_stats().calls, before.calls);
}

static void every_status_has_a_name(void **state) {
    (void)state;
    for (int s = TN_OK; s <= TN_ERR_INTERNAL; s++) {
        assert_non_null(tn_status_name((tn_status)s));
        assert_string_not_equal(tn_status_name((tn_status)s), "unknown status");
    }
    assert_string_equal(tn_status_name((tn_status)999), "unknown status");
    assert_string_equal(tn_status_name((tn_status)-1), "unknown status");
    for (int r = TN_REASON_NONE; r <= TN_REASON_NOT_ASKED; r++) {
        assert_string_not_equal(tn_reason_code_name((tn_reason_code)r), "unknown");
    }
}

static void version_is_that_of_the_header(void **state) {
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", TN_VERSION_MAJOR, TN_VERSION_MINOR, TN_VERSION_PATCH);
    assert_string_equal(tn_version(), text);
}

static void every_dtype_has_a_row(void **state) {
    (void)state;
    for (int t = 0; t < TN_DTYPE_COUNT; t++) {
        int64_t block = tn_dtype_block((tn_dtype)t);
        assert_in_range(tn_dtype_size((tn_dtype)t), 1, block == 1 ? 8 : block * 5 / 4);
        assert_int_equal(tn_dtype_bytes((tn_dtype)t, 3 * block), 3 * tn_dtype_size((tn_dtype)t));
        assert_string_not_equal(tn_dtype_name((tn_dtype)t), "invalid");
    }
    assert_int_equal(tn_dtype_size(TN_BF16), 2);
    assert_true(tn_dtype_is_float(TN_BF16));
    assert_false(tn_dtype_is_float(TN_U64));
    assert_false(tn_dtype_is_float(TN_Q4_0)); /* has no gradients */
    assert_int_equal(tn_dtype_block(TN_Q6_K), 256);
    assert_int_equal(tn_dtype_block((tn_dtype)-1), 1);
    assert_string_equal(tn_dtype_name(TN_DTYPE_COUNT), "invalid");
    assert_int_equal(tn_dtype_size((tn_dtype)-1), 0);
}

static void string_stays_whole_when_memory_fails(void **state) {
    (void)state;
    tn_str s = {0};
    assert_string_equal(tn_str_text(&s), "");
    tn_str_add(&s, "%s-%d", "abc", 5);
    tn_mem_fail_at(1);
    tn_str_add(&s, "%0500d", 1);
    tn_mem_fail_at(0);
    tn_str_add(&s, "later");
    assert_true(s.failed);
    assert_string_equal(tn_str_text(&s), "abc-5");
    tn_str_free(&s);
    tn_str_add(&s, "%0500d", 1);
    tn_str_addn(&s, "\0z", 2);
    assert_int_equal(s.length, 502);
    assert_false(s.failed);
    tn_str_free(&s);
}

/* The values come from a second implementation, on Python's unbounded integers. */
static void hash_is_the_same_on_every_machine(void **state) {
    (void)state;
    assert_int_equal(tn_hash64("", 0, 0), 0xE220A8397B1DCDAF);
    assert_int_equal(tn_hash64("trunnion", 8, 0), 0xA83C61C673538CAB);
    assert_int_equal(tn_hash64("the quick brown fox", 19, 42), 0xBDD91D32A4B5E6D6);
}

/* Every bit of the input reaches about half of the 64 bits of the hash; zeros of different length differ. */
static void hash_spreads_every_bit(void **state) {
    (void)state;
    unsigned char bytes[29] = {0};
    for (size_t n = 1; n <= sizeof bytes; n++) {
        uint64_t plain = tn_hash64(bytes, n, 1);
        assert_true(plain != tn_hash64(bytes, n - 1, 1));
        for (size_t bit = 0; bit < 8 * n; bit++) {
            bytes[bit / 8] = (unsigned char)(1u << bit % 8);
            int changed = __builtin_popcountll(plain ^ tn_hash64(bytes, n, 1));
            assert_in_range(changed, 10, 54);
            bytes[bit / 8] = 0;
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void blocks_are_aligned_and_counted(void **state) {
    (void)state;
    tn_mem_stats before = tn_mem_get_stats();
    void *blocks[64];
    for (size_t i = 0; i < TN_COUNT(blocks); i++) {
        blocks[i] = tn_mem_alloc(i * 7);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 64, 0);
        memset(blocks[i], 0xAA, i * 7);
    }
    tn_mem_stats with = tn_mem_get_stats();
    assert_int_equal(with.live_blocks - before.live_blocks, 64);
    assert_int_equal(with.live_bytes - before.live_bytes, 7 * 64 * 63 / 2);
    assert_int_equal(with.calls - before.calls, 64);
    assert_true(with.peak_bytes >= with.live_bytes);
    for (size_t i = 0; i < TN_COUNT(blocks); i++)
        tn_mem_free(blocks[i]);
    tn_mem_free(NULL);
    tn_mem_stats after = tn_mem_get_stats();
    assert_int_equal(after.live_blocks, before.live_blocks);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

static void nth_allocation_fails_and_only_that(void **state) {
    (void)state;
    tn_mem_fail_at(3);
    void *a = tn_mem_alloc(1);
    void *b = tn_mem_zalloc(1, 1);
    void *c = tn_mem_alloc(1);
    void *d = tn_mem_alloc(1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_non_null(d);
    assert_int_equal(tn_error_code(), TN_ERR_MEMORY);
    tn_mem_free(a);
    tn_mem_free(b);
    tn_mem_free(d);
}

static void impossible_sizes_are_errors(void **state) {
    (void)state;
    tn_mem_stats before = tn_mem_get_stats();
    assert_null(tn_mem_alloc(SIZE_MAX));
    assert_null(tn_mem_alloc(PTRDIFF_MAX));
    assert_null(tn_mem_zalloc(SIZE_MAX / 2, 3));
    assert_int_equal(tn_error_code(), TN_ERR_MEMORY);
    int64_t *items = NULL;
    size_t capacity = 0;
    assert_int_equal(tn_mem_grow(&items, &capacity, SIZE_MAX / 4, sizeof *items), TN_ERR_MEMORY);
    assert_null(items);
    assert_int_equal(capacity, 0);
    assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
    int64_t out;
    assert_true(tn_mul_overflow(INT64_MAX, 2, &out));
    assert_false(tn_mul_overflow(1 << 20, 1 << 20, &out));
    assert_true(tn_add_overflow(INT64_MIN, -1, &out));
}

static void growing_keeps_content_and_survives_failure(void **state) {
    (void)state;
    int *items = NULL;
    size_t capacity = 0;
    for (size_t i = 0; i < 1000; i++) {
        assert_ok(tn_mem_grow(&items, &capacity, i + 1, sizeof *items));
        items[i] = (int)i;
    }
    tn_mem_fail_at(1);
    assert_int_equal(tn_mem_grow(&items, &capacity, capacity + 1, sizeof *items), TN_ERR_MEMORY);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(items[i], i);
    tn_mem_fail_at(1);
    assert_null(tn_mem_realloc(items, 10));
    assert_int_equal(items[999], 999);
    items = tn_mem_realloc(items, 2 * sizeof *items);
    assert_int_equal(items[1], 1);
    tn_mem_free(items);
    char *zeros = tn_mem_zalloc(100, 10);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(zeros[i], 0);
    tn_mem_free(zeros);
    char *copy = tn_mem_strdup("copy");
    assert_string_equal(copy, "copy");
    tn_mem_free(copy);
}

/* ---- reading files ----------------------------------------------------------------------------------------------- */

static void map_shows_the_file(void **state) {
    (void)state;
    tn_map m;
    write_file(test_scratch("mapped"), "some bytes");
    assert_ok(tn_map_open(test_scratch("mapped"), &m));
    assert_int_equal(m.size, 10);
    assert_memory_equal(m.data, "some bytes", 10);
    tn_map_close(&m);
    assert_null(m.data);
    tn_map_close(&m);
    write_file(test_scratch("empty"), "");
    assert_ok(tn_map_open(test_scratch("empty"), &m));
    assert_int_equal(m.size, 0);
    tn_map_close(&m);
}

static void what_is_no_regular_file_is_refused(void **state) {
    (void)state;
    tn_map m;
    FILE *f;
    char *data;
    size_t size;
    assert_int_equal(mkfifo(test_scratch("pipe"), 0600), 0);
    const char *paths[] = {scratch_folder, test_scratch("pipe"), "/dev/zero", test_scratch("absent"), ""};
    alarm(20); /* opening a pipe could wait for ever */
    for (size_t i = 0; i < TN_COUNT(paths); i++) {
        assert_int_equal(tn_map_open(paths[i], &m), TN_ERR_IO);
        assert_text_has(tn_error(), paths[i]);
        assert_null(m.data);
        assert_int_equal(tn_file_read(paths[i], &data, &size, 100), TN_ERR_IO);
        assert_text_has(tn_error(), paths[i]);
        assert_int_equal(tn_file_open(paths[i], &f), TN_ERR_IO);
        assert_text_has(tn_error(), paths[i]);
        assert_null(f);
    }
    alarm(0);
    assert_ok(tn_file_open(test_scratch("empty"), &f));
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void reading_stops_at_the_limit(void **state) {
    (void)state;
    char *data;
    size_t size;
    write_file(test_scratch("ten"), "0123456789");
    assert_ok(tn_file_read(test_scratch("ten"), &data, &size, 10));
    assert_string_equal(data, "0123456789");
    assert_int_equal(size, 10);
    tn_mem_free(data);
    assert_int_equal(tn_file_read(test_scratch("ten"), &data, &size, 9), TN_ERR_FORMAT);
    assert_null(data);
    assert_int_equal(tn_file_read("/proc/self/status", &data, &size, 100), TN_ERR_FORMAT);
    assert_int_equal(tn_file_read(scratch_folder, &data, &size, 100), TN_ERR_IO);
    assert_ok(tn_file_read(test_scratch("ten"), &data, &size, SIZE_MAX));
    tn_mem_free(data);
}

static void files_that_claim_no_size_are_read_whole(void **state) {
    (void)state;
    char *data;
    size_t size;
    assert_ok(tn_file_read("/proc/self/status", &data, &size, 1 << 20));
    assert_text_has(data, "Threads:");
    assert_int_equal(strlen(data), size);
    tn_mem_free(data);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static int count_temporaries(void) {
    DIR *folder = opendir(scratch_folder);
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += strstr(entry->d_name, ".tmp") != NULL;
    closedir(folder);
    return count;
}

static tn_status save_text(const char *path, const char *text) {
    tn_save *s;
    TRY(tn_save_begin(path, &s));
    tn_status status = tn_save_write(s, text, strlen(text));
    if (status == TN_OK) return tn_save_commit(s);
    tn_save_abandon(s);
    return status;
}

static void assert_file_is(const char *path, const char *text) {
    char *data;
    size_t size;
    assert_ok(tn_file_read(path, &data, &size, 1 << 20));
    assert_string_equal(data, text);
    tn_mem_free(data);
}

static void save_replaces_the_file_and_keeps_its_mode(void **state) {
    (void)state;
    const char *path = test_scratch("saved");
    assert_ok(save_text(path, "one"));
    assert_int_equal(chmod(path, 0640), 0);
    assert_ok(save_text(path, "two"));
    assert_file_is(path, "two");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0640);
    assert_int_equal(count_temporaries(), 0);
}

static void save_works_beside_the_current_folder(void **state) {
    (void)state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch_folder), 0);
    assert_ok(save_text("plain-name", "here"));
    assert_file_is("plain-name", "here");
    assert_int_equal(chdir(before), 0);
}

static void save_follows_links_and_refuses_devices(void **state) {
    (void)state;
    const char *link = test_scratch("link");
    assert_ok(save_text(test_scratch("behind"), "old"));
    assert_int_equal(symlink("behind", link), 0);
    assert_ok(save_text(link, "new"));
    assert_file_is(test_scratch("behind"), "new");
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(save_text("/dev/null", "x"), TN_ERR_IO);
    assert_int_equal(save_text(scratch_folder, "x"), TN_ERR_IO);
    assert_int_equal(save_text(test_scratch("no-folder/x"), "x"), TN_ERR_IO);
    assert_int_equal(save_text("", "x"), TN_ERR_ARGUMENT);
}

static void abandoned_save_leaves_the_old_file(void **state) {
    (void)state;
    const char *path = test_scratch("kept");
    assert_ok(save_text(path, "old"));
    tn_save *s;
    assert_ok(tn_save_begin(path, &s));
    assert_ok(tn_save_write(s, "new", 3));
    tn_save_abandon(s);
    tn_save_abandon(NULL);
    assert_file_is(path, "old");
    assert_int_equal(count_temporaries(), 0);
}

static void full_disk_is_reported_and_leaves_the_old_file(void **state) {
    (void)state;
    static char block[1 << 20];
    const char *path = test_scratch("big");
    assert_ok(save_text(path, "old"));
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 100000;
    setrlimit(RLIMIT_FSIZE, &limit);
    tn_save *s;
    assert_ok(tn_save_begin(path, &s));
    assert_int_equal(tn_save_write(s, block, sizeof block), TN_ERR_IO);
    assert_text_has(tn_error(), path);
    assert_int_equal(tn_save_write(s, block, 1), TN_ERR_IO);
    assert_int_equal(tn_save_commit(s), TN_ERR_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_file_is(path, "old");
    assert_int_equal(count_temporaries(), 0);
}

static void save_is_clean_when_any_allocation_fails(void **state) {
    (void)state;
    const char *path = test_scratch("unlucky");
    assert_ok(save_text(path, "old"));
    tn_mem_stats before = tn_mem_get_stats();
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_mem_fail_at(n);
        status = save_text(path, "new");
        bool failed = status == TN_ERR_MEMORY;
        tn_mem_fail_at(0);
        assert_true(failed || status == TN_OK);
        assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
        assert_int_equal(count_temporaries(), 0);
        assert_file_is(path, failed ? "old" : "new");
        assert_in_range(n, 1, 100);
    }
}

/* A file that shows whether it is whole: its length, then words that follow from it. */
static tn_status save_checkable(const char *path, uint64_t words) {
    tn_save *s;
    TRY(tn_save_begin(path, &s));
    tn_status status = tn_save_write(s, &words, sizeof words);
    for (uint64_t i = 0; i < words && status == TN_OK; i++) {
        uint64_t word = tn_hash64(&i, sizeof i, words);
        status = tn_save_write(s, &word, sizeof word);
    }
    if (status == TN_OK) return tn_save_commit(s);
    tn_save_abandon(s);
    return status;
}

static void assert_whole(const char *path) {
    char *data;
    size_t size;
    assert_ok(tn_file_read(path, &data, &size, 1 << 26));
    uint64_t words;
    assert_true(size >= sizeof words);
    memcpy(&words, data, sizeof words);
    assert_int_equal(size, (words + 1) * sizeof words);
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, data + (i + 1) * sizeof word, sizeof word);
        assert_int_equal(word, tn_hash64(&i, sizeof i, words));
    }
    tn_mem_free(data);
}

static pid_t start_saver(const char *path, int saves) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    for (uint64_t k = 0; saves < 0 || k < (uint64_t)saves; k++) {
        if (save_checkable(path, 1000 + k * 7919 % 60000) != TN_OK) _exit(1);
    }
    _exit(0);
}

static void save_survives_kill_at_any_moment(void **state) {
    (void)state;
    const char *path = test_scratch("checkpoint");
    assert_ok(save_checkable(path, 10));
    int interrupted = 0;
    for (useconds_t i = 0; i < 200; i++) {
        pid_t child = start_saver(path, -1);
        usleep(i * 37 % 6000);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_whole(path);
        int left = count_temporaries();
        assert_in_range(left, 0, 1); /* what one kill leaves, the next save removes */
        interrupted += left;
    }
    print_message("%d of 200 kills came in the middle of a save\n", interrupted);
    assert_true(interrupted > 0);
    assert_ok(save_checkable(path, 10));
    assert_int_equal(count_temporaries(), 0);
}

static void discard_and_end(int number) {
    tn_discard_saves();
    _exit(128 + number);
}

/* A child that makes temporary files all the time, so that most signals come while one is made. */
static pid_t start_beginner(const char *path) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    signal(SIGTERM, discard_and_end);
    for (tn_save *s; tn_save_begin(path, &s) == TN_OK;)
        tn_save_abandon(s);
    _exit(1);
}

static void discarded_saves_leave_nothing_at_any_moment(void **state) {
    (void)state;
    const char *path = test_scratch("discarded");
    for (useconds_t i = 0; i < 200; i++) {
        pid_t child = start_beginner(path);
        usleep(2000 + i * 37 % 2000);
        assert_int_equal(kill(child, SIGTERM), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) continue; /* before it had a handler */
        assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
        assert_int_equal(count_temporaries(), 0);
    }
}

static void saves_of_one_file_do_not_mix(void **state) {
    (void)state;
    const char *path = test_scratch("shared");
    pid_t children[4];
    for (size_t i = 0; i < TN_COUNT(children); i++)
        children[i] = start_saver(path, 25);
    for (size_t i = 0; i < TN_COUNT(children); i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_whole(path);
    assert_int_equal(count_temporaries(), 0);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static void folders_are_made_with_their_parents(void **state) {
    (void)state;
    const char *path = test_scratch("a/b//c/");
    assert_ok(tn_make_dirs(path, 0700));
    assert_ok(tn_make_dirs(path, 0700));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    write_file(test_scratch("file"), "");
    assert_int_equal(tn_make_dirs(test_scratch("file/x"), 0700), TN_ERR_IO);
    assert_int_equal(tn_make_dirs("", 0700), TN_ERR_ARGUMENT);
}

static void cache_folder_follows_the_environment(void **state) {
    (void)state;
    char out[512];
    setenv("HOME", scratch_folder, 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("TRUNNION_CACHE");
    assert_ok(tn_cache_dir(out, sizeof out));
    assert_string_equal(out, test_scratch(".cache/trunnion"));
    setenv("XDG_CACHE_HOME", "relative", 1);
    assert_ok(tn_cache_dir(out, sizeof out));
    assert_string_equal(out, test_scratch(".cache/trunnion"));
    setenv("XDG_CACHE_HOME", test_scratch("xdg"), 1);
    assert_ok(tn_cache_dir(out, sizeof out));
    assert_string_equal(out, test_scratch("xdg/trunnion"));
    setenv("TRUNNION_CACHE", test_scratch("own"), 1);
    assert_ok(tn_cache_dir(out, sizeof out));
    assert_string_equal(out, test_scratch("own"));
    assert_int_equal(tn_cache_dir(out, 5), TN_ERR_IO);
    setenv("TRUNNION_CACHE", "", 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_null(tn_env("TRUNNION_CACHE"));
    assert_int_equal(tn_cache_dir(out, sizeof out), TN_ERR_IO);
    assert_text_has(tn_error(), "TRUNNION_CACHE");
}

static void wrong_values_of_variables_count_as_unset(void **state) {
    (void)state;
    static const char *const words[] = {"one", "two", NULL};
    setenv("TRUNNION_EXAMPLE", "two", 1);
    assert_int_equal(tn_env_word("TRUNNION_EXAMPLE", words), 1);
    setenv("TRUNNION_EXAMPLE", "three", 1);
    assert_int_equal(tn_env_word("TRUNNION_EXAMPLE", words), -1);
    assert_true(tn_env_switch("TRUNNION_EXAMPLE", true) && !tn_env_switch("TRUNNION_TEST", false));
    setenv("TRUNNION_EXAMPLE", "0", 1);
    assert_false(tn_env_switch("TRUNNION_EXAMPLE", true));
    setenv("TRUNNION_EXAMPLE", "", 1);
    assert_int_equal(tn_env_word("TRUNNION_EXAMPLE", words), -1);
    static const struct {
        const char *text;
        int number;
    } rows[] = {{"1", 1}, {"600", 600}, {"0", 5}, {"-3", 5}, {"601", 5}, {"7x", 5}, {"99999999999999999999", 5}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        setenv("TRUNNION_EXAMPLE", rows[i].text, 1);
        assert_int_equal(tn_env_int("TRUNNION_EXAMPLE", 1, 600, 5), rows[i].number);
    }
    unsetenv("TRUNNION_EXAMPLE");
}

static void clock_goes_forward(void **state) {
    (void)state;
    double start = tn_now();
    usleep(2000);
    double waited = tn_now() - start;
    assert_true(waited >= 0.002 && waited < 10);
}

/* ---- processor --------------------------------------------------------------------------------------------------- */

static void free_memory_is_within_the_address_space(void **state) {
    (void)state;
    enum { ROOM = 64 << 20 };
    pid_t child = fork();
    if (child == 0) {
        long long pages = 0;
        FILE *f = fopen("/proc/self/statm", "r");
        bool known = f && fscanf(f, "%lld", &pages) == 1;
        rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ROOM;
        known = known && setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0;
        _exit(known && tn_host_memory_now().unused <= ROOM ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void processor_is_described(void **state) {
    (void)state;
    tn_cpu_info info = tn_cpu();
    print_message("%s: %s, %d cores, %d threads\n", info.name, tn_isa_name(info.isa), info.cores, info.usable_threads);
    assert_true(strlen(info.name) > 0);
    assert_in_range(info.cores, 1, sysconf(_SC_NPROCESSORS_CONF));
    assert_in_range(info.usable_threads, 1, info.cores);
    assert_in_range(info.l1d, 4 << 10, 1 << 20);
    assert_true(info.l2 >= info.l1d && info.l3 > 0);
    tn_host_memory memory = tn_host_memory_now();
    assert_true(memory.total > 1 << 20);
    assert_in_range(memory.unused, 1, memory.total);
    assert_string_equal(tn_isa_name(TN_ISA_COUNT), "unknown");
}

/* The first line that this program prints in a process of its own with TRUNNION_ISA set. */
static void run_with_isa(const char *wanted, char *out, int size) {
    char self[4096], command[5000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    snprintf(command, sizeof command, "TRUNNION_LOG=0 TRUNNION_ISA=%s '%s' --isa", wanted, self);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, size, f));
    assert_int_equal(pclose(f), 0);
    out[strcspn(out, "\n")] = '\0';
}

static void environment_lowers_the_instruction_set_only(void **state) {
    (void)state;
    tn_isa best = tn_cpu().isa;
    char line[64];
    for (int i = 0; i < TN_ISA_COUNT; i++) {
        run_with_isa(tn_isa_name((tn_isa)i), line, sizeof line);
        assert_string_equal(line, tn_isa_name(i < (int)best ? (tn_isa)i : best));
    }
    run_with_isa("nonsense", line, sizeof line);
    assert_string_equal(line, tn_isa_name(best));
}

static void write_group_file(const char *path, const char *content) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s", test_scratch(path));
    *strrchr(folder, '/') = '\0';
    assert_ok(tn_make_dirs(folder, 0700));
    write_file(test_scratch(path), content);
}

static void tightest_group_limit_counts(void **state) {
    (void)state;
    write_group_file("v2/proc/self/cgroup", "0::/slice/service\n");
    write_group_file("v2/sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
    write_group_file("v2/sys/fs/cgroup/slice/service/cpu.max", "max 100000\n");
    write_group_file("v2/sys/fs/cgroup/slice/memory.max", "1000000000\n");
    write_group_file("v2/sys/fs/cgroup/slice/memory.current", "400000000\n");
    write_group_file("v2/sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 100000000\nactive_file 5\n");
    write_group_file("v2/sys/fs/cgroup/slice/service/memory.max", "max\n");
    tn_cgroup_limits limits = tn_cgroup_read(test_scratch("v2"));
    assert_true(limits.processors == 2.5);
    assert_int_equal(limits.memory, 1000000000);
    assert_int_equal(limits.memory_free, 700000000);
}

static void group_limits_of_version_1_count(void **state) {
    (void)state;
    write_group_file("v1/proc/self/cgroup", "3:cpu,cpuacct:/job\n2:memory:/job\n1:name=systemd:/job\n");
    write_group_file("v1/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
    write_group_file("v1/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    write_group_file("v1/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    write_group_file("v1/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    tn_cgroup_limits limits = tn_cgroup_read(test_scratch("v1"));
    assert_true(limits.processors == 0.5);
    assert_int_equal(limits.memory, 0);
    write_group_file("v1/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000\n");
    write_group_file("v1/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "600000\n");
    limits = tn_cgroup_read(test_scratch("v1"));
    assert_int_equal(limits.memory, 500000);
    assert_int_equal(limits.memory_free, 0);
}

static void group_named_from_outside_the_container_uses_the_mount_point(void **state) {
    (void)state;
    write_group_file("box/proc/self/cgroup", "0::/../../pods/abc\n");
    write_group_file("box/sys/fs/cgroup/cpu.max", "300000 100000\n");
    assert_true(tn_cgroup_read(test_scratch("box")).processors == 3);
    write_group_file("box/proc/self/cgroup", "0::/docker/0123456789\n");
    assert_true(tn_cgroup_read(test_scratch("box")).processors == 3);
    write_group_file("box/proc/self/cgroup", "0::/\n");
    assert_true(tn_cgroup_read(test_scratch("box")).processors == 3);
    assert_true(tn_cgroup_read(test_scratch("nowhere")).processors == 0);
}

/* ---- shared libraries -------------------------------------------------------------------------------------------- */

static void *first_symbol, *second_symbol;

static tn_library_spec spec_of(const char *const *names, const tn_symbol *symbols, size_t count) {
    return (tn_library_spec){.title = "test library",
                             .env = "TEST_TRUNNION_LIBRARY",
                             .names = names,
                             .symbols = symbols,
                             .symbol_count = count,
                             .fix = "install it"};
}

static void library_opens_with_its_symbols(void **state) {
    (void)state;
    const char *names[] = {"libtrunnion-does-not-exist.so.1", "libm.so.6", NULL};
    const tn_symbol symbols[] = {{"cos", &first_symbol, false}, {"no_such_function", &second_symbol, true}};
    tn_library_spec spec = spec_of(names, symbols, 2);
    tn_reason why;
    second_symbol = &second_symbol;
    assert_non_null(tn_library_open(&spec, &why));
    assert_int_equal(why.code, TN_REASON_NONE);
    assert_non_null(first_symbol);
    assert_null(second_symbol);
}

static void absent_library_names_all_that_was_tried(void **state) {
    (void)state;
    const char *names[] = {"libtrunnion-a.so.1", "libtrunnion-b.so.*", "/nowhere/libtrunnion-c.so",
                           "site-packages/trunnion-d/lib.so", NULL};
    tn_library_spec spec = spec_of(names, NULL, 0);
    tn_reason why;
    char path[256];
    assert_null(tn_library_open(&spec, &why));
    assert_int_equal(why.code, TN_REASON_LIBRARY_NOT_FOUND);
    for (size_t i = 0; names[i] != NULL; i++)
        assert_text_has(why.text, names[i]);
    assert_string_equal(why.fix, "install it");
    assert_false(tn_library_locate(&spec, path, sizeof path));
}

static void missing_symbol_is_named_with_its_file(void **state) {
    (void)state;
    const char *names[] = {"libm.so.6", NULL};
    const tn_symbol symbols[] = {{"cos", &first_symbol, false}, {"no_such_function", &second_symbol, false}};
    tn_library_spec spec = spec_of(names, symbols, 2);
    tn_reason why;
    assert_null(tn_library_open(&spec, &why));
    assert_int_equal(why.code, TN_REASON_SYMBOL_MISSING);
    assert_text_has(why.text, "no_such_function");
    assert_text_has(why.text, "/libm.so.6");
    assert_null(first_symbol);
}

static void file_that_is_no_library_is_explained(void **state) {
    (void)state;
    const char *names[] = {"libm.so.6", NULL};
    tn_library_spec spec = spec_of(names, NULL, 0);
    tn_reason why;
    write_file(test_scratch("libbroken.so"), "this is only text, and long enough for a header");
    setenv("TEST_TRUNNION_LIBRARY", test_scratch("libbroken.so"), 1);
    assert_null(tn_library_open(&spec, &why));
    assert_int_equal(why.code, TN_REASON_INIT_FAILED);
    assert_text_has(why.text, "libbroken.so");
    setenv("TEST_TRUNNION_LIBRARY", test_scratch("libabsent.so"), 1);
    assert_null(tn_library_open(&spec, &why));
    assert_int_equal(why.code, TN_REASON_LIBRARY_NOT_FOUND);
    assert_text_has(why.text, "TEST_TRUNNION_LIBRARY");
    unsetenv("TEST_TRUNNION_LIBRARY");
}

/* Builds libname from one line of C; skips the test where there is no compiler. */
static void build_library(const char *name, const char *source, const char *flags) {
    char command[2048];
    snprintf(command, sizeof command, "cd '%s' && echo '%s' > x.c && ${CC:-cc} -shared -fPIC -o %s x.c %s 2>/dev/null",
             scratch_folder, source, name, flags);
    if (system(command) != 0) skip();
}

static void highest_version_is_taken_and_located_without_loading(void **state) {
    (void)state;
    const char *names[] = {"libversioned.so.*", NULL};
    const tn_symbol symbols[] = {{"version_number", &first_symbol, false}};
    tn_library_spec spec = spec_of(names, symbols, 1);
    build_library("libversioned.so.9", "int version_number(void) { return 9; }", "");
    build_library("libversioned.so.12", "int version_number(void) { return 12; }", "");
    write_file(test_scratch("libversioned.so.99"), "GROUP ( a text for the static linker )");
    char before[4096], path[512];
    snprintf(before, sizeof before, "%s", getenv("LD_LIBRARY_PATH") != NULL ? getenv("LD_LIBRARY_PATH") : "");
    setenv("LD_LIBRARY_PATH", scratch_folder, 1);
    assert_true(tn_library_locate(&spec, path, sizeof path));
    assert_string_equal(path, test_scratch("libversioned.so.12"));
    assert_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
    assert_false(tn_library_locate(&spec, path, 8));
    tn_reason why;
    assert_non_null(tn_library_open(&spec, &why));
    setenv("LD_LIBRARY_PATH", before, 1);
    int (*version_number)(void);
    memcpy(&version_number, &first_symbol, sizeof version_number);
    assert_int_equal(version_number(), 12);
    assert_null(tn_library_open(&spec, &why));
    setenv("TEST_TRUNNION_LIBRARY", scratch_folder, 1);
    assert_non_null(tn_library_open(&spec, &why));
    assert_true(tn_library_locate(&spec, path, sizeof path));
    assert_string_equal(path, test_scratch("libversioned.so.12"));
    unsetenv("TEST_TRUNNION_LIBRARY");
}

static void missing_dependency_is_named(void **state) {
    (void)state;
    build_library("libneeded.so", "int needed(void) { return 1; }", "");
    build_library("libneeds.so", "int needed(void); int outer(void) { return needed(); }", "-L. -lneeded");
    assert_int_equal(unlink(test_scratch("libneeded.so")), 0);
    const char *names[] = {test_scratch("libneeds.so"), NULL};
    tn_library_spec spec = spec_of(names, NULL, 0);
    tn_reason why;
    assert_null(tn_library_open(&spec, &why));
    assert_int_equal(why.code, TN_REASON_LIBRARY_NOT_FOUND);
    assert_text_has(why.text, "libneeded.so");
}

static void python_packages_are_searched(void **state) {
    (void)state;
    assert_ok(tn_make_dirs(test_scratch("venv/lib/python3.11/site-packages/pkg"), 0700));
    build_library("venv/lib/python3.11/site-packages/pkg/libpkg.so.3", "int pkg(void) { return 3; }", "");
    setenv("VIRTUAL_ENV", test_scratch("venv"), 1);
    const char *names[] = {"site-packages/pkg/libpkg.so*", NULL};
    tn_library_spec spec = spec_of(names, NULL, 0);
    char path[512];
    assert_true(tn_library_locate(&spec, path, sizeof path));
    assert_text_has(path, "python3.11/site-packages/pkg/libpkg.so.3");
    unsetenv("VIRTUAL_ENV");
}

static void opening_is_clean_when_any_allocation_fails(void **state) {
    (void)state;
    const char *names[] = {"libtrunnion-b.so.*", "site-packages/trunnion-d/lib.so", "libm.so.6", NULL};
    tn_library_spec spec = spec_of(names, NULL, 0);
    tn_mem_stats before = tn_mem_get_stats();
    for (int64_t n = 1; n < 40; n++) {
        tn_reason why;
        tn_mem_fail_at(n);
        void *handle = tn_library_open(&spec, &why);
        tn_mem_fail_at(0);
        assert_non_null(handle);
        assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--isa") == 0) {
        puts(tn_isa_name(tn_cpu().isa));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_belongs_to_its_thread),
        cmocka_unit_test(error_may_quote_the_one_before),
        cmocka_unit_test(a_device_is_named_once),
        cmocka_unit_test(long_error_is_cut_between_characters),
        cmocka_unit_test(error_needs_no_memory),
        cmocka_unit_test(every_status_has_a_name),
        cmocka_unit_test(version_is_that_of_the_header),
        cmocka_unit_test(every_dtype_has_a_row),
        cmocka_unit_test(string_stays_whole_when_memory_fails),
        cmocka_unit_test(hash_is_the_same_on_every_machine),
        cmocka_unit_test(hash_spreads_every_bit),
        cmocka_unit_test(blocks_are_aligned_and_counted),
        cmocka_unit_test(nth_allocation_fails_and_only_that),
        cmocka_unit_test(impossible_sizes_are_errors),
        cmocka_unit_test(growing_keeps_content_and_survives_failure),
        cmocka_unit_test(map_shows_the_file),
        cmocka_unit_test(what_is_no_regular_file_is_refused),
        cmocka_unit_test(reading_stops_at_the_limit),
        cmocka_unit_test(files_that_claim_no_size_are_read_whole),
        cmocka_unit_test(save_replaces_the_file_and_keeps_its_mode),
        cmocka_unit_test(save_works_beside_the_current_folder),
        cmocka_unit_test(save_follows_links_and_refuses_devices),
        cmocka_unit_test(abandoned_save_leaves_the_old_file),
        cmocka_unit_test(full_disk_is_reported_and_leaves_the_old_file),
        cmocka_unit_test(save_is_clean_when_any_allocation_fails),
        cmocka_unit_test(save_survives_kill_at_any_moment),
        cmocka_unit_test(discarded_saves_leave_nothing_at_any_moment),
        cmocka_unit_test(saves_of_one_file_do_not_mix),
        cmocka_unit_test(folders_are_made_with_their_parents),
        cmocka_unit_test(cache_folder_follows_the_environment),
        cmocka_unit_test(clock_goes_forward),
        cmocka_unit_test(wrong_values_of_variables_count_as_unset),
        cmocka_unit_test(processor_is_described),
        cmocka_unit_test(free_memory_is_within_the_address_space),
        cmocka_unit_test(environment_lowers_the_instruction_set_only),
        cmocka_unit_test(tightest_group_limit_counts),
        cmocka_unit_test(group_limits_of_version_1_count),
        cmocka_unit_test(group_named_from_outside_the_container_uses_the_mount_point),
        cmocka_unit_test(library_opens_with_its_symbols),
        cmocka_unit_test(absent_library_names_all_that_was_tried),
        cmocka_unit_test(missing_symbol_is_named_with_its_file),
        cmocka_unit_test(file_that_is_no_library_is_explained),
        cmocka_unit_test(highest_version_is_taken_and_located_without_loading),
        cmocka_unit_test(missing_dependency_is_named),
        cmocka_unit_test(python_packages_are_searched),
        cmocka_unit_test(opening_is_clean_when_any_allocation_fails),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
