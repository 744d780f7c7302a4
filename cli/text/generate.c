/* generate.c — `trunnion generate`: a language model continues a text, and shows each token as it is computed.
 *
 * The text goes to standard output, notes to standard error. Loading, planning and packing come before the clock
 * starts; the two speeds are those of the prompt and of the generated tokens. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"
#include "trunnion/text.h"

enum {
    OPT_CHAT = 256,
    OPT_SYSTEM,
    OPT_GREEDY,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_REPEAT,
    OPT_CONTEXT,
    OPT_IDS,
    OPT_CACHE
};
enum { DEFAULT_TOKENS = 128, NOT_GIVEN = -1 };

static int run_generate(int argc, char **argv);

const cli_command cli_generate = {
    .name = "generate",
    .summary = "continue a text with a language model, or answer a chat message",
    .usage = "generate -m MODEL -p TEXT [-n N] [options]",
    .help = "  -m, --model MODEL     a GGUF file, or a Hugging Face model folder\n"
            "  -p, --prompt TEXT     the prompt; - reads standard input\n"
            "  -n, --predict N       generate at most N tokens (default 128); --tokens N is the same\n"
            "      --chat            the prompt is a user's message; applies the model's chat template\n"
            "      --system TEXT     system prompt, with --chat\n"
            "      --greedy          always take the most probable token, without sampling\n"
            "      --temperature X   sampling temperature; lower is more predictable\n"
            "                        (default 0.8)\n"
            "      --top-k N         sample from the N most probable tokens (0: all)\n"
            "                        (default 40)\n"
            "      --top-p X         nucleus sampling: the smallest set of tokens with total\n"
            "                        probability X (default 0.95)\n"
            "      --min-p X         drop tokens with less than X times the probability of the\n"
            "                        most probable one (default 0.05)\n"
            "      --repeat-penalty X  divides positive logits of the last 64 tokens (default 1: none)\n"
            "      --ids IDS         the prompt as token ids, separated by commas, instead of -p; prints ids\n"
            "      --context N       context length in tokens, prompt and answer together\n"
            "                        (default: what they need)\n"
            "      --cache TYPE      type of the key/value cache: f16, bf16 or f32\n"
            "                        (default f16)\n"
            "      --seed N          random seed (default: a random one, which is shown)\n"
            "      --json            text, prompt_ids[], ids[], prompt_tokens_per_second,\n"
            "                        tokens_per_second, device, fallback[], load_seconds,\n"
            "                        weights_bytes, cache_bytes, context, seed,\n"
            "                        stopped (end, length, cancelled)\n"
            "\n"
            "The same seed gives the same text with any number of threads. Ctrl-C stops the\n"
            "generation after printing what was generated; the exit status is then 130 (SIGTERM: 143).\n"
            "\n"
            "examples:\n"
            "  trunnion generate -m model.gguf --chat -p 'Why is the sky blue?'\n"
            "  trunnion generate -m model.gguf -p 'Once upon a time' -n 200 --seed 7\n"
            "  trunnion generate -m model.gguf -p 'The capital of France is' --greedy --json\n",
    .accepts = CLI_ALL,
    .run = run_generate,
};

static const struct option options[] = {
    {"model", required_argument, NULL, 'm'},
    {"prompt", required_argument, NULL, 'p'},
    {"predict", required_argument, NULL, 'n'},
    {"tokens", required_argument, NULL, 'n'},
    {"chat", no_argument, NULL, OPT_CHAT},
    {"system", required_argument, NULL, OPT_SYSTEM},
    {"greedy", no_argument, NULL, OPT_GREEDY},
    {"temperature", required_argument, NULL, OPT_TEMPERATURE},
    {"top-k", required_argument, NULL, OPT_TOP_K},
    {"top-p", required_argument, NULL, OPT_TOP_P},
    {"min-p", required_argument, NULL, OPT_MIN_P},
    {"repeat-penalty", required_argument, NULL, OPT_REPEAT},
    {"context", required_argument, NULL, OPT_CONTEXT},
    {"ids", required_argument, NULL, OPT_IDS},
    {"cache", required_argument, NULL, OPT_CACHE},
    {0},
};

typedef struct request {
    cli_options common;
    const char *model, *prompt, *ids, *system;
    int64_t tokens, context;    /* context 0: not given */
    bool chat, greedy, limited; /* limited: to DEFAULT_TOKENS */
    const char *sampled;        /* an option of sampling that was given; NULL: none */
    tn_llm_cache cache;
    tn_sampler_options sampling;
} request;

