#include "op/validate.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "layout/local_memory.hpp"
#include "layout/peer_table.hpp"
#include "protocol/words.hpp"

namespace gcmoe {
namespace {

// 64 mask bits, one per 128 columns of the first GEMM.
constexpr int kMaxInter = 64 * 128;
// 16 bits of a block table entry name the local expert.
constexpr int kMaxExpertsPerRank = 1 << 16;
// Waits count nanoseconds in 64 bits; who wants to wait for longer means for ever.
constexpr double kMaxWaitSeconds = 1e9;

// 32 MiB a unit.
constexpr int kMaxTraceEvents = 1 << 20;

Status bad(const std::string& what) { return {Code::kBadConfig, what}; }

Status check_multiple(const char* field, int value) {
    if (value > 0 && value % layout::kChunk == 0) return {};
    return bad(fmt::format(
        "{} = {} must be a positive multiple of {} (one activation scale and one weight "
        "tile cover {} of K)",
        field, value, layout::kChunk, layout::kChunk));
}

Status check_inter(const char* field, int value) {
    if (value <= kMaxInter) return {};
    return bad(fmt::format("{} = {} must be at most {} (64 mask bits of 128 columns)", field, value,
                           kMaxInter));
}

// An enumerator that came in as a number (C, Python).
Status check_known(const char* field, int value, int last) {
    if (value <= last) return {};
    return bad(fmt::format("{} = {} is unknown; known are 0..{}", field, value, last));
}

Status check_seconds(const char* field, double seconds) {
    if (seconds >= 0 && seconds <= kMaxWaitSeconds) return {};
    return bad(fmt::format("wait_limits: {} = {} must be in 0..1e9 seconds (0 = wait for ever)",
                           field, seconds));
}

Status check_activation(const Activation& activation) {
    if (!(activation.clamp > 0.0F)) {
        return bad(fmt::format("activation.clamp = {} must be positive (infinity = off)",
                               activation.clamp));
    }
    if (!std::isfinite(activation.alpha) || !std::isfinite(activation.beta)) {
        return bad(fmt::format("activation.alpha = {}, beta = {} must be finite", activation.alpha,
                               activation.beta));
    }
    return {};
}

}  // namespace

Status validate(const Shape& shape) {
    GCMOE_RETURN_IF_ERROR(check_multiple("hidden", shape.hidden));
    GCMOE_RETURN_IF_ERROR(check_multiple("inter", shape.inter));
    GCMOE_RETURN_IF_ERROR(check_inter("inter", shape.inter));
    if (shape.shared_inter != 0) {
        GCMOE_RETURN_IF_ERROR(check_multiple("shared_inter", shape.shared_inter));
        GCMOE_RETURN_IF_ERROR(check_inter("shared_inter", shape.shared_inter));
    }
    if (shape.num_ranks < 1 || shape.num_ranks > layout::kMaxRanks) {
        return bad(fmt::format("num_ranks = {} must be in 1..{} (slots of the peer descriptor)",
                               shape.num_ranks, layout::kMaxRanks));
    }
    if (shape.num_experts < 1 || shape.num_experts % shape.num_ranks != 0) {
        return bad(fmt::format("num_experts = {} must be a positive multiple of num_ranks = {}",
                               shape.num_experts, shape.num_ranks));
    }
    if (shape.experts_per_rank() > kMaxExpertsPerRank) {
        return bad(
            fmt::format("num_experts / num_ranks = {} must be at most {} (16 bits of a block table "
                        "entry)",
                        shape.experts_per_rank(), kMaxExpertsPerRank));
    }
    if (shape.topk < 1 || shape.topk > shape.num_experts) {
        return bad(
            fmt::format("topk = {} must be in 1..num_experts = {}", shape.topk, shape.num_experts));
    }
    GCMOE_RETURN_IF_ERROR(check_known("activation_scale", static_cast<int>(shape.activation_scale),
                                      static_cast<int>(ActivationScale::kUe8m0K32)));
    GCMOE_RETURN_IF_ERROR(check_known("weight_placement", static_cast<int>(shape.weight_placement),
                                      static_cast<int>(WeightPlacement::kAfterSecondGemm)));
    return check_activation(shape.activation);
}

Status validate(const Partition& partition, const Partition::Limits& limits, int units_of_share) {
    if (partition.dispatch_units < limits.min_dispatch) {
        return bad(fmt::format("dispatch_units = {} must be at least {}", partition.dispatch_units,
                               limits.min_dispatch));
    }
    if (partition.compute_units < limits.min_compute) {
        return bad(fmt::format("compute_units = {} must be at least {}", partition.compute_units,
                               limits.min_compute));
    }
    if (limits.even_compute && partition.compute_units % 2 != 0) {
        return bad(
            fmt::format("compute_units = {} must be even; the share has {} units, dispatch took {}",
                        partition.compute_units, units_of_share, partition.dispatch_units));
    }
    const std::int64_t sum = std::int64_t{partition.dispatch_units} + partition.compute_units;
    if (units_of_share != 0 && sum != units_of_share) {
        return bad(fmt::format(
            "dispatch_units + compute_units = {} + {} = {} must be {} (units of the share)",
            partition.dispatch_units, partition.compute_units, sum, units_of_share));
    }
    return {};
}

namespace op {

Status validate_options(const Shape& shape, const OperatorOptions& options) {
    if (options.max_tokens < 1) {
        return bad(fmt::format("max_tokens = {} must be at least 1", options.max_tokens));
    }
    const std::uint64_t slots =
        static_cast<std::uint64_t>(options.max_tokens) * static_cast<std::uint64_t>(shape.topk);
    if (slots > protocol::kMaxCount) {
        return bad(
            fmt::format("max_tokens * topk = {} * {} must be at most {} (24 bits of a count word)",
                        options.max_tokens, shape.topk, protocol::kMaxCount));
    }
    if (options.plans.size() > layout::kMaxPlans) {
        return bad(fmt::format("plans: {} given, at most {} per workspace", options.plans.size(),
                               layout::kMaxPlans));
    }
    if (options.trace_events < 0 || options.trace_events > kMaxTraceEvents) {
        return bad(fmt::format("trace_events = {} must be in 0..{} (32 bytes each, every unit)",
                               options.trace_events, kMaxTraceEvents));
    }
    GCMOE_RETURN_IF_ERROR(check_known("index_type", static_cast<int>(options.index_type),
                                      static_cast<int>(IndexType::kInt64)));
    std::set<std::string> names;
    for (const PlanOptions& plan : options.plans) {
        if (plan.name.empty())
            return bad("plans: a name is empty, so that no launch can ask for it");
        if (!names.insert(plan.name).second) {
            return bad(fmt::format("plans: the name '{}' is given twice", plan.name));
        }
    }
    GCMOE_RETURN_IF_ERROR(check_seconds("first_launch_s", options.wait_limits.first_launch_s));
    return check_seconds("steady_s", options.wait_limits.steady_s);
}

Status validate_launch(const OperatorOptions& options, const Shape& shape, const LaunchArgs& args) {
    if (args.num_tokens < 0 || args.num_tokens > options.max_tokens) {
        return {Code::kBadInput,
                fmt::format("num_tokens = {} must be in 0..{} (the workspace's capacity)",
                            args.num_tokens, options.max_tokens)};
    }
    if (args.y == nullptr && (args.num_tokens > 0 || args.before)) {
        return {Code::kBadInput,
                fmt::format("y is null with num_tokens = {}{}", args.num_tokens,
                            args.before ? " and a before() that may raise it" : "")};
    }
    if (args.y_stride != 0 && args.y_stride < shape.hidden) {
        return {Code::kBadInput, fmt::format("y_stride = {} must be 0 or at least hidden = {}",
                                             args.y_stride, shape.hidden)};
    }
    return {};
}

}  // namespace op
}  // namespace gcmoe
