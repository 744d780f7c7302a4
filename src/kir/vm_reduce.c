/* vm_reduce.c — reductions and scans over tiles, in the one order that kir.h defines.
 *
 * A reduction has a state: KIR_LANES partial results, and the total of the blocks before. Loops along memory have one
 * row at a time in parts, so a lane is one element; loops across memory have a line of columns, so a lane is a line,
 * and every operation on lanes is an ordinary vector operation on lines. When a tile holds whole rows, the state begins
 * and ends with the tile. ARGMAX keeps the best value in `lanes` and its number in `total`; CHAIN the open chain and
 * the sum of the closed ones; SEQ and SCAN the running value, both in `total`. */
#include "kir/rules.h"
#include "kir/vm.h"

#include <string.h>

static const kir_step *step_of(const kir_frame *f, const kir_bound *b) { return &f->schedule->steps[b->step]; }

static const kir_op COMBINES[] = {
    [KIR_SUM] = KIR_ADD, [KIR_PROD] = KIR_MUL, [KIR_RMAX] = KIR_MAX, [KIR_RMIN] = KIR_MIN};

static bool is_arg(int kind) { return kind == KIR_ARGMAX || kind == KIR_ARGMIN; }

static bool uses_lanes(const kir_step *s) { return s->op == KIR_REDUCE && s->kind <= KIR_RMIN; }

static kir_reduce running_kind(const kir_step *s) { return s->op == KIR_SCAN ? (kir_reduce)s->kind : KIR_SUM; }

static kir_value identity_of(const kir_step *s) { return kir_identity((kir_reduce)s->kind, (kir_type)s->operand); }

/* Elements side by side in a lane, a total or a result: the columns of the tile. */
static int64_t columns(const kir_frame *f) { return f->layout == KIR_ACROSS ? f->inner.count : 1; }

static int64_t loop_count(const kir_frame *f) { return f->layout == KIR_ACROSS ? f->outer.count : f->inner.count; }

static int64_t loop_total(const kir_frame *f) {
    return f->layout == KIR_ACROSS ? f->outer_space.total : f->inner_space.total;
}

static size_t reduce_width_of(const kir_step *s) { return kir_type_size((kir_type)s->operand); }

static kir_fn *combiner(const kir_frame *f, const kir_step *s, kir_reduce kind) {
    return f->simd->binary[KIR_VV][COMBINES[kind]][s->operand];
}

static void fill_reduce(const kir_frame *f, char *d, const kir_step *s, kir_value x, int64_t n) {
    kir_block block = {.d = d, .s = &x, .d_inner = 1, .outer = 1, .inner = n};
    f->simd->copy[kir_log2(reduce_width_of(s))](&block);
}

/* ---- begin, feed, end -------------------------------------------------------------------------------------------- */

/* Lanes that can ever hold an element; across memory the others are left out, op(x, identity) being x. */
static int64_t lanes_used(const kir_frame *f) {
    return f->layout == KIR_ACROSS ? tn_min64(loop_total(f), KIR_LANES) : KIR_LANES;
}

static void clear_lanes(const kir_frame *f, const kir_step *s, kir_state *state) {
    kir_value identity = kir_identity((kir_reduce)s->kind, (kir_type)s->operand);
    fill_reduce(f, state->lanes, s, identity, lanes_used(f) * columns(f));
}

static void begin_state(const kir_frame *f, const kir_step *s, kir_state *state) {
    state->count = 0;
    state->has_total = false;
    if (uses_lanes(s)) {
        clear_lanes(f, s, state);
    } else if (is_arg(s->kind) && s->op == KIR_REDUCE) {
        int64_t none = f->layout == KIR_ACROSS ? 0 : -1;
        for (int64_t i = 0; i < columns(f); i++)
            ((int64_t *)(void *)state->total)[i] = none;
    } else if (s->kind == KIR_CHAIN && s->op == KIR_REDUCE) {
        fill_reduce(f, state->lanes, s, kir_identity(KIR_SUM, (kir_type)s->operand), columns(f));
    } else {
        fill_reduce(f, state->total, s, identity_of(s), columns(f));
    }
}

