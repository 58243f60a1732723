// Where a tuning's launches run.
#pragma once

#include <memory>

#include "bench_options.hpp"
#include "tune_search.hpp"

namespace gcmoe::cli {

// Errors: kUnsupported with the reason where no GPU can run the kernels, kInternal.
Status make_tune_device(const BenchPlan& plan, std::unique_ptr<TuneDevice>* out);

// The GPU's; only in builds with kernels.
Status make_gpu_tuner(const BenchPlan& plan, std::unique_ptr<TuneDevice>* out);

// The point's layer and the rows of its experts, for as many routings as the bench has.
Status make_tune_site(const BenchPlan& plan, const checkpoint::ModelEntry& model, int tokens,
                      int sms, TuneSite* out);

}  // namespace gcmoe::cli
