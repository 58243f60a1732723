// What the operator's tests share: inputs with a chosen number of tokens per rank, the bits that
// they must give, both executors.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "op/refusal.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe::test {

using Rows = std::vector<std::uint16_t>;
using AllInputs = std::vector<reference::RankInputs>;

GroupOptions group_with(ExecutorKind executor, std::uint64_t seed = 1);

// Poisoned memory, limits that no working launch comes near.
OperatorOptions options_for(int max_tokens);
PlanOptions plan_with(const std::string& name, int row_block, int ring_blocks);

// tokens[r] tokens on rank r. Rows past them are NaN; no two ranks share a token.
AllInputs inputs_with(const Shape& shape, std::uint64_t seed, const std::vector<int>& tokens,
                      int capacity, double mask = 0.0);

// What y must be: every rank's tokens alone, on an instance of one rank that has no history.
std::vector<Rows> expected_bits(const Shape& shape, const AllInputs& inputs);

// Stages and launches one rank; y gets num_tokens rows.
Status launch_rank(VirtualLayer* layer, int rank, const OperatorOptions& options,
                   const reference::RankInputs& inputs, Rows* y, const std::string& plan = "");

// False if any element of a row is NaN or infinite.
bool row_is_finite(const Rows& y, int token, int hidden);

class Stopwatch {
  public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

  private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A fixture that runs each test on threads and on the stepper.
class BothExecutors : public testing::TestWithParam<ExecutorKind> {
  protected:
    [[nodiscard]] static GroupOptions group() { return group_with(GetParam()); }
    [[nodiscard]] static bool on_threads() { return GetParam() == ExecutorKind::kThreads; }
};
inline std::string executor_name(const testing::TestParamInfo<ExecutorKind>& info) {
    return info.param == ExecutorKind::kThreads ? "Threads" : "Stepper";
}

}  // namespace gcmoe::test

#define GCMOE_ON_BOTH_EXECUTORS(Suite)                                                          \
    INSTANTIATE_TEST_SUITE_P(                                                                   \
        , Suite, testing::Values(gcmoe::ExecutorKind::kThreads, gcmoe::ExecutorKind::kStepper), \
        gcmoe::test::executor_name)
