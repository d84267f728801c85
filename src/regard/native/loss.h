// Cross-entropy with label smoothing, fused with the projection to the vocabulary, and its gradient
// (training/loss.py says the mathematics). Logits stand as [vocabulary, positions], positions side by side in vectors:
// sums over the vocabulary are sums of vectors, and no matrix needs to be packed or transposed for any of the three products.
#pragma once

#include "pairs.h"
#include "tiles.h"

namespace regard {

constexpr int64_t BAND = 64;   // positions side by side
constexpr int64_t BLOCK = 96;  // of the vocabulary, whose logits stay in the nearest caches

// The three products of the loss. A band of hidden states h [positions, width], a block of the weight W [vocabulary, width],
// and z [vocabulary, positions], the logits or their gradient:
//     project: z = W h^T    go_back: to_hidden += z^T W, to_weight += z h
class FloatProducts {
   public:
    void begin(const float* weight, int64_t, int64_t width, int64_t bands) {
        weight_ = weight, width_ = width;
        turned_.get(bands * BAND * width);
        rows_.get(bands * BAND * width);
    }

    // Of position r of a band.
    void enter(int64_t band, int64_t r, const float* hidden) {
        std::copy_n(hidden, width_, rows(band) + r * width_);
        for (int64_t k = 0; k < width_; k++) turned(band)[k * BAND + r] = hidden[k];
    }

    void all_entered(int64_t) {}

    void project(int64_t band, int64_t v, int64_t count, float* z) {
        multiply<false>({weight_ + v * width_, width_, 1}, count, turned(band), BAND, width_, z, BAND, BAND);
    }

    void go_back(int64_t band, int64_t v, int64_t count, float* z, float* to_hidden, float* to_weight) {
        multiply<true>({z, 1, BAND}, BAND, weight_ + v * width_, width_, count, to_hidden, width_, width_);
        multiply<true>({z, BAND, 1}, count, rows(band), width_, BAND, to_weight, width_, width_);
    }

   private:
    const float* weight_;
    int64_t width_;
    Buffer<float> rows_, turned_;

    float* rows(int64_t band) { return rows_.data() + band * BAND * width_; }
    float* turned(int64_t band) { return turned_.data() + band * BAND * width_; }
};

#if defined(__AVX512BF16__)
// The same with factors rounded to bfloat16, and sums in float32. What is summed over stands in pairs.
class PairProducts {
   public:
    void begin(const float* weight, int64_t vocabulary, int64_t width, int64_t bands) {
        width_ = width;
        Pair *along = along_.get(vocabulary * width / 2), *down = down_.get((vocabulary + 1) / 2 * width);
        std::fill_n(nothing_.get(width), width, 0.0f);
        for (int64_t i = 0; i < vocabulary * width; i += 2 * LANES) pair_neighbours(weight + i, along + i / 2);
        for (int64_t v = 0; v < vocabulary; v += 2)
            pair_all(weight + v * width, v + 1 < vocabulary ? weight + (v + 1) * width : nothing_.data(), width,
                     down + v / 2 * width);
        states_.get(bands * BAND * width);
        rows_.get(bands * BAND / 2 * width);
        turned_.get(bands * BAND * width / 2);
        across_.get(BLOCK * BAND / 2);
        upright_.get(BLOCK / 2 * BAND);
    }

    void enter(int64_t band, int64_t r, const float* hidden) {
        float* state = states_.data() + (band * BAND + r) * width_;
        std::copy_n(hidden, width_, state);
        for (int64_t k = 0; k < width_; k += 2 * LANES) {
            Pair pairs[LANES];
            pair_neighbours(state + k, pairs);
            for (int64_t i = 0; i < LANES; i++) turned(band)[(k / 2 + i) * BAND + r] = pairs[i];
        }
    }

    void all_entered(int64_t band) {
        const float* states = states_.data() + band * BAND * width_;
        for (int64_t r = 0; r < BAND; r += 2)
            pair_all(states + r * width_, states + (r + 1) * width_, width_, rows(band) + r / 2 * width_);
    }

    void project(int64_t band, int64_t v, int64_t count, float* z) {
        multiply<false>({along_.data() + v * width_ / 2, width_ / 2, 1}, count, turned(band), BAND, width_ / 2, z, BAND, BAND);
    }

    void go_back(int64_t band, int64_t v, int64_t count, float* z, float* to_hidden, float* to_weight) {
        if (count % 2) std::fill_n(z + count * BAND, BAND, 0.0f);
        for (int64_t i = 0; i < count * BAND; i += 2 * LANES) pair_neighbours(z + i, across_.data() + i / 2);
        for (int64_t n = 0; n < count; n += 2)
            pair_all(z + n * BAND, z + (n + 1) * BAND, BAND, upright_.data() + n / 2 * BAND);
        multiply<true>({upright_.data(), 1, BAND}, BAND, down_.data() + v / 2 * width_, width_, (count + 1) / 2, to_hidden,
                       width_, width_);
        multiply<true>({across_.data(), BAND / 2, 1}, count, rows(band), width_, BAND / 2, to_weight, width_, width_);
    }

