// Makes a kernel ready before any role runs, by launching it once with nothing to do.
//
// A kernel's first launch may have to load its code (lazy loading) and to enlarge the device's pool
// of local memory; both wait until the device is idle. Roles that spin for each other would then
// wait for a launch that waits for them: seen on an H200 (driver 580) for both causes, ended by the
// roles' deadline.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/shared_memory.hpp"

namespace gcmoe::cuda::device {

// CTAs, threads of a CTA, dynamic shared memory.
struct LaunchSize {
    unsigned ctas;
    unsigned threads;
    std::size_t shared_bytes;
};

// When a kernel may begin: after the kernel before it in the stream, or when that one's CTAs have
// called launch_dependents.
enum class Order : std::uint8_t { kAfter, kAhead };

template <class Gpu>
cudaError_t launch_kernel(void (*kernel)(Gpu), const LaunchSize& size, const Gpu& launch,
                          cudaStream_t stream, Order order = Order::kAfter) {
    cudaLaunchAttribute ahead{};
    ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    ahead.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    if (order == Order::kAhead) {
        config.attrs = &ahead;
        config.numAttrs = 1;
    }
    config.gridDim = dim3(size.ctas);
    config.blockDim = dim3(size.threads);
    config.dynamicSmemBytes = size.shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, launch);
}

// Call while no role of the process runs. `shared_bytes`: the most that a launch will ask for.
template <class Gpu>
cudaError_t prepare_kernel(void (*kernel)(Gpu), unsigned threads, std::size_t shared_bytes) {
    const cudaError_t raised = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (raised != cudaSuccess) return raised;
    Gpu nothing;
    nothing.is_warm_up = 1;
    const cudaError_t launched =
        launch_kernel(kernel, {1, threads, shared_bytes}, nothing, nullptr);
    return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}

// A role's kernel, and the one that also records events.
struct RoleKernels {
    void (*plain)(GpuLaunch);
    void (*traced)(TracedLaunch);

    cudaError_t prepare(unsigned threads, std::size_t shared_bytes) const {
        const cudaError_t prepared = prepare_kernel(plain, threads, shared_bytes);
        return prepared != cudaSuccess ? prepared : prepare_kernel(traced, threads, shared_bytes);
    }
    // The one that the launch asks for.
    cudaError_t launch(const LaunchSize& size, const GpuLaunch& launch, cudaStream_t stream,
                       Order order = Order::kAfter) const {
        if (launch.is_traced == 0) return launch_kernel(plain, size, launch, stream, order);
        return launch_kernel(traced, size, TracedLaunch{launch}, stream, order);
    }
};

}  // namespace gcmoe::cuda::device
