// What rows have said: paths of entries, each with the keys and values of one token in each layer.
#pragma once

#include "products.h"

namespace regard {

// Hypotheses share the entries of what they have in common; an entry whose last hypothesis is gone is used again.
template <typename Kept>
class Paths {
   public:
    // `width` numbers are kept of each token.
    explicit Paths(int64_t width) : width_(width) {}

    int64_t rows() const { return int64_t(last_.size()); }

    // More rows, which have said nothing.
    void add(int64_t count) { last_.resize(last_.size() + count, NONE); }

    // Let row `from[i]` become row i.
    void reorder(const int64_t* from, int64_t count) {
        std::vector<int32_t> moved(count);
        for (int64_t i = 0; i < count; i++) {
            if (from[i] < 0 || from[i] >= rows()) throw std::runtime_error("there is no such row");
            moved[i] = last_[from[i]];
            if (moved[i] != NONE) entries_[moved[i]].held++;
        }
        for (int32_t index : last_) release(index);
        last_ = std::move(moved);
    }

    // A row says one token more; its keys and values are still to be written.
    void say(int64_t row) {
        if (free_.empty()) grow();
        int32_t index = free_.back(), before = last_[row];
        free_.pop_back();
        entries_[index] = {before, 1, before == NONE ? 0 : entries_[before].depth + 1};
        last_[row] = index;  // it takes over the row's hold on what came before
    }

    // How many tokens a row has said before its last one.
    int64_t depth(int64_t row) const { return entries_[last_[row]].depth; }

    // Where the numbers of its tokens are, from the first to the last.
    void read(int64_t row, Kept** to) {
        Kept** place = to + depth(row);
        for (int32_t index = last_[row]; index != NONE; index = entries_[index].before)
            *place-- = chunks_[index / CHUNK].data() + index % CHUNK * width_;
    }

   private:
    static constexpr int32_t NONE = -1;
    static constexpr int64_t CHUNK = 256;  // entries that are allocated at once

    struct Entry {
        int32_t before, held, depth;
    };
    int64_t width_;
    std::vector<int32_t> last_;  // the last entry of each row
    std::vector<Entry> entries_;
    std::vector<int32_t> free_;
    std::vector<Buffer<Kept>> chunks_;

    void release(int32_t index) {
        while (index != NONE && --entries_[index].held == 0) {
            free_.push_back(index);
            index = entries_[index].before;
        }
    }

    void grow() {
        chunks_.emplace_back();
        chunks_.back().get(CHUNK * width_);
        int32_t first = int32_t(entries_.size());
        entries_.resize(first + CHUNK);
        for (int32_t i = first + CHUNK; i-- > first;) free_.push_back(i);
    }
};

}  // namespace regard
