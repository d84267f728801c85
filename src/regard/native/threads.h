// Work on parts side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace regard {

// use(part, first, last) for `parts` ranges of [0, count), each in a thread of its own but the first.
template <typename Use>
void side_by_side(int64_t parts, int64_t count, Use use) {
    parts = std::max<int64_t>(1, std::min(parts, count));
    std::vector<std::exception_ptr> errors(parts);
    auto work = [&](int64_t part) {
        try {
            use(part, count * part / parts, count * (part + 1) / parts);
        } catch (...) {
            errors[part] = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    for (int64_t part = 1; part < parts; part++) threads.emplace_back(work, part);
    work(0);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace regard
