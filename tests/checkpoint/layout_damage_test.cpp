// What the readers of every layout refuse, and the words they say.
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "expert_bytes.hpp"
#include "layout_cases.hpp"

namespace gcmoe::checkpoint {
namespace {

using Damage = std::function<void(Tensors*)>;

// Opening the damaged layer, or reading its expert 1 and its shared expert, fails with these words.
void expect_refused(CheckpointFormat format, const Damage& damage,
                    std::initializer_list<std::string> parts, const std::string& config = {}) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.path(), format);
    write(options);
    Tensors tensors = read_tensors(folder.path());
    damage(&tensors);
    write_tensors(folder.path(), tensors);
    if (!config.empty()) write_bytes(folder.file("config.json"), config);
    OpenedLayer opened;
    Status status = open_checkpoint_layer(folder.path(), read_options_of(options), &opened);
    ExpertBytes bytes;
    SharedExpertBytes shared;
    if (status.ok()) status = opened.source->expert(1, &bytes);
    if (status.ok()) status = opened.source->shared_expert(&shared);
    expect_error(status, Code::kBadCheckpoint, parts);
}

const std::string kExperts = "model.layers.4.mlp.experts.";
const std::string kShared = "model.layers.4.mlp.shared_experts.";

void cut(Tensors* tensors, const std::string& name, std::vector<std::int64_t> shape) {
    Tensor& tensor = tensors->at(name);
    std::size_t num_bytes = dtype_bytes(tensor.dtype);
    for (const std::int64_t dim : shape) num_bytes *= static_cast<std::size_t>(dim);
    tensor.shape = std::move(shape);
    tensor.bytes.resize(num_bytes, '\x01');
}

TEST(LayoutDamage, BlockFp8RefusesDamage) {
    const auto refused = [](const Damage& damage, std::initializer_list<std::string> parts) {
        expect_refused(CheckpointFormat::kBlockFp8, damage, parts);
    };
    refused([](Tensors* t) { t->erase(kExperts + "1.up_proj.weight_scale_inv"); },
            {"expert 1", "'" + kExperts + "1.up_proj.weight_scale_inv' is missing"});
    refused([](Tensors* t) { t->at(kExperts + "1.down_proj.weight").dtype = Dtype::kF8E5m2; },
            {"'" + kExperts + "1.down_proj.weight'", "dtype F8_E5M2, needs F8_E4M3"});
    refused(
        [](Tensors* t) {
            cut(t, kExperts + "1.gate_proj.weight_scale_inv", {2, 1});
        },
        {"'" + kExperts + "1.gate_proj.weight_scale_inv'", "F32 [2, 1] is none of", "[160, 192]"});
    refused([](Tensors* t) { t->at(kExperts + "1.up_proj.weight").bytes[3 * 192 + 5] = '\x7f'; },
            {"expert 1, matrix up_proj (up), row 3, column 5: E4M3 code 0x7f is NaN"});
    for (const auto& [value, word] :
         {std::pair{std::numeric_limits<float>::infinity(), "inf"},
          std::pair{0.0F, "0 is not above 0"}, std::pair{-1.0F, "-1 is not above 0"}}) {
        refused(
            [value = value](Tensors* t) {
                std::string& bytes = t->at(kExperts + "1.gate_proj.weight_scale_inv").bytes;
                std::memcpy(&bytes[4], &value, 4);
            },
            {"matrix gate_proj (gate), scale row 0, scale column 1", word});
    }
    refused([](Tensors* t) { t->erase(kShared + "down_proj.weight"); },
            {"'" + kShared + "down_proj.weight'"});
    refused(
        [](Tensors* t) {
            cut(t, kExperts + "0.gate_proj.weight", {100, 192});
        },
        {"F8_E4M3 [100, 192] is not (inter, hidden) with inter and hidden multiples of 32"});
}

