/* chat.c — `trunnion chat`: a conversation with a language model at the terminal.
 *
 * Each turn the whole conversation becomes tokens by the model's template, and only those behind the prefix that is in
 * the cache already are computed. Ctrl-C stops the answer, which stays in the conversation as far as it came; Ctrl-D
 * ends the session. When the context is full, the oldest messages but the system prompt leave the conversation. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/text/answer.h"
#include "cli/text/conversation.h"
#include "cli/text/language.h"
#include "cli/text/sampling.h"
#include "trunnion/backend.h"
#include "trunnion/text.h"

enum {
    LEAST_ANSWER = 256 /* tokens that a turn leaves free for the answer, if the context has them */
};

static int run_chat(int argc, char **argv);

const cli_command cli_chat = {
    .name = "chat",
    .summary = "talk with a language model",
    .usage = "chat [-m] MODEL [options]",
    .help = "  -m, --model MODEL     a GGUF file, or a Hugging Face model folder, with a chat template\n"
            "      --system TEXT     system prompt\n"
            "      --messages FILE   begin with this conversation, as /save writes it\n"
            "  -n, --predict N       at most N tokens for an answer (default -1: until it ends)\n"
            "      --stop TEXT       end an answer before TEXT; may be given up to 16 times\n" CLI_SAMPLING_HELP
            "      --lora DIR        add a LoRA adapter in PEFT's format (see finetune)\n"
            "      --context N       context length in tokens (default: the model's, at most 4096)\n" CLI_CACHE_HELP
                CLI_DRAFT_HELP "      --seed N          random seed (default: a random one, which is shown)\n"
            "\n"
            "Type a message and press Enter; \"\"\" begins and ends a message of several lines.\n"
            "Ctrl-C stops the answer, Ctrl-D ends the session, /help lists the commands. If\n"
            "standard input is not a terminal, each line is a message. When the context is full,\n"
            "the oldest messages are dropped; the system prompt stays. With libedit installed,\n"
            "lines can be edited and recalled. If the device fails, the conversation continues on\n"
            "the next one, and a line says so; --strict turns this off.\n"
            "\n"
            "examples:\n"
            "  trunnion chat -m model.gguf\n"
            "  trunnion chat -m model.gguf --system 'Answer briefly.' --temperature 0.3\n",
    .accepts = CLI_DEVICE | CLI_THREADS | CLI_SEED | CLI_VERBOSE,
    .run = run_chat,
};

typedef struct session {
    cli_options common;
    const char *path, *lora, *system, *messages;
    cli_stops stops;
    int64_t tokens, context;
    tn_llm_cache cache, value_cache;
    cli_sampling sampling;
    cli_draft draft;
    cli_language language; /* its tokenizer is NULL: `words` has it */
    vocabulary words;
    tn_llm_facts facts;
    tn_sampler *sampler;
    tn_stop_strings *stop_strings;
    conversation talk;
    cli_moves moves;
    bool ended, failed;
} session;

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

static int first_message(const session *s) {
    return s->talk.count > 0 && strcmp(s->talk.messages[0].role, "system") == 0;
}

/* Drops the oldest message, and what answered it. */
static int drop_oldest(session *s) {
    int first = first_message(s), count = 1;
    while (first + count < s->talk.count - 1 && strcmp(s->talk.messages[first + count].role, "user") != 0)
        count++;
    conversation_remove(&s->talk, first, count);
    return count;
}

static tn_status too_long(const session *s, size_t tokens) {
    return tn_backend_fail(TN_ERR_ARGUMENT,
                           "the message has %zu tokens with the system prompt; the context of %" PRId64
                           " has no room for it and an answer; shorten it, or start with --context N",
                           tokens, s->facts.context);
}

