/* fused_epilogue.c — recognizes store programs that products can apply in registers: makes a tn_fused_epilogue of one.
 *
 * Any other program runs as a program, so a pattern that is not recognized costs time and changes no bits. */
#include <math.h>

#include "cpu/cpu_kernels.h"
#include "kir/rules.h"

enum { ROW = TN_GEMM_BATCH_AXES, COLUMN = ROW + 1, AXES = COLUMN + 1, IMAGES = ROW - 1 };

typedef struct reader {
    const kir_program *p;
    const int64_t *sizes;
    int block;
    tn_fused_epilogue *out;
    bool channels; /* are rows, and columns of what is read; batch axes are images */
} reader;

static const kir_ins *at(const reader *r, kir_val v) { return &r->p->ins[v]; }

static bool is_op(const reader *r, kir_val v, kir_op op) { return at(r, v)->op == op && at(r, v)->type == KIR_F32; }

static bool is_plus_zero(const reader *r, kir_val v) {
    return is_op(r, v, KIR_CONST) && at(r, v)->imm.f == 0 && !signbit(at(r, v)->imm.f);
}

static bool read_place(const reader *r, const kir_ins *in, kir_val mask, tn_epilogue_access *place) {
    const kir_access *a = &r->p->access[in->imm.i];
    if (mask != KIR_NONE || a->dyn != KIR_NONE || r->p->buffer_dtype[a->buffer] != TN_F32) return false;
    const int64_t *index = kir_sizes_access(r->p, r->sizes, (int)in->imm.i);
    *place = (tn_epilogue_access){a->buffer, index[0], index[1 + ROW], index[1 + COLUMN]};
    if (r->channels) *place = (tn_epilogue_access){a->buffer, index[0], index[1 + COLUMN], index[1 + ROW]};
    return true;
}

static bool read_load(const reader *r, kir_val v, tn_epilogue_access *place) {
    return is_op(r, v, KIR_LOAD) && read_place(r, at(r, v), at(r, v)->a, place);
}

static bool is_sum(const reader *r, kir_val v) {
    tn_epilogue_access block;
    return read_load(r, v, &block) && block.buffer == r->block;
}

/* Columns that follow each other, or a single one. */
static bool is_along(const reader *r, const tn_epilogue_access *place) {
    return place->column == 1 || (r->sizes[COLUMN] == 1 && !r->channels);
}

/* A number a column, or that times a number a row. */
static bool read_added(const reader *r, kir_val v) {
    tn_fused_epilogue *e = r->out;
    if (read_load(r, v, &e->add)) return e->add.row == 0 && is_along(r, &e->add);
    const kir_ins *in = at(r, v);
    e->zero = -0.0f;
    if (is_op(r, v, KIR_FMA)) {
        if (!is_plus_zero(r, in->c)) return false;
        e->zero = 0;
    } else if (!is_op(r, v, KIR_MUL)) {
        return false;
    }
    if (!read_load(r, in->a, &e->times) || !read_load(r, in->b, &e->add)) return false;
    if (e->times.column == 1) {
        tn_epilogue_access swapped = e->times;
        e->times = e->add;
        e->add = swapped;
    }
    return e->times.column == 0 && e->add.row == 0 && e->add.column == 1;
}

/* A number a row, of a product. */
static bool read_each(const reader *r, kir_val v) {
    tn_epilogue_access each;
    if (r->channels || !read_load(r, v, &each)) return false;
    if (each.column != 0 || each.row == 0 || each.buffer == r->block) return false;
    r->out->each = each;
    return true;
}

static bool read_biased(const reader *r, kir_val v) {
    if (is_sum(r, v)) return true;
    if (!is_op(r, v, KIR_ADD)) return false;
    const kir_ins *in = at(r, v);
    const kir_val other = is_sum(r, in->a) ? in->b : in->a;
    if (!is_sum(r, in->a) && !is_sum(r, in->b)) return false;
    return read_each(r, other) || read_added(r, other);
}

