/* onnx_text.c — ONNX: operators on tensors of text, all on the host. */
#include <stdlib.h>
#include <string.h>

#include "onnx/model.h"
#include "onnx/onnx.h"
#include "onnx/operator_support.h"

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Merges order[from … middle) and order[middle … to) into out. */
static void merge_strings(const int64_t *order, int64_t *out, int64_t from, int64_t middle, int64_t to,
                          bool (*before)(const void *data, int64_t a, int64_t b), const void *data) {
    int64_t a = from, b = middle;
    for (int64_t i = from; i < to; i++) {
        bool second = a == middle || (b < to && before(data, order[b], order[a]));
        out[i] = second ? order[b++] : order[a++];
    }
}

tn_status onnx_sort(int64_t count, bool (*before)(const void *data, int64_t a, int64_t b), const void *data,
                    int64_t **out) {
    int64_t *order = tn_mem_zalloc((size_t)count, sizeof *order), *other = tn_mem_zalloc((size_t)count, sizeof *other);
    if (!order || !other) {
        tn_mem_free_each(order, other);
        return TN_ERR_MEMORY;
    }
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t from = 0; from < count; from += 2 * width)
            merge_strings(order, other, from, tn_min64(from + width, count), tn_min64(from + 2 * width, count), before,
                          data);
        int64_t *swap = order;
        order = other;
        other = swap;
    }
    tn_mem_free(other);
    *out = order;
    return TN_OK;
}

static int compare_texts(onnx_text a, onnx_text b) {
    size_t both = a.size < b.size ? a.size : b.size;
    int order = both ? memcmp(a.at, b.at, both) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}
static bool text_before(const void *data, int64_t a, int64_t b) {
    const onnx_text *texts = data;
    return compare_texts(texts[a], texts[b]) < 0;
}

tn_status onnx_text_ranks(const onnx_text *texts, int64_t count, int64_t **out) {
    int64_t *order, *ranks = tn_mem_zalloc((size_t)count, sizeof *ranks);
    tn_status status = ranks ? onnx_sort(count, text_before, texts, &order) : TN_ERR_MEMORY;
    if (status != TN_OK) {
        tn_mem_free(ranks);
        return status;
    }
    for (int64_t i = 1; i < count; i++)
        ranks[order[i]] = ranks[order[i - 1]] + (compare_texts(texts[order[i - 1]], texts[order[i]]) != 0);
    tn_mem_free(order);
    *out = ranks;
    return TN_OK;
}

/* ---- moved ------------------------------------------------------------------------------------------------------- */

/* Texts from several inputs in one list; each input becomes the numbers of its texts there. Number 0 is the empty
 * text: what padding with 0 and indices that lead nowhere yield. */
typedef struct moving {
    onnx_text *texts;
    int64_t count;
    onnx_value **in;
    bool *mine; /* made here */
} moving;

static tn_status number_texts(moving *m, int i, const onnx_value *v) {
    onnx_text *grown = tn_mem_realloc(m->texts, (size_t)(m->count + v->count + 1) * sizeof *grown);
    if (!grown) return TN_ERR_MEMORY;
    m->texts = grown;
    if (m->count == 0) m->texts[m->count++] = (onnx_text){"", 0};
    if (v->count) memcpy(m->texts + m->count, v->strings, (size_t)v->count * sizeof *v->strings);
    int64_t first = m->count;
    m->count += v->count;
    tn_tensor *numbers = tn_arange((double)first, (double)m->count, 1, TN_I64);
    m->in[i] = onnx_value_tensor(tn_reshape(numbers, v->shape, v->rank), ONNX_INT64);
    m->mine[i] = m->in[i] != NULL;
    if (m->in[i]) m->in[i]->fixed = v->fixed;
    return m->in[i] ? TN_OK : TN_ERR_MEMORY;
}

