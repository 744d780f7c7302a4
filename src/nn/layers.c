/* layers.c — layers of networks: initial weights, the usual layers, multi-head attention, the transformer encoder
 * block. */
#include <math.h>
#include <stdlib.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/functions.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

/* ==== initial weights ============================================================================================= */
/* Uniform and normal values come from the recorded random numbers, so they are the same on every device. Orthogonal
 * matrices are made on the host, in double precision, out of such numbers. */

tn_tensor *tn_init_uniform(const int64_t *shape, int rank, double low, double high) {
    tn_tensor *result = NULL;
    if (!(low <= high) || !isfinite(high - low))
        return tn_failed(TN_ERR_ARGUMENT,
                         "tn_init_uniform: low is %g and high %g; both must be finite, and low must not exceed high",
                         low, high);
    TN_SCOPE;
    result = tn_keep(tn_add(tn_mul(tn_rand(shape, rank), tn_scalar(high - low)), tn_scalar(low)));
    return result;
}

tn_tensor *tn_init_normal(const int64_t *shape, int rank, double mean, double std) {
    tn_tensor *result = NULL;
    if (!(std >= 0)) return tn_failed(TN_ERR_ARGUMENT, "tn_init_normal: std is %g; it must be at least 0", std);
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
    return tn_failed(TN_ERR_SHAPE, "%s: the weight has %d dimensions; at least 2 are needed, [out, in, …]", what, rank);
}

tn_tensor *tn_init_kaiming_uniform(const int64_t *shape, int rank, double a) {
    double in, out;
    if (!fans(shape, rank, &in, &out)) return no_fans("kaiming_uniform", rank);
    if (isnan(a)) return tn_failed(TN_ERR_ARGUMENT, "tn_init_kaiming_uniform: a is nan; it must be a number");
    double gain = sqrt(2 / (1 + a * a));
    double bound = in > 0 ? gain * sqrt(3 / in) : 0;
    return tn_init_uniform(shape, rank, -bound, bound);
}

tn_tensor *tn_init_xavier_uniform(const int64_t *shape, int rank, double gain) {
    double in, out;
    if (!fans(shape, rank, &in, &out)) return no_fans("xavier_uniform", rank);
    if (!(gain >= 0 && isfinite(gain)))
        return tn_failed(TN_ERR_ARGUMENT, "tn_init_xavier_uniform: gain is %g; it must be finite and at least 0", gain);
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
        return tn_failed(TN_ERR_SHAPE, "orthogonal: cannot initialize a matrix of %lld rows and %lld columns",
                         (long long)rows, (long long)columns);
    if (!isfinite(gain)) return tn_failed(TN_ERR_ARGUMENT, "tn_init_orthogonal: gain is %g; it must be finite", gain);
    int64_t shape[] = {rows, columns};
    size_t total = (size_t)(rows * columns);
    AUTO_NN_FREE float *values = malloc(total * sizeof *values);
    AUTO_NN_FREE double *work = malloc(total * sizeof *work);
    tn_status status = values && work ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "orthogonal: out of memory");
    if (status == TN_OK) {
        tn_tensor *normal = tn_randn(shape, 2);
        status = tn_read(normal, values, total * sizeof *values);
        tn_free(normal);
    }
    if (status == TN_OK && !make_orthogonal(values, work, rows, columns, gain))
        status =
            tn_backend_fail(TN_ERR_INTERNAL, "orthogonal: the random rows are linearly dependent; use another seed");
    return status == TN_OK ? tn_from_data(values, shape, 2, TN_F32) : tn_failed(status, "%s", tn_error());
}

/* ==== layers ====================================================================================================== */
/* A layer is a module type whose `self` holds its variables by pointer (owned by the tree) and its settings; forward
 * calls the operation of the same name. Names, shapes and initial values of variables are those of PyTorch's layers. */

static const double sqrt_5 = 2.23606797749978969641;

/* ---- making ------------------------------------------------------------------------------------------------------ */

tn_module *tn_nn_make(tn_module *parent, const char *name, const tn_module_type *type, size_t size) {
    if (!parent) return NULL;
    void *self = calloc(1, size);
    if (!self) {
        tn_module_fail(parent, tn_backend_fail(TN_ERR_MEMORY, "module: out of memory"));
        return NULL;
    }
    return tn_module_new(parent, name, type, self);
}

bool tn_nn_check_sizes(tn_module *parent, const char *what, const char *name, int64_t a, int64_t b) {
    if (!parent) return false;
    if (a > 0 && b > 0) return true;
    tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT, "%s \"%s\": sizes %lld and %lld; both must be positive",
                                           what, name ? name : "", (long long)a, (long long)b));
    return false;
}

