/* terminal.c — what is known about where output goes. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

bool cli_is_terminal(FILE *f) { return isatty(fileno(f)) == 1; }

bool cli_colour(FILE *f) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return cli_is_terminal(f) && !(none && *none) && term && strcmp(term, "dumb") != 0;
}

int cli_columns(FILE *f) {
    struct winsize w;
    if (cli_is_terminal(f) && ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
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
