#include "cuda/runtime/cuda_rank.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>

#include "backend/describe_memory.hpp"
#include "backend/launch_times.hpp"
#include "base/check.hpp"
#include "cuda/device/device_buffer.hpp"
#include "cuda/device/warm_ranges.hpp"
#include "cuda/runtime/device_logs.hpp"
#include "cuda/runtime/init_signals.hpp"
#include "cuda/runtime/prepare_roles.hpp"
#include "cuda/runtime/stream_capture.hpp"
#include "cuda/runtime/workspace_launcher.hpp"
#include "cuda/weights/gpu_weights.hpp"

namespace gcmoe::cuda::runtime {
namespace {

using backend::HostView;
using backend::LaunchRequest;
using backend::Room;
using backend::RoomPart;
using device::cuda_status;
using device::DeviceBuffer;
using device::GpuTimes;

// For calls that return no status: the operator turns what is thrown into kInternal.
void must(const Status& status) {
    if (!status.ok()) throw InternalError(status.message());
}

// The rank's device for the calling thread, and the thread's own again afterwards.
class DeviceScope {
  public:
    explicit DeviceScope(int device) {
        cudaGetDevice(&before_);
        if (before_ != device) cudaSetDevice(device);
    }
    ~DeviceScope() { cudaSetDevice(before_); }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    int before_ = 0;
};

// Kept by the group: green contexts, and a launcher per workspace. Destroyed after the ranks.
class CudaExecutor final : public backend::Executor {
  public:
    CudaExecutor(int device, int num_ranks)
        : device_(device),
          num_ranks_(num_ranks),
          partitions_(device, num_ranks),
          chain_(std::make_shared<LaunchChain>()) {}

    [[nodiscard]] int device() const { return device_; }
    Partitions& partitions() { return partitions_; }
    // The launcher that the ranks of a workspace share as long as one of them lives.
    Status launcher(const std::string& workspace, LaunchMode mode,
                    std::shared_ptr<WorkspaceLauncher>* out) {
        std::weak_ptr<WorkspaceLauncher>& known = launchers_[workspace];
        *out = known.lock();
        if (*out != nullptr) return {};
        auto made = std::make_shared<WorkspaceLauncher>();
        GCMOE_RETURN_IF_ERROR(made->create(num_ranks_, mode, chain_));
        known = made;
        *out = std::move(made);
        return {};
    }

  private:
    int device_ = 0;
    int num_ranks_ = 0;
    Partitions partitions_;
    std::shared_ptr<LaunchChain> chain_;
    std::map<std::string, std::weak_ptr<WorkspaceLauncher>> launchers_;
};

// Hardware queues of the process: roots of one graph that share a queue would run one after the
// other, and the first would wait for the second to its deadline.
Status check_connections(int num_ranks) {
    constexpr int kDefault = 8;  // CUDA's, without the variable
    const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int queues = text == nullptr ? kDefault : std::atoi(text);
    if (2 * num_ranks <= queues) return {};
    return {Code::kUnsupported,
            fmt::format("{} ranks in one process need {} hardware queues (2 a rank), "
                        "CUDA_DEVICE_MAX_CONNECTIONS gives {}: set it to at least {} (32 at most) "
                        "before CUDA starts",
                        num_ranks, 2 * num_ranks, queues, 2 * num_ranks)};
}

class CudaRank final : public backend::RankBackend {
  public:
    CudaRank(backend::RankSetup setup, std::shared_ptr<CudaExecutor> executor)
        : setup_(std::move(setup)), executor_(std::move(executor)) {}

    Status create();
    std::uint8_t* heap_base() override { return heap_.as<std::uint8_t>(); }
    void read(Room room, std::uint64_t offset, void* to, std::uint64_t bytes) override;
    void write(Room room, std::uint64_t offset, const void* from, std::uint64_t bytes) override;
    void fill(Room room, std::uint64_t offset, std::uint8_t value, std::uint64_t bytes) override;
    HostView host_view() override;
    HostView host_view(const std::vector<RoomPart>& parts) override;
    void connect(const layout::PeerTable& peers) override { peers_ = peers; }
    void init_signals(const protocol::StartPoint& start) override;
    Status move_heap() override;
    Status launch(const LaunchRequest& request) override;
    bool synchronize() override;
    [[nodiscard]] LaunchTimes times() override;
    [[nodiscard]] Placement placement() override;
    void append_trace(trace::Trace* out) override;
    [[nodiscard]] layout::RankMemory memory(int plan_idx) const override;

