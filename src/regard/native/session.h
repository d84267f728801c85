// One search at work on a model: the sources it has read and the rows that grow.
#pragma once

#include "attention.h"
#include "best.h"
#include "paths.h"

namespace regard {

// What a search asks for.
class Session {
   public:
    virtual ~Session() = default;

    // Read sources, their ids one after the other; each becomes a source with as many rows as the others have, which
    // have said nothing. `shortlists` holds the tokens that may be said of each, one source after the other, in
    // ascending order, or is null.
    virtual void join(const int32_t* ids, const int64_t* lengths, int64_t count, const int32_t* shortlists,
                      const int64_t* shortlist_lengths) = 0;

    // Let row `from[i]` become row i, the same number of rows for each source; `sources` are those that stay, or all do
    // when `source_count` is negative.
    virtual void reorder(const int64_t* from, int64_t count, const int64_t* sources, int64_t source_count) = 0;

    // Append a token to each row, but to those that are not wanted; their hidden states are kept for what comes next.
    virtual void step(const int32_t* tokens, const uint8_t* wanted) = 0;

    // Logits of all rows of the last step; -infinity for rows that were not wanted and tokens that may not be said.
    virtual void logits(float* to) = 0;

    // The `count` most probable tokens of each row and their log-probabilities; `allowed` adds 0 or -infinity. Of equal
    // ones the lower token comes first. Rows that were not wanted get -infinity.
    virtual void candidates(int64_t count, const float* allowed, float* log_probabilities, int64_t* tokens) = 0;
};

// Keys and values of a source in each decoder layer; keys stand position beside position, so that a vector of scores is
// computed at a time.
template <typename Kept>
struct Memory {
    int64_t length = 0, padded = 0;
    Buffer<Kept> keys, values;  // [layer][key width][padded], [layer][length][value width]
    std::vector<int32_t> shortlist;  // the tokens that may be said of it, in order; none: all
    Matrix output;                   // the rows of the output matrix for them

    Kept* keys_of(int64_t layer, int64_t width) const { return keys.data() + layer * width * padded; }
    Kept* values_of(int64_t layer, int64_t width) const { return values.data() + layer * width * length; }
};

// Keys and values are read at every step and take most of what is read, so they are kept as briefly as the precision
// of the products allows.
template <typename Kept>
class Keeping : public Session {
   public:
    explicit Keeping(std::shared_ptr<const Model> model)
        : model_(std::move(model)),
          settings_(model_->settings),
          paths_(settings_.decoder_layers * (model_->keys() + model_->values())) {}

    void join(const int32_t* ids, const int64_t* lengths, int64_t count, const int32_t* shortlists,
              const int64_t* shortlist_lengths) override {
        int64_t width = rows_a_source();
        std::vector<std::shared_ptr<Memory<Kept>>> memories = encode(ids, lengths, count);
        for (int64_t i = 0; shortlists && i < count; shortlists += shortlist_lengths[i++]) {
            memories[i]->shortlist.assign(shortlists, shortlists + shortlist_lengths[i]);
            memories[i]->output = Matrix(model_->output, shortlists, shortlist_lengths[i]);
        }
        sources_.insert(sources_.end(), memories.begin(), memories.end());
        paths_.add(count * width);
    }

    void reorder(const int64_t* from, int64_t count, const int64_t* sources, int64_t source_count) override {
        paths_.reorder(from, count);
        if (source_count < 0) return;
        std::vector<std::shared_ptr<Memory<Kept>>> kept(source_count);
        for (int64_t i = 0; i < source_count; i++) kept[i] = sources_.at(sources[i]);
        for (std::shared_ptr<Memory<Kept>>& left : sources_)
            if (left.use_count() == 1) spare_.push_back(std::move(left));
        sources_ = std::move(kept);
    }

    void step(const int32_t* tokens, const uint8_t* wanted) override {
        if (sources_.empty()) throw std::runtime_error("there is no source");
        int64_t d_model = settings_.d_model;
        live_.clear();
        for (int64_t row = 0; row < paths_.rows(); row++)
            if (!wanted || wanted[row]) live_.push_back(row);
        int64_t count = int64_t(live_.size()), stride = rounded(d_model, PANEL);
        float* x = x_.get(count * stride);
        read_paths(tokens, x, stride);
        int64_t layer_offset = 0;
        for (const DecoderLayer& layer : model_->decoder) {
            sublayer(layer.attention_residual, x, count, stride, [&](const float* in, float* out) {
                self_attention(layer.attention, in, out, count, stride, layer_offset);
            });
            int64_t index = &layer - model_->decoder.data();
            sublayer(layer.memory_residual, x, count, stride, [&](const float* in, float* out) {
                memory_attention(layer.memory_attention, in, out, count, stride, index);
            });
            sublayer(layer.feed_forward_residual, x, count, stride, [&](const float* in, float* out) {
                feed_forward(layer.feed_forward, in, out, count, stride);
            });
            layer_offset += model_->keys() + model_->values();
        }
        if (model_->decoder_norm)
            for (int64_t i = 0; i < count; i++) model_->decoder_norm.apply(x + i * stride, x + i * stride);
    }

