#include "cuda/device/unit_times.cuh"
#include "cuda/dispatch/role1_dispatch.cuh"
#include "host_stub/host_roles.hpp"

namespace gcmoe::host_stub {

void add_role1(Machine* machine, const cuda::device::TracedLaunch& traced) {
    namespace dispatch = cuda::dispatch;
    const layout::SymmetricHeap& heap = traced.memory.heap;
    const std::size_t bytes = dispatch::shared_bytes(traced.num_experts, heap.num_ranks);
    const std::uint32_t units = traced.memory.plan.dispatch_units;
    as_launched(traced, [&](const auto& launch) {
        const auto body = [&launch](std::uint8_t* shared) {
            cuda::device::GpuTimes* times = &launch.dispatch_times[cuda::ptx::cta_idx()];
            cuda::device::note_begin(times);
            const bool finished =
                dispatch::run_role1(launch, cuda::device::Unit::of_grid(), shared);
            cuda::device::note_end(times, finished);
        };
        for (std::uint32_t unit = 0; unit < units; ++unit) {
            machine->add_cta(unit, units, dispatch::kThreads, bytes, body);
        }
    });
}

}  // namespace gcmoe::host_stub
