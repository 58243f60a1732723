#include "layout/sm100_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "base/math.hpp"
#include "layout/pack_row.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::layout {
namespace {

void prepare(bool is_first, bool is_fp8, int rows, int cols, Sm100Matrix* out) {
    GCMOE_CHECK(rows % kSm100TileRows == 0, rows);
    out->is_first = is_first;
    out->is_fp8 = is_fp8;
    out->rows = rows;
    out->chunks = cols / kChunkK;
    out->tiles.assign(size_of(out->num_tiles()) * size_of(out->tile_bytes()), 0);
    out->scales.assign(size_of(out->num_tiles()) * kSm100ScaleBytes, 0);
}

std::size_t tile_of(const Sm100Matrix& matrix, int packed_row, int chunk) {
    return size_of(
        sm100_tile_idx(matrix.is_first, packed_row / kSm100TileRows, chunk, matrix.chunks));
}

std::size_t weight_offset(const Sm100Matrix& matrix, int packed_row, int chunk) {
    const std::size_t row =
        tile_of(matrix, packed_row, chunk) * kSm100TileRows + size_of(packed_row % kSm100TileRows);
    return row * size_of(matrix.tile_bytes() / kSm100TileRows);
}

std::size_t scale_offset(const Sm100Matrix& matrix, int packed_row, int group) {
    return tile_of(matrix, packed_row, group / kGroupsPerChunk) * kSm100ScaleBytes +
           size_of(sm100_scale_offset(packed_row % kSm100TileRows, group % kGroupsPerChunk));
}

// Which source row a packed row holds.
template <class View>
typename MatrixSource<View>::Row source_row(const MatrixSource<View>& source, int packed_row) {
    if (!source.is_first) return {&source.down, "down", packed_row};
    const FirstGemmRow place = sm100_first_gemm_row(packed_row);
    return {place.is_up ? &source.up : &source.gate, place.is_up ? "up" : "gate", place.column};
}

void count(const Sm100Matrix& matrix, PackReport* report) {
    report->packed_bytes += static_cast<std::int64_t>(matrix.tiles.size() + matrix.scales.size());
}

// The UE8M0 scale of a row's K32 group, and whether the codes must be rounded to it.
struct GroupScale {
    std::uint8_t code = 0;
    float stored = 0.0F;
    bool is_exact = true;
};

GroupScale group_scale(const Fp8View& view, int row, int group) {
    const GridSteps steps = grid_steps(view.grid);
    const int grid_cols = ceil_div(view.cols, steps.cols_per_scale);
    GroupScale out;
    out.stored = grid_scale(view, steps,
                            index_of(row / steps.rows_per_scale, grid_cols,
                                     group * kScaleGroupK / steps.cols_per_scale));
    out.is_exact = numerics::ue8m0_exact(out.stored, &out.code);
    if (!out.is_exact) out.code = numerics::ue8m0_ceil(out.stored);
    return out;
}

// Rounds 32 codes of one scale to another.
void round_codes(const GroupScale& scale, float row_max, std::uint8_t* codes, PackReport* report) {
    const float to = numerics::ue8m0_to_float(scale.code);
    for (int k = 0; k < kScaleGroupK; ++k) {
        const float value = numerics::e4m3_to_float(codes[k]) * scale.stored;
        codes[k] = numerics::e4m3_from_float(value / to);
        const float change = std::abs(numerics::e4m3_to_float(codes[k]) * to - value);
        if (change == 0.0F) continue;
        ++report->num_changed_values;
        report->worst_change =
            std::max(report->worst_change, static_cast<double>(change) / row_max);
    }
}

float row_maximum(const Fp8View& view, int row) {
    float maximum = 0.0F;
    for (int col = 0; col < view.cols; ++col) {
        const float value = numerics::e4m3_to_float(view.codes[index_of(row, view.cols, col)]) *
                            group_scale(view, row, col / kScaleGroupK).stored;
        maximum = std::max(maximum, std::abs(value));
    }
    return maximum;
}

Status pack_fp8_row(const SharedSource& source, int packed_row, bool allow_inexact,
                    Sm100Matrix* out, PackReport* report) {
    const SharedSource::Row row = source_row(source, packed_row);
    const Fp8View& view = *row.view;
    float row_max = 0.0F;  // looked up at the first group that needs it
    for (int group = 0; group < view.cols / kScaleGroupK; ++group) {
        const GroupScale scale = group_scale(view, row.row, group);
        std::uint8_t* codes = out->tiles.data() +
                              weight_offset(*out, packed_row, group / kGroupsPerChunk) +
                              group % kGroupsPerChunk * kScaleGroupK;
        std::memcpy(codes, view.codes + index_of(row.row, view.cols, group * kScaleGroupK),
                    kScaleGroupK);
        out->scales[scale_offset(*out, packed_row, group)] = scale.code;
        if (scale.is_exact) continue;
        if (!allow_inexact) {
            return Status(Code::kInexact,
                          fmt::format("{} {} row {}, columns {}..{}: scale {} is no power of two, "
                                      "which is all that sm100 tiles hold",
                                      source.owner, row.matrix, row.row, group * kScaleGroupK,
                                      (group + 1) * kScaleGroupK - 1, scale.stored));
        }
        if (row_max == 0.0F) row_max = row_maximum(view, row.row);
        round_codes(scale, row_max, codes, report);
    }
    return Status();
}

}  // namespace

