/* onnx_signal.c — ONNX: Fourier transforms, windows, the mel scale.
 *
 * A transform of up to MATRIX_MOST points is a product with a matrix of cosines and sines that the host computes in
 * f64; longer ones are cut in two (Cooley and Tukey 1965), each part again a product. */
#include <math.h>
#include <string.h>

#include "onnx/operator_support.h"

static const double TURN = 6.283185307179586476925;

/* ---- the transform ----------------------------------------------------------------------------------------------- */

enum { MATRIX_MOST = 1024, LENGTH_MOST = 1 << 24 };

/* Of signals [rows, n, parts] (1: real, 2: with imaginary parts). */
typedef struct transform {
    int64_t n;       /* points of the whole */
    int64_t in, out; /* points there are, points asked for */
    int in_parts, out_parts;
    double direction; /* −1 forward, 1 inverse */
    bool mirrored;    /* the points there are stand for their conjugates as well */
} transform;

/* What point j contributes to point k: real to real and imaginary, imaginary to real and imaginary. */
static void put_factor(const transform *t, int64_t j, int64_t k, double *row, int64_t pitch) {
    double angle = t->direction * TURN * (double)(j * k % t->n) / (double)t->n, c = cos(angle), s = sin(angle);
    double weight = t->direction > 0 ? 1 / (double)t->n : 1;
    if (t->mirrored && j > 0 && 2 * j != t->n) weight *= 2;
    row[0] = weight * c;
    if (t->out_parts == 2) row[1] = weight * s;
    if (t->in_parts == 1) return;
    row[pitch] = -weight * s;
    if (t->out_parts == 2) row[pitch + 1] = weight * c;
}

static tn_tensor *by_matrix(const tn_tensor *x, const transform *t) {
    int64_t shape[2] = {t->in * t->in_parts, t->out * t->out_parts}, rows = tn_size(x, 0);
    double *v = tn_mem_alloc((size_t)tn_max64(shape[0] * shape[1], 1) * sizeof *v);
    if (!v) return tn_failed(TN_ERR_MEMORY, "a Fourier transform of %lld points: out of memory", (long long)t->n);
    for (int64_t j = 0; j < t->in; j++)
        for (int64_t k = 0; k < t->out; k++)
            put_factor(t, j, k, v + j * t->in_parts * shape[1] + k * t->out_parts, shape[1]);
    tn_tensor *m = onnx_from_doubles(v, shape, 2, tn_dtype_of(x));
    tn_mem_free(v);
    tn_tensor *y = tn_matmul(tn_reshape(x, (int64_t[]){rows, shape[0]}, 2), m);
    return tn_reshape(y, (int64_t[]){rows, t->out, t->out_parts}, 3);
}

/* The greatest divisor that is at most MATRIX_MOST / 4; 1 for a prime. */
static int64_t large_divisor(int64_t n) {
    int64_t best = 1;
    for (int64_t d = 2; d <= MATRIX_MOST / 4; d++)
        if (n % d == 0) best = d;
    return best;
}

/* x [rows, b, a, 2] times the roots of unity of number i · k, i of b and k of a. */
static tn_tensor *twiddled(const tn_tensor *x, int64_t b, int64_t a, double direction) {
    int64_t shape[] = {b, a}, n = a * b;
    double *re = tn_mem_alloc((size_t)n * 2 * sizeof *re), *im = re ? re + n : NULL;
    if (!re) return tn_failed(TN_ERR_MEMORY, "a Fourier transform: out of memory");
    for (int64_t i = 0; i < n; i++) {
        double angle = direction * TURN * (double)(i / a * (i % a)) / (double)n;
        re[i] = cos(angle);
        im[i] = sin(angle);
    }
    tn_tensor *c = onnx_from_doubles(re, shape, 2, tn_dtype_of(x)),
              *s = onnx_from_doubles(im, shape, 2, tn_dtype_of(x));
    tn_tensor *u = tn_select(x, 3, 0), *v = tn_select(x, 3, 1);
    tn_mem_free(re);
    tn_tensor *parts[] = {tn_sub(tn_mul(u, c), tn_mul(v, s)), tn_add(tn_mul(u, s), tn_mul(v, c))};
    return tn_stack(parts, 2, 3);
}

