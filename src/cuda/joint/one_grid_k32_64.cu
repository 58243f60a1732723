#include "cuda/joint/one_grid_instance.cuh"

namespace gcmoe::cuda::joint {

template cudaError_t prepare_one_grid_instance<true, 64>();
template cudaError_t launch_one_grid_instance<true, 64>(const device::GpuLaunch& launch,
                                                        cudaStream_t stream);

}  // namespace gcmoe::cuda::joint
