// Which plans a tuning considers, and which of them it need not measure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gcmoe/operator.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "layout/local_memory.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe::cli {

// One way to run a launch; every value of the plan is named.
struct Candidate {
    PlanOptions plan;
    LaunchMode launch_mode = LaunchMode::kGraph;
};
// "8+124 SMs, 16 rows, ring 64, lead 14, follow"; another launch mode than the graph at the end.
[[nodiscard]] std::string candidate_text(const Candidate& candidate);

// The point that candidates are for.
struct TuneSite {
    Shape shape;
    int tokens = 0;
    int sms = 0;
    std::vector<std::vector<int>> expert_rows;  // (routings, experts touched)
};

// Candidates in the order in which they were offered; the rules' plan is the first. Every other one
// is a duplicate, invalid, dominated or kept. What dominates:
//  - a smaller row block that reads the weights as often: wider blocks have slower kernels, or the
//    same;
//  - the widest row block, where a smaller one reads the weights of the routings' experts more than
//    one and a half times as often.
class CandidateList {
  public:
    explicit CandidateList(TuneSite site) : site_(std::move(site)) {}

    // Errors: the rules have no plan for the site.
    Status add_rules();
    // Every partition with every row block and combine form; ring and lead by the rules.
    void add_grid();
    // Other rings and leads for the same partition, row block and combine form.
    void add_variations(const PlanOptions& base);
    // The same plan by other launch modes.
    void add_launch_modes(const PlanOptions& base);

    [[nodiscard]] const std::vector<Candidate>& kept() const { return kept_; }
    // measured counts those kept; finalists stays 0.
    [[nodiscard]] plan::TunedCounts counts() const;

  private:
    using Key = std::tuple<LaunchMode, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                           std::uint32_t, layout::CombineOn>;
    void offer(const PlanOptions& options, LaunchMode mode);
    [[nodiscard]] bool is_dominated(int row_block) const;
    // How often weights of an expert are read, all routings together.
    [[nodiscard]] std::int64_t num_reads(int row_block) const;

    TuneSite site_;
    std::vector<Candidate> kept_;
    std::set<Key> seen_;
    plan::TunedCounts counts_;
};

}  // namespace gcmoe::cli
