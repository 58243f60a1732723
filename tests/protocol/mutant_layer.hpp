// Scenarios for mutants: a tiny layer on the stepper, several launches queued back to back with
// other tokens each, and the bits that they must give.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpu/roles.hpp"
#include "gcmoe/operator.hpp"
#include "layout/rank_memory.hpp"
#include "protocol/mutant_memory.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::test {

class MutantLayer;

// The smallest layer in which a rule can matter. Launch l gives rank r tokens[l % size][r] tokens.
struct Scenario {
    int num_ranks = 2;
    int num_experts = 4;
    int hidden = 128;
    int inter = 128;
    int shared_inter = 0;
    int topk = 2;
    int row_block = 8;
    int ring_blocks = 1;
    int second_columns = 128;
    Partition partition{1, 2};
    CombineUnits combine = CombineUnits::kAuto;
    int resident = 0;  // stepper: compute units of a rank at once, 0 = all
    int num_launches = 5;
    std::vector<std::vector<int>> tokens = {{5, 4}};
    double mask = 0.0;  // share of unused slots
    StartState start;
    WaitLimits limits{100.0, 100.0};
    cpu::Roles roles = cpu::roles_with<MutantStepperMemory>();

    // Called at the start of launch `launch` of `rank`, on its stream, after the inputs are staged.
    std::function<void(int rank, int launch, const layout::RankMemory& memory)> before;
    // Called when all ranks exist and nothing is queued: a test that plants values sets the
    // callbacks of mutant_control() here.
    std::function<void(MutantLayer& layer)> arm;
};

// Inputs and expected bits of all launches of a scenario; the bits come from one rank on the
// product's threads, which has never heard of the stepper.
class Prepared {
  public:
    explicit Prepared(Scenario scenario);

    [[nodiscard]] const Scenario& scenario() const { return scenario_; }
    [[nodiscard]] const Shape& shape() const { return shape_; }
    [[nodiscard]] const OperatorOptions& options() const { return options_; }
    [[nodiscard]] const reference::RankInputs& inputs(int launch, int rank) const {
        return inputs_[static_cast<std::size_t>(launch)][static_cast<std::size_t>(rank)];
    }
    // (launches) y of all ranks behind each other.
    [[nodiscard]] const std::vector<std::vector<std::uint16_t>>& expected() const {
        return expected_;
    }

  private:
    void expect();

    Scenario scenario_;
    Shape shape_;
    OperatorOptions options_;
    std::vector<std::vector<reference::RankInputs>> inputs_;
    std::vector<std::vector<std::uint16_t>> expected_;
};

// All ranks of a prepared scenario under the mutant policy. The group's executor slot is filled
// before the first operator is made: that is the only hook.
class MutantLayer {
  public:
    MutantLayer(const Prepared& prepared, std::uint64_t seed);
    ~MutantLayer();

    // Queues the next launch on one rank or on all of them.
    void queue(int rank);
    void queue_all();
    // Runs everything that is queued; returns true if every rank came to its end.
    bool finish();
    [[nodiscard]] Operator& op(int rank) { return *ops_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] std::vector<Operator*> all();
    [[nodiscard]] layout::RankMemory memory(int rank);
    // y of a launch, all ranks behind each other.
    [[nodiscard]] std::vector<std::uint16_t> rows(int launch) const;
    // The first launch whose bits are wrong, or -1.
    [[nodiscard]] int first_wrong() const;

  private:
    const Prepared& prepared_;
    std::shared_ptr<Group> group_;
    std::vector<std::unique_ptr<Operator>> ops_;
    std::vector<int> queued_;                                 // (ranks)
    std::vector<std::vector<std::vector<std::uint16_t>>> y_;  // (launches, ranks)
};

// What became of one run.
struct Outcome {
    int first_wrong = -1;  // launch with wrong bits
    std::vector<StallReport> reports;

    [[nodiscard]] bool stalled() const;
    [[nodiscard]] bool good() const { return first_wrong < 0 && !stalled(); }
    [[nodiscard]] bool has(StallCause cause, Signal signal) const;
    [[nodiscard]] std::string text() const;
};

// All launches of the scenario with a rule removed (Rule::kCount: none).
Outcome run_mutant(const Prepared& prepared, protocol::Rule removed, std::uint64_t seed);

}  // namespace gcmoe::test