/* The texts that output k's numbers say. */
static tn_status put_texts(onnx_call *c, int k, const moving *m, onnx_value *numbers) {
    const tn_tensor *t = numbers->tensor;
    if (c->fixed != ONNX_CONSTANT) c->run->varied = true; /* the host computes: nothing that a graph could replay */
    int64_t count = tn_numel(t), *read = tn_mem_zalloc((size_t)count, sizeof *read);
    onnx_text *texts = tn_mem_zalloc((size_t)count, sizeof *texts);
    tn_status status = read && texts ? tn_read(t, read, (size_t)count * sizeof *read) : TN_ERR_MEMORY;
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        texts[i] = m->texts[read[i] >= 0 && read[i] < m->count ? read[i] : 0];
    onnx_value *v = status == TN_OK ? onnx_value_strings(texts, tn_shape(t), tn_rank(t)) : NULL;
    tn_mem_free_each(read, texts);
    return v ? onnx_put_value(c, k, v) : status != TN_OK ? status : TN_ERR_MEMORY;
}

static tn_status move_texts(onnx_call *c, moving *m, onnx_value **out) {
    onnx_call inner = *c;
    inner.in = m->in;
    inner.out = out;
    for (int i = 0; i < c->in_count; i++) {
        m->in[i] = c->in[i];
        if (c->in[i] && c->in[i]->kind == ONNX_STRINGS) TRY(number_texts(m, i, c->in[i]));
    }
    TRY(c->row->run(&inner));
    for (int k = 0; k < c->out_count; k++)
        if (out[k]) TRY(put_texts(c, k, m, out[k]));
    return TN_OK;
}

tn_status onnx_run_row(onnx_call *c) {
    bool any = false;
    for (int i = 0; c->row->moves && i < c->in_count; i++)
        any = any || (c->in[i] && c->in[i]->kind == ONNX_STRINGS);
    if (!any) return c->row->run(c);
    moving m = {.in = tn_mem_zalloc((size_t)c->in_count, sizeof(onnx_value *)),
                .mine = tn_mem_zalloc((size_t)c->in_count, sizeof(bool))};
    onnx_value **out = tn_mem_zalloc((size_t)c->out_count, sizeof(onnx_value *));
    tn_status status = m.in && m.mine && out ? move_texts(c, &m, out) : TN_ERR_MEMORY;
    for (int i = 0; m.mine && i < c->in_count; i++)
        if (m.mine[i]) onnx_value_release(m.in[i]);
    for (int k = 0; out && k < c->out_count; k++)
        onnx_value_release(out[k]);
    tn_mem_free_each(m.in, m.mine, m.texts, out);
    return status;
}

/* ==== operators =================================================================================================== */

enum { MOST_TEXTS = 1 << 24 };

static tn_status take_texts(const onnx_call *c, int i, const onnx_value **out) {
    *out = onnx_has(c, i) ? c->in[i] : NULL;
    if (*out && (*out)->kind == ONNX_STRINGS) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "%s: input %d is not a tensor of strings", c->row->name, i);
}

/* ---- texts in the making ----------------------------------------------------------------------------------------- */

/* Texts that are written one after the other; where each ends is known when all are there. */
typedef struct maker {
    tn_str bytes;
    size_t *ends;
    size_t count, room;
} maker;

static tn_status end_text(maker *m) {
    if (m->bytes.failed) return tn_fail(TN_ERR_MEMORY, "out of memory for %zu bytes of text", m->bytes.length);
    if (m->count >= MOST_TEXTS) return tn_fail(TN_ERR_UNSUPPORTED, "more than %d strings", MOST_TEXTS);
    TRY(tn_mem_reserve(&m->ends, &m->room, m->count + 1, sizeof *m->ends));
    m->ends[m->count++] = m->bytes.length;
    return TN_OK;
}

static tn_status add_text(maker *m, onnx_text t) {
    if (t.size) tn_str_addn(&m->bytes, t.at, t.size);
    return end_text(m);
}

/* Hands the texts out as output k and lets go of them; `status` is what became of the making. */
static tn_status text_put_texts(onnx_call *c, int k, maker *m, const int64_t *shape, int rank, tn_status status) {
    onnx_text *list = status == TN_OK ? tn_mem_zalloc(m->count, sizeof *list) : NULL;
    onnx_value *v = NULL;
    const char *bytes = tn_str_text(&m->bytes);
    for (size_t i = 0; list && i < m->count; i++) {
        size_t from = i ? m->ends[i - 1] : 0;
        list[i] = (onnx_text){bytes + from, m->ends[i] - from};
    }
    if (list) v = onnx_value_strings(list, shape, rank);
    if (v)
        status = onnx_put_value(c, k, v);
    else if (status == TN_OK)
        status = tn_error_code();
    tn_mem_free_each(list, m->ends);
    tn_str_free(&m->bytes);
    return status;
}

