/* cases.c — reading an op's cases and making their inputs: see check.h.
 *
 * A case is a list of words between semicolons. A word that begins with '[' is an input, '-' one that is left out;
 * `name=value` is an argument of the op when its signature has one of that name, else a setting. A segment without
 * inputs and arguments sets what holds for the cases behind it. */
#include "check/check.h"

#include "cpu/cpu_kernels.h"
#include "kir/kir_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ------------------------------------------------------------------------------------------------------- */

typedef struct text_span {
    const char *text;
    int length;
} text_span;

static tn_status refuse_case(const tn_case_reader *r, text_span w, const char *why) {
    return tn_fail(TN_ERR_FORMAT, "cases of %s: '%.*s': %s", tn_op(r->op)->name, w.length, w.text, why);
}

static bool is_text(text_span w, const char *text) {
    return (int)strlen(text) == w.length && memcmp(w.text, text, (size_t)w.length) == 0;
}

/* The next word of the segment [at, end); words are separated by spaces. */
static bool next_word(const char **at, const char *end, text_span *w) {
    const char *p = *at;
    while (p < end && *p == ' ')
        p++;
    w->text = p;
    while (p < end && *p != ' ')
        p++;
    w->length = (int)(p - w->text);
    *at = p;
    return w->length > 0;
}

/* Splits at the first `mark`; false when there is none. */
static bool split_at(text_span w, char mark, text_span *before, text_span *behind) {
    const char *found = memchr(w.text, mark, (size_t)w.length);
    if (!found) return false;
    *before = (text_span){w.text, (int)(found - w.text)};
    *behind = (text_span){found + 1, w.length - before->length - 1};
    return true;
}

/* Numbers, `inf`, `min` and `max` (of i64), `auto` (TN_AUTO), `true`, `false`, dtype names. */
static bool case_number_of(text_span w, double *f, int64_t *i) {
    TN_C_LOCALE;
    static const struct {
        const char *name;
        double f;
        int64_t i;
    } words[] = {{"true", 1, 1},
                 {"false", 0, 0},
                 {"inf", INFINITY, INT64_MAX},
                 {"-inf", -INFINITY, INT64_MIN},
                 {"min", -INFINITY, INT64_MIN},
                 {"max", INFINITY, INT64_MAX},
                 {"auto", TN_AUTO, 0}};
    for (size_t k = 0; k < TN_COUNT(words); k++) {
        if (!is_text(w, words[k].name)) continue;
        *f = words[k].f;
        *i = words[k].i;
        return true;
    }
    for (int t = 0; t < TN_DTYPE_COUNT; t++) {
        if (!is_text(w, tn_dtype_name((tn_dtype)t))) continue;
        *f = t;
        *i = t;
        return true;
    }
    char copy[48], *stop;
    if (w.length <= 0 || w.length >= (int)sizeof copy) return false;
    memcpy(copy, w.text, (size_t)w.length);
    copy[w.length] = 0;
    *f = strtod(copy, &stop);
    *i = isfinite(*f) ? (int64_t)*f : 0;
    return *stop == 0;
}

