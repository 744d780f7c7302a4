/* test_cli.c — promises of the command: its options, JSON, plot and progress line (the helpers, included here), and the
 * exit codes of `trunnion` itself, where it was built beside this program. */
#include "test_support.h"

#include <math.h>

#include "cli/environment.c"
#include "cli/json_out.c"
#include "cli/options.c"
#include "cli/plot.c"
#include "cli/progress.c"
#include "cli/terminal.c"

/* What main.c and help.c have for the helpers. */
static char complaint[512];
static int helped;

int cli_wrong_usage(const cli_command *c, const char *format, ...) {
    va_list args;
    (void)c;
    va_start(args, format);
    vsnprintf(complaint, sizeof complaint, format, args);
    va_end(args);
    return CLI_USAGE;
}

int cli_failed(void) { return CLI_FAILED; }
void cli_stop_begin(void) {}

int cli_fail(tn_status status, const char *format, ...) {
    (void)status;
    (void)format;
    return CLI_FAILED;
}

void cli_help(const cli_command *c, FILE *to) {
    (void)c;
    (void)to;
    helped++;
}

void cli_put_help(const char *text, FILE *to) { fputs(text, to); }

/* ---- options ----------------------------------------------------------------------------------------------------- */

static struct taken {
    const char *name, *one, *made, *each;
    bool flag;
    int64_t whole, bytes;
    int32_t small, choice;
    double real;
} taken;

static bool take_upper(void *at, const char *arg) {
    *(const char **)at = arg;
    return *arg >= 'A' && *arg <= 'Z';
}

/* Parses words separated by blanks. */
static int parse(unsigned accepts, const char *line, cli_options *o, int *status) {
    static char text[256];
    static char *argv[32];
    static const cli_option own[] = {
        CLI_NAME("name", 'n', struct taken, name),
        CLI_NAME("called", 0, struct taken, name),
        CLI_FLAG("flag", 0, struct taken, flag),
        CLI_ONE_OF("one", 0, struct taken, one, "red|green"),
        CLI_INT("whole", 'w', struct taken, whole, -1, 9),
        CLI_INT("small", 0, struct taken, small, 0, 9),
        CLI_BYTES("bytes", 0, struct taken, bytes, 1, 1 << 20),
        CLI_REAL("real", 0, struct taken, real, 0, 1),
        CLI_CHOICE("choice", 0, struct taken, choice, "a|b", 5),
        CLI_SET("set", 0, struct taken, choice, 3),
        CLI_TAKE("made", 0, struct taken, made, take_upper),
        CLI_EACH("each", 0, struct taken, each, take_upper),
        {0},
    };
    const cli_command c = {
        .name = "test",
        .accepts = accepts,
        .help = "  -n, --name WORD       how it is called\n  --flag                not to be mistaken for --name\n",
    };
    int argc = 1;
    argv[0] = strcpy(text + 200, "test");
    char *rest = NULL;
    snprintf(text, 200, "%s", line);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    complaint[0] = 0;
    taken = (struct taken){0};
    return cli_parse(&c, argc, argv, o, own, &taken, status);
}

static void options_are_read_wherever_they_stand(void **state) {
    (void)state;
    cli_options o;
    int status;
    int at = parse(CLI_ALL, "file --json --device cuda:1 -v -n N --strict --mem 6G --threads 3 --seed 0x10 more", &o,
                   &status);
    assert_int_equal(at, 14); /* file and more have moved to the end */
    assert_true(o.json && o.verbose && o.strict && o.seed_given);
    assert_string_equal(o.device, "cuda:1");
    assert_int_equal(o.memory, (int64_t)6 << 30);
    assert_int_equal(o.threads, 3);
    assert_int_equal(o.seed, 16);
    assert_string_equal(taken.name, "N");
    assert_int_equal(o.given, 1);
    assert_int_equal(parse(CLI_ALL, "", &o, &status), 1);
    assert_string_equal(o.device, "auto");
    assert_false(o.json || o.verbose || o.strict || o.seed_given);
}

