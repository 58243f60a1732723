#include "run_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/math.hpp"
#include "gcmoe/capability.hpp"
#include "gcmoe/stall_report.hpp"
#include "group/group_state.hpp"
#include "numerics/bits.hpp"
#include "numerics/hash.hpp"
#include "op/readback.hpp"
#include "reference/case_inputs.hpp"

namespace gcmoe::cli {
namespace {

constexpr int kChunk = 128;
// Experts kept between packing, reference and judge: a fifth of V4.1-Flash.
constexpr std::uint64_t kCacheBytes = std::uint64_t{2} << 30;

// Rows up to the common capacity: zeros and unused slots.
void widen(const Shape& shape, int capacity, RankInputs* inputs) {
    inputs->capacity = capacity;
    const std::size_t rows = size_of(capacity);
    inputs->x.resize(rows * size_of(shape.hidden), 0);
    inputs->x_scale.resize(rows * size_of(shape.hidden / kChunk), 0);
    inputs->topk_idx.resize(rows * size_of(shape.topk), -1);
    inputs->topk_weight.resize(rows * size_of(shape.topk), 0.0F);
}

// The capacity of the buffers for so many tokens of a rank, if the backend can run the layer with
// it.
Status choose_capacity(const RunOptions& options, int most_tokens, LayerRun* run) {
    if (options.capacity > 0 && most_tokens > options.capacity) {
        return option_error("--capacity", std::to_string(options.capacity),
                            fmt::format("is below the {} tokens of a rank", most_tokens));
    }
    run->capacity = options.capacity > 0 ? options.capacity : std::max(1, most_tokens);
    return name_option(capability(run->layer.shape, operator_options(options, run->capacity)));
}

Status generate_inputs(const RunOptions& options, LayerRun* run) {
    reference::SuiteCase suite_case;
    GCMOE_RETURN_IF_ERROR(make_case(options, run->layer, &suite_case));
    GCMOE_RETURN_IF_ERROR(choose_capacity(options, suite_case.capacity, run));
    const Status status = reference::make_all_inputs(suite_case, reference::CaseSize::kFull,
                                                     run->layer.shape, &run->inputs);
    if (!status.ok()) {
        return option_error("--routing", options.routing.value_or("uniform"), status.message());
    }
    return {};
}

Status read_inputs(const RunOptions& options, LayerRun* run) {
    GCMOE_RETURN_IF_ERROR(
        load_inputs(options.inputs_path, run->layer.shape, run->layer.hidden, &run->inputs));
    int most = 0;
    for (const RankInputs& inputs : run->inputs) most = std::max(most, inputs.num_tokens);
    return choose_capacity(options, most, run);
}

Status check_present(const RunOptions& options, const LayerRun& run) {
    const std::vector<int>& present = run.layer.present_experts;
    if (present.empty()) return {};
    for (const int expert : run.touched) {
        if (std::binary_search(present.begin(), present.end(), expert)) continue;
        const bool is_packed = !options.packed.empty();
        return option_error(
            is_packed ? "--packed" : "--checkpoint",
            is_packed ? options.packed.front() : options.layer.checkpoint,
            fmt::format("holds {} of {} experts and not expert {}, which a token is routed to; "
                        "give --inputs that stay within it",
                        present.size(), run.layer.shape.num_experts, expert));
    }
    return {};
}

void count_slots(LayerRun* run) {
    const Shape& shape = run->layer.shape;
    std::set<int> touched;
    for (const RankInputs& inputs : run->inputs) {
        run->num_tokens += inputs.num_tokens;
        run->num_slots += reference::num_live_slots(shape, inputs);
        for (std::size_t slot = 0; slot < size_of(inputs.num_tokens) * size_of(shape.topk);
             ++slot) {
            const std::int64_t id = inputs.topk_idx[slot];
            if (reference::slot_is_live(shape, id)) touched.insert(static_cast<int>(id));
        }
    }
    run->touched.assign(touched.begin(), touched.end());
    const auto weights =
        3 * static_cast<std::uint64_t>(shape.hidden) * static_cast<std::uint64_t>(shape.inter);
    run->touched_bytes = run->touched.size() * (weights / 2 + weights / 32);
}

void add_report(const PackReport& part, PackReport* sum) {
    sum->num_experts += part.num_experts;
    sum->packed_bytes += part.packed_bytes;
    sum->num_row_form += part.num_row_form;
    sum->num_chunk_form += part.num_chunk_form;
    sum->num_changed_values += part.num_changed_values;
    sum->worst_change = std::max(sum->worst_change, part.worst_change);
}

// Null: the ranks are no processes, or have not met.
group::HostSession* host_session(const LayerRun& run) {
    return run.group == nullptr ? nullptr : run.group->state().host.get();
}

// Of everything in the inputs that decides y: weights of unused slots do not.
std::uint64_t hash_inputs(const LayerRun& run) {
    const Shape& shape = run.layer.shape;
    std::uint64_t hash = 0;
    const auto add = [&hash](const auto& values, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            hash = numerics::hash_combine(hash, static_cast<std::uint64_t>(values[i]));
        }
    };
    for (const RankInputs& inputs : run.inputs) {
        const std::size_t rows = size_of(inputs.num_tokens);
        const std::size_t slots = rows * size_of(shape.topk);
        add(inputs.x, rows * size_of(shape.hidden));
        add(inputs.x_scale, rows * size_of(shape.hidden / kChunk));
        add(inputs.topk_idx, slots);
        for (std::size_t slot = 0; slot < slots; ++slot) {
            if (!reference::slot_is_live(shape, inputs.topk_idx[slot])) continue;
            hash = numerics::hash_combine(hash, numerics::float_to_bits(inputs.topk_weight[slot]));
        }
        hash = numerics::hash_combine(hash, rows);
    }
    return hash;
}

// Ranks as processes: what they must have in common beyond what the operator compares. Where each
// has its checkpoint or packed files does not count, what is in them does.
Status meet_before_launches(const RunOptions& options, const LayerRun& run) {
    group::HostSession* session = host_session(run);
    checkpoint::LayerIdentity identity;
    GCMOE_RETURN_IF_ERROR(or_decline(session, [&] { return run.layer.identify(&identity); }));
    const Shape& shape = run.layer.shape;
    return meet_ranks("session",
                      {{"layer", std::to_string(identity.layer_idx)},
                       {"hidden", std::to_string(shape.hidden)},
                       {"inter", std::to_string(shape.inter)},
                       {"num_experts", std::to_string(shape.num_experts)},
                       {"shared_inter", std::to_string(shape.shared_inter)},
                       {"fingerprint of the weights", fmt::format("{:016x}", identity.fingerprint)},
                       {"quantize", options.layer.quantize.value_or("no")},
                       {"ranks", std::to_string(shape.num_ranks)},
                       {"tokens and routing", fmt::format("{:016x}", hash_inputs(run))},
                       {"launches", std::to_string(options.launches)},
                       {"verify", options.no_verify ? "no" : "yes"}},
                      session);
}

Status create_operators(const RunOptions& options, LayerRun* run) {
    const Shape& shape = run->layer.shape;
    const OperatorOptions op_options = operator_options(options, run->capacity);
    if (options.processes.is_rank()) {
        GCMOE_RETURN_IF_ERROR(meet_before_launches(options, *run));
    } else {
        GCMOE_RETURN_IF_ERROR(
            Group::in_process(shape.num_ranks, group_options(options), &run->group));
    }
    run->ops.resize(size_of(shape.num_ranks));
    for (const int rank : run->own_ranks) {
        std::unique_ptr<Operator> op;
        GCMOE_RETURN_IF_ERROR(Operator::create(shape, run->weights[size_of(rank)], run->group, rank,
                                               op_options, &op));
        const RankInputs& inputs = run->inputs[size_of(rank)];
        GCMOE_RETURN_IF_ERROR(
            op->write_inputs({inputs.num_tokens, inputs.x.data(), inputs.x_scale.data(),
                              inputs.topk_idx.data(), inputs.topk_weight.data()}));
        GCMOE_RETURN_IF_ERROR(op->check_inputs(inputs.num_tokens));
        run->ops[size_of(rank)] = std::move(op);
    }
    return {};
}

// The first failure that a rank found by itself; ranks that only follow a peer say less.
Status synchronize_all(LayerRun* run) {
    Status first;
    bool first_follows = false;
    for (const int rank : run->own_ranks) {
        Operator* op = run->ops[size_of(rank)].get();
        Status status = op->synchronize();
        if (status.ok()) continue;
        const bool follows =
            status.code() == Code::kStalled && op->stall_report().cause == StallCause::kPeerFault;
        if (first.ok() || (first_follows && !follows)) {
            first = std::move(status);
            first_follows = follows;
        }
    }
    return first;
}

Status launch_once(LayerRun* run, std::vector<RankOutput>* outputs) {
    const auto begin = std::chrono::steady_clock::now();
    Status launched;
    for (const int rank : run->own_ranks) {
        RankOutput& output = (*outputs)[size_of(rank)];
        LaunchArgs args;
        args.num_tokens = output.num_tokens;
        args.y = output.y.data();
        launched = run->ops[size_of(rank)]->launch(args);
        if (!launched.ok()) break;
    }
    const Status finished = synchronize_all(run);
    GCMOE_RETURN_IF_ERROR(launched);
    GCMOE_RETURN_IF_ERROR(finished);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    run->launch_s = seconds.count();
    return {};
}

std::vector<RankOutput> empty_outputs(const LayerRun& run) {
    constexpr std::uint16_t kNan = 0xFFFF;  // what a launch leaves unwritten shows
    std::vector<RankOutput> outputs;
    for (const RankInputs& inputs : run.inputs) {
        const std::size_t elements =
            size_of(std::max(inputs.num_tokens, 1)) * size_of(run.layer.shape.hidden);
        outputs.push_back({inputs.num_tokens, std::vector<std::uint16_t>(elements, kNan)});
    }
    return outputs;
}

// "rank 2, token 0, column 17: ..." of the first element that differs, or empty.
std::string find_difference(const LayerRun& run, int launch,
                            const std::vector<RankOutput>& outputs) {
    const std::size_t hidden = size_of(run.layer.shape.hidden);
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        const std::vector<std::uint16_t>& first = run.outputs[rank].y;
        const std::vector<std::uint16_t>& now = outputs[rank].y;
        for (std::size_t i = 0; i < first.size(); ++i) {
            if (first[i] == now[i]) continue;
            return fmt::format(
                "launch {} gives {:#06x} at rank {}, token {}, column {}, launch 1 gave {:#06x}",
                launch, now[i], rank, i / hidden, i % hidden, first[i]);
        }
    }
    return {};
}

