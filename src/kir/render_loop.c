/* render_loop.c — loops of a rendered kernel, and what runs through them: reductions and scans.
 *
 * A loop that feeds lanes runs in blocks of as many points, whatever its axes are: its inner loop then does the same
 * for each lane, and can become vector code, and only the outer one asks whether there is something to fold. (Asked at
 * each point, it would cost devices without branches a round of each loop that folds.) The state of reduction 9 is s9,
 * t9 and k9, declared before its loop; what it yields is the constant v9 behind it. In the loop that LOOP 8 begins, c8
 * counts the points gone by, and m8 is their number in all. Float sums and the like keep the 64 lanes of kir.h in an
 * array of the item; integers, whose order does not matter, one accumulator. */
#include "kir/eval.h"
#include "kir/render_text.h"
#include "kir/rules.h"

#include <stdio.h>

typedef enum state_form { ONE, LANES, CHAIN, EXTREME } state_form;

static state_form form_of(const render *r, const kir_ins *in) {
    bool is_float = kir_is_float((kir_type)r->p->ins[in->a].type);
    if (in->op == KIR_SCAN || in->kind == KIR_SEQ) return ONE;
    if (in->kind == KIR_ARGMAX || in->kind == KIR_ARGMIN) return EXTREME;
    if (!is_float) return ONE;
    return in->kind == KIR_CHAIN ? CHAIN : LANES;
}

static render_name c_loop_identity(const kir_ins *in, kir_type t) {
    kir_ins constant = kir_const_ins(t, kir_identity((kir_reduce)in->kind, t));
    return kir_render_literal(t, &constant);
}

static int end_of(const kir_program *p, int loop) {
    int depth = 0;
    for (int i = loop;; i++) {
        depth += (p->ins[i].op == KIR_LOOP) - (p->ins[i].op == KIR_END);
        if (depth == 0) return i;
    }
}

/* Calls `fn` for the reductions and scans that belong to this loop and not to one inside it. */
static void each_own_state(render *r, int loop, int end, void (*fn)(render *r, int i)) {
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        uint8_t op = r->p->ins[i].op;
        depth += (op == KIR_LOOP) - (op == KIR_END);
        if (depth == 0 && (op == KIR_REDUCE || op == KIR_SCAN)) fn(r, i);
    }
}

/* The forms of the loop's own states, as bits. */
static unsigned forms_in(const render *r, int loop, int end) {
    unsigned forms = 0;
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        const kir_ins *in = &r->p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth == 0 && (in->op == KIR_REDUCE || in->op == KIR_SCAN)) forms |= 1U << form_of(r, in);
    }
    return forms;
}

static void open_brace(render *r) {
    kir_render_put(r, "{\n");
    r->depth++;
}

static void close_brace(render *r) {
    r->depth--;
    kir_render_line(r, "}\n");
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static void fill_lanes(render *r, int i, const char *with) {
    kir_render_line(r, "for ($var $i32 i = 0; i < %d; i++) { s%d[i] = %s; }\n", KIR_LANES, i, with);
}

static void begin_state(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)r->p->ins[in->a].type;
    render_name zero = c_loop_identity(in, t);
    kir_ins none = {.op = KIR_CONST};
    const char *type = kir_render_type(t);
    switch (form_of(r, in)) {
    case ONE: kir_render_line(r, "$var %s s%d = %s;\n", type, i, zero.text); break;
    case CHAIN:
        kir_render_line(r, "$var %s s%d = %s;\n", type, i, zero.text);
        kir_render_line(r, "$var %s t%d = %s;\n", type, i, zero.text);
        break;
    case EXTREME:
        kir_render_line(r, "$var %s s%d = %s;\n", type, i, kir_render_literal(t, &none).text);
        kir_render_line(r, "$var %s k%d = 0%s;\n", kir_render_type((kir_type)in->type), i, "");
        break;
    case LANES:
        kir_render_line(r, "$var %s t%d = %s;\n", type, i, zero.text);
        kir_render_array(r, i, KIR_LANES, t);
        fill_lanes(r, i, zero.text);
    }
}

