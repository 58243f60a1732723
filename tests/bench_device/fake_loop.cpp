// A stand-alone loop on the host: its own bytes, its sums weight by weight in FP32.
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "base/math.hpp"
#include "bench_device/fake_device.hpp"
#include "cuda/measure/stream_loop.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/hash.hpp"
#include "numerics/scale_window.hpp"

namespace gcmoe::cuda::measure {
namespace {

using layout::KOrder;

class HostLoop final : public StreamLoop {
  public:
    explicit HostLoop(const LoopShape& shape)
        : geometry_{static_cast<std::uint32_t>(shape.hidden / 128),
                    static_cast<std::uint32_t>(shape.inter / 128),
                    static_cast<std::uint32_t>(shape.experts),
                    static_cast<std::uint32_t>(shape.rows), static_cast<std::uint32_t>(shape.kept)},
          tiles_(geometry_.tile_bytes()),
          codes_(geometry_.code_bytes()),
          scales_(geometry_.scale_bytes() / sizeof(float)),
          sums_(geometry_.first_sum(static_cast<std::uint32_t>(shape.most_ctas), 0), NAN) {
        for (std::size_t i = 0; i < tiles_.size(); ++i) {
            const auto random = static_cast<std::uint8_t>(numerics::splitmix64(i));
            const bool is_scale = i % layout::kFp4TileBytes >= layout::kFp4NibbleBytes;
            tiles_[i] = is_scale ? random % 27 : random;
        }
        for (std::size_t i = 0; i < codes_.size(); ++i) {
            codes_[i] = static_cast<std::uint8_t>(numerics::splitmix64(~i) & 0xF7);
        }
        for (std::size_t i = 0; i < scales_.size(); ++i) {
            scales_[i] = 0.5F + numerics::hash_uniform(i);
        }
    }

    [[nodiscard]] const LoopGeometry& geometry() const override { return geometry_; }
    [[nodiscard]] const std::uint8_t* tiles() const override { return tiles_.data(); }
    [[nodiscard]] const std::uint8_t* codes() const override { return codes_.data(); }
    [[nodiscard]] const float* scales() const override { return scales_.data(); }
    [[nodiscard]] const float* sums() const override { return sums_.data(); }

    // Only the first launch of a number of CTAs writes: nobody looks at the others' sums.
    Status launch(int ctas, void*) override {
        test::fake_device().loops.push_back(ctas);
        if (!written_.insert(ctas).second) return {};
        const auto stride = static_cast<std::uint32_t>(ctas);
        for (std::uint32_t number = 0; number < geometry_.num_tasks(); ++number) {
            multiply(geometry_.task(number), geometry_.first_sum(number % stride, number / stride));
        }
        return {};
    }

  private:
    void multiply(const LoopTask& task, std::size_t first_sum) {
        for (std::uint32_t row = 0; row < kLoopTaskRows; ++row) {
            const std::uint32_t group = task.index * kLoopRowTiles + row / 64;
            for (std::uint32_t token = 0; token < geometry_.rows; ++token) {
                sums_[first_sum + token * kLoopTaskRows + row] = 0;
            }
            for (std::uint32_t chunk = 0; chunk < task.chunks; ++chunk) {
                const std::size_t tile = task.first_tile + group * task.chunks + chunk;
                add_chunk(&tiles_[tile * layout::kFp4TileBytes], task.token_chunk + chunk, row,
                          &sums_[first_sum]);
            }
        }
    }

    void add_chunk(const std::uint8_t* tile, std::size_t token_chunk, std::uint32_t row,
                   float* sums) const {
        const auto in_tile = static_cast<int>(row % 64);
        float weights[layout::kChunkK];
        for (int k = 0; k < layout::kChunkK; ++k) {
            const std::uint8_t code = layout::fp4_tile_get(tile, in_tile, k, KOrder::kQuadBlock);
            weights[k] =
                numerics::e2m1_to_float(code) *
                numerics::window_operand_scale(layout::fp4_tile_scale(tile, in_tile, k / 32));
        }
        for (std::uint32_t token = 0; token < geometry_.rows; ++token) {
            const std::size_t at = token_chunk * geometry_.rows + token;
            const std::uint8_t* codes = &codes_[(at - token) * layout::kChunkK];
            float part = 0;
            for (int k = 0; k < layout::kChunkK; ++k) {
                const int byte = layout::ring_byte_offset(
                    static_cast<int>(token), layout::k_byte_position(KOrder::kQuadBlock, k));
                part += weights[k] * numerics::kE4m3Values[codes[byte]];
            }
            sums[token * kLoopTaskRows + row] += part * scales_[at];
        }
    }

    LoopGeometry geometry_;
    std::set<int> written_;  // numbers of CTAs
    std::vector<std::uint8_t> tiles_;
    std::vector<std::uint8_t> codes_;
    std::vector<float> scales_;
    std::vector<float> sums_;
};

}  // namespace

Status StreamLoop::create(const LoopShape& shape, std::unique_ptr<StreamLoop>* out) {
    *out = std::make_unique<HostLoop>(shape);
    return {};
}

}  // namespace gcmoe::cuda::measure
