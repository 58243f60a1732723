// Kernels of the device's packer. A matrix is scanned (a warp per packed row: its window, and the
// first place that cannot be packed), then, its form being known, packed (a thread per tile row).
#include "cuda/weights/pack_on_device.hpp"

#include <cuda_runtime.h>

#include <string>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "cuda/weights/gpu_weights.hpp"
#include "layout/pack_checks.hpp"
#include "layout/pack_matrix.hpp"
#include "layout/pack_row.hpp"
#include "layout/weight_tile.hpp"

namespace gcmoe::cuda::weights {
namespace {

using device::Bump;
using device::cuda_status;
using device::DeviceBuffer;
using device::GpuFp8Matrix;
using device::GpuMatrix;

constexpr unsigned kPackThreads = 256;

// The first error in the order in which the host's packer would meet it: the smallest of these
// words.
struct ErrorPlace {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    std::uint32_t matrix;  // 2 * expert in rank + (second GEMM)
    bool is_inexact;       // else a code 255
    std::uint32_t row;     // packed
    std::uint32_t group;   // K32 group of the row; inexact: first of its chunk

    GCMOE_HD constexpr std::uint64_t word() const {
        return std::uint64_t{matrix} << 48 | std::uint64_t{is_inexact} << 47 |
               std::uint64_t{row} << 20 | group;
    }
    static constexpr ErrorPlace of(std::uint64_t word) {
        return ErrorPlace{static_cast<std::uint32_t>(word >> 48), (word >> 47 & 1) != 0,
                          static_cast<std::uint32_t>(word >> 20) & 0x7FFFFFFU,
                          static_cast<std::uint32_t>(word) & 0xFFFFFU};
    }
};

// One packed matrix. By value.
struct MatrixJob {
    Mxfp4View views[2];  // gate and up; second GEMM: down twice
    bool is_first = true;
    std::uint32_t matrix = 0;  // see ErrorPlace
    layout::KOrder order = layout::KOrder::kQuadBlock;
    int rows = 0;                         // packed
    int chunks = 0;                       // K / 128
    std::uint8_t* bases = nullptr;        // (rows) the row windows
    std::uint32_t* too_wide = nullptr;    // set to 1 if a row needs more than a window
    unsigned long long* error = nullptr;  // smallest ErrorPlace of the rank
    std::uint8_t* tiles = nullptr;        // (rows / 64, chunks, kFp4TileBytes)
    float* row_factors = nullptr;         // (rows), or null
    float* chunk_factors = nullptr;       // (rows / 64, chunks, 64), or null
};

// The 128 weights of a packed row's chunk.
struct ChunkBytes {
    alignas(16) std::uint8_t nibbles[layout::kFp4RowBytes];
    alignas(4) std::uint8_t codes[layout::kGroupsPerChunk];
    bool is_zero[layout::kGroupsPerChunk];
};

__device__ __forceinline__ void load_chunk(const MatrixJob& job, int packed_row, int chunk,
                                           ChunkBytes* out) {
    layout::FirstGemmRow place{packed_row, false};
    if (job.is_first) place = layout::first_gemm_row(packed_row);
    const Mxfp4View& view = job.views[place.is_up ? 1 : 0];
    const std::size_t idx = layout::index_of(place.column, job.chunks, chunk);
    const auto* nibbles = reinterpret_cast<const uint4*>(view.nibbles) + idx * 4;
#pragma unroll
    for (int group = 0; group < layout::kGroupsPerChunk; ++group) {
        const uint4 words = nibbles[group];
        reinterpret_cast<uint4*>(out->nibbles)[group] = words;
        out->is_zero[group] = ((words.x | words.y | words.z | words.w) & 0x77777777U) == 0;
    }
    *reinterpret_cast<std::uint32_t*>(out->codes) =
        reinterpret_cast<const std::uint32_t*>(view.scales)[idx];
}

__device__ void note_error(const MatrixJob& job, bool is_inexact, int row, int group) {
    const ErrorPlace place{job.matrix, is_inexact, static_cast<std::uint32_t>(row),
                           static_cast<std::uint32_t>(group)};
    atomicMin(job.error, static_cast<unsigned long long>(place.word()));
}

// Grid: a warp per packed row.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   scan_matrix: registers 38, spills 110 / 32
__global__ void __launch_bounds__(kPackThreads) scan_matrix(MatrixJob job) {
    const int row = static_cast<int>((blockIdx.x * kPackThreads + threadIdx.x) / 32);
    if (row >= job.rows) return;
    numerics::CodeRange live;
    for (int chunk = static_cast<int>(threadIdx.x % 32); chunk < job.chunks; chunk += 32) {
        ChunkBytes bytes;
        load_chunk(job, row, chunk, &bytes);
        numerics::CodeRange in_chunk;
        const int first_group = chunk * layout::kGroupsPerChunk;
        for (int group = 0; group < layout::kGroupsPerChunk; ++group) {
            if (bytes.codes[group] == numerics::kUe8m0Nan) {
                note_error(job, false, row, first_group + group);
            }
            if (bytes.is_zero[group]) continue;
            in_chunk.add(bytes.codes[group]);
            live.add(bytes.codes[group]);
        }
        if (!numerics::choose_window(in_chunk).fits) note_error(job, true, row, first_group);
    }
    live.smallest = __reduce_min_sync(~0U, live.smallest);
    live.largest = __reduce_max_sync(~0U, live.largest);
    if (threadIdx.x % 32 != 0) return;
    const numerics::ScaleWindow window = numerics::choose_window(live);
    job.bases[row] = window.base;
    if (!window.fits) *job.too_wide = 1;
}

__device__ __forceinline__ int window_base(const MatrixJob& job, const ChunkBytes& bytes, int row,
                                           int chunk) {
    if (job.chunk_factors == nullptr) {
        const std::uint8_t base = job.bases[row];
        if (chunk == 0) job.row_factors[row] = numerics::window_factor(base);
        return base;
    }
    const std::uint8_t base =
        numerics::choose_window(bytes.codes, bytes.is_zero, layout::kGroupsPerChunk).base;
    const std::size_t tile = layout::index_of(row / layout::kTileRows, job.chunks, chunk);
    job.chunk_factors[tile * layout::kTileRows + row % layout::kTileRows] =
        numerics::window_factor(base);
    return base;
}

// Grid: a thread per tile row. Callers: after a scan without errors.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   pack_matrix: registers 79, spills 110 / 24
__global__ void __launch_bounds__(kPackThreads) pack_matrix(MatrixJob job) {
    const std::int64_t idx = std::int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
    if (idx >= std::int64_t{job.rows} * job.chunks) return;
    const int row = static_cast<int>(idx / job.chunks);
    const int chunk = static_cast<int>(idx % job.chunks);
    ChunkBytes bytes;
    load_chunk(job, row, chunk, &bytes);
    alignas(16) std::uint32_t words[layout::kFp4RowBytes / 4];
    if (job.order == layout::KOrder::kQuadBlock) {
        layout::weave_tile_row(bytes.nibbles, layout::KOrder::kQuadBlock, words);
    } else {
        layout::weave_tile_row(bytes.nibbles, layout::KOrder::kNatural, words);
    }
    alignas(4) std::uint8_t positions[layout::kGroupsPerChunk];
    layout::window_positions(bytes.codes, bytes.is_zero, window_base(job, bytes, row, chunk),
                             positions);
    const std::size_t tile_idx = layout::index_of(row / layout::kTileRows, job.chunks, chunk);
    std::uint8_t* tile = job.tiles + tile_idx * layout::kFp4TileBytes;
    const int tile_row = row % layout::kTileRows;
    auto* to = reinterpret_cast<uint4*>(tile + layout::fp4_word_offset(tile_row, 0, 0));
    for (int i = 0; i < 4; ++i) to[i] = reinterpret_cast<const uint4*>(words)[i];
    *reinterpret_cast<std::uint32_t*>(tile + layout::fp4_scale_offset(tile_row, 0)) =
        *reinterpret_cast<const std::uint32_t*>(positions);
}

// Biases in packed order. Grid: a thread per packed row.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   pack_first_bias: registers 12, spills 0 / 0
__global__ void __launch_bounds__(kPackThreads)
    pack_first_bias(const float* gate, const float* up, int rows, float* out) {
    const int packed_row = static_cast<int>(blockIdx.x * kPackThreads + threadIdx.x);
    if (packed_row >= rows) return;
    const layout::FirstGemmRow row = layout::first_gemm_row(packed_row);
    out[packed_row] = (row.is_up ? up : gate)[row.column];
}

// One packed matrix of the shared expert. By value.
struct Fp8Job {
    Fp8View views[2];  // gate and up; second GEMM: down twice
    bool is_first = true;
    int rows = 0;
    int chunks = 0;
    int groups = 1;                 // scales per K128
    std::uint8_t* tiles = nullptr;  // (rows / 64, chunks, kFp8TileBytes)
    float* scales = nullptr;        // (rows / 64, chunks, 64, groups)
};

// Grid: a thread per tile row.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   pack_fp8_matrix: registers 31, spills 87 / 21
__global__ void __launch_bounds__(kPackThreads) pack_fp8_matrix(Fp8Job job) {
    const std::int64_t idx = std::int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
    if (idx >= std::int64_t{job.rows} * job.chunks) return;
    const int packed_row = static_cast<int>(idx / job.chunks);
    const int chunk = static_cast<int>(idx % job.chunks);
    layout::FirstGemmRow row{packed_row, false};
    if (job.is_first) row = layout::first_gemm_row(packed_row);
    const std::size_t tile_row =
        layout::index_of(packed_row / layout::kTileRows, job.chunks, chunk) * layout::kTileRows +
        packed_row % layout::kTileRows;
    layout::store_fp8_row(job.views[row.is_up ? 1 : 0], row.column, chunk,
                          job.tiles + tile_row * layout::kChunkK,
                          job.scales + tile_row * job.groups);
}

// --- Host --------------------------------------------------------------------------------------

unsigned ctas_for(std::int64_t threads) {
    return static_cast<unsigned>(ceil_div(threads, std::int64_t{kPackThreads}));
}

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

std::size_t num_tiles(int rows, int chunks) {
    return layout::index_of(rows / layout::kTileRows, chunks, 0);
}

// One rank on its way to the device's tiles. Matrix 2 e is the first GEMM of local expert e,
// matrix 2 e + 1 its second; matrices of experts left out have no rows.
struct RankJob {
    Shape shape;
    int rank = 0;
    std::vector<ExpertBytes> bytes;  // (experts_per_rank) of device pointers
    SharedExpertBytes shared;
    std::vector<MatrixJob> matrices;  // (2 * experts_per_rank)
    DeviceBuffer notes;               // windows, flags and the error word; freed after packing
    DeviceBuffer tiles;
    GpuWeights::Tables tables;

