/* build.c — the builder: appends instructions and keeps the program small.
 *
 * Each call checks, simplifies and shares: an instruction on constants is evaluated, one that changes nothing is
 * replaced by its operand, and one that already exists, in this region or one around it, is not added again. Loads are
 * shared only inside one region and only until the next store that may change what they read; a global buffer may be
 * bound under two names, so any global store counts. kir_finish drops what nothing uses. */
#include "kir/rules.h"

#include <string.h>

enum {
    BUCKETS = 256,
    FIRST_INS = 64, /* of a builder's first block: most programs have fewer */
    FIRST_ACCESS = 16,
    FIRST_AFFINE = 64,
    ON_STACK = 512 /* instructions and accesses whose notes kir_finish keeps on the stack */
};

/* What the builder knows of an instruction: its region (number of its LOOP, -1 at the top), the epoch of what it reads
 * (see epoch_of), and the next instruction in its bucket. */
typedef struct note {
    int16_t region, epoch, next;
} note;

struct kir_builder {
    int n_par, n_loop;
    int64_t extents[KIR_MAX_AXES];
    kir_ins *ins;
    note *notes;
    kir_access *access;
    int64_t *affine; /* of each access: offset, strides */
    size_t ins_room, note_room, access_room, affine_room;
    int n_ins, n_access, n_buffers, n_scalars;
    uint8_t buffer_dtype[KIR_MAX_BUFFERS];
    bool buffer_written[KIR_MAX_BUFFERS];
    int n_items;
    int32_t local[KIR_MAX_BUFFERS];
    int16_t open[KIR_MAX_AXES + 1]; /* loops around the current place */
    int depth;
    int16_t global_stores, barriers, sets; /* of global stores, barriers and SETs so far */
    int16_t local_stores[KIR_MAX_BUFFERS];
    int16_t buckets[BUCKETS];
    const kir_program *like; /* whose accesses these are, by number; NULL: they are numbered by their first use */
    bool unverified;         /* kir_finish does not verify; kir_vm_compile does */
    tn_status status;        /* the first failure */
    char error[200];
};

/* A builder, and what its arrays are until they grow. */
typedef struct first_block {
    kir_builder b;
    kir_ins ins[FIRST_INS];
    note notes[FIRST_INS];
    kir_access access[FIRST_ACCESS];
    int64_t affine[FIRST_AFFINE];
} first_block;

/* Whether an array has left the first block. */
static bool has_grown(const kir_builder *b, const void *items) {
    const char *first = (const char *)b, *at = items;
    return at < first || at >= first + sizeof(first_block);
}

static void *copied(const void *items, size_t bytes) {
    void *copy = tn_mem_alloc(bytes);
    if (copy) memcpy(copy, items, bytes);
    return copy;
}

/* As tn_mem_grow; an array that is in the first block leaves it. */
static tn_status grow(const kir_builder *b, void *items_pointer, size_t *room, size_t need, size_t item_size) {
    if (need <= *room) return TN_OK;
    void *items;
    memcpy(&items, items_pointer, sizeof items);
    if (!has_grown(b, items)) {
        items = copied(items, *room * item_size);
        if (!items) return TN_ERR_MEMORY;
        memcpy(items_pointer, &items, sizeof items);
    }
    return tn_mem_grow(items_pointer, room, need, item_size);
}

static int axes_of(const kir_builder *b) { return b->n_par + b->n_loop; }

/* The first failure is the one reported; its text is copied, since later failures replace the thread's. */
static kir_val fail(kir_builder *b, tn_status status) {
    if (b->status != TN_OK) return KIR_NONE;
    b->status = status;
    size_t n = strlen(tn_error());
    if (n >= sizeof b->error) n = sizeof b->error - 1;
    memcpy(b->error, tn_error(), n);
    b->error[n] = '\0';
    return KIR_NONE;
}

static kir_val wrong(kir_builder *b, kir_op op, const char *what) {
    if (b->status != TN_OK) return KIR_NONE;
    return fail(b,
                tn_fail(TN_ERR_ARGUMENT, "kernel builder, %s at instruction %d: %s", kir_op_name(op), b->n_ins, what));
}

tn_status kir_begin(int n_par, int n_loop, const int64_t *extents, kir_builder **out) {
    *out = NULL;
    if (n_par < 0 || n_loop < 0 || n_par > KIR_MAX_AXES || n_loop > KIR_MAX_AXES || n_par + n_loop > KIR_MAX_AXES)
        return tn_fail(TN_ERR_ARGUMENT, "kernel builder: %d parallel and %d loop axes, at most %d in all", n_par,
                       n_loop, KIR_MAX_AXES);
    for (int i = 0; i < n_par + n_loop; i++)
        if (extents[i] < 0)
            return tn_fail(TN_ERR_ARGUMENT, "kernel builder: axis %d has %lld points", i, (long long)extents[i]);
    first_block *block = tn_mem_alloc(sizeof *block);
    if (!block) return TN_ERR_MEMORY;
    kir_builder *b = &block->b;
    memset(b, 0, sizeof *b);
    b->ins = block->ins;
    b->notes = block->notes;
    b->access = block->access;
    b->affine = block->affine;
    b->ins_room = b->note_room = FIRST_INS;
    b->access_room = FIRST_ACCESS;
    b->affine_room = FIRST_AFFINE;
    b->n_par = n_par;
    b->n_loop = n_loop;
    for (int i = 0; i < n_par + n_loop; i++)
        b->extents[i] = extents[i];
    memset(b->buckets, 0xff, sizeof b->buckets);
    *out = b;
    return TN_OK;
}

