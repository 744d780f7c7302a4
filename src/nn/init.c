/* init.c — initial values of weights: PyTorch's torch.nn.init.
 *
 * Uniform and normal values come from the recorded random numbers, so they are the same on every device. Orthogonal
 * matrices are made on the host, in double precision, out of such numbers. */
#include <math.h>
#include <stdlib.h>

#include "trunnion/backend.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

tn_tensor *tn_init_uniform(const int64_t *shape, int rank, double low, double high) {
    tn_tensor *result = NULL;
    TN_SCOPE;
    result = tn_keep(tn_add(tn_mul(tn_rand(shape, rank), tn_scalar(high - low)), tn_scalar(low)));
    return result;
}

tn_tensor *tn_init_normal(const int64_t *shape, int rank, double mean, double std) {
    tn_tensor *result = NULL;
    TN_SCOPE;
    result = tn_keep(tn_add(tn_mul(tn_randn(shape, rank), tn_scalar(std)), tn_scalar(mean)));
    return result;
}

tn_tensor *tn_init_constant(const int64_t *shape, int rank, double value) {
    return tn_full(shape, rank, value, TN_F32);
}

/* Values that feed one output, and outputs that one value feeds; for [out, in, kernel…]. False for less than two
 * dimensions. */
static bool fans(const int64_t *shape, int rank, double *in, double *out) {
    if (rank < 2 || rank > TN_MAX_RANK || !shape) return false;
    double field = 1;
    for (int d = 2; d < rank; d++)
        field *= (double)shape[d];
    *in = (double)shape[1] * field;
    *out = (double)shape[0] * field;
    return true;
}

static tn_tensor *no_fans(const char *what, int rank) {
    return tn_failed(TN_ERR_SHAPE, "%s: a weight of %d dimensions; two at least are needed, [out, in, …]", what, rank);
}

tn_tensor *tn_init_kaiming_uniform(const int64_t *shape, int rank, double a) {
    double in, out;
    if (!fans(shape, rank, &in, &out)) return no_fans("kaiming_uniform", rank);
    double gain = sqrt(2 / (1 + a * a));
    double bound = in > 0 ? gain * sqrt(3 / in) : 0;
    return tn_init_uniform(shape, rank, -bound, bound);
}

tn_tensor *tn_init_xavier_uniform(const int64_t *shape, int rank, double gain) {
    double in, out;
    if (!fans(shape, rank, &in, &out)) return no_fans("xavier_uniform", rank);
    double bound = in + out > 0 ? gain * sqrt(6 / (in + out)) : 0;
    return tn_init_uniform(shape, rank, -bound, bound);
}

/* ---- orthogonal -------------------------------------------------------------------------------------------------- */

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void subtract(double *x, const double *y, double factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] -= factor * y[i];
}

/* Gram and Schmidt's process on `count` rows of n ≥ count numbers; done twice a row, which leaves errors at rounding
 * level (Giraud et al. 2005). This is the Q of a QR factorisation with a positive diagonal,
 * so Q is uniformly distributed. */
static bool orthonormalise(double *rows, int64_t count, int64_t n) {
    for (int64_t i = 0; i < count; i++) {
        double *row = rows + i * n;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t k = 0; k < i; k++)
                subtract(row, rows + k * n, dot(row, rows + k * n, n), n);
        double length = sqrt(dot(row, row, n));
        if (!(length > 1e-8)) return false; /* does not happen to normal numbers */
        for (int64_t k = 0; k < n; k++)
            row[k] /= length;
    }
    return true;
}

/* values: rows·columns normal numbers in, the scaled matrix out; work: as many doubles. */
static bool make_orthogonal(float *values, double *work, int64_t rows, int64_t columns, double gain) {
    int64_t total = rows * columns;
    for (int64_t i = 0; i < total; i++)
        work[i] = values[i];
    bool flat = rows <= columns;
    int64_t count = flat ? rows : columns, n = flat ? columns : rows;
    if (!orthonormalise(work, count, n)) return false;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            values[r * columns + c] = (float)(gain * (flat ? work[r * columns + c] : work[c * rows + r]));
    return true;
}

tn_tensor *tn_init_orthogonal(int64_t rows, int64_t columns, double gain) {
    if (rows <= 0 || columns <= 0 || rows > INT64_MAX / columns / (int64_t)sizeof(double))
        return tn_failed(TN_ERR_SHAPE, "orthogonal: a matrix of %lld rows and %lld columns", (long long)rows,
                         (long long)columns);
    int64_t shape[] = {rows, columns};
    size_t total = (size_t)(rows * columns);
    float *values = malloc(total * sizeof *values);
    double *work = malloc(total * sizeof *work);
    tn_status status = values && work ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "orthogonal: out of memory");
    if (status == TN_OK) {
        tn_tensor *normal = tn_randn(shape, 2);
        status = tn_read(normal, values, total * sizeof *values);
        tn_free(normal);
    }
    if (status == TN_OK && !make_orthogonal(values, work, rows, columns, gain))
        status = tn_backend_fail(TN_ERR_INTERNAL, "orthogonal: the random rows depend on each other");
    tn_tensor *result = status == TN_OK ? tn_from_data(values, shape, 2, TN_F32) : tn_failed(status, "%s", tn_error());
    free(values);
    free(work);
    return result;
}
