#include "gpu_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "gcmoe/capability.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe::cli {

void add_gpu_options(CLI::App& command, GpuOptions* options) {
    command
        .add_option("--launch", options->launch,
                    "GPU: graph, eager (streams) or serial (one kernel at a time, for sanitizers "
                    "and profilers) (graph)")
        ->type_name("MODE")
        ->group("GPU");
    command
        .add_option("--shared-experts", options->shared_experts,
                    "GPU: in-order (role 2), or role4 (the communication partition after role 1, "
                    "helped by role 2), auto = in-order (auto)")
        ->type_name("WHO")
        ->group("GPU");
    command
        .add_option(
            "--combine", options->combine,
            "Units of role 3: compute (role 2's, a kernel after it), follow (GPU: role 2's, as "
            "it leaves them), dispatch (role 1's, no launch between), all (GPU: all roles "
            "in one kernel), auto = dispatch for few tokens on a GPU, else follow; on the "
            "CPU compute (auto)")
        ->type_name("UNITS")
        ->group("Execution");
    command
        .add_option("--placement", options->placement,
                    "GPU: SMs of the partitions: balanced over the GPCs; to measure what that "
                    "gains, in-order: the driver's first ones for role 1, the next for roles 2 and "
                    "3, or by-gpc: the same, one GPC after the other (balanced)")
        ->type_name("RULE")
        ->group("GPU");
    command.add_option("--device", options->device, "GPU: CUDA's number of the device (0)")
        ->group("GPU");
}

Status parse_launch_mode(const GpuOptions& options, LaunchMode* mode) {
    if (options.device < 0) {
        return option_error("--device", std::to_string(options.device), "must not be negative");
    }
    if (options.launch == "graph") {
        *mode = LaunchMode::kGraph;
    } else if (options.launch == "eager") {
        *mode = LaunchMode::kEager;
    } else if (options.launch == "serial") {
        *mode = LaunchMode::kSerial;
    } else {
        return option_error("--launch", options.launch, "must be one of graph, eager, serial");
    }
    return {};
}

Status parse_shared_experts(const GpuOptions& options, SharedExperts* shared_experts) {
    if (options.shared_experts == "auto") {
        *shared_experts = SharedExperts::kAuto;
    } else if (options.shared_experts == "in-order") {
        *shared_experts = SharedExperts::kInOrder;
    } else if (options.shared_experts == "role4") {
        *shared_experts = SharedExperts::kRole4;
    } else {
        return option_error("--shared-experts", options.shared_experts,
                            "must be one of auto, in-order, role4");
    }
    return {};
}

Status parse_combine(const GpuOptions& options, CombineUnits* combine) {
    if (options.combine == "auto") {
        *combine = CombineUnits::kAuto;
    } else if (options.combine == "compute") {
        *combine = CombineUnits::kCompute;
    } else if (options.combine == "dispatch") {
        *combine = CombineUnits::kDispatch;
    } else if (options.combine == "follow") {
        *combine = CombineUnits::kFollow;
    } else if (options.combine == "all") {
        *combine = CombineUnits::kAll;
    } else {
        return option_error("--combine", options.combine,
                            "must be one of auto, follow, compute, dispatch, all");
    }
    return {};
}

Status parse_placement(const GpuOptions& options, SmPlacement* placement) {
    for (const SmPlacement one : kPlacements) {
        *placement = one;
        if (options.placement == placement_name(one)) return {};
    }
    return option_error("--placement", options.placement,
                        "must be one of balanced, in-order, by-gpc");
}

const char* placement_name(SmPlacement placement) { return plan::placement_word(placement); }

void prepare_queues(const std::string& backend, const ConsoleOptions& console) {
    constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
    if (backend != "cuda" || cubins().empty() || std::getenv(kVariable) != nullptr) return;
    setenv(kVariable, "32", 0);
    if (!console.json) {
        print_aside(fmt::format("gcmoe: {}=32 (two hardware queues a rank)\n", kVariable));
    }
}

reference::Tolerance tolerance_of(const std::string& backend) {
    return backend == "cuda" ? reference::kHopperTolerance : reference::kCpuTolerance;
}

}  // namespace gcmoe::cli
