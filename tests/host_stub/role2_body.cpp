// Every instance of role 2, as sm90_role2_gemm.cu launches them.
#include "cuda/device/unit_times.cuh"
#include "cuda/gemm/sm90_role2_gemm.cuh"
#include "host_stub/host_roles.hpp"

namespace gcmoe::host_stub {
namespace {

template <bool kK32, std::uint32_t kMaxRows, class Gpu>
void add_instance(Machine* machine, const Gpu& launch) {
    namespace gemm = cuda::gemm;
    using Storage = gemm::SharedStorage<kMaxRows>;
    const std::uint32_t units = launch.memory.plan.compute_units;
    for (std::uint32_t unit = 0; unit < units; ++unit) {
        machine->add_cta(unit, units, gemm::kThreads, sizeof(Storage),
                         [&launch](std::uint8_t* shared) {
                             auto* times = &launch.compute_times[cuda::ptx::cta_idx()];
                             cuda::device::note_begin(times);
                             const bool finished = gemm::run_role2<kK32>(
                                 launch, cuda::ptx::cta_idx(), reinterpret_cast<Storage*>(shared));
                             cuda::device::note_end(times, finished);
                         });
    }
}

template <bool kK32, class Gpu>
void add_for_rows(Machine* machine, const Gpu& launch) {
    const std::uint32_t row_block = launch.memory.plan.row_block;
    if (row_block <= 16) return add_instance<kK32, 16>(machine, launch);
    if (row_block <= 32) return add_instance<kK32, 32>(machine, launch);
    add_instance<kK32, 64>(machine, launch);
}

}  // namespace

void add_role2(Machine* machine, const cuda::device::TracedLaunch& traced, ActivationScale scale) {
    as_launched(traced, [&](const auto& launch) {
        scale == ActivationScale::kUe8m0K32 ? add_for_rows<true>(machine, launch)
                                            : add_for_rows<false>(machine, launch);
    });
}

}  // namespace gcmoe::host_stub