/* All n points of complex signals [rows, n, 2], not divided by n. With n = a · b, point j = j₁b + j₂ and k = k₁ + a·k₂:
 * transforms over j₁, a turn by j₂k₁ / n, transforms over j₂. Depth: the divisors of n. */
static tn_tensor *signal_whole(const tn_tensor *x, int64_t n, double direction, int depth) {
    enum { DEPTH_MOST = 24 };
    static const int64_t swap[] = {0, 2, 1, 3};
    int64_t a = n > MATRIX_MOST ? large_divisor(n) : 1, rows = tn_size(x, 0);
    if (a == 1 || depth > DEPTH_MOST) {
        if (n > 2 * MATRIX_MOST)
            return tn_failed(TN_ERR_UNSUPPORTED, "a Fourier transform of %lld points, a prime, is too long",
                             (long long)n);
        transform t = {.n = n, .in = n, .out = n, .in_parts = 2, .out_parts = 2, .direction = direction};
        tn_tensor *y = by_matrix(x, &t);
        return direction > 0 ? tn_mul_scalar(y, (double)n) : y;
    }
    int64_t b = n / a;
    tn_tensor *y = tn_permute(tn_reshape(x, (int64_t[]){rows, a, b, 2}, 4), swap, 4);
    y = signal_whole(tn_reshape(y, (int64_t[]){rows * b, a, 2}, 3), a, direction, depth + 1);
    y = tn_permute(twiddled(tn_reshape(y, (int64_t[]){rows, b, a, 2}, 4), b, a, direction), swap, 4);
    y = signal_whole(tn_reshape(y, (int64_t[]){rows * a, b, 2}, 3), b, direction, depth + 1);
    y = tn_permute(tn_reshape(y, (int64_t[]){rows, a, b, 2}, 4), swap, 4);
    return tn_reshape(y, (int64_t[]){rows, n, 2}, 3);
}

/* A real signal gets imaginary parts, half a spectrum its mirror image: Xₙ₋ₖ is the conjugate of Xₖ. */
static tn_tensor *made_complex(const tn_tensor *x, const transform *t) {
    if (t->in_parts == 1) {
        tn_tensor *parts[] = {tn_detach(x), tn_zeros_like(x)};
        return tn_cat(parts, 2, 2);
    }
    if (!t->mirrored) return tn_detach(x);
    double signs[] = {1, -1};
    const int64_t dim = 1, two = 2;
    tn_tensor *mirror = tn_flip(tn_narrow(x, 1, 1, t->n - t->in), &dim, 1);
    tn_tensor *parts[] = {tn_detach(x), tn_mul(mirror, onnx_from_doubles(signs, &two, 1, tn_dtype_of(x)))};
    return tn_cat(parts, 2, 1);
}

static tn_tensor *transformed(const tn_tensor *x, const transform *t) {
    if (t->n <= MATRIX_MOST) return by_matrix(x, t);
    tn_tensor *y = signal_whole(made_complex(x, t), t->n, t->direction, 0);
    if (t->direction > 0) y = tn_div_scalar(y, (double)t->n);
    return tn_narrow(tn_narrow(y, 1, 0, t->out), 2, 0, t->out_parts);
}

/* ---- DFT, STFT --------------------------------------------------------------------------------------------------- */

/* What the attributes make of a signal of n points. */
static tn_status read_transform(const onnx_call *c, int64_t n, int64_t parts, bool onesided, transform *t) {
    bool inverse = onnx_int(c, "inverse", 0) != 0;
    if (n < 1 || n > LENGTH_MOST || parts < 1 || parts > 2)
        return onnx_refuse(c, "a Fourier transform of %lld points with %lld parts is not supported", (long long)n,
                           (long long)parts);
    *t = (transform){.n = n, .in = n, .out = n, .in_parts = (int)parts, .out_parts = 2, .direction = inverse ? 1 : -1};
    if (!onesided) return TN_OK;
    if (inverse)
        t->in = n / 2 + 1, t->out_parts = 1, t->mirrored = true;
    else
        t->out = n / 2 + 1;
    return inverse && parts == 1 ? onnx_refuse(c, "the inverse of half a spectrum requires imaginary parts") : TN_OK;
}