/* ---- StringConcat ------------------------------------------------------------------------------------------------ */

/* How far apart the texts of v lie along the dims of `shape`, to which v is broadcast. */
static tn_status find_strides(const onnx_value *v, const int64_t *shape, int rank, int64_t *strides) {
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        int own = d - (rank - v->rank);
        int64_t extent = own < 0 ? 1 : v->shape[own];
        if (extent != 1 && extent != shape[d])
            return tn_fail(TN_ERR_SHAPE, "StringConcat: %lld strings and %lld strings do not fit together",
                           (long long)extent, (long long)shape[d]);
        strides[d] = extent == 1 ? 0 : stride;
        stride *= extent;
    }
    return TN_OK;
}

static tn_status concat(const onnx_value *const *v, const int64_t *shape, int rank, maker *m) {
    int64_t strides[2][TN_MAX_RANK], count = 1;
    for (int k = 0; k < 2; k++)
        TRY(find_strides(v[k], shape, rank, strides[k]));
    for (int d = 0; d < rank; d++)
        if (tn_mul_overflow(count, shape[d], &count) || count > MOST_TEXTS)
            return tn_fail(TN_ERR_UNSUPPORTED, "StringConcat: more than %d strings", MOST_TEXTS);
    for (int64_t i = 0; i < count; i++) {
        int64_t at[2] = {0, 0}, rest = i;
        for (int d = rank - 1; d >= 0; rest /= shape[d--])
            for (int k = 0; k < 2; k++)
                at[k] += rest % shape[d] * strides[k][d];
        onnx_text first = v[0]->strings[at[0]];
        if (first.size) tn_str_addn(&m->bytes, first.at, first.size);
        TRY(add_text(m, v[1]->strings[at[1]]));
    }
    return TN_OK;
}

static tn_status run_concat(onnx_call *c) {
    const onnx_value *v[2];
    int64_t shape[TN_MAX_RANK];
    maker m = {0};
    for (int k = 0; k < 2; k++)
        TRY(take_texts(c, k, &v[k]));
    const onnx_value *longer = v[0]->rank >= v[1]->rank ? v[0] : v[1], *other = longer == v[0] ? v[1] : v[0];
    int rank = longer->rank;
    for (int d = 0; d < rank; d++) {
        int own = d - (rank - other->rank);
        shape[d] = longer->shape[d] == 1 && own >= 0 ? other->shape[own] : longer->shape[d];
    }
    return text_put_texts(c, 0, &m, shape, rank, concat(v, shape, rank, &m));
}

/* ---- StringSplit ------------------------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Where the separator that begins at or after `at` lies: [at, *end). No more separator: both at `last`. */
static const char *find_separator(const char *at, const char *last, onnx_text separator, const char **end) {
    if (!separator.size) {
        while (at < last && !is_blank(*at))
            at++;
        for (*end = at; *end < last && is_blank(**end);)
            ++*end;
        return at;
    }
    for (; (size_t)(last - at) >= separator.size; at++) {
        if (memcmp(at, separator.at, separator.size)) continue;
        *end = at + separator.size;
        return at;
    }
    return *end = last;
}

/* Adds the pieces of a text. `most`: separators that count. */
static tn_status split_text(maker *m, onnx_text text, onnx_text separator, int64_t most, int64_t *pieces) {
    const char *at = text.at, *last = text.at + text.size, *end;
    *pieces = 0;
    while (!separator.size && at < last && is_blank(*at))
        at++;
    if (!separator.size && at == last) return TN_OK;
    for (;;) {
        const char *stop = *pieces < most ? find_separator(at, last, separator, &end) : (end = last);
        TRY(add_text(m, (onnx_text){at, (size_t)(stop - at)}));
        ++*pieces;
        bool ended = stop == last || (end == last && !separator.size);
        if (ended) return TN_OK;
        at = end;
    }
}

static tn_status split_all(const onnx_call *c, const onnx_value *v, int64_t *counts, maker *flat) {
    onnx_text separator = onnx_string(c, "delimiter", "");
    int64_t most = onnx_int(c, "maxsplit", INT64_MAX);
    for (int64_t i = 0; i < v->count; i++)
        TRY(split_text(flat, v->strings[i], separator, most, &counts[i]));
    return TN_OK;
}

