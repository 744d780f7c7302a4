/* embed.c — `trunnion embed`: texts become vectors, by an encoder in a Hugging Face folder.
 *
 * All texts are tokenized first; the library then computes those of like length together. A text that is too long is
 * cut: its last token, which ends a text, stays. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/npy.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/embed.h"

static int run_embed(int argc, char **argv);

const cli_command cli_embed = {
    .name = "embed",
    .summary = "compute embeddings of texts, whose dot products measure similarity",
    .usage = "embed -m FOLDER TEXT… | embed -m FOLDER -f FILE [--similar TEXT] [-o FILE.npy]",
    .help =
        "  -m, --model FOLDER    a Hugging Face folder: config.json, weights (safetensors, .bin), tokenizer.json\n"
        "  TEXT…                 texts, one embedding each; - reads standard input\n"
        "  -f, --file FILE       texts, one per line; - reads standard input\n"
        "      --pooling P       mean, cls, max or last of the tokens (default: the folder's; else mean, or last\n"
        "                        for models that see only earlier tokens)\n"
        "      --normalize       scale embeddings to length 1 (default: from the folder)\n"
        "      --no-normalize    do not scale embeddings\n"
        "      --ids             texts are token ids, separated by commas or spaces\n"
        "      --similar TEXT    instead of embeddings, show the texts that are most similar to this one, with the\n"
        "                        cosines of the angles between their embeddings\n"
        "      --top K           how many of them (default 10)\n"
        "  -o, --output FILE     write the embeddings to an .npy file, [texts, width] in f32\n"
        "      --json            embeddings[[…]] (without -o and --similar), similar[{text, index, cosine}],\n"
        "                        tokens[], width, device, fallback[]\n"
        "\n"
        "examples:\n"
        "  trunnion embed -m all-MiniLM-L6-v2 'How are you?' 'Is it raining?' --json\n"
        "  trunnion embed -m all-MiniLM-L6-v2 -f lines.txt --similar 'Is it raining?'\n"
        "  trunnion embed -m all-MiniLM-L6-v2 -f lines.txt -o vectors.npy\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_VERBOSE,
    .run = run_embed,
};

typedef struct wishes {
    const char *model, *file, *similar, *output;
    int64_t top;
    bool ids;
    tn_embedder_options options;
} wishes;

/* Texts as ids, one behind the other. */
typedef struct batch {
    tn_ids ids;
    int64_t *lengths, count, room;
    float *out;
    char **texts; /* with --similar: what they were */
} batch;

typedef struct work {
    const wishes *asked;
    tn_device *device;
    tn_selection selection;
    tn_embedder *embedder;
    tn_embedder_facts facts;
    tn_tokenizer *tokenizer;
    batch texts;
    int64_t cut; /* texts that were too long */
} work;

/* ---- texts to ids ------------------------------------------------------------------------------------------------ */

static tn_status count_text(batch *b, int64_t length, const char *text, size_t size) {
    if (b->count == b->room) {
        int64_t room = b->room ? 2 * b->room : 16;
        int64_t *larger = realloc(b->lengths, (size_t)room * sizeof *larger);
        if (!larger) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld texts", (long long)room);
        b->lengths = larger;
        char **texts = realloc(b->texts, (size_t)room * sizeof *texts);
        if (!texts) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld texts", (long long)room);
        b->texts = texts;
        b->room = room;
    }
    if (!(b->texts[b->count] = strndup(text, size))) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for a text");
    b->lengths[b->count++] = length;
    return TN_OK;
}

static tn_status add_text(work *w, const char *text, size_t size) {
    tn_ids *ids = &w->texts.ids;
    size_t first = ids->count;
    tn_status status =
        w->asked->ids ? cli_read_ids(text, ids) : tn_tokenizer_encode(w->tokenizer, text, size, TN_ENCODE_ENDS, ids);
    if (status != TN_OK) return status;
    int64_t length = (int64_t)(ids->count - first);
    if (length > w->facts.longest) {
        ids->data[first + (size_t)w->facts.longest - 1] = ids->data[ids->count - 1];
        length = w->facts.longest;
        ids->count = first + (size_t)length;
        w->cut++;
    }
    return count_text(&w->texts, length, text, size);
}

static tn_status add_argument(work *w, const char *argument) {
    tn_bytes text = {0};
    tn_status status = cli_take_text(argument, &text);
    if (status == TN_OK) status = add_text(w, text.data, text.size);
    tn_bytes_free(&text);
    return status;
}

