#include "check_expected.hpp"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "numerics/hash.hpp"

namespace gcmoe::cli {
namespace {

// Head of a file. Then for every rank y as bf16 and the plain FP64 layer as float, (num_tokens,
// hidden) each.
struct FileHead {
    char magic[8] = {'g', 'c', 'm', 'o', 'e', 'x', 'p', '1'};
    std::uint64_t digest = 0;  // of the inputs
    std::uint32_t num_ranks = 0;
    std::uint32_t hidden = 0;
};

template <class Value>
std::uint64_t digest_of(std::uint64_t seed, const std::vector<Value>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    const std::size_t size = values.size() * sizeof(Value);
    for (std::size_t i = 0; i < size; i += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes + i, std::min<std::size_t>(8, size - i));
        seed = numerics::hash_combine(seed, word);
    }
    return seed;
}

FileHead make_head(const Shape& shape, const std::vector<reference::RankInputs>& inputs) {
    FileHead head;
    head.num_ranks = static_cast<std::uint32_t>(inputs.size());
    head.hidden = static_cast<std::uint32_t>(shape.hidden);
    std::uint64_t digest = numerics::hash_combine(static_cast<std::uint64_t>(shape.inter),
                                                  static_cast<std::uint64_t>(shape.shared_inter));
    digest = numerics::hash_combine(digest, static_cast<std::uint64_t>(shape.activation_scale));
    digest = numerics::hash_combine(digest, static_cast<std::uint64_t>(shape.weight_placement));
    for (const reference::RankInputs& own : inputs) {
        digest = numerics::hash_combine(digest, static_cast<std::uint64_t>(own.num_tokens));
        digest = digest_of(digest, own.x);
        digest = digest_of(digest, own.x_scale);
        digest = digest_of(digest, own.topk_idx);
        digest = digest_of(digest, own.topk_weight);
    }
    head.digest = digest;
    return head;
}

std::size_t elements_of(const Shape& shape, const reference::RankInputs& inputs) {
    return static_cast<std::size_t>(inputs.num_tokens) * static_cast<std::size_t>(shape.hidden);
}

Status path_error(const std::string& path, const char* problem) {
    return {Code::kBadInput, fmt::format("expected outputs {}: {}", path, problem)};
}

template <class Value>
void write_values(std::ofstream* file, const std::vector<Value>& values) {
    file->write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size() * sizeof(Value)));
}

template <class Value>
void read_values(std::ifstream* file, std::vector<Value>* values) {
    file->read(reinterpret_cast<char*>(values->data()),
               static_cast<std::streamsize>(values->size() * sizeof(Value)));
}

}  // namespace

std::string expected_path(const std::string& folder, const std::string& suite,
                          const std::string& name) {
    return fmt::format("{}/{}-{}.expected", folder, suite, name);
}

Status write_expected(const std::string& path, const Shape& shape,
                      const std::vector<reference::RankInputs>& inputs,
                      const std::vector<reference::RankExpected>& expected) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    const FileHead head = make_head(shape, inputs);
    file.write(reinterpret_cast<const char*>(&head), sizeof(head));
    for (const reference::RankExpected& rank : expected) {
        write_values(&file, rank.y);
        const std::vector<float> plain(rank.plain.begin(), rank.plain.end());
        write_values(&file, plain);
    }
    file.close();
    if (!file) return path_error(path, "cannot be written");
    return {};
}

Status read_expected(const std::string& path, const Shape& shape,
                     const std::vector<reference::RankInputs>& inputs,
                     std::vector<reference::RankExpected>* out) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return path_error(path, "cannot be opened");
    const FileHead wanted = make_head(shape, inputs);
    FileHead head;
    file.read(reinterpret_cast<char*>(&head), sizeof(head));
    if (!file || std::memcmp(&head, &wanted, sizeof(head)) != 0) {
        return path_error(path, "was made from other inputs, or is no such file");
    }
    out->clear();
    for (const reference::RankInputs& own : inputs) {
        reference::RankExpected rank;
        rank.y.resize(elements_of(shape, own));
        std::vector<float> plain(rank.y.size());
        read_values(&file, &rank.y);
        read_values(&file, &plain);
        rank.plain.assign(plain.begin(), plain.end());
        out->push_back(std::move(rank));
    }
    if (!file || file.peek() != std::ifstream::traits_type::eof()) {
        return path_error(path, "does not hold the outputs of this case");
    }
    return {};
}

}  // namespace gcmoe::cli
