// The roles as functions: the product's, or (in tests) instances with a policy that delays accesses
// or removes a rule.
#pragma once

#include <cstdint>

#include "backend/rank_backend.hpp"
#include "cpu/cpu_launch.hpp"
#include "cpu/cpu_role1_dispatch.hpp"
#include "cpu/cpu_role2_compute.hpp"
#include "cpu/cpu_role3_combine.hpp"

namespace gcmoe::cpu {

// One unit of a role for one launch; false = it left early.
using RoleFunction = bool (*)(const CpuLaunch& cpu, std::uint32_t unit);

struct Roles {
    RoleFunction dispatch = nullptr;
    RoleFunction compute = nullptr;
    RoleFunction combine = nullptr;
};

template <protocol::SignalMemory M>
[[nodiscard]] constexpr Roles roles_with() {
    return {&role1_dispatch<M>, &role2_compute<M>, &role3_combine<M>};
}

// In a group's executor slot: ranks with threads run these roles instead of the product's.
struct ThreadRoles final : backend::Executor {
    explicit ThreadRoles(const Roles& chosen) : roles(chosen) {}
    Roles roles;
};

}  // namespace gcmoe::cpu