/* What the lanes hold becomes a block's result, in `out`. */
static void fold_reduce(const kir_frame *f, const kir_step *s, const kir_state *state, char *out) {
    if (f->layout != KIR_ACROSS) {
        f->simd->fold[s->kind][s->operand](out, state->lanes, NULL, NULL, KIR_LANES);
        return;
    }
    int64_t used = lanes_used(f), line = columns(f);
    for (int64_t half = KIR_LANES / 2; half > 0; half /= 2) {
        int64_t pairs = tn_min64(half, used - half);
        if (pairs <= 0) continue;
        char *upper = state->lanes + (size_t)(half * line) * reduce_width_of(s);
        combiner(f, s, (kir_reduce)s->kind)(state->lanes, state->lanes, upper, NULL, pairs * line);
    }
    memcpy(out, state->lanes, (size_t)line * reduce_width_of(s));
}

static void end_block(const kir_frame *f, const kir_step *s, kir_state *state) {
    char *block = state->has_total ? f->stage[1] : state->total;
    fold_reduce(f, s, state, block);
    if (state->has_total) {
        combiner(f, s, (kir_reduce)s->kind)(state->total, state->total, block, NULL, columns(f));
    }
    state->has_total = true;
}

static void feed_lanes(const kir_frame *f, const kir_step *s, kir_state *state, const char *x) {
    if (state->count > 0 && state->count % KIR_BLOCK == 0) {
        end_block(f, s, state);
        clear_lanes(f, s, state);
    }
    int64_t lane = state->count % KIR_LANES, n = loop_count(f);
    if (f->layout != KIR_ACROSS) {
        f->simd->lanes[s->kind][s->operand](state->lanes, x, &lane, NULL, n);
        return;
    }
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    while (n > 0) {
        int64_t step = tn_min64(n, KIR_LANES - lane);
        char *at = state->lanes + (size_t)lane * line;
        combiner(f, s, (kir_reduce)s->kind)(at, at, x, NULL, step * columns(f));
        x += (size_t)step * line;
        n -= step;
        lane = 0;
    }
}

static void feed_arg(const kir_frame *f, const kir_step *s, kir_state *state, const char *x) {
    int which = s->kind == KIR_ARGMIN;
    int64_t at = state->count;
    if (f->layout != KIR_ACROSS) {
        f->simd->arg[which][s->operand](state->total, x, state->lanes, &at, loop_count(f));
        return;
    }
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    for (int64_t r = 0; r < loop_count(f); r++, at++) {
        f->simd->arg_columns[which][s->operand](state->total, x + (size_t)r * line, state->lanes, &at, columns(f));
    }
}

static void multiply_add(const kir_frame *f, const kir_step *s, char *sum, const char *a, const char *b) {
    const kir_simd_table *t = f->simd;
    if (kir_is_float((kir_type)s->operand)) {
        t->fma[0][s->operand](sum, a, b, sum, columns(f));
        return;
    }
    t->binary[KIR_VV][KIR_MUL][s->operand](f->stage[2], a, b, NULL, columns(f));
    t->binary[KIR_VV][KIR_ADD][s->operand](sum, sum, f->stage[2], NULL, columns(f));
}

/* The open chain joins the sum of those before it; the first one stands alone. */
static void close_chain(const kir_frame *f, const kir_step *s, kir_state *state) {
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    if (state->has_total)
        combiner(f, s, KIR_SUM)(state->total, state->total, state->lanes, NULL, columns(f));
    else
        memcpy(state->total, state->lanes, line);
    state->has_total = true;
}

