// A plan from what the caller said, what a tuned table has measured, and the rules; in that order.
#pragma once

#include <string>

#include "backend/rank_backend.hpp"
#include "gcmoe/plan_report.hpp"
#include "plan/choose_plan.hpp"

namespace gcmoe::plan {

// Where the values of a plan come from.
struct PlanSources {
    PlanOptions given;          // the caller's
    PlanOptions tuned;          // what the table filled in; 0 or auto: nothing
    std::string note;           // the entry that was used, or why none was
    std::string launch;         // launch mode that the entry recommends; empty = none
    bool places_units = false;  // the backend has SMs to choose
    [[nodiscard]] PlanReport report(const backend::Plan& plan) const;
};

// Looks the layer up in options.tuned (empty: the tables of the library) and fills what the caller
// left open, the partition as a whole. The caller's values always win; an entry that makes no plan
// together with them is set aside, and the note says why.
// Errors: those of choose_plan for the caller's options; a table that is not one.
Status choose_tuned_plan(const Shape& shape, int max_tokens, const PlanOptions& options,
                         const Machine& machine, backend::Plan* plan, PlanSources* sources);

}  // namespace gcmoe::plan
