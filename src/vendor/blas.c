/* blas.c — BLAS libraries of the system, and LAPACK inside them: products and factorizations.
 *
 * A library is a row of a table: under which names its file goes, by which function it is told to stay on one thread,
 * what has to stand in the environment while it is loaded. Some choose their kernels by a list of processors that they
 * know, and fall back to slow ones on a newer processor; the environment helps them there. Function names come with
 * prefixes and suffixes (PyPI's wheels, 64-bit integers), of which all are tried. The prototypes that are needed are
 * declared here. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/blas.h"
#include "cpu/isa.h"
#include "cpu/linalg.h"
#include "vendor/vendor.h"

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Set while the library is loaded, then put back: always, or where the user has said nothing and the processor has
 * AVX-512. */
typedef struct setting {
    const char *name, *value;
    bool always;
} setting;

enum { MOST_SETTINGS = 3 };

typedef struct entry {
    const char *name;
    tn_library_spec library;
    const char *single; /* called with 1 it keeps the library on the caller's thread */
    bool each_thread;   /* … and has to be called by every thread */
    bool wide_single;   /* … with a 64-bit integer */
    setting settings[MOST_SETTINGS];
} entry;

static const char *const openblas_names[] = {
    "libopenblas.so.0",
    "libopenblas64_.so.0",
    "libopenblas.dylib",
    "site-packages/scipy_openblas32/lib/libscipy_openblas.so",
    "site-packages/scipy_openblas64/lib/libscipy_openblas64_.so",
    "site-packages/scipy_openblas*/lib/libscipy_openblas*.dylib",
    "site-packages/numpy.libs/libscipy_openblas64_-*.so",
    "site-packages/scipy.libs/libscipy_openblas-*.so",
    NULL,
};
static const char *const mkl_names[] = {
    "libmkl_rt.so.*",
    "libmkl_rt.so",
    "/opt/intel/oneapi/mkl/latest/lib/libmkl_rt.so.*",
    "site-packages/../../libmkl_rt.so.*",
    NULL,
};
static const char *const onednn_names[] = {
    "libdnnl.so.*", "libdnnl.so", "/opt/intel/oneapi/dnnl/latest/lib/libdnnl.so.*", "site-packages/../../libdnnl.so.*",
    NULL,
};
static const char *const blis_names[] = {"libblis.so.4", "libblis.so.*", "libblis.dylib", NULL};
static const char *const accelerate_names[] = {"/System/Library/Frameworks/Accelerate.framework/Accelerate", NULL};

static const entry table[] = {
    {.name = "openblas",
     .library = {"OpenBLAS", "TRUNNION_OPENBLAS_LIB", openblas_names, NULL, 0,
                 "apt install libopenblas0, or pip install scipy-openblas32"},
     .single = "openblas_set_num_threads",
     .settings = {{"OPENBLAS_NUM_THREADS", "1", true}, {"OPENBLAS_CORETYPE", "SkylakeX", false}}},
    {.name = "mkl",
     .library = {"Intel MKL", "TRUNNION_MKL_LIB", mkl_names, NULL, 0, "apt install libmkl-rt, or pip install mkl"},
     .single = "MKL_Set_Threading_Layer"}, /* of layers, 1 is the sequential one */
    {.name = "onednn",
     .library = {"oneDNN", "TRUNNION_ONEDNN_LIB", onednn_names, NULL, 0,
                 "apt install libdnnl2 or libdnnl3, or pip install onednn-cpu-gomp"},
     .single = "omp_set_num_threads",
     .each_thread = true},
    {.name = "blis",
     .library = {"BLIS", "TRUNNION_BLIS_LIB", blis_names, NULL, 0, "apt install libblis4"},
     .single = "bli_thread_set_num_threads",
     .wide_single = true,
     .settings = {{"BLIS_NUM_THREADS", "1", true}, {"BLIS_ARCH_TYPE", "0", false}}},
    {.name = "accelerate",
     .library = {"Apple Accelerate", "TRUNNION_ACCELERATE_LIB", accelerate_names, NULL, 0, "part of macOS"},
     .single = "BLASSetThreading",
     .settings = {{"VECLIB_MAXIMUM_THREADS", "1", true}}},
};
enum { ROWS = TN_COUNT(table) };

/* ---- the functions ----------------------------------------------------------------------------------------------- */

enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 }; /* as the standard's C interface numbers them */

typedef void cblas_sgemm_i32(int order, int ta, int tb, int32_t m, int32_t n, int32_t k, float alpha, const float *a,
                             int32_t lda, const float *b, int32_t ldb, float beta, float *c, int32_t ldc);
