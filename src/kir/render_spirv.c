/* render_spirv.c — a kernel as a SPIR-V 1.3 module: sections, types, constants, control flow, loops.
 *
 * A module declares only the capabilities that it uses: a kernel of f32 runs on devices with nothing else. Buffers are
 * bindings 0 … of set 0, in order; the block of parameters is the binding after them. Each float operation is decorated
 * NoContraction; denormals, infinities and rounding are set where the device has controls for them. */
#include <string.h>

#include "kir/render.h"
#include "kir/rules.h"
#include "kir/spirv.h"

enum { MAGIC = 0x07230203, VERSION = 0x00010300, MOST_IDS = 0x3fffff /* that every consumer takes */ };
enum { DecorationNoContraction = 42 };

/* ---- words ------------------------------------------------------------------------------------------------------- */

uint32_t kir_spv_id(spv *e) { return e->next_id++; }

static uint32_t *room(spv *e, spv_section to, size_t n) {
    spv_words *s = &e->sections[to];
    if (tn_mem_reserve(&s->words, &s->capacity, s->count + n, sizeof *s->words) != TN_OK) {
        e->failed = true;
        return NULL;
    }
    s->count += n;
    return s->words + s->count - n;
}

void kir_spv_put(spv *e, spv_section to, uint32_t op, const uint32_t *operands, size_t n) {
    uint32_t *words = room(e, to, n + 1);
    if (!words) return;
    words[0] = (uint32_t)(n + 1) << 16 | op;
    if (n) memcpy(words + 1, operands, n * sizeof *words);
}

/* Operands, a text in whole words with its ending zero, operands. */
static void put_text_spirv(spv *e, uint32_t op, const uint32_t *before, size_t n, const char *text,
                           const uint32_t *after, size_t m) {
    size_t length = strlen(text) / 4 + 1;
    uint32_t *words = room(e, SPV_HEAD, 1 + n + length + m);
    if (!words) return;
    memset(words, 0, (1 + n + length) * sizeof *words);
    words[0] = (uint32_t)(1 + n + length + m) << 16 | op;
    if (n) memcpy(words + 1, before, n * sizeof *words);
    for (size_t i = 0; text[i]; i++)
        words[1 + n + i / 4] |= (uint32_t)(unsigned char)text[i] << i % 4 * 8;
    if (m) memcpy(words + 1 + n + length, after, m * sizeof *words);
}

static size_t count_operands(uint32_t a, uint32_t b, uint32_t c) { return !a ? 0 : !b ? 1 : !c ? 2 : 3; }

static bool rounds(uint32_t op) {
    return op == OpFAdd || op == OpFSub || op == OpFMul || op == OpFDiv || op == OpFNegate ||
           (op >= OpFOrdEqual && op <= OpFUnordGreaterThanEqual);
}

uint32_t kir_spv_op(spv *e, uint32_t op, spv_type type, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t words[] = {kir_spv_type_id(e, type), kir_spv_id(e), a, b, c};
    kir_spv_put(e, e->at, op, words, 2 + count_operands(a, b, c));
    if (rounds(op)) kir_spv_put(e, SPV_DECORATIONS, OpDecorate, (uint32_t[]){words[1], DecorationNoContraction}, 2);
    return words[1];
}

void kir_spv_do(spv *e, uint32_t op, uint32_t a, uint32_t b, uint32_t c) {
    kir_spv_put(e, e->at, op, (uint32_t[]){a, b, c}, count_operands(a, b, c));
}

uint32_t kir_spv_ext(spv *e, uint32_t function, spv_type type, uint32_t a, uint32_t b, uint32_t c) {
    if (!e->library) e->library = kir_spv_id(e);
    uint32_t words[] = {kir_spv_type_id(e, type), kir_spv_id(e), e->library, function, a, b, c};
    kir_spv_put(e, e->at, OpExtInst, words, 4 + count_operands(a, b, c));
    return words[1];
}

uint32_t kir_spv_phi(spv *e, spv_type type, const uint32_t v[4]) {
    uint32_t words[] = {kir_spv_type_id(e, type), kir_spv_id(e), v[0], v[1], v[2], v[3]};
    kir_spv_put(e, e->at, OpPhi, words, 6);
    return words[1];
}

/* ---- what exists once -------------------------------------------------------------------------------------------- */

uint32_t kir_spv_shared(spv *e, uint32_t op, size_t before, const uint32_t *operands, size_t n) {
    const spv_words *s = &e->sections[SPV_GLOBALS];
    size_t behind = (n - before) * sizeof *operands;
    for (size_t at = 0; at < s->count; at += s->words[at] >> 16) {
        const uint32_t *w = s->words + at;
        if (w[0] != ((uint32_t)(n + 2) << 16 | op) || memcmp(w + 1, operands, before * sizeof *w) != 0) continue;
        if (memcmp(w + before + 2, operands + before, behind) == 0) return w[before + 1];
    }
    uint32_t words[8], id = kir_spv_id(e);
    memcpy(words, operands, before * sizeof *words);
    words[before] = id;
    memcpy(words + before + 1, operands + before, behind);
    kir_spv_put(e, SPV_GLOBALS, op, words, n + 1);
    return id;
}

