/* onnx_case.h — one case of ONNX's test layout: a folder with a model, its inputs and the outputs that are expected. */
#ifndef TRUNNION_CLI_ONNX_CASE_H
#define TRUNNION_CLI_ONNX_CASE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum onnx_result { ONNX_PASSED, ONNX_FAILED, ONNX_SKIPPED, ONNX_RESULTS } onnx_result;

/* A number fits when |number − expected| ≤ absolute + relative · |expected|; NaN fits NaN. */
typedef struct onnx_tolerance {
    double absolute, relative; /* negative: as the case's data.json says, else 1e-7 and 1e-3 */
} onnx_tolerance;

/* Runs all data sets of a folder on the current device. recorded: as of tn_onnx_options. why: what differs, or what the
 * model has that cannot be run (skipped); "" where it passed. */
onnx_result onnx_case_run(const char *folder, onnx_tolerance tolerance, bool recorded, char *why, size_t size);

#endif
