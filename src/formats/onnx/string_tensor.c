/* string_tensor.c — tensors of text on the host: moved as numbers, compared as ranks; and the sort that both need. */
#include <string.h>

#include "formats/onnx/model.h"
#include "formats/onnx/operator_support.h"

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
        tn_mem_free(order);
        tn_mem_free(other);
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
    tn_mem_free(read);
    tn_mem_free(texts);
    return v ? onnx_put_value(c, k, v) : status != TN_OK ? status : TN_ERR_MEMORY;
}

static tn_status move_texts(onnx_call *c, moving *m, onnx_value **out, tn_status (*row)(onnx_call *c)) {
    onnx_call inner = *c;
    inner.in = m->in;
    inner.out = out;
    for (int i = 0; i < c->in_count; i++) {
        m->in[i] = c->in[i];
        if (c->in[i] && c->in[i]->kind == ONNX_STRINGS) TRY(number_texts(m, i, c->in[i]));
    }
    TRY(row(&inner));
    for (int k = 0; k < c->out_count; k++)
        if (out[k]) TRY(put_texts(c, k, m, out[k]));
    return TN_OK;
}

tn_status onnx_moved(onnx_call *c, tn_status (*row)(onnx_call *c)) {
    bool any = false;
    for (int i = 0; i < c->in_count; i++)
        any = any || (c->in[i] && c->in[i]->kind == ONNX_STRINGS);
    if (!any) return row(c);
    moving m = {.in = tn_mem_zalloc((size_t)c->in_count, sizeof(onnx_value *)),
                .mine = tn_mem_zalloc((size_t)c->in_count, sizeof(bool))};
    onnx_value **out = tn_mem_zalloc((size_t)c->out_count, sizeof(onnx_value *));
    tn_status status = m.in && m.mine && out ? move_texts(c, &m, out, row) : TN_ERR_MEMORY;
    for (int i = 0; m.mine && i < c->in_count; i++)
        if (m.mine[i]) onnx_value_release(m.in[i]);
    for (int k = 0; out && k < c->out_count; k++)
        onnx_value_release(out[k]);
    tn_mem_free(m.in);
    tn_mem_free(m.mine);
    tn_mem_free(m.texts);
    tn_mem_free(out);
    return status;
}
