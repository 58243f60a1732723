#include "bench_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/math.hpp"
#include "bench_device.hpp"
#include "gcmoe/capability.hpp"
#include "gcmoe_version.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

// Fewer tokens touch so few experts that their tasks do not fill the SMs as the loop's do.
constexpr int kLeastTargetTokens = 8;
constexpr int kRowStep = 8;

constexpr const char* kLoopFormat =
    "{:<11} {:>6} {:>6} {:>5} {:>4} {:>8} {:>8} {:>6} {:>8} {:>7} {:>8}";

// Three digits: the GPU's events do not resolve a nanosecond.
double rounded(double value) { return std::round(value * 1e3) / 1e3; }

void add_origin(const BenchOrigin& origin, Json* object) {
    (*object)["warm"] = origin.warm;
    (*object)["timed"] = origin.timed;
    (*object)["flush_mib"] = origin.flush_mib;
    (*object)["version"] = kVersion;
    (*object)["commit"] = kCommit;
    (*object)["gpu"] = origin.gpu;
    (*object)["gpu_sms"] = origin.sms;
    (*object)["driver"] = origin.driver;
    (*object)["date"] = origin.date;
}

// The fastest of the loops of `rows` rows that leave role 1 its SMs, or null.
const LoopPoint* fastest(const std::vector<LoopPoint>& loops, int rows, int gpu_sms) {
    const LoopPoint* best = nullptr;
    for (const LoopPoint& loop : loops) {
        if (loop.rows != rows || loop.sms > gpu_sms - kLeastDispatchSms) continue;
        if (best == nullptr || loop.median_us < best->median_us) best = &loop;
    }
    return best;
}

}  // namespace

int loop_rows_for(const checkpoint::ModelEntry& model, int tokens) {
    return round_up(ceil_div(tokens * model.topk, model.num_experts), kRowStep);
}

std::vector<LoopTarget> loop_targets(const checkpoint::ModelEntry& model,
                                     const std::vector<int>& tokens,
                                     const std::vector<LoopPoint>& loops, int gpu_sms) {
    std::vector<LoopTarget> targets;
    for (const int count : tokens) {
        const int rows = loop_rows_for(model, count);
        const LoopPoint* loop = fastest(loops, rows, gpu_sms);
        if (count < kLeastTargetTokens || loop == nullptr) continue;
        const double missed =
            std::pow(1.0 - static_cast<double>(model.topk) / model.num_experts, count);
        LoopTarget target;
        target.model = model.name;
        target.tokens = count;
        target.rows = rows;
        target.sms = loop->sms;
        target.touched = model.num_experts * (1 - missed);
        target.loop_us = loop->median_us * target.touched / kLoopExperts;
        target.floor_us = floor_us(target.touched * expert_bytes(loop->shape));
        targets.push_back(std::move(target));
    }
    return targets;
}

Json loop_json(const LoopPoint& point, const BenchOrigin& origin) {
    Json object = {{"kind", "loop"},
                   {"model", point.model},
                   {"hidden", point.shape.hidden},
                   {"inter", point.shape.inter},
                   {"experts", kLoopExperts},
                   {"rows", point.rows},
                   {"sms", point.sms},
                   {"median_us", rounded(point.median_us)},
                   {"min_us", rounded(point.min_us)},
                   {"gb_s", rounded(gb_per_s(point.bytes(), point.median_us))},
                   {"copy_us", rounded(point.copy_us)},
                   {"copy_percent", rounded(100 * point.copy_us / point.median_us)},
                   {"error", point.error}};
    add_origin(origin, &object);
    return object;
}

Json target_json(const LoopTarget& target, const BenchOrigin& origin) {
    Json object = {{"kind", "loop_target"},
                   {"model", target.model},
                   {"tokens", target.tokens},
                   {"rows", target.rows},
                   {"sms", target.sms},
                   {"touched", rounded(target.touched)},
                   {"loop_us", rounded(target.loop_us)},
                   {"target_us", rounded(target.target_us())},
                   {"floor_us", rounded(target.floor_us)},
                   {"ratio", rounded(target.target_us() / target.floor_us)}};
    add_origin(origin, &object);
    return object;
}

std::string loop_head() {
    return fmt::format(kLoopFormat, "model", "hidden", "inter", "rows", "SMs", "us", "min us",
                       "GB/s", "copy us", "% copy", "error");
}

std::string loop_line(const LoopPoint& point) {
    return fmt::format(kLoopFormat, point.model, point.shape.hidden, point.shape.inter, point.rows,
                       point.sms, fmt::format("{:.1f}", point.median_us),
                       fmt::format("{:.1f}", point.min_us),
                       fmt::format("{:.0f}", gb_per_s(point.bytes(), point.median_us)),
                       fmt::format("{:.1f}", point.copy_us),
                       fmt::format("{:.1f}", 100 * point.copy_us / point.median_us),
                       fmt::format("{:.1e}", point.error));
}

std::string target_line(const LoopTarget& target) {
    return fmt::format(
        "{:<11} {:>3} tokens, {:>4.1f} experts: loop of {} rows on {} SMs {:.1f} + {:.0f} us = "
        "{:.1f} us, {:.2f} x the floor of {:.1f}",
        target.model, target.tokens, target.touched, target.rows, target.sms, target.loop_us,
        kAroundLoopUs, target.target_us(), target.target_us() / target.floor_us, target.floor_us);
}

Status make_loop_device(const BenchPlan& plan, std::unique_ptr<LoopDevice>* out) {
    for (const BackendInfo& backend : backends()) {
        if (backend.name != "cuda" || backend.available) continue;
        return {Code::kUnsupported, fmt::format("times need a GPU: {}", backend.reason)};
    }
#ifdef GCMOE_HAS_CUDA
    return make_gpu_loop(plan, out);
#else
    static_cast<void>(plan);
    static_cast<void>(out);
    return {Code::kUnsupported, "times need a build with GPU kernels (./dev build cuda)"};
#endif
}

}  // namespace gcmoe::cli
