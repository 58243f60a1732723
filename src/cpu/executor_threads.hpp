// One thread per unit of a rank. Launches run in stream order: roles 1 and 2 side by side, role 3
// after both, then the next launch. Ranks share nothing here; they meet only in the protocol.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu/cpu_rank.hpp"
#include "cpu/roles.hpp"

namespace gcmoe::cpu {

class ThreadsExecutor final : public RankExecutor {
  public:
    ThreadsExecutor(CpuRank* rank, const Roles& roles);
    ~ThreadsExecutor() override;
    void notify() override;
    void drain() override;

  private:
    // What stands between the stages of a launch: the last unit to arrive opens the next stage.
    enum class Stage : std::uint8_t { kIdle, kRoles, kCombine };

    void stop();
    // With the lock: no launch is open and one waits.
    bool can_open();
    void unit_loop(std::uint32_t unit);
    void run_unit(Stage stage, std::uint32_t unit);
    // Called with the lock held by the last unit of a stage, or to start from idle.
    void advance(std::unique_lock<std::mutex>* lock);

    CpuRank* rank_;
    Roles roles_;
    std::uint32_t num_units_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable idle_;
    Stage stage_ = Stage::kIdle;
    bool opening_ = false;  // a unit runs the host's callbacks
    bool stopping_ = false;
    std::uint64_t stage_number_ = 0;
    std::uint32_t arrived_ = 0;
    const CpuLaunch* launch_ = nullptr;
    std::vector<std::thread> threads_;
};

}  // namespace gcmoe::cpu
