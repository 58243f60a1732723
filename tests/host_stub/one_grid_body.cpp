#include "cuda/joint/one_grid.cuh"
#include "host_stub/host_roles.hpp"

namespace gcmoe::host_stub {
namespace {

template <bool kK32, std::uint32_t kMaxRows, class Gpu>
void add_instance(Machine* machine, const Gpu& launch) {
    namespace joint = cuda::joint;
    const std::size_t bytes =
        joint::one_grid_bytes<kMaxRows>(launch.num_experts, launch.memory.heap.num_ranks);
    const std::uint32_t units = launch.memory.plan.combine_units();
    for (std::uint32_t unit = 0; unit < units; ++unit) {
        machine->add_cta(unit, units, cuda::gemm::kThreads, bytes, [&launch](std::uint8_t* shared) {
            joint::run_one_grid<kK32, kMaxRows>(launch, shared);
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

void add_one_grid(Machine* machine, const cuda::device::TracedLaunch& traced,
                  ActivationScale scale) {
    as_launched(traced, [&](const auto& launch) {
        scale == ActivationScale::kUe8m0K32 ? add_for_rows<true>(machine, launch)
                                            : add_for_rows<false>(machine, launch);
    });
}

}  // namespace gcmoe::host_stub