tn_status kir_begin_like(const kir_program *p, kir_builder **out) {
    int64_t extents[KIR_MAX_AXES] = {0};
    for (int k = 0; k < p->n_items; k++)
        extents[p->n_par - p->n_items + k] = p->item[k];
    TRY(kir_begin(p->n_par, p->n_loop, extents, out));
    kir_builder *b = *out;
    tn_status status = grow(b, &b->access, &b->access_room, (size_t)p->n_access + 1, sizeof *b->access);
    if (status != TN_OK) {
        kir_abandon(b);
        *out = NULL;
        return status;
    }
    memcpy(b->buffer_dtype, p->buffer_dtype, sizeof b->buffer_dtype);
    memcpy(b->buffer_written, p->buffer_written, sizeof b->buffer_written);
    memcpy(b->local, p->local, sizeof b->local);
    if (p->n_access) memcpy(b->access, p->access, (size_t)p->n_access * sizeof *b->access);
    for (int i = 0; i < p->n_access; i++)
        b->access[i].dyn = KIR_NONE;
    b->like = p;
    b->n_items = p->n_items;
    b->n_buffers = p->n_buffers;
    b->n_scalars = p->n_scalars;
    b->n_access = p->n_access;
    return TN_OK;
}

void kir_abandon(kir_builder *b) {
    if (!b) return;
    if (has_grown(b, b->ins)) tn_mem_free(b->ins);
    if (has_grown(b, b->notes)) tn_mem_free(b->notes);
    if (has_grown(b, b->access)) tn_mem_free(b->access);
    if (has_grown(b, b->affine)) tn_mem_free(b->affine);
    tn_mem_free(b);
}

int kir_buffer(kir_builder *b, tn_dtype dtype) {
    if (b->status != TN_OK) return 0;
    if (b->n_buffers == KIR_MAX_BUFFERS || kir_type_of(dtype) == KIR_TYPE_COUNT) {
        fail(b, tn_fail(TN_ERR_ARGUMENT, "kernel builder: buffer %d of dtype %s; at most %d buffers of known dtypes",
                        b->n_buffers, tn_dtype_name(dtype), KIR_MAX_BUFFERS));
        return 0;
    }
    b->buffer_dtype[b->n_buffers] = (uint8_t)dtype;
    return b->n_buffers++;
}

void kir_group(kir_builder *b, int n_items) {
    if (b->status != TN_OK) return;
    bool fits = n_items > 0 && n_items <= KIR_MAX_ITEM_AXES && n_items <= b->n_par && b->n_ins == 0 && !b->n_items;
    int64_t items = 1;
    for (int k = 0; fits && k < n_items; k++) {
        int64_t extent = b->extents[b->n_par - n_items + k];
        fits = extent > 0 && extent <= KIR_MAX_ITEMS / items;
        items *= extent;
    }
    if (fits)
        b->n_items = n_items;
    else
        wrong(b, KIR_BARRIER, "a workgroup of no or too many items, or declared too late");
}

int kir_local(kir_builder *b, tn_dtype dtype, int64_t elements) {
    int buffer = kir_buffer(b, dtype);
    if (b->status != TN_OK) return 0;
    if (b->n_items == 0 || elements <= 0 || elements > KIR_MAX_LOCAL) {
        fail(b, tn_fail(TN_ERR_ARGUMENT,
                        "kernel builder: local buffer %d of %lld elements; between 1 and %d, in a group program",
                        buffer, (long long)elements, KIR_MAX_LOCAL));
        return 0;
    }
    b->local[buffer] = (int32_t)elements;
    return buffer;
}

/* ---- appending and sharing --------------------------------------------------------------------------------------- */

static int16_t region_of(const kir_builder *b) { return b->depth > 0 ? b->open[b->depth - 1] : (int16_t)-1; }

static bool region_is_open(const kir_builder *b, int16_t region) {
    for (int i = 0; i < b->depth; i++)
        if (b->open[i] == region) return true;
    return region == -1;
}

static int16_t region_around(const kir_builder *b, int16_t loop) { return b->notes[loop].region; }

static bool visible(const kir_builder *b, kir_val v) {
    if (v < 0 || v >= b->n_ins || !kir_yields((kir_op)b->ins[v].op) || kir_names((kir_op)b->ins[v].op)) return false;
    int16_t region = b->notes[v].region;
    if (b->ins[v].op != KIR_REDUCE) return region_is_open(b, region);
    return !region_is_open(b, region) && region_is_open(b, region_around(b, region));
}

static unsigned bucket_of(const kir_ins *in) {
    uint64_t h = (uint64_t)in->op | (uint64_t)in->type << 8 | (uint64_t)in->kind << 16;
    h = h * 31 + (uint16_t)in->a;
    h = h * 31 + (uint16_t)in->b;
    h = h * 31 + (uint16_t)in->c;
    h = (h ^ (uint64_t)in->imm.i) * 0x9E3779B97F4A7C15U;
    return (unsigned)(h >> 56) % BUCKETS;
}

static bool same(const kir_ins *x, const kir_ins *y) {
    return x->op == y->op && x->type == y->type && x->kind == y->kind && x->a == y->a && x->b == y->b && x->c == y->c &&
           x->imm.i == y->imm.i;
}

/* While this number does not change, a LOAD or GET reads the same value within a region. */
static int16_t epoch_of(const kir_builder *b, const kir_ins *in) {
    if (in->op == KIR_GET) return b->sets;
    if (in->op != KIR_LOAD) return 0;
    int buffer = b->access[in->imm.i].buffer;
    if (b->local[buffer] > 0) return (int16_t)(b->local_stores[buffer] + b->barriers);
    return b->buffer_written[buffer] ? (int16_t)(b->global_stores + b->barriers) : b->global_stores;
}

/* Whether v is the name of such an operation and is visible here. */
static bool is_name(const kir_builder *b, kir_val v, kir_op op) {
    return v >= 0 && v < b->n_ins && b->ins[v].op == op && region_is_open(b, b->notes[v].region);
}

/* Whether instruction `v`, equal to one about to be appended, can be used instead. */
static bool reusable(const kir_builder *b, kir_val v) {
    if (b->ins[v].op > KIR_BARRIER) return false;
    switch (b->ins[v].op) {
    case KIR_STORE:
    case KIR_LOOP:
    case KIR_END:
    case KIR_VAR:
    case KIR_SET:
    case KIR_BARRIER: return false;
    case KIR_LOAD:
    case KIR_GET: return b->notes[v].region == region_of(b) && b->notes[v].epoch == epoch_of(b, &b->ins[v]);
    case KIR_REDUCE:
    case KIR_SCAN: return b->notes[v].region == region_of(b);
    default: return region_is_open(b, b->notes[v].region);
    }
}