static void feed_chain(const kir_frame *f, const kir_step *s, kir_state *state, const char *a, const char *b) {
    int64_t at = state->count;
    if (f->layout != KIR_ACROSS) {
        /* the routine wants the open chain and the total side by side */
        char pair[2 * sizeof(kir_value)];
        size_t width = reduce_width_of(s);
        memcpy(pair, state->lanes, width);
        memcpy(pair + width, state->total, width);
        f->simd->chain[s->operand](pair, a, b, &at, loop_count(f));
        memcpy(state->lanes, pair, width);
        memcpy(state->total, pair + width, width);
        state->has_total = at + loop_count(f) > KIR_KSUM;
        return;
    }
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    for (int64_t r = 0; r < loop_count(f); r++, at++) {
        if (at > 0 && at % KIR_KSUM == 0) {
            close_chain(f, s, state);
            fill_reduce(f, state->lanes, s, kir_identity(KIR_SUM, (kir_type)s->operand), columns(f));
        }
        multiply_add(f, s, state->lanes, a + (size_t)r * line, b + (size_t)r * line);
    }
}

/* The running value of SCAN and SEQ; d is where each one goes (a stage, if nobody wants them). */
static void feed_running(const kir_frame *f, const kir_step *s, kir_state *state, const char *x, char *d) {
    kir_reduce kind = running_kind(s);
    if (f->layout != KIR_ACROSS) {
        f->simd->scan[kind][s->operand](d, x, state->total, NULL, loop_count(f));
        return;
    }
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    const char *before = state->total;
    for (int64_t r = 0; r < loop_count(f); r++) {
        char *at = d + (size_t)r * line;
        combiner(f, s, kind)(at, before, x + (size_t)r * line, NULL, columns(f));
        before = at;
    }
    memmove(state->total, before, line);
}

static void feed(const kir_frame *f, const kir_step *s, kir_state *state, const char *a, const char *b) {
    if (uses_lanes(s))
        feed_lanes(f, s, state, a);
    else if (is_arg(s->kind))
        feed_arg(f, s, state, a);
    else if (s->kind == KIR_CHAIN)
        feed_chain(f, s, state, a, b);
    else
        feed_running(f, s, state, a, f->stage[1]);
    state->count += loop_count(f);
}

/* The result line goes to `out`. */
static void end_state(const kir_frame *f, const kir_step *s, kir_state *state, char *out) {
    size_t width = is_arg(s->kind) ? sizeof(int64_t) : reduce_width_of(s);
    if (state->count == 0) {
        bool has_identity = uses_lanes(s) || s->kind == KIR_SEQ;
        kir_value nothing = has_identity ? identity_of(s) : (kir_value){.u64 = 0};
        kir_block block = {.d = out, .s = &nothing, .d_inner = 1, .outer = 1, .inner = columns(f)};
        f->simd->copy[kir_log2(width)](&block);
        return;
    }
    if (uses_lanes(s))
        end_block(f, s, state);
    else if (s->kind == KIR_CHAIN)
        close_chain(f, s, state);
    memcpy(out, state->total, (size_t)columns(f) * width);
}

/* ---- whole rows -------------------------------------------------------------------------------------------------- */

/* Along memory, a tile of whole rows: each row has its state in turn. */
static void reduce_rows(const kir_frame *f, const kir_step *s, const char *a, const char *b, char *out) {
    int64_t length = f->inner.count, rows = f->outer.count;
    if (uses_lanes(s)) {
        f->simd->rows[s->kind][s->operand](out, a, &length, NULL, rows);
        return;
    }
    kir_state *state = &f->states[s->state];
    size_t row = (size_t)length * reduce_width_of(s), width = is_arg(s->kind) ? sizeof(int64_t) : reduce_width_of(s);
    for (int64_t r = 0; r < rows; r++) {
        begin_state(f, s, state);
        feed(f, s, state, a + (size_t)r * row, b ? b + (size_t)r * row : NULL);
        end_state(f, s, state, out + (size_t)r * width);
    }
}

