/* cli.h — what the subcommands of `trunnion` share: the table's row, common options, output helpers.
 *
 * A subcommand is one file with one cli_command, and one line in main.c's table. It writes its result to standard
 * output (with --json: one JSON object and nothing else), everything else to standard error, and returns 0 for
 * success, 1 when the work failed, 2 for wrong usage, 128 + N when signal N stopped it. The command uses the public
 * headers alone. */
#ifndef TRUNNION_CLI_H
#define TRUNNION_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/clock.h"
#include "trunnion/device.h"
#include "trunnion/json.h"
#include "trunnion/survive.h"
#include "trunnion/tensor.h"

#define TRY TN_TRY

/* Before a declaration with an initializer: frees what the variable holds where its scope ends, on every way out.
 * AUTO_CALL(f) calls f(&variable) there. */
#define AUTO_CALL(function) __attribute__((cleanup(function)))
#define AUTO_CLI_FREE AUTO_CALL(cli_free_held)
#define AUTO_CLI_JSON AUTO_CALL(cli_json_free_held)
#define AUTO_CLI_TENSOR AUTO_CALL(cli_tensor_free_held)
#define AUTO_BYTES AUTO_CALL(tn_bytes_free)
#define AUTO_IDS AUTO_CALL(tn_ids_free)
static inline void cli_free_held(void *variable) {
    void *block;
    memcpy(&block, variable, sizeof block);
    free(block);
}
static inline void cli_json_free_held(tn_json_doc **doc) { tn_json_free(*doc); }
static inline void cli_tensor_free_held(tn_tensor **t) { tn_free(*t); }

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct cli_command {
    const char *name;
    const char *summary;               /* one line for the list of commands */
    const char *usage;                 /* what follows "usage: trunnion " */
    const char *help;                  /* its own options and examples, lines that end in a newline */
    unsigned accepts;                  /* common options that have a meaning here: CLI_JSON | … */
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name */
} cli_command;

extern const cli_command cli_bench, cli_certify, cli_chat, cli_convert, cli_devices, cli_embed, cli_explain,
    cli_finetune, cli_fit, cli_generate, cli_info, cli_list, cli_logits, cli_onnx_test, cli_perplexity, cli_pull,
    cli_run, cli_serve, cli_tokenize, cli_train, cli_transcribe, cli_tune;

/* A subcommand's help page, and other help text, at most 80 columns wide (help.c). */
void cli_help(const cli_command *c, FILE *to);
void cli_write_help(const cli_command *c, FILE *to); /* as it is in the source, in UTF-8 */
void cli_put_help(const char *text, FILE *to);

/* Environment variables (environment.c). Prints which one has a value that is not allowed, and returns false. */
bool cli_environment_is_valid(const cli_command *c);
void cli_help_environment(FILE *to);

/* ---- failures (failure.c) ---------------------------------------------------------------------------------------- */

