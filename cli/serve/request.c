/* request.c — the JSON of a request becomes a job: prompt, sampler, stop strings, grammar, limits.
 *
 * The fields are those of OpenAI's interface, and some of llama.cpp's (top_k, min_p, repeat_penalty, grammar). A field
 * that would change the answer and is not supported is refused; others are ignored. null means that a field is not
 * given. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/serve/serve.h"
#include "trunnion/json.h"
#include "trunnion/text.h"

enum { MOST_STOPS = 16, MOST_LOGPROBS = 20, MOST_TEXTS = 2048 };

typedef struct reader {
    const server *server;
    const tn_json *root;
    serve_job *job;
} reader;

static const tn_json *field(const reader *r, const char *name) { return tn_json_get(r->root, name); }
static bool is_given(const tn_json *v) { return tn_json_kind_of(v) != TN_JSON_NULL; }

static bool wrong(const reader *r, const char *name, const char *wants) {
    return serve_refuse(&r->job->fault, 400, NULL, name, "\"%s\" must be %s", name, wants);
}

static bool read_integer(const reader *r, const char *name, int64_t least, int64_t most, int64_t *out) {
    const tn_json *v = field(r, name);
    if (!is_given(v)) return true;
    int64_t n = tn_json_int(v, INT64_MIN);
    if (tn_json_kind_of(v) != TN_JSON_NUMBER || n == INT64_MIN || n < least || n > most) {
        char wants[96];
        snprintf(wants, sizeof wants, least < most ? "an integer from %" PRId64 " to %" PRId64 : "%" PRId64, least,
                 most);
        return wrong(r, name, wants);
    }
    *out = n;
    return true;
}

static bool read_flag(const reader *r, const char *name, bool *out) {
    const tn_json *v = field(r, name);
    if (!is_given(v)) return true;
    if (tn_json_kind_of(v) != TN_JSON_BOOL) return wrong(r, name, "true or false");
    *out = tn_json_bool(v, false);
    return true;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static bool check_model(const reader *r) {
    const server *s = r->server;
    bool embedding = r->job->kind == SERVE_EMBEDDING;
    const tn_json *v = field(r, "model");
    const char *name = embedding ? s->embed_name : s->name;
    r->job->model = name;
    if (embedding && !s->encoder)
        return serve_refuse(&r->job->fault, 404, "model_not_found", "model",
                            "this server has no model for embeddings; start it with --embed FOLDER");
    if (!embedding && !s->path)
        return serve_refuse(&r->job->fault, 404, "model_not_found", "model",
                            "this server has no language model; start it with -m MODEL");
    if (!is_given(v)) return true;
    if (tn_json_kind_of(v) != TN_JSON_STRING) return wrong(r, "model", "a string");
    if (strcmp(tn_json_string(v, ""), name) == 0) return true;
    return serve_refuse(&r->job->fault, 404, "model_not_found", "model",
                        "the model \"%.60s\" does not exist here; this server has \"%s\"", tn_json_string(v, ""), name);
}

/* Fields that would change the answer, unless they are empty. */
static bool check_unsupported(const reader *r) {
    static const char *const lists[] = {"functions", "logit_bias", "audio", "prediction", "suffix", "modalities"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const tn_json *v = field(r, lists[i]);
        bool text_only = strcmp(lists[i], "modalities") == 0 && tn_json_length(v) == 1 &&
                         strcmp(tn_json_string(tn_json_at(v, 0), ""), "text") == 0;
        if (is_given(v) && !text_only && (tn_json_length(v) > 0 || tn_json_kind_of(v) == TN_JSON_NUMBER))
            return serve_refuse(&r->job->fault, 400, "unsupported", lists[i], "\"%s\" is not supported", lists[i]);
    }
    int64_t choices = 1;
    bool echo = false;
    if (!read_integer(r, "n", 1, 1, &choices) || !read_integer(r, "best_of", 1, 1, &choices)) return false;
    if (!read_flag(r, "echo", &echo)) return false;
    return !echo || serve_refuse(&r->job->fault, 400, "unsupported", "echo", "\"echo\" is not supported");
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static bool read_real(const reader *r, const char *name, double least, double most, double *out) {
    const tn_json *v = field(r, name);
    if (!is_given(v)) return true;
    double n = tn_json_number(v, NAN);
    if (tn_json_kind_of(v) != TN_JSON_NUMBER || !(n >= least && n <= most)) {
        char wants[96];
        snprintf(wants, sizeof wants, "a number from %g to %g", least, most);
        return wrong(r, name, wants);
    }
    *out = n;
    return true;
}

static bool read_sampling(const reader *r) {
    cli_sampling s = r->server->sampling;
    int64_t top_k = s.options.top_k, seed = INT64_MIN;
    double temperature = s.greedy ? 0 : s.options.temperature;
    bool good = read_real(r, "temperature", 0, 100, &temperature) && read_real(r, "top_p", 0, 1, &s.options.top_p) &&
                read_real(r, "min_p", 0, 1, &s.options.min_p) &&
                read_real(r, "frequency_penalty", -2, 2, &s.options.frequency_penalty) &&
                read_real(r, "presence_penalty", -2, 2, &s.options.presence_penalty) &&
                read_real(r, "repeat_penalty", 0.01, 100, &s.options.repeat_penalty) &&
                read_integer(r, "top_k", 0, INT32_MAX, &top_k) &&
                read_integer(r, "seed", INT64_MIN + 1, INT64_MAX, &seed);
    if (!good) return false;
    cli_options o = {.seed = (uint64_t)seed, .seed_given = seed != INT64_MIN};
    if (!o.seed_given && r->server->common.seed_given) o = r->server->common;
    s.options.top_k = (int32_t)top_k;
    s.options.temperature = temperature;
    s.greedy = temperature == 0;
    cli_sampling_seed(&s, &o);
    tn_status status = cli_sampling_make(&s, r->server->words.tokenizer, &r->job->answer.sampler);
    return status == TN_OK || serve_refuse_failed(&r->job->fault, status, NULL);
}

static bool read_stops(const reader *r) {
    tn_text_slice stops[MOST_STOPS];
    const tn_json *v = field(r, "stop");
    bool one = tn_json_kind_of(v) == TN_JSON_STRING;
    size_t count = one ? 1 : tn_json_length(v);
    if (is_given(v) && !one && tn_json_kind_of(v) != TN_JSON_ARRAY)
        return wrong(r, "stop", "a string or a list of them");
    if (count > MOST_STOPS) return wrong(r, "stop", "at most 16 strings");
    for (size_t i = 0; i < count; i++) {
        const tn_json *text = one ? v : tn_json_at(v, i);
        if (tn_json_kind_of(text) != TN_JSON_STRING || tn_json_length(text) == 0)
            return wrong(r, "stop", "a list of strings that are not empty");
        stops[i] = (tn_text_slice){tn_json_string(text, ""), tn_json_length(text)};
    }
    tn_status status = tn_stop_strings_new(stops, (int)count, &r->job->answer.stops);
    return status == TN_OK || serve_refuse_failed(&r->job->fault, status, "stop");
}

/* chat: "logprobs" is a flag and "top_logprobs" a count; completions have the count in "logprobs". */
static bool read_logprobs(const reader *r) {
    int64_t count = -1, top = 0;
    bool wanted = false;
    if (r->job->kind == SERVE_COMPLETION) {
        if (!read_integer(r, "logprobs", 0, MOST_LOGPROBS, &count)) return false;
    } else {
        if (!read_flag(r, "logprobs", &wanted) || !read_integer(r, "top_logprobs", 0, MOST_LOGPROBS, &top))
            return false;
        if (top > 0 && !wanted)
            return serve_refuse(&r->job->fault, 400, NULL, "top_logprobs", "\"top_logprobs\" requires \"logprobs\"");
        if (wanted) count = top;
    }
    r->job->answer.logprobs = (int)count;
    return true;
}

static bool read_length(const reader *r) {
    int64_t most = ANSWER_ALL;
    if (!read_integer(r, "max_tokens", 1, INT32_MAX, &most)) return false;
    if (!read_integer(r, "max_completion_tokens", 1, INT32_MAX, &most)) return false;
    enum { COMPLETION_TOKENS = 16 }; /* OpenAI's default */
    r->job->answer.most = most == ANSWER_ALL && r->job->kind == SERVE_COMPLETION ? COMPLETION_TOKENS : most;
    return true;
}

static bool read_stream(const reader *r) {
    const tn_json *options = field(r, "stream_options");
    if (!read_flag(r, "stream", &r->job->stream)) return false;
    if (!is_given(options)) return true;
    const tn_json *usage = tn_json_get(options, "include_usage");
    if (tn_json_kind_of(options) != TN_JSON_OBJECT) return wrong(r, "stream_options", "an object");
    if (is_given(usage) && tn_json_kind_of(usage) != TN_JSON_BOOL)
        return wrong(r, "stream_options.include_usage", "true or false");
    r->job->usage = tn_json_bool(usage, false);
    return true;
}

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

/* Any object, with at most one blank or line break between its parts. */
static const char json_object[] =
    "root ::= object\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (string ws \":\" ws value ws (\",\" ws string ws \":\" ws value ws)*)? \"}\"\n"
    "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\"\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?\n"
    "ws ::= [ \\n]? [ ]{0,8}\n";

void serve_write_json(FILE *f, const tn_json *v) {
    cli_json plain = {.out = f};
    tn_json_kind kind = tn_json_kind_of(v);
    size_t count = kind == TN_JSON_OBJECT || kind == TN_JSON_ARRAY ? tn_json_length(v) : 0;
    if (kind == TN_JSON_STRING) cli_json_write(&plain, "%.*s", (int)(tn_json_length(v)), tn_json_string(v, ""));
    if (kind == TN_JSON_NUMBER) cli_json_write(&plain, "%g", tn_json_number(v, 0));
    if (kind == TN_JSON_BOOL) cli_json_write(&plain, "%i", tn_json_bool(v, false));
    if (kind == TN_JSON_NULL) fputs("null", f);
    if (kind == TN_JSON_OBJECT || kind == TN_JSON_ARRAY) fputc(kind == TN_JSON_OBJECT ? '{' : '[', f);
    for (size_t i = 0; i < count; i++) {
        cli_json key = {.out = f};
        if (i > 0) fputc(',', f);
        if (kind == TN_JSON_OBJECT) {
            cli_json_write(&key, "%.*s", (int)(tn_json_key_length(v, i)), tn_json_key(v, i));
            fputc(':', f);
        }
        serve_write_json(f, tn_json_at(v, i));
    }
    if (kind == TN_JSON_OBJECT || kind == TN_JSON_ARRAY) fputc(kind == TN_JSON_OBJECT ? '}' : ']', f);
}

static tn_status grammar_of_schema(const tn_json *schema, tn_bytes *out) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return TN_ERR_MEMORY;
    serve_write_json(f, schema);
    fclose(f);
    tn_status status = text ? tn_grammar_from_json_schema(text, size, out) : TN_ERR_MEMORY;
    free(text);
    return status;
}

