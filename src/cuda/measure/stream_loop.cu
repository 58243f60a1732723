#include "cuda/measure/stream_loop.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/math.hpp"
#include "cuda/device/device_buffer.hpp"
#include "cuda/device/shared_memory.hpp"
#include "cuda/gemm/sm90_role2_gemm.cuh"
#include "numerics/e4m3.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::cuda::measure {
namespace {

using device::cuda_status;
using device::DeviceBuffer;

// What a launch reads and writes.
struct LoopWork {
    LoopGeometry geometry;
    const std::uint8_t* tiles;
    const std::uint8_t* codes;
    const float* scales;
    float* sums;
};

// Role 2's instance that takes blocks of kN rows.
template <std::uint32_t kN>
inline constexpr std::uint32_t kBlockRows = kN <= 16   ? 16
                                            : kN <= 32 ? 32
                                                       : 64;
template <std::uint32_t kN>
using Storage = gemm::SharedStorage<kBlockRows<kN>>;

// The tasks of this CTA, one after the other: body(task, round).
template <class Body>
__device__ __forceinline__ void for_own_tasks(const LoopGeometry& geometry, const Body& body) {
    std::uint32_t round = 0;
    const std::uint32_t stride = ptx::num_ctas();
    for (std::uint32_t task = ptx::cta_idx(); task < geometry.num_tasks(); task += stride) {
        body(geometry.task(task), round++);
    }
}

// One math thread: all tasks' sums, as they leave the main loop, to device memory.
template <std::uint32_t kN>
__device__ __forceinline__ void multiply_tasks(const LoopWork& work, Storage<kN>* shared) {
    const gemm::MathThread me = gemm::MathThread::here();
    gemm::MathCursors<kBlockRows<kN>> cursors;
    cursors.tokens = decltype(cursors.tokens)::over(shared->tokens);
    cursors.weights = decltype(cursors.weights)::over(shared->weights[me.warpgroup]);
    const gemm::MathRings<kBlockRows<kN>> rings{shared, me, &cursors};
    for_own_tasks(work.geometry, [&](const LoopTask& task, std::uint32_t round) {
        float sum[kN / 2];
#pragma unroll
        for (std::uint32_t i = 0; i < kN / 2; ++i) sum[i] = 0.0F;
        if constexpr (kN <= gemm::kAheadTokens) {
            gemm::run_main_loop<kN>(rings, task.chunks, sum);
        } else {
            gemm::run_wide_loop<kN>(rings, task.chunks, sum);
        }
        float* to = work.sums + work.geometry.first_sum(ptx::cta_idx(), round) + 64 * me.warpgroup +
                    2 * me.q * kLoopTaskRows;
#pragma unroll
        for (std::uint32_t i = 0; i < kN / 2; ++i) {
            to[(8 * (i / 4) + i % 2) * kLoopTaskRows + me.row(i / 2 % 2)] = sum[i];
        }
    });
}

// One lane: the tasks' pairs of chunks, as TokenWarp::feed_ring copies them.
template <std::uint32_t kN>
__device__ __forceinline__ void feed_tokens(const LoopWork& work, Storage<kN>* shared) {
    gemm::RingCursor<Storage<kN>::kTokenStages> at;
    for_own_tasks(work.geometry, [&](const LoopTask& task, std::uint32_t) {
        const std::uint8_t* codes = work.codes + std::uint64_t{task.token_chunk} * (kN * 128);
        const float* scales = work.scales + std::uint64_t{task.token_chunk} * kN;
        for (std::uint32_t chunk = 0; chunk < task.chunks; chunk += gemm::kPair) {
            auto& stage = shared->tokens[at.stage];
            const std::uint32_t left = task.chunks - chunk;
            const std::uint32_t count = left < gemm::kPair ? left : gemm::kPair;
            gemm::wait_phase(&stage.empty, at.phase ^ 1);
            ptx::mbarrier_arrive_expect(&stage.full, count * kN * 132);
#pragma unroll
            for (std::uint32_t i = 0; i < gemm::kPair; ++i) {
                if (i >= count) break;
                ptx::bulk_load(stage.codes[i], codes, kN * 128, &stage.full);
                ptx::bulk_load(stage.scales[i], scales, kN * 4, &stage.full);
                codes += kN * 128;
                scales += kN;
            }
            at.advance();
        }
    });
}

// The weight warp: its copies are role 2's.
template <std::uint32_t kN>
__device__ __forceinline__ void feed_weights(const LoopWork& work, Storage<kN>* shared) {
    const std::uint32_t group = ptx::thread_idx() % 32;
    gemm::WeightWarp<kBlockRows<kN>> warp{shared, ptx::evict_first_policy(), {}};
    for_own_tasks(work.geometry, [&](const LoopTask& own, std::uint32_t) {
        gemm::GpuTask task{};
        task.matrix.tiles = work.tiles + std::uint64_t{own.first_tile} * layout::kFp4TileBytes;
        task.index = own.index;
        task.chunks = own.chunks;
        task.row_tiles = own.row_tiles;
        if (group < gemm::kWarpgroups) warp.load_task(task, group);
        ptx::warp_barrier();
    });
}

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   stream_loop_kernel<16>: registers 96, spills 0 / 0
//   stream_loop_kernel<24>: registers 96, spills 0 / 0
//   stream_loop_kernel<32>: registers 96, spills 0 / 0
//   stream_loop_kernel<48>: registers 96, spills 0 / 0
//   stream_loop_kernel<64>: registers 96, spills 0 / 0
//   stream_loop_kernel<8>: registers 96, spills 0 / 0
template <std::uint32_t kN>
__global__ void __launch_bounds__(gemm::kThreads, 1)
    stream_loop_kernel(const __grid_constant__ LoopWork work) {
    extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
    auto* shared = reinterpret_cast<Storage<kN>*>(shared_bytes);
    if (ptx::thread_idx() == 0) gemm::init_barriers(shared);
    ptx::cta_barrier();
    const std::uint32_t warp = ptx::thread_idx() / 32;
    if (warp < gemm::kMathWarps) {
        ptx::take_registers<gemm::kMathRegisters>();
        multiply_tasks<kN>(work, shared);
    } else {
        ptx::give_registers<gemm::kCopyRegisters>();
        if (warp == gemm::kTokenWarp && ptx::elect_one()) feed_tokens<kN>(work, shared);
        if (warp == gemm::kWeightWarp) feed_weights<kN>(work, shared);
    }
}

template <std::uint32_t kN>
Status launch_rows(const LoopWork& work, int ctas, cudaStream_t stream) {
    constexpr std::size_t kBytes = device::one_cta_per_sm(sizeof(Storage<kN>));
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaFuncSetAttribute(&stream_loop_kernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "shared memory of the stand-alone loop"));
    stream_loop_kernel<kN><<<static_cast<unsigned>(ctas), gemm::kThreads, kBytes, stream>>>(work);
    return cuda_status(cudaGetLastError(), "launching the stand-alone loop");
}