typedef void cblas_sgemm_i64(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                             int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
typedef void cblas_dgemm_i32(int order, int ta, int tb, int32_t m, int32_t n, int32_t k, double alpha, const double *a,
                             int32_t lda, const double *b, int32_t ldb, double beta, double *c, int32_t ldc);
typedef void cblas_dgemm_i64(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                             int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);
typedef size_t cblas_isamax_i64(int64_t n, const float *x, int64_t incx);
typedef int dnnl_sgemm_function(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                                int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

struct tn_blas {
    const entry *entry;
    bool tried, wide; /* wide: 64-bit integers */
    void *sgemm, *dgemm;
    dnnl_sgemm_function *dnnl; /* instead of sgemm */
    void *single, *handle;
    char path[256], description[96];
    tn_reason why;
};

static tn_blas opened[ROWS];
static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER; /* of `opened` while it is filled in, and of the choice */
static _Atomic(const tn_blas *) chosen;
static atomic_bool open_choice; /* it was "auto" */

typedef struct piece {
    int64_t m, n, k;
    tn_side a, b;
    const void *a_data, *b_data;
    void *c;
    int64_t ldc;
    bool f64;
} piece;

static void stay_single(const tn_blas *b) {
    if (!b->single) return;
    if (b->entry->wide_single)
        ((void (*)(int64_t))b->single)(1);
    else
        ((void (*)(int))b->single)(1);
}

#define CBLAS_ARGUMENTS(integer, real)                                                                              \
    ROW_MAJOR, p->a.transposed ? TRANSPOSED : AS_IT_IS, p->b.transposed ? TRANSPOSED : AS_IT_IS, (integer)p->m,     \
        (integer)p->n, (integer)p->k, 1, p->a_data, (integer)p->a.ld, p->b_data, (integer)p->b.ld, 0, (real *)p->c, \
        (integer)p->ldc

/* For a library that says that it could not, as without memory. */
static void multiply_plainly(const piece *p) {
    const float *a = p->a_data, *b = p->b_data;
    float *c = p->c;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < p->k; k++)
                sum += (double)a[p->a.transposed ? k * p->a.ld + i : i * p->a.ld + k] *
                       (double)b[p->b.transposed ? j * p->b.ld + k : k * p->b.ld + j];
            c[i * p->ldc + j] = (float)sum;
        }
}

static bool multiply_by_dnnl(const tn_blas *b, const piece *p) {
    return b->dnnl(p->a.transposed ? 'T' : 'N', p->b.transposed ? 'T' : 'N', p->m, p->n, p->k, 1, p->a_data, p->a.ld,
                   p->b_data, p->b.ld, 0, p->c, p->ldc) == 0;
}

