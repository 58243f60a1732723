// Packed files: what goes in comes out, for every layout and target, and nothing damaged is read.
#include "checkpoint/packed_file.hpp"

#include <cstddef>
#include <cstring>
#include <limits>

#include "checkpoint/layer_identity.hpp"
#include "checkpoint/packed_writer.hpp"
#include "checkpoint/padded_source.hpp"
#include "checkpoint/unpacked_source.hpp"
#include "expert_bytes.hpp"
#include "layout_cases.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr PackTarget kTargets[] = {PackTarget::kSm90, PackTarget::kSm100};

// A layer of 192 x 160 as the command opens it: padded to 256 x 256.
struct Opened {
    PackedLayer layer;
    std::unique_ptr<WeightSource> source;

    explicit Opened(const SynthOptions& options, PackTarget target, int num_ranks = 1) {
        OpenedLayer opened;
        expect_ok(open_checkpoint_layer(options.folder, read_options_of(options), &opened));
        expect_ok(identify_checkpoint_layer(options.folder, read_options_of(options), opened.info,
                                            &layer.identity));
        layer.shape = layer_shape(opened.info, num_ranks);
        layer.shape.hidden = 256;
        layer.shape.inter = 256;
        if (layer.shape.shared_inter > 0) layer.shape.shared_inter = 384;
        layer.target = target;
        layer.model_hidden = 192;
        layer.model_inter = 160;
        layer.routed_scale = 1.5F;
        expect_ok(
            pad_source(std::move(opened.source), {256, 256, layer.shape.shared_inter}, &source));
    }
};

SynthOptions write_layer(const std::string& folder, CheckpointFormat format,
                         ScaleGrid grid = ScaleGrid::kUe8m0Block32) {
    SynthOptions options = options_of(folder, format);
    options.layer.shared_grid = grid;
    SynthReport report;
    expect_ok(synthesise_checkpoint(options, &report));
    return options;
}

std::shared_ptr<const PackedFile> open_file(const std::string& path) {
    std::unique_ptr<PackedFile> file;
    expect_ok(PackedFile::open(path, &file));
    return file;
}

// Nibbles byte for byte; scale codes where a group is not zero (sm90 keeps no code for zeros).
void expect_same_weights(const Mxfp4View& packed, const Mxfp4View& stored, bool all_scales) {
    ASSERT_EQ(nibbles_of(packed), nibbles_of(stored));
    if (all_scales) {
        EXPECT_EQ(scales_of(packed), scales_of(stored));
        return;
    }
    const std::string nibbles = nibbles_of(stored);
    for (std::size_t group = 0; group < scales_of(stored).size(); ++group) {
        bool is_zero = true;
        for (std::size_t byte = 0; byte < 16; ++byte) {
            is_zero = is_zero && (nibbles[16 * group + byte] & 0x77) == 0;
        }
        if (!is_zero) {
            ASSERT_EQ(packed.scales[group], stored.scales[group]) << group;
        }
    }
}

void expect_same_layer(WeightSource* stored_source, WeightSource* unpacked,
                       const PackedLayer& layer) {
    const bool all_scales = layer.target == PackTarget::kSm100;
    for (int expert_idx = 0; expert_idx < layer.shape.num_experts; ++expert_idx) {
        ExpertBytes packed;
        ExpertBytes stored;
        expect_ok(unpacked->expert(expert_idx, &packed));
        expect_ok(stored_source->expert(expert_idx, &stored));
        expect_same_weights(packed.gate, stored.gate, all_scales);
        expect_same_weights(packed.up, stored.up, all_scales);
        expect_same_weights(packed.down, stored.down, all_scales);
        EXPECT_EQ(bias_bytes(packed.gate_bias, 256), bias_bytes(stored.gate_bias, 256));
        EXPECT_EQ(bias_bytes(packed.up_bias, 256), bias_bytes(stored.up_bias, 256));
        EXPECT_EQ(bias_bytes(packed.down_bias, 256), bias_bytes(stored.down_bias, 256));
    }
    if (layer.shape.shared_inter == 0) return;
    SharedExpertBytes packed;
    SharedExpertBytes stored;
    expect_ok(unpacked->shared_expert(&packed));
    expect_ok(stored_source->shared_expert(&stored));
    EXPECT_EQ(codes_of(packed.gate), codes_of(stored.gate));
    EXPECT_EQ(codes_of(packed.up), codes_of(stored.up));
    EXPECT_EQ(codes_of(packed.down), codes_of(stored.down));
    for (const auto& [left, right] :
         {std::pair{&packed.gate, &stored.gate}, std::pair{&packed.up, &stored.up},
          std::pair{&packed.down, &stored.down}}) {
        std::vector<float> values(static_cast<std::size_t>(left->cols));
        std::vector<float> expected(values.size());
        for (int row = 0; row < left->rows; ++row) {
            decode_row(*left, row, values.data());
            decode_row(*right, row, expected.data());
            ASSERT_EQ(values, expected) << row;
        }
    }
}

