/* explain.h — what `trunnion explain` is made of: work under a profile beside what its operands let expect
 * (explain_phase.c), and who does that work: a language model (explain_language.c), an ONNX network
 * (explain_network.c). */
#ifndef TRUNNION_CLI_EXPLAIN_H
#define TRUNNION_CLI_EXPLAIN_H

#include "cli/cli.h"
#include "cli/run/run.h"
#include "trunnion/tensor.h"

typedef struct explain_wishes {
    int64_t prompt, tokens, context; /* of language models; 0: not given */
    onnx_dims dims;                  /* of networks */
} explain_wishes;

/* Both return the command's exit code, after a message where they failed. */
int explain_language(const cli_options *o, const explain_wishes *w, const char *path);
int explain_network(const cli_options *o, explain_wishes *w, const char *path);

/* ---- measuring (explain_phase.c) --------------------------------------------------------------------------------- */

/* Of this machine, a second: bytes read, operations of f32 products and of those with weights in blocks. */
typedef struct explain_speeds {
    double bytes, f32, blocks;
} explain_speeds;

/* Found with the library's own plainest work on the current device. */
tn_status explain_find_speeds(explain_speeds *out);

/* One of the things that a model does: taking in a prompt, giving tokens, running. */
typedef struct explain_phase {
    const char *name, *unit; /* "prompt", of so many "token"s */
    int64_t count;
    double profiled;     /* seconds of the work that was profiled */
    double seconds;      /* of the same by the clock, without a profile */
    int64_t plan_misses; /* meanwhile */
    tn_profile *profile;
    char *plan; /* the last plan in words */
} explain_phase;

/* Three times the same work: to plan and pack, by the clock, under the profile. Free what it fills in either case. */
tn_status explain_measure(explain_phase *p, tn_status (*work)(void *ctx), void *ctx);
void explain_phase_free(explain_phase *p);

void explain_put_speeds(const explain_speeds *s, bool blocks);
/* verbose: every command and the whole plan. */
void explain_put_phase(const explain_phase *p, const explain_speeds *s, bool verbose);
void explain_put_phase_json(cli_json *j, const explain_phase *p, const explain_speeds *s);
/* The phase's members of the array ops. */
void explain_put_ops_json(cli_json *j, const explain_phase *p, const explain_speeds *s);
/* What the device left to the host, a line each. */
void explain_put_host(tn_device *where, const char *id);

#endif
