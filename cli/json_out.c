/* json_out.c — JSON for standard output: places commas, escapes text, and no more. */
#include <math.h>
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

/* The comma and the key before a value. */
static void begin_value(cli_json *j, const char *key) {
    if (j->used[j->depth]) fputs(", ", j->out);
    j->used[j->depth] = true;
    if (!key) return;
    put_text_json(j->out, key, strlen(key));
    fputs(": ", j->out);
}

bool cli_json_begun;

static void open_level(cli_json *j, const char *key, char opening) {
    if (j->out == stdout && !cli_json_begun) {
        cli_json_begun = true;
        cli_stop_begin(); /* half an object is of no use: a signal lets it be finished */
    }
    begin_value(j, key);
    fputc(opening, j->out);
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

void cli_json_object(cli_json *j, const char *key) { open_level(j, key, '{'); }
void cli_json_array(cli_json *j, const char *key) { open_level(j, key, '['); }

void cli_json_end(cli_json *j, char closing) {
    fputc(closing, j->out);
    if (j->depth > 0) j->depth--;
    if (j->depth == 0) fputc('\n', j->out);
}

void cli_json_string(cli_json *j, const char *key, const char *v) {
    begin_value(j, key);
    if (v)
        put_text_json(j->out, v, strlen(v));
    else
        fputs("null", j->out);
}

void cli_json_text(cli_json *j, const char *key, const char *v, size_t size) {
    begin_value(j, key);
    put_text_json(j->out, v ? v : "", v ? size : 0);
}

void cli_json_number(cli_json *j, const char *key, double v) {
    char text[40];
    begin_value(j, key);
    if (!isfinite(v)) {
        fputs("null", j->out);
        return;
    }
    snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) != v) snprintf(text, sizeof text, "%.17g", v);
    fputs(text, j->out);
}

void cli_json_real(cli_json *j, const char *key, double v) {
    cli_json_number(j, key, v);
    if (isfinite(v) && v == floor(v) && fabs(v) < 1e15) fputs(".0", j->out);
}

void cli_json_int(cli_json *j, const char *key, int64_t v) {
    begin_value(j, key);
    fprintf(j->out, "%lld", (long long)v);
}

void cli_json_unsigned(cli_json *j, const char *key, uint64_t v) {
    begin_value(j, key);
    fprintf(j->out, "%llu", (unsigned long long)v);
}

void cli_json_bool(cli_json *j, const char *key, bool v) {
    begin_value(j, key);
    fputs(v ? "true" : "false", j->out);
}

void cli_json_survived(cli_json *j, const tn_survive_report *survived) {
    int described = (int)(sizeof survived->failures / sizeof survived->failures[0]);
    cli_json_array(j, "failed_devices");
    for (int i = 0; i < survived->failure_count && i < described; i++) {
        const tn_survive_failure *f = &survived->failures[i];
        cli_json_object(j, NULL);
        cli_json_string(j, "id", f->id);
        cli_json_string(j, "reason", f->reason);
        cli_json_int(j, "step", f->step);
        cli_json_int(j, "resumed", f->resumed);
        cli_json_end(j, '}');
    }
    cli_json_end(j, ']');
    cli_json_int(j, "recomputed_steps", survived->recomputed);
    cli_json_int(j, "state_copies", survived->copies);
    cli_json_int(j, "steps_between_copies", survived->every);
    cli_json_number(j, "state_copy_seconds", survived->copy_seconds);
}
