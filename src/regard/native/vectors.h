// Sixteen numbers at a time, by the vector types of GCC and Clang: the compiler makes of them what the CPU has.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace regard {

constexpr int LANES = 16;

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef float loose_floats __attribute__((vector_size(64), aligned(4), may_alias));

inline floats load(const float* from) { return *reinterpret_cast<const loose_floats*>(from); }
inline void store(float* to, floats values) { *reinterpret_cast<loose_floats*>(to) = values; }
inline floats all(float value) { return floats{} + value; }
inline floats larger(floats a, floats b) { return a > b ? a : b; }
inline floats smaller(floats a, floats b) { return a < b ? a : b; }
inline floats absolute(floats a) { return larger(a, -a); }

inline float sum(floats values) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)values);
#else
    float parts[LANES];
    store(parts, values);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) parts[i] += parts[i + step];
    return parts[0];
#endif
}

inline float largest(floats values) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)values);
#else
    float parts[LANES];
    store(parts, values);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) parts[i] = parts[i] > parts[i + step] ? parts[i] : parts[i + step];
    return parts[0];
#endif
}

// The first `count` of sixteen numbers; `rest` in place of the others.
inline floats load_some(const float* from, int count, float rest) {
    float parts[LANES];
    for (int i = 0; i < LANES; i++) parts[i] = i < count ? from[i] : rest;
    return load(parts);
}

// e^x within 2 units in the last place; 0 below -87, where floats end.
inline floats exponential(floats x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
    floats inside = smaller(larger(x, all(-87.0f)), all(88.0f));
    floats n = (inside * 1.44269504f + magic) - magic;
    floats r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;  // log 2 in two parts
    floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    floats two_to_n;
    std::memcpy(&two_to_n, &power, sizeof power);
    floats result = p * two_to_n;
    return x < all(-87.0f) ? floats{} : result;
}

inline floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

inline floats tangent(floats x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

// The error function within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26).
inline floats error_function(floats x) {
    floats a = absolute(x);
    floats t = 1.0f / (1.0f + 0.3275911f * a);
    floats p = all(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    floats value = 1.0f - p * t * exponential(-a * a);
    return x < floats{} ? -value : value;
}

inline float dot(const float* a, const float* b, int width) {
    floats total{};
    int i = 0;
    for (; i + LANES <= width; i += LANES) total += load(a + i) * load(b + i);
    if (i < width) total += load_some(a + i, width - i, 0) * load_some(b + i, width - i, 0);
    return sum(total);
}

// y += weight * x
inline void add_scaled(float* y, const float* x, float weight, int width) {
    int i = 0;
    for (; i + LANES <= width; i += LANES) store(y + i, load(y + i) + weight * load(x + i));
    for (; i < width; i++) y[i] += weight * x[i];
}

}  // namespace regard
