#include "host_stub/host_roles.hpp"

#include "layout/packed_weights.hpp"
#include "op/operator_state.hpp"

namespace gcmoe::host_stub {
namespace {

using cuda::device::GpuExpert;
using cuda::device::GpuFp8Matrix;
using cuda::device::GpuLaunch;
using cuda::device::GpuMatrix;
using cuda::device::TracedLaunch;

constexpr std::uint32_t kDispatchUnits = 2;
constexpr std::uint32_t kComputeUnits = 2;
constexpr std::uint64_t kWaitLimitNs = 120ULL * 1000 * 1000 * 1000;

GpuMatrix view(const layout::PackedMatrix& matrix) {
    GpuMatrix to;
    to.tiles = matrix.tiles.data();
    to.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
    const bool row_form = matrix.form == layout::PackedMatrix::DecodeForm::kRowFactor;
    (row_form ? to.row_factors : to.chunk_factors) = matrix.factors.data();
    return to;
}

GpuFp8Matrix view(const layout::PackedFp8Matrix& matrix) {
    return {matrix.tiles.data(), matrix.scales.data(),
            static_cast<std::uint32_t>(matrix.scale_groups_per_chunk)};
}

}  // namespace

HostRanks::HostRanks(test::VirtualLayer* layer, const std::vector<reference::RankInputs>& inputs,
                     layout::CombineOn combine_on)
    : layer_(layer),
      combine_on_(combine_on),
      launches_(inputs.size()),
      experts_(inputs.size()),
      times_(inputs.size()),
      y_(inputs.size()) {
    for (std::size_t r = 0; r < inputs.size(); ++r) {
        const int rank = static_cast<int>(r);
        test::stage_inputs(&layer->op(rank), IndexType::kInt64, layer->shape(), inputs[r]);
        y_[r].assign(static_cast<std::size_t>(inputs[r].num_tokens) *
                         static_cast<std::size_t>(layer->shape().hidden),
                     0xFFFF);
        make_launch(rank);
        launches_[r].memory.state()->num_tokens = static_cast<std::uint32_t>(inputs[r].num_tokens);
    }
}

void HostRanks::make_launch(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const OperatorState& state = layer_->op(rank).state();
    const PackedStorage& storage = state.weights->storage();
    for (const auto& expert : storage.experts) {
        experts_[at].push_back({view(expert->first), view(expert->second)});
    }
    GpuLaunch& launch = launches_[at];
    launch.memory = state.backend->memory(0);
    launch.memory.plan.dispatch_units = kDispatchUnits;
    launch.memory.plan.compute_units = kComputeUnits;
    launch.memory.plan.combine_on = combine_on_;
    auto& peers = launch.memory.peers;
    std::uint8_t* const own_heap = state.backend->heap_base();
    peers = {};
    peers.base = reinterpret_cast<std::uint64_t>(own_heap);
    peers.rank = static_cast<std::uint32_t>(rank);
    peers.num_ranks = static_cast<std::uint32_t>(launches_.size());
    for (int peer = 0; peer < static_cast<int>(launches_.size()); ++peer) {
        const auto base =
            reinterpret_cast<std::uint64_t>(layer_->op(peer).state().backend->heap_base());
        peers.offset[peer] = static_cast<std::int64_t>(base - peers.base);
    }
    launch.experts = experts_[at].data();
    if (storage.has_shared) {
        launch.shared_first = view(storage.shared_first);
        launch.shared_second = view(storage.shared_second);
    }
    launch.activation = state.shape.activation;
    launch.num_experts = static_cast<std::uint32_t>(state.shape.num_experts);
    launch.hidden = static_cast<std::uint32_t>(state.shape.hidden);
    launch.lead_blocks = state.plans[0].lead_blocks;
    launch.order = storage.order;
    launch.weight_placement = state.shape.weight_placement;
    launch.first_limit_ns = launch.wait_limit_ns = kWaitLimitNs;
    launch.y = y_[at].data();
    launch.y_stride = state.shape.hidden;
    times_[at].resize(2 * (kDispatchUnits + kComputeUnits));
    launch.dispatch_times = times_[at].data();
    launch.compute_times = launch.dispatch_times + kDispatchUnits;
    launch.combine_times = launch.compute_times + kComputeUnits;
}

void HostRanks::record(std::uint32_t events) {
    constexpr std::uint32_t kDispatch = kDispatchUnits * cuda::device::kDispatchLogs;
    constexpr std::uint32_t kLogs = kDispatch + kComputeUnits + kDispatchUnits + kComputeUnits;
    logs_.resize(launches_.size());
    for (std::size_t r = 0; r < launches_.size(); ++r) {
        HostLogs& own = logs_[r];
        own.events.resize(std::size_t{kLogs} * events);
        own.logs.clear();
        for (std::size_t i = 0; i < kLogs; ++i) {
            own.logs.push_back({own.events.data() + i * events, events});
        }
        trace::UnitLog* const compute = own.logs.data() + kDispatch;
        launches_[r].is_traced = 1;
        launches_[r].logs = {own.logs.data(), compute, compute + kComputeUnits, nullptr};
    }
}

trace::Trace HostRanks::trace() const {
    using trace::UnitRoles;
    constexpr std::size_t kDispatch = kDispatchUnits * cuda::device::kDispatchLogs;
    trace::Trace all;
    for (std::size_t r = 0; r < logs_.size(); ++r) {
        for (std::size_t i = 0; i < logs_[r].logs.size(); ++i) {
            const trace::UnitLog& log = logs_[r].logs[i];
            trace::Track track;
            track.rank = static_cast<int>(r);
            track.unit = static_cast<int>(i < kDispatch ? i / cuda::device::kDispatchLogs : i);
            if (i >= kDispatch) {
                const bool combines = i >= kDispatch + kComputeUnits;
                track.roles = combines ? UnitRoles::kRole3 : UnitRoles::kRole2;
            }
            track.events.assign(log.events, log.events + log.num_events);
            track.num_dropped = log.num_dropped;
            all.tracks.push_back(std::move(track));
        }
    }
    return all;
}

std::string HostRanks::run() {
    Machine machine;
    const ActivationScale scale = layer_->shape().activation_scale;
    const bool one_grid = combine_on_ == layout::CombineOn::kAll;
    for (const TracedLaunch& launch : launches_) {
        if (one_grid) {
            add_one_grid(&machine, launch, scale);
        } else {
            add_role1(&machine, launch);
            add_role2(&machine, launch, scale);
            if (launch.memory.plan.combines_by_signals()) add_role3(&machine, launch);
        }
    }
    machine.run();
    for (const TracedLaunch& launch : launches_) {
        if (!launch.memory.plan.combines_by_signals()) add_role3(&machine, launch);
    }
    machine.run();
    std::string failed;
    for (const TracedLaunch& launch : launches_) {
        const auto* report = launch.memory.at<StallReport>(launch.memory.local.stall_report);
        if (report->cause != StallCause::kNone) failed += describe(*report) + "\n";
    }
    return failed;
}

}  // namespace gcmoe::host_stub
