// A folder with a checkpoint: one model.safetensors, or shards and their index.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors_file.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

inline constexpr const char* kIndexFileName = "model.safetensors.index.json";
inline constexpr const char* kSingleFileName = "model.safetensors";

// Tensors by name. The index is read first (if there is one, model.safetensors is not looked at);
// a shard is opened when one of its tensors is asked for.
// Callers: from one thread at a time; views may be used by any.
class CheckpointFolder {
  public:
    // Errors: kBadCheckpoint for a folder without index and model.safetensors, an index without a
    // sound weight_map, a shard name that leaves the folder.
    static Status open(const std::string& folder, std::unique_ptr<CheckpointFolder>* out);

    [[nodiscard]] const std::string& folder() const { return folder_; }
    // Tensor name -> file name in the folder, sorted by tensor name.
    [[nodiscard]] const std::map<std::string, std::string>& file_of_tensor() const {
        return file_of_tensor_;
    }
    [[nodiscard]] bool contains(const std::string& name) const {
        return file_of_tensor_.count(name) != 0;
    }

    // Errors: kBadCheckpoint for a name the checkpoint lacks, a shard that is missing or malformed,
    // a tensor that the index promises and its shard lacks.
    Status tensor(const std::string& name, StoredTensor* out);

  private:
    CheckpointFolder() = default;
    Status read_index(const std::string& path);
    Status read_single(const std::string& path);

    std::string folder_;
    std::map<std::string, std::string> file_of_tensor_;
    std::map<std::string, std::unique_ptr<SafetensorsFile>> opened_;  // by file name
};

}  // namespace gcmoe::checkpoint
