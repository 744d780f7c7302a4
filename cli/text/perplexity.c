/* perplexity.c — `trunnion perplexity`: how well a model predicts a text.
 *
 * The text is cut into windows of N tokens that do not overlap; the model begins each anew, is given its first token
 * and rates every other. The result is exp of the mean negative logarithm of the probabilities. */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/convert/convert.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"

enum { PIECE = 64 /* tokens whose logits are held at once */ };

static int run_perplexity(int argc, char **argv);

const cli_command cli_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a model predicts a text",
    .usage = "perplexity -m MODEL -f FILE [--context N]",
    .help = "  -m, --model MODEL     a GGUF file, or a Hugging Face model folder\n"
            "  -f, --file FILE       the text; - reads standard input\n"
            "  --context N           tokens per window (default 512, or the model's context\n"
            "                        if shorter); windows do not overlap\n"
            "  --json                perplexity, tokens, predicted, context, seconds, tokens_per_second, device,\n"
            "                        fallback[]\n"
            "\n"
            "The first token of a window is given and all others are predicted, so values differ from those of "
            "programs\n"
            "that rate only the second half of each window.\n"
            "\n"
            "examples:\n"
            "  trunnion perplexity -m model.gguf -f text.txt\n"
            "  head -c 20000 text.txt | trunnion perplexity -m model.gguf -f - --json\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_VERBOSE,
    .run = run_perplexity,
};

typedef struct wishes {
    const char *model, *file;
    int64_t context;
} wishes;

typedef struct rating {
    double loss; /* sum of -log p, natural */
    int64_t predicted;
} rating;

/* -log of the probability that these logits give to a token. */
static double surprise(const float *logits, int64_t count, int32_t token) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < count; i++)
        sum += exp(logits[i] - most);
    return most + log(sum) - logits[token];
}

/* Rates ids[1 … count-1] behind ids[0]; room holds PIECE rows of logits. */
static tn_status rate_window(tn_llm *m, const int32_t *ids, int64_t count, int64_t vocabulary, float *room, rating *r) {
    TRY(tn_llm_rewind(m, 0));
    for (int64_t begin = 0; begin < count - 1; begin += PIECE) {
        int64_t n = count - 1 - begin < PIECE ? count - 1 - begin : PIECE;
        TRY(tn_llm_logits(m, ids + begin, n, room));
        for (int64_t i = 0; i < n; i++)
            r->loss += surprise(room + i * vocabulary, vocabulary, ids[begin + i + 1]);
        r->predicted += n;
    }
    return TN_OK;
}

static tn_status rate(const cli_language *l, const tn_ids *ids, int64_t context, rating *r) {
    tn_llm_facts facts = {.struct_size = sizeof facts};
    TRY(tn_llm_get_facts(l->model, &facts));
    AUTO_CLI_FREE float *room = malloc((size_t)facts.vocabulary * PIECE * sizeof *room);
    if (!room) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the logits of %d tokens", PIECE);
    AUTO_CALL(cli_progress_end) cli_progress p = {.what = NULL};
    cli_progress_begin(&p, "perplexity", "tokens", (int64_t)ids->count);
    for (int64_t begin = 0; begin + 1 < (int64_t)ids->count; begin += context) {
        int64_t left = (int64_t)ids->count - begin;
        TRY(rate_window(l->model, ids->data + begin, left < context ? left : context, facts.vocabulary, room, r));
        cli_progress_update(&p, begin, "");
    }
    return TN_OK;
}

static tn_status read_ids(const tn_tokenizer *t, const char *file, tn_ids *ids) {
    AUTO_BYTES tn_bytes text = {0};
    TRY(cli_read_file(file, &text));
    TRY(tn_tokenizer_encode(t, text.data, text.size, TN_ENCODE_ENDS, ids));
    if (ids->count >= 2) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "the text has %zu tokens; at least 2 are required", ids->count);
}

static void put_perplexity(const cli_language *l, const tn_ids *ids, const rating *r, int64_t context, double seconds,
                           bool json) {
    tn_device_info device = {.struct_size = sizeof device};
    (void)tn_device_get_info(l->device, &device);
    double perplexity = exp(r->loss / (double)r->predicted), rate = (double)r->predicted / seconds;
    if (!json) {
        printf("perplexity %.4f over %lld predicted tokens (%zu in the text, windows of %lld), %.0f tokens/s on %s\n",
               perplexity, (long long)r->predicted, ids->count, (long long)context, rate, device.id);
        return;
    }
    cli_json j = {.out = stdout};
    cli_json_write(&j,
                   "{'perplexity': %g, 'tokens': %jd, 'predicted': %jd, 'context': %jd, 'seconds': %g, "
                   "'tokens_per_second': %g, 'device': %s",
                   perplexity, (int64_t)ids->count, r->predicted, context, seconds, rate, device.id);
    cli_json_fallback(&j, &l->selection, l->device);
    cli_json_write(&j, "}");
}

/* Tokens of a window: what is asked for, else 512, or fewer where the model was trained for fewer. */
static int64_t window_of(const char *model, int64_t asked) {
    enum { USUAL = 512 };
    tn_llm_facts f = {.struct_size = sizeof f};
    if (asked) return asked;
    bool shorter = tn_llm_inspect_path(model, NULL, &f) == TN_OK && f.trained_context >= 2 && f.trained_context < USUAL;
    return shorter ? f.trained_context : USUAL;
}

static int run_perplexity(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_NAME("model", 'm', wishes, model),
        CLI_NAME("file", 'f', wishes, file),
        CLI_INT("context", 0, wishes, context, 2, INT64_C(1) << 40),
        {0},
    };
    wishes w = {0};
    cli_options o;
    int status, first = cli_parse(&cli_perplexity, argc, argv, &o, own, &w, &status);
    if (first < 0) return status;
    if (!w.model) return cli_wrong_usage(&cli_perplexity, "missing model: pass its GGUF file or folder with -m");
    if (!w.file) return cli_wrong_usage(&cli_perplexity, "missing text: pass its file with -f");
    if (first < argc) return cli_wrong_usage(&cli_perplexity, "unexpected argument \"%s\"", argv[first]);

    char found[CLI_PATH];
    if (!cli_find_model(&w.model, found)) return CLI_FAILED;
    cli_language l;
    tn_ids ids = {0};
    rating r = {0};
    w.context = window_of(w.model, w.context);
    tn_llm_options options = TN_LLM_DEFAULTS;
    options.context = w.context;
    bool good = cli_language_open(&l, &o, w.model, &options, true);
    double begun = cli_now();
    if (good && (read_ids(l.tokenizer, w.file, &ids) != TN_OK || rate(&l, &ids, w.context, &r) != TN_OK)) {
        l.code = cli_failed();
        good = false;
    }
    if (good) put_perplexity(&l, &ids, &r, w.context, cli_now() - begun, o.json);
    tn_ids_free(&ids);
    cli_language_close(&l);
    return l.code;
}

/* For `trunnion convert`: the perplexity of a model's file over a text, on the device that is open already. */
bool convert_perplexity(const cli_options *o, const char *model, const char *text, int64_t context, double *out) {
    cli_language l;
    tn_ids ids = {0};
    rating r = {0};
    context = window_of(model, context);
    tn_llm_options options = TN_LLM_DEFAULTS;
    options.context = context;
    bool good = cli_language_open(&l, o, model, &options, true) && read_ids(l.tokenizer, text, &ids) == TN_OK &&
                rate(&l, &ids, context, &r) == TN_OK;
    *out = good ? exp(r.loss / (double)r.predicted) : 0;
    tn_ids_free(&ids);
    cli_language_close(&l);
    return good;
}
