/* select.c — chooses the native kernels for this processor, once.
 *
 * Every instruction set gives the same bits, so the choice affects only speed; TRUNNION_ISA lowers it (tn_cpu). */
#include "cpu/conv_vec.h"
#include "cpu/isa.h"
#include "cpu/qtile.h"

#include <pthread.h>

typedef struct kernel_tables {
    const struct tile_set *f32, *f64;
    const tn_attention_table *attention;
    const conv_vec *conv;
    const tn_sdpa_table *sdpa;
    const tn_recurrent_table *recurrent;
} kernel_tables;

#define TABLES_OF(isa)                                                                                                 \
    {                                                                                                                  \
        &tn_tiles_f32_##isa, &tn_tiles_f64_##isa, &tn_attention_table_##isa, &tn_conv_vec_##isa, &tn_sdpa_table_##isa, \
            &tn_recurrent_table_##isa                                                                                  \
    }

/* Best last; what this build lacks takes the row before it. */
static const kernel_tables built[TN_ISA_COUNT] = {
    [TN_ISA_BASE] = TABLES_OF(base),
#ifdef TN_HAVE_AVX2
    [TN_ISA_AVX2] = TABLES_OF(avx2),
#endif
#ifdef TN_HAVE_AVX512
    [TN_ISA_AVX512] = TABLES_OF(avx512),
#endif
};

static _Atomic(const kernel_tables *) chosen;

/* Threads that get here at the same time find the same answer. */
static const kernel_tables *choose_isa(void) {
    int isa = (int)tn_cpu().isa;
    while (isa > TN_ISA_BASE && !built[isa].f32)
        isa--;
    atomic_store_explicit(&chosen, &built[isa], memory_order_relaxed);
    return &built[isa];
}

static const kernel_tables *tables(void) {
    const kernel_tables *t = atomic_load_explicit(&chosen, memory_order_relaxed);
    return t ? t : choose_isa();
}

bool tn_gemm_use(tn_isa isa) {
    if (isa > tn_cpu().isa || !built[isa].f32) return false;
    atomic_store_explicit(&chosen, &built[isa], memory_order_relaxed);
    return true;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

#ifdef TN_BF16_SUFFIX
#if defined(__aarch64__)
enum { PAIRS_LEVEL = TN_ISA_BASE };
#else
enum { PAIRS_LEVEL = TN_ISA_AVX512 };
#endif
#define PAIRS_JOIN_(suffix) tn_tiles_bf16_##suffix
#define PAIRS_JOIN(suffix) PAIRS_JOIN_(suffix)
static _Atomic bool pairs_pay;

static void try_pairs(void) { atomic_store(&pairs_pay, tn_cpu().bf16 && tn_gemm_pairs_pay()); }

/* Tried once: sizes and packed copies depend on the answer. */
static const struct tile_set *bf16_tiles(const kernel_tables *t) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (t != &built[PAIRS_LEVEL]) return t->f32;
    pthread_once(&once, try_pairs);
    return atomic_load_explicit(&pairs_pay, memory_order_relaxed) ? &PAIRS_JOIN(TN_BF16_SUFFIX) : t->f32;
}

bool tn_gemm_use_pairs(bool pairs) {
    bool have = tn_cpu().bf16;
    (void)bf16_tiles(tables());
    atomic_store(&pairs_pay, pairs && have);
    return have;
}
#else
static const struct tile_set *bf16_tiles(const kernel_tables *t) { return t->f32; }
bool tn_gemm_use_pairs(bool pairs) { return !pairs; }
#endif

/* Which dot products of bytes the processor has; looked up once, as products ask at each run. Unused in builds without
 * kernels that need one. */
enum { DOTS_KNOWN = 1, DOTS_512 = 2, DOTS_256 = 4, DOTS_I8MM = 8 };

__attribute__((unused)) static int dots(void) {
    static _Atomic int known;
    int now = atomic_load_explicit(&known, memory_order_relaxed);
    if (now) return now;
    tn_cpu_info cpu = tn_cpu();
    now = DOTS_KNOWN | (cpu.vnni ? DOTS_512 : 0) | (cpu.avx_vnni ? DOTS_256 : 0) | (cpu.i8mm ? DOTS_I8MM : 0);
    atomic_store_explicit(&known, now, memory_order_relaxed);
    return now;
}

/* The kernels of bytes that the processor multiplies without making them floats, or NULL. */
static _Atomic bool without_quads;

static const struct tile_set *byte_tiles(TN_UNUSED const kernel_tables *t) {
    if (atomic_load_explicit(&without_quads, memory_order_relaxed)) return NULL;
#ifdef TN_HAVE_AVX512
    if (t == &built[TN_ISA_AVX512] && (dots() & DOTS_512)) return &tn_tiles_bytes_avx512vnni;
#endif
#ifdef TN_HAVE_AVX2_VNNI
    if (t == &built[TN_ISA_AVX2] && (dots() & DOTS_256)) return &tn_tiles_bytes_avx2vnni;
#endif
#ifdef TN_HAVE_AVX2
    if (t == &built[TN_ISA_AVX2]) return &tn_tiles_bytes_avx2;
#endif
#ifdef TN_HAVE_I8MM
    if (t == &built[TN_ISA_BASE] && (dots() & DOTS_I8MM)) return &tn_tiles_bytes_i8mm;
#endif
    return NULL;
}

bool tn_gemm_use_quads(bool quads) {
    atomic_store(&without_quads, !quads);
    return !quads || byte_tiles(tables());
}