tn_status onnx_dft(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    bool old = c->row->since < 20, onesided = onnx_int(c, "onesided", 0) != 0;
    int64_t asked = old ? onnx_int(c, "axis", 1) : -2, n, shape[3] = {1}, moved[TN_MAX_RANK];
    int axis, rank = tn_rank(x);
    transform t;
    TRY(tn_status_of(x));
    if (!old) TRY(onnx_read_int(c, 2, -2, &asked));
    TRY(onnx_axis(c, asked, rank, &axis));
    if (axis == rank - 1)
        return onnx_refuse(c, "the axis must not be the last dimension, which holds real and imaginary parts");
    int64_t have = tn_size(x, axis);
    bool inverse = onnx_int(c, "inverse", 0) != 0;
    TRY(onnx_read_int(c, 1, inverse && onesided ? 2 * (have - 1) : have, &n));
    TRY(read_transform(c, n, tn_size(x, -1), onesided, &t));
    tn_tensor *y = tn_movedim(onnx_as(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32), axis, rank - 2);
    if (have > t.in) y = tn_narrow(y, rank - 2, 0, t.in);
    if (have < t.in) y = tn_pad(y, (int64_t[]){0, 0, 0, t.in - have}, 4, 0);
    TRY(tn_status_of(y));
    memcpy(moved, tn_shape(y), (size_t)rank * sizeof *moved);
    moved[rank - 2] = t.out;
    moved[rank - 1] = t.out_parts;
    for (int d = 0; d < rank - 2; d++)
        shape[0] *= tn_size(y, d);
    shape[1] = t.in;
    shape[2] = t.in_parts;
    y = tn_reshape(transformed(tn_reshape(y, shape, 3), &t), moved, rank);
    return onnx_put(c, 0, tn_cast(tn_movedim(y, rank - 2, axis), tn_dtype_of(x)));
}

tn_status onnx_stft(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *window = onnx_has(c, 2) ? onnx_in(c, 2) : NULL;
    int64_t step, length;
    transform t;
    TRY(tn_status_of(x));
    if (tn_rank(x) == 2) x = tn_unsqueeze(x, -1); /* ONNX Runtime takes real signals so */
    if (tn_rank(x) != 3)
        return onnx_refuse(c, "the signal has %d dimensions; expected [batch, length] or [batch, length, 1 or 2]",
                           tn_rank(x));
    TRY(onnx_read_int(c, 1, 1, &step));
    TRY(onnx_read_int(c, 3, window ? tn_numel(window) : tn_size(x, 1), &length));
    int64_t rows = tn_size(x, 0), size = tn_size(x, 1), parts = tn_size(x, 2);
    if (step < 1 || length < 1 || length > size)
        return onnx_refuse(c, "frames of %lld with step %lld do not fit a signal of %lld", (long long)length,
                           (long long)step, (long long)size);
    TRY(read_transform(c, length, parts, onnx_int(c, "onesided", 1) != 0 && parts == 1, &t));
    int64_t frames = (size - length) / step + 1;
    int64_t shape[] = {rows, frames, length, parts}, strides[] = {size * parts, step * parts, parts, 1};
    tn_tensor *y = tn_contiguous(onnx_as(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32));
    y = tn_as_strided(y, shape, 4, strides, 4, 0);
    if (window) y = tn_mul(y, tn_reshape(window, (int64_t[]){length, 1}, 2));
    y = transformed(tn_reshape(y, (int64_t[]){rows * frames, length, parts}, 3), &t);
    return onnx_put(c, 0, tn_cast(tn_reshape(y, (int64_t[]){rows, frames, t.out, 2}, 4), tn_dtype_of(x)));
}

/* ---- windows, mel ------------------------------------------------------------------------------------------------ */