TEST(PackedFile, EveryLayoutAndTargetComesBack) {
    for (const CheckpointFormat format :
         {CheckpointFormat::kDeepseekV4, CheckpointFormat::kBlockFp8, CheckpointFormat::kGptOss,
          CheckpointFormat::kW13GateFirst, CheckpointFormat::kW13UpFirst}) {
        const TempFolder folder;
        const SynthOptions options = write_layer(folder.file("layer"), format);
        for (const PackTarget target : kTargets) {
            SCOPED_TRACE(testing::Message()
                         << static_cast<int>(format) << " " << target_name(target));
            Opened opened(options, target);
            const std::string path = folder.file(target_name(target));
            PackReport report;
            int num_told = 0;
            PackSteps steps;
            steps.progress = [&] { ++num_told; };
            expect_ok(write_packed_file(*opened.source, opened.layer, {}, path, steps, &report));
            EXPECT_EQ(num_told, 3);
            EXPECT_EQ(report.num_experts, 3);
            const auto file = open_file(path);
            ASSERT_NE(file, nullptr);
            EXPECT_EQ(file->experts(), (std::vector<int>{0, 1, 2}));
            const PackedHeader written = header_of(opened.layer);
            const PackedHeader read = header_of(file->layer());
            EXPECT_EQ(std::memcmp(&written, &read, sizeof(read)), 0);
            EXPECT_EQ(file->layer().identity.text(), opened.layer.identity.text());
            UnpackedSource unpacked({file});
            expect_same_layer(opened.source.get(), &unpacked, file->layer());
            expect_ok(compare_with_source(*opened.source, file));
        }
    }
}

TEST(PackedFile, SharedExpertsInAllGrids) {
    for (const ScaleGrid grid : {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                 ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32}) {
        const TempFolder folder;
        const SynthOptions options =
            write_layer(folder.file("layer"), CheckpointFormat::kDeepseekV41, grid);
        for (const PackTarget target : kTargets) {
            SCOPED_TRACE(testing::Message()
                         << static_cast<int>(grid) << " " << target_name(target));
            Opened opened(options, target);
            const std::string path = folder.file(target_name(target));
            PackReport report;
            const Status status =
                write_packed_file(*opened.source, opened.layer, {}, path, {}, &report);
            if (grid == ScaleGrid::kFp32Block128 && target == PackTarget::kSm100) {
                expect_error(status, Code::kInexact, {"shared expert gate row 0", "power of two"});
                EXPECT_FALSE(std::filesystem::exists(path));
                continue;
            }
            expect_ok(status);
            expect_ok(compare_with_source(*opened.source, open_file(path)));
        }
    }
}

TEST(PackedFile, LoadsWhatPackingInMemoryGives) {
    const TempFolder folder;
    const SynthOptions options = write_layer(folder.file("layer"), CheckpointFormat::kGptOss);
    Opened opened(options, PackTarget::kSm90, 3);
    for (int rank = 0; rank < 3; ++rank) {
        opened.layer.rank = rank;
        const std::string path = folder.file("rank" + std::to_string(rank));
        PackReport report;
        expect_ok(write_packed_file(*opened.source, opened.layer, {}, path, {}, &report));
        std::shared_ptr<const PackedWeights> loaded;
        expect_ok(open_file(path)->load(&loaded));
        std::shared_ptr<const PackedWeights> packed;
        PackReport in_memory;
        expect_ok(
            PackedWeights::pack(*opened.source, opened.layer.shape, rank, {}, &packed, &in_memory));
        EXPECT_EQ(in_memory.packed_bytes, report.packed_bytes);
        const layout::PackedExpert& left = *loaded->storage().experts[0];
        const layout::PackedExpert& right = *packed->storage().experts[0];
        for (const auto member : {&layout::PackedExpert::first, &layout::PackedExpert::second}) {
            EXPECT_EQ((left.*member).tiles, (right.*member).tiles);
            EXPECT_EQ((left.*member).factors, (right.*member).factors);
            EXPECT_EQ((left.*member).bias, (right.*member).bias);
            EXPECT_EQ((left.*member).form, (right.*member).form);
            EXPECT_EQ((left.*member).order, (right.*member).order);
            EXPECT_EQ((left.*member).rows, (right.*member).rows);
            EXPECT_EQ((left.*member).chunks, (right.*member).chunks);
        }
        EXPECT_TRUE(loaded->has_expert(rank));
        EXPECT_FALSE(loaded->has_expert((rank + 1) % 3));
    }
}