    void logits(float* to) override {
        int64_t vocabulary = settings_.target_vocabulary;
        std::fill_n(to, paths_.rows() * vocabulary, -INFINITY);
        for_logits([&](int64_t i, const int32_t* names, int64_t first, int64_t count, const float* values) {
            float* row = to + live_[i] * vocabulary;
            for (int64_t k = 0; k < count; k++) row[names ? names[first + k] : first + k] = values[k];
        });
    }

    void candidates(int64_t count, const float* allowed, float* log_probabilities, int64_t* tokens) override {
        std::fill_n(log_probabilities, paths_.rows() * count, -INFINITY);
        std::fill_n(tokens, paths_.rows() * count, int64_t(0));
        best_.clear();
        for (int64_t row : live_) best_.emplace_back(count, log_probabilities + row * count, tokens + row * count);
        for_logits([&](int64_t i, const int32_t* names, int64_t first, int64_t some, const float* values) {
            best_[i].read(names, first, some, values, allowed);
        });
        for (Best& best : best_) best.finish();
    }

   private:
    static constexpr int64_t COLUMNS = 8;  // panels of logits that are made at a time

    std::shared_ptr<const Model> model_;
    const Settings& settings_;
    std::vector<std::shared_ptr<Memory<Kept>>> sources_;
    std::vector<std::shared_ptr<Memory<Kept>>> spare_;  // of sources that have left

    Paths<Kept> paths_;
    std::vector<int64_t> live_;    // the rows of this step
    std::vector<int64_t> starts_;  // where the path of each of them begins in `path_`
    std::vector<Kept*> path_;      // the entries of all live rows, one row after the other
    std::vector<Best> best_;

    Operand operand_, hidden_operand_;
    Buffer<float> x_, in_, out_, projected_, heads_, hidden_, gated_, scores_, logits_, keys_;

    int64_t rows_a_source() const { return sources_.empty() ? 1 : paths_.rows() / int64_t(sources_.size()); }

    const Memory<Kept>& memory_of(int64_t i) const { return *sources_[live_[i] / rows_a_source()]; }

    // New entries for the tokens, the paths of all live rows, and the embeddings.
    void read_paths(const int32_t* tokens, float* x, int64_t stride) {
        starts_.assign(1, 0);
        for (int64_t row : live_) {
            paths_.say(row);
            starts_.push_back(starts_.back() + paths_.depth(row) + 1);
        }
        path_.resize(starts_.back());
        for (size_t i = 0; i < live_.size(); i++) {
            paths_.read(live_[i], &path_[starts_[i]]);
            embed(model_->target_embedding, settings_.target_vocabulary, settings_.target_scale,
                  model_->target_positions, model_->target_norm, tokens[live_[i]], depth(i), x + i * stride);
        }
    }

    int64_t depth(size_t i) const { return starts_[i + 1] - starts_[i] - 1; }

    void embed(const std::vector<float>& embedding, int64_t vocabulary, float scale, const Positions& positions,
               const Norm& norm, int64_t id, int64_t position, float* x) const {
        if (id < 0 || id >= vocabulary) throw std::runtime_error("a token is not in the vocabulary");
        int64_t d_model = settings_.d_model;
        if (!positions.added.empty() && (position + 1) * d_model > int64_t(positions.added.size()))
            throw std::runtime_error("more positions than the model has");
        const float* vector = &embedding[id * d_model];
        const float* place = positions.added.empty() ? nullptr : &positions.added[position * d_model];
        for (int64_t i = 0; i < d_model; i++) x[i] = vector[i] * scale + (place ? place[i] : 0.0f);
        if (norm) norm.apply(x, x);
    }

