/* cli_explain.c — `trunnion explain`: what a model's work is made of, and where time and memory go.
 *
 * A language model takes in a piece of prompt and gives some tokens, an ONNX network runs, each under a profile. */
#include "cli/cli.h"
#include "cli/device/explain.h"

static int run_explain(int argc, char **argv);

const cli_command cli_explain = {
    .name = "explain",
    .summary = "show the operations of a model, their time and their memory",
    .usage = "explain MODEL [--prompt N] [--tokens N] [-v]",
    .help = "  MODEL                 a language model (a GGUF file or a Hugging Face model folder), or a network\n"
            "                        (an ONNX file), which runs on random inputs\n"
            "  --prompt N            prompt tokens (default 128)\n"
            "  --tokens N            tokens to generate after the prompt (default 32)\n"
            "  --context N           context length in tokens\n"
            "  --dim NAME=N          size of an open dimension of a network (default 1), as in trunnion run\n"
            "  -v, --verbose         show every command, and the last plan\n"
            "  --json                device, fallback[], prompt{}, token{} or run{}, ops[{phase, kind, label, runs,\n"
            "                        bytes, flops, predicted_seconds, measured_seconds}], predicted_peak_bytes\n"
            "                        (null for a network), measured_peak_bytes\n"
            "\n"
            "Predicted times come from the bytes and operations of a command and from speeds measured just before. "
            "Measured times come from a profile.\n"
            "\n"
            "examples:\n"
            "  trunnion explain model.gguf\n"
            "  trunnion explain model.gguf --prompt 512 --tokens 1 -v\n"
            "  trunnion explain model.onnx\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_SEED | CLI_VERBOSE,
    .run = run_explain,
};

static int run_explain(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_INT("prompt", 0, explain_wishes, prompt, 1, 1 << 30),
        CLI_INT("tokens", 0, explain_wishes, tokens, 1, 1 << 30),
        CLI_INT("context", 0, explain_wishes, context, 1, 1 << 30),
        CLI_EACH("dim", 0, explain_wishes, dims, onnx_take_dim),
        {0},
    };
    explain_wishes w = {0};
    cli_options o;
    int status, first = cli_parse(&cli_explain, argc, argv, &o, own, &w, &status);
    if (first < 0) return status;
    if (argc - first != 1)
        return cli_wrong_usage(&cli_explain, "missing model: pass a GGUF or ONNX file, or a model folder");
    char found[CLI_PATH];
    const char *path = argv[first];
    if (!cli_find_model(&path, found)) return CLI_FAILED;
    bool network = onnx_is_network(path);
    if (network && (w.prompt || w.tokens || w.context))
        return cli_wrong_usage(&cli_explain, "--prompt, --tokens and --context require a language model");
    if (!network && w.dims.count)
        return cli_wrong_usage(&cli_explain, "--dim requires an ONNX network, but '%s' does not end in .onnx", path);
    if (w.dims.twice) return onnx_dim_twice(&cli_explain, &w.dims);
    return network ? explain_network(&o, &w, path) : explain_language(&o, &w, path);
}
