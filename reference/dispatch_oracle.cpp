#include "reference/dispatch_oracle.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/math.hpp"
#include "layout/packed_weights.hpp"
#include "layout/ring.hpp"

namespace gcmoe::reference {
namespace {

// Slots by destination: lists[owner][local expert] of one source, in (token, slot) order.
using SlotLists = std::vector<std::vector<std::vector<std::uint32_t>>>;

SlotLists sort_slots(const Shape& shape, const RankInputs& inputs) {
    const int per_rank = shape.experts_per_rank();
    SlotLists lists(size_of(shape.num_ranks));
    for (auto& owner : lists) owner.resize(size_of(per_rank));
    for (int token = 0; token < inputs.num_tokens; ++token) {
        for (int slot = 0; slot < shape.topk; ++slot) {
            const std::int64_t expert = expert_of(shape, inputs, token, slot);
            if (!slot_is_live(shape, expert)) continue;
            const int id = static_cast<int>(expert);
            lists[size_of(id / per_rank)][size_of(id % per_rank)].push_back(
                static_cast<std::uint32_t>(token * shape.topk + slot));
        }
    }
    return lists;
}

std::uint64_t tag(const ExpectedMemory& memory) {
    return std::uint64_t{memory.generation} << 32 |
           static_cast<std::uint64_t>(memory.session & 0xFFU) << 24;
}

// Counts, lists and offsets that `owner` receives from every source.
void receive(const Shape& shape, const std::vector<SlotLists>& sources, std::size_t owner,
             ExpectedMemory* memory) {
    const std::size_t half = memory->generation & 1U;
    memory->recv_count[half].clear();
    memory->recv_slot[half].clear();
    memory->source_count.clear();
    memory->source_offset.clear();
    for (const SlotLists& source : sources) {
        std::vector<std::uint32_t> list;
        for (int expert = 0; expert < shape.experts_per_rank(); ++expert) {
            const std::vector<std::uint32_t>& slots = source[owner][size_of(expert)];
            memory->recv_count[half].push_back(tag(*memory) | slots.size());
            memory->source_count.push_back(static_cast<std::uint32_t>(slots.size()));
            memory->source_offset.push_back(static_cast<std::uint32_t>(list.size()));
            list.insert(list.end(), slots.begin(), slots.end());
            memory->statistics[size_of(expert)] += slots.size();
            memory->rows_received += slots.size();
        }
        memory->recv_slot[half].push_back(std::move(list));
    }
}

ExpectedRow make_row(const Shape& shape, const RankInputs& inputs, std::uint32_t rank,
                     std::uint32_t slot) {
    const std::size_t token = slot / static_cast<std::uint32_t>(shape.topk);
    const std::size_t hidden = size_of(shape.hidden);
    ExpectedRow row;
    row.rank = rank;
    row.slot = slot;
    row.weight = inputs.topk_weight[slot];
    const auto codes = inputs.x.begin() + static_cast<std::ptrdiff_t>(token * hidden);
    row.codes.assign(codes, codes + static_cast<std::ptrdiff_t>(hidden));
    const auto scales =
        inputs.x_scale.begin() + static_cast<std::ptrdiff_t>(token * (hidden / 128));
    row.scales.assign(scales, scales + static_cast<std::ptrdiff_t>(hidden / 128));
    return row;
}

// (source, slot) of an expert's rows: slot i of source 0, 1, .., then slot i + 1.
std::vector<std::pair<std::uint32_t, std::uint32_t>> deal(const std::vector<SlotLists>& sources,
                                                          std::size_t owner, std::size_t expert) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> rows;
    std::size_t longest = 0;
    for (const SlotLists& source : sources) {
        longest = std::max(longest, source[owner][expert].size());
    }
    for (std::size_t i = 0; i < longest; ++i) {
        for (std::size_t source = 0; source < sources.size(); ++source) {
            const std::vector<std::uint32_t>& slots = sources[source][owner][expert];
            if (i < slots.size()) rows.emplace_back(static_cast<std::uint32_t>(source), slots[i]);
        }
    }
    return rows;
}

// Block table, ring rows and s0 of one rank.
void fill_ring(const OracleConfig& config, const std::vector<RankInputs>& inputs,
               const std::vector<SlotLists>& sources, std::size_t owner, ExpectedMemory* memory) {
    const std::size_t block_rows = size_of(config.row_block);
    std::uint32_t num_blocks = 0;
    for (std::size_t expert = 0; expert < size_of(config.shape.experts_per_rank()); ++expert) {
        const auto rows = deal(sources, owner, expert);
        for (std::size_t begin = 0; begin < rows.size(); begin += block_rows) {
            const std::size_t count = std::min(block_rows, rows.size() - begin);
            const std::uint64_t sequence = memory->s0 + num_blocks;
            const std::size_t place = sequence % static_cast<std::uint64_t>(config.ring_blocks);
            std::vector<ExpectedRow>& block = memory->ring[place];
            block.clear();
            for (std::size_t i = begin; i < begin + count; ++i) {
                block.push_back(
                    make_row(config.shape, inputs[rows[i].first], rows[i].first, rows[i].second));
            }
            memory->block_table[sequence % memory->block_table.size()] =
                tag(*memory) | std::uint64_t{count} << 16 | expert;
            ++num_blocks;
        }
    }
    memory->num_blocks = std::uint64_t{memory->generation} << 32 | num_blocks;
    memory->s0 += num_blocks;
    memory->blocks_received += num_blocks;
}

std::uint64_t power_of_two_at_least(std::uint64_t value) {
    std::uint64_t power = 1;
    while (power < value) power *= 2;
    return power;
}

// --- Comparison ------------------------------------------------------------------------------

// Remembers the first difference; later ones are ignored.
class Comparer {
  public:
    void equal(const char* region, const std::string& index, std::uint64_t expected,
               std::uint64_t seen) {
        if (expected != seen && !difference_) {
            difference_ = Difference{region, index, expected, seen};
        }
    }
    [[nodiscard]] bool found() const { return difference_.has_value(); }
    [[nodiscard]] const std::optional<Difference>& difference() const { return difference_; }

