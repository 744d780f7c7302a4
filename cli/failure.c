/* failure.c — how a subcommand reports that it failed: a message on standard error, and with --json an object
 * {"error": {"code", "message", "fix"}} on standard output.
 *
 * The object is printed when the command ends (cli_failure_end), and only if nothing else was written as JSON: a result
 * that names failures (onnx-test, certify) is a result. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "trunnion/status.h"

static char *message; /* of the first failure; NULL: none was reported */
static const char *code;
static char *fix;

/* As programs compare them; tn_status_name has words for people. */
static const char *const codes[] = {
    [TN_OK] = "failed",
    [TN_ERR_ARGUMENT] = "argument",
    [TN_ERR_SHAPE] = "shape",
    [TN_ERR_DTYPE] = "dtype",
    [TN_ERR_MEMORY] = "memory",
    [TN_ERR_UNAVAILABLE] = "unavailable",
    [TN_ERR_DEVICE] = "device",
    [TN_ERR_LOST] = "device_lost",
    [TN_ERR_IO] = "io",
    [TN_ERR_FORMAT] = "format",
    [TN_ERR_UNSUPPORTED] = "unsupported",
    [TN_ERR_STATE] = "state",
    [TN_ERR_INTERNAL] = "internal",
};

static const char *code_of(tn_status s) { return (size_t)s < sizeof codes / sizeof codes[0] ? codes[s] : "failed"; }

/* Messages say what failed and then, behind a semicolon, what to do. With several semicolons it is a list. */
static const char *advice_in(const char *text) {
    const char *at = strstr(text, "; ");
    return at && !strstr(at + 2, "; ") ? at + 2 : NULL;
}

void cli_note_failure(const char *what, const char *text, const char *advice) {
    if (message) return;
    if (!advice) advice = advice_in(text);
    code = what;
    message = strdup(text);
    fix = advice ? strdup(advice) : NULL;
}

int cli_wrong_usage(const cli_command *c, const char *format, ...) {
    char *text = NULL, see[64];
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    snprintf(see, sizeof see, "see: trunnion help%s%s", c ? " " : "", c ? c->name : "");
    fprintf(stderr, "trunnion%s%s: %s\n  %s\n", c ? " " : "", c ? c->name : "", n < 0 ? format : text, see);
    cli_note_failure("usage", n < 0 ? format : text, see);
    if (n >= 0) free(text);
    return CLI_USAGE;
}

static int report(const char *what, const char *text) {
    char *line = NULL, kind[160] = "";
    bool other = cli_describe_kind(text, kind, sizeof kind);
    if (asprintf(&line, "trunnion: error: %s%s%s", text, other ? "; " : "", kind) >= 0) {
        cli_put_wrapped(stderr, line, 2);
        free(line);
    }
    cli_note_failure(what, text, other ? kind : NULL);
    return CLI_FAILED;
}

int cli_failed(void) { return report(code_of(tn_error_code()), tn_error()); }

int cli_fail(tn_status status, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    int result = report(code_of(status), n < 0 ? format : text);
    if (n >= 0) free(text);
    return result;
}

void cli_json_error(cli_json *j) {
    cli_json_write(j, "'error': {'code': %s, 'message': %s, 'fix': %s}", code ? code : "failed",
                   message ? message : "the operation failed", fix);
}

void cli_failure_end(bool json, int status) {
    if (json && status != CLI_OK && !cli_json_begun) {
        cli_json j = {.out = stdout};
        cli_json_write(&j, "{");
        cli_json_error(&j);
        cli_json_write(&j, "}");
    }
    free(message);
    free(fix);
    message = fix = NULL;
}
