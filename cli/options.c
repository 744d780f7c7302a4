/* options.c — the options that most subcommands share, parsed the same way everywhere. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "trunnion/backend.h"

enum {
    MOST_OWN = 64,
    MOST_THREADS = 512,  /* the library's limit */
    DEVICE_TIMEOUT = 600 /* seconds: some drivers compile all kernels of a step while it is waited for */
};
enum { FIRST_OWN = 256, FIRST_COMMON = 1000 }; /* getopt's values for options: plus the index in their table */

static bool take_seed(void *seed, const char *text) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 0);
    if (end == text || *end || errno || *text == '-') return false;
    *(uint64_t *)seed = v;
    return true;
}

static bool take_quiet(void *nothing, const char *none) {
    (void)nothing, (void)none;
    (void)setenv("TRUNNION_LOG", "0", 1); /* the library's notices */
    return cli_quiet = true;
}

/* Values of choices are those of tn_device_options. */
static const struct {
    cli_option option;
    unsigned group;   /* the CLI_… bit under which a command accepts it; 0: always */
    const char *help; /* its line */
} common[] = {
    {CLI_FLAG("json", 0, cli_options, json), CLI_JSON,
     "  --json                print one JSON object on standard output and nothing else"},
    {CLI_NAME("device", 0, cli_options, device), CLI_DEVICE,
     "  --device NAME         auto, or a name from `trunnion devices`: cpu, opencl, cuda:1"},
    {CLI_FLAG("strict", 0, cli_options, strict), CLI_DEVICE,
     "  --strict              fail instead of using another device, also for a single op"},
    {CLI_BYTES("mem", 0, cli_options, memory, 0, INT64_MAX), CLI_DEVICE,
     "  --mem SIZE            require this much free memory on the device, as in 6G"},
    {CLI_INT("device-timeout", 0, cli_options, device_timeout, 0, 1000000), CLI_DEVICE,
     "  --device-timeout N    seconds after which a device that does not answer counts as\n"
     "                        lost (default 600; 0: never; cpu: no limit)"},
    {CLI_CHOICE("tensor-cores", 0, cli_options, matrix, "off|half|tf32", 1), CLI_DEVICE,
     "  --tensor-cores KIND   off; half: for f16 and bf16 products (default); tf32: for f32\n"
     "                        products too, with fewer bits"},
    {CLI_CHOICE("vendor", 0, cli_options, vendor, "off|all", 1), CLI_DEVICE,
     "  --vendor KIND         off: own kernels only; all: every installed library of the\n"
     "                        device's vendor (cuBLASLt, cuDNN, rocBLAS, MPS)"},
    {CLI_CHOICE("tune", 0, cli_options, tuning, "cache|first-use|off", 1), CLI_DEVICE,
     "  --tune KIND           measured variants: cache: those measured before (default);\n"
     "                        first-use: also measure at the first use; off: rules only"},
    {CLI_INT("threads", 0, cli_options, threads, 1, MOST_THREADS), CLI_THREADS,
     "  --threads N           CPU threads, 1 to 512"},
    {CLI_NAME("library", 0, cli_options, library), CLI_THREADS,
     "  --library NAMES       libraries for matrix products and convolutions: names from\n"
     "                        `trunnion devices`, auto or none"},
    {CLI_ONE_OF("numerics", 0, cli_options, numerics, "exact|fast"), CLI_THREADS,
     "  --numerics KIND       exact: the same bits everywhere; fast: may round differently\n"
     "                        (cpu only)"},
    {CLI_TAKE("seed", 0, cli_options, seed, take_seed), CLI_SEED, "  --seed N              random seed (default 0)"},
    {CLI_FLAG("verbose", 'v', cli_options, verbose), CLI_VERBOSE, "  -v, --verbose         show more details"},
    {CLI_TAKE_NOTHING("quiet", 0, cli_options, json, take_quiet), 0,
     "  --quiet               errors only: no notices, no progress"},
    {{.name = "help", .letter = 'h'}, 0, "  -h, --help            show this text"},
};
enum { COMMON = sizeof common / sizeof common[0] };

