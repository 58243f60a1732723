#include "process_layer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "group/group_state.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe::test {
namespace {

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

int tokens_of(int rank, std::uint64_t seed) {
    if (seed >= kFullSeed) return kCapacity;
    return static_cast<int>((static_cast<std::uint64_t>(rank) * 3 + seed) % (kCapacity + 1));
}

}  // namespace

Shape process_shape(int num_ranks) {
    Shape shape = small_shape(num_ranks, 128);
    shape.num_experts = num_ranks > 12 ? num_ranks : 24;
    return shape;
}

OperatorOptions process_options(double steady_s) {
    OperatorOptions options;
    options.max_tokens = kCapacity;
    options.poison = true;
    options.wait_limits = {30.0, steady_s};
    PlanOptions plan;
    plan.row_block = 8;
    plan.ring_blocks = 2;
    plan.partition = {1, 2};
    options.plans = {plan};
    return options;
}

std::vector<reference::RankInputs> process_inputs(const Shape& shape, std::uint64_t seed) {
    std::vector<reference::RankInputs> inputs;
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        inputs.push_back(
            stream_inputs(shape, seed, 100 * rank, tokens_of(rank, seed), kCapacity, 0.1));
    }
    return inputs;
}

std::vector<std::vector<std::uint16_t>> bits_on_threads(const Shape& shape, std::uint64_t seed) {
    VirtualLayer layer(shape, {}, process_options());
    return layer.run(process_inputs(shape, seed));
}

void pack_before_fork(const Shape& shape) { (void)packed_layer(shape); }

RankSide::RankSide(const Shape& shape, int rank, std::string session)
    : shape_(shape), rank_(rank), session_(std::move(session)) {}

Status RankSide::join() {
    HostOptions host;
    host.session = session_;
    host.rank = rank_;
    host.num_ranks = shape_.num_ranks;
    host.wait_s = meet_s;
    host.replaces_lost = replaces_lost;
    return Group::join_host(host, &group_);
}

Status RankSide::create() {
    if (prepare) prepare(group_.get());
    return Operator::create(shape_, packed_layer(shape_)[static_cast<std::size_t>(rank_)], group_,
                            rank_, options, &op_);
}

Status RankSide::launch(std::uint64_t seed, std::function<int()> before) {
    const reference::RankInputs inputs =
        process_inputs(shape_, seed)[static_cast<std::size_t>(rank_)];
    stage_inputs(op_.get(), options.index_type, shape_, inputs);
    live_ = static_cast<std::size_t>(inputs.num_tokens) * static_cast<std::size_t>(shape_.hidden);
    y_.assign(live_ + 1, 0xFFFF);
    LaunchArgs args;
    args.num_tokens = inputs.num_tokens;
    args.y = y_.data();
    args.before = std::move(before);
    launched_at_ = now_s();
    return op_->launch(args);
}

Status RankSide::finish(Outcome* outcome) {
    const Status status = op_->synchronize();
    outcome->set(status);
    outcome->session = op_->statistics().session;
    if (status.ok()) {
        outcome->y.assign(y_.begin(), y_.begin() + static_cast<std::ptrdiff_t>(live_));
    } else {
        outcome->stall_s = now_s() - launched_at_;
        outcome->report = op_->stall_report();
    }
    return status;
}

Status RankSide::run(std::uint64_t seed, Outcome* outcome) {
    Status status = join();
    if (status.ok()) status = create();
    if (status.ok()) status = launch(seed);
    if (status.ok()) status = finish(outcome);
    outcome->set(status);
    return status;
}

void RankSide::leave() {
    op_.reset();
    group_.reset();
}

}  // namespace gcmoe::test
