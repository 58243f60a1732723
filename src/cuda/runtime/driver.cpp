#include "cuda/runtime/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace gcmoe::cuda::runtime {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

struct Loaded {
    Driver driver;
    Status status;
};

template <class Function>
void look_up(void* library, const char* name, Function* out, Status* status) {
    *out = reinterpret_cast<Function>(dlsym(library, name));
    if (*out != nullptr || !status->ok()) return;
    *status = {
        Code::kUnsupported,
        fmt::format("{} lacks {}: a newer driver is needed (green contexts came with CUDA 12.4)",
                    kLibrary, name)};
}

void look_up_all(void* library, Loaded* loaded) {
    Driver& driver = loaded->driver;
    Status* status = &loaded->status;
    look_up(library, "cuInit", &driver.init, status);
    look_up(library, "cuDriverGetVersion", &driver.driver_version, status);
    look_up(library, "cuDeviceGet", &driver.device_get, status);
    look_up(library, "cuGetErrorName", &driver.error_name, status);
    look_up(library, "cuDeviceGetDevResource", &driver.device_resource, status);
    look_up(library, "cuDevSmResourceSplitByCount", &driver.split_sms, status);
    look_up(library, "cuDevResourceGenerateDesc", &driver.make_descriptor, status);
    look_up(library, "cuGreenCtxCreate", &driver.green_create, status);
    look_up(library, "cuGreenCtxDestroy", &driver.green_destroy, status);
    look_up(library, "cuGreenCtxGetDevResource", &driver.green_resource, status);
    look_up(library, "cuGreenCtxStreamCreate", &driver.green_stream, status);
    look_up(library, "cuStreamDestroy_v2", &driver.stream_destroy, status);
    look_up(library, "cuMemsetD32Async", &driver.memset_d32_async, status);
}

Loaded load() {
    Loaded loaded;
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = dlerror();
        loaded.status = {Code::kUnsupported,
                         fmt::format("no CUDA driver: {}", reason == nullptr ? kLibrary : reason)};
        return loaded;
    }
    // The library stays open: a driver that has started cannot be unloaded.
    look_up_all(library, &loaded);
    if (!loaded.status.ok()) return loaded;
    const CUresult result = loaded.driver.init(0);
    if (result != CUDA_SUCCESS) {
        loaded.status = {Code::kUnsupported, fmt::format("{} is there, cuInit failed with error {}",
                                                         kLibrary, static_cast<int>(result))};
    }
    return loaded;
}

}  // namespace

Status find_driver(const Driver** out) {
    static const Loaded loaded = load();
    *out = &loaded.driver;
    return loaded.status;
}

Status driver_status(const Driver& driver, CUresult result, const std::string& doing) {
    if (result == CUDA_SUCCESS) return {};
    const char* name = nullptr;
    if (driver.error_name(result, &name) != CUDA_SUCCESS) name = "unknown error";
    return {Code::kInternal, fmt::format("{}: {} ({})", doing, name, static_cast<int>(result))};
}

}  // namespace gcmoe::cuda::runtime
