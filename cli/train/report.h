/* report.h — a training run as one HTML page without anything from outside: charts, numbers, samples; and the same
 * numbers and samples as events for TensorBoard. */
#ifndef TRUNNION_CLI_REPORT_H
#define TRUNNION_CLI_REPORT_H

#include "cli/cli.h"

/* ---- what a training run tells TensorBoard (events.c) ------------------------------------------------------------ */

/* Initialize with {0}; without a file nothing is written. */
typedef struct events {
    FILE *file;
    char path[1024];
} events;

/* Number `value` of the chart `tag`; NAN: none. */
typedef struct event_scalar {
    const char *tag;
    double value;
} event_scalar;

/* Opens a new file in `folder`, which is made if it does not exist. TensorBoard ignores steps from `first` on in
 * earlier files of the folder. */
tn_status events_open(events *e, const char *folder, int64_t first);
tn_status events_scalars(events *e, int64_t step, const event_scalar *scalars, int count);
tn_status events_text(events *e, int64_t step, const char *tag, const char *text);
void events_close(events *e);

/* ---- the page (report.c) ----------------------------------------------------------------------------------------- */

/* What is known after a step; NAN: nothing. */
typedef struct report_point {
    int64_t step;
    double loss, validation, rate, norm, speed, memory; /* rate: of learning; speed: units a second; memory: bytes */
} report_point;

enum { REPORT_FACTS = 24, REPORT_SAMPLES = 16 };

typedef struct report {
    const char *path; /* NULL: no page */
    const char *title, *speed_unit;
    events events;
    event_scalar shown; /* of the next point, for the events: what tells more than the loss; tag NULL: nothing */
    struct {
        char name[48], value[256];
    } facts[REPORT_FACTS];
    int fact_count;
    report_point *points;
    int64_t count, room;
    struct {
        int64_t step;
        char *text;
    } samples[REPORT_SAMPLES];
    int sample_count;
    bool failed;
    double written; /* when, in seconds of cli_now */
} report;

/* Begins as {.path, .title, .speed_unit}. A fact is a row of the table; one of the same name is replaced. */
void report_fact(report *r, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Opens the events' file in `folder`; NULL: none. first: the step after which the run begins; resumed: whether events
 * up to it are kept. */
tn_status report_open_events(report *r, const char *folder, int64_t first, bool resumed);
static inline bool report_wants_samples(const report *r) { return r->path || r->events.file; }
/* Adds a point, and writes the page if it is older than two seconds. */
tn_status report_add(report *r, const report_point *p);
/* Keeps the first ones and the newest. */
tn_status report_sample(report *r, int64_t step, const char *text);
/* Writes the page now, whole or not at all. done: whether the run has ended; else the page reloads itself. */
tn_status report_write(report *r, bool done);
/* Writes the page of a run that has failed, as far as it can be written. why: NULL if it is not known. */
void report_failure(report *r, const char *why);
void report_free(report *r);

#endif
