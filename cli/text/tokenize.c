/* tokenize.c — `trunnion tokenize`: a text's tokens under a model's vocabulary, and back. */
#include <string.h>

#include "cli/cli.h"
#include "cli/text/language.h"
#include "trunnion/text.h"

static int run_tokenize(int argc, char **argv);

const cli_command cli_tokenize = {
    .name = "tokenize",
    .summary = "convert text to tokens, or tokens to text",
    .usage = "tokenize -m MODEL TEXT | tokenize -m MODEL --decode IDS",
    .help =
        "  -m, --model MODEL     a GGUF file, a tokenizer.json or a Hugging Face folder with one\n"
        "  TEXT                  the text to tokenize; - reads standard input\n"
        "      --decode IDS      token ids, separated by commas or spaces; - reads standard input\n"
        "      --no-special      do not parse control tokens such as <|im_end|> in TEXT; omit them from decoded text\n"
        "      --no-ends         do not add the begin and end tokens that the model expects\n"
        "      --json            ids[], pieces[]; or text\n"
        "\n"
        "examples:\n"
        "  trunnion tokenize -m model.gguf 'Hello, world'\n"
        "  trunnion tokenize -m model.gguf --decode 19556,28,905\n"
        "  echo 'a long text' | trunnion tokenize -m model.gguf - --json\n",
    .accepts = CLI_JSON,
    .run = run_tokenize,
};

typedef struct wishes {
    const char *model, *decode;
    bool no_special, no_ends;
} wishes;

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* A piece on one line: control characters and stray bytes are written as \xNN. */
static void print_piece(const tn_bytes *piece) {
    for (size_t i = 0; i < piece->size; i++) {
        unsigned char c = (unsigned char)piece->data[i];
        if (c == '\n') {
            fputs("\\n", stdout);
        } else if (c == '\\' || c == '\'') {
            printf("\\%c", c);
        } else if (c < 32 || c == 127 || (c >= 128 && !cli_utf8())) {
            printf("\\x%02x", c);
        } else {
            putchar(c);
        }
    }
}

static bool put_pieces(const tn_tokenizer *t, const tn_ids *ids, cli_json *j) {
    tn_bytes piece = {0};
    bool good = true;
    for (size_t i = 0; i < ids->count && good; i++) {
        tn_text_stream whole = {0};
        piece.size = 0;
        good = tn_tokenizer_stream(t, &whole, ids->data[i], TN_DECODE_SPECIAL, &piece) == TN_OK &&
               tn_tokenizer_stream_end(&whole, &piece) == TN_OK;
        if (!good) break;
        if (j) {
            cli_json_write(j, "%.*s", (int)piece.size, piece.data);
            continue;
        }
        printf("%7d  '", (int)ids->data[i]);
        print_piece(&piece);
        fputs("'\n", stdout);
    }
    tn_bytes_free(&piece);
    return good;
}

static bool put_tokens(const tn_tokenizer *t, const tn_ids *ids, bool json) {
    if (!json) return put_pieces(t, ids, NULL);
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{");
    cli_json_ids(&j, "ids", ids);
    cli_json_write(&j, "'pieces': [");
    bool good = put_pieces(t, ids, &j);
    cli_json_write(&j, "]}");
    return good;
}

static void put_text_tokenize(const tn_bytes *text, bool json) {
    if (!json) {
        fwrite(text->data, 1, text->size, stdout);
        putchar('\n');
        return;
    }
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'text': %.*s}", (int)text->size, text->data);
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static bool decode(const tn_tokenizer *t, const wishes *w, bool json) {
    tn_ids ids = {0};
    tn_bytes given = {0}, text = {0};
    bool good = cli_take_text(w->decode, &given) == TN_OK && cli_read_ids(given.data, &ids) == TN_OK &&
                tn_tokenizer_decode(t, ids.data, ids.count, w->no_special ? 0 : TN_DECODE_SPECIAL, &text) == TN_OK;
    if (good) put_text_tokenize(&text, json);
    tn_ids_free(&ids);
    tn_bytes_free(&given);
    tn_bytes_free(&text);
    return good;
}

static bool encode_tokenize(const tn_tokenizer *t, const wishes *w, const char *argument, bool json) {
    tn_ids ids = {0};
    tn_bytes text = {0};
    unsigned flags = (w->no_special ? 0u : TN_ENCODE_SPECIAL) | (w->no_ends ? 0u : TN_ENCODE_ENDS);
    bool good = cli_take_text(argument, &text) == TN_OK &&
                tn_tokenizer_encode(t, text.data, text.size, flags, &ids) == TN_OK && put_tokens(t, &ids, json);
    tn_ids_free(&ids);
    tn_bytes_free(&text);
    return good;
}

static int run_tokenize(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_TEXT("model", 'm', wishes, model),
        CLI_TEXT("decode", 0, wishes, decode),
        CLI_FLAG("no-special", 0, wishes, no_special),
        CLI_FLAG("no-ends", 0, wishes, no_ends),
        {0},
    };
    cli_options o;
    wishes w = {0};
    int status, at = cli_parse(&cli_tokenize, argc, argv, &o, own, &w, &status);
    if (at < 0) return status;
    if (!w.model) return cli_wrong_usage(&cli_tokenize, "missing model: pass its GGUF file or folder with -m");
    if (w.decode && at < argc) return cli_wrong_usage(&cli_tokenize, "expected either TEXT or --decode");
    if (w.decode && w.no_ends) return cli_wrong_usage(&cli_tokenize, "--no-ends has no effect with --decode");
    if (!w.decode && argc - at != 1)
        return cli_wrong_usage(&cli_tokenize, argc == at
                                                  ? "missing text: pass it as an argument, or - to read standard input"
                                                  : "expected one text; put it in quotes");

    char found[CLI_PATH];
    if (!cli_find_model(&w.model, found)) return CLI_FAILED;
    tn_tokenizer *t;
    if (tn_tokenizer_open(w.model, &t) != TN_OK) return cli_failed();
    bool good = w.decode ? decode(t, &w, o.json) : encode_tokenize(t, &w, argv[at], o.json);
    tn_tokenizer_free(t);
    return good ? CLI_OK : cli_failed();
}
