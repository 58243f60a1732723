// gcmoe bench --loop: role 2's main loops alone, and the times that they let the operator hope for.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_options.hpp"
#include "bench_point.hpp"

namespace gcmoe::cli {

// Experts whose weights a loop streams, whatever the model has.
inline constexpr int kLoopExperts = 32;
// What the operator may take beside its loop: start, hand-over, epilogues, tail.
inline constexpr double kAroundLoopUs = 12;
// SMs that role 1 must have at least: a loop on more says nothing of the operator.
inline constexpr int kLeastDispatchSms = 4;

// One loop: 32 experts of a model's size, `rows` live rows each, on `sms` SMs.
struct LoopPoint {
    std::string model;
    Shape shape;
    int rows = 0;
    int sms = 0;
    double median_us = 0;
    double min_us = 0;
    double copy_us = 0;  // the same bytes, only copied
    double error = 0;    // of the sums of some rows, against the host
    [[nodiscard]] double bytes() const { return kLoopExperts * expert_bytes(shape); }
};

// What loops let a launch of `tokens` tokens hope for.
struct LoopTarget {
    std::string model;
    int tokens = 0;
    int rows = 0;        // of the loop that speaks for it
    int sms = 0;         // those of the fastest such loop
    double touched = 0;  // expected number of experts with rows
    double loop_us = 0;  // for their bytes
    double floor_us = 0;
    [[nodiscard]] double target_us() const { return loop_us + kAroundLoopUs; }
};

// Rows of the loop that speaks for `tokens` tokens: k n / E, rounded up to a multiple of 8.
[[nodiscard]] int loop_rows_for(const checkpoint::ModelEntry& model, int tokens);

// One target for every number of tokens from 8 on whose rows were measured on SMs that leave
// kLeastDispatchSms of the GPU's.
[[nodiscard]] std::vector<LoopTarget> loop_targets(const checkpoint::ModelEntry& model,
                                                   const std::vector<int>& tokens,
                                                   const std::vector<LoopPoint>& loops,
                                                   int gpu_sms);

[[nodiscard]] nlohmann::ordered_json loop_json(const LoopPoint& point, const BenchOrigin& origin);
[[nodiscard]] nlohmann::ordered_json target_json(const LoopTarget& target,
                                                 const BenchOrigin& origin);
[[nodiscard]] std::string loop_head();
[[nodiscard]] std::string loop_line(const LoopPoint& point);
[[nodiscard]] std::string target_line(const LoopTarget& target);

class LoopDevice {
  public:
    virtual ~LoopDevice() = default;
    // A point for every number of SMs of the plan that the device has.
    // Errors: kInternal (also: the sums are not the host's), kUnsupported (device memory).
    virtual Status measure(const checkpoint::ModelEntry& model, int rows,
                           std::vector<LoopPoint>* out) = 0;
};

// Errors: kUnsupported with the reason where no GPU can run the kernels, kBadInput (no number of
// SMs that the GPU has), kInternal.
Status make_loop_device(const BenchPlan& plan, std::unique_ptr<LoopDevice>* out);

// The GPU's; only in builds with kernels.
Status make_gpu_loop(const BenchPlan& plan, std::unique_ptr<LoopDevice>* out);

}  // namespace gcmoe::cli