/* What a run works with and what it yields. */
typedef struct work {
    const request *asked;
    tn_tokenizer *tokenizer;
    tn_sampler *sampler;
    int64_t template_place, vocabulary_place; /* in the file */
    tn_device *device;
    tn_selection selection;
    tn_llm *model;
    tn_llm_facts facts;
    tn_ids prompt, ids;
    tn_bytes text; /* all that was generated */
    size_t shown;  /* bytes of it that were written */
    tn_text_stream stream;
    double load_seconds, prompt_seconds, token_seconds;
    int64_t steps;       /* tokens behind the prompt that were computed */
    const char *stopped; /* "end", "length" or "cancelled" */
    bool full;           /* length: the context's, not that of -n */
} work;

/* ---- options ----------------------------------------------------------------------------------------------------- */

static bool take_real(const char *text, double least, double most, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno || !(v >= least && v <= most)) return false;
    *out = v;
    return true;
}

static bool take_generate_option(void *ctx, int val, const char *arg) {
    request *r = ctx;
    tn_sampler_options *s = &r->sampling;
    int64_t n = 0;
    bool good = true;
    for (const struct option *o = options; o->name; o++)
        if (o->val == val && val >= OPT_TEMPERATURE && val <= OPT_MIN_P) r->sampled = o->name;
    switch (val) {
    case 'm': r->model = arg; break;
    case 'p': r->prompt = arg; break;
    case 'n': return cli_parse_int(arg, 0, INT32_MAX, &r->tokens);
    case OPT_CHAT: r->chat = true; break;
    case OPT_SYSTEM: r->system = arg; break;
    case OPT_GREEDY: r->greedy = true; break;
    case OPT_TEMPERATURE: return take_real(arg, 0, 100, &s->temperature);
    case OPT_TOP_K:
        good = cli_parse_int(arg, 0, INT32_MAX, &n);
        s->top_k = (int32_t)n;
        break;
    case OPT_TOP_P: return take_real(arg, 0, 1, &s->top_p);
    case OPT_MIN_P: return take_real(arg, 0, 1, &s->min_p);
    case OPT_REPEAT: return take_real(arg, 0.01, 100, &s->repeat_penalty);
    case OPT_CONTEXT: return cli_parse_int(arg, 1, INT32_MAX, &r->context);
    case OPT_IDS: r->ids = arg; break;
    case OPT_CACHE: return cli_take_cache(arg, &r->cache);
    default: break;
    }
    return good;
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

static tn_status render_chat(const work *w, const char *source, const char *said, tn_bytes *out) {
    tn_chat_template *template = NULL;
    tn_status status = tn_chat_template_new(source, strlen(source), &template);
    if (status != TN_OK) return status;
    const char *system = w->asked->system;
    tn_chat_message messages[2] = {{"system", system}, {"user", said}};
    tn_chat chat = TN_CHAT_DEFAULTS;
    chat.messages = system ? messages : messages + 1;
    chat.count = system ? 2 : 1;
    chat.add_generation_prompt = true;
    chat.tokenizer = w->tokenizer;
    status = tn_chat_template_apply(template, &chat, NULL, out);
    tn_chat_template_free(template);
    return status;
}

/* The text that the model's own template makes of what somebody says. */
static tn_status make_chat(const work *w, const char *said, tn_bytes *out) {
    const char *source = tn_tokenizer_chat_template(w->tokenizer);
    if (!source)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "'%s' has no chat template (tokenizer.chat_template in GGUF files, chat_template of tokenizer_config.json "
            "in folders), which --chat requires; remove --chat and write the whole prompt",
            w->asked->model);
    tn_status status = render_chat(w, source, said, out);
    if (status == TN_OK || status == TN_ERR_MEMORY) return status;
    return tn_backend_fail(status, "'%s': byte %" PRId64 ": the chat template: %s", w->asked->model, w->template_place,
                           tn_error());
}

static tn_status encode_prompt(work *w, const tn_bytes *given) {
    if (!w->asked->chat)
        return tn_tokenizer_encode(w->tokenizer, given->data, given->size, TN_ENCODE_SPECIAL | TN_ENCODE_ENDS,
                                   &w->prompt);
    if (strlen(given->data) != given->size)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt contains a NUL byte, which chat templates do not support");
    tn_bytes rendered = {0};
    tn_status status = make_chat(w, given->data, &rendered);
    if (status == TN_OK)
        status = tn_tokenizer_encode(w->tokenizer, rendered.data, rendered.size, TN_ENCODE_SPECIAL, &w->prompt);
    tn_bytes_free(&rendered);
    return status;
}