static bool use_grammar(const reader *r, const char *text, size_t size, const char *param) {
    serve_job *j = r->job;
    tn_status status = tn_grammar_new(text, size, &j->grammar);
    if (status == TN_OK) status = tn_grammar_state_new(j->grammar, r->server->words.tokenizer, &j->answer.grammar);
    return status == TN_OK || serve_refuse_failed(&j->fault, status, param);
}

static bool use_schema(const reader *r, const tn_json *format) {
    const tn_json *schema = tn_json_get(tn_json_get(format, "json_schema"), "schema");
    if (tn_json_kind_of(schema) != TN_JSON_OBJECT)
        return wrong(r, "response_format.json_schema.schema", "a JSON schema");
    tn_bytes text = {0};
    tn_status status = grammar_of_schema(schema, &text);
    bool good = status == TN_OK ? use_grammar(r, text.data, text.size, "response_format")
                                : serve_refuse_failed(&r->job->fault, status, "response_format");
    tn_bytes_free(&text);
    return good;
}

static bool read_format(const reader *r) {
    const tn_json *format = field(r, "response_format"), *grammar = field(r, "grammar");
    if (is_given(format) && tn_json_kind_of(format) != TN_JSON_OBJECT) return wrong(r, "response_format", "an object");
    const char *type = is_given(format) ? tn_json_string(tn_json_get(format, "type"), "") : "text";
    if (is_given(grammar) && tn_json_kind_of(grammar) != TN_JSON_STRING) return wrong(r, "grammar", "a string");
    if (is_given(grammar) && strcmp(type, "text") != 0)
        return serve_refuse(&r->job->fault, 400, NULL, "grammar",
                            "\"grammar\" and \"response_format\" exclude each other");
    if (is_given(grammar)) return use_grammar(r, tn_json_string(grammar, ""), tn_json_length(grammar), "grammar");
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) return use_grammar(r, json_object, sizeof json_object - 1, "response_format");
    if (strcmp(type, "json_schema") == 0) return use_schema(r, format);
    return wrong(r, "response_format.type", "\"text\", \"json_object\" or \"json_schema\"");
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static bool too_long(const reader *r, const char *param, size_t tokens, bool at_least) {
    return serve_refuse(&r->job->fault, 400, "context_length_exceeded", param,
                        "the prompt has %s%zu tokens; the context has %" PRId64, at_least ? "more than " : "", tokens,
                        r->server->facts.context);
}

