// Which SM pairs become whose partition: a pure function of the measured map.
#pragma once

#include <vector>

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

// The pairs of every rank. Ranks get equally many, dealt out round robin over the GPCs; of a rank's
// pairs, those of the communication partition are taken one by one from the GPC that has most left,
// so that the compute partition loses as evenly as can be (a block taken from one GPC costs up to
// 10 % of the memory speed). dispatch_pairs + compute_pairs of all ranks fit.
std::vector<PairShare> share_pairs(const std::vector<SmPair>& pairs, int num_ranks,
                                   int dispatch_pairs, int compute_pairs);

}  // namespace gcmoe::cuda::runtime