TEST(PackedFile, SameLayerSameBytesAndChunkForms) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    options.layer.weight_scales = "span_per_k128:14;span_per_expert:60";
    SynthReport written;
    expect_ok(synthesise_checkpoint(options, &written));
    Opened opened(options, PackTarget::kSm90);
    PackReport report;
    for (const char* name : {"a", "b"}) {
        expect_ok(
            write_packed_file(*opened.source, opened.layer, {}, folder.file(name), {}, &report));
    }
    EXPECT_GT(report.num_chunk_form, 0);
    EXPECT_EQ(read_bytes(folder.file("a")), read_bytes(folder.file("b")));
    expect_ok(compare_with_source(*opened.source, open_file(folder.file("a"))));
}

TEST(PackedFile, SomeExpertsOfARank) {
    const TempFolder folder;
    const SynthOptions options = write_layer(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    Opened opened(options, PackTarget::kSm90);
    PackOptions only;
    only.only_experts = {2, 0};
    PackReport report;
    expect_ok(write_packed_file(*opened.source, opened.layer, only, folder.file("p"), {}, &report));
    const auto file = open_file(folder.file("p"));
    EXPECT_EQ(file->experts(), (std::vector<int>{0, 2}));
    std::unique_ptr<layout::PackedExpert> expert;
    expect_error(file->load_expert(1, &expert), Code::kBadIndex, {"no expert 1 among its 2"});
    layout::Sm100Expert other;
    expect_error(file->load_sm100(0, &other), Code::kBadConfig, {"for sm90, sm100 were asked for"});
    UnpackedSource unpacked({file});
    ExpertBytes bytes;
    expect_error(unpacked.expert(1, &bytes), Code::kBadIndex, {"none of the 1 packed files"});
}

TEST(PackedFile, ComparisonNamesTheFirstDifference) {
    const TempFolder folder;
    const SynthOptions options = write_layer(folder.file("layer"), CheckpointFormat::kW13GateFirst);
    Opened opened(options, PackTarget::kSm90);
    PackReport report;
    expect_ok(write_packed_file(*opened.source, opened.layer, {}, folder.file("p"), {}, &report));
    OpenedLayer swapped;
    expect_ok(
        open_checkpoint_layer(options.folder, {4, GateUpOrder::kW1UpW3Gate, false}, &swapped));
    std::unique_ptr<WeightSource> padded;
    expect_ok(pad_source(std::move(swapped.source), {256, 256, 384}, &padded));
    expect_error(compare_with_source(*padded, open_file(folder.file("p"))), Code::kBadCheckpoint,
                 {"expert 0 gate, row 0, column", "the source has"});
}

// --- Files that are not what they should be ------------------------------------------------------

class DamagedFile : public testing::Test {
  protected:
    void SetUp() override {
        const SynthOptions options = write_layer(folder_.file("layer"), CheckpointFormat::kGptOss);
        Opened opened(options, PackTarget::kSm90);
        PackReport report;
        expect_ok(
            write_packed_file(*opened.source, opened.layer, {}, folder_.file("p"), {}, &report));
        bytes_ = read_bytes(folder_.file("p"));
    }

    // Opening or loading the bytes fails.
    Status load(const std::string& bytes) {
        write_bytes(folder_.file("q"), bytes);
        std::unique_ptr<PackedFile> file;
        GCMOE_RETURN_IF_ERROR(PackedFile::open(folder_.file("q"), &file));
        std::shared_ptr<const PackedWeights> weights;
        return file->load(&weights);
    }

    template <class Change>
    Status load_with_header(const Change& change) {
        std::string bytes = bytes_;
        PackedHeader header{};
        std::memcpy(&header, bytes.data(), sizeof(header));
        change(&header);
        header.hash = hash_bytes(&header, offsetof(PackedHeader, hash));
        std::memcpy(bytes.data(), &header, sizeof(header));
        PackedTail tail{};
        char* end = bytes.data() + bytes.size() - sizeof(tail);
        std::memcpy(&tail, end, sizeof(tail));
        tail.header_hash = header.hash;
        tail.hash = hash_bytes(&tail, offsetof(PackedTail, hash));
        std::memcpy(end, &tail, sizeof(tail));
        return load(bytes);
    }

    TempFolder folder_;
    std::string bytes_;
};

TEST_F(DamagedFile, IsWholeToBeginWith) { expect_ok(load(bytes_)); }

TEST_F(DamagedFile, OtherFiles) {
    const std::string path = folder_.file("q");
    expect_error(load(""), Code::kBadCheckpoint, {path, "0 bytes", "no packed file"});
    expect_error(load("{\"a\": 1}" + std::string(5000, ' ')), Code::kBadCheckpoint,
                 {path, "magic", "no packed file of gcmoe"});
    expect_error(load(read_bytes(folder_.file("layer/model.safetensors"))), Code::kBadCheckpoint,
                 {"no packed file of gcmoe"});
    std::unique_ptr<PackedFile> file;
    expect_error(PackedFile::open(folder_.file("none"), &file), Code::kBadCheckpoint,
                 {folder_.file("none"), "No such file"});
    expect_error(PackedFile::open(folder_.path(), &file), Code::kBadCheckpoint, {"regular file"});
}

TEST_F(DamagedFile, CutOffAnywhere) {
    for (std::size_t size = 0; size < bytes_.size(); size += 1 + size / 7) {
        const Status status = load(bytes_.substr(0, size));
        EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(Code::kBadCheckpoint)) << size;
    }
    expect_error(load(bytes_.substr(0, 300)), Code::kBadCheckpoint, {"300 bytes", "cut off"});
    expect_error(load(bytes_.substr(0, bytes_.size() - 1)), Code::kBadCheckpoint, {"cut off"});
    expect_error(load(bytes_ + '\0'), Code::kBadCheckpoint, {"cut off"});
    // Bytes lost in the middle: both ends are right.
    const std::size_t middle = bytes_.size() / 2;
    expect_error(load(bytes_.substr(0, middle) + bytes_.substr(middle + 256)), Code::kBadCheckpoint,
                 {"its end belongs to " + std::to_string(bytes_.size()) + " bytes"});
}

