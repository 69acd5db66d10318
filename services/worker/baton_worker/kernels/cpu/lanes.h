// What moves values between the lanes of a `Vec`, or chooses among them.
#pragma once

#include "simd.h"

namespace baton {

#if defined(__AVX512F__)

// 0, 1, 2, ...
inline Vec count_up() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// `yes` where low <= x <= high, else `no`.
inline Vec within(Vec x, Vec low, Vec high, Vec yes, Vec no) {
    const __mmask16 above = _mm512_cmp_ps_mask(x, low, _CMP_GE_OQ);
    const __mmask16 inside = _mm512_mask_cmp_ps_mask(above, x, high, _CMP_LE_OQ);
    return _mm512_mask_mov_ps(no, inside, yes);
}

// Rows become columns.
inline void transpose(Vec (&r)[kWidth]) {
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    const auto low = [](__m512 a, __m512 b) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto high = [](__m512 a, __m512 b) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    for (int i = 0; i < 16; i += 4) {
        u[i] = low(t[i], t[i + 2]);
        u[i + 1] = high(t[i], t[i + 2]);
        u[i + 2] = low(t[i + 1], t[i + 3]);
        u[i + 3] = high(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        const __m512 a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        const __m512 c = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
        r[i]  = _mm512_shuffle_f32x4(a, b, 0x88);
        r[i + 4]  = _mm512_shuffle_f32x4(c, d, 0x88);
        r[i + 8]  = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[i + 12]  = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#else

// 0, 1, 2, ...
inline Vec count_up() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

// `yes` where low <= x <= high, else `no`.
inline Vec within(Vec x, Vec low, Vec high, Vec yes, Vec no) {
    const Vec inside =
        _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GE_OQ), _mm256_cmp_ps(x, high, _CMP_LE_OQ));
    return _mm256_blendv_ps(no, yes, inside);
}

// Rows become columns.
inline void transpose(Vec (&r)[kWidth]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i]  = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4]  = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#endif

}  // namespace baton