static const struct {
    uint8_t op, width, operands;
} TYPES[SPV_TYPE_COUNT] = {
    [SPV_VOID] = {OpTypeVoid, 0, 0},    [SPV_BOOL] = {OpTypeBool, 0, 0},    [SPV_U8] = {OpTypeInt, 8, 2},
    [SPV_U16] = {OpTypeInt, 16, 2},     [SPV_U32] = {OpTypeInt, 32, 2},     [SPV_U64] = {OpTypeInt, 64, 2},
    [SPV_F16] = {OpTypeFloat, 16, 1},   [SPV_F32] = {OpTypeFloat, 32, 1},   [SPV_F64] = {OpTypeFloat, 64, 1},
    [SPV_UVEC2] = {OpTypeVector, 2, 2}, [SPV_UVEC3] = {OpTypeVector, 3, 2}, [SPV_UVEC4] = {OpTypeVector, 4, 2},
};

uint32_t kir_spv_type_id(spv *e, spv_type type) {
    if (e->types[type]) return e->types[type];
    uint32_t width = TYPES[type].width, operands[2] = {width, 0};
    if (TYPES[type].op == OpTypeVector) {
        operands[0] = kir_spv_type_id(e, SPV_U32);
        operands[1] = width;
    }
    return e->types[type] = kir_spv_shared(e, TYPES[type].op, 0, operands, TYPES[type].operands);
}

uint32_t kir_spv_pointer(spv *e, uint32_t storage, uint32_t type) {
    return kir_spv_shared(e, OpTypePointer, 0, (uint32_t[]){storage, type}, 2);
}

uint32_t kir_spv_const(spv *e, spv_type type, uint64_t bits) {
    uint32_t words[] = {kir_spv_type_id(e, type), (uint32_t)bits, (uint32_t)(bits >> 32)};
    if (type == SPV_BOOL) return kir_spv_shared(e, bits ? OpConstantTrue : OpConstantFalse, 1, words, 1);
    return kir_spv_shared(e, OpConstant, 1, words, TYPES[type].width > 32 ? 3 : 2);
}

uint32_t kir_spv_u32(spv *e, uint32_t value) { return kir_spv_const(e, SPV_U32, value); }

spv_type kir_spv_type_of(kir_type t) {
    static const spv_type types[KIR_TYPE_COUNT] = {SPV_F32, SPV_F64, SPV_U32, SPV_U64, SPV_U32, SPV_U64, SPV_BOOL};
    return types[t];
}

static uint32_t array_type(spv *e, spv_type type, uint32_t length) {
    uint32_t of = kir_spv_type_id(e, type);
    return length == 1 ? of : kir_spv_shared(e, OpTypeArray, 0, (uint32_t[]){of, kir_spv_u32(e, length)}, 2);
}

uint32_t kir_spv_variable(spv *e, spv_type type, uint32_t length) {
    uint32_t pointer = kir_spv_pointer(e, StorageFunction, array_type(e, type, length)), id = kir_spv_id(e);
    kir_spv_put(e, SPV_VARIABLES, OpVariable, (uint32_t[]){pointer, id, StorageFunction}, 3);
    return id;
}

static uint32_t kir_spv_element(spv *e, spv_type type, uint32_t variable, uint32_t index) {
    uint32_t pointer = kir_spv_pointer(e, StorageFunction, kir_spv_type_id(e, type)), id = kir_spv_id(e);
    kir_spv_put(e, e->at, OpAccessChain, (uint32_t[]){pointer, id, variable, index}, 4);
    return id;
}

/* Sign extension of a word. Not OpSConvert: Mesa 22 compares its result with constants wrongly. */
static uint32_t sign_extend(spv *e, uint32_t v) {
    uint32_t sign = kir_spv_op(e, OpShiftRightArithmetic, SPV_U32, v, kir_spv_u32(e, 31), 0);
    uint32_t pair = kir_spv_op(e, OpCompositeConstruct, SPV_UVEC2, v, sign, 0);
    return kir_spv_op(e, OpBitcast, SPV_U64, pair, 0, 0);
}

uint32_t kir_spv_resize(spv *e, uint32_t v, spv_type from, spv_type to, bool is_signed) {
    if (from == to) return v;
    if (TYPES[from].op == OpTypeFloat) return kir_spv_op(e, OpFConvert, to, v, 0, 0);
    if (is_signed && from == SPV_U32 && to == SPV_U64) return sign_extend(e, v);
    return kir_spv_op(e, is_signed && TYPES[to].width > TYPES[from].width ? OpSConvert : OpUConvert, to, v, 0, 0);
}

/* ---- control flow ------------------------------------------------------------------------------------------------ */

void kir_spv_label(spv *e, uint32_t label) {
    kir_spv_do(e, OpLabel, label, 0, 0);
    e->label = label;
}

