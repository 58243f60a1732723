// The roles' kernel bodies over virtual ranks on the host: memory of the CPU backend's operators,
// CTAs of a Machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device/gpu_launch.cuh"
#include "host_stub/host_cta.hpp"
#include "support/virtual_layer.hpp"
#include "trace/trace.hpp"

namespace gcmoe::host_stub {

// One function per role, each in a file of its own: roles are strangers.
void add_role1(Machine* machine, const cuda::device::TracedLaunch& launch);
void add_role2(Machine* machine, const cuda::device::TracedLaunch& launch, ActivationScale scale);
void add_role3(Machine* machine, const cuda::device::TracedLaunch& launch);
// All of them in one kernel.
void add_one_grid(Machine* machine, const cuda::device::TracedLaunch& launch,
                  ActivationScale scale);

// Hands the launch to `add` as the kernel would get it: with logs, or as one that has none.
template <class Add>
void as_launched(const cuda::device::TracedLaunch& launch, const Add& add) {
    if (launch.is_traced != 0) return add(launch);
    add(static_cast<const cuda::device::GpuLaunch&>(launch));
}

// A rank's logs: those of roles 1, 2 and 3 behind each other.
struct HostLogs {
    std::vector<trace::Event> events;
    std::vector<trace::UnitLog> logs;
};

class HostRanks {
  public:
    // kCompute: a kernel for each role; kFollow: role 3 beside the others, ordered by signals
    // alone; kAll: one grid.
    HostRanks(test::VirtualLayer* layer, const std::vector<reference::RankInputs>& inputs,
              layout::CombineOn combine_on = layout::CombineOn::kCompute);

    // From here on every log keeps `events` events: a CTA's, in role 1 a warp's.
    void record(std::uint32_t events);
    [[nodiscard]] trace::Trace trace() const;

    // One launch of all ranks: roles 1 and 2 side by side, then role 3; or the grids of all. Empty,
    // or the stall reports.
    std::string run();
    [[nodiscard]] const layout::PlanMemory& plan(int rank) const {
        return launches_[static_cast<std::size_t>(rank)].memory.plan;
    }
    [[nodiscard]] const layout::StateWords& state(int rank) const {
        return *launches_[static_cast<std::size_t>(rank)].memory.state();
    }
    [[nodiscard]] const std::vector<std::uint16_t>& y(int rank) const {
        return y_[static_cast<std::size_t>(rank)];
    }

  private:
    void make_launch(int rank);

    test::VirtualLayer* layer_;
    layout::CombineOn combine_on_;
    std::vector<cuda::device::TracedLaunch> launches_;
    std::vector<std::vector<cuda::device::GpuExpert>> experts_;
    std::vector<std::vector<cuda::device::GpuTimes>> times_;
    std::vector<HostLogs> logs_;
    std::vector<std::vector<std::uint16_t>> y_;
};

}  // namespace gcmoe::host_stub
