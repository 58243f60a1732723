#include "cuda/runtime/prepare_roles.hpp"

#include <mutex>
#include <set>

#include "cuda/combine/role3_combine.hpp"
#include "cuda/device/device_buffer.hpp"
#include "cuda/dispatch/role1_dispatch.hpp"
#include "cuda/gemm/sm90_role2_gemm.hpp"
#include "cuda/joint/dispatch_combine.hpp"
#include "cuda/joint/one_grid.hpp"

namespace gcmoe::cuda::runtime {

using device::cuda_status;

Status prepare_roles(int device) {
    static std::mutex mutex;
    static std::set<int> ready;
    const std::lock_guard<std::mutex> lock(mutex);
    if (ready.count(device) != 0) return {};
    GCMOE_RETURN_IF_ERROR(cuda_status(dispatch::prepare_role1(), "loading role 1"));
    GCMOE_RETURN_IF_ERROR(cuda_status(gemm::prepare_role2(), "loading role 2"));
    GCMOE_RETURN_IF_ERROR(cuda_status(combine::prepare_role3(), "loading role 3"));
    GCMOE_RETURN_IF_ERROR(
        cuda_status(joint::prepare_dispatch_combine(), "loading roles 1 and 3 in one"));
    GCMOE_RETURN_IF_ERROR(cuda_status(joint::prepare_one_grid(), "loading the one grid"));
    ready.insert(device);
    return {};
}

namespace {

// The launches of warm_up_roles, plain or traced.
Status warm_up(const RoleStreams& streams, device::GpuLaunch nothing) {
    const auto [dispatch, compute, whole] = streams;
    GCMOE_RETURN_IF_ERROR(
        cuda_status(dispatch::launch_role1(nothing, dispatch), "warming up role 1"));
    GCMOE_RETURN_IF_ERROR(cuda_status(joint::launch_dispatch_combine(nothing, dispatch),
                                      "warming up roles 1 and 3 in one"));
    for (const std::uint32_t row_block : {16U, 32U, 64U}) {
        nothing.memory.plan.row_block = row_block;
        for (const auto scale : {ActivationScale::kFp32K128, ActivationScale::kUe8m0K32}) {
            GCMOE_RETURN_IF_ERROR(
                cuda_status(gemm::launch_role2(nothing, scale, compute), "warming up role 2"));
            GCMOE_RETURN_IF_ERROR(
                cuda_status(gemm::launch_role4(nothing, scale, dispatch), "warming up role 4"));
            GCMOE_RETURN_IF_ERROR(cuda_status(joint::launch_one_grid(nothing, scale, whole),
                                              "warming up the one grid"));
        }
    }
    GCMOE_RETURN_IF_ERROR(
        cuda_status(combine::launch_role3(nothing, compute), "warming up role 3"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(dispatch), "warming up role 1"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(whole), "warming up the one grid"));
    return cuda_status(cudaStreamSynchronize(compute), "warming up roles 2 and 3");
}

}  // namespace

Status warm_up_roles(const RoleStreams& streams) {
    device::GpuLaunch nothing;
    nothing.is_warm_up = 1;
    nothing.memory.plan.dispatch_units = 1;
    nothing.memory.heap.num_ranks = 1;
    nothing.memory.plan.compute_units = 1;
    GCMOE_RETURN_IF_ERROR(warm_up(streams, nothing));
    nothing.is_traced = 1;
    return warm_up(streams, nothing);
}

}  // namespace gcmoe::cuda::runtime