  private:
    struct Times {
        std::vector<GpuTimes> dispatch;
        std::vector<GpuTimes> compute;
        std::vector<GpuTimes> combine;
        std::vector<GpuTimes> shared;
    };
    Status allocate();
    Status choose_output(const LaunchRequest& request, std::uint16_t** y);
    Status copy_output();
    [[nodiscard]] device::GpuLaunch make_launch(const LaunchRequest& request, std::uint16_t* y);
    [[nodiscard]] const DeviceBuffer& room(Room room) const {
        return room == Room::kHeap ? heap_ : local_;
    }
    [[nodiscard]] Times read_times();

    backend::RankSetup setup_;
    std::shared_ptr<CudaExecutor> executor_;
    std::shared_ptr<WorkspaceLauncher> launcher_;
    std::shared_ptr<const weights::GpuWeights> weights_;
    std::vector<const RankPartition*> partitions_;  // (plans)
    layout::PeerTable peers_;
    DeviceBuffer heap_;
    DeviceBuffer local_;
    std::vector<DeviceBuffer> old_heaps_;  // mapped until the rank goes
    DeviceBuffer times_;                   // GpuTimes: (most dispatch, compute, combine, dispatch)
    DeviceLogs logs_;                      // allocated for a trace only
    std::size_t most_dispatch_ = 0;
    std::size_t most_compute_ = 0;
    std::size_t most_combine_ = 0;
    int last_plan_idx_ = 0;
    DeviceBuffer staged_y_;  // (max_tokens, hidden) bf16, for outputs in host memory
    LaunchRequest staged_;   // whose y waits for its rows; y null = none
    // Of both rooms; never filled whole, so that only what is read takes up memory.
    std::unique_ptr<std::uint8_t[]> heap_copy_;
    std::unique_ptr<std::uint8_t[]> local_copy_;
};

Status CudaRank::allocate() {
    GCMOE_RETURN_IF_ERROR(heap_.allocate(
        setup_.heap.bytes, fmt::format("the symmetric memory of rank {}", setup_.rank)));
    GCMOE_RETURN_IF_ERROR(local_.allocate(setup_.local.bytes,
                                          fmt::format("the local memory of rank {}", setup_.rank)));
    for (const backend::Plan& plan : setup_.plans) {
        most_dispatch_ = std::max<std::size_t>(most_dispatch_, plan.memory.dispatch_units);
        most_compute_ = std::max<std::size_t>(most_compute_, plan.memory.compute_units);
    }
    most_combine_ = most_dispatch_ + most_compute_;
    const std::size_t units = 2 * most_dispatch_ + most_compute_ + most_combine_;
    GCMOE_RETURN_IF_ERROR(times_.allocate(units * sizeof(GpuTimes), "the times of a launch"));
    if (setup_.trace_events != 0) {
        GCMOE_RETURN_IF_ERROR(logs_.allocate({most_dispatch_, most_compute_, most_combine_},
                                             static_cast<std::size_t>(setup_.trace_events)));
    }
    const int value = setup_.poison ? 0xFF : 0;
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemset(heap_base(), value, heap_.bytes()), "filling memory"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaMemset(local_.as<std::uint8_t>(), value, local_.bytes()),
                                      "filling memory"));
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemset(times_.as<GpuTimes>(), 0, times_.bytes()), "filling memory"));
    const std::size_t statistics = setup_.heap.experts_per_rank * sizeof(std::uint64_t);
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemset(local_.as<std::uint8_t>(setup_.local.statistics), 0, statistics),
                    "filling memory"));
    return cuda_status(
        cudaMemset(local_.as<std::uint8_t>(setup_.local.state), 0, sizeof(layout::StateWords)),
        "filling memory");
}

Status CudaRank::create() {
    const DeviceScope scope(setup_.device);
    GCMOE_RETURN_IF_ERROR(prepare_roles(setup_.device));
    GCMOE_RETURN_IF_ERROR(weights::find(setup_.weights->storage(), &weights_));
    GCMOE_RETURN_IF_ERROR(allocate());
    for (const backend::Plan& plan : setup_.plans) {
        const RankPartition* partition = nullptr;
        const Partition sizes{static_cast<int>(plan.memory.dispatch_units),
                              static_cast<int>(plan.memory.compute_units)};
        GCMOE_RETURN_IF_ERROR(
            executor_->partitions().find(setup_.rank, sizes, plan.placement, &partition));
        partitions_.push_back(partition);
    }
    return executor_->launcher(setup_.workspace, setup_.launch_mode, &launcher_);
}

