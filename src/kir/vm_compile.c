/* vm_compile.c — compiles a program for the tile VM: constants and costs; the schedule of its steps. */
#include <stddef.h>
#include <string.h>

#include "kir/rules.h"
#include "kir/vm.h"

static tn_status schedule_make(const kir_program *p, bool whole, kir_schedule *out);
static void schedule_free(kir_schedule *s);

/* Rough nanoseconds an element of one operation takes on one core; only the decision to use threads depends on them. */
static const float COSTS[KIR_OP_COUNT] = {
    [KIR_SQRT] = 0.2f, [KIR_EXP] = 0.2f,   [KIR_LOG] = 0.3f,  [KIR_SIN] = 0.3f,     [KIR_COS] = 0.3f,
    [KIR_TANH] = 0.3f, [KIR_ERF] = 0.4f,   [KIR_DIV] = 0.15f, [KIR_MOD] = 5.0f,     [KIR_PHILOX] = 0.6f,
    [KIR_LOAD] = 0.1f, [KIR_STORE] = 0.1f, [KIR_SCAN] = 1.0f, [KIR_REDUCE] = 0.08f,
};
static const float COST_OF_OTHERS = 0.05f, COST_OF_COMPUTED_INDEX = 1.0f, COST_OF_CHAIN = 0.5f;

static double cost_of(const kir_step *s) {
    double cost = COSTS[s->op] > 0 ? (double)COSTS[s->op] : (double)COST_OF_OTHERS;
    if (s->op == KIR_REDUCE && s->kind >= KIR_ARGMAX) cost = (double)COST_OF_CHAIN;
    if (s->dyn != KIR_NONE) cost += (double)COST_OF_COMPUTED_INDEX;
    return kir_type_size((kir_type)s->type) == 8 ? 2 * cost : cost;
}

static void sum_costs(kir_vm *vm) {
    for (int i = 0; i < vm->parts.n_steps; i++) {
        const kir_step *s = &vm->parts.steps[i];
        if (s->op == KIR_LOOP || s->op == KIR_END) continue;
        if (s->in_loop)
            vm->loop_cost += cost_of(s);
        else
            vm->point_cost += cost_of(s);
    }
}

/* The VM computes a tile of points at once: none waits for another, and none has variables. */
static tn_status check_plain(const kir_program *p) {
    if (p->n_items > 0) return tn_fail(TN_ERR_UNSUPPORTED, "tile VM: a program with workgroups");
    if (p->words) return tn_fail(TN_ERR_UNSUPPORTED, "tile VM: a program of words");
    for (int i = 0; i < p->n_ins; i++)
        if (p->ins[i].op == KIR_VAR)
            return tn_fail(TN_ERR_UNSUPPORTED, "tile VM: a program with variables (instruction %d)", i);
    return TN_OK;
}

/* The VM's loops: all over the same axes, none inside another. */
static tn_status check_loops(const kir_program *p, kir_vm *vm) {
    int depth = 0;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (in->op != KIR_LOOP) continue;
        int first = kir_loop_first(in), count = kir_loop_count(in);
        bool fits = !vm->has_loop || (first == vm->loop_first && count == vm->loop_count);
        if (depth > 1 || !fits)
            return tn_fail(TN_ERR_UNSUPPORTED,
                           "tile VM: loop at instruction %d is nested or ranges over other axes than"
                           " the first; loops must be at depth one, all over the same axes",
                           i);
        vm->has_loops = vm->has_loop;
        vm->has_loop = true;
        vm->loop_first = first;
        vm->loop_count = count;
    }
    return TN_OK;
}

static bool splits_in_blocks(const kir_step *s) {
    return s->state == KIR_NONE || (s->op == KIR_REDUCE && s->kind <= KIR_ARGMIN);
}

static tn_status note_states(kir_vm *vm) {
    vm->in_blocks = vm->has_loop;
    for (int i = 0; i < vm->parts.n_steps; i++) {
        const kir_step *s = &vm->parts.steps[i];
        if (!splits_in_blocks(s)) vm->in_blocks = false;
        if (s->state != KIR_NONE) vm->n_states++;
    }
    vm->state_width = tn_mem_zalloc((size_t)vm->n_states + 1, sizeof *vm->state_width);
    if (!vm->state_width) return TN_ERR_MEMORY;
    for (int i = 0; i < vm->parts.n_steps; i++) {
        const kir_step *s = &vm->parts.steps[i];
        if (s->state != KIR_NONE) vm->state_width[s->state] = (uint8_t)kir_type_size((kir_type)s->operand);
    }
    return TN_OK;
}

