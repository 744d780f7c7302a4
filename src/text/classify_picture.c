/* classify_picture.c — a picture as a network's input, by preprocessor_config.json: resized as Pillow does it, cut,
 * scaled.
 *
 * Resizing widens its filter as the picture shrinks, columns before rows, and rounds to bytes after each. */
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "text/classify.h"

enum { MOST_EXTENT = 4096, MOST_PIXELS = 1 << 28, MOST_RESIZED = MOST_EXTENT * MOST_EXTENT };

/* What classes of transformers do where the file says nothing. */
static const struct {
    const char *begin; /* of image_processor_type */
    bool to_square, cuts;
    int resample;
    double cut_share; /* of the shorter edge, which is enlarged by it before cutting; 0: not this class */
} processors[] = {
    {"ViT", true, false, 2, 0}, {"DeiT", true, true, 3, 0},         {"Beit", true, true, 3, 0},
    {"Bit", false, true, 3, 0}, {"MobileNetV2", false, true, 2, 0}, {"ConvNext", false, false, 3, 224.0 / 256},
};
enum { PROCESSORS = sizeof processors / sizeof *processors, WARP_FROM = 384 };

static tn_status refuse(const hf_folder *f, tn_status code, const char *what) {
    return tn_backend_fail(code, "'%s/preprocessor_config.json': %s", f->path, what);
}

/* A number for both, height and width, or the shorter edge. */
static bool read_extents(const tn_json *v, bool *to_square, int64_t out[2]) {
    const tn_json *edge = tn_json_get(v, "shortest_edge");
    bool object = tn_json_kind_of(v) == TN_JSON_OBJECT;
    if (object) *to_square = tn_json_kind_of(edge) == TN_JSON_NULL;
    if (object && !*to_square) v = edge;
    out[0] = tn_json_int(object && *to_square ? tn_json_get(v, "height") : v, 0);
    out[1] = tn_json_int(object && *to_square ? tn_json_get(v, "width") : v, 0);
    return out[0] >= 1 && out[1] >= 1 && out[0] <= MOST_EXTENT && out[1] <= MOST_EXTENT;
}

static tn_status read_sizes(const hf_folder *f, const tn_json *o, int row, picture_preparation *p) {
    int64_t cut[2] = {0, 0};
    bool plain = true;
    p->resizes = tn_json_bool(tn_json_get(o, "do_resize"), true);
    p->cuts = tn_json_bool(tn_json_get(o, "do_center_crop"), processors[row].cuts);
    p->to_square = processors[row].to_square;
    if (p->resizes && !read_extents(tn_json_get(o, "size"), &p->to_square, p->resized))
        return refuse(f, TN_ERR_FORMAT, "'size' must be a number, height and width, or shortest_edge, from 1 to 4096");
    if (p->cuts && !read_extents(tn_json_get(o, "crop_size"), &plain, cut))
        return refuse(f, TN_ERR_FORMAT, "'crop_size' must be a number, or height and width, from 1 to 4096");
    double share = tn_json_number(tn_json_get(o, "crop_pct"), processors[row].cut_share);
    if (processors[row].cut_share > 0 && p->resizes && !p->to_square) {
        if (!(share > 0.1 && share <= 1)) return refuse(f, TN_ERR_FORMAT, "'crop_pct' must be from 0.1 to 1");
        p->cuts = p->resized[0] < WARP_FROM;
        p->to_square = !p->cuts;
        cut[0] = cut[1] = p->resized[0];
        if (p->cuts) p->resized[0] = (int64_t)((double)p->resized[0] / share);
    }
    p->height = p->cuts ? cut[0] : p->resized[0];
    p->width = p->cuts ? cut[1] : p->resized[1];
    if (p->cuts || (p->resizes && p->to_square)) return TN_OK;
    return refuse(f, TN_ERR_UNSUPPORTED, "pictures that are neither cut nor resized to one size are not supported");
}

static const hf_key keys[] = {
    {"image_processor_type", TN_JSON_STRING},
    {"feature_extractor_type", TN_JSON_STRING},
    {"do_resize", TN_JSON_BOOL},
    {"do_center_crop", TN_JSON_BOOL},
    {"do_rescale", TN_JSON_BOOL},
    {"do_normalize", TN_JSON_BOOL},
    {"rescale_factor", TN_JSON_NUMBER},
    {"crop_pct", TN_JSON_NUMBER},
    {"resample", TN_JSON_NUMBER},
    {"image_mean", TN_JSON_ARRAY},
    {"image_std", TN_JSON_ARRAY},
    {NULL, TN_JSON_NULL},
};

/* Of red, green and blue. */
static bool read_channels(const tn_json *list, double usual, double out[3]) {
    bool given = tn_json_kind_of(list) == TN_JSON_ARRAY;
    for (size_t k = 0; k < 3; k++)
        out[k] = given ? tn_json_number(tn_json_at(list, k), NAN) : usual;
    return isfinite(out[0] + out[1] + out[2]);
}

/* Whether every pixel becomes a finite f32. */
static bool is_representable(const picture_preparation *p) {
    double most = 0;
    for (int k = 0; k < 3; k++)
        most = fmax(most, (fabs(255 * p->scale) + fabs(p->mean[k])) / fabs(p->std[k]));
    return most <= FLT_MAX; /* not so with a std of 0 */
}

