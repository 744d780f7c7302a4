/* npy.c — NumPy's formats: magic, version, length of a header, a Python dict, the numbers; .npz is a zip of such files.
 *
 * What np.save, np.savez and (where the command was built with zlib) np.savez_compressed write is read, in either order
 * of elements and of bytes. */
#define TN_NO_CALLER_LINES 1 /* errors name files and nodes; a line of this file would tell nothing */
#include "cli/run/npy.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/backend.h"
#include "trunnion/ops.h"

#if TN_HAVE_ZLIB
#include <zlib.h>
#endif

enum { ALIGNMENT = 64, PREFIX = 10, BIG_ENDIAN_MACHINE = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ };

static const struct {
    const char *name; /* behind the byte order */
    tn_dtype dtype;
} types[] = {
    {"f4", TN_F32}, {"f8", TN_F64}, {"f2", TN_F16}, {"i8", TN_I64}, {"i4", TN_I32}, {"i2", TN_I16},
    {"i1", TN_I8},  {"u8", TN_U64}, {"u4", TN_U32}, {"u2", TN_U16}, {"u1", TN_U8},  {"b1", TN_BOOL},
};
enum { TYPES = sizeof types / sizeof types[0] };

tn_status npy_load(const char *path, unsigned char **bytes, size_t *size) {
    static const size_t most = (size_t)16 << 30;
    size_t room = 1 << 16, used = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
    unsigned char *all = malloc(room);
    while (all) {
        used += fread(all + used, 1, room - used, f);
        if (used < room || room >= most) break;
        unsigned char *more = realloc(all, room *= 2);
        if (!more) free(all);
        all = more;
    }
    bool bad = ferror(f) != 0 || used >= most, folder = bad && errno == EISDIR;
    fclose(f);
    *bytes = all;
    *size = used;
    if (all && !bad) return TN_OK;
    free(all);
    *bytes = NULL;
    if (folder) return tn_backend_fail(TN_ERR_IO, "'%s' is a folder; pass the path of a file in it", path);
    return tn_backend_fail(all ? TN_ERR_IO : TN_ERR_MEMORY, "cannot read all of '%s'", path);
}

/* The text behind 'key': in the header; NULL when it is not there. */
static const char *value_of(const char *header, const char *key) {
    const char *at = strstr(header, key);
    if (!at) return NULL;
    at += strlen(key);
    while (*at == ' ' || *at == ':')
        at++;
    return at;
}

static bool read_type(const char *header, tn_dtype *out, bool *big) {
    const char *at = value_of(header, "'descr'");
    if (!at || at[0] != '\'' || !strchr("<|>", at[1]) || !at[1]) return false;
    *big = at[1] == '>';
    for (int i = 0; i < TYPES; i++)
        if (strncmp(at + 2, types[i].name, 2) == 0 && at[4] == '\'') {
            *out = types[i].dtype;
            return true;
        }
    return false;
}

static bool read_shape(const char *header, int64_t shape[TN_MAX_RANK], int *rank) {
    const char *at = value_of(header, "'shape'");
    if (!at || *at != '(') return false;
    at++;
    for (*rank = 0;; (*rank)++) {
        while (*at == ' ' || *at == ',')
            at++;
        if (*at == ')') return true;
        char *end;
        long long n = strtoll(at, &end, 10);
        if (end == at || n < 0 || *rank == TN_MAX_RANK) return false;
        shape[*rank] = n;
        at = end;
    }
}

/* Bytes of the elements, or SIZE_MAX. */
static size_t npy_bytes_of(const int64_t *shape, int rank, tn_dtype dtype) {
    size_t bytes = tn_dtype_size(dtype);
    for (int d = 0; d < rank; d++) {
        if (shape[d] && bytes > SIZE_MAX / 2 / (size_t)shape[d]) return SIZE_MAX;
        bytes *= (size_t)shape[d];
    }
    return bytes;
}

