// What the memory gives without any arithmetic: the yardstick beside each figure.
#pragma once

#include <cstddef>

#include "gcmoe/status.hpp"

namespace gcmoe::cuda::measure {

// Bytes that one copy moves; what does not fill one is left out.
inline constexpr std::size_t kCopyPieceBytes = 8704;  // two FP4 tiles

// Reads `bytes` of device memory once with bulk copies into shared memory, as role 2's weight warps
// do: `ctas` CTAs, one an SM, four copy threads each with a ring of two pieces.
// Ordering: on `stream`, a cudaStream_t. Errors: kInternal.
Status copy_only(const void* from, std::size_t bytes, int ctas, void* stream);

}  // namespace gcmoe::cuda::measure