/* The prompt, after the oldest messages left as many as there have to: room for an answer stays. */
static tn_status encode_turn(session *s, tn_ids *ids) {
    int64_t least = s->facts.context / 4 < LEAST_ANSWER ? s->facts.context / 4 : LEAST_ANSWER;
    if (s->tokens >= 0 && s->tokens < least) least = s->tokens;
    int dropped = 0;
    tn_status status;
    for (;;) {
        ids->count = 0;
        status = conversation_encode(&s->talk, &s->words, ids);
        if (status != TN_OK || (int64_t)ids->count + least <= s->facts.context) break;
        if (s->talk.count - first_message(s) <= 1) return too_long(s, ids->count);
        dropped += drop_oldest(s);
    }
    if (dropped)
        cli_print(stderr, "(context of %" PRId64 " tokens full: dropped the %d oldest messages)\n", s->facts.context,
                  dropped);
    return status;
}

static void tell_turn(const session *s, const answer *a, size_t prompt) {
    fputs("\n", stdout);
    fflush(stdout);
    if (a->full)
        cli_print(stderr,
                  "(answer cut: the context of %" PRId64 " tokens is full; the next message drops the oldest "
                  "ones, /reset all)\n",
                  s->facts.context);
    else if (strcmp(a->stopped, "length") == 0)
        cli_print(stderr, "(answer cut after %" PRId64 " tokens)\n", s->tokens);
    else if (strcmp(a->stopped, "cancelled") == 0)
        cli_print(stderr, "(stopped)\n");
    if (s->common.verbose)
        cli_print(stderr, "[prompt: %zu tokens, %" PRId64 " computed in %.2f s — answer: %zu tokens, %.1f/s]\n", prompt,
                  a->computed, a->prompt_seconds, a->ids.count,
                  a->token_seconds > 0 ? (double)a->steps / a->token_seconds : 0.0);
    tn_llm_draft_facts drafts = {.struct_size = sizeof drafts};
    if (s->common.verbose && s->draft.path && tn_llm_get_draft_facts(s->language.model, &drafts) == TN_OK)
        cli_print(stderr, "[draft: %" PRId64 " of %" PRId64 " tokens accepted since the start]\n", drafts.accepted,
                  drafts.drafted);
}

static tn_llm_options model_options(const session *s) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = s->context;
    o.cache = s->cache;
    o.value_cache = s->value_cache;
    o.adapter = s->lora;
    return o;
}

static void close_models(session *s) {
    tn_llm_close(s->language.model);
    s->language.model = NULL;
    cli_draft_close(&s->draft);
}

static tn_status open_on(session *s, tn_device *device) {
    tn_llm_options o = model_options(s);
    o.device = device;
    TRY(tn_llm_open(s->path, &o, &s->language.model));
    TRY(tn_llm_prepare(s->language.model));
    return cli_draft_open(&s->draft, s->language.model, device, s->words.tokenizer);
}

/* The device failed: opens the model on the next one, until one can. If none is left, the model stays where it is: what
 * lacked memory may have it for a shorter message. */
static tn_status move_session(void *ctx, tn_status why, tn_llm **model) {
    session *s = ctx;
    if (s->common.strict) return why;
    do {
        tn_device *next;
        cli_moves_note(&s->moves, s->language.device);
        TRY(cli_moves_next(&s->moves, why, &next));
        close_models(s);
        tn_device_close(s->language.device);
        s->language.device = next;
        why = open_on(s, next);
    } while (cli_moves_on(why));
    *model = s->language.model;
    return why;
}

static tn_status generate_answer(session *s, const tn_ids *ids) {
    const float *logits;
    if (!s->language.model)
        return tn_backend_fail(TN_ERR_UNAVAILABLE, "no device is left that can compute: %s", s->moves.reason);
    answer a = {.model = s->language.model,
                .tokenizer = s->words.tokenizer,
                .sampler = s->sampler,
                .stops = s->stop_strings,
                .most = s->tokens,
                .logprobs = -1,
                .move = move_session,
                .ctx = s,
                .keep = tn_llm_common_prefix(s->language.model, ids->data, (int64_t)ids->count)};
    tn_sampler_reset(s->sampler);
    tn_status status = answer_prompt(&a, ids->data, (int64_t)ids->count, &logits);
    if (status == TN_OK) status = answer_generate(&a, logits);
    bool nothing = status == TN_OK && a.ids.count == 0 && strcmp(a.stopped, "cancelled") == 0;
    if (nothing) conversation_remove(&s->talk, s->talk.count - 1, 1); /* the message that nothing answers */
    if (status == TN_OK && !nothing) status = conversation_add(&s->talk, "assistant", a.text.data, a.text.size);
    if (status == TN_OK) tell_turn(s, &a, ids->count);
    answer_free(&a);
    return status;
}

