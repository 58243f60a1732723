#include "checkpoint/packed_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/math.hpp"
#include "checkpoint/message.hpp"
#include "numerics/scale_window.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::checkpoint {
namespace {

Status fail(const std::string& path, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("file {}: {}", quote(path), reason)};
}

std::string section_name(const SectionRecord& record) {
    constexpr const char* kKinds[] = {"?", "tiles", "factors", "scales", "bias"};
    const std::string owner = record.expert == kSharedSection
                                  ? std::string("shared expert")
                                  : fmt::format("expert {}", record.expert);
    return fmt::format("{}, {} GEMM, {}", owner, record.matrix == 0 ? "first" : "second",
                       kKinds[record.kind < std::size(kKinds) ? record.kind : 0]);
}

// Floats that a packer may have written: finite, and above 0 unless they are biases.
bool are_sound(const std::vector<float>& values, bool may_be_any_sign) {
    return std::all_of(values.begin(), values.end(), [&](float value) {
        return std::isfinite(value) && (may_be_any_sign || value > 0.0F);
    });
}

// Window positions of sm90 tiles, each within the decoder's table.
bool are_positions_sound(const std::vector<std::uint8_t>& tiles) {
    for (std::size_t tile = 0; tile < tiles.size(); tile += layout::kFp4TileBytes) {
        const std::uint8_t* positions = tiles.data() + tile + layout::kFp4NibbleBytes;
        const bool sound = std::all_of(positions, positions + layout::kFp4ScaleBytes,
                                       [](std::uint8_t v) { return v < numerics::kWindowOctaves; });
        if (!sound) return false;
    }
    return true;
}

bool has_nan_code(const std::vector<std::uint8_t>& scales) {
    return std::find(scales.begin(), scales.end(), numerics::kUe8m0Nan) != scales.end();
}

}  // namespace

Status PackedFile::open(const std::string& path, std::unique_ptr<PackedFile>* out) {
    std::unique_ptr<PackedFile> file(new PackedFile());
    file->path_ = path;
    GCMOE_RETURN_IF_ERROR(InputFile::open(path, &file->file_));
    PackedTail tail{};
    GCMOE_RETURN_IF_ERROR(file->read_ends(&tail));
    GCMOE_RETURN_IF_ERROR(file->read_directory(tail));
    *out = std::move(file);
    return {};
}

Status PackedFile::read_ends(PackedTail* tail) {
    const std::uint64_t num_bytes = file_->num_bytes();
    PackedHeader header{};
    if (num_bytes < sizeof(header.magic)) {
        return fail(path_, fmt::format("has {} bytes: this is no packed file of gcmoe", num_bytes));
    }
    GCMOE_RETURN_IF_ERROR(
        file_->read(0, std::min<std::uint64_t>(num_bytes, sizeof(header)), &header));
    if (header.magic == kPackedMagic && num_bytes < sizeof(header) + sizeof(*tail)) {
        return fail(path_, fmt::format("has {} bytes, header and end alone take {}: it was cut off",
                                       num_bytes, sizeof(header) + sizeof(*tail)));
    }
    const Status parsed = parse_header(header, &layer_);
    if (!parsed.ok()) return fail(path_, parsed.message());
    GCMOE_RETURN_IF_ERROR(file_->read(num_bytes - sizeof(*tail), sizeof(*tail), tail));
    if (tail->magic != kPackedTailMagic) {
        return fail(path_, fmt::format("its {} bytes do not end as a packed file does: it was cut "
                                       "off",
                                       num_bytes));
    }
    if (tail->hash != hash_bytes(tail, offsetof(PackedTail, hash))) {
        return fail(path_, "the hash of its end differs: it is damaged");
    }
    if (tail->file_bytes != num_bytes || tail->header_hash != header.hash) {
        return fail(path_,
                    fmt::format("has {} bytes and header {:#018x}, its end belongs to {} "
                                "bytes and header {:#018x}",
                                num_bytes, header.hash, tail->file_bytes, tail->header_hash));
    }
    return {};
}

