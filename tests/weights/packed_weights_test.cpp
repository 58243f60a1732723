// PackedWeights::pack as the public API offers it.
#include "layout/packed_weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gcmoe/weights.hpp"
#include "layout/pack_matrix.hpp"
#include "matrix_maker.hpp"

namespace gcmoe {
namespace {

using layout::KOrder;
using testing::Fp8Bytes;
using testing::make_fp8;
using testing::make_mxfp4;
using testing::Mxfp4Bytes;

struct Expert {
    Mxfp4Bytes gate, up, down;
    std::vector<float> gate_bias, up_bias, down_bias;
};

// Experts made when asked for; counts how many are alive at once.
class MakerSource : public WeightSource {
  public:
    explicit MakerSource(const Shape& shape) : shape_(shape) {}

    static Expert make(const Shape& shape, int expert_idx) {
        const auto seed = static_cast<unsigned>(1000 * (expert_idx + 1));
        Expert out;
        out.gate = make_mxfp4(shape.inter, shape.hidden, 100, 126, seed);
        out.up = make_mxfp4(shape.inter, shape.hidden, 104, 120, seed + 1);
        out.down = make_mxfp4(shape.hidden, shape.inter, 90, 112, seed + 2);
        for (int i = 0; i < shape.inter; ++i) {
            out.gate_bias.push_back(static_cast<float>(expert_idx * 10000 + i));
            out.up_bias.push_back(static_cast<float>(-expert_idx * 10000 - i) - 0.5F);
        }
        for (int i = 0; i < shape.hidden; ++i) out.down_bias.push_back(static_cast<float>(i) * 2);
        return out;
    }

    Status expert(int expert_idx, ExpertBytes* out) override {
        asked.push_back(expert_idx);
        if (expert_idx == fail_at) return Status(Code::kBadCheckpoint, "tensor w2 is missing");
        auto owned = std::make_shared<Expert>(make(shape_, expert_idx));
        if (edit) edit(owned.get());
        out->gate = owned->gate.view();
        out->up = owned->up.view();
        out->down = owned->down.view();
        if (give_bias) {
            out->gate_bias = owned->gate_bias.data();
            out->up_bias = owned->up_bias.data();
            out->down_bias = owned->down_bias.data();
        }
        ++alive_;
        most_alive = std::max(most_alive, alive_);
        out->keep_alive =
            std::shared_ptr<const void>(owned.get(), [this, owned](const void*) { --alive_; });
        return Status();
    }

    Status shared_expert(SharedExpertBytes* out) override {
        asked_shared = true;
        shared_gate = make_fp8(shape_.shared_inter, shape_.hidden, grid, 1);
        shared_up = make_fp8(shape_.shared_inter, shape_.hidden, grid, 2);
        shared_down = make_fp8(shape_.hidden, shape_.shared_inter, grid, 3);
        out->gate = shared_gate.view();
        out->up = shared_up.view();
        out->down = shared_down.view();
        return Status();
    }

    std::vector<int> asked;
    bool asked_shared = false;
    int fail_at = -1;
    bool give_bias = true;
    int most_alive = 0;
    ScaleGrid grid = ScaleGrid::kUe8m0Block128;
    std::function<void(Expert*)> edit;
    Fp8Bytes shared_gate, shared_up, shared_down;

