// Dropout by a counter: whether a value stays is told by its place and a seed, so nothing needs to be kept for the way
// back. A word of SplitMix64 (Steele et al. 2014, OOPSLA, figure 17) decides for four values, by 16 bits each.
#pragma once

#include "vectors.h"

namespace regard {

typedef uint64_t longs __attribute__((vector_size(4 * LANES)));

template <typename T>
inline T mixed(T z) {
    z = (z ^ (z >> 30)) * uint64_t(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * uint64_t(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

// y = x * scale where 16 bits are `dropped` or more, and x * 0 elsewhere, which hides no NaN; values from `first` to `last` of all, where `first`
// is a multiple of 4.
inline void drop(const float* x, float* y, int64_t first, int64_t last, uint64_t seed, uint32_t dropped, float scale) {
    constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;
    constexpr int WORDS = LANES / 2, VALUES = 4 * WORDS;
    longs counter, step = longs{} + WORDS * GOLDEN;
    for (int i = 0; i < WORDS; i++) counter[i] = seed + (first / 4 + i + 1) * GOLDEN;
    alignas(64) brief bits[VALUES];
    auto decide = [&] {
        longs drawn = mixed(counter);
        std::memcpy(bits, &drawn, sizeof bits);
        counter += step;
    };
    int64_t n = first;
    for (; n + VALUES <= last; n += VALUES) {
        decide();
        for (int i = 0; i < VALUES; i += LANES) {
            words drawn = __builtin_convertvector((briefs) * reinterpret_cast<const loose_briefs*>(bits + i), words);
            store(y + n + i, load(x + n + i) * (drawn >= dropped ? all(scale) : floats{}));
        }
    }
    if (n < last) decide();
    for (int i = 0; n < last; i++, n++) y[n] = x[n] * (bits[i] >= dropped ? scale : 0.0f);
}

}  // namespace regard
