/* sampling.c — the options of sampling: the table, and a sampler made of them. */
#include "cli/text/sampling.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h> /* getentropy */
#endif

#include "trunnion/text.h"

enum { ROW_TOP_K = 1, ROW_TOP_P, ROW_MIN_P };

static const cli_option rows[] = {
    CLI_REAL("temperature", 0, cli_sampling, options.temperature, 0, 100),
    CLI_INT("top-k", 0, cli_sampling, options.top_k, 0, INT32_MAX),
    CLI_REAL("top-p", 0, cli_sampling, options.top_p, 0, 1),
    CLI_REAL("min-p", 0, cli_sampling, options.min_p, 0, 1),
    CLI_REAL("repeat-penalty", 0, cli_sampling, options.repeat_penalty, 0.01, 100),
    CLI_REAL("frequency-penalty", 0, cli_sampling, options.frequency_penalty, -100, 100),
    CLI_REAL("presence-penalty", 0, cli_sampling, options.presence_penalty, -100, 100),
    CLI_INT("repeat-window", 0, cli_sampling, options.repeat_window, 0, 1 << 20),
    CLI_REAL("dry-multiplier", 0, cli_sampling, options.dry_multiplier, 0, 100),
    CLI_REAL("dry-base", 0, cli_sampling, options.dry_base, 1, 100),
    CLI_INT("dry-allowed-length", 0, cli_sampling, options.dry_allowed_length, 1, 1 << 20),
    CLI_INT("dry-window", 0, cli_sampling, options.dry_window, 0, 1 << 20),
    CLI_REAL("mirostat-tau", 0, cli_sampling, options.mirostat_tau, 0, 100),
    CLI_REAL("mirostat-eta", 0, cli_sampling, options.mirostat_eta, 0, 1),
    CLI_FLAG("greedy", 0, cli_sampling, greedy),
};
enum { ROWS = sizeof rows / sizeof *rows, NUMBERS = ROWS - 1 };

void cli_sampling_begin(cli_sampling *s) {
    *s = (cli_sampling){.options = TN_SAMPLER_DEFAULTS};
    s->options.temperature = 0.8;
    s->options.top_k = 40;
    s->options.top_p = 0.95;
    s->options.min_p = 0.05;
}

int cli_parse_with_sampling(const cli_command *c, int argc, char **argv, cli_options *o, const cli_option *own,
                            size_t at, void *wishes, int *status) {
    cli_sampling *s = (cli_sampling *)(void *)((char *)wishes + at);
    cli_option all[CLI_OPTIONS_MOST] = {{0}};
    int n = 0;
    cli_sampling_begin(s);
    for (; own->name && n < CLI_OPTIONS_MOST - ROWS - 1; own++)
        all[n++] = *own;
    for (int i = 0; i < ROWS; i++) {
        all[n + i] = rows[i];
        all[n + i].at += at;
    }
    int next = cli_parse(c, argc, argv, o, all, wishes, status);
    s->given = (uint32_t)(o->given >> n);
    return next;
}

bool cli_sampling_set(cli_sampling *s, const char *name, const char *value) {
    for (int i = 0; i < NUMBERS; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        s->given |= 1u << i;
        s->greedy = s->greedy && i != 0; /* a temperature is asked for */
        return cli_take(&rows[i], s, value);
    }
    return false;
}

/* Penalties choose among greedy tokens too; what only draws does not. */
const char *cli_sampling_conflict(const cli_sampling *s) {
    static const int drawing[] = {0, ROW_TOP_K, ROW_TOP_P, ROW_MIN_P, NUMBERS - 2, NUMBERS - 1};
    for (size_t i = 0; s->greedy && i < sizeof drawing / sizeof *drawing; i++)
        if (s->given & 1u << drawing[i]) return rows[drawing[i]].name;
    return NULL;
}

static bool draw(void *to, size_t bytes) {
#if defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ < 25 /* no getentropy */
    FILE *f = fopen("/dev/urandom", "rb");
    bool drawn = f && fread(to, 1, bytes, f) == bytes;
    if (f) fclose(f);
    return drawn;
#else
    return getentropy(to, bytes) == 0;
#endif
}

/* 32 bits: short enough to be typed again. */
static uint64_t random_seed(void) {
    uint32_t seed;
    if (draw(&seed, sizeof seed)) return seed;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint32_t)(t.tv_nsec ^ t.tv_sec);
}

void cli_sampling_seed(cli_sampling *s, const cli_options *o) {
    s->options.seed = o->seed_given || s->greedy ? o->seed : random_seed();
}

/* Tokens that end a repetition: those that spell a character of structure, as in llama.cpp. */
static tn_status find_breakers(const tn_tokenizer *t, tn_ids *out) {
    AUTO_BYTES tn_bytes text = {0};
    for (int32_t id = 0; id < tn_tokenizer_count(t); id++) {
        text.size = 0;
        TRY(tn_tokenizer_decode(t, &id, 1, 0, &text));
        if (text.size > 0 && strpbrk(text.data, "\n:\"*")) TRY(tn_ids_append(out, id));
    }
    return TN_OK;
}

tn_status cli_sampling_make(const cli_sampling *s, const tn_tokenizer *t, tn_sampler **out) {
    tn_sampler_options o = s->options;
    tn_ids breakers = {0};
    bool mirostat = o.mirostat_tau > 0;
    if (mirostat && !(s->given & 1u << ROW_TOP_K)) o.top_k = 0;
    if (mirostat && !(s->given & 1u << ROW_TOP_P)) o.top_p = 1;
    if (mirostat && !(s->given & 1u << ROW_MIN_P)) o.min_p = 0;
    if (s->greedy) o.temperature = 0;
    tn_status status = t && o.dry_multiplier > 0 ? find_breakers(t, &breakers) : TN_OK;
    o.dry_breakers = breakers.data;
    o.dry_breaker_count = (int32_t)breakers.count;
    if (status == TN_OK) status = tn_sampler_new(&o, out);
    tn_ids_free(&breakers);
    return status;
}

void cli_sampling_list(const cli_sampling *s, FILE *to) {
    for (int i = 0; i < NUMBERS; i++) {
        const void *at = (const char *)s + rows[i].at;
        bool integer = rows[i].kind == CLI_KIND_INT32;
        fprintf(to, "  %-20s %g\n", rows[i].name,
                i == 0 && s->greedy ? 0
                : integer           ? *(const int32_t *)at
                                    : *(const double *)at);
    }
}
