// One expert matrix, from checkpoint bytes to tiles and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"
#include "layout/packed_weights.hpp"

namespace gcmoe::layout {

// The checkpoint matrices behind one packed matrix. View is Mxfp4View or Fp8View.
template <class View>
struct MatrixSource {
    struct Row {
        const View* view;
        const char* matrix;  // "gate", "up" or "down"
        int row;             // of the view
    };

    std::string owner;  // "expert 17" or "shared expert", for messages
    bool is_first = true;
    View gate;  // first GEMM
    View up;
    View down;  // second GEMM

    [[nodiscard]] int packed_rows() const { return is_first ? gate.rows + up.rows : down.rows; }
    [[nodiscard]] int cols() const { return is_first ? gate.cols : down.cols; }
    // Which source row a packed row holds.
    [[nodiscard]] Row row(int packed_row) const {
        if (!is_first) return Row{&down, "down", packed_row};
        const FirstGemmRow place = first_gemm_row(packed_row);
        return Row{place.is_up ? &up : &gate, place.is_up ? "up" : "gate", place.column};
    }
};

using RoutedSource = MatrixSource<Mxfp4View>;
using SharedSource = MatrixSource<Fp8View>;

// Packs one routed matrix in the cheapest form that is exact: one factor per row; else a factor per
// row and 128 of K. Values that even that cannot hold are rounded to nearest (ties to the smaller
// magnitude) if allow_inexact, and counted in report; else they are an error. Leaves out->bias
// alone. Callers: with views whose shapes were checked (rows a multiple of 64 when packed, cols of
// 128). Errors: kBadCheckpoint (code 255), kInexact; both name owner, matrix, row and K32 group.
Status pack_matrix(const RoutedSource& source, KOrder order, bool allow_inexact, PackedMatrix* out,
                   PackReport* report);

// Packs one shared matrix in natural order and expands its scale grid to packed rows.
// Callers: as pack_matrix.
// Errors: kBadCheckpoint for E4M3 NaN codes, UE8M0 code 255, FP32 scales that are not finite and
// positive, gate and up with scales of different K width; it names owner, matrix and position.
Status pack_fp8_matrix(const SharedSource& source, PackedFp8Matrix* out);

// What pack_fp8_matrix refuses. Errors: as there.
Status check_fp8_source(const SharedSource& source);

// A row of a checkpoint matrix, for messages.
struct MatrixRow {
    std::string owner;   // "expert 17"
    const char* matrix;  // "gate", "up" or "down"
    int row;
};

// What a packer says of a UE8M0 code 255, and of a chunk that no window holds (kInexact).
// Shapes: codes, is_zero (4), of the chunk's K32 groups.
Status nan_scale_error(const MatrixRow& at, int group);
Status inexact_error(const MatrixRow& at, int chunk, const std::uint8_t* codes,
                     const bool* is_zero);

// The MXFP4 matrix that a packed one stands for, rows in packed order.
struct UnpackedMatrix {
    int rows = 0;
    int cols = 0;
    std::vector<std::uint8_t> nibbles;  // (rows, cols / 2), even column in the low nibble
    std::vector<std::uint8_t> scales;   // (rows, cols / 32) UE8M0; any code for groups of zeros

    [[nodiscard]] double value(int row, int col) const;
};

[[nodiscard]] UnpackedMatrix unpack_matrix(const PackedMatrix& packed);

// The weight that stands at (packed_row, k), exactly.
[[nodiscard]] double packed_value(const PackedMatrix& packed, int packed_row, int k);
[[nodiscard]] double packed_value(const PackedFp8Matrix& packed, int packed_row, int k);

}  // namespace gcmoe::layout
