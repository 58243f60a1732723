#include "run_inputs.hpp"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "base/math.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/safetensors_file.hpp"
#include "console.hpp"
#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "numerics/quantise.hpp"
#include "protocol/words.hpp"

namespace gcmoe::cli {
namespace {

using checkpoint::Dtype;
using checkpoint::SafetensorsFile;
using checkpoint::StoredTensor;

constexpr int kChunk = 128;      // columns of one scale word
constexpr int kUe8m0Group = 32;  // columns of one UE8M0 code

Status input_error(const std::string& path, const std::string& problem) {
    return option_error("--inputs", path, problem);
}

// Every tensor of the file is one that a rank reads: a rank that lost its x, or one past a gap,
// would be left out in silence otherwise.
Status check_names(const SafetensorsFile& file, int num_ranks) {
    for (const checkpoint::TensorRecord& tensor : file.tensors()) {
        bool known = false;
        for (const char* name : {"x", "x_scale", "topk_idx", "topk_weights"}) {
            if (num_ranks == 0) known = known || tensor.name == name;
            for (int rank = 0; rank < num_ranks; ++rank) {
                known = known || tensor.name == fmt::format("rank{}.{}", rank, name);
            }
        }
        if (known) continue;
        const std::string ranks =
            num_ranks == 0
                ? "x, x_scale, topk_idx, topk_weights without a rank"
                : fmt::format("ranks 0 to {} (rank{}.x is missing)", num_ranks - 1, num_ranks);
        return input_error(file.path(), fmt::format("tensor {} is not read: the file is for {}",
                                                    checkpoint::quote(tensor.name), ranks));
    }
    return {};
}

// num_ranks: how many ranks the file names; 0 = tensors without a rank prefix.
Status open_inputs(const std::string& path, std::unique_ptr<SafetensorsFile>* out, int* num_ranks) {
    if (Status status = SafetensorsFile::open(path, out); !status.ok()) {
        return input_error(path, status.message());
    }
    *num_ranks = 0;
    while ((*out)->contains(fmt::format("rank{}.x", *num_ranks))) ++*num_ranks;
    if (*num_ranks == 0 && !(*out)->contains("x")) {
        return input_error(path, "there is neither a tensor 'rank0.x' nor a tensor 'x'");
    }
    return check_names(**out, *num_ranks);
}

std::string shape_text(const StoredTensor& tensor) {
    return fmt::format("tensor {}: {} {}", checkpoint::quote(tensor.name),
                       checkpoint::dtype_name(tensor.dtype), checkpoint::shape_text(tensor.shape));
}

template <class T>
T element(const std::vector<std::uint8_t>& bytes, std::size_t idx) {
    T value;
    std::memcpy(&value, bytes.data() + idx * sizeof(T), sizeof(T));
    return value;
}

// Rows [first, first + count) of the file's tensors are one rank's tokens.
struct Rows {
    std::string prefix;  // "rank3." or ""
    std::int64_t first = 0;
    std::int64_t count = 0;
};

class Reader {
  public:
    Reader(const SafetensorsFile& file, const Shape& shape, int hidden)
        : file_(file), shape_(shape), hidden_(hidden) {}

    Status read(const Rows& rows, RankInputs* out) const {
        out->num_tokens = static_cast<int>(rows.count);
        out->capacity = out->num_tokens;
        const auto tokens = static_cast<std::size_t>(rows.count);
        out->x.assign(tokens * static_cast<std::size_t>(shape_.hidden), 0);
        out->x_scale.assign(tokens * static_cast<std::size_t>(shape_.hidden / kChunk), 0);
        GCMOE_RETURN_IF_ERROR(read_x(rows, out));
        GCMOE_RETURN_IF_ERROR(read_ids(rows, out));
        return read_weights(rows, out);
    }

