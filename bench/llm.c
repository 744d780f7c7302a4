/* llm.c — a language model's two speeds: taking in a prompt of 512 tokens, and giving 128 tokens from an empty cache.
 *
 * What llama-bench times as `-p 512 -n 128`, on the same file: bench/compare_llm.py runs the two by turns. The speed of
 * reading memory is probed in the same run, because a token costs a pass over all weights.
 *
 *   bench_llm [MODEL.gguf] [threads]             prints both; default: the model that tools/smollm2.py fetches
 *   bench_llm serve MODEL.gguf threads           a command a line: "prompt N", "generate N", "read",
 *                                                "weights", "greedy N ID ID …" */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "trunnion/llm.h"

enum { PROMPT = 512, TOKENS = 128, SAMPLES = 7, MOST_IDS = 4096, LINE = 32768 };

static tn_llm *model;
static tn_llm_facts facts;
static int64_t vocabulary;
static int32_t ids[MOST_IDS];

static void die(const char *what) {
    fprintf(stderr, "bench_llm: %s: %s\n", what, tn_error());
    exit(1);
}

static void need(tn_status status, const char *what) {
    if (status != TN_OK) die(what);
}

static void open_model(const char *path, int threads) {
    if (threads > 0) need(tn_set_num_threads(threads), "threads");
    tn_llm_options options = {.struct_size = sizeof options, .context = MOST_IDS};
    need(tn_llm_open(path, &options, &model), path);
    facts.struct_size = sizeof facts;
    need(tn_llm_get_facts(model, &facts), "facts");
    vocabulary = facts.vocabulary;
    for (int i = 0; i < MOST_IDS; i++) /* anything: the work is the same for all ids */
        ids[i] = (int32_t)((int64_t)i * 7919 % vocabulary);
}

static double time_prompt(int64_t n) {
    const float *logits;
    need(tn_llm_rewind(model, 0), "rewind");
    double begun = tn_now();
    need(tn_llm_prompt(model, ids, n, &logits), "prompt");
    return tn_now() - begun;
}

static double time_tokens(int64_t n) {
    const float *logits;
    need(tn_llm_rewind(model, 0), "rewind");
    double begun = tn_now();
    for (int64_t i = 0; i < n; i++)
        need(tn_llm_step(model, ids[i], &logits), "step");
    return tn_now() - begun;
}

/* ---- the limit --------------------------------------------------------------------------------------------------- */

enum { READ_BYTES = 256 << 20, READ_GRAIN = 1 << 20 };
static volatile uint64_t keep;

static void read_part(void *ctx, int64_t begin, int64_t end, int worker) {
    const uint64_t *words = ctx;
    uint64_t sum[8] = {0};
    (void)worker;
    for (int64_t i = begin * (READ_GRAIN / 8); i < end * (READ_GRAIN / 8); i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += words[i + k];
    for (int k = 0; k < 8; k++)
        keep = sum[k];
}

/* Bytes a second, the best of some passes over what no cache holds. */
static double probe_read(void) {
    static uint64_t *words;
    if (!words) words = malloc(READ_BYTES);
    if (!words) return NAN;
    memset(words, 1, READ_BYTES);
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double begun = tn_now();
        tn_parallel(READ_BYTES / READ_GRAIN, 8, read_part, words);
        best = fmin(best, tn_now() - begun);
    }
    return READ_BYTES / best;
}

/* ---- as a server ------------------------------------------------------------------------------------------------- */

static int32_t largest(const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocabulary; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* "ID ID …" → n further ids, each the likeliest. */
static void greedy(int64_t n, char *text) {
    int32_t given[MOST_IDS];
    int64_t count = 0;
    for (char *word = strtok(text, " \n"); word && count < MOST_IDS; word = strtok(NULL, " \n"))
        given[count++] = atoi(word);
    const float *logits;
    need(tn_llm_rewind(model, 0), "rewind");
    need(tn_llm_prompt(model, given, count, &logits), "prompt");
    for (int64_t i = 0; i < n; i++) {
        int32_t id = largest(logits);
        printf("%d ", id);
        if (i + 1 < n) need(tn_llm_step(model, id, &logits), "step");
    }
    printf("\n");
}

static void serve(void) {
    static char line[LINE];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        char what[16] = "";
        int64_t n = 0;
        int used = 0;
        int fields = sscanf(line, "%15s %" SCNd64 "%n", what, &n, &used);
        if (fields < 1 || n < 0 || n > MOST_IDS) die("no such command");
        if (!strcmp(what, "prompt"))
            printf("%.9f\n", time_prompt(n));
        else if (!strcmp(what, "generate"))
            printf("%.9f\n", time_tokens(n));
        else if (!strcmp(what, "weights"))
            printf("%ld\n", (long)facts.weights_bytes);
        else if (!strcmp(what, "read"))
            printf("%.0f\n", probe_read());
        else if (!strcmp(what, "greedy"))
            greedy(n, line + used);
        else
            die("no such command");
    }
}

/* ---- by itself --------------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double (*time)(int64_t n), int64_t n) {
    double samples[SAMPLES];
    (void)time(n); /* plans and packs */
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = time(n);
    qsort(samples, SAMPLES, sizeof *samples, by_size);
    return samples[SAMPLES / 2];
}

static const char *default_model(char *out, size_t size) {
    char folder[768];
    need(tn_cache_dir(folder, sizeof folder), "cache folder");
    snprintf(out, size, "%s/models/SmolLM2-135M-Instruct.Q4_1.gguf", folder);
    return out;
}

int main(int argc, char **argv) {
    char path[1024];
    if (argc == 4 && !strcmp(argv[1], "serve")) {
        open_model(argv[2], atoi(argv[3]));
        serve();
    } else {
        const char *file = argc > 1 ? argv[1] : default_model(path, sizeof path);
        FILE *f = fopen(file, "rb");
        if (!f) {
            printf("skipped: no model at %s; tools/smollm2.py fetches one\n", file);
            return 0;
        }
        fclose(f);
        open_model(file, argc > 2 ? atoi(argv[2]) : 0);
        double prompt = median(time_prompt, PROMPT), token = median(time_tokens, TOKENS) / TOKENS, speed = probe_read();
        printf("llm-prompt-%d    %9.1f tokens/s\n", PROMPT, PROMPT / prompt);
        printf("llm-generate-%d  %9.1f tokens/s, weights at %.1f GB/s: %.0f %% of the %.1f GB/s that reading reaches\n",
               TOKENS, 1 / token, 1e-9 * (double)facts.weights_bytes / token,
               100 * (double)facts.weights_bytes / token / speed, 1e-9 * speed);
    }
    tn_llm_close(model);
    return 0;
}
