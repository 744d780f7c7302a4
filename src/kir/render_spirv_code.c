/* render_spirv_code.c — instructions as SPIR-V: coordinates, addresses, memory, operations, matrices, exact fma.
 *
 * An element of one binding has a 32-bit index, so addresses are computed in 32 bits whatever the width of the launch's
 * numbers; higher bits are dropped. Coordinates that a program asks for (INDEX) have as many bits as needed. Elements
 * of 8 and 16 bits are loaded as such and widened; if a device has only words, they are extracted from words and stored
 * with two atomic operations, because other items may write the rest of the word. A buffer with several windows is
 * searched one window at a time. */

#include "kir/rules.h"
#include "kir/spirv.h"

/* v[0]·v[1] + v[2], rounded once, made of operations that each round; the f64 version uses 64-bit
 * words. */
static uint32_t spv_fma(spv *e, spv_type type, const uint32_t v[3]);
/* One of the instructions that only groups have; false: it has no words. */
static bool spv_matrix(spv *e, int i);

enum {
    DecorationBlock = 2,
    DecorationArrayStride = 6,
    DecorationBuiltIn = 11,
    DecorationAliased = 20,
    DecorationCoherent = 23,
    DecorationNonWritable = 24,
    DecorationBinding = 33,
    DecorationDescriptorSet = 34,
    DecorationOffset = 35,
    BuiltInNumWorkgroups = 24,
    BuiltInWorkgroupId = 26,
    BuiltInLocalInvocationIndex = 29,
    BuiltInSubgroupId = 40,
    BuiltInSubgroupLocalInvocationId = 41
};

static void decorate(spv *e, uint32_t id, uint32_t decoration) {
    kir_spv_put(e, SPV_DECORATIONS, OpDecorate, (uint32_t[]){id, decoration}, 2);
}

static void decorate_with(spv *e, uint32_t id, uint32_t decoration, uint32_t number) {
    kir_spv_put(e, SPV_DECORATIONS, OpDecorate, (uint32_t[]){id, decoration, number}, 3);
}

static uint32_t extract(spv *e, spv_type type, uint32_t vector, uint32_t index) {
    uint32_t words[] = {kir_spv_type_id(e, type), kir_spv_id(e), vector, index};
    kir_spv_put(e, e->at, OpCompositeExtract, words, 4);
    return words[1];
}

/* ---- variables of the module ------------------------------------------------------------------------------------- */

static uint32_t module_variable(spv *e, uint32_t storage, uint32_t type) {
    uint32_t pointer = kir_spv_pointer(e, storage, type), id = kir_spv_id(e);
    kir_spv_put(e, SPV_GLOBALS, OpVariable, (uint32_t[]){pointer, id, storage}, 3);
    return id;
}

static uint32_t built_in(spv *e, spv_type type, uint32_t number) {
    uint32_t id = module_variable(e, StorageInput, kir_spv_type_id(e, type));
    decorate_with(e, id, DecorationBuiltIn, number);
    e->inputs[e->input_count++] = id;
    return kir_spv_op(e, OpLoad, type, id, 0, 0);
}

/* Bytes of an element in memory. */
static const uint8_t STRIDES[SPV_TYPE_COUNT] = {
    [SPV_U8] = 1,  [SPV_U16] = 2, [SPV_F16] = 2,   [SPV_U32] = 4,   [SPV_F32] = 4,
    [SPV_U64] = 8, [SPV_F64] = 8, [SPV_UVEC2] = 8, [SPV_UVEC4] = 16};

/* The struct whose only member is an array of this type, without end. */
static uint32_t block_of(spv *e, spv_type type) {
    if (e->blocks[type]) return e->blocks[type];
    uint32_t of = kir_spv_type_id(e, type), array = kir_spv_id(e), block = kir_spv_id(e);
    kir_spv_put(e, SPV_GLOBALS, OpTypeRuntimeArray, (uint32_t[]){array, of}, 2);
    decorate_with(e, array, DecorationArrayStride, STRIDES[type]);
    kir_spv_put(e, SPV_GLOBALS, OpTypeStruct, (uint32_t[]){block, array}, 2);
    decorate(e, block, DecorationBlock);
    kir_spv_put(e, SPV_DECORATIONS, OpMemberDecorate, (uint32_t[]){block, 0, DecorationOffset, 0}, 4);
    return e->blocks[type] = block;
}

static uint32_t binding(spv *e, spv_type type, uint32_t number) {
    uint32_t id = module_variable(e, StorageBuffer, block_of(e, type));
    decorate_with(e, id, DecorationDescriptorSet, 0);
    decorate_with(e, id, DecorationBinding, number);
    return id;
}

/* Layout of an element of a dtype in memory. */
typedef struct element {
    uint8_t type, bits;
    bool is_signed;
} element;

static const element ELEMENTS[TN_PLAIN_DTYPES] = {
    [TN_F32] = {SPV_F32, 32, false}, [TN_F64] = {SPV_F64, 64, false}, [TN_I32] = {SPV_U32, 32, false},
    [TN_I64] = {SPV_U64, 64, false}, [TN_U32] = {SPV_U32, 32, false}, [TN_U64] = {SPV_U64, 64, false},
    [TN_BOOL] = {SPV_U8, 8, false},  [TN_F16] = {SPV_F16, 16, false}, [TN_BF16] = {SPV_U16, 16, false},
    [TN_I8] = {SPV_U8, 8, true},     [TN_U8] = {SPV_U8, 8, false},    [TN_I16] = {SPV_U16, 16, true},
    [TN_U16] = {SPV_U16, 16, false},
};

static const element *element_of(const spv *e, int buffer) { return &ELEMENTS[e->p->buffer_dtype[buffer]]; }

/* Whether loads and stores take words of an element: of 64-bit integers in programs of words. */
static bool is_pair(const spv *e, int buffer) { return e->p->words && element_of(e, buffer)->type == SPV_U64; }

/* Whether it is filled by packets. Then it is an array of packets, and single elements are not accessible. */
static bool takes_packets(const spv *e, int buffer) {
    for (int i = 0; i < e->p->n_ins; i++)
        if (e->p->ins[i].op == KIR_PUT && e->p->access[e->p->ins[i].imm.i].buffer == buffer) return true;
    return false;
}

/* The type that a buffer is an array of. A small element takes a word where the device has nothing smaller. */
static spv_type memory_type(spv *e, int buffer) {
    const element *m = element_of(e, buffer);
    bool local = e->p->local[buffer] > 0, small = m->bits < 32;
    if (is_pair(e, buffer)) return SPV_U32;
    if (local && takes_packets(e, buffer)) return SPV_UVEC4;
    uint32_t feature = m->bits == 8 ? TN_SPIRV_INT_8 : TN_SPIRV_INT_16;
    if (small && (local ? !(e->t->features & feature) : e->t->words_only)) return SPV_U32;
    if (m->type == SPV_F16) e->uses |= TN_SPIRV_FLOAT_16;
    if (small && local) e->uses |= feature;
    if (small && !local) e->uses |= m->bits == 8 ? TN_SPIRV_STORAGE_8 : TN_SPIRV_STORAGE_16;
    return m->type;
}

static bool is_packed(const spv *e, int buffer) {
    return e->t->words_only && e->p->local[buffer] == 0 && element_of(e, buffer)->bits < 32;
}

/* Whether items may read here what others have written before a barrier. */
static bool is_exchanged(const spv *e, int buffer) {
    bool loaded = false, barrier = false;
    for (int i = 0; i < e->p->n_ins; i++) {
        const kir_ins *in = &e->p->ins[i];
        loaded |= in->op == KIR_LOAD && e->p->access[in->imm.i].buffer == buffer;
        barrier |= in->op == KIR_BARRIER;
    }
    return loaded && barrier && e->p->buffer_written[buffer];
}

static int windows_of(const spv *e, int buffer) { return e->p->windows[buffer] ? e->p->windows[buffer] : 1; }

static uint32_t declare_window(spv *e, int buffer, uint32_t number) {
    uint32_t id = binding(e, e->memory[buffer], number);
    decorate(e, id, DecorationAliased); /* operands of one launch may share memory */
    if (!e->p->buffer_written[buffer]) decorate(e, id, DecorationNonWritable);
    if (is_exchanged(e, buffer)) decorate(e, id, DecorationCoherent);
    return e->windows[number] = id;
}

/* Yields the number of the next binding. */
static uint32_t declare_global(spv *e, int buffer, uint32_t number) {
    e->buffers[buffer] = declare_window(e, buffer, number);
    for (int k = 1; k < windows_of(e, buffer); k++)
        declare_window(e, buffer, number + (uint32_t)k);
    if (windows_of(e, buffer) > 1) e->buffers[buffer] = number;
    return number + (uint32_t)windows_of(e, buffer);
}

