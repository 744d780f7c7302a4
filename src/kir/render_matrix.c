/* render_matrix.c — matrices and packets in C's family of languages: the functions that stand in a source for them, and
 * the instructions as calls of these.
 *
 * Each language has one text: types mat_c (a matrix of 16×16 sums), mat_f16, mat_bf16 and mat_tf32 (fragments),
 * mat_packet, and mat_zero, mat_load<kind>, mat_mul, mat_store, mat_fetch, mat_put, mat_copy (a late PUT), mat_commit,
 * mat_wait. How a subgroup's items share a matrix is known here and nowhere else: CUDA's from PTX's tables of mma and
 * ldmatrix, AMD's from those of v_mfma_f32_16x16x16 (64 items) and v_wmma_f32_16x16x16 (32 items); Metal keeps it to
 * itself. The instructions proper are functions called ptx_… and amd_…; a compiler that makes no code for these
 * machines must be given them (the tests' doubles do). */
#include "kir/render_text.h"
#include "kir/rules.h"

#include <stdio.h>

/* Packets as CUDA and HIP have them alike. */
#define PACKETS                                                  \
    "MAT mat_packet mat_fetch(const void *from, bool there) {\n" \
    "    mat_packet v = {{0, 0, 0, 0}};\n"                       \
    "    if (there) v = *(const mat_packet *)from;\n"            \
    "    return v;\n"                                            \
    "}\n"                                                        \
    "MAT void mat_put(void *to, const mat_packet &v) { *(mat_packet *)to = v; }\n"

/* ldmatrix gives item i of each eight the i-th row of an 8×8 square: those of two squares below each other, and of two
 * beside them (`down`), or the other way round. With .trans it hands out columns. So all four kinds are one. */