    // Rows of <prefix>x, which has `hidden` columns. Judged before anything is allocated: a tensor
    // without columns may claim any number of rows.
    Status count_rows(const std::string& prefix, std::int64_t* out) const {
        StoredTensor x;
        GCMOE_RETURN_IF_ERROR(find(prefix + "x", &x));
        if (x.shape.size() != 2) return fail(x, "needs two dimensions, (tokens, hidden)");
        const std::int64_t rows = x.shape[0];
        if (x.shape[1] != hidden_) {
            return fail(x, fmt::format("needs [{}, {}], (tokens, hidden)", rows, hidden_));
        }
        const std::int64_t ranks = prefix.empty() ? shape_.num_ranks : 1;  // who share the rows
        if (rows < 0 || rows / ranks + (rows % ranks != 0 ? 1 : 0) > protocol::kMaxCount) {
            return fail(x, fmt::format("{} tokens on {} are more than {} a rank", rows,
                                       counted(static_cast<std::uint64_t>(ranks), "rank"),
                                       protocol::kMaxCount));
        }
        *out = rows;
        return {};
    }

  private:
    Status find(const std::string& name, StoredTensor* out) const {
        if (Status status = file_.tensor(name, out); !status.ok()) {
            return input_error(file_.path(),
                               fmt::format("tensor {} is missing", checkpoint::quote(name)));
        }
        return {};
    }

    [[nodiscard]] Status fail(const StoredTensor& tensor, const std::string& need) const {
        return input_error(file_.path(), fmt::format("{}: {}", shape_text(tensor), need));
    }

    // One rank's rows of a tensor that has `cols` columns.
    Status read_rows(const StoredTensor& tensor, const Rows& rows, std::int64_t cols,
                     std::vector<std::uint8_t>* out) const {
        const auto row_bytes =
            static_cast<std::uint64_t>(cols) * checkpoint::dtype_bytes(tensor.dtype);
        out->resize(static_cast<std::uint64_t>(rows.count) * row_bytes);
        const Status status = tensor.read(static_cast<std::uint64_t>(rows.first) * row_bytes,
                                          out->size(), out->data());
        return status.ok() ? status : input_error(file_.path(), status.message());
    }

    // The tensor has `cols` columns and a row for every token of the file's x.
    Status check_shape(const StoredTensor& tensor, const Rows& rows, std::int64_t cols,
                       const char* what) const {
        std::int64_t total = 0;
        GCMOE_RETURN_IF_ERROR(count_rows(rows.prefix, &total));
        if (tensor.shape == std::vector<std::int64_t>{total, cols}) return {};
        return fail(tensor, fmt::format("needs [{}, {}], (tokens, {})", total, cols, what));
    }

    Status read_x(const Rows& rows, RankInputs* out) const {
        StoredTensor x;
        GCMOE_RETURN_IF_ERROR(find(rows.prefix + "x", &x));
        GCMOE_RETURN_IF_ERROR(check_shape(x, rows, hidden_, "hidden"));
        std::vector<std::uint8_t> bytes;
        if (x.dtype == Dtype::kF8E4m3) {
            GCMOE_RETURN_IF_ERROR(read_rows(x, rows, hidden_, &bytes));
            for (std::int64_t row = 0; row < rows.count; ++row) {
                std::memcpy(out->x.data() + row * shape_.hidden, bytes.data() + row * hidden_,
                            static_cast<std::size_t>(hidden_));
            }
            return read_scales(rows, out);
        }
        if (x.dtype != Dtype::kBf16 && x.dtype != Dtype::kF32) {
            return fail(x, "needs F8_E4M3, BF16 or F32");
        }
        if (file_.contains(rows.prefix + "x_scale")) {
            return fail(
                x, fmt::format("comes with {}x_scale, which belongs to F8_E4M3 only", rows.prefix));
        }
        GCMOE_RETURN_IF_ERROR(read_rows(x, rows, hidden_, &bytes));
        std::vector<float> values(static_cast<std::size_t>(shape_.hidden), 0.0F);
        for (std::int64_t row = 0; row < rows.count; ++row) {
            const auto begin = static_cast<std::size_t>(row * hidden_);
            for (std::size_t col = 0; col < static_cast<std::size_t>(hidden_); ++col) {
                const std::size_t idx = begin + col;
                values[col] = x.dtype == Dtype::kF32
                                  ? element<float>(bytes, idx)
                                  : numerics::bf16_to_float(element<std::uint16_t>(bytes, idx));
            }
            quantise_row(values, row, out);
        }
        return {};
    }