/* The pieces of all texts, one after the other, as rows of equal length. */
static tn_status pad_rows(const maker *flat, const int64_t *counts, int64_t rows, int64_t width, maker *m) {
    size_t next = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < width; k++) {
            onnx_text piece = {"", 0};
            if (k < counts[i]) {
                size_t from = next ? flat->ends[next - 1] : 0;
                piece = (onnx_text){tn_str_text(&flat->bytes) + from, flat->ends[next++] - from};
            }
            TRY(add_text(m, piece));
        }
    }
    return TN_OK;
}

static tn_status run_split(onnx_call *c) {
    const onnx_value *v;
    int64_t shape[TN_MAX_RANK + 1], width = 0;
    maker flat = {0}, padded = {0};
    TRY(take_texts(c, 0, &v));
    if (v->rank + 1 > TN_MAX_RANK) return onnx_refuse(c, "an input of rank %d is not supported", v->rank);
    int64_t *counts = tn_mem_zalloc((size_t)v->count, sizeof *counts);
    tn_status status = counts ? split_all(c, v, counts, &flat) : tn_error_code();
    for (int64_t i = 0; i < v->count && counts; i++)
        width = tn_max64(width, counts[i]);
    for (int d = 0; d < v->rank; d++)
        shape[d] = v->shape[d];
    shape[v->rank] = width;
    if (status == TN_OK) status = pad_rows(&flat, counts, v->count, width, &padded);
    status = text_put_texts(c, 0, &padded, shape, v->rank + 1, status);
    if (status == TN_OK && onnx_wants(c, 1)) status = onnx_put(c, 1, tn_from_data(counts, shape, v->rank, TN_I64));
    tn_mem_free_each(counts, flat.ends);
    tn_str_free(&flat.bytes);
    return status;
}

/* ---- RegexFullMatch ---------------------------------------------------------------------------------------------- */

static tn_status run_match(onnx_call *c) {
    const onnx_value *v;
    onnx_regex *r;
    TRY(take_texts(c, 0, &v));
    TRY(onnx_regex_new(onnx_string(c, "pattern", ""), &r));
    bool *matches = tn_mem_zalloc((size_t)v->count, sizeof *matches);
    for (int64_t i = 0; i < v->count && matches; i++)
        matches[i] = onnx_regex_matches(r, v->strings[i]);
    tn_status status = matches ? onnx_put(c, 0, tn_from_data(matches, v->shape, v->rank, TN_BOOL)) : tn_error_code();
    tn_mem_free(matches);
    onnx_regex_free(r);
    return status;
}

/* ---- StringNormalizer -------------------------------------------------------------------------------------------- */

/* Capital letters of the alphabets that have them one for one. shift 1: capital and small letter take turns. */
static const struct {
    uint32_t from, to, shift;
} capitals[] = {
    {'A', 'Z', 32},     {0xc0, 0xd6, 32},    {0xd8, 0xde, 32},    {0x100, 0x12f, 1},  {0x132, 0x137, 1},
    {0x139, 0x148, 1},  {0x14a, 0x177, 1},   {0x179, 0x17e, 1},   {0x391, 0x3a1, 32}, {0x3a3, 0x3a9, 32},
    {0x400, 0x40f, 80}, {0x410, 0x42f, 32},  {0x460, 0x481, 1},   {0x48a, 0x4bf, 1},  {0x4d0, 0x52f, 1},
    {0x531, 0x556, 48}, {0x1e00, 0x1e95, 1}, {0x1ea0, 0x1eff, 1},
};

static uint32_t change_case(uint32_t c, bool lower) {
    for (size_t i = 0; i < TN_COUNT(capitals); i++) {
        uint32_t from = capitals[i].from, shift = capitals[i].shift;
        if (c < from || c > capitals[i].to + (shift == 1 ? 0 : shift)) continue;
        if (shift == 1) return from + ((c - from) & ~1u) + lower;
        if (lower && c <= capitals[i].to) return c + shift;
        if (!lower && c >= from + shift) return c - shift;
    }
    return c;
}