static void multiply_blas(const tn_blas *b, const piece *p) {
    if (b->entry->each_thread) stay_single(b);
    if (p->f64 && b->wide)
        ((cblas_dgemm_i64 *)b->dgemm)(CBLAS_ARGUMENTS(int64_t, double));
    else if (p->f64)
        ((cblas_dgemm_i32 *)b->dgemm)(CBLAS_ARGUMENTS(int32_t, double));
    else if (b->dnnl) {
        if (!multiply_by_dnnl(b, p)) multiply_plainly(p);
    } else if (b->wide)
        ((cblas_sgemm_i64 *)b->sgemm)(CBLAS_ARGUMENTS(int64_t, float));
    else
        ((cblas_sgemm_i32 *)b->sgemm)(CBLAS_ARGUMENTS(int32_t, float));
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

typedef struct saved {
    const char *name;
    char *before; /* NULL: it was not there */
} saved;

static bool wanted(const setting *s) {
    return s->name && (s->always || (tn_cpu().isa == TN_ISA_AVX512 && !getenv(s->name)));
}

static void set_environment(const entry *r, saved *keep) {
    for (int i = 0; i < MOST_SETTINGS; i++) {
        const setting *s = &r->settings[i];
        if (!wanted(s)) continue;
        const char *before = getenv(s->name);
        keep[i] = (saved){s->name, before ? tn_mem_strdup(before) : NULL};
        if (before && !keep[i].before) { /* it could not be put back */
            keep[i].name = NULL;
            continue;
        }
        setenv(s->name, s->value, 1);
    }
}

static void restore_environment(saved *keep) {
    for (int i = 0; i < MOST_SETTINGS; i++) {
        if (!keep[i].name) continue;
        if (keep[i].before)
            setenv(keep[i].name, keep[i].before, 1);
        else
            unsetenv(keep[i].name);
        tn_mem_free(keep[i].before);
    }
}

/* A function under any of its names; *wide: the name says 64-bit integers. */
static void *find_blas(void *handle, const char *name, bool *wide) {
    static const char *const prefixes[] = {"", "scipy_"}, *const suffixes[] = {"", "64_", "_64"};
    for (size_t p = 0; p < TN_COUNT(prefixes); p++)
        for (size_t s = 0; s < TN_COUNT(suffixes); s++) {
            char full[64];
            snprintf(full, sizeof full, "%s%s%s", prefixes[p], name, suffixes[s]);
            void *address = dlsym(handle, full);
            if (!address) continue;
            if (wide) *wide = s > 0;
            return address;
        }
    return NULL;
}

/* Integers of 64 bits under the plain names (a build of one's own, MKL_INTERFACE_LAYER=ILP64)? Of this many elements,
 * 32 bits say three and 64 bits a negative number, for which the place is 0. */
static bool blas_is_wide(void *handle) {
    static const float x[] = {1, 2, 3};
    cblas_isamax_i64 *largest = (cblas_isamax_i64 *)dlsym(handle, "cblas_isamax");
    return largest && (uint32_t)largest(INT64_MIN + 3, x, 1) == 0;
}

static void bind_functions(tn_blas *b, void *handle) {
    b->dnnl = (dnnl_sgemm_function *)dlsym(handle, "dnnl_sgemm");
    b->sgemm = find_blas(handle, "cblas_sgemm", &b->wide);
    b->dgemm = find_blas(handle, "cblas_dgemm", NULL);
    b->single = find_blas(handle, b->entry->single, NULL);
    if (!b->sgemm && !b->dnnl)
        tn_reason_set(&b->why, TN_REASON_SYMBOL_MISSING, b->entry->library.fix, "%s: function cblas_sgemm is missing",
                      b->entry->library.title);
}

/* OpenBLAS tells how it was built. One for a single thread may be without locks, and several threads call it here. */
static void ask_openblas(tn_blas *b, void *handle) {
    char *(*config)(void) = (char *(*)(void))find_blas(handle, "openblas_get_config", NULL);
    int (*parallel)(void) = (int (*)(void))find_blas(handle, "openblas_get_parallel", NULL);
    const char *text = config ? config() : "";
    snprintf(b->description, sizeof b->description, "%s", text);
    if (strstr(text, "USE64BITINT")) b->wide = true;
    if (!parallel || parallel() != 0 || strstr(text, "USE_LOCKING")) return;
    tn_reason_set(&b->why, TN_REASON_INIT_FAILED, "install the build for several threads: libopenblas0-pthread",
                  "OpenBLAS: this build is not thread-safe");
}

/* Its answers on a small product, as it will be called; else a wrong width of integers would be found by the user. */
static bool answers_right(const tn_blas *b, bool f64) {
    enum { M = 5, N = 7, K = 11, LD = 13 };
    double numbers[3][LD * LD], c[M * LD];
    float single[3][LD * LD];
    for (int i = 0; i < LD * LD; i++)
        for (int which = 0; which < 2; which++) {
            numbers[which][i] = (i * (which + 3)) % 17 - 8;
            single[which][i] = (float)numbers[which][i];
        }
    float *c32 = (float *)(void *)c;
    piece p = {.m = M, .n = N, .k = K, .c = c, .ldc = LD, .f64 = f64};
    p.a_data = f64 ? (void *)numbers[0] : (void *)single[0];
    p.b_data = f64 ? (void *)numbers[1] : (void *)single[1];
    p.a = (tn_side){LD, false};
    p.b = (tn_side){LD, true};
    multiply_blas(b, &p);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += numbers[0][i * LD + k] * numbers[1][j * LD + k];
            if (sum != (f64 ? c[i * LD + j] : (double)c32[i * LD + j])) return false;
        }
    return true;
}

static void check_answers(tn_blas *b) {
    if (b->dgemm && !answers_right(b, true)) b->dgemm = NULL;
    if (!answers_right(b, false))
        tn_reason_set(&b->why, TN_REASON_INIT_FAILED, b->entry->library.fix,
                      "%s: a test product of two small matrices is wrong", b->entry->library.title);
}

static void load_blas(tn_blas *b) {
    saved keep[MOST_SETTINGS] = {0};
    b->tried = true;
    tn_library_locate(&b->entry->library, b->path, sizeof b->path);
    set_environment(b->entry, keep);
    void *handle = b->handle = tn_library_open(&b->entry->library, &b->why);
    if (handle) bind_functions(b, handle);
    if (b->why.code == TN_REASON_NONE) {
        stay_single(b);
        if (strcmp(b->entry->name, "openblas") == 0) ask_openblas(b, handle);
        if (b->sgemm && !b->dnnl && !b->wide) b->wide = blas_is_wide(handle);
    }
    restore_environment(keep);
    if (b->why.code == TN_REASON_NONE) check_answers(b);
}

static const char AUTO[] = "auto";

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static bool usable(tn_blas *b, const entry *r) {
    b->entry = r;
    /* it may have been installed meanwhile */
    if (!b->tried || b->why.code == TN_REASON_LIBRARY_NOT_FOUND) load_blas(b);
    return b->why.code == TN_REASON_NONE;
}

static tn_status unknown(const char *name) {
    tn_str names = {0};
    for (int i = 0; i < ROWS; i++)
        tn_str_add(&names, "%s, ", table[i].name);
    for (int i = 0; tn_vendor_library_at(i); i++)
        tn_str_add(&names, "%s, ", tn_vendor_library_at(i)->name);
    tn_status s = tn_fail(TN_ERR_ARGUMENT, "\"%.40s\" is not a known matrix library: use %sauto or none", name,
                          tn_str_text(&names));
    tn_str_free(&names);
    return s;
}

