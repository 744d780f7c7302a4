/* vm_recipe.c — short launches that come again: what follows from the sizes alone is worked out once.
 *
 * A launch of a few thousand points is over in less time than it takes to merge axes, choose a layout and look up a
 * bind. So the first of its kind leaves a recipe behind: where each access begins in its buffer, and either the machine
 * code or the list of calls that did the work. The next launch with equal sizes only adds the addresses of its buffers.
 * A box of a launch, as kernels evaluate them at their fused programs, leaves one too where it is code: it serves all
 * boxes of these extents, wherever they begin.
 * Recipes never change once they are seen by others; there are a few per program, for those sizes that came first. */
#include "kir/vm.h"
#include "kir/x64.h"

#include <string.h>

enum { MOST_PLACES = 48, MOST_SCALARS = 16, MOST_POINTS = 8192 };

typedef struct call {
    kir_fn *fn;
    uint8_t at[5]; /* numbers of places */
    bool single, choice;
} call;

/* Memory of two buffers, relative to where they begin, that must not overlap. */
typedef struct guard {
    int16_t loser, other;
    kir_range of_loser, of_other;
} guard;

struct kir_recipe {
    x64_fn *code; /* NULL: the calls do the work */
    int choices;  /* under which it was made: kir_vm_choices */
    double cost;
    int64_t n, rows, piece;
    int64_t *key; /* the extents of the parallel axes, the launch's sizes */
    int n_key;    /* of the sizes */
    bool of_boxes;
    int64_t *steps;    /* of boxes: by access, bytes from point to point along each parallel axis */
    kir_place *places; /* `at` is relative to the base; with code: by access */
    call *calls;
    guard *guards;
    int n_places, n_calls, n_guards;
    size_t scalars_at; /* in a thread's memory */
    bool uses_memory;
};

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool overlap(const kir_launch *launch, const guard *g) {
    uintptr_t a = (uintptr_t)launch->buffers[g->loser], b = (uintptr_t)launch->buffers[g->other];
    return a + g->of_loser.low < b + g->of_other.high && b + g->of_other.low < a + g->of_loser.high;
}

static uintptr_t address_of(const kir_place *p, const kir_launch *launch, char *memory) {
    uintptr_t base = p->base >= 0                 ? (uintptr_t)launch->buffers[p->base]
                     : p->base == KIR_BASE_THREAD ? (uintptr_t)memory
                                                  : 0;
    return base + (uintptr_t)p->at;
}

static const int64_t *affine_of(const kir_vm *vm, const int64_t *sizes, int access) {
    int axes = vm->n_par + vm->n_loop;
    return sizes + axes + access * (axes + 1);
}

/* How many bytes the box's first point is from that of the launch. */
static inline int64_t distance_to(const int64_t *steps, int axes, const int64_t *lo) {
    int64_t bytes = 0;
    for (int axis = 0; axis < axes; axis++)
        bytes += lo[axis] * steps[axis];
    return bytes;
}

/* lo: of a box, else NULL. */
static void run_code(const kir_recipe *r, const kir_vm *vm, const kir_launch *launch, const int64_t *lo, char *memory) {
    x64_args args; /* of which the program's accesses are set */
    args.n = r->n;
    args.rows = r->rows;
    args.scalars = memory ? (const kir_value *)(const void *)(memory + r->scalars_at) : NULL;
    for (int i = 0; i < r->n_places; i++) {
        const kir_place *p = &r->places[i];
        args.at[i] = (int64_t)address_of(p, launch, memory);
        if (lo) args.at[i] += distance_to(r->steps + i * vm->n_par, vm->n_par, lo);
        args.row_step[i] = p->row;
        args.step[i] = p->column;
    }
    r->code(&args);
}