typedef struct npy_header {
    tn_dtype dtype;
    int64_t shape[TN_MAX_RANK];
    int rank;
    bool columns, big; /* the first index runs fastest; the first byte is the highest */
    char text;         /* 'U': code points of 4 bytes, 'S': bytes; 0: numbers */
    size_t width;      /* of a text, in these */
} npy_header;

/* '<U12' and '|S5'. */
static bool read_text_type(const char *header, npy_header *h) {
    const char *at = value_of(header, "'descr'");
    char *end;
    if (!at || at[0] != '\'' || !at[1] || !strchr("<|>", at[1]) || (at[2] != 'U' && at[2] != 'S')) return false;
    unsigned long long width = strtoull(at + 3, &end, 10);
    h->big = at[1] == '>';
    h->text = at[2];
    h->width = (size_t)width;
    return end > at + 3 && *end == '\'' && width <= 1 << 28;
}

static tn_status read_header(const unsigned char *text, size_t length, const char *what, npy_header *h) {
    char *header = calloc(length + 1, 1);
    *h = (npy_header){.dtype = TN_DTYPE_COUNT};
    if (!header) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the header of %s", what);
    memcpy(header, text, length);
    const char *order = value_of(header, "'fortran_order'");
    h->columns = order && strncmp(order, "True", 4) == 0;
    bool good = order && (h->columns || strncmp(order, "False", 5) == 0) &&
                (read_type(header, &h->dtype, &h->big) || read_text_type(header, h)) &&
                read_shape(header, h->shape, &h->rank);
    free(header);
    if (good) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "%s: only NumPy numbers and strings (U, S) of at most %d dimensions are supported", what,
                           TN_MAX_RANK);
}

/* Numbers whose first index runs fastest are those of the tensor with its dimensions turned around. */
static tn_tensor *npy_turned(const void *numbers, const npy_header *h) {
    int64_t shape[TN_MAX_RANK], order[TN_MAX_RANK];
    for (int d = 0; d < h->rank; d++) {
        shape[d] = h->shape[h->rank - 1 - d];
        order[d] = h->rank - 1 - d;
    }
    tn_tensor *t = tn_from_data(numbers, shape, h->rank, h->dtype), *other = tn_permute(t, order, h->rank);
    tn_tensor *whole = tn_contiguous(other);
    tn_free(t);
    tn_free(other);
    return whole;
}

static void swap_bytes(unsigned char *at, size_t bytes, size_t size) {
    for (size_t i = 0; i + size <= bytes; i += size)
        for (size_t k = 0; k < size / 2; k++) {
            unsigned char low = at[i + k];
            at[i + k] = at[i + size - 1 - k];
            at[i + size - 1 - k] = low;
        }
}

static tn_status make_tensor(const unsigned char *numbers, size_t bytes, const npy_header *h, tn_tensor **out) {
    bool copy = h->big || BIG_ENDIAN_MACHINE;
    unsigned char *swapped = copy ? malloc(bytes + 1) : NULL;
    if (copy && !swapped) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %zu bytes", bytes);
    if (copy) {
        memcpy(swapped, numbers, bytes);
        if (h->big) swap_bytes(swapped, bytes, tn_dtype_size(h->dtype));
        tn_dtype_little_endian(h->dtype, swapped, (int64_t)(bytes / tn_dtype_size(h->dtype)));
        numbers = swapped;
    }
    *out = h->columns ? npy_turned(numbers, h) : tn_from_data(numbers, h->shape, h->rank, h->dtype);
    tn_status status = tn_eval(out, 1);
    free(swapped);
    if (status == TN_OK) return TN_OK;
    tn_free(*out);
    *out = NULL;
    return status;
}

/* The header, and where the elements begin. */
static tn_status open_file(const unsigned char *bytes, size_t size, const char *what, npy_header *h, size_t *data) {
    if (size < PREFIX || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return tn_backend_fail(TN_ERR_FORMAT, "%s is not a NumPy file", what);
    size_t begin = bytes[6] == 1 ? PREFIX : PREFIX + 2, length = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1 && size >= begin) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (size < begin || length > size - begin || length > 1 << 16)
        return tn_backend_fail(TN_ERR_FORMAT, "%s is truncated in its header", what);
    *data = begin + length;
    return read_header(bytes + begin, length, what, h);
}

