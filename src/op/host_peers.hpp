// Peers that are other processes: a meeting hands over the heaps, then all ranks start together.
#pragma once

#include "op/operator_state.hpp"

namespace gcmoe::op {

// Collective over the ranks of a host group, when an operator is made. Errors: those of the
// meeting, the same on every rank.
Status meet_new_peers(OperatorState* state);
// Instead of it, for a rank that cannot take part: comes to the meeting to say why, so that nobody
// waits for it. Returns what all hear; `why` itself where ranks are no processes.
Status decline_meeting(const OperatorState& state, const Status& why);
// Collective: the rank's launches have ended; next session, the same memory or new. Stalled unless
// it succeeds on all ranks.
Status restart_with_peers(OperatorState* state, bool move);

}  // namespace gcmoe::op