/* A text that is too long in any case is not tokenized: no token is longer than the longest. */
static bool check_size(const reader *r, size_t bytes, const char *param) {
    size_t least = bytes / (r->server->longest_token + 1);
    return least <= (size_t)r->server->facts.context || too_long(r, param, least, true);
}

/* A text, or the texts of a list of parts, one behind the other. */
static bool read_content(const reader *r, const tn_json *v, size_t index, tn_bytes *out) {
    serve_fault *f = &r->job->fault;
    tn_json_kind kind = tn_json_kind_of(v);
    tn_status status = TN_OK;
    if (kind == TN_JSON_STRING)
        status = tn_bytes_append(out, tn_json_string(v, ""), tn_json_length(v));
    else if (kind != TN_JSON_ARRAY && kind != TN_JSON_NULL)
        return serve_refuse(f, 400, NULL, "messages", "the content of message %zu must be a string or a list", index);
    for (size_t i = 0; kind == TN_JSON_ARRAY && i < tn_json_length(v) && status == TN_OK; i++) {
        const tn_json *text = tn_json_get(tn_json_at(v, i), "text");
        const char *type = tn_json_string(tn_json_get(tn_json_at(v, i), "type"), "");
        if (strcmp(type, "text") != 0 || tn_json_kind_of(text) != TN_JSON_STRING)
            return serve_refuse(f, 400, "unsupported", "messages",
                                "part %zu of message %zu is of type \"%.40s\"; only \"text\" is supported", i, index,
                                type);
        status = tn_bytes_append(out, tn_json_string(text, ""), tn_json_length(text));
    }
    return status == TN_OK || serve_refuse_failed(f, status, "messages");
}

