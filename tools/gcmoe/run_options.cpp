#include "run_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "gcmoe/capability.hpp"
#include "number_lists.hpp"
#include "plan_options.hpp"
#include "run_inputs.hpp"

namespace gcmoe::cli {
namespace {

constexpr int kDefaultRanks = 8;
constexpr const char* kDefaultTokens = "16";

void add_input_options(CLI::App& command, RunOptions* options) {
    const auto add = [&](const char* name, auto* target, const char* type,
                         const char* description) {
        command.add_option(name, *target, description)
            ->type_name(type)
            ->group("Tokens and routing");
    };
    add("--ranks,--virtual-ranks", &options->ranks, "INT",
        "Expert-parallel ranks (8, or those of --inputs)");
    add("--tokens", &options->tokens, "LIST", "Tokens: 16 for every rank, or 0,1,2,... (16)");
    add("--routing", &options->routing, "RULE",
        "uniform, only_expert:E, only_rank:R, hot_rank:R:F (F times the mean), zipf:A, "
        "first_twice (uniform)");
    add("--mask", &options->mask, "FLOAT", "Share of slots left unused, 0..1 (0)");
    add("--factor", &options->factor, "FLOAT", "Sum of a token's routing weights (the model's)");
    add("--seed", &options->seed, "UINT", "Of tokens, routing and mask (0)");
    add("--inputs", &options->inputs_path, "FILE",
        "Safetensors with rank{r}.x, .x_scale, .topk_idx, .topk_weights, or without the prefix "
        "and split over the ranks");
    add("--save-inputs", &options->save_inputs_path, "FILE",
        "Write the inputs in the form that --inputs reads");
    add("--out", &options->out_path, "FILE", "Write rank{r}.y, BF16 (tokens, hidden)");
}

void add_execution_options(CLI::App& command, RunOptions* options) {
    const char* group = "Execution";
    const auto add = [&](const char* name, auto* target, const char* description) {
        return command.add_option(name, *target, description)->group(group);
    };
    add("--backend", &options->backend, "Never chosen silently (cpu)")->type_name("NAME");
    add("--executor", &options->executor, "threads, or stepper: one thread, order from a seed")
        ->type_name("KIND");
    add("--executor-seed", &options->executor_seed, "Order of the stepper (0)");
    add("--resident-units", &options->resident_units,
        "Stepper: compute units of a rank at once (0 = all)");
    add_plan_options(command, &options->plan);
    add("--capacity", &options->capacity, "Tokens a rank's buffers hold (most tokens of a rank)");
    add("--index-type", &options->index_type, "Expert ids as int32 or int64 (int64)")
        ->type_name("TYPE");
    add("--launches", &options->launches, "Repeat, and compare the bits of every result (1)");
    add("--deadline", &options->deadline_s, "Seconds that any wait may take, 0 = for ever (300)");
    command
        .add_flag("--allow-inexact", options->allow_inexact,
                  "Round weights that no exact form holds, and say how many")
        ->group(group);
    command.add_flag("--no-verify", options->no_verify, "Do not compare with the reference")
        ->group(group);
    add("--trace", &options->trace_path,
        "Write what every unit did when, as JSON for ui.perfetto.dev and chrome://tracing")
        ->type_name("FILE");
    add("--trace-events", &options->trace_events,
        "Events that a unit keeps, 32 bytes each; more are counted only (16384)");
    add_gpu_options(command, &options->gpu);
}

Status check_inputs_alone(const RunOptions& options) {
    if (options.inputs_path.empty()) return {};
    const std::pair<const char*, bool> generator[] = {
        {"--tokens", options.tokens.has_value()}, {"--routing", options.routing.has_value()},
        {"--mask", options.mask.has_value()},     {"--factor", options.factor.has_value()},
        {"--seed", options.seed.has_value()},
    };
    for (const auto& [option, is_given] : generator) {
        if (!is_given) continue;
        return option_error(
            "--inputs", options.inputs_path,
            fmt::format("contradicts {}, which makes tokens without a file", option));
    }
    return {};
}

Status check_packed_alone(const RunOptions& options) {
    if (options.packed.empty()) return {};
    if (const std::string option = given_layer_option(options.layer); !option.empty()) {
        return option_error("--packed", options.packed.front(),
                            fmt::format("contradicts {}: the files say which layer", option));
    }
    if (!options.allow_inexact) return {};
    return option_error("--allow-inexact", "", "belongs to gcmoe pack: --packed files are packed");
}

// Files that a run writes must not be files that it reads, or each other.
Status check_paths(const RunOptions& options) {
    namespace fs = std::filesystem;
    const auto whole = [](const std::string& path) {
        std::error_code error;
        const fs::path full = fs::weakly_canonical(path, error);
        return error ? fs::path(path) : full;
    };
    const auto check = [&](const char* option, const std::string& path, const char* other,
                           const std::string& other_path) -> Status {
        if (path.empty() || other_path.empty()) return {};
        const fs::path mine = whole(path);
        const fs::path theirs = whole(other_path);
        if (mine != theirs && mine.parent_path() != theirs) return {};
        return option_error(option, path, fmt::format("would overwrite {} {}", other, other_path));
    };
    for (const auto& [option, path] : {std::pair{"--out", options.out_path},
                                       std::pair{"--save-inputs", options.save_inputs_path},
                                       std::pair{"--trace", options.trace_path}}) {
        GCMOE_RETURN_IF_ERROR(check(option, path, "--inputs", options.inputs_path));
        GCMOE_RETURN_IF_ERROR(
            check(option, path, "files of --checkpoint", options.layer.checkpoint));
        for (const std::string& packed : options.packed) {
            GCMOE_RETURN_IF_ERROR(check(option, path, "--packed", packed));
        }
    }
    GCMOE_RETURN_IF_ERROR(
        check("--trace", options.trace_path, "--save-inputs", options.save_inputs_path));
    GCMOE_RETURN_IF_ERROR(check("--trace", options.trace_path, "--out", options.out_path));
    return check("--out", options.out_path, "--save-inputs", options.save_inputs_path);
}

Status check_word(const char* option, const std::string& value,
                  const std::vector<std::string>& words) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return {};
    return option_error(option, value, "must be one of " + joined(words));
}

template <class T>
Status check_at_least(const char* option, T value, T least) {
    if (value >= least) return {};  // false for NaN
    return option_error(option, fmt::format("{}", value),
                        fmt::format("must be at least {}", least));
}

Status parse_tokens(const RunOptions& options, int num_ranks, std::vector<int>* out) {
    const std::string text = options.tokens.value_or(kDefaultTokens);
    GCMOE_RETURN_IF_ERROR(parse_counts("--tokens", text, out));
    const auto ranks = static_cast<std::size_t>(num_ranks);
    if (out->size() == 1) out->resize(ranks, out->front());
    if (out->size() != ranks) {
        return option_error("--tokens", text,
                            fmt::format("has {} counts for {} ranks; give one, or one per rank",
                                        out->size(), num_ranks));
    }
    const int most = *std::max_element(out->begin(), out->end());
    if (options.capacity > 0 && most > options.capacity) {
        return option_error("--tokens", text,
                            fmt::format("over the capacity of {} (--capacity)", options.capacity));
    }
    return {};
}

Status parse_routing(const std::string& text, const Shape& shape, reference::Routing* out) {
    using Kind = reference::Routing::Kind;
    const std::vector<std::string> parts = split_at(text, ':');
    const auto is = [&](const char* name, std::size_t arguments) {
        return parts[0] == name && parts.size() == arguments + 1;
    };
    const auto fail = [&](const std::string& problem) {
        return option_error("--routing", text, problem);
    };
    const auto target_below = [&](int limit) {
        return parse_int(parts[1], &out->target) && out->target >= 0 && out->target < limit;
    };
    if (is("uniform", 0)) {
        out->kind = Kind::kUniform;
    } else if (is("first_twice", 0)) {
        out->kind = Kind::kFirstTwice;
        if (shape.topk < 2) return fail("needs at least 2 experts per token (--topk)");
    } else if (is("only_expert", 1)) {
        out->kind = Kind::kOnlyExpert;
        if (!target_below(shape.num_experts)) {
            return fail(fmt::format("the expert must be in 0..{}", shape.num_experts - 1));
        }
    } else if (is("only_rank", 1) || is("hot_rank", 2)) {
        out->kind = parts.size() == 2 ? Kind::kOnlyRank : Kind::kHotRank;
        if (!target_below(shape.num_ranks)) {
            return fail(fmt::format("the rank must be in 0..{}", shape.num_ranks - 1));
        }
        if (parts.size() == 3 && (!parse_double(parts[2], &out->amount) || out->amount < 0.0 ||
                                  out->amount > shape.num_ranks)) {
            return fail(fmt::format("the factor must be in 0..{}, the ranks", shape.num_ranks));
        }
    } else if (is("zipf", 1)) {
        out->kind = Kind::kZipf;
        if (!parse_double(parts[1], &out->amount) || out->amount < 0.0) {
            return fail("the exponent must be a number of 0 or more");
        }
    } else {
        return fail(
            "must be uniform, only_expert:E, only_rank:R, hot_rank:R:F, zipf:A or "
            "first_twice");
    }
    return {};
}

}  // namespace