void tn_nn_write(tn_module *m, const char *name, const tn_tensor *value) {
    tn_tensor *t = m ? tn_module_variable(m, name) : NULL;
    if (!t) return;
    TN_NO_GRAD;
    (void)tn_module_fail(m, tn_status_of(tn_copy_(t, value)));
}

static bool norm_options(tn_module *parent, const char *what, const tn_nn_norm_options *given, tn_nn_norm_options *o) {
    *o = (tn_nn_norm_options)TN_NN_NORM_DEFAULTS;
    tn_status status = tn_options_read(o, given, what, "tn_nn_norm_options o = TN_NN_NORM_DEFAULTS");
    if (status == TN_OK && (!(o->eps >= 0 && isfinite(o->eps)) || !(o->momentum >= 0 && o->momentum <= 1)))
        status = tn_backend_fail(TN_ERR_ARGUMENT,
                                 "%s: eps is %g and momentum %g; eps must be finite and at least 0, momentum in [0, 1]",
                                 what, o->eps, o->momentum);
    return tn_module_fail(parent, status) == TN_OK;
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

typedef struct linear {
    tn_tensor *weight, *bias; /* bias may be NULL */
} linear;

static tn_tensor *linear_forward(tn_module *m, const tn_tensor *x) {
    const linear *s = tn_module_self(m);
    return tn_linear(x, s->weight, s->bias);
}

static const tn_module_type linear_type = {sizeof(tn_module_type), "linear", linear_forward, free};

void tn_nn_linear_variables(tn_module *m, int64_t in_features, int64_t out_features, bool bias, tn_tensor **weight,
                            tn_tensor **made_bias) {
    double bound = 1 / sqrt((double)in_features);
    TN_SCOPE;
    *weight = tn_module_add_parameter(m, "weight",
                                      tn_init_kaiming_uniform((int64_t[]){out_features, in_features}, 2, sqrt_5));
    if (bias) *made_bias = tn_module_add_parameter(m, "bias", tn_init_uniform(&out_features, 1, -bound, bound));
}

tn_module *tn_nn_linear(tn_module *parent, const char *name, int64_t in_features, int64_t out_features, bool bias) {
    if (!tn_nn_check_sizes(parent, "linear", name, in_features, out_features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &linear_type, sizeof(linear));
    if (!m) return NULL;
    linear *s = tn_module_self(m);
    tn_nn_linear_variables(m, in_features, out_features, bias, &s->weight, &s->bias);
    return tn_nn_made(m);
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv {
    tn_tensor *weight, *bias;
    int axes;
    int64_t stride, padding, dilation, groups; /* the same for each axis */
} conv;

static tn_tensor *conv_forward(tn_module *m, const tn_tensor *x) {
    const conv *s = tn_module_self(m);
    const int64_t stride[] = {s->stride, s->stride, s->stride}, padding[] = {s->padding, s->padding, s->padding};
    const int64_t dilation[] = {s->dilation, s->dilation, s->dilation};
    if (s->axes == 3) return tn_conv3d(x, s->weight, s->bias, stride, padding, dilation, s->groups);
    if (s->axes == 1) {
        tn_conv1d_options o = TN_CONV1D_DEFAULTS;
        o.stride = s->stride, o.padding = s->padding, o.dilation = s->dilation, o.groups = s->groups;
        return tn_conv1d(x, s->weight, s->bias, &o);
    }
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    for (int k = 0; k < 2; k++)
        o.stride[k] = s->stride, o.padding[k] = s->padding, o.dilation[k] = s->dilation;
    o.groups = s->groups;
    return tn_conv2d(x, s->weight, s->bias, &o);
}

static bool conv_check(tn_module *parent, const char *kind, const char *name, int64_t in, int64_t out, int64_t kernel,
                       const tn_nn_conv2d_options *o) {
    if (!tn_nn_check_sizes(parent, kind, name, in, out) || !tn_nn_check_sizes(parent, kind, name, kernel, o->stride))
        return false;
    if (o->padding >= 0 && o->dilation > 0 && o->groups > 0 && in % o->groups == 0 && out % o->groups == 0) return true;
    tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT,
                                           "%s \"%s\": padding %lld, dilation %lld, groups %lld; channels %lld and "
                                           "%lld must be multiples of groups",
                                           kind, name, (long long)o->padding, (long long)o->dilation,
                                           (long long)o->groups, (long long)in, (long long)out));
    return false;
}

static tn_module *make_conv(tn_module *parent, const char *name, int axes, const tn_module_type *type,
                            int64_t in_channels, int64_t out_channels, int64_t kernel,
                            const tn_nn_conv2d_options *options) {
    tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS;
    tn_status status = tn_options_read(&o, options, type->name, "tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS");
    if (tn_module_fail(parent, status) != TN_OK) return NULL;
    if (!conv_check(parent, type->name, name, in_channels, out_channels, kernel, &o)) return NULL;
    tn_module *m = tn_nn_make(parent, name, type, sizeof(conv));
    if (!m) return NULL;
    conv *s = tn_module_self(m);
    s->axes = axes, s->stride = o.stride, s->padding = o.padding, s->dilation = o.dilation, s->groups = o.groups;
    int64_t shape[] = {out_channels, in_channels / o.groups, kernel, kernel, kernel}, fan = shape[1];
    for (int k = 0; k < axes; k++)
        fan *= kernel;
    double bound = 1 / sqrt((double)fan);
    {
        TN_SCOPE;
        s->weight = tn_module_add_parameter(m, "weight", tn_init_kaiming_uniform(shape, axes + 2, sqrt_5));
        if (o.bias) s->bias = tn_module_add_parameter(m, "bias", tn_init_uniform(&out_channels, 1, -bound, bound));
    }
    return tn_nn_made(m);
}

#define CONV(axes)                                                                                                   \
    static const tn_module_type conv##axes##d_type = {sizeof(tn_module_type), "conv" #axes "d", conv_forward, free}; \
    tn_module *tn_nn_conv##axes##d(tn_module *parent, const char *name, int64_t in_channels, int64_t out_channels,   \
                                   int64_t kernel, const tn_nn_conv2d_options *options) {                            \
        return make_conv(parent, name, axes, &conv##axes##d_type, in_channels, out_channels, kernel, options);       \
    }
CONV(1)
CONV(2)
CONV(3)

/* ---- normalisation ----------------------------------------------------------------------------------------------- */

typedef struct layers_norm {
    tn_tensor *weight, *bias;              /* may be NULL */
    tn_tensor *running_mean, *running_var; /* batch normalisation */
    tn_tensor *batches;                    /* how many batches moved them */
    int axes;                              /* batch normalisation */
    int64_t features, groups;              /* groups: group normalisation */
    double eps, momentum;
} layers_norm;

static void add_affine(tn_module *m, layers_norm *s, const tn_nn_norm_options *o, int64_t features) {
    s->features = features;
    s->eps = o->eps;
    s->momentum = o->momentum;
    if (!o->affine) return;
    TN_SCOPE;
    s->weight = tn_module_add_parameter(m, "weight", tn_init_constant(&features, 1, 1));
    s->bias = tn_module_add_parameter(m, "bias", tn_init_constant(&features, 1, 0));
}

/* running ← running + momentum · (batch's − running); the running variance takes the unbiased one, as in PyTorch. */
static void move_statistics(const layers_norm *s, const tn_tensor *x) {
    int64_t values = tn_size(x, 1) > 0 ? tn_numel(x) / tn_size(x, 1) : 0;
    double unbias = values > 1 ? (double)values / (double)(values - 1) : 1;
    TN_SCOPE;
    tn_tensor *keep = tn_scalar(1 - s->momentum), *mean_part = tn_scalar(s->momentum);
    tn_tensor *var_part = tn_scalar(s->momentum * unbias);
    tn_add_(tn_mul_(s->running_mean, keep), tn_mul(tn_batch_mean(x), mean_part));
    tn_add_(tn_mul_(s->running_var, keep), tn_mul(tn_batch_var(x), var_part));
    tn_add_(s->batches, tn_scalar_int(1));
}

static tn_tensor *batch_norm_forward(tn_module *m, const tn_tensor *x) {
    const layers_norm *s = tn_module_self(m);
    bool training = tn_module_is_training(m), fits = tn_rank(x) == s->axes + 2 || (s->axes == 1 && tn_rank(x) == 2);
    static const char *const sizes[] = {"(, time)", ", height, width", ", depth, height, width"};
    if (tn_status_of(x) == TN_OK && (!fits || tn_size(x, 1) != s->features))
        return tn_failed(TN_ERR_SHAPE,
                         "batch_norm%dd: x must be [batch, %lld%s]; its rank is %d and it has %lld channels", s->axes,
                         (long long)s->features, sizes[s->axes - 1], tn_rank(x), (long long)tn_size(x, 1));
    tn_batch_norm_options o = TN_BATCH_NORM_DEFAULTS;
    o.eps = s->eps;
    tn_tensor *y = tn_batch_norm(x, s->running_mean, s->running_var, s->weight, s->bias, training, &o);
    if (training && tn_status_of(y) == TN_OK) {
        TN_NO_GRAD;
        move_statistics(s, x);
    }
    return y;
}

static tn_module *make_batch_norm(tn_module *parent, const char *name, int axes, const tn_module_type *type,
                                  int64_t channels, const tn_nn_norm_options *options) {
    tn_nn_norm_options o;
    if (!norm_options(parent, type->name, options, &o)) return NULL;
    if (!tn_nn_check_sizes(parent, type->name, name, channels, channels)) return NULL;
    tn_module *m = tn_nn_make(parent, name, type, sizeof(layers_norm));
    if (!m) return NULL;
    layers_norm *s = tn_module_self(m);
    s->axes = axes;
    add_affine(m, s, &o, channels);
    {
        TN_SCOPE;
        s->running_mean = tn_module_add_buffer(m, "running_mean", tn_init_constant(&channels, 1, 0));
        s->running_var = tn_module_add_buffer(m, "running_var", tn_init_constant(&channels, 1, 1));
        s->batches = tn_module_add_buffer(m, "num_batches_tracked", tn_full(NULL, 0, 0, TN_I64));
    }
    return tn_nn_made(m);
}

#define BATCH_NORM(axes)                                                                                    \
    static const tn_module_type batch_norm##axes##d_type = {sizeof(tn_module_type), "batch_norm" #axes "d", \
                                                            batch_norm_forward, free};                      \
    tn_module *tn_nn_batch_norm##axes##d(tn_module *parent, const char *name, int64_t channels,             \
                                         const tn_nn_norm_options *options) {                               \
        return make_batch_norm(parent, name, axes, &batch_norm##axes##d_type, channels, options);           \
    }
BATCH_NORM(1)
BATCH_NORM(2)
BATCH_NORM(3)

static tn_tensor *layer_norm_forward(tn_module *m, const tn_tensor *x) {
    const layers_norm *s = tn_module_self(m);
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = s->eps;
    return tn_layer_norm(x, &s->features, 1, s->weight, s->bias, &o);
}

static const tn_module_type layer_norm_type = {sizeof(tn_module_type), "layer_norm", layer_norm_forward, free};

tn_module *tn_nn_layer_norm(tn_module *parent, const char *name, int64_t features, const tn_nn_norm_options *options) {
    tn_nn_norm_options o;
    if (!norm_options(parent, "layer_norm", options, &o)) return NULL;
    if (!tn_nn_check_sizes(parent, "layer_norm", name, features, features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &layer_norm_type, sizeof(layers_norm));
    if (!m) return NULL;
    add_affine(m, tn_module_self(m), &o, features);
    return tn_nn_made(m);
}

static tn_tensor *group_norm_forward(tn_module *m, const tn_tensor *x) {
    const layers_norm *s = tn_module_self(m);
    tn_group_norm_options o = TN_GROUP_NORM_DEFAULTS;
    o.eps = s->eps;
    return tn_group_norm(x, s->groups, s->weight, s->bias, &o);
}

static const tn_module_type group_norm_type = {sizeof(tn_module_type), "group_norm", group_norm_forward, free};

tn_module *tn_nn_group_norm(tn_module *parent, const char *name, int64_t groups, int64_t channels,
                            const tn_nn_norm_options *options) {
    tn_nn_norm_options o;
    if (!norm_options(parent, "group_norm", options, &o)) return NULL;
    if (!tn_nn_check_sizes(parent, "group_norm", name, groups, channels)) return NULL;
    if (channels % groups) {
        tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT,
                                               "group_norm \"%s\": %lld channels are no multiple of "
                                               "%lld groups",
                                               name, (long long)channels, (long long)groups));
        return NULL;
    }
    tn_module *m = tn_nn_make(parent, name, &group_norm_type, sizeof(layers_norm));
    if (!m) return NULL;
    add_affine(m, tn_module_self(m), &o, channels);
    ((layers_norm *)tn_module_self(m))->groups = groups;
    return tn_nn_made(m);
}

