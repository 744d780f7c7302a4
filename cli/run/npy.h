/* npy.h — NumPy's files: tensors in (.npy, members of an .npz) and out. */
#ifndef TRUNNION_CLI_NPY_H
#define TRUNNION_CLI_NPY_H

#include <stdio.h>

#include "trunnion/tensor.h"

/* A file's whole content, freed with free; at most 16 GiB. */
tn_status npy_load(const char *path, unsigned char **bytes, size_t *size);

/* The tensor in the bytes of an .npy file; `what` names it in messages. */
tn_status npy_decode(const unsigned char *bytes, size_t size, const char *what, tn_tensor **out);

/* An array of texts (NumPy's U and S types): freed with npy_texts_free. */
typedef struct npy_texts {
    char **list; /* `count`, UTF-8, each ended by a zero */
    int64_t count, shape[TN_MAX_RANK];
    int rank;
} npy_texts;
bool npy_is_text(const unsigned char *bytes, size_t size);
tn_status npy_decode_texts(const unsigned char *bytes, size_t size, const char *what, npy_texts *out);
void npy_texts_free(npy_texts *t);

/* A member of an .npz file: its name without ".npy", and its bytes. */
typedef struct npz_member {
    char name[256];
    const unsigned char *bytes;
    size_t size, whole; /* bytes here, and unpacked */
    uint32_t crc;       /* of the unpacked ones */
    bool packed;        /* compressed: np.savez_compressed */
} npz_member;
bool npz_is(const unsigned char *bytes, size_t size);
/* The next one; false past the end, or where the file is damaged. *at: 0 before the first. */
bool npz_next(const unsigned char *bytes, size_t size, size_t *at, npz_member *out);
/* After the last member: is the archive's directory there, up to its end? */
bool npz_is_end(const unsigned char *bytes, size_t size, size_t at);

/* The tensor in a member. Errors: TN_ERR_UNSUPPORTED too, for a compressed one where the command has no zlib. */
tn_status npz_decode(const npz_member *m, tn_tensor **out);

/* Writes t to f, which is `path` in messages; bf16, which NumPy does not know, as f32. */
tn_status npy_write(FILE *f, const char *path, const tn_tensor *t);
/* The header of an .npy file in f32. */
bool npy_write_header(FILE *f, const int64_t *shape, int rank, tn_dtype dtype);

#endif
