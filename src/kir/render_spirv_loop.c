/* render_spirv_loop.c — loops of a SPIR-V kernel, and what runs through them: reductions and scans.
 *
 * The same order of sums as in render_loop.c and the interpreter. The state of a reduction is a variable or two of the
 * item; float sums and the like keep the 64 lanes of kir.h in an array. A block of the lanes is folded behind its last
 * point, and so is a chain, whether it is whole or the loop ends: the code for that stands once. A loop that feeds
 * lanes runs through its points in blocks of a point a lane, whatever its axes are, so the inner one does the same for
 * each lane, and nothing but the outer one asks whether there is something to fold. */
#include "kir/eval.h"
#include "kir/rules.h"
#include "kir/spirv.h"

typedef enum state_form { ONE, LANES, CHAIN, EXTREME } state_form;

static kir_type fed_type(const spv *e, const kir_ins *in) { return (kir_type)e->p->ins[in->a].type; }

static state_form form_of(const spv *e, const kir_ins *in) {
    if (in->op == KIR_SCAN || in->kind == KIR_SEQ) return ONE;
    if (in->kind == KIR_ARGMAX || in->kind == KIR_ARGMIN) return EXTREME;
    if (!kir_is_float(fed_type(e, in))) return ONE;
    return in->kind == KIR_CHAIN ? CHAIN : LANES;
}

static int end_of(const kir_program *p, int loop) {
    int depth = 0;
    for (int i = loop;; i++) {
        depth += (p->ins[i].op == KIR_LOOP) - (p->ins[i].op == KIR_END);
        if (depth == 0) return i;
    }
}

/* Calls `fn` for the reductions and scans that belong to this loop and not to one inside it; returns their forms. */
static unsigned each_own_state(spv *e, int loop, int end, void (*fn)(spv *e, int i)) {
    unsigned forms = 0;
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        const kir_ins *in = &e->p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth != 0 || (in->op != KIR_REDUCE && in->op != KIR_SCAN)) continue;
        forms |= 1U << form_of(e, in);
        if (fn) fn(e, i);
    }
    return forms;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static uint32_t spirv_loop_identity(spv *e, const kir_ins *in) {
    kir_type t = fed_type(e, in);
    kir_ins constant = kir_const_ins(t, kir_identity((kir_reduce)in->kind, t));
    return kir_spv_literal(e, &constant);
}

static uint32_t load_spirv_loop(spv *e, spv_type type, uint32_t variable) {
    return kir_spv_op(e, OpLoad, type, variable, 0, 0);
}
static void store_spirv_loop(spv *e, uint32_t variable, uint32_t v) { kir_spv_do(e, OpStore, variable, v, 0); }

static void clear_lanes(spv *e, const kir_ins *in, uint32_t lanes) {
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t zero = spirv_loop_identity(e, in);
    spv_count f = kir_spv_for(e, SPV_U32, kir_spv_u32(e, KIR_LANES));
    store_spirv_loop(e, kir_spv_element(e, type, lanes, f.i), zero);
    kir_spv_end_for(e, &f, 1);
}

static void begin_state(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    spv_state *s = &e->states[i];
    state_form form = form_of(e, in);
    spv_type type = kir_spv_type_of(fed_type(e, in));
    uint32_t zero = spirv_loop_identity(e, in);
    s->value = kir_spv_variable(e, type, form == LANES ? KIR_LANES : 1);
    if (form == LANES)
        clear_lanes(e, in, s->value);
    else
        store_spirv_loop(e, s->value, zero);
    if (form == ONE) return;
    spv_type total = form == EXTREME ? e->ix : type;
    s->total = kir_spv_variable(e, total, 1);
    store_spirv_loop(e, s->total, form == EXTREME ? kir_spv_const(e, total, 0) : zero);
}

/* total = v behind what is there; v alone where `first` holds. */
static void add_part(spv *e, const kir_ins *in, uint32_t total, uint32_t first, uint32_t v) {
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t more = kir_spv_combine(e, (kir_reduce)in->kind, (kir_type)in->type, load_spirv_loop(e, type, total), v);
    store_spirv_loop(e, total, kir_spv_op(e, OpSelect, type, first, v, more));
}

/* Whether point `counter` is one of the first `length`. */
static uint32_t is_first(spv *e, uint32_t counter, uint32_t length) {
    return kir_spv_op(e, OpULessThan, SPV_BOOL, counter, kir_spv_const(e, e->ix, length), 0);
}

