#include "cpu/run_guarded.hpp"

#include "cpu/thread_memory.hpp"
#include "protocol/wait.hpp"

namespace gcmoe::cpu {
namespace {

// Allocates nothing. With the threads' accesses on the stepper, too: they never suspend the fiber.
void report_throw(const CpuLaunch& cpu, Role role, std::uint32_t unit) {
    const layout::StateWords& state = *cpu.memory.state();
    protocol::Launch launch;
    launch.generation = state.generation + 1;
    launch.session = state.session;
    launch.unit = unit;
    launch.role = role;
    protocol::WaitSite site;
    site.peer = static_cast<std::int32_t>(cpu.memory.rank());  // who gave up: nobody else's fault
    protocol::report_stall<ThreadMemory>(cpu.memory, launch, site, StallCause::kNoMemory, 0, 0);
}

}  // namespace

bool run_guarded(RoleFunction function, const CpuLaunch& cpu, Role role,
                 std::uint32_t unit) noexcept {
    try {
        return function(cpu, unit);
    } catch (...) {  // reported below: no fiber may be left while it handles an exception
    }
    report_throw(cpu, role, unit);
    return false;
}

bool run_dispatch_unit(const Roles& roles, const CpuLaunch& cpu, std::uint32_t unit) noexcept {
    if (!run_guarded(roles.dispatch, cpu, Role::kDispatch, unit)) return false;
    if (!cpu.memory.plan.combines_by_signals()) return true;
    return run_guarded(roles.combine, cpu, Role::kCombine, unit);
}

}  // namespace gcmoe::cpu
