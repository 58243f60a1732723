#include "op/stall_fixture.hpp"

#include <algorithm>

namespace gcmoe::test {

StallLayer::StallLayer(const GroupOptions& group, const WaitLimits& limits)
    : shape_(small_shape(kRanks, 128)), options_(options_for(kCapacity)) {
    shape_.num_experts = 12;
    options_.wait_limits = limits;
    options_.plans = {plan_with("tight", 8, 2)};
    EXPECT_TRUE(Group::in_process(kRanks, group, &group_).ok());
    inputs_ = inputs_with(shape_, 1, {kCapacity, kCapacity, kCapacity}, kCapacity);
    ops_.resize(kRanks);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        y_.push_back(std::make_unique<Rows>(std::size_t{kCapacity} * 256, 0xFFFF));
        const Status status = Operator::create(shape_, packed_layer(shape_)[rank], group_,
                                               static_cast<int>(rank), options_, &ops_[rank]);
        EXPECT_TRUE(status.ok()) << status.message();
    }
}

std::vector<Operator*> StallLayer::all() {
    std::vector<Operator*> all;
    for (auto& one : ops_) all.push_back(one.get());
    return all;
}

void StallLayer::stage(std::size_t rank) {
    stage_inputs(ops_[rank].get(), options_.index_type, shape_, inputs_[rank]);
}

void StallLayer::launch(const std::vector<int>& ranks, int times) {
    for (int i = 0; i < times; ++i) {
        for (const int rank : ranks) {
            const auto at = static_cast<std::size_t>(rank);
            LaunchArgs args;
            args.num_tokens = inputs_[at].num_tokens;
            args.y = y_[at]->data();
            const Status status = ops_[at]->launch(args);
            EXPECT_TRUE(status.ok()) << status.message();
        }
    }
}

void StallLayer::expect_good_launch(std::uint64_t seed) {
    const int tokens = static_cast<int>(seed % kCapacity);
    inputs_ = inputs_with(shape_, seed, {kCapacity, tokens, 1}, kCapacity);
    for (std::size_t rank = 0; rank < kRanks; ++rank) stage(rank);
    launch({0, 1, 2});
    for (auto& one : ops_) {
        const Status status = one->synchronize();
        EXPECT_TRUE(status.ok()) << status.message();
    }
    const auto expected = expected_bits(shape_, inputs_);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_TRUE(std::equal(expected[rank].begin(), expected[rank].end(), y_[rank]->begin()))
            << "rank " << rank;
    }
}

}  // namespace gcmoe::test
