// gcmoe info: what this build and this machine can do, and what a layer would need.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "gcmoe/capability.hpp"
#include "gcmoe/operator.hpp"
#include "gcmoe/partition.hpp"
#include "gcmoe_version.hpp"
#include "gpu_options.hpp"
#include "layer_options.hpp"
#include "layout/peer_table.hpp"
#include "machine.hpp"
#include "plan_options.hpp"
#include "plan_text.hpp"
#include "protocol/words.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples = R"(Examples:
  gcmoe info
  gcmoe info --model v4.1-flash --ranks 8 --max-tokens 256
  gcmoe info --model gpt-oss-120b --ranks 8 --max-tokens 64 --json)";

struct InfoCommand {
    ConsoleOptions console;
    LayerOptions layer;
    std::optional<int> ranks;
    std::optional<int> max_tokens;
    std::string tuned;
};

// Cubins that no machine of this project has run.
std::vector<std::string> cubins_never_run() {
    std::vector<std::string> names = cubins();
    std::erase(names, "sm_90a");
    return names;
}

std::string cubins_text() {
    std::vector<std::string> names = cubins();
    if (names.empty()) return "none in this build";
    const std::vector<std::string> never_run = cubins_never_run();
    for (std::string& name : names) {
        if (std::find(never_run.begin(), never_run.end(), name) != never_run.end()) {
            name += " (not run on hardware)";
        }
    }
    return joined(names);
}

// What a layer needs on one backend.
struct Capability {
    BackendInfo backend;
    Status status;
    PlanReport plan;  // empty where the plan is refused
};

// The layer that was asked about, if any.
struct Question {
    std::string title;
    Shape shape;
    int max_tokens = 0;
    std::vector<Capability> answers;
    std::vector<SizeEntry> sizes;  // of one rank; empty if no backend can
};

Status check_range(const char* option, int value, int least, int most) {
    if (value >= least && value <= most) return {};
    return option_error(option, std::to_string(value),
                        fmt::format("must be in {}..{}", least, most));
}

Status ask(const InfoCommand& command, std::unique_ptr<Question>* out) {
    if (command.layer.model.empty()) {
        for (const auto& [option, is_given] :
             {std::pair("--ranks", command.ranks.has_value()),
              std::pair("--max-tokens", command.max_tokens.has_value()),
              std::pair("--tuned", !command.tuned.empty())}) {
            if (is_given) return option_error(option, "", "asks about a layer; give --model too");
        }
        return {};
    }
    GCMOE_RETURN_IF_ERROR(check_range("--ranks", command.ranks.value_or(1), 1, layout::kMaxRanks));
    GCMOE_RETURN_IF_ERROR(
        check_range("--max-tokens", command.max_tokens.value_or(1), 1, int{protocol::kMaxCount}));
    auto question = std::make_unique<Question>();
    GeneratedModel model;
    GCMOE_RETURN_IF_ERROR(resolve_model(command.layer, true, &model));
    question->title = model.title;
    question->shape = padded_shape(model.entry, command.ranks.value_or(8));
    GCMOE_RETURN_IF_ERROR(apply_activation(command.layer, &question->shape));
    question->max_tokens = command.max_tokens.value_or(256);
    for (const BackendInfo& backend : backends()) {
        OperatorOptions options;
        options.backend = backend.name;
        options.max_tokens = question->max_tokens;
        options.plans.resize(1);
        options.plans.front().tuned = command.tuned;
        const Status status = capability(question->shape, options);
        if (status.ok() && question->sizes.empty()) {
            GCMOE_RETURN_IF_ERROR(
                Operator::size_report(question->shape, options, &question->sizes));
        }
        question->answers.push_back({backend, status, {}});
        std::vector<PlanReport> plans;
        const Status planned = report_plans(question->shape, options, &plans);
        if (planned.ok()) question->answers.back().plan = std::move(plans.front());
        if (!command.tuned.empty()) GCMOE_RETURN_IF_ERROR(name_option(planned));
    }
    *out = std::move(question);
    return {};
}

// MXFP4 bytes of one routed expert in a checkpoint: nibbles and scales.
std::uint64_t expert_bytes(const Shape& shape) {
    const auto weights =
        3 * static_cast<std::uint64_t>(shape.hidden) * static_cast<std::uint64_t>(shape.inter);
    return weights / 2 + weights / 32;
}

