/* vm_memory.c — between tiles and buffers: loads, stores and the index values themselves.
 *
 * A tile's part of a buffer is a few regular blocks, or with a computed index any elements at all. A load whose
 * elements already lie side by side in the right type moves nothing: the value borrows the memory. A store of a value
 * that was computed in place moves nothing either. */
#include "kir/rules.h"
#include "kir/vm.h"

#include <string.h>

/* Stages, by what they are used for; a step uses each once. */
enum { STAGE_VALUE, STAGE_MASK, STAGE_RAW, STAGE_INDEX, STAGE_DYN };

static const kir_step *step_of(const kir_frame *f, const kir_bound *b) { return &f->schedule->steps[b->step]; }

static const int64_t *outer_strides(const kir_frame *f, int access) {
    return f->strides + (size_t)access * (size_t)f->stride_width + 1;
}

static const int64_t *inner_strides(const kir_frame *f, int access) {
    return outer_strides(f, access) + f->outer_space.n;
}

/* The element that the tile's first point has. */
static int64_t first_element(const kir_frame *f, int access) {
    const int64_t *outer = outer_strides(f, access), *inner = inner_strides(f, access);
    int64_t index = outer[-1];
    for (int k = 0; k < f->outer_space.n; k++)
        index += f->outer.at[k] * outer[k];
    for (int k = 0; k < f->inner_space.n; k++)
        index += f->inner.at[k] * inner[k];
    return index;
}

/* A launch may give an origin that lies outside its buffer, so this is arithmetic on numbers. */
static char *address_of(const kir_frame *f, int access, int64_t element) {
    const kir_view *view = &f->views[access];
    return (char *)((uintptr_t)view->origin + (uintptr_t)element * view->size);
}

/* Does the range go through memory in steps of `step`? */
static bool goes_by(const kir_cursor *c, const int64_t *strides, int64_t step) {
    return c->count == 1 || (c->simple && strides[c->space->n - 1] == step);
}

/* Do the tile's elements of this access lie side by side, in the tile's order? */
static bool side_by_side(const kir_frame *f, int access, int kind) {
    int64_t row = kind & KIR_INNER ? f->inner.count : 1;
    bool inner = !(kind & KIR_INNER) || goes_by(&f->inner, inner_strides(f, access), 1);
    bool outer = !(kind & KIR_OUTER) || goes_by(&f->outer, outer_strides(f, access), row);
    return inner && outer;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

/* Goes through a cursor's range run by run: a run is `count` points whose elements lie `step` apart. */
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

/* Each outer point has a computed offset of its own. */
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

/* With a mask, the longer of a piece's two sides is gone along. */
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
    for (int64_t r = 0; r < rows; r++) {
        m->f->simd->ramp((int64_t *)(void *)tile_at(m, p->place + r * m->row), p->element + r * p->outer_step,
                         tall ? p->outer_step : p->inner_step, tall ? p->outer : p->inner);
    }
}

/* ---- spreading --------------------------------------------------------------------------------------------------- */

static int64_t stride_in(const kir_frame *f, int kind, int direction) {
    if (!(kind & direction)) return 0;
    if (direction == KIR_INNER) return 1;
    return kind & KIR_INNER ? f->inner.count : 1;
}

const char *kir_spread(kir_frame *f, int v, kir_type type, int kind, int stage) {
    int own = f->bind->kinds[v];
    if (own == kind) return f->at[v];
    kir_block block = {.d = f->stage[stage],
                       .s = f->at[v],
                       .d_outer = stride_in(f, kind, KIR_OUTER),
                       .d_inner = stride_in(f, kind, KIR_INNER),
                       .s_outer = stride_in(f, own, KIR_OUTER),
                       .s_inner = stride_in(f, own, KIR_INNER)};
    block.outer = kind & KIR_OUTER ? f->outer.count : 1;
    block.inner = kind & KIR_INNER ? f->inner.count : 1;
    f->simd->copy[kir_log2(kir_type_size(type))](&block);
    return f->stage[stage];
}

/* What a mask lets through. */
typedef enum let { LET_ALL, LET_NONE, LET_SOME } let;

/* Reads the mask; *bytes is set where it is needed element by element. */
static let read_mask(kir_frame *f, int v, int kind, const uint8_t **bytes) {
    *bytes = NULL;
    if (v == KIR_NONE) return LET_ALL;
    size_t n = (size_t)kir_count(f, f->bind->kinds[v]);
    if (!memchr(f->at[v], 0, n)) return LET_ALL;
    if (!memchr(f->at[v], 1, n)) return LET_NONE;
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
    if (f->flags[store] & KIR_FLAG_LATE || !side_by_side(f, s->access, b->kind)) return NULL;
    f->flags[store] |= KIR_FLAG_DONE;
    return address_of(f, s->access, first_element(f, s->access));
}

/* Where a step's result goes: the memory it will be stored to, or its slot. */
static char *destination(kir_frame *f, const kir_bound *b) {
    char *direct = b->direct == KIR_NONE ? NULL : kir_direct_address(f, b->direct);
    f->at[b->d] = direct ? direct : f->slots + f->schedule->slots[b->d];
    return f->at[b->d];
}

