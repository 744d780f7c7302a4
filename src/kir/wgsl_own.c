/* wgsl_own.c — WGSL that no kernel program comes to: copies of bytes, what a device makes of numbers,
 * and whether a text has a kernel. See wgsl.h. */
#include <string.h>

#include "kir/wgsl.h"

bool kir_wgsl_has_entry(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name))
        if (at - text >= 3 && !memcmp(at - 3, "fn ", 3) && at[n] == '(') return true;
    return false;
}

const char kir_wgsl_patch[] =
    "@compute @workgroup_size(64) fn patch_words(@builtin(global_invocation_id) id: vec3<u32>) {\n"
    "    let i = id.x + id.y * p[2].z;\n"
    "    if (i >= p[1].x) { return; }\n"
    "    var mask = 0xffffffffu;\n"
    "    if (i == 0u) { mask &= p[1].y; }\n"
    "    if (i + 1u == p[1].x) { mask &= p[1].z; }\n"
    "    var v = p[2].x;\n"
    "    if (p[1].w != 0u) {\n"
    "        let byte = p[0].z + p[2].y + i * 4u;\n"
    "        let shift = byte % 4u * 8u;\n"
    "        v = word1(byte / 4u) >> shift;\n"
    "        if (shift != 0u) { v |= word1(byte / 4u + 1u) << (32u - shift); }\n"
    "    }\n"
    "    let at = p[0].x / 4u + i;\n"
    "    put0(at, (word0(at) & ~mask) | (v & mask));\n"
    "}\n";

/* What a device makes of numbers, and what IEEE 754 has it be. First (1 + 2^-12)² - (1 + 2^-11), which is 2^-24 where
 * fma() rounds once, and 0 where it rounds the product first; then what becomes halves, and halves that become floats:
 * ties, the ends of the range, what lies beyond, denormals. */
const char kir_wgsl_ask[] =
    "fn x(i: u32) -> f32 { return bitcast<f32>(word0(i)); }\n"
    "@compute @workgroup_size(1) fn ask() {\n"
    "    put0(0u, bitcast<u32>(fma(x(0u), x(1u), x(2u))));\n"
    "    for (var i = 3u; i < 13u; i++) { put0(i, pack2x16float(vec2<f32>(x(i), 0.0f)) & 0xffffu); }\n"
    "    for (var i = 13u; i < 18u; i++) { put0(i, bitcast<u32>(unpack2x16float(word0(i)).x)); }\n"
    "}\n";
const uint32_t kir_wgsl_asked[KIR_WGSL_ASKED] = {0x3f800800, 0x3f800800, 0xbf801000, 0x3f801000, 0x3f803000, 0x477fefff,
                                                 0x477ff000, 0x501502f9, 0xff800000, 0xb3800000, 0x33000000, 0x33400000,
                                                 0x387fe000, 0x0001,     0x83ff,     0x7bff,     0xfc00,     0x8000};
static const uint32_t RIGHT[KIR_WGSL_ASKED] = {0x33800000, 0x3f800800, 0xbf801000, 0x3c00,     0x3c02,     0x7bff,
                                               0x7c00,     0x7c00,     0xfc00,     0x8001,     0x0000,     0x0001,
                                               0x0400,     0x33800000, 0xb87fc000, 0x477fe000, 0xff800000, 0x80000000};

kir_wgsl_answer kir_wgsl_judge(const uint32_t said[KIR_WGSL_ASKED]) {
    return (kir_wgsl_answer){said[0] == RIGHT[0], !memcmp(said + 1, RIGHT + 1, sizeof RIGHT - sizeof RIGHT[0])};
}
