/* spirv.h — shared by the files of the SPIR-V renderer: the module being written, and functions that add instructions.
 *
 * A module has a few sections of words that are joined at the end (render_spirv.c). Each type, constant and pointer
 * exists once: asking for it again returns the same id. Integers have no sign here, operations do; so I32 and U32 are
 * one type, and a cast between them does nothing. A function's code has sections too: `early` loads the launch's
 * numbers, `lead` computes the coordinates, `fixed` has what does not change within loops, `body` the rest.
 *
 * Numbers are those of the SPIR-V specification, version 1.3 (Khronos), and of its set GLSL.std.450. */
#ifndef KIR_SPIRV_H
#define KIR_SPIRV_H

#include "kir/render_text.h"
#include "trunnion/backend.h"

enum {
    OpExtension = 10,
    OpExtInstImport = 11,
    OpExtInst = 12,
    OpMemoryModel = 14,
    OpEntryPoint = 15,
    OpExecutionMode = 16,
    OpCapability = 17,
    OpTypeVoid = 19,
    OpTypeBool = 20,
    OpTypeInt = 21,
    OpTypeFloat = 22,
    OpTypeVector = 23,
    OpTypeArray = 28,
    OpTypeRuntimeArray = 29,
    OpTypeStruct = 30,
    OpTypePointer = 32,
    OpTypeFunction = 33,
    OpConstantTrue = 41,
    OpConstantFalse = 42,
    OpConstant = 43,
    OpConstantComposite = 44,
    OpConstantNull = 46,
    OpFunction = 54,
    OpFunctionEnd = 56,
    OpVariable = 59,
    OpLoad = 61,
    OpStore = 62,
    OpAccessChain = 65,
    OpDecorate = 71,
    OpMemberDecorate = 72,
    OpCompositeConstruct = 80,
    OpCompositeExtract = 81,
    OpConvertFToU = 109,
    OpConvertFToS = 110,
    OpConvertSToF = 111,
    OpConvertUToF = 112,
    OpUConvert = 113,
    OpSConvert = 114,
    OpFConvert = 115,
    OpBitcast = 124,
    OpSNegate = 126,
    OpFNegate = 127,
    OpIAdd = 128,
    OpFAdd = 129,
    OpISub = 130,
    OpFSub = 131,
    OpIMul = 132,
    OpFMul = 133,
    OpUDiv = 134,
    OpSDiv = 135,
    OpFDiv = 136,
    OpUMod = 137,
    OpLogicalEqual = 164,
    OpLogicalNotEqual = 165,
    OpLogicalOr = 166,
    OpLogicalAnd = 167,
    OpLogicalNot = 168,
    OpSelect = 169,
    OpIEqual = 170,
    OpINotEqual = 171,
    OpUGreaterThan = 172,
    OpSGreaterThan = 173,
    OpUGreaterThanEqual = 174,
    OpULessThan = 176,
    OpSLessThan = 177,
    OpULessThanEqual = 178,
    OpSLessThanEqual = 179,
    OpFOrdEqual = 180,
    OpFUnordNotEqual = 183,
    OpFOrdLessThan = 184,
    OpFUnordLessThan = 185,
    OpFOrdGreaterThan = 186,
    OpFUnordGreaterThan = 187,
    OpFOrdLessThanEqual = 188,
    OpFUnordGreaterThanEqual = 191,
    OpShiftRightLogical = 194,
    OpShiftRightArithmetic = 195,
    OpShiftLeftLogical = 196,
    OpBitwiseOr = 197,
    OpBitwiseXor = 198,
    OpBitwiseAnd = 199,
    OpNot = 200,
    OpBitFieldSExtract = 202,
    OpBitFieldUExtract = 203,
    OpControlBarrier = 224,
    OpAtomicAnd = 240,
    OpAtomicOr = 241,
    OpPhi = 245,
    OpLoopMerge = 246,
    OpSelectionMerge = 247,
    OpLabel = 248,
    OpBranch = 249,
    OpBranchConditional = 250,
    OpReturn = 253,
    OpTypeCooperativeMatrixKHR = 4456,
    OpCooperativeMatrixLoadKHR = 4457,
    OpCooperativeMatrixStoreKHR = 4458,
    OpCooperativeMatrixMulAddKHR = 4459
};

enum { ExtRoundEven = 2, ExtTrunc = 3, ExtFAbs = 4, ExtFloor = 8, ExtCeil = 9, ExtSqrt = 31, ExtFma = 50 };
enum { StorageInput = 1, StorageWorkgroup = 4, StorageFunction = 7, StorageBuffer = 12 };
enum { ScopeDevice = 1, ScopeWorkgroup = 2, ScopeSubgroup = 3 };
/* AcquireRelease, both memories; in Vulkan's memory model what was written must be made available and visible, too. */
enum { SemanticsBarrier = 0x8 | 0x40 | 0x100, SemanticsExchange = 0x2000 | 0x4000 };

/* Types of single values, and two vectors. */
typedef enum spv_type {
    SPV_VOID,
    SPV_BOOL,
    SPV_U8,
    SPV_U16,
    SPV_U32,
    SPV_U64,
    SPV_F16,
    SPV_F32,
    SPV_F64,
    SPV_UVEC2,
    SPV_UVEC3,
    SPV_UVEC4,
    SPV_TYPE_COUNT
} spv_type;

typedef struct spv_words {
    uint32_t *words;
    size_t count, capacity;
} spv_words;

/* The sections, in the order of the module. */
typedef enum spv_section {
    SPV_HEAD, /* from the header to the execution modes: written last */
    SPV_DECORATIONS,
    SPV_GLOBALS, /* types, constants, variables of the module */
    SPV_VARIABLES,
    SPV_EARLY,
    SPV_LEAD,
    SPV_FIXED,
    SPV_BODY,
    SPV_SECTIONS
} spv_section;

