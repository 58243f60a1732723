#include "cuda/runtime/green_context.hpp"

#include <fmt/format.h>

namespace gcmoe::cuda::runtime {

GreenContext::~GreenContext() {
    const Driver* driver = nullptr;
    if (context_ == nullptr || !find_driver(&driver).ok()) return;
    if (stream_ != nullptr) driver->stream_destroy(stream_);
    driver->green_destroy(context_);
}

Status GreenContext::create(const std::vector<CUdevResource>& resources, int device,
                            GreenContext* out) {
    const Driver* driver = nullptr;
    GCMOE_RETURN_IF_ERROR(find_driver(&driver));
    const auto check = [driver](CUresult result, const char* doing) {
        return driver_status(*driver, result, doing);
    };
    unsigned asked = 0;
    for (const CUdevResource& resource : resources) asked += resource.sm.smCount;
    CUdevice handle = 0;
    GCMOE_RETURN_IF_ERROR(check(driver->device_get(&handle, device), "cuDeviceGet"));
    std::vector<CUdevResource> groups = resources;
    CUdevResourceDesc descriptor{};
    GCMOE_RETURN_IF_ERROR(check(
        driver->make_descriptor(&descriptor, groups.data(), static_cast<unsigned>(groups.size())),
        "cuDevResourceGenerateDesc"));
    GreenContext made;
    GCMOE_RETURN_IF_ERROR(
        check(driver->green_create(&made.context_, descriptor, handle, CU_GREEN_CTX_DEFAULT_STREAM),
              "cuGreenCtxCreate"));
    GCMOE_RETURN_IF_ERROR(
        check(driver->green_stream(&made.stream_, made.context_, CU_STREAM_NON_BLOCKING, 0),
              "cuGreenCtxStreamCreate"));
    CUdevResource granted{};
    GCMOE_RETURN_IF_ERROR(
        check(driver->green_resource(made.context_, &granted, CU_DEV_RESOURCE_TYPE_SM),
              "cuGreenCtxGetDevResource"));
    made.num_sms_ = static_cast<int>(granted.sm.smCount);
    if (granted.sm.smCount != asked) {
        return {Code::kInternal, fmt::format("a green context of {} SMs was asked for, {} were "
                                             "granted",
                                             asked, granted.sm.smCount)};
    }
    *out = std::move(made);
    return {};
}

}  // namespace gcmoe::cuda::runtime