/* The line of a text (may be NULL) that begins with --name, perhaps behind its short form; NULL when there is none. */
static const char *line_on(const char *text, const char *name) {
    size_t length = strlen(name);
    for (; text && *text; text += strcspn(text, "\n"), text += *text != 0) {
        const char *at = text + strspn(text, " ");
        if (at[0] == '-' && at[1] != '-' && at[1] && !strncmp(at + 2, ", ", 2)) at += 4; /* its short form */
        if (at > text && !strncmp(at, "--", 2) && !strncmp(at + 2, name, length) && at[2 + length] == ' ') return text;
    }
    return NULL;
}

void cli_common_help(const cli_command *c, FILE *to) {
    fprintf(to, "\ncommon options%s:\n", c ? "" : ", for commands that support them");
    for (int i = 0; i < COMMON; i++) {
        bool accepted = !c || !common[i].group || common[i].group & c->accepts;
        if (accepted && !(c && line_on(c->help, common[i].option.name))) fprintf(to, "%s\n", common[i].help);
    }
}

bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < least || v > most) return false;
    *out = v;
    return true;
}

bool cli_parse_bytes(const char *text, int64_t *out) {
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    if (end == text || !(v >= 0)) return false;
    const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (unit) {
        for (const char *u = units; u <= unit; u++)
            v *= 1024;
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B' || *end == 'b') end++;
    if (*end || v >= 9e18) return false;
    *out = (int64_t)v;
    return true;
}

/* The index of `word` in "one|other"; -1 if it is missing. */
static int place_of(const char *words, const char *word) {
    size_t length = strlen(word);
    for (int i = 0; *words; i++) {
        size_t n = strcspn(words, "|");
        if (n == length && strncmp(words, word, n) == 0) return i;
        words += n + (words[n] != 0);
    }
    return -1;
}

bool cli_parse_real(const char *text, double least, double most, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno != 0 || !(v >= least && v <= most)) return false;
    *out = v;
    return true;
}

bool cli_take(const cli_option *o, void *wishes, const char *arg) {
    void *at = (char *)wishes + o->at;
    int64_t n = 0;
    switch (o->kind) {
    case CLI_KIND_FLAG: return *(bool *)at = true;
    case CLI_KIND_TEXT: *(const char **)at = arg; return *arg || o->most > 0;
    case CLI_KIND_ONE_OF: *(const char **)at = arg; return place_of(o->words, arg) >= 0;
    case CLI_KIND_INT: return cli_parse_int(arg, (int64_t)o->least, (int64_t)o->most, at);
    case CLI_KIND_INT32:
        if (!cli_parse_int(arg, (int64_t)o->least, (int64_t)o->most, &n)) return false;
        *(int32_t *)at = (int32_t)n;
        return true;
    case CLI_KIND_BYTES:
        return cli_parse_bytes(arg, at) && (double)*(int64_t *)at >= o->least && (double)*(int64_t *)at <= o->most;
    case CLI_KIND_REAL: return cli_parse_real(arg, o->least, o->most, at);
    case CLI_KIND_CHOICE:
        n = place_of(o->words, arg);
        *(int *)at = (int)n + (int)o->least;
        return n >= 0;
    case CLI_KIND_SET: *(int *)at = (int)o->least; return true;
    default: return o->take(at, arg);
    }
}

static bool needs_value(const cli_option *o) {
    return o->kind != CLI_KIND_FLAG && o->kind != CLI_KIND_SET && o->kind != CLI_KIND_TAKE_NOTHING;
}

static void gather_option(const cli_option *o, int val, struct option *long_form, char **letters) {
    *long_form = (struct option){o->name, needs_value(o) ? required_argument : no_argument, NULL, val};
    if (o->letter) *(*letters)++ = o->letter;
    if (o->letter && needs_value(o)) *(*letters)++ = ':';
}

/* Collects the options of a command for getopt, its own ones first: long forms, ended by a row of zeros, and the string
 * of short forms. */
static void gather_options(const cli_command *c, const cli_option *own, struct option *all, char *letters) {
    int n = 0;
    *letters++ = ':';
    for (; own && own[n].name && n < MOST_OWN; n++)
        gather_option(&own[n], FIRST_OWN + n, &all[n], &letters);
    for (int i = 0; i < COMMON; i++)
        if (!common[i].group || common[i].group & c->accepts)
            gather_option(&common[i].option, FIRST_COMMON + i, &all[n++], &letters);
    all[n] = (struct option){0};
    *letters = 0;
}