void CudaRank::read(Room where, std::uint64_t offset, void* to, std::uint64_t bytes) {
    const DeviceScope scope(setup_.device);
    must(cuda_status(
        cudaMemcpy(to, room(where).as<std::uint8_t>(offset), bytes, cudaMemcpyDeviceToHost),
        "reading a rank's memory"));
}

void CudaRank::write(Room where, std::uint64_t offset, const void* from, std::uint64_t bytes) {
    const DeviceScope scope(setup_.device);
    must(cuda_status(
        cudaMemcpy(room(where).as<std::uint8_t>(offset), from, bytes, cudaMemcpyHostToDevice),
        "writing a rank's memory"));
    // The copy may still be on its way from a staging buffer; launches run on other streams.
    must(cuda_status(cudaStreamSynchronize(nullptr), "writing a rank's memory"));
}

void CudaRank::fill(Room where, std::uint64_t offset, std::uint8_t value, std::uint64_t bytes) {
    const DeviceScope scope(setup_.device);
    must(cuda_status(cudaMemset(room(where).as<std::uint8_t>(offset), value, bytes),
                     "filling a rank's memory"));
    // Launches run on other streams.
    must(cuda_status(cudaStreamSynchronize(nullptr), "filling a rank's memory"));
}

HostView CudaRank::host_view() {
    return host_view({{Room::kHeap, 0, heap_.bytes()}, {Room::kLocal, 0, local_.bytes()}});
}

HostView CudaRank::host_view(const std::vector<RoomPart>& parts) {
    if (heap_copy_ == nullptr) {
        heap_copy_ = std::make_unique_for_overwrite<std::uint8_t[]>(heap_.bytes());
        local_copy_ = std::make_unique_for_overwrite<std::uint8_t[]>(local_.bytes());
    }
    for (const RoomPart& part : parts) {
        std::uint8_t* to = part.room == Room::kHeap ? heap_copy_.get() : local_copy_.get();
        read(part.room, part.offset, to + part.offset, part.bytes);
    }
    return {heap_copy_.get(), local_copy_.get()};
}

void CudaRank::init_signals(const protocol::StartPoint& start) {
    const DeviceScope scope(setup_.device);
    std::vector<layout::RankMemory> plans;
    for (std::size_t i = 0; i < setup_.plans.size(); ++i) {
        plans.push_back(memory(static_cast<int>(i)));
    }
    must(runtime::init_signals(plans, start));
    launcher_->restart();
}

Status CudaRank::move_heap() {
    const DeviceScope scope(setup_.device);
    DeviceBuffer fresh;
    must(fresh.allocate(setup_.heap.bytes, "new symmetric memory"));
    must(cuda_status(cudaMemset(fresh.as<std::uint8_t>(), setup_.poison ? 0xFF : 0, fresh.bytes()),
                     "filling memory"));
    const std::uint64_t inputs = setup_.heap.recv_count;  // the regions before are the caller's
    must(cuda_status(
        cudaMemcpy(fresh.as<std::uint8_t>(), heap_base(), inputs, cudaMemcpyDeviceToDevice),
        "moving the inputs"));
    old_heaps_.push_back(std::move(heap_));
    heap_ = std::move(fresh);
    peers_ = {};  // they have moved, too
    return {};
}

layout::RankMemory CudaRank::memory(int plan_idx) const {
    return backend::describe_memory(setup_, plan_idx, peers_, heap_.as<std::uint8_t>(),
                                    local_.as<std::uint8_t>());
}