static tn_status make_prompt(work *w) {
    tn_bytes given = {0};
    const request *r = w->asked;
    tn_status status = cli_take_text(r->ids ? r->ids : r->prompt, &given);
    if (status == TN_OK) status = r->ids ? cli_read_ids(given.data, &w->prompt) : encode_prompt(w, &given);
    bool empty = given.size == 0;
    tn_bytes_free(&given);
    if (status != TN_OK || w->prompt.count > 0) return status;
    if (empty) return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt is empty");
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': the vocabulary, from byte %" PRId64 " on, has no tokens for the prompt",
                           w->asked->model, w->vocabulary_place);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* As long as prompt and answer need, unless somebody says otherwise; the model's own length is the most there is. */
static int64_t choose_context(const work *w, const tn_llm_facts *facts) {
    int64_t need = (int64_t)w->prompt.count + w->asked->tokens;
    if (w->asked->context > 0) return w->asked->context;
    return need < facts->trained_context ? need : facts->trained_context;
}

/* A token without a row in the embedding could not be computed. */
static tn_status check_vocabulary(const work *w, const tn_llm_facts *facts) {
    if (tn_tokenizer_count(w->tokenizer) <= facts->vocabulary) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': byte %" PRId64 ": the vocabulary has %" PRId32 " tokens, but the embedding %" PRId64
                           " rows",
                           w->asked->model, w->vocabulary_place, tn_tokenizer_count(w->tokenizer), facts->vocabulary);
}

/* Where in a GGUF file the messages shall point. */
static tn_status find_places(work *w) {
    tn_gguf *file;
    tn_status status = tn_gguf_open(w->asked->model, &file);
    if (status != TN_OK) return status;
    w->vocabulary_place = tn_gguf_offset(tn_gguf_get(file, "tokenizer.ggml.tokens"));
    w->template_place = tn_gguf_offset(tn_gguf_get(file, "tokenizer.chat_template"));
    tn_gguf_close(file);
    return TN_OK;
}

static tn_status open_tokenizer(work *w, const tn_llm_facts *facts) {
    if (w->asked->ids) return TN_OK;
    tn_status status = cli_is_folder(w->asked->model) ? TN_OK : find_places(w);
    if (status == TN_OK) status = tn_tokenizer_open(w->asked->model, &w->tokenizer);
    return status == TN_OK ? check_vocabulary(w, facts) : status;
}

static tn_status load_generate(work *w) {
    double start = cli_now();
    cli_return_memory();
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_status status = tn_llm_inspect_path(w->asked->model, NULL, &facts);
    if (status == TN_OK) status = open_tokenizer(w, &facts);
    if (status == TN_OK) status = make_prompt(w);
    if (status == TN_OK) status = tn_sampler_new(&w->asked->sampling, &w->sampler);
    if (status != TN_OK) return status;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = choose_context(w, &facts);
    o.cache = w->asked->cache;
    o.device = w->device;
    status = tn_llm_open(w->asked->model, &o, &w->model);
    if (status == TN_OK) status = tn_llm_prepare(w->model);
    w->facts.struct_size = sizeof w->facts;
    if (status == TN_OK) status = tn_llm_get_facts(w->model, &w->facts);
    w->load_seconds = cli_now() - start;
    return status;
}

/* ---- generating -------------------------------------------------------------------------------------------------- */

/* Writes what can be written by now. */
static void show_generate(work *w) {
    if (w->asked->common.json) return;
    cli_show_compiling(false); /* its line would take what stands on this one away */
    fwrite(w->text.data + w->shown, 1, w->text.size - w->shown, stdout);
    fflush(stdout);
    w->shown = w->text.size;
}

/* What is shown where there are ids alone. */
static tn_status add_number(work *w, int32_t id) {
    char text[16];
    int length = snprintf(text, sizeof text, "%s%" PRId32, w->text.size ? " " : "", id);
    return tn_bytes_append(&w->text, text, (size_t)length);
}

static bool ends(const work *w, int32_t id) {
    return tn_llm_ends(w->model, id) || (w->tokenizer && tn_tokenizer_ends(w->tokenizer, id));
}

