/* moving.h — the next device for a language model whose own failed, in subcommands that hold a conversation. */
#ifndef TRUNNION_CLI_MOVING_H
#define TRUNNION_CLI_MOVING_H

#include "cli/cli.h"

enum { CLI_MOST_MOVES = 16 };

typedef struct cli_moves {
    const cli_options *options;      /* of the command: how devices are opened */
    char failed[CLI_MOST_MOVES][32]; /* ids of devices that failed */
    int count;
    char reason[TN_REASON_BYTES]; /* of the last one */
} cli_moves;

/* Whether another device may do what failed with this status. */
bool cli_moves_on(tn_status s);

/* Notes that `device` failed with the text of tn_error(). Then the caller closes what lives there. */
void cli_moves_note(cli_moves *m, const tn_device *device);

/* Opens the next device in *out, makes it the thread's current one and says so in a line: another hardware
 * device of the list, then the cpu. Errors: `why`, with the noted text, if no device is left. */
tn_status cli_moves_next(cli_moves *m, tn_status why, tn_device **out);

#endif
