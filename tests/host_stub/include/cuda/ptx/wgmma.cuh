// Stand-in for src/cuda/ptx/wgmma.cuh: a warp's 16 rows of m64nNk32 from the lanes' registers and
// the CTA's shared memory. Fragments: see the head of the real file. Sums are exact (FP64), then
// rounded once; the tensor core keeps fewer bits.
#pragma once

#include <cstdint>

#include "cuda/ptx/sync.cuh"
#include "numerics/e4m3.hpp"
#include "numerics/e5m2.hpp"

namespace gcmoe::cuda::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {}
inline void keep_alive(std::uint32_t&) {}

// As the real ones: start / 16 in the low 14 bits, K-major rows of 128 bytes, 128-byte swizzle.
inline std::uint32_t wgmma_descriptor_low(std::uint32_t shared_address) {
    return (shared_address & 0x3FFFF) >> 4 | 1U << 16;
}
inline std::uint64_t wgmma_descriptor(std::uint32_t low) {
    return std::uint64_t{1U << 30 | 1024 >> 4} << 32 | low;
}

// Byte k of B's row `token`: 128-byte rows, 16-byte units XORed with the row's low three bits.
inline std::uint8_t wgmma_b_byte(std::uint64_t descriptor, std::uint32_t token, std::uint32_t k) {
    const auto start = static_cast<std::uint32_t>(descriptor & 0x3FFF) << 4;
    const std::uint32_t linear = start + 128 * token + k;
    return host_stub::here().cta->shared[linear ^ ((linear >> 7 & 7U) << 4)];
}

template <int kN, class Decode>
void host_wgmma(const Decode& decode, float* d, const std::uint32_t* a, std::uint64_t b,
                std::uint32_t accumulate) {
    const auto& offers = host_stub::exchange({a[0], a[1], a[2], a[3]});
    const std::uint32_t lane = host_stub::here().idx % 32;
    for (std::uint32_t half = 0; half < 2; ++half) {
        double row[32];
        for (std::uint32_t k = 0; k < 32; ++k) {
            const std::uint32_t word = offers[lane / 4 * 4 + k % 16 / 4][2 * (k / 16) + half];
            row[k] = decode(static_cast<std::uint8_t>(word >> (8 * (k % 4))));
        }
        for (std::uint32_t i = 0; i < kN / 4; ++i) {
            const std::uint32_t token = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
            float& out = d[4 * (i / 2) + 2 * half + i % 2];
            double sum = accumulate != 0 ? static_cast<double>(out) : 0.0;
            for (std::uint32_t k = 0; k < 32; ++k) {
                sum += row[k] *
                       static_cast<double>(numerics::e4m3_to_float(wgmma_b_byte(b, token, k)));
            }
            out = static_cast<float>(sum);
        }
    }
}

template <int kN>
void wgmma_e5m2(float* d, const std::uint32_t* a, std::uint64_t b, std::uint32_t accumulate) {
    const auto decode = [](std::uint8_t code) {
        return static_cast<double>(numerics::e5m2_to_float(code));
    };
    host_wgmma<kN>(decode, d, a, b, accumulate);
}
template <int kN>
void wgmma_e4m3(float* d, const std::uint32_t* a, std::uint64_t b, std::uint32_t accumulate) {
    const auto decode = [](std::uint8_t code) {
        return static_cast<double>(numerics::e4m3_to_float(code));
    };
    host_wgmma<kN>(decode, d, a, b, accumulate);
}

}  // namespace gcmoe::cuda::ptx
