#include "cuda/weights/pack_on_device.hpp"

#include <string>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "cuda/weights/gpu_weights.hpp"
#include "cuda/weights/pack_kernels.cuh"
#include "layout/pack_checks.hpp"
#include "layout/pack_matrix.hpp"

namespace gcmoe::cuda::weights {
namespace {

using device::Bump;
using device::cuda_status;
using device::DeviceBuffer;
using device::GpuFp8Matrix;
using device::GpuMatrix;

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