  private:
    Shape shape_;
    int alive_ = 0;
};

Shape small_shape() {
    Shape shape;
    shape.hidden = 256;
    shape.inter = 384;
    shape.num_experts = 8;
    shape.num_ranks = 2;
    shape.topk = 2;
    return shape;
}

struct Packed {
    Status status;
    std::shared_ptr<const PackedWeights> weights;
    PackReport report;
};

Packed pack(MakerSource& source, const Shape& shape, int rank, const PackOptions& options = {}) {
    Packed out;
    out.status = PackedWeights::pack(source, shape, rank, options, &out.weights, &out.report);
    return out;
}

void expect_expert_equals(const layout::PackedExpert& packed, const Expert& expert) {
    const int inter = expert.gate.rows;
    for (int column = 0; column < inter; column += 5) {
        const int gate_row = layout::first_gemm_packed_row({column, false});
        const int up_row = layout::first_gemm_packed_row({column, true});
        for (int k = 0; k < expert.gate.cols; k += 3) {
            ASSERT_EQ(packed_value(packed.first, gate_row, k), expert.gate.value(column, k));
            ASSERT_EQ(packed_value(packed.first, up_row, k), expert.up.value(column, k));
        }
    }
    for (int row = 0; row < expert.down.rows; ++row) {
        for (int k = 0; k < inter; k += 3) {
            ASSERT_EQ(packed_value(packed.second, row, k), expert.down.value(row, k));
        }
    }
}

TEST(PackedWeights, HoldsTheRanksExpertsOneAtATime) {
    const Shape shape = small_shape();
    MakerSource source(shape);
    const Packed packed = pack(source, shape, 1);
    ASSERT_TRUE(packed.status.ok()) << packed.status.message();
    EXPECT_EQ(source.asked, (std::vector<int>{4, 5, 6, 7}));
    EXPECT_EQ(source.most_alive, 1);
    EXPECT_FALSE(source.asked_shared);
    EXPECT_EQ(packed.report.num_experts, 4);
    EXPECT_EQ(packed.report.num_row_form, 8);
    EXPECT_EQ(packed.report.num_chunk_form, 0);
    // 12 x 2 and 4 x 3 tiles, 768 and 256 row factors.
    EXPECT_EQ(packed.report.packed_bytes, 4 * ((24 + 12) * 4352 + (768 + 256) * 4));
    const PackedStorage& storage = packed.weights->storage();
    EXPECT_EQ(storage.rank, 1);
    EXPECT_EQ(storage.order, KOrder::kQuadBlock);
    EXPECT_FALSE(storage.has_shared);
    ASSERT_EQ(storage.experts.size(), 4U);
    for (int local = 0; local < 4; ++local) {
        const auto& expert = storage.experts[static_cast<std::size_t>(local)];
        ASSERT_NE(expert, nullptr);
        EXPECT_EQ(expert->first.order, KOrder::kQuadBlock);
        EXPECT_EQ(expert->second.order, KOrder::kQuadBlock);
        EXPECT_TRUE(expert->first.bias.empty());
        expect_expert_equals(*expert, MakerSource::make(shape, 4 + local));
    }
    for (int id = -1; id < 9; ++id) EXPECT_EQ(packed.weights->has_expert(id), id >= 4 && id < 8);
}

TEST(PackedWeights, Ue8m0ActivationsWantNaturalOrder) {
    Shape shape = small_shape();
    shape.activation_scale = ActivationScale::kUe8m0K32;
    MakerSource source(shape);
    const Packed packed = pack(source, shape, 0);
    ASSERT_TRUE(packed.status.ok());
    const PackedStorage& storage = packed.weights->storage();
    EXPECT_EQ(storage.order, KOrder::kNatural);
    EXPECT_EQ(storage.experts[2]->first.order, KOrder::kNatural);
    expect_expert_equals(*storage.experts[2], MakerSource::make(shape, 2));
}

TEST(PackedWeights, OnlyTheExpertsAskedFor) {
    const Shape shape = small_shape();
    MakerSource source(shape);
    PackOptions options;
    options.only_experts = {6, 1, 6};
    const Packed packed = pack(source, shape, 1, options);
    ASSERT_TRUE(packed.status.ok());
    EXPECT_EQ(source.asked, (std::vector<int>{6}));
    EXPECT_EQ(packed.report.num_experts, 1);
    EXPECT_EQ(packed.weights->storage().experts[0], nullptr);
    for (int id = 0; id < 8; ++id) EXPECT_EQ(packed.weights->has_expert(id), id == 6);
    options.only_experts = {8};
    EXPECT_EQ(pack(source, shape, 1, options).status.code(), Code::kBadConfig);
}

TEST(PackedWeights, BiasesFollowTheRows) {
    Shape shape = small_shape();
    shape.has_bias = true;
    MakerSource source(shape);
    const Packed packed = pack(source, shape, 0);
    ASSERT_TRUE(packed.status.ok());
    const layout::PackedExpert& expert = *packed.weights->storage().experts[3];
    ASSERT_EQ(expert.first.bias.size(), 768U);
    for (std::size_t row = 0; row < 768; ++row) {
        const float column = static_cast<float>(row / 16 * 8 + row % 8);
        EXPECT_EQ(expert.first.bias[row], row % 16 < 8 ? 30000.0F + column : -30000.5F - column);
    }
    ASSERT_EQ(expert.second.bias.size(), 256U);
    EXPECT_EQ(expert.second.bias[100], 200.0F);
    source.give_bias = false;
    const Packed without = pack(source, shape, 0);
    EXPECT_EQ(without.status.code(), Code::kBadCheckpoint);
    EXPECT_NE(without.status.message().find("gate bias"), std::string::npos);
}

TEST(PackedWeights, SharedExpertIsPackedWhole) {
    Shape shape = small_shape();
    shape.shared_inter = 128;
    const std::pair<ScaleGrid, int> grids[] = {{ScaleGrid::kFp32Block128, 1},
                                               {ScaleGrid::kUe8m0Block128, 1},
                                               {ScaleGrid::kUe8m0Block32, 4},
                                               {ScaleGrid::kUe8m0Row32, 4}};
    for (const auto& [grid, groups] : grids) {
        MakerSource source(shape);
        source.grid = grid;
        PackOptions options;
        options.only_experts = {0};
        const Packed packed = pack(source, shape, 0, options);
        ASSERT_TRUE(packed.status.ok()) << packed.status.message();
        const PackedStorage& storage = packed.weights->storage();
        ASSERT_TRUE(storage.has_shared);
        EXPECT_EQ(storage.shared_first.rows, 256);
        EXPECT_EQ(storage.shared_first.chunks, 2);
        EXPECT_EQ(storage.shared_second.rows, 256);
        EXPECT_EQ(storage.shared_second.chunks, 1);
        EXPECT_EQ(storage.shared_first.scale_groups_per_chunk, groups);
        EXPECT_EQ(storage.shared_second.scale_groups_per_chunk, groups);
        for (int k = 0; k < 128; ++k) {
            EXPECT_EQ(packed_value(storage.shared_first, 17, 128 + k),
                      source.shared_gate.value(9, 128 + k));
            EXPECT_EQ(packed_value(storage.shared_first, 27, k), source.shared_up.value(11, k));
            EXPECT_EQ(packed_value(storage.shared_second, 200, k),
                      source.shared_down.value(200, k));
        }
    }
}

void expect_failure(const Packed& packed, Code code, const std::vector<std::string>& words) {
    EXPECT_EQ(packed.status.code(), code) << packed.status.message();
    EXPECT_EQ(packed.weights, nullptr);
    for (const std::string& word : words) {
        EXPECT_NE(packed.status.message().find(word), std::string::npos) << packed.status.message();
    }
}

TEST(PackedWeights, FailuresNameTheirPlace) {
    const Shape shape = small_shape();
    MakerSource source(shape);
    source.fail_at = 2;
    expect_failure(pack(source, shape, 0), Code::kBadCheckpoint, {"w2 is missing"});
    source.fail_at = -1;
    source.edit = [](Expert* expert) { expert->up.scale(383, 5) = 255; };
    expect_failure(pack(source, shape, 1), Code::kBadCheckpoint,
                   {"expert 4", "up", "row 383", "group 5"});
    source.edit = [](Expert* expert) { expert->gate.rows = 128; };
    expect_failure(pack(source, shape, 1), Code::kBadCheckpoint,
                   {"expert 4", "gate", "128 x 256", "384 x 256"});
    source.edit = [](Expert* expert) {
        expert->down.scale(200, 4) = 10;
        expert->down.scale(200, 5) = 50;
    };
    expect_failure(pack(source, shape, 1), Code::kInexact,
                   {"expert 4", "down", "row 200", "group 4", "code 10"});
    PackOptions options;
    options.allow_inexact = true;
    const Packed rounded = pack(source, shape, 1, options);
    ASSERT_TRUE(rounded.status.ok());
    EXPECT_EQ(rounded.report.num_chunk_form, 4);
    EXPECT_EQ(rounded.report.num_row_form, 4);
    EXPECT_GT(rounded.report.num_changed_values, 0);
    EXPECT_GT(rounded.report.worst_change, 0.0);
}

TEST(PackedWeights, BadShapesAreRefused) {
    const Shape good = small_shape();
    MakerSource source(good);
    const auto with = [&good](auto change) {
        Shape shape = good;
        change(shape);
        return shape;
    };
    const Shape bad[] = {
        with([](Shape& s) { s.hidden = 200; }), with([](Shape& s) { s.inter = 0; }),
        with([](Shape& s) { s.shared_inter = 64; }), with([](Shape& s) { s.num_experts = 7; }),
        with([](Shape& s) { s.num_ranks = 0; })};
    for (const Shape& shape : bad) expect_failure(pack(source, shape, 0), Code::kBadConfig, {});
    expect_failure(pack(source, good, 2), Code::kBadConfig, {"rank = 2"});
    expect_failure(pack(source, good, -1), Code::kBadConfig, {"rank = -1"});
    EXPECT_TRUE(source.asked.empty());
}

TEST(PackedWeights, ReportIsOptionalAndPackingRepeats) {
    const Shape shape = small_shape();
    MakerSource source(shape);
    std::shared_ptr<const PackedWeights> first;
    std::shared_ptr<const PackedWeights> second;
    ASSERT_TRUE(PackedWeights::pack(source, shape, 0, {}, &first, nullptr).ok());
    ASSERT_TRUE(PackedWeights::pack(source, shape, 0, {}, &second, nullptr).ok());
    EXPECT_EQ(first->storage().experts[1]->first.tiles, second->storage().experts[1]->first.tiles);
}

}  // namespace
}  // namespace gcmoe
