#include "cuda/runtime/role_nodes.hpp"

#include <utility>

#include "cuda/combine/role3_combine.hpp"
#include "cuda/device/device_buffer.hpp"
#include "cuda/dispatch/role1_dispatch.hpp"
#include "cuda/gemm/sm90_role2_gemm.hpp"
#include "cuda/joint/dispatch_combine.hpp"
#include "cuda/joint/one_grid.hpp"

namespace gcmoe::cuda::runtime {
namespace {

bool combines_on(const RankLaunch& rank, layout::CombineOn units) {
    return rank.launch.memory.plan.combine_on == units;
}

}  // namespace

using device::cuda_status;
using device::DispatchStep;

ForkJoin::~ForkJoin() {
    if (role1_ended_ != nullptr) cudaEventDestroy(role1_ended_);
    if (ended_ != nullptr) cudaEventDestroy(ended_);
}

ForkJoin::ForkJoin(ForkJoin&& other) noexcept
    : role1_ended_(std::exchange(other.role1_ended_, nullptr)),
      ended_(std::exchange(other.ended_, nullptr)) {}

Status ForkJoin::create() {
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaEventCreateWithFlags(&role1_ended_, cudaEventDisableTiming), "creating an event"));
    return cuda_status(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming),
                       "creating an event");
}

Status ForkJoin::begin(const RankLaunch& rank, cudaEvent_t fork) {
    if (combines_on(rank, layout::CombineOn::kAll)) {
        const cudaStream_t whole = rank.partition->whole.stream();
        GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamWaitEvent(whole, fork), "forking the grid"));
        return cuda_status(joint::launch_one_grid(rank.launch, rank.activation_scale, whole),
                           "launching all roles in one grid");
    }
    const cudaStream_t dispatch = rank.partition->dispatch.stream();
    const cudaStream_t compute = rank.partition->compute.stream();
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamWaitEvent(dispatch, fork), "forking role 1"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamWaitEvent(compute, fork), "forking role 2"));
    if (combines_on(rank, layout::CombineOn::kDispatch)) {
        GCMOE_RETURN_IF_ERROR(cuda_status(joint::launch_dispatch_combine(rank.launch, dispatch),
                                          "launching roles 1 and 3"));
    } else {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(dispatch::launch_role1(rank.launch, dispatch), "launching role 1"));
    }
    if (rank.launch.has_role4 != 0) {
        GCMOE_RETURN_IF_ERROR(cuda_status(
            gemm::launch_role4(rank.launch, rank.activation_scale, dispatch), "launching role 4"));
    }
    return cuda_status(gemm::launch_role2(rank.launch, rank.activation_scale, compute),
                       "launching role 2");
}

Status ForkJoin::end(const RankLaunch& rank, cudaStream_t stream) {
    if (combines_on(rank, layout::CombineOn::kAll)) {
        GCMOE_RETURN_IF_ERROR(cuda_status(cudaEventRecord(ended_, rank.partition->whole.stream()),
                                          "joining the grid"));
        return cuda_status(cudaStreamWaitEvent(stream, ended_), "joining the grid");
    }
    const cudaStream_t dispatch = rank.partition->dispatch.stream();
    const cudaStream_t compute = rank.partition->compute.stream();
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaEventRecord(role1_ended_, dispatch), "joining roles 1 and 4"));
    if (combines_on(rank, layout::CombineOn::kCompute)) {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaStreamWaitEvent(compute, role1_ended_), "joining roles 1 and 4"));
    }
    if (!combines_on(rank, layout::CombineOn::kDispatch)) {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(combine::launch_role3(rank.launch, compute), "launching role 3"));
    }
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaEventRecord(ended_, compute), "joining roles 2 and 3"));
    if (!combines_on(rank, layout::CombineOn::kCompute)) {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaStreamWaitEvent(stream, role1_ended_), "joining role 1"));
    }
    return cuda_status(cudaStreamWaitEvent(stream, ended_), "joining roles 2 and 3");
}

Status write_num_tokens(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream) {
    const Driver* driver = nullptr;
    GCMOE_RETURN_IF_ERROR(find_driver(&driver));
    for (const RankLaunch* rank : ranks) {
        const auto word = reinterpret_cast<CUdeviceptr>(rank->num_tokens_word);
        GCMOE_RETURN_IF_ERROR(driver_status(
            *driver,
            driver->memset_d32_async(word, static_cast<unsigned>(rank->num_tokens), 1, stream),
            "writing num_tokens"));
    }
    return {};
}

Status run_serial(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream) {
    for (const DispatchStep step : {DispatchStep::kPublish, DispatchStep::kPull}) {
        for (const RankLaunch* rank : ranks) {
            device::GpuLaunch launch = rank->launch;
            launch.dispatch_step = step;
            GCMOE_RETURN_IF_ERROR(
                cuda_status(dispatch::launch_role1(launch, stream), "launching role 1"));
        }
    }
    for (const RankLaunch* rank : ranks) {
        if (rank->launch.has_role4 == 0) continue;
        GCMOE_RETURN_IF_ERROR(cuda_status(
            gemm::launch_role4(rank->launch, rank->activation_scale, stream), "launching role 4"));
    }
    for (const RankLaunch* rank : ranks) {
        GCMOE_RETURN_IF_ERROR(cuda_status(
            gemm::launch_role2(rank->launch, rank->activation_scale, stream), "launching role 2"));
    }
    for (const RankLaunch* rank : ranks) {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(combine::launch_role3(rank->launch, stream), "launching role 3"));
    }
    return {};
}

}  // namespace gcmoe::cuda::runtime
