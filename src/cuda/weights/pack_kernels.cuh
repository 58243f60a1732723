// Kernels of the device's packer. A matrix is scanned (a warp per packed row: its window, and the
// first place that cannot be packed), then, its form being known, packed (a thread per tile row).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "layout/pack_row.hpp"
#include "layout/weight_tile.hpp"

namespace gcmoe::cuda::weights {

inline constexpr unsigned kPackThreads = 256;

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

__device__ inline void note_error(const MatrixJob& job, bool is_inexact, int row, int group) {
    const ErrorPlace place{job.matrix, is_inexact, static_cast<std::uint32_t>(row),
                           static_cast<std::uint32_t>(group)};
    atomicMin(job.error, static_cast<unsigned long long>(place.word()));
}

// Grid: a warp per packed row.
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

}  // namespace gcmoe::cuda::weights
