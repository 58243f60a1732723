#include "op/callback_guard.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace gcmoe::op {
namespace {

// Calls; the text of what was thrown, or empty.
template <class Call>
std::string caught(const Call& call) {
    try {
        call();
    } catch (const std::exception& error) {
        return fmt::format("threw '{}'", error.what());
    } catch (...) {
        return "threw";
    }
    return {};
}

}  // namespace

void CallbackErrors::note(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_.empty()) first_ = what;
}

Status CallbackErrors::take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_.empty()) return {};
    return {Code::kBadInput, std::exchange(first_, {})};
}

std::function<int()> guard_before(std::function<int()> before, int max_tokens, std::uint64_t launch,
                                  CallbackErrors* errors) {
    if (!before) return {};
    return [before = std::move(before), max_tokens, launch, errors] {
        int num_tokens = 0;
        std::string wrong = caught([&] { num_tokens = before(); });
        if (wrong.empty() && num_tokens >= 0 && num_tokens <= max_tokens) return num_tokens;
        if (wrong.empty()) {
            wrong = fmt::format(
                "returned num_tokens = {}, which must be in 0..{} (the workspace's "
                "capacity)",
                num_tokens, max_tokens);
        }
        errors->note(
            fmt::format("before() of launch {} {}; the launch ran with 0 tokens", launch, wrong));
        return 0;
    };
}

std::function<void()> guard_after(std::function<void()> after, std::uint64_t launch,
                                  CallbackErrors* errors) {
    if (!after) return {};
    return [after = std::move(after), launch, errors] {
        const std::string wrong = caught(after);
        if (!wrong.empty()) errors->note(fmt::format("after() of launch {} {}", launch, wrong));
    };
}

}  // namespace gcmoe::op
