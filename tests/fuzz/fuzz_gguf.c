/* fuzz_gguf.c — any bytes as a GGUF file: refused with the byte and a reason, or everything in it can be read.
 *
 * The reader maps files, so the bytes go through a file without a name. */
#include <string.h>

#include "fuzz_file.h"
#include "trunnion/model.h"

/* Reads every byte; the sanitizers see one that is not there. */
static void touch(const void *data, int64_t size) {
    volatile uint8_t sum = 0;
    const uint8_t *bytes = data;
    for (int64_t i = 0; i < size; i++)
        sum = (uint8_t)(sum + bytes[i]);
}

static void look_at_item(const tn_gguf_value *v, int64_t i) {
    int64_t number, length;
    double real;
    bool flag;
    const char *text;
    if (tn_gguf_string(v, i, &text, &length) == TN_OK) touch(text, length);
    bool nested = tn_gguf_item_type(v) == TN_GGUF_ARRAY;
    require(tn_gguf_int(v, i, &number) != TN_OK || !nested);
    require(tn_gguf_float(v, i, &real) != TN_OK || !nested);
    require(tn_gguf_bool(v, i, &flag) != TN_OK || tn_gguf_item_type(v) == TN_GGUF_BOOL);
}

static void look_at_values(const tn_gguf *file) {
    for (int64_t k = 0; k < tn_gguf_key_count(file); k++) {
        const tn_gguf_value *v = tn_gguf_get(file, tn_gguf_key(file, k));
        require(v != NULL);
        for (int64_t i = 0; i < tn_gguf_length(v); i++)
            look_at_item(v, i);
    }
}

static void look_at_tensors(const tn_gguf *file) {
    for (int64_t i = 0; i < tn_gguf_count(file); i++) {
        tn_gguf_info at = {.struct_size = sizeof at}, found = {.struct_size = sizeof found};
        require(tn_gguf_at(file, i, &at) == TN_OK);
        require(tn_gguf_find(file, at.name, &found) == TN_OK && found.data == at.data);
        touch(at.data, at.bytes);
        tn_tensor *t = tn_gguf_tensor(file, at.name);
        require(tn_status_of(t) != TN_OK || tn_rank(t) == at.rank);
        tn_free(t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = file_of(data, size, path);
    tn_gguf *file = NULL;
    if (tn_gguf_open(path, &file) == TN_OK) {
        look_at_values(file);
        look_at_tensors(file);
    } else {
        require(strstr(tn_error(), "byte ") != NULL);
    }
    tn_gguf_close(file);
    close(fd);
    return 0;
}
