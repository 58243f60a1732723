// What this machine has: processor and GPUs, found without any CUDA header.
#pragma once

#include <string>
#include <vector>

namespace gcmoe::cli {

struct Processor {
    std::string model;  // "unknown" if the system does not say
    int cores = 0;      // physical; 0 = unknown
    int threads = 0;    // that this process may use
};
[[nodiscard]] Processor find_processor();

struct Device {
    std::string name;
    int sms = 0;
    int compute_major = 0;
    int compute_minor = 0;
};

// GPUs as the driver (libcuda.so.1, opened at run time) counts them. `how` says how they were
// looked for and, if there are none, where that ended.
struct Devices {
    std::vector<Device> found;
    std::string how;
};
[[nodiscard]] Devices find_devices();

// The version of the NVIDIA driver ("580.159.03") as its management library or the
// kernel says it, or "unknown".
[[nodiscard]] std::string find_driver_version();

// "2026-12-01T09:30:00Z".
[[nodiscard]] std::string utc_now();

}  // namespace gcmoe::cli