Status choose_layer(const RunOptions& options, LayerRun* run) {
    int num_ranks = 0;
    if (options.packed.empty()) {
        GCMOE_RETURN_IF_ERROR(count_ranks(options, &num_ranks));
        return open_layer(options.layer, num_ranks, &run->layer);
    }
    GCMOE_RETURN_IF_ERROR(open_packed_files(options.packed, &run->packed_files));
    num_ranks = static_cast<int>(run->packed_files.size());
    if (options.ranks.value_or(num_ranks) != num_ranks) {
        return option_error("--ranks", std::to_string(*options.ranks),
                            fmt::format("the packed files are for {}", num_ranks));
    }
    use_packed_layer(run->packed_files, &run->layer);
    return {};
}

Status load_packed(const RunOptions& options, LayerRun* run) {
    ProgressBar bar("loading packed files", run->own_ranks.size(), options.console.progress);
    run->weights.resize(run->packed_files.size());
    for (const int rank : run->own_ranks) {
        const auto& file = run->packed_files[size_of(rank)];
        const Status status = file->load(&run->weights[size_of(rank)]);
        if (!status.ok()) {
            return {status.code(),
                    option_error("--packed", file->path(), status.message()).message()};
        }
        run->packed.num_experts += static_cast<int>(file->experts().size());
        run->packed.packed_bytes += static_cast<std::int64_t>(file->num_bytes());
        bar.advance();
    }
    return {};
}

