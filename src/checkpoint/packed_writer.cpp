#include "checkpoint/packed_writer.hpp"

#include <cstddef>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "layout/pack_checks.hpp"

namespace gcmoe::checkpoint {
namespace {

template <class T>
std::uint64_t size_bytes(const std::vector<T>& values) {
    return values.size() * sizeof(T);
}

// Packs one expert in the target's tiles and appends it.
Status add_packed(WeightSource& source, const PackedLayer& layer, int expert_idx,
                  bool allow_inexact, PackedWriter* writer, PackReport* report) {
    if (layer.target == PackTarget::kSm100) {
        layout::Sm100Expert expert;
        GCMOE_RETURN_IF_ERROR(
            layout::pack_expert_sm100(source, layer.shape, expert_idx, &expert, report));
        return writer->add_sm100(expert_idx, expert);
    }
    std::unique_ptr<layout::PackedExpert> expert;
    GCMOE_RETURN_IF_ERROR(
        layout::pack_expert(source, layer.shape, expert_idx, allow_inexact, &expert, report));
    return writer->add_expert(expert_idx, *expert);
}

Status add_packed_shared(WeightSource& source, const PackedLayer& layer, bool allow_inexact,
                         PackedWriter* writer, PackReport* report) {
    if (layer.target == PackTarget::kSm100) {
        layout::Sm100Expert expert;
        GCMOE_RETURN_IF_ERROR(
            layout::pack_shared_expert_sm100(source, layer.shape, allow_inexact, &expert, report));
        return writer->add_sm100(kSharedSection, expert);
    }
    layout::PackedSharedExpert expert;
    GCMOE_RETURN_IF_ERROR(layout::pack_shared_expert(source, layer.shape, &expert, report));
    return writer->add_shared(expert);
}

}  // namespace

Status PackedWriter::create(const std::string& path, const PackedLayer& layer,
                            std::unique_ptr<PackedWriter>* out) {
    std::unique_ptr<PackedWriter> writer(new PackedWriter(layer));
    GCMOE_RETURN_IF_ERROR(AtomicFile::create(path, &writer->file_));
    const PackedHeader header = header_of(layer);
    writer->header_hash_ = header.hash;
    GCMOE_RETURN_IF_ERROR(writer->write(&header, sizeof(header)));
    *out = std::move(writer);
    return {};
}

Status PackedWriter::write(const void* bytes, std::uint64_t num_bytes) {
    GCMOE_RETURN_IF_ERROR(file_->write(bytes, num_bytes));
    offset_ += num_bytes;
    return {};
}

Status PackedWriter::align() {
    static constexpr std::uint8_t kZeros[kPackedAlignment] = {};
    return write(kZeros, round_up(offset_, kPackedAlignment) - offset_);
}

Status PackedWriter::add(std::int32_t expert, const std::vector<Part>& parts) {
    std::vector<SectionRecord> records = sections_of(layer_, expert);
    GCMOE_CHECK(records.size() == parts.size(), records.size(), parts.size());
    for (std::size_t idx = 0; idx < parts.size(); ++idx) {
        SectionRecord& record = records[idx];
        const Part& part = parts[idx];
        GCMOE_RETURN_IF_ERROR(align());
        record.form = part.form;
        record.scale_groups_per_chunk = part.scale_groups_per_chunk;
        record.offset = offset_;
        record.num_bytes = part.num_bytes;
        record.hash = hash_bytes(part.bytes, part.num_bytes);
        const std::uint64_t needed = section_bytes(layer_, record);
        GCMOE_CHECK(part.num_bytes == needed, part.num_bytes, needed, record.kind);
        GCMOE_RETURN_IF_ERROR(write(part.bytes, part.num_bytes));
        records_.push_back(record);
    }
    return {};
}

Status PackedWriter::add_expert(int expert_idx, const layout::PackedExpert& expert) {
    using Form = layout::PackedMatrix::DecodeForm;
    std::vector<Part> parts;
    for (const layout::PackedMatrix* matrix : {&expert.first, &expert.second}) {
        const std::uint32_t form = matrix->form == Form::kRowFactor ? 0 : 1;
        parts.push_back({matrix->tiles.data(), size_bytes(matrix->tiles)});
        parts.push_back({matrix->factors.data(), size_bytes(matrix->factors), form});
        if (!layer_.shape.has_bias) continue;
        parts.push_back({matrix->bias.data(), size_bytes(matrix->bias)});
    }
    return add(expert_idx, parts);
}

Status PackedWriter::add_shared(const layout::PackedSharedExpert& expert) {
    std::vector<Part> parts;
    for (const layout::PackedFp8Matrix* matrix : {&expert.first, &expert.second}) {
        const auto groups = static_cast<std::uint32_t>(matrix->scale_groups_per_chunk);
        parts.push_back({matrix->tiles.data(), size_bytes(matrix->tiles)});
        parts.push_back({matrix->scales.data(), size_bytes(matrix->scales), 0, groups});
    }
    return add(kSharedSection, parts);
}

Status PackedWriter::add_sm100(int expert_idx, const layout::Sm100Expert& expert) {
    const bool has_bias = layer_.shape.has_bias && expert_idx != kSharedSection;
    std::vector<Part> parts;
    for (const layout::Sm100Matrix* matrix : {&expert.first, &expert.second}) {
        parts.push_back({matrix->tiles.data(), size_bytes(matrix->tiles)});
        parts.push_back({matrix->scales.data(), size_bytes(matrix->scales)});
        if (has_bias) parts.push_back({matrix->bias.data(), size_bytes(matrix->bias)});
    }
    return add(expert_idx, parts);
}

Status PackedWriter::finish(const std::function<Status(const std::string& partial_path)>& check) {
    GCMOE_RETURN_IF_ERROR(align());
    PackedTail tail{};
    tail.magic = kPackedTailMagic;
    tail.directory_offset = offset_;
    tail.num_sections = records_.size();
    tail.directory_hash = hash_bytes(records_.data(), size_bytes(records_));
    tail.file_bytes = offset_ + size_bytes(records_) + sizeof(tail);
    tail.header_hash = header_hash_;
    tail.hash = hash_bytes(&tail, offsetof(PackedTail, hash));
    GCMOE_RETURN_IF_ERROR(write(records_.data(), size_bytes(records_)));
    GCMOE_RETURN_IF_ERROR(write(&tail, sizeof(tail)));
    if (check) GCMOE_RETURN_IF_ERROR(check(file_->partial_path()));
    return file_->commit();
}

Status write_packed_file(WeightSource& source, const PackedLayer& layer, const PackOptions& options,
                         const std::string& path, const PackSteps& steps, PackReport* report) {
    const Shape& shape = layer.shape;
    GCMOE_RETURN_IF_ERROR(layout::check_packable(shape, layer.rank));
    std::vector<bool> wanted;
    GCMOE_RETURN_IF_ERROR(layout::choose_experts(shape, layer.rank, options.only_experts, &wanted));
    std::unique_ptr<PackedWriter> writer;
    GCMOE_RETURN_IF_ERROR(PackedWriter::create(path, layer, &writer));
    PackReport packed;
    for (std::size_t local_idx = 0; local_idx < wanted.size(); ++local_idx) {
        if (!wanted[local_idx]) continue;
        const int expert_idx = layer.rank * shape.experts_per_rank() + static_cast<int>(local_idx);
        GCMOE_RETURN_IF_ERROR(
            add_packed(source, layer, expert_idx, options.allow_inexact, writer.get(), &packed));
        if (steps.progress) steps.progress();
    }
    if (shape.shared_inter > 0) {
        GCMOE_RETURN_IF_ERROR(
            add_packed_shared(source, layer, options.allow_inexact, writer.get(), &packed));
    }
    GCMOE_RETURN_IF_ERROR(writer->finish(steps.check));
    *report = packed;
    return {};
}

}  // namespace gcmoe::checkpoint
