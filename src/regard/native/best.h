// The most probable tokens of a row, found while its logits are made.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace regard {

class Best {
   public:
    // The `count` best are kept in order where their values and tokens are to stand.
    Best(int64_t count, float* values, int64_t* tokens) : count_(count), values_(values), tokens_(tokens) {}

    // Some logits more, those from token `first` on, or from `names[first]` on; `allowed` adds 0 or -infinity.
    void read(const int32_t* names, int64_t first, int64_t some, const float* logits, const float* allowed) {
        int64_t whole = some / LANES * LANES;
        int rest = int(some - whole);
        floats last = rest ? load_some(logits + whole, rest, -INFINITY) : all(-INFINITY);
        floats most = last;
        for (int64_t k = 0; k < whole; k += LANES) most = larger(most, load(logits + k));
        float top = std::max(top_, largest(most));
        floats total = rest ? exponential(last - top) : floats{};
        for (int64_t k = 0; k < whole; k += LANES) total += exponential(load(logits + k) - top);
        total_ = total_ * (top_ == top ? 1.0f : exponential(all(top_ - top))[0]) + sum(total);
        top_ = top;
        if (held_ == count_ && !(largest(most) > least_)) return;
        for (int64_t k = 0; k < some; k += LANES) {
            int64_t end = std::min<int64_t>(k + LANES, some);
            if (held_ == count_ && k < whole && !(largest(load(logits + k)) > least_)) continue;
            for (int64_t i = k; i < end; i++) {
                int64_t token = names ? names[first + i] : first + i;
                if (allowed[token] == 0.0f) offer(token, logits[i]);
            }
        }
    }

    // Make log-probabilities of the logits that were kept; NaN where a logit was no finite number.
    void finish() {
        float normaliser = top_ + std::log(total_);
        for (int64_t i = 0; i < held_; i++) values_[i] -= normaliser;
        if (normaliser != normaliser) values_[0] = normaliser;
    }

   private:
    int64_t count_, held_ = 0;
    float* values_;
    int64_t* tokens_;
    float top_ = -INFINITY, total_ = 0;
    float least_ = -INFINITY;  // what the next one must exceed, once there are enough

    void offer(int64_t token, float value) {
        if (held_ == count_ && !(value > least_)) return;
        int64_t place = held_ < count_ ? held_++ : count_ - 1;
        for (; place > 0 && values_[place - 1] < value; place--) {
            values_[place] = values_[place - 1];
            tokens_[place] = tokens_[place - 1];
        }
        values_[place] = value;
        tokens_[place] = token;
        if (held_ == count_) least_ = values_[count_ - 1];
    }
};

}  // namespace regard
