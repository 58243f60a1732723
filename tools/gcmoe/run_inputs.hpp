// Tokens and routing of a run in a safetensors file, in and out.
//
// Per rank r (or without the prefix for all ranks together: rows are then split over the ranks in
// order, the first ranks taking one more where the count does not divide). H = hidden of the model,
// unpadded.
//   rank{r}.x             (T, H)  F8_E4M3, or BF16 / F32, which are quantised here
//   rank{r}.x_scale       with F8_E4M3 only.
//                         fp32-k128: F32 (T, ceil(H / 128))
//                         ue8m0-k32: F8_E8M0 or U8 (T, H / 32), or F32 (T, H / 32) powers of two
//   rank{r}.topk_idx      (T, k)  I32 or I64; negative = unused slot
//   rank{r}.topk_weights  (T, k)  F32
#pragma once

#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::cli {

using reference::RankInputs;

// How many ranks the file names; 0 = tensors without a rank prefix.
// Errors: kBadInput naming --inputs for a file that cannot be read or has no `x`.
Status count_input_ranks(const std::string& path, int* num_ranks);

// Reads every rank's inputs; columns hidden..shape.hidden are padding and stay zero.
// Errors: kBadInput naming --inputs, tensor and values; kBadIndex naming rank, token, slot and id.
Status load_inputs(const std::string& path, const Shape& shape, int hidden,
                   std::vector<RankInputs>* out);

// Writes what load_inputs reads back to the same bytes.
Status save_inputs(const std::string& path, const Shape& shape, int hidden, IndexType index_type,
                   const std::vector<RankInputs>& inputs);

// One rank's result: (num_tokens, shape.hidden) bf16.
struct RankOutput {
    int num_tokens = 0;
    std::vector<std::uint16_t> y;
};

// Writes rank{r}.y BF16 (T, hidden), padding columns left out.
Status save_outputs(const std::string& path, const Shape& shape, int hidden,
                    const std::vector<RankOutput>& outputs);

}  // namespace gcmoe::cli
