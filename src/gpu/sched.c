/* sched.c — rewrites a plain program with loops to a group program that runs one row per workgroup (see gpu.h).
 *
 * The flat loop index of an item is block · KIR_BLOCK + step · KIR_LANES + item, so lane i of the plain reduction is
 * item i, and every loop becomes two: over blocks, and over the steps of one. A reduction is a variable per item (its
 * lane) and one that is equal in all items (the total). After each block the lanes go through local memory, where eight
 * items fold eight lanes each and then every item folds the eight results: the halves of the plain order, with two
 * barriers. Code outside loops is executed by all items, and the first one stores. */
#include "gpu/gpu.h"

#include "kir/rules.h"

#include <string.h>

enum { STEPS = KIR_BLOCK / KIR_LANES, WAYS = 8, SLOT = KIR_LANES + WAYS, ADDED_AXES = 3, MOST_REDUCED = 64 };
_Static_assert(WAYS *WAYS == KIR_LANES, "two folds of WAYS are one of all lanes");

typedef enum rule_kind {
    RULE_FIXED,  /* c and strides along the added axes, whatever the sizes */
    RULE_OUTER,  /* an access without its loop axes */
    RULE_FLAT,   /* an access in a loop over one axis */
    RULE_STRIDE, /* its stride along a loop axis, as a number */
    RULE_EXTENT, /* of a loop axis, as a number */
    RULE_TOTAL   /* elements of a loop, as a number */
} rule_kind;

/* A reduction while its loop is made. Extremes with their index have a second variable and a second slot. */
typedef struct reduced {
    int ins;
    kir_reduce kind;
    kir_type type;
    kir_val lane, index, total;
    int slot, index_slot; /* in the local buffer of its type */
} reduced;

typedef struct maker {
    const kir_program *p;
    kir_builder *b;
    kir_rows *rows;
    kir_val *map; /* by instruction of p */
    kir_size_rule *rules;
    size_t rule_room;
    int n_rules;
    int slots[KIR_TYPE_COUNT], local[KIR_TYPE_COUNT]; /* most slots that one loop needs; the buffer they are in */
    bool in_loop, loads, stores;                      /* loads, stores: of global memory since the last barrier */
    bool loads_before, stores_before;                 /* the same, when the loop around began */
    kir_val item, inside, flat, at[KIR_MAX_AXES];     /* in a loop: the index lies in it, flat and by axis */
    reduced reduced[MOST_REDUCED];
    int n_reduced;
    tn_status status;
} maker;

static bool is_arg(kir_reduce kind) { return kind == KIR_ARGMAX || kind == KIR_ARGMIN; }

/* ---- rules for sizes --------------------------------------------------------------------------------------------- */

/* The offset of its accesses is the number of this rule until the program is finished. */
static kir_aff by_rule(maker *m, kir_size_rule rule) {
    for (int i = 0; i < m->n_rules; i++) {
        const kir_size_rule *r = &m->rules[i];
        if (r->kind == rule.kind && r->axis == rule.axis && r->access == rule.access && r->c == rule.c &&
            r->item == rule.item && r->block == rule.block && r->step == rule.step)
            return kir_aff_const(i);
    }
    if (m->status == TN_OK) m->status = tn_mem_grow(&m->rules, &m->rule_room, (size_t)m->n_rules + 1, sizeof rule);
    if (m->status != TN_OK) return kir_aff_const(0);
    m->rules[m->n_rules] = rule;
    return kir_aff_const(m->n_rules++);
}

static kir_val number_by_rule(maker *m, kir_size_rule rule) {
    kir_aff index = by_rule(m, rule);
    return kir_index(m->b, &index);
}

/* Element c of a slot, or of the slot selected by the item's index. */
static kir_aff in_slot(const maker *m, int slot, int c, bool of_item) {
    kir_aff index = kir_aff_const(slot * SLOT + c);
    index.s[m->rows->n_par] = of_item;
    return index;
}

static int64_t total_of(const kir_rows *r, const int64_t *plain) {
    int64_t total = 1;
    for (int k = 0; k < r->count; k++)
        total *= plain[r->first + k];
    return total;
}

