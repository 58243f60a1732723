// Fingerprints: equal for one layer however it is stored, different for anything else.
#include "checkpoint/layer_identity.hpp"

#include <filesystem>
#include <set>

#include "layout_cases.hpp"

namespace gcmoe::checkpoint {
namespace {

LayerIdentity identity_of(const std::string& folder, const ReadOptions& options) {
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder, options, &opened));
    LayerIdentity identity;
    expect_ok(identify_checkpoint_layer(folder, options, opened.info, &identity));
    return identity;
}

TEST(LayerIdentity, EveryLayoutHasItsOwnAndKeepsIt) {
    std::set<std::uint64_t> seen;
    for (const CheckpointFormat format :
         {CheckpointFormat::kDeepseekV4, CheckpointFormat::kBlockFp8, CheckpointFormat::kBf16,
          CheckpointFormat::kGptOss, CheckpointFormat::kW13GateFirst,
          CheckpointFormat::kW13UpFirst}) {
        const TempFolder folder;
        const SynthOptions options = options_of(folder.file("layer"), format);
        write(options);
        const LayerIdentity identity = identity_of(options.folder, read_options_of(options));
        EXPECT_EQ(identity.layer_idx, 4);
        EXPECT_TRUE(seen.insert(identity.fingerprint).second) << static_cast<int>(format);
        std::filesystem::rename(options.folder, folder.file("moved"));
        const LayerIdentity again = identity_of(folder.file("moved"), read_options_of(options));
        EXPECT_EQ(again.text(), identity.text());
    }
}

TEST(LayerIdentity, ShardsDoNotCount) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("whole"), CheckpointFormat::kDeepseekV4);
    write(options);
    const LayerIdentity whole = identity_of(options.folder, read_options_of(options));
    options.folder = folder.file("shards");
    options.shard_bytes = 40000;
    write(options);
    EXPECT_FALSE(std::filesystem::exists(folder.file("shards/model.safetensors")));
    const LayerIdentity shards = identity_of(options.folder, read_options_of(options));
    EXPECT_TRUE(shards.is_same_layer(whole)) << shards.text() << " and " << whole.text();
}

TEST(LayerIdentity, EitherEndOfAnyTensorCounts) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    write(options);
    const LayerIdentity whole = identity_of(options.folder, read_options_of(options));
    const Tensors tensors = read_tensors(options.folder);
    for (const char* name : {"layers.4.ffn.experts.0.w1.weight", "layers.4.ffn.experts.2.w2.scale",
                             "layers.4.ffn.shared_experts.w3.weight"}) {
        ASSERT_EQ(tensors.count(name), 1U) << name;
        for (const bool at_end : {false, true}) {
            Tensors changed = tensors;
            std::string& bytes = changed[name].bytes;
            bytes[at_end ? bytes.size() - 1 : 0] ^= 1;
            write_tensors(options.folder, changed);
            const LayerIdentity other = identity_of(options.folder, read_options_of(options));
            EXPECT_EQ(other.layer_idx, whole.layer_idx);
            EXPECT_FALSE(other.is_same_layer(whole)) << name;
        }
    }
    Tensors with_router = tensors;  // not the operator's
    with_router["layers.4.ffn.gate.weight"] = {Dtype::kU8, {3}, "abc"};
    with_router["layers.5.ffn.experts.0.w1.weight"] = {Dtype::kU8, {3}, "abc"};
    write_tensors(options.folder, with_router);
    EXPECT_TRUE(identity_of(options.folder, read_options_of(options)).is_same_layer(whole));
}

TEST(LayerIdentity, LayerAndOrderCount) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kW13GateFirst);
    write(options);
    const LayerIdentity first = identity_of(options.folder, {4, GateUpOrder::kW1GateW3Up, false});
    const LayerIdentity turned = identity_of(options.folder, {4, GateUpOrder::kW1UpW3Gate, false});
    EXPECT_FALSE(turned.is_same_layer(first));
    options.folder = folder.file("next");
    options.layer_idx = 5;
    write(options);
    const LayerIdentity next = identity_of(options.folder, read_options_of(options));
    EXPECT_FALSE(next.is_same_layer(first));
    EXPECT_NE(next.fingerprint, first.fingerprint);
}

TEST(LayerIdentity, ATensorThatCannotBeOpenedIsAnError) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    options.shard_bytes = 40000;
    write(options);
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(options.folder, read_options_of(options), &opened));
    std::string last;
    for (const auto& entry : std::filesystem::directory_iterator(options.folder)) {
        if (entry.path().extension() == ".safetensors")
            last = std::max(last, entry.path().string());
    }
    std::filesystem::remove(last);
    LayerIdentity identity;
    expect_error(
        identify_checkpoint_layer(options.folder, read_options_of(options), opened.info, &identity),
        Code::kBadCheckpoint, {last, "is missing"});
}

TEST(LayerIdentity, GeneratedLayersDifferByTheirWeights) {
    GeneratedLayer layer;
    layer.shape.hidden = 256;
    layer.shape.inter = 128;
    layer.shape.num_experts = 8;
    std::set<std::uint64_t> seen{identify_generated_layer(layer, "m").fingerprint};
    const auto expect_another = [&](auto change) {
        GeneratedLayer other = layer;
        change(&other);
        EXPECT_TRUE(seen.insert(identify_generated_layer(other, "m").fingerprint).second);
    };
    expect_another([](GeneratedLayer* other) { other->shape.hidden = 384; });
    expect_another([](GeneratedLayer* other) { other->shape.inter = 256; });
    expect_another([](GeneratedLayer* other) { other->shape.shared_inter = 128; });
    expect_another([](GeneratedLayer* other) { other->shape.num_experts = 16; });
    expect_another([](GeneratedLayer* other) { other->biases = true; });
    expect_another([](GeneratedLayer* other) { other->weight_scales = "rows_of_codes:1"; });
    expect_another([](GeneratedLayer* other) { other->shared_grid = ScaleGrid::kUe8m0Row32; });
    layer.shape.num_ranks = 4;  // who asks does not count
    EXPECT_EQ(seen.count(identify_generated_layer(layer, "n").fingerprint), 1U);
}

}  // namespace
}  // namespace gcmoe::checkpoint