Status pack_source(const RunOptions& options, LayerRun* run) {
    const Shape& shape = run->layer.shape;
    PackOptions pack_options;
    pack_options.allow_inexact = options.allow_inexact;
    pack_options.only_experts = run->touched;
    if (run->touched.empty()) {  // an empty list would mean all of them
        const std::vector<int>& present = run->layer.present_experts;
        pack_options.only_experts = {present.empty() ? 0 : present.front()};
    }
    ProgressBar bar("packing experts", pack_options.only_experts.size(), options.console.progress);
    run->source->on_expert([&bar] { bar.advance(); });
    Status status;
    run->weights.resize(size_of(shape.num_ranks));
    for (const int rank : run->own_ranks) {
        PackReport report;
        status = PackedWeights::pack(*run->source, shape, rank, pack_options,
                                     &run->weights[size_of(rank)], &report);
        if (!status.ok()) break;
        add_report(report, &run->packed);
    }
    run->source->on_expert({});
    if (status.code() == Code::kInexact) {
        return {status.code(), status.message() + " (--allow-inexact rounds and counts)"};
    }
    return status;
}

}  // namespace

reference::RankOutputs own_stages(const Shape& shape, const RankOutput& output, Operator* op) {
    const Readback memory = readback(*op);
    const layout::LocalMemory& local = memory.local;
    reference::RankOutputs stages;
    stages.max_tokens = static_cast<int>(memory.heap.max_tokens);
    stages.act = memory.local_base + local.capture_act;
    stages.act_scale =
        reinterpret_cast<const std::uint32_t*>(memory.local_base + local.capture_act_scale);
    stages.combine = memory.heap_base + memory.heap.combine;
    stages.combine_stride = memory.heap.combine_stride;
    stages.y = output.y.data();
    stages.y_stride = static_cast<std::uint64_t>(shape.hidden);
    if (shape.shared_inter > 0) {
        stages.shared_act = memory.local_base + local.shared_act;
        stages.shared_act_scale =
            reinterpret_cast<const std::uint32_t*>(memory.local_base + local.shared_act_scale);
        stages.shared_row =
            reinterpret_cast<const std::uint16_t*>(memory.local_base + local.shared_row);
    }
    return stages;
}

