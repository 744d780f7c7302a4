/* fuzz_npy.c — any bytes as a NumPy file, an .npz archive or a picture: refused with a reason, or what it says of
 * itself is there. */
#include "cli/run/image.h"
#include "cli/run/npy.h"
#include "fuzz_file.h"
#include "trunnion/backend.h"

enum { MOST_PIXELS = 1 << 16 };

static void look_at(tn_status status, tn_tensor *t) {
    require((status == TN_OK) == (t != NULL) && (t || *tn_error() != '\0'));
    if (t) require(tn_status_of(t) == TN_OK && tn_rank(t) >= 0);
    tn_free(t);
}

static void look_at_picture(const uint8_t *data, size_t size) {
    static const int64_t shape[] = {1, 3, 4, 5};
    const image_options o = {.resize = (image_resize)(size % 3)};
    image picture;
    tn_tensor *t = NULL;
    if (image_decode(data, size, "the input", &picture) != TN_OK) {
        require(!picture.rgb && *tn_error() != '\0');
        return;
    }
    if (picture.height * picture.width <= MOST_PIXELS)
        require(image_tensor(&picture, &o, shape, 4, TN_F32, &t) == TN_OK);
    tn_free(t);
    free(picture.rgb);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npz_member m;
    tn_tensor *t = NULL;
    if (image_is(data, size)) {
        look_at_picture(data, size);
    } else if (npz_is(data, size)) {
        for (size_t at = 0; npz_next(data, size, &at, &m);) {
            require(at <= size && m.bytes >= data && m.bytes + m.size <= data + size);
            tn_status status = npz_decode(&m, &t);
            look_at(status, t);
        }
    } else if (npy_is_text(data, size)) {
        npy_texts texts;
        tn_status status = npy_decode_texts(data, size, "the input", &texts);
        require((status == TN_OK) == (texts.list != NULL) && (texts.list || *tn_error() != '\0'));
        npy_texts_free(&texts);
    } else {
        tn_status status = npy_decode(data, size, "the input", &t);
        look_at(status, t);
    }
    return 0;
}
