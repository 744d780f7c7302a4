/* test_generate.c — promises of `trunnion generate`, kept on a model made for the test: exit codes, what its JSON has,
 * the same text for the same seed on any number of threads, and words for what it refuses. */
#include "test_support.h"

#include "gguf_make.h"
#include "trunnion/llm.h"

enum { LETTERS = 256, VOCABULARY = LETTERS + 2, WIDTH = 32, MIDDLE = 64, CONTEXT = 100 };

static char model_path[512];
static int letters_from; /* the byte of token 0 */

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* GPT-2's spelling of a byte: itself where it is a visible character of Latin-1, else the next free one from 256 on. */
static void put_letter(gguf_make *g, int byte, int *spare) {
    bool visible = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    int code = visible ? byte : (*spare)++;
    char text[3] = {(char)code, 0, 0};
    if (code >= 128) {
        text[0] = (char)(0xc0 | code >> 6);
        text[1] = (char)(0x80 | (code & 0x3f));
    }
    make_text(g, text);
}

static void put_tokenizer(gguf_make *g, bool template) {
    int spare = 256;
    make_key_text(g, "tokenizer.ggml.model", "gpt2");
    make_key_text(g, "tokenizer.ggml.pre", "gpt-2");
    make_key_array(g, "tokenizer.ggml.tokens", TN_GGUF_STRING, VOCABULARY);
    for (int i = 0; i < LETTERS; i++)
        put_letter(g, (i + letters_from) % LETTERS, &spare);
    make_text(g, "<|s|>");
    make_text(g, "<|e|>");
    make_key_array(g, "tokenizer.ggml.token_type", TN_GGUF_I32, VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++)
        make_number(g, i < LETTERS ? 1 : 3, 4);
    make_key_array(g, "tokenizer.ggml.merges", TN_GGUF_STRING, 0);
    make_key_u32(g, "tokenizer.ggml.eos_token_id", LETTERS + 1);
    make_key_bool(g, "tokenizer.ggml.add_bos_token", false);
    if (template)
        make_key_text(g, "tokenizer.chat_template", "{% for m in messages %}<|s|>{{ m.content }}{% endfor %}<|s|>");
}

typedef struct matrix_row {
    const char *name;
    uint64_t columns, rows; /* rows 0: a vector of ones */
} matrix_row;

static const matrix_row matrices[] = {
    {"token_embd.weight", WIDTH, VOCABULARY},   {"output_norm.weight", WIDTH, 0},
    {"blk.0.attn_norm.weight", WIDTH, 0},       {"blk.0.attn_q.weight", WIDTH, WIDTH},
    {"blk.0.attn_k.weight", WIDTH, WIDTH},      {"blk.0.attn_v.weight", WIDTH, WIDTH},
    {"blk.0.attn_output.weight", WIDTH, WIDTH}, {"blk.0.ffn_norm.weight", WIDTH, 0},
    {"blk.0.ffn_gate.weight", WIDTH, MIDDLE},   {"blk.0.ffn_up.weight", WIDTH, MIDDLE},
    {"blk.0.ffn_down.weight", MIDDLE, WIDTH},
};

static uint64_t count_of(const matrix_row *m) { return m->columns * (m->rows ? m->rows : 1); }

static void put_tensors(gguf_make *g) {
    uint64_t place = 0;
    uint32_t random = 1;
    for (size_t i = 0; i < TN_COUNT(matrices); i++) {
        const matrix_row *m = &matrices[i];
        make_tensor(g, m->name, m->rows ? 2 : 1, (uint64_t[]){m->columns, m->rows}, 0, place);
        place += count_of(m) * 4;
    }
    make_padding(g, 32);
    for (size_t i = 0; i < TN_COUNT(matrices); i++)
        for (uint64_t k = 0; k < count_of(&matrices[i]); k++) {
            random = random * 1664525u + 1013904223u;
            make_f32(g, matrices[i].rows ? ((float)(random >> 8) / (float)(1 << 24) - 0.5F) : 1);
        }
}

