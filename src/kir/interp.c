/* interp.c — the oracle: runs a program point by point as kir.h defines it, and reports races of workgroup items. */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kir/kir_math.h"
#include "kir/rules.h"

/* ==== race detection ============================================================================================== */
/* Each watched element has a note: the phase (between two barriers) in which it was last accessed, and its writer and
 * reader in that phase. Two items in one phase, one of which writes, are a race. So are two workgroups in any phase,
 * because they are not ordered.
 *
 * Local memory has an array of notes, one per byte. Global memory has a hash table by address: only buffers that the
 * program writes are watched. An element is identified by its first byte. */

enum { NOBODY = -1, SEVERAL = -2, FIRST_SLOTS = 1024 };

typedef struct note {
    const char *at;         /* NULL: an empty slot */
    int64_t group;          /* the one that touched it last, or SEVERAL have read it */
    int64_t phase;          /* in which writer and reader are true */
    int32_t writer, reader; /* an item, NOBODY, SEVERAL */
    bool written;           /* by `group`, at any time */
} note;

typedef struct kir_shadow {
    const char *local; /* the memory of one workgroup after the other */
    note *locals;
    note *slots; /* open addressing; slot_count is a power of two */
    size_t slot_count, used;
    int64_t group, phase;
} kir_shadow;

static tn_status kir_shadow_open(const char *local, int64_t bytes, kir_shadow **out) {
    kir_shadow *s = *out = tn_mem_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    s->local = local;
    s->slot_count = FIRST_SLOTS;
    s->locals = tn_mem_zalloc((size_t)bytes + 1, sizeof *s->locals);
    s->slots = tn_mem_zalloc(s->slot_count, sizeof *s->slots);
    return s->locals && s->slots ? TN_OK : TN_ERR_MEMORY;
}

static void kir_shadow_close(kir_shadow *s) {
    if (!s) return;
    tn_mem_free_each(s->locals, s->slots, s);
}

/* The next workgroup begins: local memory is undefined. */
static void kir_shadow_group(kir_shadow *s) {
    s->group++;
    s->phase++;
}

static void kir_shadow_barrier(kir_shadow *s) { s->phase++; }

static size_t slot_of(const kir_shadow *s, const char *at) {
    size_t i = (size_t)((uint64_t)(uintptr_t)at * 0x9E3779B97F4A7C15U >> 20) & (s->slot_count - 1);
    while (s->slots[i].at && s->slots[i].at != at)
        i = (i + 1) & (s->slot_count - 1);
    return i;
}

static tn_status grow(kir_shadow *s) {
    note *old = s->slots, *bigger = tn_mem_zalloc(s->slot_count * 2, sizeof *bigger);
    size_t old_count = s->slot_count;
    if (!bigger) return TN_ERR_MEMORY;
    s->slots = bigger;
    s->slot_count *= 2;
    for (size_t i = 0; i < old_count; i++)
        if (old[i].at) s->slots[slot_of(s, old[i].at)] = old[i];
    tn_mem_free(old);
    return TN_OK;
}

/* The element's note, brought to the current phase. Local memory is new for each workgroup. */
static tn_status note_of(kir_shadow *s, const char *at, bool local, note **out) {
    if (!local && 2 * s->used > s->slot_count) TRY(grow(s));
    note *n = local ? &s->locals[at - s->local] : &s->slots[slot_of(s, at)];
    if (!n->at) {
        *n = (note){.at = at, .group = s->group, .phase = -1};
        s->used += !local;
    }
    if (local && n->group != s->group) *n = (note){.at = at, .group = s->group, .phase = -1};
    if (n->phase != s->phase) {
        n->phase = s->phase;
        n->writer = n->reader = NOBODY;
    }
    *out = n;
    return TN_OK;
}

/* An item loads or stores the element at `at`, which is in local memory or not. *wrong: what is wrong with it. */
static tn_status kir_shadow_load(kir_shadow *s, const char *at, bool local, int item, const char **wrong) {
    note *n;
    TRY(note_of(s, at, local, &n));
    if (local && !n->written) *wrong = "read before any item of this workgroup has written it";
    if (n->written && n->group != s->group) *wrong = "a race: another workgroup writes it";
    if (n->writer != NOBODY && n->writer != item) *wrong = "a race: another item writes it, with no barrier between";
    n->reader = n->reader == NOBODY || n->reader == item ? item : SEVERAL;
    if (n->group != s->group) n->group = SEVERAL;
    return TN_OK;
}

static tn_status kir_shadow_store(kir_shadow *s, const char *at, bool local, int item, const char **wrong) {
    note *n;
    TRY(note_of(s, at, local, &n));
    if (n->group != s->group) *wrong = "a race: another workgroup reads or writes it";
    if (n->reader != NOBODY && n->reader != item) *wrong = "a race: another item reads it, with no barrier between";
    if (n->writer != NOBODY && n->writer != item) *wrong = "a race: another item writes it, with no barrier between";
    n->writer = item;
    n->written = true;
    return TN_OK;
}

/* ==== interpreter ================================================================================================= */
/* Loops may nest and range over different axes. A REDUCE has its own state: cleared when its loop begins, updated at
 * each point of the loop, folded when the loop ends. All items of a workgroup execute one instruction before the next
 * begins; their accesses are noted by the code above, which reports races. A plain program runs as a workgroup of one
 * item without this check. Matrices, fragments and packets have their own memory, one per subgroup or item. */