    [[nodiscard]] int global_id(std::size_t local_idx) const {
        return rank * shape.experts_per_rank() + static_cast<int>(local_idx);
    }
};

Status read_source(WeightSource& source, const PackOptions& options, RankJob* job) {
    std::vector<bool> wanted;
    GCMOE_RETURN_IF_ERROR(layout::check_packable(job->shape, job->rank));
    GCMOE_RETURN_IF_ERROR(
        layout::choose_experts(job->shape, job->rank, options.only_experts, &wanted));
    job->bytes.resize(wanted.size());
    job->matrices.resize(2 * wanted.size());
    job->tables.experts.resize(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (!wanted[i]) continue;
        const int id = job->global_id(i);
        ExpertBytes& bytes = job->bytes[i];
        GCMOE_RETURN_IF_ERROR(source.expert(id, &bytes));
        GCMOE_RETURN_IF_ERROR(
            layout::check_expert(job->shape, "expert " + std::to_string(id), bytes));
        MatrixJob& first = job->matrices[2 * i];
        first.views[0] = bytes.gate;
        first.views[1] = bytes.up;
        first.rows = 2 * job->shape.inter;
        first.chunks = job->shape.hidden / layout::kChunkK;
        MatrixJob& second = job->matrices[2 * i + 1];
        second.views[0] = second.views[1] = bytes.down;
        second.is_first = false;
        second.rows = job->shape.hidden;
        second.chunks = job->shape.inter / layout::kChunkK;
    }
    for (std::size_t i = 0; i < job->matrices.size(); ++i) {
        job->matrices[i].matrix = static_cast<std::uint32_t>(i);
        job->matrices[i].order = layout::routed_k_order(job->shape.activation_scale);
    }
    if (job->shape.shared_inter == 0) return {};
    GCMOE_RETURN_IF_ERROR(source.shared_expert(&job->shared));
    return layout::check_shared_expert(job->shape, job->shared);
}

// The status of the first place that cannot be packed.
Status describe_error(const RankJob& job, const PackOptions& options, std::uint64_t word) {
    const ErrorPlace place = ErrorPlace::of(word);
    const MatrixJob& matrix = job.matrices[place.matrix];
    layout::FirstGemmRow row{static_cast<int>(place.row), false};
    if (matrix.is_first) row = layout::first_gemm_row(static_cast<int>(place.row));
    const char* name = matrix.is_first ? (row.is_up ? "up" : "gate") : "down";
    const layout::MatrixRow at{"expert " + std::to_string(job.global_id(place.matrix / 2)), name,
                               row.column};
    const int group = static_cast<int>(place.group);
    if (!place.is_inexact) return layout::nan_scale_error(at, group);
    const Mxfp4View& view = matrix.views[row.is_up ? 1 : 0];
    std::uint8_t codes[layout::kGroupsPerChunk];
    std::uint8_t nibbles[layout::kFp4RowBytes];
    const std::size_t first_group =
        layout::index_of(row.column, view.cols / layout::kScaleGroupK, group);
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaMemcpy(codes, view.scales + first_group, sizeof(codes), cudaMemcpyDeviceToHost),
        "reading scale codes back"));
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemcpy(nibbles, view.nibbles + first_group * layout::kGroupBytes,
                               sizeof(nibbles), cudaMemcpyDeviceToHost),
                    "reading weights back"));
    bool is_zero[layout::kGroupsPerChunk];
    for (int i = 0; i < layout::kGroupsPerChunk; ++i) {
        is_zero[i] = layout::group_is_zero(nibbles + i * layout::kGroupBytes);
    }
    Status status = layout::inexact_error(at, group / layout::kGroupsPerChunk, codes, is_zero);
    if (!options.allow_inexact) return status;
    return {Code::kUnsupported, "the device's packer does not round: " + status.message()};
}