const char kir_matrix_cuda[] =
    "#define MAT static __device__ inline __attribute__((always_inline))\n"
    "#ifdef __CUDA_ARCH__\n"
    "MAT unsigned ptx_shared(const void *p) {\n"
    "    unsigned long long at;\n"
    "    asm(\"cvta.to.shared.u64 %0, %1;\" : \"=l\"(at) : \"l\"(p));\n"
    "    return (unsigned)at;\n"
    "}\n"
    "#define PTX_LDMATRIX(name, how) \\\n"
    "    MAT void name(unsigned *e, const void *p) { \\\n"
    "        asm volatile(\"ldmatrix.sync.aligned.m8n8.x4\" how \".shared.b16 {%0, %1, %2, %3}, [%4];\" \\\n"
    "                     : \"=r\"(e[0]), \"=r\"(e[1]), \"=r\"(e[2]), \"=r\"(e[3]) : \"r\"(ptx_shared(p))); \\\n"
    "    }\n"
    "PTX_LDMATRIX(ptx_ldmatrix_x4, \"\")\n"
    "PTX_LDMATRIX(ptx_ldmatrix_x4_trans, \".trans\")\n"
    "#define PTX_MMA(name, type) \\\n"
    "    MAT void name(float *c, const unsigned *a, const unsigned *b) { \\\n"
    "        asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.\" type \".\" type \".f32 {%0, %1, %2, %3}, \" \\\n"
    "                     \"{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\" \\\n"
    "                     : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) \\\n"
    "                     : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1])); \\\n"
    "    }\n"
    "PTX_MMA(ptx_mma_f16, \"f16\")\n"
    "PTX_MMA(ptx_mma_bf16, \"bf16\")\n"
    "MAT void ptx_mma_tf32(float *c, const unsigned *a, const unsigned *b) {\n"
    "    asm volatile(\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, \"\n"
    "                 \"{%8, %9}, {%0, %1, %2, %3};\"\n"
    "                 : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3])\n"
    "                 : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1]));\n"
    "}\n"
    "MAT unsigned ptx_tf32(float x) {\n"
    "    unsigned r;\n"
    "    asm(\"cvt.rna.tf32.f32 %0, %1;\" : \"=r\"(r) : \"f\"(x));\n"
    "    return r;\n"
    "}\n"
    "MAT void ptx_cp_async_16(void *to, const void *from, int bytes) {\n"
    "    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\"\n"
    "                 :: \"r\"(ptx_shared(to)), \"l\"(from), \"r\"(bytes) : \"memory\");\n"
    "}\n"
    "MAT void ptx_cp_async_commit() { asm volatile(\"cp.async.commit_group;\" ::: \"memory\"); }\n"
    "template <int N> MAT void ptx_cp_async_wait() { asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(N) : "
    "\"memory\"); }\n"
    "#endif\n"
    "struct mat_c { float e[8]; };\n"
    "template <int B> struct mat_factor { unsigned e[4]; };\n"
    "typedef mat_factor<0> mat_f16;\n"
    "typedef mat_factor<1> mat_bf16;\n"
    "struct __attribute__((aligned(16))) mat_packet { unsigned e[4]; };\n"
    "MAT void mat_zero(mat_c &c) {\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < 8; i++) c.e[i] = 0.0f;\n"
    "}\n"
    "template <int KIND, int B> MAT void mat_load(mat_factor<B> &f, const unsigned short *p, int line) {\n"
    "    const int lane = threadIdx.x & 31, low = lane & 7, one = lane >> 3 & 1, two = lane >> 4;\n"
    "    const bool down = KIND == 2 || KIND == 1;\n"
    "    p += (low + 8 * (down ? one : two)) * line + 8 * (down ? two : one);\n"
    "    if (KIND & 2) ptx_ldmatrix_x4(f.e, p);\n"
    "    else ptx_ldmatrix_x4_trans(f.e, p);\n"
    "}\n"
    "MAT void mat_mul(mat_c &c, const mat_f16 &a, const mat_f16 &b) {\n"
    "    ptx_mma_f16(c.e, a.e, b.e);\n"
    "    ptx_mma_f16(c.e + 4, a.e, b.e + 2);\n"
    "}\n"
    "MAT void mat_mul(mat_c &c, const mat_bf16 &a, const mat_bf16 &b) {\n"
    "    ptx_mma_bf16(c.e, a.e, b.e);\n"
    "    ptx_mma_bf16(c.e + 4, a.e, b.e + 2);\n"
    "}\n"
    "struct mat_tf32 { unsigned e[8]; };\n"
    "template <int KIND> MAT void mat_load(mat_tf32 &f, const float *p, int line) {\n"
    "    const int lane = threadIdx.x & 31;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < 8; i++) {\n"
    "        const int across = (lane >> 2) + 8 * (KIND & 1 ? i >> 2 : i & 1);\n"
    "        const int k = (lane & 3) + (KIND & 1 ? 4 * (i & 1) + 8 * (i >> 1 & 1) : 4 * (i >> 1 & 1) + 8 * (i >> "
    "2));\n"
    "        f.e[i] = ptx_tf32(KIND & 2 ? p[across * line + k] : p[k * line + across]);\n"
    "    }\n"
    "}\n"
    "MAT void mat_mul(mat_c &c, const mat_tf32 &a, const mat_tf32 &b) {\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < 4; i++) ptx_mma_tf32(c.e + 4 * (i & 1), a.e + 4 * (i >> 1), b.e + 4 * (i & 1) + 2 * (i >> "
    "1));\n"
    "}\n"
    "MAT void mat_store(float *p, int line, const mat_c &c) {\n"
    "    const int lane = threadIdx.x & 31;\n"
    "    p += (lane >> 2) * line + (lane & 3) * 2;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < 8; i++) p[(i >> 1 & 1) * 8 * line + (i >> 2) * 8 + (i & 1)] = c.e[i];\n"
    "}\n" PACKETS
    "MAT void mat_copy(void *to, const void *from, bool there) { ptx_cp_async_16(to, from, there ? 16 : 0); }\n"
    "MAT void mat_commit() { ptx_cp_async_commit(); }\n"
    "template <int N> MAT void mat_wait() { ptx_cp_async_wait<N>(); }\n";

/* Wide matrices by wgmma (PTX for sm_90a), whose factors come out of workgroup memory, told of by a descriptor: their
 * address, and two distances, all in units of 16 bytes. Without swizzling squares of 8 packets, one below the other,
 * stand apart as those say: along k and across, with lines that go across, packet by packet, or the other way round.
 * What items have written must be published to it; before a batch its sums must be no other instruction's. Item t of
 * each 32 has of 16 rows those of t / 4 and 8 more, of each 8 columns those of 2 (t mod 4) and the next one. */