// Code and scale are finite, their product is not: nothing is left to round.
TEST(LayoutDamage, QuantisingRefusesProductsBeyondFp32) {
    const std::string scales = kExperts + "1.gate_proj.weight_scale_inv";
    const float large = 3e38F;
    expect_refused(
        CheckpointFormat::kBlockFp8,
        [&](Tensors* t) { std::memcpy(&t->at(scales).bytes[4], &large, 4); },
        {"expert 1, matrix gate, row 0, group 4 of 32 columns", "is inf, beyond FP32's range"});
    expect_refused(
        CheckpointFormat::kBlockFp8,
        [&](Tensors* t) {
            t->at(scales) = {Dtype::kF8E8m0, {2, 2}, "\x7f\x7f\x7f\xfe"};  // 1, 1, 1, 2^127
        },
        {"expert 1, matrix gate, row 128, group 4 of 32 columns", "is inf, beyond FP32's range"});
    const TempFolder folder;  // the largest scale that leaves all products finite
    const SynthOptions options = options_of(folder.path(), CheckpointFormat::kBlockFp8);
    write(options);
    Tensors tensors = read_tensors(folder.path());
    tensors.at(scales) = {Dtype::kF8E8m0, {2, 2}, "\x7f\x7f\x7f\xf6"};  // 448 * 2^119 < 2^128
    write_tensors(folder.path(), tensors);
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
    ExpertBytes bytes;
    expect_ok(opened.source->expert(1, &bytes));
}

TEST(LayoutDamage, Bf16RefusesDamage) {
    const auto refused = [](const Damage& damage, std::initializer_list<std::string> parts) {
        expect_refused(CheckpointFormat::kBf16, damage, parts);
    };
    const auto set_nan = [](Tensors* t, const std::string& name, std::size_t value_idx) {
        std::string& bytes = t->at(name).bytes;
        bytes[2 * value_idx] = '\xc0';
        bytes[2 * value_idx + 1] = '\x7f';
    };
    refused([&](Tensors* t) { set_nan(t, kExperts + "1.down_proj.weight", 160 * 9 + 2); },
            {"expert 1, matrix down_proj (down), row 9, column 2: nan is not finite"});
    refused([&](Tensors* t) { set_nan(t, kShared + "up_proj.weight", 1); },
            {"matrix up_proj (up), row 0, column 1: nan is not finite"});
    refused(
        [](Tensors* t) {
            cut(t, kExperts + "1.up_proj.weight", {160, 160});
        },
        {"shape [160, 160], needs [160, 192]"});
}

TEST(LayoutDamage, StacksRefuseDamage) {
    const auto refused = [](const Damage& damage, std::initializer_list<std::string> parts) {
        expect_refused(CheckpointFormat::kGptOss, damage, parts);
    };
    refused([](Tensors* t) { t->erase(kExperts + "down_proj_scales"); },
            {"has no tensor '" + kExperts + "down_proj_scales'"});
    refused([](Tensors* t) { t->erase(kExperts + "down_proj_bias"); },
            {"has only one of", "gate_up_proj_bias", "down_proj_bias"});
    refused(
        [](Tensors* t) {
            cut(t, kExperts + "gate_up_proj_blocks", {3, 320, 6, 8});
        },
        {"shape [3, 320, 6, 8] is not (experts, 2 * inter, hidden / 32, 16)"});
    refused(
        [](Tensors* t) {
            cut(t, kExperts + "gate_up_proj_blocks", {3, 320, 96});
        },
        {"shape [3, 320, 96] is not (experts, 2 * inter, hidden / 32, 16)"});
    refused(
        [](Tensors* t) {
            cut(t, kExperts + "down_proj_blocks", {2, 192, 5, 16});
        },
        {"shape [2, 192, 5, 16], needs [3, 192, 5, 16]"});
    refused([](Tensors* t) { t->at(kExperts + "gate_up_proj_scales").dtype = Dtype::kI8; },
            {"gate_up_proj_scales", "dtype I8, needs U8 or F8_E8M0"});
    refused(
        [](Tensors* t) {
            t->at(kExperts + "gate_up_proj_scales").bytes[1 * 320 * 6 + 7 * 6 + 2] = '\xff';
        },
        {"expert 1, gate and up, row 7, group 2: scale code 255 is NaN"});
    refused(
        [](Tensors* t) {
            std::string& bytes = t->at(kExperts + "down_proj_bias").bytes;
            bytes[2 * (192 + 3)] = '\x80';
            bytes[2 * (192 + 3) + 1] = '\x7f';
        },
        {"expert 1, down, row 3: bias inf is not finite"});
    expect_refused(
        CheckpointFormat::kGptOss, [](Tensors*) {},
        {"num_local_experts = 5, but the tensors stack 3 experts"}, R"({"num_local_experts":5})");
    expect_refused(
        CheckpointFormat::kGptOss, [](Tensors*) {},
        {"intermediate_size = 2880, but the tensors say 160"}, R"({"intermediate_size":2880})");
}

