/* fuzz_replay.c — a main for the fuzzers where the compiler brings no libFuzzer.
 *
 * It runs every file of the corpus through LLVMFuzzerTestOneInput, then simple mutations of them until time is up.
 * There is no coverage feedback: it guards what was found before and catches the plain mistakes; libFuzzer does the
 * searching. Runs are repeatable (-seed), options are named as libFuzzer's, and the input that ends the process is
 * written to <artifact_prefix>crash first.
 *
 *   fuzz_NAME [-max_total_time=SECONDS] [-runs=N] [-seed=N] [-artifact_prefix=PATH] [FILE or FOLDER]… */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Present under the sanitizers alone, which end the process without a signal that could be caught. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

enum { INPUT_LIMIT = 64 << 10 }; /* mutations stay below; files of the corpus may be longer */

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

static input *corpus;
static size_t corpus_count;
static input current; /* what the fuzzer is looking at, for the report of a crash */
static char crash_path[4096] = "crash";
static uint64_t random_state = 1;

/* ---- the report of a crash --------------------------------------------------------------------------------------- */

static void save_current(void) {
    int file = open(crash_path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (file < 0) return;
    ssize_t written = write(file, current.data, current.size);
    close(file);
    static const char words[] = "fuzz_replay: the input was written to ";
    bool told = written == (ssize_t)current.size && write(2, words, sizeof words - 1) > 0 &&
                write(2, crash_path, strlen(crash_path)) > 0 && write(2, "\n", 1) > 0;
    (void)told; /* nobody is left to tell */
}

static void on_signal(int number) {
    save_current();
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_for_crashes(void) {
    static const int fatal[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        signal(fatal[i], on_signal);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_current);
}

/* ---- the corpus -------------------------------------------------------------------------------------------------- */

static void *need(void *p) {
    if (p) return p;
    fprintf(stderr, "fuzz_replay: out of memory\n");
    exit(2);
}

static void add_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    input in = {.data = need(malloc(size > 0 ? (size_t)size : 1))};
    in.size = fread(in.data, 1, size > 0 ? (size_t)size : 0, file);
    fclose(file);
    corpus = need(realloc(corpus, (corpus_count + 1) * sizeof *corpus));
    corpus[corpus_count++] = in;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* Takes files in the order of their names: the same run on every file system. */
static void add_path(const char *path) {
    struct stat facts;
    if (stat(path, &facts) != 0) {
        perror(path);
        exit(2);
    }
    if (!S_ISDIR(facts.st_mode)) {
        add_file(path);
        return;
    }
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char inside[4096];
        int length = snprintf(inside, sizeof inside, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && length > 0 && (size_t)length < sizeof inside) add_path(inside);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

/* ---- mutations --------------------------------------------------------------------------------------------------- */

/* splitmix64: small, repeatable, good enough to pick bytes with. */
static uint64_t next_random(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t n) { return n ? (size_t)(next_random() % n) : 0; }

static void flip_bit(input *in) {
    if (in->size) in->data[below(in->size)] ^= (uint8_t)(1u << below(8));
}

static void set_byte(input *in) {
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, '"', '\\', '{', '[', '-', '.', 'e', '9', '\n'};
    if (in->size) in->data[below(in->size)] = telling[below(sizeof telling)];
}

/* Lengths, counts and offsets in files are 4- and 8-byte numbers: put extreme ones anywhere. */
static void set_number(input *in) {
    static const uint64_t telling[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX, 1ull << 40};
    size_t width = below(2) ? 8 : 4;
    if (in->size < width) return;
    uint64_t number = telling[below(sizeof telling / sizeof *telling)];
    memcpy(in->data + below(in->size - width + 1), &number, width);
}

static void cut(input *in) {
    size_t begin = below(in->size), length = below(in->size - begin + 1);
    memmove(in->data + begin, in->data + begin + length, in->size - begin - length);
    in->size -= length;
}

static void shorten(input *in) { in->size = below(in->size + 1); }

/* Puts a piece of some file of the corpus at a random place. */
static void insert_piece(input *in) {
    const input *from = &corpus[below(corpus_count)];
    size_t begin = below(from->size), length = below(from->size - begin + 1), at = below(in->size + 1);
    if (in->size + length > INPUT_LIMIT) return;
    memmove(in->data + at + length, in->data + at, in->size - at);
    memcpy(in->data + at, from->data + begin, length);
    in->size += length;
}

static void mutate(input *in) {
    static void (*const ways[])(input *) = {flip_bit, set_byte, set_number, cut, shorten, insert_piece};
    for (size_t n = 1 + below(4); n > 0; n--)
        ways[below(sizeof ways / sizeof *ways)](in);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* The fuzzer gets a block of exactly the input's size, so that a sanitizer sees the first byte read past it. */
static void try_input(const input *in) {
    current.data = need(malloc(in->size ? in->size : 1));
    current.size = in->size;
    memcpy(current.data, in->data, in->size);
    LLVMFuzzerTestOneInput(current.data, current.size);
    free(current.data);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    double limit = 5;
    uint64_t most = UINT64_MAX;
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        if (argv[i][0] != '-')
            add_path(argv[i]);
        else if (value && strncmp(argv[i], "-max_total_time=", 16) == 0)
            limit = strtod(value + 1, NULL);
        else if (value && strncmp(argv[i], "-runs=", 6) == 0)
            most = strtoull(value + 1, NULL, 10);
        else if (value && strncmp(argv[i], "-seed=", 6) == 0)
            random_state = strtoull(value + 1, NULL, 10);
        else if (value && strncmp(argv[i], "-artifact_prefix=", 17) == 0)
            snprintf(crash_path, sizeof crash_path, "%scrash", value + 1);
        else
            fprintf(stderr, "fuzz_replay: %s is ignored\n", argv[i]);
    }
    watch_for_crashes();

    size_t files = corpus_count;
    for (size_t i = 0; i < files; i++)
        try_input(&corpus[i]);
    if (files == 0) {
        corpus = need(calloc(1, sizeof *corpus));
        corpus[corpus_count++].data = need(malloc(1));
    }

    input in = {.data = need(malloc(INPUT_LIMIT))};
    uint64_t runs = 0;
    for (double start = seconds(); seconds() - start < limit && runs < most; runs++) {
        const input *from = &corpus[below(corpus_count)];
        in.size = from->size < INPUT_LIMIT ? from->size : INPUT_LIMIT;
        memcpy(in.data, from->data, in.size);
        mutate(&in);
        try_input(&in);
    }
    printf("%zu files and %llu mutations\n", files, (unsigned long long)runs);

    free(in.data);
    for (size_t i = 0; i < corpus_count; i++)
        free(corpus[i].data);
    free(corpus);
    return 0;
}
