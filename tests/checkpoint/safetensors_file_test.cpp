#include "checkpoint/safetensors_file.hpp"

#include <sys/resource.h>

#include <random>

#include "checkpoint/json_text.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

using Part = std::initializer_list<std::string>;

// Writes the bytes, expects the reader to refuse them in a sentence that has the file and all
// parts.
void expect_refused(const std::string& bytes, Part parts) {
    const TempFolder folder;
    const std::string path = folder.file("bad.safetensors");
    write_bytes(path, bytes);
    std::unique_ptr<SafetensorsFile> file;
    const Status status = SafetensorsFile::open(path, &file);
    expect_error(status, Code::kBadCheckpoint, {path});
    expect_error(status, Code::kBadCheckpoint, parts);
    EXPECT_EQ(file, nullptr);
}

void expect_header_refused(const std::string& header, std::size_t data_bytes, Part parts) {
    expect_refused(safetensors_bytes(header, std::string(data_bytes, 'x')), parts);
}

constexpr const char* kGoodHeader =
    R"({"__metadata__":{"format":"pt","note":"two"},)"
    R"("a":{"dtype":"I8","shape":[2,3],"data_offsets":[0,6]},)"
    R"("empty":{"dtype":"F32","shape":[0,7],"data_offsets":[6,6]},)"
    R"("scalar":{"dtype":"F8_E8M0","shape":[],"data_offsets":[14,15]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]}}   )";

TEST(SafetensorsFile, ReadsTensorsAndMetadata) {
    const TempFolder folder;
    const std::string path = folder.file("good.safetensors");
    write_bytes(path, safetensors_bytes(kGoodHeader, "abcdefABCDEFGHz"));
    std::unique_ptr<SafetensorsFile> file;
    expect_ok(SafetensorsFile::open(path, &file));
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(file->metadata().at("format"), "pt");
    EXPECT_EQ(file->metadata().at("note"), "two");
    ASSERT_EQ(file->tensors().size(), 4U);
    EXPECT_EQ(file->tensors()[0].name, "a");
    EXPECT_EQ(file->tensors()[1].name, "empty");
    EXPECT_FALSE(file->contains("__metadata__"));
    StoredTensor tensor;
    expect_ok(file->tensor("b", &tensor));
    EXPECT_EQ(tensor.dtype, Dtype::kF32);
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{2}));
    EXPECT_EQ(bytes_of_tensor(tensor), "ABCDEFGH");
    expect_ok(file->tensor("scalar", &tensor));
    EXPECT_EQ(tensor.num_bytes, 1U);
    EXPECT_EQ(bytes_of_tensor(tensor), "z");
    expect_error(file->tensor("c", &tensor), Code::kBadCheckpoint, {path, "no tensor 'c'"});
}

TEST(SafetensorsFile, TensorsOutliveReaderAndName) {
    StoredTensor tensor;
    {
        const TempFolder folder;
        const std::string path = folder.file("good.safetensors");
        write_bytes(path, safetensors_bytes(kGoodHeader, "abcdefABCDEFGHz"));
        std::unique_ptr<SafetensorsFile> file;
        expect_ok(SafetensorsFile::open(path, &file));
        expect_ok(file->tensor("a", &tensor));
    }
    EXPECT_EQ(bytes_of_tensor(tensor), "abcdef");
}

TEST(SafetensorsFile, KnowsEveryDtype) {
    const std::pair<const char*, std::uint64_t> sizes[] = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
        {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
        {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8}};
    for (const auto& [name, num_bytes] : sizes) {
        Dtype dtype = Dtype::kU8;
        ASSERT_TRUE(dtype_from_name(name, &dtype)) << name;
        EXPECT_STREQ(dtype_name(dtype), name);
        EXPECT_EQ(dtype_bytes(dtype), num_bytes) << name;
    }
    Dtype dtype = Dtype::kF64;
    EXPECT_FALSE(dtype_from_name("F4", &dtype));
    EXPECT_EQ(dtype, Dtype::kF64);
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
    const TempFolder folder;
    std::unique_ptr<SafetensorsFile> file;
    const std::string missing = folder.file("missing.safetensors");
    expect_error(SafetensorsFile::open(missing, &file), Code::kBadCheckpoint,
                 {missing, "No such file"});
    expect_error(SafetensorsFile::open(folder.path(), &file), Code::kBadCheckpoint,
                 {folder.path(), "not a regular file"});
}