const char kir_wide_cuda[] =
    "#ifdef __CUDA_ARCH__\n"
    "#define P10(t) \"%\" #t \"0, %\" #t \"1, %\" #t \"2, %\" #t \"3, %\" #t \"4, %\" #t \"5, %\" #t \"6, %\" #t \"7, "
    "%\" #t \"8, %\" #t \"9, \"\n"
    "#define P60 P10() P10(1) P10(2) P10(3) P10(4) P10(5)\n"
    "#define S4(i) \"+f\"(c[i]), \"+f\"(c[i + 1]), \"+f\"(c[i + 2]), \"+f\"(c[i + 3])\n"
    "#define S16(i) S4(i), S4(i + 4), S4(i + 8), S4(i + 12)\n"
    "#define S64(i) S16(i), S16(i + 16), S16(i + 32), S16(i + 48)\n"
    "#define PTX_WGMMA(name, columns, type, places, sums, x, y, one, ta, tb) \\\n"
    "    template <int TA, int TB> MAT void name(float *c, unsigned long long a, unsigned long long b) { \\\n"
    "        asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, \" one \", 0;\\n\" \\\n"
    "                     \"wgmma.mma_async.sync.aligned.m64n\" columns \"k16.f32.\" type \".\" type \\\n"
    "                     \" {\" places \"}, \" \\\n"
    "                     x \", \" y \", p, 1, 1, \" ta \", \" tb \";\\n}\" \\\n"
    "                     : sums : \"l\"(a), \"l\"(b), \"r\"(1), \"n\"(TA), \"n\"(TB)); \\\n"
    "    }\n"
    "#define PTX_WGMMAS(type) \\\n"
    "    PTX_WGMMA(ptx_wgmma_256_##type, \"256\", #type, P60 P10(6) P10(7) P10(8) P10(9) P10(10) P10(11) \\\n"
    "              \"%120, %121, %122, %123, %124, %125, %126, %127\", S64(0) MAT_AND S64(64), \\\n"
    "              \"%128\", \"%129\", \"%130\", \"%131\", \"%132\") \\\n"
    "    PTX_WGMMA(ptx_wgmma_128_##type, \"128\", #type, P60 \"%60, %61, %62, %63\", S64(0), \\\n"
    "              \"%64\", \"%65\", \"%66\", \"%67\", \"%68\")\n"
    "#define MAT_AND ,\n"
    "PTX_WGMMAS(f16)\n"
    "PTX_WGMMAS(bf16)\n"
    "MAT void ptx_wgmma_fence() { asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\"); }\n"
    "MAT void ptx_wgmma_commit() { asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\"); }\n"
    "template <int N> MAT void ptx_wgmma_wait() { asm volatile(\"wgmma.wait_group.sync.aligned %0;\" :: \"n\"(N) : "
    "\"memory\"); }\n"
    "MAT void ptx_publish() { asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\"); }\n"
    "MAT void ptx_hold(float &x) { asm volatile(\"\" : \"+f\"(x) :: \"memory\"); }\n"
    "#endif\n"
    "template <int N> struct mat_wide { float e[N / 2]; };\n"
    "template <int B, int T> struct mat_place { unsigned long long at; };\n"
    "template <int N> MAT void mat_zero(mat_wide<N> &c) {\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < N / 2; i++) c.e[i] = 0.0f;\n"
    "}\n"
    "template <int N> MAT void mat_hold(mat_wide<N> &c) {\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < N / 2; i++) ptx_hold(c.e[i]);\n"
    "}\n"
    "template <int B, int T> MAT mat_place<B, T> mat_factor_at(const unsigned short *p, int pitch) {\n"
    "    const unsigned long long lines = 128 >> 4, packets = pitch >> 3;\n"
    "    return {(ptx_shared(p) & 0x3ffff) >> 4 | (T ? lines : packets) << 16 | (T ? packets : lines) << 32};\n"
    "}\n"
    "#define MAT_WIDE(columns, type, brain) \\\n"
    "    template <int TA, int TB> \\\n"
    "    MAT void mat_mul(mat_wide<columns> &c, mat_place<brain, TA> a, mat_place<brain, TB> b) { \\\n"
    "        ptx_wgmma_##columns##_##type<TA, TB>(c.e, a.at, b.at); \\\n"
    "    }\n"
    "MAT_WIDE(256, f16, 0)\n"
    "MAT_WIDE(256, bf16, 1)\n"
    "MAT_WIDE(128, f16, 0)\n"
    "MAT_WIDE(128, bf16, 1)\n"
    "template <int FROM, int N> MAT void mat_store(float *p, int line, const mat_wide<N> &c) {\n"
    "    const int lane = threadIdx.x & 31;\n"
    "    p += ((threadIdx.x >> 5 & 3) * 16 + (lane >> 2)) * line + (lane & 3) * 2;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < 8; i++) p[(i >> 1 & 1) * 8 * line + (i >> 2) * 8 + (i & 1)] = c.e[FROM / 2 + i];\n"
    "}\n"
    "MAT void mat_publish() { ptx_publish(); }\n";

