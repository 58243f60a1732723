// What the memory gives without any arithmetic: the yardstick beside each figure.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace gcmoe::bench {

// Reads `bytes` once with bulk copies into shared memory, as role 2's weight warps do: `ctas` CTAs,
// four copy threads each with a ring of 2 stages of 8704 bytes.
cudaError_t launch_copy_only(const unsigned char* from, std::size_t bytes, unsigned ctas,
                             cudaStream_t stream);

}  // namespace gcmoe::bench
