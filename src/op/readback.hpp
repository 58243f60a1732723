// A look into a rank's memory after synchronize(): for the judge, the dispatch oracle and tests.
#pragma once

#include <cstdint>

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

inline Readback readback(Operator& op) {
    OperatorState& state = op.state();
    std::uint8_t* local_base = state.backend->local_base();
    const auto* words = reinterpret_cast<const layout::StateWords*>(local_base + state.local.state);
    return {state.heap,
            state.backend->heap_base(),
            state.local,
            local_base,
            state.plans[static_cast<std::size_t>(state.last_plan_idx)].memory,
            words->generation};
}

}  // namespace gcmoe