Status PackedFile::check_record(const SectionRecord& wanted, const SectionRecord& found,
                                std::uint64_t begin, std::uint64_t end) const {
    const bool is_factors = found.kind == static_cast<std::uint32_t>(SectionKind::kFactors);
    const bool has_groups = layer_.target == PackTarget::kSm90 && found.expert == kSharedSection &&
                            found.kind == static_cast<std::uint32_t>(SectionKind::kScales);
    const bool same = found.kind == wanted.kind && found.expert == wanted.expert &&
                      found.matrix == wanted.matrix && found.rows == wanted.rows &&
                      found.chunks == wanted.chunks;
    const bool form_fits = found.form <= (is_factors ? 1U : 0U);
    const bool groups_fit =
        has_groups ? found.scale_groups_per_chunk == 1 || found.scale_groups_per_chunk == 4
                   : found.scale_groups_per_chunk == 0;
    if (!same || !form_fits || !groups_fit) {
        return fail(path_, fmt::format("directory: {} of {} rows and {} chunks stands where {} of "
                                       "{} rows and {} chunks is due",
                                       section_name(found), found.rows, found.chunks,
                                       section_name(wanted), wanted.rows, wanted.chunks));
    }
    const std::uint64_t needed = section_bytes(layer_, found);
    const bool in_place = found.offset == round_up(begin, kPackedAlignment) &&
                          found.offset <= end && found.num_bytes <= end - found.offset;
    if (found.num_bytes == needed && in_place) return {};
    return fail(path_, fmt::format("directory: {} has {} bytes at {}, needs {} at {} and the end "
                                   "of sections is {}",
                                   section_name(found), found.num_bytes, found.offset, needed,
                                   round_up(begin, kPackedAlignment), end));
}

Status PackedFile::read_directory(const PackedTail& tail) {
    const std::uint64_t num_bytes = file_->num_bytes() - sizeof(tail);
    if (tail.directory_offset > num_bytes ||
        tail.num_sections != (num_bytes - tail.directory_offset) / sizeof(SectionRecord) ||
        (num_bytes - tail.directory_offset) % sizeof(SectionRecord) != 0) {
        return fail(path_,
                    fmt::format("a directory of {} sections at {} does not fill its {} bytes",
                                tail.num_sections, tail.directory_offset, num_bytes));
    }
    records_.resize(tail.num_sections);
    const std::uint64_t size = tail.num_sections * sizeof(SectionRecord);
    GCMOE_RETURN_IF_ERROR(file_->read(tail.directory_offset, size, records_.data()));
    hash_ = tail.directory_hash;
    if (hash_bytes(records_.data(), size) != hash_) {
        return fail(path_, "the hash of its directory differs: it is damaged");
    }
    const int first = layer_.rank * layer_.shape.experts_per_rank();
    std::uint64_t begin = sizeof(PackedHeader);
    for (std::size_t idx = 0; idx < records_.size();) {
        const std::int32_t expert = records_[idx].expert;
        const bool is_shared = expert == kSharedSection && layer_.shape.shared_inter > 0;
        const bool is_ours = expert >= first && expert < first + layer_.shape.experts_per_rank();
        const bool is_next = first_record_.count(kSharedSection) == 0 &&
                             (is_shared || experts_.empty() || expert > experts_.back());
        if ((!is_shared && !is_ours) || !is_next) {
            return fail(path_, fmt::format("directory: {} is none of rank {}, or out of order",
                                           section_name(records_[idx]), layer_.rank));
        }
        first_record_[expert] = idx;
        if (!is_shared) experts_.push_back(expert);
        for (const SectionRecord& wanted : sections_of(layer_, expert)) {
            if (idx == records_.size()) {
                return fail(path_, "directory: ends before " + section_name(wanted));
            }
            const SectionRecord& found = records_[idx++];
            GCMOE_RETURN_IF_ERROR(check_record(wanted, found, begin, tail.directory_offset));
            begin = found.offset + found.num_bytes;
        }
    }
    const bool has_shared = first_record_.count(kSharedSection) != 0;
    if (has_shared == (layer_.shape.shared_inter > 0)) return {};
    return fail(path_, fmt::format("directory: lacks the shared expert of inter {}",
                                   layer_.shape.shared_inter));
}

Status PackedFile::check_target(PackTarget target) const {
    if (layer_.target == target) return {};
    return {Code::kBadConfig,
            fmt::format("file {}: holds tiles for {}, {} were asked for", quote(path_),
                        target_name(layer_.target), target_name(target))};
}

Status PackedFile::records_of(int expert_idx, const SectionRecord** out) const {
    const auto found = first_record_.find(expert_idx);
    if (found != first_record_.end()) {
        *out = &records_[found->second];
        return {};
    }
    return {Code::kBadIndex,
            expert_idx == kSharedSection
                ? fmt::format("file {}: has no shared expert", quote(path_))
                : fmt::format("file {}: has no expert {} among its {} of rank {}", quote(path_),
                              expert_idx, experts_.size(), layer_.rank)};
}

template <class T>
Status PackedFile::copy(const SectionRecord& record, std::vector<T>* out) const {
    out->resize(record.num_bytes / sizeof(T));
    GCMOE_RETURN_IF_ERROR(file_->read(record.offset, record.num_bytes, out->data()));
    if (hash_bytes(out->data(), record.num_bytes) == record.hash) return {};
    return fail(path_, fmt::format("{}: the hash of its {} bytes at {} differs: it is damaged",
                                   section_name(record), record.num_bytes, record.offset));
}

