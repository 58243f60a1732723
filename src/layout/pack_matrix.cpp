#include "layout/pack_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "base/math.hpp"
#include "layout/pack_row.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::layout {
namespace {

using numerics::choose_window;
using numerics::kUe8m0Nan;
using numerics::kWindowOctaves;
using numerics::ScaleWindow;

const std::uint8_t* nibbles_of(const RoutedSource::Row& row, int group) {
    return row.view->nibbles + index_of(row.row, row.view->cols / 2, group * kGroupBytes);
}

const std::uint8_t* scales_of(const RoutedSource::Row& row, int group) {
    return row.view->scales + index_of(row.row, row.view->cols / kScaleGroupK, group);
}

double nibble_value(const std::uint8_t* nibbles, int k, int code) {
    const unsigned byte = nibbles[k / 2];
    const unsigned nibble = k % 2 == 0 ? byte & 15U : byte >> 4;
    return std::ldexp(numerics::e2m1_to_float(static_cast<std::uint8_t>(nibble)), code - 127);
}

// What the first look at a matrix found: which groups are zero, and a window per packed row.
struct Scan {
    int groups_per_row = 0;
    std::unique_ptr<bool[]> is_zero;  // (packed rows, groups_per_row)
    std::vector<std::uint8_t> bases;  // (packed rows), the row windows
    bool rows_fit = true;

