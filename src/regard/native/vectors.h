// As many numbers at a time as the CPU's registers hold, by the vector types of GCC and Clang. Longer ones would be legal
// and slow: GCC keeps what it has to take apart in memory (products ran at a thirtieth of their speed).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace regard {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float loose_floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline floats load(const float* from) { return *reinterpret_cast<const loose_floats*>(from); }
inline void store(float* to, floats values) { *reinterpret_cast<loose_floats*>(to) = values; }

// bfloat16: a float32 without the lower half of its digits, for what is read more often than computed with.
typedef uint16_t brief;
typedef uint16_t briefs __attribute__((vector_size(2 * LANES)));
typedef uint16_t loose_briefs __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

inline floats load(const brief* from) {
#if defined(__AVX512F__)  // in one instruction, which the compiler does not find
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#else
    return (floats)(__builtin_convertvector((briefs) * reinterpret_cast<const loose_briefs*>(from), words) << 16);
#endif
}

// A number to be kept, rounded to the nearest, of two equally near to the even one.
inline void keep(float value, float* to) { *to = value; }
inline void keep(float value, brief* to) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    *to = brief((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float plain(float value) { return value; }
inline float plain(brief value) {
    uint32_t bits = uint32_t(value) << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

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

// Ask for memory that will be read soon.
template <typename T>
inline void fetch(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

// The first `count` numbers of a vector; `rest` in place of the others.
template <typename T>
inline floats load_some(const T* from, int count, float rest) {
    float parts[LANES];
    for (int i = 0; i < LANES; i++) parts[i] = i < count ? plain(from[i]) : rest;
    return load(parts);
}

// e^x with a relative error below 3e-6 between -87 and 88; 0 below, where floats end.
inline floats exponential(floats x) {
    floats power = smaller(all(88.0f), x) * 1.44269504f;  // e^x = 2^power
#if defined(__AVX512F__)
    floats whole = (floats)_mm512_roundscale_ps((__m512)power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    power = larger(all(-127.0f), power);
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
    floats whole = (power + magic) - magic;
#endif
    floats r = power - whole;
    floats p = all(1.32647e-3f);  // 2^r within 1e-7 between -1/2 and 1/2
    p = p * r + 9.67151e-3f;
    p = p * r + 5.550734e-2f;
    p = p * r + 2.4022242e-1f;
    p = p * r + 6.9314698e-1f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return (floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    ints bits = (__builtin_convertvector(whole, ints) + 127) << 23;
    floats two_to_whole;
    std::memcpy(&two_to_whole, &bits, sizeof bits);
    return x < all(-87.0f) ? floats{} : p * two_to_whole;
#endif
}

// Softmax in place of whole vectors of scores, of which the largest is known; -inf becomes 0.
inline void soften(float* scores, int64_t count, float highest) {
    floats total{};
    for (int64_t i = 0; i < count; i += LANES) {
        floats weight = exponential(load(scores + i) - highest);
        store(scores + i, weight);
        total += weight;
    }
    float inverse = 1.0f / sum(total);
    for (int64_t i = 0; i < count; i += LANES) store(scores + i, load(scores + i) * inverse);
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

template <typename T>
inline float dot(const float* a, const T* b, int width) {
    floats total{};
    int i = 0;
    for (; i + LANES <= width; i += LANES) total += load(a + i) * load(b + i);
    if (i < width) total += load_some(a + i, width - i, 0) * load_some(b + i, width - i, 0);
    return sum(total);
}

// The products of `a` with four others, whose sums are made together.
template <typename T>
inline void four_dots(const float* a, const T* const (&others)[4], int width, float* to) {
#if defined(__AVX512F__)
    if (width % LANES == 0) {
        __m512 w{}, x{}, y{}, z{};
        for (int i = 0; i < width; i += LANES) {
            __m512 part = _mm512_loadu_ps(a + i);
            w = _mm512_fmadd_ps(part, (__m512)load(others[0] + i), w);
            x = _mm512_fmadd_ps(part, (__m512)load(others[1] + i), x);
            y = _mm512_fmadd_ps(part, (__m512)load(others[2] + i), y);
            z = _mm512_fmadd_ps(part, (__m512)load(others[3] + i), z);
        }
        __m512 wx = _mm512_add_ps(_mm512_unpacklo_ps(w, x), _mm512_unpackhi_ps(w, x));
        __m512 yz = _mm512_add_ps(_mm512_unpacklo_ps(y, z), _mm512_unpackhi_ps(y, z));
        __m512 all_four = _mm512_add_ps(_mm512_shuffle_ps(wx, yz, 0x44), _mm512_shuffle_ps(wx, yz, 0xee));
        __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all_four), _mm512_extractf32x8_ps(all_four, 1));
        _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
        return;
    }
#endif
    for (int i = 0; i < 4; i++) to[i] = dot(a, others[i], width);
}

// y += weight * x
template <typename T>
inline void add_scaled(float* y, const T* x, float weight, int width) {
    int i = 0;
    for (; i + LANES <= width; i += LANES) store(y + i, load(y + i) + weight * load(x + i));
    for (; i < width; i++) y[i] += weight * plain(x[i]);
}

}  // namespace regard
