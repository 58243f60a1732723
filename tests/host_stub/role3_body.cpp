#include "cuda/combine/role3_combine.cuh"
#include "cuda/device/unit_times.cuh"
#include "host_stub/host_roles.hpp"

namespace gcmoe::host_stub {

void add_role3(Machine* machine, const cuda::device::TracedLaunch& traced) {
    namespace combine = cuda::combine;
    const std::uint32_t units = traced.memory.plan.compute_units;
    as_launched(traced, [&](const auto& launch) {
        const auto body = [&launch](std::uint8_t* shared) {
            cuda::device::GpuTimes* times = &launch.combine_times[cuda::ptx::cta_idx()];
            cuda::device::note_begin(times);
            const bool finished =
                combine::run_role3(launch, cuda::device::Unit::of_grid(), combine::Act::kReal,
                                   reinterpret_cast<combine::SharedWords*>(shared));
            cuda::device::note_end(times, finished);
        };
        for (std::uint32_t unit = 0; unit < units; ++unit) {
            machine->add_cta(unit, units, combine::kThreads, sizeof(combine::SharedWords), body);
        }
    });
}

}  // namespace gcmoe::host_stub
