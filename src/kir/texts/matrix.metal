/* matrix.metal — matrices in Metal's language: four squares of 8×8 each. MAT_LOCAL: what points into workgroup memory,
 * where this is not said as it is declared. */
#ifndef MAT_LOCAL
#define MAT_LOCAL threadgroup
#endif
struct mat_c { simdgroup_matrix<float, 8, 8> e[4]; };
template <class T> struct mat_factor { simdgroup_matrix<T, 8, 8> e[4]; };
typedef mat_factor<half> mat_f16;
struct mat_packet { uint4 e; };
static inline void mat_zero(thread mat_c &c) {
    for (int i = 0; i < 4; i++) c.e[i] = simdgroup_matrix<float, 8, 8>(0.0f);
}
template <int KIND, class T> static inline void mat_load(thread mat_factor<T> &f, MAT_LOCAL const ushort *p, int line) {
    const bool turned = KIND == 0 || KIND == 3;
    for (int i = 0; i < 4; i++) {
        const int down = turned ? i & 1 : i >> 1, across = turned ? i >> 1 : i & 1;
        simdgroup_load(f.e[i], (MAT_LOCAL const T *)p + down * 8 * line + across * 8, (ulong)line, ulong2(0, 0), turned);
    }
}
template <class T> static inline void mat_mul(thread mat_c &c, thread const mat_factor<T> &a, thread const mat_factor<T> &b) {
    for (int i = 0; i < 8; i++)
        simdgroup_multiply_accumulate(c.e[i >> 1], a.e[(i >> 2) * 2 + (i & 1)], b.e[(i & 1) * 2 + (i >> 1 & 1)], c.e[i >> 1]);
}
static inline void mat_store(MAT_LOCAL float *p, int line, thread const mat_c &c) {
    for (int i = 0; i < 4; i++) simdgroup_store(c.e[i], p + (i >> 1) * 8 * line + (i & 1) * 8, (ulong)line);
}
static inline mat_packet mat_fetch(device const ushort *from, bool there) {
    mat_packet v = {uint4(0, 0, 0, 0)};
    if (there) v.e = *(device const uint4 *)from;
    return v;
}
static inline void mat_put(MAT_LOCAL ushort *to, thread const mat_packet &v) { *(MAT_LOCAL uint4 *)to = v.e; }
static inline void mat_copy(MAT_LOCAL ushort *to, device const ushort *from, bool there) { mat_put(to, mat_fetch(from, there)); }
static inline void mat_commit() {}
template <int N> static inline void mat_wait() {}
