#include "checkpoint/synth.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/math.hpp"
#include "checkpoint/atomic_file.hpp"
#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/generated_codes.hpp"
#include "checkpoint/generated_stored.hpp"
#include "checkpoint/json_text.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "checkpoint/synth_plan.hpp"
#include "numerics/bf16.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFileName = "config.json";

// Removes what it was told of unless kept: after an error nothing is left.
class Undo {
  public:
    ~Undo() {
        std::error_code ignored;
        for (auto path = paths_.rbegin(); path != paths_.rend(); ++path) {
            fs::remove(*path, ignored);  // a folder only if it is empty
        }
    }
    void add(std::string path) { paths_.push_back(std::move(path)); }
    void keep() { paths_.clear(); }

  private:
    std::vector<std::string> paths_;
};

// Only what this writes bears the field: another checkpoint is never replaced.
bool is_own_checkpoint(const std::string& folder) {
    Json config;
    return read_json_file(folder + "/" + kConfigFileName, &config).ok() &&
           config.contains("gcmoe_weight_scales");
}

// Makes the folder, or lists the files of a checkpoint that may be replaced.
Status prepare_folder(const SynthOptions& options, Undo* undo, std::vector<std::string>* replaced) {
    const std::string& folder = options.folder;
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
        fs::create_directories(folder, error);
        if (error) {
            return {Code::kBadInput,
                    fmt::format("folder {} cannot be made: {}", quote(folder), error.message())};
        }
        undo->add(folder);
    }
    const bool may_replace = options.may_replace && is_own_checkpoint(folder);
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (name == kConfigFileName || name == kIndexFileName ||
            entry->path().extension() == ".safetensors") {
            if (may_replace && (name[0] == 'm' || name == kConfigFileName)) {
                replaced->push_back(name);
                continue;
            }
            return {Code::kBadInput, fmt::format("folder {} holds a checkpoint already: {}",
                                                 quote(folder), quote(name))};
        }
    }
    if (error) {
        return {Code::kBadInput,
                fmt::format("folder {} cannot be read: {}", quote(folder), error.message())};
    }
    return {};
}

// A folder in the folder, so on its disk: what is written there can be renamed.
Status make_staging(const std::string& folder, Undo* undo, std::string* out) {
    std::string path = folder + "/partial-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
        return {Code::kBadInput,
                fmt::format("folder {} cannot be written: {}", quote(folder), errno_text(errno))};
    }
    undo->add(path);
    *out = path;
    return {};
}

// Moves a whole checkpoint out of staging over the one in folder: from the removal of the old
// config.json to the arrival of the new one the folder is none, so that a reader meets the old one,
// the new one or a refusal.
Status swap_in(const std::string& staging, const std::string& folder,
               const std::vector<std::string>& replaced) {
    std::error_code error;
    std::set<std::string> names;
    for (fs::directory_iterator entry(staging, error), end; !error && entry != end;
         entry.increment(error)) {
        names.insert(entry->path().filename().string());
    }
    if (!error) fs::remove(folder + "/" + kConfigFileName, error);
    for (const std::string& name : replaced) {
        if (!error && names.count(name) == 0) fs::remove(folder + "/" + name, error);
    }
    names.erase(kConfigFileName);
    for (const std::string& name : names) {
        if (!error) fs::rename(staging + "/" + name, folder + "/" + name, error);
    }
    if (!error) {
        fs::rename(staging + "/" + kConfigFileName, folder + "/" + kConfigFileName, error);
    }
    if (!error) return {};
    return {Code::kBadInput, fmt::format("folder {}: the checkpoint cannot be replaced: {}",
                                         quote(folder), error.message())};
}

std::uint64_t area(int rows, int cols) {
    return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols);
}

// The bytes of one part of a matrix: row-major, of equal rows.
struct PartBytes {
    const std::uint8_t* bytes = nullptr;
    int rows = 0;
    std::uint64_t row_bytes = 0;

    [[nodiscard]] std::uint64_t num_bytes() const {
        return static_cast<std::uint64_t>(rows) * row_bytes;
    }
};

PartBytes part_of(const Mxfp4View& view, TensorPart part) {
    const bool is_weight = part == TensorPart::kWeight;
    return {is_weight ? view.nibbles : view.scales, view.rows,
            static_cast<std::uint64_t>(view.cols / (is_weight ? 2 : numerics::kMxfp4Group))};
}

