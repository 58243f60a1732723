// Compiled without the vectoriser (CMakeLists.txt): what it is compared with for speed is meant.
#include "reference/lane_sums.hpp"

#include <algorithm>
#include <vector>

#include "numerics/bits.hpp"

namespace gcmoe::reference {
namespace {

constexpr int kLanes = 16;  // lane 4 q + j: word j of quad lane q
constexpr int kLaneK = 8;   // weight n = 4 s + i of the word

// Which K32 group and which k of a chunk a lane's weights are.
struct LanePlace {
    int group;
    int k[kLaneK];
};

std::vector<LanePlace> lane_places(layout::KOrder order) {
    std::vector<LanePlace> places(kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
        LanePlace& place = places[static_cast<std::size_t>(lane)];
        for (int n = 0; n < kLaneK; ++n) {
            place.k[n] = layout::k_of_position(order, {lane / 4, lane % 4, n / 4, n % 4});
        }
        place.group = place.k[0] / layout::kScaleGroupK;
    }
    return places;
}

// A chunk of one weight row. A weight is values * scales of its K32 group * factor.
struct WeightChunk {
    float values[layout::kChunkK];
    float scales[layout::kGroupsPerChunk];
    float factor;
};

void add_chunk(const WeightChunk& weight, const float* values, const float* scales,
               const std::vector<LanePlace>& places, float* lanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
        const LanePlace& place = places[static_cast<std::size_t>(lane)];
        float part = weight.values[place.k[0]] * values[place.k[0]];
        for (int n = 1; n < kLaneK; ++n) {
            part = part + weight.values[place.k[n]] * values[place.k[n]];
        }
        const float term = (part * weight.scales[place.group]) * scales[place.group];
        lanes[lane] = lanes[lane] + term * weight.factor;
    }
}

float add_lanes(const float* lanes) {
    float eight[8];
    for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
    const float sum = (four[0] + four[2]) + (four[1] + four[3]);
    return sum == sum ? sum : numerics::bits_to_float(numerics::kFloatQuietNanBits);
}

// The tile holds operands e2m1 * 2^(v - 13): the window positions are in the values already.
void read_chunk(const layout::PackedMatrix& matrix, int row, int chunk, WeightChunk* out) {
    const std::uint8_t* tile = matrix.tile(row / layout::kTileRows, chunk);
    const int in_tile = row % layout::kTileRows;
    layout::decode_fp4_tile_row(tile, in_tile, matrix.order, out->values);
    std::fill_n(out->scales, layout::kGroupsPerChunk, 1.0F);
    const bool chunk_form = matrix.form == layout::PackedMatrix::DecodeForm::kChunkFactor;
    out->factor = chunk_form ? matrix.factor(row, chunk) : 1.0F;
}

float row_factor(const layout::PackedMatrix& matrix, int row) {
    const bool chunk_form = matrix.form == layout::PackedMatrix::DecodeForm::kChunkFactor;
    return chunk_form ? 1.0F : matrix.factor(row, 0);
}

void read_chunk(const layout::PackedFp8Matrix& matrix, int row, int chunk, WeightChunk* out) {
    layout::decode_fp8_tile_row(matrix.tile(row / layout::kTileRows, chunk),
                                row % layout::kTileRows, matrix.order, out->values);
    for (int g = 0; g < layout::kGroupsPerChunk; ++g) {
        const int groups = matrix.scale_groups_per_chunk;
        out->scales[g] = matrix.scale(row, chunk, groups == 1 ? 0 : g);
    }
    out->factor = 1.0F;
}

float row_factor(const layout::PackedFp8Matrix&, int) { return 1.0F; }

template <class Matrix>
void sum_rows(const Matrix& matrix, int first_row, int num_rows, const LaneInputs& inputs,
              float* sums) {
    const std::vector<LanePlace> places = lane_places(matrix.order);
    std::vector<float> lanes(static_cast<std::size_t>(inputs.num_rows) * kLanes);
    WeightChunk weight;
    for (int r = 0; r < num_rows; ++r) {
        const int row = first_row + r;
        std::fill(lanes.begin(), lanes.end(), 0.0F);
        for (int c = 0; c < inputs.chunks; ++c) {
            read_chunk(matrix, row, c, &weight);
            for (int t = 0; t < inputs.num_rows; ++t) {
                const auto at = static_cast<std::size_t>(t * inputs.chunks + c);
                add_chunk(weight, inputs.values + at * layout::kChunkK,
                          inputs.scales + at * layout::kGroupsPerChunk, places,
                          lanes.data() + t * kLanes);
            }
        }
        for (int t = 0; t < inputs.num_rows; ++t) {
            const float sum = add_lanes(lanes.data() + t * kLanes);
            sums[static_cast<std::size_t>(t) * static_cast<std::size_t>(num_rows) +
                 static_cast<std::size_t>(r)] = sum * row_factor(matrix, row);
        }
    }
}

}  // namespace

void lane_sums(const layout::PackedMatrix& matrix, int first_row, int num_rows,
               const LaneInputs& inputs, float* sums) {
    sum_rows(matrix, first_row, num_rows, inputs, sums);
}

void lane_sums(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
               const LaneInputs& inputs, float* sums) {
    sum_rows(matrix, first_row, num_rows, inputs, sums);
}

}  // namespace gcmoe::reference
