#include "check_command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>

#include "check_case.hpp"
#include "console.hpp"
#include "gcmoe/capability.hpp"
#include "gcmoe_suites.hpp"
#include "layout/peer_table.hpp"
#include "plan_options.hpp"
#include "protocol/words.hpp"
#include "spawn_ranks.hpp"

namespace gcmoe::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  gcmoe check --backend cpu                         both suites: 94 cases, 752 rank checks
  gcmoe check --suite routed --case hot-x4 zipf-1.2
  gcmoe check --case v4-flash-t4 --executor stepper --seed 7
  gcmoe check --suite routed --no-overlap --row-block 16
  gcmoe check --spawn                               every rank a process; y equal to that of threads
  gcmoe check --backend cuda --virtual-ranks 8 --suite routed --case v4.1-flash-t256 --tokens 8192
A rank check passes if every protocol buffer has the predicted bytes, every rounding is right by
itself, y is the sum of its own rows bit for bit, two launches agree bit for bit, and y is near the
bit-true layer.)";

struct CheckCommand {
    CheckOptions options;
    ConsoleOptions console;
};

// A case and its place.
struct ListedCase {
    std::string suite;
    int index = 0;
    reference::SuiteCase suite_case;
};

struct Totals {
    int cases = 0;
    int failed_cases = 0;
    int rank_checks = 0;
    int failed = 0;
    int tight_rings = 0;
    std::int64_t slots = 0;  // live, all cases
    std::uint64_t laps = 0;
    double worst_stage_error = 0;
    double worst_excess = 0;
    double worst_rel_l2 = 0;
    double min_cosine = 1;
    double seconds = 0;
    bool stalled = false;
};

Status list_cases(const CheckOptions& options, std::vector<ListedCase>* out) {
    if (options.suite != "routed" && options.suite != "shared" && options.suite != "all") {
        return option_error("--suite", options.suite, "must be routed, shared or all");
    }
    std::vector<std::string> names;
    for (const char* suite : {"routed", "shared"}) {
        if (options.suite != "all" && options.suite != suite) continue;
        std::vector<reference::SuiteCase> cases;
        GCMOE_RETURN_IF_ERROR(reference::parse_suite(suite_csv(suite), &cases));
        for (std::size_t i = 0; i < cases.size(); ++i) {
            names.push_back(cases[i].name);
            const auto& wanted = options.cases;
            const bool chosen = wanted.empty() || std::find(wanted.begin(), wanted.end(),
                                                            cases[i].name) != wanted.end();
            // Weights up to 6 * 2^127 stay finite only with the routing weight already on their
            // inputs.
            const bool overflows = options.weight_placement == "after" &&
                                   cases[i].weight_scales.rfind("rows_of_codes", 0) == 0;
            if (chosen && overflows) {
                fmt::print("left out: {} of suite {} (sums overflow before the weight)\n",
                           cases[i].name, suite);
            } else if (chosen) {
                out->push_back({suite, static_cast<int>(i), cases[i]});
            }
        }
    }
    for (const std::string& name : options.cases) {
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        const std::string near = nearest(name, names);
        return option_error(
            "--case", name,
            near.empty() ? "is no case of the suite" : "did you mean " + near + "?");
    }
    return {};
}

Status check_word(const char* option, const std::string& value, const char* first,
                  const char* second) {
    if (value == first || value == second) return {};
    return option_error(option, value, fmt::format("must be {} or {}", first, second));
}

// Where expected outputs are read or written: a folder that must be there, or can be made.
Status check_folders(const CheckOptions& options) {
    if (!options.expected.empty() && !options.dump_expected.empty()) {
        return option_error("--expected", options.expected, "excludes --dump-expected");
    }
    std::error_code error;
    if (!options.expected.empty() && !std::filesystem::is_directory(options.expected, error)) {
        return option_error("--expected", options.expected,
                            error ? error.message() : "is not a folder");
    }
    if (options.dump_expected.empty()) return {};
    std::filesystem::create_directories(options.dump_expected, error);
    if (!error && ::access(options.dump_expected.c_str(), W_OK | X_OK) == 0) return {};
    if (!error) error = {errno, std::generic_category()};
    return option_error("--dump-expected", options.dump_expected, error.message());
}

