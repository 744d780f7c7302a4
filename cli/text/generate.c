/* generate.c — `trunnion generate`: a language model continues a text, or answers a message, and shows each token as it
 * is computed.
 *
 * The text goes to standard output, notes to standard error. Loading, planning and packing come before the clock
 * starts; the two speeds are those of the prompt and of the generated tokens. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/text/answer.h"
#include "cli/text/conversation.h"
#include "cli/text/generate_seq2seq.h"
#include "cli/text/language.h"
#include "cli/text/sampling.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"
#include "trunnion/seq2seq.h"
#include "trunnion/survive.h"
#include "trunnion/text.h"

enum { DEFAULT_TOKENS = 128, NOT_GIVEN = -2, MOST_LOGPROBS = 20, ROOM_FOR_ALL = 4096 };

static int run_generate(int argc, char **argv);

const cli_command cli_generate = {
    .name = "generate",
    .summary = "continue a text with a language model, or answer a chat message",
    .usage = "generate -m MODEL -p TEXT [-n N] [options]",
    .help = "  -m, --model MODEL     a GGUF file, or a Hugging Face model folder\n"
            "  -p, --prompt TEXT     the prompt (T5: what its encoder reads); - reads standard input\n"
            "  -f, --file FILE       the prompt from a file, without one newline at its end; - is standard input\n"
            "      --messages FILE   a conversation to answer: JSON, [{\"role\", \"content\"}, …]\n"
            "  -n, --predict N       generate at most N tokens (default 128); -1: until the text ends or\n"
            "                        the context is full; --tokens and --max-tokens are the same\n"
            "      --stop TEXT       end the answer before TEXT; may be given up to 16 times. A line break is\n"
            "                        $'\\n' in bash\n"
            "      --grammar FILE    a grammar that the answer must follow, in GBNF (llama.cpp's notation)\n"
            "      --json-schema FILE  a JSON schema that the answer must match\n"
            "      --chat            the prompt is a user's message; applies the model's chat template\n"
            "      --system TEXT     system prompt, with --chat\n" CLI_SAMPLING_HELP
            "      --from TOKEN, --to TOKEN  of a translation model: the languages of text and answer, as the\n"
            "                        model calls them: fra_Latn (NLLB), __fr__ (M2M-100), fr_XX (mBART)\n"
            "      --ids IDS         the prompt as token ids, separated by commas, instead of -p; prints ids\n"
            "      --lora DIR        add a LoRA adapter in PEFT's format (see finetune)\n"
            "      --context N       context length in tokens, prompt and answer together; T5: only the answer\n"
            "                        (default: what they need; with -n -1 at least 4096 if the model has "
            "them)\n" CLI_CACHE_HELP CLI_DRAFT_HELP
            "      --seed N          random seed (default: a random one, which is shown)\n"
            "      --prompt-cache FILE  go on with the sequence in FILE as far as the prompt is the same,\n"
            "                        and write the sequence there at the end\n"
            "      --logprobs N      with --json: log probabilities of each token and of the N most\n"
            "                        probable ones in its place (0 to 20)\n"
            "      --json            text, prompt_ids[], ids[], prompt_tokens_per_second,\n"
            "                        prompt_tokens_computed, tokens_per_second, device, fallback[], load_seconds,\n"
            "                        weights_bytes, cache_bytes (not of T5 models), context, seed,\n"
            "                        stopped (end, length, stop, cancelled), stop (the string),\n"
            "                        logprobs[] {id, token, logprob, top[]}; with --draft: draft_tokens,\n"
            "                        draft_accepted\n"
            "\n"
            "The same seed gives the same text with any number of threads. Ctrl-C stops the\n"
            "generation after printing what was generated; the exit status is then 130 (SIGTERM: 143).\n"
            "\n"
            "examples:\n"
            "  trunnion generate -m model.gguf --chat -p 'Why is the sky blue?'\n"
            "  trunnion generate -m model.gguf -p 'Once upon a time' -n 200 --seed 7\n"
            "  trunnion generate -m model.gguf -f text.txt -n -1 --context 512 --stop '.'\n"
            "  trunnion generate -m model.gguf -p 'The capital of France is' --greedy --json\n",
    .accepts = CLI_ALL,
    .run = run_generate,
};

typedef struct request {
    cli_options common;
    const char *model, *lora, *prompt, *file, *messages, *ids, *system, *prompt_cache, *grammar, *schema, *from, *to;
    cli_stops stops;
    int64_t tokens, context; /* tokens: ANSWER_ALL: until the end; context 0: not given */
    int64_t logprobs;        /* -1: none */
    bool chat, limited;      /* limited: to DEFAULT_TOKENS */
    tn_llm_cache cache, value_cache;
    cli_sampling sampling;
    cli_draft draft;
} request;

