// Products of matrices as they stand in memory, by tiles whose sums stay in registers.
#pragma once

#include "products.h"

namespace regard {

// c[i, j] (+)= sum over k of a[i, k] b[k, j]. Of `a` any strides; rows of `b` and `c` are contiguous. T is float, or Pair
// where the CPU multiplies these: then k counts pairs.
template <typename T>
struct Strided {
    const T* values;
    int64_t row, step;  // the distances of two i and of two k
};

inline floats plus_product(floats sum, float a, const float* b) { return sum + a * load(b); }

#if defined(__AVX512BF16__)
inline floats plus_product(floats sum, Pair a, const Pair* b) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(a.bits), (__m512bh)_mm512_loadu_si512(b));
}
#endif

template <bool Adding, int N, typename T, int... I>
inline void tile(std::integer_sequence<int, I...>, Strided<T> a, const T* b, int64_t b_row, int64_t depth, float* c,
                 int64_t c_row) {
    floats sums[sizeof...(I)];
    ((sums[I] = floats{}), ...);
    for (int64_t k = 0; k < depth; k++, a.values += a.step, b += b_row)
        ((sums[I] = plus_product(sums[I], a.values[I / N * a.row], b + I % N * LANES)), ...);
    auto place = [&](int i) { return c + i / N * c_row + i % N * LANES; };
    (store(place(I), Adding ? load(place(I)) + sums[I] : sums[I]), ...);
}

template <bool Adding, int M, int N, typename T>
inline void tiles(Strided<T> a, const T* b, int64_t b_row, int64_t depth, float* c, int64_t c_row) {
    tile<Adding, N>(std::make_integer_sequence<int, M * N>{}, a, b, b_row, depth, c, c_row);
}

template <bool Adding, int N, typename T>
inline void columns(Strided<T> a, int64_t rows, const T* b, int64_t b_row, int64_t depth, float* c, int64_t c_row) {
    for (; rows >= ROWS; rows -= ROWS, a.values += ROWS * a.row, c += ROWS * c_row)
        tiles<Adding, ROWS, N>(a, b, b_row, depth, c, c_row);
    switch (rows) {
        case 5: tiles<Adding, 5, N>(a, b, b_row, depth, c, c_row); break;
        case 4: tiles<Adding, 4, N>(a, b, b_row, depth, c, c_row); break;
        case 3: tiles<Adding, 3, N>(a, b, b_row, depth, c, c_row); break;
        case 2: tiles<Adding, 2, N>(a, b, b_row, depth, c, c_row); break;
        case 1: tiles<Adding, 1, N>(a, b, b_row, depth, c, c_row); break;
    }
}

// `width`, the columns of b and c, is a multiple of LANES.
template <bool Adding, typename T>
void multiply(Strided<T> a, int64_t rows, const T* b, int64_t b_row, int64_t depth, float* c, int64_t c_row,
              int64_t width) {
    int64_t j = 0;
    for (; j + SIDE * LANES <= width; j += SIDE * LANES)
        columns<Adding, SIDE>(a, rows, b + j, b_row, depth, c + j, c_row);
    for (; j < width; j += LANES) columns<Adding, 1>(a, rows, b + j, b_row, depth, c + j, c_row);
}

}  // namespace regard
