// The oracle on an example worked out by hand, and its comparison on planted differences.
#include "reference/dispatch_oracle.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "fixtures.hpp"
#include "layout/packed_weights.hpp"

namespace gcmoe::reference {
namespace {

// Two ranks of two experts each, top-2, BM = 2 (no real plan has so small a block), B = 2.
//   rank 0: token 0 -> 0, 3   token 1 -> 0, -1   token 2 -> 2, 0
//   rank 1: token 0 -> 0, 1   token 1 -> 3, 3
// Rank 0 gets expert 0: source 0 slots 0, 2, 5, source 1 slot 0; expert 1: source 1 slot 1.
// Rank 1 gets expert 2: source 0 slot 4; expert 3: source 0 slot 1, source 1 slots 2, 3.
struct Example {
    OracleConfig config;
    std::vector<RankInputs> inputs;

    Example() {
        config.shape.hidden = 256;
        config.shape.inter = 384;
        config.shape.num_experts = 4;
        config.shape.topk = 2;
        config.shape.num_ranks = 2;
        config.shape.shared_inter = 256;
        config.max_tokens = 8;
        config.row_block = 2;
        config.ring_blocks = 2;
        config.second_columns = 128;
        inputs = random_inputs(config.shape, {3, 2}, 1);
        const std::vector<std::int64_t> first = {0, 3, 0, -1, 2, 0};
        const std::vector<std::int64_t> second = {0, 1, 3, 3};
        std::copy(first.begin(), first.end(), inputs[0].topk_idx.begin());
        std::copy(second.begin(), second.end(), inputs[1].topk_idx.begin());
    }
};

using Words = std::vector<std::uint64_t>;

TEST(Oracle, CountsAndLists) {
    Example example;
    DispatchOracle oracle(example.config);
    oracle.launch(example.inputs);
    const ExpectedMemory& memory = oracle.rank(0);
    EXPECT_TRUE(memory.recv_count[0].empty());
    EXPECT_EQ(memory.recv_count[1], (Words{0x101000003, 0x101000000, 0x101000001, 0x101000001}));
    EXPECT_EQ(memory.recv_slot[1][0], (std::vector<std::uint32_t>{0, 2, 5}));
    EXPECT_EQ(memory.recv_slot[1][1], (std::vector<std::uint32_t>{0, 1}));
    EXPECT_EQ(memory.source_count, (std::vector<std::uint32_t>{3, 0, 1, 1}));
    EXPECT_EQ(memory.source_offset, (std::vector<std::uint32_t>{0, 3, 0, 1}));
    EXPECT_EQ(oracle.rank(1).recv_slot[1][0], (std::vector<std::uint32_t>{4, 1}));
    EXPECT_EQ(oracle.rank(1).recv_slot[1][1], (std::vector<std::uint32_t>{2, 3}));
}

TEST(Oracle, BlocksAreInExpertOrderAndRowsRoundRobinOverSources) {
    Example example;
    DispatchOracle oracle(example.config);
    oracle.launch(example.inputs);
    // Rank 0: expert 0 in two full blocks, expert 1 in a block of one row.
    const ExpectedMemory& first = oracle.rank(0);
    EXPECT_EQ(first.block_table[0], 0x101020000U);
    EXPECT_EQ(first.block_table[1], 0x101020000U);
    EXPECT_EQ(first.block_table[2], 0x101010001U);
    EXPECT_FALSE(first.block_table[3].has_value());
    EXPECT_EQ(first.num_blocks, 0x100000003U);
    EXPECT_EQ(first.s0, 3U);
    // Rows of expert 0: (0, 0) (1, 0) | (0, 2) (0, 5); block 2 overwrites place 0.
    ASSERT_EQ(first.ring[0].size(), 1U);
    EXPECT_EQ(first.ring[0][0].rank, 1U);
    EXPECT_EQ(first.ring[0][0].slot, 1U);
    ASSERT_EQ(first.ring[1].size(), 2U);
    EXPECT_EQ(first.ring[1][0].slot, 2U);
    EXPECT_EQ(first.ring[1][1].slot, 5U);
    EXPECT_EQ(first.ring[1][1].weight, example.inputs[0].topk_weight[5]);
    EXPECT_EQ(first.ring[1][1].codes[255], example.inputs[0].x[2 * 256 + 255]);
    EXPECT_EQ(first.ring[1][1].scales[1], example.inputs[0].x_scale[2 * 2 + 1]);
    // Rank 1: expert 2 one row; expert 3 rows (0, 1) (1, 2) | (1, 3).
    const ExpectedMemory& second = oracle.rank(1);
    EXPECT_EQ(second.block_table[0], 0x101010000U);
    EXPECT_EQ(second.block_table[1], 0x101020001U);
    EXPECT_EQ(second.block_table[2], 0x101010001U);
    EXPECT_EQ(second.ring[1][0].rank, 0U);
    EXPECT_EQ(second.ring[1][1].rank, 1U);
    EXPECT_EQ(second.ring[0][0].slot, 3U);
}

TEST(Oracle, CountersMoveOnAndTheOtherHalfStays) {
    Example example;
    example.config.generation = 0xFFFFFFFE;
    example.config.session = 0x103;
    example.config.s0 = 5;
    example.config.rows_left = 0xFFFFFFFD;
    DispatchOracle oracle(example.config);
    oracle.launch(example.inputs);
    const ExpectedMemory first = oracle.rank(0);
    EXPECT_EQ(first.generation, 0xFFFFFFFFU);
    EXPECT_EQ(first.done, (Words{0xFFFFFFFF00000103, 0xFFFFFFFF00000103}));
    EXPECT_EQ(first.recv_count[1][0], 0xFFFFFFFF03000003U);
    // n2 = 2: three rows of source 0, two of source 1.
    EXPECT_EQ(first.rows_left, (std::vector<std::uint32_t>{3, 1}));
    oracle.launch(example.inputs);
    const ExpectedMemory& second = oracle.rank(0);
    EXPECT_EQ(second.generation, 0U);
    EXPECT_EQ(second.recv_count[1], first.recv_count[1]);
    EXPECT_EQ(second.recv_count[0][0], 0x03000003U);
    EXPECT_EQ(second.s0, 11U);
    EXPECT_EQ(second.launches, 2U);
    EXPECT_EQ(second.rows_left, (std::vector<std::uint32_t>{9, 5}));
    EXPECT_EQ(second.statistics, (Words{8, 2}));
    EXPECT_EQ(second.rows_received, 10U);
    EXPECT_EQ(second.blocks_received, 6U);
}

TEST(Oracle, ForgetsTheRingOnly) {
    Example example;
    DispatchOracle oracle(example.config);
    oracle.launch(example.inputs);
    oracle.forget_ring();
    EXPECT_TRUE(oracle.rank(0).ring[0].empty());
    EXPECT_EQ(oracle.rank(0).s0, 3U);
    oracle.launch(example.inputs);
    EXPECT_FALSE(oracle.rank(0).ring[0].empty());
}

TEST(Oracle, CountsBlocksOfARank) {
    const Example example;
    EXPECT_EQ(num_blocks_of_rank(example.config.shape, example.inputs, 0, 2), 3);
    EXPECT_EQ(num_blocks_of_rank(example.config.shape, example.inputs, 1, 8), 2);
}

// The memory of one rank, filled from the hand-worked numbers of one launch.
struct FilledMemory {
    std::vector<std::uint64_t> heap_words;
    std::vector<std::uint64_t> local_words;
    ActualMemory actual;

