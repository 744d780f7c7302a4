/* conversations.c — conversations over one set of weights: memory, tokens a second one by one and as a batch, and
 * whether a batch chooses the tokens that each conversation chooses alone.
 *
 *   bench_conversations MODEL.gguf [conversations] [steps] [threads]     8, 60, all
 *
 * The best step of one conversation and of the batch is printed. Compare the memory with that of one conversation. */
#include <string.h>

#include "bench.h"
#include "trunnion/llm.h"
#include "trunnion/trunnion.h"

enum { CONTEXT = 512, PROMPT = 100, ROUNDS = 4 };

static void check(tn_status status) {
    if (status == TN_OK) return;
    fprintf(stderr, "bench_conversations: %s\n", tn_error());
    exit(1);
}

/* Resident bytes of this process, pages of files included. */
static double resident_mib(void) {
    long pages = 0, skipped = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &skipped, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return (double)pages * 4096 / (1 << 20);
}

static int32_t likeliest(const float *logits, int64_t count) {
    int32_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

/* A prompt of its own for each conversation; returns the first token of the answer. */
static int32_t start(tn_llm *m, int which, int64_t vocabulary) {
    int32_t ids[PROMPT];
    const float *logits = NULL;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)((i * 7919 + which * 104729 + 1000) % vocabulary);
    check(tn_llm_rewind(m, 0));
    check(tn_llm_prompt(m, ids, PROMPT, &logits));
    return likeliest(logits, vocabulary);
}

typedef struct run {
    tn_llm *talks[TN_LLM_BATCH];
    tn_llm_batch *batch; /* of all talks */
    int count, steps;
    int64_t vocabulary;
    int32_t *alone; /* [count, steps + 1]: the tokens that each conversation chooses alone */
} run;

static int32_t *tokens_of(const run *r, int which) { return r->alone + (size_t)which * (size_t)(r->steps + 1); }

/* Answers one conversation after the other; returns the seconds of the best step. */
static double answer_alone(run *r) {
    const float *logits = NULL;
    double best = 1e9;
    for (int i = 0; i < r->count; i++) {
        int32_t *own = tokens_of(r, i);
        own[0] = start(r->talks[i], i, r->vocabulary);
        for (int s = 0; s < r->steps; s++) {
            double from = cli_now();
            check(tn_llm_step(r->talks[i], own[s], &logits));
            double took = cli_now() - from;
            own[s + 1] = likeliest(logits, r->vocabulary);
            if (s > 2 && took < best) best = took;
        }
    }
    return best;
}

/* Answers all conversations as a batch, ROUNDS times. *different: tokens that are not those chosen alone. */
static double answer_together(run *r, int *different) {
    const float *logits = NULL;
    int32_t next[TN_LLM_BATCH];
    double best = 1e9;
    check(tn_llm_batch_new(r->talks, r->count, &r->batch));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < r->count; i++)
            next[i] = start(r->talks[i], i, r->vocabulary);
        for (int s = 0; s < r->steps; s++) {
            double from = cli_now();
            check(tn_llm_batch_step(r->batch, next, &logits));
            double took = cli_now() - from;
            if (round + s > 2 && took < best) best = took;
            for (int i = 0; i < r->count; i++) {
                next[i] = likeliest(logits + i * r->vocabulary, r->vocabulary);
                *different += next[i] != tokens_of(r, i)[s + 1];
            }
        }
    }
    return best;
}

int main(int argc, char **argv) {
    run r = {.count = argc > 2 ? atoi(argv[2]) : 8, .steps = argc > 3 ? atoi(argv[3]) : 60};
    int threads = take_threads(argc > 4 ? 2 : 1, argc > 4 ? (char *[]){argv[0], argv[4]} : argv), different = 0;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_llm_options o = TN_LLM_DEFAULTS;
    if (argc < 2) {
        printf("bench_conversations: pass a language model's GGUF file\n");
        return 0;
    }
    if (r.count < 1 || r.count > TN_LLM_BATCH || r.steps < 1 || r.steps > CONTEXT - PROMPT || !threads) {
        fprintf(stderr, "usage: bench_conversations MODEL.gguf [conversations] [steps] [threads]\n");
        return 2;
    }
    o.context = CONTEXT;
    o.conversations = r.count;
    check(tn_llm_open(argv[1], &o, &r.talks[0]));
    check(tn_llm_get_facts(r.talks[0], &facts));
    r.vocabulary = facts.vocabulary;
    r.alone = malloc((size_t)r.count * (size_t)(r.steps + 1) * sizeof *r.alone);
    if (!r.alone) return 1;
    for (int i = 1; i < r.count; i++)
        check(tn_llm_new_conversation(r.talks[0], NULL, &r.talks[i]));
    double best = answer_alone(&r), best_batch = answer_together(&r, &different);
    double all = resident_mib(), caches = (double)facts.cache_bytes * r.count / (1 << 20);
    printf("%d conversations, %d threads, a context of %d\n", r.count, threads, CONTEXT);
    printf("memory: %.1f MiB, of which %.1f MiB are caches\n", all, caches);
    printf("a step: %.3f ms alone, %.3f ms of the batch: %.2f times the tokens a second\n", best * 1e3,
           best_batch * 1e3, r.count * best / best_batch);
    printf("tokens that differ from those of a conversation alone: %d of %d\n", different, ROUNDS * r.steps * r.count);
    tn_llm_batch_free(r.batch);
    for (int i = r.count - 1; i >= 0; i--)
        tn_llm_close(r.talks[i]);
    free(r.alone);
    return different > 0;
}