PartBytes part_of(const Fp8View& view, TensorPart part) {
    if (part == TensorPart::kWeight) {
        return {view.codes, view.rows, static_cast<std::uint64_t>(view.cols)};
    }
    const GridBlock block = grid_block(view.grid);
    const std::uint64_t scale_bytes = view.grid == ScaleGrid::kFp32Block128 ? 4 : 1;
    return {static_cast<const std::uint8_t*>(view.scales), ceil_div(view.rows, block.rows),
            area(1, ceil_div(view.cols, block.cols)) * scale_bytes};
}

PartBytes part_of(const Bf16View& view, TensorPart) {
    return {view.bytes, view.rows, 2 * static_cast<std::uint64_t>(view.cols)};
}

// Writes the shards of one plan, with one expert in memory at a time.
class ShardWriter {
  public:
    ShardWriter(const SynthOptions& options, const SynthPlan& plan, StoredSource* source)
        : options_(options), plan_(plan), source_(source) {
        progress_.num_experts = static_cast<int>(plan.experts.size());
        progress_.total_bytes = plan.total_bytes;
    }

    Status write(const SynthShard& shard);

  private:
    Status load(int expert_idx);
    Status write_tensor(const SynthTensor& tensor, SafetensorsWriter* writer);
    Status write_expert(const SynthTensor& tensor, int expert_idx, SafetensorsWriter* writer);
    [[nodiscard]] PartBytes part(SynthMatrix matrix, TensorPart part);
    Status write_pair(const SynthTensor& tensor, SafetensorsWriter* writer);
    void tell_progress(const SynthTensor& tensor, int expert_idx);

    const SynthOptions& options_;
    const SynthPlan& plan_;
    StoredSource* source_;
    SynthProgress progress_;
    bool is_loaded_ = false;
    int loaded_idx_ = kSharedExpertIdx;
    StoredExpert expert_;
    std::vector<std::uint16_t> bf16_[3];  // biases of gate, up, down
};

Status ShardWriter::write(const SynthShard& shard) {
    std::vector<TensorSpec> specs;
    specs.reserve(shard.tensors.size());
    for (const SynthTensor& tensor : shard.tensors) specs.push_back(tensor.spec);
    std::unique_ptr<SafetensorsWriter> writer;
    GCMOE_RETURN_IF_ERROR(SafetensorsWriter::create(options_.folder + "/" + shard.file_name, specs,
                                                    {{"format", "pt"}}, &writer));
    for (const SynthTensor& tensor : shard.tensors) {
        GCMOE_RETURN_IF_ERROR(write_tensor(tensor, writer.get()));
    }
    return writer->finish();
}

Status ShardWriter::load(int expert_idx) {
    if (is_loaded_ && loaded_idx_ == expert_idx) return {};
    expert_ = {};
    is_loaded_ = false;
    GCMOE_RETURN_IF_ERROR(expert_idx == kSharedExpertIdx ? source_->shared_expert(&expert_)
                                                         : source_->expert(expert_idx, &expert_));
    is_loaded_ = true;
    loaded_idx_ = expert_idx;
    return {};
}

Status ShardWriter::write_tensor(const SynthTensor& tensor, SafetensorsWriter* writer) {
    if (tensor.expert_idx != kAllExperts) return write_expert(tensor, tensor.expert_idx, writer);
    for (const int expert_idx : plan_.experts) {
        GCMOE_RETURN_IF_ERROR(write_expert(tensor, expert_idx, writer));
    }
    return {};
}

Status ShardWriter::write_expert(const SynthTensor& tensor, int expert_idx,
                                 SafetensorsWriter* writer) {
    if (options_.proceed) GCMOE_RETURN_IF_ERROR(options_.proceed());
    GCMOE_RETURN_IF_ERROR(load(expert_idx));
    if (tensor.matrix == SynthMatrix::kGateAndUp) {
        GCMOE_RETURN_IF_ERROR(write_pair(tensor, writer));
    } else {
        const PartBytes bytes = part(tensor.matrix, tensor.part);
        GCMOE_RETURN_IF_ERROR(writer->write(tensor.spec.name, bytes.bytes, bytes.num_bytes()));
    }
    tell_progress(tensor, expert_idx);
    return {};
}

PartBytes ShardWriter::part(SynthMatrix matrix, TensorPart part) {
    const auto idx = static_cast<std::size_t>(matrix);
    const StoredView* views[] = {&expert_.gate, &expert_.up, &expert_.down};
    if (part != TensorPart::kBias) {
        return std::visit([&](const auto& view) { return part_of(view, part); }, *views[idx]);
    }
    const float* biases[] = {expert_.gate_bias, expert_.up_bias, expert_.down_bias};
    std::vector<std::uint16_t>& bf16 = bf16_[idx];
    bf16.resize(static_cast<std::size_t>(rows_of(*views[idx])));
    for (std::size_t row = 0; row < bf16.size(); ++row) {
        bf16[row] = numerics::bf16_from_float(biases[idx][row]);
    }
    return {reinterpret_cast<const std::uint8_t*>(bf16.data()), static_cast<int>(bf16.size()), 2};
}

