// One case of a suite in the making: what check_case.cpp and check_processes.cpp share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "check_machine.hpp"
#include "gcmoe/group.hpp"
#include "gcmoe/operator.hpp"
#include "reference/inputs.hpp"
#include "reference/layer.hpp"
#include "reference/suite.hpp"

namespace gcmoe::cli {

inline constexpr int kNumLaunches = 2;

struct CaseRun {
    reference::SuiteCase suite_case;
    Shape shape;
    std::shared_ptr<const WeightSet> weights;
    std::vector<reference::RankInputs> inputs;  // (num_ranks)
    PlanOptions plan;
    StartState start;
    std::shared_ptr<Group> group;
    // Ranks of this process: all, or the one that it is. Of others, arrays of (num_ranks) are empty
    // until rank 0 has gathered them.
    std::vector<std::size_t> own_ranks;
    std::vector<std::unique_ptr<Operator>> ops;               // (num_ranks)
    std::vector<std::vector<std::uint16_t>> y[kNumLaunches];  // (num_ranks) of (num_tokens, hidden)
    std::vector<reference::RankStages> gathered;              // (num_ranks), of other processes
    std::vector<std::string> failures;  // (num_ranks) first of each; empty = none
};

inline void note_failure(CaseRun* run, std::size_t rank, const std::string& text) {
    if (run->failures[rank].empty()) run->failures[rank] = text;
}

}  // namespace gcmoe::cli
