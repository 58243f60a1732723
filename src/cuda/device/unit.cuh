// One CTA as a unit of a role.
#pragma once

#include <cstdint>

#include "cuda/ptx/special.cuh"

namespace gcmoe::cuda::device {

// Its number among the role's units, and how many there are.
struct Unit {
    std::uint32_t idx;
    std::uint32_t num_units;
    // In a kernel that is one role only.
    __device__ __forceinline__ static Unit of_grid() { return {ptx::cta_idx(), ptx::num_ctas()}; }
};

// Named barrier of roles 1 and 3: in the one grid the copy warps of role 2 already meet at the
// CTA's while the others still rehearse role 3. Role 2 has 1 to 5.
inline constexpr std::uint32_t kRoleBarrier = 6;

}  // namespace gcmoe::cuda::device
