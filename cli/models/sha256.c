/* sha256.c — checksums of downloaded files. Source: FIPS 180-4, section 6.2. */
#include <ctype.h>
#include <string.h>

#include "cli/models/models.h"

enum { BLOCK = 64, ROUNDS = 64 };

static const uint32_t constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void add_block(uint32_t state[8], const unsigned char *block) {
    uint32_t w[ROUNDS], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < ROUNDS; i++) {
        uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t e = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25),
                 a = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
        uint32_t t = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
        uint32_t u = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t;
        s[0] = t + u;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

/* The last block or two: a 1, zeros, and the number of bits. */
static void add_end(uint32_t state[8], unsigned char *room, size_t left, uint64_t size) {
    size_t blocks = left < BLOCK - 8 ? 1 : 2;
    memset(room + left, 0, blocks * BLOCK - left);
    room[left] = 0x80;
    for (int i = 0; i < 8; i++)
        room[blocks * BLOCK - 1 - (size_t)i] = (unsigned char)(size * 8 >> 8 * i);
    for (size_t i = 0; i < blocks; i++)
        add_block(state, room + i * BLOCK);
}

bool models_sum(const char *path, char out[MODELS_SUM]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static unsigned char room[(1 << 16) + BLOCK]; /* one file at a time */
    uint64_t size = 0;
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    while ((n = fread(room, 1, sizeof room - BLOCK, f)) == sizeof room - BLOCK) {
        for (size_t i = 0; i < n; i += BLOCK)
            add_block(state, room + i);
        size += n;
    }
    bool read = !ferror(f);
    fclose(f);
    for (size_t i = 0; i + BLOCK <= n; i += BLOCK)
        add_block(state, room + i);
    memmove(room, room + n / BLOCK * BLOCK, n % BLOCK);
    add_end(state, room, n % BLOCK, size + n);
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", state[i]);
    return read;
}

bool models_is_sum(const char *text) {
    size_t n = 0;
    while (isxdigit((unsigned char)text[n]))
        n++;
    return n == MODELS_SUM - 1 && text[n] == 0;
}