/* Whether what ends before point `next` is a whole part of this length, or the last one. */
static uint32_t spirv_loop_is_whole(spv *e, uint32_t next, uint32_t length) {
    uint32_t mask = kir_spv_const(e, e->ix, length - 1), zero = kir_spv_const(e, e->ix, 0);
    uint32_t inside = kir_spv_op(e, OpBitwiseAnd, e->ix, next, mask, 0);
    uint32_t full = kir_spv_op(e, OpIEqual, SPV_BOOL, inside, zero, 0);
    uint32_t last = kir_spv_op(e, OpUGreaterThanEqual, SPV_BOOL, next, e->points, 0);
    return kir_spv_op(e, OpLogicalOr, SPV_BOOL, full, last, 0);
}

/* Folds the lanes by halves, adds the block that they hold, and begins the next one. */
static void fold_lanes(spv *e, int i) {
    enum { HALVINGS = 6 };
    const kir_ins *in = &e->p->ins[i];
    uint32_t lanes = e->states[i].value;
    kir_type t = (kir_type)in->type;
    spv_type type = kir_spv_type_of(t);
    spv_count halving = kir_spv_for(e, SPV_U32, kir_spv_u32(e, HALVINGS));
    uint32_t half = kir_spv_op(e, OpShiftRightLogical, SPV_U32, kir_spv_u32(e, KIR_LANES / 2), halving.i, 0);
    spv_count lane = kir_spv_for(e, SPV_U32, half);
    uint32_t low = kir_spv_element(e, type, lanes, lane.i);
    uint32_t high = kir_spv_element(e, type, lanes, kir_spv_op(e, OpIAdd, SPV_U32, lane.i, half, 0));
    uint32_t a = load_spirv_loop(e, type, low), b = load_spirv_loop(e, type, high);
    store_spirv_loop(e, low, kir_spv_combine(e, (kir_reduce)in->kind, t, a, b));
    kir_spv_end_for(e, &lane, 1);
    kir_spv_end_for(e, &halving, 1);
    uint32_t block = load_spirv_loop(e, type, kir_spv_element(e, type, lanes, kir_spv_u32(e, 0)));
    add_part(e, in, e->states[i].total, is_first(e, e->counter, KIR_BLOCK), block);
    clear_lanes(e, in, lanes);
}

static void fold_own_lanes(spv *e, int i) {
    if (form_of(e, &e->p->ins[i]) == LANES) fold_lanes(e, i);
}

static uint32_t next_point(spv *e) { return kir_spv_op(e, OpIAdd, e->ix, e->counter, kir_spv_const(e, e->ix, 1), 0); }

static void feed_lanes(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t at = kir_spv_element(e, type, e->states[i].value, e->lane), was = load_spirv_loop(e, type, at);
    store_spirv_loop(e, at, kir_spv_combine(e, (kir_reduce)in->kind, (kir_type)in->type, was, kir_spv_value(e, in->a)));
}

static void feed_chain(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    const spv_state *s = &e->states[i];
    kir_ins fma = {.op = KIR_FMA, .type = in->type};
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t zero = spirv_loop_identity(e, in), was = load_spirv_loop(e, type, s->value);
    uint32_t v[3] = {kir_spv_value(e, in->a), kir_spv_value(e, in->b), was};
    uint32_t sum = kir_spv_operation(e, &fma, (kir_type)in->type, v);
    store_spirv_loop(e, s->value, sum);
    uint32_t merge = kir_spv_if(e, spirv_loop_is_whole(e, next_point(e), KIR_KSUM));
    add_part(e, in, s->total, is_first(e, e->counter, KIR_KSUM), sum);
    store_spirv_loop(e, s->value, zero);
    kir_spv_end_if(e, merge);
}