/* The option for which getopt returned `val`. */
static const cli_option *option_of(const cli_option *own, int val) {
    if (val >= FIRST_COMMON) return &common[val - FIRST_COMMON].option;
    if (val >= FIRST_OWN) return &own[val - FIRST_OWN];
    for (; own && own->name; own++)
        if (own->letter == val) return own;
    int i = 0;
    while (common[i].option.letter != val)
        i++;
    return &common[i].option;
}

static bool is_common(const cli_option *o) {
    for (int i = 0; i < COMMON; i++)
        if (o == &common[i].option) return true;
    return false;
}

cli_fitting cli_fit_state;

/* What `trunnion fit COMMAND` refuses. Its own `--out` of finetune is a folder that it removes. */
static bool is_writing(const cli_option *o) {
    static const char *const names[] = {"save", "save-every", "log", "report", "tensorboard", "trace", "output"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(o->name, names[i]) == 0) return true;
    return false;
}

/* The options that were given, and the places of their values. */
typedef struct places {
    const cli_option *option[MOST_OWN + COMMON];
    const void *list[MOST_OWN + COMMON];
    int count;
} places;

/* This option if it has been given before, or another one that sets the same value; else NULL. Flags and options that
 * collect their values may be repeated. */
static const cli_option *given_before(places *given, const cli_option *o, const void *place) {
    if (!(needs_value(o) || o->kind == CLI_KIND_SET) || o->kind == CLI_KIND_EACH) return NULL;
    for (int i = 0; i < given->count; i++)
        if (given->list[i] == place) return given->option[i];
    given->option[given->count] = o;
    given->list[given->count++] = place;
    return NULL;
}

static void say_second(const cli_command *c, const cli_option *first, const cli_option *second) {
    if (first == second)
        (void)cli_wrong_usage(c, "--%s was given twice; remove one of the two", first->name);
    else
        (void)cli_wrong_usage(c, "--%s and --%s set the same value; remove one of the two", first->name, second->name);
}

/* The first of several names of an option. */
static const char *first_name(const cli_option *own, const cli_option *o) {
    for (; own && own->name && !is_common(o); own++)
        if (own->at == o->at && own->kind == o->kind && own->take == o->take) return own->name;
    return o->name;
}

static const char *options_name_of(const struct option *all, int val) {
    while (all->name && all->val != val)
        all++;
    return all->name ? all->name : "?";
}

/* How a line of help begins that goes on with what the line above says. */
static const char CONTINUED[] = "                        ";

/* typed: one of the option's names; name: the one that the help has. */
static void say_wrong(const cli_command *c, const char *typed, const char *name, const char *value) {
    const char *line = line_on(c->help, name);
    for (int i = 0; i < COMMON && !line; i++)
        line = line_on(common[i].help, name);
    int length = line ? (int)strcspn(line, "\n") : 0;
    while (line && line[length] && !strncmp(line + length + 1, CONTINUED, sizeof CONTINUED - 1))
        length += 1 + (int)strcspn(line + length + 1, "\n");
    (void)cli_wrong_usage(c, "invalid value for --%s: \"%s\"%s%.*s", typed, value, line ? ":\n" : "", length,
                          line ? line : "");
}

static void say_nearest(const cli_command *c, const struct option *all, const char *word) {
    const char *names[MOST_OWN + COMMON];
    int count = 0;
    for (; all[count].name; count++)
        names[count] = all[count].name;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    const char *near = strncmp(name, "--", 2) == 0 ? cli_nearest(name + 2, names, count) : NULL;
    (void)cli_wrong_usage(c, "unknown option %s%s%s%s", word, near ? "; did you mean --" : "", near ? near : "",
                          near ? "?" : "");
}

/* getopt_long has found no such option (?), or no value (:); `word` is the argument it looked at last. */
static void say_unknown(const cli_command *c, const struct option *all, int val, const char *word) {
    if (val == ':')
        (void)cli_wrong_usage(c, "%s requires a value", word);
    else if (optopt >= 256)
        (void)cli_wrong_usage(c, "--%s takes no value", options_name_of(all, optopt));
    else if (optopt)
        (void)cli_wrong_usage(c, "unknown option -%c", optopt);
    else
        say_nearest(c, all, word);
}

