// The encoder-decoder of regard.model.transformer as one pass over packed weights, for rows that grow by a token a step.
//
// Nothing is padded: an encoder pass works on the tokens of all its sources side by side, and a step on the rows that
// still grow. What a row has said is a path of entries, each with the keys and values of one token; hypotheses share
// the entries of what they have in common, so that a search reorders paths and copies nothing.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "products.h"

namespace regard {

struct Settings {
    int32_t d_model, d_ff, heads, key_heads, d_key, d_value, encoder_layers, decoder_layers;
    int32_t source_vocabulary, target_vocabulary;
    int32_t norm_before, norm_after_sublayer, root_mean_square, activation, gated;
    int32_t rotary_pairs, rotary_interleaved, eight_bits;
    float epsilon, source_scale, target_scale, attention_scale, attention_softcap, output_softcap;
};

enum Activation { RELU, GELU, GELU_TANH, SILU, SIGMOID };

// Tensors by the names of the model's state; the caller keeps them alive until the model is built.
struct Tensor {
    const float* data;
    int64_t rows, columns;
};
using Tensors = std::map<std::string, Tensor>;

inline const Tensor* find(const Tensors& tensors, const std::string& name) {
    auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
}

inline std::vector<float> copied(const Tensors& tensors, const std::string& name) {
    const Tensor* tensor = find(tensors, name);
    if (!tensor) return {};
    return std::vector<float>(tensor->data, tensor->data + tensor->rows * tensor->columns);
}

inline Matrix matrix(const Tensors& tensors, const std::string& name, bool eight_bits, int64_t first = 0,
                     int64_t last = -1) {
    const Tensor* weight = find(tensors, name + ".weight");
    if (!weight) throw std::runtime_error("the model has no " + name + ".weight");
    const Tensor* bias = find(tensors, name + ".bias");
    if (last < 0) last = weight->rows;
    return Matrix(weight->data + first * weight->columns, bias ? bias->data + first : nullptr, last - first,
                  weight->columns, eight_bits);
}

// Layer normalisation or that by the root mean square; without weights nothing is done.
struct Norm {
    std::vector<float> weight, bias;
    bool root_mean_square = false;
    float epsilon = 0;

    Norm() = default;
    Norm(const Tensors& tensors, const std::string& name, const Settings& settings)
        : weight(copied(tensors, name + ".weight")),
          bias(copied(tensors, name + ".bias")),
          root_mean_square(settings.root_mean_square),
          epsilon(settings.epsilon) {}

    explicit operator bool() const { return !weight.empty(); }

    void apply(const float* x, float* y) const {
        int width = int(weight.size());
        float mean = 0;
        if (!root_mean_square) {
            floats total{};
            for (int i = 0; i < width; i += LANES) total += part(x, i, width);
            mean = sum(total) / width;
        }
        floats squares{};
        for (int i = 0; i < width; i += LANES) {
            floats centred = i + LANES <= width ? load(x + i) - mean : load_some(x + i, width - i, mean) - mean;
            squares += centred * centred;
        }
        float factor = 1.0f / std::sqrt(sum(squares) / width + epsilon);
        int i = 0;
        for (; i + LANES <= width; i += LANES) {
            floats value = (load(x + i) - mean) * factor * load(&weight[i]);
            store(y + i, bias.empty() ? value : value + load(&bias[i]));
        }
        for (; i < width; i++) y[i] = (x[i] - mean) * factor * weight[i] + (bias.empty() ? 0.0f : bias[i]);
    }

   private:
    static floats part(const float* x, int i, int width) {
        return i + LANES <= width ? load(x + i) : load_some(x + i, width - i, 0);
    }
};

// What positions do in attention: turn queries and keys, or add to scores by distance.
struct Positions {
    std::vector<float> added;        // [position][d_model]
    std::vector<float> cos, sin;     // [position][pair]
    std::vector<float> bias;         // [head][key position - query position + bias_middle]
    int64_t bias_width = 0, bias_middle = 0;

    Positions() = default;
    Positions(const Tensors& tensors, const std::string& name)
        : added(copied(tensors, name + ".added")),
          cos(copied(tensors, name + ".cos")),
          sin(copied(tensors, name + ".sin")),
          bias(copied(tensors, name + ".bias")) {
        if (const Tensor* tensor = find(tensors, name + ".bias")) {
            bias_width = tensor->columns;
            bias_middle = tensor->columns / 2;
        }
    }
};

struct SelfAttention {
    Matrix in, out;
    Norm query_norm, key_norm;