device::GpuLaunch CudaRank::make_launch(const LaunchRequest& request, std::uint16_t* y) {
    const backend::Plan& plan = setup_.plans[static_cast<std::size_t>(request.plan_idx)];
    device::GpuLaunch launch;
    launch.memory = memory(request.plan_idx);
    launch.experts = weights_->experts();
    launch.shared_first = weights_->shared_first();
    launch.shared_second = weights_->shared_second();
    launch.activation = setup_.shape.activation;
    launch.num_experts = static_cast<std::uint32_t>(setup_.shape.num_experts);
    launch.hidden = static_cast<std::uint32_t>(setup_.shape.hidden);
    launch.lead_blocks = plan.lead_blocks;
    launch.overlap = plan.overlap ? 1 : 0;
    launch.has_role4 = plan.has_role4 ? 1 : 0;
    launch.order = layout::routed_k_order(setup_.shape.activation_scale);
    launch.weight_placement = setup_.shape.weight_placement;
    launch.first_limit_ns = backend::limit_ns(setup_.wait_limits.first_launch_s);
    launch.wait_limit_ns = backend::limit_ns(setup_.wait_limits.steady_s);
    launch.y = y;
    launch.y_stride = request.y_stride;
    launch.dispatch_times = times_.as<GpuTimes>();
    launch.compute_times = launch.dispatch_times + most_dispatch_;
    launch.combine_times = launch.compute_times + most_compute_;
    launch.shared_times = launch.combine_times + most_combine_;
    device::list_warm_ranges(&launch);
    launch.is_traced = setup_.trace_events != 0 ? 1 : 0;
    launch.logs = logs_.logs();
    return launch;
}

// Device memory as it is; for host memory the staging buffer.
Status CudaRank::choose_output(const LaunchRequest& request, std::uint16_t** y) {
    *y = request.y;
    if (request.y == nullptr) return {};
    cudaPointerAttributes attributes{};
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaPointerGetAttributes(&attributes, request.y), "asking what y points to"));
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != setup_.device) {
        return {Code::kBadInput, fmt::format("y lies on device {}, rank {} is on device {}",
                                             attributes.device, setup_.rank, setup_.device)};
    }
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
        if (reinterpret_cast<std::uint64_t>(request.y) % 16 == 0 && request.y_stride % 8 == 0) {
            return {};
        }
        return {Code::kBadInput,
                fmt::format("y = {} with y_stride = {} must be 16-byte aligned, the stride a "
                            "multiple of 8 (rows are stored 16 bytes at a time)",
                            static_cast<const void*>(request.y), request.y_stride)};
    }
    bool capturing = false;
    if (request.stream != nullptr) {
        GCMOE_RETURN_IF_ERROR(is_capturing(static_cast<cudaStream_t>(request.stream), &capturing));
    }
    if (capturing) {
        return {Code::kBadInput,
                "y must be device memory on a stream under capture: replays know "
                "nothing of the host's"};
    }
    if (staged_.y != nullptr && !synchronize()) {
        return {Code::kStalled, fmt::format("rank {}: the launch before has stalled", setup_.rank)};
    }
    if (staged_y_.bytes() == 0) {
        GCMOE_RETURN_IF_ERROR(staged_y_.allocate(
            std::size_t{setup_.heap.max_tokens} * static_cast<std::size_t>(setup_.shape.hidden) * 2,
            "results on their way to the host"));
    }
    staged_ = request;
    *y = staged_y_.as<std::uint16_t>();
    return {};
}

Status CudaRank::launch(const LaunchRequest& request) {
    const DeviceScope scope(setup_.device);
    if (request.before || request.after) {
        return {
            Code::kUnsupported,
            "before and after run on the CPU backend's stream; on a GPU order work by `stream`"};
    }
    std::uint16_t* y = nullptr;
    GCMOE_RETURN_IF_ERROR(choose_output(request, &y));
    LaunchRequest placed = request;
    if (y != request.y) placed.y_stride = setup_.shape.hidden;
    RankLaunch launch;
    launch.launch = make_launch(placed, y);
    launch.activation_scale = setup_.shape.activation_scale;
    launch.partition = partitions_[static_cast<std::size_t>(request.plan_idx)];
    launch.num_tokens_word =
        local_.as<std::uint32_t>(setup_.local.state + offsetof(layout::StateWords, num_tokens));
    launch.plan_idx = request.plan_idx;
    launch.num_tokens = request.num_tokens;
    launch.stream = static_cast<cudaStream_t>(request.stream);
    last_plan_idx_ = request.plan_idx;
    const Status status = launcher_->submit(setup_.rank, launch);
    if (!status.ok()) staged_.y = nullptr;
    return status;
}