static tn_tensor *rms_norm_forward(tn_module *m, const tn_tensor *x) {
    const layers_norm *s = tn_module_self(m);
    tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
    o.eps = s->eps;
    return tn_rms_norm(x, &s->features, 1, s->weight, &o);
}

static const tn_module_type rms_norm_type = {sizeof(tn_module_type), "rms_norm", rms_norm_forward, free};

tn_module *tn_nn_rms_norm(tn_module *parent, const char *name, int64_t features, double eps) {
    if (!tn_nn_check_sizes(parent, "rms_norm", name, features, features)) return NULL;
    if (!(eps >= 0 && isfinite(eps))) {
        tn_module_fail(parent,
                       tn_backend_fail(TN_ERR_ARGUMENT, "rms_norm \"%s\": eps is %g; it must be finite and at least 0",
                                       name, eps));
        return NULL;
    }
    tn_module *m = tn_nn_make(parent, name, &rms_norm_type, sizeof(layers_norm));
    if (!m) return NULL;
    layers_norm *s = tn_module_self(m);
    s->features = features;
    s->eps = eps;
    {
        TN_SCOPE;
        s->weight = tn_module_add_parameter(m, "weight", tn_init_constant(&features, 1, 1));
    }
    return tn_nn_made(m);
}

/* ---- embedding, dropout, functions ------------------------------------------------------------------------------- */

