// Sets a rank's signals in device memory; no role runs meanwhile.
#pragma once

#include <vector>

#include "gcmoe/status.hpp"
#include "layout/rank_memory.hpp"
#include "protocol/session.hpp"

namespace gcmoe::cuda::runtime {

// plans: the rank's memory with each of its plans. Errors: kInternal with CUDA's word.
Status init_signals(const std::vector<layout::RankMemory>& plans,
                    const protocol::StartPoint& start);

}  // namespace gcmoe::cuda::runtime
