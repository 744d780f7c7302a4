/* vm_memory.c — the tile VM between tiles and buffers: loads, stores, indices, reductions and scans.
 *
 * A tile's part of a buffer is a few regular blocks, or arbitrary elements if there is a computed index. A load whose
 * elements are already contiguous in the right type moves nothing: the value uses the buffer's memory. A store of a
 * value that was computed in place moves nothing either. */
#include <string.h>

#include "kir/rules.h"
#include "kir/vm.h"

/* Stages, by what they are used for; a step uses each once. */
enum { STAGE_VALUE, STAGE_MASK, STAGE_RAW, STAGE_INDEX, STAGE_DYN };

static const kir_step *step_of(const kir_frame *f, const kir_bound *b) { return &f->schedule->steps[b->step]; }

static const int64_t *outer_strides(const kir_frame *f, int access) {
    return f->access.strides + (size_t)access * (size_t)f->access.stride_width + 1;
}

static const int64_t *inner_strides(const kir_frame *f, int access) {
    return outer_strides(f, access) + f->grid.outer.n;
}

/* The element that the tile's first point has. */
static int64_t first_element(const kir_frame *f, int access) {
    const int64_t *outer = outer_strides(f, access), *inner = inner_strides(f, access);
    int64_t index = outer[-1];
    for (int k = 0; k < f->grid.outer.n; k++)
        index += f->outer.at[k] * outer[k];
    for (int k = 0; k < f->grid.inner.n; k++)
        index += f->inner.at[k] * inner[k];
    return index;
}

/* The origin of a launch may be outside its buffer, so this computes with integers. */
static char *address_of(const kir_frame *f, int access, int64_t element) {
    const kir_view *view = &f->access.views[access];
    return (char *)((uintptr_t)view->origin + (uintptr_t)element * view->size);
}

/* Does the range go through memory in steps of `step`? */
static bool goes_by(const kir_cursor *c, const int64_t *strides, int64_t step) {
    return c->count == 1 || (c->simple && strides[c->space->n - 1] == step);
}

