// Products of rows with a matrix that is packed once: float32, or int8 weights with a scale for each output and int8
// rows with a scale for each row. Each row is computed by itself in one order, so others beside it never change it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "vectors.h"

namespace regard {

constexpr int PANEL = 64;  // outputs that are computed together
constexpr int ROWS = 6;    // rows that are: 6 x 64 sums fill the registers of AVX-512

inline int64_t rounded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Memory on cache lines that only grows; its contents are lost when it does.
template <typename T>
class Buffer {
   public:
    T* get(size_t count) {
        if (count > size_) {
            size_t bytes = rounded((count + count / 4) * sizeof(T), 64);
            data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
            if (!data_) throw std::bad_alloc();
            std::memset(data_.get(), 0, bytes);
            size_ = count;
        }
        return data_.get();
    }
    T* data() const { return data_.get(); }

   private:
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

    bool eight_bits() const { return eight_bits_; }
    int64_t width() const { return panels_ * PANEL; }

    // Outputs of `count` rows; `finish` makes of sixteen sums (with bias) what is stored at a place.
    template <typename Finish>
    void multiply(const Rows& x, int64_t count, float* y, int64_t y_stride, Finish finish) const {
        for (int64_t panel = 0; panel < panels_; panel++) {
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

    void pack_floats(const float* weight) {
        float* packed = floats_.get(panels_ * inputs * PANEL);
        std::fill_n(packed, panels_ * inputs * PANEL, 0.0f);
        for (int64_t n = 0; n < outputs; n++)
            for (int64_t k = 0; k < inputs; k++)
                packed[(n / PANEL * inputs + k) * PANEL + n % PANEL] = weight[n * inputs + k];
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
                packed[((n / PANEL * (depth_ / 4) + k / 4) * PANEL + n % PANEL) * 4 + k % 4] = int8_t(value);
                total += value;
            }
            scales_.data()[n] = scale;
            offsets_.data()[n] = 128 * total;
        }
    }

    template <int M, typename Finish>
    void block(const Rows& x, int64_t row, int64_t panel, float* y, int64_t y_stride, Finish finish) const {
        const float* bias = bias_.data() + panel * PANEL;
        if (eight_bits_) {
            ints sums[M][4] = {};
            add_bytes<M>(sums, x.bytes + row * x.byte_stride, x.byte_stride, bytes_.data() + panel * depth_ * PANEL);
            const float* scales = scales_.data() + panel * PANEL;
            const ints* offsets = reinterpret_cast<const ints*>(offsets_.data() + panel * PANEL);
            for (int m = 0; m < M; m++) {
                float* to = y + (row + m) * y_stride + panel * PANEL;
                for (int j = 0; j < 4; j++) {
                    floats exact = __builtin_convertvector(sums[m][j] - offsets[j], floats);
                    floats value = exact * (load(scales + 16 * j) * x.scales[row + m]) + load(bias + 16 * j);
                    store(to + 16 * j, finish(value, to + 16 * j));
                }
            }
        } else {
            floats sums[M][4] = {};
            const float* from = x.values + row * x.stride;
            const float* weights = floats_.data() + panel * inputs * PANEL;
            for (int64_t k = 0; k < inputs; k++, weights += PANEL) {
                floats b0 = load(weights), b1 = load(weights + 16), b2 = load(weights + 32), b3 = load(weights + 48);
#pragma GCC unroll 6
                for (int m = 0; m < M; m++) {
                    float a = from[m * x.stride + k];
                    sums[m][0] += a * b0;
                    sums[m][1] += a * b1;
                    sums[m][2] += a * b2;
                    sums[m][3] += a * b3;
                }
            }
            for (int m = 0; m < M; m++) {
                float* to = y + (row + m) * y_stride + panel * PANEL;
                for (int j = 0; j < 4; j++) store(to + 16 * j, finish(sums[m][j] + load(bias + 16 * j), to + 16 * j));
            }
        }
    }

    template <int M>
    void add_bytes(ints (&sums)[M][4], const uint8_t* from, int64_t stride, const int8_t* weights) const {
        for (int64_t k = 0; k < depth_; k += 4, weights += 4 * PANEL) {
#if defined(__AVX512VNNI__)
            __m512i b[4];
            for (int j = 0; j < 4; j++) b[j] = _mm512_loadu_si512(weights + 64 * j);
#pragma GCC unroll 6
            for (int m = 0; m < M; m++) {
                int32_t four;
                std::memcpy(&four, from + m * stride + k, 4);
                __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) sums[m][j] = (ints)_mm512_dpbusd_epi32((__m512i)sums[m][j], a, b[j]);
            }
#else
            for (int m = 0; m < M; m++)
                for (int n = 0; n < PANEL; n++) {
                    int32_t total = 0;
                    for (int i = 0; i < 4; i++) total += int32_t(from[m * stride + k + i]) * weights[4 * n + i];
                    reinterpret_cast<int32_t*>(&sums[m][0])[n] += total;
                }
#endif
        }
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