/* Calls of an earlier answer: a list of objects with the name of a function, and an id that is text if there is one. */
static bool are_calls(const tn_json *calls) {
    if (is_given(calls) && tn_json_kind_of(calls) != TN_JSON_ARRAY) return false;
    for (size_t i = 0; i < tn_json_length(calls); i++) {
        const tn_json *call = tn_json_at(calls, i), *id = tn_json_get(call, "id");
        if (is_given(id) && tn_json_kind_of(id) != TN_JSON_STRING) return false;
        if (!*tn_json_string(tn_json_get(tn_json_get(call, "function"), "name"), "")) return false;
    }
    return true;
}

static bool read_message(const reader *r, conversation *c, size_t index) {
    const tn_json *m = tn_json_at(field(r, "messages"), index), *calls = tn_json_get(m, "tool_calls");
    const char *role = tn_json_string(tn_json_get(m, "role"), NULL);
    if (tn_json_kind_of(m) != TN_JSON_OBJECT || !role || !*role)
        return serve_refuse(&r->job->fault, 400, NULL, "messages",
                            "message %zu must be an object with \"role\" and \"content\"", index);
    if (strcmp(role, "function") == 0)
        return serve_refuse(&r->job->fault, 400, NULL, "messages",
                            "message %zu: results of functions have the role \"tool\"", index);
    if (!are_calls(calls))
        return serve_refuse(&r->job->fault, 400, NULL, "messages",
                            "message %zu: \"tool_calls\" must be a list of {\"function\": {\"name\", …}}, and "
                            "\"id\" and \"name\" must be strings",
                            index);
    if (strcmp(role, "developer") == 0) role = "system"; /* its new name */
    tn_bytes text = {0};
    bool good = read_content(r, tn_json_get(m, "content"), index, &text);
    tn_status status = good ? conversation_add(c, role, text.data, text.size) : TN_OK;
    tn_bytes_free(&text);
    return good && (status == TN_OK || serve_refuse_failed(&r->job->fault, status, "messages"));
}

