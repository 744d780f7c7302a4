/* serve.c — `trunnion serve`: a language model behind OpenAI's HTTP interface. Options, start and end. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/serve/serve.h"

#include "cli/cli.h"
#include "trunnion/backend.h"
#include "trunnion/text.h"

static const double DRAIN_SECONDS = 5; /* in which clients have to read what is computed, at the end */

static int run_serve(int argc, char **argv);

const cli_command cli_serve = {
    .name = "serve",
    .summary = "serve a language model over HTTP, with OpenAI's interface",
    .usage = "serve [-m] MODEL [options]",
    .help = "  -m, --model MODEL     a GGUF file, or a Hugging Face model folder\n"
            "      --embed FOLDER    an encoder's folder, for /v1/embeddings; -m may then be left out\n"
            "      --host HOST       address to listen at (default 127.0.0.1: this machine only)\n"
            "      --port N          port (default 8080); 0: any free one\n"
            "      --api-key KEY     the key that clients have to send; default: the environment's\n"
            "                        TRUNNION_API_KEY, else none\n"
            "      --allow-host NAME  without a key: also answer requests for the host NAME, as a proxy\n"
            "                        sends them, not only for this machine and its addresses; * allows all\n"
            "      --alias NAME      the model's name in the interface (default: its file's name)\n"
            "      --parallel N      requests that are computed at once, 1 to 64 (default 4); each\n"
            "                        has a key/value cache of its own\n"
            "      --context N       tokens of a prompt and its answer (default: the model's, at most "
            "4096)\n" CLI_CACHE_HELP CLI_DRAFT_HELP
            "                        Drafts are used while one request is computed.\n"
            "      --queue N         requests that may wait; more get code 503 (default 64)\n"
            "      --max-body SIZE   longest body of a request (default 4M)\n"
            "      --timeout N       seconds after which an answer is cut (default 600)\n"
            "      --grace N         seconds that running answers have to end after Ctrl-C or SIGTERM\n"
            "                        (default 30)\n" CLI_SAMPLING_HELP
            "      --seed N          seed of requests without one (default: a random one each)\n"
            "      --json            once the model is loaded: url, host, port, model, embedding_model, context,\n"
            "                        parallel\n"
            "  -v, --verbose         a line on standard error for each request\n"
            "\n"
            "The options of sampling are what requests leave open. Interface: /v1/chat/completions,\n"
            "/v1/completions, /v1/embeddings, /v1/models, /health, /metrics (Prometheus), and a page\n"
            "to chat at /. If the device is lost or refuses to compute, the texts continue on the next one,\n"
            "and a line says so; --strict turns this off. Chats may have tools. Beyond OpenAI's fields\n"
            "requests may have top_k, min_p, repeat_penalty and grammar (GBNF). Without --api-key, everyone who can "
            "reach the address can use the model.\n"
            "To try it: curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once upon a time\"}'\n"
            "\n"
            "examples:\n"
            "  trunnion serve -m model.gguf\n"
            "  trunnion serve -m model.gguf --host 0.0.0.0 --parallel 16 --api-key secret\n",
    .accepts = CLI_ALL,
    .run = run_serve,
};

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* A file's name without its ending, or a folder's. */
static void name_model(const char *path, char *out, size_t size) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    size_t n = end - begin < size - 1 ? end - begin : size - 1;
    memcpy(out, path + begin, n);
    out[n] = 0;
    if (n > 5 && strcmp(out + n - 5, ".gguf") == 0) out[n - 5] = 0;
}

static size_t longest_token(const tn_tokenizer *t) {
    size_t longest = 1, size = 0;
    for (int32_t id = 0; id < tn_tokenizer_count(t); id++)
        if (tn_tokenizer_spelling(t, id, &size) && size > longest) longest = size;
    return longest;
}

tn_status server_open_model(server *s, tn_device *device) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = s->context;
    o.cache = s->cache;
    o.value_cache = s->value_cache;
    o.device = device;
    o.conversations = (int)s->parallel;
    return tn_llm_open(s->path, &o, &s->model);
}

static tn_status load_model(server *s) {
    s->facts.struct_size = sizeof s->facts;
    TRY(server_open_model(s, s->device));
    TRY(tn_llm_get_facts(s->model, &s->facts));
    TRY(vocabulary_open(&s->words, s->path, &s->facts));
    name_model(s->path, s->name, sizeof s->name);
    if (s->alias) snprintf(s->name, sizeof s->name, "%s", s->alias);
    s->longest_token = longest_token(s->words.tokenizer);
    return engine_start(s);
}

static tn_status load_encoder(server *s) {
    tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
    o.device = s->device;
    s->encoder_facts.struct_size = sizeof s->encoder_facts;
    TRY(tn_embedder_open(s->embed_path, &o, &s->encoder));
    TRY(tn_embedder_get_facts(s->encoder, &s->encoder_facts));
    TRY(tn_tokenizer_open(s->embed_path, &s->encoder_words));
    name_model(s->embed_path, s->embed_name, sizeof s->embed_name);
    return embedder_start(s);
}

