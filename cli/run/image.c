/* image.c — pictures in files, decoded to RGB: JPEG and PNG by their libraries, PNM and BMP here.
 *
 * Files are strangers': extents are checked against a limit before memory is taken, and what ends early is refused. */
#include "cli/run/image.h"
#include "cli/cli.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/backend.h"

#if TN_HAVE_JPEG
#include <setjmp.h>

#include <jpeglib.h>
#endif
#if TN_HAVE_PNG
#include <png.h>
#endif

static tn_status damaged(const char *what, const char *kind) {
    return tn_backend_fail(TN_ERR_FORMAT, "%s: the %s image is damaged or truncated", what, kind);
}

tn_status image_check_extents(int64_t height, int64_t width, const char *what) {
    enum { MOST_EXTENT = 1 << 16, MOST_PIXELS = 1 << 28 };
    bool fits = height >= 1 && width >= 1 && height <= MOST_EXTENT && width <= MOST_EXTENT;
    if (fits && height * width <= MOST_PIXELS) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "%s: an image of %lld by %lld exceeds the limit of %d pixels", what,
                           (long long)width, (long long)height, MOST_PIXELS);
}

static tn_status take_room(image *out, int64_t height, int64_t width, const char *what) {
    TRY(image_check_extents(height, width, what));
    *out = (image){height, width, malloc((size_t)(height * width) * 3)};
    if (out->rgb) return TN_OK;
    return tn_backend_fail(TN_ERR_MEMORY, "out of memory for an image of %lld by %lld", (long long)width,
                           (long long)height);
}

static void put_pixel(const image *out, int64_t y, int64_t x, uint8_t r, uint8_t g, uint8_t b) {
    uint8_t *at = out->rgb + 3 * (y * out->width + x);
    at[0] = r;
    at[1] = g;
    at[2] = b;
}

/* ---- PNM --------------------------------------------------------------------------------------------------------- */

/* Bytes of a file, read one after the other. */
typedef struct reader {
    const unsigned char *at, *end;
} reader;

/* The next number of a header, behind blanks and comments; -1 when there is none. */
static int64_t next_number(reader *r) {
    while (r->at < r->end && (isspace(*r->at) || *r->at == '#')) {
        bool comment = *r->at == '#';
        while (comment && r->at < r->end && *r->at != '\n')
            r->at++;
        if (r->at < r->end) r->at++;
    }
    int64_t v = -1;
    for (; r->at < r->end && isdigit(*r->at); r->at++)
        v = (v < 0 ? 0 : v) > 1 << 24 ? 1 << 24 : 10 * (v < 0 ? 0 : v) + (*r->at - '0');
    return v;
}

/* A sample of `most`, as text or in one byte or two; -1 at the end. */
static int64_t next_sample(reader *r, bool text, int64_t most) {
    if (text) return next_number(r);
    int bytes = most > 255 ? 2 : 1;
    if (r->end - r->at < bytes) return -1;
    int64_t v = bytes == 2 ? r->at[0] << 8 | r->at[1] : r->at[0];
    r->at += bytes;
    return v;
}

static tn_status decode_pnm(const unsigned char *bytes, size_t size, const char *what, image *out) {
    reader r = {bytes + 2, bytes + size};
    bool text = bytes[1] <= '3', colour = bytes[1] == '3' || bytes[1] == '6';
    int64_t width = next_number(&r), height = next_number(&r), most = next_number(&r);
    if (most < 1 || most > 65535) return damaged(what, "PNM");
    TRY(take_room(out, height, width, what));
    if (!text && r.at < r.end) r.at++; /* the one blank behind the header */
    for (int64_t i = 0; i < height * width; i++) {
        int64_t c[3];
        for (int k = 0; k < 3; k++)
            c[k] = k == 0 || colour ? next_sample(&r, text, most) : c[0];
        if (c[0] < 0 || c[1] < 0 || c[2] < 0 || c[0] > most || c[1] > most || c[2] > most) return damaged(what, "PNM");
        for (int k = 0; k < 3; k++)
            out->rgb[3 * i + k] = (uint8_t)((c[k] * 255 + most / 2) / most);
    }
    return TN_OK;
}