static kir_val append_ins(kir_builder *b, const kir_ins *in) {
    if (b->status != TN_OK) return KIR_NONE;
    unsigned bucket = bucket_of(in);
    for (int16_t v = b->buckets[bucket]; v >= 0; v = b->notes[v].next)
        if (same(&b->ins[v], in) && reusable(b, v)) return v;
    if (b->n_ins == (b->like ? KIR_MAX_LEGAL_INS : KIR_MAX_INS))
        return wrong(b, (kir_op)in->op, "the program has too many instructions");
    size_t need = (size_t)b->n_ins + 1;
    tn_status status = grow(b, &b->ins, &b->ins_room, need, sizeof *b->ins);
    if (status == TN_OK) status = grow(b, &b->notes, &b->note_room, need, sizeof *b->notes);
    if (status != TN_OK) return fail(b, status);
    b->ins[b->n_ins] = *in;
    b->notes[b->n_ins] = (note){region_of(b), epoch_of(b, in), b->buckets[bucket]};
    b->buckets[bucket] = (int16_t)b->n_ins;
    return (kir_val)b->n_ins++;
}

/* Appends after checking operands and types. */
static kir_val append_checked(kir_builder *b, const kir_ins *in) {
    kir_type types[3] = {KIR_TYPE_COUNT, KIR_TYPE_COUNT, KIR_TYPE_COUNT};
    if (b->status != TN_OK) return KIR_NONE;
    for (int k = 0; k < 3; k++) {
        kir_val v = kir_operand(in, k);
        if (v == KIR_NONE) continue;
        kir_op name = kir_wants((kir_op)in->op, k);
        if (name == KIR_CONST ? !visible(b, v) : !is_name(b, v, name))
            return wrong(b, (kir_op)in->op, "an operand that is no value here");
        types[k] = (kir_type)b->ins[v].type;
    }
    const char *error = kir_type_error(in, types, b->like && b->like->words);
    return error ? wrong(b, (kir_op)in->op, error) : append_ins(b, in);
}

int kir_axes(const kir_builder *b) { return axes_of(b); }

kir_type kir_val_type(const kir_builder *b, kir_val v) {
    return v >= 0 && v < b->n_ins ? (kir_type)b->ins[v].type : KIR_F32;
}

/* ---- constants and simplification -------------------------------------------------------------------------------- */

static kir_val add_constant(kir_builder *b, kir_type t, kir_value v) {
    kir_ins in = kir_const_ins(t, v);
    return append_ins(b, &in);
}

static kir_val constant_cast(kir_builder *b, kir_type to, kir_type from, kir_value v) {
    kir_ins cast = {.op = KIR_CAST, .type = (uint8_t)to, .a = KIR_NONE, .b = KIR_NONE, .c = KIR_NONE};
    if ((unsigned)to >= KIR_TYPE_COUNT) return wrong(b, KIR_CONST, "no such type");
    kir_eval(&cast, from, (kir_value[3]){v}, &v);
    return add_constant(b, to, v);
}

kir_val kir_const(kir_builder *b, kir_type t, double v) { return constant_cast(b, t, KIR_F64, (kir_value){.f64 = v}); }

kir_val kir_const_i(kir_builder *b, kir_type t, int64_t v) {
    return constant_cast(b, t, KIR_I64, (kir_value){.i64 = v});
}

static bool is_const(const kir_builder *b, kir_val v) { return v != KIR_NONE && b->ins[v].op == KIR_CONST; }

/* Is v the constant x, to the bit (so that 0 and -0 differ)? */
static bool is_number(const kir_builder *b, kir_val v, double x) {
    if (!is_const(b, v)) return false;
    const kir_ins *in = &b->ins[v];
    if (kir_is_float((kir_type)in->type)) return memcmp(&in->imm.f, &x, sizeof x) == 0;
    return x == (double)(int64_t)x && in->imm.i == (int64_t)x;
}

static bool commutes(kir_op op) {
    return op == KIR_ADD || op == KIR_MUL || op == KIR_AND || op == KIR_OR || op == KIR_XOR || op == KIR_EQ;
}

static bool is_type(const kir_builder *b, kir_val v, int type) { return b->ins[v].type == type; }

/* The operation's value if it is one of its operands, else KIR_NONE. -0 is the neutral element of float addition. */
static kir_val neutral_operand(const kir_builder *b, const kir_ins *in) {
    bool whole = !kir_is_float((kir_type)in->type);
    kir_val x = in->a, y = in->b;
    switch (in->op) {
    case KIR_ADD: return is_number(b, y, whole ? 0.0 : -0.0) ? x : KIR_NONE;
    case KIR_SUB:
    case KIR_SHL:
    case KIR_SHR:
    case KIR_XOR: return is_number(b, y, 0.0) ? x : KIR_NONE;
    case KIR_DIV: return is_number(b, y, 1.0) ? x : KIR_NONE;
    case KIR_BITCAST: return b->ins[x].op == KIR_BITCAST && is_type(b, b->ins[x].a, in->type) ? b->ins[x].a : KIR_NONE;
    case KIR_MUL:
        if (is_number(b, y, 1.0)) return x;
        return whole && is_number(b, y, 0.0) ? y : KIR_NONE;
    case KIR_AND:
        if (x == y || (in->type == KIR_BOOL && is_number(b, y, 1.0))) return x;
        return is_number(b, y, 0.0) ? y : KIR_NONE;
    case KIR_OR:
        if (x == y || is_number(b, y, 0.0)) return x;
        return in->type == KIR_BOOL && is_number(b, y, 1.0) ? y : KIR_NONE;
    case KIR_SELECT:
        if (is_const(b, x)) return b->ins[x].imm.i ? in->b : in->c;
        return in->b == in->c ? in->b : KIR_NONE;
    default: return KIR_NONE;
    }
}

