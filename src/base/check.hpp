// GCMOE_CHECK: a promise of this library, kept in release builds. A broken one is a bug of ours,
// never the user's mistake: it throws InternalError, which the public calls turn into
// Code::kInternal.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace gcmoe {

class InternalError : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

template <class... Values>
[[noreturn]] void raise_internal_error(const char* file, int line, const char* condition,
                                       const Values&... values) {
    std::ostringstream text;
    text << file << ':' << line << ": broken promise: " << condition;
    ((text << ", " << values), ...);
    throw InternalError(text.str());
}

}  // namespace gcmoe

#define GCMOE_CHECK(condition, ...)                                               \
    do {                                                                          \
        if (!(condition)) [[unlikely]]                                            \
            ::gcmoe::raise_internal_error(__FILE__, __LINE__,                     \
                                          #condition __VA_OPT__(, ) __VA_ARGS__); \
    } while (false)
