/* test_classify.c — small classifiers: pictures are prepared as their folder says, and folders that do not fit are
 * refused. tools/text/classify.py compares all families with transformers. */
#include "test_support.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "text/text_common.h"
#include "trunnion/classify.h"
#include "trunnion/onnx.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 4, INNER = 6, SIDE = 8, PATCH = 4, PLACES = 5, CLASSES = 3, MOST = 32 };

static const char config[] = "{\"model_type\":\"vit\",\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                             "\"id2label\":{\"0\":\"cat\",\"1\":\"dog\",\"2\":\"owl\"}";
static const char preparation[] = "{\"image_processor_type\":\"ViTImageProcessor\",\"size\":8";

static const struct {
    const char *name;
    int64_t shape[5]; /* ends with 0 */
} rows[] = {
    {"vit.embeddings.cls_token", {1, 1, HIDDEN}},
    {"vit.embeddings.position_embeddings", {1, PLACES, HIDDEN}},
    {"vit.embeddings.patch_embeddings.projection.weight", {HIDDEN, 3, PATCH, PATCH}},
    {"vit.embeddings.patch_embeddings.projection.bias", {HIDDEN}},
    {"vit.encoder.layer.0.layernorm_before.weight", {HIDDEN}},
    {"vit.encoder.layer.0.layernorm_before.bias", {HIDDEN}},
    {"vit.encoder.layer.0.attention.attention.query.weight", {HIDDEN, HIDDEN}},
    {"vit.encoder.layer.0.attention.attention.query.bias", {HIDDEN}},
    {"vit.encoder.layer.0.attention.attention.key.weight", {HIDDEN, HIDDEN}},
    {"vit.encoder.layer.0.attention.attention.key.bias", {HIDDEN}},
    {"vit.encoder.layer.0.attention.attention.value.weight", {HIDDEN, HIDDEN}},
    {"vit.encoder.layer.0.attention.attention.value.bias", {HIDDEN}},
    {"vit.encoder.layer.0.attention.output.dense.weight", {HIDDEN, HIDDEN}},
    {"vit.encoder.layer.0.attention.output.dense.bias", {HIDDEN}},
    {"vit.encoder.layer.0.layernorm_after.weight", {HIDDEN}},
    {"vit.encoder.layer.0.layernorm_after.bias", {HIDDEN}},
    {"vit.encoder.layer.0.intermediate.dense.weight", {INNER, HIDDEN}},
    {"vit.encoder.layer.0.intermediate.dense.bias", {INNER}},
    {"vit.encoder.layer.0.output.dense.weight", {HIDDEN, INNER}},
    {"vit.encoder.layer.0.output.dense.bias", {HIDDEN}},
    {"vit.layernorm.weight", {HIDDEN}},
    {"vit.layernorm.bias", {HIDDEN}},
    {"classifier.weight", {CLASSES, HIDDEN}},
    {"classifier.bias", {CLASSES}},
    {"vit.extra.weight", {HIDDEN}}, /* left out unless asked for */
};

