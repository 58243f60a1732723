#include "checkpoint/open_layer.hpp"

#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "checkpoint/safetensors_writer.hpp"
#include "checkpoint/tensor_checks.hpp"
#include "expert_bytes.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr int kHidden = 256;
constexpr int kInter = 128;

// The tensors of a small checkpoint, to be damaged before they are written.
struct Tensor {
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

Tensor filled(Dtype dtype, std::vector<std::int64_t> shape, char byte) {
    std::size_t num_bytes = dtype_bytes(dtype);
    for (const std::int64_t dim : shape) num_bytes *= static_cast<std::size_t>(dim);
    return {dtype, std::move(shape), std::string(num_bytes, byte)};
}

// Experts 0 and 2 of layer 1 and its shared expert; every matrix is filled with another byte.
Tensors small_tensors(const std::string& prefix = "layers.1.ffn.") {
    Tensors out;
    char byte = 1;
    for (const char* expert : {"experts.0.", "experts.2."}) {
        for (const char* matrix : {"w1", "w2", "w3"}) {
            const bool is_down = std::string(matrix) == "w2";
            const int rows = is_down ? kHidden : kInter;
            const int cols = is_down ? kInter : kHidden;
            const std::string name = prefix + expert + matrix;
            out[name + ".weight"] = filled(Dtype::kI8, {rows, cols / 2}, byte);
            out[name + ".scale"] = filled(Dtype::kF8E8m0, {rows, cols / 32}, 120);
            ++byte;
        }
    }
    for (const char* matrix : {"w1", "w2", "w3"}) {
        const bool is_down = std::string(matrix) == "w2";
        const int rows = is_down ? kHidden : kInter;
        const int cols = is_down ? kInter : kHidden;
        const std::string name = prefix + "shared_experts." + matrix;
        out[name + ".weight"] = filled(Dtype::kF8E4m3, {rows, cols}, byte);
        out[name + ".scale"] = filled(Dtype::kF8E8m0, {rows / 128, cols / 128}, 115);
        ++byte;
    }
    return out;
}

constexpr const char* kConfig =
    R"({"model_type":"deepseek_v4","hidden_size":256,"moe_intermediate_size":128,
    "n_routed_experts":4,"num_experts_per_tok":2,"n_shared_experts":1,"swiglu_limit":10.0,
    "routed_scaling_factor":1.5,"expert_dtype":"fp4"})";

class Checkpoint {
  public:
    explicit Checkpoint(const Tensors& tensors, const std::string& config = kConfig) {
        std::vector<TensorSpec> specs;
        for (const auto& [name, tensor] : tensors) {
            specs.push_back({name, tensor.dtype, tensor.shape});
        }
        std::unique_ptr<SafetensorsWriter> writer;
        expect_ok(SafetensorsWriter::create(folder.file("model.safetensors"), specs, {}, &writer));
        for (const auto& [name, tensor] : tensors) {
            expect_ok(writer->write(name, tensor.bytes.data(), tensor.bytes.size()));
        }
        expect_ok(writer->finish());
        if (!config.empty()) write_bytes(folder.file("config.json"), config);
    }

    Status open(int layer = 1, GateUpOrder order = GateUpOrder::kW1GateW3Up) {
        OpenedLayer opened;
        GCMOE_RETURN_IF_ERROR(open_checkpoint_layer(folder.path(), {layer, order, false}, &opened));
        info = opened.info;
        source = std::move(opened.source);
        return {};
    }

    TempFolder folder;
    LayerInfo info;
    std::unique_ptr<WeightSource> source;
};

// Opens fine; reading expert 0 (or the shared one) fails.
void expect_expert_refused(const std::function<void(Tensors*)>& damage,
                           std::initializer_list<std::string> parts, bool is_shared = false) {
    Tensors tensors = small_tensors();
    damage(&tensors);
    Checkpoint checkpoint(tensors);
    expect_ok(checkpoint.open());
    ASSERT_NE(checkpoint.source, nullptr);
    ExpertBytes bytes;
    SharedExpertBytes shared;
    expect_error(is_shared ? checkpoint.source->shared_expert(&shared)
                           : checkpoint.source->expert(0, &bytes),
                 Code::kBadCheckpoint, parts);
}

