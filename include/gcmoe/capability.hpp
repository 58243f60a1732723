// Which backends this build has, and what each can do with a shape. Answers before weights are
// loaded.
#pragma once

#include <string>
#include <vector>

#include "gcmoe/operator.hpp"
#include "gcmoe/shape.hpp"

namespace gcmoe {

struct BackendInfo {
    std::string name;
    bool available = false;
    std::string reason;  // why not, or what to know about it
};

// All backends that the project knows, in order of preference by speed.
[[nodiscard]] std::vector<BackendInfo> backends();

// Architectures whose machine code this build carries, as nvcc names them ("sm_90a"); empty in a
// build without CUDA. Others cannot run: there is no PTX to compile at run time.
[[nodiscard]] std::vector<std::string> cubins();

// Two SMs that a GPU hands out together, and the GPC they belong to, as measured by kernels.
struct SmPairInfo {
    int first_sm = 0;
    int second_sm = 0;
    int gpc = 0;
};

// The pairs of a device in the driver's order; partitions are made of them (Statistics::placement
// names the SMs of each). Starts CUDA on the device. Errors: kUnsupported without a GPU that the
// kernels run on, or in a build without them.
Status sm_pairs(int device, std::vector<SmPairInfo>* out);

// Can this backend run this shape with these options here? Ok, or the reason. Allocates nothing.
Status capability(const Shape& shape, const OperatorOptions& options);

}  // namespace gcmoe
