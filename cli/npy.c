/* npy.c — NumPy's formats: magic, version, length of a header, a Python dict, the numbers; .npz is a zip of such files.
 *
 * Only what np.save and np.savez write is read: row-major, little-endian, not compressed. */
#include "npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { ALIGNMENT = 64, PREFIX = 10 };

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
    bool bad = ferror(f) != 0 || used >= most;
    fclose(f);
    *bytes = all;
    *size = used;
    if (all && !bad) return TN_OK;
    free(all);
    *bytes = NULL;
    return tn_backend_fail(all ? TN_ERR_IO : TN_ERR_MEMORY, "cannot read '%s' whole", path);
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

static bool read_type(const char *header, tn_dtype *out) {
    const char *at = value_of(header, "'descr'");
    if (!at || at[0] != '\'' || (at[1] != '<' && at[1] != '|')) return false;
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
static size_t bytes_of(const int64_t *shape, int rank, tn_dtype dtype) {
    size_t bytes = tn_dtype_size(dtype);
    for (int d = 0; d < rank; d++) {
        if (shape[d] && bytes > SIZE_MAX / 2 / (size_t)shape[d]) return SIZE_MAX;
        bytes *= (size_t)shape[d];
    }
    return bytes;
}

tn_status npy_decode(const unsigned char *bytes, size_t size, const char *what, tn_tensor **out) {
    *out = NULL;
    if (size < PREFIX || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return tn_backend_fail(TN_ERR_FORMAT, "%s is no NumPy file", what);
    size_t begin = bytes[6] == 1 ? PREFIX : PREFIX + 2, length = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1 && size >= begin) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (size < begin || length > size - begin || length > 1 << 16)
        return tn_backend_fail(TN_ERR_FORMAT, "%s is cut short in its header", what);
    char *header = calloc(length + 1, 1);
    if (!header) return tn_backend_fail(TN_ERR_MEMORY, "no memory for the header of %s", what);
    memcpy(header, bytes + begin, length);
    const char *order = value_of(header, "'fortran_order'");
    tn_dtype dtype = TN_DTYPE_COUNT;
    int64_t shape[TN_MAX_RANK];
    int rank = 0;
    bool good =
        order && strncmp(order, "False", 5) == 0 && read_type(header, &dtype) && read_shape(header, shape, &rank);
    free(header);
    if (!good)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "%s: only row-major, little-endian numbers in at most %d dimensions are read", what,
                               TN_MAX_RANK);
    size_t need = bytes_of(shape, rank, dtype);
    if (need > size - begin - length)
        return tn_backend_fail(TN_ERR_FORMAT, "%s has %zu bytes of numbers where its shape asks for %zu", what,
                               size - begin - length, need);
    *out = tn_from_data(bytes + begin + length, shape, rank, dtype);
    tn_status status = tn_status_of(*out);
    if (status == TN_OK) return TN_OK;
    tn_free(*out);
    *out = NULL;
    return status;
}

/* ---- .npz -------------------------------------------------------------------------------------------------------- */

enum { ZIP_HEADER = 30 }; /* of a member: signature, …, method at 8, sizes at 18 and 22, lengths at 26 and 28 */

static size_t number(const unsigned char *at, int bytes) {
    size_t v = 0;
    for (int i = bytes; i-- > 0;)
        v = v << 8 | at[i];
    return v;
}

bool npz_is(const unsigned char *bytes, size_t size) { return size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0; }

/* The size of a member, which np.savez writes into the extra field of 64-bit sizes. */
static size_t member_size(const unsigned char *header, const unsigned char *extra, size_t extra_length) {
    size_t size = number(header + 18, 4);
    if (size != UINT32_MAX) return size;
    for (size_t at = 0; at + 4 <= extra_length; at += 4 + number(extra + at + 2, 2))
        if (number(extra + at, 2) == 1 && at + 20 <= extra_length) return number(extra + at + 12, 8);
    return SIZE_MAX;
}

bool npz_next(const unsigned char *bytes, size_t size, size_t *at, npz_member *out) {
    if (*at > size || size - *at < ZIP_HEADER || memcmp(bytes + *at, "PK\3\4", 4) != 0) return false;
    const unsigned char *header = bytes + *at;
    size_t name = number(header + 26, 2), extra = number(header + 28, 2), begin = *at + ZIP_HEADER + name + extra;
    if (begin > size) return false;
    size_t length = member_size(header, header + ZIP_HEADER + name, extra);
    if (length > size - begin || name >= sizeof out->name) return false;
    memcpy(out->name, header + ZIP_HEADER, name);
    out->name[name] = 0;
    if (name > 4 && strcmp(out->name + name - 4, ".npy") == 0) out->name[name - 4] = 0;
    out->bytes = bytes + begin;
    out->size = length;
    out->packed = number(header + 8, 2) != 0;
    *at = begin + length;
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool put(FILE *f, const tn_tensor *t, const void *numbers, size_t bytes) {
    char header[512] = "";
    int n = 0, rank = tn_rank(t);
    const char *type = "f4";
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == tn_dtype_of(t)) type = types[i].name;
    n += snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                  type[1] == '1' ? '|' : '<', type);
    for (int d = 0; d < rank; d++)
        n += snprintf(header + n, sizeof header - (size_t)n, "%lld,%s", (long long)tn_shape(t)[d],
                      d + 1 < rank ? " " : "");
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    int padded = (PREFIX + n + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - PREFIX;
    const unsigned char prefix[PREFIX] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(padded & 255), (unsigned char)(padded >> 8)};
    return fwrite(prefix, 1, sizeof prefix, f) == sizeof prefix && fprintf(f, "%-*s\n", padded - 1, header) == padded &&
           fwrite(numbers, 1, bytes, f) == bytes;
}

static tn_status write_numbers(const char *path, const tn_tensor *t) {
    size_t bytes = tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    void *numbers = malloc(bytes ? bytes : 1);
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "no memory for %zu bytes", bytes);
    tn_status status = tn_read(t, numbers, bytes);
    FILE *f = status == TN_OK ? fopen(path, "wb") : NULL;
    bool good = f && put(f, t, numbers, bytes);
    if (f && fclose(f) != 0) good = false;
    if (status == TN_OK && !good) {
        status = tn_backend_fail(TN_ERR_IO, "writing '%s': %s", path, strerror(errno));
        if (f) remove(path);
    }
    free(numbers);
    return status;
}

tn_status npy_write(const char *path, const tn_tensor *t) {
    if (tn_dtype_of(t) != TN_BF16) return write_numbers(path, t);
    tn_tensor *wide = tn_cast(t, TN_F32);
    tn_status status = write_numbers(path, wide);
    tn_free(wide);
    return status;
}
