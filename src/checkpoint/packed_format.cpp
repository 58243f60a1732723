#include "checkpoint/packed_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "checkpoint/message.hpp"
#include "layout/pack_checks.hpp"
#include "layout/sm100_tile.hpp"
#include "layout/weight_tile.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr std::int32_t kMaxCount = 1 << 20;  // of widths, experts and slots

Status fail(const char* field, const std::string& value, const std::string& need) {
    return {Code::kBadCheckpoint, fmt::format("header: {} = {}, needs {}", field, value, need)};
}

Status check_counts(const PackedHeader& header) {
    const std::pair<const char*, std::int32_t> counts[] = {
        {"hidden", header.hidden},           {"inter", header.inter},
        {"num_experts", header.num_experts}, {"topk", header.topk},
        {"num_ranks", header.num_ranks},     {"model_hidden", header.model_hidden},
        {"model_inter", header.model_inter}};
    for (const auto& [field, count] : counts) {
        if (count >= 1 && count <= kMaxCount) continue;
        return fail(field, std::to_string(count), fmt::format("1..{}", kMaxCount));
    }
    if (header.shared_inter < 0 || header.shared_inter > kMaxCount) {
        return fail("shared_inter", std::to_string(header.shared_inter),
                    fmt::format("0..{}", kMaxCount));
    }
    if (header.topk > header.num_experts) {
        return fail("topk", std::to_string(header.topk),
                    fmt::format("at most the {} experts", header.num_experts));
    }
    return {};
}

Status check_words(const PackedHeader& header) {
    const std::tuple<const char*, std::uint32_t> flags[] = {
        {"has_bias", header.has_bias},
        {"activation_scale", header.activation_scale},
        {"weight_placement", header.weight_placement},
        {"has_uneven_scales", header.has_uneven_scales}};
    for (const auto& [field, value] : flags) {
        if (value > 1) return fail(field, std::to_string(value), "0 or 1");
    }
    if (header.target != static_cast<std::uint32_t>(PackTarget::kSm90) &&
        header.target != static_cast<std::uint32_t>(PackTarget::kSm100)) {
        return fail("target", std::to_string(header.target), "90 or 100");
    }
    if (!(header.clamp > 0.0F)) return fail("clamp", fmt::format("{}", header.clamp), "above 0");
    for (const auto& [field, value] :
         {std::pair{"alpha", header.alpha}, std::pair{"beta", header.beta},
          std::pair{"routed_scale", header.routed_scale}}) {
        if (!std::isfinite(value)) return fail(field, fmt::format("{}", value), "a finite number");
    }
    return {};
}

Status check_identity(const PackedHeader& header) {
    if (header.layer_idx < 0) {
        return fail("layer_idx", std::to_string(header.layer_idx), "0 or more");
    }
    if (header.model[kPackedModelBytes - 1] == '\0') return {};
    return fail("model", quote(std::string_view(header.model, kPackedModelBytes)),
                fmt::format("a zero among its {} bytes", kPackedModelBytes));
}

Shape shape_of(const PackedHeader& header) {
    Shape shape;
    shape.hidden = header.hidden;
    shape.inter = header.inter;
    shape.num_experts = header.num_experts;
    shape.topk = header.topk;
    shape.num_ranks = header.num_ranks;
    shape.shared_inter = header.shared_inter;
    shape.has_bias = header.has_bias != 0;
    shape.activation = {header.clamp, header.alpha, header.beta};
    shape.activation_scale = static_cast<ActivationScale>(header.activation_scale);
    shape.weight_placement = static_cast<WeightPlacement>(header.weight_placement);
    return shape;
}

}  // namespace

const char* target_name(PackTarget target) {
    return target == PackTarget::kSm90 ? "sm90" : "sm100";
}

std::uint64_t hash_bytes(const void* bytes, std::uint64_t num_bytes) {
    const auto* next = static_cast<const std::uint8_t*>(bytes);
    std::uint64_t hash = numerics::splitmix64(num_bytes);
    std::uint64_t left = num_bytes;
    while (left > 0) {
        const std::uint64_t step = std::min<std::uint64_t>(left, sizeof(std::uint64_t));
        std::uint64_t word = 0;
        std::memcpy(&word, next, step);
        hash = numerics::hash_combine(hash, word);
        next += step;
        left -= step;
    }
    return hash;
}