Status pack_sm100(const RoutedSource& source, Sm100Matrix* out, PackReport* report) {
    prepare(source.is_first, false, source.packed_rows(), source.cols(), out);
    const int groups = source.cols() / kScaleGroupK;
    for (int packed_row = 0; packed_row < out->rows; ++packed_row) {
        const RoutedSource::Row row = source_row(source, packed_row);
        const std::uint8_t* nibbles = row.view->nibbles + index_of(row.row, source.cols() / 2, 0);
        const std::uint8_t* codes = row.view->scales + index_of(row.row, groups, 0);
        for (int chunk = 0; chunk < out->chunks; ++chunk) {
            std::memcpy(out->tiles.data() + weight_offset(*out, packed_row, chunk),
                        nibbles + chunk * kFp4RowBytes, kFp4RowBytes);
        }
        for (int group = 0; group < groups; ++group) {
            if (codes[group] == numerics::kUe8m0Nan) {
                return nan_scale_error({source.owner, row.matrix, row.row}, group);
            }
            out->scales[scale_offset(*out, packed_row, group)] = codes[group];
        }
    }
    count(*out, report);
    return Status();
}

Status pack_sm100(const SharedSource& source, bool allow_inexact, Sm100Matrix* out,
                  PackReport* report) {
    GCMOE_RETURN_IF_ERROR(check_fp8_source(source));
    prepare(source.is_first, true, source.packed_rows(), source.cols(), out);
    for (int packed_row = 0; packed_row < out->rows; ++packed_row) {
        GCMOE_RETURN_IF_ERROR(pack_fp8_row(source, packed_row, allow_inexact, out, report));
    }
    count(*out, report);
    return Status();
}

Sm100Unpacked unpack_sm100(const Sm100Matrix& packed, bool is_up) {
    Sm100Unpacked out;
    out.rows = packed.is_first ? packed.rows / 2 : packed.rows;
    out.cols = packed.chunks * kChunkK;
    const std::size_t row_bytes = size_of(packed.tile_bytes() / kSm100TileRows);
    const int groups = out.cols / kScaleGroupK;
    out.weights.resize(size_of(out.rows) * size_of(packed.chunks) * row_bytes);
    out.scales.resize(index_of(out.rows, groups, 0));
    std::uint8_t* weights = out.weights.data();
    std::uint8_t* scales = out.scales.data();
    for (int row = 0; row < out.rows; ++row) {
        const int packed_row = packed.is_first ? sm100_first_gemm_packed_row({row, is_up}) : row;
        for (int chunk = 0; chunk < packed.chunks; ++chunk, weights += row_bytes) {
            std::memcpy(weights, packed.tiles.data() + weight_offset(packed, packed_row, chunk),
                        row_bytes);
        }
        for (int group = 0; group < groups; ++group) {
            *scales++ = packed.scales[scale_offset(packed, packed_row, group)];
        }
    }
    return out;
}

}  // namespace gcmoe::layout
