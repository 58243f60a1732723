#include "cuda/measure/copy_only.hpp"

#include <cstdint>

#include "cuda/device/device_buffer.hpp"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/special.cuh"

namespace gcmoe::cuda::measure {
namespace {

using device::cuda_status;

constexpr std::uint32_t kLanes = 4;
constexpr std::uint32_t kStages = 2;
constexpr auto kPiece = static_cast<std::uint32_t>(kCopyPieceBytes);
constexpr int kSharedBytes = 120 * 1024;  // one CTA per SM

struct Storage {
    unsigned char pieces[kLanes][kStages][kPiece];
    std::uint64_t full[kLanes][kStages];
};

// One thread a warp copies; a piece counts when it has landed.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   copy_only_kernel: registers 24, spills 0 / 0
__global__ void __launch_bounds__(32 * kLanes, 1)
    copy_only_kernel(const unsigned char* from, std::uint64_t pieces) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    auto* shared = reinterpret_cast<Storage*>(shared_bytes);
    const std::uint32_t lane = ptx::thread_idx() / 32;
    if (ptx::thread_idx() % 32 != 0) return;
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
        ptx::mbarrier_init(&shared->full[lane][stage], 1);
    }
    ptx::mbarrier_init_fence();
    ptx::fence_async_proxy_shared();
    const std::uint64_t policy = ptx::evict_first_policy();
    const std::uint64_t stride = std::uint64_t{ptx::num_ctas()} * kLanes;
    const std::uint64_t first = std::uint64_t{ptx::cta_idx()} * kLanes + lane;
    std::uint64_t issued = first;
    const auto issue = [&](std::uint32_t stage) {
        if (issued >= pieces) return;
        ptx::mbarrier_arrive_expect(&shared->full[lane][stage], kPiece);
        ptx::bulk_load_once(shared->pieces[lane][stage], from + issued * kPiece, kPiece,
                            &shared->full[lane][stage], policy);
        issued += stride;
    };
    for (std::uint32_t stage = 0; stage < kStages; ++stage) issue(stage);
    std::uint32_t stage = 0;
    std::uint32_t phase = 0;
    for (std::uint64_t landed = first; landed < pieces; landed += stride) {
        while (!ptx::mbarrier_try_wait(&shared->full[lane][stage], phase)) {
        }
        issue(stage);
        if (++stage == kStages) {
            stage = 0;
            phase ^= 1;
        }
    }
}

}  // namespace

Status copy_only(const void* from, std::size_t bytes, int ctas, void* stream) {
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaFuncSetAttribute(copy_only_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
                    "shared memory of the copy-only kernel"));
    copy_only_kernel<<<static_cast<unsigned>(ctas), 32 * kLanes, kSharedBytes,
                       static_cast<cudaStream_t>(stream)>>>(static_cast<const unsigned char*>(from),
                                                            bytes / kCopyPieceBytes);
    return cuda_status(cudaGetLastError(), "launching the copy-only kernel");
}

}  // namespace gcmoe::cuda::measure
