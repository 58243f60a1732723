// The caller's callbacks run on the rank's stream, where nobody can return an error: what they
// return is checked and what they throw is caught here, and the next synchronize() tells.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::op {

// The first mistake of a callback since the last look.
class CallbackErrors {
  public:
    void note(const std::string& what);
    // Ok, or kBadInput; forgets it.
    Status take();

  private:
    std::mutex mutex_;
    std::string first_;
};

// Wraps `before` of launch number `launch` (from 1). A number of tokens outside 0..max_tokens or an
// exception is noted, and the launch runs with 0 tokens: every rank still takes part, and nothing
// is read or written that the number would have reached.
std::function<int()> guard_before(std::function<int()> before, int max_tokens, std::uint64_t launch,
                                  CallbackErrors* errors);

// Wraps `after`: an exception is noted.
std::function<void()> guard_after(std::function<void()> after, std::uint64_t launch,
                                  CallbackErrors* errors);

}  // namespace gcmoe::op