/* The first element, one beyond the best, or the first NaN. */
static void feed_extreme(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    const spv_state *s = &e->states[i];
    static const uint16_t beyond[2][3] = {{OpFUnordLessThan, OpSLessThan, OpULessThan},
                                          {OpFUnordGreaterThan, OpSGreaterThan, OpUGreaterThan}};
    kir_type t = fed_type(e, in);
    spv_type type = kir_spv_type_of(t);
    bool most = in->kind == KIR_ARGMAX, is_signed = t == KIR_I32 || t == KIR_I64;
    uint32_t x = kir_spv_value(e, in->a), best = load_spirv_loop(e, type, s->value), better;
    if (t == KIR_BOOL) {
        better = kir_spv_op(e, OpLogicalNotEqual, SPV_BOOL, x, best, 0);
        better = kir_spv_op(e, OpLogicalAnd, SPV_BOOL, better, most ? x : best, 0);
    } else {
        better = kir_spv_op(e, beyond[most][kir_is_float(t) ? 0 : is_signed ? 1 : 2], SPV_BOOL, x, best, 0);
    }
    if (kir_is_float(t)) {
        uint32_t number = kir_spv_op(e, OpFOrdEqual, SPV_BOOL, best, best, 0);
        better = kir_spv_op(e, OpLogicalAnd, SPV_BOOL, better, number, 0);
    }
    better = kir_spv_op(e, OpLogicalOr, SPV_BOOL, better, is_first(e, e->counter, 1), 0);
    store_spirv_loop(e, s->value, kir_spv_op(e, OpSelect, type, better, x, best));
    store_spirv_loop(e, s->total,
                     kir_spv_op(e, OpSelect, e->ix, better, e->counter, load_spirv_loop(e, e->ix, s->total)));
}

static void feed_one(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    kir_type t = (kir_type)in->type;
    uint32_t variable = e->states[i].value, x = kir_spv_value(e, in->a);
    if (in->kind == KIR_CHAIN) x = kir_spv_op(e, OpIMul, kir_spv_type_of(t), x, kir_spv_value(e, in->b), 0);
    uint32_t sum = kir_spv_combine(e, (kir_reduce)in->kind, t, load_spirv_loop(e, kir_spv_type_of(t), variable), x);
    if (!sum && !e->refused) e->refused = i + 1;
    store_spirv_loop(e, variable, sum);
    if (in->op == KIR_SCAN) e->value[i] = sum;
}

void kir_spv_feed(spv *e, int i) {
    static void (*const feeds[])(spv * e, int i) = {
        [ONE] = feed_one, [LANES] = feed_lanes, [CHAIN] = feed_chain, [EXTREME] = feed_extreme};
    feeds[form_of(e, &e->p->ins[i])](e, i);
}