static tn_status choose_blas(const char *name, const tn_blas **out) {
    bool any = strcmp(name, AUTO) == 0, known = any;
    const tn_blas *last = NULL;
    for (int i = 0; i < ROWS; i++) {
        if (!any && strcmp(name, table[i].name) != 0) continue;
        known = true;
        if (usable(&opened[i], &table[i])) {
            *out = &opened[i];
            return TN_OK;
        }
        last = &opened[i];
    }
    if (!known) return unknown(name);
    if (any) return tn_fail(TN_ERR_UNAVAILABLE, "no matrix library is available (see: trunnion devices)");
    return tn_fail(TN_ERR_UNAVAILABLE, "%s (%s)", last->why.text, last->why.fix);
}

tn_status tn_blas_choose(const char *name) {
    const tn_blas *found = NULL;
    bool none = !name || strcmp(name, "none") == 0;
    AUTO_LOCK(&blas_lock);
    TRY(none ? TN_OK : choose_blas(name, &found));
    atomic_store(&open_choice, found && strcmp(name, AUTO) == 0);
    atomic_store(&chosen, found);
    return TN_OK;
}

const tn_blas *tn_blas_chosen(void) { return atomic_load_explicit(&chosen, memory_order_acquire); }

bool tn_blas_is_open_choice(void) { return tn_blas_chosen() && atomic_load(&open_choice); }

const tn_blas *tn_blas_by_name(const char *name) {
    const tn_blas *found = NULL;
    if (strcmp(name, AUTO) == 0) return NULL;
    AUTO_LOCK(&blas_lock);
    tn_status s = choose_blas(name, &found);
    return s == TN_OK ? found : NULL;
}

const char *tn_blas_name(const tn_blas *b) { return b ? b->entry->name : "none"; }

int tn_blas_count(void) { return ROWS; }

bool tn_blas_untried(int i, const char *asked) {
    AUTO_LOCK(&blas_lock);
    const tn_blas *b = &opened[i];
    bool meant = strcmp(asked, AUTO) == 0 || strcmp(asked, table[i].name) == 0;
    return meant && (!b->tried || b->why.code == TN_REASON_LIBRARY_NOT_FOUND);
}

void tn_blas_refuse(int i, tn_reason_code code, const char *why) {
    tn_blas *b = &opened[i];
    AUTO_LOCK(&blas_lock);
    b->entry = &table[i];
    b->tried = true;
    tn_library_locate(&table[i].library, b->path, sizeof b->path);
    tn_reason_set(&b->why, code, table[i].library.fix, "%s: the test in a separate process failed: %s",
                  table[i].library.title, why);
}

