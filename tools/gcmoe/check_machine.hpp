// Where a check's weights are made and its launches judged: on the host, or on the GPU that ran
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/padded_source.hpp"
#include "gcmoe/weights.hpp"
#include "reference/judge.hpp"

namespace gcmoe::cli {

// Checkpoint bytes of a layer, for the judge, and the packed tiles of every rank.
struct WeightSet {
    std::unique_ptr<WeightSource> generated;                   // null if source needs none
    std::shared_ptr<WeightSource> source;                      // reads of generated
    std::vector<std::shared_ptr<const PackedWeights>> packed;  // (num_ranks)
    std::int64_t packed_bytes = 0;
};

class CheckMachine {
  public:
    virtual ~CheckMachine() = default;

    // Generates `layer`, pads it to the sizes of `shape` and packs it for every rank of `shape`.
    virtual Status make_weights(const checkpoint::GeneratedLayer& layer, const Shape& shape,
                                WeightSet* out) = 0;
    // Packed bytes of all sets that are kept at a time.
    [[nodiscard]] virtual std::int64_t keep_bytes() const = 0;

    // True: judge() takes outputs in the memory of the GPU that ran the layer.
    [[nodiscard]] virtual bool judges_device_memory() const = 0;

    // judge_layer. problem.weights: the source of a set of this machine. expected: the bit-true
    // layer; if empty, it is computed and handed out; null = nobody wants it.
    virtual Status judge(const reference::Problem& problem,
                         const std::vector<reference::RankOutputs>& outputs,
                         const reference::Tolerance& tolerance,
                         std::vector<reference::RankExpected>* expected,
                         std::vector<reference::RankJudgement>* out) = 0;
};

// "host", or "gpu" where the build has kernels. Errors: kBadInput for other names, kUnsupported
// for a GPU in a build without kernels.
Status make_check_machine(const std::string& name, int device, std::unique_ptr<CheckMachine>* out);

// The GPU's; only in builds with kernels.
Status make_gpu_check_machine(int device, std::unique_ptr<CheckMachine>* out);

}  // namespace gcmoe::cli
