/* test_tune.c — what tuning finds is kept and changes what runs; results stay in their class of numerics.
 *
 * Timing decides nothing here: records are written by hand, and of a measurement only that it left an entry counts. */
#include "device_support.h"

#include "far_driver.h"
#include "gpu/gpu.h"
#include "hal/hal.h"
#include "plan/passes.h"
#include "trunnion/ops.h"
#include "trunnion/tensor.h"
#include "trunnion/tune.h"

enum { SIZE = 64, COUNT = SIZE * SIZE, ENTRIES = 12 };

static char *record; /* the file */
static float first[COUNT];

static void machine(char out[160]) {
    tn_cpu_info cpu = tn_cpu();
    snprintf(out, 160, "%s, %s, %d cores, %s", cpu.name, tn_isa_name(cpu.isa), cpu.cores, tn_version());
}

/* A product whose key is "matmul f32 rr 1x64x64x64 1 threads …"; the plan's words are left in `words`. */
static void multiply(float *out, char *words, size_t size) {
    TN_SCOPE;
    tn_manual_seed(3);
    tn_tensor *a = tn_randn((int64_t[]){SIZE, SIZE}, 2), *b = tn_randn((int64_t[]){SIZE, SIZE}, 2);
    assert_ok(tn_eval(&a, 1));
    assert_ok(tn_eval(&b, 1));
    tn_tensor *y = tn_matmul(a, tn_mul_scalar(b, 1.5)); /* of this plan: its packed form is not kept */
    assert_ok(tn_eval(&y, 1));
    char *text = tn_explain_last();
    snprintf(words, size, "%s", text);
    tn_text_free(text);
    assert_ok(tn_read(y, out, COUNT * sizeof *out));
}

static void write_record(const char *machine_name, const char *class_, const char *way) {
    FILE *f = fopen(record, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"format\":1,\"machine\":\"%s\",\"entries\":[{\"key\":\"matmul f32 rr 1x64x64x64 1 threads %s\","
            "\"way\":\"%s\",\"seconds\":1e-6,\"rule_seconds\":2e-6,\"date\":\"2026-01-02\"}]}",
            machine_name, class_, way);
    fclose(f);
    assert_int_equal(chmod(record, 0600), 0);
}

static int run_apart(const char *part) {
    char command[100];
    snprintf(command, sizeof command, "/proc/%d/exe %s", (int)getpid(), part);
    return system(command);
}

/* ---- parts, each a process: the record is read once ---------------------------------------------------------*/

static void expect(const char *words_wanted, bool wanted) {
    static float y[COUNT];
    char words[4000];
    assert_ok(tn_set_num_threads(1));
    multiply(y, words, sizeof words);
    if ((strstr(words, words_wanted) != NULL) != wanted) fail_msg("%s:\n%s", words_wanted, words);
    assert_ok(tn_set_tuning(TN_TUNING_OFF));
    multiply(first, words, sizeof words);
    assert_null(strstr(words, " by "));
    assert_memory_equal(y, first, sizeof y); /* our own ways: the same bits */
}

static void part_forced(void) {
    expect(" by own, both packed", true);
    tn_tuned e = {.struct_size = sizeof e};
    assert_int_equal(tn_tuned_count(), 1);
    assert_ok(tn_tuned_at(0, &e));
    assert_string_equal(e.way, "own, both packed");
    assert_true(e.rule_seconds == 2e-6);
}
static void part_ignored(void) { expect(" by ", false); }

/* A record under `exact` names a library, which nobody asked for: it is not even loaded. */
static void part_unasked(void) {
    tn_library_info info = {.struct_size = sizeof info};
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas.so", ""), 1);
    expect(" by ", false);
    assert_ok(tn_library_at(0, &info));
    assert_true(info.available);
    assert_string_equal(info.description, "");
}

enum { FULL = 4096 }; /* entries that a record holds */

/* What is measured has its place in a full record, else it would be measured again and again. */
static void part_full(void) {
    char words[4000];
    static float y[COUNT];
    tn_tuned e = {.struct_size = sizeof e};
    assert_ok(tn_set_num_threads(1));
    assert_int_equal(tn_tuned_count(), FULL);
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    multiply(y, words, sizeof words);
    assert_int_equal(tn_tuned_count(), FULL);
    int found = 0;
    for (int i = 0; i < FULL; i++) {
        assert_ok(tn_tuned_at(i, &e));
        found += strstr(e.key, "1x64x64x64 1 threads exact") != NULL;
    }
    assert_int_equal(found, 1);
}