void expect_open_refused(const std::function<void(Tensors*)>& damage, const std::string& config,
                         std::initializer_list<std::string> parts) {
    Tensors tensors = small_tensors();
    damage(&tensors);
    Checkpoint checkpoint(tensors, config);
    expect_error(checkpoint.open(), Code::kBadCheckpoint, parts);
    EXPECT_EQ(checkpoint.source, nullptr);
}

void no_damage(Tensors*) {}

TEST(PerExpert, ReadsALayer) {
    Checkpoint checkpoint(small_tensors());
    expect_ok(checkpoint.open());
    const LayerInfo& info = checkpoint.info;
    EXPECT_EQ(info.prefix, "layers.1.ffn.");
    EXPECT_EQ(info.model_type, "deepseek_v4");
    EXPECT_EQ(info.hidden, kHidden);
    EXPECT_EQ(info.inter, kInter);
    EXPECT_EQ(info.num_experts, 4);
    EXPECT_EQ(info.present_experts, (std::vector<int>{0, 2}));
    EXPECT_EQ(info.topk, 2);
    EXPECT_EQ(info.shared_inter, kInter);
    EXPECT_EQ(info.shared_grid, ScaleGrid::kUe8m0Block128);
    EXPECT_EQ(info.clamp, 10.0F);
    ExpertBytes bytes;
    expect_ok(checkpoint.source->expert(2, &bytes));
    checkpoint.source.reset();  // keep_alive holds the file
    EXPECT_EQ(nibbles_of(bytes.gate), std::string(kInter * kHidden / 2, 4));
    EXPECT_EQ(nibbles_of(bytes.down), std::string(kHidden * kInter / 2, 5));
    EXPECT_EQ(nibbles_of(bytes.up), std::string(kInter * kHidden / 2, 6));
    EXPECT_EQ(bytes.gate_bias, nullptr);
}

TEST(PerExpert, OrderSwapsGateAndUp) {
    Checkpoint checkpoint(small_tensors());
    ExpertBytes straight;
    ExpertBytes swapped;
    SharedExpertBytes straight_shared;
    SharedExpertBytes swapped_shared;
    expect_ok(checkpoint.open(1, GateUpOrder::kW1GateW3Up));
    expect_ok(checkpoint.source->expert(0, &straight));
    expect_ok(checkpoint.source->shared_expert(&straight_shared));
    expect_ok(checkpoint.open(1, GateUpOrder::kW1UpW3Gate));
    expect_ok(checkpoint.source->expert(0, &swapped));
    expect_ok(checkpoint.source->shared_expert(&swapped_shared));
    expect_same(straight.gate, swapped.up);
    expect_same(straight.up, swapped.gate);
    expect_same(straight.down, swapped.down);
    EXPECT_NE(nibbles_of(straight.gate), nibbles_of(straight.up));
    expect_same(straight_shared.gate, swapped_shared.up);
    expect_same(straight_shared.up, swapped_shared.gate);
}

TEST(PerExpert, FindsTheModelPrefixAndU8) {
    Tensors tensors = small_tensors("model.layers.1.ffn.");
    tensors["model.layers.1.ffn.experts.0.w1.weight"].dtype = Dtype::kU8;
    Checkpoint checkpoint(tensors);
    expect_ok(checkpoint.open());
    EXPECT_EQ(checkpoint.info.prefix, "model.layers.1.ffn.");
    ExpertBytes bytes;
    expect_ok(checkpoint.source->expert(0, &bytes));
}

TEST(PerExpert, RefusesAmbiguousOrAbsentLayers) {
    expect_open_refused(
        [](Tensors* tensors) {
            for (auto& entry : small_tensors("model.layers.1.ffn.")) tensors->insert(entry);
        },
        kConfig, {"under both 'layers.1.ffn.' and 'model.layers.1.ffn.'"});
    Checkpoint checkpoint(small_tensors());
    expect_error(checkpoint.open(2), Code::kBadCheckpoint,
                 {checkpoint.folder.path(), "no tensor of layer 2", "'layers.2.ffn.experts.*'",
                  "among its 18", "'layers.1.ffn.experts.0.w1.scale'"});
    expect_error(checkpoint.open(-1), Code::kBadInput, {"layer -1"});
    expect_open_refused(no_damage, "", {"config.json", "No such file"});
}

