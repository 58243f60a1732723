// Every layout: synth writes it, the reader gives the same bytes.
#include <cmath>

#include "checkpoint/generated_stored.hpp"
#include "checkpoint/models.hpp"
#include "checkpoint/open_layer.hpp"
#include "checkpoint/quantised_source.hpp"
#include "checkpoint/synth.hpp"
#include "expert_bytes.hpp"
#include "layout_cases.hpp"
#include "numerics/mxfp4.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr CheckpointFormat kAllFormats[] = {
    CheckpointFormat::kDeepseekV4, CheckpointFormat::kDeepseekV41, CheckpointFormat::kBlockFp8,
    CheckpointFormat::kBf16,       CheckpointFormat::kGptOss,      CheckpointFormat::kW13GateFirst,
    CheckpointFormat::kW13UpFirst,
};

// The MXFP4 bytes that a stored matrix must become, by the quantiser of numerics.
void expect_quantised(const StoredView& stored, const Mxfp4View& read) {
    ASSERT_EQ(read.rows, rows_of(stored));
    ASSERT_EQ(read.cols, cols_of(stored));
    if (const auto* view = std::get_if<Mxfp4View>(&stored)) {
        expect_same(*view, read);
        return;
    }
    std::vector<float> values(static_cast<std::size_t>(read.cols));
    for (int row = 0; row < read.rows; ++row) {
        decode_row(stored, row, values.data());
        for (int group = 0; group < read.cols / 32; ++group) {
            std::uint8_t nibbles[16];
            std::uint8_t code = 0;
            numerics::quantise_mxfp4_group(values.data() + group * 32, nibbles, &code);
            ASSERT_EQ(code, read.scales[row * (read.cols / 32) + group]);
            ASSERT_EQ(bytes_of(nibbles, 16),
                      bytes_of(read.nibbles + row * (read.cols / 2) + group * 16, 16));
        }
    }
}

void expect_experts(const SynthOptions& options, WeightSource* source) {
    std::unique_ptr<StoredSource> generated;
    expect_ok(open_generated_stored(options.layer, routed_format_of(options.format), &generated));
    for (int expert_idx = 0; expert_idx < options.layer.shape.num_experts; ++expert_idx) {
        ExpertBytes read;
        StoredExpert made;
        expect_ok(source->expert(expert_idx, &read));
        expect_ok(generated->expert(expert_idx, &made));
        expect_quantised(made.gate, read.gate);
        expect_quantised(made.up, read.up);
        expect_quantised(made.down, read.down);
        EXPECT_EQ(bias_bytes(made.gate_bias, 160), bias_bytes(read.gate_bias, 160));
        EXPECT_EQ(bias_bytes(made.up_bias, 160), bias_bytes(read.up_bias, 160));
        EXPECT_EQ(bias_bytes(made.down_bias, 192), bias_bytes(read.down_bias, 192));
    }
    ExpertBytes none;
    expect_error(source->expert(options.layer.shape.num_experts, &none), Code::kBadIndex, {"3"});
    expect_error(source->expert(-1, &none), Code::kBadIndex, {"-1"});
}

TEST(Layouts, EachReadsBackWhatSynthWrote) {
    for (const CheckpointFormat format : kAllFormats) {
        SCOPED_TRACE(static_cast<int>(format));
        const TempFolder folder;
        SynthOptions options = options_of(folder.path(), format);
        options.shard_bytes = 50000;
        write(options);
        OpenedLayer opened;
        expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
        ASSERT_NE(opened.source, nullptr);
        const LayerInfo& info = opened.info;
        EXPECT_EQ(info.layout, layout_of(format));
        EXPECT_EQ(info.routed_format, routed_format_of(format));
        EXPECT_EQ(info.hidden, 192);
        EXPECT_EQ(info.inter, 160);
        EXPECT_EQ(info.num_experts, 3);
        EXPECT_EQ(info.topk, 2);
        EXPECT_EQ(info.shared_inter, options.layer.shape.shared_inter);
        EXPECT_EQ(info.has_bias, options.layer.biases);
        const Activation& activation = options.layer.shape.activation;
        EXPECT_EQ(info.clamp, activation.clamp);
        EXPECT_EQ(info.alpha, activation.alpha);
        EXPECT_EQ(info.beta, activation.beta);
        EXPECT_EQ(opened.quantised != nullptr, read_options_of(options).quantise);
        expect_experts(options, opened.source.get());
    }
}

