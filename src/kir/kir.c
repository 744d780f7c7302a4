/* kir.c — programs as data: the table of operations, verification, equality.
 *
 * A program may come from anywhere (a builder, a cache file, a test), so kir_verify trusts nothing; code that runs or
 * renders a verified program need not check operands, types or loops again. Visibility needs care: a value computed
 * inside a loop is not visible after its END, except a REDUCE, which is visible only there. A VAR is visible like a
 * value, but only to GET and SET. */
#include "kir/rules.h"

#include <string.h>

/* Sets of types, as bits. */
enum {
    BIT_F32 = 1 << KIR_F32,
    BIT_BOOL = 1 << KIR_BOOL,
    FLOATS = 1 << KIR_F32 | 1 << KIR_F64,
    INTS = 1 << KIR_I32 | 1 << KIR_I64 | 1 << KIR_U32 | 1 << KIR_U64,
    NUMBERS = FLOATS | INTS,
    BITS = INTS | BIT_BOOL,
    ANY = NUMBERS | BIT_BOOL
};

typedef struct op_row {
    const char *name, *operand_types;
    int arity;
} op_row;

static const op_row OPS[KIR_OP_COUNT] = {
#define X(name, arity, types) {#name, types, arity},
    KIR_OPS(X)
#undef X
};

static const int RESULTS[KIR_OP_COUNT] = {
    [KIR_CONST] = ANY,       [KIR_SCALAR] = ANY,     [KIR_INDEX] = 1 << KIR_I64,
    [KIR_NEG] = NUMBERS,     [KIR_ABS] = NUMBERS,    [KIR_ROUND] = FLOATS,
    [KIR_SQRT] = FLOATS,     [KIR_EXP] = FLOATS,     [KIR_LOG] = FLOATS,
    [KIR_SIN] = FLOATS,      [KIR_COS] = FLOATS,     [KIR_TANH] = FLOATS,
    [KIR_ERF] = FLOATS,      [KIR_CAST] = ANY,       [KIR_BITCAST] = ANY,
    [KIR_ADD] = NUMBERS,     [KIR_SUB] = NUMBERS,    [KIR_MUL] = NUMBERS,
    [KIR_DIV] = NUMBERS,     [KIR_MOD] = NUMBERS,    [KIR_MIN] = ANY,
    [KIR_MAX] = ANY,         [KIR_AND] = BITS,       [KIR_OR] = BITS,
    [KIR_XOR] = BITS,        [KIR_SHL] = INTS,       [KIR_SHR] = INTS,
    [KIR_EQ] = BIT_BOOL,     [KIR_LT] = BIT_BOOL,    [KIR_LE] = BIT_BOOL,
    [KIR_FMA] = FLOATS,      [KIR_SELECT] = ANY,     [KIR_PHILOX] = 1 << KIR_U32,
    [KIR_LOAD] = ANY,        [KIR_STORE] = ANY,      [KIR_LOOP] = BIT_F32,
    [KIR_END] = BIT_F32,     [KIR_REDUCE] = ANY,     [KIR_SCAN] = ANY,
    [KIR_VAR] = ANY,         [KIR_GET] = ANY,        [KIR_SET] = ANY,
    [KIR_BARRIER] = BIT_F32, [KIR_MATRIX] = BIT_F32, [KIR_FRAGMENT] = BIT_F32,
    [KIR_MMA] = BIT_F32,     [KIR_FETCH] = BIT_F32,  [KIR_MATRIX_STORE] = BIT_F32,
    [KIR_PUT] = BIT_F32,     [KIR_COMMIT] = BIT_F32, [KIR_WAIT] = BIT_F32,
};

/* Which element types a reduction takes. */
static const int REDUCED[] = {
    [KIR_SUM] = NUMBERS, [KIR_PROD] = NUMBERS, [KIR_RMAX] = ANY,      [KIR_RMIN] = ANY,
    [KIR_ARGMAX] = ANY,  [KIR_ARGMIN] = ANY,   [KIR_CHAIN] = NUMBERS, [KIR_SEQ] = NUMBERS,
};

