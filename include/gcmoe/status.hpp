// What a call of the library says about itself: a code, and a sentence that names the values.
#pragma once

#include <string>
#include <utility>

namespace gcmoe {

enum class Code {
    kOk,
    kBadConfig,      // a shape, plan, partition or option that cannot work
    kBadIndex,       // a routed expert id outside [0, num_experts)
    kBadInput,       // tokens, pointers, counts that the caller passed in
    kBadCheckpoint,  // a file that is not what it should be
    kInexact,        // weights that the packed form cannot hold exactly
    kUnsupported,    // right, but not on this machine or backend
    kStalled,        // a bounded wait ran out, or a peer gave up
    kBusy,           // the workspace refuses launches until it is reset after a fault
    kInternal,       // a broken promise of this library: a bug
};

// The word of a code, as the command prints it ("bad_config").
[[nodiscard]] const char* code_name(Code code);

// A code and one sentence. An Ok status carries no sentence.
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
    [[nodiscard]] bool ok() const { return code_ == Code::kOk; }
    [[nodiscard]] Code code() const { return code_; }
    [[nodiscard]] const std::string& message() const { return message_; }

  private:
    Code code_ = Code::kOk;
    std::string message_;
};

}  // namespace gcmoe

// Hands a failed status on to the caller.
#define GCMOE_RETURN_IF_ERROR(expression)                                          \
    do {                                                                           \
        if (::gcmoe::Status status_ = (expression); !status_.ok()) return status_; \
    } while (false)