/* A further variable for binding `number`, which is only read: an array of `type`. */
static uint32_t kir_spv_alias(spv *e, spv_type type, uint32_t number) {
    uint32_t id = binding(e, type, number);
    decorate(e, id, DecorationAliased);
    decorate(e, id, DecorationNonWritable);
    return id;
}

static void declare_local(spv *e, int buffer) {
    uint32_t count = (uint32_t)e->p->local[buffer] << is_pair(e, buffer);
    if (e->memory[buffer] == SPV_UVEC4) count = (count + 7) / 8;
    uint32_t length = kir_spv_u32(e, count), array = kir_spv_id(e);
    uint32_t of = kir_spv_type_id(e, e->memory[buffer]);
    kir_spv_put(e, SPV_GLOBALS, OpTypeArray, (uint32_t[]){array, of, length}, 3);
    e->local_bytes += (int64_t)count * STRIDES[e->memory[buffer]];
    e->buffers[buffer] = module_variable(e, StorageWorkgroup, array);
}

static void declare_buffers(spv *e) {
    uint32_t number = 0;
    for (int b = 0; b < e->p->n_buffers; b++) {
        e->memory[b] = memory_type(e, b);
        if (e->p->local[b] > 0)
            declare_local(e, b);
        else
            number = declare_global(e, b, number);
    }
    e->params = binding(e, SPV_UVEC2, number);
    decorate(e, e->params, DecorationNonWritable);
}

/* ---- the launch's numbers ---------------------------------------------------------------------------------------- */

/* The index of an instruction's element in its buffer; what points to element `index` of an array of `type`. */
static uint32_t kir_spv_place(spv *e, uint32_t storage, spv_type type, uint32_t variable, uint32_t index) {
    uint32_t pointer = kir_spv_pointer(e, storage, kir_spv_type_id(e, type)), id = kir_spv_id(e);
    uint32_t words[] = {pointer, id, variable, kir_spv_u32(e, 0), index};
    if (storage == StorageWorkgroup) words[3] = index;
    kir_spv_put(e, e->at, OpAccessChain, words, storage == StorageWorkgroup ? 4 : 5);
    return id;
}

static spv_section move_to(spv *e, spv_section to) {
    spv_section was = e->at;
    e->at = to;
    return was;
}

static uint32_t loaded_word(spv *e, size_t word) {
    if (e->loaded[word]) return e->loaded[word];
    uint32_t pointer = kir_spv_place(e, StorageBuffer, SPV_UVEC2, e->params, kir_spv_u32(e, (uint32_t)word));
    return e->loaded[word] = kir_spv_op(e, OpLoad, SPV_UVEC2, pointer, 0, 0);
}

/* The launch's word: its low half, or as a value of another type of 64 bits. */
static uint32_t kir_spv_low(spv *e, size_t word) {
    if (e->low[word]) return e->low[word];
    spv_section was = move_to(e, SPV_EARLY);
    e->low[word] = extract(e, SPV_U32, loaded_word(e, word), 0);
    e->at = was;
    return e->low[word];
}

static uint32_t kir_spv_word(spv *e, size_t word, spv_type type) {
    spv_section was = move_to(e, SPV_EARLY);
    uint32_t v = kir_spv_op(e, OpBitcast, type, loaded_word(e, word), 0, 0);
    e->at = was;
    return v;
}

static uint32_t index_word(spv *e, size_t word, spv_type type) {
    return type == SPV_U32 ? kir_spv_low(e, word) : kir_spv_word(e, word, type);
}

/* A buffer's base in elements: its low 32 bits. */
static uint32_t base_of(spv *e, int buffer) {
    if (e->bases[buffer]) return e->bases[buffer];
    size_t word = e->kernel->bases_at / 8;
    for (int b = 0; b < buffer; b++)
        word += e->p->local[b] == 0;
    uint32_t shift = (uint32_t)__builtin_ctz(element_of(e, buffer)->bits / 8U), low = kir_spv_low(e, word);
    spv_section was = move_to(e, SPV_EARLY);
    if (shift) {
        uint32_t high = extract(e, SPV_U32, loaded_word(e, word), 1);
        low = kir_spv_op(e, OpShiftRightLogical, SPV_U32, low, kir_spv_u32(e, shift), 0);
        high = kir_spv_op(e, OpShiftLeftLogical, SPV_U32, high, kir_spv_u32(e, 32 - shift), 0);
        low = kir_spv_op(e, OpBitwiseOr, SPV_U32, low, high, 0);
    }
    e->at = was;
    return e->bases[buffer] = low;
}

/* ---- coordinates ------------------------------------------------------------------------------------------------- */

static uint32_t index_op(spv *e, uint32_t op, uint32_t a, uint32_t b) { return kir_spv_op(e, op, e->ix, a, b, 0); }
static uint32_t index_number(spv *e, uint32_t number) { return kir_spv_const(e, e->ix, number); }
static uint32_t to_index(spv *e, uint32_t v) { return kir_spv_resize(e, v, SPV_U32, e->ix, false); }

static void put_extents(spv *e) {
    int lead = kir_lead_axes(e->p);
    for (int axis = 0; axis < e->p->n_par + e->p->n_loop; axis++) {
        bool item = axis >= lead && axis < e->p->n_par;
        e->n[axis] = item ? index_number(e, e->p->item[axis - lead]) : index_word(e, (size_t)axis, e->ix);
    }
}

/* The workgroup's number among all. */
static uint32_t group_number(spv *e) {
    uint32_t id = built_in(e, SPV_UVEC3, BuiltInWorkgroupId), counts = built_in(e, SPV_UVEC3, BuiltInNumWorkgroups);
    uint32_t number = to_index(e, extract(e, SPV_U32, id, 2));
    for (uint32_t k = 2; k-- > 0;) {
        number = index_op(e, OpIMul, number, to_index(e, extract(e, SPV_U32, counts, k)));
        number = index_op(e, OpIAdd, number, to_index(e, extract(e, SPV_U32, id, k)));
    }
    return number;
}

/* Ends the item where `number` is not below the product of the extents of the leading axes. */
static void leave_beyond(spv *e, uint32_t number) {
    uint32_t count = index_number(e, 1), leave = kir_spv_id(e), stay = kir_spv_id(e);
    for (int axis = 0; axis < kir_lead_axes(e->p); axis++)
        count = axis == 0 ? e->n[0] : index_op(e, OpIMul, count, e->n[axis]);
    uint32_t inside = kir_spv_op(e, OpULessThan, SPV_BOOL, number, count, 0);
    kir_spv_put(e, e->at, OpSelectionMerge, (uint32_t[]){stay, 0}, 2);
    kir_spv_do(e, OpBranchConditional, inside, stay, leave);
    kir_spv_label(e, leave);
    kir_spv_put(e, e->at, OpReturn, NULL, 0);
    kir_spv_label(e, stay);
}

/* The coordinates first … end-1 of an index that runs through them, the last one fastest. */
static void put_coordinates(spv *e, uint32_t *out, uint32_t number, int first, int end) {
    for (int axis = end - 1; axis > first; axis--) {
        uint32_t rest = index_op(e, OpUDiv, number, e->n[axis]);
        out[axis] = index_op(e, OpISub, number, index_op(e, OpIMul, rest, e->n[axis]));
        number = rest;
    }
    if (end > first) out[first] = number;
}

/* How many times y, which is below the extent n plus a workgroup's items, exceeds n: a quotient of small numbers,
 * computed as a product of floats that is exact for them; or 0 or 1 along an axis longer than a workgroup. */
static uint32_t carry_of(spv *e, uint32_t y, uint32_t n) {
    enum { HALF = 0x3f000000, ONE = 0x3f800000 };
    uint32_t small_n = kir_spv_resize(e, n, e->ix, SPV_U32, false),
             small_y = kir_spv_resize(e, y, e->ix, SPV_U32, false);
    uint32_t f = kir_spv_op(e, OpConvertUToF, SPV_F32, small_n, 0, 0),
             g = kir_spv_op(e, OpConvertUToF, SPV_F32, small_y, 0, 0);
    uint32_t reciprocal = kir_spv_op(e, OpFDiv, SPV_F32, kir_spv_const(e, SPV_F32, ONE), f, 0);
    g = kir_spv_op(e, OpFAdd, SPV_F32, g, kir_spv_const(e, SPV_F32, HALF), 0);
    uint32_t quotient = kir_spv_op(e, OpFMul, SPV_F32, g, reciprocal, 0);
    quotient = to_index(e, kir_spv_op(e, OpConvertFToU, SPV_U32, quotient, 0, 0));
    uint32_t below = kir_spv_op(e, OpULessThan, SPV_BOOL, y, n, 0);
    uint32_t once = kir_spv_op(e, OpSelect, e->ix, below, index_number(e, 0), index_number(e, 1));
    uint32_t is_small = kir_spv_op(e, OpULessThan, SPV_BOOL, n, index_number(e, e->kernel->group[0]), 0);
    return kir_spv_op(e, OpSelect, e->ix, is_small, quotient, once);
}

