#include "check_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "check_changes.hpp"
#include "check_expected.hpp"
#include "check_parts.hpp"
#include "check_processes.hpp"
#include "op/readback.hpp"
#include "reference/case_inputs.hpp"
#include "reference/dispatch_oracle.hpp"

namespace gcmoe::cli {
namespace {

using reference::RankInputs;
using reference::SuiteCase;
using Clock = std::chrono::steady_clock;

constexpr int kRowBlocks[] = {8, 16, 32, 64};
constexpr std::uint16_t kUnwritten = 0xFFFF;  // a NaN

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

reference::CaseSize case_size(const CheckOptions& options) {
    const bool full = options.size.empty() ? options.backend != "cpu" : options.size == "full";
    return full ? reference::CaseSize::kFull : reference::CaseSize::kReduced;
}

int most_loaded_blocks(const CaseRun& run, int row_block) {
    int most = 0;
    for (int rank = 0; rank < run.shape.num_ranks; ++rank) {
        most =
            std::max(most, reference::num_blocks_of_rank(run.shape, run.inputs, rank, row_block));
    }
    return most;
}

// The largest power of two that is at most a quarter of the blocks; 2 for a handful.
int ring_for(int blocks) {
    if (blocks < 8) return 2;
    return static_cast<int>(std::bit_floor(static_cast<unsigned>(blocks / 4)));
}

// Counters that a running system would have reached shortly before they wrap: the generation wraps
// in the second launch, the lap (32 bits) a few blocks into the first.
StartState start_state(const CheckOptions& options, int ring_blocks) {
    StartState start;
    if (!options.near_wrap) return start;
    start.generation = 0xFFFFFFFEU;
    start.session = 0x1FF;  // more than the 8 bits of a count word
    start.s0 = (std::uint64_t{1} << 32) * static_cast<std::uint64_t>(ring_blocks) - 3;
    start.rows_left = 0xFFFFFFF0U;
    start.ticket = ~std::uint64_t{0} - 5;
    return start;
}

void choose_plan(const CheckOptions& options, int case_idx, CaseRun* run, CaseReport* report) {
    PlanOptions& plan = run->plan;
    plan.row_block = options.row_block.value_or(kRowBlocks[case_idx % 4]);
    // Where a large row block leaves less than eight blocks, the ring would never wrap.
    while (!options.row_block.has_value() && plan.row_block > 8 &&
           most_loaded_blocks(*run, plan.row_block) < 8) {
        plan.row_block /= 2;
    }
    report->num_blocks = most_loaded_blocks(*run, plan.row_block);
    plan.ring_blocks = options.ring_blocks.value_or(ring_for(report->num_blocks));
    // Serial launches pull everything before role 2 starts, too.
    const bool whole = options.no_overlap || options.gpu.launch == "serial";
    if (whole && !options.ring_blocks.has_value()) plan.ring_blocks = 0;  // as many as needed
    const bool wide = case_idx / 4 % 2 == 1 && run->shape.hidden % 256 == 0;
    plan.second_columns = wide || options.backend == "cuda" ? 256 : 128;
    plan.overlap = !whole;
    plan.partition = {options.dispatch_units, options.compute_units};
    plan.tuned = options.tuned;
    run->start = start_state(options, plan.ring_blocks);
    report->row_block = plan.row_block;
}

void count_inputs(const CaseRun& run, CaseReport* report) {
    std::set<std::int64_t> touched;
    for (const RankInputs& inputs : run.inputs) {
        report->num_tokens += inputs.num_tokens;
        report->num_slots += reference::num_live_slots(run.shape, inputs);
        for (int token = 0; token < inputs.num_tokens; ++token) {
            for (int slot = 0; slot < run.shape.topk; ++slot) {
                const auto id = reference::expert_of(run.shape, inputs, token, slot);
                if (reference::slot_is_live(run.shape, id)) touched.insert(id);
            }
        }
    }
    report->num_experts = static_cast<int>(touched.size());
}

// All rows of the buffers, those past the tokens too.
Status stage_inputs(const RankInputs& inputs, Operator* op) {
    return op->write_inputs({inputs.capacity, inputs.x.data(), inputs.x_scale.data(),
                             inputs.topk_idx.data(), inputs.topk_weight.data()});
}

Status create_operators(const CheckOptions& options, CaseRun* run) {
    GroupOptions group_options;
    const bool stepper = options.executor == "stepper";
    group_options.executor = stepper ? ExecutorKind::kStepper : ExecutorKind::kThreads;
    group_options.seed = options.seed;
    if (run->group == nullptr) {
        GCMOE_RETURN_IF_ERROR(Group::in_process(run->shape.num_ranks, group_options, &run->group));
    }
    OperatorOptions op_options;
    op_options.workspace = "check";
    op_options.backend = options.backend;
    op_options.device = options.gpu.device;
    GCMOE_RETURN_IF_ERROR(parse_launch_mode(options.gpu, &op_options.launch_mode));
    op_options.max_tokens = run->suite_case.capacity;
    op_options.plans = {run->plan};
    GCMOE_RETURN_IF_ERROR(
        parse_shared_experts(options.gpu, &op_options.plans.front().shared_experts));
    GCMOE_RETURN_IF_ERROR(parse_combine(options.gpu, &op_options.plans.front().combine));
    GCMOE_RETURN_IF_ERROR(parse_placement(options.gpu, &op_options.plans.front().placement));
    op_options.wait_limits = {options.deadline_s, options.deadline_s};
    op_options.capture = true;
    op_options.poison = run->suite_case.poison;
    op_options.start = run->start;
    run->ops.resize(size_of(run->shape.num_ranks));
    for (const std::size_t rank : run->own_ranks) {
        GCMOE_RETURN_IF_ERROR(Operator::create(run->shape, run->weights->packed[rank], run->group,
                                               static_cast<int>(rank), op_options,
                                               &run->ops[rank]));
        GCMOE_RETURN_IF_ERROR(stage_inputs(run->inputs[rank], run->ops[rank].get()));
    }
    return {};
}

// One launch of all ranks. Failed calls are the ranks' failures; false = nothing to judge.
bool launch_all(int launch, CaseRun* run, CaseReport* report) {
    bool finished = true;
    run->y[launch].resize(run->ops.size());
    for (const std::size_t rank : run->own_ranks) {
        std::vector<std::uint16_t>& y = run->y[launch][rank];
        const int num_tokens = run->inputs[rank].num_tokens;
        y.assign(size_of(std::max(num_tokens, 1)) * size_of(run->shape.hidden), kUnwritten);
        LaunchArgs args;
        args.num_tokens = num_tokens;
        args.y = y.data();
        const Status status = run->ops[rank]->launch(args);
        if (status.ok()) continue;
        note_failure(run, rank, fmt::format("case {}: launch: {}", report->name, status.message()));
        finished = false;
    }
    for (const std::size_t rank : run->own_ranks) {
        const Status status = run->ops[rank]->synchronize();
        if (status.ok()) continue;
        note_failure(run, rank,
                     fmt::format("case {}: {}: {}", report->name, code_name(status.code()),
                                 status.message()));
        report->stalled = report->stalled || status.code() == Code::kStalled;
        finished = false;
    }
    return finished;
}

reference::ActualMemory actual_memory(const Readback& memory) {
    return {memory.heap, memory.heap_base, memory.local, memory.local_base, memory.plan};
}

void compare_with_oracle(const reference::DispatchOracle& oracle, int launch, std::size_t rank,
                         const Readback& memory, CaseRun* run) {
    const auto difference =
        reference::find_difference(oracle, static_cast<int>(rank), actual_memory(memory));
    if (!difference) return;
    note_failure(run, rank,
                 fmt::format("case {}: rank {} launch {} dispatch: {}", run->suite_case.name, rank,
                             launch + 1, difference->text()));
}

// GPU: every role ran on the SMs of its own partition.
void compare_placement(int launch, CaseRun* run) {
    const auto text = [](const std::vector<int>& sms) {
        return fmt::format("{}", fmt::join(sms, " "));
    };
    for (const std::size_t rank : run->own_ranks) {
        const Placement placement = run->ops[rank]->statistics().placement;
        if (placement.holds()) continue;
        note_failure(
            run, rank,
            fmt::format("case {}: rank {} launch {}: role 1 ran on SMs {} of {}; role 2 on "
                        "{} of {}; role 3 on {}",
                        run->suite_case.name, rank, launch + 1, text(placement.dispatch_ran),
                        text(placement.dispatch_map), text(placement.compute_ran),
                        text(placement.compute_map), text(placement.combine_ran)));
    }
}

void compare_launches(CaseRun* run) {
    const std::size_t hidden = size_of(run->shape.hidden);
    for (const std::size_t rank : run->own_ranks) {
        const std::vector<std::uint16_t>& first = run->y[0][rank];
        const std::vector<std::uint16_t>& second = run->y[1][rank];
        for (std::size_t i = 0; i < first.size(); ++i) {
            if (first[i] == second[i]) continue;
            note_failure(run, rank,
                         fmt::format("case {}: rank {} token {} column {}: {:#06x} in the first "
                                     "launch, {:#06x} in the second",
                                     run->suite_case.name, rank, i / hidden, i % hidden, first[i],
                                     second[i]));
            break;
        }
    }
}

// Before a launch, 0xFF (NaN) over everything that the launch must write before it reads: combine
// rows always, the ring's data in poisoned cases.
void poison_memory(const CaseRun& run) {
    using backend::Room;
    for (const std::size_t rank : run.own_ranks) {
        Operator* op = run.ops[rank].get();
        const OperatorState& state = op->state();
        const layout::LocalMemory& local = state.local;
        const layout::PlanMemory& plan = state.plans.front().memory;
        fill_room(*op, Room::kHeap, state.heap.combine, 0xFF,
                  state.heap.max_slots() * state.heap.combine_stride);
        if (!run.suite_case.poison) continue;
        const std::uint64_t rows = std::uint64_t{plan.ring_blocks} * plan.row_block;
        const auto fill = [&](std::uint64_t offset, std::uint64_t row_bytes) {
            fill_room(*op, Room::kLocal, offset, 0xFF, rows * row_bytes);
        };
        const auto hidden = static_cast<std::uint64_t>(run.shape.hidden);
        const auto inter = static_cast<std::uint64_t>(run.shape.inter);
        fill(local.ring_x, hidden);
        fill(local.ring_x_scale, hidden / 128 * 4);
        fill(local.ring_origin, sizeof(layout::Origin));
        fill(local.ring_act, inter);
        fill(local.ring_act_scale, inter / 128 * 4);
        fill(local.act_origin, sizeof(layout::Origin));
    }
}

// Nobody may have stored into combine rows of unused slots, or past the tokens.
void compare_unused_rows(std::size_t rank, const Readback& memory, CaseRun* run) {
    const auto topk = static_cast<std::uint64_t>(run->shape.topk);
    for (std::uint64_t slot = 0; slot < memory.heap.max_slots(); ++slot) {
        if (!slot_is_unused(run->shape, run->inputs[rank], slot)) continue;
        const std::uint16_t* row = memory.heap.combine_row(memory.heap_base, slot);
        const auto is_untouched = [](std::uint16_t bits) { return bits == kUnwritten; };
        if (std::all_of(row, row + run->shape.hidden, is_untouched)) continue;
        note_failure(run, rank,
                     fmt::format("case {}: rank {} token {} slot {} is unused, but somebody "
                                 "stored into its combine row",
                                 run->suite_case.name, rank, slot / topk, slot % topk));
        break;
    }
}

// One look into every rank's memory after a launch.
void compare_memory(const reference::DispatchOracle& oracle, int launch, CaseRun* run) {
    for (const std::size_t rank : run->own_ranks) {
        Operator& op = *run->ops[rank];
        RoomParts parts = dispatch_parts(op.state());
        const RoomParts rows = unused_rows(op.state(), run->inputs[rank]);
        parts.insert(parts.end(), rows.begin(), rows.end());
        const Readback memory = readback(op, std::move(parts));
        compare_with_oracle(oracle, launch, rank, memory, run);
        compare_unused_rows(rank, memory, run);
    }
}

// Both launches with their dispatch buffers. False = nothing to judge.
bool launch_and_compare(CaseRun* run, CaseReport* report) {
    const layout::PlanMemory& plan = run->ops[run->own_ranks[0]]->state().plans.front().memory;
    reference::OracleConfig config;
    config.shape = run->shape;
    config.max_tokens = run->suite_case.capacity;
    config.row_block = run->plan.row_block;
    const int ring_blocks = static_cast<int>(plan.ring_blocks);
    config.ring_blocks = run->plan.ring_blocks != 0 ? run->plan.ring_blocks : ring_blocks;
    config.second_columns = run->plan.second_columns;
    config.generation = run->start.generation;
    config.session = run->start.session;
    config.s0 = run->start.s0;
    config.rows_left = run->start.rows_left;
    report->ring_blocks = config.ring_blocks;
    reference::DispatchOracle oracle(config);
    for (int launch = 0; launch < kNumLaunches; ++launch) {
        if (!meet_before_launch(launch, run)) return false;
        poison_memory(*run);
        if (run->suite_case.poison) oracle.forget_ring();
        const Clock::time_point launch_begin = Clock::now();
        if (!launch_all(launch, run, report)) return false;
        report->launch_s += seconds_since(launch_begin);
        oracle.launch(run->inputs);
        compare_memory(oracle, launch, run);
        compare_placement(launch, run);
    }
    compare_launches(run);
    for (const std::size_t rank : run->own_ranks) {
        report->laps = std::max(report->laps, run->ops[rank]->statistics().laps);
    }
    return true;
}

// on_device: where the roles have them, not for the host to read.
reference::RankOutputs outputs_of(const CaseRun& run, std::size_t rank, bool on_device) {
    if (run.ops[rank] == nullptr) return run.gathered[rank].view(run.shape);
    Operator& op = *run.ops[rank];
    const OperatorState& state = op.state();
    const layout::LocalMemory& local = state.local;
    std::uint8_t* heap_base = state.backend->heap_base();
    std::uint8_t* local_base = state.backend->memory(state.last_plan_idx).local_base;
    if (!on_device) {
        const Readback memory = readback(op, judged_parts(state));
        heap_base = memory.heap_base;
        local_base = memory.local_base;
    }
    const auto words = [&](std::uint64_t offset) {
        return reinterpret_cast<const std::uint32_t*>(local_base + offset);
    };
    reference::RankOutputs outputs;
    outputs.max_tokens = run.suite_case.capacity;
    outputs.act = local_base + local.capture_act;
    outputs.act_scale = words(local.capture_act_scale);
    outputs.combine = heap_base + state.heap.combine;
    outputs.combine_stride = state.heap.combine_stride;
    outputs.y = run.y[kNumLaunches - 1][rank].data();
    outputs.y_stride = static_cast<std::uint64_t>(run.shape.hidden);
    if (run.shape.shared_inter > 0) {
        outputs.shared_act = local_base + local.shared_act;
        outputs.shared_act_scale = words(local.shared_act_scale);
        outputs.shared_row = reinterpret_cast<const std::uint16_t*>(local_base + local.shared_row);
    }
    return outputs;
}

Status read_given(const CheckOptions& options, const reference::Problem& problem,
                  const std::string& suite, std::vector<reference::RankExpected>* expected) {
    if (options.expected.empty()) return {};
    return read_expected(expected_path(options.expected, suite, problem.name), problem.shape,
                         *problem.inputs, expected);
}

Status dump(const CheckOptions& options, const reference::Problem& problem,
            const std::string& suite, const std::vector<reference::RankExpected>& expected) {
    if (options.dump_expected.empty()) return {};
    return write_expected(expected_path(options.dump_expected, suite, problem.name), problem.shape,
                          *problem.inputs, expected);
}

Status judge(const CheckOptions& options, CheckMachine* machine, CaseRun* run, CaseReport* report) {
    reference::Problem problem;
    problem.name = run->suite_case.name;
    problem.shape = run->shape;
    problem.weights = run->weights->source.get();
    problem.inputs = &run->inputs;
    problem.per_column = run->suite_case.per_column();
    std::vector<reference::RankExpected> expected;
    GCMOE_RETURN_IF_ERROR(read_given(options, problem, report->suite, &expected));
    std::vector<reference::RankOutputs> outputs;
    for (std::size_t rank = 0; rank < run->ops.size(); ++rank) {
        outputs.push_back(outputs_of(*run, rank, machine->judges_device_memory()));
    }
    std::vector<reference::RankJudgement> verdicts;
    const bool in_files = !options.expected.empty() || !options.dump_expected.empty();
    GCMOE_RETURN_IF_ERROR(machine->judge(problem, outputs, tolerance_of(options.backend),
                                         in_files ? &expected : nullptr, &verdicts));
    GCMOE_RETURN_IF_ERROR(dump(options, problem, report->suite, expected));
    for (std::size_t rank = 0; rank < verdicts.size(); ++rank) {
        const reference::RankJudgement& verdict = verdicts[rank];
        if (!verdict.ok) note_failure(run, rank, verdict.first_failure);
        report->worst_stage_error = std::max(report->worst_stage_error, verdict.worst_stage_error);
        report->worst_excess = std::max(report->worst_excess, verdict.worst_excess);
        report->worst_row_rms = std::max(report->worst_row_rms, verdict.worst_row_rms);
        report->worst_rel_l2 = std::max(report->worst_rel_l2, verdict.rel_l2);
        report->whole_judged = report->whole_judged && verdict.whole_judged;
        report->worst_plain_rel_l2 = std::max(report->worst_plain_rel_l2, verdict.plain_rel_l2);
        report->min_cosine = std::min(report->min_cosine, verdict.cosine);
    }
    return {};
}

// Rank 0 of ranks as processes runs the case once more, on threads: the bits must be the same.
Status compare_with_threads(const CheckOptions& options, CaseRun* run) {
    CaseRun threads;
    threads.suite_case = run->suite_case;
    threads.shape = run->shape;
    threads.weights = run->weights;
    threads.inputs = run->inputs;
    threads.plan = run->plan;
    threads.start = run->start;
    threads.failures.resize(run->failures.size());
    for (std::size_t rank = 0; rank < run->failures.size(); ++rank) {
        threads.own_ranks.push_back(rank);
    }
    GCMOE_RETURN_IF_ERROR(create_operators(options, &threads));
    CaseReport report;
    report.name = run->suite_case.name;
    launch_all(0, &threads, &report);
    for (const std::size_t rank : threads.own_ranks) {
        if (!threads.failures[rank].empty()) {
            note_failure(run, rank, "on threads: " + threads.failures[rank]);
        } else if (threads.y[0][rank] != run->y[kNumLaunches - 1][rank]) {
            note_failure(run, rank,
                         fmt::format("case {}: rank {}: y of processes and of threads differ",
                                     report.name, rank));
        }
    }
    return {};
}

void add_failures(const CaseRun& run, CaseReport* report) {
    for (const std::string& failure : run.failures) {
        if (failure.empty()) continue;
        ++report->failed_ranks;
        if (report->failure.empty()) report->failure = failure;
    }
}

}  // namespace

Status run_case(const CheckOptions& options, const std::string& suite,
                const reference::SuiteCase& suite_case, int case_idx, const CheckTools& with,
                CaseReport* report) {
    const Clock::time_point begin = Clock::now();
    *report = CaseReport{};
    report->suite = suite;
    report->name = suite_case.name;
    CaseRun run;
    run.suite_case = suite_case;
    GCMOE_RETURN_IF_ERROR(change_case(options, &run.suite_case));
    const reference::CaseSize size = case_size(options);
    run.shape = reference::case_shape(run.suite_case, size);
    if (options.activation_scale == "ue8m0-k32") {
        run.shape.activation_scale = ActivationScale::kUe8m0K32;
    }
    if (options.weight_placement == "after") {
        run.shape.weight_placement = WeightPlacement::kAfterSecondGemm;
    }
    GCMOE_RETURN_IF_ERROR(validate(run.shape));  // the inputs' generator divides experts by ranks
    run.failures.resize(size_of(run.shape.num_ranks));
    GCMOE_RETURN_IF_ERROR(choose_own_ranks(options, with, &run));
    report->rank_checks = run.shape.num_ranks;
    GCMOE_RETURN_IF_ERROR(reference::make_all_inputs(run.suite_case, size, run.shape, &run.inputs));
    count_inputs(run, report);
    choose_plan(options, case_idx, &run, report);
    GCMOE_RETURN_IF_ERROR(with.weights->find(run.suite_case, size, run.shape, &run.weights));
    GCMOE_RETURN_IF_ERROR(create_operators(options, &run));
    bool can_judge = launch_and_compare(&run, report);
    if (options.processes.is_rank()) {
        reference::RankOutputs own;
        if (can_judge) own = outputs_of(run, run.own_ranks.front(), false);
        GCMOE_RETURN_IF_ERROR(gather_case(own, &run, report, &can_judge));
        if (run.own_ranks.front() != 0) return {};
    }
    if (can_judge) GCMOE_RETURN_IF_ERROR(judge(options, with.machine, &run, report));
    if (can_judge && options.processes.is_rank()) {
        GCMOE_RETURN_IF_ERROR(compare_with_threads(options, &run));
    }
    add_failures(run, report);
    report->seconds = seconds_since(begin);
    return {};
}

}  // namespace gcmoe::cli