/* ---- BMP --------------------------------------------------------------------------------------------------------- */

enum { BMP_HEADER = 14, BMP_INFO = 40 };

static uint32_t image_word(const unsigned char *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Not compressed, of 24 or 32 bits, or of 8 with a table of colours. */
static tn_status decode_bmp(const unsigned char *bytes, size_t size, const char *what, image *out) {
    if (size < BMP_HEADER + BMP_INFO) return damaged(what, "BMP");
    const unsigned char *info = bytes + BMP_HEADER;
    size_t begin = image_word(bytes + 10), table = BMP_HEADER + (size_t)image_word(info);
    int64_t width = (int32_t)image_word(info + 4), height = (int32_t)image_word(info + 8);
    uint32_t bits = info[14] | (uint32_t)info[15] << 8, packed = image_word(info + 16), colours = image_word(info + 32);
    bool down = height < 0;
    if (packed != 0 || (bits != 8 && bits != 24 && bits != 32) || image_word(info) < BMP_INFO)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "%s: only uncompressed BMP images with 8, 24 or 32 bits are supported", what);
    TRY(take_room(out, down ? -height : height, width, what));
    size_t row = ((size_t)width * bits / 8 + 3) / 4 * 4;
    if (colours == 0 || colours > 256) colours = 256;
    if (begin > size || row * (size_t)out->height > size - begin) return damaged(what, "BMP");
    if (bits == 8 && (table > size || 4 * (size_t)colours > size - table)) return damaged(what, "BMP");
    for (int64_t y = 0; y < out->height; y++) {
        const unsigned char *line = bytes + begin + row * (size_t)(down ? y : out->height - 1 - y);
        for (int64_t x = 0; x < width; x++) {
            const unsigned char *p = line + (size_t)x * bits / 8;
            if (bits == 8 && *p >= colours) return damaged(what, "BMP");
            if (bits == 8) p = bytes + table + 4 * (size_t)*p;
            put_pixel(out, y, x, p[2], p[1], p[0]);
        }
    }
    return TN_OK;
}

/* ---- PNG and JPEG ------------------------------------------------------------------------------------------------ */

#if TN_HAVE_PNG
static tn_status decode_png(const unsigned char *bytes, size_t size, const char *what, image *out) {
    const png_color black = {0, 0, 0};
    png_image p = {.version = PNG_IMAGE_VERSION};
    tn_status status = TN_OK;
    if (!png_image_begin_read_from_memory(&p, bytes, size))
        return tn_backend_fail(TN_ERR_FORMAT, "%s: %s", what, p.message);
    p.format = PNG_FORMAT_RGB;
    status = take_room(out, p.height, p.width, what);
    if (status == TN_OK && !png_image_finish_read(&p, &black, out->rgb, 0, NULL))
        status = tn_backend_fail(TN_ERR_FORMAT, "%s: %s", what, p.message);
    png_image_free(&p);
    return status;
}
#else
static tn_status decode_png(const unsigned char *bytes, size_t size, const char *what, image *out) {
    (void)bytes, (void)size, (void)out;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "%s: this build does not support PNG: install libpng-dev and build again, or use PNM or BMP",
                           what);
}
#endif

#if TN_HAVE_JPEG
/* The library ends the process on a damaged file, unless its caller jumps. */
typedef struct jumping {
    struct jpeg_error_mgr manager;
    jmp_buf back;
    char words[JMSG_LENGTH_MAX];
} jumping;

static void on_error(j_common_ptr info) {
    jumping *j = (jumping *)info->err;
    j->manager.format_message(info, j->words);
    longjmp(j->back, 1);
}