TEST(LayoutDamage, DetectionNamesWhatItFound) {
    expect_refused(CheckpointFormat::kGptOss,
                   [](Tensors* t) {
                       Tensors renamed;
                       for (const auto& [name, tensor] : *t) renamed[name + "_x"] = tensor;
                       *t = renamed;
                   },
                   {"no layout is known", "'" + kExperts + "down_proj_bias_x'",
                    "gate_up_proj_blocks", "w13_weight"});
    expect_refused(
        CheckpointFormat::kBlockFp8,
        [](Tensors* t) { (*t)[kExperts + "0.w1.weight"] = t->at(kExperts + "0.up_proj.weight"); },
        {"tensors of two layouts, deepseek and huggingface"});
    expect_refused(
        CheckpointFormat::kBlockFp8,
        [](Tensors* t) {
            (*t)["language_model.model.layers.4.mlp.experts.0.gate_proj.weight"] =
                t->at(kExperts + "0.up_proj.weight");
        },
        {"tensors stand under both 'model.layers.4.mlp.' and 'language_model.model.layers.4.mlp."});
}

// Header bytes and config bytes at random: whatever is still read lies inside the file.
TEST(LayoutDamage, ReadersSurviveRandomHeaders) {
    for (const CheckpointFormat format :
         {CheckpointFormat::kBlockFp8, CheckpointFormat::kBf16, CheckpointFormat::kGptOss,
          CheckpointFormat::kW13UpFirst}) {
        const TempFolder folder;
        const SynthOptions options = options_of(folder.path(), format);
        write(options);
        const std::string model = read_bytes(folder.file("model.safetensors"));
        const std::size_t header_bytes = model.find("}}") + 2;
        int num_opened = 0;
        for (unsigned seed = 0; seed < 250; ++seed) {
            std::mt19937 random(seed);
            std::string bytes = model;
            char& byte = bytes[8 + random() % (header_bytes - 8)];
            const bool is_digit = byte >= '0' && byte <= '9';
            byte = is_digit ? static_cast<char>('0' + random() % 10)
                            : static_cast<char>(byte ^ static_cast<char>(1U << (random() % 8)));
            write_bytes(folder.file("model.safetensors"), bytes);
            OpenedLayer opened;
            if (!open_checkpoint_layer(folder.path(), read_options_of(options), &opened).ok()) {
                continue;
            }
            ++num_opened;
            std::string seen;  // every byte is touched
            for (int expert_idx = 0; expert_idx < 3; ++expert_idx) {
                ExpertBytes read;
                if (!opened.source->expert(expert_idx, &read).ok()) continue;
                for (const Mxfp4View* view : {&read.gate, &read.up, &read.down}) {
                    seen = nibbles_of(*view) + scales_of(*view);
                }
            }
            SharedExpertBytes shared;
            if (opened.source->shared_expert(&shared).ok()) seen = codes_of(shared.down);
        }
        EXPECT_GT(num_opened, 0) << static_cast<int>(format);
        EXPECT_LT(num_opened, 250) << static_cast<int>(format);
    }
}

}  // namespace
}  // namespace gcmoe::checkpoint
