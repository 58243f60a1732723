// Where the points of a bench come from: a GPU that runs them, or the host, which counts floors.
#pragma once

#include <memory>
#include <vector>

#include "bench_point.hpp"

namespace gcmoe::cli {

class BenchDevice {
  public:
    virtual ~BenchDevice() = default;

    // The model of the points that follow.
    virtual Status open_model(const checkpoint::ModelEntry& model) = 0;
    // A point of every variant, in their order.
    virtual Status measure(int tokens, std::vector<BenchPoint>* out) = 0;
    // One token, every slot unused, without shared expert; the first variant.
    virtual Status measure_empty(BenchPoint* out) = 0;
};

// Errors: kUnsupported with the reason where no GPU can run the kernels, kInternal.
Status make_bench_device(const BenchPlan& plan, std::unique_ptr<BenchDevice>* out);

// Touched experts and floors alone.
[[nodiscard]] std::unique_ptr<BenchDevice> make_floor_counter(const BenchPlan& plan);

// The GPU's; only in builds with kernels.
Status make_gpu_bench(const BenchPlan& plan, std::unique_ptr<BenchDevice>* out);

// A layer of a model on one rank.
[[nodiscard]] Shape bench_shape(const checkpoint::ModelEntry& model, bool with_shared,
                                DecodeForm decode = DecodeForm::kRowFactors);
// How an operator of a variant is made.
[[nodiscard]] OperatorOptions launch_options(const BenchPlan& plan, const BenchVariant& variant,
                                             int tokens);
// A variant's point before anything is measured: one seed without times for every routing.
[[nodiscard]] BenchPoint empty_point(const BenchPlan& plan, const checkpoint::ModelEntry& model,
                                     const BenchVariant& variant, int tokens);
// The empty launch's variant: the first, without shared expert.
[[nodiscard]] BenchVariant masked_variant(const BenchPlan& plan);

}  // namespace gcmoe::cli