/* What a run works with and what it yields. */
typedef struct work {
    const request *asked;
    vocabulary words;
    tn_device *device;
    tn_selection selection;
    tn_llm_facts facts;
    tn_ids prompt;
    tn_grammar *grammar;
    answer answer;
    tn_llm_draft_facts drafted;
    double load_seconds, text_begun;
    bool ended; /* the text is complete */
} work;

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

/* The message of --chat behind that of --system, or those of a file. */
static tn_status encode_chat(work *w, const tn_bytes *given) {
    const request *r = w->asked;
    AUTO_CALL(conversation_free) conversation c = {0};
    if (r->messages) TRY(conversation_read(&c, r->messages));
    if (r->system) TRY(conversation_add(&c, "system", r->system, strlen(r->system)));
    if (!r->messages) TRY(conversation_add(&c, "user", given->data, given->size));
    return conversation_encode(&c, &w->words, &w->prompt);
}

/* Editors end a file with a newline that is not part of the prompt. */
static tn_status read_given(const request *r, tn_bytes *out) {
    if (!r->file) return cli_take_text(r->ids ? r->ids : r->prompt, out);
    tn_status status = cli_read_file(r->file, out);
    if (status == TN_OK && out->size > 0 && out->data[out->size - 1] == '\n') out->data[--out->size] = 0;
    return status;
}

static tn_status encode_prompt(work *w, const tn_bytes *given) {
    const request *r = w->asked;
    if (r->ids) return cli_read_ids(given->data, &w->prompt);
    if (r->chat || r->messages) return encode_chat(w, given);
    return tn_tokenizer_encode(w->words.tokenizer, given->data, given->size, TN_ENCODE_SPECIAL | TN_ENCODE_ENDS,
                               &w->prompt);
}

static tn_status make_prompt(work *w) {
    AUTO_BYTES tn_bytes given = {0};
    if (!w->asked->messages) TRY(read_given(w->asked, &given));
    TRY(encode_prompt(w, &given));
    if (w->prompt.count > 0) return TN_OK;
    if (given.size == 0) return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt is empty");
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': the vocabulary, from byte %" PRId64 " on, has no tokens for the prompt",
                           w->asked->model, w->words.place);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* As long as prompt and answer need unless --context was given; at most what the model was trained for. */
static int64_t choose_context(const work *w, const tn_llm_facts *facts) {
    int64_t tokens = w->asked->tokens, prompt = (int64_t)w->prompt.count;
    if (w->asked->context > 0) return w->asked->context;
    if (tokens == ANSWER_ALL) tokens = 2 * prompt < ROOM_FOR_ALL ? ROOM_FOR_ALL - prompt : prompt;
    return prompt + tokens < facts->trained_context ? prompt + tokens : facts->trained_context;
}

/* Of --grammar, or of --json-schema. */
static tn_status read_grammar(work *w) {
    AUTO_BYTES tn_bytes text = {0}, made = {0};
    const char *schema = w->asked->schema, *path = schema ? schema : w->asked->grammar;
    if (!path) return TN_OK;
    TRY(cli_read_file(path, &text));
    tn_status status = schema ? tn_grammar_from_json_schema(text.data, text.size, &made) : TN_OK;
    if (status == TN_OK)
        status = tn_grammar_new(schema ? made.data : text.data, schema ? made.size : text.size, &w->grammar);
    if (status != TN_OK) return tn_backend_fail(status, "'%s': %s", path, tn_error());
    return tn_grammar_state_new(w->grammar, w->words.tokenizer, &w->answer.grammar);
}

static tn_status open_model(work *w, tn_device *device, tn_llm **out) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = choose_context(w, &w->facts);
    o.cache = w->asked->cache;
    o.value_cache = w->asked->value_cache;
    o.device = device;
    o.adapter = w->asked->lora;
    TRY(tn_llm_open(w->asked->model, &o, out));
    return tn_llm_prepare(*out);
}

