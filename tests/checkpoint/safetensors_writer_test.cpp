#include "checkpoint/safetensors_writer.hpp"

#include <sys/resource.h>

#include <csignal>

#include "checkpoint/safetensors_file.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

const std::vector<TensorSpec>& two_tensors() {
    static const std::vector<TensorSpec> specs = {{"wide", Dtype::kF32, {2, 1}},
                                                  {"none", Dtype::kF64, {0}},
                                                  {"name \"x\"", Dtype::kF8E4m3, {3}}};
    return specs;
}

void write_two(const std::string& path) {
    std::unique_ptr<SafetensorsWriter> writer;
    expect_ok(SafetensorsWriter::create(path, two_tensors(), {{"format", "pt"}}, &writer));
    ASSERT_NE(writer, nullptr);
    expect_ok(writer->write("wide", "ABC", 3));
    expect_ok(writer->write("wide", "DEFGH", 5));
    expect_ok(writer->write("name \"x\"", "xyz", 3));
    expect_ok(writer->finish());
}

TEST(SafetensorsWriter, WritesGoldenBytes) {
    const TempFolder folder;
    const std::string path = folder.file("out.safetensors");
    write_two(path);
    std::string header = R"({"__metadata__":{"format":"pt"},)"
                         R"("wide":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                         R"("none":{"dtype":"F64","shape":[0],"data_offsets":[8,8]},)"
                         R"("name \"x\"":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[8,11]}})";
    while (header.size() % 8 != 0) header += ' ';
    EXPECT_EQ(read_bytes(path), safetensors_bytes(header, "ABCDEFGHxyz"));
    EXPECT_EQ(folder.num_entries(), 1);
}

TEST(SafetensorsWriter, ReadsBackAndRepeats) {
    const TempFolder folder;
    write_two(folder.file("one"));
    write_two(folder.file("two"));
    EXPECT_EQ(read_bytes(folder.file("one")), read_bytes(folder.file("two")));
    std::unique_ptr<SafetensorsFile> file;
    expect_ok(SafetensorsFile::open(folder.file("one"), &file));
    StoredTensor tensor;
    expect_ok(file->tensor("wide", &tensor));
    EXPECT_EQ(tensor.begin_bytes % 8, 0U);
    EXPECT_EQ(file->metadata().at("format"), "pt");
}

TEST(SafetensorsWriter, ReplacesOnlyWhenFinished) {
    const TempFolder folder;
    const std::string path = folder.file("out.safetensors");
    write_bytes(path, "old");
    {
        std::unique_ptr<SafetensorsWriter> writer;
        expect_ok(SafetensorsWriter::create(path, two_tensors(), {}, &writer));
        expect_ok(writer->write("wide", "ABCDEFGH", 8));
        expect_error(writer->finish(), Code::kBadInput,
                     {path, "'name \"x\"'", "finished after 0 of its 3 bytes"});
    }
    EXPECT_EQ(read_bytes(path), "old");
    EXPECT_EQ(folder.num_entries(), 1);
    write_two(path);
    EXPECT_NE(read_bytes(path), "old");
}

TEST(SafetensorsWriter, RefusesBadLists) {
    const TempFolder folder;
    const std::string path = folder.file("out.safetensors");
    std::unique_ptr<SafetensorsWriter> writer;
    const auto create = [&](const std::vector<TensorSpec>& specs) {
        return SafetensorsWriter::create(path, specs, {}, &writer);
    };
    expect_error(create({{"a", Dtype::kU8, {1}}, {"a", Dtype::kU8, {1}}}), Code::kBadInput,
                 {path, "'a'", "twice"});
    expect_error(create({{"", Dtype::kU8, {1}}}), Code::kBadInput, {"empty or reserved"});
    expect_error(create({{"__metadata__", Dtype::kU8, {1}}}), Code::kBadInput, {"reserved"});
    expect_error(create({{"\xff", Dtype::kU8, {1}}}), Code::kBadInput, {"'\\xff'", "not UTF-8"});
    expect_error(create({{"a", Dtype::kU8, {-1}}}), Code::kBadInput, {"'a'", "[-1]"});
    expect_error(create({{"a", Dtype::kU8, {3}}, {"b", Dtype::kF32, {1}}}), Code::kBadInput,
                 {"'b'", "F32 would stand at data byte 3, not a multiple of 4"});
    const std::int64_t half = std::int64_t{1} << 62;
    expect_error(create({{"a", Dtype::kF64, {half}}}), Code::kBadInput, {"'a'", "2^64"});
    expect_error(create({{"a", Dtype::kU8, {half, 3}}, {"b", Dtype::kU8, {half}}}), Code::kBadInput,
                 {"'b'", "2^64"});
    expect_error(SafetensorsWriter::create(path, {}, {{"k", "\xff"}}, &writer), Code::kBadInput,
                 {"metadata 'k'", "not UTF-8"});
    EXPECT_EQ(folder.num_entries(), 0);
}

