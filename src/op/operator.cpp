#include "gcmoe/operator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <system_error>

#include "gcmoe/capability.hpp"
#include "group/group_state.hpp"
#include "layout/packed_weights.hpp"
#include "op/backends.hpp"
#include "op/host_peers.hpp"
#include "op/inspect.hpp"
#include "op/operator_state.hpp"
#include "op/validate.hpp"
#include "plan/choose_plan.hpp"
#include "protocol/words.hpp"
#include "trace/chrome_json.hpp"

namespace gcmoe {
namespace op {

Status make_blueprint(const Shape& shape, const OperatorOptions& options, Blueprint* out) {
    GCMOE_RETURN_IF_ERROR(validate(shape));
    GCMOE_RETURN_IF_ERROR(validate_options(shape, options));
    plan::Machine machine;
    GCMOE_RETURN_IF_ERROR(find_machine(shape, options, &machine));
    std::vector<PlanOptions> plan_options = options.plans;
    if (plan_options.empty()) plan_options.emplace_back();
    std::vector<layout::PlanMemory> memories;
    for (const PlanOptions& one : plan_options) {
        PlanOptions asked = one;
        // Serial launches end role 1 before role 2 begins, and role 2 before role 3.
        if (options.launch_mode == LaunchMode::kSerial) {
            asked.overlap = false;
            if (asked.combine != CombineUnits::kAuto && asked.combine != CombineUnits::kCompute) {
                return {Code::kBadConfig,
                        fmt::format(
                            "plan '{}': combine must be auto or compute, launch_mode is serial: "
                            "the others need roles that run side by side",
                            asked.name)};
            }
            asked.combine = CombineUnits::kCompute;
            if (asked.placement != SmPlacement::kBalanced) {
                return {Code::kBadConfig,
                        fmt::format("plan '{}': placement must be balanced, launch_mode is serial: "
                                    "its kernels run on the SMs that are free",
                                    asked.name)};
            }
        }
        backend::Plan plan;
        plan::PlanSources sources;
        GCMOE_RETURN_IF_ERROR(
            plan::choose_tuned_plan(shape, options.max_tokens, asked, machine, &plan, &sources));
        memories.push_back(plan.memory);
        out->plans.push_back(std::move(plan));
        out->sources.push_back(std::move(sources));
    }
    out->heap = layout::make_symmetric_heap(shape, options.max_tokens, options.index_type,
                                            &out->symmetric_regions);
    out->local = layout::make_local_memory(shape, {options.max_tokens, options.capture}, &memories,
                                           &out->local_regions);
    for (std::size_t i = 0; i < memories.size(); ++i) out->plans[i].memory = memories[i];
    return {};
}

namespace {

// Of the memory that peers reach and the words in it: ranks of different builds may meet only if
// they agree on it. Counts up with every change of layout/symmetric_heap or protocol/words.
constexpr int kLayoutVersion = 1;

// All that must be equal on every rank; differences are named before the first launch.
group::Configuration configuration(const Shape& shape, const OperatorOptions& options,
                                   const Blueprint& blueprint) {
    group::Configuration fields;
    const auto add = [&fields](const std::string& field, const auto& value) {
        fields.emplace_back(field, fmt::format("{}", value));
    };
    add("version", kLayoutVersion);
    add("backend", options.backend);
    add("launch_mode", static_cast<int>(options.launch_mode));
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
        // Virtual ranks share a GPU: by two rules they would want the same SMs.
        add(plan.name + ".placement", static_cast<int>(plan.placement));
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

// Public calls return statuses: what the machine refuses and our own broken promises, too.
// `state` is null where no rank is made yet.
template <class Call>
Status guarded(const OperatorState* state, const Call& call) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        if (state == nullptr) return {Code::kUnsupported, "no memory for a rank's description"};
        return {Code::kUnsupported,
                fmt::format("rank {}: no memory for {} symmetric + {} local bytes", state->rank,
                            state->heap.bytes, state->local.bytes)};
    } catch (const std::system_error& error) {
        const int rank = state == nullptr ? -1 : state->rank;
        return {Code::kUnsupported,
                fmt::format("rank {}: no threads for its units: {}", rank, error.what())};
    } catch (const std::exception& error) {  // an InternalError, as a rule
        return {Code::kInternal, error.what()};
    } catch (...) {
        return {Code::kInternal, "an exception of unknown type"};
    }
}

// For destructors, where nobody is left to tell.
template <class Call>
void ignore_throws(const Call& call) noexcept {
    try {
        call();
    } catch (...) {  // going on is all that can be done
    }
}

// What the packed form depends on, as a sentence's part.
std::string describe_weights(const Shape& shape, int rank) {
    const bool fp32 = shape.activation_scale == ActivationScale::kFp32K128;
    return fmt::format(
        "rank {} of {} (hidden {}, inter {}, experts {}, shared {}, {} biases, {} activations)",
        rank, shape.num_ranks, shape.hidden, shape.inter, shape.num_experts, shape.shared_inter,
        shape.has_bias ? "with" : "without", fp32 ? "fp32_k128" : "ue8m0_k32");
}

Status check_weights(const PackedStorage& storage, const Shape& shape, int rank) {
    const std::string packed = describe_weights(storage.shape, storage.rank);
    const std::string wanted = describe_weights(shape, rank);
    if (packed == wanted) return {};
    return {Code::kBadConfig,
            fmt::format("weights were packed for {}, not for {}", packed, wanted)};
}

Status check_rank(const Shape& shape, const std::shared_ptr<const PackedWeights>& weights,
                  const std::shared_ptr<Group>& group, int rank) {
    if (weights == nullptr || group == nullptr) {
        return {Code::kBadConfig, "weights and group must not be null"};
    }
    const group::HostSession* host = group->state().host.get();
    if (host != nullptr && host->options().rank != rank) {
        return {Code::kBadConfig, fmt::format("rank = {}, but this process joined its group as "
                                              "rank {}",
                                              rank, host->options().rank)};
    }
    if (group->num_ranks() != shape.num_ranks || rank < 0 || rank >= shape.num_ranks) {
        return {Code::kBadConfig,
                fmt::format("rank = {} of num_ranks = {} does not fit a group of {} ranks", rank,
                            shape.num_ranks, group->num_ranks())};
    }
    return check_weights(weights->storage(), shape, rank);
}

// Memory, units and signals of one rank.
Status make_backend(OperatorState* state) {
    return guarded(state, [state]() -> Status {
        GroupState& group = state->group->state();
        const std::lock_guard<std::mutex> lock(group.mutex);  // ranks share the executor's slot
        const OperatorOptions& options = state->options;
        GCMOE_RETURN_IF_ERROR(make_rank(
            options.backend,
            {state->shape, state->rank, options.workspace, options.launch_mode, options.device,
             state->weights, state->heap, state->local, state->plans, options.wait_limits,
             options.poison, options.trace_events, group.host != nullptr},
            &group, &state->backend));
        state->backend->init_signals(start_point(options.start));
        return {};
    });
}

}  // namespace
}  // namespace op

