// Full-size suites: weights and verdicts by kernels. Empty in builds without them.
#ifdef GCMOE_HAS_CUDA

#include <fmt/format.h>

#include <utility>

#include "check_machine.hpp"
#include "cuda/weights/compare_with_host.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "cuda/weights/pack_on_device.hpp"
#include "reference/cuda/device_judge.hpp"

namespace gcmoe::cli {
namespace {

// The largest set of the suites has 7.4 GB of tiles and as many checkpoint bytes.
constexpr std::int64_t kKeepBytes = std::int64_t{24} << 30;

class GpuMachine final : public CheckMachine {
  public:
    Status make_weights(const checkpoint::GeneratedLayer& layer, const Shape& shape,
                        WeightSet* out) override {
        const checkpoint::PaddedSizes sizes = cuda::weights::sizes_of(shape);
        GCMOE_RETURN_IF_ERROR(
            cuda::weights::generate_layer(layer, sizes, {0, shape.num_experts}, &out->source));
        for (int rank = 0; rank < shape.num_ranks; ++rank) {
            std::shared_ptr<const PackedWeights> packed;
            PackReport report;
            GCMOE_RETURN_IF_ERROR(
                cuda::weights::pack_on_device(*out->source, shape, rank, {}, &packed, &report));
            out->packed.push_back(std::move(packed));
            out->packed_bytes += report.packed_bytes;
        }
        // The first and the last expert of a rank, another rank for every set.
        const int rank = num_sets_++ % shape.num_ranks;
        const int first = rank * shape.experts_per_rank();
        return cuda::weights::compare_with_host(layer, sizes, *out->source,
                                                *out->packed[static_cast<std::size_t>(rank)],
                                                {first, first + shape.experts_per_rank() - 1});
    }
    [[nodiscard]] std::int64_t keep_bytes() const override { return kKeepBytes; }
    [[nodiscard]] bool judges_device_memory() const override { return true; }

    Status judge(const reference::Problem& problem,
                 const std::vector<reference::RankOutputs>& outputs,
                 const reference::Tolerance& tolerance,
                 std::vector<reference::RankExpected>* expected,
                 std::vector<reference::RankJudgement>* out) override {
        if (expected != nullptr && !expected->empty()) {
            return {Code::kBadInput, "--expected: the GPU's judge computes them itself"};
        }
        return reference::judge_layer_on_device(problem, outputs, tolerance, out, expected);
    }

  private:
    int num_sets_ = 0;
};

}  // namespace

Status make_gpu_check_machine(int device, std::unique_ptr<CheckMachine>* out) {
    GCMOE_RETURN_IF_ERROR(cuda::weights::use_device(device));
    *out = std::make_unique<GpuMachine>();
    return {};
}

}  // namespace gcmoe::cli

#endif