/* Letters of one and two bytes, and 1e00 to 1eff; no change leaves these lengths. */
static void add_in_case(tn_str *out, onnx_text t, bool lower) {
    for (size_t i = 0; i < t.size;) {
        const uint8_t *p = (const uint8_t *)t.at + i;
        size_t left = t.size - i;
        bool two = p[0] >= 0xc2 && p[0] < 0xe0 && left > 1, three = p[0] == 0xe1 && left > 2;
        uint32_t c = two     ? (p[0] & 31u) << 6 | (p[1] & 63u)
                     : three ? (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u)
                             : p[0];
        uint32_t to = two || three || c < 0x80 ? change_case(c, lower) : c;
        char bytes[3] = {(char)to, 0, 0};
        if (two) bytes[0] = (char)(0xc0 | to >> 6);
        if (three) bytes[0] = (char)0xe1, bytes[1] = (char)(0x80 | (to >> 6 & 63));
        size_t n = three ? 3 : two ? 2 : 1;
        if (n > 1) bytes[n - 1] = (char)(0x80 | (to & 63));
        tn_str_addn(out, bytes, n);
        i += n;
    }
}

static bool equal(const char *a, size_t a_size, onnx_text b) {
    return a_size == b.size && (!b.size || !memcmp(a, b.at, b.size));
}

/* Whether the text is among the words, both in lower case where `fold`. */
static tn_status is_word(const onnx_attribute *words, onnx_text t, bool fold, bool *found) {
    tn_str a = {0}, b = {0};
    *found = false;
    if (fold) add_in_case(&a, t, true);
    for (size_t i = 0; words && i < words->count && !*found; i++) {
        b.length = 0;
        if (fold) add_in_case(&b, words->strings[i], true);
        *found = fold ? equal(a.text, a.length, (onnx_text){b.text, b.length}) : equal(t.at, t.size, words->strings[i]);
    }
    bool failed = a.failed || b.failed;
    tn_str_free(&a);
    tn_str_free(&b);
    return failed ? tn_fail(TN_ERR_MEMORY, "StringNormalizer: out of memory for a string") : TN_OK;
}

static tn_status normalize(const onnx_call *c, const onnx_value *v, maker *m) {
    onnx_text change = onnx_string(c, "case_change_action", "NONE");
    const onnx_attribute *words = onnx_find_list(c, "stopwords", ONNX_KIND_STRINGS);
    bool lower = onnx_is(change, "LOWER"), upper = onnx_is(change, "UPPER");
    bool fold = !onnx_int(c, "is_case_sensitive", 0);
    for (int64_t i = 0; i < v->count; i++) {
        bool stop;
        TRY(is_word(words, v->strings[i], fold, &stop));
        if (stop) continue;
        if (!lower && !upper) {
            TRY(add_text(m, v->strings[i]));
            continue;
        }
        add_in_case(&m->bytes, v->strings[i], lower);
        TRY(end_text(m));
    }
    return m->count ? TN_OK : end_text(m); /* nothing left: one empty text */
}

static tn_status run_normalize(onnx_call *c) {
    const onnx_value *v;
    maker m = {0};
    TRY(take_texts(c, 0, &v));
    if (v->rank != 1 && !(v->rank == 2 && v->shape[0] == 1)) return onnx_refuse(c, "the shape must be [C] or [1,C]");
    tn_status status = normalize(c, v, &m);
    int64_t shape[2] = {1, (int64_t)m.count};
    return text_put_texts(c, 0, &m, shape + (v->rank == 1), v->rank, status);
}

/* ---- TfIdfVectorizer --------------------------------------------------------------------------------------------- */

/* What is counted: `length` neighbours that are equal to these. Words are numbers here: their places among the sorted
 * words of the pool. */
typedef struct gram {
    const int64_t *items;
    int64_t length, place; /* in the result */
    float weight;
} gram;

typedef struct vectors {
    int64_t *pool, *row_items, *key; /* the pool's and the input's items as numbers */
    const onnx_text **words;         /* sorted; NULL where items are numbers */
    gram *grams;                     /* sorted */
    int64_t pool_count, word_count, gram_count, width;
    int64_t least, most, skips;
    float *out;
} vectors;