static const uint8_t TYPE_SIZES[KIR_TYPE_COUNT] = {4, 8, 4, 8, 4, 8, 1};

const char *kir_op_name(kir_op op) { return (unsigned)op < KIR_OP_COUNT ? OPS[op].name : "invalid"; }
size_t kir_type_size(kir_type t) { return (unsigned)t < KIR_TYPE_COUNT ? TYPE_SIZES[t] : 0; }

kir_type kir_type_of(tn_dtype t) {
    static const kir_type computes[TN_PLAIN_DTYPES] = {
        [TN_F32] = KIR_F32, [TN_F64] = KIR_F64,   [TN_I32] = KIR_I32, [TN_I64] = KIR_I64,  [TN_U32] = KIR_U32,
        [TN_U64] = KIR_U64, [TN_BOOL] = KIR_BOOL, [TN_F16] = KIR_F32, [TN_BF16] = KIR_F32, [TN_I8] = KIR_I32,
        [TN_U8] = KIR_I32,  [TN_I16] = KIR_I32,   [TN_U16] = KIR_I32,
    };
    if (tn_dtype_is_quantized(t)) return KIR_F32;
    return (unsigned)t < TN_PLAIN_DTYPES ? computes[t] : KIR_TYPE_COUNT;
}

bool kir_op_takes(kir_op op, int n) { return op >= KIR_NEG && op <= KIR_PHILOX && OPS[op].arity == n; }

/* ---- rules of one instruction ------------------------------------------------------------------------------------ */

/* Loads and stores may leave their mask out, REDUCE its second operand: may operand `k` (0, 1, 2) be KIR_NONE? */
static bool kir_operand_optional(const kir_ins *in, int k) {
    if (in->op == KIR_LOAD || in->op == KIR_FETCH) return k == 0;
    if (in->op == KIR_STORE || in->op == KIR_MATRIX_STORE) return k == 1;
    return in->op == KIR_LOOP;
}

static int operand_slots(const kir_ins *in) {
    if (in->op == KIR_REDUCE) return in->kind == KIR_CHAIN ? 2 : 1;
    return OPS[in->op].arity;
}

int kir_arity(const kir_ins *in) {
    int slots = operand_slots(in);
    while (slots > 0 && kir_operand(in, slots - 1) == KIR_NONE)
        slots--;
    return slots;
}

static const char *reduce_error(const kir_ins *in, const kir_type types[3], kir_type index) {
    bool scan = in->op == KIR_SCAN;
    if (in->kind >= TN_COUNT(REDUCED) || (scan && in->kind > KIR_RMIN)) return "no such reduction";
    if (!(REDUCED[in->kind] >> types[0] & 1)) return "a type that this reduction does not take";
    bool arg = in->kind == KIR_ARGMAX || in->kind == KIR_ARGMIN;
    if (in->type != (arg ? index : types[0])) return "a result type that does not follow from the operand";
    if (in->kind == KIR_CHAIN && types[1] != types[0]) return "factors of different types";
    return NULL;
}

/* Operations whose operand types are '*' in the table. */
static const char *free_type_error(const kir_ins *in, const kir_type types[3], kir_type index) {
    switch (in->op) {
    case KIR_EQ:
    case KIR_LT:
    case KIR_LE: return types[0] == types[1] ? NULL : "operands of different types";
    case KIR_BITCAST: return kir_type_size(types[0]) == kir_type_size(in->type) ? NULL : "types of different width";
    case KIR_PHILOX: return types[0] == KIR_U64 && types[1] == KIR_U64 ? NULL : "a key or counter that is not u64";
    case KIR_STORE: return types[0] == in->type ? NULL : "a type other than its value's";
    case KIR_REDUCE:
    case KIR_SCAN: return reduce_error(in, types, index);
    default: return NULL;
    }
}

