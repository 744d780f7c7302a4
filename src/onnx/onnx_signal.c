/* onnx_signal.c — ONNX: Fourier transforms (functions.h), windows, the mel scale. */
#include <math.h>

#include "onnx/operator_support.h"
#include "trunnion/functions.h"

static const double TURN = 6.283185307179586476925;

enum { LENGTH_MOST = 1 << 24 };

/* ---- DFT, STFT --------------------------------------------------------------------------------------------------- */

static tn_status check_transform(const onnx_call *c, int64_t n, int64_t parts) {
    if (n >= 1 && n <= LENGTH_MOST && parts >= 1 && parts <= 2) return TN_OK;
    return onnx_refuse(c, "a Fourier transform of %lld points with %lld parts is not supported", (long long)n,
                       (long long)parts);
}

/* x [..., parts] with an imaginary part. */
static tn_tensor *with_imaginary(const tn_tensor *x) {
    return tn_size(x, -1) == 2 ? tn_contiguous(x) : tn_pad(x, (int64_t[]){0, 1}, 2, 0);
}

/* Half a spectrum of n points of x [..., parts], along dim. */
static tn_tensor *half_spectrum(const tn_tensor *x, int64_t n, int dim) {
    if (tn_size(x, -1) == 1) return tn_rfft(tn_select(x, -1, 0), n, dim, TN_FFT_BACKWARD);
    return tn_narrow(tn_fft(x, n, dim, TN_FFT_BACKWARD), dim, 0, n / 2 + 1);
}

tn_status onnx_dft(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    bool old = c->row->since < 20, onesided = onnx_int(c, "onesided", 0) != 0;
    bool inverse = onnx_int(c, "inverse", 0) != 0;
    int64_t asked = old ? onnx_int(c, "axis", 1) : -2, n;
    int axis, rank = tn_rank(x);
    TRY(tn_status_of(x));
    if (!old) TRY(onnx_read_int(c, 2, -2, &asked));
    TRY(onnx_axis(c, asked, rank, &axis));
    if (axis == rank - 1)
        return onnx_refuse(c, "the axis must not be the last dimension, which holds real and imaginary parts");
    int64_t have = tn_size(x, axis), parts = tn_size(x, -1);
    TRY(onnx_read_int(c, 1, inverse && onesided ? 2 * (have - 1) : have, &n));
    TRY(check_transform(c, n, parts));
    if (inverse && onesided && parts == 1)
        return onnx_refuse(c, "the inverse of half a spectrum requires imaginary parts");
    const tn_tensor *wide = onnx_as(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32);
    tn_tensor *y;
    if (!inverse)
        y = onesided ? half_spectrum(wide, n, axis) : tn_fft(with_imaginary(wide), n, axis, TN_FFT_BACKWARD);
    else if (onesided)
        y = tn_unsqueeze(tn_irfft(wide, n, axis, TN_FFT_BACKWARD), -1);
    else
        y = tn_ifft(with_imaginary(wide), n, axis, TN_FFT_BACKWARD);
    return onnx_put(c, 0, tn_cast(y, tn_dtype_of(x)));
}

tn_status onnx_stft(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *window = onnx_has(c, 2) ? onnx_in(c, 2) : NULL;
    int64_t step, length;
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
    TRY(check_transform(c, length, parts));
    int64_t frames = (size - length) / step + 1;
    int64_t shape[] = {rows, frames, length, parts}, strides[] = {size * parts, step * parts, parts, 1};
    tn_tensor *y = tn_contiguous(onnx_as(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32));
    y = tn_as_strided(y, shape, 4, strides, 4, 0);
    if (window) y = tn_mul(y, tn_reshape(window, (int64_t[]){length, 1}, 2));
    bool onesided = onnx_int(c, "onesided", 1) != 0 && parts == 1;
    y = onesided ? half_spectrum(y, length, 2) : tn_fft(with_imaginary(y), length, 2, TN_FFT_BACKWARD);
    return onnx_put(c, 0, tn_cast(y, tn_dtype_of(x)));
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