/* The file of --prompt-cache, if there is one by now. */
static tn_status load_prompt_cache(work *w) {
    const char *path = w->asked->prompt_cache;
    if (!path || access(path, F_OK) != 0) return TN_OK;
    tn_status status = tn_llm_load(w->answer.model, path);
    w->answer.keep = tn_llm_common_prefix(w->answer.model, w->prompt.data, (int64_t)w->prompt.count);
    return status;
}

/* All but the model. */
static tn_status load_generate(work *w) {
    const request *r = w->asked;
    cli_return_memory();
    w->facts.struct_size = sizeof w->facts;
    TRY(cli_output_check(r->prompt_cache));
    TRY(tn_llm_inspect_path(r->model, NULL, &w->facts));
    if (!r->ids) TRY(vocabulary_open(&w->words, r->model, &w->facts));
    TRY(make_prompt(w));
    TRY(cli_sampling_make(&r->sampling, w->words.tokenizer, &w->answer.sampler));
    TRY(tn_stop_strings_new(r->stops.list, r->stops.count, &w->answer.stops));
    TRY(read_grammar(w));
    w->answer.tokenizer = w->words.tokenizer;
    w->answer.most = r->tokens;
    w->answer.logprobs = (int)r->logprobs;
    w->answer.silent = r->common.json;
    return TN_OK;
}

/* ---- generating (survive.h) -------------------------------------------------------------------------------------- */

/* One device's share: step 0 computes the prompt, step i the logits behind token i. On a further device the steps
 * are computed again from the tokens, which fills its cache with the same bits. */
typedef struct share {
    work *w;
    tn_llm *model;
    cli_draft draft;
    const float *logits;
} share;

static tn_status share_begin(void *ctx, tn_device *device, void **self) {
    work *w = ctx;
    double start = cli_now();
    share *s = calloc(1, sizeof *s);
    *self = s;
    if (!s) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    s->w = w;
    tn_status opened = open_model(w, device, &s->model);
    s->draft = w->asked->draft;
    w->answer.model = s->model;
    w->answer.keep = 0;
    TRY(opened);
    TRY(cli_draft_open(&s->draft, s->model, device, w->words.tokenizer));
    TRY(load_prompt_cache(w));
    TRY(tn_llm_get_facts(s->model, &w->facts));
    w->load_seconds += cli_now() - start;
    return TN_OK;
}

static tn_status share_step(void *self, int64_t step, TN_UNUSED int64_t *made) {
    share *s = self;
    answer *a = &s->w->answer;
    if (step > 0) return tn_llm_step(s->model, a->ids.data[step - 1], &s->logits);
    return answer_prompt(a, s->w->prompt.data, (int64_t)s->w->prompt.count, &s->logits);
}

/* Draws the next token. The last one is shown and not computed: nothing is wanted behind it. */
static tn_status share_stepped(void *ctx, void *self, int64_t step, bool *stop) {
    work *w = ctx;
    answer *a = &w->answer;
    const share *s = self;
    tn_status status = TN_OK;
    if (step == 1) {
        cli_stop_begin(); /* from here on there is a text to keep */
        w->text_begun = cli_now();
        status = answer_begin(a);
    }
    a->steps += step > 1;
    if (status == TN_OK && step == 1) (void)answer_continues(a);
    if (cli_stopped() || ferror(stdout)) a->stopped = "cancelled"; /* main.c reports what standard output has */
    if (status == TN_OK && !a->stopped) status = answer_draw(a, s->logits);
    *stop = status == TN_OK && !answer_continues(a);
    return status;
}

static tn_status share_state(void *self, tn_checkpoint *c) {
    (void)self, (void)c; /* the tokens are enough */
    return TN_OK;
}

static tn_status share_finish(void *ctx, void *self) {
    work *w = ctx;
    w->drafted.struct_size = sizeof w->drafted;
    TRY(tn_llm_get_draft_facts(((share *)self)->model, &w->drafted));
    if (!w->ended) {
        tn_status status = answer_end(&w->answer);
        w->answer.token_seconds = cli_now() - w->text_begun;
        if (status != TN_OK) return status;
        w->ended = true;
    }
    return w->asked->prompt_cache ? tn_llm_save(((share *)self)->model, w->asked->prompt_cache) : TN_OK;
}

