#include "checkpoint/padded_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

constexpr int kPadMultiple = 128;

// What the views of one padded expert point into; holds the expert below for matrices that need no
// padding.
struct PaddedStorage {
    std::vector<std::unique_ptr<std::uint8_t[]>> bytes;
    std::vector<std::unique_ptr<float[]>> floats;
    std::shared_ptr<const void> below;
};

struct Extent {
    int rows;
    int cols;
};

// Copies a row-major (from.rows, from.cols) array into the upper left of a (to.rows, to.cols) one
// whose other elements are `fill`.
template <class T>
std::unique_ptr<T[]> widen(const T* values, Extent from, Extent to, T fill) {
    const auto to_cols = static_cast<std::size_t>(to.cols);
    const auto from_cols = static_cast<std::size_t>(from.cols);
    auto out = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(to.rows) * to_cols);
    for (int row = 0; row < to.rows; ++row) {
        T* out_row = out.get() + static_cast<std::size_t>(row) * to_cols;
        const std::size_t num_copied = row < from.rows ? from_cols : 0;
        if (num_copied > 0) std::memcpy(out_row, values, num_copied * sizeof(T));
        values += num_copied;
        std::fill(out_row + num_copied, out_row + to_cols, fill);
    }
    return out;
}

template <class View>
Status check_fits(const char* matrix, const View& view, Extent to) {
    if (view.rows <= to.rows && view.cols <= to.cols) return {};
    return {Code::kBadConfig, fmt::format("matrix {} of [{}, {}] is larger than its padded size "
                                          "[{}, {}]",
                                          matrix, view.rows, view.cols, to.rows, to.cols)};
}

void pad_mxfp4(Extent to, PaddedStorage* storage, Mxfp4View* view) {
    if (view->rows == to.rows && view->cols == to.cols) return;
    storage->bytes.push_back(widen<std::uint8_t>(view->nibbles, {view->rows, view->cols / 2},
                                                 {to.rows, to.cols / 2}, 0));
    view->nibbles = storage->bytes.back().get();
    storage->bytes.push_back(widen<std::uint8_t>(view->scales,
                                                 {view->rows, view->cols / kMxfp4Group},
                                                 {to.rows, to.cols / kMxfp4Group}, kPadScaleCode));
    view->scales = storage->bytes.back().get();
    view->rows = to.rows;
    view->cols = to.cols;
}

void pad_fp8(Extent to, PaddedStorage* storage, Fp8View* view) {
    if (view->rows == to.rows && view->cols == to.cols) return;
    const GridBlock block = grid_block(view->grid);
    const Extent from_scales = {ceil_div(view->rows, block.rows), ceil_div(view->cols, block.cols)};
    const Extent to_scales = {ceil_div(to.rows, block.rows), ceil_div(to.cols, block.cols)};
    storage->bytes.push_back(widen<std::uint8_t>(view->codes, {view->rows, view->cols}, to, 0));
    view->codes = storage->bytes.back().get();
    if (view->grid == ScaleGrid::kFp32Block128) {
        storage->floats.push_back(widen<float>(static_cast<const float*>(view->scales), from_scales,
                                               to_scales, kPadScale));
        view->scales = storage->floats.back().get();
    } else {
        storage->bytes.push_back(widen<std::uint8_t>(static_cast<const std::uint8_t*>(view->scales),
                                                     from_scales, to_scales, kPadScaleCode));
        view->scales = storage->bytes.back().get();
    }
    view->rows = to.rows;
    view->cols = to.cols;
}

void pad_bias(int num_rows, int padded_rows, PaddedStorage* storage, const float** bias) {
    if (*bias == nullptr || num_rows == padded_rows) return;
    storage->floats.push_back(widen<float>(*bias, {1, num_rows}, {1, padded_rows}, 0.0F));
    *bias = storage->floats.back().get();
}

class PaddedSource final : public WeightSource {
  public:
    PaddedSource(std::unique_ptr<WeightSource> below, const PaddedSizes& sizes)
        : below_(std::move(below)), sizes_(sizes) {}

    Status expert(int expert_idx, ExpertBytes* out) override {
        ExpertBytes bytes;
        GCMOE_RETURN_IF_ERROR(below_->expert(expert_idx, &bytes));
        const Extent in = {sizes_.inter, sizes_.hidden};
        const Extent back = {sizes_.hidden, sizes_.inter};
        GCMOE_RETURN_IF_ERROR(check_fits("gate", bytes.gate, in));
        GCMOE_RETURN_IF_ERROR(check_fits("up", bytes.up, in));
        GCMOE_RETURN_IF_ERROR(check_fits("down", bytes.down, back));
        const auto storage = std::make_shared<PaddedStorage>();
        storage->below = bytes.keep_alive;
        // Biases first: the views still tell the rows before padding.
        pad_bias(bytes.gate.rows, sizes_.inter, storage.get(), &bytes.gate_bias);
        pad_bias(bytes.up.rows, sizes_.inter, storage.get(), &bytes.up_bias);
        pad_bias(bytes.down.rows, sizes_.hidden, storage.get(), &bytes.down_bias);
        pad_mxfp4(in, storage.get(), &bytes.gate);
        pad_mxfp4(in, storage.get(), &bytes.up);
        pad_mxfp4(back, storage.get(), &bytes.down);
        bytes.keep_alive = storage;
        *out = std::move(bytes);
        return {};
    }

    Status shared_expert(SharedExpertBytes* out) override {
        SharedExpertBytes bytes;
        GCMOE_RETURN_IF_ERROR(below_->shared_expert(&bytes));
        const Extent in = {sizes_.shared_inter, sizes_.hidden};
        const Extent back = {sizes_.hidden, sizes_.shared_inter};
        GCMOE_RETURN_IF_ERROR(check_fits("shared gate", bytes.gate, in));
        GCMOE_RETURN_IF_ERROR(check_fits("shared up", bytes.up, in));
        GCMOE_RETURN_IF_ERROR(check_fits("shared down", bytes.down, back));
        const auto storage = std::make_shared<PaddedStorage>();
        storage->below = bytes.keep_alive;
        pad_fp8(in, storage.get(), &bytes.gate);
        pad_fp8(in, storage.get(), &bytes.up);
        pad_fp8(back, storage.get(), &bytes.down);
        bytes.keep_alive = storage;
        *out = std::move(bytes);
        return {};
    }

  private:
    std::unique_ptr<WeightSource> below_;
    PaddedSizes sizes_;
};

Status check_size(const char* field, int value, int smallest) {
    if (value >= smallest && value % kPadMultiple == 0) return {};
    return {Code::kBadConfig, fmt::format("padded {} = {} must be a multiple of {}, at least {}",
                                          field, value, kPadMultiple, smallest)};
}

}  // namespace

Status pad_source(std::unique_ptr<WeightSource> source, const PaddedSizes& sizes,
                  std::unique_ptr<WeightSource>* out) {
    GCMOE_RETURN_IF_ERROR(check_size("hidden", sizes.hidden, kPadMultiple));
    GCMOE_RETURN_IF_ERROR(check_size("inter", sizes.inter, kPadMultiple));
    GCMOE_RETURN_IF_ERROR(check_size("shared_inter", sizes.shared_inter, 0));
    *out = std::make_unique<PaddedSource>(std::move(source), sizes);
    return {};
}

}  // namespace gcmoe::checkpoint
