// The writing half of run_inputs.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/math.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "console.hpp"
#include "held_signals.hpp"
#include "run_inputs.hpp"

namespace gcmoe::cli {
namespace {

using checkpoint::Dtype;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorSpec;

constexpr int kChunk = 128;
constexpr int kUe8m0Group = 32;

// A tensor with its bytes.
struct Tensor {
    TensorSpec spec;
    std::vector<std::uint8_t> bytes;
};

// The tensors of one file, written with the widest elements first so that each stands aligned.
Status write_tensors(const std::string& path, std::vector<Tensor> tensors) {
    std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
        return checkpoint::dtype_bytes(a.spec.dtype) > checkpoint::dtype_bytes(b.spec.dtype);
    });
    std::vector<TensorSpec> specs;
    for (const Tensor& tensor : tensors) specs.push_back(tensor.spec);
    const HeldSignals held;  // the file is whole or not there
    std::unique_ptr<SafetensorsWriter> writer;
    GCMOE_RETURN_IF_ERROR(SafetensorsWriter::create(path, specs, {}, &writer));
    for (const Tensor& tensor : tensors) {
        GCMOE_RETURN_IF_ERROR(
            writer->write(tensor.spec.name, tensor.bytes.data(), tensor.bytes.size()));
    }
    return writer->finish();
}

// The first `cols` of `stride` elements of every row.
template <class T>
std::vector<std::uint8_t> rows_of(const std::vector<T>& values, int num_rows, int stride,
                                  int cols) {
    const auto row_bytes = static_cast<std::size_t>(cols) * sizeof(T);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(num_rows) * row_bytes);
    for (int row = 0; row < num_rows && row_bytes > 0; ++row) {
        std::memcpy(
            bytes.data() + static_cast<std::size_t>(row) * row_bytes,
            values.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(stride),
            row_bytes);
    }
    return bytes;
}

Tensor scale_tensor(const std::string& prefix, const Shape& shape, int hidden,
                    const RankInputs& inputs) {
    const int words = shape.hidden / kChunk;
    if (shape.activation_scale == ActivationScale::kFp32K128) {
        const int cols = ceil_div(hidden, kChunk);
        return {{prefix + "x_scale", Dtype::kF32, {inputs.num_tokens, cols}},
                rows_of(inputs.x_scale, inputs.num_tokens, words, cols)};
    }
    const int cols = ceil_div(hidden, kUe8m0Group);
    Tensor tensor{{prefix + "x_scale", Dtype::kF8E8m0, {inputs.num_tokens, cols}}, {}};
    for (int row = 0; row < inputs.num_tokens; ++row) {
        for (int col = 0; col < cols; ++col) {
            const auto idx = static_cast<std::size_t>(row * words + col / 4);
            tensor.bytes.push_back(
                static_cast<std::uint8_t>(inputs.x_scale[idx] >> (8 * (col % 4))));
        }
    }
    return tensor;
}

Tensor id_tensor(const std::string& prefix, int topk, IndexType index_type,
                 const RankInputs& inputs) {
    if (index_type == IndexType::kInt64) {
        return {{prefix + "topk_idx", Dtype::kI64, {inputs.num_tokens, topk}},
                rows_of(inputs.topk_idx, inputs.num_tokens, topk, topk)};
    }
    std::vector<std::int32_t> narrow;
    for (const std::int64_t id : inputs.topk_idx) {
        narrow.push_back(id < 0 ? -1 : static_cast<std::int32_t>(id));
    }
    return {{prefix + "topk_idx", Dtype::kI32, {inputs.num_tokens, topk}},
            rows_of(narrow, inputs.num_tokens, topk, topk)};
}

Status named(const char* option, const std::string& path, const Status& status) {
    return status.ok() ? status : option_error(option, path, status.message());
}

}  // namespace

Status save_inputs(const std::string& path, const Shape& shape, int hidden, IndexType index_type,
                   const std::vector<RankInputs>& inputs) {
    std::vector<Tensor> tensors;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        const RankInputs& rows = inputs[rank];
        const std::string prefix = fmt::format("rank{}.", rank);
        tensors.push_back(id_tensor(prefix, shape.topk, index_type, rows));
        tensors.push_back({{prefix + "topk_weights", Dtype::kF32, {rows.num_tokens, shape.topk}},
                           rows_of(rows.topk_weight, rows.num_tokens, shape.topk, shape.topk)});
        tensors.push_back(scale_tensor(prefix, shape, hidden, rows));
        tensors.push_back({{prefix + "x", Dtype::kF8E4m3, {rows.num_tokens, hidden}},
                           rows_of(rows.x, rows.num_tokens, shape.hidden, hidden)});
    }
    return named("--save-inputs", path, write_tensors(path, std::move(tensors)));
}

Status save_outputs(const std::string& path, const Shape& shape, int hidden,
                    const std::vector<RankOutput>& outputs) {
    std::vector<Tensor> tensors;
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        const RankOutput& rows = outputs[rank];
        tensors.push_back({{fmt::format("rank{}.y", rank), Dtype::kBf16, {rows.num_tokens, hidden}},
                           rows_of(rows.y, rows.num_tokens, shape.hidden, hidden)});
    }
    return named("--out", path, write_tensors(path, std::move(tensors)));
}

}  // namespace gcmoe::cli