   private:
    int64_t width_;
    Buffer<float> states_, nothing_;
    Buffer<Pair> along_, down_;      // the weight: pairs of the width, and of the vocabulary
    Buffer<Pair> turned_, rows_;     // hidden states: [pairs of the width, positions], [pairs of positions, width]
    Buffer<Pair> across_, upright_;  // z: [vocabulary, pairs of positions], [pairs of the vocabulary, positions]

    Pair* rows(int64_t band) { return rows_.data() + band * BAND / 2 * width_; }
    Pair* turned(int64_t band) { return turned_.data() + band * BAND * width_ / 2; }

    static void pair_all(const float* x, const float* y, int64_t count, Pair* to) {
        for (int64_t i = 0; i < count; i += LANES) pair_rows(x + i, y + i, to + i);
    }
};
#endif

// Some positions at a time go through the vocabulary twice: for their logits and what the softmax needs to know of them,
// and back with p - q. With R-Drop (training/r_drop.py) every position is read twice; what the two readings say of it
// stands in bands `pair_` apart.
template <typename Products>
class CrossEntropy {
   public:
    double loss = 0, nll = 0;

    // hidden [count, width], weight [vocabulary, width], targets [count]. With `divergence`, R-Drop's alpha, all
    // positions once and then once more: 2 count. The sums, and the gradients of `loss`, both or none, are those of the
    // positions from `first` to `last`; that of the weight is added to what is there.
    void run(const float* hidden, const int64_t* targets, int64_t count, int64_t first, int64_t last,
             const float* weight, int64_t vocabulary, int64_t width, float smoothing, float divergence,
             float* gradient_hidden, float* gradient_weight) {
        hidden_ = hidden, targets_ = targets, vocabulary_ = vocabulary, width_ = width;
        smoothing_ = smoothing, divergence_ = divergence, share_ = divergence > 0 ? 0.5f : 1.0f;
        readings_ = divergence > 0 ? 2 : 1, count_ = count;
        loss = nll = 0;
        bands_ = MOST_BANDS;
        while (bands_ > readings_ && bands_ * BAND * vocabulary > MOST_LOGITS) bands_ /= 2;
        pair_ = std::max<int64_t>(1, bands_ / 2);
        logits_.get(bands_ * BAND * (vocabulary + 1));  // a row more, where the last pair of classes is half
        nothing_.assign(width, 0.0f);
        products_.begin(weight, vocabulary, width, bands_);
        int64_t step = bands_ / readings_ * BAND;
        for (int64_t start = first; start < last; start += step) {
            here_ = std::min(step, last - start);
            enter(start);
            for (int64_t v = 0; v < vocabulary; v += BLOCK) project(v);
            sum_up();
            if (!gradient_hidden) continue;
            std::fill_n(back_.get(bands_ * BAND * width), bands_ * BAND * width, 0.0f);
            for (int64_t v = 0; v < vocabulary; v += BLOCK) go_back(v, gradient_weight);
            for (int64_t reading = 0; reading < readings_; reading++)
                std::copy_n(back_.data() + reading * pair_ * BAND * width, here_ * width,
                            gradient_hidden + (reading * count_ + start) * width);
        }
    }

   private:
    static constexpr int64_t MOST_BANDS = 4;           // that share a way through the vocabulary,
    static constexpr int64_t MOST_LOGITS = 1LL << 23;  // unless there would be more logits than this

    struct Band {
        alignas(64) float highest[BAND], sum[BAND], total[BAND];  // of the logits z: sum is that of e^(z - highest)
        alignas(64) float expected[BAND];                         // of the difference to the other reading
        alignas(64) float real[BAND];                             // 1, or 0 for what only fills up
        float target_logit[BAND];
        int64_t target[BAND];
    };

    const float* hidden_;
    const int64_t* targets_;
    int64_t count_, vocabulary_, width_, readings_, bands_, pair_, here_;
    float smoothing_, divergence_, share_;
    Band band_[MOST_BANDS];
    Buffer<float> logits_, back_;
    std::vector<float> nothing_;
    Products products_;

    float* logits(int64_t band, int64_t v) { return logits_.data() + (band * (vocabulary_ + 1) + v) * BAND; }
    int64_t block(int64_t v) const { return std::min(BLOCK, vocabulary_ - v); }

    template <typename Use>
    void for_bands(Use use) {
        int64_t some = rounded(here_, BAND) / BAND;
        for (int64_t reading = 0; reading < readings_; reading++)
            for (int64_t b = 0; b < some; b++) use(reading * pair_ + b);
    }

    template <typename Use>
    void for_targets(const Band& band, int64_t v, Use use) {
        for (int64_t r = 0; r < BAND; r++)
            if (uint64_t(band.target[r] - v) < uint64_t(block(v))) use(r, (band.target[r] - v) * BAND + r);
    }

