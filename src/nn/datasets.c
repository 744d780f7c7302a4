/* datasets.c — sources of samples in files: NumPy, IDX, token ids, tables. Samples are read when they are needed, with
 * pread, so several threads can read one file and no memory holds it; a table is small and read as a whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/make.h"
#include "trunnion/backend.h"
#include "trunnion/data.h"

/* ---- files of samples of one size -------------------------------------------------------------------------------- */

/* A field: sample i has `bytes` bytes from `first` + i · bytes on. */
typedef struct part {
    int fd;
    int64_t first, bytes, count, size; /* size: of the file */
    tn_dataset_field field;
    char name[256];
} part;

typedef struct parts {
    int count;
    part list[TN_DATASET_FIELDS];
} parts;

static void close_parts(void *ctx) {
    parts *p = ctx;
    for (int i = 0; p && i < p->count; i++)
        close(p->list[i].fd);
    free(p);
}

static tn_status read_at(const part *p, void *out, size_t bytes, int64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(p->fd, (char *)out + done, bytes - done, (off_t)(offset + (int64_t)done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return tn_backend_fail(TN_ERR_IO, "'%s': reading byte %lld: %s", p->name, (long long)offset,
                                   got < 0 ? strerror(errno) : "the file ends there");
        done += (size_t)got;
    }
    return TN_OK;
}

static tn_status read_part(void *ctx, int64_t sample, int field, void *out) {
    const part *p = &((parts *)ctx)->list[field];
    TRY(read_at(p, out, (size_t)p->bytes, p->first + sample * p->bytes));
    tn_dtype_little_endian(p->field.dtype, out, p->bytes / (int64_t)tn_dtype_size(p->field.dtype));
    return TN_OK;
}

static tn_status open_part(parts *all, const char *path, part **out) {
    part *p = &all->list[all->count];
    struct stat facts;
    if (!path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_dataset: a path is NULL");
    snprintf(p->name, sizeof p->name, "%s", path);
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    if (p->fd < 0) return tn_backend_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    all->count++;
    if (fstat(p->fd, &facts) != 0 || !S_ISREG(facts.st_mode))
        return tn_backend_fail(TN_ERR_IO, "'%s' is not a regular file", path);
    p->size = (int64_t)facts.st_size;
    *out = p;
    return TN_OK;
}

/* shape: of the whole file, samples first. */
static tn_status set_shape(part *p, const int64_t *shape, int rank, tn_dtype dtype, int64_t first) {
    if (rank < 1 || rank > TN_MAX_RANK)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' has %d dimensions; it must have 1 to %d", p->name, rank,
                               TN_MAX_RANK);
    int64_t most = p->size - first, bytes = (int64_t)tn_dtype_size(dtype);
    p->field = (tn_dataset_field){.rank = rank - 1, .dtype = dtype};
    for (int d = 1; d < rank; d++) {
        if (shape[d] < 1 || shape[d] > most / bytes)
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': extent %d is %lld, which the file of %lld bytes cannot hold",
                                   p->name, d, (long long)shape[d], (long long)p->size);
        p->field.shape[d - 1] = shape[d];
        bytes *= shape[d];
    }
    if (shape[0] < 1 || shape[0] > most / bytes)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': %lld samples of %lld bytes do not fit in the file of %lld bytes",
                               p->name, (long long)shape[0], (long long)bytes, (long long)p->size);
    p->count = shape[0];
    p->bytes = bytes;
    p->first = first;
    return TN_OK;
}

static tn_status make_dataset(parts *all, tn_dataset **out) {
    tn_dataset_field fields[TN_DATASET_FIELDS];
    for (int i = 0; i < all->count; i++) {
        fields[i] = all->list[i].field;
        if (all->list[i].count == all->list[0].count) continue;
        tn_status status =
            tn_backend_fail(TN_ERR_FORMAT, "'%s' has %lld samples, but '%s' has %lld", all->list[i].name,
                            (long long)all->list[i].count, all->list[0].name, (long long)all->list[0].count);
        close_parts(all);
        return status;
    }
    return tn_dataset_new(all->list[0].count, fields, all->count, read_part, close_parts, all, out);
}

static parts *new_parts(void) {
    parts *all = calloc(1, sizeof *all);
    if (!all) (void)tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    return all;
}