// Gate and up in one tensor: row by row in turn, or one after the other.
Status ShardWriter::write_pair(const SynthTensor& tensor, SafetensorsWriter* writer) {
    const std::string& name = tensor.spec.name;
    PartBytes first = part(SynthMatrix::kGate, tensor.part);
    PartBytes second = part(SynthMatrix::kUp, tensor.part);
    if (options_.format == CheckpointFormat::kW13UpFirst) std::swap(first, second);
    if (options_.format != CheckpointFormat::kGptOss) {
        GCMOE_RETURN_IF_ERROR(writer->write(name, first.bytes, first.num_bytes()));
        return writer->write(name, second.bytes, second.num_bytes());
    }
    for (int row = 0; row < first.rows; ++row) {
        const std::uint64_t offset = static_cast<std::uint64_t>(row) * first.row_bytes;
        GCMOE_RETURN_IF_ERROR(writer->write(name, first.bytes + offset, first.row_bytes));
        GCMOE_RETURN_IF_ERROR(writer->write(name, second.bytes + offset, second.row_bytes));
    }
    return {};
}

void ShardWriter::tell_progress(const SynthTensor& tensor, int expert_idx) {
    const bool is_stack = tensor.expert_idx == kAllExperts;
    progress_.done_bytes += is_stack ? tensor.num_bytes / plan_.experts.size() : tensor.num_bytes;
    if (expert_idx == kSharedExpertIdx || tensor.matrix != SynthMatrix::kDown) return;
    const RoutedFormat format = routed_format_of(options_.format);
    const bool scale_is_last = format == RoutedFormat::kMxfp4;
    const TensorPart last = options_.layer.biases ? TensorPart::kBias
                            : scale_is_last       ? TensorPart::kScale
                                                  : TensorPart::kWeight;
    if (tensor.part != last) return;
    ++progress_.num_experts_done;
    if (options_.progress) options_.progress(progress_);
}

// Writes shards, index and config.json into options.folder.
Status write_files(const SynthOptions& options, const SynthPlan& plan, StoredSource* source,
                   Undo* undo) {
    ShardWriter writer(options, plan, source);
    for (const SynthShard& shard : plan.shards) {
        GCMOE_RETURN_IF_ERROR(writer.write(shard));
        undo->add(options.folder + "/" + shard.file_name);
    }
    if (plan.shards.size() > 1) {
        const std::string path = options.folder + "/" + kIndexFileName;
        GCMOE_RETURN_IF_ERROR(write_text_file(path, synth_index_text(plan)));
        undo->add(path);
    }
    const std::string path = options.folder + "/" + kConfigFileName;
    GCMOE_RETURN_IF_ERROR(write_text_file(path, synth_config_text(options)));
    undo->add(path);
    return options.proceed ? options.proceed() : Status();
}

}  // namespace

Status synthesise_checkpoint(const SynthOptions& options, SynthReport* report) {
    std::unique_ptr<StoredSource> source;
    GCMOE_RETURN_IF_ERROR(
        open_generated_stored(options.layer, routed_format_of(options.format), &source));
    SynthPlan plan;
    GCMOE_RETURN_IF_ERROR(make_synth_plan(options, &plan));
    Undo undo;
    std::vector<std::string> replaced;
    GCMOE_RETURN_IF_ERROR(prepare_folder(options, &undo, &replaced));
    if (replaced.empty()) {
        GCMOE_RETURN_IF_ERROR(write_files(options, plan, source.get(), &undo));
        undo.keep();
    } else {
        SynthOptions staged = options;
        GCMOE_RETURN_IF_ERROR(make_staging(options.folder, &undo, &staged.folder));
        GCMOE_RETURN_IF_ERROR(write_files(staged, plan, source.get(), &undo));
        GCMOE_RETURN_IF_ERROR(swap_in(staged.folder, options.folder, replaced));
    }
    report->num_experts = static_cast<int>(plan.experts.size());
    report->num_files = static_cast<int>(plan.shards.size());
    report->num_bytes = plan.total_bytes;
    return {};
}

}  // namespace gcmoe::checkpoint