Status Operator::size_report(const Shape& shape, const OperatorOptions& options,
                             std::vector<SizeEntry>* out) {
    return op::guarded(nullptr, [&]() -> Status {
        op::Blueprint blueprint;
        GCMOE_RETURN_IF_ERROR(op::make_blueprint(shape, options, &blueprint));
        out->clear();
        op::append_entries("symmetric", blueprint.symmetric_regions, out);
        op::append_entries("local", blueprint.local_regions, out);
        return {};
    });
}

namespace op {
namespace {

Status create_rank(const Shape& shape, const std::shared_ptr<const PackedWeights>& weights,
                   const std::shared_ptr<Group>& group, int rank, const OperatorOptions& options,
                   std::unique_ptr<Operator>* out) {
    GCMOE_RETURN_IF_ERROR(capability(shape, options));
    GCMOE_RETURN_IF_ERROR(check_rank(shape, weights, group, rank));
    Blueprint blueprint;
    GCMOE_RETURN_IF_ERROR(make_blueprint(shape, options, &blueprint));
    auto state = std::make_unique<OperatorState>();
    state->shape = shape;
    state->options = options;
    state->weights = weights;
    state->group = group;
    state->rank = rank;
    state->heap = blueprint.heap;
    state->local = blueprint.local;
    state->plans = blueprint.plans;
    state->sources = blueprint.sources;
    if (const Status made = make_backend(state.get()); !made.ok()) {
        return decline_meeting(*state, made);
    }
    GCMOE_RETURN_IF_ERROR(
        group::join(&group->state(), options.workspace, rank,
                    {state->backend.get(), configuration(shape, options, blueprint), weights}));
    auto made = std::make_unique<Operator>(std::move(state));
    if (group->state().host != nullptr) GCMOE_RETURN_IF_ERROR(meet_new_peers(&made->state()));
    *out = std::move(made);
    return {};
}

}  // namespace
}  // namespace op

