#include "cuda/device/unit_times.cuh"
#include "cuda/dispatch/role1_dispatch.cuh"
#include "host_stub/host_roles.hpp"

namespace gcmoe::host_stub {

void add_role1(Machine* machine, const cuda::device::GpuLaunch& launch) {
    namespace dispatch = cuda::dispatch;
    const layout::SymmetricHeap& heap = launch.memory.heap;
    const std::size_t bytes = dispatch::shared_bytes(launch.num_experts, heap.num_ranks);
    const std::uint32_t units = launch.memory.plan.dispatch_units;
    for (std::uint32_t unit = 0; unit < units; ++unit) {
        machine->add_cta(unit, units, dispatch::kThreads, bytes, [&launch](std::uint8_t* shared) {
            cuda::device::GpuTimes* times = &launch.dispatch_times[cuda::ptx::cta_idx()];
            cuda::device::note_begin(times);
            const bool finished =
                dispatch::run_role1(launch, cuda::device::Unit::of_grid(), shared);
            cuda::device::note_end(times, finished);
        });
    }
}

}  // namespace gcmoe::host_stub