static void apply_rule(const kir_rows *r, const kir_size_rule *rule, const int64_t *plain, int64_t *affine) {
    size_t width = (size_t)(r->n_par + r->n_loop) + 1;
    const int64_t *from = plain + width - 1 + (size_t)rule->access * width;
    int64_t *item = affine + 1 + r->n_par, *block = item + 1, *step = item + 2;
    memset(affine, 0, (size_t)(1 + r->n_par + ADDED_AXES) * sizeof *affine);
    int64_t stride = rule->kind == RULE_FLAT ? from[1 + r->first] : 0;
    switch ((rule_kind)rule->kind) {
    case RULE_FIXED:
        affine[0] = rule->c;
        *item = rule->item;
        *block = rule->block;
        *step = rule->step;
        break;
    case RULE_FLAT:
    case RULE_OUTER:
        memcpy(affine, from, (size_t)(1 + r->n_par) * sizeof *affine);
        *item = stride;
        *step = stride * KIR_LANES;
        *block = stride * KIR_BLOCK;
        break;
    case RULE_STRIDE: affine[0] = from[1 + rule->axis]; break;
    case RULE_EXTENT: affine[0] = plain[rule->axis]; break;
    case RULE_TOTAL: affine[0] = total_of(r, plain); break;
    }
}

void kir_schedule_sizes(const kir_rows *r, const int64_t *plain, int64_t *sizes) {
    int64_t total = total_of(r, plain), blocks = (total + KIR_BLOCK - 1) / KIR_BLOCK;
    memcpy(sizes, plain, r->n_par * sizeof *sizes);
    sizes[r->n_par] = KIR_LANES;
    sizes[r->n_par + 1] = blocks;
    sizes[r->n_par + 2] = blocks > 1 ? STEPS : (total + KIR_LANES - 1) / KIR_LANES;
    size_t axes = (size_t)(r->n_par + ADDED_AXES);
    for (int i = 0; i < r->program->n_sized; i++)
        apply_rule(r, &r->rules[i], plain, sizes + axes + (size_t)i * (axes + 1));
}

/* ---- which programs ---------------------------------------------------------------------------------------------- */

static tn_status no_schedule(int i, const char *why) {
    return tn_fail(TN_ERR_UNSUPPORTED, "rows by workgroups: instruction %d: %s", i, why);
}

/* One loop after the other, all over the same axes; no chains. Notes the range, and the slots that a loop needs. */
static tn_status check_loops(maker *m) {
    int depth = 0, loops = 0, reductions = 0, slots[KIR_TYPE_COUNT] = {0};
    for (int i = 0; i < m->p->n_ins; i++) {
        const kir_ins *in = &m->p->ins[i];
        if (in->op == KIR_SCAN || in->op == KIR_VAR || (in->op == KIR_REDUCE && in->kind > KIR_ARGMIN))
            return no_schedule(i, "each element depends on the previous one");
        if (in->op == KIR_END) depth--;
        if (in->op == KIR_LOOP) {
            if (depth++ > 0) return no_schedule(i, "a loop inside a loop");
            int first = kir_loop_first(in), count = kir_loop_count(in);
            if (loops++ > 0 && (first != m->rows->first || count != m->rows->count))
                return no_schedule(i, "a loop over axes that differ from the first loop's");
            m->rows->first = (uint8_t)first;
            m->rows->count = (uint8_t)count;
            memset(slots, 0, sizeof slots);
            reductions = 0;
        }
        if (in->op != KIR_REDUCE) continue;
        if (reductions++ == MOST_REDUCED) return no_schedule(i, "too many reductions in a loop");
        slots[m->p->ins[in->a].type]++;
        slots[KIR_I64] += is_arg((kir_reduce)in->kind);
        for (int t = 0; t < KIR_TYPE_COUNT; t++)
            m->slots[t] = slots[t] > m->slots[t] ? slots[t] : m->slots[t];
    }
    return loops > 0 ? TN_OK : no_schedule(0, "no loops");
}