void add_run_options(CLI::App& command, RunOptions* options) {
    command
        .add_option("--packed", options->packed,
                    "Files that gcmoe pack wrote, one per rank, instead of a layer; verified "
                    "against what they hold")
        ->type_name("FILE ...")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group("Layer from packed files");
    add_checkpoint_options(command, &options->layer);
    add_model_options(command, &options->layer, "--experts");
    add_activation_options(command, &options->layer);
    add_input_options(command, options);
    add_execution_options(command, options);
    add_process_options(command, &options->processes);
    add_console_options(command, &options->console);
}

Status check_run_options(const RunOptions& options) {
    GCMOE_RETURN_IF_ERROR(check_inputs_alone(options));
    GCMOE_RETURN_IF_ERROR(check_packed_alone(options));
    GCMOE_RETURN_IF_ERROR(check_paths(options));
    GCMOE_RETURN_IF_ERROR(check_word("--executor", options.executor, {"threads", "stepper"}));
    GCMOE_RETURN_IF_ERROR(check_word("--index-type", options.index_type, {"int32", "int64"}));
    LaunchMode mode = LaunchMode::kGraph;
    SharedExperts shared_experts = SharedExperts::kAuto;
    GCMOE_RETURN_IF_ERROR(parse_launch_mode(options.gpu, &mode));
    GCMOE_RETURN_IF_ERROR(parse_shared_experts(options.gpu, &shared_experts));
    CombineUnits combine = CombineUnits::kAuto;
    GCMOE_RETURN_IF_ERROR(parse_combine(options.gpu, &combine));
    SmPlacement placement = SmPlacement::kBalanced;
    GCMOE_RETURN_IF_ERROR(parse_placement(options.gpu, &placement));
    GCMOE_RETURN_IF_ERROR(check_at_least("--capacity", options.capacity, 0));
    GCMOE_RETURN_IF_ERROR(check_at_least("--launches", options.launches, 1));
    GCMOE_RETURN_IF_ERROR(check_at_least("--trace-events", options.trace_events, 1));
    GCMOE_RETURN_IF_ERROR(check_deadline(options.deadline_s));
    GCMOE_RETURN_IF_ERROR(
        check_at_least("--resident-units", options.resident_units.value_or(0), 0));
    const bool orders = options.executor_seed.has_value() || options.resident_units.has_value();
    if (orders && options.executor == "threads") {
        const char* option =
            options.executor_seed.has_value() ? "--executor-seed" : "--resident-units";
        return option_error(option, "", "orders the steps of --executor stepper, not of threads");
    }
    const double mask = options.mask.value_or(0.0);
    if (mask < 0.0 || mask > 1.0) {
        return option_error("--mask", fmt::format("{}", mask), "must be in 0..1");
    }
    const double factor = options.factor.value_or(1.0);
    if (!std::isfinite(static_cast<float>(factor))) {
        return option_error("--factor", fmt::format("{}", factor), "is beyond FP32's range");
    }
    std::vector<std::string> names;
    for (const BackendInfo& backend : backends()) {
        names.push_back(backend.name);
        if (backend.name == options.backend && !backend.available) {
            const Status status = option_error("--backend", backend.name, backend.reason);
            return {Code::kUnsupported, status.message()};
        }
    }
    GCMOE_RETURN_IF_ERROR(check_word("--backend", options.backend, names));
    const bool has_processes = options.processes.spawn || options.processes.is_rank();
    if (has_processes && !options.trace_path.empty()) {
        return option_error("--trace", options.trace_path,
                            "records the ranks of one process; leave out --spawn and --rank");
    }
    return check_process_options(options.processes, options.backend, options.executor);
}

