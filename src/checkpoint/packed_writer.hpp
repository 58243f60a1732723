// Writes one packed file as a stream: expert after expert, nothing kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/packed_format.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"
#include "layout/pack_expert.hpp"

namespace gcmoe::checkpoint {

// The file appears under its name when finish() succeeds; before that, and after any error, nothing
// is there (see AtomicFile). The same layer and experts give the same file, byte for byte.
// Errors: kBadInput of the disk.
class PackedWriter {
  public:
    static Status create(const std::string& path, const PackedLayer& layer,
                         std::unique_ptr<PackedWriter>* out);

    // Callers: each expert of the layer's target and rank at most once, in ascending order; the
    // shared expert last.
    Status add_expert(int expert_idx, const layout::PackedExpert& expert);
    Status add_shared(const layout::PackedSharedExpert& expert);
    Status add_sm100(int expert_idx, const layout::Sm100Expert& expert);  // or kSharedSection

    // Callers: once, last. check (may be empty) reads the whole file under its partial name; what
    // it refuses never replaces what stood under path.
    Status finish(const std::function<Status(const std::string& partial_path)>& check = {});

  private:
    explicit PackedWriter(const PackedLayer& layer) : layer_(layer) {}
    struct Part {
        const void* bytes;
        std::uint64_t num_bytes;
        std::uint32_t form = 0;
        std::uint32_t scale_groups_per_chunk = 0;
    };
    Status add(std::int32_t expert, const std::vector<Part>& parts);
    Status write(const void* bytes, std::uint64_t num_bytes);
    Status align();

    PackedLayer layer_;
    std::unique_ptr<AtomicFile> file_;
    std::uint64_t offset_ = 0;
    std::uint64_t header_hash_ = 0;
    std::vector<SectionRecord> records_;
};

// What a caller does while a file is packed; each may be empty.
struct PackSteps {
    std::function<void()> progress;                                // after each expert
    std::function<Status(const std::string& partial_path)> check;  // see PackedWriter::finish
};

// Packs the experts of layer.rank (options.only_experts: those of them) and the shared expert of a
// source into one file. Peak memory: one expert's bytes and tiles, whatever their number.
// *report is untouched after an error.
// Errors: those of the source, of packing and of steps.check; kBadConfig for a shape that cannot be
// packed; kBadInput of the disk. After an error path is what it was: absent, or the earlier file.
Status write_packed_file(WeightSource& source, const PackedLayer& layer, const PackOptions& options,
                         const std::string& path, const PackSteps& steps, PackReport* report);

}  // namespace gcmoe::checkpoint