static tn_status check_length(const char *what, size_t need, size_t there) {
    if (need <= there) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "%s has %zu bytes of data, but its shape needs %zu", what, there, need);
}

tn_status npy_decode(const unsigned char *bytes, size_t size, const char *what, tn_tensor **out) {
    npy_header h;
    size_t data;
    *out = NULL;
    TRY(open_file(bytes, size, what, &h, &data));
    if (h.text) return tn_backend_fail(TN_ERR_UNSUPPORTED, "%s contains strings; numbers are required", what);
    size_t need = npy_bytes_of(h.shape, h.rank, h.dtype);
    TRY(check_length(what, need, size - data));
    return make_tensor(bytes + data, need, &h, out);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

bool npy_is_text(const unsigned char *bytes, size_t size) {
    npy_header h;
    size_t data;
    return open_file(bytes, size, "", &h, &data) == TN_OK && h.text;
}

static size_t put_utf8(uint32_t c, char *to) {
    if (c < 0x80) return to[0] = (char)c, 1;
    size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    to[0] = (char)(lead[more] | c >> (6 * more));
    for (size_t k = 1; k <= more; k++)
        to[k] = (char)(0x80 | (c >> (6 * (more - k)) & 0x3f));
    return more + 1;
}

/* One element: zeros behind its end belong to the array. NULL: no memory, or no code point. */
static char *npy_text_of(const unsigned char *at, const npy_header *h) {
    size_t each = h->text == 'U' ? 4 : 1, width = h->width, used = 0;
    while (width > 0 && memcmp(at + (width - 1) * each, "\0\0\0", each) == 0)
        width--;
    char *text = malloc(width * each + 1);
    for (size_t i = 0; text && i < width; i++) {
        const unsigned char *c = at + i * each;
        uint32_t code = each == 1 ? *c
                        : h->big  ? (uint32_t)c[0] << 24 | (uint32_t)c[1] << 16 | (uint32_t)c[2] << 8 | c[3]
                                  : (uint32_t)c[3] << 24 | (uint32_t)c[2] << 16 | (uint32_t)c[1] << 8 | c[0];
        if (each == 4 && code > 0x10ffff) return free(text), NULL;
        used += each == 1 ? (size_t)(text[used] = (char)code, 1) : put_utf8(code, text + used);
    }
    if (text) text[used] = 0;
    return text;
}

tn_status npy_decode_texts(const unsigned char *bytes, size_t size, const char *what, npy_texts *out) {
    npy_header h;
    size_t data;
    *out = (npy_texts){0};
    TRY(open_file(bytes, size, what, &h, &data));
    if (!h.text) return tn_backend_fail(TN_ERR_ARGUMENT, "%s contains numbers; strings are required", what);
    size_t each = h.width * (h.text == 'U' ? 4 : 1), count = npy_bytes_of(h.shape, h.rank, TN_U8);
    if (h.columns && h.rank > 1)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "%s: strings in column-major order are not supported; save np.ascontiguousarray(x)",
                               what);
    if (count > INT32_MAX || (each && count > SIZE_MAX / each))
        return tn_backend_fail(TN_ERR_FORMAT, "%s has too many strings", what);
    TRY(check_length(what, each * count, size - data));
    out->rank = h.rank;
    memcpy(out->shape, h.shape, sizeof h.shape);
    out->list = calloc(count + 1, sizeof *out->list);
    for (; out->list && out->count < (int64_t)count; out->count++) {
        out->list[out->count] = npy_text_of(bytes + data + (size_t)out->count * each, &h);
        if (!out->list[out->count]) break;
    }
    if (out->list && out->count == (int64_t)count) return TN_OK;
    npy_texts_free(out);
    return tn_backend_fail(TN_ERR_FORMAT, "%s: a string is not valid Unicode, or memory ran out", what);
}