/* a₀ − a₁ cos(2πi/n) + a₂ cos(4πi/n). */
static const double cosines[][3] = {{0.5, 0.5, 0}, {25.0 / 46, 21.0 / 46, 0}, {0.42, 0.5, 0.08}};

static tn_status put_doubles(onnx_call *c, double *v, const int64_t *shape, int rank, const char *type_name) {
    onnx_type type = onnx_type_attribute(c, type_name, ONNX_FLOAT);
    tn_tensor *t = tn_cast(tn_from_data(v, shape, rank, TN_F64), onnx_types[type].dtype);
    tn_mem_free(v);
    return onnx_put_typed(c, 0, t, type);
}

tn_status onnx_signal_window(onnx_call *c) {
    const double *a = cosines[c->row->with];
    int64_t size;
    TRY(onnx_read_int(c, 0, 0, &size));
    if (size < 0 || size > LENGTH_MOST)
        return onnx_refuse(c, "a window of %lld points is not supported", (long long)size);
    double *v = tn_mem_alloc((size_t)tn_max64(size, 1) * sizeof *v);
    if (!v) return TN_ERR_MEMORY;
    double n = (double)(onnx_int(c, "periodic", 1) ? size : size - 1);
    for (int64_t i = 0; i < size; i++) {
        double angle = TURN * (double)i / n;
        v[i] = n > 0 ? a[0] - a[1] * cos(angle) + a[2] * cos(2 * angle) : 1;
    }
    return put_doubles(c, v, &size, 1, "output_datatype");
}

/* Triangles between neighbouring points that are equally far apart on the mel scale. */
static void fill_triangles(double *v, int64_t bins, int64_t bands, int64_t length, int64_t rate, double low,
                           double high) {
    double first = 2595 * log10(1 + low / 700), step = (2595 * log10(1 + high / 700) - first) / (double)(bands + 2);
    int64_t point[3];
    for (int64_t i = 0; i < bands + 2; i++) {
        double hertz = 700 * (pow(10, ((double)i * step + first) / 2595) - 1);
        int64_t at = (int64_t)floor((double)(length + 1) * hertz / (double)rate);
        point[0] = i > 0 ? point[1] : 0;
        point[1] = i > 0 ? point[2] : 0;
        point[2] = tn_max64(0, at < bins ? at : bins - 1);
        if (i < 2) continue;
        double *column = v + i - 2;
        if (point[1] == point[0]) column[point[1] * bands] = 1;
        for (int64_t j = point[0]; point[1] > point[0] && j <= point[1]; j++)
            column[j * bands] = (double)(j - point[0]) / (double)(point[1] - point[0]);
        for (int64_t j = point[1]; j < point[2]; j++)
            column[j * bands] = (double)(point[2] - j) / (double)(point[2] - point[1]);
    }
}

tn_status onnx_mel_weight_matrix(onnx_call *c) {
    int64_t number[3], shape[2];
    double edge[2];
    for (int i = 0; i < 3; i++)
        TRY(onnx_read_int(c, i, 0, &number[i]));
    for (int i = 0; i < 2; i++)
        TRY(onnx_read_float(c, 3 + i, 0, &edge[i]));
    shape[0] = number[1] / 2 + 1;
    shape[1] = number[0];
    if (number[0] < 1 || number[1] < 1 || number[2] < 1 || number[1] > LENGTH_MOST ||
        number[0] > LENGTH_MOST / shape[0])
        return onnx_refuse(c, "%lld bands of a spectrum of %lld are not supported", (long long)number[0],
                           (long long)number[1]);
    if (!(edge[0] >= 0 && edge[1] >= edge[0]))
        return onnx_refuse(c, "the band from %g to %g Hz is invalid", edge[0], edge[1]);
    double *v = tn_mem_zalloc((size_t)(shape[0] * shape[1]), sizeof *v);
    if (!v) return TN_ERR_MEMORY;
    fill_triangles(v, shape[0], shape[1], number[1], number[2], edge[0], edge[1]);
    return put_doubles(c, v, shape, 2, "output_datatype");
}
