// What role 1's warps find by lanes against what is found by walking.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/dispatch/role1_pull.cuh"
#include "host_stub/host_cta.hpp"
#include "schedule/round_robin.hpp"

namespace gcmoe::host_stub {
namespace {

// All lanes of a warp run `find`; every lane's answer.
template <class Answer, class Find>
std::vector<Answer> on_warp(const Find& find) {
    std::vector<Answer> answers(32);
    Machine machine;
    machine.add_cta(0, 1, 32, 16,
                    [&](std::uint8_t*) { answers[cuda::ptx::thread_idx()] = find(); });
    machine.run();
    return answers;
}

std::vector<std::uint32_t> random_counts(std::size_t size, std::uint32_t most,
                                         std::mt19937* random) {
    std::vector<std::uint32_t> counts(size);
    for (std::uint32_t& count : counts) {
        count = (*random)() % 3 == 0 ? 0 : (*random)() % (most + 1);
    }
    return counts;
}

TEST(PullOrder, AWarpFindsTheRowsThatAWalkFinds) {
    std::mt19937 random(7);
    for (const std::uint32_t num_ranks : {1U, 2U, 8U, 31U, 32U, 33U, 64U, 72U}) {
        std::vector<std::uint32_t> counts = random_counts(num_ranks, 9, &random);
        counts[random() % num_ranks] += 3;
        const auto look = [&counts](std::uint32_t source) { return counts[source]; };
        std::uint32_t rows = 0;
        for (const std::uint32_t count : counts) rows += count;
        schedule::RoundRobin walk(look, num_ranks);
        for (std::uint32_t position = 0; position < rows; ++position) {
            const schedule::SourceRow expected = walk.next();
            const auto found = on_warp<schedule::SourceRow>(
                [&] { return cuda::dispatch::warp_row_at(look, num_ranks, position); });
            for (const schedule::SourceRow& row : found) {
                ASSERT_EQ(row.source, expected.source) << num_ranks << " ranks, " << position;
                ASSERT_EQ(row.index, expected.index) << num_ranks << " ranks, " << position;
            }
        }
    }
}

TEST(PullOrder, OneSourceWithMillionsOfSlots) {
    const std::vector<std::uint32_t> counts = {3, (1U << 24) - 1, 0};
    const auto look = [&counts](std::uint32_t source) { return counts[source]; };
    const auto index_at = [&look](std::uint32_t position) {
        const auto found = on_warp<schedule::SourceRow>(
            [&] { return cuda::dispatch::warp_row_at(look, 3, position); });
        EXPECT_EQ(found[31].source, 1U);
        return found[31].index;
    };
    EXPECT_EQ(index_at(5), 2U);
    EXPECT_EQ(index_at(6), 3U);
    EXPECT_EQ(index_at((1U << 24) + 1), (1U << 24) - 2);
}

TEST(PullOrder, AWarpFindsTheExpertOfARow) {
    std::mt19937 random(11);
    for (const std::uint32_t per_rank : {1U, 2U, 31U, 32U, 33U, 48U, 64U, 384U}) {
        std::vector<std::uint32_t> counts = random_counts(per_rank, 5, &random);
        counts[random() % per_rank] += 2;
        std::vector<std::uint32_t> first_row(per_rank + 1);
        for (std::uint32_t e = 0; e < per_rank; ++e) first_row[e + 1] = first_row[e] + counts[e];
        cuda::dispatch::Accounts accounts{};
        accounts.first_row = first_row.data();
        std::uint32_t expert = 0;
        for (std::uint32_t row = 0; row < first_row[per_rank]; ++row) {
            while (first_row[expert + 1] <= row) ++expert;
            const auto found = on_warp<std::uint32_t>(
                [&] { return cuda::dispatch::expert_of_row(accounts, per_rank, row); });
            for (const std::uint32_t e : found) ASSERT_EQ(e, expert) << per_rank << ", " << row;
        }
    }
}

}  // namespace
}  // namespace gcmoe::host_stub