void npy_texts_free(npy_texts *t) {
    for (int64_t i = 0; t->list && i < t->count; i++)
        free(t->list[i]);
    free(t->list);
    *t = (npy_texts){0};
}

/* ---- .npz -------------------------------------------------------------------------------------------------------- */

enum { ZIP_HEADER = 30 }; /* of a member: signature, …, method at 8, CRC at 14, sizes at 18, 22, lengths at 26, 28 */

static size_t npy_number(const unsigned char *at, int bytes) {
    size_t v = 0;
    for (int i = bytes; i-- > 0;)
        v = v << 8 | at[i];
    return v;
}

bool npz_is(const unsigned char *bytes, size_t size) { return size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0; }

/* Sizes of a member, unpacked and as it lies there, which np.savez writes into the extra field of 64-bit sizes. */
static bool member_sizes(const unsigned char *header, const unsigned char *extra, size_t extra_length,
                         npz_member *out) {
    out->size = npy_number(header + 18, 4);
    out->whole = npy_number(header + 22, 4);
    if (out->size != UINT32_MAX) return true;
    for (size_t at = 0; at + 4 <= extra_length; at += 4 + npy_number(extra + at + 2, 2)) {
        if (npy_number(extra + at, 2) != 1 || at + 20 > extra_length) continue;
        out->whole = npy_number(extra + at + 4, 8);
        out->size = npy_number(extra + at + 12, 8);
        return true;
    }
    return false;
}

bool npz_next(const unsigned char *bytes, size_t size, size_t *at, npz_member *out) {
    if (*at > size || size - *at < ZIP_HEADER || memcmp(bytes + *at, "PK\3\4", 4) != 0) return false;
    const unsigned char *header = bytes + *at;
    size_t name = npy_number(header + 26, 2), extra = npy_number(header + 28, 2),
           begin = *at + ZIP_HEADER + name + extra;
    if (begin > size || !member_sizes(header, header + ZIP_HEADER + name, extra, out)) return false;
    if (out->size > size - begin || name >= sizeof out->name) return false;
    memcpy(out->name, header + ZIP_HEADER, name);
    out->name[name] = 0;
    if (name > 4 && strcmp(out->name + name - 4, ".npy") == 0) out->name[name - 4] = 0;
    out->bytes = bytes + begin;
    out->packed = npy_number(header + 8, 2) != 0;
    out->crc = (uint32_t)npy_number(header + 14, 4);
    *at = begin + out->size;
    return true;
}

bool npz_is_end(const unsigned char *bytes, size_t size, size_t at) {
    if (at > size) return false;
    while (size - at >= 46 && memcmp(bytes + at, "PK\1\2", 4) == 0) { /* a member's entry */
        at += 46 + npy_number(bytes + at + 28, 2) + npy_number(bytes + at + 30, 2) + npy_number(bytes + at + 32, 2);
        if (at > size) return false;
    }
    if (size - at >= 76 && memcmp(bytes + at, "PK\6\6", 4) == 0) at += 76; /* the ends with 64-bit sizes */
    return size - at >= 22 && memcmp(bytes + at, "PK\5\6", 4) == 0 &&
           size - at - 22 >= npy_number(bytes + at + 20, 2); /* a comment */
}

