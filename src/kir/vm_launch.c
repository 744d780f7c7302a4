/* vm_launch.c — a launch of the tile VM: axes, layout and tile sizes; routines of each step; recipes for repeated
 * launches that have machine code. */
#include <string.h>

#include "kir/machine_code.h"
#include "kir/rules.h"
#include "kir/vm.h"

static void bind_make(const kir_frame *f, const uint8_t *pattern, kir_bind *out);

/* ==== frame: axes merged, layout chosen, tiles sized ============================================================== */
/* This runs for every launch, so it allocates nothing and repeats nothing: one thread's memory is divided once, and
 * what depends only on the pattern of kinds is kept in the kir_vm. */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Takes `bytes` from *at on. Works on integers, so that a dry run from 0 gives the size. */
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
    f->tile.at = carve(&at, values * sizeof *f->tile.at);
    f->tile.flags = carve(&at, steps);
    f->tile.ranges = carve(&at, steps * sizeof *f->tile.ranges);
    f->access.strides = carve(&at, accesses * (KIR_MAX_AXES + 1) * sizeof *f->access.strides);
    f->tile.scalars = carve(&at, (size_t)vm->n_scalars * sizeof *f->tile.scalars);
    f->access.views = carve(&at, accesses * sizeof *f->access.views);
    f->tile.pattern = carve(&at, KIR_PATTERN_HEAD + accesses);
    f->own.bound = carve(&at, steps * sizeof *f->own.bound);
    f->own.kinds = carve(&at, values);
    f->own.pattern = carve(&at, KIR_PATTERN_HEAD + accesses);
    f->tile.slots = carve(&at, larger(vm->parts.slot_bytes, vm->whole.slot_bytes));
    for (int i = 0; i < KIR_STAGES; i++)
        f->tile.stage[i] = carve(&at, KIR_TILE * sizeof(kir_value));
    f->tile.states = carve(&at, (size_t)vm->n_states * sizeof *f->tile.states);
    for (int i = 0; i < vm->n_states; i++) {
        char *lanes = carve(&at, lane_bytes(vm->state_width[i]));
        char *total = carve(&at, KIR_TILE * sizeof(kir_value));
        if (memory) f->tile.states[i] = (kir_state){.lanes = lanes, .total = total};
    }
    return at - (uintptr_t)memory;
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

/* Axes of a launch after merging. `axis`: the original axis whose strides a merged one has. */
typedef struct frame_axes {
    int n;
    int axis[KIR_MAX_AXES];
    int64_t extent[KIR_MAX_AXES], total;
} frame_axes;

static const int64_t *affine_of(const kir_frame *f, int access) {
    size_t width = (size_t)(f->vm->n_par + f->vm->n_loop) + 1;
    return f->sizes + width - 1 + (size_t)access * width;
}

static int64_t stride_of(const kir_frame *f, int access, int axis) { return affine_of(f, access)[1 + axis]; }

/* Is one step of `outer` as long as the whole of `inner`, for everybody? */
static bool mergeable(const kir_frame *f, int outer, int inner, int64_t extent) {
    for (int i = 0; i < f->vm->n_access; i++)
        if (stride_of(f, i, outer) != extent * stride_of(f, i, inner)) return false;
    return true;
}