/* Constants come first, then runtime scalars, whose values are set by each launch. */
static tn_status note_constants(const kir_program *p, kir_vm *vm) {
    size_t room = (size_t)p->n_ins + 1;
    vm->constants = tn_mem_zalloc(room, sizeof *vm->constants);
    vm->constant_of = tn_mem_zalloc(room, sizeof *vm->constant_of);
    vm->constant_values = tn_mem_zalloc(room, sizeof *vm->constant_values);
    if (!vm->constants || !vm->constant_of || !vm->constant_values) return TN_ERR_MEMORY;
    const kir_op kinds[2] = {KIR_CONST, KIR_SCALAR};
    int n = 0;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < p->n_ins; i++) {
            if (p->ins[i].op != kinds[k]) continue;
            vm->constants[n] = p->ins[i];
            if (k == 0) vm->constant_values[n] = kir_const_value(&p->ins[i]);
            vm->constant_of[n++] = (int16_t)i;
        }
        if (k == 0) vm->n_constants = n;
    }
    vm->n_scalars = n - vm->n_constants;
    return TN_OK;
}

static tn_status note_access(const kir_program *p, kir_vm *vm) {
    vm->n_access = p->n_access;
    vm->buffer_of = tn_mem_zalloc((size_t)p->n_access + 1, sizeof *vm->buffer_of);
    vm->views = tn_mem_zalloc((size_t)p->n_access + 1, sizeof *vm->views);
    if (!vm->buffer_of || !vm->views) return TN_ERR_MEMORY;
    for (int i = 0; i < p->n_access; i++) {
        int buffer = vm->buffer_of[i] = p->access[i].buffer;
        if (buffer < 0) continue;
        size_t size = tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]);
        vm->views[i] = (kir_view){NULL, (uint8_t)size, (uint8_t)kir_log2(size), p->buffer_dtype[buffer]};
    }
    vm->first_store = -1;
    for (int i = p->n_ins - 1; i >= 0; i--)
        if (p->ins[i].op == KIR_STORE) vm->first_store = (int)p->ins[i].imm.i;
    return TN_OK;
}

/* A tile's values and the memory that it reads and writes are to stay in first-level cache from step to step. */
static int64_t points_tile(const kir_vm *vm) {
    enum { CACHE = 20 << 10, MOST = 1024, LEAST = 256, WHOLE = 64 };
    size_t bytes = vm->parts.slot_bytes / KIR_TILE + 1;
    for (int i = 0; i < vm->n_access; i++)
        bytes += vm->views[i].size;
    return tn_max64(LEAST, tn_min64(MOST, (int64_t)(CACHE / bytes) / WHOLE * WHOLE));
}

static tn_status compile_vm(const kir_program *p, kir_vm *vm) {
    TRY(kir_verify(p));
    TRY(check_plain(p));
    TRY(check_loops(p, vm));
    vm->n_par = p->n_par;
    vm->n_loop = p->n_loop;
    vm->n_values = p->n_ins;
    TRY(note_access(p, vm));
    kir_table_note(p, vm);
    TRY(note_constants(p, vm));
    TRY(schedule_make(p, false, &vm->parts));
    if (vm->has_loop) TRY(schedule_make(p, true, &vm->whole));
    TRY(note_states(vm));
    sum_costs(vm);
    vm->points_tile = points_tile(vm);
    vm->thread_bytes = kir_frame_carve(NULL, vm, NULL);
    return kir_code_prepare(vm, p);
}

static void compiled_free(kir_vm *vm) {
    schedule_free(&vm->parts);
    schedule_free(&vm->whole);
    tn_mem_free_each(vm->buffer_of, vm->views, vm->constants, vm->constant_of, vm->constant_values, vm->state_width,
                     vm->source);
}

void kir_vm_free(kir_vm *vm) {
    if (!vm) return;
    kir_code_release(vm);
    kir_recipes_free(vm);
    for (int i = 0; i < KIR_BINDS; i++)
        tn_mem_free(atomic_load_explicit(&vm->binds[i], memory_order_relaxed));
    if (!vm->shared) compiled_free(vm);
    tn_mem_free(vm);
}

