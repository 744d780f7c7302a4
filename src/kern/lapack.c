/* lapack.c — LAPACK's functions under their Fortran names, and what makes their results those of kern/linalg.h.
 *
 * LAPACK's matrices lie by columns: a row-major matrix is its transpose there. So a symmetric matrix's lower triangle
 * is its upper one, the U of a singular value decomposition is the transpose's V, and systems are solved with the
 * transpose asked for; only QR and right sides have to be turned. Arguments are addresses, of integers of 32 or 64
 * bits: an int64_t, low bytes first, serves as both. Behind the arguments stand the lengths of the texts among them. */
#include "kern/lapack.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

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
static int64_t work_of_solve(const tn_lapack *l, int64_t m, int64_t n, int64_t k) {
    (void)l, (void)m;
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

static int64_t work_of_determinant(const tn_lapack *l, int64_t m, int64_t n, int64_t k) {
    (void)l, (void)m, (void)k;
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

static int64_t work_of_eigh(const tn_lapack *l, int64_t m, int64_t n, int64_t k) {
    (void)l, (void)m, (void)k;
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

static int64_t no_work(const tn_lapack *l, int64_t m, int64_t n, int64_t k) {
    (void)l, (void)m, (void)n, (void)k;
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

static bool answers_right(const tn_lapack *l, tn_linalg_kind kind) {
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

static void bind_functions(tn_lapack *l, const tn_blas *library) {
    l->library = library;
    l->wide = tn_blas_is_wide(library);
    l->dpotrf = (dpotrf_function *)tn_blas_function(library, "dpotrf_");
    l->dgetrf = (dgetrf_function *)tn_blas_function(library, "dgetrf_");
    l->dgetrs = (dgetrs_function *)tn_blas_function(library, "dgetrs_");
    l->dgeqrf = (dgeqrf_function *)tn_blas_function(library, "dgeqrf_");
    l->dorgqr = (dorgqr_function *)tn_blas_function(library, "dorgqr_");
    l->dsyevd = (dsyevd_function *)tn_blas_function(library, "dsyevd_");
    l->dgesdd = (dgesdd_function *)tn_blas_function(library, "dgesdd_");
    for (int kind = 0; kind < TN_LINALG_KINDS; kind++)
        l->right[kind] = kinds[kind].has && kinds[kind].has(l) && answers_right(l, (tn_linalg_kind)kind);
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
    if (i < MOST && !known[i].library) bind_functions(&known[i], library);
    pthread_mutex_unlock(&lock);
    return i < MOST ? &known[i] : NULL;
}

bool tn_lapack_takes(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k) {
    enum { LEAST = 32, MOST_NARROW = 1 << 28 }; /* extents; numbers of which work memory is counted in 32 bits */
    bool fits = l->wide || ((double)m * (double)n <= MOST_NARROW && k <= MOST_NARROW);
    return l->right[kind] && tn_min64(m, n) >= LEAST && fits;
}

int64_t tn_lapack_work(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k) {
    return kinds[kind].work(l, m, n, k);
}

bool tn_lapack_run(const tn_lapack *l, tn_linalg_kind kind, const tn_linalg_matrix *x) { return kinds[kind].run(l, x); }
