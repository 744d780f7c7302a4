/* tools.c — function calls in chats: the tools of a request go into the prompt, and calls are found in the answer.
 *
 * A chat template that mentions tools gets them, and the messages as they are. Other templates get a system message
 * that describes the tools, and calls and their results as text. tools_find_calls finds calls in the answer: JSON
 * between <tool_call> and </tool_call> (Hermes, Qwen), an object (Llama 3), or a list of objects (Mistral). If the
 * request demands a call, a grammar forces the answer to be one. Source: OpenAI, "Function calling"; templates of
 * transformers. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli/serve/serve.h"
#include "trunnion/backend.h"
#include "trunnion/json.h"
#include "trunnion/text.h"

static const char OPENING[] = "<tool_call>", CLOSING[] = "</tool_call>";
enum { MOST_CALLS = 16, MOST_TOOLS = 128 };

static const tn_json *function_of(const serve_job *j, size_t i) {
    return tn_json_get(tn_json_at(j->tools, i), "function");
}

static const char *name_of(const serve_job *j, size_t i) {
    return tn_json_string(tn_json_get(function_of(j, i), "name"), "");
}

static bool is_tool(const serve_job *j, const char *name) {
    for (size_t i = 0; i < tn_json_length(j->tools); i++)
        if (strcmp(name_of(j, i), name) == 0) return true;
    return false;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Everything that is written to a stream of memory. */
typedef struct sheet {
    FILE *f;
    char *text;
    size_t size;
} sheet;

static tn_status sheet_begin(sheet *s) {
    *s = (sheet){0};
    s->f = open_memstream(&s->text, &s->size);
    return s->f ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "tools: out of memory");
}

/* The text is the caller's, NULL after a failure. */
static tn_status sheet_end(sheet *s) {
    bool good = !ferror(s->f);
    good = fclose(s->f) == 0 && good && s->text;
    if (good) return TN_OK;
    free(s->text);
    s->text = NULL;
    return tn_backend_fail(TN_ERR_MEMORY, "tools: out of memory");
}

static void write_text(FILE *f, const char *text, size_t size) {
    cli_json plain = {.out = f};
    cli_json_write(&plain, "%.*s", (int)size, text);
}

/* Another value than a string becomes an empty one: only a string's length counts bytes. */
static void write_string(FILE *f, const tn_json *v) {
    const char *text = tn_json_string(v, NULL);
    write_text(f, text ? text : "", text ? tn_json_length(v) : 0);
}

/* ---- the request ------------------------------------------------------------------------------------------------- */

/* A call, as a grammar has it: the name of a tool and arguments that match its parameters. */
static void write_call_schema(FILE *f, const tn_json *function) {
    const tn_json *parameters = tn_json_get(function, "parameters");
    const char *name = tn_json_string(tn_json_get(function, "name"), "");
    fputs("{\"type\": \"object\", \"properties\": {\"name\": {\"const\": ", f);
    write_text(f, name, strlen(name));
    fputs("}, \"arguments\": ", f);
    if (tn_json_kind_of(parameters) == TN_JSON_OBJECT)
        serve_write_json(f, parameters);
    else
        fputs("{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}", f); /* no arguments */
    fputs("}, \"required\": [\"name\", \"arguments\"], \"additionalProperties\": false}", f);
}

static bool is_chosen(const serve_job *j, size_t i, const char *chosen) {
    return !chosen || strcmp(name_of(j, i), chosen) == 0;
}

static bool same_json(const tn_json *a, const tn_json *b) {
    tn_json_kind kind = tn_json_kind_of(a);
    size_t length = tn_json_length(a);
    if (kind != tn_json_kind_of(b) || length != tn_json_length(b)) return false;
    if (kind == TN_JSON_STRING) return memcmp(tn_json_string(a, ""), tn_json_string(b, ""), length) == 0;
    if (kind == TN_JSON_BOOL) return tn_json_bool(a, false) == tn_json_bool(b, false);
    if (kind == TN_JSON_NUMBER) return tn_json_number(a, 0) == tn_json_number(b, 0);
    for (size_t i = 0; i < length; i++) {
        const char *key = tn_json_key(a, i);
        const tn_json *other = key ? tn_json_get(b, key) : tn_json_at(b, i);
        if (!other || !same_json(tn_json_at(a, i), other)) return false;
    }
    return true;
}