// Scans every matrix. too_wide: (matrices) 1 = needs chunk factors.
Status scan(const PackOptions& options, RankJob* job, std::vector<std::uint32_t>* too_wide) {
    const std::size_t num_matrices = job->matrices.size();
    unsigned long long* error = nullptr;
    std::uint32_t* flags = nullptr;
    for (const bool place : {false, true}) {
        Bump bump = place ? Bump(job->notes) : Bump();
        error = bump.take<unsigned long long>(1);
        flags = bump.take<std::uint32_t>(num_matrices);
        for (std::size_t i = 0; i < num_matrices; ++i) {
            MatrixJob& matrix = job->matrices[i];
            matrix.error = error;
            matrix.too_wide = flags + i;
            matrix.bases = bump.take<std::uint8_t>(size_of(matrix.rows));
        }
        if (place) continue;
        GCMOE_RETURN_IF_ERROR(job->notes.allocate(bump.bytes(), "the packer's row windows"));
    }
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemset(error, 0xFF, sizeof(*error)), "clearing the error word"));
    const std::size_t flag_bytes = num_matrices * sizeof(std::uint32_t);
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaMemset(flags, 0, flag_bytes), "clearing the flags"));
    for (const MatrixJob& matrix : job->matrices) {
        if (matrix.rows == 0) continue;
        scan_matrix<<<ctas_for(std::int64_t{matrix.rows} * 32), kPackThreads>>>(matrix);
    }
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "scanning weights"));
    std::uint64_t word = 0;
    too_wide->resize(num_matrices);
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaMemcpy(&word, error, sizeof(word), cudaMemcpyDeviceToHost), "scanning weights"));
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemcpy(too_wide->data(), flags, flag_bytes, cudaMemcpyDeviceToHost),
                    "scanning weights"));
    return word == ErrorPlace::kNone ? Status() : describe_error(*job, options, word);
}

