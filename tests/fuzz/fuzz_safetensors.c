/* fuzz_safetensors.c — any bytes as a safetensors file: refused with a reason, or every tensor of it can be read.
 *
 * The reader maps files, so the bytes go through a file without a name. */
#include "fuzz_file.h"
#include "trunnion/model.h"

/* Reads every byte that the file claims for the tensor; the sanitizers see one that is not there. */
static void touch(const tn_safetensors_info *info) {
    volatile uint8_t sum = 0;
    const uint8_t *bytes = info->data;
    for (int64_t i = 0; i < info->bytes; i++)
        sum = (uint8_t)(sum + bytes[i]);
    int64_t elements = 1;
    for (int d = 0; d < info->rank; d++)
        elements *= info->shape[d];
    require(info->dtype == TN_DTYPE_COUNT || elements * (int64_t)tn_dtype_size(info->dtype) == info->bytes);
}

static void look_at_all(const tn_safetensors *file) {
    for (int i = 0; i < tn_safetensors_count(file); i++) {
        tn_safetensors_info at = {.struct_size = sizeof at}, found = {.struct_size = sizeof found};
        require(tn_safetensors_at(file, i, &at) == TN_OK);
        require(tn_safetensors_find(file, at.name, &found) == TN_OK && found.data == at.data);
        touch(&at);
        tn_tensor *t = tn_safetensors_tensor(file, at.name);
        require(tn_status_of(t) != TN_OK || tn_numel(t) * (int64_t)tn_dtype_size(at.dtype) == at.bytes);
        tn_free(t);
    }
    for (int i = 0; tn_safetensors_metadata_key(file, i); i++)
        require(tn_safetensors_metadata(file, tn_safetensors_metadata_key(file, i)) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = file_of(data, size, path);
    tn_safetensors *file = NULL;
    if (tn_safetensors_open(path, &file) == TN_OK)
        look_at_all(file);
    else
        require(*tn_error() != '\0');
    tn_safetensors_close(file);
    close(fd);
    return 0;
}
