// size_report tells before anything is allocated exactly what create() then allocates.
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/models.hpp"
#include "op/op_fixture.hpp"
#include "op/readback.hpp"

namespace gcmoe {
namespace {

using test::options_for;
using test::plan_with;
using test::small_shape;
using test::VirtualLayer;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

// Bytes per room with each region rounded up to the start of the next.
std::map<std::string, std::uint64_t> room_bytes(const std::vector<SizeEntry>& sizes) {
    std::map<std::string, std::uint64_t> rooms;
    for (const SizeEntry& entry : sizes) {
        EXPECT_FALSE(entry.name.empty());
        EXPECT_FALSE(entry.shape.empty());
        rooms[entry.room] += rounded(entry.bytes);
    }
    return rooms;
}

class SizeReport : public testing::TestWithParam<int> {};

TEST_P(SizeReport, EqualsWhatIsAllocated) {
    const int variant = GetParam();
    const Shape shape = small_shape(2, variant % 2 == 0 ? 0 : 128);
    OperatorOptions options = options_for(3 + 7 * variant);
    options.index_type = variant % 2 == 0 ? IndexType::kInt32 : IndexType::kInt64;
    options.capture = variant >= 2;
    options.plans = {plan_with("a", 8, 4), plan_with("b", 24, 1)};
    std::vector<SizeEntry> sizes(3);  // what stood there before goes
    ASSERT_TRUE(Operator::size_report(shape, options, &sizes).ok());
    const auto rooms = room_bytes(sizes);
    ASSERT_EQ(rooms.size(), 2U);
    VirtualLayer layer(shape, {}, options);
    for (Operator* op : layer.all()) {
        EXPECT_EQ(op->state().heap.bytes, rooms.at("symmetric"));
        EXPECT_EQ(op->state().local.bytes, rooms.at("local"));
        const Readback memory = readback(*op);
        EXPECT_EQ(reinterpret_cast<std::uint64_t>(memory.heap_base) % 1024, 0U);
        EXPECT_EQ(reinterpret_cast<std::uint64_t>(memory.local_base) % 1024, 0U);
        // The last byte of both is there.
        EXPECT_EQ(memory.heap_base[memory.heap.bytes - 1], 0xFF) << "poisoned to the end";
        EXPECT_EQ(memory.local_base[memory.local.bytes - 1], 0xFF) << "poisoned to the end";
    }
}

INSTANTIATE_TEST_SUITE_P(, SizeReport, testing::Range(0, 4));

TEST(SizeReports, GrowWithTheCapacityOnly) {
    const Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 8);
    std::uint64_t last = 0;
    for (const int tokens : {1, 8, 64, 256}) {
        std::vector<SizeEntry> sizes;
        ASSERT_TRUE(Operator::size_report(shape, options_for(tokens), &sizes).ok());
        const std::uint64_t symmetric = room_bytes(sizes).at("symmetric");
        EXPECT_GT(symmetric, last);
        last = symmetric;
    }
    // 256 tokens x 6 slots of 4096 bf16, and the rest is small beside that.
    EXPECT_GT(last, 256ULL * 6 * 4096 * 2);
    EXPECT_LT(last, 2 * 256ULL * 6 * 4096 * 2);
}

TEST(InputViews, PointIntoTheHeapWithTheReportedStrides) {
    Shape shape = small_shape(1);
    shape.hidden = 640;  // 5 scale words, stride 8
    VirtualLayer layer(shape, {}, options_for(9));
    const InputViews views = layer.op(0).inputs();
    const Readback memory = readback(layer.op(0));
    EXPECT_EQ(views.x_stride, 640);
    EXPECT_EQ(views.x_scale_stride, 8);
    EXPECT_EQ(views.x, memory.heap_base + memory.heap.x);
    EXPECT_EQ(static_cast<void*>(views.x_scale), memory.heap_base + memory.heap.x_scale);
    EXPECT_EQ(views.topk_idx, memory.heap_base + memory.heap.topk_idx);
    EXPECT_EQ(static_cast<void*>(views.topk_weight), memory.heap_base + memory.heap.topk_weight);
}

}  // namespace
}  // namespace gcmoe