tn_status kir_vm_share(const kir_vm *of, kir_vm **out) {
    *out = tn_mem_zalloc(1, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    memcpy(*out, of, offsetof(kir_vm, binds));
    (*out)->shared = true;
    return TN_OK;
}

tn_status kir_vm_compile(const kir_program *p, kir_vm **out) {
    *out = NULL;
    kir_vm *vm = tn_mem_zalloc(1, sizeof *vm);
    if (!vm) return TN_ERR_MEMORY;
    tn_status status = compile_vm(p, vm);
    if (status == TN_OK)
        *out = vm;
    else
        kir_vm_free(vm);
    return status;
}

/* ==== schedule: which steps, in which order, where values live ==================================================== */
/* Passes, each a function: emit (shares what several loops compute, if whole rows are in the tile), count uses, measure
 * (last use of each value), place (slots), direct and conflicts (what may be written or read in place, if memory does
 * not overlap). */

enum { BUCKETS = 256 };

typedef struct maker {
    const kir_program *p;
    bool whole;
    kir_schedule *out;
    int n;           /* instructions */
    int16_t *map;    /* by instruction: the one whose value is used for it */
    int16_t *epoch;  /* by instruction: stores before it */
    int16_t *next;   /* by instruction: chain of its bucket */
    int16_t *uses;   /* by value: readers */
    int16_t *def;    /* by value: position of its step, -1 for constants */
    int16_t *last;   /* by value: position of its last reader */
    int16_t *root;   /* by value: the one whose memory it shares (BITCAST) */
    int16_t *region; /* by position: number of the region */
    int16_t buckets[BUCKETS];
} maker;

/* Elements that need no conversion. */
static bool schedule_is_plain(tn_dtype dtype) { return dtype <= TN_BOOL; }

static kir_step *step_at(const maker *m, int position) { return &m->out->steps[position]; }

static tn_dtype schedule_dtype_of(const maker *m, const kir_step *s) {
    return (tn_dtype)m->p->buffer_dtype[m->p->access[s->access].buffer];
}

static kir_val mapped(const maker *m, kir_val v) { return v == KIR_NONE ? KIR_NONE : m->map[v]; }

/* ---- emit -------------------------------------------------------------------------------------------------------- */

static kir_step step_of(const maker *m, int i, bool in_loop) {
    const kir_ins *in = &m->p->ins[i];
    kir_step s = {.op = in->op, .type = in->type, .kind = in->kind, .operand = in->type, .in_loop = in_loop};
    s.d = kir_yields((kir_op)in->op) ? (int16_t)i : KIR_NONE;
    s.a = mapped(m, in->a);
    s.b = mapped(m, in->b);
    s.c = mapped(m, in->c);
    s.access = s.dyn = s.partner = s.state = s.feeds = s.direct = KIR_NONE;
    if (in->op == KIR_ROUND) s.mode = (uint8_t)in->imm.i;
    if (in->a != KIR_NONE && in->op != KIR_SELECT && in->op != KIR_LOAD) s.operand = m->p->ins[in->a].type;
    if (kir_has_access((kir_op)in->op)) {
        s.access = (int16_t)in->imm.i;
        s.dyn = mapped(m, m->p->access[in->imm.i].dyn);
    }
    if (in->op == KIR_LOAD || in->op == KIR_STORE) s.converts = !schedule_is_plain(schedule_dtype_of(m, &s));
    return s;
}

/* Whether steps are equal except for their result. */
static bool same_step(const maker *m, const kir_step *x, int y) {
    const kir_ins *in = &m->p->ins[y];
    int64_t imm = m->p->ins[x->d].imm.i;
    return x->op == in->op && x->type == in->type && x->kind == in->kind && x->a == mapped(m, in->a) &&
           x->b == mapped(m, in->b) && x->c == mapped(m, in->c) && imm == in->imm.i;
}

static bool is_constant(kir_op op) { return op == KIR_CONST || op == KIR_SCALAR; }

/* Whether the value of instruction `old`, computed earlier, can be used for `s`. Constants always; others while the
 * tile still has them: what a loop reads depends on being in the loop and on the stores since. */
static bool may_share(const maker *m, int old, const kir_step *s, const bool *in_loop, int epoch) {
    if (is_constant((kir_op)s->op)) return true;
    if (!m->whole || s->op == KIR_REDUCE || s->op == KIR_SCAN) return false;
    if (s->op == KIR_INDEX) return in_loop[old] == s->in_loop;
    if (s->op == KIR_LOAD) return in_loop[old] == s->in_loop && m->epoch[old] == epoch;
    return true;
}

static unsigned bucket_of(const kir_step *s, int64_t imm) {
    uint64_t h = (uint64_t)s->op | (uint64_t)s->type << 8 | (uint64_t)s->kind << 16;
    h = (h * 31 + (uint16_t)s->a) * 31 + (uint16_t)s->b;
    h = ((h * 31 + (uint16_t)s->c) ^ (uint64_t)imm) * 0x9E3779B97F4A7C15U;
    return (unsigned)(h >> 56) % BUCKETS;
}

/* Finds an instruction that can be used for i, or adds i as one. */
static int16_t representative(maker *m, int i, const kir_step *s, bool *in_loop, int epoch) {
    unsigned bucket = bucket_of(s, m->p->ins[i].imm.i);
    in_loop[i] = s->in_loop;
    m->epoch[i] = (int16_t)epoch;
    for (int16_t old = m->buckets[bucket]; old >= 0; old = m->next[old])
        if (same_step(m, s, old) && may_share(m, old, s, in_loop, epoch)) return old;
    m->next[i] = m->buckets[bucket];
    m->buckets[bucket] = (int16_t)i;
    return (int16_t)i;
}

static void emit(maker *m, bool *in_loop) {
    int depth = 0, epoch = 0;
    for (int i = 0; i < m->n; i++) {
        const kir_ins *in = &m->p->ins[i];
        kir_step s = step_of(m, i, depth > 0);
        m->map[i] = (int16_t)i;
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        epoch += in->op == KIR_STORE;
        if (kir_yields((kir_op)in->op)) m->map[i] = representative(m, i, &s, in_loop, epoch);
        if (m->map[i] == i && !is_constant((kir_op)in->op)) m->out->steps[m->out->n_steps++] = s;
    }
}

/* Every value that a step reads. */
static int operands_of(const kir_step *s, int16_t values[4]) {
    int n = 0;
    const int16_t all[4] = {s->a, s->b, s->c, s->dyn};
    for (int k = 0; k < 4; k++)
        if (all[k] != KIR_NONE) values[n++] = all[k];
    return n;
}

static void count_uses(maker *m) {
    int16_t values[4];
    int16_t region = 0;
    for (int i = 0; i < m->out->n_steps; i++) {
        const kir_step *s = step_at(m, i);
        for (int k = operands_of(s, values) - 1; k >= 0; k--)
            m->uses[values[k]]++;
        if (s->op == KIR_LOOP || s->op == KIR_END) region++;
        m->region[i] = region;
        if (s->d != KIR_NONE) m->def[s->d] = (int16_t)i;
    }
}

/* ---- measure ----------------------------------------------------------------------------------------------------- */

static void link_loops(maker *m) {
    int open = -1;
    int16_t states = 0;
    for (int i = 0; i < m->out->n_steps; i++) {
        kir_step *s = step_at(m, i);
        if (s->op == KIR_LOOP) open = i;
        if (s->op == KIR_END) {
            s->partner = (int16_t)open;
            step_at(m, open)->partner = (int16_t)i;
        }
        if (s->op == KIR_REDUCE || s->op == KIR_SCAN) s->state = states++;
    }
}

/* A value from outside a loop is needed until the loop ends. */
static void note_use(maker *m, int16_t v, int position, int loop) {
    v = m->root[v];
    if (loop >= 0 && m->def[v] < loop) position = step_at(m, loop)->partner;
    if (position > m->last[v]) m->last[v] = (int16_t)position;
}

static void measure_schedule(maker *m) {
    int16_t values[4];
    int loop = -1;
    for (int v = 0; v < m->n; v++) {
        m->root[v] = (int16_t)v;
        m->def[v] = m->last[v] = -1;
    }
    for (int i = 0; i < m->out->n_steps; i++) {
        const kir_step *s = step_at(m, i);
        if (s->op == KIR_LOOP) loop = i;
        if (s->op == KIR_END) loop = -1;
        if (s->d != KIR_NONE) {
            m->def[s->d] = m->last[s->d] = (int16_t)i;
            if (s->op == KIR_BITCAST) m->root[s->d] = m->root[s->a];
        }
        for (int k = operands_of(s, values) - 1; k >= 0; k--)
            note_use(m, values[k], i, loop);
    }
}

/* ---- place ------------------------------------------------------------------------------------------------------- */

/* Slots that are free, by the logarithm of their element's width. */
typedef struct pool {
    int32_t *free[KIR_WIDTHS];
    int count[KIR_WIDTHS];
    size_t bytes;
} pool;

static int32_t take_slot(pool *slots, int width) {
    if (slots->count[width] > 0) return slots->free[width][--slots->count[width]];
    int32_t at = (int32_t)slots->bytes;
    slots->bytes += (size_t)KIR_TILE << width;
    return at;
}

static int schedule_width_of(const maker *m, int16_t v) { return kir_log2(kir_type_size((kir_type)m->p->ins[v].type)); }

/* Can the step write over its operand? One operand of the same width is read in step with the writing. */
static bool overwrites(const maker *m, const kir_step *s, int position) {
    if (s->b != KIR_NONE || s->a == KIR_NONE || s->op < KIR_NEG || s->op > KIR_CAST || s->op == KIR_BITCAST)
        return false;
    int16_t a = m->root[s->a];
    return m->out->slots[a] >= 0 && m->last[a] == position && m->def[a] >= 0 &&
           schedule_width_of(m, a) == schedule_width_of(m, s->d);
}

static void place_all(maker *m, pool *slots, int16_t *ends) {
    for (int v = 0; v < m->n; v++)
        m->out->slots[v] = -1;
    for (int i = 0; i < m->out->n_steps; i++) {
        const kir_step *s = step_at(m, i);
        bool over = overwrites(m, s, i);
        if (over) {
            m->out->slots[s->d] = m->out->slots[m->root[s->a]];
        } else if (s->d != KIR_NONE && s->op != KIR_BITCAST) {
            m->out->slots[s->d] = take_slot(slots, schedule_width_of(m, s->d));
        }
        /* ends: values by their last position, chained through m->next */
        for (int16_t v = ends[i]; v >= 0; v = m->next[v]) {
            if (over && v == m->root[s->a]) continue;
            int width = schedule_width_of(m, v);
            if (m->out->slots[v] >= 0) slots->free[width][slots->count[width]++] = m->out->slots[v];
        }
    }
}

static tn_status place_schedule(maker *m) {
    pool slots = {.bytes = 0};
    size_t n = (size_t)m->n + 1;
    tn_status status = TN_OK;
    AUTO_FREE int16_t *ends = tn_mem_zalloc((size_t)m->out->n_steps + 1, sizeof *ends);
    for (int w = 0; w < KIR_WIDTHS; w++) {
        slots.free[w] = tn_mem_zalloc(n, sizeof *slots.free[w]);
        if (!slots.free[w]) status = TN_ERR_MEMORY;
    }
    if (!ends || status != TN_OK) {
        status = TN_ERR_MEMORY;
    } else {
        memset(ends, 0xff, (size_t)m->out->n_steps * sizeof *ends);
        for (int16_t v = 0; v < m->n; v++) {
            if (m->last[v] < 0 || m->root[v] != v || m->def[v] < 0) continue;
            m->next[v] = ends[m->last[v]];
            ends[m->last[v]] = v;
        }
        place_all(m, &slots, ends);
        m->out->slot_bytes = tn_whole_lines(slots.bytes);
    }
    for (int w = 0; w < KIR_WIDTHS; w++)
        tn_mem_free(slots.free[w]);
    return status;
}

/* ---- direct and conflicts ---------------------------------------------------------------------------------------- */

/* Steps whose routine can write its result anywhere. */
static bool writes_anywhere(const kir_step *s) {
    return s->op == KIR_LOAD || s->op == KIR_INDEX || (s->op >= KIR_NEG && s->op <= KIR_PHILOX && s->op != KIR_BITCAST);
}

static bool lends(const kir_step *s) { return s->op == KIR_LOAD && s->dyn == KIR_NONE && !s->converts; }

static void find_direct(maker *m) {
    for (int i = 0; i < m->out->n_steps; i++) {
        kir_step *s = step_at(m, i);
        if (s->op != KIR_STORE || s->b != KIR_NONE || s->dyn != KIR_NONE || s->converts) continue;
        if (m->def[s->a] < 0 || m->region[m->def[s->a]] != m->region[i]) continue;
        kir_step *source = step_at(m, m->def[s->a]);
        if (!writes_anywhere(source) || source->direct != KIR_NONE) continue;
        source->direct = (int16_t)i;
        source->moves = lends(source) && source->a == KIR_NONE && m->uses[s->a] == 1;
    }
}

/* Finds loads that only a reduction across memory reads (gradients of biases and norms): it reads the buffer's rows
 * where they are, without a copy in a tile. */
static void find_feeds(maker *m) {
    for (int i = 0; i < m->out->n_steps; i++) {
        const kir_step *s = step_at(m, i);
        if (s->op != KIR_REDUCE || s->kind > KIR_RMIN || m->def[s->a] < 0 || m->uses[s->a] != 1) continue;
        kir_step *source = step_at(m, m->def[s->a]);
        if (lends(source) && source->a == KIR_NONE && m->region[m->def[s->a]] == m->region[i]) source->feeds = s->state;
    }
}

/* Where the store at `position` may really happen: where its value is computed. */
static int earliest(const maker *m, int position) {
    const kir_step *s = step_at(m, position);
    int source = m->def[s->a];
    return source >= 0 && step_at(m, source)->direct == position ? source : position;
}

static tn_status add_conflict(maker *m, size_t *room, int loser, int other) {
    kir_schedule *out = m->out;
    TRY(tn_mem_grow(&out->conflicts, room, (size_t)out->n_conflicts + 1, sizeof *out->conflicts));
    out->conflicts[out->n_conflicts++] = (kir_conflict){(int16_t)loser, (int16_t)other};
    return TN_OK;
}

/* Whether it is wrong to store at `early` instead of `store` because of the accesses of step `other`. */
static bool early_store_hurts(const maker *m, int store, int early, int other) {
    const kir_step *o = step_at(m, other);
    int late = m->last[m->root[step_at(m, store)->a]];
    if (late < store) late = store;
    if (o->op == KIR_STORE) return other != store && other > early && earliest(m, other) < late;
    if (o->op != KIR_LOAD) return false;
    if (other > early && other < store) return true;
    return lends(o) && other < early && m->last[o->d] > early;
}

/* Whether the load at `load` must not use memory directly because the store at `store` writes it. Reading and writing
 * in one step is correct for elements of equal width. */
static bool lending_hurts(const maker *m, int load, int store) {
    const kir_step *l = step_at(m, load), *s = step_at(m, store);
    int last = m->last[l->d];
    if (load < store && store < last) return true;
    return load < earliest(m, store) && earliest(m, store) == last &&
           schedule_width_of(m, l->d) != schedule_width_of(m, s->a);
}

static tn_status find_conflicts(maker *m) {
    size_t room = 0;
    for (int i = 0; i < m->out->n_steps; i++) {
        bool load = lends(step_at(m, i));
        int early = step_at(m, i)->op == KIR_STORE ? earliest(m, i) : i;
        if (!load && early == i) continue;
        for (int j = 0; j < m->out->n_steps; j++) {
            bool store = step_at(m, j)->op == KIR_STORE;
            if (load && store && lending_hurts(m, i, j)) TRY(add_conflict(m, &room, i, j));
            if (early < i && early_store_hurts(m, i, early, j)) TRY(add_conflict(m, &room, i, j));
        }
    }
    return TN_OK;
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

static tn_status make_schedule(maker *m, bool *in_loop) {
    emit(m, in_loop);
    count_uses(m);
    link_loops(m);
    measure_schedule(m);
    TRY(place_schedule(m));
    find_direct(m);
    find_feeds(m);
    return find_conflicts(m);
}

static void schedule_free(kir_schedule *s) {
    tn_mem_free_each(s->steps, s->slots, s->conflicts);
    *s = (kir_schedule){.steps = NULL};
}

static tn_status schedule_make(const kir_program *p, bool whole, kir_schedule *out) {
    enum { TABLES = 8 };
    size_t n = (size_t)p->n_ins + 1;
    *out = (kir_schedule){.steps = tn_mem_zalloc(n, sizeof *out->steps), .slots = tn_mem_zalloc(n, sizeof *out->slots)};
    int16_t *tables = tn_mem_zalloc(n * TABLES, sizeof *tables);
    bool *in_loop = tn_mem_zalloc(n, sizeof *in_loop);
    tn_status status = out->steps && out->slots && tables && in_loop ? TN_OK : TN_ERR_MEMORY;
    if (status == TN_OK) {
        maker m = {.p = p, .whole = whole, .out = out, .n = p->n_ins};
        int16_t **parts[TABLES] = {&m.map, &m.epoch, &m.next, &m.uses, &m.def, &m.last, &m.root, &m.region};
        for (size_t k = 0; k < TABLES; k++)
            *parts[k] = tables + k * n;
        memset(m.buckets, 0xff, sizeof m.buckets);
        memset(m.def, 0xff, n * sizeof *m.def);
        status = make_schedule(&m, in_loop);
    }
    tn_mem_free_each(tables, in_loop);
    if (status != TN_OK) schedule_free(out);
    return status;
}
