/* wire.c — protobuf's wire format, as far as ONNX uses it: reading fields without a copy, appending fields. */
#include <string.h>

#include "onnx/export.h"
#include "onnx/model.h"

/* ==== reading ===================================================================================================== */
/* A message is a list of (number, kind, content). Everything is checked against the message's end before it is looked
 * at; what a content means is the caller's business. Also the arena in which the structure of a model lives. */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { CHUNK = 64 << 10, ALIGN = 16 };

typedef struct onnx_chunk {
    struct onnx_chunk *next;
    size_t used, size;
} onnx_chunk;

enum { HEAD = (sizeof(onnx_chunk) + ALIGN - 1) / ALIGN * ALIGN };

void *onnx_take(onnx_arena *a, size_t count, size_t size) {
    int64_t bytes;
    if (count > (size_t)ONNX_MAX_STRUCTURE || tn_mul_overflow((int64_t)count, (int64_t)size, &bytes) ||
        bytes > ONNX_MAX_STRUCTURE - a->total) {
        tn_fail(TN_ERR_FORMAT, "the model's structure needs more than %lld MiB, which exceeds the limit",
                (long long)(ONNX_MAX_STRUCTURE >> 20));
        return NULL;
    }
    size_t need = ((size_t)bytes + ALIGN - 1) / ALIGN * ALIGN;
    onnx_chunk *c = a->chunks;
    if (!c || c->size - c->used < need) {
        size_t room = need > CHUNK - HEAD ? need : CHUNK - HEAD;
        c = tn_mem_zalloc(1, HEAD + room);
        if (!c) return NULL;
        c->size = room;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *at = (char *)c + HEAD + c->used;
    c->used += need;
    a->total += (int64_t)need;
    return at;
}

void onnx_arena_free(onnx_arena *a) {
    while (a->chunks) {
        onnx_chunk *next = a->chunks->next;
        tn_mem_free(a->chunks);
        a->chunks = next;
    }
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

onnx_wire onnx_wire_of(onnx_text message) {
    const uint8_t *at = (const uint8_t *)message.at;
    return (onnx_wire){.begin = at, .at = at, .end = at ? at + message.size : at};
}

static bool read_varint(onnx_wire *w, uint64_t *out) {
    enum { MOST = 10 };
    uint64_t v = 0;
    for (int i = 0; i < MOST && w->at < w->end; i++) {
        uint8_t byte = *w->at++;
        v |= (uint64_t)(byte & 127) << (7 * i);
        if (!(byte & 128)) {
            *out = v;
            return true;
        }
    }
    return false;
}

static bool read_fixed(onnx_wire *w, size_t bytes, uint64_t *out) {
    if ((size_t)(w->end - w->at) < bytes) return false;
    uint64_t v = 0;
    for (size_t i = bytes; i-- > 0;)
        v = v << 8 | w->at[i];
    w->at += bytes;
    *out = v;
    return true;
}

static bool read_content(onnx_wire *w, onnx_field *f) {
    switch (f->kind) {
    case ONNX_WIRE_VARINT: return read_varint(w, &f->bits);
    case ONNX_WIRE_64: return read_fixed(w, 8, &f->bits);
    case ONNX_WIRE_32: return read_fixed(w, 4, &f->bits);
    case ONNX_WIRE_BYTES: {
        uint64_t size;
        if (!read_varint(w, &size) || size > (uint64_t)(w->end - w->at)) return false;
        f->bytes = (onnx_text){(const char *)w->at, (size_t)size};
        w->at += size;
        return true;
    }
    default: return false;
    }
}

bool onnx_wire_next(onnx_wire *w, onnx_field *f, tn_status *status) {
    *status = TN_OK;
    if (w->at == w->end) return false;
    const uint8_t *begin = w->at;
    uint64_t tag = 0;
    *f = (onnx_field){0};
    bool whole = read_varint(w, &tag) && tag >> 3 != 0 && tag >> 3 <= UINT32_MAX;
    f->number = (uint32_t)(tag >> 3);
    f->kind = (int)(tag & 7);
    if (whole && read_content(w, f)) return true;
    *status = tn_fail(TN_ERR_FORMAT,
                      "byte %zd of a message of %zd: not a protobuf field: the file is damaged or not an ONNX model",
                      (size_t)(begin - w->begin), (size_t)(w->end - w->begin));
    return false;
}

tn_status onnx_wire_each(onnx_text message, tn_status (*take)(void *ctx, const onnx_field *f), void *ctx) {
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status))
        TRY(take(ctx, &f));
    return status;
}

tn_status onnx_wire_count(onnx_text message, int64_t *counts, int most) {
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    memset(counts, 0, (size_t)(most + 1) * sizeof *counts);
    while (onnx_wire_next(&w, &f, &status))
        if (f.number <= (uint32_t)most) counts[f.number]++;
    return status;
}

float onnx_wire_float(const onnx_field *f) {
    uint32_t bits = (uint32_t)f->bits;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

tn_status onnx_numbers_add(onnx_numbers *n, const onnx_field *f, int kind) {
    if (f->kind != kind && f->kind != ONNX_WIRE_BYTES)
        return tn_fail(TN_ERR_FORMAT,
                       "field %u of a message has another wire type than ONNX defines: the file is damaged",
                       (unsigned)f->number);
    if (f->kind == kind) {
        TRY(tn_mem_reserve(&n->at, &n->capacity, n->count + 1, sizeof *n->at));
        n->at[n->count++] = f->bits;
        return TN_OK;
    }
    onnx_wire w = onnx_wire_of(f->bytes);
    size_t most = kind == ONNX_WIRE_VARINT ? f->bytes.size : f->bytes.size / (kind == ONNX_WIRE_32 ? 4 : 8);
    TRY(tn_mem_reserve(&n->at, &n->capacity, n->count + most, sizeof *n->at));
    while (w.at < w.end) {
        onnx_field item = {.kind = kind};
        if (!read_content(&w, &item))
            return tn_fail(TN_ERR_FORMAT, "a list of numbers ends in the middle of one: the file is damaged");
        n->at[n->count++] = item.bits;
    }
    return TN_OK;
}

/* ==== writing ===================================================================================================== */
/* A message inside a message is made apart and then put after its length. Source: Protocol Buffers' encoding. */

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
