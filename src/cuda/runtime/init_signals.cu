#include "cuda/runtime/init_signals.hpp"

#include <cuda_runtime.h>

#include "cuda/device/device_buffer.hpp"

namespace gcmoe::cuda::runtime {
namespace {

using device::cuda_status;

// One thread: four stores a ring block and two words a source and expert, at creation and reset
// only.
//
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   init_signals_kernel: registers 32, spills 0 / 0
__global__ void init_signals_kernel(const __grid_constant__ layout::RankMemory memory,
                                    protocol::StartPoint start, bool of_workspace) {
    if (of_workspace) protocol::init_workspace_signals(memory, start);
    protocol::init_plan_signals(memory, start);
}

}  // namespace

Status init_signals(const std::vector<layout::RankMemory>& plans,
                    const protocol::StartPoint& start) {
    bool first = true;
    for (const layout::RankMemory& plan : plans) {
        init_signals_kernel<<<1, 1>>>(plan, start, first);
        GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "setting the signals"));
        first = false;
    }
    return cuda_status(cudaDeviceSynchronize(), "setting the signals");
}

}  // namespace gcmoe::cuda::runtime