/* t = the block that the lanes of `i` hold, behind those before it; `first` says in the kernel that there is none. */
static void fold_lanes(render *r, int i, const char *first) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)in->type;
    char low[24], high[24];
    snprintf(low, sizeof low, "s%d[i]", i);
    snprintf(high, sizeof high, "s%d[i + h]", i);
    kir_render_line(r, "for ($var $i32 h = %d; h > 0; h /= 2) {\n", KIR_LANES / 2);
    r->depth++;
    kir_render_line(r, "for ($var $i32 i = 0; i < h; i++) { s%d[i] = ", i);
    kir_render_combine(r, (kir_reduce)in->kind, t, low, high);
    kir_render_put(r, "; }\n");
    close_brace(r);
    snprintf(low, sizeof low, "s%d[0]", i);
    snprintf(high, sizeof high, "t%d", i);
    kir_render_line(r, "if (%s) { t%d = %s; } else { t%d = ", first, i, low, i);
    kir_render_combine(r, (kir_reduce)in->kind, t, high, low);
    kir_render_put(r, "; }\n");
}

/* Folds the lanes when KIR_BLOCK points are whole, before those of block o. */
static void fold_own_block(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    char first[32];
    if (form_of(r, in) != LANES) return;
    snprintf(first, sizeof first, "o%d == %d", r->loop, KIR_BLOCK);
    kir_render_line(r, "if (o%d > 0 && (o%d & %d) == 0) {\n", r->loop, r->loop, KIR_BLOCK - 1);
    r->depth++;
    fold_lanes(r, i, first);
    fill_lanes(r, i, c_loop_identity(in, (kir_type)in->type).text);
    close_brace(r);
}

static void feed_lanes(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    char lane[32];
    if (r->blocked)
        snprintf(lane, sizeof lane, "s%d[l%d]", i, r->loop);
    else
        snprintf(lane, sizeof lane, "s%d[0]", i); /* a loop of no axis has one point */
    kir_render_line(r, "%s = ", lane);
    kir_render_combine(r, (kir_reduce)in->kind, (kir_type)in->type, lane, kir_render_operand(r, in->a).text);
    kir_render_put(r, ";\n");
}

static void put_product(render *r, int i, const char *acc) {
    const kir_ins *in = &r->p->ins[i];
    bool is_float = kir_is_float((kir_type)in->type);
    kir_ins op = {.op = is_float ? KIR_FMA : KIR_MUL, .type = in->type};
    render_name a = kir_render_operand(r, in->a), b = kir_render_operand(r, in->b);
    kir_render_operation(r, &op, (kir_type)in->type, (const char *const[3]){a.text, b.text, acc});
    kir_render_put(r, ";\n");
}

static void feed_chain(render *r, int i) {
    render_name zero = c_loop_identity(&r->p->ins[i], (kir_type)r->p->ins[i].type);
    char acc[24];
    snprintf(acc, sizeof acc, "s%d", i);
    kir_render_line(r, "if (c%d > 0 && (c%d & %d) == 0) {\n", r->loop, r->loop, KIR_KSUM - 1);
    r->depth++;
    kir_render_line(r, "if (c%d == %d) { t%d = s%d; } else { t%d = t%d + s%d; }\n", r->loop, KIR_KSUM, i, i, i, i, i);
    kir_render_line(r, "s%d = %s;\n", i, zero.text);
    close_brace(r);
    kir_render_line(r, "s%d = ", i);
    put_product(r, i, acc);
}

static void put_test(render *r, kir_op op, kir_type t, const char *a, const char *b) {
    kir_ins in = {.op = (uint8_t)op, .type = KIR_BOOL};
    kir_render_operation(r, &in, t, (const char *const[3]){a, b, ""});
}

/* The first element, one beyond the best, or the first NaN. */
static void feed_extreme(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)r->p->ins[in->a].type;
    render_name x = kir_render_operand(r, in->a);
    char best[24];
    snprintf(best, sizeof best, "s%d", i);
    const char *low = in->kind == KIR_ARGMAX ? best : x.text, *high = in->kind == KIR_ARGMAX ? x.text : best;
    kir_render_line(r, "if (c%d == 0 || (", r->loop);
    if (kir_is_float(t)) {
        put_test(r, KIR_EQ, t, best, best);
        kir_render_put(r, " && !(");
        put_test(r, KIR_LE, t, high, low);
        kir_render_put(r, ")");
    } else {
        put_test(r, KIR_LT, t, low, high);
    }
    kir_render_put(r, ")) {\n");
    r->depth++;
    kir_render_line(r, "s%d = %s;\n", i, x.text);
    kir_render_line(r, "k%d = c%d;\n", i, r->loop);
    close_brace(r);
}

