// Products of rows with a matrix that is packed once: float32, or int8 weights with a scale for each output and int8
// rows with a scale for each row. Each row is computed by itself in one order, so others beside it never change it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "vectors.h"

namespace regard {

constexpr int PANEL = 64;  // outputs that are computed together
constexpr int ROWS = 6;    // rows that are
#if defined(__AVX512F__)
constexpr int SIDE = 4;  // vectors side by side whose sums, for so many rows, fill the registers: 32 here,
#else
constexpr int SIDE = 2;  // 16 elsewhere
#endif

inline int64_t rounded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Memory on cache lines that only grows; its contents are lost when it does.
template <typename T>
class Buffer {
   public:
    T* get(size_t count) {
        if (count > size_) {
            size_t wanted = (count + count / 4) * sizeof(T), unit = wanted < LARGE ? 64 : LARGE;
            size_t bytes = rounded(wanted, unit);
            data_.reset();
            data_.reset(static_cast<T*>(std::aligned_alloc(unit, bytes)));
            if (!data_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
            if (unit == LARGE) madvise(data_.get(), bytes, MADV_HUGEPAGE);  // fewer pages to look up
#endif
            std::memset(data_.get(), 0, bytes);
            size_ = bytes / sizeof(T);
        }
        return data_.get();
    }
    T* data() const { return data_.get(); }

   private:
    static constexpr size_t LARGE = 1 << 21;

    struct Free {
        void operator()(T* memory) const { std::free(memory); }
    };
    std::unique_ptr<T, Free> data_;
    size_t size_ = 0;
};

// Rows as the products read them. `stride` is the distance of two rows.
struct Rows {
    const float* values = nullptr;
    int64_t stride = 0;
    const uint8_t* bytes = nullptr;  // int8 + 128, because the CPU multiplies unsigned by signed bytes
    int64_t byte_stride = 0;
    const float* scales = nullptr;
};

// y = W x + b, with y wide enough for whole panels.
class Matrix {
   public:
    int64_t outputs = 0, inputs = 0;

    Matrix() = default;
    Matrix(const float* weight, const float* bias, int64_t outputs, int64_t inputs, bool eight_bits)
        : outputs(outputs), inputs(inputs), eight_bits_(eight_bits) {
        panels_ = rounded(outputs, PANEL) / PANEL;
        depth_ = eight_bits ? rounded(inputs, 4) : inputs;
        std::fill_n(bias_.get(panels_ * PANEL), panels_ * PANEL, 0.0f);
        if (bias) std::copy_n(bias, outputs, bias_.data());
        if (eight_bits)
            pack_bytes(weight);
        else
            pack_floats(weight);
    }

    // Some outputs of another matrix, in this order.
    Matrix(const Matrix& whole, const int32_t* chosen, int64_t count)
        : outputs(count), inputs(whole.inputs), eight_bits_(whole.eight_bits_), depth_(whole.depth_) {
        panels_ = rounded(outputs, PANEL) / PANEL;
        std::fill_n(bias_.get(panels_ * PANEL), panels_ * PANEL, 0.0f);
        if (eight_bits_) {
            std::fill_n(scales_.get(panels_ * PANEL), panels_ * PANEL, 0.0f);
            std::fill_n(offsets_.get(panels_ * PANEL), panels_ * PANEL, 0);
            bytes_.get(panels_ * depth_ * PANEL);
        } else {
            floats_.get(panels_ * inputs * PANEL);
        }
        for (int64_t n = 0; n < count; n++) {
            int64_t from = chosen[n];
            if (from < 0 || from >= whole.outputs) throw std::runtime_error("a token is not in the vocabulary");
            bias_.data()[n] = whole.bias_.data()[from];
            if (eight_bits_) {
                scales_.data()[n] = whole.scales_.data()[from];
                offsets_.data()[n] = whole.offsets_.data()[from];
                for (int64_t group = 0; group < depth_ / 4; group++)
                    std::memcpy(bytes_.data() + place(n, group, depth_ / 4) * 4,
                                whole.bytes_.data() + place(from, group, depth_ / 4) * 4, 4);
            } else {
                for (int64_t k = 0; k < inputs; k++)
                    floats_.data()[place(n, k, inputs)] = whole.floats_.data()[place(from, k, inputs)];
            }
        }
    }

    bool eight_bits() const { return eight_bits_; }
    int64_t width() const { return panels_ * PANEL; }

    int64_t panels() const { return panels_; }

