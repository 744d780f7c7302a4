/* fuzz_tokenizer_json.c — any tokenizer.json, any text: a file is refused with a reason, or encodes every text, alone
 * and as a pair, into ids that it has, and what it decodes token by token breaks nothing either.
 *
 * An input is a file up to a line of its own that is "--", then the text. */
#include <stdlib.h>
#include <string.h>

#include "text/text_common.h"
#include "trunnion/text.h"

enum { MOST_TEXT = 512 }; /* bytes: what is longer takes longer and shows nothing new */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

static bool may_fail_so(tn_status status) {
    return status == TN_OK || status == TN_ERR_UNSUPPORTED || status == TN_ERR_MEMORY || status == TN_ERR_ARGUMENT;
}

static void check_decoding(const tn_tokenizer *t, const tn_ids *ids, unsigned flags) {
    tn_bytes whole = {0}, streamed = {0};
    tn_text_stream s = {0};
    require(may_fail_so(tn_tokenizer_decode(t, ids->data, ids->count, flags, &whole)));
    for (size_t i = 0; i < ids->count; i++)
        require(may_fail_so(tn_tokenizer_stream(t, &s, ids->data[i], flags, &streamed)));
    require(tn_tokenizer_stream_end(&s, &streamed) == TN_OK);
    tn_bytes_free(&whole);
    tn_bytes_free(&streamed);
}

/* With one of four ways to encode, which the length picks. */
static void check_text(const tn_tokenizer *t, const char *text, size_t size) {
    const unsigned flags = 5 * (unsigned)(size % 4);
    tn_pair_options o = TN_PAIR_DEFAULTS;
    o.flags = flags;
    o.max_tokens = flags == 10 ? 5 : 0;
    tn_ids ids = {0};
    tn_encoding e = {0};
    require(may_fail_so(tn_tokenizer_encode(t, text, size, flags, &ids)));
    for (size_t i = 0; i < ids.count; i++)
        require(ids.data[i] >= 0 && ids.data[i] < tn_tokenizer_count(t));
    check_decoding(t, &ids, flags & 1);
    tn_status status = tn_tokenizer_encode_pair(t, (tn_text_slice){text, size / 2},
                                                (tn_text_slice){text + size / 2, size - size / 2}, &o, &e);
    require(may_fail_so(status));
    require(e.ids.count == e.types.count && e.ids.count == e.mask.count);
    tn_ids_free(&ids);
    tn_encoding_free(&e);
}

/* Where the text begins: behind the mark, or at the end. `file`: bytes of the file. */
static size_t text_of(const char *data, size_t size, size_t *file) {
    for (size_t at = 0; at + 4 <= size; at++) {
        if (memcmp(data + at, "\n--\n", 4) != 0) continue;
        *file = at;
        return at + 4;
    }
    return *file = size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t before = tn_txt_live_blocks();
    size_t file = 0, text = text_of((const char *)data, size, &file);
    if (size > text + MOST_TEXT) size = text + MOST_TEXT;
    char *json = malloc(file > 0 ? file : 1), *words = malloc(size > text ? size - text : 1);
    tn_tokenizer *t = NULL;
    if (json && words) {
        if (file > 0) memcpy(json, data, file);
        if (size > text) memcpy(words, data + text, size - text);
        if (tn_tokenizer_from_json(json, file, json, file, &t) == TN_OK) {
            check_text(t, words, size - text);
        } else {
            require(strncmp(tn_error(), "tokenizer", 9) == 0 || strstr(tn_error(), "memory"));
        }
        tn_tokenizer_free(t);
    }
    free(json);
    free(words);
    require(tn_txt_live_blocks() == before);
    return 0;
}
