#include "cuda/gemm/sm90_role2_instance.cuh"

namespace gcmoe::cuda::gemm {

template cudaError_t prepare_role2_instance<false, 32>();
template cudaError_t launch_role2_instance<false, 32>(const device::GpuLaunch& launch,
                                                      cudaStream_t stream);

}  // namespace gcmoe::cuda::gemm
