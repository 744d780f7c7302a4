/* transcribe.c — `trunnion transcribe`: what is said in a WAV file, as text, by a Whisper, Moonshine or CTC model. */
#include <string.h>

#include "cli/cli.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/speech.h"

static int run_transcribe(int argc, char **argv);

const cli_command cli_transcribe = {
    .name = "transcribe",
    .summary = "write down what is said in a sound file",
    .usage = "transcribe -m FOLDER FILE.wav [--timestamps] [--language CODE] [--translate]",
    .help =
        "  -m, --model FOLDER    a Hugging Face folder of a Whisper, Moonshine or Wav2Vec 2 model, or a sibling:\n"
        "                        config.json, weights (safetensors, .bin), tokenizer.json or vocab.json (CTC)\n"
        "  FILE.wav              the sound: PCM or floats, any rate and number of channels; - reads standard input\n"
        "      --timestamps      show when each segment begins and ends\n"
        "      --language CODE   the language that is spoken, such as en (default: the model decides)\n"
        "      --translate       write the text in English\n"
        "      --json            text, segments[{start, end, text, ids[]}], language, seconds, audio_seconds,\n"
        "                        device, fallback[]\n"
        "\n"
        "Audio longer than 30 s is processed in windows of 30 s. Other formats: ffmpeg -i talk.mp3 talk.wav\n"
        "\n"
        "examples:\n"
        "  trunnion transcribe -m whisper-tiny talk.wav\n"
        "  trunnion transcribe -m whisper-small talk.wav --language de --timestamps\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_VERBOSE,
    .run = run_transcribe,
};

typedef struct wishes {
    const char *model, *file;
    tn_transcribe_options options;
} wishes;

/* What was said so far. */
typedef struct transcript {
    const wishes *asked;
    bool begun;
    cli_json *list; /* with --json: its segments are open */
    tn_bytes text;
    char language[16];
} transcript;

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void put_time(double seconds) {
    long long ms = (long long)(seconds * 1000 + 0.5);
    printf("%02lld:%02lld:%02lld.%03lld", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60, ms % 1000);
}

static const char *without_space(const char *text) { return text + strspn(text, " "); }

static void put_segment(transcript *t, const tn_speech_segment *s) {
    if (t->asked->options.timestamps) {
        printf("[");
        put_time(s->start);
        printf(" --> ");
        put_time(s->end);
        cli_print(stdout, "]  %s\n", without_space(s->text));
    } else {
        cli_print(stdout, "%s", t->begun ? s->text : without_space(s->text));
        t->begun |= *without_space(s->text) != 0;
    }
    fflush(stdout);
}

static void put_json_segment(cli_json *j, const tn_speech_segment *s) {
    cli_json_write(j, "{'start': %f, 'end': %f, 'text': %s, 'ids': [", s->start, s->end, s->text);
    for (int64_t i = 0; i < s->count; i++)
        cli_json_write(j, "%d", s->ids[i]);
    cli_json_write(j, "]}");
}

static tn_status take_segment(void *ctx, const tn_speech_segment *s) {
    transcript *t = ctx;
    snprintf(t->language, sizeof t->language, "%s", s->language ? s->language : "en");
    if (t->list)
        put_json_segment(t->list, s);
    else
        put_segment(t, s);
    return tn_bytes_append(&t->text, s->text, strlen(s->text));
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static tn_status read_audio(const char *file, tn_audio *out) {
    if (strcmp(file, "-") != 0) return tn_audio_read(file, TN_SPEECH_RATE, out);
    tn_bytes bytes = {0};
    tn_status status = cli_read_file(file, &bytes);
    if (status == TN_OK) status = tn_audio_parse(bytes.data, bytes.size, TN_SPEECH_RATE, out);
    tn_bytes_free(&bytes);
    return status;
}

static tn_status transcribe(const wishes *w, tn_device *device, const tn_selection *selection, bool json) {
    transcript t = {.asked = w};
    tn_audio audio = {0};
    tn_speech *model = NULL;
    tn_ctc *letters = NULL;
    tn_moonshine *moonshine = NULL;
    bool ctc = tn_ctc_knows(w->model), moon = tn_moonshine_knows(w->model);
    cli_json j = {.out = stdout};
    tn_speech_options o = TN_SPEECH_DEFAULTS;
    o.device = device;
    tn_status status = TN_OK;
    if ((ctc || moon) && (w->options.language || w->options.translate))
        status = tn_backend_fail(TN_ERR_UNSUPPORTED,
                                 "'%s': --language and --translate require a Whisper model; remove them", w->model);
    if (status == TN_OK) status = read_audio(w->file, &audio);
    if (status == TN_OK)
        status = ctc    ? tn_ctc_open(w->model, &o, &letters)
                 : moon ? tn_moonshine_open(w->model, &o, &moonshine)
                        : tn_speech_open(w->model, &o, &model);
    double begun = cli_now();
    if (status == TN_OK && json) {
        cli_json_hold(&j);
        cli_json_write(&j, "{'segments': [");
        t.list = &j;
    }
    if (status == TN_OK && ctc)
        status = tn_ctc_transcribe(letters, audio.samples, audio.count, take_segment, &t);
    else if (status == TN_OK && moon)
        status = tn_moonshine_transcribe(moonshine, audio.samples, audio.count, take_segment, &t);
    else if (status == TN_OK)
        status = tn_speech_transcribe(model, audio.samples, audio.count, &w->options, take_segment, &t);
    double seconds = cli_now() - begun;
    if (status == TN_OK && json) {
        cli_json_write(&j, "], 'text': %.*s, 'language': %s, 'seconds': %g, 'audio_seconds': %g, 'device': %s",
                       (int)t.text.size, t.text.data, t.language, seconds, (double)audio.count / TN_SPEECH_RATE,
                       selection->chosen);
        cli_json_fallback(&j, selection, device);
        cli_json_write(&j, "}");
        cli_json_release(&j);
    }
    if (status != TN_OK && t.list) cli_json_drop(&j);
    if (t.begun) printf("\n");
    tn_bytes_free(&t.text);
    tn_speech_close(model);
    tn_ctc_close(letters);
    tn_moonshine_close(moonshine);
    tn_audio_free(&audio);
    return status;
}

static int run_transcribe(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_NAME("model", 'm', wishes, model),
        CLI_NAME("language", 0, wishes, options.language),
        CLI_FLAG("translate", 0, wishes, options.translate),
        CLI_FLAG("timestamps", 0, wishes, options.timestamps),
        {0},
    };
    wishes w = {.options = TN_TRANSCRIBE_DEFAULTS};
    cli_options o;
    tn_selection selection;
    char found[CLI_PATH];
    int code = CLI_OK, first = cli_parse(&cli_transcribe, argc, argv, &o, own, &w, &code);
    if (first < 0) return code;
    if (!w.model) return cli_wrong_usage(&cli_transcribe, "missing model: pass its folder with -m");
    if (first + 1 != argc) return cli_wrong_usage(&cli_transcribe, "pass one WAV file (- reads standard input)");
    w.file = argv[first];
    if (!cli_find_model(&w.model, found)) return CLI_FAILED;
    tn_device *device = cli_choose_device(&o, &selection, &code);
    if (!device) return code;
    code = transcribe(&w, device, &selection, o.json) == TN_OK ? CLI_OK : cli_failed();
    tn_set_current_device(NULL);
    tn_device_close(device);
    return code;
}