const char *kir_type_error(const kir_ins *in, const kir_type types[3], bool words) {
    kir_type index = words ? KIR_I32 : KIR_I64;
    if (in->op >= KIR_OP_COUNT) return "no such operation";
    int results = in->op == KIR_INDEX ? 1 << index : RESULTS[in->op];
    if (words) results &= ~(1 << KIR_I64 | 1 << KIR_U64);
    if (in->type >= KIR_TYPE_COUNT || !(results >> in->type & 1)) return "a result type it cannot have";
    const char *want = OPS[in->op].operand_types;
    for (int k = 0; k < kir_arity(in); k++) {
        if (kir_operand(in, k) == KIR_NONE) continue;
        if (want[k] == 'S' && types[k] != in->type) return "operands of different types";
        if (want[k] == 'B' && types[k] != KIR_BOOL) return "a condition that is not bool";
        if (want[k] == 'I' && types[k] != index) return "an index of another type";
    }
    return free_type_error(in, types, index);
}

/* ---- verification ------------------------------------------------------------------------------------------------ */

enum { ON_STACK = 512 }; /* instructions whose scopes the verifier keeps on the stack */

/* The scope of a value: `home` is the innermost loop around its region (a LOOP's instruction number, -1 at the top);
 * `hidden` is the loop that must have ended (REDUCE), -1: none. */
typedef struct scope {
    int16_t home, hidden;
} scope;

typedef struct verifier {
    const kir_program *p;
    scope *scopes;                  /* one an instruction */
    int16_t open[KIR_MAX_AXES + 1]; /* the loops around the current instruction */
    int depth;
    uint32_t axes_open;
    int at;
} verifier;

static tn_status invalid(const verifier *v, const char *what) {
    const char *name = v->at < v->p->n_ins ? kir_op_name((kir_op)v->p->ins[v->at].op) : "end of program";
    return tn_fail(TN_ERR_ARGUMENT, "kernel program, instruction %d (%s): %s", v->at, name, what);
}

static bool loop_is_open(const verifier *v, int loop) {
    if (loop < 0) return true;
    for (int i = 0; i < v->depth; i++)
        if (v->open[i] == loop) return true;
    return false;
}

/* `name`: the operation whose name it must be; KIR_CONST: it must be a value. */
static tn_status check_operand(const verifier *v, kir_val operand, kir_op name) {
    if (operand < 0 || operand >= v->at) return invalid(v, "an operand that is not an earlier instruction");
    kir_op op = (kir_op)v->p->ins[operand].op;
    if (!kir_yields(op)) return invalid(v, "an operand that yields no value");
    if (kir_names(op) ? op != name : name != KIR_CONST) {
        if (name == KIR_CONST && op == KIR_VAR) return invalid(v, "a variable where a value is wanted");
        return invalid(v, name == KIR_VAR ? "not a variable" : "an operand of another sort");
    }
    scope s = v->scopes[operand];
    if (!loop_is_open(v, s.home)) return invalid(v, "an operand from inside a loop that has ended");
    if (s.hidden >= 0 && loop_is_open(v, s.hidden)) return invalid(v, "a reduction used before its loop has ended");
    return TN_OK;
}

static tn_status check_operands(const verifier *v, const kir_ins *in) {
    kir_type types[3] = {KIR_TYPE_COUNT, KIR_TYPE_COUNT, KIR_TYPE_COUNT};
    int slots = operand_slots(in);
    for (int k = 0; k < 3; k++) {
        kir_val operand = kir_operand(in, k);
        if (operand == KIR_NONE && (k >= slots || kir_operand_optional(in, k))) continue;
        if (k >= slots) return invalid(v, "too many operands");
        TRY(check_operand(v, operand, kir_wants((kir_op)in->op, k)));
        types[k] = (kir_type)v->p->ins[operand].type;
    }
    const char *wrong = kir_type_error(in, types, v->p->words);
    return wrong ? invalid(v, wrong) : TN_OK;
}

static bool in_words(const kir_program *p, int buffer) {
    return p->words && tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]) == 8 && p->buffer_dtype[buffer] != TN_F64;
}

static kir_type accessed_type(const kir_program *p, int buffer) {
    return in_words(p, buffer) ? KIR_U32 : kir_type_of((tn_dtype)p->buffer_dtype[buffer]);
}