typedef struct embedding {
    tn_tensor *weight;
} embedding;

static tn_tensor *embedding_forward(tn_module *m, const tn_tensor *x) {
    const embedding *s = tn_module_self(m);
    return tn_embedding(x, s->weight);
}

static const tn_module_type embedding_type = {sizeof(tn_module_type), "embedding", embedding_forward, free};

tn_module *tn_nn_embedding(tn_module *parent, const char *name, int64_t count, int64_t features) {
    if (!tn_nn_check_sizes(parent, "embedding", name, count, features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &embedding_type, sizeof(embedding));
    if (!m) return NULL;
    embedding *s = tn_module_self(m);
    {
        TN_SCOPE;
        s->weight = tn_module_add_parameter(m, "weight", tn_init_normal((int64_t[]){count, features}, 2, 0, 1));
    }
    return tn_nn_made(m);
}

typedef struct layers_dropout {
    double p;
} layers_dropout;

static tn_tensor *dropout_forward(tn_module *m, const tn_tensor *x) {
    const layers_dropout *s = tn_module_self(m);
    return tn_dropout(x, s->p, tn_module_is_training(m));
}

static const tn_module_type dropout_type = {sizeof(tn_module_type), "dropout", dropout_forward, free};

tn_module *tn_nn_dropout(tn_module *parent, const char *name, double p) {
    if (!parent) return NULL;
    if (!(p >= 0 && p < 1)) {
        tn_module_fail(parent,
                       tn_backend_fail(TN_ERR_ARGUMENT, "dropout \"%s\": p is %g; it must be in [0, 1)", name, p));
        return NULL;
    }
    tn_module *m = tn_nn_make(parent, name, &dropout_type, sizeof(layers_dropout));
    if (m) ((layers_dropout *)tn_module_self(m))->p = p;
    return m;
}

typedef struct function {
    tn_tensor *(*call)(const tn_tensor *x);
} function;

static tn_tensor *function_forward(tn_module *m, const tn_tensor *x) {
    const function *s = tn_module_self(m);
    return s->call(x);
}

static const tn_module_type function_type = {sizeof(tn_module_type), "function", function_forward, free};

tn_module *tn_nn_function(tn_module *parent, const char *name, tn_tensor *(*call)(const tn_tensor *x)) {
    if (!parent) return NULL;
    if (!call) {
        tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT, "function \"%s\": the function is NULL", name));
        return NULL;
    }
    tn_module *m = tn_nn_make(parent, name, &function_type, sizeof(function));
    if (m) ((function *)tn_module_self(m))->call = call;
    return m;
}

