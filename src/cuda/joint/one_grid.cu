#include "cuda/joint/one_grid.hpp"

namespace gcmoe::cuda::joint {
namespace {

template <bool kK32>
cudaError_t launch_for_rows(const device::GpuLaunch& launch, cudaStream_t stream) {
    const std::uint32_t row_block = launch.memory.plan.row_block;
    if (row_block <= 16) return launch_one_grid_instance<kK32, 16>(launch, stream);
    if (row_block <= 32) return launch_one_grid_instance<kK32, 32>(launch, stream);
    return launch_one_grid_instance<kK32, 64>(launch, stream);
}

}  // namespace

cudaError_t prepare_one_grid() {
    cudaError_t (*const instances[])() = {
        &prepare_one_grid_instance<false, 16>, &prepare_one_grid_instance<false, 32>,
        &prepare_one_grid_instance<false, 64>, &prepare_one_grid_instance<true, 16>,
        &prepare_one_grid_instance<true, 32>,  &prepare_one_grid_instance<true, 64>};
    for (auto* prepare : instances) {
        const cudaError_t error = prepare();
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t launch_one_grid(const device::GpuLaunch& launch, ActivationScale activation_scale,
                            cudaStream_t stream) {
    return activation_scale == ActivationScale::kUe8m0K32 ? launch_for_rows<true>(launch, stream)
                                                          : launch_for_rows<false>(launch, stream);
}

}  // namespace gcmoe::cuda::joint
