// A look into a rank's memory after synchronize(): for the judge, the dispatch oracle and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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

inline Readback make_readback(const OperatorState& state, const backend::HostView& view) {
    const auto* words = reinterpret_cast<const layout::StateWords*>(view.local + state.local.state);
    return {state.heap,
            view.heap,
            state.local,
            view.local,
            state.plans[static_cast<std::size_t>(state.last_plan_idx)].memory,
            words->generation};
}

// Valid until the next call for this operator. GPU: a copy of everything.
inline Readback readback(Operator& op) {
    return make_readback(op.state(), op.state().backend->host_view());
}

// The same, but on a GPU only these parts (and the state words) are copied; the rest is undefined.
inline Readback readback(Operator& op, std::vector<backend::RoomPart> parts) {
    const OperatorState& state = op.state();
    parts.push_back({backend::Room::kLocal, state.local.state, sizeof(layout::StateWords)});
    return make_readback(state, state.backend->host_view(parts));
}

// Fills `bytes` of a room with one value, wherever the memory is.
inline void fill_room(Operator& op, backend::Room room, std::uint64_t offset, std::uint8_t value,
                      std::uint64_t bytes) {
    op.state().backend->fill(room, offset, value, bytes);
}

}  // namespace gcmoe