/* What stands for options that are not given. */
static void take_environment(const cli_command *c, cli_options *o) {
    const char *device = getenv("TRUNNION_DEVICE"), *threads = getenv("TRUNNION_THREADS");
    int64_t n;
    if (c->accepts & CLI_DEVICE && device && *device) o->device = device;
    if (c->accepts & CLI_THREADS && threads && cli_parse_int(threads, 1, MOST_THREADS, &n)) o->threads = (int)n;
}

int cli_parse(const cli_command *c, int argc, char **argv, cli_options *o, const cli_option *own, void *wishes,
              int *status) {
    struct option all[MOST_OWN + COMMON + 1];
    char letters[2 * (MOST_OWN + COMMON) + 2];
    gather_options(c, own, all, letters);
    places given = {.count = 0};
    *o = (cli_options){.device = "auto", .device_timeout = DEVICE_TIMEOUT};
    *status = CLI_USAGE;
    if (!cli_environment_is_valid(c)) return -1;
    take_environment(c, o);
    optind = 0; /* begin anew, whatever was parsed before */
    for (;;) {
        int val = getopt_long(argc, argv, letters, all, NULL);
        if (val == -1) return optind;
        if (val == '?' || val == ':') {
            say_unknown(c, all, val, argv[optind - 1]);
            return -1;
        }
        const cli_option *found = option_of(own, val);
        if (strcmp(found->name, "help") == 0) {
            cli_help(c, stdout);
            *status = CLI_OK;
            return -1;
        }
        if (cli_fit_state.on && is_writing(found)) {
            (void)cli_wrong_usage(c, "--%s has no effect: fit computes nothing that could be written; remove it",
                                  found->name);
            return -1;
        }
        bool shared = is_common(found);
        void *into = shared ? (void *)o : wishes;
        const cli_option *before = given_before(&given, found, (char *)into + found->at);
        if (before && !cli_fit_state.on) { /* fit appends its own values */
            say_second(c, before, found);
            return -1;
        }
        if (!cli_take(found, into, optarg)) {
            say_wrong(c, found->name, first_name(own, found), optarg ? optarg : "");
            return -1;
        }
        if (shared)
            o->seed_given |= strcmp(found->name, "seed") == 0;
        else
            o->given |= UINT64_C(1) << (found - own);
    }
}

bool cli_is_given(const cli_options *o, const cli_option *own, const char *name) {
    for (int i = 0; own[i].name; i++)
        if (strcmp(own[i].name, name) == 0) return o->given >> i & 1;
    return false;
}

static void say_steps(const tn_selection *s) {
    for (int i = 0; i < s->step_count; i++) {
        const tn_selection_step *step = &s->steps[i];
        cli_print(stderr, "  %s %s%s%s\n", step->chosen ? "✓" : "✗", step->id, step->chosen ? "" : ": ", step->reason);
        if (!step->chosen && step->fix[0]) cli_print(stderr, "      → %s\n", step->fix);
    }
}

/* The device was asked for by name: then another one in its place is a fallback, whatever the reason. */
static bool by_name;

/* `auto` does not fall back to a backend without devices on this machine. */
static bool is_absent(const tn_selection_step *step) {
    static const char *const codes[] = {"not_built", "platform", "library_not_found", "no_device", "not_asked"};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strcmp(step->reason_code, codes[i]) == 0) return true;
    return false;
}

/* Was passed over, though it was asked for or could have been used? */
static bool is_fallback(const tn_selection *s, int i) {
    return !s->steps[i].chosen && ((by_name && i == 0) || !is_absent(&s->steps[i]));
}

/* In "cublaslt,cudnn". */
static bool is_listed(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}

/* A vendor's library computes on its own devices alone: asked for beside another one, it does nothing. */
static void say_idle_library(const char *libraries, const tn_device *device) {
    tn_device_info d = {.struct_size = sizeof d};
    tn_library_info l = {.struct_size = sizeof l};
    for (int i = 0; tn_device_get_info(device, &d) == TN_OK && i < tn_library_count(); i++) {
        if (tn_library_at(i, &l) != TN_OK || !is_listed(libraries, l.name)) continue;
        if (strcmp(l.backend, "cpu") == 0 || strcmp(l.backend, d.backend) == 0) continue;
        cli_print(stderr, "trunnion: --library %s applies to %s devices; on %s Trunnion's own kernels are used\n",
                  l.name, l.backend, d.id);
    }
}

