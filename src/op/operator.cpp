#include "gcmoe/operator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cpu/cpu_rank.hpp"
#include "gcmoe/capability.hpp"
#include "group/group_state.hpp"
#include "layout/packed_weights.hpp"
#include "op/operator_state.hpp"
#include "op/validate.hpp"
#include "plan/choose_plan.hpp"

namespace gcmoe {
namespace op {

Status make_blueprint(const Shape& shape, const OperatorOptions& options, Blueprint* out) {
    GCMOE_RETURN_IF_ERROR(validate(shape));
    GCMOE_RETURN_IF_ERROR(validate_options(shape, options));
    std::vector<PlanOptions> plan_options = options.plans;
    if (plan_options.empty()) plan_options.emplace_back();
    std::vector<layout::PlanMemory> memories;
    for (const PlanOptions& one : plan_options) {
        backend::Plan plan;
        GCMOE_RETURN_IF_ERROR(
            plan::choose_plan(shape, options.max_tokens, one, Partition::cpu_limits(), &plan));
        memories.push_back(plan.memory);
        out->plans.push_back(std::move(plan));
    }
    out->heap = layout::make_symmetric_heap(shape, options.max_tokens, options.index_type,
                                            &out->symmetric_regions);
    out->local = layout::make_local_memory(shape, {options.max_tokens, options.capture}, &memories,
                                           &out->local_regions);
    for (std::size_t i = 0; i < memories.size(); ++i) out->plans[i].memory = memories[i];
    return {};
}

namespace {

// All that must be equal on every rank; differences are named before the first launch.
group::Configuration configuration(const Shape& shape, const OperatorOptions& options,
                                   const Blueprint& blueprint) {
    group::Configuration fields;
    const auto add = [&fields](const std::string& field, const auto& value) {
        fields.emplace_back(field, fmt::format("{}", value));
    };
    add("backend", options.backend);
    add("hidden", shape.hidden);
    add("inter", shape.inter);
    add("num_experts", shape.num_experts);
    add("topk", shape.topk);
    add("num_ranks", shape.num_ranks);
    add("shared_inter", shape.shared_inter);
    add("has_bias", shape.has_bias);
    add("activation.clamp", shape.activation.clamp);
    add("activation.alpha", shape.activation.alpha);
    add("activation.beta", shape.activation.beta);
    add("activation_scale", static_cast<int>(shape.activation_scale));
    add("weight_placement", static_cast<int>(shape.weight_placement));
    add("max_tokens", options.max_tokens);
    add("index_type", options.index_type == IndexType::kInt32 ? "int32" : "int64");
    add("start.generation", options.start.generation);
    add("start.session", options.start.session);
    add("num_plans", blueprint.plans.size());
    for (const backend::Plan& plan : blueprint.plans) {
        add("plan", plan.name);
        add(plan.name + ".row_block", plan.memory.row_block);
        add(plan.name + ".ring_blocks", plan.memory.ring_blocks);
    }
    return fields;
}

protocol::StartPoint start_point(const StartState& start) {
    return {start.generation, start.session, start.s0, start.rows_left, start.ticket};
}

void append_entries(const char* room, const layout::RegionList& regions,
                    std::vector<SizeEntry>* out) {
    for (const layout::Region& region : regions.regions()) {
        out->push_back({room, region.name, region.shape, region.bytes});
    }
}

// Finds the peers once; later launches go straight on.
Status connect(OperatorState* state) {
    if (state->connected) return {};
    layout::PeerTable peers;
    GCMOE_RETURN_IF_ERROR(
        group::find_peers(&state->group->state(), state->options.workspace, state->rank, &peers));
    state->backend->connect(peers);
    state->connected = true;
    return {};
}

Status find_plan(const OperatorState& state, const std::string& name, int* plan_idx) {
    for (std::size_t i = 0; i < state.plans.size(); ++i) {
        if (!name.empty() && state.plans[i].name != name) continue;
        *plan_idx = static_cast<int>(i);
        return {};
    }
    std::string known;
    for (const backend::Plan& plan : state.plans) known += (known.empty() ? "" : ", ") + plan.name;
    return {Code::kBadConfig,
            fmt::format("plan '{}' is not one of this workspace: {}", name, known)};
}

// The first bad id that a launch met since the last call; cleared by reading.
Status take_bad_index(OperatorState* state) {
    auto* words = state->backend->memory(0).state();
    if (words->bad_index_claimed == 0) return {};
    const auto topk = static_cast<std::uint64_t>(state->shape.topk);
    const std::uint64_t token = words->bad_index_slot / topk;
    const std::uint64_t slot = words->bad_index_slot % topk;
    const std::int64_t id = words->bad_index_id;
    const std::uint64_t generation = words->bad_index_claimed - 1;
    words->bad_index_claimed = 0;
    return {Code::kBadIndex,
            fmt::format("rank {}: topk_idx = {} at token {}, slot {} (generation {}) must be "
                        "below num_experts = {}; the slot counted as unused",
                        state->rank, id, token, slot, generation, state->shape.num_experts)};
}

}  // namespace
}  // namespace op

Status Operator::size_report(const Shape& shape, const OperatorOptions& options,
                             std::vector<SizeEntry>* out) {
    op::Blueprint blueprint;
    GCMOE_RETURN_IF_ERROR(op::make_blueprint(shape, options, &blueprint));
    out->clear();
    op::append_entries("symmetric", blueprint.symmetric_regions, out);
    op::append_entries("local", blueprint.local_regions, out);
    return {};
}

std::vector<BackendInfo> backends() {
    return {{"cpu", true, "runs the same protocol and packed weights as the GPU backends"},
            {"cuda", false, "this build has no GPU kernels yet (CHANGELOG.md says what it has)"}};
}

Status capability(const Shape& shape, const OperatorOptions& options) {
    for (const BackendInfo& backend : backends()) {
        if (backend.name != options.backend) continue;
        if (!backend.available) {
            return {Code::kUnsupported,
                    fmt::format("backend '{}': {}", backend.name, backend.reason)};
        }
        op::Blueprint blueprint;
        return op::make_blueprint(shape, options, &blueprint);
    }
    return {Code::kBadConfig,
            fmt::format("backend '{}' is unknown; known are cpu, cuda", options.backend)};
}

Status Operator::create(const Shape& shape, std::shared_ptr<const PackedWeights> weights,
                        std::shared_ptr<Group> group, int rank, const OperatorOptions& options,
                        std::unique_ptr<Operator>* out) {
    GCMOE_RETURN_IF_ERROR(capability(shape, options));
    if (weights == nullptr || group == nullptr) {
        return {Code::kBadConfig, "weights and group must not be null"};
    }
    if (group->num_ranks() != shape.num_ranks || rank < 0 || rank >= shape.num_ranks) {
        return {Code::kBadConfig,
                fmt::format("rank = {} of num_ranks = {} does not fit a group of {} ranks", rank,
                            shape.num_ranks, group->num_ranks())};
    }
    const PackedStorage& storage = weights->storage();
    if (storage.rank != rank || storage.shape.hidden != shape.hidden ||
        storage.shape.inter != shape.inter || storage.shape.num_experts != shape.num_experts ||
        storage.shape.num_ranks != shape.num_ranks ||
        storage.shape.shared_inter != shape.shared_inter ||
        storage.shape.has_bias != shape.has_bias ||
        storage.shape.activation_scale != shape.activation_scale) {
        return {Code::kBadConfig,
                fmt::format("weights were packed for rank {} of {} (hidden {}, inter {}, experts "
                            "{}, shared {}), "
                            "not for rank {} of {} (hidden {}, inter {}, experts {}, shared {})",
                            storage.rank, storage.shape.num_ranks, storage.shape.hidden,
                            storage.shape.inter, storage.shape.num_experts,
                            storage.shape.shared_inter, rank, shape.num_ranks, shape.hidden,
                            shape.inter, shape.num_experts, shape.shared_inter)};
    }
    op::Blueprint blueprint;
    GCMOE_RETURN_IF_ERROR(op::make_blueprint(shape, options, &blueprint));
    auto state = std::make_unique<OperatorState>();
    state->shape = shape;
    state->options = options;
    state->weights = weights;
    state->group = group;
    state->rank = rank;
    state->heap = blueprint.heap;
    state->local = blueprint.local;
    state->plans = blueprint.plans;
    state->backend = cpu::make_cpu_rank({shape, rank, weights, blueprint.heap, blueprint.local,
                                         blueprint.plans, options.wait_limits, options.poison},
                                        group->state().options, &group->state().executor);
    state->backend->init_signals(op::start_point(options.start));
    GCMOE_RETURN_IF_ERROR(
        group::join(&group->state(), options.workspace, rank,
                    {state->backend.get(), op::configuration(shape, options, blueprint)}));
    *out = std::make_unique<Operator>(std::move(state));
    return {};
}

Operator::Operator(std::unique_ptr<OperatorState> state) : state_(std::move(state)) {}

Operator::~Operator() {
    state_->backend->synchronize();
    group::leave(&state_->group->state(), state_->options.workspace, state_->rank);
}

InputViews Operator::inputs() {
    const layout::SymmetricHeap& heap = state_->heap;
    std::uint8_t* base = state_->backend->heap_base();
    return {heap.x_row(base, 0),
            heap.x_scale_row(base, 0),
            base + heap.topk_idx,
            heap.weight(base),
            static_cast<int>(heap.x_stride),
            static_cast<int>(heap.x_scale_stride)};
}

Status Operator::check_inputs(int num_tokens) {
    const std::uint8_t* base = state_->backend->heap_base();
    const int topk = state_->shape.topk;
    if (num_tokens < 0 || num_tokens > state_->options.max_tokens) {
        return {Code::kBadInput,
                fmt::format("num_tokens = {} must be in 0..{} (the workspace's capacity)",
                            num_tokens, state_->options.max_tokens)};
    }
    const auto num_slots =
        static_cast<std::uint64_t>(num_tokens) * static_cast<std::uint64_t>(topk);
    for (std::uint64_t slot = 0; slot < num_slots; ++slot) {
        const std::int64_t id = state_->heap.expert_id(base, slot);
        if (id < state_->shape.num_experts) continue;
        return {Code::kBadIndex,
                fmt::format("rank {}: topk_idx = {} at token {}, slot {} must be below "
                            "num_experts = {} (negative = unused slot)",
                            state_->rank, id, slot / static_cast<std::uint64_t>(topk),
                            slot % static_cast<std::uint64_t>(topk), state_->shape.num_experts)};
    }
    return {};
}

Status Operator::launch(const LaunchArgs& args) {
    OperatorState& state = *state_;
    if (state.stalled) {
        return {Code::kBusy,
                fmt::format("workspace '{}', rank {}: a launch stalled ({}); all ranks must reset "
                            "it together before the next launch",
                            state.options.workspace, state.rank, describe(stall_report()))};
    }
    GCMOE_RETURN_IF_ERROR(op::validate_launch(state.options, state.shape, args));
    int plan_idx = 0;
    GCMOE_RETURN_IF_ERROR(op::find_plan(state, args.plan, &plan_idx));
    GCMOE_RETURN_IF_ERROR(op::connect(&state));
    state.last_plan_idx = plan_idx;
    backend::LaunchRequest request;
    request.plan_idx = plan_idx;
    request.num_tokens = args.num_tokens;
    request.y = args.y;
    request.y_stride = args.y_stride == 0 ? state.shape.hidden : args.y_stride;
    request.before = args.before;
    request.after = args.after;
    return state.backend->launch(request);
}

Status Operator::synchronize() {
    const bool finished = state_->backend->synchronize();
    if (!finished) {
        state_->stalled = true;
        return {Code::kStalled, describe(stall_report())};
    }
    return op::take_bad_index(state_.get());
}

StallReport Operator::stall_report() const {
    return *reinterpret_cast<const StallReport*>(state_->backend->local_base() +
                                                 state_->local.stall_report);
}

Statistics Operator::statistics() const {
    const layout::RankMemory memory = state_->backend->memory(state_->last_plan_idx);
    Statistics statistics;
    statistics.generation = memory.state()->generation;
    statistics.session = memory.state()->session;
    statistics.rows = memory.state()->rows_received;
    statistics.blocks = memory.state()->blocks_received;
    statistics.laps = (memory.words()->s0 - state_->options.start.s0) / memory.plan.ring_blocks;
    statistics.times = state_->backend->times();
    const auto* rows = memory.at<std::uint64_t>(state_->local.statistics);
    statistics.expert_rows.assign(rows, rows + state_->shape.experts_per_rank());
    return statistics;
}

Status Operator::reset(const std::vector<Operator*>& all_ranks, bool move) {
    if (all_ranks.empty()) return {Code::kBadInput, "reset: no operators given"};
    const OperatorState& first = *all_ranks.front()->state_;
    std::vector<bool> seen(static_cast<std::size_t>(first.shape.num_ranks));
    for (const Operator* op : all_ranks) {
        const bool same = op->state_->group == first.group &&
                          op->state_->options.workspace == first.options.workspace;
        const auto rank = static_cast<std::size_t>(op->state_->rank);
        if (!same || seen[rank]) {
            return {Code::kBadInput,
                    fmt::format("reset: rank {} is given twice, or is of another workspace "
                                "than '{}'",
                                rank, first.options.workspace)};
        }
        seen[rank] = true;
    }
    if (all_ranks.size() != seen.size()) {
        return {Code::kBadInput,
                fmt::format("reset: {} of {} ranks given; the same memory may be used again "
                            "only if every rank takes part",
                            all_ranks.size(), seen.size())};
    }
    protocol::StartPoint start;
    for (Operator* op : all_ranks) {
        op->state_->backend->synchronize();
        const auto* words = op->state_->backend->memory(0).state();
        start.generation = std::max(start.generation, words->generation);
        start.session = std::max(start.session, words->session + 1);
    }
    for (Operator* op : all_ranks) {
        if (move) op->state_->backend->move_heap();
        op->state_->options.start = StartState{start.generation, start.session, 0, 0, 0};
        op->state_->backend->init_signals(start);
        op->state_->connected = false;
        op->state_->stalled = false;
    }
    for (Operator* op : all_ranks) GCMOE_RETURN_IF_ERROR(op::connect(op->state_.get()));
    return {};
}

}  // namespace gcmoe
