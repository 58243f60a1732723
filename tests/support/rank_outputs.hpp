// What a judge reads of an operator whose memory the host can read.
#pragma once

#include <cstdint>

#include "gcmoe/operator.hpp"
#include "reference/layer.hpp"

namespace gcmoe::test {

// The operator was made with `capture`. y: (num_tokens, hidden) of its last launch. Valid until the
// next call for it.
reference::RankOutputs rank_outputs(Operator* op, int max_tokens, const std::uint16_t* y);

}  // namespace gcmoe::test
