#include "cpu/cpu_rank.hpp"

#include <algorithm>
#include <cstring>

#include "backend/describe_memory.hpp"
#include "backend/launch_times.hpp"
#include "cpu/executor_stepper.hpp"
#include "cpu/executor_threads.hpp"
#include "cpu/thread_memory.hpp"

namespace gcmoe::cpu {
AlignedBytes::AlignedBytes(std::uint64_t bytes)
    : storage_(std::make_unique<std::uint8_t[]>(bytes + layout::kRegionAlign)), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(storage_.get());
    data_ = storage_.get() + (round_up(address, layout::kRegionAlign) - address);
}

CpuRank::CpuRank(backend::RankSetup setup) : setup_(std::move(setup)), local_(setup_.local.bytes) {
    if (setup_.poison) std::memset(local_.data(), 0xFF, local_.size());
    for (const backend::Plan& plan : setup_.plans) {
        most_dispatch_ = std::max(most_dispatch_, plan.memory.dispatch_units);
        most_compute_ = std::max(most_compute_, plan.memory.compute_units);
    }
    dispatch_times_.resize(most_dispatch_);
    compute_times_.resize(most_compute_);
    combine_times_.resize(std::max(most_dispatch_, most_compute_));
    dispatch_scratch_.resize(most_dispatch_);
    compute_scratch_.resize(most_compute_);
    make_logs();
    std::memset(local_.data() + setup_.local.statistics, 0,
                std::size_t{setup_.heap.experts_per_rank} * sizeof(std::uint64_t));
    std::memset(local_.data() + setup_.local.state, 0, sizeof(layout::StateWords));
}

void CpuRank::make_logs() {
    if (setup_.trace_events == 0) return;
    const auto capacity = static_cast<std::size_t>(setup_.trace_events);
    const std::size_t units = std::size_t{most_dispatch_} + most_compute_;
    events_.resize(units * capacity);
    for (std::size_t unit = 0; unit < units; ++unit) {
        logs_.push_back({events_.data() + unit * capacity, static_cast<std::uint32_t>(capacity)});
    }
}

void CpuRank::append_trace(trace::Trace* out) {
    for (std::size_t unit = 0; unit < logs_.size(); ++unit) {
        const trace::UnitLog& log = logs_[unit];
        trace::Track track;
        track.rank = setup_.rank;
        const bool is_dispatch = unit < most_dispatch_;
        track.roles = is_dispatch ? trace::UnitRoles::kRole1 : trace::UnitRoles::kRoles23;
        track.unit = static_cast<int>(is_dispatch ? unit : unit - most_dispatch_);
        track.events.assign(log.events, log.events + log.num_events);
        track.num_dropped = log.num_dropped;
        out->tracks.push_back(std::move(track));
    }
}

CpuRank::~CpuRank() { executor_.reset(); }

Status CpuRank::make_heap(Heap* out) const {
    const std::uint64_t bytes = setup_.heap.bytes;
    if (setup_.shared_heap) {
        GCMOE_RETURN_IF_ERROR(SharedMemory::create(bytes, &out->shared));
        out->base = out->shared.data();
    } else {
        out->own = AlignedBytes(bytes);
        out->base = out->own.data();
    }
    if (setup_.poison) std::memset(out->base, 0xFF, bytes);
    return {};
}

Status CpuRank::allocate_heap() { return make_heap(&heap_); }

std::uint8_t* CpuRank::room(backend::Room room) const {
    return room == backend::Room::kHeap ? heap_.base : local_.data();
}

void CpuRank::read(backend::Room room, std::uint64_t offset, void* to, std::uint64_t bytes) {
    std::uint8_t* from = this->room(room) + offset;
    if (offset % sizeof(std::uint64_t) != 0 || bytes % sizeof(std::uint64_t) != 0) {
        std::memcpy(to, from, bytes);
        return;
    }
    // Signals: a peer that still runs may store into them meanwhile.
    for (std::uint64_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        auto& word = *reinterpret_cast<std::uint64_t*>(from + at);
        const std::uint64_t value =
            std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
        std::memcpy(static_cast<std::uint8_t*>(to) + at, &value, sizeof(value));
    }
}

void CpuRank::write(backend::Room room, std::uint64_t offset, const void* from,
                    std::uint64_t bytes) {
    std::memcpy(this->room(room) + offset, from, bytes);
}

void CpuRank::fill(backend::Room room, std::uint64_t offset, std::uint8_t value,
                   std::uint64_t bytes) {
    std::memset(this->room(room) + offset, value, bytes);
}

Status CpuRank::share_heap(SharedHandle* out) { return heap_.shared.share(out); }