/* Appends a pure operation, or finds that it is a constant, an operand, or there already. */
static kir_val pure(kir_builder *b, kir_ins in) {
    if (b->status != TN_OK) return KIR_NONE;
    int arity = kir_arity(&in);
    kir_value values[3] = {{.u64 = 0}, {.u64 = 0}, {.u64 = 0}};
    kir_type types[3] = {KIR_TYPE_COUNT, KIR_TYPE_COUNT, KIR_TYPE_COUNT};
    bool all_const = true;
    for (int k = 0; k < arity; k++) {
        kir_val v = kir_operand(&in, k);
        if (!visible(b, v)) return wrong(b, (kir_op)in.op, "an operand that is no value here");
        types[k] = (kir_type)b->ins[v].type;
        if (is_const(b, v))
            values[k] = kir_const_value(&b->ins[v]);
        else
            all_const = false;
    }
    const char *error = kir_type_error(&in, types, b->like && b->like->words);
    if (error) return wrong(b, (kir_op)in.op, error);
    if (all_const && kir_eval(&in, types[arity - 1], values, &values[0]))
        return add_constant(b, (kir_type)in.type, values[0]);
    if (commutes((kir_op)in.op) && (is_const(b, in.a) || (in.a > in.b && !is_const(b, in.b)))) {
        kir_val swap = in.a;
        in.a = in.b;
        in.b = swap;
    }
    kir_val same_as = neutral_operand(b, &in);
    return same_as != KIR_NONE ? same_as : append_ins(b, &in);
}

static kir_ins make_ins(kir_op op, kir_type t, kir_val a, kir_val c, kir_val d) {
    return (kir_ins){.op = (uint8_t)op, .type = (uint8_t)t, .a = a, .b = c, .c = d, .imm.i = 0};
}

static kir_val refuse_missing(kir_builder *b, kir_op op) { return wrong(b, op, "an operand that is no value here"); }

kir_val kir_unary(kir_builder *b, kir_op op, kir_val a) {
    if (a < 0 || !kir_op_takes(op, 1) || op == KIR_ROUND || op == KIR_CAST) return refuse_missing(b, op);
    return pure(b, make_ins(op, kir_val_type(b, a), a, KIR_NONE, KIR_NONE));
}

kir_val kir_rounding(kir_builder *b, kir_round mode, kir_val a) {
    if (a < 0 || (unsigned)mode > KIR_NEAREST_EVEN) return refuse_missing(b, KIR_ROUND);
    if (!kir_is_float(kir_val_type(b, a)) && kir_val_type(b, a) != KIR_BOOL) return a;
    kir_ins in = make_ins(KIR_ROUND, kir_val_type(b, a), a, KIR_NONE, KIR_NONE);
    in.imm.i = mode;
    return pure(b, in);
}

kir_val kir_binary(kir_builder *b, kir_op op, kir_val a, kir_val c) {
    if (a < 0 || c < 0 || !kir_op_takes(op, 2)) return refuse_missing(b, op);
    bool compares = op == KIR_EQ || op == KIR_LT || op == KIR_LE;
    return pure(b, make_ins(op, compares ? KIR_BOOL : kir_val_type(b, a), a, c, KIR_NONE));
}

kir_val kir_fma(kir_builder *b, kir_val a, kir_val c, kir_val d) {
    if (a < 0 || c < 0 || d < 0) return refuse_missing(b, KIR_FMA);
    return pure(b, make_ins(KIR_FMA, kir_val_type(b, a), a, c, d));
}

kir_val kir_select(kir_builder *b, kir_val cond, kir_val yes, kir_val no) {
    if (cond < 0 || yes < 0 || no < 0) return refuse_missing(b, KIR_SELECT);
    return pure(b, make_ins(KIR_SELECT, kir_val_type(b, yes), cond, yes, no));
}

kir_val kir_cast(kir_builder *b, kir_type t, kir_val a) {
    if (a < 0) return refuse_missing(b, KIR_CAST);
    if (b->status == TN_OK && kir_val_type(b, a) == t) return a;
    return pure(b, make_ins(KIR_CAST, t, a, KIR_NONE, KIR_NONE));
}

kir_val kir_bitcast(kir_builder *b, kir_type t, kir_val a) {
    if (a < 0) return refuse_missing(b, KIR_BITCAST);
    if (b->status == TN_OK && kir_val_type(b, a) == t) return a;
    return pure(b, make_ins(KIR_BITCAST, t, a, KIR_NONE, KIR_NONE));
}

kir_val kir_philox(kir_builder *b, kir_val key, kir_val counter) {
    if (key < 0 || counter < 0) return refuse_missing(b, KIR_PHILOX);
    return pure(b, make_ins(KIR_PHILOX, KIR_U32, key, counter, KIR_NONE));
}

