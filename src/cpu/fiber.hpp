// A resumable unit of the stepper: a function on a stack of its own, which can stop in the middle
// of any call and go on later. Single-threaded by design.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace gcmoe::cpu {

class Fiber {
  public:
    // 256 KiB: the roles keep big arrays on the heap; the deepest call chain takes under 40 KiB,
    // 16 of them the lanes of a GEMM pass.
    static constexpr std::size_t kStackBytes = 256 * 1024;

    explicit Fiber(std::function<void()> body);
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Runs the body until it calls suspend() or ends.
    void resume();
    // Inside a fiber: back to whoever resumed it. Outside: no effect.
    static void suspend();
    [[nodiscard]] static Fiber* current();
    [[nodiscard]] bool finished() const { return finished_; }

  private:
    static void trampoline();

    std::function<void()> body_;
    std::unique_ptr<std::byte[]> stack_;
    ucontext_t own_{};
    ucontext_t caller_{};
    bool finished_ = false;
};

}  // namespace gcmoe::cpu
