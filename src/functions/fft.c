/* fft.c — Fourier transforms of any length.
 *
 * A transform of up to MATRIX_MOST points is a product with a matrix of cosines and sines that the host computes in
 * f64; longer ones are cut in two (Cooley and Tukey 1965), each part again a product; long primes become a convolution
 * whose length is a power of two (Bluestein 1970). So they run on every device and have gradients. */
#include "functions/common.h"

static const double TURN = 6.283185307179586476925;

enum { MATRIX_MOST = 1024, LENGTH_MOST = 1 << 24 };

/* Of signals [rows, n, parts] (1: real, 2: with imaginary parts). */
typedef struct transform {
    int64_t n;       /* points of the whole */
    int64_t in, out; /* points there are, points asked for */
    int in_parts, out_parts;
    double direction; /* −1 forward, 1 inverse */
    double scale;
    bool mirrored; /* the points there are stand for their conjugates as well */
} transform;

static tn_tensor *fft_out_of_memory(int64_t n) {
    return tn_failed(TN_ERR_MEMORY, "fft: out of memory for %lld points", (long long)n);
}

/* Takes v. f32 is made on the host: a device may have no f64. */
static tn_tensor *from_doubles(double *v, const int64_t *shape, int rank, tn_dtype dtype) {
    int64_t count = product(shape, rank);
    float *narrow = (float *)(void *)v;
    for (int64_t i = 0; dtype == TN_F32 && i < count; i++) {
        double wide;
        memcpy(&wide, &v[i], sizeof wide);
        narrow[i] = (float)wide;
    }
    tn_tensor *t = tn_from_data(v, shape, rank, dtype);
    free(v);
    return t;
}

/* ---- by a matrix ------------------------------------------------------------------------------------------------- */

/* What point j contributes to point k: real to real and imaginary, imaginary to real and imaginary. */
static void put_factor(const transform *t, int64_t j, int64_t k, double *row, int64_t pitch) {
    double angle = t->direction * TURN * (double)(j * k % t->n) / (double)t->n, c = cos(angle), s = sin(angle);
    double weight = t->mirrored && j > 0 && 2 * j != t->n ? 2 * t->scale : t->scale;
    row[0] = weight * c;
    if (t->out_parts == 2) row[1] = weight * s;
    if (t->in_parts == 1) return;
    row[pitch] = -weight * s;
    if (t->out_parts == 2) row[pitch + 1] = weight * c;
}

static tn_tensor *by_matrix(const tn_tensor *x, const transform *t) {
    int64_t shape[2] = {t->in * t->in_parts, t->out * t->out_parts}, rows = tn_size(x, 0);
    double *v = malloc((size_t)(shape[0] * shape[1] + 1) * sizeof *v);
    if (!v) return fft_out_of_memory(t->n);
    for (int64_t j = 0; j < t->in; j++)
        for (int64_t k = 0; k < t->out; k++)
            put_factor(t, j, k, v + j * t->in_parts * shape[1] + k * t->out_parts, shape[1]);
    tn_tensor *m = from_doubles(v, shape, 2, tn_dtype_of(x));
    tn_tensor *y = tn_matmul(tn_reshape(x, (int64_t[]){rows, shape[0]}, 2), m);
    return tn_reshape(y, (int64_t[]){rows, t->out, t->out_parts}, 3);
}

/* ---- longer ones ------------------------------------------------------------------------------------------------- */

/* The greatest divisor that is at most MATRIX_MOST / 4; 1 for a prime. */
static int64_t large_divisor(int64_t n) {
    int64_t best = 1;
    for (int64_t d = 2; d <= MATRIX_MOST / 4; d++)
        if (n % d == 0) best = d;
    return best;
}

/* x [..., 2] times (c + is), which broadcast to it without its last dim. */
static tn_tensor *times_complex(const tn_tensor *x, const tn_tensor *c, const tn_tensor *s) {
    tn_tensor *u = tn_select(x, -1, 0), *v = tn_select(x, -1, 1);
    tn_tensor *parts[] = {tn_sub(tn_mul(u, c), tn_mul(v, s)), tn_add(tn_mul(u, s), tn_mul(v, c))};
    return tn_stack(parts, 2, -1);
}