    FilledMemory(const OracleConfig& config, const ExpectedMemory& expected) {
        std::vector<layout::PlanMemory> plans(1);
        plans[0].row_block = static_cast<std::uint32_t>(config.row_block);
        plans[0].ring_blocks = static_cast<std::uint32_t>(config.ring_blocks);
        plans[0].n1 = 3;
        plans[0].n2 = 2;
        actual.heap = layout::make_symmetric_heap(config.shape, 8, IndexType::kInt64, nullptr);
        actual.local = layout::make_local_memory(config.shape, {8, false}, &plans, nullptr);
        actual.plan = plans[0];
        heap_words.assign(actual.heap.bytes / 8, 0);
        local_words.assign(actual.local.bytes / 8, 0);
        actual.heap_base = reinterpret_cast<std::uint8_t*>(heap_words.data());
        actual.local_base = reinterpret_cast<std::uint8_t*>(local_words.data());
        fill_heap(expected);
        fill_local(expected);
        fill_signals();
        fill_ring(expected);
    }
    template <class Word>
    Word* local(std::uint64_t offset) {
        return reinterpret_cast<Word*>(actual.local_base + offset);
    }
    void fill_heap(const ExpectedMemory& expected) {
        const auto count = [&](std::uint32_t source, std::uint32_t expert) {
            return actual.heap.recv_count_word(actual.heap_base, 1, source, expert);
        };
        *count(0, 0) = 0x101000003;
        *count(0, 1) = 0x101000000;
        *count(1, 0) = 0x101000001;
        *count(1, 1) = 0x101000001;
        for (std::uint32_t source = 0; source < 2; ++source) {
            const std::vector<std::uint32_t>& list = expected.recv_slot[1][source];
            std::copy(list.begin(), list.end(),
                      actual.heap.recv_slot_list(actual.heap_base, 1, source));
            *actual.heap.done_word(actual.heap_base, source) = 0x100000001;
        }
    }
    void fill_local(const ExpectedMemory& expected) {
        const layout::LocalMemory& offsets = actual.local;
        const std::uint64_t table[] = {0x101020000, 0x101020000, 0x101010001};
        std::copy(table, table + 3, local<std::uint64_t>(offsets.block_table));
        *local<std::uint64_t>(offsets.num_blocks) = 0x100000003;
        const std::uint32_t counts[] = {3, 0, 1, 1};
        std::copy(counts, counts + 4, local<std::uint32_t>(offsets.source_count));
        const std::uint32_t starts[] = {0, 3, 0, 1};
        std::copy(starts, starts + 4, local<std::uint32_t>(offsets.source_offset));
        const std::uint32_t left[] = {6, 4};
        std::copy(left, left + 2, local<std::uint32_t>(offsets.rows_left));
        std::copy(left, left + 2, local<std::uint32_t>(offsets.rows_left_target));
        local<std::uint64_t>(offsets.statistics)[0] = 4;
        local<std::uint64_t>(offsets.statistics)[1] = 1;
        auto* state = local<layout::StateWords>(offsets.state);
        state->generation = 1;
        state->session = 1;
        state->num_tokens = expected.num_tokens;
        state->rows_received = 5;
        state->blocks_received = 3;
        local<std::uint32_t>(offsets.shared_ready)[0] = 2;
    }
    // Three blocks over two places: place 0 was used twice, place 1 once.
    void fill_signals() {
        const layout::PlanMemory& plan = actual.plan;
        const std::uint32_t laps[] = {2, 1};
        for (std::size_t place = 0; place < 2; ++place) {
            local<std::uint32_t>(plan.l1_full_count)[place] = laps[place] * 2;
            local<std::uint32_t>(plan.l1_empty_count)[place] = laps[place] * 3;
            local<std::uint64_t>(plan.l2_full_mask)[place] = place == 0 ? 0 : 7;
            local<std::uint32_t>(plan.l2_empty_count)[place] = laps[place] * 2;
        }
        local<layout::PlanWords>(plan.words)->s0 = 3;
        local<layout::PlanWords>(plan.words)->launches = 1;
    }
    void fill_ring(const ExpectedMemory& expected) {
        const layout::ChunkedRows ring{local<std::uint8_t>(actual.local.ring_x),
                                       local<std::uint32_t>(actual.local.ring_x_scale), 2, 2};
        for (std::uint32_t place = 0; place < 2; ++place) {
            for (std::uint32_t row = 0; row < expected.ring[place].size(); ++row) {
                const ExpectedRow& wanted = expected.ring[place][row];
                for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
                    layout::store_chunk_row(ring.chunk(place, chunk), static_cast<int>(row),
                                            layout::KOrder::kQuadBlock,
                                            wanted.codes.data() + chunk * 128);
                    ring.scale(place, chunk)[row] = wanted.scales[chunk];
                }
                const layout::Origin origin{wanted.rank, wanted.slot, wanted.weight, 0};
                local<layout::Origin>(actual.local.ring_origin)[place * 2 + row] = origin;
                local<layout::Origin>(actual.local.act_origin)[place * 2 + row] = origin;
            }
        }
    }
};

struct Compared {
    Example example;
    DispatchOracle oracle;
    FilledMemory memory;