static void write_model(const char *path, bool template) {
    gguf_make g = {0};
    make_head(&g, TN_COUNT(matrices), 15 + (uint64_t) template);
    make_key_text(&g, "general.architecture", "llama");
    make_key_u32(&g, "llama.block_count", 1);
    make_key_u32(&g, "llama.embedding_length", WIDTH);
    make_key_u32(&g, "llama.feed_forward_length", MIDDLE);
    make_key_u32(&g, "llama.context_length", CONTEXT);
    make_key_u32(&g, "llama.attention.head_count", 4);
    make_key_f32(&g, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    make_key_f32(&g, "llama.rope.freq_base", 1e4F);
    put_tokenizer(&g, template);
    put_tensors(&g);
    assert_int_equal(make_write(&g, path), 0);
    make_free(&g);
}

static int make_model(void **state) {
    if (make_scratch(state) != 0) return -1;
    snprintf(model_path, sizeof model_path, "%s", test_scratch("model.gguf"));
    write_model(model_path, true);
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    return 0;
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* Runs `trunnion generate ARGUMENTS`, where "-m @" names the model, and gives the exit code. */
static int run_generate(const char *arguments, char *heard, size_t size) {
    char command[1600];
    const char *mark = strstr(arguments, "-m @");
    int before = mark ? (int)(mark - arguments) : (int)strlen(arguments);
    snprintf(command, sizeof command, "%%s generate %.*s%s%s%s", before, arguments, mark ? "-m " : "",
             mark ? model_path : "", mark ? mark + 4 : "");
    return run_trunnion(command, heard, size);
}

static void it_ends_with_the_promised_codes(void **state) {
    (void)state;
    static const test_call rows[] = {
        {"--help", 0, "examples"},
        {"-p x 2>&1", 2, "missing model"},
        {"-m @ 2>&1", 2, "missing prompt"},
        {"-m @ -p x stray 2>&1", 2, "\"stray\": pass the text with -p"},
        {"-m @ -p x --top-p 2 2>&1", 2, "nucleus sampling"},
        {"-m @ -p x --temperature hot 2>&1", 2, "--temperature"},
        {"-m @ -p x -n -2 2>&1", 2, "at most N tokens"},
        {"-m @ --ids 120 -n -1 --greedy 2>&1", 0, "the context of 100 tokens is full"},
        {"-m @ -p x -f y 2>&1", 2, "only once"},
        {"-m @ --messages x --system y 2>&1", 2, "--system has no effect"},
        {"-m @ -p x --stop '' 2>&1", 2, "end the answer before TEXT"},
        {"-m @ --ids 1 --stop x 2>&1", 2, "--stop requires a text"},
        {"-m @ -p x --logprobs 3 2>&1", 2, "--logprobs requires --json"},
        {"-m @ -p x --logprobs 21 --json 2>&1", 2, "--logprobs"},
        {"-m @ -p x --dry-base 0.5 2>&1", 2, "--dry-base"},
        {"-m @ -p x --temprature 1 2>&1", 2, "did you mean --temperature?"},
        {"-h", 0, "--mirostat-tau"},
        {"-m @ -p x --system y 2>&1", 2, "--chat"},
        {"-m @ --ids 120 -n 4 2>&1", 0, "generation: 4 tokens"},
        {"-m @ --ids 120 --max-tokens 3 2>&1", 0, "generation: 3 tokens"},
        {"-m @ -p '' 2>&1", 1, "the prompt is empty"},
        {"-m @ -p x --context 101 2>&1", 1, "supports 1 to 100"},
        {"-m @ -p abcdefgh --context 4 2>&1", 1, "exceed the context of 4"},
        {"-m @ -p x --context 9 --greedy 2>&1", 0, "the context of 9 tokens is full"},
        {"-m @ -p x --greedy --temperature 2 2>&1", 2, "--temperature has no effect"},
        {"-m @ -p x --greedy --top-k 4 2>&1", 2, "--top-k has no effect"},
        {"-m @ -p x --greedy --seed 4 2>&1", 2, "--seed has no effect"},
        {"-m @ --chat --ids 1,2 2>&1", 2, "--chat requires a text"},
        {"-m @ -p x --predict 4 --seed 77 2>&1", 0, "seed 77"},
        {"-m @ --ids 120 --tokens 5 2>&1", 0, "generation: 5 tokens"},
        {"-m /not/there -p x --json 2>/dev/null", 1, "{\"error\": {\"code\": \"io\", \"message\": \""},
        {"-p x --json 2>/dev/null", 2, "\"code\": \"usage\""},
        {"-m /not/there -p x 2>&1", 1, "/not/there"},
        {"-m /proc/self/exe -p x 2>&1", 1, "does not begin with"},
        {"-m @ -p x --device nothing 2>&1", 2, "nothing"},
        {"-m @ -p x --draft-tokens 3 2>&1", 2, "--draft-tokens requires --draft"},
        {"-m @ -p x --draft ngrams --draft-tokens 16 2>&1", 2, "1 to 15"},
        {"-m @ -p x --draft /not/there 2>&1", 1, "/not/there"},
        {"-m @ -p x -n 40 --greedy --draft ngrams 2>&1", 0, "tokens accepted"},
    };
    assert_calls(rows, TN_COUNT(rows), run_generate);
}

/* A model of the cache folder is found by its name, with or without the ending; a part of it is an advice. */
static void a_model_is_found_by_its_name(void **state) {
    (void)state;
    static const test_call rows[] = {
        {"-m own-model.gguf --ids 120 -n 2 2>&1", 0, "generation: 2 tokens"},
        {"-m own-model --ids 120 -n 2 2>&1", 0, "generation: 2 tokens"},
        {"-m OWN --ids 120 2>&1", 1, "did you mean own-model.gguf"},
        {"-m other --ids 120 2>&1", 1, "pass the path of a GGUF file"},
    };
    mkdir(test_scratch("cache"), 0700);
    mkdir(test_scratch("cache/models"), 0700);
    write_model(test_scratch("cache/models/own-model.gguf"), true);
    assert_calls(rows, TN_COUNT(rows), run_generate);
    char heard[4096], command[512];
    snprintf(command, sizeof command, "echo abc | %%s chat own-model -n 2 2>&1");
    assert_int_equal(run_trunnion(command, heard, sizeof heard), 0);
    assert_text_has(heard, "context 100 tokens");
}

static tn_json_doc *ask(const char *arguments) {
    char heard[65536];
    tn_json_doc *doc = NULL;
    int code = run_generate(arguments, heard, sizeof heard);
    if (code != 0) fail_msg("generate %s ends with %d", arguments, code);
    assert_ok(tn_json_parse(heard, strlen(heard), &doc));
    return doc;
}

static void json_has_the_promised_keys(void **state) {
    (void)state;
    static const char *const keys[] = {
        "text",     "prompt_ids", "ids",    "prompt_tokens_per_second", "tokens_per_second", "device",
        "fallback", "seed",       "stopped"};
    tn_json_doc *doc = ask("-m @ -p 'ab c' -n 7 --greedy --json");
    const tn_json *root = tn_json_root(doc), *ids = tn_json_get(root, "prompt_ids");
    for (size_t i = 0; i < TN_COUNT(keys); i++)
        if (!tn_json_get(root, keys[i])) fail_msg("the JSON has no \"%s\"", keys[i]);
    assert_int_equal(tn_json_length(ids), 4);
    assert_int_equal(tn_json_int(tn_json_at(ids, 0), -1), 'a');
    assert_int_equal(tn_json_length(tn_json_get(root, "ids")), 7);
    assert_string_equal(tn_json_string(tn_json_get(root, "device"), ""), "cpu");
    assert_string_equal(tn_json_string(tn_json_get(root, "stopped"), ""), "length");
    tn_json_free(doc);
    doc = ask("-m @ --chat --system zz -p hi -n 0 --json");
    ids = tn_json_get(tn_json_root(doc), "prompt_ids");
    assert_int_equal(tn_json_length(ids), 1 + 2 + 1 + 2 + 1);
    assert_int_equal(tn_json_int(tn_json_at(ids, 0), -1), LETTERS);
    tn_json_free(doc);
}

/* ---- options of the prompt and of where the text ends ------------------------------------------------------------ */

/* The value of a member of the object that `arguments` print. */
static void ask_text(const char *arguments, const char *key, char *out, size_t size) {
    tn_json_doc *doc = ask(arguments);
    const tn_json *v = tn_json_get(tn_json_root(doc), key);
    snprintf(out, size, "%s", tn_json_string(v, "(none)"));
    tn_json_free(doc);
}

/* A stop string that begins and ends inside tokens' texts: here each token is a byte. */
static void a_stop_string_ends_the_text_before_itself(void **state) {
    (void)state;
    char all[512], cut[512], stop[8] = "", arguments[600];
    const char *run = "-m @ -p 'ab c' -n 40 --temperature 1.5 --top-k 0 --seed 11 --min-p 0 --json";
    ask_text(run, "text", all, sizeof all);
    size_t at = 0;
    for (size_t i = 5; i + 3 < strlen(all) && !*stop; i++) { /* three letters that a shell takes as they are */
        size_t letters =
            strspn(all + i, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;+-_/=<>[]{}()");
        if (letters >= 2) snprintf(stop, sizeof stop, "%.2s", all + i);
    }
    if (!*stop) fail_msg("no place for a stop string in \"%s\"", all);
    at = (size_t)(strstr(all, stop) - all);
    snprintf(arguments, sizeof arguments, "%s --stop never-there --stop '%s'", run, stop);
    ask_text(arguments, "text", cut, sizeof cut);
    assert_int_equal(strlen(cut), at);
    assert_memory_equal(cut, all, at);
    ask_text(arguments, "stopped", cut, sizeof cut);
    assert_string_equal(cut, "stop");
    ask_text(arguments, "stop", cut, sizeof cut);
    assert_string_equal(cut, stop);
}

static void a_file_is_a_prompt_without_its_last_newline(void **state) {
    (void)state;
    char arguments[700];
    write_file(test_scratch("prompt.txt"), "two\nlines\n");
    snprintf(arguments, sizeof arguments, "-m @ -f %s -n 3 --greedy --json", test_scratch("prompt.txt"));
    tn_json_doc *doc = ask(arguments);
    assert_int_equal(tn_json_length(tn_json_get(tn_json_root(doc), "prompt_ids")), 9);
    tn_json_free(doc);
}

static void messages_come_from_a_json_file(void **state) {
    (void)state;
    static const struct {
        const char *text, *part; /* part: of the refusal; NULL: taken */
    } rows[] = {
        {"[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\"}]", NULL},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hih\"},"
         "{\"type\": \"text\", \"text\": \"oo\"}]}]}",
         NULL},
        {"[]", "at least one"},
        {"{\"message\": 1}", "as \"messages\""},
        {"[{\"role\": \"user\"}]", "message 0: \"content\" must be"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, 7]", "message 1 must be an object"},
        {"[{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": []}]", "has the field \"tool_calls\""},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]", "is of type \"image\""},
        {"[{\"role\": \"user\", \"content\": \"a\\u0000b\"}]", "NUL byte"},
        {"[{", "messages.json': "},
    };
    char arguments[700], heard[4096];
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        write_file(test_scratch("messages.json"), rows[i].text);
        snprintf(arguments, sizeof arguments, "-m @ --messages %s -n 2 --greedy --json 2>&1",
                 test_scratch("messages.json"));
        int code = run_generate(arguments, heard, sizeof heard);
        if (code != (rows[i].part ? 1 : 0)) fail_msg("messages %s: ends with %d: %s", rows[i].text, code, heard);
        assert_text_has(heard, rows[i].part ? rows[i].part
                               : i == 0     ? "[256, 104, 105, 256, 104, 111, 256]"
                                            : "[256, 104, 105, 104, 111, 111, 256]");
    }
}