  private:
    std::optional<Difference> difference_;
};

template <class Int>
std::string at(Int index) {
    return fmt::format("[{}]", index);
}

template <class Word>
const Word* words_at(const std::uint8_t* base, std::uint64_t offset) {
    return reinterpret_cast<const Word*>(base + offset);
}

template <class Word>
void compare_words(Comparer* compare, const char* region, const std::vector<Word>& expected,
                   const Word* seen) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
        if (expected[i] != seen[i]) compare->equal(region, at(i), expected[i], seen[i]);
    }
}

void compare_heap(const OracleConfig& config, const ExpectedMemory& expected,
                  const ActualMemory& actual, Comparer* compare) {
    const auto ranks = static_cast<std::uint32_t>(config.shape.num_ranks);
    const auto experts = static_cast<std::uint32_t>(config.shape.experts_per_rank());
    for (std::uint32_t half = 0; half < 2; ++half) {
        if (expected.recv_count[half].empty()) continue;
        for (std::uint32_t source = 0; source < ranks; ++source) {
            const std::string index = at(half) + at(source);
            for (std::uint32_t e = 0; e < experts; ++e) {
                compare->equal("recv_count", index + at(e),
                               expected.recv_count[half][source * experts + e],
                               *actual.heap.recv_count_word(actual.heap_base, half, source, e));
            }
            const std::uint32_t* list = actual.heap.recv_slot_list(actual.heap_base, half, source);
            const std::vector<std::uint32_t>& wanted = expected.recv_slot[half][source];
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                if (wanted[i] != list[i]) {
                    compare->equal("recv_slot", index + at(i), wanted[i], list[i]);
                }
            }
        }
    }
    for (std::uint32_t source = 0; source < ranks; ++source) {
        compare->equal("done", at(source), expected.done[source],
                       *actual.heap.done_word(actual.heap_base, source));
        compare->equal("fault", at(source), 0, *actual.heap.fault_word(actual.heap_base, source));
    }
}

void compare_tables(const ExpectedMemory& expected, const ActualMemory& actual, Comparer* compare) {
    const std::uint8_t* base = actual.local_base;
    const layout::LocalMemory& local = actual.local;
    const auto* table = words_at<std::uint64_t>(base, local.block_table);
    compare->equal("table_blocks", "", expected.block_table.size(), actual.plan.table_blocks);
    if (compare->found()) return;
    for (std::size_t i = 0; i < expected.block_table.size(); ++i) {
        if (!expected.block_table[i]) continue;
        compare->equal("block_table", at(i), *expected.block_table[i], table[i]);
    }
    compare->equal("num_blocks", "", expected.num_blocks,
                   *words_at<std::uint64_t>(base, local.num_blocks));
    compare_words(compare, "source_count", expected.source_count,
                  words_at<std::uint32_t>(base, local.source_count));
    compare_words(compare, "source_offset", expected.source_offset,
                  words_at<std::uint32_t>(base, local.source_offset));
    compare_words(compare, "rows_left", expected.rows_left,
                  words_at<std::uint32_t>(base, local.rows_left));
    compare_words(compare, "rows_left_target", expected.rows_left,
                  words_at<std::uint32_t>(base, local.rows_left_target));
    compare_words(compare, "statistics", expected.statistics,
                  words_at<std::uint64_t>(base, local.statistics));
    const auto* state = words_at<layout::StateWords>(base, local.state);
    compare->equal("state.generation", "", expected.generation, state->generation);
    compare->equal("state.session", "", expected.session, state->session);
    compare->equal("state.num_tokens", "", expected.num_tokens, state->num_tokens);
    compare->equal("state.stall_claimed", "", 0, state->stall_claimed);
    compare->equal("state.rows_received", "", expected.rows_received, state->rows_received);
    compare->equal("state.blocks_received", "", expected.blocks_received, state->blocks_received);
}

