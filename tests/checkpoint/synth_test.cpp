#include "checkpoint/synth.hpp"

#include <sys/resource.h>

#include <csignal>
#include <random>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/models.hpp"
#include "checkpoint/open_layer.hpp"
#include "expert_bytes.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

Status open_layer(const std::string& folder, int layer, LayerInfo* info,
                  std::unique_ptr<WeightSource>* source) {
    OpenedLayer opened;
    GCMOE_RETURN_IF_ERROR(open_checkpoint_layer(folder, {layer, {}, false}, &opened));
    *info = opened.info;
    *source = std::move(opened.source);
    return {};
}

SynthOptions options_of(const std::string& folder, const std::string& model) {
    ModelEntry entry;
    expect_ok(find_model(model, &entry));
    entry = reduced(entry, 32);
    SynthOptions options;
    options.folder = folder;
    options.layer.shape = model_shape(entry, 1);
    options.layer.shared_grid = entry.shared_grid;
    options.layer.biases = entry.has_bias;
    options.layer_idx = 3;
    options.routed_scale = entry.routed_scale;
    return options;
}

void expect_reads_back(const SynthOptions& options, const std::vector<int>& experts) {
    std::unique_ptr<WeightSource> generated;
    expect_ok(open_generated_layer(options.layer, &generated));
    LayerInfo info;
    std::unique_ptr<WeightSource> source;
    expect_ok(open_layer(options.folder, options.layer_idx, &info, &source));
    ASSERT_NE(source, nullptr);
    const Shape& shape = options.layer.shape;
    EXPECT_EQ(info.hidden, shape.hidden);
    EXPECT_EQ(info.inter, shape.inter);
    EXPECT_EQ(info.num_experts, shape.num_experts);
    EXPECT_EQ(info.topk, shape.topk);
    EXPECT_EQ(info.shared_inter, shape.shared_inter);
    EXPECT_EQ(info.has_bias, shape.has_bias);
    EXPECT_EQ(info.present_experts, experts);
    EXPECT_EQ(info.routed_scaling_factor, options.routed_scale);
    const Shape read_shape = layer_shape(info, shape.num_ranks);
    EXPECT_EQ(read_shape.activation.clamp, shape.activation.clamp);
    EXPECT_EQ(read_shape.activation.alpha, shape.activation.alpha);
    EXPECT_EQ(read_shape.activation.beta, shape.activation.beta);
    for (const int expert_idx : experts) {
        ExpertBytes read;
        ExpertBytes made;
        expect_ok(source->expert(expert_idx, &read));
        expect_ok(generated->expert(expert_idx, &made));
        expect_same(read, made);
    }
    if (shape.shared_inter == 0) return;
    SharedExpertBytes read;
    SharedExpertBytes made;
    expect_ok(source->shared_expert(&read));
    expect_ok(generated->shared_expert(&made));
    expect_same(read, made);
    EXPECT_EQ(info.shared_grid, options.layer.shared_grid);
}

std::vector<int> first_experts(int num_experts) {
    std::vector<int> out;
    for (int expert_idx = 0; expert_idx < num_experts; ++expert_idx) out.push_back(expert_idx);
    return out;
}

TEST(Synth, V4InOneFile) {
    const TempFolder folder;
    const SynthOptions options = options_of(folder.file("new/deep"), "v4-flash");
    SynthReport report;
    expect_ok(synthesise_checkpoint(options, &report));
    EXPECT_EQ(report.num_files, 1);
    EXPECT_EQ(report.num_experts, options.layer.shape.num_experts);
    EXPECT_TRUE(std::filesystem::exists(folder.file("new/deep/model.safetensors")));
    EXPECT_FALSE(std::filesystem::exists(folder.file("new/deep/model.safetensors.index.json")));
    expect_reads_back(options, first_experts(options.layer.shape.num_experts));
}

TEST(Synth, V41InShards) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.path(), "v4.1-flash");
    options.format = CheckpointFormat::kDeepseekV41;
    options.shard_bytes = 40000;
    int num_calls = 0;
    SynthProgress last;
    options.progress = [&](const SynthProgress& progress) {
        ++num_calls;
        last = progress;
    };
    SynthReport report;
    expect_ok(synthesise_checkpoint(options, &report));
    EXPECT_GT(report.num_files, 5);
    EXPECT_EQ(folder.num_entries(), report.num_files + 2);  // index and config
    EXPECT_EQ(num_calls, options.layer.shape.num_experts);
    EXPECT_EQ(last.num_experts_done, last.num_experts);
    EXPECT_EQ(last.done_bytes, report.num_bytes);
    EXPECT_EQ(last.total_bytes, report.num_bytes);
    expect_reads_back(options, first_experts(options.layer.shape.num_experts));
    LayerInfo info;
    std::unique_ptr<WeightSource> source;
    expect_ok(open_layer(folder.path(), 3, &info, &source));
    EXPECT_EQ(info.model_type, "deepseek_v41");
}

