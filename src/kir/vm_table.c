/* vm_table.c — functions of one byte: a launch whose results are bytes and whose only varying operand is a tensor of
 * bytes computes 256 results, and looks the others up.
 *
 * Networks that are quantized to bytes have many of them: an activation between DequantizeLinear and QuantizeLinear.
 * The 256 results are a launch of the same program, so the bits are the same. */
#include <string.h>

#include "kir/vm.h"

#if defined(__x86_64__) && defined(TN_HAVE_AVX512)
#include <immintrin.h>
#define HAS_PERMUTE 1
#else
#define HAS_PERMUTE 0
#endif

enum {
    RESULTS = 256,
    LEAST_POINTS = 4096, /* with fewer, computing the table takes longer than it saves */
    PIECE = 1 << 14,     /* points that a thread takes at once */
    MOST_ACCESSES = 2 * KIR_MAX_BUFFERS
};

/* The only store is of bytes, and no access depends on computed indices or masks. */
void kir_table_note(const kir_program *p, kir_vm *vm) {
    vm->table_store = -1;
    if (p->n_loop > 0 || p->n_par == 0 || p->n_access > MOST_ACCESSES) return;
    int store = -1;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        if (in->op == KIR_INDEX || (in->op == KIR_LOAD && in->a != KIR_NONE)) return;
        if (in->op != KIR_LOAD && in->op != KIR_STORE) continue;
        if (p->access[in->imm.i].dyn != KIR_NONE) return;
        if (in->op == KIR_LOAD) continue;
        if (store >= 0 || in->b != KIR_NONE || !tn_dtype_is_byte(vm->views[in->imm.i].dtype)) return;
        store = (int)in->imm.i;
    }
    vm->table_store = store;
}

/* ---- what a launch reads ----------------------------------------------------------------------------------------- */

/* Offset and strides of an access. */
static const int64_t *layout_of(const kir_vm *vm, const int64_t *sizes, int access) {
    return sizes + vm->n_par + (int64_t)access * (vm->n_par + 1);
}

static bool varies(const kir_vm *vm, const int64_t *sizes, const int64_t *at) {
    for (int k = 0; k < vm->n_par; k++)
        if (sizes[k] > 1 && at[1 + k] != 0) return true;
    return false;
}

static bool strides_are_equal(const kir_vm *vm, const int64_t *sizes, const int64_t *a, const int64_t *b) {
    for (int k = 0; k < vm->n_par; k++)
        if (sizes[k] > 1 && a[1 + k] != b[1 + k]) return false;
    return true;
}

/* Whether the points lie next to each other in memory, in whatever order of the axes. */
static bool is_dense(const kir_vm *vm, const int64_t *sizes, const int64_t *at, int64_t points) {
    int64_t last = 0;
    for (int k = 0; k < vm->n_par; k++) {
        if (sizes[k] > 1 && at[1 + k] <= 0) return false;
        last += (sizes[k] - 1) * at[1 + k];
    }
    return last == points - 1;
}

static const char *address_of(const kir_vm *vm, const kir_launch *launch, int access) {
    const int64_t offset = layout_of(vm, launch->sizes, access)[0];
    return (const char *)launch->buffers[vm->buffer_of[access]] + offset * vm->views[access].size;
}

/* The access of the bytes that the results depend on; -1: not of one byte each, or an operand without strides shares
 * memory with what the launch writes. */
