/* stop_strings.c — ends a text at the first stop string, and withholds text that may be the beginning of one.
 *
 * Each stop string has its own automaton (Knuth, Morris and Pratt 1977), so each byte is examined once, however often
 * beginnings repeat. The withheld text is always a prefix of the stop string that has matched the most. */
#include <string.h>

#include "text/text_common.h"

enum { MOST_BYTES = 1 << 20 };

typedef struct stop_string {
    const char *text; /* in `all` */
    uint32_t *back;   /* [size]: the next shorter beginning that ends where the first i + 1 bytes do */
    uint32_t size, matched;
} stop_string;

struct tn_stop_strings {
    stop_string *items;
    int count, found; /* found: -1 until one was */
    char *all;
    uint32_t *backs;
};

/* The automaton's step: how much is matched after one more byte. */
static uint32_t match_byte(const stop_string *s, uint32_t matched, char byte) {
    while (matched > 0 && (matched == s->size || s->text[matched] != byte))
        matched = s->back[matched - 1];
    return matched + (s->text[matched] == byte);
}

static void make_automaton(stop_string *s) {
    s->back[0] = 0;
    for (uint32_t i = 1; i < s->size; i++) {
        uint32_t matched = s->back[i - 1];
        while (matched > 0 && s->text[matched] != s->text[i])
            matched = s->back[matched - 1];
        s->back[i] = matched + (s->text[matched] == s->text[i]);
    }
}

static tn_status check_strings(const tn_text_slice *strings, int count, size_t *total) {
    *total = 0;
    if (count < 0 || (count > 0 && !strings))
        return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: %d strings at %p", count, (const void *)strings);
    for (int i = 0; i < count; i++) {
        if (strings[i].size == 0 || !strings[i].data)
            return tn_backend_fail(TN_ERR_ARGUMENT, "stop string %d is empty", i);
        if (strings[i].size > MOST_BYTES - *total)
            return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: more than %d bytes together", (int)MOST_BYTES);
        *total += strings[i].size;
    }
    return TN_OK;
}

static tn_status copy_strings(tn_stop_strings *s, const tn_text_slice *strings, int count, size_t total) {
    s->items = tn_txt_zalloc((size_t)count, sizeof *s->items);
    s->all = tn_txt_alloc(total, 1);
    s->backs = tn_txt_alloc(total, sizeof *s->backs);
    if (!s->items || !s->all || !s->backs) return TN_ERR_MEMORY;
    s->count = count;
    s->found = -1;
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        s->items[i] = (stop_string){s->all + at, s->backs + at, (uint32_t)strings[i].size, 0};
        memcpy(s->all + at, strings[i].data, strings[i].size);
        make_automaton(&s->items[i]);
        at += strings[i].size;
    }
    return TN_OK;
}

tn_status tn_stop_strings_new(const tn_text_slice *strings, int count, tn_stop_strings **out) {
    size_t total;
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: out is NULL");
    *out = NULL;
    TRY(check_strings(strings, count, &total));
    tn_stop_strings *s = tn_txt_zalloc(1, sizeof *s);
    tn_status status = s ? copy_strings(s, strings, count, total) : TN_ERR_MEMORY;
    if (status != TN_OK) {
        tn_stop_strings_free(s);
        return status;
    }
    *out = s;
    return TN_OK;
}

void tn_stop_strings_free(tn_stop_strings *s) {
    if (!s) return;
    tn_txt_free(s->items);
    tn_txt_free(s->all);
    tn_txt_free(s->backs);
    tn_txt_free(s);
}

/* The string whose beginning is withheld; NULL when nothing is. */
static const stop_string *longest_match(const tn_stop_strings *s) {
    const stop_string *best = NULL;
    for (int i = 0; i < s->count; i++)
        if (s->items[i].matched > (best ? best->matched : 0)) best = &s->items[i];
    return best;
}

static uint32_t withheld(const tn_stop_strings *s) {
    const stop_string *best = longest_match(s);
    return best ? best->matched : 0;
}

/* Advances all automata by a byte. Of strings that are completed by it the longest begins first. */
static void take_byte(tn_stop_strings *s, char byte) {
    for (int i = 0; i < s->count; i++) {
        stop_string *item = &s->items[i];
        item->matched = match_byte(item, item->matched, byte);
        bool first = s->found < 0 || item->size > s->items[s->found].size;
        if (item->matched == item->size && first) s->found = i;
    }
}

/* Of `size` bytes that follow those withheld before, appends the first `shown` of both together. */
static tn_status show(const char *before, size_t before_size, const char *data, size_t shown, tn_bytes *out) {
    size_t first = shown < before_size ? shown : before_size;
    TRY(tn_bytes_append(out, before, first));
    return tn_bytes_append(out, data, shown - first);
}

tn_status tn_stop_strings_feed(tn_stop_strings *s, const char *data, size_t size, tn_bytes *out, int *found) {
    if (!s || !out || !found || (size > 0 && !data))
        return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: an argument is NULL");
    *found = s->found;
    if (s->found >= 0) return TN_OK;
    const stop_string *best = longest_match(s); /* its text was withheld */
    const char *before = best ? best->text : "";
    size_t before_size = best ? best->matched : 0, taken = 0;
    while (taken < size && s->found < 0)
        take_byte(s, data[taken++]);
    *found = s->found;
    size_t kept = s->found >= 0 ? s->items[s->found].size : withheld(s);
    return show(before, before_size, data, before_size + taken - kept, out);
}

tn_status tn_stop_strings_end(tn_stop_strings *s, tn_bytes *out) {
    if (!s || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: an argument is NULL");
    const stop_string *best = longest_match(s);
    tn_status status = best && s->found < 0 ? tn_bytes_append(out, best->text, best->matched) : TN_OK;
    if (status != TN_OK) return status;
    for (int i = 0; i < s->count; i++)
        s->items[i].matched = 0;
    s->found = -1;
    return TN_OK;
}