static void branch_if(spv *e, uint32_t condition, uint32_t yes, uint32_t no) {
    kir_spv_do(e, OpBranchConditional, condition, yes, no);
}

uint32_t kir_spv_if(spv *e, uint32_t condition) {
    uint32_t yes = kir_spv_id(e), merge = kir_spv_id(e);
    kir_spv_put(e, e->at, OpSelectionMerge, (uint32_t[]){merge, 0}, 2);
    branch_if(e, condition, yes, merge);
    kir_spv_label(e, yes);
    return merge;
}

void kir_spv_end_if(spv *e, uint32_t merge) {
    kir_spv_do(e, OpBranch, merge, 0, 0);
    kir_spv_label(e, merge);
}

static spv_count kir_spv_for(spv *e, spv_type type, uint32_t limit) {
    uint32_t body = kir_spv_id(e), before = e->label, zero = kir_spv_const(e, type, 0);
    spv_count f = {
        .type = type, .next = kir_spv_id(e), .head = kir_spv_id(e), .resume = kir_spv_id(e), .merge = kir_spv_id(e)};
    kir_spv_do(e, OpBranch, f.head, 0, 0);
    kir_spv_label(e, f.head);
    f.i = kir_spv_phi(e, type, (uint32_t[]){zero, before, f.next, f.resume});
    uint32_t more = kir_spv_op(e, OpULessThan, SPV_BOOL, f.i, limit, 0);
    kir_spv_put(e, e->at, OpLoopMerge, (uint32_t[]){f.merge, f.resume, 0}, 3);
    branch_if(e, more, body, f.merge);
    kir_spv_label(e, body);
    return f;
}

static void kir_spv_end_for(spv *e, const spv_count *f, uint32_t step) {
    kir_spv_do(e, OpBranch, f->resume, 0, 0);
    kir_spv_label(e, f->resume);
    uint32_t by = kir_spv_const(e, f->type, step);
    kir_spv_put(e, e->at, OpIAdd, (uint32_t[]){kir_spv_type_id(e, f->type), f->next, f->i, by}, 4);
    kir_spv_do(e, OpBranch, f->head, 0, 0);
    kir_spv_label(e, f->merge);
}

/* ---- what the device must have ----------------------------------------------------------------------------------- */

static const struct {
    uint32_t feature, capability;
    const char *extension; /* where it is not in version 1.3 */
} FEATURES[] = {
    {TN_SPIRV_STORAGE_8, 4448, "SPV_KHR_8bit_storage"},
    {TN_SPIRV_STORAGE_16, 4433, NULL},
    {TN_SPIRV_INT_8, 39, NULL},
    {TN_SPIRV_INT_16, 22, NULL},
    {TN_SPIRV_FLOAT_16, 9, NULL},
    {TN_SPIRV_BFLOAT_16, 5116, "SPV_KHR_bfloat16"},
    {TN_SPIRV_BFLOAT_16, 5118, NULL}, /* in cooperative matrices */
};

/* The controls of SPV_KHR_float_controls: the feature for 16 bits, those for 32 and 64 follow. */
static const struct {
    uint32_t feature, capability, mode;
} CONTROLS[] = {
    {TN_SPIRV_DENORM_16, 4464, 4459},
    {TN_SPIRV_PRESERVE_16, 4466, 4461},
    {TN_SPIRV_RTE_16, 4467, 4462},
};

static bool controls(const spv *e, size_t row, int width) {
    return e->types[SPV_F16 + width] && e->t->features & CONTROLS[row].feature << width;
}

static void put_capability(spv *e, uint32_t capability) { kir_spv_put(e, SPV_HEAD, OpCapability, &capability, 1); }

static void put_capabilities(spv *e) {
    enum { Shader = 1, Float64 = 10, Int64 = 11 };
    static const uint32_t of_matrices[] = {61 /* GroupNonUniform */, 5345 /* VulkanMemoryModel */,
                                           6022 /* CooperativeMatrixKHR */};
    put_capability(e, Shader);
    for (size_t i = 0; e->shared_access && i < TN_COUNT(of_matrices); i++)
        put_capability(e, of_matrices[i]);
    if (e->types[SPV_F64]) put_capability(e, Float64);
    if (e->types[SPV_U64]) put_capability(e, Int64);
    for (size_t i = 0; i < TN_COUNT(FEATURES); i++)
        if (e->uses & FEATURES[i].feature) put_capability(e, FEATURES[i].capability);
    for (size_t i = 0; i < TN_COUNT(CONTROLS); i++)
        if (controls(e, i, 0) || controls(e, i, 1) || controls(e, i, 2)) put_capability(e, CONTROLS[i].capability);
}