// The four grids, of every layout with FP8 shared experts.
TEST(Layouts, SharedExpertsInAllGrids) {
    for (const CheckpointFormat format : kAllFormats) {
        if (format == CheckpointFormat::kGptOss || format == CheckpointFormat::kBf16) continue;
        for (const ScaleGrid grid : {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                     ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32}) {
            SCOPED_TRACE(testing::Message()
                         << static_cast<int>(format) << " " << static_cast<int>(grid));
            const TempFolder folder;
            SynthOptions options = options_of(folder.path(), format);
            options.layer.shared_grid = grid;
            write(options);
            OpenedLayer opened;
            expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
            ASSERT_NE(opened.source, nullptr);
            EXPECT_EQ(opened.info.shared_grid, grid);
            std::unique_ptr<WeightSource> generated;
            expect_ok(open_generated_layer(options.layer, &generated));
            SharedExpertBytes read;
            SharedExpertBytes made;
            expect_ok(opened.source->shared_expert(&read));
            expect_ok(generated->shared_expert(&made));
            expect_same(read, made);
            expect_experts(options, opened.source.get());  // block FP8: routed in this grid too
        }
    }
}

TEST(Layouts, Bf16SharedExpertsBecomeFp8) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.path(), CheckpointFormat::kBf16);
    write(options);
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
    EXPECT_TRUE(opened.info.shared_is_bf16);
    SharedExpertBytes read;
    expect_ok(opened.source->shared_expert(&read));
    EXPECT_EQ(read.down.grid, ScaleGrid::kFp32Block128);
    std::unique_ptr<StoredSource> generated;
    expect_ok(open_generated_stored(options.layer, RoutedFormat::kBf16, &generated));
    StoredExpert made;
    expect_ok(generated->shared_expert(&made));
    // The last block of down, (rows 128..191, columns 256..319), by hand.
    std::vector<float> values(320);
    float amax = 0.0F;
    for (int row = 128; row < 192; ++row) {
        decode_row(made.down, row, values.data());
        for (int col = 256; col < 320; ++col) amax = std::max(amax, std::abs(values[col]));
    }
    EXPECT_EQ(static_cast<const float*>(read.down.scales)[5], amax / 448.0F);
    for (int row = 128; row < 192; ++row) {
        decode_row(made.down, row, values.data());
        for (int col = 256; col < 320; ++col) {
            ASSERT_EQ(read.down.codes[row * 320 + col],
                      numerics::e4m3_from_float(values[col] * (448.0F / amax)));
        }
    }
    EXPECT_EQ(opened.quantised->shared[2].num_matrices, 1);
    EXPECT_GT(opened.quantised->shared[2].relative_l2(), 0.0);
    EXPECT_LT(opened.quantised->shared[2].relative_l2(), 0.04);
}