/* References begin at the root, so the definitions of all tools go there, in the same folder ("$defs" or
 * "definitions"). false: two tools define the same name differently. */
static bool write_definitions(FILE *f, const serve_job *j, const char *chosen, const char *folder) {
    const tn_json *of[MOST_TOOLS], *before;
    int count = 0, written = 0;
    for (size_t i = 0; i < tn_json_length(j->tools); i++) {
        const tn_json *own = tn_json_get(tn_json_get(function_of(j, i), "parameters"), folder);
        if (!is_chosen(j, i, chosen) || tn_json_kind_of(own) != TN_JSON_OBJECT) continue;
        for (size_t k = 0; k < tn_json_length(own); k++) {
            before = NULL;
            for (int b = 0; b < count && !before; b++)
                before = tn_json_get(of[b], tn_json_key(own, k));
            if (before && !same_json(before, tn_json_at(own, k))) return false;
            if (before) continue;
            fputs(written++ > 0 ? ", " : "", f);
            write_text(f, tn_json_key(own, k), tn_json_key_length(own, k));
            fputs(": ", f);
            serve_write_json(f, tn_json_at(own, k));
        }
        of[count++] = own;
    }
    return true;
}

/* chosen: NULL for any tool. */
static tn_status grammar_of_calls(const serve_job *j, const char *chosen, tn_bytes *out) {
    sheet s;
    int count = 0;
    size_t tools = tn_json_length(j->tools);
    TRY(sheet_begin(&s));
    fputs("{\"$defs\": {", s.f);
    bool good = write_definitions(s.f, j, chosen, "$defs");
    fputs("}, \"definitions\": {", s.f);
    good = write_definitions(s.f, j, chosen, "definitions") && good;
    fputs("}, \"anyOf\": [", s.f);
    for (size_t i = 0; i < tools; i++) {
        if (!is_chosen(j, i, chosen)) continue;
        if (count++ > 0) fputs(", ", s.f);
        write_call_schema(s.f, function_of(j, i));
    }
    fputs("]}", s.f);
    tn_status status = sheet_end(&s);
    if (status == TN_OK && !good)
        status = tn_backend_fail(TN_ERR_UNSUPPORTED,
                                 "two tools define the same name in \"$defs\" or \"definitions\" differently; rename "
                                 "one definition");
    if (status == TN_OK) status = tn_grammar_from_json_schema(s.text, s.size, out);
    free(s.text);
    return status;
}

static bool check_tools(serve_job *j) {
    if (tn_json_kind_of(j->tools) != TN_JSON_ARRAY || tn_json_length(j->tools) > MOST_TOOLS)
        return serve_refuse(&j->fault, 400, NULL, "tools", "\"tools\" must be a list of at most %d tools", MOST_TOOLS);
    for (size_t i = 0; i < tn_json_length(j->tools); i++) {
        const char *type = tn_json_string(tn_json_get(tn_json_at(j->tools, i), "type"), ""), *name = name_of(j, i);
        const tn_json *parameters = tn_json_get(function_of(j, i), "parameters");
        tn_json_kind kind = tn_json_kind_of(parameters);
        bool whole = strlen(name) == tn_json_length(tn_json_get(function_of(j, i), "name")); /* without a NUL */
        if (strcmp(type, "function") != 0 || !*name || !whole)
            return serve_refuse(&j->fault, 400, NULL, "tools",
                                "tool %zu must be {\"type\": \"function\", \"function\": {\"name\", …}}", i);
        if (kind != TN_JSON_OBJECT && kind != TN_JSON_NULL)
            return serve_refuse(&j->fault, 400, NULL, "tools", "tool %zu: \"parameters\" must be a JSON schema", i);
    }
    return true;
}