/* ---- LSTM cell --------------------------------------------------------------------------------------------------- */

typedef struct lstm_cell {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    int64_t hidden;
} lstm_cell;

static const tn_module_type lstm_cell_type = {sizeof(tn_module_type), "lstm_cell", NULL, free};

tn_module *tn_nn_lstm_cell(tn_module *parent, const char *name, int64_t input, int64_t hidden) {
    if (!tn_nn_check_sizes(parent, "lstm_cell", name, input, hidden)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &lstm_cell_type, sizeof(lstm_cell));
    if (!m) return NULL;
    lstm_cell *s = tn_module_self(m);
    int64_t gates = 4 * hidden;
    double bound = 1 / sqrt((double)hidden);
    s->hidden = hidden;
    {
        TN_SCOPE;
        s->weight_ih =
            tn_module_add_parameter(m, "weight_ih", tn_init_uniform((int64_t[]){gates, input}, 2, -bound, bound));
        s->weight_hh =
            tn_module_add_parameter(m, "weight_hh", tn_init_uniform((int64_t[]){gates, hidden}, 2, -bound, bound));
        s->bias_ih = tn_module_add_parameter(m, "bias_ih", tn_init_uniform(&gates, 1, -bound, bound));
        s->bias_hh = tn_module_add_parameter(m, "bias_hh", tn_init_uniform(&gates, 1, -bound, bound));
    }
    return tn_nn_made(m);
}