/* x [rows, b, a, 2] times the roots of unity of number i · k, i of b and k of a. */
static tn_tensor *twiddled(const tn_tensor *x, int64_t b, int64_t a, double direction) {
    int64_t shape[] = {b, a}, n = a * b;
    double *re = malloc((size_t)n * sizeof *re), *im = malloc((size_t)n * sizeof *im);
    if (!re || !im) {
        free(re);
        free(im);
        return fft_out_of_memory(n);
    }
    for (int64_t i = 0; i < n; i++) {
        double angle = direction * TURN * (double)(i / a * (i % a)) / (double)n;
        re[i] = cos(angle);
        im[i] = sin(angle);
    }
    tn_tensor *c = from_doubles(re, shape, 2, tn_dtype_of(x)), *s = from_doubles(im, shape, 2, tn_dtype_of(x));
    return times_complex(x, c, s);
}

static tn_tensor *whole_signal(const tn_tensor *x, int64_t n, double direction);

/* The chirp exp(direction · iπk² / n): in turned [n], its conjugate around 0 in circle [m, 2]. */
static void put_chirp(int64_t n, int64_t m, double direction, double *re, double *im, double *circle) {
    memset(circle, 0, (size_t)m * 2 * sizeof *circle);
    for (int64_t k = 0; k < n; k++) {
        double angle = direction * TURN / 2 * (double)(k * k % (2 * n)) / (double)n;
        re[k] = cos(angle);
        im[k] = sin(angle);
        for (int64_t at = k;; at = m - k) {
            circle[2 * at] = re[k];
            circle[2 * at + 1] = -im[k];
            if (at != k || k == 0) break;
        }
    }
}

/* A long prime: jk = (j² + k² − (k − j)²) / 2 makes it a convolution with a chirp. */
static tn_tensor *by_convolution(const tn_tensor *x, int64_t n, double direction) {
    int64_t m = 1;
    tn_dtype dtype = tn_dtype_of(x);
    while (m < 2 * n - 1)
        m *= 2;
    double *re = malloc((size_t)n * sizeof *re), *im = malloc((size_t)n * sizeof *im),
           *circle = malloc((size_t)m * 2 * sizeof *circle);
    if (!re || !im || !circle) {
        free(re);
        free(im);
        free(circle);
        return fft_out_of_memory(n);
    }
    put_chirp(n, m, direction, re, im, circle);
    tn_tensor *c = from_doubles(re, &n, 1, dtype), *s = from_doubles(im, &n, 1, dtype);
    tn_tensor *chirp = whole_signal(from_doubles(circle, (int64_t[]){1, m, 2}, 3, dtype), m, -1);
    tn_tensor *a = tn_pad(times_complex(x, c, s), (int64_t[]){0, 0, 0, m - n}, 4, 0);
    a = times_complex(whole_signal(a, m, -1), tn_select(chirp, -1, 0), tn_select(chirp, -1, 1));
    a = times(tn_narrow(whole_signal(a, m, 1), 1, 0, n), 1 / (double)m);
    return times_complex(a, c, s);
}

/* All n points of complex signals [rows, n, 2], not scaled. With n = a · b, point j = j₁b + j₂ and k = k₁ + a·k₂:
 * transforms over j₁, a turn by j₂k₁ / n, transforms over j₂. */
static tn_tensor *whole_signal(const tn_tensor *x, int64_t n, double direction) {
    static const int64_t swap[] = {0, 2, 1, 3};
    int64_t a = n > MATRIX_MOST ? large_divisor(n) : 1, rows = tn_size(x, 0);
    if (a == 1 && n > 2 * MATRIX_MOST) return by_convolution(x, n, direction);
    if (a == 1) {
        transform t = {.n = n, .in = n, .out = n, .in_parts = 2, .out_parts = 2, .direction = direction, .scale = 1};
        return by_matrix(x, &t);
    }
    int64_t b = n / a;
    tn_tensor *y = tn_permute(tn_reshape(x, (int64_t[]){rows, a, b, 2}, 4), swap, 4);
    y = whole_signal(tn_reshape(y, (int64_t[]){rows * b, a, 2}, 3), a, direction);
    y = tn_permute(twiddled(tn_reshape(y, (int64_t[]){rows, b, a, 2}, 4), b, a, direction), swap, 4);
    y = whole_signal(tn_reshape(y, (int64_t[]){rows * a, b, 2}, 3), b, direction);
    y = tn_permute(tn_reshape(y, (int64_t[]){rows, a, b, 2}, 4), swap, 4);
    return tn_reshape(y, (int64_t[]){rows, n, 2}, 3);
}