/* Fast numerics are the processor's: on another device they change nothing. */
static void say_idle_numerics(const tn_device *device) {
    tn_device_info d = {.struct_size = sizeof d};
    if (tn_device_get_info(device, &d) != TN_OK || strcmp(d.backend, "cpu") == 0) return;
    cli_print(stderr,
              "trunnion: --numerics fast applies only to the CPU; %s ignores it (TRUNNION_MATRIX controls the rounding "
              "of its matrix units)\n",
              d.id);
}

tn_device_options cli_device_options(const cli_options *o) {
    tn_device_options d = TN_DEVICE_DEFAULTS;
    d.minimum_memory = o->memory;
    d.threads = o->threads;
    d.fallback = o->strict ? TN_FALLBACK_STRICT : TN_FALLBACK_WARN;
    d.time_limit = (double)o->device_timeout;
    d.matrix = o->matrix;
    d.vendor = o->vendor;
    d.tuning = o->tuning;
    d.dry_run = cli_fit_state.on && !cli_fit_state.measures;
    return d;
}

const char *cli_size_text(char out[32], int64_t bytes, int digits) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    int u = 0;
    for (; v >= 1024 && u < 5; u++)
        v /= 1024;
    snprintf(out, 32, "%.*f %s", u ? digits : 0, v, units[u]);
    return out;
}

tn_status cli_plan_dry(tn_device *device, const cli_options *o, int64_t limit,
                       tn_status (*work)(void *ctx, tn_device *dry), void *ctx, int64_t *bytes, int64_t *pool) {
    tn_device_options d = cli_device_options(o);
    tn_device_info info = {.struct_size = sizeof info};
    tn_pool_stats s = {.struct_size = sizeof s};
    tn_device *dry = NULL;
    d.dry_run = true;
    d.pool_max = (size_t)limit;
    TRY(tn_device_get_info(device, &info));
    TRY(tn_device_open(info.id, &d, NULL, &dry));
    tn_status status = tn_set_current_device(dry);
    if (status == TN_OK) status = work(ctx, dry);
    if (status == TN_OK) status = tn_device_get_pool_stats(dry, &s);
    if (status == TN_OK) *bytes = strcmp(info.backend, "cpu") == 0 ? s.dry_peak_bytes : s.peak_bytes;
    if (status == TN_OK && pool) *pool = s.peak_bytes;
    (void)tn_set_current_device(device);
    tn_clear_plans();
    tn_device_close(dry);
    return status;
}

tn_status cli_check_training(tn_device *device, const cli_options *o, int64_t limit,
                             tn_status (*work)(void *ctx, tn_device *dry), void *ctx) {
    char why[TN_REASON_BYTES], whole[96] = "", size[32];
    tn_device_info info = {.struct_size = sizeof info};
    int64_t bytes, pool;
    if (cli_fit_state.on || cli_plan_dry(device, o, limit, work, ctx, &bytes, &pool) != TN_ERR_MEMORY)
        return TN_OK; /* any other error is reported by the run itself */
    snprintf(why, sizeof why, "%s", tn_error());
    if (cli_plan_dry(device, o, 0, work, ctx, &bytes, &pool) == TN_OK)
        snprintf(whole, sizeof whole, "; without a limit it takes %s", cli_size_text(size, pool, 1));
    (void)tn_device_get_info(device, &info);
    return tn_backend_fail(TN_ERR_MEMORY,
                           "the training does not fit into the %s of --memory on %s%s; nothing was loaded. %s. Allow "
                           "more with --memory, or use another device (trunnion devices lists them)",
                           cli_size_text(size, limit, 1), info.id, whole, why);
}

