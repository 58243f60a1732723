// Lets work that writes files come to an orderly end when the command is interrupted.
#pragma once

#include "gcmoe/status.hpp"

namespace gcmoe::cli {

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT are noted instead of ending the process; a
// second one of the same kind ends it at once. The destructor lets what came do what it did before,
// so that a shell or a scheduler sees a process that the signal ended. Signals that the process was
// started to ignore (nohup) stay ignored. Callers: declared before whatever removes its files when
// it goes; at most one at a time.
class HeldSignals {
  public:
    HeldSignals();
    HeldSignals(const HeldSignals&) = delete;
    HeldSignals& operator=(const HeldSignals&) = delete;
    ~HeldSignals();

    // kBadInput once a signal has come. For long work, to be asked between its pieces.
    [[nodiscard]] static Status check();
};

}  // namespace gcmoe::cli