TEST(PerExpert, RefusesContradictingConfigs) {
    const auto refused = [](const std::string& config, const std::string& part) {
        expect_open_refused(no_damage, config, {"config.json", part});
    };
    refused(R"({"hidden_size":512})", "hidden_size = 512, but the tensors say 256");
    refused(R"({"moe_intermediate_size":64})",
            "moe_intermediate_size = 64, but the tensors say 128");
    refused(R"({"n_routed_experts":2})", "n_routed_experts = 2, but there are tensors of expert 2");
    refused(R"({"num_experts_per_tok":4})", "num_experts_per_tok = 4 is above the 3 experts");
    refused(R"({"n_shared_experts":0})", "n_shared_experts = 0, but the tensors say");
    refused(R"({"n_shared_experts":2})", "n_shared_experts = 2 of inter 128 give 256");
    refused(R"({"expert_dtype":"fp8"})", "expert_dtype = 'fp8', needs 'fp4'");
    refused(R"({"swiglu_limit":0})", "swiglu_limit = 0, needs a positive clamp");
}

TEST(PerExpert, DerivesWhatTheConfigLacks) {
    Tensors tensors = small_tensors();
    for (const char* matrix : {"w1", "w2", "w3"}) {
        for (const char* part : {".weight", ".scale"}) {
            tensors.erase(std::string("layers.1.ffn.shared_experts.") + matrix + part);
        }
    }
    Checkpoint checkpoint(tensors, "{}");
    expect_ok(checkpoint.open());
    EXPECT_EQ(checkpoint.info.num_experts, 3);
    EXPECT_EQ(checkpoint.info.topk, 0);
    EXPECT_EQ(checkpoint.info.shared_inter, 0);
    EXPECT_FALSE(checkpoint.info.clamp.has_value());
    SharedExpertBytes shared;
    expect_error(checkpoint.source->shared_expert(&shared), Code::kBadCheckpoint,
                 {"has no shared expert", "shared_experts.w1.weight"});
}

TEST(PerExpert, RefusesExpertsThatAreNotMxfp4) {
    expect_open_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.0.w1.weight"] =
                filled(Dtype::kF16, {kInter, kHidden}, 1);
        },
        kConfig, {"'layers.1.ffn.experts.0.w1.weight'", "F16 [128, 256]", "must be MXFP4"});
    expect_open_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.x.w1.weight"] = filled(Dtype::kI8, {1, 1}, 1);
        },
        kConfig, {"'layers.1.ffn.experts.x.w1.weight'", "no expert number"});
    expect_open_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.0.w1.weight"] = filled(Dtype::kI8, {100}, 1);
        },
        kConfig, {"'layers.1.ffn.experts.0.w1.weight'", "I8 [100]", "(inter, hidden / 2)"});
}

TEST(PerExpert, RefusesMissingExpertsWhenAsked) {
    Checkpoint checkpoint(small_tensors());
    expect_ok(checkpoint.open());
    ExpertBytes bytes;
    expect_error(checkpoint.source->expert(1, &bytes), Code::kBadCheckpoint,
                 {checkpoint.folder.path(), "expert 1",
                  "'layers.1.ffn.experts.1.w1.weight' is missing", "2 of 4 experts: 0, 2"});
    expect_error(checkpoint.source->expert(4, &bytes), Code::kBadIndex, {"4", "[0, 4)"});
    expect_error(checkpoint.source->expert(-1, &bytes), Code::kBadIndex, {"-1"});
    expect_expert_refused(
        [](Tensors* tensors) { tensors->erase("layers.1.ffn.experts.0.w3.scale"); },
        {"expert 0", "'layers.1.ffn.experts.0.w3.scale' is missing"});
}

TEST(PerExpert, RefusesWrongTypesAndShapes) {
    expect_expert_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.0.w2.weight"].dtype = Dtype::kF8E4m3;
        },
        {"'layers.1.ffn.experts.0.w2.weight'", "dtype F8_E4M3, needs I8 or U8"});
    expect_expert_refused(
        [](Tensors* tensors) { (*tensors)["layers.1.ffn.experts.0.w2.scale"].dtype = Dtype::kU8; },
        {"'layers.1.ffn.experts.0.w2.scale'", "dtype U8, needs F8_E8M0"});
    expect_expert_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.0.w3.weight"].shape = {kHidden / 2, kInter, 1};
        },
        {"'layers.1.ffn.experts.0.w3.weight'", "shape [128, 128, 1], needs [128, 128]"});
    expect_expert_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.0.w2.scale"].shape = {kHidden / 2, kInter / 16};
        },
        {"'layers.1.ffn.experts.0.w2.scale'", "shape [128, 8], needs [256, 4]"});
}