Json limits_json(const Partition::Limits& limits) {
    return {{"min_dispatch_units", limits.min_dispatch},
            {"min_compute_units", limits.min_compute},
            {"even_compute", limits.even_compute}};
}

Json capability_json(const Question& question) {
    const Shape& shape = question.shape;
    Json backends_json = Json::object();
    for (const Capability& answer : question.answers) {
        backends_json[answer.backend.name] = {
            {"can", answer.status.ok()},
            {"reason", answer.status.ok() ? Json() : Json(answer.status.message())},
            {"plan", answer.plan.values.empty() ? Json() : plan_json(answer.plan)}};
    }
    Json sizes = Json::array();
    std::uint64_t total = 0;
    for (const SizeEntry& entry : question.sizes) {
        total += entry.bytes;
        sizes.push_back({{"room", entry.room},
                         {"name", entry.name},
                         {"shape", entry.shape},
                         {"bytes", entry.bytes}});
    }
    return {{"model", question.title},
            {"hidden", shape.hidden},
            {"inter", shape.inter},
            {"experts", shape.num_experts},
            {"topk", shape.topk},
            {"shared_inter", shape.shared_inter},
            {"ranks", shape.num_ranks},
            {"max_tokens", question.max_tokens},
            {"backends", backends_json},
            {"memory_bytes", question.sizes.empty() ? Json() : Json(total)},
            {"expert_weight_bytes", expert_bytes(shape)},
            {"regions", sizes}};
}

// [first SM, second SM, GPC] of every pair of the first device; null where kernels cannot run.
Json sm_pairs_json() {
    std::vector<SmPairInfo> pairs;
    if (!sm_pairs(0, &pairs).ok()) return {};
    Json list = Json::array();
    for (const SmPairInfo& pair : pairs) {
        list.push_back({pair.first_sm, pair.second_sm, pair.gpc});
    }
    return list;
}

// "66 pairs over 8 GPCs (9 8 8 ...)", or why not.
std::string sm_pairs_text() {
    std::vector<SmPairInfo> pairs;
    if (const Status status = sm_pairs(0, &pairs); !status.ok()) return status.message();
    std::map<int, int> pairs_of_gpc;
    for (const SmPairInfo& pair : pairs) ++pairs_of_gpc[pair.gpc];
    std::string sizes;
    for (const auto& [gpc, count] : pairs_of_gpc) sizes += fmt::format(" {}", count);
    return fmt::format("{} pairs over {} GPCs:{}", pairs.size(), pairs_of_gpc.size(), sizes);
}

std::vector<std::string> placement_names() {
    std::vector<std::string> names;
    for (const SmPlacement placement : kPlacements) names.emplace_back(placement_name(placement));
    return names;
}

Json info_json(const Question* question) {
    Json backends_json = Json::array();
    for (const BackendInfo& backend : backends()) {
        backends_json.push_back(
            {{"name", backend.name}, {"available", backend.available}, {"reason", backend.reason}});
    }
    const Devices devices = find_devices();
    Json devices_json = Json::array();
    for (const Device& device : devices.found) {
        devices_json.push_back(
            {{"name", device.name},
             {"sms", device.sms},
             {"compute", fmt::format("{}.{}", device.compute_major, device.compute_minor)}});
    }
    const Processor processor = find_processor();
    return {
        {"version", kVersion},
        {"commit", kCommit},
        {"backends", backends_json},
        {"cubins", cubins()},
        {"cubins_not_run_on_hardware", cubins_never_run()},
        {"devices", devices_json},
        {"devices_looked_for", devices.how},
        {"sm_pairs", sm_pairs_json()},
        {"processor",
         {{"model", processor.model}, {"cores", processor.cores}, {"threads", processor.threads}}},
        {"partition_limits",
         {{"gpu", limits_json(Partition::Limits())},
          {"cpu", limits_json(Partition::cpu_limits())}}},
        {"placements", {{"gpu", placement_names()}, {"cpu", Json::array()}}},
        {"capability", question == nullptr ? Json() : capability_json(*question)}};
}