PackedHeader header_of(const PackedLayer& layer) {
    const Shape& shape = layer.shape;
    PackedHeader header{};
    header.magic = kPackedMagic;
    header.version = kPackedVersion;
    header.header_bytes = sizeof(PackedHeader);
    header.target = static_cast<std::uint32_t>(layer.target);
    header.hidden = shape.hidden;
    header.inter = shape.inter;
    header.num_experts = shape.num_experts;
    header.topk = shape.topk;
    header.num_ranks = shape.num_ranks;
    header.rank = layer.rank;
    header.shared_inter = shape.shared_inter;
    header.has_bias = shape.has_bias ? 1 : 0;
    header.activation_scale = static_cast<std::uint32_t>(shape.activation_scale);
    header.weight_placement = static_cast<std::uint32_t>(shape.weight_placement);
    header.clamp = shape.activation.clamp;
    header.alpha = shape.activation.alpha;
    header.beta = shape.activation.beta;
    header.model_hidden = layer.model_hidden;
    header.model_inter = layer.model_inter;
    header.routed_scale = layer.routed_scale;
    header.has_uneven_scales = layer.has_uneven_scales ? 1 : 0;
    header.fingerprint = layer.identity.fingerprint;
    header.layer_idx = layer.identity.layer_idx;
    layer.identity.model.copy(header.model, kPackedModelBytes - 1);
    header.hash = hash_bytes(&header, offsetof(PackedHeader, hash));
    return header;
}

Status parse_header(const PackedHeader& header, PackedLayer* out) {
    if (header.magic != kPackedMagic) {
        return fail("magic", fmt::format("{:#018x}", header.magic),
                    fmt::format("{:#018x}: this is no packed file of gcmoe", kPackedMagic));
    }
    if (header.version != kPackedVersion) {
        return fail("version", std::to_string(header.version),
                    fmt::format("{}: pack the checkpoint again", kPackedVersion));
    }
    if (header.header_bytes != sizeof(PackedHeader)) {
        return fail("header_bytes", std::to_string(header.header_bytes),
                    fmt::format("{}: the header is damaged", sizeof(PackedHeader)));
    }
    const std::uint64_t hash = hash_bytes(&header, offsetof(PackedHeader, hash));
    if (header.hash != hash) {
        return fail("hash", fmt::format("{:#018x}", header.hash),
                    fmt::format("{:#018x}: the header is damaged", hash));
    }
    GCMOE_RETURN_IF_ERROR(check_counts(header));
    GCMOE_RETURN_IF_ERROR(check_words(header));
    GCMOE_RETURN_IF_ERROR(check_identity(header));
    out->shape = shape_of(header);
    out->rank = header.rank;
    out->target = static_cast<PackTarget>(header.target);
    out->model_hidden = header.model_hidden;
    out->model_inter = header.model_inter;
    out->routed_scale = header.routed_scale;
    out->has_uneven_scales = header.has_uneven_scales != 0;
    out->identity = {header.model, header.layer_idx, header.fingerprint};
    const Status packable = layout::check_packable(out->shape, out->rank);
    if (!packable.ok()) return {Code::kBadCheckpoint, "header: " + packable.message()};
    return {};
}

std::vector<SectionRecord> sections_of(const PackedLayer& layer, std::int32_t expert) {
    const Shape& shape = layer.shape;
    const bool is_shared = expert == kSharedSection;
    const int inter = is_shared ? shape.shared_inter : shape.inter;
    const bool has_factors = layer.target == PackTarget::kSm90 && !is_shared;
    std::vector<SectionRecord> out;
    for (std::uint32_t matrix = 0; matrix < 2; ++matrix) {
        SectionRecord record{};
        record.expert = expert;
        record.matrix = matrix;
        record.rows = matrix == 0 ? 2 * inter : shape.hidden;
        record.chunks = (matrix == 0 ? shape.hidden : inter) / layout::kChunkK;
        for (const SectionKind kind :
             {SectionKind::kTiles, has_factors ? SectionKind::kFactors : SectionKind::kScales,
              SectionKind::kBias}) {
            if (kind == SectionKind::kBias && (is_shared || !shape.has_bias)) continue;
            record.kind = static_cast<std::uint32_t>(kind);
            out.push_back(record);
        }
    }
    return out;
}

std::uint64_t section_bytes(const PackedLayer& layer, const SectionRecord& section) {
    const auto rows = static_cast<std::uint64_t>(section.rows);
    const auto chunks = static_cast<std::uint64_t>(section.chunks);
    const bool is_shared = section.expert == kSharedSection;
    const bool is_sm90 = layer.target == PackTarget::kSm90;
    switch (static_cast<SectionKind>(section.kind)) {
        case SectionKind::kTiles:
            if (is_shared) return rows * chunks * layout::kChunkK;
            return rows * chunks *
                   (is_sm90 ? layout::kFp4TileBytes / layout::kTileRows : layout::kFp4RowBytes);
        case SectionKind::kFactors:
            return rows * (section.form == 0 ? 1 : chunks) * sizeof(float);
        case SectionKind::kScales:
            if (!is_sm90) return rows * chunks * layout::kGroupsPerChunk;
            return rows * chunks * section.scale_groups_per_chunk * sizeof(float);
        case SectionKind::kBias:
            return rows * sizeof(float);
    }
    GCMOE_CHECK(false, section.kind);
}

}  // namespace gcmoe::checkpoint
