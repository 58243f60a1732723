#include "held_signals.hpp"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

namespace gcmoe::cli {
namespace {

constexpr int kHeld[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// What a handler may touch; 0 = none came.
volatile std::sig_atomic_t came = 0;

void note(int number) { came = number; }

}  // namespace

HeldSignals::HeldSignals() {
    came = 0;
    for (const int number : kHeld) {
        struct sigaction before {};
        if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
        struct sigaction action {};
        action.sa_handler = note;
        action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
        ::sigaction(number, &action, nullptr);
    }
}

HeldSignals::~HeldSignals() {
    for (const int number : kHeld) {
        struct sigaction now {};
        if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == note) {
            std::signal(number, SIG_DFL);
        }
    }
    if (came != 0) ::raise(came);
}

Status HeldSignals::check() {
    if (came == 0) return {};
    return {Code::kBadInput, fmt::format("interrupted by signal {} ({})", static_cast<int>(came),
                                         ::strsignal(came))};
}

}  // namespace gcmoe::cli