/* Coordinates of a plain program: those of the workgroup's first point, which all items share, then the offset to this
 * item with carries. */
static void put_point(spv *e, uint32_t start, uint32_t item, int end) {
    uint32_t first[KIR_MAX_AXES], carry = item;
    put_coordinates(e, first, start, 0, end);
    for (int axis = end - 1; axis >= 0; axis--) {
        uint32_t y = index_op(e, OpIAdd, first[axis], carry);
        if (axis > 0) carry = carry_of(e, y, e->n[axis]);
        e->x[axis] = axis == 0 ? y : index_op(e, OpISub, y, index_op(e, OpIMul, carry, e->n[axis]));
    }
}

/* The item's index in its workgroup. With subgroups, the order of items within a subgroup is not defined. */
static uint32_t item_number(spv *e) {
    if (!e->kernel->lanes) return built_in(e, SPV_U32, BuiltInLocalInvocationIndex);
    uint32_t subgroup = built_in(e, SPV_U32, BuiltInSubgroupId), lanes = kir_spv_u32(e, (uint32_t)e->kernel->lanes);
    uint32_t first = kir_spv_op(e, OpIMul, SPV_U32, subgroup, lanes, 0);
    return kir_spv_op(e, OpIAdd, SPV_U32, first, built_in(e, SPV_U32, BuiltInSubgroupLocalInvocationId), 0);
}

static void put_lead(spv *e) {
    int lead = kir_lead_axes(e->p);
    uint32_t group = group_number(e), item = to_index(e, item_number(e));
    if (e->p->n_items > 0) {
        leave_beyond(e, group);
        put_coordinates(e, e->x, group, 0, lead);
        put_coordinates(e, e->x, item, lead, e->p->n_par);
    } else {
        uint32_t start = index_op(e, OpIMul, group, index_number(e, e->kernel->group[0]));
        leave_beyond(e, index_op(e, OpIAdd, start, item));
        put_point(e, start, item, lead);
    }
    for (int axis = 0; axis < e->p->n_par; axis++)
        e->x32[axis] = kir_spv_resize(e, e->x[axis], e->ix, SPV_U32, false);
}

void kir_spv_kernel(spv *e) {
    e->at = SPV_LEAD;
    declare_buffers(e);
    put_extents(e);
    put_lead(e);
    e->at = SPV_BODY;
    e->axes_open = (1U << e->p->n_par) - 1;
    kir_spv_range(e, 0, e->p->n_ins);
}

/* ---- indices ----------------------------------------------------------------------------------------------------- */

/* The offset (number 0) of an access, or its stride along axis number - 1; 0 when it is known to be 0. */
static uint32_t spirv_number_of(spv *e, int access, int number, spv_type type) {
    size_t axes = (size_t)(e->p->n_par + e->p->n_loop);
    if (access < e->p->n_sized) return index_word(e, axes + (size_t)access * (axes + 1) + (size_t)number, type);
    int64_t fixed = e->p->access[access].fixed[number];
    return fixed ? kir_spv_const(e, type, type == SPV_U32 ? (uint32_t)fixed : (uint64_t)fixed) : 0;
}

static uint32_t add_spirv(spv *e, spv_type type, uint32_t a, uint32_t b) {
    return !a ? b : !b ? a : kir_spv_op(e, OpIAdd, type, a, b, 0);
}

/* Adds the access's way along these axes to `sum`, which may be 0 as the result. */
static uint32_t add_axes(spv *e, int access, uint32_t axes, spv_type type, uint32_t sum) {
    const uint32_t *x = type == SPV_U32 ? e->x32 : e->x;
    for (int axis = 0; axes >> axis; axis++) {
        uint32_t stride = axes >> axis & 1 ? spirv_number_of(e, access, 1 + axis, type) : 0;
        bool is_one = access >= e->p->n_sized && stride && e->p->access[access].fixed[1 + axis] == 1;
        if (stride) sum = add_spirv(e, type, sum, is_one ? x[axis] : kir_spv_op(e, OpIMul, type, x[axis], stride, 0));
    }
    return sum;
}

/* The affine value of an access. What does not change within loops is computed before them, once. */
static uint32_t affine(spv *e, int access, spv_type type) {
    int buffer = e->p->access[access].buffer;
    uint32_t outside = (1U << e->p->n_par) - 1;
    if (!e->place[access]) {
        spv_section was = move_to(e, SPV_FIXED);
        uint32_t base = buffer >= 0 && e->p->local[buffer] == 0 ? base_of(e, buffer) : 0;
        uint32_t sum = add_spirv(e, type, base, spirv_number_of(e, access, 0, type));
        sum = add_axes(e, access, outside, type, sum);
        e->place[access] = sum ? sum : kir_spv_const(e, type, 0);
        e->at = was;
    }
    return add_axes(e, access, e->axes_open & ~outside, type, e->place[access]);
}

static spv_type spirv_type_of(const spv *e, kir_val v) { return kir_spv_type_of((kir_type)e->p->ins[v].type); }

static uint32_t kir_spv_address(spv *e, const kir_ins *in) {
    kir_val dyn = e->p->access[in->imm.i].dyn;
    uint32_t index = affine(e, (int)in->imm.i, SPV_U32);
    if (dyn == KIR_NONE) return index;
    return add_spirv(e, SPV_U32, index,
                     kir_spv_resize(e, kir_spv_value(e, dyn), spirv_type_of(e, dyn), SPV_U32, false));
}