tn_device *cli_choose_device(const cli_options *o, tn_selection *s, int *code) {
    tn_device_options d = cli_device_options(o);
    *s = (tn_selection){.struct_size = sizeof *s};
    tn_device *device = NULL;
    by_name = strcmp(o->device, "auto") != 0;
    if (o->numerics) (void)tn_set_numerics(*o->numerics == 'f' ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT);
    tn_status status = o->library ? tn_set_library(o->library) : TN_OK;
    if (status == TN_OK) status = tn_device_open(o->device, &d, s, &device);
    if (status == TN_OK) status = tn_set_current_device(device);
    if (status == TN_OK && cli_fit_state.on && !cli_fit_state.device)
        status = tn_device_open(s->chosen, &d, NULL, &cli_fit_state.device); /* the command closes its own */
    if (o->verbose && status == TN_OK) say_steps(s);
    if (o->library && status == TN_OK) say_idle_library(o->library, device);
    if (o->numerics && *o->numerics == 'f' && status == TN_OK) say_idle_numerics(device);
    cli_show_compiling(status == TN_OK);
    if (status == TN_OK) return device;
    *code = cli_failed();
    if (status == TN_ERR_ARGUMENT) *code = CLI_USAGE;
    tn_device_close(device);
    return NULL;
}

tn_device *cli_open_device(const cli_options *o, int *code) {
    tn_selection s;
    return cli_choose_device(o, &s, code);
}

void cli_json_fallback(cli_json *j, const tn_selection *s, const tn_device *device) {
    tn_device_info info = {.struct_size = sizeof info};
    tn_host_use use = {.struct_size = sizeof use};
    cli_json_write(j, "'fallback': [");
    for (int i = 0; s && i < s->step_count; i++) {
        if (!is_fallback(s, i)) continue;
        cli_json_write(j, "{'id': %s, 'reason': %s}", s->steps[i].id, s->steps[i].reason);
    }
    int count = tn_device_get_info(device, &info) == TN_OK ? tn_device_host_count(device) : 0;
    for (int i = 0; i < count && tn_device_host_at(device, i, &use) == TN_OK; i++) {
        cli_json_write(j, "{'id': %s, 'operation': %s, 'code': %s, 'reason': %s, 'operations': %jd}", info.id, use.op,
                       use.code, use.reason, use.operations);
    }
    cli_json_write(j, "]");
}

/* ---- what a mistyped command or option was meant to be ----------------------------------------------------------- */

enum { LONGEST = 32, FARTHEST = 3 };

static int least(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }

/* Letters to insert, delete or replace to get from one word to the other (Levenshtein 1966), row by row. */
static int edit_distance(const char *a, const char *b) {
    int row[LONGEST + 1];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n];
}

/* Words of other programs, or of another command here, and ours. */
static const char *our_word(const char *typed) {
    static const struct {
        const char *theirs, *ours;
    } rows[] = {{"epochs", "steps"},        {"num-epochs", "epochs"}, {"max-new-tokens", "max-tokens"},
                {"num-predict", "predict"}, {"n-predict", "predict"}, {"ctx-size", "context"},
                {"num-ctx", "context"},     {"temp", "temperature"},  {"learning-rate", "lr"},
                {"batch-size", "batch"},    {"checkpoint", "resume"}, {"output", "save"},
                {"show", "info"},           {"ls", "list"},           {"download", "pull"},
                {"quantize", "convert"},    {"server", "serve"},      {"test", "certify"},
                {"benchmark", "bench"},     {"complete", "generate"}, {"transcript", "transcribe"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].theirs, typed) == 0) return rows[i].ours;
    return NULL;
}

/* Letters that may be wrong in a word of this length. */
static int most_wrong(size_t length) { return length <= 3 ? 1 : length <= 6 ? 2 : FARTHEST; }

const char *cli_nearest(const char *typed, const char *const *names, int count) {
    const char *best = NULL, *ours = our_word(typed);
    int best_distance = most_wrong(strlen(typed)) + 1;
    for (int i = 0; i < count && ours; i++)
        if (strcmp(names[i], ours) == 0) return names[i];
    if (strlen(typed) > LONGEST) return NULL;
    for (int i = 0; i < count; i++) {
        int d = strlen(names[i]) > LONGEST ? best_distance : edit_distance(typed, names[i]);
        if (d >= best_distance || d >= (int)strlen(names[i])) continue;
        best = names[i];
        best_distance = d;
    }
    return best;
}
