// Files that become shorter while they are read: an error with both sizes, never a signal.
#include <filesystem>

#include "checkpoint/input_file.hpp"
#include "checkpoint/layer_identity.hpp"
#include "checkpoint/packed_file.hpp"
#include "checkpoint/packed_writer.hpp"
#include "layout_cases.hpp"

namespace gcmoe::checkpoint {
namespace {

TEST(ShrinkingFile, InputFileNamesBothSizes) {
    const TempFolder folder;
    const std::string path = folder.file("f");
    write_bytes(path, std::string(10000, 'a'));
    std::shared_ptr<const InputFile> file;
    expect_ok(InputFile::open(path, &file));
    std::filesystem::resize_file(path, 5000);
    std::string bytes(10000, '\0');
    expect_ok(file->read(0, 5000, bytes.data()));
    EXPECT_EQ(bytes[4999], 'a');
    expect_error(
        file->read(4000, 2000, bytes.data()), Code::kBadCheckpoint,
        {path, "had 10000 bytes when it was opened and has 5000 now, byte 6000 is needed"});
    expect_error(file->read(9999, 1, bytes.data()), Code::kBadCheckpoint, {"has 5000 now"});
    expect_ok(file->read(10000, 0, bytes.data()));
    std::filesystem::resize_file(path, 0);
    expect_error(file->read(0, 1, bytes.data()), Code::kBadCheckpoint, {"has 0 now"});
}

// The checkpoint is cut after its first expert was packed.
TEST(ShrinkingFile, PackingEveryLayout) {
    for (const CheckpointFormat format :
         {CheckpointFormat::kDeepseekV4, CheckpointFormat::kBlockFp8, CheckpointFormat::kBf16,
          CheckpointFormat::kGptOss, CheckpointFormat::kW13GateFirst}) {
        SCOPED_TRACE(static_cast<int>(format));
        const TempFolder folder;
        SynthOptions options = options_of(folder.file("layer"), format);
        options.layer.shape.hidden = 256;  // as the packer wants them: no padding
        options.layer.shape.inter = 256;
        options.layer.shape.shared_inter = format == CheckpointFormat::kGptOss ? 0 : 256;
        write(options);
        const std::string shard = options.folder + "/model.safetensors";
        OpenedLayer opened;
        expect_ok(open_checkpoint_layer(options.folder, read_options_of(options), &opened));
        PackedLayer layer;
        layer.shape = layer_shape(opened.info, 1);
        layer.model_hidden = 256;
        layer.model_inter = 256;
        const std::uintmax_t num_bytes = std::filesystem::file_size(shard);
        PackSteps steps;
        steps.progress = [&] { std::filesystem::resize_file(shard, 4096); };
        PackReport report;
        expect_error(
            write_packed_file(*opened.source, layer, {}, folder.file("packed"), steps, &report),
            Code::kBadCheckpoint,
            {shard, std::to_string(num_bytes) + " bytes when it was opened and has 4096 now"});
        EXPECT_EQ(folder.num_entries(), 1);  // the layer
        LayerIdentity identity;
        EXPECT_FALSE(identify_checkpoint_layer(options.folder, read_options_of(options),
                                               opened.info, &identity)
                         .ok());
    }
}

TEST(ShrinkingFile, PackedFiles) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kDeepseekV4);
    options.layer.shape.hidden = 256;
    options.layer.shape.inter = 256;
    options.layer.shape.shared_inter = 256;
    write(options);
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(options.folder, read_options_of(options), &opened));
    PackedLayer layer;
    layer.shape = layer_shape(opened.info, 1);
    layer.model_hidden = 256;
    layer.model_inter = 256;
    const std::string path = folder.file("packed");
    PackReport report;
    expect_ok(write_packed_file(*opened.source, layer, {}, path, {}, &report));
    std::unique_ptr<PackedFile> file;
    expect_ok(PackedFile::open(path, &file));
    std::filesystem::resize_file(path, file->num_bytes() / 2);
    std::shared_ptr<const PackedWeights> weights;
    expect_error(file->load(&weights), Code::kBadCheckpoint,
                 {path, std::to_string(file->num_bytes()) + " bytes when it was opened"});
    EXPECT_EQ(weights, nullptr);
}

}  // namespace
}  // namespace gcmoe::checkpoint
