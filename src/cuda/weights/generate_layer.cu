// Kernels that write checkpoint bytes of generated matrices: one thread per K32 group of a routed
// matrix (about 70 integer instructions a weight decide, not memory), one warp per scale of a
// shared one.
#include "cuda/weights/generate_layer.hpp"

#include <cuda_runtime.h>

#include <string>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "checkpoint/generated_element.hpp"
#include "checkpoint/scale_rule.hpp"
#include "cuda/device/device_buffer.hpp"
#include "layout/pack_row.hpp"

namespace gcmoe::cuda::weights {
namespace {

using checkpoint::ExpertMatrix;
using checkpoint::GeneratedMatrix;
using checkpoint::SeedUse;
using device::Bump;
using device::cuda_status;
using device::DeviceBuffer;

constexpr ExpertMatrix kMatrices[] = {ExpertMatrix::kGate, ExpertMatrix::kUp, ExpertMatrix::kDown};

constexpr unsigned kGenerateThreads = 256;

// One routed matrix; what lies beyond (matrix.rows, matrix.cols) is padding.
struct RoutedJob {
    checkpoint::ScaleRule rule;
    checkpoint::GeneratedMatrix matrix;
    int rows = 0;  // padded
    int cols = 0;
    std::uint8_t* nibbles = nullptr;  // (rows, cols / 2)
    std::uint8_t* scales = nullptr;   // (rows, cols / 32)
};

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   generate_routed: registers 48, spills 117 / 14
__global__ void __launch_bounds__(kGenerateThreads) generate_routed(RoutedJob job) {
    const int num_groups = job.cols / numerics::kMxfp4Group;
    const std::int64_t idx = std::int64_t{blockIdx.x} * kGenerateThreads + threadIdx.x;
    if (idx >= std::int64_t{job.rows} * num_groups) return;
    const int row = static_cast<int>(idx / num_groups);
    const int group_idx = static_cast<int>(idx % num_groups);
    alignas(16) std::uint8_t nibbles[numerics::kMxfp4Group / 2] = {};
    std::uint8_t code = checkpoint::kPadScaleCode;
    if (row < job.matrix.rows && group_idx * numerics::kMxfp4Group < job.matrix.cols) {
        checkpoint::generate_mxfp4_group(job.rule, job.matrix, row, group_idx, nibbles, &code);
    }
    reinterpret_cast<uint4*>(job.nibbles)[idx] = *reinterpret_cast<const uint4*>(nibbles);
    job.scales[idx] = code;
}

// One shared matrix.
struct SharedJob {
    checkpoint::GeneratedMatrix matrix;
    ScaleGrid grid = ScaleGrid::kUe8m0Block128;
    int rows = 0;  // padded
    int cols = 0;
    std::uint8_t* codes = nullptr;  // (rows, cols)
    void* scales = nullptr;         // the grid's, of the padded matrix
};

__device__ bool is_live(const SharedJob& job, int row, int col) {
    return row < job.matrix.rows && col < job.matrix.cols;
}

// The largest magnitude of the live weights of a block, by a whole warp; 0 without any.
__device__ float block_amax(const SharedJob& job, const layout::GridSteps& steps, int first_row,
                            int first_col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float amax = 0.0F;
    for (int row = first_row; row < first_row + steps.rows_per_scale; ++row) {
        for (int col = first_col + lane; col < first_col + steps.cols_per_scale; col += 32) {
            if (!is_live(job, row, col)) continue;
            const float weight = checkpoint::generated_weight(job.matrix, row, col);
            amax = numerics::max_nan(amax, numerics::abs(weight));
        }
    }
    // Floats that are not negative order as their bits do.
    return numerics::bits_to_float(__reduce_max_sync(~0U, numerics::float_to_bits(amax)));
}

__device__ void store_block_scale(const SharedJob& job, std::int64_t entry, bool live, float amax) {
    if (job.grid == ScaleGrid::kFp32Block128) {
        static_cast<float*>(job.scales)[entry] =
            live ? numerics::fp32_scale(amax) : checkpoint::kPadScale;
    } else {
        static_cast<std::uint8_t*>(job.scales)[entry] =
            live ? numerics::ue8m0_scale_code(amax) : checkpoint::kPadScaleCode;
    }
}

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   generate_shared: registers 32, spills 0 / 0
__global__ void __launch_bounds__(kGenerateThreads) generate_shared(SharedJob job) {
    const layout::GridSteps steps = layout::grid_steps(job.grid);
    const int grid_rows = ceil_div(job.rows, steps.rows_per_scale);
    const int grid_cols = ceil_div(job.cols, steps.cols_per_scale);
    const std::int64_t entry = (std::int64_t{blockIdx.x} * kGenerateThreads + threadIdx.x) / 32;
    if (entry >= std::int64_t{grid_rows} * grid_cols) return;
    const int first_row = static_cast<int>(entry / grid_cols) * steps.rows_per_scale;
    const int first_col = static_cast<int>(entry % grid_cols) * steps.cols_per_scale;
    const float amax = block_amax(job, steps, first_row, first_col);
    const float inverse = checkpoint::shared_inverse_scale(job.grid, amax);
    const int end_row = min(first_row + steps.rows_per_scale, job.rows);
    const int end_col = min(first_col + steps.cols_per_scale, job.cols);
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int row = first_row; row < end_row; ++row) {
        for (int col = first_col + lane; col < end_col; col += 32) {
            std::uint8_t code = 0;
            if (is_live(job, row, col)) {
                code = numerics::e4m3_from_float(
                    checkpoint::generated_weight(job.matrix, row, col) * inverse);
            }
            job.codes[std::int64_t{row} * job.cols + col] = code;
        }
    }
    if (lane == 0) store_block_scale(job, entry, is_live(job, first_row, first_col), amax);
}

// The bias of one matrix: zeros past the live rows.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   generate_bias: registers 10, spills 0 / 0
__global__ void __launch_bounds__(kGenerateThreads)
    generate_bias(std::uint64_t seed, int live_rows, int rows, float* bias) {
    const int row = static_cast<int>(blockIdx.x * kGenerateThreads + threadIdx.x);
    if (row >= rows) return;
    bias[row] = row < live_rows ? checkpoint::generated_bias(seed, row) : 0.0F;
}

// --- Host --------------------------------------------------------------------------------------

unsigned ctas_for(std::int64_t threads) {
    return static_cast<unsigned>(ceil_div(threads, std::int64_t{kGenerateThreads}));
}

std::size_t area(int rows, int cols) { return layout::index_of(rows, cols, 0); }

// Views into the buffer, filled by the kernels.
struct DeviceLayer {
    DeviceBuffer memory;
    std::vector<ExpertBytes> experts;  // (range.count)
    SharedExpertBytes shared;
};

class DeviceSource final : public WeightSource {
  public:
    DeviceSource(std::shared_ptr<const DeviceLayer> layer, const ExpertRange& range,
                 bool has_shared)
        : layer_(std::move(layer)), range_(range), has_shared_(has_shared) {}

