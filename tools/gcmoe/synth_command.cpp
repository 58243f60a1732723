// gcmoe synth: writes a generated layer as a checkpoint folder.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>

#include "checkpoint/synth.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "held_signals.hpp"
#include "layer_options.hpp"
#include "number_lists.hpp"

namespace gcmoe::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples = R"(Examples:
  gcmoe synth --out /tmp/layer --model v4.1-flash --reduced 8
  gcmoe synth --out /tmp/layer --model v4-flash --experts 0-7,12 --shard-mib 64
  gcmoe synth --out /tmp/fp8 --model deepseek-v3 --reduced 8
  gcmoe synth --out /tmp/oss --model gpt-oss-120b --reduced 8
  gcmoe synth --out /tmp/spread --model v4.1-flash --reduced 8 \
      --weight-scales "span_per_k128:14;span_per_expert:60"
Then: gcmoe run --checkpoint /tmp/layer --layer 0 --ranks 8)";

struct SynthCommand {
    ConsoleOptions console;
    LayerOptions layer;
    std::string out;
    int layer_idx = 0;
    std::string only_experts;
    std::string layout;
    int shard_mib = 0;
    bool force = false;
};

Status target_error(const SynthCommand& command, const std::string& problem) {
    return option_error("--out", command.out, problem);
}

// Refuses a target that holds anything unless --force allows it.
Status check_target(const SynthCommand& command) {
    if (command.out.empty()) return option_error("--out", "", "is missing: the folder to write");
    std::error_code error;
    if (!fs::exists(command.out, error)) return {};
    if (!fs::is_directory(command.out, error)) return target_error(command, "is not a folder");
    const bool is_empty = fs::is_empty(command.out, error);
    if (error) return target_error(command, error.message());
    if (is_empty) return {};
    if (command.force) return {};
    return target_error(command,
                        "is not empty; --force replaces a checkpoint that synth wrote there");
}

// The words of --layout.
constexpr std::pair<const char*, checkpoint::CheckpointFormat> kLayouts[] = {
    {"v4", checkpoint::CheckpointFormat::kDeepseekV4},
    {"v4.1", checkpoint::CheckpointFormat::kDeepseekV41},
    {"v3", checkpoint::CheckpointFormat::kBlockFp8},
    {"bf16", checkpoint::CheckpointFormat::kBf16},
    {"gpt-oss", checkpoint::CheckpointFormat::kGptOss},
    {"w13", checkpoint::CheckpointFormat::kW13GateFirst},
    {"w31", checkpoint::CheckpointFormat::kW13UpFirst},
};

// The layout of a model's own release.
std::string layout_of_model(const std::string& model) {
    const std::pair<const char*, const char*> kReleases[] = {
        {"v4.1", "v4.1"},   {"v4", "v4"},     {"glm", "v3"},          {"kimi", "v3"},
        {"deepseek", "v3"}, {"qwen", "bf16"}, {"gpt-oss", "gpt-oss"},
    };
    for (const auto& [begin, layout] : kReleases) {
        if (model.rfind(begin, 0) == 0) return layout;
    }
    return "v4";
}

Status choose_format(const SynthCommand& command, checkpoint::CheckpointFormat* out) {
    const std::string layout =
        command.layout.empty() ? layout_of_model(command.layer.model) : command.layout;
    std::vector<std::string> names;
    for (const auto& [name, format] : kLayouts) {
        if (layout == name) {
            *out = format;
            return {};
        }
        names.emplace_back(name);
    }
    return option_error("--layout", layout, "must be one of " + joined(names));
}