static bool is_half(tn_dtype t) { return t == TN_F16 || t == TN_BF16; }

static bool is_late(const kir_ins *in) { return in->op == KIR_PUT && in->kind; }

static bool kir_is_wide(const kir_program *p) { return p->n_items > 0 && p->item[p->n_items - 1] == KIR_WIDE; }

/* Whether lines do not overlap; those of the factors of wide matrices never do. */
static bool lines_are_apart(const kir_program *p, const kir_ins *in) {
    if (!kir_is_wide(p)) return kir_line(in) >= KIR_EDGE;
    return in->op == KIR_FRAGMENT || kir_wide_line(in) >= KIR_EDGE;
}

/* Matrices move lines of workgroup memory, packets from global to workgroup memory. */
static tn_status check_matrix_access(const verifier *v, const kir_ins *in, const kir_access *access) {
    const kir_program *p = v->p;
    tn_dtype t = (tn_dtype)p->buffer_dtype[access->buffer];
    bool local = p->local[access->buffer] > 0, lines = in->op == KIR_FRAGMENT || in->op == KIR_MATRIX_STORE;
    if (local == (in->op == KIR_FETCH)) return invalid(v, "a buffer in the wrong memory");
    bool f32 = in->op == KIR_MATRIX_STORE || (in->op == KIR_FRAGMENT && !kir_is_wide(p) && t == TN_F32);
    if (f32 ? t != TN_F32 : !is_half(t)) return invalid(v, "a buffer of the wrong dtype");
    if (lines && !lines_are_apart(p, in)) return invalid(v, "lines that lie in one another");
    if (lines && access->fixed[p->n_par] != 0) return invalid(v, "a place that differs within a subgroup");
    for (int i = 0; i <= p->n_par + p->n_loop && local; i++)
        if (access->fixed[i] % KIR_LINE_UNIT != 0) return invalid(v, "a place that is no multiple of 8 elements");
    if (in->op != KIR_PUT) return TN_OK;
    const kir_ins *packet = &p->ins[in->a];
    if (p->buffer_dtype[p->access[packet->imm.i].buffer] != t) return invalid(v, "a packet of another dtype");
    bool apart = v->scopes[in->a].home != (v->depth > 0 ? v->open[v->depth - 1] : -1);
    return apart && is_late(in) ? invalid(v, "late, and not in the region of its packet") : TN_OK;
}

static tn_status check_access(const verifier *v, const kir_ins *in) {
    const kir_program *p = v->p;
    if (in->imm.i < 0 || in->imm.i >= p->n_access) return invalid(v, "no such access");
    const kir_access *access = &p->access[in->imm.i];
    if (access->dyn != KIR_NONE) {
        TRY(check_operand(v, access->dyn, KIR_CONST));
        if (p->ins[access->dyn].type != (p->words ? KIR_I32 : KIR_I64))
            return invalid(v, "a computed index of another type");
    }
    bool local = access->buffer >= 0 && access->buffer < p->n_buffers && p->local[access->buffer] > 0;
    if (local != (in->imm.i >= p->n_sized)) return invalid(v, "accesses of local buffers must be the last ones");
    if (in->op == KIR_INDEX) return access->buffer == -1 ? TN_OK : invalid(v, "an index with a buffer");
    if (access->buffer < 0 || access->buffer >= p->n_buffers) return invalid(v, "no such buffer");
    if (in->type != accessed_type(p, access->buffer))
        return invalid(v, "a type other than the one its buffer computes in");
    if (p->words && in->op < KIR_BARRIER && in->kind > in_words(p, access->buffer))
        return invalid(v, "no such word of an element");
    if (kir_writes((kir_op)in->op) && !p->buffer_written[access->buffer])
        return invalid(v, "a buffer not marked as written");
    return in->op > KIR_BARRIER ? check_matrix_access(v, in, access) : TN_OK;
}

