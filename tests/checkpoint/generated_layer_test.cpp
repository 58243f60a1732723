#include "checkpoint/generated_layer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/generated_element.hpp"
#include "checkpoint/scale_rule.hpp"
#include "expert_bytes.hpp"
#include "numerics/e2m1.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

GeneratedLayer small_layer() {
    GeneratedLayer layer;
    layer.shape.hidden = 256;
    layer.shape.inter = 128;
    layer.shape.num_experts = 8;
    layer.shape.topk = 2;
    layer.shape.shared_inter = 128;
    return layer;
}

std::unique_ptr<WeightSource> open_layer(const GeneratedLayer& layer) {
    std::unique_ptr<WeightSource> source;
    expect_ok(open_generated_layer(layer, &source));
    return source;
}

std::string hex(const std::uint8_t* bytes, int num_bytes) {
    std::string out;
    for (int idx = 0; idx < num_bytes; ++idx) {
        constexpr const char* kDigits = "0123456789abcdef";
        out += kDigits[bytes[idx] >> 4];
        out += kDigits[bytes[idx] & 15];
    }
    return out;
}

const Mxfp4View& view_of(const ExpertBytes& bytes, ExpertMatrix which) {
    return which == ExpertMatrix::kGate ? bytes.gate
           : which == ExpertMatrix::kUp ? bytes.up
                                        : bytes.down;
}

constexpr ExpertMatrix kMatrices[] = {ExpertMatrix::kGate, ExpertMatrix::kUp, ExpertMatrix::kDown};

// The constants come from a program of its own (Python, exact float32 steps), not from this code.
TEST(GeneratedLayer, GoldenRoutedBytes) {
    const auto source = open_layer(small_layer());
    ExpertBytes bytes;
    expect_ok(source->expert(0, &bytes));
    EXPECT_EQ(hex(bytes.gate.nibbles, 16), "1cd1dd2df9de9156c30c69c49e4db552");
    EXPECT_EQ(bytes.gate.scales[0], 120);
    expect_ok(source->expert(3, &bytes));
    EXPECT_EQ(hex(bytes.up.nibbles + 127 * 128 + 7 * 16, 16), "b673aa39ac54632cb023d04e1c34ce0b");
    EXPECT_EQ(bytes.up.scales[127 * 8 + 7], 120);

    const GeneratedMatrix large =
        generated_matrix(SeedUse::kRoutedWeight, 4096, 2048, 255, ExpertMatrix::kDown);
    EXPECT_EQ(large.rows, 4096);
    EXPECT_EQ(large.cols, 2048);
    std::uint8_t nibbles[16] = {};
    std::uint8_t code = 0;
    generate_mxfp4_group(ScaleRule{}, large, 4095, 63, nibbles, &code);
    EXPECT_EQ(hex(nibbles, 16), "ac9211cb410a00c44409abc29135c91b");
    EXPECT_EQ(code, 121);
}

TEST(GeneratedLayer, GoldenBiasesAndSharedBytes) {
    GeneratedLayer layer = small_layer();
    layer.biases = true;
    layer.shape.has_bias = true;
    layer.shared_grid = ScaleGrid::kFp32Block128;
    auto source = open_layer(layer);
    ExpertBytes bytes;
    expect_ok(source->expert(1, &bytes));
    EXPECT_EQ(bytes.down_bias[0], -0x1.74p-5F);
    EXPECT_EQ(bytes.down_bias[1], -0x1.cep-3F);
    EXPECT_EQ(bytes.down_bias[255], 0x1.a8p-7F);
    SharedExpertBytes shared;
    expect_ok(source->shared_expert(&shared));
    EXPECT_EQ(hex(shared.gate.codes, 6), "63f6e9e96b71");
    EXPECT_EQ(static_cast<const float*>(shared.gate.scales)[0], 0x1.72de9cp-13F);
    layer.shared_grid = ScaleGrid::kUe8m0Block128;
    source = open_layer(layer);
    expect_ok(source->shared_expert(&shared));
    EXPECT_EQ(hex(shared.gate.codes, 6), "60f2e6e5676e");
    EXPECT_EQ(static_cast<const std::uint8_t*>(shared.gate.scales)[0], 115);
}

