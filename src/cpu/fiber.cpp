#include "cpu/fiber.hpp"

#include <utility>

namespace gcmoe::cpu {
namespace {

thread_local Fiber* current_fiber = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique<std::byte[]>(kStackBytes)) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Fiber::trampoline, 0);
}

void Fiber::trampoline() {
    Fiber* self = current_fiber;
    self->body_();
    self->finished_ = true;
    swapcontext(&self->own_, &self->caller_);
}

void Fiber::resume() {
    Fiber* outer = current_fiber;
    current_fiber = this;
    swapcontext(&caller_, &own_);
    current_fiber = outer;
}

void Fiber::suspend() {
    Fiber* self = current_fiber;
    if (self != nullptr) swapcontext(&self->own_, &self->caller_);
}

Fiber* Fiber::current() { return current_fiber; }

}  // namespace gcmoe::cpu
