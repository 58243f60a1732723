// What one rank hands to the operator, in plain arrays: the judge, the oracle and the suites share
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gcmoe/shape.hpp"

namespace gcmoe::reference {

// One rank's inputs of one launch. Rows past num_tokens belong to the buffers but not to the
// launch.
struct RankInputs {
    int num_tokens = 0;
    int capacity = 0;                    // rows of the arrays
    std::vector<std::uint8_t> x;         // (capacity, hidden) e4m3, natural K order
    std::vector<std::uint32_t> x_scale;  // (capacity, hidden / 128) words: floats, or 4 UE8M0 codes
    std::vector<std::int64_t> topk_idx;  // (capacity, topk); outside [0, num_experts) = unused slot
    std::vector<float> topk_weight;      // (capacity, topk)
};

// True if the slot is counted, sent and summed.
inline bool slot_is_live(const Shape& shape, std::int64_t expert) {
    return expert >= 0 && expert < shape.num_experts;
}

// The expert of (token, position in the token's list); anything not live is an unused slot.
inline std::int64_t expert_of(const Shape& shape, const RankInputs& inputs, int token, int slot) {
    return inputs.topk_idx[static_cast<std::size_t>(token) * static_cast<std::size_t>(shape.topk) +
                           static_cast<std::size_t>(slot)];
}

// All slots of a launch that are live.
inline std::int64_t num_live_slots(const Shape& shape, const RankInputs& inputs) {
    std::int64_t live = 0;
    for (int token = 0; token < inputs.num_tokens; ++token) {
        for (int slot = 0; slot < shape.topk; ++slot) {
            live += slot_is_live(shape, expert_of(shape, inputs, token, slot)) ? 1 : 0;
        }
    }
    return live;
}

}  // namespace gcmoe::reference
