/* sources.h — kernel programs as texts of files, for compilers of languages that no device here runs: what
 * tools/checks/renderings.py gives to NVRTC, hiprtc and clang, and tools/checks/web.py to a browser. */
#ifndef TN_SOURCES_H
#define TN_SOURCES_H

#include "kir/kir.h"

/* Writes the program as FOLDER/NAME.cu and NAME.hip, with indices of 32 bits and of 64 (NAME-64.cu), and, if WGSL can
 * say it, as NAME.wgsl. */
void sources_write(const char *folder, const char *name, const kir_program *p);

/* A far_loaded (far_driver.h) that writes each program once into the folder of sources_begin. */
void sources_begin(const char *folder, const char *prefix);
void sources_take(const kir_program *p);

#endif