/* Gate k of [batch, 4·hidden]. */
static tn_tensor *gate(const lstm_cell *s, const tn_tensor *gates, int64_t k) {
    return tn_narrow(gates, 1, k * s->hidden, s->hidden);
}

/* c' = sigmoid(f)·c + sigmoid(i)·tanh(g); h' = sigmoid(o)·tanh(c'). Source: PyTorch, LSTMCell. */
static void lstm_step(const lstm_cell *s, const tn_tensor *x, const tn_tensor *h, const tn_tensor *c, tn_tensor **new_h,
                      tn_tensor **new_c) {
    tn_tensor *gates = tn_add(tn_linear(x, s->weight_ih, s->bias_ih), tn_linear(h, s->weight_hh, s->bias_hh));
    tn_tensor *input = tn_sigmoid(gate(s, gates, 0)), *forget = tn_sigmoid(gate(s, gates, 1));
    tn_tensor *candidate = tn_tanh(gate(s, gates, 2)), *output = tn_sigmoid(gate(s, gates, 3));
    *new_c = tn_add(tn_mul(forget, c), tn_mul(input, candidate));
    *new_h = tn_mul(output, tn_tanh(*new_c));
}

void tn_lstm_cell_forward(tn_module *m, const tn_tensor *x, const tn_tensor *h, const tn_tensor *c, tn_tensor **new_h,
                          tn_tensor **new_c) {
    TN_SCOPE;
    tn_tensor *made[2];
    if (m) {
        lstm_step(tn_module_self(m), x, h, c, &made[0], &made[1]);
    } else {
        for (int i = 0; i < 2; i++)
            made[i] = tn_failed(TN_ERR_ARGUMENT, "lstm_cell: the module is NULL; creating it failed");
    }
    if (new_h) *new_h = tn_keep(made[0]);
    if (new_c) *new_c = tn_keep(made[1]);
}

/* ==== transformer ================================================================================================= */
/* Both are built of layers (linear, norm, dropout) that hang in the tree under PyTorch's names; attention keeps its
 * three input projections in one matrix, so that self-attention is one product. */

/* ---- multi-head attention ---------------------------------------------------------------------------------------- */

typedef struct attention {
    tn_tensor *weight, *bias; /* in_proj: query, key, value */
    tn_module *out;
    int64_t features, heads; /* of this rank, if they are divided */
    int64_t inputs;          /* features of the inputs */
    double dropout;
    tn_group *group; /* among whose ranks the heads are divided; NULL: all are here */
} attention;

/* Rows of query, key or value (part 0, 1, 2) of the joined projection. */
static tn_tensor *project(const attention *s, const tn_tensor *x, int64_t part, int64_t parts) {
    tn_tensor *weight = tn_narrow(s->weight, 0, part * s->features, parts * s->features);
    tn_tensor *bias = tn_narrow(s->bias, 0, part * s->features, parts * s->features);
    return tn_linear(s->group ? tn_group_sum_backward(s->group, x) : x, weight, bias);
}

/* [batch, n, features] → [batch, heads, n, features / heads] */
static tn_tensor *split_heads(const attention *s, const tn_tensor *x) {
    int64_t shape[] = {tn_size(x, 0), tn_size(x, 1), s->heads, s->features / s->heads};
    return tn_transpose(tn_reshape(x, shape, 4), 1, 2);
}

static tn_tensor *join_heads(const attention *s, const tn_tensor *x) {
    int64_t shape[] = {tn_size(x, 0), tn_size(x, 2), s->features};
    return tn_reshape(tn_transpose(x, 1, 2), shape, 3);
}

static tn_status check_input(const attention *s, const tn_tensor *x, const char *what) {
    TRY(tn_status_of(x));
    if (tn_rank(x) == 3 && tn_size(x, 2) == s->inputs) return TN_OK;
    return tn_backend_fail(TN_ERR_SHAPE,
                           "multihead_attention: %s must be [batch, n, %lld]; its rank is %d and its last extent %lld",
                           what, (long long)s->inputs, tn_rank(x), (long long)tn_size(x, -1));
}

/* softmax(q kᵀ / sqrt(d) + mask) with dropout, times v: the composition that the
 * operation without dropout stands for. */
