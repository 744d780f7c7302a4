/* render_spirv_matrix.c — matrices and packets as SPIR-V: cooperative matrices (SPV_KHR_cooperative_matrix), which a
 * subgroup shares as the device likes.
 *
 * What a device multiplies may be smaller than KIR's 16×16: 8 or 16 rows, columns and steps of k (tn_caps.features). So
 * a matrix or fragment is a grid of pieces, whose ids follow each other: a matrix' variables, a fragment's values. A
 * local buffer that packets fill is an array of these, and pieces are loaded out of it as they lie; a global one has a
 * second variable for its binding, which sees packets there. */
#include "kir/rules.h"
#include "kir/spirv.h"

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

/* Where a matrix instruction's lines lie: its first element, and what the buffer's own elements are counted in. */
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

/* What points to piece (i, j) of a grid; `turned`: lines are columns. */
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

bool kir_spv_matrix(spv *e, int i) {
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
