// Runs a test once per SIMD target that this machine and this build have.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <vector>

namespace gcmoe::test {

// While it lives, the CPU kernels take this target.
class ForcedTarget {
  public:
    explicit ForcedTarget(std::int64_t target) { choose(target); }
    ~ForcedTarget() { choose(0); }
    ForcedTarget(const ForcedTarget&) = delete;
    ForcedTarget& operator=(const ForcedTarget&) = delete;

  private:
    static void choose(std::int64_t target) {
        hwy::SetSupportedTargetsForTest(target);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
};

// check() under each target; its name is in the message of a failure.
template <class Check>
void for_each_target(const Check& check) {
    const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
    ASSERT_FALSE(targets.empty());
    for (const std::int64_t target : targets) {
        SCOPED_TRACE(hwy::TargetName(target));
        const ForcedTarget forced(target);
        check();
    }
}

}  // namespace gcmoe::test
