/* test_info.c — promises of `trunnion info`: what it says of files of each kind, and that damaged files are refused in
 * words, without control characters of theirs reaching the terminal. */
#include "test_support.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_make.h"
#include "trunnion/json.h"
#include "trunnion/model.h"
#include "trunnion/ops.h"

static int run_info(const char *arguments, char *heard, size_t size) {
    char command[1600];
    snprintf(command, sizeof command, "TRUNNION_LOG=0 %%s info %s", arguments);
    return run_trunnion(command, heard, size);
}

static tn_json_doc *ask(const char *path) {
    static char heard[1 << 20];
    char arguments[700];
    tn_json_doc *doc = NULL;
    snprintf(arguments, sizeof arguments, "'%s' --json", path);
    int code = run_info(arguments, heard, sizeof heard);
    if (code != 0) fail_msg("info %s ends with %d: %s", path, code, heard);
    assert_ok(tn_json_parse(heard, strlen(heard), &doc));
    return doc;
}

static const char *text_of(const tn_json_doc *doc, const char *key) {
    return tn_json_string(tn_json_get(tn_json_root(doc), key), "(none)");
}

static void assert_tensor(const tn_json_doc *doc, size_t i, const char *name, const char *type, int64_t bytes) {
    const tn_json *t = tn_json_at(tn_json_get(tn_json_root(doc), "tensors"), i);
    assert_string_equal(tn_json_string(tn_json_get(t, "name"), ""), name);
    assert_string_equal(tn_json_string(tn_json_get(t, "type"), ""), type);
    assert_int_equal(tn_json_int(tn_json_get(t, "bytes"), -1), bytes);
}

static const char *write_safetensors(const char *name) {
    const char *path = test_scratch(name);
    tn_metadata note = {"made by", "a test\x1b[31m"};
    TN_SCOPE;
    tn_named_tensor tensors[] = {{"weight", tn_zeros(TN_DIMS(3, 5), TN_F32)}, {"bias", tn_zeros(TN_DIMS(5), TN_F16)}};
    assert_ok(tn_safetensors_save(path, tensors, 2, &note, 1));
    return path;
}

static void safetensors_are_listed(void **state) {
    (void)state;
    char heard[4096], arguments[700];
    const char *path = write_safetensors("two.safetensors");
    tn_json_doc *doc = ask(path);
    assert_string_equal(text_of(doc, "format"), "safetensors");
    assert_int_equal(tn_json_int(tn_json_get(tn_json_root(doc), "parameters"), -1), 20);
    assert_int_equal(tn_json_int(tn_json_get(tn_json_root(doc), "bytes"), -1), 70);
    assert_int_equal(tn_json_length(tn_json_get(tn_json_root(doc), "tensors")), 2);
    const tn_json *types = tn_json_get(tn_json_root(doc), "types");
    assert_int_equal(tn_json_int(tn_json_get(types, "F32"), -1), 60);
    tn_json_free(doc);
    snprintf(arguments, sizeof arguments, "%s --tensors", path);
    assert_int_equal(run_info(arguments, heard, sizeof heard), 0);
    assert_text_has(heard, "weight  F32 [3, 5] 60");
    assert_text_has(heard, "made by = a test?[31m");
    assert_null(strchr(heard, 27));
}