/* ---- NumPy ------------------------------------------------------------------------------------------------------- */

enum { NPY_MAGIC = 8, NPY_MOST_HEADER = 1 << 16 };

/* What follows 'key': in the header, a dict as Python writes it. */
static const char *npy_value(const char *header, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *at = strstr(header, quoted);
    if (!at) return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

static bool npy_dtype(const char *at, tn_dtype *out) {
    static const struct {
        const char *text;
        tn_dtype dtype;
    } known[] = {{"'<f2'", TN_F16}, {"'<f4'", TN_F32}, {"'<f8'", TN_F64}, {"'|i1'", TN_I8},  {"'<i2'", TN_I16},
                 {"'<i4'", TN_I32}, {"'<i8'", TN_I64}, {"'|u1'", TN_U8},  {"'|b1'", TN_BOOL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(at, known[i].text, strlen(known[i].text)) == 0) {
            *out = known[i].dtype;
            return true;
        }
    return false;
}

static tn_status npy_header(part *p, const char *header, int64_t first) {
    const char *descr = npy_value(header, "descr"), *order = npy_value(header, "fortran_order");
    const char *at = npy_value(header, "shape");
    int64_t shape[TN_MAX_RANK + 1];
    int rank = 0;
    tn_dtype dtype;
    if (!descr || !order || !at || *at++ != '(')
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': the header has no descr, fortran_order or shape", p->name);
    if (!npy_dtype(descr, &dtype))
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s' has the dtype %.12s, which is not supported", p->name, descr);
    if (strncmp(order, "False", 5) != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s' is in Fortran order; save it with numpy.ascontiguousarray",
                               p->name);
    while (rank <= TN_MAX_RANK && *at >= '0' && *at <= '9') {
        char *end;
        errno = 0;
        shape[rank++] = strtoll(at, &end, 10);
        if (errno != 0) return tn_backend_fail(TN_ERR_FORMAT, "'%s': an extent is out of range", p->name);
        at = end + strspn(end, ", ");
    }
    return set_shape(p, shape, rank, dtype, first);
}

static tn_status open_npy(parts *all, const char *path) {
    part *p;
    unsigned char start[NPY_MAGIC + 4];
    TRY(open_part(all, path, &p));
    if (p->size < (int64_t)sizeof start || read_at(p, start, sizeof start, 0) != TN_OK ||
        memcmp(start, "\x93NUMPY", 6) != 0)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' is not a .npy file (it must begin with \\x93NUMPY)", path);
    bool wide = start[6] >= 2;
    size_t length = start[8] | (size_t)start[9] << 8, first = wide ? 12 : 10;
    if (wide) length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (length > NPY_MOST_HEADER || (int64_t)(first + length) > p->size)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': a header of %zu bytes is too long", path, length);
    AUTO_NN_FREE char *header = malloc(length + 1);
    TRY(header ? read_at(p, header, length, (int64_t)first) : tn_backend_fail(TN_ERR_MEMORY, "out of memory"));
    if (header) header[length] = 0;
    return npy_header(p, header, (int64_t)(first + length));
}

tn_status tn_dataset_npy(const char *const *paths, int count, tn_dataset **out) {
    if (!paths || !out || count < 1 || count > TN_DATASET_FIELDS)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_dataset_npy: %d files; there must be 1 to %d", count,
                               TN_DATASET_FIELDS);
    *out = NULL;
    parts *all = new_parts();
    tn_status status = all ? TN_OK : TN_ERR_MEMORY;
    for (int i = 0; i < count && status == TN_OK; i++)
        status = open_npy(all, paths[i]);
    if (status == TN_OK) return make_dataset(all, out);
    close_parts(all);
    return status;
}

/* ---- IDX --------------------------------------------------------------------------------------------------------- */

static tn_status open_idx(parts *all, const char *path) {
    part *p;
    unsigned char start[4], extents[4 * TN_MAX_RANK];
    int64_t shape[TN_MAX_RANK];
    TRY(open_part(all, path, &p));
    if (p->size < 4 || read_at(p, start, 4, 0) != TN_OK || start[0] || start[1] || start[3] < 1 ||
        start[3] > TN_MAX_RANK)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' is not an IDX file (two zeros, a type, a number of dimensions)",
                               path);
    if (start[2] != 8 && start[2] != 9)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s' has elements of type 0x%02x; only bytes (0x08, 0x09) are supported", path,
                               start[2]);
    TRY(read_at(p, extents, 4 * (size_t)start[3], 4));
    for (int d = 0; d < start[3]; d++)
        shape[d] =
            (int64_t)extents[4 * d] << 24 | extents[4 * d + 1] << 16 | extents[4 * d + 2] << 8 | extents[4 * d + 3];
    return set_shape(p, shape, start[3], start[2] == 8 ? TN_U8 : TN_I8, 4 + 4 * (int64_t)start[3]);
}