static bool case_dtype_of(text_span w, tn_dtype *out) {
    for (int t = 0; t < TN_DTYPE_COUNT; t++) {
        if (!is_text(w, tn_dtype_name((tn_dtype)t))) continue;
        *out = (tn_dtype)t;
        return true;
    }
    return false;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static bool is_unsigned(tn_dtype t) { return t == TN_U8 || t == TN_U16 || t == TN_U32 || t == TN_U64; }

static void default_domain(tn_case_input *in) {
    bool is_float = tn_dtype_is_float(in->dtype);
    in->low = in->dtype == TN_BOOL || is_unsigned(in->dtype) ? 0 : is_float ? -2 : -9;
    in->high = in->dtype == TN_BOOL ? 1 : is_float ? 2 : 9;
    in->away = 0;
}

static tn_status read_domain(const tn_case_reader *r, text_span w, tn_case_input *in) {
    text_span range = w, rest, low, high;
    int64_t unused;
    if (split_at(w, '+', &w, &rest)) {
        rest.length--;
        if (rest.text[rest.length] != 'I' || !case_number_of(rest, &in->diagonal, &unused))
            return refuse_case(r, w, "expected a multiple of I after '+'");
        range = w;
    }
    if (split_at(w, '~', &range, &rest) && !case_number_of(rest, &in->away, &unused))
        return refuse_case(r, w, "expected a number after '~'");
    const char *dots = strstr(range.text, "..");
    if (!dots || dots >= range.text + range.length) return refuse_case(r, w, "a domain is low..high");
    low = (text_span){range.text, (int)(dots - range.text)};
    high = (text_span){dots + 2, range.length - low.length - 2};
    if (!case_number_of(low, &in->low, &unused) || !case_number_of(high, &in->high, &unused))
        return refuse_case(r, w, "a domain is low..high");
    return TN_OK;
}

static tn_status read_shape(const tn_case_reader *r, text_span w, tn_case_input *in) {
    text_span rest = {w.text + 1, w.length - 2}, item;
    if (w.length < 2 || w.text[w.length - 1] != ']') return refuse_case(r, w, "missing ']' at the end of the shape");
    in->rank = 0;
    while (rest.length > 0) {
        text_span behind = {rest.text + rest.length, 0};
        double f;
        if (!split_at(rest, ',', &item, &behind)) item = rest;
        if (in->rank == TN_MAX_RANK || !case_number_of(item, &f, &in->shape[in->rank]))
            return refuse_case(r, w, "missing shape");
        in->rank++;
        rest = behind;
    }
    return TN_OK;
}

static tn_status read_input(const tn_case_reader *r, text_span w, tn_case *c) {
    if (c->n_in == TN_CASE_INPUTS) return refuse_case(r, w, "too many inputs");
    tn_case_input *in = &c->in[c->n_in++];
    *in = (tn_case_input){.dtype = c->type};
    if (is_text(w, "-")) {
        in->absent = true;
        return TN_OK;
    }
    text_span left = w, domain = {0}, type = {0};
    bool has_domain = split_at(left, '@', &left, &domain);
    if (split_at(left, ':', &left, &type) && !case_dtype_of(type, &in->dtype))
        return refuse_case(r, w, "missing dtype after ':'");
    TRY(read_shape(r, left, in));
    default_domain(in);
    return has_domain ? read_domain(r, domain, in) : TN_OK;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

typedef enum argument_kind { ARGUMENT_INT, ARGUMENT_FLOAT, ARGUMENT_LIST, ARGUMENT_ARRAY } argument_kind;

typedef struct argument {
    text_span name, fallback; /* fallback: the default behind '=', empty when there is none */
    argument_kind kind;
    int count;         /* ARGUMENT_ARRAY */
    text_span choices; /* {mean|sum}: the names behind the numbers */
} argument;

static argument parse_argument(text_span w) {
    argument a = {.kind = ARGUMENT_INT};
    text_span type = w, name = {0};
    for (int k = w.length - 1; k > 0; k--) {
        if (w.text[k] != ' ') continue;
        type = (text_span){w.text, k};
        name = (text_span){w.text + k + 1, w.length - k - 1};
        break;
    }
    if (!split_at(name, '=', &a.name, &a.fallback)) a.name = name;
    if (type.text[0] == '{') a.choices = (text_span){type.text + 1, type.length - 2};
    if (is_text(type, "float")) a.kind = ARGUMENT_FLOAT;
    if (is_text(type, "int[]")) a.kind = ARGUMENT_LIST;
    if (type.length > 5 && memcmp(type.text, "int[", 4) == 0) {
        a.kind = ARGUMENT_ARRAY;
        a.count = atoi(type.text + 4);
    }
    return a;
}

/* Goes through the parameters of a signature that are no tensors; *at begins at the bracket. */
static bool next_argument(const char **at, argument *a) {
    while (**at && **at != ')') {
        const char *p = ++*at;
        while (*p == ' ')
            p++;
        const char *end = p;
        int depth = 0;
        while (*end && *end != ')' && (depth || *end != ',')) {
            depth += *end == '{';
            depth -= *end == '}';
            end++;
        }
        *at = end;
        text_span w = {p, (int)(end - p)};
        if (w.length < 3 || (w.length > 6 && memcmp(w.text, "Tensor", 6) == 0)) continue;
        *a = parse_argument(w);
        return true;
    }
    return false;
}

static bool choice_of(text_span choices, text_span w, int64_t *i) {
    text_span rest = choices, item;
    for (*i = 0; rest.length > 0; ++*i) {
        text_span behind = {0};
        if (!split_at(rest, '|', &item, &behind)) item = rest;
        if (item.length == w.length && memcmp(item.text, w.text, (size_t)w.length) == 0) return true;
        rest = behind;
    }
    return false;
}

static bool put_one(tn_case *c, const argument *a, text_span w) {
    double f = 0;
    int64_t i = 0;
    if (a->choices.length ? !choice_of(a->choices, w, &i) : !case_number_of(w, &f, &i)) return false;
    if (a->kind == ARGUMENT_FLOAT) {
        if (c->attrs.n_f == TN_MAX_ATTR_FLOATS) return false;
        c->attrs.f[c->attrs.n_f++] = f;
        return true;
    }
    if (c->attrs.n_i == TN_MAX_ATTR_INTS) return false;
    c->attrs.i[c->attrs.n_i++] = i;
    return true;
}

/* `(1,2)`, or one value, which then fills an array. */
static bool put_value(tn_case *c, const argument *a, text_span w) {
    if (a->kind == ARGUMENT_INT || a->kind == ARGUMENT_FLOAT) return put_one(c, a, w);
    int place = c->attrs.n_i, count = 0;
    if (a->kind == ARGUMENT_LIST) c->attrs.n_i++;
    text_span rest = w, item;
    bool is_list = w.length >= 2 && w.text[0] == '(';
    if (is_list) rest = (text_span){w.text + 1, w.length - 2};
    for (; rest.length > 0; count++) {
        text_span behind = {0};
        if (!split_at(rest, ',', &item, &behind)) item = rest;
        if (!put_one(c, a, item)) return false;
        rest = behind;
    }
    if (a->kind == ARGUMENT_LIST) c->attrs.i[place] = count;
    for (; a->kind == ARGUMENT_ARRAY && !is_list && count < a->count; count++)
        put_one(c, a, w);
    return a->kind == ARGUMENT_LIST || count == a->count;
}

/* The value that the segment gives to the argument, its default otherwise. */
static bool find_value(const char *begin, const char *end, const argument *a, text_span *value) {
    text_span w, name, behind;
    while (next_word(&begin, end, &w)) {
        if (w.text[0] == '[' || !split_at(w, '=', &name, &behind) || name.length != a->name.length) continue;
        if (memcmp(name.text, a->name.text, (size_t)name.length) != 0) continue;
        *value = behind;
        return true;
    }
    *value = a->fallback;
    return a->fallback.length > 0;
}

static tn_status read_arguments(const tn_case_reader *r, const char *begin, const char *end, tn_case *c) {
    const char *at = tn_op(r->op)->takes;
    argument a;
    text_span value;
    c->attrs.n_i = c->attrs.n_f = 0;
    while (next_argument(&at, &a)) {
        if (!find_value(begin, end, &a, &value)) return refuse_case(r, a.name, "an argument that this case omits");
        if (!put_value(c, &a, value)) return refuse_case(r, value, "invalid value for this argument");
    }
    return TN_OK;
}

static bool is_argument(int op, text_span name) {
    const char *at = tn_op(op)->takes;
    argument a;
    while (next_argument(&at, &a))
        if (a.name.length == name.length && memcmp(a.name.text, name.text, (size_t)name.length) == 0) return true;
    return false;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static tn_status set_tolerance(const tn_case_reader *r, text_span value, double *plain, double *ulps) {
    double f;
    int64_t i;
    bool in_ulps = value.length > 3 && memcmp(value.text + value.length - 3, "ulp", 3) == 0;
    text_span number = {value.text, value.length - (in_ulps ? 3 : 0)};
    if (!case_number_of(number, &f, &i))
        return refuse_case(r, value, "invalid tolerance: expected a number, or a number of ulp");
    *plain = in_ulps ? 0 : f;
    *ulps = in_ulps ? f : 0;
    return TN_OK;
}

static tn_status set_types(tn_case_reader *r, text_span value) {
    r->type_count = 0;
    while (value.length > 0) {
        text_span item, behind = {0};
        if (!split_at(value, ',', &item, &behind)) item = value;
        if (r->type_count == TN_PLAIN_DTYPES || !case_dtype_of(item, &r->types[r->type_count]))
            return refuse_case(r, item, "unknown dtype");
        r->type_count++;
        value = behind;
    }
    return TN_OK;
}

static tn_status set(tn_case_reader *r, tn_case *c, text_span name, text_span value) {
    if (is_text(name, "types")) return set_types(r, value);
    if (is_text(name, "tol")) return set_tolerance(r, value, &c->relative, &c->ulps);
    if (is_text(name, "atol")) return set_tolerance(r, value, &c->absolute, &c->absolute_ulps);
    if (is_text(name, "grad")) {
        c->gradient = !is_text(value, "off");
        return TN_OK;
    }
    if (is_text(name, "special")) {
        c->special = !is_text(value, "off");
        return TN_OK;
    }
    if (is_text(name, "error") && value.length < (int)sizeof c->error) {
        memcpy(c->error, value.text, (size_t)value.length);
        c->error[value.length] = 0;
        return TN_OK;
    }
    return refuse_case(r, name, "neither an argument of the op nor a setting");
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static const char *segment_end(const char *begin) {
    const char *end = strchr(begin, ';');
    return end ? end : begin + strlen(begin);
}

/* Has the segment [begin, end) an input or an argument, or only settings? */
static bool is_case(int op, const char *begin, const char *end) {
    text_span w, name, value;
    while (next_word(&begin, end, &w)) {
        if (w.text[0] == '[' || is_text(w, "-")) return true;
        if (split_at(w, '=', &name, &value) && is_argument(op, name)) return true;
    }
    return false;
}

static tn_status read_words(tn_case_reader *r, const char *begin, const char *end, tn_case *c) {
    text_span w, name, value;
    while (next_word(&begin, end, &w)) {
        if (w.text[0] == '[' || is_text(w, "-")) {
            TRY(read_input(r, w, c));
        } else if (!split_at(w, '=', &name, &value)) {
            return refuse_case(r, w, "expected an input or name=value");
        } else if (!is_argument(r->op, name)) {
            TRY(set(r, c, name, value));
        }
    }
    return TN_OK;
}

void tn_cases_begin(tn_case_reader *r, int op) {
    const char *text = tn_op(op)->impl->cases;
    *r = (tn_case_reader){.op = op, .at = text ? text : "", .types = {TN_F32, TN_F64}, .type_count = 2};
    r->settings = (tn_case){.gradient = true, .special = true};
}

/* Do all inputs name their dtype? Then the case is run once. */
static bool types_matter(const char *begin, const char *end) {
    text_span w;
    while (next_word(&begin, end, &w))
        if (w.text[0] == '[' && !memchr(w.text, ':', (size_t)w.length)) return true;
    return false;
}

tn_status tn_cases_next(tn_case_reader *r, tn_case *out, bool *more) {
    while (!r->begin) {
        if (!*r->at) {
            *more = false;
            return TN_OK;
        }
        const char *begin = r->at, *end = segment_end(begin);
        r->at = *end ? end + 1 : end;
        while (begin < end && *begin == ' ')
            begin++;
        if (begin == end) continue;
        if (!is_case(r->op, begin, end)) {
            TRY(read_words(r, begin, end, &r->settings));
            continue;
        }
        r->begin = begin;
        r->next_type = 0;
    }
    const char *end = segment_end(r->begin);
    *out = r->settings;
    out->text = r->begin;
    out->length = (int)(end - r->begin);
    out->type = r->types[r->next_type++];
    TRY(read_words(r, r->begin, end, out));
    TRY(read_arguments(r, r->begin, end, out));
    if (r->next_type == r->type_count || !types_matter(r->begin, end)) r->begin = NULL;
    *more = true;
    return TN_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static double uniform(uint64_t seed, uint64_t i) {
    return (double)(mix(seed * UINT64_C(0x9E3779B97F4A7C15) + i + 1) >> 11) * 0x1p-53;
}

/* Domains of many magnitudes are drawn by magnitude, else nearly all would be of the greatest. */
static double in_domain(const tn_case_input *in, double u) {
    if (in->low > 0 && in->high / in->low > 1e4) return in->low * pow(in->high / in->low, u);
    return in->low + (in->high - in->low) * u;
}

static double fit(const tn_case_input *in, double v) {
    if (in->away > 0) v = floor(v) + in->away + (1 - 2 * in->away) * (v - floor(v));
    if (in->dtype == TN_BOOL) return floor(v + 0.5) != 0;
    if (!tn_dtype_is_float(in->dtype)) return floor(v + 0.5);
    if (in->dtype == TN_F64) return v;
    if (in->dtype == TN_F32) return (double)(float)v;
    int e;
    double m = frexp(v, &e); /* eight bits: what bf16 and f16 both have */
    double rounded = ldexp(rint(ldexp(m, 8)), e - 8);
    return in->dtype == TN_F16 ? (double)kir_from_f16(kir_to_f16((float)rounded)) : rounded; /* small ones have fewer */
}

static int64_t case_count_of(const tn_case_input *in) { return tn_product(in->shape, in->rank); }

/* Where the f16 factors of a block stand, and the greatest number that each is multiplied with. */
static const struct {
    int scale_at, minimum_at; /* bytes; -1: there is none */
    double scale_span, minimum_span;
} block_rows[TN_DTYPE_COUNT] = {
    [TN_Q4_0] = {0, -1, 8, 0},      [TN_Q4_1] = {0, 2, 15, 1},   [TN_Q5_0] = {0, -1, 16, 0},
    [TN_Q5_1] = {0, 2, 31, 1},      [TN_Q8_0] = {0, -1, 128, 0}, [TN_Q2_K] = {80, 82, 45, 15},
    [TN_Q3_K] = {108, -1, 128, 0},  [TN_Q4_K] = {0, 2, 945, 63}, [TN_Q5_K] = {0, 2, 1953, 63},
    [TN_Q6_K] = {208, -1, 4096, 0}, [TN_Q8_X] = {0, -1, 128, 0},
};

static void put_half(uint8_t *at, double v) {
    uint16_t bits = kir_to_f16((float)v);
    memcpy(at, &bits, sizeof bits);
}

void tn_case_blocks(const tn_case_input *in, uint64_t seed, void *out) {
    size_t size = tn_dtype_size(in->dtype), bytes = tn_dtype_bytes(in->dtype, case_count_of(in));
    uint8_t *at = out;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(uniform(seed, i) * 256);
    for (size_t i = 0; i < bytes; i += size) {
        double scale = uniform(seed + 1, i) + 0.25, minimum = uniform(seed + 2, i) - 0.5;
        if (in->dtype == TN_Q8_X) {
            float factors[2] = {(float)scale / 128, (float)minimum / 128};
            memcpy(at + i, factors, sizeof factors);
            continue;
        }
        put_half(at + i + block_rows[in->dtype].scale_at, scale / block_rows[in->dtype].scale_span);
        if (block_rows[in->dtype].minimum_at < 0) continue;
        put_half(at + i + block_rows[in->dtype].minimum_at, minimum / block_rows[in->dtype].minimum_span);
    }
}

static void block_values(const tn_case_input *in, uint64_t seed, double *out) {
    enum { MOST = 256 };
    int64_t block = tn_dtype_block(in->dtype), count = case_count_of(in);
    uint8_t *blocks = tn_mem_alloc(tn_dtype_bytes(in->dtype, count));
    float values[MOST];
    if (blocks) tn_case_blocks(in, seed, blocks);
    for (int64_t i = 0; i < count && blocks; i += block) {
        tn_decode_blocks(in->dtype, blocks + (size_t)(i / block) * tn_dtype_size(in->dtype), 1, values);
        for (int64_t k = 0; k < block; k++)
            out[i + k] = (double)values[k];
    }
    tn_mem_free(blocks);
}

void tn_case_values(const tn_case_input *in, uint64_t seed, double *out) {
    int64_t count = case_count_of(in);
    if (tn_dtype_is_quantized(in->dtype)) {
        block_values(in, seed, out);
        return;
    }
    bool whole = !tn_dtype_is_float(in->dtype);
    for (int64_t i = 0; i < count; i++) {
        double u = uniform(seed, (uint64_t)i);
        /* Floats: one in each of `count` equal parts of the domain, so that no two are nearly equal; then shuffled. */
        out[i] = whole ? in->low + floor(u * (in->high - in->low + 1))
                       : in_domain(in, ((double)i + 0.25 + 0.5 * u) / (double)count);
    }
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)(uniform(seed + 77, (uint64_t)i) * (double)(i + 1));
        double v = out[i];
        out[i] = out[j];
        out[j] = v;
    }
    int64_t columns = in->rank ? in->shape[in->rank - 1] : 1, rows = in->rank > 1 ? in->shape[in->rank - 2] : 1;
    for (int64_t i = 0; i < count; i++)
        out[i] = fit(in, out[i] + (i % columns == i / columns % rows ? in->diagonal : 0));
}

static void store_case(tn_dtype t, double v, void *to, int64_t i) {
    switch (t) {
    case TN_F32: ((float *)to)[i] = (float)v; break;
    case TN_F64: ((double *)to)[i] = v; break;
    case TN_I32: ((int32_t *)to)[i] = (int32_t)v; break;
    case TN_I64: ((int64_t *)to)[i] = (int64_t)v; break;
    case TN_U32: ((uint32_t *)to)[i] = (uint32_t)v; break;
    case TN_U64: ((uint64_t *)to)[i] = (uint64_t)v; break;
    case TN_F16: ((uint16_t *)to)[i] = kir_to_f16((float)v); break;
    case TN_BF16: ((uint16_t *)to)[i] = kir_to_bf16((float)v); break;
    case TN_I16: ((int16_t *)to)[i] = (int16_t)v; break;
    case TN_U16: ((uint16_t *)to)[i] = (uint16_t)v; break;
    case TN_I8: ((int8_t *)to)[i] = (int8_t)v; break;
    default: ((uint8_t *)to)[i] = (uint8_t)v; break;
    }
}

void tn_case_store(tn_dtype dtype, const double *values, int64_t count, void *out) {
    for (int64_t i = 0; i < count; i++)
        store_case(dtype, values[i], out, i);
}

/* The distance of neighbouring numbers at v. */
static double unit_at(tn_dtype t, double v) {
    static const struct {
        int bits, least; /* of the significand; exponent of the least normal number */
    } formats[TN_PLAIN_DTYPES] = {
        [TN_F32] = {24, -126}, [TN_F64] = {53, -1022}, [TN_F16] = {11, -14}, [TN_BF16] = {8, -126}};
    int e = formats[t].least + 1;
    if (fabs(v) >= ldexp(1, formats[t].least)) frexp(v, &e);
    return ldexp(1, e - formats[t].bits);
}

bool tn_case_allows(const tn_case *c, tn_dtype result, double got, double want) {
    enum { F64_SHRINKS = 28 }; /* f64 has 29 bits more: its tolerances are smaller by nearly as much */
    if (!tn_dtype_is_float(result)) return got == want;
    if (want != want || got != got) return want != want && got != got;
    double rounded = result == TN_F64 ? want : (double)(float)want;
    if (got == rounded) return true;
    if (isinf(rounded) || isinf(got)) return false;
    double shrink = result == TN_F64 ? ldexp(1, -F64_SHRINKS) : 1;
    double allowed = c->relative * shrink * fabs(want) + c->absolute * shrink + c->absolute_ulps * unit_at(result, 1);
    double ulps = c->ulps > 0 ? c->ulps : 1;
    allowed = fmax(allowed, (result == TN_F64 && ulps < 4 ? 4 : ulps) * unit_at(result, want));
    return fabs(got - want) <= allowed;
}
