/* fuzz_template.c — any bytes at all as a chat template: refused with a place, or rendered over a conversation within
 * its limits. The part behind a NUL, where there is one, is taken as the variables in JSON instead. */
#include <stdlib.h>
#include <string.h>

#include "text/text_common.h"
#include "trunnion/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"  be "
                                   "brief\\n\"},{\"role\":\"user\",\"content\":\"h\\u00e9 \\ud83d\\ude00\"},"
                                   "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_1\","
                                   "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,"
                                   "2.5,null,true]}}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
                                   "\"f\",\"parameters\":{}}}],\"bos_token\":\"<s>\","
                                   "\"eos_token\":\"</s>\",\"add_generation_prompt\":true,\"n\":3}";

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

/* A copy that is exactly as long, so that a sanitizer sees a read past the end. */
static char *exact_copy(const void *data, size_t size) {
    char *copy = malloc(size > 0 ? size : 1);
    if (copy && size > 0) memcpy(copy, data, size);
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_chat_template_options limits = TN_CHAT_TEMPLATE_DEFAULTS;
    limits.now = 1;
    limits.max_steps = 20000;
    limits.max_memory = 4 << 20;
    const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
    size_t length = end ? (size_t)(end - data) : size;
    int64_t before = tn_txt_live_blocks();
    char *source = exact_copy(data, length), *json = end ? exact_copy(end + 1, size - length - 1) : NULL;
    tn_bytes out = {0};
    tn_chat_template *t = NULL;
    if (!source || (end && !json)) {
        free(source);
        free(json);
        return 0;
    }
    tn_status status = tn_chat_template_new(source, length, &t);
    free(source);
    if (status == TN_OK)
        status = json ? tn_chat_template_render(t, json, size - length - 1, &limits, &out)
                      : tn_chat_template_render(t, conversation, sizeof conversation - 1, &limits, &out);
    if (status != TN_OK) {
        require(status == TN_ERR_FORMAT || status == TN_ERR_ARGUMENT || status == TN_ERR_MEMORY);
        require(strncmp(tn_error(), "chat template", 13) == 0 && out.size == 0);
    }
    tn_chat_template_free(t);
    tn_bytes_free(&out);
    free(json);
    require(tn_txt_live_blocks() == before);
    return 0;
}
