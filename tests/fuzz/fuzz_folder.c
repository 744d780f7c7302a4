/* fuzz_folder.c — any config.json, any index of shards: a folder is refused with a reason, or is what it says.
 *
 * An input is a config.json up to a line of its own that is "--", then an index. The weights beside them stay the same:
 * those of a small encoder, of a small language model, and two shards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "text/text_common.h"
#include "trunnion/embed.h"
#include "trunnion/llm.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 4, WORDS = 8, PLACES = 6, MOST = 32, WIDTH_LIMIT = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool promise) {
    if (!promise) __builtin_trap();
}

static char top[256];

static const char *path_of(const char *folder, const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", top, folder, name);
    return path;
}

static void write_part(const char *folder, const char *name, const void *data, size_t size) {
    FILE *f = fopen(path_of(folder, name), "wb");
    require(f && (size == 0 || fwrite(data, size, 1, f) == 1));
    require(fclose(f) == 0);
}

typedef struct weights {
    tn_named_tensor items[MOST];
    int count;
} weights;

static void add(weights *w, const char *name, int64_t rows, int64_t columns) {
    require(w->count < MOST);
    w->items[w->count++] =
        (tn_named_tensor){name, columns ? tn_ones(TN_DIMS(rows, columns), TN_F32) : tn_ones(TN_DIMS(rows), TN_F32)};
}

static void save(const char *folder, const char *name, const weights *w) {
    require(tn_safetensors_save(path_of(folder, name), w->items, w->count, NULL, 0) == TN_OK);
}

static void make_encoder(void) {
    static const char *const parts[] = {"attention.self.query",       "attention.self.key", "attention.self.value",
                                        "attention.output.dense",     "intermediate.dense", "output.dense",
                                        "attention.output.LayerNorm", "output.LayerNorm"};
    static char names[16][96];
    weights w = {.count = 0};
    add(&w, "embeddings.word_embeddings.weight", WORDS, HIDDEN);
    add(&w, "embeddings.position_embeddings.weight", PLACES, HIDDEN);
    add(&w, "embeddings.token_type_embeddings.weight", 2, HIDDEN);
    add(&w, "embeddings.LayerNorm.weight", HIDDEN, 0);
    add(&w, "embeddings.LayerNorm.bias", HIDDEN, 0);
    for (int i = 0; i < 8; i++) {
        snprintf(names[2 * i], sizeof names[0], "encoder.layer.0.%s.weight", parts[i]);
        snprintf(names[2 * i + 1], sizeof names[0], "encoder.layer.0.%s.bias", parts[i]);
        add(&w, names[2 * i], HIDDEN, i < 6 ? HIDDEN : 0);
        add(&w, names[2 * i + 1], HIDDEN, 0);
    }
    save("encoder", "model.safetensors", &w);
}

static void make_language_model(void) {
    static const char *const matrices[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                           "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                           "mlp.down_proj"};
    static char names[7][96];
    weights w = {.count = 0};
    add(&w, "model.embed_tokens.weight", WORDS, HIDDEN);
    add(&w, "model.norm.weight", HIDDEN, 0);
    add(&w, "model.layers.0.input_layernorm.weight", HIDDEN, 0);
    add(&w, "model.layers.0.post_attention_layernorm.weight", HIDDEN, 0);
    for (int i = 0; i < 7; i++) {
        snprintf(names[i], sizeof names[0], "model.layers.0.%s.weight", matrices[i]);
        add(&w, names[i], HIDDEN, HIDDEN);
    }
    save("language", "model.safetensors", &w);
}

static void make_shards(void) {
    weights a = {.count = 0}, b = {.count = 0};
    add(&a, "a", 2, 0);
    add(&b, "b", 2, 0);
    save("shards", "x-1.safetensors", &a);
    save("shards", "x-2.safetensors", &b);
}

static void remove_all(void) {
    static const char *const files[][2] = {{"encoder", "model.safetensors"},
                                           {"encoder", "config.json"},
                                           {"language", "model.safetensors"},
                                           {"language", "config.json"},
                                           {"shards", "x-1.safetensors"},
                                           {"shards", "x-2.safetensors"},
                                           {"shards", "x.index.json"},
                                           {"encoder", ""},
                                           {"language", ""},
                                           {"shards", ""},
                                           {"", ""}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        (void)remove(path_of(files[i][0], files[i][1]));
}

static void make_folders(void) {
    const char *parent = getenv("TMPDIR");
    snprintf(top, sizeof top, "%s/trunnion-fuzz-XXXXXX", parent ? parent : "/tmp");
    require(mkdtemp(top) != NULL);
    tn_set_num_threads(1); /* so little work is done faster alone */
    static const char *const folders[] = {"encoder", "language", "shards"};
    for (int i = 0; i < 3; i++)
        require(mkdir(path_of(folders[i], ""), 0700) == 0);
    {
        TN_SCOPE;
        make_encoder();
        make_language_model();
        make_shards();
    }
    atexit(remove_all);
}

static void try_encoder(void) {
    static const int32_t ids[] = {1, 2, 3};
    static const int64_t lengths[] = {2, 1};
    tn_embedder *e;
    char folder[512];
    snprintf(folder, sizeof folder, "%s/encoder", top);
    if (tn_embedder_open(folder, NULL, &e) == TN_OK) {
        float out[2 * WIDTH_LIMIT];
        tn_embedder_facts f = {.struct_size = sizeof f};
        require(tn_embedder_get_facts(e, &f) == TN_OK && f.width == HIDDEN && f.longest <= PLACES);
        tn_status status = tn_embedder_run(e, ids, lengths, 2, out);
        require(status == TN_OK || f.longest < 2);
    } else {
        require(*tn_error() != '\0' && !e);
    }
    tn_embedder_close(e);
}

static void try_language_model(void) {
    char folder[512];
    tn_llm_facts f = {.struct_size = sizeof f};
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    snprintf(folder, sizeof folder, "%s/language", top);
    bool good = tn_llm_inspect_path(folder, NULL, &f) == TN_OK;
    require(good ? f.hidden == HIDDEN && f.layers == 1 : *tn_error() != '\0');
    if (tn_read_model_sizes(folder, &sizes) != TN_OK) require(*tn_error() != '\0');
}

static void try_shards(void) {
    tn_safetensors *file;
    if (tn_safetensors_open(path_of("shards", "x.index.json"), &file) != TN_OK) require(*tn_error() != '\0' && !file);
    require(tn_safetensors_count(file) <= 2);
    tn_safetensors_close(file);
}

/* Where the index begins: behind the mark, or at the end. `config`: bytes before it. */
static size_t index_of(const uint8_t *data, size_t size, size_t *config) {
    for (size_t at = 0; at + 4 <= size; at++) {
        if (memcmp(data + at, "\n--\n", 4) != 0) continue;
        *config = at;
        return at + 4;
    }
    return *config = size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t config, index = index_of(data, size, &config);
    if (!*top) make_folders();
    write_part("encoder", "config.json", data, config);
    write_part("language", "config.json", data, config);
    write_part("shards", "x.index.json", data + index, size - index);
    try_encoder();
    try_language_model();
    try_shards();
    return 0;
}
