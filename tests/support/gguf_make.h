/* gguf_make.h — GGUF files for tests, put together byte by byte, so that they can also be wrong in any place.
 *
 * A file is written in the format's order: head, pairs, tensors, padding, bytes. Nothing is checked. */
#ifndef TN_GGUF_MAKE_H
#define TN_GGUF_MAKE_H

#include <stddef.h>
#include <stdint.h>

#include "trunnion/model.h"

typedef struct gguf_make {
    uint8_t *data;
    size_t size, capacity;
} gguf_make;

void make_free(gguf_make *g);
void make_bytes(gguf_make *g, const void *bytes, size_t n);
void make_number(gguf_make *g, uint64_t v, int bytes); /* little-endian, 0 beyond eight */
void make_f32(gguf_make *g, float v);
void make_text(gguf_make *g, const char *text); /* length and bytes */
void make_padding(gguf_make *g, size_t alignment);

void make_head(gguf_make *g, uint64_t tensors, uint64_t pairs); /* version 3 */

void make_key(gguf_make *g, const char *key, tn_gguf_type type); /* the value follows */
void make_key_u32(gguf_make *g, const char *key, uint32_t v);
void make_key_f32(gguf_make *g, const char *key, float v);
void make_key_bool(gguf_make *g, const char *key, bool v);
void make_key_text(gguf_make *g, const char *key, const char *text);
void make_key_array(gguf_make *g, const char *key, tn_gguf_type item, uint64_t count); /* the items follow */
void make_key_texts(gguf_make *g, const char *key, const char *const *texts, size_t count);
void make_key_f32s(gguf_make *g, const char *key, const float *v, size_t count);
void make_key_i32s(gguf_make *g, const char *key, const int32_t *v, size_t count);

/* dims in the file's order: the contiguous one first. type: the file's number. */
void make_tensor(gguf_make *g, const char *name, int rank, const uint64_t *dims, uint32_t type, uint64_t place);

int make_write(const gguf_make *g, const char *path); /* 0, or -1 */

#endif
