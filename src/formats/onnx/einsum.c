/* einsum.c — Einsum: an equation's letters name dimensions; what is repeated and not in the result is summed.
 *
 * Operands are joined from the left, two at a time. A letter of both that is wanted later is a batch dimension, one
 * that is not wanted is contracted, the others belong to one side: so each step is a transposed, reshaped product of
 * matrices. Letters are numbers here, those of an ellipsis ("...") come before all. */
#include <string.h>

#include "formats/onnx/operator_support.h"

enum { LETTERS = 26 + 26 + TN_MAX_RANK, FIRST_LETTER = TN_MAX_RANK };

/* A tensor and the letter of each of its dimensions. */
typedef struct term {
    tn_tensor *t;
    int rank;
    uint8_t letter[2 * TN_MAX_RANK];
} term;

static int letter_of(char ch) {
    if (ch >= 'a' && ch <= 'z') return FIRST_LETTER + ch - 'a';
    return ch >= 'A' && ch <= 'Z' ? FIRST_LETTER + 26 + ch - 'A' : -1;
}

/* One operand's part of the equation; the dims of its ellipsis get the last of the ellipsis' letters. rank −1: of the
 * result, whose ellipsis has `dots` dims. */
static tn_status read_term(const onnx_call *c, onnx_text text, int rank, int dots, term *out) {
    int named = 0;
    for (size_t i = 0; i < text.size; i++)
        named += letter_of(text.at[i]) >= 0;
    if (rank >= 0) dots = rank - named;
    out->rank = 0;
    for (size_t i = 0; i < text.size; i++) {
        int letter = letter_of(text.at[i]);
        bool ellipsis = text.size - i >= 3 && memcmp(text.at + i, "...", 3) == 0;
        if (text.at[i] == ' ') continue;
        if (letter < 0 && !ellipsis) return onnx_refuse(c, "'%c' in the equation", text.at[i]);
        if (out->rank + (ellipsis ? dots : 1) > TN_MAX_RANK || (ellipsis && dots < 0)) break;
        for (int d = 0; ellipsis && d < dots; d++)
            out->letter[out->rank++] = (uint8_t)(TN_MAX_RANK - dots + d);
        if (letter >= 0) out->letter[out->rank++] = (uint8_t)letter;
        if (ellipsis) i += 2;
    }
    if (rank >= 0 && out->rank != rank)
        return onnx_refuse(c, "'%.*s' does not name the %d dimensions of its operand", (int)text.size, text.at, rank);
    return TN_OK;
}

static int einsum_place_of(const term *x, int letter) {
    for (int d = 0; d < x->rank; d++)
        if (x->letter[d] == letter) return d;
    return -1;
}

static void drop_dim(term *x, int d) {
    memmove(x->letter + d, x->letter + d + 1, (size_t)(x->rank - d - 1));
    x->rank--;
}

/* A letter twice in one operand is its diagonal: rows of size + 1 elements, of which the first is taken. */
static void take_diagonals(term *x) {
    for (int a = 0; a < x->rank; a++)
        for (int b = x->rank - 1; b > a; b--) {
            if (x->letter[a] != x->letter[b]) continue;
            int64_t size = tn_size(x->t, b), index_shape[TN_MAX_RANK];
            for (int d = 0; d < x->rank; d++)
                index_shape[d] = d == a ? size : d == b ? 1 : tn_size(x->t, d);
            int64_t line[TN_MAX_RANK];
            for (int d = 0; d < x->rank; d++)
                line[d] = d == a ? size : 1;
            tn_tensor *index = tn_reshape(tn_arange(0, (double)size, 1, TN_I64), line, x->rank);
            x->t = tn_squeeze(tn_gather(x->t, b, tn_expand(index, index_shape, x->rank)), (int64_t[]){b}, 1);
            drop_dim(x, b);
        }
}

/* Sums over what nobody else names. */
static void sum_out(term *x, const bool *wanted) {
    int64_t dims[TN_MAX_RANK];
    int count = 0;
    for (int d = 0; d < x->rank; d++)
        if (!wanted[x->letter[d]]) dims[count++] = d;
    if (count == 0) return;
    tn_dtype t = tn_dtype_of(x->t);
    x->t = tn_cast(tn_sum(x->t, dims, count, false), t);
    for (int k = count - 1; k >= 0; k--)
        drop_dim(x, (int)dims[k]);
}