/* Whether v loads a whole matrix, or for a convolution images in the same layout as the results. */
static bool is_whole(const reader *r, kir_val v, tn_epilogue_access *also) {
    if (!read_load(r, v, also) || also->buffer == r->block) return false;
    if (!r->channels) return also->column == 1 && also->row != 0;
    const int64_t *stride = kir_sizes_access(r->p, r->sizes, (int)at(r, v)->imm.i) + 1, plane = r->sizes[COLUMN];
    const bool images = r->sizes[IMAGES] == 1 || stride[IMAGES] == r->sizes[ROW] * plane;
    return also->first == 0 && also->row == 1 && also->column == plane && plane > 1 && images;
}

/* A whole matrix; what it is added to may have a bias. */
static bool read_sum(const reader *r, kir_val v) {
    const kir_ins *in = at(r, v);
    for (int side = 0; is_op(r, v, KIR_ADD) && side < 2; side++) {
        tn_epilogue_access also;
        if (!is_whole(r, side ? in->a : in->b, &also) || !read_biased(r, side ? in->b : in->a)) continue;
        if (r->out->times.buffer >= 0) return false;
        r->out->also = also;
        return true;
    }
    return read_biased(r, v);
}

/* max(x, 0), or 0 where the element of another matrix is at most 0, as the gradient of that has it. */
static bool read_gate(const reader *r, kir_val v) {
    const kir_ins *in = at(r, v);
    if (is_op(r, v, KIR_MAX) && is_plus_zero(r, in->b)) {
        r->out->relu = true;
        return read_sum(r, in->a);
    }
    if (!is_op(r, v, KIR_SELECT)) return read_sum(r, v);
    const kir_ins *test = at(r, in->a);
    if (!is_plus_zero(r, in->b) || test->op != KIR_LE || !is_plus_zero(r, test->b)) return false;
    r->out->relu = true;
    return read_load(r, test->a, &r->out->gate) && r->out->gate.column == 1 && r->out->gate.buffer != r->block &&
           read_sum(r, in->c) && r->out->each.buffer < 0 && r->out->also.buffer < 0;
}

/* A single number in memory. */
static bool read_number(const reader *r, kir_val v, tn_epilogue_access *place) {
    if (!is_op(r, v, KIR_LOAD) || !read_load(r, v, place) || place->buffer == r->block) return false;
    const int64_t *index = kir_sizes_access(r->p, r->sizes, (int)at(r, v)->imm.i);
    bool single = true;
    for (int axis = 0; axis < AXES; axis++)
        single = single && index[1 + axis] == 0;
    return single;
}

/* What is clipped to numbers in memory. */
static bool read_clip(const reader *r, kir_val v) {
    const kir_ins *in = at(r, v);
    if (is_op(r, v, KIR_MIN) && read_number(r, in->b, &r->out->ceiling)) {
        v = in->a;
        in = at(r, v);
    } else {
        r->out->ceiling.buffer = -1;
    }
    if (is_op(r, v, KIR_MAX) && read_number(r, in->b, &r->out->floor))
        v = in->a;
    else
        r->out->floor.buffer = -1;
    bool clips = r->out->floor.buffer >= 0 || r->out->ceiling.buffer >= 0;
    return read_gate(r, v) && !(clips && (r->out->times.buffer >= 0 || r->out->gate.buffer >= 0));
}

static bool is_read(const reader *r) {
    const kir_program *p = r->p;
    const kir_ins *store = NULL;
    if (p->n_par != AXES || p->n_loop || p->n_items) return false;
    for (int axis = 0; axis < ROW; axis++)
        if (r->sizes[axis] != 1 && !r->channels) return false;
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op != KIR_STORE) continue;
        if (store) return false;
        store = &p->ins[i];
    }
    return store && read_place(r, store, store->b, &r->out->to) && (is_along(r, &r->out->to) || r->channels) &&
           read_clip(r, store->a);
}