static tn_status add_lines(work *w, const char *file) {
    tn_bytes text = {0};
    tn_status status = cli_read_file(file, &text);
    for (char *at = text.data, *end; status == TN_OK && at < text.data + text.size; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text.data + text.size - at));
        if (!end) end = text.data + text.size;
        *end = 0;
        status = add_text(w, at, (size_t)(end - at) - (end > at && end[-1] == '\r'));
    }
    tn_bytes_free(&text);
    return status;
}

static tn_status read_texts(work *w, int count, char **texts) {
    const char *like = w->asked->similar; /* it is the first text */
    if (like) TRY(add_text(w, like, strlen(like)));
    if (w->asked->file) TRY(add_lines(w, w->asked->file));
    for (int i = 0; i < count; i++)
        TRY(add_argument(w, texts[i]));
    if (w->texts.count > (like ? 1 : 0)) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' has no lines, so there is nothing to embed", w->asked->file);
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

/* A text and how near it is to that of --similar. */
typedef struct neighbour {
    int64_t index; /* among those that were given */
    double cosine;
} neighbour;

static int nearest_first(const void *a, const void *b) {
    const neighbour *x = a, *y = b;
    if (x->cosine != y->cosine) return x->cosine < y->cosine ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

/* All texts but the first, the most similar in front; free it. NULL: out of memory. */
static neighbour *find_neighbours(const work *w) {
    int64_t count = w->texts.count - 1, width = w->facts.width;
    neighbour *all = calloc((size_t)count, sizeof *all);
    for (int64_t i = 0; all && i < count; i++) {
        const float *x = w->texts.out, *y = x + (i + 1) * width;
        double xy = 0, xx = 0, yy = 0;
        for (int64_t k = 0; k < width; k++) {
            xy += (double)x[k] * (double)y[k];
            xx += (double)x[k] * (double)x[k];
            yy += (double)y[k] * (double)y[k];
        }
        all[i] = (neighbour){i, xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0};
    }
    if (all) qsort(all, (size_t)count, sizeof *all, nearest_first);
    return all;
}

static int64_t shown_neighbours(const work *w) {
    int64_t count = w->texts.count - 1, top = w->asked->top ? w->asked->top : 10;
    return top < count ? top : count;
}

static void put_json_neighbours(cli_json *j, const work *w) {
    neighbour *all = find_neighbours(w);
    cli_json_write(j, "'similar': [");
    for (int64_t i = 0; all && i < shown_neighbours(w); i++) {
        cli_json_write(j, "{'text': %s, 'index': %jd, 'cosine': %g}", w->texts.texts[all[i].index + 1], all[i].index,
                       all[i].cosine);
    }
    cli_json_write(j, "]");
    free(all);
}

static void put_neighbours(const work *w) {
    neighbour *all = find_neighbours(w);
    for (int64_t i = 0; all && i < shown_neighbours(w); i++)
        cli_print(stdout, "%7.4f  %s\n", all[i].cosine, w->texts.texts[all[i].index + 1]);
    free(all);
}

/* [texts, width] */
static tn_status write_embeddings(const work *w) {
    cli_output o;
    int64_t shape[] = {w->texts.count, w->facts.width};
    size_t count = (size_t)(shape[0] * shape[1]);
    TRY(cli_output_begin(&o, w->asked->output));
    tn_dtype_little_endian(TN_F32, w->texts.out, (int64_t)count);
    bool written =
        npy_write_header(o.file, shape, 2, TN_F32) && fwrite(w->texts.out, sizeof(float), count, o.file) == count;
    tn_dtype_little_endian(TN_F32, w->texts.out, (int64_t)count);
    if (written) return cli_output_commit(&o);
    tn_status status = tn_backend_fail(TN_ERR_IO, "writing '%s' failed: %s", w->asked->output, strerror(errno));
    cli_output_abandon(&o);
    return status;
}

static void put_json_embed(const work *w) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{");
    if (w->asked->similar) put_json_neighbours(&j, w);
    bool told = w->asked->similar || w->asked->output;
    if (!told) cli_json_write(&j, "'embeddings': [");
    for (int64_t i = 0; i < w->texts.count && !told; i++) {
        cli_json_write(&j, "[");
        for (int64_t k = 0; k < w->facts.width; k++)
            cli_json_write(&j, "%g", (double)w->texts.out[i * w->facts.width + k]);
        cli_json_write(&j, "]");
    }
    if (!told) cli_json_write(&j, "]");
    cli_json_write(&j, "'tokens': [");
    for (int64_t i = 0; i < w->texts.count; i++)
        cli_json_write(&j, "%jd", w->texts.lengths[i]);
    cli_json_write(&j, "], 'width': %jd, 'device': %s", w->facts.width, w->selection.chosen);
    cli_json_fallback(&j, &w->selection, w->device);
    cli_json_write(&j, "}");
}

static void put_lines(const work *w) {
    if (w->asked->similar) put_neighbours(w);
    if (w->asked->similar || w->asked->output) return;
    for (int64_t i = 0; i < w->texts.count; i++)
        for (int64_t k = 0; k < w->facts.width; k++)
            printf("%.7g%c", (double)w->texts.out[i * w->facts.width + k], k + 1 < w->facts.width ? ' ' : '\n');
}

static tn_status embed(work *w, int count, char **texts) {
    tn_embedder_options o = w->asked->options;
    batch *b = &w->texts;
    o.device = w->device;
    w->facts.struct_size = sizeof w->facts;
    TRY(tn_embedder_open(w->asked->model, &o, &w->embedder));
    TRY(tn_embedder_get_facts(w->embedder, &w->facts));
    if (!w->asked->ids) TRY(tn_tokenizer_open(w->asked->model, &w->tokenizer));
    TRY(read_texts(w, count, texts));
    b->out = calloc((size_t)b->count, (size_t)w->facts.width * sizeof *b->out);
    if (!b->out) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld embeddings", (long long)b->count);
    return tn_embedder_run(w->embedder, b->ids.data, b->lengths, b->count, b->out);
}

static void finish_embed(work *w) {
    tn_embedder_close(w->embedder);
    tn_tokenizer_free(w->tokenizer);
    tn_ids_free(&w->texts.ids);
    for (int64_t i = 0; i < w->texts.count; i++)
        free(w->texts.texts[i]);
    free(w->texts.texts);
    free(w->texts.lengths);
    free(w->texts.out);
    tn_set_current_device(NULL);
    tn_device_close(w->device);
}

static int run_embed(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_NAME("model", 'm', wishes, model),
        CLI_NAME("file", 'f', wishes, file),
        CLI_CHOICE("pooling", 0, wishes, options.pooling, "mean|cls|max|last", TN_POOLING_MEAN),
        CLI_SET("normalize", 0, wishes, options.norm, TN_EMBED_NORM_UNIT),
        CLI_SET("no-normalize", 0, wishes, options.norm, TN_EMBED_NORM_NONE),
        CLI_FLAG("ids", 0, wishes, ids),
        CLI_NAME("similar", 0, wishes, similar),
        CLI_INT("top", 0, wishes, top, 1, INT64_C(1) << 40),
        CLI_NAME("output", 'o', wishes, output),
        {0},
    };
    wishes r = {.options = TN_EMBEDDER_DEFAULTS};
    cli_options o;
    int code = CLI_OK, first = cli_parse(&cli_embed, argc, argv, &o, own, &r, &code);
    if (first < 0) return code;
    if (!r.model) return cli_wrong_usage(&cli_embed, "missing model: pass its folder with -m");
    if (r.similar && r.output) return cli_wrong_usage(&cli_embed, "--similar and -o exclude each other");
    if (r.top && !r.similar) return cli_wrong_usage(&cli_embed, "--top requires --similar");
    if (first == argc && !r.file)
        return cli_wrong_usage(&cli_embed, "missing text: pass it as an argument, in quotes, or a file with -f");

    char found[CLI_PATH];
    if (!cli_find_model(&r.model, found)) return CLI_FAILED;
    work w = {.asked = &r};
    w.device = cli_choose_device(&o, &w.selection, &code);
    if (!w.device) return code;
    tn_status status = cli_output_check(r.output);
    if (status == TN_OK) status = embed(&w, argc - first, argv + first);
    if (status == TN_OK && r.output) status = write_embeddings(&w);
    if (status == TN_OK) (o.json ? put_json_embed : put_lines)(&w);
    if (w.cut > 0)
        cli_print(stderr, "trunnion: %lld texts were longer than %lld tokens and were truncated\n", (long long)w.cut,
                  (long long)w.facts.longest);
    code = status == TN_OK ? CLI_OK : cli_failed();
    finish_embed(&w);
    return code;
}
