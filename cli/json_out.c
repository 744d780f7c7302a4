/* json_out.c — JSON for standard output: places commas, escapes text, and no more. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { DEEPEST = sizeof(((cli_json *)0)->used) / sizeof(bool) - 1 };

/* Length of the UTF-8 character at p: 1 to 4, or 0 if there is none. */
static int utf8_length(const unsigned char *p) {
    if (p[0] < 0x80) return 1;
    int n = p[0] >= 0xC2 && p[0] <= 0xDF ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : p[0] >= 0xF0 && p[0] <= 0xF4 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    bool overlong = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
    bool beyond = (p[0] == 0xED && p[1] > 0x9F) || (p[0] == 0xF4 && p[1] > 0x8F);
    return overlong || beyond ? 0 : n;
}

/* text[size] is 0, so that a character which is cut off is none. */
static void put_text_json(FILE *out, const char *text, size_t size) {
    const unsigned char *p = (const unsigned char *)text, *end = p + size;
    fputc('"', out);
    while (p < end) {
        int n = utf8_length(p);
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(out, "\\u%04x", *p);
        else if (n == 0)
            fputc('?', out);
        else
            fwrite(p, 1, (size_t)n, out);
        p += n ? n : 1;
    }
    fputc('"', out);
}

void cli_whole_characters(char *text, size_t size) {
    for (size_t i = 0; i < size;) {
        int n = utf8_length((const unsigned char *)text + i);
        if (n == 0) text[i] = '?';
        i += n ? (size_t)n : 1;
    }
}

bool cli_json_begun;

static void open_level(cli_json *j) {
    if (j->out == stdout && !cli_json_begun) {
        cli_json_begun = true;
        cli_stop_begin(); /* half an object is of no use: a signal lets it be finished */
    }
    if (j->depth < DEEPEST) j->depth++;
    j->used[j->depth] = false;
}

void cli_json_hold(cli_json *j) {
    j->out = open_memstream(&j->pending, &j->held_size);
    if (!j->out) j->out = stdout;
}

void cli_json_release(cli_json *j) {
    if (j->out == stdout) return;
    fclose(j->out);
    j->out = stdout;
    cli_json_begun = true;
    cli_stop_begin();
    fwrite(j->pending, 1, j->held_size, stdout);
    free(j->pending);
    j->pending = NULL;
}

void cli_json_drop(cli_json *j) {
    if (j->out == stdout) return;
    fclose(j->out);
    free(j->pending);
    *j = (cli_json){.out = stdout};
}

static void put_number(FILE *out, double v, bool point) {
    char text[40];
    if (!isfinite(v)) {
        fputs("null", out);
        return;
    }
    snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) != v) snprintf(text, sizeof text, "%.17g", v);
    fprintf(out, "%s%s", text, point && v == floor(v) && fabs(v) < 1e15 ? ".0" : "");
}

/* Writes the value of the specification that begins at `at`, after its %. Returns the text after it. */
static const char *put_value(FILE *out, const char *at, va_list *values) {
    size_t size = 0;
    const char *text;
    if (strncmp(at, ".*s", 3) == 0) {
        size = (size_t)va_arg(*values, int);
        text = va_arg(*values, const char *);
        put_text_json(out, text ? text : "", text ? size : 0);
        return at + 3;
    }
    bool wide = *at == 'j';
    at += wide;
    switch (*at) {
    case 's':
        text = va_arg(*values, const char *);
        if (!text && at[1] == ':') return at + strlen("s: "); /* no key */
        if (text)
            put_text_json(out, text, strlen(text));
        else
            fputs("null", out);
        break;
    case 'd': fprintf(out, "%lld", (long long)(wide ? va_arg(*values, intmax_t) : va_arg(*values, int))); break;
    case 'u':
        fprintf(out, "%llu", (unsigned long long)(wide ? va_arg(*values, uintmax_t) : va_arg(*values, unsigned)));
        break;
    case 'i': fputs(va_arg(*values, int) ? "true" : "false", out); break;
    default: put_number(out, va_arg(*values, double), *at == 'f');
    }
    return at + 1;
}

void cli_json_write(cli_json *j, const char *form, ...) {
    bool quoted = false;
    va_list values;
    if (j->used[j->depth] && *form != '}' && *form != ']') fputs(", ", j->out);
    va_start(values, form);
    while (*form) {
        char c = *form++;
        if (c != '}' && c != ']') j->used[j->depth] = true;
        if (c == '%') {
            form = put_value(j->out, form, &values);
            continue;
        }
        quoted ^= c == '\'';
        fputc(c == '\'' ? '"' : c, j->out);
        if (quoted) continue;
        if (c == '{' || c == '[') open_level(j);
        if ((c == '}' || c == ']') && j->depth > 0 && --j->depth == 0) fputc('\n', j->out);
    }
    va_end(values);
}

void cli_json_survived(cli_json *j, const tn_survive_report *survived) {
    int described = (int)(sizeof survived->failures / sizeof survived->failures[0]);
    cli_json_write(j, "'failed_devices': [");
    for (int i = 0; i < survived->failure_count && i < described; i++) {
        const tn_survive_failure *f = &survived->failures[i];
        cli_json_write(j, "{'id': %s, 'reason': %s, 'step': %jd, 'resumed': %jd}", f->id, f->reason, f->step,
                       f->resumed);
    }
    cli_json_write(
        j, "], 'recomputed_steps': %jd, 'state_copies': %jd, 'steps_between_copies': %jd, 'state_copy_seconds': %g",
        survived->recomputed, survived->copies, survived->every, survived->copy_seconds);
}