/* Is what is added the same in all images? */
static bool is_shared(const reader *r) {
    const kir_program *p = r->p;
    for (int i = 0; i < p->n_sized; i++) {
        const int64_t *index = kir_sizes_access(p, r->sizes, i);
        for (int axis = 0; axis < ROW && p->access[i].buffer == r->out->add.buffer; axis++)
            if (index[1 + axis] != 0) return false;
    }
    return true;
}

static const tn_fused_epilogue none = {.add.buffer = -1,
                                       .times.buffer = -1,
                                       .gate.buffer = -1,
                                       .each.buffer = -1,
                                       .also.buffer = -1,
                                       .floor.buffer = -1,
                                       .ceiling.buffer = -1};

bool tn_fused_epilogue_read(const kir_program *p, const int64_t *sizes, int block_buffer, tn_fused_epilogue *out) {
    *out = none;
    return is_read(&(reader){p, sizes, block_buffer, out, false});
}

bool tn_epilogue_read_channels(const kir_program *p, const int64_t *sizes, int block_buffer, tn_fused_epilogue *out) {
    const reader r = {p, sizes, block_buffer, out, true};
    *out = none;
    return is_read(&r) && out->times.buffer < 0 && out->gate.buffer < 0 && is_shared(&r);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

/* How often v is an operand, not counting instruction `but`. */
static int uses(const kir_program *p, kir_val v, kir_val but) {
    int count = 0;
    for (int i = 0; i < p->n_ins; i++)
        for (int k = 0; k < kir_arity(&p->ins[i]) && i != but; k++)
            count += kir_operand(&p->ins[i], k) == v;
    return count;
}

/* Whether v loads the block, a single number, or the bias, of which there may be one. Another image is refused, because
 * the results may overwrite it. */
static bool read_flat_load(const reader *r, kir_val v, kir_val *bias) {
    tn_epilogue_access at;
    if (is_sum(r, v) || read_number(r, v, &at)) return true;
    if (*bias != KIR_NONE || !read_load(r, v, &at) || at.row != 0 || at.column != 1) return false;
    r->out->add = at;
    *bias = v;
    return true;
}

/* Whether the bias has a buffer of its own, is read once, to be added to the sum, and nothing reads the sum without
 * it. */
static bool is_added_first(const reader *r, kir_val bias) {
    const kir_program *p = r->p;
    int others = 0;
    for (int i = 0; i < p->n_access; i++)
        others += p->access[i].buffer == r->out->add.buffer && i != at(r, bias)->imm.i;
    if (others > 0 || uses(p, bias, KIR_NONE) != 1) return false;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        if (!is_op(r, (kir_val)i, KIR_ADD) || (in->a != bias && in->b != bias)) continue;
        for (int k = 0; k < p->n_ins; k++)
            if (is_sum(r, (kir_val)k) && uses(p, (kir_val)k, (kir_val)i) > 0) return false;
        return is_sum(r, in->a == bias ? in->b : in->a);
    }
    return false;
}

bool tn_epilogue_read_flat(const kir_program *p, const int64_t *sizes, int block_buffer, tn_fused_epilogue *out) {
    const reader r = {p, sizes, block_buffer, out, true};
    kir_val bias = KIR_NONE;
    int stores = 0;
    *out = none;
    if (p->n_par != AXES || p->n_loop || p->n_items) return false;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        bool fits = in->op == KIR_CONST || in->op == KIR_SCALAR || (in->op >= KIR_NEG && in->op <= KIR_SELECT);
        if (in->op == KIR_LOAD) fits = read_flat_load(&r, (kir_val)i, &bias);
        if (in->op == KIR_STORE) fits = ++stores == 1 && read_place(&r, in, in->b, &out->to);
        if (!fits) return false;
    }
    return stores == 1 && (bias == KIR_NONE || (is_shared(&r) && is_added_first(&r, bias)));
}