static void put_extensions(spv *e) {
    bool any = false;
    for (size_t i = 0; i < TN_COUNT(FEATURES); i++)
        if (e->uses & FEATURES[i].feature && FEATURES[i].extension)
            put_text_spirv(e, OpExtension, NULL, 0, FEATURES[i].extension, NULL, 0);
    for (size_t i = 0; i < 3 * TN_COUNT(CONTROLS); i++)
        any |= controls(e, i / 3, (int)(i % 3));
    if (any) put_text_spirv(e, OpExtension, NULL, 0, "SPV_KHR_float_controls", NULL, 0);
    if (e->shared_access) put_text_spirv(e, OpExtension, NULL, 0, "SPV_KHR_vulkan_memory_model", NULL, 0);
    if (e->shared_access) put_text_spirv(e, OpExtension, NULL, 0, "SPV_KHR_cooperative_matrix", NULL, 0);
    if (e->library) put_text_spirv(e, OpExtInstImport, &e->library, 1, "GLSL.std.450", NULL, 0);
}

static void put_entry(spv *e, uint32_t function) {
    enum { Logical = 0, GLSL450 = 1, Vulkan = 3, GLCompute = 5, LocalSize = 17 };
    const uint32_t *group = e->kernel->group;
    kir_spv_put(e, SPV_HEAD, OpMemoryModel, (uint32_t[]){Logical, e->shared_access ? Vulkan : GLSL450}, 2);
    put_text_spirv(e, OpEntryPoint, (uint32_t[]){GLCompute, function}, 2, e->kernel->entry, e->inputs,
                   (size_t)e->input_count);
    kir_spv_put(e, SPV_HEAD, OpExecutionMode, (uint32_t[]){function, LocalSize, group[0], group[1], group[2]}, 5);
    for (size_t i = 0; i < 3 * TN_COUNT(CONTROLS); i++) {
        uint32_t width = (uint32_t)(i % 3);
        if (!controls(e, i / 3, (int)width)) continue;
        kir_spv_put(e, SPV_HEAD, OpExecutionMode, (uint32_t[]){function, CONTROLS[i / 3].mode, 16U << width}, 3);
    }
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* Everything except the head, which depends on what the rest used. */
static void put_function(spv *e, uint32_t function) {
    uint32_t none = kir_spv_type_id(e, SPV_VOID), type = kir_spv_shared(e, OpTypeFunction, 0, &none, 1);
    kir_spv_put(e, SPV_GLOBALS, OpFunction, (uint32_t[]){none, function, 0, type}, 4);
    kir_spv_put(e, SPV_GLOBALS, OpLabel, (uint32_t[]){kir_spv_id(e)}, 1);
}

static void put_module(spv *e) {
    uint32_t function = kir_spv_id(e);
    kir_spv_kernel(e);
    put_function(e, function);
    kir_spv_put(e, SPV_BODY, OpReturn, NULL, 0);
    kir_spv_put(e, SPV_BODY, OpFunctionEnd, NULL, 0);
    uint32_t *header = room(e, SPV_HEAD, 5);
    if (header) memcpy(header, (uint32_t[]){MAGIC, VERSION, 0, 0, 0}, 5 * sizeof *header);
    put_capabilities(e);
    put_extensions(e);
    put_entry(e, function);
    if (header) e->sections[SPV_HEAD].words[3] = e->next_id;
}

static tn_status join_spirv(spv *e, kir_rendering *out) {
    if (e->failed) return TN_ERR_MEMORY;
    if (e->refused)
        return tn_fail(TN_ERR_UNSUPPORTED, "kernel %016llx in %s: it needs %s", (unsigned long long)e->p->hash,
                       e->t->dialect->name, kir_op_name((kir_op)e->p->ins[e->refused - 1].op));
    if (e->next_id > MOST_IDS)
        return tn_fail(TN_ERR_UNSUPPORTED, "kernel %016llx in %s: %u values, at most %d",
                       (unsigned long long)e->p->hash, e->t->dialect->name, e->next_id, MOST_IDS);
    for (int i = 0; i < SPV_SECTIONS; i++)
        tn_str_addn(&out->text, (const char *)e->sections[i].words, e->sections[i].count * sizeof(uint32_t));
    return out->text.failed ? TN_ERR_MEMORY : TN_OK;
}

static void *rows(spv *e, size_t count, size_t size) {
    void *p = tn_mem_zalloc(count, size);
    e->failed |= !p;
    return p;
}

static tn_status write_legal(const kir_program *p, const kir_target *t, kir_rendering *out) {
    enum { NonPrivatePointer = 0x20 };
    spv e = {.p = p, .t = t, .kernel = out, .next_id = 1, .ix = t->index32 ? SPV_U32 : SPV_U64};
    if (out->lanes > 0) e.shared_access = NonPrivatePointer;
    size_t n = (size_t)p->n_ins + 1, words = out->params_bytes / 8;
    e.value = rows(&e, n, sizeof *e.value);
    e.states = rows(&e, n, sizeof *e.states);
    e.place = rows(&e, (size_t)p->n_access + 1, sizeof *e.place);
    e.loaded = rows(&e, words, sizeof *e.loaded);
    e.low = rows(&e, words, sizeof *e.low);
    e.windows = rows(&e, KIR_MAX_BUFFERS * (UINT8_MAX + 1), sizeof *e.windows);
    if (!e.failed) put_module(&e);
    out->local_bytes = e.local_bytes;
    tn_status s = join_spirv(&e, out);
    for (int i = 0; i < SPV_SECTIONS; i++)
        tn_mem_free(e.sections[i].words);
    void *all[] = {e.value, e.states, e.place, e.loaded, e.low, e.windows};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_mem_free(all[i]);
    return s;
}

/* Does the device convert to and from f16 as IEEE 754 has it? */
static bool has_halves(const kir_target *t) {
    const uint32_t all = TN_SPIRV_STORAGE_16 | TN_SPIRV_INT_16 | TN_SPIRV_FLOAT_16 | TN_SPIRV_DENORM_16 |
                         TN_SPIRV_RTE_16 | TN_SPIRV_PRESERVE_16;
    return (t->features & all) == all && !t->words_only;
}

static tn_status write_words(const kir_program *const *programs, int count, const kir_target *t, kir_rendering *out) {
    AUTO_PROGRAM kir_program *legal = NULL;
    unsigned what = KIR_LEGAL_MATHS | (t->i64 ? 0 : KIR_LEGAL_I64);
    if (count != 1) return tn_fail(TN_ERR_ARGUMENT, "SPIR-V: %d kernels in one module, should be 1", count);
    if (!t->i64 && !t->index32)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "kernel %016llx in SPIR-V: this launch has indices beyond 32 bits, the device "
                       "has no such integers",
                       (unsigned long long)programs[0]->hash);
    if (!has_halves(t)) what |= KIR_LEGAL_HALVES;
    if (!t->f64) what |= KIR_LEGAL_SCALARS;
    TRY(kir_legalise(programs[0], what, &legal));
    return write_legal(legal, t, out);
}

