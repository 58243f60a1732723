// Which SM pairs become whose partition: a pure function of the measured map.
#pragma once

#include <vector>

#include "gcmoe/operator.hpp"

namespace gcmoe::cuda::runtime {

// Two SMs that the driver hands out together.
struct SmPair {
    int sms[2] = {-1, -1};
    int gpc = -1;  // -1 = not found out
};

// Indices into the list of pairs.
struct PairShare {
    std::vector<int> dispatch;
    std::vector<int> compute;
};

// What every rank gets.
struct ShareSizes {
    int num_ranks = 1;
    int dispatch_pairs = 0;
    int compute_pairs = 0;
};

// The pairs of every rank; sizes of all ranks fit.
// Balanced: dealt out round robin over the GPCs; of a rank's pairs, those of the communication
// partition are taken one by one from the GPC that has most left, so that the compute partition
// loses as evenly as can be.
// In order: as the list has them, rank by rank, dispatch before compute. By GPC: the same of the
// list sorted by GPC, the largest first.
std::vector<PairShare> share_pairs(const std::vector<SmPair>& pairs, const ShareSizes& sizes,
                                   SmPlacement placement);

}  // namespace gcmoe::cuda::runtime