// Every byte that is not padding between sections is under a hash.
TEST_F(DamagedFile, AnyFlippedBitIsFound) {
    std::unique_ptr<PackedFile> file;
    expect_ok(PackedFile::open(folder_.file("p"), &file));
    int num_missed = 0;
    int num_tried = 0;
    for (std::size_t at = 0; at < bytes_.size(); at += at < 600 ? 1 : 499) {
        std::string bytes = bytes_;
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
        num_missed += load(bytes).ok() ? 1 : 0;
        ++num_tried;
    }
    for (std::size_t back = 1; back < 700; ++back) {
        std::string bytes = bytes_;
        const std::size_t at = bytes.size() - back;
        bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
        num_missed += load(bytes).ok() ? 1 : 0;
        ++num_tried;
    }
    EXPECT_GT(num_tried, 1500);
    EXPECT_EQ(num_missed, 0);  // sizes here are multiples of the alignment: there are no gaps
}

TEST_F(DamagedFile, HeadersThatNoWriterMakes) {
    const auto refused = [&](auto change, const std::string& part) {
        expect_error(load_with_header(change), Code::kBadCheckpoint, {part});
    };
    refused([](PackedHeader* h) { h->version = 1; },
            "version = 1, needs 2: pack the checkpoint again");
    refused([](PackedHeader* h) { h->header_bytes ^= 1U << 16; }, "header_bytes = ");
    refused([](PackedHeader* h) { h->target = 80; }, "target = 80, needs 90 or 100");
    refused([](PackedHeader* h) { h->hidden = 200; }, "hidden = 200 must be");
    refused([](PackedHeader* h) { h->hidden = -128; }, "hidden = -128");
    refused([](PackedHeader* h) { h->inter = 1 << 30; }, "inter = 1073741824");
    refused([](PackedHeader* h) { h->num_ranks = 2; }, "num_experts = 3 must be");
    refused([](PackedHeader* h) { h->rank = 1; }, "rank = 1 must be in 0..0");
    refused([](PackedHeader* h) { h->topk = 4; }, "topk = 4, needs at most the 3 experts");
    refused([](PackedHeader* h) { h->has_bias = 7; }, "has_bias = 7, needs 0 or 1");
    refused([](PackedHeader* h) { h->clamp = -1.0F; }, "clamp = -1, needs above 0");
    refused([](PackedHeader* h) { h->alpha = std::numeric_limits<float>::quiet_NaN(); },
            "alpha = nan");
    refused([](PackedHeader* h) { h->layer_idx = -1; }, "layer_idx = -1, needs 0 or more");
    refused([](PackedHeader* h) { std::memset(h->model, 'm', sizeof(h->model)); },
            "needs a zero among its 64 bytes");
    // Right by itself, and not what the directory holds.
    refused([](PackedHeader* h) { h->inter = 384; }, "directory: expert 0, first GEMM, tiles");
    refused([](PackedHeader* h) { h->has_bias = 0; }, "directory:");
    refused([](PackedHeader* h) { h->shared_inter = 128; }, "lacks the shared expert of inter 128");
    refused(
        [](PackedHeader* h) {
            h->num_experts = 2;
            h->topk = 2;
        },
        "directory: expert 2");
    refused([](PackedHeader* h) { h->target = 100; }, "directory:");
}