/* Frees what was made for a message that lacked memory: a shorter one may need it. */
static void release_memory(const session *s) {
    tn_clear_plans();
    if (s->language.device) (void)tn_device_trim(s->language.device, NULL);
}

/* A failure leaves the conversation without the message. */
static void take_message(session *s, const tn_bytes *text) {
    tn_ids ids = {0};
    tn_status status = conversation_add(&s->talk, "user", text->data, text->size);
    bool added = status == TN_OK;
    if (status == TN_OK) status = encode_turn(s, &ids);
    if (status == TN_OK) status = generate_answer(s, &ids);
    tn_ids_free(&ids);
    if (status == TN_OK) return;
    if (added) conversation_remove(&s->talk, s->talk.count - 1, 1);
    s->failed = true;
    cli_failed();
    if (status == TN_ERR_MEMORY) release_memory(s);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static tn_status set_system(session *s, const char *text) {
    conversation anew = {0};
    tn_status status = *text ? conversation_add(&anew, "system", text, strlen(text)) : TN_OK;
    for (int i = first_message(s); i < s->talk.count && status == TN_OK; i++) {
        const tn_chat_message *m = &s->talk.messages[i];
        status = conversation_add(&anew, m->role, m->content, strlen(m->content));
    }
    conversation old = s->talk;
    if (status == TN_OK) s->talk = anew;
    conversation_free(status == TN_OK ? &old : &anew);
    return status;
}

static tn_status do_reset(session *s, TN_UNUSED const char *rest) {
    conversation_remove(&s->talk, first_message(s), s->talk.count - first_message(s));
    cli_print(stderr, "(conversation cleared)\n");
    return TN_OK;
}

static tn_status do_save(session *s, const char *rest) {
    if (s->talk.count == 0)
        return tn_backend_fail(TN_ERR_STATE, "there are no messages to save yet"); /* /load would refuse them */
    tn_status status = conversation_write(&s->talk, rest);
    if (status == TN_OK) cli_print(stderr, "(%d messages saved to %s)\n", s->talk.count, rest);
    return status;
}

static tn_status do_load(session *s, const char *rest) {
    conversation read = {0};
    TRY(conversation_read(&read, rest));
    conversation_free(&s->talk);
    s->talk = read;
    cli_print(stderr, "(%d messages loaded from %s)\n", read.count, rest);
    return TN_OK;
}

static tn_status remake_sampler(session *s) {
    tn_sampler *made;
    TRY(cli_sampling_make(&s->sampling, s->words.tokenizer, &made));
    tn_sampler_free(s->sampler);
    s->sampler = made;
    return TN_OK;
}

static tn_status do_set(session *s, const char *rest) {
    char name[32], value[64], behind;
    int parts = sscanf(rest, "%31s %63s %c", name, value, &behind);
    if (parts <= 0) {
        cli_sampling_list(&s->sampling, stderr);
        fprintf(stderr, "  %-20s %" PRId64 "\n", "predict", s->tokens);
        return TN_OK;
    }
    cli_sampling before = s->sampling;
    bool good = parts == 2 && (strcmp(name, "predict") == 0 ? cli_parse_int(value, ANSWER_ALL, INT32_MAX, &s->tokens)
                                                            : cli_sampling_set(&s->sampling, name, value));
    if (good) return remake_sampler(s);
    s->sampling = before;
    return tn_backend_fail(TN_ERR_ARGUMENT, "\"/set %s\": no such setting, or a wrong value; /set lists the settings",
                           rest);
}

static tn_status do_exit(session *s, TN_UNUSED const char *rest) {
    s->ended = true;
    return TN_OK;
}

static tn_status do_help(session *s, const char *rest);

static const struct {
    const char *name, *argument, *help;
    tn_status (*run)(session *s, const char *rest);
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/reset", "", "forget the conversation, but not the system prompt", do_reset},
    {"/system", "TEXT", "set the system prompt (none: remove it)", set_system},
    {"/set", "[NAME VALUE]", "change a setting of sampling; alone: list them", do_set},
    {"/save", "FILE", "write the conversation as JSON, for /load and --messages", do_save},
    {"/load", "FILE", "go on with a saved conversation", do_load},
    {"/exit", "", "end the session, as Ctrl-D does", do_exit},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static tn_status do_help(session *s, const char *rest) {
    (void)s, (void)rest;
    for (int i = 0; i < COMMANDS; i++)
        fprintf(stderr, "  %-8s %-13s %s\n", commands[i].name, commands[i].argument, commands[i].help);
    fprintf(stderr, "  \"\"\" begins and ends a message of several lines; Ctrl-C stops an answer\n");
    return TN_OK;
}

static void take_command(session *s, char *line) {
    size_t length = strcspn(line, " \t");
    char *rest = line + length + strspn(line + length, " \t");
    for (size_t end = strlen(rest); end > 0 && strchr(" \t", rest[end - 1]); end--)
        rest[end - 1] = 0;
    for (int i = 0; i < COMMANDS; i++) {
        if (strlen(commands[i].name) != length || memcmp(commands[i].name, line, length) != 0) continue;
        tn_status status = !*rest && strcmp(commands[i].argument, "FILE") == 0
                               ? tn_backend_fail(TN_ERR_ARGUMENT, "%s requires a file name", commands[i].name)
                               : commands[i].run(s, rest);
        s->failed |= status != TN_OK;
        if (status != TN_OK) cli_failed();
        return;
    }
    s->failed = true;
    cli_fail(TN_ERR_ARGUMENT, "there is no command \"%.*s\"; /help lists them", (int)length, line);
}

/* ---- the session ------------------------------------------------------------------------------------------------- */

/* A message of several lines, without its quotes. */
static line_result read_rest(tn_bytes *text) {
    tn_bytes line = {0};
    line_result result = LINE_READ;
    memmove(text->data, text->data + 3, text->size - 3);
    text->data[text->size -= 3] = 0;
    for (;;) {
        char *end = strstr(text->data, "\"\"\"");
        if (end) {
            *end = 0;
            text->size = (size_t)(end - text->data);
            break;
        }
        result = line_editor_read("... ", &line);
        if (result != LINE_READ) break;
        if (tn_bytes_append(text, "\n", 1) != TN_OK || tn_bytes_append(text, line.data, line.size) != TN_OK)
            result = LINE_FAILED;
        if (result != LINE_READ) break;
    }
    tn_bytes_free(&line);
    return result;
}

static line_result read_message(tn_bytes *text) {
    line_result result = line_editor_read("> ", text);
    return result == LINE_READ && strncmp(text->data, "\"\"\"", 3) == 0 ? read_rest(text) : result;
}

static bool only_blanks(const tn_bytes *text) { return text->size == strspn(text->data, " \t\r\n"); }

static void talk(session *s) {
    tn_bytes text = {0};
    cli_stop_begin();
    while (!s->ended && !ferror(stdout)) {
        line_result result = read_message(&text);
        s->ended = result == LINE_END || result == LINE_FAILED || (result == LINE_INTERRUPTED && !cli_stopped());
        if (result == LINE_FAILED) {
            s->failed = true;
            cli_failed();
        }
        if (result == LINE_READ && text.data[0] == '/')
            take_command(s, text.data);
        else if (result == LINE_READ && !only_blanks(&text))
            take_message(s, &text);
        if (cli_stopped() && !cli_stop_resume()) break;
    }
    cli_stop_end();
    tn_bytes_free(&text);
    line_editor_end();
}

static tn_status load_session(session *s) {
    tn_llm_options o = model_options(s);
    s->facts.struct_size = sizeof s->facts;
    TRY(tn_llm_inspect_path(s->path, &o, &s->facts));
    TRY(vocabulary_open(&s->words, s->path, &s->facts));
    TRY(remake_sampler(s));
    TRY(tn_stop_strings_new(s->stops.list, s->stops.count, &s->stop_strings));
    if (s->messages) TRY(conversation_read(&s->talk, s->messages));
    return s->system ? set_system(s, s->system) : TN_OK;
}

static void greet(const session *s) {
    cli_print(stderr, "%s (%s), context %" PRId64 " tokens, %s, seed %" PRIu64 "; /help lists commands, Ctrl-D ends\n",
              s->facts.name[0] ? s->facts.name : s->facts.architecture, s->facts.quantisation, s->facts.context,
              s->language.selection.chosen, s->sampling.options.seed);
    if (s->common.verbose) cli_print(stderr, "line editing: %s\n", line_editor_name());
}

static int run_session(session *s) {
    tn_llm_options o = model_options(s);
    int result = CLI_FAILED;
    if (load_session(s) != TN_OK) {
        cli_failed();
    } else if (cli_language_open(&s->language, &s->common, s->path, &o, false)) {
        tn_status status = tn_llm_prepare(s->language.model);
        if (status == TN_OK)
            status = cli_draft_open(&s->draft, s->language.model, s->language.device, s->words.tokenizer);
        result = status == TN_OK ? CLI_OK : cli_failed();
    } else {
        result = s->language.code;
    }
    if (result == CLI_OK) {
        bool terminal = cli_is_terminal(stdin);
        greet(s);
        talk(s);
        if (s->failed && !terminal) result = CLI_FAILED; /* a script finds out */
    }
    tn_sampler_free(s->sampler);
    tn_stop_strings_free(s->stop_strings);
    conversation_free(&s->talk);
    vocabulary_close(&s->words);
    close_models(s);
    cli_language_close(&s->language);
    return result;
}

static const cli_option options[] = {
    CLI_TEXT("model", 'm', session, path),
    CLI_INT("predict", 'n', session, tokens, ANSWER_ALL, INT32_MAX),
    CLI_INT("tokens", 0, session, tokens, ANSWER_ALL, INT32_MAX),
    CLI_TEXT("system", 0, session, system),
    CLI_TEXT("messages", 0, session, messages),
    CLI_NAME("lora", 0, session, lora),
    CLI_INT("context", 0, session, context, 1, INT32_MAX),
    CLI_CACHE_OPTIONS(session),
    CLI_NAME("draft", 0, session, draft.path),
    CLI_INT("draft-tokens", 0, session, draft.tokens, 1, TN_LLM_DRAFT),
    CLI_EACH("stop", 0, session, stops, cli_take_stop),
    {0},
};

static int run_chat(int argc, char **argv) {
    session s = {.tokens = ANSWER_ALL, .value_cache = TN_LLM_CACHE_SAME};
    s.moves.options = &s.common;
    char found[CLI_PATH];
    int status;
    int at =
        cli_parse_with_sampling(&cli_chat, argc, argv, &s.common, options, offsetof(session, sampling), &s, &status);
    if (at < 0) return status;
    if (at < argc && !s.path) s.path = argv[at++];
    if (at < argc)
        return cli_wrong_usage(&cli_chat, "unexpected argument \"%s\"; messages are typed, or piped in", argv[at]);
    if (!s.path) return cli_wrong_usage(&cli_chat, "missing model: pass its GGUF file or folder with -m");
    const char *idle = cli_sampling_conflict(&s.sampling);
    if (idle) return cli_wrong_usage(&cli_chat, "--%s has no effect with --greedy; remove one of them", idle);
    const char *wrong = cli_draft_conflict(&s.draft);
    if (wrong) return cli_wrong_usage(&cli_chat, "%s", wrong);
    if (!cli_find_model(&s.path, found) || !cli_draft_find(&s.draft)) return CLI_FAILED;
    cli_sampling_seed(&s.sampling, &s.common);
    return run_session(&s);
}
