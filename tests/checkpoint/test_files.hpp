// Files and folders for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <system_error>

#include "checkpoint/safetensors_file.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// A folder below testing::TempDir that goes when the test ends.
class TempFolder {
  public:
    TempFolder() {
        static std::atomic<int> num_made{0};
        path_ = testing::TempDir() + "gcmoe_checkpoint_" + std::to_string(::getpid()) + "_" +
                std::to_string(num_made.fetch_add(1));
        std::filesystem::create_directories(path_);
    }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
    [[nodiscard]] int num_entries() const {
        return static_cast<int>(std::distance(std::filesystem::directory_iterator(path_),
                                              std::filesystem::directory_iterator()));
    }

  private:
    std::string path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);  // truncating in place would wait for the disk
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// All bytes of a tensor.
inline std::string bytes_of_tensor(const StoredTensor& tensor) {
    std::string out(tensor.num_bytes, '\0');
    const Status status = tensor.read(0, tensor.num_bytes, out.data());
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
}

// A little-endian u64 as a file has it.
inline std::string length_bytes(std::uint64_t length) {
    std::string out(8, '\0');
    for (std::size_t idx = 0; idx < 8; ++idx) out[idx] = static_cast<char>(length >> (8 * idx));
    return out;
}

// The bytes of a safetensors file with this header text, right or wrong.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
    return length_bytes(header.size()) + header + data;
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

inline void expect_error(const Status& status, Code code,
                         std::initializer_list<std::string> parts) {
    EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code)) << status.message();
    for (const std::string& part : parts) {
        EXPECT_NE(status.message().find(part), std::string::npos)
            << "'" << part << "' is not in: " << status.message();
    }
}

}  // namespace gcmoe::checkpoint