/* All calls on one piece of a row; `at`: by place. */
static void run_calls(const kir_recipe *r, const uintptr_t *at, int64_t n) {
    for (const call *c = r->calls; c < r->calls + r->n_calls; c++) {
        void *d = (void *)at[c->at[0]];
        const void *a = (const void *)at[c->at[1]], *b = (const void *)at[c->at[2]];
        const void *third = (const void *)at[c->at[3]];
        if (c->choice) {
            kir_choice choice = {third, (const void *)at[c->at[4]]};
            c->fn(d, a, b, &choice, n);
        } else {
            c->fn(d, a, b, third, c->single ? 1 : n);
        }
    }
}

static void run_pieces(const kir_recipe *r, const kir_launch *launch, char *memory) {
    uintptr_t first[MOST_PLACES], at[MOST_PLACES];
    for (int i = 0; i < r->n_places; i++)
        first[i] = address_of(&r->places[i], launch, memory);
    if (r->rows == 1 && r->piece >= r->n) {
        run_calls(r, first, r->n);
        return;
    }
    for (int64_t row = 0; row < r->rows; row++) {
        for (int64_t column = 0; column < r->n; column += r->piece) {
            for (int i = 0; i < r->n_places; i++)
                at[i] = first[i] + (uintptr_t)(row * r->places[i].row + column * r->places[i].column);
            run_calls(r, at, tn_min64(r->piece, r->n - column));
        }
    }
}

/* There are one or two. */
static inline bool same_extents(const int64_t *a, const int64_t *b, int n) {
    int k = 0;
    while (k < n && a[k] == b[k])
        k++;
    return k == n;
}

static const kir_recipe *find_recipe(const kir_vm *vm, const kir_launch *launch, const int64_t *extent, bool of_boxes) {
    int choices = atomic_load_explicit(&kir_vm_choices, memory_order_relaxed);
    for (int i = 0; i < KIR_RECIPES; i++) {
        const kir_recipe *r = atomic_load_explicit(&vm->recipes[i], memory_order_acquire);
        if (!r) return NULL;
        if (r->of_boxes == of_boxes && r->choices == choices && same_extents(r->key, extent, vm->n_par) &&
            memcmp(r->key + vm->n_par, launch->sizes, (size_t)r->n_key * sizeof *r->key) == 0)
            return r;
    }
    return NULL;
}

bool kir_recipe_run(const kir_vm *vm, const kir_launch *launch) {
    const kir_recipe *r = find_recipe(vm, launch, launch->sizes, false);
    if (!r || (!r->code && r->cost > kir_vm_worth() && tn_threads() > 1)) return false;
    char *memory = r->uses_memory ? kir_vm_memory(vm) : NULL;
    if (r->uses_memory && !memory) return false;
    for (int i = 0; i < r->n_guards; i++) {
        if (overlap(launch, &r->guards[i])) return false;
    }
    if (vm->n_scalars > 0) kir_scalars_set(vm, launch->scalars, (kir_value *)(void *)(memory + r->scalars_at));
    if (r->code)
        run_code(r, vm, launch, NULL, memory);
    else
        run_pieces(r, launch, memory);
    return true;
}

bool kir_recipe_run_box(const kir_vm *vm, const kir_launch *launch, const int64_t *lo, const int64_t *hi,
                        char *memory) {
    int64_t extent[KIR_MAX_AXES];
    for (int axis = 0; axis < vm->n_par; axis++)
        extent[axis] = hi[axis] - lo[axis];
    const kir_recipe *r = find_recipe(vm, launch, extent, true);
    if (!r) return false;
    if (vm->n_scalars > 0) kir_scalars_set(vm, launch->scalars, (kir_value *)(void *)(memory + r->scalars_at));
    run_code(r, vm, launch, lo, memory);
    return true;
}

/* ---- noting ------------------------------------------------------------------------------------------------------ */

/* The same place relative to its base. */
static kir_place relative(const kir_place *p, const kir_launch *launch, const char *memory) {
    kir_place out = *p;
    uintptr_t base = p->base >= 0                 ? (uintptr_t)launch->buffers[p->base]
                     : p->base == KIR_BASE_THREAD ? (uintptr_t)memory
                                                  : 0;
    out.at = (char *)((uintptr_t)p->at - base);
    return out;
}

