// Runs a role's unit so that what it throws (no memory for its scratch) ends like a failed wait: a
// stall report, a fault to every rank, and all units leave. Without this the process would abort.
#pragma once

#include <cstdint>

#include "cpu/roles.hpp"
#include "gcmoe/stall_report.hpp"

namespace gcmoe::cpu {

// What the role returns; false if it threw.
[[nodiscard]] bool run_guarded(RoleFunction function, const CpuLaunch& cpu, Role role,
                               std::uint32_t unit) noexcept;

// A unit of role 1, and of role 3 behind it where the plan wants that.
[[nodiscard]] bool run_dispatch_unit(const Roles& roles, const CpuLaunch& cpu,
                                     std::uint32_t unit) noexcept;

}  // namespace gcmoe::cpu
