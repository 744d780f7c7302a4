/* gpu_blas.c — of the double of CUDA and ROCm: the vendors' libraries of matrix products.
 *
 * Work is put into a stream and done when that is waited for, over memory that must be the device's. Sums run from
 * the last element to the first, in f32 (f64 in f64), so that they are right and not the bits of our own kernels. The
 * workspace is overwritten. An algorithm is good for what it was chosen for: sizes, alignment, no less workspace. */
#include "gpu_blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- products ---------------------------------------------------------------------------------------------------- */

size_t blas_size(blas_type type) { return type == BLAS_F64 ? 8 : type == BLAS_F32 ? 4 : 2; }

static float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff, bits;
    float f;
    if (exponent == 0) {
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To the nearest, ties to even. */
static uint16_t to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    if (bits < 0x38800000) return sign | (uint16_t)(int)__builtin_rintf(magnitude * 0x1p24f);
    return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13);
}

double blas_load(blas_type type, const char *p) {
    double wide;
    float narrow;
    uint16_t half;
    if (type == BLAS_F64) return memcpy(&wide, p, sizeof wide), wide;
    if (type == BLAS_F32) return memcpy(&narrow, p, sizeof narrow), (double)narrow;
    memcpy(&half, p, sizeof half);
    if (type == BLAS_F16) return (double)from_half(half);
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&narrow, &bits, sizeof narrow);
    return (double)narrow;
}