Status count_ranks(const RunOptions& options, int* num_ranks) {
    *num_ranks = options.ranks.value_or(kDefaultRanks);
    if (options.inputs_path.empty() || options.ranks.has_value()) return {};
    int named = 0;
    GCMOE_RETURN_IF_ERROR(count_input_ranks(options.inputs_path, &named));
    if (named != 0) *num_ranks = named;
    return {};
}

Status make_case(const RunOptions& options, const Layer& layer, reference::SuiteCase* out) {
    const Shape& shape = layer.shape;
    GCMOE_RETURN_IF_ERROR(parse_tokens(options, shape.num_ranks, &out->tokens));
    GCMOE_RETURN_IF_ERROR(parse_routing(options.routing.value_or("uniform"), shape, &out->routing));
    out->name = fmt::format("run-{}", options.seed.value_or(0));
    out->hidden = layer.hidden;
    out->inter = layer.inter;
    out->experts = shape.num_experts;
    out->topk = shape.topk;
    out->ranks = shape.num_ranks;
    out->mask = options.mask.value_or(0.0);
    out->factor = options.factor.value_or(static_cast<double>(layer.routed_scale));
    out->activation = shape.activation;
    out->biases = shape.has_bias;
    out->weight_scales = layer.weight_scales;
    out->capacity = std::max(1, *std::max_element(out->tokens.begin(), out->tokens.end()));
    out->shared_inter = shape.shared_inter;
    return {};
}

GroupOptions group_options(const RunOptions& options) {
    GroupOptions group;
    group.executor =
        options.executor == "threads" ? ExecutorKind::kThreads : ExecutorKind::kStepper;
    group.seed = options.executor_seed.value_or(0);
    group.resident_compute_units = options.resident_units.value_or(0);
    return group;
}

OperatorOptions operator_options(const RunOptions& options, int capacity) {
    OperatorOptions out;
    out.backend = options.backend;
    out.max_tokens = capacity;
    out.device = options.gpu.device;
    // check_run_options has asked whether these are right.
    (void)parse_launch_mode(options.gpu, &out.launch_mode);
    out.index_type = options.index_type == "int32" ? IndexType::kInt32 : IndexType::kInt64;
    out.plans = {options.plan};
    (void)parse_shared_experts(options.gpu, &out.plans.front().shared_experts);
    (void)parse_combine(options.gpu, &out.plans.front().combine);
    (void)parse_placement(options.gpu, &out.plans.front().placement);
    out.wait_limits = {options.deadline_s, options.deadline_s};
    out.capture = !options.no_verify;
    if (!options.trace_path.empty()) out.trace_events = options.trace_events;
    return out;
}

}  // namespace gcmoe::cli