kir_val kir_scalar_value(kir_builder *b, kir_type t, int scalar) {
    if (scalar < 0 || scalar >= INT16_MAX) return wrong(b, KIR_SCALAR, "a runtime scalar outside its limits");
    kir_ins in = make_ins(KIR_SCALAR, t, KIR_NONE, KIR_NONE, KIR_NONE);
    in.imm.i = scalar;
    kir_val v = append_checked(b, &in);
    if (v != KIR_NONE && scalar >= b->n_scalars) b->n_scalars = scalar + 1;
    return v;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int64_t *affine_of(const kir_builder *b, int access) {
    return b->affine + (size_t)access * (size_t)(axes_of(b) + 1);
}

static bool same_affine(const kir_builder *b, const int64_t *mine, const kir_aff *index) {
    if (mine[0] != index->c) return false;
    return memcmp(mine + 1, index->s, (size_t)axes_of(b) * sizeof *mine) == 0;
}

static int new_access(kir_builder *b, int buffer, const kir_aff *index) {
    size_t width = (size_t)(axes_of(b) + 1), need = (size_t)b->n_access + 1;
    if (b->n_access == KIR_MAX_INS) return wrong(b, KIR_LOAD, "the program has too many accesses");
    tn_status status = grow(b, &b->access, &b->access_room, need, sizeof *b->access);
    if (status == TN_OK) status = grow(b, &b->affine, &b->affine_room, need * width, sizeof *b->affine);
    if (status != TN_OK) return fail(b, status);
    b->access[b->n_access] = (kir_access){.buffer = (int16_t)buffer, .dyn = index->dyn};
    int64_t *affine = affine_of(b, b->n_access);
    affine[0] = index->c;
    memcpy(affine + 1, index->s, (width - 1) * sizeof *affine);
    return b->n_access++;
}

/* The number of this access, shared with an equal one; KIR_NONE after a failure. */
static int access_of(kir_builder *b, kir_op op, int buffer, const kir_aff *index) {
    if (b->status != TN_OK) return KIR_NONE;
    bool is_index = op == KIR_INDEX;
    if (!is_index && (buffer < 0 || buffer >= b->n_buffers)) return wrong(b, op, "no such buffer");
    if (index->dyn != KIR_NONE) {
        if (!visible(b, index->dyn)) return wrong(b, op, "a computed index that is no value here");
        if (b->ins[index->dyn].type != KIR_I64) return wrong(b, op, "a computed index that is not i64");
    }
    for (int i = 0; i < b->n_access; i++) {
        const kir_access *a = &b->access[i];
        if (a->buffer == buffer && a->dyn == index->dyn && same_affine(b, affine_of(b, i), index)) return i;
    }
    return new_access(b, buffer, index);
}

kir_val kir_index(kir_builder *b, const kir_aff *index) {
    kir_ins in = make_ins(KIR_INDEX, KIR_I64, KIR_NONE, KIR_NONE, KIR_NONE);
    in.imm.i = access_of(b, KIR_INDEX, -1, index);
    return append_checked(b, &in);
}

kir_val kir_load(kir_builder *b, int buffer, const kir_aff *index, kir_val mask) {
    int access = access_of(b, KIR_LOAD, buffer, index);
    if (b->status != TN_OK) return KIR_NONE;
    if (is_const(b, mask) && b->ins[mask].type == KIR_BOOL && b->ins[mask].imm.i) mask = KIR_NONE;
    kir_ins in = make_ins(KIR_LOAD, kir_type_of((tn_dtype)b->buffer_dtype[buffer]), mask, KIR_NONE, KIR_NONE);
    in.imm.i = access;
    return append_checked(b, &in);
}

static void append_store(kir_builder *b, const kir_ins *in) {
    int buffer = b->access[in->imm.i].buffer;
    append_checked(b, in);
    b->buffer_written[buffer] = true;
    (*(b->local[buffer] > 0 ? &b->local_stores[buffer] : &b->global_stores))++;
}

void kir_store(kir_builder *b, int buffer, const kir_aff *index, kir_val value, kir_val mask) {
    int access = access_of(b, KIR_STORE, buffer, index);
    if (b->status != TN_OK) return;
    value = kir_cast(b, kir_type_of((tn_dtype)b->buffer_dtype[buffer]), value);
    if (b->status != TN_OK) return;
    if (is_const(b, mask) && b->ins[mask].type == KIR_BOOL && b->ins[mask].imm.i) mask = KIR_NONE;
    kir_ins in = make_ins(KIR_STORE, kir_val_type(b, value), value, mask, KIR_NONE);
    in.imm.i = access;
    append_store(b, &in);
}

/* ---- variables and barriers -------------------------------------------------------------------------------------- */

kir_val kir_var(kir_builder *b, kir_val init) {
    if (init < 0) return refuse_missing(b, KIR_VAR);
    kir_ins in = make_ins(KIR_VAR, kir_val_type(b, init), init, KIR_NONE, KIR_NONE);
    return append_checked(b, &in);
}

kir_val kir_get(kir_builder *b, kir_val var) {
    if (!is_name(b, var, KIR_VAR)) return wrong(b, KIR_GET, "no variable here");
    kir_ins in = make_ins(KIR_GET, kir_val_type(b, var), var, KIR_NONE, KIR_NONE);
    return append_checked(b, &in);
}

void kir_set(kir_builder *b, kir_val var, kir_val value) {
    if (!is_name(b, var, KIR_VAR) || value < 0) {
        wrong(b, KIR_SET, "no variable, or no value, here");
        return;
    }
    kir_ins in = make_ins(KIR_SET, kir_val_type(b, var), var, value, KIR_NONE);
    append_checked(b, &in);
    b->sets++;
}

void kir_barrier(kir_builder *b) {
    if (b->n_items == 0) {
        wrong(b, KIR_BARRIER, "in a program without workgroups");
        return;
    }
    kir_ins in = make_ins(KIR_BARRIER, KIR_F32, KIR_NONE, KIR_NONE, KIR_NONE);
    append_checked(b, &in);
    b->barriers++;
}

/* ---- matrices and packets ---------------------------------------------------------------------------------------- */

/* One of the operations that only groups have, on an access unless its buffer is KIR_NONE. */
static kir_val append_matrix(kir_builder *b, kir_op op, int buffer, const kir_aff *index, int kind, kir_val a,
                             kir_val c) {
    if (b->status != TN_OK) return KIR_NONE;
    if (b->n_items == 0) return wrong(b, op, "in a program without workgroups");
    kir_ins in = make_ins(op, KIR_F32, a, c, KIR_NONE);
    in.kind = (uint8_t)kind;
    if (buffer != KIR_NONE) in.imm.i = access_of(b, op, buffer, index);
    if (b->status != TN_OK) return KIR_NONE;
    if (!kir_writes(op)) return append_checked(b, &in);
    append_store(b, &in);
    return KIR_NONE;
}

static int line_bits(kir_builder *b, kir_op op, int line) {
    if (line >= KIR_EDGE && line % KIR_LINE_UNIT == 0 && line / KIR_LINE_UNIT < 256 >> KIR_LINE_SHIFT)
        return line / KIR_LINE_UNIT << KIR_LINE_SHIFT;
    return wrong(b, op, "a line that is not a multiple of 8 elements from 16 to 504");
}

kir_val kir_matrix(kir_builder *b) { return append_matrix(b, KIR_MATRIX, KIR_NONE, NULL, 0, KIR_NONE, KIR_NONE); }

kir_val kir_fragment(kir_builder *b, int buffer, const kir_aff *index, int factor, int line) {
    int kind = factor | line_bits(b, KIR_FRAGMENT, line);
    return append_matrix(b, KIR_FRAGMENT, buffer, index, kind, KIR_NONE, KIR_NONE);
}

void kir_mma(kir_builder *b, kir_val matrix, kir_val x, kir_val y) {
    if (matrix < 0 || x < 0 || y < 0) {
        (void)refuse_missing(b, KIR_MMA);
        return;
    }
    kir_ins in = make_ins(KIR_MMA, KIR_F32, matrix, x, y);
    append_checked(b, &in);
}

void kir_matrix_store(kir_builder *b, int buffer, const kir_aff *index, int line, kir_val matrix, kir_val mask) {
    if (matrix < 0)
        (void)refuse_missing(b, KIR_MATRIX_STORE);
    else
        append_matrix(b, KIR_MATRIX_STORE, buffer, index, line_bits(b, KIR_MATRIX_STORE, line), matrix, mask);
}

kir_val kir_fetch(kir_builder *b, int buffer, const kir_aff *index, kir_val mask) {
    return append_matrix(b, KIR_FETCH, buffer, index, 0, mask, KIR_NONE);
}

void kir_put(kir_builder *b, int buffer, const kir_aff *index, kir_val packet, bool late) {
    if (packet < 0)
        (void)refuse_missing(b, KIR_PUT);
    else
        append_matrix(b, KIR_PUT, buffer, index, late, packet, KIR_NONE);
}

void kir_commit(kir_builder *b) { append_matrix(b, KIR_COMMIT, KIR_NONE, NULL, 0, KIR_NONE, KIR_NONE); }

static void append_wait(kir_builder *b, int kind, int under_way) {
    kir_ins in = make_ins(KIR_WAIT, KIR_F32, KIR_NONE, KIR_NONE, KIR_NONE);
    in.kind = (uint8_t)kind;
    in.imm.i = under_way;
    append_checked(b, &in);
}

void kir_wait(kir_builder *b, int under_way) { append_wait(b, 0, under_way); }

kir_val kir_wide_matrix(kir_builder *b, int columns) {
    return append_matrix(b, KIR_MATRIX, KIR_NONE, NULL, columns / KIR_EDGE, KIR_NONE, KIR_NONE);
}

kir_val kir_wide_fragment(kir_builder *b, int buffer, const kir_aff *index, int factor, int lines) {
    int kind = factor | __builtin_ctz((unsigned)lines) << KIR_LINE_SHIFT;
    return append_matrix(b, KIR_FRAGMENT, buffer, index, kind, KIR_NONE, KIR_NONE);
}

void kir_wide_store(kir_builder *b, int buffer, const kir_aff *index, int line, kir_val matrix, int column,
                    kir_val mask) {
    int kind = column / KIR_EDGE | line / KIR_LINE_UNIT << KIR_WIDE_SHIFT;
    if (matrix < 0)
        (void)refuse_missing(b, KIR_MATRIX_STORE);
    else
        append_matrix(b, KIR_MATRIX_STORE, buffer, index, kind, matrix, mask);
}

void kir_wide_commit(kir_builder *b) { append_matrix(b, KIR_COMMIT, KIR_NONE, NULL, 1, KIR_NONE, KIR_NONE); }

void kir_wide_wait(kir_builder *b, int under_way) { append_wait(b, 1, under_way); }

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static bool axis_is_open(const kir_builder *b, int first, int count) {
    for (int i = 0; i < b->depth; i++) {
        const kir_ins *loop = &b->ins[b->open[i]];
        int start = kir_loop_first(loop), end = start + kir_loop_count(loop);
        if (first < end && start < first + count) return true;
    }
    return false;
}

static void open_loop(kir_builder *b, int first_axis, int count, kir_val points) {
    if (first_axis < b->n_par || count < 0 || count > KIR_MAX_AXES || first_axis + count > axes_of(b)) {
        wrong(b, KIR_LOOP, "a range that is not one of loop axes");
        return;
    }
    if (axis_is_open(b, first_axis, count) || b->depth == KIR_MAX_AXES) {
        wrong(b, KIR_LOOP, "an axis that a loop around it runs over already");
        return;
    }
    kir_ins in = make_ins(KIR_LOOP, KIR_F32, points, KIR_NONE, KIR_NONE);
    in.imm.i = first_axis | count << 8;
    kir_val loop = append_checked(b, &in);
    if (loop != KIR_NONE) b->open[b->depth++] = loop;
}

void kir_loop(kir_builder *b, int first_axis, int count) {
    if (b->status == TN_OK) open_loop(b, first_axis, count, KIR_NONE);
}

void kir_loop_until(kir_builder *b, int axis, kir_val points) {
    if (b->status != TN_OK) return;
    if (points < 0)
        (void)refuse_missing(b, KIR_LOOP);
    else
        open_loop(b, axis, 1, points);
}

void kir_end(kir_builder *b) {
    if (b->status != TN_OK) return;
    if (b->depth == 0) {
        wrong(b, KIR_END, "no loop to end");
        return;
    }
    b->depth--;
    kir_ins in = make_ins(KIR_END, KIR_F32, KIR_NONE, KIR_NONE, KIR_NONE);
    append_checked(b, &in);
}

kir_val kir_append(kir_builder *b, const kir_ins *in, kir_val dyn) {
    if (b->status != TN_OK) return KIR_NONE;
    if (kir_has_access((kir_op)in->op)) b->access[in->imm.i].dyn = dyn;
    switch (in->op) {
    case KIR_STORE:
    case KIR_PUT:
    case KIR_MATRIX_STORE: append_store(b, in); return KIR_NONE;
    case KIR_MMA:
    case KIR_COMMIT:
    case KIR_WAIT: append_checked(b, in); return KIR_NONE;
    case KIR_SET: kir_set(b, in->a, in->b); return KIR_NONE;
    case KIR_LOOP: open_loop(b, kir_loop_first(in), kir_loop_count(in), in->a); return KIR_NONE;
    case KIR_END: kir_end(b); return KIR_NONE;
    case KIR_BARRIER: kir_barrier(b); return KIR_NONE;
    default: return in->op >= KIR_NEG && in->op <= KIR_PHILOX ? pure(b, *in) : append_checked(b, in);
    }
}

kir_val kir_reduce_value(kir_builder *b, kir_reduce kind, kir_val a, kir_val c) {
    if (b->status != TN_OK) return KIR_NONE;
    if (a < 0 || (kind == KIR_CHAIN) != (c != KIR_NONE)) return refuse_missing(b, KIR_REDUCE);
    if (b->depth == 0) return wrong(b, KIR_REDUCE, "outside a loop");
    bool arg = kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    kir_ins in = make_ins(KIR_REDUCE, arg ? KIR_I64 : kir_val_type(b, a), a, c, KIR_NONE);
    in.kind = (uint8_t)kind;
    return append_checked(b, &in);
}

kir_val kir_scan(kir_builder *b, kir_reduce kind, kir_val a) {
    if (b->status != TN_OK) return KIR_NONE;
    if (a < 0) return refuse_missing(b, KIR_SCAN);
    if (b->depth == 0) return wrong(b, KIR_SCAN, "outside a loop");
    kir_ins in = make_ins(KIR_SCAN, kir_val_type(b, a), a, KIR_NONE, KIR_NONE);
    in.kind = (uint8_t)kind;
    return append_checked(b, &in);
}

/* ---- finishing --------------------------------------------------------------------------------------------------- */

static void mark_operands(const kir_builder *b, const kir_ins *in, bool *live) {
    for (int k = 0; k < 3; k++)
        if (kir_operand(in, k) != KIR_NONE) live[kir_operand(in, k)] = true;
    if (kir_has_access((kir_op)in->op) && b->access[in->imm.i].dyn != KIR_NONE) live[b->access[in->imm.i].dyn] = true;
}

/* Whether it has an effect by itself. A SET has one if its variable is read, an MMA if its matrix is stored. */
static bool is_effect(const kir_ins *in, const bool *live) {
    if (in->op == KIR_SET || in->op == KIR_MMA) return live[in->a];
    return kir_writes((kir_op)in->op) || in->op == KIR_BARRIER || in->op == KIR_COMMIT || in->op == KIR_WAIT;
}

/* Marks what effects need, backwards; a loop lives when anything in it does. Returns how many live. */
static int mark_backwards(const kir_builder *b, bool *live) {
    int16_t loops[KIR_MAX_AXES + 1];
    int depth = 0, count = 0;
    for (int i = b->n_ins - 1; i >= 0; i--) {
        const kir_ins *in = &b->ins[i];
        if (in->op == KIR_END) loops[depth++] = (int16_t)i;
        if (is_effect(in, live)) live[i] = true;
        if (in->op == KIR_LOOP) {
            depth--;
            live[loops[depth]] = live[i];
        }
        if (!live[i]) continue;
        count += in->op != KIR_END; /* those follow their loops */
        mark_operands(b, in, live);
        if (b->notes[i].region >= 0) live[b->notes[i].region] = true;
    }
    return count;
}

/* A GET may come before the SET that it makes live (in a loop), so this repeats until nothing changes. Only group
 * programs and those with variables need a second pass. */
static void mark_live(const kir_builder *b, bool *live) {
    int before = -1, now = mark_backwards(b, live);
    while (now != before && (b->sets > 0 || b->n_items > 0)) {
        before = now;
        now = mark_backwards(b, live);
    }
}

static kir_val renumber(const kir_val *map, kir_val v) { return v == KIR_NONE ? KIR_NONE : map[v]; }

static bool is_local(const kir_builder *b, int access) {
    int buffer = b->access[access].buffer;
    return buffer >= 0 && b->local[buffer] > 0;
}

/* The accesses of another program stay where they are, those that are dead too: sizes are laid out by them. */
static void keep_accesses(const kir_builder *b, int16_t *number, kir_program *p) {
    p->n_access = b->like->n_access;
    p->n_sized = b->like->n_sized;
    memcpy(p->access, b->like->access, (size_t)p->n_access * sizeof *p->access);
    for (int i = 0; i < p->n_access; i++) {
        p->access[i].dyn = KIR_NONE;
        number[i] = (int16_t)i;
    }
}

/* Numbers the live accesses in order of first use, those of local buffers last. */
static void number_accesses(const kir_builder *b, const bool *live, int16_t *number, kir_program *p) {
    if (b->like) {
        keep_accesses(b, number, p);
        return;
    }
    for (int i = 0; i < b->n_access; i++)
        number[i] = -1;
    for (int local = 0; local < 2; local++) {
        for (int i = 0; i < b->n_ins; i++) {
            if (!live[i] || !kir_has_access((kir_op)b->ins[i].op)) continue;
            int access = (int)b->ins[i].imm.i;
            if (number[access] < 0 && is_local(b, access) == (local == 1)) number[access] = p->n_access++;
        }
        if (local == 0) p->n_sized = p->n_access;
    }
}

static void copy_access(const kir_builder *b, int access, int to, const kir_val *map, kir_program *p, int64_t *sizes) {
    size_t width = (size_t)(axes_of(b) + 1);
    if (b->like) {
        p->access[to].dyn = renumber(map, b->access[access].dyn);
        return;
    }
    p->access[to] = (kir_access){.buffer = b->access[access].buffer, .dyn = renumber(map, b->access[access].dyn)};
    int64_t *affine = to < p->n_sized ? sizes + width - 1 + (size_t)to * width : p->access[to].fixed;
    memcpy(affine, affine_of(b, access), width * sizeof *affine);
}

/* Copies the live instructions into p, with the accesses that they name. */
static void copy_live(const kir_builder *b, const bool *live, kir_val *map, kir_program *p, int64_t *sizes) {
    int16_t *number = map + b->n_ins;
    number_accesses(b, live, number, p);
    for (int i = 0; i < b->n_ins; i++) {
        if (!live[i]) continue;
        kir_ins *in = &p->ins[p->n_ins];
        *in = b->ins[i];
        in->a = renumber(map, in->a);
        in->b = renumber(map, in->b);
        in->c = renumber(map, in->c);
        map[i] = p->n_ins++;
        if (!kir_has_access((kir_op)in->op)) continue;
        int access = (int)in->imm.i;
        copy_access(b, access, number[access], map, p, sizes);
        in->imm.i = number[access];
    }
}

static uint64_t hash_structure(const kir_program *p) {
    int64_t head[] = {p->n_par,     p->n_loop,  p->n_ins,   p->n_access, p->n_sized, p->n_buffers,
                      p->n_scalars, p->item[0], p->item[1], p->item[2],  p->n_items};
    uint64_t h = tn_hash64(head, sizeof head, 0);
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        int64_t row[] = {in->op | in->type << 8 | in->kind << 16, in->a, in->b, in->c, in->imm.i};
        h = tn_hash64(row, sizeof row, h);
    }
    for (int i = 0; i < p->n_access; i++) {
        int64_t row[] = {p->access[i].buffer, p->access[i].dyn};
        h = tn_hash64(row, sizeof row, h);
        if (i >= p->n_sized) h = tn_hash64(p->access[i].fixed, sizeof p->access[i].fixed, h);
    }
    for (int i = 0; i < p->n_buffers; i++) {
        int64_t row[] = {p->buffer_dtype[i], p->buffer_written[i], p->local[i] | (int64_t)p->windows[i] << 32};
        h = tn_hash64(row, sizeof row, h);
    }
    return h;
}

