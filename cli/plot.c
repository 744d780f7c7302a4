/* plot.c — a curve in text: a grid of dots, two by four in a character (braille), one where the locale has no braille.
 *
 * Each column of dots shows the range from the least to the greatest value that falls into it, so that no spike is lost
 * however many values there are. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"

enum { LABEL_COLUMNS = 9, MOST_COLUMNS = 100, LEAST_COLUMNS = 20, MOST_ROWS = 40 };

typedef struct canvas {
    bool braille;
    int columns, rows;                            /* characters */
    int wide, high;                               /* dots */
    unsigned char cells[MOST_ROWS][MOST_COLUMNS]; /* braille: its eight dots; else 0 or 1 */
} canvas;

static void dot(canvas *c, int x, int y) {
    static const unsigned char bits[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}; /* Unicode's order */
    if (c->braille)
        c->cells[y / 4][x / 2] |= bits[y % 4][x % 2];
    else
        c->cells[y][x] = 1;
}

/* The range of all finite values; false when there is none. */
static bool range_of(const double *y, int n, double *low, double *high) {
    *low = INFINITY;
    *high = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!isfinite(y[i])) continue;
        if (y[i] < *low) *low = y[i];
        if (y[i] > *high) *high = y[i];
    }
    return *low <= *high;
}

static int plot_row_of(const canvas *c, double v, double low, double high) {
    double part = high > low ? (v - low) / (high - low) : 0.5;
    return (int)lround((1 - part) * (c->high - 1));
}

/* Draws column by column; a column that holds no value of its own takes the one that came before. */
static void draw_plot(canvas *c, const double *y, int n, double low, double high) {
    int before = -1; /* row where the last column ended */
    for (int x = 0; x < c->wide; x++) {
        int begin = (int)((int64_t)x * n / c->wide), end = (int)((int64_t)(x + 1) * n / c->wide);
        if (end == begin) end = begin + 1;
        double least, most;
        if (!range_of(y + begin, end - begin, &least, &most)) continue;
        int top = plot_row_of(c, most, low, high), bottom = plot_row_of(c, least, low, high), last = top;
        if (isfinite(y[end - 1])) last = plot_row_of(c, y[end - 1], low, high);
        if (before >= 0 && before < top) top = before + 1 < top ? before + 1 : top; /* join to the neighbour */
        if (before > bottom) bottom = before - 1 > bottom ? before - 1 : bottom;
        for (int r = top; r <= bottom; r++)
            dot(c, x, r);
        before = last;
    }
}

static void put_cell(FILE *to, const canvas *c, unsigned char cell) {
    if (!c->braille) {
        fputc(cell ? '*' : ' ', to);
        return;
    }
    /* U+2800 plus the dots, as UTF-8 */
    fputc(0xE2, to);
    fputc(0xA0 | cell >> 6, to);
    fputc(0x80 | (cell & 0x3F), to);
}

static void put_rows(FILE *to, const canvas *c, double low, double high) {
    const char *wall = c->braille ? "│" : "|";
    for (int r = 0; r < c->rows; r++) {
        bool labelled = r == 0 || r == c->rows - 1;
        if (labelled)
            fprintf(to, "%*.4g %s", LABEL_COLUMNS - 1, r == 0 ? high : low, wall);
        else
            fprintf(to, "%*s%s", LABEL_COLUMNS, "", wall);
        for (int x = 0; x < c->columns; x++)
            put_cell(to, c, c->cells[r][x]);
        fputc('\n', to);
    }
}

void cli_plot(FILE *to, const char *title, const char *x_label, const double *y, int n, int rows) {
    double low, high;
    if (n < 1 || !range_of(y, n, &low, &high)) return;
    canvas c = {.braille = cli_utf8()};
    int columns = cli_columns(to) < MOST_COLUMNS ? cli_columns(to) : MOST_COLUMNS;
    if (columns < LEAST_COLUMNS) columns = LEAST_COLUMNS;
    c.columns = columns - LABEL_COLUMNS - 1;
    c.rows = rows < 2 ? 2 : rows > MOST_ROWS ? MOST_ROWS : rows;
    c.wide = c.columns * (c.braille ? 2 : 1);
    c.high = c.rows * (c.braille ? 4 : 1);
    draw_plot(&c, y, n, low, high);
    fprintf(to, "%s\n", title);
    put_rows(to, &c, low, high);
    fprintf(to, "%*s%s%s\n", LABEL_COLUMNS, "", c.braille ? "└ " : "+ ", x_label);
}