/* x's dims in the order of `letters`; extents of 1 where it has none of a letter. */
static tn_tensor *in_order(const term *x, const uint8_t *letters, int count) {
    int64_t dims[TN_MAX_RANK], shape[2 * TN_MAX_RANK];
    int rank = 0;
    for (int k = 0; k < count; k++) {
        int d = einsum_place_of(x, letters[k]);
        if (d >= 0) dims[rank++] = d;
        shape[k] = d < 0 ? 1 : tn_size(x->t, d);
    }
    tn_tensor *y = tn_permute(x->t, dims, rank);
    return rank == count ? y : tn_reshape(y, shape, count);
}

/* The letters of x that are (or are not) in y and wanted (or not), added to a list. */
static int select_letters(const term *x, const term *y, bool in_y, bool is_wanted, const bool *wanted, uint8_t *out) {
    int count = 0;
    for (int d = 0; d < x->rank; d++)
        if ((einsum_place_of(y, x->letter[d]) >= 0) == in_y && wanted[x->letter[d]] == is_wanted)
            out[count++] = x->letter[d];
    return count;
}

static int64_t extent_of(const term *x, const term *y, int letter) {
    int a = einsum_place_of(x, letter), b = einsum_place_of(y, letter);
    int64_t left = a < 0 ? 1 : tn_size(x->t, a), right = b < 0 ? 1 : tn_size(y->t, b);
    return left == 1 ? right : left;
}

/* x, with the letters of batch, own and contracted dims in this order, as [batch…, own, contracted]. */
static tn_tensor *as_matrices(const term *x, const term *y, const uint8_t *letters, int batch, int own, int summed) {
    int64_t shape[2 * TN_MAX_RANK], rows = 1, columns = 1;
    tn_tensor *t = in_order(x, letters, batch + own + summed);
    for (int k = 0; k < batch; k++)
        shape[k] = tn_size(t, k);
    for (int k = 0; k < own; k++)
        rows *= tn_size(t, batch + k);
    for (int k = 0; k < summed; k++) { /* an extent of 1 meets any */
        int64_t size = extent_of(x, y, letters[batch + own + k]);
        columns *= size;
        if (tn_size(t, batch + own + k) == size) continue;
        int64_t wide[TN_MAX_RANK];
        for (int d = 0; d < tn_rank(t); d++)
            wide[d] = d == batch + own + k ? size : tn_size(t, d);
        t = tn_expand(t, wide, tn_rank(t));
    }
    shape[batch] = rows;
    shape[batch + 1] = columns;
    return tn_reshape(t, shape, batch + 2);
}

/* Both in one, of the letters that are wanted. */
static tn_status contract(const onnx_call *c, term *x, const term *y, const bool *wanted) {
    uint8_t batch[TN_MAX_RANK], summed[TN_MAX_RANK], left[TN_MAX_RANK], right[TN_MAX_RANK], all[2 * TN_MAX_RANK];
    int n_batch = select_letters(x, y, true, true, wanted, batch);
    int n_summed = select_letters(x, y, true, false, wanted, summed);
    int n_left = select_letters(x, y, false, true, wanted, left);
    int n_right = select_letters(y, x, false, true, wanted, right);
    term r = {.rank = n_batch + n_left + n_right};
    if (r.rank > TN_MAX_RANK || n_batch + 2 > TN_MAX_RANK || n_batch + n_left + n_summed > TN_MAX_RANK ||
        n_batch + n_right + n_summed > TN_MAX_RANK)
        return onnx_refuse(c, "the equation needs tensors of rank %d on the way; at most %d", r.rank, TN_MAX_RANK);
    memcpy(r.letter, batch, (size_t)n_batch);
    memcpy(r.letter + n_batch, left, (size_t)n_left);
    memcpy(r.letter + n_batch + n_left, right, (size_t)n_right);
    if (n_summed == 0) { /* nothing to sum: a product element by element */
        r.t = tn_mul(in_order(x, r.letter, r.rank), in_order(y, r.letter, r.rank));
        *x = r;
        return TN_OK;
    }
    memcpy(all, batch, (size_t)n_batch);
    memcpy(all + n_batch, left, (size_t)n_left);
    memcpy(all + n_batch + n_left, summed, (size_t)n_summed);
    tn_tensor *a = as_matrices(x, y, all, n_batch, n_left, n_summed);
    memcpy(all + n_batch, right, (size_t)n_right);
    memcpy(all + n_batch + n_right, summed, (size_t)n_summed);
    tn_tensor *b = as_matrices(y, x, all, n_batch, n_right, n_summed);
    int64_t shape[TN_MAX_RANK];
    for (int k = 0; k < r.rank; k++)
        shape[k] = extent_of(x, y, r.letter[k]);
    r.t = tn_reshape(tn_matmul(a, tn_transpose(b, -1, -2)), shape, r.rank);
    *x = r;
    return TN_OK;
}