    void quantise_row(const std::vector<float>& values, std::int64_t row, RankInputs* out) const {
        std::uint8_t* codes = out->x.data() + row * shape_.hidden;
        std::uint32_t* words = out->x_scale.data() + row * (shape_.hidden / kChunk);
        for (int chunk = 0; chunk < shape_.hidden / kChunk; ++chunk) {
            const int begin = chunk * kChunk;
            if (shape_.activation_scale == ActivationScale::kFp32K128) {
                float scale = 0.0F;
                numerics::quantise_e4m3_fp32(values.data() + begin, kChunk, codes + begin, &scale);
                words[chunk] = numerics::float_to_bits(scale);
                continue;
            }
            for (int group = 0; group < kChunk / kUe8m0Group; ++group) {
                const int at = begin + group * kUe8m0Group;
                std::uint8_t code = 0;
                numerics::quantise_e4m3_ue8m0(values.data() + at, kUe8m0Group, codes + at, &code);
                words[chunk] |= std::uint32_t{code} << (8 * group);
            }
        }
    }

    Status read_scales(const Rows& rows, RankInputs* out) const {
        StoredTensor scale;
        GCMOE_RETURN_IF_ERROR(find(rows.prefix + "x_scale", &scale));
        if (shape_.activation_scale == ActivationScale::kUe8m0K32) {
            return read_ue8m0_scales(scale, rows, out);
        }
        const int cols = ceil_div(hidden_, kChunk);
        GCMOE_RETURN_IF_ERROR(check_shape(scale, rows, cols, "ceil(hidden / 128)"));
        if (scale.dtype != Dtype::kF32) {
            return fail(scale, "needs F32 (or --activation-scale ue8m0-k32)");
        }
        std::vector<std::uint8_t> bytes;
        GCMOE_RETURN_IF_ERROR(read_rows(scale, rows, cols, &bytes));
        const std::size_t row_bytes = size_of(cols) * sizeof(float);
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows.count); ++row) {
            std::memcpy(out->x_scale.data() + row * size_of(shape_.hidden / kChunk),
                        bytes.data() + row * row_bytes, row_bytes);
        }
        return {};
    }

    Status read_ue8m0_scales(const StoredTensor& scale, const Rows& rows, RankInputs* out) const {
        const int cols = ceil_div(hidden_, kUe8m0Group);
        GCMOE_RETURN_IF_ERROR(check_shape(scale, rows, cols, "hidden / 32"));
        const bool floats = scale.dtype == Dtype::kF32;
        if (!floats && scale.dtype != Dtype::kF8E8m0 && scale.dtype != Dtype::kU8) {
            return fail(scale, "needs F8_E8M0, U8 or F32 with --activation-scale ue8m0-k32");
        }
        std::vector<std::uint8_t> bytes;
        GCMOE_RETURN_IF_ERROR(read_rows(scale, rows, cols, &bytes));
        for (std::int64_t row = 0; row < rows.count; ++row) {
            std::uint32_t* words = out->x_scale.data() + row * (shape_.hidden / kChunk);
            for (int col = 0; col < cols; ++col) {
                const auto idx = static_cast<std::size_t>(row * cols + col);
                std::uint32_t code = floats ? 0 : element<std::uint8_t>(bytes, idx);
                if (floats && !ue8m0_code(element<float>(bytes, idx), &code)) {
                    return fail(scale,
                                fmt::format("row {}, column {}: {} is not a power of two",
                                            rows.first + row, col, element<float>(bytes, idx)));
                }
                words[col / 4] |= code << (8 * (col % 4));
            }
        }
        return {};
    }

    // The code of a power of two; false for anything with a mantissa (never rounded silently).
    static bool ue8m0_code(float value, std::uint32_t* code) {
        const std::uint32_t bits = numerics::float_to_bits(value);
        *code = bits >> 23;
        return (bits & 0x807FFFFFU) == 0 && *code != 0 && *code != 255;
    }