    template <typename Function>
    void sublayer(const Residual& residual, float* x, int64_t count, int64_t stride, Function function) {
        int64_t d_model = settings_.d_model;
        const float* in = x;
        if (settings_.norm_before) {
            float* normed = in_.get(count * stride);
            for (int64_t i = 0; i < count; i++) residual.norm.apply(x + i * stride, normed + i * stride);
            in = normed;
        }
        float* out = out_.get(count * stride);
        function(in, out);
        for (int64_t i = 0; i < count; i++) {
            float* row = out + i * stride;
            if (residual.norm_after) residual.norm_after.apply(row, row);
            add_scaled(x + i * stride, row, 1.0f, int(d_model));
            if (!settings_.norm_before) residual.norm.apply(x + i * stride, x + i * stride);
        }
    }

    void multiply(const Matrix& matrix, Operand& operand, const float* x, int64_t x_stride, int64_t count, float* y,
                  int64_t y_stride) {
        matrix.multiply(operand.prepare(x, count, x_stride, matrix.inputs, matrix.eight_bits()), count, y, y_stride);
    }

    void feed_forward(const FeedForward& layer, const float* in, float* out, int64_t count, int64_t stride) {
        int64_t width = layer.expand.width(), d_ff = settings_.d_ff;
        float* hidden = hidden_.get(count * width);
        Rows rows = operand_.prepare(in, count, stride, settings_.d_model, settings_.eight_bits);
        if (!settings_.gated && settings_.activation == RELU) {
            layer.expand.multiply(rows, count, hidden, width, [](floats x, float*) { return larger(x, floats{}); });
        } else {
            layer.expand.multiply(rows, count, hidden, width);
            for (int64_t i = 0; i < count; i++) {
                float* row = hidden + i * width;
                int64_t k = 0;
                for (; k + LANES <= d_ff; k += LANES) {
                    floats value = activate(load(row + k));
                    store(row + k, settings_.gated ? value * load(row + d_ff + k) : value);
                }
                if (k < d_ff) {
                    float rest[LANES];
                    store(rest, activate(load_some(row + k, int(d_ff - k), 0)));
                    for (int64_t j = k; j < d_ff; j++) row[j] = rest[j - k] * (settings_.gated ? row[d_ff + j] : 1.0f);
                }
            }
        }
        multiply(layer.contract, hidden_operand_, hidden, width, count, out, stride);
    }

    floats activate(floats x) const {
        switch (settings_.activation) {
            case GELU: return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
            case GELU_TANH: return 0.5f * x * (1.0f + tangent(0.79788456f * (x + 0.044715f * x * x * x)));
            case SILU: return x * sigmoid(x);
            case SIGMOID: return sigmoid(x);
            default: return larger(x, floats{});
        }
    }

    void self_attention(const SelfAttention& layer, const float* in, float* out, int64_t count, int64_t stride,
                        int64_t layer_offset) {
        const Positions& positions = model_->target_positions;
        int64_t queries = model_->queries(), keys = model_->keys(), values = model_->values();
        int64_t width = layer.in.width(), mixed = model_->mixed(), d_key = settings_.d_key, d_value = settings_.d_value;
        int64_t shared = settings_.heads / settings_.key_heads;
        Attention attention{settings_};
        float* projected = projected_.get(count * width);
        float* heads = heads_.get(count * mixed);
        multiply(layer.in, operand_, in, stride, count, projected, width);
        for (int64_t i = 0; i < count; i++) {
            float* row = projected + i * width;
            int64_t length = depth(i) + 1;
            attention.place(row, settings_.heads, layer.query_norm, positions, depth(i));
            attention.place(row + queries, settings_.key_heads, layer.key_norm, positions, depth(i));
            Kept* const* path = &path_[starts_[i]];
            for (int64_t e = 0; e < keys + values; e++) keep(row[queries + e], path[length - 1] + layer_offset + e);
            float* scores = scores_.get(rounded(length, LANES));
            std::fill_n(heads + i * mixed, mixed, 0.0f);
            for (int64_t h = 0; h < settings_.heads; h++) {
                int64_t key = layer_offset + h / shared * d_key, value = layer_offset + keys + h / shared * d_value;
                const float* query = row + h * d_key;
                int64_t t = 0;
                for (; t + 4 <= length; t += 4) {
                    const Kept* const four[4] = {path[t] + key, path[t + 1] + key, path[t + 2] + key, path[t + 3] + key};
                    four_dots(query, four, int(d_key), scores + t);
                }
                for (; t < length; t++) scores[t] = dot(query, path[t] + key, int(d_key));
                attention.weigh(scores, length, &positions, h, length - 1);
                attention.mix(scores, length, heads + i * mixed + h * d_value, [&](int64_t t) { return path[t] + value; });
            }
        }
        multiply(layer.out, operand_, heads, mixed, count, out, stride);
    }

