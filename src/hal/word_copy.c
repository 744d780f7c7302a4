/* word_copy.c — see word_copy.h. */
#include "hal/word_copy.h"

#include "kir/wgsl.h"

enum {
    WORD = 4,
    BEFORE = WORD /* what is copied by scratch memory begins behind a word: the first bytes may be those before it */
};

static tn_status locate_word(const tn_word_copier *w, const void *address, size_t bytes, void **memory, size_t *at) {
    return tn_address_range_locate(w->ranges, w->id, "copying", address, bytes, memory, at);
}

/* What a patch does. */
typedef struct source {
    bool copies;
    uint32_t value, skip; /* of a word; bytes of the scratch memory before what is copied */
} source;

static tn_status patch_some(const tn_word_copier *w, char *dst, size_t bytes, const source *from) {
    uint32_t odd = (uint32_t)((uintptr_t)dst % WORD), end = (uint32_t)((odd + bytes) % WORD);
    size_t words = (odd + bytes + WORD - 1) / WORD;
    size_t groups = (words + KIR_WGSL_PATCH_ITEMS - 1) / KIR_WGSL_PATCH_ITEMS,
           x = groups < w->groups ? groups : w->groups;
    const kir_wgsl_patch_params params = {.count = (uint32_t)words,
                                          .first_mask = UINT32_MAX << odd * 8,
                                          .last_mask = end ? UINT32_MAX >> (WORD - end) * 8 : UINT32_MAX,
                                          .copies = from->copies,
                                          .value = from->value,
                                          .skip = from->skip - odd,
                                          .row = (uint32_t)x * KIR_WGSL_PATCH_ITEMS};
    void *buffers[] = {dst - odd, w->scratch};
    const tn_dispatch l = {{(uint32_t)x, (uint32_t)((groups + x - 1) / x), 1}, buffers, &params};
    return w->calls->patch(w->device, &l);
}

static tn_status patch(const tn_word_copier *w, char *dst, size_t bytes, source from) {
    for (size_t n; bytes; bytes -= n, dst += n, from.skip += (uint32_t)n) {
        n = bytes < w->reach ? bytes : w->reach;
        TRY(patch_some(w, dst, n, &from));
    }
    return TN_OK;
}

/* Within one allocation, or between places of which not all are whole words. */
static tn_status copy_by_scratch(const tn_word_copier *w, char *dst, void *from, size_t from_at, size_t bytes) {
    void *scratch, *to;
    size_t zero, to_at, most = w->scratch_bytes - 4 * WORD;
    TRY(locate_word(w, w->scratch, w->scratch_bytes, &scratch, &zero));
    for (size_t n; bytes; dst += n, from_at += n, bytes -= n) {
        size_t odd = from_at % WORD;
        n = bytes < most ? bytes : most;
        TRY(locate_word(w, dst, n, &to, &to_at));
        size_t cover = (odd + n + WORD - 1) / WORD * WORD;
        TRY(w->calls->copy(w->device, from, from_at - odd, scratch, BEFORE, cover));
        if (odd || to_at % WORD || n % WORD)
            TRY(patch(w, dst, n, (source){.copies = true, .skip = (uint32_t)(BEFORE + odd)}));
        else
            TRY(w->calls->copy(w->device, scratch, BEFORE, to, to_at, n));
    }
    return TN_OK;
}

tn_status tn_word_copy(const tn_word_copier *w, char *dst, const void *src, size_t bytes) {
    void *to, *from;
    size_t to_at, from_at;
    TRY(locate_word(w, dst, bytes, &to, &to_at));
    TRY(locate_word(w, src, bytes, &from, &from_at));
    if (to == from || (to_at | from_at | bytes) % WORD) return copy_by_scratch(w, dst, from, from_at, bytes);
    return w->calls->copy(w->device, from, from_at, to, to_at, bytes);
}

/* Up to three bytes within one word. */
static tn_status write_odd(const tn_word_copier *w, char *dst, const unsigned char *host, size_t bytes) {
    uint32_t value = 0, odd = (uint32_t)((uintptr_t)dst % WORD);
    for (size_t i = 0; i < bytes; i++)
        value |= (uint32_t)host[i] << (odd + i) * 8;
    return patch(w, dst, bytes, (source){.value = value});
}

tn_status tn_word_write(const tn_word_copier *w, char *dst, const unsigned char *host, size_t bytes) {
    void *to;
    size_t at;
    TRY(locate_word(w, dst, bytes, &to, &at));
    size_t head = at % WORD ? WORD - at % WORD : 0;
    head = head < bytes ? head : bytes;
    size_t tail = (bytes - head) % WORD;
    TRY(write_odd(w, dst, host, head));
    TRY(w->calls->write(w->device, to, at + head, (const char *)host + head, bytes - head - tail));
    return write_odd(w, dst + bytes - tail, host + bytes - tail, tail);
}

tn_status tn_word_fill(const tn_word_copier *w, char *dst, uint8_t value, size_t bytes) {
    return patch(w, dst, bytes, (source){.value = value * 0x01010101u});
}
