/* fuzz_file.h — what fuzzers of readers that map files share: the bytes as a file without a name, and a check that ends
 * the run. */
#ifndef TN_FUZZ_FILE_H
#define TN_FUZZ_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void require(int holds) {
    if (!holds) abort();
}

/* A file with these bytes: its descriptor, to be closed, and a path that opens it. */
static inline int file_of(const uint8_t *data, size_t size, char path[64]) {
    int fd = memfd_create("input", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