Status make_options(const SynthCommand& command, GeneratedModel* model,
                    checkpoint::SynthOptions* out) {
    GCMOE_RETURN_IF_ERROR(resolve_model(command.layer, true, model));
    out->folder = command.out;
    out->may_replace = command.force;
    out->proceed = HeldSignals::check;
    out->layer.shape = checkpoint::model_shape(model->entry, 1);
    GCMOE_RETURN_IF_ERROR(apply_activation(command.layer, &out->layer.shape));
    out->layer.weight_scales = model->weight_scales;
    out->layer.biases = model->entry.has_bias;
    out->layer.shared_grid = model->entry.shared_grid;
    out->routed_scale = model->entry.routed_scale;
    GCMOE_RETURN_IF_ERROR(choose_format(command, &out->format));
    const bool is_v3 = out->format == checkpoint::CheckpointFormat::kBlockFp8;
    if (is_v3 && !command.layer.shared_grid.has_value()) {
        out->layer.shared_grid = ScaleGrid::kFp32Block128;
    }
    if (command.layer_idx < 0) {
        return option_error("--layer", std::to_string(command.layer_idx), "must not be negative");
    }
    out->layer_idx = command.layer_idx;
    if (command.shard_mib < 0) {
        return option_error("--shard-mib", std::to_string(command.shard_mib),
                            "must not be negative (0 = one file)");
    }
    out->shard_bytes = static_cast<std::uint64_t>(command.shard_mib) << 20;
    if (!command.only_experts.empty()) {
        const int num_experts = model->entry.num_experts;
        GCMOE_RETURN_IF_ERROR(
            parse_ids("--experts", command.only_experts, num_experts, &out->experts));
        const checkpoint::TensorLayout layout = checkpoint::layout_of(out->format);
        if (checkpoint::is_stacked(layout) &&
            static_cast<int>(out->experts.size()) != num_experts) {
            return option_error("--experts", command.only_experts,
                                fmt::format("layout {} stacks all {} experts in one tensor",
                                            checkpoint::layout_name(layout), num_experts));
        }
    }
    return {};
}

Status synthesise(const SynthCommand& command) {
    GeneratedModel model;
    checkpoint::SynthOptions options;
    GCMOE_RETURN_IF_ERROR(make_options(command, &model, &options));
    GCMOE_RETURN_IF_ERROR(check_target(command));
    const checkpoint::ModelEntry& entry = model.entry;
    const std::size_t num_experts = options.experts.empty()
                                        ? static_cast<std::size_t>(entry.num_experts)
                                        : options.experts.size();
    const HeldSignals held;
    const auto begin = std::chrono::steady_clock::now();
    checkpoint::SynthReport report;
    {
        ProgressBar bar("writing experts", num_experts, command.console.progress);
        options.progress = [&](const checkpoint::SynthProgress&) { bar.advance(); };
        GCMOE_RETURN_IF_ERROR(checkpoint::synthesise_checkpoint(options, &report));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (command.console.json) {
        print_json({{"out", command.out},
                    {"model", model.title},
                    {"hidden", entry.hidden},
                    {"inter", entry.inter},
                    {"num_experts", entry.num_experts},
                    {"topk", entry.topk},
                    {"shared_inter", entry.shared_inter},
                    {"layer", command.layer_idx},
                    {"experts", report.num_experts},
                    {"files", report.num_files},
                    {"bytes", report.num_bytes},
                    {"seconds", seconds.count()}});
        return {};
    }
    fmt::print("{}: hidden {}, inter {}, {} experts, top {}, shared {}\n", model.title,
               entry.hidden, entry.inter, entry.num_experts, entry.topk, entry.shared_inter);
    fmt::print("{} written to {}: {} in {}, {:.1f} s\n",
               counted(static_cast<std::uint64_t>(report.num_experts), "expert"), command.out,
               bytes_text(report.num_bytes),
               counted(static_cast<std::uint64_t>(report.num_files), "file"), seconds.count());
    return {};
}

}  // namespace

void add_synth_command(CLI::App& app, int* exit_code) {
    auto command = std::make_shared<SynthCommand>();
    CLI::App* synth =
        app.add_subcommand("synth", "Write a generated layer as a checkpoint folder of any layout");
    synth->footer(kExamples);
    synth->add_option("--out", command->out, "Folder to write; made if it does not exist")
        ->type_name("DIR");
    add_model_options(*synth, &command->layer, "--num-experts");
    add_activation_options(*synth, &command->layer);
    synth->add_option("--layer", command->layer_idx, "Layer number in the tensor names (0)");
    synth->add_option("--experts", command->only_experts, "Write only these experts: 0-7,12 (all)")
        ->type_name("LIST");
    synth
        ->add_option("--layout", command->layout,
                     "v4, v4.1: DeepSeek's names; v3: block FP8, bf16: both with Hugging Face's "
                     "names; gpt-oss; w13, w31: gate and up stacked, gate or up first (the "
                     "model's)")
        ->type_name("LAYOUT");
    synth->add_option("--shard-mib", command->shard_mib, "Size of a shard (0 = one file)");
    synth->add_flag("--force", command->force,
                    "Write into a folder that is not empty; a checkpoint that synth wrote there is "
                    "replaced once the new one is whole");
    add_console_options(*synth, &command->console);
    synth->callback([command, exit_code] {
        const Status status = synthesise(*command);
        *exit_code = status.ok() ? kExitDone : report_error("synth", status, command->console.json);
    });
}

}  // namespace gcmoe::cli
