// gcmoe pack: the tiles of one rank's experts, in one file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "checkpoint/packed_file.hpp"
#include "checkpoint/packed_writer.hpp"
#include "checkpoint/unpacked_source.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "layer_options.hpp"
#include "number_lists.hpp"
#include "quantise_report.hpp"

namespace gcmoe::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  gcmoe pack --checkpoint /models/DeepSeek-V4.1-Flash --layer 3 --ranks 8 --rank 0 \
      --out /packed/layer3-rank0.gcmoe
  gcmoe pack --checkpoint /models/GLM-5-FP8 --layer 3 --quantize mxfp4 --ranks 8 --rank 0 \
      --out /packed/glm3-rank0.gcmoe
  gcmoe pack --checkpoint /models/gpt-oss-120b --ranks 4 --rank 1 --experts 32-35 --verify \
      --out /packed/oss-rank1.gcmoe
  gcmoe pack --checkpoint /tmp/layer --ranks 8 --rank 0 --target sm100 --out /packed/blackwell
Then: gcmoe run --packed /packed/layer3-rank*.gcmoe --tokens 16)";

struct PackCommand {
    ConsoleOptions console;
    LayerOptions layer;
    int ranks = 1;
    std::optional<int> rank;
    std::string only_experts;
    std::string target = "sm90";
    std::string out;
    bool allow_inexact = false;
    bool verify = false;
};

// What one call did.
struct PackResult {
    checkpoint::PackedLayer layer;
    PackReport packed;
    std::uint64_t file_bytes = 0;
    std::uint64_t hash = 0;
    double seconds = 0.0;
};

Status check_out(const PackCommand& command) {
    namespace fs = std::filesystem;
    if (command.out.empty()) return option_error("--out", "", "is missing: the file to write");
    if (command.layer.checkpoint.empty()) return {};
    std::error_code error;
    const fs::path folder = fs::weakly_canonical(command.layer.checkpoint, error);
    if (error || fs::weakly_canonical(command.out, error).parent_path() != folder) return {};
    return option_error("--out", command.out,
                        "lies in the checkpoint's folder, which is never written to");
}

Status choose_target(const PackCommand& command, checkpoint::PackTarget* out) {
    for (const auto target : {checkpoint::PackTarget::kSm90, checkpoint::PackTarget::kSm100}) {
        if (command.target != checkpoint::target_name(target)) continue;
        *out = target;
        return {};
    }
    return option_error("--target", command.target, "must be sm90 or sm100 (layout only)");
}

Status choose_rank(const PackCommand& command, int* out) {
    *out = command.rank.value_or(0);
    if (!command.rank.has_value() && command.ranks > 1) {
        return option_error("--rank", "",
                            fmt::format("is missing: which of the {} ranks", command.ranks));
    }
    if (*out >= 0 && *out < command.ranks) return {};
    return option_error("--rank", std::to_string(*out),
                        fmt::format("must be in 0..{}", command.ranks - 1));
}

// The experts to pack, all of them the rank's.
Status choose_experts(const PackCommand& command, const Shape& shape, int rank,
                      std::vector<int>* out) {
    if (command.only_experts.empty()) return {};
    GCMOE_RETURN_IF_ERROR(parse_ids("--experts", command.only_experts, shape.num_experts, out));
    const int first = rank * shape.experts_per_rank();
    for (const int expert_idx : *out) {
        if (expert_idx >= first && expert_idx < first + shape.experts_per_rank()) continue;
        return option_error("--experts", command.only_experts,
                            fmt::format("expert {} belongs to rank {}; rank {} has {}..{}",
                                        expert_idx, expert_idx / shape.experts_per_rank(), rank,
                                        first, first + shape.experts_per_rank() - 1));
    }
    return {};
}

Status describe_layer(const Layer& layer, int rank, checkpoint::PackTarget target,
                      checkpoint::PackedLayer* out) {
    GCMOE_RETURN_IF_ERROR(layer.identify(&out->identity));
    out->shape = layer.shape;
    out->rank = rank;
    out->target = target;
    out->model_hidden = layer.hidden;
    out->model_inter = layer.inter;
    out->routed_scale = layer.routed_scale;
    out->has_uneven_scales = layer.weight_scales != "normal";
    return {};
}

// Reads the file that is to appear as --out again, and with --verify every weight of it.
Status read_back(const PackCommand& command, const Layer& layer, const std::string& partial_path,
                 PackResult* result) {
    std::unique_ptr<checkpoint::PackedFile> opened;
    GCMOE_RETURN_IF_ERROR(checkpoint::PackedFile::open(partial_path, &opened));
    result->file_bytes = opened->num_bytes();
    result->hash = opened->hash();
    if (!command.verify) return {};
    const std::shared_ptr<const checkpoint::PackedFile> file = std::move(opened);
    return checkpoint::compare_with_source(*layer.source, file);
}

