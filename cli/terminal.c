/* terminal.c — what is known about where output goes. */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"

bool cli_is_terminal(FILE *f) { return isatty(fileno(f)) == 1; }

bool cli_colour(FILE *f) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return cli_is_terminal(f) && !(none && *none) && term && *term && strcmp(term, "dumb") != 0;
}

int cli_columns(FILE *f) {
#if defined(TIOCGWINSZ)
    struct winsize w;
    if (cli_is_terminal(f) && ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
#endif
    (void)f;
    const char *columns = getenv("COLUMNS");
    int n = columns ? atoi(columns) : 0;
    return n >= 20 && n <= 1000 ? n : 80;
}

bool cli_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"}; /* the first that is set decides */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *v = getenv(names[i]);
        if (v && *v) return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

/* ---- text for people --------------------------------------------------------------------------------------------- */

static const char *const signs[][2] = {
    {"✓", "+"}, {"✗", "-"}, {"→", "->"}, {"·", "|"}, {"—", "-"}, {"–", "-"}, {"…", "..."}, {"×", "x"}, {"µ", "u"},
};

/* ASCII for the character that begins at `at`; *length: its bytes. */
static const char *in_ascii(const char *at, size_t *length) {
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        *length = strlen(signs[i][0]);
        if (!strncmp(at, signs[i][0], *length)) return signs[i][1];
    }
    *length = 1;
    while (((unsigned char)at[*length] & 0xC0) == 0x80)
        (*length)++;
    return "?";
}

static void put_bytes(FILE *to, const char *text, size_t size, bool utf8) {
    const char *end = text + size;
    while (text < end) {
        size_t plain = 0;
        while (text + plain < end && (utf8 || (unsigned char)text[plain] < 0x80))
            plain++;
        fwrite(text, 1, plain, to);
        text += plain;
        if (text >= end) return;
        fputs(in_ascii(text, &plain), to);
        text += plain;
    }
}

void cli_put(FILE *to, const char *text) { put_bytes(to, text, strlen(text), cli_utf8()); }

bool cli_quiet;

void cli_print(FILE *to, const char *format, ...) {
    if (cli_quiet && to == stderr) return;
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) return;
    cli_put(to, text);
    free(text);
}

int cli_text_columns(const char *text, size_t size) {
    int n = 0;
    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static void begin_line(FILE *to, int indent) { fprintf(to, "\n%*s", indent, ""); }

static void put_wrapped(FILE *to, const char *text, int indent, int width) {
    int column = 0;
    bool utf8 = cli_utf8(), fresh = true; /* nothing stands on this line */
    while (*text) {
        size_t size = strcspn(text, " \n");
        int word = cli_text_columns(text, size);
        bool full = !fresh && column + 1 + word >= width;
        if (full) {
            begin_line(to, indent);
            column = indent;
        } else if (!fresh) {
            fputc(' ', to);
            column++;
        }
        put_bytes(to, text, size, utf8);
        column += word;
        text += size;
        fresh = *text == '\n';
        if (fresh) {
            begin_line(to, indent);
            column = indent;
        }
        text += *text != 0;
    }
    fputc('\n', to);
}

/* Standard error has no buffer: the text is written in one go, so that other processes cannot write in between. */
void cli_put_wrapped(FILE *to, const char *text, int indent) {
    int width = cli_is_terminal(to) ? cli_columns(to) : INT_MAX;
    char *lines = NULL;
    size_t size;
    FILE *memory = open_memstream(&lines, &size);
    put_wrapped(memory ? memory : to, text, indent, width);
    if (!memory) return;
    if (fclose(memory) == 0) fwrite(lines, 1, size, to);
    free(lines);
}