/* The way of a library, which was asked for by "auto". */
static void part_library(void) {
    static float y[COUNT];
    char words[4000];
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas.so", ""), 1);
    assert_ok(tn_set_num_threads(1));
    assert_ok(tn_set_library("auto"));
    multiply(y, words, sizeof words);
    assert_non_null(strstr(words, " by own, A packed")); /* auto leaves it to the record, even for our own kernel */
    assert_ok(tn_set_library("openblas"));
    multiply(y, words, sizeof words);
    assert_non_null(strstr(words, " by openblas")); /* its name does not */
}

static void part_measured(void) {
    char words[4000];
    static float y[COUNT];
    tn_tuned e = {.struct_size = sizeof e};
    assert_ok(tn_set_num_threads(1));
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    multiply(y, words, sizeof words);
    assert_int_equal(tn_tuned_count(), 1);
    assert_ok(tn_tuned_at(0, &e));
    assert_non_null(strstr(e.key, "1x64x64x64 1 threads exact"));
    assert_true(e.seconds > 0 && e.seconds <= e.rule_seconds && strncmp(e.way, "own", 3) == 0);
    expect("nothing", false);
}

/* Every own way that a record can name: the same bits. */
static void part_ways(void) {
    static const char *const ways[] = {"own",
                                       "own, one thread",
                                       "own, A packed",
                                       "own, A in place",
                                       "own, B packed",
                                       "own, A in place, B packed",
                                       "own, B in place",
                                       "own, B packed at use",
                                       "own, both packed",
                                       "own, both in place"};
    static float y[COUNT];
    char words[4000];
    assert_ok(tn_set_num_threads(1));
    assert_ok(tn_set_tuning(TN_TUNING_OFF));
    multiply(first, words, sizeof words);
    assert_ok(tn_set_tuning(TN_TUNING_USE));
    for (size_t i = 0; i < TN_COUNT(ways); i++) {
        tn_tuned e = {.key = "matmul f32 rr 1x64x64x64 1 threads exact"};
        snprintf(e.way, sizeof e.way, "%s", ways[i]);
        tn_tune_put(tn_host_device(), &e);
        multiply(y, words, sizeof words);
        snprintf(e.way, sizeof e.way, " by %s", ways[i]);
        if (i > 0 && !strstr(words, e.way)) fail_msg("\"%s\" is not in:\n%s", e.way, words);
        if (memcmp(y, first, sizeof y) != 0) fail_msg("%s: the bits differ", ways[i]);
    }
}

/* A library that crashes as soon as it is called takes the measuring process down, not this one. */
static void part_crashing(void) {
    char words[4000];
    static float y[COUNT];
    tn_tuned e = {.struct_size = sizeof e};
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas.so", ""), 1);
    setenv("TRUNNION_BLIS_LIB", build_fake("blas.c", "libcrashing.so", "-DCRASHES"), 1);
    assert_ok(tn_set_num_threads(1));
    assert_ok(tn_set_library("auto"));
    assert_string_equal(tn_get_library(), "openblas");
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    multiply(y, words, sizeof words);
    assert_ok(tn_tuned_at(0, &e));
    assert_string_equal(e.way, "own");
    assert_true(e.seconds == 0);
}

/* ---- devices: each tile yields the same bits, and the record says which it is ------------------------------------ */

enum { SIDE = 32 };
static int64_t items_seen; /* of the workgroups of the program loaded last */

static void note_items(const kir_program *p) { items_seen = kir_items(p); }

static void multiply_far(float out[SIDE * SIDE], double factor) {
    TN_SCOPE;
    tn_manual_seed(3);
    tn_tensor *a = tn_randn((int64_t[]){SIDE, SIDE}, 2), *b = tn_randn((int64_t[]){SIDE, SIDE}, 2);
    assert_ok(tn_eval((tn_tensor *[]){a, b}, 2));
    far_loaded = note_items;
    tn_tensor *y = tn_matmul(a, b);
    if (factor != 1) y = tn_mul_scalar(y, factor); /* another plan, of another kernel */
    assert_ok(tn_read(y, out, sizeof(float) * SIDE * SIDE));
    far_loaded = NULL;
}