/* A real signal gets imaginary parts, half a spectrum its mirror image: Xₙ₋ₖ is the conjugate of Xₖ. */
static tn_tensor *made_complex(const tn_tensor *x, const transform *t) {
    if (t->in_parts == 1) return tn_pad(x, (int64_t[]){0, 1}, 2, 0);
    if (!t->mirrored) return tn_contiguous(x);
    const int64_t dim = 1;
    tn_tensor *mirror = tn_flip(tn_narrow(x, 1, 1, t->n - t->in), &dim, 1);
    tn_tensor *parts[] = {tn_select(mirror, 2, 0), tn_neg(tn_select(mirror, 2, 1))}, *both[2];
    both[0] = tn_contiguous(x);
    both[1] = tn_stack(parts, 2, 2);
    return tn_cat(both, 2, 1);
}

static tn_tensor *transformed(const tn_tensor *x, const transform *t) {
    if (t->n <= MATRIX_MOST) return by_matrix(x, t);
    tn_tensor *y = whole_signal(made_complex(x, t), t->n, t->direction);
    if (t->scale != 1) y = times(y, t->scale);
    return tn_narrow(tn_narrow(y, 1, 0, t->out), 2, 0, t->out_parts);
}

/* ---- one dimension ----------------------------------------------------------------------------------------------- */

/* Which of the transforms: rfft has real input, irfft a real result. */
typedef struct kind {
    const char *name;
    bool inverse, real_in, real_out;
} kind;
static const kind fft = {"fft", false, false, false}, ifft = {"ifft", true, false, false},
                  rfft = {"rfft", false, true, false}, irfft = {"irfft", true, false, true};

static double scale_of(tn_fft_norm norm, bool inverse, int64_t n) {
    if (norm == TN_FFT_ORTHO) return 1 / sqrt((double)n);
    return inverse == (norm == TN_FFT_BACKWARD) ? 1 / (double)n : 1;
}

/* What is wrong with x, which has `*dims` dims of points; NULL: nothing. */
static tn_tensor *refused_signal(const kind *k, const tn_tensor *x, int *dims) {
    tn_tensor *bad = refused(x);
    if (bad) return bad;
    int rank = tn_rank(x);
    *dims = k->real_in ? rank : rank - 1;
    if (!is_float(x) && !k->real_in)
        return tn_failed(TN_ERR_DTYPE, "%s: the input is %s; it must be floating", k->name,
                         tn_dtype_name(tn_dtype_of(x)));
    if (!k->real_in && (rank < 1 || tn_size(x, -1) != 2))
        return tn_failed(TN_ERR_SHAPE,
                         "%s: the last dimension must hold the real and the imaginary part (extent 2), as "
                         "torch.view_as_real has it",
                         k->name);
    if (*dims < 1 || rank + (int)k->real_in > TN_MAX_RANK)
        return tn_failed(TN_ERR_SHAPE, "%s: a tensor of rank %d has no dimension to transform, or too many", k->name,
                         rank);
    return NULL;
}

/* Along dim `d` of `dims`; n = -1: as many points as there are. */
static tn_tensor *along_dim(const kind *k, const tn_tensor *x, int64_t n, int d, int dims, tn_fft_norm norm) {
    int64_t have = tn_size(x, d), moved[TN_MAX_RANK], shape[3] = {1};
    if (n == -1) n = k->real_out ? 2 * (have - 1) : have;
    if (n < 1 || n > LENGTH_MOST)
        return tn_failed(TN_ERR_SHAPE, "%s: %lld points; must be 1 to %d, or -1", k->name, (long long)n, LENGTH_MOST);
    transform t = {.n = n, .in = k->real_out ? n / 2 + 1 : n, .out = k->real_in ? n / 2 + 1 : n};
    t.in_parts = k->real_in ? 1 : 2;
    t.out_parts = k->real_out ? 1 : 2;
    t.direction = k->inverse ? 1 : -1;
    t.scale = scale_of(norm, k->inverse, n);
    t.mirrored = k->real_out;
    tn_dtype dtype = tn_dtype_of(x), wide = dtype == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor *y = tn_cast(k->real_in ? tn_unsqueeze(x, -1) : x, wide);
    y = tn_movedim(y, d, dims - 1);
    if (have > t.in) y = tn_narrow(y, dims - 1, 0, t.in);
    if (have < t.in) y = tn_pad(y, (int64_t[]){0, 0, 0, t.in - have}, 4, 0);
    for (int i = 0; i < dims; i++)
        moved[i] = tn_size(y, i);
    shape[0] = product(moved, dims - 1);
    shape[1] = t.in;
    shape[2] = t.in_parts;
    moved[dims - 1] = t.out;
    moved[dims] = t.out_parts;
    y = tn_reshape(transformed(tn_reshape(y, shape, 3), &t), moved, dims + 1);
    y = tn_movedim(y, dims - 1, d);
    if (k->real_out) y = tn_select(y, -1, 0);
    return is_float(x) ? tn_cast(y, dtype) : y;
}