static void own_options_become_wishes(void **state) {
    (void)state;
    static const char *const wrong[] = {"--name=",   "--one blue", "--one re", "--whole 10", "-w -2",     "--small x",
                                        "--bytes 0", "--bytes 2M", "--real 2", "--choice c", "--made low"};
    cli_options o;
    int status;
    assert_true(parse(0, "--flag --one green -w -1 --small 9 --bytes 1M --real 0.5 --choice b --made Up", &o, &status) >
                0);
    assert_true(taken.flag && taken.real == 0.5);
    assert_string_equal(taken.one, "green");
    assert_string_equal(taken.made, "Up");
    assert_int_equal(taken.whole, -1);
    assert_int_equal(taken.small, 9);
    assert_int_equal(taken.bytes, 1 << 20);
    assert_int_equal(taken.choice, 6);
    assert_true(parse(0, "--flag --flag --each A --each B", &o, &status) > 0);
    assert_string_equal(taken.each, "B");
    assert_true(parse(0, "--set", &o, &status) > 0);
    assert_int_equal(taken.choice, 3);
    for (size_t i = 0; i < TN_COUNT(wrong); i++)
        if (parse(0, wrong[i], &o, &status) != -1 || status != CLI_USAGE) fail_msg("%s is taken", wrong[i]);
    static const char *const twice[][2] = {{"-n A --name A", "--name was given twice"},
                                           {"-n A --called A", "--name and --called set the same value"},
                                           {"--threads 1 --threads 2", "--threads was given twice"},
                                           {"--set --choice a", "--set and --choice set the same value"}};
    for (size_t i = 0; i < TN_COUNT(twice); i++) {
        assert_int_equal(parse(CLI_ALL, twice[i][0], &o, &status), -1);
        assert_text_has(complaint, twice[i][1]);
    }
    assert_int_equal(parse(0, "--called=", &o, &status), -1);
    assert_text_has(complaint, "--name"); /* the first name of a value */
}

static void settings_of_the_device_become_its_options(void **state) {
    (void)state;
    cli_options o;
    int status;
    assert_true(parse(CLI_ALL, "", &o, &status) > 0);
    tn_device_options d = cli_device_options(&o), none = TN_DEVICE_DEFAULTS;
    none.time_limit = 600;
    assert_memory_equal(&d, &none, sizeof d);
    assert_true(parse(CLI_ALL, "--tensor-cores tf32 --vendor all --tune first-use --device-timeout 7 --strict --mem 1K",
                      &o, &status) > 0);
    d = cli_device_options(&o);
    assert_int_equal(d.matrix, 3);
    assert_int_equal(d.vendor, 2);
    assert_int_equal(d.tuning, 2);
    assert_int_equal(d.fallback, TN_FALLBACK_STRICT);
    assert_int_equal(d.minimum_memory, 1024);
    assert_float_equal(d.time_limit, 7, 0);
    assert_true(parse(CLI_ALL, "--tensor-cores off --vendor off --tune off --device-timeout 0", &o, &status) > 0);
    d = cli_device_options(&o);
    assert_int_equal(d.matrix, 1);
    assert_int_equal(d.vendor, 1);
    assert_int_equal(d.tuning, 3);
    assert_float_equal(d.time_limit, 0, 0);
}

