// The device's SM pairs as the driver splits them, with the SM numbers and the GPC of each:
// measured by kernels, once per process and device.
#pragma once

#include <cuda.h>

#include <vector>

#include "cuda/runtime/sm_shares.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::cuda::runtime {

struct SmMap {
    std::vector<CUdevResource> resources;  // one per pair, of one split call
    std::vector<SmPair> pairs;
    int num_sms = 0;
    int num_gpcs = 0;  // GPCs that were told apart
};

// Errors: kUnsupported, kInternal with the driver's word.
Status find_sm_map(int device, const SmMap** out);

}  // namespace gcmoe::cuda::runtime
