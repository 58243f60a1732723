// A look into a rank's memory after synchronize(): for the judge, the dispatch oracle and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "gcmoe/operator.hpp"
#include "op/operator_state.hpp"

namespace gcmoe {

struct Readback {
    const layout::SymmetricHeap& heap;
    std::uint8_t* heap_base;
    const layout::LocalMemory& local;
    std::uint8_t* local_base;
    const layout::PlanMemory& plan;  // of the last launch
    std::uint32_t generation;        // last finished
};

// Valid until the next call for this operator. GPU: a copy of everything.
inline Readback readback(Operator& op) {
    OperatorState& state = op.state();
    const backend::HostView view = state.backend->host_view();
    const auto* words = reinterpret_cast<const layout::StateWords*>(view.local + state.local.state);
    return {state.heap,
            view.heap,
            state.local,
            view.local,
            state.plans[static_cast<std::size_t>(state.last_plan_idx)].memory,
            words->generation};
}

// Fills `bytes` of a room with one value, wherever the memory is.
inline void fill_room(Operator& op, backend::Room room, std::uint64_t offset, std::uint8_t value,
                      std::uint64_t bytes) {
    const std::vector<std::uint8_t> values(bytes, value);
    op.state().backend->write(room, offset, values.data(), bytes);
}

}  // namespace gcmoe
