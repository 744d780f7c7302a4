/* image.h — pictures in files: decoded, scaled, and as a tensor that a network takes. */
#ifndef TRUNNION_CLI_IMAGE_H
#define TRUNNION_CLI_IMAGE_H

#include "trunnion/tensor.h"

/* Rows from the top, RGB, 8 bits each. */
typedef struct image {
    int64_t height, width;
    uint8_t *rgb; /* from malloc */
} image;

/* Do the bytes begin as a picture does? */
bool image_is(const unsigned char *bytes, size_t size);
/* JPEG and PNG where the command was built with libjpeg and libpng, PNM and BMP always. What is transparent lies on
 * black, 16 bits are rounded to 8. `what` names it in messages. Errors: TN_ERR_FORMAT, TN_ERR_UNSUPPORTED,
 * TN_ERR_MEMORY. */
tn_status image_decode(const unsigned char *bytes, size_t size, const char *what, image *out);
/* The same for ImageDecoder (trunnion/onnx.h). */
tn_status image_decode_for_onnx(const void *bytes, size_t size, int64_t extent[2], uint8_t **rgb);
/* TN_ERR_FORMAT unless a picture can have these extents. */
tn_status image_check_extents(int64_t height, int64_t width, const char *what);

/* What becomes of a picture that has not the network's extents. */
typedef enum image_resize {
    IMAGE_STRETCH, /* both extents scaled */
    IMAGE_CROP,    /* scaled until it covers; the middle counts */
    IMAGE_FIT      /* scaled until it fits; the rest is black */
} image_resize;

typedef struct image_options {
    image_resize resize;
    int64_t size[2]; /* height and width where the input's are open; 0: the picture's own */
    bool bgr;
    double scale;           /* 0: 1/255 for floats, 1 for whole numbers */
    double mean[3], std[3]; /* of channels, after scaling; std 0: 1 */
} image_options;

/* A picture as an input of these extents, -1 where any fits: [1, 3, height, width] or [1, height, width, 3], with 1 for
 * 3 in grey, or without the first extent: (x · scale − mean) / std. Errors: TN_ERR_SHAPE for other extents. */
tn_status image_tensor(const image *picture, const image_options *o, const int64_t *shape, int rank, tn_dtype dtype,
                       tn_tensor **out);

#endif
