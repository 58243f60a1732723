// What the commands have to know of a GPU: how launches reach it, and what must be set before CUDA
// starts.
#pragma once

#include <string>

#include "console.hpp"
#include "gcmoe/operator.hpp"
#include "reference/judge.hpp"

namespace CLI {
class App;
}

namespace gcmoe::cli {

struct GpuOptions {
    std::string launch = "graph";
    int device = 0;
    std::string shared_experts = "auto";
    std::string combine = "auto";
    std::string placement = "balanced";
};

void add_gpu_options(CLI::App& command, GpuOptions* options);

// Errors: kBadInput naming option and value.
Status parse_launch_mode(const GpuOptions& options, LaunchMode* mode);

Status parse_shared_experts(const GpuOptions& options, SharedExperts* shared_experts);

// Either backend.
Status parse_combine(const GpuOptions& options, CombineUnits* combine);

Status parse_placement(const GpuOptions& options, SmPlacement* placement);

inline constexpr SmPlacement kPlacements[] = {SmPlacement::kBalanced, SmPlacement::kInOrder,
                                              SmPlacement::kByGpc};
// The option's word.
[[nodiscard]] const char* placement_name(SmPlacement placement);

// Virtual ranks need 2 hardware queues each, and CUDA reads CUDA_DEVICE_MAX_CONNECTIONS once: sets
// it to 32, its most, unless the caller has set it, and says so. Call before anything asks for a
// device.
void prepare_queues(const std::string& backend, const ConsoleOptions& console);

// How the backend's roundings are judged.
reference::Tolerance tolerance_of(const std::string& backend);

}  // namespace gcmoe::cli