Status write_file(const PackCommand& command, const Layer& layer, PackResult* result) {
    const checkpoint::PackedLayer& packed = result->layer;
    PackOptions options;
    options.allow_inexact = command.allow_inexact;
    GCMOE_RETURN_IF_ERROR(choose_experts(command, layer.shape, packed.rank, &options.only_experts));
    const std::size_t num_experts = options.only_experts.empty()
                                        ? static_cast<std::size_t>(layer.shape.experts_per_rank())
                                        : options.only_experts.size();
    ProgressBar bar("packing experts", num_experts, command.console.progress);
    checkpoint::PackSteps steps;
    steps.progress = [&bar] { bar.advance(); };
    steps.check = [&](const std::string& partial_path) {
        return read_back(command, layer, partial_path, result);
    };
    const Status status = checkpoint::write_packed_file(*layer.source, packed, options, command.out,
                                                        steps, &result->packed);
    if (status.code() == Code::kInexact) {
        return {status.code(), status.message() + " (--allow-inexact rounds and counts)"};
    }
    return status;
}

void print_report(const PackCommand& command, const Layer& layer, const PackResult& result) {
    const PackReport& packed = result.packed;
    fmt::print("{}: rank {} of {}, {} for {}\n", layer.title, result.layer.rank,
               layer.shape.num_ranks,
               counted(static_cast<std::uint64_t>(packed.num_experts), "expert"), command.target);
    fmt::print("{}\n", result.layer.identity.text());
    if (layer.quantised != nullptr) print_quantise_report(*layer.quantised);
    if (packed.num_changed_values > 0) {
        fmt::print("NOT exact: {} rounded, the worst by {:.3g} of its row's maximum\n",
                   counted(static_cast<std::uint64_t>(packed.num_changed_values), "value"),
                   packed.worst_change);
    }
    if (command.verify) fmt::print("read back: every weight is the source's\n");
    fmt::print("{} written to {}, hash {:016x}, {:.1f} s\n", bytes_text(result.file_bytes),
               command.out, result.hash, result.seconds);
}

void print_report_json(const PackCommand& command, const Layer& layer, const PackResult& result) {
    const checkpoint::LayerIdentity& identity = result.layer.identity;
    nlohmann::ordered_json object = {{"out", command.out},
                                     {"target", command.target},
                                     {"rank", result.layer.rank},
                                     {"ranks", layer.shape.num_ranks},
                                     {"model", identity.model},
                                     {"layer", identity.layer_idx},
                                     {"fingerprint", fmt::format("{:016x}", identity.fingerprint)},
                                     {"layout", layer.layout},
                                     {"stored", layer.stored_format},
                                     {"experts", result.packed.num_experts},
                                     {"tile_bytes", result.packed.packed_bytes},
                                     {"file_bytes", result.file_bytes},
                                     {"hash", fmt::format("{:016x}", result.hash)},
                                     {"changed_values", result.packed.num_changed_values},
                                     {"worst_change", result.packed.worst_change},
                                     {"read_back", command.verify},
                                     {"seconds", result.seconds}};
    if (layer.quantised != nullptr) object["quantised"] = quantise_json(*layer.quantised);
    print_json(object);
}

Status pack(const PackCommand& command) {
    GCMOE_RETURN_IF_ERROR(check_out(command));
    if (command.verify && command.allow_inexact) {
        return option_error("--verify", "",
                            "compares every weight, but --allow-inexact may round some");
    }
    checkpoint::PackTarget target = checkpoint::PackTarget::kSm90;
    GCMOE_RETURN_IF_ERROR(choose_target(command, &target));
    Layer layer;
    GCMOE_RETURN_IF_ERROR(open_layer(command.layer, command.ranks, &layer));
    int rank = 0;
    GCMOE_RETURN_IF_ERROR(choose_rank(command, &rank));
    const auto begin = std::chrono::steady_clock::now();
    PackResult result;
    GCMOE_RETURN_IF_ERROR(describe_layer(layer, rank, target, &result.layer));
    GCMOE_RETURN_IF_ERROR(write_file(command, layer, &result));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    result.seconds = seconds.count();
    if (command.console.json) {
        print_report_json(command, layer, result);
    } else {
        print_report(command, layer, result);
    }
    return {};
}

}  // namespace

void add_pack_command(CLI::App& app, int* exit_code) {
    auto command = std::make_shared<PackCommand>();
    CLI::App* pack_app =
        app.add_subcommand("pack", "Pack the experts of one rank into one file of tiles");
    pack_app->footer(kExamples);
    pack_app->add_option("--out", command->out, "File to write; appears whole or not at all")
        ->type_name("FILE");
    pack_app->add_option("--ranks", command->ranks, "Expert-parallel ranks (1)");
    pack_app->add_option("--rank", command->rank, "Which of them");
    pack_app
        ->add_option("--experts", command->only_experts,
                     "Only these of the rank's experts: 32-35,40 (all)")
        ->type_name("LIST");
    pack_app
        ->add_option("--target", command->target,
                     "sm90 (also the CPU's), or sm100: layout only, no backend runs it yet (sm90)")
        ->type_name("TILES");
    pack_app->add_flag("--allow-inexact", command->allow_inexact,
                       "Round weights that no exact form holds, and say how many");
    pack_app->add_flag("--verify", command->verify,
                       "Read the file again and compare every weight with the checkpoint's, "
                       "before it appears");
    add_checkpoint_options(*pack_app, &command->layer);
    add_model_options(*pack_app, &command->layer, "--num-experts");
    add_activation_options(*pack_app, &command->layer);
    add_console_options(*pack_app, &command->console);
    pack_app->callback([command, exit_code] {
        const Status status = pack(*command);
        *exit_code = status.ok() ? kExitDone : report_error("pack", status, command->console.json);
    });
}

}  // namespace gcmoe::cli