    // Outputs of `count` rows; `finish` makes of a vector of sums (with bias) what is stored at a place.
    template <typename Finish>
    void multiply(const Rows& x, int64_t count, float* y, int64_t y_stride, Finish finish) const {
        multiply(x, count, 0, panels_, y, y_stride, finish);
    }

    // Those of some panels only; `y` begins with the first of them.
    template <typename Finish>
    void multiply(const Rows& x, int64_t count, int64_t first, int64_t last, float* y, int64_t y_stride,
                  Finish finish) const {
        y -= first * PANEL;
        for (int64_t panel = first; panel < last; panel++) {
            int64_t row = 0;
            for (; row + ROWS <= count; row += ROWS) block<ROWS>(x, row, panel, y, y_stride, finish);
            switch (count - row) {
                case 5: block<5>(x, row, panel, y, y_stride, finish); break;
                case 4: block<4>(x, row, panel, y, y_stride, finish); break;
                case 3: block<3>(x, row, panel, y, y_stride, finish); break;
                case 2: block<2>(x, row, panel, y, y_stride, finish); break;
                case 1: block<1>(x, row, panel, y, y_stride, finish); break;
            }
        }
    }

    void multiply(const Rows& x, int64_t count, float* y, int64_t y_stride) const {
        multiply(x, count, y, y_stride, [](floats sums, float*) { return sums; });
    }

   private:
    bool eight_bits_ = false;
    int64_t panels_ = 0, depth_ = 0;
    Buffer<float> floats_, bias_, scales_;
    Buffer<int8_t> bytes_;
    Buffer<int32_t> offsets_;  // 128 times the sum of an output's weights: what the shift of the rows adds

    // Where an output's weight for an input, or four of them, stands in panels of this depth.
    static int64_t place(int64_t output, int64_t input, int64_t depth) {
        return (output / PANEL * depth + input) * PANEL + output % PANEL;
    }

    void pack_floats(const float* weight) {
        float* packed = floats_.get(panels_ * inputs * PANEL);
        std::fill_n(packed, panels_ * inputs * PANEL, 0.0f);
        for (int64_t n = 0; n < outputs; n++)
            for (int64_t k = 0; k < inputs; k++)
                packed[place(n, k, inputs)] = weight[n * inputs + k];
    }

    void pack_bytes(const float* weight) {
        int8_t* packed = bytes_.get(panels_ * depth_ * PANEL);
        std::fill_n(packed, panels_ * depth_ * PANEL, int8_t(0));
        std::fill_n(scales_.get(panels_ * PANEL), panels_ * PANEL, 0.0f);
        std::fill_n(offsets_.get(panels_ * PANEL), panels_ * PANEL, 0);
        for (int64_t n = 0; n < outputs; n++) {
            float most = 0;
            for (int64_t k = 0; k < inputs; k++) most = std::max(most, std::fabs(weight[n * inputs + k]));
            float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
            int32_t total = 0;
            for (int64_t k = 0; k < inputs; k++) {
                int value = int(std::nearbyint(weight[n * inputs + k] * inverse));
                packed[place(n, k / 4, depth_ / 4) * 4 + k % 4] = int8_t(value);
                total += value;
            }
            scales_.data()[n] = scale;
            offsets_.data()[n] = 128 * total;
        }
    }

    // `M` rows times one panel, so many outputs (from `n` on) at a time. The sums are named one by one (`I` counts
    // them), never in a loop: only so the compiler keeps all of them in registers.
    template <int M, typename Finish>
    void block(const Rows& x, int64_t row, int64_t panel, float* y, int64_t y_stride, Finish finish) const {
        auto sums = std::make_integer_sequence<int, M * SIDE>{};
        for (int64_t n = panel * PANEL; n < (panel + 1) * PANEL; n += SIDE * LANES) {
            float* to = y + row * y_stride + n;
            if (eight_bits_)
                block_of_bytes(sums, x, row, n, to, y_stride, finish);
            else
                block_of_floats(sums, x, row, n, to, y_stride, finish);
        }
    }

    template <typename Finish, int... I>
    void block_of_floats(std::integer_sequence<int, I...>, const Rows& x, int64_t row, int64_t n, float* to,
                         int64_t y_stride, Finish finish) const {
        floats sums[sizeof...(I)];
        ((sums[I] = floats{}), ...);
        const float* from = x.values + row * x.stride;
        const float* weights = floats_.data() + place(n, 0, inputs);
        for (int64_t k = 0; k < inputs; k++, weights += PANEL)
            ((sums[I] += from[I / SIDE * x.stride + k] * load(weights + I % SIDE * LANES)), ...);
        const float* bias = bias_.data() + n;
        (put(to, y_stride, I, sums[I] + load(bias + I % SIDE * LANES), finish), ...);
    }