static bool encode_messages(const reader *r, conversation *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->count; i++)
        bytes += strlen(c->messages[i].content);
    if (!check_size(r, bytes, "messages")) return false;
    tn_status status = tools_prepare(r->job, r->server, field(r, "messages"), c);
    if (status == TN_OK) status = conversation_encode(c, &r->server->words, &r->job->prompt);
    return status == TN_OK || serve_refuse_failed(&r->job->fault, status, "messages");
}

static bool read_messages(const reader *r) {
    const tn_json *list = field(r, "messages");
    if (tn_json_kind_of(list) != TN_JSON_ARRAY || tn_json_length(list) == 0)
        return wrong(r, "messages", "a list of messages, with at least one");
    conversation c = {0};
    bool good = true;
    for (size_t i = 0; i < tn_json_length(list) && good; i++)
        good = read_message(r, &c, i);
    good = good && encode_messages(r, &c);
    conversation_free(&c);
    return good;
}

/* Ids of a list of numbers, all of them in the vocabulary. */
static bool read_ids(const reader *r, const tn_json *list, const char *name, int64_t words, tn_ids *out) {
    for (size_t i = 0; i < tn_json_length(list); i++) {
        int64_t id = tn_json_int(tn_json_at(list, i), -1);
        if (id < 0 || id >= words)
            return serve_refuse(&r->job->fault, 400, NULL, name,
                                "item %zu of \"%s\" must be a token: an integer from 0 to %" PRId64, i, name,
                                words - 1);
        tn_status status = tn_ids_append(out, (int32_t)id);
        if (status != TN_OK) return serve_refuse_failed(&r->job->fault, status, name);
    }
    return true;
}

/* A text, or a list of tokens; or a list of one of these. */
static bool read_prompt(const reader *r) {
    const tn_json *v = field(r, "prompt");
    const char wants[] = "a string or a list of tokens; only one prompt is supported";
    tn_json_kind inner = tn_json_kind_of(tn_json_at(v, 0));
    if (tn_json_kind_of(v) == TN_JSON_ARRAY && inner != TN_JSON_NUMBER) {
        if (tn_json_length(v) != 1) return wrong(r, "prompt", wants);
        v = tn_json_at(v, 0);
    }
    if (tn_json_kind_of(v) == TN_JSON_ARRAY)
        return read_ids(r, v, "prompt", r->server->facts.vocabulary, &r->job->prompt);
    if (tn_json_kind_of(v) != TN_JSON_STRING) return wrong(r, "prompt", wants);
    if (!check_size(r, tn_json_length(v), "prompt")) return false;
    tn_status status = tn_tokenizer_encode(r->server->words.tokenizer, tn_json_string(v, ""), tn_json_length(v),
                                           TN_ENCODE_ENDS, &r->job->prompt);
    return status == TN_OK || serve_refuse_failed(&r->job->fault, status, "prompt");
}

/* A demanded call has a grammar of its own. */
static bool read_tools(const reader *r) {
    tn_bytes grammar = {0};
    bool chat = r->job->kind == SERVE_CHAT;
    if (!chat && tn_json_length(field(r, "tools")) > 0)
        return serve_refuse(&r->job->fault, 400, "unsupported", "tools", "\"tools\" requires /v1/chat/completions");
    bool good = !chat || tools_read(r->job, r->root, &grammar);
    if (good && grammar.size > 0 && r->job->grammar)
        good = serve_refuse(&r->job->fault, 400, NULL, "tool_choice",
                            "a demanded call excludes \"grammar\" and a \"response_format\" of JSON");
    else if (good && grammar.size > 0)
        good = use_grammar(r, grammar.data, grammar.size, "tools");
    tn_bytes_free(&grammar);
    return good;
}

