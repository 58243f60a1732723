// Bytes of another process: whatever they say, the reader stays inside them and takes no more
// memory than they have.
#include "base/byte_stream.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace gcmoe {
namespace {

struct Pair {
    std::int32_t one = 0;
    std::uint16_t other = 0;
    bool operator==(const Pair&) const = default;
};

std::vector<std::uint8_t> whole() {
    ByteWriter writer;
    writer.put(std::uint64_t{0x0123456789ABCDEF});
    writer.put(true);
    writer.put(std::string("text"));
    writer.put(std::string());
    writer.put(std::vector<std::uint16_t>{1, 2, 3});
    writer.put(std::vector<Pair>{{4, 5}});
    writer.put(std::vector<double>{});
    return writer.take();
}

struct Values {
    std::uint64_t word = 1;
    bool flag = false;
    std::string text = "before";
    std::string empty = "before";
    std::vector<std::uint16_t> shorts{9};
    std::vector<Pair> pairs;
    std::vector<double> doubles{9};
    bool is_whole = false;
};

Values read(const std::uint8_t* bytes, std::size_t size) {
    Values values;
    ByteReader reader(bytes, size);
    reader.get(&values.word);
    reader.get(&values.flag);
    reader.get(&values.text);
    reader.get(&values.empty);
    reader.get(&values.shorts);
    reader.get(&values.pairs);
    reader.get(&values.doubles);
    values.is_whole = reader.is_whole();
    return values;
}

TEST(ByteStream, ComesBackWhole) {
    const std::vector<std::uint8_t> bytes = whole();
    const Values values = read(bytes.data(), bytes.size());
    EXPECT_TRUE(values.is_whole);
    EXPECT_EQ(values.word, 0x0123456789ABCDEF);
    EXPECT_TRUE(values.flag);
    EXPECT_EQ(values.text, "text");
    EXPECT_EQ(values.empty, "");
    EXPECT_EQ(values.shorts, (std::vector<std::uint16_t>{1, 2, 3}));
    EXPECT_EQ(values.pairs, (std::vector<Pair>{{4, 5}}));
    EXPECT_TRUE(values.doubles.empty());
}

TEST(ByteStream, EveryCutAndEveryTailIsNotWhole) {
    const std::vector<std::uint8_t> bytes = whole();
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        // Of its own size, so that the address sanitizer sees a read past the end.
        const std::vector<std::uint8_t> cut(bytes.begin(),
                                            bytes.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_FALSE(read(cut.data(), cut.size()).is_whole) << size;
    }
    std::vector<std::uint8_t> longer = bytes;
    longer.push_back(0);
    EXPECT_FALSE(read(longer.data(), longer.size()).is_whole);
}

// Counts that would not fit, and such that wrap when they are multiplied by an element's size.
TEST(ByteStream, CountsAreComparedWithWhatIsLeft) {
    for (const std::uint64_t count :
         {std::uint64_t{3}, std::uint64_t{1} << 62, (std::uint64_t{1} << 62) + 1,
          std::numeric_limits<std::uint64_t>::max()}) {
        ByteWriter writer;
        writer.put(count);
        writer.put(std::uint64_t{7});  // room for two of four bytes
        const std::vector<std::uint8_t> bytes = writer.take();
        ByteReader reader(bytes.data(), bytes.size());
        std::vector<std::uint32_t> values{1};
        reader.get(&values);
        EXPECT_TRUE(values.empty()) << count;
        EXPECT_FALSE(reader.is_whole()) << count;
        std::uint64_t later = 5;
        reader.get(&later);
        EXPECT_EQ(later, 0U) << "after the first missing byte all is empty";
    }
}

}  // namespace
}  // namespace gcmoe