/* Without an arrow the result has the ellipsis, then each letter that occurs once, in alphabetical order. */
static void implicit_result(const int *uses, int dots, term *out) {
    out->rank = 0;
    for (int d = 0; d < dots; d++)
        out->letter[out->rank++] = (uint8_t)(TN_MAX_RANK - dots + d);
    for (int k = 0; k < 52 && out->rank < TN_MAX_RANK; k++) { /* capitals before small letters */
        int letter = FIRST_LETTER + (k < 26 ? 26 + k : k - 26);
        if (uses[letter] == 1) out->letter[out->rank++] = (uint8_t)letter;
    }
}

static onnx_text next_part(onnx_text *rest) {
    const char *end = rest->size ? memchr(rest->at, ',', rest->size) : NULL;
    onnx_text part = {rest->at, end ? (size_t)(end - rest->at) : rest->size};
    size_t used = part.size + (end != NULL);
    *rest = (onnx_text){rest->at + used, rest->size - used};
    return part;
}

static tn_status read_equation(const onnx_call *c, term *terms, term *result) {
    int uses[LETTERS] = {0}, dots = 0;
    onnx_text left = onnx_string(c, "equation", ""), right = {NULL, 0};
    for (size_t i = 0; i + 1 < left.size; i++)
        if (memcmp(left.at + i, "->", 2) == 0) {
            right = (onnx_text){left.at + i + 2, left.size - i - 2};
            left.size = i;
        }
    for (int i = 0; i < c->in_count; i++) {
        const tn_tensor *x;
        TRY(onnx_need(c, i, &x));
        if (i && left.size == 0 && tn_rank(x)) return onnx_refuse(c, "the equation names fewer operands");
        TRY(read_term(c, next_part(&left), tn_rank(x), 0, &terms[i]));
        terms[i].t = (tn_tensor *)(uintptr_t)x;
        int own = 0;
        for (int d = 0; d < terms[i].rank; d++) {
            uses[terms[i].letter[d]]++;
            own += terms[i].letter[d] < FIRST_LETTER;
        }
        dots = own > dots ? own : dots;
    }
    if (left.size) return onnx_refuse(c, "the equation names more operands than the node has");
    if (right.at) return read_term(c, right, -1, dots, result);
    implicit_result(uses, dots, result);
    return TN_OK;
}

tn_status onnx_einsum(onnx_call *c) {
    enum { MOST = 32 };
    term terms[MOST], result;
    if (c->in_count < 1 || c->in_count > MOST) return onnx_refuse(c, "%d operands; at most %d", c->in_count, MOST);
    TRY(read_equation(c, terms, &result));
    for (int i = 0; i < c->in_count; i++)
        take_diagonals(&terms[i]);
    term all = terms[0];
    for (int i = 0; i < c->in_count; i++) {
        bool wanted[LETTERS] = {0};
        for (int d = 0; d < result.rank; d++)
            wanted[result.letter[d]] = true;
        for (int k = i + 1; k < c->in_count; k++)
            for (int d = 0; d < terms[k].rank; d++)
                wanted[terms[k].letter[d]] = true;
        if (i > 0) {
            bool own[LETTERS];
            memcpy(own, wanted, sizeof own);
            for (int d = 0; d < all.rank; d++)
                own[all.letter[d]] = true;
            sum_out(&terms[i], own);
            TRY(contract(c, &all, &terms[i], wanted));
        } else {
            sum_out(&all, wanted);
        }
        if (tn_status_of(all.t) != TN_OK) break;
    }
    for (int d = 0; d < result.rank; d++)
        if (einsum_place_of(&all, result.letter[d]) < 0)
            return onnx_refuse(c, "the result names a letter that no operand has");
    tn_tensor *y = all.rank == result.rank ? in_order(&all, result.letter, result.rank)
                                           : tn_failed(TN_ERR_SHAPE, "the result names a letter twice");
    return onnx_put(c, 0, y);
}
