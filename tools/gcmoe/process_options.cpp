#include "process_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "console.hpp"

namespace gcmoe::cli {

void add_process_options(CLI::App& command, ProcessOptions* options) {
    const char* group = "Ranks as processes";
    command
        .add_flag("--spawn", options->spawn,
                  "Start every rank as a process, and report for all of them")
        ->group(group);
    command.add_option("--rank", options->rank, "This process is rank R; start one for every rank")
        ->group(group);
    command
        .add_option("--session", options->session,
                    "Private folder (mode 0700) where the ranks meet; rank 0 makes and removes it")
        ->type_name("DIR")
        ->group(group);
}

Status check_process_options(const ProcessOptions& options, const std::string& backend,
                             const std::string& executor) {
    if (!options.spawn && !options.is_rank() && options.session.empty()) return {};
    if (options.spawn && (options.is_rank() || !options.session.empty())) {
        return option_error("--spawn", "", "starts all ranks; leave out --rank and --session");
    }
    if (options.is_rank() && options.session.empty()) {
        return option_error("--rank", std::to_string(*options.rank),
                            "needs --session, the folder where the ranks meet");
    }
    if (!options.session.empty() && !options.is_rank()) {
        return option_error("--session", options.session, "needs --rank");
    }
    if (backend != "cpu") {
        return {Code::kUnsupported,
                fmt::format("--backend {}: ranks as processes are the cpu backend's", backend)};
    }
    if (executor != "threads") {
        return option_error("--executor", executor,
                            "orders all ranks in one process; ranks as processes run on threads");
    }
    return {};
}

Status check_deadline(double deadline_s) {
    constexpr double kMostSeconds = 1e9;
    if (deadline_s >= 0 && deadline_s <= kMostSeconds) return {};  // false for NaN
    return option_error("--deadline", fmt::format("{}", deadline_s),
                        "must be in 0..1e9 seconds (0 = for ever)");
}

Status join_processes(const ProcessOptions& options, int num_ranks, double wait_s,
                      std::shared_ptr<Group>* out) {
    HostOptions host;
    host.session = options.session;
    host.rank = *options.rank;
    host.num_ranks = num_ranks;
    host.wait_s = wait_s;
    if (host.rank < 0 || host.rank >= num_ranks) {
        return option_error("--rank", std::to_string(host.rank),
                            fmt::format("must be in 0..{} (--ranks {})", num_ranks - 1, num_ranks));
    }
    const Status status = Group::join_host(host, out);
    if (status.ok() || status.code() == Code::kStalled) return status;
    return {status.code(), "--session: " + status.message()};
}

}  // namespace gcmoe::cli
