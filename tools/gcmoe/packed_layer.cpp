#include "packed_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/unpacked_source.hpp"
#include "console.hpp"

namespace gcmoe::cli {
namespace {

using checkpoint::PackedFile;
using checkpoint::PackedLayer;

// The fields that all files of a layer share, by name.
std::vector<std::pair<const char*, double>> fields_of(const PackedLayer& layer) {
    const Shape& shape = layer.shape;
    return {{"hidden", shape.hidden},
            {"inter", shape.inter},
            {"num_experts", shape.num_experts},
            {"topk", shape.topk},
            {"num_ranks", shape.num_ranks},
            {"shared_inter", shape.shared_inter},
            {"has_bias", shape.has_bias},
            {"activation_scale", static_cast<double>(shape.activation_scale)},
            {"weight_placement", static_cast<double>(shape.weight_placement)},
            {"clamp", shape.activation.clamp},
            {"alpha", shape.activation.alpha},
            {"beta", shape.activation.beta},
            {"hidden before padding", layer.model_hidden},
            {"inter before padding", layer.model_inter},
            {"routed_scale", layer.routed_scale},
            {"has_uneven_scales", layer.has_uneven_scales}};
}

Status check_same_layer(const PackedFile& first, const PackedFile& other) {
    const auto wanted = fields_of(first.layer());
    const auto found = fields_of(other.layer());
    for (std::size_t idx = 0; idx < wanted.size(); ++idx) {
        if (wanted[idx].second == found[idx].second) continue;
        return option_error("--packed", other.path(),
                            fmt::format("has {} = {}, but {} has {}", found[idx].first,
                                        found[idx].second, first.path(), wanted[idx].second));
    }
    const checkpoint::LayerIdentity& identity = first.layer().identity;
    if (identity.is_same_layer(other.layer().identity)) return {};
    return option_error("--packed", other.path(),
                        fmt::format("is of {}, but {} is of {}", other.layer().identity.text(),
                                    first.path(), identity.text()));
}

}  // namespace

Status open_packed_files(const std::vector<std::string>& paths, PackedFiles* out) {
    PackedFiles by_rank;
    std::shared_ptr<const PackedFile> first;
    for (const std::string& path : paths) {
        std::unique_ptr<PackedFile> opened;
        const Status status = PackedFile::open(path, &opened);
        if (!status.ok()) {
            return {status.code(), option_error("--packed", path, status.message()).message()};
        }
        const std::shared_ptr<const PackedFile> file = std::move(opened);
        if (file->layer().target != checkpoint::PackTarget::kSm90) {
            return option_error("--packed", path,
                                "holds tiles for sm100, which are a layout only: no backend runs "
                                "them yet");
        }
        if (first == nullptr) first = file;
        by_rank.resize(static_cast<std::size_t>(first->layer().shape.num_ranks));
        GCMOE_RETURN_IF_ERROR(check_same_layer(*first, *file));
        std::shared_ptr<const PackedFile>& slot =
            by_rank[static_cast<std::size_t>(file->layer().rank)];
        if (slot != nullptr) {
            return option_error(
                "--packed", path,
                fmt::format("is for rank {}, as is {}", file->layer().rank, slot->path()));
        }
        slot = file;
    }
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        if (by_rank[rank] != nullptr) continue;
        return option_error(
            "--packed", paths.front(),
            fmt::format("is for {} ranks, but no file is for rank {}", by_rank.size(), rank));
    }
    *out = std::move(by_rank);
    return {};
}

void use_packed_layer(const PackedFiles& files, Layer* out) {
    const PackedLayer& layer = files.front()->layer();
    out->title = fmt::format("packed for {} ranks: {}", files.size(), files.front()->path());
    out->identify = [identity = layer.identity](checkpoint::LayerIdentity* known) {
        *known = identity;
        return Status();
    };
    out->shape = layer.shape;
    out->hidden = layer.model_hidden;
    out->inter = layer.model_inter;
    out->routed_scale = layer.routed_scale;
    out->weight_scales = layer.has_uneven_scales ? "uneven" : "normal";
    std::vector<int> present;
    for (const auto& file : files) {
        present.insert(present.end(), file->experts().begin(), file->experts().end());
    }
    if (static_cast<int>(present.size()) < layer.shape.num_experts) {
        out->present_experts = std::move(present);
    }
    out->identify = [identity = layer.identity](checkpoint::LayerIdentity* identified) {
        *identified = identity;
        return Status();
    };
    out->source = std::make_unique<checkpoint::UnpackedSource>(files);
}

}  // namespace gcmoe::cli
