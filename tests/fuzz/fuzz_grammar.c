/* fuzz_grammar.c — any bytes at all as a grammar, those behind a NUL as a text: refused in words, or taken within the
 * limits; and in whatever pieces the text comes, the answer is the same. */
#include <stdlib.h>
#include <string.h>

#include "text/text_common.h"
#include "trunnion/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

/* How many bytes fit, taken one by one, and whether the text may end there. */
static size_t take(const tn_grammar *g, const char *text, size_t size, bool whole, bool *may_end) {
    tn_grammar_state *s = NULL;
    size_t taken = 0;
    *may_end = false;
    if (tn_grammar_state_new(g, NULL, &s) != TN_OK) return 0;
    if (whole) taken = tn_grammar_accept_bytes(s, text, size) == TN_OK ? size : 0;
    while (!whole && taken < size && tn_grammar_accept_bytes(s, text + taken, 1) == TN_OK)
        taken++;
    *may_end = tn_grammar_may_end(s);
    tn_grammar_state_free(s);
    return taken;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { LONGEST = 256 };
    const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
    size_t length = end ? (size_t)(end - data) : size, rest = end ? size - length - 1 : 0;
    int64_t before = tn_txt_live_blocks();
    char *source = malloc(length + !length), *text = malloc(rest + !rest); /* exactly as long */
    tn_grammar *g = NULL;
    if (!source || !text) abort();
    if (length) memcpy(source, data, length);
    if (rest) memcpy(text, end + 1, rest);
    if (rest > LONGEST) rest = LONGEST;
    if (tn_grammar_new(source, length, &g) == TN_OK) {
        bool one, all;
        size_t taken = take(g, text, rest, false, &one);
        if (taken == rest && rest > 0) require(take(g, text, rest, true, &all) == rest && one == all);
    } else {
        require(!g);
    }
    tn_grammar_free(g);
    free(source);
    free(text);
    require(tn_txt_live_blocks() == before);
    return 0;
}