static int by_text(const onnx_text *a, const onnx_text *b) {
    size_t size = a->size < b->size ? a->size : b->size;
    int order = size ? memcmp(a->at, b->at, size) : 0;
    return order ? order : (a->size > b->size) - (a->size < b->size);
}
static int by_word(const void *a, const void *b) { return by_text(*(onnx_text *const *)a, *(onnx_text *const *)b); }

static int by_gram(const void *a, const void *b) {
    const gram *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    for (int64_t i = 0; i < x->length; i++)
        if (x->items[i] != y->items[i]) return x->items[i] < y->items[i] ? -1 : 1;
    return 0;
}

/* The number of a word; -1 for one that is not in the pool. */
static int64_t word_number(const vectors *v, const onnx_text *word) {
    const onnx_text **at = bsearch(&word, v->words, (size_t)v->word_count, sizeof *v->words, by_word);
    return at ? at - v->words : -1;
}

static tn_status number_pool(const onnx_call *c, vectors *v) {
    const onnx_attribute *texts = onnx_find_list(c, "pool_strings", ONNX_KIND_STRINGS),
                         *ints = onnx_find_list(c, "pool_int64s", ONNX_KIND_INTS);
    const onnx_attribute *pool = texts ? texts : ints;
    if (!pool) return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: the pool is missing");
    v->pool_count = (int64_t)pool->count;
    v->pool = tn_mem_zalloc(pool->count, sizeof *v->pool);
    if (!v->pool) return tn_error_code();
    if (!texts) {
        if (pool->count) memcpy(v->pool, ints->ints, pool->count * sizeof *v->pool);
        return TN_OK;
    }
    v->words = tn_mem_zalloc(pool->count, sizeof *v->words);
    if (!v->words) return tn_error_code();
    for (size_t i = 0; i < pool->count; i++)
        v->words[i] = &texts->strings[i];
    if (pool->count) qsort(v->words, pool->count, sizeof *v->words, by_word);
    for (size_t i = 0; i < pool->count; i++)
        if (!v->word_count || by_text(v->words[v->word_count - 1], v->words[i]))
            v->words[v->word_count++] = v->words[i];
    for (size_t i = 0; i < pool->count; i++)
        v->pool[i] = word_number(v, &texts->strings[i]);
    return TN_OK;
}

static tn_status gather_grams(const onnx_call *c, vectors *v) {
    int lengths = 0, places = 0;
    const int64_t *begins = onnx_ints(c, "ngram_counts", &lengths), *place = onnx_ints(c, "ngram_indexes", &places);
    const onnx_attribute *weights = onnx_find_list(c, "weights", ONNX_KIND_FLOATS);
    bool weighted = weights && weights->count && !onnx_is(onnx_string(c, "mode", "TF"), "TF");
    int64_t least = onnx_int(c, "min_gram_length", 1), most = onnx_int(c, "max_gram_length", 1);
    if (weighted && weights->count != (size_t)places)
        return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: %zu weights for %d n-grams", weights->count, places);
    if (least > most || most > lengths)
        return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: n-grams of %lld to %lld words, but ngram_counts has %d lengths",
                       (long long)least, (long long)most, lengths);
    v->grams = tn_mem_zalloc((size_t)places, sizeof *v->grams);
    if (!v->grams) return tn_error_code();
    for (int n = 1; n <= lengths; n++) {
        int64_t from = begins[n - 1], to = n < lengths ? begins[n] : v->pool_count;
        if (from < 0 || to < from || to > v->pool_count || (to - from) % n)
            return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: ngram_counts do not fit the pool");
        for (; from < to; from += n) {
            int64_t i = v->gram_count++;
            if (i >= places || place[i] < 0 || place[i] >= MOST_TEXTS)
                return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: ngram_indexes do not fit the pool");
            v->grams[i] = (gram){v->pool + from, n, place[i], weighted ? weights->floats[i] : 1};
            v->width = tn_max64(v->width, place[i] + 1);
        }
    }
    if (v->gram_count != places)
        return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: %d ngram_indexes for %lld n-grams", places,
                       (long long)v->gram_count);
    if (v->gram_count) qsort(v->grams, (size_t)v->gram_count, sizeof *v->grams, by_gram);
    return TN_OK;
}

