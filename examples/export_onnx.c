/* export_onnx.c — a network as an ONNX model, which other engines run; the extent of its batch stays open.
 *
 *   cc export_onnx.c $(pkg-config --cflags --libs trunnion) && ./a.out net.onnx */
#include <stdio.h>

#include <trunnion/trunnion.h>

static int export_to(const char *path, tn_module *net) {
    {
        TN_SCOPE;
        /* The model begins at a tensor with a value; its first extent is named. */
        tn_tensor *x = tn_symbolic(tn_from_data((float[8]){0}, (int64_t[]){2, 4}, 2, TN_F32), 0, 0);
        tn_tensor *y = tn_forward(net, x);
        tn_onnx_export_options options = TN_ONNX_EXPORT_DEFAULTS;
        options.dims[0] = "batch";
        tn_status s = tn_onnx_export(path, &(tn_named_tensor){"x", x}, 1, &(tn_named_tensor){"y", y}, 1, &options);
        if (s == TN_OK) return 0;
    }
    fprintf(stderr, "%s\n", tn_error());
    return 1;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "net.onnx";
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_nn_linear(net, "0", 4, 16, true);
    tn_nn_function(net, "1", tn_relu);
    tn_nn_linear(net, "2", 16, 3, true);
    int code = export_to(path, net);
    tn_module_free(root);
    if (argc < 2) remove(path); /* only a trial */
    if (code == 0) printf("a model of a batch of any size: %s\n", path);
    return code;
}
