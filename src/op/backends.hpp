// The backends by name: what each needs from a plan, and how a rank of it is made. The only place
// that knows which backends a build has.
#pragma once

#include <memory>
#include <string>

#include "backend/rank_backend.hpp"
#include "gcmoe/capability.hpp"
#include "group/group_state.hpp"
#include "plan/choose_plan.hpp"

namespace gcmoe::op {

// What plans of this backend depend on here; sizes for a GPU that a build without kernels cannot
// run are those of an H200. Errors: kBadConfig (options that the backend does not know),
// kUnsupported with the reason.
Status find_machine(const Shape& shape, const OperatorOptions& options, plan::Machine* machine);

// One rank; the group's mutex is held. Errors: those of the backend.
Status make_rank(const std::string& backend, backend::RankSetup setup, GroupState* group,
                 std::unique_ptr<backend::RankBackend>* out);

}  // namespace gcmoe::op