static int find_operand(const kir_vm *vm, const kir_launch *launch, int64_t points) {
    const int64_t *to = layout_of(vm, launch->sizes, vm->table_store);
    const char *written = address_of(vm, launch, vm->table_store);
    int operand = -1;
    for (int i = 0; i < vm->n_access; i++) {
        const int64_t *at = layout_of(vm, launch->sizes, i);
        if (i == vm->table_store || !varies(vm, launch->sizes, at)) continue;
        const bool same = operand < 0 || address_of(vm, launch, i) == address_of(vm, launch, operand);
        if (!same || !tn_dtype_is_byte(vm->views[i].dtype) || !strides_are_equal(vm, launch->sizes, at, to)) return -1;
        operand = i;
    }
    for (int i = 0; i < vm->n_access && operand >= 0; i++) {
        if (i == vm->table_store || varies(vm, launch->sizes, layout_of(vm, launch->sizes, i))) continue;
        const char *from = address_of(vm, launch, i);
        const bool shares = vm->buffer_of[i] == vm->buffer_of[operand] ||
                            vm->buffer_of[i] == vm->buffer_of[vm->table_store] ||
                            (from + vm->views[i].size > written && from < written + points);
        if (shares) return -1;
    }
    if (operand < 0) return -1;
    const char *read = address_of(vm, launch, operand);
    return read == written || read + points <= written || written + points <= read ? operand : -1;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* The same program over all values of a byte. */
static tn_status make_table(const kir_vm *vm, const kir_launch *launch, uint8_t table[RESULTS]) {
    int64_t sizes[KIR_MAX_AXES + MOST_ACCESSES * (KIR_MAX_AXES + 1)];
    void *buffers[KIR_MAX_BUFFERS];
    uint8_t every[RESULTS];
    const int last = vm->n_par - 1;
    for (int i = 0; i < RESULTS; i++)
        table[i] = every[i] = (uint8_t)i;
    for (int k = 0; k < vm->n_par; k++)
        sizes[k] = k == last ? RESULTS : 1;
    memcpy(sizes + vm->n_par, launch->sizes + vm->n_par,
           (size_t)vm->n_access * (size_t)(vm->n_par + 1) * sizeof *sizes);
    for (int i = 0; i < vm->n_access; i++) {
        int64_t *at = sizes + vm->n_par + (int64_t)i * (vm->n_par + 1);
        const int buffer = vm->buffer_of[i];
        const bool moves = i == vm->table_store || varies(vm, launch->sizes, layout_of(vm, launch->sizes, i));
        memset(at + 1, 0, (size_t)vm->n_par * sizeof *at);
        at[1 + last] = moves;
        if (moves) at[0] = 0;
        buffers[buffer] = moves ? every : launch->buffers[buffer]; /* the operand shares its buffer with no other */
    }
    buffers[vm->buffer_of[vm->table_store]] = table; /* in place: it has all values already */
    return kir_vm_run(vm, &(kir_launch){.sizes = sizes, .buffers = buffers, .scalars = launch->scalars}, 1);
}

typedef struct lookup {
    const uint8_t *from, *table;
    uint8_t *to;
    int64_t points;
    bool permutes; /* the processor has permutations of bytes */
} lookup;

#if HAS_PERMUTE
/* 64 values at once: two permutations of 128 bytes each, and the upper bit says which one counts. */
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) static int64_t look_up_vectors(const lookup *l, int64_t i,
                                                                                      int64_t end) {
    const __m512i a = _mm512_loadu_si512(l->table), b = _mm512_loadu_si512(l->table + 64);
    const __m512i c = _mm512_loadu_si512(l->table + 128), d = _mm512_loadu_si512(l->table + 192);
    for (; i + 64 <= end; i += 64) {
        const __m512i x = _mm512_loadu_si512(l->from + i);
        const __m512i low = _mm512_permutex2var_epi8(a, x, b), high = _mm512_permutex2var_epi8(c, x, d);
        _mm512_storeu_si512(l->to + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
    }
    return i;
}

#endif

static void look_up(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const lookup *l = ctx;
    int64_t i = begin * PIECE;
    end = tn_min64(end * PIECE, l->points);
#if HAS_PERMUTE
    if (l->permutes) i = look_up_vectors(l, i, end);
#endif
    for (; i < end; i++)
        l->to[i] = l->table[l->from[i]];
}

bool kir_table_run(const kir_vm *vm, const kir_launch *launch) {
    static const double DEAR_POINT = 1;    /* ns: machine code computes cheaper points as fast as it looks bytes up */
    static const double DEAR_LAUNCH = 2e4; /* … and cheaper launches in the time that the table takes */
    const int64_t points = tn_product(launch->sizes, vm->n_par);
    if (points < LEAST_POINTS || (double)points * vm->point_cost < DEAR_LAUNCH) return false;
    lookup l = {.points = points, .permutes = HAS_PERMUTE && tn_cpu().vbmi};
    if (vm->point_cost < DEAR_POINT && !l.permutes) return false;
    if (!is_dense(vm, launch->sizes, layout_of(vm, launch->sizes, vm->table_store), points)) return false;
    const int operand = find_operand(vm, launch, points);
    uint8_t table[RESULTS];
    if (operand < 0 || make_table(vm, launch, table) != TN_OK) return false;
    l.table = table;
    l.from = (const uint8_t *)address_of(vm, launch, operand);
    l.to = (uint8_t *)(uintptr_t)address_of(vm, launch, vm->table_store);
    tn_parallel_shared(tn_ceil_div(points, PIECE), 2, look_up, &l);
    return true;
}