static tn_tensor *refused_norm(tn_fft_norm norm) {
    return no_choice("fft: norm", (int)norm, TN_FFT_FORWARD, "TN_FFT_BACKWARD, TN_FFT_ORTHO, TN_FFT_FORWARD");
}

static tn_tensor *one_dim(const kind *k, const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm) {
    int dims;
    TN_FUNCTION(k->name);
    tn_tensor *bad = refused_signal(k, x, &dims);
    if (!bad) bad = refused_norm(norm);
    if (bad) return tn_keep(bad);
    if (dim < -dims || dim >= dims)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range for %d dimensions of points", k->name,
                                 (long long)dim, dims));
    return tn_keep(along_dim(k, x, n, (int)(dim < 0 ? dim + dims : dim), dims, norm));
}

tn_tensor *tn_fft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm) {
    return one_dim(&fft, x, n, dim, norm);
}
tn_tensor *tn_ifft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm) {
    return one_dim(&ifft, x, n, dim, norm);
}
tn_tensor *tn_rfft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm) {
    return one_dim(&rfft, x, n, dim, norm);
}
tn_tensor *tn_irfft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm) {
    return one_dim(&irfft, x, n, dim, norm);
}

/* ---- several dimensions ------------------------------------------------------------------------------------------ */

/* dims in [−rank, rank), each once; NULL: the last `count`. */
static tn_tensor *read_dims(const kind *k, const int64_t *dims, int count, int rank, int *out) {
    bool used[TN_MAX_RANK] = {false};
    if (count < 1 || count > rank) return tn_failed(TN_ERR_SHAPE, "%s: %d dims of %d", k->name, count, rank);
    for (int i = 0; i < count; i++) {
        int64_t d = dims ? dims[i] : rank - count + i;
        if (d < 0) d += rank;
        if (d < 0 || d >= rank || used[d])
            return tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range or named twice; there are %d dims", k->name,
                             (long long)(dims ? dims[i] : d), rank);
        used[d] = true;
        out[i] = (int)d;
    }
    return NULL;
}

/* k: of the last dim; the others are transformed by fft or ifft. */
static tn_tensor *several_dims(const char *name, const kind *k, const tn_tensor *x, const int64_t *n,
                               const int64_t *dims, int count, tn_fft_norm norm) {
    const kind *rest = k->inverse ? &ifft : &fft;
    int at[TN_MAX_RANK], rank;
    TN_FUNCTION(name);
    tn_tensor *bad = refused_signal(k, x, &rank), *y = NULL;
    if (!bad) bad = refused_norm(norm);
    if (!bad) bad = read_dims(k, dims, count, rank, at);
    if (bad) return tn_keep(bad);
    if (!k->real_out) y = along_dim(k, x, n ? n[count - 1] : -1, at[count - 1], rank, norm);
    for (int i = count - 2; i >= 0; i--)
        y = along_dim(rest, y ? y : x, n ? n[i] : -1, at[i], rank, norm);
    if (k->real_out) y = along_dim(k, y ? y : x, n ? n[count - 1] : -1, at[count - 1], rank, norm);
    return tn_keep(y);
}

tn_tensor *tn_fftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm) {
    return several_dims("fftn", &fft, x, n, dims, count, norm);
}
tn_tensor *tn_ifftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm) {
    return several_dims("ifftn", &ifft, x, n, dims, count, norm);
}
tn_tensor *tn_rfftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm) {
    return several_dims("rfftn", &rfft, x, n, dims, count, norm);
}
tn_tensor *tn_irfftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm) {
    return several_dims("irfftn", &irfft, x, n, dims, count, norm);
}

/* ---- windows of a signal ----------------------------------------------------------------------------------------- */

/* The window, zeros around it to n points; NULL: ones. */
static tn_tensor *padded_window(const tn_tensor *window, int64_t n, const tn_tensor *like) {
    if (!window) return tn_ones(&n, 1, tn_dtype_of(like));
    int64_t length = tn_numel(window), left = (n - length) / 2;
    return tn_pad(tn_mul(window, tn_ones(&length, 1, tn_dtype_of(like))), (int64_t[]){left, n - length - left}, 2, 0);
}