/* Whether the tile's elements of this access are contiguous in the tile's order. */
static bool side_by_side(const kir_frame *f, int access, int kind) {
    int64_t row = kind & KIR_INNER ? f->inner.count : 1;
    bool inner = !(kind & KIR_INNER) || goes_by(&f->inner, inner_strides(f, access), 1);
    bool outer = !(kind & KIR_OUTER) || goes_by(&f->outer, outer_strides(f, access), row);
    return inner && outer;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

/* Traverses a cursor's range by runs: a run is `count` points whose elements are `step` apart. */
typedef struct walk {
    const kir_space *space;
    const int64_t *strides;
    int64_t at[KIR_MAX_AXES];
    int64_t left, offset, step;
} walk;

static walk walk_begin(const kir_cursor *c, const int64_t *strides, bool active) {
    walk w; /* not all of `at` is needed, so not all of it is cleared */
    w.space = c->space;
    w.strides = strides;
    w.left = active ? c->count : 1;
    w.offset = 0;
    for (int k = 0; k < c->space->n; k++) {
        w.at[k] = c->at[k];
        w.offset += c->at[k] * strides[k];
    }
    w.step = c->space->n > 0 ? strides[c->space->n - 1] : 0;
    return w;
}

static void carry(walk *w) {
    for (int k = w->space->n - 1; k > 0 && w->at[k] == w->space->extent[k]; k--) {
        w->offset += w->strides[k - 1] - w->at[k] * w->strides[k];
        w->at[k] = 0;
        w->at[k - 1]++;
    }
}

/* The next run, false at the end. */
static bool walk_next(walk *w, int64_t *offset, int64_t *count) {
    if (w->left == 0) return false;
    int last = w->space->n - 1;
    *offset = w->offset;
    *count = last < 0 ? w->left : tn_min64(w->left, w->space->extent[last] - w->at[last]);
    w->left -= *count;
    if (last >= 0) {
        w->at[last] += *count;
        w->offset += *count * w->step;
        carry(w);
    }
    return true;
}

/* A piece of the tile whose elements are a regular block of the buffer. */
typedef struct piece {
    int64_t place;   /* of its first element in the tile */
    int64_t element; /* the same in the buffer */
    int64_t outer, inner, outer_step, inner_step;
} piece;

typedef struct mover mover;
typedef void piece_fn(const mover *m, const piece *p);
struct mover {
    const kir_frame *f;
    piece_fn *fn;
    char *tile;
    int64_t row; /* elements of the tile from one outer point to the next */
    int access, kind, width;
    const uint8_t *mask;
    const int64_t *dyn; /* by outer point */
};

/* Calls m->fn for each piece of the tile. */
static void for_pieces(mover *m) {
    const kir_frame *f = m->f;
    bool outer_active = m->kind & KIR_OUTER, inner_active = m->kind & KIR_INNER;
    m->row = inner_active ? f->inner.count : 1;
    int64_t rows_done = 0, base = outer_strides(f, m->access)[-1];
    piece p;
    walk outer = walk_begin(&f->outer, outer_strides(f, m->access), outer_active);
    const walk first = walk_begin(&f->inner, inner_strides(f, m->access), inner_active);
    int64_t outer_at, inner_at;
    p.outer_step = outer.step;
    p.inner_step = first.step;
    while (walk_next(&outer, &outer_at, &p.outer)) {
        int64_t done = 0;
        walk inner = first;
        while (walk_next(&inner, &inner_at, &p.inner)) {
            p.place = rows_done * m->row + done;
            p.element = base + outer_at + inner_at;
            m->fn(m, &p);
            done += p.inner;
        }
        rows_done += p.outer;
    }
}

static char *tile_at(const mover *m, int64_t place) { return m->tile + ((size_t)place << m->width); }

static void load_piece(const mover *m, const piece *p) {
    kir_block block = {.d = tile_at(m, p->place),
                       .s = address_of(m->f, m->access, p->element),
                       .d_outer = m->row,
                       .d_inner = 1,
                       .s_outer = p->outer_step,
                       .s_inner = p->inner_step,
                       .outer = p->outer,
                       .inner = p->inner};
    m->f->simd->copy[m->width](&block);
}

static void store_piece(const mover *m, const piece *p) {
    kir_block block = {.d = address_of(m->f, m->access, p->element),
                       .s = tile_at(m, p->place),
                       .d_outer = p->outer_step,
                       .d_inner = p->inner_step,
                       .s_outer = m->row,
                       .s_inner = 1,
                       .outer = p->outer,
                       .inner = p->inner};
    m->f->simd->copy[m->width](&block);
}

/* Each outer point has its own computed offset. */
static void load_rows(const mover *m, const piece *p) {
    int64_t first = p->place / m->row;
    for (int64_t r = 0; r < p->outer; r++) {
        int64_t element = p->element + r * p->outer_step + m->dyn[first + r];
        kir_block block = {.d = tile_at(m, p->place + r * m->row),
                           .s = address_of(m->f, m->access, element),
                           .d_outer = m->row,
                           .d_inner = 1,
                           .s_outer = 0,
                           .s_inner = p->inner_step,
                           .outer = 1,
                           .inner = p->inner};
        m->f->simd->copy[m->width](&block);
    }
}

/* With a mask, loops along the longer of a piece's two sides. */
static void load_masked(const mover *m, const piece *p) {
    bool tall = p->inner == 1 && m->row == 1;
    int64_t rows = tall ? 1 : p->outer;
    for (int64_t r = 0; r < rows; r++) {
        int64_t place = p->place + r * m->row;
        m->f->simd->load_masked[m->width](
            tile_at(m, place), address_of(m->f, m->access, p->element + r * p->outer_step),
            tall ? p->outer_step : p->inner_step, m->mask + place, tall ? p->outer : p->inner);
    }
}

static void store_masked(const mover *m, const piece *p) {
    bool tall = p->inner == 1 && m->row == 1;
    int64_t rows = tall ? 1 : p->outer;
    for (int64_t r = 0; r < rows; r++) {
        int64_t place = p->place + r * m->row;
        m->f->simd->store_masked[m->width](address_of(m->f, m->access, p->element + r * p->outer_step),
                                           tile_at(m, place), tall ? p->outer_step : p->inner_step, m->mask + place,
                                           tall ? p->outer : p->inner);
    }
}

static void index_piece(const mover *m, const piece *p) {
    bool tall = p->inner == 1 && m->row == 1;
    int64_t rows = tall ? 1 : p->outer;
    for (int64_t r = 0; r < rows; r++)
        m->f->simd->ramp((int64_t *)(void *)tile_at(m, p->place + r * m->row), p->element + r * p->outer_step,
                         tall ? p->outer_step : p->inner_step, tall ? p->outer : p->inner);
}

/* ---- spreading --------------------------------------------------------------------------------------------------- */

static int64_t stride_in(const kir_frame *f, int kind, int direction) {
    if (!(kind & direction)) return 0;
    if (direction == KIR_INNER) return 1;
    return kind & KIR_INNER ? f->inner.count : 1;
}

const char *kir_spread(kir_frame *f, int v, kir_type type, int kind, int stage) {
    int own = f->bind->kinds[v];
    if (own == kind) return f->tile.at[v];
    kir_block block = {.d = f->tile.stage[stage],
                       .s = f->tile.at[v],
                       .d_outer = stride_in(f, kind, KIR_OUTER),
                       .d_inner = stride_in(f, kind, KIR_INNER),
                       .s_outer = stride_in(f, own, KIR_OUTER),
                       .s_inner = stride_in(f, own, KIR_INNER)};
    block.outer = kind & KIR_OUTER ? f->outer.count : 1;
    block.inner = kind & KIR_INNER ? f->inner.count : 1;
    f->simd->copy[kir_log2(kir_type_size(type))](&block);
    return f->tile.stage[stage];
}

/* Result of examining a mask. */
typedef enum let { LET_ALL, LET_NONE, LET_SOME } let;

/* Reads the mask; *bytes is set where it is needed element by element. */
static let read_mask(kir_frame *f, int v, int kind, const uint8_t **bytes) {
    *bytes = NULL;
    if (v == KIR_NONE) return LET_ALL;
    size_t n = (size_t)kir_count(f, f->bind->kinds[v]);
    if (!memchr(f->tile.at[v], 0, n)) return LET_ALL;
    if (!memchr(f->tile.at[v], 1, n)) return LET_NONE;
    *bytes = (const uint8_t *)kir_spread(f, v, KIR_BOOL, kind, STAGE_MASK);
    return LET_SOME;
}

/* The element numbers of the tile, the computed index included. */
static const int64_t *make_index(kir_frame *f, int access, int dyn, int kind, char *out) {
    mover m = {.f = f, .fn = index_piece, .tile = out, .access = access, .kind = kind, .width = 3};
    for_pieces(&m);
    if (dyn != KIR_NONE) {
        const char *more = kir_spread(f, dyn, KIR_I64, kind, STAGE_DYN);
        f->simd->binary[KIR_VV][KIR_ADD][KIR_I64](out, out, more, NULL, kir_count(f, kind));
    }
    return (const int64_t *)(const void *)out;
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

char *kir_direct_address(kir_frame *f, int store) {
    const kir_step *s = &f->schedule->steps[store];
    const kir_bound *b = &f->bind->bound[store];
    if (f->tile.flags[store] & KIR_FLAG_LATE || !side_by_side(f, s->access, b->kind)) return NULL;
    f->tile.flags[store] |= KIR_FLAG_DONE;
    return address_of(f, s->access, first_element(f, s->access));
}

/* The destination of a step's result: the memory to which it will be stored, or its slot. */
static char *destination(kir_frame *f, const kir_bound *b) {
    char *direct = b->direct == KIR_NONE ? NULL : kir_direct_address(f, b->direct);
    f->tile.at[b->d] = direct ? direct : f->tile.slots + f->schedule->slots[b->d];
    return f->tile.at[b->d];
}

void kir_do_index(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    make_index(f, s->access, s->dyn, b->kind, destination(f, b));
}

/* Fetches elements in the buffer's dtype into `raw`. */
static void fetch(kir_frame *f, const kir_step *s, int kind, const uint8_t *mask, char *raw) {
    mover m = {.f = f, .tile = raw, .access = s->access, .kind = kind, .mask = mask};
    m.width = f->access.views[s->access].width;
    m.fn = mask ? load_masked : load_piece;
    bool by_rows = kind & KIR_INNER && !mask && s->dyn != KIR_NONE && !(f->bind->kinds[s->dyn] & KIR_INNER);
    if (by_rows) {
        m.dyn = (const int64_t *)(const void *)kir_spread(f, s->dyn, KIR_I64, kind & KIR_OUTER, STAGE_DYN);
        m.fn = load_rows;
    } else if (s->dyn != KIR_NONE) {
        const int64_t *index = make_index(f, s->access, s->dyn, kind, f->tile.stage[STAGE_INDEX]);
        f->simd->gather[m.width](raw, address_of(f, s->access, 0), index, mask, kir_count(f, kind));
        return;
    }
    for_pieces(&m);
}

static int64_t last_of(const kir_cursor *c, const int64_t *strides) {
    return c->space->n > 0 ? strides[c->space->n - 1] : 0;
}

/* A load whose only user is a store: copies one block of memory to another. false if it is not one block. */
static bool move_block(kir_frame *f, const kir_bound *b) {
    const kir_step *from = step_of(f, b), *to = &f->schedule->steps[from->direct];
    if (b->direct == KIR_NONE || f->tile.flags[b->direct] & KIR_FLAG_LATE || f->tile.flags[b->step] & KIR_FLAG_COPY)
        return false;
    if (!f->outer.simple || !f->inner.simple) return false;
    kir_block block = {.outer = f->outer.count, .inner = f->inner.count};
    block.s = address_of(f, from->access, first_element(f, from->access));
    block.s_outer = last_of(&f->outer, outer_strides(f, from->access));
    block.s_inner = last_of(&f->inner, inner_strides(f, from->access));
    block.d = address_of(f, to->access, first_element(f, to->access));
    block.d_outer = last_of(&f->outer, outer_strides(f, to->access));
    block.d_inner = last_of(&f->inner, inner_strides(f, to->access));
    f->simd->copy[f->access.views[from->access].width](&block);
    f->tile.flags[b->direct] |= KIR_FLAG_DONE;
    return true;
}

/* Gives the reduction that is the load's only user the buffer's rows in place. False: it needs a tile. */
static bool lend_rows(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    kir_state *state = &f->tile.states[s->feeds];
    int64_t step = last_of(&f->outer, outer_strides(f, s->access));
    bool rows = b->kind == KIR_FULL && f->outer.simple && goes_by(&f->inner, inner_strides(f, s->access), 1);
    state->row = 0;
    if (f->grid.layout != KIR_ACROSS || !rows || step == 0 || f->tile.flags[b->step] & KIR_FLAG_COPY) return false;
    if (step != f->inner.count) state->row = step * f->access.views[s->access].size;
    f->tile.at[b->d] = address_of(f, s->access, first_element(f, s->access));
    return true;
}

void kir_do_load(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    const uint8_t *mask;
    if (s->moves && move_block(f, b)) return;
    if (s->feeds != KIR_NONE && lend_rows(f, b)) return;
    let through = read_mask(f, s->a, b->kind, &mask);
    kir_fn *convert = s->converts ? f->simd->load[f->access.views[s->access].dtype] : NULL;
    bool together = through == LET_ALL && s->dyn == KIR_NONE && side_by_side(f, s->access, b->kind);
    char *there = together ? address_of(f, s->access, first_element(f, s->access)) : NULL;
    if (together && !convert && !(f->tile.flags[b->step] & KIR_FLAG_COPY)) {
        f->tile.at[b->d] = there;
        return;
    }
    char *d = destination(f, b);
    if (through == LET_NONE) {
        memset(d, 0, (size_t)kir_count(f, b->kind) * kir_type_size((kir_type)s->type));
        return;
    }
    char *raw = !convert ? d : together ? there : f->tile.stage[STAGE_RAW];
    if (raw != there) fetch(f, s, b->kind, mask, raw);
    if (convert) convert(d, raw, NULL, NULL, kir_count(f, b->kind));
}

static void scatter(kir_frame *f, const kir_step *s, int kind, const uint8_t *mask, const char *raw, int width) {
    const int64_t *index = make_index(f, s->access, s->dyn, kind, f->tile.stage[STAGE_INDEX]);
    f->simd->scatter[width](address_of(f, s->access, 0), raw, index, mask, kir_count(f, kind));
}

void kir_do_store(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    const uint8_t *mask;
    if (f->tile.flags[b->step] & KIR_FLAG_DONE) {
        f->tile.flags[b->step] &= (uint8_t)~KIR_FLAG_DONE;
        return;
    }
    let through = read_mask(f, s->b, b->kind, &mask);
    if (through == LET_NONE) return;
    kir_fn *convert = s->converts ? f->simd->store[f->access.views[s->access].dtype] : NULL;
    char *raw = (char *)(uintptr_t)kir_spread(f, s->a, (kir_type)s->type, b->kind, STAGE_VALUE);
    bool together = through == LET_ALL && s->dyn == KIR_NONE && side_by_side(f, s->access, b->kind);
    if (convert) {
        char *out = together ? address_of(f, s->access, first_element(f, s->access)) : f->tile.stage[STAGE_RAW];
        convert(out, raw, NULL, NULL, kir_count(f, b->kind));
        if (together) return;
        raw = out;
    }
    mover m = {.f = f,
               .fn = mask ? store_masked : store_piece,
               .tile = raw,
               .access = s->access,
               .kind = b->kind,
               .width = f->access.views[s->access].width,
               .mask = mask};
    if (s->dyn != KIR_NONE)
        scatter(f, s, b->kind, mask, raw, m.width);
    else
        for_pieces(&m);
}

/* ==== reductions and scans, in the order that kir.h defines ======================================================= */
/* A reduction has a state: KIR_LANES partial results, and the total of earlier blocks. In loops along memory a tile has
 * parts of one row, so a lane is one element; in loops across memory it has a line of columns, so a lane is a line, and
 * every operation on lanes is an ordinary vector operation on lines. If a tile has whole rows, the state begins and
 * ends with the tile. ARGMAX keeps the best value in `lanes` and its index in `total`; CHAIN the open chain and the sum
 * of the closed ones; SEQ and SCAN the running value, both in `total`. */

static const kir_op COMBINES[] = {
    [KIR_SUM] = KIR_ADD, [KIR_PROD] = KIR_MUL, [KIR_RMAX] = KIR_MAX, [KIR_RMIN] = KIR_MIN};

static bool is_arg(int kind) { return kind == KIR_ARGMAX || kind == KIR_ARGMIN; }

static bool uses_lanes(const kir_step *s) { return s->op == KIR_REDUCE && s->kind <= KIR_RMIN; }

static kir_reduce running_kind(const kir_step *s) { return s->op == KIR_SCAN ? (kir_reduce)s->kind : KIR_SUM; }

static kir_value identity_of(const kir_step *s) { return kir_identity((kir_reduce)s->kind, (kir_type)s->operand); }

/* Elements side by side in a lane, a total or a result: the columns of the tile. */
static int64_t columns(const kir_frame *f) { return f->grid.layout == KIR_ACROSS ? f->inner.count : 1; }

static int64_t loop_count(const kir_frame *f) { return f->grid.layout == KIR_ACROSS ? f->outer.count : f->inner.count; }

static int64_t loop_total(const kir_frame *f) {
    return f->grid.layout == KIR_ACROSS ? f->grid.outer.total : f->grid.inner.total;
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
    return f->grid.layout == KIR_ACROSS ? tn_min64(loop_total(f), KIR_LANES) : KIR_LANES;
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
        int64_t none = f->grid.layout == KIR_ACROSS ? 0 : -1;
        for (int64_t i = 0; i < columns(f); i++)
            ((int64_t *)(void *)state->total)[i] = none;
    } else if (s->kind == KIR_CHAIN && s->op == KIR_REDUCE) {
        fill_reduce(f, state->lanes, s, kir_identity(KIR_SUM, (kir_type)s->operand), columns(f));
    } else {
        fill_reduce(f, state->total, s, identity_of(s), columns(f));
    }
}

/* Folds the lanes to a block's result, in `out`. */
static void fold_reduce(const kir_frame *f, const kir_step *s, const kir_state *state, char *out) {
    if (f->grid.layout != KIR_ACROSS) {
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
    char *block = state->has_total ? f->tile.stage[1] : state->total;
    fold_reduce(f, s, state, block);
    if (state->has_total) combiner(f, s, (kir_reduce)s->kind)(state->total, state->total, block, NULL, columns(f));
    state->has_total = true;
}

static void feed_lanes(const kir_frame *f, const kir_step *s, kir_state *state, const char *x) {
    if (state->count > 0 && state->count % KIR_BLOCK == 0) {
        end_block(f, s, state);
        clear_lanes(f, s, state);
    }
    int64_t lane = state->count % KIR_LANES, n = loop_count(f);
    if (f->grid.layout != KIR_ACROSS) {
        f->simd->lanes[s->kind][s->operand](state->lanes, x, &lane, NULL, n);
        return;
    }
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    kir_fn *combine = combiner(f, s, (kir_reduce)s->kind);
    while (n > 0) {
        int64_t step = state->row != 0 ? 1 : tn_min64(n, KIR_LANES - lane);
        char *at = state->lanes + (size_t)lane * line;
        combine(at, at, x, NULL, step * columns(f));
        x = (const char *)((uintptr_t)x + (uintptr_t)(state->row != 0 ? state->row : step * (int64_t)line));
        n -= step;
        lane = (lane + step) % KIR_LANES;
    }
}

static void feed_arg(const kir_frame *f, const kir_step *s, kir_state *state, const char *x) {
    int which = s->kind == KIR_ARGMIN;
    int64_t at = state->count;
    if (f->grid.layout != KIR_ACROSS) {
        f->simd->arg[which][s->operand](state->total, x, state->lanes, &at, loop_count(f));
        return;
    }
    size_t line = (size_t)columns(f) * reduce_width_of(s);
    for (int64_t r = 0; r < loop_count(f); r++, at++)
        f->simd->arg_columns[which][s->operand](state->total, x + (size_t)r * line, state->lanes, &at, columns(f));
}

static void multiply_add(const kir_frame *f, const kir_step *s, char *sum, const char *a, const char *b) {
    const kir_simd_table *t = f->simd;
    if (kir_is_float((kir_type)s->operand)) {
        t->fma[0][s->operand](sum, a, b, sum, columns(f));
        return;
    }
    t->binary[KIR_VV][KIR_MUL][s->operand](f->tile.stage[2], a, b, NULL, columns(f));
    t->binary[KIR_VV][KIR_ADD][s->operand](sum, sum, f->tile.stage[2], NULL, columns(f));
}

/* Adds the open chain to the sum of those before it; the first one is copied. */
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
    if (f->grid.layout != KIR_ACROSS) {
        /* the routine needs the open chain and the total next to each other */
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

/* The running value of SCAN and SEQ; d: where each one is stored (a temporary if unused). */
static void feed_running(const kir_frame *f, const kir_step *s, kir_state *state, const char *x, char *d) {
    kir_reduce kind = running_kind(s);
    if (f->grid.layout != KIR_ACROSS) {
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
        feed_running(f, s, state, a, f->tile.stage[1]);
    state->count += loop_count(f);
}

/* Stores the result line in `out`. */
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
    kir_state *state = &f->tile.states[s->state];
    size_t row = (size_t)length * reduce_width_of(s), width = is_arg(s->kind) ? sizeof(int64_t) : reduce_width_of(s);
    for (int64_t r = 0; r < rows; r++) {
        begin_state(f, s, state);
        feed(f, s, state, a + (size_t)r * row, b ? b + (size_t)r * row : NULL);
        end_state(f, s, state, out + (size_t)r * width);
    }
}

static void scan_rows(const kir_frame *f, const kir_step *s, const char *x, char *d) {
    kir_state *state = &f->tile.states[s->state];
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
    kir_state *state = &f->tile.states[s->state];
    int kind = full_kind(f);
    const char *x = kir_spread(f, s->a, (kir_type)s->operand, kind, 3);
    const char *y = s->b == KIR_NONE ? NULL : kir_spread(f, s->b, (kir_type)s->operand, kind, 4);
    if (!f->grid.whole) {
        feed(f, s, state, x, y);
        return;
    }
    if (f->grid.layout == KIR_ALONG) {
        reduce_rows(f, s, x, y, f->tile.at[b->d]);
        return;
    }
    begin_state(f, s, state);
    feed(f, s, state, x, y);
    end_state(f, s, state, f->tile.at[b->d]);
}

void kir_do_scan(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    kir_state *state = &f->tile.states[s->state];
    const char *x = kir_spread(f, s->a, (kir_type)s->operand, full_kind(f), 3);
    if (f->grid.whole && f->grid.layout == KIR_ALONG) {
        scan_rows(f, s, x, f->tile.at[b->d]);
        return;
    }
    if (f->grid.whole) begin_state(f, s, state);
    feed_running(f, s, state, x, f->tile.at[b->d]);
    state->count += loop_count(f);
}

void kir_states_begin(kir_frame *f, int loop, int end) {
    for (int i = loop + 1; i < end; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->state != KIR_NONE) begin_state(f, s, &f->tile.states[s->state]);
    }
}

void kir_states_end(kir_frame *f, int loop, int end) {
    for (int i = loop + 1; i < end; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->op == KIR_REDUCE) end_state(f, s, &f->tile.states[s->state], f->tile.at[s->d]);
    }
}

/* ---- blocks computed apart --------------------------------------------------------------------------------------- */

size_t kir_part_bytes(void) { return 2 * sizeof(kir_value) * KIR_COLUMNS; }

/* A part is a line of values, then for ARG* a line of numbers. */
void kir_part_save(kir_frame *f, const kir_step *s, char *part) {
    kir_state *state = &f->tile.states[s->state];
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

/* Parts are added in order; `first` is the index of the part's first element. */
void kir_part_add(kir_frame *f, const kir_step *s, const char *part, int64_t first) {
    kir_state *state = &f->tile.states[s->state];
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
    memcpy(f->tile.at[s->d], f->tile.states[s->state].total, (size_t)columns(f) * width);
}