Status PackedFile::load_expert(int expert_idx, std::unique_ptr<layout::PackedExpert>* out) const {
    GCMOE_RETURN_IF_ERROR(check_target(PackTarget::kSm90));
    const SectionRecord* record = nullptr;
    GCMOE_RETURN_IF_ERROR(records_of(expert_idx, &record));
    auto expert = std::make_unique<layout::PackedExpert>();
    for (layout::PackedMatrix* matrix : {&expert->first, &expert->second}) {
        matrix->rows = record->rows;
        matrix->chunks = record->chunks;
        matrix->order = layout::routed_k_order(layer_.shape.activation_scale);
        GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->tiles));
        matrix->form = record->form == 0 ? layout::PackedMatrix::DecodeForm::kRowFactor
                                         : layout::PackedMatrix::DecodeForm::kChunkFactor;
        GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->factors));
        if (layer_.shape.has_bias) GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->bias));
        if (are_positions_sound(matrix->tiles) && are_sound(matrix->factors, false) &&
            are_sound(matrix->bias, true)) {
            continue;
        }
        return fail(path_,
                    fmt::format("expert {}: a window position, factor or bias that no packer "
                                "writes",
                                expert_idx));
    }
    *out = std::move(expert);
    return {};
}

Status PackedFile::load_shared(layout::PackedSharedExpert* out) const {
    GCMOE_RETURN_IF_ERROR(check_target(PackTarget::kSm90));
    const SectionRecord* record = nullptr;
    GCMOE_RETURN_IF_ERROR(records_of(kSharedSection, &record));
    for (layout::PackedFp8Matrix* matrix : {&out->first, &out->second}) {
        matrix->rows = record->rows;
        matrix->chunks = record->chunks;
        matrix->order = layout::KOrder::kNatural;
        GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->tiles));
        matrix->scale_groups_per_chunk = static_cast<int>(record->scale_groups_per_chunk);
        GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->scales));
        const bool has_nan =
            std::any_of(matrix->tiles.begin(), matrix->tiles.end(),
                        [](std::uint8_t code) { return numerics::e4m3_is_nan(code); });
        if (has_nan || !are_sound(matrix->scales, false)) {
            return fail(path_, "shared expert: a code or scale that no packer writes");
        }
    }
    return {};
}

Status PackedFile::load_sm100(int expert_idx, layout::Sm100Expert* out) const {
    GCMOE_RETURN_IF_ERROR(check_target(PackTarget::kSm100));
    const SectionRecord* record = nullptr;
    GCMOE_RETURN_IF_ERROR(records_of(expert_idx, &record));
    *out = {};
    for (layout::Sm100Matrix* matrix : {&out->first, &out->second}) {
        matrix->is_first = matrix == &out->first;
        matrix->is_fp8 = expert_idx == kSharedSection;
        matrix->rows = record->rows;
        matrix->chunks = record->chunks;
        GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->tiles));
        GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->scales));
        const bool has_bias = layer_.shape.has_bias && !matrix->is_fp8;
        if (has_bias) GCMOE_RETURN_IF_ERROR(copy(*record++, &matrix->bias));
        if (has_nan_code(matrix->scales) || !are_sound(matrix->bias, true)) {
            return fail(
                path_, fmt::format("expert {}: a scale or bias that no packer writes", expert_idx));
        }
    }
    return {};
}

Status PackedFile::load(std::shared_ptr<const PackedWeights>* out) const {
    if (layer_.target != PackTarget::kSm90) {
        return {Code::kUnsupported,
                fmt::format("file {}: holds tiles for sm100, which are a layout only: no backend "
                            "runs them yet",
                            quote(path_))};
    }
    auto storage = std::make_unique<PackedStorage>();
    storage->shape = layer_.shape;
    storage->rank = layer_.rank;
    storage->order = layout::routed_k_order(layer_.shape.activation_scale);
    storage->experts.resize(static_cast<std::size_t>(layer_.shape.experts_per_rank()));
    const int first = layer_.rank * layer_.shape.experts_per_rank();
    for (const int expert_idx : experts_) {
        GCMOE_RETURN_IF_ERROR(load_expert(
            expert_idx, &storage->experts[static_cast<std::size_t>(expert_idx - first)]));
    }
    if (layer_.shape.shared_inter > 0) {
        layout::PackedSharedExpert shared;
        GCMOE_RETURN_IF_ERROR(load_shared(&shared));
        storage->has_shared = true;
        storage->shared_first = std::move(shared.first);
        storage->shared_second = std::move(shared.second);
    }
    *out = std::make_shared<const PackedWeights>(std::move(storage));
    return {};
}

}  // namespace gcmoe::checkpoint