static tn_tensor *refused_frames(const char *name, const tn_tensor *x, const tn_tensor *window, int64_t n_fft,
                                 int64_t hop) {
    tn_tensor *bad = window ? refused2(x, window) : refused(x);
    if (bad) return bad;
    bool fits = !window || (tn_rank(window) == 1 && tn_numel(window) >= 1 && tn_numel(window) <= n_fft);
    if (n_fft >= 1 && n_fft <= LENGTH_MOST && hop >= 1 && fits && is_float(x)) return NULL;
    return tn_failed(
        TN_ERR_ARGUMENT,
        "%s: n_fft %lld and hop %lld must be at least 1, the signal floating, and the window a vector of at "
        "most n_fft elements",
        name, (long long)n_fft, (long long)hop);
}

tn_tensor *tn_stft(const tn_tensor *x, int64_t n_fft, int64_t hop, const tn_tensor *window, bool center,
                   bool normalized) {
    TN_FUNCTION("stft");
    tn_tensor *bad = refused_frames("stft", x, window, n_fft, hop);
    if (bad) return tn_keep(bad);
    int rank = tn_rank(x);
    if (rank != 1 && rank != 2)
        return tn_keep(
            tn_failed(TN_ERR_SHAPE, "stft: the signal has rank %d; expected [length] or [batch, length]", rank));
    tn_tensor *y = rank == 1 ? tn_unsqueeze(x, 0) : tn_contiguous(x);
    if (center)
        y = tn_select(tn_pad_by(tn_unsqueeze(y, 0), (int64_t[]){n_fft / 2, n_fft / 2}, 2, TN_PAD_REFLECT), 0, 0);
    bad = refused(y);
    if (bad) return tn_keep(bad);
    if (tn_size(y, 1) < n_fft)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "stft: frames of %lld points do not fit a signal of %lld",
                                 (long long)n_fft, (long long)tn_size(y, 1)));
    tn_tensor *frames = tn_mul(tn_unfold(y, 1, n_fft, hop), padded_window(window, n_fft, y));
    y = tn_transpose(tn_rfft(frames, -1, -1, normalized ? TN_FFT_ORTHO : TN_FFT_BACKWARD), 1, 2);
    return tn_keep(rank == 1 ? tn_select(y, 0, 0) : y);
}

/* frames [batch, count, n] added up, hop apart. */
static tn_tensor *overlapped(const tn_tensor *frames, int64_t hop) {
    int64_t batch = tn_size(frames, 0), count = tn_size(frames, 1), n = tn_size(frames, 2);
    int64_t length = n + hop * (count - 1);
    tn_tensor *at =
        tn_add(tn_reshape(tn_mul(numbers(0, count), tn_scalar_int(hop)), (int64_t[]){count, 1}, 2), numbers(0, n));
    tn_tensor *rows = tn_reshape(frames, (int64_t[]){batch, count * n}, 2);
    return tn_index_add(tn_zeros((int64_t[]){batch, length}, 2, tn_dtype_of(frames)), 1, flat(at), rows);
}

tn_tensor *tn_istft(const tn_tensor *x, int64_t n_fft, int64_t hop, const tn_tensor *window, bool center,
                    bool normalized, int64_t length) {
    TN_FUNCTION("istft");
    tn_tensor *bad = refused_frames("istft", x, window, n_fft, hop);
    if (bad) return tn_keep(bad);
    int rank = tn_rank(x);
    if ((rank != 3 && rank != 4) || tn_size(x, rank - 3) != n_fft / 2 + 1 || tn_size(x, -1) != 2 ||
        tn_size(x, rank - 2) < 1)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "istft: expected [n_fft / 2 + 1, frames, 2] or a batch of these"));
    tn_tensor *y = tn_transpose(rank == 3 ? tn_unsqueeze(x, 0) : x, 1, 2);
    tn_tensor *w = padded_window(window, n_fft, x), *frames;
    frames = tn_mul(tn_irfft(y, n_fft, -1, normalized ? TN_FFT_ORTHO : TN_FFT_BACKWARD), w);
    int64_t shape[] = {1, tn_size(frames, 1), n_fft};
    tn_tensor *sum = overlapped(frames, hop), *weight = overlapped(tn_expand(tn_mul(w, w), shape, 3), hop);
    int64_t first = center ? n_fft / 2 : 0, all = tn_size(sum, 1), end = length >= 0 ? first + length : all - first;
    if (end > all) sum = tn_pad(sum, (int64_t[]){0, end - all}, 2, 0);
    if (end > all) weight = tn_pad(weight, (int64_t[]){0, end - all}, 2, 1);
    sum = tn_div(tn_slice(sum, 1, first, end, 1), tn_slice(weight, 1, first, end, 1));
    return tn_keep(rank == 3 ? tn_select(sum, 0, 0) : sum);
}