static void put_index(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    spv_type type = kir_spv_type_of((kir_type)in->type);
    kir_val dyn = e->p->access[in->imm.i].dyn;
    uint32_t v = kir_spv_resize(e, affine(e, (int)in->imm.i, e->ix), e->ix, type, true);
    e->value[i] = dyn == KIR_NONE ? v : add_spirv(e, type, v, kir_spv_value(e, dyn));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Address of an element: the index of a value of its buffer's memory_type, and the shift within that value in bits;
 * shift 0: none. */
typedef struct location {
    uint32_t index, shift;
} location;

static location locate_spirv(spv *e, const kir_ins *in) {
    int buffer = e->p->access[in->imm.i].buffer;
    if (e->memory[buffer] == SPV_UVEC4 && !e->refused) e->refused = (int)(in - e->p->ins) + 1;
    uint32_t index = kir_spv_address(e, in), shift = 0;
    if (is_packed(e, buffer)) {
        uint32_t bits = element_of(e, buffer)->bits, log2 = bits == 8 ? 2 : 1;
        shift = kir_spv_op(e, OpBitwiseAnd, SPV_U32, index, kir_spv_u32(e, 32 / bits - 1), 0);
        shift = kir_spv_op(e, OpShiftLeftLogical, SPV_U32, shift, kir_spv_u32(e, 5 - log2), 0);
        index = kir_spv_op(e, OpShiftRightLogical, SPV_U32, index, kir_spv_u32(e, log2), 0);
    } else if (is_pair(e, buffer)) {
        index = kir_spv_op(e, OpShiftLeftLogical, SPV_U32, index, kir_spv_u32(e, 1), 0);
        index = kir_spv_op(e, OpBitwiseOr, SPV_U32, index, kir_spv_u32(e, in->kind), 0);
    }
    return (location){index, shift};
}

static uint32_t pointer_in(spv *e, int buffer, uint32_t index) {
    uint32_t storage = e->p->local[buffer] > 0 ? StorageWorkgroup : StorageBuffer;
    return kir_spv_place(e, storage, e->memory[buffer], e->buffers[buffer], index);
}

/* One of a buffer's windows: code written until it is closed runs if the index is in it. */
typedef struct window {
    uint32_t pointer, merge;
} window;

static window open_window(spv *e, int buffer, uint32_t index, int k) {
    uint32_t shift = (uint32_t)__builtin_ctzll((uint64_t)e->t->window / STRIDES[e->memory[buffer]]);
    uint32_t number = kir_spv_op(e, OpShiftRightLogical, SPV_U32, index, kir_spv_u32(e, shift), 0);
    uint32_t is_here = kir_spv_op(e, OpIEqual, SPV_BOOL, number, kir_spv_u32(e, (uint32_t)k), 0);
    window w = {.merge = kir_spv_if(e, is_here)};
    uint32_t inside =
        kir_spv_op(e, OpBitwiseAnd, SPV_U32, index, kir_spv_u32(e, (uint32_t)(((uint64_t)1 << shift) - 1)), 0);
    uint32_t variable = e->windows[e->buffers[buffer] + (uint32_t)k];
    w.pointer = kir_spv_place(e, StorageBuffer, e->memory[buffer], variable, inside);
    return w;
}

/* The operand of a load or store that makes it visible to other items; 0: none. */
static uint32_t shared_access(const spv *e, int buffer) { return e->p->local[buffer] > 0 ? e->shared_access : 0; }

/* Small elements are widened at once: a module may load 8 and 16 bits, but not have variables of them. */
static spv_type loaded_type(spv_type memory) {
    return memory == SPV_F16 ? SPV_F32 : memory == SPV_U8 || memory == SPV_U16 ? SPV_U32 : memory;
}

static uint32_t load_at(spv *e, int buffer, uint32_t pointer, uint32_t access) {
    spv_type type = e->memory[buffer];
    uint32_t v = kir_spv_op(e, OpLoad, type, pointer, access, 0);
    return kir_spv_resize(e, v, type, loaded_type(type), element_of(e, buffer)->is_signed);
}

static uint32_t load_memory(spv *e, int buffer, uint32_t index) {
    spv_type type = loaded_type(e->memory[buffer]);
    if (windows_of(e, buffer) == 1) return load_at(e, buffer, pointer_in(e, buffer, index), shared_access(e, buffer));
    uint32_t found = kir_spv_variable(e, type, 1);
    for (int k = 0; k < windows_of(e, buffer); k++) {
        window w = open_window(e, buffer, index, k);
        kir_spv_do(e, OpStore, found, load_at(e, buffer, w.pointer, 0), 0);
        kir_spv_end_if(e, w.merge);
    }
    return kir_spv_op(e, OpLoad, type, found, 0, 0);
}

/* bf16 are bits to all but the matrix units: the upper half of an f32's. */
static bool is_brain(const spv *e, int buffer) { return e->p->buffer_dtype[buffer] == TN_BF16; }

static uint32_t widen_brain(spv *e, uint32_t bits) {
    uint32_t upper = kir_spv_op(e, OpShiftLeftLogical, SPV_U32, bits, kir_spv_u32(e, 16), 0);
    return kir_spv_op(e, OpBitcast, SPV_F32, upper, 0, 0);
}

/* As kir_to_bf16 does it: to nearest even, a NaN stays one. */
static uint32_t narrow_brain(spv *e, uint32_t x) {
    uint32_t bits = kir_spv_op(e, OpBitcast, SPV_U32, x, 0, 0), sixteen = kir_spv_u32(e, 16);
    uint32_t upper = kir_spv_op(e, OpShiftRightLogical, SPV_U32, bits, sixteen, 0);
    uint32_t odd = kir_spv_op(e, OpBitwiseAnd, SPV_U32, upper, kir_spv_u32(e, 1), 0);
    uint32_t above =
        kir_spv_op(e, OpIAdd, SPV_U32, kir_spv_op(e, OpIAdd, SPV_U32, bits, odd, 0), kir_spv_u32(e, 0x7fff), 0);
    uint32_t size = kir_spv_op(e, OpBitwiseAnd, SPV_U32, bits, kir_spv_u32(e, 0x7fffffff), 0);
    uint32_t nan = kir_spv_op(e, OpUGreaterThan, SPV_BOOL, size, kir_spv_u32(e, 0x7f800000), 0);
    uint32_t quiet = kir_spv_op(e, OpBitwiseOr, SPV_U32, upper, kir_spv_u32(e, 0x40), 0);
    return kir_spv_op(e, OpSelect, SPV_U32, nan, quiet, kir_spv_op(e, OpShiftRightLogical, SPV_U32, above, sixteen, 0));
}

static uint32_t load_element(spv *e, const kir_ins *in) {
    int buffer = e->p->access[in->imm.i].buffer;
    const element *m = element_of(e, buffer);
    location at = locate_spirv(e, in);
    uint32_t v = load_memory(e, buffer, at.index);
    if (m->bits < 32 && e->memory[buffer] == SPV_U32) {
        uint32_t shift = at.shift ? at.shift : kir_spv_u32(e, 0);
        v = kir_spv_op(e, m->is_signed ? OpBitFieldSExtract : OpBitFieldUExtract, SPV_U32, v, shift,
                       kir_spv_u32(e, m->bits));
    }
    if (is_brain(e, buffer)) return widen_brain(e, v);
    return in->type == KIR_BOOL ? kir_spv_op(e, OpINotEqual, SPV_BOOL, v, kir_spv_u32(e, 0), 0) : v;
}

static void put_load(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    if (in->a == KIR_NONE) {
        e->value[i] = load_element(e, in);
        return;
    }
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t zero = kir_spv_const(e, type, 0), before = e->label, merge = kir_spv_if(e, kir_spv_value(e, in->a));
    uint32_t v = load_element(e, in), inside = e->label;
    kir_spv_end_if(e, merge);
    e->value[i] = kir_spv_phi(e, type, (uint32_t[]){v, inside, zero, before});
}

/* Stores the low bits of v into a word whose other bits other items may be writing. */
static void store_packed(spv *e, uint32_t pointer, uint32_t shift, uint32_t v, uint32_t bits) {
    uint32_t mask = kir_spv_u32(e, (1U << bits) - 1), scope = kir_spv_u32(e, ScopeDevice), relaxed = kir_spv_u32(e, 0);
    uint32_t hole = kir_spv_op(e, OpShiftLeftLogical, SPV_U32, mask, shift, 0);
    v = kir_spv_op(e, OpShiftLeftLogical, SPV_U32, kir_spv_op(e, OpBitwiseAnd, SPV_U32, v, mask, 0), shift, 0);
    uint32_t words[] = {kir_spv_type_id(e, SPV_U32), kir_spv_id(e), pointer, scope, relaxed, 0};
    words[5] = kir_spv_op(e, OpNot, SPV_U32, hole, 0, 0);
    kir_spv_put(e, e->at, OpAtomicAnd, words, 6);
    words[1] = kir_spv_id(e);
    words[5] = v;
    kir_spv_put(e, e->at, OpAtomicOr, words, 6);
}

static void store_memory(spv *e, int buffer, uint32_t pointer, uint32_t shift, uint32_t v) {
    if (shift)
        store_packed(e, pointer, shift, v, element_of(e, buffer)->bits);
    else
        kir_spv_do(e, OpStore, pointer, v, shared_access(e, buffer));
}

static void store_element(spv *e, const kir_ins *in) {
    int buffer = e->p->access[in->imm.i].buffer;
    spv_type from = spirv_type_of(e, in->a);
    uint32_t v = kir_spv_value(e, in->a);
    location at = locate_spirv(e, in);
    if (is_brain(e, buffer)) {
        v = narrow_brain(e, v);
        from = SPV_U32;
    }
    if (from == SPV_BOOL) v = kir_spv_op(e, OpSelect, SPV_U32, v, kir_spv_u32(e, 1), kir_spv_u32(e, 0));
    if (!at.shift) v = kir_spv_resize(e, v, from == SPV_BOOL ? SPV_U32 : from, e->memory[buffer], false);
    if (windows_of(e, buffer) == 1) store_memory(e, buffer, pointer_in(e, buffer, at.index), at.shift, v);
    for (int k = 0; windows_of(e, buffer) > 1 && k < windows_of(e, buffer); k++) {
        window w = open_window(e, buffer, at.index, k);
        store_memory(e, buffer, w.pointer, at.shift, v);
        kir_spv_end_if(e, w.merge);
    }
}

static void put_store(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    uint32_t merge = in->b == KIR_NONE ? 0 : kir_spv_if(e, kir_spv_value(e, in->b));
    store_element(e, in);
    if (merge) kir_spv_end_if(e, merge);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

typedef enum type_class { FLOAT, SIGNED, UNSIGNED, BOOL, CLASS_COUNT } type_class;

static const uint8_t CLASSES[KIR_TYPE_COUNT] = {FLOAT, FLOAT, SIGNED, SIGNED, UNSIGNED, UNSIGNED, BOOL};

enum { EXT = 256 }; /* + the number of a function of GLSL.std.450 */
#define EVERY(op) \
    { op, op, op, op }

static const uint16_t OPERATIONS[KIR_OP_COUNT][CLASS_COUNT] = {
    [KIR_NEG] = {OpFNegate, OpSNegate, OpSNegate},
    [KIR_ABS] = {EXT + ExtFAbs},
    [KIR_SQRT] = {EXT + ExtSqrt},
    [KIR_ADD] = {OpFAdd, OpIAdd, OpIAdd},
    [KIR_SUB] = {OpFSub, OpISub, OpISub},
    [KIR_MUL] = {OpFMul, OpIMul, OpIMul},
    [KIR_DIV] = {OpFDiv, OpSDiv, OpUDiv},
    [KIR_MOD] = {0, OpSDiv, OpUMod}, /* signed: what the quotient leaves */
    [KIR_AND] = {0, OpBitwiseAnd, OpBitwiseAnd, OpLogicalAnd},
    [KIR_OR] = {0, OpBitwiseOr, OpBitwiseOr, OpLogicalOr},
    [KIR_XOR] = {0, OpBitwiseXor, OpBitwiseXor, OpLogicalNotEqual},
    [KIR_SHL] = {0, OpShiftLeftLogical, OpShiftLeftLogical},
    [KIR_SHR] = {0, OpShiftRightArithmetic, OpShiftRightLogical},
    [KIR_EQ] = {OpFOrdEqual, OpIEqual, OpIEqual, OpLogicalEqual},
    [KIR_LT] = {OpFOrdLessThan, OpSLessThan, OpULessThan},
    [KIR_LE] = {OpFOrdLessThanEqual, OpSLessThanEqual, OpULessThanEqual},
    [KIR_FMA] = {EXT + ExtFma},
    [KIR_SELECT] = EVERY(OpSelect),
};

static const uint8_t ROUNDINGS[] = {
    [KIR_FLOOR] = ExtFloor, [KIR_CEIL] = ExtCeil, [KIR_TRUNC] = ExtTrunc, [KIR_NEAREST_EVEN] = ExtRoundEven};

uint32_t kir_spv_literal(spv *e, const kir_ins *constant) {
    kir_value v = kir_const_value(constant);
    spv_type type = kir_spv_type_of((kir_type)constant->type);
    return kir_spv_const(e, type, type == SPV_BOOL ? v.b : type == SPV_U32 || type == SPV_F32 ? v.u32 : v.u64);
}

static uint32_t one_of(spv *e, spv_type type) {
    return kir_spv_const(e, type, type == SPV_F32 ? 0x3f800000 : type == SPV_F64 ? 0x3ff0000000000000 : 1);
}

static uint32_t cast(spv *e, const kir_ins *in, kir_type operand, uint32_t v) {
    spv_type from = kir_spv_type_of(operand), to = kir_spv_type_of((kir_type)in->type);
    type_class a = CLASSES[operand], b = CLASSES[in->type];
    static const uint16_t between[2][3] = {{0, OpConvertFToS, OpConvertFToU}, {0, OpConvertSToF, OpConvertUToF}};
    if (from == SPV_BOOL && to == SPV_BOOL) return v;
    if (to == SPV_BOOL)
        return kir_spv_op(e, a == FLOAT ? OpFUnordNotEqual : OpINotEqual, to, v, kir_spv_const(e, from, 0), 0);
    if (from == SPV_BOOL) return kir_spv_op(e, OpSelect, to, v, one_of(e, to), kir_spv_const(e, to, 0));
    if ((a == FLOAT) == (b == FLOAT)) return kir_spv_resize(e, v, from, to, a == SIGNED);
    return kir_spv_op(e, a == FLOAT ? between[0][b] : between[1][a], to, v, 0, 0);
}

static uint32_t bitcast(spv *e, const kir_ins *in, kir_type operand, uint32_t v) {
    spv_type from = kir_spv_type_of(operand), to = kir_spv_type_of((kir_type)in->type);
    return from == to ? v : kir_spv_op(e, OpBitcast, to, v, 0, 0);
}

static bool is_split(const spv *e, const kir_ins *in) {
    return in->op == KIR_FMA && e->t->features & TN_SPIRV_FMA_SPLITS && (in->type == KIR_F32 || e->t->i64);
}

/* 64 bits by Floor and Ceil alone: without AVX-512, llvmpipe's Trunc and RoundEven lose the sign of zero and do not
 * round numbers beyond 2^31. */
static uint32_t round_f64(spv *e, kir_round mode, uint32_t x) {
    uint32_t down = kir_spv_ext(e, ExtFloor, SPV_F64, x, 0, 0), up = kir_spv_ext(e, ExtCeil, SPV_F64, x, 0, 0);
    if (mode == KIR_FLOOR) return down;
    if (mode == KIR_CEIL) return up;
    if (mode == KIR_TRUNC) {
        uint32_t negative = kir_spv_op(e, OpFOrdLessThan, SPV_BOOL, x, kir_spv_const(e, SPV_F64, 0), 0);
        return kir_spv_op(e, OpSelect, SPV_F64, negative, up, down);
    }
    /* The distance from below is exact, but between -1/2 and 0: there it may become 1/2, and -1 is odd. */
    uint32_t half = kir_spv_const(e, SPV_F64, 0x3fe0000000000000);
    uint32_t from_down = kir_spv_op(e, OpFSub, SPV_F64, x, down, 0);
    uint32_t halved = kir_spv_op(e, OpFMul, SPV_F64, down, half, 0);
    uint32_t is_even = kir_spv_op(e, OpFOrdEqual, SPV_BOOL, kir_spv_ext(e, ExtFloor, SPV_F64, halved, 0, 0), halved, 0);
    uint32_t tie = kir_spv_op(e, OpFOrdEqual, SPV_BOOL, from_down, half, 0);
    uint32_t nearer = kir_spv_op(e, OpFOrdLessThan, SPV_BOOL, from_down, half, 0);
    uint32_t take_down =
        kir_spv_op(e, OpLogicalOr, SPV_BOOL, nearer, kir_spv_op(e, OpLogicalAnd, SPV_BOOL, tie, is_even, 0), 0);
    return kir_spv_op(e, OpSelect, SPV_F64, take_down, down, up);
}

uint32_t kir_spv_operation(spv *e, const kir_ins *in, kir_type operand, const uint32_t v[3]) {
    spv_type type = kir_spv_type_of((kir_type)in->type);
    if (in->op == KIR_CAST) return cast(e, in, operand, v[0]);
    if (in->op == KIR_BITCAST) return bitcast(e, in, operand, v[0]);
    if (in->op == KIR_ROUND && type == SPV_F64) return round_f64(e, (kir_round)in->imm.i, v[0]);
    if (in->op == KIR_ROUND) return kir_spv_ext(e, ROUNDINGS[in->imm.i], type, v[0], 0, 0);
    if (is_split(e, in)) return spv_fma(e, type, v);
    uint32_t op = OPERATIONS[in->op][CLASSES[operand]];
    if (op == 0) return 0;
    if (op >= EXT) return kir_spv_ext(e, op - EXT, type, v[0], v[1], v[2]);
    uint32_t result = kir_spv_op(e, op, type, v[0], v[1], v[2]);
    if (in->op != KIR_MOD || op != OpSDiv) return result;
    return kir_spv_op(e, OpISub, type, v[0], kir_spv_op(e, OpIMul, type, result, v[1], 0), 0);
}

/* The greater or lesser one: a NaN, or a where both are equal, as kir.h has it. */
static uint32_t spirv_extreme(spv *e, bool most, kir_type t, uint32_t a, uint32_t b) {
    static const uint16_t beyond[2][CLASS_COUNT] = {{OpFOrdLessThan, OpSLessThan, OpULessThan, OpLogicalAnd},
                                                    {OpFOrdGreaterThan, OpSGreaterThan, OpUGreaterThan, OpLogicalOr}};
    uint32_t better = kir_spv_op(e, beyond[most][CLASSES[t]], SPV_BOOL, a, b, 0);
    if (t == KIR_BOOL) return better;
    if (kir_is_float(t)) {
        uint32_t is_nan = kir_spv_op(e, OpFUnordNotEqual, SPV_BOOL, a, a, 0);
        better = kir_spv_op(e, OpLogicalOr, SPV_BOOL, better, is_nan, 0);
    }
    return kir_spv_op(e, OpSelect, kir_spv_type_of(t), better, a, b);
}

uint32_t kir_spv_combine(spv *e, kir_reduce kind, kir_type t, uint32_t a, uint32_t b) {
    if (kind == KIR_RMAX || kind == KIR_RMIN) return spirv_extreme(e, kind == KIR_RMAX, t, a, b);
    kir_ins in = {.op = kind == KIR_PROD ? KIR_MUL : KIR_ADD, .type = (uint8_t)t};
    return kir_spv_operation(e, &in, t, (uint32_t[3]){a, b, 0});
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

uint32_t kir_spv_value(spv *e, kir_val v) { return e->value[v]; }

static void put_pure(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    uint32_t v[3] = {0};
    kir_type operand = (kir_type)in->type;
    for (int k = 0; k < kir_arity(in); k++) {
        v[k] = kir_spv_value(e, kir_operand(in, k));
        operand = (kir_type)e->p->ins[kir_operand(in, k)].type;
    }
    e->value[i] = kir_spv_operation(e, in, operand, v);
    if (!e->value[i] && !e->refused) e->refused = i + 1;
}

static void put_const(spv *e, int i) { e->value[i] = kir_spv_literal(e, &e->p->ins[i]); }

static void put_runtime_scalar(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    size_t word = kir_sizes_count(e->p) + (size_t)in->imm.i;
    spv_section was = move_to(e, SPV_EARLY);
    spv_type type = kir_spv_type_of((kir_type)in->type);
    if (type == SPV_U32)
        e->value[i] = in->kind ? extract(e, SPV_U32, loaded_word(e, word), 1) : kir_spv_low(e, word);
    else if (type == SPV_F32)
        e->value[i] = kir_spv_op(e, OpFConvert, type, kir_spv_word(e, word, SPV_F64), 0, 0);
    else if (type != SPV_BOOL)
        e->value[i] = kir_spv_word(e, word, type);
    else {
        uint32_t any =
            kir_spv_op(e, OpBitwiseOr, SPV_U32, kir_spv_low(e, word), extract(e, SPV_U32, loaded_word(e, word), 1), 0);
        e->value[i] = kir_spv_op(e, OpINotEqual, type, any, kir_spv_u32(e, 0), 0);
    }
    e->at = was;
}

static void put_var(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    e->value[i] = kir_spv_variable(e, kir_spv_type_of((kir_type)in->type), 1);
    kir_spv_do(e, OpStore, e->value[i], kir_spv_value(e, in->a), 0);
}

static void put_get(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    e->value[i] = kir_spv_op(e, OpLoad, kir_spv_type_of((kir_type)in->type), e->value[in->a], 0, 0);
}

static void put_set(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    kir_spv_do(e, OpStore, e->value[in->a], kir_spv_value(e, in->b), 0);
}

static void put_barrier(spv *e, TN_UNUSED int i) {
    uint32_t group = kir_spv_u32(e, ScopeWorkgroup);
    uint32_t semantics = e->shared_access ? SemanticsBarrier | SemanticsExchange : SemanticsBarrier;
    kir_spv_do(e, OpControlBarrier, group, group, kir_spv_u32(e, semantics));
}

static void put_of_group(spv *e, int i) {
    if (!spv_matrix(e, i) && !e->refused) e->refused = i + 1;
}

void kir_spv_range(spv *e, int begin, int end) {
    static void (*const writers[KIR_OP_COUNT])(spv * e, int i) = {
        [KIR_CONST] = put_const, [KIR_SCALAR] = put_runtime_scalar, [KIR_INDEX] = put_index,   [KIR_LOAD] = put_load,
        [KIR_STORE] = put_store, [KIR_REDUCE] = kir_spv_feed,       [KIR_SCAN] = kir_spv_feed, [KIR_VAR] = put_var,
        [KIR_GET] = put_get,     [KIR_BARRIER] = put_barrier,       [KIR_SET] = put_set,
    };
    for (int i = begin; i < end; i++) {
        uint8_t op = e->p->ins[i].op;
        if (op == KIR_LOOP)
            i = kir_spv_loop(e, i);
        else if (writers[op])
            writers[op](e, i);
        else if (op > KIR_BARRIER)
            put_of_group(e, i);
        else
            put_pure(e, i);
    }
}

/* ==== cooperative matrices and packets ============================================================================ */
/* Matrices that a device multiplies may be smaller than KIR's 16×16: 8 or 16 rows, columns and steps of k
 * (tn_caps.features). So a matrix or fragment is a grid of pieces with consecutive ids: variables of a matrix, values
 * of a fragment. A local buffer that packets fill is an array of packets, and pieces are loaded from it directly; a
 * global one has a second variable for its binding, which accesses packets. */

enum { USE_A = 0, USE_B = 1, USE_SUM = 2, ROW_MAJOR = 0, COLUMN_MAJOR = 1 }; /* numbers of the extension */
enum { PACKET = 8 /* elements */ };

/* The pieces of a matrix or fragment: how many down and across, rows and columns of each. */
typedef struct grid {
    uint32_t type;
    int down, across, rows, columns;
} grid;

static int edge(const spv *e, uint32_t is_8) { return e->t->features & is_8 ? KIR_EDGE / 2 : KIR_EDGE; }

/* Of numbers as the device multiplies them: halves of either kind. */
static uint32_t half_type(spv *e, tn_dtype dtype) {
    enum { BFLOAT_16 = 0 }; /* the encoding */
    e->uses |= dtype == TN_BF16 ? TN_SPIRV_BFLOAT_16 : TN_SPIRV_FLOAT_16;
    if (dtype != TN_BF16) return kir_spv_type_id(e, SPV_F16);
    return kir_spv_shared(e, OpTypeFloat, 0, (uint32_t[]){16, BFLOAT_16}, 2);
}

/* `dtype`: of the factors; sums have none. */
static grid grid_of(spv *e, int use, tn_dtype dtype) {
    grid g = {.rows = edge(e, use == USE_B ? TN_SPIRV_MATRIX_K8 : TN_SPIRV_MATRIX_M8),
              .columns = edge(e, use == USE_A ? TN_SPIRV_MATRIX_K8 : TN_SPIRV_MATRIX_N8)};
    uint32_t type = use == USE_SUM ? kir_spv_type_id(e, SPV_F32) : half_type(e, dtype);
    uint32_t words[] = {type, kir_spv_u32(e, ScopeSubgroup), kir_spv_u32(e, (uint32_t)g.rows),
                        kir_spv_u32(e, (uint32_t)g.columns), kir_spv_u32(e, (uint32_t)use)};
    g.type = kir_spv_shared(e, OpTypeCooperativeMatrixKHR, 0, words, TN_COUNT(words));
    g.down = KIR_EDGE / g.rows;
    g.across = KIR_EDGE / g.columns;
    return g;
}

static grid sums_grid(spv *e) { return grid_of(e, USE_SUM, TN_F32); }

static tn_dtype spirv_dtype_of(const spv *e, const kir_ins *in) {
    return (tn_dtype)e->p->buffer_dtype[e->p->access[in->imm.i].buffer];
}

/* So many ids that follow each other. */
static uint32_t ids(spv *e, int count) {
    uint32_t first = e->next_id;
    e->next_id += (uint32_t)count;
    return first;
}

static uint32_t load_piece(spv *e, const grid *g, uint32_t variable) {
    uint32_t id = kir_spv_id(e);
    kir_spv_put(e, e->at, OpLoad, (uint32_t[]){g->type, id, variable}, 3);
    return id;
}

/* ---- lines of workgroup memory ----------------------------------------------------------------------------------- */

/* The lines of a matrix instruction: first element, and the unit of the buffer's elements. */
typedef struct lines {
    uint32_t variable, index, stride;
    spv_type type;
    int line, unit;
} lines;

static lines lines_of(spv *e, const kir_ins *in) {
    int buffer = e->p->access[in->imm.i].buffer;
    lines l = {.variable = e->buffers[buffer], .type = e->memory[buffer], .line = kir_line(in)};
    l.unit = l.type == SPV_UVEC4 ? PACKET : 1;
    l.index = kir_spv_address(e, in);
    if (l.unit > 1) l.index = kir_spv_op(e, OpUDiv, SPV_U32, l.index, kir_spv_u32(e, PACKET), 0);
    l.stride = kir_spv_u32(e, (uint32_t)(l.line / l.unit));
    return l;
}

/* Pointer to piece (i, j) of a grid; `turned`: lines are columns. */
static uint32_t piece_at(spv *e, const lines *l, const grid *g, int i, int j, bool turned) {
    int down = i * g->rows, right = j * g->columns;
    int offset = (turned ? right * l->line + down : down * l->line + right) / l->unit;
    uint32_t index = l->index;
    if (offset) index = kir_spv_op(e, OpIAdd, SPV_U32, index, kir_spv_u32(e, (uint32_t)offset), 0);
    return kir_spv_place(e, StorageWorkgroup, l->type, l->variable, index);
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static void put_matrix(spv *e, int i) {
    grid g = sums_grid(e);
    uint32_t pointer = kir_spv_pointer(e, StorageFunction, g.type), nothing[] = {g.type, kir_spv_const(e, SPV_F32, 0)};
    uint32_t zero = kir_spv_shared(e, OpConstantComposite, 1, nothing, 2);
    uint32_t first = e->value[i] = ids(e, g.down * g.across);
    for (uint32_t id = first; id < e->next_id; id++) {
        kir_spv_put(e, SPV_VARIABLES, OpVariable, (uint32_t[]){pointer, id, StorageFunction}, 3);
        kir_spv_do(e, OpStore, id, zero, 0);
    }
}

static void put_fragment(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    bool is_b = in->kind & KIR_FACTOR_B, along_k = in->kind & KIR_ALONG_K, turned = is_b == along_k;
    grid g = grid_of(e, is_b ? USE_B : USE_A, spirv_dtype_of(e, in));
    lines l = lines_of(e, in);
    uint32_t layout = kir_spv_u32(e, turned ? COLUMN_MAJOR : ROW_MAJOR);
    e->value[i] = ids(e, g.down * g.across);
    for (int k = 0; k < g.down * g.across; k++) {
        uint32_t at = piece_at(e, &l, &g, k / g.across, k % g.across, turned);
        uint32_t words[] = {g.type, e->value[i] + (uint32_t)k, at, layout, l.stride, e->shared_access};
        kir_spv_put(e, e->at, OpCooperativeMatrixLoadKHR, words, TN_COUNT(words));
    }
}

/* A piece of the sums: what one step of k after the other adds to it. */
static uint32_t multiply_spirv(spv *e, const kir_ins *in, const grid *sums, int i, int j, uint32_t sum) {
    int steps = KIR_EDGE / edge(e, TN_SPIRV_MATRIX_K8);
    for (int k = 0; k < steps; k++) {
        uint32_t a = e->value[in->b] + (uint32_t)(i * steps + k);
        uint32_t b = e->value[in->c] + (uint32_t)(k * sums->across + j);
        uint32_t words[] = {sums->type, kir_spv_id(e), a, b, sum};
        kir_spv_put(e, e->at, OpCooperativeMatrixMulAddKHR, words, TN_COUNT(words));
        sum = words[1];
    }
    return sum;
}

static void put_mma(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    grid g = sums_grid(e);
    for (int k = 0; k < g.down * g.across; k++) {
        uint32_t variable = e->value[in->a] + (uint32_t)k, was = load_piece(e, &g, variable);
        kir_spv_do(e, OpStore, variable, multiply_spirv(e, in, &g, k / g.across, k % g.across, was), 0);
    }
}

static void put_matrix_store(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    uint32_t merge = in->b == KIR_NONE ? 0 : kir_spv_if(e, kir_spv_value(e, in->b));
    uint32_t layout = kir_spv_u32(e, ROW_MAJOR);
    grid g = sums_grid(e);
    lines l = lines_of(e, in);
    for (int k = 0; k < g.down * g.across; k++) {
        uint32_t at = piece_at(e, &l, &g, k / g.across, k % g.across, false);
        uint32_t words[] = {at, load_piece(e, &g, e->value[in->a] + (uint32_t)k), layout, l.stride, e->shared_access};
        kir_spv_put(e, e->at, OpCooperativeMatrixStoreKHR, words, TN_COUNT(words));
    }
    if (merge) kir_spv_end_if(e, merge);
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

/* The variable that sees packets in a global buffer. */
static uint32_t packets_of(spv *e, int buffer) {
    uint32_t number = 0;
    for (int b = 0; b < buffer; b++)
        number += e->p->local[b] == 0;
    if (!e->packets[buffer]) e->packets[buffer] = kir_spv_alias(e, SPV_UVEC4, number);
    return e->packets[buffer];
}

static uint32_t packet_at(spv *e, const kir_ins *in, uint32_t storage, uint32_t variable) {
    uint32_t index = kir_spv_op(e, OpUDiv, SPV_U32, kir_spv_address(e, in), kir_spv_u32(e, PACKET), 0);
    return kir_spv_place(e, storage, SPV_UVEC4, variable, index);
}

static void put_fetch(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    uint32_t of = kir_spv_type_id(e, SPV_UVEC4), zero = kir_spv_shared(e, OpConstantNull, 1, &of, 1);
    uint32_t variable = packets_of(e, e->p->access[in->imm.i].buffer), before = e->label;
    uint32_t merge = in->a == KIR_NONE ? 0 : kir_spv_if(e, kir_spv_value(e, in->a));
    uint32_t v = kir_spv_op(e, OpLoad, SPV_UVEC4, packet_at(e, in, StorageBuffer, variable), 0, 0), inside = e->label;
    e->value[i] = v;
    if (!merge) return;
    kir_spv_end_if(e, merge);
    e->value[i] = kir_spv_phi(e, SPV_UVEC4, (uint32_t[]){v, inside, zero, before});
}

static void put_packet(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    uint32_t variable = e->buffers[e->p->access[in->imm.i].buffer];
    kir_spv_do(e, OpStore, packet_at(e, in, StorageWorkgroup, variable), kir_spv_value(e, in->a), e->shared_access);
}

static bool spv_matrix(spv *e, int i) {
    enum { FIRST = KIR_MATRIX, COUNT = KIR_OP_COUNT - FIRST };
    static void (*const writers[COUNT])(spv * e, int i) = {
        [KIR_MATRIX - FIRST] = put_matrix, [KIR_FRAGMENT - FIRST] = put_fragment,
        [KIR_MMA - FIRST] = put_mma,       [KIR_MATRIX_STORE - FIRST] = put_matrix_store,
        [KIR_FETCH - FIRST] = put_fetch,   [KIR_PUT - FIRST] = put_packet,
    };
    const kir_ins *in = &e->p->ins[i];
    bool late = in->op == KIR_PUT && in->kind, wide = in->op == KIR_MATRIX && in->kind;
    if (late || wide || !writers[in->op - FIRST]) return false;
    writers[in->op - FIRST](e, i);
    return true;
}

/* ==== fma rounded once, for devices that round the product too ==================================================== */
/* The rounding error of a float operation is also a float, and sums of these errors round as the exact sum would if the
 * last but one is rounded to odd (Boldo and Melquiond 2008), as long as no error underflows and nothing overflows. So
 * the operands are scaled to exponents near 0 first, and their exponent e is applied at the end by powers of two. A
 * result that will have fewer bits there, because it is subnormal, is rounded to these bits before: added to the
 * smallest normal number, where floats have the spacing of subnormals. Then scaling back is exact. */

typedef struct format {
    spv_type real, word;
    uint32_t digits, bias;
    uint64_t halves; /* a float, 2^h + 1: splits a factor into two whose products are exact */
    int64_t least;   /* an exponent at which everything that the operands can be is nothing */
} format;

static const format FORMATS[] = {{SPV_F32, SPV_U32, 24, 127, 0x45800800, -200},
                                 {SPV_F64, SPV_U64, 53, 1023, 0x41a0000002000000, -1200}};

typedef struct maths {
    spv *e;
    const format *f;
} maths;

static uint32_t real(maths m, uint32_t op, uint32_t a, uint32_t b) { return kir_spv_op(m.e, op, m.f->real, a, b, 0); }
static uint32_t fma_word(maths m, uint32_t op, uint32_t a, uint32_t b) {
    return kir_spv_op(m.e, op, m.f->word, a, b, 0);
}
static uint32_t is(maths m, uint32_t op, uint32_t a, uint32_t b) { return kir_spv_op(m.e, op, SPV_BOOL, a, b, 0); }
static uint32_t bits_of(maths m, uint32_t v) { return fma_word(m, OpBitcast, v, 0); }
static uint32_t real_of(maths m, uint32_t bits) { return real(m, OpBitcast, bits, 0); }

static uint32_t fma_number(maths m, int64_t v) {
    return kir_spv_const(m.e, m.f->word, m.f->word == SPV_U32 ? (uint32_t)v : (uint64_t)v);
}

static uint32_t choose_fma(maths m, spv_type type, uint32_t condition, uint32_t a, uint32_t b) {
    return kir_spv_op(m.e, OpSelect, type, condition, a, b);
}

/* The greater one of an integer and a number. */
static uint32_t at_least(maths m, uint32_t a, uint32_t b) {
    return choose_fma(m, m.f->word, is(m, OpSLessThan, a, b), b, a);
}

/* A result, and what it leaves out. */
typedef struct two {
    uint32_t value, rest;
} two;

/* Knuth's. */
static two sum_of(maths m, uint32_t a, uint32_t b) {
    uint32_t sum = real(m, OpFAdd, a, b), of_b = real(m, OpFSub, sum, a), of_a = real(m, OpFSub, sum, of_b);
    uint32_t left_a = real(m, OpFSub, a, of_a), left_b = real(m, OpFSub, b, of_b);
    return (two){sum, real(m, OpFAdd, left_a, left_b)};
}

/* Veltkamp's and Dekker's, by halves of the factors. */
static two halves_of(maths m, uint32_t a) {
    uint32_t wide = real(m, OpFMul, a, kir_spv_const(m.e, m.f->real, m.f->halves)), low = real(m, OpFSub, wide, a);
    uint32_t high = real(m, OpFSub, wide, low);
    return (two){high, real(m, OpFSub, a, high)};
}

static two product_of(maths m, uint32_t a, uint32_t b) {
    two x = halves_of(m, a), y = halves_of(m, b);
    uint32_t product = real(m, OpFMul, a, b), rest = real(m, OpFSub, real(m, OpFMul, x.value, y.value), product);
    rest = real(m, OpFAdd, rest, real(m, OpFMul, x.value, y.rest));
    rest = real(m, OpFAdd, rest, real(m, OpFMul, x.rest, y.value));
    return (two){product, real(m, OpFAdd, rest, real(m, OpFMul, x.rest, y.rest))};
}

/* a + b, whose last bit says whether anything was left out: rounding it further is as if the exact sum were rounded. */
static uint32_t odd_sum_of(maths m, uint32_t a, uint32_t b) {
    two s = sum_of(m, a, b);
    uint32_t way = real(m, OpFMul, s.rest, s.value),
             zero = kir_spv_const(m.e, m.f->real, 0); /* from or to 0, or none */
    uint32_t bits = bits_of(m, s.value), one = fma_number(m, 1), odd = fma_word(m, OpBitwiseOr, bits, one);
    uint32_t even = is(m, OpINotEqual, odd, bits);
    uint32_t below = choose_fma(m, m.f->word, even, fma_word(m, OpISub, bits, one), bits);
    bits = choose_fma(m, m.f->word, is(m, OpFOrdLessThan, zero, way), odd, bits);
    bits = choose_fma(m, m.f->word, is(m, OpFOrdLessThan, way, zero), below, bits);
    return real_of(m, bits);
}

/* ---- exponents --------------------------------------------------------------------------------------------------- */

/* 2^exponent, which is a normal number. */
static uint32_t power(maths m, uint32_t exponent) {
    uint32_t field = fma_word(m, OpIAdd, exponent, fma_number(m, m.f->bias));
    return real_of(m, fma_word(m, OpShiftLeftLogical, field, fma_number(m, m.f->digits - 1)));
}

/* A number as value · 2^exponent with 1 ≤ |value| < 2. 0, infinity and NaN stay as they are, with a meaningless
 * exponent. */
typedef struct scaled {
    uint32_t value, exponent, is_finite, is_nothing /* 0 */;
} scaled;

static uint32_t field_of(maths m, uint32_t v) {
    uint32_t field = fma_word(m, OpShiftRightLogical, bits_of(m, v), fma_number(m, m.f->digits - 1));
    return fma_word(m, OpBitwiseAnd, field, fma_number(m, 2 * m.f->bias + 1));
}

static scaled scale(maths m, uint32_t v) {
    const format *f = m.f;
    uint32_t zero = fma_number(m, 0), all = 2 * f->bias + 1,
             one = kir_spv_const(m.e, f->real, (uint64_t)f->bias << (f->digits - 1));
    uint32_t is_small = is(m, OpIEqual, field_of(m, v), zero);
    uint32_t up = kir_spv_const(m.e, f->real, (uint64_t)(f->bias + f->digits) << (f->digits - 1));
    uint32_t grown = real(m, OpFMul, v, choose_fma(m, f->real, is_small, up, one)), field = field_of(m, grown);
    uint32_t bias = choose_fma(m, f->word, is_small, fma_number(m, f->bias + f->digits), fma_number(m, f->bias));
    scaled s = {.exponent = fma_word(m, OpISub, field, bias), .is_nothing = is(m, OpIEqual, field, zero)};
    s.is_finite = is(m, OpINotEqual, field, fma_number(m, all));
    uint32_t rest = fma_number(m, (int64_t) ~((uint64_t)all << (f->digits - 1)));
    uint32_t value = fma_word(m, OpBitwiseOr, fma_word(m, OpBitwiseAnd, bits_of(m, grown), rest), bits_of(m, one));
    uint32_t plain = is(m, OpLogicalOr, s.is_nothing, is(m, OpLogicalNot, s.is_finite, 0));
    s.value = choose_fma(m, f->real, plain, v, real_of(m, value));
    return s;
}

/* (sum + rest) · 2^exponent, rounded once; `sum` is what the two round to. */
static uint32_t descale(maths m, two x, uint32_t exponent) {
    uint32_t top = fma_number(m, (int64_t)((uint64_t)1 << (m.f->word == SPV_U32 ? 31 : 63))), one = fma_number(m, 1);
    uint32_t bits = bits_of(m, x.value), sign = fma_word(m, OpBitwiseAnd, bits, top);
    uint32_t size = fma_word(m, OpBitwiseXor, bits, sign),
             field = at_least(m, fma_word(m, OpISub, one, exponent), fma_number(m, 0));
    uint32_t least =
        fma_word(m, OpShiftLeftLogical, field, fma_number(m, m.f->digits - 1)); /* the least normal number, there */
    uint32_t is_below = is(m, OpULessThan, size, least);
    least = choose_fma(m, m.f->word, is_below, fma_word(m, OpBitwiseOr, least, sign), fma_number(m, 0));
    two y = sum_of(m, real_of(m, least), x.value);
    uint32_t v = real(m, OpFSub, real(m, OpFAdd, y.value, odd_sum_of(m, y.rest, x.rest)), real_of(m, least));
    uint32_t half = fma_word(m, OpShiftRightArithmetic, exponent, one);
    v = real(m, OpFMul, v, power(m, half));
    v = real(m, OpFMul, v, power(m, fma_word(m, OpISub, exponent, half)));
    return real_of(m, fma_word(m, OpBitwiseOr, bits_of(m, v), sign));
}

/* With floats of the same type. The exponent is the product's; c is scaled relative to it, up to a limit beyond which
 * the smaller one only decides the rounding. */
static uint32_t by_rests(maths m, const uint32_t v[3]) {
    int64_t digits = m.f->digits;
    scaled a = scale(m, v[0]), b = scale(m, v[1]), c = scale(m, v[2]);
    uint32_t exponent = fma_word(m, OpIAdd, a.exponent, b.exponent);
    exponent = at_least(m, exponent, fma_word(m, OpISub, c.exponent, fma_number(m, digits + 7)));
    exponent = at_least(m, exponent, fma_number(m, m.f->least));
    uint32_t distance = at_least(m, fma_word(m, OpISub, c.exponent, exponent), fma_number(m, -2 * digits - 4));
    two product = product_of(m, a.value, b.value);
    two low = sum_of(m, real(m, OpFMul, c.value, power(m, distance)), product.rest);
    two high = sum_of(m, product.value, low.value);
    two exact = sum_of(m, high.value, odd_sum_of(m, high.rest, low.rest));
    uint32_t nothing = is(m, OpLogicalOr, a.is_nothing, b.is_nothing);
    uint32_t finite = is(m, OpLogicalAnd, is(m, OpLogicalAnd, a.is_finite, b.is_finite), c.is_finite);
    uint32_t plain = real(m, OpFAdd, product.value, v[2]), result = descale(m, exact, exponent);
    return choose_fma(m, m.f->real, is(m, OpLogicalAnd, finite, is(m, OpLogicalNot, nothing, 0)), result, plain);
}

/* That of f32 in f64, where the product is exact and nothing leaves the range. */
static uint32_t by_doubles(maths m, const uint32_t v[3]) {
    uint32_t wide[3];
    for (int i = 0; i < 3; i++)
        wide[i] = kir_spv_resize(m.e, v[i], SPV_F32, SPV_F64, true);
    return kir_spv_resize(m.e, odd_sum_of(m, real(m, OpFMul, wide[0], wide[1]), wide[2]), SPV_F64, SPV_F32, true);
}

static uint32_t spv_fma(spv *e, spv_type type, const uint32_t v[3]) {
    if (type == SPV_F32 && e->t->f64 && e->t->i64) return by_doubles((maths){e, &FORMATS[1]}, v);
    return by_rests((maths){e, &FORMATS[type == SPV_F64]}, v);
}
