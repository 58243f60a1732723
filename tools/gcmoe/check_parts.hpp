// What of a rank's memory a check looks at: on a GPU only that is copied to the host.
#pragma once

#include <vector>

#include "backend/rank_backend.hpp"
#include "gcmoe/shape.hpp"
#include "op/operator_state.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::cli {

using RoomParts = std::vector<backend::RoomPart>;

// Every region but the caller's inputs and what the judge compares: for the dispatch oracle.
RoomParts dispatch_parts(const OperatorState& state);
// The regions that the judge compares: activations and combine rows.
RoomParts judged_parts(const OperatorState& state);

// Nobody may store into this slot's combine row: the slot is masked, or past the tokens.
bool slot_is_unused(const Shape& shape, const reference::RankInputs& inputs, std::uint64_t slot);
// The combine rows of all such slots.
RoomParts unused_rows(const OperatorState& state, const reference::RankInputs& inputs);

}  // namespace gcmoe::cli