static tn_tensor *attend_with_dropout(const attention *s, tn_tensor *const p[3], const tn_tensor *mask) {
    double scale = 1 / sqrt((double)(s->features / s->heads));
    tn_tensor *scores = tn_mul(tn_matmul(p[0], tn_transpose(p[1], -2, -1)), tn_scalar(scale));
    if (mask) scores = tn_add(scores, mask);
    return tn_matmul(tn_dropout(tn_softmax(scores, -1), s->dropout, true), p[2]);
}

static void project_inputs(const attention *s, const tn_tensor *const in[3], tn_tensor *out[3]) {
    if (in[0] == in[1] && in[1] == in[2]) {
        tn_tensor *joined = project(s, in[0], 0, 3);
        for (int64_t i = 0; i < 3; i++)
            out[i] = split_heads(s, tn_narrow(joined, 2, i * s->features, s->features));
        return;
    }
    for (int64_t i = 0; i < 3; i++)
        out[i] = split_heads(s, project(s, in[i], i, 1));
}

tn_tensor *tn_multihead_attention_forward(tn_module *m, const tn_tensor *query, const tn_tensor *key,
                                          const tn_tensor *value, const tn_tensor *mask) {
    if (!m) return tn_failed(TN_ERR_ARGUMENT, "multihead_attention: the module is NULL; creating it failed");
    const attention *s = tn_module_self(m);
    const tn_tensor *in[] = {query, key, value};
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        tn_status status = check_input(s, in[i], names[i]);
        if (status != TN_OK) return tn_failed(status, "%s", tn_error());
    }
    tn_tensor *result = NULL;
    TN_SCOPE;
    tn_tensor *p[3];
    project_inputs(s, in, p);
    bool dropping = s->dropout > 0 && tn_module_is_training(m);
    tn_tensor *mixed =
        dropping ? attend_with_dropout(s, p, mask) : tn_scaled_dot_product_attention(p[0], p[1], p[2], mask, NULL);
    result = tn_keep(tn_forward(s->out, join_heads(s, mixed)));
    return result;
}

static tn_tensor *attention_forward(tn_module *m, const tn_tensor *x) {
    return tn_multihead_attention_forward(m, x, x, x, NULL);
}

static const tn_module_type attention_type = {sizeof(tn_module_type), "multihead_attention", attention_forward, free};

static bool check_attention(tn_module *parent, const char *name, int64_t features, int64_t heads, double dropout) {
    if (!tn_nn_check_sizes(parent, "multihead_attention", name, features, heads)) return false;
    if (features % heads == 0 && dropout >= 0 && dropout < 1) return true;
    tn_module_fail(parent,
                   tn_backend_fail(TN_ERR_ARGUMENT,
                                   "multihead_attention \"%s\": %lld features must be a multiple of %lld heads, and "
                                   "dropout (%g) in [0, 1)",
                                   name, (long long)features, (long long)heads, dropout));
    return false;
}

/* group: among whose ranks the heads are divided; NULL: none. */
static tn_module *make_attention(tn_module *parent, const char *name, int64_t features, int64_t heads, double dropout,
                                 tn_group *group) {
    if (!check_attention(parent, name, features, heads, dropout)) return NULL;
    int size = tn_group_size(group);
    if (heads % size)
        (void)tn_module_fail(parent,
                             tn_backend_fail(TN_ERR_SHAPE,
                                             "multihead_attention \"%s\": %lld heads cannot be divided among %d "
                                             "ranks",
                                             name, (long long)heads, size));
    tn_module *m = tn_nn_make(parent, name, &attention_type, sizeof(attention));
    if (!m) return NULL;
    attention *s = tn_module_self(m);
    *s = (attention){
        .features = features / size, .heads = heads / size, .inputs = features, .dropout = dropout, .group = group};
    int64_t joined = 3 * features;
    {
        TN_SCOPE;
        tn_tensor *weight = tn_init_xavier_uniform((int64_t[]){joined, features}, 2, 1);
        s->weight = tn_module_add_parameter(m, "in_proj_weight", weight);
        s->bias = tn_module_add_parameter(m, "in_proj_bias", tn_init_constant(&joined, 1, 0));
        s->out = group ? tn_nn_row_parallel_linear(m, "out_proj", features, features, true, group)
                       : tn_nn_linear(m, "out_proj", features, features, true);
        if (group && s->out) (void)tn_module_divide(m, "in_proj_weight", group, 0, 3);
        if (group && s->out) (void)tn_module_divide(m, "in_proj_bias", group, 0, 3);
        tn_nn_write(s->out, "bias", tn_init_constant(&features, 1, 0));
    }
    return tn_nn_made(m);
}

tn_module *tn_nn_multihead_attention(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                     double dropout) {
    return make_attention(parent, name, features, heads, dropout, NULL);
}