static tn_status add_token(work *w, int32_t id) {
    tn_status status = tn_ids_append(&w->ids, id);
    if (status == TN_OK && w->tokenizer) status = tn_tokenizer_stream(w->tokenizer, &w->stream, id, 0, &w->text);
    if (status == TN_OK && !w->tokenizer) status = add_number(w, id);
    if (status == TN_OK && w->text.size > w->shown) show_generate(w);
    tn_sampler_accept(w->sampler, id);
    return status;
}

static tn_status run_prompt_generate(work *w, const float **logits) {
    double start = cli_now();
    for (size_t i = 0; i < w->prompt.count; i++)
        tn_sampler_accept(w->sampler, w->prompt.data[i]);
    tn_status status = tn_llm_prompt(w->model, w->prompt.data, (int64_t)w->prompt.count, logits);
    w->prompt_seconds = cli_now() - start;
    return status;
}

/* The last token is shown and not computed: nothing is wanted behind it. */
static tn_status run_tokens(work *w, const float *logits) {
    double start = cli_now();
    tn_status status = TN_OK;
    w->stopped = "length";
    while ((int64_t)w->ids.count < w->asked->tokens) {
        int32_t id = 0;
        status = tn_sampler_pick(w->sampler, logits, (int32_t)w->facts.vocabulary, &id);
        if (status == TN_OK && ends(w, id)) w->stopped = "end";
        if (cli_stopped() || ferror(stdout)) w->stopped = "cancelled"; /* main.c reports what standard output has */
        if (status != TN_OK || strcmp(w->stopped, "length") != 0) break;
        status = add_token(w, id);
        if ((int64_t)w->ids.count == w->asked->tokens) break;
        w->full = tn_llm_position(w->model) == w->facts.context;
        if (w->full) break;
        if (status == TN_OK) status = tn_llm_step(w->model, id, &logits);
        if (status != TN_OK) break;
        w->steps++;
    }
    w->token_seconds = cli_now() - start;
    return status;
}

