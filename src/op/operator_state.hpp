// What an Operator holds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/rank_backend.hpp"
#include "gcmoe/operator.hpp"
#include "layout/regions.hpp"
#include "op/callback_guard.hpp"
#include "plan/tuned_plan.hpp"
#include "trace/trace.hpp"

namespace gcmoe {

struct OperatorState {
    Shape shape;
    OperatorOptions options;
    std::shared_ptr<const PackedWeights> weights;
    std::shared_ptr<Group> group;
    int rank = 0;
    layout::SymmetricHeap heap;
    layout::LocalMemory local;
    std::vector<backend::Plan> plans;
    std::vector<plan::PlanSources> sources;  // (plans)
    std::unique_ptr<backend::RankBackend> backend;
    bool connected = false;
    bool stalled = false;  // refuses launches until reset
    int last_plan_idx = 0;
    std::uint64_t num_launches = 0;  // accepted since creation
    op::CallbackErrors callback_errors;
};

namespace op {

// Sizes of everything: heap, local memory, plans. Allocates nothing.
struct Blueprint {
    layout::SymmetricHeap heap;
    layout::LocalMemory local;
    std::vector<backend::Plan> plans;
    std::vector<plan::PlanSources> sources;  // (plans)
    layout::RegionList symmetric_regions;
    layout::RegionList local_regions;
};
// All events of these operators. Errors: as Operator::trace_json.
Status collect_trace(const std::vector<Operator*>& ranks, trace::Trace* out);

Status make_blueprint(const Shape& shape, const OperatorOptions& options, Blueprint* out);

}  // namespace op
}  // namespace gcmoe