// Tiles, factors and bias of one matrix; without memory only counts the bytes.
void place_matrix(const std::vector<std::uint32_t>& too_wide, bool has_bias, std::size_t idx,
                  Bump* bump, RankJob* job) {
    MatrixJob& matrix = job->matrices[idx];
    device::GpuExpert& expert = job->tables.experts[idx / 2];
    GpuMatrix& gpu = matrix.is_first ? expert.first : expert.second;
    const std::size_t tiles = num_tiles(matrix.rows, matrix.chunks);
    gpu.tiles = matrix.tiles = bump->take<std::uint8_t>(tiles * layout::kFp4TileBytes);
    if (too_wide[idx] != 0) {
        gpu.chunk_factors = matrix.chunk_factors = bump->take<float>(tiles * layout::kTileRows);
    } else {
        gpu.row_factors = matrix.row_factors = bump->take<float>(size_of(matrix.rows));
    }
    if (has_bias) gpu.bias = bump->take<float>(size_of(matrix.rows));
}

Status place_shared(const SharedExpertBytes& bytes, bool is_first, Bump* bump, Fp8Job* out,
                    GpuFp8Matrix* gpu) {
    const Fp8View& view = is_first ? bytes.gate : bytes.down;
    const layout::GridSteps steps = layout::grid_steps(view.grid);
    if (bytes.gate.grid != bytes.up.grid) {
        return {Code::kUnsupported, "the device's packer wants one scale grid for gate and up"};
    }
    Fp8Job job;
    job.views[0] = view;
    job.views[1] = is_first ? bytes.up : view;
    job.is_first = is_first;
    job.rows = is_first ? 2 * view.rows : view.rows;
    job.chunks = view.cols / layout::kChunkK;
    job.groups = layout::kChunkK / steps.cols_per_scale;
    const std::size_t rows = num_tiles(job.rows, job.chunks) * layout::kTileRows;
    gpu->tiles = job.tiles = bump->take<std::uint8_t>(rows * layout::kChunkK);
    gpu->scales = job.scales = bump->take<float>(rows * size_of(job.groups));
    gpu->groups = static_cast<std::uint32_t>(job.groups);
    *out = job;
    return {};
}