Status check_options(const CheckOptions& options) {
    LaunchMode mode = LaunchMode::kGraph;
    SharedExperts shared_experts = SharedExperts::kAuto;
    GCMOE_RETURN_IF_ERROR(parse_launch_mode(options.gpu, &mode));
    GCMOE_RETURN_IF_ERROR(parse_shared_experts(options.gpu, &shared_experts));
    CombineUnits combine = CombineUnits::kAuto;
    GCMOE_RETURN_IF_ERROR(parse_combine(options.gpu, &combine));
    SmPlacement placement = SmPlacement::kBalanced;
    GCMOE_RETURN_IF_ERROR(parse_placement(options.gpu, &placement));
    if (!options.size.empty()) {
        GCMOE_RETURN_IF_ERROR(check_word("--size", options.size, "full", "reduced"));
    }
    if (options.judge == "gpu" && options.backend == "cpu") {
        return {Code::kBadInput, "--judge gpu excludes --backend cpu: its tiles lie on the GPU"};
    }
    GCMOE_RETURN_IF_ERROR(check_word("--executor", options.executor, "threads", "stepper"));
    GCMOE_RETURN_IF_ERROR(
        check_word("--activation-scale", options.activation_scale, "fp32-k128", "ue8m0-k32"));
    GCMOE_RETURN_IF_ERROR(
        check_word("--weight-placement", options.weight_placement, "before", "after"));
    if (options.near_wrap && options.no_overlap) {
        return {Code::kBadInput, "--near-wrap excludes --no-overlap, where the ring never wraps"};
    }
    const std::tuple<const char*, std::optional<int>, int, int> ranges[] = {
        {"--tokens", options.tokens, 0, int{protocol::kMaxCount}},
        {"--ranks", options.ranks, 1, layout::kMaxRanks},
        {"--row-block", options.row_block, 8, 64},
        {"--ring-blocks", options.ring_blocks, 1, 1 << 20},
        {"--dispatch-units", options.dispatch_units, 0, std::numeric_limits<int>::max()},
        {"--compute-units", options.compute_units, 0, std::numeric_limits<int>::max()},
    };
    for (const auto& [option, value, least, most] : ranges) {
        if (value.value_or(least) >= least && value.value_or(least) <= most) continue;
        return option_error(option, std::to_string(*value),
                            fmt::format("must be in {}..{}", least, most));
    }
    GCMOE_RETURN_IF_ERROR(check_deadline(options.deadline_s));
    GCMOE_RETURN_IF_ERROR(check_folders(options));
    GCMOE_RETURN_IF_ERROR(
        check_process_options(options.processes, options.backend, options.executor));
    for (const BackendInfo& backend : backends()) {
        if (backend.name != options.backend) continue;
        if (backend.available) return {};
        return {Code::kUnsupported, fmt::format("--backend {}: {}", backend.name, backend.reason)};
    }
    return option_error("--backend", options.backend, "is unknown");
}

constexpr const char* kHeadFormat =
    "{:<7} {:<18} {:>6} {:>6} {:>5} {:>5} {:>3}/{:<4} {:>5} {:>7} "
    "{:>8} {:>10} {:>7} {}\n";

void print_head() {
    fmt::print(kHeadFormat, "suite", "case", "tokens", "slots", "exp", "blk", "BM", "B", "laps",
               "stage", "rel L2", "1-cosine", "s", "");
}

void print_case(const CaseReport& report) {
    fmt::print(
        "{:<7} {:<18} {:>6} {:>6} {:>5} {:>5} {:>3}/{:<4} {:>5} {:>7.4f} {:>8.1e} {:>10.1e} "
        "{:>7.2f} {}\n",
        report.suite, report.name, report.num_tokens, report.num_slots, report.num_experts,
        report.num_blocks, report.row_block, report.ring_blocks, report.laps,
        report.worst_stage_error, report.worst_rel_l2, 1.0 - report.min_cosine, report.seconds,
        report.ok() ? (report.whole_judged ? "ok" : "ok (rel L2 not judged)") : "FAIL");
    if (!report.failure.empty()) fmt::print("  {}\n", report.failure);
    std::fflush(stdout);
}

