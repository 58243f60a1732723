// A small layer whose ranks are processes, and what in-process threads make of the same inputs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gcmoe/operator.hpp"
#include "rank_process.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::test {

inline constexpr int kCapacity = 5;

// Experts divide by 1, 2, 3, 4, 6 and 12 ranks.
Shape process_shape(int num_ranks);
OperatorOptions process_options(double steady_s = 30);
// From here on all ranks have kCapacity tokens, and every rank has rows from every rank.
inline constexpr std::uint64_t kFullSeed = 1000;

// Inputs of one launch on every rank; token counts differ from rank to rank and seed to seed.
std::vector<reference::RankInputs> process_inputs(const Shape& shape, std::uint64_t seed);
// y of every rank on threads of one process. Starts threads: after the last fork.
std::vector<std::vector<std::uint16_t>> bits_on_threads(const Shape& shape, std::uint64_t seed);
// Packs the weights before the forks.
void pack_before_fork(const Shape& shape);

// One rank's side, inside its process.
class RankSide {
  public:
    RankSide(const Shape& shape, int rank, std::string session);
    // How long the ranks wait for each other when they meet.
    double meet_s = 20;
    OperatorOptions options = process_options();
    bool replaces_lost = false;
    // Called with the group before the operator is made.
    std::function<void(Group*)> prepare;

    Status join();
    Status create();
    // Stages the inputs of a seed and launches.
    Status launch(std::uint64_t seed, std::function<int()> before = {});
    // After launch: y of a good one goes to the outcome, a stall's report and time too.
    Status finish(Outcome* outcome);
    // join, create, one launch.
    Status run(std::uint64_t seed, Outcome* outcome);
    Status reset(bool move) { return Operator::reset({op_.get()}, move); }
    void leave();
    [[nodiscard]] Operator& op() { return *op_; }
    [[nodiscard]] int rank() const { return rank_; }

  private:
    Shape shape_;
    int rank_;
    std::string session_;
    std::shared_ptr<Group> group_;
    std::vector<std::uint16_t> y_;
    std::size_t live_ = 0;  // elements of y
    double launched_at_ = 0;
    std::unique_ptr<Operator> op_;
};

}  // namespace gcmoe::test