/* ---- encoder block ----------------------------------------------------------------------------------------------- */

typedef struct encoder {
    tn_module *attention, *linear1, *linear2, *norm1, *norm2, *dropout, *dropout1, *dropout2;
    tn_tensor *(*activation)(const tn_tensor *x);
    double p; /* of the dropouts */
    bool norm_first;
} encoder;

static tn_tensor *exact_gelu(const tn_tensor *x) { return tn_gelu(x, NULL); }

/* Without dropout nothing needs to be recorded. */
static tn_tensor *drop(const encoder *s, tn_module *dropout, tn_tensor *x) {
    return s->p > 0 ? tn_forward(dropout, x) : x;
}

static tn_tensor *attend_transformer(const encoder *s, const tn_tensor *x, const tn_tensor *mask) {
    return drop(s, s->dropout1, tn_multihead_attention_forward(s->attention, x, x, x, mask));
}

static tn_tensor *feed_forward(const encoder *s, const tn_tensor *x) {
    tn_tensor *inner = s->activation(tn_forward(s->linear1, x));
    return drop(s, s->dropout2, tn_forward(s->linear2, drop(s, s->dropout, inner)));
}

tn_tensor *tn_transformer_encoder_layer_forward(tn_module *m, const tn_tensor *x, const tn_tensor *mask) {
    if (!m) return tn_failed(TN_ERR_ARGUMENT, "transformer_encoder_layer: the module is NULL; creating it failed");
    const encoder *s = tn_module_self(m);
    tn_tensor *result = NULL;
    TN_SCOPE;
    if (s->norm_first) {
        tn_tensor *y = tn_add(x, attend_transformer(s, tn_forward(s->norm1, x), mask));
        result = tn_add(y, feed_forward(s, tn_forward(s->norm2, y)));
    } else {
        tn_tensor *y = tn_forward(s->norm1, tn_add(x, attend_transformer(s, x, mask)));
        result = tn_forward(s->norm2, tn_add(y, feed_forward(s, y)));
    }
    tn_keep(result);
    return result;
}

static tn_tensor *encoder_forward(tn_module *m, const tn_tensor *x) {
    return tn_transformer_encoder_layer_forward(m, x, NULL);
}

static const tn_module_type encoder_type = {sizeof(tn_module_type), "transformer_encoder_layer", encoder_forward, free};

tn_module *tn_nn_transformer_encoder_layer(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                           const tn_nn_encoder_options *options) {
    tn_nn_encoder_options o = TN_NN_ENCODER_DEFAULTS;
    tn_status status =
        tn_options_read(&o, options, "transformer_encoder_layer", "tn_nn_encoder_options o = TN_NN_ENCODER_DEFAULTS");
    tn_nn_norm_options norm_given = TN_NN_NORM_DEFAULTS, norm;
    norm_given.eps = o.eps;
    if (tn_module_fail(parent, status) != TN_OK ||
        !norm_options(parent, "transformer_encoder_layer", &norm_given, &norm))
        return NULL;
    int64_t inner = o.feedforward ? o.feedforward : 4 * features;
    if (!tn_nn_check_sizes(parent, "transformer_encoder_layer", name, features, inner)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &encoder_type, sizeof(encoder));
    if (!m) return NULL;
    encoder *s = tn_module_self(m);
    s->activation = o.activation ? o.activation : exact_gelu;
    s->norm_first = o.norm_first;
    s->p = o.dropout;
    if (o.group && o.dropout > 0)
        (void)tn_module_fail(m, tn_backend_fail(TN_ERR_UNSUPPORTED,
                                                "transformer_encoder_layer: dropout is %g; it must "
                                                "be 0 with a group, whose ranks would drop the same",
                                                o.dropout));
    s->attention = make_attention(m, "self_attn", features, heads, o.dropout, o.group);
    s->linear1 = o.group ? tn_nn_column_parallel_linear(m, "linear1", features, inner, true, o.group)
                         : tn_nn_linear(m, "linear1", features, inner, true);
    s->dropout = tn_nn_dropout(m, "dropout", o.dropout);
    s->linear2 = o.group ? tn_nn_row_parallel_linear(m, "linear2", inner, features, true, o.group)
                         : tn_nn_linear(m, "linear2", inner, features, true);
    s->norm1 = tn_nn_layer_norm(m, "norm1", features, &norm);
    s->norm2 = tn_nn_layer_norm(m, "norm2", features, &norm);
    s->dropout1 = tn_nn_dropout(m, "dropout1", o.dropout);
    s->dropout2 = tn_nn_dropout(m, "dropout2", o.dropout);
    return tn_nn_made(m);
}
