#include "cuda/runtime/sm_map.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "cuda/device/device_buffer.hpp"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/sync.cuh"
#include "cuda/runtime/green_context.hpp"

namespace gcmoe::cuda::runtime {
namespace {

using device::cuda_status;

constexpr unsigned kThreads = 32;
// More than half of an SM's shared memory: one CTA per SM.
constexpr int kSharedBytes = 120 * 1024;
// Long enough for all CTAs of a launch to be resident together.
constexpr std::uint64_t kHoldNs = 100 * 1000;

// Notes which SM each CTA runs on, and stays there for a while.
// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   note_sm_kernel: registers 10, spills 0 / 0
__global__ void note_sm_kernel(std::uint32_t* sms, std::uint64_t hold_ns) {
    if (ptx::thread_idx() != 0) return;
    sms[ptx::cta_idx()] = ptx::sm_id();
    const std::uint64_t end = ptx::global_timer_ns() + hold_ns;
    while (ptx::global_timer_ns() < end) ptx::sleep_ns(1000);
}

// CTAs of a cluster run in one GPC.
Status run_clusters(unsigned cluster, unsigned ctas, std::uint32_t* sms,
                    std::vector<std::uint32_t>* out) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaLaunchKernelEx(&config, note_sm_kernel, sms, kHoldNs),
                                      "launching clusters"));
    out->resize(ctas);
    return cuda_status(
        cudaMemcpy(out->data(), sms, ctas * sizeof(std::uint32_t), cudaMemcpyDeviceToHost),
        "reading the SMs of clusters");
}

// Sets of SMs that met in a cluster, joined.
class GpcGroups {
  public:
    explicit GpcGroups(int sms) : parent_(static_cast<std::size_t>(sms)) {
        std::iota(parent_.begin(), parent_.end(), 0);
    }
    int root(int sm) {
        while (parent_[static_cast<std::size_t>(sm)] != sm)
            sm = parent_[static_cast<std::size_t>(sm)];
        return sm;
    }
    void join(int a, int b) { parent_[static_cast<std::size_t>(root(a))] = root(b); }

  private:
    std::vector<int> parent_;
};

// Cluster sizes whose leavings differ: what one size leaves over in a GPC of 16 or 18 SMs, another
// reaches.
constexpr unsigned kClusterSizes[] = {16, 9, 8, 7, 6, 5, 4, 3};

Status find_gpcs(int num_sms, std::uint32_t* sms, GpcGroups* groups) {
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaFuncSetAttribute(note_sm_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
                    "shared memory of the map kernel"));
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaFuncSetAttribute(note_sm_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "cluster size of the map kernel"));
    for (const unsigned cluster : kClusterSizes) {
        const unsigned ctas = static_cast<unsigned>(num_sms) / cluster * cluster;
        std::vector<std::uint32_t> ran;
        if (!run_clusters(cluster, ctas, sms, &ran).ok()) {
            cudaGetLastError();  // a size that this GPU cannot do
            continue;
        }
        for (std::size_t i = 0; i < ran.size(); ++i) {
            if (ran[i] >= static_cast<std::uint32_t>(num_sms))
                continue;  // SMs not numbered through
            const std::size_t first = i / cluster * cluster;
            if (ran[first] >= static_cast<std::uint32_t>(num_sms)) continue;
            groups->join(static_cast<int>(ran[i]), static_cast<int>(ran[first]));
        }
    }
    return {};
}

// The SMs of one pair, by running on it.
Status find_pair(const std::vector<CUdevResource>& resource, int device, std::uint32_t* sms,
                 SmPair* pair) {
    GreenContext context;
    GCMOE_RETURN_IF_ERROR(GreenContext::create(resource, device, &context));
    note_sm_kernel<<<2, kThreads, kSharedBytes, context.stream()>>>(sms, kHoldNs);
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "launching on an SM pair"));
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaStreamSynchronize(context.stream()), "running on an SM pair"));
    std::uint32_t ran[2] = {0, 0};
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaMemcpy(ran, sms, sizeof(ran), cudaMemcpyDeviceToHost),
                                      "reading the SMs of a pair"));
    pair->sms[0] = static_cast<int>(std::min(ran[0], ran[1]));
    pair->sms[1] = static_cast<int>(std::max(ran[0], ran[1]));
    if (ran[0] != ran[1]) return {};
    return {Code::kUnsupported, "an SM pair ran two CTAs on SM " + std::to_string(ran[0]) +
                                    " one after the other: is other work on the device?"};
}

Status split_into_pairs(int device, SmMap* map) {
    const Driver* driver = nullptr;
    GCMOE_RETURN_IF_ERROR(find_driver(&driver));
    CUdevice handle = 0;
    GCMOE_RETURN_IF_ERROR(
        driver_status(*driver, driver->device_get(&handle, device), "cuDeviceGet"));
    CUdevResource all{};
    GCMOE_RETURN_IF_ERROR(
        driver_status(*driver, driver->device_resource(handle, &all, CU_DEV_RESOURCE_TYPE_SM),
                      "cuDeviceGetDevResource"));
    map->num_sms = static_cast<int>(all.sm.smCount);
    unsigned pairs = all.sm.smCount / 2;
    map->resources.resize(pairs);
    CUdevResource rest{};
    GCMOE_RETURN_IF_ERROR(
        driver_status(*driver,
                      driver->split_sms(map->resources.data(), &pairs, &all, &rest,
                                        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 2),
                      "cuDevSmResourceSplitByCount into pairs"));
    map->resources.resize(pairs);
    return {};
}

Status measure(int device, SmMap* map) {
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "cudaSetDevice"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaFree(nullptr), "starting the primary context"));
    GCMOE_RETURN_IF_ERROR(split_into_pairs(device, map));
    device::DeviceBuffer sms;
    GCMOE_RETURN_IF_ERROR(sms.allocate(static_cast<std::size_t>(map->num_sms) * 4, "the SM map"));
    GpcGroups groups(map->num_sms);
    GCMOE_RETURN_IF_ERROR(find_gpcs(map->num_sms, sms.as<std::uint32_t>(), &groups));
    std::map<int, int> numbers;  // root SM -> GPC
    for (const CUdevResource& resource : map->resources) {
        SmPair pair;
        GCMOE_RETURN_IF_ERROR(find_pair({resource}, device, sms.as<std::uint32_t>(), &pair));
        const int root = pair.sms[0] < map->num_sms ? groups.root(pair.sms[0]) : -1;
        pair.gpc = numbers.try_emplace(root, static_cast<int>(numbers.size())).first->second;
        map->pairs.push_back(pair);
    }
    map->num_gpcs = static_cast<int>(numbers.size());
    return {};
}

}  // namespace

Status find_sm_map(int device, const SmMap** out) {
    static std::mutex mutex;
    static std::map<int, SmMap> maps;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = maps.find(device);
    if (found != maps.end()) {
        *out = &found->second;
        return {};
    }
    SmMap map;
    GCMOE_RETURN_IF_ERROR(measure(device, &map));
    *out = &maps.emplace(device, std::move(map)).first->second;
    return {};
}

}  // namespace gcmoe::cuda::runtime
