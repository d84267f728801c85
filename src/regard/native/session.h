// One search at work on a model: the sources it has read and the rows that grow.
#pragma once

#include "best.h"
#include "transformer.h"

namespace regard {

// Keys and values of a source in each decoder layer; keys stand position beside position, so that sixteen scores are
// computed at a time.
struct Memory {
    int64_t length = 0, padded = 0;
    Buffer<float> keys, values;  // [layer][key width][padded], [layer][length][value width]
    std::vector<int32_t> shortlist;  // the tokens that may be said of it, in order; none: all
    Matrix output;                   // the rows of the output matrix for them
};

class Session {
   public:
    explicit Session(std::shared_ptr<const Model> model) : model_(std::move(model)), settings_(model_->settings) {
        entry_width_ = settings_.decoder_layers * (model_->keys() + model_->values());
    }

    int64_t rows() const { return int64_t(paths_.size()); }

    // Read sources, their ids one after the other; each becomes a source with as many rows as the others have, which
    // have said nothing. `shortlists` holds the tokens that may be said of each, one source after the other, in
    // ascending order, or is null.
    void join(const int32_t* ids, const int64_t* lengths, int64_t count, const int32_t* shortlists,
              const int64_t* shortlist_lengths) {
        int64_t width = sources_.empty() ? 1 : rows() / int64_t(sources_.size());
        std::vector<std::shared_ptr<Memory>> memories = encode(ids, lengths, count);
        for (int64_t i = 0; shortlists && i < count; shortlists += shortlist_lengths[i++]) {
            memories[i]->shortlist.assign(shortlists, shortlists + shortlist_lengths[i]);
            memories[i]->output = Matrix(model_->output, shortlists, shortlist_lengths[i]);
        }
        sources_.insert(sources_.end(), memories.begin(), memories.end());
        paths_.resize(paths_.size() + count * width, NONE);
    }

    // Let row `from[i]` become row i, the same number of rows for each source; `sources` are those that stay, or all do
    // when `source_count` is negative.
    void reorder(const int64_t* from, int64_t count, const int64_t* sources, int64_t source_count) {
        std::vector<int32_t> paths(count);
        for (int64_t i = 0; i < count; i++) {
            if (from[i] < 0 || from[i] >= rows()) throw std::runtime_error("there is no such row");
            paths[i] = paths_[from[i]];
            hold(paths[i]);
        }
        for (int32_t path : paths_) release(path);
        paths_ = std::move(paths);
        if (source_count >= 0) {
            std::vector<std::shared_ptr<const Memory>> kept(source_count);
            for (int64_t i = 0; i < source_count; i++) kept[i] = sources_.at(sources[i]);
            sources_ = std::move(kept);
        }
    }

