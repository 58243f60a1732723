#include "checkpoint/padded_source.hpp"

#include "checkpoint/generated_layer.hpp"
#include "expert_bytes.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

GeneratedLayer narrow_layer(ScaleGrid grid) {
    GeneratedLayer layer;
    layer.shape.hidden = 192;
    layer.shape.inter = 96;
    layer.shape.num_experts = 2;
    layer.shape.shared_inter = 160;
    layer.shape.has_bias = true;
    layer.biases = true;
    layer.shared_grid = grid;
    return layer;
}

std::unique_ptr<WeightSource> open_layer(const GeneratedLayer& layer) {
    std::unique_ptr<WeightSource> source;
    expect_ok(open_generated_layer(layer, &source));
    return source;
}

template <class T>
struct Array {
    const T* values;
    int rows;
    int cols;
};
using ByteArray = Array<std::uint8_t>;
using FloatArray = Array<float>;

// The upper left of a padded array is the original, the rest is fill.
template <class T>
void expect_widened(const Array<T>& padded, const Array<T>& original, T fill) {
    for (int row = 0; row < padded.rows; ++row) {
        for (int col = 0; col < padded.cols; ++col) {
            const bool is_inside = row < original.rows && col < original.cols;
            ASSERT_EQ(padded.values[row * padded.cols + col],
                      is_inside ? original.values[row * original.cols + col] : fill)
                << row << ' ' << col;
        }
    }
}

void expect_padded(const Mxfp4View& padded, const Mxfp4View& original, int rows, int cols) {
    ASSERT_EQ(padded.rows, rows);
    ASSERT_EQ(padded.cols, cols);
    const auto nibbles = [](const Mxfp4View& view) {
        return ByteArray{view.nibbles, view.rows, view.cols / 2};
    };
    const auto scales = [](const Mxfp4View& view) {
        return ByteArray{view.scales, view.rows, view.cols / 32};
    };
    expect_widened<std::uint8_t>(nibbles(padded), nibbles(original), 0);
    expect_widened<std::uint8_t>(scales(padded), scales(original), 127);
}

template <class T>
Array<T> scale_array(const Fp8View& view) {
    const GridBlock block = grid_block(view.grid);
    return {static_cast<const T*>(view.scales), ceil_div(view.rows, block.rows),
            ceil_div(view.cols, block.cols)};
}

void expect_padded(const Fp8View& padded, const Fp8View& original, int rows, int cols) {
    ASSERT_EQ(padded.rows, rows);
    ASSERT_EQ(padded.cols, cols);
    ASSERT_EQ(padded.grid, original.grid);
    expect_widened<std::uint8_t>(ByteArray{padded.codes, rows, cols},
                                 ByteArray{original.codes, original.rows, original.cols}, 0);
    if (padded.grid == ScaleGrid::kFp32Block128) {
        expect_widened<float>(scale_array<float>(padded), scale_array<float>(original), 1.0F);
    } else {
        expect_widened<std::uint8_t>(scale_array<std::uint8_t>(padded),
                                     scale_array<std::uint8_t>(original), 127);
    }
}

TEST(PaddedSource, AppendsZeros) {
    for (const ScaleGrid grid : {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                 ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32}) {
        const GeneratedLayer layer = narrow_layer(grid);
        std::unique_ptr<WeightSource> padded;
        expect_ok(pad_source(open_layer(layer), {384, 128, 256}, &padded));
        const auto original = open_layer(layer);
        ExpertBytes wide;
        ExpertBytes narrow;
        expect_ok(padded->expert(1, &wide));
        expect_ok(original->expert(1, &narrow));
        expect_padded(wide.gate, narrow.gate, 128, 384);
        expect_padded(wide.up, narrow.up, 128, 384);
        expect_padded(wide.down, narrow.down, 384, 128);
        expect_widened<float>(FloatArray{wide.gate_bias, 1, 128},
                              FloatArray{narrow.gate_bias, 1, 96}, 0.0F);
        expect_widened<float>(FloatArray{wide.up_bias, 1, 128}, FloatArray{narrow.up_bias, 1, 96},
                              0.0F);
        expect_widened<float>(FloatArray{wide.down_bias, 1, 384},
                              FloatArray{narrow.down_bias, 1, 192}, 0.0F);
        SharedExpertBytes wide_shared;
        SharedExpertBytes narrow_shared;
        expect_ok(padded->shared_expert(&wide_shared));
        expect_ok(original->shared_expert(&narrow_shared));
        expect_padded(wide_shared.gate, narrow_shared.gate, 256, 384);
        expect_padded(wide_shared.up, narrow_shared.up, 256, 384);
        expect_padded(wide_shared.down, narrow_shared.down, 384, 256);
    }
}

TEST(PaddedSource, HandsThroughWhatFits) {
    GeneratedLayer layer = narrow_layer(ScaleGrid::kUe8m0Block32);
    layer.shape.hidden = 256;
    layer.shape.inter = 128;
    layer.shape.shared_inter = 0;
    std::unique_ptr<WeightSource> padded;
    expect_ok(pad_source(open_layer(layer), {256, 128, 0}, &padded));
    ExpertBytes wide;
    ExpertBytes narrow;
    expect_ok(padded->expert(0, &wide));
    expect_ok(open_layer(layer)->expert(0, &narrow));
    expect_same(wide, narrow);
    SharedExpertBytes shared;
    expect_error(padded->shared_expert(&shared), Code::kBadConfig, {"no shared expert"});
    expect_error(padded->expert(2, &wide), Code::kBadIndex, {"expert 2"});
}

TEST(PaddedSource, RefusesBadSizes) {
    const GeneratedLayer layer = narrow_layer(ScaleGrid::kUe8m0Block32);
    std::unique_ptr<WeightSource> padded;
    expect_error(pad_source(open_layer(layer), {200, 128, 0}, &padded), Code::kBadConfig,
                 {"hidden = 200", "multiple of 128"});
    expect_error(pad_source(open_layer(layer), {256, 0, 0}, &padded), Code::kBadConfig,
                 {"inter = 0"});
    expect_ok(pad_source(open_layer(layer), {128, 128, 128}, &padded));
    ExpertBytes bytes;
    expect_error(padded->expert(0, &bytes), Code::kBadConfig,
                 {"matrix gate of [96, 192]", "[128, 128]"});
    SharedExpertBytes shared;
    expect_error(padded->shared_expert(&shared), Code::kBadConfig, {"shared gate of [160, 192]"});
}

}  // namespace
}  // namespace gcmoe::checkpoint