/* "none", "auto", "required", or {"type": "function", "function": {"name"}}. *name: that of the last one. */
static bool read_choice(serve_job *j, const tn_json *v, const char **word, const char **name) {
    *word = tn_json_string(v, tn_json_kind_of(v) == TN_JSON_OBJECT ? "required" : "auto");
    if (tn_json_kind_of(v) == TN_JSON_OBJECT) {
        *name = tn_json_string(tn_json_get(tn_json_get(v, "function"), "name"), "");
        return is_tool(j, *name) || serve_refuse(&j->fault, 400, NULL, "tool_choice",
                                                 "\"tool_choice\" names \"%.60s\", which is not in \"tools\"", *name);
    }
    bool known = strcmp(*word, "none") == 0 || strcmp(*word, "auto") == 0 || strcmp(*word, "required") == 0;
    if (known && (tn_json_kind_of(v) == TN_JSON_STRING || tn_json_kind_of(v) == TN_JSON_NULL)) return true;
    return serve_refuse(&j->fault, 400, NULL, "tool_choice",
                        "\"tool_choice\" must be \"none\", \"auto\", \"required\" or the name of a function");
}

bool tools_read(serve_job *j, const tn_json *root, tn_bytes *grammar) {
    const tn_json *tools = tn_json_get(root, "tools"), *choice = tn_json_get(root, "tool_choice");
    const char *word, *name = NULL;
    bool given = tn_json_kind_of(tools) != TN_JSON_NULL;
    if (given) j->tools = tools;
    if ((given && !check_tools(j)) || !read_choice(j, choice, &word, &name)) return false;
    bool demands = strcmp(word, "required") == 0;
    if (demands && tn_json_length(tools) == 0)
        return serve_refuse(&j->fault, 400, NULL, "tool_choice",
                            "\"tool_choice\" demands a call, but there are no tools");
    if (tn_json_length(tools) == 0 || strcmp(word, "none") == 0) {
        j->tools = NULL;
        return true;
    }
    j->must_call = demands;
    j->most_calls = tn_json_bool(tn_json_get(root, "parallel_tool_calls"), true) ? MOST_CALLS : 1;
    if (!demands) return true;
    tn_status status = grammar_of_calls(j, name, grammar);
    return status == TN_OK || serve_refuse_failed(&j->fault, status, "tools");
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

/* OpenAI's arguments are a text; templates want the object. */
static void write_arguments(FILE *f, const tn_json *arguments) {
    tn_json_doc *doc = NULL;
    const char *text = tn_json_string(arguments, NULL);
    if (text && tn_json_parse(text, tn_json_length(arguments), &doc) == TN_OK) arguments = tn_json_root(doc);
    serve_write_json(f, arguments);
    tn_json_free(doc);
}

static void write_function(FILE *f, const tn_json *function) {
    fputs("{\"name\": ", f);
    write_string(f, tn_json_get(function, "name"));
    fputs(", \"arguments\": ", f);
    write_arguments(f, tn_json_get(function, "arguments"));
    fputc('}', f);
}

static void write_calls(FILE *f, const tn_json *calls) {
    fputs(", \"tool_calls\": [", f);
    for (size_t i = 0; i < tn_json_length(calls); i++) {
        fputs(i > 0 ? ", {\"type\": \"function\", \"id\": " : "{\"type\": \"function\", \"id\": ", f);
        write_string(f, tn_json_get(tn_json_at(calls, i), "id"));
        fputs(", \"function\": ", f);
        write_function(f, tn_json_get(tn_json_at(calls, i), "function"));
        fputc('}', f);
    }
    fputc(']', f);
}

/* The messages as the request has them, with their contents as texts: those of c. */
static void write_message(FILE *f, const tn_chat_message *m, const tn_json *given) {
    static const char *const fields[] = {"name", "tool_call_id"};
    const tn_json *calls = tn_json_get(given, "tool_calls");
    fputs("{\"role\": ", f);
    write_text(f, m->role, strlen(m->role));
    fputs(", \"content\": ", f);
    write_text(f, m->content, strlen(m->content));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const tn_json *v = tn_json_get(given, fields[i]);
        if (tn_json_kind_of(v) != TN_JSON_STRING) continue;
        fprintf(f, ", \"%s\": ", fields[i]);
        write_string(f, v);
    }
    if (tn_json_length(calls) > 0) write_calls(f, calls);
    fputc('}', f);
}