// The tables give what the element functions give, for every rule.
TEST(GeneratedLayer, TablesEqualElementFunctions) {
    for (const char* text :
         {"normal", "rows_of_codes:1,64,254", "span_per_k128:14;span_per_expert:60"}) {
        GeneratedLayer layer = small_layer();
        layer.shape.hidden = 288;  // a K128 with one group at its end
        layer.weight_scales = text;
        ScaleRule rule;
        expect_ok(parse_scale_rule(text, &rule));
        ExpertBytes bytes;
        expect_ok(open_layer(layer)->expert(5, &bytes));
        for (const ExpertMatrix which : kMatrices) {
            const GeneratedMatrix matrix =
                generated_matrix(SeedUse::kRoutedWeight, 288, 128, 5, which);
            const Mxfp4View& view = view_of(bytes, which);
            ASSERT_EQ(view.rows, matrix.rows);
            ASSERT_EQ(view.cols, matrix.cols);
            const int num_groups = matrix.cols / 32;
            for (int idx = 0; idx < matrix.rows * num_groups; ++idx) {
                std::uint8_t nibbles[16] = {};
                std::uint8_t code = 0;
                generate_mxfp4_group(rule, matrix, idx / num_groups, idx % num_groups, nibbles,
                                     &code);
                ASSERT_EQ(hex(view.nibbles + 16 * idx, 16), hex(nibbles, 16)) << text << idx;
                ASSERT_EQ(view.scales[idx], code) << text << idx;
            }
        }
    }
}

TEST(GeneratedLayer, SharedCodesEqualTheQuantisers) {
    for (const ScaleGrid grid : {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                 ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32}) {
        GeneratedLayer layer = small_layer();
        layer.shape.hidden = 160;  // blocks of 128 are cut at the edge
        layer.shape.shared_inter = 192;
        layer.shared_grid = grid;
        SharedExpertBytes bytes;
        expect_ok(open_layer(layer)->shared_expert(&bytes));
        const GeneratedMatrix matrix =
            generated_matrix(SeedUse::kSharedWeight, 160, 192, 0, ExpertMatrix::kUp);
        const GridBlock block = grid_block(grid);
        int scale_idx = 0;
        for (int row = 0; row < matrix.rows; row += block.rows) {
            for (int col = 0; col < matrix.cols; col += block.cols, ++scale_idx) {
                std::vector<float> values;
                std::vector<std::uint8_t> stored;
                for (int r = row; r < std::min(row + block.rows, matrix.rows); ++r) {
                    for (int c = col; c < std::min(col + block.cols, matrix.cols); ++c) {
                        values.push_back(generated_weight(matrix, r, c));
                        stored.push_back(bytes.up.codes[r * matrix.cols + c]);
                    }
                }
                std::vector<std::uint8_t> codes(values.size());
                const int num_values = static_cast<int>(values.size());
                if (grid == ScaleGrid::kFp32Block128) {
                    float scale = 0.0F;
                    numerics::quantise_e4m3_fp32(values.data(), num_values, codes.data(), &scale);
                    EXPECT_EQ(static_cast<const float*>(bytes.up.scales)[scale_idx], scale);
                } else {
                    std::uint8_t scale = 0;
                    numerics::quantise_e4m3_ue8m0(values.data(), num_values, codes.data(), &scale);
                    ASSERT_EQ(static_cast<const std::uint8_t*>(bytes.up.scales)[scale_idx], scale);
                }
                ASSERT_EQ(stored, codes) << row << ' ' << col;
            }
        }
    }
}

TEST(GeneratedLayer, WeightsDependOnWhatTheyShould) {
    GeneratedLayer layer = small_layer();
    ExpertBytes first;
    expect_ok(open_layer(layer)->expert(2, &first));
    layer.shape.num_experts = 64;
    layer.shape.num_ranks = 8;
    layer.shape.shared_inter = 0;
    layer.shape.activation.clamp = 10.0F;
    ExpertBytes second;
    const auto source = open_layer(layer);
    expect_ok(source->expert(2, &second));
    expect_same(first, second);
    EXPECT_NE(nibbles_of(first.gate), nibbles_of(first.up));
    expect_ok(source->expert(3, &second));
    EXPECT_NE(nibbles_of(first.gate), nibbles_of(second.gate));
    layer.shape.inter = 256;
    expect_ok(open_layer(layer)->expert(2, &second));
    EXPECT_NE(nibbles_of(first.gate), nibbles_of(second.gate).substr(0, 128 * 128));
}

TEST(GeneratedLayer, WeightsHaveTheDeviation) {
    ExpertBytes bytes;
    expect_ok(open_layer(small_layer())->expert(0, &bytes));
    double sum = 0.0;
    double squares = 0.0;
    const int num_weights = bytes.gate.rows * bytes.gate.cols;
    for (int idx = 0; idx < num_weights; ++idx) {
        const int byte = bytes.gate.nibbles[idx / 2];
        const auto nibble = static_cast<std::uint8_t>(idx % 2 == 0 ? byte & 15 : byte >> 4);
        const double weight =
            std::ldexp(numerics::e2m1_to_float(nibble), bytes.gate.scales[idx / 32] - 127);
        sum += weight;
        squares += weight * weight;
    }
    EXPECT_NEAR(sum / num_weights, 0.0, 5e-4);
    EXPECT_NEAR(std::sqrt(squares / num_weights), 0.02, 1e-3);
}

