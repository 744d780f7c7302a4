/* test_text_threads.c — a tokenizer and a template are shared: several threads use them at once and get what one
 * gets. */
#include "test_support.h"

#include <pthread.h>

#include "text/text_common.h"
#include "trunnion/text.h"

enum { THREADS = 4, ROUNDS = 200 };

static const char text[] =
    "shared words, 12345 don't  \n\n\xe6\x9d\xb1\xe4\xba\xac <t> \xff and more of the same words";
static const char source[] = "{% for m in messages %}[{{ m.role | upper }}: {{ m.content | trim }}]{% endfor %}";
static const char json[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" hi \"}, {\"role\": \"x\", \"content\": \"yo\"}]}";

typedef struct shared {
    const tn_tokenizer *tokenizer;
    const tn_chat_template *template;
    const tn_ids *ids;
} shared;

static tn_tokenizer *byte_tokenizer(void) {
    static char letters[256][4];
    static tn_text_slice tokens[257];
    static int32_t types[257];
    static const tn_text_slice merges[] = {{"o r", 3}, {"w o", 3}, {"m e", 3}};
    for (uint32_t b = 0; b < 256; b++) { /* as GPT-2 spells bytes */
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t c = plain ? b : b <= 32 ? 256 + b : b == 173 ? 323 : b + 162;
        size_t size = c < 128 ? 1 : 2;
        letters[b][0] = (char)(c < 128 ? c : 0xc0 | c >> 6);
        letters[b][1] = (char)(0x80 | (c & 0x3f));
        tokens[b] = (tn_text_slice){letters[b], size};
        types[b] = TN_TOKEN_NORMAL;
    }
    tokens[256] = (tn_text_slice){"<t>", 3};
    types[256] = TN_TOKEN_USER_DEFINED;
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    v.model = "gpt2";
    v.pre = "llama-bpe";
    v.count = 257;
    v.tokens = tokens;
    v.types = types;
    v.merges = merges;
    v.merge_count = 3;
    v.add_bos = v.add_eos = v.add_space_prefix = 0;
    tn_tokenizer *t;
    assert_ok(tn_tokenizer_new(&v, &t));
    return t;
}

/* Returns NULL when all went well. */
static void *use(void *argument) {
    const shared *s = argument;
    tn_ids ids = {0};
    tn_bytes out = {0};
    bool good = true;
    for (int i = 0; i < ROUNDS && good; i++) {
        ids.count = out.size = 0;
        good = tn_tokenizer_encode(s->tokenizer, text, sizeof text - 1, 0, &ids) == TN_OK &&
               ids.count == s->ids->count && !memcmp(ids.data, s->ids->data, ids.count * sizeof *ids.data) &&
               tn_chat_template_render(s->template, json, sizeof json - 1, NULL, &out) == TN_OK &&
               !strcmp(out.data, "[USER: hi][X: yo]");
    }
    tn_ids_free(&ids);
    tn_bytes_free(&out);
    return good ? NULL : argument;
}

static void several_threads_get_what_one_gets(void **state) {
    (void)state;
    tn_tokenizer *tokenizer = byte_tokenizer();
    tn_chat_template *template;
    tn_ids ids = {0};
    pthread_t threads[THREADS];
    assert_ok(tn_chat_template_new(source, sizeof source - 1, &template));
    assert_ok(tn_tokenizer_encode(tokenizer, text, sizeof text - 1, 0, &ids));
    shared s = {tokenizer, template, &ids};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, &s), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    tn_ids_free(&ids);
    tn_chat_template_free(template);
    tn_tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(several_threads_get_what_one_gets)};
    return cmocka_run_group_tests_name("text threads", tests, NULL, NULL);
}
