/* fuzz_tokenizer.c — any vocabulary, any text: a vocabulary is refused or encodes every text into ids that it has, and
 * what it decodes token by token is what it decodes at once.
 *
 * An input is lines up to an empty one: the first names rule and flags by its bytes, each other is a token (its first
 * byte the type and score) or, behind "m", a merge. The rest is the text. */
#include <stdlib.h>
#include <string.h>

#include "text/text_common.h"
#include "trunnion/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 256 };

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

typedef struct input {
    tn_text_slice tokens[MOST], merges[MOST];
    float scores[MOST];
    int32_t types[MOST];
    tn_vocabulary v;
    const char *text;
    size_t size;
    unsigned flags;
} input;

static const char *const rules[] = {"gpt-2",  "smollm", "llama-bpe",   "qwen2",     "qwen35",
                                    "gpt-4o", "tekken", "deepseek-v3", "falcon",    "default",
                                    "bloom",  "viking", "bailingmoe",  "seed-coder"};

static void take_first(input *in, const char *line, size_t size) {
    unsigned a = size > 0 ? (uint8_t)line[0] : 0, b = size > 1 ? (uint8_t)line[1] : 0;
    in->v.model = a & 1 ? "llama" : "gpt2";
    in->v.pre = rules[(a >> 1) % (sizeof rules / sizeof *rules)];
    in->v.add_bos = (int8_t)(b & 1);
    in->v.add_eos = (int8_t)(b >> 1 & 1);
    in->v.add_space_prefix = (int8_t)(b >> 2 & 1);
    in->flags = b >> 3 & 3;
    for (int i = 0; i < TN_SPECIAL_COUNT; i++)
        in->v.special[i] = size > 2 + (size_t)i ? (uint8_t)line[2 + i] % 16 - 1 : -1;
}

static void take_line(input *in, const char *line, size_t size) {
    if (line[0] == 'm' && in->v.merge_count < MOST) {
        in->merges[in->v.merge_count++] = (tn_text_slice){line + 1, size - 1};
    } else if (in->v.count < MOST) {
        in->types[in->v.count] = (uint8_t)line[0] & 7;
        in->scores[in->v.count] = (float)(uint8_t)line[0];
        in->tokens[in->v.count++] = (tn_text_slice){line + 1, size - 1};
    }
}

static void read_input(input *in, const char *data, size_t size) {
    in->v = (tn_vocabulary)TN_VOCABULARY_DEFAULTS;
    in->v.tokens = in->tokens;
    in->v.scores = in->scores;
    in->v.types = in->types;
    in->v.merges = in->merges;
    for (bool first = true; size > 0; first = false) {
        const char *end = memchr(data, '\n', size);
        size_t line = end ? (size_t)(end - data) : size;
        if (first) take_first(in, data, line);
        if (!first && line > 0) take_line(in, data, line);
        size_t taken = line + (end != NULL);
        data += taken;
        size -= taken;
        if (!first && line == 0) break;
    }
    if (!in->v.model) take_first(in, data, 0);
    in->text = data;
    in->size = size;
}

static void check_text(const tn_tokenizer *t, const input *in) {
    tn_ids ids = {0};
    tn_bytes whole = {0}, streamed = {0};
    tn_text_stream s = {0};
    tn_status status = tn_tokenizer_encode(t, in->text, in->size, in->flags, &ids);
    require(status == TN_OK || status == TN_ERR_UNSUPPORTED || status == TN_ERR_MEMORY);
    if (status == TN_OK) {
        require(tn_tokenizer_decode(t, ids.data, ids.count, in->flags, &whole) == TN_OK);
        for (size_t i = 0; i < ids.count; i++)
            require(tn_tokenizer_stream(t, &s, ids.data[i], in->flags, &streamed) == TN_OK);
        require(tn_tokenizer_stream_end(&s, &streamed) == TN_OK);
        require(streamed.size == whole.size || streamed.size == whole.size + 1); /* a space in front */
    }
    tn_ids_free(&ids);
    tn_bytes_free(&whole);
    tn_bytes_free(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t before = tn_txt_live_blocks();
    char *copy = malloc(size > 0 ? size : 1);
    input *in = calloc(1, sizeof *in);
    tn_tokenizer *t = NULL;
    if (copy && in) {
        if (size > 0) memcpy(copy, data, size);
        read_input(in, copy, size);
        if (tn_tokenizer_new(&in->v, &t) == TN_OK) {
            check_text(t, in);
        } else {
            require(strncmp(tn_error(), "tokenizer: ", 11) == 0);
        }
        tn_tokenizer_free(t);
    }
    free(in);
    free(copy);
    require(tn_txt_live_blocks() == before);
    return 0;
}
