/* vm_frame.c — a launch made ready: neighbouring axes merged, the layout chosen, tiles sized, kinds looked up.
 *
 * This runs for every launch, so it allocates nothing and does nothing twice: one thread's memory is carved once, what
 * depends only on the pattern of kinds is kept in the kir_vm. */
#include "kir/rules.h"
#include "kir/vm.h"

#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Takes `bytes` from *at on; works on numbers, so that a dry run from 0 gives the size. */
static void *carve(uintptr_t *at, size_t bytes) {
    uintptr_t begin = *at;
    *at = (begin + bytes + 63) & ~(uintptr_t)63;
    return (void *)begin;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t lane_bytes(size_t width) { return larger((size_t)KIR_LANES * KIR_COLUMNS, KIR_TILE) * width; }

size_t kir_frame_carve(kir_frame *f, const kir_vm *vm, void *memory) {
    kir_frame unused;
    if (!f) f = &unused;
    uintptr_t at = (uintptr_t)memory;
    size_t steps = larger((size_t)vm->parts.n_steps, (size_t)vm->whole.n_steps);
    size_t values = (size_t)vm->n_values, accesses = (size_t)vm->n_access;
    f->at = carve(&at, values * sizeof *f->at);
    f->flags = carve(&at, steps);
    f->ranges = carve(&at, steps * sizeof *f->ranges);
    f->strides = carve(&at, accesses * (KIR_MAX_AXES + 1) * sizeof *f->strides);
    f->scalars = carve(&at, (size_t)vm->n_scalars * sizeof *f->scalars);
    f->views = carve(&at, accesses * sizeof *f->views);
    f->places = carve(&at, values * sizeof *f->places);
    f->memory = carve(&at, accesses * sizeof *f->memory);
    f->calls = carve(&at, steps * sizeof *f->calls);
    f->pattern = carve(&at, KIR_PATTERN_HEAD + accesses);
    f->own.bound = carve(&at, steps * sizeof *f->own.bound);
    f->own.kinds = carve(&at, values);
    f->own.pattern = carve(&at, KIR_PATTERN_HEAD + accesses);
    f->slots = carve(&at, larger(vm->parts.slot_bytes, vm->whole.slot_bytes));
    for (int i = 0; i < KIR_STAGES; i++)
        f->stage[i] = carve(&at, KIR_TILE * sizeof(kir_value));
    f->states = carve(&at, (size_t)vm->n_states * sizeof *f->states);
    for (int i = 0; i < vm->n_states; i++) {
        char *lanes = carve(&at, lane_bytes(vm->state_width[i]));
        char *total = carve(&at, KIR_TILE * sizeof(kir_value));
        if (memory) f->states[i] = (kir_state){.lanes = lanes, .total = total};
    }
    return at - (uintptr_t)memory;
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

/* Axes of a launch after merging. `axis`: the original axis whose strides a merged one has. */
typedef struct axes {
    int n;
    int axis[KIR_MAX_AXES];
    int64_t extent[KIR_MAX_AXES], total;
} axes;

static const int64_t *affine_of(const kir_frame *f, int access) {
    size_t width = (size_t)(f->vm->n_par + f->vm->n_loop) + 1;
    return f->sizes + width - 1 + (size_t)access * width;
}

static int64_t stride_of(const kir_frame *f, int access, int axis) { return affine_of(f, access)[1 + axis]; }

/* Is one step of `outer` as long as the whole of `inner`, for everybody? */
static bool mergeable(const kir_frame *f, int outer, int inner, int64_t extent) {
    for (int i = 0; i < f->vm->n_access; i++) {
        if (stride_of(f, i, outer) != extent * stride_of(f, i, inner)) return false;
    }
    return true;
}

static void push_axis(const kir_frame *f, axes *out, int axis, int64_t extent) {
    out->total *= extent;
    if (extent == 1) return;
    if (out->n > 0 && mergeable(f, out->axis[out->n - 1], axis, extent)) {
        out->extent[out->n - 1] *= extent;
    } else {
        out->extent[out->n++] = extent;
    }
    out->axis[out->n - 1] = axis;
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* The parallel axes may come in any order: the order of the store's strides makes the store contiguous if any does. */
static int sorted_axes(const kir_frame *f, int *order) {
    int n = f->vm->n_par, store = f->vm->first_store;
    for (int i = 0; i < n; i++) {
        int k = i;
        int64_t mine = store < 0 ? 0 : magnitude(stride_of(f, store, i));
        for (; store >= 0 && k > 0 && magnitude(stride_of(f, store, order[k - 1])) < mine; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    return n;
}

static void merge_par(const kir_frame *f, const int64_t *lo, const int64_t *hi, axes *out) {
    int order[KIR_MAX_AXES];
    int n = sorted_axes(f, order);
    out->n = 0; /* no initialiser: filling the arrays would take longer than all the rest */
    out->total = 1;
    for (int i = 0; i < n; i++) {
        int axis = order[i];
        push_axis(f, out, axis, lo ? hi[axis] - lo[axis] : f->sizes[axis]);
    }
}

static void merge_loop(const kir_frame *f, axes *out) {
    out->n = 0;
    out->total = 1;
    for (int i = 0; i < f->vm->loop_count; i++) {
        int axis = f->vm->loop_first + i;
        push_axis(f, out, axis, f->sizes[axis]);
    }
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* Is the access at the same place at all points of the loop? */
static bool stays(const kir_frame *f, int access, const axes *loop) {
    for (int k = 0; k < loop->n; k++)
        if (stride_of(f, access, loop->axis[k]) != 0) return false;
    return true;
}

/* Do the loop's loads and stores go along memory rather than across it? Those that stay where they are do not matter,
 * being done once a row. Rows too short for a vector are turned: many of them side by side keep vectors full. */
static kir_layout choose_layout(const kir_frame *f, const axes *par, const axes *loop) {
    enum { SHORT_LOOP = 16 };
    if (!f->vm->has_loop) return KIR_POINTS;
    if (par->n == 0 || par->extent[par->n - 1] < 4 || loop->n == 0) return KIR_ALONG;
    if (loop->total <= SHORT_LOOP && par->total >= KIR_COLUMNS && loop->total > 0) return KIR_ACROSS;
    int along = 0, across = 0;
    for (int i = 0; i < f->vm->parts.n_steps; i++) {
        const kir_step *s = &f->vm->parts.steps[i];
        if (!s->in_loop || (s->op != KIR_LOAD && s->op != KIR_STORE) || stays(f, s->access, loop)) continue;
        along += magnitude(stride_of(f, s->access, loop->axis[loop->n - 1])) == 1;
        across += magnitude(stride_of(f, s->access, par->axis[par->n - 1])) == 1;
    }
    return across > along ? KIR_ACROSS : KIR_ALONG;
}

static void set_space(kir_space *s, const axes *a, int first, int end) {
    s->n = end - first;
    s->total = 1;
    for (int i = first; i < end; i++) {
        s->extent[i - first] = a->extent[i];
        s->total *= a->extent[i];
    }
    if (a->total == 0) s->total = 0;
}

/* The strides of every access along the axes of both spaces, and the offset of the box's first point. */
static void set_strides(kir_frame *f, const axes *outer, int n_outer, const axes *inner, int inner_first, int n_inner,
                        const int64_t *lo) {
    f->stride_width = 1 + n_outer + n_inner;
    int64_t *to = f->strides;
    for (int i = 0; i < f->vm->n_access; i++) {
        const int64_t *affine = affine_of(f, i);
        *to = affine[0];
        if (lo) {
            for (int k = 0; k < f->vm->n_par; k++)
                *to += lo[k] * affine[1 + k];
        }
        to++;
        for (int k = 0; k < n_outer; k++)
            *to++ = affine[1 + outer->axis[k]];
        for (int k = 0; k < n_inner; k++)
            *to++ = affine[1 + inner->axis[inner_first + k]];
    }
}

static int64_t last_stride(const kir_frame *f, int access, bool inner) {
    const int64_t *strides = f->strides + (size_t)access * (size_t)f->stride_width + 1;
    int n = f->outer_space.n;
    if (!inner) return n > 0 ? strides[n - 1] : 0;
    return f->inner_space.n > 0 ? strides[n + f->inner_space.n - 1] : 0;
}

/* Does some access run along the outer axis while the inner one makes it jump? Then tiles are square. */
static bool transposes(const kir_frame *f) {
    for (int i = 0; i < f->vm->n_access; i++) {
        int64_t inner = magnitude(last_stride(f, i, true)), outer = magnitude(last_stride(f, i, false));
        if (f->vm->buffer_of[i] >= 0 && inner > 1 && outer == 1) return true;
    }
    return false;
}

int64_t kir_piece_of(int64_t total, int64_t most) {
    if (total <= most) return tn_max64(total, 1);
    int64_t pieces = tn_ceil_div(total, most);
    return tn_min64(most, (tn_ceil_div(total, pieces) + 15) / 16 * 16);
}

static void plan_points(kir_frame *f) {
    enum { SQUARE_SIDE = 32 };
    f->square = f->outer_space.total >= 8 && f->inner_space.total >= 8 && transposes(f);
    f->inner_step = kir_piece_of(f->inner_space.total, f->square ? SQUARE_SIDE : f->vm->points_tile);
    f->outer_step = tn_max64(tn_min64(f->outer_space.total, f->vm->points_tile / f->inner_step), 1);
    f->inner_pieces = tn_ceil_div(f->inner_space.total, f->inner_step);
    f->units = f->inner_pieces * tn_ceil_div(f->outer_space.total, f->outer_step);
}

static void plan_along(kir_frame *f) {
    int64_t length = f->inner_space.total;
    f->whole = length > 0 && length <= KIR_TILE;
    f->inner_step = f->whole ? length : KIR_TILE;
    f->outer_step = f->whole ? tn_max64(tn_min64(f->outer_space.total, KIR_TILE / length), 1) : 1;
    f->units = tn_ceil_div(f->outer_space.total, f->outer_step);
}

static void plan_across(kir_frame *f) {
    int64_t length = f->outer_space.total, columns = KIR_COLUMNS;
    f->whole = length > 0 && length * KIR_NARROW <= KIR_TILE;
    f->outer_step = f->whole ? length : KIR_TILE / KIR_COLUMNS;
    if (f->whole) columns = KIR_TILE / length / KIR_NARROW * KIR_NARROW;
    const kir_space *s = &f->inner_space;
    int64_t run = s->n > 0 ? s->extent[s->n - 1] : 1;
    bool by_runs = s->n == 1 || run >= KIR_NARROW;
    f->inner_step = by_runs ? kir_piece_of(run, columns) : tn_min64(columns, tn_max64(s->total, 1));
    f->inner_pieces = by_runs ? tn_ceil_div(run, f->inner_step) : 0;
    f->units = by_runs ? f->inner_pieces * (s->total / tn_max64(run, 1)) : tn_ceil_div(s->total, f->inner_step);
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static bool varies(const int64_t *strides, int n) {
    for (int k = 0; k < n; k++) {
        if (strides[k] != 0) return true;
    }
    return false;
}

static void make_pattern(const kir_frame *f, uint8_t *pattern) {
    bool inner = f->inner_step > 1, outer = f->outer_step > 1;
    pattern[0] = (uint8_t)f->layout;
    pattern[1] = f->whole;
    pattern[2] = f->inner_step < KIR_NARROW;
    pattern[4] = (uint8_t)f->isa; /* tests change it */
    pattern[3] = (uint8_t)((inner ? KIR_INNER : 0) | (outer ? KIR_OUTER : 0));
    const int64_t *strides = f->strides + 1;
    for (int i = 0; i < f->vm->n_access; i++, strides += f->stride_width) {
        int kind = inner && varies(strides + f->outer_space.n, f->inner_space.n) ? KIR_INNER : 0;
        if (outer && varies(strides, f->outer_space.n)) kind |= KIR_OUTER;
        pattern[KIR_PATTERN_HEAD + i] = (uint8_t)kind;
    }
}

static kir_bind *new_bind(const kir_frame *f, const uint8_t *pattern, size_t pattern_bytes) {
    size_t bound = (size_t)f->schedule->n_steps * sizeof(kir_bound), kinds = (size_t)f->vm->n_values;
    char *block = tn_mem_alloc(sizeof(kir_bind) + bound + kinds + pattern_bytes);
    if (!block) return NULL;
    kir_bind *b = (kir_bind *)(void *)block;
    b->bound = (kir_bound *)(void *)(block + sizeof *b);
    b->kinds = (uint8_t *)block + sizeof *b + bound;
    b->pattern = b->kinds + kinds;
    memcpy(b->pattern, pattern, pattern_bytes);
    kir_bind_make(f, pattern, b);
    return b;
}

/* The bind for the current pattern: kept in the VM, else made, in the frame's own memory when nothing more can be kept.
 * Threads that make the same one at a time both succeed; one is thrown away. */
static const kir_bind *find_bind(kir_frame *f) {
    size_t bytes = KIR_PATTERN_HEAD + (size_t)f->vm->n_access;
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm; /* only its cache changes */
    for (int i = 0; i < KIR_BINDS; i++) {
        kir_bind *old = atomic_load_explicit(&vm->binds[i], memory_order_acquire);
        if (old) {
            if (memcmp(old->pattern, f->pattern, bytes) == 0) return old;
            continue;
        }
        kir_bind *made = new_bind(f, f->pattern, bytes);
        if (!made) break;
        if (atomic_compare_exchange_strong(&vm->binds[i], &old, made)) return made;
        tn_mem_free(made);
        i--; /* someone else's is there now: look at it */
    }
    memcpy(f->own.pattern, f->pattern, bytes);
    kir_bind_make(f, f->pattern, &f->own);
    return &f->own;
}

/* ---- overlap ----------------------------------------------------------------------------------------------------- */

static void stretch(int64_t *low, int64_t *high, const kir_space *s, const int64_t *strides) {
    for (int k = 0; k < s->n; k++) {
        int64_t reach = (s->extent[k] - 1) * strides[k];
        if (reach < 0)
            *low += reach;
        else
            *high += reach;
    }
}

/* The bytes that a step's access may touch in this launch. */
static kir_range range_of(const kir_frame *f, const kir_step *s) {
    if (s->dyn != KIR_NONE) return (kir_range){0, UINTPTR_MAX};
    const int64_t *strides = f->strides + (size_t)s->access * (size_t)f->stride_width;
    int64_t low = strides[0], high = strides[0];
    stretch(&low, &high, &f->outer_space, strides + 1);
    stretch(&low, &high, &f->inner_space, strides + 1 + f->outer_space.n);
    const kir_view *view = &f->views[s->access];
    uintptr_t base = (uintptr_t)view->origin;
    return (kir_range){base + (uintptr_t)low * view->size, base + ((uintptr_t)high + 1) * view->size};
}

/* Once a step, as conflicts are pairs of steps. */
static void set_ranges(kir_frame *f) {
    for (int i = 0; i < f->schedule->n_steps; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->op == KIR_LOAD || s->op == KIR_STORE) f->ranges[i] = range_of(f, s);
    }
}

static void set_flags(kir_frame *f) {
    memset(f->flags, 0, (size_t)f->schedule->n_steps);
    f->flagged = false;
    if (f->schedule->n_conflicts) set_ranges(f);
    for (int i = 0; i < f->schedule->n_conflicts; i++) {
        const kir_conflict *c = &f->schedule->conflicts[i];
        const kir_range *a = &f->ranges[c->loser], *b = &f->ranges[c->other];
        if (a->low >= b->high || b->low >= a->high) continue;
        f->flags[c->loser] |= f->schedule->steps[c->loser].op == KIR_LOAD ? KIR_FLAG_COPY : KIR_FLAG_LATE;
        f->flagged = true;
    }
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

static void set_values(kir_frame *f) {
    for (int v = 0; v < f->vm->n_values; v++)
        f->at[v] = f->slots + f->schedule->slots[v];
    for (int i = 0; i < f->vm->n_constants; i++)
        f->at[f->vm->constant_of[i]] = (char *)&f->vm->constant_values[i];
    for (int i = 0; i < f->vm->n_scalars; i++)
        f->at[f->vm->constant_of[f->vm->n_constants + i]] = (char *)&f->scalars[i];
}

static void set_views(kir_frame *f) {
    for (int i = 0; i < f->vm->n_access; i++) {
        int buffer = f->vm->buffer_of[i];
        if (buffer >= 0) f->views[i].origin = f->launch->buffers[buffer];
    }
}

void kir_scalars_set(const kir_vm *vm, const kir_scalar *scalars, kir_value *out) {
    for (int i = 0; i < vm->n_scalars; i++) {
        kir_ins in = vm->constants[vm->n_constants + i];
        kir_scalar scalar = scalars[in.imm.i];
        if (kir_is_float((kir_type)in.type))
            in.imm.f = scalar.f;
        else
            in.imm.i = scalar.i;
        out[i] = kir_const_value(&in);
    }
}

static void set_runtime_scalars(kir_frame *f) { kir_scalars_set(f->vm, f->launch->scalars, f->scalars); }

static void set_plan(kir_frame *f, const axes *par, const axes *loop, const int64_t *lo) {
    f->layout = choose_layout(f, par, loop);
    f->whole = false;
    f->inner_pieces = 0;
    if (f->layout == KIR_POINTS) {
        int outer = par->n > 0 ? par->n - 1 : 0;
        set_space(&f->outer_space, par, 0, outer);
        set_space(&f->inner_space, par, outer, par->n);
        set_strides(f, par, outer, par, outer, par->n - outer, lo);
        plan_points(f);
    } else if (f->layout == KIR_ALONG) {
        set_space(&f->outer_space, par, 0, par->n);
        set_space(&f->inner_space, loop, 0, loop->n);
        set_strides(f, par, par->n, loop, 0, loop->n, lo);
        plan_along(f);
    } else {
        set_space(&f->outer_space, loop, 0, loop->n);
        set_space(&f->inner_space, par, 0, par->n);
        set_strides(f, loop, loop->n, par, 0, par->n, lo);
        plan_across(f);
    }
}

void kir_frame_launch(kir_frame *f, const kir_launch *launch, const int64_t *lo, const int64_t *hi) {
    axes par, loop;
    loop.n = 0;
    loop.total = 1;
    f->launch = launch;
    f->sizes = launch->sizes;
    f->units = 0;
    f->code = NULL;
    merge_par(f, lo, hi, &par);
    if (f->vm->has_loop) merge_loop(f, &loop);
    f->cost = (double)par.total * (f->vm->point_cost + (double)loop.total * f->vm->loop_cost);
    if (par.total == 0) return;
    set_plan(f, &par, &loop, lo);
    f->straight = f->columns = false;
    set_views(f);
    if (f->vm->source && kir_code_choose(f)) {
        set_runtime_scalars(f);
        return;
    }
    f->schedule = f->whole ? &f->vm->whole : &f->vm->parts;
    make_pattern(f, f->pattern);
    const kir_bind *bind = find_bind(f);
    if (bind != f->bind || bind == &f->own) { /* else every value is in its slot, or is given its place by each tile */
        f->bind = bind;
        set_values(f);
    }
    set_flags(f);
    set_runtime_scalars(f);
    kir_straighten(f);
    f->columns = kir_columns_choose(f);
}
