// What Python calls, by ctypes. Each function gives 0, or what else it says, and a message when it fails.

#include "dropout.h"
#include "loss.h"
#include "session.h"
#include "short_attention.h"
#include "threads.h"

namespace {
thread_local std::string message;

template <typename Function>
auto guarded(Function function) -> decltype(function()) {
    try {
        return function();
    } catch (const std::bad_alloc&) {
        message = "there is not enough memory";
    } catch (const std::exception& error) {
        message = error.what();
    }
    return decltype(function())(-1);
}

struct Builder {
    regard::Tensors tensors;
};
}  // namespace

extern "C" {

// The number of this interface, which library.py knows too.
int regard_interface() { return 4; }

const char* regard_message() { return message.c_str(); }

// Whether this CPU has the instructions that the library was compiled for.
int regard_runs_here() {
#if defined(__AVX512VNNI__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vnni");
#elif defined(__AVX2__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

// Whether products of bytes are faster than those of floats.
int regard_fast_bytes() {
#if defined(__AVX512VNNI__)
    return 1;
#else
    return 0;
#endif
}

// Whether products of bfloat16 numbers are faster than those of floats. Not every CPU with AVX-512 has them.
int regard_fast_pairs() {
#if defined(__AVX512BF16__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return 0;
#endif
}

// Numbers in a vector.
int regard_lanes() { return regard::LANES; }

void* regard_builder() { return new (std::nothrow) Builder; }

int regard_tensor(void* builder, const char* name, const float* data, int64_t rows, int64_t columns) {
    return guarded([&] {
        static_cast<Builder*>(builder)->tensors[name] = {data, rows, columns};
        return 0;
    });
}

void regard_builder_free(void* builder) { delete static_cast<Builder*>(builder); }

intptr_t regard_model(void* builder, const regard::Settings* settings) {
    return guarded([&] {
        auto model = std::make_shared<const regard::Model>(static_cast<Builder*>(builder)->tensors, *settings);
        return reinterpret_cast<intptr_t>(new std::shared_ptr<const regard::Model>(std::move(model)));
    });
}

void regard_model_free(void* model) { delete static_cast<std::shared_ptr<const regard::Model>*>(model); }

intptr_t regard_session(void* model) {
    return guarded([&] {
        auto shared = *static_cast<std::shared_ptr<const regard::Model>*>(model);
        regard::Session* session = shared->settings.eight_bits ? static_cast<regard::Session*>(
                                       new regard::Keeping<regard::brief>(shared)) : new regard::Keeping<float>(shared);
        return reinterpret_cast<intptr_t>(session);
    });
}

void regard_session_free(void* session) { delete static_cast<regard::Session*>(session); }

int regard_join(void* session, const int32_t* ids, const int64_t* lengths, int64_t count, const int32_t* shortlists,
                const int64_t* shortlist_lengths) {
    return guarded([&] {
        static_cast<regard::Session*>(session)->join(ids, lengths, count, shortlists, shortlist_lengths);
        return 0;
    });
}

int regard_reorder(void* session, const int64_t* rows, int64_t count, const int64_t* sources, int64_t source_count) {
    return guarded([&] {
        static_cast<regard::Session*>(session)->reorder(rows, count, sources, source_count);
        return 0;
    });
}

int regard_step(void* session, const int32_t* tokens, const uint8_t* wanted) {
    return guarded([&] {
        static_cast<regard::Session*>(session)->step(tokens, wanted);
        return 0;
    });
}

int regard_logits(void* session, float* logits) {
    return guarded([&] {
        static_cast<regard::Session*>(session)->logits(logits);
        return 0;
    });
}

int regard_candidates(void* session, int64_t count, const float* allowed, float* log_probabilities, int64_t* tokens) {
    return guarded([&] {
        static_cast<regard::Session*>(session)->candidates(count, allowed, log_probabilities, tokens);
        return 0;
    });
}

// Each of the threads has a part of the positions and a `gradient_weight` of its own, one behind another.
int regard_cross_entropy(const float* hidden, const int64_t* targets, int64_t count, const float* weight,
                         int64_t vocabulary, int64_t width, float smoothing, float divergence, float* gradient_hidden,
                         float* gradient_weight, double* sums, int64_t threads, int pairs) {
    return guarded([&] {
        std::vector<double> parts(2 * threads);
        auto run = [&](auto& function, int64_t part, int64_t first, int64_t last) {
            float* own = gradient_weight ? gradient_weight + part * vocabulary * width : nullptr;
            function.run(hidden, targets, count, first, last, weight, vocabulary, width, smoothing, divergence,
                         gradient_hidden, own);
            parts[2 * part] = function.loss;
            parts[2 * part + 1] = function.nll;
        };
        regard::side_by_side(threads, count, [&](int64_t part, int64_t first, int64_t last) {
            // Each keeps its memory.
            static thread_local regard::CrossEntropy<regard::FloatProducts> floats;
#if defined(__AVX512BF16__)
            static thread_local regard::CrossEntropy<regard::PairProducts> halves;
            if (pairs) return run(halves, part, first, last);
#endif
            run(floats, part, first, last);
        });
        sums[0] = sums[1] = 0;
        for (size_t i = 0; i < parts.size(); i++) sums[i % 2] += parts[i];
        return 0;
    });
}

int regard_drop(const float* x, float* y, int64_t count, uint64_t seed, uint32_t dropped, float scale, int64_t threads) {
    return guarded([&] {
        regard::side_by_side(threads, count / 4, [&](int64_t, int64_t first, int64_t last) {
            regard::drop(x, y, 4 * first, last == count / 4 ? count : 4 * last, seed, dropped, scale);
        });
        return 0;
    });
}

int regard_attention(const regard::AttentionShape* shape, const float* query, const float* key, const float* value,
                     const float* mask, float* weights, float* output, int64_t threads) {
    return guarded([&] {
        regard::side_by_side(threads, shape->batch, [&](int64_t, int64_t first, int64_t last) {
            regard::ShortAttention attention(*shape);
            for (int64_t b = first; b < last; b++) attention.forward(b, query, key, value, mask, weights, output);
        });
        return 0;
    });
}

int regard_attention_back(const regard::AttentionShape* shape, const float* query, const float* key, const float* value,
                          const float* weights, const float* gradient, float* to_query, float* to_key, float* to_value,
                          int64_t threads) {
    return guarded([&] {
        regard::side_by_side(threads, shape->batch, [&](int64_t, int64_t first, int64_t last) {
            regard::ShortAttention attention(*shape);
            for (int64_t b = first; b < last; b++)
                attention.backward(b, query, key, value, weights, gradient, to_query, to_key, to_value);
        });
        return 0;
    });
}
}