    void memory_attention(const MemoryAttention& layer, const float* in, float* out, int64_t count, int64_t stride,
                          int64_t index) {
        int64_t width = layer.query.width(), mixed = model_->mixed(), values = model_->values();
        int64_t d_key = settings_.d_key, d_value = settings_.d_value, shared = settings_.heads / settings_.key_heads;
        Attention attention{settings_};
        float* projected = projected_.get(count * width);
        float* heads = heads_.get(count * mixed);
        multiply(layer.query, operand_, in, stride, count, projected, width);
        for (int64_t i = 0; i < count; i++) {
            const Memory<Kept>& memory = memory_of(i);
            const Kept* keys = memory.keys_of(index, model_->keys());
            const Kept* value = memory.values_of(index, values);
            if (i + 1 < count && &memory_of(i + 1) != &memory) {
                const Memory<Kept>& next = memory_of(i + 1);
                fetch(next.keys_of(index, model_->keys()), model_->keys() * next.padded);
                fetch(next.values_of(index, values), values * next.length);
            }
            float* row = projected + i * width;
            if (layer.query_norm)
                for (int64_t h = 0; h < settings_.heads; h++)
                    layer.query_norm.apply(row + h * d_key, row + h * d_key);
            float* scores = scores_.get(memory.padded);
            for (int64_t h = 0; h < settings_.heads; h++) {
                attention.score(row + h * d_key, keys + h / shared * d_key * memory.padded, memory.padded, scores);
                attention.weigh(scores, memory.length, nullptr, h, 0);
                attention.mix(scores, memory.length, heads + i * mixed + h * d_value,
                    [&](int64_t t) { return value + t * values + h / shared * d_value; });
            }
        }
        multiply(layer.out, operand_, heads, mixed, count, out, stride);
    }

    // `to` [d_key of all key heads][padded] from rows of `stride`.
    template <typename To>
    static void transpose(const float* from, int64_t stride, int64_t length, int64_t width, int64_t padded, To* to) {
        for (int64_t e = 0; e < width; e++) {
            for (int64_t t = 0; t < length; t++) keep(from[t * stride + e], to + e * padded + t);
            for (int64_t t = length; t < padded; t++) keep(0.0f, to + e * padded + t);
        }
    }

    void encoder_attention(const SelfAttention& layer, const float* in, float* out, const int64_t* lengths,
                           int64_t sources, int64_t count, int64_t stride) {
        const Positions& positions = model_->source_positions;
        int64_t queries = model_->queries(), keys = model_->keys();
        int64_t width = layer.in.width(), mixed = model_->mixed(), d_key = settings_.d_key, d_value = settings_.d_value;
        int64_t shared = settings_.heads / settings_.key_heads;
        float* projected = projected_.get(count * width);
        float* heads = heads_.get(count * mixed);
        multiply(layer.in, operand_, in, stride, count, projected, width);
        Attention attention{settings_};
        float* first = projected;
        float* to = heads;
        for (int64_t source = 0; source < sources; source++) {
            int64_t length = lengths[source], padded = rounded(length, LANES);
            for (int64_t t = 0; t < length; t++) {
                attention.place(first + t * width, settings_.heads, layer.query_norm, positions, t);
                attention.place(first + t * width + queries, settings_.key_heads, layer.key_norm, positions, t);
            }
            float* beside = keys_.get(keys * padded);
            transpose(first + queries, width, length, keys, padded, beside);
            float* scores = scores_.get(padded);
            for (int64_t t = 0; t < length; t++)
                for (int64_t h = 0; h < settings_.heads; h++) {
                    attention.score(first + t * width + h * d_key, beside + h / shared * d_key * padded, padded, scores);
                    attention.weigh(scores, length, &positions, h, t);
                    const float* value = first + queries + keys + h / shared * d_value;
                    attention.mix(scores, length, to + t * mixed + h * d_value, [&](int64_t s) { return value + s * width; });
                }
            first += length * width;
            to += length * mixed;
        }
        multiply(layer.out, operand_, heads, mixed, count, out, stride);
    }

