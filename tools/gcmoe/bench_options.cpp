#include "bench_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "bench_ablations.hpp"
#include "layer_options.hpp"
#include "number_lists.hpp"
#include "plan/tuned_table.hpp"
#include "plan_options.hpp"

namespace gcmoe::cli {
namespace {

// A rank of the models' deployments holds the experts of one of eight.
constexpr int kRanksOfTheModel = 8;
constexpr int kMostTokens = 65536;
constexpr int kMostSeeds = 100;
constexpr int kMostLaunches = 100000;
constexpr int kMostFlushMib = 16384;
constexpr int kMostSms = 1024;
// Rows an expert may have in a loop: what src/cuda/measure/stream_loop.hpp has kernels for.
constexpr int kLoopRows[] = {8, 16, 24, 32, 48, 64};
constexpr const char* kAllLoopRows = "8,16,24,32,48,64";
constexpr const char* kAllLoopSms = "112,116,124,132";

Status choose_variants(const BenchOptions& options, const BenchVariant& base,
                       std::vector<BenchVariant>* out) {
    out->push_back(base);
    if (options.ablation.empty()) return {};
    const std::vector<std::string>& names = ablation_names();
    const bool all = options.ablation == "all";
    if (!all && std::find(names.begin(), names.end(), options.ablation) == names.end()) {
        return option_error("--ablation", options.ablation,
                            fmt::format("must be one of {}, all", joined(names)));
    }
    for (const std::string& name : names) {
        if (all || name == options.ablation) add_ablation(name, base, out);
    }
    return {};
}

Status check_range(const char* option, int value, int least, int most) {
    if (value >= least && value <= most) return {};
    return option_error(option, std::to_string(value),
                        fmt::format("must be in {}..{}", least, most));
}

// A model with the experts of one rank; a reduced one keeps enough for a token's choice.
Status choose_model(const BenchOptions& options, const std::string& name,
                    checkpoint::ModelEntry* out) {
    if (Status status = checkpoint::find_model(name, out); !status.ok()) {
        return option_error("--model", options.models, status.message());
    }
    if (options.reduced > 1) {
        *out = checkpoint::reduced(*out, options.reduced);
        out->name = fmt::format("{}/{}", name, options.reduced);
    }
    out->num_experts = std::max(out->num_experts / kRanksOfTheModel, out->topk);
    return {};
}

Status choose_models(const BenchOptions& options, BenchPlan* out) {
    std::set<std::string> seen;
    for (const std::string& name : split_at(options.models, ',')) {
        if (!seen.insert(name).second) {
            return option_error("--model", options.models, "names " + name + " twice");
        }
        checkpoint::ModelEntry entry;
        GCMOE_RETURN_IF_ERROR(choose_model(options, name, &entry));
        for (const BenchVariant& variant : out->variants) {
            if (variant.shared == SharedForm::kNone || entry.shared_inter > 0) continue;
            const bool by_ablation = options.shared == "none";
            return option_error(by_ablation ? "--ablation" : "--shared",
                                by_ablation ? options.ablation : options.shared,
                                entry.name + " has no shared expert");
        }
        out->models.push_back(std::move(entry));
    }
    return {};
}

// A list of numbers in least..most, each once.
Status choose_numbers(const char* option, const std::string& text, const std::pair<int, int>& range,
                      std::vector<int>* out) {
    GCMOE_RETURN_IF_ERROR(parse_counts(option, text, out));
    std::set<int> seen;
    for (const int number : *out) {
        if (number < range.first || number > range.second) {
            return option_error(
                option, text,
                fmt::format("{} must be in {}..{}", number, range.first, range.second));
        }
        if (!seen.insert(number).second) {
            return option_error(option, text, fmt::format("names {} twice", number));
        }
    }
    return {};
}

Status choose_base(const BenchOptions& options, BenchVariant* base) {
    base->plan = options.plan;
    GCMOE_RETURN_IF_ERROR(parse_launch_mode(options.gpu, &base->launch_mode));
    GCMOE_RETURN_IF_ERROR(parse_shared_experts(options.gpu, &base->plan.shared_experts));
    GCMOE_RETURN_IF_ERROR(parse_combine(options.gpu, &base->plan.combine));
    GCMOE_RETURN_IF_ERROR(parse_placement(options.gpu, &base->plan.placement));
    // A tuned table knows the default's plan and not its variants': they would differ in more than
    // one thing.
    if (!options.ablation.empty() && base->plan.tuned.empty()) base->plan.tuned = plan::kNoTable;
    if (!options.trace_path.empty()) base->trace_events = kTraceEvents;
    for (const SharedForm form : {SharedForm::kNone, SharedForm::kFused, SharedForm::kApart}) {
        base->shared = form;
        if (options.shared == shared_form_name(form)) return {};
    }
    return option_error("--shared", options.shared, "must be one of none, fused, apart");
}

Status choose_protocol(const BenchOptions& options, BenchPlan* out) {
    if (options.protocol != "decode" && options.protocol != "paper" && options.protocol != "both") {
        return option_error("--protocol", options.protocol, "must be one of decode, paper, both");
    }
    out->decode = options.protocol != "paper";
    out->paper = options.protocol != "decode";
    return {};
}

Status check_floors_alone(const BenchOptions& options) {
    if (!options.floors_only) return {};
    for (const auto& [option, is_given] :
         {std::pair("--verify", options.verify), std::pair("--sustained", options.sustained),
          std::pair("--trace", !options.trace_path.empty())}) {
        if (!is_given) continue;
        return option_error("--floors-only", "",
                            fmt::format("contradicts {}: nothing runs", option));
    }
    return {};
}

// The loop has none of the operator's parts: an option about one of them would be ignored.
Status check_loop_alone(const BenchOptions& options) {
    for (const auto& [option, text] :
         {std::pair("--loop-rows", options.loop_rows), std::pair("--loop-sms", options.loop_sms)}) {
        if (!options.loop && !text.empty()) return option_error(option, text, "needs --loop");
    }
    if (!options.loop) return {};
    for (const auto& [option, is_given] :
         {std::pair("--floors-only", options.floors_only), std::pair("--verify", options.verify),
          std::pair("--sustained", options.sustained), std::pair("--roles", options.roles),
          std::pair("--trace", !options.trace_path.empty()),
          std::pair("--ablation", !options.ablation.empty()),
          std::pair("--protocol", options.protocol != "decode"),
          std::pair("--shared", options.shared != "none")}) {
        if (!is_given) continue;
        return option_error("--loop", "",
                            fmt::format("contradicts {}: only main loops run", option));
    }
    return {};
}

// A file holds the launches of one point.
Status check_trace(const BenchOptions& options, const BenchPlan& plan) {
    if (options.trace_path.empty()) return {};
    const std::size_t points = plan.models.size() * plan.tokens.size() * plan.variants.size();
    if (points == 1) return {};
    return option_error("--trace", options.trace_path,
                        fmt::format("{} points, and a trace is of one: name one --model and one "
                                    "number of --tokens, and leave out --ablation",
                                    points));
}

Status choose_loops(const BenchOptions& options, BenchPlan* out) {
    out->loop = options.loop;
    const auto text_or = [](const std::string& text, const char* otherwise) {
        return text.empty() ? std::string(otherwise) : text;
    };
    GCMOE_RETURN_IF_ERROR(choose_numbers("--loop-rows", text_or(options.loop_rows, kAllLoopRows),
                                         {1, 64}, &out->loop_rows));
    GCMOE_RETURN_IF_ERROR(choose_numbers("--loop-sms", text_or(options.loop_sms, kAllLoopSms),
                                         {1, kMostSms}, &out->loop_sms));
    std::sort(out->loop_sms.begin(), out->loop_sms.end());
    for (const int rows : out->loop_rows) {
        if (std::count(std::begin(kLoopRows), std::end(kLoopRows), rows) != 0) continue;
        return option_error("--loop-rows", options.loop_rows,
                            fmt::format("{} is none of {}", rows, kAllLoopRows));
    }
    for (const checkpoint::ModelEntry& model : out->models) {
        if (!out->loop || (model.hidden % 256 == 0 && model.inter % 128 == 0)) continue;
        return option_error(
            "--loop", "",
            fmt::format("{} has hidden {} and inter {}, and tasks are 256 rows of chunks of 128",
                        model.name, model.hidden, model.inter));
    }
    return {};
}

Status check_numbers(const BenchOptions& options) {
    GCMOE_RETURN_IF_ERROR(check_range("--reduced", options.reduced, 1, 64));
    GCMOE_RETURN_IF_ERROR(check_range("--seeds", options.seeds, 1, kMostSeeds));
    GCMOE_RETURN_IF_ERROR(check_range("--warm", options.warm, 0, kMostLaunches));
    GCMOE_RETURN_IF_ERROR(check_range("--timed", options.timed, 1, kMostLaunches));
    return check_range("--flush-mib", options.flush_mib, 0, kMostFlushMib);
}

void add_measuring_options(CLI::App& command, BenchOptions* options) {
    const auto add = [&](const char* name, auto* target, const char* type,
                         const std::string& description) {
        command.add_option(name, *target, description)->type_name(type)->group("Measuring");
    };
    const auto add_flag = [&](const char* name, bool* target, const char* description) {
        command.add_flag(name, *target, description)->group("Measuring");
    };
    add("--seeds", &options->seeds, "INT", "Routings of a point; the median of their medians (3)");
    add("--protocol", &options->protocol, "NAME",
        "decode: --warm and --timed launches, each by itself; paper: 10 warm-ups, 30 windows of "
        "100 launches; both (decode)");
    add("--warm", &options->warm, "INT", "Launches before the timed ones (10)");
    add("--timed", &options->timed, "INT", "Timed launches, whose median counts (30)");
    add("--flush-mib", &options->flush_mib, "INT", "MiB written before every launch (512)");
    add_flag("--sustained", &options->sustained, "Also with pauses of 5 ms, and 2 s back to back");
    add_flag("--verify", &options->verify,
             "Compare one launch of everything with the serial mode first, bit for bit");
    add("--ablation", &options->ablation, "NAME",
        "Also other ways to run, in turns with the default, by the rules' plan unless --tuned says "
        "otherwise: " +
            joined(ablation_names()) + ", all");
    add_flag("--floors-only", &options->floors_only,
             "Count touched experts and floors, measure nothing: needs no GPU");
    add_flag("--loop", &options->loop,
             "Instead of launches: role 2's main loops alone over 32 experts of each model, and "
             "what they ask of the operator");
    add("--loop-rows", &options->loop_rows, "LIST", "Rows an expert (8,16,24,32,48,64)");
    add("--loop-sms", &options->loop_sms, "LIST",
        "SMs; numbers the GPU has not are left out (112,116,124,132)");
}

}  // namespace

const char* shared_form_name(SharedForm form) {
    switch (form) {
        case SharedForm::kNone:
            return "none";
        case SharedForm::kFused:
            return "fused";
        case SharedForm::kApart:
            return "apart";
    }
    return "?";
}

const char* closing_name(Closing closing) {
    switch (closing) {
        case Closing::kNone:
            return "none";
        case Closing::kGraph:
            return "graph";
        case Closing::kNode:
            return "node";
        case Closing::kBarrier:
            return "barrier";
        case Closing::kCleaning:
            return "cleaning";
        case Closing::kBoth:
            return "both";
    }
    return "?";
}

const char* decode_name(DecodeForm decode) {
    switch (decode) {
        case DecodeForm::kRowFactors:
            return "row-factors";
        case DecodeForm::kChunkFactors:
            return "chunk-factors";
        case DecodeForm::kK32:
            return "k32";
    }
    return "?";
}

void add_bench_options(CLI::App& command, BenchOptions* options) {
    const auto add = [&](const char* name, auto* target, const char* type,
                         const char* description) {
        command.add_option(name, *target, description)->type_name(type)->group("Points");
    };
    add("--model,--models", &options->models, "LIST",
        "Models, an eighth of their experts each (v4.1-flash,v4-flash,glm-5.2)");
    add("--reduced", &options->reduced, "INT", "Divide widths and experts by this");
    add("--tokens", &options->tokens, "LIST", "Tokens of a launch (1,2,4 .. 256)");
    add("--shared", &options->shared, "FORM",
        "The shared expert: none, fused, or apart: a launch of its own (none)");
    add_plan_options(command, &options->plan);
    add_gpu_options(command, &options->gpu);
    add_measuring_options(command, options);
    const char* group = "Results";
    command.add_option("--out", options->out_path, "Write a JSON line a point")
        ->type_name("FILE.jsonl")
        ->group(group);
    command.add_flag("--force", options->force, "Replace the file of --out")->group(group);
    command
        .add_flag("--roles", options->roles,
                  "Print when the roles of the last launch began and ended, too")
        ->group(group);
    command
        .add_option("--trace", options->trace_path,
                    "Write what every unit did in the launches of the median seed: one model, one "
                    "number of tokens (docs/trace.md)")
        ->type_name("FILE.json")
        ->group(group);
    add_console_options(command, &options->console);
}

Status make_bench_plan(const BenchOptions& options, BenchPlan* out) {
    GCMOE_RETURN_IF_ERROR(check_loop_alone(options));
    GCMOE_RETURN_IF_ERROR(check_floors_alone(options));
    GCMOE_RETURN_IF_ERROR(check_numbers(options));
    BenchVariant base;
    GCMOE_RETURN_IF_ERROR(choose_base(options, &base));
    GCMOE_RETURN_IF_ERROR(choose_variants(options, base, &out->variants));
    GCMOE_RETURN_IF_ERROR(choose_models(options, out));
    GCMOE_RETURN_IF_ERROR(
        choose_numbers("--tokens", options.tokens, {1, kMostTokens}, &out->tokens));
    GCMOE_RETURN_IF_ERROR(check_trace(options, *out));
    GCMOE_RETURN_IF_ERROR(choose_loops(options, out));
    GCMOE_RETURN_IF_ERROR(choose_protocol(options, out));
    out->seeds = options.seeds;
    out->sustained = options.sustained;
    out->warm = options.warm;
    out->timed = options.timed;
    out->flush_bytes = static_cast<std::size_t>(options.flush_mib) << 20;
    out->verify = options.verify;
    out->reference.name = "serial launch";
    out->reference.launch_mode = LaunchMode::kSerial;
    out->device = options.gpu.device;
    return {};
}

}  // namespace gcmoe::cli
