#include "cpu/executor_threads.hpp"

#include "cpu/run_guarded.hpp"

namespace gcmoe::cpu {

ThreadsExecutor::ThreadsExecutor(CpuRank* rank, const Roles& roles)
    : rank_(rank),
      roles_(roles),
      num_units_(rank->most_dispatch_units() + rank->most_compute_units()) {
    try {
        for (std::uint32_t unit = 0; unit < num_units_; ++unit) {
            threads_.emplace_back([this, unit] { unit_loop(unit); });
        }
    } catch (...) {  // no more threads on this machine
        stop();
        throw;
    }
}

ThreadsExecutor::~ThreadsExecutor() {
    drain();
    stop();
}

void ThreadsExecutor::stop() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// A unit opens the launch, not the caller: `before` runs on the stream and may block there.
void ThreadsExecutor::notify() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (can_open()) work_.notify_one();
}

bool ThreadsExecutor::can_open() {
    return stage_ == Stage::kIdle && !opening_ && rank_->has_launch();
}

void ThreadsExecutor::drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock,
               [this] { return stage_ == Stage::kIdle && !opening_ && !rank_->has_launch(); });
}

// Host callbacks run without the lock; `opening_` keeps everybody else away meanwhile.
void ThreadsExecutor::advance(std::unique_lock<std::mutex>* lock) {
    if (stage_ == Stage::kRoles && !launch_->memory.plan.combines_by_signals()) {
        stage_ = Stage::kCombine;
    } else {
        const bool was_running = stage_ != Stage::kIdle;
        opening_ = true;
        stage_ = Stage::kIdle;
        lock->unlock();
        if (was_running) rank_->end_launch();
        const bool more = rank_->has_launch();
        if (more) launch_ = &rank_->begin_launch();
        lock->lock();
        opening_ = false;
        if (more) stage_ = Stage::kRoles;
    }
    arrived_ = 0;
    ++stage_number_;
    if (stage_ == Stage::kIdle) {
        if (rank_->has_launch())
            advance(lock);  // queued while the callbacks ran
        else
            idle_.notify_all();
    } else {
        work_.notify_all();
    }
}

void ThreadsExecutor::run_unit(Stage stage, std::uint32_t unit) {
    const layout::PlanMemory& plan = launch_->memory.plan;
    const std::uint32_t most_dispatch = rank_->most_dispatch_units();
    bool finished = true;
    if (unit < most_dispatch) {
        if (stage == Stage::kRoles && unit < plan.dispatch_units) {
            finished = run_dispatch_unit(roles_, *launch_, unit);
        }
    } else if (unit - most_dispatch < plan.compute_units) {
        const std::uint32_t worker = unit - most_dispatch;
        finished = stage == Stage::kRoles
                       ? run_guarded(roles_.compute, *launch_, Role::kCompute, worker)
                       : run_guarded(roles_.combine, *launch_, Role::kCombine, worker);
    }
    if (!finished) rank_->note_failure();
}

void ThreadsExecutor::unit_loop(std::uint32_t unit) {
    std::uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        const auto has_work = [&] { return stage_ != Stage::kIdle && stage_number_ != seen; };
        work_.wait(lock, [&] { return stopping_ || has_work() || can_open(); });
        if (stopping_) return;
        if (!has_work()) {
            advance(&lock);
            continue;
        }
        seen = stage_number_;
        const Stage stage = stage_;
        lock.unlock();
        run_unit(stage, unit);
        lock.lock();
        if (++arrived_ == num_units_) advance(&lock);
    }
}

}  // namespace gcmoe::cpu