static tn_status generate(work *w) {
    const float *logits = NULL;
    tn_status status = run_prompt_generate(w, &logits);
    cli_stop_begin(); /* from here on there is a text to keep */
    if (status == TN_OK) status = run_tokens(w, logits);
    if (status == TN_OK) status = tn_tokenizer_stream_end(&w->stream, &w->text);
    if (status == TN_OK) show_generate(w);
    cli_stop_end();
    return status;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static double rate(int64_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

static double prompt_rate(const work *w) { return rate((int64_t)w->prompt.count, w->prompt_seconds); }

static double token_rate(const work *w) { return rate(w->steps, w->token_seconds); }

/* Why this device: what was looked at before it, if anything that was asked for. */
static void put_why(char *out, size_t size, const work *w) {
    bool any = strcmp(w->asked->common.device, "auto") == 0;
    const tn_selection_step *first = w->selection.step_count > 0 ? &w->selection.steps[0] : NULL;
    if (any || !first || first->chosen)
        snprintf(out, size, "%s", any ? "the first that can be used" : "as requested");
    else
        snprintf(out, size, "%s: %s", first->id, first->reason);
}

static void tell(const work *w) {
    char why[TN_REASON_BYTES + 40]; /* behind a device's id */
    tn_device_info info = {.struct_size = sizeof info};
    tn_device_get_info(w->device, &info);
    put_why(why, sizeof why, w);
    printf("\n");
    fflush(stdout);
    cli_print(stderr, "\n[prompt: %zu tokens, %.1f/s — generation: %zu tokens, %.1f/s — %s, %s, %d threads; %s",
              w->prompt.count, prompt_rate(w), w->ids.count, token_rate(w), info.id, info.name, info.threads, why);
    if (!w->asked->greedy) cli_print(stderr, "; seed %" PRIu64, w->asked->sampling.seed);
    cli_print(stderr, "]\n");
}

/* Why a text ends before its end; also with --json, whose reader may not look at `stopped`. */
static void tell_cut(const work *w) {
    if (w->full)
        cli_print(stderr, "trunnion: the context of %" PRId64 " tokens is full; %s\n", w->facts.context,
                  w->facts.context < w->facts.trained_context ? "--context N sets a longer one"
                                                              : "the model does not support a longer one");
    else if (w->asked->limited && strcmp(w->stopped, "length") == 0)
        cli_print(stderr, "trunnion: stopped after %d tokens, the default limit; -n N sets another one\n",
                  DEFAULT_TOKENS);
    else if (cli_stopped())
        cli_print(stderr, "trunnion: stopped by %s after %zu tokens\n", cli_stop_signal(), w->ids.count);
}

static void put_json_generate(const work *w) {
    cli_json j = {.out = stdout};
    cli_json_object(&j, NULL);
    cli_json_text(&j, "text", w->text.data, w->text.size);
    cli_json_ids(&j, "prompt_ids", &w->prompt);
    cli_json_ids(&j, "ids", &w->ids);
    cli_json_number(&j, "prompt_tokens_per_second", prompt_rate(w));
    cli_json_number(&j, "tokens_per_second", token_rate(w));
    cli_json_string(&j, "device", w->selection.chosen);
    cli_json_fallback(&j, &w->selection, w->device);
    cli_json_number(&j, "load_seconds", w->load_seconds);
    cli_json_int(&j, "weights_bytes", w->facts.weights_bytes);
    cli_json_int(&j, "cache_bytes", w->facts.cache_bytes);
    cli_json_int(&j, "context", w->facts.context);
    cli_json_unsigned(&j, "seed", w->asked->sampling.seed);
    cli_json_string(&j, "stopped", w->stopped);
    cli_json_end(&j, '}');
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static void finish_generate(work *w) {
    tn_llm_close(w->model);
    tn_sampler_free(w->sampler);
    tn_tokenizer_free(w->tokenizer);
    tn_ids_free(&w->prompt);
    tn_ids_free(&w->ids);
    tn_bytes_free(&w->text);
    tn_set_current_device(NULL);
    tn_device_close(w->device);
}

static int work_on(const request *r) {
    work w = {.asked = r};
    int result = CLI_OK;
    w.device = cli_choose_device(&r->common, &w.selection, &result);
    if (!w.device) return result;
    tn_status status = load_generate(&w);
    if (status == TN_OK) status = generate(&w);
    if (status == TN_OK) (r->common.json ? put_json_generate : tell)(&w);
    if (status == TN_OK) tell_cut(&w);
    if (cli_stopped()) result = cli_stop_status();
    if (status != TN_OK) result = cli_failed();
    finish_generate(&w);
    return result;
}

/* 32 bits: short enough to be typed again. */
static uint64_t random_seed(void) {
    uint32_t seed;
    if (getentropy(&seed, sizeof seed) == 0) return seed;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint32_t)(t.tv_nsec ^ t.tv_sec);
}

static int run_generate(int argc, char **argv) {
    request r = {.tokens = NOT_GIVEN, .sampling = TN_SAMPLER_DEFAULTS};
    r.sampling.temperature = 0.8;
    r.sampling.top_k = 40;
    r.sampling.top_p = 0.95;
    r.sampling.min_p = 0.05;
    int status,
        at = cli_parse(&cli_generate, argc, argv, &r.common, options, "m:p:n:", take_generate_option, &r, &status);
    if (at < 0) return status;
    if (at < argc)
        return cli_wrong_usage(&cli_generate, "unexpected argument \"%s\": pass the text with -p, in quotes", argv[at]);
    if (!r.model) return cli_wrong_usage(&cli_generate, "missing model: pass its GGUF file or folder with -m");
    if (!r.prompt == !r.ids)
        return cli_wrong_usage(&cli_generate,
                               "missing prompt: pass it with -p (-p - reads standard input), or as --ids");
    if (r.chat && r.ids) return cli_wrong_usage(&cli_generate, "--chat requires a text");
    if (r.system && !r.chat) return cli_wrong_usage(&cli_generate, "--system requires --chat");
    if (r.greedy && (r.sampled || r.common.seed_given))
        return cli_wrong_usage(&cli_generate,
                               "--%s has no effect with --greedy, which does not sample; remove one of them",
                               r.sampled ? r.sampled : "seed");
    char found[CLI_PATH];
    if (!cli_find_model(&r.model, found)) return CLI_FAILED;
    r.limited = r.tokens == NOT_GIVEN;
    if (r.limited) r.tokens = DEFAULT_TOKENS;
    if (r.greedy) r.sampling.temperature = 0;
    r.sampling.seed = r.common.seed_given || r.greedy ? r.common.seed : random_seed();
    return work_on(&r);
}
