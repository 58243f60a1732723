// The green contexts of the ranks that live on one device in this process.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/runtime/green_context.hpp"
#include "gcmoe/operator.hpp"
#include "gcmoe/partition.hpp"

namespace gcmoe::cuda::runtime {

// One rank's two partitions, both together (for the one grid), and the SMs they should be on,
// ascending.
struct RankPartition {
    GreenContext dispatch;
    GreenContext compute;
    GreenContext whole;
    std::vector<int> dispatch_sms;
    std::vector<int> compute_sms;
};

// Makes them once per (rank, sizes, placement): plans and workspaces share them.
class Partitions {
  public:
    Partitions(int device, int num_ranks) : device_(device), num_ranks_(num_ranks) {}
    // Sizes were checked against the share. Errors: kUnsupported, kInternal with values.
    Status find(int rank, const Partition& sizes, SmPlacement placement, const RankPartition** out);

  private:
    int device_ = 0;
    int num_ranks_ = 0;
    std::map<std::tuple<int, int, int, SmPlacement>, std::unique_ptr<RankPartition>> made_;
};

}  // namespace gcmoe::cuda::runtime
