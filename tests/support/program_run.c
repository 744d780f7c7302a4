/* program_run.c — runs a program by the library, compares with the oracle, and makes failing programs short. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "programs.h"

/* ---- what should come out ---------------------------------------------------------------------------------------- */

/* A register's contents at one moment. */
typedef struct reading {
    int step, reg;
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK];
    size_t bytes;
    void *data;
} reading;

typedef struct trace {
    bool ran[MAX_STEPS];
    reading made[MAX_STEPS]; /* shape and dtype of what a step makes */
    reading *readings;
    int count, capacity;
} trace;

static reading describe(const oracle *x, int n, int reg) {
    reading r = {.step = n, .reg = reg, .dtype = x->dtype, .rank = x->rank};
    memcpy(r.shape, x->shape, sizeof r.shape);
    r.bytes = (size_t)oracle_numel(x) * tn_dtype_size(x->dtype);
    return r;
}

static void note_reading(trace *t, const oracle *x, int n, int reg) {
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->readings = realloc(t->readings, (size_t)t->capacity * sizeof *t->readings);
    }
    reading r = describe(x, n, reg);
    r.data = malloc(r.bytes + 8);
    oracle_read(x, r.data);
    t->readings[t->count++] = r;
}

static void trace_clear(trace *t) {
    for (int n = 0; n < t->count; n++)
        free(t->readings[n].data);
    free(t->readings);
    memset(t, 0, sizeof *t);
}

static void trace_steps(trace *t, machine *m, const program *p, int from, int to) {
    for (int n = from; n < to; n++) {
        const step *s = &p->steps[n];
        t->ran[n] = machine_step(m, s);
        if (!t->ran[n]) continue;
        if (s->to >= 0) t->made[n] = describe(m->reg[s->to], n, s->to);
        if (s->kind == STEP_read || s->kind == STEP_item) note_reading(t, m->reg[s->in[0]], n, s->in[0]);
    }
}

static void trace_registers(trace *t, const machine *m, int n) {
    for (int r = 0; r < MAX_REGISTERS; r++)
        if (m->reg[r]) note_reading(t, m->reg[r], n, r);
}

static machine *new_machine(const program_inputs *shared, int variant) {
    machine *m = calloc(1, sizeof *m);
    m->variant = variant;
    for (int r = 0; shared && r < shared->count; r++)
        m->reg[r] = oracle_alias(shared->eager[r]);
    machine_freeze(m);
    return m;
}

static void free_machine(machine *m) {
    machine_clear(m);
    free(m);
}

static trace *trace_program(const program *p, const program_inputs *shared, int variant) {
    trace *t = calloc(1, sizeof *t);
    machine *m = new_machine(shared, variant);
    trace_steps(t, m, p, 0, p->count);
    trace_registers(t, m, p->count);
    free_machine(m);
    return t;
}