// What the bytes are made from.
enum class LoopBytes : std::uint64_t { kTiles, kCodes, kScales };

// Window positions of four K32 blocks: 8..19, eleven octaves between them.
__device__ std::uint32_t window_word(std::uint64_t random) {
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
        word |= (8 + static_cast<std::uint32_t>(random >> (16 * i) & 0xFFFF) % 12) << (8 * i);
    }
    return word;
}

// Four codes; NaN becomes the largest number.
__device__ std::uint32_t code_word(std::uint64_t random) {
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
        const auto code = static_cast<std::uint8_t>(random >> (8 * i));
        word |= std::uint32_t{numerics::e4m3_is_nan(code) ? code - 1U : code} << (8 * i);
    }
    return word;
}

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   fill_words_kernel: registers 18, spills 0 / 0
__global__ void fill_words_kernel(std::uint32_t* to, std::uint64_t words, LoopBytes bytes) {
    constexpr std::uint32_t kTileWords = layout::kFp4TileBytes / 4;
    constexpr std::uint32_t kNibbleWords = layout::kFp4NibbleBytes / 4;
    const std::uint64_t stride = std::uint64_t{ptx::num_ctas()} * ptx::num_threads();
    std::uint64_t at = std::uint64_t{ptx::cta_idx()} * ptx::num_threads() + ptx::thread_idx();
    for (; at < words; at += stride) {
        const std::uint64_t random =
            numerics::hash_combine(static_cast<std::uint64_t>(bytes) + 1, at);
        if (bytes == LoopBytes::kScales) {
            to[at] = numerics::float_to_bits(0.5F + numerics::hash_uniform(random));
        } else if (bytes == LoopBytes::kCodes) {
            to[at] = code_word(random);
        } else {
            to[at] = at % kTileWords < kNibbleWords ? static_cast<std::uint32_t>(random)
                                                    : window_word(random);
        }
    }
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