static void share_end(void *self) {
    share *s = self;
    if (!s) return;
    tn_llm_close(s->model);
    cli_draft_close(&s->draft);
    free(s);
}

/* The device that finished is the one that is reported. */
static tn_status note_device(work *w, const char *ran) {
    tn_device *device = NULL;
    tn_device_options how = cli_device_options(&w->asked->common);
    if (!*ran || strcmp(ran, w->selection.chosen) == 0) return TN_OK;
    TRY(tn_device_open(ran, &how, NULL, &device));
    tn_set_current_device(device);
    tn_device_close(w->device);
    w->device = device;
    snprintf(w->selection.chosen, sizeof w->selection.chosen, "%s", ran);
    return TN_OK;
}

static tn_status generate(work *w) {
    tn_survivor sur = TN_SURVIVOR_DEFAULTS;
    tn_survive_options o = TN_SURVIVE_DEFAULTS;
    tn_survive_report report = {.struct_size = sizeof report};
    sur.begin = share_begin;
    sur.step = share_step;
    sur.stepped = share_stepped;
    sur.state = share_state;
    sur.finish = share_finish;
    sur.end = share_end;
    o.last = o.every = INT64_MAX;
    o.fallback = w->asked->common.strict ? TN_FALLBACK_STRICT : TN_FALLBACK_WARN;
    tn_device_options how = cli_device_options(&w->asked->common);
    o.device = &how;
    const char *name = w->selection.chosen;
    char chosen[sizeof w->selection.chosen];
    snprintf(chosen, sizeof chosen, "%s", name);
    name = chosen;
    tn_status status = tn_survive(&sur, w, &name, 1, &o, &report);
    w->answer.model = NULL; /* `end` closed it */
    cli_stop_end();
    return status == TN_OK ? note_device(w, report.ran) : status;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static double rate(int64_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

static double prompt_rate(const work *w) { return rate(w->answer.computed, w->answer.prompt_seconds); }

static double token_rate(const work *w) { return rate(w->answer.steps, w->answer.token_seconds); }

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
    char speed[32] = ""; /* the first token is the prompt's: alone it has none */
    if (w->answer.steps > 0) snprintf(speed, sizeof speed, ", %.1f/s", token_rate(w));
    cli_print(stderr, "\n[prompt: %zu tokens, %.1f/s — generation: %zu token%s%s — %s, %s, %d threads; %s",
              w->prompt.count, prompt_rate(w), w->answer.ids.count, w->answer.ids.count == 1 ? "" : "s", speed, info.id,
              info.name, info.threads, why);
    if (w->asked->draft.path)
        cli_print(stderr, "; draft: %" PRId64 " of %" PRId64 " tokens accepted", w->drafted.accepted,
                  w->drafted.drafted);
    if (!w->asked->sampling.greedy) cli_print(stderr, "; seed %" PRIu64, w->asked->sampling.options.seed);
    cli_print(stderr, "]\n");
}

/* Why a text ends before its end; also with --json, whose reader may not look at `stopped`. */
static void tell_cut(const work *w) {
    if (w->answer.full)
        cli_print(stderr, "trunnion: the context of %" PRId64 " tokens is full; %s\n", w->facts.context,
                  w->facts.context < w->facts.trained_context ? "--context N sets a longer one"
                                                              : "the model does not support a longer one");
    else if (w->asked->limited && strcmp(w->answer.stopped, "length") == 0)
        cli_print(stderr, "trunnion: stopped after %d tokens, the default limit; -n N sets another one\n",
                  DEFAULT_TOKENS);
    else if (cli_stopped())
        cli_print(stderr, "trunnion: stopped by %s after %zu tokens\n", cli_stop_signal(), w->answer.ids.count);
}

static void put_logprob(cli_json *j, const work *w, int32_t id, double logprob) {
    size_t size = 0;
    const char *text = w->words.tokenizer ? tn_tokenizer_spelling(w->words.tokenizer, id, &size) : NULL;
    cli_json_write(j, "'id': %d, 'token': %.*s, 'logprob': %g", id, (int)size, text, logprob);
}

static void put_logprobs(cli_json *j, const work *w) {
    cli_json_write(j, "'logprobs': [");
    for (size_t i = 0; i < w->answer.ids.count; i++) {
        const answer_logprob *c = &w->answer.chances[i];
        cli_json_write(j, "{");
        put_logprob(j, w, w->answer.ids.data[i], c->own);
        cli_json_write(j, "'top': [");
        for (int k = 0; k < c->top_count; k++) {
            cli_json_write(j, "{");
            put_logprob(j, w, c->top[k].id, c->top[k].logprob);
            cli_json_write(j, "}");
        }
        cli_json_write(j, "]}");
    }
    cli_json_write(j, "]");
}

static void put_json_generate(const work *w) {
    cli_json j = {.out = stdout};
    const answer *a = &w->answer;
    cli_json_write(&j, "{'text': %.*s", (int)a->text.size, a->text.data);
    cli_json_ids(&j, "prompt_ids", &w->prompt);
    cli_json_ids(&j, "ids", &a->ids);
    cli_json_write(
        &j, "'prompt_tokens_per_second': %g, 'prompt_tokens_computed': %jd, 'tokens_per_second': %g, 'device': %s",
        prompt_rate(w), a->computed, token_rate(w), w->selection.chosen);
    cli_json_fallback(&j, &w->selection, w->device);
    cli_json_write(&j,
                   "'load_seconds': %g, 'weights_bytes': %jd, 'cache_bytes': %jd, 'context': %jd, 'seed': %ju, "
                   "'stopped': %s, 'stop': %s",
                   w->load_seconds, w->facts.weights_bytes, w->facts.cache_bytes, w->facts.context,
                   w->asked->sampling.options.seed, a->stopped,
                   a->stop >= 0 ? w->asked->stops.list[a->stop].data : NULL);
    if (w->asked->draft.path)
        cli_json_write(&j, "'draft_tokens': %jd, 'draft_accepted': %jd", w->drafted.drafted, w->drafted.accepted);
    if (a->logprobs >= 0) put_logprobs(&j, w);
    cli_json_write(&j, "}");
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static void finish_generate(work *w) {
    tn_sampler_free(w->answer.sampler);
    tn_stop_strings_free(w->answer.stops);
    tn_grammar_state_free(w->answer.grammar);
    tn_grammar_free(w->grammar);
    answer_free(&w->answer);
    vocabulary_close(&w->words);
    tn_ids_free(&w->prompt);
    tn_set_current_device(NULL);
    tn_device_close(w->device);
}

static int work_on(const request *r) {
    work w = {.asked = r};
    int result = CLI_OK;
    w.device = cli_choose_device(&r->common, &w.selection, &result);
    if (!w.device) return result;
    double start = cli_now();
    tn_status status = load_generate(&w);
    w.load_seconds = cli_now() - start;
    if (status == TN_OK) status = generate(&w);
    if (status == TN_OK) (r->common.json ? put_json_generate : tell)(&w);
    if (status == TN_OK) tell_cut(&w);
    if (cli_stopped()) result = cli_stop_status();
    if (status != TN_OK) result = cli_failed();
    finish_generate(&w);
    return result;
}

/* What is wrong with the request, or NULL. */
static const char *conflict_in(const request *r) {
    if (!r->model) return "missing model: pass its GGUF file or folder with -m";
    int prompts = !!r->prompt + !!r->file + !!r->messages + !!r->ids;
    if (prompts == 0) return "missing prompt: pass it with -p (-p - reads standard input), -f, --messages or --ids";
    if (prompts > 1) return "pass the prompt only once: with -p, -f, --messages or --ids";
    if (r->chat && r->ids) return "--chat requires a text";
    if (r->messages && r->system) return "--system has no effect with --messages; add the message to the file";
    if (r->system && !r->chat) return "--system requires --chat";
    if (r->stops.count && r->ids) return "--stop requires a text; --ids prints ids";
    if (r->grammar && r->schema) return "--grammar and --json-schema exclude each other; remove one of them";
    if ((r->grammar || r->schema) && r->ids) return "--grammar and --json-schema require a text; --ids prints ids";
    if ((r->from || r->to) && r->ids) return "--from and --to require a text; with --ids add the tokens to the ids";
    if (r->logprobs >= 0 && !r->common.json) return "--logprobs requires --json";
    return cli_draft_conflict(&r->draft);
}

/* Encoder-decoder models have no conversations, and options that need the sequence of a decoder. */
static int answer_by_encoder(const request *r) {
    const struct {
        bool given;
        const char *name;
    } others[] = {
        {r->chat, "chat"},
        {r->messages, "messages"},
        {r->system, "system"},
        {r->stops.count, "stop"},
        {r->grammar, "grammar"},
        {r->schema, "json-schema"},
        {r->lora, "lora"},
        {r->logprobs >= 0, "logprobs"},
        {r->prompt_cache, "prompt-cache"},
        {r->draft.path, "draft"},
        {r->cache != TN_LLM_CACHE_F16, "cache"},
        {r->value_cache != TN_LLM_CACHE_SAME, "cache-type-v"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given)
            return cli_fail(TN_ERR_UNSUPPORTED, "'%s': --%s is not supported for encoder-decoder models; remove it",
                            r->model, others[i].name);
    const seq2seq_wishes w = {&r->common, &r->sampling, r->model, r->prompt, r->file,
                              r->ids,     r->from,      r->to,    r->tokens, r->context};
    return seq2seq_generate(&w);
}

static const cli_option options[] = {
    CLI_TEXT("model", 'm', request, model),
    CLI_TEXT("prompt", 'p', request, prompt),
    CLI_TEXT("file", 'f', request, file),
    CLI_TEXT("messages", 0, request, messages),
    CLI_INT("predict", 'n', request, tokens, ANSWER_ALL, INT32_MAX),
    CLI_INT("tokens", 0, request, tokens, ANSWER_ALL, INT32_MAX),
    CLI_INT("max-tokens", 0, request, tokens, ANSWER_ALL, INT32_MAX),
    CLI_EACH("stop", 0, request, stops, cli_take_stop),
    CLI_TEXT("grammar", 0, request, grammar),
    CLI_TEXT("json-schema", 0, request, schema),
    CLI_FLAG("chat", 0, request, chat),
    CLI_TEXT("system", 0, request, system),
    CLI_NAME("lora", 0, request, lora),
    CLI_INT("context", 0, request, context, 1, INT32_MAX),
    CLI_TEXT("ids", 0, request, ids),
    CLI_CACHE_OPTIONS(request),
    CLI_NAME("draft", 0, request, draft.path),
    CLI_INT("draft-tokens", 0, request, draft.tokens, 1, TN_LLM_DRAFT),
    CLI_NAME("prompt-cache", 0, request, prompt_cache),
    CLI_INT("logprobs", 0, request, logprobs, 0, MOST_LOGPROBS),
    CLI_NAME("from", 0, request, from),
    CLI_NAME("to", 0, request, to),
    {0},
};

static int run_generate(int argc, char **argv) {
    request r = {.tokens = NOT_GIVEN, .value_cache = TN_LLM_CACHE_SAME, .logprobs = -1};
    int status;
    int at = cli_parse_with_sampling(&cli_generate, argc, argv, &r.common, options, offsetof(request, sampling), &r,
                                     &status);
    if (at < 0) return status;
    if (at < argc && !r.model)
        return cli_wrong_usage(&cli_generate,
                               "unexpected argument \"%s\": pass the model with -m and the text with -p, in "
                               "quotes: trunnion generate -m MODEL -p 'TEXT'",
                               argv[at]);
    if (at < argc)
        return cli_wrong_usage(&cli_generate, "unexpected argument \"%s\": pass the text with -p, in quotes", argv[at]);
    const char *wrong = conflict_in(&r), *idle = cli_sampling_conflict(&r.sampling);
    if (wrong) return cli_wrong_usage(&cli_generate, "%s", wrong);
    if (!idle && r.sampling.greedy && r.common.seed_given) idle = "seed";
    if (idle)
        return cli_wrong_usage(&cli_generate,
                               "--%s has no effect with --greedy, which does not sample; remove one of them", idle);
    char found[CLI_PATH];
    if (!cli_find_model(&r.model, found) || !cli_draft_find(&r.draft)) return CLI_FAILED;
    r.limited = r.tokens == NOT_GIVEN;
    if (r.limited) r.tokens = DEFAULT_TOKENS;
    cli_sampling_seed(&r.sampling, &r.common);
    if (tn_seq2seq_knows(r.model)) return answer_by_encoder(&r);
    if (r.from || r.to)
        return cli_fail(TN_ERR_UNSUPPORTED, "'%s': --%s is for translation models with an encoder; remove it", r.model,
                        r.from ? "from" : "to");
    return work_on(&r);
}
