// Ranks of one workspace of which some stay away, for the tests of stalls and resets.
#pragma once

#include <memory>
#include <vector>

#include "op/op_fixture.hpp"

namespace gcmoe::test {

// The steady limit of the stall tests; whoever waits must be back within one second more.
inline constexpr double kSteadySeconds = 0.5;

// Three ranks; a stall is one of them not launching.
class StallLayer {
  public:
    static constexpr int kRanks = 3;
    static constexpr int kCapacity = 5;

    explicit StallLayer(const GroupOptions& group,
                        const WaitLimits& limits = {60.0, kSteadySeconds});

    // A launch of every rank; the bits must be right.
    void expect_good_launch(std::uint64_t seed);
    // Launches these ranks; y of earlier launches stays alive.
    void launch(const std::vector<int>& ranks, int times = 1);
    [[nodiscard]] Operator& op(int rank) { return *ops_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] std::vector<Operator*> all();
    [[nodiscard]] const Shape& shape() const { return shape_; }
    void destroy(int rank) { ops_[static_cast<std::size_t>(rank)].reset(); }

  private:
    void stage(std::size_t rank);

    Shape shape_;
    OperatorOptions options_;
    std::shared_ptr<Group> group_;
    AllInputs inputs_;
    std::vector<std::unique_ptr<std::vector<std::uint16_t>>> y_;  // (num_ranks), outlive the ops
    std::vector<std::unique_ptr<Operator>> ops_;
};

}  // namespace gcmoe::test