static void note_code(kir_recipe *r, const kir_frame *f, const char *memory) {
    x64_args args;
    kir_code_args(f, &args);
    r->code = kir_code_fn(f->code);
    r->n = args.n;
    r->rows = args.rows;
    r->n_places = f->vm->n_access;
    for (int i = 0; i < r->n_places; i++) {
        kir_place p = {(char *)(uintptr_t)args.at[i], args.row_step[i], args.step[i], f->vm->buffer_of[i]};
        r->places[i] = relative(&p, f->launch, memory);
    }
}

/* The number of a place that a call names; places are shared. */
static uint8_t recipe_number_of(kir_recipe *r, const kir_frame *f, const kir_place *p, const char *memory) {
    kir_place place = relative(p, f->launch, memory);
    int i = 0;
    for (; i < r->n_places; i++) {
        const kir_place *old = &r->places[i];
        if (old->at == place.at && old->row == place.row && old->column == place.column && old->base == place.base)
            break;
    }
    r->places[i] = place;
    if (i == r->n_places) r->n_places++;
    return (uint8_t)i;
}

static void note_calls(kir_recipe *r, const kir_frame *f, const char *memory) {
    r->n = f->inner_space.total;
    r->rows = f->outer_space.total;
    r->piece = f->inner_step;
    for (int i = 0; i < f->n_calls; i++) {
        const kir_call *from = &f->calls[i];
        call *to = &r->calls[r->n_calls++];
        *to = (call){.fn = from->fn, .single = from->single, .choice = from->choice};
        for (int k = 0; k < 5; k++)
            to->at[k] = recipe_number_of(r, f, from->at[k], memory);
    }
    for (int i = 0; i < f->schedule->n_conflicts; i++) {
        const kir_conflict *c = &f->schedule->conflicts[i];
        guard *g = &r->guards[r->n_guards++];
        g->loser = f->vm->buffer_of[f->schedule->steps[c->loser].access];
        g->other = f->vm->buffer_of[f->schedule->steps[c->other].access];
        uintptr_t a = (uintptr_t)f->launch->buffers[g->loser], b = (uintptr_t)f->launch->buffers[g->other];
        g->of_loser = (kir_range){f->ranges[c->loser].low - a, f->ranges[c->loser].high - a};
        g->of_other = (kir_range){f->ranges[c->other].low - b, f->ranges[c->other].high - b};
    }
}

/* One block with all its parts. */
static kir_recipe *new_recipe(const kir_frame *f) {
    size_t sizes = (size_t)(f->vm->n_par + f->vm->n_loop) * (size_t)(1 + f->vm->n_access) + (size_t)f->vm->n_access;
    size_t key = (sizes + (size_t)f->vm->n_par) * sizeof *f->sizes,
           calls = f->code ? 0 : (size_t)f->n_calls * sizeof(call);
    size_t guards = f->code ? 0 : (size_t)f->schedule->n_conflicts * sizeof(guard);
    size_t steps = (size_t)f->vm->n_access * (size_t)f->vm->n_par * sizeof *f->sizes;
    size_t places = (f->code ? (size_t)f->vm->n_access : 5 * (size_t)f->n_calls) * sizeof(kir_place);
    char *block = tn_mem_alloc(sizeof(kir_recipe) + key + steps + places + calls + guards);
    if (!block) return NULL;
    kir_recipe *r = (kir_recipe *)(void *)block;
    *r = (kir_recipe){.choices = atomic_load(&kir_vm_choices), .cost = f->cost, .n_key = (int)sizes};
    r->uses_memory = f->vm->n_scalars > 0 || (!f->code && f->uses_slots);
    r->key = (int64_t *)(void *)(block + sizeof *r);
    r->steps = (int64_t *)(void *)(block + sizeof *r + key);
    r->places = (kir_place *)(void *)(block + sizeof *r + key + steps);
    r->calls = (call *)(void *)(block + sizeof *r + key + steps + places);
    r->guards = (guard *)(void *)(block + sizeof *r + key + steps + places + calls);
    memcpy(r->key, f->sizes, (size_t)f->vm->n_par * sizeof *f->sizes);
    memcpy(r->key + f->vm->n_par, f->sizes, sizes * sizeof *f->sizes);
    return r;
}