TEST(Synth, SubsetKeepsTheCount) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.path(), "v4.1-flash");
    options.experts = {1, 5};
    SynthReport report;
    expect_ok(synthesise_checkpoint(options, &report));
    EXPECT_EQ(report.num_experts, 2);
    expect_reads_back(options, {1, 5});
    LayerInfo info;
    std::unique_ptr<WeightSource> source;
    expect_ok(open_layer(folder.path(), 3, &info, &source));
    ExpertBytes bytes;
    expect_error(
        source->expert(2, &bytes), Code::kBadCheckpoint,
        {"expert 2", "'layers.3.ffn.experts.2.w1.weight' is missing", "2 of 16 experts: 1, 5"});
}

TEST(Synth, EveryGridAndBiasesSurvive) {
    for (const ScaleGrid grid : {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                 ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32}) {
        const TempFolder folder;
        SynthOptions options = options_of(folder.path(), "gpt-oss-20b");
        options.layer.shape.hidden = 160;
        options.layer.shape.shared_inter = 192;  // no multiple of inter
        options.layer.shared_grid = grid;
        options.layer.weight_scales = "span_per_k128:3;span_per_expert:20";
        options.experts = {0, 7};
        SynthReport report;
        expect_ok(synthesise_checkpoint(options, &report));
        expect_reads_back(options, {0, 7});
    }
}

TEST(Synth, SameOptionsSameBytes) {
    const TempFolder one;
    const TempFolder two;
    SynthReport report;
    for (const TempFolder* folder : {&one, &two}) {
        SynthOptions options = options_of(folder->path(), "v4-flash");
        options.experts = {0, 1};
        expect_ok(synthesise_checkpoint(options, &report));
    }
    for (const char* name : {"model.safetensors", "config.json"}) {
        EXPECT_TRUE(read_bytes(one.file(name)) == read_bytes(two.file(name))) << name;
    }
}

TEST(Synth, RefusesBadOptions) {
    const TempFolder folder;
    SynthReport report;
    SynthOptions options = options_of(folder.file("made"), "v4-flash");
    options.experts = {3, 3};
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"3 stands where 4"});
    options.experts = {8};
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"ids below 8; 8"});
    options.experts = {};
    options.layer_idx = -1;
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"layer -1"});
    EXPECT_EQ(folder.num_entries(), 0);
    options.layer_idx = 0;
    write_bytes(folder.file("old.safetensors"), "x");
    options.folder = folder.path();
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput,
                 {folder.path(), "holds a checkpoint already: 'old.safetensors'"});
    options.folder = folder.file("old.safetensors/below");
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"cannot be made"});
    EXPECT_EQ(folder.num_entries(), 1);
}

TEST(Synth, FullDiskLeavesNothing) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("made"), "v4-flash");
    options.shard_bytes = 20000;
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit small = before;
    small.rlim_cur = 17000;  // the first shards, 16 KiB of shared weights each, still fit
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    SynthReport report;
    const Status status = synthesise_checkpoint(options, &report);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, old_handler);
    expect_error(status, Code::kBadInput, {"cannot be written", "File too large"});
    EXPECT_EQ(folder.num_entries(), 0);
}

// Flipped bits in header and config: every reader call ends in a status.
TEST(Synth, ReadersSurviveDamage) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.path(), "v4.1-flash");
    options.experts = {0, 1};
    SynthReport report;
    expect_ok(synthesise_checkpoint(options, &report));
    const std::string model = read_bytes(folder.file("model.safetensors"));
    const std::string config = read_bytes(folder.file("config.json"));
    const std::size_t header_bytes = model.find("}}") + 2;
    int num_opened = 0;
    for (unsigned seed = 0; seed < 400; ++seed) {
        std::mt19937 random(seed);
        std::string bytes = seed % 4 == 0 ? config : model;
        char& byte = bytes[random() % (seed % 4 == 0 ? config.size() : header_bytes)];
        byte = static_cast<char>(byte ^ static_cast<char>(1U << (random() % 8)));
        write_bytes(folder.file("model.safetensors"), seed % 4 == 0 ? model : bytes);
        write_bytes(folder.file("config.json"), seed % 4 == 0 ? bytes : config);
        LayerInfo info;
        std::unique_ptr<WeightSource> source;
        const Status status = open_layer(folder.path(), 3, &info, &source);
        ASSERT_EQ(status.ok(), source != nullptr) << seed;
        if (!status.ok()) continue;
        ++num_opened;
        for (const int expert_idx : {0, 1, 2}) {
            ExpertBytes read;
            if (source->expert(expert_idx, &read).ok()) scales_of(read.down);
        }
        SharedExpertBytes shared;
        if (source->shared_expert(&shared).ok()) codes_of(shared.down);
    }
    EXPECT_GT(num_opened, 0);
}

}  // namespace
}  // namespace gcmoe::checkpoint