static void logprobs_name_each_token_and_its_rivals(void **state) {
    (void)state;
    tn_json_doc *doc = ask("-m @ -p ab -n 5 --greedy --logprobs 3 --json");
    const tn_json *root = tn_json_root(doc), *list = tn_json_get(root, "logprobs");
    assert_int_equal(tn_json_length(list), 5);
    for (size_t i = 0; i < 5; i++) {
        const tn_json *row = tn_json_at(list, i), *top = tn_json_get(row, "top");
        assert_int_equal(tn_json_length(top), 3);
        assert_int_equal(tn_json_int(tn_json_get(row, "id"), -1),
                         tn_json_int(tn_json_at(tn_json_get(root, "ids"), i), -2));
        double own = tn_json_number(tn_json_get(row, "logprob"), 1),
               best = tn_json_number(tn_json_get(tn_json_at(top, 0), "logprob"), 1);
        assert_true(own == best && own < 0 && own > -20); /* greedy: the most probable one */
        assert_true(tn_json_number(tn_json_get(tn_json_at(top, 2), "logprob"), 1) <= best);
    }
    tn_json_free(doc);
}

static void penalties_change_the_text(void **state) {
    (void)state;
    static const char *const options[] = {"--frequency-penalty 2", "--presence-penalty 2", "--repeat-penalty 2",
                                          "--dry-multiplier 5 --dry-allowed-length 1"};
    char plain[512], other[512], arguments[256];
    ask_text("-m @ -p 'ab c' -n 60 --greedy --json", "text", plain, sizeof plain);
    for (size_t i = 0; i < TN_COUNT(options); i++) {
        snprintf(arguments, sizeof arguments, "-m @ -p 'ab c' -n 60 --greedy %s --json", options[i]);
        ask_text(arguments, "text", other, sizeof other);
        if (strcmp(plain, other) == 0) fail_msg("%s changes nothing", options[i]);
    }
}