static void write_in(const char *folder, const char *name, const char *begin, const char *more) {
    char path[600], text[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(text, sizeof text, "%s%s}", begin, more);
    write_file(path, text);
}

/* more, how: for config.json and preprocessor_config.json; without: a weight that is left out; extra: one more. */
static const char *make_folder(const char *more, const char *how, const char *without, bool extra) {
    const char *folder = test_scratch("vit");
    char path[600];
    tn_named_tensor list[MOST];
    int count = 0;
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    tn_manual_seed(7);
    {
        TN_SCOPE;
        for (size_t i = 0; i < TN_COUNT(rows) - !extra; i++) {
            int rank = 0;
            while (rows[i].shape[rank])
                rank++;
            if (!without || !strstr(rows[i].name, without))
                list[count++] = (tn_named_tensor){rows[i].name, tn_randn(rows[i].shape, rank)};
        }
        assert_ok(tn_safetensors_save(path, list, count, NULL, 0));
    }
    write_in(folder, "config.json", config, more);
    write_in(folder, "preprocessor_config.json", preparation, how);
    return folder;
}

static uint8_t picture[SIDE * SIDE * 3];

static void fill_picture(void) {
    for (int i = 0; i < SIDE * SIDE * 3; i++)
        picture[i] = (uint8_t)(i * 7919 % 251);
}

static void a_picture_of_the_right_size_is_only_scaled(void **state) {
    (void)state;
    tn_classifier *c;
    tn_classifier_facts facts = {.struct_size = sizeof facts};
    float out[3 * SIDE * SIDE], shares[CLASSES], sum = 0;
    fill_picture();
    const char *folder = make_folder("", ",\"image_mean\":[0.5,0.25,0],\"image_std\":[0.5,0.25,2]", NULL, false);
    assert_true(tn_classifier_knows(folder) && !tn_classifier_knows("src"));
    assert_ok(tn_classifier_open(folder, NULL, &c));
    assert_ok(tn_classifier_get_facts(c, &facts));
    assert_true(!facts.hears && !facts.independent && facts.classes == CLASSES);
    assert_true(facts.height == SIDE && facts.width == SIDE);
    assert_string_equal(tn_classifier_label(c, 2), "owl");
    assert_string_equal(tn_classifier_label(c, 3), "");
    assert_ok(tn_classifier_prepare(c, picture, SIDE, SIDE, out));
    for (int i = 0; i < 3 * SIDE * SIDE; i++) {
        static const double mean[] = {0.5, 0.25, 0}, std[] = {0.5, 0.25, 2};
        int k = i / (SIDE * SIDE), at = i % (SIDE * SIDE);
        double wanted = ((double)picture[3 * at + k] / 255 - mean[k]) / std[k];
        if (fabs((double)out[i] - wanted) > 1e-6) fail_msg("number %d is %g, not %g", i, (double)out[i], wanted);
    }
    assert_ok(tn_classifier_picture(c, picture, SIDE, SIDE, shares));
    tn_classifier_probabilities(c, shares);
    for (int i = 0; i < CLASSES; i++)
        sum += shares[i];
    assert_true(fabsf(sum - 1) < 1e-5F);
    assert_int_equal(tn_classifier_picture(c, picture, 0, SIDE, shares), TN_ERR_ARGUMENT);
    assert_int_equal(tn_classifier_sound(c, out, 9, shares), TN_ERR_ARGUMENT);
    tn_classifier_close(c);
    tn_classifier_close(NULL);
}

/* A crop of the middle keeps the pixels there; a larger one fills up with black. */
static void crops_take_the_middle(void **state) {
    (void)state;
    static const int64_t sizes[] = {10, 7};
    static uint8_t image[10 * 10 * 3];
    tn_classifier *c;
    float out[3 * SIDE * SIDE];
    const char *how = ",\"do_resize\":false,\"do_center_crop\":true,\"crop_size\":8,\"do_normalize\":false,"
                      "\"do_rescale\":false";
    assert_ok(tn_classifier_open(make_folder("", how, NULL, false), NULL, &c));
    for (size_t s = 0; s < TN_COUNT(sizes); s++) {
        int64_t side = sizes[s], off = side > SIDE ? (side - SIDE) / 2 : 0;
        for (int64_t i = 0; i < side * side * 3; i++)
            image[i] = (uint8_t)(i % 250 + 1);
        assert_ok(tn_classifier_prepare(c, image, side, side, out));
        for (int64_t y = 0; y < SIDE; y++)
            for (int64_t x = 0; x < SIDE; x++) {
                bool inside = y + off < side && x + off < side;
                float wanted = inside ? (float)image[((y + off) * side + x + off) * 3] : 0;
                if (out[y * SIDE + x] != wanted)
                    fail_msg("size %d, row %d, column %d: %g", (int)side, (int)y, (int)x, (double)out[y * SIDE + x]);
            }
    }
    tn_classifier_close(c);
}

static void folders_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *more, *how, *without;
        bool extra;
        const char *says;
    } wrong[] = {
        {",\"model_type\":\"bert\"", "", NULL, false, "classification supports vit"},
        {"", "", "query.bias", false, "no tensor 'encoder.layer.0.attention.attention.query.bias'"},
        {"", "", NULL, true, "'vit.extra.weight' is not known"},
        {",\"num_hidden_layers\":2", "", NULL, false, "no tensor 'encoder.layer.1"},
        {",\"num_attention_heads\":3", "", NULL, false,
         "'encoder.layer.0.attention.attention.query', [4, 4], does not"},
        {",\"qkv_bias\":false", "", NULL, false, "'qkv_bias' is false"},
        {",\"id2label\":{\"0\":\"cat\"}", "", NULL, false, "'id2label' has 1 classes, but the weights 3"},
        {",\"hidden_act\":\"mish\"", "", NULL, false, "mish"},
        {",\"depths\":[2000000000]", "", NULL, false, "'depths' must be"},
        {",\"model_type\":\"swin\",\"depths\":[1],\"num_heads\":[2]", "", NULL, false, "no tensor 'embeddings.patch"},
        {",\"qkv_bias\":\"no\"", "", NULL, false, "'qkv_bias' is no; it must be true or false"},
        {",\"window_size\":\"7\"", "", NULL, false, "'window_size' is 7; it must be an integer from 1"},
        {"", ",\"size\":16", NULL, false,
         "'embeddings.position_embeddings', [1, 5, 4], does not fit rows of [1, 17, 4]"},
        {"", ",\"size\":{\"height\":8}", NULL, false, "'size' must be"},
        {"", ",\"size\":5000", NULL, false, "'size' must be"},
        {"", ",\"size\":{\"shortest_edge\":8}", NULL, false, "neither cut nor resized"},
        {"", ",\"do_center_crop\":true", NULL, false, "'crop_size' must be"},
        {"", ",\"resample\":1", NULL, false, "'resample'"},
        {"", ",\"resample\":1e30", NULL, false, "'resample'"},
        {"", ",\"rescale_factor\":1e308", NULL, false, "too large for f32"},
        {"", ",\"image_std\":[1,0,1]", NULL, false, "the latter without a 0"},
        {"", ",\"image_mean\":[1]", NULL, false, "must be lists of 3 numbers"},
        {"", ",\"do_resize\":1", NULL, false, "'do_resize' is 1; it must be true or false"},
        {"", ",\"image_processor_type\":\"YolosImageProcessor\"", NULL, false, "'YolosImageProcessor'"},
    };
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        tn_classifier *c;
        const char *folder = make_folder(wrong[i].more, wrong[i].how, wrong[i].without, wrong[i].extra);
        if (tn_classifier_open(folder, NULL, &c) == TN_OK) fail_msg("row %zu opens", i);
        if (!strstr(tn_error(), wrong[i].says)) fail_msg("row %zu: %s", i, tn_error());
        if (strncmp(tn_error() + 1, folder, strlen(folder)) != 0) fail_msg("row %zu: %s", i, tn_error());
        assert_null(c);
    }
}

