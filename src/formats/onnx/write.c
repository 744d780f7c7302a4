/* write.c — protobuf's wire format, the other way round: fields appended to a string of bytes.
 *
 * A message inside a message is made apart and then put behind its length. Source: Protocol Buffers' encoding. */
#include <string.h>

#include "formats/onnx/export.h"

enum { WIRE_VARINT = 0, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(tn_str *s, uint64_t v) {
    char bytes[10];
    size_t n = 0;
    for (; v > 0x7f; v >>= 7)
        bytes[n++] = (char)(v | 0x80);
    bytes[n++] = (char)v;
    tn_str_addn(s, bytes, n);
}

static void put_key(tn_str *s, int field, int wire) { put_varint(s, (uint64_t)field << 3 | (uint64_t)wire); }

void onnx_put_int(tn_str *s, int field, int64_t v) {
    put_key(s, field, WIRE_VARINT);
    put_varint(s, (uint64_t)v);
}

void onnx_put_float(tn_str *s, int field, float v) {
    uint32_t bits = 0;
    char bytes[4];
    memcpy(&bits, &v, sizeof bits);
    for (int i = 0; i < 4; i++)
        bytes[i] = (char)(bits >> 8 * i);
    put_key(s, field, WIRE_32);
    tn_str_addn(s, bytes, sizeof bytes);
}

void onnx_put_size(tn_str *s, int field, size_t n) {
    put_key(s, field, WIRE_BYTES);
    put_varint(s, n);
}

void onnx_put_bytes(tn_str *s, int field, const void *bytes, size_t n) {
    onnx_put_size(s, field, n);
    tn_str_addn(s, bytes, n);
}

void onnx_put_text(tn_str *s, int field, const char *text) { onnx_put_bytes(s, field, text, strlen(text)); }

void onnx_put_message(tn_str *s, int field, tn_str *message) {
    if (message->failed) s->failed = true;
    onnx_put_bytes(s, field, tn_str_text(message), message->length);
    tn_str_free(message);
}