/* An item has elements of one row or column of a factor: with MFMA every fourth of k, with WMMA all of them. */
const char kir_matrix_hip[] =
    "#define MAT static __device__ inline __attribute__((always_inline))\n"
    "#if MAT_LANES == 64\n"
    "enum { MAT_K = 4, MAT_ROWS = 4 };\n"
    "#else\n"
    "enum { MAT_K = 16, MAT_ROWS = 8 };\n"
    "#endif\n"
    "typedef short mat_s __attribute__((vector_size(2 * MAT_K)));\n"
    "typedef float mat_v __attribute__((vector_size(4 * MAT_ROWS)));\n"
    "#ifdef __AMDGCN__\n"
    "typedef _Float16 mat_h __attribute__((ext_vector_type(MAT_K)));\n"
    "#if MAT_LANES == 64\n"
    "MAT mat_v amd_mma_f16(mat_s a, mat_s b, mat_v c) {\n"
    "    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(mat_h, a), __builtin_bit_cast(mat_h, b), c, "
    "0, "
    "0, 0);\n"
    "}\n"
    "MAT mat_v amd_mma_bf16(mat_s a, mat_s b, mat_v c) {\n"
    "    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);\n"
    "}\n"
    "#else\n"
    "MAT mat_v amd_mma_f16(mat_s a, mat_s b, mat_v c) {\n"
    "    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(mat_h, a), __builtin_bit_cast(mat_h, b), "
    "c);\n"
    "}\n"
    "MAT mat_v amd_mma_bf16(mat_s a, mat_s b, mat_v c) {\n"
    "    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c);\n"
    "}\n"
    "#endif\n"
    "#endif\n"
    "struct mat_c { mat_v e; };\n"
    "template <int B> struct mat_factor { mat_s e; };\n"
    "typedef mat_factor<0> mat_f16;\n"
    "typedef mat_factor<1> mat_bf16;\n"
    "struct __attribute__((aligned(16))) mat_packet { unsigned e[4]; };\n"
    "MAT void mat_zero(mat_c &c) { c.e = mat_v{}; }\n"
    "template <int KIND, int B> MAT void mat_load(mat_factor<B> &f, const unsigned short *p, int line) {\n"
    "    const int own = threadIdx.x & 15, k = MAT_K == 4 ? (threadIdx.x >> 4 & 3) * 4 : 0;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < MAT_K; i++) f.e[i] = (short)(KIND & 2 ? p[own * line + k + i] : p[(k + i) * line + "
    "own]);\n"
    "}\n"
    "MAT void mat_mul(mat_c &c, const mat_f16 &a, const mat_f16 &b) { c.e = amd_mma_f16(a.e, b.e, c.e); }\n"
    "MAT void mat_mul(mat_c &c, const mat_bf16 &a, const mat_bf16 &b) { c.e = amd_mma_bf16(a.e, b.e, c.e); }\n"
    "MAT void mat_store(float *p, int line, const mat_c &c) {\n"
    "    const int lane = threadIdx.x & (MAT_LANES - 1), own = lane & 15, part = lane >> 4;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < MAT_ROWS; i++) p[(MAT_ROWS == 4 ? part * 4 + i : 2 * i + part) * line + own] = c.e[i];\n"
    "}\n" PACKETS "MAT void mat_copy(void *to, const void *from, bool there) { mat_put(to, mat_fetch(from, there)); }\n"
    "MAT void mat_commit() {}\n"
    "template <int N> MAT void mat_wait() {}\n";