    [[nodiscard]] const bool* zero_flags(int packed_row, int group) const {
        return is_zero.get() + index_of(packed_row, groups_per_row, group);
    }
};

Status scan_rows(const RoutedSource& source, Scan* scan) {
    const int rows = source.packed_rows();
    const int groups = source.cols() / kScaleGroupK;
    scan->groups_per_row = groups;
    scan->is_zero = std::make_unique<bool[]>(index_of(rows, groups, 0));
    scan->bases.resize(static_cast<std::size_t>(rows));
    for (int packed_row = 0; packed_row < rows; ++packed_row) {
        const RoutedSource::Row row = source.row(packed_row);
        const std::uint8_t* codes = scales_of(row, 0);
        bool* flags = scan->is_zero.get() + index_of(packed_row, groups, 0);
        for (int group = 0; group < groups; ++group) {
            if (codes[group] == kUe8m0Nan) {
                return nan_scale_error({source.owner, row.matrix, row.row}, group);
            }
            flags[group] = group_is_zero(nibbles_of(row, group));
        }
        const ScaleWindow window = choose_window(codes, flags, groups);
        scan->bases[static_cast<std::size_t>(packed_row)] = window.base;
        scan->rows_fit = scan->rows_fit && window.fits;
    }
    return Status();
}

// Where a row of a tile goes, and the window it is stored under.
struct ChunkTarget {
    std::uint8_t* tile;
    int row;  // in the tile
    int base;
    KOrder order;
};

// Writes one row of a tile: 128 weights (64 bytes, even k in the low nibble) and 4 positions v.
void store_tile_row(const std::uint8_t* nibbles, const std::uint8_t* codes, const bool* is_zero,
                    const ChunkTarget& to) {
    std::uint32_t words[kFp4RowBytes / 4];
    weave_tile_row(nibbles, to.order, words);
    std::memcpy(to.tile + fp4_word_offset(to.row, 0, 0), words, sizeof(words));
    const bool fits =
        window_positions(codes, is_zero, to.base, to.tile + fp4_scale_offset(to.row, 0));
    GCMOE_CHECK(fits, to.row, to.base);
}

// The largest magnitude of a source row.
double row_maximum(const RoutedSource::Row& row) {
    double maximum = 0.0;
    for (int group = 0; group < row.view->cols / kScaleGroupK; ++group) {
        const std::uint8_t* nibbles = nibbles_of(row, group);
        const int code = *scales_of(row, group);
        for (int k = 0; k < kScaleGroupK; ++k) {
            maximum = std::max(maximum, std::abs(nibble_value(nibbles, k, code)));
        }
    }
    return maximum;
}

// Rounds the weights of one K32 group, in place, to the grid of a larger scale.
void raise_group_scale(std::uint8_t* nibbles, int code, int base, double row_max,
                       PackReport* report) {
    for (int k = 0; k < kScaleGroupK; ++k) {
        const double original = nibble_value(nibbles, k, code);
        const auto nibble = numerics::e2m1_from_float(
            static_cast<float>(nibble_value(nibbles, k, code - base + 127)));
        std::uint8_t& byte = nibbles[k / 2];
        byte = static_cast<std::uint8_t>(k % 2 == 0 ? (byte & 0xF0) | nibble
                                                    : (byte & 0x0F) | nibble << 4);
        const double change = std::abs(nibble_value(nibbles, k, base) - original);
        if (change == 0.0) continue;
        ++report->num_changed_values;
        report->worst_change = std::max(report->worst_change, change / row_max);
    }
}

// A chunk whose scales span more than a window: keeps the largest code at the top of the window and
// rounds the groups below it.
void store_rounded_chunk(const RoutedSource::Row& row, int chunk, const bool* is_zero,
                         double row_max, ChunkTarget to, PackReport* report) {
    const std::uint8_t* codes = scales_of(row, chunk * kGroupsPerChunk);
    std::uint8_t nibbles[kFp4RowBytes];
    std::memcpy(nibbles, nibbles_of(row, chunk * kGroupsPerChunk), sizeof(nibbles));
    for (int group = 0; group < kGroupsPerChunk; ++group) {
        if (is_zero[group] || codes[group] >= to.base) continue;
        raise_group_scale(nibbles + group * kGroupBytes, codes[group], to.base, row_max, report);
    }
    store_tile_row(nibbles, codes, is_zero, to);
}

// The base that keeps the largest live code of a chunk at v = 26.
int top_window_base(const std::uint8_t* codes, const bool* is_zero) {
    int largest = 0;
    for (int group = 0; group < kGroupsPerChunk; ++group) {
        if (!is_zero[group]) largest = std::max<int>(largest, codes[group]);
    }
    return largest - (kWindowOctaves - 1);
}

std::uint8_t* tile_of(PackedMatrix* out, int packed_row, int chunk) {
    return out->tiles.data() + out->tile_idx(packed_row / kTileRows, chunk) * kFp4TileBytes;
}

// Row factors: exact, the scan found every row inside its own window.
void pack_row_form(const RoutedSource& source, const Scan& scan, PackedMatrix* out) {
    out->form = PackedMatrix::DecodeForm::kRowFactor;
    out->factors.resize(static_cast<std::size_t>(out->rows));
    for (int packed_row = 0; packed_row < out->rows; ++packed_row) {
        const RoutedSource::Row row = source.row(packed_row);
        const std::uint8_t base = scan.bases[static_cast<std::size_t>(packed_row)];
        out->factors[static_cast<std::size_t>(packed_row)] = numerics::window_factor(base);
        for (int chunk = 0; chunk < out->chunks; ++chunk) {
            const int group = chunk * kGroupsPerChunk;
            store_tile_row(
                nibbles_of(row, group), scales_of(row, group), scan.zero_flags(packed_row, group),
                {tile_of(out, packed_row, chunk), packed_row % kTileRows, base, out->order});
        }
    }
}

// One row in chunk form.
Status pack_row_of_chunks(const RoutedSource& source, const Scan& scan, int packed_row,
                          bool allow_inexact, PackedMatrix* out, PackReport* report) {
    const RoutedSource::Row row = source.row(packed_row);
    double row_max = 0.0;  // looked up at the first chunk that needs it
    for (int chunk = 0; chunk < out->chunks; ++chunk) {
        const int group = chunk * kGroupsPerChunk;
        const std::uint8_t* codes = scales_of(row, group);
        const bool* is_zero = scan.zero_flags(packed_row, group);
        const ScaleWindow window = choose_window(codes, is_zero, kGroupsPerChunk);
        ChunkTarget to{tile_of(out, packed_row, chunk), packed_row % kTileRows, window.base,
                       out->order};
        if (window.fits) {
            store_tile_row(nibbles_of(row, group), codes, is_zero, to);
        } else if (!allow_inexact) {
            return inexact_error({source.owner, row.matrix, row.row}, chunk, codes, is_zero);
        } else {
            to.base = top_window_base(codes, is_zero);
            if (row_max == 0.0) row_max = row_maximum(row);
            store_rounded_chunk(row, chunk, is_zero, row_max, to, report);
        }
        out->factors[out->factor_idx(packed_row, chunk)] =
            numerics::window_factor(static_cast<std::uint8_t>(to.base));
    }
    return Status();
}

// --- FP8 -------------------------------------------------------------------------------------

Status check_grid(const std::string& owner, const char* matrix, const Fp8View& view) {
    const GridSteps steps = grid_steps(view.grid);
    const int grid_rows = ceil_div(view.rows, steps.rows_per_scale);
    const int grid_cols = ceil_div(view.cols, steps.cols_per_scale);
    for (int row = 0; row < grid_rows; ++row) {
        for (int col = 0; col < grid_cols; ++col) {
            const float scale = grid_scale(view, steps, index_of(row, grid_cols, col));
            if (std::isfinite(scale) && scale > 0.0F) continue;
            return Status(Code::kBadCheckpoint,
                          fmt::format("{} {}: entry ({}, {}) of the {} x {} scale grid is {}, it "
                                      "must be finite and positive",
                                      owner, matrix, row, col, grid_rows, grid_cols,
                                      steps.is_fp32 ? fmt::format("{}", scale)
                                                    : std::string("UE8M0 code 255, NaN")));
        }
    }
    return Status();
}

Status check_codes(const std::string& owner, const char* matrix, const Fp8View& view) {
    for (int row = 0; row < view.rows; ++row) {
        const std::uint8_t* codes = view.codes + index_of(row, view.cols, 0);
        const std::uint8_t* bad = std::find_if(codes, codes + view.cols, numerics::e4m3_is_nan);
        if (bad == codes + view.cols) continue;
        return Status(Code::kBadCheckpoint,
                      fmt::format("{} {}: the E4M3 code at row {}, column {} is {:#04x}, NaN",
                                  owner, matrix, row, bad - codes, *bad));
    }
    return Status();
}

}  // namespace

