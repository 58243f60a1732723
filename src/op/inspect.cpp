#include "op/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>

#include "protocol/words.hpp"

namespace gcmoe {

bool Placement::holds() const {
    const auto within = [](const std::vector<int>& ran, const std::vector<int>& map) {
        return std::all_of(ran.begin(), ran.end(), [&map](int sm) {
            return std::binary_search(map.begin(), map.end(), sm);
        });
    };
    if (dispatch_map.empty() && compute_map.empty()) {
        std::vector<int> ran;
        std::merge(dispatch_ran.begin(), dispatch_ran.end(), compute_ran.begin(), compute_ran.end(),
                   std::back_inserter(ran));
        return ran == combine_map && within(combine_ran, combine_map);
    }
    return dispatch_ran == dispatch_map && compute_ran == compute_map &&
           within(shared_ran, dispatch_map) && within(combine_ran, combine_map);
}

namespace op {
namespace {

using backend::Room;

template <class T>
T read_object(const OperatorState& state, Room room, std::uint64_t offset) {
    T object;
    state.backend->read(room, offset, &object, sizeof(object));
    return object;
}

template <class T>
std::vector<T> read_array(const OperatorState& state, Room room, std::uint64_t offset,
                          std::uint64_t count) {
    std::vector<T> array(count);
    if (count != 0) state.backend->read(room, offset, array.data(), count * sizeof(T));
    return array;
}

// The first rank whose counts of a generation have not arrived, or -1. A wait inside this rank may
// run out first; what it waited for in the end is this rank.
int missing_source(const OperatorState& state, std::uint32_t generation, std::uint32_t session) {
    const layout::SymmetricHeap& heap = state.heap;
    const std::uint64_t cells = std::uint64_t{heap.num_ranks} * heap.experts_per_rank;
    const std::uint64_t half = (generation & 1) * cells * sizeof(std::uint64_t);
    const auto words = read_array<std::uint64_t>(state, Room::kHeap, heap.recv_count + half, cells);
    for (std::size_t cell = 0; cell < words.size(); ++cell) {
        const bool arrived = protocol::generation_of(words[cell]) == generation &&
                             protocol::session8_of(words[cell]) == (session & 0xFF);
        if (!arrived) return static_cast<int>(cell / heap.experts_per_rank);
    }
    return -1;
}

// Completes a report about a peer that gave up with what its fault word says: why, at which signal
// and because of whom. It may still be on its way.
void complete_peer_fault(const OperatorState& state, StallReport* report) {
    const auto peer = static_cast<std::uint64_t>(report->peer);
    const auto first = read_object<std::uint64_t>(state, Room::kHeap,
                                                  state.heap.fault + peer * sizeof(std::uint64_t));
    if (first != 0 && protocol::generation_of(first) == report->session) report->seen = first;
    if (protocol::fault_culprit_of(report->seen) >= 0) return;
    const auto signal = static_cast<std::uint32_t>(report->seen >> 24) & 0xFF;
    report->seen =
        protocol::fault_word(report->session, protocol::fault_cause_of(report->seen), signal,
                             missing_source(state, report->generation, report->session));
}

Status check_id(const OperatorState& state,
                const std::vector<std::shared_ptr<const PackedWeights>>& weights,
                std::uint64_t slot, std::int64_t id) {
    const auto topk = static_cast<std::uint64_t>(state.shape.topk);
    const auto where = [&] {
        return fmt::format("rank {}: topk_idx = {} at token {}, slot {}", state.rank, id,
                           slot / topk, slot % topk);
    };
    if (id >= state.shape.num_experts) {
        return {Code::kBadIndex, fmt::format("{} must be below num_experts = {} (negative = unused "
                                             "slot)",
                                             where(), state.shape.num_experts)};
    }
    if (id < 0) return {};
    const auto owner = static_cast<std::size_t>(id / state.shape.experts_per_rank());
    if (weights[owner] == nullptr || weights[owner]->has_expert(static_cast<int>(id))) return {};
    return {Code::kBadInput,
            fmt::format("{} names an expert whose weights rank {} has not packed", where(), owner)};
}

// `rows` rows of `row_bytes` to places `stride` bytes apart.
void write_rows(const void* from, std::uint64_t rows, std::uint64_t row_bytes, std::uint64_t offset,
                std::uint64_t stride, OperatorState* state) {
    if (rows == 0) return;
    if (row_bytes == stride) {
        state->backend->write(Room::kHeap, offset, from, rows * row_bytes);
        return;
    }
    std::vector<std::uint8_t> spaced(rows * stride);
    for (std::uint64_t row = 0; row < rows; ++row) {
        std::memcpy(spaced.data() + row * stride,
                    static_cast<const std::uint8_t*>(from) + row * row_bytes, row_bytes);
    }
    state->backend->write(Room::kHeap, offset, spaced.data(), spaced.size());
}

Status narrow_ids(const HostInputs& from, const OperatorState& state,
                  std::vector<std::int32_t>* out) {
    const auto topk = static_cast<std::size_t>(state.shape.topk);
    const std::size_t slots = static_cast<std::size_t>(from.num_rows) * topk;
    for (std::size_t slot = 0; slot < slots; ++slot) {
        const std::int64_t id = from.topk_idx[slot];
        if (id > std::numeric_limits<std::int32_t>::max()) {
            return {Code::kBadIndex,
                    fmt::format("rank {}: topk_idx = {} at token {}, slot {} does not fit the "
                                "workspace's int32 indices",
                                state.rank, id, slot / topk, slot % topk)};
        }
        // A negative id stays one: the low half of some is not.
        out->push_back(id < 0 ? -1 : static_cast<std::int32_t>(id));
    }
    return {};
}

}  // namespace

layout::StateWords read_state(const OperatorState& state) {
    return read_object<layout::StateWords>(state, Room::kLocal, state.local.state);
}

StallReport read_stall_report(const OperatorState& state) {
    auto report = read_object<StallReport>(state, Room::kLocal, state.local.stall_report);
    if (report.cause == StallCause::kDeadline && report.peer < 0) {
        report.peer = missing_source(state, report.generation, report.session);
    }
    if (report.cause == StallCause::kPeerFault && report.peer >= 0) {
        complete_peer_fault(state, &report);
    }
    return report;
}

Statistics read_statistics(const OperatorState& state) {
    const layout::StateWords words = read_state(state);
    const layout::PlanMemory& plan =
        state.plans[static_cast<std::size_t>(state.last_plan_idx)].memory;
    const auto plan_words = read_object<layout::PlanWords>(state, Room::kLocal, plan.words);
    Statistics statistics;
    statistics.generation = words.generation;
    statistics.session = words.session;
    statistics.rows = words.rows_received;
    statistics.blocks = words.blocks_received;
    statistics.laps = (plan_words.s0 - state.options.start.s0) / plan.ring_blocks;
    statistics.times = state.backend->times();
    statistics.placement = state.backend->placement();
    statistics.expert_rows =
        read_array<std::uint64_t>(state, Room::kLocal, state.local.statistics,
                                  static_cast<std::uint64_t>(state.shape.experts_per_rank()));
    return statistics;
}

Status take_bad_index(OperatorState* state) {
    const layout::StateWords words = read_state(*state);
    if (words.bad_index_claimed == 0) return {};
    const std::uint64_t none = 0;
    state->backend->write(Room::kLocal,
                          state->local.state + offsetof(layout::StateWords, bad_index_claimed),
                          &none, sizeof(none));
    const auto topk = static_cast<std::uint64_t>(state->shape.topk);
    return {Code::kBadIndex,
            fmt::format("rank {}: topk_idx = {} at token {}, slot {} (generation {}) must be "
                        "below num_experts = {}; the slot counted as unused",
                        state->rank, words.bad_index_id, words.bad_index_slot / topk,
                        words.bad_index_slot % topk, words.bad_index_claimed - 1,
                        state->shape.num_experts)};
}

Status check_ids(const OperatorState& state,
                 const std::vector<std::shared_ptr<const PackedWeights>>& weights, int num_tokens) {
    const auto slots =
        static_cast<std::uint64_t>(num_tokens) * static_cast<std::uint64_t>(state.shape.topk);
    const auto bytes = read_array<std::uint8_t>(state, Room::kHeap, state.heap.topk_idx,
                                                slots * state.heap.index_bytes);
    layout::SymmetricHeap ids = state.heap;
    ids.topk_idx = 0;
    for (std::uint64_t slot = 0; slot < slots; ++slot) {
        GCMOE_RETURN_IF_ERROR(check_id(state, weights, slot, ids.expert_id(bytes.data(), slot)));
    }
    return {};
}

Status write_inputs(const HostInputs& from, OperatorState* state) {
    if (from.num_rows < 0 || from.num_rows > state->options.max_tokens) {
        return {Code::kBadInput,
                fmt::format("num_rows = {} must be in 0..{} (the workspace's capacity)",
                            from.num_rows, state->options.max_tokens)};
    }
    const bool complete = from.x != nullptr && from.x_scale != nullptr &&
                          from.topk_idx != nullptr && from.topk_weight != nullptr;
    if (!complete && from.num_rows > 0) {
        return {Code::kBadInput,
                fmt::format("an input array is null with num_rows = {}", from.num_rows)};
    }
    state->backend->synchronize();  // roles and peers may still read what is there
    const layout::SymmetricHeap& heap = state->heap;
    const auto rows = static_cast<std::uint64_t>(from.num_rows);
    const auto hidden = static_cast<std::uint64_t>(state->shape.hidden);
    const std::uint64_t slots = rows * static_cast<std::uint64_t>(state->shape.topk);
    std::vector<std::int32_t> narrow;
    const void* ids = from.topk_idx;
    if (heap.index_bytes == 4) {
        GCMOE_RETURN_IF_ERROR(narrow_ids(from, *state, &narrow));
        ids = narrow.data();
    }
    write_rows(from.x, rows, hidden, heap.x, heap.x_stride, state);
    write_rows(from.x_scale, rows, hidden / layout::kChunk * 4, heap.x_scale,
               std::uint64_t{heap.x_scale_stride} * 4, state);
    write_rows(ids, slots, heap.index_bytes, heap.topk_idx, heap.index_bytes, state);
    write_rows(from.topk_weight, slots, sizeof(float), heap.topk_weight, sizeof(float), state);
    return {};
}

}  // namespace op
}  // namespace gcmoe
