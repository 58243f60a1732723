// What a rank's memory says after its launches: state, statistics, stalls, ids. Reads through the
// backend, wherever the memory is.
#pragma once

#include <memory>
#include <vector>

#include "op/operator_state.hpp"

namespace gcmoe::op {

layout::StateWords read_state(const OperatorState& state);
StallReport read_stall_report(const OperatorState& state);
Statistics read_statistics(const OperatorState& state);
// The first bad id that a launch met since the last call; cleared by reading.
Status take_bad_index(OperatorState* state);
// The ids of the first num_tokens rows; `weights` of all ranks, null where a rank has not joined.
Status check_ids(const OperatorState& state,
                 const std::vector<std::shared_ptr<const PackedWeights>>& weights, int num_tokens);
Status write_inputs(const HostInputs& from, OperatorState* state);

}  // namespace gcmoe::op