    Compared() : oracle(launched(example)), memory(example.config, oracle.rank(0)) {}
    static DispatchOracle launched(const Example& example) {
        DispatchOracle oracle(example.config);
        oracle.launch(example.inputs);
        return oracle;
    }
    [[nodiscard]] std::string difference() const {
        const auto found = find_difference(oracle, 0, memory.actual);
        return found ? found->text() : "";
    }
};

TEST(Compare, HandFilledMemoryIsEqual) {
    const Compared compared;
    EXPECT_EQ(compared.difference(), "");
}

TEST(Compare, NamesRegionIndexAndValues) {
    Compared compared;
    *compared.memory.actual.heap.recv_count_word(compared.memory.actual.heap_base, 1, 1, 0) += 1;
    EXPECT_EQ(compared.difference(), "recv_count[1][1][0] expected 0x101000001, seen 0x101000002");
}

TEST(Compare, SeesEveryRegion) {
    using Plant = std::function<void(FilledMemory*)>;
    const auto word32 = [](std::uint64_t layout::LocalMemory::*offset, std::size_t index) {
        return
            [=](FilledMemory* m) { m->local<std::uint32_t>(m->actual.local.*offset)[index] ^= 1; };
    };
    const auto word64 = [](std::uint64_t layout::LocalMemory::*offset, std::size_t index) {
        return
            [=](FilledMemory* m) { m->local<std::uint64_t>(m->actual.local.*offset)[index] ^= 1; };
    };
    const auto plan32 = [](std::uint64_t layout::PlanMemory::*offset, std::size_t index) {
        return
            [=](FilledMemory* m) { m->local<std::uint32_t>(m->actual.plan.*offset)[index] ^= 1; };
    };
    const auto state = [](FilledMemory* m) {
        return m->local<layout::StateWords>(m->actual.local.state);
    };
    using layout::LocalMemory;
    using layout::PlanMemory;
    const std::vector<std::pair<std::string, Plant>> plants = {
        {"recv_slot[1][0][2]",
         [](FilledMemory* m) { m->actual.heap.recv_slot_list(m->actual.heap_base, 1, 0)[2] ^= 1; }},
        {"done[1]",
         [](FilledMemory* m) { *m->actual.heap.done_word(m->actual.heap_base, 1) ^= 1; }},
        {"fault[0]",
         [](FilledMemory* m) { *m->actual.heap.fault_word(m->actual.heap_base, 0) ^= 1; }},
        {"block_table[2]", word64(&LocalMemory::block_table, 2)},
        {"num_blocks", word64(&LocalMemory::num_blocks, 0)},
        {"source_count[3]", word32(&LocalMemory::source_count, 3)},
        {"source_offset[1]", word32(&LocalMemory::source_offset, 1)},
        {"rows_left[1]", word32(&LocalMemory::rows_left, 1)},
        {"rows_left_target[0]", word32(&LocalMemory::rows_left_target, 0)},
        {"statistics[1]", word64(&LocalMemory::statistics, 1)},
        {"state.generation", [&](FilledMemory* m) { state(m)->generation = 2; }},
        {"state.session", [&](FilledMemory* m) { state(m)->session = 2; }},
        {"state.stall_claimed", [&](FilledMemory* m) { state(m)->stall_claimed = 1; }},
        {"state.rows_received", [&](FilledMemory* m) { state(m)->rows_received = 9; }},
        {"l1_full_count[1]", plan32(&PlanMemory::l1_full_count, 1)},
        {"l1_empty_count[0]", plan32(&PlanMemory::l1_empty_count, 0)},
        {"l2_full_mask[1]",
         [](FilledMemory* m) { m->local<std::uint64_t>(m->actual.plan.l2_full_mask)[1] ^= 4; }},
        {"l2_empty_count[1]", plan32(&PlanMemory::l2_empty_count, 1)},
        {"s0", [](FilledMemory* m) { m->local<layout::PlanWords>(m->actual.plan.words)->s0 = 4; }},
        {"shared_ready[0]", word32(&LocalMemory::shared_ready, 0)},
        {"ring_x[1][1][",
         [](FilledMemory* m) {
             m->local<std::uint8_t>(m->actual.local.ring_x)[2 * 256 + 200] ^= 1;
         }},
        {"ring_x_scale[1][0][1]", word32(&LocalMemory::ring_x_scale, 4 + 2)},
        {"ring_origin[0][0].slot", word32(&LocalMemory::ring_origin, 1)},
        {"act_origin[1][0].weight", word32(&LocalMemory::act_origin, 2 * 4 + 2)},
    };
    for (const auto& [region, plant] : plants) {
        Compared compared;
        plant(&compared.memory);
        EXPECT_EQ(compared.difference().substr(0, region.size()), region) << compared.difference();
    }
}

TEST(Compare, RowsPastABlocksCountAreNotLookedAt) {
    Compared compared;
    // Place 0 holds one live row; its second row is anybody's.
    compared.memory.local<std::uint32_t>(compared.memory.actual.local.ring_origin)[4] = 99;
    EXPECT_EQ(compared.difference(), "");
}

}  // namespace
}  // namespace gcmoe::reference
