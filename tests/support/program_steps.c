/* program_steps.c — what each step of a random program does: for the library, for the oracle, and in words. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kir/kir_math.h"
#include "programs.h"
#include "trunnion/ops.h"

typedef oracle *eager_fn(const step *s, oracle *const *in, int variant);
typedef tn_tensor *lazy_fn(const step *s, tn_tensor *const *in, int variant);

/* Length-prefixed lists: the k-th list of a step's integers. */
static const int64_t *list_of(const step *s, int k, int *count) {
    const int64_t *at = s->i;
    for (; k > 0; k--)
        at += 1 + at[0];
    *count = (int)at[0];
    return at + 1;
}

#define LIST(name)    \
    int name##_count; \
    const int64_t *name = list_of(s, 0, &name##_count)

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Of a data step: what stands behind its shape. */
static int64_t data_word(const step *s, int k) { return s->i[1 + s->i[0] + k]; }

static double distinct_float(uint64_t r) { return (double)(int64_t)(r >> 11) / 0x1p51 - 2.0; } /* [-2, 2) */

static double plain_float(uint64_t r) {
    static const double special[] = {0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, -0.25};
    if (r % 16 == 0) return special[r / 16 % 8];
    return distinct_float(r);
}

static double wild_float(uint64_t r) {
    static const double special[] = {1e30, -1e30, 1e-42, -1e-42, 16777217.0, 0.1};
    switch (r % 24) {
    case 0: return __builtin_nan("");
    case 1: return __builtin_inf();
    case 2: return -__builtin_inf();
    case 3: return special[r / 24 % 6];
    default: return plain_float(r / 24);
    }
}

static double float_of(content what, uint64_t r) {
    if (what == CONTENT_WILD) return wild_float(r);
    return what == CONTENT_DISTINCT ? distinct_float(r) : plain_float(r);
}

static void put_float(tn_dtype t, char *at, double v) {
    float f = (float)v;
    uint16_t half = kir_to_f16(f);
    if (t == TN_F16) memcpy(at, &half, sizeof half);
    if (t == TN_F32) memcpy(at, &f, sizeof f);
    if (t == TN_F64) memcpy(at, &v, sizeof v);
}

static int64_t integer_of(const step *s, uint64_t r) {
    int64_t limit = data_word(s, 1);
    switch ((content)data_word(s, 0)) {
    case CONTENT_INDEX: return (int64_t)(r / 37 % (uint64_t)(limit > 0 ? limit : 1)); /* others are refused */
    case CONTENT_WIDE: return (int64_t)r;
    default: return (int64_t)(r % 19) - 9;
    }
}

void *step_data(const step *s, int variant, int64_t *shape, int *rank) {
    *rank = (int)s->i[0];
    int64_t count = 1, symbolic = data_word(s, 2);
    for (int d = 0; d < *rank; d++) {
        shape[d] = s->i[1 + d] + (d == symbolic ? 3 * variant : 0);
        count *= shape[d];
    }
    size_t size = tn_dtype_size(s->dtype);
    char *bytes = calloc((size_t)count + 1, size);
    uint64_t state = s->salt + (uint64_t)variant * 0x9E3779B97F4A7C15u;
    for (int64_t n = 0; n < count; n++) {
        uint64_t r = program_random(&state);
        char *at = bytes + (size_t)n * size;
        int64_t v = integer_of(s, r);
        if (s->dtype == TN_BOOL) v &= 1;
        if (tn_dtype_is_float(s->dtype))
            put_float(s->dtype, at, float_of((content)data_word(s, 0), r));
        else
            memcpy(at, &v, size);
    }
    return bytes;
}

static oracle *eager_data(const step *s, oracle *const *in, int variant) {
    (void)in;
    int64_t shape[TN_MAX_RANK];
    int rank;
    void *bytes = step_data(s, variant, shape, &rank);
    oracle *x = oracle_data(bytes, shape, rank, s->dtype);
    free(bytes);
    return x;
}
static tn_tensor *lazy_data(const step *s, tn_tensor *const *in, int variant) {
    (void)in;
    int64_t shape[TN_MAX_RANK];
    int rank;
    void *bytes = step_data(s, variant, shape, &rank);
    tn_tensor *t = tn_from_data(bytes, shape, rank, s->dtype);
    free(bytes);
    return t;
}

/* A number is part of a plan's key; a runtime scalar's value is not, so it may differ between variants. */
static double runtime_scalar_value(const step *s, int variant) { return s->f + 0.375 * variant; }

static oracle *eager_number(const step *s, oracle *const *in, int variant) {
    (void)in, (void)variant;
    return oracle_number(s->f);
}
static tn_tensor *lazy_number(const step *s, tn_tensor *const *in, int variant) {
    (void)in, (void)variant;
    return tn_scalar(s->f);
}
static oracle *eager_runtime_scalar(const step *s, oracle *const *in, int variant) {
    (void)in;
    return oracle_full(NULL, 0, runtime_scalar_value(s, variant), TN_F32);
}
static tn_tensor *lazy_runtime_scalar(const step *s, tn_tensor *const *in, int variant) {
    (void)in;
    return tn_runtime_scalar(runtime_scalar_value(s, variant));
}
static oracle *eager_full(const step *s, oracle *const *in, int variant) {
    (void)in, (void)variant;
    LIST(shape);
    return oracle_full(shape, shape_count, s->f, s->dtype);
}
static tn_tensor *lazy_full(const step *s, tn_tensor *const *in, int variant) {
    (void)in, (void)variant;
    LIST(shape);
    return tn_full(shape, shape_count, s->f, s->dtype);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

#define EAGER(name) static oracle *eager_##name(const step *s, oracle *const *in, int variant)
#define LAZY(name) static tn_tensor *lazy_##name(const step *s, tn_tensor *const *in, int variant)
#define UNUSED (void)s, (void)in, (void)variant

#define UNARY(name, OP)                 \
    EAGER(name) {                       \
        UNUSED;                         \
        return oracle_unary(OP, in[0]); \
    }                                   \
    LAZY(name) {                        \
        UNUSED;                         \
        return tn_##name(in[0]);        \
    }
UNARY(neg, ORACLE_NEG)
UNARY(abs, ORACLE_ABS)
UNARY(sqrt, ORACLE_SQRT)
UNARY(exp, ORACLE_EXP)
UNARY(tanh, ORACLE_TANH)
UNARY(floor, ORACLE_FLOOR)
UNARY(bitwise_not, ORACLE_NOT)
UNARY(neg_, ORACLE_NEG)
UNARY(tanh_, ORACLE_TANH)

#define BINARY(name, OP)                        \
    EAGER(name) {                               \
        UNUSED;                                 \
        return oracle_binary(OP, in[0], in[1]); \
    }                                           \
    LAZY(name) {                                \
        UNUSED;                                 \
        return tn_##name(in[0], in[1]);         \
    }
BINARY(add, ORACLE_ADD)
BINARY(sub, ORACLE_SUB)
BINARY(mul, ORACLE_MUL)
BINARY(div, ORACLE_DIV)
BINARY(maximum, ORACLE_MAX)
BINARY(minimum, ORACLE_MIN)
BINARY(eq, ORACLE_EQ)
BINARY(lt, ORACLE_LT)
BINARY(le, ORACLE_LE)
BINARY(bitwise_and, ORACLE_AND)
BINARY(bitwise_or, ORACLE_OR)
BINARY(bitwise_xor, ORACLE_XOR)
BINARY(add_, ORACLE_ADD)
BINARY(sub_, ORACLE_SUB)
BINARY(mul_, ORACLE_MUL)

EAGER(copy_) {
    UNUSED;
    oracle *v = oracle_alias(in[1]);
    v->number = in[1]->number;
    return v;
}
LAZY(copy_) {
    UNUSED;
    return tn_copy_(in[0], in[1]);
}
EAGER(where) {
    UNUSED;
    return oracle_where(in[0], in[1], in[2]);
}
LAZY(where) {
    UNUSED;
    return tn_where(in[0], in[1], in[2]);
}
EAGER(cast) {
    UNUSED;
    return oracle_cast(in[0], s->dtype);
}
LAZY(cast) {
    UNUSED;
    return tn_cast(in[0], s->dtype);
}

#define REDUCTION(name, OP)                                                       \
    EAGER(name) {                                                                 \
        UNUSED;                                                                   \
        LIST(dims);                                                               \
        return oracle_reduce(OP, in[0], dims, dims_count, dims[dims_count] != 0); \
    }                                                                             \
    LAZY(name) {                                                                  \
        UNUSED;                                                                   \
        LIST(dims);                                                               \
        return tn_##name(in[0], dims, dims_count, dims[dims_count] != 0);         \
    }
REDUCTION(sum, ORACLE_SUM)
REDUCTION(amax, ORACLE_AMAX)
REDUCTION(amin, ORACLE_AMIN)
REDUCTION(argmax, ORACLE_ARGMAX)

/* The sum, divided by how many elements went into each; an f16 is rounded at the end alone. */
EAGER(mean) {
    UNUSED;
    LIST(dims);
    if (!tn_dtype_is_float(in[0]->dtype)) return NULL;
    oracle *wide = oracle_cast(in[0], in[0]->dtype == TN_F64 ? TN_F64 : TN_F32);
    oracle *sum = oracle_reduce(ORACLE_SUM, wide, dims, dims_count, dims[dims_count] != 0), *mean = NULL;
    if (sum && oracle_numel(sum) > 0 && oracle_numel(wide) > 0) {
        oracle *count = oracle_full(NULL, 0, (double)(oracle_numel(wide) / oracle_numel(sum)), wide->dtype);
        oracle *quotient = oracle_binary(ORACLE_DIV, sum, count);
        mean = oracle_cast(quotient, in[0]->dtype);
        oracle_free(quotient);
        oracle_free(count);
    }
    oracle_free(sum);
    oracle_free(wide);
    return mean;
}
LAZY(mean) {
    UNUSED;
    LIST(dims);
    return tn_mean(in[0], dims, dims_count, dims[dims_count] != 0);
}

EAGER(cumsum) {
    UNUSED;
    return oracle_cumsum(in[0], s->i[0]);
}
LAZY(cumsum) {
    UNUSED;
    return tn_cumsum(in[0], s->i[0]);
}
EAGER(matmul) {
    UNUSED;
    return oracle_matmul(in[0], in[1]);
}
LAZY(matmul) {
    UNUSED;
    return tn_matmul(in[0], in[1]);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

EAGER(contiguous) {
    UNUSED;
    return oracle_contiguous(in[0]);
}
LAZY(contiguous) {
    UNUSED;
    return tn_contiguous(in[0]);
}
EAGER(cat) {
    UNUSED;
    return oracle_cat((const oracle *const *)in, s->n_in, s->i[0]);
}
LAZY(cat) {
    UNUSED;
    return tn_cat(in, s->n_in, s->i[0]);
}
EAGER(pad) {
    UNUSED;
    LIST(pads);
    return oracle_pad(in[0], pads, pads_count, s->f);
}
LAZY(pad) {
    UNUSED;
    LIST(pads);
    return tn_pad(in[0], pads, pads_count, s->f);
}
EAGER(gather) {
    UNUSED;
    return oracle_gather(in[0], s->i[0], in[1]);
}
LAZY(gather) {
    UNUSED;
    return tn_gather(in[0], s->i[0], in[1]);
}
EAGER(index_select) {
    UNUSED;
    return oracle_index_select(in[0], s->i[0], in[1]);
}
LAZY(index_select) {
    UNUSED;
    return tn_index_select(in[0], s->i[0], in[1]);
}
EAGER(index_add) {
    UNUSED;
    return oracle_index_add(in[0], s->i[0], in[1], in[2]);
}
LAZY(index_add) {
    UNUSED;
    return tn_index_add(in[0], s->i[0], in[1], in[2]);
}
EAGER(symbolic) {
    UNUSED;
    return oracle_contiguous(in[0]);
}
LAZY(symbolic) {
    UNUSED;
    return tn_symbolic(in[0], s->i[0], (int)s->i[1]);
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

EAGER(view) {
    UNUSED;
    LIST(shape);
    return oracle_view(in[0], shape, shape_count);
}
LAZY(view) {
    UNUSED;
    LIST(shape);
    return tn_view(in[0], shape, shape_count);
}
EAGER(reshape) {
    UNUSED;
    LIST(shape);
    return oracle_reshape(in[0], shape, shape_count);
}
LAZY(reshape) {
    UNUSED;
    LIST(shape);
    return tn_reshape(in[0], shape, shape_count);
}
EAGER(flatten) {
    UNUSED;
    int64_t shape[TN_MAX_RANK], joined = 1;
    int rank = 0;
    const oracle *x = in[0];
    if (s->i[0] > s->i[1] || s->i[1] >= x->rank) return NULL;
    for (int d = 0; d < x->rank; d++) {
        bool inside = d >= s->i[0] && d <= s->i[1];
        if (inside) joined *= x->shape[d];
        if (!inside) shape[rank++] = x->shape[d];
        if (d == s->i[1]) shape[rank++] = joined;
    }
    return oracle_reshape(x, shape, rank);
}
LAZY(flatten) {
    UNUSED;
    return tn_flatten(in[0], s->i[0], s->i[1]);
}
EAGER(permute) {
    UNUSED;
    LIST(dims);
    return oracle_permute(in[0], dims, dims_count);
}
LAZY(permute) {
    UNUSED;
    LIST(dims);
    return tn_permute(in[0], dims, dims_count);
}
EAGER(transpose) {
    UNUSED;
    int64_t dims[TN_MAX_RANK];
    for (int d = 0; d < in[0]->rank; d++)
        dims[d] = d;
    if (s->i[0] >= in[0]->rank || s->i[1] >= in[0]->rank) return NULL;
    dims[s->i[0]] = s->i[1];
    dims[s->i[1]] = s->i[0];
    return oracle_permute(in[0], dims, in[0]->rank);
}
LAZY(transpose) {
    UNUSED;
    return tn_transpose(in[0], s->i[0], s->i[1]);
}
EAGER(expand) {
    UNUSED;
    LIST(shape);
    return oracle_expand(in[0], shape, shape_count);
}
LAZY(expand) {
    UNUSED;
    LIST(shape);
    return tn_expand(in[0], shape, shape_count);
}
EAGER(slice) {
    UNUSED;
    return oracle_slice(in[0], s->i[0], s->i[1], s->i[2], s->i[3]);
}
LAZY(slice) {
    UNUSED;
    return tn_slice(in[0], s->i[0], s->i[1], s->i[2], s->i[3]);
}
EAGER(select) {
    UNUSED;
    return oracle_select(in[0], s->i[0], s->i[1]);
}
LAZY(select) {
    UNUSED;
    return tn_select(in[0], s->i[0], s->i[1]);
}
EAGER(squeeze) {
    UNUSED;
    LIST(dims);
    return oracle_squeeze(in[0], dims, dims_count);
}
LAZY(squeeze) {
    UNUSED;
    LIST(dims);
    return tn_squeeze(in[0], dims, dims_count);
}
EAGER(unsqueeze) {
    UNUSED;
    return oracle_unsqueeze(in[0], s->i[0]);
}
LAZY(unsqueeze) {
    UNUSED;
    return tn_unsqueeze(in[0], s->i[0]);
}
EAGER(detach) {
    UNUSED;
    return oracle_alias(in[0]);
}
LAZY(detach) {
    UNUSED;
    return tn_detach(in[0]);
}
EAGER(as_strided) {
    UNUSED;
    LIST(shape);
    int strides_count;
    const int64_t *strides = list_of(s, 1, &strides_count);
    return oracle_as_strided(in[0], shape, strides, shape_count, strides[strides_count]);
}
LAZY(as_strided) {
    UNUSED;
    LIST(shape);
    int strides_count;
    const int64_t *strides = list_of(s, 1, &strides_count);
    return tn_as_strided(in[0], shape, shape_count, strides, strides_count, strides[strides_count]);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Controls act on registers, not on values: the runners know them. */
#define eager_read NULL
#define eager_item NULL
#define eager_eval NULL
#define eager_free NULL
#define eager_make_state NULL
#define lazy_read NULL
#define lazy_item NULL
#define lazy_eval NULL
#define lazy_free NULL
#define lazy_make_state NULL

static const struct {
    const char *name;
    step_class class_;
    const char *ints, *shown;
    eager_fn *eager;
    lazy_fn *lazy;
} kinds[STEP_KIND_COUNT] = {
#define X(name, class_, ints, shown) {#name, STEP_##class_, ints, shown, eager_##name, lazy_##name},
    STEP_KINDS(X)
#undef X
};

const char *step_name(step_kind kind) { return kinds[kind].name; }
step_class step_class_of(step_kind kind) { return kinds[kind].class_; }
oracle *step_eager(const step *s, oracle *const *in, int variant) { return kinds[s->kind].eager(s, in, variant); }
tn_tensor *step_lazy(const step *s, tn_tensor *const *in, int variant) { return kinds[s->kind].lazy(s, in, variant); }

/* ---- in words ---------------------------------------------------------------------------------------------------- */

typedef struct text {
    char *at;
    size_t left;
} text;

__attribute__((format(printf, 2, 3))) static void say(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left - 1;
    t->at += used;
    t->left -= used;
}

static void say_integer(text *t, int64_t v) {
    if (v == INT64_MAX)
        say(t, "INT64_MAX");
    else if (v == INT64_MIN)
        say(t, "INT64_MIN");
    else
        say(t, "%lld", (long long)v);
}

static void say_integers(text *t, const step *s) {
    char words[96];
    const int64_t *at = s->i;
    snprintf(words, sizeof words, "%s", kinds[s->kind].ints);
    for (char *rest = NULL, *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        bool list = word[0] == '*';
        int64_t count = list ? *at++ : 1;
        say(t, ", %s ", list ? word + 1 : word);
        if (list) say(t, "[");
        for (int64_t k = 0; k < count; k++) {
            if (k) say(t, ", ");
            say_integer(t, *at++);
        }
        if (list) say(t, "]");
    }
}

void step_print(const step *s, char *out, size_t size) {
    text t = {out, size};
    step_class class_ = step_class_of(s->kind);
    if (class_ == STEP_MAKES || class_ == STEP_VALUES || class_ == STEP_VIEWS) say(&t, "r%d = ", s->to);
    say(&t, "%s(", kinds[s->kind].name);
    for (int k = 0; k < s->n_in; k++)
        say(&t, k ? ", r%d" : "r%d", s->in[k]);
    say_integers(&t, s);
    if (strchr(kinds[s->kind].shown, 'f')) say(&t, ", %g", s->f);
    if (strchr(kinds[s->kind].shown, 'd')) say(&t, ", %s", tn_dtype_name(s->dtype));
    say(&t, ")");
}

/* ---- the oracle's registers -------------------------------------------------------------------------------------- */

static bool frozen(const machine *m, const oracle *x) {
    for (int k = 0; k < m->frozen_count; k++)
        if (oracle_same_storage(m->frozen[k], x)) return true;
    return false;
}

/* torch.can_cast; copy_ converts freely. */
static bool fits(const step *s, const oracle *value, const oracle *place) {
    bool to_whole = tn_dtype_is_float(value->dtype) && !tn_dtype_is_float(place->dtype);
    bool to_bool = place->dtype == TN_BOOL && value->dtype != TN_BOOL;
    if (s->kind != STEP_copy_ && (to_whole || to_bool)) return false;
    oracle *wide = oracle_expand(value, place->shape, place->rank);
    bool fit = wide != NULL;
    oracle_free(wide);
    return fit;
}

static bool writable(const machine *m, const step *s) {
    const oracle *place = m->reg[s->in[0]];
    return !m->odd[s->in[0]] && !frozen(m, place) && !oracle_overlaps(place);
}

static bool control_possible(const machine *m, const step *s) {
    if (s->kind == STEP_item) return oracle_numel(m->reg[s->in[0]]) == 1;
    if (s->kind == STEP_make_state)
        return !m->view[s->in[0]] && !m->reg[s->in[0]]->number && !frozen(m, m->reg[s->in[0]]);
    return true;
}

bool machine_prepare(machine *m, const step *s) {
    oracle *in[STEP_INPUTS];
    for (int k = 0; k < s->n_in; k++) {
        in[k] = m->reg[s->in[k]];
        if (!in[k]) return false;
    }
    step_class class_ = step_class_of(s->kind);
    m->pending = NULL;
    if (class_ == STEP_CONTROLS) return control_possible(m, s);
    if (class_ == STEP_WRITES && !writable(m, s)) return false;
    m->pending = step_eager(s, in, m->variant);
    if (!m->pending) return false;
    if (class_ != STEP_WRITES || fits(s, m->pending, in[0])) return true;
    machine_cancel(m);
    return false;
}

void machine_cancel(machine *m) {
    oracle_free(m->pending);
    m->pending = NULL;
}

/* A number that is written becomes a tensor like others. */
static void written_numbers(machine *m, const oracle *place) {
    for (int r = 0; r < MAX_REGISTERS; r++)
        if (m->reg[r] && m->reg[r]->number && oracle_same_storage(m->reg[r], place)) m->reg[r]->number = false;
}

void machine_commit(machine *m, const step *s) {
    oracle *value = m->pending;
    step_class class_ = step_class_of(s->kind);
    m->pending = NULL;
    if (s->kind == STEP_make_state) m->state[s->in[0]] = true;
    if (s->kind == STEP_free) {
        oracle_free(m->reg[s->in[0]]);
        m->reg[s->in[0]] = NULL;
    }
    if (class_ == STEP_CONTROLS) return;
    if (class_ == STEP_WRITES) {
        oracle_write(m->reg[s->in[0]], value);
        oracle_free(value);
        written_numbers(m, m->reg[s->in[0]]);
        return;
    }
    bool looks = class_ == STEP_VIEWS && oracle_same_storage(value, m->reg[s->in[0]]);
    bool odd = (s->kind == STEP_as_strided && s->i[0] > 1) || (looks && m->odd[s->in[0]]);
    oracle_free(m->reg[s->to]);
    m->reg[s->to] = value;
    m->view[s->to] = class_ == STEP_VIEWS;
    m->odd[s->to] = odd;
    m->state[s->to] = false;
}

bool machine_step(machine *m, const step *s) {
    if (!machine_prepare(m, s)) return false;
    machine_commit(m, s);
    return true;
}

static bool is_state_memory(const machine *m, const oracle *x) {
    for (int r = 0; r < MAX_REGISTERS; r++)
        if (m->reg[r] && m->state[r] && oracle_same_storage(m->reg[r], x)) return true;
    return false;
}

void machine_freeze(machine *m) {
    for (int r = 0; r < MAX_REGISTERS && m->frozen_count < (int)(sizeof m->frozen / sizeof *m->frozen); r++)
        if (m->reg[r] && !frozen(m, m->reg[r]) && !is_state_memory(m, m->reg[r]))
            m->frozen[m->frozen_count++] = oracle_alias(m->reg[r]);
}

void machine_clear(machine *m) {
    for (int r = 0; r < MAX_REGISTERS; r++)
        oracle_free(m->reg[r]);
    for (int k = 0; k < m->frozen_count; k++)
        oracle_free(m->frozen[k]);
    memset(m, 0, sizeof *m);
}
