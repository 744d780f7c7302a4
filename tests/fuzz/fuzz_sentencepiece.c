/* fuzz_sentencepiece.c — any SentencePiece model, any vocab.json: both are refused with a reason, or make a tokenizer
 * that encodes a text into ids that it has.
 *
 * An input is a vocab.json up to a line of its own that is "--", then the model; without that line it is a model. */
#include <stdlib.h>
#include <string.h>

#include "text/hf.h"
#include "text/text_common.h"
#include "trunnion/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = ">>x<< ab  a\xc3\xa9"
                           "b abab\xff c";
static const char usual[] = "{\"</s>\":0,\"<unk>\":1,\"ab\":2,\"a\":3,\"\xe2\x96\x81\":4,\">>x<<\":5}";

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

static bool may_fail_so(tn_status status) {
    return status == TN_OK || status == TN_ERR_UNSUPPORTED || status == TN_ERR_MEMORY || status == TN_ERR_ARGUMENT;
}

static void check_text(const tn_tokenizer *t) {
    tn_ids ids = {0};
    tn_bytes back = {0};
    require(may_fail_so(tn_tokenizer_encode(t, text, sizeof text - 1, TN_ENCODE_ENDS | TN_ENCODE_SPECIAL, &ids)));
    for (size_t i = 0; i < ids.count; i++)
        require(ids.data[i] >= 0 && ids.data[i] < tn_tokenizer_count(t));
    require(may_fail_so(tn_tokenizer_decode(t, ids.data, ids.count, 0, &back)));
    tn_ids_free(&ids);
    tn_bytes_free(&back);
}

/* Where the model begins: behind the mark, or at the start. `names`: bytes of vocab.json. */
static size_t model_of(const uint8_t *data, size_t size, size_t *names) {
    *names = 0;
    for (size_t at = 0; at + 4 <= size; at++) {
        if (memcmp(data + at, "\n--\n", 4) != 0) continue;
        *names = at;
        return at + 4;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t before = tn_txt_live_blocks();
    size_t names = 0, model = model_of(data, size, &names);
    const char *json = names > 0 ? (const char *)data : usual;
    tn_json_doc *doc = NULL;
    tn_tokenizer *t = NULL;
    tn_bytes file = {malloc(size > model ? size - model : 1), size - model, 0}; /* its end is the end of a block */
    require(file.data != NULL);
    if (size > model) memcpy(file.data, data + model, size - model);
    if (tn_json_parse(json, names > 0 ? names : sizeof usual - 1, &doc) == TN_OK) {
        if (tn_hf_from_sentencepiece(&file, "source.spm", tn_json_root(doc), "vocab.json", &t) == TN_OK)
            check_text(t);
        else
            require(*tn_error() != '\0' && !t);
        tn_tokenizer_free(t);
    }
    tn_json_free(doc);
    free(file.data);
    require(tn_txt_live_blocks() == before);
    return 0;
}
