/* programs.h — random programs of views, in-place operations and reads, run by the library and by the oracle.
 *
 * A program is a list of steps over numbered registers. What a step does stands in one table (program_steps.c) twice:
 * for the library and for the oracle. The generator (program_make.c) runs the oracle along, so that it knows the shapes
 * and values it builds on; the runner (program_run.c) runs the library in several ways and compares every read, bit for
 * bit. A program is its seed: the same seed gives the same program for ever. */
#ifndef TN_PROGRAMS_H
#define TN_PROGRAMS_H

#include "oracle.h"

enum { STEP_INPUTS = 8, STEP_INTS = 24, MAX_REGISTERS = 640, MAX_STEPS = 640, MAX_LIVE = 24 };

/* What a step does to registers. */
typedef enum step_class {
    STEP_MAKES,   /* register `to` gets new memory, from no inputs */
    STEP_VALUES,  /* … computed from inputs */
    STEP_VIEWS,   /* register `to` looks into the memory of in[0] */
    STEP_WRITES,  /* in[0] is written in place */
    STEP_CONTROLS /* read, eval, free, make_state */
} step_class;

/* name, class, its integers in words ("*shape": a length and as many items), whether its number and dtype are shown */
// clang-format off
#define STEP_KINDS(X)                                                                                                  \
    X(data, MAKES, "*shape content limit symbolic", "d")                                                               \
    X(number, MAKES, "", "f")                                                                                          \
    X(runtime_scalar, MAKES, "", "f")                                                                                  \
    X(full, MAKES, "*shape", "fd")                                                                                     \
    X(neg, VALUES, "", "") X(abs, VALUES, "", "") X(sqrt, VALUES, "", "") X(exp, VALUES, "", "")                       \
    X(tanh, VALUES, "", "") X(floor, VALUES, "", "") X(bitwise_not, VALUES, "", "")                                    \
    X(add, VALUES, "", "") X(sub, VALUES, "", "") X(mul, VALUES, "", "") X(div, VALUES, "", "")                        \
    X(maximum, VALUES, "", "") X(minimum, VALUES, "", "") X(eq, VALUES, "", "") X(lt, VALUES, "", "")                  \
    X(le, VALUES, "", "") X(bitwise_and, VALUES, "", "") X(bitwise_or, VALUES, "", "") X(bitwise_xor, VALUES, "", "")  \
    X(where, VALUES, "", "") X(cast, VALUES, "", "d")                                                                  \
    X(sum, VALUES, "*dims keepdim", "") X(amax, VALUES, "*dims keepdim", "") X(amin, VALUES, "*dims keepdim", "")      \
    X(argmax, VALUES, "*dims keepdim", "") X(mean, VALUES, "*dims keepdim", "")                                        \
    X(cumsum, VALUES, "dim", "") X(matmul, VALUES, "", "")                                                             \
    X(contiguous, VALUES, "", "") X(cat, VALUES, "dim", "") X(pad, VALUES, "*pads", "f")                               \
    X(gather, VALUES, "dim", "") X(index_select, VALUES, "dim", "") X(index_add, VALUES, "dim", "")                    \
    X(symbolic, VALUES, "dim symbol", "")                                                                              \
    X(view, VIEWS, "*shape", "") X(reshape, VIEWS, "*shape", "") X(flatten, VIEWS, "first last", "")                   \
    X(permute, VIEWS, "*dims", "") X(transpose, VIEWS, "dim0 dim1", "") X(expand, VIEWS, "*shape", "")                 \
    X(slice, VIEWS, "dim start stop step", "") X(select, VIEWS, "dim index", "") X(squeeze, VIEWS, "*dims", "")        \
    X(unsqueeze, VIEWS, "dim", "") X(detach, VIEWS, "", "") X(as_strided, VIEWS, "*shape *strides offset", "")         \
    X(copy_, WRITES, "", "") X(add_, WRITES, "", "") X(sub_, WRITES, "", "") X(mul_, WRITES, "", "")                   \
    X(neg_, WRITES, "", "") X(tanh_, WRITES, "", "")                                                                   \
    X(read, CONTROLS, "", "") X(item, CONTROLS, "", "") X(eval, CONTROLS, "", "") X(free, CONTROLS, "", "")            \
    X(make_state, CONTROLS, "", "")
// clang-format on

typedef enum step_kind {
#define X(name, class_, ints, shown) STEP_##name,
    STEP_KINDS(X)
#undef X
        STEP_KIND_COUNT
} step_kind;