TEST(PerExpert, RefusesNanScales) {
    expect_expert_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.experts.0.w3.scale"].bytes[5 * 8 + 2] = '\xff';
        },
        {"'layers.1.ffn.experts.0.w3.scale'",
         "expert 0, matrix w3 (up), row 5, group 2: scale code 255 is NaN"});
    expect_expert_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.shared_experts.w2.scale"].bytes[1] = '\xff';
        },
        {"'layers.1.ffn.shared_experts.w2.scale'",
         "matrix w2 (down), scale row 1, scale column 0: code 255 is NaN"},
        true);
}

TEST(PerExpert, RefusesNanCodesAndFloatScales) {
    for (const char code : {'\x7f', '\xff'}) {
        expect_expert_refused(
            [code](Tensors* tensors) {
                (*tensors)["layers.1.ffn.shared_experts.w1.weight"].bytes[127 * 256 + 255] = code;
            },
            {"'layers.1.ffn.shared_experts.w1.weight'", "matrix w1 (gate), row 127, column 255",
             code == '\x7f' ? "0x7f is NaN" : "0xff is NaN"},
            true);
    }
    const auto make_fp32 = [](Tensors* tensors, float value) {
        for (const char* matrix : {"w1", "w2", "w3"}) {
            Tensor& scale =
                (*tensors)[std::string("layers.1.ffn.shared_experts.") + matrix + ".scale"];
            const float scales[2] = {1.0F, value};
            scale = {Dtype::kF32, scale.shape, bytes_of(scales, sizeof(scales))};
        }
    };
    expect_expert_refused(
        [&](Tensors* tensors) { make_fp32(tensors, std::numeric_limits<float>::infinity()); },
        {"'layers.1.ffn.shared_experts.w1.scale'", "scale column 1: inf is not finite"}, true);
    Tensors tensors = small_tensors();
    make_fp32(&tensors, 0.25F);
    Checkpoint checkpoint(tensors);
    expect_ok(checkpoint.open());
    EXPECT_EQ(checkpoint.info.shared_grid, ScaleGrid::kFp32Block128);
    SharedExpertBytes shared;
    expect_ok(checkpoint.source->shared_expert(&shared));
    EXPECT_EQ(static_cast<const float*>(shared.up.scales)[1], 0.25F);
}

TEST(PerExpert, FloatScalesAtOddOffsetsAreRead) {
    // By hand: the writer would not put floats there.
    const TempFolder folder;
    std::string header = "{";
    std::string data;
    const auto add = [&](const std::string& name, const Tensor& tensor) {
        std::string shape;
        for (const auto dim : tensor.shape) {
            shape += (shape.empty() ? "" : ",") + std::to_string(dim);
        }
        header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":")" +
                  dtype_name(tensor.dtype) + R"(","shape":[)" + shape + R"(],"data_offsets":[)" +
                  std::to_string(data.size()) + "," +
                  std::to_string(data.size() + tensor.bytes.size()) + "]}";
        data += tensor.bytes;
    };
    add("odd", filled(Dtype::kU8, {1}, 0));
    for (auto [name, tensor] : small_tensors()) {
        if (name.find("shared") != std::string::npos && tensor.dtype == Dtype::kF8E8m0) {
            const float scales[2] = {0.5F, 2.0F};
            tensor = {Dtype::kF32, tensor.shape, bytes_of(scales, sizeof(scales))};
        }
        add(name, tensor);
    }
    header += "}";
    while (header.size() % 8 != 0) header += ' ';
    write_bytes(folder.file("model.safetensors"), safetensors_bytes(header, data));
    write_bytes(folder.file("config.json"), kConfig);
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), {1, {}, false}, &opened));
    SharedExpertBytes shared;
    expect_ok(opened.source->shared_expert(&shared));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared.down.scales) % 4, 0U);
    EXPECT_EQ(static_cast<const float*>(shared.down.scales)[1], 2.0F);
}