    Status expert(int expert_idx, ExpertBytes* out) override {
        const int at = expert_idx - range_.first;
        if (at < 0 || at >= range_.count) {
            return {Code::kBadIndex, "expert " + std::to_string(expert_idx) + " is outside [" +
                                         std::to_string(range_.first) + ", " +
                                         std::to_string(range_.first + range_.count) +
                                         "), which was generated"};
        }
        *out = layer_->experts[static_cast<std::size_t>(at)];
        out->keep_alive = layer_;
        return {};
    }
    Status shared_expert(SharedExpertBytes* out) override {
        if (!has_shared_) {
            return {Code::kBadConfig,
                    "the generated layer has no shared expert (shared_inter = 0)"};
        }
        *out = layer_->shared;
        out->keep_alive = layer_;
        return {};
    }

  private:
    std::shared_ptr<const DeviceLayer> layer_;
    ExpertRange range_;
    bool has_shared_;
};

// Places the views of a layer and, in the pass that has memory, launches their kernels.
class Generator {
  public:
    Generator(const checkpoint::GeneratedLayer& layer, const checkpoint::PaddedSizes& sizes,
              const checkpoint::ScaleRule& rule, Bump* bump, bool launch)
        : layer_(layer), sizes_(sizes), rule_(rule), bump_(bump), launch_(launch) {}

    ExpertBytes expert(int expert_idx) {
        ExpertBytes bytes;
        Mxfp4View* views[] = {&bytes.gate, &bytes.up, &bytes.down};
        const float** biases[] = {&bytes.gate_bias, &bytes.up_bias, &bytes.down_bias};
        for (int i = 0; i < 3; ++i) {
            *views[i] = routed(expert_idx, kMatrices[i]);
            if (layer_.biases) *biases[i] = bias(expert_idx, kMatrices[i]);
        }
        return bytes;
    }
    SharedExpertBytes shared() {
        SharedExpertBytes bytes;
        bytes.gate = shared_matrix(ExpertMatrix::kGate);
        bytes.up = shared_matrix(ExpertMatrix::kUp);
        bytes.down = shared_matrix(ExpertMatrix::kDown);
        return bytes;
    }

