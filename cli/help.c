/* help.c — help pages, at most 80 columns wide.
 *
 * A subcommand's help string has options (two blanks separate the description; its further lines are indented),
 * paragraphs and examples. fold() joins the lines of an option or a paragraph and wraps them, so help strings need not
 * count columns. Examples stay as they are, because users copy them to a shell. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { WIDTH = 80, CONTINUATION = 16 /* a line with this indentation continues the one above */, USAGE_INDENT = 4 };

/* One paragraph or option: its words, and where its lines but the first begin. */
typedef struct block {
    char *text;
    size_t size;
    FILE *into;
    int indent;
} block;

static void begin_help(block *b, int indent) {
    *b = (block){.indent = indent};
    b->into = open_memstream(&b->text, &b->size);
}

/* Breaks between words. The blanks of the first line up to its description stay. */
static void end_help(block *b, FILE *to) {
    if (!b->into) return;
    fclose(b->into);
    int column = 0;
    for (const char *at = b->text; at && *at;) {
        size_t blanks = strspn(at, " "), word = strcspn(at + blanks, " ");
        int wide = cli_text_columns(at + blanks, word);
        if (column > 0 && column + (int)blanks + wide > WIDTH) {
            fprintf(to, "\n%*s", b->indent, "");
            column = b->indent;
        } else {
            fprintf(to, "%*s", (int)blanks, "");
            column += (int)blanks;
        }
        fwrite(at + blanks, 1, word, to);
        column += wide;
        at += blanks + word;
    }
    if (b->text && *b->text) fputc('\n', to);
    free(b->text);
    *b = (block){0};
}

/* Where an option's description begins: behind the first two blanks after its name. */
static int description_of(const char *line, size_t size) {
    size_t at = strspn(line, " ");
    while (at + 1 < size && !(line[at] == ' ' && line[at + 1] == ' '))
        at++;
    size_t gap = at < size ? strspn(line + at, " ") : 0;
    return at + gap < size && gap >= 2 ? cli_text_columns(line, at + gap) : USAGE_INDENT;
}

/* Does the line go on with what `b` has? */
static bool continues(const block *b, const char *line, size_t indent) {
    if (!b->into || !*line) return false;
    fflush(b->into);
    bool heading = b->size > 0 && b->text[b->size - 1] == ':';
    return indent >= CONTINUATION || (indent == 0 && b->indent == 0 && !heading);
}

static void fold_help(const char *text, FILE *to) {
    block b = {0};
    bool verbatim = false;
    for (const char *line = text; *line;) {
        size_t size = strcspn(line, "\n"), indent = strspn(line, " ");
        const char *next = line + size + (line[size] == '\n');
        if (indent == 0 && size > 0) verbatim = strncmp(line, "examples:", 9) == 0;
        if (indent > size) indent = size;
        if (size > 0 && !verbatim && continues(&b, line, indent)) {
            fprintf(b.into, " %.*s", (int)(size - indent), line + indent);
        } else {
            end_help(&b, to);
            if (verbatim || size == 0) {
                fprintf(to, "%.*s\n", (int)size, line);
            } else {
                bool usage = strncmp(line, "usage: ", 7) == 0;
                begin_help(&b, usage ? USAGE_INDENT : indent ? description_of(line, size) : 0);
                if (b.into) fprintf(b.into, "%.*s", (int)size, line);
            }
        }
        line = next;
    }
    end_help(&b, to);
}

void cli_put_help(const char *text, FILE *to) {
    char *folded = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&folded, &size);
    if (!f) return;
    fold_help(text, f);
    fclose(f);
    cli_put(to, folded);
    free(folded);
}

void cli_write_help(const cli_command *c, FILE *to) {
    fprintf(to, "usage: trunnion %s\n\n%s\n\n%s", c->usage, c->summary, c->help);
    cli_common_help(c, to);
}

void cli_help(const cli_command *c, FILE *to) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return;
    cli_write_help(c, f);
    fclose(f);
    cli_put_help(text, to);
    free(text);
}