void kir_set_windows(kir_program *p, const uint8_t *windows, int buffers) {
    memcpy(p->windows, windows, (size_t)buffers);
    p->hash = hash_structure(p);
}

/* A program with room for all that the builder has, in one block: instructions follow the program, accesses these. */
static kir_program *program_for(const kir_builder *b) {
    size_t ins = (size_t)b->n_ins * sizeof(kir_ins), access = (size_t)b->n_access * sizeof(kir_access);
    kir_program *p = tn_mem_alloc(sizeof *p + ins + access);
    if (!p) return NULL;
    *p = (kir_program){.n_par = (uint8_t)b->n_par, .n_loop = (uint8_t)b->n_loop};
    p->n_buffers = (int16_t)b->n_buffers;
    p->n_scalars = (int16_t)b->n_scalars;
    memcpy(p->buffer_dtype, b->buffer_dtype, sizeof p->buffer_dtype);
    memcpy(p->buffer_written, b->buffer_written, sizeof p->buffer_written);
    memcpy(p->local, b->local, sizeof p->local);
    p->n_items = (uint8_t)b->n_items;
    p->words = b->like && b->like->words;
    for (int k = 0; k < b->n_items; k++)
        p->item[k] = (uint16_t)b->extents[b->n_par - b->n_items + k];
    p->ins = (kir_ins *)(p + 1);
    p->access = (kir_access *)((char *)p->ins + ins);
    return p;
}
_Static_assert(sizeof(kir_program) % _Alignof(kir_ins) == 0, "instructions follow the program in one block");
_Static_assert(sizeof(kir_ins) % _Alignof(kir_access) == 0, "accesses follow the instructions");