void add(const CaseReport& report, Totals* totals) {
    ++totals->cases;
    totals->slots += report.num_slots;
    totals->failed_cases += report.ok() ? 0 : 1;
    totals->rank_checks += report.rank_checks;
    totals->failed += report.failed_ranks;
    totals->tight_rings += report.tight_ring() ? 1 : 0;
    totals->laps += report.laps;
    totals->worst_stage_error = std::max(totals->worst_stage_error, report.worst_stage_error);
    totals->worst_excess = std::max(totals->worst_excess, report.worst_excess);
    totals->stalled = totals->stalled || report.stalled;
    if (!report.whole_judged) return;
    totals->worst_rel_l2 = std::max(totals->worst_rel_l2, report.worst_rel_l2);
    totals->min_cosine = std::min(totals->min_cosine, report.min_cosine);
}

void print_summary(const CheckCommand& command, const Totals& totals) {
    fmt::print(
        "{} of {} rank checks passed ({} cases, {} failed, {} live slots); backend {}{}; ring at "
        "most a "
        "quarter of the blocks in {} cases, {} laps; worst stage {:.4f} of its bound, worst "
        "relative L2 {:.2e}, least cosine {:.9f}; {:.1f} s\n",
        totals.rank_checks - totals.failed, totals.rank_checks, totals.cases, totals.failed_cases,
        totals.slots, command.options.backend,
        command.options.processes.is_rank() ? ", ranks as processes with the bits of threads" : "",
        totals.tight_rings, totals.laps, totals.worst_stage_error, totals.worst_rel_l2,
        totals.min_cosine, totals.seconds);
    if (!command.console.json) return;
    print_json({{"suite", command.options.suite},
                {"backend", command.options.backend},
                {"processes", command.options.processes.is_rank()},
                {"cases", totals.cases},
                {"rank_checks", totals.rank_checks},
                {"failed", totals.failed},
                {"slots", totals.slots},
                {"worst_stage_error", totals.worst_stage_error},
                {"worst_excess", totals.worst_excess},
                {"worst_rel_l2", totals.worst_rel_l2},
                {"min_cosine", totals.min_cosine},
                {"tight_rings", totals.tight_rings},
                {"laps", totals.laps},
                {"seconds", totals.seconds}});
}

constexpr int kSuiteRanks = 8;

int num_processes(const CheckOptions& options) { return options.ranks.value_or(kSuiteRanks); }

Status spawn_check(const CheckCommand& command, int* exit_code) {
    GCMOE_RETURN_IF_ERROR(check_options(command.options));
    return spawn_ranks(
        {"check", num_processes(command.options), command.options.deadline_s, command.console.json},
        exit_code);
}

