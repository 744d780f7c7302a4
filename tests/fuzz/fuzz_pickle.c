/* fuzz_pickle.c — any bytes as a PyTorch file: refused with a reason, or every tensor of it can be read.
 *
 * The reader maps files, so the bytes go through a file without a name. */
#include "fuzz_file.h"
#include "trunnion/model.h"

enum { MOST = 1 << 20 }; /* elements of a tensor that is read: a spread one has as many as it says */

static void look_at(const tn_pickle *file, const tn_pickle_info *info) {
    int64_t elements = 1;
    for (int d = 0; d < info->rank; d++)
        elements = info->shape[d] > 0 && elements > MOST / info->shape[d] ? MOST + 1 : elements * info->shape[d];
    if (elements > MOST) return;
    tn_tensor *t = tn_pickle_tensor(file, info->name);
    require(tn_status_of(t) != TN_OK || tn_numel(t) == elements);
    volatile uint8_t sum = 0;
    if (tn_status_of(t) == TN_OK && elements > 0) {
        size_t bytes = tn_dtype_bytes(info->dtype, elements);
        uint8_t *copy = malloc(bytes);
        require(copy && tn_read(t, copy, bytes) == TN_OK);
        sum = (uint8_t)(sum + copy[bytes - 1]);
        free(copy);
    }
    tn_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = file_of(data, size, path);
    tn_pickle *file = NULL;
    if (tn_pickle_open(path, &file) == TN_OK) {
        for (int64_t i = 0; i < tn_pickle_count(file) && i < 100; i++) {
            tn_pickle_info at = {.struct_size = sizeof at}, found = {.struct_size = sizeof found};
            require(tn_pickle_at(file, i, &at) == TN_OK);
            require(tn_pickle_find(file, at.name, &found) == TN_OK && found.data == at.data);
            look_at(file, &at);
        }
    } else {
        require(*tn_error() != '\0');
    }
    tn_pickle_close(file);
    close(fd);
    return 0;
}
