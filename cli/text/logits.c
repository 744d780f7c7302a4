/* logits.c — `trunnion logits`: what a model says behind every token of a prompt, as a NumPy file.
 *
 * The file is written piece by piece, so that a long prompt takes no more memory than a short one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/run/npy.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"

enum { PIECE = 64 /* tokens whose logits are held at once */ };

static int run_logits(int argc, char **argv);

const cli_command cli_logits = {
    .name = "logits",
    .summary = "write the logits after each token of a prompt",
    .usage = "logits -m MODEL -p TEXT -o FILE.npy",
    .help = "  -m, --model MODEL     a GGUF file, or a Hugging Face model folder\n"
            "  -p, --prompt TEXT     the prompt; - reads standard input\n"
            "      --ids IDS         the prompt as token ids, separated by commas or spaces, instead of -p\n"
            "  -o, --output FILE     a NumPy file: f32 [positions, vocabulary]\n" CLI_CACHE_HELP
            "      --no-special      do not parse control tokens such as <|im_end|> in the prompt\n"
            "  --json                shape[], ids[], file, device, fallback[]\n"
            "\n"
            "Row i contains the logits of the token that follows token i.\n"
            "\n"
            "examples:\n"
            "  trunnion logits -m model.gguf -p 'The capital of France is' -o logits.npy\n"
            "  trunnion logits -m model.gguf -p - -o logits.npy < text.txt\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_VERBOSE,
    .run = run_logits,
};

typedef struct wishes {
    const char *model, *prompt, *ids, *output;
    tn_llm_cache cache, value_cache;
    bool no_special;
} wishes;

static tn_status read_ids(const tn_tokenizer *t, const wishes *w, tn_ids *ids) {
    AUTO_BYTES tn_bytes text = {0};
    unsigned flags = TN_ENCODE_ENDS | (w->no_special ? 0 : TN_ENCODE_SPECIAL);
    TRY(cli_take_text(w->ids ? w->ids : w->prompt, &text));
    TRY(w->ids ? cli_read_ids(text.data, ids) : tn_tokenizer_encode(t, text.data, text.size, flags, ids));
    return ids->count > 0 ? TN_OK : tn_backend_fail(TN_ERR_ARGUMENT, "the prompt has no tokens");
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static tn_status write_error(const char *path) {
    return tn_backend_fail(TN_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
}

static tn_status write_rows(tn_llm *m, const tn_ids *ids, int64_t vocabulary, float *room, FILE *f, const char *path) {
    if (!npy_write_header(f, (int64_t[]){(int64_t)ids->count, vocabulary}, 2, TN_F32)) return write_error(path);
    for (int64_t begin = 0, n; begin < (int64_t)ids->count; begin += n) {
        n = (int64_t)ids->count - begin < PIECE ? (int64_t)ids->count - begin : PIECE;
        TRY(tn_llm_logits(m, ids->data + begin, n, room));
        tn_dtype_little_endian(TN_F32, room, n * vocabulary);
        if (fwrite(room, sizeof *room, (size_t)(n * vocabulary), f) != (size_t)(n * vocabulary))
            return write_error(path);
    }
    return TN_OK;
}

/* The model's pages come from its file while it runs. */
static bool is_the_model(const char *path, const char *model) {
    struct stat a, b;
    return stat(path, &a) == 0 && stat(model, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static tn_status write_file(tn_llm *m, const tn_ids *ids, int64_t vocabulary, const char *path) {
    AUTO_CLI_FREE float *room = malloc((size_t)vocabulary * PIECE * sizeof *room);
    if (!room) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the logits of %d tokens", PIECE);
    cli_output out;
    TRY(cli_output_begin(&out, path));
    tn_status status = write_rows(m, ids, vocabulary, room, out.file, path);
    if (status == TN_OK) return cli_output_commit(&out);
    cli_output_abandon(&out);
    return status;
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static void put_logits(const cli_language *l, const tn_ids *ids, int64_t vocabulary, const char *path, bool json) {
    tn_device_info device = {.struct_size = sizeof device};
    (void)tn_device_get_info(l->device, &device);
    if (!json) {
        printf("%s: f32 [%zu, %lld], computed on %s\n", path, ids->count, (long long)vocabulary, device.id);
        return;
    }
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'shape': [%jd, %jd]", (int64_t)ids->count, vocabulary);
    cli_json_ids(&j, "ids", ids);
    cli_json_write(&j, "'file': %s, 'device': %s", path, device.id);
    cli_json_fallback(&j, &l->selection, l->device);
    cli_json_write(&j, "}");
}

/* The prompt says how long the context must be, and to read it takes the tokenizer, which is in the model's file. */
static tn_status make_room_logits(cli_language *l, const wishes *w, int64_t tokens, int64_t context) {
    if (tokens <= context) return TN_OK;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = tokens;
    o.cache = w->cache;
    o.value_cache = w->value_cache;
    tn_llm_close(l->model);
    return tn_llm_open(w->model, &o, &l->model);
}

static tn_status work_logits(cli_language *l, const wishes *w, bool json) {
    tn_llm_facts facts = {.struct_size = sizeof facts};
    AUTO_IDS tn_ids ids = {0};
    if (is_the_model(w->output, w->model))
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' is the model itself; use another name for -o", w->output);
    TRY(tn_llm_get_facts(l->model, &facts));
    TRY(read_ids(l->tokenizer, w, &ids));
    TRY(make_room_logits(l, w, (int64_t)ids.count, facts.context));
    TRY(write_file(l->model, &ids, facts.vocabulary, w->output));
    put_logits(l, &ids, facts.vocabulary, w->output, json);
    return TN_OK;
}

static int run_logits(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_NAME("model", 'm', wishes, model),
        CLI_TEXT("prompt", 'p', wishes, prompt),
        CLI_NAME("output", 'o', wishes, output),
        CLI_FLAG("no-special", 0, wishes, no_special),
        CLI_TEXT("ids", 0, wishes, ids),
        CLI_CACHE_OPTIONS(wishes),
        {0},
    };
    wishes w = {.value_cache = TN_LLM_CACHE_SAME};
    cli_options o;
    int status, first = cli_parse(&cli_logits, argc, argv, &o, own, &w, &status);
    if (first < 0) return status;
    if (!w.model) return cli_wrong_usage(&cli_logits, "missing model: pass its GGUF file or folder with -m");
    if (!w.prompt == !w.ids) return cli_wrong_usage(&cli_logits, "missing prompt: pass it with -p, or as --ids");
    if (w.ids && w.no_special) return cli_wrong_usage(&cli_logits, "--no-special has no effect with --ids");
    if (!w.output) return cli_wrong_usage(&cli_logits, "missing output: pass the name of the file with -o");
    if (first < argc)
        return cli_wrong_usage(&cli_logits, "unexpected argument \"%s\"; put the prompt in quotes", argv[first]);

    char found[CLI_PATH];
    if (!cli_find_model(&w.model, found)) return CLI_FAILED;
    cli_language l;
    tn_llm_options options = TN_LLM_DEFAULTS;
    options.cache = w.cache;
    options.value_cache = w.value_cache;
    bool opened = cli_language_open(&l, &o, w.model, &options, !w.ids);
    bool good = opened && work_logits(&l, &w, o.json) == TN_OK;
    int code = !opened ? l.code : good ? CLI_OK : cli_failed();
    cli_language_close(&l);
    return code;
}
