// A layer out of packed files, one per rank: run --packed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/packed_file.hpp"
#include "gcmoe/status.hpp"
#include "layer_options.hpp"

namespace gcmoe::cli {

using PackedFiles = std::vector<std::shared_ptr<const checkpoint::PackedFile>>;

// Opens the files of all ranks, in any order; *out is by rank. Errors: those of PackedFile;
// kBadInput naming the file and the field for files of different layers, two of one rank, a rank
// without one, tiles that no backend runs.
Status open_packed_files(const std::vector<std::string>& paths, PackedFiles* out);

// The layer that the files hold; its source unpacks them. Callers: files of open_packed_files.
void use_packed_layer(const PackedFiles& files, Layer* out);

}  // namespace gcmoe::cli
