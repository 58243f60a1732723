#include "cuda/measure/judge_loop.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/math.hpp"
#include "cuda/measure/device_bytes.hpp"
#include "layout/weight_tile.hpp"
#include "numerics/e4m3.hpp"

namespace gcmoe::cuda::measure {
namespace {

using layout::KOrder;

// One task's data on the host.
struct TaskData {
    std::vector<std::uint8_t> tiles;  // (kLoopRowTiles, chunks, kFp4TileBytes)
    std::vector<double> tokens;       // (rows, 128 chunks), natural K order, scaled
    std::vector<float> sums;          // (rows, kLoopTaskRows)
};

Status read_tokens(const StreamLoop& loop, const LoopTask& task, std::vector<double>* tokens) {
    const std::size_t rows = loop.geometry().rows;
    const std::size_t chunks = task.chunks;
    const std::size_t first = std::size_t{task.token_chunk} * rows;
    std::vector<std::uint8_t> codes(chunks * rows * layout::kChunkK);
    std::vector<float> scales(chunks * rows);
    GCMOE_RETURN_IF_ERROR(
        read_device(loop.codes() + first * layout::kChunkK, codes.size(), codes.data()));
    GCMOE_RETURN_IF_ERROR(
        read_device(loop.scales() + first, scales.size() * sizeof(float), scales.data()));
    tokens->resize(codes.size());
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
            const std::uint8_t* from = &codes[chunk * rows * layout::kChunkK];
            double* to = &(*tokens)[(row * chunks + chunk) * layout::kChunkK];
            for (int k = 0; k < layout::kChunkK; ++k) {
                const int byte = layout::k_byte_position(KOrder::kQuadBlock, k);
                const int at = layout::ring_byte_offset(static_cast<int>(row), byte);
                to[k] = double{numerics::kE4m3Values[from[at]]} * scales[chunk * rows + row];
            }
        }
    }
    return {};
}

Status read_task(const StreamLoop& loop, const LoopPlace& place, const LoopTask& task,
                 TaskData* data) {
    const LoopGeometry& geometry = loop.geometry();
    const std::size_t group_bytes = std::size_t{task.chunks} * layout::kFp4TileBytes;
    const std::size_t first_group = std::size_t{task.index} * kLoopRowTiles;
    data->tiles.resize(kLoopRowTiles * group_bytes);
    GCMOE_RETURN_IF_ERROR(read_device(loop.tiles() +
                                          std::size_t{task.first_tile} * layout::kFp4TileBytes +
                                          first_group * group_bytes,
                                      data->tiles.size(), data->tiles.data()));
    GCMOE_RETURN_IF_ERROR(read_tokens(loop, task, &data->tokens));
    data->sums.resize(std::size_t{geometry.rows} * kLoopTaskRows);
    const std::size_t first_sum = geometry.first_sum(static_cast<std::uint32_t>(place.cta),
                                                     static_cast<std::uint32_t>(place.round));
    return read_device(loop.sums() + first_sum, data->sums.size() * sizeof(float),
                       data->sums.data());
}

// All of K of a weight row of the task.
std::vector<float> decode_row(const TaskData& data, std::size_t chunks, int row) {
    std::vector<float> weights(chunks * layout::kChunkK);
    const std::size_t group = size_of(row / layout::kTileRows);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        layout::decode_fp4_tile_row(&data.tiles[(group * chunks + chunk) * layout::kFp4TileBytes],
                                    row % layout::kTileRows, KOrder::kQuadBlock,
                                    &weights[chunk * layout::kChunkK]);
    }
    return weights;
}

// Of a weight row's sums, all tokens. Against the products and not their sum, which may cancel.
double row_error(const TaskData& data, std::size_t chunks, int row) {
    const std::vector<float> weights = decode_row(data, chunks, row);
    const std::size_t num_tokens = data.tokens.size() / weights.size();
    double difference = 0;
    double products = 0;
    for (std::size_t token = 0; token < num_tokens; ++token) {
        const double* values = &data.tokens[token * weights.size()];
        double wanted = 0;
        for (std::size_t k = 0; k < weights.size(); ++k) {
            const double product = double{weights[k]} * values[k];
            wanted += product;
            products += product * product;
        }
        const double got = double{data.sums[token * kLoopTaskRows + size_of(row)]};
        difference += (got - wanted) * (got - wanted);
    }
    return std::sqrt(difference / products);
}

}  // namespace

int loop_rounds(const LoopGeometry& geometry, int ctas, int cta) {
    const auto tasks = static_cast<int>(geometry.num_tasks());
    return cta < tasks ? ceil_div(tasks - cta, ctas) : 0;
}

Status judge_loop(const StreamLoop& loop, const LoopPlace& place, const std::vector<int>& rows,
                  double* error) {
    const LoopTask task =
        loop.geometry().task(static_cast<std::uint32_t>(place.round * place.ctas + place.cta));
    TaskData data;
    GCMOE_RETURN_IF_ERROR(read_task(loop, place, task, &data));
    *error = 0;
    for (const int row : rows) {
        const double own = row_error(data, task.chunks, row);
        if (std::isnan(*error) || own <= *error) continue;
        *error = own;  // larger, or NaN, which stays
    }
    return {};
}

}  // namespace gcmoe::cuda::measure
