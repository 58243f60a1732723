// Role 2's tickets: one monotone counter per plan. A launch's tickets start at ticket_base; each
// unit takes one ticket past the end, so that the next base is known without a reset.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace gcmoe::protocol {

// The next ticket of this launch, 0 first. Acquire-release: tasks are taken in order.
template <SignalMemory M>
GCMOE_HD void take_ticket(const layout::RankMemory& memory, std::uint64_t* ticket) {
    layout::PlanWords* words = memory.words();
    *ticket = M::add_acq_rel(&words->ticket, std::uint64_t{1}) - words->ticket_base;
}

// With role 4 the shared expert's tasks are a list of their own: role 4 takes from it once role 1
// has ended, role 2 when its own list is empty.
template <SignalMemory M>
GCMOE_HD void take_shared_ticket(const layout::RankMemory& memory, std::uint64_t* ticket) {
    layout::PlanWords* words = memory.words();
    *ticket = M::add_acq_rel(&words->shared_ticket, std::uint64_t{1}) - words->shared_ticket_base;
}

}  // namespace gcmoe::protocol
