#include "check_parts.hpp"

#include <set>
#include <string>

#include "layout/local_memory.hpp"
#include "layout/symmetric_heap.hpp"

namespace gcmoe::cli {
namespace {

using backend::Room;

const std::set<std::string> kInputs = {"x", "x_scale", "topk_idx", "topk_weight"};
const std::set<std::string> kJudged = {"combine",    "shared_act",  "shared_act_scale",
                                       "shared_row", "capture_act", "capture_act_scale"};
// Nobody compares them: what role 2 read is in the captures.
const std::set<std::string> kUnseen = {"ring_act", "ring_act_scale"};

// The regions that `wanted` says yes to, by name.
template <class Wanted>
RoomParts regions_of(const OperatorState& state, const Wanted& wanted) {
    layout::RegionList heap;
    layout::RegionList local;
    std::vector<layout::PlanMemory> plans;
    for (const backend::Plan& plan : state.plans) plans.push_back(plan.memory);
    const OperatorOptions& options = state.options;
    layout::make_symmetric_heap(state.shape, options.max_tokens, options.index_type, &heap);
    layout::make_local_memory(state.shape, {options.max_tokens, options.capture}, &plans, &local);
    RoomParts parts;
    const auto add = [&](Room room, const layout::RegionList& list) {
        for (const layout::Region& region : list.regions()) {
            if (wanted(region.name)) parts.push_back({room, region.offset, region.bytes});
        }
    };
    add(Room::kHeap, heap);
    add(Room::kLocal, local);
    return parts;
}

}  // namespace

RoomParts dispatch_parts(const OperatorState& state) {
    return regions_of(state, [](const std::string& name) {
        return kInputs.count(name) + kJudged.count(name) + kUnseen.count(name) == 0;
    });
}

RoomParts judged_parts(const OperatorState& state) {
    return regions_of(state, [](const std::string& name) { return kJudged.count(name) > 0; });
}

bool slot_is_unused(const Shape& shape, const reference::RankInputs& inputs, std::uint64_t slot) {
    const std::uint64_t used =
        static_cast<std::uint64_t>(inputs.num_tokens) * static_cast<std::uint64_t>(shape.topk);
    return slot >= used || !reference::slot_is_live(shape, inputs.topk_idx[slot]);
}

RoomParts unused_rows(const OperatorState& state, const reference::RankInputs& inputs) {
    const layout::SymmetricHeap& heap = state.heap;
    RoomParts parts;
    std::uint64_t end = 0;  // slot behind the last part
    for (std::uint64_t slot = 0; slot < heap.max_slots(); ++slot) {
        if (!slot_is_unused(state.shape, inputs, slot)) continue;
        if (parts.empty() || end != slot) {
            const std::uint64_t offset = heap.combine + slot * heap.combine_stride;
            parts.push_back({Room::kHeap, offset, 0});
        }
        parts.back().bytes += heap.combine_stride;
        end = slot + 1;
    }
    return parts;
}

}  // namespace gcmoe::cli
