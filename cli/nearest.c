/* nearest.c — what a mistyped command or option was meant to be. */
#include <string.h>

#include "cli/cli.h"

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

const char *cli_nearest(const char *typed, const char *const *names, int count) {
    const char *best = NULL;
    int best_distance = FARTHEST + 1;
    if (strlen(typed) > LONGEST) return NULL;
    for (int i = 0; i < count; i++) {
        int d = strlen(names[i]) > LONGEST ? best_distance : edit_distance(typed, names[i]);
        if (d >= best_distance || d >= (int)strlen(names[i])) continue;
        best = names[i];
        best_distance = d;
    }
    return best;
}
