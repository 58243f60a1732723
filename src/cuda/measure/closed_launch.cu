#include "cuda/measure/closed_launch.hpp"

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "cuda/device/device_buffer.hpp"
#include "cuda/ptx/signal.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/sync.cuh"

namespace gcmoe::cuda::measure {
namespace {

using device::cuda_status;

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kStoreBytes = 16;
constexpr std::size_t kMostRegions = 16;
constexpr int kUncleared = 0xFF;

struct ClosingJob {
    struct Span {
        std::uint32_t offset;
        std::uint32_t bytes;
    };
    std::uint8_t* room = nullptr;
    std::uint64_t* arrived = nullptr;  // null: no barrier
    std::uint32_t num_spans = 0;
    Span spans[kMostRegions] = {};
};

// Regions are whole stores: their starts are a kRegionAlign apart.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   closing_kernel: registers 18, spills 0 / 0
__global__ void __launch_bounds__(kThreads) closing_kernel(const __grid_constant__ ClosingJob job) {
    const std::uint32_t thread = ptx::thread_idx();
    for (std::uint32_t i = 0; i < job.num_spans; ++i) {
        const ClosingJob::Span span = job.spans[i];
        for (std::uint32_t at = thread * kStoreBytes; at < span.bytes;
             at += kThreads * kStoreBytes) {
            *reinterpret_cast<uint4*>(job.room + span.offset + at) = uint4{};
        }
    }
    if (job.arrived == nullptr) return;
    ptx::cta_barrier();
    if (thread != 0) return;
    // The only writer is this thread, launch after launch.
    const std::uint64_t target = ptx::load_relaxed_sys(job.arrived) + 1;
    ptx::add_release_sys(job.arrived, std::uint64_t{1});
    while (ptx::load_acquire_sys(job.arrived) != target) {
    }
}

class GraphLaunch final : public ClosedLaunch {
  public:
    ~GraphLaunch() override {
        if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    }

    Status make(const Work& roles, const std::optional<ClosingWork>& closing,
                const layout::RegionList& cleared, void* stream) {
        stream_ = static_cast<cudaStream_t>(stream);
        ClosingJob job;
        if (closing) GCMOE_RETURN_IF_ERROR(prepare(*closing, cleared, &job));
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                        "beginning a capture"));
        const Status recorded = roles();
        if (recorded.ok() && closing) closing_kernel<<<1, kThreads, 0, stream_>>>(job);
        cudaGraph_t graph = nullptr;
        const Status ended = cuda_status(cudaStreamEndCapture(stream_, &graph), "ending a capture");
        if (!recorded.ok() || !ended.ok()) {
            if (graph != nullptr) cudaGraphDestroy(graph);
            cudaGetLastError();
            return recorded.ok() ? ended : recorded;
        }
        const Status made = cuda_status(cudaGraphInstantiate(&exec_, graph, 0), "making a graph");
        cudaGraphDestroy(graph);
        return made;
    }

    Status launch() override {
        return cuda_status(cudaGraphLaunch(exec_, stream_), "launching a graph");
    }

    Status synchronize() override {
        return cuda_status(cudaStreamSynchronize(stream_), "running a graph");
    }

    Status read(std::vector<unsigned char>* room, std::size_t* num_met) override {
        room->resize(room_.bytes());
        GCMOE_RETURN_IF_ERROR(cuda_status(
            cudaMemcpy(room->data(), room_.as<void>(), room_.bytes(), cudaMemcpyDeviceToHost),
            "reading what was cleared"));
        std::uint64_t met = 0;
        if (arrived_.bytes() != 0) {
            GCMOE_RETURN_IF_ERROR(cuda_status(
                cudaMemcpy(&met, arrived_.as<void>(), sizeof(met), cudaMemcpyDeviceToHost),
                "reading the barrier's word"));
        }
        *num_met = met;
        return {};
    }

  private:
    Status prepare(const ClosingWork& closing, const layout::RegionList& cleared, ClosingJob* job) {
        if (cleared.regions().size() > kMostRegions || cleared.bytes() >> 32 != 0) {
            return {Code::kInternal, std::to_string(cleared.regions().size()) + " regions of " +
                                         std::to_string(cleared.bytes()) +
                                         " bytes are more than the closing kernel clears"};
        }
        if (closing.clears) {
            GCMOE_RETURN_IF_ERROR(room_.allocate(cleared.bytes(), "what a launch clears"));
            GCMOE_RETURN_IF_ERROR(cuda_status(
                cudaMemset(room_.as<void>(), kUncleared, room_.bytes()), "filling memory"));
            job->room = room_.as<std::uint8_t>();
            for (const layout::Region& region : cleared.regions()) {
                job->spans[job->num_spans++] = {static_cast<std::uint32_t>(region.offset),
                                                static_cast<std::uint32_t>(region.bytes)};
            }
        }
        if (closing.meets) {
            GCMOE_RETURN_IF_ERROR(arrived_.allocate(sizeof(std::uint64_t), "a barrier's word"));
            GCMOE_RETURN_IF_ERROR(cuda_status(
                cudaMemset(arrived_.as<void>(), 0, sizeof(std::uint64_t)), "filling memory"));
            job->arrived = arrived_.as<std::uint64_t>();
        }
        // The graph's stream does not wait for these.
        return cuda_status(cudaDeviceSynchronize(), "filling memory");
    }

    cudaStream_t stream_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
    device::DeviceBuffer room_;
    device::DeviceBuffer arrived_;
};

}  // namespace

Status ClosedLaunch::create(const Work& roles, const std::optional<ClosingWork>& closing,
                            const layout::RegionList& cleared, void* stream,
                            std::unique_ptr<ClosedLaunch>* out) {
    auto made = std::make_unique<GraphLaunch>();
    GCMOE_RETURN_IF_ERROR(made->make(roles, closing, cleared, stream));
    *out = std::move(made);
    return {};
}

}  // namespace gcmoe::cuda::measure