Status check_fp8_source(const SharedSource& source) {
    if (!source.is_first) {
        GCMOE_RETURN_IF_ERROR(check_grid(source.owner, "down", source.down));
        return check_codes(source.owner, "down", source.down);
    }
    const int gate_step = grid_steps(source.gate.grid).cols_per_scale;
    const int up_step = grid_steps(source.up.grid).cols_per_scale;
    if (gate_step != up_step) {
        return Status(Code::kBadCheckpoint,
                      fmt::format("{}: gate has a scale per {} columns, up per {}; they are packed "
                                  "as one matrix and must agree",
                                  source.owner, gate_step, up_step));
    }
    GCMOE_RETURN_IF_ERROR(check_grid(source.owner, "gate", source.gate));
    GCMOE_RETURN_IF_ERROR(check_grid(source.owner, "up", source.up));
    GCMOE_RETURN_IF_ERROR(check_codes(source.owner, "gate", source.gate));
    return check_codes(source.owner, "up", source.up);
}

Status nan_scale_error(const MatrixRow& at, int group) {
    return Status(Code::kBadCheckpoint,
                  fmt::format("{} {} row {}: the UE8M0 scale of K32 group {} (columns {}..{}) is "
                              "code 255, NaN",
                              at.owner, at.matrix, at.row, group, group * kScaleGroupK,
                              (group + 1) * kScaleGroupK - 1));
}

Status inexact_error(const MatrixRow& at, int chunk, const std::uint8_t* codes,
                     const bool* is_zero) {
    const int first_group = chunk * kGroupsPerChunk;
    int low = -1;
    int high = -1;
    for (int group = 0; group < kGroupsPerChunk; ++group) {
        if (is_zero[group]) continue;
        if (low < 0 || codes[group] < codes[low]) low = group;
        if (high < 0 || codes[group] > codes[high]) high = group;
    }
    GCMOE_CHECK(low >= 0 && high >= 0, at.row, chunk);
    return Status(
        Code::kInexact,
        fmt::format("{} {} row {}: K32 group {} has scale code {}, group {} of the same 128 "
                    "columns {}: {} octaves, a packed tile row holds {} exactly",
                    at.owner, at.matrix, at.row, first_group + low, codes[low], first_group + high,
                    codes[high], codes[high] - codes[low] + 1, kWindowOctaves));
}

Status pack_matrix(const RoutedSource& source, KOrder order, bool allow_inexact, PackedMatrix* out,
                   PackReport* report) {
    Scan scan;
    GCMOE_RETURN_IF_ERROR(scan_rows(source, &scan));
    out->rows = source.packed_rows();
    out->chunks = source.cols() / kChunkK;
    out->order = order;
    const std::size_t num_tiles = out->tile_idx(out->rows / kTileRows, 0);
    out->tiles.assign(num_tiles * kFp4TileBytes, 0);
    if (scan.rows_fit) {
        pack_row_form(source, scan, out);
        ++report->num_row_form;
    } else {
        out->form = PackedMatrix::DecodeForm::kChunkFactor;
        out->factors.resize(num_tiles * kTileRows);
        for (int packed_row = 0; packed_row < out->rows; ++packed_row) {
            GCMOE_RETURN_IF_ERROR(
                pack_row_of_chunks(source, scan, packed_row, allow_inexact, out, report));
        }
        ++report->num_chunk_form;
    }
    report->packed_bytes +=
        static_cast<std::int64_t>(out->tiles.size() + out->factors.size() * sizeof(float));
    return Status();
}