TEST(Layouts, QuantisingReportsItsErrorOncePerExpert) {
    for (const CheckpointFormat format : {CheckpointFormat::kBlockFp8, CheckpointFormat::kBf16}) {
        const TempFolder folder;
        const SynthOptions options = options_of(folder.path(), format);
        write(options);
        OpenedLayer opened;
        expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
        EXPECT_TRUE(opened.quantised->is_empty());
        ExpertBytes bytes;
        for (const int expert_idx : {1, 0, 1}) expect_ok(opened.source->expert(expert_idx, &bytes));
        std::unique_ptr<StoredSource> generated;
        expect_ok(open_generated_stored(options.layer, routed_format_of(format), &generated));
        double error = 0.0;
        double value = 0.0;
        double largest = 0.0;
        for (const int expert_idx : {0, 1}) {
            StoredExpert stored;
            expect_ok(generated->expert(expert_idx, &stored));
            expect_ok(opened.source->expert(expert_idx, &bytes));
            std::vector<float> before(160);
            std::vector<float> after(160);
            for (int row = 0; row < 192; ++row) {
                decode_row(stored.down, row, before.data());
                decode_row(bytes.down, row, after.data());
                for (std::size_t col = 0; col < before.size(); ++col) {
                    const double difference = static_cast<double>(after[col]) - before[col];
                    error += difference * difference;
                    value += static_cast<double>(before[col]) * before[col];
                    largest = std::max(largest, std::abs(difference));
                }
            }
        }
        const QuantiseError& down = opened.quantised->routed[2];
        EXPECT_EQ(down.num_matrices, 2);
        EXPECT_NEAR(down.relative_l2(), std::sqrt(error / value), 1e-12);
        EXPECT_EQ(down.largest_error, largest);
        EXPECT_GT(down.relative_l2(), 0.05);  // FP4 of normal weights: about a tenth
        EXPECT_LT(down.relative_l2(), 0.15);
    }
}

TEST(Layouts, OrderOfGateAndUp) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("w13"), CheckpointFormat::kW13GateFirst);
    write(options);
    OpenedLayer opened;
    expect_error(open_checkpoint_layer(options.folder, {4, {}, false}, &opened), Code::kBadInput,
                 {"order that no file tells", "'model.layers.4.mlp.experts.w13_weight'"});
    expect_ok(open_checkpoint_layer(options.folder, {4, GateUpOrder::kW1GateW3Up, false}, &opened));
    OpenedLayer swapped;
    expect_ok(
        open_checkpoint_layer(options.folder, {4, GateUpOrder::kW1UpW3Gate, false}, &swapped));
    ExpertBytes straight;
    ExpertBytes crossed;
    expect_ok(opened.source->expert(2, &straight));
    expect_ok(swapped.source->expert(2, &crossed));
    expect_same(straight.gate, crossed.up);
    expect_same(straight.up, crossed.gate);
    expect_same(straight.down, crossed.down);
    EXPECT_NE(nibbles_of(straight.gate), nibbles_of(straight.up));
    for (const CheckpointFormat format : {CheckpointFormat::kGptOss, CheckpointFormat::kBlockFp8}) {
        const SynthOptions named =
            options_of(folder.file(std::to_string(static_cast<int>(format))), format);
        write(named);
        expect_error(
            open_checkpoint_layer(named.folder, {4, GateUpOrder::kW1GateW3Up, true}, &opened),
            Code::kBadInput, {"an order of gate and up was given", layout_name(layout_of(format))});
    }
}

// Renames every tensor: words[i].first to words[i].second, each where it occurs.
void rename(const std::string& folder,
            const std::vector<std::pair<std::string, std::string>>& words) {
    Tensors renamed;
    for (auto [name, tensor] : read_tensors(folder)) {
        std::string target = name;
        for (const auto& [from, to] : words) {
            const std::size_t at = target.find(from);
            if (at != std::string::npos) target.replace(at, from.size(), to);
        }
        renamed[target] = tensor;
    }
    write_tensors(folder, renamed);
}

// V4-Flash-Base: block FP8 under DeepSeek's names.
TEST(Layouts, BlockFp8WithDeepseekNames) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.path(), CheckpointFormat::kBlockFp8);
    write(options);
    rename(folder.path(), {{"model.layers.4.mlp.", "layers.4.ffn."},
                           {"gate_proj", "w1"},
                           {"up_proj", "w3"},
                           {"down_proj", "w2"},
                           {"weight_scale_inv", "scale"}});
    write_bytes(folder.file("config.json"), R"({"expert_dtype": "fp8"})");
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), {4, {}, true}, &opened));
    EXPECT_EQ(opened.info.layout, TensorLayout::kDeepseek);
    EXPECT_EQ(opened.info.routed_format, RoutedFormat::kFp8);
    EXPECT_EQ(opened.info.shared_grid, ScaleGrid::kFp32Block128);
    expect_experts(options, opened.source.get());
    write_bytes(folder.file("config.json"), R"({"expert_dtype": "fp4"})");
    expect_error(open_checkpoint_layer(folder.path(), {4, {}, true}, &opened), Code::kBadCheckpoint,
                 {"expert_dtype = 'fp4', needs 'fp8'"});
}