/* A running reduction or scan. `count`: elements so far. */
typedef struct state {
    int64_t count, best_index;
    bool whole_blocks; /* total holds a finished block or chain */
    kir_value total;
    kir_value lanes[KIR_LANES]; /* SCAN, SEQ, ARG* and CHAIN use lane 0 alone */
} state;

typedef float matrix[KIR_EDGE][KIR_EDGE];
typedef struct packet {
    uint16_t e[KIR_LINE_UNIT];
} packet;

/* A late PUT under way. */
typedef struct pending {
    uint8_t *to;
    packet what;
    int item;
    int64_t batch;
} pending;

typedef float wide_matrix[KIR_WIDE_ROWS][KIR_WIDE_COLUMNS];

/* An MMA of wide matrices in progress: the first item of its subgroup, and the start of its factors. */
typedef struct wide_mma {
    const kir_ins *in;
    int64_t x, y, batch;
    int item;
} wide_mma;

typedef struct interp {
    const kir_program *p;
    const kir_launch *launch;
    kir_value *values, *all_values; /* by instruction: of the current item, of all of them */
    state *states, *all_states;     /* one for each REDUCE and SCAN, in order: of the current item, of all */
    int16_t *state_of;              /* by instruction */
    int16_t *matrix_of;             /* by instruction: the number of a MATRIX, FRAGMENT or FETCH among its sort */
    matrix *matrices;               /* of each subgroup, of MATRIX and FRAGMENT */
    packet *packets;                /* of each item */
    int64_t *batches;               /* of each item, committed so far */
    pending *late;
    size_t late_count, late_room;
    wide_matrix *wide;     /* as matrices; those fragments have only a place */
    int64_t *wide_batches; /* of each subgroup */
    int64_t *places;
    wide_mma *mmas;
    size_t mma_count, mma_room;
    int n_matrices, n_packets, lanes;
    int n_states, n_items, item; /* the current item is `item` */
    int64_t at[KIR_MAX_AXES];
    int64_t end[KIR_MAX_AXES]; /* extents, but of axes whose loop ends at a computed number */
    char *local;               /* the workgroup's memory; local_at: where each local buffer begins in it */
    int64_t local_at[KIR_MAX_BUFFERS];
    kir_shadow *shadow;            /* NULL: a plain program */
    bool watched[KIR_MAX_BUFFERS]; /* memory that is written under this or another name */
    tn_status status;              /* the first failure */
} interp;

static void go_to_item(interp *m, int item) {
    const kir_program *p = m->p;
    m->item = item;
    m->values = m->all_values + (size_t)item * (size_t)p->n_ins;
    m->states = m->all_states + (size_t)item * (size_t)m->n_states;
    int64_t *at = m->at + p->n_par - p->n_items;
    for (int k = p->n_items - 1; k > 0; k--) {
        at[k] = item % p->item[k];
        item /= p->item[k];
    }
    if (p->n_items > 0) at[0] = item;
}

