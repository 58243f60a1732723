// The roles' kernel bodies over virtual ranks on the host: memory of the CPU backend's operators,
// CTAs of a Machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device/gpu_launch.cuh"
#include "host_stub/host_cta.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe::host_stub {

// One function per role, each in a file of its own: roles are strangers.
void add_role1(Machine* machine, const cuda::device::GpuLaunch& launch);
void add_role2(Machine* machine, const cuda::device::GpuLaunch& launch, ActivationScale scale);
void add_role3(Machine* machine, const cuda::device::GpuLaunch& launch);
// All of them in one kernel.
void add_one_grid(Machine* machine, const cuda::device::GpuLaunch& launch, ActivationScale scale);

class HostRanks {
  public:
    // kCompute: a kernel for each role; kFollow: role 3 beside the others, ordered by signals
    // alone; kAll: one grid.
    HostRanks(test::VirtualLayer* layer, const std::vector<reference::RankInputs>& inputs,
              layout::CombineOn combine_on = layout::CombineOn::kCompute);

    // One launch of all ranks: roles 1 and 2 side by side, then role 3; or the grids of all. Empty,
    // or the stall reports.
    std::string run();
    [[nodiscard]] const std::vector<std::uint16_t>& y(int rank) const {
        return y_[static_cast<std::size_t>(rank)];
    }

  private:
    void make_launch(int rank);

    test::VirtualLayer* layer_;
    layout::CombineOn combine_on_;
    std::vector<cuda::device::GpuLaunch> launches_;
    std::vector<std::vector<cuda::device::GpuExpert>> experts_;
    std::vector<std::vector<cuda::device::GpuTimes>> times_;
    std::vector<std::vector<std::uint16_t>> y_;
};

}  // namespace gcmoe::host_stub