/* notes: zeros; for each instruction and access a number, then for each instruction whether it is live. */
static tn_status finish_into(const kir_builder *b, kir_program *p, int64_t *sizes, kir_val *notes) {
    bool *live = (bool *)(notes + b->n_ins + b->n_access);
    mark_live(b, live);
    memcpy(sizes, b->extents, (size_t)axes_of(b) * sizeof *sizes);
    copy_live(b, live, notes, p, sizes);
    p->hash = hash_structure(p);
    return b->unverified ? TN_OK : kir_verify(p);
}

static tn_status finish(const kir_builder *b, kir_program *p, int64_t *sizes) {
    size_t numbers = (size_t)(b->n_ins + b->n_access), bytes = numbers * sizeof(kir_val) + (size_t)b->n_ins;
    if (numbers <= ON_STACK) {
        kir_val notes[ON_STACK + ON_STACK / sizeof(kir_val)];
        memset(notes, 0, bytes);
        return finish_into(b, p, sizes, notes);
    }
    AUTO_FREE kir_val *notes = tn_mem_zalloc(1, bytes);
    return notes ? finish_into(b, p, sizes, notes) : TN_ERR_MEMORY;
}

tn_status kir_finish(kir_builder *b, kir_program **program, int64_t **sizes) {
    size_t axes = (size_t)axes_of(b), accesses = (size_t)b->n_access;
    *program = NULL;
    *sizes = NULL;
    if (b->status == TN_OK && b->depth > 0) wrong(b, KIR_LOOP, "a loop without an end");
    tn_status status = b->status == TN_OK ? TN_OK : tn_fail(b->status, "%s", b->error);
    if (status == TN_OK) {
        *program = program_for(b);
        *sizes = tn_mem_zalloc(axes + accesses * (axes + 1) + 1, sizeof **sizes);
        status = *program && *sizes ? finish(b, *program, *sizes) : TN_ERR_MEMORY;
    }
    kir_abandon(b);
    if (status == TN_OK) return TN_OK;
    kir_free(*program);
    tn_mem_free(*sizes);
    *program = NULL;
    *sizes = NULL;
    return status;
}

tn_status kir_finish_unverified(kir_builder *b, kir_program **program, int64_t **sizes) {
    b->unverified = true;
    return kir_finish(b, program, sizes);
}
