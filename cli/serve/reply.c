/* reply.c — answers as JSON: whole, or as the events of a stream ("data: {…}" and an empty line each). */
#include <stdlib.h>
#include <string.h>

#include "cli/serve/serve.h"
#include "trunnion/backend.h"
#include "trunnion/text.h"

/* A JSON text in memory. */
typedef struct page {
    cli_json json;
    char *text;
    size_t size;
} page;

static tn_status page_begin(page *p) {
    *p = (page){0};
    p->json.out = open_memstream(&p->text, &p->size);
    return p->json.out ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "answer: out of memory");
}

/* The writer's last newline is part of the text; an event ends with one more. */
static tn_status page_end(page *p, bool event, tn_bytes *out) {
    bool good = !ferror(p->json.out);
    good = fclose(p->json.out) == 0 && good && p->text;
    tn_status status = good ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "answer: out of memory");
    size_t before = out->size;
    if (status == TN_OK && event) status = tn_bytes_append(out, "data: ", 6);
    if (status == TN_OK) status = tn_bytes_append(out, p->text, p->size);
    if (status == TN_OK && event) status = tn_bytes_append(out, "\n", 1);
    if (status != TN_OK) out->size = before; /* never half an event */
    free(p->text);
    return status;
}

static tn_status page_end_locked(page *p, serve_job *j, bool event) {
    pthread_mutex_lock(&j->lock);
    tn_status status = page_end(p, event, &j->output);
    pthread_mutex_unlock(&j->lock);
    return status;
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* The bytes that a token adds to a text. */
static tn_status token_bytes(const server *s, int32_t id, tn_bytes *out) {
    tn_text_stream stream = {.begun = true};
    out->size = 0;
    TRY(tn_tokenizer_stream(s->words.tokenizer, &stream, id, TN_DECODE_SPECIAL, out));
    TRY(tn_tokenizer_stream_end(&stream, out));
    return tn_bytes_append(out, "", 0);
}

static void put_token(cli_json *j, const server *s, int32_t id, double logprob) {
    tn_bytes text = {0};
    if (token_bytes(s, id, &text) != TN_OK) text.size = 0;
    cli_json_write(j, "'token': %.*s, 'logprob': %g, 'bytes': [", (int)text.size, text.data, logprob);
    for (size_t i = 0; i < text.size; i++)
        cli_json_write(j, "%d", (uint8_t)text.data[i]);
    cli_json_write(j, "]");
    tn_bytes_free(&text);
}

static void put_chat_logprobs(cli_json *j, const server *s, const answer *a, size_t first) {
    cli_json_write(j, "'logprobs': {'content': [");
    for (size_t i = first; i < a->ids.count; i++) {
        const answer_logprob *c = &a->chances[i];
        cli_json_write(j, "{");
        put_token(j, s, a->ids.data[i], c->own);
        cli_json_write(j, "'top_logprobs': [");
        for (int k = 0; k < c->top_count; k++) {
            cli_json_write(j, "{");
            put_token(j, s, c->top[k].id, c->top[k].logprob);
            cli_json_write(j, "}");
        }
        cli_json_write(j, "]}");
    }
    cli_json_write(j, "]}");
}

static void put_text_of(cli_json *j, const server *s, int32_t id) {
    tn_bytes text = {0};
    bool good = token_bytes(s, id, &text) == TN_OK;
    cli_json_write(j, "%.*s", (int)(good ? text.size : 0), text.data);
    tn_bytes_free(&text);
}

/* A member whose key is the token's text. */
static void put_top(cli_json *j, const server *s, const tn_logprob *top) {
    tn_bytes text = {0};
    if (token_bytes(s, top->id, &text) == TN_OK && text.data) {
        cli_whole_characters(text.data, text.size);
        cli_json_write(j, "%s: %g", text.data, top->logprob);
    }
    tn_bytes_free(&text);
}

static void put_completion_logprobs(cli_json *j, const server *s, const answer *a, size_t first) {
    cli_json_write(j, "'logprobs': {'tokens': [");
    for (size_t i = first; i < a->ids.count; i++)
        put_text_of(j, s, a->ids.data[i]);
    cli_json_write(j, "], 'token_logprobs': [");
    for (size_t i = first; i < a->ids.count; i++)
        cli_json_write(j, "%g", a->chances[i].own);
    cli_json_write(j, "], 'top_logprobs': [");
    for (size_t i = first; i < a->ids.count; i++) {
        cli_json_write(j, "{");
        for (int k = 0; k < a->chances[i].top_count; k++)
            put_top(j, s, &a->chances[i].top[k]);
        cli_json_write(j, "}");
    }
    cli_json_write(j, "]}");
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void put_head(cli_json *j, const serve_job *job, const char *object) {
    cli_json_write(j, "{'id': %s, 'object': %s, 'created': %jd, 'model': %s", job->id, object, job->created,
                   job->model);
}

static void put_usage(cli_json *j, const serve_job *job) {
    cli_json_write(j,
                   "'usage': {'prompt_tokens': %jd, 'completion_tokens': %jd, 'total_tokens': %jd, "
                   "'prompt_tokens_details': {'cached_tokens': %jd}}",
                   (int64_t)job->prompt.count, (int64_t)job->answer.ids.count,
                   (int64_t)(job->prompt.count + job->answer.ids.count), job->answer.keep);
}

/* "stop" for the end of the text or a stop string, "length" for a limit. */
static const char *finish_reason(const answer *a, bool calls) {
    if (!a->stopped) return NULL;
    if (calls && strcmp(a->stopped, "length") != 0) return "tool_calls";
    return strcmp(a->stopped, "end") == 0 || strcmp(a->stopped, "stop") == 0 ? "stop" : "length";
}

static void put_calls(cli_json *j, const serve_job *job) {
    cli_json_write(j, "'tool_calls': [");
    for (int i = 0; i < job->call_count; i++) {
        const serve_call *c = &job->calls[i];
        cli_json_write(j, "{");
        if (job->stream) cli_json_write(j, "'index': %d", i);
        cli_json_write(j, "'id': %s, 'type': 'function', 'function': {'name': %s, 'arguments': %s}}", c->id, c->name,
                       c->arguments);
    }
    cli_json_write(j, "]");
}

/* The message of an answer, or the next part of one; without text in front of calls its content is null. */
static void put_message(cli_json *j, const serve_job *job, const char *text, size_t size, bool last) {
    bool calls = job->call_count > 0 && (last || !job->stream);
    cli_json_write(j, "%s: {", job->stream ? "delta" : "message");
    if (!job->streamed) cli_json_write(j, "'role': 'assistant'");
    if (!job->stream && calls && size == 0)
        cli_json_write(j, "'content': null");
    else if (!last || !job->stream)
        cli_json_write(j, "'content': %.*s", (int)size, text);
    if (calls) put_calls(j, job);
    cli_json_write(j, "}");
}

/* The answer's text from `from` on, with what belongs to tokens from `first` on. */
static void put_choice(cli_json *j, const serve_job *job, const server *s, size_t from, size_t first,
                       const char *finish) {
    const answer *a = &job->answer;
    const char *text = a->text.data ? a->text.data + from : "";
    bool chat = job->kind == SERVE_CHAT;
    cli_json_write(j, "'choices': [{'index': 0");
    size_t visible = tools_visible(job), size = visible > from ? visible - from : 0;
    if (chat)
        put_message(j, job, text, size, finish != NULL);
    else
        cli_json_write(j, "'text': %.*s", (int)size, text);
    if (a->logprobs < 0 || first == a->ids.count)
        cli_json_write(j, "'logprobs': null");
    else
        (chat ? put_chat_logprobs : put_completion_logprobs)(j, s, a, first);
    cli_json_write(j, "'finish_reason': %s}]", finish);
}

static const char *object_name(const serve_job *j) {
    if (j->kind == SERVE_COMPLETION) return "text_completion";
    return j->stream ? "chat.completion.chunk" : "chat.completion";
}

static tn_status put_piece(serve_job *j, const server *s, const char *finish) {
    page p;
    TRY(page_begin(&p));
    put_head(&p.json, j, object_name(j));
    put_choice(&p.json, j, s, j->sent_text, j->sent_ids, finish);
    cli_json_write(&p.json, "}");
    size_t visible = tools_visible(j);
    if (visible > j->sent_text) j->sent_text = visible;
    j->sent_ids = j->answer.ids.count;
    j->streamed = true;
    return page_end_locked(&p, j, true);
}

tn_status reply_chunk(serve_job *j, const server *s) {
    bool news = tools_visible(j) > j->sent_text || (j->answer.logprobs >= 0 && j->answer.ids.count > j->sent_ids);
    return news || !j->streamed ? put_piece(j, s, NULL) : TN_OK;
}

static tn_status put_stream_usage(serve_job *j) {
    page p;
    TRY(page_begin(&p));
    put_head(&p.json, j, object_name(j));
    cli_json_write(&p.json, "'choices': []");
    put_usage(&p.json, j);
    cli_json_write(&p.json, "}");
    return page_end_locked(&p, j, true);
}

static tn_status end_stream(serve_job *j, const server *s) {
    static const char done[] = "data: [DONE]\n\n";
    tn_status status = reply_chunk(j, s);
    if (status == TN_OK) status = put_piece(j, s, finish_reason(&j->answer, j->call_count > 0));
    if (status == TN_OK && j->usage) status = put_stream_usage(j);
    pthread_mutex_lock(&j->lock);
    if (status == TN_OK) status = tn_bytes_append(&j->output, done, sizeof done - 1);
    pthread_mutex_unlock(&j->lock);
    return status;
}

tn_status reply_end(serve_job *j, const server *s) {
    page p;
    tn_status status = tools_find_calls(j);
    if (status == TN_OK && j->stream) return end_stream(j, s);
    if (status == TN_OK) status = page_begin(&p);
    if (status != TN_OK) return status;
    put_head(&p.json, j, object_name(j));
    put_choice(&p.json, j, s, 0, 0, finish_reason(&j->answer, j->call_count > 0));
    put_usage(&p.json, j);
    cli_json_write(&p.json, "}");
    return page_end_locked(&p, j, false);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

static char *base64_of(const void *data, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = data;
    char *text = malloc((size + 2) / 3 * 4 + 1), *at = text;
    if (!text) return NULL;
    for (size_t i = 0; i < size; i += 3, at += 4) {
        size_t left = size - i;
        uint32_t bits = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            at[k] = (size_t)k <= left ? digits[bits >> (18 - 6 * k) & 63] : '=';
    }
    *at = 0;
    return text;
}

static tn_status put_vector(cli_json *j, const serve_job *job, int64_t index) {
    const float *v = job->vectors + index * job->width;
    if (job->base64) { /* of f32, least byte first, as all our processors have them */
        char *text = base64_of(v, (size_t)job->width * sizeof *v);
        if (!text) return tn_backend_fail(TN_ERR_MEMORY, "answer: out of memory");
        cli_json_write(j, "'embedding': %s", text);
        free(text);
        return TN_OK;
    }
    cli_json_write(j, "'embedding': [");
    for (int64_t i = 0; i < job->width; i++)
        cli_json_write(j, "%g", (double)v[i]);
    cli_json_write(j, "]");
    return TN_OK;
}

tn_status reply_embeddings(serve_job *j, TN_UNUSED const server *s) {
    page p;
    tn_status status = page_begin(&p);
    if (status != TN_OK) return status;
    cli_json_write(&p.json, "{'object': 'list', 'model': %s, 'data': [", j->model);
    for (int64_t i = 0; status == TN_OK && i < j->count; i++) {
        cli_json_write(&p.json, "{'object': 'embedding', 'index': %jd", i);
        status = put_vector(&p.json, j, i);
        cli_json_write(&p.json, "}");
    }
    cli_json_write(&p.json, "], 'usage': {'prompt_tokens': %jd, 'total_tokens': %jd}}", (int64_t)j->texts.count,
                   (int64_t)j->texts.count);
    tn_status ended = page_end_locked(&p, j, false);
    return status != TN_OK ? status : ended;
}

/* ---- errors, models ---------------------------------------------------------------------------------------------- */

tn_status reply_fault(const serve_fault *f, bool event, tn_bytes *out) {
    page p;
    TRY(page_begin(&p));
    cli_json_write(&p.json, "{'error': {'message': %s, 'type': %s, 'param': %s, 'code': %s}}", f->text, f->type,
                   *f->param ? f->param : NULL, f->kind);
    return page_end(&p, event, out);
}

static void put_model(cli_json *j, const server *s, const char *name) {
    cli_json_write(j, "{'id': %s, 'object': 'model', 'created': %jd, 'owned_by': 'trunnion'", name, s->started);
    if (name == s->name) cli_json_write(j, "'context_length': %jd", s->facts.context);
    cli_json_write(j, "}");
}

/* name: NULL for the list. */
tn_status reply_models(const server *s, const char *name, tn_bytes *out) {
    page p;
    TRY(page_begin(&p));
    if (name) {
        put_model(&p.json, s, name);
        return page_end(&p, false, out);
    }
    cli_json_write(&p.json, "{'object': 'list', 'data': [");
    if (s->path) put_model(&p.json, s, s->name);
    if (s->encoder) put_model(&p.json, s, s->embed_name);
    cli_json_write(&p.json, "]}");
    return page_end(&p, false, out);
}