TEST(PerExpert, ShapeDecidesTheGrid) {
    const std::tuple<ScaleGrid, int, int> grids[] = {{ScaleGrid::kUe8m0Block128, 128, 128},
                                                     {ScaleGrid::kUe8m0Block32, 32, 32},
                                                     {ScaleGrid::kUe8m0Row32, 1, 32}};
    for (const auto& [grid, block_rows, block_cols] : grids) {
        Tensors tensors = small_tensors();
        for (const char* matrix : {"w1", "w2", "w3"}) {
            const std::string name = std::string("layers.1.ffn.shared_experts.") + matrix;
            const auto& shape = tensors[name + ".weight"].shape;
            tensors[name + ".scale"] =
                filled(Dtype::kF8E8m0, {shape[0] / block_rows, shape[1] / block_cols}, 100);
        }
        Checkpoint checkpoint(tensors);
        expect_ok(checkpoint.open());
        EXPECT_EQ(checkpoint.info.shared_grid, grid);
        SharedExpertBytes shared;
        expect_ok(checkpoint.source->shared_expert(&shared));
        EXPECT_EQ(shared.down.grid, grid);
    }
    expect_open_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.shared_experts.w1.scale"] =
                filled(Dtype::kF8E8m0, {2, 4}, 100);
        },
        kConfig, {"'layers.1.ffn.shared_experts.w1.scale'", "F8_E8M0 [2, 4] is none of"});
    expect_expert_refused(
        [](Tensors* tensors) {
            (*tensors)["layers.1.ffn.shared_experts.w2.scale"] =
                filled(Dtype::kF8E8m0, {8, 4}, 100);
        },
        {"'layers.1.ffn.shared_experts.w2.scale'", "another scale grid than that of w1"}, true);
}

// One row: its 32x32 block and its groups of 32 have the same shape.
TEST(PerExpert, RefusesAmbiguousGrids) {
    StoredTensor scale;
    scale.name = "s";
    scale.path = "p";
    scale.dtype = Dtype::kF8E8m0;
    scale.shape = {1, 8};
    ScaleGrid grid = ScaleGrid::kFp32Block128;
    expect_error(find_scale_grid(scale, 1, 256, &grid), Code::kBadCheckpoint,
                 {"file 'p'", "tensor 's'", "F8_E8M0 [1, 8] is more than one of the scale grids"});
    expect_ok(find_scale_grid(scale, 32, 256, &grid));
    EXPECT_EQ(grid, ScaleGrid::kUe8m0Block32);
}

TEST(PerExpert, BiasesAreReadOrRefused) {
    const auto add_biases = [](Tensors* tensors, const char* expert) {
        for (const char* matrix : {"w1", "w2", "w3"}) {
            const int rows = std::string(matrix) == "w2" ? kHidden : kInter;
            (*tensors)["layers.1.ffn.experts." + std::string(expert) + "." + matrix + ".bias"] =
                filled(Dtype::kBf16, {rows}, '\x3f');
        }
    };
    expect_expert_refused(
        [&](Tensors* tensors) {
            add_biases(tensors, "0");
            (*tensors)["layers.1.ffn.experts.0.w2.bias"].bytes[3] = '\x7f';
            (*tensors)["layers.1.ffn.experts.0.w2.bias"].bytes[2] = '\x80';
        },
        {"'layers.1.ffn.experts.0.w2.bias'", "row 1: bias inf is not finite"});
    Tensors tensors = small_tensors();
    add_biases(&tensors, "0");
    Checkpoint checkpoint(tensors);
    expect_ok(checkpoint.open());
    EXPECT_TRUE(checkpoint.info.has_bias);
    ExpertBytes bytes;
    expect_ok(checkpoint.source->expert(0, &bytes));
    EXPECT_EQ(bytes.down_bias[kHidden - 1], 0x1.7ep-1F);  // 0x3f3f
    expect_error(checkpoint.source->expert(2, &bytes), Code::kBadCheckpoint,
                 {"'layers.1.ffn.experts.2.w1.bias' is missing", "first expert has biases"});
}

}  // namespace
}  // namespace gcmoe::checkpoint
