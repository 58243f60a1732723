#include "checkpoint/checkpoint_folder.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "checkpoint/json_text.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

Status fail(const std::string& path, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("file {}: {}", quote(path), reason)};
}

bool exists(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

// A shard is a plain name: an index from elsewhere must not make us open other folders' files.
bool is_plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos;
}

}  // namespace

Status CheckpointFolder::open(const std::string& folder, std::unique_ptr<CheckpointFolder>* out) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) {
        return {Code::kBadCheckpoint, fmt::format("{} is not a folder", quote(folder))};
    }
    std::unique_ptr<CheckpointFolder> checkpoint(new CheckpointFolder());
    checkpoint->folder_ = folder;
    const std::string index_path = folder + "/" + kIndexFileName;
    const std::string single_path = folder + "/" + kSingleFileName;
    if (exists(index_path)) {
        GCMOE_RETURN_IF_ERROR(checkpoint->read_index(index_path));
    } else if (exists(single_path)) {
        GCMOE_RETURN_IF_ERROR(checkpoint->read_single(single_path));
    } else {
        return {Code::kBadCheckpoint, fmt::format("folder {} holds neither {} nor {}",
                                                  quote(folder), kIndexFileName, kSingleFileName)};
    }
    *out = std::move(checkpoint);
    return {};
}

Status CheckpointFolder::read_index(const std::string& path) {
    Json root;
    GCMOE_RETURN_IF_ERROR(read_json_file(path, &root));
    const auto weight_map = root.find("weight_map");
    if (weight_map == root.end() || !weight_map->is_object()) {
        return fail(path, "has no object weight_map");
    }
    for (const auto& [name, value] : weight_map->items()) {
        if (!value.is_string() || !is_plain_name(value.get_ref<const std::string&>())) {
            return fail(path, fmt::format("tensor {}: {} is not the name of a file in this folder",
                                          quote(name), json_text(value)));
        }
        file_of_tensor_.emplace(name, value.get<std::string>());
    }
    return {};
}

Status CheckpointFolder::read_single(const std::string& path) {
    std::unique_ptr<SafetensorsFile> file;
    GCMOE_RETURN_IF_ERROR(SafetensorsFile::open(path, &file));
    for (const TensorRecord& record : file->tensors()) {
        file_of_tensor_.emplace(record.name, kSingleFileName);
    }
    opened_[kSingleFileName] = std::move(file);
    return {};
}

Status CheckpointFolder::tensor(const std::string& name, StoredTensor* out) {
    const auto named = file_of_tensor_.find(name);
    if (named == file_of_tensor_.end()) {
        return {Code::kBadCheckpoint,
                fmt::format("folder {}: has no tensor {} among its {}", quote(folder_), quote(name),
                            file_of_tensor_.size())};
    }
    const std::string& file_name = named->second;
    const std::string path = folder_ + "/" + file_name;
    std::unique_ptr<SafetensorsFile>& file = opened_[file_name];
    if (file == nullptr) {
        if (!exists(path)) {
            return fail(path, fmt::format("is missing, but {} says that it holds tensor {}",
                                          kIndexFileName, quote(name)));
        }
        GCMOE_RETURN_IF_ERROR(SafetensorsFile::open(path, &file));
    }
    if (!file->contains(name)) {
        return fail(path, fmt::format("lacks tensor {}, which {} says it holds", quote(name),
                                      kIndexFileName));
    }
    return file->tensor(name, out);
}

}  // namespace gcmoe::checkpoint
