/* gguf_make.c — the functions of gguf_make.h; memory that runs out ends the test program. */
#include "gguf_make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void make_free(gguf_make *g) {
    free(g->data);
    *g = (gguf_make){0};
}

void make_bytes(gguf_make *g, const void *bytes, size_t n) {
    if (g->size + n > g->capacity) {
        g->capacity = 2 * (g->size + n);
        g->data = realloc(g->data, g->capacity);
        if (!g->data) abort();
    }
    if (n > 0) memcpy(g->data + g->size, bytes, n);
    g->size += n;
}

void make_number(gguf_make *g, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++)
        make_bytes(g, &(uint8_t){(uint8_t)(i < 8 ? v >> (8 * i) : 0)}, 1);
}

void make_f32(gguf_make *g, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    make_number(g, bits, 4);
}

void make_text(gguf_make *g, const char *text) {
    make_number(g, strlen(text), 8);
    make_bytes(g, text, strlen(text));
}

void make_padding(gguf_make *g, size_t alignment) {
    while (g->size % alignment != 0)
        make_number(g, 0, 1);
}

void make_head(gguf_make *g, uint64_t tensors, uint64_t pairs) {
    make_bytes(g, "GGUF", 4);
    make_number(g, 3, 4);
    make_number(g, tensors, 8);
    make_number(g, pairs, 8);
}

void make_key(gguf_make *g, const char *key, tn_gguf_type type) {
    make_text(g, key);
    make_number(g, (uint64_t)type, 4);
}

void make_key_u32(gguf_make *g, const char *key, uint32_t v) {
    make_key(g, key, TN_GGUF_U32);
    make_number(g, v, 4);
}

void make_key_f32(gguf_make *g, const char *key, float v) {
    make_key(g, key, TN_GGUF_F32);
    make_f32(g, v);
}

void make_key_bool(gguf_make *g, const char *key, bool v) {
    make_key(g, key, TN_GGUF_BOOL);
    make_number(g, v, 1);
}

void make_key_text(gguf_make *g, const char *key, const char *text) {
    make_key(g, key, TN_GGUF_STRING);
    make_text(g, text);
}

void make_key_array(gguf_make *g, const char *key, tn_gguf_type item, uint64_t count) {
    make_key(g, key, TN_GGUF_ARRAY);
    make_number(g, (uint64_t)item, 4);
    make_number(g, count, 8);
}

void make_key_texts(gguf_make *g, const char *key, const char *const *texts, size_t count) {
    make_key_array(g, key, TN_GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        make_text(g, texts[i]);
}

void make_key_f32s(gguf_make *g, const char *key, const float *v, size_t count) {
    make_key_array(g, key, TN_GGUF_F32, count);
    for (size_t i = 0; i < count; i++)
        make_f32(g, v[i]);
}

void make_key_i32s(gguf_make *g, const char *key, const int32_t *v, size_t count) {
    make_key_array(g, key, TN_GGUF_I32, count);
    for (size_t i = 0; i < count; i++)
        make_number(g, (uint32_t)v[i], 4);
}

void make_tensor(gguf_make *g, const char *name, int rank, const uint64_t *dims, uint32_t type, uint64_t place) {
    make_text(g, name);
    make_number(g, (uint64_t)rank, 4);
    for (int d = 0; d < rank; d++)
        make_number(g, dims[d], 8);
    make_number(g, type, 4);
    make_number(g, place, 8);
}

int make_write(const gguf_make *g, const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f) return -1;
    size_t written = g->size > 0 ? fwrite(g->data, 1, g->size, f) : 0;
    return fclose(f) == 0 && written == g->size ? 0 : -1;
}
