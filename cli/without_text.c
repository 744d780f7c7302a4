/* without_text.c — the subcommands that need libtrunnion-text, in a build that has none: each is listed, and says what
 * is missing. A build with that library leaves this file out. */
#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "cli/convert/convert.h"
#include "cli/device/explain.h"
#include "cli/device/fit.h"
#include "cli/run/run.h"
#include "trunnion/backend.h"

static int refuse_without_text(TN_UNUSED int argc, char **argv) {
    return cli_fail(TN_ERR_UNSUPPORTED, "%s requires the library trunnion-text: %s", argv[0], TN_TEXT_MISSING);
}

#define WITHOUT_TEXT(command)                                                  \
    const cli_command cli_##command = {                                        \
        .name = #command,                                                      \
        .summary = "not in this build: it requires the library trunnion-text", \
        .usage = #command,                                                     \
        .help = "",                                                            \
        .accepts = CLI_JSON,                                                   \
        .run = refuse_without_text,                                            \
    }

const bench_work bench_llm_works[] = {{0}};
const int bench_llm_work_count = 0;

WITHOUT_TEXT(chat);
WITHOUT_TEXT(embed);
WITHOUT_TEXT(finetune);
WITHOUT_TEXT(generate);
WITHOUT_TEXT(logits);
WITHOUT_TEXT(perplexity);
WITHOUT_TEXT(serve);
WITHOUT_TEXT(tokenize);
WITHOUT_TEXT(transcribe);

int explain_language(const cli_options *o, const explain_wishes *w, const char *path) {
    (void)o, (void)w;
    return cli_fail(TN_ERR_UNSUPPORTED, "'%s': language models require the library trunnion-text: %s", path,
                    TN_TEXT_MISSING);
}

bool fit_inspect(const char *path, int64_t context, tn_dtype cache, tn_model_sizes *s) {
    (void)path, (void)context, (void)cache, (void)s;
    return false;
}

tn_status convert_is_computed(TN_UNUSED const char *path) { return TN_OK; }

tn_status convert_to_onnx(const convert_file *in, const convert_wishes *w, convert_report *r) {
    (void)in, (void)w, (void)r;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "OUT.onnx requires the library trunnion-text: %s", TN_TEXT_MISSING);
}

tn_status convert_verify_onnx(const convert_file *in, const convert_wishes *w, convert_report *r) {
    return convert_to_onnx(in, w, r);
}

bool convert_find_importance(const cli_options *o, const char *model, const char *text, convert_importance *out) {
    (void)o, (void)model, (void)text;
    *out = (convert_importance){0};
    tn_backend_fail(TN_ERR_UNSUPPORTED, "--importance requires the library trunnion-text: %s", TN_TEXT_MISSING);
    return false;
}

bool convert_merge(const char *in, const char *adapter, const char *out, char merged[CLI_PATH]) {
    (void)in, (void)adapter, (void)out, *merged = 0;
    (void)cli_fail(TN_ERR_UNSUPPORTED, "--lora requires the library trunnion-text: %s", TN_TEXT_MISSING);
    return false;
}

void convert_merge_end(const char *merged) { (void)merged; }

bool convert_perplexity(const cli_options *o, const char *model, const char *text, int64_t context, double *out) {
    (void)o, (void)model, (void)text, (void)context;
    *out = 0;
    tn_backend_fail(TN_ERR_UNSUPPORTED, "--text requires the library trunnion-text: %s", TN_TEXT_MISSING);
    return false;
}

int run_classifier(const cli_options *options, const char *folder, char *const *files, int count, int64_t top) {
    (void)options, (void)files, (void)count, (void)top;
    return cli_fail(TN_ERR_UNSUPPORTED, "'%s': folders require the library trunnion-text: %s", folder, TN_TEXT_MISSING);
}

bool run_find_preparation(const char *model, char folder[RUN_PATH]) {
    (void)model, (void)folder;
    return false;
}

tn_status run_prepare_picture(const char *folder, const image *picture, const tn_onnx_info *input, tn_tensor **out) {
    (void)picture, (void)input;
    *out = NULL;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': preparing pictures requires the library trunnion-text: %s",
                           folder, TN_TEXT_MISSING);
}

tn_status run_read_names(const char *folder, run_top *t) {
    (void)folder, (void)t;
    return TN_OK;
}

tn_status sound_tensor(const unsigned char *bytes, size_t size, int64_t rate, const int64_t *shape, int rank,
                       tn_dtype dtype, tn_tensor **out) {
    (void)bytes, (void)size, (void)rate, (void)shape, (void)rank, (void)dtype;
    *out = NULL;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "WAV files require the library trunnion-text: %s", TN_TEXT_MISSING);
}