/* What data is made of. */
typedef enum content { CONTENT_PLAIN, CONTENT_INDEX, CONTENT_WILD, CONTENT_WIDE, CONTENT_DISTINCT } content;

typedef struct step {
    step_kind kind;
    uint64_t salt; /* names its data */
    int to;        /* register made, -1 */
    int in[STEP_INPUTS], n_in;
    int64_t i[STEP_INTS];
    int n_i;
    double f;
    tn_dtype dtype;
} step;

/* Registers of a thread's programs below `shared` hold tensors that other threads read as well: never written. */
typedef struct program {
    uint64_t seed;
    step steps[MAX_STEPS];
    int count;
    int body, body_end; /* capture: the steps that are captured; else body = body_end = 0 */
    int leaves;         /* gradient: data made by the first steps requires gradients and is not written */
    bool symbolic;      /* an extent differs between variants */
} program;

/* ---- steps (program_steps.c) ------------------------------------------------------------------------------------- */

const char *step_name(step_kind kind);
step_class step_class_of(step_kind kind);
/* A new tensor, or for STEP_WRITES the value to be written; NULL when the step is not possible. */
oracle *step_eager(const step *s, oracle *const *in, int variant);
/* The same by the library; STEP_WRITES writes and returns in[0]. Always a tensor. */
tn_tensor *step_lazy(const step *s, tn_tensor *const *in, int variant);
/* "r7 = slice(r3, dim 0, start 1, stop 9, step 2)" */
void step_print(const step *s, char *out, size_t size);
/* Bytes of a data step in a variant: the caller frees them. shape receives the extents. */
void *step_data(const step *s, int variant, int64_t *shape, int *rank);

/* ---- the oracle's registers (program_steps.c) -------------------------------------------------------------------- */

typedef struct machine {
    oracle *reg[MAX_REGISTERS];
    bool view[MAX_REGISTERS]; /* made by a view op */
    bool odd[MAX_REGISTERS];  /* lies in ways that only as_strided can say: not written */
    bool state[MAX_REGISTERS];
    oracle *frozen[MAX_LIVE + 8]; /* memory that is not to be written now */
    int frozen_count;
    oracle *pending; /* what machine_prepare computed */
    int variant;
} machine;

/* Computes what the step would yield and says whether it is possible; commit then does it, cancel forgets it. */
bool machine_prepare(machine *m, const step *s);
void machine_commit(machine *m, const step *s);
void machine_cancel(machine *m);
bool machine_step(machine *m, const step *s); /* both */
void machine_freeze(machine *m);              /* all live memory but the states' */
void machine_clear(machine *m);

/* ---- generator (program_make.c) ---------------------------------------------------------------------------------- */

typedef enum program_form {
    PROGRAM_PLAIN,
    PROGRAM_CAPTURE,
    PROGRAM_SYMBOLIC,
    PROGRAM_GRADIENT,
    PROGRAM_LARGE
} program_form;

uint64_t program_random(uint64_t *state);
/* shared: the first `shared_count` registers hold these tensors. */
void program_make(program *p, uint64_t seed, program_form form, oracle *const *shared, int shared_count);

typedef struct program_counts {
    int ops, views, writes, reads;
} program_counts;
program_counts program_count(const program *p);

/* ---- runner (program_run.c) -------------------------------------------------------------------------------------- */

typedef enum run_mode {
    RUN_LAZY,    /* as written */
    RUN_EAGER,   /* tn_eval after every step */
    RUN_AGAIN,   /* lazily, then once more with other values: no new plan */
    RUN_KEPT,    /* lazily, then again with nothing freed: the same operations, other results to keep */
    RUN_CAPTURE, /* the body captured, launched again with other inputs */
    RUN_GRADIENT /* as written, then backward from all that is left: against differences of the oracle */
} run_mode;

typedef struct program_inputs {
    oracle *const *eager;
    tn_tensor *const *lazy;
    int count;
} program_inputs;

/* Runs p in a mode and compares with the oracle; false: `why` has the first difference. shared may be NULL. */
bool program_run(const program *p, run_mode mode, const program_inputs *shared, char *why, size_t size);
bool program_run_gradient(const program *p, char *why, size_t size); /* program_gradient.c */
/* As program_run, but a difference is printed with the seed and the shortest program that still shows it. */
bool program_check(const program *p, run_mode mode);
void program_print(const program *p);

#endif