static int64_t ask_number(const char *arguments, const char *key) {
    tn_json_doc *doc = ask(arguments);
    int64_t n = tn_json_int(tn_json_get(tn_json_root(doc), key), -1);
    tn_json_free(doc);
    return n;
}

static void keys_and_values_have_the_types_that_are_asked_for(void **state) {
    (void)state;
    int64_t f16 = ask_number("-m @ -p a -n 2 --greedy --json", "cache_bytes");
    assert_int_equal(ask_number("-m @ -p a -n 2 --greedy --cache f32 --json", "cache_bytes"), 2 * f16);
    assert_int_equal(2 * ask_number("-m @ -p a -n 2 --greedy --cache-type-v f32 --json", "cache_bytes"), 3 * f16);
    assert_int_equal(ask_number("-m @ -p a -n 2 --cache-type-k f32 --cache-type-v f32 --json", "cache_bytes"), 2 * f16);
}

/* Not piece by piece until one does not fit. */
static void a_file_that_is_too_long_is_refused_at_once(void **state) {
    (void)state;
    enum { LONG = 1500 };
    char text[LONG + 1] = {0}, arguments[700], heard[4096];
    memset(text, 'a', LONG);
    write_file(test_scratch("long.txt"), text);
    snprintf(arguments, sizeof arguments, "-m @ -f %s 2>&1", test_scratch("long.txt"));
    assert_int_equal(run_generate(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "tokens exceed the context of 100, of which 0 are used");
    assert_true(strtol(strstr(heard, "error: ") + 7, NULL, 10) > LONG / 2);
}

static void a_prompt_cache_saves_computing_a_prompt_again(void **state) {
    (void)state;
    char plain[512], cached[512], arguments[700], longer[700], heard[4096];
    const char *file = test_scratch("prompt.cache");
    ask_text("-m @ -p 'a prompt of words' -n 20 --greedy --json", "text", plain, sizeof plain);
    snprintf(arguments, sizeof arguments, "-m @ -p 'a prompt of words' -n 20 --greedy --prompt-cache %s --json", file);
    assert_int_equal(ask_number(arguments, "prompt_tokens_computed"), 17);
    assert_int_equal(ask_number(arguments, "prompt_tokens_computed"), 1);
    ask_text(arguments, "text", cached, sizeof cached);
    assert_string_equal(cached, plain);
    snprintf(longer, sizeof longer, "-m @ -p 'a prompt of wood' -n 20 --greedy --prompt-cache %s --json", file);
    assert_int_equal(ask_number(longer, "prompt_tokens_computed"), 2);
    write_file(file, "something else");
    snprintf(arguments, sizeof arguments, "-m @ -p x --prompt-cache %s 2>&1", file);
    assert_int_equal(run_generate(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "prompt.cache");
}

/* Whatever the model would say: numbers in brackets, and its end. */
static void a_grammar_is_followed(void **state) {
    (void)state;
    char text[512], arguments[700], heard[4096];
    const char *file = test_scratch("list.gbnf");
    write_file(file, "root ::= \"[\" [0-9]{2} (\", \" [0-9]{2}){3} \"]\"\n");
    for (int seed = 0; seed < 4; seed++) {
        int n[4], used = 0;
        snprintf(arguments, sizeof arguments, "-m @ -p abc -n 60 --temperature 2 --seed %d --grammar %s --json", seed,
                 file);
        ask_text(arguments, "text", text, sizeof text);
        bool whole = sscanf(text, "[%2d, %2d, %2d, %2d]%n", &n[0], &n[1], &n[2], &n[3], &used) == 4;
        if (!whole || used != 16 || strlen(text) != 16) fail_msg("\"%s\" does not follow the grammar", text);
        ask_text(arguments, "stopped", text, sizeof text);
        assert_string_equal(text, "end");
    }
    write_file(file, "{\"properties\": {\"n\": {\"enum\": [10, 20]}}, \"required\": [\"n\"]}");
    snprintf(arguments, sizeof arguments, "-m @ -p abc -n 60 --temperature 2 --seed 1 --json-schema %s --json", file);
    ask_text(arguments, "text", text, sizeof text);
    tn_json_doc *doc = NULL;
    assert_ok(tn_json_parse(text, strlen(text), &doc));
    assert_int_equal(tn_json_int(tn_json_get(tn_json_root(doc), "n"), -1) % 10, 0);
    tn_json_free(doc);
    write_file(file, "root ::= \"a");
    snprintf(arguments, sizeof arguments, "-m @ -p abc --grammar %s 2>&1", file);
    assert_int_equal(run_generate(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "grammar, line 1, byte");
}

static bool same_ids(const tn_json_doc *a, const tn_json_doc *b) {
    const tn_json *x = tn_json_get(tn_json_root(a), "ids"), *y = tn_json_get(tn_json_root(b), "ids");
    bool same = tn_json_length(x) == tn_json_length(y);
    for (size_t i = 0; i < tn_json_length(x) && same; i++)
        same = tn_json_int(tn_json_at(x, i), -1) == tn_json_int(tn_json_at(y, i), -2);
    return same;
}

static void the_same_seed_gives_the_same_text(void **state) {
    (void)state;
    tn_json_doc *one = ask("-m @ -p 'ab c' -n 30 --temperature 2 --top-k 0 --seed 5 --threads 1 --json");
    tn_json_doc *two = ask("-m @ -p 'ab c' -n 30 --temperature 2 --top-k 0 --seed 5 --threads 2 --json");
    tn_json_doc *other = ask("-m @ -p 'ab c' -n 30 --temperature 2 --top-k 0 --seed 6 --json");
    assert_true(same_ids(one, two));
    assert_false(same_ids(one, other));
    tn_json_free(one);
    tn_json_free(two);
    tn_json_free(other);
}

/* The model itself and one with other tokens as drafts. */
static void a_draft_changes_the_time_only(void **state) {
    (void)state;
    static const char *const runs[] = {"-n 60 --greedy", "-n 60 --temperature 0.3 --seed 5"};
    char arguments[1200], heard[4096];
    const char *other = test_scratch("draft.gguf");
    write_model(other, true);
    for (size_t i = 0; i < TN_COUNT(runs); i++) {
        snprintf(arguments, sizeof arguments, "-m @ -p 'ab ab ab' %s --json", runs[i]);
        tn_json_doc *plain = ask(arguments);
        assert_null(tn_json_get(tn_json_root(plain), "draft_tokens"));
        for (int k = 0; k < 2; k++) {
            snprintf(arguments, sizeof arguments, "-m @ -p 'ab ab ab' %s --json --draft-tokens 6 --draft %s", runs[i],
                     k ? other : "ngrams");
            tn_json_doc *drafted = ask(arguments);
            const tn_json *root = tn_json_root(drafted);
            double guessed = tn_json_number(tn_json_get(root, "draft_tokens"), -1);
            double accepted = tn_json_number(tn_json_get(root, "draft_accepted"), -1);
            assert_true(same_ids(plain, drafted));
            assert_true(accepted >= 0 && accepted <= guessed);
            if (k && i == 0 && guessed > 0) assert_true(accepted > 0.7 * guessed); /* the same weights */
            tn_json_free(drafted);
        }
        tn_json_free(plain);
    }
    letters_from = 1;
    write_model(other, true);
    letters_from = 0;
    snprintf(arguments, sizeof arguments, "-m @ -p x --draft %s 2>&1", other);
    assert_int_equal(run_generate(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "must have the tokenizer of the model");
}

static void a_model_without_a_template_does_not_chat(void **state) {
    (void)state;
    char heard[4096], arguments[700];
    const char *path = test_scratch("plain.gguf");
    write_model(path, false);
    snprintf(arguments, sizeof arguments, "-m %s --chat -p hi 2>&1", path);
    assert_int_equal(run_generate(arguments, heard, sizeof heard), 1);
    assert_text_has(heard, "which chats require");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends_with_the_promised_codes),
        cmocka_unit_test(a_model_is_found_by_its_name),
        cmocka_unit_test(json_has_the_promised_keys),
        cmocka_unit_test(a_stop_string_ends_the_text_before_itself),
        cmocka_unit_test(a_file_is_a_prompt_without_its_last_newline),
        cmocka_unit_test(messages_come_from_a_json_file),
        cmocka_unit_test(logprobs_name_each_token_and_its_rivals),
        cmocka_unit_test(penalties_change_the_text),
        cmocka_unit_test(a_grammar_is_followed),
        cmocka_unit_test(keys_and_values_have_the_types_that_are_asked_for),
        cmocka_unit_test(a_file_that_is_too_long_is_refused_at_once),
        cmocka_unit_test(a_prompt_cache_saves_computing_a_prompt_again),
        cmocka_unit_test(the_same_seed_gives_the_same_text),
        cmocka_unit_test(a_draft_changes_the_time_only),
        cmocka_unit_test(a_model_without_a_template_does_not_chat),
    };
    return cmocka_run_group_tests(tests, make_model, remove_scratch);
}