TEST(SafetensorsWriter, RefusesBytesOutOfTurn) {
    const TempFolder folder;
    const std::string path = folder.file("out.safetensors");
    std::unique_ptr<SafetensorsWriter> writer;
    expect_ok(SafetensorsWriter::create(path, {{"a", Dtype::kU8, {2}}, {"b", Dtype::kU8, {1}}}, {},
                                        &writer));
    expect_error(writer->write("b", "x", 1), Code::kBadInput, {"'b'", "next is 'a'"});
    expect_error(writer->write("a", "xyz", 3), Code::kBadInput, {"'a'", "3 bytes after 0"});
    expect_ok(writer->write("a", "xy", 2));
    expect_ok(writer->write("b", "z", 1));
    expect_error(writer->write("b", "z", 1), Code::kBadInput, {"'b'", "next is the end"});
    expect_ok(writer->finish());
}

TEST(SafetensorsWriter, UnwritablePathsGiveErrors) {
    const TempFolder folder;
    std::unique_ptr<SafetensorsWriter> writer;
    expect_error(SafetensorsWriter::create(folder.file("none/out"), two_tensors(), {}, &writer),
                 Code::kBadInput, {folder.file("none/out"), "cannot be created", "No such file"});
    // A folder stands under the name: the rename fails, the partial file goes.
    std::filesystem::create_directories(folder.file("taken/inside"));
    expect_error(SafetensorsWriter::create(folder.file("taken"), {}, {}, &writer), Code::kBadInput,
                 {folder.file("taken"), "no regular file"});
    // Devices and links stay what they are.
    std::filesystem::create_symlink("elsewhere", folder.file("link"));
    for (const std::string& path : {std::string("/dev/null"), folder.file("link")}) {
        expect_error(SafetensorsWriter::create(path, {}, {}, &writer), Code::kBadInput,
                     {path, "no regular file"});
        EXPECT_FALSE(std::filesystem::is_regular_file(path));
    }
    // A name that becomes a folder while the file is written.
    expect_ok(SafetensorsWriter::create(folder.file("late"), {}, {}, &writer));
    std::filesystem::create_directories(folder.file("late/inside"));
    expect_error(writer->finish(), Code::kBadInput, {folder.file("late"), "cannot be named"});
    EXPECT_EQ(folder.num_entries(), 3);  // taken, link, late: no partial file
}

// A limit on file sizes stands in for a full disk: write fails in the middle all the same.
TEST(SafetensorsWriter, FullDiskLeavesNothing) {
    const TempFolder folder;
    const std::string path = folder.file("out.safetensors");
    std::unique_ptr<SafetensorsWriter> writer;
    constexpr std::size_t kTensorBytes = 1 << 20;
    expect_ok(SafetensorsWriter::create(path, {{"a", Dtype::kU8, {kTensorBytes}}}, {}, &writer));
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit small = before;
    small.rlim_cur = 64 << 10;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string bytes(kTensorBytes, 'x');
    const Status first = writer->write("a", bytes.data(), bytes.size());
    const Status second = writer->write("a", bytes.data(), 1);
    const Status last = writer->finish();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, old_handler);
    expect_error(first, Code::kBadInput, {path, "cannot be written", "File too large (27)"});
    EXPECT_EQ(second.message(), first.message());
    EXPECT_FALSE(last.ok());
    EXPECT_EQ(folder.num_entries(), 0);
}

TEST(AtomicFile, WritesText) {
    const TempFolder folder;
    expect_ok(write_text_file(folder.file("a.txt"), "hello\n"));
    EXPECT_EQ(read_bytes(folder.file("a.txt")), "hello\n");
    expect_error(write_text_file(folder.file("x/a.txt"), "hello\n"), Code::kBadInput,
                 {"x/a.txt", "cannot be created"});
    EXPECT_EQ(folder.num_entries(), 1);
}

}  // namespace
}  // namespace gcmoe::checkpoint