    template <typename Finish, int... I>
    void block_of_bytes(std::integer_sequence<int, I...>, const Rows& x, int64_t row, int64_t n, float* to,
                        int64_t y_stride, Finish finish) const {
        ints sums[sizeof...(I)];
        ((sums[I] = ints{}), ...);
        const uint8_t* from = x.bytes + row * x.byte_stride;
        const int8_t* weights = bytes_.data() + place(n, 0, depth_ / 4) * 4;
        for (int64_t k = 0; k < depth_; k += 4, weights += 4 * PANEL)
            ((sums[I] = add_products(sums[I], from + I / SIDE * x.byte_stride + k, weights + I % SIDE * 4 * LANES)), ...);
        const ints* offsets = reinterpret_cast<const ints*>(offsets_.data() + n);
        const float *scales = scales_.data() + n, *bias = bias_.data() + n;
        auto real = [&](int i, ints sum) {
            int place = i % SIDE * LANES;
            floats exact = __builtin_convertvector(sum - offsets[i % SIDE], floats);
            return exact * (load(scales + place) * x.scales[row + i / SIDE]) + load(bias + place);
        };
        (put(to, y_stride, I, real(I, sums[I]), finish), ...);
    }

    template <typename Finish>
    static void put(float* to, int64_t y_stride, int i, floats value, Finish finish) {
        float* place = to + i / SIDE * y_stride + i % SIDE * LANES;
        store(place, finish(value, place));
    }

    // A vector of sums, each with the products of four bytes of a row and four weights.
    static ints add_products(ints sums, const uint8_t* four, const int8_t* weights) {
#if defined(__AVX512VNNI__)
        int32_t together;
        std::memcpy(&together, four, 4);
        return (ints)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(together), _mm512_loadu_si512(weights));
#elif defined(__AVX2__)
        int32_t together;
        std::memcpy(&together, four, 4);
        __m256i row = _mm256_cvtepu8_epi16(_mm_set1_epi32(together));
        auto pairs = [&](const int8_t* sixteen) {
            __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen));
            return _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), row);
        };
        __m256i halves = _mm256_hadd_epi32(pairs(weights), pairs(weights + 16));  // of outputs 0, 1, 4, 5, 2, 3, 6, 7
        return sums + (ints)_mm256_permute4x64_epi64(halves, 0xd8);
#else
        for (int i = 0; i < LANES; i++)
            sums[i] += four[0] * weights[4 * i] + four[1] * weights[4 * i + 1] + four[2] * weights[4 * i + 2] +
                       four[3] * weights[4 * i + 3];
        return sums;
#endif
    }
};

// Rows made ready for products of a precision.
class Operand {
   public:
    // Rows of `width` numbers; what is given stays where it is.
    Rows prepare(const float* values, int64_t count, int64_t stride, int64_t width, bool eight_bits) {
        Rows rows;
        rows.values = values;
        rows.stride = stride;
        if (eight_bits) {
            rows.byte_stride = rounded(width, 64);
            uint8_t* bytes = bytes_.get(count * rows.byte_stride);
            float* scales = scales_.get(count);
            for (int64_t row = 0; row < count; row++)
                scales[row] = quantise(values + row * stride, bytes + row * rows.byte_stride, width);
            rows.bytes = bytes;
            rows.scales = scales;
        }
        return rows;
    }

   private:
    Buffer<uint8_t> bytes_;
    Buffer<float> scales_;

    static float quantise(const float* x, uint8_t* bytes, int64_t width) {
        floats most{}, nothing{};
        for (int64_t k = 0; k < width; k += LANES) {
            floats part = k + LANES <= width ? load(x + k) : load_some(x + k, int(width - k), 0);
            most = larger(most, absolute(part));
            nothing += part * 0.0f;  // NaN as soon as a number is not finite: whole numbers would hide that
        }
        float top = largest(most), inverse = top > 0 ? 127.0f / top : 0.0f;
        const float magic = 12582912.0f;
        for (int64_t k = 0; k < width; k += LANES) {
            floats part = k + LANES <= width ? load(x + k) : load_some(x + k, int(width - k), 0);
            ints whole = __builtin_convertvector((part * inverse + magic) - magic, ints) + 128;
#if defined(__AVX512F__)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + k), _mm512_cvtepi32_epi8((__m512i)whole));
#else
            for (int i = 0; i < LANES; i++) bytes[k + i] = uint8_t(whole[i]);
#endif
        }
        return top / 127.0f + sum(nothing);
    }
};

}  // namespace regard