void tn_blas_probe(int i, tn_blas_facts *out) {
    const tn_blas *b = &opened[i], *now = tn_blas_chosen();
    *out = (tn_blas_facts){.name = table[i].name, .title = table[i].library.title, .chosen = b == now};
    AUTO_LOCK(&blas_lock);
    if (b->tried) {
        memcpy(out->path, b->path, sizeof out->path);
        memcpy(out->description, b->description, sizeof out->description);
        out->why = b->why;
    } else if (!tn_library_locate(&table[i].library, out->path, sizeof out->path)) {
        tn_reason_set(&out->why, TN_REASON_LIBRARY_NOT_FOUND, table[i].library.fix, "%s: not found",
                      table[i].library.title);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

enum {
    BLOCK_ROWS = 256,                /* rows that are finished before the epilogue runs on them … */
    BLOCK_COLUMNS = TN_GEMM_BLOCK_LD /* … and columns */
};
static const double PART_FLOPS = 5e5; /* less is not worth another thread */

bool tn_matrix_has_side(const tn_matrix *x, int64_t rows, int64_t cols) {
    if (x->fused.vm) return false;
    if (x->col_stride == 1 || cols == 1) return rows == 1 || x->row_stride >= cols;
    return (x->row_stride == 1 || rows == 1) && (cols == 1 || x->col_stride >= rows);
}

tn_side tn_matrix_side(const tn_matrix *x, int64_t rows, int64_t cols) {
    bool by_rows = x->col_stride == 1 || cols == 1;
    int64_t ld = by_rows ? (rows == 1 ? cols : x->row_stride) : (cols == 1 ? rows : x->col_stride);
    return (tn_side){.ld = tn_max64(ld, by_rows ? cols : rows), .transposed = !by_rows};
}

static bool blas_fits(int64_t extent) { return extent > 0 && extent <= INT32_MAX; }

bool tn_blas_takes(const tn_blas *b, const tn_gemm_args *g, tn_dtype dtype) {
    if (dtype != TN_F32 && (dtype != TN_F64 || !b->dgemm)) return false;
    if (!blas_fits(g->m) || !blas_fits(g->n) || !blas_fits(g->k)) return false;
    if (!tn_matrix_has_side(&g->a, g->m, g->k) || !tn_matrix_has_side(&g->b, g->k, g->n)) return false;
    if (tn_matrix_side(&g->a, g->m, g->k).ld > INT32_MAX || tn_matrix_side(&g->b, g->k, g->n).ld > INT32_MAX)
        return false;
    if (g->c.fused.vm) return dtype == TN_F32;
    return (g->c.col_stride == 1 || g->n == 1) && (g->m == 1 || g->c.row_stride >= g->n) &&
           g->c.row_stride <= INT32_MAX;
}

typedef struct product {
    const tn_blas *blas;
    const tn_gemm_args *args;
    int64_t strips; /* that one product is cut into */
    bool by_rows, f64;
    size_t block_bytes, part_bytes;
} product;

static size_t block_bytes(const tn_gemm_args *g) {
    return g->c.fused.vm ? (size_t)tn_min64(g->m, BLOCK_ROWS) * BLOCK_COLUMNS * sizeof(float) : 0;
}

size_t tn_blas_workspace(const tn_gemm_args *g, int threads) {
    return (block_bytes(g) + fused_call_scratch(&g->c.fused, 0)) * (size_t)threads;
}

static const char *element(const void *data, int64_t at, const product *p) {
    return (const char *)data + at * (int64_t)(p->f64 ? sizeof(double) : sizeof(float));
}

static int64_t batch_offset(const tn_matrix *x, const int64_t *batch) {
    int64_t at = 0;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        at += batch[axis] * x->batch_stride[axis];
    return at;
}

/* Rows and columns of one product in C's own memory, or block by block through the epilogue. */
static void run_box(const product *p, const int64_t *batch, box at, fused_call *program, void *block) {
    const tn_gemm_args *g = p->args;
    piece q = {.m = at.rows, .n = at.cols, .k = g->k, .f64 = p->f64};
    q.a = tn_matrix_side(&g->a, g->m, g->k);
    q.b = tn_matrix_side(&g->b, g->k, g->n);
    q.a_data = element(g->a.data, batch_offset(&g->a, batch) + at.row * (g->m == 1 ? 0 : g->a.row_stride), p);
    q.b_data = element(g->b.data, batch_offset(&g->b, batch) + at.col * (g->n == 1 ? 0 : g->b.col_stride), p);
    if (program->vm) {
        q.c = block;
        q.ldc = BLOCK_COLUMNS;
    } else {
        int64_t row_stride = g->m == 1 ? g->n : g->c.row_stride;
        q.c = (void *)(uintptr_t)element(g->c.data, batch_offset(&g->c, batch) + at.row * row_stride + at.col, p);
        q.ldc = tn_max64(row_stride, g->n);
    }
    multiply_blas(p->blas, &q);
    if (program->vm) fused_call_run(program, batch, at, block);
}

static void run_strip(const product *p, const int64_t *batch, int64_t strip, fused_call *program, void *block) {
    const tn_gemm_args *g = p->args;
    int64_t length = p->by_rows ? g->m : g->n, unit = 16;
    int64_t step = tn_ceil_div(tn_ceil_div(length, p->strips), unit) * unit;
    int64_t begin = tn_min64(strip * step, length), end = tn_min64(begin + step, length);
    int64_t row0 = p->by_rows ? begin : 0, row1 = p->by_rows ? end : g->m;
    int64_t col0 = p->by_rows ? 0 : begin, col1 = p->by_rows ? g->n : end;
    int64_t rows = program->vm ? BLOCK_ROWS : tn_max64(row1 - row0, 1);
    int64_t cols = program->vm ? BLOCK_COLUMNS : tn_max64(col1 - col0, 1);
    for (int64_t col = col0; col < col1; col += cols)
        for (int64_t row = row0; row < row1; row += rows) {
            box at = {row, tn_min64(rows, row1 - row), col, tn_min64(cols, col1 - col)};
            run_box(p, batch, at, program, block);
        }
}

static void run_part(void *ctx, int64_t begin, int64_t end, int worker) {
    const product *p = ctx;
    char *memory = (char *)p->args->workspace + (size_t)worker * p->part_bytes;
    fused_call program = {0};
    fused_call_open(&program, &p->args->c.fused, memory + p->block_bytes);
    for (int64_t i = begin; i < end; i++) {
        int64_t batch[TN_GEMM_BATCH_AXES], rest = i / p->strips;
        for (int axis = TN_GEMM_BATCH_AXES - 1; axis >= 0; axis--) {
            batch[axis] = rest % p->args->batch[axis];
            rest /= p->args->batch[axis];
        }
        run_strip(p, batch, i % p->strips, &program, memory);
    }
}

void tn_blas_gemm(const tn_blas *b, const tn_gemm_args *g, tn_dtype dtype) {
    int64_t batches = 1;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        batches *= g->batch[axis];
    product p = {.blas = b, .args = g, .by_rows = g->m >= g->n, .f64 = dtype == TN_F64, .block_bytes = block_bytes(g)};
    p.part_bytes = p.block_bytes + fused_call_scratch(&g->c.fused, 0);
    double flops = (double)g->m * (double)g->n * (double)g->k;
    p.strips = batches >= tn_threads() ? 1 : tn_min64(tn_threads(), 1 + (int64_t)(flops / PART_FLOPS));
    int64_t grain = tn_max64(1, (int64_t)(PART_FLOPS * (double)p.strips / (flops + 1)));
    tn_parallel(batches * p.strips, grain, run_part, &p);
}

/* ==== LAPACK ====================================================================================================== */
/* LAPACK's matrices lie by columns: a row-major matrix is its transpose there. So a symmetric matrix's lower triangle
 * is its upper one, the U of a singular value decomposition is the transpose's V, and systems are solved with the
 * transpose asked for; only QR and right sides have to be turned. Arguments are addresses, of integers of 32 or 64
 * bits: an int64_t, low bytes first, serves as both. Behind the arguments stand the lengths of the texts among them. */

typedef void dpotrf_function(const char *uplo, const int64_t *n, double *a, const int64_t *lda, int64_t *info,
                             size_t uplo_length);
typedef void dgetrf_function(const int64_t *m, const int64_t *n, double *a, const int64_t *lda, void *ipiv,
                             int64_t *info);
typedef void dgetrs_function(const char *trans, const int64_t *n, const int64_t *nrhs, const double *a,
                             const int64_t *lda, const void *ipiv, double *b, const int64_t *ldb, int64_t *info,
                             size_t trans_length);
typedef void dgeqrf_function(const int64_t *m, const int64_t *n, double *a, const int64_t *lda, double *tau,
                             double *work, const int64_t *lwork, int64_t *info);
typedef void dorgqr_function(const int64_t *m, const int64_t *n, const int64_t *k, double *a, const int64_t *lda,
                             const double *tau, double *work, const int64_t *lwork, int64_t *info);
typedef void dsyevd_function(const char *jobz, const char *uplo, const int64_t *n, double *a, const int64_t *lda,
                             double *w, double *work, const int64_t *lwork, void *iwork, const int64_t *liwork,
                             int64_t *info, size_t jobz_length, size_t uplo_length);
typedef void dgesdd_function(const char *jobz, const int64_t *m, const int64_t *n, double *a, const int64_t *lda,
                             double *s, double *u, const int64_t *ldu, double *vt, const int64_t *ldvt, double *work,
                             const int64_t *lwork, void *iwork, int64_t *info, size_t jobz_length);

struct tn_lapack {
    tn_lapack_calls calls; /* first: linalg.c knows no more */
    const tn_blas *library;
    dpotrf_function *dpotrf;
    dgetrf_function *dgetrf;
    dgetrs_function *dgetrs;
    dgeqrf_function *dgeqrf;
    dorgqr_function *dorgqr;
    dsyevd_function *dsyevd;
    dgesdd_function *dgesdd;
    bool wide; /* integers of 64 bits */
    bool right[TN_LINALG_KINDS];
};

static const int64_t ASK = -1; /* for the size of the work memory */

/* 0: done; below: an argument was refused; above: what was to be found does not exist. */
static int32_t told(int64_t info) { return (int32_t)info; }

/* Numbers as large as an answer to ASK says; it is rounded up, for it comes as a floating-point number. */
static int64_t asked(double answer) { return (int64_t)ceil(answer * (1 + 0x1p-50)); }

/* to [n, m] = from [m, n] turned. */
static void transpose(const double *from, int64_t m, int64_t n, double *to) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            to[j * m + i] = from[i * n + j];
}

/* ---- each kind --------------------------------------------------------------------------------------------------- */

static bool has_cholesky(const tn_lapack *l) { return l->dpotrf; }

static bool cholesky(const tn_lapack *l, const tn_linalg_matrix *x) {
    int64_t n = x->n, info = 0;
    if (tn_linalg_is_lost(x, true, n * n)) return true;
    memcpy(x->out, x->a, (size_t)(n * n) * sizeof *x->out);
    l->dpotrf("U", &n, x->out, &n, &info, 1);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (told(info) != 0 || j > i) x->out[i * n + j] = told(info) != 0 ? NAN : 0;
    return told(info) >= 0;
}

static bool has_elimination(const tn_lapack *l) { return l->dgetrf && l->dgetrs; }

/* Exchanges of rows, then right sides by columns. */
static int64_t work_of_solve(TN_UNUSED const tn_lapack *l, TN_UNUSED int64_t m, int64_t n, int64_t k) {
    return n + n * k;
}

static bool solve(const tn_lapack *l, const tn_linalg_matrix *x) {
    int64_t n = x->n, info = 0;
    double *columns = x->work + n;
    l->dgetrf(&n, &n, x->a, &n, x->work, &info);
    if (told(info) < 0) return false; /* above: singular, which divides by 0 */
    transpose(x->b, n, x->k, columns);
    l->dgetrs("T", &n, &x->k, x->a, &n, x->work, columns, &n, &info, 1);
    transpose(columns, x->k, n, x->out);
    return told(info) == 0;
}

static int64_t work_of_determinant(TN_UNUSED const tn_lapack *l, TN_UNUSED int64_t m, int64_t n, TN_UNUSED int64_t k) {
    return n;
}

static bool determinant(const tn_lapack *l, const tn_linalg_matrix *x) {
    int64_t n = x->n, info = 0;
    const void *rows = x->work; /* with which each was exchanged, counted from 1 */
    double sign = 1;
    l->dgetrf(&n, &n, x->a, &n, x->work, &info);
    for (int64_t i = 0; i < n; i++)
        if ((l->wide ? ((const int64_t *)rows)[i] : ((const int32_t *)rows)[i]) != i + 1) sign = -sign;
    tn_linalg_determinant(x, sign);
    return told(info) >= 0;
}

static bool has_qr(const tn_lapack *l) { return l->dgeqrf && l->dorgqr; }

/* The matrix by columns, a number a reflection, then LAPACK's own. */
static int64_t work_of_qr(const tn_lapack *l, int64_t m, int64_t n, int64_t k) {
    double factor = 0, form = 0;
    int64_t info = 0;
    k = tn_min64(m, n);
    l->dgeqrf(&m, &n, NULL, &m, NULL, &factor, &ASK, &info);
    l->dorgqr(&m, &k, &k, NULL, &m, NULL, &form, &ASK, &info);
    return m * n + k + asked(fmax(factor, form));
}

static bool qr(const tn_lapack *l, const tn_linalg_matrix *x) {
    int64_t m = x->m, n = x->n, k = tn_min64(m, n), info = 0, left = work_of_qr(l, m, n, 0) - m * n - k;
    double *a = x->work, *tau = a + m * n, *work = tau + k, *q = x->out, *r = q + m * k;
    if (tn_linalg_is_lost(x, false, (m + n) * k)) return true;
    transpose(x->a, m, n, a);
    l->dgeqrf(&m, &n, a, &m, tau, work, &left, &info);
    if (told(info) != 0) return false;
    for (int64_t i = 0; i < k; i++) {
        double sign = a[i * m + i] < 0 ? -1 : 1;
        for (int64_t j = 0; j < n; j++)
            r[i * n + j] = j < i ? 0 : sign * a[j * m + i];
    }
    for (int64_t i = 0; i < k; i++) /* what tells the sign goes with Q's own memory */
        x->a[i] = a[i * m + i] < 0 ? -1 : 1;
    l->dorgqr(&m, &k, &k, a, &m, tau, work, &left, &info);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            q[i * k + j] = x->a[j] * a[j * m + i];
    return told(info) == 0;
}

static bool has_eigh(const tn_lapack *l) { return l->dsyevd; }

static int64_t eigh_numbers(int64_t n) { return 1 + 6 * n + 2 * n * n; }
static int64_t eigh_integers(int64_t n) { return 3 + 5 * n; }

static int64_t work_of_eigh(TN_UNUSED const tn_lapack *l, TN_UNUSED int64_t m, int64_t n, TN_UNUSED int64_t k) {
    return eigh_numbers(n) + eigh_integers(n);
}

static bool eigh(const tn_lapack *l, const tn_linalg_matrix *x) {
    int64_t n = x->n, numbers = eigh_numbers(n), integers = eigh_integers(n), info = 0;
    if (tn_linalg_is_lost(x, true, n * (n + 1))) return true;
    l->dsyevd("V", "U", &n, x->a, &n, x->out, x->work, &numbers, x->work + numbers, &integers, &info, 1, 1);
    for (int64_t i = 0; i < n; i++) {
        double sign = tn_linalg_sign(x->a + i * n, n, 1);
        for (int64_t j = 0; j < n; j++)
            x->out[(j + 1) * n + i] = sign * x->a[i * n + j];
    }
    return told(info) == 0;
}

static bool has_svd(const tn_lapack *l) { return l->dgesdd; }

static int64_t svd_integers(int64_t m, int64_t n) { return 8 * tn_min64(m, n); }

static int64_t work_of_svd(const tn_lapack *l, int64_t m, int64_t n, int64_t k) {
    double answer = 0;
    int64_t info = 0;
    k = tn_min64(m, n);
    l->dgesdd("S", &n, &m, NULL, &n, NULL, NULL, &n, NULL, &k, &answer, &ASK, NULL, &info, 1);
    return svd_integers(m, n) + asked(answer);
}

static bool svd(const tn_lapack *l, const tn_linalg_matrix *x) {
    int64_t m = x->m, n = x->n, k = tn_min64(m, n), integers = svd_integers(m, n), info = 0;
    int64_t left = work_of_svd(l, m, n, 0) - integers;
    double *u = x->out, *s = u + m * k, *vt = s + k;
    if (tn_linalg_is_lost(x, false, (m + n + 1) * k)) return true;
    l->dgesdd("S", &n, &m, x->a, &n, s, vt, &n, u, &k, x->work + integers, &left, x->work, &info, 1);
    for (int64_t i = 0; i < k; i++) {
        if (tn_linalg_sign(u + i, m, k) > 0) continue;
        for (int64_t j = 0; j < m; j++)
            u[j * k + i] = -u[j * k + i];
        tn_linalg_scale(vt + i * n, -1, n);
    }
    return told(info) == 0;
}

static int64_t no_work(TN_UNUSED const tn_lapack *l, TN_UNUSED int64_t m, TN_UNUSED int64_t n, TN_UNUSED int64_t k) {
    return 0;
}

/* Triangular systems are ours: turning the right sides there and back takes as long as solving them. */
static const struct {
    bool (*has)(const tn_lapack *l);
    bool (*run)(const tn_lapack *l, const tn_linalg_matrix *x);
    int64_t (*work)(const tn_lapack *l, int64_t m, int64_t n, int64_t k);
} kinds[TN_LINALG_KINDS] = {
    [TN_LINALG_CHOLESKY] = {has_cholesky, cholesky, no_work},
    [TN_LINALG_SOLVE] = {has_elimination, solve, work_of_solve},
    [TN_LINALG_DETERMINANT] = {has_elimination, determinant, work_of_determinant},
    [TN_LINALG_QR] = {has_qr, qr, work_of_qr},
    [TN_LINALG_EIGH] = {has_eigh, eigh, work_of_eigh},
    [TN_LINALG_SVD] = {has_svd, svd, work_of_svd},
};

/* ---- trust ------------------------------------------------------------------------------------------------------- */

enum { TRIED = 6, MOST_ROOM = 4096 }; /* extents of the matrices that it is tried on; numbers for all of one */

/* Symmetric and positive definite, with eigenvalues and singular values far apart. */
static void fill_tried(tn_linalg_matrix *x, double *room) {
    *x = (tn_linalg_matrix){.m = TRIED, .n = TRIED, .k = 2, .a = room};
    x->b = x->a + TRIED * TRIED;
    x->out = x->b + 2 * TRIED;
    x->work = x->out + 4 * TRIED * TRIED;
    for (int i = 0; i < TRIED; i++) {
        for (int j = 0; j < TRIED; j++)
            x->a[i * TRIED + j] = i == j ? 4 << i : 1 / (1.0 + i + j);
        x->b[2 * i] = i - 2;
        x->b[2 * i + 1] = 1;
    }
}

static bool lapack_answers_right(const tn_lapack *l, tn_linalg_kind kind) {
    double rooms[2][MOST_ROOM];
    tn_linalg_matrix own, theirs;
    fill_tried(&own, rooms[0]);
    fill_tried(&theirs, rooms[1]);
    if (kinds[kind].work(l, TRIED, TRIED, 2) > rooms[1] + MOST_ROOM - theirs.work) return false;
    tn_linalg_own(kind, &own);
    if (!kinds[kind].run(l, &theirs)) return false;
    for (int64_t i = 0; i < tn_linalg_result(kind, TRIED, TRIED, 2); i++)
        if (!(fabs(own.out[i] - theirs.out[i]) <= 1e-12 * fmax(1, fabs(own.out[i])))) return false;
    return true;
}

static int64_t lapack_work(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k) {
    return kinds[kind].work(l, m, n, k);
}

static bool lapack_run(const tn_lapack *l, tn_linalg_kind kind, const tn_linalg_matrix *x) {
    return kinds[kind].run(l, x);
}

static void lapack_bind_functions(tn_lapack *l, const tn_blas *library) {
    l->calls = (tn_lapack_calls){lapack_work, lapack_run};
    l->library = library;
    l->wide = library->wide;
    l->dpotrf = (dpotrf_function *)find_blas(library->handle, "dpotrf_", NULL);
    l->dgetrf = (dgetrf_function *)find_blas(library->handle, "dgetrf_", NULL);
    l->dgetrs = (dgetrs_function *)find_blas(library->handle, "dgetrs_", NULL);
    l->dgeqrf = (dgeqrf_function *)find_blas(library->handle, "dgeqrf_", NULL);
    l->dorgqr = (dorgqr_function *)find_blas(library->handle, "dorgqr_", NULL);
    l->dsyevd = (dsyevd_function *)find_blas(library->handle, "dsyevd_", NULL);
    l->dgesdd = (dgesdd_function *)find_blas(library->handle, "dgesdd_", NULL);
    for (int kind = 0; kind < TN_LINALG_KINDS; kind++)
        l->right[kind] = kinds[kind].has && kinds[kind].has(l) && lapack_answers_right(l, (tn_linalg_kind)kind);
}

const tn_lapack *tn_lapack_of(const tn_blas *library) {
    enum { MOST = 8 };
    static tn_lapack known[MOST];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int i = 0;
    if (!library) return NULL;
    pthread_mutex_lock(&lock);
    while (i < MOST && known[i].library && known[i].library != library)
        i++;
    if (i < MOST && !known[i].library) lapack_bind_functions(&known[i], library);
    pthread_mutex_unlock(&lock);
    return i < MOST ? &known[i] : NULL;
}

bool tn_lapack_takes(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k) {
    enum { LEAST = 32, MOST_NARROW = 1 << 28 }; /* extents; numbers of which work memory is counted in 32 bits */
    bool fits = l->wide || ((double)m * (double)n <= MOST_NARROW && k <= MOST_NARROW);
    return l->right[kind] && tn_min64(m, n) >= LEAST && fits;
}