const kir_dialect kir_dialect_spirv = {
    .name = "SPIR-V",
    .groups = true,
    .params.by_address_always = true,
    .matrices.text = "",
    .legal = KIR_LEGAL_I64,
    .write = write_words,
};

/* ==== loops, reductions and scans ================================================================================= */
/* The same order of sums as in render_c.c and the interpreter. The state of a reduction is one or two variables of the
 * item; float sums and the like keep the 64 lanes of kir.h in an array. A block of lanes is folded after its last
 * point, and so is a chain, whether it is complete or the loop ends; that code exists once. A loop that feeds lanes
 * visits its points in blocks of one point per lane, whatever its axes are, so the inner loop does the same for each
 * lane and only the outer one tests whether to fold. */

typedef enum state_form { ONE, LANES, CHAIN, EXTREME } state_form;

static kir_type fed_type(const spv *e, const kir_ins *in) { return (kir_type)e->p->ins[in->a].type; }

static state_form form_of(const spv *e, const kir_ins *in) {
    if (in->op == KIR_SCAN || in->kind == KIR_SEQ) return ONE;
    if (in->kind == KIR_ARGMAX || in->kind == KIR_ARGMIN) return EXTREME;
    if (!kir_is_float(fed_type(e, in))) return ONE;
    return in->kind == KIR_CHAIN ? CHAIN : LANES;
}

/* Calls `fn` for the reductions and scans that belong to this loop and not to one inside it; returns their forms. */
static unsigned each_own_state(spv *e, int loop, int end, void (*fn)(spv *e, int i)) {
    unsigned forms = 0;
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        const kir_ins *in = &e->p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth != 0 || (in->op != KIR_REDUCE && in->op != KIR_SCAN)) continue;
        forms |= 1U << form_of(e, in);
        if (fn) fn(e, i);
    }
    return forms;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static uint32_t spirv_loop_identity(spv *e, const kir_ins *in) {
    kir_type t = fed_type(e, in);
    kir_ins constant = kir_const_ins(t, kir_identity((kir_reduce)in->kind, t));
    return kir_spv_literal(e, &constant);
}

static uint32_t load_spirv_loop(spv *e, spv_type type, uint32_t variable) {
    return kir_spv_op(e, OpLoad, type, variable, 0, 0);
}
static void store_spirv_loop(spv *e, uint32_t variable, uint32_t v) { kir_spv_do(e, OpStore, variable, v, 0); }

static void clear_lanes(spv *e, const kir_ins *in, uint32_t lanes) {
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t zero = spirv_loop_identity(e, in);
    spv_count f = kir_spv_for(e, SPV_U32, kir_spv_u32(e, KIR_LANES));
    store_spirv_loop(e, kir_spv_element(e, type, lanes, f.i), zero);
    kir_spv_end_for(e, &f, 1);
}

static void begin_state(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    spv_state *s = &e->states[i];
    state_form form = form_of(e, in);
    spv_type type = kir_spv_type_of(fed_type(e, in));
    uint32_t zero = spirv_loop_identity(e, in);
    s->value = kir_spv_variable(e, type, form == LANES ? KIR_LANES : 1);
    if (form == LANES)
        clear_lanes(e, in, s->value);
    else
        store_spirv_loop(e, s->value, zero);
    if (form == ONE) return;
    spv_type total = form == EXTREME ? e->ix : type;
    s->total = kir_spv_variable(e, total, 1);
    store_spirv_loop(e, s->total, form == EXTREME ? kir_spv_const(e, total, 0) : zero);
}