static void a_gguf_file_tells_its_metadata(void **state) {
    (void)state;
    gguf_make g = {0};
    const char *path = test_scratch("model.gguf");
    make_head(&g, 1, 5);
    make_key_text(&g, "general.architecture", "llama");
    make_key_text(&g, "general.name", "A name");
    make_key_text(&g, "tokenizer.ggml.model", "gpt2");
    make_key_text(&g, "tokenizer.chat_template", "{{ messages }}");
    make_key_array(&g, "tokenizer.ggml.tokens", TN_GGUF_STRING, 100);
    for (int i = 0; i < 100; i++)
        make_text(&g, "x");
    make_tensor(&g, "output.weight", 2, (uint64_t[]){4, 2}, 0, 0);
    make_padding(&g, 32);
    for (int i = 0; i < 8; i++)
        make_f32(&g, 1);
    assert_int_equal(make_write(&g, path), 0);
    make_free(&g);
    tn_json_doc *doc = ask(path);
    const tn_json *root = tn_json_root(doc),
                  *tokens = tn_json_get(tn_json_get(root, "metadata"), "tokenizer.ggml.tokens");
    assert_string_equal(text_of(doc, "format"), "gguf");
    assert_string_equal(text_of(doc, "architecture"), "llama");
    assert_string_equal(text_of(doc, "name"), "A name");
    assert_string_equal(text_of(doc, "chat_template"), "{{ messages }}");
    assert_int_equal(tn_json_int(tn_json_get(tn_json_get(root, "tokenizer"), "tokens"), -1), 100);
    assert_int_equal(tn_json_int(tn_json_get(tokens, "length"), -1), 100);
    assert_tensor(doc, 0, "output.weight", "F32", 32);
    tn_json_free(doc);
    char heard[4096], arguments[700];
    snprintf(arguments, sizeof arguments, "%s --template", path);
    assert_int_equal(run_info(arguments, heard, sizeof heard), 0);
    assert_string_equal(heard, "{{ messages }}");
    snprintf(arguments, sizeof arguments, "%s --template 2>&1", write_safetensors("none.safetensors"));
    assert_int_equal(run_info(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "has no chat template");
}

static void other_kinds_are_known(void **state) {
    (void)state;
    static const struct {
        const char *path, *format, *name;
    } rows[] = {
        {"tests/corpus/pickle/older.pt", "pytorch", NULL},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_json_doc *doc = ask(rows[i].path);
        assert_string_equal(text_of(doc, "format"), rows[i].format);
        assert_true(tn_json_length(tn_json_get(tn_json_root(doc), "tensors")) > 0);
        tn_json_free(doc);
    }
}

/* A file whose name says nothing. */
static void content_decides_without_an_ending(void **state) {
    (void)state;
    char path[600], heard[4096], arguments[700];
    snprintf(path, sizeof path, "%s", test_scratch("blob"));
    assert_int_equal(rename(write_safetensors("moved.safetensors"), path), 0);
    tn_json_doc *doc = ask(path);
    assert_string_equal(text_of(doc, "format"), "safetensors");
    tn_json_free(doc);
    write_file(path, "what is this?");
    snprintf(arguments, sizeof arguments, "%s 2>&1", path);
    assert_int_equal(run_info(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "unknown file type (first bytes are 77 68 61 74)");
    static const char *const pipes[] = {"pipe", "pipe.npy", "pipe.npz"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mkfifo(test_scratch(pipes[i]), 0600), 0);
        snprintf(arguments, sizeof arguments, "%s 2>&1", test_scratch(pipes[i]));
        alarm(20); /* opening a pipe could wait for ever */
        assert_int_equal(run_info(arguments, heard, sizeof heard), 1);
        alarm(0);
        assert_text_has(heard, "it is not a regular file");
    }
    assert_int_equal(run_info("2>&1", heard, sizeof heard), 2);
    assert_int_equal(run_info("/not/there 2>&1", heard, sizeof heard), 1);
}

/* The parsers' corpora: whole and damaged files. */
static void every_file_of_the_corpora_is_told_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *folder, *ending;
    } kinds[] = {
        {"gguf", ".gguf"}, {"safetensors", ".safetensors"}, {"onnx", ".onnx"}, {"pickle", ".pt"}, {"npy", ".npy"}};
    static char heard[1 << 20];
    char folder[300], command[1400];
    int told = 0, refused = 0;
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        snprintf(folder, sizeof folder, "tests/corpus/%s", kinds[k].folder);
        DIR *d = opendir(folder);
        assert_non_null(d);
        for (struct dirent *e = readdir(d); e; e = readdir(d)) {
            if (e->d_name[0] == '.') continue;
            char copy[600];
            snprintf(copy, sizeof copy, "%s", test_scratch("corpus"));
            strncat(copy, kinds[k].ending, sizeof copy - strlen(copy) - 1);
            snprintf(command, sizeof command, "cp %s/%.200s %s && TRUNNION_LOG=0 %%s info --tensors %s 2>&1", folder,
                     e->d_name, copy, copy);
            int code = run_trunnion(command, heard, sizeof heard);
            if (code != 0 && code != 1) fail_msg("%s/%s: ends with %d: %s", folder, e->d_name, code, heard);
            if (code == 1) assert_text_has(heard, "error: ");
            for (const char *c = heard; *c; c++)
                if ((unsigned char)*c < 32 && *c != '\n') fail_msg("%s/%s: byte %d is shown", folder, e->d_name, *c);
            told += code == 0;
            refused += code == 1;
        }
        closedir(d);
    }
    if (told < 10 || refused < 10) fail_msg("%d files told, %d refused", told, refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors_are_listed),
        cmocka_unit_test(a_gguf_file_tells_its_metadata),
        cmocka_unit_test(other_kinds_are_known),
        cmocka_unit_test(content_decides_without_an_ending),
        cmocka_unit_test(every_file_of_the_corpora_is_told_or_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