static void free_trace(trace *t) {
    trace_clear(t);
    free(t);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef struct lazy {
    tn_tensor *reg[MAX_REGISTERS];
    const program *p;
    char *why;
    size_t size;
} lazy;

static double element(tn_dtype t, const char *at) {
    int64_t i = 0;
    float f;
    double d;
    if (t == TN_F64) return memcpy(&d, at, sizeof d), d;
    if (t == TN_F32) return memcpy(&f, at, sizeof f), (double)f;
    memcpy(&i, at, tn_dtype_size(t));
    return t == TN_I64 ? (double)i : (double)(int32_t)i;
}

static bool is_nan(tn_dtype t, const char *at) {
    uint16_t half;
    if (t == TN_F32 || t == TN_F64) return element(t, at) != element(t, at);
    if (t != TN_F16) return false;
    memcpy(&half, at, sizeof half);
    return (half & 0x7fff) > 0x7c00;
}

/* Bit for bit; any NaN equals any other. Index of the first difference, -1 when there is none. */
static int64_t first_difference(const reading *want, const char *got) {
    size_t size = tn_dtype_size(want->dtype);
    const char *w = want->data;
    if (memcmp(w, got, want->bytes) == 0) return -1;
    for (size_t at = 0; at < want->bytes; at += size) {
        if (memcmp(w + at, got + at, size) == 0) continue;
        if (!is_nan(want->dtype, w + at) || !is_nan(want->dtype, got + at)) return (int64_t)(at / size);
    }
    return -1;
}

static bool shape_fits(const reading *want, const tn_tensor *t) {
    bool same = tn_dtype_of(t) == want->dtype && tn_rank(t) == want->rank;
    for (int d = 0; same && d < want->rank; d++)
        same = tn_shape(t)[d] == want->shape[d];
    return same;
}

static bool fail_shape(const lazy *z, const reading *want, const tn_tensor *t) {
    snprintf(z->why, z->size, "step %d, r%d: %s rank %d [%lld, …] instead of %s rank %d [%lld, …]", want->step,
             want->reg, tn_dtype_name(tn_dtype_of(t)), tn_rank(t), (long long)tn_size(t, 0), tn_dtype_name(want->dtype),
             want->rank, (long long)want->shape[0]);
    return false;
}

static bool same_bytes(const lazy *z, const reading *want, const char *got) {
    int64_t at = first_difference(want, got);
    if (at < 0) return true;
    size_t size = tn_dtype_size(want->dtype);
    snprintf(z->why, z->size, "step %d: r%d[%lld] is %.9g, should be %.9g", want->step, want->reg, (long long)at,
             element(want->dtype, got + (size_t)at * size),
             element(want->dtype, (const char *)want->data + (size_t)at * size));
    return false;
}

static bool check_reading(const lazy *z, const reading *want, const tn_tensor *t) {
    if (tn_status_of(t) == TN_OK && !shape_fits(want, t)) return fail_shape(z, want, t);
    char *got = malloc(want->bytes + 8);
    memset(got, 0x55, want->bytes);
    bool ok = tn_read(t, got, want->bytes) == TN_OK;
    if (!ok) snprintf(z->why, z->size, "step %d, reading r%d: %s", want->step, want->reg, tn_error());
    ok = ok && same_bytes(z, want, got);
    free(got);
    return ok;
}

static bool check_item(const lazy *z, const reading *want, const tn_tensor *t) {
    double got = tn_item(t), expected = element(want->dtype, want->data);
    if (want->dtype == TN_F16) return check_reading(z, want, t);
    if (got == expected || (got != got && expected != expected)) return true;
    snprintf(z->why, z->size, "step %d: item of r%d is %.9g, should be %.9g%s%s", want->step, want->reg, got, expected,
             got != got ? ": " : "", got != got ? tn_error() : "");
    return false;
}

/* ---- by the library ---------------------------------------------------------------------------------------------- */

static bool fail_here(const lazy *z, int n, const char *what) {
    char words[256];
    step_print(&z->p->steps[n], words, sizeof words);
    snprintf(z->why, z->size, "step %d, %s: %s: %s", n, words, what, tn_error());
    return false;
}

static bool control(lazy *z, const step *s, int n, const reading *want) {
    tn_tensor *x = s->n_in ? z->reg[s->in[0]] : NULL;
    if (s->kind == STEP_read) return check_reading(z, want, x);
    if (s->kind == STEP_item) return check_item(z, want, x);
    if (s->kind == STEP_make_state) return tn_make_state(x) == TN_OK || fail_here(z, n, "refused");
    if (s->kind == STEP_free) {
        tn_free(x);
        z->reg[s->in[0]] = NULL;
        return true;
    }
    tn_tensor *some[STEP_INPUTS];
    for (int k = 0; k < s->n_in; k++)
        some[k] = z->reg[s->in[k]];
    return tn_eval(some, s->n_in) == TN_OK || fail_here(z, n, "failed");
}

static bool compute(lazy *z, const step *s, int n, int variant, const reading *want) {
    tn_tensor *in[STEP_INPUTS];
    for (int k = 0; k < s->n_in; k++)
        in[k] = z->reg[s->in[k]];
    tn_tensor *made = step_lazy(s, in, variant);
    if (s->to >= 0) {
        tn_free(z->reg[s->to]);
        z->reg[s->to] = made;
    }
    if (tn_status_of(made) != TN_OK) return fail_here(z, n, "refused");
    return s->to < 0 || shape_fits(want, made) || fail_shape(z, want, made);
}

/* Steps from … to that the oracle could do; *next counts the readings used up. */
static bool lazy_steps(lazy *z, const trace *t, int from, int to, int variant, bool eager, int *next) {
    for (int n = from; n < to; n++) {
        const step *s = &z->p->steps[n];
        if (!t->ran[n]) continue;
        if (step_class_of(s->kind) == STEP_CONTROLS) {
            bool reads = s->kind == STEP_read || s->kind == STEP_item;
            if (!control(z, s, n, reads ? &t->readings[(*next)++] : NULL)) return false;
        } else if (!compute(z, s, n, variant, &t->made[n])) {
            return false;
        }
        if (eager && tn_eval(NULL, 0) != TN_OK) return fail_here(z, n, "tn_eval behind it failed");
    }
    return true;
}

static bool check_rest(const lazy *z, const trace *t, int next) {
    for (; next < t->count; next++)
        if (!check_reading(z, &t->readings[next], z->reg[t->readings[next].reg])) return false;
    return true;
}

static void lazy_begin(lazy *z, const program_inputs *shared) {
    for (int r = 0; shared && r < shared->count; r++)
        z->reg[r] = tn_retain(shared->lazy[r]);
}

static void lazy_end(lazy *z) {
    for (int r = 0; r < MAX_REGISTERS; r++)
        tn_free(z->reg[r]);
}

static bool run_variant(const program *p, const program_inputs *shared, int variant, bool eager, char *why,
                        size_t size) {
    lazy *z = calloc(1, sizeof *z);
    *z = (lazy){.p = p, .why = why, .size = size};
    trace *t = trace_program(p, shared, variant);
    int next = 0;
    lazy_begin(z, shared);
    bool ok = lazy_steps(z, t, 0, p->count, variant, eager, &next) && check_rest(z, t, next);
    lazy_end(z);
    free(z);
    free_trace(t);
    return ok;
}

static int64_t plans_made(void) {
    tn_runtime_stats s = {.struct_size = sizeof s};
    return tn_get_runtime_stats(&s) == TN_OK ? s.plans_made : -1;
}

/* First as written, then with other values in the same shapes: every plan must be there already. */
static bool run_again(const program *p, const program_inputs *shared, char *why, size_t size) {
    if (!run_variant(p, shared, 0, false, why, size)) return false;
    if (tn_eval(NULL, 0) != TN_OK) return false; /* a state may have been written and let go at the very end */
    int64_t before = plans_made();
    if (!run_variant(p, shared, 1, false, why, size)) return false;
    if (p->symbolic || plans_made() == before) return true;
    snprintf(why, size, "the second run made %lld new plans", (long long)(plans_made() - before));
    return false;
}

static bool run_kept(const program *p, const program_inputs *shared, char *why, size_t size) {
    if (!run_variant(p, shared, 0, false, why, size)) return false;
    program *kept = malloc(sizeof *kept);
    *kept = *p;
    kept->count = 0;
    for (int n = 0; n < p->count; n++)
        if (p->steps[n].kind != STEP_free) kept->steps[kept->count++] = p->steps[n];
    bool ok = run_variant(kept, shared, 0, false, why, size);
    free(kept);
    return ok;
}

/* ---- captured ---------------------------------------------------------------------------------------------------- */

enum { LAUNCHES = 3 };

typedef struct capture {
    const program *p;
    machine *m;
    trace *t;
    lazy *z;
    bool input[MAX_REGISTERS]; /* new values at each launch */
    bool moved[MAX_REGISTERS]; /* an input, or a view of one */
    int inputs[MAX_LIVE], input_count, outputs[MAX_REGISTERS], output_count;
    tn_tensor *new_inputs[MAX_LIVE], *results[MAX_REGISTERS];
    tn_graph *graph;
} capture;

static void find_inputs(capture *c) {
    for (int n = 0; n < c->p->body; n++) {
        const step *s = &c->p->steps[n];
        if (s->kind != STEP_data || !c->t->ran[n] || !c->m->reg[s->to] || c->m->state[s->to]) continue;
        c->input[s->to] = c->moved[s->to] = true;
        c->inputs[c->input_count++] = s->to;
    }
}

/* Results that the body computes and that lie whole in memory of their own. */
static void find_outputs(capture *c) {
    for (int n = c->p->body; n < c->p->body_end; n++) {
        const step *s = &c->p->steps[n];
        if (c->t->ran[n] && step_class_of(s->kind) == STEP_VALUES && c->m->reg[s->to])
            c->outputs[c->output_count++] = s->to;
    }
}

/* The oracle's side of a launch: new inputs, the views of them, the body. */
static void launch_eagerly(capture *c, int variant) {
    c->m->variant = variant;
    for (int n = 0; n < c->p->body; n++) {
        const step *s = &c->p->steps[n];
        bool is_input = s->kind == STEP_data && c->input[s->to];
        bool looks = step_class_of(s->kind) == STEP_VIEWS && c->t->ran[n] && c->moved[s->to] && c->m->reg[s->to];
        if (is_input || looks) machine_step(c->m, s);
    }
    c->m->variant = 0; /* data that the body makes was captured with it */
    for (int n = c->p->body; n < c->p->body_end; n++) {
        const step *s = &c->p->steps[n];
        c->m->variant = s->kind == STEP_runtime_scalar ? variant : 0;
        if (c->t->ran[n]) machine_step(c->m, s);
    }
}

static void note_views_of_inputs(capture *c) {
    for (int n = 0; n < c->p->body; n++) {
        const step *s = &c->p->steps[n];
        if (step_class_of(s->kind) != STEP_VIEWS || !c->t->ran[n] || !c->m->reg[s->to] || !c->m->reg[s->in[0]])
            continue;
        if (c->moved[s->in[0]] && oracle_same_storage(c->m->reg[s->to], c->m->reg[s->in[0]])) c->moved[s->to] = true;
    }
}

static bool check_registers(capture *c, tn_tensor *const *results) {
    bool ok = true;
    for (int k = 0; k < c->output_count && ok; k++) {
        trace one = {.count = 0};
        note_reading(&one, c->m->reg[c->outputs[k]], c->p->count, c->outputs[k]);
        ok = check_reading(c->z, &one.readings[0], results ? results[k] : c->z->reg[c->outputs[k]]);
        trace_clear(&one);
    }
    return ok;
}

static bool is_states(const machine *m, int r) {
    for (int s = 0; s < MAX_REGISTERS; s++)
        if (m->reg[s] && m->state[s] && oracle_same_storage(m->reg[s], m->reg[r])) return true;
    return false;
}

/* States, and whatever looks into them, are what they would be after that many eager rounds. */
static bool check_states(capture *c) {
    bool ok = true;
    for (int r = 0; r < MAX_REGISTERS && ok; r++) {
        if (!c->m->reg[r] || !c->z->reg[r] || !is_states(c->m, r)) continue;
        trace one = {.count = 0};
        note_reading(&one, c->m->reg[r], c->p->count, r);
        ok = check_reading(c->z, &one.readings[0], c->z->reg[r]);
        trace_clear(&one);
    }
    return ok;
}

static bool set_runtime_scalars(capture *c, int variant) {
    int number = 0;
    for (int n = c->p->body; n < c->p->body_end; n++) {
        const step *s = &c->p->steps[n];
        if (s->kind != STEP_runtime_scalar || !c->t->ran[n]) continue;
        if (tn_graph_set_runtime_scalar(c->graph, number++, s->f + 0.375 * variant) != TN_OK)
            return fail_here(c->z, n, "set_dial");
    }
    return true;
}

static bool launch(capture *c, int variant) {
    const char *what = "tn_graph_launch";
    for (int k = 0; k < c->input_count; k++)
        c->new_inputs[k] = NULL;
    for (int n = 0, k = 0; n < c->p->body; n++) {
        const step *s = &c->p->steps[n];
        if (s->kind == STEP_data && c->input[s->to]) c->new_inputs[k++] = step_lazy(s, NULL, variant);
    }
    bool ok = set_runtime_scalars(c, variant);
    if (ok && tn_graph_launch(c->graph, c->new_inputs, c->results) != TN_OK) {
        snprintf(c->z->why, c->z->size, "%s: %s", what, tn_error());
        ok = false;
        c->output_count = 0;
    }
    launch_eagerly(c, variant);
    ok = ok && check_registers(c, c->results) && check_states(c);
    if (!ok && c->z->why[0] != 't') {
        char difference[512];
        snprintf(difference, sizeof difference, "%s", c->z->why);
        snprintf(c->z->why, c->z->size, "launch with variant %d: %s", variant, difference);
    }
    for (int k = 0; k < c->input_count; k++)
        tn_free(c->new_inputs[k]);
    for (int k = 0; k < c->output_count; k++)
        tn_free(c->results[k]);
    return ok;
}

static bool captured(capture *c) {
    tn_tensor *in[MAX_LIVE], *out[MAX_REGISTERS];
    int next = 0;
    trace_steps(c->t, c->m, c->p, 0, c->p->body);
    find_inputs(c);
    note_views_of_inputs(c);
    machine_freeze(c->m);
    trace_steps(c->t, c->m, c->p, c->p->body, c->p->body_end);
    find_outputs(c);
    if (c->output_count == 0) return true;
    if (!lazy_steps(c->z, c->t, 0, c->p->body, 0, false, &next)) return false;
    if (tn_capture_begin() != TN_OK) return fail_here(c->z, 0, "tn_capture_begin");
    bool ok = lazy_steps(c->z, c->t, c->p->body, c->p->body_end, 0, false, &next);
    for (int k = 0; k < c->input_count; k++)
        in[k] = c->z->reg[c->inputs[k]];
    for (int k = 0; k < c->output_count; k++)
        out[k] = c->z->reg[c->outputs[k]];
    if (!ok) c->input_count = c->output_count = 0; /* the capture has to end, whatever came of it */
    tn_status s = tn_capture_end(in, c->input_count, out, c->output_count, &c->graph);
    if (ok && s != TN_OK) {
        snprintf(c->z->why, c->z->size, "tn_capture_end: %s", tn_error());
        return false;
    }
    ok = ok && check_registers(c, NULL) && check_states(c);
    for (int k = 1; k <= LAUNCHES && ok; k++)
        ok = launch(c, k % LAUNCHES);
    return ok;
}

static bool run_captured(const program *p, char *why, size_t size) {
    capture *c = calloc(1, sizeof *c);
    *c = (capture){.p = p, .m = new_machine(NULL, 0), .t = calloc(1, sizeof *c->t), .z = calloc(1, sizeof *c->z)};
    *c->z = (lazy){.p = p, .why = why, .size = size};
    bool ok = captured(c);
    tn_graph_free(c->graph);
    lazy_end(c->z);
    free_machine(c->m);
    free_trace(c->t);
    free(c->z);
    free(c);
    return ok;
}

bool program_run(const program *p, run_mode mode, const program_inputs *shared, char *why, size_t size) {
    why[0] = 0;
    if (mode == RUN_AGAIN) return run_again(p, shared, why, size);
    if (mode == RUN_KEPT) return run_kept(p, shared, why, size);
    if (mode == RUN_CAPTURE) return run_captured(p, why, size);
    if (mode == RUN_GRADIENT) return program_run_gradient(p, why, size);
    return run_variant(p, shared, 0, mode == RUN_EAGER, why, size);
}

/* ---- failing programs, made short -------------------------------------------------------------------------------- */

/* In a child process, so that a crash or an endless loop is a failure like another. */
static bool fails(const program *p, run_mode mode) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        char why[512];
        alarm(3);
        _exit(program_run(p, mode, NULL, why, sizeof why) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void without(program *to, const program *p, int from, int count) {
    *to = *p;
    memmove(&to->steps[from], &to->steps[from + count], (size_t)(p->count - from - count) * sizeof *to->steps);
    to->count -= count;
    int *const ends[] = {&to->body, &to->body_end, &to->leaves};
    for (int k = 0; k < 3; k++) {
        int gone = *ends[k] - from;
        *ends[k] -= gone <= 0 ? 0 : gone < count ? gone : count;
    }
}

static void shorten(program *p, run_mode mode) {
    program *shorter = malloc(sizeof *shorter);
    int length = p->count / 2;
    while (length > 0) {
        bool any = false;
        for (int from = p->count - length; from >= 0; from -= length) {
            without(shorter, p, from, length);
            if (!fails(shorter, mode)) continue;
            *p = *shorter;
            any = true;
            if (from > p->count) from = p->count;
        }
        if (!any || length > 1) length /= 2;
    }
    free(shorter);
}

void program_print(const program *p) {
    char words[320];
    machine *m = new_machine(NULL, 0);
    for (int n = 0; n < p->count; n++) {
        const step *s = &p->steps[n];
        bool ran = machine_step(m, s);
        step_print(s, words, sizeof words);
        if (p->body_end && n == p->body) printf("    -- captured from here --\n");
        printf("    %2d  %s%s", n, words, ran ? "" : "    (left out)");
        const oracle *x = ran && s->to >= 0 ? m->reg[s->to] : NULL;
        if (x) printf("    %s [", tn_dtype_name(x->dtype));
        for (int d = 0; x && d < x->rank; d++)
            printf(d ? ", %lld" : "%lld", (long long)x->shape[d]);
        printf(x ? "]\n" : "\n");
    }
    free_machine(m);
}

bool program_check(const program *p, run_mode mode) {
    static const char *const names[] = {
        "lazily", "with tn_eval after every step", "twice", "with nothing freed", "captured", "backward"};
    char why[512] = "it crashes or does not end";
    bool alone = getenv("TRUNNION_ISOLATE") != NULL; /* for programs that crash: each in a process of its own */
    if (alone ? !fails(p, mode) : program_run(p, mode, NULL, why, sizeof why)) return true;
    printf("seed %llu, run %s: %s\n", (unsigned long long)p->seed, names[mode], why);
    if (getenv("TRUNNION_BRIEF")) return false;
    program *shorter = malloc(sizeof *shorter);
    *shorter = *p;
    if (fails(shorter, mode)) shorten(shorter, mode);
    if (!alone && !program_run(shorter, mode, NULL, why, sizeof why)) printf("shortened: %s\n", why);
    program_print(shorter);
    free(shorter);
    return false;
}