/* An edge of 8 would make 8 · 24 million pixels of it. */
static void long_pictures_are_refused(void **state) {
    (void)state;
    enum { WIDE = 3000000 };
    tn_classifier *c;
    float logits[CLASSES];
    const char *how = ",\"size\":{\"shortest_edge\":8},\"do_center_crop\":true,\"crop_size\":8";
    uint8_t *line = calloc(WIDE, 3);
    assert_non_null(line);
    assert_ok(tn_classifier_open(make_folder("", how, NULL, false), NULL, &c));
    assert_int_equal(tn_classifier_picture(c, line, 1, WIDE, logits), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "resized to 24000000 by 8");
    assert_ok(tn_classifier_picture(c, line, 1, 100, logits));
    tn_classifier_close(c);
    free(line);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    const char *folder = make_folder("", "", NULL, false);
    tn_status status = TN_ERR_MEMORY;
    float logits[CLASSES];
    fill_picture();
    for (int64_t n = 1; status != TN_OK && n < 500; n++) {
        tn_classifier *c;
        tn_txt_fail_at(n);
        status = tn_classifier_open(folder, NULL, &c);
        if (status == TN_OK) status = tn_classifier_picture(c, picture, SIDE, SIDE, logits);
        tn_classifier_close(c);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
    }
    assert_ok(status);
}

static void the_command_shows_labels(void **state) {
    (void)state;
    char line[1400], said[4000], path[600];
    const char *folder = make_folder("", "", NULL, false);
    snprintf(path, sizeof path, "%s/one.pgm", folder);
    write_file(path, "P2 2 2 255 1 90 200 30");
    snprintf(line, sizeof line, "%%s run %s %s --top 2 2>&1", folder, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    assert_true((strstr(said, "cat") != NULL) + (strstr(said, "dog") != NULL) + (strstr(said, "owl") != NULL) == 2);
    snprintf(line, sizeof line, "%%s run %s %s --random 2>&1", folder, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 2);
    assert_text_has(said, "--random applies to ONNX networks");
    snprintf(line, sizeof line, "%%s run %s README.md 2>&1", folder);
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "README.md");
    assert_null(strstr(strstr(said, "README.md") + 1, "README.md"));
    snprintf(line, sizeof line, "%%s run %s %s 2>&1", folder, folder);
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "is a folder; pass the path of a file");
    make_folder("", ",\"rescale_factor\":6e35", NULL, false);
    snprintf(line, sizeof line, "%%s run %s %s 2>&1", folder, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "is not a number");
}