/* The list of calls is worth keeping where there will be no code instead. */
static bool suits(const kir_frame *f) {
    const kir_vm *vm = f->vm;
    if (vm->n_par + vm->n_loop == 0 || vm->n_scalars > MOST_SCALARS) return false;
    if (f->outer_space.n > 1 || f->units == 0 || f->outer_space.total * f->inner_space.total > MOST_POINTS)
        return false;
    if (f->code) return f->units == 1;
    if (f->cost > kir_vm_worth() && tn_threads() > 1) return false; /* threads share it */
    return f->straight && 5 * f->n_calls <= MOST_PLACES * 2 &&
           (!vm->source || !kir_code_is_on() || f->isa < TN_ISA_AVX2);
}

/* Is there room for one more, and did the program run before? */
static bool is_wanted(kir_vm *vm) {
    return kir_recipes_kept(vm) < KIR_RECIPES && atomic_fetch_add_explicit(&vm->repeats, 1, memory_order_relaxed) > 0;
}

static void keep_recipe(kir_vm *vm, kir_recipe *r) {
    kir_recipe *nobody = NULL;
    int free = kir_recipes_kept(vm);
    bool kept = r->n_places <= MOST_PLACES && free < KIR_RECIPES &&
                atomic_compare_exchange_strong(&vm->recipes[free], &nobody, r);
    if (!kept) tn_mem_free(r);
}

void kir_recipe_note(const kir_frame *f) {
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm; /* only its cache changes */
    if (!suits(f) || !is_wanted(vm)) return;
    const char *memory = kir_vm_memory(vm);
    kir_recipe *r = memory ? new_recipe(f) : NULL;
    if (!r) return;
    r->scalars_at = (size_t)((const char *)f->scalars - memory);
    if (f->code)
        note_code(r, f, memory);
    else
        note_calls(r, f, memory);
    keep_recipe(vm, r);
}

void kir_recipe_note_box(const kir_frame *f, const int64_t *lo, const int64_t *hi, const char *memory) {
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm;
    if (!f->code || !suits(f) || !is_wanted(vm)) return;
    kir_recipe *r = new_recipe(f);
    if (!r) return;
    r->of_boxes = true;
    r->scalars_at = (size_t)((const char *)f->scalars - memory);
    for (int axis = 0; axis < vm->n_par; axis++)
        r->key[axis] = hi[axis] - lo[axis];
    note_code(r, f, memory);
    for (int i = 0; i < r->n_places; i++) {
        int64_t *steps = r->steps + i * vm->n_par;
        for (int axis = 0; axis < vm->n_par; axis++)
            steps[axis] = affine_of(vm, f->sizes, i)[1 + axis] * (vm->buffer_of[i] >= 0 ? vm->views[i].size : 1);
        r->places[i].at = (char *)((uintptr_t)r->places[i].at - (uintptr_t)distance_to(steps, vm->n_par, lo));
    }
    keep_recipe(vm, r);
}

int kir_recipes_kept(const kir_vm *vm) {
    int n = 0;
    while (n < KIR_RECIPES && atomic_load_explicit(&vm->recipes[n], memory_order_relaxed))
        n++;
    return n;
}

void kir_recipes_free(kir_vm *vm) {
    for (int i = 0; i < KIR_RECIPES; i++)
        tn_mem_free(atomic_load_explicit(&vm->recipes[i], memory_order_relaxed));
}
