/* chat_template.c — the public side of chat templates: compiling one, and rendering conversations. */
#include <string.h>
#include <time.h>

#include "text/jinja.h"

enum {
    TREE_LIMIT = 256 << 20,   /* bytes of a compiled template: a node takes about 100 for a few of source */
    USUAL_STEPS = 20000000,   /* a second or two */
    USUAL_MEMORY = 256 << 20, /* bytes of values */
    USUAL_TEXT = 64 << 20     /* bytes written */
};

tn_status tn_chat_template_new(const char *source, size_t size, tn_chat_template **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: out is NULL");
    *out = NULL;
    if (!source && size > 0) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: the source is NULL");
    if (size > JJ_MAX_SOURCE)
        return tn_backend_fail(TN_ERR_FORMAT, "chat template: %zu bytes; %d are possible", size, JJ_MAX_SOURCE);
    tn_chat_template *t = tn_txt_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    t->arena.limit = TREE_LIMIT;
    jj_token *tokens;
    tn_status status = tn_jj_lex(&t->arena, source, size, &tokens);
    if (status == TN_OK) status = tn_jj_parse(&t->arena, tokens, &t->body);
    if (status != TN_OK) {
        tn_chat_template_free(t);
        return status;
    }
    *out = t;
    return TN_OK;
}

void tn_chat_template_free(tn_chat_template *t) {
    if (!t) return;
    tn_jj_arena_free(&t->arena);
    tn_txt_free(t);
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

static tn_status begin_template(jj_run *r, const tn_chat_template *t, const tn_chat_template_options *options,
                                tn_bytes *out) {
    if (!t || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: an argument is NULL");
    tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS;
    TRY(tn_options_read(&o, options, "chat template", "tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS"));
    if (o.max_steps < 1 || o.max_memory < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "chat template: max_steps is %lld and max_memory %lld; both must be positive",
                               (long long)o.max_steps, (long long)o.max_memory);
    *r = (jj_run){
        .out = out,
        .max_written = USUAL_TEXT,
        .steps_left = o.max_steps,
        .now = o.now != TN_CHAT_TEMPLATE_NOW ? o.now : (int64_t)time(NULL),
    };
    r->arena.limit = (size_t)o.max_memory;
    r->scope = r->globals = tn_jj_alloc(&r->arena, 1, sizeof *r->scope);
    return r->scope ? TN_OK : TN_ERR_MEMORY;
}

/* Takes the members of a JSON object as variables. */
static tn_status take_variables(jj_run *r, const char *json, size_t size) {
    jj_value value;
    TRY(tn_jj_read_json(r, json, size, &value));
    if (value.kind != JJ_DICT)
        return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: the variables are %s; a JSON object is expected",
                               tn_jj_kind_name(&value));
    for (size_t i = 0; i < value.dict->count; i++)
        TRY(tn_jj_put(r, &r->globals->names, value.dict->pairs[i].key, value.dict->pairs[i].value));
    return TN_OK;
}

/* Ends a run: what was written stays only when all went well. */
static tn_status end_template(jj_run *r, tn_status status, size_t before, tn_bytes *out) {
    tn_jj_arena_free(&r->arena);
    if (status == TN_OK) return tn_bytes_append(out, "", 0);
    if (out && out->data) out->data[out->size = before] = 0;
    return status;
}

tn_status tn_chat_template_render(const tn_chat_template *t, const char *json, size_t size,
                                  const tn_chat_template_options *o, tn_bytes *out) {
    jj_run r = {0};
    size_t before = out ? out->size : 0;
    tn_status status = begin_template(&r, t, o, out);
    if (status == TN_OK && json) status = take_variables(&r, json, size);
    if (status == TN_OK) status = tn_jj_render(&r, t->body);
    return end_template(&r, status, before, out);
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static tn_status put_template(jj_run *r, jj_dict *d, const char *name, jj_value value) {
    return tn_jj_put(r, d, tn_jj_literal(name), value);
}

static tn_status put_messages(jj_run *r, const tn_chat_message *messages, int count) {
    jj_value list, message;
    jj_list *items;
    jj_dict *dict;
    TRY(tn_jj_new_list(r, &list, &items));
    for (int i = 0; i < count; i++) {
        if (!messages[i].role || !messages[i].content)
            return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: message %d has no role or no content", i);
        TRY(tn_jj_new_dict(r, JJ_DICT, &message, &dict));
        TRY(put_template(r, dict, "role", tn_jj_literal(messages[i].role)));
        TRY(put_template(r, dict, "content", tn_jj_literal(messages[i].content)));
        TRY(tn_jj_push(r, items, message));
    }
    return put_template(r, &r->globals->names, "messages", list);
}

static tn_status put_special_tokens(jj_run *r, const tn_tokenizer *t) {
    static const struct {
        const char *name;
        tn_special which;
    } tokens[] = {
        {"bos_token", TN_SPECIAL_BOS},       {"eos_token", TN_SPECIAL_EOS},     {"unk_token", TN_SPECIAL_UNKNOWN},
        {"sep_token", TN_SPECIAL_SEPARATOR}, {"pad_token", TN_SPECIAL_PADDING},
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t size;
        const char *spelling = tn_tokenizer_spelling(t, tn_tokenizer_special(t, tokens[i].which), &size);
        if (spelling) TRY(put_template(r, &r->globals->names, tokens[i].name, jj_text(spelling, size)));
    }
    return TN_OK;
}

static tn_status put_conversation(jj_run *r, const tn_chat *c) {
    TRY(put_messages(r, c->messages, c->count));
    TRY(put_special_tokens(r, c->tokenizer));
    TRY(put_template(r, &r->globals->names, "add_generation_prompt", jj_bool(c->add_generation_prompt)));
    TRY(put_template(r, &r->globals->names, "tools", jj_none())); /* as transformers does where there are none */
    TRY(put_template(r, &r->globals->names, "documents", jj_none()));
    return c->variables ? take_variables(r, c->variables, strlen(c->variables)) : TN_OK;
}

tn_status tn_chat_template_apply(const tn_chat_template *t, const tn_chat *chat, const tn_chat_template_options *o,
                                 tn_bytes *out) {
    tn_chat c = TN_CHAT_DEFAULTS;
    if (!chat) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: the conversation is NULL");
    TRY(tn_options_read(&c, chat, "chat template", "tn_chat c = TN_CHAT_DEFAULTS"));
    if (c.count < 0 || (c.count > 0 && !c.messages))
        return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: %d messages, %s", c.count,
                               c.messages ? "which cannot be" : "and the list is NULL");
    jj_run r = {0};
    size_t before = out ? out->size : 0;
    tn_status status = begin_template(&r, t, o, out);
    if (status == TN_OK) status = put_conversation(&r, &c);
    if (status == TN_OK) status = tn_jj_render(&r, t->body);
    return end_template(&r, status, before, out);
}