void kir_do_index(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    make_index(f, s->access, s->dyn, b->kind, destination(f, b));
}

/* Fetches elements of the buffer's own width into `raw`. */
static void fetch(kir_frame *f, const kir_step *s, int kind, const uint8_t *mask, char *raw) {
    mover m = {.f = f, .tile = raw, .access = s->access, .kind = kind, .mask = mask};
    m.width = f->views[s->access].width;
    m.fn = mask ? load_masked : load_piece;
    bool by_rows = kind & KIR_INNER && !mask && s->dyn != KIR_NONE && !(f->bind->kinds[s->dyn] & KIR_INNER);
    if (by_rows) {
        m.dyn = (const int64_t *)(const void *)kir_spread(f, s->dyn, KIR_I64, kind & KIR_OUTER, STAGE_DYN);
        m.fn = load_rows;
    } else if (s->dyn != KIR_NONE) {
        const int64_t *index = make_index(f, s->access, s->dyn, kind, f->stage[STAGE_INDEX]);
        f->simd->gather[m.width](raw, address_of(f, s->access, 0), index, mask, kir_count(f, kind));
        return;
    }
    for_pieces(&m);
}

static int64_t last_of(const kir_cursor *c, const int64_t *strides) {
    return c->space->n > 0 ? strides[c->space->n - 1] : 0;
}

/* A load whose only reader is a store: one block of memory goes to another. false when it is not one block. */
static bool move_block(kir_frame *f, const kir_bound *b) {
    const kir_step *from = step_of(f, b), *to = &f->schedule->steps[from->direct];
    if (b->direct == KIR_NONE || f->flags[b->direct] & KIR_FLAG_LATE || f->flags[b->step] & KIR_FLAG_COPY) return false;
    if (!f->outer.simple || !f->inner.simple) return false;
    kir_block block = {.outer = f->outer.count, .inner = f->inner.count};
    block.s = address_of(f, from->access, first_element(f, from->access));
    block.s_outer = last_of(&f->outer, outer_strides(f, from->access));
    block.s_inner = last_of(&f->inner, inner_strides(f, from->access));
    block.d = address_of(f, to->access, first_element(f, to->access));
    block.d_outer = last_of(&f->outer, outer_strides(f, to->access));
    block.d_inner = last_of(&f->inner, inner_strides(f, to->access));
    f->simd->copy[f->views[from->access].width](&block);
    f->flags[b->direct] |= KIR_FLAG_DONE;
    return true;
}

void kir_do_load(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    const uint8_t *mask;
    if (s->moves && move_block(f, b)) return;
    let through = read_mask(f, s->a, b->kind, &mask);
    kir_fn *convert = s->converts ? f->simd->load[f->views[s->access].dtype] : NULL;
    bool together = through == LET_ALL && s->dyn == KIR_NONE && side_by_side(f, s->access, b->kind);
    char *there = together ? address_of(f, s->access, first_element(f, s->access)) : NULL;
    if (together && !convert && !(f->flags[b->step] & KIR_FLAG_COPY)) {
        f->at[b->d] = there;
        return;
    }
    char *d = destination(f, b);
    if (through == LET_NONE) {
        memset(d, 0, (size_t)kir_count(f, b->kind) * kir_type_size((kir_type)s->type));
        return;
    }
    char *raw = !convert ? d : together ? there : f->stage[STAGE_RAW];
    if (raw != there) fetch(f, s, b->kind, mask, raw);
    if (convert) convert(d, raw, NULL, NULL, kir_count(f, b->kind));
}

static void scatter(kir_frame *f, const kir_step *s, int kind, const uint8_t *mask, const char *raw, int width) {
    const int64_t *index = make_index(f, s->access, s->dyn, kind, f->stage[STAGE_INDEX]);
    f->simd->scatter[width](address_of(f, s->access, 0), raw, index, mask, kir_count(f, kind));
}

void kir_do_store(kir_frame *f, const kir_bound *b) {
    const kir_step *s = step_of(f, b);
    const uint8_t *mask;
    if (f->flags[b->step] & KIR_FLAG_DONE) {
        f->flags[b->step] &= (uint8_t)~KIR_FLAG_DONE;
        return;
    }
    let through = read_mask(f, s->b, b->kind, &mask);
    if (through == LET_NONE) return;
    kir_fn *convert = s->converts ? f->simd->store[f->views[s->access].dtype] : NULL;
    char *raw = (char *)(uintptr_t)kir_spread(f, s->a, (kir_type)s->type, b->kind, STAGE_VALUE);
    bool together = through == LET_ALL && s->dyn == KIR_NONE && side_by_side(f, s->access, b->kind);
    if (convert) {
        char *out = together ? address_of(f, s->access, first_element(f, s->access)) : f->stage[STAGE_RAW];
        convert(out, raw, NULL, NULL, kir_count(f, b->kind));
        if (together) return;
        raw = out;
    }
    mover m = {.f = f,
               .fn = mask ? store_masked : store_piece,
               .tile = raw,
               .access = s->access,
               .kind = b->kind,
               .width = f->views[s->access].width,
               .mask = mask};
    if (s->dyn != KIR_NONE)
        scatter(f, s, b->kind, mask, raw, m.width);
    else
        for_pieces(&m);
}
