#include "tune_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <tuple>
#include <utility>

#include "bench_device.hpp"
#include "layer_options.hpp"
#include "plan/choose_plan.hpp"

namespace gcmoe::cli {
namespace {

constexpr double kMostSeconds = 86400;
constexpr double kMostPercent = 50;
constexpr int kMxfp4Group = 32;      // weights of one scale
constexpr int kMostWidth = 1 << 20;  // as of checkpoints

Status check_number(const char* option, double value, double least, double most) {
    if (value >= least && value <= most) return {};
    return option_error(option, fmt::format("{}", value),
                        fmt::format("must be in {}..{}", least, most));
}

// The sizes of the one model that they are for.
Status override_sizes(const TuneOptions& options, BenchPlan* plan) {
    checkpoint::ModelEntry& model = plan->models.front();
    bool has_any = false;
    for (const auto& [option, given, value] :
         {std::tuple("--hidden", &options.hidden, &model.hidden),
          std::tuple("--inter", &options.inter, &model.inter),
          std::tuple("--experts", &options.experts, &model.num_experts),
          std::tuple("--topk", &options.topk, &model.topk)}) {
        if (!given->has_value()) continue;
        has_any = true;
        const std::string text = std::to_string(**given);
        if (plan->models.size() != 1) {
            return option_error(
                option, text,
                fmt::format("is for one model; --model names {}", plan->models.size()));
        }
        const bool is_width = value == &model.hidden || value == &model.inter;
        const int multiple = is_width ? kMxfp4Group : 1;
        if (**given < multiple || **given > kMostWidth || **given % multiple != 0) {
            const std::string rule = is_width ? fmt::format("a multiple of {} ", multiple) : "";
            return option_error(option, text,
                                fmt::format("must be {}in {}..{}", rule, multiple, kMostWidth));
        }
        *value = **given;
    }
    if (!has_any) return {};
    if (model.topk > model.num_experts) {
        return option_error(
            options.topk ? "--topk" : "--experts",
            std::to_string(options.topk ? model.topk : model.num_experts),
            fmt::format("leaves {} experts for top {}", model.num_experts, model.topk));
    }
    model.name = fmt::format("{}, hidden {}, inter {}, {} experts, top {}", model.name,
                             model.hidden, model.inter, model.num_experts, model.topk);
    const bool with_shared = plan->variants.front().shared == SharedForm::kFused;
    return name_option(validate(bench_shape(model, with_shared)));
}

// --derive writes every entry of the table: what chooses points, or how they are searched, is none
// of its business.
Status check_derived_points(const TuneOptions& options) {
    const TuneOptions defaults;
    const BenchOptions& asked = options.bench;
    const BenchOptions& open = defaults.bench;
    for (const auto& [option, is_given] :
         {std::pair("--model", asked.models != open.models),
          std::pair("--reduced", asked.reduced != open.reduced),
          std::pair("--hidden", options.hidden != defaults.hidden),
          std::pair("--inter", options.inter != defaults.inter),
          std::pair("--experts", options.experts != defaults.experts),
          std::pair("--topk", options.topk != defaults.topk),
          std::pair("--tokens", asked.tokens != open.tokens),
          std::pair("--shared", asked.shared != open.shared),
          std::pair("--seeds", asked.seeds != open.seeds),
          std::pair("--warm", asked.warm != open.warm),
          std::pair("--timed", asked.timed != open.timed),
          std::pair("--flush-mib", asked.flush_mib != open.flush_mib),
          std::pair("--threshold", options.threshold_percent != defaults.threshold_percent),
          std::pair("--budget-s", options.budget_s != defaults.budget_s)}) {
        if (is_given) {
            return option_error("--derive", options.derive_path,
                                fmt::format("contradicts {}: the table's entries are taken as they "
                                            "are, nothing is searched",
                                            option));
        }
    }
    return {};
}

Status check_derive(const TuneOptions& options) {
    if (options.candidates_only && !options.bench.out_path.empty()) {
        return option_error("--out", options.bench.out_path,
                            "contradicts --candidates-only: nothing is measured, no table written");
    }
    if (options.derive_path.empty()) {
        if (!options.gpu_name.empty()) {
            return option_error("--gpu", options.gpu_name, "needs --derive: a GPU measures itself");
        }
        if (options.sms && !options.candidates_only) {
            return option_error("--sms", std::to_string(*options.sms),
                                "needs --derive or --candidates-only: a GPU has the SMs it has");
        }
        return {};
    }
    if (options.candidates_only) {
        return option_error("--derive", options.derive_path,
                            "contradicts --candidates-only: nothing is searched");
    }
    for (const auto& [option, is_missing] :
         {std::pair("--gpu", options.gpu_name.empty()), std::pair("--sms", !options.sms),
          std::pair("--out", options.bench.out_path.empty())}) {
        if (is_missing) return option_error(option, "", "is missing: --derive needs it");
    }
    return check_derived_points(options);
}

}  // namespace

void add_tune_options(CLI::App& command, TuneOptions* options) {
    const auto add = [&](const char* group, const char* name, auto* target, const char* type,
                         const char* description) {
        command.add_option(name, *target, description)->type_name(type)->group(group);
    };
    BenchOptions& bench = options->bench;
    const char* points = "Points";
    add(points, "--model,--models", &bench.models, "LIST",
        "Models, an eighth of their experts each (v4.1-flash,v4-flash,glm-5.2)");
    add(points, "--reduced", &bench.reduced, "INT", "Divide widths and experts by this");
    add(points, "--hidden", &options->hidden, "INT", "H instead of the model's");
    add(points, "--inter", &options->inter, "INT", "I instead of the model's");
    add(points, "--experts", &options->experts, "INT", "Experts of the rank instead of an eighth");
    add(points, "--topk", &options->topk, "INT", "Chosen experts per token instead of the model's");
    add(points, "--tokens", &bench.tokens, "LIST",
        "Capacities to tune for; a band reaches from one to the next (1,2,4 .. 256)");
    add(points, "--shared", &bench.shared, "FORM", "The shared expert: none, or fused (none)");
    const char* search = "Search";
    add(search, "--seeds", &bench.seeds, "INT",
        "Routings of the finals, and as many others to confirm the best (3)");
    add(search, "--warm", &bench.warm, "INT", "Launches before the timed ones of the finals (10)");
    add(search, "--timed", &bench.timed, "INT", "Timed launches of the finals (30)");
    add(search, "--flush-mib", &bench.flush_mib, "INT", "MiB written before every launch (512)");
    add(search, "--threshold", &options->threshold_percent, "FLOAT",
        "Per cent by which a plan must be faster than the rules' to be taken (1)");
    add(search, "--budget-s", &options->budget_s, "FLOAT", "Seconds for all points (300)");
    command
        .add_flag("--candidates-only", options->candidates_only,
                  "List candidates and what is pruned, measure nothing: needs no GPU")
        ->group(search);
    add("GPU", "--device", &bench.gpu.device, "INT", "CUDA's number of the device (0)");
    add("GPU", "--sms", &options->sms, "INT",
        "SMs of the GPU that --derive or --candidates-only are for (132)");
    add("GPU", "--derive", &options->derive_path, "FILE",
        "Instead of a search: this table for a GPU with other SMs, labelled as not measured");
    add("GPU", "--gpu", &options->gpu_name, "NAME", "Name of the GPU that --derive is for");
    add("Results", "--out", &bench.out_path, "FILE.jsonl", "Write the tuned table");
    command.add_flag("--force", bench.force, "Replace the file of --out")->group("Results");
    add_console_options(command, &bench.console);
}

Status make_tune_plan(const TuneOptions& options, TunePlan* out) {
    GCMOE_RETURN_IF_ERROR(check_derive(options));
    const int sms = options.sms.value_or(plan::kH200Sms);
    if (sms < 2 || sms > plan::kMaxUnits) {
        return option_error("--sms", std::to_string(sms),
                            fmt::format("must be in 2..{}", plan::kMaxUnits));
    }
    if (options.bench.shared == "apart") {
        return option_error("--shared", "apart", "must be one of none, fused: a launch is tuned");
    }
    GCMOE_RETURN_IF_ERROR(make_bench_plan(options.bench, &out->bench));
    GCMOE_RETURN_IF_ERROR(check_number("--threshold", options.threshold_percent, 0, kMostPercent));
    GCMOE_RETURN_IF_ERROR(check_number("--budget-s", options.budget_s, 1, kMostSeconds));
    GCMOE_RETURN_IF_ERROR(override_sizes(options, &out->bench));
    std::sort(out->bench.tokens.begin(), out->bench.tokens.end());
    out->budget_s = options.budget_s;
    out->threshold_percent = options.threshold_percent;
    out->sms = sms;
    return {};
}

}  // namespace gcmoe::cli