void launch_matrix(const RankJob& job, std::size_t idx) {
    const MatrixJob& matrix = job.matrices[idx];
    if (matrix.rows == 0) return;
    pack_matrix<<<ctas_for(std::int64_t{matrix.rows} * matrix.chunks), kPackThreads>>>(matrix);
    if (!job.shape.has_bias) return;
    const ExpertBytes& bytes = job.bytes[idx / 2];
    const device::GpuExpert& expert = job.tables.experts[idx / 2];
    if (matrix.is_first) {
        pack_first_bias<<<ctas_for(matrix.rows), kPackThreads>>>(
            bytes.gate_bias, bytes.up_bias, matrix.rows, const_cast<float*>(expert.first.bias));
    } else {
        cudaMemcpyAsync(const_cast<float*>(expert.second.bias), bytes.down_bias,
                        size_of(matrix.rows) * sizeof(float), cudaMemcpyDeviceToDevice);
    }
}

Status pack_all(const std::vector<std::uint32_t>& too_wide, RankJob* job) {
    const bool has_shared = job->shape.shared_inter > 0;
    Fp8Job shared[2];
    for (const bool launch : {false, true}) {
        Bump bump = launch ? Bump(job->tiles) : Bump();
        for (std::size_t i = 0; i < job->matrices.size(); ++i) {
            if (job->matrices[i].rows == 0) continue;
            place_matrix(too_wide, job->shape.has_bias, i, &bump, job);
            if (launch) launch_matrix(*job, i);
        }
        if (has_shared) {
            GCMOE_RETURN_IF_ERROR(
                place_shared(job->shared, true, &bump, &shared[0], &job->tables.shared_first));
            GCMOE_RETURN_IF_ERROR(
                place_shared(job->shared, false, &bump, &shared[1], &job->tables.shared_second));
        }
        if (launch) continue;
        GCMOE_RETURN_IF_ERROR(job->tiles.allocate(
            bump.bytes(), "the packed weights of rank " + std::to_string(job->rank)));
    }
    for (const Fp8Job& matrix : shared) {
        if (!has_shared) break;
        pack_fp8_matrix<<<ctas_for(std::int64_t{matrix.rows} * matrix.chunks), kPackThreads>>>(
            matrix);
    }
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "packing weights"));
    return cuda_status(cudaDeviceSynchronize(), "packing weights");
}

