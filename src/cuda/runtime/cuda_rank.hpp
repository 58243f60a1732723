// The CUDA backend as the operator sees it. No CUDA header: op includes this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/rank_backend.hpp"
#include "gcmoe/capability.hpp"
#include "plan/choose_plan.hpp"

namespace gcmoe::cuda::runtime {

// A device, and whether the kernels run on it.
struct DeviceState {
    bool usable = false;
    std::string reason;  // what it is, or why not
    int sms = 0;
};
DeviceState find_device(int device);

// The device's SM pairs. Errors: kUnsupported with the reason, kInternal.
Status list_sm_pairs(int device, std::vector<SmPairInfo>* out);

// What plans depend on: the SMs of the device and how many ranks share them. Errors: kUnsupported
// with the reason; kBadConfig if the ranks cannot share the SMs.
Status find_machine(const Shape& shape, const OperatorOptions& options, plan::Machine* machine);

// One rank on setup.device; `shared` keeps the partitions and launchers of the group's ranks.
// Errors: kUnsupported (memory, with bytes; fewer hardware queues than roles), kInternal.
Status make_cuda_rank(backend::RankSetup setup, int num_ranks,
                      std::shared_ptr<backend::Executor>* shared,
                      std::unique_ptr<backend::RankBackend>* out);

}  // namespace gcmoe::cuda::runtime
