/* metrics.c — counters of the server, for Prometheus. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/serve/serve.h"

#include "trunnion/text.h"

static const struct {
    const char *name, *help;
} counters[SERVE_COUNTERS] = {
    [COUNT_PROMPT_TOKENS] = {"trunnion_prompt_tokens_total", "Prompt tokens that were computed."},
    [COUNT_CACHED_TOKENS] = {"trunnion_prompt_cached_tokens_total", "Prompt tokens that were in the KV cache already."},
    [COUNT_TOKENS] = {"trunnion_generated_tokens_total", "Tokens that were generated."},
    [COUNT_STEPS] = {"trunnion_decode_steps_total", "Passes over the weights for generated tokens."},
    [COUNT_STEP_ROWS] = {"trunnion_decode_rows_total", "Sequences that these passes computed a token for."},
    [COUNT_DISCONNECTS] = {"trunnion_disconnects_total", "Requests whose client went away before the answer."},
    [COUNT_REFUSED] = {"trunnion_refused_total", "Requests that were refused because the queue was full."},
    [COUNT_DRAFTED] = {"trunnion_draft_tokens_total", "Tokens that a draft guessed."},
    [COUNT_ACCEPTED] = {"trunnion_draft_accepted_total", "Guessed tokens that were the next ones."},
    [COUNT_CUT] = {"trunnion_cut_total", "Answers that were cut by the time limit or at the end of the server."},
};

/* Seconds; the last bucket has no limit. */
static const double limits[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
enum { BUCKETS = sizeof limits / sizeof *limits + 1 };

static const struct {
    const char *name, *help;
} histograms[SERVE_HISTOGRAMS] = {
    [TIME_FIRST_TOKEN] = {"trunnion_time_to_first_token_seconds", "From the request to its first token."},
    [TIME_REQUEST] = {"trunnion_request_seconds", "From the request to the end of its answer."},
    [TIME_PROMPTS] = {"trunnion_prompt_pass_seconds", "Passes over pieces of prompts."},
    [TIME_STEPS] = {"trunnion_decode_step_seconds", "Passes for generated tokens."},
};

enum { FIRST_CODE = 100, CODES = 500 };

static atomic_int_fast64_t counts[SERVE_COUNTERS], buckets[SERVE_HISTOGRAMS][BUCKETS], answered[CODES];
static atomic_int_fast64_t microseconds[SERVE_HISTOGRAMS];

void metrics_add(serve_counter c, int64_t n) { atomic_fetch_add(&counts[c], n); }

void metrics_time(serve_histogram h, double seconds) {
    int i = 0;
    while (i < BUCKETS - 1 && seconds > limits[i])
        i++;
    atomic_fetch_add(&buckets[h][i], 1);
    atomic_fetch_add(&microseconds[h], (int64_t)(seconds * 1e6));
}

void metrics_answered(int code) {
    if (code >= FIRST_CODE && code < FIRST_CODE + CODES) atomic_fetch_add(&answered[code - FIRST_CODE], 1);
}

static void write_histogram(FILE *f, int h) {
    int64_t sum = 0;
    fprintf(f, "# HELP %s %s\n# TYPE %s histogram\n", histograms[h].name, histograms[h].help, histograms[h].name);
    for (int i = 0; i < BUCKETS; i++) {
        sum += atomic_load(&buckets[h][i]);
        if (i < BUCKETS - 1)
            fprintf(f, "%s_bucket{le=\"%g\"} %" PRId64 "\n", histograms[h].name, limits[i], sum);
        else
            fprintf(f, "%s_bucket{le=\"+Inf\"} %" PRId64 "\n", histograms[h].name, sum);
    }
    fprintf(f, "%s_sum %.6f\n%s_count %" PRId64 "\n", histograms[h].name, (double)atomic_load(&microseconds[h]) * 1e-6,
            histograms[h].name, sum);
}

static void write_gauge(FILE *f, const char *name, const char *help, double value) {
    fprintf(f, "# HELP %s %s\n# TYPE %s gauge\n%s %.15g\n", name, help, name, name, value);
}

tn_status metrics_write(const serve_gauges *g, tn_bytes *out) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return TN_ERR_MEMORY;
    fprintf(f, "# HELP trunnion_responses_total Requests that were answered, by code.\n"
               "# TYPE trunnion_responses_total counter\n");
    for (int i = 0; i < CODES; i++)
        if (atomic_load(&answered[i]) > 0)
            fprintf(f, "trunnion_responses_total{code=\"%d\"} %" PRId64 "\n", i + FIRST_CODE,
                    (int64_t)atomic_load(&answered[i]));
    for (int i = 0; i < SERVE_COUNTERS; i++)
        fprintf(f, "# HELP %s %s\n# TYPE %s counter\n%s %" PRId64 "\n", counters[i].name, counters[i].help,
                counters[i].name, counters[i].name, (int64_t)atomic_load(&counts[i]));
    for (int i = 0; i < SERVE_HISTOGRAMS; i++)
        write_histogram(f, i);
    write_gauge(f, "trunnion_requests_running", "Requests that are being computed.", g->running);
    write_gauge(f, "trunnion_requests_waiting", "Requests that wait for a free sequence.", g->waiting);
    write_gauge(f, "trunnion_sequences", "Sequences that can be computed at once.", g->slots);
    write_gauge(f, "trunnion_peak_resident_bytes", "The most memory that was resident.", (double)cli_peak_bytes());
    fclose(f);
    tn_status status = text ? tn_bytes_append(out, text, size) : TN_ERR_MEMORY;
    free(text);
    return status;
}
