/* convert_mix.c — the mixed types of `convert --quantize`: most matrices in one K type, those that errors harm most in
 * a larger one.
 *
 * The rules are llama.cpp's (llama_tensor_get_type, without those for Falcon and for eight experts), so that a file has
 * the size and the quality that its name makes people expect. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/convert/convert.h"

struct convert_mix {
    const char *name;
    tn_dtype base;
    int file_type; /* general.file_type */
    enum { MIX_3S, MIX_3M, MIX_3L, MIX_4S, MIX_4M, MIX_5S, MIX_5M } kind;
};
static const struct convert_mix mixes[] = {
    {"Q3_K_S", TN_Q3_K, 11, MIX_3S}, {"Q3_K_M", TN_Q3_K, 12, MIX_3M}, {"Q3_K_L", TN_Q3_K, 13, MIX_3L},
    {"Q4_K_S", TN_Q4_K, 14, MIX_4S}, {"Q4_K_M", TN_Q4_K, 15, MIX_4M}, {"Q5_K_S", TN_Q5_K, 16, MIX_5S},
    {"Q5_K_M", TN_Q5_K, 17, MIX_5M},
};
enum { MIXES = sizeof mixes / sizeof *mixes };

bool convert_parse_mix(const char *text, convert_wishes *w) {
    for (int i = 0; i < MIXES; i++)
        if (strcasecmp(mixes[i].name, text) == 0) {
            w->mix = &mixes[i];
            w->to = mixes[i].base;
            return true;
        }
    return false;
}

int convert_mix_file_type(const convert_wishes *w) { return w->mix->file_type; }

/* "blk.7.attn_v.weight": 7, and what follows; -1: none of a layer. */
static int64_t layer_of(const char *name, const char **rest) {
    char *end;
    *rest = name;
    if (strncmp(name, "blk.", 4) != 0) return -1;
    int64_t layer = strtoll(name + 4, &end, 10);
    *rest = *end == '.' ? end + 1 : end;
    return layer;
}

tn_status convert_mix_open(const convert_file *in, convert_wishes *w) {
    const char *rest;
    w->tied = true;
    for (int64_t i = 0; w->mix && i < in->count; i++) {
        convert_tensor t;
        TRY(convert_at(in, i, &t));
        int64_t layer = layer_of(t.name, &rest);
        if (layer >= w->layers) w->layers = layer + 1;
        if (strcmp(t.name, "output.weight") == 0) w->tied = false;
    }
    return TN_OK;
}

/* The first and the last eighth of the layers, and every third between. */
static bool is_eager(int64_t layer, int64_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* Matrices that need more bits, in the first layers most of all. */
static tn_dtype type_by_layer(const convert_wishes *w, int64_t layer, int64_t first_3m, int64_t first_4s) {
    switch (w->mix->kind) {
    case MIX_3M: return layer < first_3m ? TN_Q5_K : TN_Q4_K;
    case MIX_3L: return TN_Q5_K;
    case MIX_4S: return layer < first_4s ? TN_Q5_K : TN_Q4_K;
    case MIX_4M:
    case MIX_5M: return is_eager(layer, w->layers) ? TN_Q6_K : w->mix->base;
    default: return w->mix->base;
    }
}

static tn_dtype type_of_output(const convert_wishes *w) {
    switch (w->mix->kind) {
    case MIX_3M: return TN_Q4_K;
    case MIX_3L: return TN_Q5_K;
    default: return w->mix->base;
    }
}

static tn_dtype type_of_joined(const convert_wishes *w) {
    switch (w->mix->kind) {
    case MIX_3M:
    case MIX_3L: return TN_Q4_K;
    case MIX_4M: return TN_Q5_K;
    case MIX_5M: return TN_Q6_K;
    default: return w->mix->base;
    }
}

tn_dtype convert_mix_type(const convert_wishes *w, const convert_tensor *t) {
    const char *rest;
    int64_t layer = layer_of(t->name, &rest);
    if (strcmp(t->name, w->tied ? "token_embd.weight" : "output.weight") == 0) return TN_Q6_K;
    if (layer < 0) return w->mix->base;
    if (strcmp(rest, "attn_v.weight") == 0) return type_by_layer(w, layer, 2, 4);
    if (strncmp(rest, "ffn_down", 8) == 0) return type_by_layer(w, layer, w->layers / 16, w->layers / 8);
    if (strcmp(rest, "attn_output.weight") == 0) return type_of_output(w);
    return strcmp(rest, "attn_qkv.weight") == 0 ? type_of_joined(w) : w->mix->base;
}