/* A file of kilobytes may go over all pixels thousands of times: encoders make about ten scans. */
static void on_progress(j_common_ptr info) {
    enum { MOST_SCANS = 100 };
    jumping *j = (jumping *)info->err;
    if (((j_decompress_ptr)info)->input_scan_number <= MOST_SCANS) return;
    snprintf(j->words, sizeof j->words, "more than %d scans", MOST_SCANS);
    longjmp(j->back, 1);
}

/* Of a file that is cut short it says so, and would go on in grey. */
static void on_warning(j_common_ptr info, int level) {
    if (level < 0) on_error(info);
}

static tn_status read_jpeg(struct jpeg_decompress_struct *d, const char *what, image *out) {
    (void)jpeg_read_header(d, TRUE);
    d->out_color_space = JCS_RGB;
    TRY(take_room(out, d->image_height, d->image_width, what));
    (void)jpeg_start_decompress(d);
    while (d->output_scanline < d->output_height) {
        JSAMPROW row = out->rgb + 3 * (size_t)d->output_scanline * d->output_width;
        (void)jpeg_read_scanlines(d, &row, 1);
    }
    (void)jpeg_finish_decompress(d);
    return TN_OK;
}

static tn_status decode_jpeg(const unsigned char *bytes, size_t size, const char *what, image *out) {
    jumping j;
    struct jpeg_decompress_struct d = {.err = jpeg_std_error(&j.manager)};
    struct jpeg_progress_mgr progress = {.progress_monitor = on_progress};
    tn_status status;
    j.manager.error_exit = on_error;
    j.manager.emit_message = on_warning;
    if (setjmp(j.back) == 0) {
        jpeg_create_decompress(&d);
        d.progress = &progress;
        jpeg_mem_src(&d, bytes, (unsigned long)size);
        status = read_jpeg(&d, what, out);
    } else {
        status = tn_backend_fail(TN_ERR_FORMAT, "%s: %s", what, j.words);
    }
    jpeg_destroy_decompress(&d);
    return status;
}
#else
static tn_status decode_jpeg(const unsigned char *bytes, size_t size, const char *what, image *out) {
    (void)bytes, (void)size, (void)out;
    return tn_backend_fail(
        TN_ERR_UNSUPPORTED,
        "%s: this build does not support JPEG: install libjpeg-dev and build again, or use PNM or BMP", what);
}
#endif

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *begin;
    size_t size;
    tn_status (*decode)(const unsigned char *bytes, size_t size, const char *what, image *out);
} kinds[] = {
    {"\x89PNG\r\n\x1a\n", 8, decode_png},
    {"\xff\xd8\xff", 3, decode_jpeg},
    {"BM", 2, decode_bmp},
    {"P2", 2, decode_pnm},
    {"P3", 2, decode_pnm},
    {"P5", 2, decode_pnm},
    {"P6", 2, decode_pnm},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int image_kind_of(const unsigned char *bytes, size_t size) {
    for (int i = 0; i < KINDS; i++)
        if (size >= kinds[i].size && memcmp(bytes, kinds[i].begin, kinds[i].size) == 0) return i;
    return -1;
}

bool image_is(const unsigned char *bytes, size_t size) { return image_kind_of(bytes, size) >= 0; }

tn_status image_decode(const unsigned char *bytes, size_t size, const char *what, image *out) {
    int kind = image_kind_of(bytes, size);
    *out = (image){0};
    if (kind < 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "%s: unknown image type; supported are JPEG, PNG, PNM and BMP",
                               what);
    tn_status status = kinds[kind].decode(bytes, size, what, out);
    if (status == TN_OK) return TN_OK;
    free(out->rgb);
    *out = (image){0};
    return status;
}

tn_status image_decode_for_onnx(const void *bytes, size_t size, int64_t extent[2], uint8_t **rgb) {
    image picture;
    tn_status status = image_decode(bytes, size, "the encoded image", &picture);
    extent[0] = picture.height;
    extent[1] = picture.width;
    *rgb = picture.rgb;
    return status;
}
