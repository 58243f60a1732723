#include "machine.hpp"

#include <dlfcn.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sched.h>

#include <ctime>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

namespace gcmoe::cli {
namespace {

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kManagement = "libnvidia-ml.so.1";

// The driver's entry points by their documented C signatures; CUresult is an int, 0 = success.
struct Driver {
    int (*init)(unsigned) = nullptr;
    int (*device_count)(int*) = nullptr;
    int (*device_get)(int*, int) = nullptr;
    int (*device_name)(char*, int, int) = nullptr;
    int (*device_attribute)(int*, int, int) = nullptr;
};

// Values of CUdevice_attribute.
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;

template <class Function>
bool look_up(void* library, const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library, name));
    return *out != nullptr;
}

bool look_up_all(void* library, Driver* driver) {
    return look_up(library, "cuInit", &driver->init) &&
           look_up(library, "cuDeviceGetCount", &driver->device_count) &&
           look_up(library, "cuDeviceGet", &driver->device_get) &&
           look_up(library, "cuDeviceGetName", &driver->device_name) &&
           look_up(library, "cuDeviceGetAttribute", &driver->device_attribute);
}

Devices ask(const Driver& driver) {
    Devices devices;
    if (const int error = driver.init(0); error != 0) {
        devices.how = fmt::format("{} is there, cuInit failed with error {}", kDriver, error);
        return devices;
    }
    int count = 0;
    if (const int error = driver.device_count(&count); error != 0) {
        devices.how = fmt::format("{}: cuDeviceGetCount failed with error {}", kDriver, error);
        return devices;
    }
    devices.how = fmt::format("{}: cuDeviceGetCount says {}", kDriver, count);
    for (int i = 0; i < count; ++i) {
        int handle = 0;
        char name[256] = {};
        if (driver.device_get(&handle, i) != 0) continue;
        if (driver.device_name(name, sizeof(name) - 1, handle) != 0) continue;
        Device device;
        device.name = name;
        driver.device_attribute(&device.sms, kMultiprocessorCount, handle);
        driver.device_attribute(&device.compute_major, kComputeMajor, handle);
        driver.device_attribute(&device.compute_minor, kComputeMinor, handle);
        devices.found.push_back(std::move(device));
    }
    return devices;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  ...": the first word of digits and
// points.
std::string loaded_driver_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    for (std::string word; file >> word;) {
        const bool is_version = word.find_first_not_of("0123456789.") == std::string::npos &&
                                word.find('.') != std::string::npos;
        if (is_version) return word;
    }
    return "unknown";
}

std::string value_of(const std::string& line) {
    const std::size_t colon = line.find(':');
    const std::size_t begin =
        colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
}

}  // namespace

Processor find_processor() {
    Processor processor;
    processor.model = "unknown";
    std::ifstream file("/proc/cpuinfo");
    std::set<std::pair<std::string, std::string>> cores;  // (socket, core)
    std::string socket;
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("model name", 0) == 0) processor.model = value_of(line);
        if (line.rfind("physical id", 0) == 0) socket = value_of(line);
        if (line.rfind("core id", 0) == 0) cores.emplace(socket, value_of(line));
    }
    processor.cores = static_cast<int>(cores.size());
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    processor.threads = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                            ? CPU_COUNT(&allowed)
                            : static_cast<int>(std::thread::hardware_concurrency());
    return processor;
}

Devices find_devices() {
    void* library = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = dlerror();
        return {{}, fmt::format("dlopen {}", reason == nullptr ? kDriver : reason)};
    }
    // The library stays open: a driver that has started cannot be unloaded.
    Driver driver;
    if (!look_up_all(library, &driver)) {
        return {{}, fmt::format("{} lacks an entry point of the CUDA driver API", kDriver)};
    }
    return ask(driver);
}

std::string find_driver_version() {
    int (*init)() = nullptr;
    int (*system_driver_version)(char*, unsigned) = nullptr;
    char version[128] = {};
    void* library = dlopen(kManagement, RTLD_NOW | RTLD_LOCAL);
    const bool said = library != nullptr && look_up(library, "nvmlInit_v2", &init) &&
                      look_up(library, "nvmlSystemGetDriverVersion", &system_driver_version) &&
                      init() == 0 && system_driver_version(version, sizeof(version) - 1) == 0;
    return said ? version : loaded_driver_version();
}

std::string utc_now() {
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

}  // namespace gcmoe::cli