Status CudaRank::copy_output() {
    if (staged_.y == nullptr) return {};
    const LaunchRequest to = staged_;
    staged_.y = nullptr;
    const auto hidden = static_cast<std::size_t>(setup_.shape.hidden);
    return cuda_status(
        cudaMemcpy2D(to.y, static_cast<std::size_t>(to.y_stride) * 2, staged_y_.as<std::uint8_t>(),
                     hidden * 2, hidden * 2, static_cast<std::size_t>(to.num_tokens),
                     cudaMemcpyDeviceToHost),
        "copying results to the host");
}

bool CudaRank::synchronize() {
    const DeviceScope scope(setup_.device);
    must(launcher_->synchronize(setup_.rank));
    must(copy_output());
    layout::StateWords state;
    read(Room::kLocal, setup_.local.state, &state, sizeof(state));
    return state.stall_claimed == 0;
}

CudaRank::Times CudaRank::read_times() {
    const DeviceScope scope(setup_.device);
    std::vector<GpuTimes> all(times_.bytes() / sizeof(GpuTimes));
    must(cuda_status(
        cudaMemcpy(all.data(), times_.as<GpuTimes>(), times_.bytes(), cudaMemcpyDeviceToHost),
        "reading the times of a launch"));
    const layout::PlanMemory& plan = setup_.plans[static_cast<std::size_t>(last_plan_idx_)].memory;
    const GpuTimes* compute = all.data() + most_dispatch_;
    const GpuTimes* combine = compute + most_compute_;
    const GpuTimes* shared = combine + most_combine_;
    return {{all.data(), all.data() + plan.dispatch_units},
            {compute, compute + plan.compute_units},
            {combine, combine + plan.combine_units()},
            {shared, shared + plan.dispatch_units}};
}

LaunchTimes CudaRank::times() {
    const Times times = read_times();
    return backend::launch_times(times.dispatch, times.compute, times.combine);
}

Placement CudaRank::placement() {
    if (launcher_->mode() == LaunchMode::kSerial) return {};
    const Times times = read_times();
    const auto sms = [](const std::vector<GpuTimes>& units) {
        std::vector<int> list;
        for (const GpuTimes& unit : units) {
            if (unit.begin_ns != 0) list.push_back(static_cast<int>(unit.sm_id));
        }
        std::sort(list.begin(), list.end());
        return list;
    };
    const RankPartition& partition = *partitions_[static_cast<std::size_t>(last_plan_idx_)];
    Placement placement;
    const backend::Plan& plan = setup_.plans[static_cast<std::size_t>(last_plan_idx_)];
    placement.dispatch_ran = sms(times.dispatch);
    placement.compute_ran = sms(times.compute);
    placement.combine_ran = sms(times.combine);
    if (plan.memory.combine_on == layout::CombineOn::kAll) {
        std::merge(partition.dispatch_sms.begin(), partition.dispatch_sms.end(),
                   partition.compute_sms.begin(), partition.compute_sms.end(),
                   std::back_inserter(placement.combine_map));
        return placement;
    }
    placement.dispatch_map = partition.dispatch_sms;
    placement.compute_map = partition.compute_sms;
    const bool on_dispatch = plan.memory.combine_on == layout::CombineOn::kDispatch;
    placement.combine_map = on_dispatch ? placement.dispatch_map : placement.compute_map;
    if (plan.has_role4) placement.shared_ran = sms(times.shared);
    return placement;
}

void CudaRank::append_trace(trace::Trace* out) {
    const DeviceScope scope(setup_.device);
    must(logs_.append(setup_.rank, out));
}

}  // namespace

Status make_cuda_rank(backend::RankSetup setup, int num_ranks,
                      std::shared_ptr<backend::Executor>* shared,
                      std::unique_ptr<backend::RankBackend>* out) {
    auto executor = std::dynamic_pointer_cast<CudaExecutor>(*shared);
    if (executor == nullptr) {
        GCMOE_RETURN_IF_ERROR(check_connections(num_ranks));
        executor = std::make_shared<CudaExecutor>(setup.device, num_ranks);
        *shared = executor;
    }
    if (executor->device() != setup.device) {
        return {Code::kBadConfig,
                fmt::format("rank {}: device = {}, but this group's ranks are on device {}",
                            setup.rank, setup.device, executor->device())};
    }
    auto rank = std::make_unique<CudaRank>(std::move(setup), std::move(executor));
    GCMOE_RETURN_IF_ERROR(rank->create());
    *out = std::move(rank);
    return {};
}

}  // namespace gcmoe::cuda::runtime