static void push_axis(const kir_frame *f, frame_axes *out, int axis, int64_t extent) {
    out->total *= extent;
    if (extent == 1) return;
    if (out->n > 0 && mergeable(f, out->axis[out->n - 1], axis, extent))
        out->extent[out->n - 1] *= extent;
    else
        out->extent[out->n++] = extent;
    out->axis[out->n - 1] = axis;
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* The parallel axes may come in any order; ordering them by the store's strides makes the store contiguous if that is
 * possible. */
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

static void merge_par(const kir_frame *f, const int64_t *lo, const int64_t *hi, frame_axes *out) {
    int order[KIR_MAX_AXES];
    int n = sorted_axes(f, order);
    out->n = 0; /* no initialiser: filling the arrays would take longer than all the rest */
    out->total = 1;
    for (int i = 0; i < n; i++) {
        int axis = order[i];
        push_axis(f, out, axis, lo ? hi[axis] - lo[axis] : f->sizes[axis]);
    }
}

static void merge_loop(const kir_frame *f, frame_axes *out) {
    out->n = 0;
    out->total = 1;
    for (int i = 0; i < f->vm->loop_count; i++) {
        int axis = f->vm->loop_first + i;
        push_axis(f, out, axis, f->sizes[axis]);
    }
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* Is the access at the same place at all points of the loop? */
static bool stays(const kir_frame *f, int access, const frame_axes *loop) {
    for (int k = 0; k < loop->n; k++)
        if (stride_of(f, access, loop->axis[k]) != 0) return false;
    return true;
}

/* Whether the loop's loads and stores move along memory instead of across it. Accesses that do not move are ignored,
 * because they are done once per row. Rows shorter than a vector are transposed, so that vectors are full. */
static kir_layout choose_layout(const kir_frame *f, const frame_axes *par, const frame_axes *loop) {
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

static void set_space(kir_space *s, const frame_axes *a, int first, int end) {
    s->n = end - first;
    s->total = 1;
    for (int i = first; i < end; i++) {
        s->extent[i - first] = a->extent[i];
        s->total *= a->extent[i];
    }
    if (a->total == 0) s->total = 0;
}

/* The strides of every access along the axes of both spaces, and the offset of the box's first point. */
static void set_strides(kir_frame *f, const frame_axes *outer, int n_outer, const frame_axes *inner, int inner_first,
                        int n_inner, const int64_t *lo) {
    f->access.stride_width = 1 + n_outer + n_inner;
    int64_t *to = f->access.strides;
    for (int i = 0; i < f->vm->n_access; i++) {
        const int64_t *affine = affine_of(f, i);
        *to = affine[0];
        if (lo)
            for (int k = 0; k < f->vm->n_par; k++)
                *to += lo[k] * affine[1 + k];
        to++;
        for (int k = 0; k < n_outer; k++)
            *to++ = affine[1 + outer->axis[k]];
        for (int k = 0; k < n_inner; k++)
            *to++ = affine[1 + inner->axis[inner_first + k]];
    }
}

static int64_t last_stride(const kir_frame *f, int access, bool inner) {
    const int64_t *strides = f->access.strides + (size_t)access * (size_t)f->access.stride_width + 1;
    int n = f->grid.outer.n;
    if (!inner) return n > 0 ? strides[n - 1] : 0;
    return f->grid.inner.n > 0 ? strides[n + f->grid.inner.n - 1] : 0;
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
    f->grid.square = f->grid.outer.total >= 8 && f->grid.inner.total >= 8 && transposes(f);
    f->grid.inner_step = kir_piece_of(f->grid.inner.total, f->grid.square ? SQUARE_SIDE : f->vm->points_tile);
    f->grid.outer_step = tn_max64(tn_min64(f->grid.outer.total, f->vm->points_tile / f->grid.inner_step), 1);
    f->grid.inner_pieces = tn_ceil_div(f->grid.inner.total, f->grid.inner_step);
    f->grid.units = f->grid.inner_pieces * tn_ceil_div(f->grid.outer.total, f->grid.outer_step);
}

static void plan_along(kir_frame *f) {
    int64_t length = f->grid.inner.total;
    f->grid.whole = length > 0 && length <= KIR_TILE;
    f->grid.inner_step = f->grid.whole ? length : KIR_TILE;
    f->grid.outer_step =
        f->grid.whole ? tn_max64(tn_min64(f->grid.outer.total, 2 * f->vm->points_tile / length), 1) : 1;
    f->grid.units = tn_ceil_div(f->grid.outer.total, f->grid.outer_step);
}

static void plan_across(kir_frame *f) {
    int64_t length = f->grid.outer.total, columns = KIR_COLUMNS;
    int64_t narrowest = f->vm->has_loops ? KIR_NARROW : KIR_COLUMNS; /* several loops share what whole rows load */
    f->grid.whole = length > 0 && length * narrowest <= KIR_TILE;
    f->grid.outer_step = f->grid.whole ? length : KIR_TILE / KIR_COLUMNS;
    if (f->grid.whole) columns = KIR_TILE / length / KIR_NARROW * KIR_NARROW;
    const kir_space *s = &f->grid.inner;
    int64_t run = s->n > 0 ? s->extent[s->n - 1] : 1;
    bool by_runs = s->n == 1 || run >= KIR_NARROW;
    f->grid.inner_step = by_runs ? kir_piece_of(run, columns) : tn_min64(columns, tn_max64(s->total, 1));
    f->grid.inner_pieces = by_runs ? tn_ceil_div(run, f->grid.inner_step) : 0;
    f->grid.units =
        by_runs ? f->grid.inner_pieces * (s->total / tn_max64(run, 1)) : tn_ceil_div(s->total, f->grid.inner_step);
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static bool varies(const int64_t *strides, int n) {
    for (int k = 0; k < n; k++)
        if (strides[k] != 0) return true;
    return false;
}

static void make_pattern(const kir_frame *f, uint8_t *pattern) {
    bool inner = f->grid.inner_step > 1, outer = f->grid.outer_step > 1;
    pattern[0] = (uint8_t)f->grid.layout;
    pattern[1] = f->grid.whole;
    pattern[2] = f->grid.inner_step < KIR_NARROW;
    pattern[4] = (uint8_t)f->isa; /* tests change it */
    pattern[3] = (uint8_t)((inner ? KIR_INNER : 0) | (outer ? KIR_OUTER : 0));
    const int64_t *strides = f->access.strides + 1;
    for (int i = 0; i < f->vm->n_access; i++, strides += f->access.stride_width) {
        int kind = inner && varies(strides + f->grid.outer.n, f->grid.inner.n) ? KIR_INNER : 0;
        if (outer && varies(strides, f->grid.outer.n)) kind |= KIR_OUTER;
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
    bind_make(f, pattern, b);
    return b;
}

/* The bind for the current pattern: cached in the VM, else newly made, in the frame's memory if the cache is full. If
 * two threads make the same one at the same time, both succeed and one is dropped. */
static const kir_bind *find_bind(kir_frame *f) {
    size_t bytes = KIR_PATTERN_HEAD + (size_t)f->vm->n_access;
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm; /* only its cache changes */
    for (int i = 0; i < KIR_BINDS; i++) {
        kir_bind *old = atomic_load_explicit(&vm->binds[i], memory_order_acquire);
        if (old) {
            if (memcmp(old->pattern, f->tile.pattern, bytes) == 0) return old;
            continue;
        }
        kir_bind *made = new_bind(f, f->tile.pattern, bytes);
        if (!made) break;
        if (atomic_compare_exchange_strong(&vm->binds[i], &old, made)) return made;
        tn_mem_free(made);
        i--; /* someone else's is there now: look at it */
    }
    memcpy(f->own.pattern, f->tile.pattern, bytes);
    bind_make(f, f->tile.pattern, &f->own);
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
    const int64_t *strides = f->access.strides + (size_t)s->access * (size_t)f->access.stride_width;
    int64_t low = strides[0], high = strides[0];
    stretch(&low, &high, &f->grid.outer, strides + 1);
    stretch(&low, &high, &f->grid.inner, strides + 1 + f->grid.outer.n);
    const kir_view *view = &f->access.views[s->access];
    uintptr_t base = (uintptr_t)view->origin;
    return (kir_range){base + (uintptr_t)low * view->size, base + ((uintptr_t)high + 1) * view->size};
}

/* Once a step, as conflicts are pairs of steps. */
static void set_ranges(kir_frame *f) {
    for (int i = 0; i < f->schedule->n_steps; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->op == KIR_LOAD || s->op == KIR_STORE) f->tile.ranges[i] = range_of(f, s);
    }
}

static void set_flags(kir_frame *f) {
    memset(f->tile.flags, 0, (size_t)f->schedule->n_steps);
    if (f->schedule->n_conflicts) set_ranges(f);
    for (int i = 0; i < f->schedule->n_conflicts; i++) {
        const kir_conflict *c = &f->schedule->conflicts[i];
        const kir_range *a = &f->tile.ranges[c->loser], *b = &f->tile.ranges[c->other];
        if (a->low >= b->high || b->low >= a->high) continue;
        f->tile.flags[c->loser] |= f->schedule->steps[c->loser].op == KIR_LOAD ? KIR_FLAG_COPY : KIR_FLAG_LATE;
    }
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

static void set_values(kir_frame *f) {
    for (int v = 0; v < f->vm->n_values; v++)
        f->tile.at[v] = f->tile.slots + f->schedule->slots[v];
    for (int i = 0; i < f->vm->n_constants; i++)
        f->tile.at[f->vm->constant_of[i]] = (char *)&f->vm->constant_values[i];
    for (int i = 0; i < f->vm->n_scalars; i++)
        f->tile.at[f->vm->constant_of[f->vm->n_constants + i]] = (char *)&f->tile.scalars[i];
}

static void set_views(kir_frame *f) {
    for (int i = 0; i < f->vm->n_access; i++) {
        int buffer = f->vm->buffer_of[i];
        if (buffer >= 0) f->access.views[i].origin = f->launch->buffers[buffer];
    }
}

/* The values of a launch's runtime scalars, as the program's types have them. */
static void kir_scalars_set(const kir_vm *vm, const kir_scalar *scalars, kir_value *out) {
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

static void set_runtime_scalars(kir_frame *f) { kir_scalars_set(f->vm, f->launch->scalars, f->tile.scalars); }

static void set_plan(kir_frame *f, const frame_axes *par, const frame_axes *loop, const int64_t *lo) {
    f->grid.layout = choose_layout(f, par, loop);
    f->grid.whole = false;
    f->grid.inner_pieces = 0;
    if (f->grid.layout == KIR_POINTS) {
        int outer = par->n > 0 ? par->n - 1 : 0;
        set_space(&f->grid.outer, par, 0, outer);
        set_space(&f->grid.inner, par, outer, par->n);
        set_strides(f, par, outer, par, outer, par->n - outer, lo);
        plan_points(f);
    } else if (f->grid.layout == KIR_ALONG) {
        set_space(&f->grid.outer, par, 0, par->n);
        set_space(&f->grid.inner, loop, 0, loop->n);
        set_strides(f, par, par->n, loop, 0, loop->n, lo);
        plan_along(f);
    } else {
        set_space(&f->grid.outer, loop, 0, loop->n);
        set_space(&f->grid.inner, par, 0, par->n);
        set_strides(f, loop, loop->n, par, 0, par->n, lo);
        plan_across(f);
    }
}

void kir_frame_launch(kir_frame *f, const kir_launch *launch, const int64_t *lo, const int64_t *hi) {
    frame_axes par, loop;
    loop.n = 0;
    loop.total = 1;
    f->launch = launch;
    f->sizes = launch->sizes;
    f->grid.units = 0;
    f->machine.code = NULL;
    merge_par(f, lo, hi, &par);
    if (f->vm->has_loop) merge_loop(f, &loop);
    f->grid.cost = (double)par.total * (f->vm->point_cost + (double)loop.total * f->vm->loop_cost);
    if (par.total == 0) return;
    set_plan(f, &par, &loop, lo);
    set_views(f);
    if (f->vm->source && kir_code_choose(f)) {
        set_runtime_scalars(f);
        return;
    }
    f->schedule = f->grid.whole ? &f->vm->whole : &f->vm->parts;
    make_pattern(f, f->tile.pattern);
    const kir_bind *bind = find_bind(f);
    if (bind != f->bind || bind == &f->own) { /* else every value is in its slot, or is given its place by each tile */
        f->bind = bind;
        set_values(f);
    }
    set_flags(f);
    set_runtime_scalars(f);
}

/* ==== binding: the routine of each step =========================================================================== */
/* A routine runs over contiguous elements, so operands that vary in fewer directions than the result need care. A
 * single element is passed as such; otherwise there is one call per row, or, if rows are short, the operand is expanded
 * first. */

typedef struct binder {
    const kir_frame *f;
    const kir_schedule *s;
    const uint8_t *pattern;
    kir_bind *out;
} binder;

static int bind_kind_of(const binder *m, int v) { return v == KIR_NONE ? 0 : m->out->kinds[v]; }

static int directions(const binder *m) { return m->pattern[3]; }

/* The directions of the points that a step runs over. */
static int region_kind(const binder *m, const kir_step *s) {
    if (s->in_loop || !m->f->vm->has_loop) return directions(m);
    return directions(m) & (m->f->grid.layout == KIR_ALONG ? KIR_OUTER : KIR_INNER);
}

static int access_kind(const binder *m, const kir_step *s) {
    return m->pattern[KIR_PATTERN_HEAD + s->access] & region_kind(m, s);
}

static int result_kind(const binder *m, const kir_step *s) {
    int kind = bind_kind_of(m, s->a) | bind_kind_of(m, s->b) | bind_kind_of(m, s->c) | bind_kind_of(m, s->dyn);
    if (s->op == KIR_LOAD || s->op == KIR_INDEX) return kind | access_kind(m, s);
    if (s->op == KIR_STORE || s->op == KIR_SCAN) return region_kind(m, s);
    if (s->op == KIR_REDUCE) return directions(m) & (m->f->grid.layout == KIR_ALONG ? KIR_OUTER : KIR_INNER);
    return kind;
}

/* How an operation with these operands is called. Operands of the same kind are passed unchanged. */
static kir_act plan_call(const binder *m, int kind, const int16_t *values, int n) {
    bool mixed = false;
    for (int k = 0; k < n; k++) {
        int own = bind_kind_of(m, values[k]);
        mixed |= own != 0 && own != kind;
    }
    if (!mixed) return KIR_DO_CALL;
    return m->pattern[2] ? KIR_DO_SPREAD : KIR_DO_ROWS;
}

/* Is the operand one element for the routine? */
static bool is_single(const binder *m, kir_act act, int kind, int v) {
    if (act == KIR_DO_ROWS) return !(bind_kind_of(m, v) & KIR_INNER);
    return act == KIR_DO_CALL && kind != 0 && bind_kind_of(m, v) == 0;
}

static kir_fn *find_binary(const binder *m, const kir_step *s, const bool *single) {
    const kir_simd_table *t = m->f->simd;
    if (single[0] && single[1]) return NULL;
    int shape = single[0] ? KIR_SV : single[1] ? KIR_VS : KIR_VV;
    return t->binary[shape][s->op][s->operand];
}

static kir_fn *find_unary(const binder *m, const kir_step *s) {
    const kir_simd_table *t = m->f->simd;
    if (s->op == KIR_CAST) return t->cast[s->operand][s->type];
    if (s->op == KIR_ROUND) return t->round[s->mode][s->operand];
    return t->unary[s->op][s->operand];
}

/* For commutative operations, the single element is the second operand. */
static void order_operands(kir_op op, kir_bound *b, bool *single) {
    static const bool EVEN[KIR_OP_COUNT] = {[KIR_FMA] = true, [KIR_ADD] = true, [KIR_MUL] = true, [KIR_AND] = true,
                                            [KIR_OR] = true,  [KIR_XOR] = true, [KIR_EQ] = true};
    if (!EVEN[op] || !single[0] || single[1]) return;
    int16_t swap = b->a;
    b->a = b->b;
    b->b = swap;
    single[0] = false;
    single[1] = true;
}

static kir_fn *find_fn(const binder *m, const kir_step *s, kir_bound *b, bool *single) {
    const kir_simd_table *t = m->f->simd;
    order_operands((kir_op)s->op, b, single);
    int bits = single[0] | single[1] << 1 | single[2] << 2;
    switch (s->op) {
    case KIR_FMA: return t->fma[bits][s->operand];
    case KIR_SELECT: return t->select[bits][kir_log2(kir_type_size((kir_type)s->type))];
    case KIR_PHILOX: return bits > 1 ? NULL : t->philox[bits];
    default: return s->b == KIR_NONE ? find_unary(m, s) : find_binary(m, s, single);
    }
}

static void bind_call(const binder *m, const kir_step *s, kir_bound *b) {
    const int16_t values[3] = {s->a, s->b, s->c};
    bool single[3] = {false, false, false};
    int n = s->c != KIR_NONE ? 3 : s->b != KIR_NONE ? 2 : 1;
    kir_act act = plan_call(m, b->kind, values, n);
    for (int k = 0; k < n; k++)
        single[k] = is_single(m, act, b->kind, values[k]);
    b->fn = find_fn(m, s, b, single);
    if (!b->fn) {
        b->a = s->a;
        b->b = s->b == KIR_NONE ? s->d : s->b;
        b->fn = find_fn(m, s, b, (bool[3]){false, false, false});
        act = KIR_DO_SPREAD;
    }
    b->act = (uint8_t)act;
    b->operands = (uint8_t)n;
}

static const kir_act FIXED_ACTS[KIR_OP_COUNT] = {
    [KIR_LOAD] = KIR_DO_LOAD, [KIR_STORE] = KIR_DO_STORE,   [KIR_INDEX] = KIR_DO_INDEX, [KIR_LOOP] = KIR_DO_LOOP,
    [KIR_END] = KIR_DO_END,   [KIR_REDUCE] = KIR_DO_REDUCE, [KIR_SCAN] = KIR_DO_SCAN,   [KIR_BITCAST] = KIR_DO_RENAME,
};

/* Operands that are absent point to the result: an address that is always good. */
static int16_t present(const kir_step *s, int16_t v) { return v == KIR_NONE && s->d != KIR_NONE ? s->d : v; }

static void bind_step(const binder *m, int i) {
    const kir_step *s = &m->s->steps[i];
    kir_bound *b = &m->out->bound[i];
    *b = (kir_bound){.d = s->d, .step = (int16_t)i, .kind = (uint8_t)result_kind(m, s), .direct = s->direct};
    b->a = present(s, s->a);
    b->b = present(s, s->b);
    b->c = present(s, s->c);
    if (s->d != KIR_NONE) m->out->kinds[s->d] = b->kind;
    if (b->kind != region_kind(m, s)) b->direct = KIR_NONE;
    b->act = (uint8_t)FIXED_ACTS[s->op];
    if (b->act == KIR_DO_CALL) bind_call(m, s, b);
}

static void bind_make(const kir_frame *f, const uint8_t *pattern, kir_bind *out) {
    binder m = {.f = f, .s = f->schedule, .pattern = pattern, .out = out};
    for (int v = 0; v < f->vm->n_values; v++)
        out->kinds[v] = 0;
    for (int i = 0; i < m.s->n_steps; i++)
        bind_step(&m, i);
}

/* ==== recipes: short launches that are repeated =================================================================== */
/* A launch of a few thousand points takes less time than merging axes, choosing a layout and looking up its machine
 * code. So an early one leaves a recipe: the code, and where each access begins in its buffer. The next launch with
 * equal sizes only adds the addresses of its buffers, and a box of a launch (evaluated by kernels for fused programs)
 * its position: a recipe serves all boxes of its extents. Recipes are immutable once published; each program has a few,
 * for the sizes that came first. */

enum { MOST_SCALARS = 16, MOST_POINTS = 8192 };

/* An access: `at` is relative to its buffer and to the box's first point; in bytes. */
typedef struct route {
    uint64_t at;
    int64_t row, column;
} route;

struct kir_recipe {
    mc_fn *code;
    int choices; /* under which it was made: kir_vm_choices */
    int64_t n, rows;
    int64_t *extent, *sizes; /* of the parallel axes; of the launch */
    size_t size_bytes;
    int64_t *steps; /* by access: bytes from point to point along each parallel axis */
    route *routes;  /* by access */
};

static uint64_t base_of(const kir_vm *vm, const kir_launch *launch, int access) {
    int buffer = vm->buffer_of[access];
    return buffer >= 0 ? (uint64_t)(uintptr_t)launch->buffers[buffer] : 0;
}

/* Bytes from the launch's first point to the box's first point. */
static int64_t distance_to(const int64_t *steps, int axes, const int64_t *lo) {
    int64_t bytes = 0;
    for (int axis = 0; lo && axis < axes; axis++)
        bytes += lo[axis] * steps[axis];
    return bytes;
}

/* A loop: faster than memcmp for the usual one or two axes. */
static bool same_extents(const int64_t *a, const int64_t *b, int n) {
    int k = 0;
    while (k < n && a[k] == b[k])
        k++;
    return k == n;
}

static const kir_recipe *find_recipe(const kir_vm *vm, const kir_launch *launch, const int64_t *extent) {
    int choices = atomic_load_explicit(&kir_vm_choices, memory_order_relaxed);
    for (int i = 0; i < KIR_RECIPES; i++) {
        const kir_recipe *r = atomic_load_explicit(&vm->recipes[i], memory_order_acquire);
        if (!r) return NULL;
        if (r->choices == choices && same_extents(r->extent, extent, vm->n_par) &&
            memcmp(r->sizes, launch->sizes, r->size_bytes) == 0)
            return r;
    }
    return NULL;
}

bool kir_recipe_run(const kir_vm *vm, const kir_launch *launch, const int64_t *lo, const int64_t *hi) {
    int64_t extent[KIR_MAX_AXES];
    for (int axis = 0; lo && axis < vm->n_par; axis++)
        extent[axis] = hi[axis] - lo[axis];
    const kir_recipe *r = find_recipe(vm, launch, lo ? extent : launch->sizes);
    if (!r) return false;
    kir_value scalars[MOST_SCALARS];
    mc_args args = {.n = r->n, .rows = r->rows, .scalars = scalars};
    kir_scalars_set(vm, launch->scalars, scalars);
    for (int i = 0; i < vm->n_access; i++) {
        const route *to = &r->routes[i];
        int64_t distance = distance_to(r->steps + i * vm->n_par, vm->n_par, lo);
        args.at[i] = (int64_t)(base_of(vm, launch, i) + to->at + (uint64_t)distance);
        args.row_step[i] = to->row;
        args.step[i] = to->column;
    }
    r->code(&args);
    return true;
}

/* One block with all its parts. */
static kir_recipe *new_recipe(const kir_vm *vm) {
    size_t par = (size_t)vm->n_par, accesses = (size_t)vm->n_access;
    size_t sizes = (par + (size_t)vm->n_loop) * (1 + accesses) + accesses;
    char *block =
        tn_mem_alloc(sizeof(kir_recipe) + (par + sizes + accesses * par) * sizeof(int64_t) + accesses * sizeof(route));
    if (!block) return NULL;
    kir_recipe *r = (kir_recipe *)(void *)block;
    *r = (kir_recipe){.choices = atomic_load(&kir_vm_choices), .size_bytes = sizes * sizeof(int64_t)};
    r->extent = (int64_t *)(void *)(block + sizeof *r);
    r->sizes = r->extent + par;
    r->steps = r->sizes + sizes;
    r->routes = (route *)(void *)(r->steps + accesses * par);
    return r;
}

static void fill_recipe(kir_recipe *r, const kir_frame *f, const int64_t *lo, const int64_t *hi) {
    const kir_vm *vm = f->vm;
    mc_args args;
    kir_code_args(f, &args);
    r->code = kir_code_fn(f->machine.code);
    r->n = args.n;
    r->rows = args.rows;
    memcpy(r->sizes, f->sizes, r->size_bytes);
    for (int axis = 0; axis < vm->n_par; axis++)
        r->extent[axis] = lo ? hi[axis] - lo[axis] : f->sizes[axis];
    for (int i = 0; i < vm->n_access; i++) {
        int64_t *steps = r->steps + i * vm->n_par;
        for (int axis = 0; axis < vm->n_par; axis++)
            steps[axis] = stride_of(f, i, axis) * (vm->buffer_of[i] >= 0 ? vm->views[i].size : 1);
        uint64_t at = (uint64_t)args.at[i] - base_of(vm, f->launch, i) - (uint64_t)distance_to(steps, vm->n_par, lo);
        r->routes[i] = (route){at, args.row_step[i], args.step[i]};
    }
}

static bool suits_recipe(const kir_frame *f) {
    const kir_vm *vm = f->vm;
    return f->machine.code && f->grid.units == 1 && vm->n_par + vm->n_loop > 0 && vm->n_scalars <= MOST_SCALARS &&
           f->grid.outer.n <= 1 && f->grid.outer.total * f->grid.inner.total <= MOST_POINTS;
}

/* The second launch that could have a recipe leaves one, if there is room. */
void kir_recipe_note(const kir_frame *f, const int64_t *lo, const int64_t *hi) {
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm; /* only its cache changes */
    int place = kir_recipes_kept(vm);
    if (!suits_recipe(f) || place == KIR_RECIPES) return;
    if (atomic_fetch_add_explicit(&vm->repeats, 1, memory_order_relaxed) == 0) return;
    kir_recipe *r = new_recipe(vm), *nobody = NULL;
    if (!r) return;
    fill_recipe(r, f, lo, hi);
    if (!atomic_compare_exchange_strong(&vm->recipes[place], &nobody, r)) tn_mem_free(r);
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
