/* Packets as CUDA and HIP have them alike. */
MAT mat_packet mat_fetch(const void *from, bool there) {
    mat_packet v = {{0, 0, 0, 0}};
    if (there) v = *(const mat_packet *)from;
    return v;
}
MAT void mat_put(void *to, const mat_packet &v) { *(mat_packet *)to = v; }
