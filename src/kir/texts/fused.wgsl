/* fused.wgsl — a · b + c rounded once, where the device's fma() may be a product and a sum. A pair of words, x high
 * and y low, holds each addend: 62 bits, of which bits that were shifted out leave a 1 at the end. */
fn shift_down(v: vec2<u32>, n: i32) -> vec2<u32> {
    if (n == 0) { return v; }
    if (n > 63) { return vec2<u32>(0u, 1u); }
    if (n == 32) { return vec2<u32>(0u, v.x | u32(v.y != 0u)); }
    let s = u32(n & 31);
    if (n > 32) { return vec2<u32>(0u, (v.x >> s) | u32(((v.x << (32u - s)) | v.y) != 0u)); }
    return vec2<u32>(v.x >> s, (v.x << (32u - s)) | (v.y >> s) | u32((v.y << (32u - s)) != 0u));
}
fn mantissa(bits: u32) -> vec2<u32> {
    let e = (bits >> 23u) & 255u;
    let m = bits & 0x7fffffu;
    if (e != 0u) { return vec2<u32>(m | 0x800000u, e + 256u); }
    let up = countLeadingZeros(m) - 8u;
    return vec2<u32>(m << up, 257u - up);
}
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let u = bitcast<vec3<u32>>(vec3<f32>(a, b, c));
    let size = u & vec3<u32>(0x7fffffffu);
    if (size.z == 0x7f800000u && max(size.x, size.y) < 0x7f800000u) { return c; }
    if (any(size >= vec3<u32>(0x7f800000u)) || size.x == 0u || size.y == 0u) { return a * b + c; }
    if (size.z == 0u) { return a * b; }
    let p = mantissa(u.x);
    let q = mantissa(u.y);
    let r = mantissa(u.z);
    let low = (p.x & 0xfffu) * (q.x & 0xfffu);
    let middle = (p.x >> 12u) * (q.x & 0xfffu) + (p.x & 0xfffu) * (q.x >> 12u) + (low >> 12u);
    let high = (p.x >> 12u) * (q.x >> 12u) + (middle >> 12u);
    let tail = ((middle & 0xfffu) << 12u) | (low & 0xfffu);
    var x = vec2<u32>((high << 6u) | (tail >> 18u), tail << 14u);
    var y = vec2<u32>(r.x << 6u, 0u);
    let ahead = i32(p.y + q.y) - i32(r.y) - 382;
    var e = i32(r.y) - 256;
    if (ahead > 0) { y = shift_down(y, ahead); e += ahead; } else { x = shift_down(x, -ahead); }
    var sign = u.z & 0x80000000u;
    var sum = vec2<u32>(x.x + y.x + u32(x.y + y.y < x.y), x.y + y.y);
    if (((u.x ^ u.y ^ u.z) & 0x80000000u) != 0u) {
        if (x.x > y.x || (x.x == y.x && x.y > y.y)) { sign ^= 0x80000000u; let t = x; x = y; y = t; }
        sum = vec2<u32>(y.x - x.x - u32(y.y < x.y), y.y - x.y);
    }
    if (sum.x == 0u && sum.y == 0u) { return 0.0f; }
    if (sum.x == 0u) { sum = vec2<u32>(sum.y, 0u); e -= 32; }
    let up = countLeadingZeros(sum.x);
    if (up != 0u) { sum = vec2<u32>((sum.x << up) | (sum.y >> (32u - up)), sum.y << up); }
    e += 2 - i32(up);
    if (e >= 255) { return bitcast<f32>(sign | 0x7f800000u); }
    if (e < 1) { sum = shift_down(sum, 1 - e); e = 1; }
    let m = sum.x >> 8u;
    let rest = ((sum.x & 255u) << 1u) | u32(sum.y != 0u);
    let bits = (u32(e - 1) << 23u) + m + u32(rest > 256u || (rest == 256u && (m & 1u) != 0u));
    return bitcast<f32>(sign | bits);
}