static void end_state(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    if (in->op == KIR_SCAN) return;
    state_form form = form_of(e, in);
    spv_type type = kir_spv_type_of((kir_type)in->type), held = form == EXTREME ? e->ix : type;
    uint32_t v = load_spirv_loop(e, held, form == ONE ? e->states[i].value : e->states[i].total);
    e->value[i] = kir_spv_resize(e, v, held, type, false);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* What a loop needs to be ended again; the outermost axis first. */
typedef struct open_loop {
    int first, count;
    spv_count axes[KIR_MAX_AXES]; /* one an axis; or the blocks and the lanes */
    uint32_t at[KIR_MAX_AXES];    /* with blocks: variables, the coordinates of axes of which there are several */
} open_loop;

static void set_coordinate(spv *e, int axis, uint32_t x) {
    e->x[axis] = x;
    e->x32[axis] = kir_spv_resize(e, x, e->ix, SPV_U32, false);
}

/* The end of an axis that may end at a computed number of points. */
static uint32_t end_of_axis(spv *e, int axis, kir_val points) {
    if (points == KIR_NONE) return e->n[axis];
    spv_type type = kir_spv_type_of((kir_type)e->p->ins[points].type);
    uint32_t n = kir_spv_value(e, points), zero = kir_spv_const(e, type, 0),
             most = kir_spv_resize(e, e->n[axis], e->ix, type, true);
    uint32_t fewer = kir_spv_op(e, OpSLessThan, SPV_BOOL, n, most, 0),
             below = kir_spv_op(e, OpSLessThan, SPV_BOOL, n, zero, 0);
    n = kir_spv_op(e, OpSelect, type, fewer, n, most);
    return kir_spv_resize(e, kir_spv_op(e, OpSelect, type, below, zero, n), type, e->ix, true);
}

/* The number of the point that the coordinates name, and the number of all of them. */
static void count_points(spv *e, int first, int count) {
    e->counter = kir_spv_const(e, e->ix, 0);
    for (int axis = first; axis < first + count; axis++) {
        if (axis > first) e->counter = kir_spv_op(e, OpIMul, e->ix, e->counter, e->n[axis], 0);
        e->counter = axis == first ? e->x[axis] : kir_spv_op(e, OpIAdd, e->ix, e->counter, e->x[axis], 0);
    }
}

static uint32_t all_points(spv *e, int first, int count) {
    uint32_t all = kir_spv_const(e, e->ix, 1);
    for (int axis = first; axis < first + count; axis++)
        all = axis == first ? e->n[axis] : kir_spv_op(e, OpIMul, e->ix, all, e->n[axis], 0);
    return all;
}

/* All axes, one loop each. */
static void open_axes(spv *e, open_loop *open) {
    kir_val points = e->p->ins[e->loop].a;
    for (int k = 0; k < open->count; k++) {
        open->axes[k] = kir_spv_for(e, e->ix, end_of_axis(e, open->first + k, points));
        set_coordinate(e, open->first + k, open->axes[k].i);
    }
    if (e->points) count_points(e, open->first, open->count);
}

static void close_axes(spv *e, const open_loop *open) {
    for (int k = open->count; k-- > 0;)
        kir_spv_end_for(e, &open->axes[k], 1);
}

/* All points in blocks of one a lane. */
static void open_blocks(spv *e, open_loop *open) {
    uint32_t lanes = kir_spv_const(e, e->ix, KIR_LANES), zero = kir_spv_const(e, e->ix, 0);
    for (int k = 0; k < open->count && open->count > 1; k++)
        store_spirv_loop(e, open->at[k] = kir_spv_variable(e, e->ix, 1), zero);
    open->axes[0] = kir_spv_for(e, e->ix, e->points);
    uint32_t rest = kir_spv_op(e, OpISub, e->ix, e->points, open->axes[0].i, 0);
    uint32_t fewer = kir_spv_op(e, OpULessThan, SPV_BOOL, rest, lanes, 0);
    open->axes[1] = kir_spv_for(e, e->ix, kir_spv_op(e, OpSelect, e->ix, fewer, rest, lanes));
    e->lane = kir_spv_resize(e, open->axes[1].i, e->ix, SPV_U32, false);
    e->counter = kir_spv_op(e, OpIAdd, e->ix, open->axes[0].i, open->axes[1].i, 0);
    for (int k = 0; k < open->count; k++)
        set_coordinate(e, open->first + k, open->count == 1 ? e->counter : load_spirv_loop(e, e->ix, open->at[k]));
}

/* The next point's coordinates: the last one goes on, and where it has come to its end, the one before it. */
static void advance(spv *e, const open_loop *open) {
    uint32_t zero = kir_spv_const(e, e->ix, 0), one = kir_spv_const(e, e->ix, 1), step = one;
    for (int k = open->count; k-- > 0;) {
        uint32_t axis = (uint32_t)(open->first + k), x = kir_spv_op(e, OpIAdd, e->ix, e->x[axis], step, 0);
        uint32_t over = kir_spv_op(e, OpIEqual, SPV_BOOL, x, e->n[axis], 0);
        store_spirv_loop(e, open->at[k], kir_spv_op(e, OpSelect, e->ix, over, zero, x));
        step = kir_spv_op(e, OpSelect, e->ix, over, one, zero);
    }
}

static void close_blocks(spv *e, int end, const open_loop *open) {
    if (open->count > 1) advance(e, open);
    kir_spv_end_for(e, &open->axes[1], 1);
    e->counter = open->axes[0].i;
    uint32_t next = kir_spv_op(e, OpIAdd, e->ix, e->counter, kir_spv_const(e, e->ix, KIR_LANES), 0);
    uint32_t merge = kir_spv_if(e, spirv_loop_is_whole(e, next, KIR_BLOCK));
    each_own_state(e, e->loop, end, fold_own_lanes);
    kir_spv_end_if(e, merge);
    kir_spv_end_for(e, &open->axes[0], KIR_LANES);
}

int kir_spv_loop(spv *e, int loop) {
    int end = end_of(e->p, loop), outer = e->loop;
    uint32_t outer_counter = e->counter, outer_points = e->points, outer_lane = e->lane;
    open_loop open = {.first = kir_loop_first(&e->p->ins[loop]), .count = kir_loop_count(&e->p->ins[loop])};
    uint32_t axes = ((1U << open.count) - 1) << open.first;
    unsigned forms = each_own_state(e, loop, end, begin_state);
    bool blocks = forms & 1U << LANES;
    e->loop = loop;
    e->points = forms ? all_points(e, open.first, open.count) : 0;
    if (blocks)
        open_blocks(e, &open);
    else
        open_axes(e, &open);
    e->axes_open |= axes;
    kir_spv_range(e, loop + 1, end);
    e->axes_open &= ~axes;
    if (blocks)
        close_blocks(e, end, &open);
    else
        close_axes(e, &open);
    each_own_state(e, loop, end, end_state);
    e->loop = outer;
    e->counter = outer_counter;
    e->points = outer_points;
    e->lane = outer_lane;
    return end;
}