/* Four squares of 8×8 each. MAT_LOCAL: what points into workgroup memory, where this is not said as it is declared. */
const char kir_matrix_msl[] =
    "#ifndef MAT_LOCAL\n"
    "#define MAT_LOCAL threadgroup\n"
    "#endif\n"
    "struct mat_c { simdgroup_matrix<float, 8, 8> e[4]; };\n"
    "template <class T> struct mat_factor { simdgroup_matrix<T, 8, 8> e[4]; };\n"
    "typedef mat_factor<half> mat_f16;\n"
    "struct mat_packet { uint4 e; };\n"
    "static inline void mat_zero(thread mat_c &c) {\n"
    "    for (int i = 0; i < 4; i++) c.e[i] = simdgroup_matrix<float, 8, 8>(0.0f);\n"
    "}\n"
    "template <int KIND, class T> static inline void mat_load(thread mat_factor<T> &f, MAT_LOCAL const ushort *p, "
    "int "
    "line) {\n"
    "    const bool turned = KIND == 0 || KIND == 3;\n"
    "    for (int i = 0; i < 4; i++) {\n"
    "        const int down = turned ? i & 1 : i >> 1, across = turned ? i >> 1 : i & 1;\n"
    "        simdgroup_load(f.e[i], (MAT_LOCAL const T *)p + down * 8 * line + across * 8, (ulong)line, ulong2(0, "
    "0), "
    "turned);\n"
    "    }\n"
    "}\n"
    "template <class T> static inline void mat_mul(thread mat_c &c, thread const mat_factor<T> &a, thread const "
    "mat_factor<T> &b) {\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        simdgroup_multiply_accumulate(c.e[i >> 1], a.e[(i >> 2) * 2 + (i & 1)], b.e[(i & 1) * 2 + (i >> 1 & 1)], "
    "c.e[i >> 1]);\n"
    "}\n"
    "static inline void mat_store(MAT_LOCAL float *p, int line, thread const mat_c &c) {\n"
    "    for (int i = 0; i < 4; i++) simdgroup_store(c.e[i], p + (i >> 1) * 8 * line + (i & 1) * 8, (ulong)line);\n"
    "}\n"
    "static inline mat_packet mat_fetch(device const ushort *from, bool there) {\n"
    "    mat_packet v = {uint4(0, 0, 0, 0)};\n"
    "    if (there) v.e = *(device const uint4 *)from;\n"
    "    return v;\n"
    "}\n"
    "static inline void mat_put(MAT_LOCAL ushort *to, thread const mat_packet &v) { *(MAT_LOCAL uint4 *)to = v.e; "
    "}\n"
    "static inline void mat_copy(MAT_LOCAL ushort *to, device const ushort *from, bool there) { mat_put(to, "
    "mat_fetch(from, there)); }\n"
    "static inline void mat_commit() {}\n"
    "template <int N> static inline void mat_wait() {}\n";

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* b3 + (index */
static void put_pointer(render *r, const kir_ins *in) {
    kir_render_put(r, "b%d + (", r->p->access[in->imm.i].buffer);
    kir_render_index(r, in);
    kir_render_put(r, ")");
}

static render_name mask_of(const render *r, kir_val mask) {
    render_name always = {"true"};
    return mask == KIR_NONE ? always : kir_render_operand(r, mask);
}

static void put_wide_fragment(render *r, int i, const kir_ins *in, bool half) {
    bool across = !(in->kind & KIR_ALONG_K);
    kir_render_put(r, "const mat_place<%d, %d> v%d = mat_factor_at<%d, %d>(", !half, across, i, !half, across);
    put_pointer(r, in);
    kir_render_put(r, ", %d);\n", kir_pitch(in));
}

static void put_fragment(render *r, int i, const kir_ins *in) {
    tn_dtype t = (tn_dtype)r->p->buffer_dtype[r->p->access[in->imm.i].buffer];
    if (r->wide) {
        put_wide_fragment(r, i, in, t == TN_F16);
        return;
    }
    kir_render_put(r, "mat_%s v%d; mat_load<%d>(v%d, ",
                   t == TN_F32   ? "tf32"
                   : t == TN_F16 ? "f16"
                                 : "bf16",
                   i, in->kind & (KIR_FACTOR_B | KIR_ALONG_K), i);
    put_pointer(r, in);
    kir_render_put(r, ", %d);\n", kir_line(in));
}

static void put_matrix_store(render *r, const kir_ins *in) {
    if (in->b != KIR_NONE) kir_render_put(r, "if (%s) ", kir_render_operand(r, in->b).text);
    if (r->wide)
        kir_render_put(r, "mat_store<%d>(", kir_wide_column(in));
    else
        kir_render_put(r, "mat_store(");
    put_pointer(r, in);
    kir_render_put(r, ", %d, v%d);\n", r->wide ? kir_wide_line(in) : kir_line(in), in->a);
}

static void put_matrix(render *r, int i, const kir_ins *in) {
    if (r->wide)
        kir_render_put(r, "mat_wide<%d> v%d; mat_zero(v%d);\n", in->kind * KIR_EDGE, i, i);
    else
        kir_render_put(r, "mat_c v%d; mat_zero(v%d);\n", i, i);
}

/* Does an MMA stand before instruction i, with nothing between them but values and places? */
static bool follows_mma(const kir_program *p, int i) {
    while (--i >= 0)
        if (p->ins[i].op == KIR_MMA || (p->ins[i].op >= KIR_LOAD && p->ins[i].op != KIR_FRAGMENT))
            return p->ins[i].op == KIR_MMA;
    return false;
}

static void put_mma(render *r, int i, const kir_ins *in) {
    if (r->wide && !follows_mma(r->p, i)) kir_render_put(r, "ptx_wgmma_fence(); ");
    kir_render_put(r, "mat_mul(v%d, v%d, v%d);\n", in->a, in->b, in->c);
}

/* Until then nothing else may be done with the sums that are waited for. */
static void put_wide_wait(render *r, int i, const kir_ins *in) {
    kir_render_put(r, "ptx_wgmma_wait<%d>();", (int)in->imm.i);
    for (int v = 0; v < i; v++)
        if (r->p->ins[v].op == KIR_MATRIX) kir_render_put(r, " mat_hold(v%d);", v);
    kir_render_put(r, "\n");
}

static void put_packet(render *r, int i, const kir_ins *in) {
    kir_render_put(r, "const mat_packet v%d = mat_fetch(", i);
    put_pointer(r, in);
    kir_render_put(r, ", %s);\n", mask_of(r, in->a).text);
}

static void put_put(render *r, const kir_ins *in) {
    const kir_ins *packet = &r->p->ins[in->a];
    kir_render_put(r, in->kind ? "mat_copy(" : "mat_put(");
    put_pointer(r, in);
    kir_render_put(r, ", ");
    if (in->kind)
        put_pointer(r, packet);
    else
        kir_render_put(r, "v%d", in->a);
    if (in->kind) kir_render_put(r, ", %s", mask_of(r, packet->a).text);
    kir_render_put(r, ");\n");
}

/* A packet that is put late alone never is in registers. */
static bool is_held(const kir_program *p, int fetch) {
    for (int i = fetch + 1; i < p->n_ins; i++)
        if (p->ins[i].op == KIR_PUT && p->ins[i].a == fetch && !p->ins[i].kind) return true;
    return false;
}

void kir_render_matrix(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    if (in->op == KIR_FETCH && !is_held(r->p, i)) return;
    kir_render_indent(r);
    switch (in->op) {
    case KIR_MATRIX: put_matrix(r, i, in); break;
    case KIR_FRAGMENT: put_fragment(r, i, in); break;
    case KIR_MMA: put_mma(r, i, in); break;
    case KIR_MATRIX_STORE: put_matrix_store(r, in); break;
    case KIR_FETCH: put_packet(r, i, in); break;
    case KIR_PUT: put_put(r, in); break;
    case KIR_COMMIT: kir_render_put(r, in->kind ? "ptx_wgmma_commit();\n" : "mat_commit();\n"); break;
    default:
        if (in->kind)
            put_wide_wait(r, i, in);
        else
            kir_render_put(r, "mat_wait<%d>();\n", (int)in->imm.i);
    }
}