TEST(GeneratedLayer, RowsOfCodesReplaceScalesOnly) {
    GeneratedLayer layer = small_layer();
    ExpertBytes normal;
    expect_ok(open_layer(layer)->expert(1, &normal));
    layer.weight_scales = "rows_of_codes:1,127,254";
    ExpertBytes coded;
    expect_ok(open_layer(layer)->expert(1, &coded));
    constexpr std::uint8_t kCodes[] = {1, 127, 254};
    for (const ExpertMatrix which : kMatrices) {
        const Mxfp4View& view = view_of(coded, which);
        EXPECT_EQ(nibbles_of(view), nibbles_of(view_of(normal, which)));
        for (int idx = 0; idx < view.rows * view.cols / 32; ++idx) {
            ASSERT_EQ(view.scales[idx], kCodes[idx / (view.cols / 32) % 3]);
        }
    }
}

TEST(GeneratedLayer, SpansAreReachedAndKept) {
    GeneratedLayer layer = small_layer();
    layer.weight_scales = "span_per_k128:14;span_per_expert:60";
    ExpertBytes bytes;
    expect_ok(open_layer(layer)->expert(1, &bytes));
    for (const ExpertMatrix which : kMatrices) {
        const Mxfp4View& view = view_of(bytes, which);
        const int num_scales = view.rows * view.cols / 32;
        for (int first = 0; first < num_scales; first += 4) {
            const auto [low, high] =
                std::minmax_element(view.scales + first, view.scales + first + 4);
            ASSERT_EQ(*high - *low, 14);
        }
        const auto [low, high] = std::minmax_element(view.scales, view.scales + num_scales);
        EXPECT_EQ(*low, 91);
        EXPECT_EQ(*high, 151);
    }
}

TEST(GeneratedLayer, RefusesBadLayersAndExperts) {
    std::unique_ptr<WeightSource> source;
    GeneratedLayer layer = small_layer();
    layer.shape.hidden = 100;
    expect_error(open_generated_layer(layer, &source), Code::kBadConfig, {"hidden = 100"});
    layer = small_layer();
    layer.shape.num_experts = 0;
    expect_error(open_generated_layer(layer, &source), Code::kBadConfig, {"num_experts = 0"});
    layer = small_layer();
    layer.biases = true;
    expect_error(open_generated_layer(layer, &source), Code::kBadConfig, {"biases = true"});
    layer = small_layer();
    layer.weight_scales = "odd";
    expect_error(open_generated_layer(layer, &source), Code::kBadConfig, {"'odd'"});
    layer = small_layer();
    layer.shape.shared_inter = 0;
    source = open_layer(layer);
    ExpertBytes bytes;
    SharedExpertBytes shared;
    expect_error(source->expert(8, &bytes), Code::kBadIndex, {"expert 8 is outside [0, 8)"});
    expect_error(source->expert(-1, &bytes), Code::kBadIndex, {"expert -1"});
    expect_error(source->shared_expert(&shared), Code::kBadConfig, {"no shared expert"});
}

TEST(ScaleRule, ReadsItsWords) {
    ScaleRule rule;
    expect_ok(parse_scale_rule("rows_of_codes:0,254", &rule));
    EXPECT_EQ(rule.kind, ScaleRule::Kind::kRowsOfCodes);
    EXPECT_EQ(rule.num_codes, 2);
    EXPECT_EQ(rule.codes[1], 254);
    expect_ok(parse_scale_rule("span_per_k128:14;span_per_expert:60", &rule));
    EXPECT_EQ(rule.kind, ScaleRule::Kind::kSpan);
    EXPECT_EQ(rule.span_per_k128, 14);
    EXPECT_EQ(rule.span_per_expert, 60);
    expect_ok(parse_scale_rule("normal", &rule));
    EXPECT_EQ(rule.kind, ScaleRule::Kind::kNormal);
}

TEST(ScaleRule, RefusesBadWords) {
    ScaleRule rule;
    const std::pair<std::string, std::string> bad[] = {
        {"", "needs 'normal'"},
        {"rows_of_codes:", "'' is not a code"},
        {"rows_of_codes:1,", "'' is not a code"},
        {"rows_of_codes:255", "'255' is not a code in 0..254"},
        {"rows_of_codes:-1", "'-1' is not a code"},
        {"span_per_k128:3", "needs ';span_per_expert:'"},
        {"span_per_k128:9;span_per_expert:8", "span_per_k128 '9' is not a count in 0..8"},
        {"span_per_k128:9;span_per_expert:241", "'241' is not a count in 0..240"},
        {"span_per_k128:x;span_per_expert:8", "'x'"},
    };
    for (const auto& [text, part] : bad) {
        expect_error(parse_scale_rule(text, &rule), Code::kBadConfig, {"'" + text + "'", part});
    }
    std::string many = "rows_of_codes:1";
    for (int idx = 0; idx < 64; ++idx) many += ",1";
    expect_error(parse_scale_rule(many, &rule), Code::kBadConfig, {"more than 64 codes"});
}

}  // namespace
}  // namespace gcmoe::checkpoint
