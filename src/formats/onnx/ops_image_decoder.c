/* ops_image_decoder.c — ONNX: ImageDecoder, by whatever decoder the process was given (tn_onnx_set_image_decoder).
 *
 * The extents of what comes out stand in the bytes, so a model that decodes is recorded at each run. */
#include <stdatomic.h>
#include <stdlib.h>

#include "formats/onnx/model.h"
#include "formats/onnx/nn.h"

static _Atomic(tn_image_decoder *) decoder;

void tn_onnx_set_image_decoder(tn_image_decoder *decode) { atomic_store(&decoder, decode); }
bool onnx_decodes_images(void) { return atomic_load(&decoder) != NULL; }

/* Brightness in 16 bits behind the point: ITU-R BT.601. */
static uint8_t grey(const uint8_t *p) {
    return (uint8_t)((19595U * p[0] + 38470U * p[1] + 7471U * p[2] + 32768U) >> 16);
}

/* In place: 1 or 3 numbers a pixel. */
static void arrange(uint8_t *rgb, int64_t pixels, bool is_grey, bool is_bgr) {
    for (int64_t i = 0; i < pixels; i++) {
        uint8_t *p = rgb + 3 * i, red = p[0];
        if (is_grey) rgb[i] = grey(p);
        if (!is_bgr) continue;
        p[0] = p[2];
        p[2] = red;
    }
}

tn_status onnx_image_decoder(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    tn_image_decoder *decode = atomic_load(&decoder);
    onnx_text format = onnx_string(c, "pixel_format", "RGB");
    bool is_grey = onnx_is(format, "Grayscale"), is_bgr = onnx_is(format, "BGR");
    if (!decode) return onnx_refuse(c, "no decoder of pictures was set");
    if (!is_grey && !is_bgr && !onnx_is(format, "RGB")) return onnx_refuse(c, "a pixel_format that is not known");
    if (onnx_in_type(c, 0) != ONNX_UINT8) return onnx_refuse(c, "the bytes have to be UINT8");
    if (c->fixed != ONNX_CONSTANT) c->run->varied = true;
    size_t size = (size_t)tn_numel(x);
    int64_t shape[3] = {0, 0, is_grey ? 1 : 3};
    uint8_t *bytes = tn_mem_alloc(size), *rgb = NULL;
    tn_status status = bytes ? tn_read(x, bytes, size) : TN_ERR_MEMORY;
    if (status == TN_OK) status = decode(bytes, size, shape, &rgb);
    tn_mem_free(bytes);
    if (status != TN_OK) return tn_fail_prefix(status, "ImageDecoder");
    arrange(rgb, shape[0] * shape[1], is_grey, is_bgr);
    tn_tensor *picture = tn_from_data(rgb, shape, 3, TN_U8);
    free(rgb);
    return onnx_put(c, 0, picture);
}
