/* events.h — what a training run tells TensorBoard: a file of events in a folder. */
#ifndef TRUNNION_CLI_EVENTS_H
#define TRUNNION_CLI_EVENTS_H

#include "cli/cli.h"

/* Begins as {0}; without a file nothing is written. */
typedef struct events {
    FILE *file;
    char path[1024];
} events;

/* Number `value` of the chart `tag`; NAN: none. */
typedef struct event_scalar {
    const char *tag;
    double value;
} event_scalar;

/* Opens a new file in `folder`, which is made if it does not exist. TensorBoard forgets what earlier files of the
 * folder say of steps from `first` on. */
tn_status events_open(events *e, const char *folder, int64_t first);
tn_status events_scalars(events *e, int64_t step, const event_scalar *scalars, int count);
tn_status events_text(events *e, int64_t step, const char *tag, const char *text);
void events_close(events *e);

#endif