void compare_signals(const OracleConfig& config, const ExpectedMemory& expected,
                     const ActualMemory& actual, Comparer* compare) {
    const std::uint8_t* base = actual.local_base;
    const layout::PlanMemory& plan = actual.plan;
    const auto n1 = static_cast<std::uint32_t>(config.shape.inter / 128);
    const auto n2 =
        static_cast<std::uint32_t>(ceil_div(config.shape.hidden, config.second_columns));
    const auto blocks = static_cast<std::uint64_t>(config.ring_blocks);
    for (std::uint64_t place = 0; place < blocks; ++place) {
        // Sequence numbers below s0 that fell on this place.
        const std::uint64_t laps = expected.s0 > place ? (expected.s0 - place - 1) / blocks + 1 : 0;
        const auto laps32 = static_cast<std::uint32_t>(laps);
        const std::uint64_t all_bits = n1 == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n1) - 1;
        const std::uint32_t full = laps32 * static_cast<std::uint32_t>(config.row_block);
        compare->equal("l1_full_count", at(place), full,
                       words_at<std::uint32_t>(base, plan.l1_full_count)[place]);
        compare->equal("l1_empty_count", at(place), laps32 * n1,
                       words_at<std::uint32_t>(base, plan.l1_empty_count)[place]);
        compare->equal("l2_full_mask", at(place), laps % 2 == 1 ? all_bits : 0,
                       words_at<std::uint64_t>(base, plan.l2_full_mask)[place]);
        compare->equal("l2_empty_count", at(place), laps32 * n2,
                       words_at<std::uint32_t>(base, plan.l2_empty_count)[place]);
    }
    const auto* words = words_at<layout::PlanWords>(base, plan.words);
    compare->equal("s0", "", expected.s0, words->s0);
    compare->equal("launches", "", expected.launches, words->launches);
    if (config.shape.shared_inter == 0) return;
    const auto n1_shared = static_cast<std::uint32_t>(config.shape.shared_inter / 128);
    const auto* ready = words_at<std::uint32_t>(base, actual.local.shared_ready);
    for (std::uint32_t i = 0; i < actual.local.shared_blocks; ++i) {
        compare->equal("shared_ready", at(i), expected.generation * n1_shared, ready[i]);
    }
}

void compare_origin(const char* region, const std::string& index, const ExpectedRow& expected,
                    const layout::Origin& seen, Comparer* compare) {
    compare->equal(region, index + ".rank", expected.rank, seen.rank);
    compare->equal(region, index + ".slot", expected.slot, seen.slot);
    compare->equal(region, index + ".weight", __builtin_bit_cast(std::uint32_t, expected.weight),
                   __builtin_bit_cast(std::uint32_t, seen.weight));
}

void compare_row(const OracleConfig& config, std::uint32_t place, std::uint32_t row,
                 const ExpectedRow& expected, const ActualMemory& actual, Comparer* compare) {
    const auto block_rows = static_cast<std::uint32_t>(config.row_block);
    const auto num_chunks = static_cast<std::uint32_t>(config.shape.hidden / 128);
    const layout::KOrder order = layout::routed_k_order(config.shape.activation_scale);
    const std::string index = at(place) + at(row);
    const layout::ChunkedRows ring{
        actual.local_base + actual.local.ring_x,
        reinterpret_cast<std::uint32_t*>(actual.local_base + actual.local.ring_x_scale), block_rows,
        num_chunks};
    for (std::uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
        std::uint8_t codes[128];
        layout::load_chunk_row(ring.chunk(place, chunk), static_cast<int>(row), order, codes);
        for (std::uint32_t k = 0; k < 128; ++k) {
            const std::uint8_t wanted = expected.codes[chunk * 128 + k];
            if (codes[k] != wanted) {
                compare->equal("ring_x", index + at(chunk * 128 + k), wanted, codes[k]);
            }
        }
        const std::uint32_t scale = ring.scale(place, chunk)[row];
        if (scale != expected.scales[chunk]) {
            compare->equal("ring_x_scale", index + at(chunk), expected.scales[chunk], scale);
        }
    }
    const std::size_t origin_idx = std::size_t{place} * block_rows + row;
    const std::uint8_t* base = actual.local_base;
    compare_origin("ring_origin", index, expected,
                   words_at<layout::Origin>(base, actual.local.ring_origin)[origin_idx], compare);
    compare_origin("act_origin", index, expected,
                   words_at<layout::Origin>(base, actual.local.act_origin)[origin_idx], compare);
}

}  // namespace

