/* line_editor.h — lines that a user types: with editing and history where libedit is installed, else as the terminal
 * gives them. */
#ifndef TRUNNION_CLI_LINE_EDITOR_H
#define TRUNNION_CLI_LINE_EDITOR_H

#include "cli/cli.h"
#include "trunnion/text.h"

typedef enum line_result { LINE_READ, LINE_END, LINE_INTERRUPTED, LINE_FAILED } line_result;

/* Between cli_stop_begin and cli_stop_end. Reads the next line of standard input into `line`, without its newline; a
 * prompt is shown on a terminal only. LINE_INTERRUPTED: a signal came, the line is lost; LINE_FAILED: an error was set.
 * One thread. */
line_result line_editor_read(const char *prompt, tn_bytes *line);
/* "libedit", or "none" */
const char *line_editor_name(void);
void line_editor_end(void);

#endif
