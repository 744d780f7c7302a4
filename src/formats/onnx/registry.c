/* registry.c — which table has an operator: domains, and the newest row that a model's opset knows. */
#include <string.h>

#include "formats/onnx/model.h"
#include "formats/onnx/nn.h"

typedef struct domain_row {
    const char *name; /* "": the standard's own */
    const onnx_op_row *ops;
} domain_row;

static const domain_row domains[] = {
    {"", onnx_math_ops},
    {"", onnx_shape_ops},
    {"", onnx_nn_ops},
    {"", onnx_control_ops},
    {"", onnx_rnn_ops},
    {"", onnx_quant_ops},
    {"", onnx_sequence_ops},
    {"", onnx_text_ops},
    {"", onnx_image_ops},
    {"ai.onnx.ml", onnx_ml_ops},
    {"ai.onnx.preview", onnx_preview_ops},
    {"ai.onnx.preview.training", onnx_training_ops},
    {"ai.onnx.training", onnx_training_ops},
    {"", onnx_runtime_ops},
    {"com.microsoft", onnx_contrib_ops},
    {"com.microsoft", onnx_dressed_ops},
};

static onnx_text short_domain(onnx_text d) { return onnx_is(d, "ai.onnx") ? (onnx_text){"", 0} : d; }

bool onnx_same_domain(onnx_text a, onnx_text b) { return onnx_text_equal(short_domain(a), short_domain(b)); }

const onnx_op_row *onnx_find_row(onnx_text domain, onnx_text type, int64_t opset) {
    const onnx_op_row *best = NULL;
    domain = short_domain(domain);
    for (size_t i = 0; i < TN_COUNT(domains); i++) {
        if (!onnx_is(domain, domains[i].name)) continue;
        for (const onnx_op_row *row = domains[i].ops; row->name; row++)
            if (row->since <= opset && (!best || row->since > best->since) && onnx_is(type, row->name)) best = row;
    }
    return best && best->run == onnx_image_decoder && !onnx_decodes_images() ? NULL : best;
}
