/* convert.c — `trunnion convert`: weights from one kind of file to another, in another type where that is asked for;
 * language models and encoders as networks.
 *
 * Tensors pass one at a time (convert_write.c). Of each that is rounded the error is measured on what was really
 * written; with --verify the file is opened again and every number compared, so that what is reported is what is there.
 * Here stand the options and what may become what. */
#include "cli/convert/convert.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "trunnion/backend.h"

static int run_convert(int argc, char **argv);

const cli_command cli_convert = {
    .name = "convert",
    .summary = "convert weights from one file format to another, and quantize them",
    .usage = "convert IN OUT [--quantize TYPE] [--like FILE.gguf] [--no-cache] [--verify] [--text FILE]",
    .help =
        "  IN                    .gguf, .safetensors (or its index, or a folder), .onnx (only its weights), .pt, "
        ".pth, .bin;\n"
        "                        a Hugging Face folder of a Llama, Mistral, Mixtral, Qwen, Phi-3, Gemma or\n"
        "                        GPT-2 model becomes a GGUF model, with its tokenizer\n"
        "  OUT                   .gguf, .safetensors or .onnx. To .onnx: a language model (.gguf or a folder) becomes\n"
        "                        a decoder with a key/value cache as inputs and outputs, as Hugging Face's exporter\n"
        "                        writes it; an encoder (a folder) a network from ids and mask to embeddings.\n"
        "                        FOLDER/: a Hugging Face folder with tokenizer and config.json, from a .gguf of a\n"
        "                        Llama, Mistral, Mixtral, Qwen, Phi-3, Gemma or GPT-2 model\n"
        "  --quantize TYPE       type of the matrices: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K … Q6_K (GGUF), F16, BF16\n"
        "                        or F32. If rows are not a multiple of 256, a K type becomes Q4_0, Q5_0, Q5_1 or\n"
        "                        Q8_0. Vectors are not quantized. Mixes: Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M,\n"
        "                        Q5_K_S, Q5_K_M: as llama.cpp's, the most sensitive matrices in a larger type\n"
        "  --importance FILE     run the model (IN) over this text first, to quantize columns that meet large\n"
        "                        activations more precisely (importance matrix)\n"
        "  --lora DIR            merge a LoRA adapter in PEFT's format into the language model (IN) first; its\n"
        "                        quantized matrices become F16 unless --quantize says otherwise\n"
        "  --like FILE.gguf      take the metadata (sizes, tokenizer) from this file\n"
        "  --no-cache            for OUT.onnx: no key/value cache: token ids of a whole text in, logits out\n"
        "  --verify              open OUT again and compare every number. For a network: compare the weights that "
        "were\n"
        "                        not transposed or concatenated, and the results of a run\n"
        "  --text FILE           measure the perplexity of this text before and after (GGUF language models)\n"
        "  --context N           window of --text in tokens (default 512)\n"
        "  --json                tensors, bytes (of OUT), input_bytes (of IN's tensors), seconds, classes[],\n"
        "                        verified, output_error, perplexity{}, requantized\n"
        "\n"
        "examples:\n"
        "  trunnion convert model.gguf small.gguf --quantize Q4_K_M --verify\n"
        "  trunnion convert model.gguf model.safetensors\n"
        "  trunnion convert model.gguf model.onnx --verify\n"
        "  trunnion run model.onnx -i input_ids=prompt.npy --steps 20\n"
        "  trunnion convert model.gguf folder/ --quantize BF16\n"
        "  trunnion convert weights.pt weights.safetensors --verify\n",
    .accepts = CLI_JSON | CLI_THREADS | CLI_DEVICE | CLI_VERBOSE,
    .run = run_convert,
};

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int64_t convert_size_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (int64_t)s.st_size : 0;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static const char *wrong_wish(const convert_wishes *w, convert_kind from, convert_kind to) {
    if (from == CONVERT_UNKNOWN)
        return "IN must be .gguf, .safetensors, .onnx, .pt, .pth, .bin or a folder with safetensors";
    if (to == CONVERT_UNKNOWN || to == CONVERT_PICKLE) return "OUT must end with .gguf, .safetensors, .onnx or /";
    if (to == CONVERT_FOLDER && from != CONVERT_GGUF) return "a folder can only be made from a .gguf file";
    if (to == CONVERT_FOLDER && w->to != TN_DTYPE_COUNT && tn_dtype_block(w->to) > 1)
        return "folders have no quantized types: use F16, BF16 or F32";
    if (to == CONVERT_ONNX && from != CONVERT_GGUF && !cli_is_folder(w->in))
        return "weights only cannot become an ONNX network: use a .gguf or a model folder";
    if (to == CONVERT_ONNX && w->to != TN_DTYPE_COUNT)
        return "--quantize requires an OUT that ends with .gguf or .safetensors";
    if (to == CONVERT_SAFETENSORS && w->to != TN_DTYPE_COUNT && tn_dtype_block(w->to) > 1)
        return "safetensors files have no quantized types: use F16, BF16 or F32, or an OUT that ends with .gguf";
    if (is_same_file(w->in, w->out)) return "OUT must differ from IN: quantization cannot be undone";
    if (w->importance && (w->to == TN_DTYPE_COUNT || tn_dtype_block(w->to) == 1))
        return "--importance requires --quantize with a block type";
    if (w->lora && from != CONVERT_GGUF && !cli_is_folder(w->in))
        return "--lora requires a language model as IN: a .gguf or a model folder";
    if (w->like && to != CONVERT_GGUF) return "--like requires an OUT that ends with .gguf";
    if (w->no_cache && to != CONVERT_ONNX) return "--no-cache requires an OUT that ends with .onnx";
    if (w->context && !w->text) return "--context has no effect without --text";
    if (w->text && to != CONVERT_GGUF) return "--text requires an OUT that ends with .gguf";
    return NULL;
}