Status pack_fp8_matrix(const SharedSource& source, PackedFp8Matrix* out) {
    GCMOE_RETURN_IF_ERROR(check_fp8_source(source));
    const Fp8View& view = source.is_first ? source.gate : source.down;
    out->rows = source.packed_rows();
    out->chunks = source.cols() / kChunkK;
    out->order = KOrder::kNatural;
    out->scale_groups_per_chunk = kChunkK / grid_steps(view.grid).cols_per_scale;
    const std::size_t num_tiles = out->tile_idx(out->rows / kTileRows, 0);
    out->tiles.assign(num_tiles * kFp8TileBytes, 0);
    out->scales.assign(
        num_tiles * kTileRows * static_cast<std::size_t>(out->scale_groups_per_chunk), 0.0F);
    for (int packed_row = 0; packed_row < out->rows; ++packed_row) {
        for (int chunk = 0; chunk < out->chunks; ++chunk) {
            const SharedSource::Row row = source.row(packed_row);
            std::uint8_t* tile =
                out->tiles.data() + out->tile_idx(packed_row / kTileRows, chunk) * kFp8TileBytes;
            store_fp8_row(*row.view, row.row, chunk, tile + packed_row % kTileRows * kChunkK,
                          out->scales.data() + out->scale_idx(packed_row, chunk));
        }
    }
    return Status();
}

double UnpackedMatrix::value(int row, int col) const {
    const int group = col / kScaleGroupK;
    return nibble_value(nibbles.data() + index_of(row, cols / 2, group * kGroupBytes),
                        col % kScaleGroupK, scales[index_of(row, cols / kScaleGroupK, group)]);
}

UnpackedMatrix unpack_matrix(const PackedMatrix& packed) {
    UnpackedMatrix out;
    out.rows = packed.rows;
    out.cols = packed.chunks * kChunkK;
    out.nibbles.resize(index_of(out.rows, out.cols / 2, 0));
    out.scales.resize(index_of(out.rows, out.cols / kScaleGroupK, 0));
    for (int row = 0; row < out.rows; ++row) {
        for (int col = 0; col < out.cols; ++col) {
            const std::uint8_t* tile = packed.tile(row / kTileRows, col / kChunkK);
            const unsigned nibble =
                fp4_tile_get(tile, row % kTileRows, col % kChunkK, packed.order);
            out.nibbles[index_of(row, out.cols / 2, col / 2)] |=
                static_cast<std::uint8_t>(nibble << (col % 2 * 4));
            if (col % kScaleGroupK != 0) continue;
            const int group = col / kScaleGroupK;
            const int base =
                std::ilogb(packed.factor(row, col / kChunkK)) + 127 - numerics::kWindowExponent;
            out.scales[index_of(row, out.cols / kScaleGroupK, group)] = static_cast<std::uint8_t>(
                base + fp4_tile_scale(tile, row % kTileRows, group % kGroupsPerChunk));
        }
    }
    return out;
}

double packed_value(const PackedMatrix& packed, int packed_row, int k) {
    const int chunk = k / kChunkK;
    const int row = packed_row % kTileRows;
    const std::uint8_t* tile = packed.tile(packed_row / kTileRows, chunk);
    const double value =
        numerics::e2m1_to_float(fp4_tile_get(tile, row, k % kChunkK, packed.order));
    const int v = fp4_tile_scale(tile, row, k % kChunkK / kScaleGroupK);
    const double factor = static_cast<double>(packed.factor(packed_row, chunk));
    return std::ldexp(value, v - numerics::kWindowExponent) * factor;
}

double packed_value(const PackedFp8Matrix& packed, int packed_row, int k) {
    const int chunk = k / kChunkK;
    const int k_in_chunk = k % kChunkK;
    const std::uint8_t* tile = packed.tile(packed_row / kTileRows, chunk);
    const std::uint8_t code =
        tile[fp8_tile_offset(packed_row % kTileRows, k_in_chunk, packed.order)];
    const int group = k_in_chunk / (kChunkK / packed.scale_groups_per_chunk);
    return static_cast<double>(numerics::e4m3_to_float(code)) *
           static_cast<double>(packed.scale(packed_row, chunk, group));
}

}  // namespace gcmoe::layout