static tn_status check(maker *m) {
    TRY(kir_verify(m->p));
    if (m->p->n_items > 0) return no_schedule(0, "the kernel already uses workgroups");
    TRY(check_loops(m));
    int locals = 0;
    int64_t bytes = 0;
    for (int t = 0; t < KIR_TYPE_COUNT; t++) {
        locals += m->slots[t] > 0;
        bytes += (int64_t)m->slots[t] * SLOT * (int64_t)kir_type_size((kir_type)t);
    }
    if (m->p->n_par + ADDED_AXES > KIR_MAX_AXES) return no_schedule(0, "too many parallel axes");
    if (m->p->n_buffers + locals > KIR_MAX_BUFFERS) return no_schedule(0, "too many buffers");
    if (bytes > KIR_MAX_LOCAL) return no_schedule(0, "too many reductions in a loop");
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void barrier(maker *m) {
    kir_barrier(m->b);
    m->loads = m->stores = false;
}

/* Before the next access to global memory: another item may have accessed it since the last barrier. Nothing is needed
 * inside a loop, because iterations of a point do not access what others write; the loop's start does it. */
static void order(maker *m, bool loads, bool stores) {
    if (!m->in_loop && ((m->stores && (loads || stores)) || (m->loads && stores))) barrier(m);
}

static void note_access(maker *m, bool loads, bool stores) {
    m->loads = m->loads || loads;
    m->stores = m->stores || stores;
}

static kir_val sched_both(maker *m, kir_val mask, kir_val other) {
    return mask == KIR_NONE ? other : kir_and(m->b, mask, other);
}

static kir_val mapped(const maker *m, kir_val v) { return v == KIR_NONE ? KIR_NONE : m->map[v]; }

/* Σ coordinate · stride over several loop axes, added to a computed index. */
static kir_val add_coordinates(maker *m, int access, kir_val dyn) {
    for (int k = m->rows->first; k < m->rows->first + m->rows->count; k++) {
        kir_size_rule rule = {.kind = RULE_STRIDE, .access = (int16_t)access, .axis = (int8_t)k};
        kir_val part = kir_mul(m->b, m->at[k], number_by_rule(m, rule));
        dyn = dyn == KIR_NONE ? part : kir_add(m->b, dyn, part);
    }
    return dyn;
}

static kir_aff index_of(maker *m, int access) {
    bool flat = m->in_loop && m->rows->count == 1;
    kir_aff index = by_rule(m, (kir_size_rule){.kind = flat ? RULE_FLAT : RULE_OUTER, .access = (int16_t)access});
    index.dyn = mapped(m, m->p->access[access].dyn);
    if (m->in_loop && !flat) index.dyn = add_coordinates(m, access, index.dyn);
    return index;
}

static kir_val lower_load(maker *m, const kir_ins *in) {
    order(m, true, false);
    note_access(m, true, false);
    kir_aff index = index_of(m, (int)in->imm.i);
    kir_val mask = mapped(m, in->a);
    return kir_load(m->b, m->p->access[in->imm.i].buffer, &index, m->in_loop ? sched_both(m, mask, m->inside) : mask);
}

static void lower_store(maker *m, const kir_ins *in) {
    order(m, false, true);
    note_access(m, false, true);
    kir_aff index = index_of(m, (int)in->imm.i);
    kir_val once = m->in_loop ? m->inside : kir_eq(m->b, m->item, kir_whole(m->b, 0));
    kir_store(m->b, m->p->access[in->imm.i].buffer, &index, mapped(m, in->a), sched_both(m, mapped(m, in->b), once));
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* A value and, for ARGMAX and ARGMIN, its index; -1: none yet. */
typedef struct extreme {
    kir_val value, index;
} extreme;

static kir_val combine(maker *m, const reduced *r, kir_val acc, kir_val x) {
    static const kir_op ops[] = {[KIR_SUM] = KIR_ADD, [KIR_PROD] = KIR_MUL, [KIR_RMAX] = KIR_MAX, [KIR_RMIN] = KIR_MIN};
    return kir_binary(m->b, ops[r->kind], acc, x);
}

static kir_val not_mask(maker *m, kir_val v) { return kir_xor(m->b, v, kir_const_i(m->b, KIR_BOOL, 1)); }

/* kir_beats as a program: strictly beyond it, or the first NaN. */
static kir_val beats(maker *m, const reduced *r, kir_val x, kir_val best) {
    kir_val beyond = r->kind == KIR_ARGMAX ? kir_lt(m->b, best, x) : kir_lt(m->b, x, best);
    if (!kir_is_float(r->type)) return beyond;
    kir_val is_nan = not_mask(m, kir_eq(m->b, x, x));
    return kir_and(m->b, kir_eq(m->b, best, best), kir_or(m->b, beyond, is_nan));
}

static kir_val is_none(maker *m, kir_val index) { return kir_lt(m->b, index, kir_whole(m->b, 0)); }

static extreme select_extreme(maker *m, kir_val second, extreme a, extreme b) {
    return (extreme){kir_select(m->b, second, b.value, a.value), kir_select(m->b, second, b.index, a.index)};
}

/* The one that comes first in the plain order: the more extreme one, then the lower index. */
static extreme better(maker *m, const reduced *r, extreme a, extreme b) {
    if (!is_arg(r->kind)) return (extreme){combine(m, r, a.value, b.value), KIR_NONE};
    kir_val tie = not_mask(m, beats(m, r, a.value, b.value));
    kir_val lower = kir_and(m->b, tie, kir_lt(m->b, b.index, a.index));
    kir_val wins = kir_or(m->b, beats(m, r, b.value, a.value), lower);
    wins = kir_or(m->b, wins, is_none(m, a.index));
    return select_extreme(m, kir_and(m->b, wins, not_mask(m, is_none(m, b.index))), a, b);
}

static void feed(maker *m, int ins, kir_val x) {
    reduced *r = m->reduced;
    while (r->ins != ins)
        r++;
    kir_val lane = kir_get(m->b, r->lane);
    if (!is_arg(r->kind)) {
        kir_set(m->b, r->lane, kir_select(m->b, m->inside, combine(m, r, lane, x), lane));
        return;
    }
    extreme best = {lane, kir_get(m->b, r->index)}, now = {x, m->flat};
    kir_val wins = kir_or(m->b, beats(m, r, x, best.value), is_none(m, best.index));
    extreme chosen = select_extreme(m, kir_and(m->b, m->inside, wins), best, now);
    kir_set(m->b, r->lane, chosen.value);
    kir_set(m->b, r->index, chosen.index);
}

static void store_extreme(maker *m, const reduced *r, int at, extreme x, kir_val mask) {
    kir_aff index = in_slot(m, r->slot, at, true);
    kir_store(m->b, m->local[r->type], &index, x.value, mask);
    if (!is_arg(r->kind)) return;
    index = in_slot(m, r->index_slot, at, true);
    kir_store(m->b, m->local[KIR_I64], &index, x.index, mask);
}

static extreme load_extreme(maker *m, const reduced *r, int at, bool of_item, kir_val mask) {
    kir_aff index = in_slot(m, r->slot, at, of_item);
    extreme x = {kir_load(m->b, m->local[r->type], &index, mask), KIR_NONE};
    if (!is_arg(r->kind)) return x;
    index = in_slot(m, r->index_slot, at, of_item);
    x.index = kir_load(m->b, m->local[KIR_I64], &index, mask);
    return x;
}

/* WAYS values, `stride` apart, folded by halves. */
static extreme fold_ways(maker *m, const reduced *r, int at, int stride, bool of_item, kir_val mask) {
    extreme x[WAYS];
    for (int i = 0; i < WAYS; i++)
        x[i] = load_extreme(m, r, at + i * stride, of_item, mask);
    for (int half = WAYS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] = better(m, r, x[i], x[i + half]);
    return x[0];
}

/* The lanes of these reductions (those with an index, or the others) become one value each, the same in all items. */
static void fold_reductions(maker *m, bool args, extreme *out) {
    bool any = false;
    for (int i = 0; i < m->n_reduced; i++) {
        reduced *r = &m->reduced[i];
        if (is_arg(r->kind) != args) continue;
        any = true;
        store_extreme(m, r, 0, (extreme){kir_get(m->b, r->lane), args ? kir_get(m->b, r->index) : KIR_NONE}, KIR_NONE);
    }
    if (!any) return;
    barrier(m);
    kir_val folds = kir_lt(m->b, m->item, kir_whole(m->b, WAYS));
    for (int i = 0; i < m->n_reduced; i++) {
        reduced *r = &m->reduced[i];
        if (is_arg(r->kind) == args) store_extreme(m, r, KIR_LANES, fold_ways(m, r, 0, WAYS, true, folds), folds);
    }
    barrier(m);
    for (int i = 0; i < m->n_reduced; i++) {
        reduced *r = &m->reduced[i];
        if (is_arg(r->kind) == args) out[i] = fold_ways(m, r, KIR_LANES, 1, false, KIR_NONE);
    }
}

static kir_val sched_identity(maker *m, const reduced *r) {
    kir_ins in = kir_const_ins(r->type, kir_identity(r->kind, r->type));
    return kir_is_float(r->type) ? kir_const(m->b, r->type, in.imm.f) : kir_const_i(m->b, r->type, in.imm.i);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* The reductions of the loop that begins here, and what it does to global memory. */
static void scan_loop(maker *m, int loop, bool *loads, bool *stores) {
    int used[KIR_TYPE_COUNT] = {0};
    m->n_reduced = 0;
    for (int i = loop + 1; m->p->ins[i].op != KIR_END; i++) {
        const kir_ins *in = &m->p->ins[i];
        *loads = *loads || in->op == KIR_LOAD;
        *stores = *stores || in->op == KIR_STORE;
        if (in->op != KIR_REDUCE) continue;
        kir_type type = (kir_type)m->p->ins[in->a].type;
        reduced r = {.ins = i, .kind = (kir_reduce)in->kind, .type = type};
        r.slot = used[type]++;
        if (is_arg(r.kind)) r.index_slot = used[KIR_I64]++;
        m->reduced[m->n_reduced++] = r;
    }
}

/* Variables that keep their values from block to block. */
static void begin_totals(maker *m) {
    for (int i = 0; i < m->n_reduced; i++) {
        reduced *r = &m->reduced[i];
        if (!is_arg(r->kind)) {
            r->total = kir_var(m->b, sched_identity(m, r));
            continue;
        }
        r->lane = kir_var(m->b, sched_identity(m, r));
        r->index = kir_var(m->b, kir_whole(m->b, -1));
    }
}

static void begin_coordinates(maker *m) {
    kir_val total = number_by_rule(m, (kir_size_rule){.kind = RULE_TOTAL});
    m->flat = number_by_rule(m, (kir_size_rule){.kind = RULE_FIXED, .item = 1, .block = KIR_BLOCK, .step = KIR_LANES});
    m->inside = kir_lt(m->b, m->flat, total);
    kir_val rest = m->flat;
    for (int k = m->rows->first + m->rows->count - 1; m->rows->count > 1 && k > m->rows->first; k--) {
        kir_val extent = number_by_rule(m, (kir_size_rule){.kind = RULE_EXTENT, .axis = (int8_t)k});
        m->at[k] = kir_mod(m->b, rest, extent);
        rest = kir_div(m->b, rest, extent);
    }
    if (m->rows->count > 0) m->at[m->rows->first] = rest;
}

static void begin_loop(maker *m, int i) {
    bool loads = false, stores = false;
    scan_loop(m, i, &loads, &stores);
    order(m, loads, stores);
    m->loads_before = m->loads;
    m->stores_before = m->stores;
    note_access(m, loads, stores);
    begin_totals(m);
    kir_loop(m->b, m->rows->n_par + 1, 1);
    for (int k = 0; k < m->n_reduced; k++) {
        reduced *r = &m->reduced[k];
        if (!is_arg(r->kind)) r->lane = kir_var(m->b, sched_identity(m, r));
    }
    kir_loop(m->b, m->rows->n_par + 2, 1);
    m->in_loop = true;
    begin_coordinates(m);
}

/* The first block's result is copied. */
static void end_block(maker *m) {
    extreme parts[MOST_REDUCED];
    fold_reductions(m, false, parts);
    kir_val block = number_by_rule(m, (kir_size_rule){.kind = RULE_FIXED, .block = 1});
    kir_val is_first = kir_eq(m->b, block, kir_whole(m->b, 0));
    for (int i = 0; i < m->n_reduced; i++) {
        reduced *r = &m->reduced[i];
        if (is_arg(r->kind)) continue;
        kir_val sum = combine(m, r, kir_get(m->b, r->total), parts[i].value);
        kir_set(m->b, r->total, kir_select(m->b, is_first, parts[i].value, sum));
    }
}

static void end_loop(maker *m) {
    extreme found[MOST_REDUCED];
    kir_end(m->b);
    m->in_loop = false;
    end_block(m);
    kir_end(m->b);
    note_access(m, m->loads_before, m->stores_before); /* a loop over nothing has met no barrier */
    fold_reductions(m, true, found);
    for (int i = 0; i < m->n_reduced; i++) {
        const reduced *r = &m->reduced[i];
        kir_val none = kir_whole(m->b, 0);
        m->map[r->ins] = is_arg(r->kind) ? kir_max(m->b, found[i].index, none) : kir_get(m->b, r->total);
    }
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static kir_val index_value(maker *m, const kir_ins *in) {
    kir_aff index = index_of(m, (int)in->imm.i);
    return kir_index(m->b, &index);
}

static kir_val pure(maker *m, const kir_ins *in) {
    kir_type t = (kir_type)in->type;
    kir_val a = mapped(m, in->a), b = mapped(m, in->b), c = mapped(m, in->c);
    switch (in->op) {
    case KIR_CONST: return kir_is_float(t) ? kir_const(m->b, t, in->imm.f) : kir_const_i(m->b, t, in->imm.i);
    case KIR_SCALAR: return kir_scalar_value(m->b, t, (int)in->imm.i);
    case KIR_ROUND: return kir_rounding(m->b, (kir_round)in->imm.i, a);
    case KIR_CAST: return kir_cast(m->b, t, a);
    case KIR_BITCAST: return kir_bitcast(m->b, t, a);
    case KIR_FMA: return kir_fma(m->b, a, b, c);
    case KIR_SELECT: return kir_select(m->b, a, b, c);
    case KIR_PHILOX: return kir_philox(m->b, a, b);
    default: return b == KIR_NONE ? kir_unary(m->b, (kir_op)in->op, a) : kir_binary(m->b, (kir_op)in->op, a, b);
    }
}

static void make_one(maker *m, int i) {
    const kir_ins *in = &m->p->ins[i];
    switch (in->op) {
    case KIR_LOOP: begin_loop(m, i); break;
    case KIR_END: end_loop(m); break;
    case KIR_REDUCE: feed(m, i, mapped(m, in->a)); break;
    case KIR_STORE: lower_store(m, in); break;
    case KIR_LOAD: m->map[i] = lower_load(m, in); break;
    case KIR_INDEX: m->map[i] = index_value(m, in); break;
    default: m->map[i] = pure(m, in);
    }
}

static void declare_buffers(maker *m) {
    static const tn_dtype dtypes[KIR_TYPE_COUNT] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};
    for (int i = 0; i < m->p->n_buffers; i++)
        kir_buffer(m->b, (tn_dtype)m->p->buffer_dtype[i]);
    for (int t = 0; t < KIR_TYPE_COUNT; t++)
        if (m->slots[t] > 0) m->local[t] = kir_local(m->b, dtypes[t], (int64_t)m->slots[t] * SLOT);
}

/* The offsets of the finished program are numbers of rules. */
static tn_status keep_rules(maker *m, const int64_t *numbers) {
    const kir_program *p = m->rows->program;
    m->rows->rules = tn_mem_zalloc((size_t)p->n_sized + 1, sizeof *m->rows->rules);
    if (!m->rows->rules) return TN_ERR_MEMORY;
    for (int i = 0; i < p->n_sized; i++)
        m->rows->rules[i] = m->rules[kir_sizes_access(p, numbers, i)[0]];
    return TN_OK;
}

static tn_status make_program(maker *m) {
    int64_t extents[KIR_MAX_AXES] = {0};
    AUTO_FREE int64_t *numbers = NULL;
    int n_par = m->rows->n_par;
    TRY(check(m));
    m->map = tn_mem_zalloc((size_t)m->p->n_ins + 1, sizeof *m->map);
    if (!m->map) return TN_ERR_MEMORY;
    extents[n_par] = KIR_LANES;
    TRY(kir_begin(n_par + 1, 2, extents, &m->b));
    kir_group(m->b, 1);
    declare_buffers(m);
    m->item = number_by_rule(m, (kir_size_rule){.kind = RULE_FIXED, .item = 1});
    for (int i = 0; i < m->p->n_ins && m->status == TN_OK; i++)
        make_one(m, i);
    if (m->status != TN_OK) {
        kir_abandon(m->b);
        return m->status;
    }
    TRY(kir_finish(m->b, &m->rows->program, &numbers));
    TRY(keep_rules(m, numbers));
    kir_set_windows(m->rows->program, m->p->windows, m->p->n_buffers);
    return TN_OK;
}

tn_status kir_schedule_rows(const kir_program *p, kir_rows **out) {
    *out = NULL;
    maker *m = tn_mem_zalloc(1, sizeof *m);
    kir_rows *rows = tn_mem_zalloc(1, sizeof *rows);
    tn_status status = m && rows ? TN_OK : TN_ERR_MEMORY;
    if (status == TN_OK) {
        *rows = (kir_rows){.n_par = p->n_par, .n_loop = p->n_loop};
        m->p = p;
        m->rows = rows;
        status = make_program(m);
        tn_mem_free_each(m->map, m->rules);
    }
    tn_mem_free(m);
    if (status == TN_OK)
        *out = rows;
    else
        kir_rows_free(rows);
    return status;
}

void kir_rows_free(kir_rows *r) {
    if (!r) return;
    kir_free(r->program);
    tn_mem_free_each(r->rules, r);
}