tn_status tn_dataset_idx(const char *images, const char *labels, tn_dataset **out) {
    if (!images || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_dataset_idx: images or out is NULL");
    *out = NULL;
    parts *all = new_parts();
    tn_status status = all ? open_idx(all, images) : TN_ERR_MEMORY;
    if (status == TN_OK && labels) status = open_idx(all, labels);
    if (status == TN_OK) return make_dataset(all, out);
    close_parts(all);
    return status;
}

/* ---- token ids --------------------------------------------------------------------------------------------------- */

/* Field 0: the ids from place sample · length on; field 1: those one place further. */
static tn_status read_tokens(void *ctx, int64_t sample, int field, void *out) {
    const part *p = &((parts *)ctx)->list[0];
    int64_t length = p->count, width = p->bytes;
    unsigned char *from = (unsigned char *)out + length * (8 - width); /* widened in place, from the front */
    TRY(read_at(p, from, (size_t)(length * width), (sample * length + field) * width));
    tn_dtype_little_endian(width == 4 ? TN_I32 : TN_U16, from, length);
    for (int64_t i = 0; i < length; i++) {
        uint16_t narrow;
        int32_t wide;
        memcpy(&narrow, from + i * width, sizeof narrow);
        if (width == 4) memcpy(&wide, from + i * width, sizeof wide);
        int64_t id = width == 4 ? wide : narrow;
        memcpy((char *)out + i * 8, &id, sizeof id);
    }
    return TN_OK;
}

tn_status tn_dataset_tokens(const char *path, int bytes, int64_t length, tn_dataset **out) {
    if (!out || (bytes != 2 && bytes != 4) || length < 1 || length > INT32_MAX)
        return tn_backend_fail(
            TN_ERR_ARGUMENT,
            "tn_dataset_tokens: ids of %d bytes in samples of %lld; bytes must be 2 or 4, the length 1 "
            "to %d",
            bytes, (long long)length, INT32_MAX);
    *out = NULL;
    parts *all = new_parts();
    part *p = NULL;
    tn_status status = all ? open_part(all, path, &p) : TN_ERR_MEMORY;
    int64_t samples = p ? (p->size / bytes - 1) / length : 0;
    if (status == TN_OK && samples < 1)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "'%s' has %lld ids; a sample needs %lld", path,
                                 (long long)(p->size / bytes), (long long)length + 1);
    if (status != TN_OK) {
        close_parts(all);
        return status;
    }
    p->bytes = bytes;
    p->count = length;
    const tn_dataset_field ids = {.rank = 1, .shape = {length}, .dtype = TN_I64}, fields[] = {ids, ids};
    return tn_dataset_new(samples, fields, 2, read_tokens, close_parts, all, out);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

typedef struct table {
    float *values;   /* [rows, columns] without the label */
    int64_t *labels; /* NULL: none */
    int64_t rows, columns, room;
    int64_t label; /* its column; -1: none */
    int64_t line;
    const char *path;
} table;

static void free_table(void *ctx) {
    table *t = ctx;
    if (!t) return;
    free(t->values);
    free(t->labels);
    free(t);
}

static tn_status read_row(void *ctx, int64_t sample, int field, void *out) {
    const table *t = ctx;
    if (field == 1)
        memcpy(out, &t->labels[sample], sizeof *t->labels);
    else
        memcpy(out, t->values + sample * t->columns, (size_t)t->columns * sizeof *t->values);
    return TN_OK;
}

static tn_status wrong_line(const table *t, const char *what) {
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': line %lld: %s", t->path, (long long)t->line, what);
}

static tn_status make_row(table *t) {
    if (t->rows < t->room) return TN_OK;
    int64_t room = t->room ? 2 * t->room : 64;
    float *values = realloc(t->values, (size_t)(room * t->columns) * sizeof *values);
    if (values) t->values = values;
    int64_t *labels = values && t->label >= 0 ? realloc(t->labels, (size_t)room * sizeof *labels) : t->labels;
    if (labels) t->labels = labels;
    if (!values || (t->label >= 0 && !labels)) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    t->room = room;
    return TN_OK;
}

static int64_t count_columns(const char *line) {
    int64_t n = 1;
    for (; *line; line++)
        n += *line == ',';
    return n;
}

/* Numbers of a line, label apart. */
static tn_status take_row(table *t, const char *line) {
    TRY(make_row(t));
    int64_t column = 0, all = t->columns + (t->label >= 0), kept = 0;
    for (const char *at = line; column < all; column++) {
        char *end;
        double v = strtod(at, &end);
        if (end == at) return wrong_line(t, "a number is missing");
        if (column == t->label && (v != v || v < -1e15 || v > 1e15 || (double)(int64_t)v != v))
            return wrong_line(t, "the label is not a whole number");
        if (column == t->label)
            t->labels[t->rows] = (int64_t)v;
        else
            t->values[t->rows * t->columns + kept++] = (float)v;
        at = end + strspn(end, " \t\r\n");
        if (*at && *at != ',') return wrong_line(t, "a cell is not a number; commas separate cells");
        if (*at != (column == all - 1 ? 0 : ',')) return wrong_line(t, "has another number of columns than the first");
        at += *at == ',';
    }
    t->rows++;
    return TN_OK;
}

static bool has_number(const char *line) {
    for (const char *at = line; at; at = strchr(at, ',')) {
        char *end;
        at += *at == ',';
        (void)strtod(at, &end);
        const char *behind = end + strspn(end, " \t\r\n");
        if (end != at && (!*behind || *behind == ',')) return true;
    }
    return false;
}

static tn_status take_line(table *t, const char *line) {
    if (line[strspn(line, " \t\r\n")] == 0) return TN_OK;
    if (t->columns == 0) {
        if (t->line == 1 && !has_number(line)) return TN_OK; /* titles */
        t->columns = count_columns(line) - (t->label >= 0);
        if (t->columns < 1 || t->label > t->columns)
            return wrong_line(t, "has too few columns for the label and a value");
    }
    return take_row(t, line);
}

static tn_status read_table(table *t, FILE *f) {
    TN_C_LOCALE;
    char *line = NULL;
    size_t room = 0;
    tn_status status = TN_OK;
    for (ssize_t length; status == TN_OK && (length = getline(&line, &room, f)) >= 0;) {
        bool marked = t->line++ == 0 && !strncmp(line, "\xEF\xBB\xBF", 3); /* the byte order mark of spreadsheets */
        status = take_line(t, line + (marked ? 3 : 0));
        if (status == TN_OK && strlen(line) != (size_t)length) status = wrong_line(t, "has a byte of 0");
    }
    free(line);
    if (status == TN_OK && ferror(f)) status = tn_backend_fail(TN_ERR_IO, "reading '%s': %s", t->path, strerror(errno));
    if (status == TN_OK && t->rows == 0) status = tn_backend_fail(TN_ERR_FORMAT, "'%s' has no rows", t->path);
    return status;
}

tn_status tn_dataset_csv(const char *path, int64_t label, tn_dataset **out) {
    if (!path || !out || label < -1)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_dataset_csv: the path or out is NULL, or label is %lld",
                               (long long)label);
    *out = NULL;
    FILE *f;
    TRY(tn_backend_open(path, &f));
    table *t = calloc(1, sizeof *t);
    tn_status status = t ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (t) *t = (table){.label = label, .path = path};
    if (status == TN_OK) status = read_table(t, f);
    fclose(f);
    if (status != TN_OK) {
        free_table(t);
        return status;
    }
    const tn_dataset_field fields[] = {{.rank = 1, .shape = {t->columns}, .dtype = TN_F32}, {.dtype = TN_I64}};
    return tn_dataset_new(t->rows, fields, label >= 0 ? 2 : 1, read_row, free_table, t, out);
}
