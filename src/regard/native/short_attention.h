// Scaled dot-product attention of many short sequences, forward and back (section 3.2.1; model/reference.py says it
// plainly). All scores of a head stay in the nearest cache; queries, keys, values and what comes of them stand wherever
// the projections want them, so that nothing is copied to take heads apart or to join them.
#pragma once

#include "tiles.h"

namespace regard {

struct AttentionShape {
    int64_t batch, heads, queries, keys, d_key, d_value;
    int64_t query[3], key[3], value[3], output[3];  // distances of two rows of the batch, two heads, two positions
    int64_t mask[2];                                // distances of two rows of the batch and two queries; 0 where they share
    float scale;
};

class ShortAttention {
   public:
    explicit ShortAttention(const AttentionShape& shape) : s_(shape), padded_(rounded(shape.keys, LANES)) {}

    // Numbers in the weights of a row of the batch: [heads, queries, keys, filled up to whole vectors].
    static int64_t weights(const AttentionShape& shape) {
        return shape.heads * shape.queries * rounded(shape.keys, LANES);
    }

    // `mask`: what is added to the scores, or null. Every query sees a key.
    void forward(int64_t b, const float* query, const float* key, const float* value, const float* mask, float* weights,
                 float* output) {
        const float* added = fill_up(mask ? mask + b * s_.mask[0] : nullptr);
        int64_t next = mask && s_.mask[1] ? padded_ : 0;
        weights += b * s_.heads * s_.queries * padded_;
        for (int64_t h = 0; h < s_.heads; h++, weights += s_.queries * padded_) {
            const float* turned = turn(at(key, s_.key, b, h), s_.key[2], s_.d_key, s_.scale);
            multiply<false>({at(query, s_.query, b, h), s_.query[2], 1}, s_.queries, turned, padded_, s_.d_key, weights,
                            padded_, padded_);
            for (int64_t t = 0; t < s_.queries; t++) weigh(weights + t * padded_, added + t * next);
            multiply<false>({weights, padded_, 1}, s_.queries, at(value, s_.value, b, h), s_.value[2], s_.keys,
                            at(output, s_.output, b, h), s_.output[2], s_.d_value);
        }
    }

    // The gradients are [batch, positions, heads, width].
    void backward(int64_t b, const float* query, const float* key, const float* value, const float* weights,
                  const float* gradient, float* to_query, float* to_key, float* to_value) {
        float* scores = scores_.get(s_.queries * padded_);
        weights += b * s_.heads * s_.queries * padded_;
        for (int64_t h = 0; h < s_.heads; h++, weights += s_.queries * padded_) {
            const float* above = at(gradient, s_.output, b, h);
            const float* turned = turn(at(value, s_.value, b, h), s_.value[2], s_.d_value, 1.0f);
            multiply<false>({above, s_.output[2], 1}, s_.queries, turned, padded_, s_.d_value, scores, padded_, padded_);
            for (int64_t t = 0; t < s_.queries; t++) harden(weights + t * padded_, scores + t * padded_);
            multiply<false>({scores, padded_, 1}, s_.queries, at(key, s_.key, b, h), s_.key[2], s_.keys,
                            to_query + (b * s_.queries * s_.heads + h) * s_.d_key, s_.heads * s_.d_key, s_.d_key);
            multiply<false>({scores, 1, padded_}, s_.keys, at(query, s_.query, b, h), s_.query[2], s_.queries,
                            to_key + (b * s_.keys * s_.heads + h) * s_.d_key, s_.heads * s_.d_key, s_.d_key);
            multiply<false>({weights, 1, padded_}, s_.keys, above, s_.output[2], s_.queries,
                            to_value + (b * s_.keys * s_.heads + h) * s_.d_value, s_.heads * s_.d_value, s_.d_value);
        }
    }

   private:
    const AttentionShape s_;
    int64_t padded_;
    Buffer<float> turned_, scores_, mask_;

    template <typename T>
    static T* at(T* values, const int64_t (&distances)[3], int64_t b, int64_t h) {
        return values + b * distances[0] + h * distances[1];
    }

    // [keys, width] as [width, keys], filled up with zeros.
    const float* turn(const float* from, int64_t distance, int64_t width, float scale) {
        float* to = turned_.get(width * padded_);
        for (int64_t e = 0; e < width; e++) {
            for (int64_t k = 0; k < s_.keys; k++) to[e * padded_ + k] = from[k * distance + e] * scale;
            for (int64_t k = s_.keys; k < padded_; k++) to[e * padded_ + k] = 0;
        }
        return to;
    }

    // What is added to the scores of each query, or of all, and hides what fills up.
    const float* fill_up(const float* mask) {
        int64_t rows = mask && s_.mask[1] ? s_.queries : 1;
        float* filled = mask_.get(rows * padded_);
        for (int64_t t = 0; t < rows; t++)
            for (int64_t k = 0; k < padded_; k++)
                filled[t * padded_ + k] = k >= s_.keys ? -INFINITY : mask ? mask[t * s_.mask[1] + k] : 0.0f;
        return filled;
    }

    // Attention weights in place of scores, with what is added to them.
    void weigh(float* row, const float* added) const {
        floats highest = all(-INFINITY);
        for (int64_t k = 0; k < padded_; k += LANES) {
            floats score = load(row + k) + load(added + k);
            store(row + k, score);
            highest = larger(highest, score);
        }
        soften(row, padded_, largest(highest));
    }

    // The gradient of the scores in place of that of the weights: p (g - sum p g), and the scale of queries and keys.
    void harden(const float* p, float* g) const {
        floats total{};
        for (int64_t k = 0; k < padded_; k += LANES) total += load(p + k) * load(g + k);
        float mean = sum(total);
        for (int64_t k = 0; k < padded_; k += LANES) store(g + k, load(p + k) * (load(g + k) - mean) * s_.scale);
    }
};

}  // namespace regard