TEST(Layouts, EveryPrefixIsFound) {
    for (const char* outer : {"", "model.", "language_model.model.", "model.language_model."}) {
        for (const char* inner : {"ffn.", "mlp."}) {
            const TempFolder folder;
            const SynthOptions options = options_of(folder.path(), CheckpointFormat::kDeepseekV4);
            write(options);
            const std::string prefix = std::string(outer) + "layers.4." + inner;
            rename(folder.path(), {{"layers.4.ffn.", prefix}});
            OpenedLayer opened;
            expect_ok(open_checkpoint_layer(folder.path(), {4, {}, false}, &opened));
            EXPECT_EQ(opened.info.prefix, prefix);
            expect_experts(options, opened.source.get());
        }
    }
}

TEST(Layouts, W13WithASharedExpertOfDeepseeksNames) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.path(), CheckpointFormat::kW13UpFirst);
    write(options);
    rename(folder.path(), {{"shared_experts.gate_proj", "shared_experts.w1"},
                           {"shared_experts.up_proj", "shared_experts.w3"},
                           {"shared_experts.down_proj", "shared_experts.w2"},
                           {"weight_scale_inv", "scale"}});
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
    std::unique_ptr<WeightSource> generated;
    expect_ok(open_generated_layer(options.layer, &generated));
    SharedExpertBytes read;
    SharedExpertBytes made;
    expect_ok(opened.source->shared_expert(&read));
    expect_ok(generated->shared_expert(&made));
    expect_same(read, made);
    expect_experts(options, opened.source.get());
}

TEST(Layouts, WideWeightsNeedLeave) {
    for (const auto& [format, word] : {std::pair{CheckpointFormat::kBlockFp8, "are FP8"},
                                       std::pair{CheckpointFormat::kBf16, "are BF16"}}) {
        const TempFolder folder;
        const SynthOptions options = options_of(folder.path(), format);
        write(options);
        OpenedLayer opened;
        expect_error(open_checkpoint_layer(folder.path(), {4, {}, false}, &opened),
                     Code::kBadCheckpoint, {folder.path(), word, "quantising makes"});
        EXPECT_EQ(opened.source, nullptr);
    }
}

// Defaults of gpt-oss where its config is silent.
TEST(Layouts, GptOssActivationIsImplied) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.path(), CheckpointFormat::kGptOss);
    write(options);
    EXPECT_EQ(read_bytes(folder.file("config.json")).find("swiglu_alpha"), std::string::npos);
    write_bytes(folder.file("config.json"), "{}");
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), {4, {}, false}, &opened));
    EXPECT_EQ(opened.info.clamp, 7.0F);
    EXPECT_EQ(opened.info.alpha, 1.702F);
    EXPECT_EQ(opened.info.beta, 1.0F);
}

TEST(Layouts, SynthRefusesWhatALayoutCannotHold) {
    const TempFolder folder;
    SynthReport report;
    SynthOptions options = options_of(folder.file("a"), CheckpointFormat::kGptOss);
    options.experts = {0, 2};
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput,
                 {"2 of 3 experts", "gpt-oss"});
    options.experts = {};
    options.layer.shape.shared_inter = 128;
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"no shared expert"});
    options = options_of(folder.file("a"), CheckpointFormat::kBf16);
    options.layer.weight_scales = "rows_of_codes:1,2";
    expect_error(synthesise_checkpoint(options, &report), Code::kBadConfig, {"BF16 weights lack"});
    EXPECT_EQ(folder.num_entries(), 0);
}

}  // namespace
}  // namespace gcmoe::checkpoint
