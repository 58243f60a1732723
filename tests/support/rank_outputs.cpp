#include "support/rank_outputs.hpp"

#include "op/operator_state.hpp"

namespace gcmoe::test {

reference::RankOutputs rank_outputs(Operator* op, int max_tokens, const std::uint16_t* y) {
    const OperatorState& state = op->state();
    const backend::HostView view = state.backend->host_view();
    const layout::LocalMemory& local = state.local;
    const auto words = [&view](std::uint64_t offset) {
        return reinterpret_cast<const std::uint32_t*>(view.local + offset);
    };
    reference::RankOutputs out;
    out.max_tokens = max_tokens;
    out.act = view.local + local.capture_act;
    out.act_scale = words(local.capture_act_scale);
    out.combine = view.heap + state.heap.combine;
    out.combine_stride = state.heap.combine_stride;
    out.y = y;
    out.y_stride = static_cast<std::uint64_t>(state.shape.hidden);
    if (state.shape.shared_inter == 0) return out;
    out.shared_act = view.local + local.shared_act;
    out.shared_act_scale = words(local.shared_act_scale);
    out.shared_row = reinterpret_cast<const std::uint16_t*>(view.local + local.shared_row);
    return out;
}

}  // namespace gcmoe::test
