// Reads a packed file: proves its ends and its directory when it is opened, each section when it is
// loaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/input_file.hpp"
#include "checkpoint/packed_format.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"
#include "layout/pack_expert.hpp"

namespace gcmoe::checkpoint {

class PackedFile {
  public:
    // Errors: kBadCheckpoint with the path and what is wrong: another kind of file, another
    // version, a part that is missing, a hash that differs, a directory that no writer makes.
    static Status open(const std::string& path, std::unique_ptr<PackedFile>* out);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const PackedLayer& layer() const { return layer_; }
    [[nodiscard]] const std::vector<int>& experts() const { return experts_; }  // ascending
    [[nodiscard]] std::uint64_t num_bytes() const { return file_->num_bytes(); }
    // Of the directory, and so of all sections: two files with one hash hold the same tiles.
    [[nodiscard]] std::uint64_t hash() const { return hash_; }

    // One expert in memory. Errors: kBadIndex for an expert that is not in the file, kBadConfig for
    // the tiles of the other target, kBadCheckpoint for a section whose bytes changed or hold what
    // no packer writes, naming expert, matrix and section.
    Status load_expert(int expert_idx, std::unique_ptr<layout::PackedExpert>* out) const;
    Status load_shared(layout::PackedSharedExpert* out) const;
    Status load_sm100(int expert_idx, layout::Sm100Expert* out) const;  // or kSharedSection

    // All of it, for the operator. Errors: as above; kUnsupported for sm100, which no backend runs.
    Status load(std::shared_ptr<const PackedWeights>* out) const;

  private:
    PackedFile() = default;
    Status read_ends(PackedTail* tail);
    Status read_directory(const PackedTail& tail);
    Status check_record(const SectionRecord& wanted, const SectionRecord& found,
                        std::uint64_t begin, std::uint64_t end) const;
    Status check_target(PackTarget target) const;
    Status records_of(int expert_idx, const SectionRecord** out) const;
    template <class T>
    Status copy(const SectionRecord& record, std::vector<T>* out) const;

    std::string path_;
    std::shared_ptr<const InputFile> file_;
    PackedLayer layer_;
    std::uint64_t hash_ = 0;
    std::vector<SectionRecord> records_;
    std::vector<int> experts_;
    std::map<int, std::size_t> first_record_;  // of an expert or kSharedSection
};

}  // namespace gcmoe::checkpoint
