#include "cuda/gemm/sm90_role4_shared.hpp"

#include "cuda/gemm/sm90_role2_gemm.hpp"

namespace gcmoe::cuda::gemm {

cudaError_t launch_role4(const device::GpuLaunch& launch, ActivationScale activation_scale,
                         cudaStream_t stream) {
    device::GpuLaunch shared = launch;
    shared.is_role4 = 1;
    return launch_role2(shared, activation_scale, stream);
}

}  // namespace gcmoe::cuda::gemm