static const struct {
    tn_status (*write)(const convert_file *in, const convert_wishes *w, convert_report *r);
    tn_status (*verify)(const convert_file *in, const convert_wishes *w, convert_report *r);
} ways[] = {
    [CONVERT_GGUF] = {convert_to_gguf, convert_verify},
    [CONVERT_SAFETENSORS] = {convert_to_safetensors, convert_verify},
    [CONVERT_ONNX] = {convert_to_onnx, convert_verify_onnx},
    [CONVERT_FOLDER] = {convert_to_folder, convert_verify},
};

/* No program can open a GGUF file that does not say what model it holds. */
static tn_status check_architecture(const convert_file *in, const convert_wishes *w) {
    static const char key[] = "general.architecture";
    if (in->gguf || in->folder || w->like || (in->safetensors && tn_safetensors_metadata(in->safetensors, key)))
        return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT,
                           "'%s' does not contain the architecture of its weights (%s), which a GGUF file needs; pass "
                           "the model folder, which has config.json, as IN, or --like FILE.gguf",
                           w->in, key);
}

static tn_status convert(convert_wishes *w, convert_kind to, const convert_importance *importance, convert_report *r) {
    convert_folder folder;
    AUTO_CALL(convert_close) convert_file in = {.count = 0};
    double begun = cli_now();
    TRY(convert_open(w->in, &in));
    in.importance = importance;
    bool from_folder = to == CONVERT_GGUF && cli_is_folder(w->in);
    if (from_folder || to == CONVERT_FOLDER) {
        in.folder = &folder;
        TRY(from_folder ? convert_folder_open(w->in, in.count, &folder)
                        : convert_folder_from(in.gguf, in.count, &folder));
        TRY(convert_leave_out(&in));
    }
    if (to == CONVERT_GGUF) TRY(check_architecture(&in, w));
    TRY(convert_mix_open(&in, w));
    TRY(ways[to].write(&in, w, r));
    r->tensors = in.count;
    for (int64_t i = 0; i < in.count; i++) {
        convert_tensor t;
        TRY(convert_at(&in, i, &t));
        r->input_bytes += t.bytes;
        bool same, quantised = t.dtype < TN_DTYPE_COUNT && tn_dtype_block(t.dtype) > 1;
        if (quantised && w->to != TN_DTYPE_COUNT && tn_dtype_block(convert_type_for(w, &t, true, &same)) > 1)
            r->requantized += !same;
    }
    if (to != CONVERT_FOLDER) r->bytes = convert_size_of(w->out);
    r->seconds = cli_now() - begun;
    return w->verify ? ways[to].verify(&in, w, r) : TN_OK;
}

