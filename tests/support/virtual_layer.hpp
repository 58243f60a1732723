// A generated layer over virtual ranks, for tests: weights packed once per (shape, ranks), inputs
// as a function of (seed, global token), so that the same tokens can be spread over any number of
// ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gcmoe/operator.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::test {

// Small enough for thousands of launches; hidden and inter take more than one chunk.
Shape small_shape(int num_ranks, int shared_inter = 0);

// How the scales of generated weights come about.
struct WeightForms {
    std::string routed = "normal";  // see checkpoint/scale_rule.hpp
    ScaleGrid shared = ScaleGrid::kUe8m0Block128;
};

// The source of a generated layer's weights.
std::unique_ptr<WeightSource> generated_weights(const Shape& shape, const WeightForms& forms = {});

// Packed weights of every rank. Cached over the process: layers depend on shape and forms only.
const std::vector<std::shared_ptr<const PackedWeights>>& packed_layer(
    const Shape& shape, const WeightForms& forms = {});

// Global tokens [first, first + n) of a stream: x, ids and weights depend on (seed, token) only.
// mask = share of slots that are unused.
reference::RankInputs stream_inputs(const Shape& shape, std::uint64_t seed, int first,
                                    int num_tokens, int capacity, double mask = 0.0);

// Copies a rank's inputs into its symmetric memory (x, scales, ids as the operator's index type).
void stage_inputs(Operator* op, IndexType index_type, const Shape& shape,
                  const reference::RankInputs& inputs);

// All ranks of one workspace.
class VirtualLayer {
  public:
    VirtualLayer(const Shape& shape, const GroupOptions& group, const OperatorOptions& options,
                 const WeightForms& forms = {});

    // One launch on every rank with these inputs; fails the test on any error. Returns y of every
    // rank: (num_tokens, hidden) bf16.
    std::vector<std::vector<std::uint16_t>> run(const std::vector<reference::RankInputs>& inputs,
                                                const std::string& plan = "");

    [[nodiscard]] Operator& op(int rank) { return *ops_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] std::vector<Operator*> all();
    [[nodiscard]] const Shape& shape() const { return shape_; }

  private:
    Shape shape_;
    OperatorOptions options_;
    std::shared_ptr<Group> group_;
    std::vector<std::unique_ptr<Operator>> ops_;
};

// Spreads `total` global tokens over the ranks, as even as can be, in order.
std::vector<reference::RankInputs> spread_inputs(const Shape& shape, std::uint64_t seed, int total,
                                                 int capacity, double mask = 0.0);

// The rows of all ranks behind each other.
std::vector<std::uint16_t> join_rows(const std::vector<std::vector<std::uint16_t>>& y);

}  // namespace gcmoe::test