static tn_status read_all(const hf_folder *f, const tn_json *o, picture_preparation *p) {
    TRY(tn_hf_check_kinds(f, "preprocessor_config.json", o, keys));
    const char *type = tn_json_string(tn_json_get(o, "image_processor_type"), NULL);
    if (!type) type = tn_json_string(tn_json_get(o, "feature_extractor_type"), "ViT");
    int row = 0;
    while (row < PROCESSORS && strncmp(type, processors[row].begin, strlen(processors[row].begin)) != 0)
        row++;
    if (row == PROCESSORS)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/preprocessor_config.json': image_processor_type is '%s'; supported are those of "
                               "ViT, DeiT, Beit, Bit, MobileNetV2 and ConvNext",
                               f->path, tn_txt_shown(type, strlen(type)).text);
    TRY(read_sizes(f, o, row, p));
    const tn_json *given = tn_json_get(o, "resample");
    int64_t filter = tn_json_kind_of(given) == TN_JSON_NUMBER ? tn_json_int(given, 0) : processors[row].resample;
    if (filter != 2 && filter != 3)
        return refuse(f, TN_ERR_UNSUPPORTED, "only a 'resample' of 2 (bilinear) or 3 (bicubic) is supported");
    p->mode = filter == 2 ? TN_INTERPOLATE_LINEAR_ANTIALIAS : TN_INTERPOLATE_CUBIC_ANTIALIAS;
    bool scales = tn_json_bool(tn_json_get(o, "do_rescale"), true);
    bool normalizes = tn_json_bool(tn_json_get(o, "do_normalize"), true);
    p->scale = scales ? tn_json_number(tn_json_get(o, "rescale_factor"), 1.0 / 255) : 1;
    bool fits = read_channels(normalizes ? tn_json_get(o, "image_mean") : NULL, normalizes ? 0.5 : 0, p->mean) &&
                read_channels(normalizes ? tn_json_get(o, "image_std") : NULL, normalizes ? 0.5 : 1, p->std);
    if (!fits || p->std[0] * p->std[1] * p->std[2] == 0)
        return refuse(f, TN_ERR_FORMAT,
                      "'image_mean' and 'image_std' must be lists of 3 numbers, the latter without a 0");
    if (is_representable(p)) return TN_OK;
    return refuse(f, TN_ERR_FORMAT, "pixels become too large for f32 by 'rescale_factor', 'image_mean', 'image_std'");
}

tn_status tn_picture_read(const hf_folder *f, picture_preparation *p) {
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    TRY(tn_hf_json(f, "preprocessor_config.json", &doc));
    return doc ? read_all(f, tn_json_root(doc), p)
               : tn_backend_fail(TN_ERR_IO, "'%s' has no preprocessor_config.json, which says how pictures are resized",
                                 f->path);
}

/* What a picture of h by w pixels is resized to. */
static void resized_to(const picture_preparation *p, int64_t h, int64_t w, int64_t to[2]) {
    int64_t edge = p->resized[0];
    to[0] = h <= w || p->to_square ? edge : edge * h / w;
    to[1] = p->to_square ? p->resized[1] : h <= w ? edge * w / h : edge;
}

/* A shorter edge of a long picture makes a huge one. */
static tn_tensor *check_extents(const picture_preparation *p, int64_t h, int64_t w) {
    int64_t to[2] = {h, w};
    if (h < 1 || w < 1 || h > MOST_PIXELS / w)
        return tn_txt_failed(TN_ERR_ARGUMENT,
                             "a picture of %" PRId64 " by %" PRId64 " pixels; supported are 1 to %d of them", w, h,
                             MOST_PIXELS);
    if (p->resizes) resized_to(p, h, w, to);
    if (!p->resizes || (to[0] <= MOST_RESIZED / to[1] && h <= MOST_PIXELS / to[1])) return NULL;
    return tn_txt_failed(TN_ERR_ARGUMENT,
                         "a picture of %" PRId64 " by %" PRId64 " pixels would be resized to %" PRId64 " by %" PRId64
                         "; at most %d pixels are supported: cut it first",
                         w, h, to[1], to[0], MOST_RESIZED);
}

/* x [1, 3, h, w], numbers of bytes. */
static tn_tensor *resize(const picture_preparation *p, tn_tensor *x) {
    int64_t h = tn_size(x, 2), to[2];
    resized_to(p, h, tn_size(x, 3), to);
    x = tn_interpolate(x, (int64_t[]){h, to[1]}, 2, NULL, p->mode, false);
    x = tn_clamp(tn_round(x), 0, 255);
    return tn_clamp(tn_round(tn_interpolate(x, to, 2, NULL, p->mode, false)), 0, 255);
}

tn_tensor *tn_picture_record(const picture_preparation *p, const uint8_t *rgb, int64_t height, int64_t width) {
    float scale[3], shift[3];
    tn_tensor *wrong = check_extents(p, height, width);
    if (wrong) return wrong;
    tn_tensor *x = tn_cast(tn_from_data(rgb, TN_DIMS(height, width, 3), TN_U8), TN_F32);
    x = tn_contiguous(tn_unsqueeze(tn_permute(x, TN_DIMS(2, 0, 1)), 0));
    if (p->resizes) x = resize(p, x);
    if (p->cuts) { /* or fills up with black */
        int64_t tall = p->height - tn_size(x, 2), wide = p->width - tn_size(x, 3);
        x = tn_pad(x, (int64_t[]){wide / 2, wide - wide / 2, tall / 2, tall - tall / 2}, 4, 0);
    }
    for (int k = 0; k < 3; k++) {
        scale[k] = (float)(p->scale / p->std[k]);
        shift[k] = (float)(p->mean[k] / p->std[k]);
    }
    x = tn_mul(x, tn_from_data(scale, TN_DIMS(3, 1, 1), TN_F32));
    return tn_sub(x, tn_from_data(shift, TN_DIMS(3, 1, 1), TN_F32));
}