void blas_store(blas_type type, char *p, double value) {
    float narrow = (float)value;
    uint16_t half = to_half(narrow);
    uint32_t bits;
    if (type == BLAS_BF16) {
        memcpy(&bits, &narrow, sizeof bits);
        half = narrow != narrow ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    memcpy(p, type == BLAS_F64 ? (void *)&value : type == BLAS_F32 ? (void *)&narrow : &half, blas_size(type));
}

static double load(const blas_matrix *m, int64_t batch, int64_t row, int64_t column) {
    int64_t at = m->turned ? row * m->ld + column : column * m->ld + row;
    return blas_load(m->type, m->data + (batch * m->stride + at) * (int64_t)blas_size(m->type));
}

static void store(const blas_matrix *m, int64_t batch, int64_t row, int64_t column, double value) {
    blas_store(m->type, m->data + (batch * m->stride + column * m->ld + row) * (int64_t)blas_size(m->type), value);
}

static double sum(const blas_product *p, int64_t batch, int64_t row, int64_t column) {
    int64_t k = p->a.turned ? p->a.rows : p->a.columns;
    double wide = 0;
    float narrow = 0;
    while (k-- > 0) {
        double a = load(&p->a, batch, row, k), b = load(&p->b, batch, k, column);
        wide += a * b;
        narrow += (float)a * (float)b;
    }
    return p->alpha * (p->c.type == BLAS_F64 ? wide : (double)narrow);
}

static void multiply(const void *data) {
    const blas_product *p = data;
    if (p->workspace_bytes) memset(p->workspace, ENGINE_POISON, p->workspace_bytes);
    for (int64_t e = 0; e < p->batch; e++)
        for (int64_t j = 0; j < p->c.columns; j++)
            for (int64_t i = 0; i < p->c.rows; i++)
                store(&p->c, e, i, j, sum(p, e, i, j));
}

const char *blas_misfit(const blas_product *p) {
    const blas_matrix *a = &p->a, *b = &p->b, *c = &p->c;
    int64_t k = a->turned ? a->rows : a->columns;
    if (a->type != c->type || b->type != c->type) return "types differ";
    if (p->batch < 1 || k < 1) return "an extent below 1";
    if ((a->turned ? a->columns : a->rows) != c->rows || (b->turned ? b->rows : b->columns) != c->columns ||
        (b->turned ? b->columns : b->rows) != k)
        return "extents do not fit";
    if (a->ld < a->rows || b->ld < b->rows || c->ld < c->rows) return "a leading dimension below the rows";
    if (p->batch > 1 && c->stride < c->ld * (c->columns - 1) + c->rows) return "results of the batch overlap";
    return NULL;
}

static int check_matrix(const gpu_call *call, const blas_matrix *m, int64_t batch, const char *role) {
    int64_t elements = (batch - 1) * m->stride + (m->columns - 1) * m->ld + m->rows;
    return gpu_check_range(call, m->data, (size_t)elements * blas_size(m->type), role);
}

int blas_give(const gpu_call *call, void *stream, const blas_product *p) {
    int error = check_matrix(call, &p->a, p->batch, "A");
    if (!error) error = check_matrix(call, &p->b, p->batch, "B");
    if (!error) error = check_matrix(call, &p->c, p->batch, "C");
    if (!error && p->workspace_bytes) error = gpu_check_range(call, p->workspace, p->workspace_bytes, "workspace");
    return error ? error : gpu_queue_library(call, stream, multiply, p, sizeof *p);
}

/* alpha and beta, as the caller has them. */
static void blas_factors(const void *alpha, const void *beta, bool wide, double *one, double *zero) {
    float narrow[2];
    if (wide) {
        memcpy(one, alpha, sizeof *one);
        memcpy(zero, beta, sizeof *zero);
        return;
    }
    memcpy(&narrow[0], alpha, sizeof(float));
    memcpy(&narrow[1], beta, sizeof(float));
    *one = (double)narrow[0];
    *zero = (double)narrow[1];
}

#ifndef DOUBLE_HIP

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------- */

enum { NOT_INITIALISED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { MAGIC = 0x6c74 };

typedef struct layout {
    blas_matrix m;
    int32_t batch;
} layout;

typedef struct desc {
    int compute, scale, turn_a, turn_b;
} desc;

typedef struct preference {
    uint64_t workspace;
    uint32_t schemes, alignment[4];
} preference;

static int status_of(int error) {
    return error == E_MEMORY ? ALLOC_FAILED : error == E_CONTEXT ? NOT_INITIALISED : error ? INVALID_VALUE : 0;
}

/* An injected fault is a status of the library's already. */
#define ENTER_LT(needs)                                                                       \
    gpu_call call __attribute__((cleanup(gpu_leave), unused)) = gpu_enter(__func__, (needs)); \
    if (call.error) return call.error

void *blas_part_new(size_t bytes) {
    void *p = calloc(1, bytes);
    gpu_library_parts += p != NULL;
    return p;
}

int blas_part_free(void *part) {
    gpu_library_parts -= part != NULL;
    free(part);
    return 0;
}

int cublasLtCreate(void **handle) {
    ENTER_LT(NEEDS_CONTEXT);
    *handle = gpu_object_new(call.context, OBJECT_LIBRARY, sizeof(gpu_object));
    return *handle ? 0 : ALLOC_FAILED;
}

int cublasLtDestroy(void *handle) {
    ENTER_LT(NEEDS_CONTEXT | GIVES_BACK);
    int error = gpu_check(&call, handle, OBJECT_LIBRARY);
    if (error) return status_of(error);
    gpu_object_remove(handle);
    free(handle);
    return 0;
}

static bool type_of(int cuda, blas_type *out) {
    static const int numbers[BLAS_TYPES] = {[BLAS_F32] = 0, [BLAS_F64] = 1, [BLAS_F16] = 2, [BLAS_BF16] = 14};
    for (int i = 0; i < BLAS_TYPES; i++)
        if (numbers[i] == cuda) return *out = (blas_type)i, true;
    return false;
}

int cublasLtMatrixLayoutCreate(void **out, int type, unsigned long long rows, unsigned long long columns,
                               long long ld) {
    ENTER_LT(NEEDS_NOTHING);
    blas_type t;
    if (!type_of(type, &t) || !rows || !columns || ld < (long long)rows)
        return gpu_misuse(&call, INVALID_VALUE, "type %d, %llu x %llu, leading dimension %lld", type, rows, columns,
                          ld);
    layout *l = blas_part_new(sizeof *l);
    if (!l) return ALLOC_FAILED;
    l->m = (blas_matrix){.type = t, .rows = (int64_t)rows, .columns = (int64_t)columns, .ld = ld};
    l->batch = 1;
    *out = l;
    return 0;
}

int cublasLtMatrixLayoutDestroy(void *l) {
    ENTER_LT(GIVES_BACK);
    return blas_part_free(l);
}

/* An attribute: its number, where it is kept, and its bytes. */
typedef struct attribute {
    int what;
    void *at;
    size_t bytes;
} attribute;

static int set(const gpu_call *call, const attribute *known, int count, int what, const void *value, size_t bytes) {
    for (int i = 0; i < count; i++) {
        if (known[i].what != what) continue;
        if (bytes != known[i].bytes)
            return gpu_misuse(call, INVALID_VALUE, "attribute %d has %zu bytes, not %zu", what, known[i].bytes, bytes);
        memcpy(known[i].at, value, bytes);
        return 0;
    }
    return gpu_misuse(call, INVALID_VALUE, "attribute %d is none that the double knows", what);
}
#define SET(...)                                                                                                     \
    set(&call, (const attribute[]){__VA_ARGS__}, sizeof((const attribute[]){__VA_ARGS__}) / sizeof(attribute), what, \
        value, bytes)

int cublasLtMatrixLayoutSetAttribute(void *handle, int what, const void *value, size_t bytes) {
    ENTER_LT(NEEDS_NOTHING);
    layout *l = handle;
    return SET({5, &l->batch, 4}, {6, &l->m.stride, 8});
}

int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    ENTER_LT(NEEDS_NOTHING);
    if (!(compute == 68 && scale == 0) && !(compute == 70 && scale == 1))
        return gpu_misuse(&call, INVALID_VALUE, "sums of kind %d, scaled by type %d", compute, scale);
    desc *d = blas_part_new(sizeof *d);
    if (!d) return ALLOC_FAILED;
    d->compute = compute;
    d->scale = scale;
    *out = d;
    return 0;
}

int cublasLtMatmulDescDestroy(void *d) {
    ENTER_LT(GIVES_BACK);
    return blas_part_free(d);
}

int cublasLtMatmulDescSetAttribute(void *handle, int what, const void *value, size_t bytes) {
    ENTER_LT(NEEDS_NOTHING);
    desc *d = handle;
    return SET({3, &d->turn_a, 4}, {4, &d->turn_b, 4});
}

int cublasLtMatmulPreferenceCreate(void **out) {
    ENTER_LT(NEEDS_NOTHING);
    preference *p = blas_part_new(sizeof *p);
    if (!p) return ALLOC_FAILED;
    *p = (preference){.schemes = 7, .alignment = {256, 256, 256, 256}};
    *out = p;
    return 0;
}

int cublasLtMatmulPreferenceDestroy(void *p) {
    ENTER_LT(GIVES_BACK);
    return blas_part_free(p);
}

int cublasLtMatmulPreferenceSetAttribute(void *handle, int what, const void *value, size_t bytes) {
    ENTER_LT(NEEDS_NOTHING);
    preference *p = handle;
    return SET({1, &p->workspace, 8}, {3, &p->schemes, 4}, {5, &p->alignment[0], 4}, {6, &p->alignment[1], 4},
               {7, &p->alignment[2], 4}, {8, &p->alignment[3], 4});
}

static blas_product product_of(const desc *d, const layout *a, const layout *b, const layout *c) {
    blas_product p = {.a = a->m, .b = b->m, .c = c->m, .batch = c->batch, .alpha = 1};
    p.a.turned = d->turn_a != 0;
    p.b.turned = d->turn_b != 0;
    return p;
}

static const char *misfit(const desc *d, const layout *a, const layout *b, const layout *c, const layout *out) {
    blas_product p = product_of(d, a, b, c);
    if (a->batch != c->batch || b->batch != c->batch) return "batches differ";
    if (memcmp(c, out, sizeof *c) != 0) return "C and D are laid out differently";
    if ((d->compute == 70) != (c->m.type == BLAS_F64)) return "sums of another type";
    return blas_misfit(&p);
}

/* What an algorithm was chosen for, in a word. */
static uint64_t purpose(const desc *d, const layout *a, const layout *b, const layout *c) {
    const layout *l[] = {a, b, c};
    uint64_t word = (uint64_t)(d->turn_a + 2 * d->turn_b);
    for (int i = 0; i < 3; i++)
        word = (word ^ (uint64_t)l[i]->m.rows * 31 ^ (uint64_t)l[i]->m.columns * 1009 ^ (uint64_t)l[i]->m.ld * 65537 ^
                (uint64_t)l[i]->m.stride * 257 ^ (uint64_t)l[i]->batch) *
               0x9e3779b97f4a7c15u;
    return word;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *d, void *a, void *b, void *c, void *out, void *wish, int wanted,
                                   gpu_answer *answers, int *count) {
    enum { WORKSPACE = 4096 };
    ENTER_LT(NEEDS_CONTEXT);
    int error = gpu_check(&call, handle, OBJECT_LIBRARY);
    if (error) return status_of(error);
    const preference *p = wish;
    const char *words = wanted < 1 ? "no answers wanted" : misfit(d, a, b, c, out);
    if (words) return gpu_misuse(&call, INVALID_VALUE, "%s", words);
    *answers = (gpu_answer){.workspace = p->workspace < WORKSPACE ? 0 : WORKSPACE};
    answers->algorithm.data[0] = MAGIC;
    answers->algorithm.data[1] = purpose(d, a, b, c);
    answers->algorithm.data[2] = answers->workspace;
    for (int i = 0; i < 4; i++)
        answers->algorithm.data[3 + i] = p->alignment[i];
    *count = 1;
    return 0;
}

int cublasLtMatmul(void *handle, void *d, const void *alpha, const void *a, void *a_layout, const void *b,
                   void *b_layout, const void *beta, const void *c, void *c_layout, void *out, void *out_layout,
                   const gpu_algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
    ENTER_LT(NEEDS_CONTEXT);
    int error = gpu_check(&call, handle, OBJECT_LIBRARY);
    if (error) return status_of(error);
    const void *addresses[] = {a, b, c, out};
    const char *words = misfit(d, a_layout, b_layout, c_layout, out_layout);
    if (!words && (algorithm->data[0] != MAGIC || algorithm->data[1] != purpose(d, a_layout, b_layout, c_layout)))
        words = "the algorithm was chosen for another product";
    if (!words && bytes < algorithm->data[2]) words = "less workspace than the algorithm wants";
    if (!words && bytes && (uintptr_t)workspace % 16) words = "the workspace is not at a multiple of 16 bytes";
    for (int i = 0; i < 4 && !words; i++)
        if ((uintptr_t)addresses[i] % algorithm->data[3 + i]) words = "an address is less aligned than was said";
    if (words) return gpu_misuse(&call, INVALID_VALUE, "%s", words);
    blas_product p = product_of(d, a_layout, b_layout, c_layout);
    double one, zero;
    blas_factors(alpha, beta, ((const desc *)d)->scale == 1, &one, &zero);
    if (zero != 0) return gpu_misuse(&call, NOT_SUPPORTED, "beta is %g", zero);
    p.alpha = one;
    p.a.data = (char *)(uintptr_t)a;
    p.b.data = (char *)(uintptr_t)b;
    p.c.data = out;
    p.workspace = workspace;
    p.workspace_bytes = bytes;
    return status_of(blas_give(&call, stream, &p));
}

#else

/* ---- rocBLAS ----------------------------------------------------------------------------------------------------- */

enum {
    NOT_IMPLEMENTED = 2,
    INVALID_SIZE = 4,
    MEMORY_ERROR = 5,
    INTERNAL_ERROR = 6,
    QUERY_MISMATCH = 8,
    SIZE_INCREASED = 9,
    SIZE_UNCHANGED = 10,
    INVALID_VALUE = 11,
    WORKSPACE = 2048
};

typedef struct handle {
    gpu_object object;
    void *stream;
    char *workspace;
    size_t workspace_bytes, wanted;
    bool asks;
} handle;

static int status_of(int error) { return error == E_MEMORY ? MEMORY_ERROR : error ? INTERNAL_ERROR : 0; }

/* An injected fault is a status of the library's already. */
#define ENTER_ROC(needs, of)                                                                  \
    gpu_call call __attribute__((cleanup(gpu_leave), unused)) = gpu_enter(__func__, (needs)); \
    if (call.error) return call.error;                                                        \
    handle *h = of;                                                                           \
    if (gpu_check(&call, h, OBJECT_LIBRARY)) return 1

int rocblas_create_handle(void **out) {
    gpu_call call __attribute__((cleanup(gpu_leave), unused)) = gpu_enter(__func__, NEEDS_CONTEXT);
    if (call.error) return call.error;
    *out = gpu_object_new(call.context, OBJECT_LIBRARY, sizeof(handle));
    return *out ? 0 : MEMORY_ERROR;
}

int rocblas_destroy_handle(void *of) {
    ENTER_ROC(NEEDS_CONTEXT | GIVES_BACK, of);
    gpu_object_remove(&h->object);
    free(h);
    return 0;
}

int rocblas_set_stream(void *of, void *stream) {
    ENTER_ROC(NEEDS_CONTEXT, of);
    h->stream = stream;
    return 0;
}

int rocblas_set_atomics_mode(void *of, int mode) {
    ENTER_ROC(NEEDS_CONTEXT, of);
    return mode == 0 || mode == 1 ? 0 : gpu_misuse(&call, INVALID_VALUE, "mode %d", mode);
}

int rocblas_set_workspace(void *of, void *address, size_t bytes) {
    ENTER_ROC(NEEDS_CONTEXT, of);
    h->workspace = address;
    h->workspace_bytes = address ? bytes : 0;
    return 0;
}

int rocblas_start_device_memory_size_query(void *of) {
    ENTER_ROC(NEEDS_CONTEXT, of);
    if (h->asks) return QUERY_MISMATCH;
    h->asks = true;
    h->wanted = 0;
    return 0;
}

int rocblas_stop_device_memory_size_query(void *of, size_t *bytes) {
    ENTER_ROC(NEEDS_CONTEXT, of);
    if (!h->asks) return QUERY_MISMATCH;
    h->asks = false;
    *bytes = h->wanted;
    return 0;
}

static bool type_of(int number, blas_type *out) {
    static const int numbers[BLAS_TYPES] = {[BLAS_F32] = 151, [BLAS_F64] = 152, [BLAS_F16] = 150, [BLAS_BF16] = 168};
    for (int i = 0; i < BLAS_TYPES; i++)
        if (numbers[i] == number) return *out = (blas_type)i, true;
    return false;
}

static bool set_matrix(blas_matrix *m, int type, int turned, int rows, int columns, int ld, int64_t stride,
                       const void *data) {
    *m = (blas_matrix){.turned = turned == 112, .ld = ld, .stride = stride, .data = (char *)(uintptr_t)data};
    m->rows = m->turned ? columns : rows;
    m->columns = m->turned ? rows : columns;
    return type_of(type, &m->type) && (turned == 111 || turned == 112);
}

/* Products of halves want memory, others none. */
int rocblas_gemm_strided_batched_ex(void *of, int turn_a, int turn_b, int m, int n, int k, const void *alpha,
                                    const void *a, int a_type, int a_ld, int64_t a_stride, const void *b, int b_type,
                                    int b_ld, int64_t b_stride, const void *beta, const void *c, int c_type, int c_ld,
                                    int64_t c_stride, void *d, int d_type, int d_ld, int64_t d_stride, int batch,
                                    int sums, int algorithm, int32_t solution, uint32_t flags) {
    ENTER_ROC(NEEDS_CONTEXT, of);
    blas_product p = {.batch = batch, .alpha = 1, .workspace = h->workspace, .workspace_bytes = h->workspace_bytes};
    bool good = set_matrix(&p.a, a_type, turn_a, m, k, a_ld, a_stride, a) &&
                set_matrix(&p.b, b_type, turn_b, k, n, b_ld, b_stride, b) &&
                set_matrix(&p.c, d_type, 111, m, n, d_ld, d_stride, d);
    const char *words = !good ? "a type or an operation that there is not" : blas_misfit(&p);
    if (!words && (c != d || c_type != d_type || c_ld != d_ld || c_stride != d_stride)) words = "C is not D";
    if (!words && (sums == 152) != (p.c.type == BLAS_F64)) words = "sums of another type";
    if (!words && (algorithm || solution || flags)) words = "an algorithm or flags";
    if (words) return gpu_misuse(&call, INVALID_SIZE, "%s", words);
    bool wants = p.c.type == BLAS_F16 || p.c.type == BLAS_BF16;
    if (h->asks) {
        if (!wants || h->wanted >= WORKSPACE) return SIZE_UNCHANGED;
        h->wanted = WORKSPACE;
        return SIZE_INCREASED;
    }
    if (wants && h->workspace_bytes < WORKSPACE) return gpu_misuse(&call, MEMORY_ERROR, "less workspace than it wants");
    double one, zero;
    blas_factors(alpha, beta, p.c.type == BLAS_F64, &one, &zero);
    if (zero != 0) return gpu_misuse(&call, NOT_IMPLEMENTED, "beta is %g", zero);
    p.alpha = one;
    return status_of(blas_give(&call, h->stream, &p));
}

#endif