Status CpuRank::map_peer(int rank, const SharedHandle& handle, std::uint8_t** out) {
    SharedMemory& mapped = peer_heaps_[rank];
    mapped = SharedMemory();  // the old mapping first: a machine that is full has room for one
    GCMOE_RETURN_IF_ERROR(SharedMemory::map(handle, setup_.heap.bytes, &mapped));
    *out = mapped.data();
    return {};
}

void CpuRank::connect(const layout::PeerTable& peers) { peers_ = peers; }

void CpuRank::init_signals(const protocol::StartPoint& start) {
    protocol::init_workspace_signals(memory(0), start);
    for (std::size_t i = 0; i < setup_.plans.size(); ++i) {
        protocol::init_plan_signals(memory(static_cast<int>(i)), start);
    }
    num_launches_ = 0;
    failed_.store(false, std::memory_order_relaxed);
}

Status CpuRank::move_heap() {
    Heap fresh;
    GCMOE_RETURN_IF_ERROR(make_heap(&fresh));
    std::memcpy(fresh.base, heap_.base,
                setup_.heap.recv_count);  // the regions before: the caller's
    if (!setup_.shared_heap) old_heaps_.push_back(std::move(heap_.own));
    heap_ = std::move(fresh);
    peers_ = {};  // they have moved, too; until connect(), signals are those of the new heap
    return {};
}

layout::RankMemory CpuRank::memory(int plan_idx) const {
    return backend::describe_memory(setup_, plan_idx, peers_, heap_.base, local_.data());
}

Status CpuRank::launch(const backend::LaunchRequest& request) {
    {
        const std::lock_guard<std::mutex> lock(queue_mutex_);
        queue_.push_back(request);
    }
    executor_->notify();
    return {};
}

bool CpuRank::synchronize() {
    executor_->drain();
    return !failed_.load(std::memory_order_relaxed);
}

bool CpuRank::has_launch() {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    return !queue_.empty();
}

const CpuLaunch& CpuRank::begin_launch() {
    {
        const std::lock_guard<std::mutex> lock(queue_mutex_);
        open_request_ = std::move(queue_.front());
        queue_.pop_front();
    }
    const backend::Plan& plan = setup_.plans[static_cast<std::size_t>(open_request_.plan_idx)];
    const bool first = num_launches_++ == 0;
    open_.memory = memory(open_request_.plan_idx);
    open_.shape = &setup_.shape;
    open_.weights = &setup_.weights->storage();
    open_.lead_blocks = plan.lead_blocks;
    open_.overlap = plan.overlap;
    open_.wait_limit_ns =
        backend::limit_ns(first ? setup_.wait_limits.first_launch_s : setup_.wait_limits.steady_s);
    open_.y = open_request_.y;
    open_.y_stride = open_request_.y_stride;
    open_.dispatch_times = dispatch_times_.data();
    open_.compute_times = compute_times_.data();
    open_.combine_times = combine_times_.data();
    open_.dispatch_scratch = dispatch_scratch_.data();
    open_.compute_scratch = compute_scratch_.data();
    if (!logs_.empty()) {
        open_.dispatch_logs = logs_.data();
        open_.compute_logs = logs_.data() + most_dispatch_;
    }
    std::fill(dispatch_times_.begin(), dispatch_times_.end(), UnitTimes{});
    std::fill(compute_times_.begin(), compute_times_.end(), UnitTimes{});
    std::fill(combine_times_.begin(), combine_times_.end(), UnitTimes{});
    int num_tokens = open_request_.num_tokens;
    if (open_request_.before) num_tokens = open_request_.before();
    open_.memory.state()->num_tokens = static_cast<std::uint32_t>(num_tokens);
    return open_;
}

void CpuRank::end_launch() {
    if (open_request_.after) open_request_.after();
    open_request_ = {};
}

LaunchTimes CpuRank::times() {
    return backend::launch_times(dispatch_times_, compute_times_, combine_times_);
}

Status make_cpu_rank(backend::RankSetup setup, const GroupOptions& options,
                     std::shared_ptr<backend::Executor>* shared,
                     std::unique_ptr<backend::RankBackend>* out) {
    auto rank = std::make_unique<CpuRank>(std::move(setup));
    GCMOE_RETURN_IF_ERROR(rank->allocate_heap());
    if (options.executor == ExecutorKind::kThreads) {
        const auto* chosen = dynamic_cast<const ThreadRoles*>(shared->get());
        const Roles roles = chosen != nullptr ? chosen->roles : roles_with<ThreadMemory>();
        rank->set_executor(std::make_unique<ThreadsExecutor>(rank.get(), roles));
    } else {
        if (*shared == nullptr) *shared = std::make_shared<Stepper>(options);
        auto stepper = std::static_pointer_cast<Stepper>(*shared);
        rank->set_executor(std::make_unique<StepperExecutor>(stepper, rank.get()));
    }
    *out = std::move(rank);
    return {};
}

}  // namespace gcmoe::cpu