    // Some positions, filled up with zeros.
    void enter(int64_t start) {
        for_bands([&](int64_t b) {
            Band& band = band_[b];
            for (int64_t r = 0; r < BAND; r++) {
                int64_t n = b % (bands_ / readings_) * BAND + r, from = b / pair_ % readings_ * count_ + start + n;
                bool real = n < here_;
                products_.enter(b, r, real ? hidden_ + from * width_ : nothing_.data());
                band.real[r] = real;
                band.target[r] = real ? targets_[from] : -1;
                if (real && (band.target[r] < 0 || band.target[r] >= vocabulary_))
                    throw std::runtime_error("a target is not in the vocabulary");
                band.highest[r] = -INFINITY;
                band.sum[r] = band.total[r] = band.expected[r] = 0;
            }
            products_.all_entered(b);
        });
    }

    // Logits of a block, and what they tell of the softmax.
    void project(int64_t v) {
        for_bands([&](int64_t b) {
            Band& band = band_[b];
            float* z = logits(b, v);
            products_.project(b, v, block(v), z);
            for_targets(band, v, [&](int64_t r, int64_t place) { band.target_logit[r] = z[place]; });
        });
        for_bands([&](int64_t b) {
            Band& band = band_[b];
            const float *z = logits(b, v), *other = logits((b + pair_) % bands_, v);
            for (int64_t r = 0; r < BAND; r += LANES) {
                floats highest = load(band.highest + r), total = load(band.total + r);
                for (int64_t n = r; n < block(v) * BAND; n += BAND) {
                    highest = larger(highest, load(z + n));
                    total += load(z + n);
                }
                floats less = exponential(load(band.highest + r) - highest);
                floats sum = load(band.sum + r) * less, expected = load(band.expected + r) * less;
                for (int64_t n = r; n < block(v) * BAND; n += BAND) {
                    floats one = load(z + n), weight = exponential(one - highest);
                    sum += weight;
                    if (readings_ == 2) expected += weight * (one - load(other + n));
                }
                store(band.highest + r, highest);
                store(band.sum + r, sum);
                store(band.total + r, total);
                store(band.expected + r, expected);
            }
        });
    }

    void sum_up() {
        for_bands([&](int64_t b) {
            Band& band = band_[b];
            for (int64_t r = 0; r < BAND; r++) {
                band.expected[r] /= band.sum[r];
                if (band.real[r] == 0) continue;
                double normaliser = double(band.highest[r]) + std::log(double(band.sum[r]));
                double mean = double(band.total[r]) / double(vocabulary_);
                nll += share_ * (normaliser - band.target_logit[r]);
                loss += share_ * (normaliser - (1.0 - smoothing_) * band.target_logit[r] - smoothing_ * mean);
                if (readings_ == 2)  // KL(p_1 || p_2) + KL(p_2 || p_1) is the sum of both readings' expected differences
                    loss += divergence_ / 4.0 * band.expected[r];
            }
        });
    }

    // The gradient in place of the logits of a block, and from there to the hidden states and the weight.
    void go_back(int64_t v, float* gradient_weight) {
        if (readings_ == 2)
            for (int64_t b = 0; b < rounded(here_, BAND) / BAND; b++) differ(band_[b], band_[b + pair_], b, v);
        for_bands([&](int64_t b) {
            const Band& band = band_[b];
            float* z = logits(b, v);
            if (readings_ == 1) agree(band, z, v);
            for_targets(band, v, [&](int64_t, int64_t place) { z[place] -= share_ * (1.0f - smoothing_); });
            products_.go_back(b, v, block(v), z, back_.data() + b * BAND * width_, gradient_weight + v * width_);
        });
    }

    // p - smoothing / V
    void agree(const Band& band, float* z, int64_t v) {
        for (int64_t r = 0; r < BAND; r += LANES) {
            floats real = load(band.real + r), part = real / load(band.sum + r), even = real * (smoothing_ / vocabulary_);
            for (int64_t n = r; n < block(v) * BAND; n += BAND)
                store(z + n, exponential(load(z + n) - load(band.highest + r)) * part - even);
        }
    }

    // (p_i - smoothing / V) / 2 +- alpha / 4 (p_1 - p_2 + p_i (d - E_i d)), where d = z_1 - z_2
    void differ(const Band& one, const Band& two, int64_t b, int64_t v) {
        float *z_one = logits(b, v), *z_two = logits(b + pair_, v);
        float quarter = divergence_ / 4;
        for (int64_t r = 0; r < BAND; r += LANES) {
            floats real = load(one.real + r), even = real * (share_ * smoothing_ / vocabulary_);
            floats part_one = real / load(one.sum + r), part_two = real / load(two.sum + r);
            // Each reading's expected difference is to the other: z_2 - z_1 for the second
            floats expected_one = load(one.expected + r), expected_two = -load(two.expected + r);
            for (int64_t n = r; n < block(v) * BAND; n += BAND) {
                floats a = load(z_one + n), b = load(z_two + n), d = a - b;
                floats p = exponential(a - load(one.highest + r)) * part_one;
                floats q = exponential(b - load(two.highest + r)) * part_two;
                store(z_one + n, share_ * p - even + quarter * (p - q + p * (d - expected_one)));
                store(z_two + n, share_ * q - even - quarter * (p - q + q * (d - expected_two)));
            }
        }
    }
};

}  // namespace regard