static bool read_text_request(const reader *r) {
    const char *param = r->job->kind == SERVE_CHAT ? "messages" : "prompt";
    bool good = check_unsupported(r) && read_stream(r) && read_length(r) && read_logprobs(r) && read_sampling(r) &&
                read_stops(r) && read_format(r) && read_tools(r) &&
                (r->job->kind == SERVE_CHAT ? read_messages(r) : read_prompt(r));
    if (!good) return false;
    r->job->answer.tokenizer = r->server->words.tokenizer;
    size_t count = r->job->prompt.count;
    if (count == 0) return serve_refuse(&r->job->fault, 400, NULL, param, "the prompt is empty");
    return (int64_t)count <= r->server->facts.context || too_long(r, param, count, false);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

static bool add_text(const reader *r, const tn_json *v, size_t index) {
    serve_job *j = r->job;
    const server *s = r->server;
    size_t first = j->texts.count;
    if (tn_json_kind_of(v) == TN_JSON_ARRAY) {
        if (!read_ids(r, v, "input", s->encoder_facts.vocabulary, &j->texts)) return false;
    } else if (tn_json_kind_of(v) == TN_JSON_STRING) {
        tn_status status =
            tn_tokenizer_encode(s->encoder_words, tn_json_string(v, ""), tn_json_length(v), TN_ENCODE_ENDS, &j->texts);
        if (status != TN_OK) return serve_refuse_failed(&j->fault, status, "input");
    } else {
        return wrong(r, "input", "a string, a list of strings, or of lists of tokens");
    }
    int64_t length = (int64_t)(j->texts.count - first);
    if (length == 0) return serve_refuse(&j->fault, 400, NULL, "input", "text %zu is empty", index);
    if (length > s->encoder_facts.longest)
        return serve_refuse(&j->fault, 400, "context_length_exceeded", "input",
                            "text %zu has %" PRId64 " tokens; the model takes %" PRId64, index, length,
                            s->encoder_facts.longest);
    j->lengths[j->count++] = length;
    return true;
}

static bool read_embedding_request(const reader *r) {
    serve_job *j = r->job;
    const tn_json *v = field(r, "input"), *format = field(r, "encoding_format");
    const char *name = tn_json_string(format, is_given(format) ? "" : "float");
    bool list = tn_json_kind_of(v) == TN_JSON_ARRAY && tn_json_kind_of(tn_json_at(v, 0)) != TN_JSON_NUMBER;
    size_t count = list ? tn_json_length(v) : 1;
    int64_t width = j->width = r->server->encoder_facts.width;
    j->base64 = strcmp(name, "base64") == 0;
    if (!j->base64 && strcmp(name, "float") != 0) return wrong(r, "encoding_format", "\"float\" or \"base64\"");
    if (!read_integer(r, "dimensions", width, width, &width)) return false;
    if (count == 0 || count > MOST_TEXTS) return wrong(r, "input", "1 to 2048 texts");
    j->lengths = calloc(count, sizeof *j->lengths);
    j->vectors = calloc(count, (size_t)j->width * sizeof *j->vectors);
    if (!j->lengths || !j->vectors)
        return serve_refuse(&j->fault, 503, "unavailable", "input", "out of memory for %zu embeddings", count);
    for (size_t i = 0; i < count; i++)
        if (!add_text(r, list ? tn_json_at(v, i) : v, i)) return false;
    return true;
}

bool request_read(const server *s, const char *body, size_t size, serve_job *j) {
    tn_json_doc *doc = NULL;
    if (tn_json_parse(body, size, &doc) != TN_OK)
        return serve_refuse(&j->fault, 400, "invalid_json", NULL, "the body is not valid JSON: %s", tn_error());
    reader r = {s, tn_json_root(doc), j};
    bool good = tn_json_kind_of(r.root) == TN_JSON_OBJECT ||
                serve_refuse(&j->fault, 400, NULL, NULL, "the body must be a JSON object");
    j->deadline = j->arrived + (double)s->timeout;
    good = good && check_model(&r) && (j->kind == SERVE_EMBEDDING ? read_embedding_request(&r) : read_text_request(&r));
    if (j->tools)
        j->request = doc;
    else
        tn_json_free(doc);
    return good;
}