static void feed_one(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)in->type;
    render_name x = kir_render_operand(r, in->a);
    kir_reduce kind = (kir_reduce)in->kind;
    char acc[24];
    snprintf(acc, sizeof acc, "s%d", i);
    kir_render_indent(r);
    if (kind == KIR_CHAIN) {
        kir_render_put(r, "$let %s q%d = ", kir_render_type(t), i);
        put_product(r, i, "");
        kir_render_indent(r);
        snprintf(x.text, sizeof x.text, "q%d", i);
        kind = KIR_SUM;
    }
    kir_render_put(r, "%s = ", acc);
    kir_render_combine(r, kind, t, acc, x.text);
    kir_render_put(r, ";\n");
    if (in->op != KIR_SCAN) return;
    kir_render_line(r, "$let %s v%d = %s;\n", kir_render_type(t), i, acc);
}

void kir_render_feed(render *r, int i) {
    static void (*const feeds[])(render * r, int i) = {
        [ONE] = feed_one, [LANES] = feed_lanes, [CHAIN] = feed_chain, [EXTREME] = feed_extreme};
    feeds[form_of(r, &r->p->ins[i])](r, i);
}

static void end_state(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    if (in->op == KIR_SCAN) return;
    char first[32];
    render_name zero = c_loop_identity(in, (kir_type)in->type);
    const char *type = kir_render_type((kir_type)in->type);
    switch (form_of(r, in)) {
    case ONE: kir_render_line(r, "$let %s v%d = s%d;\n", type, i, i); return;
    case EXTREME: kir_render_line(r, "$let %s v%d = k%d;\n", type, i, i); return;
    case CHAIN:
        kir_render_line(r, "$var %s v%d = s%d;\n", type, i, i);
        kir_render_line(r, "if (m%d == 0) { v%d = %s; }\n", r->loop, i, zero.text);
        kir_render_line(r, "if (m%d > %d) { v%d = t%d + s%d; }\n", r->loop, KIR_KSUM, i, i, i);
        return;
    case LANES: break;
    }
    snprintf(first, sizeof first, "m%d <= %d", r->loop, KIR_BLOCK);
    kir_render_line(r, "if (m%d > 0) {\n", r->loop);
    r->depth++;
    fold_lanes(r, i, first);
    close_brace(r);
    kir_render_line(r, "$let %s v%d = t%d;\n", type, i, i);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* The number of points of the loop's axes: 1 when it has none. */
static void put_point_count(render *r, int first, int count) {
    kir_render_line(r, "$let $ix m%d = ", r->loop);
    for (int axis = first; axis < first + count; axis++)
        kir_render_put(r, "%sn%d", axis > first ? " * " : "", axis);
    kir_render_put(r, "%s;\n", count == 0 ? "1" : "");
}

/* The number of the point that the coordinates name. */
static void put_point(render *r, int first, int count) {
    kir_render_line(r, "$let $ix c%d = ", r->loop);
    for (int axis = first; axis < first + count - 2; axis++)
        kir_render_put(r, "(");
    for (int axis = first; axis < first + count; axis++) {
        if (axis > first) kir_render_put(r, " * n%d + ", axis);
        kir_render_put(r, "x%d%s", axis, axis > first && axis < first + count - 1 ? ")" : "");
    }
    kir_render_put(r, "%s;\n", count == 0 ? "0" : "");
}

static bool has_barrier(const kir_program *p, int loop) {
    for (int i = loop, end = end_of(p, loop); i < end; i++) {
        if (p->ins[i].op == KIR_BARRIER) return true;
    }
    return false;
}

/* An axis that ends at a computed number of points: u5 is that of loop 5. */
static void open_axis_until(render *r, int axis, kir_val points) {
    render_name n = kir_render_operand(r, points);
    kir_type t = (kir_type)r->p->ins[points].type;
    kir_render_line(r, "$var $ix u%d = n%d;\n", r->loop, axis);
    kir_render_line(r, "if (%s < %s(n%d)) { u%d = $ix(%s); }\n", n.text, kir_render_type(t), axis, r->loop, n.text);
    r->n = r->loop;
    if (r->t->dialect->same && has_barrier(r->p, r->loop)) kir_render_words(r, r->t->dialect->same);
    kir_render_line(r, "for ($var $ix x%d = 0; x%d < u%d; x%d++) ", axis, axis, r->loop, axis);
    open_brace(r);
}

static void open_axes(render *r, int first, int count) {
    kir_val points = r->p->ins[r->loop].a;
    if (points != KIR_NONE) {
        open_axis_until(r, first, points);
        return;
    }
    for (int axis = first; axis < first + count; axis++) {
        kir_render_line(r, "for ($var $ix x%d = 0; x%d < n%d; x%d++) ", axis, axis, axis, axis);
        open_brace(r);
    }
    if (count > 0) return;
    kir_render_indent(r);
    open_brace(r);
}

/* All points in blocks of one a lane: block o, of e points, lane l. The coordinates of several axes are counted on. */
static void open_blocks(render *r, int first, int count, int end) {
    int loop = r->loop;
    open_brace(r);
    for (int axis = first; axis < first + count && count > 1; axis++)
        kir_render_line(r, "$var $ix x%d = 0;\n", axis);
    kir_render_line(r, "for ($var $ix o%d = 0; o%d < m%d; o%d += %d) ", loop, loop, loop, loop, KIR_LANES);
    open_brace(r);
    each_own_state(r, loop, end, fold_own_block);
    kir_render_line(r, "$var $i32 e%d = %d;\n", loop, KIR_LANES);
    kir_render_line(r, "if (m%d - o%d < %d) { e%d = $i32(m%d - o%d); }\n", loop, loop, KIR_LANES, loop, loop, loop);
    kir_render_line(r, "for ($var $i32 l%d = 0; l%d < e%d; l%d++) ", loop, loop, loop, loop);
    open_brace(r);
    if (count == 1) kir_render_line(r, "$let $ix x%d = o%d + $ix(l%d);\n", first, loop, loop);
}

/* The next point's coordinates: the last one goes on, and where it has come to its end, the one before it. */
static void close_blocks(render *r, int first, int count) {
    for (int axis = first + count - 1; axis > first; axis--) {
        kir_render_line(r, "x%d++;\n", axis);
        kir_render_line(r, "if (x%d == n%d) {\n", axis, axis);
        r->depth++;
        kir_render_line(r, "x%d = 0;\n", axis);
    }
    if (count > 1) kir_render_line(r, "x%d++;\n", first);
    for (int braces = count + 2; braces > 0; braces--)
        close_brace(r);
}

static void close_axes(render *r, int count) {
    for (int k = 0; k < (count > 0 ? count : 1); k++)
        close_brace(r);
}

int kir_render_loop(render *r, int loop) {
    int end = end_of(r->p, loop), outer = r->loop;
    int first = kir_loop_first(&r->p->ins[loop]), count = kir_loop_count(&r->p->ins[loop]);
    unsigned forms = forms_in(r, loop, end);
    uint32_t axes = ((1U << count) - 1) << first;
    bool counts = forms & ~(1U << ONE), outer_blocked = r->blocked;
    r->loop = loop;
    r->blocked = count > 0 && (forms & 1U << LANES);
    if (counts) put_point_count(r, first, count);
    each_own_state(r, loop, end, begin_state);
    if (r->blocked)
        open_blocks(r, first, count, end);
    else
        open_axes(r, first, count);
    r->axes_open |= axes;
    if (counts) put_point(r, first, count);
    kir_render_range(r, loop + 1, end);
    r->axes_open &= ~axes;
    if (r->blocked)
        close_blocks(r, first, count);
    else
        close_axes(r, count);
    each_own_state(r, loop, end, end_state);
    r->loop = outer;
    r->blocked = outer_blocked;
    return end;
}
