// Weights on the device: generated and packed there, the same bytes and errors as on the host.
#include <gtest/gtest.h>

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <ostream>

#include "cuda/gpu_ranks.hpp"
#include "cuda/weights/compare_with_host.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "cuda/weights/gpu_weights.hpp"
#include "cuda/weights/pack_on_device.hpp"

namespace gcmoe {
namespace {

using checkpoint::GeneratedLayer;
using checkpoint::PaddedSizes;
using cuda::weights::GpuWeights;

constexpr const char* kExtremes =
    "rows_of_codes:1,64,100,114,115,116,117,118,119,120,127,133,134,140,200,241,254";
constexpr const char* kSpread = "span_per_k128:14;span_per_expert:60";

class WeightsOnHopper : public testing::Test {
  protected:
    void SetUp() override {
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

testing::AssertionResult ok(const Status& status) {
    if (status.ok()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << status.message();
}

Shape shape_of(int hidden, int inter, int num_experts, int num_ranks) {
    Shape shape;
    shape.hidden = hidden;
    shape.inter = inter;
    shape.num_experts = num_experts;
    shape.topk = 4;
    shape.num_ranks = num_ranks;
    return shape;
}

// A layer, its sizes after padding, and two experts of one rank.
struct WeightCase {
    const char* name;
    GeneratedLayer layer;
    PaddedSizes sizes;
    int rank;
    std::vector<int> experts;
};

void PrintTo(const WeightCase& which, std::ostream* out) { *out << which.name; }

WeightCase small(const char* name, const char* scales, ActivationScale form) {
    WeightCase out{name, {}, {}, 1, {4, 7}};
    out.layer.shape = shape_of(640, 384, 8, 2);
    out.layer.shape.activation_scale = form;
    out.layer.weight_scales = scales;
    out.sizes = cuda::weights::sizes_of(out.layer.shape);
    return out;
}

WeightCase shared(const char* name, ScaleGrid grid) {
    WeightCase out = small(name, "normal", ActivationScale::kFp32K128);
    out.layer.shape.shared_inter = 384;
    out.layer.shared_grid = grid;
    out.sizes.shared_inter = 384;
    return out;
}

WeightCase padded(const char* name, const char* scales, ScaleGrid grid) {
    WeightCase out = small(name, scales, ActivationScale::kFp32K128);
    out.layer.shape.hidden = 2880;
    out.layer.shape.inter = 160;
    out.layer.shape.shared_inter = 224;
    out.layer.shape.has_bias = out.layer.biases = true;
    out.layer.shared_grid = grid;
    out.sizes = {2944, 256, 256};
    return out;
}

WeightCase full(const char* name, const char* scales, int hidden, int inter) {
    WeightCase out = small(name, scales, ActivationScale::kFp32K128);
    out.layer.shape.hidden = hidden;
    out.layer.shape.inter = inter;
    out.sizes = cuda::weights::sizes_of(out.layer.shape);
    return out;
}

std::vector<WeightCase> cases() {
    constexpr ActivationScale kQuadBlock = ActivationScale::kFp32K128;
    constexpr ActivationScale kNatural = ActivationScale::kUe8m0K32;
    WeightCase bias = small("Bias", "normal", kQuadBlock);
    bias.layer.biases = bias.layer.shape.has_bias = true;
    return {small("Normal", "normal", kQuadBlock),
            small("NormalNatural", "normal", kNatural),
            small("Extremes", kExtremes, kQuadBlock),
            small("ExtremesNatural", kExtremes, kNatural),
            small("Spread", kSpread, kQuadBlock),
            small("SpreadNatural", kSpread, kNatural),
            small("WholeWindow", "span_per_k128:26;span_per_expert:26", kQuadBlock),
            small("ChunkWindow", "span_per_k128:26;span_per_expert:27", kQuadBlock),
            bias,
            shared("SharedFp32Block128", ScaleGrid::kFp32Block128),
            shared("SharedBlock128", ScaleGrid::kUe8m0Block128),
            shared("SharedBlock32", ScaleGrid::kUe8m0Block32),
            shared("SharedRow32", ScaleGrid::kUe8m0Row32),
            padded("Padded", "normal", ScaleGrid::kFp32Block128),
            padded("PaddedSpread", kSpread, ScaleGrid::kUe8m0Block32),
            padded("PaddedRow32", kExtremes, ScaleGrid::kUe8m0Row32),
            full("V41Flash", "normal", 5120, 2304),
            full("V41FlashSpread", kSpread, 5120, 2304)};
}

Shape packed_shape(const WeightCase& which) {
    Shape shape = which.layer.shape;
    shape.hidden = which.sizes.hidden;
    shape.inter = which.sizes.inter;
    shape.shared_inter = which.sizes.shared_inter;
    return shape;
}

class DeviceWeightsCase : public WeightsOnHopper, public testing::WithParamInterface<WeightCase> {};

TEST_P(DeviceWeightsCase, SameBytesAndReportAsTheHost) {
    const WeightCase& which = GetParam();
    const Shape shape = packed_shape(which);
    std::shared_ptr<WeightSource> source;
    ASSERT_TRUE(ok(
        cuda::weights::generate_layer(which.layer, which.sizes, {0, shape.num_experts}, &source)));
    std::shared_ptr<const PackedWeights> packed;
    PackReport report;
    PackOptions options;
    options.only_experts = which.experts;
    ASSERT_TRUE(
        ok(cuda::weights::pack_on_device(*source, shape, which.rank, options, &packed, &report)));
    EXPECT_TRUE(ok(cuda::weights::compare_with_host(which.layer, which.sizes, *source, *packed,
                                                    which.experts)));

    std::unique_ptr<WeightSource> plain;
    std::unique_ptr<WeightSource> host_source;
    ASSERT_TRUE(ok(checkpoint::open_generated_layer(which.layer, &plain)));
    ASSERT_TRUE(ok(checkpoint::pad_source(std::move(plain), which.sizes, &host_source)));
    std::shared_ptr<const PackedWeights> host;
    PackReport wanted;
    ASSERT_TRUE(ok(PackedWeights::pack(*host_source, shape, which.rank, options, &host, &wanted)));
    EXPECT_EQ(report.num_experts, wanted.num_experts);
    EXPECT_EQ(report.packed_bytes, wanted.packed_bytes);
    EXPECT_EQ(report.num_row_form, wanted.num_row_form);
    EXPECT_EQ(report.num_chunk_form, wanted.num_chunk_form);
    for (int id = -1; id <= shape.num_experts; ++id) {
        EXPECT_EQ(packed->has_expert(id), host->has_expert(id)) << id;
    }
    // The host's tiles, uploaded, are the same tables.
    EXPECT_TRUE(ok(
        cuda::weights::compare_with_host(which.layer, which.sizes, *source, *host, which.experts)));
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceWeightsCase, testing::ValuesIn(cases()),
                         [](const auto& which) { return std::string(which.param.name); });

TEST_F(WeightsOnHopper, TheComparisonSeesAChangedByte) {
    WeightCase which = small("", "normal", ActivationScale::kFp32K128);
    std::shared_ptr<WeightSource> source;
    ASSERT_TRUE(ok(cuda::weights::generate_layer(which.layer, which.sizes, {4, 4}, &source)));
    std::shared_ptr<const PackedWeights> packed;
    ASSERT_TRUE(
        ok(cuda::weights::pack_on_device(*source, which.layer.shape, 1, {}, &packed, nullptr)));
    std::shared_ptr<const GpuWeights> gpu;
    ASSERT_TRUE(ok(cuda::weights::find(packed->storage(), &gpu)));
    auto* tile = const_cast<std::uint8_t*>(gpu->host_experts()[3].second.tiles) + 4351;
    const std::uint8_t wrong = 99;
    ASSERT_EQ(cudaMemcpy(tile, &wrong, 1, cudaMemcpyDefault), cudaSuccess);
    const Status status =
        cuda::weights::compare_with_host(which.layer, which.sizes, *source, *packed, {4, 7});
    EXPECT_NE(status.message().find("local expert 3 second tiles byte 4351"), std::string::npos)
        << status.message();
}

TEST_F(WeightsOnHopper, SameErrorAsTheHostWhereNoWindowFits) {
    for (const char* scales :
         {"span_per_k128:27;span_per_expert:27", "span_per_k128:40;span_per_expert:200"}) {
        const WeightCase which = small("", scales, ActivationScale::kFp32K128);
        std::unique_ptr<WeightSource> host_source;
        ASSERT_TRUE(ok(checkpoint::open_generated_layer(which.layer, &host_source)));
        std::shared_ptr<WeightSource> source;
        ASSERT_TRUE(ok(cuda::weights::generate_layer(which.layer, which.sizes, {0, 8}, &source)));
        std::shared_ptr<const PackedWeights> packed;
        PackOptions options;
        const Shape& shape = which.layer.shape;
        const Status host = PackedWeights::pack(*host_source, shape, 1, options, &packed, nullptr);
        Status device = cuda::weights::pack_on_device(*source, shape, 1, options, &packed, nullptr);
        EXPECT_EQ(device.code(), Code::kInexact);
        EXPECT_EQ(device.message(), host.message());
        options.allow_inexact = true;
        const Status rounding =
            cuda::weights::pack_on_device(*source, shape, 1, options, &packed, nullptr);
        EXPECT_EQ(rounding.code(), Code::kUnsupported);
    }
}

TEST_F(WeightsOnHopper, RefusesWhatTheHostRefuses) {
    WeightCase which = small("", "normal", ActivationScale::kFp32K128);
    std::shared_ptr<WeightSource> source;
    EXPECT_EQ(cuda::weights::generate_layer(which.layer, which.sizes, {1, 8}, &source).code(),
              Code::kBadConfig);
    ASSERT_TRUE(ok(cuda::weights::generate_layer(which.layer, which.sizes, {0, 4}, &source)));
    std::shared_ptr<const PackedWeights> packed;
    EXPECT_EQ(
        cuda::weights::pack_on_device(*source, which.layer.shape, 1, {}, &packed, nullptr).code(),
        Code::kBadIndex);
    Shape other = which.layer.shape;
    other.inter = 512;
    EXPECT_EQ(cuda::weights::pack_on_device(*source, other, 0, {}, &packed, nullptr).code(),
              Code::kBadCheckpoint);
    EXPECT_EQ(
        cuda::weights::pack_on_device(*source, which.layer.shape, 2, {}, &packed, nullptr).code(),
        Code::kBadConfig);
    which.layer.weight_scales = "odd";
    EXPECT_EQ(cuda::weights::generate_layer(which.layer, which.sizes, {0, 8}, &source).code(),
              Code::kBadConfig);
}

TEST_F(WeightsOnHopper, UploadsAreSharedWhileSomebodyKeepsThem) {
    const WeightCase which = small("", "normal", ActivationScale::kFp32K128);
    std::unique_ptr<WeightSource> source;
    ASSERT_TRUE(ok(checkpoint::open_generated_layer(which.layer, &source)));
    std::shared_ptr<const PackedWeights> packed;
    ASSERT_TRUE(ok(PackedWeights::pack(*source, which.layer.shape, 0, {}, &packed, nullptr)));
    std::shared_ptr<const GpuWeights> first;
    std::shared_ptr<const GpuWeights> second;
    ASSERT_TRUE(ok(cuda::weights::find(packed->storage(), &first)));
    ASSERT_TRUE(ok(cuda::weights::find(packed->storage(), &second)));
    EXPECT_EQ(first, second);
    EXPECT_TRUE(first->has_expert(3));
    EXPECT_FALSE(first->has_expert(4));
    EXPECT_GT(first->bytes(), 4U * 3 * 640 * 384 / 2);
}

TEST_F(WeightsOnHopper, AFailedAllocationNamesItsBytes) {
    cuda::device::DeviceBuffer buffer;
    const Status status = buffer.allocate(std::size_t{1} << 45, "a test");
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find("35184372088832 bytes for a test"), std::string::npos)
        << status.message();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Printed, not judged: V4.1-Flash whole, generated once and packed for eight ranks.
TEST_F(WeightsOnHopper, FullSizeFigures) {
    GeneratedLayer layer;
    layer.shape = shape_of(5120, 2304, 384, 8);
    layer.shape.shared_inter = 2304;
    for (const char* scales : {"normal", kSpread}) {
        layer.weight_scales = scales;
        const auto begin = std::chrono::steady_clock::now();
        std::shared_ptr<WeightSource> source;
        ASSERT_TRUE(ok(cuda::weights::generate_layer(layer, cuda::weights::sizes_of(layer.shape),
                                                     {0, 384}, &source)));
        const auto generated = std::chrono::steady_clock::now();
        std::vector<std::shared_ptr<const PackedWeights>> packed(8);
        for (int rank = 0; rank < 8; ++rank) {
            ASSERT_TRUE(ok(cuda::weights::pack_on_device(
                *source, layer.shape, rank, {}, &packed[static_cast<std::size_t>(rank)], nullptr)));
        }
        const auto end = std::chrono::steady_clock::now();
        std::printf("V4.1-Flash, 384 experts, %s: generated in %.3f s, packed in %.3f s\n", scales,
                    std::chrono::duration<double>(generated - begin).count(),
                    std::chrono::duration<double>(end - generated).count());
    }
}

}  // namespace
}  // namespace gcmoe