// As the host's packer counts: tiles, scales and factors, without biases.
void fill_report(const RankJob& job, const std::vector<std::uint32_t>& too_wide,
                 PackReport* report) {
    const auto fp8_bytes = [](const Fp8View& view, int rows) {
        const layout::GridSteps steps = layout::grid_steps(view.grid);
        const auto elements = static_cast<std::int64_t>(layout::index_of(rows, view.cols, 0));
        return elements + elements / steps.cols_per_scale * std::int64_t{sizeof(float)};
    };
    for (std::size_t i = 0; i < job.matrices.size(); ++i) {
        const MatrixJob& matrix = job.matrices[i];
        if (matrix.rows == 0) continue;
        const std::size_t tiles = num_tiles(matrix.rows, matrix.chunks);
        const bool wide = too_wide[i] != 0;
        const std::size_t factors = wide ? tiles * layout::kTileRows : size_of(matrix.rows);
        report->packed_bytes +=
            static_cast<std::int64_t>(tiles * layout::kFp4TileBytes + factors * sizeof(float));
        report->num_chunk_form += wide ? 1 : 0;
        report->num_row_form += wide ? 0 : 1;
        report->num_experts += matrix.is_first ? 1 : 0;
    }
    if (job.shape.shared_inter == 0) return;
    report->packed_bytes += fp8_bytes(job.shared.gate, 2 * job.shared.gate.rows) +
                            fp8_bytes(job.shared.down, job.shared.down.rows);
}

}  // namespace

Status pack_on_device(WeightSource& source, const Shape& shape, int rank,
                      const PackOptions& options, std::shared_ptr<const PackedWeights>* out,
                      PackReport* report) {
    RankJob job;
    job.shape = shape;
    job.rank = rank;
    GCMOE_RETURN_IF_ERROR(read_source(source, options, &job));
    std::vector<std::uint32_t> too_wide;
    GCMOE_RETURN_IF_ERROR(scan(options, &job, &too_wide));
    GCMOE_RETURN_IF_ERROR(pack_all(too_wide, &job));
    PackReport local_report;
    fill_report(job, too_wide, &local_report);
    std::vector<DeviceBuffer> memory;
    memory.push_back(std::move(job.tiles));
    std::shared_ptr<const GpuWeights> made;
    GCMOE_RETURN_IF_ERROR(GpuWeights::make(std::move(job.tables), std::move(memory), &made));
    auto storage = std::make_unique<PackedStorage>();
    storage->shape = shape;
    storage->rank = rank;
    storage->order = layout::routed_k_order(shape.activation_scale);
    storage->experts.resize(size_of(shape.experts_per_rank()));
    storage->has_shared = shape.shared_inter > 0;
    storage->device = std::move(made);
    *out = std::make_shared<const PackedWeights>(std::move(storage));
    if (report != nullptr) *report = local_report;
    return {};
}

}  // namespace gcmoe::cuda::weights