static bool constant_fits(const kir_ins *in) {
    int64_t i = in->imm.i;
    switch (in->type) {
    case KIR_F32: return in->imm.f != in->imm.f || (double)(float)in->imm.f == in->imm.f;
    case KIR_I32: return i == (int32_t)i;
    case KIR_U32: return i == (int64_t)(uint32_t)i;
    case KIR_BOOL: return i == 0 || i == 1;
    default: return true;
    }
}

static tn_status open_loop(verifier *v, const kir_ins *in) {
    int first = kir_loop_first(in), count = kir_loop_count(in);
    int axes = v->p->n_par + v->p->n_loop;
    if (in->imm.i < 0 || in->imm.i >> 16 || first < v->p->n_par || first + count > axes)
        return invalid(v, "a range that is not one of loop axes");
    uint32_t range = ((1U << count) - 1) << first;
    if (v->axes_open & range) return invalid(v, "an axis that a loop around it runs over already");
    if (in->a != KIR_NONE && (v->p->n_items == 0 || count != 1))
        return invalid(v, "an end that is computed: of more than one axis, or without workgroups");
    if (v->depth == KIR_MAX_AXES) return invalid(v, "loops nested too deep");
    v->axes_open |= range;
    v->open[v->depth++] = (int16_t)v->at;
    return TN_OK;
}

static tn_status check_own_loop(const verifier *v) {
    if (v->depth == 0) return invalid(v, "outside a loop");
    bool computed = v->p->ins[v->open[v->depth - 1]].a != KIR_NONE;
    return computed ? invalid(v, "in a loop whose end is computed") : TN_OK;
}

static tn_status close_loop(verifier *v) {
    if (v->depth == 0) return invalid(v, "no loop to end");
    const kir_ins *loop = &v->p->ins[v->open[--v->depth]];
    v->axes_open &= ~(((1U << kir_loop_count(loop)) - 1) << kir_loop_first(loop));
    return TN_OK;
}

static tn_status check_runtime_scalar(const verifier *v, const kir_ins *in) {
    if (in->imm.i < 0 || in->imm.i >= v->p->n_scalars) return invalid(v, "no such runtime scalar");
    return v->p->words && in->kind > 1 ? invalid(v, "no such word of a runtime scalar") : TN_OK;
}

static tn_status check_matrix(const verifier *v, const kir_ins *in) {
    bool wide = kir_is_wide(v->p), some = in->kind > 0 && in->kind * KIR_EDGE <= KIR_WIDE_COLUMNS;
    if (wide == some && wide == (in->kind > 0)) return TN_OK;
    return invalid(v, "a number of columns that its items do not share");
}

/* Fragments of one dtype, a first and a second factor. */
static tn_status check_mma(const verifier *v, const kir_ins *in) {
    const kir_ins *x = &v->p->ins[in->b], *y = &v->p->ins[in->c];
    if (x->kind & KIR_FACTOR_B || !(y->kind & KIR_FACTOR_B)) return invalid(v, "a factor in the other's place");
    const kir_program *p = v->p;
    bool same = p->buffer_dtype[p->access[x->imm.i].buffer] == p->buffer_dtype[p->access[y->imm.i].buffer];
    return same ? TN_OK : invalid(v, "factors of two dtypes");
}

static tn_status check_place(verifier *v, const kir_ins *in) {
    if (in->op > KIR_BARRIER && v->p->n_items == 0) return invalid(v, "in a program without workgroups");
    switch (in->op) {
    case KIR_LOOP: return open_loop(v, in);
    case KIR_END: return close_loop(v);
    case KIR_CONST: return constant_fits(in) ? TN_OK : invalid(v, "a constant outside its type");
    case KIR_SCALAR: return check_runtime_scalar(v, in);
    case KIR_ROUND: return in->imm.i >= 0 && in->imm.i <= KIR_NEAREST_EVEN ? TN_OK : invalid(v, "no such rounding");
    case KIR_REDUCE:
    case KIR_SCAN: return check_own_loop(v);
    case KIR_BARRIER: return v->p->n_items > 0 ? TN_OK : invalid(v, "in a program without workgroups");
    case KIR_MATRIX: return check_matrix(v, in);
    case KIR_MMA: return check_mma(v, in);
    case KIR_COMMIT: return in->kind && !kir_is_wide(v->p) ? invalid(v, "without wide matrices") : TN_OK;
    case KIR_WAIT: return in->imm.i >= 0 && in->imm.i <= 7 ? TN_OK : invalid(v, "a number of batches outside 0 … 7");
    default: return kir_has_access((kir_op)in->op) ? check_access(v, in) : TN_OK;
    }
}