TEST(SafetensorsFile, RefusesShortFilesAndHeaderLengths) {
    expect_refused("", {"0 bytes, shorter than the 8 bytes"});
    expect_refused("1234567", {"7 bytes, shorter than the 8 bytes"});
    expect_refused(length_bytes(3) + "{}", {"header length 3 is larger than the file (10 bytes)"});
    expect_refused(length_bytes(~std::uint64_t{0}) + "{}",
                   {"header length 18446744073709551615 is larger than the file"});
    expect_refused(length_bytes(0), {"header", "not valid JSON"});
}

TEST(SafetensorsFile, RefusesHeadersAboveTheCap) {
    const TempFolder folder;
    const std::string path = folder.file("large.safetensors");
    write_bytes(path, length_bytes(kMaxJsonBytes + 1));
    std::filesystem::resize_file(path, kMaxJsonBytes + 100);  // sparse
    std::unique_ptr<SafetensorsFile> file;
    expect_error(SafetensorsFile::open(path, &file), Code::kBadCheckpoint,
                 {path, "header length 104857601 is above the cap of 104857600"});
}

TEST(SafetensorsFile, HugeClaimsAllocateNothing) {
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    expect_refused(length_bytes(std::uint64_t{1} << 40) + "{}", {"header length 1099511627776"});
    expect_header_refused(
        R"({"t":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})", 8,
        {"'t'", "[0,4398046511104] end past the 8 data bytes"});
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);  // KiB
}

TEST(SafetensorsFile, RefusesBadJson) {
    expect_header_refused("{", 0, {"header is not valid JSON"});
    expect_header_refused("{}x", 0, {"header is not valid JSON"});
    expect_header_refused("[1]", 0, {"header [1] is not a JSON object"});
    expect_header_refused("{\"\xff\":1}", 0, {"header is not valid JSON"});
    expect_header_refused(std::string(100000, '['), 0, {"nested deeper than 32 levels"});
    expect_header_refused(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                          R"("a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
                          2, {"the name 'a' stands there twice"});
    expect_header_refused(R"({"a":{"dtype":"I8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                          1, {"the name 'dtype' stands there twice"});
}

TEST(SafetensorsFile, RefusesBadEntries) {
    expect_header_refused(R"({"t":3})", 0, {"tensor 't'", "entry 3 is not an object"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1]}})", 1,
                          {"tensor 't'", "data_offsets is missing"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[0,1],"x":0}})", 1,
                          {"tensor 't'", "has fields besides"});
    expect_header_refused(R"({"t":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
                          {"tensor 't'", "unknown dtype \"F4\""});
    expect_header_refused(R"({"t":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1,
                          {"tensor 't'", "unknown dtype 8"});
    expect_header_refused(R"({"__metadata__":{"a":1}})", 0, {"value 1 of 'a' is not a string"});
    expect_header_refused(R"({"__metadata__":[]})", 0, {"__metadata__ [] is not an object"});
}

TEST(SafetensorsFile, RefusesBadShapes) {
    expect_header_refused(R"({"t":{"dtype":"I8","shape":4,"data_offsets":[0,4]}})", 4,
                          {"tensor 't'", "shape 4 is not a list"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[2,-2],"data_offsets":[0,4]}})", 4,
                          {"tensor 't'", "shape [2,-2]: dimension -2 is not a count"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1.5],"data_offsets":[0,1]}})", 1,
                          {"tensor 't'", "dimension 1.5 is not a count"});
    expect_header_refused(
        R"({"t":{"dtype":"I8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1,
        {"tensor 't'", "dimension 18446744073709551615 is not a count"});
    expect_header_refused(
        R"({"t":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
        {"tensor 't'", "F32 [4611686018427387904, 4] has more than 2^64 bytes"});
    expect_header_refused(R"({"t":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,6]}})", 6,
                          {"tensor 't'", "BF16 [2, 3] has 12 bytes", "[0, 6] hold 6"});
}

