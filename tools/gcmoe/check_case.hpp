// One case of a suite: inputs, two launches on all ranks, dispatch buffers against the oracle,
// every rounding against FP64, y against the bit-true layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check_weights.hpp"
#include "gcmoe/group.hpp"
#include "gcmoe/operator.hpp"
#include "gpu_options.hpp"
#include "process_options.hpp"
#include "reference/judge.hpp"
#include "reference/suite.hpp"

namespace gcmoe::cli {

// What `gcmoe check` was asked for.
struct CheckOptions {
    std::string backend = "cpu";
    std::string size;   // "full" or "reduced"; empty = reduced on the cpu, full on a GPU
    std::string judge;  // "host" or "gpu"; empty = where the backend runs
    GpuOptions gpu;
    std::string suite = "all";
    std::vector<std::string> cases;  // empty = all
    ProcessOptions processes;
    std::string executor = "threads";
    std::uint64_t seed = 0;
    std::optional<int> row_block;    // empty = 8, 16, 32, 64 in turn
    std::optional<int> ring_blocks;  // empty = a quarter of the most loaded rank's blocks
    bool no_overlap = false;
    std::optional<int> ranks;   // empty = the suite's
    std::optional<int> tokens;  // of every rank; empty = the case's
    bool near_wrap = false;     // generation, laps and counters wrap between the launches
    std::string activation_scale = "fp32-k128";
    std::string weight_placement = "before";
    int dispatch_units = 0;
    int compute_units = 0;
    std::string tuned;  // as PlanOptions::tuned
    double deadline_s = 300.0;
    std::string dump_expected;  // folder; empty = no dump
    std::string expected;       // folder; empty = compute
};

// What a case did.
struct CaseReport {
    std::string suite;
    std::string name;
    int num_tokens = 0;          // all ranks
    std::int64_t num_slots = 0;  // live
    int num_experts = 0;         // touched
    int num_blocks = 0;          // of the most loaded rank, a launch
    int row_block = 0;
    int ring_blocks = 0;
    std::uint64_t laps = 0;  // most of a rank, both launches
    int rank_checks = 0;
    int failed_ranks = 0;
    double worst_stage_error = 0;
    double worst_excess = 0;
    double worst_row_rms = 0;
    double worst_rel_l2 = 0;
    bool whole_judged = true;  // false: a scale case whose rel_l2 and cosine are only reported
    double worst_plain_rel_l2 = 0;
    double min_cosine = 1;
    double seconds = 0;   // all of it
    double launch_s = 0;  // the two launches
    bool stalled = false;
    std::string failure;  // first

    [[nodiscard]] bool ok() const { return failed_ranks == 0 && failure.empty(); }
    // The ring is at most a quarter of the most loaded rank's blocks.
    [[nodiscard]] bool tight_ring() const { return ring_blocks * 4 <= num_blocks; }
};

// What the cases of a run share.
struct CheckTools {
    CheckMachine* machine;
    WeightCache* weights;
    std::shared_ptr<Group> group;  // ranks as processes
};

// Runs and judges one case; as a process that is not rank 0, only hands over. case_idx: place in
// its suite (row blocks take turns). A failed check is in the report; errors are what keeps the
// case from being judged: kBadInput, kBadConfig, kUnsupported.
Status run_case(const CheckOptions& options, const std::string& suite,
                const reference::SuiteCase& suite_case, int case_idx, const CheckTools& with,
                CaseReport* report);

}  // namespace gcmoe::cli
