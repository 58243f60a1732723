// What the machine cannot give is a refusal with the numbers, never an abort; what it can give up
// to our own limits works.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "op/op_fixture.hpp"
#include "op/readback.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::inputs_with;
using test::options_for;
using test::packed_layer;
using test::plan_with;
using test::small_shape;
using test::VirtualLayer;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// Lets the process map `bytes` more than now, for a while.
class AddressSpaceLimit {
  public:
    explicit AddressSpaceLimit(std::uint64_t bytes) {
        std::uint64_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        getrlimit(RLIMIT_AS, &old_);
        rlimit now = old_;
        now.rlim_cur = pages * 4096 + bytes;
        setrlimit(RLIMIT_AS, &now);
    }
    ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &old_); }

  private:
    rlimit old_{};
};

Status create_one(const Shape& shape, const OperatorOptions& options) {
    std::shared_ptr<Group> group;
    EXPECT_TRUE(Group::in_process(1, {}, &group).ok());
    std::unique_ptr<Operator> op;
    return Operator::create(shape, packed_layer(shape)[0], group, 0, options, &op);
}

TEST(MachineLimits, NoMemoryIsARefusalWithTheSizes) {
    if (kSanitized) GTEST_SKIP() << "sanitizers abort on a failed allocation";
    const Shape shape = small_shape(1);
    OperatorOptions options = options_for(1);
    options.plans = {plan_with("huge", 64, 1 << 20)};  // 17 GB of x, and as much again
    packed_layer(shape);
    const AddressSpaceLimit limit(4ULL << 30);
    expect_refused(create_one(shape, options), Code::kUnsupported,
                   {"rank 0", "no memory", "local bytes"});
}

// The second rank's new memory does not fit: nobody may launch with one rank moved and one not.
TEST(MachineLimits, AResetThatCannotMoveLeavesAllStalled) {
    if (kSanitized) GTEST_SKIP() << "sanitizers abort on a failed allocation";
    const Shape shape = small_shape(2);
    constexpr int kTokens = 1 << 16;
    OperatorOptions options = options_for(kTokens);
    options.plans = {plan_with("tight", 8, 2)};
    const auto inputs = inputs_with(shape, 95, {2, 1}, 2);
    VirtualLayer layer(shape, test::group_with(ExecutorKind::kStepper), options);
    const auto expected = layer.run(inputs);
    const std::uint64_t heap_bytes = readback(layer.op(0)).heap.bytes;
    {
        const AddressSpaceLimit limit(heap_bytes + heap_bytes / 2);
        expect_refused(Operator::reset({&layer.op(0), &layer.op(1)}, true), Code::kUnsupported,
                       {"rank 1", "no memory"});
    }
    for (const int rank : {0, 1}) EXPECT_EQ(layer.op(rank).launch({}).code(), Code::kBusy);
    ASSERT_TRUE(Operator::reset({&layer.op(0), &layer.op(1)}, true).ok());
    EXPECT_EQ(layer.run(inputs), expected);
}

TEST(MachineLimits, NoThreadsIsARefusal) {
    if (kSanitized) GTEST_SKIP() << "sanitizers abort when a thread cannot start";
    const Shape shape = small_shape(1);
    OperatorOptions options = options_for(1);
    options.plans = {plan_with("many", 8, 1)};
    options.plans[0].partition = {1, 1000};
    packed_layer(shape);
    const AddressSpaceLimit limit(1ULL << 30);  // 128 stacks of 8 MiB
    expect_refused(create_one(shape, options), Code::kUnsupported, {"rank 0", "threads"});
}

TEST(MachineLimits, SeventyTwoRanks) {
    Shape shape;
    shape.hidden = shape.inter = 128;
    shape.num_experts = 144;
    shape.topk = 3;
    shape.num_ranks = 72;
    std::vector<int> tokens;
    for (int rank = 0; rank < 72; ++rank) tokens.push_back(rank % 3);
    const auto inputs = inputs_with(shape, 91, tokens, 2, 0.1);
    for (const ExecutorKind executor : {ExecutorKind::kThreads, ExecutorKind::kStepper}) {
        OperatorOptions options = options_for(2);
        options.plans = {plan_with("tight", 8, 1)};
        options.plans[0].partition = {1, 1};
        VirtualLayer layer(shape, test::group_with(executor), options);
        EXPECT_EQ(layer.run(inputs), test::expected_bits(shape, inputs));
        EXPECT_EQ(layer.run(inputs), test::expected_bits(shape, inputs));
    }
}

TEST(MachineLimits, EveryExpertForEveryToken) {
    Shape shape = small_shape(2);
    shape.num_experts = shape.topk = 8;
    const auto inputs = inputs_with(shape, 93, {1, 1}, 1);
    VirtualLayer layer(shape, {}, options_for(1));
    EXPECT_EQ(layer.run(inputs), test::expected_bits(shape, inputs));
}

}  // namespace
}  // namespace gcmoe