static tn_status make_variables(const serve_job *j, const tn_json *messages, conversation *c) {
    sheet s;
    TRY(sheet_begin(&s));
    fputs("{\"messages\": [", s.f);
    for (int i = 0; i < c->count; i++) {
        if (i > 0) fputs(", ", s.f);
        write_message(s.f, &c->messages[i], tn_json_at(messages, (size_t)i));
    }
    fputc(']', s.f);
    if (j->tools) {
        fputs(", \"tools\": ", s.f);
        serve_write_json(s.f, j->tools);
    }
    fputc('}', s.f);
    tn_status status = sheet_end(&s);
    c->variables = s.text;
    return status;
}

/* For a template that has no place for tools. */
static void write_description(FILE *f, const serve_job *j) {
    fputs("You can call these functions, given as JSON, one a line:\n", f);
    for (size_t i = 0; i < tn_json_length(j->tools); i++) {
        serve_write_json(f, function_of(j, i));
        fputc('\n', f);
    }
    fprintf(f, "To call one, answer with %s{\"name\": …, \"arguments\": {…}}%s and nothing else.", OPENING, CLOSING);
}

/* Message i of c, with calls and results as text. */
static tn_status spell_message(const serve_job *j, const tn_json *given, bool first, const tn_chat_message *m,
                               conversation *out) {
    const tn_json *calls = tn_json_get(given, "tool_calls");
    bool system = strcmp(m->role, "system") == 0, result = strcmp(m->role, "tool") == 0;
    sheet s;
    tn_status status = sheet_begin(&s);
    if (status != TN_OK) return status;
    if (first && j->tools && !system) {
        write_description(s.f, j);
        status = sheet_end(&s);
        if (status == TN_OK) status = conversation_add(out, "system", s.text, s.size);
        free(s.text);
        if (status == TN_OK) status = sheet_begin(&s);
        if (status != TN_OK) return status;
    }
    fprintf(s.f, result ? "<tool_response>%s</tool_response>" : "%s", m->content);
    if (first && j->tools && system) {
        fputs("\n\n", s.f);
        write_description(s.f, j);
    }
    for (size_t i = 0; i < tn_json_length(calls); i++) {
        fputs(OPENING, s.f);
        write_function(s.f, tn_json_get(tn_json_at(calls, i), "function"));
        fputs(CLOSING, s.f);
    }
    status = sheet_end(&s);
    if (status == TN_OK) status = conversation_add(out, result ? "user" : m->role, s.text, s.size);
    free(s.text);
    return status;
}

