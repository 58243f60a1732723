// The stand-alone loop's own source on the host: rings, tasks and sums of every number of rows.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "cuda/measure/judge_loop.hpp"
#include "cuda/measure/loop_words.hpp"
#include "cuda/measure/stream_loop.cuh"
#include "cuda/measure/stream_loop.hpp"
#include "host_stub/host_cta.hpp"

namespace gcmoe::host_stub {
namespace {

using cuda::measure::kLoopErrorBound;
using cuda::measure::kLoopRows;
using cuda::measure::loop_rounds;
using cuda::measure::loop_word;
using cuda::measure::LoopBytes;
using cuda::measure::LoopGeometry;
using cuda::measure::LoopWork;

std::vector<std::uint32_t> make_words(std::size_t bytes, LoopBytes kind) {
    std::vector<std::uint32_t> words(bytes / 4);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = loop_word(kind, i);
    return words;
}

// CTAs of a Machine over the data that a GPU would have.
class StubLoop final : public cuda::measure::StreamLoop {
  public:
    StubLoop(const LoopGeometry& geometry, int most_ctas)
        : geometry_(geometry),
          tiles_(make_words(geometry.tile_bytes(), LoopBytes::kTiles)),
          codes_(make_words(geometry.code_bytes(), LoopBytes::kCodes)),
          scales_(make_words(geometry.scale_bytes(), LoopBytes::kScales)),
          sums_(geometry.first_sum(static_cast<std::uint32_t>(most_ctas), 0), NAN) {}

    [[nodiscard]] const LoopGeometry& geometry() const override { return geometry_; }
    [[nodiscard]] const std::uint8_t* tiles() const override {
        return reinterpret_cast<const std::uint8_t*>(tiles_.data());
    }
    [[nodiscard]] const std::uint8_t* codes() const override {
        return reinterpret_cast<const std::uint8_t*>(codes_.data());
    }
    [[nodiscard]] const float* scales() const override {
        return reinterpret_cast<const float*>(scales_.data());
    }
    [[nodiscard]] const float* sums() const override { return sums_.data(); }

    Status launch(int ctas, void*) override {
        Machine machine;
        const LoopWork work{geometry_, tiles(), codes(), scales(), sums_.data()};
        switch (geometry_.rows) {
            case 8:
                return run<8>(&machine, work, ctas);
            case 16:
                return run<16>(&machine, work, ctas);
            case 24:
                return run<24>(&machine, work, ctas);
            case 32:
                return run<32>(&machine, work, ctas);
            case 48:
                return run<48>(&machine, work, ctas);
            default:
                return run<64>(&machine, work, ctas);
        }
    }

  private:
    template <std::uint32_t kN>
    static Status run(Machine* machine, const LoopWork& work, int ctas) {
        using Storage = cuda::measure::LoopStorage<kN>;
        const auto count = static_cast<std::uint32_t>(ctas);
        for (std::uint32_t cta = 0; cta < count; ++cta) {
            machine->add_cta(
                cta, count, cuda::gemm::kThreads, sizeof(Storage), [&work](std::uint8_t* shared) {
                    cuda::measure::run_loop<kN>(work, reinterpret_cast<Storage*>(shared));
                });
        }
        machine->run();
        return {};
    }

    LoopGeometry geometry_;
    std::vector<std::uint32_t> tiles_;
    std::vector<std::uint32_t> codes_;
    std::vector<std::uint32_t> scales_;
    std::vector<float> sums_;
};

// Ten tasks on 3 CTAs, an odd number of chunks of I, more pairs of chunks than the rings have
// stages.
TEST(StreamLoopOnHost, SumsAreTheHosts) {
    std::vector<int> all(cuda::measure::kLoopTaskRows);
    std::iota(all.begin(), all.end(), 0);
    constexpr int kCtas = 3;
    for (const int rows : kLoopRows) {
        SCOPED_TRACE(rows);
        StubLoop loop({4, 3, 2, static_cast<std::uint32_t>(rows), 4}, kCtas);
        ASSERT_EQ(loop.geometry().num_tasks(), 10U);
        ASSERT_TRUE(loop.launch(kCtas, nullptr).ok());
        for (int cta = 0; cta < kCtas; ++cta) {
            for (int round = 0; round < loop_rounds(loop.geometry(), kCtas, cta); ++round) {
                double error = NAN;
                ASSERT_TRUE(judge_loop(loop, {kCtas, cta, round}, all, &error).ok());
                EXPECT_LE(error, kLoopErrorBound / 100) << "CTA " << cta << ", round " << round;
                EXPECT_GT(error, 0);
            }
        }
    }
}

// One round kept: the last one stands.
TEST(StreamLoopOnHost, LaterRoundsOverwrite) {
    StubLoop loop({2, 1, 3, 8, 1}, 3);
    double error = 0;
    ASSERT_TRUE(judge_loop(loop, {3, 2, 1}, {7}, &error).ok());
    EXPECT_TRUE(std::isnan(error)) << "nothing was written";
    ASSERT_TRUE(loop.launch(3, nullptr).ok());
    ASSERT_EQ(loop_rounds(loop.geometry(), 3, 2), 2);
    ASSERT_TRUE(judge_loop(loop, {3, 2, 1}, {0, 255}, &error).ok());
    EXPECT_LE(error, kLoopErrorBound);
    ASSERT_TRUE(judge_loop(loop, {3, 2, 0}, {0, 255}, &error).ok());
    EXPECT_GT(error, kLoopErrorBound);
}

TEST(LoopWordsTest, HaveNoNanAndNoOtherWindow) {
    std::set<std::uint32_t> windows;
    std::set<std::uint32_t> codes;
    for (std::uint64_t at = 0; at < 4 * 1088; ++at) {
        for (std::uint32_t i = 0; i < 4; ++i) {
            codes.insert(loop_word(LoopBytes::kCodes, at) >> (8 * i) & 0xFF);
            if (at % 1088 < 1024) continue;
            windows.insert(loop_word(LoopBytes::kTiles, at) >> (8 * i) & 0xFF);
        }
        const float scale = numerics::bits_to_float(loop_word(LoopBytes::kScales, at));
        EXPECT_GE(scale, 0.5F);
        EXPECT_LT(scale, 1.5F);
    }
    EXPECT_EQ(windows.size(), 12U);
    EXPECT_EQ(*windows.begin(), 8U);
    EXPECT_EQ(*windows.rbegin(), 19U);
    EXPECT_EQ(codes.size(), 254U);
    EXPECT_EQ(codes.count(0x7F) + codes.count(0xFF), 0U);
}

}  // namespace
}  // namespace gcmoe::host_stub