enum { SPV_MAX_INPUTS = 4 };

/* A reduction's: variables of its state, and of the blocks or chains before, or the extreme's place. */
typedef struct spv_state {
    uint32_t value, total;
} spv_state;

typedef struct spv {
    const kir_program *p;
    const kir_target *t;
    const kir_rendering *kernel;
    spv_words sections[SPV_SECTIONS];
    spv_section at; /* where instructions go */
    bool failed;    /* no memory */
    int refused;    /* an instruction that has no words, counted from 1 */
    uint32_t next_id, label /* of the block being written in the body */, library /* GLSL.std.450 */;
    uint32_t types[SPV_TYPE_COUNT], blocks[SPV_TYPE_COUNT]; /* ids; of the struct that has an array of this type */
    uint32_t uses;                                          /* TN_SPIRV_STORAGE_8 … FLOAT_16 */
    uint32_t inputs[SPV_MAX_INPUTS];
    int input_count;

    spv_type ix;                               /* of coordinates: U32 or U64 */
    uint32_t n[KIR_MAX_AXES], x[KIR_MAX_AXES]; /* extents and coordinates */
    uint32_t x32[KIR_MAX_AXES];                /* their low words, all that an address needs */
    uint32_t axes_open;                        /* coordinates that exist here */
    uint32_t buffers[KIR_MAX_BUFFERS]; /* variables; where a buffer has windows, the first one's number in … */
    uint32_t *windows;                 /* … their variables */
    spv_type memory[KIR_MAX_BUFFERS];  /* what they are arrays of */
    uint32_t bases[KIR_MAX_BUFFERS];   /* in elements */
    int64_t local_bytes;               /* of workgroup memory */
    uint32_t params;                   /* variable */
    uint32_t packets[KIR_MAX_BUFFERS]; /* of global buffers: variables that see packets there; 0: none */
    /* Programs with matrices use Vulkan's memory model: each access to workgroup memory has this operand, which makes
     * other items' writes visible; 0: none. */
    uint32_t shared_access;
    uint32_t *value;        /* id of each instruction's value; of a VAR's variable */
    uint32_t *place;        /* of each access: the part of its index outside loops */
    uint32_t *loaded, *low; /* words of the parameters, and their low halves */

    struct {
        int number;               /* of the innermost LOOP around */
        uint32_t counter, points; /* executed points and their number; 0: not counted */
        uint32_t lane;            /* of this point, if the loop has lanes */
    } loop;
    spv_state *states; /* one an instruction */
} spv;

/* ---- the module (render_spirv.c) --------------------------------------------------------------------------------- */

uint32_t kir_spv_id(spv *e);
void kir_spv_put(spv *e, spv_section to, uint32_t op, const uint32_t *operands, size_t n);
/* An instruction with a result, or without; operands end with the first 0. */
uint32_t kir_spv_op(spv *e, uint32_t op, spv_type type, uint32_t a, uint32_t b, uint32_t c);
void kir_spv_do(spv *e, uint32_t op, uint32_t a, uint32_t b, uint32_t c);
uint32_t kir_spv_ext(spv *e, uint32_t function, spv_type type, uint32_t a, uint32_t b, uint32_t c);
uint32_t kir_spv_phi(spv *e, spv_type type, const uint32_t values_and_labels[4]);

uint32_t kir_spv_type_id(spv *e, spv_type type);
/* The global instruction with these operands, at most 7; its result comes after the first `before` of them. */
uint32_t kir_spv_shared(spv *e, uint32_t op, size_t before, const uint32_t *operands, size_t n);
uint32_t kir_spv_pointer(spv *e, uint32_t storage, uint32_t type);
uint32_t kir_spv_const(spv *e, spv_type type, uint64_t bits);
uint32_t kir_spv_u32(spv *e, uint32_t value);
spv_type kir_spv_type_of(kir_type t);

/* A variable of the item: one value, or `length` of them. What points to an element. */
uint32_t kir_spv_variable(spv *e, spv_type type, uint32_t length);

void kir_spv_label(spv *e, uint32_t label);
/* Code written up to the end label, which is returned, runs if `condition` holds. */
uint32_t kir_spv_if(spv *e, uint32_t condition);
void kir_spv_end_if(spv *e, uint32_t merge);

/* for (i = 0; i < limit; i += step) */
typedef struct spv_count {
    spv_type type;
    uint32_t i, next, head, resume, merge;
} spv_count;

/* To another width of the same kind; `is_signed` says how an integer grows. */
uint32_t kir_spv_resize(spv *e, uint32_t v, spv_type from, spv_type to, bool is_signed);

/* ---- code (render_spirv_code.c, render_spirv.c) ------------------------------------------------------------- */

void kir_spv_kernel(spv *e);
void kir_spv_range(spv *e, int begin, int end);
uint32_t kir_spv_value(spv *e, kir_val v);
/* A pure operation on operands of type `operand`; 0 when it has no words. */
uint32_t kir_spv_operation(spv *e, const kir_ins *in, kir_type operand, const uint32_t v[3]);
/* a ∘ b for a reduction's kind. */
uint32_t kir_spv_combine(spv *e, kir_reduce kind, kir_type t, uint32_t a, uint32_t b);
uint32_t kir_spv_literal(spv *e, const kir_ins *constant);

int kir_spv_loop(spv *e, int loop);
void kir_spv_feed(spv *e, int i);

/* ---- matrices and packets (render_spirv_code.c) ---------------------------------------------------------------- */

#endif