/* total = v added to what is there; only v if `first` holds. */
static void add_part(spv *e, const kir_ins *in, uint32_t total, uint32_t first, uint32_t v) {
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t more = kir_spv_combine(e, (kir_reduce)in->kind, (kir_type)in->type, load_spirv_loop(e, type, total), v);
    store_spirv_loop(e, total, kir_spv_op(e, OpSelect, type, first, v, more));
}

/* Whether point `counter` is one of the first `length`. */
static uint32_t is_first(spv *e, uint32_t counter, uint32_t length) {
    return kir_spv_op(e, OpULessThan, SPV_BOOL, counter, kir_spv_const(e, e->ix, length), 0);
}

/* Whether what ends before point `next` is a whole part of this length, or the last one. */
static uint32_t spirv_loop_is_whole(spv *e, uint32_t next, uint32_t length) {
    uint32_t mask = kir_spv_const(e, e->ix, length - 1), zero = kir_spv_const(e, e->ix, 0);
    uint32_t inside = kir_spv_op(e, OpBitwiseAnd, e->ix, next, mask, 0);
    uint32_t full = kir_spv_op(e, OpIEqual, SPV_BOOL, inside, zero, 0);
    uint32_t last = kir_spv_op(e, OpUGreaterThanEqual, SPV_BOOL, next, e->loop.points, 0);
    return kir_spv_op(e, OpLogicalOr, SPV_BOOL, full, last, 0);
}

/* Folds the lanes by halves, adds the block that they hold, and begins the next one. */
static void fold_lanes(spv *e, int i) {
    enum { HALVINGS = 6 };
    const kir_ins *in = &e->p->ins[i];
    uint32_t lanes = e->states[i].value;
    kir_type t = (kir_type)in->type;
    spv_type type = kir_spv_type_of(t);
    spv_count halving = kir_spv_for(e, SPV_U32, kir_spv_u32(e, HALVINGS));
    uint32_t half = kir_spv_op(e, OpShiftRightLogical, SPV_U32, kir_spv_u32(e, KIR_LANES / 2), halving.i, 0);
    spv_count lane = kir_spv_for(e, SPV_U32, half);
    uint32_t low = kir_spv_element(e, type, lanes, lane.i);
    uint32_t high = kir_spv_element(e, type, lanes, kir_spv_op(e, OpIAdd, SPV_U32, lane.i, half, 0));
    uint32_t a = load_spirv_loop(e, type, low), b = load_spirv_loop(e, type, high);
    store_spirv_loop(e, low, kir_spv_combine(e, (kir_reduce)in->kind, t, a, b));
    kir_spv_end_for(e, &lane, 1);
    kir_spv_end_for(e, &halving, 1);
    uint32_t block = load_spirv_loop(e, type, kir_spv_element(e, type, lanes, kir_spv_u32(e, 0)));
    add_part(e, in, e->states[i].total, is_first(e, e->loop.counter, KIR_BLOCK), block);
    clear_lanes(e, in, lanes);
}

static void fold_own_lanes(spv *e, int i) {
    if (form_of(e, &e->p->ins[i]) == LANES) fold_lanes(e, i);
}

static uint32_t next_point(spv *e) {
    return kir_spv_op(e, OpIAdd, e->ix, e->loop.counter, kir_spv_const(e, e->ix, 1), 0);
}

static void feed_lanes(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t at = kir_spv_element(e, type, e->states[i].value, e->loop.lane), was = load_spirv_loop(e, type, at);
    store_spirv_loop(e, at, kir_spv_combine(e, (kir_reduce)in->kind, (kir_type)in->type, was, kir_spv_value(e, in->a)));
}

static void feed_chain(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    const spv_state *s = &e->states[i];
    kir_ins fma = {.op = KIR_FMA, .type = in->type};
    spv_type type = kir_spv_type_of((kir_type)in->type);
    uint32_t zero = spirv_loop_identity(e, in), was = load_spirv_loop(e, type, s->value);
    uint32_t v[3] = {kir_spv_value(e, in->a), kir_spv_value(e, in->b), was};
    uint32_t sum = kir_spv_operation(e, &fma, (kir_type)in->type, v);
    store_spirv_loop(e, s->value, sum);
    uint32_t merge = kir_spv_if(e, spirv_loop_is_whole(e, next_point(e), KIR_KSUM));
    add_part(e, in, s->total, is_first(e, e->loop.counter, KIR_KSUM), sum);
    store_spirv_loop(e, s->value, zero);
    kir_spv_end_if(e, merge);
}