/* CRC-32 as zip has it (ISO 3309: polynomial 0x04c11db7, bits turned), four bits at a time. */
static uint32_t crc_of(const unsigned char *bytes, size_t size) {
    uint32_t table[16], crc = ~(uint32_t)0;
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int bit = 0; bit < 4; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

/* The tensor in a member's unpacked bytes, if they are those that were written. */
static tn_status decode_member(const npz_member *m, const unsigned char *bytes, size_t size, tn_tensor **out) {
    uint32_t crc = crc_of(bytes, size);
    if (crc == m->crc) return npy_decode(bytes, size, m->name, out);
    return tn_backend_fail(TN_ERR_FORMAT, "the member '%s' is damaged: its CRC is %08x, not %08x", m->name,
                           (unsigned)crc, (unsigned)m->crc);
}

#if TN_HAVE_ZLIB
/* What deflate packs becomes smaller by a factor of 1032 at most: a size beyond that is a lie. */
static tn_status unpack(const npz_member *m, unsigned char *to) {
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)m->bytes};
    size_t in = m->size, out = m->whole, step = (size_t)1 << 30;
    int end = inflateInit2(&z, -MAX_WBITS); /* no header: a zip has its own */
    z.next_out = to;
    while (end == Z_OK && (in > 0 || z.avail_in > 0) && (out > 0 || z.avail_out > 0)) {
        if (z.avail_in == 0) in -= z.avail_in = (unsigned)(in < step ? in : step);
        if (z.avail_out == 0) out -= z.avail_out = (unsigned)(out < step ? out : step);
        end = inflate(&z, Z_NO_FLUSH);
    }
    bool whole = (end == Z_STREAM_END || end == Z_OK) && out == 0 && z.avail_out == 0;
    inflateEnd(&z);
    if (whole) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "the member '%s' is damaged: decompressing it failed", m->name);
}

tn_status npz_decode(const npz_member *m, tn_tensor **out) {
    *out = NULL;
    if (!m->packed) return decode_member(m, m->bytes, m->size, out);
    if (m->whole / 1040 > m->size + 1)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "the member '%s' has an invalid size: %zu bytes compressed, %zu decompressed", m->name,
                               m->size, m->whole);
    unsigned char *whole = malloc(m->whole + 1);
    if (!whole) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the %zu bytes of '%s'", m->whole, m->name);
    tn_status status = unpack(m, whole);
    if (status == TN_OK) status = decode_member(m, whole, m->whole, out);
    free(whole);
    return status;
}
#else
tn_status npz_decode(const npz_member *m, tn_tensor **out) {
    *out = NULL;
    if (!m->packed) return decode_member(m, m->bytes, m->size, out);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "the member '%s' is compressed, but this build has no zlib: write the file with np.savez",
                           m->name);
}
#endif

/* ---- writing ----------------------------------------------------------------------------------------------------- */

bool npy_write_header(FILE *f, const int64_t *shape, int rank, tn_dtype dtype) {
    char header[512] = "";
    int n = 0;
    const char *type = "f4";
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == dtype) type = types[i].name;
    n += snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                  type[1] == '1' ? '|' : '<', type);
    for (int d = 0; d < rank; d++)
        n += snprintf(header + n, sizeof header - (size_t)n, "%lld,%s", (long long)shape[d], d + 1 < rank ? " " : "");
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    int padded = (PREFIX + n + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - PREFIX;
    const unsigned char prefix[PREFIX] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(padded & 255), (unsigned char)(padded >> 8)};
    return fwrite(prefix, 1, sizeof prefix, f) == sizeof prefix && fprintf(f, "%-*s\n", padded - 1, header) == padded;
}

static tn_status write_numbers(FILE *f, const char *path, const tn_tensor *t) {
    size_t bytes = tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    void *numbers = malloc(bytes ? bytes : 1);
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %zu bytes", bytes);
    tn_status status = tn_read(t, numbers, bytes);
    tn_dtype_little_endian(tn_dtype_of(t), numbers, tn_numel(t));
    bool good = npy_write_header(f, tn_shape(t), tn_rank(t), tn_dtype_of(t)) && fwrite(numbers, 1, bytes, f) == bytes;
    if (status == TN_OK && !good) status = tn_backend_fail(TN_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
    free(numbers);
    return status;
}

tn_status npy_write(FILE *f, const char *path, const tn_tensor *t) {
    if (tn_dtype_of(t) != TN_BF16) return write_numbers(f, path, t);
    tn_tensor *wide = tn_cast(t, TN_F32);
    tn_status status = write_numbers(f, path, wide);
    tn_free(wide);
    return status;
}