Status Operator::create(const Shape& shape, std::shared_ptr<const PackedWeights> weights,
                        std::shared_ptr<Group> group, int rank, const OperatorOptions& options,
                        std::unique_ptr<Operator>* out) {
    return op::guarded(nullptr,
                       [&] { return op::create_rank(shape, weights, group, rank, options, out); });
}

Operator::Operator(std::unique_ptr<OperatorState> state) : state_(std::move(state)) {}

Operator::~Operator() {
    op::ignore_throws([this] { state_->backend->synchronize(); });
    op::ignore_throws([this] {
        group::leave(&state_->group->state(), state_->options.workspace, state_->rank,
                     std::move(state_->backend));
    });
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

Status Operator::write_inputs(const HostInputs& from) {
    return op::guarded(state_.get(), [&] { return op::write_inputs(from, state_.get()); });
}

Status Operator::check_inputs(int num_tokens) {
    if (num_tokens < 0 || num_tokens > state_->options.max_tokens) {
        return {Code::kBadInput,
                fmt::format("num_tokens = {} must be in 0..{} (the workspace's capacity)",
                            num_tokens, state_->options.max_tokens)};
    }
    const auto weights = group::joined_weights(&state_->group->state(), state_->options.workspace);
    return op::guarded(state_.get(), [&] { return op::check_ids(*state_, weights, num_tokens); });
}

namespace op {
namespace {

Status launch_rank(const LaunchArgs& args, OperatorState* state) {
    GCMOE_RETURN_IF_ERROR(validate_launch(state->options, state->shape, args));
    int plan_idx = 0;
    GCMOE_RETURN_IF_ERROR(find_plan(*state, args.plan, &plan_idx));
    GCMOE_RETURN_IF_ERROR(connect(state));
    state->last_plan_idx = plan_idx;
    backend::LaunchRequest request;
    request.plan_idx = plan_idx;
    request.num_tokens = args.num_tokens;
    request.y = args.y;
    request.y_stride = args.y_stride == 0 ? state->shape.hidden : args.y_stride;
    request.stream = args.stream;
    const std::uint64_t launch = ++state->num_launches;
    request.before =
        guard_before(args.before, state->options.max_tokens, launch, &state->callback_errors);
    request.after = guard_after(args.after, launch, &state->callback_errors);
    return state->backend->launch(request);
}

}  // namespace
}  // namespace op

Status Operator::launch(const LaunchArgs& args) {
    return op::guarded(state_.get(), [&]() -> Status {
        OperatorState& state = *state_;
        if (state.stalled) {
            return {Code::kBusy,
                    fmt::format("workspace '{}', rank {}: a launch stalled ({}); all ranks must "
                                "reset it together before the next launch",
                                state.options.workspace, state.rank, describe(stall_report()))};
        }
        return op::launch_rank(args, &state);
    });
}

Status Operator::synchronize() {
    return op::guarded(state_.get(), [&]() -> Status {
        if (!state_->backend->synchronize()) {
            state_->stalled = true;
            return {Code::kStalled, describe(op::read_stall_report(*state_))};
        }
        GCMOE_RETURN_IF_ERROR(state_->callback_errors.take());
        return op::take_bad_index(state_.get());
    });
}

// A GPU whose context is broken can be read no more: what is left is an empty report.
StallReport Operator::stall_report() const {
    StallReport report;
    op::ignore_throws([&] { report = op::read_stall_report(*state_); });
    return report;
}

Statistics Operator::statistics() const {
    Statistics statistics;
    op::ignore_throws([&] { statistics = op::read_statistics(*state_); });
    return statistics;
}

Status op::collect_trace(const std::vector<Operator*>& ranks, trace::Trace* out) {
    if (ranks.empty()) return {Code::kBadInput, "trace: no operator was given"};
    for (Operator* const rank : ranks) {
        if (rank == nullptr) return {Code::kBadInput, "trace: an operator is null"};
        const OperatorState& state = rank->state();
        if (state.options.trace_events == 0) {
            return {Code::kBadInput,
                    fmt::format("trace: workspace '{}', rank {} was made with trace_events = 0",
                                state.options.workspace, state.rank)};
        }
        state.backend->append_trace(out);
    }
    return {};
}

Status Operator::trace_json(const std::vector<Operator*>& ranks, const std::string& title,
                            std::string* out) {
    return op::guarded(nullptr, [&]() -> Status {
        trace::Trace trace;
        GCMOE_RETURN_IF_ERROR(op::collect_trace(ranks, &trace));
        *out = trace::chrome_json(trace, title);
        return {};
    });
}

namespace op {
namespace {

// All ranks of a workspace into the next session. A failure on the way leaves them all stalled, not
// some in the new memory and some in the old: until a reset succeeds, nobody launches.
Status restart(const std::vector<OperatorState*>& states, bool move) {
    protocol::StartPoint start;
    for (OperatorState* state : states) {
        GCMOE_RETURN_IF_ERROR(guarded(state, [&]() -> Status {
            state->backend->synchronize();
            const layout::StateWords words = read_state(*state);
            start.generation = std::max(start.generation, words.generation);
            start.session = std::max(start.session, words.session + 1);
            return {};
        }));
    }
    for (OperatorState* state : states) {
        state->connected = false;
        state->stalled = true;
    }
    for (OperatorState* state : states) {
        if (!move) break;
        GCMOE_RETURN_IF_ERROR(guarded(state, [state] { return state->backend->move_heap(); }));
    }
    for (OperatorState* state : states) {
        state->options.start = StartState{start.generation, start.session, 0, 0, 0};
        GCMOE_RETURN_IF_ERROR(guarded(state, [&]() -> Status {
            state->backend->init_signals(start);
            return {};
        }));
    }
    for (OperatorState* state : states) {
        GCMOE_RETURN_IF_ERROR(guarded(state, [state] { return connect(state); }));
    }
    for (OperatorState* state : states) state->stalled = false;
    return {};
}

}  // namespace
}  // namespace op

Status Operator::reset(const std::vector<Operator*>& all_ranks, bool move) {
    if (all_ranks.empty()) return {Code::kBadInput, "reset: no operators given"};
    if (std::find(all_ranks.begin(), all_ranks.end(), nullptr) != all_ranks.end()) {
        return {Code::kBadInput, "reset: an operator is null"};
    }
    const OperatorState& first = *all_ranks.front()->state_;
    if (first.group->state().host != nullptr) {
        if (all_ranks.size() != 1) {
            return {Code::kBadInput,
                    fmt::format("reset: {} operators given; a rank that is a process resets its "
                                "own, and waits for the others",
                                all_ranks.size())};
        }
        OperatorState* own = all_ranks.front()->state_.get();
        return op::guarded(own, [&] { return op::restart_with_peers(own, move); });
    }
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
    std::vector<OperatorState*> states;
    for (Operator* op : all_ranks) states.push_back(op->state_.get());
    return op::restart(states, move);
}

}  // namespace gcmoe
