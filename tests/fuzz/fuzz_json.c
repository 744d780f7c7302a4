/* fuzz_json.c — any bytes at all: the JSON reader refuses them with a reason or reads a value that survives being
 * written and read again. What breaks a promise ends in a trap, which every fuzzer reports. */
#include <stdlib.h>
#include <string.h>

#include "json_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_mem_stats before = tn_mem_get_stats();
    tn_str first = {0}, second = {0};
    char *text = malloc(size > 0 ? size : 1); /* exactly as long, so that a sanitizer sees a read past the end */
    if (text == NULL) return 0;
    memcpy(text, data, size);
    tn_status status = rewrite_json(text, size, &first);
    free(text);
    if (status != TN_OK) require(status == TN_ERR_FORMAT && strncmp(tn_error(), "JSON: ", 6) == 0);
    if (status == TN_OK && !first.failed) {
        require(rewrite_json(tn_str_text(&first), first.length, &second) == TN_OK);
        require(first.length == second.length && strcmp(first.text, second.text) == 0);
    }
    tn_str_free(&first);
    tn_str_free(&second);
    require(tn_mem_get_stats().live_blocks == before.live_blocks);
    return 0;
}