tn_status tools_prepare(const serve_job *j, const server *s, const tn_json *messages, conversation *c) {
    const char *template = tn_tokenizer_chat_template(s->words.tokenizer);
    bool used = j->tools != NULL;
    for (size_t i = 0; i < tn_json_length(messages); i++)
        used = used || tn_json_length(tn_json_get(tn_json_at(messages, i), "tool_calls")) > 0 ||
               strcmp(c->messages[i].role, "tool") == 0;
    if (!used) return TN_OK;
    if (template && strstr(template, "tool")) return make_variables(j, messages, c);
    conversation plain = {0};
    tn_status status = TN_OK;
    for (int i = 0; i < c->count && status == TN_OK; i++)
        status = spell_message(j, tn_json_at(messages, (size_t)i), i == 0, &c->messages[i], &plain);
    if (status != TN_OK) {
        conversation_free(&plain);
        return status;
    }
    conversation_free(c);
    *c = plain;
    return TN_OK;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

/* A name of 9 letters and digits, which some templates require. */
static void name_call(const serve_job *j, serve_call *c) {
    snprintf(c->id, sizeof c->id, "%s%x", j->id + strlen(j->id) - 8, (unsigned)j->call_count % MOST_CALLS);
}

static tn_status add_call(serve_job *j, const char *name, const tn_json *arguments) {
    sheet s;
    TRY(sheet_begin(&s));
    if (tn_json_kind_of(arguments) == TN_JSON_NULL)
        fputs("{}", s.f);
    else
        write_arguments(s.f, arguments);
    tn_status status = sheet_end(&s);
    serve_call *more = status == TN_OK ? realloc(j->calls, (size_t)(j->call_count + 1) * sizeof *more) : NULL;
    if (more) j->calls = more;
    char *copy = more ? strdup(name) : NULL;
    if (!copy) {
        free(s.text);
        return status == TN_OK ? tn_backend_fail(TN_ERR_MEMORY, "tools: out of memory") : status;
    }
    serve_call *c = &j->calls[j->call_count];
    *c = (serve_call){.name = copy, .arguments = s.text};
    name_call(j, c);
    j->call_count++;
    return TN_OK;
}

/* Adds the calls of `text`: one JSON object or a list of them. Ignores objects that name no tool, and text that is not
 * JSON. */
static tn_status take_calls(serve_job *j, const char *text, size_t size) {
    AUTO_CLI_JSON tn_json_doc *doc = NULL;
    tn_status status = tn_json_parse(text, size, &doc);
    if (status != TN_OK) return status == TN_ERR_MEMORY ? status : TN_OK;
    const tn_json *root = tn_json_root(doc);
    bool list = tn_json_kind_of(root) == TN_JSON_ARRAY;
    for (size_t i = 0; i < (list ? tn_json_length(root) : 1) && j->call_count < j->most_calls; i++) {
        const tn_json *call = list ? tn_json_at(root, i) : root, *arguments = tn_json_get(call, "arguments");
        const char *name = tn_json_string(tn_json_get(call, "name"), "");
        if (!arguments) arguments = tn_json_get(call, "parameters"); /* Llama 3's word */
        if (is_tool(j, name)) TRY(add_call(j, name, arguments));
    }
    return TN_OK;
}

static size_t blanks(const char *text, size_t size) {
    size_t i = 0;
    while (i < size && isspace((unsigned char)text[i]))
        i++;
    return i;
}

static bool is_json(const char *text, size_t size) {
    size_t at = blanks(text, size);
    return at < size && (text[at] == '{' || text[at] == '[');
}

/* Where the first call begins, or may begin if more follows: behind what was sent. */
static size_t first_call(const serve_job *j) {
    const char *text = j->answer.text.data;
    size_t size = j->answer.text.size, at = j->sent_text < size ? j->sent_text : size;
    for (; at < size; at++) {
        size_t left = size - at < sizeof OPENING - 1 ? size - at : sizeof OPENING - 1;
        if (memcmp(text + at, OPENING, left) == 0) break;
    }
    while (at > 0 && isspace((unsigned char)text[at - 1]))
        at--;
    return at;
}

size_t tools_visible(const serve_job *j) {
    const answer *a = &j->answer;
    if (!j->tools || j->calls_read) return j->calls_read && j->call_count > 0 ? j->before_calls : a->text.size;
    if (!a->text.data || j->must_call || is_json(a->text.data, a->text.size)) return 0;
    return first_call(j);
}

tn_status tools_find_calls(serve_job *j) {
    const char *text = j->answer.text.data;
    size_t size = j->answer.text.size;
    tn_status status = TN_OK;
    if (!j->tools || j->calls_read) return TN_OK;
    j->calls_read = true;
    if (!text) return TN_OK;
    j->before_calls = is_json(text, size) ? 0 : first_call(j);
    if (is_json(text, size)) status = take_calls(j, text, size);
    const char *at = text;
    while (status == TN_OK && (at = memmem(at, size - (size_t)(at - text), OPENING, sizeof OPENING - 1))) {
        at += sizeof OPENING - 1;
        size_t left = size - (size_t)(at - text);
        const char *end = memmem(at, left, CLOSING, sizeof CLOSING - 1);
        status = take_calls(j, at, end ? (size_t)(end - at) : left);
        if (end) at = end;
    }
    return status;
}

void tools_free(serve_job *j) {
    for (int i = 0; i < j->call_count; i++) {
        free(j->calls[i].name);
        free(j->calls[i].arguments);
    }
    free(j->calls);
    tn_json_free(j->request);
}
