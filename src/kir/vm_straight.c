/* vm_straight.c — the common case in its simplest form: points in rows, every buffer read and written element after
 * element within a row.
 *
 * Then the steps are nothing but calls whose addresses follow from row and column, so a launch is turned into a list of
 * calls once and the list is run for each piece of a row. Loads lend their memory, values to be stored are computed
 * where they belong. A program whose values all lie in buffers needs no slots and runs in long stretches. */
#include "kir/rules.h"
#include "kir/vm.h"

enum { LONG_STRETCH = 16384, SHORT_ROW = 16 };

/* Steps that can be such calls, whatever the launch. A store is none: its value must be computed in place, unless it
 * converts. */
bool kir_bind_is_straight(const kir_schedule *s, const kir_bind *bind) {
    for (int i = 0; i < s->n_steps; i++) {
        const kir_step *step = &s->steps[i];
        const kir_bound *b = &bind->bound[i];
        if (b->act > KIR_DO_STORE || b->act == KIR_DO_SPREAD) return false;
        if (b->act == KIR_DO_LOAD && (step->a != KIR_NONE || step->dyn != KIR_NONE)) return false;
        if (b->act != KIR_DO_STORE) continue;
        if (step->b != KIR_NONE || step->dyn != KIR_NONE || !(bind->kinds[step->a] & KIR_INNER)) return false;
        if (!step->converts && !b->in_place) return false;
    }
    return true;
}

/* Nothing flagged, at most two axes, every access along the rows or, for loads, the same for a whole row. */
static bool launch_is_straight(const kir_frame *f) {
    if (!f->bind->straight || f->flagged || f->outer_space.n > 1 || f->inner_space.n != 1) return false;
    if (f->outer_space.total > 1 && f->inner_space.total < SHORT_ROW) return false;
    const int64_t *inner = f->strides + f->stride_width - 1;
    for (int i = 0; i < f->vm->n_access; i++, inner += f->stride_width) {
        if (*inner != 1 && *inner != 0) return false;
    }
    return true;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void place_straight(kir_place *p, int base, char *at, int64_t row, int64_t column) {
    p->base = (int16_t)base;
    p->at = at;
    p->row = row;
    p->column = column;
}

static const kir_place *place_memory(kir_frame *f, int access) {
    const int64_t *s = f->strides + (size_t)access * (size_t)f->stride_width;
    const kir_view *view = &f->views[access];
    int64_t row = f->outer_space.n > 0 ? s[1] * view->size : 0;
    place_straight(&f->memory[access], f->vm->buffer_of[access], view->origin + s[0] * view->size, row,
                   s[f->stride_width - 1] * view->size);
    return &f->memory[access];
}

static void place_in_slot(kir_frame *f, int v) {
    place_straight(&f->places[v], KIR_BASE_THREAD, f->slots + f->schedule->slots[v], 0, 0);
    f->uses_slots = true;
}

static void place_result(kir_frame *f, const kir_bound *b) {
    if (b->direct != KIR_NONE)
        f->places[b->d] = *place_memory(f, f->schedule->steps[b->direct].access);
    else
        place_in_slot(f, b->d);
}

/* One more call; operands that it lacks stand in for each other. */
static kir_call *new_call(kir_frame *f, const kir_bound *b, kir_fn *fn, const kir_place *d, const kir_place *a) {
    kir_call *c = &f->calls[f->n_calls++];
    c->fn = fn;
    c->single = !(b->kind & KIR_INNER);
    c->choice = b->choice;
    c->at[0] = d;
    c->at[1] = c->at[2] = c->at[3] = c->at[4] = a;
    return c;
}

static void add_load(kir_frame *f, const kir_bound *b) {
    const kir_step *s = &f->schedule->steps[b->step];
    const kir_place *memory = place_memory(f, s->access);
    if (!s->converts) {
        f->places[b->d] = *memory;
        return;
    }
    place_result(f, b);
    new_call(f, b, f->simd->load[f->views[s->access].dtype], &f->places[b->d], memory);
}

static void add_store(kir_frame *f, const kir_bound *b) {
    const kir_step *s = &f->schedule->steps[b->step];
    if (!s->converts) return;
    kir_fn *convert = f->simd->store[f->views[s->access].dtype];
    new_call(f, b, convert, place_memory(f, s->access), &f->places[s->a])->single = false;
}

static void add_call(kir_frame *f, const kir_bound *b) {
    place_result(f, b);
    kir_call *c = new_call(f, b, b->fn, &f->places[b->d], &f->places[b->a]);
    c->at[2] = &f->places[b->b];
    c->at[3] = &f->places[b->c];
    if (b->choice) c->at[4] = &f->places[b->e];
}

static void make_list(kir_frame *f) {
    f->n_calls = 0;
    f->uses_slots = false;
    for (int i = 0; i < f->vm->n_constants + f->vm->n_scalars; i++) {
        int v = f->vm->constant_of[i];
        place_straight(&f->places[v], i < f->vm->n_constants ? KIR_BASE_NONE : KIR_BASE_THREAD, f->at[v], 0, 0);
    }
    for (int i = 0; i < f->schedule->n_steps; i++) {
        const kir_bound *b = &f->bind->bound[i];
        if (b->act == KIR_DO_LOAD)
            add_load(f, b);
        else if (b->act == KIR_DO_STORE)
            add_store(f, b);
        else if (b->act == KIR_DO_RENAME)
            f->places[b->d] = f->places[b->a];
        else if (b->act != KIR_DO_NOTHING)
            add_call(f, b);
    }
}

/* A slot holds one row's piece, so what was planned as a tile of rows becomes so many single rows. */
void kir_straighten(kir_frame *f) {
    f->straight = f->layout == KIR_POINTS && launch_is_straight(f);
    if (!f->straight) return;
    make_list(f);
    int64_t columns = f->inner_space.total;
    f->inner_step = kir_piece_of(columns, f->uses_slots ? f->vm->points_tile : LONG_STRETCH);
    f->inner_pieces = tn_ceil_div(columns, f->inner_step);
    f->units = f->inner_pieces * f->outer_space.total;
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

static char *address_at(const kir_place *p, int64_t row, int64_t column) {
    return (char *)((uintptr_t)p->at + (uintptr_t)(row * p->row + column * p->column));
}

void kir_run_straight(const kir_frame *f, int64_t unit) {
    int64_t row = f->inner_pieces == 1 ? unit : unit / f->inner_pieces;
    int64_t column = (unit - row * f->inner_pieces) * f->inner_step;
    int64_t n = tn_min64(f->inner_step, f->inner_space.total - column);
    const kir_call *end = f->calls + f->n_calls;
    for (const kir_call *c = f->calls; c < end; c++) {
        char *d = address_at(c->at[0], row, column);
        const char *a = address_at(c->at[1], row, column), *b = address_at(c->at[2], row, column);
        const char *third = address_at(c->at[3], row, column);
        if (c->choice) {
            kir_choice choice = {third, address_at(c->at[4], row, column)};
            c->fn(d, a, b, &choice, n);
        } else {
            c->fn(d, a, b, third, c->single ? 1 : n);
        }
    }
}
