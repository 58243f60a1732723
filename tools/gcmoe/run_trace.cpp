#include "run_trace.hpp"

#include <fmt/format.h>

#include "checkpoint/atomic_file.hpp"
#include "gcmoe/stall_report.hpp"
#include "held_signals.hpp"
#include "op/operator_state.hpp"
#include "trace/chrome_json.hpp"
#include "trace/summary.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestWaits = 8;

std::string title_of(const RunOptions& options, const LayerRun& run) {
    return fmt::format("{}, {}, {} tokens, {} {}", run.layer.title,
                       counted(static_cast<std::uint64_t>(run.layer.shape.num_ranks), "rank"),
                       run.num_tokens, options.backend,
                       options.backend == "cpu" ? options.executor : options.gpu.launch);
}

double wait_us(const trace::LongWait& wait) {
    return static_cast<double>(wait.event.end_ns - wait.event.begin_ns) / 1000.0;
}

// What a wait was for: signal, block, expert, peer.
std::string wait_text(const trace::Event& event) {
    std::string text = signal_name(static_cast<Signal>(event.signal));
    if (event.block != trace::kNoBlock) text += fmt::format(", block {}", event.block);
    if (event.expert != trace::kNoIndex) text += fmt::format(", expert {}", event.expert);
    if (event.peer != trace::kNoPeer) text += fmt::format(", rank {}", event.peer);
    return text;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

Json role_json(const trace::RoleShare& role) {
    return {{"role", role.role}, {"units", role.num_units}, {"events", role.num_events},
            {"busy", role.busy}, {"waiting", role.waiting}, {"unit_us", role.unit_us}};
}

Json wait_json(const trace::LongWait& wait) {
    const trace::Event& event = wait.event;
    return {{"us", wait_us(wait)},
            {"rank", wait.rank},
            {"role", event.role},
            {"unit", wait.unit},
            {"signal", signal_name(static_cast<Signal>(event.signal))},
            {"block", event.block == trace::kNoBlock ? Json() : Json(event.block)},
            {"peer", event.peer == trace::kNoPeer ? Json() : Json(event.peer)}};
}

Status save_trace(const RunOptions& options, const LayerRun& run, trace::Trace* out) {
    std::vector<Operator*> ranks;
    for (const std::unique_ptr<Operator>& op : run.ops) ranks.push_back(op.get());
    GCMOE_RETURN_IF_ERROR(op::collect_trace(ranks, out));
    const HeldSignals held;  // the file is whole or not there
    const Status status = checkpoint::write_text_file(
        options.trace_path, trace::chrome_json(*out, title_of(options, run)));
    if (!status.ok()) return option_error("--trace", options.trace_path, status.message());
    return {};
}

}  // namespace

Status launch_traced(const RunOptions& options, LayerRun* run, trace::Trace* out) {
    Status launched = launch_layer(options, run);
    const auto num_ranks = static_cast<std::size_t>(run->layer.shape.num_ranks);
    if (options.trace_path.empty() || run->ops.size() != num_ranks) return launched;
    const Status saved = save_trace(options, *run, out);
    return launched.ok() ? saved : launched;
}

std::string trace_line(const RunOptions& options, const trace::Trace& trace) {
    std::string line = fmt::format("trace: {} of {} in {}", counted(trace.num_events(), "event"),
                                   counted(trace.num_units(), "unit"), options.trace_path);
    if (trace.num_dropped() != 0) {
        line += fmt::format("; {} did NOT fit (--trace-events {})",
                            counted(trace.num_dropped(), "event"), options.trace_events);
    }
    return line;
}

void print_trace_report(const RunOptions& options, const LayerRun& run, const trace::Trace& trace) {
    const trace::Summary summary = trace::summarise(trace, kLongestWaits);
    fmt::print("{}; launch {:.3f} s\n", title_of(options, run), run.launch_s);
    Table roles({"", "units", "events", "busy", "waiting", "us a unit"});
    for (const trace::RoleShare& role : summary.roles) {
        roles.add({role_name(static_cast<Role>(role.role)), fmt::format("{}", role.num_units),
                   fmt::format("{}", role.num_events), percent(role.busy), percent(role.waiting),
                   fmt::format("{:.0f}", role.unit_us / role.num_tracks)});
    }
    fmt::print("{}", roles.text(1));
    fmt::print("overlap: role 2 worked during {} of the time in which role 1 filled blocks\n",
               percent(summary.overlap));
    if (!summary.longest.empty()) fmt::print("longest waits:\n");
    Table waits({"us", "rank", "unit", "role", "for"});
    for (const trace::LongWait& wait : summary.longest) {
        waits.add({fmt::format("{:.1f}", wait_us(wait)), fmt::format("{}", wait.rank),
                   fmt::format("{}", wait.unit), role_name(static_cast<Role>(wait.event.role)),
                   wait_text(wait.event)});
    }
    if (!summary.longest.empty()) fmt::print("{}", waits.text(5));
    fmt::print("{}\n", trace_line(options, trace));
}

void print_trace_json(const RunOptions& options, const LayerRun& run, const trace::Trace& trace) {
    const trace::Summary summary = trace::summarise(trace, kLongestWaits);
    Json object;
    object["title"] = title_of(options, run);
    object["trace"] = options.trace_path;
    object["events"] = trace.num_events();
    object["dropped_events"] = trace.num_dropped();
    object["units"] = trace.num_units();
    object["launch_seconds"] = run.launch_s;
    object["roles"] = Json::array();
    for (const trace::RoleShare& role : summary.roles) object["roles"].push_back(role_json(role));
    object["overlap"] = summary.overlap;
    object["longest_waits"] = Json::array();
    for (const trace::LongWait& wait : summary.longest) {
        object["longest_waits"].push_back(wait_json(wait));
    }
    print_json(object);
}

}  // namespace gcmoe::cli