static const struct tile_set *tiles(tn_dtype dtype) {
    const kernel_tables *t = tables();
    if (dtype == TN_BF16) return bf16_tiles(t);
    if (dtype == TN_I8) return byte_tiles(t);
    return dtype == TN_F64 ? t->f64 : t->f32;
}

bool tn_gemm_takes_quads(const tn_gemm_args *args) {
    return args->a_dtype == TN_U8 && args->b_dtype == TN_I8 && tiles(TN_I8);
}

static const struct tile_set *tiles_of(const tn_gemm_args *args, tn_dtype dtype) {
    return tiles(dtype == TN_I32 && tn_gemm_takes_quads(args) ? TN_I8 : dtype);
}

static const tn_gemm_table *driver(tn_dtype dtype) { return dtype == TN_F64 ? &tn_gemm_table_f64 : &tn_gemm_table_f32; }

size_t tn_gemm_packed_bytes(int64_t n, int64_t k, tn_dtype dtype) {
    return driver(dtype)->packed_bytes(tiles(dtype), n, k);
}

void tn_gemm_pack(const tn_gemm_args *args, tn_dtype dtype) { driver(dtype)->pack(tiles_of(args, dtype), args, dtype); }

size_t tn_gemm_workspace(const tn_gemm_args *args, tn_dtype dtype, int threads) {
    return driver(dtype)->workspace(tiles_of(args, dtype), args, dtype, threads);
}

void tn_gemm_run(const tn_gemm_args *args, tn_dtype dtype) { driver(dtype)->run(tiles_of(args, dtype), args, dtype); }

void tn_gemm_f32(const tn_gemm_args *args) { tn_gemm_run(args, TN_F32); }

bool tn_gemm_row_fused_takes(const tn_gemm_args *args) { return tn_gemm_chains.takes(tables()->f32, args); }

size_t tn_gemm_row_fused_bytes(void) { return tn_gemm_chains.bytes; }

size_t tn_gemm_row_fused_workspace(const tn_gemm_row_fused *chain, int threads) {
    return tn_gemm_chains.workspace(tables()->f32, chain, threads);
}

void tn_gemm_row_fused_run(const tn_gemm_row_fused *chain) { tn_gemm_chains.run(tables()->f32, chain); }

size_t tn_attention_workspace(const tn_attention_args *args, int threads) {
    return tables()->attention->workspace(args, threads);
}

void tn_attention(const tn_attention_args *args) { tables()->attention->run(args); }

size_t tn_sdpa_workspace(const tn_sdpa_args *args, bool backward, int threads) {
    return tables()->sdpa->workspace(args, backward, threads);
}

void tn_sdpa(const tn_sdpa_args *args, bool backward) { tables()->sdpa->run(args, backward); }

const tn_recurrent_table *tn_recurrent_steps(void) { return tables()->recurrent; }

void tn_kv_cache_write(const tn_kv_cache_write_args *args) { tables()->attention->append(args); }

const conv_vec *tn_conv_vec(void) { return tables()->conv; }

const tile_set *tn_byte_tiles(void) { return byte_tiles(tables()); }

/* ---- block-quantised weights ------------------------------------------------------------------------------------- */

#ifdef TN_HAVE_AVX2_VNNI
#define QTILES_AVX2_VNNI &tn_qtiles_avx2vnni
#else
#define QTILES_AVX2_VNNI NULL
#endif
#ifdef TN_HAVE_DOTPROD
#define QTILES_DOTPROD &tn_qtiles_dotprod
#else
#define QTILES_DOTPROD NULL
#endif

/* By level, without and with dot products. */
static const qtile_set *const qmat_built[TN_ISA_COUNT][2] = {
    [TN_ISA_BASE] = {&tn_qtiles_base, QTILES_DOTPROD},
#ifdef TN_HAVE_AVX2
    [TN_ISA_AVX2] = {&tn_qtiles_avx2, QTILES_AVX2_VNNI},
#endif
#ifdef TN_HAVE_AVX512
    [TN_ISA_AVX512] = {&tn_qtiles_avx2, &tn_qtiles_avx512vnni}, /* hardly any processor is without */
#endif
};

/* NULL: not in this build. ARM's i8mm includes dot products, of bytes without a sign too. */
static const qtile_set *qmat_set(tn_isa isa, bool dot_products) {
#ifdef TN_HAVE_I8MM
    if (dot_products && tn_cpu().i8mm) return &tn_qtiles_i8mm;
#endif
    return qmat_built[isa][dot_products];
}

static _Atomic(const qtile_set *) qmat_chosen;

static const qtile_set *choose_qmat(void) {
    tn_cpu_info cpu = tn_cpu();
    tn_isa isa = cpu.isa;
    while (isa > TN_ISA_BASE && !qmat_built[isa][0])
        isa--;
    const qtile_set *best = qmat_set(isa, cpu.vnni) ? qmat_set(isa, cpu.vnni) : qmat_built[isa][0];
    atomic_store_explicit(&qmat_chosen, best, memory_order_relaxed);
    return best;
}

const qtile_set *tn_qtiles(void) {
    const qtile_set *t = atomic_load_explicit(&qmat_chosen, memory_order_relaxed);
    return t ? t : choose_qmat();
}

bool tn_qmat_use(tn_isa isa, bool vnni) {
    tn_cpu_info cpu = tn_cpu();
    bool has_vnni = isa == cpu.isa ? cpu.vnni : isa == TN_ISA_AVX2 && cpu.avx_vnni;
    if (isa > cpu.isa || (vnni && !has_vnni) || !qmat_set(isa, vnni)) return false;
    atomic_store_explicit(&qmat_chosen, qmat_set(isa, vnni), memory_order_relaxed);
    return true;
}