    Status read_ids(const Rows& rows, RankInputs* out) const {
        StoredTensor ids;
        GCMOE_RETURN_IF_ERROR(find(rows.prefix + "topk_idx", &ids));
        GCMOE_RETURN_IF_ERROR(check_shape(ids, rows, shape_.topk, "topk"));
        if (ids.dtype != Dtype::kI32 && ids.dtype != Dtype::kI64) {
            return fail(ids, "needs I32 or I64");
        }
        std::vector<std::uint8_t> bytes;
        GCMOE_RETURN_IF_ERROR(read_rows(ids, rows, shape_.topk, &bytes));
        const auto begin = static_cast<std::size_t>(rows.first * shape_.topk);
        const auto count = static_cast<std::size_t>(rows.count * shape_.topk);
        out->topk_idx.resize(count);
        for (std::size_t slot = 0; slot < count; ++slot) {
            const std::int64_t id = ids.dtype == Dtype::kI64 ? element<std::int64_t>(bytes, slot)
                                                             : element<std::int32_t>(bytes, slot);
            if (id >= shape_.num_experts) return bad_index(ids, begin + slot, id);
            out->topk_idx[slot] = id;
        }
        return {};
    }

    [[nodiscard]] Status bad_index(const StoredTensor& ids, std::size_t slot,
                                   std::int64_t id) const {
        const auto topk = static_cast<std::size_t>(shape_.topk);
        const Status status = input_error(
            file_.path(),
            fmt::format(
                "tensor {}: token {}, slot {}: expert {} is not in 0..{} (negative = unused)",
                checkpoint::quote(ids.name), slot / topk, slot % topk, id, shape_.num_experts - 1));
        return {Code::kBadIndex, status.message()};
    }

    Status read_weights(const Rows& rows, RankInputs* out) const {
        StoredTensor weights;
        GCMOE_RETURN_IF_ERROR(find(rows.prefix + "topk_weights", &weights));
        GCMOE_RETURN_IF_ERROR(check_shape(weights, rows, shape_.topk, "topk"));
        if (weights.dtype != Dtype::kF32) return fail(weights, "needs F32");
        std::vector<std::uint8_t> bytes;
        GCMOE_RETURN_IF_ERROR(read_rows(weights, rows, shape_.topk, &bytes));
        out->topk_weight.resize(static_cast<std::size_t>(rows.count * shape_.topk));
        for (std::size_t slot = 0; slot < out->topk_weight.size(); ++slot) {
            out->topk_weight[slot] = element<float>(bytes, slot);
        }
        return {};
    }

    const SafetensorsFile& file_;
    const Shape& shape_;
    int hidden_;
};

}  // namespace

Status count_input_ranks(const std::string& path, int* num_ranks) {
    std::unique_ptr<SafetensorsFile> file;
    return open_inputs(path, &file, num_ranks);
}

Status load_inputs(const std::string& path, const Shape& shape, int hidden,
                   std::vector<RankInputs>* out) {
    std::unique_ptr<SafetensorsFile> file;
    int named_ranks = 0;
    GCMOE_RETURN_IF_ERROR(open_inputs(path, &file, &named_ranks));
    if (named_ranks != 0 && named_ranks != shape.num_ranks) {
        return input_error(
            path,
            fmt::format("holds the inputs of {}, but --ranks is {}",
                        counted(static_cast<std::uint64_t>(named_ranks), "rank"), shape.num_ranks));
    }
    const Reader reader(*file, shape, hidden);
    std::int64_t total = 0;
    if (named_ranks == 0) GCMOE_RETURN_IF_ERROR(reader.count_rows("", &total));
    const std::int64_t ranks = shape.num_ranks;
    std::int64_t first = 0;
    out->resize(static_cast<std::size_t>(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        Rows rows{"", first, total / ranks + (rank < total % ranks ? 1 : 0)};
        if (named_ranks != 0) {
            rows = {fmt::format("rank{}.", rank), 0, 0};
            GCMOE_RETURN_IF_ERROR(reader.count_rows(rows.prefix, &rows.count));
        }
        first += rows.count;
        GCMOE_RETURN_IF_ERROR(reader.read(rows, &(*out)[static_cast<std::size_t>(rank)]));
    }
    return {};
}

}  // namespace gcmoe::cli
