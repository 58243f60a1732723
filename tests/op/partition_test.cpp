// Every refusal of validate(Partition).
#include <gtest/gtest.h>

#include <limits>

#include "gcmoe/partition.hpp"
#include "op/refusal.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;

constexpr Partition::Limits kGpu{};
constexpr int kMost = std::numeric_limits<int>::max();

TEST(PartitionRefusal, TooFewDispatchUnits) {
    expect_refused(validate({1, 120}, kGpu, 0), Code::kBadConfig,
                   {"dispatch_units = 1", "at least 2"});
}

TEST(PartitionRefusal, NegativeDispatchUnits) {
    expect_refused(validate({-2, 120}, kGpu, 0), Code::kBadConfig,
                   {"dispatch_units = -2", "at least 2"});
}

TEST(PartitionRefusal, TooFewComputeUnits) {
    expect_refused(validate({2, 30}, kGpu, 0), Code::kBadConfig,
                   {"compute_units = 30", "at least 32"});
}

TEST(PartitionRefusal, OddComputeUnits) {
    expect_refused(validate({5, 127}, kGpu, 132), Code::kBadConfig,
                   {"compute_units = 127", "even", "132", "5"});
}

TEST(PartitionRefusal, SumIsNotTheShare) {
    expect_refused(validate({12, 122}, kGpu, 132), Code::kBadConfig,
                   {"dispatch_units", "compute_units", "12", "122", "134", "132"});
    expect_refused(validate({12, 118}, kGpu, 132), Code::kBadConfig, {"130", "132"});
}

TEST(PartitionRefusal, SumDoesNotOverflow) {
    expect_refused(validate({kMost, kMost - 1}, kGpu, 132), Code::kBadConfig,
                   {"4294967293", "132"});
}

TEST(PartitionAccepted, GpuAndCpu) {
    EXPECT_TRUE(validate({12, 120}, kGpu, 132).ok());
    EXPECT_TRUE(validate({2, 32}, kGpu, 0).ok());
    EXPECT_TRUE(validate({2, 14}, {2, 2, true}, 16).ok());
    EXPECT_TRUE(validate({1, 1}, Partition::cpu_limits(), 0).ok());
    EXPECT_TRUE(validate({3, 5}, Partition::cpu_limits(), 0).ok());
}

}  // namespace
}  // namespace gcmoe
