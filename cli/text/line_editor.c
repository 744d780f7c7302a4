/* line_editor.c — reading lines, through libedit if it is there.
 *
 * libedit (BSD licence) is loaded when the first line is read, so nothing depends on it; GNU readline has the same
 * functions, but its licence would become the command's. The callback functions are used, because they leave the
 * waiting to us: poll() returns when a signal comes, whatever SA_RESTART says. */
#include "cli/text/conversation.h"

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trunnion/backend.h"
#include "trunnion/text.h"

enum { READ_BYTES = 4096, LONGEST_LINE = 16 << 20 };

/* ---- libedit ----------------------------------------------------------------------------------------------------- */

static struct {
    bool tried;
    void *library;
    void (*install)(const char *prompt, void (*take)(char *line));
    void (*read_char)(void);
    void (*remove)(void);
    int (*add_history)(const char *line);
} editor;

static char *typed; /* what the callback was given */
static bool ended, complete;

static void take_line(char *line) {
    typed = line;
    ended = !line;
    complete = true;
}

static bool find_functions(void) {
    *(void **)&editor.install = dlsym(editor.library, "rl_callback_handler_install");
    *(void **)&editor.read_char = dlsym(editor.library, "rl_callback_read_char");
    *(void **)&editor.remove = dlsym(editor.library, "rl_callback_handler_remove");
    *(void **)&editor.add_history = dlsym(editor.library, "add_history");
    return editor.install && editor.read_char && editor.remove && editor.add_history;
}

static void load_editor(void) {
    static const char *const names[] = {"libedit.so.2", "libedit.so.0", "libedit.so", "/usr/lib/libedit.3.dylib"};
    if (editor.tried || !cli_is_terminal(stdin) || !cli_is_terminal(stdout)) return;
    editor.tried = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && !editor.library; i++)
        editor.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!editor.library) return;
    if (!find_functions()) {
        dlclose(editor.library);
        editor.library = NULL;
        return;
    }
    int *catches = dlsym(editor.library, "rl_catch_signals");
    if (catches) *catches = 0; /* signals.c has the handlers */
    setlocale(LC_CTYPE, "");   /* so that it edits characters, not bytes */
}

const char *line_editor_name(void) {
    load_editor();
    return editor.library ? "libedit" : "none";
}

/* A signal, or something to read? */
static bool wait_for_input(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, -1) < 0)
        if (errno != EINTR || cli_stopped()) return false;
    return !cli_stopped();
}

/* The terminal has gone: libedit would read nothing for ever. */
static bool hung_up(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) > 0 && input.revents & (POLLHUP | POLLERR | POLLNVAL);
}

static line_result read_edited(const char *prompt, tn_bytes *line) {
    complete = ended = false;
    typed = NULL;
    editor.install(prompt, take_line);
    while (!complete && wait_for_input() && !hung_up())
        editor.read_char();
    editor.remove();
    if (!complete || ended) {
        putchar('\n');
        fflush(stdout);
        return cli_stopped() ? LINE_INTERRUPTED : LINE_END;
    }
    if (*typed) editor.add_history(typed);
    tn_status status = tn_bytes_append(line, typed, strlen(typed));
    free(typed);
    return status == TN_OK ? LINE_READ : LINE_FAILED;
}

/* ---- plain lines ------------------------------------------------------------------------------------------------- */

static tn_bytes ahead; /* what was read behind the last line */

/* Moves the line up to its newline, or all with `rest`. */
static bool take_ahead(tn_bytes *line, bool rest, tn_status *status) {
    const char *newline = ahead.size ? memchr(ahead.data, '\n', ahead.size) : NULL;
    if (!newline && !(rest && ahead.size)) return false;
    size_t size = newline ? (size_t)(newline - ahead.data) : ahead.size, used = size + (newline != NULL);
    *status = tn_bytes_append(line, ahead.data, size);
    if (line->size > 0 && line->data[line->size - 1] == '\r') line->data[--line->size] = 0;
    memmove(ahead.data, ahead.data + used, ahead.size - used);
    ahead.size -= used;
    return true;
}

static line_result read_plain(const char *prompt, tn_bytes *line) {
    tn_status status = TN_OK;
    if (cli_is_terminal(stdin) && cli_is_terminal(stdout)) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    for (;;) {
        char more[READ_BYTES];
        if (take_ahead(line, false, &status)) return status == TN_OK ? LINE_READ : LINE_FAILED;
        if (!wait_for_input()) {
            ahead.size = 0;
            return LINE_INTERRUPTED;
        }
        ssize_t n = read(STDIN_FILENO, more, sizeof more);
        if (n < 0) {
            tn_backend_fail(TN_ERR_IO, "reading standard input: %s", strerror(errno));
            return LINE_FAILED;
        }
        if (n == 0) return take_ahead(line, true, &status) ? LINE_READ : LINE_END;
        if (ahead.size > LONGEST_LINE) {
            tn_backend_fail(TN_ERR_ARGUMENT, "a line of standard input has more than %d bytes", (int)LONGEST_LINE);
            return LINE_FAILED;
        }
        if (tn_bytes_append(&ahead, more, (size_t)n) != TN_OK) return LINE_FAILED;
    }
}

line_result line_editor_read(const char *prompt, tn_bytes *line) {
    load_editor();
    line->size = 0;
    if (tn_bytes_append(line, "", 0) != TN_OK) return LINE_FAILED;
    return editor.library ? read_edited(prompt, line) : read_plain(prompt, line);
}

void line_editor_end(void) { tn_bytes_free(&ahead); }