/* Prints to standard error: "trunnion CMD: text" and where help is. Returns CLI_USAGE. */
int cli_wrong_usage(const cli_command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints "trunnion: error: text of the library's last failure" to standard error. Returns CLI_FAILED. */
int cli_failed(void);
/* The same with another text. */
int cli_fail(tn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Stores a failure that was already printed, for the JSON object; only the first call counts. advice: what to do; NULL:
 * the part of `text` after its semicolon, if it has exactly one. */
void cli_note_failure(const char *code, const char *text, const char *advice);
typedef struct cli_json cli_json;
void cli_json_error(cli_json *j); /* the member `error`, of the failure that was reported */
/* At the end of the command: with --json prints {"error": …} if the status is not CLI_OK and no JSON was written. */
void cli_failure_end(bool json, int status);

/* ---- signals (signals.c) ----------------------------------------------------------------------------------------- */

void cli_signals_begin(void);
void cli_signals_json(void); /* with --json: a signal that ends the process prints {"error": …} */
/* Between these two a signal does not end the process: the work asks cli_stopped(), keeps what it has, and its
 * subcommand returns cli_stop_status(), which is 130 for SIGINT and 143 for SIGTERM. */
void cli_stop_begin(void);
void cli_stop_end(void);
bool cli_stopped(void);
int cli_stop_status(void);
/* Forgets a SIGINT, so that the work can go on with something else; false after another signal. */
bool cli_stop_resume(void);
const char *cli_stop_signal(void); /* "SIGTERM" */
/* A child process that a signal ends too. */
void cli_child_begin(int pid);
void cli_child_end(void);
/* A file that a signal removes. Returns its entry, -1 if there is no room. */
int cli_temporary_begin(const char *path);
void cli_temporary_end(int entry);

/* ---- files that appear whole or not at all (output.c) ------------------------------------------------------------ */

enum { CLI_PATH = 4096 };
typedef struct cli_output {
    FILE *file;       /* to write to */
    const char *path; /* as given; lives as long */
    char target[CLI_PATH], temporary[CLI_PATH];
    int entry;
} cli_output;

/* Failures are the library's last error. After begin succeeded: commit or abandon, once. */
tn_status cli_output_begin(cli_output *o, const char *path);
/* Fails as begin would; leaves no file. For a result that is written after long work. path NULL: TN_OK. */
tn_status cli_output_check(const char *path);
tn_status cli_output_commit(cli_output *o); /* removes the temporary file if it fails */
void cli_output_abandon(cli_output *o);

/* ---- common options (options.c) ------------------------------------------------------------------------------- */

enum {
    CLI_JSON = 1 << 0,
    CLI_DEVICE = 1 << 1,  /* --device, --strict, --mem, --device-timeout, --tensor-cores, --vendor, --tune */
    CLI_THREADS = 1 << 2, /* --threads, --library, --numerics */
    CLI_SEED = 1 << 3,
    CLI_VERBOSE = 1 << 4,
    CLI_ALL = (1 << 5) - 1
};

typedef struct cli_options {
    bool json, strict, verbose;
    const char *device;         /* "auto" unless given */
    int32_t threads;            /* 0: as many as there are */
    const char *library;        /* for matrix products; NULL: as the environment says */
    const char *numerics;       /* "exact" or "fast"; NULL: as the environment says */
    int64_t memory;             /* bytes that have to be free; 0: any */
    int64_t device_timeout;     /* seconds of a wait for the device; 0: no limit */
    int matrix, vendor, tuning; /* as in tn_device_options */
    uint64_t seed;
    bool seed_given;
    uint64_t given; /* bit i: option i of the subcommand's own */
} cli_options;

/* One of a subcommand's own options; a table of them ends with a row of zeros. The value is stored in the subcommand's
 * own struct, whose type and member are arguments of the macros below; a member of the wrong type does not compile. */
typedef enum cli_option_kind {
    CLI_KIND_FLAG,
    CLI_KIND_TEXT,
    CLI_KIND_ONE_OF,
    CLI_KIND_INT,
    CLI_KIND_INT32,
    CLI_KIND_BYTES,
    CLI_KIND_REAL,
    CLI_KIND_CHOICE,
    CLI_KIND_SET,
    CLI_KIND_TAKE,
    CLI_KIND_EACH,
    CLI_KIND_TAKE_NOTHING
} cli_option_kind;

typedef struct cli_option {
    const char *name;
    char letter; /* of the short form; 0: none */
    cli_option_kind kind;
    size_t at;          /* where the value goes */
    double least, most; /* range of a number; least: value of the first choice; most: 1 if a text may be empty */
    const char *words;  /* of choices and CLI_ONE_OF, separated by | */
    bool (*take)(void *at, const char *arg); /* false: the value is wrong */
} cli_option;

#define CLI_PLACE_(T, member, type) _Generic(((T *)0)->member, type : offsetof(T, member))
#define CLI_INT_PLACE_(T, member) \
    (offsetof(T, member) + 0 * sizeof(char[sizeof((T *)0)->member == sizeof(int) ? 1 : -1]))
#define CLI_RANGE_(name, letter, kind, place, least, most) \
    { name, letter, kind, place, least, most, NULL, NULL }
/* bool: true if the option is given. */
#define CLI_FLAG(name, letter, T, member) CLI_RANGE_(name, letter, CLI_KIND_FLAG, CLI_PLACE_(T, member, bool), 0, 0)
/* const char *. CLI_NAME: a text that is not empty; CLI_TEXT: any text. */
#define CLI_NAME(name, letter, T, member) \
    CLI_RANGE_(name, letter, CLI_KIND_TEXT, CLI_PLACE_(T, member, const char *), 0, 0)
#define CLI_TEXT(name, letter, T, member) \
    CLI_RANGE_(name, letter, CLI_KIND_TEXT, CLI_PLACE_(T, member, const char *), 0, 1)
/* In [least, most]. CLI_INT: int64_t or int32_t; CLI_BYTES: int64_t, such as "6G"; CLI_REAL: double. */
#define CLI_INT(name, letter, T, member, least, most) \
    CLI_RANGE_(name, letter,                          \
               _Generic(((T *)0)->member, int64_t     \
                        : CLI_KIND_INT, int32_t       \
                        : CLI_KIND_INT32),            \
               offsetof(T, member), least, most)
#define CLI_BYTES(name, letter, T, member, least, most) \
    CLI_RANGE_(name, letter, CLI_KIND_BYTES, CLI_PLACE_(T, member, int64_t), least, (double)(most))
#define CLI_REAL(name, letter, T, member, least, most) \
    CLI_RANGE_(name, letter, CLI_KIND_REAL, CLI_PLACE_(T, member, double), least, most)
/* const char *: one of `words`, which | separates: "cosine|linear". */
#define CLI_ONE_OF(name, letter, T, member, words) \
    { name, letter, CLI_KIND_ONE_OF, CLI_PLACE_(T, member, const char *), 0, 0, words, NULL }
/* An int or enum: the index of the value in `words`, plus `first`. */
#define CLI_CHOICE(name, letter, T, member, words, first) \
    { name, letter, CLI_KIND_CHOICE, CLI_INT_PLACE_(T, member), first, 0, words, NULL }
/* An option without a value: an int or enum becomes `value`. */
#define CLI_SET(name, letter, T, member, value) \
    CLI_RANGE_(name, letter, CLI_KIND_SET, CLI_INT_PLACE_(T, member), value, 0)
/* The function stores the value; of CLI_TAKE_NOTHING, an option without a value, it gets NULL. CLI_EACH may be given
 * several times. */
#define CLI_TAKE(name, letter, T, member, take) \
    { name, letter, CLI_KIND_TAKE, offsetof(T, member), 0, 0, NULL, take }
#define CLI_EACH(name, letter, T, member, take) \
    { name, letter, CLI_KIND_EACH, offsetof(T, member), 0, 0, NULL, take }
#define CLI_TAKE_NOTHING(name, letter, T, member, take) \
    { name, letter, CLI_KIND_TAKE_NOTHING, offsetof(T, member), 0, 0, NULL, take }

/* Parses a subcommand's arguments into its struct `wishes`. `own`: at most 64 options, or NULL. A message on a wrong
 * value shows the line of `help` that begins with the option. Options and positional arguments may be mixed.
 * Refuses a second value for an option, unless it is CLI_EACH.
 * Returns the index of the first positional argument in argv; or -1 after a message: return *status then (--help gives
 * CLI_OK). */
int cli_parse(const cli_command *c, int argc, char **argv, cli_options *o, const cli_option *own, void *wishes,
              int *status);
/* Was the subcommand's own option of that name given? */
bool cli_is_given(const cli_options *o, const cli_option *own, const char *name);
/* Stores one value; false if it is wrong. */
bool cli_take(const cli_option *o, void *wishes, const char *arg);

/* Prints what `help` has to say on the common options that c accepts and does not explain itself; c NULL: on all. */
void cli_common_help(const cli_command *c, FILE *to);

/* The name that a mistyped word is nearest to, by letters inserted, deleted or replaced; NULL if none is near
 * (options.c). */
/* What the file is by its first bytes, as in "a GGUF file"; NULL: not known, or no file. */
const char *cli_file_kind(const char *path);
/* Whether the message says of the file that it begins with that it is not of some kind, and it is of another one: then
 * what the file looks like, and what to do with it. */
bool cli_describe_kind(const char *message, char *out, size_t size);

const char *cli_nearest(const char *typed, const char *const *names, int count);

/* "6G", "512M", "1.5GiB", "100000" → bytes. Powers of 1024. */
bool cli_parse_bytes(const char *text, int64_t *out);
/* A real or whole number in [least, most]. */
bool cli_parse_real(const char *text, double least, double most, double *out);
bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *out);

/* `trunnion fit COMMAND` (fit_run.c) runs the command with `on` set: devices are opened for a dry run, unless
 * `measures`, and one handle of the device is kept here to read its pool after the command has closed its own. */
typedef struct cli_fitting {
    bool on, measures;
    tn_device *device;
} cli_fitting;
extern cli_fitting cli_fit_state;

/* As in "1.5 MiB", with so many digits behind the point; returns out. */
const char *cli_size_text(char out[32], int64_t bytes, int digits);

/* For opening a device. */
tn_device_options cli_device_options(const cli_options *o);

/* Runs work(ctx, dry) on a dry run of the device (tn_device_options.dry_run), which plans everything and computes
 * nothing. It is the thread's current device meanwhile; plans are cleared afterwards.
 *   limit: of the pool of the dry run in bytes; 0: none.
 *   *bytes: peak memory that the work would take, on the CPU resident memory of the process; *pool (may be NULL): peak
 *     of the pool only.
 * Errors: those of the work; TN_ERR_UNSUPPORTED if the device has no dry run. */
tn_status cli_plan_dry(tn_device *device, const cli_options *o, int64_t limit,
                       tn_status (*work)(void *ctx, tn_device *dry), void *ctx, int64_t *bytes, int64_t *pool);
/* Returns TN_ERR_MEMORY, with what is missing, for a training whose first steps, which `work` records, do not fit into
 * `limit` bytes of the device's pool (--memory). Nothing is loaded. TN_OK for other errors: the run reports them. */
tn_status cli_check_training(tn_device *device, const cli_options *o, int64_t limit,
                             tn_status (*work)(void *ctx, tn_device *dry), void *ctx);

/* Opens the device that the options ask for, makes it the thread's current one, and says on standard error what was
 * passed over if that was asked for (-v) or nothing fits. NULL after a message: *code is then what the subcommand
 * returns, CLI_USAGE for a name that nothing has. */
tn_device *cli_open_device(const cli_options *o, int *code);
/* The same, and hands out all that was looked at. */
tn_device *cli_choose_device(const cli_options *o, tn_selection *s, int *code);

/* The member `fallback`: devices that were passed over (s may be NULL), and what the host computed for the chosen
 * one. */
void cli_json_fallback(cli_json *j, const tn_selection *s, const tn_device *device);
/* The members `failed_devices` (and from which step the next one continued), `recomputed_steps`, `state_copies`,
 * `steps_between_copies` and `state_copy_seconds` (json_out.c). */
void cli_json_survived(cli_json *j, const tn_survive_report *survived);

/* ---- terminal (terminal.c) --------------------------------------------------------------------------------------- */

bool cli_is_terminal(FILE *f);
bool cli_colour(FILE *f); /* a terminal, and nobody asked for no colours (NO_COLOR, TERM=dumb) */
int cli_columns(FILE *f); /* its width; 80 when unknown */
bool cli_utf8(void);      /* the locale's characters are UTF-8 */

/* Text for people, which is UTF-8 here: as it is where the locale's characters are, else its signs in ASCII. */
void cli_put(FILE *to, const char *text);
extern bool cli_quiet; /* --quiet: cli_print writes nothing to standard error, and no progress is shown */
void cli_print(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, broken between words at the width of a terminal; what is not the first line begins with `indent` blanks. */
void cli_put_wrapped(FILE *to, const char *text, int indent);

/* ---- JSON (json_out.c) ------------------------------------------------------------------------------------------- */

/* A writer of one JSON text. */
struct cli_json {
    FILE *out;
    int depth;
    bool used[32]; /* a level has items already */
    char *pending; /* text that is not written yet */
    size_t held_size;
};

extern bool cli_json_begun; /* an object was begun on standard output; from then on signals do not end the process */

/* For an object that is written while the work runs: hold keeps it in memory and release writes it, so that a signal in
 * between leaves no half object on standard output. */
void cli_json_hold(cli_json *j);
void cli_json_release(cli_json *j);
void cli_json_drop(cli_json *j); /* instead of release: writes nothing */

/* Writes a JSON template: `form` is JSON with ' instead of ", and each specification is replaced by an argument:
 *   %s    a quoted text, or null for NULL; as a key ("%s: ") nothing for NULL
 *   %.*s  a quoted text of the given number of bytes, followed by a zero byte; "" for NULL
 *   %d %jd %u %ju  an integer
 *   %g    a number, or null if it is not finite; %f: the same, always with a decimal point
 *   %i    an int as true or false
 * Bytes of texts that are not UTF-8 become ?. A later call may close a bracket; commas between calls are written where
 * they are needed: cli_json_write(j, "'ids': ["), cli_json_write(j, "%d", id) for each, cli_json_write(j, "]"). */
#if !defined(__APPLE__) /* there int64_t, which is written as %jd, and intmax_t are two types of one size */
__attribute__((format(printf, 2, 3)))
#endif
void cli_json_write(cli_json *j, const char *form, ...);

/* Puts ? in the place of bytes that are no UTF-8; text[size] is 0. */
void cli_whole_characters(char *text, size_t size);

int cli_text_columns(const char *text, size_t size); /* that these bytes of UTF-8 take on a terminal (terminal.c) */
/* Where a file lies in the library's cache folder; tools/digits.py and smollm2.py put theirs there. false: no
 * such folder is known. */
bool cli_cache_path(const char *name, char *out, size_t size);
/* Looks for a model that was given by its file's name: if *path has no slash and does not exist here, models/NAME in
 * the cache folder is taken, and *path points to that path in `room`. Returns false, after a message, if neither
 * exists. */
bool cli_find_model(const char **path, char room[CLI_PATH]);
bool cli_is_folder(const char *path); /* as Hugging Face has models in */
/* The most memory that this process has had resident so far, in bytes; 0 where the system does not say. */
int64_t cli_peak_bytes(void);

/* ---- progress (progress.c) --------------------------------------------------------------------------------------- */

/* A live line on standard error: "what  ███▌    312/500  text  41.3/s  4 s left". On anything but a terminal it is
 * silent. */
typedef struct cli_progress {
    const char *what, *unit; /* unit: "steps" */
    int64_t total, done;     /* total 0: unknown */
    double begun, shown;     /* seconds */
    double rate;             /* units a second, smoothed */
    int64_t shown_done;
    bool live;
} cli_progress;

void cli_progress_begin(cli_progress *p, const char *what, const char *unit, int64_t total);
/* Shows at most twenty times a second; text may be "". */
void cli_progress_update(cli_progress *p, int64_t done, const char *text);
void cli_progress_end(cli_progress *p);          /* takes the line away */
double cli_progress_rate(const cli_progress *p); /* over all, units a second */

/* Whether compilations for a device are told in such a line too (progress.c); cli_open_device begins with it. To be
 * ended before standard output gets lines bit by bit. */
void cli_show_compiling(bool show);

/* ---- plot (plot.c) ----------------------------------------------------------------------------------------------- */

/* Draws y[0 … n-1] as a line in `rows` lines of text, as wide as the terminal behind `to` (at most 100 columns):
 * braille dots where the locale has them, else stars. Values that are not finite are left out. x_label stands below. */
void cli_plot(FILE *to, const char *title, const char *x_label, const double *y, int n, int rows);

#endif