  private:
    Mxfp4View routed(int expert_idx, ExpertMatrix which) {
        const bool is_down = which == ExpertMatrix::kDown;
        RoutedJob job;
        job.rule = rule_;
        job.matrix = generated_matrix(SeedUse::kRoutedWeight, layer_.shape.hidden,
                                      layer_.shape.inter, expert_idx, which);
        job.rows = is_down ? sizes_.hidden : sizes_.inter;
        job.cols = is_down ? sizes_.inter : sizes_.hidden;
        const std::size_t num_groups = area(job.rows, job.cols / numerics::kMxfp4Group);
        job.nibbles = bump_->take<std::uint8_t>(num_groups * (numerics::kMxfp4Group / 2));
        job.scales = bump_->take<std::uint8_t>(num_groups);
        if (launch_) {
            generate_routed<<<ctas_for(static_cast<std::int64_t>(num_groups)), kGenerateThreads>>>(
                job);
        }
        return {job.nibbles, job.scales, job.rows, job.cols};
    }
    Fp8View shared_matrix(ExpertMatrix which) {
        const bool is_down = which == ExpertMatrix::kDown;
        SharedJob job;
        job.matrix = generated_matrix(SeedUse::kSharedWeight, layer_.shape.hidden,
                                      layer_.shape.shared_inter, 0, which);
        job.grid = layer_.shared_grid;
        job.rows = is_down ? sizes_.hidden : sizes_.shared_inter;
        job.cols = is_down ? sizes_.shared_inter : sizes_.hidden;
        const layout::GridSteps steps = layout::grid_steps(job.grid);
        const std::size_t num_scales = area(ceil_div(job.rows, steps.rows_per_scale),
                                            ceil_div(job.cols, steps.cols_per_scale));
        job.codes = bump_->take<std::uint8_t>(area(job.rows, job.cols));
        job.scales = bump_->take<float>(num_scales);  // floats, or codes in a quarter of the bytes
        if (launch_) {
            generate_shared<<<ctas_for(static_cast<std::int64_t>(num_scales) * 32),
                              kGenerateThreads>>>(job);
        }
        return {job.codes, job.scales, job.grid, job.rows, job.cols};
    }
    const float* bias(int expert_idx, ExpertMatrix which) {
        const bool is_down = which == ExpertMatrix::kDown;
        const Shape& shape = layer_.shape;
        const std::uint64_t seed =
            generated_seed(SeedUse::kBias, shape.hidden, shape.inter, expert_idx, which);
        const int rows = is_down ? sizes_.hidden : sizes_.inter;
        auto* values = bump_->take<float>(static_cast<std::size_t>(rows));
        if (launch_) {
            generate_bias<<<ctas_for(rows), kGenerateThreads>>>(
                seed, is_down ? shape.hidden : shape.inter, rows, values);
        }
        return values;
    }

    const checkpoint::GeneratedLayer& layer_;
    const checkpoint::PaddedSizes& sizes_;
    const checkpoint::ScaleRule& rule_;
    Bump* bump_;
    bool launch_;
};

Status check_sizes(const checkpoint::GeneratedLayer& layer, const checkpoint::PaddedSizes& sizes,
                   const ExpertRange& range) {
    const Shape& shape = layer.shape;
    const auto check = [](const char* field, int padded, int own) -> Status {
        if (padded >= own && padded % layout::kChunkK == 0) return {};
        return {Code::kBadConfig, std::string("padded ") + field + " = " + std::to_string(padded) +
                                      " must be a multiple of 128, at least " +
                                      std::to_string(own)};
    };
    GCMOE_RETURN_IF_ERROR(check("hidden", sizes.hidden, shape.hidden));
    GCMOE_RETURN_IF_ERROR(check("inter", sizes.inter, shape.inter));
    GCMOE_RETURN_IF_ERROR(check("shared_inter", sizes.shared_inter, shape.shared_inter));
    if (range.first >= 0 && range.count >= 0 && range.first <= shape.num_experts - range.count) {
        return {};
    }
    return {Code::kBadConfig, "experts " + std::to_string(range.first) + ".. (" +
                                  std::to_string(range.count) + ") are not all in [0, " +
                                  std::to_string(shape.num_experts) + ")"};
}

}  // namespace

Status use_device(int device) {
    return cuda_status(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
}

Status generate_layer(const checkpoint::GeneratedLayer& layer, const checkpoint::PaddedSizes& sizes,
                      const ExpertRange& range, std::shared_ptr<WeightSource>* out) {
    std::unique_ptr<WeightSource> judged;  // for its errors; it generates nothing yet
    GCMOE_RETURN_IF_ERROR(checkpoint::open_generated_layer(layer, &judged));
    GCMOE_RETURN_IF_ERROR(check_sizes(layer, sizes, range));
    checkpoint::ScaleRule rule;
    GCMOE_RETURN_IF_ERROR(checkpoint::parse_scale_rule(layer.weight_scales, &rule));
    const bool has_shared = layer.shape.shared_inter > 0;
    auto made = std::make_shared<DeviceLayer>();
    for (const bool launch : {false, true}) {
        Bump bump = launch ? Bump(made->memory) : Bump();
        Generator generator(layer, sizes, rule, &bump, launch);
        made->experts.clear();
        for (int i = 0; i < range.count; ++i) {
            made->experts.push_back(generator.expert(range.first + i));
        }
        if (has_shared) made->shared = generator.shared();
        if (launch) continue;
        GCMOE_RETURN_IF_ERROR(made->memory.allocate(
            bump.bytes(), std::to_string(range.count) + " generated experts"));
    }
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "generating weights"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "generating weights"));
    *out = std::make_shared<DeviceSource>(std::move(made), range, has_shared);
    return {};
}

}  // namespace gcmoe::cuda::weights