DispatchOracle::DispatchOracle(const OracleConfig& config) : config_(config) {
    const Shape& shape = config.shape;
    GCMOE_CHECK(config.row_block > 0 && config.second_columns > 0, config.row_block,
                config.second_columns);
    GCMOE_CHECK(is_power_of_two(static_cast<std::uint64_t>(config.ring_blocks)),
                config.ring_blocks);
    const auto experts = static_cast<std::uint64_t>(shape.experts_per_rank());
    const std::uint64_t slots = static_cast<std::uint64_t>(shape.num_ranks) *
                                static_cast<std::uint64_t>(config.max_tokens) *
                                static_cast<std::uint64_t>(shape.topk);
    const auto rows = static_cast<std::uint64_t>(config.row_block);
    // Every expert with a row may end in a block that holds one row only.
    const std::uint64_t most_blocks = (slots + std::min(slots, experts) * (rows - 1)) / rows;
    ExpectedMemory memory;
    memory.generation = config.generation;
    memory.session = config.session;
    memory.s0 = config.s0;
    memory.block_table.resize(power_of_two_at_least(most_blocks));
    memory.rows_left.assign(size_of(shape.num_ranks), config.rows_left);
    memory.statistics.assign(experts, 0);
    memory.ring.resize(size_of(config.ring_blocks));
    ranks_.assign(size_of(shape.num_ranks), memory);
}

void DispatchOracle::launch(const std::vector<RankInputs>& inputs) {
    const Shape& shape = config_.shape;
    GCMOE_CHECK(inputs.size() == ranks_.size(), inputs.size(), ranks_.size());
    std::vector<SlotLists> sources;
    for (const RankInputs& own : inputs) sources.push_back(sort_slots(shape, own));
    const auto n2 = static_cast<std::uint32_t>(ceil_div(shape.hidden, config_.second_columns));
    for (std::size_t owner = 0; owner < ranks_.size(); ++owner) {
        ExpectedMemory& memory = ranks_[owner];
        ++memory.generation;
        ++memory.launches;
        memory.num_tokens = static_cast<std::uint32_t>(inputs[owner].num_tokens);
        receive(shape, sources, owner, &memory);
        fill_ring(config_, inputs, sources, owner, &memory);
        memory.done.assign(ranks_.size(), std::uint64_t{memory.generation} << 32 | memory.session);
        for (std::size_t source = 0; source < sources.size(); ++source) {
            const std::size_t half = memory.generation & 1U;
            const std::size_t rows = memory.recv_slot[half][source].size();
            memory.rows_left[source] += static_cast<std::uint32_t>(rows) * n2;
        }
    }
}

void DispatchOracle::forget_ring() {
    for (ExpectedMemory& memory : ranks_) {
        for (std::vector<ExpectedRow>& block : memory.ring) block.clear();
    }
}

int num_blocks_of_rank(const Shape& shape, const std::vector<RankInputs>& inputs, int rank,
                       int row_block) {
    std::vector<int> rows(size_of(shape.experts_per_rank()), 0);
    for (const RankInputs& own : inputs) {
        const SlotLists lists = sort_slots(shape, own);
        for (std::size_t expert = 0; expert < rows.size(); ++expert) {
            rows[expert] += static_cast<int>(lists[size_of(rank)][expert].size());
        }
    }
    int blocks = 0;
    for (const int count : rows) blocks += ceil_div(count, row_block);
    return blocks;
}

std::string Difference::text() const {
    return fmt::format("{}{} expected 0x{:x}, seen 0x{:x}", region, index, expected, seen);
}

std::optional<Difference> find_difference(const DispatchOracle& oracle, int rank,
                                          const ActualMemory& actual) {
    const OracleConfig& config = oracle.config();
    const ExpectedMemory& expected = oracle.rank(rank);
    Comparer compare;
    compare.equal("row_block", "", size_of(config.row_block), actual.plan.row_block);
    compare.equal("ring_blocks", "", size_of(config.ring_blocks), actual.plan.ring_blocks);
    if (compare.found()) return compare.difference();
    compare_heap(config, expected, actual, &compare);
    compare_tables(expected, actual, &compare);
    compare_signals(config, expected, actual, &compare);
    for (std::uint32_t place = 0; place < expected.ring.size() && !compare.found(); ++place) {
        const std::vector<ExpectedRow>& rows = expected.ring[place];
        for (std::uint32_t row = 0; row < rows.size(); ++row) {
            compare_row(config, place, row, rows[row], actual, &compare);
        }
    }
    return compare.difference();
}

}  // namespace gcmoe::reference