/* In a folder below, as exporters put it: the mean of each channel, as three classes. */
static void exported_networks_are_given_what_the_folder_says(void **state) {
    (void)state;
    char line[1900], said[4000], path[600], net[700];
    const char *folder = make_folder("", "", NULL, false);
    snprintf(path, sizeof path, "%s/onnx", folder);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    snprintf(net, sizeof net, "%s/net.onnx", path);
    {
        TN_SCOPE;
        tn_tensor *x = tn_zeros(TN_DIMS(1, 3, SIDE, SIDE), TN_F32), *y = tn_mean(x, (int64_t[]){2, 3}, 2, false);
        assert_ok(tn_onnx_export(net, &(tn_named_tensor){"x", x}, 1, &(tn_named_tensor){"y", y}, 1, NULL));
    }
    snprintf(path, sizeof path, "%s/one.ppm", folder);
    write_file(path, "P3 1 1 255 255 0 51");
    snprintf(line, sizeof line, "%%s run %s %s --json 2>&1", net, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    assert_text_has(said, "[[{\"index\": 0, \"value\": 1, \"label\": \"cat\"}, {\"index\": 2, \"value\": -0.5999");
    snprintf(line, sizeof line, "%%s run %s %s --scale 1/51 2>&1", net, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    assert_text_has(said, "  0  5 ");
    char names[600];
    snprintf(names, sizeof names, "%s/names.txt", folder);
    write_file(names, "red\ngreen\nblue\n");
    snprintf(line, sizeof line, "%%s run %s %s --scale 1/51 --labels %s 2>&1", net, path, names);
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    assert_text_has(said, "  0  5  red\n");
    assert_text_has(said, "  2  1  blue\n");
    write_file(names, "red\ngreen\n");
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "has 2 lines, but the output has 3 classes");
    snprintf(line, sizeof line, "%s/config.json", folder);
    write_file(line, "{\"id2label\": {\"0\": \"cat\\u001b[31m\", \"1\": \"dog\", \"2\": \"owl\"}}");
    snprintf(line, sizeof line, "%%s run %s %s 2>&1", net, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    assert_text_has(said, "  0  1  cat?[31m\n");
    assert_text_has(said, "/onnx/../preprocessor_config.json' says\n");
    snprintf(line, sizeof line, "%s/config.json", folder);
    write_file(line, "not JSON");
    snprintf(line, sizeof line, "%%s run %s --random 2>&1", net); /* does not need the names */
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    snprintf(line, sizeof line, "%s/config.json", folder);
    assert_int_equal(remove(line), 0);
    write_in(folder, "preprocessor_config.json", preparation, ",\"image_processor_type\":\"CLIPImageProcessor\"");
    snprintf(line, sizeof line, "%%s run %s -i %s 2>&1", net, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "and ConvNext; --resize, --scale");
    write_in(folder, "preprocessor_config.json", preparation, ",\"size\":9");
    snprintf(line, sizeof line, "%%s run %s -i %s 2>&1", net, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "height 9 and width 9, which the input does not accept");
    snprintf(line, sizeof line, "%s/preprocessor_config.json", folder);
    assert_int_equal(remove(line), 0);
    snprintf(line, sizeof line, "%%s run %s %s 2>&1", net, path);
    assert_int_equal(run_trunnion(line, said, sizeof said), 0);
    assert_text_has(said, "no preprocessor_config.json beside it or one folder up");
    assert_text_has(said, "  2  0.2 ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_picture_of_the_right_size_is_only_scaled),
        cmocka_unit_test(crops_take_the_middle),
        cmocka_unit_test(folders_that_do_not_fit_are_refused),
        cmocka_unit_test(long_pictures_are_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(the_command_shows_labels),
        cmocka_unit_test(exported_networks_are_given_what_the_folder_says),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
