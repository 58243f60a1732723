// Independent items on a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace gcmoe::reference {

// Calls work(item) for every item in [0, num_items), in any order, and waits for all. Threads that
// the system does not give are done without: results do not depend on their number.
// An exception of any call is thrown here, after all threads have ended.
template <class Work>
void for_each_item(std::size_t num_items, int num_threads, const Work& work) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto run = [&] {
        try {
            for (std::size_t item = next++; item < num_items; item = next++) work(item);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(failure_mutex);
            if (failure == nullptr) failure = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    const auto wanted = static_cast<std::size_t>(std::max(1, num_threads));
    const std::size_t count = std::min(num_items, wanted);
    threads.reserve(count);
    try {
        while (threads.size() + 1 < count) threads.emplace_back(run);
    } catch (const std::system_error&) {
    }
    run();
    for (std::thread& thread : threads) thread.join();
    if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace gcmoe::reference
