/* events.c — TensorBoard's event files: records of a length, an Event message of Protocol Buffers, and checksums.
 * Source: TensorFlow's RecordWriter, event.proto and summary.proto. */
#include "cli/train/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trunnion/backend.h"

/* A message that is being written, in memory that is large enough. */
typedef struct message {
    unsigned char *data;
    size_t size;
} message;

/* ---- Protocol Buffers -------------------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(message *m, uint64_t v) {
    for (; v >= 0x80; v >>= 7)
        m->data[m->size++] = (unsigned char)(v | 0x80);
    m->data[m->size++] = (unsigned char)v;
}

static void put_key(message *m, int field, int type) { put_varint(m, (uint64_t)(field << 3 | type)); }

static void put_little_endian(message *m, uint64_t bits, int bytes) {
    for (int i = 0; i < bytes; i++)
        m->data[m->size++] = (unsigned char)(bits >> 8 * i);
}

static void put_int(message *m, int field, int64_t v) {
    put_key(m, field, VARINT);
    put_varint(m, (uint64_t)v);
}

static void put_f64(message *m, int field, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED64);
    put_little_endian(m, bits, 8);
}

static void put_f32(message *m, int field, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED32);
    put_little_endian(m, bits, 4);
}

static void put_bytes(message *m, int field, const void *data, size_t size) {
    put_key(m, field, BYTES);
    put_varint(m, size);
    memcpy(m->data + m->size, data, size);
    m->size += size;
}

static void put_string(message *m, int field, const char *text) { put_bytes(m, field, text, strlen(text)); }

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli), rotated and with a constant added, so that a checksum of checksums is not weak. */
static uint32_t masked_crc(const unsigned char *data, size_t size) {
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static tn_status write_record(events *e, const message *m) {
    unsigned char head[12], tail[4];
    message h = {.data = head}, t = {.data = tail};
    put_little_endian(&h, m->size, 8);
    put_little_endian(&h, masked_crc(head, 8), 4);
    put_little_endian(&t, masked_crc(m->data, m->size), 4);
    bool written = fwrite(head, sizeof head, 1, e->file) == 1 && fwrite(m->data, m->size, 1, e->file) == 1 &&
                   fwrite(tail, sizeof tail, 1, e->file) == 1 && fflush(e->file) == 0;
    return written ? TN_OK : tn_backend_fail(TN_ERR_IO, "writing '%s': %s", e->path, strerror(errno));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NUMBER = 2, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { MOST_TAG = 64, MOST_SCALARS = 8, VALUE_BYTES = MOST_TAG + 16 };

static double wall_time(void) {
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void begin_event(message *m, int64_t step) {
    put_f64(m, EVENT_TIME, wall_time());
    put_int(m, EVENT_STEP, step);
}

tn_status events_scalars(events *e, int64_t step, const event_scalar *scalars, int count) {
    unsigned char all[MOST_SCALARS * VALUE_BYTES + 64], summary[MOST_SCALARS * VALUE_BYTES], value[VALUE_BYTES];
    message m = {.data = all}, s = {.data = summary};
    if (!e->file) return TN_OK;
    for (int i = 0; i < count && i < MOST_SCALARS; i++) {
        message v = {.data = value};
        if (isnan(scalars[i].value)) continue;
        put_bytes(&v, VALUE_TAG, scalars[i].tag, strnlen(scalars[i].tag, MOST_TAG));
        put_f32(&v, VALUE_NUMBER, (float)scalars[i].value);
        put_bytes(&s, SUMMARY_VALUE, v.data, v.size);
    }
    if (!s.size) return TN_OK;
    begin_event(&m, step);
    put_bytes(&m, EVENT_SUMMARY, s.data, s.size);
    return write_record(e, &m);
}

/* The plugin "text" shows a tensor of strings: TensorProto has dtype 7 (DT_STRING) and the shape [1]. */
static void put_text_value(message *v, const char *tag, const char *text, unsigned char *room) {
    static const unsigned char dtype_and_shape[] = {0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1};
    unsigned char plugin[16], metadata[24];
    message p = {.data = plugin}, d = {.data = metadata}, t = {.data = room};
    enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1, TENSOR_STRING = 8 };
    put_string(&p, PLUGIN_NAME, "text");
    put_bytes(&d, METADATA_PLUGIN, p.data, p.size);
    memcpy(room, dtype_and_shape, t.size = sizeof dtype_and_shape);
    put_string(&t, TENSOR_STRING, text);
    put_bytes(v, VALUE_TAG, tag, strnlen(tag, MOST_TAG));
    put_bytes(v, VALUE_TENSOR, t.data, t.size);
    put_bytes(v, VALUE_METADATA, d.data, d.size);
}

tn_status events_text(events *e, int64_t step, const char *tag, const char *text) {
    if (!e->file) return TN_OK;
    size_t room = strlen(text) + 4 * VALUE_BYTES; /* the text, with the heads of all messages around it */
    unsigned char *memory = malloc(4 * room);
    if (!memory) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    message v = {.data = memory + room}, s = {.data = memory + 2 * room}, m = {.data = memory + 3 * room};
    put_text_value(&v, tag, text, memory);
    put_bytes(&s, SUMMARY_VALUE, v.data, v.size);
    begin_event(&m, step);
    put_bytes(&m, EVENT_SUMMARY, s.data, s.size);
    tn_status status = write_record(e, &m);
    free(memory);
    return status;
}

/* The file's version, and the start of a session: it makes TensorBoard forget later steps of an earlier one. */
static tn_status begin_file(events *e, int64_t first) {
    static const unsigned char session_start[] = {0x08, 1};
    unsigned char data[64];
    message m = {.data = data};
    put_f64(&m, EVENT_TIME, wall_time());
    put_string(&m, EVENT_VERSION, "brain.Event:2");
    tn_status status = write_record(e, &m);
    m.size = 0;
    begin_event(&m, first);
    put_bytes(&m, EVENT_SESSION, session_start, sizeof session_start);
    return status == TN_OK ? write_record(e, &m) : status;
}

tn_status events_open(events *e, const char *folder, int64_t first) {
    double now = wall_time();
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return tn_backend_fail(TN_ERR_IO, "--tensorboard: making the folder '%s': %s", folder, strerror(errno));
    /* In the order of their names, which is that of time, TensorBoard reads a folder's files. */
    int n = snprintf(e->path, sizeof e->path, "%s/events.out.tfevents.%010.0f.%06d.trunnion.%ld", folder, floor(now),
                     (int)((now - floor(now)) * 1e6), (long)getpid());
    if (n < 0 || (size_t)n >= sizeof e->path)
        return tn_backend_fail(TN_ERR_ARGUMENT, "--tensorboard: the folder's name has %zu characters; at most %zu",
                               strlen(folder), sizeof e->path - 64);
    e->file = fopen(e->path, "wb");
    if (!e->file) return tn_backend_fail(TN_ERR_IO, "cannot open '%s': %s", e->path, strerror(errno));
    return begin_file(e, first);
}

void events_close(events *e) {
    if (e->file) fclose(e->file);
    e->file = NULL;
}
