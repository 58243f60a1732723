#include "checkpoint/unpacked_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "checkpoint/stored_source.hpp"
#include "layout/pack_matrix.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr int kBlock = 128;

// What the views of one unpacked expert point into.
struct Unpacked {
    std::vector<std::vector<std::uint8_t>> bytes;
    std::vector<std::vector<float>> floats;

    const std::uint8_t* hold(std::vector<std::uint8_t> values) {
        bytes.push_back(std::move(values));
        return bytes.back().data();
    }
    const float* hold(std::vector<float> values) {
        floats.push_back(std::move(values));
        return floats.back().data();
    }
};

// Which packed row holds a source row: one function per target and matrix.
using PackedRowOf = int (*)(int row, bool is_up);

int sm90_first(int row, bool is_up) { return layout::first_gemm_packed_row({row, is_up}); }
int sm100_first(int row, bool is_up) { return layout::sm100_first_gemm_packed_row({row, is_up}); }
int second(int row, bool) { return row; }

// The rows of one source matrix out of an array in packed order.
template <class T>
std::vector<T> take_rows(const std::vector<T>& packed, int rows, std::size_t width, bool is_up,
                         PackedRowOf packed_row_of) {
    std::vector<T> out;
    out.reserve(static_cast<std::size_t>(rows) * width);
    for (int row = 0; row < rows; ++row) {
        const auto begin =
            packed.begin() + static_cast<std::ptrdiff_t>(
                                 static_cast<std::size_t>(packed_row_of(row, is_up)) * width);
        out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    return out;
}

Mxfp4View view_of(const layout::UnpackedMatrix& matrix, int rows, bool is_up,
                  PackedRowOf packed_row_of, Unpacked* held) {
    const auto cols = static_cast<std::size_t>(matrix.cols);
    return {held->hold(take_rows(matrix.nibbles, rows, cols / 2, is_up, packed_row_of)),
            held->hold(take_rows(matrix.scales, rows, cols / 32, is_up, packed_row_of)), rows,
            matrix.cols};
}

Mxfp4View view_of(layout::Sm100Unpacked matrix, Unpacked* held) {
    return {held->hold(std::move(matrix.weights)), held->hold(std::move(matrix.scales)),
            matrix.rows, matrix.cols};
}

void unpack_sm90(const layout::PackedExpert& packed, Unpacked* held, ExpertBytes* out) {
    const layout::UnpackedMatrix first = layout::unpack_matrix(packed.first);
    out->gate = view_of(first, first.rows / 2, false, sm90_first, held);
    out->up = view_of(first, first.rows / 2, true, sm90_first, held);
    out->down =
        view_of(layout::unpack_matrix(packed.second), packed.second.rows, false, second, held);
}

void unpack_sm100(const layout::Sm100Expert& packed, Unpacked* held, ExpertBytes* out) {
    out->gate = view_of(layout::unpack_sm100(packed.first, false), held);
    out->up = view_of(layout::unpack_sm100(packed.first, true), held);
    out->down = view_of(layout::unpack_sm100(packed.second, false), held);
}

// first, second: biases in packed-row order.
void unpack_biases(const std::vector<float>& first, const std::vector<float>& down,
                   PackedRowOf packed_row_of, Unpacked* held, ExpertBytes* out) {
    if (first.empty()) return;
    const int inter = static_cast<int>(first.size()) / 2;
    out->gate_bias = held->hold(take_rows(first, inter, 1, false, packed_row_of));
    out->up_bias = held->hold(take_rows(first, inter, 1, true, packed_row_of));
    out->down_bias = held->hold(std::vector<float>(down));
}

// The scale of every block of 128 rows is stored with each of its rows.
std::vector<float> block_scales(const layout::PackedFp8Matrix& matrix, int rows, bool is_up,
                                PackedRowOf packed_row_of) {
    std::vector<float> out;
    for (int row = 0; row < rows; row += kBlock) {
        for (int chunk = 0; chunk < matrix.chunks; ++chunk) {
            out.push_back(matrix.scale(packed_row_of(row, is_up), chunk, 0));
        }
    }
    return out;
}

std::vector<std::uint8_t> row_scales(const layout::PackedFp8Matrix& matrix, int rows, bool is_up,
                                     PackedRowOf packed_row_of) {
    std::vector<std::uint8_t> out;
    for (int row = 0; row < rows; ++row) {
        for (int group = 0; group < 4 * matrix.chunks; ++group) {
            std::uint8_t code = 0;
            const float scale = matrix.scale(packed_row_of(row, is_up), group / 4, group % 4);
            GCMOE_CHECK(numerics::ue8m0_exact(scale, &code), scale);
            out.push_back(code);
        }
    }
    return out;
}

Fp8View view_of(const layout::PackedFp8Matrix& matrix, int rows, bool is_up,
                PackedRowOf packed_row_of, Unpacked* held) {
    const int cols = matrix.chunks * layout::kChunkK;
    std::vector<std::uint8_t> codes;
    codes.reserve(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    for (int row = 0; row < rows; ++row) {
        const int packed_row = packed_row_of(row, is_up);
        for (int col = 0; col < cols; ++col) {
            const std::uint8_t* tile =
                matrix.tile(packed_row / layout::kTileRows, col / layout::kChunkK);
            codes.push_back(tile[layout::fp8_tile_offset(packed_row % layout::kTileRows,
                                                         col % layout::kChunkK, matrix.order)]);
        }
    }
    const std::uint8_t* held_codes = held->hold(std::move(codes));
    if (matrix.scale_groups_per_chunk == 1) {
        return {held_codes, held->hold(block_scales(matrix, rows, is_up, packed_row_of)),
                ScaleGrid::kFp32Block128, rows, cols};
    }
    return {held_codes, held->hold(row_scales(matrix, rows, is_up, packed_row_of)),
            ScaleGrid::kUe8m0Row32, rows, cols};
}

Fp8View fp8_view_of(layout::Sm100Unpacked matrix, Unpacked* held) {
    return {held->hold(std::move(matrix.weights)), held->hold(std::move(matrix.scales)),
            ScaleGrid::kUe8m0Row32, matrix.rows, matrix.cols};
}

Status difference(const std::string& matrix, int row, int col, float packed, float stored) {
    return {Code::kBadCheckpoint, fmt::format("{}, row {}, column {}: packed {}, the source has {}",
                                              matrix, row, col, packed, stored)};
}

// Bit by bit: -0 is not +0.
Status compare(const std::string& matrix, const StoredView& packed, const StoredView& stored) {
    const int cols = cols_of(stored);
    std::vector<float> left(static_cast<std::size_t>(cols));
    std::vector<float> right(left.size());
    for (int row = 0; row < rows_of(stored); ++row) {
        decode_row(packed, row, left.data());
        decode_row(stored, row, right.data());
        if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0) continue;
        for (int col = 0; col < cols; ++col) {
            const auto idx = static_cast<std::size_t>(col);
            if (std::memcmp(&left[idx], &right[idx], sizeof(float)) == 0) continue;
            return difference(matrix, row, col, left[idx], right[idx]);
        }
    }
    return {};
}

Status compare_bias(const std::string& matrix, const float* packed, const float* stored, int rows) {
    if (packed == nullptr) return {};
    for (int row = 0; row < rows; ++row) {
        if (std::memcmp(&packed[row], &stored[row], sizeof(float)) == 0) continue;
        return difference(matrix + " bias", row, 0, packed[row], stored[row]);
    }
    return {};
}

}  // namespace