static void go_to_next_item(interp *m) {
    int64_t *at = m->at + m->p->n_par - m->p->n_items;
    int k = m->p->n_items - 1;
    m->item++;
    m->values += m->p->n_ins;
    m->states += m->n_states;
    while (k > 0 && ++at[k] == m->p->item[k])
        at[k--] = 0;
    if (k == 0) at[0]++;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int64_t element_of(const interp *m, const kir_ins *in) {
    const int64_t *affine = kir_sizes_access(m->p, m->launch->sizes, (int)in->imm.i);
    int64_t index = affine[0];
    for (int axis = 0; axis < m->p->n_par + m->p->n_loop; axis++)
        index += m->at[axis] * affine[1 + axis];
    kir_val dyn = m->p->access[in->imm.i].dyn;
    if (dyn == KIR_NONE) return index;
    if (m->p->words) return (int32_t)((uint32_t)index + m->values[dyn].u32);
    return (int64_t)((uint64_t)index + (uint64_t)m->values[dyn].i64);
}

/* Of an index or a number of points, which is I32 in programs of words. */
static kir_value index_value(const interp *m, int64_t i) {
    return m->p->words ? (kir_value){.i32 = (int32_t)i} : (kir_value){.i64 = i};
}
static int64_t index_of(const interp *m, kir_value v) { return m->p->words ? v.i32 : v.i64; }

static uint16_t read_u16(const uint8_t *at) {
    uint16_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static void write_u16(uint8_t *at, uint16_t v) { memcpy(at, &v, sizeof v); }

static kir_value load_element(tn_dtype dtype, const uint8_t *at) {
    kir_value v = {.u64 = 0};
    switch (dtype) {
    case TN_F16: return (kir_value){.f32 = kir_from_f16(read_u16(at))};
    case TN_BF16: return (kir_value){.f32 = kir_from_bf16(read_u16(at))};
    case TN_I8: return (kir_value){.i32 = (int8_t)*at};
    case TN_U8: return (kir_value){.i32 = *at};
    case TN_I16: return (kir_value){.i32 = (int16_t)read_u16(at)};
    case TN_U16: return (kir_value){.i32 = read_u16(at)};
    default: memcpy(&v, at, tn_dtype_size(dtype)); return v;
    }
}

static void store_element(tn_dtype dtype, uint8_t *at, kir_value v) {
    switch (dtype) {
    case TN_F16: write_u16(at, kir_to_f16(v.f32)); break;
    case TN_BF16: write_u16(at, kir_to_bf16(v.f32)); break;
    case TN_I8:
    case TN_U8: *at = (uint8_t)v.i32; break;
    case TN_I16:
    case TN_U16: write_u16(at, (uint16_t)v.i32); break;
    default: memcpy(at, &v, tn_dtype_size(dtype));
    }
}

static tn_status broken(const interp *m, int i, int64_t element, const char *what) {
    return tn_fail(TN_ERR_ARGUMENT, "kernel program, instruction %d (%s), item %d: element %lld of buffer %d: %s", i,
                   kir_op_name((kir_op)m->p->ins[i].op), m->item, (long long)element,
                   m->p->access[m->p->ins[i].imm.i].buffer, what);
}

/* NULL after a failure: where instruction i may touch element `element` of its buffer now. */
static uint8_t *element_at(interp *m, int i, int64_t element, tn_dtype *dtype) {
    const kir_ins *in = &m->p->ins[i];
    int buffer = m->p->access[in->imm.i].buffer;
    *dtype = (tn_dtype)m->p->buffer_dtype[buffer];
    int64_t bytes = (int64_t)tn_dtype_size(*dtype);
    bool local = m->p->local[buffer] > 0;
    if (!m->shadow) return (uint8_t *)m->launch->buffers[buffer] + element * bytes;
    if (local && (element < 0 || element >= m->p->local[buffer])) {
        m->status = broken(m, i, element, "outside this workgroup memory");
        return NULL;
    }
    char *base = local ? m->local + m->local_at[buffer] : (char *)m->launch->buffers[buffer];
    if (!m->watched[buffer]) return (uint8_t *)base + element * bytes;
    const char *wrong = NULL;
    tn_status status = kir_writes((kir_op)in->op)
                           ? kir_shadow_store(m->shadow, base + element * bytes, local, m->item, &wrong)
                           : kir_shadow_load(m->shadow, base + element * bytes, local, m->item, &wrong);
    m->status = wrong ? broken(m, i, element, wrong) : status;
    return m->status == TN_OK ? (uint8_t *)base + element * bytes : NULL;
}

static uint8_t *address_of(interp *m, int i, tn_dtype *dtype) {
    return element_at(m, i, element_of(m, &m->p->ins[i]), dtype);
}

/* The dtype of what is accessed: the element at *at, or in a program of words the word of it. */
static tn_dtype word_of(const interp *m, const kir_ins *in, tn_dtype dtype, int *skip) {
    bool whole = !m->p->words || (dtype != TN_I64 && dtype != TN_U64);
    *skip = whole ? 0 : 4 * in->kind;
    return whole ? dtype : TN_U32;
}

static void run_load(interp *m, int i, const kir_ins *in) {
    m->values[i] = (kir_value){.u64 = 0};
    if (in->a != KIR_NONE && !m->values[in->a].b) return;
    tn_dtype dtype;
    const uint8_t *at = address_of(m, i, &dtype);
    int skip = 0;
    if (!at) return;
    dtype = word_of(m, in, dtype, &skip);
    m->values[i] = load_element(dtype, at + skip);
}

static void run_store(interp *m, int i, const kir_ins *in) {
    if (in->b != KIR_NONE && !m->values[in->b].b) return;
    tn_dtype dtype;
    uint8_t *at = address_of(m, i, &dtype);
    int skip = 0;
    if (!at) return;
    dtype = word_of(m, in, dtype, &skip);
    store_element(dtype, at + skip, m->values[in->a]);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static void state_clear(state *s, const kir_ins *in) {
    kir_value identity = kir_identity((kir_reduce)in->kind, (kir_type)in->type);
    *s = (state){.total = identity};
    for (int i = 0; i < KIR_LANES; i++)
        s->lanes[i] = identity;
}

static void add_to_total(state *s, kir_reduce kind, kir_type t, kir_value part) {
    s->total = s->whole_blocks ? kir_combine(kind, t, s->total, part) : part;
    s->whole_blocks = true;
}

static void fold_lanes(state *s, kir_reduce kind, kir_type t) {
    for (int half = KIR_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            s->lanes[i] = kir_combine(kind, t, s->lanes[i], s->lanes[i + half]);
    add_to_total(s, kind, t, s->lanes[0]);
    for (int i = 0; i < KIR_LANES; i++)
        s->lanes[i] = kir_identity(kind, t);
}

static kir_value multiply_add(kir_type t, kir_value a, kir_value b, kir_value c) {
    kir_ins op = {.op = KIR_FMA, .type = (uint8_t)t};
    kir_value v[3] = {a, b, c}, out = {.u64 = 0};
    if (kir_is_float(t)) {
        kir_eval(&op, t, v, &out);
        return out;
    }
    op.op = KIR_MUL;
    kir_eval(&op, t, v, &out);
    return kir_combine(KIR_SUM, t, out, c);
}

static void feed_chain(state *s, kir_type t, kir_value a, kir_value b) {
    if (s->count > 0 && s->count % KIR_KSUM == 0) {
        add_to_total(s, KIR_SUM, t, s->lanes[0]);
        s->lanes[0] = kir_identity(KIR_SUM, t);
    }
    s->lanes[0] = multiply_add(t, a, b, s->lanes[0]);
}

static void feed_arg(state *s, kir_reduce kind, kir_type t, kir_value x) {
    if (s->count > 0 && !kir_beats(kind, t, x, s->lanes[0])) return;
    s->lanes[0] = x;
    s->best_index = s->count;
}

static void feed_lanes(state *s, kir_reduce kind, kir_type t, kir_value x) {
    if (s->count > 0 && s->count % KIR_BLOCK == 0) fold_lanes(s, kind, t);
    kir_value *lane = &s->lanes[s->count % KIR_LANES];
    *lane = kir_combine(kind, t, *lane, x);
}

static void run_reduce(interp *m, int i, const kir_ins *in) {
    state *s = &m->states[m->state_of[i]];
    kir_type t = (kir_type)m->p->ins[in->a].type;
    kir_value x = m->values[in->a];
    switch (in->kind) {
    case KIR_CHAIN: feed_chain(s, t, x, m->values[in->b]); break;
    case KIR_SEQ: s->lanes[0] = kir_combine(KIR_SUM, t, s->lanes[0], x); break;
    case KIR_ARGMAX:
    case KIR_ARGMIN: feed_arg(s, (kir_reduce)in->kind, t, x); break;
    default: feed_lanes(s, (kir_reduce)in->kind, t, x);
    }
    s->count++;
}

static void run_scan(interp *m, int i, const kir_ins *in) {
    state *s = &m->states[m->state_of[i]];
    s->lanes[0] = kir_combine((kir_reduce)in->kind, (kir_type)in->type, s->lanes[0], m->values[in->a]);
    m->values[i] = s->lanes[0];
}

static kir_value finished_reduction(state *s, const kir_ins *in) {
    kir_type t = (kir_type)in->type;
    switch (in->kind) {
    case KIR_CHAIN:
        if (s->count > 0) add_to_total(s, KIR_SUM, t, s->lanes[0]);
        return s->total;
    case KIR_SEQ: return s->lanes[0];
    case KIR_ARGMAX:
    case KIR_ARGMIN:
        if (in->type == KIR_I32) return (kir_value){.i32 = (int32_t)s->best_index};
        return (kir_value){.i64 = s->best_index};
    default:
        if (s->count > 0) fold_lanes(s, (kir_reduce)in->kind, t);
        return s->total;
    }
}

/* ---- matrices and packets ---------------------------------------------------------------------------------------- */

static matrix *matrix_at(const interp *m, kir_val v) {
    return &m->matrices[(size_t)(m->item / m->lanes) * (size_t)m->n_matrices + (size_t)m->matrix_of[v]];
}

static packet *packet_at(const interp *m, kir_val v) {
    return &m->packets[(size_t)m->item * (size_t)m->n_packets + (size_t)m->matrix_of[v]];
}

/* The first item of a subgroup executes for all of it, so the operand must be equal in every item. */
static bool agreed(interp *m, int i, kir_val v) {
    if (v == KIR_NONE) return true;
    bool mask = m->p->ins[v].type == KIR_BOOL;
    for (int lane = 1; lane < m->lanes; lane++) {
        const kir_value *first = &m->values[v], *other = first + (size_t)lane * (size_t)m->p->n_ins;
        if (mask ? first->b == other->b : first->i64 == other->i64) continue;
        m->status =
            tn_fail(TN_ERR_ARGUMENT, "kernel program, instruction %d (%s), item %d: its operand differs from item %d's",
                    i, kir_op_name((kir_op)m->p->ins[i].op), m->item + lane, m->item);
        return false;
    }
    return true;
}

/* Element `at` of line `line` of what instruction i touches. */
static uint8_t *in_line(interp *m, int i, int line, int at, tn_dtype *dtype) {
    const kir_ins *in = &m->p->ins[i];
    int64_t first = element_of(m, in);
    if (first % KIR_LINE_UNIT != 0) {
        m->status = broken(m, i, first, "no multiple of 8 elements");
        return NULL;
    }
    return element_at(m, i, first + (int64_t)line * kir_line(in) + at, dtype);
}

/* A factor's element as matrix units take it. */
static float factor_of(tn_dtype dtype, const uint8_t *at) {
    float x = load_element(dtype, at).f32;
    uint32_t bits;
    if (dtype != TN_F32) return x;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Element (row, column) of a first factor has k = column; of a second factor k = row. */
static void run_fragment(interp *m, int i, const kir_ins *in) {
    bool rows = (in->kind & KIR_FACTOR_B) == 0 ? in->kind & KIR_ALONG_K : !(in->kind & KIR_ALONG_K);
    if (!agreed(m, i, m->p->access[in->imm.i].dyn)) return;
    for (int line = 0; line < KIR_EDGE; line++) {
        for (int at = 0; at < KIR_EDGE; at++) {
            tn_dtype dtype;
            const uint8_t *from = in_line(m, i, line, at, &dtype);
            if (!from) return;
            (*matrix_at(m, (kir_val)i))[rows ? line : at][rows ? at : line] = factor_of(dtype, from);
        }
    }
}

static void run_matrix_store(interp *m, int i, const kir_ins *in) {
    if (!agreed(m, i, m->p->access[in->imm.i].dyn) || !agreed(m, i, in->b)) return;
    if (in->b != KIR_NONE && !m->values[in->b].b) return;
    for (int row = 0; row < KIR_EDGE; row++) {
        for (int column = 0; column < KIR_EDGE; column++) {
            tn_dtype dtype;
            uint8_t *to = in_line(m, i, row, column, &dtype);
            if (!to) return;
            store_element(dtype, to, (kir_value){.f32 = (*matrix_at(m, in->a))[row][column]});
        }
    }
}

static void run_mma(interp *m, const kir_ins *in) {
    matrix *sum = matrix_at(m, in->a), *x = matrix_at(m, in->b), *y = matrix_at(m, in->c);
    for (int row = 0; row < KIR_EDGE; row++)
        for (int column = 0; column < KIR_EDGE; column++)
            for (int k = 0; k < KIR_EDGE; k++)
                (*sum)[row][column] = fmaf((*x)[row][k], (*y)[k][column], (*sum)[row][column]);
}

static void run_fetch(interp *m, int i, const kir_ins *in) {
    packet *to = packet_at(m, (kir_val)i);
    *to = (packet){{0}};
    if (in->a != KIR_NONE && !m->values[in->a].b) return;
    int64_t first = element_of(m, in);
    for (int k = 0; k < KIR_LINE_UNIT; k++) {
        tn_dtype dtype;
        const uint8_t *from = element_at(m, i, first + k, &dtype);
        if (!from) return;
        if (k == 0 && (uintptr_t)from % sizeof *to != 0) {
            m->status = broken(m, i, first, "a packet at an address that is no multiple of 16");
            return;
        }
        memcpy(&to->e[k], from, sizeof to->e[k]);
    }
}

/* A late one leaves NaN behind until it is waited for. */
static void run_put(interp *m, int i, const kir_ins *in) {
    int64_t first = element_of(m, in);
    packet what = *packet_at(m, in->a), none;
    uint8_t *to = NULL;
    if (first % KIR_LINE_UNIT != 0) m->status = broken(m, i, first, "no multiple of 8 elements");
    for (int k = 0; k < KIR_LINE_UNIT && m->status == TN_OK; k++) {
        tn_dtype dtype;
        uint8_t *at = element_at(m, i, first + k, &dtype);
        if (k == 0) to = at;
    }
    if (m->status != TN_OK) return;
    memset(&none, 0xff, sizeof none);
    memcpy(to, in->kind ? &none : &what, sizeof what);
    if (!in->kind) return;
    m->status = tn_mem_grow(&m->late, &m->late_room, m->late_count + 1, sizeof *m->late);
    if (m->status == TN_OK) m->late[m->late_count++] = (pending){to, what, m->item, m->batches[m->item]};
}

static void run_wait(interp *m, const kir_ins *in) {
    size_t left = 0;
    for (size_t i = 0; i < m->late_count; i++) {
        const pending *l = &m->late[i];
        if (l->item == m->item && l->batch < m->batches[m->item] - in->imm.i)
            memcpy(l->to, &l->what, sizeof l->what);
        else
            m->late[left++] = *l;
    }
    m->late_count = left;
}

/* ---- wide matrices ----------------------------------------------------------------------------------------------- */

static size_t wide_at(const interp *m, kir_val v) {
    return (size_t)(m->item / m->lanes) * (size_t)m->n_matrices + (size_t)m->matrix_of[v];
}

static void run_wide_fragment(interp *m, int i, const kir_ins *in) {
    if (!agreed(m, i, m->p->access[in->imm.i].dyn)) return;
    int64_t first = m->places[wide_at(m, (kir_val)i)] = element_of(m, in);
    if (first % KIR_LINE_UNIT != 0) m->status = broken(m, i, first, "no multiple of 8 elements");
}

/* Element (across, k) of factor v, which begins at `first`; touching it says whether it is there, and no race. */
static float wide_element(interp *m, kir_val v, int64_t first, int across, int k) {
    const kir_ins *in = &m->p->ins[v];
    int line = in->kind & KIR_ALONG_K ? across : k, along = in->kind & KIR_ALONG_K ? k : across;
    tn_dtype dtype;
    int64_t at = first + (int64_t)line * KIR_LINE_UNIT + (int64_t)(along / KIR_LINE_UNIT) * kir_pitch(in);
    const uint8_t *from = m->status == TN_OK ? element_at(m, v, at + along % KIR_LINE_UNIT, &dtype) : NULL;
    return from ? load_element(dtype, from).f32 : 0;
}

/* The factors are read when the MMA is waited for. */
static void multiply_wide(interp *m, const wide_mma *w) {
    static const int K = KIR_EDGE;
    int columns = m->p->ins[w->in->a].kind * KIR_EDGE;
    float x[KIR_EDGE], y[KIR_EDGE][KIR_WIDE_COLUMNS];
    wide_matrix *sum = &m->wide[wide_at(m, w->in->a)];
    for (int e = 0; e < K * columns; e++)
        y[e / columns][e % columns] = wide_element(m, w->in->c, w->y, e % columns, e / columns);
    for (int row = 0; row < KIR_WIDE_ROWS; row++) {
        for (int k = 0; k < K; k++)
            x[k] = wide_element(m, w->in->b, w->x, row, k);
        for (int e = 0; e < K * columns; e++) {
            float *to = &(*sum)[row][e % columns];
            *to = fmaf(x[e / columns], y[e / columns][e % columns], *to);
        }
    }
}

static void run_wide_mma(interp *m, const kir_ins *in) {
    wide_mma w = {in, m->places[wide_at(m, in->b)], m->places[wide_at(m, in->c)], m->wide_batches[m->item / m->lanes],
                  m->item};
    for (int e = 0; e < KIR_WIDE_ROWS * KIR_EDGE; e++)
        (void)wide_element(m, in->b, w.x, e / KIR_EDGE, e % KIR_EDGE);
    for (int e = 0; e < m->p->ins[in->a].kind * KIR_EDGE * KIR_EDGE; e++)
        (void)wide_element(m, in->c, w.y, e / KIR_EDGE, e % KIR_EDGE);
    if (m->status == TN_OK) m->status = tn_mem_grow(&m->mmas, &m->mma_room, m->mma_count + 1, sizeof *m->mmas);
    if (m->status == TN_OK) m->mmas[m->mma_count++] = w;
}

static void run_wide_wait(interp *m, const kir_ins *in) {
    size_t left = 0;
    for (size_t i = 0; i < m->mma_count; i++) {
        const wide_mma w = m->mmas[i];
        if (w.item == m->item && w.batch < m->wide_batches[m->item / m->lanes] - in->imm.i)
            multiply_wide(m, &w);
        else
            m->mmas[left++] = w;
    }
    m->mma_count = left;
}

static void run_wide_store(interp *m, int i, const kir_ins *in) {
    int64_t first = element_of(m, in);
    if (!agreed(m, i, m->p->access[in->imm.i].dyn) || !agreed(m, i, in->b)) return;
    if (in->b != KIR_NONE && !m->values[in->b].b) return;
    for (size_t w = 0; w < m->mma_count; w++)
        if (m->mmas[w].item == m->item && m->mmas[w].in->a == in->a)
            m->status = broken(m, i, first, "of a matrix with products that nobody waited for");
    if (first % KIR_LINE_UNIT != 0) m->status = broken(m, i, first, "no multiple of 8 elements");
    for (int e = 0; e < KIR_WIDE_ROWS * KIR_EDGE && m->status == TN_OK; e++) {
        int row = e / KIR_EDGE, column = e % KIR_EDGE;
        tn_dtype dtype;
        uint8_t *to = element_at(m, i, first + (int64_t)row * kir_wide_line(in) + column, &dtype);
        float v = m->wide[wide_at(m, in->a)][row][kir_wide_column(in) + column];
        if (to) store_element(dtype, to, (kir_value){.f32 = v});
    }
}

/* By a subgroup's first item. */
static void run_wide(interp *m, int i, const kir_ins *in) {
    switch (in->op) {
    case KIR_MATRIX: memset(&m->wide[wide_at(m, (kir_val)i)], 0, sizeof *m->wide); break;
    case KIR_FRAGMENT: run_wide_fragment(m, i, in); break;
    case KIR_MMA: run_wide_mma(m, in); break;
    case KIR_COMMIT: m->wide_batches[m->item / m->lanes]++; break;
    case KIR_WAIT: run_wide_wait(m, in); break;
    default: run_wide_store(m, i, in);
    }
}

static void run_moving(interp *m, int i) {
    const kir_ins *in = &m->p->ins[i];
    bool of_matrices = (in->op == KIR_COMMIT || in->op == KIR_WAIT) && in->kind;
    switch (in->op) {
    case KIR_FETCH: run_fetch(m, i, in); return;
    case KIR_PUT: run_put(m, i, in); return;
    case KIR_COMMIT:
        if (!of_matrices) m->batches[m->item]++;
        break;
    case KIR_WAIT:
        if (!of_matrices) run_wait(m, in);
        break;
    default: of_matrices = true;
    }
    if (!of_matrices || m->item % m->lanes != 0) return;
    if (m->wide) {
        run_wide(m, i, in);
        return;
    }
    switch (in->op) {
    case KIR_MATRIX: memset(matrix_at(m, (kir_val)i), 0, sizeof(matrix)); break;
    case KIR_FRAGMENT: run_fragment(m, i, in); break;
    case KIR_MMA: run_mma(m, in); break;
    default: run_matrix_store(m, i, in);
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static kir_value scalar_of(const interp *m, const kir_ins *in) {
    kir_scalar scalar = m->launch->scalars[in->imm.i];
    if (in->type == KIR_F32) return (kir_value){.f32 = (float)scalar.f};
    if (in->type == KIR_F64) return (kir_value){.f64 = scalar.f};
    int64_t bits = m->p->words && in->kind ? scalar.i >> 32 : scalar.i;
    kir_ins as_const = {.op = KIR_CONST, .type = in->type, .imm.i = bits};
    return kir_const_value(&as_const);
}

static void run_plain(interp *m, int i, const kir_ins *in) {
    kir_value v[3] = {{.u64 = 0}, {.u64 = 0}, {.u64 = 0}};
    kir_type t = (kir_type)in->type;
    for (int k = 0; k < 3; k++) {
        kir_val operand = kir_operand(in, k);
        if (operand == KIR_NONE) continue;
        v[k] = m->values[operand];
        t = (kir_type)m->p->ins[operand].type;
    }
    kir_eval(in, t, v, &m->values[i]);
}

static void run_one(interp *m, int i) {
    const kir_ins *in = &m->p->ins[i];
    switch (in->op) {
    case KIR_CONST: m->values[i] = kir_const_value(in); break;
    case KIR_SCALAR: m->values[i] = scalar_of(m, in); break;
    case KIR_INDEX: m->values[i] = index_value(m, element_of(m, in)); break;
    case KIR_LOAD: run_load(m, i, in); break;
    case KIR_STORE: run_store(m, i, in); break;
    case KIR_REDUCE: run_reduce(m, i, in); break;
    case KIR_SCAN: run_scan(m, i, in); break;
    case KIR_VAR:
    case KIR_GET: m->values[i] = m->values[in->a]; break;
    case KIR_SET: m->values[in->a] = m->values[in->b]; break;
    default: run_plain(m, i, in);
    }
}

/* One instruction, by all items. */
static void run_all_items(interp *m, int i) {
    if (m->p->ins[i].op == KIR_BARRIER) {
        kir_shadow_barrier(m->shadow);
        return;
    }
    void (*run)(interp *, int) = m->p->ins[i].op > KIR_BARRIER ? run_moving : run_one;
    if (m->n_items > 1) go_to_item(m, 0);
    run(m, i);
    for (int item = 1; item < m->n_items && m->status == TN_OK; item++) {
        go_to_next_item(m);
        run(m, i);
    }
}

/* Steps the coordinates of axes first … first+count-1 through their extents; false after the last point. */
static bool next_point(interp *m, int first, int count) {
    for (int axis = first + count - 1; axis >= first; axis--) {
        if (++m->at[axis] < m->end[axis]) return true;
        m->at[axis] = 0;
    }
    return false;
}

static bool range_is_empty(const interp *m, int first, int count) {
    for (int axis = first; axis < first + count; axis++)
        if (m->end[axis] == 0) return true;
    return false;
}

static void run_range(interp *m, int begin, int end);

/* Applies `fn` to the reductions that belong to this loop and not to one inside it. */
static void for_own_states(interp *m, int loop, int end, void (*fn)(interp *m, int i)) {
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        uint8_t op = m->p->ins[i].op;
        depth += (op == KIR_LOOP) - (op == KIR_END);
        if (depth != 0 || (op != KIR_REDUCE && op != KIR_SCAN)) continue;
        for (int item = 0; item < m->n_items; item++) {
            go_to_item(m, item);
            fn(m, i);
        }
    }
}

static void begin_state(interp *m, int i) { state_clear(&m->states[m->state_of[i]], &m->p->ins[i]); }

static void end_state(interp *m, int i) {
    if (m->p->ins[i].op == KIR_REDUCE) m->values[i] = finished_reduction(&m->states[m->state_of[i]], &m->p->ins[i]);
}

/* Limits the loop's axis to the operand, which all items must agree on. */
static void end_axis(interp *m, int loop, int axis) {
    kir_val points = m->p->ins[loop].a;
    int64_t extent = m->launch->sizes[axis], n = index_of(m, m->all_values[points]);
    for (int item = 1; item < m->n_items && m->status == TN_OK; item++) {
        int64_t other = index_of(m, m->all_values[(size_t)item * (size_t)m->p->n_ins + (size_t)points]);
        if (other != n)
            m->status = tn_fail(TN_ERR_ARGUMENT,
                                "kernel program, instruction %d (LOOP): %lld points for item 0, %lld for item %d", loop,
                                (long long)n, (long long)other, item);
    }
    m->end[axis] = n < 0 ? 0 : n < extent ? n : extent;
}

static void run_loop(interp *m, int loop, int end) {
    int first = kir_loop_first(&m->p->ins[loop]), count = kir_loop_count(&m->p->ins[loop]);
    memcpy(m->end + first, m->launch->sizes + first, (size_t)count * sizeof *m->end);
    if (m->p->ins[loop].a != KIR_NONE) end_axis(m, loop, first);
    for_own_states(m, loop, end, begin_state);
    if (!range_is_empty(m, first, count)) {
        do {
            run_range(m, loop + 1, end);
        } while (m->status == TN_OK && next_point(m, first, count));
    }
    for_own_states(m, loop, end, end_state);
}

static void run_range(interp *m, int begin, int end) {
    for (int i = begin; i < end && m->status == TN_OK; i++) {
        if (m->p->ins[i].op != KIR_LOOP) {
            run_all_items(m, i);
            continue;
        }
        int loop_end = kir_loop_end(m->p, i);
        run_loop(m, i, loop_end);
        i = loop_end;
    }
}

static tn_status make_states(interp *m) {
    size_t items = (size_t)m->n_items;
    m->all_values = tn_mem_zalloc((size_t)m->p->n_ins * items + 1, sizeof *m->values);
    m->state_of = tn_mem_zalloc((size_t)m->p->n_ins + 1, sizeof *m->state_of);
    if (!m->all_values || !m->state_of) return TN_ERR_MEMORY;
    for (int i = 0; i < m->p->n_ins; i++) {
        uint8_t op = m->p->ins[i].op;
        if (op == KIR_REDUCE || op == KIR_SCAN) m->state_of[i] = (int16_t)m->n_states++;
    }
    m->all_states = tn_mem_zalloc((size_t)m->n_states * items + 1, sizeof *m->states);
    return m->all_states ? TN_OK : TN_ERR_MEMORY;
}

static tn_status make_wide(interp *m) {
    size_t subgroups = (size_t)(m->n_items / m->lanes), count = subgroups * (size_t)m->n_matrices + 1;
    m->wide = tn_mem_zalloc(count, sizeof *m->wide);
    m->places = tn_mem_zalloc(count, sizeof *m->places);
    m->wide_batches = tn_mem_zalloc(subgroups, sizeof *m->wide_batches);
    return m->wide && m->places && m->wide_batches ? TN_OK : TN_ERR_MEMORY;
}

static tn_status make_matrices(interp *m) {
    size_t items = (size_t)m->n_items;
    m->lanes = kir_lanes(m->p);
    if (m->lanes == 0) return TN_OK;
    m->matrix_of = tn_mem_zalloc((size_t)m->p->n_ins, sizeof *m->matrix_of);
    if (!m->matrix_of) return TN_ERR_MEMORY;
    for (int i = 0; i < m->p->n_ins; i++) {
        kir_op op = (kir_op)m->p->ins[i].op;
        if (op == KIR_MATRIX || op == KIR_FRAGMENT) m->matrix_of[i] = (int16_t)m->n_matrices++;
        if (op == KIR_FETCH) m->matrix_of[i] = (int16_t)m->n_packets++;
    }
    m->matrices = tn_mem_zalloc((size_t)m->n_matrices * (items / (size_t)m->lanes) + 1, sizeof *m->matrices);
    m->packets = tn_mem_zalloc((size_t)m->n_packets * items + 1, sizeof *m->packets);
    m->batches = tn_mem_zalloc(items, sizeof *m->batches);
    if (!m->matrices || !m->packets || !m->batches) return TN_ERR_MEMORY;
    return m->lanes == KIR_WIDE ? make_wide(m) : TN_OK;
}

/* Memory that the program writes is watched, whatever the name it is read under. */
static void choose_watched(interp *m) {
    const kir_program *p = m->p;
    for (int i = 0; i < p->n_buffers; i++) {
        m->watched[i] = p->buffer_written[i] || p->local[i] > 0;
        for (int k = 0; k < p->n_buffers && !m->watched[i]; k++) {
            bool global = p->local[k] == 0 && p->buffer_written[k];
            m->watched[i] = global && m->launch->buffers[k] == m->launch->buffers[i];
        }
    }
}

/* Local buffers follow each other, each aligned to 8 bytes. */
static tn_status make_group(interp *m) {
    if (m->p->n_items == 0) return TN_OK;
    int64_t bytes = 0;
    for (int i = 0; i < m->p->n_buffers; i++) {
        m->local_at[i] = bytes;
        bytes += (int64_t)m->p->local[i] * (int64_t)tn_dtype_size((tn_dtype)m->p->buffer_dtype[i]);
        bytes = (bytes + 7) & ~(int64_t)7;
    }
    m->local = tn_mem_zalloc((size_t)bytes + 1, 1);
    if (!m->local) return TN_ERR_MEMORY;
    choose_watched(m);
    return kir_shadow_open(m->local, bytes, &m->shadow);
}

static tn_status run_points(interp *m) {
    int outer = m->p->n_par - m->p->n_items;
    if (range_is_empty(m, 0, outer)) return TN_OK;
    do {
        if (m->shadow) kir_shadow_group(m->shadow);
        run_range(m, 0, m->p->n_ins);
        if (m->status == TN_OK && m->late_count > 0)
            m->status = tn_fail(TN_ERR_ARGUMENT, "kernel program: %zu packets at its end that nobody waited for",
                                m->late_count);
        if (m->status == TN_OK && m->mma_count > 0)
            m->status = tn_fail(TN_ERR_ARGUMENT, "kernel program: %zu products at its end that nobody waited for",
                                m->mma_count);
    } while (m->status == TN_OK && next_point(m, 0, outer));
    return m->status;
}

tn_status kir_interpret(const kir_program *p, const kir_launch *launch) {
    TRY(kir_verify(p));
    TRY(kir_check_sizes(p, launch->sizes));
    interp m = {.p = p, .launch = launch, .n_items = kir_items(p)};
    tn_status status = make_states(&m);
    if (status == TN_OK) status = make_matrices(&m);
    if (status == TN_OK) status = make_group(&m);
    if (status == TN_OK) {
        memcpy(m.end, launch->sizes, (size_t)(p->n_par + p->n_loop) * sizeof *m.end);
        go_to_item(&m, 0);
        status = run_points(&m);
    }
    kir_shadow_close(m.shadow);
    tn_mem_free_each(m.local, m.all_values, m.state_of, m.all_states);
    void *moving[] = {m.matrix_of, m.matrices, m.packets, m.batches, m.late, m.wide, m.wide_batches, m.places, m.mmas};
    for (size_t i = 0; i < TN_COUNT(moving); i++)
        tn_mem_free(moving[i]);
    return status;
}