static void part_device(void) {
    static float by_rule[SIDE * SIDE], by_tile[SIDE * SIDE];
    char name[TN_TILE_NAME];
    tn_tuned e = {.struct_size = sizeof e};
    far_nature_now.shared_memory = 64 << 10; /* enough for every tile */
    assert_ok(tn_set_current_device(far_open(0, NULL)));
    assert_ok(tn_set_tuning(TN_TUNING_OFF));
    multiply_far(by_rule, 1);
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    multiply_far(by_tile, 1);
    assert_memory_equal(by_rule, by_tile, sizeof by_rule);
    assert_int_equal(tn_tuned_count(), 1);
    assert_ok(tn_tuned_at(0, &e));
    assert_int_equal(strncmp(e.key, "tile f32 rr 1x32x32x32 on far ", 30), 0);
    assert_true(e.seconds > 0 && e.seconds <= e.rule_seconds);
    int tiles = 0;
    for (int tile = 1; tn_gemm_tile_name(tile, name); tile++, tiles++) {
        int rows, columns, depth, iy, ix;
        assert_int_equal(sscanf(name, "%dx%dx%d by %dx%d", &rows, &columns, &depth, &iy, &ix), 5);
        snprintf(e.way, sizeof e.way, "%s", name);
        tn_tune_put(tn_host_device(), &e);
        items_seen = 0;
        multiply_far(by_tile, -1);
        for (int i = 0; i < SIDE * SIDE; i++)
            if (by_tile[i] != -by_rule[i]) fail_msg("tile %s: element %d differs", name, i);
        if (items_seen != iy * ix) fail_msg("tile %s: a workgroup of %lld items", name, (long long)items_seen);
    }
    assert_true(tiles > 2);
}

/* A device that dies while it is measured is not measured again. */
static void part_dying(void) {
    static float y[SIDE * SIDE];
    tn_tuned e = {.struct_size = sizeof e};
    assert_ok(tn_set_current_device(far_open(0, NULL)));
    multiply_far(y, 1);
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    {
        TN_SCOPE;
        tn_tensor *a = tn_zeros(TN_DIMS(SIDE, SIDE), TN_F32);
        assert_ok(tn_eval(&a, 1));
        tn_tensor *z = tn_matmul(a, a);
        far_nature_now.loses = true;
        far_nature_now.launches_left = 3;
        assert_int_not_equal(tn_eval(&z, 1), TN_OK);
        far_nature_now.loses = false;
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_tuned_at(0, &e));
        assert_string_equal(e.way, "by rule");
        assert_true(e.seconds == 0);
        multiply_far(y, 1);
    }
}

/* Operands whose bytes do not even fit 64 bits: they are not measured, and nothing is launched. */
static void part_vast(void) {
    static float y[SIDE * SIDE];
    tn_tuned e = {.struct_size = sizeof e};
    tn_device *far = far_open(0, NULL);
    tn_gemm_shape vast = {
        .m = 4, .n = 4, .k = 4, .batch = {1 << 30, 1 << 30}, .batch_axes = 2, .type = KIR_F32, .a_along_k = true};
    const tn_group_limits limits = {.items = 256, .local_bytes = 64 << 10};
    assert_ok(tn_set_current_device(far));
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    int64_t allocs = far_counts_now.allocs;
    assert_int_equal(tn_tune_tile(far, &vast, &limits), 0);
    assert_int_equal(far_counts_now.allocs, allocs);
    assert_ok(tn_tuned_at(0, &e));
    assert_string_equal(e.way, "by rule");
    multiply_far(y, 1);
}

static const struct {
    const char *name;
    void (*body)(void);
} parts[] = {{"forced", part_forced},     {"ignored", part_ignored}, {"unasked", part_unasked},
             {"full", part_full},         {"library", part_library}, {"measured", part_measured},
             {"crashing", part_crashing}, {"device", part_device},   {"dying", part_dying},
             {"vast", part_vast},         {"ways", part_ways}};

static const char *part_asked;

static void do_part(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(parts); i++)
        if (strcmp(parts[i].name, part_asked) == 0) parts[i].body();
}

