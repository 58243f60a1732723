#include "cuda/gemm/sm90_role2_instance.cuh"

namespace gcmoe::cuda::gemm {

template cudaError_t prepare_role2_instance<true, 16>();
template cudaError_t launch_role2_instance<true, 16>(const device::GpuLaunch& launch,
                                                     cudaStream_t stream);

}  // namespace gcmoe::cuda::gemm