Status UnpackedSource::expert(int expert_idx, ExpertBytes* out) {
    const auto has_it = [&](const std::shared_ptr<const PackedFile>& file) {
        const std::vector<int>& experts = file->experts();
        return std::binary_search(experts.begin(), experts.end(), expert_idx);
    };
    const auto found = std::find_if(files_.begin(), files_.end(), has_it);
    if (found == files_.end()) {
        return {Code::kBadIndex, fmt::format("expert {} is in none of the {} packed files",
                                             expert_idx, files_.size())};
    }
    const PackedFile& file = **found;
    const auto held = std::make_shared<Unpacked>();
    ExpertBytes bytes;
    if (file.layer().target == PackTarget::kSm90) {
        std::unique_ptr<layout::PackedExpert> packed;
        GCMOE_RETURN_IF_ERROR(file.load_expert(expert_idx, &packed));
        unpack_sm90(*packed, held.get(), &bytes);
        unpack_biases(packed->first.bias, packed->second.bias, sm90_first, held.get(), &bytes);
    } else {
        layout::Sm100Expert packed;
        GCMOE_RETURN_IF_ERROR(file.load_sm100(expert_idx, &packed));
        unpack_sm100(packed, held.get(), &bytes);
        unpack_biases(packed.first.bias, packed.second.bias, sm100_first, held.get(), &bytes);
    }
    bytes.keep_alive = held;
    *out = std::move(bytes);
    return {};
}