static void note_scope(verifier *v, const kir_ins *in) {
    int16_t inner = v->depth > 0 ? v->open[v->depth - 1] : (int16_t)-1;
    scope *s = &v->scopes[v->at];
    *s = (scope){inner, -1};
    if (in->op == KIR_REDUCE) *s = (scope){v->depth > 1 ? v->open[v->depth - 2] : (int16_t)-1, inner};
}

int kir_lanes(const kir_program *p) {
    for (int i = 0; i < p->n_ins; i++)
        if (p->ins[i].op > KIR_BARRIER) return p->item[p->n_items - 1];
    return 0;
}

bool kir_shortens(const kir_program *p) {
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        if (in->op == KIR_FRAGMENT && p->buffer_dtype[p->access[in->imm.i].buffer] == TN_F32) return true;
    }
    return false;
}

int kir_loop_end(const kir_program *p, int loop) {
    int depth = 0;
    for (int i = loop;; i++) {
        depth += (p->ins[i].op == KIR_LOOP) - (p->ins[i].op == KIR_END);
        if (depth == 0) return i;
    }
}

int64_t kir_local_bytes(const kir_program *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->n_buffers; i++)
        bytes += (int64_t)p->local[i] * (int64_t)tn_dtype_size((tn_dtype)p->buffer_dtype[i]);
    return bytes;
}

/* Items of a workgroup and its memory; the buffers' dtypes have been checked. */
static tn_status check_group(const kir_program *p) {
    bool sane = p->n_items <= KIR_MAX_ITEM_AXES && p->n_items <= p->n_par;
    for (int k = 0; sane && k < p->n_items; k++)
        sane = p->item[k] > 0 && p->item[k] <= KIR_MAX_ITEMS;
    if (!sane || kir_items(p) > KIR_MAX_ITEMS)
        return tn_fail(TN_ERR_ARGUMENT,
                       "kernel program: a workgroup of %d axes with the extents %d, %d, %d; it has at most %d of the"
                       " parallel axes and %d items",
                       p->n_items, p->item[0], p->item[1], p->item[2], KIR_MAX_ITEM_AXES, KIR_MAX_ITEMS);
    for (int i = 0; i < p->n_buffers; i++)
        if (p->local[i] < 0 || (p->local[i] > 0 && p->n_items == 0))
            return tn_fail(TN_ERR_ARGUMENT,
                           "kernel program: local buffer %d of %d elements in a program with %d item axes", i,
                           p->local[i], p->n_items);
    if (kir_local_bytes(p) > KIR_MAX_LOCAL)
        return tn_fail(TN_ERR_ARGUMENT, "kernel program: %lld bytes of workgroup memory, at most %d",
                       (long long)kir_local_bytes(p), KIR_MAX_LOCAL);
    return TN_OK;
}

tn_status kir_check_sizes(const kir_program *p, const int64_t *sizes) {
    for (int axis = 0; axis < p->n_par + p->n_loop; axis++) {
        int k = axis - (p->n_par - p->n_items);
        if (sizes[axis] < 0)
            return tn_fail(TN_ERR_ARGUMENT, "kernel program: axis %d has %lld points", axis, (long long)sizes[axis]);
        if (axis < p->n_par && k >= 0 && sizes[axis] != p->item[k])
            return tn_fail(TN_ERR_ARGUMENT, "kernel program: axis %d of a workgroup has %lld items, the program %d",
                           axis, (long long)sizes[axis], p->item[k]);
    }
    return TN_OK;
}

