#include "protocol/mutant_layer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cpu/executor_stepper.hpp"
#include "group/group_state.hpp"
#include "op/operator_state.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe::test {
namespace {

constexpr std::uint16_t kNotWritten = 0xFFFF;

Shape shape_of(const Scenario& scenario, int num_ranks) {
    Shape shape;
    shape.hidden = scenario.hidden;
    shape.inter = scenario.inter;
    shape.shared_inter = scenario.shared_inter;
    shape.num_experts = scenario.num_experts;
    shape.topk = scenario.topk;
    shape.num_ranks = num_ranks;
    return shape;
}

int total_of(const std::vector<int>& tokens) {
    return std::accumulate(tokens.begin(), tokens.end(), 0);
}

PlanOptions plan_of(const Scenario& scenario) {
    PlanOptions plan;
    plan.row_block = scenario.row_block;
    plan.ring_blocks = scenario.ring_blocks;
    plan.second_columns = scenario.second_columns;
    plan.partition = scenario.partition;
    plan.combine = scenario.combine;
    return plan;
}

}  // namespace

Prepared::Prepared(Scenario scenario) : scenario_(std::move(scenario)) {
    shape_ = shape_of(scenario_, scenario_.num_ranks);
    for (const auto& tokens : scenario_.tokens) {
        options_.max_tokens =
            std::max(options_.max_tokens, *std::max_element(tokens.begin(), tokens.end()));
    }
    options_.plans = {plan_of(scenario_)};
    options_.start = scenario_.start;
    options_.wait_limits = scenario_.limits;
    for (int launch = 0; launch < scenario_.num_launches; ++launch) {
        const auto& tokens =
            scenario_.tokens[static_cast<std::size_t>(launch) % scenario_.tokens.size()];
        inputs_.emplace_back();
        int first = 0;
        for (const int num_tokens : tokens) {
            inputs_.back().push_back(stream_inputs(shape_, static_cast<std::uint64_t>(launch) + 1,
                                                   first, num_tokens, options_.max_tokens,
                                                   scenario_.mask));
            first += num_tokens;
        }
    }
    expect();
}

void Prepared::expect() {
    const Shape alone = shape_of(scenario_, 1);
    OperatorOptions options;
    for (const auto& tokens : scenario_.tokens) {
        options.max_tokens = std::max({options.max_tokens, total_of(tokens), 1});
    }
    VirtualLayer layer(alone, {}, options);
    for (int launch = 0; launch < scenario_.num_launches; ++launch) {
        const int total =
            total_of(scenario_.tokens[static_cast<std::size_t>(launch) % scenario_.tokens.size()]);
        const auto inputs = stream_inputs(alone, static_cast<std::uint64_t>(launch) + 1, 0, total,
                                          options.max_tokens, scenario_.mask);
        expected_.push_back(layer.run({inputs}).front());
    }
}

MutantLayer::MutantLayer(const Prepared& prepared, std::uint64_t seed) : prepared_(prepared) {
    const Scenario& scenario = prepared.scenario();
    GroupOptions options;
    options.executor = ExecutorKind::kStepper;
    options.seed = seed;
    options.resident_compute_units = scenario.resident;
    EXPECT_TRUE(Group::in_process(scenario.num_ranks, options, &group_).ok());
    group_->state().executor = std::make_shared<cpu::Stepper>(options, scenario.roles);
    ops_.resize(static_cast<std::size_t>(scenario.num_ranks));
    queued_.resize(ops_.size());
    for (int rank = 0; rank < scenario.num_ranks; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        const Status status = Operator::create(prepared.shape(), packed_layer(prepared.shape())[r],
                                               group_, rank, prepared.options(), &ops_[r]);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    y_.resize(static_cast<std::size_t>(scenario.num_launches));
    for (std::size_t l = 0; l < y_.size(); ++l) {
        for (int rank = 0; rank < scenario.num_ranks; ++rank) {
            const auto tokens = prepared.inputs(static_cast<int>(l), rank).num_tokens;
            y_[l].emplace_back(static_cast<std::size_t>(tokens * scenario.hidden), kNotWritten);
            y_[l].back().reserve(1);  // a rank without tokens still hands over an address
        }
    }
}

MutantLayer::~MutantLayer() { finish(); }

void MutantLayer::queue(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const int launch = queued_[r]++;
    const reference::RankInputs& inputs = prepared_.inputs(launch, rank);
    LaunchArgs args;
    args.num_tokens = inputs.num_tokens;
    args.y = y_[static_cast<std::size_t>(launch)][r].data();
    args.before = [this, rank, launch, &inputs] {
        stage_inputs(&op(rank), prepared_.options().index_type, prepared_.shape(), inputs);
        if (prepared_.scenario().before) prepared_.scenario().before(rank, launch, memory(rank));
        return inputs.num_tokens;
    };
    const Status status = ops_[r]->launch(args);
    EXPECT_TRUE(status.ok()) << status.message();
}

void MutantLayer::queue_all() {
    for (int rank = 0; rank < prepared_.scenario().num_ranks; ++rank) queue(rank);
}

bool MutantLayer::finish() {
    bool finished = true;
    for (auto& op : ops_) finished = op->synchronize().ok() && finished;
    return finished;
}

std::vector<Operator*> MutantLayer::all() {
    std::vector<Operator*> all;
    for (auto& op : ops_) all.push_back(op.get());
    return all;
}

layout::RankMemory MutantLayer::memory(int rank) { return op(rank).state().backend->memory(0); }

std::vector<std::uint16_t> MutantLayer::rows(int launch) const {
    return join_rows(y_[static_cast<std::size_t>(launch)]);
}

int MutantLayer::first_wrong() const {
    for (int launch = 0; launch < prepared_.scenario().num_launches; ++launch) {
        if (rows(launch) != prepared_.expected()[static_cast<std::size_t>(launch)]) return launch;
    }
    return -1;
}

bool Outcome::stalled() const {
    return std::any_of(reports.begin(), reports.end(),
                       [](const StallReport& report) { return report.cause != StallCause::kNone; });
}

bool Outcome::has(StallCause cause, Signal signal) const {
    return std::any_of(reports.begin(), reports.end(), [=](const StallReport& report) {
        return report.cause == cause && report.signal == signal;
    });
}

std::string Outcome::text() const {
    std::string text =
        first_wrong < 0 ? "right bits" : fmt::format("wrong bits from launch {}", first_wrong);
    for (const StallReport& report : reports) {
        if (report.cause != StallCause::kNone) text += "; " + describe(report);
    }
    return text;
}

Outcome run_mutant(const Prepared& prepared, protocol::Rule removed, std::uint64_t seed) {
    mutant_control().set(removed, seed);
    Outcome outcome;
    {
        MutantLayer layer(prepared, seed);
        if (prepared.scenario().arm) prepared.scenario().arm(layer);
        for (int i = 0; i < prepared.scenario().num_launches; ++i) layer.queue_all();
        layer.finish();
        for (Operator* op : layer.all()) outcome.reports.push_back(op->stall_report());
        outcome.first_wrong = layer.first_wrong();
    }
    mutant_control().set(protocol::Rule::kCount, 0);
    return outcome;
}

}  // namespace gcmoe::test