std::string limits_text(const Partition::Limits& limits) {
    return fmt::format("role 1 at least {}, roles 2 and 3 at least {}{}", limits.min_dispatch,
                       limits.min_compute, limits.even_compute ? ", even" : "");
}

void print_build() {
    fmt::print("gcmoe {} ({})\n\n", kVersion, kCommit);
    Table table({"backend", "here", "why"});
    for (const BackendInfo& backend : backends()) {
        table.add({backend.name, backend.available ? "yes" : "no", backend.reason});
    }
    fmt::print("{}\n", table.text(3));
    fmt::print("cubins     {}\n", cubins_text());
}

void print_machine() {
    const Devices devices = find_devices();
    if (devices.found.empty()) fmt::print("devices    none ({})\n", devices.how);
    for (const Device& device : devices.found) {
        fmt::print("device     {}, {} SMs, compute {}.{}\n", device.name, device.sms,
                   device.compute_major, device.compute_minor);
    }
    if (!devices.found.empty()) fmt::print("SM pairs   {}\n", sm_pairs_text());
    const Processor processor = find_processor();
    fmt::print("processor  {}, {} cores, {} threads for this process\n", processor.model,
               processor.cores, processor.threads);
    fmt::print("partition  GPU: SMs of {}\n", limits_text(Partition::Limits()));
    fmt::print("           CPU and virtual ranks: units of {}\n",
               limits_text(Partition::cpu_limits()));
    fmt::print("placement  GPU: {}; CPU: threads are not tied to cores\n",
               joined(placement_names()));
}

void print_question(const Question& question) {
    const Shape& shape = question.shape;
    fmt::print("\n{}: hidden {}, inter {}, {} experts, top {}, shared {}, {}, {}\n", question.title,
               shape.hidden, shape.inter, shape.num_experts, shape.topk, shape.shared_inter,
               counted(static_cast<std::uint64_t>(shape.num_ranks), "rank"),
               counted(static_cast<std::uint64_t>(question.max_tokens), "token") + " per rank");
    for (const Capability& answer : question.answers) {
        fmt::print("  {}: {}\n", answer.backend.name,
                   answer.status.ok() ? "yes" : "no: " + answer.status.message());
        if (answer.plan.values.empty()) continue;
        fmt::print("    plan: {}\n    tuned: {}\n", plan_text(answer.plan), answer.plan.tuned);
        if (!answer.plan.launch.empty()) fmt::print("    launch: {}\n", answer.plan.launch);
    }
    if (question.sizes.empty()) return;
    Table table({"room", "region", "shape", "bytes"});
    std::uint64_t total = 0;
    for (const SizeEntry& entry : question.sizes) {
        total += entry.bytes;
        table.add({entry.room, entry.name, entry.shape, fmt::format("{}", entry.bytes)});
    }
    fmt::print("\nMemory of one rank without weights: {}\n{}", bytes_text(total), table.text(3));
    const auto experts = static_cast<std::uint64_t>(shape.experts_per_rank());
    fmt::print("Weights of one rank's {}: {} as MXFP4 with scales\n",
               counted(experts, "routed expert"), bytes_text(experts * expert_bytes(shape)));
}

Status inform(const InfoCommand& command) {
    std::unique_ptr<Question> question;
    GCMOE_RETURN_IF_ERROR(ask(command, &question));
    if (command.console.json) {
        print_json(info_json(question.get()));
        return {};
    }
    print_build();
    print_machine();
    if (question != nullptr) print_question(*question);
    return {};
}

}  // namespace

void add_info_command(CLI::App& app, int* exit_code) {
    auto command = std::make_shared<InfoCommand>();
    CLI::App* info =
        app.add_subcommand("info", "Show version, backends, devices, and what a layer would need");
    info->footer(kExamples);
    add_model_options(*info, &command->layer, "--experts");
    add_activation_options(*info, &command->layer);
    info->add_option("--ranks", command->ranks, "Expert-parallel ranks of the layer (8)");
    info->add_option("--max-tokens", command->max_tokens, "Token capacity per rank (256)");
    add_tuned_option(*info, &command->tuned);
    add_console_options(*info, &command->console);
    info->callback([command, exit_code] {
        const Status status = inform(*command);
        *exit_code = status.ok() ? kExitDone : report_error("info", status, command->console.json);
    });
}

}  // namespace gcmoe::cli
