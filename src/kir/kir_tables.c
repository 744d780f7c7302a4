/* kir_tables.c — the two tables behind kir_math.h, computed with 1 400 bits of precision. */
#include "kir/kir_math.h"

/* The bits of 2/π behind the point, 32 a word: enough to reduce the largest double. */
const uint32_t kir_two_over_pi[42] = {
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561, 0xb7246e3a,
    0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41,
    0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf,
    0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08,
    0x56033046, 0xfc7b6bab, 0xf0cfbc20, 0x9af4361d, 0xa9e39161, 0x5ee61b08,
};

/* erf(x)/x on [k/4, k/4 + 1/4): column k holds the coefficients of a polynomial in x - (k/4 + 1/8). */
const double kir_erf_table[12][24] = {
    {
        0x1.1f5e1a35c3b89p+0, 0x1.13e08c7a16a26p+0, 0x1.fe8f1614e4ebbp-1, 0x1.cacbc181f7fbdp-1, 0x1.9450bb1ec6057p-1,
        0x1.611065fc93172p-1, 0x1.3448f8704c35dp-1, 0x1.0ee12190b194ap-1, 0x1.e09a79ee7db91p-2, 0x1.aed200cd67bebp-2,
        0x1.8603df090937fp-2, 0x1.64282886fef72p-2, 0x1.47ad3ff3018a1p-2, 0x1.2f6827c1b08c7p-2, 0x1.1a7b909ae7a4ap-2,
        0x1.08420fc7a4912p-2, 0x1.f07c1eda95279p-3, 0x1.d41d41cf4dd67p-3, 0x1.bacf914ba7405p-3, 0x1.a41a41a4107d2p-3,
        0x1.8f9c18f9c0d59p-3, 0x1.7d05f417d0530p-3, 0x1.6c16c16c16c0bp-3, 0x1.5c9882b931057p-3,
    },
    {
        -0x1.7d900b9e8e99dp-4, -0x1.09ac3c1b2b12ep-2, -0x1.7edef5d89a390p-2, -0x1.b293239599bcep-2,
        -0x1.ad1533f367888p-2, -0x1.82ad1810b6ca1p-2, -0x1.48b7c44d5257ep-2, -0x1.0e9e17d6132b9p-2,
        -0x1.b87061646fb5ep-3, -0x1.675759c9fb4b1p-3, -0x1.284241dbd5d39p-3, -0x1.ef1beecc9bf68p-4,
        -0x1.a35763ed2ef1bp-4, -0x1.6793ed0a040bcp-4, -0x1.37b3d82995263p-4, -0x1.10c83ad00a3f2p-4,
        -0x1.e170940df1a6dp-5, -0x1.abfd7d52cfe55p-5, -0x1.7ef8b4f1f4b5bp-5, -0x1.58b3150861808p-5,
        -0x1.37e3fa845f2f0p-5, -0x1.1b8d5c5927d1dp-5, -0x1.02e85c089895cp-5, -0x1.daaefe42fbee1p-6,
    },
    {
        -0x1.766bd13cfd364p-2, -0x1.276ba5c06230cp-2, -0x1.5275c582e56b4p-3, -0x1.4574d9b084e36p-5,
        0x1.bbf4930fce64dp-5,  0x1.ab151a7968662p-4,  0x1.df8987f776673p-4,  0x1.b7e9ea2ad6b03p-4,
        0x1.6bfb99623df33p-4,  0x1.1e314dd8ef1e7p-4,  0x1.ba09e2a359a4bp-5,  0x1.560bd27a00b13p-5,
        0x1.0bd914bd58699p-5,  0x1.a9f5181df9bf6p-6,  0x1.57e94aec0277cp-6,  0x1.199374fd5811cp-6,
        0x1.d2d9631bba9ffp-7,  0x1.874e1da4a1d21p-7,  0x1.4b37f532200bdp-7,  0x1.1ad4946c8e15fp-7,
        0x1.e6da80c9c4e65p-8,  0x1.a607fa9040652p-8,  0x1.703966729a5c0p-8,  0x1.433055f723081p-8,
    },
    {
        0x1.c5a8e00e819adp-5,   0x1.24d6bbb463b89p-3,   0x1.671c4f2a788d7p-3,   0x1.367b5cb82fe0ap-3,
        0x1.8a284b2850403p-4,   0x1.3fc0da03d329fp-5,   -0x1.685f0e5ab0e92p-10, -0x1.5d2c61901059ap-6,
        -0x1.ae6bfd18b4b59p-6,  -0x1.8349c312caa89p-6,  -0x1.3244824951e73p-6,  -0x1.cac3dca96ce88p-7,
        -0x1.52a6a0f70f6abp-7,  -0x1.f70a65d7c895bp-8,  -0x1.7b2696397c885p-8,  -0x1.229a7defb8fffp-8,
        -0x1.c4afa67cbf3f1p-9,  -0x1.65c33d4fae072p-9,  -0x1.1e7586d0ebbf6p-9,  -0x1.d021c2acf2b72p-10,
        -0x1.7bfbb56f0dd6bp-10, -0x1.3a11d836c362ep-10, -0x1.05d92c67eb325p-10, -0x1.b8163e974bcafp-11,
    },
    {
        0x1.b4c1668ccda53p-4,   0x1.01ba55d8a0fc4p-4,  0x1.d2c79427d821ap-10, -0x1.6f0e9906759e8p-5,
        -0x1.f10767cbff7b8p-5,  -0x1.9e43d4cd90e39p-5, -0x1.e76d9755b9d9ap-6, -0x1.6e17e7236d9f7p-7,
        -0x1.632497dfac29ap-15, 0x1.21e01ef7b353ap-8,  0x1.4b850d127b51dp-8,  0x1.143ef76de47a2p-8,
        0x1.9a16385aaf71fp-9,   0x1.2496775d6431fp-9,  0x1.a01e86c678b9fp-10, 0x1.2b939293510bfp-10,
        0x1.b6d7faa5fca90p-11,  0x1.471491d6448b0p-11, 0x1.ef7e269c5cb74p-12, 0x1.7cd36372f06d2p-12,
        0x1.28927e9c8d589p-12,  0x1.d373dc3216f36p-13, 0x1.7468119da0519p-13, 0x1.2ba23581cc00ep-13,
    },
    {
        -0x1.40e089dc9c8cfp-6,  -0x1.7d1fdd6ddee04p-5,  -0x1.7ea6ec34a608dp-5,  -0x1.a399dc43eae43p-6,
        -0x1.2f7c0870834e4p-11, 0x1.dbc14cd477fbdp-7,   0x1.166e31fed2750p-6,   0x1.8b92ad96c91a4p-7,
        0x1.82ac17a77f0ffp-8,   0x1.b23f6f0b8889bp-10,  -0x1.4fd3da642b1a7p-12, -0x1.c8407f1730c81p-11,
        -0x1.ac1cef18c8e9bp-11, -0x1.41544bb9e36d8p-11, -0x1.bfb6a751ccc44p-12, -0x1.3304d662327f0p-12,
        -0x1.a8ccafeb02c6ep-13, -0x1.2aefa8fbb3c9fp-13, -0x1.ac81b747991a5p-14, -0x1.3878270b4c2b6p-14,
        -0x1.cef102dc1791ap-15, -0x1.5bdf2392e3bedp-15, -0x1.08d28970bc286p-15, -0x1.980302054f726p-16,
    },
    {
        -0x1.9370e545ea0a9p-6, -0x1.390f043fd811cp-7, 0x1.195022c59b3edp-7,   0x1.1d696327f4b1ep-6,
        0x1.d56744803fe67p-7,  0x1.6c40e68189126p-8,  -0x1.a015dce0b7eefp-10, -0x1.167532decdaa6p-8,
        -0x1.dc45f4b92c2e0p-9, -0x1.0747f23dc78e1p-9, -0x1.80ca495a56398p-11, -0x1.89abc07a043f7p-14,
        0x1.e8e1d8705a8d4p-14, 0x1.21dc0102b4715p-13, 0x1.c04aa23624076p-14,  0x1.332885db60d71p-14,
        0x1.985b5f8032541p-15, 0x1.10c049b14af13p-15, 0x1.72728a54d450bp-16,  0x1.005df6c47caedp-16,
        0x1.695102d59c367p-17, 0x1.02e181c8c4843p-17, 0x1.78a2e238b9f70p-18,  0x1.15cb943638c24p-18,
    },
    {
        0x1.496aefcd9eb9cp-8,   0x1.65d15009ef6e5p-7,   0x1.172f2645e5001p-7,   0x1.60322872f6eb1p-10,
        -0x1.12da4d66f42d5p-8,  -0x1.4c8c39fe9b5bdp-8,  -0x1.72cb5ae714223p-9,  -0x1.7bfc034021a0dp-12,
        0x1.b352fd7cd3d4bp-11,  0x1.d6a200c82580bp-11,  0x1.1a935fff70062p-11,  0x1.c606df884d6a9p-13,
        0x1.9271ebc2a2076p-15,  -0x1.6635238f94cdfp-17, -0x1.5cd01d8325ee5p-16, -0x1.1a49496f82535p-16,
        -0x1.7dfe7b26e205cp-17, -0x1.edf42b207d353p-18, -0x1.3faefb29f7c04p-18, -0x1.a486e5e331e67p-19,
        -0x1.19fbce91468a0p-19, -0x1.814eb180045b8p-20, -0x1.0bd4762dacd26p-20, -0x1.7a463957c5ef2p-21,
    },
    {
        0x1.2fe7fbf38b4afp-8,   0x1.cc3da8dd02d1cp-11,  -0x1.8093c2fdeae3fp-9,  -0x1.ddcbb0144a15ap-9,
        -0x1.ac233f0ee103ap-10, 0x1.361199d92df51p-11,  0x1.6b5aafca2284fp-10,  0x1.f554fa8cfdc9bp-11,
        0x1.10e750662bcd9p-12,  -0x1.0c0802e8f0739p-13, -0x1.92eac802a8561p-13, -0x1.00d84c0b10790p-13,
        -0x1.ab759924749a9p-15, -0x1.b7261676ac153p-17, 0x1.a004437ef8014p-23,  0x1.7c3467b3e4eeap-19,
        0x1.44f5d3603a5c6p-19,  0x1.b282513fd1411p-20,  0x1.11c118bf668c1p-20,  0x1.584dc6956cb0fp-21,
        0x1.b7febaf5af023p-22,  0x1.1eb8f8d98211dp-22,  0x1.7ce90930fecaap-23,  0x1.018c4d8166d0ep-23,
    },
    {
        -0x1.0ac390b349d6dp-10, -0x1.077631f14e4b2p-9,  -0x1.25427c53aca9dp-10, 0x1.d182d61438f5fp-12,
        0x1.28a0670e916fbp-10,  0x1.7823f78ff73abp-11,  0x1.fc01101144b1cp-17,  -0x1.4c27f2a0e414bp-12,
        -0x1.0f69b49aa4c6ep-12, -0x1.7260346a9eec1p-14, 0x1.f93211d20ed6ap-17,  0x1.3641a4342a47ap-15,
        0x1.9a3685d7bdc65p-16,  0x1.558a95eae298ep-17,  0x1.6d218472b72f5p-19,  0x1.63bde3b1744f3p-23,
        -0x1.7fe0c79e7ad34p-22, -0x1.59a49d4e3c694p-22, -0x1.c7761b87c03a9p-23, -0x1.17d6465dc6164p-23,
        -0x1.56bd303fe62bdp-24, -0x1.aa9adfcc59af8p-25, -0x1.0edb299f53f59p-25, -0x1.5eb39b0d59f64p-26,
    },
    {
        -0x1.7e6f48e68bc35p-11, 0x1.cd5fdeee9277bp-20,  0x1.3feed3e16a6d4p-11,  0x1.0edde0f66ed29p-11,
        0x1.5aa2ff4b6afddp-16,  -0x1.29f3a37e9f6dap-12, -0x1.dd6faaa502da5p-13, -0x1.4d593dfda39d3p-15,
        0x1.09d7772636f0fp-14,  0x1.f7a7c789e38adp-15,  0x1.7a2b5433e40f5p-16,  -0x1.32555ef2a7148p-20,
        -0x1.b732f2412f239p-18, -0x1.25f597f9f955bp-18, -0x1.df0480dcf6dc4p-20, -0x1.fd466ceaacf24p-22,
        -0x1.7b8ecbe56e0dfp-25, 0x1.6c563a0f5a95bp-25,  0x1.564506329c891p-25,  0x1.bb15e87037e35p-26,
        0x1.09a6ce401e36dp-26,  0x1.3d72a217be33ap-27,  0x1.81ae7400ae7d6p-28,  0x1.de2ea12aef632p-29,
    },
    {
        0x1.630b28fe2bc0dp-13,  0x1.3d17fd4516697p-12,  0x1.a7bb6a902a86ap-14,  -0x1.32a6bca915da5p-13,
        -0x1.6c14e4c59e8a0p-13, -0x1.4356e21a10a45p-15, 0x1.06c156b86e687p-14,  0x1.f74cbcd60560bp-15,
        0x1.eaaa6ba481ef2p-17,  -0x1.8f9f90c5e8353p-17, -0x1.a1a3df410c8b2p-17, -0x1.3dcd2cebe81c6p-18,
        0x1.b74641d594dfap-25,  0x1.269836bee8690p-20,  0x1.7e7e5b08b8b1cp-21,  0x1.28892809a6f52p-22,
        0x1.2d8733a2477e5p-24,  0x1.e208fba8fa173p-28,  -0x1.52c58fb6d3b29p-28, -0x1.3e16ba03ab185p-28,
        -0x1.911df1ae6908fp-29, -0x1.d514639ac1663p-30, -0x1.11e6876a7e030p-30, -0x1.45814c355e16ep-31,
    },
};