TEST(SafetensorsFile, RefusesBadOffsets) {
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[-1,0]}})", 1,
                          {"tensor 't'", "data_offsets [-1,0] are negative"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[3,2]}})", 4,
                          {"tensor 't'", "data_offsets [3,2] are inverted"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[0]}})", 1,
                          {"tensor 't'", "data_offsets [0] is not a list of two"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[0,"1"]}})", 1,
                          {"tensor 't'", "are not integers"});
    expect_header_refused(R"({"t":{"dtype":"I8","shape":[9],"data_offsets":[0,9]}})", 8,
                          {"tensor 't'", "data_offsets [0,9] end past the 8 data bytes"});
    expect_header_refused(
        R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[0,99999999999999999999]}})", 8,
        {"tensor 't'", "are not integers"});
}

TEST(SafetensorsFile, RefusesOverlapsAndHoles) {
    expect_header_refused(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"I8","shape":[3],"data_offsets":[3,6]}})",
                          6, {"tensor 'b'", "[3, 6] overlap those of 'a', [0, 4]"});
    expect_header_refused(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
                          4, {"tensor 'b'", "[0, 4] overlap those of 'a'"});
    expect_header_refused(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"I8","shape":[1],"data_offsets":[5,6]}})",
                          6, {"tensor 'b'", "data bytes [4, 5) belong to no tensor"});
    expect_header_refused(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}})", 3,
                          {"tensor 'a'", "data bytes [0, 2) belong to no tensor"});
    expect_header_refused(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 7,
                          {"hole at the end: data bytes [4, 7)", "last tensor: 'a'"});
    expect_header_refused("{}", 1, {"data bytes [0, 1)", "last tensor: none"});
}

TEST(SafetensorsFile, SentencesCannotBeSteered) {
    const std::string name = "\\u001b[31m" + std::string(5000, 'n');
    expect_header_refused("{\"" + name + R"(":{"dtype":"I8","shape":[1],"data_offsets":[3,2]}})", 4,
                          {"tensor '\\x1b[31mnnn", "(5005 bytes)", "inverted"});
}

// A small valid file, cut or with flipped bits, is read or refused: never a crash, and what is read
// lies inside the file.
TEST(SafetensorsFile, SurvivesDamage) {
    const TempFolder folder;
    const std::string path = folder.file("damaged.safetensors");
    const std::string whole = safetensors_bytes(kGoodHeader, "abcdefABCDEFGHz");
    int num_read = 0;
    constexpr int kNumSeeds = 2000;
    for (int seed = 0; seed < kNumSeeds; ++seed) {
        std::mt19937 random(static_cast<unsigned>(seed));
        std::string bytes = whole;
        if (seed % 4 == 0) bytes.resize(random() % bytes.size());
        const auto num_flips = seed % 4 == 0 ? random() % 2 : 1 + random() % 3;
        for (std::uint_fast32_t flip = 0; flip < num_flips && !bytes.empty(); ++flip) {
            char& byte = bytes[random() % bytes.size()];
            byte = static_cast<char>(byte ^ static_cast<char>(1U << (random() % 8)));
        }
        write_bytes(path, bytes);
        std::unique_ptr<SafetensorsFile> file;
        const Status status = SafetensorsFile::open(path, &file);
        ASSERT_EQ(status.ok(), file != nullptr) << seed;
        if (!status.ok()) {
            ASSERT_EQ(status.code(), Code::kBadCheckpoint) << seed;
            continue;
        }
        ++num_read;
        std::uint64_t num_bytes = 0;
        for (const TensorRecord& record : file->tensors()) {
            StoredTensor tensor;
            ASSERT_TRUE(file->tensor(record.name, &tensor).ok()) << seed;
            num_bytes += bytes_of_tensor(tensor).size();
        }
        ASSERT_LE(num_bytes, bytes.size()) << seed;
    }
    EXPECT_GT(num_read, 0);
    EXPECT_LT(num_read, kNumSeeds / 2);
}

}  // namespace
}  // namespace gcmoe::checkpoint