    SelfAttention(const Tensors& tensors, const std::string& name, const Settings& settings)
        : in(matrix(tensors, name + ".in_projection", settings.eight_bits)),
          out(matrix(tensors, name + ".out_projection", settings.eight_bits)),
          query_norm(tensors, name + ".query_norm", settings),
          key_norm(tensors, name + ".key_norm", settings) {}
};

struct MemoryAttention {
    Matrix query, memory, out;
    Norm query_norm, key_norm;

    MemoryAttention(const Tensors& tensors, const std::string& name, const Settings& settings)
        : query(matrix(tensors, name + ".in_projection", settings.eight_bits, 0, settings.heads * settings.d_key)),
          memory(matrix(tensors, name + ".in_projection", settings.eight_bits, settings.heads * settings.d_key)),
          out(matrix(tensors, name + ".out_projection", settings.eight_bits)),
          query_norm(tensors, name + ".query_norm", settings),
          key_norm(tensors, name + ".key_norm", settings) {}
};

struct FeedForward {
    Matrix expand, contract;

    FeedForward(const Tensors& tensors, const std::string& name, const Settings& settings)
        : expand(matrix(tensors, name + ".expand", settings.eight_bits)),
          contract(matrix(tensors, name + ".contract", settings.eight_bits)) {}
};

struct Residual {
    Norm norm, norm_after;

    Residual(const Tensors& tensors, const std::string& name, const Settings& settings)
        : norm(tensors, name + ".norm", settings), norm_after(tensors, name + ".norm_after", settings) {}
};

struct EncoderLayer {
    SelfAttention attention;
    FeedForward feed_forward;
    Residual attention_residual, feed_forward_residual;

    EncoderLayer(const Tensors& tensors, const std::string& name, const Settings& settings)
        : attention(tensors, name + ".self_attention", settings),
          feed_forward(tensors, name + ".feed_forward", settings),
          attention_residual(tensors, name + ".self_attention_residual", settings),
          feed_forward_residual(tensors, name + ".feed_forward_residual", settings) {}
};

struct DecoderLayer : EncoderLayer {
    MemoryAttention memory_attention;
    Residual memory_residual;

    DecoderLayer(const Tensors& tensors, const std::string& name, const Settings& settings)
        : EncoderLayer(tensors, name, settings),
          memory_attention(tensors, name + ".memory_attention", settings),
          memory_residual(tensors, name + ".memory_attention_residual", settings) {}
};

// Packed weights; not changed any more, so threads share one.
struct Model {
    Settings settings;
    std::vector<float> source_embedding, target_embedding;
    Positions source_positions, target_positions;
    Norm source_norm, target_norm, encoder_norm, decoder_norm;
    std::vector<EncoderLayer> encoder;
    std::vector<DecoderLayer> decoder;
    Matrix output;

    Model(const Tensors& tensors, const Settings& given)
        : settings(given),
          source_embedding(copied(tensors, "source_embedding.weight")),
          target_embedding(copied(tensors, "target_embedding.weight")),
          source_positions(tensors, "source_positions"),
          target_positions(tensors, "target_positions"),
          source_norm(tensors, "source_embedding.norm", settings),
          target_norm(tensors, "target_embedding.norm", settings),
          encoder_norm(tensors, "encoder_norm", settings),
          decoder_norm(tensors, "decoder_norm", settings),
          output(matrix(tensors, "output", settings.eight_bits)) {
        for (int i = 0; i < settings.encoder_layers; i++)
            encoder.emplace_back(tensors, "encoder." + std::to_string(i), settings);
        for (int i = 0; i < settings.decoder_layers; i++)
            decoder.emplace_back(tensors, "decoder." + std::to_string(i), settings);
    }

    int64_t queries() const { return int64_t(settings.heads) * settings.d_key; }
    int64_t keys() const { return int64_t(settings.key_heads) * settings.d_key; }
    int64_t values() const { return int64_t(settings.key_heads) * settings.d_value; }
    int64_t mixed() const { return int64_t(settings.heads) * settings.d_value; }
};

}  // namespace regard
