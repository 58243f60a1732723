#include "cuda/measure/stream_loop.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/math.hpp"
#include "cuda/device/device_buffer.hpp"
#include "cuda/device/shared_memory.hpp"
#include "cuda/measure/loop_words.hpp"
#include "cuda/measure/stream_loop.cuh"

namespace gcmoe::cuda::measure {
namespace {

using device::cuda_status;
using device::DeviceBuffer;

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   stream_loop_kernel<16>: registers 96, spills 0 / 0
//   stream_loop_kernel<24>: registers 96, spills 0 / 0
//   stream_loop_kernel<32>: registers 96, spills 0 / 0
//   stream_loop_kernel<48>: registers 96, spills 4 / 4
//   stream_loop_kernel<64>: registers 96, spills 0 / 0
//   stream_loop_kernel<8>: registers 96, spills 0 / 0
template <std::uint32_t kN>
__global__ void __launch_bounds__(gemm::kThreads, 1)
    stream_loop_kernel(const __grid_constant__ LoopWork work) {
    extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
    run_loop<kN>(work, reinterpret_cast<LoopStorage<kN>*>(shared_bytes));
}

template <std::uint32_t kN>
Status launch_rows(const LoopWork& work, int ctas, cudaStream_t stream) {
    constexpr std::size_t kBytes = device::one_cta_per_sm(sizeof(LoopStorage<kN>));
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaFuncSetAttribute(&stream_loop_kernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "shared memory of the stand-alone loop"));
    stream_loop_kernel<kN><<<static_cast<unsigned>(ctas), gemm::kThreads, kBytes, stream>>>(work);
    return cuda_status(cudaGetLastError(), "launching the stand-alone loop");
}

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   fill_words_kernel: registers 18, spills 0 / 0
__global__ void fill_words_kernel(std::uint32_t* to, std::uint64_t words, LoopBytes bytes) {
    const std::uint64_t stride = std::uint64_t{ptx::num_ctas()} * ptx::num_threads();
    std::uint64_t at = std::uint64_t{ptx::cta_idx()} * ptx::num_threads() + ptx::thread_idx();
    for (; at < words; at += stride) to[at] = loop_word(bytes, at);
}

Status fill(const DeviceBuffer& buffer, LoopBytes bytes) {
    constexpr unsigned kCtas = 1024;
    constexpr unsigned kFillThreads = 256;
    fill_words_kernel<<<kCtas, kFillThreads>>>(buffer.as<std::uint32_t>(), buffer.bytes() / 4,
                                               bytes);
    return cuda_status(cudaGetLastError(), "filling the stand-alone loop's memory");
}

class GpuLoop final : public StreamLoop {
  public:
    Status make(const LoopShape& shape) {
        geometry_ = {static_cast<std::uint32_t>(shape.hidden / layout::kChunkK),
                     static_cast<std::uint32_t>(shape.inter / layout::kChunkK),
                     static_cast<std::uint32_t>(shape.experts),
                     static_cast<std::uint32_t>(shape.rows),
                     static_cast<std::uint32_t>(shape.kept)};
        const std::size_t sum_bytes =
            geometry_.first_sum(static_cast<std::uint32_t>(shape.most_ctas), 0) * sizeof(float);
        GCMOE_RETURN_IF_ERROR(tiles_.allocate(geometry_.tile_bytes(), "the loop's weights"));
        GCMOE_RETURN_IF_ERROR(codes_.allocate(geometry_.code_bytes(), "the loop's tokens"));
        GCMOE_RETURN_IF_ERROR(scales_.allocate(geometry_.scale_bytes(), "the loop's scales"));
        GCMOE_RETURN_IF_ERROR(sums_.allocate(sum_bytes, "the loop's sums"));
        GCMOE_RETURN_IF_ERROR(fill(tiles_, LoopBytes::kTiles));
        GCMOE_RETURN_IF_ERROR(fill(codes_, LoopBytes::kCodes));
        GCMOE_RETURN_IF_ERROR(fill(scales_, LoopBytes::kScales));
        constexpr int kNan = 0xFF;
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaMemset(sums_.as<void>(), kNan, sum_bytes), "filling the loop's sums"));
        return cuda_status(cudaDeviceSynchronize(), "filling the stand-alone loop's memory");
    }

    [[nodiscard]] const LoopGeometry& geometry() const override { return geometry_; }
    [[nodiscard]] const std::uint8_t* tiles() const override { return tiles_.as<std::uint8_t>(); }
    [[nodiscard]] const std::uint8_t* codes() const override { return codes_.as<std::uint8_t>(); }
    [[nodiscard]] const float* scales() const override { return scales_.as<float>(); }
    [[nodiscard]] const float* sums() const override { return sums_.as<float>(); }

    Status launch(int ctas, void* stream) override {
        const LoopWork work{geometry_, tiles(), codes(), scales(), sums_.as<float>()};
        auto* on = static_cast<cudaStream_t>(stream);
        switch (geometry_.rows) {
            case 8:
                return launch_rows<8>(work, ctas, on);
            case 16:
                return launch_rows<16>(work, ctas, on);
            case 24:
                return launch_rows<24>(work, ctas, on);
            case 32:
                return launch_rows<32>(work, ctas, on);
            case 48:
                return launch_rows<48>(work, ctas, on);
            default:
                return launch_rows<64>(work, ctas, on);
        }
    }

  private:
    LoopGeometry geometry_{};
    DeviceBuffer tiles_;
    DeviceBuffer codes_;
    DeviceBuffer scales_;
    DeviceBuffer sums_;
};

bool has_loop(const LoopShape& shape) {
    const bool has_rows =
        std::find(std::begin(kLoopRows), std::end(kLoopRows), shape.rows) != std::end(kLoopRows);
    return has_rows && shape.hidden > 0 && shape.hidden % 256 == 0 && shape.inter > 0 &&
           shape.inter % layout::kChunkK == 0 && shape.experts > 0 && shape.most_ctas > 0 &&
           shape.kept > 0;
}

}  // namespace

Status StreamLoop::create(const LoopShape& shape, std::unique_ptr<StreamLoop>* out) {
    if (!has_loop(shape)) {
        return {Code::kBadInput, "no stand-alone loop for hidden " + std::to_string(shape.hidden) +
                                     ", inter " + std::to_string(shape.inter) + ", " +
                                     std::to_string(shape.experts) + " experts, " +
                                     std::to_string(shape.rows) + " rows, " +
                                     std::to_string(shape.most_ctas) + " CTAs, " +
                                     std::to_string(shape.kept) + " rounds kept"};
    }
    auto loop = std::make_unique<GpuLoop>();
    GCMOE_RETURN_IF_ERROR(loop->make(shape));
    *out = std::move(loop);
    return {};
}

}  // namespace gcmoe::cuda::measure