Status UnpackedSource::shared_expert(SharedExpertBytes* out) {
    GCMOE_CHECK(!files_.empty());
    const PackedFile& file = *files_.front();
    const int inter = file.layer().shape.shared_inter;
    const auto held = std::make_shared<Unpacked>();
    SharedExpertBytes bytes;
    if (file.layer().target == PackTarget::kSm90) {
        layout::PackedSharedExpert packed;
        GCMOE_RETURN_IF_ERROR(file.load_shared(&packed));
        bytes.gate = view_of(packed.first, inter, false, sm90_first, held.get());
        bytes.up = view_of(packed.first, inter, true, sm90_first, held.get());
        bytes.down = view_of(packed.second, packed.second.rows, false, second, held.get());
    } else {
        layout::Sm100Expert packed;
        GCMOE_RETURN_IF_ERROR(file.load_sm100(kSharedSection, &packed));
        bytes.gate = fp8_view_of(layout::unpack_sm100(packed.first, false), held.get());
        bytes.up = fp8_view_of(layout::unpack_sm100(packed.first, true), held.get());
        bytes.down = fp8_view_of(layout::unpack_sm100(packed.second, false), held.get());
    }
    bytes.keep_alive = held;
    *out = std::move(bytes);
    return {};
}

Status compare_with_source(WeightSource& source, const std::shared_ptr<const PackedFile>& file) {
    UnpackedSource unpacked({file});
    for (const int expert_idx : file->experts()) {
        ExpertBytes packed;
        ExpertBytes stored;
        GCMOE_RETURN_IF_ERROR(unpacked.expert(expert_idx, &packed));
        GCMOE_RETURN_IF_ERROR(source.expert(expert_idx, &stored));
        const std::string name = fmt::format("expert {} ", expert_idx);
        GCMOE_RETURN_IF_ERROR(compare(name + "gate", packed.gate, stored.gate));
        GCMOE_RETURN_IF_ERROR(compare(name + "up", packed.up, stored.up));
        GCMOE_RETURN_IF_ERROR(compare(name + "down", packed.down, stored.down));
        GCMOE_RETURN_IF_ERROR(
            compare_bias(name + "gate", packed.gate_bias, stored.gate_bias, stored.gate.rows));
        GCMOE_RETURN_IF_ERROR(
            compare_bias(name + "up", packed.up_bias, stored.up_bias, stored.up.rows));
        GCMOE_RETURN_IF_ERROR(
            compare_bias(name + "down", packed.down_bias, stored.down_bias, stored.down.rows));
    }
    if (file->layer().shape.shared_inter == 0) return {};
    SharedExpertBytes packed;
    SharedExpertBytes stored;
    GCMOE_RETURN_IF_ERROR(unpacked.shared_expert(&packed));
    GCMOE_RETURN_IF_ERROR(source.shared_expert(&stored));
    GCMOE_RETURN_IF_ERROR(compare("shared expert gate", packed.gate, stored.gate));
    GCMOE_RETURN_IF_ERROR(compare("shared expert up", packed.up, stored.up));
    return compare("shared expert down", packed.down, stored.down);
}

}  // namespace gcmoe::checkpoint