/* The first element, one beyond the best, or the first NaN. */
static void feed_extreme(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    const spv_state *s = &e->states[i];
    static const uint16_t beyond[2][3] = {{OpFUnordLessThan, OpSLessThan, OpULessThan},
                                          {OpFUnordGreaterThan, OpSGreaterThan, OpUGreaterThan}};
    kir_type t = fed_type(e, in);
    spv_type type = kir_spv_type_of(t);
    bool most = in->kind == KIR_ARGMAX, is_signed = t == KIR_I32 || t == KIR_I64;
    uint32_t x = kir_spv_value(e, in->a), best = load_spirv_loop(e, type, s->value), better;
    if (t == KIR_BOOL) {
        better = kir_spv_op(e, OpLogicalNotEqual, SPV_BOOL, x, best, 0);
        better = kir_spv_op(e, OpLogicalAnd, SPV_BOOL, better, most ? x : best, 0);
    } else {
        better = kir_spv_op(e, beyond[most][kir_is_float(t) ? 0 : is_signed ? 1 : 2], SPV_BOOL, x, best, 0);
    }
    if (kir_is_float(t)) {
        uint32_t number = kir_spv_op(e, OpFOrdEqual, SPV_BOOL, best, best, 0);
        better = kir_spv_op(e, OpLogicalAnd, SPV_BOOL, better, number, 0);
    }
    better = kir_spv_op(e, OpLogicalOr, SPV_BOOL, better, is_first(e, e->loop.counter, 1), 0);
    store_spirv_loop(e, s->value, kir_spv_op(e, OpSelect, type, better, x, best));
    store_spirv_loop(e, s->total,
                     kir_spv_op(e, OpSelect, e->ix, better, e->loop.counter, load_spirv_loop(e, e->ix, s->total)));
}

static void feed_one(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    kir_type t = (kir_type)in->type;
    uint32_t variable = e->states[i].value, x = kir_spv_value(e, in->a);
    if (in->kind == KIR_CHAIN) x = kir_spv_op(e, OpIMul, kir_spv_type_of(t), x, kir_spv_value(e, in->b), 0);
    uint32_t sum = kir_spv_combine(e, (kir_reduce)in->kind, t, load_spirv_loop(e, kir_spv_type_of(t), variable), x);
    if (!sum && !e->refused) e->refused = i + 1;
    store_spirv_loop(e, variable, sum);
    if (in->op == KIR_SCAN) e->value[i] = sum;
}

void kir_spv_feed(spv *e, int i) {
    static void (*const feeds[])(spv * e, int i) = {
        [ONE] = feed_one, [LANES] = feed_lanes, [CHAIN] = feed_chain, [EXTREME] = feed_extreme};
    feeds[form_of(e, &e->p->ins[i])](e, i);
}

