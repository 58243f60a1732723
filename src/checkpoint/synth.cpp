#include "checkpoint/synth.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "checkpoint/synth_plan.hpp"
#include "numerics/bf16.hpp"

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

Status prepare_folder(const std::string& folder, Undo* undo) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
        fs::create_directories(folder, error);
        if (error) {
            return {Code::kBadInput,
                    fmt::format("folder {} cannot be made: {}", quote(folder), error.message())};
        }
        undo->add(folder);
    }
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (name == kConfigFileName || name == kIndexFileName ||
            entry->path().extension() == ".safetensors") {
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

// Writes the shards of one plan, with one expert in memory at a time.
class ShardWriter {
  public:
    ShardWriter(const SynthOptions& options, const SynthPlan& plan, WeightSource* source)
        : options_(options), source_(source) {
        progress_.num_experts = static_cast<int>(plan.experts.size());
        progress_.total_bytes = plan.total_bytes;
    }

    Status write(const SynthShard& shard);

  private:
    Status load(int expert_idx);
    Status write_tensor(const SynthTensor& tensor, SafetensorsWriter* writer);
    [[nodiscard]] const void* bytes_of(const SynthTensor& tensor);
    [[nodiscard]] const void* bf16_of(const float* bias, std::uint64_t num_bytes);
    void tell_progress(const SynthTensor& tensor);

    const SynthOptions& options_;
    WeightSource* source_;
    SynthProgress progress_;
    bool is_loaded_ = false;
    int loaded_idx_ = kSharedExpertIdx;
    ExpertBytes expert_;
    SharedExpertBytes shared_;
    std::vector<std::uint16_t> bf16_;
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
    shared_ = {};
    is_loaded_ = false;
    GCMOE_RETURN_IF_ERROR(expert_idx == kSharedExpertIdx ? source_->shared_expert(&shared_)
                                                         : source_->expert(expert_idx, &expert_));
    is_loaded_ = true;
    loaded_idx_ = expert_idx;
    return {};
}

Status ShardWriter::write_tensor(const SynthTensor& tensor, SafetensorsWriter* writer) {
    GCMOE_RETURN_IF_ERROR(load(tensor.expert_idx));
    GCMOE_RETURN_IF_ERROR(writer->write(tensor.spec.name, bytes_of(tensor), tensor.num_bytes));
    tell_progress(tensor);
    return {};
}

const void* ShardWriter::bytes_of(const SynthTensor& tensor) {
    const auto idx = static_cast<std::size_t>(tensor.matrix_idx);
    if (tensor.expert_idx == kSharedExpertIdx) {
        const Fp8View* views[] = {&shared_.gate, &shared_.up, &shared_.down};
        return tensor.part == TensorPart::kWeight ? views[idx]->codes : views[idx]->scales;
    }
    const Mxfp4View* views[] = {&expert_.gate, &expert_.up, &expert_.down};
    const float* biases[] = {expert_.gate_bias, expert_.up_bias, expert_.down_bias};
    switch (tensor.part) {
        case TensorPart::kWeight:
            return views[idx]->nibbles;
        case TensorPart::kScale:
            return views[idx]->scales;
        case TensorPart::kBias:
            return bf16_of(biases[idx], tensor.num_bytes);
    }
    return nullptr;
}

const void* ShardWriter::bf16_of(const float* bias, std::uint64_t num_bytes) {
    bf16_.resize(num_bytes / sizeof(std::uint16_t));
    for (std::size_t row = 0; row < bf16_.size(); ++row) {
        bf16_[row] = numerics::bf16_from_float(bias[row]);
    }
    return bf16_.data();
}

void ShardWriter::tell_progress(const SynthTensor& tensor) {
    progress_.done_bytes += tensor.num_bytes;
    const TensorPart last = options_.layer.biases ? TensorPart::kBias : TensorPart::kScale;
    if (tensor.expert_idx == kSharedExpertIdx || tensor.matrix_idx != 2 || tensor.part != last) {
        return;
    }
    ++progress_.num_experts_done;
    if (options_.progress) options_.progress(progress_);
}

}  // namespace

Status synthesise_checkpoint(const SynthOptions& options, SynthReport* report) {
    std::unique_ptr<WeightSource> source;
    GCMOE_RETURN_IF_ERROR(open_generated_layer(options.layer, &source));
    SynthPlan plan;
    GCMOE_RETURN_IF_ERROR(make_synth_plan(options, &plan));
    Undo undo;
    GCMOE_RETURN_IF_ERROR(prepare_folder(options.folder, &undo));
    ShardWriter writer(options, plan, source.get());
    for (const SynthShard& shard : plan.shards) {
        GCMOE_RETURN_IF_ERROR(writer.write(shard));
        undo.add(options.folder + "/" + shard.file_name);
    }
    if (plan.shards.size() > 1) {
        const std::string path = options.folder + "/" + kIndexFileName;
        GCMOE_RETURN_IF_ERROR(write_text_file(path, synth_index_text(plan)));
        undo.add(path);
    }
    GCMOE_RETURN_IF_ERROR(
        write_text_file(options.folder + "/" + kConfigFileName, synth_config_text(options)));
    undo.keep();
    report->num_experts = static_cast<int>(plan.experts.size());
    report->num_files = static_cast<int>(plan.shards.size());
    report->num_bytes = plan.total_bytes;
    return {};
}

}  // namespace gcmoe::checkpoint