Status prepare_inputs(const RunOptions& options, LayerRun* run) {
    GCMOE_RETURN_IF_ERROR(choose_layer(options, run));
    run->source = std::make_unique<CachedSource>(run->layer.source.get(), kCacheBytes);
    GCMOE_RETURN_IF_ERROR(options.inputs_path.empty() ? generate_inputs(options, run)
                                                      : read_inputs(options, run));
    for (RankInputs& inputs : run->inputs) widen(run->layer.shape, run->capacity, &inputs);
    count_slots(run);
    const int num_ranks = run->layer.shape.num_ranks;
    if (options.processes.is_rank()) {
        run->own_ranks = {*options.processes.rank};
        GCMOE_RETURN_IF_ERROR(
            join_processes(options.processes, num_ranks, options.deadline_s, &run->group));
    } else {
        for (int rank = 0; rank < num_ranks; ++rank) run->own_ranks.push_back(rank);
    }
    return or_decline(host_session(*run), [&] { return check_present(options, *run); });
}

Status pack_weights(const RunOptions& options, LayerRun* run) {
    return or_decline(host_session(*run), [&] {
        return run->packed_files.empty() ? pack_source(options, run) : load_packed(options, run);
    });
}

Status launch_layer(const RunOptions& options, LayerRun* run) {
    GCMOE_RETURN_IF_ERROR(create_operators(options, run));
    ProgressBar bar("launches", static_cast<std::uint64_t>(options.launches),
                    options.console.progress);
    run->outputs = empty_outputs(*run);
    GCMOE_RETURN_IF_ERROR(launch_once(run, &run->outputs));
    bar.advance();
    for (int launch = 2; launch <= options.launches && run->difference.empty(); ++launch) {
        std::vector<RankOutput> outputs = empty_outputs(*run);
        GCMOE_RETURN_IF_ERROR(launch_once(run, &outputs));
        run->difference = find_difference(*run, launch, outputs);
        bar.advance();
    }
    run->statistics.resize(run->ops.size());
    for (const int rank : run->own_ranks) {
        run->statistics[size_of(rank)] = run->ops[size_of(rank)]->statistics();
    }
    return {};
}

Status gather_ranks(const RunOptions& options, LayerRun* run) {
    if (!options.processes.is_rank()) return {};
    const int rank = run->own_ranks.front();
    const RankOutput& output = run->outputs[size_of(rank)];
    RankResult own;
    own.statistics = run->statistics[size_of(rank)];
    own.packed = run->packed;
    own.launch_s = run->launch_s;
    own.difference = run->difference;
    if (!options.no_verify) {
        own.stages =
            copy_stages(run->layer.shape, output.num_tokens,
                        own_stages(run->layer.shape, output, run->ops[size_of(rank)].get()));
    } else {
        own.stages.num_tokens = output.num_tokens;
        own.stages.y = output.y;
    }
    std::vector<RankResult> all;
    const auto check = [&](int peer, const RankResult& result) {
        return check_sizes(
            run->layer.shape,
            {run->capacity, run->inputs[size_of(peer)].num_tokens, !options.no_verify, true},
            result);
    };
    GCMOE_RETURN_IF_ERROR(gather_results(std::move(own), check, host_session(*run), &all));
    run->gathered.resize(run->ops.size());
    for (std::size_t peer = 1; peer < all.size(); ++peer) {
        RankResult& result = all[peer];
        std::copy(result.stages.y.begin(), result.stages.y.end(), run->outputs[peer].y.begin());
        run->gathered[peer] = std::move(result.stages);
        run->statistics[peer] = std::move(result.statistics);
        add_report(result.packed, &run->packed);
        run->launch_s = std::max(run->launch_s, result.launch_s);
        if (run->difference.empty()) run->difference = result.difference;
    }
    return {};
}

}  // namespace gcmoe::cli