    // Append a token to each row, but to those that are not wanted; their hidden states are kept for what comes next.
    void step(const int32_t* tokens, const uint8_t* wanted) {
        if (sources_.empty()) throw std::runtime_error("there is no source");
        int64_t width = rows() / int64_t(sources_.size()), d_model = settings_.d_model;
        live_.clear();
        for (int64_t row = 0; row < rows(); row++)
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
                memory_attention(layer.memory_attention, in, out, count, stride, index, width);
            });
            sublayer(layer.feed_forward_residual, x, count, stride, [&](const float* in, float* out) {
                feed_forward(layer.feed_forward, in, out, count, stride);
            });
            layer_offset += model_->keys() + model_->values();
        }
        if (model_->decoder_norm)
            for (int64_t i = 0; i < count; i++) model_->decoder_norm.apply(x + i * stride, x + i * stride);
    }

    // Logits of all rows of the last step; -infinity for rows that were not wanted and tokens that may not be said.
    void logits(float* to) {
        int64_t vocabulary = settings_.target_vocabulary;
        std::fill_n(to, rows() * vocabulary, -INFINITY);
        for_logits([&](int64_t i, const int32_t* names, int64_t first, int64_t count, const float* values) {
            float* row = to + live_[i] * vocabulary;
            for (int64_t k = 0; k < count; k++) row[names ? names[first + k] : first + k] = values[k];
        });
    }

    // The `count` most probable tokens of each row and their log-probabilities; `allowed` adds 0 or -infinity. Of equal
    // ones the lower token comes first. Rows that were not wanted get -infinity.
    void candidates(int64_t count, const float* allowed, float* log_probabilities, int64_t* tokens) {
        std::fill_n(log_probabilities, rows() * count, -INFINITY);
        std::fill_n(tokens, rows() * count, int64_t(0));
        best_.clear();
        for (int64_t row : live_) best_.emplace_back(count, log_probabilities + row * count, tokens + row * count);
        for_logits([&](int64_t i, const int32_t* names, int64_t first, int64_t some, const float* values) {
            best_[i].read(names, first, some, values, allowed);
        });
        for (Best& best : best_) best.finish();
    }

   private:
    static constexpr int32_t NONE = -1;
    static constexpr int64_t CHUNK = 256;   // entries that are allocated at once
    static constexpr int64_t COLUMNS = 8;   // panels of logits that are made at a time

    std::shared_ptr<const Model> model_;
    const Settings& settings_;
    std::vector<std::shared_ptr<const Memory>> sources_;

    // Entries: a token said, with what it was said after.
    struct Entry {
        int32_t before, held, depth;
    };
    std::vector<Entry> entries_;
    std::vector<int32_t> free_;
    std::vector<Buffer<float>> chunks_;
    int64_t entry_width_;

    std::vector<int32_t> paths_;  // the last entry of each row
    std::vector<int64_t> live_;   // the rows of this step
    std::vector<int64_t> starts_;  // where the path of each of them begins in `path_`
    std::vector<const float*> path_;  // the entries of all live rows, one row after the other
    std::vector<Best> best_;

    Operand operand_, hidden_operand_;
    Buffer<float> x_, in_, out_, projected_, heads_, hidden_, gated_, scores_, logits_, keys_;

    float* entry(int32_t index) { return chunks_[index / CHUNK].data() + index % CHUNK * entry_width_; }

    void hold(int32_t index) {
        if (index != NONE) entries_[index].held++;
    }

    void release(int32_t index) {
        while (index != NONE && --entries_[index].held == 0) {
            free_.push_back(index);
            index = entries_[index].before;
        }
    }

    int32_t say(int32_t before) {
        if (free_.empty()) {
            chunks_.emplace_back();
            chunks_.back().get(CHUNK * entry_width_);
            int32_t first = int32_t(entries_.size());
            entries_.resize(first + CHUNK);
            for (int32_t i = first + CHUNK; i-- > first;) free_.push_back(i);
        }
        int32_t index = free_.back();
        free_.pop_back();
        entries_[index] = {before, 1, before == NONE ? 0 : entries_[before].depth + 1};
        return index;  // it takes over the row's hold on what came before
    }

    // New entries for the tokens, the paths of all live rows, and the embeddings.
    void read_paths(const int32_t* tokens, float* x, int64_t stride) {
        starts_.assign(1, 0);
        for (int64_t row : live_) {
            paths_[row] = say(paths_[row]);
            starts_.push_back(starts_.back() + entries_[paths_[row]].depth + 1);
        }
        path_.resize(starts_.back());
        for (size_t i = 0; i < live_.size(); i++) {
            int64_t place = starts_[i + 1];
            for (int32_t index = paths_[live_[i]]; index != NONE; index = entries_[index].before)
                path_[--place] = entry(index);
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

    // Heads of queries or keys of one position: normalised and turned.
    void place(float* heads, int64_t count, const Norm& norm, const Positions& positions, int64_t position) const {
        int64_t pairs = settings_.rotary_pairs;
        if (pairs && (position + 1) * pairs > int64_t(positions.cos.size()))
            throw std::runtime_error("more positions than the model has");
        for (int64_t h = 0; h < count; h++) {
            float* head = heads + h * settings_.d_key;
            if (norm) norm.apply(head, head);
            for (int64_t i = 0; i < pairs; i++) {
                float cos = positions.cos[position * pairs + i], sin = positions.sin[position * pairs + i];
                float& a = head[settings_.rotary_interleaved ? 2 * i : i];
                float& b = head[settings_.rotary_interleaved ? 2 * i + 1 : i + pairs];
                float turned = a * cos - b * sin;
                b = a * sin + b * cos;
                a = turned;
            }
        }
    }

    // Attention weights of `count` scores in place; the memory behind them reaches a multiple of sixteen.
    void weigh(float* scores, int64_t count, const Positions* positions, int64_t head, int64_t query) const {
        int64_t padded = rounded(count, LANES);
        float cap = settings_.attention_softcap;
        floats most = all(-INFINITY);
        for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
        const float* bias = nullptr;
        if (positions && !positions->bias.empty()) {
            bias = &positions->bias[head * positions->bias_width + positions->bias_middle - query];
            if (query > positions->bias_middle || count - 1 - query > positions->bias_middle)
                throw std::runtime_error("more positions than the model has");
        }
        for (int64_t i = 0; i < padded; i += LANES) {
            floats score = load(scores + i) * settings_.attention_scale;
            if (cap > 0) score = i + LANES <= count ? cap * tangent(score / cap) : capped_some(score, cap, count - i);
            if (bias) score += load_some(bias + i, int(std::min<int64_t>(LANES, count - i)), 0);
            store(scores + i, score);
            most = larger(most, score);
        }
        float top = largest(most);
        floats total{};
        for (int64_t i = 0; i < padded; i += LANES) {
            floats weight = exponential(load(scores + i) - top);
            store(scores + i, weight);
            total += weight;
        }
        float inverse = 1.0f / sum(total);
        for (int64_t i = 0; i < padded; i += LANES) store(scores + i, load(scores + i) * inverse);
    }

    static floats capped_some(floats score, float cap, int64_t count) {
        floats capped = cap * tangent(score / cap);
        for (int64_t i = count; i < LANES; i++) capped[i] = -INFINITY;
        return capped;
    }

    void self_attention(const SelfAttention& layer, const float* in, float* out, int64_t count, int64_t stride,
                        int64_t layer_offset) {
        const Positions& positions = model_->target_positions;
        int64_t queries = model_->queries(), keys = model_->keys(), values = model_->values();
        int64_t width = layer.in.width(), mixed = model_->mixed(), d_key = settings_.d_key, d_value = settings_.d_value;
        int64_t shared = settings_.heads / settings_.key_heads;
        float* projected = projected_.get(count * width);
        float* heads = heads_.get(count * mixed);
        multiply(layer.in, operand_, in, stride, count, projected, width);
        for (int64_t i = 0; i < count; i++) {
            float* row = projected + i * width;
            int64_t length = depth(i) + 1;
            place(row, settings_.heads, layer.query_norm, positions, depth(i));
            place(row + queries, settings_.key_heads, layer.key_norm, positions, depth(i));
            const float* const* path = &path_[starts_[i]];
            std::copy_n(row + queries, keys + values, const_cast<float*>(path[length - 1]) + layer_offset);
            float* scores = scores_.get(rounded(length, LANES));
            std::fill_n(heads + i * mixed, mixed, 0.0f);
            for (int64_t h = 0; h < settings_.heads; h++) {
                int64_t key = layer_offset + h / shared * d_key, value = layer_offset + keys + h / shared * d_value;
                const float* query = row + h * d_key;
                int64_t t = 0;
                for (; t + 4 <= length; t += 4) {
                    const float* four[4] = {path[t] + key, path[t + 1] + key, path[t + 2] + key, path[t + 3] + key};
                    four_dots(query, four, int(d_key), scores + t);
                }
                for (; t < length; t++) scores[t] = dot(query, path[t] + key, int(d_key));
                weigh(scores, length, &positions, h, length - 1);
                mix(scores, length, heads + i * mixed + h * d_value, [&](int64_t t) { return path[t] + value; });
            }
        }
        multiply(layer.out, operand_, heads, mixed, count, out, stride);
    }

    // out = sum over positions of weight * value
    template <typename Value>
    void mix(const float* weights, int64_t length, float* out, Value value) const {
        int64_t d_value = settings_.d_value;
        int64_t e = 0;
        for (; e + 4 * LANES <= d_value; e += 4 * LANES) {
            floats a{}, b{}, c{}, d{};
            for (int64_t t = 0; t < length; t++) {
                const float* from = value(t) + e;
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
                const float* from = value(t) + e;
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
    void score(const float* query, const float* keys, int64_t padded, float* scores) const {
        int64_t d_key = settings_.d_key;
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

    void memory_attention(const MemoryAttention& layer, const float* in, float* out, int64_t count, int64_t stride,
                          int64_t index, int64_t rows_a_source) {
        int64_t width = layer.query.width(), mixed = model_->mixed(), values = model_->values();
        int64_t d_key = settings_.d_key, d_value = settings_.d_value, shared = settings_.heads / settings_.key_heads;
        float* projected = projected_.get(count * width);
        float* heads = heads_.get(count * mixed);
        multiply(layer.query, operand_, in, stride, count, projected, width);
        for (int64_t i = 0; i < count; i++) {
            const Memory& memory = *sources_[live_[i] / rows_a_source];
            const float* keys = memory.keys.data() + index * model_->keys() * memory.padded;
            const float* value = memory.values.data() + index * values * memory.length;
            float* row = projected + i * width;
            if (layer.query_norm)
                for (int64_t h = 0; h < settings_.heads; h++)
                    layer.query_norm.apply(row + h * d_key, row + h * d_key);
            float* scores = scores_.get(memory.padded);
            for (int64_t h = 0; h < settings_.heads; h++) {
                score(row + h * d_key, keys + h / shared * d_key * memory.padded, memory.padded, scores);
                weigh(scores, memory.length, nullptr, h, 0);
                mix(scores, memory.length, heads + i * mixed + h * d_value,
                    [&](int64_t t) { return value + t * values + h / shared * d_value; });
            }
        }
        multiply(layer.out, operand_, heads, mixed, count, out, stride);
    }

    // `to` [d_key of all key heads][padded] from rows of `stride`.
    static void transpose(const float* from, int64_t stride, int64_t length, int64_t width, int64_t padded, float* to) {
        for (int64_t e = 0; e < width; e++) {
            for (int64_t t = 0; t < length; t++) to[e * padded + t] = from[t * stride + e];
            for (int64_t t = length; t < padded; t++) to[e * padded + t] = 0.0f;
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
        float* first = projected;
        float* to = heads;
        for (int64_t source = 0; source < sources; source++) {
            int64_t length = lengths[source], padded = rounded(length, LANES);
            for (int64_t t = 0; t < length; t++) {
                place(first + t * width, settings_.heads, layer.query_norm, positions, t);
                place(first + t * width + queries, settings_.key_heads, layer.key_norm, positions, t);
            }
            float* beside = keys_.get(keys * padded);
            transpose(first + queries, width, length, keys, padded, beside);
            float* scores = scores_.get(padded);
            for (int64_t t = 0; t < length; t++)
                for (int64_t h = 0; h < settings_.heads; h++) {
                    score(first + t * width + h * d_key, beside + h / shared * d_key * padded, padded, scores);
                    weigh(scores, length, &positions, h, t);
                    const float* value = first + queries + keys + h / shared * d_value;
                    mix(scores, length, to + t * mixed + h * d_value, [&](int64_t s) { return value + s * width; });
                }
            first += length * width;
            to += length * mixed;
        }
        multiply(layer.out, operand_, heads, mixed, count, out, stride);
    }

    std::vector<std::shared_ptr<Memory>> encode(const int32_t* ids, const int64_t* lengths, int64_t sources) {
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

    std::vector<std::shared_ptr<Memory>> remember(const float* x, const int64_t* lengths, int64_t sources, int64_t count,
                                                  int64_t stride) {
        int64_t keys = model_->keys(), values = model_->values(), layers = settings_.decoder_layers;
        std::vector<std::shared_ptr<Memory>> memories;
        for (int64_t source = 0; source < sources; source++) {
            auto memory = std::make_shared<Memory>();
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
                transpose(projected, width, length, keys, memory->padded,
                          memory->keys.data() + index * keys * memory->padded);
                for (int64_t t = 0; t < length; t++)
                    std::copy_n(projected + t * width + keys, values,
                                memory->values.data() + (index * length + t) * values);
                projected += length * width;
            }
        }
        return memories;
    }

    // Logits of the live rows, and by which names tokens go there: those of a source's shortlist, or null.
    template <typename Use>
    void for_logits(Use use) {
        int64_t count = int64_t(live_.size()), width = sources_.empty() ? 1 : rows() / int64_t(sources_.size());
        for (int64_t first = 0, last = 0; first < count; first = last) {
            const Memory& memory = *sources_[live_[first] / width];
            bool listed = !memory.shortlist.empty();
            auto alike = [&](int64_t i) {
                const Memory& other = *sources_[live_[i] / width];
                return listed ? &other == &memory : other.shortlist.empty();
            };
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