/* A 32-bit window of a little-endian number of `limbs` words whose top bit is bit `top`, counted from 0. */
static uint32_t kir_window(const uint32_t *number, int top) {
    int low = top - 31;
    uint64_t pair = 0;
    int word = low >> 5, shift = low & 31;
    pair = number[word] | (uint64_t)number[word + 1] << 32;
    return (uint32_t)(pair >> shift);
}

/* number = mantissa · six words of 2/π, the first of them words[0]; least significant limb first. */
static void kir_times_words(uint64_t mantissa, const uint32_t *words, uint32_t number[9]) {
    uint64_t low = mantissa & 0xffffffff, high = mantissa >> 32, carry = 0;
    for (int i = 0; i < 9; i++)
        number[i] = 0;
    for (int i = 0; i < 6; i++) {
        uint64_t sum = low * words[5 - i] + number[i] + carry;
        number[i] = (uint32_t)sum;
        carry = sum >> 32;
    }
    number[6] = (uint32_t)carry;
    carry = 0;
    for (int i = 0; i < 6; i++) {
        uint64_t sum = high * words[5 - i] + number[i + 1] + carry;
        number[i + 1] = (uint32_t)sum;
        carry = sum >> 32;
    }
    number[7] = (uint32_t)carry;
}

/* Payne and Hanek's reduction: only those words of 2/π matter whose product with x is neither a multiple of 4 nor far
 * below the remaining fraction. */
double kir_reduce_large(double x, int64_t *quadrant) {
    uint64_t bits = kir_bits_f64(x);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1075; /* |x| = mantissa · 2^exponent */
    uint64_t mantissa = (bits & 0xfffffffffffff) | (uint64_t)1 << 52;
    int first = exponent < 32 ? 0 : (exponent - 2) / 32;
    uint32_t number[9];
    kir_times_words(mantissa, kir_two_over_pi + first, number);
    int point = 32 * (first + 6) - exponent; /* bits behind the point */
    int64_t whole = kir_window(number, point + 31) & 3;
    uint64_t high = (uint64_t)kir_window(number, point - 1) << 32 | kir_window(number, point - 33);
    uint64_t low = (uint64_t)kir_window(number, point - 65) << 32 | kir_window(number, point - 97);
    bool above_half = high >> 63;
    if (above_half) {
        high = ~high;
        low = ~low;
        whole++;
    }
    double turn = (double)high * 0x1p-64 + (double)low * 0x1p-128;
    double r = turn * 0x1.921fb54442d18p+0;
    if (above_half != (x < 0)) r = -r;
    *quadrant = x < 0 ? -whole : whole;
    return r;
}