/* "[::1]": an address of IPv6 in a URL. */
static tn_status tell_address(const server *s, int port) {
    char url[300];
    bool six = strchr(s->host, ':');
    snprintf(url, sizeof url, "http://%s%s%s:%d", six ? "[" : "", s->host, six ? "]" : "", port);
    if (!s->common.json) {
        cli_print(stderr, "%s%s%s: listening at %s; Ctrl-C stops\n", s->name, *s->name && *s->embed_name ? ", " : "",
                  s->embed_name, url);
        return TN_OK;
    }
    cli_json j = {.out = stdout};
    cli_json_write(
        &j, "{'url': %s, 'host': %s, 'port': %d, 'model': %s, 'embedding_model': %s, 'context': %jd, 'parallel': %jd}",
        url, s->host, port, s->path ? s->name : NULL, s->encoder ? s->embed_name : NULL, s->facts.context, s->parallel);
    if (fflush(stdout) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_IO, "writing the address to standard output: %s", strerror(errno));
}

/* ---- end --------------------------------------------------------------------------------------------------------- */

static void stop_server(server *s, serve_http *h) {
    cli_print(stderr, "trunnion: %s: running answers have %d s to end\n", cli_stop_signal(), (int)s->grace);
    http_quiesce(h);
    engine_stop(s->engine, (double)s->grace);
    embedder_stop(s->embedder);
    http_drain(h, DRAIN_SECONDS);
}

static void close_server(server *s, serve_http *h) {
    engine_stop(s->engine, 0);
    embedder_stop(s->embedder);
    http_stop(h);
    engine_free(s->engine);
    embedder_free(s->embedder);
    tn_llm_close(s->model);
    cli_draft_close(&s->draft);
    vocabulary_close(&s->words);
    tn_embedder_close(s->encoder);
    tn_tokenizer_free(s->encoder_words);
    tn_set_current_device(NULL);
    tn_device_close(s->device);
}

static int serve(server *s) {
    int code = CLI_OK, port = 0;
    serve_http *h = NULL;
    cli_return_memory();
    tn_status status = http_listen(s, &h, &port); /* a port in use is told before a model is loaded for nothing */
    s->device = status == TN_OK ? cli_open_device(&s->common, &code) : NULL;
    if (!s->device) {
        http_stop(h);
        return status != TN_OK ? cli_failed() : code;
    }
    s->started = (int64_t)time(NULL);
    if (s->path) status = load_model(s);
    if (status == TN_OK && s->embed_path) status = load_encoder(s);
    cli_show_compiling(false);
    cli_stop_begin();
    if (status == TN_OK && !cli_stopped()) status = http_start(h);
    if (status == TN_OK && !cli_stopped()) status = tell_address(s, port);
    if (status == TN_OK && !cli_stopped()) {
        while (!cli_stopped())
            (void)poll(NULL, 0, 100);
        stop_server(s, h);
    }
    code = status != TN_OK ? cli_failed() : CLI_OK;
    close_server(s, h);
    return code;
}

static const cli_option options[] = {
    CLI_NAME("model", 'm', server, path),
    CLI_NAME("embed", 0, server, embed_path),
    CLI_NAME("host", 0, server, host),
    CLI_INT("port", 0, server, port, 0, 65535),
    CLI_NAME("api-key", 0, server, key),
    CLI_NAME("allow-host", 0, server, allow_host),
    CLI_NAME("alias", 0, server, alias),
    CLI_INT("parallel", 0, server, parallel, 1, SERVE_MOST_PARALLEL),
    CLI_INT("context", 0, server, context, 1, INT32_MAX),
    CLI_CACHE_OPTIONS(server),
    CLI_NAME("draft", 0, server, draft.path),
    CLI_INT("draft-tokens", 0, server, draft.tokens, 1, TN_LLM_DRAFT),
    CLI_INT("queue", 0, server, queue, 0, 1 << 20),
    CLI_BYTES("max-body", 0, server, body_bytes, 1, 64 << 20),
    CLI_INT("timeout", 0, server, timeout, 1, 1 << 20),
    CLI_INT("grace", 0, server, grace, 0, 1 << 20),
    {0},
};

static int run_serve(int argc, char **argv) {
    server s = {.host = "127.0.0.1",
                .value_cache = TN_LLM_CACHE_SAME,
                .port = 8080,
                .parallel = 4,
                .queue = 64,
                .body_bytes = 4 << 20,
                .timeout = 600,
                .grace = 30,
                .key = getenv("TRUNNION_API_KEY")};
    char found[CLI_PATH];
    int status;
    int at =
        cli_parse_with_sampling(&cli_serve, argc, argv, &s.common, options, offsetof(server, sampling), &s, &status);
    if (at < 0) return status;
    if (at < argc && !s.path) s.path = argv[at++];
    if (at < argc) return cli_wrong_usage(&cli_serve, "unexpected argument \"%s\"", argv[at]);
    if (!s.path && !s.embed_path)
        return cli_wrong_usage(&cli_serve, "missing model: pass its GGUF file or folder with -m");
    if (s.key && !*s.key) s.key = NULL;
    const char *wrong = cli_draft_conflict(&s.draft);
    if (!wrong && s.draft.path && !s.path) wrong = "--draft requires -m";
    if (!wrong && s.key && s.allow_host)
        wrong = "--allow-host has no effect with a key (--api-key or TRUNNION_API_KEY); remove one of them";
    if (wrong) return cli_wrong_usage(&cli_serve, "%s", wrong);
    if (s.path && !cli_find_model(&s.path, found)) return CLI_FAILED;
    if (!cli_draft_find(&s.draft)) return CLI_FAILED;
    return serve(&s);
}
