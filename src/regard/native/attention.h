// Attention of one query (section 3.2.1): its place, its scores, their weights, and the mix of values.
#pragma once

#include "transformer.h"

namespace regard {

struct Attention {
    const Settings& settings;

    // Heads of queries or keys of one position: normalised and turned.
    void place(float* heads, int64_t count, const Norm& norm, const Positions& positions, int64_t position) const {
        int64_t pairs = settings.rotary_pairs;
        if (pairs && (position + 1) * pairs > int64_t(positions.cos.size()))
            throw std::runtime_error("more positions than the model has");
        for (int64_t h = 0; h < count; h++) {
            float* head = heads + h * settings.d_key;
            if (norm) norm.apply(head, head);
            for (int64_t i = 0; i < pairs; i++) {
                float cos = positions.cos[position * pairs + i], sin = positions.sin[position * pairs + i];
                float& a = head[settings.rotary_interleaved ? 2 * i : i];
                float& b = head[settings.rotary_interleaved ? 2 * i + 1 : i + pairs];
                float turned = a * cos - b * sin;
                b = a * sin + b * cos;
                a = turned;
            }
        }
    }

    // Attention weights of `count` scores in place; the memory behind them reaches a multiple of LANES.
    void weigh(float* scores, int64_t count, const Positions* positions, int64_t head, int64_t query) const {
        int64_t padded = rounded(count, LANES);
        float cap = settings.attention_softcap;
        floats most = all(-INFINITY);
        for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
        const float* bias = nullptr;
        if (positions && !positions->bias.empty()) {
            bias = &positions->bias[head * positions->bias_width + positions->bias_middle - query];
            if (query > positions->bias_middle || count - 1 - query > positions->bias_middle)
                throw std::runtime_error("more positions than the model has");
        }
        for (int64_t i = 0; i < padded; i += LANES) {
            floats score = load(scores + i) * settings.attention_scale;
            if (cap > 0) score = i + LANES <= count ? cap * tangent(score / cap) : capped_some(score, cap, count - i);
            if (bias) score += load_some(bias + i, int(std::min<int64_t>(LANES, count - i)), 0);
            store(scores + i, score);
            most = larger(most, score);
        }
        soften(scores, padded, largest(most));
    }

    static floats capped_some(floats score, float cap, int64_t count) {
        floats capped = cap * tangent(score / cap);
        for (int64_t i = count; i < LANES; i++) capped[i] = -INFINITY;
        return capped;
    }

    // out = sum over positions of weight * value
    template <typename Value>
    void mix(const float* weights, int64_t length, float* out, Value value) const {
        int64_t d_value = settings.d_value;
        int64_t e = 0;
        for (; e + 4 * LANES <= d_value; e += 4 * LANES) {
            floats a{}, b{}, c{}, d{};
            for (int64_t t = 0; t < length; t++) {
                auto* from = value(t) + e;
                a += weights[t] * load(from);
                b += weights[t] * load(from + LANES);
                c += weights[t] * load(from + 2 * LANES);
                d += weights[t] * load(from + 3 * LANES);
            }
            store(out + e, a);
            store(out + e + LANES, b);
            store(out + e + 2 * LANES, c);
            store(out + e + 3 * LANES, d);
        }
        for (; e + 2 * LANES <= d_value; e += 2 * LANES) {
            floats a{}, b{};
            for (int64_t t = 0; t < length; t++) {
                auto* from = value(t) + e;
                a += weights[t] * load(from);
                b += weights[t] * load(from + LANES);
            }
            store(out + e, a);
            store(out + e + LANES, b);
        }
        if (e < d_value) {
            std::fill(out + e, out + d_value, 0.0f);
            for (int64_t t = 0; t < length; t++) add_scaled(out + e, value(t) + e, weights[t], int(d_value - e));
        }
    }

    // Scores of a query with keys that stand position beside position.
    template <typename Kept>
    void score(const float* query, const Kept* keys, int64_t padded, float* scores) const {
        int64_t d_key = settings.d_key;
        int64_t s = 0;
        for (; s + 2 * LANES <= padded; s += 2 * LANES) {
            floats a{}, b{};
            for (int64_t e = 0; e < d_key; e++) {
                a += query[e] * load(keys + e * padded + s);
                b += query[e] * load(keys + e * padded + s + LANES);
            }
            store(scores + s, a);
            store(scores + s + LANES, b);
        }
        if (s < padded) {
            floats a{};
            for (int64_t e = 0; e < d_key; e++) a += query[e] * load(keys + e * padded + s);
            store(scores + s, a);
        }
    }
};

}  // namespace regard
