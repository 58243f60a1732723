// All roles of all ranks as resumable units on one thread; a seed draws who makes the next signal
// access.
//
// A step ends before every signal access, so every interleaving of signal accesses can come up,
// also those that threads never show. A failing seed is the bug report. At most
// `resident_compute_units` of a rank's compute units are started before others have ended: what
// cannot run so would need co-residency.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/cpu_rank.hpp"
#include "cpu/fiber.hpp"
#include "cpu/roles.hpp"

namespace gcmoe::cpu {

// The product's roles over the stepper's signal memory.
[[nodiscard]] Roles stepper_roles();

class Stepper final : public backend::Executor {
  public:
    explicit Stepper(const GroupOptions& options, const Roles& roles = stepper_roles());

    void add(CpuRank* rank);
    void remove(CpuRank* rank);
    // Runs all ranks until the queue of `rank` is empty and its units have ended.
    void run_until_idle(CpuRank* rank);
    [[nodiscard]] std::uint64_t steps() const { return steps_; }

  private:
    enum class Stage : std::uint8_t { kIdle, kRoles, kCombine };
    struct Unit {
        CpuRank* rank = nullptr;
        std::uint32_t index = 0;
        bool is_dispatch = false;
        std::unique_ptr<Fiber> fiber;
    };
    struct RankState {
        CpuRank* rank = nullptr;
        Stage stage = Stage::kIdle;
        const CpuLaunch* launch = nullptr;
        std::vector<std::uint32_t> waiting;  // compute units not started yet
        std::uint32_t running = 0;
        std::uint32_t running_compute = 0;
    };

    void open(RankState* state);
    void start_units(RankState* state);
    void start(RankState* state, std::uint32_t index, bool is_dispatch);
    void finish(std::size_t unit_idx);
    void step_once();
    RankState* find(CpuRank* rank);

    GroupOptions options_;
    Roles roles_;
    std::uint64_t random_;
    std::uint64_t steps_ = 0;
    std::uint64_t idle_steps_ = 0;  // since the last signal write
    std::uint64_t last_writes_ = 0;
    std::uint64_t stuck_ns_ = 0;  // virtual time passed by jumps since the last signal write
    std::vector<RankState> ranks_;
    std::vector<Unit> units_;  // started and not finished
};

// Connects one rank to the group's stepper.
class StepperExecutor final : public RankExecutor {
  public:
    StepperExecutor(std::shared_ptr<Stepper> stepper, CpuRank* rank);
    ~StepperExecutor() override;
    void notify() override {}
    void drain() override { stepper_->run_until_idle(rank_); }

  private:
    std::shared_ptr<Stepper> stepper_;
    CpuRank* rank_;
};

}  // namespace gcmoe::cpu
