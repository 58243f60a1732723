#include "op/backends.hpp"

#include <fmt/format.h>

#include "cpu/cpu_rank.hpp"
#include "op/operator_state.hpp"
#ifdef GCMOE_HAS_CUDA
#include "cuda/runtime/cuda_rank.hpp"
#endif

namespace gcmoe {
namespace {

#ifdef GCMOE_HAS_CUDA
BackendInfo cuda_info() {
    const cuda::runtime::DeviceState device = cuda::runtime::find_device(0);
    return {"cuda", device.usable, device.reason};
}
#else
BackendInfo cuda_info() {
    return {"cuda", false, "this build has no GPU kernels (./dev build cuda makes one that has)"};
}
#endif

bool has_kernels() { return !cubins().empty(); }

}  // namespace

std::vector<BackendInfo> backends() {
    return {{"cpu", true, "runs the same protocol and packed weights as the GPU backends"},
            cuda_info()};
}

Status capability(const Shape& shape, const OperatorOptions& options) {
    for (const BackendInfo& backend : backends()) {
        if (backend.name != options.backend) continue;
        // Another device than the first is asked for by find_machine.
        const bool asks_device = backend.name == "cuda" && has_kernels();
        if (!backend.available && !asks_device) {
            return {Code::kUnsupported,
                    fmt::format("backend '{}': {}", backend.name, backend.reason)};
        }
        op::Blueprint blueprint;
        return op::make_blueprint(shape, options, &blueprint);
    }
    return {Code::kBadConfig,
            fmt::format("backend '{}' is unknown; known are cpu, cuda", options.backend)};
}

#ifdef GCMOE_HAS_CUDA
Status sm_pairs(int device, std::vector<SmPairInfo>* out) {
    return cuda::runtime::list_sm_pairs(device, out);
}
#else
Status sm_pairs(int /*device*/, std::vector<SmPairInfo>* /*out*/) {
    return {Code::kUnsupported, "this build has no GPU kernels"};
}
#endif

namespace op {

Status find_machine(const Shape& shape, const OperatorOptions& options, plan::Machine* machine) {
    if (options.backend == "cpu") {
        if (options.launch_mode != LaunchMode::kGraph || options.device != 0) {
            return {Code::kBadConfig,
                    "launch_mode and device are the GPU's; the cpu backend takes their defaults"};
        }
        *machine = plan::cpu_machine();
        return {};
    }
#ifdef GCMOE_HAS_CUDA
    if (options.backend == "cuda") {
        return cuda::runtime::find_machine(shape, options, machine);
    }
#endif
    // Sizes can be asked of any build: those of the GPU that the project was measured on.
    *machine = plan::gpu_machine(plan::kH200Sms, shape.num_ranks);
    return {};
}

Status make_rank(const std::string& backend, backend::RankSetup setup, GroupState* group,
                 std::unique_ptr<backend::RankBackend>* out) {
    if (group->backend.empty()) group->backend = backend;
    if (group->backend != backend) {
        return {Code::kBadConfig,
                fmt::format("rank {}: backend '{}', but the group's ranks so far are of '{}'",
                            setup.rank, backend, group->backend)};
    }
#ifdef GCMOE_HAS_CUDA
    if (backend == "cuda") {
        return cuda::runtime::make_cuda_rank(std::move(setup), group->num_ranks, &group->executor,
                                             out);
    }
#endif
    if (backend != "cpu") {
        return {Code::kInternal, fmt::format("backend '{}' was not refused", backend)};
    }
    return cpu::make_cpu_rank(std::move(setup), group->options, &group->executor, out);
}

}  // namespace op
}  // namespace gcmoe