static void wrong_options_are_named(void **state) {
    (void)state;
    const struct {
        const char *line, *part;
    } rows[] = {
        {"--jsn", "--jsn"},       {"--threads 0", "threads"}, {"--threads many", "many"}, {"--mem -3", "-3"},
        {"--tune now", "now"},    {"--vendor on", "on"},      {"--tensor-cores 1", "1"},  {"--device-timeout x", "x"},
        {"--mem 3X", "3X"},       {"--seed -1", "-1"},        {"--device", "--device"},   {"-n", "-n"},
        {"--one wrong", "wrong"}, {"file -x", "-x"},          {"--seed 1e3", "1e3"},      {"--json=3", "json"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        cli_options o;
        int status = -1;
        assert_int_equal(parse(CLI_ALL, rows[i].line, &o, &status), -1);
        assert_int_equal(status, CLI_USAGE);
        assert_text_has(complaint, rows[i].part);
    }
}

/* Prints common help into a buffer. */
static void common_help(const cli_command *c, char *out, size_t size) {
    FILE *f = fmemopen(out, size, "w");
    assert_non_null(f);
    cli_common_help(c, f);
    fclose(f);
}

static void wrong_values_show_the_line_of_the_help(void **state) {
    (void)state;
    cli_options o;
    int status;
    parse(CLI_ALL, "--name=", &o, &status);
    assert_text_has(complaint, "\n  -n, --name WORD       how it is called");
    assert_null(strstr(complaint, "--flag"));
    parse(CLI_ALL, "--threads 0", &o, &status);
    assert_text_has(complaint, "1 to 512");
}

static void help_has_each_common_option_once(void **state) {
    (void)state;
    char text[4096];
    const cli_command c = {
        .name = "test", .accepts = CLI_JSON | CLI_SEED, .help = "  --json                its own words\n"};
    common_help(&c, text, sizeof text);
    assert_text_has(text, "--seed N");
    assert_null(strstr(text, "--json"));
    assert_null(strstr(text, "--device"));
    common_help(NULL, text, sizeof text);
    assert_text_has(text, "--json");
    assert_text_has(text, "--device");
}

static void options_without_a_meaning_are_refused(void **state) {
    (void)state;
    cli_options o;
    int status;
    assert_int_equal(parse(CLI_JSON, "--seed 3", &o, &status), -1);
    assert_int_equal(parse(CLI_JSON, "-v", &o, &status), -1);
    assert_int_equal(status, CLI_USAGE);
    assert_int_equal(parse(CLI_JSON, "--json", &o, &status), 2);
    helped = 0;
    assert_int_equal(parse(CLI_JSON, "--help", &o, &status), -1);
    assert_int_equal(status, CLI_OK);
    assert_int_equal(helped, 1);
}

static void sizes_are_powers_of_1024(void **state) {
    (void)state;
    const struct {
        const char *text;
        int64_t bytes; /* -1: wrong */
    } rows[] = {
        {"0", 0},
        {"100", 100},
        {"1K", 1024},
        {"6G", (int64_t)6 << 30},
        {"1.5GiB", (int64_t)3 << 29},
        {"2mb", 2097152},
        {"512MiB", 536870912},
        {"1T", (int64_t)1 << 40},
        {"5B", 5},
        {"", -1},
        {"G", -1},
        {"3GG", -1},
        {"-1", -1},
        {"nan", -1},
        {"1e300", -1},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        int64_t v = 0;
        bool good = cli_parse_bytes(rows[i].text, &v);
        if (good != (rows[i].bytes >= 0) || (good && v != rows[i].bytes))
            fail_msg("\"%s\": %lld", rows[i].text, (long long)v);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void json_reads_back(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    cli_json j = {.out = open_memstream(&text, &size)};
    const char *none = NULL;
    cli_json_write(&j, "{%s: %s", "quote \"\\\n\x01",
                   "gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80 \xFF\xC0\x80\xED\xA0\x80 end");
    cli_json_write(&j, "'none': %s, 'zero': %.*s, 'seed': %ju, 'list': [", none, 4, "a\0b\xC3", (uintmax_t)UINT64_MAX);
    cli_json_write(&j, "%g, %g", 0.1, 1.0 / 3);
    cli_json_write(&j, "%s: %g, %jd, {", none, NAN, (intmax_t)INT64_MIN);
    cli_json_write(&j, "}, %i, %d, %u, %f, '[]'", true, -1, 7u, 3.0);
    cli_json_write(&j, "], 'empty': {}}");
    fclose(j.out);
    assert_non_null(strstr(text, "\"zero\": \"a\\u0000b?\", \"seed\": 18446744073709551615,"));
    tn_json_doc *doc;
    assert_ok(tn_json_parse(text, size, &doc));
    const tn_json *root = tn_json_root(doc), *list = tn_json_get(root, "list");
    assert_string_equal(tn_json_string(tn_json_at(root, 0), ""), "gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80 ?????? end");
    assert_int_equal(tn_json_kind_of(tn_json_get(root, "none")), TN_JSON_NULL);
    assert_int_equal(tn_json_length(list), 10);
    assert_non_null(strstr(text, "{}, true, -1, 7, 3.0, \"[]\"], \"empty\": {}}\n"));
    assert_true(tn_json_number(tn_json_at(list, 0), 0) == 0.1);
    assert_true(tn_json_number(tn_json_at(list, 1), 0) == 1.0 / 3);
    assert_int_equal(tn_json_kind_of(tn_json_at(list, 2)), TN_JSON_NULL);
    assert_true(tn_json_int(tn_json_at(list, 3), 0) == INT64_MIN);
    assert_int_equal(text[size - 1], '\n');
    tn_json_free(doc);
    free(text);
}

/* ---- plot and progress ------------------------------------------------------------------------------------------- */

/* Valid until the next call. */
static const char *plot_text(const double *y, int n, int rows) {
    static char text[1 << 16];
    text[0] = 0;
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    cli_plot(f, "loss", "steps", y, n, rows);
    fclose(f);
    return text;
}

/* Rows (from 0 below the title) of the stars in column x of the plain plot. */
static bool star_at(const char *plot, int row, int x) {
    const char *line = strchr(plot, '\n') + 1;
    for (; row > 0; row--)
        line = strchr(line, '\n') + 1;
    return line[LABEL_COLUMNS + 1 + x] == '*';
}

static void plot_goes_from_corner_to_corner(void **state) {
    (void)state;
    setenv("LC_ALL", "C", 1);
    setenv("COLUMNS", "60", 1);
    double y[500];
    for (int i = 0; i < 500; i++)
        y[i] = 500 - i;
    const char *plot = plot_text(y, 500, 8);
    assert_true(star_at(plot, 0, 0));
    assert_true(star_at(plot, 7, 49));
    assert_false(star_at(plot, 7, 0));
    assert_false(star_at(plot, 0, 49));
    assert_text_has(plot, "500 |");
    assert_text_has(plot, "steps");
}

static void plot_keeps_spikes_and_leaves_out_what_is_no_number(void **state) {
    (void)state;
    double y[10000] = {0};
    y[5000] = 7;
    y[100] = NAN;
    y[200] = INFINITY;
    const char *plot = plot_text(y, 10000, 5);
    assert_true(star_at(plot, 0, 25));
    assert_text_has(plot, "7 |");
    const double none[2] = {NAN, NAN}, one = 3;
    assert_string_equal(plot_text(none, 2, 5), "");
    assert_text_has(plot_text(&one, 1, 5), "3 |");
}

static void plot_uses_braille_where_it_may(void **state) {
    (void)state;
    setenv("LC_ALL", "C.UTF-8", 1);
    const double y[] = {1, 3, 2};
    const char *plot = plot_text(y, 3, 4);
    assert_text_has(plot, "\xE2\xA0");
    setenv("LC_ALL", "C", 1);
}

/* ---- text for people --------------------------------------------------------------------------------------------- */

static const char *wrapped(const char *text, int indent, int width) {
    static char out[1024];
    memset(out, 0, sizeof out);
    FILE *f = fmemopen(out, sizeof out, "w");
    assert_non_null(f);
    put_wrapped(f, text, indent, width);
    fclose(f);
    return out;
}

static void signs_are_ascii_where_the_locale_says_so(void **state) {
    (void)state;
    setenv("LC_ALL", "C", 1);
    assert_string_equal(wrapped("✗ a·b → c — gr\xC3\xBC\xC3\x9F\x65 …", 0, 80), "- a|b -> c - gr??e ...\n");
    assert_string_equal(wrapped("cut \xE2\x9C", 0, 80), "cut ?\n");
    setenv("LC_ALL", "C.UTF-8", 1);
    assert_string_equal(wrapped("✗ a → b", 0, 80), "✗ a → b\n");
    setenv("LC_ALL", "C", 1);
}

static void long_text_breaks_between_words(void **state) {
    (void)state;
    assert_string_equal(wrapped("one two three four", 2, 10), "one two\n  three\n  four\n");
    assert_string_equal(wrapped("one two three four", 2, 11), "one two\n  three\n  four\n");
    assert_string_equal(wrapped("one two three four", 2, 14), "one two three\n  four\n");
    assert_string_equal(wrapped("a_word_that_is_too_long is kept", 2, 12), "a_word_that_is_too_long\n  is kept\n");
    assert_string_equal(wrapped("one\ntwo  three", 2, 40), "one\n  two  three\n");
    assert_string_equal(wrapped("", 2, 40), "\n");
    setenv("LC_ALL", "C.UTF-8", 1);
    assert_string_equal(wrapped("→→→→ four", 0, 10), "→→→→ four\n"); /* columns, not bytes */
    setenv("LC_ALL", "C", 1);
}

static void progress_is_silent_without_a_terminal(void **state) {
    (void)state;
    cli_progress p;
    cli_progress_begin(&p, "training", "steps", 10);
    if (isatty(2)) skip();
    assert_false(p.live);
    for (int i = 1; i <= 10; i++)
        cli_progress_update(&p, i, "");
    assert_true(cli_progress_rate(&p) > 0);
    cli_progress_end(&p);
}

static void progress_bar_fills(void **state) {
    (void)state;
    char text[BAR_COLUMNS * 3 + 4];
    setenv("LC_ALL", "C", 1);
    bar_text(text, sizeof text, 0.5, BAR_COLUMNS);
    assert_int_equal(strlen(text), BAR_COLUMNS);
    assert_int_equal(strspn(text, "#"), BAR_COLUMNS / 2);
    bar_text(text, sizeof text, 7, BAR_COLUMNS);
    assert_int_equal(strspn(text, "#"), BAR_COLUMNS);
    bar_text(text, sizeof text, -1, BAR_COLUMNS);
    assert_int_equal(strspn(text, " "), BAR_COLUMNS);
    char line[] = "gr\xC3\xBC\xC3\x9F"
                  "e";
    cut_progress(line, 4);
    assert_string_equal(line, "gr\xC3\xBC\xC3\x9F");
}

static void progress_line_keeps_rate_and_time_left(void **state) {
    (void)state;
    char line[LINE_BYTES];
    setenv("LC_ALL", "C", 1);
    cli_progress p = {.what = "cartpole", .unit = "steps", .total = 100000, .done = 50000, .rate = 1e4};
    static const char end[] = " 50000/100000  loss -0.0012  return 489  1e+04 steps/s  5 s left";
    const struct { int width, bar; } rows[] = {{120, BAR_COLUMNS}, {79, 6}, {85, 12}, {78, 0}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        line_text(line, sizeof line, &p, "loss -0.0012  return 489", rows[i].width);
        assert_text_has(line, end);
        assert_int_equal(strlen(line), strlen("cartpole") + strlen(end) + (size_t)(rows[i].bar ? rows[i].bar + 1 : 0));
        assert_int_equal(strspn(line + strlen("cartpole "), "#"), rows[i].bar / 2);
    }
    p.done = 100096; /* the last stretch may go beyond */
    line_text(line, sizeof line, &p, "", 120);
    assert_text_has(line, " 100000/100000 ");
}

static void bytes_that_are_no_characters_become_question_marks(void **state) {
    (void)state;
    char text[] = "\xA4s \xC3\xA4\xC3x \xE2\x82\xAC\xE2\x82";
    cli_whole_characters(text, sizeof text - 1);
    assert_string_equal(text, "?s \xC3\xA4?x \xE2\x82\xAC??");
}

/* ---- the command itself ------------------------------------------------------------------------------------------ */

/* Runs `trunnion ARGUMENTS` and gives its exit code; what it says goes to `heard`. */
static int run_command(const char *arguments, char *heard, size_t size) {
    char command[800];
    snprintf(command, sizeof command, "%%s %s", arguments);
    return run_trunnion(command, heard, size);
}

static void command_ends_with_the_promised_codes(void **state) {
    (void)state;
    static const test_call rows[] = {
        {"2>&1", 2, "usage: trunnion"},
        {"--version", 0, "trunnion 0."},
        {"help", 0, "devices"},
        {"help devices", 0, "examples"},
        {"devices --help", 0, "examples"},
        {"help nothing 2>&1", 2, "unknown command"},
        {"devises 2>&1", 2, "did you mean devices?"},
        {"devices --nothing 2>&1", 2, "--nothing"},
        {"devices stray 2>&1", 2, "stray"},
        {"train --help", 0, "--threads N"},
        {"train digits --steps -1 2>&1", 2, "a whole number"},
        {"train digits --policy lstm 2>&1", 2, "does not apply to the task digits"},
        {"train cartpole --amp f16 2>&1", 2, "--amp does not apply to the task cartpole"},
        {"train digits --amp f32 2>&1", 2, "--amp"},
        {"train chars --amp f16 --steps 2 --json", 0, "\"loss_scale\": 65536, \"skipped_steps\": 0"},
        {"train digits --save /dev/null/folder/file 2>&1", 1, "cannot write"},
        {"train digits --mem 900T 2>&1", 1, "no device has 900 TiB free; the most"},
        {"train digits --device nosuch 2>&1", 2, "unknown device \"nosuch\""},
        {"train digits --devices cpu,cpu --device cuda 2>&1", 2, "--device cuda with --devices"},
        {"run none.onnx --std 1,0,1 2>&1", 2, "invalid value for --std"},
        {"certify --device cpu:7 2>&1", 1, "cpu:7"},
        {"certify --device cpu --only nosuch 2>&1", 2, "nosuch"},
        {"devices", 0, "recommended: "},
        {"devices -v", 0, "cpu"},
        {"devices --reasons", 0, "library_not_found"},
        {"devices --json", 0, "\"recommended\": "},
        {"devices --json 2>&1 >/dev/full", 1, "standard output"},
    };
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    assert_calls(rows, TN_COUNT(rows), run_command);
}

/* The same in the scratch folder. */
static int run_in_scratch(const char *arguments, char *heard, size_t size) {
    char command[1200];
    snprintf(command, sizeof command, "cd '%s' && '%%s' %s", scratch_folder, arguments);
    return run_trunnion(command, heard, size);
}

/* A word that is near no command gets no guess. A file of another kind than the command reads is called by its kind. */
static void mistakes_are_answered_with_what_to_do(void **state) {
    (void)state;
    static const test_call rows[] = {
        {"foo 2>&1", 2, "unknown command \"foo\"\n"},
        {"trian 2>&1", 2, "did you mean train?"},
        {"ls 2>&1", 2, "did you mean list?"},
        {"train digits --epochs 3 2>&1", 2, "did you mean --steps?"},
        {"generate -m x --max-tokens -4 2>&1", 2, "invalid value for --max-tokens"},
        {"generate no.gguf hi 2>&1", 2, "pass the model with -m and the text with -p"},
        {"generate -m owner/name -p hi 2>&1", 1, "`trunnion pull owner/name`"},
        {"generate -m owner/name.gguf -p hi 2>&1", 1, "cannot open"},
        {"run note 2>&1", 1, "it looks like text"},
        {"run weights 2>&1", 1, "it looks like a GGUF file: trunnion generate, chat and serve use it"},
        {"run empty 2>&1", 1, "it looks like an empty file"},
        {"generate -m ./network -p hi 2>&1", 1, "it looks like an ONNX model: trunnion run runs it"},
        {"generate -m ./note -p hi --json 2>/dev/null", 1, "\"fix\": \"it looks like text\""},
        {"info note 2>&1", 1, "it looks like text"},
        {"train chars --resume note 2>&1", 1, "is not a checkpoint: it looks like text"},
    };
    write_file(test_scratch("note"), "hello there");
    write_file(test_scratch("network"), "\x08\x07\x12\x01x\x3a\x01x");
    write_file(test_scratch("weights"), "GGUF\3");
    write_file(test_scratch("empty"), "");
    assert_calls(rows, TN_COUNT(rows), run_in_scratch);
}

static void listing_is_ascii_where_the_locale_says_so(void **state) {
    (void)state;
    char heard[65536];
    setenv("LC_ALL", "C", 1);
    static const char *const commands[] = {"devices -v", "devices --reasons", "help devices", "help train", "help"};
    for (size_t i = 0; i < TN_COUNT(commands); i++) {
        assert_int_equal(run_command(commands[i], heard, sizeof heard), 0);
        for (const char *c = heard; *c; c++)
            if (*c & 0x80) fail_msg("trunnion %s says: %.40s", commands[i], c);
    }
    setenv("LC_ALL", "C.UTF-8", 1);
    assert_int_equal(run_command("devices", heard, sizeof heard), 0);
    assert_text_has(heard, "✓ cpu");
    setenv("LC_ALL", "C", 1);
}

static void devices_json_has_the_promised_keys(void **state) {
    (void)state;
    static const char *const of_backend[] = {"name", "available", "reason", "fix", "devices"};
    static const char *const of_device[] = {
        "id", "name", "total_memory", "free_memory", "compute_capability", "unified_memory", "software"};
    char heard[65536];
    assert_int_equal(run_command("devices --json", heard, sizeof heard), 0);
    tn_json_doc *doc;
    assert_ok(tn_json_parse(heard, strlen(heard), &doc));
    const tn_json *backends = tn_json_get(tn_json_root(doc), "backends");
    assert_true(tn_json_length(backends) >= 9);
    for (size_t i = 0; i < tn_json_length(backends); i++) {
        const tn_json *b = tn_json_at(backends, i), *devices = tn_json_get(b, "devices");
        for (size_t k = 0; k < TN_COUNT(of_backend); k++)
            assert_non_null(tn_json_get(b, of_backend[k]));
        for (size_t d = 0; d < tn_json_length(devices); d++)
            for (size_t k = 0; k < TN_COUNT(of_device); k++)
                assert_non_null(tn_json_get(tn_json_at(devices, d), of_device[k]));
    }
    tn_json_free(doc);
}

/* Whoever ignores the end of its children hands that down: the command has children whose end tells what they did. */
static void children_are_waited_for_whoever_calls(void **state) {
    (void)state;
    char heard[600];
    assert_int_equal(
        run_trunnion("trap '' CHLD; TRUNNION_LOG=0 exec %s bench peak-memory-add-16 --json 2>&1", heard, sizeof heard),
        0);
    assert_text_has(heard, "bytes");
}

static void idle_library_is_said(void **state) {
    (void)state;
#if TRUNNION_WITH_CUDA
    char heard[65536], path[700];
    ssize_t n = readlink("/proc/self/exe", path, 500);
    assert_true(n > 0);
    path[n] = 0;
    snprintf(strrchr(path, '/'), 200, "/doubles/cuda.so");
    setenv("TRUNNION_CUBLASLT_LIB", path, 1);
    assert_int_equal(run_command("devices", heard, sizeof heard), 0);
    bool there = strstr(heard, "✓ cuda") || strstr(heard, "+ cuda");
    assert_true((strstr(heard, "cublaslt on cuda") != NULL) == there); /* not without a device to use it on */
    assert_int_equal(run_command("devices -v", heard, sizeof heard), 0);
    assert_text_has(heard, "cublaslt on cuda");
    if (!there) assert_text_has(heard, "no device for it; found at ");
    int code = run_command("tune 8x8x8 --device cpu --library cublaslt 2>&1", heard, sizeof heard);
    assert_int_equal(code, 0);
    assert_text_has(heard, "--library cublaslt applies to cuda devices; on cpu Trunnion's own kernels are used");
    unsetenv("TRUNNION_CUBLASLT_LIB");
#else
    skip();
#endif
}

static void idle_numerics_are_said(void **state) {
    (void)state;
    char heard[65536];
    assert_int_equal(run_command("devices --json", heard, sizeof heard), 0);
    if (!strstr(heard, "\"opencl:0\"")) {
        print_message("skipped: no device but the processor\n");
        skip();
    }
    const char *work = "bench add-16 --seconds 0.01 --numerics fast 2>&1";
    char line[200];
    assert_int_equal(run_command(work, heard, sizeof heard), 0);
    assert_null(strstr(heard, "--numerics"));
    snprintf(line, sizeof line, "%s --device opencl:0", work);
    assert_int_equal(run_command(line, heard, sizeof heard), 0);
    assert_text_has(heard, "--numerics fast applies only to the CPU; opencl:0 ignores it");
}

static void the_environment_gives_defaults(void **state) {
    (void)state;
    static const struct {
        const char *command;
        int code;
        const char *part;
    } rows[] = {
        {"TRUNNION_DEVICE=nothing %s bench quiet --seconds 0.01 2>&1", 2, "nothing"},
        {"TRUNNION_DEVICE=nothing %s bench quiet --seconds 0.01 --device cpu 2>&1", 0, "quiet"},
        {"TRUNNION_THREADS=1 TRUNNION_DEVICE=cpu %s bench quiet --seconds 0.01 2>&1", 0, "quiet"},
        {"%s help environment", 0, "TRUNNION_DEVICE"},
        {"%s -h", 0, "help environment"},
    };
    char heard[16384];
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        int code = run_trunnion(rows[i].command, heard, sizeof heard);
        if (code != rows[i].code) fail_msg("%s ends with %d: %s", rows[i].command, code, heard);
        assert_text_has(heard, rows[i].part);
    }
}

/* Every variable that `help environment` lists has a row: a value that cannot be used is told, not ignored. */
static void wrong_environment_is_told(void **state) {
    (void)state;
#define BENCH "%s bench quiet --seconds 0.01 2>&1"
    static const struct {
        const char *command;
        int code;
        const char *part;
    } rows[] = {
        {"TRUNNION_DEVICE=x " BENCH, 2, "unknown device \"x\""},
        {"TRUNNION_THREADS=0 " BENCH, 2, "TRUNNION_THREADS is \"0\"; it must be 1 to 512"},
        {"TRUNNION_CACHE=/dev/null " BENCH, 2, "TRUNNION_CACHE is \"/dev/null\": it is not a folder"},
        {"TRUNNION_CACHE=/dev/null/a/b " BENCH, 2, "a part of its path is not a folder"},
        {"TRUNNION_CACHE=/proc/nowhere %s devices 2>&1", 0, "cannot create the folder '/proc/nowhere'"},
        {"HF_ENDPOINT=x %s pull a/b 2>&1", 1, "x/api/models/a/b"},
        {"HF_TOKEN=x %s help run 2>&1", 0, "usage"}, /* any text */
        {"TRUNNION_LOG=9 " BENCH, 2, "TRUNNION_LOG is \"9\"; it must be one of: 0 1 2"},
        {"TRUNNION_LOG=x " BENCH, 2, "TRUNNION_LOG is \"x\""},
        {"TRUNNION_LIBRARY=x %s devices 2>&1", 0, "TRUNNION_LIBRARY: \"x\" is not a known matrix library"},
        {"TRUNNION_NUMERICS=x " BENCH, 2, "TRUNNION_NUMERICS is \"x\"; it must be one of: exact fast"},
        {"TRUNNION_MATRIX=x " BENCH, 2, "TRUNNION_MATRIX is \"x\"; it must be one of: 0 1 tf32"},
        {"TRUNNION_GRAPHS=x " BENCH, 2, "TRUNNION_GRAPHS is \"x\"; it must be one of: 0 1"},
        {"TRUNNION_TUNE=x " BENCH, 2, "TRUNNION_TUNE is \"x\"; it must be one of: 0 1"},
        {"TRUNNION_CHECK_INDICES=yes " BENCH, 2, "TRUNNION_CHECK_INDICES is \"yes\""},
        {"TRUNNION_DETECT_ANOMALY=x " BENCH, 2, "TRUNNION_DETECT_ANOMALY is \"x\"; it must be one of: nan inf"},
        {"TRUNNION_ISA=avx " BENCH, 2, "TRUNNION_ISA is \"avx\"; it must be one of: baseline avx2 avx512"},
        {"TRUNNION_PROBE_SECONDS=-3 " BENCH, 2, "TRUNNION_PROBE_SECONDS is \"-3\"; it must be 1 to 600"},
        {"TRUNNION_PROBE_SECONDS=5s " BENCH, 2, "TRUNNION_PROBE_SECONDS is \"5s\""},
        {"TRUNNION_CUDA_LIB=/nowhere/lib %s devices 2>&1", 0, TRUNNION_WITH_CUDA ? "/nowhere/lib" : ""},
        {"NO_COLOR=x %s help run 2>&1", 0, "usage"}, /* any text */
        {"TRUNNION_JIT=x " BENCH, 2, "TRUNNION_JIT is \"x\""},
        {"TRUNNION_PIN=x %s devices --json 2>/dev/null", 2, "\"code\":"},
        {"TRUNNION_TUNE= TRUNNION_LOG=2 TRUNNION_MATRIX=tf32 TRUNNION_PROBE_SECONDS=600 " BENCH, 0, "quiet"},
    };
#undef BENCH
    char heard[16384], help[16384], name[64];
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        int code = run_trunnion(rows[i].command, heard, sizeof heard);
        if (code != rows[i].code) fail_msg("%s ends with %d: %s", rows[i].command, code, heard);
        assert_text_has(heard, rows[i].part);
    }
    assert_int_equal(run_trunnion("%s help environment", help, sizeof help), 0);
    int listed = 0;
    for (const char *at = help; *at; at += strcspn(at, " \n,.:"), at += strspn(at, " \n,.:")) {
        int length = (int)strcspn(at, " \n,.:");
        if (strncmp(at, "TRUNNION_", 9) != 0 && strncmp(at, "HF_", 3) != 0 && strncmp(at, "NO_COLOR", 8) != 0) continue;
        snprintf(name, sizeof name, "%.*s=", length, at);
        size_t row = 0;
        while (row < TN_COUNT(rows) && !strstr(rows[row].command, name))
            row++;
        if (row == TN_COUNT(rows)) fail_msg("no row tests %s", name);
        listed++;
    }
    assert_true(listed >= 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_read_wherever_they_stand),
        cmocka_unit_test(own_options_become_wishes),
        cmocka_unit_test(settings_of_the_device_become_its_options),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(wrong_values_show_the_line_of_the_help),
        cmocka_unit_test(help_has_each_common_option_once),
        cmocka_unit_test(options_without_a_meaning_are_refused),
        cmocka_unit_test(sizes_are_powers_of_1024),
        cmocka_unit_test(json_reads_back),
        cmocka_unit_test(plot_goes_from_corner_to_corner),
        cmocka_unit_test(plot_keeps_spikes_and_leaves_out_what_is_no_number),
        cmocka_unit_test(plot_uses_braille_where_it_may),
        cmocka_unit_test(signs_are_ascii_where_the_locale_says_so),
        cmocka_unit_test(long_text_breaks_between_words),
        cmocka_unit_test(progress_is_silent_without_a_terminal),
        cmocka_unit_test(progress_bar_fills),
        cmocka_unit_test(progress_line_keeps_rate_and_time_left),
        cmocka_unit_test(bytes_that_are_no_characters_become_question_marks),
        cmocka_unit_test(command_ends_with_the_promised_codes),
        cmocka_unit_test(mistakes_are_answered_with_what_to_do),
        cmocka_unit_test(listing_is_ascii_where_the_locale_says_so),
        cmocka_unit_test(devices_json_has_the_promised_keys),
        cmocka_unit_test(idle_library_is_said),
        cmocka_unit_test(idle_numerics_are_said),
        cmocka_unit_test(children_are_waited_for_whoever_calls),
        cmocka_unit_test(the_environment_gives_defaults),
        cmocka_unit_test(wrong_environment_is_told),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