static void scan_rows(const kir_frame *f, const kir_step *s, const char *x, char *d) {
    kir_state *state = &f->states[s->state];
    size_t row = (size_t)f->inner.count * reduce_width_of(s);
    for (int64_t r = 0; r < f->outer.count; r++) {
        begin_state(f, s, state);
        feed_running(f, s, state, x + (size_t)r * row, d + (size_t)r * row);
    }
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* All directions of the tile. */
static int full_kind(const kir_frame *f) { return f->bind->pattern[3]; }

void kir_do_reduce(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    kir_state *state = &f->states[s->state];
    int kind = full_kind(f);
    if (b->fn) { /* joined with the product that it sums */
        b->fn(f->at[b->d], f->at[b->a], f->at[b->b], &f->inner.count, f->outer.count);
        return;
    }
    const char *x = kir_spread(f, s->a, (kir_type)s->operand, kind, 3);
    const char *y = s->b == KIR_NONE ? NULL : kir_spread(f, s->b, (kir_type)s->operand, kind, 4);
    if (!f->whole) {
        feed(f, s, state, x, y);
        return;
    }
    if (f->layout == KIR_ALONG) {
        reduce_rows(f, s, x, y, f->at[b->d]);
        return;
    }
    begin_state(f, s, state);
    feed(f, s, state, x, y);
    end_state(f, s, state, f->at[b->d]);
}

void kir_do_scan(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    kir_state *state = &f->states[s->state];
    const char *x = kir_spread(f, s->a, (kir_type)s->operand, full_kind(f), 3);
    if (f->whole && f->layout == KIR_ALONG) {
        scan_rows(f, s, x, f->at[b->d]);
        return;
    }
    if (f->whole) begin_state(f, s, state);
    feed_running(f, s, state, x, f->at[b->d]);
    state->count += loop_count(f);
}

void kir_states_begin(kir_frame *f, int loop, int end) {
    for (int i = loop + 1; i < end; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->state != KIR_NONE) begin_state(f, s, &f->states[s->state]);
    }
}

void kir_states_end(kir_frame *f, int loop, int end) {
    for (int i = loop + 1; i < end; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->op == KIR_REDUCE) end_state(f, s, &f->states[s->state], f->at[s->d]);
    }
}

/* ---- blocks computed apart --------------------------------------------------------------------------------------- */

size_t kir_part_bytes(void) { return 2 * sizeof(kir_value) * KIR_COLUMNS; }

/* A part is a line of values, then for ARG* a line of numbers. */
void kir_part_save(kir_frame *f, const kir_step *s, char *part) {
    kir_state *state = &f->states[s->state];
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    if (!is_arg(s->kind)) {
        fold_reduce(f, s, state, part);
        return;
    }
    memcpy(part, state->lanes, line);
    memcpy(part + kir_part_bytes() / 2, state->total, (size_t)columns(f) * sizeof(int64_t));
}

static void add_arg_part(const kir_frame *f, const kir_step *s, kir_state *state, const char *part, int64_t first) {
    size_t width = reduce_width_of(s);
    int64_t *best = (int64_t *)(void *)state->total;
    const int64_t *index = (const int64_t *)(const void *)(part + kir_part_bytes() / 2);
    for (int64_t i = 0; i < columns(f); i++) {
        kir_value mine = {.u64 = 0}, other = {.u64 = 0};
        memcpy(&mine, state->lanes + (size_t)i * width, width);
        memcpy(&other, part + (size_t)i * width, width);
        if (state->count > 0 && !kir_beats((kir_reduce)s->kind, (kir_type)s->operand, other, mine)) continue;
        memcpy(state->lanes + (size_t)i * width, &other, width);
        best[i] = first + index[i];
    }
}

/* Parts come in order; `first` is the number of the part's first element. */
void kir_part_add(kir_frame *f, const kir_step *s, const char *part, int64_t first) {
    kir_state *state = &f->states[s->state];
    if (is_arg(s->kind))
        add_arg_part(f, s, state, part, first);
    else if (state->has_total)
        combiner(f, s, (kir_reduce)s->kind)(state->total, state->total, part, NULL, columns(f));
    else
        memcpy(state->total, part, (size_t)columns(f) * reduce_width_of(s));
    state->has_total = true;
    state->count = first + 1;
}

/* After the last part: the results are the totals. */
void kir_parts_end(kir_frame *f, const kir_step *s) {
    size_t width = is_arg(s->kind) ? sizeof(int64_t) : reduce_width_of(s);
    memcpy(f->at[s->d], f->states[s->state].total, (size_t)columns(f) * width);
}