static void end_state(spv *e, int i) {
    const kir_ins *in = &e->p->ins[i];
    if (in->op == KIR_SCAN) return;
    state_form form = form_of(e, in);
    spv_type type = kir_spv_type_of((kir_type)in->type), held = form == EXTREME ? e->ix : type;
    uint32_t v = load_spirv_loop(e, held, form == ONE ? e->states[i].value : e->states[i].total);
    e->value[i] = kir_spv_resize(e, v, held, type, false);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* Data to close a loop again; the outermost axis first. */
typedef struct open_loop {
    int first, count;
    spv_count axes[KIR_MAX_AXES]; /* one an axis; or the blocks and the lanes */
    uint32_t at[KIR_MAX_AXES];    /* with blocks: variables, the coordinates of several axes */
} open_loop;

static void set_coordinate(spv *e, int axis, uint32_t x) {
    e->x[axis] = x;
    e->x32[axis] = kir_spv_resize(e, x, e->ix, SPV_U32, false);
}

/* The end of an axis that may end at a computed number of points. */
static uint32_t end_of_axis(spv *e, int axis, kir_val points) {
    if (points == KIR_NONE) return e->n[axis];
    spv_type type = kir_spv_type_of((kir_type)e->p->ins[points].type);
    uint32_t n = kir_spv_value(e, points), zero = kir_spv_const(e, type, 0),
             most = kir_spv_resize(e, e->n[axis], e->ix, type, true);
    uint32_t fewer = kir_spv_op(e, OpSLessThan, SPV_BOOL, n, most, 0),
             below = kir_spv_op(e, OpSLessThan, SPV_BOOL, n, zero, 0);
    n = kir_spv_op(e, OpSelect, type, fewer, n, most);
    return kir_spv_resize(e, kir_spv_op(e, OpSelect, type, below, zero, n), type, e->ix, true);
}

/* The number of the point that the coordinates name, and the number of all of them. */
static void count_points(spv *e, int first, int count) {
    e->loop.counter = kir_spv_const(e, e->ix, 0);
    for (int axis = first; axis < first + count; axis++) {
        if (axis > first) e->loop.counter = kir_spv_op(e, OpIMul, e->ix, e->loop.counter, e->n[axis], 0);
        e->loop.counter = axis == first ? e->x[axis] : kir_spv_op(e, OpIAdd, e->ix, e->loop.counter, e->x[axis], 0);
    }
}

static uint32_t all_points(spv *e, int first, int count) {
    uint32_t all = kir_spv_const(e, e->ix, 1);
    for (int axis = first; axis < first + count; axis++)
        all = axis == first ? e->n[axis] : kir_spv_op(e, OpIMul, e->ix, all, e->n[axis], 0);
    return all;
}

/* All axes, one loop each. */
static void open_axes(spv *e, open_loop *open) {
    kir_val points = e->p->ins[e->loop.number].a;
    for (int k = 0; k < open->count; k++) {
        open->axes[k] = kir_spv_for(e, e->ix, end_of_axis(e, open->first + k, points));
        set_coordinate(e, open->first + k, open->axes[k].i);
    }
    if (e->loop.points) count_points(e, open->first, open->count);
}

static void close_axes(spv *e, const open_loop *open) {
    for (int k = open->count; k-- > 0;)
        kir_spv_end_for(e, &open->axes[k], 1);
}

/* All points in blocks of one a lane. */
static void open_blocks(spv *e, open_loop *open) {
    uint32_t lanes = kir_spv_const(e, e->ix, KIR_LANES), zero = kir_spv_const(e, e->ix, 0);
    for (int k = 0; k < open->count && open->count > 1; k++)
        store_spirv_loop(e, open->at[k] = kir_spv_variable(e, e->ix, 1), zero);
    open->axes[0] = kir_spv_for(e, e->ix, e->loop.points);
    uint32_t rest = kir_spv_op(e, OpISub, e->ix, e->loop.points, open->axes[0].i, 0);
    uint32_t fewer = kir_spv_op(e, OpULessThan, SPV_BOOL, rest, lanes, 0);
    open->axes[1] = kir_spv_for(e, e->ix, kir_spv_op(e, OpSelect, e->ix, fewer, rest, lanes));
    e->loop.lane = kir_spv_resize(e, open->axes[1].i, e->ix, SPV_U32, false);
    e->loop.counter = kir_spv_op(e, OpIAdd, e->ix, open->axes[0].i, open->axes[1].i, 0);
    for (int k = 0; k < open->count; k++)
        set_coordinate(e, open->first + k, open->count == 1 ? e->loop.counter : load_spirv_loop(e, e->ix, open->at[k]));
}

/* The next point's coordinates: the last axis advances, and when it has reached its end, the one before it. */
static void advance(spv *e, const open_loop *open) {
    uint32_t zero = kir_spv_const(e, e->ix, 0), one = kir_spv_const(e, e->ix, 1), step = one;
    for (int k = open->count; k-- > 0;) {
        uint32_t axis = (uint32_t)(open->first + k), x = kir_spv_op(e, OpIAdd, e->ix, e->x[axis], step, 0);
        uint32_t over = kir_spv_op(e, OpIEqual, SPV_BOOL, x, e->n[axis], 0);
        store_spirv_loop(e, open->at[k], kir_spv_op(e, OpSelect, e->ix, over, zero, x));
        step = kir_spv_op(e, OpSelect, e->ix, over, one, zero);
    }
}

static void close_blocks(spv *e, int end, const open_loop *open) {
    if (open->count > 1) advance(e, open);
    kir_spv_end_for(e, &open->axes[1], 1);
    e->loop.counter = open->axes[0].i;
    uint32_t next = kir_spv_op(e, OpIAdd, e->ix, e->loop.counter, kir_spv_const(e, e->ix, KIR_LANES), 0);
    uint32_t merge = kir_spv_if(e, spirv_loop_is_whole(e, next, KIR_BLOCK));
    each_own_state(e, e->loop.number, end, fold_own_lanes);
    kir_spv_end_if(e, merge);
    kir_spv_end_for(e, &open->axes[0], KIR_LANES);
}

int kir_spv_loop(spv *e, int loop) {
    int end = kir_loop_end(e->p, loop), outer = e->loop.number;
    uint32_t outer_counter = e->loop.counter, outer_points = e->loop.points, outer_lane = e->loop.lane;
    open_loop open = {.first = kir_loop_first(&e->p->ins[loop]), .count = kir_loop_count(&e->p->ins[loop])};
    uint32_t axes = ((1U << open.count) - 1) << open.first;
    unsigned forms = each_own_state(e, loop, end, begin_state);
    bool blocks = forms & 1U << LANES;
    e->loop.number = loop;
    e->loop.points = forms ? all_points(e, open.first, open.count) : 0;
    if (blocks)
        open_blocks(e, &open);
    else
        open_axes(e, &open);
    e->axes_open |= axes;
    kir_spv_range(e, loop + 1, end);
    e->axes_open &= ~axes;
    if (blocks)
        close_blocks(e, end, &open);
    else
        close_axes(e, &open);
    each_own_state(e, loop, end, end_state);
    e->loop.number = outer;
    e->loop.counter = outer_counter;
    e->loop.points = outer_points;
    e->loop.lane = outer_lane;
    return end;
}