static tn_status number_input(const onnx_call *c, vectors *v, int64_t count) {
    if (!v->words) return onnx_read_ints(c, 0, &v->row_items, &count, MOST_TEXTS);
    v->row_items = tn_mem_zalloc((size_t)count, sizeof *v->row_items);
    if (!v->row_items) return tn_error_code();
    for (int64_t i = 0; i < count; i++)
        v->row_items[i] = word_number(v, &c->in[0]->strings[i]);
    return TN_OK;
}

static void count_grams(const vectors *v, const int64_t *items, int64_t count, float *out) {
    for (int64_t n = v->least; n <= v->most; n++) {
        for (int64_t step = 1; step <= (n == 1 ? 1 : v->skips + 1); step++) {
            for (int64_t at = 0; at + (n - 1) * step < count; at++) {
                for (int64_t k = 0; k < n; k++)
                    v->key[k] = items[at + k * step];
                gram key = {v->key, n, 0, 0};
                const gram *found = bsearch(&key, v->grams, (size_t)v->gram_count, sizeof key, by_gram);
                if (found) out[found->place]++;
            }
        }
    }
}

static tn_status vectorize(onnx_call *c, vectors *v, const int64_t *shape, int rank) {
    int64_t rows = rank == 2 ? shape[0] : 1, count = rank == 0 ? 1 : shape[rank - 1], total;
    onnx_text mode = onnx_string(c, "mode", "TF");
    v->least = onnx_int(c, "min_gram_length", 1);
    v->most = tn_min64(onnx_int(c, "max_gram_length", 1), count);
    v->skips = tn_min64(onnx_int(c, "max_skip_count", 0), count);
    if (v->least < 1 || v->skips < 0)
        return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: the lengths of n-grams must be at least 1");
    TRY(number_pool(c, v));
    TRY(gather_grams(c, v));
    v->most = tn_min64(v->most, v->gram_count ? v->grams[v->gram_count - 1].length : 0);
    TRY(number_input(c, v, rows * count));
    if (tn_mul_overflow(rows, v->width, &total) || total > MOST_TEXTS) return onnx_refuse(c, "the result is too large");
    v->out = tn_mem_zalloc((size_t)total, sizeof *v->out);
    v->key = tn_mem_zalloc((size_t)count, sizeof *v->key);
    if (!v->out || !v->key) return tn_error_code();
    for (int64_t i = 0; i < rows; i++)
        count_grams(v, v->row_items + i * count, count, v->out + i * v->width);
    bool once = onnx_is(mode, "IDF");
    for (int64_t i = 0; i < rows && !onnx_is(mode, "TF"); i++) {
        for (int64_t k = 0; k < v->gram_count; k++) {
            float *at = v->out + i * v->width + v->grams[k].place;
            *at = (once ? *at > 0 : *at) * v->grams[k].weight;
        }
    }
    int64_t result[2] = {rows, v->width};
    return onnx_put(c, 0, tn_from_data(v->out, result + (rank != 2), rank == 2 ? 2 : 1, TN_F32));
}

static tn_status run_vectorize(onnx_call *c) {
    vectors v = {0};
    const onnx_value *in = onnx_has(c, 0) ? c->in[0] : NULL;
    if (!in) return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: the input is missing");
    bool texts = in->kind == ONNX_STRINGS;
    if (texts != (onnx_find_list(c, "pool_strings", ONNX_KIND_STRINGS) != NULL))
        return tn_fail(TN_ERR_FORMAT, "TfIdfVectorizer: the input must have the type of the pool");
    const tn_tensor *x = texts ? NULL : onnx_in(c, 0);
    if (x) TRY(tn_status_of(x));
    int rank = texts ? in->rank : tn_rank(x);
    if (rank > 2) return onnx_refuse(c, "an input of rank %d is not supported", rank);
    tn_status status = vectorize(c, &v, texts ? in->shape : tn_shape(x), rank);
    void *all[] = {v.pool, v.row_items, v.key, v.words, v.grams, v.out};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_mem_free(all[i]);
    return status;
}

const onnx_op_row onnx_text_ops[] = {
    {"RegexFullMatch", 20, .run = run_match},       {"StringConcat", 20, .run = run_concat},
    {"StringNormalizer", 10, .run = run_normalize}, {"StringSplit", 20, .run = run_split},
    {"TfIdfVectorizer", 9, .run = run_vectorize},   {0},
};