    std::vector<std::shared_ptr<Memory<Kept>>> encode(const int32_t* ids, const int64_t* lengths, int64_t sources) {
        int64_t count = 0, d_model = settings_.d_model, stride = rounded(d_model, PANEL);
        for (int64_t source = 0; source < sources; source++) {
            if (lengths[source] < 1) throw std::runtime_error("a source is empty");
            count += lengths[source];
        }
        float* x = x_.get(count * stride);
        for (int64_t source = 0, i = 0; source < sources; source++)
            for (int64_t t = 0; t < lengths[source]; t++, i++)
                embed(model_->source_embedding, settings_.source_vocabulary, settings_.source_scale,
                      model_->source_positions, model_->source_norm, ids[i], t, x + i * stride);
        for (const EncoderLayer& layer : model_->encoder) {
            sublayer(layer.attention_residual, x, count, stride, [&](const float* in, float* out) {
                encoder_attention(layer.attention, in, out, lengths, sources, count, stride);
            });
            sublayer(layer.feed_forward_residual, x, count, stride, [&](const float* in, float* out) {
                feed_forward(layer.feed_forward, in, out, count, stride);
            });
        }
        if (model_->encoder_norm)
            for (int64_t i = 0; i < count; i++) model_->encoder_norm.apply(x + i * stride, x + i * stride);
        return remember(x, lengths, sources, count, stride);
    }

    std::vector<std::shared_ptr<Memory<Kept>>> remember(const float* x, const int64_t* lengths, int64_t sources, int64_t count,
                                                  int64_t stride) {
        int64_t keys = model_->keys(), values = model_->values(), layers = settings_.decoder_layers;
        std::vector<std::shared_ptr<Memory<Kept>>> memories;
        for (int64_t source = 0; source < sources; source++) {
            std::shared_ptr<Memory<Kept>> memory;
            if (spare_.empty()) {
                memory = std::make_shared<Memory<Kept>>();
            } else {
                memory = std::move(spare_.back());
                spare_.pop_back();
                memory->shortlist.clear();
            }
            memory->length = lengths[source];
            memory->padded = rounded(memory->length, LANES);
            memory->keys.get(layers * keys * memory->padded);
            memory->values.get(layers * values * memory->length);
            memories.push_back(std::move(memory));
        }
        for (int64_t index = 0; index < layers; index++) {
            const MemoryAttention& layer = model_->decoder[index].memory_attention;
            int64_t width = layer.memory.width();
            float* projected = projected_.get(count * width);
            multiply(layer.memory, operand_, x, stride, count, projected, width);
            for (auto& memory : memories) {
                int64_t length = memory->length;
                if (layer.key_norm)
                    for (int64_t t = 0; t < length; t++)
                        for (int64_t h = 0; h < settings_.key_heads; h++) {
                            float* head = projected + t * width + h * settings_.d_key;
                            layer.key_norm.apply(head, head);
                        }
                transpose(projected, width, length, keys, memory->padded, memory->keys_of(index, keys));
                Kept* value = memory->values_of(index, values);
                for (int64_t t = 0; t < length; t++)
                    for (int64_t e = 0; e < values; e++) keep(projected[t * width + keys + e], value++);
                projected += length * width;
            }
        }
        return memories;
    }

    // Logits of the live rows, and by which names tokens go there: those of a source's shortlist, or null.
    template <typename Use>
    void for_logits(Use use) {
        int64_t count = int64_t(live_.size());
        for (int64_t first = 0, last = 0; first < count; first = last) {
            const Memory<Kept>& memory = memory_of(first);
            bool listed = !memory.shortlist.empty();
            auto alike = [&](int64_t i) { return listed ? &memory_of(i) == &memory : memory_of(i).shortlist.empty(); };
            while (last < count && alike(last)) last++;
            for_logits(listed ? memory.output : model_->output, first, last, [&](int64_t i, int64_t from, int64_t some,
                                                                                  const float* values) {
                use(i, listed ? memory.shortlist.data() : nullptr, from, some, values);
            });
        }
    }

    // Those of rows with one output matrix, some columns of all at a time, so that neither they nor the weights leave
    // the cache.
    template <typename Use>
    void for_logits(const Matrix& output, int64_t begin, int64_t end, Use use) {
        int64_t count = end - begin, stride = rounded(settings_.d_model, PANEL), width = COLUMNS * PANEL;
        float cap = settings_.output_softcap;
        float* logits = logits_.get(count * width);
        Rows rows = operand_.prepare(x_.data() + begin * stride, count, stride, settings_.d_model, settings_.eight_bits);
        for (int64_t panel = 0; panel < output.panels(); panel += COLUMNS) {
            int64_t last = std::min(panel + COLUMNS, output.panels()), first = panel * PANEL;
            output.multiply(rows, count, panel, last, logits, width, [cap](floats x, float*) {
                return cap > 0 ? cap * tangent(x / cap) : x;
            });
            int64_t some = std::min<int64_t>(last * PANEL, output.outputs) - first;
            for (int64_t i = 0; i < count; i++) use(begin + i, first, some, logits + i * width);
        }
    }
};

}  // namespace regard