static tn_status check_counts(const kir_program *p) {
    bool sane = p->n_par + p->n_loop <= KIR_MAX_AXES && p->n_ins >= 0 && p->n_ins <= KIR_MAX_LEGAL_INS &&
                p->n_access >= 0 && p->n_access <= KIR_MAX_INS && p->n_sized >= 0 && p->n_sized <= p->n_access &&
                p->n_buffers >= 0 && p->n_buffers <= KIR_MAX_BUFFERS && p->n_scalars >= 0 &&
                (p->ins || p->n_ins == 0) && (p->access || p->n_access == 0);
    if (!sane) return tn_fail(TN_ERR_ARGUMENT, "kernel program: a count is outside its limits");
    for (int i = 0; i < p->n_buffers; i++)
        if (p->buffer_dtype[i] >= TN_PLAIN_DTYPES)
            return tn_fail(TN_ERR_ARGUMENT, "kernel program: buffer %d has no valid dtype", i);
    return check_group(p);
}

static tn_status verify_instructions(verifier *v) {
    for (v->at = 0; v->at < v->p->n_ins; v->at++) {
        const kir_ins *in = &v->p->ins[v->at];
        if (in->op >= KIR_OP_COUNT) return invalid(v, "no such operation");
        TRY(check_operands(v, in));
        TRY(check_place(v, in));
        note_scope(v, in);
    }
    return v->depth == 0 ? TN_OK : invalid(v, "a loop without an end");
}

tn_status kir_verify(const kir_program *p) {
    if (!p) return tn_fail(TN_ERR_ARGUMENT, "kernel program: none given");
    TRY(check_counts(p));
    verifier v = {.p = p};
    if (p->n_ins <= ON_STACK) {
        scope scopes[ON_STACK];
        memset(scopes, 0, (size_t)p->n_ins * sizeof *scopes);
        v.scopes = scopes;
        return verify_instructions(&v);
    }
    v.scopes = tn_mem_zalloc((size_t)p->n_ins, sizeof *v.scopes);
    if (!v.scopes) return TN_ERR_MEMORY;
    tn_status status = verify_instructions(&v);
    tn_mem_free(v.scopes);
    return status;
}

/* ---- equality, release ------------------------------------------------------------------------------------------- */

static bool same_ins(const kir_ins *a, const kir_ins *b) {
    return a->op == b->op && a->type == b->type && a->kind == b->kind && a->a == b->a && a->b == b->b && a->c == b->c &&
           a->imm.i == b->imm.i;
}

static bool same_access(const kir_access *a, const kir_access *b) {
    return a->buffer == b->buffer && a->dyn == b->dyn && memcmp(a->fixed, b->fixed, sizeof a->fixed) == 0;
}

static bool same_counts(const kir_program *a, const kir_program *b) {
    return a->n_par == b->n_par && a->n_loop == b->n_loop && a->n_ins == b->n_ins && a->n_access == b->n_access &&
           a->n_sized == b->n_sized && a->n_buffers == b->n_buffers && a->n_scalars == b->n_scalars &&
           a->n_items == b->n_items && a->words == b->words && memcmp(a->item, b->item, sizeof a->item) == 0;
}

static bool same_buffers(const kir_program *a, const kir_program *b) {
    for (int i = 0; i < a->n_buffers; i++)
        if (a->buffer_dtype[i] != b->buffer_dtype[i] || a->buffer_written[i] != b->buffer_written[i] ||
            a->local[i] != b->local[i] || a->windows[i] != b->windows[i])
            return false;
    return true;
}

bool kir_equal(const kir_program *a, const kir_program *b) {
    if (a == b) return true;
    if (a->hash != b->hash || !same_counts(a, b)) return false;
    for (int i = 0; i < a->n_ins; i++)
        if (!same_ins(&a->ins[i], &b->ins[i])) return false;
    for (int i = 0; i < a->n_access; i++)
        if (!same_access(&a->access[i], &b->access[i])) return false;
    return same_buffers(a, b);
}

void kir_free(kir_program *p) { tn_mem_free(p); }
