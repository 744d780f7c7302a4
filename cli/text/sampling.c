/* sampling.c — the options of sampling: the table, and a sampler made of them. */
#include "cli/text/sampling.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "trunnion/text.h"

enum { ROW_TOP_K = 1, ROW_TOP_P, ROW_MIN_P };

static const struct {
    const char *name;
    size_t offset;
    bool integer;
    double least, most;
} rows[] = {
#define REAL(name, field, least, most) \
    { name, offsetof(tn_sampler_options, field), false, least, most }
#define INTEGER(name, field, least, most) \
    { name, offsetof(tn_sampler_options, field), true, least, most }
    REAL("temperature", temperature, 0, 100),
    INTEGER("top-k", top_k, 0, INT32_MAX),
    REAL("top-p", top_p, 0, 1),
    REAL("min-p", min_p, 0, 1),
    REAL("repeat-penalty", repeat_penalty, 0.01, 100),
    REAL("frequency-penalty", frequency_penalty, -100, 100),
    REAL("presence-penalty", presence_penalty, -100, 100),
    INTEGER("repeat-window", repeat_window, 0, 1 << 20),
    REAL("dry-multiplier", dry_multiplier, 0, 100),
    REAL("dry-base", dry_base, 1, 100),
    INTEGER("dry-allowed-length", dry_allowed_length, 1, 1 << 20),
    INTEGER("dry-window", dry_window, 0, 1 << 20),
    REAL("mirostat-tau", mirostat_tau, 0, 100),
    REAL("mirostat-eta", mirostat_eta, 0, 1),
#undef REAL
#undef INTEGER
};
enum { NUMBERS = sizeof rows / sizeof *rows };
_Static_assert(NUMBERS + 1 == CLI_SAMPLING_ROWS, "the header says how many");

void cli_sampling_begin(cli_sampling *s) {
    *s = (cli_sampling){.options = TN_SAMPLER_DEFAULTS};
    s->options.temperature = 0.8;
    s->options.top_k = 40;
    s->options.top_p = 0.95;
    s->options.min_p = 0.05;
}

void cli_sampling_options(const struct option *own, struct option *all) {
    int n = 0;
    for (; own->name && n < CLI_OPTIONS_MOST - CLI_SAMPLING_ROWS - 1; own++)
        all[n++] = *own;
    for (int i = 0; i < NUMBERS; i++)
        all[n++] = (struct option){rows[i].name, required_argument, NULL, CLI_SAMPLING_VALUES + i};
    all[n++] = (struct option){"greedy", no_argument, NULL, CLI_SAMPLING_VALUES + NUMBERS};
    all[n] = (struct option){0};
}

static bool read_value(const char *text, bool integer, double *out) {
    char *end;
    errno = 0;
    *out = integer ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    return end != text && !*end && !errno;
}

bool cli_sampling_take(cli_sampling *s, int val, const char *arg) {
    int row = val - CLI_SAMPLING_VALUES;
    double v;
    s->given |= 1u << row;
    if (row == NUMBERS) return s->greedy = true;
    if (!read_value(arg, rows[row].integer, &v) || !(v >= rows[row].least && v <= rows[row].most)) return false;
    char *at = (char *)&s->options + rows[row].offset;
    if (rows[row].integer)
        memcpy(at, &(int32_t){(int32_t)v}, sizeof(int32_t));
    else
        memcpy(at, &v, sizeof v);
    return true;
}

bool cli_sampling_set(cli_sampling *s, const char *name, const char *value) {
    for (int i = 0; i < NUMBERS; i++)
        if (strcmp(rows[i].name, name) == 0) return cli_sampling_take(s, CLI_SAMPLING_VALUES + i, value);
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
    tn_bytes text = {0};
    tn_status status = TN_OK;
    for (int32_t id = 0; id < tn_tokenizer_count(t) && status == TN_OK; id++) {
        text.size = 0;
        status = tn_tokenizer_decode(t, &id, 1, 0, &text);
        bool breaks = text.size > 0 && strpbrk(text.data, "\n:\"*");
        if (status == TN_OK && breaks) status = tn_ids_append(out, id);
    }
    tn_bytes_free(&text);
    return status;
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
        const char *at = (const char *)&s->options + rows[i].offset;
        double real;
        int32_t integer;
        memcpy(&integer, at, sizeof integer);
        memcpy(&real, at, rows[i].integer ? sizeof integer : sizeof real);
        fprintf(to, "  %-20s %g\n", rows[i].name, rows[i].integer ? (double)integer : real);
    }
}
