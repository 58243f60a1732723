// synth over an earlier checkpoint, and synth that is stopped.
#include "layout_cases.hpp"

namespace gcmoe::checkpoint {
namespace {

TEST(SynthReplace, OnlyWhatIsItsOwnAndOnlyWhenItIsWhole) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.path(), CheckpointFormat::kDeepseekV4);
    write(options);
    write_bytes(folder.file("notes.txt"), "mine");
    const std::string old_shard = read_bytes(folder.file("model.safetensors"));
    SynthReport report;
    options.layer_idx = 5;
    options.shard_bytes = 40000;
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput,
                 {"holds a checkpoint already"});
    options.may_replace = true;
    int num_left = 4;
    options.proceed = [&num_left] {
        return --num_left > 0 ? Status() : Status(Code::kBadInput, "interrupted");
    };
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"interrupted"});
    EXPECT_EQ(folder.num_entries(), 3);
    EXPECT_EQ(read_bytes(folder.file("model.safetensors")), old_shard);
    options.proceed = {};
    expect_ok(synthesise_checkpoint(options, &report));
    EXPECT_EQ(folder.num_entries(), report.num_files + 3);  // index, config and the notes
    EXPECT_EQ(read_bytes(folder.file("notes.txt")), "mine");
    OpenedLayer opened;
    expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
    ExpertBytes bytes;
    for (int expert = 0; expert < 3; ++expert) expect_ok(opened.source->expert(expert, &bytes));
    // Back to one file of the first name: every shard goes.
    options.shard_bytes = 0;
    expect_ok(synthesise_checkpoint(options, &report));
    EXPECT_EQ(folder.num_entries(), 3);
    expect_ok(open_checkpoint_layer(folder.path(), read_options_of(options), &opened));
    // A shard of somebody else among them.
    write_bytes(folder.file("other.safetensors"), "x");
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"'other.safetensors'"});
    EXPECT_EQ(folder.num_entries(), 4);
}

TEST(SynthReplace, StoppedInANewFolderLeavesNothing) {
    const TempFolder folder;
    SynthOptions options = options_of(folder.file("layer"), CheckpointFormat::kW13GateFirst);
    int num_left = 5;
    options.proceed = [&num_left] {
        return --num_left > 0 ? Status() : Status(Code::kBadInput, "interrupted");
    };
    SynthReport report;
    expect_error(synthesise_checkpoint(options, &report), Code::kBadInput, {"interrupted"});
    EXPECT_EQ(folder.num_entries(), 0);
}

}  // namespace
}  // namespace gcmoe::checkpoint
