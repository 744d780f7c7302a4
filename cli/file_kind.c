/* file_kind.c — what a file is by its first bytes, for messages about files of another kind than a command reads. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

enum { FIRST_BYTES = 256, HEADER_BYTES = 8, MOST_HEADER = 100 << 20 };

typedef struct start {
    unsigned char bytes[FIRST_BYTES];
    size_t count;
} start;

static bool begins(const start *s, const char *with, size_t length) {
    return s->count >= length && memcmp(s->bytes, with, length) == 0;
}

/* A length in 8 bytes, then JSON. */
static bool is_safetensors(const start *s) {
    uint64_t length = 0;
    for (int i = HEADER_BYTES; i-- > 0;)
        length = length << 8 | s->bytes[i];
    return s->count > HEADER_BYTES && s->bytes[HEADER_BYTES] == '{' && length <= MOST_HEADER;
}

/* The version of the format as the first field, a small number, and then a text or the graph. */
static bool is_onnx(const start *s) {
    enum { VERSION = 0x08, MOST_VERSION = 32, TEXT = 0x12, LAST_TEXT = 0x32, GRAPH = 0x3a };
    if (s->count < 4 || s->bytes[0] != VERSION || s->bytes[1] == 0 || s->bytes[1] > MOST_VERSION) return false;
    unsigned char tag = s->bytes[2];
    return (tag >= TEXT && tag <= LAST_TEXT) || tag == GRAPH;
}

/* No control characters but those of lines; other bytes may be of UTF-8. */
static bool is_text(const start *s) {
    for (size_t i = 0; i < s->count; i++)
        if ((s->bytes[i] < ' ' && !strchr("\t\n\v\f\r\033", s->bytes[i])) || s->bytes[i] == 127) return false;
    return s->count > 0;
}

const char *cli_file_kind(const char *path) {
    static const struct {
        const char *bytes;
        size_t length;
        const char *kind;
    } rows[] = {{"GGUF", 4, "a GGUF file"},
                {"PK\3\4", 4, "a zip archive, as PyTorch and NumPy write"},
                {"\x80\2", 2, "a pickle file of PyTorch"},
                {"\x93NUMPY", 6, "a NumPy array"},
                {"\x89PNG", 4, "a PNG image"},
                {"\xff\xd8\xff", 3, "a JPEG image"},
                {"RIFF", 4, "a WAV file"},
                {"\x1f\x8b", 2, "a gzip file"}};
    struct stat facts;
    start s = {.count = 0};
    if (stat(path, &facts) != 0 || !S_ISREG(facts.st_mode)) return NULL;
    FILE *f = fopen(path, "rb");
    if (f) s.count = fread(s.bytes, 1, sizeof s.bytes, f);
    if (f) (void)fclose(f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (begins(&s, rows[i].bytes, rows[i].length)) return rows[i].kind;
    if (is_safetensors(&s)) return "a safetensors file";
    if (is_onnx(&s)) return "an ONNX model";
    if (is_text(&s)) return s.bytes[0] == '{' ? "JSON" : "text";
    return f && s.count == 0 ? "an empty file" : NULL;
}

/* What to do with such a file. */
static const char *use_of(const char *kind) {
    static const struct {
        const char *kind, *use;
    } rows[] = {{"a GGUF file", "trunnion generate, chat and serve use it"},
                {"an ONNX model", "trunnion run runs it"},
                {"a safetensors file", "a model's folder is passed as a whole"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].kind, kind) == 0) return rows[i].use;
    return NULL;
}

/* Messages of readers: which kind of file each of them expects. */
static const char *expected_in(const char *message) {
    static const struct {
        const char *words, *kind;
    } rows[] = {{"not a GGUF file", "a GGUF file"},
                {"not an ONNX model", "an ONNX model"},
                {"safetensors file", "a safetensors file"},
                {"the header does not begin with", "a safetensors file"},
                {"unknown file type", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strstr(message, rows[i].words)) return rows[i].kind;
    return NULL;
}

bool cli_describe_kind(const char *message, char *out, size_t size) {
    char path[CLI_PATH];
    const char *expected = expected_in(message), *end = message[0] == '\'' ? strchr(message + 1, '\'') : NULL;
    if (!expected || !end || end - message > (int)sizeof path) return false;
    snprintf(path, sizeof path, "%.*s", (int)(end - message - 1), message + 1);
    const char *kind = cli_file_kind(path), *use = kind ? use_of(kind) : NULL;
    if (!kind || strcmp(kind, expected) == 0) return false;
    snprintf(out, size, "it looks like %s%s%s", kind, use ? ": " : "", use ? use : "");
    return true;
}
