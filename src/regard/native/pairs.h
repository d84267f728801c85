// Pairs of bfloat16 numbers: AVX512_BF16 multiplies two of them by two others at once, and adds both to a float32.
#pragma once

#include "vectors.h"

#if defined(__AVX512BF16__)

namespace regard {

struct Pair {
    uint32_t bits;  // the first number in the lower half
};

// LANES pairs of neighbours: (x[0], x[1]), (x[2], x[3]), ...
inline void pair_neighbours(const float* x, Pair* to) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)load(x + LANES), (__m512)load(x)));
}

// LANES pairs of what stands in two rows: (x[0], y[0]), (x[1], y[1]), ...
inline void pair_rows(const float* x, const float* y, Pair* to) {
    __m512i lower = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(x)));
    __m512i upper = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(y)));
    _mm512_storeu_si512(to, _mm512_or_si512(lower, _mm512_slli_epi32(upper, 16)));
}

}  // namespace regard

#endif