// What passes all hashes and would lead the decoder out of its table.
TEST_F(DamagedFile, BytesThatNoPackerWrites) {
    std::unique_ptr<PackedFile> file;
    expect_ok(PackedFile::open(folder_.file("p"), &file));
    std::unique_ptr<layout::PackedExpert> expert;
    expect_ok(file->load_expert(0, &expert));
    const auto write_with = [&](const layout::PackedExpert& changed) {
        std::unique_ptr<PackedWriter> writer;
        expect_ok(PackedWriter::create(folder_.file("r"), file->layer(), &writer));
        expect_ok(writer->add_expert(0, changed));
        expect_ok(writer->finish());
        std::unique_ptr<PackedFile> read;
        expect_ok(PackedFile::open(folder_.file("r"), &read));
        std::unique_ptr<layout::PackedExpert> loaded;
        return read->load_expert(0, &loaded);
    };
    expect_ok(write_with(*expert));
    layout::PackedExpert changed = *expert;
    changed.first.tiles[layout::kFp4NibbleBytes + 5] = 27;
    expect_error(write_with(changed), Code::kBadCheckpoint, {"expert 0", "window position"});
    changed = *expert;
    changed.second.factors[3] = std::numeric_limits<float>::infinity();
    expect_error(write_with(changed), Code::kBadCheckpoint, {"factor"});
    changed = *expert;
    changed.second.bias[0] = std::numeric_limits<float>::quiet_NaN();
    expect_error(write_with(changed), Code::kBadCheckpoint, {"bias"});
}

TEST(PackedFile, ErrorsLeaveNothing) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    options.experts = {0, 2};
    SynthReport written;
    expect_ok(synthesise_checkpoint(options, &written));
    Opened opened(options, PackTarget::kSm90);
    PackReport report;
    report.num_experts = 77;
    expect_error(write_packed_file(*opened.source, opened.layer, {}, folder.file("p"), {}, &report),
                 Code::kBadCheckpoint, {"experts.1.w1.weight' is missing"});
    EXPECT_EQ(folder.num_entries(), 1);  // the layer
    EXPECT_EQ(report.num_experts, 77);
    expect_error(
        write_packed_file(*opened.source, opened.layer, {}, folder.file("no/where"), {}, &report),
        Code::kBadInput, {"no/where"});
    opened.layer.rank = 1;
    expect_error(write_packed_file(*opened.source, opened.layer, {}, folder.file("p"), {}, &report),
                 Code::kBadConfig, {"rank = 1"});
    opened.layer.rank = 0;
    expect_error(write_packed_file(*opened.source, opened.layer, {}, "/dev/full", {}, &report),
                 Code::kBadInput, {"/dev/full", "no regular file"});
}

// A check sees the whole file before it takes the place of an earlier one.
TEST(PackedFile, WhatACheckRefusesReplacesNothing) {
    const TempFolder folder;
    const SynthOptions options = write_layer(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    Opened opened(options, PackTarget::kSm90);
    PackSteps steps;
    bool accepts = false;
    steps.check = [&](const std::string& partial_path) -> Status {
        EXPECT_NE(partial_path, folder.file("p"));
        GCMOE_RETURN_IF_ERROR(compare_with_source(*opened.source, open_file(partial_path)));
        return accepts ? Status{} : Status{Code::kBadCheckpoint, "differs"};
    };
    PackReport report;
    for (const std::string earlier : {"", "an earlier file"}) {
        if (!earlier.empty()) write_bytes(folder.file("p"), earlier);
        expect_error(
            write_packed_file(*opened.source, opened.layer, {}, folder.file("p"), steps, &report),
            Code::kBadCheckpoint, {"differs"});
        EXPECT_EQ(folder.num_entries(), earlier.empty() ? 1 : 2);  // the layer, and what stood
        EXPECT_EQ(read_bytes(folder.file("p")), earlier);
    }
    accepts = true;
    expect_ok(
        write_packed_file(*opened.source, opened.layer, {}, folder.file("p"), steps, &report));
    EXPECT_EQ(folder.num_entries(), 2);
    expect_ok(compare_with_source(*opened.source, open_file(folder.file("p"))));
}

}  // namespace
}  // namespace gcmoe::checkpoint