/* Puts entries whose keys no other writer has. */
static int put_entries(int writer) {
    for (int i = 0; i < ENTRIES; i++) {
        tn_tuned e = {.way = "own"};
        snprintf(e.key, sizeof e.key, "writer %d entry %d", writer, i);
        tn_tune_put(tn_host_device(), &e);
    }
    return 0;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void a_tune_cache_entry_changes_what_runs(void **state) {
    (void)state;
    char here[160];
    machine(here);
    write_record(here, "exact", "own, both packed");
    assert_int_equal(run_apart("forced"), 0);
}

static void every_way_gives_the_same_bits(void **state) {
    (void)state;
    unlink(record);
    assert_int_equal(run_apart("ways"), 0);
}

static void records_of_others_are_ignored(void **state) {
    (void)state;
    char here[160];
    machine(here);
    write_record("another machine", "exact", "own, both packed");
    assert_int_equal(run_apart("ignored"), 0);
    write_record(here, "exact", "a way that is unknown");
    assert_int_equal(run_apart("ignored"), 0);
    write_record(here, "exact", "openblas"); /* a library under `exact`: nobody asked for one */
    assert_int_equal(run_apart("ignored"), 0);
    assert_int_equal(run_apart("unasked"), 0);
    write_record(here, "exact", "own, both packed");
    assert_int_equal(chmod(record, 0666), 0); /* anybody may have written it */
    assert_int_equal(run_apart("ignored"), 0);
    FILE *f = fopen(record, "w");
    fputs("{\"format\":1,\"entries\":[7,{}", f);
    fclose(f);
    assert_int_equal(run_apart("ignored"), 0);
}

static void processes_keep_each_others_entries(void **state) {
    (void)state;
    enum { WRITERS = 4 };
    unlink(record);
    pid_t writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = fork();
        assert_true(writers[i] >= 0);
        if (writers[i] == 0) _exit(put_entries(i));
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(writers[i], &status, 0), writers[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(tn_set_tuning(TN_TUNING_USE), TN_OK); /* the file is read again */
    assert_int_equal(tn_tuned_count(), WRITERS * ENTRIES);
}

static void a_full_tune_cache_evicts(void **state) {
    (void)state;
    char here[160];
    machine(here);
    FILE *f = fopen(record, "w");
    assert_non_null(f);
    fprintf(f, "{\"format\":1,\"machine\":\"%s\",\"entries\":[", here);
    for (int i = 0; i < FULL; i++)
        fprintf(f, "%s{\"key\":\"product %d\",\"way\":\"own\"}", i ? "," : "", i);
    fputs("]}", f);
    fclose(f);
    assert_int_equal(chmod(record, 0600), 0);
    assert_int_equal(run_apart("full"), 0);
}

static void libraries_take_part_when_asked_for(void **state) {
    (void)state;
    char here[160];
    machine(here);
    write_record(here, "library", "own, A packed");
    assert_int_equal(run_apart("library"), 0);
}

static void first_use_measures(void **state) {
    (void)state;
    unlink(record);
    assert_int_equal(run_apart("measured"), 0);
    struct stat s;
    assert_int_equal(stat(record, &s), 0);
    unlink(record);
    assert_int_equal(run_apart("crashing"), 0);
}

static void tiles_of_devices_are_tuned(void **state) {
    (void)state;
    unlink(record);
    assert_int_equal(run_apart("device"), 0);
    unlink(record);
    assert_int_equal(run_apart("dying"), 0);
    unlink(record);
    assert_int_equal(run_apart("vast"), 0);
}

static int prepare(void **state) {
    static const char *const places[] = {"OPENBLAS", "MKL", "ONEDNN", "BLIS", "ACCELERATE"};
    if (!getenv("TRUNNION_TUNE_CACHE")) setenv("TRUNNION_TUNE_CACHE", test_scratch("tune.json"), 1);
    record = getenv("TRUNNION_TUNE_CACHE");
    unsetenv("TRUNNION_LIBRARY");
    unsetenv("TRUNNION_TUNE");
    for (size_t i = 0; i < TN_COUNT(places); i++) {
        char name[40];
        snprintf(name, sizeof name, "TRUNNION_%s_LIB", places[i]);
        setenv(name, "/nowhere/at-all.so", 1);
    }
    return clean_environment(state);
}

int main(int argc, char **argv) {
    const struct CMUnitTest one[] = {cmocka_unit_test(do_part)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tune_cache_entry_changes_what_runs),
        cmocka_unit_test(every_way_gives_the_same_bits),
        cmocka_unit_test(records_of_others_are_ignored),
        cmocka_unit_test(a_full_tune_cache_evicts),
        cmocka_unit_test(processes_keep_each_others_entries),
        cmocka_unit_test(libraries_take_part_when_asked_for),
        cmocka_unit_test(first_use_measures),
        cmocka_unit_test(tiles_of_devices_are_tuned),
    };
    part_asked = argc > 1 ? argv[1] : NULL;
    return argc > 1 ? cmocka_run_group_tests(one, prepare, NULL) : cmocka_run_group_tests(tests, prepare, NULL);
}