static int run_convert(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_NAME("quantize", 0, convert_wishes, quantize),
        CLI_NAME("like", 0, convert_wishes, like),
        CLI_FLAG("verify", 0, convert_wishes, verify),
        CLI_NAME("text", 0, convert_wishes, text),
        CLI_INT("context", 0, convert_wishes, context, 2, INT64_C(1) << 40),
        CLI_NAME("importance", 0, convert_wishes, importance),
        CLI_FLAG("no-cache", 0, convert_wishes, no_cache),
        CLI_NAME("lora", 0, convert_wishes, lora),
        {0},
    };
    convert_wishes w = {.to = TN_DTYPE_COUNT};
    char names[160];
    cli_options o;
    int status, first = cli_parse(&cli_convert, argc, argv, &o, own, &w, &status);
    if (first < 0) return status;
    if (argc - first != 2) return cli_wrong_usage(&cli_convert, "expected two files: IN and OUT");
    w.in = argv[first];
    w.out = argv[first + 1];
    if (w.quantize && !convert_parse_mix(w.quantize, &w) && !convert_parse_type(w.quantize, &w.to))
        return cli_wrong_usage(&cli_convert, "unknown --quantize type \"%s\"; the types are Q4_K_M and other mixes, %s",
                               w.quantize, convert_type_names(names, sizeof names));
    convert_kind from = convert_kind_of(w.in), to = convert_kind_of(w.out);
    if (cli_is_folder(w.out) || w.out[strlen(w.out) - 1] == '/') to = CONVERT_FOLDER;
    const char *wrong = wrong_wish(&w, from, to);
    if (wrong) return cli_wrong_usage(&cli_convert, "%s", wrong);

    int code = CLI_OK;
    convert_report *r = calloc(1, sizeof *r);
    tn_device *device = r ? cli_open_device(&o, &code) : NULL;
    if (!device) {
        free(r);
        return r ? code : CLI_FAILED;
    }
    char merged[CLI_PATH] = "";
    if (w.lora && !convert_merge(w.in, w.lora, w.out, merged)) code = CLI_FAILED;
    if (*merged) w.in = merged;
    if (code == CLI_OK && w.text && !convert_perplexity(&o, w.in, w.text, w.context, &r->perplexity[0]))
        code = cli_failed();
    convert_importance importance = {0};
    if (code == CLI_OK && w.importance && !convert_find_importance(&o, w.in, w.importance, &importance))
        code = cli_failed();
    if (code == CLI_OK && convert(&w, to, &importance, r) != TN_OK) code = cli_failed();
    convert_importance_free(&importance);
    if (code == CLI_OK && w.text && !convert_perplexity(&o, w.out, w.text, w.context, &r->perplexity[1]))
        code = cli_failed();
    if (code == CLI_OK && r->requantized > 0)
        cli_print(stderr,
                  "trunnion: warning: %lld tensors of '%s' are already quantized; quantizing them again to %s adds its "
                  "error to the first. Use the original weights if possible\n",
                  (long long)r->requantized, w.in, tn_dtype_name(w.to));
    if (code == CLI_OK) (o.json ? convert_put_json : convert_put_text)(&w, r);
    convert_merge_end(merged);
    tn_device_close(device);
    free(r);
    return code;
}
