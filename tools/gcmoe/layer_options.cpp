#include "layer_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <utility>

#include "base/math.hpp"
#include "checkpoint/generated_layer.hpp"
#include "checkpoint/json_text.hpp"
#include "checkpoint/layer_identity.hpp"
#include "checkpoint/open_layer.hpp"
#include "checkpoint/padded_source.hpp"
#include "checkpoint/scale_rule.hpp"
#include "console.hpp"
#include "layout/peer_table.hpp"
#include "number_lists.hpp"

namespace gcmoe::cli {
namespace {

constexpr int kWidthMultiple = 128;
constexpr int kMxfp4Group = 32;

// The words of --shared-grid, as the suites spell them.
constexpr std::pair<const char*, ScaleGrid> kGrids[] = {
    {"fp32-128x128", ScaleGrid::kFp32Block128},
    {"ue8m0-128x128", ScaleGrid::kUe8m0Block128},
    {"ue8m0-32x32", ScaleGrid::kUe8m0Block32},
    {"ue8m0-1x32", ScaleGrid::kUe8m0Row32},
};

Status parse_grid(const std::string& text, ScaleGrid* out) {
    std::vector<std::string> names;
    for (const auto& [name, grid] : kGrids) {
        if (text == name) {
            *out = grid;
            return {};
        }
        names.emplace_back(name);
    }
    return option_error("--shared-grid", text, "is no scale grid; there are " + joined(names));
}

// The first option of the generator that was given, or empty.
std::string generator_option(const LayerOptions& options) {
    const std::pair<std::string, bool> given[] = {
        {"--model", !options.model.empty()},
        {"--reduced", options.reduced.has_value()},
        {"--hidden", options.hidden.has_value()},
        {"--inter", options.inter.has_value()},
        {options.experts_option, options.experts.has_value()},
        {"--topk", options.topk.has_value()},
        {"--shared-inter", options.shared_inter.has_value()},
        {"--weight-scales", options.weight_scales.has_value()},
        {"--shared-grid", options.shared_grid.has_value()},
    };
    for (const auto& [name, is_given] : given) {
        if (is_given) return name;
    }
    return {};
}

// An override of one size; 0 or less, or no multiple of what the format needs, is an error.
Status override_size(const std::string& option, const std::optional<int>& value, int multiple,
                     int* size) {
    if (!value.has_value()) return {};
    if (*value < 1 || *value % multiple != 0) {
        return option_error(option, std::to_string(*value),
                            multiple == 1 ? std::string("must be at least 1")
                                          : fmt::format("must be a multiple of {}", multiple));
    }
    *size = *value;
    return {};
}

Status override_sizes(const LayerOptions& options, checkpoint::ModelEntry* entry) {
    GCMOE_RETURN_IF_ERROR(override_size("--hidden", options.hidden, kMxfp4Group, &entry->hidden));
    GCMOE_RETURN_IF_ERROR(override_size("--inter", options.inter, kMxfp4Group, &entry->inter));
    GCMOE_RETURN_IF_ERROR(
        override_size(options.experts_option, options.experts, 1, &entry->num_experts));
    GCMOE_RETURN_IF_ERROR(override_size("--topk", options.topk, 1, &entry->topk));
    if (entry->topk > entry->num_experts) {
        return option_error(
            "--topk", std::to_string(entry->topk),
            fmt::format("is above the {} experts of the layer", entry->num_experts));
    }
    return override_size("--shared-inter", options.shared_inter, kMxfp4Group, &entry->shared_inter);
}

Status choose_shared(const LayerOptions& options, bool default_shared, int model_shared_inter,
                     checkpoint::ModelEntry* entry) {
    const bool sized = options.shared_inter.has_value();
    const bool wanted = options.shared.value_or(default_shared || sized);
    if (!wanted && sized) {
        return option_error("--shared-inter", std::to_string(*options.shared_inter),
                            "contradicts --no-shared");
    }
    if (!wanted) {
        if (options.shared_grid.has_value()) {
            return option_error("--shared-grid", *options.shared_grid,
                                "the layer has no shared expert; add --shared");
        }
        entry->shared_inter = 0;
        return {};
    }
    if (model_shared_inter == 0 && !sized && options.shared.value_or(false)) {
        return option_error(
            "--shared", "",
            fmt::format("{} has no shared expert; give --shared-inter too", entry->name));
    }
    if (options.shared_grid.has_value()) {
        return parse_grid(*options.shared_grid, &entry->shared_grid);
    }
    return {};
}

Status parse_clamp(const std::string& text, float* out) {
    if (text == "off") {
        *out = std::numeric_limits<float>::infinity();
        return {};
    }
    double value = 0.0;
    if (!parse_double(text, &value) || value <= 0.0) {
        return option_error("--clamp", text, "must be a number above 0, or off");
    }
    *out = static_cast<float>(value);
    return {};
}

Status check_ranks(int num_ranks, int num_experts) {
    const std::string value = std::to_string(num_ranks);
    if (num_ranks < 1 || num_ranks > layout::kMaxRanks) {
        return option_error(
            "--ranks", value,
            fmt::format("must be in 1..{} (slots of the peer descriptor)", layout::kMaxRanks));
    }
    if (num_experts % num_ranks == 0) return {};
    return option_error("--ranks", value,
                        fmt::format("does not divide the {} experts of the layer", num_experts));
}

// What both kinds of layer end with: activation options, checks, padding.
Status finish_layer(const LayerOptions& options, std::unique_ptr<WeightSource> source, Layer* out) {
    GCMOE_RETURN_IF_ERROR(check_ranks(out->shape.num_ranks, out->shape.num_experts));
    GCMOE_RETURN_IF_ERROR(apply_activation(options, &out->shape));
    if (const Status status = validate(out->shape); !status.ok()) {
        if (options.checkpoint.empty()) return name_option(status);
        return option_error("--checkpoint", options.checkpoint, status.message());
    }
    const checkpoint::PaddedSizes sizes{out->shape.hidden, out->shape.inter,
                                        out->shape.shared_inter};
    return checkpoint::pad_source(std::move(source), sizes, &out->source);
}

Shape padded(Shape shape) {
    shape.hidden = round_up(shape.hidden, kWidthMultiple);
    shape.inter = round_up(shape.inter, kWidthMultiple);
    shape.shared_inter = round_up(shape.shared_inter, kWidthMultiple);
    return shape;
}

Status open_generated(const LayerOptions& options, int num_ranks, Layer* out) {
    GeneratedModel model;
    GCMOE_RETURN_IF_ERROR(resolve_model(options, false, &model));
    out->title = model.title + ", generated";
    out->hidden = model.entry.hidden;
    out->inter = model.entry.inter;
    out->routed_scale = model.entry.routed_scale;
    out->weight_scales = model.weight_scales;
    out->shape = padded_shape(model.entry, num_ranks);
    checkpoint::GeneratedLayer generated;
    generated.shape = checkpoint::model_shape(model.entry, num_ranks);
    generated.weight_scales = model.weight_scales;
    generated.biases = model.entry.has_bias;
    generated.shared_grid = model.entry.shared_grid;
    out->identify = [generated, name = model.title](checkpoint::LayerIdentity* identity) {
        *identity = checkpoint::identify_generated_layer(generated, name);
        return Status();
    };
    std::unique_ptr<WeightSource> source;
    GCMOE_RETURN_IF_ERROR(checkpoint::open_generated_layer(generated, &source));
    return finish_layer(options, std::move(source), out);
}

// The scale rule that synth notes beside its weights; another checkpoint has normal ones.
std::string noted_weight_scales(const std::string& folder) {
    checkpoint::Json config;
    if (!checkpoint::read_json_file(folder + "/config.json", &config).ok()) return "normal";
    const auto found = config.find("gcmoe_weight_scales");
    return found != config.end() && found->is_string() ? found->get<std::string>() : "normal";
}

Status parse_read_options(const LayerOptions& options, checkpoint::ReadOptions* out) {
    out->layer = options.layer.value_or(0);
    if (options.gate_up.has_value()) {
        if (*options.gate_up != "w1-w3" && *options.gate_up != "w3-w1") {
            return option_error("--gate-up", *options.gate_up,
                                "must be w1-w3 (DeepSeek: w1 is the gate, w3 up) or w3-w1");
        }
        out->order = *options.gate_up == "w1-w3" ? checkpoint::GateUpOrder::kW1GateW3Up
                                                 : checkpoint::GateUpOrder::kW1UpW3Gate;
    }
    if (options.quantize.has_value() && *options.quantize != "mxfp4") {
        return option_error("--quantize", *options.quantize, "must be mxfp4");
    }
    out->quantise = options.quantize.has_value();
    return {};
}

// A refusal of the reader with the options that may help.
Status name_reader_option(const LayerOptions& options, const Status& refused) {
    std::string sentence = refused.message();
    if (sentence.find("an order of gate and up") != std::string::npos) {
        return option_error("--gate-up", *options.gate_up, sentence);
    }
    if (sentence.find("say which half") != std::string::npos) {
        sentence += " (--gate-up w1-w3: the first; w3-w1: the second)";
    }
    if (sentence.find("which quantising makes") != std::string::npos) {
        sentence += " (--quantize mxfp4, which also prints the error it makes)";
    }
    return {refused.code(), option_error("--checkpoint", options.checkpoint, sentence).message()};
}

Status open_checkpoint(const LayerOptions& options, int num_ranks, Layer* out) {
    if (const std::string option = generator_option(options); !option.empty()) {
        return option_error("--checkpoint", options.checkpoint,
                            "contradicts " + option + ", which makes a layer without a file");
    }
    checkpoint::ReadOptions read_options;
    GCMOE_RETURN_IF_ERROR(parse_read_options(options, &read_options));
    checkpoint::OpenedLayer opened;
    const Status status =
        checkpoint::open_checkpoint_layer(options.checkpoint, read_options, &opened);
    if (!status.ok()) return name_reader_option(options, status);
    checkpoint::LayerInfo& info = opened.info;
    out->identify = [folder = options.checkpoint, read_options, info](auto* identity) {
        return checkpoint::identify_checkpoint_layer(folder, read_options, info, identity);
    };
    if (!options.shared.value_or(true)) info.shared_inter = 0;
    if (options.shared.value_or(false) && info.shared_inter == 0) {
        return option_error("--shared", "", "the checkpoint's layer has no shared expert");
    }
    if (info.topk == 0) {
        return option_error("--checkpoint", options.checkpoint,
                            "config.json lacks num_experts_per_tok");
    }
    out->title = fmt::format("{} layer {} of {}", info.model_type.empty() ? "?" : info.model_type,
                             read_options.layer, options.checkpoint);
    out->layout = checkpoint::layout_name(info.layout);
    out->stored_format = checkpoint::format_name(info.routed_format);
    out->quantised = opened.quantised;
    out->hidden = info.hidden;
    out->inter = info.inter;
    out->routed_scale = info.routed_scaling_factor.value_or(1.0F);
    out->weight_scales = noted_weight_scales(options.checkpoint);
    if (static_cast<int>(info.present_experts.size()) < info.num_experts) {
        out->present_experts = info.present_experts;
    }
    out->shape = padded(checkpoint::layer_shape(info, num_ranks));
    return finish_layer(options, std::move(opened.source), out);
}

}  // namespace

void add_model_options(CLI::App& command, LayerOptions* options,
                       const std::string& experts_option) {
    std::vector<std::string> names;
    for (const checkpoint::ModelEntry& entry : checkpoint::known_models()) {
        names.push_back(entry.name);
    }
    options->experts_option = experts_option;
    const char* group = "Layer from a generator";
    const auto add = [&](const std::string& name, auto* target, const std::string& description) {
        return command.add_option(name, *target, description)->group(group);
    };
    add("--model", &options->model, "One of " + joined(names))->type_name("NAME");
    add("--reduced", &options->reduced, "Divide widths and experts by this (for the CPU: 8)");
    add("--hidden", &options->hidden, "H instead of the model's");
    add("--inter", &options->inter, "I instead of the model's");
    add(experts_option, &options->experts, "Routed experts instead of the model's");
    add("--topk", &options->topk, "Chosen experts per token instead of the model's");
    add("--shared-inter", &options->shared_inter, "Width of the shared expert; adds one");
    add("--shared-grid", &options->shared_grid,
        "Scales of its weights: fp32-128x128, ue8m0-128x128, ue8m0-32x32, ue8m0-1x32")
        ->type_name("GRID");
    add("--weight-scales", &options->weight_scales,
        "normal, rows_of_codes:1,64,254 or span_per_k128:14;span_per_expert:60")
        ->type_name("RULE");
    CLI::Option* with_shared = command.add_flag_callback(
        "--shared", [options] { options->shared = true; }, "With the shared expert");
    CLI::Option* without_shared = command.add_flag_callback(
        "--no-shared", [options] { options->shared = false; }, "Without it");
    with_shared->group("Layer")->excludes(without_shared);
    without_shared->group("Layer");
}

void add_checkpoint_options(CLI::App& command, LayerOptions* options) {
    const char* group = "Layer from a checkpoint";
    command
        .add_option("--checkpoint", options->checkpoint,
                    "Folder with safetensors of DeepSeek V4 or V4.1, DeepSeek-V3, GLM, Kimi-K2, "
                    "Qwen, gpt-oss, or with stacked w13")
        ->type_name("DIR")
        ->group(group);
    command.add_option("--layer", options->layer, "Layer of the checkpoint (0)")->group(group);
    command
        .add_option("--gate-up", options->gate_up,
                    "w1-w3: w1 is the gate, w3 the up matrix, as DeepSeek writes them (the "
                    "default of its layout); w3-w1: the other way round. Stacked w13: must be "
                    "given; w1-w3: the gate is the first half")
        ->type_name("ORDER")
        ->group(group);
    command
        .add_option("--quantize", options->quantize,
                    "mxfp4: makes MXFP4 of FP8 and BF16 experts, and says what error that makes")
        ->type_name("FORMAT")
        ->group(group);
}

void add_activation_options(CLI::App& command, LayerOptions* options) {
    command.add_option("--clamp", options->clamp, "Limit of gate and up, or off")
        ->type_name("LIMIT")
        ->group("Layer");
    command.add_option("--alpha", options->alpha, "g * sigmoid(alpha * g) * (u + beta)")
        ->group("Layer");
    command.add_option("--beta", options->beta, "See --alpha")->group("Layer");
    command
        .add_option("--activation-scale", options->activation_scale,
                    "fp32-k128 (Hopper, the default) or ue8m0-k32 (Blackwell)")
        ->type_name("FORM")
        ->group("Layer");
}

Status resolve_model(const LayerOptions& options, bool default_shared, GeneratedModel* out) {
    if (options.model.empty()) {
        return option_error("--model", "", "is missing: which layer? See --help for the names");
    }
    if (Status status = checkpoint::find_model(options.model, &out->entry); !status.ok()) {
        return option_error("--model", options.model, status.message());
    }
    for (const auto& [option, is_given] : {std::pair("--layer", options.layer.has_value()),
                                           std::pair("--gate-up", options.gate_up.has_value()),
                                           std::pair("--quantize", options.quantize.has_value())}) {
        if (is_given) return option_error(option, "", "belongs to --checkpoint, not to --model");
    }
    const int reduced = options.reduced.value_or(1);
    if (reduced < 1) {
        return option_error("--reduced", std::to_string(reduced), "must be at least 1");
    }
    out->title = out->entry.name;
    if (reduced > 1) {
        out->entry = checkpoint::reduced(out->entry, reduced);
        out->title += fmt::format(" / {}", reduced);
    }
    const int model_shared_inter = out->entry.shared_inter;
    GCMOE_RETURN_IF_ERROR(override_sizes(options, &out->entry));
    GCMOE_RETURN_IF_ERROR(choose_shared(options, default_shared, model_shared_inter, &out->entry));
    out->weight_scales = options.weight_scales.value_or("normal");
    checkpoint::ScaleRule rule;
    if (Status status = checkpoint::parse_scale_rule(out->weight_scales, &rule); !status.ok()) {
        return option_error("--weight-scales", out->weight_scales, status.message());
    }
    return {};
}

Shape padded_shape(const checkpoint::ModelEntry& entry, int num_ranks) {
    return padded(checkpoint::model_shape(entry, num_ranks));
}

Status apply_activation(const LayerOptions& options, Shape* shape) {
    if (options.clamp.has_value()) {
        GCMOE_RETURN_IF_ERROR(parse_clamp(*options.clamp, &shape->activation.clamp));
    }
    shape->activation.alpha = options.alpha.value_or(shape->activation.alpha);
    shape->activation.beta = options.beta.value_or(shape->activation.beta);
    const std::string scale = options.activation_scale.value_or("fp32-k128");
    if (scale != "fp32-k128" && scale != "ue8m0-k32") {
        return option_error("--activation-scale", scale, "must be fp32-k128 or ue8m0-k32");
    }
    shape->activation_scale =
        scale == "fp32-k128" ? ActivationScale::kFp32K128 : ActivationScale::kUe8m0K32;
    return {};
}

Status name_option(const Status& status) {
    // The library's field in its sentence -> the option. The first that occurs wins.
    static const std::pair<const char*, const char*> kFields[] = {
        {"tuned table ", "--tuned"},
        {"overlap off", "--no-overlap"},
        {"row_block = ", "--row-block"},
        {"lead_blocks = ", "--lead-blocks"},
        {"ring_blocks = ", "--ring-blocks"},
        {"second_columns = ", "--second-columns"},
        {"dispatch_units = ", "--dispatch-units"},
        {"compute_units = ", "--compute-units"},
        {"max_tokens", "--capacity"},
        {"trace_events = ", "--trace-events"},
        {"activation.alpha = ", "--alpha"},
        {"num_ranks = ", "--ranks"},
        {"shared_inter = ", "--shared-inter"},
        {"inter = ", "--inter"},
        {"hidden = ", "--hidden"},
    };
    if (status.code() != Code::kBadConfig) return status;
    for (const auto& [field, option] : kFields) {
        if (status.message().find(field) != std::string::npos) {
            return {status.code(), fmt::format("{}: {}", option, status.message())};
        }
    }
    return status;
}

std::string given_layer_option(const LayerOptions& options) {
    const std::pair<const char*, bool> given[] = {
        {"--checkpoint", !options.checkpoint.empty()},
        {"--layer", options.layer.has_value()},
        {"--gate-up", options.gate_up.has_value()},
        {"--quantize", options.quantize.has_value()},
        {"--shared or --no-shared", options.shared.has_value()},
        {"--clamp", options.clamp.has_value()},
        {"--alpha", options.alpha.has_value()},
        {"--beta", options.beta.has_value()},
        {"--activation-scale", options.activation_scale.has_value()},
    };
    for (const auto& [name, is_given] : given) {
        if (is_given) return name;
    }
    return generator_option(options);
}

Status open_layer(const LayerOptions& options, int num_ranks, Layer* out) {
    if (options.checkpoint.empty() && options.model.empty()) {
        return option_error("--model", "",
                            "or --checkpoint is missing: which layer? Try --model v4.1-flash "
                            "--reduced 8");
    }
    return options.checkpoint.empty() ? open_generated(options, num_ranks, out)
                                      : open_checkpoint(options, num_ranks, out);
}

}  // namespace gcmoe::cli