Status run_check(const CheckCommand& command, int* exit_code) {
    const auto begin = std::chrono::steady_clock::now();
    prepare_queues(command.options.backend, command.console);
    GCMOE_RETURN_IF_ERROR(check_options(command.options));
    const bool reports = command.options.processes.rank.value_or(0) == 0;
    std::vector<ListedCase> cases;
    GCMOE_RETURN_IF_ERROR(list_cases(command.options, &cases));
    const std::string judge = command.options.backend == "cpu" ? "host" : "gpu";
    std::unique_ptr<CheckMachine> machine;
    GCMOE_RETURN_IF_ERROR(
        make_check_machine(command.options.judge.empty() ? judge : command.options.judge,
                           command.options.gpu.device, &machine));
    WeightCache cache(machine.get());
    std::shared_ptr<Group> group;
    if (command.options.processes.is_rank()) {
        GCMOE_RETURN_IF_ERROR(join_processes(command.options.processes,
                                             num_processes(command.options),
                                             command.options.deadline_s, &group));
    }
    Totals totals;
    if (reports) print_head();
    for (const ListedCase& listed : cases) {
        CaseReport report;
        const Status status = run_case(command.options, listed.suite, listed.suite_case,
                                       listed.index, {machine.get(), &cache, group}, &report);
        if (!status.ok()) {
            return {status.code(), fmt::format("case {} of suite {}: {}", listed.suite_case.name,
                                               listed.suite, status.message())};
        }
        if (!reports) continue;
        print_case(report);
        add(report, &totals);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    totals.seconds = seconds.count();
    if (reports) print_summary(command, totals);
    *exit_code = totals.stalled ? kExitStalled : totals.failed > 0 ? kExitFailed : kExitDone;
    return {};
}

void add_options(CLI::App* check, CheckCommand* command) {
    CheckOptions& options = command->options;
    const auto add = [&](const char* name, auto* target, const char* description) {
        return check->add_option(name, *target, description);
    };
    add("--backend", &options.backend, "Never chosen silently (cpu)")->type_name("NAME");
    add("--suite", &options.suite, "routed, shared or all (all)")->type_name("NAME");
    add("--case", &options.cases, "Only these cases")->type_name("NAME ...");
    add("--size", &options.size,
        "full: as the suites say; reduced: an eighth (reduced on the cpu, full on a GPU)")
        ->type_name("SIZE");
    add("--judge", &options.judge,
        "host or gpu: who makes the weights and judges (where the backend runs)")
        ->type_name("WHERE");
    add("--executor", &options.executor, "threads, or stepper: one thread, order from a seed")
        ->type_name("KIND");
    add("--seed", &options.seed, "Order of the stepper (0)");
    add("--row-block", &options.row_block, "BM (8, 16, 32, 64 by case)");
    add("--ring-blocks", &options.ring_blocks, "B (a quarter of the blocks)");
    check->add_flag("--no-overlap", options.no_overlap, "Role 2 starts after role 1's last row");
    add("--ranks,--virtual-ranks", &options.ranks, "Ranks (the suite's 8); experts must divide");
    add("--tokens", &options.tokens, "Tokens of every rank (the case's)");
    check->add_flag("--near-wrap", options.near_wrap,
                    "Start with generation, laps and counters shortly before they wrap");
    add("--activation-scale", &options.activation_scale, "fp32-k128 or ue8m0-k32 (fp32-k128)")
        ->type_name("FORM");
    add("--weight-placement", &options.weight_placement,
        "Routing weight before the requantisation or after the second GEMM (before)")
        ->type_name("WHEN");
    add("--dispatch-units", &options.dispatch_units, "Threads (GPU: SMs) of role 1 per rank");
    add("--compute-units", &options.compute_units, "Threads (GPU: SMs) of roles 2 and 3 per rank");
    add("--deadline", &options.deadline_s, "Seconds that any wait may take, 0 = for ever (300)");
    add("--dump-expected", &options.dump_expected, "Write the bit-true outputs into this folder")
        ->type_name("DIR");
    add("--expected", &options.expected, "Read them from there instead of computing them")
        ->type_name("DIR");
    add_process_options(*check, &options.processes);
    add_gpu_options(*check, &options.gpu);
    add_tuned_option(*check, &options.tuned);
    add_console_options(*check, &command->console);
    check->footer(kExamples);
}

}  // namespace
}  // namespace gcmoe::cli

namespace gcmoe {

void add_check_command(CLI::App& app, int* exit_code) {
    auto command = std::make_shared<cli::CheckCommand>();
    CLI::App* check =
        app.add_subcommand("check", "Run the accuracy suites and judge every rounding");
    cli::add_options(check, command.get());
    check->callback([command, exit_code] {
        const Status status = command->options.processes.spawn
                                  ? cli::spawn_check(*command, exit_code)
                                  : cli::run_check(*command, exit_code);
        if (!status.ok()) *exit_code = cli::report_error("check", status, command->console.json);
    });
}

}  // namespace gcmoe
