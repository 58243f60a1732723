// Every wgmma wrapper, for sm_90a: no other target has the instruction. Never run.
#include <cstdint>

#include "cuda/ptx/wgmma.cuh"

namespace gcmoe::cuda {

// One kernel per wrapper; `name` in full, so that a search finds it.
#define GCMOE_COMPILE_WGMMA(name)                                                              \
    __global__ void __launch_bounds__(128, 1) kernel_of_##name(float* out, std::uint32_t* a) { \
        float d[32] = {};                                                                      \
        std::uint32_t operands[4] = {a[0], a[1], a[2], a[3]};                                  \
        ptx::wgmma_fence();                                                                    \
        ptx::name(d, operands, ptx::wgmma_descriptor(ptx::wgmma_descriptor_low(a[4])), 0);     \
        ptx::wgmma_commit();                                                                   \
        ptx::wgmma_wait<0>();                                                                  \
        for (std::uint32_t & operand : operands) ptx::keep_alive(operand);                     \
        for (int i = 0; i < 32; ++i) out[128 * i + threadIdx.x] = d[i];                        \
    }

GCMOE_COMPILE_WGMMA(wgmma_e5m2_n8)
GCMOE_COMPILE_WGMMA(wgmma_e5m2_n16)
GCMOE_COMPILE_WGMMA(wgmma_e5m2_n24)
GCMOE_COMPILE_WGMMA(wgmma_e5m2_n32)
GCMOE_COMPILE_WGMMA(wgmma_e5m2_n40)
GCMOE_COMPILE_WGMMA(wgmma_e5m2_n48)
GCMOE_COMPILE_WGMMA(wgmma_e5m2_n56)
GCMOE_COMPILE_WGMMA(wgmma_e4m3_n16)
GCMOE_COMPILE_WGMMA(wgmma_e4m3_n32)

// The dispatchers choose the wrapper of N.
template <bool kFp8>
__global__ void __launch_bounds__(128, 1) by_size(float* out, const std::uint32_t* a) {
    float d[32] = {};
    std::uint32_t operands[4] = {a[0], a[1], a[2], a[3]};
    const std::uint64_t tokens = ptx::wgmma_descriptor(ptx::wgmma_descriptor_low(a[4]));
    ptx::wgmma_fence();
    if constexpr (kFp8) {
        ptx::wgmma_e4m3<32>(d, operands, tokens, 1);
    } else {
        ptx::wgmma_e5m2<32>(d, operands, tokens, 1);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (std::uint32_t& operand : operands) ptx::keep_alive(operand);
    for (int i = 0; i < 32; ++i) out[128 * i + threadIdx.x] = d[i];
}
template __global__ void by_size<false>(float* out, const std::uint32_t* a);
template __global__ void by_size<true>(float* out, const std::uint32_t* a);

}  // namespace gcmoe::cuda
