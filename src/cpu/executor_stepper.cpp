#include "cpu/executor_stepper.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "cpu/run_guarded.hpp"
#include "cpu/stepper_memory.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::cpu {
namespace {

// Steps without any signal write after which nobody can make progress: every unit has looked at its
// word many times over. Random order: the chance that a ready unit was not drawn in so many is
// below e^-64.
constexpr std::uint64_t kStuckStepsPerUnit = 64;

// Virtual time that passes when all are stuck: 1 ms, then a sixteenth of what has passed so, until
// the first deadline is over. A sixteenth, because waits for the own rank last an eighth longer:
// who waits for a peer must find its own deadline over first.
constexpr std::uint64_t kFirstJumpNs = 1000ULL * 1000;
constexpr std::uint64_t kJumpShare = 16;

}  // namespace

Roles stepper_roles() { return roles_with<StepperMemory>(); }

Stepper::Stepper(const GroupOptions& options, const Roles& roles)
    : options_(options), roles_(roles), random_(numerics::splitmix64(options.seed)) {}

void Stepper::add(CpuRank* rank) {
    RankState state;
    state.rank = rank;
    ranks_.push_back(std::move(state));
}

void Stepper::remove(CpuRank* rank) {
    run_until_idle(rank);
    ranks_.erase(std::remove_if(ranks_.begin(), ranks_.end(),
                                [rank](const RankState& state) { return state.rank == rank; }),
                 ranks_.end());
}

Stepper::RankState* Stepper::find(CpuRank* rank) {
    for (RankState& state : ranks_) {
        if (state.rank == rank) return &state;
    }
    GCMOE_CHECK(false, "rank not known to the stepper");
    return nullptr;
}

void Stepper::start(RankState* state, std::uint32_t index, bool is_dispatch) {
    CpuRank* rank = state->rank;
    const CpuLaunch* launch = state->launch;
    const bool computes = state->stage == Stage::kRoles;
    Unit unit;
    unit.rank = rank;
    unit.index = index;
    unit.is_dispatch = is_dispatch;
    unit.fiber = std::make_unique<Fiber>([this, rank, launch, is_dispatch, computes, index] {
        bool finished = false;
        if (is_dispatch) {
            finished = run_dispatch_unit(roles_, *launch, index);
        } else if (computes) {
            finished = run_guarded(roles_.compute, *launch, Role::kCompute, index);
        } else {
            finished = run_guarded(roles_.combine, *launch, Role::kCombine, index);
        }
        if (!finished) rank->note_failure();
    });
    units_.push_back(std::move(unit));
    ++state->running;
    if (!is_dispatch) ++state->running_compute;
}

void Stepper::start_units(RankState* state) {
    const auto most = static_cast<std::uint32_t>(options_.resident_compute_units);
    while (!state->waiting.empty() && (most == 0 || state->running_compute < most)) {
        start(state, state->waiting.front(), false);
        state->waiting.erase(state->waiting.begin());
    }
}

// Opens the next stage of a rank that has none running.
void Stepper::open(RankState* state) {
    const bool roles_ran = state->stage == Stage::kRoles;
    if (roles_ran && !state->launch->memory.plan.combines_by_signals()) {
        state->stage = Stage::kCombine;
    } else {
        if (state->stage != Stage::kIdle) state->rank->end_launch();
        state->stage = Stage::kIdle;
        if (!state->rank->has_launch()) return;
        state->launch = &state->rank->begin_launch();
        state->stage = Stage::kRoles;
        const std::uint32_t dispatch_units = state->launch->memory.plan.dispatch_units;
        for (std::uint32_t i = 0; i < dispatch_units; ++i) start(state, i, true);
    }
    for (std::uint32_t i = 0; i < state->launch->memory.plan.compute_units; ++i)
        state->waiting.push_back(i);
    start_units(state);
}

void Stepper::finish(std::size_t unit_idx) {
    RankState* state = find(units_[unit_idx].rank);
    --state->running;
    if (!units_[unit_idx].is_dispatch) --state->running_compute;
    units_[unit_idx] = std::move(units_.back());
    units_.pop_back();
    start_units(state);
    if (state->running == 0) open(state);
}

void Stepper::step_once() {
    random_ = numerics::splitmix64(random_ + steps_);
    const std::size_t unit_idx = random_ % units_.size();
    units_[unit_idx].fiber->resume();
    ++steps_;
    StepperClock& clock = stepper_clock();
    const bool progress = clock.writes != last_writes_ || units_[unit_idx].fiber->finished();
    last_writes_ = clock.writes;
    idle_steps_ = progress ? 0 : idle_steps_ + 1;
    if (progress) {
        clock.now_ns += 1;
        stuck_ns_ = 0;
    }
    if (idle_steps_ > kStuckStepsPerUnit * units_.size()) {
        const std::uint64_t jump = std::max(kFirstJumpNs, stuck_ns_ / kJumpShare);
        clock.now_ns += jump;
        stuck_ns_ += jump;
        idle_steps_ = 0;
    }
    if (units_[unit_idx].fiber->finished()) finish(unit_idx);
}

void Stepper::run_until_idle(CpuRank* rank) {
    for (;;) {
        for (RankState& state : ranks_) {
            if (state.stage == Stage::kIdle) open(&state);
        }
        const RankState* own = find(rank);
        if (own->stage == Stage::kIdle && own->running == 0 && !rank->has_launch()) return;
        step_once();
    }
}

StepperExecutor::StepperExecutor(std::shared_ptr<Stepper> stepper, CpuRank* rank)
    : stepper_(std::move(stepper)), rank_(rank) {
    stepper_->add(rank_);
}

StepperExecutor::~StepperExecutor() { stepper_->remove(rank_); }

}  // namespace gcmoe::cpu
